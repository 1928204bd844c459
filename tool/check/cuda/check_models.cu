/* The caches of all layers of a model: on the device as on the CPU, where everything is done too. */
#include <string.h>

#include <algorithm>

#include "check.cuh"

/* ---- both sides ---------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 4 };

struct models {
    aura_ctx *ctx = NULL;
    aura_model_cache *cpu = NULL;
    aura_cuda_model_cache *gpu = NULL;
    std::vector<aura_config> configs;
    ~models()
    {
        aura_cuda_model_cache_destroy(gpu);
        aura_model_cache_destroy(cpu);
        aura_ctx_destroy(ctx);
    }
};

/* Layers of pages of different sizes, the second with a window. */
static std::vector<aura_config> some_configs(bool alike)
{
    std::vector<aura_config> configs;
    for (uint32_t i = 0; i < LAYERS; i++) {
        aura_config c = AURA_CONFIG_INIT;
        c.format.k = (aura_kind)(alike ? 4 : i == 2 ? 8 : 4), c.format.v = (aura_kind)(alike ? 4 : i == 3 ? 2 : 4);
        c.q_heads = 4, c.kv_heads = 2, c.k_dim = 64, c.seed = 5 + i;
        if (i == 1)
            c.window = 300, c.max_queries = 64, c.keep_first = 2;
        configs.push_back(c);
    }
    return configs;
}

static void make_models(const struct scene &s, struct models &m, const std::vector<aura_config> &configs, size_t budget,
                        const aura_profile *profile = NULL)
{
    m.configs = configs;
    TRY(aura_ctx_create(NULL, &m.ctx));
    aura_model_config cpu = AURA_MODEL_CONFIG_INIT;
    cpu.layers = (uint32_t)configs.size(), cpu.configs = m.configs.data(), cpu.profile = profile;
    TRY(aura_model_cache_create(m.ctx, &cpu, &m.cpu));
    aura_cuda_model_config gpu = AURA_CUDA_MODEL_CONFIG_INIT;
    gpu.layers = cpu.layers, gpu.configs = cpu.configs, gpu.budget_bytes = budget, gpu.seqs = 8, gpu.seq_tokens = 4096;
    gpu.profile = profile;
    TRY(aura_cuda_model_cache_create(m.ctx, &gpu, &m.gpu));
}

/* The same n tokens to a sequence in every layer, up to 64 at once; on the device on a stream. */
static void append_layers(const struct scene &s, const struct models &m, const struct both &b, uint32_t n, uint64_t seed,
                          cudaStream_t stream)
{
    device_array ids(&b.gpu, 4);
    for (uint32_t done = 0, part; done < n; done += part) {
        part = std::min(n - done, 64u);
        for (uint32_t i = 0; i < m.configs.size(); i++) {
            const std::vector<float> k = some_tokens(seed + 97 * i + done, part, 2, 64, true);
            aura_append_job job = AURA_APPEND_JOB_INIT;
            job.seq = b.cpu, job.tokens = part, job.k.data = job.v.data = k.data();
            TRY(aura_append(aura_model_cache_layer(m.cpu, i), &job, 1));
            device_array x(k.data(), k.size() * 4);
            aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
            args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.tokens = part, args.k.data = args.v.data = x.p;
            TRY(aura_cuda_append(aura_cuda_model_cache_layer(m.gpu, i), &args, stream));
            TRY_CUDA(cudaStreamSynchronize(stream));
        }
    }
}

