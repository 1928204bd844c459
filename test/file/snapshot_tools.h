/* Caches for the tests of snapshots, and comparisons of two caches. */
#ifndef AURA_TEST_SNAPSHOT_TOOLS_H
#define AURA_TEST_SNAPSHOT_TOOLS_H

#include "file_tools.h"

#include "../../include/aura_file.h"
#include "../cache/cache_tools.h"

/* The text that all sequences append from: token i is the same in every test of one shape. */
struct text {
    uint32_t tokens;
    struct tensor k, v;
};

static inline struct text text_new(const aura_config *c, uint32_t tokens)
{
    uint32_t v_dim = c->v_dim ? c->v_dim : c->k_dim;
    struct text t = {tokens, tensor_new(tokens, c->kv_heads, c->k_dim, AURA_F32, DENSE),
                     tensor_new(tokens, c->kv_heads, v_dim, AURA_F32, DENSE)};
    float *k = random_tokens(71, tokens, c->kv_heads, c->k_dim, 1), *v = random_tokens(72, tokens, c->kv_heads, v_dim, 0);
    tensor_set(&t.k, k), tensor_set(&t.v, v);
    free(k), free(v);
    return t;
}

static inline void text_free(struct text *t)
{
    tensor_free(&t->k), tensor_free(&t->v);
}

/* Appends tokens of the text, a few at a time. Which ones depends on the length of the sequence and on `salt`. */
static inline void grow(aura_cache *cache, aura_seq seq, const struct text *t, uint32_t tokens, uint32_t salt)
{
    while (tokens) {
        uint32_t n = tokens < 37 ? tokens : 37, at = (uint32_t)(seq_tokens(cache, seq) + salt) % (t->tokens - n);
        EXPECT(!append(cache, seq, &t->k, &t->v, at, n), "%s", aura_last_error());
        tokens -= n;
    }
}

/* Attends from the last tokens of a sequence with all heads. *out has q_heads * v_dim + q_heads floats for each query; the caller
 * frees it. */
static inline size_t ask(const aura_cache *cache, aura_seq seq, uint32_t queries, float **out)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    EXPECT(!aura_cache_get_info(cache, &info), "%s", aura_last_error());
    uint32_t heads = info.config.q_heads, v_dim = info.config.v_dim;
    size_t n = (size_t)queries * heads * v_dim;
    float *q = random_tokens(73, queries, heads, info.config.k_dim, 0);
    *out = calloc(n + (size_t)queries * heads, sizeof **out);
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    job.seq = seq, job.queries = queries, job.lse = *out + n;
    job.q.data = q, job.out.data = *out;
    if (queries)
        EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
    free(q);
    return (n + (size_t)queries * heads) * sizeof **out;
}

/* Bit by bit the same tokens and the same attention. */
static inline void expect_same(const aura_cache *a, aura_seq seq_a, const aura_cache *b, aura_seq seq_b, const char *what)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_seq_info x = AURA_SEQ_INFO_INIT, y = AURA_SEQ_INFO_INIT;
    EXPECT(!aura_cache_get_info(a, &info), "%s", aura_last_error());
    if (aura_seq_get_info(a, seq_a, &x) || aura_seq_get_info(b, seq_b, &y)) {
        EXPECT(0, "%s: %s", what, aura_last_error());
        return;
    }
    EXPECT(x.tokens == y.tokens && x.closed == y.closed && x.first == y.first,
           "%s: %llu tokens, %llu closed, from %llu on; not %llu, %llu, %llu",
           what, (unsigned long long)y.tokens, (unsigned long long)y.closed, (unsigned long long)y.first,
           (unsigned long long)x.tokens,
           (unsigned long long)x.closed, (unsigned long long)x.first);
    if (x.tokens != y.tokens || x.first != y.first || !x.tokens)
        return;
    uint32_t n = (uint32_t)(x.tokens - x.first);
    size_t keys = (size_t)n * info.config.kv_heads * info.config.k_dim,
        values = (size_t)n * info.config.kv_heads * info.config.v_dim;
    float *k[2], *v[2], *out[2];
    for (int i = 0; i < 2; i++) {
        k[i] = calloc(keys, sizeof(float)), v[i] = calloc(values, sizeof(float));
        aura_view k_view = {k[i], AURA_F32, 0, 0, NULL}, v_view = {v[i], AURA_F32, 0, 0, NULL};
        EXPECT(!aura_cache_decode(i ? b : a, i ? seq_b : seq_a, x.first, n, &k_view, &v_view), "%s: %s", what, aura_last_error());
    }
    EXPECT(!memcmp(k[0], k[1], keys * sizeof(float)), "%s: keys differ", what);
    EXPECT(!memcmp(v[0], v[1], values * sizeof(float)), "%s: values differ", what);
    uint32_t queries = x.tokens < 3 ? (uint32_t)x.tokens : 3;
    size_t bytes = ask(a, seq_a, queries, &out[0]);
    EXPECT(ask(b, seq_b, queries, &out[1]) == bytes && !memcmp(out[0], out[1], bytes), "%s: attention differs", what);
    for (int i = 0; i < 2; i++)
        free(k[i]), free(v[i]), free(out[i]);
}

