/* Attention straight from the tiles, fused: queries are rotated and quantised at the start of a segment, then
 *
 *     score ─ softmax ─ value      per tile of 32 tokens, one warp, no shared memory
 *     merge ─ undo                 by the last block of a group, in the same launch
 *
 * The rows of B of every mma are the rows of a KV head's group (query heads times query tokens). With RL = 1, column 2 r is the
 * upper byte of row r and column 2 r + 1 the lower one, which with one plane is used for the page's reference alone; lane
 * (g, t) then ends up with row t and tokens 4 g ... 4 g + 3. With RL = 2 and one plane, columns are eight rows and the lane
 * has rows 2 t and 2 t + 1. Those four tokens, packed into a word, are what other lanes need for the value product: a few
 * shuffles and no shared memory.
 *
 * The next tile is in flight while this one is worked on: see struct in_flight. */
#ifndef AURA_CUDA_ATTEND_CUH
#define AURA_CUDA_ATTEND_CUH

#include <float.h>

#include "merge.cuh"
#include "rotate.cuh"
#include "span.cuh"
#include "unpack.cuh"

/* Adding it to a float of up to 2^22 rounds to a whole number, which is then in the lower bits. */
#define WHOLE 12582912.f
#define WHOLE_BITS 0x4b400000

#define QUERY_HALF_TOP 1024.f /* largest coordinate of a query as two f16 */

template <int KIND_, int D_, int PL_, int RL_, int NT_, int WARPS_>
struct shape {
    static constexpr int KIND = KIND_, D = D_, PL = PL_, RL = RL_, NT = NT_, WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int COLUMN_ROWS = 4 * RL, ROWS = COLUMN_ROWS * NT;
    static constexpr int STEPS = D / 32, PARTS = D / 32;
    /* The layout of format.c for equal sides of this kind and dim; attend.cu compares. */
    static constexpr uint32_t V_AT = KIND * D * 4, K_SCALE_AT = 2 * V_AT, V_SCALE_AT = K_SCALE_AT + 64, TILE_BYTES = V_SCALE_AT + 64;
    static constexpr uint32_t REFERENCE_AT = AURA_PAGE_TILES * TILE_BYTES, REFERENCE_SCALE_AT = REFERENCE_AT + D;
};

enum { PAGES_NEAR = 256 }; /* page numbers of a segment that are kept in shared memory */

template <class S>
struct attend_space {
    alignas(16) int8_t q[S::ROWS][2][S::D];
    alignas(16) __half half[S::ROWS][2][S::D]; /* the query times QUERY_HALF_TOP / its largest coordinate, as a sum of two */
    row_info row[S::ROWS];
    uint32_t page[PAGES_NEAR], first_page;
    struct segment segment; /* here rather than in registers, of which there are none to spare */
    merge_space<S::D, S::ROWS, S::WARPS> merge;
};

/* What a warp has seen of its rows. */
template <class S>
struct running {
    float m[S::NT][S::RL], l[S::NT][S::RL];
    float o[S::NT][S::RL][S::PARTS][4];
};

/* ---- queries ------------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void prepare_row(attend_space<S> &s, const struct dev_attend &a, const struct segment &g, int r)
{
    constexpr int E = S::D / 32;
    const int lane = threadIdx.x % 32;
    row_info row;
    row.there = g.first_row + r < a.rows;
    const uint32_t index = row.there ? g.first_row + r : 0; /* a row too many looks at what another one may look at */
    row.query = index / a.c.ratio;
    row.head = g.head * a.c.ratio + index % a.c.ratio;
    int32_t end = a.not_causal ? (int32_t)g.span.len : (int32_t)(g.span.len + row.query + 1) - (int32_t)a.queries;
    row.end = row.there && end > 0 ? end : 0;
    row.begin = a.window && a.window < row.end ? row.end - a.window : 0;
    float y[E], largest = 0;
    const int64_t from = g.slot * a.q.seq + row.query * a.q.token + row.head * a.q.head + lane * E;
    bool bad = false;
#pragma unroll
    for (int i = 0; i < E; i++) {
        y[i] = row.there ? load_element(a.q.data, a.q.dtype, from + i) : 0;
        if (a.c.inverse_balance)
            y[i] = __fmul_rn(y[i], a.c.inverse_balance[(size_t)g.head * S::D + lane * E + i]);
    }
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
    largest = warp_max(largest);
    const bool tiny = largest < 0x1p-100f;
    const float factor = tiny ? 0 : __fdiv_rn(QUERY_TOP, largest), half_factor = tiny ? 0 : QUERY_HALF_TOP / largest;
    int hi_sum = 0, sum = 0;
