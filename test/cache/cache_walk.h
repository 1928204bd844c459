/* A cache and a plain array implementation of it, both driven by the same choices. The arrays say what every sequence should
 * hold, token by token, and which pages of the pool it should have. After every step the two are compared. Choices come from a
 * seed, or from the bytes of a fuzzer. */
#ifndef AURA_TEST_CACHE_WALK_H
#define AURA_TEST_CACHE_WALK_H

#include "../../include/aura_file.h"
#include "../file/file_tools.h"

#include "cache_tools.h"

#ifndef WALK_CAPACITY
#define WALK_CAPACITY 2048
#define WALK_COMPARED 6
#endif

enum {
    WALKERS = 5,
    CAPACITY = WALK_CAPACITY, /* most tokens of a sequence: several times round the smaller rings */
    MOST_PAGES = 24,  /* that a sequence may have or reserve */
    TEXT_TOKENS = 640, /* that appends are taken from */
    WIDEST = 128,     /* KV heads * dim */
    MOST_QUERIES = 3,
    MOST_JOBS = 3,
    COMPARED = WALK_COMPARED, /* tokens of a sequence, after a step */
    PAGE_COST = 64 + 64, /* bytes besides the page itself: its head, and the tail of a slab that has no other */
    TABLE_COST = 1024    /* more than the page table of a sequence */
};

/* ---- choices -------------------------------------------------------------------------------------------------------- */

struct choices {
    uint64_t seed;
    const uint8_t *bytes; /* NULL: from the seed */
    size_t left;
    int over;
};

/* 0 to n - 1; 0 when there are no bytes left. */
static inline uint32_t choose(struct choices *c, uint32_t n)
{
    uint32_t value = 0;
    if (!c->bytes)
        return (uint32_t)(random_bits(&c->seed) % n);
    for (uint32_t most = n - 1; most; most >>= 8) {
        c->over = !c->left;
        if (c->over)
            return 0;
        value = value << 8 | *c->bytes++, c->left--;
    }
    return value % n;
}

static inline int once_in(struct choices *c, uint32_t n)
{
    return choose(c, n) == n - 1; /* not 0: choose() returns 0 when there are no bytes left */
}

/* ---- what should be ------------------------------------------------------------------------------------------------- */

/* A sequence. It has the pages below `kept` of the walk, as far as they exist, and the pages [first, end). */
struct walker {
    aura_seq seq;        /* 0: none */
    struct model *model; /* what its tokens are */
    size_t first, end, reserved;
    int page[MOST_PAGES]; /* the number of a page of the pool; sequences that share it have the same number */
};

struct walk {
    struct choices choices;
    uint64_t checks;     /* the seed of the comparisons: they do not change the steps */
    int thorough;        /* compare every token after every step */
    long step;
    const char *doing;
    aura_config config;
    float *balance;
    struct counting *memory;
    size_t base;         /* bytes of the context alone */
    aura_ctx *ctx;
    aura_cache *cache;
    size_t kept, ring;
    uint64_t slack;
    int plain;           /* nothing is ever encoded */
    aura_seq gone;       /* a released sequence */
    struct walker walker[WALKERS];
};

/* Counts what all walks have met: a walk that never fills its pool tests little. */
static struct {
    long full, failed, copied, slid, removed, moved, mapped, joined, reloaded;
} walked;

static float walk_keys[TEXT_TOKENS * WIDEST], walk_values[TEXT_TOKENS * WIDEST];

static inline void walk_texts(void)
{
    float *k = random_tokens(81, TEXT_TOKENS, 1, WIDEST, 1), *v = random_tokens(82, TEXT_TOKENS, 1, WIDEST, 0);
    memcpy(walk_keys, k, sizeof walk_keys), memcpy(walk_values, v, sizeof walk_values);
    free(k), free(v);
}

static inline size_t pages_for(uint64_t tokens)
{
    return (size_t)((tokens + PAGE - 1) / PAGE);
}

static inline int has_page(const struct walk *w, const struct walker *a, size_t p)
{
    return p < a->end && (p < w->kept || p >= a->first);
}

/* Counts the holders of each page of the pool. */
struct pool {
    int sharers[WALKERS * MOST_PAGES + 1];
    size_t used, shared, holders;
};

static inline struct pool pool_of(const struct walk *w)
{
    struct pool pool = {{0}, 0, 0, 0};
    for (const struct walker *a = w->walker; a < w->walker + WALKERS; a++)
        for (size_t p = 0; a->seq && p < a->end; p++)
            if (has_page(w, a, p)) {
                int n = ++pool.sharers[a->page[p]];
                pool.holders++, pool.used += n == 1, pool.shared += n == 2;
            }
    return pool;
}

/* The number of a page without a holder. */
static inline int unused_page(const struct walk *w)
{
    struct pool pool = pool_of(w);
    int page = 1;
    while (pool.sharers[page])
        page++;
    return page;
}

static inline void add_page(struct walk *w, struct walker *a)
{
    int page = unused_page(w);
    a->page[a->end++] = page;
}

static inline uint64_t settled(const struct walk *w, const struct walker *a)
{
    return w->plain ? a->model->len : a->model->closed;
}

static inline int has_pinned(const struct walk *w)
{
    return !w->plain && !(w->config.flags & AURA_NO_PINNED);
}

/* Whether tokens [first, end) are still in the window. */
static inline int exist(const struct walk *w, const struct walker *a, uint64_t first, uint64_t end)
{
    return a->first == w->kept || first >= (uint64_t)a->first * PAGE || end <= (uint64_t)w->kept * PAGE;
}

static inline int can_cut(const struct walk *w, const struct walker *a, uint64_t tokens)
{
    uint64_t window = w->config.window;
    return tokens <= a->model->len && exist(w, a, tokens > window ? tokens - window : 0, tokens);
}

/* One past the last page that the tokens and the reservation need. */
static inline size_t end_for(const struct walk *w, size_t first, uint64_t tokens, size_t reserved)
{
    size_t promised = reserved <= w->kept ? reserved : first + reserved - w->kept;
    return promised > pages_for(tokens) ? promised : pages_for(tokens);
}

/* The first page that a sequence of that length needs, apart from the kept pages. */
static inline size_t first_for(const struct walk *w, uint64_t tokens)
{
    uint64_t span = w->config.window + w->slack;
    size_t first = w->config.window && tokens > span ? (size_t)((tokens - span) / PAGE) : 0;
    return first > w->kept ? first : w->kept;
}