/* Everything about a cache that a refused load must not change. */
struct state {
    aura_cache_info info;
    float *out;
    size_t bytes;
};

static inline struct state state_of(const aura_cache *cache, aura_seq seq)
{
    struct state s = {AURA_CACHE_INFO_INIT, NULL, 0};
    EXPECT(!aura_cache_get_info(cache, &s.info), "%s", aura_last_error());
    s.info.append_s = s.info.attend_s = s.info.step_s = 0; /* to look takes time */
    s.bytes = ask(cache, seq, 2, &s.out);
    return s;
}

static inline int is_state(const struct state *s, const aura_cache *cache, aura_seq seq)
{
    struct state now = state_of(cache, seq);
    int same = !memcmp(&s->info, &now.info, sizeof now.info) && s->bytes == now.bytes && !memcmp(s->out, now.out, s->bytes);
    free(now.out);
    return same;
}

/* A cache with a sequence, a fork that has other tokens at its end, a fork that shares all tokens, and an empty sequence. */
enum { SEQS = 4 };

static inline aura_cache *some_cache(aura_ctx *in, const aura_config *config, const struct text *t, uint32_t tokens,
                                     aura_seq seq[SEQS])
{
    aura_cache *cache = cache_new(in, config);
    seq[0] = seq_new(cache);
    EXPECT(!aura_seq_release(cache, seq[0]), "%s", aura_last_error()); /* so that ids are not 1, 2, 3 */
    for (int i = 0; i < 2; i++)
        seq[i ? 3 : 0] = seq_new(cache);
    grow(cache, seq[0], t, tokens, 0);
    EXPECT(!aura_seq_fork(cache, seq[0], tokens - tokens / 3, &seq[1]) && !aura_seq_fork(cache, seq[0], tokens, &seq[2]),
           "%s", aura_last_error());
    grow(cache, seq[1], t, tokens / 4, 5);
    return cache;
}

/* The number of a sequence in a snapshot of the whole cache, and so its id in the cache that is loaded from it. */
static inline aura_seq number_of(const aura_cache *cache, aura_seq seq)
{
    aura_seq ids[256];
    size_t n = 256;
    EXPECT(!aura_cache_list(cache, ids, &n) && n <= 256, "%zu sequences: %s", n, aura_last_error());
    for (size_t i = 0; i < n; i++)
        if (ids[i] == seq)
            return (aura_seq)i + 1;
    EXPECT(0, "no sequence %u", seq);
    return 0;
}

static inline aura_cache *load(aura_ctx *in, const char *path, const aura_snapshot_options *options)
{
    aura_cache *cache = NULL;
    EXPECT(!aura_cache_load(in, path, options, &cache), "%s", aura_last_error());
    return cache;
}

static inline struct bytes saved(const aura_cache *cache, const char *name)
{
    EXPECT(!aura_cache_save(cache, file_path(name), NULL), "%s", aura_last_error());
    return read_file(file_path(name));
}

#endif