#pragma unroll
    for (int i = 0; i < E; i++) {
        int q15 = __float2int_rn(__fmul_rn(y[i], factor)), hi = (q15 + 128) >> 8;
        s.q[r][0][lane * E + i] = (int8_t)hi;
        s.q[r][1][lane * E + i] = (int8_t)(q15 - 256 * hi);
        hi_sum += hi;
        sum += q15;
        float x = y[i] * half_factor;
        __half upper = __float2half_rn(x);
        s.half[r][0][lane * E + i] = upper;
        s.half[r][1][lane * E + i] = __float2half_rn(x - __half2float(upper));
    }
    row.sum[0] = warp_sum(hi_sum);
    row.sum[1] = warp_sum(sum) - 256 * row.sum[0];
    row.step = tiny ? 0 : __fdiv_rn(largest, QUERY_TOP);
    row.factor = __fmul_rn(__fmul_rn(__fmul_rn(row.step, S::PL == 1 ? 256.f : 1.f), a.c.k_step), a.unit);
    row.top = largest * a.unit / QUERY_HALF_TOP;
    if (lane == 0)
        s.row[r] = row;
}

/* ---- softmax ------------------------------------------------------------------------------------------------------- */

/* The row of a block that this lane has as its r-th in column tile nt. */
template <class S>
__device__ __forceinline__ int lane_row(int nt, int r)
{
    const int t = threadIdx.x % 4;
    return nt * S::COLUMN_ROWS + (S::RL == 1 ? t : 2 * t + r);
}

/* Over the eight lanes that have the same rows. */
__device__ __forceinline__ float row_max(float x)
{
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
    x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
    return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
}

/* Logits become weights 2^(logit - m). The maximum is followed only when it is left behind by more than `slack`: weights may
 * then be above 1, which nothing minds, and rescaling is rare. */
template <class S>
__device__ __forceinline__ void weigh(float (&s)[S::NT][S::RL][4], running<S> &run)
{
    const float slack = 4;
    bool above = false;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                above |= s[nt][r][i] > run.m[nt][r] + slack;
    if (__any_sync(~0u, above))
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
            for (int r = 0; r < S::RL; r++) {
                float m = fmaxf(fmaxf(s[nt][r][0], s[nt][r][1]), fmaxf(s[nt][r][2], s[nt][r][3]));
                m = fmaxf(row_max(m), run.m[nt][r]);
                float keep = exp2_approx(run.m[nt][r] - m);
                run.m[nt][r] = m;
                run.l[nt][r] *= keep;
#pragma unroll
                for (int j = 0; j < S::PARTS; j++)
#pragma unroll
                    for (int i = 0; i < 4; i++)
                        run.o[nt][r][j][i] *= keep;
            }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                s[nt][r][i] = exp2_approx(s[nt][r][i] - run.m[nt][r]);
                run.l[nt][r] += s[nt][r][i];
            }
}

/* ---- tokens that are kept in f16 ---------------------------------------------------------------------------------- */

/* Tokens [from, to) of the tile that begins at `first`. Queries and weights are sums of two f16, which is as good as f32 for
 * what follows. */
