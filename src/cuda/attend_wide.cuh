/* Attention of several queries straight from the tiles, by products of whole warp groups (sm_90a). Units, visits and splits are
 * those of split.cuh; the queries' integers, scores and merge those of the fused kernel.
 *
 *     S^T[64 tokens][N rows]      keys (bytes, registers) x queries (bytes, shared memory)         exact integers
 *     O^T[64 channels][N rows] += values (f16, registers) x weights (f16, shared memory)           f32, no scale of a tile
 *
 * So codes are unpacked once for all N rows of a block. A group of four warps takes a step at a time: half a page, four tiles,
 * which the copy engine brings. Each warp scores a tile of its own, then unpacks D / 4 channels of all four. Weights go to shared
 * memory in the order in which words of values have their tokens: column 8 i + g of a tile is token 4 g + i. The one barrier of a
 * step also votes whether a maximum was left too far behind; then the weights of the step are made again.
 *
 * A weight is 2^(logit - m) times the scale of its value times `up`, a power of two that keeps such products within f16. A logit is
 * fmaf(fmaf(integer, scale, -WHOLE scale), factor, bias - m): the integer is exact, what follows has two roundings. m moves
 * for those rows alone that were left behind, so that what a row becomes depends on no other row.
 *
 * f16 rows of pinned and open tokens come last, eight rows to a warp, as in the fused kernel. */
#ifndef AURA_CUDA_ATTEND_WIDE_CUH
#define AURA_CUDA_ATTEND_WIDE_CUH

#include "attend.cuh"
#include "words_sm90.cuh"

enum { WIDE_STEP = 4, WIDE_SHARED = 227 * 1024 }; /* tiles of a step; bytes that a block can have */

constexpr uint32_t wide_tile_space(int kind, int d)
{
    return ((uint32_t)(kind * d / 16 + 1) * 128 + 1023) / 1024 * 1024;
}

/* Weights of the groups, and before them queries. */
constexpr uint32_t wide_weight_bytes(int d, int n, int groups)
{
    return (uint32_t)(n * 6 * (d + 8) > groups * 512 * n ? n * 6 * (d + 8) : groups * 512 * n);
}

/* Tiles, and after them what the groups merge. */
constexpr uint32_t wide_stage_bytes(int kind, int d, int n, int groups, int stages)
{
    const uint32_t tiles = (uint32_t)(groups * stages * WIDE_STEP) * wide_tile_space(kind, d);
    const uint32_t merge = (uint32_t)((groups + 1) * n * (d + 10) * 4 + n * 8 + 1024);
    return tiles > merge ? tiles : merge;
}

constexpr uint32_t wide_bytes(int kind, int d, int n, int groups, int stages)
{
    return (uint32_t)(2 * (d > 128 ? 2 : 1) * n * 128 + n * (76 + groups * 44) + groups * 4 * (d + 32)) + 4096 +
           wide_stage_bytes(kind, d, n, groups, stages) + wide_weight_bytes(d, n, groups);
}

/* As many groups as registers and shared memory allow, then as many stages. */
constexpr int wide_groups(int kind, int d, int n)
{
    return wide_bytes(kind, d, n, 2, 2) <= WIDE_SHARED ? 2 : 1;
}

constexpr int wide_stages(int kind, int d, int n)
{
    for (int stages = 4; stages > 2; stages--)
        if (wide_bytes(kind, d, n, wide_groups(kind, d, n), stages) <= WIDE_SHARED)
            return stages;
    return 2;
}

template <int KIND, int D, int N_>
struct wide_shape : shape<KIND, D, (KIND <= 5 ? 1 : 2), 2, 1, 4> {
    static constexpr int N = N_, ROWS = N_, MB = D / 64, GROUPS = wide_groups(KIND, D, N_), STAGES = wide_stages(KIND, D, N_);
    static constexpr int WARPS = 4 * GROUPS, THREADS = 128 * GROUPS;
    static constexpr uint32_t TILE_ROWS = KIND * D / 16 + 1, TILE_SPACE = wide_tile_space(KIND, D);
    static constexpr int Q_GROUPS = D > 128 ? 2 : 1;
    static constexpr bool EARLY = N < 64; /* values of two tiles are unpacked while keys are multiplied */
    static constexpr bool OPTIONS = N < 64; /* it takes softcap, ALiBi and masks: 64 rows leave no registers for them */
    using PANEL = shape<KIND, D, (KIND <= 5 ? 1 : 2), 2, 1, 4>; /* eight rows of a warp */
};

template <class S>
struct wide_space {
    union {
        alignas(1024) uint8_t stage[S::GROUPS][S::STAGES][WIDE_STEP][S::TILE_SPACE];
        merge_space<S::D, S::N, S::GROUPS + 1> merge; /* comes after */
    };
    alignas(1024) uint8_t weight[wide_weight_bytes(S::D, S::N, S::GROUPS)]; /* [group][2 buffers][tokens / 64][row][128]; before,
                                                                             * the queries */
    alignas(1024) uint8_t q[2][S::Q_GROUPS][S::N][128];       /* [plane], as an operand */
    row_info row[S::N];
    alignas(16) float factor[S::N];
    alignas(16) int begin[S::N];                              /* of the sums */
    alignas(16) float m[S::GROUPS][S::N], bias[S::GROUPS][2][S::N]; /* bias: of even and odd pages */
    float most[S::GROUPS][4][S::N], sums[S::GROUPS][4][S::N]; /* of warps */
    float v_most[S::GROUPS][4], up[S::GROUPS];
    alignas(16) uint8_t reference[S::GROUPS][4][S::D + 16];   /* of the page that comes next; a copy for every warp */
    uint32_t page[PAGES_NEAR], first_page;
    struct split split;
    uint64_t full[S::GROUPS][S::STAGES];
};

template <class S>
using wide_merge = merge_space<S::D, S::N, S::GROUPS + 1>;

