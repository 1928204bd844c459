/* amx: the products of matrices of bytes by the tile registers of AMX-INT8. Written as assembly: gcc's intrinsics do not say that
 * they read memory, and a store before one could move behind it.
 *
 * Every use is between mat_begin and mat_end. mat_end leaves the registers as a thread that has never used them: the system
 * then has 8 KiB less to save, and the core may sleep. */
#ifndef AURA_CPU_AMX_H
#define AURA_CPU_AMX_H

#include "vbmi.h"

#define TILE_ZERO(t) __asm__ volatile("tilezero %tmm" #t)
#define TILE_LOAD(t, p, stride) \
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm" #t : : "r"(p), "r"((size_t)(stride)) : "memory")
#define TILE_STORE(p, t) __asm__ volatile("tilestored %%tmm" #t ", (%0,%1,1)" : : "r"(p), "r"((size_t)64) : "memory")
#define TILE_DOT(sum, a, b, sign)                                               \
    do {                                                                        \
        if (sign)                                                               \
            __asm__ volatile("tdpbssd %tmm" #b ", %tmm" #a ", %tmm" #sum);      \
        else                                                                    \
            __asm__ volatile("tdpbusd %tmm" #b ", %tmm" #a ", %tmm" #sum);      \
    } while (0)

/* From here on left factors have `rows` rows, 1 to 16, of `bytes` bytes, a multiple of 4 up to 64. Registers 0 to 3 are sums, 4 is
 * a left and 5 to 7 are right factors. */
static inline void mat_begin(uint32_t rows, uint32_t bytes)
{
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = (uint16_t)(i == 4 ? bytes : 64);
        shape.rows[i] = (uint8_t)(i <= 4 ? rows : bytes / 4);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}
static inline void mat_end(void) { __asm__ volatile("tilerelease"); }

/* sum[v][g][c] = over all blocks and bytes: row g of a times column c of b[v], for `vecs` (1, 2 or 4) matrices b[v] of 16 columns.
 * Rows of `a` are a_stride bytes apart, with sign or without, its blocks 64. b[v] begins at b + v * b_apart, with sign: rows of 64
 * bytes, four of each column. */
AURA_INLINE void mat_products(int32_t *sum, const void *a, size_t a_stride, const uint8_t *b, size_t b_apart, uint32_t blocks,
                              const int vecs, const int sign)
{
    TILE_ZERO(0);
    if (vecs > 1)
        TILE_ZERO(1);
    if (vecs > 2)
        TILE_ZERO(2);
    if (vecs > 2)
        TILE_ZERO(3);
    for (uint32_t i = 0; i < blocks; i++, b += 1024) {
        TILE_LOAD(4, (const uint8_t *)a + 64 * i, a_stride);
        TILE_LOAD(5, b, 64);
        TILE_DOT(0, 4, 5, sign);
        if (vecs < 2)
            continue;
        TILE_LOAD(6, b + b_apart, 64);
        TILE_DOT(1, 4, 6, sign);
        if (vecs < 4)
            continue;
        TILE_LOAD(7, b + 2 * b_apart, 64);
        TILE_DOT(2, 4, 7, sign);
        TILE_LOAD(5, b + 3 * b_apart, 64);
        TILE_DOT(3, 4, 5, sign);
    }
    TILE_STORE(sum, 0);
    if (vecs > 1)
        TILE_STORE(sum + 256, 1);
    if (vecs > 2)
        TILE_STORE(sum + 512, 2);
    if (vecs > 2)
        TILE_STORE(sum + 768, 3);
}

#endif