template <class S>
__device__ __forceinline__ void attend_rows(attend_space<S> &s, const struct dev_attend &a, const struct segment &g,
                                            running<S> &run, uint32_t first, uint32_t from, uint32_t to)
{
    const int lane = threadIdx.x % 32, gl = lane / 4, t = lane % 4;
    const size_t base = ((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows * S::D;
    const __half *k_rows = a.c.k_rows + base + t * 8, *v_rows = a.c.v_rows + base + 4 * gl;
    float c[S::NT][2][4] = {}, logit[S::NT][S::RL][4];
    uint32_t k_at[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        k_at[i] = row_in(a.c, first + 4 * gl + i, from, to) * S::D;
    constexpr int BATCH = S::PARTS < 4 ? S::PARTS : 4; /* parts that are loaded together */
#pragma unroll 1
    for (int done = 0; done < S::PARTS; done += BATCH) {
        uint4 k[BATCH][4];
#pragma unroll
        for (int part = 0; part < BATCH; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                k[part][i] = *(const uint4 *)(k_rows + k_at[i] + (done + part) * 32);
#pragma unroll
        for (int part = 0; part < BATCH; part++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 4 * gl + i;
                k[part][i] = token >= from && token < to ? k[part][i] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
                for (int plane = 0; plane < S::RL; plane++) {
                    const int row = nt * S::COLUMN_ROWS + (S::RL == 1 ? gl / 2 : gl);
                    uint4 q = *(const uint4 *)&s.half[row][S::RL == 1 ? gl % 2 : plane][(done + part) * 32 + t * 8];
#pragma unroll
                    for (int pair = 0; pair < 2; pair++) {
                        const uint4 &x = k[part][2 * pair], &y = k[part][2 * pair + 1];
                        mma_f16(c[nt][pair], x.x, y.x, x.y, y.y, q.x, q.y);
                        mma_f16(c[nt][pair], x.z, y.z, x.w, y.w, q.z, q.w);
                    }
                }
        }
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 4 * gl + i;
                const float *x = &c[nt][i / 2][2 * (i % 2)];
                float y = (S::RL == 1 ? x[0] + x[1] : x[r]) * row.top;
                if (a.options)
                    y = apply_options(a, row, g.slot, g.span.len, token, y);
                logit[nt][r][i] = token >= max(from, row.begin) && token < min(to, row.end) ? y : -INFINITY;
            }
        }
    weigh<S>(logit, run);
    uint32_t w[S::NT][S::RL][2][2]; /* [plane][pair of tokens] */
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const float x = logit[nt][r][2 * pair], y = logit[nt][r][2 * pair + 1];
                __half2 upper = __floats2half2_rn(x, y);
                __half2 lower = __floats2half2_rn(x - __low2float(upper), y - __high2float(upper));
                w[nt][r][0][pair] = *(uint32_t *)&upper;
                w[nt][r][1][pair] = *(uint32_t *)&lower;
            }
#pragma unroll
    for (int half = 0; half < 2; half++) { /* tokens 8 t + 4 half ... + 3 */
        uint32_t b[S::NT][S::RL][2];
        const int lane_from = (2 * t + half) * 4 + gl / 2;
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
            for (int plane = 0; plane < S::RL; plane++)
#pragma unroll
                for (int pair = 0; pair < 2; pair++) {
                    uint32_t even = __shfl_sync(~0u, S::RL == 1 ? w[nt][0][0][pair] : w[nt][0][plane][pair], lane_from);
                    uint32_t odd = __shfl_sync(~0u, S::RL == 1 ? w[nt][0][1][pair] : w[nt][S::RL - 1][plane][pair], lane_from);
                    b[nt][plane][pair] = gl % 2 ? odd : even;
                }
        uint32_t v_at[4];
        uint2 all[S::PARTS][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v_at[i] = row_in(a.c, first + 8 * t + 4 * half + i, from, to) * S::D;
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[part][i] = *(const uint2 *)(v_rows + v_at[i] + part * 32);
#pragma unroll
        for (int part = 0; part < S::PARTS; part++) {
            uint2 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 8 * t + 4 * half + i;
                v[i] = token >= from && token < to ? all[part][i] : make_uint2(0, 0);
            }
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++) {
                float x[2][4] = {};
#pragma unroll
                for (int plane = 0; plane < S::RL; plane++) {
                    const uint32_t *p = b[nt][plane];
                    mma_f16(x[0], prmt(v[0].x, v[1].x, 0x5410), prmt(v[0].x, v[1].x, 0x7632), prmt(v[2].x, v[3].x, 0x5410),
                            prmt(v[2].x, v[3].x, 0x7632), p[0], p[1]);
                    mma_f16(x[1], prmt(v[0].y, v[1].y, 0x5410), prmt(v[0].y, v[1].y, 0x7632), prmt(v[2].y, v[3].y, 0x5410),
                            prmt(v[2].y, v[3].y, 0x7632), p[0], p[1]);
                }
#pragma unroll
                for (int r = 0; r < S::RL; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float *y = &x[i / 2][2 * (i % 2)];
                        run.o[nt][r][part][i] += S::RL == 1 ? y[0] + y[1] : y[r];
                    }
            }
        }
    }
}

/* ---- tiles of codes ------------------------------------------------------------------------------------------------ */

/* The tile that a warp works on, or has asked for. The whole next tile is asked for as soon as this one is there: the compiler
 * counts all loads that cross the end of a loop together, so that waiting for one is waiting for all of them. Prefetching into the
 * second cache makes it slower: 91.7 us without at 8 x 32768 of k4v4, 95.6, 99.8 and 119.9 with 1, 3 and 6 tiles (H200, 2026-11-15). */
template <class S>
struct in_flight {
    uint4 k[keys<S::KIND, S::D>::n], v[values<S::KIND, S::D>::n];
    uint2 k_scale, v_scale; /* f16 of tokens 4 g ... 4 g + 3 */
};

/* Page numbers are read from shared memory, except in a segment of very many. */
template <class S>
__device__ __forceinline__ uint32_t page_of(const attend_space<S> &s, const struct dev_attend &a, const struct segment &g, uint32_t tile)
{
    const uint32_t page = tile / AURA_PAGE_TILES, near = page - s.first_page;
    return near < PAGES_NEAR ? s.page[near] : a.c.table[(size_t)g.seq * a.c.table_stride + page];
}

template <class S>
__device__ __forceinline__ const uint8_t *tile_of(const attend_space<S> &s, const struct dev_attend &a, const struct segment &g,
                                                  uint32_t tile)
{
    return a.c.pages + (size_t)page_of<S>(s, a, g, tile) * a.c.page_bytes + (size_t)g.head * a.c.head_bytes +
           tile % AURA_PAGE_TILES * S::TILE_BYTES;
}

/* From one tile to the next. */
template <class S>
__device__ __forceinline__ const uint8_t *next_tile_of(const uint8_t *at, const attend_space<S> &s, const struct dev_attend &a,
                                                       const struct segment &g, uint32_t next)
{
    return next % AURA_PAGE_TILES ? at + S::TILE_BYTES : tile_of<S>(s, a, g, next);
}

template <class S>
__device__ __forceinline__ void ask_keys(in_flight<S> &f, const uint8_t *from, uint32_t lane)
{
    using K = keys<S::KIND, S::D>;
    const int gl = lane / 4, t = lane % 4;
    const uint8_t *low = from + (K::lane_word(false, t) * 128 + gl * 16), *high = from + (K::lane_word(true, t) * 128 + gl * 16);
#pragma unroll
    for (int i = 0; i < K::n; i++)
        f.k[i] = load_once((K::is_high(i) ? high : low) + K::step_word(i) * 128);
    f.k_scale = *(const uint2 *)(from + gl * 8 + S::K_SCALE_AT);
}

template <class S>
__device__ __forceinline__ void ask_values(in_flight<S> &f, const uint8_t *from, uint32_t lane)
{
    using V = values<S::KIND, S::D>;
    const int gl = lane / 4, t = lane % 4;
    const uint8_t *first = from + (V::lane_word(false, t) * (S::D * 4) + gl * 16);
    const uint8_t *second = from + (V::lane_word(true, t) * (S::D * 4) + gl * 16);
#pragma unroll
    for (int i = 0; i < V::n; i++)
        f.v[i] = load_once((V::is_second(i) ? second : first) + S::V_AT + i / V::per_part * 128);
    f.v_scale = *(const uint2 *)(from + gl * 8 + S::V_SCALE_AT);
}

/* The columns of B that never change: queries in the order of the keys' groups, and what the sums begin with. */
template <class S>
struct columns {
    uint32_t q[S::NT][S::STEPS][2];
    int begin[S::NT][2];        /* -offset times the sum of the column's bytes */
    float factor[S::NT][S::RL], bias[S::NT][S::RL];
};

template <class S>
__device__ __forceinline__ void load_query(uint32_t (&b)[2], const attend_space<S> &s, int row, int plane, int step)
{
    using K = keys<S::KIND, S::D>;
    const int t = threadIdx.x % 4;
    const uint2 x = *(const uint2 *)&s.q[row][plane][K::run_of(step, t) * 32 + K::group_of(step, t) * 8];
    in_group_order<S::KIND>(b, x.x, x.y);
}

template <class S>
__device__ __forceinline__ void load_columns(columns<S> &c, const attend_space<S> &s)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
#pragma unroll
        for (int step = 0; step < S::STEPS; step++)
            load_query<S>(c.q[nt][step], s, nt * S::COLUMN_ROWS + (S::RL == 1 ? gl / 2 : gl), S::RL == 1 ? gl % 2 : 0, step);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int sum = S::RL == 1 ? s.row[nt * S::COLUMN_ROWS + t].sum[i] : s.row[nt * S::COLUMN_ROWS + 2 * t + i].sum[0];
            c.begin[nt][i] = (S::PL == 1 ? WHOLE_BITS : 0) - code<S::KIND>::offset * sum;
        }
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            c.factor[nt][r] = s.row[lane_row<S>(nt, r)].factor;
            c.bias[nt][r] = 0;
        }
    }
}