/* The queries in plain order, where weights will be. */
template <class S>
struct wide_queries {
    int8_t (*q)[2][S::D + 8];
    __half (*half)[2][S::D + 8];
    row_info *row;
};

template <class S>
__device__ __forceinline__ wide_queries<S> wide_queries_of(wide_space<S> &s)
{
    __half(*half)[2][S::D + 8] = (__half(*)[2][S::D + 8])s.weight;
    return {(int8_t(*)[2][S::D + 8])(half + S::N), half, s.row};
}

/* The same in all lanes, which the compiler then knows: products may be begun in branches that depend on it. */
__device__ __forceinline__ uint32_t uniform(uint32_t x)
{
    return __shfl_sync(~0u, x, 0);
}

/* Where a group is. */
template <class S>
struct wide_walk {
    uint32_t group, step, end;        /* steps [step, end) */
    uint32_t from, to;                /* tokens of the split */
    uint32_t plain, plain_end;        /* steps in which every row sees every token, and all are codes */
    uint32_t asked;                   /* steps before this one are on their way */
    uint32_t stage, parity, ask_stage;
};

template <class S>
struct wide_running {
    float o[S::MB][S::N / 2], l[S::N / 4];
};

/* Of the step: sums of this lane's tokens 4 g ... 4 g + 3 of its warp's tile, for rows 8 j + 2 t and the next: integers whose bits
 * are a float WHOLE above them, or floats, kw being 0 then. */
template <class S>
struct wide_scores {
    int sum[2][S::N / 2];
    float ks[4], kw[4], vs[4];
};

/* ---- what comes before the tiles -------------------------------------------------------------------------------------- */

/* A place in an operand of bytes: word of columns 4 t ... of step `step`; half 1: those 16 further on. */
template <class S>
__device__ __forceinline__ uint32_t *query_word(wide_space<S> &s, int plane, uint32_t row, int step, int t, int half)
{
    const uint32_t byte = 32 * (step % 4) + 16 * half + 4 * t;
    return (uint32_t *)(s.q[plane][step / 4][row] + ((byte / 16) ^ row % 8) * 16 + byte % 16);
}

template <class S>
__device__ __forceinline__ void wide_rows(wide_space<S> &s, const struct dev_attend &a, const struct split &g)
{
    wide_queries<S> to = wide_queries_of(s);
    constexpr int AT_ONCE = 2; /* rows that are asked for before one is waited for */
    asked_row<S> q[AT_ONCE];
#pragma unroll 1
    for (int first = threadIdx.x / 32; first < S::N; first += AT_ONCE * S::WARPS) {
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            ask_row<S>(q[i], a, g, min(first + i * S::WARPS, S::N - 1));
#pragma unroll
        for (int i = 0; i < AT_ONCE; i++)
            if (first + i * S::WARPS < S::N)
                prepare_row<S>(to, a, q[i], first + i * S::WARPS);
    }
}

/* The queries in the order of the keys' octets, and what is known of a row. */
template <class S>
__device__ __forceinline__ void wide_operands(wide_space<S> &s)
{
    using K = keys<S::KIND, S::D>;
    const wide_queries<S> from = wide_queries_of(s);
    for (int i = threadIdx.x; i < 2 * S::N * S::STEPS * 4; i += S::THREADS) {
        const int t = i % 4, step = i / 4 % S::STEPS, row = i / 4 / S::STEPS % S::N, plane = i / 4 / S::STEPS / S::N;
        const uint2 x = *(const uint2 *)&from.q[row][plane][K::run_of(step, t) * 32 + K::octet_of(step, t) * 8];
        uint32_t b[2];
        in_octet_order<S::KIND>(b, x.x, x.y);
        *query_word(s, plane, row, step, t, 0) = b[0];
        *query_word(s, plane, row, step, t, 1) = b[1];
    }
    for (int n = threadIdx.x; n < S::N; n += S::THREADS) {
        s.factor[n] = s.row[n].there ? s.row[n].factor : 0;
        s.begin[n] = (S::PL == 1 ? WHOLE_BITS : 0) - code<S::KIND>::offset * s.row[n].sum[0];
        for (int group = 0; group < S::GROUPS; group++)
            s.m[group][n] = s.row[n].there ? NOTHING : -NOTHING;
    }
    if (threadIdx.x < S::GROUPS)
        s.up[threadIdx.x] = 0x1p60f;
    fence_products();
}

/* By warp 0 of the group: asks for a step. */
template <class S>
__device__ __forceinline__ void ask_step(wide_space<S> &s, const struct dev_wide &w, const struct split &g, wide_walk<S> &at,
                                         uint32_t page)
{
    const uint32_t lane = threadIdx.x % 32;
    uint64_t *full = &s.full[at.group][at.ask_stage];
    if (lane == 0)
        meeting_expect(full, WIDE_STEP * S::TILE_BYTES);
    __syncwarp();
    if (lane < WIDE_STEP)
        copy_tile(s.stage[at.group][at.ask_stage][lane], &w.map, (at.asked % 2 * WIDE_STEP + lane) * S::TILE_ROWS,
                  page * w.a.c.kv_heads + g.head, full);
    at.ask_stage = at.ask_stage + 1 == S::STAGES ? 0 : at.ask_stage + 1;
    at.asked++;
}

template <class S>
__device__ __forceinline__ void ask_reference_of(wide_space<S> &s, const struct dev_attend &a, const struct split &g,
                                                 const wide_walk<S> &at, uint32_t step)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    if (!a.c.has_reference || lane > S::D / 16)
        return;
    const uint8_t *head = a.c.pages + (size_t)page_of(s, a, g, step * WIDE_STEP) * a.c.page_bytes +
                          (size_t)g.head * a.c.head_bytes;
    copy_ahead(&s.reference[at.group][warp][16 * lane], head + S::REFERENCE_AT + 16 * lane);
}

