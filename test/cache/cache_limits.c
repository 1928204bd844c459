/* Queries that say themselves which tokens they see: laws that hold bit by bit, windows that have lost tokens, and what is refused.
 * cache_cover.c compares them with double, beside all other options. */
#include "cache_attend.h"

enum { TOKENS = 1500, QUERIES = 20, KV_HEADS = 2, Q_HEADS = 6, DIM = 64 };

static struct scene scene;

static void make_scene(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, DIM, DIM, KV_HEADS);
    config.q_heads = Q_HEADS;
    float *keys = random_tokens(1, TOKENS, KV_HEADS, DIM, 1), *values = random_tokens(2, TOKENS, KV_HEADS, DIM, 0);
    scene = (struct scene){config, TOKENS, tensor_new(TOKENS, KV_HEADS, DIM, AURA_F32, DENSE),
                           tensor_new(TOKENS, KV_HEADS, DIM, AURA_F32, DENSE), NULL};
    tensor_set(&scene.k, keys), tensor_set(&scene.v, values);
    free(keys), free(values);
}

struct answer {
    float out[QUERIES][Q_HEADS][DIM], lse[QUERIES][Q_HEADS];
};

static float *some_queries(void)
{
    static float q[QUERIES * Q_HEADS * DIM];
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = random_normal(&seed);
    return q;
}

/* Queries [first, first + n) of a fixed set. */
static aura_status ask_some(struct answer *a, const aura_cache *cache, aura_seq seq, uint32_t first, uint32_t n,
                            const uint64_t *from, const uint64_t *until, const aura_attend_options *options)
{
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    memset(a, 0x55, sizeof *a);
    job.seq = seq, job.queries = n, job.q.data = some_queries() + (size_t)first * Q_HEADS * DIM;
    job.out.data = a->out[first], job.lse = a->lse[first];
    job.from = from ? from + first : NULL, job.until = until ? until + first : NULL;
    return aura_attend(cache, &job, 1, options);
}

/* Limits that say what causality and a window say change no bit. */
static void the_same_in_other_words(void)
{
    static const uint64_t windows[] = {0, 1, 33, 700, 1024};
    static struct answer want, got;
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, &scene, &seq);
    for (size_t w = 0; w < sizeof windows / sizeof *windows; w += small_run() ? 2 : 1) {
        aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
        uint64_t from[QUERIES], until[QUERIES];
        for (uint32_t i = 0; i < QUERIES; i++) {
            until[i] = TOKENS - QUERIES + i + 1;
            from[i] = windows[w] && windows[w] < until[i] ? until[i] - windows[w] : 0;
        }
        options.window = windows[w];
        EXPECT(!ask_some(&want, cache, seq, 0, QUERIES, NULL, NULL, &options), "%s", aura_last_error());
        for (int how = 1; how < 4; how++) {
            options.window = how == 2 ? windows[w] : 0;
            options.not_causal = how == 3;
            EXPECT(!ask_some(&got, cache, seq, 0, QUERIES, how & 1 ? from : NULL, how & 2 ? until : NULL, &options), "%s",
                   aura_last_error());
            EXPECT(!memcmp(&want, &got, sizeof want), "window %llu said in way %d is another", (unsigned long long)windows[w], how);
        }
    }
    aura_cache_destroy(cache);
}

/* A query's bits do not depend on what the others of its job see. */
static void neighbours_change_no_bit(void)
{
    static struct answer all, one;
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, &scene, &seq);
    uint64_t from[QUERIES], until[QUERIES], seed = 9;
    for (uint32_t i = 0; i < QUERIES; i++) {
        until[i] = random_bits(&seed) % (TOKENS + 1);
        from[i] = random_bits(&seed) % (until[i] + 1);
    }
    from[7] = until[7], from[8] = 0, until[8] = TOKENS;
    EXPECT(!ask_some(&all, cache, seq, 0, QUERIES, from, until, NULL), "%s", aura_last_error());
    for (uint32_t i = 0; i < QUERIES; i += small_run() ? 4 : 1) {
        EXPECT(!ask_some(&one, cache, seq, i, 1, from, until, NULL), "%s", aura_last_error());
        EXPECT(!memcmp(all.out[i], one.out[i], sizeof *all.out) && !memcmp(all.lse[i], one.lse[i], sizeof *all.lse),
               "query %u of tokens [%llu, %llu)", i, (unsigned long long)from[i], (unsigned long long)until[i]);
    }
    for (uint32_t h = 0; h < Q_HEADS; h++)
        EXPECT(all.lse[7][h] == -INFINITY && all.out[7][h][0] == 0, "nothing seen: %g", (double)all.lse[7][h]);
    aura_cache_destroy(cache);
}

