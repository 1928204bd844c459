/* Images: 128 tokens of a KV head as f16, in the very bytes that products of 16-bit numbers read from shared memory.
 *
 *     keys     [channels / 64][128 tokens][64 channels]
 *     values   [tokens / 64][channels][64 tokens]
 *     ups      f32 [2 sides][128 tokens], where a side is plain f32 or bf16: what a token's numbers were divided by, since f16
 *              has not their range
 *
 * Both are rows of 128 bytes along the axis that a product sums over, so that neither is ever transposed: the words of keys run
 * along channels, those of values along tokens. Chunk c of row r, 16 bytes, is at place c ^ r % 8. Channels of keys beyond their
 * dim are 0.
 *
 * Numbers are divided by the unit of their side: a level times 2^-e is exact in f16, and so is what it is before its offset comes
 * off, the byte of unpack.cuh below the exponent. One product with the scale rounds, and with it the reference is added. e is the
 * least with which the unit, the codebook's step times 2^e, is 1 or more: what a cache holds then fits. */
#ifndef AURA_CUDA_IMAGE_CUH
#define AURA_CUDA_IMAGE_CUH

#include "../trellis.h"
#include "unpack.cuh"

enum { IMAGE_TOKENS = 128, IMAGE_ROW = 64, IMAGE_THREADS = 256 };

struct dev_image_side {
    uint32_t magic; /* the upper byte of an f16 whose lower byte is a level with its offset; four times */
    uint32_t zero;  /* what level 0 is then; two f16 */
    float unit, inverse_unit;
};

struct dev_images {
    struct dev_image_side k, v;
    float reference; /* the step of references in units of keys */
    uint32_t groups; /* of 64 channels that keys have */
    uint32_t v_at, ups_at, bytes; /* ups_at 0: there are none */
};

/* 128 tokens of a head, from token `first` on. Tokens [from, to) among them are codes. */
struct image_block {
    uint32_t seq, head, first, len, from, to;
    const uint8_t *page; /* the part of the page that is the head's */
};

__device__ __forceinline__ struct image_block image_block_of(const struct dev_cache &c, uint32_t seq, uint32_t len, uint32_t closed,
                                                             uint32_t head, uint32_t first)
{
    const bool codes = c.k_rows || c.v_rows;
    struct image_block b = {seq, head, first, len, max(first, c.pinned), min(first + IMAGE_TOKENS, min(closed, len)), NULL};
    if (!codes)
        b.from = b.to = first;
    b.page = first < len ? page_head(c, seq, first / AURA_PAGE, head) : c.pages;
    return b;
}

__device__ __forceinline__ const uint8_t *image_tile(const struct dev_cache &c, const struct image_block &b, uint32_t tile)
{
    return b.page + (b.first % AURA_PAGE / AURA_TILE + tile) * c.tile_bytes;
}

__device__ __forceinline__ __half2 half2_of(uint32_t bits)
{
    return *(const __half2 *)&bits;
}

__device__ __forceinline__ uint32_t bits_of(__half2 x)
{
    return *(const uint32_t *)&x;
}

/* Two numbers side by side as f16 or bf16, and eight. */
__device__ __forceinline__ uint32_t pair_of(float x, float y, uint32_t dtype)
{
    return dtype == AURA_F16 ? bits_of(__floats2half2_rn(x, y)) : bf16_bits(x) | (uint32_t)bf16_bits(y) << 16;
}

__device__ __forceinline__ uint4 eight_of(const float (&x)[8], uint32_t dtype)
{
    return make_uint4(pair_of(x[0], x[1], dtype), pair_of(x[2], x[3], dtype), pair_of(x[4], x[5], dtype),
                      pair_of(x[6], x[7], dtype));
}

/* Where a chunk of a row is. */
__device__ __forceinline__ uint8_t *image_chunk(uint8_t *rows, uint32_t row, uint32_t chunk)
{
    return rows + row * 128 + (chunk ^ row % 8) * 16;
}

/* ---- eight codes at a time ------------------------------------------------------------------------------------------- */

