/* The cache: what it is made of. cache.c makes and describes it, pool.c owns its memory, append.c writes tiles, decode.c
 * reads them back, attend.c attends. */
#ifndef AURA_CACHE_H
#define AURA_CACHE_H

#include <pthread.h>
#include <stdatomic.h>

#include "border.h"

enum {
    AURA_RING = 64,      /* f16 rows per head and sequence: up to 32 open tokens of a tile, and 32 of rollback */
    AURA_SEQ_CHUNKS = 15 /* of 64, 128, 256 ... sequences: 2^21 in all */
};

/* One side of the codec. */
struct aura_codec_side {
    struct aura_rotation_plan turn, undo;
    struct aura_codec_plan codec;
};

/* A sequence. Token t is in page t / 256. Tokens below `pinned` of the cache and from `closed` on are f16 rows, all others
 * are codes; a plain side is in the pages alone. */
struct aura_sequence {
    uint64_t len, closed;
    uint8_t **page;      /* [capacity], n_pages of them owned */
    size_t n_pages, capacity;
    size_t reserved;     /* pages that truncate must leave */
    aura_seq id;
    uint16_t *k, *v;     /* [kv_heads][rows][dim]: open tokens by their position modulo 64, then the pinned ones */
};

struct aura_cache {
    aura_ctx *ctx;
    aura_config config;  /* with the defaults filled in */
    struct aura_layout layout;
    struct aura_codec_side k, v;
    struct aura_codec_plan reference_codec;
    float *balance, *inverse_balance; /* [kv_heads][k_dim], or NULL */
    uint32_t pinned, rollback, rows;  /* rows: f16 rows per head of a sequence */
    size_t page_bytes, seq_bytes;
    size_t slab_pages;   /* at most so many come at once */

    pthread_mutex_t lock; /* of everything below, and nothing above */
    size_t bytes;         /* allocated, this struct included */
    uint8_t *free_page;   /* a list through the first bytes of the pages */
    uint8_t *slabs;       /* a list through the last bytes of the slabs */
    size_t pages, free_pages, seqs;
    uint32_t next_seq;    /* where a free place is looked for first */
    uint32_t generation;  /* of the last id */
    _Atomic(_Atomic(struct aura_sequence *) *) chunk[AURA_SEQ_CHUNKS];
};

/* ---- pool.c: every byte that a cache allocates is counted, and none beyond its budget ---- */

/* Fails with AURA_OUT_OF_PAGES or AURA_OUT_OF_MEMORY. The lock is held. */
aura_status aura_cache_alloc(struct aura_call call, aura_cache *cache, size_t bytes, size_t align, void **memory);
void aura_cache_free(aura_cache *cache, void *memory, size_t bytes);

/* Gives the sequence pages for `tokens` tokens; *before is how many it had. Fails with nothing changed but, maybe, the
 * capacity of its page table. */
aura_status aura_pages_take(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, uint64_t tokens,
                            size_t *before);
/* Gives back all pages but the first `keep`. Never allocates. */
void aura_pages_give(aura_cache *cache, struct aura_sequence *seq, size_t keep);
void aura_pool_free(aura_cache *cache);

/* ---- sequences ---- */

/* NULL, with a message, where there is none of that id. */
struct aura_sequence *aura_find_seq(struct aura_call call, const aura_cache *cache, aura_seq id);

static inline size_t aura_pages_of(uint64_t tokens)
{
    return (size_t)((tokens + AURA_PAGE - 1) / AURA_PAGE);
}

/* The part of a page that belongs to a KV head, and a tile of it. */
static inline uint8_t *aura_head_of(const aura_cache *cache, const struct aura_sequence *seq, size_t page, uint32_t head)
{
    return seq->page[page] + (size_t)head * cache->layout.head_bytes;
}

static inline uint8_t *aura_tile_of(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t head)
{
    return aura_head_of(cache, seq, (size_t)(tile / AURA_PAGE_TILES), head) +
           (size_t)(tile % AURA_PAGE_TILES) * cache->layout.tile_bytes;
}

/* The f16 row of a token that is pinned or open. `rows` is k or v of the sequence. */
static inline uint16_t *aura_row_of(const aura_cache *cache, uint16_t *rows, uint32_t dim, uint32_t head, uint64_t token)
{
    size_t ring = cache->rows - cache->pinned;
    size_t row = (size_t)(token < cache->pinned ? ring + token : token % ring);
    return rows + ((size_t)head * cache->rows + row) * dim;
}

/* A page has a reference from the moment its first unpinned token is encoded; its bytes mean nothing before. */
static inline int aura_has_reference(const aura_cache *cache, uint64_t closed, uint64_t page)
{
    uint64_t first = page * AURA_PAGE > cache->pinned ? page * AURA_PAGE : cache->pinned;
    return aura_is_packed(cache->layout.k.kind) && !(cache->config.flags & AURA_NO_REFERENCE) && closed > first;
}

/* The reference as numbers. */
void aura_load_reference(float *r, const aura_cache *cache, const uint8_t *head);

#endif
