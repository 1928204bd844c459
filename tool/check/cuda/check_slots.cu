/* Slots: written anywhere, attended to through lists of pages; on the device as on the CPU. */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "check.cuh"

enum { SLOTS = 5 * AURA_PAGE - 70, STRIDE = 6 };

/* Caches of slots with the same tokens. */
struct slot_caches {
    aura_ctx *ctx = NULL;
    aura_cache *cpu = NULL;
    aura_cuda_cache *gpu = NULL;
    aura_cuda_workspace *workspace = NULL;
    aura_config config = AURA_CONFIG_INIT;
    std::vector<float> k_metric, v_metric;
    ~slot_caches()
    {
        aura_cuda_workspace_destroy(workspace);
        aura_cuda_cache_destroy(gpu);
        aura_cache_destroy(cpu);
        aura_ctx_destroy(ctx);
    }
};

static void make_slots(const struct scene &s, struct slot_caches &x, size_t budget)
{
    x.config = s.config;
    x.config.slots = SLOTS;
    if (s.metric && aura_is_packed((uint32_t)x.config.format.k))
        x.k_metric = some_metric(s.seed + 50, x.config.kv_heads, x.config.k_dim), x.config.k_metric = x.k_metric.data();
    if (s.metric && aura_is_packed((uint32_t)x.config.format.v))
        x.v_metric = some_metric(s.seed + 51, x.config.kv_heads, x.config.v_dim ? x.config.v_dim : x.config.k_dim),
        x.config.v_metric = x.v_metric.data();
    TRY(aura_ctx_create(NULL, &x.ctx));
    TRY(aura_cache_create(x.ctx, &x.config, &x.cpu));
    aura_cuda_config gpu = AURA_CUDA_CONFIG_INIT;
    gpu.cache = x.config, gpu.cache.budget_bytes = budget;
    TRY(aura_cuda_cache_create(x.ctx, &gpu, &x.gpu));
}

static uint32_t v_dim_of(const struct slot_caches &x)
{
    return x.config.v_dim ? x.config.v_dim : x.config.k_dim;
}

/* The same tokens into these slots, on the device by a stream. */
static void write_both(const struct scene &s, struct slot_caches &x, const std::vector<uint64_t> &slot, uint64_t seed,
                       cudaStream_t stream)
{
    const uint32_t n = (uint32_t)slot.size(), heads = x.config.kv_heads;
    const std::vector<float> k = some_tokens(seed, n, heads, x.config.k_dim, true);
    const std::vector<float> v = some_tokens(seed + 1, n, heads, v_dim_of(x), false);
    aura_slot_job job = AURA_SLOT_JOB_INIT;
    job.tokens = n, job.slot = slot.data(), job.k.data = k.data(), job.v.data = v.data();
    TRY(aura_slots_write(x.cpu, &job, 1));
    device_array where(slot.data(), n * 8), dk(k.data(), k.size() * 4), dv(v.data(), v.size() * 4);
    aura_cuda_slot_args args = AURA_CUDA_SLOT_ARGS_INIT;
    args.tokens = n, args.slot = (const uint64_t *)where.p, args.k.data = dk.p, args.v.data = dv.p;
    TRY(aura_cuda_slots_write(x.gpu, &args, stream));
    TRY_CUDA(cudaStreamSynchronize(stream));
}

/* All slots, decoded: what the device unpacks is within the precision of f16. */
static void compare_slots(const struct scene &s, const struct slot_caches &x, const char *when)
{
    const uint32_t heads = x.config.kv_heads, id = 0;
    std::vector<uint64_t> all(SLOTS);
    for (size_t i = 0; i < all.size(); i++)
        all[i] = i;
    for (int values = 0; values < 2; values++) {
        const uint32_t dim = values ? v_dim_of(x) : x.config.k_dim;
        std::vector<float> want((size_t)SLOTS * heads * dim);
        std::vector<uint8_t> bytes(want.size() * 2);
        aura_view none = AURA_VIEW_INIT, to = AURA_VIEW_INIT;
        to.data = want.data();
        TRY(aura_slots_decode(x.cpu, all.data(), SLOTS, values ? &none : &to, values ? &to : &none));
        device_array ids(&id, 4), out(bytes.size());
        aura_cuda_unpack_args args = AURA_CUDA_UNPACK_ARGS_INIT;
        args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.tokens = SLOTS;
        (values ? args.v : args.k).data = out.p;
        args.k.dtype = args.v.dtype = AURA_F16;
        TRY(aura_cuda_unpack(x.gpu, &args, NULL));
        TRY_CUDA(cudaMemcpy(bytes.data(), out.p, bytes.size(), cudaMemcpyDeviceToHost));
        const std::vector<float> got = as_float(bytes, AURA_F16);
        for (size_t row = 0; row < want.size() / dim; row++) {
            double error = 0, norm = 0;
            for (uint32_t d = 0; d < dim; d++)
                error += pow(got[row * dim + d] - want[row * dim + d], 2), norm += pow(want[row * dim + d], 2);
            if (!(sqrt(error) <= 1e-3 * sqrt(norm)))
                return complain(s, "%s: %s of slot %zu, head %zu: error %.2e of %.2e", when, values ? "value" : "key", row / heads,
                                row % heads, sqrt(error), sqrt(norm));
        }
    }
}

