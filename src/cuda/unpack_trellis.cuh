/* Trellis codes of dim 128 for the fused kernels: keys<KIND, 128> and values<KIND, 128> of unpack.cuh for t2, t3 and t4.
 *
 * Subsets, z1 and z0, are found for whole words, 32 codes at once. Then bits and pairs of bits are moved together until a word has
 * the indices of eight codes as nibbles: quads v and v + 4 of a run are octet v. Keys are in the right lane for that. Values come
 * with four channels in a lane, all of their words, and their nibbles go through shared memory to the lanes that multiply them.
 *
 * Levels are as many tables of eight as bits less one, whose products the mma adds up. */
#ifndef AURA_CUDA_UNPACK_TRELLIS_CUH
#define AURA_CUDA_UNPACK_TRELLIS_CUH

#include "unpack.cuh"

template <int KIND>
constexpr int fused_tables = !code<KIND>::trellis ? code<KIND>::halves : code<KIND>::bits - 1;

/* Byte i of four words. */
__device__ __forceinline__ uint32_t column(const uint32_t *word, int i)
{
    const uint32_t two = i | (4 + i) << 4;
    return prmt(prmt(word[0], word[1], two), prmt(word[2], word[3], two), 0x5410);
}

/* The tables of a kind as its fused kernels look them up. t3: eight levels, then the other eight from the last to the first,
 * because the nibbles that look these up are turned. t4: with n the place of a level, 0 to 15, among those of its sign, the level
 * is the one below 0, of which there are two tables, and of one above 0 also how far apart the two of n are. They are as far apart
 * for 15 - n, because levels mirror each other, so that this is one table of eight. The first table is of even n, the second of odd
 * n; their index is bits 1, 3 and 2 of n. */
template <int KIND>
__device__ __forceinline__ void fused_table(uint32_t (&table)[8], const uint32_t *levels)
{
    const uint32_t from_the_last = 0x0123;
    uint32_t below[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        below[i] = 0x80808080u - prmt(levels[3 - i], 0, from_the_last); /* no byte borrows */
        if (KIND != AURA_TRELLIS_4)
            table[i] = kept(KIND == AURA_TRELLIS_3 && i >= 2 ? prmt(levels[5 - i], 0, from_the_last) : levels[i]);
    }
#pragma unroll
    for (int i = 0; i < 4 && KIND == AURA_TRELLIS_4; i++) {
        table[i] = kept(column(below, i < 2 ? 2 * i : 2 * i - 3));
        if (i < 2)
            table[4 + i] = kept(column(levels, 2 * i) - table[i]);
    }
}

/* The nibbles of octets 0 to 3 of a run: w[0] is not looked at. Of t4, a nibble is bits 0, 1, 3 and 2 of the place n of a level
 * among those of its sign, the last three turned if bit 0 is set; and there are the top bits, bit k of byte i being of code
 * 4k + i. */
template <int BITS>
struct trellis_nibbles {
    static constexpr int words = BITS == 4 ? 5 : 4;
    uint32_t word[words];

    /* left and right: z.zero << 1 and z.zero >> 1, of which every other bit is looked at. */
    __device__ __forceinline__ trellis_nibbles(const struct subset_bits &z, uint32_t left, uint32_t right,
                                               const uint32_t (&w)[BITS])
    {
        const uint32_t pairs = 0x33333333u, bits = 0x55555555u;
        uint32_t even, odd, upper, next; /* the lower and upper pairs of bits of nibbles of even and odd quads */
        if (BITS == 4) {
            const uint32_t one = z.one ^ z.zero, top = w[3 % BITS];
            upper = picked(bits, one, left), next = picked(bits, one >> 1, z.zero);
            even = w[1] ^ picked(bits, z.zero, left), odd = w[2 % BITS] ^ picked(bits, right, z.zero);
            word[words - 1] = kept(picked(0x0f0f0f0fu, top >> 4, top << 4));
        } else {
            even = picked(bits, z.zero, z.one << 1), odd = picked(bits, right, z.one);
            upper = BITS == 2 ? kept(w[1] & bits) : w[1];
            next = BITS == 2 ? kept(w[1] & ~bits) : w[2 % BITS]; /* of t2, one bit too high */
        }
        word[0] = picked(pairs, even, upper << 2);
        word[1] = picked(pairs, odd, next << (BITS == 2 ? 1 : 2));
        word[2] = picked(pairs, even >> 2, upper);
        word[3] = picked(pairs, odd >> 2, next >> (BITS == 2 ? 1 : 0));
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = kept(word[i]); /* now, so that the words before are free */
    }
};