/* Octet v of a run: which words it needs, and the eight levels with their offset, as bytes of two registers. Trellis codes need all
 * words of the run, and words 0 that come after: of the next run of keys, or of the next four channels of values. */
template <int KIND>
struct octet {
    static constexpr bool trellis = code<KIND>::trellis;
    static constexpr int words = trellis ? code<KIND>::bits : KIND == 3 ? 3 : KIND == 4 || KIND == 2 ? 1 : 2;
    static constexpr int offset = KIND == 8 ? 128 : code<KIND>::offset;

    static __device__ __forceinline__ uint32_t row(uint32_t run, uint32_t runs, uint32_t v, int i)
    {
        return trellis     ? words * run + i
               : KIND == 8 ? 8 * run + 2 * v + i
               : KIND == 3 ? 3 * run + i
               : KIND == 2 ? 2 * run + v / 2
               : i == 0    ? 4 * run + v
               : KIND == 5 ? 4 * runs + run
                           : 4 * runs + 2 * run + v / 2;
    }
    static __device__ __forceinline__ void levels(uint32_t (&byte)[2], const uint32_t (&w)[words], uint32_t v,
                                                  const uint32_t *table)
    {
        if (KIND == 8) {
            byte[0] = w[0] ^ 0x80808080u, byte[1] = w[words - 1] ^ 0x80808080u;
        } else if (KIND > 4) {
            const eight e = join<KIND>(w[0], w[words - 1] >> (KIND == 5 ? 2 * v : 4 * (v % 2)), 0);
            byte[0] = e.r[0][0], byte[1] = e.r[0][1];
        } else {
            uint32_t nibbles = w[0];
            if (KIND == 3)
                nibbles = (v == 3 ? spare_bits(w[0], w[words / 2], w[words - 1]) : v == 0 ? w[0] : v == 1 ? w[words / 2] :
                           w[words - 1]) & 0x77777777u;
            else if (KIND == 2)
                nibbles = w[0] >> 4 * (v % 2), nibbles = (nibbles & 0x03030303u) | (nibbles & 0x0c0c0c0cu) << 2;
            const uint32_t upper = nibbles ^ 0x88888888u;
            byte[0] = prmt(table[0], table[1], nibbles), byte[1] = prmt(table[0], table[1], nibbles >> 16);
            if (KIND == 4)
                byte[0] |= prmt(table[2], table[3], upper), byte[1] |= prmt(table[2], table[3], upper >> 16);
        }
    }
    /* The same for row i of four, all their words being in w. */
    template <bool VALUES>
    static __device__ __forceinline__ void levels_of(uint32_t (&byte)[2], const uint4 (&w)[words], const uint4 &after, int i,
                                                     uint32_t v, const uint32_t *table)
    {
        uint32_t mine[words];
#pragma unroll
        for (int j = 0; j < words; j++)
            mine[j] = part(w[j], i);
        if constexpr (!trellis) {
            levels(byte, mine, v, table);
        } else if constexpr (VALUES) {
            const eight e = trellis_octet<words>(subsets_of_value(w[0], after, i), mine, (int)v, table);
            byte[0] = e.r[0][0], byte[1] = e.r[0][1];
        } else {
            trellis_channels<words>(byte, subsets_of_key(mine[0], part(after, i)), mine, (int)v, table);
        }
    }
    /* Levels i and i + 1 of the octet times 2^-e, i being even. Up to 4 bits, prmt gave levels 0 4 1 5, then 2 6 3 7; keys of
     * trellis codes have them in their order. */
    template <bool VALUES>
    static __device__ __forceinline__ __half2 pair(const uint32_t (&byte)[2], int i, const struct dev_image_side &side)
    {
        const uint32_t x = !code<KIND>::natural && (VALUES || !trellis) ? prmt(byte[i / 2 % 2], side.magic, i < 4 ? 0x4240 : 0x4341)
                                     : prmt(byte[i / 4], side.magic, i % 4 ? 0x4342 : 0x4140);
        return __hsub2(half2_of(x), half2_of(side.zero));
    }
};

