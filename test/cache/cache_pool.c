/* Memory: the cache counts every byte and stays within its budget; a full pool and a failed allocation lose nothing. */
#include "cache_tools.h"

/* Many sequences of one cache, each beside its model, fed from one text. */
enum { MOST_SEQS = 16, TEXT = 1200 };

struct group {
    aura_config config;
    aura_cache *cache;
    struct tensor k, v;
    float *keys, *values;
    aura_seq seq[MOST_SEQS];
    struct model *model[MOST_SEQS];
    int seqs;
};

static void group_init(struct group *g, aura_ctx *in, aura_config config, int seqs)
{
    uint32_t v_dim = config.v_dim ? config.v_dim : config.k_dim;
    config.flags |= AURA_NO_SEARCH; /* the search takes most of the model's time and does not change memory */
    g->config = config, g->seqs = seqs;
    g->keys = random_tokens(41, TEXT, config.kv_heads, config.k_dim, 1);
    g->values = random_tokens(42, TEXT, config.kv_heads, v_dim, 0);
    g->k = tensor_new(TEXT, config.kv_heads, config.k_dim, AURA_F32, DENSE);
    g->v = tensor_new(TEXT, config.kv_heads, v_dim, AURA_F32, DENSE);
    tensor_set(&g->k, g->keys), tensor_set(&g->v, g->values);
    g->cache = cache_new(in, &config);
    for (int i = 0; i < seqs; i++)
        g->seq[i] = seq_new(g->cache), g->model[i] = model_create(&config, TEXT);
}

static void group_free(struct group *g)
{
    aura_cache_destroy(g->cache);
    for (int i = 0; i < g->seqs; i++)
        model_destroy(g->model[i]);
    tensor_free(&g->k), tensor_free(&g->v);
    free(g->keys), free(g->values);
}

/* The job that gives sequence i its next n tokens. Sequences begin at different places of the text. */
static aura_append_job group_job(const struct group *g, int i, uint32_t n)
{
    return append_job(g->seq[i], &g->k, &g->v, (uint32_t)(g->model[i]->len + (uint64_t)i * 17) % (TEXT - n), n);
}

/* Appends the tokens of the job to the model. */
static void group_took(struct group *g, int i, uint32_t n)
{
    struct model *m = g->model[i];
    uint32_t first = (uint32_t)(m->len + (uint64_t)i * 17) % (TEXT - n);
    model_append(m, g->keys + (size_t)first * m->k.heads * m->k.dim, g->values + (size_t)first * m->v.heads * m->v.dim, n);
}

static aura_status group_append(struct group *g, int i, uint32_t n)
{
    aura_append_job job = group_job(g, i, n);
    aura_status status = aura_append(g->cache, &job, 1);
    if (!status)
        group_took(g, i, n);
    return status;
}

static void group_check(struct group *g, const char *what)
{
    for (int i = 0; i < g->seqs; i++)
        if (g->seq[i])
            expect_model(g->cache, g->seq[i], g->model[i], what);
}

static aura_cache_info info_of(const aura_cache *cache)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    EXPECT(!aura_cache_get_info(cache, &info), "%s", aura_last_error());
    return info;
}

/* Ragged lengths, a few tokens at a time, any number of sequences in a call. */
static void many_sequences_in_one_call(void)
{
    static struct group g;
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B3, 64, 128, 2);
    uint64_t seed = 9;
    group_init(&g, ctx, config, 12);
    for (int round = 0; round < 12; round++) {
        aura_append_job jobs[12];
        uint32_t n[12], at[12], count = 0;
        for (int i = 0; i < 12; i++)
            if (random_bits(&seed) % 3) {
                n[count] = (uint32_t)(random_bits(&seed) % 70), at[count] = (uint32_t)(i * 5 % 12);
                jobs[count] = group_job(&g, (int)at[count], n[count]);
                count++;
            }
        EXPECT(!aura_append(g.cache, jobs, count), "%s", aura_last_error());
        for (uint32_t i = 0; i < count; i++)
            group_took(&g, (int)at[i], n[i]);
    }
    group_check(&g, "ragged");
    EXPECT(!aura_append(g.cache, NULL, 0), "no jobs at all: %s", aura_last_error());
    group_free(&g);
}

/* ---- what is counted --------------------------------------------------------------------------------------------------- */

