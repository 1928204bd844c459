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

/* One row by one warp, to the caller's tensor: a lane has numbers lane * E ... of it, E = D / 32. */
template <int D>
__device__ __forceinline__ void finish_row(const struct dev_attend &a, const struct split &g, const struct row_info &row,
                                           float (&y)[D / 32], float m, float l)
{
    constexpr int E = D / 32;
    const int lane = threadIdx.x % 32;
    const float keep = a.sinks ? merge_sink(m, l, a.sinks[row.head]) : 1;
    bool empty = l == 0, bad = row.bad || g.seq >= a.c.n_seqs || !(empty || aura_is_good_sum(l));
    const float part = empty ? 0 : keep / l;
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = empty ? 0 : y[i] * part;
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

/* The numbers of this lane of a row of D: from shared memory; from and to the workspace, past the first cache. */
template <int E>
__device__ __forceinline__ void load_lane(float (&x)[E], const float *row)
{
#pragma unroll
    for (int i = 0; i < E; i += 2) {
        const float2 two = *(const float2 *)(row + threadIdx.x % 32 * E + i);
        x[i] = two.x, x[i + 1] = two.y;
    }
}

template <int E>
__device__ __forceinline__ void load_lane_far(float (&x)[E], const float *row)
{
    constexpr int N = E % 4 ? 2 : 4;
#pragma unroll
    for (int i = 0; i < E; i += N) {
        const float *from = row + threadIdx.x % 32 * E + i;
        if (N == 4) {
            const float4 four = __ldcg((const float4 *)from);
            x[i] = four.x, x[i + 1] = four.y, x[i + N - 2] = four.z, x[i + N - 1] = four.w;
        } else {
            const float2 two = __ldcg((const float2 *)from);
            x[i] = two.x, x[i + 1] = two.y;
        }
    }
}

template <int E>
__device__ __forceinline__ void store_lane_far(float *row, const float (&x)[E])
{
#pragma unroll
    for (int i = 0; i < E; i += 2)
        __stcg((float2 *)(row + threadIdx.x % 32 * E + i), make_float2(x[i], x[i + 1]));
}

/* How merged rows are finished: by a warp each, from registers; or, for kernels of any dim, from shared memory. */
template <int D>
struct finish_rotated {
    static constexpr bool FROM_SHARED = false;
    static __device__ __forceinline__ void row(const struct dev_attend &a, const struct split &g, const struct row_info &row,
                                               float *o, float m, float l)
    {
        float y[D / 32];
        load_lane<D / 32>(y, o);
        finish_row<D>(a, g, row, y, m, l);
    }
};

/* Shared memory of the merge. Rows are 8 floats apart in the banks, so that the four rows of a store do not collide. */
template <int D, int ROWS, int WARPS>
struct merge_space {
    alignas(16) float o[WARPS][ROWS][D + 8];
    alignas(16) float m[ROWS][WARPS], l[ROWS][WARPS];
    float all_m[ROWS], all_l[ROWS]; /* of all warps, or of all splits */
    float2 ml[WARPS][ROWS];         /* with a fixed cut: see keep_near() */
    uint32_t last;
};

/* Merges the warps of a block for one row, by a warp: y, m, l. A block does this once, when nothing else is to do: most of
 * the time goes into fetching code, so there is little of it. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void merge_warps(const merge_space<D, ROWS, WARPS> &s, int row, float (&y)[D / 32], float &m,
                                            float &l)
{
    constexpr int E = D / 32;
    const int lane = threadIdx.x % 32;
    const float mine = lane < WARPS ? s.m[row][lane] : NOTHING;
    m = warp_max(mine);
    const float add = exp2_approx(mine - m);
    l = warp_sum(lane < WARPS ? s.l[row][lane] * add : 0);
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = 0;
#pragma unroll 4
    for (int w = 0; w < WARPS; w++) {
        const float part = __shfl_sync(~0u, add, w);
        float x[E];
        load_lane<E>(x, s.o[w][row]);
#pragma unroll
        for (int i = 0; i < E; i++)
            y[i] += x[i] * part;
    }
}

/* Merges the partials of all splits of the unit for one row, by a warp, in their order: so many at a time that nearly always
 * one wait for memory is enough. */
template <int D, int ROWS>
__device__ __forceinline__ void merge_splits(const struct dev_attend &a, uint32_t first, uint32_t splits, int row,
                                             float (&y)[D / 32], float &m, float &l)
{
    constexpr uint32_t E = D / 32, NEAR = E > 4 ? 64 / E : 16; /* as many as there are registers */
    const uint32_t lane = threadIdx.x % 32;
    const float2 *all = &a.partial_ml[(size_t)first * ROWS + row];
    const float *from = &a.partial[((size_t)first * ROWS + row) * D];
    m = NOTHING, l = 0;
#pragma unroll
    for (uint32_t i = 0; i < E; i++)
        y[i] = 0;
#pragma unroll 1
    for (uint32_t p = 0; p < splits; p += NEAR) {
        float x[NEAR][E] = {};
        const float2 ml = lane < NEAR && p + lane < splits ? __ldcg(&all[(p + lane) * ROWS]) : make_float2(NOTHING, 0);
#pragma unroll
        for (uint32_t i = 0; i < NEAR; i++)
            if (p + i < splits)
                load_lane_far(x[i], from + (size_t)(p + i) * (ROWS * D));
        const float most = warp_max(fmaxf(ml.x, m)), keep = exp2_approx(m - most), add = exp2_approx(ml.x - most);
        m = most;
        l = l * keep + warp_sum(ml.y * add);
#pragma unroll
        for (uint32_t k = 0; k < E; k++)
            y[k] *= keep;
#pragma unroll
        for (uint32_t i = 0; i < NEAR; i++) {
            const float part = __shfl_sync(~0u, add, i);
#pragma unroll
            for (uint32_t k = 0; k < E; k++)
                y[k] = fmaf(x[i][k], part, y[k]);
        }
    }
}

/* A merged row: finished by the warp, from registers or from shared memory. */
template <int D, class FINISH, class SPACE>
__device__ __forceinline__ void finish_merged(const struct dev_attend &a, const struct split &g,
                                              const struct row_info *rows, SPACE &s, int row, float (&y)[D / 32], float m,
                                              float l)
{
    if (!rows[row].there)
        return;
    if (FINISH::FROM_SHARED) {
        for (int i = 0; i < D / 32; i++)
            s.o[0][row][threadIdx.x % 32 * (D / 32) + i] = y[i];
        __syncwarp();
        FINISH::row(a, g, rows[row], s.o[0][row], m, l);
    } else {
        finish_row<D>(a, g, rows[row], y, m, l);
    }
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

/* Nodes [from, to) side by side. */
struct node_range {
    uint32_t from, to;
};

/* Where the partial of a node of this level is: at the place of its first task. */
__device__ __forceinline__ uint32_t place_of_node(const struct split &g, uint32_t level, uint32_t node)
{
    const struct reach &r = g.reach;
    return g.first_partial + (r.pinned_end ? 1 : 0) + max(node << 2 * (level - r.level), r.node) - r.node;
}

/* Whether all `n` are there, of which the warp brings `own`. Then it can read what others have brought. The counter is 0 before
 * the first comes and after the last. */
__device__ __forceinline__ bool all_are_there(uint32_t *counter, uint32_t own, uint32_t n)
{
    uint32_t last = 0;
    if (own == n)
        return true;
    if (threadIdx.x % 32 == 0) {
        last = arrive(counter, own) + own == n;
        if (last)
            *counter = 0;
    }
    last = __shfl_sync(~0u, last, 0);
    __syncwarp(); /* what others have brought is seen by all lanes */
    return last;
}

/* What the block that comes last joins: nodes of level 1, or of that of tasks, if that is higher. */
__device__ __forceinline__ struct node_range nodes_to_join(const struct reach &r)
{
    const uint32_t up = r.level ? 0 : 2;
    return {r.node >> up, r.nodes ? ((r.node + r.nodes - 1) >> up) + 1 : r.node >> up};
}

/* What a lane has of a row, E numbers. */
template <int E>
struct joined_row {
    float m, l, y[E];
};

template <int E>
__device__ __forceinline__ void join_rows(struct joined_row<E> &x, const struct joined_row<E> &next)
{
    const struct joint j = joint_of(x.m, next.m);
    x.m = j.m, x.l = joined(j, x.l, next.l);
#pragma unroll
    for (int i = 0; i < E; i++)
        x.y[i] = joined(j, x.y[i], next.y[i]);
}

/* The same with what is in a place of the workspace. */
template <int D, int ROWS>
__device__ __forceinline__ void join_place(const struct dev_attend &a, struct joined_row<D / 32> &x, uint32_t place,
                                           int row)
{
    const size_t at = (size_t)place * ROWS + row;
    const float2 ml = __ldcg(&a.partial_ml[at]);
    struct joined_row<D / 32> next = {ml.x, ml.y, {}};
    load_lane_far(next.y, &a.partial[at * D]);
    join_rows(x, next);
}

/* A node of the highest level: of up to 4^(AURA_CUT_LEVELS - level) nodes of `level`, number `first` of them and so on; those
 * that are not among `nodes` are not there. As many are asked for at a time as there are registers. */
template <int D, int ROWS>
__device__ __forceinline__ void join_highest(const struct dev_attend &a, const struct split &g,
                                             const struct node_range &nodes, uint32_t first, uint32_t level, int row,
                                             struct joined_row<D / 32> &top)
{
    constexpr uint32_t E = D / 32, MOST = 1 << 2 * (AURA_CUT_LEVELS - 1), AHEAD = E > 4 ? AURA_CUT_FAN : MOST;
    const uint32_t n = 1u << 2 * (AURA_CUT_LEVELS - level), fan = level == 1 ? AURA_CUT_FAN : 1;
    const uint32_t lane = threadIdx.x % 32;
    bool has = false, has_top = false;
    struct joined_row<E> x = {};
#pragma unroll 1
    for (uint32_t begin = 0; begin < n; begin += AHEAD) {
        float y[AHEAD][E] = {};
        const uint32_t mine = first + begin + min(lane, AHEAD - 1);
        const bool is = begin + lane < n && mine >= nodes.from && mine < nodes.to;
        const size_t at = (size_t)place_of_node(g, level, mine) * ROWS + row;
        const float2 ml = is ? __ldcg(&a.partial_ml[at]) : make_float2(NOTHING, 0);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (begin + i < n && first + begin + i >= nodes.from && first + begin + i < nodes.to)
                load_lane_far(y[i], &a.partial[((size_t)place_of_node(g, level, first + begin + i) * ROWS + row) * D]);
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            struct joined_row<E> next = {__shfl_sync(~0u, ml.x, i), __shfl_sync(~0u, ml.y, i), {}};
#pragma unroll
            for (uint32_t k = 0; k < E; k++)
                next.y[k] = y[i][k];
            if (begin + i < n && first + begin + i >= nodes.from && first + begin + i < nodes.to) {
                if (has)
                    join_rows(x, next);
                else
                    x = next;
                has = true;
            }
            if (has && i % fan == fan - 1) {
                if (has_top)
                    join_rows(top, x);
                else
                    top = x;
                has = false, has_top = true;
            }
        }
    }
}

/* Nodes of the highest level of which `nodes` of `level` are. */
__device__ __forceinline__ struct node_range highest_of(const struct node_range &nodes, uint32_t level)
{
    const uint32_t up = 2 * (AURA_CUT_LEVELS - level), first = nodes.from >> up;
    return {first, nodes.to > nodes.from ? ((nodes.to - 1) >> up) + 1 : first};
}

/* Where there are several nodes of the highest level: warps join them side by side, and leave what they have at the place of
 * the first partial that is in it. */
template <int D, int ROWS, int WARPS>
__device__ __forceinline__ void join_side_by_side(const struct dev_attend &a, const struct split &g,
                                                  const struct node_range &nodes, const struct node_range &highest,
                                                  uint32_t level)
{
#pragma unroll 1
    for (uint32_t i = threadIdx.x / 32; i < (highest.to - highest.from) * ROWS; i += WARPS) {
        const uint32_t node = (highest.from + i / ROWS) << 2 * (AURA_CUT_LEVELS - level), row = i % ROWS;
        const size_t at = (size_t)place_of_node(g, level, node) * ROWS + row;
        struct joined_row<D / 32> top = {};
        join_highest<D, ROWS>(a, g, nodes, node, level, row, top);
        store_lane_far<D / 32>(&a.partial[at * D], top.y);
        if (threadIdx.x % 32 == 0)
            __stcg(&a.partial_ml[at], make_float2(top.m, top.l));
    }
    __syncthreads();
}

/* A row of a unit: pinned tokens, nodes of the highest level, open tiles, in their order. */
template <int D, int ROWS>
__device__ __forceinline__ void join_unit(const struct dev_attend &a, const struct split &g, const struct node_range &nodes,
                                          const struct node_range &highest, uint32_t level, int row,
                                          struct joined_row<D / 32> &all)
{
    const uint32_t open = g.first_partial + (g.reach.pinned_end ? 1 : 0) + g.reach.nodes;
    const uint32_t n = highest.to - highest.from, up = 2 * (AURA_CUT_LEVELS - level);
    all = {NOTHING, 0, {}};
    if (g.reach.pinned_end)
        join_place<D, ROWS>(a, all, g.first_partial, row);
    if (n == 1) {
        struct joined_row<D / 32> top = {};
        join_highest<D, ROWS>(a, g, nodes, highest.from << up, level, row, top);
        join_rows(all, top);
    }
#pragma unroll 4
    for (uint32_t i = 0; i < n && n > 1; i++)
        join_place<D, ROWS>(a, all, place_of_node(g, level, (highest.from + i) << up), row);
#pragma unroll 1
    for (uint32_t i = 0; i < g.reach.open_visits; i++)
        join_place<D, ROWS>(a, all, open + i, row);
}

/* The same where tiles are kept apart: two trees, one after the other, whose partials are side by side as tasks left them. */
template <int D, int ROWS>
__device__ __forceinline__ void join_apart(const struct dev_attend &a, const struct split &g, int row,
                                           struct joined_row<D / 32> &all)
{
    const struct reach &r = g.reach;
    struct joined_row<D / 32> level[AURA_CUT_LEVELS] = {}; /* nodes of levels 1, 2 ... that are not complete */
    uint32_t partial = g.first_partial;
    all = {NOTHING, 0, {}};
    if (r.pinned_end)
        join_place<D, ROWS>(a, all, partial++, row);
#pragma unroll 1
    for (uint32_t n = 0; n < r.nodes; n++) {
        const bool is_kept = n < r.kept_nodes, is_last = n + 1 == r.kept_nodes || n + 1 == r.nodes;
        uint32_t node = is_kept ? r.kept_node + n : r.node + n - r.kept_nodes, first = is_kept ? r.kept_node : r.node;
        const size_t at = (size_t)partial++ * ROWS + row;
        const float2 ml = __ldcg(&a.partial_ml[at]);
        struct joined_row<D / 32> now = {ml.x, ml.y, {}};
        load_lane_far(now.y, &a.partial[at * D]);
        bool complete = true;
#pragma unroll
        for (uint32_t k = 0; k < AURA_CUT_LEVELS; k++)
            if (k >= r.level && complete) {
                if (node % AURA_CUT_FAN && node != first) {
                    join_rows(level[k], now);
                    now = level[k];
                }
                complete = node % AURA_CUT_FAN == AURA_CUT_FAN - 1 || is_last;
                if (!complete)
                    level[k] = now;
                node /= AURA_CUT_FAN, first /= AURA_CUT_FAN;
            }
        if (complete)
            join_rows(all, now);
    }
#pragma unroll 1
    for (uint32_t i = 0; i < r.open_visits; i++)
        join_place<D, ROWS>(a, all, partial++, row);
}

/* The rows of a unit whose partials are all there, by the block: a warp each. */
template <int D, int ROWS, int WARPS, class FINISH, class SPACE>
__device__ __forceinline__ void finish_tasks(const struct dev_attend &a, const struct split &g,
                                             const struct node_range &nodes, const struct row_info *rows, SPACE &s)
{
    const uint32_t level = max(g.reach.level, 1u);
    const struct node_range highest = highest_of(nodes, level);
    const bool apart = FINISH::FROM_SHARED && g.reach.kept_nodes; /* fused kernels never have such tiles */
    if (!apart && highest.to - highest.from > 1)
        join_side_by_side<D, ROWS, WARPS>(a, g, nodes, highest, level);
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += WARPS) {
        struct joined_row<D / 32> x;
        if (apart)
            join_apart<D, ROWS>(a, g, row, x);
        else
            join_unit<D, ROWS>(a, g, nodes, highest, level, row, x);
        finish_merged<D, FINISH>(a, g, rows, s, row, x.y, x.m, x.l);
    }
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

/* The warps of the block are done with the split, and their partials are in s. This block finishes the rows, or the last block
 * of the unit does. A warp takes a row. */
template <int D, int ROWS, int WARPS, class FINISH = finish_rotated<D>, int THREADS = 32 * WARPS>
__device__ __forceinline__ void merge_split(const struct dev_attend &a, const struct split &g,
                                              const struct row_info *rows, merge_space<D, ROWS, WARPS> &s)
{
    const size_t at = (size_t)(g.first_partial + g.which) * ROWS;
    float y[D / 32], m, l;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        merge_warps<D, ROWS, WARPS>(s, row, y, m, l);
        if (g.splits > 1) {
            store_lane_far<D / 32>(&a.partial[(at + row) * D], y);
            if (threadIdx.x % 32 == 0)
                __stcg(&a.partial_ml[at + row], make_float2(m, l));
        } else {
            finish_merged<D, FINISH>(a, g, rows, s, row, y, m, l);
        }
    }
    if (g.splits == 1)
        return;
    __syncthreads();
    if (!last_of_unit(a, g, &s.last))
        return;
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < ROWS; row += THREADS / 32) {
        merge_splits<D, ROWS>(a, g.first_partial, g.splits, row, y, m, l);
        finish_merged<D, FINISH>(a, g, rows, s, row, y, m, l);
    }
}

#endif
