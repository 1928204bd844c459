/* Sliding windows: attention to a ring of pages gives the bits of windowed attention to a cache with all tokens. The memory of a
 * ring does not grow. Asking for a token that has left it is an error, never a wrong number. */
#include "cache_twins.h"

enum { TEXT_TOKENS = 900 };

static const struct {
    aura_kind k, v;
    uint32_t flags, rollback;
    uint64_t window;
    uint32_t max_queries, keep_first;
} cases[] = {{AURA_KIND_B4, AURA_KIND_B4, 0, 0, 300, 64, 0},
             {AURA_KIND_B3, AURA_KIND_F16, AURA_NO_PINNED, 32, 1, 1, 0},
             {AURA_KIND_B8, AURA_KIND_B2, AURA_NO_OPEN | AURA_NO_REFERENCE, 0, 512, 256, 0},
             {AURA_KIND_BF16, AURA_KIND_B6, AURA_NO_ROLLBACK, 0, 40, 300, 0},
             {AURA_KIND_B4, AURA_KIND_B5, AURA_NO_ROLLBACK, 0, 2, 600, 0}, /* whole pages leave the ring before they are encoded */
             {AURA_KIND_F32, AURA_KIND_F16, 0, 0, 1100, 100, 0},
             {AURA_KIND_B4, AURA_KIND_B4, 0, 0, 200, 40, 4},
             {AURA_KIND_B5, AURA_KIND_B3, 0, 16, 260, 20, 300},
             {AURA_KIND_F16, AURA_KIND_B8, AURA_NO_PINNED, 0, 100, 50, 33},
             {AURA_KIND_T3, AURA_KIND_T4, 0, 0, 300, 64, 0},
             {AURA_KIND_B4, AURA_KIND_B4, 0, 224, 100, 50, 0}};
enum { N_CASES = sizeof cases / sizeof *cases };

static aura_config case_config(int i)
{
    aura_config config = config_of(cases[i].k, cases[i].v, 64, 64, 1);
    config.flags |= cases[i].flags, config.rollback = cases[i].rollback;
    config.window = cases[i].window, config.max_queries = cases[i].max_queries, config.keep_first = cases[i].keep_first;
    config.q_heads = 2;
    return config;
}

/* The same cache without a ring. */
static aura_config endless(aura_config config)
{
    config.window = 0, config.max_queries = config.keep_first = 0;
    return config;
}

static uint64_t slack_of(const aura_config *c)
{
    uint64_t rollback = c->flags & (AURA_NO_ROLLBACK | AURA_NO_OPEN) ? 0 : c->rollback ? c->rollback : ROLLBACK;
    return c->max_queries > rollback ? c->max_queries : rollback;
}

/* The most pages that a sequence may have. */
static size_t most_pages(const aura_config *c)
{
    return (size_t)((c->window + slack_of(c) + PAGE - 1) / PAGE + 1 + (c->keep_first + PAGE - 1) / PAGE);
}

/* ---- a ring beside a cache that keeps everything ------------------------------------------------------------------- */

struct pair {
    aura_cache *ring, *whole;
    aura_seq seq, twin;
};

/* The mask for a cache without a ring: query rows see the window and the first keep_first tokens. */
static float *mask_of(const aura_config *c, uint64_t len, uint32_t queries, uint64_t window)
{
    float *mask = malloc((size_t)queries * len * sizeof *mask + 1);
    for (uint32_t i = 0; i < queries; i++)
        for (uint64_t t = 0; t < len; t++) {
            uint64_t end = len - queries + i + 1, begin = end > window ? end - window : 0;
            mask[i * len + t] = t < end && (t >= begin || t < c->keep_first) ? 0 : -INFINITY;
        }
    return mask;
}

