/* Sequences that share pages. A fork holds the bits of a sequence that was appended alone, whichever holder writes next. The
 * memory of shared pages is right to the byte. Moving ranges of pages changes no bit. */
#include "cache_twins.h"

enum { PARENT = 336, TEXT_TOKENS = 700 };

static const struct {
    aura_kind k, v;
    uint32_t flags, rollback;
} cases[] = {{AURA_KIND_B4, AURA_KIND_B4, 0, 0},
             {AURA_KIND_B3, AURA_KIND_F16, AURA_NO_PINNED, 32},
             {AURA_KIND_B8, AURA_KIND_B2, AURA_NO_OPEN | AURA_NO_REFERENCE, 0},
             {AURA_KIND_BF16, AURA_KIND_B6, AURA_NO_ROLLBACK, 0},
             {AURA_KIND_F32, AURA_KIND_F16, 0, 0},
             {AURA_KIND_B4, AURA_KIND_B4, 0, 100}};
enum { N_CASES = sizeof cases / sizeof *cases };

static aura_config case_config(int i)
{
    aura_config config = config_of(cases[i].k, cases[i].v, 64, 64, 2);
    config.flags |= cases[i].flags, config.rollback = cases[i].rollback;
    config.q_heads = 4;
    return config;
}

static int has_pinned(int i)
{
    return !(cases[i].flags & AURA_NO_PINNED) && !(is_plain(cases[i].k) && is_plain(cases[i].v));
}

/* ---- one fork ------------------------------------------------------------------------------------------------------ */

/* Appends the whole parent and forks it at n. Then both grow, in either order, and are compared with sequences that were appended
 * alone. */
static void try_fork(aura_cache *cache, const struct text *t, uint32_t n, int child_first)
{
    aura_seq parent = seq_new(cache), alone = seq_new(cache), child = 0, other = seq_new(cache);
    uint32_t more = 1 + n % 90;
    char what[160];
    snprintf(what, sizeof what, "%s, forked at %u", config_text(&t->config), n);
    EXPECT(!text_append(cache, parent, t, 0, 0, PARENT) && !text_append(cache, alone, t, 0, 0, PARENT), "%s", aura_last_error());
    EXPECT(!text_append(cache, other, t, 0, 0, PARENT) && !aura_truncate(cache, other, n), "%s", aura_last_error());
    EXPECT(!aura_seq_fork(cache, parent, n, &child) && child, "%s: %s", what, aura_last_error());
    expect_twins(cache, child, other, what);
    for (int turn = 0; turn < 2; turn++) {
        if (turn == child_first)
            EXPECT(!text_append(cache, parent, t, 0, PARENT, more) && !text_append(cache, alone, t, 0, PARENT, more), "%s",
                   aura_last_error());
        else
            EXPECT(!text_append(cache, child, t, 1, n, more) && !text_append(cache, other, t, 1, n, more), "%s", aura_last_error());
        expect_twins(cache, parent, alone, what);
        expect_twins(cache, child, other, what);
    }
    EXPECT(!aura_seq_release(cache, child_first ? child : parent), "%s", aura_last_error());
    expect_twins(cache, child_first ? parent : child, child_first ? alone : other, what);
    EXPECT(!aura_seq_release(cache, child_first ? parent : child) && !aura_seq_release(cache, alone) &&
           !aura_seq_release(cache, other), "%s",
           aura_last_error());
}

