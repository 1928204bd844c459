/* The bytes of the cache. doc/format.md draws them; this file and format.c are what the drawings are of.
 *
 * A page holds 256 consecutive tokens of one sequence. For each KV head, one after the other:
 *
 *     tile 0 ... tile 7         32 tokens each
 *     reference codes           s8 [padded k_dim]       what the page's keys are encoded relative to
 *     reference scale           f16, padded to 64 bytes
 *
 * and a tile is
 *
 *     keys                      packed: u32 [words][32 tokens];   plain: [32 tokens][k_dim]
 *     values                    packed: u32 [words][v_dim];       plain: [32 tokens][v_dim]
 *     key scales, value scales  f16 [32] each, 64 bytes; absent for a plain side
 *
 * Packing runs along the channels of a token for keys, so that a lane is a token, and along the tokens of a channel for
 * values, so that a lane is a channel. 32 codes along that axis are a run: eight quads, quad k being codes 4 k ... 4 k + 3,
 * one in each byte. A run takes as many words as a code has bits, and a code stays in its byte, so that quads come out of
 * words by shifts and masks alone:
 *
 *     2 bits   byte i of word w:  bits 2 j, 2 j + 1 = code 16 w + 4 j + i
 *     4 bits   byte i of word w:  low nibble = code 8 w + i, high nibble = code 8 w + 4 + i
 *     8 bits   byte i of word w:  code 4 w + i
 *     3 bits   words 0 to 2 as with 4 bits, codes 0 to 23 in the low three bits of the nibbles; of quads 6 and 7, bit b is
 *              the top bit of the low and of the high nibbles of word b
 *     5 bits   the low 4 bits as with 4 bits, in words of their own; then one word: byte i, bit k = bit 4 of code 4 k + i
 *     6 bits   the low 4 bits likewise; then two words as with 2 bits
 *
 * Trellis codes (trellis.h) have words of single bits, byte i, bit k being of code 4 k + i, and pairs of words of two bits, of
 * which byte i, bits 2 j, 2 j + 1 of word w are of code 8 j + 4 w + i:
 *
 *     t2       bit 0; bit 1
 *     t3       bit 0; bits 1 and 2, a pair
 *     t4       bit 0; bits 1 and 2, a pair; bit 3, the halves of a byte exchanged: bit k is of code 4 (k ^ 4) + i
 *
 * so that bit 0 of a run is a word, and its neighbours along a path are shifts of it. For that, code 4 k + i of a run of such keys
 * is channel 8 i + k; everywhere else code c of a run is channel or token c.
 *
 * The low words of all runs come before the high words of all runs. Columns without an encoded token hold anything. */
#ifndef AURA_FORMAT_H
#define AURA_FORMAT_H

#include <string.h>

#include "../include/aura.h"
#include "variants.h"

/* The device packs with the same text. */
#ifdef __CUDACC__
#define AURA_ANYWHERE __host__ __device__
#else
#define AURA_ANYWHERE
#endif

enum {
    AURA_TILE = 32,
    AURA_PAGE = 256,
    AURA_PAGE_TILES = AURA_PAGE / AURA_TILE,
    AURA_RUN = 32,      /* codes */
    AURA_PINNED = 4,    /* tokens at the beginning of a sequence that stay in f16 */
    AURA_TILE_DIM = 512 /* largest dim of a cache */
};

/* One side of a tile. */
struct aura_side {
    uint32_t kind, dim;
    uint32_t runs;       /* packed: how many follow each other along the packed axis */
    uint32_t lanes;      /* packed: words side by side, 32 tokens or dim channels */
    uint32_t bytes;      /* of the words or rows of a tile */
    uint32_t scale_bytes; /* 64, or 0 for a plain side */
    float step;          /* packed: a number is scale * step * level */
    int32_t mul, add;    /* packed: level = mul * x + add, where x is the code, or its entry in level[] up to 4 bits */
    int8_t level[32];    /* up to 4 bits: all entries, of trellis codes by the index of a level; repeated until the array is full */
};

struct aura_layout {
    struct aura_side k, v;
    uint32_t v_at, k_scale_at, v_scale_at, tile_bytes; /* in a tile */
    uint32_t reference_at, reference_scale_at;         /* in the part of a page that belongs to one KV head */
    uint32_t head_bytes;
    float reference_step;                              /* the reference is scale * step * code */
};

