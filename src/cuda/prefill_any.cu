/* Attention of many queries over images of every format and dim, by mma of warps: for devices without wgmma, and for what has no
 * kernel of its own. A warp has 16 rows; 64 tokens at a time, the keys and then the values come through shared memory, 64
 * channels after the other. */
#include "kernels.cuh"
#include "prefill.cuh"

template <int GROUPS_, int SPLIT_>
struct prefill_shape {
    static constexpr int GROUPS = GROUPS_; /* of 64 channels of values that a warp adds up */
    static constexpr int SPLIT = SPLIT_;   /* warps that share the channels of a row */
    static constexpr int WARPS = 8, THREADS = 32 * WARPS, ROW_WARPS = WARPS / SPLIT, ROWS = 16 * ROW_WARPS;
    static_assert(THREADS == IMAGE_THREADS, "image.cuh");
};

enum { STAGE_BYTES = 64 * 128, STAGES = 3, IMAGES_AT_ONCE = 8 };

/* The beginning of shared memory. After it the queries, in the layout of keys; then the stages, which are a place to rotate in
 * before and after. */
template <class S>
struct prefill_space {
    struct prefill_work work;
    row_info row[S::ROWS];
};

template <class S>
__host__ __device__ constexpr uint32_t queries_at()
{
    return (sizeof(prefill_space<S>) + 127) / 128 * 128;
}

/* Of one warp, to rotate in. */
__host__ __device__ __forceinline__ uint32_t prefill_turn_bytes(const struct dev_cache &c)
{
    return 2 * 4 * (c.k_dim > c.v_dim ? c.k_dim : c.v_dim);
}

template <class S>
__host__ __device__ __forceinline__ uint32_t stages_at(const struct dev_images &im)
{
    return queries_at<S>() + im.groups * S::ROWS * 128;
}

/* What a warp has of its rows so far; [.][0] of row g of the warp, [.][1] of row g + 8. */
template <class S>
struct prefill_running {
    float m[2], l[2];
    float top[2];                /* m of the weights of values: the same but where there are ups */
    float o[S::GROUPS][8][4];
};

/* ---- queries ---------------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void prefill_query(const struct dev_prefill &p, prefill_space<S> &s, uint32_t r)
{
    const struct dev_attend &a = p.a;
    const uint32_t lane = threadIdx.x % 32, dim = a.c.k_dim;
    uint8_t *q = (uint8_t *)&s + queries_at<S>();
    row_info row = prefill_row(p, s.work, r);
    float *y = (float *)((uint8_t *)&s + stages_at<S>(p.im) + threadIdx.x / 32 * prefill_turn_bytes(a.c));
    const float largest = query_to_shared(a, s.work.job, s.work.head, row, y);
    const float factor = largest < 0x1p-100f ? 0 : PREFILL_QUERY_TOP / largest;
    for (uint32_t d = lane; d < p.im.groups * IMAGE_ROW; d += 32)
        *(__half *)(image_chunk(q + d / IMAGE_ROW * S::ROWS * 128, r, d % IMAGE_ROW / 8) + d % 8 * 2) =
            __float2half_rn(d < dim && !row.bad ? y[d] * factor : 0);
    row.top = largest / PREFILL_QUERY_TOP * a.unit * p.im.k.unit;
    if (lane == 0)
        s.row[r] = row;
    __syncwarp();
}

/* ---- stages: 64 channels of 64 tokens each ---------------------------------------------------------------------------- */

/* The stages of an item, one after the other: for every 64 tokens, groups of keys, then groups of values. */
struct prefill_walk {
    struct tile_reach reach;
    uint32_t k_groups, v_groups, stages, next;
};

