/* Attention over tiles of codes, as products of bytes: score, softmax, value. */
#ifndef AURA_CUDA_ATTEND_TILES_CUH
#define AURA_CUDA_ATTEND_TILES_CUH

#include "attend_state.cuh"

/* A tile in registers: the one that a warp works on, or the next one on its way. The loads of the whole next tile start as soon
 * as this one is there: the compiler counts all loads that cross the end of a loop together, so that a wait for one is a wait
 * for all. A prefetch into the second cache makes it slower: k4v4, 8 x 32768 takes 91.7 us without, and 95.6, 99.8 and 119.9
 * with 1, 3 and 6 tiles (H200, 2026-11-15). */
template <class S>
struct in_flight {
    uint4 k[keys<S::K_KIND, S::D>::n], v[values<S::V_KIND, S::D>::n];
    uint2 k_scale, v_scale; /* f16 of tokens 4 g ... 4 g + 3 */
};

/* The tile that a warp works on, as it is decoded from. Once it is taken, the next one can be asked for. */
template <class S>
struct at_hand {
    typename keys<S::K_KIND, S::D>::ready k;
    typename values<S::V_KIND, S::D>::ready v;
    uint2 k_scale, v_scale;

    __device__ __forceinline__ void take(const in_flight<S> &f, attend_space<S> &s)
    {
        if constexpr (code<S::V_KIND>::trellis) {
            auto &staged = s.staged[threadIdx.x / 32];
            staged.put(f.k[0], f.v[0]);
            k.take(f.k, staged);
            v.take(f.v, staged);
        } else {
            k.take(f.k);
            v.take(f.v);
        }
        k_scale = f.k_scale, v_scale = f.v_scale;
    }
};

/* Page numbers are in shared memory; a split that has more than PAGES_NEAR pages reads the others from the table. */
template <class SPACE>
__device__ __forceinline__ uint32_t page_of(const SPACE &s, const struct dev_attend &a, const struct split &g, uint32_t tile)
{
    const uint32_t page = tile / AURA_PAGE_TILES, near = page - s.first_page;
    return near < PAGES_NEAR ? s.page[near] : a.c.table[(size_t)g.seq * a.c.table_stride + page];
}

template <class S>
__device__ __forceinline__ const uint8_t *tile_of(const attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                                  uint32_t tile)
{
    return a.c.pages + (size_t)page_of(s, a, g, tile) * a.c.page_bytes + (size_t)g.head * a.c.head_bytes +
           tile % AURA_PAGE_TILES * S::TILE_BYTES;
}

/* Where tile `next` is, from `at`, the tile before it. */
template <class S>
__device__ __forceinline__ const uint8_t *next_tile_of(const uint8_t *at, const attend_space<S> &s, const struct dev_attend &a,
                                                       const struct split &g, uint32_t next)
{
    return next % AURA_PAGE_TILES ? at + S::TILE_BYTES : tile_of<S>(s, a, g, next);
}

template <class S>
__device__ __forceinline__ void ask_keys(in_flight<S> &f, const uint8_t *from, uint32_t lane)
{
    using K = keys<S::K_KIND, S::D>;
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
    using V = values<S::V_KIND, S::D>;
    const int gl = lane / 4, t = lane % 4;
    if constexpr (code<S::V_KIND>::trellis) {
#pragma unroll
        for (int i = 0; i < V::n; i++)
            f.v[i] = load_once(from + lane * 16 + S::V_AT + i * (S::D * 4));
    } else {
        const uint8_t *first = from + (V::lane_word(false, t) * (S::D * 4) + gl * 16);
        const uint8_t *second = from + (V::lane_word(true, t) * (S::D * 4) + gl * 16);
#pragma unroll
        for (int i = 0; i < V::n; i++)
            f.v[i] = load_once((V::is_second(i) ? second : first) + S::V_AT + i / V::per_part * 128);
    }
    f.v_scale = *(const uint2 *)(from + gl * 8 + S::V_SCALE_AT);
}

/* The columns of B that never change: queries in the order of the keys' octets, and what the sums begin with. */
template <class S>
struct columns {
    uint32_t q[S::NT][S::STEPS][2];
    int begin[S::NT][4];        /* -offset times the sum of the column's bytes, as a product takes it */
    float factor[S::NT][S::RL], bias[S::NT][S::RL];
    uint32_t limit;             /* the lowest of the lane's rows */
};

