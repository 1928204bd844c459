/* The cache: what it is made of. cache.c makes and describes it, feedback.c has its metrics, learn.c learns, seq.c has sequences,
 * pool.c owns its memory, append.c takes tokens, tile.c encodes them, edit.c removes and changes them, slots.c is the cache without
 * sequences, decode.c reads tokens back, attend.c attends. */
#ifndef AURA_CACHE_H
#define AURA_CACHE_H

#include <pthread.h>
#include <stdatomic.h>

#include "../base/arguments.h"
#include "../rules.h"
#include "page_table.h"

enum {
    AURA_RING = 64,      /* f16 rows per head and sequence: up to 32 open tokens of a tile, and 32 of rollback; twice or four
                            times as many for more of rollback */
    AURA_MAX_ROLLBACK = 4 * AURA_RING - 32,
    AURA_SEQ_CHUNKS = 15, /* of 64, 128, 256 ... sequences: 2^21 in all */
    AURA_PAGE_HEAD = 64, /* bytes before every page */
    AURA_SLAB_TAIL = 64  /* bytes after the pages of a slab: the next slab, and its own size */
};

/* One side of the codec. */
struct aura_codec_side {
    struct aura_rotation_plan rotate, undo;
    struct aura_codec_plan codec;
    float *balance, *inverse_balance; /* [kv_heads][dim], or NULL */
    float *triangle;            /* [kv_heads][dim * (dim + 1) / 2] the metric; NULL: none */
    struct aura_metric *metric; /* [kv_heads] made ready */
};

/* What one cache, or all caches of a model together, may allocate. */
struct aura_budget {
    size_t limit; /* 0: none */
    _Atomic size_t bytes;
};

/* In front of the bytes of every page; AURA_PAGE_HEAD bytes are set aside for it. The cache's lock guards `page`. */
struct aura_page_head {
    struct aura_page page;
    uint32_t busy[AURA_PAGE_TILES];   /* slots: columns of a tile that the running call writes to; 0 between calls */
    uint8_t written[AURA_PAGE_TILES]; /* slots: whether a tile was ever written to */
};

/* A sequence. Token t is in page t / 256. Tokens below `pinned` of the cache and from `closed` on are f16 rows, all others
 * are codes; a plain side is in the pages alone. */
struct aura_sequence {
    uint64_t len, closed;
    struct aura_page_list pages;
    size_t reserved;     /* pages that truncate must leave */
    uint32_t shift;      /* see aura_rank_of_page() */
    uint64_t counted;    /* tokens of this sequence in cache->tokens */
    aura_seq id;
    uint16_t *k, *v;     /* [kv_heads][rows][dim]: open tokens by their position modulo 64, then the pinned ones */

    struct aura_sequence *next; /* of those that a call is about; and how long each is to become */
    uint64_t wanted;
};

/* What calls are timed as. */
enum aura_time { AURA_TIME_APPEND, AURA_TIME_ATTEND, AURA_TIME_STEP, AURA_TIMES };

struct aura_cache {
    aura_ctx *ctx;
    aura_config config;  /* with the defaults filled in */
    struct aura_layout layout;
    struct aura_codec_side k, v;
    struct aura_codec_plan reference_codec;
    uint32_t pinned, rollback, rows;  /* rows: f16 rows per head of a sequence */
    size_t page_bytes, seq_bytes, rows_bytes; /* seq_bytes: struct and rows */
    size_t slab_pages;   /* at most so many come at once */
    struct aura_page_window window;
    struct aura_model_cache *model; /* whose layer it is; NULL: nobody's */
    struct aura_budget *budget, own_budget; /* the model's, or its own */
    struct aura_learning *learning; /* NULL: it does not learn */
    uint32_t rank, ranks;        /* of processes that share sequences: only pages of this rank are in lists; ranks 0: all are */
    struct aura_sequence *slots; /* the pages of a cache of slots, all of them closed; NULL: there are sequences */

