/* Feedback: what a cache with metrics and balanced values stores is what its model says, on every way by which a token becomes
 * codes; attention and files do not notice; and no error costs more than without it. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "../../include/aura_file.h"
#include "../file/file_tools.h"
#include "cache_attend.h"

#include <pthread.h>
#include <sys/mman.h>

enum { HEADS = 2 };

/* Of queries of which few channels are strong and some go together, as those of a model do. */
static float *some_metric(uint32_t heads, uint32_t dim, uint64_t seed)
{
    const size_t triangle = aura_triangle(dim);
    float *metric = calloc(heads * triangle, sizeof *metric), q[AURA_TILE_DIM];
    for (uint32_t h = 0; h < heads; h++)
        for (int n = 0; n < 40; n++) {
            const float common = 2 * random_normal(&seed);
            for (uint32_t d = 0; d < dim; d++)
                q[d] = random_normal(&seed) * (d % 9 == h ? 4.f : 0.6f) + (d % 5 == 2 ? common : 0);
            for (uint32_t i = 0; i < dim; i++)
                for (uint32_t j = 0; j <= i; j++)
                    metric[h * triangle + aura_triangle(i) + j] += q[i] * q[j] / 40;
        }
    return metric;
}

/* 1 to 4: the oracle of attention allows errors of a vector that is not balanced. */
static float *v_balance(uint32_t heads, uint32_t dim)
{
    float *balance = malloc((size_t)heads * dim * sizeof *balance);
    for (uint32_t i = 0; i < heads * dim; i++)
        balance[i] = 1.f + 0.25f * (float)(i * 7 % 13);
    return balance;
}

static aura_config feedback_config(aura_kind k, aura_kind v, uint32_t k_dim, uint32_t v_dim)
{
    aura_config c = config_of(k, v, k_dim, v_dim, HEADS);
    c.k_metric = is_plain(k) ? NULL : some_metric(HEADS, k_dim, 3), c.v_metric = is_plain(v) ? NULL : some_metric(HEADS, v_dim, 4);
    c.balance = is_plain(k) ? NULL : some_balance(HEADS, k_dim), c.v_balance = is_plain(v) ? NULL : v_balance(HEADS, v_dim);
    return c;
}

static void config_free(const aura_config *c)
{
    free((float *)c->k_metric), free((float *)c->v_metric), free((float *)c->balance), free((float *)c->v_balance);
}

/* ---- every way to codes ---------------------------------------------------------------------------------------------- */

static void turn(void *user, uint32_t layer, uint64_t token, uint32_t head, float *key)
{
    (void)layer, (void)token, (void)head;
    for (uint32_t d = 0; d < *(const uint32_t *)user; d += 2) {
        const float x = key[d];
        key[d] = 0.8f * x - 0.6f * key[d + 1], key[d + 1] = 0.6f * x + 0.8f * key[d + 1];
    }
}

