/* What the fused kernels keep: their shape, shared memory, the queries, and the result of a warp so far. */
#ifndef AURA_CUDA_ATTEND_STATE_CUH
#define AURA_CUDA_ATTEND_STATE_CUH

#include <float.h>

#include "merge.cuh"
#include "rotate.cuh"
#include "split.cuh"
#include "unpack_trellis.cuh"

/* A float of up to 2^22 plus WHOLE is rounded to a whole number, which is then in its lower bits. */
#define WHOLE 12582912.f
#define WHOLE_BITS 0x4b400000

#define QUERY_HALF_TOP 1024.f /* largest coordinate of a query as two f16 */

template <int K_KIND_, int V_KIND_, int D_, int PL_, int RL_, int NT_, int WARPS_>
struct pair_shape {
    static constexpr int K_KIND = K_KIND_, V_KIND = V_KIND_;
    static constexpr int D = D_, PL = PL_, RL = RL_, NT = NT_, WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int K_TABLES = fused_tables<K_KIND>, V_TABLES = fused_tables<V_KIND>;
    static constexpr int COLUMN_ROWS = 4 * RL, ROWS = COLUMN_ROWS * NT;
    static constexpr int STEPS = D / 32, PARTS = D / 32;
    /* The layout of format.c for sides of these kinds and this dim; attend.cu compares. */
    static constexpr uint32_t V_AT = code<K_KIND>::bits * D * 4, K_SCALE_AT = V_AT + code<V_KIND>::bits * D * 4,
        V_SCALE_AT = K_SCALE_AT + 64, TILE_BYTES = V_SCALE_AT + 64;
    static constexpr uint32_t REFERENCE_AT = AURA_PAGE_TILES * TILE_BYTES, REFERENCE_SCALE_AT = REFERENCE_AT + D;
};

/* Both sides are of one kind. */
template <int KIND_, int D, int PL, int RL, int NT, int WARPS>
struct shape : pair_shape<KIND_, KIND_, D, PL, RL, NT, WARPS> {
    static constexpr int KIND = KIND_;
};

/* Levels as both sides look them up. */
template <class S>
struct tables {
    uint32_t k[8], v[S::K_KIND == S::V_KIND ? 1 : 8];

    __device__ __forceinline__ void load(const struct dev_attend &a)
    {
        fused_table<S::K_KIND>(k, a.c.k_table);
        if constexpr (S::K_KIND != S::V_KIND)
            fused_table<S::V_KIND>(v, a.c.v_table);
    }
    __device__ __forceinline__ const uint32_t *of_values() const
    {
        return S::K_KIND == S::V_KIND ? k : v;
    }
};

enum { PAGES_NEAR = 256 }; /* page numbers of a split that are kept in shared memory */

template <class S>
struct attend_space {
    alignas(16) int8_t q[S::ROWS][2][S::D + 8]; /* rows begin in different banks */
    alignas(16) __half half[S::ROWS][2][S::D + 8]; /* the query times QUERY_HALF_TOP / its largest coordinate, as a sum of two */
    row_info row[S::ROWS];
    alignas(16) uint8_t reference[S::WARPS][S::D + 16]; /* of the page that a warp comes to next, and its scale */
    uint32_t page[PAGES_NEAR], first_page;
    staging<S::V_KIND> staged[S::WARPS]; /* codes of the tile that a warp is at, on their way between lanes */
    struct split split; /* here rather than in registers, of which there are none to spare */
    merge_space<S::D, S::ROWS, S::WARPS> merge;
};

/* The partial of a warp: of the tokens that it has seen, for each of its rows. */
template <class S>
struct running {
    float m[S::NT][S::RL], l[S::NT][S::RL];
    float o[S::NT][S::RL][S::PARTS][4];
    float offsets[S::NT][S::RL]; /* within attend_tiles(): this times the offset of levels is what o has too much */
};

/* ---- queries ------------------------------------------------------------------------------------------------------- */

