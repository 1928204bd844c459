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

/* From here on left factors have `rows` rows, 1 to 16, of `bytes` bytes, a multiple of 4 up to 64. Registers 0 to 3 are sums, 4
 * and 5 left and 6 and 7 right factors. */
static inline void mat_begin(uint32_t rows, uint32_t bytes)
{
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shape.bytes[i] = (uint16_t)(i / 2 == 2 ? bytes : 64);
        shape.rows[i] = (uint8_t)(i < 6 ? rows : bytes / 4);
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
}
static inline void mat_end(void) { __asm__ volatile("tilerelease"); }

/* Two products, into sums 0 and 1 or, with half, 2 and 3: row g of a times column c of b over all blocks and bytes, and the same of
 * what is a_next and b_next bytes on. Rows of a are a_stride bytes apart, with sign or without, its blocks 64. b has signs: rows of
 * 64 bytes, four of each of 16 columns, a block after the other. */
#define TWO_PRODUCTS(first, second)                                 \
    TILE_ZERO(first);                                               \
    TILE_ZERO(second);                                              \
    for (uint32_t i = 0; i < blocks; i++, a += 64, b += 1024) {     \
        TILE_LOAD(4, a, a_stride);                                  \
        TILE_LOAD(6, b, 64);                                        \
        TILE_DOT(first, 4, 6, sign);                                \
        if (a_next)                                                 \
            TILE_LOAD(5, a + a_next, a_stride);                     \
        if (b_next)                                                 \
            TILE_LOAD(7, b + b_next, 64);                           \
        if (a_next && b_next)                                       \
            TILE_DOT(second, 5, 7, sign);                           \
        else if (a_next)                                            \
            TILE_DOT(second, 5, 6, sign);                           \
        else                                                        \
            TILE_DOT(second, 4, 7, sign);                           \
    }
static inline __attribute__((always_inline)) void mat_multiply(size_t half, const uint8_t *a, size_t a_next, size_t a_stride,
                                                               const uint8_t *b, size_t b_next, uint32_t blocks, const int sign)
{
    if (half) {
        TWO_PRODUCTS(2, 3)
    } else {
        TWO_PRODUCTS(0, 1)
    }
}

/* Both sums of a half: [2][16 rows][16 columns]. */
AURA_INLINE void mat_take(int32_t *sum, size_t half)
{
    if (half) {
        TILE_STORE(sum, 2);
        TILE_STORE(sum + 256, 3);
    } else {
        TILE_STORE(sum, 0);
        TILE_STORE(sum + 256, 1);
    }
}

#endif