/* Append in parts, truncate, fork, and keys that are mapped. */
static void sequences_are_as_the_model_says(void)
{
    static const struct {
        aura_kind k, v;
        uint32_t k_dim, v_dim, flags;
    } cases[] = {{AURA_KIND_B4, AURA_KIND_B4, 64, 64, 0},       {AURA_KIND_B3, AURA_KIND_B2, 80, 64, 0},
                 {AURA_KIND_B2, AURA_KIND_B3, 64, 112, AURA_NO_SEARCH}, {AURA_KIND_B5, AURA_KIND_F16, 64, 64, AURA_NO_PINNED},
                 {AURA_KIND_F32, AURA_KIND_B6, 64, 64, 0},               {AURA_KIND_T3, AURA_KIND_T4, 64, 80, 0},
                 {AURA_KIND_T4, AURA_KIND_T2, 112, 64, 0},
                 {AURA_KIND_B8, AURA_KIND_B8, 64, 64, AURA_NO_OPEN | AURA_NO_REFERENCE}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t tokens = i ? 100 : 330;
        uint32_t dim = cases[i].k_dim;
        aura_config config = feedback_config(cases[i].k, cases[i].v, dim, cases[i].v_dim);
        config.flags |= cases[i].flags;
        struct scene s = scene_new(config, tokens);
        struct attention a = attention_new(s.model, 2, config.q_heads, 5);
        struct model *mapped = model_clone(s.model);
        oracle_compute(&a);
        model_map(mapped, 10, 80, turn, &dim);
        for (int n = 0; use_isa(n); n++) {
            aura_cache *cache = cache_new(ctx, &config);
            aura_seq seq = seq_new(cache), other = 0, third = 0;
            EXPECT(!append(cache, seq, &s.k, &s.v, 0, 41) && !append(cache, seq, &s.k, &s.v, 41, tokens - 41), "%s",
                   aura_last_error());
            expect_model(cache, seq, s.model, "appended");
            expect_attention(cache, seq, &a, "attention");
            EXPECT(!aura_seq_fork(cache, seq, tokens, &other) && !aura_seq_map_keys(cache, other, 10, 80, turn, &dim), "%s",
                   aura_last_error());
            expect_model(cache, other, mapped, "mapped");
            EXPECT(!aura_seq_fork(cache, seq, 40, &third) && !append(cache, third, &s.k, &s.v, 40, tokens - 40), "%s",
                   aura_last_error());
            expect_model(cache, third, s.model, "forked");
            aura_cache_destroy(cache);
        }
        attention_free(&a), model_destroy(mapped), scene_free(&s);
        config_free(&config);
    }
}

/* A removal is what decoding and appending again is. */
static void removed_tokens_are_encoded_again(void)
{
    aura_config config = feedback_config(AURA_KIND_B4, AURA_KIND_B3, 64, 64);
    struct scene s = scene_new(config, 120);
    float k[60 * HEADS * 64], v[60 * HEADS * 64];
    const aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
    for (int n = 0; use_isa(n); n++) {
        aura_seq seq, by_hand;
        aura_append_job job = AURA_APPEND_JOB_INIT;
        aura_cache *cache = scene_cache(ctx, &s, &seq);
        struct model *m = model_clone(s.model);
        EXPECT(!aura_seq_fork(cache, seq, 120, &by_hand) && !aura_cache_decode(cache, seq, 60, 60, &k_view, &v_view), "%s",
               aura_last_error());
        job.seq = by_hand, job.tokens = 60, job.k = as_input(k_view), job.v = as_input(v_view);
        EXPECT(!aura_truncate(cache, by_hand, 20) && !aura_append(cache, &job, 1) && !aura_seq_remove(cache, seq, 20, 40), "%s",
               aura_last_error());
        model_truncate(m, 20), model_append(m, k, v, 60);
        expect_model(cache, by_hand, m, "by hand");
        expect_model(cache, seq, m, "removed");
        model_destroy(m), aura_cache_destroy(cache);
    }
    scene_free(&s), config_free(&config);
}

/* A token written to a slot is that of a sequence without reference, pinned and open tokens. */
static void slots_are_as_the_model_says(void)
{
    aura_config config = feedback_config(AURA_KIND_B4, AURA_KIND_B4, 64, 64), flat = config;
    uint64_t slot[70];
    flat.flags |= AURA_NO_PINNED | AURA_NO_OPEN | AURA_NO_REFERENCE;
    struct scene s = scene_new(flat, 70);
    float k[70 * HEADS * 64], v[70 * HEADS * 64], want[70 * HEADS * 64];
    const aura_view k_view = {k, AURA_F32, 0, 0, NULL}, v_view = {v, AURA_F32, 0, 0, NULL};
    for (uint64_t i = 0; i < 70; i++)
        slot[i] = i * 37 % 101;
    config.slots = 101, config.flags |= AURA_NO_REFERENCE;
    for (int n = 0; use_isa(n); n++) {
        aura_cache *cache = cache_new(ctx, &config);
        aura_slot_job job = AURA_SLOT_JOB_INIT;
        job.tokens = 70, job.slot = slot, job.k = as_input(s.k.view), job.v = as_input(s.v.view);
        EXPECT(!aura_slots_write(cache, &job, 1) && !aura_slots_decode(cache, slot, 70, &k_view, &v_view), "%s", aura_last_error());
        model_decode(want, s.model, &s.model->k, 0, 70);
        EXPECT(!memcmp(k, want, sizeof k), "keys");
        model_decode(want, s.model, &s.model->v, 0, 70);
        EXPECT(!memcmp(v, want, sizeof v), "values");
        aura_cache_destroy(cache);
    }
    scene_free(&s), config_free(&config);
}

