/* Caches that learn: tiles that close before 512 positions were asked about are those of a cache without a metric, and later ones
 * those of a cache with E[q q']; also after saving and loading in between. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../../include/aura_file.h"
#include "../file/file_tools.h"
#include "cache_tools.h"

enum { HEADS = 2, Q_HEADS = 4, DIM = 64, TOKENS = 160, POSITIONS = 512, TRIANGLE = DIM * (DIM + 1) / 2 };

static float *keys, *values, *queries; /* queries: [POSITIONS + 8][Q_HEADS][DIM] */

static aura_config learning_config(void)
{
    aura_config c = config_of(AURA_KIND_B3, AURA_KIND_B4, DIM, DIM, HEADS);
    c.q_heads = Q_HEADS, c.flags |= AURA_NO_ROLLBACK | AURA_LEARN;
    return c;
}

static void put(aura_cache *cache, aura_seq seq, uint32_t first, uint32_t n)
{
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = seq, job.tokens = n, job.k.data = keys + first * HEADS * DIM, job.v.data = values + first * HEADS * DIM;
    EXPECT(!aura_append(cache, &job, 1), "%s", aura_last_error());
}

/* Asks about positions [first, first + n), in calls of at most `most` queries. */
static void ask_by(const aura_cache *cache, aura_seq seq, uint32_t first, uint32_t n, uint32_t most)
{
    static float out[40 * Q_HEADS * DIM];
    for (uint32_t t = first, part; t < first + n; t += part) {
        aura_attend_job job = AURA_ATTEND_JOB_INIT;
        part = first + n - t < most ? first + n - t : most;
        job.seq = seq, job.queries = part, job.q.data = queries + t * Q_HEADS * DIM, job.out.data = out;
        EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
    }
}

static void ask(const aura_cache *cache, aura_seq seq, uint32_t first, uint32_t n)
{
    ask_by(cache, seq, first, n, 40);
}

/* What 512 positions teach: the sum of q q' over its trace. */
static float *right_metric(void)
{
    float *metric = malloc(HEADS * TRIANGLE * sizeof *metric);
    double *sum = calloc(HEADS * TRIANGLE, sizeof *sum);
    for (int h = 0; h < HEADS; h++) {
        double trace = 0, *to = sum + h * TRIANGLE;
        for (int t = 0; t < POSITIONS; t++)
            for (int g = h * (Q_HEADS / HEADS); g < (h + 1) * (Q_HEADS / HEADS); g++) {
                const float *q = queries + (t * Q_HEADS + g) * DIM;
                for (int i = 0; i < DIM; i++)
                    for (int j = 0; j <= i; j++)
                        to[i * (i + 1) / 2 + j] += (double)q[i] * (double)q[j];
            }
        for (int i = 0; i < DIM; i++)
            trace += to[i * (i + 1) / 2 + i];
        for (int i = 0; i < TRIANGLE; i++)
            metric[h * TRIANGLE + i] = (float)(to[i] / trace);
    }
    free(sum);
    return metric;
}

/* A sequence that has the tokens [0, first) of a plain cache and then those of one with the metric. */
static struct model *right_model(uint32_t first)
{
    aura_config plain = learning_config(), with = plain;
    plain.flags &= ~(uint32_t)AURA_LEARN, with.flags = plain.flags;
    float *metric = right_metric();
    with.k_metric = metric;
    struct model *m = model_create(&with, TOKENS), *p = model_create(&plain, TOKENS);
    model_append(p, keys, values, first);
    for (uint32_t t = 4; t < first; t++)
        for (uint32_t h = 0; h < HEADS; h++)
            model_code_of(&p->k, h, t), model_code_of(&p->v, h, t);
    model_append(m, keys, values, TOKENS);
    for (uint32_t h = 0; h < HEADS; h++) {
        memcpy(model_coded(&m->k, h, 0), model_coded(&p->k, h, 0), first * DIM * sizeof(float));
        memcpy(model_known(&m->k, h, 0), model_known(&p->k, h, 0), first);
    }
    model_destroy(p);
    free(metric);
    return m;
}