    _Atomic uint64_t nanoseconds[AURA_TIMES]; /* that calls took, of all threads together */

    pthread_mutex_t lock; /* of everything below, and nothing above */
    uint64_t pages_copied, tiles_closed;
    size_t bytes;         /* allocated, this struct included */
    struct aura_page_pool pool;
    uint8_t *slabs;       /* a list through the last bytes of the slabs */
    size_t pages, seqs;
    uint64_t tokens;      /* that sequences have, each counted for itself */
    uint32_t next_seq;    /* where a free place is looked for first */
    uint32_t generation;  /* of the last id */
    _Atomic(_Atomic(struct aura_sequence *) *) chunk[AURA_SEQ_CHUNKS];
};

/* ---- cache.c ---- */

/* aura_cache_create(), also of a layer of a model. */
aura_status aura_cache_make(struct aura_call call, aura_ctx *ctx, const aura_config *config, struct aura_model_cache *model,
                            struct aura_budget *budget, aura_cache **cache);
void aura_cache_unmake(aura_cache *cache);
/* Counts the time since `start`, by aura_nanoseconds(). */
void aura_count_time(const aura_cache *cache, enum aura_time what, uint64_t start);
/* Fills a struct with what follows from a configuration, and allocates nothing: a cache to look at, not to use or destroy. Fails
 * as aura_cache_create() does. */
aura_status aura_cache_shape(struct aura_call call, aura_ctx *ctx, const aura_config *config, aura_cache *shape);

/* ---- feedback.c: balance and metrics ---- */

/* Checks what aura_metric_init() does not. */
aura_status aura_check_numbers(struct aura_call call, const aura_config *config);
/* Bytes that they take in a cache. */
size_t aura_numbers_bytes(const aura_config *config);
/* Copies those of the configuration and makes them ready. Fails: AURA_BAD_VALUE, and like aura_cache_alloc(). */
aura_status aura_numbers_make(struct aura_call call, aura_cache *cache);
void aura_numbers_unmake(aura_cache *cache);

/* ---- learn.c ---- */

struct aura_attend;
enum { AURA_LEARN_POSITIONS = 512 }; /* are enough */

/* Whether such a cache learns; how many bytes that takes; and all that it takes. */
int aura_learns(const aura_config *config);
size_t aura_learning_bytes(const aura_config *config);
aura_status aura_learning_make(struct aura_call call, aura_cache *cache);
void aura_learning_unmake(aura_cache *cache);
/* What was learnt about a KV head, once that is enough; NULL before. The cache learns. */
const struct aura_metric *aura_learnt_metric(const aura_cache *cache, uint32_t head);
/* Counts the queries of a call, before it writes anything; and, at its end, finds out whether there are enough. The cache may
 * be one that does not learn. */
void aura_learn_queries(const struct aura_attend *a);
void aura_learn_enough(const aura_cache *cache);
/* To and from files: sum[kv_heads][k_dim * (k_dim + 1) / 2], and the positions. Setting does nothing where some were counted. */
uint64_t aura_learnt_copy(const aura_cache *cache, double *sum);
void aura_learnt_set(aura_cache *cache, const double *sum, uint64_t positions);

/* ---- pool.c: every byte that a cache allocates is counted, and none beyond its budget ---- */

/* Takes bytes out of a budget. Returns 0 where fewer are left, and then takes none. */
int aura_budget_take(struct aura_budget *budget, size_t bytes);
/* Fails with AURA_OUT_OF_PAGES or AURA_OUT_OF_MEMORY. The lock is held. */
aura_status aura_cache_alloc(struct aura_call call, aura_cache *cache, size_t bytes, size_t align, void **memory);
void aura_cache_free(aura_cache *cache, void *memory, size_t bytes);

/* Gives every sequence of a list the pages for its `wanted` tokens. Pages that it will write to are its own afterwards, and
 * pages that slide out of the window are given back. All or nothing: where it fails, nothing has changed but, maybe, the
 * capacity of lists. */