/* Whether growing to that many tokens writes to a page: encodes one of its tokens, or stores a plain one. */
static inline int writes_to(const struct walk *w, const struct walker *a, uint64_t tokens, size_t p)
{
    const struct model *m = a->model;
    uint64_t begin = (uint64_t)p * PAGE, end = begin + PAGE, closed = m->closed > m->pinned ? m->closed : m->pinned;
    uint64_t will = w->plain || tokens <= m->len ? 0 : model_closed_at(m, tokens);
    int encodes = will > closed && closed < end && will > begin;
    int stores = (is_plain(m->k.kind) || is_plain(m->v.kind)) && tokens > m->len && m->len < end && tokens > begin;
    return encodes || stores;
}

/* Copies every shared page that growing to `tokens` writes to; if `all` is set, also the pages that slide out. */
static inline void own_pages(struct walk *w, struct walker *a, uint64_t tokens, int all)
{
    for (size_t p = 0; p < a->end; p++)
        if (has_page(w, a, p) && (writes_to(w, a, tokens, p) || (all && p >= a->first)) && pool_of(w).sharers[a->page[p]] > 1)
            a->page[p] = unused_page(w), walked.copied++;
}

static inline void trim(struct walk *w, struct walker *a, size_t free_pages)
{
    size_t used = pool_of(w).used;
    if (a->first > w->kept && pages_for(a->model->len) <= w->kept) {
        a->first = a->end = w->kept;
        free_pages += used - pool_of(w).used;
    }
    size_t end = end_for(w, a->first, a->model->len, a->reserved);
    for (; a->end < end && free_pages; free_pages--) /* takes reserved pages as long as there are free ones */
        add_page(w, a);
    a->end = a->end < end ? a->end : end;
}

/* ---- tokens that move ---- */

static inline void side_move(struct model_side *to, uint64_t at, const struct model_side *from, uint64_t first, uint64_t n)
{
    size_t row = from->dim * sizeof(float), pages = (size_t)((first + n + PAGE - 1) / PAGE - first / PAGE);
    for (uint32_t h = 0; h < from->heads && n; h++) {
        memmove(model_half(to, h, at), model_half(from, h, first), (size_t)n * row);
        if (is_plain(from->kind))
            continue;
        memset(model_known(to, h, at), 0, (size_t)n); /* the codes follow from the two that move */
        memmove(model_reference(to, h, at / PAGE), model_reference(from, h, first / PAGE), pages * row);
    }
}

/* Where pages are cut, at % PAGE and first % PAGE are the same: 0. */
static inline void model_move(struct model *to, uint64_t at, const struct model *from, uint64_t first, uint64_t n)
{
    side_move(&to->k, at, &from->k, first, n);
    side_move(&to->v, at, &from->v, first, n);
}

/* ---- are they the same? --------------------------------------------------------------------------------------------- */

#define WALK_EXPECT(w, condition, ...)                                                                         \
    do {                                                                                                       \
        if (!(condition) && ++test_bad_lines <= 10) {                                                          \
            printf("  step %ld, %s, %s: ", (w)->step, (w)->doing, config_text(&(w)->config));                  \
            printf(__VA_ARGS__);                                                                               \
            printf("\n");                                                                                      \
        }                                                                                                      \
    } while (0)

static inline void expect_counts(const struct walk *w)
{
    struct pool pool = pool_of(w);
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    uint64_t tokens = 0;
    size_t seqs = 0;
    WALK_EXPECT(w, !aura_cache_get_info(w->cache, &info), "%s", aura_last_error());
    for (const struct walker *a = w->walker; a < w->walker + WALKERS; a++) {
        aura_seq_info seq = AURA_SEQ_INFO_INIT;
        size_t pages = 0, shared = 0;
        if (!a->seq)
            continue;
        for (size_t p = 0; p < a->end; p++)
            if (has_page(w, a, p))
                pages++, shared += pool.sharers[a->page[p]] > 1;
        WALK_EXPECT(w, !aura_seq_get_info(w->cache, a->seq, &seq), "%s", aura_last_error());
        WALK_EXPECT(w, seq.tokens == a->model->len && (w->plain || seq.closed == a->model->closed),
                    "sequence %d: %llu tokens, %llu closed, not %llu, %llu", (int)(a - w->walker), (unsigned long long)seq.tokens,
                    (unsigned long long)seq.closed, (unsigned long long)a->model->len, (unsigned long long)a->model->closed);
        WALK_EXPECT(w, seq.pages == pages && seq.shared_pages == shared, "sequence %d: %zu pages, %zu shared, not %zu, %zu",
                    (int)(a - w->walker), seq.pages, seq.shared_pages, pages, shared);
        WALK_EXPECT(w, seq.first == (a->first == w->kept ? 0 : (uint64_t)a->first * PAGE), "sequence %d: from token %llu on",
                    (int)(a - w->walker), (unsigned long long)seq.first);
        tokens += a->model->len - (uint64_t)(a->first - w->kept) * PAGE, seqs++;
    }
    WALK_EXPECT(w, info.pages - info.free_pages == pool.used && info.shared_pages == pool.shared &&
                info.holders == pool.holders,
                "%zu pages used, %zu shared, %zu holders, not %zu, %zu, %zu", info.pages - info.free_pages, info.shared_pages,
                info.holders, pool.used, pool.shared, pool.holders);
    WALK_EXPECT(w, info.seqs == seqs && info.tokens == tokens && info.token_slots == (uint64_t)PAGE * info.holders,
                "%zu sequences, %llu tokens in %llu slots", info.seqs, (unsigned long long)info.tokens,
                (unsigned long long)info.token_slots);
    WALK_EXPECT(w, info.bytes == w->memory->bytes - w->base && info.bytes <= w->config.budget_bytes && !w->memory->wrong,
                "%zu bytes of %zu, the allocator counted %zu", info.bytes, w->config.budget_bytes, w->memory->bytes - w->base);
}

