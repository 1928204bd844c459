/* Tokens that are removed from anywhere, and keys that are mapped: what stays is as it was, what moves is as if it had been decoded
 * and appended, and a call that fails changes no layer. cache_walk.c does the same at random, beside plain arrays. */
#include "cache_twins.h"

enum { TOKENS = 700, HEADS = 2, DIM = 64 };

/* RoPE: `delta` positions further. One key may become NaN. */
struct rope {
    double delta;
    uint32_t bad_layer;
    uint64_t bad_token;
};

static void turn(void *user, uint32_t layer, uint64_t token, uint32_t head, float *key)
{
    const struct rope *r = user;
    for (int d = 0; d < DIM / 2; d++) {
        double angle = r->delta * pow(10000, -2. * d / DIM), x = (double)key[d], y = (double)key[d + DIM / 2];
        key[d] = (float)(x * cos(angle) - y * sin(angle)), key[d + DIM / 2] = (float)(x * sin(angle) + y * cos(angle));
    }
    if (layer == r->bad_layer && token == r->bad_token)
        key[head] = NAN;
}

static struct rope rope_of(double delta)
{
    struct rope r = {delta, UINT32_MAX, 0};
    return r;
}

static const struct {
    aura_kind k, v;
    uint32_t flags, rollback;
    int balance;
} cases[] = {{AURA_KIND_B4, AURA_KIND_B4, 0, 0, 0},
             {AURA_KIND_B3, AURA_KIND_F16, AURA_NO_PINNED, 32, 1},
             {AURA_KIND_B8, AURA_KIND_B2, AURA_NO_OPEN | AURA_NO_REFERENCE, 0, 0},
             {AURA_KIND_BF16, AURA_KIND_B6, AURA_NO_ROLLBACK, 0, 0},
             {AURA_KIND_F32, AURA_KIND_F32, 0, 0, 0},
             {AURA_KIND_B5, AURA_KIND_B5, 0, 1, 1},
             {AURA_KIND_T4, AURA_KIND_T2, 0, 0, 0}};
enum { N_CASES = sizeof cases / sizeof *cases };

static struct text case_text(int i)
{
    aura_config config = config_of(cases[i].k, cases[i].v, DIM, DIM, HEADS);
    config.flags |= cases[i].flags, config.rollback = cases[i].rollback;
    config.balance = cases[i].balance ? some_balance(HEADS, DIM) : NULL;
    return text_new(config, TOKENS);
}

static void case_free(struct text *t)
{
    free((float *)t->config.balance);
    text_free(t);
}

/* A context like the one under test, with threads. */
static aura_ctx *threaded(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = NULL;
    options.isa_mask = aura_ctx_isas(ctx), options.threads = 2;
    EXPECT(!aura_ctx_create(&options, &made), "%s", aura_last_error());
    return made;
}

/* What a removal is, in calls that were there before. */
static void remove_by_hand(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t n, const struct rope *rope)
{
    size_t bytes;
    uint64_t rest = seq_tokens(cache, seq) - first - n;
    float *k = read_tokens(cache, seq, first + n, rest, &bytes), *v = k + rest * HEADS * DIM;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    for (uint64_t i = 0; i < rest * HEADS && rope; i++)
        turn((void *)rope, 0, first + i / HEADS, (uint32_t)(i % HEADS), k + i * DIM);
    job.seq = seq, job.tokens = (uint32_t)rest, job.k.data = k, job.v.data = v;
    EXPECT(!aura_truncate(cache, seq, first) && !aura_append(cache, &job, 1), "%s", aura_last_error());
    free(k);
}

static const uint64_t ranges[][2] = {{0, 1}, {0, 256}, {3, 10}, {31, 33}, {40, 1}, {200, 100}, {250, 300}, {511, 2}, {640, 7},
                                     {600, 99}};
enum { N_RANGES = sizeof ranges / sizeof *ranges };

/* Every case with every range; where runs are short, each with some. */
static int left_out(int i, int r)
{
    return small_run() && (i + r) % 3 != 0;
}

