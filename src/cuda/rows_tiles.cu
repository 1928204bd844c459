/* Scores, sums and attention over aligned rows by tensor products: tiles of 16 tokens, a warp each, four query heads at a time.
 *
 * Codes are looked up as f16, in two parts, high and low: together they have 22 bits. Queries and weights are two such parts too,
 * on two columns of the product, in units that bring the largest to the top of f16: what is lost is 2^-39 of the largest. f16 rows
 * are multiplied as they are.
 *
 *     scores   A: 16 tokens x 16 coordinates, B: the queries       lane (g, t) gets head t of tokens g and g + 8
 *     values   A: 16 coordinates x 16 tokens, B: the weights       lane (g, t) gets head t of coordinates g * dim / 8 ...
 *
 * Which coordinate is where in A does not matter, as long as B goes by the same: lane (g, t) reads dim / 4 coordinates of keys g
 * and g + 8, and dim / 8 of values 2 t, 2 t + 1, 2 t + 8 and 2 t + 9, each side by side. */
#include "rows_attend.cuh"
#include "rows_table.cuh"

enum { TILE_HEADS = 4, TILE_TOKENS = 16 };

/* Of codes, blocks are as large as a multiprocessor takes; but for dims whose warps take twice the registers. */
template <int KIND, int DIM>
constexpr int TILE_WARPS = KIND == 16 || DIM > 128 ? 8 : 16;

/* ---- a warp -------------------------------------------------------------------------------------------------------------- */

/* Which tokens of a tile are seen: bits 0 and 1 are of this lane's keys, 2 to 5 of its values. */
struct tile_tokens {
    bool plain, any; /* of all lanes: all are seen; some are */
    uint32_t seen;
    __device__ __forceinline__ bool key(int i) const
    {
        return seen >> i & 1;
    }
    __device__ __forceinline__ bool value(int i) const
    {
        return seen >> (2 + i) & 1;
    }
};

/* Where a lane reads of a tile: rows and norms of its first key, token g, and of its first value, token 2 t; of head t, what
 * scores or weights are of token g. From tile to tile all of them move by as many tokens. */
struct tile_places {
    uint64_t base; /* the tile's first token */
    const uint8_t *k, *v, *k_norm, *v_norm;
    uint8_t *score;
};

/* SINGLE: norms, scores and weights are f32, as they nearly always are; else they are what the call says. */
template <int MODE, int KB, int VB, int DIM, bool SINGLE>
struct tile_warp {
    static constexpr int WARPS = TILE_WARPS<KB, DIM>, K_BYTES = DIM / 4 * KB / 8, V_BYTES = DIM / 8 * VB / 8, STEPS = DIM / 16;
    static constexpr bool AHEAD = V_BYTES <= 16; /* the values of the next tile are loaded before this one's are added */
    const struct dev_rows_call &c;
    const struct rows_heads at;
    const uint32_t lane, g, t;
    struct table<KB> keys;
    struct table<VB> values;
    uint32_t q[STEPS][2];
    uint32_t k[2][(K_BYTES + 3) / 4], v[4][(V_BYTES + 3) / 4], v_next[4][(V_BYTES + 3) / 4];
    uint32_t k_norm[2], v_norm[2], v_norm_next[2], w[2], w_next[2]; /* as they are in memory */
    float k_unit, v_unit;        /* what a product of a row is multiplied with; what a coordinate is */
    float max, sum, top, w_unit; /* of head t; top: the largest weight times norm; weights are multiplied with w_unit */
    float acc[STEPS][4];
    uint64_t plain, plain_span;  /* tiles that begin at these tokens are seen as a whole */