/* The bias of the page of `step`, whose reference has been asked for: eight rows at a time, those of this warp. */
template <class S>
__device__ __forceinline__ void make_bias(wide_space<S> &s, const struct dev_attend &a, const wide_walk<S> &at, uint32_t step)
{
    using K = keys<S::KIND, S::D>;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const uint8_t *reference = s.reference[at.group][warp];
    float *bias = s.bias[at.group][step / 2 % 2];
    copies_arrived();
    __syncwarp();
    for (int j = warp; j < S::N / 8; j += 4) {
        int sum[2][4] = {};
#pragma unroll
        for (int k = 0; k < S::STEPS && a.c.has_reference; k++) {
            const uint2 x = *(const uint2 *)(reference + K::run_of(k, t) * 32 + K::octet_of(k, t) * 8);
            uint32_t r[2];
            in_octet_order<S::KIND>(r, x.x, x.y);
#pragma unroll
            for (int plane = 0; plane < 2; plane++)
                mma_s8s8(sum[plane], r[0], r[0], r[1], r[1], *query_word(s, plane, 8 * j + gl, k, t, 0),
                         *query_word(s, plane, 8 * j + gl, k, t, 1), sum[plane]);
        }
        const float scale = a.c.has_reference ? __half2float(*(const __half *)(reference + S::D)) : 0;
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int n = 8 * j + 2 * t + e;
            const float factor = __fmul_rn(__fmul_rn(__fmul_rn(s.row[n].step, scale), a.c.reference_step), a.unit);
            if (gl == 0)
                bias[n] = a.c.has_reference && s.row[n].there ? __fmul_rn((float)(sum[0][e] * 256 + sum[1][e]), factor) : 0;
        }
    }
    __syncwarp();
}

/* ---- score ------------------------------------------------------------------------------------------------------------- */

/* 16 bytes of a row of a tile in shared memory. */
__device__ __forceinline__ uint4 load_chunk(const uint8_t *tile, uint32_t row, uint32_t chunk)
{
    return load_shared16(tile + row * 128 + (chunk ^ row % 8) * 16);
}

template <class S>
__device__ __forceinline__ void spread_scales(wide_scores<S> &x, uint2 k, uint2 v, float up)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.ks[i] = half_of(k, i);
        x.kw[i] = S::PL == 1 ? -WHOLE * x.ks[i] : 0;
        x.vs[i] = half_of(v, i) * up;
    }
}

template <class S>
__device__ __forceinline__ void load_keys(uint4 (&w)[keys<S::KIND, S::D>::n], const uint8_t *tile)
{
    using K = keys<S::KIND, S::D>;
    const uint32_t gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < K::n; i++)
        w[i] = load_chunk(tile, K::lane_word(K::is_high(i), t) + K::step_word(i), gl);
}

/* The two halves of a table give each level once; the other half gives 0. */
template <class S>
__device__ __forceinline__ uint32_t joined(const eight &e, int i)
{
    return code<S::KIND>::halves == 2 ? e.r[0][i] + e.r[1][i] : e.r[0][i];
}

template <class S>
__device__ __forceinline__ void key_operand(uint32_t (&a)[4], const uint4 (&w)[keys<S::KIND, S::D>::n], int step, int pair,
                                            const uint32_t (&table)[4])
{
    const int t = threadIdx.x % 4;
    const eight x = keys<S::KIND, S::D>::decode(w, step, 2 * pair, t, table),
                y = keys<S::KIND, S::D>::decode(w, step, 2 * pair + 1, t, table);
    a[0] = joined<S>(x, 0), a[1] = joined<S>(y, 0), a[2] = joined<S>(x, 1), a[3] = joined<S>(y, 1);
}

template <class S>
__device__ __forceinline__ void product_keys(int (&sum)[S::N / 2], const uint32_t (&a)[4], uint64_t q)
{
    if (S::KIND == 8)
        product_s8s8(sum, a, q);
    else
        product_u8s8(sum, a, q);
}

/* Asks for the sums of the upper plane. */
template <class S>
__device__ __forceinline__ void ask_sums(wide_scores<S> &x, const uint32_t (&a)[2][S::STEPS][4], const wide_space<S> &s)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) {
        const uint2 b = *(const uint2 *)&s.begin[8 * j + 2 * t];
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            x.sum[pair][4 * j] = x.sum[pair][4 * j + 2] = (int)b.x;
            x.sum[pair][4 * j + 1] = x.sum[pair][4 * j + 3] = (int)b.y;
        }
    }
    const uint64_t q = operand_at(s.q[0]);
    sums_are_there(x.sum[0]), sums_are_there(x.sum[1]);
    products_begin();
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int step = 0; step < S::STEPS; step++)
            product_keys<S>(x.sum[pair], a[pair][step], q + step / 4 * (S::N * 8) + step % 4 * 2);
    products_grouped();
}

/* Two planes: the lower one is added to 256 times the upper one. */
template <class S>
__device__ __forceinline__ void add_lower(wide_scores<S> &x, const uint32_t (&a)[2][S::STEPS][4], const wide_space<S> &s)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int offset = code<S::KIND>::offset * s.row[8 * j + 2 * t + e].sum[1];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.sum[i / 2][4 * j + i % 2 * 2 + e] = x.sum[i / 2][4 * j + i % 2 * 2 + e] * 256 - offset;
        }
    const uint64_t q = operand_at(s.q[1]);
    sums_are_there(x.sum[0]), sums_are_there(x.sum[1]);
    products_begin();
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int step = 0; step < S::STEPS; step++)
            product_keys<S>(x.sum[pair], a[pair][step], q + step / 4 * (S::N * 8) + step % 4 * 2);
    products_grouped();
    products_but_last_done<0>();
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int i = 0; i < S::N / 2; i++)
            x.sum[pair][i] = (int)__float_as_uint((float)x.sum[pair][i]);
}