static void compare_layers(const struct scene &s, const struct models &m, const struct both &b, const char *when)
{
    for (uint32_t i = 0; i < m.configs.size(); i++) {
        const aura_cuda_cache *gpu = aura_cuda_model_cache_layer(m.gpu, i);
        aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
        aura_config config = m.configs[i];
        aura_cache *back;
        aura_seq seq;
        TRY(aura_cuda_seq_get_info(gpu, b.gpu, &info));
        TRY(aura_cache_create(m.ctx, &config, &back));
        TRY(aura_seq_create(back, &seq));
        TRY(aura_cuda_download(gpu, b.gpu, back, seq));
        const std::string where = first_difference(aura_model_cache_layer(m.cpu, i), b.cpu, back, seq);
        if (!where.empty() || info.status)
            complain(s, "%s: layer %u, sequence %u: differs at: %s; status %u", when, i, b.gpu, where.c_str(), info.status);
        aura_cache_destroy(back);
    }
}

static size_t free_of(const struct models &m)
{
    aura_cuda_model_cache_info info = AURA_CUDA_MODEL_CACHE_INFO_INIT;
    return aura_cuda_model_cache_get_info(m.gpu, &info) ? 0 : info.free_pages;
}

/* ---- what sequences go through -------------------------------------------------------------------------------------------- */

/* A prompt, forks of it, cuts, beams; everything is released in the end, and every page is free. */
static void run_life(bool alike)
{
    struct scene s;
    s.name = alike ? "4 layers alike" : "4 layers of three formats";
    struct models m;
    struct both a, b, beams[3];
    const int before = failures;
    cases++;
    make_models(s, m, some_configs(alike), (size_t)24 << 20);
    if (failures > before)
        return;
    const size_t all = free_of(m);
    TRY(aura_model_seq_create(m.cpu, &a.cpu));
    TRY(aura_cuda_model_seq_create(m.gpu, &a.gpu));
    TRY(aura_cuda_model_seq_reserve(m.gpu, a.gpu, 700));
    append_layers(s, m, a, 600, 1, NULL);
    compare_layers(s, m, a, "a prompt");
    TRY(aura_model_seq_fork(m.cpu, a.cpu, 590, &b.cpu));
    TRY(aura_cuda_model_seq_fork(m.gpu, a.gpu, 590, &b.gpu));
    for (const struct both *x : {&a, &b}) {
        TRY(aura_cuda_model_seq_reserve(m.gpu, x->gpu, 800));
        append_layers(s, m, *x, 70, 20 + x->gpu, NULL);
        compare_layers(s, m, *x, "forked");
    }
    TRY(aura_model_seq_truncate(m.cpu, b.cpu, 640));
    TRY(aura_cuda_model_seq_truncate(m.gpu, b.gpu, 640));
    TRY(aura_cuda_model_seq_reserve(m.gpu, b.gpu, 700));
    append_layers(s, m, b, 30, 40, NULL);
    compare_layers(s, m, b, "cut");
    /* b twice and a once; then b's first alone. */
    const uint32_t which[] = {1, 0, 1}, last[] = {2};
    aura_seq cpu[3] = {a.cpu, b.cpu, 0};
    aura_cuda_seq gpu[3] = {a.gpu, b.gpu, 0};
    TRY(aura_model_seqs_select(m.cpu, cpu, 2, which, 3, cpu));
    TRY(aura_cuda_model_seqs_select(m.gpu, gpu, 2, which, 3, gpu));
    if (gpu[0] != b.gpu || gpu[1] != a.gpu || gpu[2] == a.gpu || gpu[2] == b.gpu)
        complain(s, "beams are %u, %u, %u", gpu[0], gpu[1], gpu[2]);
    for (uint32_t i = 0; i < 3; i++) {
        beams[i] = {cpu[i], gpu[i]};
        TRY(aura_cuda_model_seq_reserve(m.gpu, gpu[i], 800));
        append_layers(s, m, beams[i], 40, 60 + i, NULL);
    }
    for (const struct both &x : beams)
        compare_layers(s, m, x, "beams");
    TRY(aura_model_seqs_select(m.cpu, cpu, 3, last, 1, cpu));
    TRY(aura_cuda_model_seqs_select(m.gpu, gpu, 3, last, 1, gpu));
    compare_layers(s, m, {cpu[0], gpu[0]}, "the last beam");
    TRY(aura_cuda_model_seq_release(m.gpu, gpu[0]));
    aura_cuda_model_cache_info info = AURA_CUDA_MODEL_CACHE_INFO_INIT;
    TRY(aura_cuda_model_cache_get_info(m.gpu, &info));
    if (info.free_pages != info.pages || (alike && info.free_pages != all) || info.seqs || info.tokens)
        complain(s, "in the end %zu of %zu pages are free, %zu sequences", info.free_pages, info.pages, info.seqs);
    end_case(s, before, "bytes equal in every layer");
}