/* The reference of a page is one more key: all rows of A, so that every lane has its product. */
template <class S>
__device__ __forceinline__ void page_bias(columns<S> &c, const attend_space<S> &s, const struct dev_attend &a,
                                          const uint8_t *head)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const float scale = __half2float(*(const __half *)(head + S::REFERENCE_SCALE_AT));
    int sum[S::NT][S::RL][4] = {}; /* [planes where RL is 2] */
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
        const int at = keys<S::KIND, S::D>::run_of(step, t) * 32 + keys<S::KIND, S::D>::group_of(step, t) * 8;
        const uint2 x = *(const uint2 *)(head + S::REFERENCE_AT + at);
        uint32_t r[2];
        in_group_order<S::KIND>(r, x.x, x.y);
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++) {
            mma_s8s8(sum[nt][0], r[0], r[0], r[1], r[1], c.q[nt][step][0], c.q[nt][step][1]);
            if (S::RL == 2) {
                uint32_t lower[2];
                load_query<S>(lower, s, nt * S::COLUMN_ROWS + gl, 1, step);
                mma_s8s8(sum[nt][S::RL - 1], r[0], r[0], r[1], r[1], lower[0], lower[1]);
            }
        }
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const int product = S::RL == 1 ? sum[nt][0][0] * 256 + sum[nt][0][1] : sum[nt][0][r] * 256 + sum[nt][S::RL - 1][r];
            float factor = __fmul_rn(s.row[lane_row<S>(nt, r)].step, scale);
            factor = __fmul_rn(__fmul_rn(factor, a.c.reference_step), a.unit);
            c.bias[nt][r] = __fmul_rn((float)product, factor);
        }
}

