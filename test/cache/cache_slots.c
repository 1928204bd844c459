/* Slots: the caller decides where tokens go. Slots written in any order hold the bits of a sequence that encodes at once.
 * Attention over a list of tiles is attention over that sequence. */
#include "cache_twins.h"

enum { SLOTS = 700, TILES = (SLOTS + TILE - 1) / TILE, Q_HEADS = 4, HEADS = 2, DIM = 64 };

static const aura_kind cases[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B3, AURA_KIND_F16}, {AURA_KIND_F32, AURA_KIND_B2},
                                     {AURA_KIND_B8, AURA_KIND_B5}, {AURA_KIND_BF16, AURA_KIND_F16}, {AURA_KIND_B2, AURA_KIND_B6}};
enum { N_CASES = sizeof cases / sizeof *cases };

static aura_config slot_config(aura_kind k, aura_kind v)
{
    aura_config config = config_of(k, v, DIM, DIM, HEADS);
    config.q_heads = Q_HEADS;
    config.slots = SLOTS;
    return config;
}

/* A cache of sequences that encodes in the same way as slots without a reference. */
static aura_config plain_config(aura_kind k, aura_kind v)
{
    aura_config config = slot_config(k, v);
    config.slots = 0;
    config.flags |= AURA_NO_PINNED | AURA_NO_OPEN | AURA_NO_REFERENCE;
    return config;
}

/* Writes tokens [first, first + n) of the text to slot[]. */
static aura_slot_job slot_job(const struct text *t, uint32_t first, uint32_t n, const uint64_t *slot)
{
    aura_slot_job job = AURA_SLOT_JOB_INIT;
    job.tokens = n, job.slot = slot;
    job.k = tensor_from(&t->k[0], first), job.v = tensor_from(&t->v[0], first);
    return job;
}

static aura_status write_slots(aura_cache *cache, const struct text *t, uint32_t first, uint32_t n, const uint64_t *slot)
{
    aura_slot_job job = slot_job(t, first, n, slot);
    return aura_slots_write(cache, &job, 1);
}

/* The slots as numbers, keys then values. The caller frees. */
static float *read_slots(const aura_cache *cache, const uint64_t *slot, uint32_t n)
{
    float *x = calloc((size_t)2 * n * HEADS * DIM + 1, sizeof *x);
    aura_view k = {x, AURA_F32, 0, 0, NULL}, v = {x + (size_t)n * HEADS * DIM, AURA_F32, 0, 0, NULL};
    EXPECT(!aura_slots_decode(cache, slot, n, &k, &v), "%s", aura_last_error());
    return x;
}

static float *read_all(const aura_cache *cache)
{
    uint64_t slot[SLOTS];
    for (uint64_t i = 0; i < SLOTS; i++)
        slot[i] = i;
    return read_slots(cache, slot, SLOTS);
}

