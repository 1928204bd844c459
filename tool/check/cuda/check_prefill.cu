/* Attention of more than 16 queries, from codes and from images: every kernel, format, dim and option against double. */
#include <algorithm>
#include <math.h>
#include <string.h>

#include "check.cuh"

static void named(struct scene s, const std::string &what)
{
    s.name += " " + what;
    run_scene(s);
}

/* What every dim with a kernel of its own goes through: codes of every width, tiles that are not full, sequences that are short. */
static void check_dim(uint32_t dim)
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM)};
    uint32_t i = 0;
    for (uint32_t kind : kinds) {
        struct scene s = scene_of(kind, kinds[(i + dim / 64) % 6], dim, 6, 2, {150 + 90 * i, 3});
        s.queries = 17 + 9 * i, s.balance = i % 2, s.seed = 40 + i;
        s.q_dtype = s.out_dtype = i % 3 == 1 ? AURA_F16 : i % 3 == 2 ? AURA_BF16 : AURA_F32;
        named(s, std::to_string(s.queries) + " queries");
        i++;
    }
}

/* Every format and dim, by the kernel for all of them. */
static void check_any()
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM) AURA_PLAIN(AURA_KIND_ITEM)}, dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    const uint32_t n_dims = sizeof dims / sizeof *dims, n_kinds = sizeof kinds / sizeof *kinds;
    for (uint32_t i = 0; i < n_kinds; i++) {
        struct scene s = scene_of(kinds[i], kinds[(i * 2 + 3) % n_kinds], dims[(i + 1) % n_dims], 4, 2, {170 + 20 * i});
        s.config.v_dim = dims[(i * 3 + 1) % n_dims];
        s.queries = 18 + i, s.seed = 60 + i, s.softcap = i % 3 == 1 ? 5.f : 0;
        s.name += "/" + std::to_string(s.config.v_dim);
        named(s, std::to_string(s.queries) + " queries");
    }
}

/* Images and what is carried lie where others have been a moment before. */
static void check_room()
{
    struct scene base = scene_of(4, 4, 64, 3, 3, {900, 640, 1100, 30}), s;
    base.image_bytes = 1, base.queries = 150, base.name += " room for four images,";
    s = base, named(s, "three heads carried");
    s.batch_invariant = true, named(s, "batch invariant");
    s = base; /* most images of the call are seen by nobody */
    for (uint32_t i = 0; i < s.queries * 4; i++)
        s.until.push_back(1 + (i * 7 + i / 150 * 131) % 30);
    named(s, "until");
    s = scene_of(4, 4, 64, 16, 8, {1400, 700, 1500, 20}), s.image_bytes = 32 * 32768, s.queries = 180;
    named(s, "parts of all heads, room for 32 images");
}

static const char *many_rows()
{
    cudaDeviceProp device;
    return cudaGetDeviceProperties(&device, 0) == cudaSuccess && device.major == 9 ? "attend_wide" : "attend";
}

/* By warp groups: of every width and dim, for 32 rows and for 64, some of them in several blocks. */
static void check_wide_codes(uint32_t kind)
{
    uint32_t i = 0;
    for (uint32_t dim : {AURA_CUDA_DIMS(AURA_DIM_ITEM)}) {
        struct scene s = scene_of(kind, kind, dim, 2, 2, {1100 + 300 * i, 40}), more = scene_of(kind, kind, dim, 8, 2, {900, 260});
        s.queries = 20, s.out_dtype = AURA_F16;
        more.queries = 40, more.seed = 70 + kind, more.sinks = i == 1, more.counts = {40, 19};
        s.long_seqs = more.long_seqs = true, s.kernel = more.kernel = many_rows();
        named(s, "20 queries, long"), named(more, "40 and 19 queries, long");
        i++;
    }
}

/* Many rows take kernels for many rows, where the device has them, and nobody has to say that sequences are long. */
static void check_crowds()
{
    struct scene s = scene_of(4, 4, 128, 16, 4, std::vector<uint32_t>(16, 100));
    s.tokens[3] = 700, s.queries = 16, s.kernel = many_rows(), named(s, "16 queries of each of 16");
    s.planes = 2, s.kernel = "attend_b4_d128_p2", named(s, "16 queries of each of 16, both planes");
    s.tokens = {300, 40, 170}, s.planes = 0, s.queries = 43, s.kernel = many_rows(), named(s, "43 queries of each of 3");
    s.counts = {43, 0, 2}, named(s, "43, none and 2 queries"), s.counts.clear();
    s.queries = 42, s.kernel = "attend_b4_d128_p2", named(s, "42 queries of each of 3");
    cudaDeviceProp device;
    TRY_CUDA(cudaGetDeviceProperties(&device, 0));
    const size_t row = 128 * 4 + 8, units = 3 * 4 * 3; /* of three blocks of 64 rows each */
    s.image_bytes = (device.multiProcessorCount + units) * 64 * row - 1; /* a byte less than the kernel for many rows leaves */
    s.queries = 43, named(s, "43 queries in little room");
    s.image_bytes = 1, s.kernel = "prefill", named(s, "43 queries in no room");
}

