/* avx512vnni: 16 rows in a register, four products of bytes and their sum in an instruction. */
#include "../src/base/exact.h"
#include "matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

AURA_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,bmi2")
#define ISA avx512vnni
enum { LANES = 16, TOKENS = 8, WIDE_ZERO = 0 };

typedef __m512 vf;
typedef __m512i vi, vb;

AURA_INLINE vf vf_zero(void) { return _mm512_setzero_ps(); }
AURA_INLINE vf vf_set(float x) { return _mm512_set1_ps(x); }
AURA_INLINE vf vf_load(const float *p) { return _mm512_loadu_ps(p); }
AURA_INLINE void vf_store(float *p, vf x) { _mm512_storeu_ps(p, x); }
AURA_INLINE vf vf_mul(vf a, vf b) { return _mm512_mul_ps(a, b); }
AURA_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm512_fmadd_ps(a, b, c); }
AURA_INLINE vf vf_int(vi x) { return _mm512_cvtepi32_ps(x); }
AURA_INLINE vf vf_f16(const uint8_t *p) { return _mm512_cvtph_ps(_mm256_loadu_si256((const __m256i *)p)); }
AURA_INLINE vf vf_bf16(const uint8_t *p)
{
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(_mm256_loadu_si256((const __m256i *)p)), 16));
}
AURA_INLINE vf vf_i8(const uint8_t *p) { return vf_int(_mm512_cvtepi8_epi32(_mm_loadu_si128((const __m128i *)p))); }
AURA_INLINE vf vf_u8(const uint8_t *p) { return vf_int(_mm512_cvtepu8_epi32(_mm_loadu_si128((const __m128i *)p))); }
AURA_INLINE vi vi_set(int32_t x) { return _mm512_set1_epi32(x); }
AURA_INLINE vi vi_dot(vi sum, vb w, int32_t a, const int wide)
{
    (void)wide;
    return _mm512_dpbusd_epi32(sum, w, _mm512_set1_epi32(a));
}
AURA_INLINE vb vb_load(const uint8_t *p) { return _mm512_loadu_si512(p); }
AURA_INLINE vb vb_low(vb b) { return _mm512_and_si512(b, _mm512_set1_epi8(15)); }
AURA_INLINE vb vb_high(vb b) { return _mm512_and_si512(_mm512_srli_epi16(b, 4), _mm512_set1_epi8(15)); }
AURA_INLINE vb vb_bits(vb b, const uint8_t *plane, size_t half, const int bit)
{
    uint64_t mask;
    memcpy(&mask, plane + 8 * half, sizeof mask);
    return _mm512_mask_add_epi8(b, mask, b, _mm512_set1_epi8((char)bit));
}

#include "matmul.tmpl.h"
AURA_TARGET_END
#endif