/* One plane: sums of keys whose scale is above the limit of a row become those of two, and all become floats. */
template <class S>
__device__ __forceinline__ void sums_of_both(wide_scores<S> &x, wide_space<S> &s, const uint8_t *tile, uint2 scales,
                                          const uint32_t (&table)[4])
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint4 w[keys<S::KIND, S::D>::n];
    load_keys<S>(w, tile);
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            int lower[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                lower[i] = -code<S::KIND>::offset * s.row[8 * j + 2 * t + i % 2].sum[1];
#pragma unroll
            for (int step = 0; step < S::STEPS; step++) {
                uint32_t a[4];
                key_operand<S>(a, w, step, pair, table);
                mma_u8s8(lower, a[0], a[1], a[2], a[3], *query_word(s, 1, 8 * j + gl, step, t, 0),
                         *query_word(s, 1, 8 * j + gl, step, t, 1), lower);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int token = 2 * pair + i / 2;
                const float whole = __int_as_float(x.sum[pair][4 * j + i]) - WHOLE;
                const bool both = aura_takes_both(low_half(scales, token) >> 16 * (token % 2), s.row[8 * j + 2 * t + i % 2].limit);
                x.sum[pair][4 * j + i] = (int)__float_as_uint(both ? fmaf((float)lower[i], 0x1p-8f, whole) : whole);
            }
        }
#pragma unroll
    for (int i = 0; i < 4; i++)
        x.kw[i] = 0;
}

/* ---- softmax ------------------------------------------------------------------------------------------------------------ */

template <class S>
__device__ __forceinline__ float sum_times_scale(const wide_scores<S> &x, int j, int i, int e)
{
    return fmaf(__int_as_float(x.sum[i / 2][4 * j + i % 2 * 2 + e]), x.ks[i], x.kw[i]);
}

/* What a step has: tokens that all rows see; others too; options, or a trace. There is code for each, so that the common ones are
 * short: skipping what is not wanted, for every logit, took 35 us of a short call of 64 rows, all spent on fetching code. */
enum { WIDE_PLAIN, WIDE_EDGE, WIDE_OPTIONS };

/* The logit less m, before what a row does not see is taken out. */
template <class S, int MODE>
__device__ __forceinline__ float logit_of(const wide_scores<S> &x, const wide_space<S> &s, const struct dev_attend &a, int j, int i,
                                          int e, float factor, float bias, float m, uint32_t token)
{
    const float y = sum_times_scale<S>(x, j, i, e);
    if (MODE != WIDE_OPTIONS || !a.options)
        return fmaf(y, factor, bias - m);
    const row_info &row = s.row[8 * j + 2 * (threadIdx.x % 4) + e];
    return row.there ? apply_options(a, row, s.split.job, s.split.reach.len, token, fmaf(y, factor, bias)) - m : -INFINITY;
}

template <class S>
__device__ __forceinline__ bool is_seen(const wide_space<S> &s, const struct dev_attend &a, const wide_walk<S> &at, int j, int e,
                                        uint32_t token)
{
    const row_info &row = s.row[8 * j + 2 * (threadIdx.x % 4) + e];
    return token >= max(max(row.begin, a.c.pinned), at.from) && token < min(min(row.end, s.split.reach.closed), at.to);
}

/* For checks. */
template <class S>
__device__ __forceinline__ void trace_step(const wide_scores<S> &x, const wide_space<S> &s, const struct dev_attend &a,
                                        const wide_walk<S> &at, uint32_t first)
{
    const float *bias = s.bias[at.group][at.step / 2 % 2];
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int n = 8 * j + 2 * (threadIdx.x % 4) + e;
                const row_info &row = s.row[n];
                const size_t to = (((size_t)s.split.job * a.queries + row.query) * a.c.q_heads + row.head) * a.trace_tokens;
                if (row.there && first + i < a.trace_tokens && first + i >= at.from && first + i < at.to)
                    a.trace[to + first + i] = fmaf(sum_times_scale<S>(x, j, i, e), s.factor[n], bias[n]);
            }
}

/* Weights to shared memory, their sums to ls. Returns whether some are too large. */
template <class S, int MODE>
__device__ __forceinline__ bool store_weights(float (&ls)[S::N / 4], const wide_scores<S> &x, wide_space<S> &s,
                                              const struct dev_attend &a, const wide_walk<S> &at, uint8_t *to)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const float *bias = s.bias[at.group][at.step / 2 % 2], *m = s.m[at.group];
    const uint32_t first = at.step * (WIDE_STEP * AURA_TILE) + AURA_TILE * warp + 4 * gl;
    bool above = fmaxf(fmaxf(x.vs[0], x.vs[1]), fmaxf(x.vs[2], x.vs[3])) > 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) {
        const float2 f = *(const float2 *)&s.factor[8 * j + 2 * t], b = *(const float2 *)&bias[8 * j + 2 * t],
                     low = *(const float2 *)&m[8 * j + 2 * t];
        float sum[2] = {0, 0};
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float p[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                p[e] = exp2_approx(logit_of<S, MODE>(x, s, a, j, i, e, e ? f.y : f.x, e ? b.y : b.x, e ? low.y : low.x, first + i));
                if (MODE != WIDE_PLAIN)
                    p[e] = is_seen<S>(s, a, at, j, e, first + i) ? p[e] : 0;
                sum[e] += p[e];
                p[e] *= x.vs[i];
            }
            const __half2 two = __floats2half2_rn(p[0], p[1]);
            r[i] = *(const uint32_t *)&two;
        }
        ls[2 * j] = sum[0], ls[2 * j + 1] = sum[1];
        above |= fmaxf(sum[0], sum[1]) > 1024;
        store_matrices_turned(to + j * 1024, r);
    }
    return above;
}