/* Of t4: the nibbles that look up the third table. top: the top bits of octet v are bits v and v + 4 of each byte. */
__device__ __forceinline__ uint32_t nibbles_above(uint32_t nibbles, uint32_t top, int v)
{
    return picked_turned(0x88888888u, top << (3 - v), nibbles);
}

/* Eight codes by their nibbles, of t4 also those of nibbles_above(). A nibble with bit 3 gives 0. */
template <int BITS>
__device__ __forceinline__ eight lookup_trellis(uint32_t nibbles, uint32_t above, const uint32_t *table)
{
    eight e;
    e.r[0][0] = prmt(table[0], table[1], nibbles);
    e.r[0][1] = prmt(table[0], table[1], upper_half(nibbles));
    if (BITS > 2) {
        e.r[1][0] = prmt(table[2], table[3], lower_turned(nibbles));
        e.r[1][1] = prmt(table[2], table[3], upper_turned(nibbles));
    }
    if (BITS == 4) {
        e.r[2][0] = prmt(table[4], table[5], above);
        e.r[2][1] = prmt(table[4], table[5], upper_half(above));
    }
    return e;
}

/* The shared memory of a warp for trellis codes, of words that lanes read of each other: word 0 of values and of keys, of which a
 * lane needs that of the next four channels, or of the next run, and 0 where there is none; then the nibbles of values, of t4 also
 * those of nibbles_above(). A quarter of a warp reads, and writes, different banks. */
template <int BITS>
struct trellis_staging {
    static constexpr int words = BITS == 4 ? 8 : 4, zeros = 32, keys = 36;
    uint4 first[keys + 32], word[words][32 + 2];

    __device__ __forceinline__ void begin()
    {
        if (threadIdx.x % 32 < keys - zeros)
            first[zeros + threadIdx.x % 32] = make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ void put(const uint4 &of_key, const uint4 &of_value)
    {
        first[keys + threadIdx.x % 32] = of_key, first[threadIdx.x % 32] = of_value;
        __syncwarp();
    }
    __device__ __forceinline__ uint4 after_key() const
    {
        return first[threadIdx.x % 4 == 3 ? zeros : keys + threadIdx.x % 32 + 1];
    }
    __device__ __forceinline__ uint4 after_value() const
    {
        return first[threadIdx.x % 32 + 1];
    }
};

/* Lane (g, t) has run t of tokens 4 g ... 4 g + 3. */
template <int BITS>
struct trellis_keys {
    static constexpr int n = BITS;

    static __device__ __forceinline__ int run_of(int, int t)
    {
        return t;
    }

    /* In a run of keys, byte i of quad k is channel 8 i + k. */
    static __device__ __forceinline__ void eight_of(uint32_t (&b)[2], const void *row, int step, int t)
    {
        const uint2 *at = (const uint2 *)row + 4 * t; /* rows are 8 bytes aligned */
        const uint32_t two = step | (4 + step) << 4;
#pragma unroll
        for (int i = 0; i < 2; i++)
            b[i] = prmt(prmt(at[2 * i].x, at[2 * i].y, two), prmt(at[2 * i + 1].x, at[2 * i + 1].y, two), 0x5410);
    }

    static __device__ constexpr bool is_high(int)
    {
        return false;
    }
    static __device__ __forceinline__ int lane_word(bool, int t)
    {
        return t * BITS;
    }
    static __device__ constexpr int step_word(int i)
    {
        return i;
    }

    using nibbles_of_tokens = uint32_t[4][trellis_nibbles<BITS>::words];
    struct ready {
        nibbles_of_tokens w;

