/* avx2: every stage over the words of avx2.h. */
#if defined(__x86_64__)
#include "../base/exact.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET("avx2,fma,f16c")
#define AURA_ISA avx2
#include "avx2.h"

/* gcc would add up the products of a whole loop in another order, for which there are not registers enough: 9.5 ns instead of 6.1
 * for the scores of a token, 4 bits, D 128, 4 queries (gcc 12, AMD Zen 3, November 2026). */
AURA_INLINE __m256i in_order(__m256i v)
{
    __asm__("" : "+x"(v));
    return v;
}
AURA_INLINE ivec ivec_plus16(ivec a, ivec b)
{
    return ivec_of(in_order(_mm256_add_epi16(a.lo, b.lo)), in_order(_mm256_add_epi16(a.hi, b.hi)));
}
/* Products of unsigned and signed bytes, neighbours added, in 16 bits. */
AURA_INLINE ivec ivec_pairs(ivec u, ivec s)
{
    return ivec_of(_mm256_maddubs_epi16(u.lo, s.lo), _mm256_maddubs_epi16(u.hi, s.hi));
}
/* Each lane of sum + its two products of 16-bit numbers. */
AURA_INLINE __m256i dot16_half(__m256i sum, __m256i a, __m256i b)
{
    return in_order(_mm256_add_epi32(sum, _mm256_madd_epi16(a, b)));
}
AURA_INLINE ivec ivec_dot16(ivec sum, ivec a, ivec b)
{
    return ivec_of(dot16_half(sum.lo, a.lo, b.lo), dot16_half(sum.hi, a.hi, b.hi));
}
/* Bytes 0 and 2, or 1 and 3, of each lane as 16-bit numbers, with or without a sign. */
AURA_INLINE ivec ivec_even(ivec v, const int sign)
{
    if (!sign)
        return ivec_and(v, 0x00ff00ff);
    return ivec_of(_mm256_srai_epi16(_mm256_slli_epi16(v.lo, 8), 8), _mm256_srai_epi16(_mm256_slli_epi16(v.hi, 8), 8));
}
AURA_INLINE ivec ivec_odd(ivec v, const int sign)
{
    if (!sign)
        return ivec_of(_mm256_srli_epi16(v.lo, 8), _mm256_srli_epi16(v.hi, 8));
    return ivec_of(_mm256_srai_epi16(v.lo, 8), _mm256_srai_epi16(v.hi, 8));
}

#include "tile.tmpl.h"
#include "sums16.tmpl.h"
#include "templates.h"
AURA_TARGET_END
#endif
