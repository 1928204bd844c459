/* The thread rules of the cache, as the header states them: calls on different sequences at once, any number of readers of
 * one, sequences that come and go meanwhile. What every thread gets has the bits that it gets alone. Run under a thread
 * sanitizer, this also shows that no rule is missing. */
#define _GNU_SOURCE
#include "cache_attend.h"

#include <pthread.h>

enum { WRITERS = 3, READERS = 3, LIVES = 10, TOKENS = 400, SHARED_TOKENS = 700 };

static struct scene scene; /* what everybody appends */
static aura_cache *cache;
static aura_seq shared;

/* A running hash of everything that came back. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return h;
}

/* Reads a sequence in all ways there are. */
static uint64_t read_seq(aura_seq seq, uint32_t queries, uint64_t h)
{
    enum { Q_HEADS = 4, K_DIM = 64, V_DIM = 80 };
    float q[8 * Q_HEADS * K_DIM], out[8 * Q_HEADS * V_DIM], lse[8 * Q_HEADS], k[2 * K_DIM], v[2 * V_DIM];
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_view k_view = {k, AURA_F32, 0, 0}, v_view = {v, AURA_F32, 0, 0};
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    uint64_t seed = queries;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = random_normal(&seed);
    memset(out, 0, sizeof out), memset(lse, 0, sizeof lse), memset(k, 0, sizeof k), memset(v, 0, sizeof v);
    job.seq = seq, job.queries = queries, job.q.data = q, job.out.data = out, job.lse = lse;
    aura_status status = aura_attend(cache, &job, 1, NULL);
    status = status ? status : aura_seq_get_info(cache, seq, &info);
    status = status ? status : aura_cache_decode(cache, seq, info.tokens / 2, 1, &k_view, &v_view);
    h = hash(hash(hash(h, out, sizeof out), lse, sizeof lse), &info.tokens, sizeof info.tokens);
    return hash(hash(hash(h, k, sizeof k), v, sizeof v), &status, sizeof status);
}

/* Sequences that grow, shrink and go. */
static uint64_t write_seqs(uint64_t seed)
{
    uint64_t h = 0;
    for (int life = 0; life < LIVES; life++) {
        aura_seq seq = 0;
        uint64_t len = 0;
        int failed = aura_seq_create(cache, &seq) || aura_seq_reserve(cache, seq, random_bits(&seed) % TOKENS);
        for (int step = 0; step < 6; step++) {
            uint32_t n = (uint32_t)(random_bits(&seed) % 90) + 8;
            n = len + n <= TOKENS ? n : (uint32_t)(TOKENS - len);
            failed |= n && append(cache, seq, &scene.k, &scene.v, (uint32_t)len, n) != AURA_OK;
            len += n;
            h = read_seq(seq, 1 + (uint32_t)(seed % 8), h);
            if (random_bits(&seed) % 2) {
                len = len > 40 ? len - random_bits(&seed) % 30 : len;
                failed |= aura_truncate(cache, seq, len) != AURA_OK;
            }
        }
        failed |= aura_seq_release(cache, seq) != AURA_OK;
        h = hash(h, &failed, sizeof failed);
    }
    return h;
}

static uint64_t read_shared(uint64_t seed)
{
    uint64_t h = 0;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    for (int i = 0; i < 12; i++) {
        int wrong = aura_cache_get_info(cache, &info) || aura_cache_bytes(cache) == 0;
        h = hash(read_seq(shared, 1 + (uint32_t)(random_bits(&seed) % 8), h), &wrong, sizeof wrong);
    }
    return h;
}

static void *writer(void *user)
{
    uint64_t *result = user;
    *result = write_seqs(*result);
    return NULL;
}

static void *reader(void *user)
{
    uint64_t *result = user;
    *result = read_shared(*result);
    return NULL;
}

/* First everybody alone, then all at once. */
static void share_a_cache(aura_ctx *in)
{
    uint64_t alone[WRITERS + READERS], together[WRITERS + READERS];
    pthread_t threads[WRITERS + READERS];
    cache = cache_new(in, &scene.config);
    shared = seq_new(cache);
    EXPECT(!append(cache, shared, &scene.k, &scene.v, 0, SHARED_TOKENS), "%s", aura_last_error());
    for (int i = 0; i < WRITERS + READERS; i++)
        alone[i] = i < WRITERS ? write_seqs((uint64_t)i) : read_shared((uint64_t)i);
    for (int i = 0; i < WRITERS + READERS; i++) {
        together[i] = (uint64_t)i;
        pthread_create(&threads[i], NULL, i < WRITERS ? writer : reader, &together[i]);
    }
    for (int i = 0; i < WRITERS + READERS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(together[i] == alone[i], "thread %d got something else than alone", i);
    }
    expect_model(cache, shared, scene.model, "the shared sequence");
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    EXPECT(!aura_cache_get_info(cache, &info) && info.seqs == 1, "%zu sequences left", info.seqs);
    aura_cache_destroy(cache);
}

static void without_a_pool(void)
{
    share_a_cache(ctx);
}

/* The threads of the context and those of the caller. */
static void with_a_pool(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *own = NULL;
    options.threads = 3;
    EXPECT(!aura_ctx_create(&options, &own), "%s", aura_last_error());
    share_a_cache(own);
    aura_ctx_destroy(own);
}

/* Two caches of one context, each written by a thread of its own. */
static void *fill_a_cache(void *user)
{
    aura_ctx *in = user;
    aura_cache *own = NULL;
    aura_seq seq = 0;
    int failed = aura_cache_create(in, &scene.config, &own) || aura_seq_create(own, &seq) || append(own, seq, &scene.k, &scene.v, 0, TOKENS);
    aura_cache_destroy(own);
    return failed ? user : NULL;
}

static void caches_share_a_context(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *own = NULL;
    pthread_t threads[3];
    void *failed;
    options.threads = 2;
    EXPECT(!aura_ctx_create(&options, &own), "%s", aura_last_error());
    for (int i = 0; i < 3; i++)
        pthread_create(&threads[i], NULL, fill_a_cache, own);
    for (int i = 0; i < 3; i++) {
        pthread_join(threads[i], &failed);
        EXPECT(!failed, "thread %d", i);
    }
    aura_ctx_destroy(own);
}

int main(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 80, 2);
    config.q_heads = 4;
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    scene = scene_new(config, SHARED_TOKENS);
    RUN(without_a_pool);
    RUN(with_a_pool);
    RUN(caches_share_a_context);
    scene_free(&scene);
    aura_ctx_destroy(ctx);
    return test_result();
}