        __device__ __forceinline__ void take(const uint4 (&words)[n], const trellis_staging<BITS> &s)
        {
            const uint4 next = s.after_key();
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t word[BITS];
#pragma unroll
                for (int j = 0; j < BITS; j++)
                    word[j] = part(words[j], i);
                const uint32_t after = part(next, i);
                const trellis_nibbles<BITS> nibbles(subsets_of_key(word[0], after), word[0] >> 1 | after << 31,
                                                    word[0] >> 3 | after << 29, word);
#pragma unroll
                for (int j = 0; j < nibbles.words; j++)
                    w[i][j] = nibbles.word[j];
            }
        }
    };

    static __device__ __forceinline__ eight decode(const nibbles_of_tokens &w, int step, int i, int, const uint32_t *table)
    {
        const uint32_t above = BITS == 4 ? nibbles_above(w[i][step], w[i][trellis_nibbles<BITS>::words - 1], step) : 0;
        return lookup_trellis<BITS>(w[i][step], above, table);
    }
};

/* Lane l loads all words of channels 4 l ... 4 l + 3, and decodes octet t of channels 32 j + 4 g ... */
template <int BITS>
struct trellis_values {
    static constexpr int n = BITS, words = trellis_nibbles<BITS>::words;
    static constexpr int next_quad = 4;
    static __device__ __forceinline__ int quad_of(int t)
    {
        return t;
    }

    using staged = trellis_staging<BITS>;
    struct ready {
        const staged *s;

        __device__ __forceinline__ void take(const uint4 (&w)[n], staged &space)
        {
            s = &space;
            const uint4 next = space.after_value();
            const uint32_t u[7] = {w[0].x, w[0].y, w[0].z, w[0].w, next.x, next.y, next.z};
            uint4 out[staged::words];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                uint32_t word[BITS];
#pragma unroll
                for (int j = 0; j < BITS; j++)
                    word[j] = part(w[j], i);
                const struct subset_bits z = {u[i] ^ u[i + 1] ^ u[i + 3], u[i + 2]};
                const trellis_nibbles<BITS> nibbles(z, z.zero << 1, z.zero >> 1, word);
#pragma unroll
                for (int j = 0; j < staged::words; j++)
                    (i == 0 ? out[j].x : i == 1 ? out[j].y : i == 2 ? out[j].z : out[j].w) =
                        j < 4 ? nibbles.word[j] : nibbles_above(nibbles.word[j - 4], nibbles.word[nibbles.words - 1], j - 4);
            }
            __syncwarp(); /* all have read those of the tile before */
#pragma unroll
            for (int j = 0; j < staged::words; j++)
                space.word[j][threadIdx.x % 32] = out[j];
            __syncwarp();
        }

        struct group {
            uint4 nibbles, above;
        };
        __device__ __forceinline__ group operator[](int j) const
        {
            const int at = 8 * j + threadIdx.x % 32 / 4, t = threadIdx.x % 4;
            return {s->word[t][at], s->word[staged::words - 4 + t][at]};
        }
    };

    static __device__ __forceinline__ eight decode(const typename ready::group &x, int i, int, const uint32_t *table)
    {
        return lookup_trellis<BITS>(part(x.nibbles, i), part(x.above, i), table);
    }
};

/* The shared memory that a warp needs for tiles. */
template <int KIND>
struct staging {};
template <> struct staging<AURA_TRELLIS_2> : trellis_staging<2> {};
template <> struct staging<AURA_TRELLIS_3> : trellis_staging<3> {};
template <> struct staging<AURA_TRELLIS_4> : trellis_staging<4> {};

template <> struct keys<AURA_TRELLIS_2, 128> : trellis_keys<2> {};
template <> struct keys<AURA_TRELLIS_3, 128> : trellis_keys<3> {};
template <> struct keys<AURA_TRELLIS_4, 128> : trellis_keys<4> {};
template <> struct values<AURA_TRELLIS_2, 128> : trellis_values<2> {};
template <> struct values<AURA_TRELLIS_3, 128> : trellis_values<3> {};
template <> struct values<AURA_TRELLIS_4, 128> : trellis_values<4> {};

#endif