    __device__ __forceinline__ tile_warp(const struct dev_rows_call &c_, struct rows_heads at_)
        : c(c_), at(at_), lane(threadIdx.x % 32), g(lane / 4), t(lane % 4), max(-INFINITY), sum(0), top(0), w_unit(0x1p127f)
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
    }

    __device__ __forceinline__ static uint32_t type(uint32_t dtype)
    {
        return SINGLE ? (uint32_t)AURA_F32 : dtype;
    }

    /* Columns 2 h and 2 h + 1 are the parts of head h. */
    __device__ __forceinline__ void load_queries(float book_unit)
    {
        const uint32_t head = g / 2;
        float largest = 0, x[STEPS][4];
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++) {
                const size_t d = (size_t)(at.first + head) * DIM + t * (DIM / 4) + 4 * i + j;
                const float y = head < at.n ? load_element(c.q, c.q_dtype, (int64_t)d) : 0;
                x[i][j] = c.q_as_f16 ? __half2float(__float2half_rn(y)) : y;
                largest = fmaxf(largest, fabsf(x[i][j]));
            }
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 1));
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, 2));
        const float unit = unit_for(largest);
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 2; j++)
                q[i][j] = prmt(parts_of(x[i][2 * j] * unit), parts_of(x[i][2 * j + 1] * unit), g % 2 ? 0x7632 : 0x5410);
        k_unit = __shfl_sync(~0u, 1 / unit, (int)t * 8) / book_unit; /* that of head t */
    }

    /* ---- loads ---- */

    __device__ __forceinline__ static const uint8_t *norm_place(const struct dev_rows_side &s, size_t row)
    {
        return (const uint8_t *)s.norms + row * (type(s.norm_dtype) == AURA_F32 ? 4 : 2);
    }

    __device__ __forceinline__ struct tile_places places_of(uint64_t base) const
    {
        const size_t score = (at.first + t) * c.score_stride + base + g;
        return {base, row_at(c.k, at.kv, base + g) + t * K_BYTES, row_at(c.v, at.kv, base + 2 * t) + g * V_BYTES,
                norm_place(c.k, at.kv * c.k.head_rows + base + g), norm_place(c.v, at.kv * c.v.head_rows + base + g),
                (uint8_t *)c.scores + score * (type(c.score_dtype) == AURA_F32 ? 4 : 2)};
    }

    __device__ __forceinline__ static void move(struct tile_places &p, const struct dev_rows_call &c, uint64_t tokens)
    {
        p.base += tokens;
        if (MODE != ROWS_VALUE)
            p.k += tokens * c.k.row_stride;
        if (MODE != ROWS_VALUE && KB != 16)
            p.k_norm += tokens * (type(c.k.norm_dtype) == AURA_F32 ? 4 : 2);
        if (MODE != ROWS_SCORE)
            p.v += tokens * c.v.row_stride;
        if (MODE != ROWS_SCORE && VB != 16)
            p.v_norm += tokens * (type(c.v.norm_dtype) == AURA_F32 ? 4 : 2);
        if (MODE != ROWS_ATTEND)
            p.score += tokens * (type(c.score_dtype) == AURA_F32 ? 4 : 2);
    }

    __device__ __forceinline__ void find_plain(uint64_t end)
    {
        const uint64_t to = c.tokens.to[0] < end ? c.tokens.to[0] : end;
        plain = c.tokens.from[0];
        plain_span = to >= plain + TILE_TOKENS ? to - plain - (TILE_TOKENS - 1) : 0;
    }

    __device__ __forceinline__ struct tile_tokens find(uint64_t base, uint64_t end) const
    {
        if (base - plain < plain_span)
            return {true, true, ~0u};
        struct tile_tokens x = {false, false, 0};
#pragma unroll 1
        for (uint32_t i = 0; i < 6; i++) {
            const uint64_t token = base + (i < 2 ? g + 8 * i : 2 * t + i % 2 + (i - 2) / 2 * 8);
            x.seen |= token < end && is_seen(c.tokens, token) ? 1u << i : 0;
        }
        x.any = __any_sync(~0u, x.seen & 3);
        return x;
    }

    template <bool PLAIN>
    __device__ __forceinline__ void load_keys(const struct tile_places &p, const struct tile_tokens &x)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const bool wanted = PLAIN || x.key(i);
            load_words<K_BYTES>(k[i], p.k + i * 8 * c.k.row_stride, wanted);
            k_norm[i] = KB == 16 || !wanted ? 0 : load_bits(p.k_norm, type(c.k.norm_dtype), 8 * i);
        }
    }

    template <bool PLAIN>
    __device__ __forceinline__ void load_values(uint32_t (&to)[4][(V_BYTES + 3) / 4], uint32_t (&norm)[2],
                                                const struct tile_places &p, const struct tile_tokens &x) const
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_words<V_BYTES>(to[i], p.v + (i % 2 + i / 2 * 8) * c.v.row_stride, PLAIN || x.value(i));
#pragma unroll
        for (int i = 0; i < 2; i++)
            norm[i] = VB == 16 || !(PLAIN || x.key(i)) ? 0 : load_bits(p.v_norm, type(c.v.norm_dtype), 8 * i);
    }

    /* Weights of head t; in a call that has them. */
    template <bool PLAIN>
    __device__ __forceinline__ void load_weights(uint32_t (&to)[2], const struct tile_places &p, const struct tile_tokens &x) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            to[i] = t < at.n && (PLAIN || x.key(i)) ? load_bits(p.score, type(c.score_dtype), 8 * i) : 0;
    }

    /* All that is loaded of a tile while the one before is still worked on. */
    template <bool PLAIN>
    __device__ __forceinline__ void load_next(const struct tile_places &p, const struct tile_tokens &x)
    {
        if (MODE != ROWS_VALUE)
            load_keys<PLAIN>(p, x);
        if (MODE == ROWS_VALUE)
            load_weights<PLAIN>(w_next, p, x);
        if (MODE != ROWS_SCORE && AHEAD)
            load_values<PLAIN>(v_next, v_norm_next, p, x);
    }

    __device__ __forceinline__ void load_ahead(const struct tile_places &p, const struct tile_tokens &x)
    {
        if (x.plain)
            load_next<true>(p, x);
        else
            load_next<false>(p, x);
    }

    __device__ __forceinline__ void load_late(const struct tile_places &p, const struct tile_tokens &x)
    {
        if (x.plain)
            load_values<true>(v, v_norm, p, x);
        else
            load_values<false>(v, v_norm, p, x);
    }

    /* ---- products ---- */

    /* Coordinates 2 p and 2 p + 1 of this lane's part of key i. */
    __device__ __forceinline__ struct two_parts key_pair(int i, int p) const
    {
        if constexpr (KB == 16)
            return {k[i][p], 0};
        else if constexpr (KB == 4)
            return keys.key_pair(keys.at_byte(k[i][p / 4], p % 4));
        else if constexpr (KB == 8)
            return keys.singles(keys.at_byte(k[i][p / 2], 2 * p % 4), keys.at_byte(k[i][p / 2], (2 * p + 1) % 4));
        else if constexpr (table<KB>::PAIRS)
            return keys.key_pair(keys.at(bits_at<2 * KB>(k[i], 2 * p * KB)));
        else
            return keys.singles(keys.at(bits_at<KB>(k[i], 2 * p * KB)), keys.at(bits_at<KB>(k[i], (2 * p + 1) * KB)));
    }

    /* Coordinate d of this lane's part of values 2 i and 2 i + 1. Of 4 bits, a word is mixed with that of the other value: bytes
     * are pairs then, of even coordinates or of odd ones. */
    __device__ __forceinline__ struct two_parts value_pair(int i, int d) const
    {
        if constexpr (VB == 16) {
            return {prmt(v[2 * i][d / 2], v[2 * i + 1][d / 2], d % 2 ? 0x7632 : 0x5410), 0};
        } else if constexpr (VB == 4) {
            const uint32_t x = v[2 * i][d / 8], y = v[2 * i + 1][d / 8];
            const uint32_t mixed = d % 2 ? picked(0x0f0f0f0f, x >> 4, y) : picked(0x0f0f0f0f, x, y << 4);
            return values.value_pair(values.at_byte(mixed, d % 8 / 2));
        } else if constexpr (VB == 8) {
            return values.singles(values.at_byte(v[2 * i][d / 4], d % 4), values.at_byte(v[2 * i + 1][d / 4], d % 4));
        } else if constexpr (table<VB>::PAIRS) {
            return values.value_pair(values.at(bits_at<VB>(v[2 * i], d * VB) | bits_at<VB>(v[2 * i + 1], d * VB) << VB));
        } else {
            return values.singles(values.at(bits_at<VB>(v[2 * i], d * VB)), values.at(bits_at<VB>(v[2 * i + 1], d * VB)));
        }
    }

    /* The logits of head t and tokens g and g + 8. Of numbers, both are rows of A; of codes, the parts of one are, and every token
     * has products of its own. Two sums take turns either way, since a product waits for the one before. */
    __device__ __forceinline__ void score(float (&logit)[2], const struct tile_tokens &x) const
    {
        float d[2][4] = {}, sum[2];
#pragma unroll
        for (int i = 0; i < STEPS; i++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
                const struct two_parts a = key_pair(j, 2 * i), b = key_pair(j, 2 * i + 1);
                if (KB != 16)
                    mma_f16(d[j], a.high, a.low, b.high, b.low, q[i][0], q[i][1]);
                else if (j == 0)
                    mma_f16(d[i % 2], a.high, key_pair(1, 2 * i).high, b.high, key_pair(1, 2 * i + 1).high, q[i][0], q[i][1]);
            }
#pragma unroll
        for (int i = 0; i < 2; i++)
            sum[i] = KB == 16 ? (d[0][2 * i] + d[1][2 * i]) + (d[0][2 * i + 1] + d[1][2 * i + 1])
                              : (d[i][0] + d[i][2]) + (d[i][1] + d[i][3]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const float y = sum[i] * k_unit * c.scale;
            logit[i] = KB == 16 ? y : y * (number_of(k_norm[i], type(c.k.norm_dtype)) * c.k.norm_factor);
        }
#pragma unroll 1
        for (int i = 0; c.softcap > 0 && i < 2; i++) {
            const float y = c.softcap * tanhf(logit[0] / c.softcap);
            logit[0] = logit[1], logit[1] = y; /* the other one next */
        }
#pragma unroll
        for (int i = 0; i < 2; i++)
            logit[i] = x.key(i) ? logit[i] : -INFINITY;
    }

    __device__ __forceinline__ static float over_tokens(float x) /* the largest of a head */
    {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
        return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
    }

    /* Logits become weights. Returns whether some head has a new maximum; keep: what sums so far are multiplied with then. */
    __device__ __forceinline__ bool softmax(float (&p)[2], float &keep)
    {
        const bool moves = __any_sync(~0u, p[0] > max || p[1] > max);
        if (moves) {
            const float before = max;
            max = fmaxf(before, over_tokens(fmaxf(p[0], p[1])));
            keep = max == before || max == -INFINITY ? 1 : expf(before - max);
            sum *= keep;
        }
        const float from = max == -INFINITY ? 0 : max;
#pragma unroll
        for (int i = 0; i < 2; i++)
            p[i] = exp2_approx((p[i] - from) * AURA_LOG2_E);
        sum = sum + p[0] + p[1];
        return moves;
    }

    /* The unit of weights follows the largest; what is added up so far follows. */
    __device__ __forceinline__ void follow_top(const float (&x)[2], float keep)
    {
        top = fmaxf(top * keep, over_tokens(fmaxf(fabsf(x[0]), fabsf(x[1]))));
        const bool follows = top > 0 && (keep != 1 || !(top * w_unit < 65504.f));
        const float unit = follows ? unit_for(top) : w_unit, by = keep * (unit / w_unit);
        w_unit = unit;
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            acc[i][0] *= by, acc[i][1] *= by, acc[i][2] *= by, acc[i][3] *= by;
    }

    /* Of codes, a weight of 0 is a token that is not seen.
     * Weights of head t and tokens g and g + 8, as operands: tokens 2 t ... and 2 t + 8 ... of the head and part of column g. */
    __device__ __forceinline__ void weights(uint32_t (&b)[2], float (&x)[2], bool moves, float keep)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] = VB == 16 ? x[i] : x[i] == 0 ? 0 : x[i] * (number_of(v_norm[i], type(c.v.norm_dtype)) * c.v.norm_factor);
        const bool beyond = !(fabsf(x[0]) * w_unit < 65504.f && fabsf(x[1]) * w_unit < 65504.f);
        if (moves | __any_sync(~0u, beyond))
            follow_top(x, keep);
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint32_t mine = parts_of(x[i] * w_unit);
            const uint32_t even = __shfl_sync(~0u, mine, (int)(8 * t + g / 2)),
                           odd = __shfl_sync(~0u, mine, (int)(8 * t + 4 + g / 2));
            b[i] = prmt(even, odd, g % 2 ? 0x7632 : 0x5410);
        }
    }

    __device__ __forceinline__ void add(const uint32_t (&b)[2])
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const struct two_parts a0 = value_pair(0, 2 * i), a1 = value_pair(0, 2 * i + 1), a2 = value_pair(1, 2 * i),
                                   a3 = value_pair(1, 2 * i + 1);
            mma_f16(acc[i], a0.high, a1.high, a2.high, a3.high, b[0], b[1]);
            if (VB != 16)
                mma_f16(acc[i], a0.low, a1.low, a2.low, a3.low, b[0], b[1]);
        }
    }

    /* ---- tiles ---- */

    /* All of a tile but its loads. */
    __device__ __forceinline__ void take(float (&p)[2], const struct tile_places &place, const struct tile_tokens &x)
    {
        float keep = 1;
        uint32_t b[2];
        if (MODE == ROWS_SCORE) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (t < at.n && x.key(i))
                    store_element(place.score, type(c.score_dtype), 8 * i, p[i]);
            return;
        }
        const bool moves = MODE == ROWS_ATTEND && softmax(p, keep);
        weights(b, p, moves, keep);
        add(b);
    }

    /* Every WARPS-th tile of the unit. The values of a tile are on their way while its scores are made, the keys of the next
     * one while values are added. */
    __device__ __forceinline__ void run(uint64_t begin, uint64_t end)
    {
        const uint32_t warp = threadIdx.x / 32;
        const uint64_t step = WARPS / 2 * c.tokens.chunk_stride;
        struct tile_places place = places_of(begin + warp / 2 * c.tokens.chunk_stride + warp % 2 * TILE_TOKENS), next = place;
        find_plain(end);
        struct tile_tokens now = find(place.base, end);
        load_ahead(place, now);
        go_on();
        for (; place.base < end; place = next) {
            float p[2] = {0, 0};
            move(next, c, step);
            const struct tile_tokens then = find(next.base, end);
            if (MODE != ROWS_SCORE && !AHEAD)
                load_late(place, now);
            if (MODE != ROWS_VALUE && now.any)
                score(p, now);
            load_ahead(next, then);
#pragma unroll
            for (int j = 0; MODE == ROWS_VALUE && j < 2; j++) {
                const float y = number_of(w[j], type(c.score_dtype));
                p[j] = t < at.n && now.key(j) && y >= c.threshold ? y : 0; /* NaN is not kept */
            }
            if (now.any)
                take(p, place, now);
            go_on();
            now = then;
        }
    }

    __device__ __forceinline__ void go_on()
    {
#pragma unroll
        for (int j = 0; AHEAD && j < 4; j++)
#pragma unroll
            for (int i = 0; i < (V_BYTES + 3) / 4; i++)
                v[j][i] = v_next[j][i];
#pragma unroll
        for (int j = 0; j < 2; j++) {
            v_norm[j] = AHEAD ? v_norm_next[j] : v_norm[j];
            w[j] = w_next[j];
        }
    }
};

