/* A plain read: nothing that looks at every byte can be faster.
 *
 * It reads two streams at once, as a cache has two sides, into eight sums of the widest vectors. On an Intel Xeon (family 6,
 * model 207), gcc 12.2, November 2026, this read 512 MB at least as fast as one stream, four streams, or any of these with
 * prefetches 1 to 8 KiB ahead. */
#define _GNU_SOURCE
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"

static _Thread_local volatile uint64_t sink; /* so that the compiler does not leave out the read */

enum { SUMS = 8 };

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 8")
#endif

/* Sixteen bytes are what every machine has. Three functions, because a vector's width is part of its type. */
static void read16(const uint8_t *data, size_t bytes)
{
    typedef uint64_t vec __attribute__((vector_size(16), may_alias));
    vec sum[SUMS] = {{0}};
    size_t half = bytes / 2 / sizeof sum * sizeof sum;
    for (size_t i = 0; i < half; i += sizeof sum) {
        const vec *a = (const vec *)(data + i), *b = (const vec *)(data + half + i);
        UNROLL for (int k = 0; k < SUMS; k++) sum[k] ^= a[k];
        UNROLL for (int k = 0; k < SUMS; k++) sum[k] ^= b[k];
    }
    UNROLL for (int k = 0; k < SUMS; k++) sink ^= sum[k][0] ^ sum[k][1];
}

#if defined(__x86_64__)
__attribute__((target("avx2"))) static void read32(const uint8_t *data, size_t bytes)
{
    typedef uint64_t vec __attribute__((vector_size(32), may_alias));
    vec sum[SUMS] = {{0}};
    size_t half = bytes / 2 / sizeof sum * sizeof sum;
    for (size_t i = 0; i < half; i += sizeof sum) {
        const vec *a = (const vec *)(data + i), *b = (const vec *)(data + half + i);
        UNROLL for (int k = 0; k < SUMS; k++) sum[k] ^= a[k];
        UNROLL for (int k = 0; k < SUMS; k++) sum[k] ^= b[k];
    }
    UNROLL for (int k = 0; k < SUMS; k++) sink ^= sum[k][0] ^ sum[k][3];
}

__attribute__((target("avx512f"))) static void read64(const uint8_t *data, size_t bytes)
{
    typedef uint64_t vec __attribute__((vector_size(64), may_alias));
    vec sum[SUMS] = {{0}};
    size_t half = bytes / 2 / sizeof sum * sizeof sum;
    for (size_t i = 0; i < half; i += sizeof sum) {
        const vec *a = (const vec *)(data + i), *b = (const vec *)(data + half + i);
        UNROLL for (int k = 0; k < SUMS; k++) sum[k] ^= a[k];
        UNROLL for (int k = 0; k < SUMS; k++) sum[k] ^= b[k];
    }
    UNROLL for (int k = 0; k < SUMS; k++) sink ^= sum[k][0] ^ sum[k][7];
}

void read_bytes(const uint8_t *data, size_t bytes)
{
    uint32_t isas = aura_cpu_isas();
    (isas & AURA_ISA_AVX512 ? read64 : isas & AURA_ISA_AVX2 ? read32 : read16)(data, bytes);
}
#else
void read_bytes(const uint8_t *data, size_t bytes)
{
    read16(data, bytes);
}
#endif

int plain_read_open(struct plain_read *r, struct crew *crew, size_t bytes)
{
    enum { HUGE_PAGE = 2 << 20 };
    void *data = NULL;
    size_t rounded = (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    memset(r, 0, sizeof *r);
    if (posix_memalign(&data, HUGE_PAGE, rounded))
        return -1;
    madvise(data, rounded, MADV_HUGEPAGE); /* as the cache does; without huge pages a read is slower, not wrong */
    memset(data, 1, rounded);
    r->crew = crew, r->data = data, r->bytes = bytes;
    return 0;
}

void plain_read_close(struct plain_read *r)
{
    free(r->data);
    r->data = NULL;
}

static void read_part(void *what, uint32_t i)
{
    struct plain_read *r = what;
    size_t threads = crew_threads(r->crew), part = r->bytes / threads / 4096 * 4096;
    size_t bytes = i + 1 == threads ? r->bytes - part * i : part;
    for (uint32_t k = 0; k < r->times; k++)
        read_bytes(r->data + part * i, bytes);
}

double plain_read_run(void *plain_read, uint32_t times)
{
    struct plain_read *r = plain_read;
    r->times = times;
    return crew_run(r->crew, read_part, r);
}