/* The reference of eight channels. */
__device__ __forceinline__ void references_of(__half2 (&offset)[4], uint2 codes, float step)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t word = (i < 2 ? codes.x : codes.y) >> 16 * (i % 2);
        offset[i] = __floats2half2_rn((float)(int8_t)word * step, (float)(int8_t)(word >> 8) * step);
    }
}

/* Keys that are codes, by 128 threads: eight lanes have a row of the image. DIM: theirs, or 0, if it is not known when compiling;
 * where it is, loops become one run of instructions that begins with all loads. */
template <int KIND, uint32_t DIM>
__device__ __forceinline__ void image_keys(const struct dev_images &im, const struct dev_cache &c, const struct image_block &b,
                                           uint8_t *to, uint32_t thread)
{
    using O = octet<KIND>;
    constexpr int GROUPS = O::words > 2 || DIM % 128 ? 1 : 2; /* whose words are on their way at once */
    const uint32_t dim = DIM ? DIM : c.k_dim, groups = DIM ? DIM / IMAGE_ROW : im.groups;
    const uint32_t tile = thread / 32, chunk = thread % 8, quad = thread / 8 % 4, runs = aura_padded_run(dim) / AURA_RUN;
    const uint8_t *from = image_tile(c, b, tile);
    if (b.first + (tile + 1) * AURA_TILE <= b.from || b.first + tile * AURA_TILE >= b.to)
        return;
    const float reference = c.has_reference ? __half2float(*(const __half *)(b.page + c.reference_scale_at)) * im.reference : 0;
    const uint32_t codes_there = max(b.to, b.from) - b.from;
    uint2 scale[2];
#pragma unroll
    for (int y = 0; y < 2; y++)
        scale[y] = *(const uint2 *)(from + c.k_scale_at + (quad + 4 * y) * 8);
#pragma unroll 1
    for (uint32_t first = 0; first < groups; first += GROUPS) {
        uint4 w[GROUPS][2][O::words], after[GROUPS][2];
        uint2 codes[GROUPS];
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            const uint32_t wanted = (8 * (first + n) + chunk) * 8, channel = wanted < dim ? wanted : 0, run = channel / AURA_RUN;
#pragma unroll
            for (int y = 0; y < 2; y++) {
                const uint8_t *words = from + (quad + 4 * y) * 16;
#pragma unroll
                for (int i = 0; i < O::words; i++)
                    w[n][y][i] = *(const uint4 *)(words + O::row(run, runs, chunk % 4, i) * 128);
                after[n][y] = O::trellis && run + 1 < runs ? *(const uint4 *)(words + O::row(run + 1, runs, chunk % 4, 0) * 128)
                                                           : make_uint4(0, 0, 0, 0);
            }
            codes[n] = c.has_reference ? *(const uint2 *)(b.page + c.reference_at + channel) : make_uint2(0, 0);
        }
        __syncwarp(); /* all of it is on its way before a word is used: the compiler would ask for some later */
#pragma unroll
        for (int n = 0; n < GROUPS; n++) {
            const bool there = (8 * (first + n) + chunk) * 8 < dim;
            __half2 offset[4];
            references_of(offset, codes[n], reference);
#pragma unroll
            for (int y = 0; y < 2; y++)
#pragma unroll
                for (int i = 0; i < 4; i++) {
                    uint32_t byte[2];
                    O::template levels_of<false>(byte, w[n][y], after[n][y], i, chunk % 4, c.k_table);
                    const uint32_t both = i < 2 ? scale[y].x : scale[y].y;
                    const __half2 times = half2_of(prmt(both, both, i % 2 ? 0x3232 : 0x1010));
                    const uint32_t row = tile * AURA_TILE + 4 * (quad + 4 * y) + i;
                    store_if(there & (b.first + row - b.from < codes_there),
                             image_chunk(to + (first + n) * (IMAGE_TOKENS * 128), row, chunk),
                             make_uint4(bits_of(__hfma2(O::template pair<false>(byte, 0, im.k), times, offset[0])),
                                        bits_of(__hfma2(O::template pair<false>(byte, 2, im.k), times, offset[1])),
                                        bits_of(__hfma2(O::template pair<false>(byte, 4, im.k), times, offset[2])),
                                        bits_of(__hfma2(O::template pair<false>(byte, 6, im.k), times, offset[3]))));
                }
        }
    }
}

