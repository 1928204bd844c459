/* ref: plain C for any machine. */
#include "../src/base/exact.h"
#include "matmul.h"

#include <string.h>

#include "../src/base/dtype.h"

#define ISA ref
enum { LANES = 4, TOKENS = 4, WIDE_ZERO = 0 };

typedef struct { float x[LANES]; } vf;
typedef struct { int32_t x[LANES]; } vi;
typedef struct { uint8_t x[4 * LANES]; } vb;

/* A vector whose lane i is the value of the expression. */
#define EACH(type, n, expression)      \
    type y;                            \
    for (int i = 0; i < (n); i++)      \
        y.x[i] = (expression);         \
    return y

AURA_INLINE uint16_t half_at(const uint8_t *p) { return (uint16_t)(p[0] | p[1] << 8); }
AURA_INLINE vf vf_set(float x) { EACH(vf, LANES, x); }
AURA_INLINE vf vf_zero(void) { return vf_set(0); }
AURA_INLINE vf vf_load(const float *p) { vf y; memcpy(&y, p, sizeof y); return y; }
AURA_INLINE void vf_store(float *p, vf x) { memcpy(p, &x, sizeof x); }
AURA_INLINE vf vf_mul(vf a, vf b) { EACH(vf, LANES, a.x[i] * b.x[i]); }
AURA_INLINE vf vf_fma(vf a, vf b, vf c) { EACH(vf, LANES, a.x[i] * b.x[i] + c.x[i]); } /* rounded twice: fmaf is a call here */
AURA_INLINE vf vf_int(vi a) { EACH(vf, LANES, (float)a.x[i]); }
AURA_INLINE vf vf_f16(const uint8_t *p) { EACH(vf, LANES, aura_f32_from_f16(half_at(p + 2 * i))); }
AURA_INLINE vf vf_bf16(const uint8_t *p) { EACH(vf, LANES, aura_f32_from_bf16(half_at(p + 2 * i))); }
AURA_INLINE vf vf_i8(const uint8_t *p) { EACH(vf, LANES, (float)(int8_t)p[i]); }
AURA_INLINE vf vf_u8(const uint8_t *p) { EACH(vf, LANES, (float)p[i]); }
AURA_INLINE vi vi_set(int32_t x) { EACH(vi, LANES, x); }
AURA_INLINE vi vi_dot(vi sum, vb w, int32_t a, const int wide)
{
    int8_t q[4];
    (void)wide;
    memcpy(q, &a, sizeof q);
    EACH(vi, LANES, sum.x[i] + w.x[4 * i] * q[0] + w.x[4 * i + 1] * q[1] + w.x[4 * i + 2] * q[2] + w.x[4 * i + 3] * q[3]);
}
AURA_INLINE vb vb_load(const uint8_t *p) { vb y; memcpy(&y, p, sizeof y); return y; }
AURA_INLINE vb vb_low(vb b) { EACH(vb, 4 * LANES, b.x[i] & 15); }
AURA_INLINE vb vb_high(vb b) { EACH(vb, 4 * LANES, b.x[i] >> 4); }
AURA_INLINE vb vb_bits(vb b, const uint8_t *plane, size_t half, const int bit)
{
    EACH(vb, 4 * LANES, (uint8_t)(b.x[i] | (plane[LANES / 2 * half + (size_t)i / 8] >> i % 8 & 1) * bit));
}

#include "matmul.tmpl.h"
