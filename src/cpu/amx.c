/* amx: score and value of many rows by products of whole matrices; few rows are left to the kernels of AVX-512 VNNI.
 *
 * With AURA_PLAIN_TILES the tile instructions are plain C, around them are the words of AVX2, and a machine that has AVX2 is said
 * to have this: for tests. */
#if defined(__x86_64__)
#include "../base/exact.h"

#include <immintrin.h>
#include <math.h>
#include <string.h>

#include "../stages.h"
#include "bits.h"

#define AURA_ISA amx
#if defined(AURA_PLAIN_TILES)
#define AURA_FEW(stage, shape) aura_##stage##_##shape##_avx2
AURA_TARGET("avx2,fma,f16c")
#include "avx2.h"
#include "plain_tiles.h"
#elif defined(__clang__)
#define AURA_FEW(stage, shape) aura_##stage##_##shape##_avx512vnni
AURA_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,bmi2,amx-tile,amx-int8")
#include "avx512.h"
#include "amx.h"
#else /* gcc's assembler knows them anyway */
#define AURA_FEW(stage, shape) aura_##stage##_##shape##_avx512vnni
AURA_TARGET("avx512f,avx512bw,avx512dq,avx512vl,avx512vnni,avx512vbmi,bmi2")
#include "avx512.h"
#include "amx.h"
#endif

#include "tile.tmpl.h"
#include "matrix.tmpl.h"
AURA_TARGET_END
#endif
