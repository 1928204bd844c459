/* avx2: 8 rows in a register. */
#include "../src/base/exact.h"
#include "matmul.h"

#if defined(__x86_64__)
#include <immintrin.h>
#include <string.h>

AURA_TARGET("avx2,fma,f16c")
#define ISA avx2
enum { LANES = 8, TOKENS = 4, WIDE_ZERO = 128 };

typedef __m256 vf;
typedef __m256i vi, vb;

AURA_INLINE vf vf_zero(void) { return _mm256_setzero_ps(); }
AURA_INLINE vf vf_set(float x) { return _mm256_set1_ps(x); }
AURA_INLINE vf vf_load(const float *p) { return _mm256_loadu_ps(p); }
AURA_INLINE void vf_store(float *p, vf x) { _mm256_storeu_ps(p, x); }
AURA_INLINE vf vf_mul(vf a, vf b) { return _mm256_mul_ps(a, b); }
AURA_INLINE vf vf_fma(vf a, vf b, vf c) { return _mm256_fmadd_ps(a, b, c); }
AURA_INLINE vf vf_int(vi x) { return _mm256_cvtepi32_ps(x); }
AURA_INLINE vf vf_f16(const uint8_t *p) { return _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)p)); }
AURA_INLINE vf vf_bf16(const uint8_t *p)
{
    return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(_mm_loadu_si128((const __m128i *)p)), 16));
}
AURA_INLINE vf vf_i8(const uint8_t *p) { return vf_int(_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
AURA_INLINE vf vf_u8(const uint8_t *p) { return vf_int(_mm256_cvtepu8_epi32(_mm_loadl_epi64((const __m128i *)p))); }
AURA_INLINE vi vi_set(int32_t x) { return _mm256_set1_epi32(x); }
/* maddubs sums two products in 16 bits: enough for codes below 128. From codes of 8 bits 128 is subtracted first, and the sign of
 * the difference goes to the other factor. */
AURA_INLINE vi vi_dot(vi sum, vb w, int32_t a, const int wide)
{
    __m256i words = _mm256_set1_epi32(a), signs = _mm256_xor_si256(w, _mm256_set1_epi8(-128));
    __m256i pairs = wide ? _mm256_maddubs_epi16(_mm256_abs_epi8(signs), _mm256_sign_epi8(words, signs))
                         : _mm256_maddubs_epi16(w, words);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
}
AURA_INLINE vb vb_load(const uint8_t *p) { return _mm256_loadu_si256((const __m256i *)p); }
AURA_INLINE vb vb_low(vb b) { return _mm256_and_si256(b, _mm256_set1_epi8(15)); }
AURA_INLINE vb vb_high(vb b) { return _mm256_and_si256(_mm256_srli_epi16(b, 4), _mm256_set1_epi8(15)); }
AURA_INLINE vb vb_bits(vb b, const uint8_t *plane, size_t half, const int bit)
{
    const __m256i spread = _mm256_setr_epi64x(0, 0x0101010101010101, 0x0202020202020202, 0x0303030303030303);
    const __m256i place = _mm256_set1_epi64x((long long)0x8040201008040201);
    int32_t mask;
    memcpy(&mask, plane + 4 * half, sizeof mask);
    __m256i set = _mm256_and_si256(_mm256_shuffle_epi8(_mm256_set1_epi32(mask), spread), place);
    return _mm256_or_si256(b, _mm256_and_si256(_mm256_cmpeq_epi8(set, place), _mm256_set1_epi8((char)bit)));
}

#include "matmul.tmpl.h"
AURA_TARGET_END
#endif