aura_status aura_pages_grow(struct aura_call call, aura_cache *cache, struct aura_sequence *list);
/* Promises one sequence the pages for so many tokens. Nothing slides out yet, and pages that will slide out are its own. */
aura_status aura_pages_reserve(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, uint64_t tokens);
/* Gives back what a sequence of its length does not need; the lock is held. Never allocates. */
void aura_pages_trim(aura_cache *cache, struct aura_sequence *seq);
/* Page i of a sequence, its last; pages that it lacks before it are gone. *page is the bytes of a page of the cache, which the
 * sequence then shares, or NULL: a page of its own, with whatever is in it. The lock is held. Fails like aura_cache_alloc(). */
aura_status aura_pages_add(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t i, uint8_t **page);
/* Pages below `end` that others have too become pages of its own, with whatever is in them. The lock is held. Fails, with
 * nothing changed, like aura_cache_alloc(). */
aura_status aura_pages_own(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t end);
/* Pages [begin, end) that others have too become pages of its own, with the same bytes. Fails, with nothing changed, like
 * aura_cache_alloc(). */
aura_status aura_pages_unshare(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t begin, size_t end);
/* The pages [*begin, *end) that are written to when a sequence that is cut to `cut` tokens grows to `tokens`, of those it has. */
void aura_pages_written(const aura_cache *cache, const struct aura_sequence *seq, uint64_t cut, uint64_t tokens, size_t *begin,
                        size_t *end);
/* Memory for the list of a sequence that ends with page end - 1; the lock is held. */
aura_status aura_pages_table(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t end);
/* Brings cache->tokens up to date; the lock is held. */
void aura_count_tokens(aura_cache *cache, struct aura_sequence *seq);
void aura_pool_free(aura_cache *cache);
/* What a cache without a budget allocates until so many pages are in use: *pages becomes how many it then has, and the result is
 * the number of slabs; and for the list of a sequence that ends with page end - 1: bytes. */
size_t aura_slabs_for(const aura_cache *cache, size_t *pages);
size_t aura_list_bytes(const aura_cache *cache, size_t end);

/* ---- seq.c ---- */

/* NULL, with a message, where there is none of that id. */
struct aura_sequence *aura_find_seq(struct aura_call call, const aura_cache *cache, aura_seq id);
/* Makes, and frees, a sequence that no id leads to; it is empty at first. The lock is held. */
aura_status aura_seq_make(struct aura_call call, aura_cache *cache, struct aura_sequence **seq);
void aura_seq_unmake(aura_cache *cache, struct aura_sequence *seq);
/* From now on an id leads to it: *id or, where that is 0, a new one, which is written there. Fails: AURA_OUT_OF_PAGES,
 * AURA_OUT_OF_MEMORY, AURA_TOO_LARGE, AURA_BAD_ARGUMENT (an id that is taken). The lock is held. */
aura_status aura_seq_publish(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, aura_seq *id);
/* From now on none does. The lock is held. */
void aura_seq_withdraw(aura_cache *cache, struct aura_sequence *seq);
/* New ids go on where those of another cache ended: `generation` was its cache->generation. */
void aura_seqs_continue(aura_cache *cache, uint32_t generation);
/* The first of the sequences, as many as fit, or their ids, in the order of their places; returns how many. Either list may be
 * NULL. The lock is held. */