static inline void expect_tokens(struct walk *w, const struct walker *a, uint64_t first, uint64_t n)
{
    static float got[CAPACITY * WIDEST], want[CAPACITY * WIDEST];
    struct model *m = a->model;
    uint64_t token = 0;
    for (int values = 0; values < 2 && n; values++) {
        struct model_side *side = values ? &m->v : &m->k;
        aura_view view = {got, AURA_F32, 0, 0, NULL};
        aura_status status = aura_cache_decode(w->cache, a->seq, first, (uint32_t)n, values ? NULL : &view, values ? &view : NULL);
        WALK_EXPECT(w, !status, "decode %llu + %llu of %llu: %s", (unsigned long long)first, (unsigned long long)n,
                    (unsigned long long)m->len, aura_last_error());
        if (status)
            return;
        model_decode(want, m, side, first, n);
        uint32_t wrong = differing_rows(got, want, n, side->heads, side->dim, &token);
        WALK_EXPECT(w, !wrong, "sequence %d: %u %s of [%llu, +%llu) differ at length %llu, the first is token %llu",
                    (int)(a - w->walker), wrong, values ? "values" : "keys", (unsigned long long)first, (unsigned long long)n,
                    (unsigned long long)m->len, (unsigned long long)(first + token));
    }
}

/* Compares all tokens, or a few: the newest, those around a border, or any. */
static inline void expect_walker(struct walk *w, const struct walker *a, int all)
{
    uint64_t len = a->model->len, first = a->first == w->kept ? 0 : (uint64_t)a->first * PAGE, n = len - first;
    uint64_t kept = (uint64_t)w->kept * PAGE < len ? (uint64_t)w->kept * PAGE : len;
    if (!a->seq || !len)
        return;
    if (all) {
        expect_tokens(w, a, first, n);
        if (first)
            expect_tokens(w, a, 0, kept);
        return;
    }
    uint64_t most = n < COMPARED ? n : COMPARED, border = len / TILE * TILE, kind = random_bits(&w->checks) % 4;
    uint64_t at = kind == 0 ? len - most
        : kind == 1 && border >= first + 3 ? border - 3 : first + random_bits(&w->checks) % (n - most + 1);
    expect_tokens(w, a, at, at + most > len ? len - at : most);
    if (first && kept && kind == 2)
        expect_tokens(w, a, random_bits(&w->checks) % kept, 1);
}

/* Compares a token of each tile: what one sequence does to the pages of another is done to a tile. */
static inline void expect_tiles(struct walk *w, const struct walker *a)
{
    uint64_t len = a->model->len, first = a->first == w->kept ? 0 : (uint64_t)a->first * PAGE;
    for (uint64_t tile = 0; a->seq && tile < len; tile += TILE) {
        uint64_t t = tile + random_bits(&w->checks) % TILE;
        if (t < len && (t >= first || t < (uint64_t)w->kept * PAGE))
            expect_tokens(w, a, t, 1);
    }
}

/* Compares after a step that changed `a`. */
static inline void expect_walk(struct walk *w, const struct walker *a)
{
    int all = w->thorough || random_bits(&w->checks) % 128 == 0;
    expect_counts(w);
    if (a && !all)
        expect_walker(w, a, 0);
    for (int i = 0; i < WALKERS; i++)
        if (all || (uint64_t)i == random_bits(&w->checks) % WALKERS)
            expect_walker(w, &w->walker[i], all);
}

/* ---- steps ---------------------------------------------------------------------------------------------------------- */

/* Chooses the first sequence half of the time, so that it grows long. */
static inline struct walker *any_walker(struct walk *w)
{
    int at = (int)choose(&w->choices, 2 * WALKERS);
    at = at < WALKERS ? at : 0;
    for (int i = 0; i < WALKERS; i++)
        if (w->walker[(at + i) % WALKERS].seq)
            return &w->walker[(at + i) % WALKERS];
    return NULL;
}

static inline struct walker *free_walker(struct walk *w)
{
    for (int i = 0; i < WALKERS; i++)
        if (!w->walker[i].seq)
            return &w->walker[i];
    return NULL;
}

static inline void walker_begin(struct walk *w, struct walker *a, aura_seq seq)
{
    a->seq = seq;
    a->model->len = a->model->closed = 0;
    a->first = w->kept, a->end = a->reserved = 0;
}

/* The state before a call that may need memory. */
struct room {
    size_t pages, free_pages, bytes;
    int may_fail; /* the test lets an allocation of the call fail */
};

static inline struct room room_of(struct walk *w)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(w->cache, &info);
    struct room room = {info.pages, info.free_pages, info.bytes, once_in(&w->choices, 10)};
    w->memory->failed = 0, w->memory->fail_in = room.may_fail ? (long)choose(&w->choices, 3) : -1;
    return room;
}

/* Expects the right status: success, or out of memory if there was no room for `more` pages and the other bytes. After a failure
 * nothing may have changed, which expect_walk() checks. */
static inline int went_well(struct walk *w, aura_status status, struct room room, size_t more, size_t other_bytes)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    int failed = w->memory->failed;
    w->memory->fail_in = -1, w->memory->failed = 0;
    aura_cache_get_info(w->cache, &info);
    if (!status) {
        WALK_EXPECT(w, more <= room.free_pages + (info.pages - room.pages), "%zu pages out of nowhere", more);
        return 1;
    }
    walked.full += status == AURA_OUT_OF_PAGES, walked.failed += status == AURA_OUT_OF_MEMORY;
    size_t missing = more > room.free_pages ? more - room.free_pages : 0;
    size_t wanted = missing * (info.page_bytes + PAGE_COST) + other_bytes;
    if (status == AURA_OUT_OF_MEMORY)
        WALK_EXPECT(w, failed, "no allocation failed: %s", aura_last_error());
    else
        WALK_EXPECT(w, status == AURA_OUT_OF_PAGES && (!w->config.budget_bytes || wanted > w->config.budget_bytes - room.bytes),
                    "status %d although %zu pages were free, %zu more wanted and %zu bytes left: %s", (int)status,
                    room.free_pages, more,
                    w->config.budget_bytes - room.bytes, aura_last_error());
    return 0;
}

static inline size_t seq_cost(const struct walk *w)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(w->cache, &info);
    return info.seq_bytes + TABLE_COST;
}

static inline struct walker *walk_create(struct walk *w)
{
    struct walker *a = free_walker(w);
    aura_seq seq = 0;
    if (!a)
        return NULL;
    struct room room = room_of(w);
    if (went_well(w, aura_seq_create(w->cache, &seq), room, 0, seq_cost(w)))
        walker_begin(w, a, seq);
    return a;
}