/* (float) of the sum in an accumulator, whose first value was that of columns or of weights. */
template <class S>
__device__ __forceinline__ float sum_of(const int (&c)[4], int second, int r)
{
    if (S::PL == 1)
        return __int_as_float(c[2 * second + (S::RL == 1 ? 0 : r)]) - WHOLE;
    return (float)(c[2 * second] * 256 + c[2 * second + 1]);
}

template <class S>
__device__ __forceinline__ void score_tile(float (&logit)[S::NT][S::RL][4], const in_flight<S> &f, const columns<S> &c,
                                           const uint32_t (&table)[4])
{
    using K = keys<S::KIND, S::D>;
    const int t = threadIdx.x % 4;
    int sum[S::NT][2][4];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[nt][i / 4][i % 4] = c.begin[nt][i % 2];
#pragma unroll
    for (int step = 0; step < S::STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            eight x = K::decode(f.k, step, 2 * pair, t, table), y = K::decode(f.k, step, 2 * pair + 1, t, table);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
                mma_codes<S::KIND, false>(sum[nt][pair], x, y, c.q[nt][step]);
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float scale = half_of(f.k_scale, i);
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
            for (int r = 0; r < S::RL; r++)
                logit[nt][r][i] = __fadd_rn(__fmul_rn(sum_of<S>(sum[nt][i / 2], i % 2, r), __fmul_rn(scale, c.factor[nt][r])),
                                            c.bias[nt][r]);
    }
}

/* For checks: the logits as they are, since their bits are promised. */
template <class S>
__device__ __forceinline__ void trace_logits(const float (&logit)[S::NT][S::RL][4], const attend_space<S> &s,
                                             const struct dev_attend &a, const struct segment &g, uint32_t first)
{
    const uint32_t token = first + threadIdx.x % 32 / 4 * 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
            const size_t at = (((size_t)g.slot * a.queries + row.query) * a.c.q_heads + row.head) * a.trace_tokens + token;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row.there && token + i < a.trace_tokens)
                    a.trace[at + i] = logit[nt][r][i];
        }
}

