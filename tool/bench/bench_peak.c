/* The machine's int8 products per second: runs only the instruction that the kernels depend on, on registers. */
#include "bench.h"

#if defined(__x86_64__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

enum { SUMS = 12 }; /* independent sums: enough to hide a latency of 5 cycles at two instructions a cycle */

static _Thread_local volatile uint32_t sink;

/* Plain C, for a context that may use nothing else. */
static void peak_ref(uint32_t products)
{
    int8_t a[64], b[64];
    uint32_t sum = 0;
    for (int i = 0; i < 64; i++)
        a[i] = (int8_t)(i - sink), b[i] = (int8_t)(3 * i + sink);
    for (uint32_t n = 0; n < products / 64; n++) {
        a[n % 64] ^= 1;
        for (int i = 0; i < 64; i++)
            sum += (uint32_t)(a[i] * b[i]);
    }
    sink = sum;
}

#if defined(__x86_64__)

/* Written as assembly: with intrinsics a compiler would compute the products once, as they are always the same; gcc 12 would
 * copy every sum, and with vpdpbusd keep one of them, as all are alike, which made the peak of an AMD Zen 4 2.9 times
 * what it is. Four sums are enough where only an addition waits for the one before it. */
__attribute__((target("avx2"))) static void peak_avx2(uint32_t products)
{
    __m256i a = _mm256_set1_epi8((char)(3 + sink)), b = _mm256_set1_epi8((char)(5 + sink)), one = _mm256_set1_epi16(1);
    __m256i sum[4], product;
    UNROLL for (int k = 0; k < 4; k++) sum[k] = _mm256_setzero_si256();
    for (uint32_t n = 0; n < products / (32 * 4); n++)
        UNROLL for (int k = 0; k < 4; k++)
            __asm__ volatile("vpmaddubsw %2, %3, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
                             : "+x"(sum[k]), "=&x"(product)
                             : "x"(a), "x"(b), "x"(one));
    UNROLL for (int k = 0; k < 4; k++) sink += (uint32_t)_mm256_extract_epi32(sum[k], 0);
}

__attribute__((target("avx512f,avx512bw"))) static void peak_avx512(uint32_t products)
{
    __m512i a = _mm512_set1_epi8((char)(3 + sink)), b = _mm512_set1_epi8((char)(5 + sink)), one = _mm512_set1_epi16(1);
    __m512i sum[4], product;
    UNROLL for (int k = 0; k < 4; k++) sum[k] = _mm512_setzero_si512();
    for (uint32_t n = 0; n < products / (64 * 4); n++)
        UNROLL for (int k = 0; k < 4; k++)
            __asm__ volatile("vpmaddubsw %2, %3, %1\n\tvpmaddwd %4, %1, %1\n\tvpaddd %1, %0, %0"
                             : "+v"(sum[k]), "=&v"(product)
                             : "v"(a), "v"(b), "v"(one));
    UNROLL for (int k = 0; k < 4; k++) sink += (uint32_t)_mm512_reduce_add_epi32(sum[k]);
}

__attribute__((target("avx512f,avx512vnni"))) static void peak_avx512vnni(uint32_t products)
{
    __m512i a = _mm512_set1_epi8((char)(3 + sink)), b = _mm512_set1_epi8((char)(5 + sink)), sum[SUMS];
    UNROLL for (int k = 0; k < SUMS; k++) sum[k] = _mm512_setzero_si512();
    for (uint32_t n = 0; n < products / (64 * SUMS); n++)
        UNROLL for (int k = 0; k < SUMS; k++) __asm__ volatile("vpdpbusd %2, %1, %0" : "+v"(sum[k]) : "v"(a), "v"(b));
    UNROLL for (int k = 0; k < SUMS; k++) sink += (uint32_t)_mm512_reduce_add_epi32(sum[k]);
}

#if defined(__clang__) /* gcc's assembler knows them anyway */
#define AMX_TARGET __attribute__((target("amx-tile,amx-int8")))
#else
#define AMX_TARGET
#endif
/* Four sums of 16 x 16: 16 x 16 x 64 products each. */
AMX_TARGET static void peak_amx(uint32_t products)
{
    static const uint8_t bytes[64] = {3};
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1, .bytes = {64, 64, 64, 64, 64, 64}, .rows = {16, 16, 16, 16, 16, 16}};
    __asm__ volatile("ldtilecfg %0" : : "m"(shape));
    __asm__ volatile("tileloadd (%0,%1,1), %%tmm4\n\ttileloadd (%0,%1,1), %%tmm5" : : "r"(bytes), "r"((size_t)0) : "memory");
    __asm__ volatile("tilezero %tmm0\n\ttilezero %tmm1\n\ttilezero %tmm2\n\ttilezero %tmm3");
    for (uint32_t n = 0; n < products / (16 * 16 * 64 * 4); n++)
        __asm__ volatile("tdpbssd %tmm5, %tmm4, %tmm0\n\ttdpbssd %tmm5, %tmm4, %tmm1\n\t"
                         "tdpbssd %tmm5, %tmm4, %tmm2\n\ttdpbssd %tmm5, %tmm4, %tmm3");
    __asm__ volatile("tilerelease");
}