/* ---- files ------------------------------------------------------------------------------------------------------------- */

static void a_loaded_cache_goes_on_with_the_same_bits(void)
{
    const char *path = file_path("feedback"), *again = file_path("again");
    aura_config config = feedback_config(AURA_KIND_B3, AURA_KIND_B4, 64, 64);
    struct scene s = scene_new(config, 100);
    for (int n = 0; use_isa(n); n++) {
        aura_cache *cache = cache_new(ctx, &config), *loaded = NULL, *other = NULL;
        aura_seq seq = seq_new(cache), id = 0;
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_config plain = config;
        EXPECT(!append(cache, seq, &s.k, &s.v, 0, 40) && !aura_cache_save(cache, path, NULL), "%s", aura_last_error());
        EXPECT(!aura_cache_load(ctx, path, NULL, &loaded) && !aura_cache_save(loaded, again, NULL), "%s", aura_last_error());
        struct bytes a = read_file(path), b = read_file(again);
        EXPECT(a.size == b.size && !memcmp(a.data, b.data, a.size), "saved again it is another file");
        EXPECT(!aura_cache_get_info(loaded, &info) && info.config.k_metric && info.config.v_metric && info.config.v_balance &&
               info.bytes == aura_cache_bytes(cache), "what the loaded cache is");
        EXPECT(!append(loaded, 1, &s.k, &s.v, 40, 60), "%s", aura_last_error());
        expect_model(loaded, 1, s.model, "loaded");
        EXPECT(!aura_seq_load(cache, path, NULL, &id) && !append(cache, id, &s.k, &s.v, 40, 60), "%s", aura_last_error());
        expect_model(cache, id, s.model, "a sequence");
        for (int i = 0; i < 3; i++) { /* another metric, or balance of values, is another configuration */
            plain = config;
            *(i == 0 ? &plain.k_metric : i == 1 ? &plain.v_metric : &plain.v_balance) = NULL;
            other = cache_new(ctx, &plain);
            EXPECT(aura_seq_load(other, path, NULL, &id) == AURA_BAD_ARGUMENT &&
                   strstr(aura_last_error(), i < 2 ? "metric" : "balance"), "%d: %s", i, aura_last_error());
            aura_cache_destroy(other);
        }
        free(a.data), free(b.data);
        aura_cache_destroy(cache), aura_cache_destroy(loaded);
    }
    unlink(path), unlink(again);
    scene_free(&s), config_free(&config);
}

/* ---- the law --------------------------------------------------------------------------------------------------------- */

/* What the error between two vectors of the model costs: e'Me, and the ridge, which is 1/128 of the mean of the balanced metric. */
static double cost(const float *x, const float *y, const float *metric, const float *balance, uint32_t dim)
{
    double sum = 0, mean = 0, ridge = 0;
    for (uint32_t i = 0; i < dim; i++) {
        const double e = (double)x[i] - (double)y[i], b = balance ? (double)balance[i] : 1;
        for (uint32_t j = 0; j < i; j++)
            sum += 2 * (double)metric[aura_triangle(i) + j] * e * ((double)x[j] - (double)y[j]);
        sum += (double)metric[aura_triangle(i) + i] * e * e;
        mean += (double)metric[aura_triangle(i) + i] / (b * b) / dim;
        ridge += e * e * b * b;
    }
    return sum + mean * ridge / 128;
}