/* What options do, and -inf in the columns that a row may not see or that hold no code: by index. The scale of such a value may
 * be anything, and becomes 0. */
template <class S>
__device__ __forceinline__ void hide_columns(float (&logit)[S::NT][S::RL][4], in_flight<S> &f, const attend_space<S> &s,
                                             const struct dev_attend &a, const struct segment &g, uint32_t first)
{
    const int gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t token = first + 4 * gl + i, keep = i % 2 ? 0x0000ffffu : 0xffff0000u;
        const bool coded = token >= a.c.pinned && token < g.span.closed;
        (i < 2 ? f.v_scale.x : f.v_scale.y) &= coded ? ~0u : keep;
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
            const uint32_t begin = max(row.begin, a.c.pinned), end = min(row.end, g.span.closed);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 4 * gl + i;
                if (a.options)
                    logit[nt][r][i] = apply_options(a, row, g.slot, g.span.len, token, logit[nt][r][i]);
                if (token < begin || token >= end)
                    logit[nt][r][i] = -INFINITY;
            }
        }
}

/* Weights times value scales, as bytes: the two columns of each column tile that this lane has, four tokens in a word. */
template <class S>
struct weights {
    uint32_t byte[S::NT][2];
    float factor[S::NT][S::RL];
};

__device__ __forceinline__ uint32_t bytes_of(const float (&x)[4], int byte)
{
    const uint32_t two = byte ? 0x0051 : 0x0040;
    return prmt(prmt(__float_as_uint(x[0]), __float_as_uint(x[1]), two), prmt(__float_as_uint(x[2]), __float_as_uint(x[3]), two),
                0x5410);
}

template <class S>
__device__ __forceinline__ void round_weights(weights<S> &w, const float (&p)[S::NT][S::RL][4], const in_flight<S> &f,
                                              float step)
{
    const float most = S::PL == 1 ? 255.f : 65280.f;
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i] = half_of(f.v_scale, i);
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            float x[4], top;
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = p[nt][r][i] * scale[i];
            top = row_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3])));
            const float to_integer = top >= 0x1p-100f ? __fdividef(most, top) : 0;
            w.factor[nt][r] = top >= 0x1p-100f ? top * (1 / most) * step : 0;
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = fmaf(x[i], to_integer, WHOLE);
            w.byte[nt][S::RL == 1 ? 0 : r] = bytes_of(x, S::PL == 1 ? 0 : 1);
            if (S::RL == 1)
                w.byte[nt][1] = S::PL == 1 ? 0 : bytes_of(x, 0);
        }
}

template <class S>
__device__ __forceinline__ void value_tile(running<S> &run, const weights<S> &w, const in_flight<S> &f,
                                           const uint32_t (&table)[4])
{
    using V = values<S::KIND, S::D>;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, from = 8 * t + gl / 2;
    uint32_t b[S::NT][2];
    int begin[S::NT][2];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        uint32_t tokens[2];
#pragma unroll
        for (int four = 0; four < 2; four++) { /* of the eight tokens 8 t ..., lanes 2 t and 2 t + 1 have four each */
            uint32_t even = __shfl_sync(~0u, w.byte[nt][0], from + 4 * four);
            tokens[four] = even;
            if (S::PL == 2 || S::RL == 2) {
                uint32_t odd = __shfl_sync(~0u, w.byte[nt][1], from + 4 * four);
                tokens[four] = gl % 2 ? odd : even;
            }
        }
        in_group_order<S::KIND>(b[nt], tokens[0], tokens[1]);
        begin[nt][0] = begin[nt][1] = S::PL == 1 ? WHOLE_BITS : 0;
        if (code<S::KIND>::offset) {
            uint32_t sum = __dp4a(w.byte[nt][0], 0x01010101u, 0u) + (__dp4a(w.byte[nt][1], 0x01010101u, 0u) << 16);
            sum += __shfl_xor_sync(~0u, sum, 4);
            sum += __shfl_xor_sync(~0u, sum, 8);
            sum += __shfl_xor_sync(~0u, sum, 16);
            begin[nt][0] -= code<S::KIND>::offset * (int)(sum & 0xffff);
            begin[nt][1] -= code<S::KIND>::offset * (int)(sum >> 16);
        }
    }