/* Whether all tokens of the octet that begins there are codes. */
__device__ __forceinline__ bool is_all_codes(const struct image_block &b, uint32_t token)
{
    return token >= b.from && token + 8 <= b.to;
}

/* Values that are codes, by 128 threads, octets of tokens that all are; eight lanes have a row of the image. */
template <int KIND, uint32_t DIM>
__device__ __forceinline__ void image_values(const struct dev_images &im, const struct dev_cache &c, const struct image_block &b,
                                             uint8_t *to, uint32_t thread)
{
    using O = octet<KIND>;
    constexpr int HALVES = O::words > 2 ? 1 : 2, STEPS = O::words > 1 || DIM % 128 ? 1 : 2; /* on their way at once */
    const uint32_t chunk = thread % 8, v = chunk % 4, dim = DIM ? DIM : c.v_dim;
#pragma unroll 1
    for (uint32_t half = 0; half < 2; half += HALVES)
#pragma unroll 1
        for (uint32_t first = 0; first < dim; first += 64 * STEPS) {
            uint4 w[STEPS][HALVES][O::words], after[STEPS][HALVES], scale[HALVES];
#pragma unroll
            for (int h = 0; h < HALVES; h++) {
                const uint8_t *from = image_tile(c, b, 2 * (half + h) + chunk / 4);
                scale[h] = *(const uint4 *)(from + c.v_scale_at + 16 * v);
#pragma unroll
                for (int n = 0; n < STEPS; n++) {
                    const uint32_t wanted = first + 64 * n + thread / 8 * 4, channel = wanted < dim ? wanted : 0;
#pragma unroll
                    for (int i = 0; i < O::words; i++)
                        w[n][h][i] = *(const uint4 *)(from + c.v_at + (O::row(0, 1, v, i) * dim + channel) * 4);
                    after[n][h] = O::trellis && channel + 4 < dim ? *(const uint4 *)(from + c.v_at + (channel + 4) * 4)
                                                                  : make_uint4(0, 0, 0, 0);
                }
            }
            __syncwarp(); /* as in image_keys() */
#pragma unroll
            for (int n = 0; n < STEPS; n++)
#pragma unroll
                for (int h = 0; h < HALVES; h++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const uint32_t channel = first + 64 * n + thread / 8 * 4,
                                       token = b.first + (2 * (half + h) + chunk / 4) * AURA_TILE + 8 * v;
                        uint32_t byte[2];
                        O::template levels_of<true>(byte, w[n][h], after[n][h], i, v, c.v_table);
                        store_if((channel < dim) & is_all_codes(b, token),
                                 image_chunk(to + (half + h) * dim * 128, channel + i, chunk),
                                 make_uint4(bits_of(__hmul2(O::template pair<true>(byte, 0, im.v), half2_of(scale[h].x))),
                                            bits_of(__hmul2(O::template pair<true>(byte, 2, im.v), half2_of(scale[h].y))),
                                            bits_of(__hmul2(O::template pair<true>(byte, 4, im.v), half2_of(scale[h].z))),
                                            bits_of(__hmul2(O::template pair<true>(byte, 6, im.v), half2_of(scale[h].w)))));
                    }
        }
}

/* ---- one number at a time: plain sides, pinned and open tokens -------------------------------------------------------- */

/* The state that a trellis code of channel d is in: bits u of the three channels after it, 0 beyond the last. */
__device__ __forceinline__ uint32_t state_at(const struct aura_side &side, const uint32_t *words, bool values, uint32_t dim,
                                             uint32_t token, uint32_t d)
{
    uint32_t state = 0;
    for (uint32_t i = 0; i < 3 && d + 1 + i < dim; i++) {
        const uint32_t next = d + 1 + i, place = aura_place(&side, (values ? token : next) % AURA_RUN);
        const uint32_t word = words[aura_word_at(&side, values ? 0 : next / AURA_RUN, 0) + (values ? next : token)];
        state |= (word >> (8 * (place % 4) + place / 4) & 1) << i;
    }
    return state;
}