/* The largest logits of the step become maxima of rows that were left behind, and what there is is scaled. */
template <class S, int MODE>
__device__ __forceinline__ void follow_maxima(bool edge, wide_running<S> &run, const float (&ls)[S::N / 4], wide_scores<S> &x,
                                              wide_space<S> &s, const struct dev_attend &a, const wide_walk<S> &at)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4, thread = threadIdx.x % 128;
    const float *bias = s.bias[at.group][at.step / 2 % 2];
    const uint32_t first = at.step * (WIDE_STEP * AURA_TILE) + AURA_TILE * warp + 4 * gl;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int n = 8 * j + 2 * t + e;
            float most = NOTHING;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float y = logit_of<S, MODE>(x, s, a, j, i, e, s.factor[n], bias[n], 0, first + i);
                most = !edge || is_seen<S>(s, a, at, j, e, first + i) ? fmaxf(most, y) : most;
            }
            most = row_max(most);
            const float sum = row_max(ls[2 * j + e]);
            if (gl == 0)
                s.most[at.group][warp][n] = most, s.sums[at.group][warp][n] = sum;
        }
    float v_most = row_max(fmaxf(fmaxf(x.vs[0], x.vs[1]), fmaxf(x.vs[2], x.vs[3])));
    if (thread % 32 == 0)
        s.v_most[at.group][warp] = v_most;
    group_meets(at.group);
    float mine = 0, up = s.up[at.group];
    v_most = fmaxf(fmaxf(s.v_most[at.group][0], s.v_most[at.group][1]), fmaxf(s.v_most[at.group][2], s.v_most[at.group][3]));
    /* v_most has `up` in it: below 2, and a power of two */
    const float less = v_most > 4 ? __uint_as_float((254u - (__float_as_uint(fminf(v_most, 0x1p100f)) >> 23)) << 23) : 1;
#pragma unroll
    for (int j = 0; j <= S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const bool is_mine = j == S::N / 8; /* the row whose maximum this thread keeps */
            const int n = is_mine ? min(thread, S::N - 1) : 8 * j + 2 * t + e;
            const float (*most)[S::N] = s.most[at.group], (*sums)[S::N] = s.sums[at.group];
            const float sum = fmaxf(fmaxf(sums[0][n], sums[1][n]), fmaxf(sums[2][n], sums[3][n])), old = s.m[at.group][n];
            const float largest = fmaxf(fmaxf(most[0][n], most[1][n]), fmaxf(most[2][n], most[3][n]));
            const float next = sum > 1024 ? fmaxf(largest - 4, old) : old;
            if (is_mine) {
                mine = next;
                continue;
            }
            const float keep = exp2_approx(old - next);
            run.l[2 * (j % (S::N / 8)) + e] *= keep;
#pragma unroll
            for (int i = 0; i < 2 * S::MB; i++)
                run.o[i / 2][4 * (j % (S::N / 8)) + i % 2 * 2 + e] *= keep * less;
        }
    group_meets(at.group);
    if (thread < S::N)
        s.m[at.group][thread] = mine;
    if (thread == 0)
        s.up[at.group] = up * less;
#pragma unroll
    for (int i = 0; i < 4; i++)
        x.vs[i] *= less;
    group_meets(at.group);
}

/* ---- value -------------------------------------------------------------------------------------------------------------- */

/* Values of a tile: the channels of this warp, as rows of A. */
template <class S>
struct wide_values {
    uint32_t a[S::MB][2][4];
};

/* Eight levels as f16, pairs of tokens (0, 4) (1, 5) (2, 6) (3, 7) of the octet: 0x6400 and a byte below are 1024 and the byte. */
template <class S>
__device__ __forceinline__ void levels_of(uint32_t (&h)[4], const eight &e)
{
    constexpr uint32_t offset = S::KIND == 8 ? 128 : code<S::KIND>::offset, zero = (0x6400 + offset) * 0x10001u;
    uint32_t b[2] = {joined<S>(e, 0), joined<S>(e, 1)};
    if (code<S::KIND>::natural) {
        const uint32_t first = b[0], second = b[1];
        b[0] = prmt(first, second, 0x5140), b[1] = prmt(first, second, 0x7362);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = S::KIND == 8 ? b[i / 2] ^ 0x80808080u : b[i / 2];
        const uint32_t x = prmt(byte, 0x64646464u, i % 2 ? 0x4342 : 0x4140);
        const __half2 y = __hsub2(*(const __half2 *)&x, *(const __half2 *)&zero);
        h[i] = *(const uint32_t *)&y;
    }
}

/* The words of these channels: parts of 32, one or two. */
template <class S>
struct wide_words {
    static constexpr int PARTS = (S::D + 127) / 128;
    uint4 w[PARTS][values<S::KIND, 32>::n];
};

template <class S>
__device__ __forceinline__ void load_values(wide_words<S> &to, const uint8_t *tile)
{
    using V = values<S::KIND, 32>;
    const uint32_t gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int half = 0; half < wide_words<S>::PARTS; half++) {
        const uint32_t part = S::D == 64 ? warp / 2 : warp + 4 * half;
#pragma unroll
        for (int i = 0; i < V::n; i++) {
            uint4 &w = to.w[half][i];
            w = load_chunk(tile, S::V_AT / 128 + V::lane_word(V::is_second(i), t) * (S::D / 32) + part, gl);
            if (S::D == 64 && warp % 2)
                w.x = w.z, w.y = w.w;
        }
    }
}

template <class S>
__device__ __forceinline__ void unpack_values(wide_values<S> &v, const wide_words<S> &from, const uint32_t (&table)[4])
{
    using V = values<S::KIND, 32>;
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < wide_words<S>::PARTS; half++) {
#pragma unroll
        for (int b = 0; b < (S::D == 64 ? 1 : 2); b++) {
            uint32_t x[4], y[4];
            levels_of<S>(x, V::decode(from.w[half], 0, 2 * b, t, table));
            levels_of<S>(y, V::decode(from.w[half], 0, 2 * b + 1, t, table));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t *a = v.a[2 * half + b][i];
                a[0] = x[2 * i], a[1] = y[2 * i], a[2] = x[2 * i + 1], a[3] = y[2 * i + 1];
            }
        }
    }
}