/* The query of a row as it is in memory: what each lane has loaded of it. */
template <class S>
struct asked_row {
    static constexpr int E = S::D / 32;
    row_info row;
    uint32_t bits[E];
    float balance[E];
};

template <class S>
__device__ __forceinline__ void ask_row(asked_row<S> &q, const struct dev_attend &a, const struct split &g, int r)
{
    constexpr int E = asked_row<S>::E;
    const int lane = threadIdx.x % 32;
    q.row = row_at(a, g, r);
    const int64_t from = g.job * a.q.seq + q.row.query * a.q.token + q.row.head * a.q.head + lane * E;
#pragma unroll
    for (int i = 0; i < E; i++) {
        q.bits[i] = q.row.there ? load_bits(a.q.data, a.q.dtype, from + i) : 0;
        q.balance[i] = a.c.inverse_balance ? a.c.inverse_balance[(size_t)g.head * S::D + lane * E + i] : 1;
    }
}

/* SPACE: has q, half and row of attend_space. */
template <class S, class SPACE>
__device__ __forceinline__ void prepare_row(SPACE &s, const struct dev_attend &a, const asked_row<S> &q, int r)
{
    constexpr int E = asked_row<S>::E;
    const int lane = threadIdx.x % 32;
    row_info row = q.row;
    float y[E], largest = 0;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = __fmul_rn(number_of(q.bits[i], a.q.dtype), q.balance[i]);
    rotate_warp<E>(y, a.c.k_sign, a.c.k_norm, lane);
#pragma unroll
    for (int i = 0; i < E; i++)
        bad |= !(fabsf(y[i]) < INFINITY);
    row.bad = __any_sync(~0u, bad);
#pragma unroll
    for (int i = 0; i < E; i++) {
        y[i] = row.bad ? 0 : y[i];
        largest = fmaxf(largest, fabsf(y[i]));
    }
    largest = warp_largest(largest);
    const bool tiny = largest < 0x1p-100f;
    const float factor = tiny ? 0 : __fdiv_rn(QUERY_TOP, largest), half_factor = factor * (QUERY_HALF_TOP / QUERY_TOP);
    int hi_sum = 0, sum = 0, lower = 0;
#pragma unroll
    for (int i = 0; i < E; i += 2) { /* two at a time: a store each */
        const int x = __float2int_rn(__fmul_rn(y[i], factor)), z = __float2int_rn(__fmul_rn(y[i + 1], factor));
        const int x_hi = (x + 128) >> 8, z_hi = (z + 128) >> 8;
        *(uint16_t *)&s.q[r][0][lane * E + i] = (uint16_t)prmt(x_hi, z_hi, 0x40);
        *(uint16_t *)&s.q[r][1][lane * E + i] = (uint16_t)prmt(x, z, 0x40); /* x - 256 x_hi has the same lowest byte */
        hi_sum += x_hi + z_hi;
        sum += x + z;
        lower += abs(x - 256 * x_hi) + abs(z - 256 * z_hi);
        const float2 numbers = make_float2(y[i] * half_factor, y[i + 1] * half_factor);
        const __half2 upper = __floats2half2_rn(numbers.x, numbers.y);
        *(__half2 *)&s.half[r][0][lane * E + i] = upper;
        *(__half2 *)&s.half[r][1][lane * E + i] =
            __floats2half2_rn(numbers.x - __low2float(upper), numbers.y - __high2float(upper));
    }
    row.sum[0] = warp_sum(hi_sum);
    row.sum[1] = warp_sum(sum) - 256 * row.sum[0];
    row.step = tiny ? 0 : __fdiv_rn(largest, QUERY_TOP);
    row.factor = __fmul_rn(__fmul_rn(__fmul_rn(row.step, S::PL == 1 ? 256.f : 1.f), a.c.k_step), a.unit);
    row.limit = S::PL == 1 ? aura_limit_of_row(a.limit_of_call, row.step, warp_sum(lower)) : AURA_NO_LIMIT;
    row.top = largest * a.unit / QUERY_HALF_TOP;
    if (lane == 0)
        s.row[r] = row;
}