/* Starts the copy of the next stage, if there is one. */
template <class S>
__device__ __forceinline__ void ask_stage(const struct dev_prefill &p, prefill_space<S> &s, struct prefill_walk &w)
{
    const uint32_t each = w.k_groups + w.v_groups, at = w.next++;
    if (at < w.stages) {
        const uint32_t step = at / each, group = at % each, half = step % 2;
        const uint8_t *from = image_place(p, s.work, image_of(w.reach, step / 2));
        uint32_t bytes = STAGE_BYTES;
        if (group < w.k_groups) {
            from += group * (IMAGE_TOKENS * 128) + half * STAGE_BYTES;
        } else {
            const uint32_t done = (group - w.k_groups) * STAGE_BYTES;
            from += p.im.v_at + half * p.a.c.v_dim * 128 + done;
            bytes = min(bytes, p.a.c.v_dim * 128 - done);
        }
        uint8_t *to = (uint8_t *)&s + stages_at<S>(p.im) + at % STAGES * STAGE_BYTES;
        for (uint32_t i = threadIdx.x * 16; i < bytes; i += S::THREADS * 16)
            copy_ahead(to + i, from + i);
    }
    copies_grouped();
}

/* The next stage is there, and the copy after the one that follows it has started. */
template <class S>
__device__ __forceinline__ const uint8_t *next_stage(const struct dev_prefill &p, prefill_space<S> &s, struct prefill_walk &w)
{
    const uint32_t at = w.next - 2;
    copies_but_last_arrived();
    __syncthreads();
    ask_stage<S>(p, s, w);
    return (const uint8_t *)&s + stages_at<S>(p.im) + at % STAGES * STAGE_BYTES;
}

__device__ __forceinline__ uint32_t word_of_row(const uint8_t *rows, uint32_t row, uint32_t chunk, uint32_t t)
{
    return *(const uint32_t *)(rows + row * 128 + (chunk ^ row % 8) * 16 + 4 * t);
}

/* 16 rows of queries times 64 tokens, over 64 channels. */
template <class S>
__device__ __forceinline__ void multiply_keys(float (&x)[8][4], const uint8_t *q, const uint8_t *keys)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row = threadIdx.x / 32 % S::ROW_WARPS * 16 + g;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        const uint32_t a0 = word_of_row(q, row, 2 * k, t), a1 = word_of_row(q, row + 8, 2 * k, t),
                       a2 = word_of_row(q, row, 2 * k + 1, t), a3 = word_of_row(q, row + 8, 2 * k + 1, t);
#pragma unroll
        for (int j = 0; j < 8; j++)
            mma_f16(x[j], a0, a1, a2, a3, word_of_row(keys, 8 * j + g, 2 * k, t), word_of_row(keys, 8 * j + g, 2 * k + 1, t));
    }
}

/* 16 rows of weights times 64 channels, over 64 tokens. */
__device__ __forceinline__ void multiply_values(float (&o)[8][4], const uint32_t (&weight)[4][4], const uint8_t *values)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int j = 0; j < 8; j++)
            mma_f16(o[j], weight[k][0], weight[k][1], weight[k][2], weight[k][3], word_of_row(values, 8 * j + g, 2 * k, t),
                    word_of_row(values, 8 * j + g, 2 * k + 1, t));
}

/* ---- softmax ---------------------------------------------------------------------------------------------------------- */

/* Products become logits: options, and -inf for what a row does not see. */
template <class S>
__device__ __forceinline__ void logits_of(float (&x)[8][4], const struct dev_prefill &p, const prefill_space<S> &s, uint32_t token,
                                          bool seen, const float *ups)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first = threadIdx.x / 32 % S::ROW_WARPS * 16 + g;
    const struct prefill_job &job = p.jobs[s.work.job];
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const row_info &row = s.row[first + 8 * half];
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const uint32_t at = 8 * j + 2 * t + e;
                float &y = x[j][2 * half + e];
                y *= row.top;
                if (ups)
                    y *= __ldcg(ups + at);
                if (p.a.options)
                    y = apply_options(p.a, row, s.work.job, job.len, token + at, y);
                y = seen || row_sees(p.a, row, token + at) ? y : -INFINITY;
            }
    }
}

/* The largest of a row, over the four lanes that have it. */
__device__ __forceinline__ float largest_of(const float (&x)[8][4], int half)
{
    float m = fmaxf(x[0][2 * half], x[0][2 * half + 1]);
#pragma unroll
    for (int j = 1; j < 8; j++)
        m = fmaxf(m, fmaxf(x[j][2 * half], x[j][2 * half + 1]));
    m = fmaxf(m, __shfl_xor_sync(~0u, m, 1));
    return fmaxf(m, __shfl_xor_sync(~0u, m, 2));
}

