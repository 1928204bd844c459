/* From the accumulators of warps to the rows of the output: warps of a block, then splits of a unit, each in order; then
 * sinks, the quotient and the inverse rotation. */
#ifndef AURA_CUDA_MERGE_CUH
#define AURA_CUDA_MERGE_CUH

#include "../../include/aura_cuda.h"
#include "rotate.cuh"
#include "split.cuh"

#define NOTHING (-3.402823466e38f) /* the maximum of a row that has seen no token: finite, so that differences are */

/* What is known of a row of a block. */
struct row_info {
    float factor;         /* from the integer of a key to its logit */
    float step;           /* of the query's integers */
    float top;            /* from products with f16 rows to logits */
    int sum[2];           /* of hi; of lo */
    uint32_t limit;       /* the largest scale of a key that takes one plane, f16; rules.h */
    uint32_t begin, end;  /* tokens that it sees */
    uint32_t query, head; /* query token, query head */
    uint32_t there, bad;  /* there: it is a row of the call; bad: its query is not finite */
};

/* Row r of a split; prepare_row() adds what depends on the numbers of the query. A row that is not there takes the places of
 * row 0, so that it can be read like any other. */
__device__ __forceinline__ struct row_info row_at(const struct dev_attend &a, const struct split &g, int r)
{
    struct row_info row;
    const uint32_t queries = queries_of_job(a, g.job);
    row.there = g.first_row + r < queries * a.c.ratio;
    const uint32_t index = row.there ? g.first_row + r : 0;
    const uint32_t query = aura_divide(index, a.by_ratio);
    row.query = first_query_of_job(a, g.job) + query;
    row.head = g.head * a.c.ratio + index - query * a.c.ratio;
    const uint2 seen = row.there ? tokens_seen(a, g.job, g.reach.len, queries, query) : make_uint2(0, 0);
    row.begin = seen.x, row.end = seen.y;
    return row;
}

/* Whether a row sees a token. */
__device__ __forceinline__ bool row_sees(const struct dev_attend &a, const struct row_info &row, uint32_t token)
{
    return aura_sees(token, row.begin, row.end, a.c.keep_first);
}