/* The level of one code: channel d of a key, or of a value; `token` counts from the beginning of the tile. */
__device__ __forceinline__ float level_at(const struct dev_cache &c, const uint8_t *tile, bool values, uint32_t token, uint32_t d)
{
    const uint32_t kind = values ? c.v_kind : c.k_kind, *table = values ? c.v_table : c.k_table;
    struct aura_side side = {};
    side.kind = kind, side.runs = values ? 1 : aura_padded_run(c.k_dim) / AURA_RUN, side.lanes = values ? c.v_dim : AURA_TILE;
    const uint32_t along = values ? token : d, lane = values ? d : token;
    const uint32_t *words = (const uint32_t *)(tile + (values ? c.v_at : 0));
    const uint32_t place = aura_place(&side, along % AURA_RUN), bits = aura_bits_of(kind);
    uint32_t word[8];
    for (uint32_t i = 0; i < bits; i++)
        word[i] = words[aura_word_at(&side, along / AURA_RUN, i) + lane];
    uint32_t x = aura_unpack_quad(word, place / 4, kind) >> 8 * (place % 4) & 255;
    if (aura_is_trellis(kind))
        x = aura_trellis_index(x, state_at(side, words, values, values ? c.v_dim : c.k_dim, token, d));
    if (kind == AURA_TRELLIS_4 && x < 16) /* the table has the levels above 0 */
        return 64 - (float)(int)(table[(15 - x) / 4] >> 8 * ((15 - x) % 4) & 255);
    if (kind == AURA_TRELLIS_4)
        x -= 16;
    if (aura_is_table(kind))
        return (float)(int)(table[x / 4] >> 8 * (x % 4) & 255) - 64;
    return kind == 8 ? (float)(int8_t)x : 2 * (float)(int)x - (kind == 5 ? 31 : 63);
}

/* A number that the cache holds, as it is stored: in rotated space where the side has codes. 0 beyond the end. */
__device__ __forceinline__ float stored_number(const struct dev_cache &c, const struct image_block &b, bool values, uint32_t token,
                                               uint32_t d)
{
    const uint32_t dim = values ? c.v_dim : c.k_dim, kind = values ? c.v_kind : c.k_kind;
    const __half *rows = values ? c.v_rows : c.k_rows;
    const uint8_t *tile = image_tile(c, b, (token - b.first) / AURA_TILE);
    const uint32_t column = token % AURA_TILE;
    if (token >= b.len)
        return 0;
    if (!rows)
        return load_element(tile + (values ? c.v_at : 0), aura_dtype_of_kind(kind), column * dim + d);
    if (token < b.from || token >= b.to)
        return __half2float(rows[(((size_t)b.seq * c.kv_heads + b.head) * c.rows + row_of(c, token)) * dim + d]);
    float x = level_at(c, tile, values, column, d) *
              (__half2float(*(const __half *)(tile + (values ? c.v_scale_at : c.k_scale_at) + 2 * column)) * (values ? c.v_step :
               c.k_step));
    if (!values && c.has_reference)
        x += (float)*(const int8_t *)(b.page + c.reference_at + d) *
             (__half2float(*(const __half *)(b.page + c.reference_scale_at)) * c.reference_step);
    return x;
}

/* What a token's numbers are divided by so that f16 holds them: a power of two; 1 where the side has codes, which need none. */
__device__ __forceinline__ void image_ups(const struct dev_images &im, const struct dev_cache &c, const struct image_block &b,
                                          uint8_t *to, uint32_t thread)
{
    const bool values = thread >= IMAGE_TOKENS;
    const uint32_t token = b.first + thread % IMAGE_TOKENS, dim = values ? c.v_dim : c.k_dim;
    float largest = 0;
    if (values ? c.v_rows : c.k_rows)
        largest = 1024;
    else
        for (uint32_t d = 0; d < dim; d++)
            largest = fmaxf(largest, fabsf(stored_number(c, b, values, token, d)));
    const int exponent = (int)(__float_as_uint(largest) >> 23) - 127;
    ((float *)(to + im.ups_at))[thread] = __uint_as_float((uint32_t)max(exponent - 10 + 127, 1) << 23);
}