/* A size: mostly small, sometimes a few tiles, at times more than a page. */
static inline uint32_t some_tokens(struct walk *w)
{
    uint32_t kind = choose(&w->choices, 16), n = 1 + choose(&w->choices, kind < 10 ? 6 : kind < 15 ? 50 : 300);
    return w->config.window && n > w->config.max_queries ? w->config.max_queries : n;
}

/* Token `token` of the texts as a model holds it. Rotating it takes longer than all that a walk does with it, so each is rotated
 * once for all walks. */
static inline void walk_put(struct model_side *s, int values, uint64_t t, uint32_t token)
{
    static float rows[2][2][WIDEST / 64][TEXT_TOKENS][WIDEST];
    static uint8_t known[2][2][WIDEST / 64][TEXT_TOKENS];
    float *row = rows[values][s->balance != NULL][s->heads - 1][token];
    uint8_t *is_known = &known[values][s->balance != NULL][s->heads - 1][token];
    if (is_plain(s->kind) || !*is_known)
        model_side_put(s, t, (values ? walk_values : walk_keys) + (size_t)token * s->heads * s->dim);
    for (uint32_t h = 0; h < s->heads && !is_plain(s->kind); h++)
        if (*is_known)
            memcpy(model_half(s, h, t), row + h * s->dim, s->dim * sizeof *row);
        else
            memcpy(row + h * s->dim, model_half(s, h, t), s->dim * sizeof *row);
    *is_known |= !is_plain(s->kind);
}

static inline void walker_append(struct walker *a, uint32_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        walk_put(&a->model->k, 0, a->model->len + i, first + i);
        walk_put(&a->model->v, 1, a->model->len + i, first + i);
    }
    model_grow(a->model, n);
}

/* Gives walkers[n] the pages to grow to lengths[n]; the tokens follow later. */
static inline void walkers_grow(struct walk *w, struct walker **a, const uint64_t *length, size_t n)
{
    size_t end[MOST_JOBS];
    for (size_t i = 0; i < n; i++) { /* first, pages that slide out leave all sequences */
        size_t first = first_for(w, length[i]);
        first = first > a[i]->first ? first : a[i]->first;
        end[i] = end_for(w, first, length[i], a[i]->reserved);
        walked.slid += first > a[i]->first;
        a[i]->first = first;
    }
    for (size_t i = 0; i < n; i++) {
        own_pages(w, a[i], length[i], 0);
        while (a[i]->end < end[i])
            add_page(w, a[i]);
    }
}

static inline struct walker *walk_append(struct walk *w)
{
    struct walker *a[MOST_JOBS], before[WALKERS];
    aura_append_job job[MOST_JOBS];
    uint32_t first[MOST_JOBS];
    uint64_t length[MOST_JOBS];
    float number;
    size_t n = 0, wanted = once_in(&w->choices, 4) ? 1 + choose(&w->choices, MOST_JOBS) : 1;
    int bad = once_in(&w->choices, 60);
    for (size_t i = 0; i < wanted; i++) {
        struct walker *next = any_walker(w);
        uint32_t tokens = some_tokens(w);
        int known = !next || next->model->len + tokens > CAPACITY;
        for (size_t j = 0; j < n; j++)
            known |= a[j] == next;
        if (known)
            continue;
        first[n] = choose(&w->choices, TEXT_TOKENS + 1 - tokens);
        job[n] = (aura_append_job)AURA_APPEND_JOB_INIT;
        job[n].seq = next->seq, job[n].tokens = tokens;
        job[n].k.data = walk_keys + (size_t)first[n] * next->model->k.heads * next->model->k.dim;
        job[n].v.data = walk_values + (size_t)first[n] * next->model->v.heads * next->model->v.dim;
        length[n] = next->model->len + tokens;
        a[n++] = next;
    }
    if (!n)
        return NULL;
    struct room room = room_of(w);
    float *damaged = (float *)job[n - 1].v.data + (job[n - 1].tokens - 1) * (size_t)w->config.v_dim + 3;
    number = *damaged, *damaged = bad ? NAN : number;
    aura_status status = aura_append(w->cache, job, n);
    *damaged = number;
    if (bad) {
        w->memory->fail_in = -1;
        WALK_EXPECT(w, status == AURA_BAD_VALUE, "NaN: %s", aura_status_text(status));
        return a[0];
    }
    memcpy(before, w->walker, sizeof before);
    size_t used = pool_of(w).used;
    walkers_grow(w, a, length, n);
    size_t now = pool_of(w).used;
    if (!went_well(w, status, room, now > used ? now - used : 0, n * TABLE_COST))
        memcpy(w->walker, before, sizeof before);
    for (size_t i = 0; i < n && !status; i++)
        walker_append(a[i], first[i], job[i].tokens);
    return a[0];
}

/* Lengths at which something may go wrong. */
static inline uint64_t some_length(struct walk *w, const struct walker *a)
{
    uint64_t len = a->model->len, kind = choose(&w->choices, 60), back = choose(&w->choices, kind < 50 ? 70 : 400);
    if (kind == 59)
        return 0;
    if (kind == 58)
        return len ? choose(&w->choices, (uint32_t)len + 1) : 0;
    uint64_t n = back < len ? len - back : 0;
    return kind > 54 ? n / PAGE * PAGE : kind > 46 ? n / TILE * TILE : n;
}

static inline void walker_cut(struct walk *w, struct walker *a, uint64_t tokens)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(w->cache, &info);
    model_truncate(a->model, tokens);
    trim(w, a, info.pages - pool_of(w).used);
}

static inline struct walker *walk_truncate(struct walk *w)
{
    struct walker *a = any_walker(w);
    if (!a)
        return NULL;
    uint64_t n = some_length(w, a) + (once_in(&w->choices, 30) ? 1 + a->model->len : 0);
    aura_status status = aura_truncate(w->cache, a->seq, n), expected = can_cut(w, a, n) ? AURA_OK : AURA_BAD_ARGUMENT;
    WALK_EXPECT(w, status == expected, "truncate to %llu of %llu: %s", (unsigned long long)n, (unsigned long long)a->model->len,
                aura_status_text(status));
    if (!expected)
        walker_cut(w, a, n);
    return a;
}