/* Softcap, then ALiBi, then the mask, in units of log2 e. */
__device__ __forceinline__ float apply_options(const struct dev_attend &a, const struct row_info &row, uint32_t job,
                                               uint32_t len, uint32_t token, float logit)
{
    if (a.softcap > 0)
        logit = a.softcap * tanhf(logit / a.softcap);
    if (a.alibi)
        logit += a.alibi[row.head] * AURA_LOG2_E * (float)((int)token - (int)(row.end - 1));
    if (a.mask && token + a.mask_keys >= len && token < len)
        logit += a.mask[((size_t)job * a.queries + row.query) * a.mask_keys + (token + a.mask_keys - len)] * AURA_LOG2_E;
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
__device__ __forceinline__ void finish_lse(const struct dev_attend &a, const struct split &g, const struct row_info &row, float m,
                                           float l, bool bad)
{
    if (a.lse)
        a.lse[((size_t)g.job * a.queries + row.query) * a.c.q_heads + row.head] =
            bad ? NAN : l == 0 ? -INFINITY : m == INFINITY ? INFINITY : m * AURA_LN_2 + logf(l);
    if (bad && g.seq < a.c.n_seqs)
        atomicOr(&a.c.seqs[g.seq].status, (uint32_t)AURA_CUDA_NOT_FINITE);
}

/* One row by one warp: o, in shared memory, to the caller's tensor. */
template <int D>
__device__ __forceinline__ void finish_row(const struct dev_attend &a, const struct split &g, const struct row_info &row,
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
    if (a.c.v_inverse_balance) {
#pragma unroll
        for (int i = 0; i < E; i++)
            y[i] *= a.c.v_inverse_balance[(size_t)g.head * D + lane * E + i];
    }
    const float limit = aura_first_infinite(a.out.dtype);
#pragma unroll
    for (int i = 0; i < E; i++)
        bad |= !(fabsf(y[i]) < limit);
    bad = __any_sync(~0u, bad);
    int64_t to = g.job * a.out.seq + row.query * a.out.token + row.head * a.out.head + lane * E;
#pragma unroll
    for (int i = 0; i < E; i++)
        store_element(a.out.data, a.out.dtype, to + i, bad ? NAN : y[i]);
    if (lane == 0)
        finish_lse(a, g, row, m, l, bad);
}

template <int D>
struct finish_rotated {
    static __device__ __forceinline__ void row(const struct dev_attend &a, const struct split &g, const struct row_info &row,
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
    float all_m[ROWS], all_l[ROWS]; /* of all warps, or of all splits */
    uint32_t last;
};

/* What a thread does of the merge: every THREADS-th pair of neighbouring elements. WARPS: those that have left partials, or whole
 * groups of them. A block does this once, when nothing else is
 * to do: most of the time goes into fetching code, so loops are short and are not unrolled much. */
template <int D, int ROWS>
struct merge_share {
    static constexpr int PAIRS = ROWS * D / 2;
    static __device__ __forceinline__ int row(int pair) { return pair / (D / 2); }
    static __device__ __forceinline__ int element(int pair) { return 2 * (pair % (D / 2)); }
};

/* Merges the warps of a block. Where the split is the whole unit (`alone`), the result goes to o[0], all_m and all_l. Otherwise
 * it is a partial, and goes to row `at` of the workspace. One thread reads and writes an element. */
template <int D, int ROWS, int WARPS, int THREADS>
__device__ __forceinline__ void merge_warps(const struct dev_attend &a, merge_space<D, ROWS, WARPS> &s, bool alone, size_t at)
{
    using T = merge_share<D, ROWS>;
#pragma unroll 1
    for (int pair = threadIdx.x; pair < T::PAIRS; pair += THREADS) {
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

/* Merges the partials of all splits of the unit into o[0], in their order. First the weights of the splits, by one warp per
 * row; they are kept from o[1] on, which nobody needs any more. */
template <int D, int ROWS, int WARPS, int THREADS>
__device__ __forceinline__ void merge_splits(const struct dev_attend &a, merge_space<D, ROWS, WARPS> &s, uint32_t first,
                                             uint32_t splits)
{
    using T = merge_share<D, ROWS>;
    const uint32_t lane = threadIdx.x % 32;
    float *weight = &s.o[1][0][0]; /* [split][row] */
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        const float2 *all = &a.partial_ml[(size_t)first * ROWS + row];
        float2 ml = lane < splits ? __ldcg(&all[lane * ROWS]) : make_float2(NOTHING, 0);
        float m = ml.x, l = 0;
#pragma unroll 1
        for (uint32_t p = lane + 32; p < splits; p += 32)
            m = fmaxf(m, __ldcg(&all[p * ROWS]).x);
        m = warp_max(m);
#pragma unroll 1
        for (uint32_t p = lane; p < splits; p += 32) {
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
    for (int pair = threadIdx.x; pair < T::PAIRS; pair += THREADS) {
        const int row = T::row(pair), d = T::element(pair);
        const float2 *from = (const float2 *)&a.partial[((size_t)first * ROWS + row) * D + d];
        float2 o = {0, 0};
#pragma unroll 8
        for (uint32_t p = 0; p < splits; p++) {
            const float2 x = __ldcg(from + (size_t)p * (ROWS * D / 2));
            o.x = fmaf(x.x, weight[p * ROWS + row], o.x);
            o.y = fmaf(x.y, weight[p * ROWS + row], o.y);
        }
        *(float2 *)&s.o[0][row][d] = o;
    }
    __syncthreads();
}

/* ---- a fixed cut --------------------------------------------------------------------------------------------------- */

/* How what a row has of some tokens is joined with what it has of those after them: x becomes x * before + y * after. Everybody
 * joins by this, in the order of cut.h, so that it does not matter who does. */
struct joint {
    float m, before, after;
};

__device__ __forceinline__ struct joint joint_of(float m, float other)
{
    const float most = fmaxf(m, other);
    return {most, exp2_approx(m - most), exp2_approx(other - most)};
}

__device__ __forceinline__ float joined(const struct joint &j, float x, float y)
{
    return __fadd_rn(__fmul_rn(x, j.before), __fmul_rn(y, j.after));
}

/* Two channels of a row. */
struct joined_pair {
    float m, l;
    float2 o;
};

__device__ __forceinline__ void join_pair(struct joined_pair &x, const struct joined_pair &y)
{
    const struct joint j = joint_of(x.m, y.m);
    x.m = j.m, x.l = joined(j, x.l, y.l);
    x.o.x = joined(j, x.o.x, y.o.x), x.o.y = joined(j, x.o.y, y.o.y);
}

template <int D, int ROWS>
__device__ __forceinline__ struct joined_pair load_pair(const struct dev_attend &a, uint32_t partial, int row, int d)
{
    const size_t at = (size_t)partial * ROWS + row;
    const float2 ml = __ldcg(&a.partial_ml[at]), o = __ldcg((const float2 *)&a.partial[at * D + d]);
    return {ml.x, ml.y, o};
}

/* Two channels of a row, from the partials of all tasks of the unit. */
template <int D, int ROWS>
__device__ __forceinline__ struct joined_pair join_tasks(const struct dev_attend &a, const struct split &g, int row, int d)
{
    const struct reach &r = g.reach;
    struct joined_pair all = {NOTHING, 0, {0, 0}}, level[AURA_CUT_LEVELS] = {}; /* nodes of levels 1, 2 ... that are not complete */
    uint32_t partial = g.first_partial;
    if (r.pinned_end)
        join_pair(all, load_pair<D, ROWS>(a, partial++, row, d));
#pragma unroll 2
    for (uint32_t n = 0; n < r.nodes; n++) {
        struct joined_pair now = load_pair<D, ROWS>(a, partial++, row, d);
        const bool is_kept = n < r.kept_nodes, is_last = n + 1 == r.kept_nodes || n + 1 == r.nodes;
        uint32_t node = is_kept ? r.kept_node + n : r.node + n - r.kept_nodes, first = is_kept ? r.kept_node : r.node;
        bool complete = true;
#pragma unroll
        for (uint32_t k = 0; k < AURA_CUT_LEVELS; k++)
            if (k >= r.level && complete) {
                if (node % AURA_CUT_FAN && node != first) {
                    join_pair(level[k], now);
                    now = level[k];
                }
                complete = node % AURA_CUT_FAN == AURA_CUT_FAN - 1 || is_last;
                if (!complete)
                    level[k] = now;
                node /= AURA_CUT_FAN, first /= AURA_CUT_FAN;
            }
        if (complete)
            join_pair(all, now);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < r.open_visits; i++)
        join_pair(all, load_pair<D, ROWS>(a, partial++, row, d));
    return all;
}

/* Whether this block is the last to be done with the unit. Then it can read all partials of the others. */
__device__ __forceinline__ bool last_of_unit(const struct dev_attend &a, const struct split &g, uint32_t *shared)
{
    if (threadIdx.x == 0) {
        *shared = arrive(&a.counter[g.unit]) == g.splits - 1;
        if (*shared)
            a.counter[g.unit] = 0;
    }
    __syncthreads();
    return *shared;
}

/* Merged rows, a warp each. */
template <int ROWS, int WARPS, class FINISH, class SPACE>
__device__ __forceinline__ void finish_rows(const struct dev_attend &a, const struct split &g, const struct row_info *rows,
                                            SPACE &s)
{
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS)
        if (rows[row].there)
            FINISH::row(a, g, rows[row], s.o[0][row], s.all_m[row], s.all_l[row]);
}

/* With a fixed cut, when the partials of the block's tasks are in the workspace. */
template <int D, int ROWS, int WARPS, class FINISH = finish_rotated<D>>
__device__ __forceinline__ void merge_tasks(const struct dev_attend &a, const struct split &g, const struct row_info *rows,
                                            merge_space<D, ROWS, WARPS> &s)
{
    using T = merge_share<D, ROWS>;
    __syncthreads();
    if (!last_of_unit(a, g, &s.last))
        return;
#pragma unroll 1
    for (int pair = threadIdx.x; pair < T::PAIRS; pair += 32 * WARPS) {
        const int row = T::row(pair), d = T::element(pair);
        const struct joined_pair all = join_tasks<D, ROWS>(a, g, row, d);
        *(float2 *)&s.o[0][row][d] = all.o;
        if (d == 0)
            s.all_m[row] = all.m, s.all_l[row] = all.l;
    }
    __syncthreads();
    finish_rows<ROWS, WARPS, FINISH>(a, g, rows, s);
}

/* The warps of the block are done with the split, and their partials are in s. This block finishes the rows, or the last block
 * of the unit does. */
template <int D, int ROWS, int WARPS, class FINISH = finish_rotated<D>, int THREADS = 32 * WARPS>
__device__ __forceinline__ void merge_split(const struct dev_attend &a, const struct split &g,
                                              const struct row_info *rows, merge_space<D, ROWS, WARPS> &s)
{
    merge_warps<D, ROWS, WARPS, THREADS>(a, s, g.splits == 1, (size_t)(g.first_partial + g.which) * ROWS);
    if (g.splits > 1) {
        if (!last_of_unit(a, g, &s.last))
            return;
        merge_splits<D, ROWS, WARPS, THREADS>(a, s, g.first_partial, g.splits);
    }
    finish_rows<ROWS, THREADS / 32, FINISH>(a, g, rows, s);
}

#endif