/* The dim that a side has whose vectors have `dim` numbers: the next of variants.h. Vectors are stored with zeros at their ends,
 * which change no product and no sum. 0: there is none so large. */
uint32_t aura_stored_dim(uint32_t dim);

/* The caller has checked both kinds and dims; those of the layout are the stored ones. */
void aura_layout_init(struct aura_layout *layout, aura_format format, uint32_t k_dim, uint32_t v_dim);

static inline AURA_ANYWHERE int aura_is_trellis(uint32_t kind)
{
    return kind >= AURA_TRELLIS_2;
}

static inline AURA_ANYWHERE int aura_is_packed(uint32_t kind)
{
    return kind <= 8 || aura_is_trellis(kind);
}

/* Of a code; a run takes as many words. */
static inline AURA_ANYWHERE uint32_t aura_bits_of(uint32_t kind)
{
    return aura_is_trellis(kind) ? kind - AURA_TRELLIS_2 + 2 : kind;
}

/* Whether levels are looked up in a table of bytes. */
static inline AURA_ANYWHERE int aura_is_table(uint32_t kind)
{
    return aura_bits_of(kind) <= 4;
}

/* Of a number of a plain side. */
static inline AURA_ANYWHERE uint32_t aura_plain_bytes(uint32_t kind)
{
    return kind == AURA_ROW_F32 ? 4 : 2;
}

static inline AURA_ANYWHERE uint32_t aura_padded_run(uint32_t dim)
{
    return (dim + AURA_RUN - 1) / AURA_RUN * AURA_RUN;
}

/* Between 4 and 8 bits a code is split: its low 4 bits are in low words, those above in high words. Such codes count
 * from 0, and their levels are the odd numbers around 0. */
static inline AURA_ANYWHERE int aura_is_split(uint32_t kind)
{
    return kind > 4 && kind < 8;
}

/* Low words of a run; the others are high words. */
static inline AURA_ANYWHERE uint32_t aura_low_words(uint32_t kind)
{
    return aura_is_split(kind) ? 4 : aura_bits_of(kind);
}

/* Whether two products of a code and a byte can be too large for 16 bits. */
static inline AURA_ANYWHERE int aura_is_wide(uint32_t kind)
{
    return aura_bits_of(kind) > 6;
}

/* Where word i of a run is, counted in words from the beginning of the side, for lane 0. */
static inline AURA_ANYWHERE size_t aura_word_at(const struct aura_side *s, uint32_t run, uint32_t i)
{
    uint32_t low = aura_low_words(s->kind);
    size_t row = i < low ? (size_t)run * low + i : (size_t)s->runs * low + (size_t)run * (aura_bits_of(s->kind) - low) + (i - low);
    return row * s->lanes;
}

static inline AURA_ANYWHERE uint32_t aura_each_byte(uint32_t x)
{
    return x * 0x01010101u;
}

/* Which code of a run, of 4 k + i, channel c of keys is, or token c of values. */
static inline AURA_ANYWHERE uint32_t aura_place(const struct aura_side *s, uint32_t c)
{
    return aura_is_trellis(s->kind) && s->lanes == AURA_TILE ? 4 * (c % 8) + c / 8 : c;
}

/* Words of one bit of each code, bit 3 with halves exchanged; and word w of a pair of two bits of each, from bit `at` on. */
static inline AURA_ANYWHERE uint32_t aura_pack_single(const uint32_t *quad, int at)
{
    uint32_t word = 0;
    for (int k = 0; k < 8; k++)
        word |= (quad[k] >> at & aura_each_byte(1)) << (at == 3 ? k ^ 4 : k);
    return word;
}

static inline AURA_ANYWHERE uint32_t aura_pack_pair(const uint32_t *quad, int at, int w)
{
    uint32_t word = 0;
    for (int j = 0; j < 4; j++)
        word |= (quad[2 * j + w] >> at & aura_each_byte(3)) << 2 * j;
    return word;
}

static inline AURA_ANYWHERE void aura_pack_trellis(uint32_t *word, const uint32_t *quad, uint32_t bits)
{
    word[0] = aura_pack_single(quad, 0);
    for (int w = 0; bits > 2 && w < 2; w++)
        word[1 + w] = aura_pack_pair(quad, 1, w);
    if (bits != 3)
        word[bits - 1] = aura_pack_single(quad, bits == 2 ? 1 : 3);
}