/* sizeof(struct aura_cache) */
static size_t empty_bytes(const aura_config *config)
{
    aura_cache *cache = cache_new(ctx, config);
    size_t bytes = aura_cache_bytes(cache);
    aura_cache_destroy(cache);
    return bytes;
}

static void expect_counted(const struct group *g, const struct counting *c, size_t base, const char *what)
{
    aura_cache_info info = info_of(g->cache);
    EXPECT(aura_cache_bytes(g->cache) == c->bytes - base && info.bytes == c->bytes - base,
           "%s: %zu bytes, info %zu, counted %zu", what,
           aura_cache_bytes(g->cache), info.bytes, c->bytes - base);
    EXPECT(!c->wrong, "%s: %d calls of the allocator were wrong", what, c->wrong);
}

/* doc/format.md, "Memory". How many slabs there are follows from the number of pages: 1, 1, 2, 4 ... */
static void expect_formula(const struct group *g)
{
    aura_cache_info info = info_of(g->cache);
    size_t bytes = info.bytes, slabs = 0, seqs = 0;
    for (size_t pages = 0; pages < info.pages; slabs++)
        pages += pages ? pages : 1;
    for (int i = 0; i < g->seqs; i++)
        if (g->seq[i])
            seqs += 128 + g->config.kv_heads * 68 * 2 * (g->config.k_dim + g->config.v_dim) + 16 * 8;
    bytes -= info.pages * (info.page_bytes + 64) + slabs * 64 + seqs + 64 * 8;
    EXPECT(bytes == empty_bytes(&g->config), "%zu bytes are not in the formula", bytes - empty_bytes(&g->config));
}

static void bytes_are_what_the_allocator_saw(void)
{
    static struct counting c;
    static struct group g;
    aura_ctx *own = counting_ctx(&c, 0xff, 1);
    size_t base = c.bytes;
    EXPECT(aura_cache_bytes(NULL) == 0, "no cache");
    group_init(&g, own, config_of(AURA_KIND_B4, AURA_KIND_B6, 64, 128, 3), 5);
    expect_counted(&g, &c, base, "sequences");
    for (int i = 0; i < 5; i++)
        for (uint32_t n = 1; n < 600; n *= 3) {
            EXPECT(!group_append(&g, i, n), "%s", aura_last_error());
            expect_counted(&g, &c, base, "append");
        }
    EXPECT(!aura_seq_reserve(g.cache, g.seq[2], 2000), "%s", aura_last_error());
    expect_counted(&g, &c, base, "reserve");
    group_check(&g, "counted");
    for (int i = 0; i < 5; i += 2) {
        EXPECT(!aura_truncate(g.cache, g.seq[i], 10), "%s", aura_last_error());
        model_truncate(g.model[i], 10);
        expect_counted(&g, &c, base, "truncate");
        EXPECT(!aura_seq_release(g.cache, g.seq[i]), "%s", aura_last_error());
        g.seq[i] = 0;
        expect_counted(&g, &c, base, "release");
    }
    group_check(&g, "those that are left");
    EXPECT(!aura_seq_fork(g.cache, g.seq[1], g.model[1]->len, &g.seq[0]), "%s", aura_last_error());
    expect_counted(&g, &c, base, "fork");
    EXPECT(!group_append(&g, 1, 100), "%s", aura_last_error());
    expect_counted(&g, &c, base, "a copy");
    EXPECT(!aura_seq_release(g.cache, g.seq[0]), "%s", aura_last_error());
    g.seq[0] = 0;
    group_check(&g, "after a fork");
    expect_formula(&g);
    aura_cache_info info = info_of(g.cache);
    EXPECT(info.seqs == 2 && info.pages >= info.free_pages && info.pages * info.page_bytes <= info.bytes,
           "%zu sequences, %zu pages, %zu free",
           info.seqs, info.pages, info.free_pages);
    group_free(&g);
    EXPECT(c.bytes == base, "%zu bytes not given back", c.bytes - base);
    aura_ctx_destroy(own);
    EXPECT(c.bytes == 0 && c.blocks == 0 && !c.wrong, "%zu bytes not given back", c.bytes);
}