/* The channel of o[b][2 r ...]. */
template <class S>
__device__ __forceinline__ uint32_t channel_of(int b, int r)
{
    const uint32_t gl = threadIdx.x % 32 / 4, warp = threadIdx.x / 32 % 4;
    return S::D == 64 ? 32 * (warp / 2) + 4 * gl + 2 * (warp % 2) + r : 32 * (warp + 4 * (b / 2)) + 4 * gl + 2 * (b % 2) + r;
}

template <class S>
__device__ __forceinline__ void product_values(wide_running<S> &run, const wide_values<S> &v, uint64_t weights, int tile)
{
#pragma unroll
    for (int b = 0; b < S::MB; b++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            product_registers(run.o[b], v.a[b][i], weights + tile / 2 * (S::N * 8) + tile % 2 * 4 + 2 * i);
}

/* ---- a step ------------------------------------------------------------------------------------------------------------- */

/* Weights of the step are in shared memory, of rows whose maxima are not far behind. */
template <class S>
__device__ __forceinline__ void weigh_step(wide_running<S> &run, wide_scores<S> &x, wide_space<S> &s, const struct dev_attend &a,
                                           const wide_walk<S> &at, uint8_t *weights, bool edge)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint8_t *to = weights + (warp / 2 * S::N + lane % 8) * 128 + (((4 * warp + lane / 8) % 8) ^ lane % 8) * 16;
    float ls[S::N / 4];
    for (;;) {
        const bool options = S::OPTIONS && a.options;
        const bool above = !edge      ? store_weights<S, WIDE_PLAIN>(ls, x, s, a, at, to)
                           : !options ? store_weights<S, WIDE_EDGE>(ls, x, s, a, at, to)
                                      : store_weights<S, S::OPTIONS ? WIDE_OPTIONS : WIDE_EDGE>(ls, x, s, a, at, to);
        fence_products();
        if (!__any_sync(~0u, group_any(at.group, above)))
            break;
        if (options)
            follow_maxima<S, S::OPTIONS ? WIDE_OPTIONS : WIDE_EDGE>(edge, run, ls, x, s, a, at);
        else
            follow_maxima<S, WIDE_EDGE>(edge, run, ls, x, s, a, at);
    }
#pragma unroll
    for (int i = 0; i < S::N / 4; i++)
        run.l[i] += ls[i];
}