/* With kept tokens, the ring is compared with the whole cache and a mask. Other tiles are added up, so the last bits may differ. */
static void expect_masked(const struct pair *p, const aura_config *c, uint32_t queries, uint64_t window, const char *what)
{
    uint64_t len = seq_info(p->whole, p->twin).tokens;
    float *mask = mask_of(c, len, queries, window), q[64 * 2 * 64], out[2][64 * 2 * 64], lse[2][64 * 2];
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    uint64_t seed = 77 + len;
    uint32_t off = 0; /* NaN is off too */
    for (size_t i = 0; i < sizeof q / sizeof *q; i++)
        q[i] = random_normal(&seed);
    options.planes = 2;
    job.queries = queries, job.q.data = q, job.seq = p->seq, job.out.data = out[0], job.lse = lse[0];
    options.window = window == c->window ? 0 : window;
    EXPECT(!aura_attend(p->ring, &job, 1, &options), "%s: %s", what, aura_last_error());
    options.window = 0;
    job.seq = p->twin, job.out.data = out[1], job.lse = lse[1], job.mask = mask, job.mask_keys = (uint32_t)len;
    EXPECT(!aura_attend(p->whole, &job, 1, &options), "%s: %s", what, aura_last_error());
    for (uint32_t i = 0; i < queries * 2; i++) {
        off += !(fabs((double)lse[0][i] - (double)lse[1][i]) < 2e-4);
        for (uint32_t d = 0; d < 64; d++)
            off += !(fabs((double)out[0][i * 64 + d] - (double)out[1][i * 64 + d]) < 2e-4);
    }
    EXPECT(off == 0, "%s: %u queries over %llu tokens, window %llu: %u numbers are off by 2e-4", what, queries,
           (unsigned long long)len, (unsigned long long)window, off);
    free(mask);
}

static void expect_pair(const struct pair *p, const aura_config *c, uint32_t queries, uint64_t window, const char *what)
{
    aura_seq_info info = seq_info(p->ring, p->seq);
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    size_t bytes[2], floats[2];
    uint64_t n = info.tokens - info.first;
    EXPECT(info.pages <= most_pages(c), "%s: %zu pages, at most %zu", what, info.pages, most_pages(c));
    EXPECT(info.tokens == seq_tokens(p->whole, p->twin) && info.first <= info.tokens, "%s: %llu tokens", what,
           (unsigned long long)info.tokens);
    float *x = read_tokens(p->ring, p->seq, info.first, n, &bytes[0]),
        *y = read_tokens(p->whole, p->twin, info.first, n, &bytes[1]);
    EXPECT(!memcmp(x, y, bytes[0]), "%s: tokens [%llu, %llu) differ", what, (unsigned long long)info.first,
           (unsigned long long)info.tokens);
    free(x), free(y);
    uint64_t kept = c->keep_first < info.tokens ? c->keep_first : info.tokens;
    x = read_tokens(p->ring, p->seq, 0, kept, &bytes[0]), y = read_tokens(p->whole, p->twin, 0, kept, &bytes[1]);
    EXPECT(!memcmp(x, y, bytes[0]), "%s: the first tokens differ", what);
    free(x), free(y);
    queries = queries < info.tokens ? queries : (uint32_t)info.tokens;
    if (!queries)
        return;
    if (c->keep_first) {
        expect_masked(p, c, queries < 64 ? queries : 64, window, what);
        return;
    }
    options.window = window;
    y = ask(p->whole, p->twin, queries, &options, &floats[1]);
    options.window = window == c->window ? 0 : window;
    x = ask(p->ring, p->seq, queries, &options, &floats[0]);
    EXPECT(!memcmp(x, y, floats[0] * sizeof *x), "%s: %u queries over %llu tokens, window %llu: attention differs", what, queries,
           (unsigned long long)info.tokens, (unsigned long long)window);
    free(x), free(y);
}

