/* The tensor types: unpacking, numbers, panels. */
#define _POSIX_C_SOURCE 200809L
#include "../src/base/exact.h"
#include "weights.h"

#include <stdlib.h>
#include <string.h>

#include "../src/base/dtype.h"
#include "../src/base/threads.h"

struct weight_type {
    uint32_t type, bits, part, parts, zero, min;
};

static const struct weight_type *weight_type(uint32_t type)
{
#define ROW(name, isa, number, bytes, bits, part, parts, zero, min) {GGUF_TYPE_##name, bits, part, parts, zero, min},
    static const struct weight_type types[] = {WEIGHT_TYPES(ROW, any)};
#undef ROW
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

/* ---- blocks as they are in a file -------------------------------------------------------------------------------------- */

static uint16_t half_at(const uint8_t *at)
{
    return (uint16_t)(at[0] | at[1] << 8);
}

/* 16 bytes hold 32 codes: the low nibbles, then the high ones. */
static void nibbles(const uint8_t *bytes, uint8_t *code)
{
    for (int i = 0; i < 16; i++) {
        code[i] = bytes[i] & 15;
        code[16 + i] = bytes[i] >> 4;
    }
}

static void fifth_bits(const uint8_t *bytes, uint8_t *code)
{
    for (int i = 0; i < 32; i++)
        code[i] |= (uint8_t)((bytes[i / 8] >> i % 8 & 1) << 4);
}

static void unpack_Q8_0(const uint8_t *b, struct weight_block *out)
{
    out->d = half_at(b);
    for (int i = 0; i < 32; i++)
        out->code[i] = b[2 + i] ^ 128; /* signed in the file */
}

static void unpack_Q4_0(const uint8_t *b, struct weight_block *out)
{
    out->d = half_at(b);
    nibbles(b + 2, out->code);
}

static void unpack_Q4_1(const uint8_t *b, struct weight_block *out)
{
    out->d = half_at(b), out->m = half_at(b + 2);
    nibbles(b + 4, out->code);
}

static void unpack_Q5_0(const uint8_t *b, struct weight_block *out)
{
    out->d = half_at(b);
    nibbles(b + 6, out->code);
    fifth_bits(b + 2, out->code);
}

static void unpack_Q5_1(const uint8_t *b, struct weight_block *out)
{
    out->d = half_at(b), out->m = half_at(b + 2);
    nibbles(b + 8, out->code);
    fifth_bits(b + 4, out->code);
}

/* d, m, and 8 scales and 8 mins of 6 bits in 12 bytes. The first four scales are the low 6 bits of bytes 0 to 3, the first four
 * mins those of bytes 4 to 7. The last four have their low bits in the nibbles of bytes 8 to 11, and their upper two in bytes 0
 * to 7. */
static void unpack_k_head(const uint8_t *b, struct weight_block *out)
{
    const uint8_t *s = b + 4;
    out->d = half_at(b), out->m = half_at(b + 2) ^ 0x8000; /* a file means d * code - m */
    for (int i = 0; i < 4; i++) {
        out->scale[i] = (int8_t)(s[i] & 63);
        out->min[i] = s[4 + i] & 63;
        out->scale[4 + i] = (int8_t)((s[8 + i] & 15) | s[i] >> 6 << 4);
        out->min[4 + i] = (uint8_t)(s[8 + i] >> 4 | s[4 + i] >> 6 << 4);
    }
}

/* 32 bytes hold 64 codes: the low nibbles, then the high ones. */
static void unpack_Q4_K(const uint8_t *b, struct weight_block *out)
{
    unpack_k_head(b, out);
    for (int i = 0; i < 256; i++)
        out->code[i] = b[16 + i / 64 * 32 + i % 32] >> (i / 32 % 2 ? 4 : 0) & 15;
}

static void unpack_Q5_K(const uint8_t *b, struct weight_block *out)
{
    unpack_k_head(b, out);
    for (int i = 0; i < 256; i++)
        out->code[i] = (uint8_t)((b[48 + i / 64 * 32 + i % 32] >> (i / 32 % 2 ? 4 : 0) & 15) | (b[16 + i % 32] >> i / 32 & 1) << 4);
}

/* Two halves of 128 codes. Of each, 64 bytes have the low bits: code i and code i + 64 share a byte. 32 bytes have the upper
 * bits: a byte has two bits for each of four codes that are 32 apart. */
static void unpack_Q6_K(const uint8_t *b, struct weight_block *out)
{
    for (int i = 0; i < 256; i++) {
        int half = i / 128, at = i % 128;
        int low = b[half * 64 + at % 64] >> (at / 64 ? 4 : 0) & 15, high = b[128 + half * 32 + at % 32] >> 2 * (at / 32) & 3;
        out->code[i] = (uint8_t)(low | high << 4);
    }
    memcpy(out->scale, b + 192, 16);
    out->d = half_at(b + 208);
}

void weight_unpack(uint32_t type, const void *row, size_t block, struct weight_block *out)
{
    const uint8_t *b = (const uint8_t *)row + block * gguf_type_info(type)->bytes;
    memset(out->scale, 1, sizeof out->scale);
    memset(out->min, 1, sizeof out->min);
    out->m = 0;
    switch (type) {
#define CASE(name, ...) case GGUF_TYPE_##name: unpack_##name(b, out); break;
        WEIGHT_TYPES(CASE, any)
#undef CASE
    }
}

/* ---- numbers ------------------------------------------------------------------------------------------------------------ */

static void float_row(uint32_t type, const void *row, size_t cols, float *out)
{
    const uint8_t *bytes = row;
    if (type == GGUF_TYPE_F32)
        memcpy(out, row, cols * sizeof *out);
    else
        for (size_t i = 0; i < cols; i++)
            out[i] = type == GGUF_TYPE_F16 ? aura_f32_from_f16(half_at(bytes + 2 * i)) : aura_f32_from_bf16(half_at(bytes + 2 * i));
}

void weight_row(uint32_t type, const void *row, size_t cols, float *out)
{
    const struct weight_type *t = weight_type(type);
    struct weight_block b;
    if (!t) {
        float_row(type, row, cols, out);
        return;
    }
    for (size_t block = 0, block_cols = t->part * t->parts; block < cols / block_cols; block++) {
        weight_unpack(type, row, block, &b);
        float d = aura_f32_from_f16(b.d), m = aura_f32_from_f16(b.m);
        for (size_t i = 0; i < block_cols; i++) {
            float step = d * (float)b.scale[i / t->part], least = m * (float)b.min[i / t->part];
            out[block * block_cols + i] = step * (float)(b.code[i] - (int)t->zero) + least;
        }
    }
}

/* ---- panels ------------------------------------------------------------------------------------------------------------- */

static size_t part_bytes(const struct weight_type *t)
{
    return (t->parts > 1 ? PANEL_ROWS * (1 + t->min) : 0) + (size_t)PANEL_ROWS * t->part * t->bits / 8;
}

static size_t head_bytes(const struct weight_type *t)
{
    return PANEL_ROWS * sizeof(uint16_t) * (1 + t->min);
}

size_t panel_block_bytes(uint32_t type)
{
    const struct weight_type *t = weight_type(type);
    return t ? head_bytes(t) + t->parts * part_bytes(t) : (size_t)PANEL_ROWS * PANEL_COLS * gguf_type_info(type)->bytes;
}

/* Writes the codes of a part of row r; `to` is where the panel has the part's codes of all rows. */
static void put_codes(const struct weight_type *t, size_t r, const uint8_t *code, uint8_t *to)
{
    if (t->bits == 8) {
        for (size_t i = 0; i < t->part; i++)
            to[i / 4 * 64 + 4 * r + i % 4] = code[i];
        return;
    }
    size_t planes = t->bits - 4, pair_bytes = 64 + 16 * planes;
    for (size_t i = 0; i < t->part; i++) {
        size_t quad = i / 4 % 2, place = 4 * r + i % 4;
        uint8_t *pair = to + i / 8 * pair_bytes;
        pair[place] |= (uint8_t)((code[i] & 15) << 4 * quad);
        for (size_t plane = 0; plane < planes; plane++)
            pair[64 + 16 * plane + 8 * quad + place / 8] |= (uint8_t)((code[i] >> (4 + plane) & 1) << place % 8);
    }
}

/* Writes a block of row r into its panel, which is zero where nobody has written yet. */
static void put_block(const struct weight_type *t, size_t r, const struct weight_block *b, uint8_t *to)
{
    memcpy(to + 2 * r, &b->d, sizeof b->d);
    if (t->min)
        memcpy(to + 2 * (PANEL_ROWS + r), &b->m, sizeof b->m);
    to += head_bytes(t);
    for (size_t part = 0; part < t->parts; part++, to += part_bytes(t)) {
        uint8_t *codes = to;
        if (t->parts > 1) {
            to[r] = (uint8_t)b->scale[part];
            codes += PANEL_ROWS;
        }
        if (t->parts > 1 && t->min) {
            to[PANEL_ROWS + r] = b->min[part];
            codes += PANEL_ROWS;
        }
        put_codes(t, r, b->code + part * t->part, codes);
    }
}

struct packing {
    const struct matrix *matrix;
    const uint8_t *rows;
    size_t row_bytes;
};

static void put_floats(const struct matrix *m, const uint8_t *row, size_t r, uint8_t *panel)
{
    size_t bytes = gguf_type_info(m->type)->bytes;
    for (size_t i = 0; i < m->cols; i++)
        memcpy(panel + (i * PANEL_ROWS + r) * bytes, row + i * bytes, bytes);
}

static void pack_panel(void *work, size_t i)
{
    const struct packing *p = work;
    const struct matrix *m = p->matrix;
    const struct weight_type *t = weight_type(m->type);
    uint8_t *panel = m->data + i * m->panel_bytes;
    struct weight_block b;
    memset(panel, 0, m->panel_bytes);
    for (size_t r = 0; r < PANEL_ROWS && i * PANEL_ROWS + r < m->rows; r++) {
        const uint8_t *row = p->rows + (i * PANEL_ROWS + r) * p->row_bytes;
        if (!t)
            put_floats(m, row, r, panel);
        for (size_t block = 0; t && block < m->blocks; block++) {
            weight_unpack(m->type, row, block, &b);
            put_block(t, r, &b, panel + block * panel_block_bytes(m->type));
        }
    }
}

int matrix_create(const aura_ctx *ctx, uint32_t type, const void *data, size_t rows, size_t cols, struct matrix *matrix)
{
    const struct gguf_type_info *info = gguf_type_info(type);
    size_t block = info->block > 1 ? info->block : PANEL_COLS;
    struct matrix m = {type, rows, cols, (cols + block - 1) / block, (rows + PANEL_ROWS - 1) / PANEL_ROWS, 0, NULL};
    void *memory = NULL;
    m.panel_bytes = m.blocks * panel_block_bytes(type);
    if (m.panel_bytes > SIZE_MAX / 2 / m.panels || posix_memalign(&memory, 64, m.panels * m.panel_bytes + 64))
        return -1;
    m.data = memory;
    struct packing packing = {&m, data, cols / info->block * info->bytes};
    aura_run(ctx, m.panels, pack_panel, &packing);
    *matrix = m;
    return 0;
}

void matrix_destroy(struct matrix *matrix)
{
    free(matrix->data);
    memset(matrix, 0, sizeof *matrix);
}
