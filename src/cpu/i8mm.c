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

/* Each lane of sum + its four products of signed bytes. */
AURA_INLINE uint32x4_t dot_quarter(uint32x4_t sum, uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_s32(vdotq_s32(vreinterpretq_s32_u32(sum), vreinterpretq_s8_u32(a), vreinterpretq_s8_u32(b)));
}
/* The same with unsigned a. */
AURA_INLINE uint32x4_t usdot_quarter(uint32x4_t sum, uint32x4_t a, uint32x4_t b)
{
    return vreinterpretq_u32_s32(vusdotq_s32(vreinterpretq_s32_u32(sum), vreinterpretq_u8_u32(a), vreinterpretq_s8_u32(b)));
}
/* sum + products of keys and query bytes, of values and weights. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    (void)wide;
    return ivec_of(dot_quarter(sum.val[0], keys.val[0], query.val[0]), dot_quarter(sum.val[1], keys.val[1], query.val[1]),
                   dot_quarter(sum.val[2], keys.val[2], query.val[2]), dot_quarter(sum.val[3], keys.val[3], query.val[3]));
}
AURA_INLINE ivec ivec_dot_value(ivec sum, ivec values, ivec weights, const int wide)
{
    (void)wide;
    return ivec_of(usdot_quarter(sum.val[0], weights.val[0], values.val[0]),
                   usdot_quarter(sum.val[1], weights.val[1], values.val[1]),
                   usdot_quarter(sum.val[2], weights.val[2], values.val[2]),
                   usdot_quarter(sum.val[3], weights.val[3], values.val[3]));
}

enum { WEIGHTS_SIGNED = 0 };

#include "tile.tmpl.h"
#include "sums.tmpl.h"
#include "tiles.h"
AURA_TARGET_END
#endif
