/* i8mm: the words of neon.h with the dot products of ARMv8.2 and, for weights, those of unsigned and signed bytes that came
 * with I8MM; for the integer stages of a tile. */
#if defined(__aarch64__)
#include "../base/exact.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET_ARM("arch=armv8.2-a+dotprod+i8mm", "dotprod,i8mm")
#define AURA_ISA i8mm
#include "neon.h"
#include "lanes.h"

/* Each lane of sum + its four products of signed bytes. */
AURA_INLINE uint32x4_t dot_quarter(uint32x4_t sum, uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum), vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b)));
}
/* The same with unsigned b, of which a lane is taken. */
AURA_INLINE uint32x4_t sudot_lane(uint32x4_t sum, uint32x4_t a, fours b, const int lane)
{
    const int32x4_t s = vreinterpretq_s32_u32(sum);
    const int8x16_t x = vreinterpretq_s8_u32(a);
    const uint8x16_t y = vreinterpretq_u8_u32(b);
    switch (lane) {
    case 0: return vreinterpretq_u32_s32(vsudotq_laneq_s32(s, x, y, 0));
    case 1: return vreinterpretq_u32_s32(vsudotq_laneq_s32(s, x, y, 1));
    case 2: return vreinterpretq_u32_s32(vsudotq_laneq_s32(s, x, y, 2));
    default: return vreinterpretq_u32_s32(vsudotq_laneq_s32(s, x, y, 3));
    }
}
/* sum + products of keys and query bytes, of values and weights. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    (void)wide;
    return ivec_of(dot_quarter(sum.val[0], keys.val[0], query.val[0]), dot_quarter(sum.val[1], keys.val[1], query.val[1]),
                   dot_quarter(sum.val[2], keys.val[2], query.val[2]), dot_quarter(sum.val[3], keys.val[3], query.val[3]));
}
AURA_INLINE ivec ivec_dot_value_lane(ivec sum, ivec values, fours weights, const int lane)
{
    return ivec_of(sudot_lane(sum.val[0], values.val[0], weights, lane), sudot_lane(sum.val[1], values.val[1], weights, lane),
                   sudot_lane(sum.val[2], values.val[2], weights, lane), sudot_lane(sum.val[3], values.val[3], weights, lane));
}

/* A vector has two quads of two rows, and of two lanes. Trellis codes go to memory anyway, and from four rows on these products are
 * fewer. */
enum { WEIGHTS_SIGNED = 0, LANE_CHUNK = 8, LANE_TRELLIS = 4 };

/* Two quads of four lanes as rows_multiply takes them: bytes of a lane together. */
AURA_INLINE void rows_store(uint8_t *to, uint32x4_t even, uint32x4_t odd)
{
    pair_store(to, vzip1q_u32(even, odd), vzip2q_u32(even, odd));
}

/* Two rows by two lanes: sum + eight products each. Rows of weights are unsigned. */
AURA_INLINE int32x4_t mmla_quarter(int32x4_t sum, uint32x4_t rows, uint32x4_t lanes, const int values)
{
    const int8x16_t y = vreinterpretq_s8_u32(lanes);
    return values ? vusmmlaq_s32(sum, vreinterpretq_u8_u32(rows), y) : vmmlaq_s32(sum, vreinterpretq_s8_u32(rows), y);
}

/* sum[rows][16] = products of 4 or 8 rows with 16 lanes: 8 bytes of each of 8 rows, then the next 8 of each, and so on. */
AURA_INLINE void rows_multiply(int32_t *sum, const uint8_t *left, const uint8_t *x, uint32_t chunks, const int rows,
                               const int values)
{
    const int pairs = rows / 2, vecs = 16 / pairs; /* of rows, and of two lanes: 16 sums */
    for (int first = 0; first < 8; first += vecs) {
        const uint8_t *a = left, *b = x + 16 * first;
        int32x4_t s[4][8];
        AURA_UNROLL
        for (int i = 0; i < 16; i++)
            s[i / vecs][i % vecs] = vdupq_n_s32(0);
        for (uint32_t c = 0; c < chunks; c++, a += 64, b += 128) {
            uint32x4_t y[8];
            AURA_UNROLL
            for (int i = 0; i < vecs; i++)
                y[i] = load_quarter(b + 16 * i);
            AURA_UNROLL
            for (int g = 0; g < pairs; g++) {
                const uint32x4_t two = load_quarter(a + 16 * g);
                AURA_UNROLL
                for (int i = 0; i < vecs; i++)
                    s[g][i] = mmla_quarter(s[g][i], two, y[i], values);
            }
        }
        AURA_UNROLL
        for (int i = 0; i < 16; i += 2) { /* of a pair of rows, four lanes */
            const int g = i / vecs, v = i % vecs;
            const int64x2_t even = vreinterpretq_s64_s32(s[g][v]), odd = vreinterpretq_s64_s32(s[g][v + 1]);
            int32_t *to = sum + g * 32 + 2 * (first + v);
            vst1q_s32(to, vreinterpretq_s32_s64(vzip1q_s64(even, odd)));
            vst1q_s32(to + 16, vreinterpretq_s32_s64(vzip2q_s64(even, odd)));
        }
    }
}

#include "tile.tmpl.h"
#include "sums_lane.tmpl.h"
#include "tiles.h"
AURA_TARGET_END
#endif