/* A stream that goes round the ring many times, in pieces of all sizes. */
static void a_ring_is_a_window(void)
{
    for (int i = 0; i < N_CASES; i++) {
        struct text t = text_new(case_config(i), TEXT_TOKENS);
        aura_config config = t.config, all = endless(config);
        struct pair p = {cache_new(ctx, &config), cache_new(ctx, &all), 0, 0};
        uint64_t seed = 40 + (uint64_t)i, len = 0, rounds = small_run() ? 3 : 8, goal = most_pages(&config) * PAGE * rounds;
        p.seq = seq_new(p.ring), p.twin = seq_new(p.whole);
        for (int step = 0; len < goal && !test_bad_lines; step++) {
            uint32_t n = random_bits(&seed) % 3 ? config.max_queries : 1 + (uint32_t)(random_bits(&seed) % config.max_queries);
            EXPECT(!text_append(p.ring, p.seq, &t, 0, len, n) && !text_append(p.whole, p.twin, &t, 0, len, n), "%s",
                   aura_last_error());
            len += n;
            if (random_bits(&seed) % (1 + goal / 3000) && (len / PAGE) % 4)
                continue; /* not after every one of thousands */
            uint64_t window = random_bits(&seed) % 2 ? config.window : 1 + random_bits(&seed) % config.window;
            expect_pair(&p, &config, 1 + (uint32_t)(random_bits(&seed) % config.max_queries), window, config_text(&config));
        }
        expect_pair(&p, &config, config.max_queries, config.window, config_text(&config));
        EXPECT(seq_info(p.ring, p.seq).first > 0, "%s: nothing slid out", config_text(&config));
        EXPECT(!aura_truncate(p.ring, p.seq, 0) && !aura_truncate(p.whole, p.twin, 0), "all of it: %s", aura_last_error());
        EXPECT(!text_append(p.ring, p.seq, &t, 1, 0, config.max_queries) &&
               !text_append(p.whole, p.twin, &t, 1, 0, config.max_queries), "%s", aura_last_error());
        expect_pair(&p, &config, 1, config.window, "from the beginning");
        aura_cache_destroy(p.ring), aura_cache_destroy(p.whole);
        text_free(&t);
    }
}

static void append_pair(const struct pair *p, const struct text *t, int i, uint32_t n)
{
    EXPECT(!text_append(p->ring, p->seq, t, i, 0, n) && !text_append(p->whole, p->twin, t, i, 0, n), "%s", aura_last_error());
}

static void release_pair(const struct pair *p)
{
    EXPECT(!aura_seq_release(p->ring, p->seq) && !aura_seq_release(p->whole, p->twin), "%s", aura_last_error());
}

/* A long append pushes a page out of the ring whose newest tokens were still open: they are never encoded. */
static void tokens_may_go_before_they_are_encoded(void)
{
    aura_config config = case_config(0), all;
    config.window = 2, config.max_queries = 600, config.rollback = 32, all = endless(config);
    struct text t = text_new(config, TEXT_TOKENS);
    struct pair p = {cache_new(ctx, &config), cache_new(ctx, &all), 0, 0};
    for (uint32_t more = 0; more < 40 && !test_bad_lines; more += small_run() ? 7 : 2) {
        const uint32_t pieces[] = {2 * PAGE + more, 600, 424, 600, 424, 600}; /* a few tokens of a page, then many */
        struct pair child[2] = {p, p};
        p.seq = seq_new(p.ring), p.twin = seq_new(p.whole);
        for (int i = 0; i < 6; i++) {
            for (int j = 0; i == 5 && j < 2; j++) /* now with pages that are shared */
                EXPECT(!aura_seq_fork(p.ring, p.seq, seq_tokens(p.ring, p.seq), &child[j].seq) &&
                           !aura_seq_fork(p.whole, p.twin, seq_tokens(p.whole, p.twin), &child[j].twin), "%s", aura_last_error());
            append_pair(&p, &t, i % 2, pieces[i]);
            expect_pair(&p, &config, 5, 2, config_text(&config));
        }
        for (int j = 0; j < 2; j++) {
            append_pair(&child[j], &t, j, 500);
            expect_pair(&child[j], &config, 5, 2, config_text(&config));
            release_pair(&child[j]);
        }
        release_pair(&p);
        aura_cache_info info = cache_info(p.ring);
        EXPECT(info.holders == 0 && info.pages == info.free_pages, "%zu references left", info.holders);
    }
    aura_cache_destroy(p.ring), aura_cache_destroy(p.whole);
    text_free(&t);
}

