/* Scores, sums and attention over rows of every kind, dim and alignment. Threads are tokens while scores are made, and coordinates
 * while values are added up. */
#include "rows_attend.cuh"

#include <string.h>

enum { ANY_THREADS = 128, ANY_DIMS = AURA_MAX_DIM / ANY_THREADS }; /* ANY_DIMS: coordinates of a thread */

struct any_space {
    float q[ROWS_GROUP][AURA_MAX_DIM];
    float weight[ROWS_GROUP][ANY_THREADS]; /* logits, then weights; then times norms */
    float norm[2][ANY_THREADS];            /* of values */
    float k_book[256], v_book[256];
    float max[ROWS_GROUP], sum[ROWS_GROUP], keep[ROWS_GROUP];
};

__device__ __forceinline__ void load_queries(struct any_space &s, const struct dev_rows_call &c, const struct rows_heads &at)
{
    for (uint32_t h = 0; h < at.n; h++)
        for (uint32_t d = threadIdx.x; d < c.k.dim; d += ANY_THREADS) {
            const float x = load_element(c.q, c.q_dtype, (int64_t)((size_t)(at.first + h) * c.k.dim + d));
            s.q[h][d] = c.q_as_f16 ? __half2float(__float2half_rn(x)) : x;
        }
}

/* The logits of the thread's token, -inf where it is not seen. */
__device__ __forceinline__ void score_token(struct any_space &s, const struct dev_rows_call &c, const struct rows_heads &at,
                                            uint64_t t, bool seen)
{
    float logit[ROWS_GROUP] = {0};
    const uint32_t part_dim = c.k.dim / c.k.parts;
    for (uint32_t part = 0; seen && part < c.k.parts; part++) {
        const uint8_t *row = row_at(c.k, at.kv, t);
        const float norm = c.k.norms ? norm_at(c.k, at.kv, t, part) : 1.f;
        float dot[ROWS_GROUP] = {0};
        for (uint32_t d = part * part_dim; d < (part + 1) * part_dim; d++) {
            const float x = coordinate(c.k, s.k_book, row, d);
#pragma unroll
            for (uint32_t h = 0; h < ROWS_GROUP; h++)
                dot[h] = fmaf(h < at.n ? s.q[h][d] : 0.f, x, dot[h]);
        }
#pragma unroll
        for (uint32_t h = 0; h < ROWS_GROUP; h++)
            logit[h] += dot[h] * norm;
    }
#pragma unroll
    for (uint32_t h = 0; h < ROWS_GROUP; h++) {
        float x = logit[h] * c.scale;
        x = c.softcap > 0 ? c.softcap * tanhf(x / c.softcap) : x;
        s.weight[h][threadIdx.x] = seen ? x : -INFINITY;
    }
}

__device__ __forceinline__ float warp_reduce_max(float x)
{
    for (int far = 16; far; far /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

__device__ __forceinline__ float warp_reduce_sum(float x)
{
    for (int far = 16; far; far /= 2)
        x += __shfl_xor_sync(~0u, x, far);
    return x;
}

/* Logits become weights. A warp takes every fourth head. */
__device__ __forceinline__ void softmax_heads(struct any_space &s, uint32_t heads)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t h = threadIdx.x / 32; h < heads; h += ANY_THREADS / 32) {
        const float before = s.max[h];
        float largest = before, sum = 0;
        for (uint32_t i = lane; i < ANY_THREADS; i += 32)
            largest = fmaxf(largest, s.weight[h][i]);
        largest = warp_reduce_max(largest);
        for (uint32_t i = lane; i < ANY_THREADS; i += 32) {
            const float logit = s.weight[h][i], w = logit == -INFINITY ? 0 : expf(logit - largest);
            s.weight[h][i] = w;
            sum += w;
        }
        sum = warp_reduce_sum(sum);
        const float keep = largest == -INFINITY ? 1 : expf(before - largest);
        __syncwarp();
        if (lane == 0)
            s.max[h] = largest, s.sum[h] = s.sum[h] * keep + sum, s.keep[h] = keep;
    }
}