/* Removals and shifts are what they are by hand, and a fork that shares the pages keeps its tokens. */
static void ranges_are_removed(void)
{
    aura_ctx *threads = threaded();
    for (int i = 0; i < N_CASES; i++) {
        struct text t = case_text(i);
        aura_cache *cache = cache_new(threads, &t.config);
        aura_seq whole = seq_new(cache), seq, twin, witness = seq_new(cache);
        EXPECT(!text_append(cache, whole, &t, 0, 0, TOKENS) && !text_append(cache, witness, &t, 0, 0, TOKENS), "%s",
               aura_last_error());
        for (int r = 0; r < N_RANGES; r++)
            for (int how = 0; how < 2; how++) {
                struct rope rope = rope_of(-(double)ranges[r][1]);
                char what[200];
                snprintf(what, sizeof what, "%s, %llu + %llu, %s", config_text(&t.config), (unsigned long long)ranges[r][0],
                         (unsigned long long)ranges[r][1], how ? "turned" : "as they are");
                int whole_pages = ranges[r][0] % 256 == 0 && ranges[r][1] % 256 == 0 && (cases[i].flags & AURA_NO_PINNED ||
                                  (is_plain(cases[i].k) && is_plain(cases[i].v)));
                if (whole_pages || left_out(i, r))
                    continue; /* pages go without being encoded again: pages_are_removed() in cache_fork.c */
                EXPECT(!aura_seq_fork(cache, whole, TOKENS, &seq) && !aura_seq_fork(cache, whole, TOKENS, &twin), "%s",
                       aura_last_error());
                remove_by_hand(cache, twin, ranges[r][0], ranges[r][1], how ? &rope : NULL);
                aura_status status = how ? aura_seq_shift(cache, seq, ranges[r][0], ranges[r][1], turn, &rope)
                                         : aura_seq_remove(cache, seq, ranges[r][0], ranges[r][1]);
                EXPECT(!status, "%s: %s", what, aura_last_error());
                expect_twins(cache, seq, twin, what);
                EXPECT(!text_append(cache, seq, &t, 1, 0, 60) && !text_append(cache, twin, &t, 1, 0, 60), "%s", aura_last_error());
                expect_twins(cache, seq, twin, what);
                expect_twins(cache, whole, witness, what);
                EXPECT(!aura_seq_release(cache, seq) && !aura_seq_release(cache, twin), "%s", aura_last_error());
            }
        aura_cache_destroy(cache);
        case_free(&t);
    }
    aura_ctx_destroy(threads);
}

/* Mapped keys: all of a sequence are those of an append of mapped keys; of a part, the others stay. Values always do. */
static void keys_are_mapped(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = case_text(i);
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq whole = seq_new(cache), seq = 0, fresh = seq_new(cache), witness = seq_new(cache);
        struct rope rope = rope_of(-33);
        size_t bytes, half = (size_t)TOKENS * HEADS * DIM;
        const char *what = config_text(&t.config);
        EXPECT(!text_append(cache, whole, &t, 0, 0, TOKENS) && !text_append(cache, witness, &t, 0, 0, TOKENS), "%s",
               aura_last_error());
        float *before = read_tokens(cache, whole, 0, TOKENS, &bytes);
        float *turned = memcpy(malloc(bytes), before, bytes);
        for (uint32_t k = 0; k < TOKENS * HEADS; k++)
            turn(&rope, 0, k / HEADS, k % HEADS, turned + (size_t)k * DIM);
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = fresh, job.tokens = TOKENS, job.k.data = turned, job.v.data = turned + half;
        EXPECT(!aura_append(cache, &job, 1) && !aura_seq_fork(cache, whole, TOKENS, &seq), "%s", aura_last_error());
        EXPECT(!aura_seq_map_keys(cache, seq, 0, TOKENS, turn, &rope), "%s: %s", what, aura_last_error());
        float *now = read_tokens(cache, seq, 0, TOKENS, &bytes), *want = read_tokens(cache, fresh, 0, TOKENS, &bytes);
        EXPECT(!memcmp(now, want, half * sizeof *now), "%s: keys are not as if they had been appended", what);
        EXPECT(!memcmp(now + half, before + half, half * sizeof *now), "%s: values have changed", what);
        free(now), free(want);
        expect_twins(cache, whole, witness, what);
        for (int r = 0; r < N_RANGES; r++) { /* the others stay; these are as near as codes of them can be */
            uint64_t first = ranges[r][0], n = ranges[r][1];
            const int bits = (int)aura_bits_of(cases[i].k);
            double error = 0, size = 0, allowed = is_plain(cases[i].k) ? 0x1p-8 : ldexp(1 + cases[i].balance, 1 - bits);
            aura_seq part;
            if (left_out(i, r))
                continue;
            EXPECT(!aura_seq_fork(cache, whole, TOKENS, &part) && !aura_seq_map_keys(cache, part, first, n, turn, &rope), "%s",
                   aura_last_error());
            now = read_tokens(cache, part, 0, TOKENS, &bytes);
            size_t from = (size_t)first * HEADS * DIM, to = from + (size_t)n * HEADS * DIM;
            EXPECT(!memcmp(now, before, from * sizeof *now) && !memcmp(now + to, before + to, (2 * half - to) * sizeof *now),
                   "%s: a map of %llu + %llu changed others", what, (unsigned long long)first, (unsigned long long)n);
            for (size_t x = from; x < to; x++)
                error += pow((double)now[x] - (double)turned[x], 2), size += pow((double)turned[x], 2);
            EXPECT(sqrt(error / size) < allowed, "%s: %llu + %llu are off by %g of %g", what, (unsigned long long)first,
                   (unsigned long long)n, sqrt(error / size), allowed);
            EXPECT(!aura_seq_release(cache, part), "%s", aura_last_error());
            free(now);
        }
        free(before), free(turned);
        aura_cache_destroy(cache);
        case_free(&t);
    }
}