/* Reservations on a stream, in a graph's place: nobody waits between steps. */
static void run_stream()
{
    struct scene s;
    s.name = "reservations on a stream";
    struct models m;
    struct both a, b;
    const int before = failures;
    cases++;
    make_models(s, m, some_configs(true), (size_t)24 << 20);
    if (failures > before)
        return;
    cudaStream_t stream;
    TRY_CUDA(cudaStreamCreate(&stream));
    TRY(aura_model_seq_create(m.cpu, &a.cpu));
    TRY(aura_cuda_model_seq_create(m.gpu, &a.gpu));
    for (uint32_t i = 1; i <= 3; i++) {
        TRY(aura_cuda_model_seq_reserve_on(m.gpu, a.gpu, 200 * i, stream));
        append_layers(s, m, a, 200, i, stream);
    }
    compare_layers(s, m, a, "grown");
    TRY(aura_model_seq_fork(m.cpu, a.cpu, 600, &b.cpu));
    TRY(aura_cuda_model_seq_fork(m.gpu, a.gpu, 600, &b.gpu));
    for (const struct both *x : {&a, &b}) { /* each copies what they share */
        TRY(aura_cuda_model_seq_reserve_on(m.gpu, x->gpu, 700, stream));
        append_layers(s, m, *x, 50, 10 + x->gpu, stream);
    }
    compare_layers(s, m, a, "forked");
    compare_layers(s, m, b, "the fork");
    aura_cuda_cache_info info = AURA_CUDA_CACHE_INFO_INIT;
    TRY(aura_cuda_cache_get_info(aura_cuda_model_cache_layer(m.gpu, 0), &info));
    aura_cache_info cpu = AURA_CACHE_INFO_INIT;
    TRY(aura_cache_get_info(aura_model_cache_layer(m.cpu, 0), &cpu));
    if (info.tokens != 1300 || info.tokens != cpu.tokens || info.tiles_closed != cpu.tiles_closed || !info.pages_copied ||
        info.holders < cpu.holders || info.seqs_in_use != 2)
        complain(s, "%llu tokens, %llu tiles closed, %llu pages copied, %zu holders", (unsigned long long)info.tokens,
                 (unsigned long long)info.tiles_closed, (unsigned long long)info.pages_copied, info.holders);
    cudaStreamDestroy(stream);
    end_case(s, before, "bytes equal in every layer");
}

/* ---- limits --------------------------------------------------------------------------------------------------------------- */

/* Reserves until it fails, in one layer: nothing is different in the others. Returns the most tokens that there was room for. */
static uint64_t reserve_all(const struct scene &s, const struct models &m, aura_cuda_seq seq)
{
    uint64_t most = 0;
    for (aura_status status = AURA_OK; !status && most < 4096;) {
        aura_cuda_seq_info was[LAYERS], now = AURA_CUDA_SEQ_INFO_INIT;
        for (uint32_t i = 0; i < LAYERS; i++) {
            was[i] = AURA_CUDA_SEQ_INFO_INIT;
            aura_cuda_seq_get_info(aura_cuda_model_cache_layer(m.gpu, i), seq, &was[i]);
        }
        const size_t pages = free_of(m);
        if (!(status = aura_cuda_model_seq_reserve(m.gpu, seq, most + 256))) {
            most += 256;
            continue;
        }
        if (status != AURA_OUT_OF_PAGES)
            complain(s, "%llu tokens: %s", (unsigned long long)most, aura_last_error());
        if (m.configs[2].format.k == 4 && free_of(m) != pages)
            complain(s, "%zu pages are free instead of %zu after a failure", free_of(m), pages);
        for (uint32_t i = 0; i < LAYERS; i++) {
            aura_cuda_seq_get_info(aura_cuda_model_cache_layer(m.gpu, i), seq, &now);
            if (now.pages != was[i].pages || now.reserved != was[i].reserved)
                complain(s, "layer %u has %zu pages instead of %zu after a failure", i, now.pages, was[i].pages);
        }
    }
    return most;
}

