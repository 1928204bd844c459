/* Good arguments for every call over rows. */
#ifndef AURA_TEST_API_H
#define AURA_TEST_API_H

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_rows.h"
#include "../test.h"

enum { DIM = 64, ROWS = 4 };

static aura_ctx *ctx;

/* Good arguments for every call, made anew for each test; outputs are poisoned. */
static struct {
    aura_codebook book;
    aura_rotation rotation;
    aura_rotate_args rotate;
    aura_encode_args encode;
    aura_decode_args decode;
    uint8_t signs[AURA_MAX_DIM / 8];
    float matrix[DIM * DIM], balance[DIM], x[ROWS * DIM];
    struct {
        float y[ROWS * DIM], scales[ROWS];
        uint8_t packed[ROWS * DIM];
    } out;
} g;

static void setup(void)
{
    memset(&g, 0, sizeof g);
    memset(&g.out, 0x5a, sizeof g.out);
    aura_codebook_get(AURA_TABLE_GRID, 4, &g.book);
    aura_signs(1, 0, DIM, g.signs);
    for (int i = 0; i < ROWS * DIM; i++)
        g.x[i] = (float)((i * 37 + i / DIM * 11) % 101 - 50) * 0.07f;
    for (int i = 0; i < DIM; i++)
        g.matrix[i * DIM + (i + 1) % DIM] = 1, g.balance[i] = 2;
    aura_rotation rotation = {sizeof rotation, AURA_ROTATION_HADAMARD, DIM, g.signs, g.matrix, NULL};
    aura_rotate_args rotate = {sizeof rotate, &g.rotation, ROWS, g.x, g.out.y, AURA_F32, AURA_F32, 0, 0};
    aura_encode_args encode = AURA_ENCODE_ARGS_INIT;
    aura_decode_args decode = AURA_DECODE_ARGS_INIT;
    g.rotation = rotation;
    g.rotate = rotate;
    encode.codebook = decode.codebook = &g.book;
    encode.rotation = decode.rotation = &g.rotation;
    encode.dim = decode.dim = DIM;
    encode.rows = decode.rows = ROWS;
    encode.in = g.x;
    encode.packed = g.out.packed;
    encode.scales = g.out.scales;
    decode.packed = g.out.packed;
    decode.scales = g.out.scales;
    decode.out = g.out.y;
    g.encode = encode;
    g.decode = decode;
}

#endif