/* Whether a key of the tile may take both planes in some row of the warp. */
__device__ __forceinline__ bool has_scale_above(uint2 scales, uint32_t limit)
{
    const uint64_t four = (uint64_t)scales.y << 32 | scales.x;
    return __any_sync(~0u, aura_some_above(aura_four_above(four, aura_room_of_limit(limit))));
}

template <class S>
__device__ __forceinline__ void load_query(uint32_t (&b)[2], const attend_space<S> &s, int row, int plane, int step)
{
    using K = keys<S::K_KIND, S::D>;
    K::eight_of(b, s.q[row][plane], step, threadIdx.x % 4);
}

template <class S>
__device__ __forceinline__ void load_columns(columns<S> &c, const attend_space<S> &s)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t limit = AURA_NO_LIMIT;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
#pragma unroll
        for (int step = 0; step < S::STEPS; step++)
            load_query<S>(c.q[nt][step], s, nt * S::COLUMN_ROWS + (S::RL == 1 ? gl / 2 : gl), S::RL == 1 ? gl % 2 : 0, step);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const int sum = S::RL == 2 ? s.row[nt * S::COLUMN_ROWS + 2 * t + i].sum[0] : s.row[nt * S::COLUMN_ROWS + t].sum[i];
            c.begin[nt][i] = (S::PL == 1 ? WHOLE_BITS : 0) - code<S::K_KIND>::offset * sum;
            c.begin[nt][i + 2] = S::NT == 1 ? (int)another((uint32_t)c.begin[nt][i]) : c.begin[nt][i]; /* or there are not enough */
        }
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            c.factor[nt][r] = s.row[lane_row<S>(nt, r)].factor;
            c.bias[nt][r] = 0;
            limit = min(limit, s.row[lane_row<S>(nt, r)].limit);
        }
    }
    c.limit = limit;
}

/* Starts the copy of a page's reference. head: the bytes of this KV head in that page. */
template <class S>
__device__ __forceinline__ void ask_reference(attend_space<S> &s, const uint8_t *head)
{
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    static_assert(S::REFERENCE_SCALE_AT == S::REFERENCE_AT + S::D, "the scale follows");
    if (lane <= S::D / 16)
        copy_ahead(&s.reference[warp][16 * lane], head + S::REFERENCE_AT + 16 * lane);
}

/* The bias of a page, whose reference has arrived. The reference is multiplied like a key; it is in all rows of A, so that
 * every lane gets its product. */
template <class S>
__device__ __forceinline__ void page_bias(columns<S> &c, const attend_space<S> &s, const struct dev_attend &a)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t *reference = s.reference[threadIdx.x / 32];
    const float scale = __half2float(*(const __half *)(reference + S::D));
    int sum[S::NT][S::RL][4] = {}; /* [planes where RL is 2] */
