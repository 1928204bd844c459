/* dotprod: the words of neon.h with the dot products of ARMv8.2, for the integer stages of a tile. */
#if defined(__aarch64__)
#include "../base/exact.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET_ARM("arch=armv8.2-a+dotprod", "dotprod")
#define AURA_ISA dotprod
#include "neon.h"
#include "lanes.h"

/* Each lane of sum + its four products of signed bytes. */
AURA_INLINE uint32x4_t dot_quarter(uint32x4_t sum, uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum), vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b)));
}
/* sum + products of keys and query bytes; of values and weights. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    (void)wide;
    return ivec_of(dot_quarter(sum.val[0], keys.val[0], query.val[0]), dot_quarter(sum.val[1], keys.val[1], query.val[1]),
                   dot_quarter(sum.val[2], keys.val[2], query.val[2]), dot_quarter(sum.val[3], keys.val[3], query.val[3]));
}

AURA_INLINE ivec ivec_dot_value_lane(ivec sum, ivec values, fours weights, const int lane)
{
    return ivec_dot_key_lane(sum, values, weights, lane);
}

/* A row has four quads in a vector of 16 bytes. */
enum { WEIGHTS_SIGNED = 1, LANE_CHUNK = 16, LANE_TRELLIS = LANE_ROWS };

/* Two quads of four lanes as rows_multiply takes them. */
AURA_INLINE void rows_store(uint8_t *to, uint32x4_t even, uint32x4_t odd) { pair_store(to, even, odd); }

/* sum[rows][16] = products of up to 8 rows with 16 lanes: 16 bytes of each of 8 rows, then the next 16 of each, and so on. */
AURA_INLINE void rows_multiply(int32_t *sum, const uint8_t *left, const uint8_t *x, uint32_t chunks, const int rows,
                               const int values)
{
    (void)values;
    for (int half = 0; half < 2; half++) {
        const uint8_t *a = left, *b = x + 64 * half;
        uint32x4_t s[8][2];
        AURA_UNROLL
        for (int i = 0; i < 2 * rows; i++)
            s[i / 2][i % 2] = vdupq_n_u32(0);
        for (uint32_t c = 0; c < chunks; c++, a += 128, b += 256) {
            uint32x4_t y[4][2];
            AURA_UNROLL
            for (int i = 0; i < 8; i++)
                y[i / 2][i % 2] = load_quarter(b + i / 4 * 128 + i % 2 * 32 + i / 2 % 2 * 16);
            AURA_UNROLL
            for (int g = 0; g < rows; g++) {
                const fours four = load_quarter(a + 16 * g);
                AURA_UNROLL
                for (int i = 0; i < 8; i++)
                    s[g][i % 2] = dot_lane(s[g][i % 2], y[i / 2][i % 2], four, i / 2);
            }
        }
        AURA_UNROLL
        for (int i = 0; i < 2 * rows; i++)
            vst1q_s32(sum + i / 2 * 16 + 8 * half + i % 2 * 4, vreinterpretq_s32_u32(s[i / 2][i % 2]));
    }
}

#include "tile.tmpl.h"
#include "sums_lane.tmpl.h"
#include "tiles.h"
AURA_TARGET_END
#endif