static inline AURA_ANYWHERE uint32_t aura_unpack_trellis(const uint32_t *word, int k, uint32_t bits)
{
    uint32_t quad = word[0] >> k & aura_each_byte(1);
    if (bits > 2)
        quad |= (word[1 + k % 2] >> k / 2 * 2 & aura_each_byte(3)) << 1;
    if (bits != 3)
        quad |= (word[bits - 1] >> (bits == 2 ? k : k ^ 4) & aura_each_byte(1)) << (bits == 2 ? 1 : 3);
    return quad;
}

/* word[bits] = the codes of a run, given as quads. A code has no bits above its width. */
static inline AURA_ANYWHERE void aura_pack_run(uint32_t *word, const uint32_t *quad, uint32_t kind)
{
    uint32_t low = aura_each_byte(kind == 3 ? 7 : 15);
    if (aura_is_trellis(kind)) {
        aura_pack_trellis(word, quad, aura_bits_of(kind));
        return;
    }
    switch (kind) {
    case 2:
        for (int w = 0; w < 2; w++)
            word[w] = quad[4 * w] | quad[4 * w + 1] << 2 | quad[4 * w + 2] << 4 | quad[4 * w + 3] << 6;
        return;
    case 8:
        memcpy(word, quad, 8 * sizeof *word);
        return;
    case 3:
        for (int b = 0; b < 3; b++)
            word[b] = quad[2 * b] | quad[2 * b + 1] << 4 | (quad[6] >> b & aura_each_byte(1)) << 3 |
                      (quad[7] >> b & aura_each_byte(1)) << 7;
        return;
    default: /* 4, 5, 6 */
        for (int w = 0; w < 4; w++)
            word[w] = (quad[2 * w] & low) | (quad[2 * w + 1] & low) << 4;
    }
    if (kind == 5)
        word[4] = 0;
    for (int k = 0; kind == 5 && k < 8; k++)
        word[4] |= (quad[k] >> 4 & aura_each_byte(1)) << k;
    for (int w = 0; kind == 6 && w < 2; w++)
        word[4 + w] = (quad[4 * w] >> 4 & aura_each_byte(3)) | (quad[4 * w + 1] >> 4 & aura_each_byte(3)) << 2 |
                      (quad[4 * w + 2] >> 4 & aura_each_byte(3)) << 4 | (quad[4 * w + 3] >> 4 & aura_each_byte(3)) << 6;
}

/* The other way: quad k of a run from its words. */
static inline AURA_ANYWHERE uint32_t aura_unpack_quad(const uint32_t *word, int k, uint32_t kind)
{
    if (aura_is_trellis(kind))
        return aura_unpack_trellis(word, k, aura_bits_of(kind));
    if (kind == 2)
        return word[k / 4] >> 2 * (k % 4) & aura_each_byte(3);
    if (kind == 8)
        return word[k];
    if (kind == 3 && k >= 6) {
        int at = k == 6 ? 3 : 7;
        return (word[0] >> at & aura_each_byte(1)) | (word[1] >> at & aura_each_byte(1)) << 1 |
               (word[2] >> at & aura_each_byte(1)) << 2;
    }
    uint32_t nibble = word[k / 2] >> 4 * (k % 2) & aura_each_byte(kind == 3 ? 7 : 15);
    if (kind == 5)
        return nibble | (word[4] >> k & aura_each_byte(1)) << 4;
    if (kind == 6)
        return nibble | (word[4 + k / 4] >> 2 * (k % 4) & aura_each_byte(3)) << 4;
    return nibble;
}

/* The code that is stored for an index of the grid table: 8-bit codes are signed. */
static inline AURA_ANYWHERE uint8_t aura_code_of_index(uint32_t index, uint32_t kind)
{
    return (uint8_t)(kind == 8 ? index - 127 : index);
}

/* The level, a whole number, that a code stands for; of trellis codes, the index of a level instead. */
static inline int32_t aura_level_of_code(const struct aura_side *s, uint8_t code)
{
    int32_t x = aura_is_table(s->kind) ? s->level[code & 31] : s->kind == 8 ? (int8_t)code : code;
    return s->mul * x + s->add;
}

#endif