/* In one call, a page leaves one sequence and becomes the copy that another sequence needs: the first must not write to it. */
static void what_goes_may_be_somebodys_at_once(void)
{
    aura_config config = config_of(AURA_KIND_F16, AURA_KIND_B4, 64, 64, 1), all;
    config.q_heads = 2, config.window = 2, config.max_queries = 600, config.rollback = 32, all = endless(config);
    struct text t = text_new(config, TEXT_TOKENS);
    struct pair p = {cache_new(ctx, &config), cache_new(ctx, &all), 0, 0}, parent = p, other = p;
    p.seq = seq_new(p.ring), p.twin = seq_new(p.whole);
    parent.seq = seq_new(p.ring), parent.twin = seq_new(p.whole);
    append_pair(&p, &t, 0, 520);      /* tokens 480 to 519 are open, and page 1 goes with the next 600 */
    append_pair(&parent, &t, 1, 300); /* forked at 244 tokens, inside a tile; one more token makes the fork copy the page */
    EXPECT(!aura_seq_fork(p.ring, parent.seq, 244, &other.seq) && !aura_seq_fork(p.whole, parent.twin, 244, &other.twin),
           "%s", aura_last_error());
    for (int whole = 0; whole < 2; whole++) {
        aura_append_job jobs[2] = {text_job(&t, 0, 7, 1, whole ? other.twin : other.seq),
                                   text_job(&t, 0, 0, 600, whole ? p.twin : p.seq)};
        EXPECT(!aura_append(whole ? p.whole : p.ring, jobs, 2), "%s", aura_last_error());
    }
    expect_pair(&other, &config, 1, 2, "the copy");
    expect_pair(&p, &config, 1, 2, "who had the page");
    aura_cache_destroy(p.ring), aura_cache_destroy(p.whole);
    text_free(&t);
}

/* The window slides over the end of the kept tokens, which are longer than a split of 1024. First it covers them, then both share
 * tiles, then there are tokens between them. */
static void the_window_leaves_the_kept_tokens(void)
{
    aura_config config = case_config(6), all;
    config.keep_first = 1100, config.window = 100, all = endless(config);
    struct text t = text_new(config, TEXT_TOKENS);
    struct pair p = {cache_new(ctx, &config), cache_new(ctx, &all), 0, 0};
    p.seq = seq_new(p.ring), p.twin = seq_new(p.whole);
    for (uint64_t len = 0; len < 2300 && !test_bad_lines;) {
        uint32_t n = len < 1100 || len > 1400 ? 40 : 3;
        EXPECT(!text_append(p.ring, p.seq, &t, 0, len, n) && !text_append(p.whole, p.twin, &t, 0, len, n), "%s", aura_last_error());
        len += n;
        if (!small_run() || len % 5 == 0)
            expect_masked(&p, &config, 1 + (uint32_t)(len % 40), 100, "leaving");
    }
    aura_cache_destroy(p.ring), aura_cache_destroy(p.whole);
    text_free(&t);
}

/* ---- random walks ---------------------------------------------------------------------------------------------------- */

enum { WALKERS = 4 };

struct walk {
    struct pair pair[WALKERS];
    const struct text *text;
    uint64_t seed;
};

static void walk_append(struct walk *w)
{
    aura_append_job ring[WALKERS], whole[WALKERS];
    size_t count = 0;
    for (int i = 0; i < WALKERS; i++) {
        struct pair *p = &w->pair[i];
        uint32_t n = (uint32_t)(random_bits(&w->seed) % (w->text->config.max_queries + 1));
        if (!p->seq || random_bits(&w->seed) % 3 == 0)
            continue;
        uint64_t from = random_bits(&w->seed) % 100;
        int text = (int)(random_bits(&w->seed) % 2);
        ring[count] = text_job(w->text, text, from, n, p->seq);
        whole[count++] = text_job(w->text, text, from, n, p->twin);
    }
    EXPECT(!aura_append(w->pair->ring, ring, count) && !aura_append(w->pair->whole, whole, count), "%s", aura_last_error());
}

/* Whether all tokens that the next query sees after a truncation to n are there. */
static int can_cut(const struct pair *p, const aura_config *c, uint64_t n)
{
    uint64_t first = seq_info(p->ring, p->seq).first, begin = n > c->window ? n - c->window : 0;
    return begin >= first || n <= (c->keep_first + PAGE - 1) / PAGE * PAGE;
}

static void walk_cut(struct walk *w, struct pair *p)
{
    const aura_config *c = &w->text->config;
    uint64_t len = seq_tokens(p->ring, p->seq), back = random_bits(&w->seed) % (2 * slack_of(c) + 300);
    uint64_t n = random_bits(&w->seed) % 8 == 0 ? 0 : back < len ? len - back : 0;
    int can = can_cut(p, c, n);
    aura_status status = aura_truncate(p->ring, p->seq, n);
    EXPECT(status == (can ? AURA_OK : AURA_BAD_ARGUMENT), "%llu of %llu: %s", (unsigned long long)n, (unsigned long long)len,
           aura_last_error());
    if (!status)
        EXPECT(!aura_truncate(p->whole, p->twin, n), "%s", aura_last_error());
}