size_t aura_seqs_list(const aura_cache *cache, struct aura_sequence **list, aura_seq *ids, size_t most);
/* aura_seq_create(), aura_seq_fork() and aura_seq_release(), for caches of a model too; *id as for aura_seq_publish(). */
aura_status aura_seq_add(struct aura_call call, aura_cache *cache, aura_seq *id);
aura_status aura_seq_branch(struct aura_call call, aura_cache *cache, aura_seq from, uint64_t tokens, aura_seq *id);
void aura_seq_discard(aura_cache *cache, struct aura_sequence *seq);
/* That a sequence can be cut to so many tokens. */
aura_status aura_check_cut(struct aura_call call, const aura_cache *cache, const struct aura_sequence *seq, uint64_t tokens);
/* aura_truncate() to tokens that can be cut to. */
void aura_seq_cut(aura_cache *cache, struct aura_sequence *seq, uint64_t tokens);
/* That a sequence has these tokens, or had them before they slid out of the window. */
aura_status aura_check_range(struct aura_call call, const struct aura_sequence *seq, uint64_t first, uint64_t tokens);
/* All of them. */
void aura_seqs_free(aura_cache *cache);
/* Bytes of the places of so many sequences. Fails: AURA_TOO_LARGE. */
aura_status aura_places_bytes(struct aura_call call, size_t seqs, size_t *bytes);

/* ---- append.c ---- */

/* A call that appends, in the order of its steps: what can be wrong is, before anything changes; pages; the work, as an item for
 * every KV head of every job, and for pages; and what others see of it. */
struct aura_append {
    aura_cache *cache;
    const aura_append_job *jobs;
    size_t n_jobs;
    struct aura_sequence *list; /* those of the jobs, in their order, with the lengths that are wanted; the check makes it */
    size_t inner; /* pages of the job that has most of those that are items of their own; as well */
};
aura_status aura_append_check(struct aura_call call, struct aura_append *a);
aura_status aura_append_begin(struct aura_call call, const struct aura_append *a); /* all or nothing: aura_pages_grow() */
void aura_append_item(void *append, size_t item); /* the first: job item / kv_heads, KV head item % kv_heads; then those of pages */
void aura_append_run(const struct aura_append *a); /* all items */
void aura_append_end(const struct aura_append *a);

/* One vector of a token to where it comes first: to the tile of a plain side, else, rotated, to its f16 row. x has its balance.
 * x is lost. */
void aura_store_vector(const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head, float *x,
                       int values);
/* Encodes what there is to encode when a head, of which tokens below `closed` are, has grown by one to `len`; returns the new
 * `closed`. */
uint64_t aura_close_tokens(const aura_cache *cache, const struct aura_sequence *seq, uint32_t head, uint64_t closed, uint64_t len);

/* ---- decode.c ---- */

/* One vector in model space, as attention sees it, with zeros up to the dim that is stored. */
void aura_decode_vector(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head,
                        int values);

/* ---- merge.c ---- */

/* out and *lse = n results part[n][dim] over different keys, with their lse[n], joined in that order. 1: the row is not finite in
 * the type of the output, and NaN now. */
int aura_merge_row(float *out, float *out_lse, const float *const *part, const float *lse, size_t n, uint32_t dim,
                   aura_dtype dtype);

/* ---- edit.c ---- */

/* What is to be done to a sequence: tokens [first, first + cut) go; then the keys of tokens [first, end) are mapped. */
struct aura_edit {
    uint64_t first, cut, end;
    int all;  /* 1: end is that of the sequence, without what goes */
    int maps; /* 0: no key is mapped */
    aura_map_key_fn *map;
    void *user;
};
/* In all these caches, layers `first`, `first` + 1 ... of a model, or in none. */
aura_status aura_edit_layers(struct aura_call call, aura_cache *const *layers, uint32_t n, uint32_t first, aura_seq id,
                             const struct aura_edit *what);

/* ---- slots.c ---- */

/* All pages of a cache of slots, empty. */
aura_status aura_slots_make(struct aura_call call, aura_cache *cache);
/* That the cache has slots, and these. */
aura_status aura_check_slots(struct aura_call call, const aura_cache *cache, const uint64_t *slot, uint32_t tokens);

/* ---- what a sequence has ---- */

/* That tokens [first, end) have not slid out of the window. */
static inline int aura_tokens_exist(const aura_cache *cache, const struct aura_sequence *seq, uint64_t first, uint64_t end)
{
    return aura_window_has(&cache->window, seq->pages.first, first, end);
}

