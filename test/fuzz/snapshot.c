/* Files of caches, sequences and models. The first byte says whether the target makes the checksums right first, so that the code
 * behind the checksums is reached. A file that loads can be used, saved and loaded again; one that fails changes nothing. */
#include "fuzz.h"

#include "../../include/aura_file.h"
#include "../file/file_tools.h"

static aura_cache *target;

static void begin(void)
{
    aura_config config = AURA_CONFIG_INIT;
    if (fuzz_ctx)
        return;
    fuzz_begin();
    MUST(files_begin() && !atexit(files_end));
    config.format.k = config.format.v = AURA_KIND_B2; /* the format of the sequences in the first files of the corpus */
    config.q_heads = 2, config.kv_heads = 1, config.k_dim = 64, config.seed = 5;
    config.budget_bytes = FUZZ_BUDGET;
    MUST(!aura_cache_create(fuzz_ctx, &config, &target));
}

/* The input as a source: so many bytes at a time as its first byte says. */
struct input {
    const uint8_t *data;
    size_t left, piece;
};

static ptrdiff_t give(void *user, void *to, size_t bytes)
{
    struct input *in = user;
    size_t n = bytes < in->piece ? bytes : in->piece;
    n = n < in->left ? n : in->left;
    memcpy(to, in->data, n);
    in->data += n, in->left -= n;
    return (ptrdiff_t)n;
}

/* What a cache writes it reads again, and writes the same bytes. */
static void expect_canonical(const aura_cache *cache)
{
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    struct bytes twice[2] = {{NULL, 0}, {NULL, 0}};
    aura_cache *again = NULL;
    options.budget_bytes = FUZZ_BUDGET;
    for (int i = 0; i < 2; i++) {
        aura_sink sink = AURA_SINK_INIT;
        aura_source source = AURA_SOURCE_INIT;
        MUST(!aura_cache_size(again ? again : cache, NULL, &twice[i].size));
        sink.data = twice[i].data = malloc(twice[i].size), sink.bytes = twice[i].size;
        MUST(!aura_cache_write(again ? again : cache, &sink, NULL) && sink.used == sink.bytes);
        source.data = sink.data, source.bytes = sink.bytes;
        if (!again)
            MUST(!aura_cache_read(fuzz_ctx, &source, &options, &again));
    }
    MUST(same_bytes(twice[0], twice[1]));
    free(twice[0].data), free(twice[1].data);
    aura_cache_destroy(again);
}

static void use_cache(aura_cache *cache)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache *again = NULL;
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    MUST(!aura_cache_get_info(cache, &info));
    MUST(info.bytes <= FUZZ_BUDGET);
    options.budget_bytes = FUZZ_BUDGET;
    MUST(!aura_cache_save(cache, file_path("again"), NULL));
    MUST(!aura_cache_load(fuzz_ctx, file_path("again"), &options, &again));
    expect_canonical(cache);
    aura_seq ids[64];
    size_t n = 64;
    MUST(!aura_cache_list(cache, ids, &n) && n == info.seqs);
    for (size_t i = 0; i < n && i < 64; i++)
        fuzz_use(cache, ids[i]), fuzz_use(again, (aura_seq)i + 1);
    aura_cache_destroy(again);
}

/* A file and a source of the same bytes load alike; a source may go on after the snapshot's end. */
static void expect_same_status(const aura_snapshot_options *options, struct input in, aura_status file)
{
    aura_cache *cache = NULL;
    aura_source source = AURA_SOURCE_INIT;
    uint8_t *odd = malloc(in.left + 1);
    memcpy(odd + 1, in.data, in.left);
    for (int way = 0; way < 3; way++, cache = NULL) {
        struct input some = in;
        source.read = way ? give : NULL, source.user = &some;
        source.data = way ? NULL : odd + 1, source.bytes = way == 1 ? 0 : in.left;
        aura_status status = aura_cache_read(fuzz_ctx, &source, options, &cache);
        MUST(!status == !!cache && source.used <= in.left);
        MUST(status == file || (!status && source.used < in.left) || (file == AURA_BAD_FILE && source.used < in.left));
        aura_cache_destroy(cache);
    }
    free(odd);
}

static void load_cache(const char *path, const aura_snapshot_options *options, struct input in)
{
    aura_cache *cache = NULL;
    aura_status status = aura_cache_load(fuzz_ctx, path, options, &cache);
    MUST(!status == !!cache);
    expect_same_status(options, in, status);
    if (!status)
        use_cache(cache);
    aura_cache_destroy(cache);
}

static void load_seq(const char *path, const aura_snapshot_options *options)
{
    aura_seq seq = 0;
    aura_cache_info before = AURA_CACHE_INFO_INIT, after = AURA_CACHE_INFO_INIT;
    MUST(!aura_cache_get_info(target, &before));
    aura_status status = aura_seq_load(target, path, options, &seq);
    if (!status) {
        fuzz_use(target, seq);
        MUST(!aura_seq_release(target, seq));
    }
    MUST(!aura_cache_get_info(target, &after));
    MUST(after.seqs == before.seqs && after.holders == before.holders && after.tokens == before.tokens);
    MUST(after.pages - after.free_pages == before.pages - before.free_pages);
}

static void load_model(const char *path, const aura_snapshot_options *options)
{
    aura_model_cache *model = NULL;
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_status status = aura_model_load(fuzz_ctx, path, options, &model);
    MUST(!status == !!model);
    if (status)
        return;
    MUST(!aura_model_cache_get_info(model, &info) && info.bytes <= FUZZ_BUDGET);
    MUST(!aura_model_save(model, file_path("again"), NULL));
    aura_seq ids[64];
    size_t n = 64;
    MUST(!aura_model_cache_list(model, ids, &n) && n == info.seqs);
    for (uint32_t i = 0; i < info.layers; i++)
        for (size_t k = 0; k < n && k < 64; k++)
            fuzz_use(aura_model_cache_layer(model, i), ids[k]);
    aura_model_cache_destroy(model);
}

/* The file with right checksums and sizes, which would stop most changes early. */
static struct bytes write_input(const char *path, const uint8_t *data, size_t size, int sealed)
{
    struct bytes file = {malloc(size + 1), size};
    memcpy(file.data, data, size);
    if (sealed && size >= sizeof(struct aura_file_header)) {
        header_of(file)->bytes = size;
        seal(file);
    }
    write_file(path, file.data, size);
    return file;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const aura_seq some[] = {(1u << 21) | 1, 1}; /* in files of version 0.4, and in later ones */
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    const char *path = "snapshot";
    begin();
    if (size < 1)
        return 0;
    uint8_t how = data[0];
    struct bytes file = write_input(file_path(path), data + 1, size - 1, !(how & 1));
    struct input in = {file.data, file.size, 1 + (size_t)(how >> 4) * 97};
    options.budget_bytes = FUZZ_BUDGET;
    options.first_head = how >> 1 & 1;
    options.seqs = how & 4 ? &some[how >> 3 & 1] : NULL, options.n_seqs = how & 4 ? 1 : 0;
    load_cache(file_path(path), &options, in);
    load_model(file_path(path), &options);
    options.budget_bytes = 0;
    load_seq(file_path(path), &options);
    free(file.data);
    unlink(file_path(path)), unlink(file_path("again"));
    return 0;
}
