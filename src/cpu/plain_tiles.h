/* The words of amx.h in plain C, so that machines without AMX run what is around them: with AURA_PLAIN_TILES, which CI compiles
 * amx.c and dispatch.c with. */
#ifndef AURA_CPU_PLAIN_TILES_H
#define AURA_CPU_PLAIN_TILES_H

static _Thread_local uint32_t mat_rows, mat_bytes; /* 0: no mat_begin before, or mat_end */
static _Thread_local int32_t mat_register[4][16][16];

static inline void mat_begin(uint32_t rows, uint32_t bytes) { mat_rows = rows, mat_bytes = bytes; }
static inline void mat_end(void) { mat_rows = mat_bytes = 0; }

static void plain_product(int32_t sum[16][16], const uint8_t *a, size_t a_stride, const uint8_t *b, uint32_t blocks, int sign)
{
    for (uint32_t i = 0; i < mat_rows * 16; i++) {
        const uint32_t column = i % 16, row = i / 16;
        sum[row][column] = 0;
        for (uint32_t k = 0; k < blocks * mat_bytes; k++) {
            const uint32_t block = k / mat_bytes, byte = k % mat_bytes;
            const uint8_t left = a[row * a_stride + 64 * block + byte];
            const uint8_t right = b[1024 * block + byte / 4 * 64 + 4 * column + byte % 4];
            sum[row][column] += (sign ? (int8_t)left : left) * (int8_t)right;
        }
    }
}

static inline void mat_multiply(size_t half, const uint8_t *a, size_t a_next, size_t a_stride, const uint8_t *b, size_t b_next,
                                uint32_t blocks, int sign)
{
    plain_product(mat_register[2 * half], a, a_stride, b, blocks, sign);
    plain_product(mat_register[2 * half + 1], a + a_next, a_stride, b + b_next, blocks, sign);
}

AURA_INLINE void mat_take(int32_t *sum, size_t half)
{
    for (int i = 0; i < 2; i++)
        memcpy(sum + 256 * i, mat_register[2 * half + (size_t)i], mat_rows * sizeof mat_register[0][0]);
}

#endif