/* Tokens below have no f16 rows, but for the pinned ones. */
static inline uint64_t aura_settled_of(const struct aura_sequence *seq)
{
    return aura_settled(seq->len, seq->closed, seq->k || seq->v);
}

static inline int aura_has_pinned(const aura_cache *cache, const struct aura_sequence *seq)
{
    return cache->pinned && (seq->k || seq->v);
}

/* Tokens below this are codes when the sequence has grown to `len`; those below `closed` were before. */
uint64_t aura_closed_of(const aura_cache *cache, uint64_t closed, uint64_t len);

/* ---- pages ---- */

static inline struct aura_page_head *aura_page_head(uint8_t *page)
{
    return (struct aura_page_head *)(void *)(page - AURA_PAGE_HEAD);
}

/* Of the first `pages` pages of a sequence, how many are in its list; of a page that is there, its place. */
static inline size_t aura_listed_pages(const aura_cache *cache, const struct aura_sequence *seq, size_t pages)
{
    return cache->ranks ? (size_t)aura_pages_of_rank(pages, seq->shift, cache->rank, cache->ranks) : pages;
}

/* The bytes of a page that is there. */
static inline uint8_t *aura_page_of(const aura_cache *cache, const struct aura_sequence *seq, size_t page)
{
    return (uint8_t *)aura_list_page(&cache->window, &seq->pages, aura_listed_pages(cache, seq, page)) + AURA_PAGE_HEAD;
}

/* Whether a page is not one of another rank. */
static inline int aura_is_here(const aura_cache *cache, const struct aura_sequence *seq, uint64_t page)
{
    return !cache->ranks || aura_rank_of_page(page, seq->shift, cache->ranks) == cache->rank;
}

/* Whether a page below the end of the sequence is there. */
static inline int aura_has_page(const aura_cache *cache, const struct aura_sequence *seq, size_t page)
{
    return aura_window_has_page(&cache->window, seq->pages.first, page) && aura_is_here(cache, seq, page);
}

/* This page or, where it is another rank's, the next that is not. */
static inline uint64_t aura_page_here(const aura_cache *cache, const struct aura_sequence *seq, uint64_t page)
{
    return cache->ranks ? aura_next_page_of_rank(page, seq->shift, cache->rank, cache->ranks) : page;
}

/* for (p = aura_first_page(); p < end; p = aura_next_page()): the pages that are there. */
static inline size_t aura_first_page(const aura_cache *cache, const struct aura_sequence *seq)
{
    return (size_t)aura_page_here(cache, seq, aura_window_begin(&cache->window, seq->pages.first));
}

static inline size_t aura_next_page(const aura_cache *cache, const struct aura_sequence *seq, size_t page)
{
    return (size_t)aura_page_here(cache, seq, aura_window_next(&cache->window, seq->pages.first, page));
}

/* The part of a page that belongs to a KV head, and a tile of it. */
static inline uint8_t *aura_head_of(const aura_cache *cache, const struct aura_sequence *seq, size_t page, uint32_t head)
{
    return aura_page_of(cache, seq, page) + (size_t)head * cache->layout.head_bytes;
}

static inline uint8_t *aura_tile_of(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t head)
{
    return aura_head_of(cache, seq, (size_t)(tile / AURA_PAGE_TILES), head) +
           (size_t)(tile % AURA_PAGE_TILES) * cache->layout.tile_bytes;
}

/* The f16 row of a token that is pinned or open. `rows` is k or v of the sequence. */
static inline uint16_t *aura_row_of(const aura_cache *cache, uint16_t *rows, uint32_t dim, uint32_t head, uint64_t token)
{
    return rows + ((size_t)head * cache->rows + aura_ring_row(token, cache->pinned, cache->rows)) * dim;
}

static inline int aura_has_reference(const aura_cache *cache, uint64_t closed, uint64_t page)
{
    return aura_keeps_references(cache->layout.k.kind, cache->config.flags) && aura_page_has_reference(closed, page, cache->pinned);
}

#endif
