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

enum { TILE_WARPS = 8, TILE_HEADS = 4, TILE_TOKENS = 16, TILE_THREADS = 32 * TILE_WARPS };

/* ---- codes in registers ------------------------------------------------------------------------------------------------ */

/* BYTES bytes, which begin at a multiple of the largest power of two that divides them. */
template <int BYTES>
__device__ __forceinline__ void load_words(uint32_t (&w)[(BYTES + 3) / 4], const uint8_t *p, bool wanted)
{
#pragma unroll
    for (int i = 0; i < (BYTES + 3) / 4; i++)
        w[i] = 0;
    if (!wanted)
        return;
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++) {
            const uint4 v = load_once(p + 16 * i);
            w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
        }
    } else if constexpr (BYTES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; i++) {
            const uint2 v = ((const uint2 *)p)[i];
            w[2 * i] = v.x, w[2 * i + 1] = v.y;
        }
    } else if constexpr (BYTES % 4 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            w[i] = ((const uint32_t *)p)[i];
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++)
            w[i / 2] |= (uint32_t)((const uint16_t *)p)[i] << 16 * (i % 2);
    }
}

/* N bits from bit `at` on. */
template <int N, int WORDS>
__device__ __forceinline__ uint32_t bits_at(const uint32_t (&w)[WORDS], int at)
{
    const uint32_t low = w[at / 32] >> at % 32;
    const uint32_t high = at % 32 + N > 32 ? w[(at / 32 + 1) % WORDS] << (32 - at % 32) % 32 : 0;
    return (low | high) & ((1u << N) - 1);
}

/* f16 numbers side by side, as their high and low parts; of plain numbers there is no low part. */
struct two_parts {
    uint32_t high, low;
};

/* Up to 4 bits a table has a pair of codes in every entry, 16 copies of it, so that no two lanes meet in a bank; above, single
 * codes, 32 copies: high part in the lower half. */
template <int BITS>
struct table {
    static constexpr bool PAIRS = BITS <= 4;
    static constexpr int ENTRIES = BITS == 16 ? 0 : PAIRS ? 1 << 2 * BITS : 1 << BITS, BYTES = 128 * ENTRIES;
    const uint8_t *mine; /* the copy of this lane */
    /* 128 times the index of a pair, up to 4 bits. */
    __device__ __forceinline__ struct two_parts pair(uint32_t offset) const
    {
        const uint2 v = *(const uint2 *)(mine + offset);
        return {v.x, v.y};
    }
    __device__ __forceinline__ struct two_parts look_up(uint32_t a, uint32_t b) const
    {
        if constexpr (PAIRS)
            return pair(128 * (a | b << BITS));
        const uint32_t x = *(const uint32_t *)(mine + 128 * a), y = *(const uint32_t *)(mine + 128 * b);
        return {prmt(x, y, 0x5410), prmt(x, y, 0x7632)};
    }
};

/* The power of two that brings x to 2^14 ... 2^15; 1 where that means nothing. */
__device__ __forceinline__ float unit_for(float x)
{
    const int exponent = (int)(__float_as_uint(x) >> 23 & 255);
    return exponent == 0 || exponent == 255 ? 1 : __uint_as_float((uint32_t)min(max(254 + 14 - exponent, 1), 254) << 23);
}

/* x in f16, and what is missing. */
__device__ __forceinline__ uint32_t parts_of(float x)
{
    const __half high = __float2half_rn(x);
    const float back = __half2float(high);
    const __half low = __float2half_rn(isfinite(back) ? x - back : back);
    return (uint32_t)__half_as_ushort(high) | (uint32_t)__half_as_ushort(low) << 16;
}