static inline struct walker *walk_fork(struct walk *w)
{
    struct walker *from = any_walker(w), *to = free_walker(w);
    aura_seq seq = 0;
    if (!from || !to)
        return NULL;
    uint64_t n = once_in(&w->choices, 3) ? from->model->len : some_length(w, from);
    struct room room = room_of(w);
    aura_status status = aura_seq_fork(w->cache, from->seq, n, &seq);
    if (!can_cut(w, from, n)) {
        w->memory->fail_in = -1;
        WALK_EXPECT(w, status == AURA_BAD_ARGUMENT, "fork at %llu: %s", (unsigned long long)n, aura_status_text(status));
        return from;
    }
    if (!went_well(w, status, room, 0, seq_cost(w)))
        return from;
    walker_begin(w, to, seq);
    model_move(to->model, 0, from->model, 0, n);
    to->model->len = n, to->model->closed = from->model->closed < n ? from->model->closed : n;
    to->end = pages_for(n), to->first = to->end > w->kept ? from->first : w->kept;
    memcpy(to->page, from->page, sizeof to->page);
    return to;
}

static inline struct walker *walk_release(struct walk *w)
{
    struct walker *a = &w->walker[choose(&w->choices, WALKERS)];
    if (!a->seq || (a == w->walker && !once_in(&w->choices, 4)))
        return NULL;
    WALK_EXPECT(w, !aura_seq_release(w->cache, a->seq), "%s", aura_last_error());
    w->gone = a->seq, a->seq = 0;
    return NULL;
}

static inline struct walker *walk_reserve(struct walk *w)
{
    struct walker *a = any_walker(w), before[WALKERS];
    if (!a)
        return NULL;
    uint64_t n = choose(&w->choices, once_in(&w->choices, 8) ? CAPACITY : 600) + (once_in(&w->choices, 2) ? a->model->len : 0);
    size_t most = w->config.window ? w->kept + w->ring : MOST_PAGES, used = pool_of(w).used, pages = pages_for(n);
    pages = pages < most ? pages : most;
    if (pages + a->first > MOST_PAGES)
        return NULL;
    struct room room = room_of(w);
    aura_status status = aura_seq_reserve(w->cache, a->seq, n);
    memcpy(before, w->walker, sizeof before);
    if (n) {
        size_t end = end_for(w, a->first, 0, pages);
        own_pages(w, a, n, first_for(w, n) > a->first);
        while (a->end < end)
            add_page(w, a);
        a->reserved = a->reserved > pages ? a->reserved : pages;
    }
    if (!went_well(w, status, room, pool_of(w).used - used, TABLE_COST))
        memcpy(w->walker, before, sizeof before);
    return a;
}

/* ---- tokens that go from the middle, keys that change ---- */

/* Turns pairs of channels, by an angle for each token and head. A token that is `spoilt` becomes NaN. */
static inline void turn_key(void *user, uint32_t layer, uint64_t token, uint32_t head, float *key)
{
    uint64_t spoilt = *(const uint64_t *)user;
    float c = cosf((float)(token % 97) + (float)head), s = sinf((float)(token % 97) + (float)head);
    for (uint32_t d = 0; d < 32; d++) {
        float x = key[d], y = key[d + 32];
        key[d] = c * x - s * y, key[d + 32] = s * x + c * y;
    }
    if (token == spoilt || layer)
        key[5] = NAN;
}

/* Copies the shared pages in which the keys of tokens [first, end) are changed. */
static inline void own_keys(struct walk *w, struct walker *a, uint64_t first, uint64_t end)
{
    const struct model *m = a->model;
    if (!is_plain(m->k.kind))
        first = first > m->pinned ? first : m->pinned, end = end < m->closed ? end : m->closed;
    for (size_t p = (size_t)(first / PAGE); first < end && p < pages_for(end); p++)
        if (pool_of(w).sharers[a->page[p]] > 1)
            a->page[p] = unused_page(w), walked.copied++;
}

/* Decodes the tokens after the range, cuts and appends them, mapped. */
static inline void walker_move(struct walker *a, uint64_t first, uint64_t n, aura_map_key_fn *map, void *user)
{
    static float keys[CAPACITY * WIDEST], values[CAPACITY * WIDEST];
    struct model *m = a->model;
    uint64_t rest = m->len - first - n;
    model_decode(keys, m, &m->k, first + n, rest), model_decode(values, m, &m->v, first + n, rest);
    for (uint64_t i = 0; i < rest * m->k.heads && map; i++)
        map(user, 0, first + i / m->k.heads, (uint32_t)(i % m->k.heads), keys + i * m->k.dim);
    model_truncate(m, first);
    model_append(m, keys, values, rest);
}

/* Removes some tokens, and maps the keys of those after them where `turn` is 1. */
static inline struct walker *walk_cut_out(struct walk *w, int turn)
{
    struct walker *a = any_walker(w), before;
    if (!a)
        return NULL;
    struct model *m = a->model;
    uint64_t len = m->len, step = once_in(&w->choices, 2) ? 1 : PAGE, nobody = once_in(&w->choices, 9) ? len / 2 : UINT64_MAX;
    uint64_t first = choose(&w->choices, (uint32_t)(len / step) + 1) * step,
        n = choose(&w->choices, (uint32_t)((len - first) / step) + 2) * step;
    int end = first + n == len && n, good = first + n <= len;
    int whole = first % PAGE == 0 && n % PAGE == 0 && first + n <= settled(w, a) && !w->config.window && (first || !has_pinned(w));
    int moves = good && n && !end && !whole;
    struct room room = room_of(w);
    aura_status status = turn ? aura_seq_shift(w->cache, a->seq, first, n, turn_key, &nobody)
                              : aura_seq_remove(w->cache, a->seq, first, n);
    int gone = (end && !can_cut(w, a, first)) || (moves && (!can_cut(w, a, first) || !exist(w, a, first, len))) ||
               (turn && !n && first < len && !exist(w, a, first, len));
    int spoilt = good && !end && turn && nobody >= first && nobody < len - n;
    aura_status expected = !good || gone ? AURA_BAD_ARGUMENT : spoilt ? AURA_BAD_VALUE : AURA_OK;
    if (expected || (!n && !turn) || end) {
        w->memory->fail_in = -1;
        WALK_EXPECT(w, status == expected, "remove %llu + %llu of %llu: %s, not %s", (unsigned long long)first,
                    (unsigned long long)n, (unsigned long long)len, aura_status_text(status), aura_status_text(expected));
        if (end && !expected)
            walker_cut(w, a, first);
        return a;
    }
    before = *a;
    size_t used = pool_of(w).used;
    uint64_t closed = m->closed;
    if (moves)
        model_truncate(m, first), own_pages(w, a, len - n, 0), m->len = len, m->closed = closed;
    else if (turn)
        own_keys(w, a, first + n, len);
    if (!went_well(w, status, room, pool_of(w).used - used, 0)) {
        *a = before;
        return a;
    }
    walked.removed++, walked.moved += moves;
    if (moves) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(w->cache, &info);
        walker_move(a, first, n, turn ? turn_key : NULL, &nobody);
        trim(w, a, info.pages - pool_of(w).used);
        return a;
    }
    if (n) {
        model_move(m, first, m, first + n, len - first - n);
        size_t from = (size_t)(first / PAGE), pages = (size_t)(n / PAGE);
        memmove(a->page + from, a->page + from + pages, (a->end - from - pages) * sizeof *a->page);
        a->end -= pages;
        m->closed -= m->closed > n ? n : m->closed;
        walker_cut(w, a, len - n);
    }
    if (turn)
        model_map(m, first, m->len - first, turn_key, &nobody);
    return a;
}