static void run_budget(bool alike)
{
    struct scene s;
    s.name = alike ? "one budget, layers alike" : "one budget, three formats";
    struct models m;
    const int before = failures;
    cases++;
    make_models(s, m, some_configs(alike), (size_t)15 << 17);
    if (failures > before)
        return;
    aura_cuda_seq seq, other;
    uint64_t most = 0;
    TRY(aura_cuda_model_seq_create(m.gpu, &other));
    for (uint64_t extra = 0; extra < 4; extra++) { /* so that it is not always the first layer that fails */
        TRY(aura_cuda_seq_reserve(aura_cuda_model_cache_layer(m.gpu, 0), other, extra * 256));
        TRY(aura_cuda_model_seq_create(m.gpu, &seq));
        most = reserve_all(s, m, seq);
        TRY(aura_cuda_model_seq_release(m.gpu, seq));
    }
    TRY(aura_cuda_model_seq_reserve(m.gpu, other, most)); /* as much again */
    if (most < 512 || most > 4000)
        complain(s, "room for %llu tokens", (unsigned long long)most);
    end_case(s, before, "");
}

/* Slabs that one layer had go to another that needs them. */
static void run_slabs()
{
    struct scene s;
    s.name = "slabs change hands";
    struct models m;
    const int before = failures;
    cases++;
    make_models(s, m, some_configs(false), (size_t)15 << 17);
    if (failures > before)
        return;
    aura_cuda_seq seq;
    uint64_t reached[2] = {0, 0};
    TRY(aura_cuda_model_seq_create(m.gpu, &seq));
    for (int turn = 0; turn < 2; turn++) { /* layer 2 alone, then layer 3 alone: pages of different sizes */
        aura_cuda_cache *layer = aura_cuda_model_cache_layer(m.gpu, 2 + turn);
        while (reached[turn] < 4096 && !aura_cuda_seq_reserve(layer, seq, reached[turn] + 256))
            reached[turn] += 256;
        TRY(aura_cuda_seq_truncate(layer, seq, 0));
    }
    if (reached[0] < 1024 || reached[0] == 4096 || reached[1] < 2048) /* the first took all there is */
        complain(s, "one layer got %llu tokens, another then %llu", (unsigned long long)reached[0], (unsigned long long)reached[1]);
    const std::string told = std::to_string(reached[0]) + " tokens, then " + std::to_string(reached[1]);
    end_case(s, before, told.c_str());
}