static void later_tiles_know_what_was_learnt(void)
{
    aura_config config = learning_config();
    struct model *m = right_model(96);
    for (int i = 0; use_isa(i); i++) {
        aura_cache *cache = cache_new(ctx, &config);
        aura_seq seq = seq_new(cache);
        put(cache, seq, 0, 64), ask(cache, seq, 0, POSITIONS - 1);
        put(cache, seq, 64, 32), ask(cache, seq, POSITIONS - 1, 8); /* the last of which count no more */
        put(cache, seq, 96, TOKENS - 96);
        expect_model(cache, seq, m, "learnt");
        aura_cache_destroy(cache);
    }
    model_destroy(m);
}

/* One call for both counts its queries as if it were two. */
static void a_step_learns_after_it_has_appended(void)
{
    aura_config config = learning_config();
    static float out[8 * Q_HEADS * DIM];
    struct model *m = right_model(96);
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache);
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    put(cache, seq, 0, 88), ask(cache, seq, 0, POSITIONS - 8);
    in.seq = seq, in.tokens = 8, in.k.data = keys + 88 * HEADS * DIM, in.v.data = values + 88 * HEADS * DIM;
    job.seq = seq, job.queries = 8, job.q.data = queries + (POSITIONS - 8) * Q_HEADS * DIM, job.out.data = out;
    EXPECT(!aura_append_attend(cache, &in, 1, &job, 1, NULL), "%s", aura_last_error());
    put(cache, seq, 96, TOKENS - 96);
    expect_model(cache, seq, m, "a step");
    aura_cache_destroy(cache), model_destroy(m);
}

/* Calls of up to 4 queries teach only where the length of the first sequence is a multiple of 4; one of 5 does everywhere. */
static void one_small_step_in_four_teaches(void)
{
    aura_config config = learning_config();
    for (uint32_t extra = 0; extra < 4; extra++)
        for (uint32_t most = 4; most <= 5; most++) {
            struct model *m = right_model(most == 4 && extra ? TOKENS : 64);
            aura_cache *cache = cache_new(ctx, &config);
            aura_seq seq = seq_new(cache);
            put(cache, seq, 0, 64 + extra), ask_by(cache, seq, 0, POSITIONS - 32, most);
            ask_by(cache, seq, POSITIONS - 32, 32, most == 4 ? 4 : 32), put(cache, seq, 64 + extra, TOKENS - 64 - extra);
            expect_model(cache, seq, m, "small steps");
            aura_cache_destroy(cache), model_destroy(m);
        }
}

static void a_loaded_cache_goes_on_learning(void)
{
    const char *path = file_path("learning"), *again = file_path("again");
    aura_config config = learning_config(), plain = config;
    struct model *m = right_model(64);
    plain.flags &= ~(uint32_t)AURA_LEARN;
    for (uint32_t when = 0; when <= POSITIONS; when += 256) { /* nothing, half of it, all of it */
        aura_cache *cache = cache_new(ctx, &config), *fresh = cache_new(ctx, &config), *other = cache_new(ctx, &plain);
        aura_cache *loaded = NULL, *half = NULL;
        aura_seq seq = seq_new(cache), id = seq_new(fresh); /* a sequence without tokens teaches nothing */
        aura_snapshot_options one = AURA_SNAPSHOT_OPTIONS_INIT;
        put(cache, seq, 0, 64), ask(cache, seq, 0, when);
        EXPECT(!aura_cache_save(cache, path, NULL) && !aura_cache_load(ctx, path, NULL, &loaded) &&
               !aura_cache_save(loaded, again, NULL), "%s", aura_last_error());
        struct bytes a = read_file(path), b = read_file(again);
        EXPECT(a.size == b.size && !memcmp(a.data, b.data, a.size), "another file");
        EXPECT(!aura_seq_load(fresh, path, NULL, &id), "%s", aura_last_error());
        for (int i = 0; i < 2; i++) { /* a cache, and a sequence into one that has learnt nothing */
            aura_cache *to = i ? fresh : loaded;
            ask(to, i ? id : 1, when, POSITIONS - when), put(to, i ? id : 1, 64, TOKENS - 64);
            expect_model(to, i ? id : 1, m, i ? "sequence" : "loaded");
        }
        EXPECT(!aura_seq_load(other, path, NULL, &id), "into a cache that does not learn: %s", aura_last_error());
        one.first_head = 1;
        EXPECT(!aura_cache_load(ctx, path, &one, &half), "%s", aura_last_error());
        free(a.data), free(b.data);
        aura_cache_destroy(cache), aura_cache_destroy(loaded), aura_cache_destroy(fresh), aura_cache_destroy(other);
        aura_cache_destroy(half);
    }
    unlink(path), unlink(again), model_destroy(m);
}