/* Pages that go as a whole, with keys mapped: the same as the two calls. */
static void pages_go_and_keys_turn(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = case_text(i);
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq whole = seq_new(cache), seq = 0, twin = 0, witness = seq_new(cache);
        struct rope rope = rope_of(-256);
        const char *what = config_text(&t.config);
        EXPECT(!text_append(cache, whole, &t, 0, 0, TOKENS) && !text_append(cache, witness, &t, 0, 0, TOKENS), "%s",
               aura_last_error());
        EXPECT(!aura_seq_fork(cache, whole, TOKENS, &seq) && !aura_seq_fork(cache, whole, TOKENS, &twin), "%s", aura_last_error());
        EXPECT(!aura_seq_remove(cache, twin, 256, 256) && !aura_seq_map_keys(cache, twin, 256, TOKENS - 512, turn, &rope) &&
               !aura_seq_shift(cache, seq, 256, 256, turn, &rope), "%s: %s", what, aura_last_error());
        expect_twins(cache, seq, twin, what);
        expect_twins(cache, whole, witness, what);
        aura_cache_destroy(cache);
        case_free(&t);
    }
}

/* A cache without a free byte: what nobody shares is edited in place; what a fork shares is not. */
static void full_caches(void)
{
    struct text t = case_text(0);
    aura_cache *measure = cache_new(ctx, &t.config), *cache;
    aura_seq seq = seq_new(measure), twin = seq_new(measure), fork = 0;
    struct rope rope = rope_of(1);
    EXPECT(!text_append(measure, seq, &t, 0, 0, TOKENS) && !aura_seq_fork(measure, seq, 10, &fork), "%s", aura_last_error());
    t.config.budget_bytes = cache_info(measure).bytes - cache_info(measure).free_pages * (cache_info(measure).page_bytes + 64);
    aura_cache_destroy(measure);
    cache = cache_new(ctx, &t.config);
    seq = seq_new(cache), twin = seq_new(cache);
    EXPECT(!text_append(cache, seq, &t, 0, 0, TOKENS), "%s", aura_last_error());
    aura_status full = aura_seq_reserve(cache, twin, TOKENS);
    EXPECT(full == AURA_OUT_OF_PAGES, "the cache has room: %s", aura_status_text(full));
    EXPECT(!aura_seq_remove(cache, seq, 100, 50) && !aura_seq_map_keys(cache, seq, 0, 500, turn, &rope) &&
           !aura_seq_shift(cache, seq, 10, 300, turn, &rope) && seq_tokens(cache, seq) == TOKENS - 350, "%s", aura_last_error());
    EXPECT(!text_append(cache, seq, &t, 0, 0, 300), "%s", aura_last_error());
    EXPECT(!aura_seq_release(cache, twin) && !aura_seq_fork(cache, seq, 600, &fork), "%s", aura_last_error());
    size_t bytes;
    float *before = read_tokens(cache, seq, 0, 600, &bytes);
    EXPECT(aura_seq_remove(cache, seq, 100, 50) == AURA_OUT_OF_PAGES && aura_seq_map_keys(cache, seq, 0, 500, turn, &rope) ==
           AURA_OUT_OF_PAGES && aura_seq_shift(cache, seq, 10, 300, turn, &rope) == AURA_OUT_OF_PAGES, "shared pages were edited");
    float *after = read_tokens(cache, seq, 0, 600, &bytes);
    EXPECT(!memcmp(before, after, bytes) && seq_tokens(cache, seq) == 650, "a call that failed changed tokens");
    free(before), free(after);
    aura_cache_destroy(cache);
    case_free(&t);
}