#pragma unroll
    for (int step = 0; step < S::STEPS; step++) {
        uint32_t r[2];
        keys<S::K_KIND, S::D>::eight_of(r, reference, step, t);
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++) {
            mma_s8s8(sum[nt][0], r[0], r[0], r[1], r[1], c.q[nt][step][0], c.q[nt][step][1], sum[nt][0]);
            if (S::RL == 2) {
                uint32_t lower[2];
                load_query<S>(lower, s, nt * S::COLUMN_ROWS + gl, 1, step);
                mma_s8s8(sum[nt][S::RL - 1], r[0], r[0], r[1], r[1], lower[0], lower[1], sum[nt][S::RL - 1]);
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

/* The sum in an accumulator as a float. It began with the value of struct columns or of value_begin(). */
template <class S>
__device__ __forceinline__ float sum_of(const int (&c)[4], int second, int r)
{
    if (S::PL == 1)
        return __int_as_float(c[2 * second + (S::RL == 1 ? 0 : r)]) - WHOLE;
    return (float)(c[2 * second] * 256 + c[2 * second + 1]);
}

/* One plane: logits of keys whose scale is above the limit of a row become those of two. */
template <class S>
__device__ __forceinline__ void score_both(float (&logit)[S::NT][S::RL][4], const at_hand<S> &f, const columns<S> &c,
                                           const attend_space<S> &s, const struct dev_attend &a, const tables<S> &table)
{
    using K = keys<S::K_KIND, S::D>;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++) {
            int sum[4];
#pragma unroll
            for (int step = 0; step < S::STEPS; step++)
                mma_codes<S::K_KIND, false, S::K_TABLES>(sum, K::decode(f.k.w, step, 2 * pair, t, table.k),
                                          K::decode(f.k.w, step, 2 * pair + 1, t, table.k), c.q[nt][step],
                                          step ? sum : c.begin[nt]);
            if (S::RL == 2) { /* no column has lower bytes */
#pragma unroll
                for (int i = 0; i < 4; i++)
                    sum[i] = (sum[i] - WHOLE_BITS) * 256 -
                             code<S::K_KIND>::offset * s.row[nt * S::COLUMN_ROWS + 2 * t + i % 2].sum[1];
#pragma unroll
                for (int step = 0; step < S::STEPS; step++) {
                    uint32_t lower[2];
                    load_query<S>(lower, s, nt * S::COLUMN_ROWS + gl, 1, step);
                    mma_codes<S::K_KIND, false, S::K_TABLES>(sum, K::decode(f.k.w, step, 2 * pair, t, table.k),
                                              K::decode(f.k.w, step, 2 * pair + 1, t, table.k), lower, sum);
                }
            }
#pragma unroll
            for (int r = 0; r < S::RL; r++) {
                const row_info &row = s.row[lane_row<S>(nt, r)];
                const float factor = __fmul_rn(__fmul_rn(row.step, a.c.k_step), a.unit);
#pragma unroll
                for (int second = 0; second < 2; second++) {
                    const int i = 2 * pair + second;
                    const int whole = S::RL == 2 ? sum[2 * second + r]
                                                 : (sum[2 * second] - WHOLE_BITS) * 256 + sum[2 * second + 1] - WHOLE_BITS;
                    const float x = __fmul_rn((float)whole, __fmul_rn(half_of(f.k_scale, i), factor));
                    if (aura_takes_both(low_half(f.k_scale, i) >> 16 * (i % 2), row.limit))
                        logit[nt][r][i] = __fadd_rn(x, c.bias[nt][r]);
                }
            }
        }
}

template <class S>
__device__ __forceinline__ void score_tile(float (&logit)[S::NT][S::RL][4], const at_hand<S> &f, const columns<S> &c,
                                           const tables<S> &table)
{
    using K = keys<S::K_KIND, S::D>;
    const int t = threadIdx.x % 4;
    int sum[S::NT][2][4];
#pragma unroll
    for (int step = 0; step < S::STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            eight x = K::decode(f.k.w, step, 2 * pair, t, table.k), y = K::decode(f.k.w, step, 2 * pair + 1, t, table.k);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
                mma_codes<S::K_KIND, false, S::K_TABLES>(sum[nt][pair], x, y, c.q[nt][step], step ? sum[nt][pair] : c.begin[nt]);
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

/* For checks: writes the logits, whose bits are those of the CPU. */
template <class S>
__device__ __forceinline__ void trace_logits(const float (&logit)[S::NT][S::RL][4], const attend_space<S> &s,
                                             const struct dev_attend &a, const struct split &g, uint32_t first)
{
    const uint32_t token = first + threadIdx.x % 32 / 4 * 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
            const size_t at = (((size_t)g.job * a.queries + row.query) * a.c.q_heads + row.head) * a.trace_tokens + token;
#pragma unroll
            for (int i = 0; i < 4; i++)
                if (row.there && token + i < a.trace_tokens)
                    a.trace[at + i] = logit[nt][r][i];
        }
}

/* Applies the options, and puts -inf where a row does not see a token or the token has no code. The number of the token
 * decides, not what is stored. The scale of a value without a code may be anything; it becomes 0. */
template <class S>
__device__ __forceinline__ void hide_columns(float (&logit)[S::NT][S::RL][4], at_hand<S> &f, const attend_space<S> &s,
                                             const struct dev_attend &a, const struct split &g, uint32_t first)
{
    const int gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t token = first + 4 * gl + i, keep = i % 2 ? 0x0000ffffu : 0xffff0000u;
        const bool coded = token >= a.c.pinned && token < g.reach.closed;
        (i < 2 ? f.v_scale.x : f.v_scale.y) &= coded ? ~0u : keep;
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
            const uint32_t begin = max(row.begin, a.c.pinned), end = min(row.end, g.reach.closed);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 4 * gl + i;
                if (a.options)
                    logit[nt][r][i] = apply_options(a, row, g.job, g.reach.len, token, logit[nt][r][i]);
                if (token < begin || token >= end)
                    logit[nt][r][i] = -INFINITY;
            }
        }
}

