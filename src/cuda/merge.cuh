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

/* Softcap, then ALiBi, then the mask, in units of log2 e. */
__device__ __forceinline__ float apply_options(const struct dev_attend &a, const struct row_info &row, uint32_t slot,
                                               uint32_t len, uint32_t token, float logit)
{
    if (a.softcap > 0)
        logit = a.softcap * tanhf(logit / a.softcap);
    if (a.alibi)
        logit += a.alibi[row.head] * 1.44269504f * (float)((int)token - (int)(row.end - 1));
    if (a.mask && token + a.mask_keys >= len && token < len)
        logit += a.mask[((size_t)slot * a.queries + row.query) * a.mask_keys + (token + a.mask_keys - len)] * 1.44269504f;
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
    float at = sink * 1.44269504f, most = fmaxf(m, at), keep = l > 0 || isnan(l) ? exp2f(m - most) : 0;
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
            bad ? NAN : l == 0 ? -INFINITY : m == INFINITY ? INFINITY : m * 0.693147181f + logf(l);
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
    bool empty = l == 0, bad = row.bad || g.seq >= a.c.n_seqs || !(empty || (l > 0 && l <= 0x1p127f));
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = empty ? 0 : o[lane * E + i] * keep / l;
    undo_warp<E>(y, a.c.v_sign, a.c.v_norm, lane);
    const float limit = a.out.dtype == AURA_F16 ? 65520.f : a.out.dtype == AURA_BF16 ? 0x1.ffp127f : INFINITY;
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

/* Shared memory of the merge. Rows are 8 floats apart in the banks, so that the four rows of a store do not collide. */
template <int D, int ROWS, int WARPS>
struct merge_space {
    alignas(16) float o[WARPS][ROWS][D + 8];
    float m[WARPS][ROWS], l[WARPS][ROWS];
    uint32_t last;
};

/* Warps into o[0], m[0], l[0]. Every element is read and written by one thread alone; m and l are written after all have
 * been read. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void merge_warps(merge_space<D, ROWS, WARPS> &s)
{
    constexpr int PAIRS = ROWS * D / 2, EACH = (PAIRS + (32 * WARPS) - 1) / (32 * WARPS);
    float m[EACH], l[EACH];
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int pair = threadIdx.x + e * (32 * WARPS), row = pair / (D / 2), d = 2 * (pair % (D / 2));
        if (pair >= PAIRS)
            break;
        float2 o = {0, 0};
        m[e] = NOTHING, l[e] = 0;
#pragma unroll
        for (int w = 0; w < WARPS; w++)
            m[e] = fmaxf(m[e], s.m[w][row]);
#pragma unroll
        for (int w = 0; w < WARPS; w++) {
            float add = exp2_approx(s.m[w][row] - m[e]);
            float2 x = *(float2 *)&s.o[w][row][d];
            l[e] += s.l[w][row] * add;
            o.x += x.x * add;
            o.y += x.y * add;
        }
        *(float2 *)&s.o[0][row][d] = o;
    }
    __syncthreads();
#pragma unroll
    for (int e = 0; e < EACH; e++) {
        const int pair = threadIdx.x + e * (32 * WARPS);
        if (pair < PAIRS && pair % (D / 2) == 0)
            s.m[0][pair / (D / 2)] = m[e], s.l[0][pair / (D / 2)] = l[e];
    }
    __syncthreads();
}

/* All segments of the group into o[0], in a fixed order. Their weights first, by one warp per row: nothing waits for anything
 * then but memory. They are kept in o[1] and on, which nobody needs any more. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void merge_segments(const struct dev_attend &a, merge_space<D, ROWS, WARPS> &s, uint32_t first,
                                               uint32_t parts)
{
    const int lane = threadIdx.x % 32;
    float *weight = &s.o[1][0][0]; /* [part][row] */
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS) {
        float m = NOTHING, l = 0;
        for (uint32_t p = lane; p < parts; p += 32)
            m = fmaxf(m, __ldcg(&a.partial_ml[(size_t)(first + p) * ROWS + row]).x);
        m = warp_max(m);
        for (uint32_t p = lane; p < parts; p += 32) {
            float2 ml = __ldcg(&a.partial_ml[(size_t)(first + p) * ROWS + row]);
            float add = exp2_approx(ml.x - m);
            weight[p * ROWS + row] = add;
            l += ml.y * add;
        }
#pragma unroll
        for (int far = 16; far; far /= 2)
            l += __shfl_xor_sync(~0u, l, far);
        if (lane == 0)
            s.m[0][row] = m, s.l[0][row] = l;
    }
    __syncthreads();
    for (int pair = threadIdx.x; pair < ROWS * D / 2; pair += (32 * WARPS)) {
        const int row = pair / (D / 2), d = 2 * (pair % (D / 2));
        const float *from = a.partial + ((size_t)first * ROWS + row) * D + d;
        float2 o = {0, 0};
#pragma unroll 16
        for (uint32_t p = 0; p < parts; p++) {
            float2 x = __ldcg((const float2 *)(from + (size_t)p * ROWS * D));
            float add = weight[p * ROWS + row];
            o.x = fmaf(x.x, add, o.x);
            o.y = fmaf(x.y, add, o.y);
        }
        *(float2 *)&s.o[0][row][d] = o;
    }
    __syncthreads();
}

/* The segment of a block is done, its warps have written to s: the rows are finished here, or by the last block. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void merge_segment(const struct dev_attend &a, const struct segment &g,
                                              const struct row_info *rows, merge_space<D, ROWS, WARPS> &s)
{
    merge_warps<D, ROWS, WARPS>(s);
    if (g.parts > 1) {
        uint32_t first = blockIdx.x - g.part + g.group; /* unique: from segment to segment the block or the group advances */
        size_t at = (size_t)(first + g.part) * ROWS;
        for (int pair = threadIdx.x; pair < ROWS * D / 2; pair += (32 * WARPS)) {
            const int row = pair / (D / 2), d = 2 * (pair % (D / 2));
            __stcg((float2 *)&a.partial[(at + row) * D + d], *(float2 *)&s.o[0][row][d]);
            if (d == 0)
                __stcg(&a.partial_ml[at + row], make_float2(s.m[0][row], s.l[0][row]));
        }
        __threadfence();
        __syncthreads();
        if (threadIdx.x == 0) {
            s.last = atomicAdd(&a.counter[g.group], 1u) == g.parts - 1;
            if (s.last)
                a.counter[g.group] = 0;
        }
        __syncthreads();
        if (!s.last)
            return;
        __threadfence();
        merge_segments<D, ROWS, WARPS>(a, s, first, g.parts);
    }
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS)
        if (rows[row].there)
            finish_row<D>(a, g, rows[row], s.o[0][row], s.m[0][row], s.l[0][row]);
}

#endif