static inline struct walker *walk_remove(struct walk *w)
{
    return walk_cut_out(w, 0);
}

static inline struct walker *walk_shift(struct walk *w)
{
    return walk_cut_out(w, 1);
}

static inline struct walker *walk_map(struct walk *w)
{
    struct walker *a = any_walker(w), before;
    if (!a)
        return NULL;
    uint64_t len = a->model->len, step = once_in(&w->choices, 2) ? 1 : TILE;
    uint64_t nobody = once_in(&w->choices, 9) ? len / 2 : UINT64_MAX;
    uint64_t first = choose(&w->choices, (uint32_t)(len / step) + 1) * step, n = choose(&w->choices, (uint32_t)(len - first) + 2);
    struct room room = room_of(w);
    aura_status status = aura_seq_map_keys(w->cache, a->seq, first, n, turn_key, &nobody);
    int gone = n && first + n <= len && !exist(w, a, first, first + n);
    aura_status expected = first + n > len || gone                   ? AURA_BAD_ARGUMENT
                           : nobody >= first && nobody < first + n ? AURA_BAD_VALUE
                                                                   : AURA_OK;
    if (expected) {
        w->memory->fail_in = -1;
        WALK_EXPECT(w, status == expected, "map %llu + %llu of %llu: %s, not %s", (unsigned long long)first, (unsigned long long)n,
                    (unsigned long long)len, aura_status_text(status), aura_status_text(expected));
        return a;
    }
    before = *a;
    size_t used = pool_of(w).used;
    own_keys(w, a, first, first + n);
    if (!went_well(w, status, room, pool_of(w).used - used, 0)) {
        *a = before;
        return a;
    }
    walked.mapped++;
    model_map(a->model, first, n, turn_key, &nobody);
    return a;
}

static inline struct walker *walk_copy(struct walk *w)
{
    struct walker *from = any_walker(w), *to = any_walker(w);
    if (!from)
        return NULL;
    uint64_t fitting = settled(w, to) / PAGE * PAGE;
    if (!once_in(&w->choices, 3) && to != from && can_cut(w, to, fitting)) {
        WALK_EXPECT(w, !aura_truncate(w->cache, to->seq, fitting), "%s", aura_last_error());
        walker_cut(w, to, fitting);
    }
    uint64_t len = from->model->len, step = once_in(&w->choices, 5) ? 1 : PAGE, at = to->model->len;
    uint64_t first = at ? choose(&w->choices, (uint32_t)(len / step) + 1) * step : 0;
    uint64_t n = choose(&w->choices, (uint32_t)((len - first) / step) + 2) * step;
    if (at + n > CAPACITY)
        return NULL;
    int whole = first % PAGE == 0 && n % PAGE == 0 && first + n <= settled(w, from) && !w->config.window;
    int fits = at % PAGE == 0 && settled(w, to) == at && (!has_pinned(w) || !first == !at);
    struct room room = room_of(w);
    aura_status status = aura_seq_copy(w->cache, from->seq, first, n, to->seq);
    aura_status expected = first + n > len ? AURA_BAD_ARGUMENT : !n || (whole && fits) ? AURA_OK : AURA_UNSUPPORTED;
    if (expected || !n) {
        w->memory->fail_in = -1;
        WALK_EXPECT(w, status == expected, "copy %llu + %llu of %llu to %llu: %s, not %s", (unsigned long long)first,
                    (unsigned long long)n, (unsigned long long)len, (unsigned long long)at, aura_status_text(status),
                    aura_status_text(expected));
        return from;
    }
    if (!went_well(w, status, room, 0, TABLE_COST))
        return from;
    walked.joined++;
    model_move(to->model, at, from->model, first, n);
    to->model->len = to->model->closed = at + n;
    size_t end = pages_for(at + n);
    memmove(to->page + at / PAGE, from->page + first / PAGE, (size_t)(n / PAGE) * sizeof *to->page);
    to->end = to->end > end ? to->end : end;
    return to;
}

/* ---- steps that change nothing ---- */

static inline struct walker *walk_decode(struct walk *w)
{
    struct walker *a = any_walker(w);
    if (!a)
        return NULL;
    uint64_t len = a->model->len, first = some_length(w, a), n = choose(&w->choices, 40);
    if (first + n <= len && exist(w, a, first, first + n)) {
        expect_tokens(w, a, first, n);
        return a;
    }
    static float out[64 * WIDEST];
    aura_view view = {out, AURA_F32, 0, 0, NULL};
    WALK_EXPECT(w, aura_cache_decode(w->cache, a->seq, first, (uint32_t)n, &view, NULL) == AURA_BAD_ARGUMENT,
                "decode of what is not there, %llu + %llu of %llu", (unsigned long long)first, (unsigned long long)n,
                (unsigned long long)len);
    return a;
}

static inline struct walker *walk_stranger(struct walk *w)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    aura_seq seq = 0;
    for (int i = 0; i < WALKERS; i++)
        if (w->walker[i].seq == w->gone)
            return NULL;
    WALK_EXPECT(w, aura_seq_get_info(w->cache, w->gone, &info) == AURA_BAD_ARGUMENT &&
                       aura_truncate(w->cache, w->gone, 0) == AURA_BAD_ARGUMENT &&
                       aura_seq_release(w->cache, w->gone) == AURA_BAD_ARGUMENT &&
                       aura_seq_fork(w->cache, w->gone, 0, &seq) == AURA_BAD_ARGUMENT,
                "sequence %u has gone", w->gone);
    return NULL;
}

