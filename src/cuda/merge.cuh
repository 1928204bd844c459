/* From the accumulators of warps to the rows of the output: warps of a block, then segments of a group, each in order; then
 * sinks, the quotient and the inverse rotation. */
#ifndef AURA_CUDA_MERGE_CUH
#define AURA_CUDA_MERGE_CUH

#include "../../include/aura_cuda.h"
#include "rotate.cuh"
#include "span.cuh"

#define NOTHING (-3.402823466e38f) /* the maximum of a row that has seen no token: finite, so that differences are */

/* What is known of a row of a block. */
struct row_info {
    float factor;         /* from the integer of a key to its logit */
    float step;           /* of the query's integers */
    float top;            /* from products with f16 rows to logits */
    int sum[2];           /* of hi; of lo */
    uint32_t begin, end;  /* tokens that it sees */
    uint32_t query, head; /* query token, query head */
    uint32_t there, bad;  /* there: it is a row of the call; bad: its query is not finite */
};

/* Row r of a segment, but for what follows from its query's numbers. A row too many looks at what another one may look at. */
__device__ __forceinline__ struct row_info row_at(const struct dev_attend &a, const struct segment &g, int r)
{
    struct row_info row;
    row.there = g.first_row + r < a.rows;
    const uint32_t index = row.there ? g.first_row + r : 0;
    row.query = aura_divide(index, a.by_ratio);
    row.head = g.head * a.c.ratio + index - row.query * a.c.ratio;
    row.end = row.there ? (uint32_t)aura_seen_end(g.span.len, a.queries, row.query, a.not_causal) : 0;
    row.begin = (uint32_t)aura_seen_begin(row.end, a.window);
    return row;
}

/* Whether a row sees a token. */
__device__ __forceinline__ bool row_sees(const struct dev_attend &a, const struct row_info &row, uint32_t token)
{
    return aura_sees(token, row.begin, row.end, a.c.keep_first);
}

/* Softcap, then ALiBi, then the mask, in units of log2 e. */
__device__ __forceinline__ float apply_options(const struct dev_attend &a, const struct row_info &row, uint32_t slot,
                                               uint32_t len, uint32_t token, float logit)
{
    if (a.softcap > 0)
        logit = a.softcap * tanhf(logit / a.softcap);
    if (a.alibi)
        logit += a.alibi[row.head] * AURA_LOG2_E * (float)((int)token - (int)(row.end - 1));
    if (a.mask && token + a.mask_keys >= len && token < len)
        logit += a.mask[((size_t)slot * a.queries + row.query) * a.mask_keys + (token + a.mask_keys - len)] * AURA_LOG2_E;
    return logit;
}

/* A learned sink is one more token, whose value is 0. +inf takes all the weight, -inf is none, NaN stays. */
__device__ __forceinline__ float merge_sink(float &m, float &l, float sink)
{
    if (sink == INFINITY) {
        l = isnan(l) ? l : 1;
        m = INFINITY;
        return 0;
    }
    if (isnan(sink))
        l = sink;
    if (!(sink > -INFINITY))
        return 1;
    float at = sink * AURA_LOG2_E, most = fmaxf(m, at), keep = l > 0 || isnan(l) ? exp2f(m - most) : 0;
    l = l * keep + exp2f(at - most);
    m = most;
    return keep;
}

/* The log-sum-exp of a row, and its sequence's status where it is not finite; by one thread. */
__device__ __forceinline__ void finish_lse(const struct dev_attend &a, const struct segment &g, const struct row_info &row, float m,
                                           float l, bool bad)
{
    if (a.lse)
        a.lse[((size_t)g.slot * a.queries + row.query) * a.c.q_heads + row.head] =
            bad ? NAN : l == 0 ? -INFINITY : m == INFINITY ? INFINITY : m * AURA_LN_2 + logf(l);
    if (bad && g.seq < a.c.n_seqs)
        atomicOr(&a.c.seqs[g.seq].status, (uint32_t)AURA_CUDA_NOT_FINITE);
}

/* One row by one warp: o, in shared memory, to the caller's tensor. */
template <int D>
__device__ __forceinline__ void finish_row(const struct dev_attend &a, const struct segment &g, const struct row_info &row,
                                           const float *o, float m, float l)
{
    constexpr int E = D / 32;
    const int lane = threadIdx.x % 32;
    float y[E], keep = a.sinks ? merge_sink(m, l, a.sinks[row.head]) : 1;
    bool empty = l == 0, bad = row.bad || g.seq >= a.c.n_seqs || !(empty || aura_is_good_sum(l));
    keep = empty ? 0 : keep / l;
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = empty ? 0 : o[lane * E + i] * keep;
    undo_warp<E>(y, a.c.v_sign, a.c.v_norm, lane);
    const float limit = aura_first_infinite(a.out.dtype);
#pragma unroll
    for (int i = 0; i < E; i++)
        bad |= !(fabsf(y[i]) < limit);
    bad = __any_sync(~0u, bad);
    int64_t to = g.slot * a.out.seq + row.query * a.out.token + row.head * a.out.head + lane * E;
#pragma unroll
    for (int i = 0; i < E; i++)
        store_element(a.out.data, a.out.dtype, to + i, bad ? NAN : y[i]);
    if (lane == 0)
        finish_lse(a, g, row, m, l, bad);
}

template <int D>
struct finish_rotated {
    static __device__ __forceinline__ void row(const struct dev_attend &a, const struct segment &g, const struct row_info &row,
                                               const float *o, float m, float l)
    {
        finish_row<D>(a, g, row, o, m, l);
    }
};