/* Logits become weights; ups: of values, or NULL. With these, values have weights of their own, 2^(logit - top) times the up, so
 * that none is above 1 whatever the ups. */
template <class S>
__device__ __forceinline__ void weights_of(uint32_t (&weight)[4][4], float (&x)[8][4], prefill_running<S> &run, const float *ups)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        const float m = fmaxf(run.m[half], largest_of(x, half));
        run.l[half] *= exp2_approx(run.m[half] - m);
        run.m[half] = m;
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 2; e++) {
                float &y = x[j][2 * half + e];
                const float plain = exp2_approx(y - m);
                run.l[half] += plain;
                y = ups ? y + log2f(__ldcg(ups + 8 * j + 2 * t + e)) : plain;
            }
        const float top = ups ? fmaxf(run.top[half], largest_of(x, half)) : m, keep = exp2_approx(run.top[half] - top);
        run.top[half] = top;
        if (ups)
#pragma unroll
            for (int j = 0; j < 8; j++)
                x[j][2 * half] = exp2_approx(x[j][2 * half] - top), x[j][2 * half + 1] = exp2_approx(x[j][2 * half + 1] - top);
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                run.o[i][j][2 * half] *= keep, run.o[i][j][2 * half + 1] *= keep;
    }
#pragma unroll
    for (int k = 0; k < 4; k++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            weight[k][i] = bits_of(__floats2half2_rn(x[2 * k + i / 2][i % 2 * 2], x[2 * k + i / 2][i % 2 * 2 + 1]));
}

/* 64 tokens. */
template <class S>
__device__ __forceinline__ void attend_step(const struct dev_prefill &p, prefill_space<S> &s, prefill_running<S> &run,
                                            struct prefill_walk &w, uint32_t step)
{
    const uint8_t *q = (const uint8_t *)&s + queries_at<S>();
    const uint32_t image = image_of(w.reach, step / 2), token = token_of(w.reach, step / 2), half = step % 2 * 64;
    const float *ups = !p.im.ups_at ? NULL
        : (const float *)(image_place(p, s.work, image) + p.im.ups_at) + half;
    float x[8][4] = {};
    uint32_t weight[4][4];
#pragma unroll 1
    for (uint32_t i = 0; i < w.k_groups; i++)
        multiply_keys<S>(x, q + i * S::ROWS * 128, next_stage<S>(p, s, w));
    logits_of<S>(x, p, s, token + half, is_all_seen(w.reach, token), ups);
    weights_of<S>(weight, x, run, ups ? ups + IMAGE_TOKENS : NULL);
#pragma unroll
    for (int i = 0; i < S::GROUPS * S::SPLIT; i++)
        if (i < (int)w.v_groups) {
            const uint8_t *values = next_stage<S>(p, s, w);
            if (S::SPLIT == 1 || i / S::GROUPS == (int)(threadIdx.x / 32 / S::ROW_WARPS))
                multiply_values(run.o[i % S::GROUPS], weight, values);
        }
}

/* ---- the beginning and the end of an item ----------------------------------------------------------------------------- */

/* Calls move(o, its place) for everything that the lane has of its rows: to the carry, or from it. */
template <class S, class DO>
__device__ __forceinline__ void for_carried(const struct dev_prefill &p, prefill_running<S> &run, uint32_t carry, DO move)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, first = threadIdx.x / 32 % S::ROW_WARPS * 16 + g;
    const uint32_t channel = S::SPLIT == 1 ? 0 : threadIdx.x / 32 / S::ROW_WARPS * S::GROUPS * 64;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        float *to = carry_of(p, carry, first + 8 * half);
        move(run.m[half], to), move(run.top[half], to + 1), move(run.l[half], to + 2 + t);
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (channel + 64 * i + 8 * j < p.a.c.v_dim) {
                    float *at = to + PREFILL_CARRIED + channel + 64 * i + 8 * j + 2 * t;
                    move(run.o[i][j][2 * half], at), move(run.o[i][j][2 * half + 1], at + 1);
                }
    }
}