/* Of files: a position too many, sums that are none, a section that is missing or of another length. */
static void bad_files_are_refused(void)
{
    const char *path = file_path("learning");
    aura_config config = learning_config();
    aura_cache *cache = cache_new(ctx, &config), *loaded = NULL;
    aura_seq seq = seq_new(cache);
    put(cache, seq, 0, 64), ask(cache, seq, 0, 40);
    EXPECT(!aura_cache_save(cache, path, NULL), "%s", aura_last_error());
    struct bytes file = read_file(path);
    uint8_t *at = file.data + section_of(file, 0, AURA_SECTION_LEARNT)->offset;
    struct aura_file_learnt *learnt = (struct aura_file_learnt *)(void *)at;
    double *sum = (double *)(void *)(learnt + 1);
    const struct aura_file_learnt was = *learnt;
    for (int i = 0; i < 6; i++) {
        const double old = sum[7];
        learnt->positions += i == 0 ? POSITIONS : 0, learnt->kv_heads += i == 1, learnt->dim += i == 2;
        sum[7] = i == 3 ? NAN : i == 4 ? INFINITY : old;
        seal(file), write_file(path, file.data, file.size);
        EXPECT(aura_cache_load(ctx, path, NULL, &loaded) == (i < 5 ? AURA_BAD_FILE : AURA_OK), "%d: %s", i, aura_last_error());
        *learnt = was, sum[7] = old;
    }
    aura_cache_destroy(cache), aura_cache_destroy(loaded);
    unlink(path), free(file.data);
}

/* Where there is nothing to learn, the flag changes neither bytes nor memory; and what is no number teaches nothing. */
static void nothing_to_learn(void)
{
    aura_config config = learning_config();
    float *metric = right_metric(), kept = queries[9];
    for (int i = 0; i < 2; i++) {
        config = learning_config();
        config.k_metric = i ? NULL : metric;
        config.format.k = i ? AURA_KIND_F16 : AURA_KIND_B3;
        aura_cache *cache = cache_new(ctx, &config);
        config.flags &= ~(uint32_t)AURA_LEARN;
        aura_cache *other = cache_new(ctx, &config);
        EXPECT(aura_cache_bytes(cache) == aura_cache_bytes(other), "%d: %zu bytes, not %zu", i, aura_cache_bytes(cache),
               aura_cache_bytes(other));
        aura_cache_destroy(cache), aura_cache_destroy(other);
    }
    config = learning_config();
    queries[9] = NAN;
    static float out[8 * Q_HEADS * DIM];
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache);
    put(cache, seq, 0, 64);
    job.seq = seq, job.queries = 8, job.q.data = queries, job.out.data = out;
    EXPECT(aura_attend(cache, &job, 1, NULL) == AURA_NOT_FINITE, "a NaN");
    ask(cache, seq, 8, POSITIONS - 8), put(cache, seq, 64, TOKENS - 64);
    float k[HEADS * DIM];
    const aura_view k_view = {k, AURA_F32, 0, 0, NULL}, nobody = AURA_VIEW_INIT;
    EXPECT(!aura_cache_decode(cache, seq, TOKENS - 1, 1, &k_view, &nobody), "%s", aura_last_error());
    for (int d = 0; d < HEADS * DIM; d++)
        EXPECT(isfinite(k[d]), "key %d is %g", d, (double)k[d]);
    queries[9] = kept;
    aura_cache_destroy(cache), free(metric);
}

int main(void)
{
    if (!files_begin())
        return 1;
    uint64_t seed = 77;
    keys = random_tokens(1, TOKENS, HEADS, DIM, 1), values = random_tokens(2, TOKENS, HEADS, DIM, 0);
    queries = malloc((POSITIONS + 8) * Q_HEADS * DIM * sizeof *queries);
    for (int i = 0; i < (POSITIONS + 8) * Q_HEADS * DIM; i++)
        queries[i] = random_normal(&seed) * (i % 11 == 3 ? 5.f : 0.7f);
    isas_open(0);
    RUN(later_tiles_know_what_was_learnt);
    RUN(a_step_learns_after_it_has_appended);
    RUN(one_small_step_in_four_teaches);
    RUN(a_loaded_cache_goes_on_learning);
    RUN(bad_files_are_refused);
    RUN(nothing_to_learn);
    isas_close();
    files_end();
    free(keys), free(values), free(queries);
    return test_result();
}
