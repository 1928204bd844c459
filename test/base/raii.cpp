// include/aura.hpp: what a handle owns is freed once, also where it moved, and a status becomes an exception.
// The context's allocator counts what is not freed.
#include "../../include/aura.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

static long allocated; // blocks

static void *count_alloc(void *, size_t bytes, size_t align)
{
    void *memory = nullptr;
    if (posix_memalign(&memory, align < sizeof(void *) ? sizeof(void *) : align, bytes))
        return nullptr;
    allocated++;
    return memory;
}

static void count_free(void *, void *memory, size_t)
{
    allocated -= memory != nullptr;
    free(memory);
}

static int failures;

static void expect(bool good, const char *what)
{
    if (!good)
        std::printf("FAIL raii: %s\n", what), failures++;
    else
        std::printf("ok raii: %s\n", what);
}

static aura_config small_config()
{
    aura_config config = AURA_CONFIG_INIT;
    config.q_heads = config.kv_heads = 1, config.k_dim = 64;
    return config;
}

static void move_and_free(aura_ctx *ctx)
{
    aura::cache first = aura::make_cache(ctx, small_config());
    aura_cache *was = first;
    aura::cache second(std::move(first));
    expect(!first.get() && second.get() == was, "a handle moves");
    first = std::move(second);
    expect(first.get() == was && !second.get(), "and back");
    second = aura::make_cache(ctx, small_config());
    second = std::move(first); // frees what it had
    expect(second.get() == was, "what it had is freed");
}

static void use(aura_ctx *ctx, const std::string &path)
{
    aura::cache cache = aura::make_cache(ctx, small_config());
    std::vector<float> k(40 * 64, 0.5f), q(64, 0.1f), out(64);
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    aura::check(aura_seq_create(cache, &in.seq));
    in.tokens = 40, in.k.data = k.data(), in.v.data = k.data();
    aura::check(aura_append(cache, &in, 1));
    ask.seq = in.seq, ask.queries = 1, ask.q.data = q.data(), ask.out.data = out.data();
    aura::check(aura_attend(cache, &ask, 1, nullptr));
    expect(out[0] > 0.4f && out[0] < 0.6f, "a cache that is used");
    aura::check(aura_cache_save(cache, path.c_str(), nullptr));
    aura::cache loaded = aura::load_cache(ctx, path);
    aura::listing listing = aura::list_file(ctx, path);
    aura_listing_info info = AURA_LISTING_INFO_INIT;
    aura::check(aura_listing_get_info(listing, &info));
    expect(info.held == AURA_HELD_CACHE && info.seqs == 1 && aura_cache_bytes(loaded) > 0, "a file");
    aura_model_config model = AURA_MODEL_CONFIG_INIT;
    const aura_config config = small_config();
    model.layers = 1, model.configs = &config;
    aura::model_cache layers = aura::make_model_cache(ctx, model);
    expect(aura_model_cache_layer(layers, 0) != nullptr, "a model");
}

static void fail(aura_ctx *ctx)
{
    aura_config config = small_config();
    aura::cache before = aura::make_cache(ctx, config);
    config.k_dim = 1000;
    try {
        aura::make_cache(ctx, config);
        expect(false, "an exception");
    } catch (const aura::error &why) {
        expect(why.status() == AURA_UNSUPPORTED && std::strstr(why.what(), "1000"), "an exception with the status and the message");
    }
    try {
        aura::load_cache(ctx, "/no/such/file");
        expect(false, "an exception of a file");
    } catch (const aura::error &why) {
        expect(why.status() == AURA_IO, "an exception of a file");
    }
}

int main(int argc, char **argv)
{
    {
        aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
        options.allocator = {count_alloc, count_free, nullptr};
        aura::context ctx = aura::make_context(&options);
        move_and_free(ctx);
        use(ctx, argc > 1 ? argv[1] : "raii.snapshot");
        fail(ctx);
    }
    expect(allocated == 0, "nothing is left");
    return failures != 0;
}