/* In a window: tokens that are there can go, and then slide on as ever. */
static void windows_shrink(void)
{
    struct text t = case_text(0);
    t.config.window = 200, t.config.max_queries = 100, t.config.keep_first = 6;
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq seq = seq_new(cache), twin = 0;
    struct rope rope = rope_of(-30);
    for (uint32_t at = 0; at < 1500; at += 50)
        EXPECT(!text_append(cache, seq, &t, 0, at, 50), "%s", aura_last_error());
    uint64_t first = seq_info(cache, seq).first, a = 1430;
    EXPECT(first > 0 && !aura_seq_fork(cache, seq, 1500, &twin), "%s", aura_last_error());
    remove_by_hand(cache, twin, a, 30, &rope);
    EXPECT(!aura_seq_shift(cache, seq, a, 30, turn, &rope), "%s", aura_last_error());
    expect_twins_from(cache, seq, cache, twin, first, 3, NULL, "a window");
    EXPECT(!aura_seq_map_keys(cache, seq, first, 100, turn, &rope) && !aura_seq_map_keys(cache, seq, 0, 6, turn, &rope), "%s",
           aura_last_error());
    EXPECT(aura_seq_map_keys(cache, seq, first - 1, 100, turn, &rope) == AURA_BAD_ARGUMENT &&
           aura_seq_remove(cache, seq, first + 1, 10) == AURA_BAD_ARGUMENT &&
           aura_seq_shift(cache, seq, 3, 10, turn, &rope) == AURA_BAD_ARGUMENT && seq_tokens(cache, seq) == 1470,
           "tokens that are gone");
    for (uint32_t at = 0; at < 1000; at += 50)
        EXPECT(!text_append(cache, seq, &t, 1, at, 50), "%s", aura_last_error());
    aura_cache_destroy(cache);
    case_free(&t);
}

static void refused(void)
{
    struct text t = case_text(0);
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq seq = seq_new(cache);
    struct rope rope = rope_of(3);
    size_t bytes;
    EXPECT(!text_append(cache, seq, &t, 0, 0, 300), "%s", aura_last_error());
    float *before = read_tokens(cache, seq, 0, 300, &bytes);
    EXPECT(aura_seq_map_keys(NULL, seq, 0, 1, turn, &rope) == AURA_BAD_ARGUMENT && aura_seq_shift(NULL, seq, 0, 1, turn, &rope) ==
           AURA_BAD_ARGUMENT && aura_seq_remove(NULL, seq, 0, 1) == AURA_BAD_ARGUMENT, "no cache");
    EXPECT(aura_seq_map_keys(cache, seq, 0, 1, NULL, NULL) == AURA_BAD_ARGUMENT && aura_seq_shift(cache, seq, 0, 1, NULL, NULL) ==
           AURA_BAD_ARGUMENT && strstr(aura_last_error(), "map is NULL"), "no map: %s", aura_last_error());
    EXPECT(aura_seq_map_keys(cache, seq + 1, 0, 1, turn, &rope) == AURA_BAD_ARGUMENT, "no such sequence");
    static const uint64_t bad[][2] = {{301, 0}, {0, 301}, {300, 1}, {UINT64_MAX, 2}, {2, UINT64_MAX}, {UINT64_MAX, UINT64_MAX},
                                      {0, UINT64_MAX}, {1, UINT64_MAX - 1}};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(aura_seq_map_keys(cache, seq, bad[i][0], bad[i][1], turn, &rope) == AURA_BAD_ARGUMENT &&
               aura_seq_shift(cache, seq, bad[i][0], bad[i][1], turn, &rope) == AURA_BAD_ARGUMENT &&
               aura_seq_remove(cache, seq, bad[i][0], bad[i][1]) == AURA_BAD_ARGUMENT, "range %zu", i);
    rope.bad_layer = 0, rope.bad_token = 200;
    EXPECT(aura_seq_map_keys(cache, seq, 10, 250, turn, &rope) == AURA_BAD_VALUE &&
           strstr(aura_last_error(), "token 200, KV head 0") &&
           aura_seq_shift(cache, seq, 10, 20, turn, &rope) == AURA_BAD_VALUE, "NaN: %s", aura_last_error());
    EXPECT(!aura_seq_map_keys(cache, seq, 10, 0, turn, &rope), "nothing: %s", aura_last_error());
    float *after = read_tokens(cache, seq, 0, 300, &bytes);
    EXPECT(!memcmp(before, after, bytes) && seq_tokens(cache, seq) == 300, "a refused call changed tokens");
    free(before), free(after);
    aura_cache_destroy(cache);
    case_free(&t);
}

