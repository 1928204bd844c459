/* Codes out of the words of a tile, as registers of the A operand of an mma: the one place where the device decodes.
 *
 * A lane (g = lane / 4, t = lane % 4) supplies, for two rows of A, eight values along the summed axis per mma, in two
 * registers. A 32-code run of the format is four octets of codes; octet v is quads 2 v and 2 v + 1:
 *
 *   keys    rows are tokens; octet v of the lane's run: channels 32 run + 8 v ...
 *   values  rows are channels; octet t of the tile's only run: tokens 8 t ...
 *
 * Within an octet the order of the eight is whatever decoding costs least; `natural` says which it is, and the B operand (query
 * or weights) is put in the same order. Tables: a prmt looks up four nibbles at once in eight bytes, gives 0 for a nibble with
 * its top bit set because no entry has bit 7, and takes nibbles as they come: codes 0 4 1 5, then 2 6 3 7. */
#ifndef AURA_CUDA_UNPACK_CUH
#define AURA_CUDA_UNPACK_CUH

#include "device.cuh"

/* What is known of a kind at compile time. */
template <int KIND>
struct code {
    static constexpr bool trellis = KIND >= AURA_TRELLIS_2;
    static constexpr int bits = trellis ? KIND - AURA_TRELLIS_2 + 2 : KIND;
    static constexpr bool natural = bits > 4;
    static constexpr int halves = KIND == 4 ? 2 : 1; /* tables of eight entries, whose products are added by the mma */
    static constexpr int offset = KIND == 8 ? 0 : KIND == 5 ? 31 : KIND == 6 ? 63 : 64; /* level = byte - offset */
};

/* Eight values of one row: [table][register]. */
struct eight {
    uint32_t r[4][2];
};

template <int KIND>
__device__ __forceinline__ eight lookup(uint32_t nibbles, const uint32_t *table)
{
    const uint32_t next = KIND == 2 ? table[0] : table[1];
    eight e;
    e.r[0][0] = prmt(table[0], next, nibbles);
    e.r[0][1] = prmt(table[0], next, upper_half(nibbles));
    if (KIND == 4) {
        uint32_t upper = nibbles ^ 0x88888888u;
        e.r[1][0] = prmt(table[2], table[3], upper);
        e.r[1][1] = prmt(table[2], table[3], upper_half(upper));
    }
    return e;
}

__device__ __forceinline__ uint32_t shifted(uint32_t x, int left)
{
    return left >= 0 ? x << left : x >> -left;
}

/* 5 and 6 bits: twice the code, from a word of nibbles and the upper bits, which are at bits `at` and `at + KIND - 4` of each
 * byte of `high` for the two quads. */
template <int KIND>
__device__ __forceinline__ eight join(uint32_t low, uint32_t high, int at)
{
    const uint32_t mask = KIND == 5 ? 0x20202020u : 0x60606060u;
    eight e;
    e.r[0][0] = (low << 1 & 0x1e1e1e1eu) | (shifted(high, 5 - at) & mask);
    e.r[0][1] = (low >> 3 & 0x1e1e1e1eu) | (shifted(high, 5 - at - (KIND - 4)) & mask);
    return e;
}

/* 3 bits: the fourth octet of a run is in the spare bits of the three words. */
__device__ __forceinline__ uint32_t spare_bits(uint32_t w0, uint32_t w1, uint32_t w2)
{
    return (w0 >> 3 & 0x11111111u) | (w1 >> 2 & 0x22222222u) | (w2 >> 1 & 0x44444444u);
}