/* A budget that grows and shrinks under sequences that share pages, those of a window among them: the bytes stay. */
static void run_resize(bool alike)
{
    struct scene s;
    s.name = alike ? "another budget, layers alike" : "another budget, three formats";
    struct models m;
    struct both a, b, gone;
    const int before = failures;
    const size_t mb = 1 << 20;
    cases++;
    make_models(s, m, some_configs(alike), 4 * mb);
    if (failures > before)
        return;
    for (struct both *x : {&gone, &a}) {
        TRY(aura_model_seq_create(m.cpu, &x->cpu));
        TRY(aura_cuda_model_seq_create(m.gpu, &x->gpu));
        TRY(aura_cuda_model_seq_reserve(m.gpu, x->gpu, 900));
        append_layers(s, m, *x, 700, 3 + x->gpu, NULL);
    }
    TRY(aura_model_seq_fork(m.cpu, a.cpu, 690, &b.cpu));
    TRY(aura_cuda_model_seq_fork(m.gpu, a.gpu, 690, &b.gpu));
    TRY(aura_cuda_model_seq_release(m.gpu, gone.gpu)); /* so that pages in use do not begin at 0 */
    for (const size_t budget : {16 * mb, 3 * mb}) {
        TRY(aura_cuda_model_cache_resize(m.gpu, budget));
        aura_cuda_model_cache_info info = AURA_CUDA_MODEL_CACHE_INFO_INIT;
        TRY(aura_cuda_model_cache_get_info(m.gpu, &info));
        if (info.budget_bytes != budget || info.bytes > budget || info.bytes + 2 * mb < budget)
            complain(s, "a budget of %zu, and %zu bytes", info.budget_bytes, info.bytes);
        for (const struct both *x : {&a, &b}) {
            compare_layers(s, m, *x, "moved");
            TRY(aura_cuda_model_seq_reserve(m.gpu, x->gpu, 900));
            append_layers(s, m, *x, 60, budget / mb + x->gpu, NULL);
            compare_layers(s, m, *x, "moved and appended to");
        }
    }
    if (aura_cuda_model_cache_resize(m.gpu, 1000) != AURA_OUT_OF_PAGES ||
        aura_cuda_model_cache_resize(m.gpu, mb + mb / 2) != AURA_OUT_OF_PAGES ||
        aura_cuda_model_cache_resize(NULL, mb) != AURA_BAD_ARGUMENT ||
        aura_cuda_cache_resize(aura_cuda_model_cache_layer(m.gpu, 0), 16 * mb) != AURA_BAD_ARGUMENT)
        complain(s, "a budget that is too small, or of a layer: %s", aura_last_error());
    compare_layers(s, m, b, "not moved");
    for (const struct both *x : {&a, &b})
        TRY(aura_cuda_model_seq_release(m.gpu, x->gpu));
    aura_cuda_model_cache_info info = AURA_CUDA_MODEL_CACHE_INFO_INIT;
    TRY(aura_cuda_model_cache_get_info(m.gpu, &info));
    if (info.free_pages != info.pages)
        complain(s, "in the end %zu of %zu pages are free", info.free_pages, info.pages);
    end_case(s, before, "bytes equal");
}

/* ---- what is refused ------------------------------------------------------------------------------------------------------ */

struct counted {
    int left, given;
};

static void *count_alloc(void *user, size_t bytes, struct CUstream_st *)
{
    struct counted *c = (struct counted *)user;
    void *p = NULL;
    if (c->left-- <= 0 || cudaMalloc(&p, bytes) != cudaSuccess)
        return NULL;
    c->given++;
    return p;
}

static void count_free(void *user, void *memory, size_t, struct CUstream_st *)
{
    ((struct counted *)user)->given--;
    cudaFree(memory);
}