/* ---- softmax ------------------------------------------------------------------------------------------------------- */

/* The row of the block that is the r-th of this lane in panel nt. */
template <class S>
__device__ __forceinline__ int lane_row(int nt, int r)
{
    const int t = threadIdx.x % 4;
    return nt * S::COLUMN_ROWS + (S::RL == 1 ? t : 2 * t + r);
}

/* A row that is not there never has a new maximum. */
template <class S>
__device__ __forceinline__ void begin_running(running<S> &run, const row_info *rows)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            run.m[nt][r] = rows[lane_row<S>(nt, r)].there ? NOTHING : -NOTHING;
            run.l[nt][r] = run.offsets[nt][r] = 0;
#pragma unroll
            for (int j = 0; j < S::PARTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run.o[nt][r][j][i] = 0;
        }
}

/* Over the eight lanes that have the same rows. */
__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

__device__ __forceinline__ float row_sum(float x)
{
    x += __shfl_xor_sync(~0u, x, 4);
    x += __shfl_xor_sync(~0u, x, 8);
    return x + __shfl_xor_sync(~0u, x, 16);
}

__device__ __forceinline__ bool row_any(bool x)
{
    return __ballot_sync(~0u, x) & 0x11111111u << threadIdx.x % 4;
}

/* Four weights, and their sum. */
__device__ __forceinline__ float weights_of(float (&p)[4], const float (&logit)[4], float m)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        p[i] = exp2_approx(logit[i] - m);
    return (p[0] + p[1]) + (p[2] + p[3]);
}

/* For those rows alone of which some lane is above: what a row becomes depends on no other row. */
template <class S>
__device__ __forceinline__ void follow_maximum(const float (&s)[S::NT][S::RL][4], const bool (&above)[S::NT][S::RL],
                                               running<S> &run)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            float m = fmaxf(fmaxf(s[nt][r][0], s[nt][r][1]), fmaxf(s[nt][r][2], s[nt][r][3]));
            m = fmaxf(row_max(m), run.m[nt][r]);
            m = row_any(above[nt][r]) ? m : run.m[nt][r];
            const float keep = exp2_approx(run.m[nt][r] - m);
            run.m[nt][r] = m;
            run.l[nt][r] *= keep;
            run.offsets[nt][r] *= keep;
#pragma unroll
            for (int j = 0; j < S::PARTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run.o[nt][r][j][i] *= keep;
        }
}

/* Logits become weights 2^(logit - m). m is not always the maximum: it moves only when the weights of a lane add up to more
 * than `most`, so that rescaling is rare. Weights may then be above 1, which does no harm. The sums are needed anyway, so that
 * the test costs one comparison per row; where m moves, the weights are computed again. */
template <class S>
__device__ __forceinline__ void weigh(float (&s)[S::NT][S::RL][4], running<S> &run)
{
    const float most = 64;
    float p[S::NT][S::RL][4], sum[S::NT][S::RL];
    bool above[S::NT][S::RL], any = false;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            sum[nt][r] = weights_of(p[nt][r], s[nt][r], run.m[nt][r]);
            any |= above[nt][r] = sum[nt][r] > most;
        }
    if (__any_sync(~0u, any)) {
        follow_maximum<S>(s, above, run);
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
            for (int r = 0; r < S::RL; r++)
                sum[nt][r] = weights_of(p[nt][r], s[nt][r], run.m[nt][r]);
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            run.l[nt][r] += sum[nt][r];
#pragma unroll
            for (int i = 0; i < 4; i++)
                s[nt][r][i] = p[nt][r][i];
        }
}

/* ---- a fixed cut --------------------------------------------------------------------------------------------------- */