/* Two documents in one sequence: each query answers as if its document, given as a mask, were alone. */
static void documents_in_one_sequence(void)
{
    static struct answer got, want;
    static float mask[QUERIES * TOKENS];
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, &scene, &seq);
    uint64_t from[QUERIES];
    double off = 0;
    for (uint32_t i = 0; i < QUERIES; i++) {
        from[i] = i < QUERIES / 2 ? 100 : TOKENS - QUERIES / 2;
        for (uint64_t t = 0; t < TOKENS; t++)
            mask[i * TOKENS + t] = t >= from[i] ? 0 : -INFINITY;
    }
    EXPECT(!ask_some(&got, cache, seq, 0, QUERIES, from, NULL, NULL), "%s", aura_last_error());
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    job.seq = seq, job.queries = QUERIES, job.q.data = some_queries(), job.out.data = want.out, job.lse = want.lse[0];
    job.mask = mask, job.mask_keys = TOKENS;
    EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
    for (size_t i = 0; i < sizeof got.out / sizeof(float); i++) {
        const double apart = fabs((double)((float *)got.out)[i] - (double)((float *)want.out)[i]);
        if (!(apart <= off)) /* NaN, too */
            off = apart;
    }
    EXPECT(off < 1e-5, "off by %g", off);
    aura_cache_destroy(cache);
}

/* A cache with a window says what it still has, and no first tokens come along. */
static void windows_and_first_tokens(void)
{
    static struct answer got, want;
    struct scene ring = scene;
    ring.config.window = 200, ring.config.max_queries = QUERIES, ring.config.keep_first = 5;
    aura_cache *cache = cache_new(ctx, &ring.config), *whole;
    aura_seq seq = seq_new(cache), twin;
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    uint64_t from[QUERIES], until[QUERIES];
    whole = scene_cache(ctx, &scene, &twin);
    for (uint32_t t = 0; t < TOKENS; t += 20)
        EXPECT(!append(cache, seq, &scene.k, &scene.v, t, 20), "%s", aura_last_error());
    EXPECT(!aura_seq_get_info(cache, seq, &info) && info.first > 0, "no token is gone");
    for (uint32_t i = 0; i < QUERIES; i++)
        from[i] = info.first + i, until[i] = i % 2 ? TOKENS : info.first + 2 * i;
    EXPECT(!ask_some(&got, cache, seq, 0, QUERIES, from, until, NULL), "%s", aura_last_error());
    EXPECT(!ask_some(&want, whole, twin, 0, QUERIES, from, until, NULL), "%s", aura_last_error());
    EXPECT(!memcmp(&got, &want, sizeof got), "tokens that are there, seen through limits");
    for (uint32_t i = 0; i < QUERIES; i++)
        from[i] = i % 3, until[i] = 5;
    EXPECT(!ask_some(&got, cache, seq, 0, QUERIES, from, until, NULL), "the first tokens: %s", aura_last_error());
    EXPECT(!ask_some(&want, whole, twin, 0, QUERIES, from, until, NULL), "%s", aura_last_error());
    EXPECT(!memcmp(&got, &want, sizeof got), "the first tokens, seen through limits");
    until[QUERIES - 1] = TOKENS, from[QUERIES - 1] = TOKENS - 1;
    EXPECT(ask_some(&got, cache, seq, 0, QUERIES, from, until, NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "gone"),
           "a job over a gap: %s", aura_last_error());
    from[0] = info.first - 1, until[0] = TOKENS;
    EXPECT(ask_some(&got, cache, seq, 0, 1, from, until, NULL) == AURA_BAD_ARGUMENT, "a token that is gone");
    until[0] = info.first + 150;
    EXPECT(ask_some(&got, cache, seq, 0, 1, NULL, until, NULL) == AURA_BAD_ARGUMENT, "a window that reaches tokens that are gone");
    aura_cache_destroy(cache), aura_cache_destroy(whole);
}

/* More queries than tokens, and queries of old positions: until says where they are. */
static void queries_of_any_position(void)
{
    static struct answer got, want;
    aura_seq seq, prefix;
    aura_cache *cache = scene_cache(ctx, &scene, &seq);
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    static float slopes[Q_HEADS] = {0.5f, 0.25f, 0.1f, 0.05f, 0.02f, 0.01f};
    uint64_t until[QUERIES];
    options.alibi = slopes, options.window = 90;
    for (uint32_t i = 0; i < QUERIES; i++)
        until[i] = 1024 - QUERIES + i + 1; /* encoded long ago in both */
    EXPECT(!aura_seq_fork(cache, seq, 1024, &prefix), "%s", aura_last_error());
    EXPECT(!ask_some(&want, cache, prefix, 0, QUERIES, NULL, NULL, &options), "%s", aura_last_error());
    EXPECT(!ask_some(&got, cache, seq, 0, QUERIES, NULL, until, &options), "%s", aura_last_error());
    EXPECT(!memcmp(&got, &want, sizeof got), "queries of old positions");
    EXPECT(!aura_truncate(cache, prefix, 3), "%s", aura_last_error());
    for (uint32_t i = 0; i < QUERIES; i++)
        until[i] = 1 + i % 3;
    EXPECT(!ask_some(&got, cache, prefix, 0, QUERIES, NULL, until, NULL), "%s", aura_last_error());
    aura_cache_destroy(cache);
}

