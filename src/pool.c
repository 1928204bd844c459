/* The memory of a cache. Pages come in slabs: each has as many as there are already, so that a small cache stays small, up
 * to about 16 MiB; from 2 MiB on they are aligned so that the system can back them with huge pages. A slab is never given
 * back before the cache is. */
#include "exact.h"
#include "cache.h"

#include <string.h>

enum { SLAB_TAIL = 64 }; /* bytes after the pages of a slab: the next slab, and its own size */

aura_status aura_cache_alloc(struct aura_call call, aura_cache *cache, size_t bytes, size_t align, void **memory)
{
    const aura_allocator *a = &cache->ctx->allocator;
    size_t budget = cache->config.budget_bytes;
    if (budget && (cache->bytes > budget || bytes > budget - cache->bytes))
        return aura_fail(call.ctx, AURA_OUT_OF_PAGES,
                         "%s: the budget of %zu bytes has no %zu left; release or truncate sequences, or raise it",
                         call.name, budget, bytes);
    *memory = a->alloc(a->user, bytes, align);
    if (!*memory)
        return aura_fail(call.ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name, bytes);
    cache->bytes += bytes;
    return AURA_OK;
}

void aura_cache_free(aura_cache *cache, void *memory, size_t bytes)
{
    const aura_allocator *a = &cache->ctx->allocator;
    if (!memory)
        return;
    a->free(a->user, memory, bytes);
    cache->bytes -= bytes;
}

static void push(uint8_t **list, uint8_t *item)
{
    memcpy(item, list, sizeof *list);
    *list = item;
}

static uint8_t *pop(uint8_t **list)
{
    uint8_t *item = *list;
    memcpy(list, item, sizeof *list);
    return item;
}

/* One more slab, as large as all others together, smaller where the budget ends. */
static aura_status add_slab(struct aura_call call, aura_cache *cache)
{
    size_t pages = cache->pages < cache->slab_pages ? cache->pages : cache->slab_pages, budget = cache->config.budget_bytes;
    size_t left = budget > cache->bytes + SLAB_TAIL ? (budget - cache->bytes - SLAB_TAIL) / cache->page_bytes : 0;
    void *memory;
    if (budget && left < pages)
        pages = left;
    if (!pages)
        pages = 1;
    size_t bytes = pages * cache->page_bytes;
    aura_status status = aura_cache_alloc(call, cache, bytes + SLAB_TAIL, bytes >= 2 << 20 ? 2 << 20 : 4096, &memory);
    if (status)
        return status;
    uint8_t *slab = memory, *tail = slab + bytes;
    memcpy(tail + sizeof tail, &slab, sizeof slab);
    memcpy(tail + 2 * sizeof tail, &bytes, sizeof bytes);
    push(&cache->slabs, tail);
    for (size_t i = pages; i-- > 0;)
        push(&cache->free_page, slab + i * cache->page_bytes);
    cache->pages += pages;
    cache->free_pages += pages;
    return AURA_OK;
}

void aura_pool_free(aura_cache *cache)
{
    while (cache->slabs) {
        uint8_t *tail = pop(&cache->slabs), *slab;
        size_t bytes;
        memcpy(&slab, tail + sizeof tail, sizeof slab);
        memcpy(&bytes, tail + 2 * sizeof tail, sizeof bytes);
        aura_cache_free(cache, slab, bytes + SLAB_TAIL);
    }
}

static aura_status grow_table(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t pages)
{
    size_t capacity = seq->capacity ? seq->capacity : 16;
    void *table;
    while (capacity < pages)
        capacity *= 2;
    if (capacity == seq->capacity)
        return AURA_OK;
    aura_status status = aura_cache_alloc(call, cache, capacity * sizeof *seq->page, 64, &table);
    if (status)
        return status;
    if (seq->n_pages)
        memcpy(table, seq->page, seq->n_pages * sizeof *seq->page);
    aura_cache_free(cache, seq->page, seq->capacity * sizeof *seq->page);
    seq->page = table;
    seq->capacity = capacity;
    return AURA_OK;
}

static void give(aura_cache *cache, struct aura_sequence *seq, size_t keep)
{
    for (; seq->n_pages > keep; cache->free_pages++)
        push(&cache->free_page, seq->page[--seq->n_pages]);
}

aura_status aura_pages_take(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, uint64_t tokens,
                            size_t *before)
{
    size_t pages = tokens > UINT64_MAX / 2 ? SIZE_MAX : aura_pages_of(tokens);
    aura_status status = AURA_OK;
    *before = seq->n_pages;
    if (pages <= seq->n_pages)
        return AURA_OK;
    if (pages > SIZE_MAX / 4 / cache->page_bytes)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %llu tokens do not fit in memory", call.name,
                         (unsigned long long)tokens);
    pthread_mutex_lock(&cache->lock);
    status = grow_table(call, cache, seq, pages);
    while (!status && seq->n_pages < pages) {
        if (!cache->free_page)
            status = add_slab(call, cache);
        if (status)
            break;
        seq->page[seq->n_pages++] = pop(&cache->free_page);
        cache->free_pages--;
    }
    if (status)
        give(cache, seq, *before);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void aura_pages_give(aura_cache *cache, struct aura_sequence *seq, size_t keep)
{
    pthread_mutex_lock(&cache->lock);
    give(cache, seq, keep);
    pthread_mutex_unlock(&cache->lock);
}
