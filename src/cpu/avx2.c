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

/* Each lane of sum + its four products of unsigned u and signed s bytes. */
AURA_INLINE __m256i dot_half(__m256i sum, __m256i u, __m256i s)
{
    return _mm256_add_epi32(sum, _mm256_madd_epi16(_mm256_maddubs_epi16(u, s), _mm256_set1_epi16(1)));
}
/* Two products of a full byte and a signed one would not fit in the 16 bits of vpmaddubsw: where u or s is that wide,
 * every other byte goes separately, even and odd being s without the others. */
AURA_INLINE ivec dot_bytes(ivec sum, ivec u, ivec s, ivec even, ivec odd, const int wide)
{
    if (!wide)
        return ivec_of(dot_half(sum.lo, u.lo, s.lo), dot_half(sum.hi, u.hi, s.hi));
    return ivec_of(dot_half(dot_half(sum.lo, u.lo, even.lo), u.lo, odd.lo),
                   dot_half(dot_half(sum.hi, u.hi, even.hi), u.hi, odd.hi));
}
/* sum + products of keys and query bytes; wide: keys have more than 6 bits. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    return dot_bytes(sum, keys, query, ivec_and(query, 0x00ff00ff), ivec_and(query, 0xff00ff00), wide);
}
/* sum + products of values and weights; wide: values have more than 6 bits. */
AURA_INLINE ivec ivec_dot_value(ivec sum, ivec values, ivec weights, const int wide)
{
    return dot_bytes(sum, weights, values, ivec_and(values, 0x00ff00ff), ivec_and(values, 0xff00ff00), wide);
}

#include "templates.h"
AURA_TARGET_END
#endif