/* Shared memory of the merge. Rows are 8 floats apart in the banks, so that the four rows of a store do not collide. */
template <int D, int ROWS, int WARPS>
struct merge_space {
    alignas(16) float o[WARPS][ROWS][D + 8];
    alignas(16) float m[ROWS][WARPS], l[ROWS][WARPS];
    float all_m[ROWS], all_l[ROWS]; /* of all warps, or of all segments */
    uint32_t last;
};

/* What a thread has of the merge: every so many pairs of neighbouring elements. All of this is done once in a block, when nothing else
 * is: what takes time is to fetch the code, so that loops are short and stay loops. */
template <int D, int ROWS, int WARPS>
struct merge_share {
    static constexpr int PAIRS = ROWS * D / 2, THREADS = 32 * WARPS;
    static __device__ __forceinline__ int row(int pair) { return pair / (D / 2); }
    static __device__ __forceinline__ int element(int pair) { return 2 * (pair % (D / 2)); }
};

/* The warps of a block: to o[0], all_m and all_l where the group is this segment alone, otherwise to the segment's place `at` in the
 * workspace. Every element is read and written by one thread. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void merge_warps(const struct dev_attend &a, merge_space<D, ROWS, WARPS> &s, bool alone, size_t at)
{
    using T = merge_share<D, ROWS, WARPS>;
#pragma unroll 1
    for (int pair = threadIdx.x; pair < T::PAIRS; pair += T::THREADS) {
        const int row = T::row(pair), d = T::element(pair);
        float2 o = {0, 0};
        float m = NOTHING, l = 0;
#pragma unroll 4
        for (int w = 0; w < WARPS; w++)
            m = fmaxf(m, s.m[row][w]);
#pragma unroll 4
        for (int w = 0; w < WARPS; w++) {
            const float add = exp2_approx(s.m[row][w] - m);
            const float2 x = *(float2 *)&s.o[w][row][d];
            l += s.l[row][w] * add;
            o.x += x.x * add;
            o.y += x.y * add;
        }
        if (alone)
            *(float2 *)&s.o[0][row][d] = o;
        else
            __stcg((float2 *)&a.partial[(at + row) * D + d], o);
        if (d == 0 && alone)
            s.all_m[row] = m, s.all_l[row] = l;
        else if (d == 0)
            __stcg(&a.partial_ml[at + row], make_float2(m, l));
    }
    __syncthreads();
}

/* All segments of the group into o[0], in a fixed order. Their weights first, by one warp per row; they are kept in o[1] and on, which
 * nobody needs any more. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void merge_segments(const struct dev_attend &a, merge_space<D, ROWS, WARPS> &s, uint32_t first,
                                               uint32_t parts)
{
    using T = merge_share<D, ROWS, WARPS>;
    const uint32_t lane = threadIdx.x % 32;
    float *weight = &s.o[1][0][0]; /* [part][row] */
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS) {
        const float2 *all = &a.partial_ml[(size_t)first * ROWS + row];
        float2 ml = lane < parts ? __ldcg(&all[lane * ROWS]) : make_float2(NOTHING, 0);
        float m = ml.x, l = 0;
#pragma unroll 1
        for (uint32_t p = lane + 32; p < parts; p += 32)
            m = fmaxf(m, __ldcg(&all[p * ROWS]).x);
        m = warp_max(m);
#pragma unroll 1
        for (uint32_t p = lane; p < parts; p += 32) {
            ml = p < 32 ? ml : __ldcg(&all[p * ROWS]);
            float add = exp2_approx(ml.x - m);
            weight[p * ROWS + row] = add;
            l += ml.y * add;
        }
        l = warp_sum(l);
        if (lane == 0)
            s.all_m[row] = m, s.all_l[row] = l;
    }
    __syncthreads();
#pragma unroll 1
    for (int pair = threadIdx.x; pair < T::PAIRS; pair += T::THREADS) {
        const int row = T::row(pair), d = T::element(pair);
        const float2 *from = (const float2 *)&a.partial[((size_t)first * ROWS + row) * D + d];
        float2 o = {0, 0};
#pragma unroll 8
        for (uint32_t p = 0; p < parts; p++) {
            const float2 x = __ldcg(from + (size_t)p * (ROWS * D / 2));
            o.x = fmaf(x.x, weight[p * ROWS + row], o.x);
            o.y = fmaf(x.y, weight[p * ROWS + row], o.y);
        }
        *(float2 *)&s.o[0][row][d] = o;
    }
    __syncthreads();
}

/* Whether this block is the last to be done with the group: then all that the others have written is there to be read. */
__device__ __forceinline__ bool last_of_group(const struct dev_attend &a, const struct segment &g, uint32_t *shared)
{
    if (threadIdx.x == 0) {
        *shared = arrive(&a.counter[g.group]) == g.parts - 1;
        if (*shared)
            a.counter[g.group] = 0;
    }
    __syncthreads();
    return *shared;
}

/* The segment of a block is done, its warps have written to s: the rows are finished here, or by the last block. */
template <int D, int ROWS, int WARPS, class FINISH = finish_rotated<D>>
__device__ __forceinline__ void merge_segment(const struct dev_attend &a, const struct segment &g,
                                              const struct row_info *rows, merge_space<D, ROWS, WARPS> &s)
{
    merge_warps<D, ROWS, WARPS>(a, s, g.parts == 1, (size_t)(g.partial + g.part) * ROWS);
    if (g.parts > 1) {
        if (!last_of_group(a, g, &s.last))
            return;
        merge_segments<D, ROWS, WARPS>(a, s, g.partial, g.parts);
    }
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS)
        if (rows[row].there)
            FINISH::row(a, g, rows[row], s.o[0][row], s.all_m[row], s.all_l[row]);
}

#endif