/* One query head of one query, in double, over what the model says. */
static inline void expect_answer(struct walk *w, const struct walker *a, const float *q, uint32_t head, uint64_t position,
                                 uint64_t window, const float *out, float lse)
{
    static float k[CAPACITY * WIDEST], v[CAPACITY * WIDEST];
    static double keys[CAPACITY * WIDEST], values[CAPACITY * WIDEST];
    struct model *m = a->model;
    uint32_t kv = head / (w->config.q_heads / w->config.kv_heads), dim = m->k.dim; /* both sides have it */
    uint64_t begin = window && position + 1 > window ? position + 1 - window : 0;
    size_t n = 0;
    double query[WIDEST], want[WIDEST], want_lse, size;
    for (uint64_t t = 0; t <= position; t++) {
        if (t < begin && t >= w->config.keep_first)
            continue;
        model_decode(k, m, &m->k, t, 1), model_decode(v, m, &m->v, t, 1);
        for (uint32_t d = 0; d < dim; d++)
            keys[n * dim + d] = (double)k[kv * dim + d], values[n * dim + d] = (double)v[kv * dim + d];
        n++;
    }
    for (uint32_t d = 0; d < dim; d++)
        query[d] = (double)q[d];
    struct oracle o = {dim, n, keys, values, NULL, 1 / sqrt(dim), 0, -INFINITY};
    oracle_attend(want, &want_lse, &size, &o, query);
    uint32_t off = 0; /* NaN is off too */
    for (uint32_t d = 0; d < dim; d++)
        off += !(fabs((double)out[d] - want[d]) <= 4e-3 * size);
    WALK_EXPECT(w, off == 0 && fabs((double)lse - want_lse) < 4e-3,
                "attention to %zu tokens, up to %llu: %u numbers are off by 4e-3 of %g, lse is %g, not %g",
                n, (unsigned long long)position, off, size, (double)lse, want_lse);
}

static inline struct walker *walk_attend(struct walk *w)
{
    struct walker *a = any_walker(w);
    float out[MOST_QUERIES * 2 * WIDEST], lse[MOST_QUERIES * 4];
    if (!a || !a->model->len)
        return NULL;
    uint64_t len = a->model->len, window = w->config.window;
    uint32_t queries = 1 + choose(&w->choices, MOST_QUERIES), heads = w->config.q_heads, dim = w->config.k_dim;
    queries = queries < len ? queries : (uint32_t)len;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    float *q = walk_values + choose(&w->choices, TEXT_TOKENS / 2) * WIDEST; /* any numbers will do */
    job.seq = a->seq, job.queries = queries, job.q.data = q, job.out.data = out, job.lse = lse;
    options.planes = 2;
    if (!once_in(&w->choices, 4)) /* a narrow window: the answer of all tokens takes longer than the rest of the walk */
        options.window = 1 + choose(&w->choices, window && window < 100 ? (uint32_t)window : 100);
    window = options.window ? options.window : window;
    struct room room = room_of(w);
    aura_status status = aura_attend(w->cache, &job, 1, &options);
    w->memory->fail_in = -1;
    uint64_t oldest = len - queries + 1 > window && window ? len - queries + 1 - window : 0;
    if (room.may_fail && w->memory->failed) {
        WALK_EXPECT(w, status == AURA_OUT_OF_MEMORY, "attend: %s", aura_status_text(status));
    } else if (w->config.window && (queries > w->config.max_queries || !exist(w, a, oldest, len))) {
        WALK_EXPECT(w, status == AURA_BAD_ARGUMENT, "attend to what has gone: %s", aura_status_text(status));
    } else {
        uint32_t row = (uint32_t)(random_bits(&w->checks) % (queries * heads));
        WALK_EXPECT(w, !status, "attend: %s", aura_last_error());
        if (!status)
            expect_answer(w, a, q + row * dim, row % heads, len - queries + row / heads, window, out + row * dim,
                          lse[row]);
    }
    w->memory->failed = 0;
    return a;
}

/* ---- files ---- */

/* Saves a sequence to a file and loads it as another one. */
static inline struct walker *walk_save(struct walk *w)
{
    struct walker *from = any_walker(w), *to = free_walker(w);
    aura_seq seq = 0;
    if (!from || !to)
        return NULL;
    w->memory->fail_in = -1;
    WALK_EXPECT(w, !aura_seq_save(w->cache, from->seq, file_path("walk"), NULL), "%s", aura_last_error());
    struct room room = room_of(w);
    aura_status status = aura_seq_load(w->cache, file_path("walk"), NULL, &seq);
    struct walker before = *to;
    size_t used = pool_of(w).used;
    uint64_t n = from->model->len;
    walker_begin(w, to, seq ? seq : 1);
    model_move(to->model, 0, from->model, 0, n);
    to->model->len = n, to->model->closed = from->model->closed;
    for (to->first = from->first; to->end < pages_for(n); to->end++)
        if (to->end < w->kept || to->end >= to->first)
            to->page[to->end] = unused_page(w);
    if (!went_well(w, status, room, pool_of(w).used - used, seq_cost(w))) {
        WALK_EXPECT(w, !seq, "a load that failed");
        *to = before;
        return from;
    }
    return to;
}

/* Saves the whole cache to a file, loads it, and goes on with the loaded one. */
static inline struct walker *walk_reload(struct walk *w)
{
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    aura_cache *cache = NULL;
    options.budget_bytes = w->config.budget_bytes;
    w->memory->fail_in = -1;
    WALK_EXPECT(w, !aura_cache_save(w->cache, file_path("walk"), NULL), "%s", aura_last_error());
    aura_status status = aura_cache_load(w->ctx, file_path("walk"), &options, &cache);
    WALK_EXPECT(w, !status || status == AURA_OUT_OF_PAGES, "%s", aura_last_error());
    if (status)
        return NULL;
    aura_seq ids[2 * WALKERS];
    size_t n = 2 * WALKERS;
    WALK_EXPECT(w, !aura_cache_list(w->cache, ids, &n) && n <= 2 * WALKERS, "%zu sequences: %s", n, aura_last_error());
    for (struct walker *a = w->walker; a < w->walker + WALKERS; a++)
        for (size_t i = 0; i < n && a->seq; i++)
            if (ids[i] == a->seq) {
                a->seq = (aura_seq)i + 1; /* its number in the file */
                break;
            }
    aura_cache_destroy(w->cache);
    w->cache = cache, w->gone = 0, walked.reloaded++;
    for (struct walker *a = w->walker; a < w->walker + WALKERS; a++)
        if (a->seq) {
            a->reserved = 0;
            a->end = pages_for(a->model->len); /* reservations are not saved */
        }
    return NULL;
}