template <class S>
__device__ __forceinline__ void begin_nothing(prefill_running<S> &run)
{
#pragma unroll
    for (int half = 0; half < 2; half++)
        run.m[half] = run.top[half] = NOTHING, run.l[half] = 0;
#pragma unroll
    for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
        for (int j = 0; j < 8; j++)
#pragma unroll
            for (int e = 0; e < 4; e++)
                run.o[i][j][e] = 0;
}

/* Adds up what the parts of a tile have left, in their order. */
template <class S>
__device__ __forceinline__ void merge_parts(const struct dev_prefill &p, const prefill_space<S> &s, prefill_running<S> &run)
{
    begin_nothing<S>(run);
    for (uint32_t i = 0; i < p.jobs[s.work.job].parts; i++) {
        prefill_running<S> part = {};
        for_carried<S>(p, part, carry_of_part(p, s.work, i), [](float &x, const float *at) { x = __ldcg(at); });
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const float m = fmaxf(run.m[half], part.m[half]), top = fmaxf(run.top[half], part.top[half]);
            const float keep = exp2_approx(run.top[half] - top), add = exp2_approx(part.top[half] - top);
            run.l[half] = run.l[half] * exp2_approx(run.m[half] - m) + part.l[half] * exp2_approx(part.m[half] - m);
            run.m[half] = m, run.top[half] = top;
#pragma unroll
            for (int k = 0; k < S::GROUPS; k++)
#pragma unroll
                for (int j = 0; j < 8; j++)
#pragma unroll
                    for (int e = 2 * half; e < 2 * half + 2; e++)
                        run.o[k][j][e] = run.o[k][j][e] * keep + part.o[k][j][e] * add;
        }
    }
}

/* Row r of every warp, one after the other: all channels of it come together in shared memory. */
template <class S>
__device__ __forceinline__ void finish_rows(const struct dev_prefill &p, prefill_space<S> &s, prefill_running<S> &run)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, row_warp = threadIdx.x / 32 % S::ROW_WARPS;
    const uint32_t channel = S::SPLIT == 1 ? 0 : threadIdx.x / 32 / S::ROW_WARPS * S::GROUPS * 64;
    float *o = (float *)((uint8_t *)&s + stages_at<S>(p.im) + row_warp * prefill_turn_bytes(p.a.c));
#pragma unroll 1
    for (uint32_t r = 0; r < 16; r++) {
        const uint32_t half = r / 8;
        float l = half ? run.l[1] : run.l[0], m = half ? run.m[1] : run.m[0], top = half ? run.top[1] : run.top[0];
        l += __shfl_xor_sync(~0u, l, 1), l += __shfl_xor_sync(~0u, l, 2);
        l = __shfl_sync(~0u, l, r % 8 * 4), m = __shfl_sync(~0u, m, r % 8 * 4);
        const float factor = p.im.v.unit * (top == m ? 1 : exp2_approx(top - m));
#pragma unroll
        for (int i = 0; i < S::GROUPS; i++)
#pragma unroll
            for (int j = 0; j < 8; j++)
                if (g == r % 8 && channel + 64 * i + 8 * j < p.a.c.v_dim) {
                    float *to = o + channel + 64 * i + 8 * j + 2 * t;
                    to[0] = (half ? run.o[i][j][2] : run.o[i][j][0]) * factor;
                    to[1] = (half ? run.o[i][j][3] : run.o[i][j][1]) * factor;
                }
        __syncthreads();
        const row_info &row = s.row[16 * row_warp + r];
        if (row.there && threadIdx.x / 32 < S::ROW_WARPS)
            finish_prefill(p, s.work, row, o, o + p.a.c.v_dim, m, l);
        __syncthreads();
    }
}

