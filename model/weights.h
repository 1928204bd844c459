/* Weights: what the tensor types of a file mean, and the form in which matrices are multiplied.
 *
 * A quantised type is blocks of numbers, a block is parts with a factor of their own, and a number is
 *     x = d * scale[part] * (code - zero) + m * min[part]
 * with d and m in f16 for the block, and scale and min small integers for the part (1 where a block is one part). So every type
 * is a row of WEIGHT_TYPES in matmul_variants.h, unpacking it is a function of its own, and all that follows is common. */
#ifndef AURA_WEIGHTS_H
#define AURA_WEIGHTS_H

#include <stddef.h>
#include <stdint.h>

#include "../include/aura.h"
#include "gguf.h"

enum { WEIGHT_BLOCK = 256, WEIGHT_PARTS = 16 }; /* the most of any type */

struct weight_block {
    uint8_t code[WEIGHT_BLOCK];
    uint16_t d, m;             /* f16 */
    int8_t scale[WEIGHT_PARTS];
    uint8_t min[WEIGHT_PARTS];
};

/* Unpacks block number `block` of a row of a quantised type. */
void weight_unpack(uint32_t type, const void *row, size_t block, struct weight_block *out);

/* A row as numbers: what the type means. cols is a multiple of the type's block. */
void weight_row(uint32_t type, const void *row, size_t cols, float *out);

/* ---- matrices ---------------------------------------------------------------------------------------------------------
 *
 * 16 rows are a panel; rows of zeros fill up the last one. A panel is its blocks one after the other; a block has the numbers of
 * all 16 rows. So a vector holds the same column of many rows, and a product needs no sum over lanes. A block is:
 *     f16 d[16]; f16 m[16] where there is a min;
 *     for each part: int8 scale[16] and uint8 min[16] where there are several parts, and the codes.
 * Codes are in quads of 4 columns; byte or nibble 4 r + c of a quad is column c of row r. A quad of 8-bit codes is 64 bytes.
 * Where codes have fewer bits, two quads share 64 bytes: the first has the low nibbles, the second the high ones. Then follow the
 * other bits: bit 4 of the first quad, 8 bytes, and of the second; then bit 5 of both, where codes have 6 bits.
 * Floats are stored column by column, 16 rows together; columns of zeros fill them up to a multiple of 32. */
enum { PANEL_ROWS = 16, PANEL_COLS = 32 };

struct matrix {
    uint32_t type;
    size_t rows, cols;  /* of the tensor: it maps cols numbers to rows numbers */
    size_t blocks;      /* of a row; of floats, blocks of PANEL_COLS */
    size_t panels, panel_bytes;
    uint8_t *data;      /* [panels][panel_bytes], aligned to 64 */
};

/* Makes a matrix of a tensor [rows][cols] whose type gguf_type_info() knows, on the threads of ctx. 0 when good; -1: no memory. */
int matrix_create(const aura_ctx *ctx, uint32_t type, const void *data, size_t rows, size_t cols, struct matrix *matrix);
void matrix_destroy(struct matrix *matrix); /* a struct of zeros is allowed */

/* Bytes of a block of a panel. */
size_t panel_block_bytes(uint32_t type);

#endif