__device__ __forceinline__ uint32_t part(const uint4 &v, int i)
{
    return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

/* ---- trellis codes: trellis.h, and format.h for the words --------------------------------------------------------------- */

/* The lower two bits of the index of a level, z1 and z0, of all codes of a run, where word 0 has the bits u. */
struct subset_bits {
    uint32_t one, zero;
};

/* Of a key: channel c of the run is bit c, and `after` is word 0 of the next run, or 0. */
__device__ __forceinline__ struct subset_bits subsets_of_key(uint32_t u, uint32_t after)
{
    return {u ^ (u >> 1 | after << 31) ^ (u >> 3 | after << 29), u >> 2 | after << 30};
}

/* Word i of four that stand side by side and of the four after them. */
__device__ __forceinline__ uint32_t part_of_eight(const uint4 &v, const uint4 &after, int i)
{
    return i < 4 ? part(v, i) : part(after, i - 4);
}

/* Of channel i of four values, whose words 0 are u; those of the four channels after them are `after`, or 0. */
__device__ __forceinline__ struct subset_bits subsets_of_value(const uint4 &u, const uint4 &after, int i)
{
    return {part(u, i) ^ part_of_eight(u, after, i + 1) ^ part_of_eight(u, after, i + 3), part_of_eight(u, after, i + 2)};
}

/* Levels, with their offset, of eight indices: their lower bits as nibbles, and of t4 their top bit in a word of nibbles. Of t4,
 * the table has the levels above 0; the others mirror them: 128 less a byte is 1 more than the byte with its 7 bits turned. */
template <int BITS>
__device__ __forceinline__ void lookup_levels(uint32_t (&byte)[2], uint32_t nibbles, uint32_t top, const uint32_t *table)
{
    if (BITS == 4)
        nibbles ^= (top ^ 0x11111111u) * 15;
    const uint32_t upper = nibbles ^ 0x88888888u;
#pragma unroll
    for (int i = 0; i < 2; i++) {
        byte[i] = prmt(table[0], table[1], i ? upper_half(nibbles) : nibbles);
        if (BITS > 2)
            byte[i] |= prmt(table[2], table[3], i ? upper_half(upper) : upper);
        if (BITS == 4) {
            const uint32_t below = prmt(1, 0, i ? upper_half(top) : top);
            byte[i] = (byte[i] ^ below * 127) + below;
        }
    }
}

/* One bit of each code of quads 2 t and 2 t + 1, as nibbles: byte i of the result has those of codes i and 4 + i of the octet. */
__device__ __forceinline__ uint32_t bits_of_octet(uint32_t word, int t)
{
    const uint32_t x = word >> 2 * t;
    return (x & 0x01010101u) | (x << 3 & 0x10101010u);
}

/* Octet t of a run: word[1 ...] are those after word 0. In the order of octets. */
template <int BITS>
__device__ __forceinline__ eight trellis_octet(const struct subset_bits &z, const uint32_t (&word)[BITS], int t,
                                               const uint32_t *table)
{
    eight e;
    uint32_t nibbles = bits_of_octet(z.zero, t) | bits_of_octet(z.one, t) << 1, top = 0;
    if (BITS == 2)
        nibbles |= bits_of_octet(word[1], t) << 2;
    else
        nibbles |= (word[1] >> 2 * t << 2 & 0x0c0c0c0cu) | (word[2 % BITS] >> 2 * t << 6 & 0xc0c0c0c0u);
    if (BITS == 4)
        top = bits_of_octet(word[3 % BITS], t ^ 2);
    lookup_levels<BITS>(e.r[0], nibbles, top, table);
    return e;
}

/* The bits of byte v of a word as nibbles, and its pairs of bits as bytes. */
__device__ __forceinline__ uint32_t bits_of_byte(uint32_t byte)
{
    uint32_t x = byte & 255;
    x = (x | x << 12) & 0x000f000fu;
    x = (x | x << 6) & 0x03030303u;
    return (x | x << 3) & 0x11111111u;
}

__device__ __forceinline__ uint32_t pairs_of_byte(uint32_t byte)
{
    uint32_t x = byte & 255;
    x = (x | x << 12) & 0x000f000fu;
    return (x | x << 6) & 0x03030303u;
}

/* Channels 8 v ... 8 v + 7 of a run of a key, in their order: they are byte v of every word. */
template <int BITS>
__device__ __forceinline__ void trellis_channels(uint32_t (&byte)[2], const struct subset_bits &z, const uint32_t (&word)[BITS],
                                                 int v, const uint32_t *table)
{
    uint32_t nibbles = bits_of_byte(z.zero >> 8 * v) | bits_of_byte(z.one >> 8 * v) << 1, top = 0;
    if (BITS == 2)
        nibbles |= bits_of_byte(word[1] >> 8 * v) << 2;
    else
        nibbles |= pairs_of_byte(word[1] >> 8 * v) << 2 | pairs_of_byte(word[2 % BITS] >> 8 * v) << 6;
    if (BITS == 4) {
        const uint32_t x = word[3 % BITS] >> 8 * v & 255;
        top = bits_of_byte(x >> 4 | x << 4);
    }
    lookup_levels<BITS>(byte, nibbles, top, table);
}

/* Eight bytes in the order of an octet: from those of codes 0 to 3 and of codes 4 to 7. */
template <int KIND>
__device__ __forceinline__ void in_octet_order(uint32_t (&b)[2], uint32_t first, uint32_t second)
{
    b[0] = code<KIND>::natural ? first : prmt(first, second, 0x5140);
    b[1] = code<KIND>::natural ? second : prmt(first, second, 0x7362);
}

/* 2 bits: of each byte of four words, those pairs of bits that are `right` and 4 more from its lowest. They are made before the
 * next tile is asked for, so that its registers are free without copies: 25 instructions of a tile of k2v2 less. */
__device__ __forceinline__ uint4 nibbles_of_pairs(const uint4 &w, int right)
{
    const uint32_t mask = 0x33333333u;
    return make_uint4(kept(w.x >> right & mask), kept(w.y >> right & mask), kept(w.z >> right & mask),
                      kept(w.w >> right & mask));
}

/* The keys of a tile as one lane holds them: n vectors of a word of tokens 4 g ... 4 g + 3. A mma step takes one octet of
 * eight channels: from dim 128 on the lane has whole runs t, t + 4 ...; with dim 64 half of run t % 2. */
template <int KIND, int D>
struct keys {
    static constexpr int steps = D / 32, runs = D / 32;
    static constexpr int lane_runs = runs >= 4 ? runs / 4 : 1;
    static constexpr int n = KIND == 2   ? (runs >= 4 ? 2 : 1) * lane_runs
                             : KIND == 3 ? 3 * lane_runs
                             : KIND == 8 ? 2 * steps
                             : KIND == 4 ? steps
                                         : steps + (KIND == 6 && runs >= 4 ? 2 : 1) * lane_runs;

    static __device__ __forceinline__ int run_of(int step, int t)
    {
        return runs >= 4 ? t + 4 * (step / 4) : t % 2;
    }
    static __device__ __forceinline__ int octet_of(int step, int t)
    {
        return runs >= 4 ? step % 4 : 2 * (t / 2) + step;
    }

    /* Eight of a row of bytes, a channel each, as the octet has them: two quads, with 2 bits next_quad apart. */
    static __device__ __forceinline__ void eight_of(uint32_t (&b)[2], const void *row, int step, int t)
    {
        constexpr int next_quad = KIND == 2 ? 2 : 1;
        const int octet = octet_of(step, t), quad = KIND == 2 ? octet / 2 * 4 + octet % 2 : 2 * octet;
        const uint32_t *at = (const uint32_t *)row + run_of(step, t) * 8 + quad;
        if (next_quad == 1) {
            const uint2 x = *(const uint2 *)at;
            in_octet_order<KIND>(b, x.x, x.y);
        } else {
            in_octet_order<KIND>(b, at[0], at[next_quad]);
        }
    }

    /* Vector i is word lane_word + step_word of the tile: a part that depends on the lane, and one that is known when compiling. */
    static __device__ constexpr bool is_high(int i)
    {
        return (KIND == 5 || KIND == 6) && i >= steps;
    }
    static __device__ __forceinline__ int lane_word(bool high, int t)
    {
        const int run = runs >= 4 ? t : t % 2, half = runs >= 4 ? 0 : t / 2;
        if (KIND == 2)
            return run * 2 + half;
        if (KIND == 3)
            return run * 3;
        if (KIND == 8)
            return run * 8 + half * 4;
        if (!high)
            return run * 4 + half * 2;
        return runs * 4 + (KIND == 5 ? run : run * 2 + half);
    }
    static __device__ constexpr int step_word(int i)
    {
        const int j = i - steps;
        if (KIND == 2)
            return 8 * (i / 2) + i % 2;
        if (KIND == 3)
            return 12 * (i / 3) + i % 3;
        if (KIND == 8)
            return 32 * (i / 8) + i % 8;
        if (!is_high(i))
            return 16 * (i / 4) + i % 4;
        return KIND == 5 ? 4 * j : 8 * (j / 2) + j % 2;
    }

    /* The words as decode() takes them. */
    static constexpr int n_ready = KIND == 2 ? 2 * n : n; /* with 2 bits, nibbles */
    struct ready {
        uint4 w[n_ready];
        __device__ __forceinline__ void take(const uint4 (&words)[n])
        {
#pragma unroll
            for (int i = 0; i < n; i++) {
                if (KIND == 2)
                    w[2 * i] = nibbles_of_pairs(words[i], 0), w[2 * i + 1] = nibbles_of_pairs(words[i], 2);
                else
                    w[i] = words[i];
            }
        }
    };

    /* Octet of `step`, token i of the four. */
    static __device__ __forceinline__ eight decode(const uint4 (&w)[n_ready], int step, int i, int t, const uint32_t *table)
    {
        eight e;
        const int v = step % 4;
        if (KIND == 2) {
            e = lookup<2>(part(w[step], i), table);
        } else if (KIND == 8) {
            e.r[0][0] = part(w[2 * step], i);
            e.r[0][1] = part(w[2 * step + 1], i);
        } else if (KIND == 4) {
            e = lookup<4>(part(w[step], i), table);
        } else if (KIND == 3) {
            const int b = runs >= 4 ? 3 * (step / 4) : 0;
            uint32_t w0 = part(w[b], i), w1 = part(w[b + 1], i), w2 = part(w[b + 2], i), x;
            if (runs >= 4)
                x = v == 0 ? w0 : v == 1 ? w1 : v == 2 ? w2 : spare_bits(w0, w1, w2);
            else
                x = step == 0 ? (t / 2 ? w2 : w0) : t / 2 ? spare_bits(w0, w1, w2) : w1;
            e = lookup<3>(x & 0x77777777u, table);
        } else if (KIND == 5) {
            uint32_t high = part(w[steps + (runs >= 4 ? step / 4 : 0)], i);
            e = runs >= 4 ? join<5>(part(w[step], i), high, 2 * v) : join<5>(part(w[step], i), high >> 4 * (t / 2), 2 * step);
        } else {
            uint32_t high = part(w[steps + (runs >= 4 ? 2 * (step / 4) + v / 2 : 0)], i);
            e = join<6>(part(w[step], i), high, runs >= 4 ? 4 * (v % 2) : 4 * step);
        }
        return e;
    }
};

/* The values of a tile: vectors of a word of channels 32 j + 4 g ... + 3. */
template <int KIND, int D>
struct values {
    static constexpr int parts = D / 32, per_part = KIND <= 4 ? 1 : 2, n = parts * per_part;

    /* Octet t of the tile's run is quads quad_of(t) and next_quad after it. */
    static constexpr int next_quad = KIND == 2 ? 2 : 1;
    static __device__ __forceinline__ int quad_of(int t)
    {
        return KIND == 2 ? t / 2 * 4 + t % 2 : 2 * t;
    }

    /* Vector i is word lane_word of the tile, part i / per_part of the channels. With 3 bits, lanes of the fourth octet have
     * no word of their own: decode() counts on the first. */
    static __device__ constexpr bool is_second(int i)
    {
        return i % per_part;
    }
    static __device__ __forceinline__ int lane_word(bool second, int t)
    {
        if (KIND == 8)
            return 2 * t + second;
        if (!second)
            return KIND == 2 ? t / 2 : KIND == 3 ? t % 3 : t;
        return KIND == 5 ? 4 : 4 + t / 2;
    }

    /* Part j of the words, as decode() takes it. */
    struct ready {
        uint4 w[n];
        __device__ __forceinline__ void take(const uint4 (&words)[n])
        {
#pragma unroll
            for (int i = 0; i < n; i++)
                w[i] = KIND == 2 ? nibbles_of_pairs(words[i], 2 * (threadIdx.x % 2)) : words[i];
        }
        __device__ __forceinline__ const uint4 *operator[](int j) const
        {
            return &w[j * per_part];
        }
    };

    /* Channel i of the four of part j. */
    static __device__ __forceinline__ eight decode(const uint4 (&w)[n], int j, int i, int t, const uint32_t *table)
    {
        return decode(&w[j * per_part], i, t, table);
    }

    /* Channel i of the four of a part. */
    static __device__ __forceinline__ eight decode(const uint4 *w, int i, int t, const uint32_t *table)
    {
        eight e;
        uint32_t x = part(w[0], i);
        if (KIND == 2) {
            e = lookup<2>(x, table);
        } else if (KIND == 8) {
            e.r[0][0] = x;
            e.r[0][1] = part(w[1], i);
        } else if (KIND == 4) {
            e = lookup<4>(x, table);
        } else if (KIND == 3) { /* the three words of a channel are in lanes 0 to 2, the first one in lane 3 too */
            const int word = t % 3;
            const uint32_t bits = x >> (3 - word) & 0x11111111u << word;
            const uint32_t fourth = bits | __shfl_xor_sync(~0u, bits, 1) | __shfl_xor_sync(~0u, bits, 2);
            e = lookup<3>(t == 3 ? fourth : x & 0x77777777u, table);
        } else {
            uint32_t high = part(w[1], i);
            e = KIND == 5 ? join<5>(x, high >> 2 * t, 0) : join<6>(x, high >> 4 * (t % 2), 0);
        }
        return e;
    }
};

/* The products of two rows of A (tokens or channels) with a column of B. */
template <int KIND, bool VALUES, int TABLES = code<KIND>::halves>
__device__ __forceinline__ void mma_codes(int (&sum)[4], const eight &row, const eight &next, const uint32_t (&b)[2],
                                          const int *begin)
{
#pragma unroll
    for (int h = 0; h < TABLES; h++) {
        const int *c = h ? sum : begin;
        if (KIND == 8 && VALUES)
            mma_s8u8(sum, row.r[h][0], next.r[h][0], row.r[h][1], next.r[h][1], b[0], b[1], c);
        else if (KIND == 8)
            mma_s8s8(sum, row.r[h][0], next.r[h][0], row.r[h][1], next.r[h][1], b[0], b[1], c);
        else if (VALUES)
            mma_u8u8(sum, row.r[h][0], next.r[h][0], row.r[h][1], next.r[h][1], b[0], b[1], c);
        else
            mma_u8s8(sum, row.r[h][0], next.r[h][0], row.r[h][1], next.r[h][1], b[0], b[1], c);
    }
}

#endif
