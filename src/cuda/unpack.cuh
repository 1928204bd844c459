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
    static constexpr bool natural = KIND > 4;
    static constexpr int halves = KIND == 4 ? 2 : 1; /* tables of eight entries, whose products are added by the mma */
    static constexpr int offset = KIND == 8 ? 0 : KIND == 5 ? 31 : KIND == 6 ? 63 : 64; /* level = byte - offset */
};

/* Eight values of one row: [half][register]. */
struct eight {
    uint32_t r[2][2];
};

template <int KIND>
__device__ __forceinline__ eight lookup(uint32_t nibbles, const uint32_t (&table)[4])
{
    eight e;
    e.r[0][0] = prmt(table[0], table[1], nibbles);
    e.r[0][1] = prmt(table[0], table[1], upper_half(nibbles));
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

/* The keys of a tile as one lane holds them: n vectors of a word of tokens 4 g ... 4 g + 3. A mma step takes one octet of
 * eight channels: from dim 128 on the lane has whole runs t, t + 4 ...; with dim 64 half of run t % 2. */
template <int KIND, int D>
struct keys {
    static constexpr int steps = D / 32, runs = D / 32;
    static constexpr int lane_runs = runs >= 4 ? runs / 4 : 1;
    static constexpr int n = KIND == 3 ? 3 * lane_runs
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

    /* Vector i is word lane_word + step_word of the tile: a part that depends on the lane, and one that is known when compiling. */
    static __device__ constexpr bool is_high(int i)
    {
        return (KIND == 5 || KIND == 6) && i >= steps;
    }
    static __device__ __forceinline__ int lane_word(bool high, int t)
    {
        const int run = runs >= 4 ? t : t % 2, half = runs >= 4 ? 0 : t / 2;
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
        if (KIND == 3)
            return 12 * (i / 3) + i % 3;
        if (KIND == 8)
            return 32 * (i / 8) + i % 8;
        if (!is_high(i))
            return 16 * (i / 4) + i % 4;
        return KIND == 5 ? 4 * j : 8 * (j / 2) + j % 2;
    }

    /* Octet of `step`, token i of the four. */
    static __device__ __forceinline__ eight decode(const uint4 (&w)[n], int step, int i, int t, const uint32_t (&table)[4])
    {
        eight e;
        const int v = step % 4;
        if (KIND == 8) {
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
    static constexpr int parts = D / 32, per_part = KIND == 3 || KIND == 4 ? 1 : 2, n = parts * per_part;

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
            return KIND == 3 ? t % 3 : t;
        return KIND == 5 ? 4 : 4 + t / 2;
    }

    /* Channel i of the four of part j. */
    static __device__ __forceinline__ eight decode(const uint4 (&w)[n], int j, int i, int t, const uint32_t (&table)[4])
    {
        eight e;
        uint32_t x = part(w[j * per_part], i);
        if (KIND == 8) {
            e.r[0][0] = x;
            e.r[0][1] = part(w[j * per_part + 1], i);
        } else if (KIND == 4) {
            e = lookup<4>(x, table);
        } else if (KIND == 3) { /* the three words of a channel are in lanes 0 to 2, the first one in lane 3 too */
            const int word = t % 3;
            const uint32_t bits = x >> (3 - word) & 0x11111111u << word;
            const uint32_t fourth = bits | __shfl_xor_sync(~0u, bits, 1) | __shfl_xor_sync(~0u, bits, 2);
            e = lookup<3>(t == 3 ? fourth : x & 0x77777777u, table);
        } else {
            uint32_t high = part(w[j * per_part + 1], i);
            e = KIND == 5 ? join<5>(x, high >> 2 * t, 0) : join<6>(x, high >> 4 * (t % 2), 0);
        }
        return e;
    }
};

/* The products of two rows of A (tokens or channels) with a column of B. */
template <int KIND, bool VALUES>
__device__ __forceinline__ void mma_codes(int (&sum)[4], const eight &row, const eight &next, const uint32_t (&b)[2],
                                          const int *begin)
{
#pragma unroll
    for (int h = 0; h < code<KIND>::halves; h++) {
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

/* Eight bytes in the order of an octet: from those of codes 0 to 3 and of codes 4 to 7. */
template <int KIND>
__device__ __forceinline__ void in_octet_order(uint32_t (&b)[2], uint32_t first, uint32_t second)
{
    b[0] = code<KIND>::natural ? first : prmt(first, second, 0x5140);
    b[1] = code<KIND>::natural ? second : prmt(first, second, 0x7362);
}

#endif