/* What a call attends to: pages of each sequence and its tokens; a mask over the last mask_keys hides some. */
struct lists {
    std::vector<std::vector<uint32_t>> pages;
    std::vector<uint32_t> tokens;
    uint32_t queries, mask_keys;
    bool by_images = false;
};

static void compare_attention(const struct scene &s, struct slot_caches &x, const struct lists &l, const char *when)
{
    const uint32_t n = (uint32_t)l.tokens.size(), heads = x.config.q_heads, v_dim = v_dim_of(x);
    const size_t rows = (size_t)n * l.queries * heads;
    const std::vector<float> q = some_numbers(s.seed + 5, rows * x.config.k_dim);
    std::vector<float> want(rows * v_dim), got(rows * v_dim), mask((size_t)n * l.queries * l.mask_keys);
    for (size_t i = 0; i < mask.size(); i++)
        mask[i] = i % 3 == 1 ? -INFINITY : 0;
    std::vector<uint32_t> table(n * STRIDE, ~0u);
    for (uint32_t i = 0; i < n; i++) {
        std::vector<uint32_t> tiles;
        for (uint32_t p : l.pages[i])
            for (uint32_t t = 0; t < AURA_PAGE_TILES; t++)
                tiles.push_back(p * AURA_PAGE_TILES + t);
        std::copy(l.pages[i].begin(), l.pages[i].end(), table.begin() + i * STRIDE);
        tiles.resize((l.tokens[i] + AURA_TILE - 1) / AURA_TILE);
        aura_attend_job job = AURA_ATTEND_JOB_INIT;
        job.queries = l.queries, job.tokens = l.tokens[i], job.tiles = tiles.data();
        job.q.data = q.data() + (size_t)i * l.queries * heads * x.config.k_dim;
        job.out.data = want.data() + (size_t)i * l.queries * heads * v_dim;
        job.mask = l.mask_keys ? mask.data() + (size_t)i * l.queries * l.mask_keys : NULL, job.mask_keys = l.mask_keys;
        aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
        options.planes = l.queries > FEW_QUERIES ? 2 : 0; /* or images, which know no planes */
        TRY(aura_attend(x.cpu, &job, 1, &options));
    }
    device_array dq(q.data(), q.size() * 4), out(got.size() * 4), dm(mask.data(), mask.size() * 4);
    device_array pages(table.data(), n * STRIDE * 4), tokens(l.tokens.data(), n * 4);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.n_seqs = n, args.queries = l.queries, args.q.data = dq.p, args.out.data = out.p;
    args.pages = (const uint32_t *)pages.p, args.page_stride = STRIDE, args.tokens = (const uint32_t *)tokens.p;
    args.mask = l.mask_keys ? (const float *)dm.p : NULL, args.mask_keys = l.mask_keys;
    aura_cuda_workspace_destroy(x.workspace);
    x.workspace = NULL;
    x.gpu->by_images = l.by_images;
    TRY(aura_cuda_workspace_create(x.gpu, n, l.queries, &x.workspace));
    TRY(aura_cuda_attend(x.gpu, x.workspace, &args, NULL));
    TRY_CUDA(cudaMemcpy(got.data(), out.p, got.size() * 4, cudaMemcpyDeviceToHost));
    /* A weight of one plane that is at a rounding boundary may be either of two: 1/255 of the largest, and among hundreds. */
    const double allowed = l.queries > FEW_QUERIES ? 6e-3 : 1e-3;
    for (size_t row = 0; row < rows; row++) {
        double error = 0, norm = 0;
        for (uint32_t d = 0; d < v_dim; d++)
            error += pow(got[row * v_dim + d] - want[row * v_dim + d], 2), norm += pow(want[row * v_dim + d], 2);
        if (!(sqrt(error) <= allowed * (sqrt(norm) + 0.1)))
            return complain(s, "%s: row %zu: error %.2e of %.2e", when, row, sqrt(error), sqrt(norm));
    }
}