/* ---- walks ----------------------------------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    uint32_t often;
    struct walker *(*step)(struct walk *w);
} walk_steps[] = {{"append", 50, walk_append},    {"create", 4, walk_create},   {"fork", 8, walk_fork},
                  {"truncate", 10, walk_truncate}, {"release", 2, walk_release}, {"reserve", 3, walk_reserve},
                  {"remove", 5, walk_remove},     {"shift", 3, walk_shift},     {"map", 3, walk_map},
                  {"copy", 5, walk_copy},         {"decode", 3, walk_decode},
                  {"attend", 3, walk_attend},     {"stranger", 1, walk_stranger}, {"save", 1, walk_save},
                  {"reload", 1, walk_reload}};
enum { N_WALK_STEPS = sizeof walk_steps / sizeof *walk_steps };

static inline void walk_step(struct walk *w)
{
    uint32_t all = 0, at = 0;
    for (uint32_t i = 0; i < N_WALK_STEPS; i++)
        all += walk_steps[i].often;
    uint32_t chosen = choose(&w->choices, all);
    for (; chosen >= walk_steps[at].often; at++)
        chosen -= walk_steps[at].often;
    w->doing = walk_steps[at].name;
    struct walker *about = walk_steps[at].step(w);
    expect_walk(w, about);
    w->step++;
}

/* A configuration at random: every kind on both sides, every flag, windows of less and more than a page. */
static inline aura_config walk_config(struct choices *c)
{
    aura_config config = config_of(kinds[choose(c, N_KINDS)], kinds[choose(c, N_KINDS)], 64, 64, once_in(c, 4) ? 2 : 1);
    config.q_heads = config.kv_heads * (1 + choose(c, 2));
    config.flags |= once_in(c, 3) ? AURA_NO_PINNED : 0;
    config.flags |= once_in(c, 4) ? AURA_NO_REFERENCE : 0;
    config.flags |= once_in(c, 4) ? AURA_NO_ROLLBACK : 0;
    config.flags |= once_in(c, 6) ? AURA_NO_OPEN | AURA_NO_REFERENCE : 0;
    config.rollback = choose(c, 3) ? 0 : 1 + choose(c, 224);
    if (once_in(c, 2)) {
        config.window = 1 + choose(c, once_in(c, 2) ? 600 : 60);
        config.max_queries = 1 + choose(c, once_in(c, 2) ? 300 : 40);
        config.keep_first = once_in(c, 2) ? choose(c, once_in(c, 2) ? 300 : 6) : 0;
    }
    return config;
}

/* A budget for about that many pages. */
static inline size_t walk_budget(struct walk *w, size_t pages)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache *cache = cache_new(w->ctx, &w->config);
    for (int i = 0; i < WALKERS; i++)
        seq_new(cache);
    aura_cache_get_info(cache, &info);
    aura_cache_destroy(cache);
    return info.bytes + 16 * sizeof(void *) * WALKERS + pages * (info.page_bytes + 64) + (pages % 3) * info.seq_bytes;
}

/* The memory of a model is larger than the walks of most inputs are long: all walks share it. */
static inline struct model *walk_model(int i, const aura_config *c)
{
    static struct model *model[WALKERS];
    aura_config widest = config_of(AURA_KIND_B2, AURA_KIND_B2, 64, 64, WIDEST / 64);
    if (!model[i])
        model[i] = model_create(&widest, CAPACITY);
    model_init(model[i], c);
    return model[i];
}

static inline void walk_begin(struct walk *w, struct choices choices)
{
    static struct counting memory;
    static aura_ctx *counted;
    memset(w, 0, sizeof *w);
    if (!counted) /* asking the CPU what it has takes long in a virtual machine: all walks share the context */
        counted = counting_ctx(&memory, 0xa5, 1);
    w->choices = choices, w->checks = choices.seed + 1, w->memory = &memory, w->doing = "begin";
    w->ctx = counted, w->base = memory.bytes;
    aura_config *c = &w->config;
    *c = walk_config(&w->choices);
    if (!is_plain(c->format.k) && once_in(&w->choices, 3))
        c->balance = w->balance = some_balance(c->kv_heads, c->k_dim);
    c->budget_bytes = walk_budget(w, 2 + choose(&w->choices, 14));
    w->cache = cache_new(w->ctx, c);
    uint64_t rollback = c->flags & (AURA_NO_ROLLBACK | AURA_NO_OPEN) ? 0 : c->rollback ? c->rollback : ROLLBACK;
    w->slack = c->max_queries > rollback ? c->max_queries : rollback;
    w->kept = pages_for(c->keep_first), w->ring = pages_for(c->window + w->slack) + 1;
    w->plain = is_plain(c->format.k) && is_plain(c->format.v);
    for (int i = 0; i < WALKERS; i++)
        w->walker[i].model = walk_model(i, c);
}

static inline void walk_end(struct walk *w)
{
    w->memory->fail_in = -1;
    aura_cache_destroy(w->cache);
    w->doing = "end";
    WALK_EXPECT(w, w->memory->bytes == w->base && !w->memory->wrong, "%zu bytes lost, %d wrong calls",
                w->memory->bytes - w->base, w->memory->wrong);
    unlink(file_path("walk"));
    free(w->balance);
}

/* Makes up to `steps` steps, until no choices are left or a step fails; returns how many it made. */
static inline long walk(struct choices choices, long steps, int thorough)
{
    struct walk w;
    walk_begin(&w, choices);
    w.thorough = thorough;
    while (w.step < steps && !w.choices.over && !test_bad_lines)
        walk_step(&w);
    for (int i = 0; i < WALKERS && !test_bad_lines; i++)
        expect_tiles(&w, &w.walker[i]);
    walk_end(&w);
    return w.step;
}

#endif