/* Weights that are kept, of the thread's token. */
__device__ __forceinline__ void load_weights(struct any_space &s, const struct dev_rows_call &c, const struct rows_heads &at,
                                             uint64_t t, bool seen)
{
    for (uint32_t h = 0; h < at.n; h++) {
        const float w = seen ? load_element(c.scores, c.score_dtype, (int64_t)((at.first + h) * c.score_stride + t)) : 0;
        s.weight[h][threadIdx.x] = seen && w >= c.threshold ? w : 0; /* NaN is not kept */
    }
}

/* Adds the values of `n` tokens, of which token i of the block is at `token(i)`. A weight of 0 is a token that is not seen. */
template <class TOKEN>
__device__ __forceinline__ void add_values(float (&acc)[ANY_DIMS][ROWS_GROUP], struct any_space &s, const struct dev_rows_call &c,
                                           const struct rows_heads &at, TOKEN token)
{
    const uint32_t part_dim = c.v.dim / c.v.parts;
#pragma unroll
    for (uint32_t k = 0; k < ANY_DIMS; k++)
#pragma unroll
        for (uint32_t h = 0; h < ROWS_GROUP; h++)
            acc[k][h] *= h < at.n ? s.keep[h] : 1.f;
    for (uint32_t i = 0; i < ANY_THREADS; i++) {
        float w[ROWS_GROUP];
        bool any = false;
#pragma unroll
        for (uint32_t h = 0; h < ROWS_GROUP; h++) {
            w[h] = h < at.n ? s.weight[h][i] : 0.f;
            any |= w[h] != 0;
        }
        uint64_t t;
        if (!token(i, &t) || (c.v.norms && !any)) /* of plain rows, a NaN counts with the weight 0 too */
            continue;
        const uint8_t *row = row_at(c.v, at.kv, t);
#pragma unroll
        for (uint32_t k = 0; k < ANY_DIMS; k++) {
            const uint32_t d = threadIdx.x + k * ANY_THREADS;
            if (d >= c.v.dim)
                continue;
            const float norm = c.v.norms ? s.norm[d / part_dim][i] : 1.f, x = coordinate(c.v, s.v_book, row, d);
#pragma unroll
            for (uint32_t h = 0; h < ROWS_GROUP; h++)
                acc[k][h] = c.v.norms && w[h] == 0 ? acc[k][h] : fmaf(w[h] * norm, x, acc[k][h]);
        }
    }
}

__device__ __forceinline__ void store_partials(const float (&acc)[ANY_DIMS][ROWS_GROUP], const struct any_space &s,
                                               const struct dev_rows_call &c, const struct rows_heads &at, uint32_t unit,
                                               bool sums)
{
    const uint32_t units = c.tokens.units;
    for (uint32_t h = 0; h < at.n; h++) {
        const size_t row = at.first + h, part = row * units + unit;
#pragma unroll
        for (uint32_t k = 0; k < ANY_DIMS; k++) {
            const uint32_t d = threadIdx.x + k * ANY_THREADS;
            const size_t to = c.interleaved ? (row * (c.v.dim / 4) + d / 4) * units * 4 + unit * 4 + d % 4 : part * c.v.dim + d;
            float x = 0;
#pragma unroll
            for (uint32_t j = 0; j < ROWS_GROUP; j++) /* a place that is known when the code is compiled is in a register */
                x = j == h ? acc[k][j] : x;
            if (d < c.v.dim)
                store_element(c.o, c.partial_dtype, (int64_t)to, x);
        }
        if (threadIdx.x || sums)
            continue;
        const bool empty = s.max[h] == -INFINITY && !isnan(s.sum[h]);
        const size_t at_l = c.interleaved ? 2 * part : part, at_m = c.interleaved ? 2 * part + 1 : part;
        store_element(c.l, c.partial_dtype, (int64_t)at_l, s.sum[h]);
        store_element(c.m, c.partial_dtype, (int64_t)at_m, c.interleaved && empty ? -0x1.fffffep126f : s.max[h]);
        if (c.report && !isfinite(s.sum[h]))
            note_not_finite(c.status, row);
    }
}