static void shuffle(uint64_t *x, uint32_t n, uint64_t seed)
{
    for (uint32_t i = n; i > 1; i--) {
        uint64_t j = random_bits(&seed) % i, swap = x[i - 1];
        x[i - 1] = x[j], x[j] = swap;
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

enum { MOST_QUERIES = 9 };

struct answer {
    float out[MOST_QUERIES * Q_HEADS * DIM], lse[MOST_QUERIES * Q_HEADS];
};

static struct answer attend_to(const aura_cache *cache, aura_seq seq, const uint32_t *tiles, uint64_t tokens, uint32_t queries,
                               const aura_attend_options *options)
{
    static float q[MOST_QUERIES * Q_HEADS * DIM];
    struct answer a;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = random_normal(&seed);
    memset(&a, 0, sizeof a);
    job.seq = seq, job.tiles = tiles, job.tokens = tokens;
    job.queries = queries, job.q.data = q, job.out.data = a.out, job.lse = a.lse;
    EXPECT(!aura_attend(cache, &job, 1, options), "%llu tokens: %s", (unsigned long long)tokens, aura_last_error());
    return a;
}

/* Writes the text to the tiles tiles[0], tiles[1] ... of the slots, in random order and in pieces, and to a sequence. */
static void slots_are_a_sequence(void)
{
    static const uint64_t lengths[] = {1, 31, 32, 33, 300, 672};
    for (int i = 0; i < N_CASES; i++) {
        struct text t = text_new(slot_config(cases[i][0], cases[i][1]), SLOTS);
        aura_config plain = plain_config(cases[i][0], cases[i][1]);
        aura_cache *cache = cache_new(ctx, &t.config), *whole = cache_new(ctx, &plain);
        const char *what = config_text(&t.config);
        uint64_t order[SLOTS], tile[TILES - 1];
        uint32_t tiles[TILES - 1], n = (TILES - 1) * TILE;
        size_t bytes;
        for (uint32_t j = 0; j < TILES - 1; j++)
            tile[j] = j;
        shuffle(tile, TILES - 1, 5 + (uint64_t)i);
        for (uint32_t j = 0; j < TILES - 1; j++)
            tiles[j] = (uint32_t)tile[j];
        for (uint32_t j = 0; j < n; j++)
            order[j] = j;
        shuffle(order, n, 6 + (uint64_t)i);
        for (uint32_t j = 0; j < n; j++) {
            uint64_t slot = (uint64_t)tiles[order[j] / TILE] * TILE + order[j] % TILE;
            EXPECT(!write_slots(cache, &t, (uint32_t)order[j], 1, &slot), "%s: %s", what, aura_last_error());
        }
        aura_seq seq = seq_new(whole);
        EXPECT(!text_append(whole, seq, &t, 0, 0, n), "%s", aura_last_error());
        for (uint32_t j = 0; j < n; j++)
            order[j] = (uint64_t)tiles[j / TILE] * TILE + j % TILE;
        float *x = read_slots(cache, order, n), *y = read_tokens(whole, seq, 0, n, &bytes);
        EXPECT(!memcmp(x, y, bytes), "%s: tokens differ", what);
        free(x), free(y);
        for (size_t j = sizeof lengths / sizeof *lengths; j-- > 0;) {
            aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
            uint32_t queries = lengths[j] < MOST_QUERIES ? (uint32_t)lengths[j] : j % 2 ? MOST_QUERIES : 1;
            options.window = j == 4 ? 50 : 0;
            EXPECT(!aura_truncate(whole, seq, lengths[j]), "%s", aura_last_error());
            struct answer a = attend_to(cache, 0, tiles, lengths[j], queries, &options),
                b = attend_to(whole, seq, NULL, 0, queries, &options);
            EXPECT(!memcmp(&a, &b, sizeof a), "%s: attention to %llu tokens differs", what, (unsigned long long)lengths[j]);
        }
        aura_cache_destroy(cache), aura_cache_destroy(whole);
        text_free(&t);
    }
}

/* Tiles in their own order need no list. A list may name some of the tiles, and name one several times. */
static void lists_of_tiles(void)
{
    struct text t = text_new(slot_config(AURA_KIND_B4, AURA_KIND_B4), SLOTS);
    aura_cache *cache = cache_new(ctx, &t.config);
    uint64_t slot[SLOTS];
    uint32_t tiles[TILES];
    for (uint32_t i = 0; i < SLOTS; i++)
        slot[i] = i;
    for (uint32_t i = 0; i < TILES; i++)
        tiles[i] = i;
    aura_slot_job jobs[2] = {slot_job(&t, 0, 100, slot), slot_job(&t, 100, SLOTS - 100, slot + 100)};
    EXPECT(!aura_slots_write(cache, jobs, 2), "%s", aura_last_error());
    struct answer a = attend_to(cache, 0, tiles, SLOTS, 3, NULL), b = attend_to(cache, 0, NULL, SLOTS, 3, NULL);
    EXPECT(!memcmp(&a, &b, sizeof a), "no list is the list of all");
    for (uint32_t i = 0; i < 4; i++)
        tiles[i] = 20;
    a = attend_to(cache, 0, tiles, 4 * TILE, 1, NULL), b = attend_to(cache, 0, tiles, TILE, 1, NULL);
    for (size_t i = 0; i < Q_HEADS; i++) /* four times the same tokens: the same output, and an lse that is log 4 larger */
        EXPECT(fabsf(a.lse[i] - b.lse[i] - logf(4)) < 1e-4f && fabsf(a.out[i * DIM] - b.out[i * DIM]) < 1e-4f, "%g, %g",
               (double)a.lse[i], (double)b.lse[i]);
    b = attend_to(cache, 0, NULL, 0, 0, NULL);
    aura_cache_destroy(cache);
    text_free(&t);
}

/* ---- references --------------------------------------------------------------------------------------------------------- */

/* Keys that differ little: relative to a reference, which holds what they have in common, the differences are stored well. */
static void references_are_the_callers(void)
{
    aura_config config = slot_config(AURA_KIND_B4, AURA_KIND_B4);
    aura_cache *cache = cache_new(ctx, &config);
    struct text t = text_new(config, SLOTS);
    struct tensor mean[2] = {tensor_new(1, HEADS, DIM, AURA_F32, DENSE), tensor_new(1, HEADS, DIM, AURA_F32, DENSE)};
    uint64_t slot[2 * TILE], seed = 1;
    float common[2][HEADS * DIM];
    double error[3] = {0};
    for (int p = 0; p < 2; p++) {
        for (int d = 0; d < HEADS * DIM; d++)
            common[p][d] = 10 * random_normal(&seed);
        tensor_set(&mean[p], common[p]);
    }
    float *keys = malloc((size_t)SLOTS * HEADS * DIM * sizeof *keys);
    for (uint32_t i = 0; i < SLOTS * HEADS * DIM; i++)
        keys[i] = common[i / (HEADS * DIM) % 2][i % (HEADS * DIM)] + 0.1f * random_normal(&seed);
    tensor_set(&t.k[0], keys);
    for (int round = 0; round < 3; round++) { /* without a reference, with it, and with the reference of the other page */
        for (uint64_t p = 0; p < 2 && round; p++) {
            aura_input before = as_input(mean[p].view), after = as_input(mean[round == 1 ? p : 1 - p].view);
            EXPECT(aura_slots_reference(cache, p, &before) == AURA_BAD_ARGUMENT, "a reference after the first write");
            EXPECT(!aura_slots_clear(cache, p) && !aura_slots_reference(cache, p, &after), "%s", aura_last_error());
        }
        for (uint32_t i = 0; i < 2 * TILE; i++)
            slot[i] = i % 2 * PAGE + 40 + i / 2; /* token i belongs to page i % 2 */
        EXPECT(!write_slots(cache, &t, 0, 2 * TILE, slot), "%s", aura_last_error());
        float *x = read_slots(cache, slot, 2 * TILE);
        for (uint32_t i = 0; i < 2 * TILE * HEADS * DIM; i++)
            error[round] += fabs((double)x[i] - (double)keys[i]);
        free(x);
    }
    EXPECT(error[1] < error[0] / 20 && error[2] > error[0], "errors %g, %g, %g", error[0], error[1], error[2]);
    free(keys);
    tensor_free(&mean[0]), tensor_free(&mean[1]);
    aura_cache_destroy(cache);
    text_free(&t);
}

/* A list that mixes tiles of pages with different references: the scores are those of the decoded keys. */
static void references_are_added_to_their_own_page(void)
{
    aura_config config = slot_config(AURA_KIND_B6, AURA_KIND_B6);
    aura_cache *cache = cache_new(ctx, &config);
    struct text t = text_new(config, SLOTS);
    static const uint32_t tiles[] = {0, 9, 1, 8, 10, 2, 17, 3};
    enum { N = 8 * TILE - 5 };
    uint64_t slot[8 * TILE];
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    for (uint64_t p = 0; p < 3; p++) {
        aura_input view = tensor_from(&t.k[1], (uint32_t)p * 100);
        EXPECT(!aura_slots_reference(cache, p, &view), "%s", aura_last_error());
    }
    for (uint32_t i = 0; i < 8 * TILE; i++)
        slot[i] = (uint64_t)tiles[i / TILE] * TILE + i % TILE;
    EXPECT(!write_slots(cache, &t, 0, 8 * TILE, slot), "%s", aura_last_error());
    options.planes = 2;
    struct answer a = attend_to(cache, 0, tiles, N, 1, &options);
    float *x = read_slots(cache, slot, N), *v = x + (size_t)N * HEADS * DIM, q[MOST_QUERIES * Q_HEADS * DIM];
    uint64_t seed = 3;
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = random_normal(&seed);
    for (uint32_t h = 0; h < Q_HEADS; h++) {
        double sum = 0, want[DIM] = {0};
        for (uint32_t i = 0; i < N; i++) {
            const float *key = x + ((size_t)i * HEADS + h / 2) * DIM, *value = v + ((size_t)i * HEADS + h / 2) * DIM;
            double logit = 0;
            for (uint32_t d = 0; d < DIM; d++)
                logit += (double)q[h * DIM + d] * (double)key[d] / 8;
            sum += logit = exp(logit);
            for (uint32_t d = 0; d < DIM; d++)
                want[d] += logit * (double)value[d];
        }
        EXPECT(fabs((double)a.lse[h] - log(sum)) < 1e-3, "head %u: lse %g, not %g", h, (double)a.lse[h], log(sum));
        for (uint32_t d = 0; d < DIM; d++)
            EXPECT(fabs((double)a.out[h * DIM + d] - want[d] / sum) < 5e-3, "head %u: %g, not %g", h,
                   (double)a.out[h * DIM + d], want[d] / sum);
    }
    free(x);
    aura_cache_destroy(cache);
    text_free(&t);
}

/* ---- one slot and its neighbours --------------------------------------------------------------------------------------- */

static void neighbours_keep_what_they_have(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = text_new(slot_config(cases[i][0], cases[i][1]), SLOTS);
        aura_cache *cache = cache_new(ctx, &t.config);
        uint64_t seed = 8, slot[SLOTS];
        size_t half = (size_t)SLOTS * HEADS * DIM;
        for (uint32_t j = 0; j < SLOTS; j++)
            slot[j] = j;
        float *x = read_all(cache);
        for (size_t j = 0; j < 2 * half; j++)
            EXPECT(x[j] == 0, "%s: a slot that was never written", config_text(&t.config));
        free(x);
        EXPECT(!write_slots(cache, &t, 0, SLOTS, slot), "%s", aura_last_error());
        for (int round = 0; round < 20; round++) {
            uint64_t at = random_bits(&seed) % SLOTS;
            float *before = read_all(cache);
            EXPECT(!write_slots(cache, &t, (uint32_t)(random_bits(&seed) % SLOTS), 1, &at), "%s", aura_last_error());
            float *after = read_all(cache);
            for (int side = 0; side < 2; side++)
                for (uint64_t j = 0; j < SLOTS; j++) {
                    size_t row = side * half + j * HEADS * DIM;
                    EXPECT(j == at || !memcmp(before + row, after + row, HEADS * DIM * sizeof *before),
                           "%s: slot %llu has changed", config_text(&t.config),
                           (unsigned long long)j);
                }
            free(before), free(after);
        }
        EXPECT(!aura_slots_clear(cache, 1), "%s", aura_last_error());
        x = read_all(cache);
        EXPECT(x[(size_t)PAGE * HEADS * DIM] == 0 && x[half + (2 * PAGE - 1) * HEADS * DIM] == 0 &&
               x[(PAGE - 1) * HEADS * DIM] != 0, "cleared");
        free(x);
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

static struct {
    aura_cache *cache, *sequences;
    struct text text;
    uint64_t slot[10];
    aura_slot_job job;
    float *before;
} g;

static void setup(void)
{
    static const uint64_t slots[10] = {5, 699, 37, 256, 6, 300, 0, 255, 100, 101};
    aura_config plain = plain_config(AURA_KIND_B4, AURA_KIND_B4);
    g.text = text_new(slot_config(AURA_KIND_B4, AURA_KIND_B4), SLOTS);
    g.cache = cache_new(ctx, &g.text.config), g.sequences = cache_new(ctx, &plain);
    memcpy(g.slot, slots, sizeof slots);
    EXPECT(!write_slots(g.cache, &g.text, 50, 10, g.slot), "%s", aura_last_error());
    g.job = slot_job(&g.text, 0, 10, g.slot);
    g.before = read_all(g.cache);
}

static void teardown(void)
{
    aura_cache_destroy(g.cache), aura_cache_destroy(g.sequences);
    text_free(&g.text);
    free(g.before);
}

static void refused(aura_status status, aura_status expected, const char *call)
{
    EXPECT(status == expected, "%s: %s, %s", call, aura_status_text(status), aura_last_error());
    EXPECT(!strncmp(aura_last_error(), call, strcspn(call, "(")), "%s: the message is %s", call, aura_last_error());
    float *after = read_all(g.cache);
    EXPECT(!memcmp(g.before, after, (size_t)2 * SLOTS * HEADS * DIM * sizeof *after), "%s: something was written", call);
    free(after);
    teardown(), setup();
}
#define REFUSED(call, expected) refused((call), (expected), #call)
#define WRONG(assignment, call, expected) ((assignment), refused((call), (expected), #call))

static void slots_misuse(void)
{
    setup();
    REFUSED(aura_slots_write(NULL, &g.job, 1), AURA_BAD_ARGUMENT);
    REFUSED(aura_slots_write(g.cache, NULL, 1), AURA_BAD_ARGUMENT);
    REFUSED(aura_slots_write(g.sequences, &g.job, 1), AURA_BAD_ARGUMENT);
    WRONG(g.job.size = 4, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_ARGUMENT);
    WRONG(g.job.slot = NULL, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_ARGUMENT);
    WRONG(g.slot[7] = SLOTS, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_ARGUMENT);
    WRONG(g.slot[7] = UINT64_MAX, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_ARGUMENT);
    WRONG(g.slot[9] = g.slot[3], aura_slots_write(g.cache, &g.job, 1), AURA_BAD_ARGUMENT);
    aura_slot_job two[2] = {g.job, slot_job(&g.text, 0, 1, g.slot + 4)};
    REFUSED(aura_slots_write(g.cache, two, 2), AURA_BAD_ARGUMENT);
    WRONG(g.job.k.data = NULL, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_ARGUMENT);
    WRONG(g.job.v.dtype = (aura_dtype)7, aura_slots_write(g.cache, &g.job, 1), AURA_UNSUPPORTED);
    WRONG(((float *)g.job.v.data)[9 * HEADS * DIM + 3] = NAN, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_VALUE);
    WRONG(((float *)g.job.k.data)[5] = 61000, aura_slots_write(g.cache, &g.job, 1), AURA_BAD_VALUE);
    EXPECT(!aura_slots_write(g.cache, NULL, 0) && (g.job.tokens = 0, !aura_slots_write(g.cache, &g.job, 1)), "nothing: %s",
           aura_last_error());
    REFUSED(aura_slots_reference(g.cache, 0, &g.job.k), AURA_BAD_ARGUMENT); /* written to */
    REFUSED(aura_slots_reference(g.cache, 3, &g.job.k), AURA_BAD_ARGUMENT);
    REFUSED(aura_slots_reference(g.sequences, 0, &g.job.k), AURA_BAD_ARGUMENT);
    REFUSED(aura_slots_clear(g.cache, 3), AURA_BAD_ARGUMENT);
    REFUSED(aura_slots_clear(NULL, 0), AURA_BAD_ARGUMENT);
    static float memory[HEADS * DIM];
    aura_view out = {memory, AURA_F32, 0, 0, NULL};
    REFUSED(aura_slots_decode(g.sequences, g.slot, 1, &out, NULL), AURA_BAD_ARGUMENT);
    REFUSED(aura_slots_decode(g.cache, NULL, 1, &out, NULL), AURA_BAD_ARGUMENT);
    WRONG(g.slot[2] = SLOTS, aura_slots_decode(g.cache, g.slot, 5, &out, NULL), AURA_BAD_ARGUMENT);
    teardown();
}

static void references_misuse(void)
{
    aura_config config = slot_config(AURA_KIND_B4, AURA_KIND_B4);
    aura_cache *cache = cache_new(ctx, &config);
    float x[HEADS * DIM] = {0};
    aura_input k = {x, AURA_F32, 0, 0, NULL}, none = AURA_INPUT_INIT;
    x[5] = NAN;
    EXPECT(aura_slots_reference(cache, 0, &k) == AURA_BAD_VALUE &&
           aura_slots_reference(cache, 0, &none) == AURA_BAD_ARGUMENT, "NaN, nothing");
    EXPECT(aura_slots_reference(cache, 0, NULL) == AURA_BAD_ARGUMENT, "NULL");
    x[5] = 1;
    EXPECT(!aura_slots_reference(cache, 2, &k) && !aura_slots_reference(cache, 2, &k), "again, before the first write: %s",
           aura_last_error());
    aura_cache_destroy(cache);
    for (int i = 0; i < 2; i++) {
        config = slot_config(i ? AURA_KIND_F16 : AURA_KIND_B4, AURA_KIND_B4), config.flags |= i ? 0 : AURA_NO_REFERENCE;
        cache = cache_new(ctx, &config);
        EXPECT(aura_slots_reference(cache, 0, &k) == AURA_BAD_ARGUMENT, "keys without reference");
        aura_cache_destroy(cache);
    }
}

/* Calls for sequences on a cache of slots, and the reverse. */
static void sequences_and_slots_do_not_mix(void)
{
    aura_seq seq = 0;
    aura_append_job append = AURA_APPEND_JOB_INIT;
    aura_attend_job attend = AURA_ATTEND_JOB_INIT;
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    uint32_t tiles[2] = {0, TILES};
    float x[Q_HEADS * DIM] = {0}, y[Q_HEADS * DIM];
    size_t bytes = 0;
    setup();
    append.seq = 1, append.tokens = 1, append.k = g.job.k, append.v = g.job.v;
    REFUSED(aura_seq_create(g.cache, &seq), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_fork(g.cache, 1, 0, &seq), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_release(g.cache, 1), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_get_info(g.cache, 1, &info), AURA_BAD_ARGUMENT);
    REFUSED(aura_append(g.cache, &append, 1), AURA_BAD_ARGUMENT);
    REFUSED(aura_truncate(g.cache, 1, 0), AURA_BAD_ARGUMENT);
    attend.queries = 1, attend.q.data = x, attend.out.data = y, attend.seq = 1, attend.tokens = 10;
    REFUSED(aura_attend(g.cache, &attend, 1, NULL), AURA_BAD_ARGUMENT);
    attend.seq = 0, attend.tokens = SLOTS + 1;
    REFUSED(aura_attend(g.cache, &attend, 1, NULL), AURA_BAD_ARGUMENT);
    attend.tokens = TILE + 1, attend.tiles = tiles;
    REFUSED(aura_attend(g.cache, &attend, 1, NULL), AURA_BAD_ARGUMENT);
    attend.tokens = 0, attend.tiles = NULL;
    REFUSED(aura_attend(g.cache, &attend, 1, NULL), AURA_BAD_ARGUMENT); /* a causal query of nothing */
    attend.tokens = 100;
    EXPECT(!aura_attend_workspace(g.cache, &attend, 1, 0, &bytes) && bytes, "%s", aura_last_error());
    seq = seq_new(g.sequences);
    attend.seq = seq, attend.tokens = 1;
    REFUSED(aura_attend(g.sequences, &attend, 1, NULL), AURA_BAD_ARGUMENT);
    teardown();
}

/* A cache of slots allocates all memory when it is made, within its budget, or fails. */
static void memory_comes_at_once(void)
{
    static struct counting c;
    aura_ctx *own = counting_ctx(&c, 0xee, 1);
    aura_config config = slot_config(AURA_KIND_B4, AURA_KIND_B3);
    struct text t = text_new(config, SLOTS);
    size_t base = c.bytes;
    uint64_t slot[SLOTS];
    aura_cache *cache = cache_new(own, &config);
    aura_cache_info info = cache_info(cache);
    EXPECT(info.pages == 3 && info.free_pages == 0 && info.bytes == c.bytes - base && info.config.slots == SLOTS,
           "%zu pages", info.pages);
    for (uint32_t i = 0; i < SLOTS; i++)
        slot[i] = i;
    size_t calls = c.calls;
    EXPECT(!write_slots(cache, &t, 0, SLOTS, slot) && c.calls == calls, "a write allocates: %s", aura_last_error());
    aura_cache_destroy(cache);
    for (long fail = 0, failed = 1; failed; fail++) {
        cache = NULL, c.failed = 0, c.fail_in = fail;
        aura_status status = aura_cache_create(own, &config, &cache);
        failed = c.failed;
        EXPECT(failed ? status == AURA_OUT_OF_MEMORY && !cache : !status, "allocation %ld: %s", fail, aura_status_text(status));
        EXPECT(fail > 2 || failed, "only %ld allocations", fail);
        aura_cache_destroy(cache);
        EXPECT(c.bytes == base && !c.wrong, "allocation %ld: %zu bytes lost", fail, c.bytes - base);
    }
    c.fail_in = -1;
    config.budget_bytes = info.bytes;
    cache = cache_new(own, &config);
    aura_cache_destroy(cache);
    config.budget_bytes--, cache = NULL;
    EXPECT(aura_cache_create(own, &config, &cache) == AURA_OUT_OF_PAGES && !cache && c.bytes == base, "a byte less");
    config.budget_bytes = 0, config.slots = (uint64_t)1 << 60;
    aura_status status = aura_cache_create(own, &config, &cache);
    EXPECT(status == AURA_TOO_LARGE && !cache && c.bytes == base, "2^60 slots: %s", aura_status_text(status));
    text_free(&t);
    aura_ctx_destroy(own);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(slots_are_a_sequence);
    RUN(lists_of_tiles);
    RUN(references_are_the_callers);
    RUN(references_are_added_to_their_own_page);
    RUN(neighbours_keep_what_they_have);
    RUN(slots_misuse);
    RUN(references_misuse);
    RUN(sequences_and_slots_do_not_mix);
    RUN(memory_comes_at_once);
    aura_ctx_destroy(ctx);
    return test_result();
}