#pragma unroll
    for (int j = 0; j < S::PARTS; j++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            eight x = V::decode(f.v, j, 2 * pair, t, table), y = V::decode(f.v, j, 2 * pair + 1, t, table);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++) {
                int sum[4] = {begin[nt][0], begin[nt][1], begin[nt][0], begin[nt][1]};
                mma_codes<S::KIND, true>(sum, x, y, b[nt]);
#pragma unroll
                for (int r = 0; r < S::RL; r++)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        run.o[nt][r][j][2 * pair + i] =
                            fmaf(sum_of<S>(sum, i, r), w.factor[nt][r], run.o[nt][r][j][2 * pair + i]);
            }
        }
}

/* Tiles [tile, end). */
template <class S>
__device__ __forceinline__ void attend_tiles(attend_space<S> &s, const struct dev_attend &a, const struct segment &g,
                                             running<S> &run, uint32_t tile, uint32_t end)
{
    columns<S> c;
    in_flight<S> f;
    uint32_t table[4], lane;
    asm volatile("mov.u32 %0, %%laneid;" : "=r"(lane)); /* so that it is kept, and not asked for again and again */
    const uint8_t *at = tile_of<S>(s, a, g, tile);
    ask_keys<S>(f, at, lane);
    ask_values<S>(f, at, lane);
#pragma unroll
    for (int i = 0; i < 4; i++)
        table[i] = a.c.k_table[i]; /* of both sides */
    load_columns<S>(c, s);
    uint32_t all_begin = a.c.pinned, all_end = g.span.closed; /* codes that all rows see */
    for (int r = 0; r < S::ROWS && s.row[r].there; r++) {
        all_begin = max(all_begin, s.row[r].begin);
        all_end = min(all_end, s.row[r].end);
    }
    if (a.c.has_reference)
        page_bias<S>(c, s, a, at - tile % AURA_PAGE_TILES * S::TILE_BYTES);
    for (; tile < end; tile++) {
        float logit[S::NT][S::RL][4];
        weights<S> w;
        in_flight<S> now = f;
        const bool more = tile + 1 < end, new_page = (tile + 1) % AURA_PAGE_TILES == 0;
        if (more) {
            at = next_tile_of<S>(at, s, a, g, tile + 1);
            ask_keys<S>(f, at, lane);
            ask_values<S>(f, at, lane);
        }
        score_tile<S>(logit, now, c, table);
        const uint32_t token = tile * AURA_TILE;
        if (a.trace)
            trace_logits<S>(logit, s, a, g, token);
        if (a.options || token < all_begin || token + AURA_TILE > all_end)
            hide_columns<S>(logit, now, s, a, g, token);
        weigh<S>(logit, run);
        round_weights<S>(w, logit, now, a.c.v_step);
        value_tile<S>(run, w, now, table);
        if (more && new_page && a.c.has_reference)
            page_bias<S>(c, s, a, at);
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void store_running(attend_space<S> &s, running<S> &run)
{
    const int warp = threadIdx.x / 32, gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const int row = lane_row<S>(nt, r);
            float l = run.l[nt][r];
            l += __shfl_xor_sync(~0u, l, 4);
            l += __shfl_xor_sync(~0u, l, 8);
            l += __shfl_xor_sync(~0u, l, 16);
#pragma unroll
            for (int j = 0; j < S::PARTS; j++) {
                const float *o = run.o[nt][r][j];
                *(float4 *)&s.merge.o[warp][row][32 * j + 4 * gl] = make_float4(o[0], o[1], o[2], o[3]);
            }
            if (gl == 0)
                s.merge.m[warp][row] = run.m[nt][r], s.merge.l[warp][row] = l;
        }
}

/* Which tokens an item that is kept in rows has, in which tile. */
struct rows_item {
    uint32_t first, from, to;
};

__device__ __forceinline__ struct rows_item rows_item_of(const struct span &s, uint32_t item)
{
    const uint32_t open = (s.open_first / AURA_TILE + item - (s.pinned_end ? 1 : 0)) * AURA_TILE;
    if (s.pinned_end && item == 0)
        return {0, 0, s.pinned_end};
    return {open, max(open, s.open_first), min(open + AURA_TILE, s.len)};
}

template <class S>
__device__ __forceinline__ void attend_segment(attend_space<S> &s, const struct dev_attend &a, const struct segment &g)
{
    const int warp = threadIdx.x / 32;
    const uint32_t rows_items = (g.span.pinned_end ? 1 : 0) + g.span.open_items;
    uint32_t item = g.first + g.n * warp / S::WARPS, end = g.first + g.n * (warp + 1) / S::WARPS;
    const uint32_t items = rows_items + g.span.tiles;
    end = min(end, items); /* an empty group has an item with nothing in it */
    uint32_t tile = max(item, rows_items) - rows_items + g.span.tile_first, tile_end = tile;
    if (end > rows_items && end > item)
        tile_end = end - rows_items + g.span.tile_first;
    const uint32_t first_page = (max(g.first, rows_items) - rows_items + g.span.tile_first) / AURA_PAGE_TILES;
    const uint32_t pages = (g.span.closed + AURA_PAGE - 1) / AURA_PAGE; /* of the sequence that have codes */
    for (uint32_t i = threadIdx.x; i < min(g.n / AURA_PAGE_TILES + 2, (uint32_t)PAGES_NEAR) && first_page + i < pages; i += S::THREADS)
        s.page[i] = a.c.table[(size_t)g.seq * a.c.table_stride + first_page + i];
    if (threadIdx.x == 0)
        s.first_page = first_page;
    for (int r = warp; r < S::ROWS; r += S::WARPS)
        prepare_row<S>(s, a, g, r);
    __syncthreads();
    running<S> run;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            run.m[nt][r] = NOTHING;
            run.l[nt][r] = 0;
#pragma unroll
            for (int j = 0; j < S::PARTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run.o[nt][r][j][i] = 0;
        }
    for (; item < min(end, rows_items); item++) {
        const struct rows_item rows = rows_item_of(g.span, item);
        attend_rows<S>(s, a, g, run, rows.first, rows.from, rows.to);
    }
    if (tile < tile_end)
        attend_tiles<S>(s, a, g, run, tile, tile_end);
    store_running<S>(s, run);
    __syncthreads();
    merge_segment<S::D, S::ROWS, S::WARPS>(a, g, s.row, s.merge);
    __syncthreads();
}

template <class S, int BLOCKS>
__global__ void __launch_bounds__(S::THREADS, BLOCKS) attend_fused(const __grid_constant__ struct dev_attend a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    attend_space<S> &s = *(attend_space<S> *)shared;
    uint32_t *prefix = (uint32_t *)(shared + sizeof(attend_space<S>));
    span_prefix(prefix, a);
    const uint32_t total = prefix[a.n_seqs], per = max((total + gridDim.x - 1) / gridDim.x, (uint32_t)S::WARPS);
    uint32_t at = blockIdx.x * per;
    const uint32_t end = min(total, at + per);
    while (at < end) {
        if (threadIdx.x == 0)
            s.segment = segment_at(a, prefix, at, end, per, S::ROWS);
        __syncthreads();
        at += s.segment.n;
        attend_segment<S>(s, a, s.segment);
    }
}

/* Warps of a block, and blocks on a multiprocessor: as many as leave a whole tile twice in registers. Spilling anything costs more
 * than warps are worth: at 8 x 32768, D 128, two blocks of 8 / one of 12 / one of 8 take 92 / 84 / 91 us with 4 bits, 88 / 85 / 92
 * with 3, 163 / 96 / 99 with 5, 194 / 114 / 110 with 6, 243 / 176 / 136 with 8 (H200, 2026-11-15). */
constexpr int fused_warps(int kind, int dim, int column_rows)
{
    return column_rows == 1 && dim == 128 && kind <= 5 ? 12 : 8;
}

constexpr int fused_blocks(int kind, int dim, int column_rows)
{
    return column_rows == 1 && dim == 64 && kind <= 4 ? 2 : 1;
}

template <int KIND, int D, int PL, int RL, int NT>
constexpr attend_kernel fused_kernel()
{
    constexpr int blocks = fused_blocks(KIND, D, NT * RL);
    using S = shape<KIND, D, PL, RL, NT, fused_warps(KIND, D, NT * RL)>;
    static_assert(S::TILE_BYTES % 64 == 0 && D % 64 == 0, "the layout of a page");
    return {KIND, D, PL, (uint32_t)S::ROWS, (uint32_t)S::THREADS, (const void *)attend_fused<S, blocks>,
            (uint32_t)sizeof(attend_space<S>), blocks};
}

#endif
