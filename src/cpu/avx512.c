/* avx512: F, BW, DQ and VL. A vec is one 512-bit register of 16 floats, an ivec one of 16 int32. */
#if defined(__x86_64__)
#include "../exact.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET("avx512f,avx512bw,avx512dq,avx512vl")
#define AURA_INLINE static inline __attribute__((always_inline))
#define AURA_ISA avx512

typedef __m512 vec;
typedef __m512i ivec;

AURA_INLINE vec vec_load(const float *p) { return _mm512_loadu_ps(p); }
AURA_INLINE void vec_store(float *p, vec v) { _mm512_storeu_ps(p, v); }
/* The first n lanes, n = 1 to 16; the others load as 0, keep as 0, or are not stored. */
AURA_INLINE __mmask16 first_lanes(uint32_t n) { return (__mmask16)(0xffffu >> (16 - n)); }
AURA_INLINE vec vec_load_n(const float *p, uint32_t n) { return _mm512_maskz_loadu_ps(first_lanes(n), p); }
AURA_INLINE void vec_store_n(float *p, vec v, uint32_t n) { _mm512_mask_storeu_ps(p, first_lanes(n), v); }
AURA_INLINE vec vec_keep(vec v, uint32_t n) { return _mm512_maskz_mov_ps(first_lanes(n), v); }
AURA_INLINE vec vec_set1(float x) { return _mm512_set1_ps(x); }
AURA_INLINE vec vec_add(vec a, vec b) { return _mm512_add_ps(a, b); }
AURA_INLINE vec vec_sub(vec a, vec b) { return _mm512_sub_ps(a, b); }
AURA_INLINE vec vec_mul(vec a, vec b) { return _mm512_mul_ps(a, b); }
AURA_INLINE vec vec_max(vec a, vec b) { return _mm512_max_ps(a, b); }
AURA_INLINE vec vec_abs(vec v) { return _mm512_abs_ps(v); }
/* Negates the lanes whose bit is set. */
AURA_INLINE vec vec_flip(vec v, uint16_t lanes) { return _mm512_mask_xor_ps(v, lanes, v, _mm512_set1_ps(-0.f)); }

/* Lane i becomes lane i ^ stride; stride 1, 2, 4 or 8. */
AURA_INLINE vec vec_swap(vec v, const int stride)
{
    return stride == 1   ? _mm512_permute_ps(v, 0xb1)
           : stride == 2 ? _mm512_permute_ps(v, 0x4e)
           : stride == 4 ? _mm512_shuffle_f32x4(v, v, 0xb1)
                         : _mm512_shuffle_f32x4(v, v, 0x4e);
}

/* `count` floats over and over; from 16 on, just a load. */
AURA_INLINE vec vec_repeat(const float *p, uint32_t count)
{
    int64_t pair;
    switch (count) {
    case 1: return _mm512_set1_ps(*p);
    case 2: memcpy(&pair, p, sizeof pair); return _mm512_castsi512_ps(_mm512_set1_epi64(pair));
    case 4: return _mm512_broadcast_f32x4(_mm_loadu_ps(p));
    case 8: return _mm512_broadcast_f32x8(_mm256_loadu_ps(p));
    default: return _mm512_loadu_ps(p);
    }
}

/* The sum of all lanes by halves: i and i + 8, then i and i + 4, + 2, + 1. */
AURA_INLINE float vec_sum(vec v)
{
    __m256 h8 = _mm256_add_ps(_mm512_castps512_ps256(v), _mm512_extractf32x8_ps(v, 1));
    __m128 h4 = _mm_add_ps(_mm256_castps256_ps128(h8), _mm256_extractf128_ps(h8, 1));
    __m128 h2 = _mm_add_ps(h4, _mm_movehl_ps(h4, h4));
    return _mm_cvtss_f32(_mm_add_ss(h2, _mm_shuffle_ps(h2, h2, 1)));
}
/* The largest lane. */
AURA_INLINE float vec_top(vec v) { return _mm512_reduce_max_ps(v); }

AURA_INLINE ivec ivec_zero(void) { return _mm512_setzero_si512(); }
AURA_INLINE ivec ivec_add(ivec a, int x) { return _mm512_add_epi32(a, _mm512_set1_epi32(x)); }
/* index + x in the lanes where v > limit. */
AURA_INLINE ivec ivec_add_where(ivec index, vec v, vec limit, int x)
{
    return _mm512_mask_add_epi32(index, _mm512_cmp_ps_mask(v, limit, _CMP_GT_OQ), index, _mm512_set1_epi32(x));
}
/* 16 bytes to and from lanes. */
AURA_INLINE ivec ivec_load8(const uint8_t *p) { return _mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p)); }
AURA_INLINE void ivec_store8(uint8_t *p, ivec v) { _mm_storeu_si128((__m128i *)p, _mm512_cvtepi32_epi8(v)); }

AURA_INLINE vec vec_lookup(const float *table, ivec index) { return _mm512_i32gather_ps(index, table, 4); }
AURA_INLINE vec vec_lookup16(vec table, ivec index) { return _mm512_permutexvar_ps(index, table); }

#include "rotate.tmpl.h"
#include "encode.tmpl.h"
AURA_TARGET_END
#endif