/* Eight numbers, from `token` and `channel` on, along the one or the other. */
__device__ __forceinline__ uint4 eight_numbers_at(const struct dev_images &im, const struct dev_cache &c,
                                                  const struct image_block &b, const uint8_t *to, bool values, uint32_t token,
                                                  uint32_t channel)
{
    const float inverse = values ? im.v.inverse_unit : im.k.inverse_unit;
    uint32_t pair[4];
    for (int i = 0; i < 4; i++) {
        float x[2];
        for (int j = 0; j < 2; j++) {
            const uint32_t at = token + (values ? 2 * i + j : 0), d = channel + (values ? 0 : 2 * i + j);
            const float up = im.ups_at ? ((const float *)(to + im.ups_at))[values * IMAGE_TOKENS + at - b.first] : 1;
            x[j] = d < (values ? c.v_dim : c.k_dim) ? stored_number(c, b, values, at, d) * inverse / up : 0;
        }
        pair[i] = bits_of(__floats2half2_rn(x[0], x[1]));
    }
    return make_uint4(pair[0], pair[1], pair[2], pair[3]);
}

/* All that is not codes; and of values, octets that are not codes alone. */
__device__ __forceinline__ void image_rest(const struct dev_images &im, const struct dev_cache &c, const struct image_block &b,
                                           uint8_t *to, uint32_t thread)
{
    const uint32_t chunks = im.groups * IMAGE_ROW / 8;
#pragma unroll 1
    for (uint32_t i = thread; i < IMAGE_TOKENS * chunks; i += IMAGE_THREADS) {
        const uint32_t row = i / chunks, chunk = i % chunks, token = b.first + row;
        if (!c.k_rows || 8 * chunk >= c.k_dim || token < b.from || token >= b.to)
            *(uint4 *)image_chunk(to + chunk / 8 * (IMAGE_TOKENS * 128), row, chunk % 8) =
                eight_numbers_at(im, c, b, to, false, token, 8 * chunk);
    }
#pragma unroll 1
    for (uint32_t i = thread; i < IMAGE_TOKENS / 8 * c.v_dim; i += IMAGE_THREADS) {
        const uint32_t octet = i / c.v_dim, row = i % c.v_dim, token = b.first + 8 * octet;
        if (!c.v_rows || !is_all_codes(b, token))
            *(uint4 *)image_chunk(to + im.v_at + octet / 8 * c.v_dim * 128, row, octet % 8) =
                eight_numbers_at(im, c, b, to, true, token, row);
    }
}

/* The image of a block, by 256 threads. DIM: of both sides, or 0. Where there are ups, image_ups() and a barrier came before. */
template <uint32_t DIM>
__device__ __forceinline__ void make_image(const struct dev_images &im, const struct dev_cache &c, const struct image_block &b,
                                           uint8_t *to, uint32_t thread)
{
    const uint32_t mine = thread % 128, kind = thread < 128 ? c.k_kind : c.v_kind;
    const bool keys = thread < 128;
#define IMAGE_OF(width, ...)                                        \
    case width:                                                     \
        if (keys)                                                   \
            image_keys<width, DIM>(im, c, b, to, mine);             \
        else                                                        \
            image_values<width, DIM>(im, c, b, to + im.v_at, mine); \
        break;
    switch (kind) {
        AURA_CUDA_CODES(IMAGE_OF)
    default: break;
    }
#undef IMAGE_OF
    if (!c.k_rows || !c.v_rows || im.groups * IMAGE_ROW != c.k_dim || b.from != b.first || b.to != b.first + IMAGE_TOKENS)
        image_rest(im, c, b, to, thread);
}

#endif
