/* The thread rules of the cache, as the header states them: calls on different sequences at once, also where they share pages;
 * any number of readers and forks of one sequence; sequences that come and go at the same time; tiles of slots. Every thread gets
 * the bits that it gets alone. Under a thread sanitizer, this also shows that no rule is missing. */
#define _GNU_SOURCE
#include "cache_attend.h"

#include <pthread.h>

enum { WRITERS = 3, READERS = 3, LIVES = 10, TOKENS = 400, SHARED_TOKENS = 700 };

static struct scene scene; /* what all threads append */
static aura_cache *cache;
static aura_seq shared;

/* A running hash of all results. */
static uint64_t hash(uint64_t h, const void *data, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        h = (h ^ ((const uint8_t *)data)[i]) * 0x100000001b3u;
    return h;
}

/* Reads a sequence in all ways. */
static uint64_t read_seq(aura_seq seq, uint32_t queries, uint64_t h)
{
    enum { Q_HEADS = 4, K_DIM = 64, V_DIM = 80 };
    float q[8 * Q_HEADS * K_DIM], out[8 * Q_HEADS * V_DIM], lse[8 * Q_HEADS], k[2 * K_DIM], v[2 * V_DIM];
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
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

/* A new sequence, or a fork of the shared one, which other threads read and fork at the same time. */
static int begin_seq(aura_seq *seq, uint64_t *len, uint64_t *seed)
{
    *len = random_bits(seed) % 2 ? 150 + random_bits(seed) % 200 : 0;
    return *len ? aura_seq_fork(cache, shared, *len, seq) != AURA_OK : aura_seq_create(cache, seq) != AURA_OK;
}

/* Sequences that grow, shrink and are released. */
static uint64_t write_seqs(uint64_t seed)
{
    uint64_t h = 0;
    for (int life = 0; life < LIVES; life++) {
        aura_seq seq = 0;
        uint64_t len = 0;
        int failed = begin_seq(&seq, &len, &seed) || aura_seq_reserve(cache, seq, random_bits(&seed) % TOKENS);
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

/* Runs each thread alone, then all at once. */
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

/* ---- siblings ---------------------------------------------------------------------------------------------------------- */

enum { SIBLINGS = 4, COMMON = 390 };

struct sibling {
    aura_seq seq;
    uint64_t seed, result;
    pthread_barrier_t *start; /* all write to the same page at the same moment; NULL: alone */
};

/* Appends to tokens that all siblings share. A holder that writes to a shared page copies it; the last holder keeps the page. */
static void *grow_sibling(void *user)
{
    struct sibling *s = user;
    uint64_t len = COMMON;
    s->result = 0;
    if (s->start)
        pthread_barrier_wait(s->start);
    for (int step = 0; step < 3; step++) {
        uint32_t n = 20 + (uint32_t)(random_bits(&s->seed) % 40);
        int failed = append(cache, s->seq, &scene.k, &scene.v, (uint32_t)((len + s->seed % 100) % (SHARED_TOKENS - n)),
                            n) != AURA_OK;
        len += n;
        s->result = read_seq(s->seq, 3, hash(s->result, &failed, sizeof failed));
    }
    return NULL;
}

/* Runs n siblings, one after the other or all at once; their parent is released. */
static void grow_siblings(uint64_t result[SIBLINGS], int n, int together)
{
    struct sibling sibling[SIBLINGS];
    pthread_t threads[SIBLINGS];
    pthread_barrier_t start;
    aura_seq parent = seq_new(cache);
    EXPECT(!append(cache, parent, &scene.k, &scene.v, 0, COMMON), "%s", aura_last_error());
    pthread_barrier_init(&start, NULL, (unsigned)n);
    for (int i = 0; i < n; i++) {
        sibling[i].seed = (uint64_t)i, sibling[i].start = together ? &start : NULL;
        EXPECT(!aura_seq_fork(cache, parent, COMMON - (uint64_t)i, &sibling[i].seq), "%s", aura_last_error());
    }
    EXPECT(!aura_seq_release(cache, parent), "%s", aura_last_error());
    for (int i = 0; i < n; i++) {
        if (together)
            pthread_create(&threads[i], NULL, grow_sibling, &sibling[i]);
        else
            grow_sibling(&sibling[i]);
    }
    for (int i = 0; i < n; i++) {
        if (together)
            pthread_join(threads[i], NULL);
        result[i] = sibling[i].result;
        EXPECT(!aura_seq_release(cache, sibling[i].seq), "%s", aura_last_error());
    }
    pthread_barrier_destroy(&start);
}

static void siblings_write_at_once(void)
{
    uint64_t alone[SIBLINGS], together[SIBLINGS];
    cache = cache_new(ctx, &scene.config);
    grow_siblings(alone, SIBLINGS, 0);
    for (int round = 0; round < 30; round++) {
        int n = 2 + round % (SIBLINGS - 1);
        grow_siblings(together, n, 1);
        EXPECT(!memcmp(alone, together, (size_t)n * sizeof *alone), "round %d: a sibling got something else than alone", round);
    }
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    EXPECT(!aura_cache_get_info(cache, &info) && info.pages == info.free_pages && !info.holders, "%zu holders left",
           info.holders);
    aura_cache_destroy(cache);
}

/* Pages of 4 MiB take long to copy: a thread that writes to the old page too early would do so during the copy. */
struct large {
    aura_cache *cache;
    aura_seq seq;
    const struct tensor *x;
    uint32_t first; /* the token that this thread appends next */
    pthread_barrier_t *start;
    uint64_t result;
};

enum { LARGE_HEADS = 4, LARGE_DIM = 512, LARGE_TOKENS = 8 };

static void *grow_large(void *user)
{
    struct large *l = user;
    float *k = calloc((size_t)(LARGE_TOKENS + 1) * LARGE_HEADS * LARGE_DIM, sizeof *k);
    aura_view view = {k, AURA_F32, 0, 0, NULL};
    if (l->start)
        pthread_barrier_wait(l->start);
    int failed = append(l->cache, l->seq, l->x, l->x, l->first, 1) ||
        aura_cache_decode(l->cache, l->seq, 0, LARGE_TOKENS + 1, &view, NULL);
    l->result = hash(hash(0, &failed, sizeof failed), k, (size_t)(LARGE_TOKENS + 1) * LARGE_HEADS * LARGE_DIM * sizeof *k);
    free(k);
    return NULL;
}

static void copies_are_made_in_time(void)
{
    aura_config config = config_of(AURA_KIND_F32, AURA_KIND_F32, LARGE_DIM, LARGE_DIM, LARGE_HEADS);
    aura_cache *own = cache_new(ctx, &config);
    float *numbers = random_tokens(3, LARGE_TOKENS, LARGE_HEADS, LARGE_DIM, 1);
    struct tensor x = tensor_new(LARGE_TOKENS, LARGE_HEADS, LARGE_DIM, AURA_F32, DENSE);
    uint64_t alone[2] = {0};
    tensor_set(&x, numbers);
    for (int round = 0; round < 12; round++) {
        struct large l[2];
        pthread_barrier_t start;
        pthread_t thread;
        aura_seq parent = seq_new(own);
        pthread_barrier_init(&start, NULL, 2);
        EXPECT(!append(own, parent, &x, &x, 0, LARGE_TOKENS), "%s", aura_last_error());
        for (uint32_t i = 0; i < 2; i++) {
            struct large one = {own, 0, &x, i, round ? &start : NULL, 0};
            l[i] = one;
            EXPECT(!aura_seq_fork(own, parent, LARGE_TOKENS, &l[i].seq), "%s", aura_last_error());
        }
        EXPECT(!aura_seq_release(own, parent), "%s", aura_last_error());
        if (round)
            pthread_create(&thread, NULL, grow_large, &l[1]);
        grow_large(&l[0]);
        if (round)
            pthread_join(thread, NULL);
        else
            grow_large(&l[1]);
        for (int i = 0; i < 2; i++) {
            alone[i] = round ? alone[i] : l[i].result;
            EXPECT(l[i].result == alone[i], "round %d: sibling %d got something else than alone", round, i);
            EXPECT(!aura_seq_release(own, l[i].seq), "%s", aura_last_error());
        }
        pthread_barrier_destroy(&start);
    }
    aura_cache_destroy(own);
    tensor_free(&x);
    free(numbers);
}

/* ---- slots ------------------------------------------------------------------------------------------------------------- */

enum { SLOT_WRITERS = 4, SLOT_TILES = 8 };

static aura_cache *slots;

static uint64_t attend_to_tile(uint32_t tile)
{
    float q[4 * 64], out[4 * 80], lse[4];
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    uint64_t seed = 9;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = random_normal(&seed);
    memset(out, 0, sizeof out), memset(lse, 0, sizeof lse);
    job.queries = 1, job.q.data = q, job.out.data = out, job.lse = lse, job.tiles = &tile, job.tokens = TILE;
    aura_status status = aura_attend(slots, &job, 1, NULL);
    return hash(hash(hash(0, out, sizeof out), lse, sizeof lse), &status, sizeof status);
}

/* Writes tiles w and w + 4 of one page, and hashes what they hold at the end. */
static void *write_tiles(void *user)
{
    uint64_t *result = user, w = *result, h = 0;
    for (int round = 0; round < 6; round++)
        for (uint64_t tile = w; tile < SLOT_TILES; tile += SLOT_WRITERS) {
            uint64_t slot[TILE];
            aura_slot_job job = AURA_SLOT_JOB_INIT;
            for (uint64_t i = 0; i < TILE; i++)
                slot[i] = tile * TILE + (i * 5 + 3) % TILE;
            job.tokens = TILE, job.slot = slot;
            job.k = tensor_from(&scene.k, (uint32_t)(round * 20 + (int)w)),
                job.v = tensor_from(&scene.v, (uint32_t)(round * 20 + (int)w));
            aura_status status = aura_slots_write(slots, &job, 1);
            h = hash(hash(h, &status, sizeof status), &(uint64_t){attend_to_tile((uint32_t)tile)}, sizeof h);
        }
    *result = h;
    return NULL;
}

static void tiles_of_slots_at_once(void)
{
    uint64_t alone[SLOT_WRITERS], together[SLOT_WRITERS];
    pthread_t threads[SLOT_WRITERS];
    aura_config config = scene.config;
    config.slots = SLOT_TILES * TILE;
    slots = cache_new(ctx, &config);
    for (uint64_t i = 0; i < SLOT_WRITERS; i++)
        alone[i] = i, write_tiles(&alone[i]);
    for (uint64_t i = 0; i < SLOT_WRITERS; i++) {
        together[i] = i;
        pthread_create(&threads[i], NULL, write_tiles, &together[i]);
    }
    for (int i = 0; i < SLOT_WRITERS; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(together[i] == alone[i], "writer %d got something else than alone", i);
    }
    aura_cache_destroy(slots);
}

/* Two caches of one context, each written by a thread of its own. */
static void *fill_a_cache(void *user)
{
    aura_ctx *in = user;
    aura_cache *own = NULL;
    aura_seq seq = 0;
    int failed = aura_cache_create(in, &scene.config, &own) || aura_seq_create(own, &seq) ||
        append(own, seq, &scene.k, &scene.v, 0, TOKENS);
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
    RUN(siblings_write_at_once);
    RUN(copies_are_made_in_time);
    RUN(tiles_of_slots_at_once);
    RUN(caches_share_a_context);
    scene_free(&scene);
    aura_ctx_destroy(ctx);
    return test_result();
}