static void walk_fork(struct walk *w, struct pair *p, struct pair *to)
{
    const aura_config *c = &w->text->config;
    uint64_t len = seq_tokens(p->ring, p->seq), back = random_bits(&w->seed) % (2 * slack_of(c) + 300),
        n = back < len ? len - back : 0;
    aura_seq child = 0;
    int can = can_cut(p, c, n);
    aura_status status = aura_seq_fork(p->ring, p->seq, n, &child);
    EXPECT(status == (can ? AURA_OK : AURA_BAD_ARGUMENT), "fork at %llu of %llu: %s", (unsigned long long)n,
           (unsigned long long)len, aura_last_error());
    if (!status && p == to)
        EXPECT(!aura_seq_release(p->ring, child), "%s", aura_last_error());
    if (status || p == to)
        return;
    if (to->seq)
        EXPECT(!aura_seq_release(to->ring, to->seq) && !aura_seq_release(to->whole, to->twin), "%s", aura_last_error());
    to->seq = child;
    EXPECT(!aura_seq_fork(p->whole, p->twin, n, &to->twin), "%s", aura_last_error());
}

static void walk_step(struct walk *w)
{
    const aura_config *c = &w->text->config;
    struct pair *p = &w->pair[random_bits(&w->seed) % WALKERS];
    uint64_t what = random_bits(&w->seed) % 10;
    if (!p->seq)
        return;
    if (what < 7)
        walk_append(w);
    else if (what < 8)
        walk_fork(w, p, &w->pair[random_bits(&w->seed) % WALKERS]);
    else
        walk_cut(w, p);
    expect_pair(p, c, 1, c->window, config_text(c)); /* one query, at the newest position, is always answered */
}

static void random_walks(void)
{
    for (int i = 0; i < N_CASES; i++) {
        aura_config config = case_config(i), all = endless(config);
        struct text t = text_new(config, TEXT_TOKENS);
        aura_cache *ring = cache_new(ctx, &config), *whole = cache_new(ctx, &all);
        struct walk w = {{{ring, whole, 0, 0}, {ring, whole, 0, 0}, {ring, whole, 0, 0}, {ring, whole, 0, 0}}, &t,
                         900 + (uint64_t)i};
        w.pair[0].seq = seq_new(ring), w.pair[0].twin = seq_new(whole);
        for (int step = 0; step < (small_run() ? 50 : 200) && !test_bad_lines; step++)
            walk_step(&w);
        aura_cache_destroy(ring), aura_cache_destroy(whole);
        text_free(&t);
    }
}

/* ---- memory ---------------------------------------------------------------------------------------------------------- */

/* A ring has as much memory at the end as after one round, and works with a budget of exactly that. */
static void memory_does_not_grow(void)
{
    for (int i = 0; i < N_CASES; i += 3) {
        aura_config config = case_config(i);
        struct text t = text_new(config, TEXT_TOKENS);
        size_t settled = 0;
        for (int limited = 0; limited < 2; limited++) {
            config.budget_bytes = settled;
            aura_cache *cache = cache_new(ctx, &config);
            aura_seq seq = seq_new(cache);
            uint64_t len = 0, round = most_pages(&config) * PAGE;
            while (len < round * (small_run() ? 4 : 30) && !test_bad_lines) {
                EXPECT(!text_append(cache, seq, &t, 0, len, config.max_queries), "%s: %s", config_text(&config), aura_last_error());
                len += config.max_queries;
                if (len < 3 * round)
                    settled = aura_cache_bytes(cache);
                EXPECT(aura_cache_bytes(cache) == settled || len < 3 * round, "%zu bytes, %zu before",
                       aura_cache_bytes(cache), settled);
            }
            aura_attend_job job = AURA_ATTEND_JOB_INIT;
            size_t bytes = 0, later = 0;
            job.seq = seq, job.queries = 1;
            EXPECT(!aura_attend_workspace(cache, &job, 1, round * 3, &bytes) &&
                   !aura_attend_workspace(cache, &job, 1, 0, &later) && later == bytes,
                   "%s: the workspace grows from %zu to %zu", config_text(&config), bytes, later);
            aura_cache_info info = cache_info(cache);
            EXPECT(info.holders <= most_pages(&config) && info.tokens <= info.token_slots, "%zu pages", info.holders);
            aura_cache_destroy(cache);
        }
        text_free(&t);
    }
}

