/* neon: what every 64-bit ARM has. A vec is four 128-bit registers of 4 floats, so that its 16 lanes are those of
 * ref.c. */
#if defined(__aarch64__)
#include "../exact.h"

#include <arm_neon.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

#define AURA_INLINE static inline __attribute__((always_inline))
#define AURA_ISA neon

typedef float32x4x4_t vec;
typedef uint32x4x4_t ivec;

AURA_INLINE vec vec_of(float32x4_t a, float32x4_t b, float32x4_t c, float32x4_t d)
{
    vec v = {{a, b, c, d}};
    return v;
}
AURA_INLINE vec vec_load(const float *p)
{
    return vec_of(vld1q_f32(p), vld1q_f32(p + 4), vld1q_f32(p + 8), vld1q_f32(p + 12));
}
AURA_INLINE void vec_store(float *p, vec v)
{
    for (int i = 0; i < 4; i++)
        vst1q_f32(p + 4 * i, v.val[i]);
}
/* The first n lanes, n = 8 or 16 as every dim is a multiple of 8; the others load or keep as 0, or are not stored. */
AURA_INLINE vec vec_load_n(const float *p, uint32_t n)
{
    float32x4_t zero = vdupq_n_f32(0);
    return n > 8 ? vec_load(p) : vec_of(vld1q_f32(p), vld1q_f32(p + 4), zero, zero);
}
AURA_INLINE void vec_store_n(float *p, vec v, uint32_t n)
{
    for (uint32_t i = 0; i < n / 4; i++)
        vst1q_f32(p + 4 * i, v.val[i]);
}
AURA_INLINE vec vec_keep(vec v, uint32_t n)
{
    float32x4_t zero = vdupq_n_f32(0);
    return n > 8 ? v : vec_of(v.val[0], v.val[1], zero, zero);
}
AURA_INLINE vec vec_set1(float x)
{
    return vec_of(vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x), vdupq_n_f32(x));
}
AURA_INLINE vec vec_add(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vaddq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_sub(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vsubq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_mul(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vmulq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_max(vec a, vec b)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vmaxq_f32(a.val[i], b.val[i]);
    return a;
}
AURA_INLINE vec vec_abs(vec v)
{
    for (int i = 0; i < 4; i++)
        v.val[i] = vabsq_f32(v.val[i]);
    return v;
}
/* Negates the lanes whose bit is set. */
AURA_INLINE vec vec_flip(vec v, uint16_t lanes)
{
    static const uint32_t bits[4] = {1, 2, 4, 8};
    uint32x4_t bit = vld1q_u32(bits), sign = vdupq_n_u32(0x80000000);
    for (int i = 0; i < 4; i++) {
        uint32x4_t set = vandq_u32(vtstq_u32(vdupq_n_u32((uint32_t)lanes >> (4 * i)), bit), sign);
        v.val[i] = vreinterpretq_f32_u32(veorq_u32(vreinterpretq_u32_f32(v.val[i]), set));
    }
    return v;
}

/* Lane i becomes lane i ^ stride; stride 1, 2, 4 or 8. */
AURA_INLINE vec vec_swap(vec v, const int stride)
{
    if (stride == 8)
        return vec_of(v.val[2], v.val[3], v.val[0], v.val[1]);
    if (stride == 4)
        return vec_of(v.val[1], v.val[0], v.val[3], v.val[2]);
    for (int i = 0; i < 4; i++)
        v.val[i] = stride == 2 ? vextq_f32(v.val[i], v.val[i], 2) : vrev64q_f32(v.val[i]);
    return v;
}

/* `count` floats over and over; from 16 on, just a load. */
AURA_INLINE vec vec_repeat(const float *p, uint32_t count)
{
    float32x4_t a, b;
    switch (count) {
    case 1: return vec_set1(*p);
    case 2: a = vcombine_f32(vld1_f32(p), vld1_f32(p)); return vec_of(a, a, a, a);
    case 4: a = vld1q_f32(p); return vec_of(a, a, a, a);
    case 8: a = vld1q_f32(p), b = vld1q_f32(p + 4); return vec_of(a, b, a, b);
    default: return vec_load(p);
    }
}

/* The sum of all lanes by halves: i and i + 8, then i and i + 4, + 2, + 1. */
AURA_INLINE float vec_sum(vec v)
{
    float32x4_t h4 = vaddq_f32(vaddq_f32(v.val[0], v.val[2]), vaddq_f32(v.val[1], v.val[3]));
    float32x2_t h2 = vadd_f32(vget_low_f32(h4), vget_high_f32(h4));
    return vget_lane_f32(h2, 0) + vget_lane_f32(h2, 1);
}
/* The largest lane. */
AURA_INLINE float vec_top(vec v)
{
    return vmaxvq_f32(vmaxq_f32(vmaxq_f32(v.val[0], v.val[1]), vmaxq_f32(v.val[2], v.val[3])));
}

AURA_INLINE ivec ivec_zero(void)
{
    ivec v = {{vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0), vdupq_n_u32(0)}};
    return v;
}
AURA_INLINE ivec ivec_add(ivec a, int x)
{
    for (int i = 0; i < 4; i++)
        a.val[i] = vaddq_u32(a.val[i], vdupq_n_u32((uint32_t)x));
    return a;
}
/* index + x in the lanes where v > limit. */
AURA_INLINE ivec ivec_add_where(ivec index, vec v, vec limit, int x)
{
    for (int i = 0; i < 4; i++) {
        uint32x4_t above = vcgtq_f32(v.val[i], limit.val[i]);
        index.val[i] = vaddq_u32(index.val[i], vandq_u32(above, vdupq_n_u32((uint32_t)x)));
    }
    return index;
}
/* 16 bytes to and from lanes. */
AURA_INLINE ivec ivec_load8(const uint8_t *p)
{
    uint16x8_t lo = vmovl_u8(vld1_u8(p)), hi = vmovl_u8(vld1_u8(p + 8));
    ivec v = {{vmovl_u16(vget_low_u16(lo)), vmovl_high_u16(lo), vmovl_u16(vget_low_u16(hi)), vmovl_high_u16(hi)}};
    return v;
}
AURA_INLINE void ivec_store8(uint8_t *p, ivec v)
{
    vst1_u8(p, vmovn_u16(vcombine_u16(vmovn_u32(v.val[0]), vmovn_u32(v.val[1]))));
    vst1_u8(p + 8, vmovn_u16(vcombine_u16(vmovn_u32(v.val[2]), vmovn_u32(v.val[3]))));
}

/* No gather here: four loads a register. */
AURA_INLINE vec vec_lookup(const float *table, ivec index)
{
    vec v;
    for (int i = 0; i < 4; i++) {
        float32x4_t x = vdupq_n_f32(table[vgetq_lane_u32(index.val[i], 0)]);
        x = vsetq_lane_f32(table[vgetq_lane_u32(index.val[i], 1)], x, 1);
        x = vsetq_lane_f32(table[vgetq_lane_u32(index.val[i], 2)], x, 2);
        v.val[i] = vsetq_lane_f32(table[vgetq_lane_u32(index.val[i], 3)], x, 3);
    }
    return v;
}
/* tbl looks up bytes in 64: entry n is bytes 4 n to 4 n + 3. */
AURA_INLINE vec vec_lookup16(vec table, ivec index)
{
    uint8x16x4_t bytes;
    vec v;
    for (int i = 0; i < 4; i++)
        bytes.val[i] = vreinterpretq_u8_f32(table.val[i]);
    for (int i = 0; i < 4; i++) {
        uint32x4_t which = vmlaq_n_u32(vdupq_n_u32(0x03020100), index.val[i], 0x04040404);
        v.val[i] = vreinterpretq_f32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(which)));
    }
    return v;
}

#include "rotate.tmpl.h"
#include "encode.tmpl.h"
#endif