__attribute__((target("avx2,avxvnni"))) static void peak_avxvnni(uint32_t products)
{
    __m256i a = _mm256_set1_epi8((char)(3 + sink)), b = _mm256_set1_epi8((char)(5 + sink)), sum[SUMS];
    UNROLL for (int k = 0; k < SUMS; k++) sum[k] = _mm256_setzero_si256();
    for (uint32_t n = 0; n < products / (32 * SUMS); n++)
        UNROLL for (int k = 0; k < SUMS; k++) __asm__ volatile("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum[k]) : "x"(a), "x"(b));
    UNROLL for (int k = 0; k < SUMS; k++) sink += (uint32_t)_mm256_extract_epi32(sum[k], 0);
}

#elif defined(__aarch64__)

/* Written as assembly, so that a compiler for any ARM accepts it; the program asks at run time whether the machine has it. */
static void peak_dotprod(uint32_t products)
{
    int8x16_t a = vdupq_n_s8((int8_t)(3 + sink)), b = vdupq_n_s8((int8_t)(5 + sink));
    int32x4_t sum[SUMS];
    UNROLL for (int k = 0; k < SUMS; k++) sum[k] = vdupq_n_s32(0);
    for (uint32_t n = 0; n < products / (16 * SUMS); n++)
        UNROLL for (int k = 0; k < SUMS; k++)
            __asm__ volatile(".arch armv8.2-a+dotprod\n\tsdot %0.4s, %1.16b, %2.16b" : "+w"(sum[k]) : "w"(a), "w"(b));
    UNROLL for (int k = 0; k < SUMS; k++) sink += (uint32_t)vgetq_lane_s32(sum[k], 0);
}

static void peak_i8mm(uint32_t products)
{
    int8x16_t a = vdupq_n_s8((int8_t)(3 + sink)), b = vdupq_n_s8((int8_t)(5 + sink));
    int32x4_t sum[SUMS];
    UNROLL for (int k = 0; k < SUMS; k++) sum[k] = vdupq_n_s32(0);
    for (uint32_t n = 0; n < products / (32 * SUMS); n++)
        UNROLL for (int k = 0; k < SUMS; k++)
            __asm__ volatile(".arch armv8.2-a+i8mm\n\tsmmla %0.4s, %1.16b, %2.16b" : "+w"(sum[k]) : "w"(a), "w"(b));
    UNROLL for (int k = 0; k < SUMS; k++) sink += (uint32_t)vgetq_lane_s32(sum[k], 0);
}

/* Baseline: eight products to 16 bits, then pairs of them added to 32. */
static void peak_neon(uint32_t products)
{
    int8x16_t a = vdupq_n_s8((int8_t)(3 + sink)), b = vdupq_n_s8((int8_t)(5 + sink));
    int32x4_t sum[SUMS];
    UNROLL for (int k = 0; k < SUMS; k++) sum[k] = vdupq_n_s32(0);
    for (uint32_t n = 0; n < products / (16 * SUMS); n++)
        UNROLL for (int k = 0; k < SUMS; k++) {
            int16x8_t product = vmull_s8(vget_low_s8(a), vget_low_s8(b));
            sum[k] = vpadalq_s16(sum[k], vmlal_high_s8(product, a, b));
            __asm__ volatile("" : "+w"(a), "+w"(sum[k])); /* the compiler must compute the products each time */
        }
    UNROLL for (int k = 0; k < SUMS; k++) sink += (uint32_t)vgetq_lane_s32(sum[k], 0);
}
#endif

static void once(uint32_t isas)
{
#if defined(__x86_64__)
    (isas & AURA_ISA_AMX        ? peak_amx
     : isas & AURA_ISA_AVX512VNNI ? peak_avx512vnni
     : isas & AURA_ISA_AVX512   ? peak_avx512
     : isas & AURA_ISA_AVXVNNI  ? peak_avxvnni
     : isas & AURA_ISA_AVX2     ? peak_avx2
                                : peak_ref)(PEAK_PRODUCTS);
#elif defined(__aarch64__)
    (isas & AURA_ISA_I8MM      ? peak_i8mm
     : isas & AURA_ISA_DOTPROD ? peak_dotprod
     : isas & AURA_ISA_NEON    ? peak_neon
                               : peak_ref)(PEAK_PRODUCTS);
#else
    (void)isas;
    peak_ref(PEAK_PRODUCTS);
#endif
}

const char *peak_name(uint32_t isas)
{
    return isas & AURA_ISA_AMX                           ? "tdpbssd"
           : isas & AURA_ISA_AVX512VNNI                  ? "vpdpbusd zmm"
           : isas & AURA_ISA_AVX512                      ? "vpmaddubsw + vpmaddwd + vpaddd zmm"
           : isas & AURA_ISA_AVXVNNI                     ? "vpdpbusd ymm"
           : isas & AURA_ISA_AVX2                        ? "vpmaddubsw + vpmaddwd + vpaddd ymm"
           : isas & AURA_ISA_I8MM                        ? "smmla"
           : isas & AURA_ISA_DOTPROD                     ? "sdot"
           : isas & AURA_ISA_NEON                        ? "smull + smlal2 + sadalp"
                                                         : "plain C";
}

struct peak_work {
    uint32_t isas, times;
};

static void peak_part(void *what, uint32_t i)
{
    const struct peak_work *work = what;
    (void)i;
    for (uint32_t k = 0; k < work->times; k++)
        once(work->isas);
}

double peak_run(void *peak, uint32_t times)
{
    const struct peak *p = peak;
    struct peak_work work = {p->isas, times};
    return crew_run(p->crew, peak_part, &work);
}