/* Scores of the step; its first two tiles of values are unpacked meanwhile. */
template <class S>
__device__ __forceinline__ void score_step(wide_scores<S> &x, wide_values<S> (&v)[2], wide_space<S> &s,
                                           const wide_walk<S> &at, const uint8_t (*tiles)[S::TILE_SPACE],
                                           const uint32_t (&table)[4], uint32_t limit)
{
    const uint32_t gl = threadIdx.x % 32 / 4, warp = threadIdx.x / 32 % 4, row = S::TILE_ROWS - 1;
    const uint8_t *tile = tiles[warp];
    uint32_t a[2][S::STEPS][4];
    uint4 w[keys<S::KIND, S::D>::n];
    wide_words<S> words[2];
    load_keys<S>(w, tile);
    const uint8_t *last = tile + row * 128 + gl % 2 * 8;
    const uint2 scales = load_shared8(last + ((gl / 2) ^ row % 8) * 16);
    const uint2 v_scales = load_shared8(last + ((4 + gl / 2) ^ row % 8) * 16);
    if (S::EARLY)
        load_values<S>(words[0], tiles[0]), load_values<S>(words[1], tiles[1]);
#pragma unroll
    for (int step = 0; step < S::STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
            key_operand<S>(a[pair][step], w, step, pair, table);
    ask_sums<S>(x, a, s);
    spread_scales<S>(x, scales, v_scales, s.up[at.group]);
    if (S::EARLY)
        unpack_values<S>(v[0], words[0], table), unpack_values<S>(v[1], words[1], table);
    products_but_last_done<0>();
    if (S::PL == 2)
        add_lower<S>(x, a, s);
    if (S::PL == 1 && has_scale_above(scales, limit))
        sums_of_both<S>(x, s, tile, scales, table);
}

/* Scales of values that are no codes may be anything: they become 0. */
template <class S>
__device__ __forceinline__ void clear_scales(wide_scores<S> &x, const wide_space<S> &s, const struct dev_attend &a,
                                             const wide_walk<S> &at)
{
    const uint32_t first = at.step * (WIDE_STEP * AURA_TILE) + threadIdx.x / 32 % 4 * AURA_TILE + threadIdx.x % 32 / 4 * 4;
#pragma unroll
    for (int i = 0; i < 4; i++)
        if (first + i < a.c.pinned || first + i >= s.split.reach.closed || first + i < at.from || first + i >= at.to)
            x.vs[i] = 0;
}

/* All steps of a group. */
template <class S>
__device__ __forceinline__ void attend_steps(wide_running<S> &run, wide_space<S> &s, const struct dev_wide &w, wide_walk<S> &at)
{
    const struct dev_attend &a = w.a;
    const struct split &g = s.split;
    const uint32_t warp = uniform(threadIdx.x / 32 % 4), begin = at.step;
    uint32_t table[4], limit = AURA_NO_LIMIT;
#pragma unroll
    for (int i = 0; i < 4; i++)
        table[i] = kept(a.c.k_table[i]);
    for (int n = threadIdx.x % 32; n < S::N; n += 32)
        limit = min(limit, s.row[n].there ? s.row[n].limit : (uint32_t)AURA_NO_LIMIT);
    for (int far = 16; far; far /= 2)
        limit = min(limit, __shfl_xor_sync(~0u, limit, far));
    ask_reference_of<S>(s, a, g, at, at.step);
    make_bias<S>(s, a, at, at.step);
    group_meets(at.group);
    ask_reference_of<S>(s, a, g, at, min((at.step / 2 + 1) * 2, at.end - 1));
    for (; at.step < at.end; at.step++) {
        wide_scores<S> x;
        wide_values<S> v[2];
        const uint8_t (*tiles)[S::TILE_SPACE] = s.stage[at.group][at.stage];
        uint8_t *weights = s.weight + (2 * at.group + (at.step - begin) % 2) * (S::N * 256);
        const bool edge = at.step < at.plain || at.step >= at.plain_end;
        meeting_wait(&s.full[at.group][at.stage], at.parity);
        score_step<S>(x, v, s, at, tiles, table, limit);
        if (edge)
            clear_scales<S>(x, s, a, at);
        if (edge && a.trace)
            trace_step<S>(x, s, a, at, at.step * (WIDE_STEP * AURA_TILE) + warp * AURA_TILE + threadIdx.x % 32 / 4 * 4);
        const bool turns = at.step % 2 && at.step + 1 < at.end; /* the next step is of another page */
        if (turns)
            make_bias<S>(s, a, at, at.step + 1);
        weigh_step<S>(run, x, s, a, at, weights, edge);
        if (warp == 0 && at.step > begin && at.asked < at.end) /* all are done with the step before */
            ask_step<S>(s, w, g, at, page_of(s, a, g, at.asked * WIDE_STEP));
        if (turns)
            ask_reference_of<S>(s, a, g, at, min(at.step + 3, at.end - 1));
        const uint64_t operand = operand_at(weights);
        wide_words<S> words[2];
        if (!S::EARLY) {
            load_values<S>(words[0], tiles[0]), load_values<S>(words[1], tiles[1]);
            unpack_values<S>(v[0], words[0], table), unpack_values<S>(v[1], words[1], table);
        }
        load_values<S>(words[0], tiles[2]), load_values<S>(words[1], tiles[3]);
        products_begin();
        product_values<S>(run, v[0], operand, 0), product_values<S>(run, v[1], operand, 1);
        products_grouped();
        wide_values<S> u[2];
        unpack_values<S>(u[0], words[0], table), unpack_values<S>(u[1], words[1], table);
        products_begin();
        product_values<S>(run, u[0], operand, 2), product_values<S>(run, u[1], operand, 3);
        products_grouped();
        products_but_last_done<0>();
        const bool around = ++at.stage == S::STAGES;
        at.stage = around ? 0 : at.stage, at.parity ^= around;
    }
}

/* ---- a split ------------------------------------------------------------------------------------------------------------ */

/* Where a cut between tiles is moved to: to whole steps, but for the ends of the unit. */
__device__ __forceinline__ uint32_t wide_cut(const struct reach &r, uint32_t tile)
{
    const uint32_t end = r.tile_first + r.tiles, whole = (tile + WIDE_STEP / 2) / WIDE_STEP * WIDE_STEP;
    return tile <= r.tile_first ? r.tile_first : tile >= end ? end : min(max(whole, r.tile_first), end);
}

/* The steps of this group. */
template <class S>
__device__ __forceinline__ void walk_of(wide_walk<S> &at, const struct split &g)
{
    const uint32_t in_rows = (g.reach.pinned_end ? 1 : 0) + g.reach.open_visits, groups = S::GROUPS;
    const uint32_t first = wide_cut(g.reach, g.reach.tile_first + max(g.first, in_rows) - in_rows);
    const uint32_t end = wide_cut(g.reach, g.reach.tile_first + max(g.first + g.n, in_rows) - in_rows);
    const uint32_t step = first / WIDE_STEP, steps = end > first ? (end + WIDE_STEP - 1) / WIDE_STEP - step : 0;
    at.from = first * AURA_TILE, at.to = end * AURA_TILE;
    at.step = at.asked = uniform(step + steps * at.group / groups);
    at.end = uniform(step + steps * (at.group + 1) / groups);
}

/* Steps in which every row sees every token; there are none with options or a trace. */
template <class S>
__device__ __forceinline__ void find_plain(wide_walk<S> &at, const wide_space<S> &s, const struct dev_attend &a)
{
    const struct split &g = s.split;
    const uint32_t tokens = WIDE_STEP * AURA_TILE, rows = queries_of_job(a, g.job) * a.c.ratio;
    const uint32_t last = rows > g.first_row ? min((uint32_t)S::N, rows - g.first_row) - 1 : 0; /* that is there */
    const uint32_t begin = max(max(a.c.pinned, s.row[last].begin), at.from), end = min(min(g.reach.closed, s.row[0].end), at.to);
    at.plain = uniform((begin + tokens - 1) / tokens);
    at.plain_end = uniform(a.options || a.trace ? 0 : end / tokens);
}

/* The numbers of the pages that the split reads. */
template <class S>
__device__ __forceinline__ void gather_wide_pages(wide_space<S> &s, const struct dev_attend &a, const struct split &g,
                                                  uint32_t first, uint32_t end)
{
    const uint32_t page = first / AURA_PAGE, pages = (g.reach.closed + AURA_PAGE - 1) / AURA_PAGE;
    for (uint32_t i = threadIdx.x; i < PAGES_NEAR && page + i < min((end + AURA_PAGE - 1) / AURA_PAGE, pages); i += S::THREADS)
        s.page[i] = a.c.table[(size_t)g.seq * a.c.table_stride + page + i];
    if (threadIdx.x == 0)
        s.first_page = page, s.split = g;
}

/* What a group has, to be merged. */
template <class S>
__device__ __forceinline__ void store_group(wide_space<S> &s, wide_merge<S> &to, const struct dev_attend &a, wide_running<S> &run,
                                            uint32_t group)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const float unit = a.c.v_step / s.up[group];
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int n = 8 * j + 2 * t + e;
            const float l = row_sum(run.l[2 * j + e]);
            if (gl == 0)
                s.sums[group][warp][n] = l;
#pragma unroll
            for (int b = 0; b < S::MB; b++)
                *(float2 *)&to.o[group][n][channel_of<S>(b, 0)] =
                    make_float2(run.o[b][4 * j + e] * unit, run.o[b][4 * j + 2 + e] * unit);
        }
    group_meets(group);
    const int n = threadIdx.x % 128;
    if (n < S::N) {
        const float (*l)[S::N] = s.sums[group];
        to.m[n][group] = s.m[group][n], to.l[n][group] = (l[0][n] + l[1][n]) + (l[2][n] + l[3][n]);
    }
}