/* ---- a block ------------------------------------------------------------------------------------------------------------- */

/* What the warps have, in shared memory, to one partial result. */
template <int DIM, class WARP>
__device__ __forceinline__ void merge_warps(uint8_t *shared, WARP &w, uint32_t unit, bool sums)
{
    float *o = (float *)shared, *ml = o + WARP::WARPS * TILE_HEADS * DIM;
    const uint32_t warp = threadIdx.x / 32, g = w.g, t = w.t;
    float sum = w.sum;
    for (int far = 4; far < 32; far *= 2)
        sum += __shfl_xor_sync(~0u, sum, far);
    const float back = w.v_unit / w.w_unit;
#pragma unroll
    for (int i = 0; i < DIM / 16; i++) {
        float *to = o + (warp * TILE_HEADS + t) * DIM + g * (DIM / 8) + 2 * i;
        to[0] = (w.acc[i][0] + w.acc[i][1]) * back, to[1] = (w.acc[i][2] + w.acc[i][3]) * back;
    }
    if (g == 0)
        ml[2 * (warp * TILE_HEADS + t)] = sums ? 0 : w.max, ml[2 * (warp * TILE_HEADS + t) + 1] = sum;
    __syncthreads();
    const struct dev_rows_call &c = w.c;
    const uint32_t units = c.tokens.units;
    for (uint32_t i = threadIdx.x; i < w.at.n * DIM; i += 32 * WARP::WARPS) {
        const uint32_t h = i / DIM, d = i % DIM;
        const size_t row = w.at.first + h, part = row * units + unit;
        float max = -INFINITY, l = 0, x = 0;
        for (uint32_t k = 0; k < WARP::WARPS; k++)
            max = fmaxf(max, ml[2 * (k * TILE_HEADS + h)]);
        for (uint32_t k = 0; k < WARP::WARPS; k++) {
            const float m = ml[2 * (k * TILE_HEADS + h)], weight = sums ? 1 : m == -INFINITY ? 0 : expf(m - max);
            const float its = ml[2 * (k * TILE_HEADS + h) + 1];
            l += m == -INFINITY ? its : its * weight; /* NaN where a score was */
            x = weight == 0 && its == 0 ? x : fmaf(weight, o[(k * TILE_HEADS + h) * DIM + d], x);
        }
        const size_t to = c.interleaved ? (row * (DIM / 4) + d / 4) * units * 4 + unit * 4 + d % 4 : part * DIM + d;
        store_element(c.o, c.partial_dtype, (int64_t)to, x);
        if (d || sums)
            continue;
        const bool empty = max == -INFINITY && !isnan(l);
        store_element(c.l, c.partial_dtype, (int64_t)(c.interleaved ? 2 * part : part), l);
        store_element(c.m, c.partial_dtype, (int64_t)(c.interleaved ? 2 * part + 1 : part),
                      c.interleaved && empty ? -0x1.fffffep126f : max);
        if (c.report && !isfinite(l))
            note_not_finite(c.status, row);
    }
}

