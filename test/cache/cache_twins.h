/* Two sequences, of one cache or of two, that must hold the same bits, however they are read. */
#ifndef AURA_TEST_CACHE_TWINS_H
#define AURA_TEST_CACHE_TWINS_H

#include "cache_tools.h"

/* The texts that sequences append from: two, so that sequences with a common beginning can differ afterwards. */
struct text {
    aura_config config;
    uint32_t tokens;
    struct tensor k[2], v[2];
    float *keys[2], *values[2];
};

static inline struct text text_new(aura_config config, uint32_t tokens)
{
    struct text t = {config, tokens, {{0}}, {{0}}, {NULL}, {NULL}};
    uint32_t heads = config.kv_heads, v_dim = config.v_dim ? config.v_dim : config.k_dim;
    for (int i = 0; i < 2; i++) {
        t.keys[i] = random_tokens(60 + (uint64_t)i, tokens, heads, config.k_dim, 1);
        t.values[i] = random_tokens(70 + (uint64_t)i, tokens, heads, v_dim, 0);
        for (size_t at = 0; i && at < (size_t)tokens * heads * config.k_dim; at++)
            t.keys[i][at] = t.keys[i][at] * 0.5f + (at % 5 ? 1.f : -2.f); /* another reference */
        t.k[i] = tensor_new(tokens, heads, config.k_dim, AURA_F32, DENSE);
        t.v[i] = tensor_new(tokens, heads, v_dim, AURA_F32, DENSE);
        tensor_set(&t.k[i], t.keys[i]), tensor_set(&t.v[i], t.values[i]);
    }
    return t;
}

static inline void text_free(struct text *t)
{
    for (int i = 0; i < 2; i++) {
        tensor_free(&t->k[i]), tensor_free(&t->v[i]);
        free(t->keys[i]), free(t->values[i]);
    }
}

/* A job with n tokens of text i from token `first` on; the text repeats after its end. */
static inline aura_append_job text_job(const struct text *t, int i, uint64_t first, uint32_t n, aura_seq seq)
{
    return append_job(seq, &t->k[i], &t->v[i], (uint32_t)(first % (t->tokens - n + 1)), n);
}

static inline aura_status text_append(aura_cache *cache, aura_seq seq, const struct text *t, int i, uint64_t first, uint32_t n)
{
    aura_append_job job = text_job(t, i, first, n, seq);
    return aura_append(cache, &job, 1);
}

static inline aura_seq_info seq_info(const aura_cache *cache, aura_seq seq)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    EXPECT(!aura_seq_get_info(cache, seq, &info), "%s", aura_last_error());
    return info;
}

static inline aura_cache_info cache_info(const aura_cache *cache)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    EXPECT(!aura_cache_get_info(cache, &info), "%s", aura_last_error());
    return info;
}

/* ---- what a sequence holds ------------------------------------------------------------------------------------------ */

/* Tokens [first, first + n) as numbers: keys, then values. The caller frees. */
static inline float *read_tokens(const aura_cache *cache, aura_seq seq, uint64_t first, uint64_t n, size_t *bytes)
{
    const aura_config c = cache_info(cache).config;
    size_t k = n * c.kv_heads * c.k_dim, v = n * c.kv_heads * c.v_dim;
    float *x = calloc(k + v + 1, sizeof *x);
    aura_view k_view = {x, AURA_F32, 0, 0, NULL}, v_view = {x + k, AURA_F32, 0, 0, NULL};
    aura_status status = n ? aura_cache_decode(cache, seq, first, (uint32_t)n, &k_view, &v_view) : AURA_OK;
    EXPECT(!status, "decode [%llu, %llu): %s", (unsigned long long)first, (unsigned long long)(first + n), aura_last_error());
    *bytes = (k + v) * sizeof *x;
    return x;
}

/* Queries of the newest positions: outputs, then log-sum-exps. The caller frees. */
static inline float *ask(const aura_cache *cache, aura_seq seq, uint32_t queries, const aura_attend_options *options,
                         size_t *floats)
{
    const aura_config c = cache_info(cache).config;
    size_t out = (size_t)queries * c.q_heads * c.v_dim, lse = (size_t)queries * c.q_heads;
    float *q = malloc((size_t)queries * c.q_heads * c.k_dim * sizeof *q + 1), *x = calloc(out + lse + 1, sizeof *x);
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    uint64_t seed = 5 + queries;
    for (size_t i = 0; i < (size_t)queries * c.q_heads * c.k_dim; i++)
        q[i] = random_normal(&seed);
    job.seq = seq, job.queries = queries, job.q.data = q, job.out.data = x, job.lse = x + out;
    EXPECT(!aura_attend(cache, &job, 1, options), "%u queries: %s", queries, aura_last_error());
    free(q);
    *floats = out + lse;
    return x;
}

/* Expects that `other` holds the same tokens as `seq` from token `first` on, and gives the same attention. */
static inline void expect_twins_from(const aura_cache *cache, aura_seq seq, const aura_cache *others, aura_seq other,
                                     uint64_t first,
                                     uint32_t queries, const aura_attend_options *options, const char *what)
{
    aura_seq_info a = seq_info(cache, seq), b = seq_info(others, other);
    size_t bytes[2];
    EXPECT(a.tokens == b.tokens && a.closed == b.closed, "%s: %llu tokens, %llu closed, not %llu, %llu", what,
           (unsigned long long)a.tokens,
           (unsigned long long)a.closed, (unsigned long long)b.tokens, (unsigned long long)b.closed);
    if (a.tokens != b.tokens || a.tokens < first)
        return;
    float *x = read_tokens(cache, seq, first, a.tokens - first, &bytes[0]),
        *y = read_tokens(others, other, first, a.tokens - first, &bytes[1]);
    EXPECT(bytes[0] == bytes[1] && !memcmp(x, y, bytes[0]), "%s: of %llu tokens some differ", what, (unsigned long long)a.tokens);
    free(x), free(y);
    queries = a.tokens < queries ? (uint32_t)a.tokens : queries;
    x = ask(cache, seq, queries, options, &bytes[0]), y = ask(others, other, queries, options, &bytes[1]);
    EXPECT(bytes[0] == bytes[1] && !memcmp(x, y, bytes[0] * sizeof *x), "%s: attention to %llu tokens differs", what,
           (unsigned long long)a.tokens);
    free(x), free(y);
}

static inline void expect_twins(const aura_cache *cache, aura_seq seq, aura_seq other, const char *what)
{
    expect_twins_from(cache, seq, cache, other, 0, 3, NULL, what);
}

#endif
