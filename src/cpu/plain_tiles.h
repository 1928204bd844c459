/* The words of amx.h in plain C, so that machines without AMX run what is around them: with AURA_PLAIN_TILES, which CI compiles
 * amx.c and dispatch.c with. */
#ifndef AURA_CPU_PLAIN_TILES_H
#define AURA_CPU_PLAIN_TILES_H

static _Thread_local uint32_t mat_rows, mat_bytes; /* 0: no mat_begin before, or mat_end */

static inline void mat_begin(uint32_t rows, uint32_t bytes) { mat_rows = rows, mat_bytes = bytes; }
static inline void mat_end(void) { mat_rows = mat_bytes = 0; }

AURA_INLINE void mat_products(int32_t *sum, const void *a, size_t a_stride, const uint8_t *b, size_t b_apart, uint32_t blocks,
                              const int vecs, const int sign)
{
    for (uint32_t i = 0; i < (uint32_t)vecs * mat_rows * 16; i++) {
        const uint32_t column = i % 16, row = i / 16 % mat_rows, v = i / 16 / mat_rows;
        int32_t total = 0;
        for (uint32_t k = 0; k < blocks * mat_bytes; k++) {
            const uint32_t block = k / mat_bytes, byte = k % mat_bytes;
            const uint8_t left = ((const uint8_t *)a)[row * a_stride + 64 * block + byte];
            const uint8_t right = b[v * b_apart + 1024 * block + byte / 4 * 64 + 4 * column + byte % 4];
            total += (sign ? (int8_t)left : left) * (int8_t)right;
        }
        sum[v * 256 + row * 16 + column] = total;
    }
}

#endif