/* The partial of a warp, to a place of the workspace. */
template <class S>
__device__ __forceinline__ void keep_partial(const struct dev_attend &a, const running<S> &run, uint32_t partial)
{
    const int gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const size_t row = (size_t)partial * S::ROWS + lane_row<S>(nt, r);
#pragma unroll
            for (int j = 0; j < S::PARTS; j++) {
                const float *o = run.o[nt][r][j];
                __stcg((float4 *)&a.partial[row * S::D + 32 * j + 4 * gl], make_float4(o[0], o[1], o[2], o[3]));
            }
            if (gl == 0)
                __stcg(&a.partial_ml[row], make_float2(run.m[nt][r], run.l[nt][r]));
        }
    __syncwarp(); /* maxima and sums are read by other lanes */
}

/* What comes next is joined with what the warp has. */
template <class S>
__device__ __forceinline__ void join_running(running<S> &run, const running<S> &next)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const struct joint j = joint_of(run.m[nt][r], next.m[nt][r]);
            run.m[nt][r] = j.m, run.l[nt][r] = joined(j, run.l[nt][r], next.l[nt][r]);
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run.o[nt][r][part][i] = joined(j, run.o[nt][r][part][i], next.o[nt][r][part][i]);
        }
}

template <class S>
__device__ __forceinline__ void load_partial(const struct dev_attend &a, running<S> &run, uint32_t partial)
{
    const int gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const size_t row = (size_t)partial * S::ROWS + lane_row<S>(nt, r);
            const float2 ml = __ldcg(&a.partial_ml[row]);
            run.m[nt][r] = ml.x, run.l[nt][r] = ml.y;
#pragma unroll
            for (int part = 0; part < S::PARTS; part++) {
                const float4 x = __ldcg((const float4 *)&a.partial[row * S::D + 32 * part + 4 * gl]);
                float *o = run.o[nt][r][part];
                o[0] = x.x, o[1] = x.y, o[2] = x.z, o[3] = x.w;
            }
        }
}

/* Some numbers of a row come before what the warp has of them. */
template <class S>
__device__ __forceinline__ void join_before(const struct joint &j, float (&o)[4], const float4 &x)
{
    o[0] = joined(j, x.x, o[0]), o[1] = joined(j, x.y, o[1]);
    o[2] = joined(j, x.z, o[2]), o[3] = joined(j, x.w, o[3]);
}

/* What is in a place of the workspace comes before what the warp has. In the middle of a loop there are few
 * registers. */
template <class S>
__device__ __forceinline__ void join_partial(const struct dev_attend &a, running<S> &run, uint32_t partial)
{
    const int gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const size_t row = (size_t)partial * S::ROWS + lane_row<S>(nt, r);
            const float2 ml = __ldcg(&a.partial_ml[row]);
            const struct joint j = joint_of(ml.x, run.m[nt][r]);
            run.m[nt][r] = j.m, run.l[nt][r] = joined(j, ml.y, run.l[nt][r]);
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
                join_before<S>(j, run.o[nt][r][part],
                               __ldcg((const float4 *)&a.partial[row * S::D + 32 * part + 4 * gl]));
        }
    __syncwarp(); /* all have read what is written next */
}

/* The same for what the warp keeps for itself for a while: in its part of a merge_space, where it has one. A kernel whose
 * tiles are there passes no_space, and takes place `partial` of the workspace. */
struct no_space {};

template <class S>
__device__ __forceinline__ void keep_near(const struct dev_attend &a, const running<S> &run, uint32_t partial,
                                          no_space &)
{
    keep_partial<S>(a, run, partial);
}

template <class S>
__device__ __forceinline__ void join_near(const struct dev_attend &a, running<S> &run, uint32_t partial, no_space &)
{
    join_partial<S>(a, run, partial);
}

template <class S, class SPACE>
__device__ __forceinline__ void keep_near(const struct dev_attend &, const running<S> &run, uint32_t, SPACE &s)
{
    const int gl = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const int row = lane_row<S>(nt, r);
#pragma unroll
            for (int j = 0; j < S::PARTS; j++) {
                const float *o = run.o[nt][r][j];
                *(float4 *)&s.o[warp][row][32 * j + 4 * gl] = make_float4(o[0], o[1], o[2], o[3]);
            }
            if (gl == 0)
                s.ml[warp][row] = make_float2(run.m[nt][r], run.l[nt][r]);
        }
    __syncwarp();
}