/* A page has the bytes that its format asks for: codes, a scale per token, a reference per page, and f16 for open tokens. */
static void bits_per_value_are_told(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++) {
        aura_config config = config_of(kinds[i], kinds[i], 128, 0, 2);
        aura_cache *cache = cache_new(ctx, &config);
        aura_cache_info info = info_of(cache);
        double bits = is_plain(kinds[i]) ? 8.0 * (double)aura_dtype_bytes(plain_dtype(kinds[i])) : (double)aura_bits_of(kinds[i]);
        double least = is_plain(kinds[i]) ? bits : bits + 16. / 128, most = least + (is_plain(kinds[i]) ? 0 : 0.05);
        EXPECT(info.bits_per_value >= least - 1e-9 && info.bits_per_value <= most + 1e-9, "kind %u: %g bits per value",
               kinds[i], info.bits_per_value);
        EXPECT((double)info.page_bytes * 8 >= info.bits_per_value * PAGE * 2 * 2 * 128 - 1e-6,
               "kind %u: page of %zu bytes", kinds[i], info.page_bytes);
        EXPECT(info.config.format.k == kinds[i] && info.config.v_dim == 128 && info.config.kv_heads == 2, "config");
        aura_cache_destroy(cache);
    }
    aura_config config = AURA_CONFIG_INIT;
    config.q_heads = config.kv_heads = 1, config.k_dim = 96;
    aura_cache *cache = cache_new(ctx, &config);
    aura_cache_info info = info_of(cache);
    EXPECT(info.config.format.k == AURA_KIND_B4 && info.config.format.v == AURA_KIND_B4 && info.config.v_dim == 96 &&
           info.config.rollback == 16 &&
               !info.config.balance && info.seqs == 0 && info.bytes == aura_cache_bytes(cache), "defaults");
    aura_cache_destroy(cache);
}

/* ---- budgets ---------------------------------------------------------------------------------------------------------------- */

/* Three pages in one sequence. */
static aura_status fill_three_pages(aura_cache *cache, const struct tensor *k, const struct tensor *v)
{
    aura_seq seq = 0;
    aura_status status = aura_seq_create(cache, &seq);
    for (uint32_t i = 0; i < 3 && !status; i++)
        status = append(cache, seq, k, v, i * PAGE, PAGE);
    return status;
}

/* Finds the smallest budget for three pages by halving. With it, the cache uses every byte; with one byte less, three pages do
 * not fit. */
static void budget_is_kept_to_the_byte(void)
{
    static struct group g;
    group_init(&g, ctx, config_of(AURA_KIND_B5, AURA_KIND_B8, 64, 128, 2), 0);
    size_t too_little = 1000, enough = (size_t)1 << 26, used = 0;
    aura_cache *cache = NULL;
    for (aura_config config = g.config; enough - too_little > 1;) {
        config.budget_bytes = too_little + (enough - too_little) / 2;
        aura_status status = aura_cache_create(ctx, &config, &cache);
        if (!status)
            status = fill_three_pages(cache, &g.k, &g.v);
        EXPECT(!status || status == AURA_OUT_OF_PAGES, "%s", aura_last_error());
        EXPECT(aura_cache_bytes(cache) <= config.budget_bytes, "%zu bytes of %zu", aura_cache_bytes(cache), config.budget_bytes);
        if (status)
            too_little = config.budget_bytes;
        else
            enough = config.budget_bytes, used = aura_cache_bytes(cache);
        aura_cache_destroy(cache);
        cache = NULL;
    }
    EXPECT(used == enough, "a budget of %zu bytes is enough, but %zu are used", enough, used);
    aura_config config = g.config;
    config.budget_bytes = 1000;
    EXPECT(aura_cache_create(ctx, &config, &cache) == AURA_OUT_OF_PAGES && !cache, "no page fits in 1000 bytes");
    group_free(&g);
}