template <int MODE, int KB, int VB, int DIM>
struct tile_space {
    static_assert(KB == VB, "the tables of keys and values are in the same entries");
    static constexpr bool HAS_LOW = MODE != ROWS_SCORE && table<KB>::PAIRS;
    static constexpr int TABLES = KB == 16 ? 0 : TABLE_SPACE + (HAS_LOW ? TABLE_SPACE : 0) + table<KB>::ENTRIES * TABLE_STRIDE;
    static constexpr int MERGE = MODE == ROWS_SCORE ? 0 : TILE_WARPS<KB, DIM> * TILE_HEADS * (DIM + 2) * (int)sizeof(float);
    static constexpr int BYTES = TABLES > MERGE ? TABLES : MERGE;
};

template <int MODE, int KB, int VB, int DIM, bool SINGLE>
__device__ __forceinline__ void run_block(const struct dev_rows_call &c)
{
    uint8_t *shared = dynamic_shared();
    const uint32_t place = shared_place(shared), tables = (place + TABLE_SPACE - 1) / TABLE_SPACE * TABLE_SPACE;
    const uint32_t unit = blockIdx.x % c.tokens.units;
    uint64_t first, end;
    unit_limits(c.tokens, unit, &first, &end);
    struct tile_warp<MODE, KB, VB, DIM, SINGLE> w(c, heads_of(c, blockIdx.x / c.tokens.units, TILE_HEADS));
    const float k_unit = MODE == ROWS_VALUE ? 1 : make_table<KB, false>(shared + (tables - place), c.k);
    w.v_unit = MODE == ROWS_SCORE ? 1 : 1 / make_table<VB, true>(shared + (tables - place) + TABLE_VALUES, c.v);
    w.keys.mine = tables + w.lane % table<KB>::COPIES * (128 / table<KB>::COPIES);
    w.values.mine = tables + TABLE_VALUES + w.lane * 4;
    if (MODE != ROWS_VALUE)
        w.load_queries(k_unit);
    __syncthreads();
    w.run(first, end);
    __syncthreads();
    if (MODE != ROWS_SCORE)
        merge_warps<DIM>(shared, w, unit, MODE == ROWS_VALUE);
}