/* A stream with reserved pages goes on for ever, whatever others take, also if its pages were shared. */
static void a_reserved_ring_never_fails(void)
{
    for (int forked = 0; forked < 2; forked++) {
        aura_config config = case_config(6);
        aura_cache *cache = cache_new(ctx, &config);
        config.budget_bytes = aura_cache_bytes(cache) + 20 * cache_info(cache).page_bytes;
        aura_cache_destroy(cache);
        struct text t = text_new(config, TEXT_TOKENS);
        cache = cache_new(ctx, &config);
        aura_seq seq = seq_new(cache), glutton[9], parent = seq; /* the last one comes when there is nothing left */
        uint64_t len = 0;
        for (int i = 0; i < 9; i++)
            glutton[i] = seq_new(cache);
        for (; len < 800; len += 40)
            EXPECT(!text_append(cache, seq, &t, 0, len, 40), "%s", aura_last_error());
        if (forked)
            EXPECT(!aura_seq_fork(cache, parent, len, &seq), "%s", aura_last_error());
        EXPECT(!aura_seq_reserve(cache, seq, (uint64_t)1 << 40), "%s", aura_last_error());
        EXPECT(seq_info(cache, seq).pages == most_pages(&config) && seq_info(cache, seq).shared_pages <= 1,
               "%zu pages, %zu shared", seq_info(cache, seq).pages,
               seq_info(cache, seq).shared_pages);
        for (int i = 0; i < 8; i++)
            for (uint32_t n = 0; n < 1000 && !text_append(cache, glutton[i], &t, 1, n, 40); n += 40)
                ;
        EXPECT(cache_info(cache).free_pages == 0, "%zu pages are left", cache_info(cache).free_pages);
        for (; len < 5000 && !test_bad_lines; len += 40)
            EXPECT(!text_append(cache, seq, &t, 0, len, 40), "at %llu: %s", (unsigned long long)len, aura_last_error());
        EXPECT(!aura_truncate(cache, seq, 0), "%s", aura_last_error());
        EXPECT(text_append(cache, glutton[8], &t, 1, 0, 40) == AURA_OUT_OF_PAGES, "what is reserved is given away");
        for (len = 0; len < 3000 && !test_bad_lines && !forked; len += 40) /* the page that is kept is shared */
            EXPECT(!text_append(cache, seq, &t, 0, len, 40), "again, at %llu: %s", (unsigned long long)len, aura_last_error());
        aura_cache_destroy(cache);
        text_free(&t);
    }
}

/* ---- what is refused -------------------------------------------------------------------------------------------------- */