/* ---- models -------------------------------------------------------------------------------------------------------------- */

enum { LAYERS = 4 };

/* Every layer as numbers. */
static float *read_layers(const aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t n, size_t *bytes)
{
    float *all = NULL;
    *bytes = 0;
    for (uint32_t i = 0; i < LAYERS; i++) {
        size_t more;
        float *x = read_tokens(aura_model_cache_layer(model, i), seq, first, n, &more);
        all = realloc(all, *bytes + more);
        memcpy((char *)all + *bytes, x, more);
        *bytes += more;
        free(x);
    }
    return all;
}

static void all_layers_or_none(void)
{
    aura_config configs[LAYERS];
    aura_model_config config = AURA_MODEL_CONFIG_INIT;
    aura_model_cache *model = NULL;
    struct text t = case_text(0);
    aura_seq seq, fork;
    struct rope rope = rope_of(-20);
    size_t bytes[2];
    for (uint32_t i = 0; i < LAYERS; i++)
        configs[i] = config_of(cases[i].k, cases[i].v, DIM, DIM, HEADS);
    configs[3].window = 400, configs[3].max_queries = TOKENS; /* it has all tokens of this test */
    config.layers = LAYERS, config.configs = configs;
    EXPECT(!aura_model_cache_create(ctx, &config, &model) && !aura_model_seq_create(model, &seq), "%s", aura_last_error());
    for (uint32_t i = 0; i < LAYERS; i++)
        EXPECT(!text_append(aura_model_cache_layer(model, i), seq, &t, 0, 0, TOKENS), "%s", aura_last_error());
    EXPECT(!aura_model_seq_fork(model, seq, TOKENS, &fork), "%s", aura_last_error());
    float *before = read_layers(model, seq, 0, TOKENS, &bytes[0]), *after;
    rope.bad_layer = LAYERS - 1, rope.bad_token = 600;
    EXPECT(aura_model_seq_map_keys(model, seq, 300, 350, turn, &rope) == AURA_BAD_VALUE &&
           strstr(aura_last_error(), "layer 3, token 600") &&
           aura_model_seq_shift(model, seq, 500, 20, turn, &rope) == AURA_BAD_VALUE, "%s", aura_last_error());
    EXPECT(!aura_truncate(aura_model_cache_layer(model, 2), fork, 100), "%s", aura_last_error());
    EXPECT(aura_model_seq_remove(model, fork, 90, 20) == AURA_BAD_ARGUMENT &&
           seq_tokens(aura_model_cache_layer(model, 0), fork) == TOKENS, "a layer that has fewer tokens");
    after = read_layers(model, seq, 0, TOKENS, &bytes[1]);
    EXPECT(!memcmp(before, after, bytes[0]), "a call that failed changed a layer");
    free(after);
    rope.bad_layer = UINT32_MAX;
    EXPECT(!aura_model_seq_shift(model, seq, 500, 20, turn, &rope) && !aura_model_seq_map_keys(model, seq, 500, 30, turn, &rope) &&
           !aura_model_seq_remove(model, seq, 450, 3), "%s", aura_last_error());
    for (uint32_t i = 0; i < LAYERS; i++) { /* the same in a cache alone */
        aura_cache *alone = cache_new(ctx, &configs[i]), *layer = aura_model_cache_layer(model, i);
        aura_seq twin = seq_new(alone);
        EXPECT(!text_append(alone, twin, &t, 0, 0, TOKENS) && !aura_seq_shift(alone, twin, 500, 20, turn, &rope) &&
               !aura_seq_map_keys(alone, twin, 500, 30, turn, &rope) && !aura_seq_remove(alone, twin, 450, 3), "%s",
               aura_last_error());
        expect_twins_from(layer, seq, alone, twin, 0, 3, NULL, "a layer");
        aura_cache_destroy(alone);
    }
    EXPECT(aura_model_seq_remove(NULL, seq, 0, 1) == AURA_BAD_ARGUMENT && aura_model_seq_map_keys(model, seq, 0, 1, NULL, NULL) ==
           AURA_BAD_ARGUMENT && aura_model_seq_shift(model, 12345, 0, 1, turn, &rope) == AURA_BAD_ARGUMENT,
           "no model, map, sequence");
    free(before);
    aura_model_cache_destroy(model);
    case_free(&t);
}

static void tests(void)
{
    RUN(ranges_are_removed);
    RUN(keys_are_mapped);
    RUN(pages_go_and_keys_turn);
    RUN(full_caches);
    RUN(windows_shrink);
    RUN(refused);
    RUN(all_layers_or_none);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