/* All memory comes from the caller's allocator and goes back to it, also where it has no more in the middle. */
static void run_allocator()
{
    struct scene s;
    s.name = "an allocator";
    const int before = failures;
    aura_ctx *ctx;
    cases++;
    TRY(aura_ctx_create(NULL, &ctx));
    const std::vector<aura_config> configs = some_configs(true);
    aura_cuda_model_config config = AURA_CUDA_MODEL_CONFIG_INIT;
    struct counted count = {0, 0};
    config.layers = LAYERS, config.configs = configs.data(), config.budget_bytes = (size_t)8 << 20, config.seqs = 2;
    config.allocator.alloc = count_alloc, config.allocator.free = count_free, config.allocator.user = &count;
    for (int n = 0; n < 4; n++) {
        aura_cuda_model_cache *model = NULL;
        aura_cuda_workspace *workspace = NULL;
        count.left = n;
        aura_status status = aura_cuda_model_cache_create(ctx, &config, &model);
        if (!status)
            status = aura_cuda_workspace_create(aura_cuda_model_cache_layer(model, 0), 1, 1, &workspace);
        if (status != (n < 3 ? AURA_OUT_OF_MEMORY : AURA_OK) || !model != (n < 2))
            complain(s, "with %d allocations: %s", n, aura_last_error());
        aura_cuda_model_cache_info was = AURA_CUDA_MODEL_CACHE_INFO_INIT, now = AURA_CUDA_MODEL_CACHE_INFO_INIT;
        if (model && (aura_cuda_model_cache_get_info(model, &was) ||
                      aura_cuda_model_cache_resize(model, 2 * config.budget_bytes) != AURA_OUT_OF_MEMORY ||
                      aura_cuda_model_cache_get_info(model, &now) || memcmp(&was, &now, sizeof now)))
            complain(s, "a larger budget without memory: %s", aura_last_error());
        aura_cuda_workspace_destroy(workspace);
        aura_cuda_model_cache_destroy(model);
        if (count.given)
            complain(s, "%d allocations are left of %d", count.given, n);
    }
    aura_cuda_model_cache *none = NULL;
    config.allocator.free = NULL;
    if (aura_cuda_model_cache_create(ctx, &config, &none) != AURA_BAD_ARGUMENT || !strstr(aura_last_error(), "half an allocator"))
        complain(s, "half an allocator: %s", aura_last_error());
    aura_ctx_destroy(ctx);
    end_case(s, before, "");
}

static void run_refused_calls()
{
    struct scene s;
    s.name = "calls about a layer, beams that are none";
    struct models m;
    const int before = failures;
    cases++;
    make_models(s, m, some_configs(true), (size_t)8 << 20);
    if (failures > before)
        return;
    aura_cuda_cache *layer = aura_cuda_model_cache_layer(m.gpu, 1);
    aura_cuda_seq seq, other = 7, to[2];
    TRY(aura_cuda_model_seq_create(m.gpu, &seq));
    const uint32_t which[] = {0, 5};
    const aura_cuda_seq twice[] = {seq, seq};
    const size_t pages = free_of(m);
    const aura_status all[] = {aura_cuda_seq_create(layer, &other), aura_cuda_seq_fork(layer, seq, 0, &other),
                               aura_cuda_seq_release(layer, seq), aura_cuda_seqs_select(layer, &seq, 1, which, 1, to),
                               aura_cuda_model_seqs_select(m.gpu, &seq, 1, which, 2, to),
                               aura_cuda_model_seqs_select(m.gpu, twice, 2, which, 1, to),
                               aura_cuda_model_seqs_select(m.gpu, &seq, 1, NULL, 1, to), aura_cuda_model_seq_create(NULL, &other),
                               aura_cuda_model_seq_fork(m.gpu, seq, 1, &other), aura_cuda_model_seq_truncate(m.gpu, seq, 1),
                               aura_cuda_model_seq_fork(m.gpu, seq, UINT64_MAX, &other), aura_cuda_model_seq_release(m.gpu, 7),
                               aura_cuda_cache_upload(layer, aura_model_cache_layer(m.cpu, 1), NULL, NULL)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != AURA_BAD_ARGUMENT)
            complain(s, "call %zu: %s", i, aura_status_text(all[i]));
    aura_cuda_cache_destroy(layer); /* does nothing */
    const uint32_t many[] = {0, 0, 0, 0, 0, 0, 0, 0, 0}; /* more than there can be: none is made */
    aura_cuda_seq lots[9];
    aura_cuda_model_cache_info info = AURA_CUDA_MODEL_CACHE_INFO_INIT;
    const aura_status status = aura_cuda_model_seqs_select(m.gpu, &seq, 1, many, 9, lots);
    TRY(aura_cuda_model_cache_get_info(m.gpu, &info));
    if (status != AURA_OUT_OF_PAGES || info.seqs != 1 || free_of(m) != pages)
        complain(s, "nine beams in eight places: %s, and %zu sequences", aura_status_text(status), info.seqs);
    std::vector<aura_config> configs = some_configs(true);
    aura_cuda_model_config config = AURA_CUDA_MODEL_CONFIG_INIT;
    aura_cuda_model_cache *none = NULL;
    config.layers = LAYERS, config.configs = configs.data(), config.budget_bytes = 1000;
    if (aura_cuda_model_cache_create(m.ctx, &config, &none) != AURA_OUT_OF_PAGES)
        complain(s, "a budget of 1000 bytes: %s", aura_last_error());
    configs[2].budget_bytes = 5, config.budget_bytes = (size_t)8 << 20;
    if (aura_cuda_model_cache_create(m.ctx, &config, &none) != AURA_BAD_ARGUMENT || !strstr(aura_last_error(), "configs[2]"))
        complain(s, "a layer with a budget: %s", aura_last_error());
    end_case(s, before, "");
}

