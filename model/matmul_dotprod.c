/* dotprod: 4 rows in a register, signed products. Codes of up to 6 bits are below 128; from codes of 8 bits vi_dot subtracts the
 * 128 that the panel has added. */
#include "../src/base/exact.h"
#include "matmul.h"

#if defined(__aarch64__)
#include <arm_neon.h>
#include <string.h>

AURA_TARGET_ARM("arch=armv8.2-a+dotprod", "dotprod")
#define ISA dotprod
enum { LANES = 4, TOKENS = 8, WIDE_ZERO = 128 };

typedef float32x4_t vf;
typedef int32x4_t vi;
typedef uint8x16_t vb;

AURA_INLINE vf vf_zero(void) { return vdupq_n_f32(0); }
AURA_INLINE vf vf_set(float x) { return vdupq_n_f32(x); }
AURA_INLINE vf vf_load(const float *p) { return vld1q_f32(p); }
AURA_INLINE void vf_store(float *p, vf x) { vst1q_f32(p, x); }
AURA_INLINE vf vf_mul(vf a, vf b) { return vmulq_f32(a, b); }
AURA_INLINE vf vf_fma(vf a, vf b, vf c) { return vfmaq_f32(c, a, b); }
AURA_INLINE vf vf_int(vi x) { return vcvtq_f32_s32(x); }
AURA_INLINE vf vf_f16(const uint8_t *p) { return vcvt_f32_f16(vreinterpret_f16_u8(vld1_u8(p))); }
AURA_INLINE vf vf_bf16(const uint8_t *p) { return vreinterpretq_f32_u32(vshll_n_u16(vreinterpret_u16_u8(vld1_u8(p)), 16)); }
AURA_INLINE vf vf_i8(const uint8_t *p)
{
    const int8_t *x = (const int8_t *)p;
    return (vf){x[0], x[1], x[2], x[3]};
}
AURA_INLINE vf vf_u8(const uint8_t *p) { return (vf){p[0], p[1], p[2], p[3]}; }
AURA_INLINE vi vi_set(int32_t x) { return vdupq_n_s32(x); }
AURA_INLINE vi vi_dot(vi sum, vb w, int32_t a, const int wide)
{
    vb codes = wide ? veorq_u8(w, vdupq_n_u8(128)) : w;
    return vdotq_s32(sum, vreinterpretq_s8_u8(codes), vreinterpretq_s8_s32(vdupq_n_s32(a)));
}
AURA_INLINE vb vb_load(const uint8_t *p) { return vld1q_u8(p); }
AURA_INLINE vb vb_low(vb b) { return vandq_u8(b, vdupq_n_u8(15)); }
AURA_INLINE vb vb_high(vb b) { return vshrq_n_u8(b, 4); }
AURA_INLINE vb vb_bits(vb b, const uint8_t *plane, size_t half, const int bit)
{
    static const uint8_t places[16] = {1, 2, 4, 8, 16, 32, 64, 128, 1, 2, 4, 8, 16, 32, 64, 128};
    vb bytes = vcombine_u8(vdup_n_u8(plane[2 * half]), vdup_n_u8(plane[2 * half + 1]));
    return vorrq_u8(b, vandq_u8(vtstq_u8(bytes, vld1q_u8(places)), vdupq_n_u8((uint8_t)bit)));
}

#include "matmul.tmpl.h"
AURA_TARGET_END
#endif