static void refused_limits(void)
{
    static struct answer got, untouched;
    aura_seq seq;
    aura_cache *cache = scene_cache(ctx, &scene, &seq);
    uint64_t from[QUERIES] = {0}, until[QUERIES] = {0};
    memset(&untouched, 0x55, sizeof untouched);
    from[5] = 1;
    EXPECT(ask_some(&got, cache, seq, 0, QUERIES, from, until, NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "query 5"),
           "from after until: %s", aura_last_error());
    from[5] = 0, until[QUERIES - 1] = TOKENS + 1;
    EXPECT(ask_some(&got, cache, seq, 0, QUERIES, NULL, until, NULL) == AURA_BAD_ARGUMENT, "until beyond the end");
    until[QUERIES - 1] = UINT64_MAX;
    EXPECT(ask_some(&got, cache, seq, 0, QUERIES, from, until, NULL) == AURA_BAD_ARGUMENT, "until beyond everything");
    from[QUERIES - 1] = TOKENS + 1;
    EXPECT(ask_some(&got, cache, seq, 0, QUERIES, from, NULL, NULL) == AURA_BAD_ARGUMENT, "from beyond the end");
    EXPECT(!memcmp(&got, &untouched, sizeof got), "a refused call wrote something");
    from[QUERIES - 1] = TOKENS;
    EXPECT(!ask_some(&got, cache, seq, 0, QUERIES, from, NULL, NULL) && got.lse[QUERIES - 1][0] == -INFINITY, "from at the end: %s",
           aura_last_error());
    aura_cache_destroy(cache);
}

/* Query heads that the cache does not know, or that do not fit. */
static void heads_of_a_job(void)
{
    static float x[2 * Q_HEADS * DIM], out[2][2 * Q_HEADS * DIM];
    static const uint32_t bad[] = {3, 65538};
    aura_config config = scene.config;
    config.q_heads = 0;
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache);
    aura_attend_job jobs[2] = {AURA_ATTEND_JOB_INIT, AURA_ATTEND_JOB_INIT};
    size_t bytes[2] = {0};
    EXPECT(!append(cache, seq, &scene.k, &scene.v, 0, 100), "%s", aura_last_error());
    for (int i = 0; i < 2; i++)
        jobs[i].seq = seq, jobs[i].queries = 2, jobs[i].q.data = x, jobs[i].out.data = out[i], jobs[i].q_heads = Q_HEADS;
    EXPECT(!aura_attend(cache, jobs, 2, NULL), "%s", aura_last_error());
    EXPECT(!aura_attend_workspace(cache, jobs, 1, 0, &bytes[0]), "%s", aura_last_error());
    jobs[0].q_heads = jobs[1].q_heads = 2 * KV_HEADS;
    EXPECT(!aura_attend(cache, jobs, 2, NULL) && !aura_attend_workspace(cache, jobs, 1, 0, &bytes[1]) && bytes[1] < bytes[0],
           "fewer heads: %zu bytes after %zu, %s", bytes[1], bytes[0], aura_last_error());
    jobs[1].q_heads = Q_HEADS;
    EXPECT(aura_attend(cache, jobs, 2, NULL) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "jobs[1]"), "%s", aura_last_error());
    for (int i = 0; i < 2; i++) {
        jobs[0].q_heads = bad[i];
        EXPECT(aura_attend(cache, jobs, 1, NULL) == AURA_BAD_ARGUMENT, "%u query heads", bad[i]);
    }
    jobs[0].q_heads = 0;
    EXPECT(aura_attend(cache, jobs, 1, NULL) == AURA_BAD_ARGUMENT &&
           aura_attend_workspace(cache, jobs, 1, 0, &bytes[0]) == AURA_BAD_ARGUMENT, "nobody says how many heads");
    aura_cache_destroy(cache);
}

static void tests(void)
{
    RUN(the_same_in_other_words);
    RUN(neighbours_change_no_bit);
    RUN(documents_in_one_sequence);
    RUN(windows_and_first_tokens);
    RUN(queries_of_any_position);
    RUN(refused_limits);
    RUN(heads_of_a_job);
}

int main(void)
{
    make_scene();
    on_every_tile_isa(tests);
    tensor_free(&scene.k), tensor_free(&scene.v);
    return test_result();
}