/* The table of a side, by all threads of the block; returns what its levels were multiplied with. */
template <int BITS>
__device__ __forceinline__ float make_table(uint8_t *to, const struct dev_rows_side &s)
{
    if constexpr (BITS == 16) {
        return 1;
    } else {
        __shared__ float levels[256];
        float largest = 0;
        __syncthreads();
        load_book(levels, s);
        __syncthreads();
        for (uint32_t i = threadIdx.x % 32; i < 1u << BITS; i += 32)
            largest = isfinite(levels[i]) ? fmaxf(largest, fabsf(levels[i])) : largest;
        for (int far = 16; far; far /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
        const float unit = unit_for(largest);
        const auto level = [&](uint32_t code) { return parts_of(levels[code & ((1u << BITS) - 1)] * unit); };
        for (uint32_t i = threadIdx.x; i < table<BITS>::ENTRIES * (table<BITS>::PAIRS ? 16 : 32); i += TILE_THREADS)
            if constexpr (table<BITS>::PAIRS) {
                const uint32_t a = level(i / 16), b = level(i / 16 >> BITS);
                ((uint2 *)to)[i] = make_uint2(prmt(a, b, 0x5410), prmt(a, b, 0x7632));
            } else {
                ((uint32_t *)to)[i] = level(i / 32);
            }
        return unit;
    }
}

/* ---- a warp -------------------------------------------------------------------------------------------------------------- */

/* The tokens of a tile, for keys and for values: which of them are seen. */
struct tile_tokens {
    uint64_t base;
    bool any, k_seen[2], v_seen[4];
};

template <int MODE, int KB, int VB, int DIM>
struct tile_warp {
    static constexpr int K_BYTES = DIM / 4 * KB / 8, V_BYTES = DIM / 8 * VB / 8, STEPS = DIM / 16;
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

    __device__ __forceinline__ tile_warp(const struct dev_rows_call &c_, struct rows_heads at_)
        : c(c_), at(at_), lane(threadIdx.x % 32), g(lane / 4), t(lane % 4), max(-INFINITY), sum(0), top(0), w_unit(1)
    {
#pragma unroll
        for (int i = 0; i < STEPS; i++)
            acc[i][0] = acc[i][1] = acc[i][2] = acc[i][3] = 0;
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

    __device__ __forceinline__ struct tile_tokens find(uint64_t base, uint64_t end) const
    {
        const struct dev_tokens &k = c.tokens;
        struct tile_tokens x = {base, true, {true, true}, {true, true, true, true}};
        if (base >= k.from[0] && base + TILE_TOKENS <= k.to[0] && base + TILE_TOKENS <= end)
            return x;
#pragma unroll
        for (int i = 0; i < 2; i++)
            x.k_seen[i] = base + g + 8 * i < end && is_seen(k, base + g + 8 * i);
#pragma unroll
        for (int i = 0; i < 4; i++)
            x.v_seen[i] = base + 2 * t + i % 2 + i / 2 * 8 < end && is_seen(k, base + 2 * t + i % 2 + i / 2 * 8);
        x.any = __any_sync(~0u, x.k_seen[0] || x.k_seen[1]);
        return x;
    }

    __device__ __forceinline__ static uint32_t norm_bits(const struct dev_rows_side &s, size_t head, uint64_t t, bool wanted)
    {
        return wanted ? load_bits(s.norms, s.norm_dtype, (int64_t)(head * s.head_rows + t)) : 0;
    }

    __device__ __forceinline__ void load_keys(const struct tile_tokens &x)
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            load_words<K_BYTES>(k[i], row_at(c.k, at.kv, x.base + g + 8 * i) + t * K_BYTES, x.k_seen[i]);
            k_norm[i] = KB == 16 ? 0 : norm_bits(c.k, at.kv, x.base + g + 8 * i, x.k_seen[i]);
        }
    }

    __device__ __forceinline__ void load_values(uint32_t (&to)[4][(V_BYTES + 3) / 4], uint32_t (&norm)[2],
                                                const struct tile_tokens &x)
    {
#pragma unroll
        for (int i = 0; i < 4; i++)
            load_words<V_BYTES>(to[i], row_at(c.v, at.kv, x.base + 2 * t + i % 2 + i / 2 * 8) + g * V_BYTES, x.v_seen[i]);
#pragma unroll
        for (int i = 0; i < 2; i++)
            norm[i] = VB == 16 ? 0 : norm_bits(c.v, at.kv, x.base + g + 8 * i, x.k_seen[i]);
    }

    /* Coordinates 2 p and 2 p + 1 of this lane's part of key i. */
    __device__ __forceinline__ struct two_parts key_pair(int i, int p) const
    {
        if constexpr (KB == 16)
            return {k[i][p], 0};
        else if constexpr (table<KB>::PAIRS)
            return keys.pair(128 * bits_at<2 * KB>(k[i], 2 * p * KB));
        else
            return keys.look_up(bits_at<KB>(k[i], 2 * p * KB), bits_at<KB>(k[i], (2 * p + 1) * KB));
    }

    /* Coordinate d of this lane's part of values 2 i and 2 i + 1. Of 4 bits, a word is mixed with that of the other value: bytes
     * are pairs then, of even coordinates or of odd ones. */
    __device__ __forceinline__ struct two_parts value_pair(int i, int d) const
    {
        if constexpr (VB == 16) {
            return {prmt(v[2 * i][d / 2], v[2 * i + 1][d / 2], d % 2 ? 0x7632 : 0x5410), 0};
        } else if constexpr (VB == 4) {
            const uint32_t x = v[2 * i][d / 8], y = v[2 * i + 1][d / 8];
            const uint32_t mixed = d % 2 ? (x >> 4 & 0x0f0f0f0f) | (y & 0xf0f0f0f0) : (x & 0x0f0f0f0f) | (y << 4 & 0xf0f0f0f0);
            const int at_bit = d % 8 / 2 * 8;
            return values.pair((at_bit ? mixed >> (at_bit - 7) % 32 : mixed << 7) & 0x7f80);
        } else {
            return values.look_up(bits_at<VB>(v[2 * i], d * VB), bits_at<VB>(v[2 * i + 1], d * VB));
        }
    }

    /* The logits of head t and tokens g and g + 8. */
    __device__ __forceinline__ void score(float (&logit)[2], const struct tile_tokens &x) const
    {
        float d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int i = 0; i < STEPS; i++) {
            const struct two_parts a0 = key_pair(0, 2 * i), a1 = key_pair(1, 2 * i), a2 = key_pair(0, 2 * i + 1),
                                   a3 = key_pair(1, 2 * i + 1);
            mma_f16(d, a0.high, a1.high, a2.high, a3.high, q[i][0], q[i][1]);
            if (KB != 16)
                mma_f16(d, a0.low, a1.low, a2.low, a3.low, q[i][0], q[i][1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) {
            float y = (d[2 * i] + d[2 * i + 1]) * k_unit * c.scale;
            y = KB == 16 ? y : y * (number_of(k_norm[i], c.k.norm_dtype) * c.k.norm_factor);
            y = c.softcap > 0 ? c.softcap * tanhf(y / c.softcap) : y;
            logit[i] = x.k_seen[i] ? y : -INFINITY;
        }
    }

    __device__ __forceinline__ static float over_tokens(float x) /* the largest of a head */
    {
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 4));
        x = fmaxf(x, __shfl_xor_sync(~0u, x, 8));
        return fmaxf(x, __shfl_xor_sync(~0u, x, 16));
    }

    /* Logits become weights. Returns what sums so far are multiplied with. */
    __device__ __forceinline__ float softmax(float (&p)[2])
    {
        const float before = max;
        max = fmaxf(before, over_tokens(fmaxf(p[0], p[1])));
        const float keep = max == before || max == -INFINITY ? 1 : expf(before - max);
#pragma unroll
        for (int i = 0; i < 2; i++)
            p[i] = p[i] == -INFINITY ? 0 : expf(p[i] - max);
        sum = sum * keep + p[0] + p[1];
        return keep;
    }

    /* Of codes, a weight of 0 is a token that is not seen.
     * Weights of head t and tokens g and g + 8, as operands: tokens 2 t ... and 2 t + 8 ... of the head and part of column g. */
    __device__ __forceinline__ void weights(uint32_t (&b)[2], float (&x)[2], float keep)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            x[i] = VB == 16 ? x[i] : x[i] == 0 ? 0 : x[i] * (number_of(v_norm[i], c.v.norm_dtype) * c.v.norm_factor);
        top = fmaxf(top * keep, over_tokens(fmaxf(fabsf(x[0]), fabsf(x[1]))));
        const bool move = keep != 1 || !(top * w_unit < 65504.f);
        if (__any_sync(~0u, move)) {
            const float unit = move ? unit_for(top) : w_unit, by = keep * (unit / w_unit);
            w_unit = unit;
#pragma unroll
            for (int i = 0; i < STEPS; i++)
                acc[i][0] *= by, acc[i][1] *= by, acc[i][2] *= by, acc[i][3] *= by;
        }
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

    /* Weights of head t; in a call that has them. */
    __device__ __forceinline__ void load_weights(uint32_t (&to)[2], const struct tile_tokens &x) const
    {
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const size_t from = (at.first + t) * c.score_stride + x.base + g + 8 * i;
            to[i] = t < at.n && x.k_seen[i] ? load_bits(c.scores, c.score_dtype, (int64_t)from) : 0;
        }
    }

    /* All of a tile but its loads. */
    __device__ __forceinline__ void take(float (&p)[2], const struct tile_tokens &x)
    {
        if (MODE == ROWS_SCORE) {
#pragma unroll
            for (int i = 0; i < 2; i++)
                if (t < at.n && x.k_seen[i])
                    store_element(c.scores, c.score_dtype, (int64_t)((at.first + t) * c.score_stride + x.base + g + 8 * i), p[i]);
            return;
        }
        const float keep = MODE == ROWS_ATTEND ? softmax(p) : 1.f;
        uint32_t b[2];
        weights(b, p, keep);
        add(b);
    }

    /* Every TILE_WARPS-th tile of the unit. The values of a tile are on their way while its scores are made, the keys of the next
     * one while values are added. */
    __device__ __forceinline__ void run(uint64_t begin, uint64_t end)
    {
        const auto base_of = [&](uint64_t i) { return begin + i / 2 * c.tokens.chunk_stride + i % 2 * TILE_TOKENS; };
        struct tile_tokens now = find(base_of(threadIdx.x / 32), end), next;
        if (MODE != ROWS_VALUE)
            load_keys(now);
        if (MODE == ROWS_VALUE)
            load_weights(w, now);
        if (MODE != ROWS_SCORE && AHEAD)
            load_values(v, v_norm, now);
        for (uint64_t i = threadIdx.x / 32; begin + i / 2 * c.tokens.chunk_stride < end; i += TILE_WARPS, now = next) {
            float p[2] = {0, 0};
            next = find(base_of(i + TILE_WARPS), end);
            if (MODE != ROWS_SCORE && !AHEAD)
                load_values(v, v_norm, now);
            if (MODE != ROWS_VALUE && now.any)
                score(p, now);
            if (MODE != ROWS_VALUE)
                load_keys(next);
            if (MODE == ROWS_VALUE)
                load_weights(w_next, next);
            if (MODE != ROWS_SCORE && AHEAD)
                load_values(v_next, v_norm_next, next);
#pragma unroll
            for (int j = 0; MODE == ROWS_VALUE && j < 2; j++) {
                const float y = number_of(w[j], c.score_dtype);
                p[j] = t < at.n && now.k_seen[j] && y >= c.threshold ? y : 0; /* NaN is not kept */
            }
            if (now.any)
                take(p, now);
            if (MODE != ROWS_SCORE && AHEAD)
                go_on();
        }
    }

    __device__ __forceinline__ void go_on()
    {
#pragma unroll
        for (int j = 0; j < 4; j++)
#pragma unroll
            for (int i = 0; i < (V_BYTES + 3) / 4; i++)
                v[j][i] = v_next[j][i];
#pragma unroll
        for (int j = 0; j < 2; j++)
            v_norm[j] = v_norm_next[j], w[j] = w_next[j];
    }
};