/* Slots in any order, so many of them, several of a tile in a call, over again; references; pages that are cleared. */
static void run_writes(struct scene s, size_t tokens = SLOTS - 40)
{
    struct slot_caches x;
    const int before = failures;
    cases++;
    s.name += " slots";
    make_slots(s, x, (size_t)16 << 20);
    if (failures > before)
        return;
    cudaStream_t stream;
    TRY_CUDA(cudaStreamCreate(&stream));
    std::vector<uint64_t> most, some;
    uint64_t seed = 3;
    for (uint64_t i = 0; i < SLOTS; i++)
        most.push_back(i * 7919 % SLOTS); /* a permutation: SLOTS is no multiple of it */
    some.assign(most.begin() + 100, most.begin() + 160);
    most.resize(tokens);
    if (x.gpu->dev.has_reference) {
        const std::vector<float> k = some_tokens(9, 2, x.config.kv_heads, x.config.k_dim, true);
        const uint64_t pages[] = {3, 1};
        device_array dp(pages, sizeof pages), dk(k.data(), k.size() * 4);
        aura_cuda_view view = AURA_CUDA_VIEW_INIT;
        view.data = dk.p;
        TRY(aura_cuda_slots_reference(x.gpu, (const uint64_t *)dp.p, 2, &view, stream));
        TRY_CUDA(cudaStreamSynchronize(stream));
        for (int i = 0; i < 2; i++) {
            aura_input in = AURA_INPUT_INIT;
            in.data = k.data() + (size_t)i * x.config.kv_heads * x.config.k_dim;
            TRY(aura_slots_reference(x.cpu, pages[i], &in));
        }
    }
    for (size_t at = 0; at < most.size(); at += 300)
        write_both(s, x, {most.begin() + at, most.begin() + std::min(at + 300, most.size())}, seed += 2, stream);
    compare_slots(s, x, "written");
    write_both(s, x, some, seed += 2, stream);
    TRY(aura_slots_clear(x.cpu, 2));
    TRY(aura_cuda_slots_clear(x.gpu, 2, stream));
    TRY_CUDA(cudaStreamSynchronize(stream));
    write_both(s, x, {2 * AURA_PAGE + 3, 2 * AURA_PAGE + 200}, seed += 2, stream);
    compare_slots(s, x, "over again, and a page cleared");
    compare_attention(s, x, {{{3, 0, 4}, {1}, {2, 1, 0, 3, 4}}, {690, 33, 1100}, 1, 0}, "one query");
    compare_attention(s, x, {{{3, 0}, {2, 2}}, {512, 300}, 5, 40}, "5 queries, mask");
    compare_attention(s, x, {{{3, 0, 4}, {1}}, {600, 60}, 40, 0}, "40 queries");
    compare_attention(s, x, {{{3, 0, 4}, {1}}, {600, 60}, 40, 0, true}, "40 queries from images");
    uint32_t bits = 9;
    TRY(aura_cuda_slots_status(x.gpu, &bits));
    if (bits)
        complain(s, "status %u", bits);
    cudaStreamDestroy(stream);
    end_case(s, before, "decoded and attended to as on the CPU");
}

/* Calls about sequences, copies, and calls with half of their arguments. */
static void refuse_calls(const struct scene &s, const struct slot_caches &x)
{
    const uint64_t some[16] = {0};
    device_array where(some, sizeof some), dk(512 * 4);
    const aura_cuda_slot_args none = AURA_CUDA_SLOT_ARGS_INIT;
    aura_cuda_seq seq = 0;
    uint32_t bits;
    aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
    aura_cuda_view view = AURA_CUDA_VIEW_INIT;
    size_t bytes;
    append.seqs = (const aura_cuda_seq *)where.p, append.n_seqs = append.tokens = 1, append.k.data = append.v.data = dk.p;
    const aura_status all[] = {aura_cuda_seq_create(x.gpu, &seq), aura_cuda_seq_release(x.gpu, 0),
                               aura_cuda_seq_reserve(x.gpu, 0, 9), aura_cuda_append(x.gpu, &append, NULL),
                               aura_cuda_slots_write(x.gpu, &none, NULL), aura_cuda_slots_clear(x.gpu, 5, NULL),
                               aura_cuda_slots_status(NULL, &bits),
                               aura_cuda_slots_reference(x.gpu, (const uint64_t *)where.p, 1, &view, NULL),
                               aura_cuda_truncate(x.gpu, (const aura_cuda_seq *)where.p, (const uint32_t *)where.p, 1, NULL)};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i] != AURA_BAD_ARGUMENT)
            complain(s, "call %zu: %s", i, aura_status_text(all[i]));
    if (aura_cuda_cache_size(x.gpu, NULL, &bytes) != AURA_UNSUPPORTED)
        complain(s, "a snapshot of slots: %s", aura_last_error());
}