/* No vector costs more than without feedback, and all together much less. */
static void no_error_costs_more(void)
{
    static const struct {
        aura_kind kind;
        double most;
    } cases[] = {{AURA_KIND_B2, 0.75}, {AURA_KIND_B3, 0.6}, {AURA_KIND_B4, 0.55}, {AURA_KIND_B6, 0.6}, {AURA_KIND_B8, 0.6},
                 {AURA_KIND_T2, 0.75}, {AURA_KIND_T3, 0.65}, {AURA_KIND_T4, 0.6}};
    enum { TOKENS = 64, DIM = 64 };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        aura_config config = feedback_config(cases[i].kind, cases[i].kind, DIM, DIM), plain;
        config.flags |= AURA_NO_PINNED | AURA_NO_ROLLBACK;
        plain = config, plain.k_metric = plain.v_metric = NULL;
        struct scene s = scene_new(config, TOKENS), p = scene_new(plain, TOKENS);
        for (int values = 0; values < 2; values++) {
            struct model_side *with = values ? &s.model->v : &s.model->k, *without = values ? &p.model->v : &p.model->k;
            static float x[TOKENS * HEADS * DIM], y[TOKENS * HEADS * DIM], z[TOKENS * HEADS * DIM];
            double sum = 0, sum_without = 0;
            const uint64_t closed = s.model->closed;
            EXPECT(closed == TOKENS, "%llu closed", (unsigned long long)closed);
            model_decode(y, s.model, with, 0, TOKENS), model_decode(z, p.model, without, 0, TOKENS);
            s.model->closed = 0; /* what they were made of: f16 */
            model_decode(x, s.model, with, 0, TOKENS);
            s.model->closed = closed;
            for (size_t row = 0; row < TOKENS * HEADS; row++) {
                const size_t h = row % HEADS, at = row * DIM;
                const float *m = (values ? config.v_metric : config.k_metric) + h * aura_triangle(DIM);
                const float *b = (values ? config.v_balance : config.balance) + h * DIM;
                const double one = cost(x + at, y + at, m, b, DIM), other = cost(x + at, z + at, m, b, DIM);
                EXPECT(one <= other * (1 + 2e-4), "%u bits, %s, row %zu: %g instead of %g", (unsigned)cases[i].kind,
                       values ? "values" : "keys", row, one, other);
                sum += one, sum_without += other;
            }
            EXPECT(sum <= cases[i].most * sum_without, "%u bits, %s: %g of what it was", (unsigned)cases[i].kind,
                   values ? "values" : "keys", sum / sum_without);
        }
        scene_free(&s), scene_free(&p), config_free(&config);
    }
}

/* ---- what is refused ---------------------------------------------------------------------------------------------------- */

static void bad_metrics_are_refused(void)
{
    aura_config good = feedback_config(AURA_KIND_B4, AURA_KIND_B4, 64, 64), bad;
    float *metric = (float *)good.v_metric;
    aura_cache *cache = NULL;
    const float worse[] = {NAN, INFINITY, -INFINITY, -1, 1e30f};
    for (size_t i = 0; i < sizeof worse / sizeof *worse; i++) {
        const size_t at = aura_triangle(64) + aura_triangle(10) + (i == 4 ? 9 : 10); /* an entry of the second head */
        const float was = metric[at];
        metric[at] = worse[i];
        EXPECT(aura_cache_create(ctx, &good, &cache) == AURA_BAD_VALUE && strstr(aura_last_error(), "v_metric of KV head 1"),
               "%g: %s", (double)worse[i], aura_last_error());
        metric[at] = was;
    }
    bad = good, bad.format.v = AURA_KIND_F16, bad.v_balance = NULL;
    EXPECT(aura_cache_create(ctx, &bad, &cache) == AURA_BAD_ARGUMENT, "a metric of plain values");
    bad = good, bad.format.v = AURA_KIND_F16, bad.v_metric = NULL;
    EXPECT(aura_cache_create(ctx, &bad, &cache) == AURA_BAD_ARGUMENT, "a balance of plain values");
    memset(metric, 0, HEADS * aura_triangle(64) * sizeof *metric); /* nobody ever looks */
    EXPECT(!aura_cache_create(ctx, &good, &cache), "%s", aura_last_error());
    aura_cache_destroy(cache);
    metric[4] = 1; /* on no diagonal */
    EXPECT(aura_cache_create(ctx, &good, &cache) == AURA_BAD_VALUE, "errors that cost nothing and yet something");
    config_free(&good);
}

