/* Caches full of random numbers, and the queries that time them. */
#define _GNU_SOURCE
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "../../include/aura_rows.h"
#include "../../src/format.h"
#include "../parts/inputs.h"

enum { CHUNK = 1024 }; /* random tokens; a longer cache repeats them, which no kernel notices */

static int trouble(const char *what)
{
    return fprintf(stderr, "aura bench: %s\n", what), -1;
}

/* [CHUNK][kv_heads][dim] normal numbers in f16, which the caller frees; NULL, with a message, on failure. */
static uint16_t *random_chunk(const aura_ctx *ctx, const struct shape *s, uint64_t seed)
{
    size_t n = (size_t)CHUNK * s->kv_heads * s->dim;
    float *wide = malloc(n * sizeof *wide);
    uint16_t *chunk = malloc(n * sizeof *chunk);
    aura_kv_copy_args a = AURA_KV_COPY_ARGS_INIT;
    a.tokens = a.capacity = CHUNK, a.heads = s->kv_heads, a.dim = s->dim, a.token_major = 1;
    a.in = wide, a.cache = chunk, a.cache_dtype = AURA_F16;
    if (wide)
        fill_vector(wide, n, NORMAL, &seed);
    int bad = !wide || !chunk ? trouble("out of memory") : aura_kv_copy(ctx, &a) ? trouble(aura_last_error()) : 0;
    free(wide);
    return bad ? free(chunk), NULL : chunk;
}

static aura_input input(const void *data, aura_dtype dtype)
{
    aura_input in = AURA_INPUT_INIT;
    in.data = data, in.dtype = dtype;
    return in;
}

/* A cache with every part of the codec; where it encodes keys, it also has a balance. */
static aura_cache *make_cache(aura_ctx *ctx, const struct shape *s, uint32_t flags)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_cache *cache = NULL;
    size_t n = (size_t)s->kv_heads * s->dim;
    float *balance = malloc(n * sizeof *balance);
    if (!balance)
        return trouble("out of memory"), NULL;
    for (size_t i = 0; i < n; i++)
        balance[i] = 0.5f + (float)(i % 7) * 0.25f;
    config.format = s->format, config.seed = 1, config.flags |= flags;
    config.q_heads = s->q_heads, config.kv_heads = s->kv_heads, config.k_dim = s->dim;
    config.balance = aura_is_packed((uint32_t)s->format.k) ? balance : NULL;
    if (aura_cache_create(ctx, &config, &cache))
        trouble(aura_last_error());
    free(balance);
    return cache;
}

/* Appends the chunk again and again until all sequences have that many tokens. */
static int fill(const struct filled *f, uint16_t *k, uint16_t *v)
{
    aura_append_job *jobs = calloc(f->shape.batch, sizeof *jobs), init = AURA_APPEND_JOB_INIT;
    int bad = jobs ? 0 : trouble("out of memory");
    for (uint32_t done = 0; !bad && done < f->shape.tokens; done += CHUNK) {
        uint32_t rest = f->shape.tokens - done;
        for (uint32_t i = 0; i < f->shape.batch; i++) {
            jobs[i] = init;
            jobs[i].seq = f->seqs[i], jobs[i].tokens = rest < CHUNK ? rest : CHUNK;
            jobs[i].k = input(k, AURA_F16), jobs[i].v = input(v, AURA_F16);
        }
        if (aura_append(f->cache, jobs, f->shape.batch))
            bad = trouble(aura_last_error());
    }
    free(jobs);
    return bad;
}

static int count_bytes(struct filled *f)
{
    enum { PAGE_TOKENS = 256 };
    aura_cache_info about = AURA_CACHE_INFO_INIT;
    if (aura_cache_get_info(f->cache, &about))
        return trouble(aura_last_error());
    f->bytes = (double)about.page_bytes / PAGE_TOKENS * f->shape.tokens * f->shape.batch;
    return 0;
}

int filled_open(struct filled *f, aura_ctx *ctx, const struct shape *shape)
{
    memset(f, 0, sizeof *f);
    f->shape = *shape;
    uint16_t *k = random_chunk(ctx, shape, 1), *v = k ? random_chunk(ctx, shape, 2) : NULL;
    int bad = !v || !(f->cache = make_cache(ctx, shape, 0));
    if (!bad && !(f->seqs = calloc(shape->batch, sizeof *f->seqs)))
        bad = trouble("out of memory");
    for (uint32_t i = 0; !bad && i < shape->batch; i++)
        if (aura_seq_create(f->cache, &f->seqs[i]) || aura_seq_reserve(f->cache, f->seqs[i], shape->tokens))
            bad = trouble(aura_last_error());
    bad = bad || fill(f, k, v) || count_bytes(f);
    free(k), free(v);
    if (bad)
        filled_close(f);
    return bad ? -1 : 0;
}

int filled_shorten(struct filled *f, uint32_t tokens)
{
    for (uint32_t i = 0; i < f->shape.batch; i++)
        if (aura_truncate(f->cache, f->seqs[i], tokens))
            return trouble(aura_last_error());
    f->shape.tokens = tokens;
    return count_bytes(f);
}

