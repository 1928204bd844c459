/* products: what products of AMX's tile registers cost with what belongs to them, in cycles where tdpbusd takes 16.
 * They are of 16 rows, of which 32 bytes are multiplied, as value has them. Where other work shares a core, times are
 * too long: run it on several cores.
 *
 *     cc -std=gnu11 -O2 -mavx512f tool/bench/amx/products.c -o products && ./products
 *
 * Registers 0 to 3 are sums, 4 and 5 left and 6 and 7 right factors. */
#include <immintrin.h>
#include <stdint.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define ZERO(t) "tilezero %%tmm" #t "\n\t"
#define ZEROS(t) "tileloadd (%[zero],%[none],1), %%tmm" #t "\n\t"
#define KEEP(t) ""
#define LOAD(t, at) "tileloadd " #at "(%[in],%[line],1), %%tmm" #t "\n\t"
#define DOT(sum, a, b) "tdpbusd %%tmm" #b ", %%tmm" #a ", %%tmm" #sum "\n\t"
#define STORE(t, at) "tilestored %%tmm" #t ", " #at "(%[out],%[line],1)\n\t"
#define S0 STORE(0, 0)
#define S1 STORE(1, 1024)
#define S2 STORE(2, 2048)
#define S3 STORE(3, 3072)
/* Four products, each with the load of its right factor; what follows each is given. */
#define FOUR(clear, after0, after1, after2, after3) \
    LOAD(6, 0) clear(0) DOT(0, 4, 6) after0 LOAD(7, 512) clear(1) DOT(1, 5, 7) after1 LOAD(6, 1024) clear(2) DOT(2, 4, 6)  \
    after2 LOAD(7, 1536) clear(3) DOT(3, 5, 7) after3
#define RUN(code) \
    __asm__ volatile(code \
                     : \
                     : [in] "r"(in), [out] "r"(out), [zero] "r"(zero), [line] "r"((size_t)64), [none] "r"((size_t)0) \
                     : "memory")

static const _Alignas(64) uint8_t zero[64];
static _Alignas(4096) uint8_t in[4096];
static _Alignas(4096) int32_t out[1024];
static _Alignas(64) float acc[16][16], factor[4][16];

/* Sums of n products from `first` on become part of accumulators. */
static inline __attribute__((always_inline)) void take(int first, int n)
{
    _Pragma("GCC unroll 16") for (int row = 0; row < 16; row++) {
        __m512 x = _mm512_load_ps(acc[row]);
        _Pragma("GCC unroll 4") for (int i = first; i < first + n; i++)
            x = _mm512_fmadd_ps(_mm512_cvtepi32_ps(_mm512_load_si512(out + 256 * i + 16 * row)),
                                _mm512_set1_ps(factor[i][row]), x);
        _mm512_store_ps(acc[row], x);
    }
}

static void alone(void) { RUN(DOT(0, 4, 6) DOT(1, 4, 6) DOT(2, 5, 7) DOT(3, 5, 7)); }
static void tilezero(void) { RUN(FOUR(ZERO, , , , )); }
static void zeros(void) { RUN(FOUR(ZEROS, , , , )); }
static void kept(void) { RUN(FOUR(KEEP, , , , )); }
static void at_once(void) { RUN(FOUR(ZEROS, S0, S1, S2, S3)); }
static void one_later(void) { RUN(FOUR(ZEROS, S3, S0, S1, S2)); }
static void two_later(void) { RUN(FOUR(ZEROS, S2, S3, S0, S1)); }
static void three_later(void) { RUN(FOUR(ZEROS, S1, S2, S3, S0)); }
static void loads(void) { RUN(LOAD(4, 0) LOAD(5, 1024) LOAD(4, 2048) LOAD(5, 3072)); }
static void stores(void) { RUN(S0 S1 S2 S3); }
static void taken(void) { take(0, 4); }
static void stored_and_taken(void)
{
    RUN(FOUR(ZEROS, S0, S1, S2, S3));
    take(0, 4);
}
static void pairs(void)
{
    RUN(LOAD(6, 0) LOAD(7, 512) ZEROS(0) ZEROS(1) DOT(0, 4, 6) DOT(1, 5, 7) S2 S3);
    take(0, 2);
    RUN(LOAD(6, 1024) LOAD(7, 1536) ZEROS(2) ZEROS(3) DOT(2, 4, 6) DOT(3, 5, 7) S0 S1);
    take(2, 2);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

int main(void)
{
    static const struct {
        const char *what;
        void (*run)(void);
    } test[] = {{"tdpbusd alone", alone},
                {"with the load of a right factor; sums are added to", kept},
                {"sums cleared by tilezero", tilezero},
                {"sums cleared by a load of zeros", zeros},
                {"the same, stored at once", at_once},
                {"stored one product later", one_later},
                {"stored two products later", two_later},
                {"stored three products later", three_later},
                {"stored at once, then all four added to accumulators", stored_and_taken},
                {"two by two: stored a step later, added another step later", pairs},
                {"added to accumulators, without products", taken},
                {"a load of 16 rows of 32 bytes", loads},
                {"a store", stores}};
    enum { TESTS = sizeof test / sizeof *test };
    struct {
        uint8_t palette, start, none[14];
        uint16_t bytes[16];
        uint8_t rows[16];
    } shape = {.palette = 1, .bytes = {64, 64, 64, 64, 32, 32, 64, 64}, .rows = {16, 16, 16, 16, 16, 16, 8, 8}};
    double best[TESTS];
    if (syscall(SYS_arch_prctl, 0x1023, 18)) /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
        return puts("no AMX here, or no permission"), 1;
    for (int turn = 0; turn < 2000; turn++) {
        __asm__ volatile("ldtilecfg %0" : : "m"(shape));
        for (int i = 0; i < TESTS; i++) {
            const double start = now();
            for (int n = 0; n < 100; n++)
                test[i].run();
            const double seconds = now() - start;
            best[i] = turn == 0 || seconds < best[i] ? seconds : best[i];
        }
        __asm__ volatile("tilerelease");
    }
    for (int i = 0; i < TESTS; i++)
        printf("%-60s %6.1f\n", test[i].what, best[i] / best[0] * 16);
    return 0;
}