/* A byte of a value is its level plus an offset. With one plane, the sum of weights times bytes is below 2^24 and not negative.
 * So the float with the same bits is the sum times 2^-149, and nothing is converted. Offsets are added up on their own, and
 * end_sums() takes them off after the last tile; they are at most twice as large as the levels, and with one plane a weight has
 * only 8 bits, so that nothing is lost. In between, o and offsets are in units of OUT_UNIT, because 2^149 is not a float. */
template <class S>
constexpr bool sums_are_bits = S::PL == 1 && code<S::V_KIND>::offset != 0;
template <class S>
constexpr float OUT_UNIT = sums_are_bits<S> ? 0x1p64f : 1;
template <class S>
constexpr float SUM_UNITS = sums_are_bits<S> ? 0x1p85f : 1; /* 2^149 / OUT_UNIT */

template <class S>
__device__ __forceinline__ void begin_sums(running<S> &run)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int j = 0; j < S::PARTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run.o[nt][r][j][i] *= 1 / OUT_UNIT<S>;
}

template <class S>
__device__ __forceinline__ void end_sums(running<S> &run)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const float offsets = code<S::V_KIND>::offset * row_sum(run.offsets[nt][r]);
#pragma unroll
            for (int j = 0; j < S::PARTS; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    run.o[nt][r][j][i] = (run.o[nt][r][j][i] - offsets) * OUT_UNIT<S>;
        }
}

/* Weights times value scales, as bytes: this lane's two columns of each panel, four tokens in a word. */
template <class S>
struct weights {
    uint32_t byte[S::NT][2];
    float factor[S::NT][S::RL];
};

enum { LOWEST_BYTES = 0x0040, SECOND_BYTES = 0x0051 };

__device__ __forceinline__ uint32_t bytes_of(const float (&x)[4], uint32_t two)
{
    return prmt(prmt(__float_as_uint(x[0]), __float_as_uint(x[1]), two), prmt(__float_as_uint(x[2]), __float_as_uint(x[3]), two),
                0x5410);
}

template <class S>
__device__ __forceinline__ void round_weights(weights<S> &w, const float (&p)[S::NT][S::RL][4], const at_hand<S> &f,
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
            top = fmaxf(row_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]))), 0x1p-100f); /* as good as nothing */
            const float to_integer = most * reciprocal_approx(top);
            w.factor[nt][r] = top * (SUM_UNITS<S> / most) * step;
#pragma unroll
            for (int i = 0; i < 4; i++)
                x[i] = fmaf(x[i], to_integer, WHOLE);
            w.byte[nt][S::RL == 1 ? 0 : r] = bytes_of(x, S::PL == 1 ? LOWEST_BYTES : SECOND_BYTES);
            if (S::RL == 1)
                w.byte[nt][1] = S::PL == 1 ? 0 : bytes_of(x, LOWEST_BYTES);
        }
}

/* What the sums of values begin with. */
template <class S>
__device__ __forceinline__ void value_begin(int (&begin)[4], const uint32_t (&byte)[2])
{
    begin[0] = begin[1] = S::PL == 1 && !sums_are_bits<S> ? WHOLE_BITS : 0;
    if (S::PL == 2 && code<S::V_KIND>::offset) {
        uint32_t sum = __dp4a(byte[0], 0x01010101u, 0u) + (__dp4a(byte[1], 0x01010101u, 0u) << 16);
        sum += __shfl_xor_sync(~0u, sum, 4);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        begin[0] -= code<S::V_KIND>::offset * (int)(sum & 0xffff);
        begin[1] -= code<S::V_KIND>::offset * (int)(sum >> 16);
    }
    begin[2] = begin[0], begin[3] = begin[1];
}

template <class S>
__device__ __forceinline__ float value_sum_of(const int (&c)[4], int second, int r)
{
    return sums_are_bits<S> ? __int_as_float(c[2 * second + (S::RL == 1 ? 0 : r)]) : sum_of<S>(c, second, r);
}