/* Calls of all kinds in one workspace, one after the other: what one leaves there is nothing to the next. */
static void run_alternating()
{
    struct scene s = scene_of(4, 4, 128, 8, 2, {900, 300, 40});
    struct filled f;
    struct device_side d;
    const int before = failures;
    const uint32_t heads = s.config.q_heads, dim = s.config.k_dim, most = 130;
    s.name += " calls of all kinds in one workspace", s.queries = most;
    if (!begin_case(s, f, d))
        return;
    TRY(aura_cuda_workspace_create(d.cache, 3, most, &d.workspace));
    const std::vector<float> q = some_numbers(7, (size_t)3 * most * heads * dim);
    device_array dq(q.data(), q.size() * 4), out(q.size() * 4), ids(d.seqs.data(), 12);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.q.data = dq.p, args.out.data = out.p;
    static const uint32_t calls[][3] = {{130, 3, 0}, {20, 3, 1}, {5, 3, 0}, {64, 1, 0}, {130, 2, 1}, {17, 2, 0}, {16, 1, 0}};
    std::vector<float> first[7], again(q.size());
    for (uint32_t turn = 0; turn < 21; turn++) {
        const uint32_t i = turn < 7 ? turn : turn * 3 % 7, numbers = calls[i][0] * calls[i][1] * heads * dim;
        args.queries = calls[i][0], args.n_seqs = calls[i][1], d.cache->by_images = calls[i][2];
        TRY_CUDA(cudaMemset(out.p, 0xff, q.size() * 4));
        TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
        TRY_CUDA(cudaMemcpy(again.data(), out.p, numbers * 4, cudaMemcpyDeviceToHost));
        if (turn < 7)
            first[i].assign(again.begin(), again.begin() + numbers);
        else if (memcmp(first[i].data(), again.data(), numbers * 4))
            complain(s, "call %u of turn %u gives other bits", i, turn);
        if (std::any_of(first[i].begin(), first[i].end(), [](float x) { return !(fabsf(x) < INFINITY); }))
            return complain(s, "call %u is not finite", i);
    }
    end_case(s, before, "the same bits");
}

void check_prefill()
{
    for (uint32_t kind : {AURA_CUDA_KINDS(AURA_DIM_ITEM)})
        check_wide_codes(kind);
    check_crowds();
    run_alternating();
    for (uint32_t dim : {AURA_CUDA_DIMS(AURA_DIM_ITEM)})
        check_dim(dim);
    check_any();
    struct scene base = scene_of(4, 4, 128, 4, 2, {420, 30}), s;
    base.queries = 40, base.name += " 40 queries";
    s = base, s.sinks = true, named(s, "sinks");
    s = base, s.window = 50, named(s, "window 50");
    s = base, s.window = 300, s.tokens = {700}, named(s, "window 300");
    s = base, s.not_causal = 1, named(s, "not causal");
    s = base, s.softcap = 5, named(s, "softcap");
    s = base, s.alibi = true, named(s, "ALiBi");
    s = base, s.mask_keys = 45, named(s, "mask of 45 keys");
    s = base, s.sinks = s.alibi = true, s.softcap = 8, s.window = 200, s.mask_keys = 40, s.scale = 0.2f, named(s, "everything");
    s = base, s.config.q_heads = 10, named(s, "GQA 5");
    s = base, s.config.q_heads = s.config.kv_heads = 1, s.queries = 300, s.tokens = {310, 200}, named(s, "300 queries, one head");
    s = base, s.counts = {40, 1}, named(s, "and one");
    s = base, s.tokens = {140, 260, 90}, s.counts = {0, 33, 7}, named(s, "of none, 33 and 7");
    s = base, s.config.flags = AURA_NO_REFERENCE | AURA_NO_PINNED, named(s, "no reference, none pinned");
    s = base, s.config.flags = AURA_NO_OPEN | AURA_NO_REFERENCE, named(s, "none open");
    s = base, s.tokens = {0}, named(s, "of nothing");
    s = base, s.tokens.assign(40, 35), s.queries = 17, s.config.q_heads = 2, named(s, "40 sequences");
    s = base, s.tokens = {1500, 700}, s.image_bytes = 1, s.config.q_heads = 2, named(s, "room for four images");
    s.softcap = 5, named(s, "softcap");
    check_room();
}