template <class S, class SPACE>
__device__ __forceinline__ void join_near(const struct dev_attend &, running<S> &run, uint32_t, SPACE &s)
{
    const int gl = threadIdx.x % 32 / 4, warp = threadIdx.x / 32;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const int row = lane_row<S>(nt, r);
            const float2 ml = s.ml[warp][row];
            const struct joint j = joint_of(ml.x, run.m[nt][r]);
            run.m[nt][r] = j.m, run.l[nt][r] = joined(j, ml.y, run.l[nt][r]);
#pragma unroll
            for (int part = 0; part < S::PARTS; part++)
                join_before<S>(j, run.o[nt][r][part], *(const float4 *)&s.o[warp][row][32 * part + 4 * gl]);
        }
    __syncwarp();
}

/* Sums of lanes become those of rows. */
template <class S>
__device__ __forceinline__ void sum_rows(running<S> &run)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
            run.l[nt][r] = row_sum(run.l[nt][r]);
}

/* A visit of f16 rows: number `visit` of rows_visit_of(). */
template <class S>
__device__ __forceinline__ void keep_visit(const struct dev_attend &a, const struct split &g, running<S> &run, uint32_t visit)
{
    sum_rows<S>(run);
    keep_partial<S>(a, run, g.first_partial + visit + (visit || !g.reach.pinned_end ? g.reach.nodes : 0));
}

/* The leaves that a node of level 1 has in this unit, where tasks are leaves. */
__device__ __forceinline__ struct node_range leaves_of(const struct reach &r, uint32_t node)
{
    return {max(node * AURA_CUT_FAN, r.node), min(node * AURA_CUT_FAN + AURA_CUT_FAN, r.node + r.nodes)};
}

/* The leaf that ends with tile `at`, of tiles [begin, end) of the warp: whole tasks. It is joined with those before it of
 * its node, and, where that is the last of the node, the node with those before it. Nodes of level 1 come often: they are
 * kept near. Where tasks are leaves, the warp joins those of a node of which it has all. */
template <class S, class SPACE>
__device__ __forceinline__ void keep_leaf(const struct dev_attend &a, const struct split &g, running<S> &run, uint32_t begin,
                                          uint32_t at, uint32_t end, SPACE &near)
{
    const struct reach &r = g.reach;
    const uint32_t scratch = a.scratch + (blockIdx.x * S::WARPS + threadIdx.x / 32) * (AURA_CUT_LEVELS - 1);
    const uint32_t nodes = begin < r.kept_first + r.kept ? 0 - r.kept_node : r.kept_nodes - r.node;
    const uint32_t task = g.first_partial + (r.pinned_end ? 1 : 0) + nodes; /* that of node 0 */
    uint32_t node = (at - 1) / AURA_CUT_LEAF, first = begin / AURA_CUT_LEAF;
    const struct node_range leaves = leaves_of(r, node / AURA_CUT_FAN);
    sum_rows<S>(run);
    if (r.level || (!r.kept_nodes && leaves.from >= first && (leaves.to - 1) * AURA_CUT_LEAF < end)) {
        if (node % AURA_CUT_FAN && node != first)
            join_near<S>(a, run, scratch, near);
        if (node % AURA_CUT_FAN != AURA_CUT_FAN - 1 && at != end) {
            keep_near<S>(a, run, scratch, near);
            return;
        }
        node = r.level ? node / AURA_CUT_FAN : leaves.from;
        first /= AURA_CUT_FAN;
    }
#pragma unroll 1
    for (uint32_t level = 2; level <= r.level; level++) {
        const uint32_t to = level == r.level ? task + node / AURA_CUT_FAN : scratch + level - 1;
        if (node % AURA_CUT_FAN && node != first)
            join_partial<S>(a, run, to);
        if (node % AURA_CUT_FAN != AURA_CUT_FAN - 1 && at != end) {
            keep_partial<S>(a, run, to);
            return;
        }
        node /= AURA_CUT_FAN, first /= AURA_CUT_FAN;
    }
    keep_partial<S>(a, run, task + node);
}