/* f16 rows: eight rows of the block by a warp. */
template <class S>
__device__ __forceinline__ void attend_panels(wide_space<S> &s, wide_merge<S> &to, const struct dev_attend &a, uint32_t visit,
                                              uint32_t end)
{
    using P = typename S::PANEL;
    const struct split &g = s.split;
    const int gl = threadIdx.x % 32 / 4;
    const wide_queries<S> all = wide_queries_of(s);
    for (int first = threadIdx.x / 32 * 8; first < S::N; first += S::WARPS * 8) {
        const wide_queries<S> mine = {all.q + first, all.half + first, all.row + first};
        running<P> run;
        begin_running<P>(run, mine.row);
        for (uint32_t i = visit; i < end; i++)
            attend_rows<P>(mine, a, g, run, rows_visit_of(g.reach, i));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int n = first + lane_row<P>(0, r);
            const float l = row_sum(run.l[0][r]);
#pragma unroll
            for (int j = 0; j < P::PARTS; j++)
                *(float4 *)&to.o[S::GROUPS][n][32 * j + 4 * gl] =
                    make_float4(run.o[0][r][j][0], run.o[0][r][j][1], run.o[0][r][j][2], run.o[0][r][j][3]);
            if (gl == 0)
                to.m[n][S::GROUPS] = run.m[0][r], to.l[n][S::GROUPS] = l;
        }
    }
}

template <class S>
__device__ __forceinline__ void attend_wide_split(wide_space<S> &s, const struct dev_wide &w, const struct split &g,
                                                  wide_walk<S> &at)
{
    const struct dev_attend &a = w.a;
    const uint32_t in_rows = (g.reach.pinned_end ? 1 : 0) + g.reach.open_visits, visit = min(g.first, in_rows),
                   visit_end = max(min(g.first + g.n, in_rows), visit);
    walk_of<S>(at, g);
    if (threadIdx.x / 32 % 4 == 0)
        for (int i = 0; i < S::STAGES && at.asked < at.end; i++)
            ask_step<S>(s, w, g, at, a.c.table[(size_t)g.seq * a.c.table_stride + at.asked / 2]);
    gather_wide_pages<S>(s, a, g, at.from, at.to);
    wide_rows<S>(s, a, g);
    __syncthreads();
    wide_operands<S>(s);
    __syncthreads();
    find_plain<S>(at, s, a);
    wide_running<S> run = {};
    if (at.step < at.end)
        attend_steps<S>(run, s, w, at);
    at.asked = at.end, at.ask_stage = at.stage; /* as warp 0 has them */
    wide_merge<S> &merge = s.merge;
    __syncthreads(); /* tiles are read */
    if (visit < visit_end)
        wide_rows<S>(s, a, g);
    store_group<S>(s, merge, a, run, at.group);
    __syncthreads();
    attend_panels<S>(s, merge, a, visit, visit_end);
    __syncthreads();
    merge_split<S::D, S::N, S::GROUPS + 1, finish_rotated<S::D>, S::THREADS>(a, g, s.row, merge);
}

/* The body of the kernels. */
template <class S>
__device__ __forceinline__ void attend_wide(const struct dev_wide &w)
{
    const struct dev_attend &a = w.a;
    uint8_t *shared = dynamic_shared(); /* an offset from it, so that the compiler knows where this points */
    wide_space<S> &s = *(wide_space<S> *)(shared + (-(uintptr_t)shared & 1023));
    const struct piece p = piece_of((uint32_t *)(dynamic_shared() + sizeof s + 1024), a, 2 * WIDE_STEP * S::GROUPS);
    wide_walk<S> at = {};
    at.group = uniform(threadIdx.x / 128);
    if (threadIdx.x == 0)
        for (int i = 0; i < S::GROUPS * S::STAGES; i++)
            meeting_init(&s.full[i / S::STAGES][i % S::STAGES], 1);
    __syncthreads();
    uint32_t on;
    for (uint32_t i = uniform(p.at); i < uniform(p.end); i += on) {
        const struct split g = split_at(a, p, i, S::N, 2 * WIDE_STEP * S::GROUPS);
        on = uniform(g.on);
        if (uniform(g.idle))
            continue;
        attend_wide_split<S>(s, w, g, at);
        fence_products();
        __syncthreads();
    }
}

/* For rows of AURA_CUDA_WIDE. */
#define STAMP_WIDE(name, kind, dim, rows)                                                                    \
    extern "C" __global__ void __launch_bounds__(wide_shape<kind, dim, rows>::THREADS, 1)                    \
        aura_##name(const __grid_constant__ struct dev_wide w)                                               \
    {                                                                                                        \
        attend_wide<wide_shape<kind, dim, rows>>(w);                                                         \
    }
#define WIDE_ENTRY(name, kind, dim, rows)                                                                             \
    {#name, kind, dim, kind <= 5 ? 1 : 2, rows, (uint32_t)wide_shape<kind, dim, rows>::THREADS, (const void *)aura_##name, \
     (uint32_t)sizeof(wide_space<wide_shape<kind, dim, rows>>) + 1024, 1, wide_shape<kind, dim, rows>::TILE_ROWS,          \
     !wide_shape<kind, dim, rows>::OPTIONS},

#endif