#define REFUSED(call, expected)                                                                             \
    do {                                                                                                    \
        aura_status status_ = (call);                                                                       \
        EXPECT(status_ == (expected), "%s: %s", #call, aura_status_text(status_));                          \
        EXPECT(!strncmp(aura_last_error(), #call, strcspn(#call, "(")), "%s: %s", #call, aura_last_error()); \
    } while (0)

static void what_is_gone_is_an_error(void)
{
    aura_config config = case_config(6); /* window 200, 40 at once, 4 kept */
    struct text t = text_new(config, TEXT_TOKENS);
    aura_cache *cache = cache_new(ctx, &config);
    aura_seq seq = seq_new(cache), child = 0;
    float x[64 * 2 * 64], y[64 * 2 * 64];
    aura_view view = {x, AURA_F32, 0, 0, NULL};
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    for (uint64_t len = 0; len < 2000; len += 40)
        EXPECT(!text_append(cache, seq, &t, 0, len, 40), "%s", aura_last_error());
    aura_seq_info before = seq_info(cache, seq);
    EXPECT(before.first == 1536 && before.pages == 3, "first %llu, %zu pages", (unsigned long long)before.first, before.pages);
    aura_append_job many = text_job(&t, 0, 0, 41, seq);
    REFUSED(aura_append(cache, &many, 1), AURA_BAD_ARGUMENT);
    REFUSED(aura_cache_decode(cache, seq, 1535, 2, &view, NULL), AURA_BAD_ARGUMENT);
    REFUSED(aura_cache_decode(cache, seq, 200, 100, &view, NULL), AURA_BAD_ARGUMENT);
    EXPECT(!aura_cache_decode(cache, seq, 1536, 2, &view, NULL) && !aura_cache_decode(cache, seq, 0, 4, &view, NULL), "%s",
           aura_last_error());
    REFUSED(aura_truncate(cache, seq, 1735), AURA_BAD_ARGUMENT);
    REFUSED(aura_truncate(cache, seq, 300), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_fork(cache, seq, 1735, &child), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_remove(cache, seq, 1735, 100), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_remove(cache, seq, 2, 1700), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_remove(cache, seq, 1000, 1000), AURA_BAD_ARGUMENT);
    REFUSED(aura_seq_copy(cache, seq, 1536, 256, seq), AURA_UNSUPPORTED);
    memset(x, 0, sizeof x), memset(y, 0xff, sizeof y);
    job.seq = seq, job.queries = 41, job.q.data = x, job.out.data = y;
    REFUSED(aura_attend(cache, &job, 1, NULL), AURA_BAD_ARGUMENT);
    job.queries = 1, options.window = 201;
    REFUSED(aura_attend(cache, &job, 1, &options), AURA_BAD_ARGUMENT);
    job.queries = 40, options.window = 0;
    EXPECT(!aura_attend(cache, &job, 1, &options), "%s", aura_last_error());
    EXPECT(!memcmp(&before, &(aura_seq_info){before.size, 2000, before.closed, 3, 0, 1536}, sizeof before) &&
           seq_tokens(cache, seq) == 2000, "changed");
    EXPECT(!aura_truncate(cache, seq, 1736), "%s", aura_last_error());
    job.queries = 1;
    EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
    job.queries = 2; /* the first of them would see token 1535 */
    REFUSED(aura_attend(cache, &job, 1, NULL), AURA_BAD_ARGUMENT);
    EXPECT(!text_append(cache, seq, &t, 0, 0, 40) && seq_info(cache, seq).first == 1536, "%s", aura_last_error());
    for (uint64_t len = 1776; len < 2031; len += 17)
        EXPECT(!text_append(cache, seq, &t, 0, 0, 17) && seq_info(cache, seq).first == 1536, "%s", aura_last_error());
    EXPECT(!text_append(cache, seq, &t, 0, 0, 1) && seq_info(cache, seq).first == 1792, "page 6 ends at 1792 = 2032 - 240");
    EXPECT(!aura_truncate(cache, seq, 256) && seq_info(cache, seq).first == 0, "the page that is kept is there: %s",
           aura_last_error());
    aura_cache_destroy(cache);
    text_free(&t);
}

static void windows_that_cannot_be(void)
{
    aura_config good = case_config(0), c;
    aura_cache *cache = NULL;
    c = good, c.max_queries = 0;
    EXPECT(!aura_cache_create(ctx, &c, &cache) && cache_info(cache).config.max_queries == 512, "%s", aura_last_error());
    aura_cache_destroy(cache);
    cache = NULL;
    c = good, c.window = 0;
    EXPECT(aura_cache_create(ctx, &c, &cache) == AURA_BAD_ARGUMENT, "max_queries without a window");
    c.max_queries = 0, c.keep_first = 4;
    EXPECT(aura_cache_create(ctx, &c, &cache) == AURA_BAD_ARGUMENT, "keep_first without a window");
    c = good, c.slots = 100;
    EXPECT(aura_cache_create(ctx, &c, &cache) == AURA_BAD_ARGUMENT, "a window of slots");
    c = good, c.window = UINT64_MAX;
    EXPECT(aura_cache_create(ctx, &c, &cache) == AURA_TOO_LARGE && !cache, "an endless window");
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(a_ring_is_a_window);
    RUN(tokens_may_go_before_they_are_encoded);
    RUN(what_goes_may_be_somebodys_at_once);
    RUN(the_window_leaves_the_kept_tokens);
    RUN(random_walks);
    RUN(memory_does_not_grow);
    RUN(a_reserved_ring_never_fails);
    RUN(what_is_gone_is_an_error);
    RUN(windows_that_cannot_be);
    aura_ctx_destroy(ctx);
    return test_result();
}