static void a_fork_is_a_sequence_of_its_own(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = text_new(case_config(i), TEXT_TOKENS);
        aura_cache *cache = cache_new(ctx, &t.config);
        uint32_t step = small_run() ? 37 : i ? 11 : 3;
        for (uint32_t n = 0; n <= PARENT && !test_bad_lines; n += step)
            try_fork(cache, &t, n, (int)(n % 2));
        for (uint32_t n = 256 - 2; n <= 256 + 2; n++)
            try_fork(cache, &t, n, (int)(n % 2));
        try_fork(cache, &t, PARENT, 0);
        aura_cache_info info = cache_info(cache);
        EXPECT(info.pages == info.free_pages && !info.holders && !info.shared_pages && !info.tokens,
               "%zu pages of %zu free, %zu holders, %zu shared",
               info.free_pages, info.pages, info.holders, info.shared_pages);
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

/* ---- what is shared -------------------------------------------------------------------------------------------------- */

static void expect_pages(const aura_cache *cache, size_t used, size_t shared, size_t holders, uint64_t tokens, const char *what)
{
    aura_cache_info i = cache_info(cache);
    EXPECT(i.pages - i.free_pages == used && i.shared_pages == shared && i.holders == holders && i.tokens == tokens &&
               i.token_slots == holders * PAGE,
           "%s: %zu pages used, %zu shared, %zu holders, %llu tokens in %llu slots; not %zu, %zu, %zu, %llu", what,
           i.pages - i.free_pages,
           i.shared_pages, i.holders, (unsigned long long)i.tokens, (unsigned long long)i.token_slots, used, shared, holders,
           (unsigned long long)tokens);
}

/* Only a write makes a holder copy a shared page: a tile that closes or, with plain numbers, a token. */
static void pages_are_copied_when_written(void)
{
    for (int plain = 0; plain < 2; plain++) {
        struct text t = text_new(config_of(plain ? AURA_KIND_F16 : AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1), TEXT_TOKENS);
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq parent = seq_new(cache), child[2] = {0};
        EXPECT(!text_append(cache, parent, &t, 0, 0, 600), "%s", aura_last_error()); /* three pages; closed 576 */
        expect_pages(cache, 3, 0, 3, 600, "alone");
        EXPECT(!aura_seq_fork(cache, parent, 600, &child[0]) && !aura_seq_fork(cache, parent, 300, &child[1]), "%s",
               aura_last_error());
        expect_pages(cache, 3, 3, 3 + 3 + 2, 1500, "forked");
        EXPECT(seq_info(cache, parent).shared_pages == 3 && seq_info(cache, child[1]).shared_pages == 2 &&
               seq_info(cache, child[1]).pages == 2, "pages of each");
        EXPECT(!text_append(cache, child[0], &t, 1, 0, 5), "%s", aura_last_error());
        expect_pages(cache, plain ? 4 : 3, plain ? 2 : 3, 8, 1505, "open tokens are nobody else's");
        EXPECT(!text_append(cache, child[0], &t, 1, 0, 20), "%s", aura_last_error()); /* closes the tile of 576 */
        expect_pages(cache, 4, 2, 8, 1525, "a tile closed");
        EXPECT(!text_append(cache, parent, &t, 1, 0, 25), "%s", aura_last_error());
        expect_pages(cache, 4, 2, 8, 1550, "the last one that has a page writes to it");
        EXPECT(!aura_truncate(cache, child[1], 100), "%s", aura_last_error());
        expect_pages(cache, 4, 2, 7, 1350, "truncated");
        EXPECT(!aura_seq_release(cache, parent), "%s", aura_last_error());
        expect_pages(cache, 3, 1, 4, 725, "released");
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* Two pages, a fork, and one call in which both write to the page that they share: that takes three pages, not four. */
static aura_status fork_and_write(aura_cache *cache, const struct text *t, aura_seq seq[2])
{
    aura_status status = aura_seq_create(cache, &seq[0]);
    status = status ? status : text_append(cache, seq[0], t, 0, 0, 400);
    status = status ? status : aura_seq_fork(cache, seq[0], 400, &seq[1]);
    if (status)
        return status;
    aura_append_job jobs[2] = {text_job(t, 0, 400, 60, seq[0]), text_job(t, 1, 400, 60, seq[1])};
    size_t bytes[4];
    float *before[2] = {read_tokens(cache, seq[0], 0, 400, &bytes[0]), read_tokens(cache, seq[1], 0, 400, &bytes[1])};
    if ((status = aura_append(cache, jobs, 2))) {
        float *after[2] = {read_tokens(cache, seq[0], 0, 400, &bytes[2]), read_tokens(cache, seq[1], 0, 400, &bytes[3])};
        for (int i = 0; i < 2; i++) {
            EXPECT(seq_tokens(cache, seq[i]) == 400 && !memcmp(before[i], after[i], bytes[i]), "sequence %d has changed", i);
            free(after[i]);
        }
        expect_pages(cache, 2, 2, 4, 800, "an append that was refused");
    }
    free(before[0]), free(before[1]);
    return status;
}

static void copies_are_within_the_budget_to_the_byte(void)
{
    struct text t = text_new(case_config(0), TEXT_TOKENS);
    size_t too_little = 1000, enough = (size_t)1 << 24, used = 0, pages = 0;
    for (aura_config config = t.config; enough - too_little > 1 && !test_bad_lines;) {
        aura_cache *cache = NULL;
        aura_seq seq[2] = {0};
        config.budget_bytes = too_little + (enough - too_little) / 2;
        aura_status status = aura_cache_create(ctx, &config, &cache);
        status = status ? status : fork_and_write(cache, &t, seq);
        EXPECT(!status || status == AURA_OUT_OF_PAGES, "%s", aura_last_error());
        EXPECT(aura_cache_bytes(cache) <= config.budget_bytes, "%zu bytes of %zu", aura_cache_bytes(cache), config.budget_bytes);
        if (status)
            too_little = config.budget_bytes;
        else
            enough = config.budget_bytes, used = aura_cache_bytes(cache), pages = cache_info(cache).pages;
        if (!status)
            expect_pages(cache, 3, 1, 4, 920, "two that wrote");
        aura_cache_destroy(cache);
    }
    EXPECT(used == enough && pages == 3, "a budget of %zu bytes is enough, but %zu are used, for %zu pages", enough, used, pages);
    text_free(&t);
}

/* A budget of exactly `pages` pages besides the memory of `seqs` sequences. */
static aura_config config_with_pages(aura_config config, int seqs, size_t pages)
{
    aura_cache *cache = cache_new(ctx, &config);
    for (int i = 0; i < seqs; i++)
        seq_new(cache);
    config.budget_bytes =
        aura_cache_bytes(cache) + (size_t)seqs * 16 * sizeof(void *) + pages * (cache_info(cache).page_bytes + 128);
    aura_cache_destroy(cache);
    return config;
}

/* Reserved pages are there, also where they were shared before. */
static void a_reservation_includes_the_copies(void)
{
    struct text t = text_new(config_with_pages(case_config(0), 3, 8), TEXT_TOKENS);
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq parent = seq_new(cache), child = 0, glutton = seq_new(cache);
    EXPECT(!text_append(cache, parent, &t, 0, 0, 300) && !aura_seq_fork(cache, parent, 300, &child), "%s", aura_last_error());
    EXPECT(!aura_seq_reserve(cache, child, 700), "%s", aura_last_error());
    expect_pages(cache, 4, 1, 5, 600, "page 0 shared, page 1 twice, page 2");
    EXPECT(!aura_seq_reserve(cache, child, 700) && !aura_seq_reserve(cache, child, 300), "%s", aura_last_error());
    expect_pages(cache, 4, 1, 5, 600, "what is there need not come again");
    uint32_t eaten = 0;
    while (!text_append(cache, glutton, &t, 1, eaten, 50) && eaten < 3000)
        eaten += 50;
    EXPECT(eaten > 600 && eaten < 3000 && aura_seq_reserve(cache, parent, 2000) == AURA_OUT_OF_PAGES, "%u tokens", eaten);
    for (uint32_t n = 300; n < 700; n += 40)
        EXPECT(!text_append(cache, child, &t, 0, n, 40), "reserved, at %u: %s", n, aura_last_error());
    aura_seq alone = 0;
    EXPECT(!aura_seq_release(cache, glutton) && !aura_seq_create(cache, &alone), "%s", aura_last_error());
    EXPECT(!text_append(cache, alone, &t, 0, 0, 300), "%s", aura_last_error());
    for (uint32_t n = 300; n < 700; n += 40)
        EXPECT(!text_append(cache, alone, &t, 0, n, 40), "%s", aura_last_error());
    expect_twins(cache, child, alone, "reserved");
    EXPECT(!aura_truncate(cache, alone, 300), "%s", aura_last_error());
    aura_cache_destroy(cache);
    text_free(&t);
}

/* Makes a call, and makes it again if it fails: the failure must change nothing. */
#define TWICE(cache, call)                                                                                                      \
    do {                                                                                                                        \
        aura_status status_ = AURA_OK;                                                                                          \
        aura_cache_info before_ = cache_info(cache);                                                                            \
        for (int retry_ = 0; retry_ < 2 && (status_ = (call)); retry_++) {                                                      \
            aura_cache_info after_ = cache_info(cache);                                                                         \
            EXPECT(status_ == AURA_OUT_OF_MEMORY, "%s: %s", #call, aura_status_text(status_));                                  \
            EXPECT(after_.seqs == before_.seqs && after_.holders == before_.holders && after_.tokens == before_.tokens && \
                       after_.pages - after_.free_pages == before_.pages - before_.free_pages, "%s left something", #call);     \
        }                                                                                                                       \
        EXPECT(!status_, "%s: %s", #call, aura_last_error());                                                                   \
    } while (0)

/* One life of a cache, in which allocation number `fail_at` fails. Returns whether there were that many allocations. */
static int life_with_a_failure(aura_ctx *own, struct counting *c, const struct text *t, long fail_at)
{
    size_t base = c->bytes;
    aura_cache *cache = cache_new(own, &t->config);
    aura_seq seq[20] = {0}, alone = 0;
    TWICE(cache, aura_seq_create(cache, &alone));
    TWICE(cache, aura_seq_create(cache, &seq[0]));
    c->failed = 0, c->fail_in = fail_at;
    TWICE(cache, text_append(cache, seq[0], t, 0, 0, 560));
    for (int i = 1; i < 6; i++)
        TWICE(cache, aura_seq_fork(cache, seq[i / 2], 560 - (uint64_t)i * 30, &seq[i]));
    aura_append_job jobs[6];
    for (int i = 0; i < 6; i++)
        jobs[i] = text_job(t, i % 2, 0, 100, seq[i]);
    TWICE(cache, aura_append(cache, jobs, 6));
    TWICE(cache, aura_seq_fork(cache, seq[4], 300, &seq[6]));
    TWICE(cache, aura_seq_reserve(cache, seq[6], 6000));
    TWICE(cache, aura_seq_create(cache, &seq[7]));
    TWICE(cache, aura_seq_copy(cache, seq[0], 0, 512, seq[7]));
    c->fail_in = -1;
    EXPECT(!text_append(cache, alone, t, 0, 0, 560) && !aura_truncate(cache, alone, 560 - 30) &&
           !aura_truncate(cache, alone, 560 - 90), "%s", aura_last_error());
    EXPECT(!text_append(cache, alone, t, 1, 0, 100), "%s", aura_last_error());
    expect_twins(cache, seq[3], alone, "after a failure"); /* a fork of a fork */
    EXPECT(aura_cache_bytes(cache) == c->bytes - base, "%zu bytes, counted %zu", aura_cache_bytes(cache), c->bytes - base);
    for (int i = 0; i < 8; i++)
        EXPECT(!aura_seq_release(cache, seq[i]), "%s", aura_last_error());
    EXPECT(!aura_seq_release(cache, alone), "%s", aura_last_error());
    expect_pages(cache, 0, 0, 0, 0, "all released");
    aura_cache_destroy(cache);
    EXPECT(c->bytes == base && !c->wrong, "failure %ld: %zu bytes lost, %d wrong calls", fail_at, c->bytes - base, c->wrong);
    return c->failed;
}

static void failed_allocations_lose_nothing(void)
{
    static struct counting c;
    aura_ctx *own = counting_ctx(&c, 0xee, 1);
    struct text t = text_new(case_config(0), TEXT_TOKENS);
    long failures = 0;
    while (failures < 1000 && life_with_a_failure(own, &c, &t, failures) && !test_bad_lines)
        failures++;
    EXPECT(failures > 8 && failures < 1000, "only %ld allocations to fail", failures);
    text_free(&t);
    aura_ctx_destroy(own);
}

/* ---- ranges --------------------------------------------------------------------------------------------------------- */

/* Tokens as numbers, keys of `seq` from token `first` on. */
static void expect_tokens(const aura_cache *cache, aura_seq seq, uint64_t first, aura_seq other, uint64_t other_first,
                          uint64_t n, const char *what)
{
    size_t bytes[2];
    float *x = read_tokens(cache, seq, first, n, &bytes[0]), *y = read_tokens(cache, other, other_first, n, &bytes[1]);
    EXPECT(!memcmp(x, y, bytes[0]), "%s: %llu tokens at %llu are not those at %llu", what, (unsigned long long)n,
           (unsigned long long)first,
           (unsigned long long)other_first);
    free(x), free(y);
}

static void pages_are_removed(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = text_new(case_config(i), 1400);
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq whole = seq_new(cache), seq = 0;
        const char *what = config_text(&t.config);
        EXPECT(!text_append(cache, whole, &t, 0, 0, 1350) && !aura_seq_fork(cache, whole, 1350, &seq), "%s", aura_last_error());
        EXPECT(!aura_seq_remove(cache, seq, 512, 512), "%s: %s", what, aura_last_error());
        EXPECT(seq_info(cache, seq).tokens == 838 && seq_info(cache, seq).pages == 4, "%s: %zu pages", what,
               seq_info(cache, seq).pages);
        expect_tokens(cache, seq, 0, whole, 0, 512, what);
        expect_tokens(cache, seq, 512, whole, 1024, 326, what);
        EXPECT(!text_append(cache, seq, &t, 1, 0, 40), "%s", aura_last_error()); /* open tokens are found at their new positions */
        EXPECT(!text_append(cache, whole, &t, 1, 0, 40), "%s", aura_last_error());
        expect_tokens(cache, seq, 512, whole, 1024, 366, what);
        EXPECT(!aura_seq_remove(cache, seq, 870, 8) && seq_tokens(cache, seq) == 870, "%s: the end: %s", what, aura_last_error());
        EXPECT(!aura_seq_remove(cache, seq, 300, 0) && seq_tokens(cache, seq) == 870, "%s: nothing: %s", what, aura_last_error());
        EXPECT(aura_seq_remove(cache, seq, 0, 5000) == AURA_BAD_ARGUMENT &&
               aura_seq_remove(cache, seq, UINT64_MAX, 2) == AURA_BAD_ARGUMENT, "%s: more", what);
        expect_pages(cache, cache_info(cache).pages - cache_info(cache).free_pages, cache_info(cache).shared_pages,
                     seq_info(cache, seq).pages + seq_info(cache, whole).pages,
                     seq_tokens(cache, seq) + seq_tokens(cache, whole), what);
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

static void pages_are_copied_by_reference(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = text_new(case_config(i), 1400);
        aura_cache *cache = cache_new(ctx, &t.config);
        aura_seq from = seq_new(cache), to = seq_new(cache), twin = 0;
        const char *what = config_text(&t.config);
        EXPECT(!text_append(cache, from, &t, 0, 0, 1350), "%s", aura_last_error());
        size_t used = cache_info(cache).pages - cache_info(cache).free_pages;
        EXPECT(!aura_seq_copy(cache, from, 0, 512, to) && !aura_seq_fork(cache, from, 512, &twin), "%s: %s", what,
               aura_last_error());
        expect_twins(cache, to, twin, what);
        EXPECT(!aura_seq_copy(cache, from, 768, 256, to) && !aura_seq_copy(cache, from, 0, 0, to), "%s: %s", what,
               aura_last_error());
        EXPECT(!aura_seq_copy(cache, to, 256, 512, to), "%s: to itself: %s", what, aura_last_error());
        expect_tokens(cache, to, 512, from, 768, 256, what);
        expect_tokens(cache, to, 768, from, 256, 256, what);
        expect_tokens(cache, to, 1024, from, 768, 256, what);
        EXPECT(seq_info(cache, to).shared_pages == 5 && cache_info(cache).pages - cache_info(cache).free_pages == used,
               "%s: pages were copied", what);
        EXPECT(!aura_seq_reserve(cache, to, 1500) && !aura_seq_reserve(cache, to, 1400), "%s: %s", what, aura_last_error());
        EXPECT(!aura_seq_copy(cache, from, 512, 256, to), "%s: into what is reserved: %s", what, aura_last_error());
        expect_tokens(cache, to, 1280, from, 512, 256, what);
        EXPECT(!text_append(cache, to, &t, 1, 0, 100) && !aura_truncate(cache, to, 1600) && seq_tokens(cache, to) == 1600,
               "%s: %s", what, aura_last_error());
        expect_tokens(cache, to, 1024, from, 768, 256, what);
        EXPECT(aura_seq_copy(cache, from, 256, 256, to) == AURA_UNSUPPORTED, "%s: to a sequence of 1600", what);
        EXPECT(!aura_truncate(cache, to, 512), "%s", aura_last_error());
        EXPECT(aura_seq_copy(cache, from, 0, 256, to) == (has_pinned(i) ? AURA_UNSUPPORTED : AURA_OK),
               "%s: pinned tokens after others", what);
        EXPECT(!aura_truncate(cache, to, 0), "%s", aura_last_error());
        EXPECT(aura_seq_copy(cache, from, 256, 256, to) == (has_pinned(i) ? AURA_UNSUPPORTED : AURA_OK),
               "%s: others in the place of pinned tokens", what);
        EXPECT(!aura_truncate(cache, to, 0), "%s", aura_last_error());
        EXPECT(aura_seq_copy(cache, from, 0, 1350, to) == AURA_UNSUPPORTED &&
               aura_seq_copy(cache, from, 0, 1536, to) == AURA_BAD_ARGUMENT, "%s: more", what);
        EXPECT(aura_seq_copy(cache, from, 0, 256, 77) == AURA_BAD_ARGUMENT &&
               aura_seq_copy(NULL, from, 0, 256, to) == AURA_BAD_ARGUMENT, "%s: none", what);
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

static void forks_that_cannot_be(void)
{
    struct text t = text_new(case_config(0), TEXT_TOKENS);
    aura_cache *cache = cache_new(ctx, &t.config);
    aura_seq seq = seq_new(cache), child = 99;
    EXPECT(!text_append(cache, seq, &t, 0, 0, 100), "%s", aura_last_error());
    EXPECT(aura_seq_fork(cache, seq, 101, &child) == AURA_BAD_ARGUMENT &&
           aura_seq_fork(cache, 77, 0, &child) == AURA_BAD_ARGUMENT, "too many");
    EXPECT(aura_seq_fork(cache, seq, 10, NULL) == AURA_BAD_ARGUMENT &&
           aura_seq_fork(NULL, seq, 10, &child) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(!strncmp(aura_last_error(), "aura_seq_fork", 13) && child == 99, "%s", aura_last_error());
    EXPECT(!aura_seq_fork(cache, seq, 0, &child) && seq_tokens(cache, child) == 0, "%s", aura_last_error());
    EXPECT(!text_append(cache, child, &t, 0, 0, 100), "%s", aura_last_error());
    expect_twins(cache, seq, child, "a fork of nothing");
    aura_cache_destroy(cache);
    text_free(&t);
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(a_fork_is_a_sequence_of_its_own);
    RUN(pages_are_copied_when_written);
    RUN(copies_are_within_the_budget_to_the_byte);
    RUN(a_reservation_includes_the_copies);
    RUN(failed_allocations_lose_nothing);
    RUN(pages_are_removed);
    RUN(pages_are_copied_by_reference);
    RUN(forks_that_cannot_be);
    aura_ctx_destroy(ctx);
    return test_result();
}