/* ---- the stack --------------------------------------------------------------------------------------------------------- */

#ifdef __SANITIZE_ADDRESS__
enum { SANITIZED = 1 };
#else
enum { SANITIZED = 0 };
#endif

struct on_stack {
    const struct scene *scene;
    aura_cache *cache;
    aura_seq seq;
    aura_status status;
};

static void *append_there(void *user)
{
    struct on_stack *x = user;
    x->status = append(x->cache, x->seq, &x->scene->k, &x->scene->v, 0, 100);
    return NULL;
}

/* Of a thread that appends: bytes of its stack that are not as they were before. */
static size_t stack_taken(struct on_stack *x)
{
    enum { STACK = 1 << 20, MARK = 0x5a };
    size_t untouched = 0;
    pthread_t thread;
    pthread_attr_t attributes;
    unsigned char *stack = mmap(NULL, STACK, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    memset(stack, MARK, STACK);
    pthread_attr_init(&attributes);
    pthread_attr_setstack(&attributes, stack, STACK);
    EXPECT(!pthread_create(&thread, &attributes, append_there, x) && !pthread_join(thread, NULL), "no thread");
    pthread_attr_destroy(&attributes);
    while (untouched < STACK && stack[untouched] == MARK)
        untouched++;
    munmap(stack, STACK);
    return STACK - untouched;
}

/* What aura.h promises; 16 KiB are what a thread itself takes. */
static void calls_need_no_more_stack_than_promised(void)
{
    if (SANITIZED) {
        test_skip = "sanitizers put more onto the stack than there is";
        return;
    }
    for (int trellis = 0; trellis < 2; trellis++)
        for (int metric = 0; metric < 2; metric++) {
            const aura_kind kind = trellis ? AURA_KIND_T4 : AURA_KIND_B4;
            aura_config config = metric ? feedback_config(kind, kind, 64, 64) : config_of(kind, kind, 64, 64, HEADS);
            struct scene s = scene_new(config, 100);
            for (int n = 0; use_isa(n); n++) {
                struct on_stack x = {&s, cache_new(ctx, &config), 0, AURA_OK};
                x.seq = seq_new(x.cache);
                const size_t taken = stack_taken(&x), most = (metric || trellis ? 384u : 128u) << 10;
                EXPECT(!x.status && taken <= most + (16 << 10), "trellis %d, metric %d: %zu bytes of stack", trellis, metric,
                       taken);
                aura_cache_destroy(x.cache);
            }
            scene_free(&s);
            if (metric)
                config_free(&config);
        }
}

int main(void)
{
    if (!files_begin())
        return 1;
    isas_open(0);
    RUN(sequences_are_as_the_model_says);
    RUN(removed_tokens_are_encoded_again);
    RUN(slots_are_as_the_model_says);
    RUN(a_loaded_cache_goes_on_with_the_same_bits);
    RUN(no_error_costs_more);
    RUN(bad_metrics_are_refused);
    RUN(calls_need_no_more_stack_than_promised);
    isas_close();
    files_end();
    return test_result();
}