/* What is in n places side by side comes after what the warp has. As many are asked for at a time as there are
 * registers. */
template <class S>
__device__ __forceinline__ void join_places(const struct dev_attend &a, running<S> &run, uint32_t place, uint32_t n)
{
    constexpr uint32_t AHEAD = S::NT * S::RL * S::PARTS <= 4 ? AURA_CUT_FAN - 1 : 1;
#pragma unroll 1
    for (uint32_t first = 0; first < n; first += AHEAD) {
        running<S> next[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            load_partial<S>(a, next[i], place + min(first + i, n - 1));
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++)
            if (first + i < n)
                join_running<S>(run, next[i]);
    }
}

/* Nodes of level 1 that are complete now that the warp has done these leaves. Those of which it had all leaves it has
 * joined. Of the others, the warp that brings the last leaf joins all; they are the first and the last, so that what is
 * complete is side by side too. */
template <class S>
__device__ __forceinline__ struct node_range join_leaves(const struct dev_attend &a, const struct split &g,
                                                         const struct node_range &done)
{
    struct node_range joined = {~0u, 0};
#pragma unroll 1
    for (uint32_t node = done.from / AURA_CUT_FAN; node * AURA_CUT_FAN < done.to; node++) {
        const struct node_range leaves = leaves_of(g.reach, node);
        const uint32_t n = leaves.to - leaves.from, own = min(leaves.to, done.to) - max(leaves.from, done.from);
        const uint32_t place = place_of_node(g, 1, node);
        if (!all_are_there(&a.node_counter[place], own, n))
            continue;
        if (own < n) {
            running<S> run;
            load_partial<S>(a, run, place);
            join_places<S>(a, run, place + 1, n - 1);
            __syncwarp(); /* all have read what is written next */
            keep_partial<S>(a, run, place);
        }
        joined.from = min(joined.from, node), joined.to = node + 1;
    }
    return joined;
}

/* Nodes of `size` tiles that tiles [tile, end) are of. */
__device__ __forceinline__ struct node_range nodes_of(uint32_t tile, uint32_t end, uint32_t size)
{
    return {tile / size, tile < end ? (end - 1) / size + 1 : tile / size};
}

/* The warp has left the partials of its tasks: so many visits, those of tiles, those of kept tiles. Leaves become nodes of level
 * 1 by whoever brings the last, but for where tiles are kept apart; the block that brings the last of the unit joins all. */
template <class S, class FINISH, class SPACE, class SHARE>
__device__ __forceinline__ void join_tasks(const struct dev_attend &a, const struct split &g, const row_info *rows,
                                           SPACE &s, const SHARE &w)
{
    const struct reach &r = g.reach;
    const bool apart = FINISH::FROM_SHARED && r.kept_nodes;
    const struct node_range nodes = nodes_to_join(r);
    const uint32_t all = (r.pinned_end ? 1 : 0) + r.open_visits + (apart ? r.nodes : nodes.to - nodes.from);
    const struct node_range kept = apart ? nodes_of(w.kept, w.kept_end, aura_cut_node(r.level)) : node_range{0, 0};
    struct node_range done = nodes_of(w.tile, w.tile_end, aura_cut_node(r.level));
    if (r.level == 0 && !apart && done.from < done.to)
        done = join_leaves<S>(a, g, done);
    const uint32_t own = w.rows_end - w.rows + kept.to - kept.from + (done.from < done.to ? done.to - done.from : 0);
    if (!__syncthreads_or(all == 0 || (own && all_are_there(&a.counter[g.unit], own, all))))
        return;
    finish_tasks<S::D, S::ROWS, S::WARPS, FINISH>(a, g, nodes, rows, s);
}

#endif