/* Layers get their formats, balances and metrics of a profile, as on the CPU: its bytes. A layer with a format of its own keeps
 * that. */
static void run_profile()
{
    struct scene s;
    s.name = "3 layers by a profile", s.balance = s.metric = true, s.tokens = {};
    s.config.q_heads = 4, s.config.kv_heads = 2, s.config.k_dim = 64;
    struct filled f;
    struct models m;
    struct both a;
    aura_profile *profile = NULL;
    const int before = failures;
    cases++;
    fill(s, f); /* for its balances and metrics */
    TRY(aura_profile_create(f.ctx, 3, &profile));
    for (uint32_t i = 0; i < 3; i++) {
        aura_profile_layer layer = AURA_PROFILE_LAYER_INIT;
        layer.kv_heads = 2, layer.k_dim = layer.v_dim = 64;
        layer.balance = f.balance.data(), layer.v_balance = i ? f.v_balance.data() : NULL;
        layer.k_metric = i < 2 ? f.k_metric.data() : NULL, layer.v_metric = i == 1 ? f.v_metric.data() : NULL;
        layer.format.k = (aura_kind)(i ? 3 : AURA_TRELLIS_2), layer.format.v = (aura_kind)(i ? 5 : AURA_TRELLIS_3);
        TRY(aura_profile_put(profile, i, &layer));
    }
    std::vector<aura_config> configs(3, s.config);
    for (aura_config &c : configs)
        c.format.k = c.format.v = (aura_kind)0;
    configs[2].format.k = configs[2].format.v = (aura_kind)8;
    make_models(s, m, configs, (size_t)24 << 20, profile);
    for (uint32_t i = 0; failures == before && i < 3; i++) { /* compare_layers() makes caches of these */
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(aura_model_cache_layer(m.cpu, i), &info);
        m.configs[i] = info.config, m.configs[i].budget_bytes = 0;
        if (info.config.format.k != (i == 2 ? 8 : i ? 3 : AURA_TRELLIS_2))
            complain(s, "layer %u: keys of kind %d", i, (int)info.config.format.k);
    }
    if (failures == before) {
        TRY(aura_model_seq_create(m.cpu, &a.cpu));
        TRY(aura_cuda_model_seq_create(m.gpu, &a.gpu));
        TRY(aura_cuda_model_seq_reserve(m.gpu, a.gpu, 300));
        append_layers(s, m, a, 120, 3, NULL);
        compare_layers(s, m, a, "a prompt");
    }
    aura_profile_destroy(profile);
    end_case(s, before, "");
}

void check_models()
{
    run_profile();
    run_life(true);
    run_life(false);
    run_stream();
    run_budget(true);
    run_budget(false);
    run_slabs();
    run_resize(true);
    run_resize(false);
    run_allocator();
    run_refused_calls();
}