template <enum rows_mode MODE>
__device__ __forceinline__ void run_any(const struct dev_rows_call &c)
{
    struct any_space &s = *(struct any_space *)dynamic_shared();
    const uint32_t unit = blockIdx.x % c.tokens.units, tid = threadIdx.x;
    const struct rows_heads at = heads_of(c, blockIdx.x / c.tokens.units, ROWS_GROUP);
    float acc[ANY_DIMS][ROWS_GROUP] = {};
    uint64_t first, end;
    unit_limits(c.tokens, unit, &first, &end);
    if (MODE != ROWS_VALUE) {
        load_queries(s, c, at);
        load_book(s.k_book, c.k);
    }
    if (MODE != ROWS_SCORE)
        load_book(s.v_book, c.v);
    if (tid < ROWS_GROUP)
        s.max[tid] = -INFINITY, s.sum[tid] = 0, s.keep[tid] = 1;
    __syncthreads();
    for (uint64_t base = first; base < end; base += ANY_THREADS / ROWS_CHUNK * c.tokens.chunk_stride) {
        const auto token = [&](uint32_t i, uint64_t *t) {
            *t = base + i / ROWS_CHUNK * c.tokens.chunk_stride + i % ROWS_CHUNK;
            return *t < end && is_seen(c.tokens, *t);
        };
        uint64_t t;
        const bool seen = token(tid, &t);
        if (MODE == ROWS_VALUE)
            load_weights(s, c, at, t, seen);
        else
            score_token(s, c, at, t, seen);
        for (uint32_t part = 0; MODE != ROWS_SCORE && c.v.norms && part < c.v.parts; part++)
            s.norm[part][tid] = seen ? norm_at(c.v, at.kv, t, part) : 0;
        for (uint32_t h = 0; MODE == ROWS_SCORE && seen && h < at.n; h++)
            store_element(c.scores, c.score_dtype, (int64_t)((at.first + h) * c.score_stride + t), s.weight[h][tid]);
        __syncthreads();
        if (MODE == ROWS_ATTEND) {
            softmax_heads(s, at.n);
            __syncthreads();
        }
        if (MODE != ROWS_SCORE)
            add_values(acc, s, c, at, token);
        __syncthreads();
    }
    if (MODE != ROWS_SCORE)
        store_partials(acc, s, c, at, unit, MODE == ROWS_VALUE);
}

#define STAMP(name, mode)                                                                                                 \
    extern "C" __global__ void __launch_bounds__(ANY_THREADS) aura_##name(const __grid_constant__ struct dev_rows_call c) \
    {                                                                                                                     \
        run_any<mode>(c);                                                                                                 \
    }
AURA_CUDA_ROWS_ANY(STAMP)
#undef STAMP

aura_status aura_cuda_rows_any(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                               struct CUstream_st *stream)
{
#define ENTRY(name, mode) {#name, (const void *)aura_##name},
    static const struct {
        const char *name;
        const void *run;
    } list[] = {AURA_CUDA_ROWS_ANY(ENTRY)};
#undef ENTRY
    struct dev_rows_call copy = c;
    copy.groups = (c.ratio + ROWS_GROUP - 1) / ROWS_GROUP;
    const size_t blocks = (size_t)(c.q_heads / c.ratio) * copy.groups * c.tokens.units;
    if (blocks > INT32_MAX)
        return aura_backend_fail(rows->ctx, AURA_TOO_LARGE, "%s: %zu blocks of heads and tokens", call, blocks);
    const struct launch how = {dim3((uint32_t)blocks), ANY_THREADS, sizeof(struct any_space), stream};
    void *params[] = {&copy};
    return aura_cuda_rows_launch(rows, call, list[mode].name, list[mode].run, how, params);
}