template <class S>
__device__ __forceinline__ void attend_item(const struct dev_prefill &p, prefill_space<S> &s)
{
    for (uint32_t r = threadIdx.x / 32; r < S::ROWS; r += S::WARPS)
        prefill_query<S>(p, s, r);
    wait_for_images(p, s.work, threadIdx.x, S::THREADS);
    __syncthreads();
    prefill_running<S> run;
    begin_nothing<S>(run);
    if (s.work.part && p.state->way != PREFILL_BESIDE)
        for_carried<S>(p, run, s.work.carry, [](float &x, const float *at) { x = __ldcg(at); });
    struct prefill_walk w = {tile_reach_of(p, s.work), p.im.groups, (p.a.c.v_dim + 63) / 64, 0, 0};
    const uint32_t steps = 2 * images_of(w.reach);
    w.stages = steps * (w.k_groups + w.v_groups);
    ask_stage<S>(p, s, w);
    ask_stage<S>(p, s, w);
    for (uint32_t step = 0; step < steps; step++)
        attend_step<S>(p, s, run, w, step);
    copies_arrived();
    __syncthreads();
    if (!is_last_part(p, s.work)) {
        for_carried<S>(p, run, s.work.carry, [](float x, float *at) { __stcg(at, x); });
        __syncthreads();
        if (threadIdx.x == 0)
            tile_done(p, s.work);
        __syncthreads();
        if (!s.work.last)
            return;
        merge_parts<S>(p, s, run);
    }
    finish_rows<S>(p, s, run);
}

/* ---- the kernel ------------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void make_images(const struct dev_prefill &p, const prefill_space<S> &s)
{
    const struct prefill_job &j = p.jobs[s.work.job];
    prefetch_pages(p, s.work, threadIdx.x / 32, S::WARPS);
    for (uint32_t i = s.work.first; i < s.work.first + s.work.images; i++) {
        const struct image_block b = image_block_of(p.a.c, j.seq, j.len, j.closed, s.work.head, token_of_image(j, i));
        uint8_t *to = image_place(p, s.work, i);
        if (p.im.ups_at) {
            image_ups(p.im, p.a.c, b, to, threadIdx.x);
            __syncthreads();
        }
        make_image<0>(p.im, p.a.c, b, to, threadIdx.x);
    }
}

template <class S>
__device__ __forceinline__ void prefill_any(const struct dev_prefill &p)
{
    prefill_space<S> &s = *(prefill_space<S> *)dynamic_shared();
    uint32_t held = ~0u;
    for (;;) {
        if (threadIdx.x == 0)
            take_work(p, s.work, held, IMAGES_AT_ONCE);
        __syncthreads();
        if (s.work.what == PREFILL_NOTHING)
            return;
        const bool is_item = s.work.what == PREFILL_ITEM;
        if (is_item)
            attend_item<S>(p, s);
        else
            make_images<S>(p, s);
        __syncthreads();
        if (threadIdx.x == 0 && is_item)
            item_done(p, s.work);
        else if (threadIdx.x == 0)
            images_made(p, s.work);
    }
}

#define STAMP_PREFILL(name, dim, groups, split)                                \
    extern "C" __global__ void __launch_bounds__(IMAGE_THREADS, 1) aura_##name( \
        const __grid_constant__ struct dev_prefill p)                          \
    {                                                                          \
        prefill_any<prefill_shape<groups, split>>(p);                          \
    }
AURA_CUDA_PREFILL_ANY(STAMP_PREFILL)
#undef STAMP_PREFILL

template <class S>
static uint32_t shared_bytes_of(const struct dev_cache *c, const struct dev_images *im)
{
    const uint32_t turn = S::WARPS * prefill_turn_bytes(*c), stages = STAGES * STAGE_BYTES;
    return stages_at<S>(*im) + (turn > stages ? turn : stages);
}

/* The smallest that holds the values. */
struct prefill_kernel prefill_any_kernel(const struct dev_cache *c, const struct dev_images *im)
{
#define ENTRY(name, dim, groups, split)                                                                            \
    if (c->v_dim <= dim)                                                                                           \
        return {#name, (const void *)aura_##name, IMAGE_THREADS, prefill_shape<groups, split>::ROWS,               \
                shared_bytes_of<prefill_shape<groups, split>>(c, im)};
    AURA_CUDA_PREFILL_ANY(ENTRY)
#undef ENTRY
    return {};
}