/* Attention does without SINGLE: with it, five of its kernels kept more of their numbers in local memory. */
template <int MODE, int KB, int VB, int DIM>
__device__ __forceinline__ void run_tiles(const struct dev_rows_call &c)
{
    const uint32_t norm_dtype = MODE == ROWS_VALUE ? c.v.norm_dtype : c.k.norm_dtype;
    if (MODE != ROWS_ATTEND && norm_dtype == AURA_F32 && c.score_dtype == AURA_F32)
        run_block<MODE, KB, VB, DIM, MODE != ROWS_ATTEND>(c);
    else
        run_block<MODE, KB, VB, DIM, false>(c);
}

#define STAMP(name, mode, kind, dim, blocks)                                         \
    extern "C" __global__ void __launch_bounds__(32 * TILE_WARPS<kind, dim>, blocks) \
        aura_##name(const __grid_constant__ struct dev_rows_call c)                  \
    {                                                                                \
        run_tiles<mode, kind, kind, dim>(c);                                         \
    }
AURA_CUDA_ROWS_TILES(STAMP)
#undef STAMP

/* ---- the choice ---------------------------------------------------------------------------------------------------------- */

static bool is_aligned(const struct dev_rows_side &s)
{
    return (uintptr_t)s.rows % 16 == 0 && s.row_stride % 16 == 0 && s.parts == 1;
}