/* ---- a block ------------------------------------------------------------------------------------------------------------- */

/* What the warps have, in shared memory, to one partial result. */
template <int DIM, class WARP>
__device__ __forceinline__ void merge_warps(uint8_t *shared, WARP &w, uint32_t unit, bool sums)
{
    float *o = (float *)shared, *ml = o + TILE_WARPS * TILE_HEADS * DIM;
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
    for (uint32_t i = threadIdx.x; i < w.at.n * DIM; i += TILE_THREADS) {
        const uint32_t h = i / DIM, d = i % DIM;
        const size_t row = w.at.first + h, part = row * units + unit;
        float max = -INFINITY, l = 0, x = 0;
        for (uint32_t k = 0; k < TILE_WARPS; k++)
            max = fmaxf(max, ml[2 * (k * TILE_HEADS + h)]);
        for (uint32_t k = 0; k < TILE_WARPS; k++) {
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
    static constexpr int TABLES = (MODE == ROWS_VALUE ? 0 : table<KB>::BYTES) + (MODE == ROWS_SCORE ? 0 : table<VB>::BYTES);
    static constexpr int MERGE = MODE == ROWS_SCORE ? 0 : TILE_WARPS * TILE_HEADS * (DIM + 2) * (int)sizeof(float);
    static constexpr int BYTES = TABLES > MERGE ? TABLES : MERGE;
};

template <int MODE, int KB, int VB, int DIM>
__device__ __forceinline__ void run_tiles(const struct dev_rows_call &c)
{
    uint8_t *shared = dynamic_shared(), *v_table = shared + (MODE == ROWS_VALUE ? 0 : table<KB>::BYTES);
    const uint32_t unit = blockIdx.x % c.tokens.units;
    uint64_t first, end;
    unit_limits(c.tokens, unit, &first, &end);
    struct tile_warp<MODE, KB, VB, DIM> w(c, heads_of(c, blockIdx.x / c.tokens.units, TILE_HEADS));
    const float k_unit = MODE == ROWS_VALUE ? 1 : make_table<KB>(shared, c.k);
    w.v_unit = MODE == ROWS_SCORE ? 1 : 1 / make_table<VB>(v_table, c.v);
    w.keys.mine = shared + (table<KB>::PAIRS ? w.lane % 16 * 8 : w.lane * 4);
    w.values.mine = v_table + (table<VB>::PAIRS ? w.lane % 16 * 8 : w.lane * 4);
    if (MODE != ROWS_VALUE)
        w.load_queries(k_unit);
    __syncthreads();
    w.run(first, end);
    __syncthreads();
    if (MODE != ROWS_SCORE)
        merge_warps<DIM>(shared, w, unit, MODE == ROWS_VALUE);
}

#define STAMP(name, mode, kind, dim, blocks)                           \
    extern "C" __global__ void __launch_bounds__(TILE_THREADS, blocks) \
        aura_##name(const __grid_constant__ struct dev_rows_call c)    \
    {                                                                  \
        run_tiles<mode, kind, kind, dim>(c);                           \
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
    uint32_t kind, dim, blocks;
    int bytes;
};

/* The kernel that takes the call, or NULL. */
static const struct tile_kernel *find_kernel(const struct dev_rows_call &c, enum rows_mode mode)
{
#define ENTRY(name, mode, kind, dim, blocks) \
    {#name, (const void *)aura_##name, mode, kind, dim, blocks, tile_space<mode, kind, kind, dim>::BYTES},
    static const struct tile_kernel list[] = {AURA_CUDA_ROWS_TILES(ENTRY)};
#undef ENTRY
    const struct dev_rows_side &k = mode == ROWS_VALUE ? c.v : c.k, &v = mode == ROWS_SCORE ? c.k : c.v;
    if (!is_aligned(k) || !is_aligned(v))
        return NULL;
    for (const struct tile_kernel &e : list)
        if (e.mode == mode && bits_of(k) == e.kind && bits_of(v) == e.kind && k.dim == e.dim && v.dim == e.dim)
            return &e;
    return NULL;
}

uint32_t aura_cuda_rows_blocks(const struct dev_rows_call &c, enum rows_mode mode, uint32_t *heads)
{
    const struct tile_kernel *e = find_kernel(c, mode);
    *heads = e ? TILE_HEADS : ROWS_GROUP;
    return e ? e->blocks : 0;
}

aura_status aura_cuda_rows_tiles(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                                 struct CUstream_st *stream, bool *taken)
{
    const struct tile_kernel *e = find_kernel(c, mode);
    struct dev_rows_call copy = c;
    copy.groups = (c.ratio + TILE_HEADS - 1) / TILE_HEADS;
    const size_t blocks = (size_t)(c.q_heads / c.ratio) * copy.groups * c.tokens.units;
    *taken = e && blocks <= INT32_MAX; /* of too many, the other kernel says it */
    if (!*taken)
        return AURA_OK;
    on_device here(rows->device);
    const aura_status status = cuda_status(rows->ctx, call, aura_cuda_allow_shared(e->run, e->bytes), "preparing a kernel");
    const struct launch how = {dim3((uint32_t)blocks), TILE_THREADS, (size_t)e->bytes, stream};
    void *params[] = {&copy};
    return status ? status : aura_cuda_rows_launch(rows, call, e->name, e->run, how, params);
}