/* What is wrong with a token or a list concerns nobody else. */
static void run_wrong()
{
    struct scene s = scene_of(4, 4, 64, 2, 2, {});
    struct slot_caches x;
    const int before = failures;
    cases++;
    s.name += " slots that are not there, calls that are refused";
    make_slots(s, x, (size_t)16 << 20);
    if (failures > before)
        return;
    std::vector<float> k = some_tokens(4, 4, 2, 64, true);
    k[2 * 128 + 70] = NAN; /* of the third */
    const uint64_t slot[] = {40, SLOTS, 41, 42};
    device_array where(slot, sizeof slot), dk(k.data(), k.size() * 4);
    aura_cuda_slot_args args = AURA_CUDA_SLOT_ARGS_INIT;
    args.tokens = 4, args.slot = (const uint64_t *)where.p, args.k.data = args.v.data = dk.p;
    uint32_t bits = 0;
    TRY(aura_cuda_slots_write(x.gpu, &args, NULL));
    TRY(aura_cuda_slots_status(x.gpu, &bits));
    if (bits != (AURA_CUDA_BAD_VALUE | AURA_CUDA_NO_SLOT))
        complain(s, "status %u", bits);
    aura_slot_job job = AURA_SLOT_JOB_INIT;
    const uint64_t good[] = {40, 42};
    std::vector<float> rest(k.begin(), k.begin() + 128);
    rest.insert(rest.end(), k.begin() + 3 * 128, k.end());
    job.tokens = 2, job.slot = good, job.k.data = job.v.data = rest.data();
    TRY(aura_slots_write(x.cpu, &job, 1));
    compare_slots(s, x, "with a NaN and a slot too many");
    refuse_calls(s, x);
    const uint32_t pages[] = {0, 77, 0}, tokens[] = {100, 100, ~0u};
    std::vector<float> got(3 * 2 * 64);
    device_array lists(pages, sizeof pages), lens(tokens, sizeof tokens), out(got.size() * 4), dq(got.data(), got.size() * 4);
    aura_cuda_attend_args ask = AURA_CUDA_ATTEND_ARGS_INIT;
    ask.n_seqs = 3, ask.queries = 1, ask.q.data = dq.p, ask.out.data = out.p;
    TRY(aura_cuda_workspace_create(x.gpu, 3, 1, &x.workspace));
    if (aura_cuda_attend(x.gpu, x.workspace, &ask, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "attention to no list: %s", aura_last_error());
    ask.pages = (const uint32_t *)lists.p, ask.page_stride = 1, ask.tokens = (const uint32_t *)lens.p;
    TRY(aura_cuda_attend(x.gpu, x.workspace, &ask, NULL));
    TRY_CUDA(cudaMemcpy(got.data(), out.p, got.size() * 4, cudaMemcpyDeviceToHost));
    if (isnan(got[0]) || !isnan(got[2 * 64]))
        complain(s, "a list with a page that there is not: %g and %g", (double)got[0], (double)got[2 * 64]);
    if (!isnan(got[2 * 2 * 64]))
        complain(s, "a list of 2^32 - 1 tokens: %g", (double)got[2 * 2 * 64]);
    struct slot_caches small;
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    config.cache = x.config, config.cache.budget_bytes = 100000;
    if (aura_cuda_cache_create(x.ctx, &config, &small.gpu) != AURA_OUT_OF_PAGES)
        complain(s, "a budget that does not hold all slots: %s", aura_last_error());
    end_case(s, before, "");
}

/* A graph that writes a token of each sequence to a slot and attends, replayed with other slots and lists. */
static void run_graph()
{
    struct scene s = scene_of(4, 4, 64, 4, 2, {});
    struct slot_caches x;
    const int before = failures;
    cases++;
    s.name += " slots in a graph";
    make_slots(s, x, (size_t)16 << 20);
    if (failures > before)
        return;
    const uint32_t n = 2, steps = 20;
    std::vector<float> got((size_t)n * 4 * 64), want(got.size());
    device_array where(n * 8), dk(n * 128 * 4), dq(got.size() * 4), pages(n * 4), tokens(n * 4), out(got.size() * 4);
    aura_cuda_slot_args args = AURA_CUDA_SLOT_ARGS_INIT;
    args.tokens = n, args.slot = (const uint64_t *)where.p, args.k.data = args.v.data = dk.p;
    aura_cuda_attend_args ask = AURA_CUDA_ATTEND_ARGS_INIT;
    ask.n_seqs = n, ask.queries = 1, ask.q.data = dq.p, ask.out.data = out.p;
    ask.pages = (const uint32_t *)pages.p, ask.page_stride = 1, ask.tokens = (const uint32_t *)tokens.p;
    TRY(aura_cuda_workspace_create(x.gpu, n, 1, &x.workspace));
    struct captured graph(s, [&](cudaStream_t stream) {
        TRY(aura_cuda_slots_write(x.gpu, &args, stream));
        TRY(aura_cuda_attend(x.gpu, x.workspace, &ask, stream));
    });
    for (uint32_t step = 0; step < steps && failures == before; step++) {
        const uint32_t page[] = {step / 10 + 1, step / 10 + 3}, token[] = {step % 10 + 1, step % 10 + 1};
        const uint64_t slot[] = {page[0] * AURA_PAGE + step % 10, page[1] * AURA_PAGE + step % 10};
        const std::vector<float> k = some_tokens(step, n, 2, 64, true), q = some_numbers(step + 50, got.size());
        aura_slot_job job = AURA_SLOT_JOB_INIT;
        job.tokens = n, job.slot = slot, job.k.data = job.v.data = k.data();
        TRY(aura_slots_write(x.cpu, &job, 1));
        for (uint32_t i = 0; i < n; i++) {
            aura_attend_job one = AURA_ATTEND_JOB_INIT;
            const uint32_t tile = page[i] * AURA_PAGE_TILES;
            one.queries = 1, one.tokens = token[i], one.tiles = &tile;
            one.q.data = q.data() + i * 256, one.out.data = want.data() + i * 256;
            TRY(aura_attend(x.cpu, &one, 1, NULL));
        }
        TRY_CUDA(cudaMemcpy(where.p, slot, sizeof slot, cudaMemcpyHostToDevice));
        TRY_CUDA(cudaMemcpy(dk.p, k.data(), k.size() * 4, cudaMemcpyHostToDevice));
        TRY_CUDA(cudaMemcpy(dq.p, q.data(), q.size() * 4, cudaMemcpyHostToDevice));
        TRY_CUDA(cudaMemcpy(pages.p, page, sizeof page, cudaMemcpyHostToDevice));
        TRY_CUDA(cudaMemcpy(tokens.p, token, sizeof token, cudaMemcpyHostToDevice));
        graph.replay(s);
        TRY_CUDA(cudaMemcpy(got.data(), out.p, got.size() * 4, cudaMemcpyDeviceToHost));
        double error = 0, norm = 0;
        for (size_t i = 0; i < got.size(); i++)
            error += pow(got[i] - want[i], 2), norm += pow(want[i], 2);
        if (!(sqrt(error) <= 1e-3 * sqrt(norm)))
            complain(s, "step %u: error %.2e of %.2e", step, sqrt(error), sqrt(norm));
    }
    end_case(s, before, "");
}

void check_slots()
{
    static const uint32_t pairs[][3] = {{4, 4, 128}, {3, 8, 256}, {6, 2, 80}, {4, 10, 64}, {9, 4, 512}, {10, 10, 64}};
    for (const uint32_t *p : pairs) {
        struct scene s = scene_of(p[0], p[1], p[2], 4, 2, {});
        run_writes(s);
    }
    struct scene plain = scene_of(4, 4, 64, 2, 2, {});
    plain.config.flags = AURA_NO_REFERENCE, plain.name += " no reference";
    run_writes(plain);
    /* Codes that are searched for, which takes an emulated device long: trellis codes, a metric, both. */
    static const uint32_t searched[][5] = {{13, 12, 64, 0, 300}, {4, 3, 80, 1, 300}, {14, 5, 128, 1, 90}, {12, 4, 256, 0, 50},
                                           {4, 11, 512, 1, 40}};
    for (const uint32_t *p : searched) {
        struct scene s = scene_of(p[0], p[1], p[2], 2, 1, {});
        s.metric = p[3], s.name += s.metric ? " metric" : " searched";
        run_writes(s, p[4]);
    }
    run_wrong();
    run_graph();
}
