/* neon: every stage over the words of neon.h. */
#if defined(__aarch64__)
#include "../base/exact.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

#define AURA_ISA neon
#include "neon.h"

/* Each lane of sum + its four products of signed bytes. Two products of full bytes may reach 2^15 and leave 16 bits: where
 * one side is that wide, pairs are added in 32. */
AURA_INLINE uint32x4_t dot_quarter(uint32x4_t sum, uint32x4_t x, uint32x4_t y, const int wide)
{
    int8x16_t a = vreinterpretq_s8_u32(x), b = vreinterpretq_s8_u32(y);
    int16x8_t lo = vmull_s8(vget_low_s8(a), vget_low_s8(b)), hi = vmull_high_s8(a, b);
    if (!wide)
        return vreinterpretq_u32_s32(vpadalq_s16(vreinterpretq_s32_u32(sum), vpaddq_s16(lo, hi)));
    return vaddq_u32(sum, vreinterpretq_u32_s32(vpaddq_s32(vpaddlq_s16(lo), vpaddlq_s16(hi))));
}
/* sum + products of keys and query bytes, of values and weights; wide: keys or values have more than 6 bits. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    return ivec_of(dot_quarter(sum.val[0], keys.val[0], query.val[0], wide),
                   dot_quarter(sum.val[1], keys.val[1], query.val[1], wide),
                   dot_quarter(sum.val[2], keys.val[2], query.val[2], wide),
                   dot_quarter(sum.val[3], keys.val[3], query.val[3], wide));
}
AURA_INLINE ivec ivec_dot_value(ivec sum, ivec values, ivec weights, const int wide)
{
    return ivec_dot_key(sum, values, weights, wide);
}

enum { WEIGHTS_SIGNED = 1 };

#include "tile.tmpl.h"
#include "sums.tmpl.h"
#include "templates.h"
#endif
