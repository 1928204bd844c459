/* What the fuzz targets share. test/fuzz/NAME.c is one function, LLVMFuzzerTestOneInput(). `make fuzz` builds it with libFuzzer.
 * Every build of the tests builds it with test/fuzz/replay.c, which runs the files of test/fuzz/corpus/NAME and changes of them.
 *
 * A target ends the program when something is wrong that a sanitizer does not notice. */
#ifndef AURA_FUZZ_H
#define AURA_FUZZ_H

#ifndef _DEFAULT_SOURCE
#define _DEFAULT_SOURCE /* mkdtemp */
#endif

#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

#define MUST(condition)                                                                                   \
    do {                                                                                                  \
        if (!(condition)) {                                                                               \
            fflush(stdout);                                                                               \
            fprintf(stderr, "%s:%d: not so: %s; %s\n", __FILE__, __LINE__, #condition, aura_last_error()); \
            abort();                                                                                      \
        }                                                                                                 \
    } while (0)

/* ---- numbers out of bytes; zeros when there are none left ---- */

struct source {
    const uint8_t *at;
    size_t left;
};

static inline void take(struct source *s, void *to, size_t bytes)
{
    size_t n = bytes < s->left ? bytes : s->left;
    memset(to, 0, bytes);
    if (n)
        memcpy(to, s->at, n);
    s->at += n, s->left -= n;
}

static inline uint8_t take_u8(struct source *s)
{
    uint8_t x;
    take(s, &x, sizeof x);
    return x;
}

static inline uint16_t take_u16(struct source *s)
{
    uint16_t x;
    take(s, &x, sizeof x);
    return x;
}

static inline uint32_t take_u32(struct source *s)
{
    uint32_t x;
    take(s, &x, sizeof x);
    return x;
}

static inline uint64_t take_u64(struct source *s)
{
    uint64_t x;
    take(s, &x, sizeof x);
    return x;
}

static inline float take_f32(struct source *s)
{
    float x;
    take(s, &x, sizeof x);
    return x;
}

/* ---- caches ---- */

enum { FUZZ_BUDGET = 16 << 20, FUZZ_FLOATS = 1 << 16 };

static aura_ctx *fuzz_ctx;
static float fuzz_numbers[FUZZ_FLOATS];

static inline void fuzz_begin(void)
{
    if (fuzz_ctx)
        return;
    MUST(!aura_ctx_create(NULL, &fuzz_ctx));
    for (int i = 0; i < FUZZ_FLOATS; i++)
        fuzz_numbers[i] = (float)(i * 7919 % 1001) / 250.f - 2.f;
}

/* Uses a sequence in all ways: none may fail, wherever the sequence comes from. Only attention may report rows that are not
 * finite, because a file may hold any numbers. */
static inline void fuzz_use(aura_cache *cache, aura_seq seq)
{
    static float out[2][4 * 512 * 16];
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_seq_info about = AURA_SEQ_INFO_INIT;
    aura_attend_job attend = AURA_ATTEND_JOB_INIT;
    aura_append_job append = AURA_APPEND_JOB_INIT;
    MUST(!aura_cache_get_info(cache, &info) && !aura_seq_get_info(cache, seq, &about));
    if (info.config.q_heads > 16 || info.config.kv_heads > 16)
        return; /* more than our buffers take */
    aura_view k = {out[0], AURA_F32, 0, 0, NULL}, v = {out[1], AURA_F32, 0, 0, NULL};
    for (uint64_t t = about.first; t < about.tokens && t < about.first + 600; t += 4)
        MUST(!aura_cache_decode(cache, seq, t, about.tokens - t < 4 ? (uint32_t)(about.tokens - t) : 4, &k, &v));
    attend.seq = seq, attend.queries = about.tokens ? 1 : 0;
    attend.q.data = fuzz_numbers, attend.out.data = out[0], attend.q_heads = info.config.q_heads ? 0 : info.config.kv_heads;
    aura_status status = aura_attend(cache, &attend, 1, NULL);
    MUST(!status || status == AURA_NOT_FINITE || status == AURA_OUT_OF_MEMORY);
    append.seq = seq, append.tokens = 1 + (uint32_t)(about.tokens % 3);
    append.tokens = info.config.window && append.tokens > info.config.max_queries ? info.config.max_queries : append.tokens;
    append.k.data = fuzz_numbers, append.v.data = fuzz_numbers + 1;
    status = aura_append(cache, &append, 1);
    MUST(!status || status == AURA_OUT_OF_PAGES || status == AURA_BAD_VALUE);
    MUST(!aura_truncate(cache, seq, about.tokens));
}

#endif
