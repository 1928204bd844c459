/* Taking tokens back: tokens that were not closed leave no trace; tokens that were closed do not change. */
#include "cache_tools.h"

/* Two texts of the same shape: the first is appended, the second replaces some of it. The second has another offset, so the
 * reference of a page shows which text was there when its first tile closed. */
enum { FIRST = 336, SECOND = 560 };

struct texts {
    aura_config config;
    struct tensor k[2], v[2];
    float *keys[2], *values[2];
};

static struct texts texts_new(aura_config config)
{
    struct texts t;
    uint32_t heads = config.kv_heads, v_dim = config.v_dim ? config.v_dim : config.k_dim;
    t.config = config;
    for (int i = 0; i < 2; i++) {
        t.keys[i] = random_tokens(20 + (uint64_t)i, SECOND, heads, config.k_dim, 1);
        t.values[i] = random_tokens(30 + (uint64_t)i, SECOND, heads, v_dim, 0);
        for (size_t at = 0; i && at < (size_t)SECOND * heads * config.k_dim; at++)
            t.keys[i][at] = t.keys[i][at] * 0.5f + (at % 5 ? 1.f : -2.f);
        t.k[i] = tensor_new(SECOND, heads, config.k_dim, AURA_F32, DENSE);
        t.v[i] = tensor_new(SECOND, heads, v_dim, AURA_F32, DENSE);
        tensor_set(&t.k[i], t.keys[i]), tensor_set(&t.v[i], t.values[i]);
    }
    return t;
}

static void texts_free(struct texts *t)
{
    for (int i = 0; i < 2; i++) {
        tensor_free(&t->k[i]), tensor_free(&t->v[i]);
        free(t->keys[i]), free(t->values[i]);
    }
}

/* Appends tokens [first, first + n) of text i to the model. */
static void model_take(struct model *m, const struct texts *t, int i, uint32_t first, uint32_t n)
{
    model_append(m, t->keys[i] + (size_t)first * m->k.heads * m->k.dim, t->values[i] + (size_t)first * m->v.heads * m->v.dim, n);
}

static const struct {
    aura_kind k, v;
    uint32_t k_dim, v_dim, flags, rollback;
} cases[] = {{AURA_KIND_B4, AURA_KIND_B4, 64, 64, 0, 0},
             {AURA_KIND_B3, AURA_KIND_B5, 128, 64, AURA_NO_PINNED, 32},
             {AURA_KIND_B2, AURA_KIND_F32, 64, 80, AURA_NO_ROLLBACK, 0},
             {AURA_KIND_F16, AURA_KIND_B6, 64, 64, 0, 1},
             {AURA_KIND_B8, AURA_KIND_BF16, 64, 64, AURA_NO_OPEN | AURA_NO_REFERENCE, 0},
             {AURA_KIND_B4, AURA_KIND_B3, 64, 64, 0, 224}};
enum { N_CASES = sizeof cases / sizeof *cases };

/* The step between tested lengths: 1 in the first case; 5 in the others, which still reaches every place in a tile. */
static uint32_t step_of(int i)
{
    return small_run() ? 19 : i ? 5 : 1;
}

static aura_config case_config(int i)
{
    aura_config config = config_of(cases[i].k, cases[i].v, cases[i].k_dim, cases[i].v_dim, 1);
    config.flags = cases[i].flags | AURA_NO_SEARCH, config.rollback = cases[i].rollback;
    return config;
}

/* Appends n tokens, then as many of the other text as can be taken back without loss, truncates to n and goes on. The result is
 * the same as without the other text. A tile that the other text closed stays closed; it has the same codes. */