/* Codes of 2 to 8 bits, or 16: f16. */
static uint32_t bits_of(const struct dev_rows_side &s)
{
    return s.kind <= 8 ? s.kind : s.kind == AURA_ROW_F16 ? 16 : 0;
}

struct tile_kernel {
    const char *name;
    const void *run;
    enum rows_mode mode;
    uint32_t kind, dim, blocks, threads;
    int bytes;
};

/* The kernel that takes the call, or NULL. */
static const struct tile_kernel *find_kernel(const aura_cuda_rows *rows, const struct dev_rows_call &c, enum rows_mode mode)
{
#define ENTRY(name, mode, kind, dim, blocks) \
    {#name, (const void *)aura_##name, mode, kind, dim, blocks, 32 * TILE_WARPS<kind, dim>, \
     tile_space<mode, kind, kind, dim>::BYTES},
    static const struct tile_kernel list[] = {AURA_CUDA_ROWS_TILES(ENTRY)};
#undef ENTRY
    const struct dev_rows_side &k = mode == ROWS_VALUE ? c.v : c.k, &v = mode == ROWS_SCORE ? c.k : c.v;
    if (!is_aligned(k) || !is_aligned(v))
        return NULL;
    for (const struct tile_kernel &e : list)
        if (e.mode == mode && (size_t)e.bytes <= rows->shared_limit && bits_of(k) == e.kind && bits_of(v) == e.kind &&
            k.dim == e.dim && v.dim == e.dim)
            return &e;
    return NULL;
}