/* A full pool is an error that changes nothing. The refused call works when another sequence is released. */
static void full_pool_loses_nothing(void)
{
    static struct group g;
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_F16, 64, 128, 2);
    aura_cache *cache = cache_new(ctx, &config);
    seq_new(cache), seq_new(cache), seq_new(cache);
    config.budget_bytes = aura_cache_bytes(cache) + 6 * info_of(cache).page_bytes;
    aura_cache_destroy(cache);
    group_init(&g, ctx, config, 3);
    EXPECT(!group_append(&g, 0, 300) && !group_append(&g, 1, 200) && !group_append(&g, 2, 290), "%s", aura_last_error());
    aura_status status = AURA_OK;
    while (!status && g.model[0]->len < 1000)
        status = group_append(&g, 0, 60);
    EXPECT(status == AURA_OUT_OF_PAGES && aura_last_error()[0], "%s", aura_status_text(status));
    EXPECT(aura_cache_bytes(g.cache) <= config.budget_bytes &&
           aura_cache_bytes(g.cache) + info_of(g.cache).page_bytes > config.budget_bytes,
           "%zu bytes of %zu: a page of %zu would still fit", aura_cache_bytes(g.cache), config.budget_bytes,
           info_of(g.cache).page_bytes);
    group_check(&g, "full");
    aura_append_job jobs[2] = {group_job(&g, 1, 20), group_job(&g, 0, 300)}; /* the first alone would fit */
    EXPECT(aura_append(g.cache, jobs, 2) == AURA_OUT_OF_PAGES, "two jobs");
    EXPECT(aura_seq_reserve(g.cache, g.seq[0], 2000) == AURA_OUT_OF_PAGES, "reserve");
    group_check(&g, "full, and asked for more");
    EXPECT(!group_append(&g, 1, 20), "what fits in its own pages still does: %s", aura_last_error());
    EXPECT(!aura_seq_release(g.cache, g.seq[2]), "%s", aura_last_error());
    g.seq[2] = 0;
    EXPECT(!group_append(&g, 0, 300), "the pages of another sequence: %s", aura_last_error());
    EXPECT(!aura_truncate(g.cache, g.seq[0], 5), "%s", aura_last_error());
    model_truncate(g.model[0], 5);
    EXPECT(!group_append(&g, 1, 300), "the pages that were truncated: %s", aura_last_error());
    group_check(&g, "after the pool was full");
    group_free(&g);
}

/* Reserved pages are there, whatever other sequences take, and stay reserved after a truncation. */
static void reserved_pages_are_there(void)
{
    static struct group g;
    aura_config config = config_of(AURA_KIND_B3, AURA_KIND_B4, 64, 64, 1);
    aura_cache *cache = cache_new(ctx, &config);
    seq_new(cache), seq_new(cache);
    config.budget_bytes = aura_cache_bytes(cache) + 7 * info_of(cache).page_bytes;
    aura_cache_destroy(cache);
    group_init(&g, ctx, config, 2);
    EXPECT(!aura_seq_reserve(g.cache, g.seq[0], 1000), "%s", aura_last_error());
    EXPECT(!aura_seq_reserve(g.cache, g.seq[0], 10) && !aura_seq_reserve(g.cache, g.seq[0], 0), "less than there is: %s",
           aura_last_error());
    for (int round = 0; round < 3; round++) {
        aura_seq_info info = AURA_SEQ_INFO_INIT;
        while (!group_append(&g, 1, 30) && g.model[1]->len < 1000)
            ;
        EXPECT(!aura_seq_get_info(g.cache, g.seq[0], &info) && info.pages == 4, "%zu pages reserved", info.pages);
        for (uint32_t n = 1; g.model[0]->len < 1000; n = n % 97 + 5)
            EXPECT(!group_append(&g, 0, n < 1000 - g.model[0]->len ? n : (uint32_t)(1000 - g.model[0]->len)), "%s",
                   aura_last_error());
        group_check(&g, "reserved");
        EXPECT(!aura_truncate(g.cache, g.seq[0], (uint64_t)round * 30), "%s", aura_last_error());
        model_truncate(g.model[0], (uint64_t)round * 30);
    }
    aura_status status = aura_seq_reserve(g.cache, g.seq[1], UINT64_MAX);
    EXPECT(status == AURA_TOO_LARGE || status == AURA_OUT_OF_PAGES, "%s", aura_status_text(status));
    status = aura_seq_reserve(g.cache, g.seq[1], (uint64_t)1 << 62);
    EXPECT(status == AURA_TOO_LARGE || status == AURA_OUT_OF_PAGES, "%s", aura_status_text(status));
    group_check(&g, "asked for too much");
    group_free(&g);
}

/* Memory does not depend on which kernels run: one context is enough. */
int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(many_sequences_in_one_call);
    RUN(bytes_are_what_the_allocator_saw);
    RUN(bits_per_value_are_told);
    RUN(budget_is_kept_to_the_byte);
    RUN(full_pool_loses_nothing);
    RUN(reserved_pages_are_there);
    aura_ctx_destroy(ctx);
    return test_result();
}