static void try_open(aura_cache *cache, const struct texts *t, struct model *m, uint32_t n)
{
    aura_seq seq = seq_new(cache);
    uint32_t extra = (uint32_t)m->rollback, go_on = 1 + n % 70;
    uint64_t closed = model_closed_at(m, n + extra);
    EXPECT(!append(cache, seq, &t->k[0], &t->v[0], 0, n) && !append(cache, seq, &t->k[1], &t->v[1], n, extra), "%s",
           aura_last_error());
    EXPECT(closed <= n && !aura_truncate(cache, seq, n), "%s", aura_last_error());
    m->len = n, m->closed = closed;
    expect_model(cache, seq, m, "truncated");
    EXPECT(!append(cache, seq, &t->k[0], &t->v[0], n, go_on), "%s", aura_last_error());
    model_view(m, n + go_on);
    m->closed = m->closed > closed ? m->closed : closed;
    expect_model(cache, seq, m, "truncated and appended");
    EXPECT(!aura_seq_release(cache, seq), "%s", aura_last_error());
}

static void what_was_open_was_never_there(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct texts t = texts_new(case_config(i));
        struct model *m = model_create(&t.config, SECOND);
        model_take(m, &t, 0, 0, SECOND);
        for (int isa = 0; use_isa(isa); isa++) {
            aura_cache *cache = cache_new(ctx, &t.config);
            for (uint32_t n = 0; n <= 300; n += step_of(i))
                try_open(cache, &t, m, n);
            aura_cache_destroy(cache);
        }
        model_destroy(m);
        texts_free(&t);
    }
}

/* Truncates anywhere in the first text, closed or not: the tokens before do not change, and the second text is encoded relative
 * to the references that are still there. */
static void try_closed(aura_cache *cache, const struct texts *t, const struct model *whole, uint32_t n)
{
    struct model *m = model_clone(whole);
    aura_seq seq = seq_new(cache);
    uint32_t go_on = 40 + n % 70;
    EXPECT(!append(cache, seq, &t->k[0], &t->v[0], 0, FIRST) && !aura_truncate(cache, seq, n), "%s", aura_last_error());
    model_truncate(m, n);
    expect_model(cache, seq, m, "truncated below");
    EXPECT(!append(cache, seq, &t->k[1], &t->v[1], n, go_on), "%s", aura_last_error());
    model_take(m, t, 1, n, go_on);
    expect_model(cache, seq, m, "truncated below and appended");
    EXPECT(!aura_seq_release(cache, seq), "%s", aura_last_error());
    model_destroy(m);
}

static void what_was_closed_stays(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct texts t = texts_new(case_config(i));
        struct model *whole = model_create(&t.config, SECOND);
        model_take(whole, &t, 0, 0, FIRST);
        for (int isa = 0; use_isa(isa); isa++) {
            aura_cache *cache = cache_new(ctx, &t.config);
            for (uint32_t n = 0; n <= FIRST; n += step_of(i))
                try_closed(cache, &t, whole, n);
            aura_cache_destroy(cache);
        }
        model_destroy(whole);
        texts_free(&t);
    }
}

/* Truncating to more tokens than there are is an error, and truncating to all of them does nothing. */
static void truncate_to_more_is_refused(void)
{
    struct texts t = texts_new(case_config(0));
    struct model *m = model_create(&t.config, SECOND);
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq seq = seq_new(cache);
    EXPECT(!aura_truncate(cache, seq, 0), "an empty sequence: %s", aura_last_error());
    EXPECT(aura_truncate(cache, seq, 1) == AURA_BAD_ARGUMENT, "more than nothing");
    EXPECT(!append(cache, seq, &t.k[0], &t.v[0], 0, 100), "%s", aura_last_error());
    model_take(m, &t, 0, 0, 100);
    EXPECT(aura_truncate(cache, seq, 101) == AURA_BAD_ARGUMENT &&
           aura_truncate(cache, seq, UINT64_MAX) == AURA_BAD_ARGUMENT, "more");
    EXPECT(!aura_truncate(cache, seq, 100), "%s", aura_last_error());
    expect_model(cache, seq, m, "as before");
    aura_cache_destroy(cache);
    model_destroy(m);
    texts_free(&t);
}

int main(void)
{
    isas_open(0);
    RUN(what_was_open_was_never_there);
    RUN(what_was_closed_stays);
    RUN(truncate_to_more_is_refused);
    isas_close();
    return test_result();
}