template <class S>
__device__ __forceinline__ void value_tile(running<S> &run, const weights<S> &w, const at_hand<S> &f,
                                           const tables<S> &table)
{
    using V = values<S::V_KIND, S::D>;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, from = 4 * V::quad_of(t) + gl / 2;
    uint32_t b[S::NT][2];
    int begin[S::NT][4];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        uint32_t tokens[2];
#pragma unroll
        for (int four = 0; four < 2; four++) { /* of the octet, lanes of two quads have four tokens each */
            uint32_t even = __shfl_sync(~0u, w.byte[nt][0], from + 4 * V::next_quad * four);
            tokens[four] = even;
            if (S::PL == 2 || S::RL == 2) {
                uint32_t odd = __shfl_sync(~0u, w.byte[nt][1], from + 4 * V::next_quad * four);
                tokens[four] = gl % 2 ? odd : even;
            }
        }
        in_octet_order<S::V_KIND>(b[nt], tokens[0], tokens[1]);
        value_begin<S>(begin[nt], w.byte[nt]);
#pragma unroll
        for (int r = 0; r < S::RL && sums_are_bits<S>; r++)
            run.offsets[nt][r] = fmaf(__uint_as_float(__dp4a(w.byte[nt][r], 0x01010101u, 0u)), w.factor[nt][r], run.offsets[nt][r]);
    }
#pragma unroll
    for (int j = 0; j < S::PARTS; j++) {
        const auto words = f.v[j];
        const uint32_t *levels = table.of_values();
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const eight x = V::decode(words, 2 * pair, t, levels), y = V::decode(words, 2 * pair + 1, t, levels);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++) {
                int sum[4];
                mma_codes<S::V_KIND, true, S::V_TABLES>(sum, x, y, b[nt], begin[nt]);
#pragma unroll
                for (int r = 0; r < S::RL; r++)
#pragma unroll
                    for (int i = 0; i < 2; i++)
                        run.o[nt][r][j][2 * pair + i] =
                            fmaf(value_sum_of<S>(sum, i, r), w.factor[nt][r], run.o[nt][r][j][2 * pair + i]);
            }
        }
    }
}

/* Where a warp is: at tile `tile`, whose bytes are at `at`; its last one is before `end`. In tiles [plain, plain_end) every
 * token has a code, and every row sees it. */
struct walk {
    uint32_t tile, end, plain, plain_end;
    const uint8_t *at;
};

/* Computes the bias of the page of this tile, whose reference has arrived, and starts the copy of the next page's reference. */
template <class S>
__device__ __forceinline__ void turn_page(columns<S> &c, attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                          const struct walk &w)
{
    if (!a.c.has_reference)
        return;
    page_bias<S>(c, s, a);
    const uint32_t next = (w.tile / AURA_PAGE_TILES + 1) * AURA_PAGE_TILES;
    __syncwarp();
    if (next < w.end)
        ask_reference<S>(s, tile_of<S>(s, a, g, next));
}

/* After a tile: the next one may be of another page. */
template <class S>
__device__ __forceinline__ void leave_tile(columns<S> &c, attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                           const struct walk &at)
{
    if (at.tile % AURA_PAGE_TILES == 0 && at.tile < at.end) {
        copies_arrived();
        __syncwarp();
        turn_page<S>(c, s, a, g, at);
    }
}

/* Tiles up to `stop`, or to one with a key that may take both planes. The loads of the first one have started before; those of
 * the first tile after them start here. EDGE: some tile is not plain, or there are options or a trace. There are two versions, so
 * that the common one is short. */
template <class S, bool EDGE>
__device__ __forceinline__ void attend_run(attend_space<S> &s, const struct dev_attend &a, const struct split &g, running<S> &run,
                                           columns<S> &c, in_flight<S> &f, struct walk &at, uint32_t stop,
                                           const tables<S> &table, uint32_t lane)
{
    while (at.tile < stop) {
        float logit[S::NT][S::RL][4];
        weights<S> w;
        if (S::PL == 1 && has_scale_above(f.k_scale, c.limit))
            return;
        at_hand<S> now;
        now.take(f, s);
        const uint32_t tile = at.tile++;
        if (at.tile < at.end) {
            at.at = next_tile_of<S>(at.at, s, a, g, at.tile);
            ask_keys<S>(f, at.at, lane);
            ask_values<S>(f, at.at, lane);
        }
        score_tile<S>(logit, now, c, table);
        if (EDGE && a.trace)
            trace_logits<S>(logit, s, a, g, tile * AURA_TILE);
        if (EDGE && (a.options || tile < at.plain || tile >= at.plain_end))
            hide_columns<S>(logit, now, s, a, g, tile * AURA_TILE);
        weigh<S>(logit, run);
        round_weights<S>(w, logit, now, a.c.v_step);
        value_tile<S>(run, w, now, table);
        leave_tile<S>(c, s, a, g, at);
    }
}