void filled_close(struct filled *f)
{
    aura_cache_destroy(f->cache);
    free(f->seqs);
    memset(f, 0, sizeof *f);
}

/* ---- attending ------------------------------------------------------------------------------------------------------ */

int ask_open(struct ask *a, const struct filled *f, uint32_t queries, uint32_t planes)
{
    const struct shape *s = &f->shape;
    size_t each = (size_t)queries * s->q_heads * s->dim, n = each * s->batch;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    uint64_t state = 3;
    memset(a, 0, sizeof *a);
    a->filled = f, a->queries = queries, a->options = options, a->options.planes = planes;
    a->jobs = malloc(s->batch * sizeof *a->jobs), a->q = malloc(n * sizeof *a->q), a->out = malloc(n * sizeof *a->out);
    int bad = !a->jobs || !a->q || !a->out ? trouble("out of memory") : 0;
    if (!bad)
        fill_vector(a->q, n, NORMAL, &state); /* logits of standard deviation 1: attention without peaks */
    for (uint32_t i = 0; !bad && i < s->batch; i++) {
        a->jobs[i] = job;
        a->jobs[i].seq = f->seqs[i], a->jobs[i].queries = queries;
        a->jobs[i].q = input(a->q + i * each, AURA_F32), a->jobs[i].out.data = a->out + i * each;
    }
    if (!bad && aura_attend_workspace(f->cache, a->jobs, s->batch, 0, &a->options.workspace_bytes))
        bad = trouble(aura_last_error());
    if (!bad && posix_memalign(&a->options.workspace, 64, a->options.workspace_bytes + 64))
        bad = trouble("out of memory");
    if (bad)
        ask_close(a);
    return bad;
}

void ask_close(struct ask *a)
{
    free(a->jobs), free(a->q), free(a->out), free(a->options.workspace);
    memset(a, 0, sizeof *a);
}

double ask_run(void *ask, uint32_t times)
{
    struct ask *a = ask;
    double start = now();
    for (uint32_t i = 0; i < times; i++)
        if (aura_attend(a->filled->cache, a->jobs, a->filled->shape.batch, &a->options)) {
            trouble(aura_last_error());
            exit(1);
        }
    return seconds_since(start);
}

static uint32_t planes_of(aura_kind kind, uint32_t planes)
{
    return planes ? planes : aura_bits_of((uint32_t)kind) <= 5 ? 1 : 2;
}

/* Query i of n sees tokens - n + 1 + i keys. */
double byte_products(const struct shape *s, uint32_t queries, uint32_t planes)
{
    double seen = (double)queries * ((double)s->tokens - (queries - 1) / 2.0);
    return seen * s->batch * s->q_heads * s->dim * (planes_of(s->format.k, planes) + planes_of(s->format.v, planes));
}

/* ---- appending ------------------------------------------------------------------------------------------------------ */

struct append {
    aura_cache *cache;
    aura_append_job job;
    int plain; /* both sides */
    uint64_t done; /* tokens of an append that were encoded: the newest stay open, which takes no time */
};

/* Appends tokens and removes them again; only appending is timed. */
static double append_run(void *what, uint32_t times)
{
    struct append *a = what;
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    double seconds = 0;
    for (uint32_t i = 0; i < times; i++) {
        double start = now();
        int bad = aura_append(a->cache, &a->job, 1);
        seconds += seconds_since(start);
        if (bad || aura_seq_get_info(a->cache, a->job.seq, &info) || aura_truncate(a->cache, a->job.seq, 0)) {
            trouble(aura_last_error());
            exit(1);
        }
        a->done = a->plain ? info.tokens : info.closed;
    }
    return seconds;
}

double append_speed(uint32_t isa_mask, const struct shape *shape, uint32_t flags, double budget, double *spread)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    struct append a = {NULL, AURA_APPEND_JOB_INIT, 0, 0};
    struct contender c = {append_run, &a, 0, 0};
    aura_ctx *ctx = NULL;
    uint16_t *k = NULL, *v = NULL;
    options.isa_mask = isa_mask;
    a.plain = !aura_is_packed((uint32_t)shape->format.k) && !aura_is_packed((uint32_t)shape->format.v);
    int bad = aura_ctx_create(&options, &ctx) ? trouble(aura_last_error()) : 0;
    bad = bad || !(k = random_chunk(ctx, shape, 1)) || !(v = random_chunk(ctx, shape, 2)) ||
          !(a.cache = make_cache(ctx, shape, flags));
    if (!bad && (aura_seq_create(a.cache, &a.job.seq) || aura_seq_reserve(a.cache, a.job.seq, CHUNK)))
        bad = trouble(aura_last_error());
    if (!bad) {
        a.job.tokens = CHUNK, a.job.k = input(k, AURA_F16), a.job.v = input(v, AURA_F16);
        take_turns(&c, 1, budget);
    }
    aura_cache_destroy(a.cache);
    aura_ctx_destroy(ctx);
    free(k), free(v);
    *spread = c.spread;
    return bad ? 0 : 2.0 * (double)a.done * shape->kv_heads / c.median;
}
