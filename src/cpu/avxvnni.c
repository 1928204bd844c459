/* avxvnni: the words of avx2.h with the dot products of AVX-VNNI, for the integer stages of a tile. */
#if defined(__x86_64__)
#include "../base/exact.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET("avx2,fma,f16c,avxvnni")
#define AURA_ISA avxvnni
#include "avx2.h"

/* sum + products of keys and query bytes, of values and weights: sums of four products are kept in full. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    (void)wide;
    return ivec_of(_mm256_dpbusd_avx_epi32(sum.lo, keys.lo, query.lo), _mm256_dpbusd_avx_epi32(sum.hi, keys.hi, query.hi));
}
AURA_INLINE ivec ivec_dot_value(ivec sum, ivec values, ivec weights, const int wide)
{
    return ivec_dot_key(sum, weights, values, wide);
}

#include "tile.tmpl.h"
#include "sums.tmpl.h"
#include "tiles.h"
AURA_TARGET_END
#endif