/* The tile in f, with a key that may take both planes. It is rare: the loads of the next tile start when it is done, so that its
 * registers are free, and the loops above keep theirs. */
template <class S>
__device__ __forceinline__ void attend_both(attend_space<S> &s, const struct dev_attend &a, const struct split &g, running<S> &run,
                                            columns<S> &c, in_flight<S> &f, struct walk &at, const tables<S> &table,
                                            uint32_t lane)
{
    float logit[S::NT][S::RL][4];
    weights<S> w;
    at_hand<S> now;
    now.take(f, s);
    score_tile<S>(logit, now, c, table);
    score_both<S>(logit, now, c, s, a, table);
    if (a.trace)
        trace_logits<S>(logit, s, a, g, at.tile * AURA_TILE);
    if (a.options || at.tile < at.plain || at.tile >= at.plain_end)
        hide_columns<S>(logit, now, s, a, g, at.tile * AURA_TILE);
    weigh<S>(logit, run);
    round_weights<S>(w, logit, now, a.c.v_step);
    value_tile<S>(run, w, now, table);
    if (++at.tile < at.end) {
        at.at = next_tile_of<S>(at.at, s, a, g, at.tile);
        ask_keys<S>(f, at.at, lane);
        ask_values<S>(f, at.at, lane);
    }
    leave_tile<S>(c, s, a, g, at);
}

/* With a fixed cut: tiles up to `at` of [begin, end) are a leaf that is done. */
template <class S>
__device__ __forceinline__ void end_leaf(attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                         running<S> &run, uint32_t begin, uint32_t at, uint32_t end)
{
    if (sums_are_bits<S>)
        end_sums<S>(run);
    keep_leaf<S>(a, g, run, begin, at, end, s.merge);
    begin_running<S>(run, s.row);
}

/* Tiles [tile, end); the reference of the first one's page has arrived. With a fixed cut run is empty before and after. */
template <class S>
__device__ __forceinline__ void attend_tiles(attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                             running<S> &run, uint32_t tile, uint32_t end)
{
    columns<S> c;
    in_flight<S> f;
    tables<S> table;
    const uint32_t lane = lane_number();
    struct walk at = {tile, end, 0, 0, tile_of<S>(s, a, g, tile)};
    ask_keys<S>(f, at.at, lane);
    ask_values<S>(f, at.at, lane);
    table.load(a);
    if constexpr (code<S::V_KIND>::trellis)
        s.staged[threadIdx.x / 32].begin();
    load_columns<S>(c, s);
    /* Codes that all rows see. The first row sees the fewest new tokens, the last row the fewest old ones. */
    const uint32_t rows = queries_of_job(a, g.job) * a.c.ratio; /* that are there */
    const uint32_t last_row = rows > g.first_row ? min((uint32_t)S::ROWS, rows - g.first_row) - 1 : 0;
    const uint32_t all_begin = max(a.c.pinned, s.row[last_row].begin), all_end = min(g.reach.closed, s.row[0].end);
    at.plain = (all_begin + AURA_TILE - 1) / AURA_TILE;
    at.plain_end = max(all_end / AURA_TILE, at.plain);
    turn_page<S>(c, s, a, g, at);
    if (sums_are_bits<S>)
        begin_sums<S>(run);
    const bool always_edge = a.options || a.trace;
    while (at.tile < end) {
        const bool plain = !always_edge && at.tile >= at.plain && at.tile < at.plain_end;
        uint32_t stop = plain ? min(end, at.plain_end) : !always_edge && at.tile < at.plain ? min(end, at.plain) : end;
        if (a.fixed_cut)
            stop = min(stop, (at.tile / AURA_CUT_LEAF + 1) * AURA_CUT_LEAF);
        if (plain)
            attend_run<S, false>(s, a, g, run, c, f, at, stop, table, lane);
        else
            attend_run<S, true>(s, a, g, run, c, f, at, stop, table, lane);
        if (S::PL == 1 && at.tile < stop)
            attend_both<S>(s, a, g, run, c, f, at, table, lane);
        if (a.fixed_cut && (at.tile % AURA_CUT_LEAF == 0 || at.tile == end))
            end_leaf<S>(s, a, g, run, tile, at.tile, end);
    }
    if (sums_are_bits<S> && !a.fixed_cut)
        end_sums<S>(run);
}

#endif
