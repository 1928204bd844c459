/* avx512vnni: the words of avx512.h with VNNI and VBMI, for the integer stages of a tile. */
#if defined(__x86_64__)
#include "../base/exact.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

AURA_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,bmi2")
#define AURA_ISA avx512vnni
#include "avx512.h"
#include "vbmi.h"

/* sum + products of keys and query bytes, of values and weights: sums of four products are kept in full. */
AURA_INLINE ivec ivec_dot_key(ivec sum, ivec keys, ivec query, const int wide)
{
    (void)wide;
    return _mm512_dpbusd_epi32(sum, keys, query);
}
AURA_INLINE ivec ivec_dot_value(ivec sum, ivec values, ivec weights, const int wide)
{
    (void)wide;
    return _mm512_dpbusd_epi32(sum, weights, values);
}

/* 32 registers: 4 queries x 2 vectors x 2 planes, or 8 queries with one. Keys go in unsigned, weights are. */
enum { KEYS_UNSIGNED = 1, WEIGHTS_SIGNED = 0, TILE_VECS = 2, TILE_ROWS = 8, TILE_SUMS = 16 };

#include "tile.tmpl.h"
#include "sums.tmpl.h"
#include "tiles.h"
AURA_TARGET_END
#endif
