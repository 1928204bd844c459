/* avx512: every stage over the words of avx512.h. */
#if defined(__x86_64__)
#include "../base/exact.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET("avx512f,avx512bw,avx512dq,avx512vl,bmi2")
#define AURA_ISA avx512
#include "avx512.h"

enum { LOOKUP_BITS = 4 };
/* Entry of a table for the 4 bits of each byte from bit `shift`, 0 or 4, on. */
AURA_INLINE ivec ivec_lookup(ivec table, ivec codes, const int shift)
{
    return _mm512_shuffle_epi8(table, ivec_and(ivec_shr(codes, shift), 0x0f0f0f0f));
}

/* The same of two tables for nibble k / 4 of each byte: of the second where bit k ^ 4 of that byte of `which` is set. */
typedef struct {
    ivec first, second;
} tables;
AURA_INLINE tables ivec_tables(ivec first, ivec second)
{
    const tables both = {first, second};
    return both;
}
AURA_INLINE ivec ivec_lookup2(tables both, ivec codes, ivec which, const int k)
{
    const ivec low = ivec_and(ivec_shr(codes, k / 4 * 4), 0x0f0f0f0f);
    const __mmask64 m = _mm512_test_epi8_mask(which, _mm512_set1_epi8((char)(1 << (k ^ 4))));
    return _mm512_mask_shuffle_epi8(_mm512_shuffle_epi8(both.first, low), m, both.second, low);
}

/* Each lane of sum + its four products of unsigned u and signed s bytes. Two products of a full byte and a signed one
 * would not fit in the 16 bits of vpmaddubsw: where u or s is that wide, every other byte goes separately. */
AURA_INLINE ivec dot_bytes(ivec sum, ivec u, ivec s, ivec even, ivec odd, const int wide)
{
    const ivec ones = _mm512_set1_epi16(1);
    if (!wide)
        return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(u, s), ones));
    sum = _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(u, even), ones));
    return _mm512_add_epi32(sum, _mm512_madd_epi16(_mm512_maddubs_epi16(u, odd), ones));
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

/* Keys go in unsigned, weights are. 4 queries together, 2 with two planes: with 8 and 4 the file was half as large again. */
enum { KEYS_UNSIGNED = 1, WEIGHTS_SIGNED = 0, TILE_VECS = 2, TILE_ROWS = 4, TILE_SUMS = 16, FEEDBACK_ROWS = 16, FEEDBACK_FITS = 3 };

#include "tile.tmpl.h"
#include "sums.tmpl.h"
#include "templates.h"
AURA_TARGET_END
#endif