uint32_t aura_cuda_rows_blocks(const aura_cuda_rows *rows, const struct dev_rows_call &c, enum rows_mode mode, uint32_t *heads)
{
    const struct tile_kernel *e = find_kernel(rows, c, mode);
    *heads = e ? (uint32_t)TILE_HEADS : (uint32_t)ROWS_GROUP;
    return e ? e->blocks : 0;
}

aura_status aura_cuda_rows_tiles(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                                 struct CUstream_st *stream, bool *taken)
{
    const struct tile_kernel *e = find_kernel(rows, c, mode);
    struct dev_rows_call copy = c;
    copy.groups = (c.ratio + TILE_HEADS - 1) / TILE_HEADS;
    const size_t blocks = (size_t)(c.q_heads / c.ratio) * copy.groups * c.tokens.units;
    *taken = e && blocks <= INT32_MAX; /* of too many, the other kernel says it */
    if (!*taken)
        return AURA_OK;
    on_device here(rows->device);
    const aura_status status = cuda_status(rows->ctx, call, aura_cuda_allow_shared(e->run, e->bytes), "preparing a kernel");
    const struct launch how = {dim3((uint32_t)blocks), e->threads, (size_t)e->bytes, stream};
    void *params[] = {&copy};
    return status ? status : aura_cuda_rows_launch(rows, call, e->name, e->run, how, params);
}
