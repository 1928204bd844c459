/* The memory of a cache. Pages come in slabs: each has as many as there are already, so that a small cache stays small, up
 * to about 16 MiB; from 2 MiB on they are aligned so that the system can back them with huge pages. A slab of which no page
 * is in use is given back when the budget has nothing left for something else, be it of another layer of the model.
 *
 * Sequences share pages. Who is to write to a page that others have too gets a copy first, and drops its reference after
 * that, all under the lock: one that finds itself alone with a page may write to it without asking. */
#include "../base/exact.h"
#include "model.h"

#include <string.h>

enum { SLAB_TAIL = 64 }; /* bytes after the pages of a slab: the next slab, and its own size */

int aura_budget_take(struct aura_budget *budget, size_t bytes)
{
    size_t used = atomic_load(&budget->bytes);
    do {
        if (budget->limit && (used > budget->limit || bytes > budget->limit - used))
            return 0;
    } while (!atomic_compare_exchange_weak(&budget->bytes, &used, used + bytes)); /* other layers have other locks */
    return 1;
}

/* Memory that was taken out of the budget. */
static aura_status allocate(struct aura_call call, aura_cache *cache, size_t bytes, size_t align, void **memory)
{
    const aura_allocator *a = &cache->ctx->allocator;
    *memory = a->alloc(a->user, bytes, align);
    if (!*memory) {
        atomic_fetch_sub(&cache->budget->bytes, bytes);
        return aura_fail(call.ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name, bytes);
    }
    cache->bytes += bytes;
    return AURA_OK;
}

static aura_status fail_budget(struct aura_call call, const aura_cache *cache, size_t bytes)
{
    return aura_fail(call.ctx, AURA_OUT_OF_PAGES,
                     "%s: the budget of %zu bytes has no %zu left; release or truncate sequences, or raise it", call.name,
                     cache->budget->limit, bytes);
}

void aura_cache_free(aura_cache *cache, void *memory, size_t bytes)
{
    const aura_allocator *a = &cache->ctx->allocator;
    if (!memory)
        return;
    a->free(a->user, memory, bytes);
    cache->bytes -= bytes;
    atomic_fetch_sub(&cache->budget->bytes, bytes);
}

static uint8_t *pop(uint8_t **list)
{
    uint8_t *item = *list;
    memcpy(list, item, sizeof *list);
    return item;
}

static void push(uint8_t **list, uint8_t *item)
{
    memcpy(item, list, sizeof *list);
    *list = item;
}

/* ---- single pages ------------------------------------------------------------------------------------------------- */

static void page_free(aura_cache *cache, uint8_t *page)
{
    aura_page_head(page)->next = cache->free_page;
    cache->free_page = page;
    cache->free_pages++;
}

/* There is one. */
static uint8_t *page_take(aura_cache *cache)
{
    uint8_t *page = cache->free_page;
    cache->free_page = aura_page_head(page)->next;
    cache->free_pages--;
    aura_page_head(page)->references = 1;
    cache->references++;
    return page;
}

static void page_leave(aura_cache *cache, uint8_t *page)
{
    uint32_t left = --aura_page_head(page)->references;
    cache->references--;
    if (left == 1)
        cache->shared_pages--;
    if (left == 0)
        page_free(cache, page);
}

uint8_t *aura_page_share(aura_cache *cache, uint8_t *page)
{
    cache->references++;
    if (aura_page_head(page)->references++ == 1)
        cache->shared_pages++;
    return page;
}

/* ---- slabs -------------------------------------------------------------------------------------------------------- */

/* What stands after the pages of a slab: the next slab, where this one begins, the bytes of its pages. */
static uint8_t *slab_of(const uint8_t *tail, size_t *bytes)
{
    uint8_t *slab;
    memcpy(&slab, tail + sizeof tail, sizeof slab);
    memcpy(bytes, tail + 2 * sizeof tail, sizeof *bytes);
    return slab;
}

void aura_pool_free(aura_cache *cache)
{
    while (cache->slabs) {
        size_t bytes;
        uint8_t *slab = slab_of(pop(&cache->slabs), &bytes);
        aura_cache_free(cache, slab, bytes + SLAB_TAIL);
    }
}

static size_t count_free(const uint8_t *slab, size_t bytes, size_t stride)
{
    size_t n = 0;
    for (size_t at = AURA_PAGE_HEAD; at < bytes; at += stride)
        n += aura_page_head((uint8_t *)slab + at)->references == 0;
    return n;
}

/* Gives back the slabs of which no page is in use. The lock is held. */
static void trim_slabs(aura_cache *cache)
{
    size_t stride = AURA_PAGE_HEAD + cache->page_bytes, bytes;
    uint8_t *list = cache->free_pages ? cache->slabs : NULL;
    if (!list)
        return;
    cache->slabs = cache->free_page = NULL;
    cache->free_pages = 0;
    while (list) {
        uint8_t *tail = pop(&list), *slab = slab_of(tail, &bytes);
        if (count_free(slab, bytes, stride) == bytes / stride) {
            cache->pages -= bytes / stride;
            aura_cache_free(cache, slab, bytes + SLAB_TAIL);
            continue;
        }
        push(&cache->slabs, tail);
        for (size_t at = AURA_PAGE_HEAD; at < bytes; at += stride)
            if (aura_page_head(slab + at)->references == 0)
                page_free(cache, slab + at);
    }
}

/* The same in the other layers of the model, whose budget is this one's too. A layer that somebody is at work in is left
 * alone: two that waited for each other would wait for ever. */
static void trim_others(aura_cache *cache)
{
    struct aura_model_cache *model = cache->model;
    for (uint32_t i = 0; model && i < model->layers; i++) {
        aura_cache *other = model->layer[i];
        if (!other || other == cache || pthread_mutex_trylock(&other->lock))
            continue;
        trim_slabs(other);
        pthread_mutex_unlock(&other->lock);
    }
}

aura_status aura_cache_alloc(struct aura_call call, aura_cache *cache, size_t bytes, size_t align, void **memory)
{
    if (!aura_budget_take(cache->budget, bytes)) {
        trim_slabs(cache);
        trim_others(cache);
        if (!aura_budget_take(cache->budget, bytes))
            return fail_budget(call, cache, bytes);
    }
    return allocate(call, cache, bytes, align, memory);
}

/* Pages of the next slab: as many as all others have together, of slots as many as are wanted, fewer where the budget ends;
 * at least 1. */
static size_t slab_size(const aura_cache *cache, size_t wanted)
{
    size_t pages = cache->config.slots ? wanted : cache->pages, budget = cache->budget->limit;
    size_t used = atomic_load(&cache->budget->bytes) + SLAB_TAIL;
    size_t left = budget > used ? (budget - used) / (AURA_PAGE_HEAD + cache->page_bytes) : 0;
    if (pages > cache->slab_pages)
        pages = cache->slab_pages;
    if (budget && left < pages)
        pages = left;
    return pages ? pages : 1;
}

static int has_room(aura_cache *cache, size_t pages)
{
    size_t limit = cache->budget->limit, used = atomic_load(&cache->budget->bytes);
    return !limit || !pages || (used < limit && pages <= (limit - used) / (AURA_PAGE_HEAD + cache->page_bytes));
}

static aura_status add_slab(struct aura_call call, aura_cache *cache, size_t wanted)
{
    size_t stride = AURA_PAGE_HEAD + cache->page_bytes, pages = slab_size(cache, wanted);
    void *memory;
    while (!aura_budget_take(cache->budget, pages * stride + SLAB_TAIL)) { /* another layer may have been faster */
        if (pages == 1)
            return fail_budget(call, cache, stride + SLAB_TAIL);
        pages = slab_size(cache, wanted);
    }
    size_t bytes = pages * stride;
    aura_status status = allocate(call, cache, bytes + SLAB_TAIL, bytes >= 2 << 20 ? 2 << 20 : 4096, &memory);
    if (status)
        return status;
    uint8_t *slab = memory, *tail = slab + bytes;
    memcpy(tail + sizeof tail, &slab, sizeof slab);
    memcpy(tail + 2 * sizeof tail, &bytes, sizeof bytes);
    push(&cache->slabs, tail);
    for (size_t i = pages; i-- > 0;) {
        memset(slab + i * stride, 0, AURA_PAGE_HEAD);
        page_free(cache, slab + i * stride + AURA_PAGE_HEAD);
    }
    cache->pages += pages;
    return AURA_OK;
}

/* Makes sure that the budget has room for so many pages more: a call that cannot have all should not begin to take some. */
static aura_status make_room(struct aura_call call, aura_cache *cache, size_t pages)
{
    if (!has_room(cache, pages))
        trim_others(cache);
    if (!has_room(cache, pages))
        return fail_budget(call, cache, pages * (AURA_PAGE_HEAD + cache->page_bytes));
    return AURA_OK;
}

/* So many pages more. Where they end in the middle, because of another layer or the allocator, they are given back. */
static aura_status add_slabs(struct aura_call call, aura_cache *cache, size_t pages)
{
    aura_status status = make_room(call, cache, pages);
    for (size_t end = cache->free_pages + pages; !status && cache->free_pages < end;)
        status = add_slab(call, cache, end - cache->free_pages);
    if (status)
        trim_slabs(cache);
    return status;
}

aura_status aura_page_new(struct aura_call call, aura_cache *cache, uint8_t **page)
{
    aura_status status = cache->free_page ? AURA_OK : add_slabs(call, cache, 1);
    if (!status)
        *page = page_take(cache);
    return status;
}

/* ---- the pages of a sequence --------------------------------------------------------------------------------------- */

aura_status aura_pages_table(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t end)
{
    size_t capacity = seq->capacity ? seq->capacity : 16;
    size_t needed = end <= cache->kept ? end : cache->kept + (end - 1 <= cache->ring_mask ? end : cache->ring_mask + 1);
    void *table;
    while (capacity < needed)
        capacity *= 2;
    if (capacity == seq->capacity)
        return AURA_OK;
    aura_status status = aura_cache_alloc(call, cache, capacity * sizeof *seq->page, 64, &table);
    if (status)
        return status;
    memset(table, 0, capacity * sizeof *seq->page);
    if (seq->capacity)
        memcpy(table, seq->page, seq->capacity * sizeof *seq->page);
    aura_cache_free(cache, seq->page, seq->capacity * sizeof *seq->page);
    seq->page = table;
    seq->capacity = capacity;
    return AURA_OK;
}

void aura_pages_drop(aura_cache *cache, struct aura_sequence *seq, size_t from, size_t to)
{
    for (size_t p = aura_has_page(cache, seq, from) ? from : seq->first; p < to; p = aura_next_page(cache, seq, p))
        page_leave(cache, aura_page_of(cache, seq, p));
}

void aura_count_tokens(aura_cache *cache, struct aura_sequence *seq)
{
    uint64_t gone = (uint64_t)(seq->first - cache->kept) * AURA_PAGE;
    cache->tokens += seq->len - gone - seq->counted; /* modulo 2^64 */
    seq->counted = seq->len - gone;
}

/* One past the last page of a sequence whose pages begin at `first`, with what is reserved. */
static size_t end_of(const aura_cache *cache, size_t first, uint64_t tokens, size_t reserved)
{
    size_t needed = aura_pages_of(tokens), promised = reserved <= cache->kept ? reserved : first + (reserved - cache->kept);
    return needed > promised ? needed : promised;
}

void aura_pages_trim(aura_cache *cache, struct aura_sequence *seq)
{
    if (seq->first > cache->kept && aura_pages_of(seq->len) <= cache->kept) { /* begin the ring again */
        aura_pages_drop(cache, seq, seq->first, seq->end);
        seq->first = seq->end = cache->kept;
    }
    size_t end = end_of(cache, seq->first, seq->len, seq->reserved);
    if (end < seq->end)
        aura_pages_drop(cache, seq, end, seq->end);
    for (; seq->end < end && cache->free_page; seq->end++)
        seq->page[aura_entry_of(cache, seq->end)] = page_take(cache);
    seq->end = end < seq->end ? end : seq->end;
    aura_count_tokens(cache, seq);
}

/* ---- growing ------------------------------------------------------------------------------------------------------- */

/* What is to become of the pages of a sequence: [first, end) and, of those that it has, [own, own_end) its own. */
struct change {
    size_t first, end, own, own_end;
};

/* The first page, after those that are kept, that a sequence of so many tokens needs. */
static size_t first_of(const aura_cache *cache, uint64_t tokens)
{
    uint64_t span = cache->config.window + cache->slack;
    size_t first = cache->config.window && tokens > span ? (size_t)((tokens - span) / AURA_PAGE) : 0;
    return first > cache->kept ? first : cache->kept;
}

/* Pages that are written to when a sequence grows to so many tokens: those of tokens that are encoded and, of plain sides,
 * those of new tokens. The two are at most a page apart. */
static void written_pages(struct change *c, const aura_cache *cache, const struct aura_sequence *seq, uint64_t tokens)
{
    uint64_t closed = seq->closed > cache->pinned ? seq->closed : cache->pinned;
    uint64_t end = seq->k || seq->v ? aura_closed_of(cache, seq->closed, tokens) : 0;
    int plain = (!seq->k || !seq->v) && tokens > seq->len;
    c->own = c->own_end = 0;
    if (end > closed) {
        c->own = (size_t)(closed / AURA_PAGE);
        c->own_end = aura_pages_of(end);
    }
    if (plain) {
        c->own = end > closed ? c->own : (size_t)(seq->len / AURA_PAGE);
        c->own_end = aura_pages_of(tokens);
    }
    c->own_end = c->own_end < seq->end ? c->own_end : seq->end;
}

static struct change growth_of(const aura_cache *cache, const struct aura_sequence *seq)
{
    struct change c;
    size_t first = first_of(cache, seq->wanted), end;
    c.first = first > seq->first ? first : seq->first;
    end = end_of(cache, c.first, seq->wanted, seq->reserved);
    c.end = end > seq->end ? end : seq->end;
    written_pages(&c, cache, seq, seq->wanted);
    if (c.own >= cache->kept && c.own < c.first)
        c.own = c.first;
    return c;
}

static struct change reservation_of(const aura_cache *cache, const struct aura_sequence *seq, size_t reserved)
{
    struct change c;
    size_t end = end_of(cache, seq->first, 0, reserved);
    c.first = seq->first;
    c.end = end > seq->end ? end : seq->end;
    written_pages(&c, cache, seq, seq->wanted);
    if (first_of(cache, seq->wanted) > seq->first) { /* shared pages that slide out would leave nothing to write to */
        c.own = c.own_end && c.own < seq->first ? c.own : seq->first;
        c.own_end = seq->end;
    }
    return c;
}

static struct change change_of(const aura_cache *cache, const struct aura_sequence *seq, size_t reserved)
{
    return reserved ? reservation_of(cache, seq, reserved) : growth_of(cache, seq);
}

/* How many pages must come from slabs. The order is that of carry_out(), and so is what is shared at each step. */
static size_t pages_wanted(aura_cache *cache, struct aura_sequence *list, size_t reserved)
{
    size_t wanted = 0, freed = 0;
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct change c = change_of(cache, seq, reserved);
        for (size_t p = seq->first; p < c.first; p++) {
            struct aura_page_head *head = aura_page_head(aura_page_of(cache, seq, p));
            freed += ++head->leaving == head->references;
        }
    }
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct change c = change_of(cache, seq, reserved);
        wanted += c.end - seq->end;
        for (size_t p = c.own; p < c.own_end; p++) {
            struct aura_page_head *head = aura_page_head(aura_page_of(cache, seq, p));
            if (head->references - head->leaving > 1)
                head->leaving++, wanted++;
        }
    }
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct change c = change_of(cache, seq, reserved);
        for (size_t p = seq->first; p < c.first; p++)
            aura_page_head(aura_page_of(cache, seq, p))->leaving = 0;
        for (size_t p = c.own; p < c.own_end; p++)
            aura_page_head(aura_page_of(cache, seq, p))->leaving = 0;
    }
    return wanted > freed + cache->free_pages ? wanted - freed - cache->free_pages : 0;
}

/* A page of its own instead of one that is shared, with the same bytes where any of them mean something. */
static void own_page(aura_cache *cache, struct aura_sequence *seq, size_t p)
{
    uint8_t **entry = &seq->page[aura_entry_of(cache, p)], *shared = *entry;
    uint64_t first = (uint64_t)p * AURA_PAGE;
    if (aura_page_head(shared)->references == 1)
        return;
    *entry = page_take(cache);
    if (seq->closed > first || ((!seq->k || !seq->v) && seq->len > first))
        memcpy(*entry, shared, cache->page_bytes);
    page_leave(cache, shared); /* only now may others write to it */
}

static void carry_out(aura_cache *cache, struct aura_sequence *list, size_t reserved)
{
    for (struct aura_sequence *seq = list; seq; seq = seq->next)
        aura_pages_drop(cache, seq, seq->first, change_of(cache, seq, reserved).first);
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct change c = change_of(cache, seq, reserved);
        for (size_t p = c.own; p < c.own_end; p++)
            own_page(cache, seq, p);
        for (seq->first = c.first; seq->end < c.end; seq->end++)
            seq->page[aura_entry_of(cache, seq->end)] = page_take(cache);
    }
}

static aura_status grow(struct aura_call call, aura_cache *cache, struct aura_sequence *list, size_t reserved)
{
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        size_t end = seq->wanted > UINT64_MAX / 2 ? SIZE_MAX : change_of(cache, seq, reserved).end;
        if (aura_count_pages(cache, seq) + (end - seq->end) > SIZE_MAX / 4 / (AURA_PAGE_HEAD + cache->page_bytes))
            return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %llu tokens do not fit in memory", call.name,
                             (unsigned long long)seq->wanted);
    }
    aura_status status = make_room(call, cache, pages_wanted(cache, list, reserved));
    for (struct aura_sequence *seq = list; seq && !status; seq = seq->next)
        status = aura_pages_table(call, cache, seq, change_of(cache, seq, reserved).end);
    if (!status)
        status = add_slabs(call, cache, pages_wanted(cache, list, reserved)); /* tables may have taken free ones */
    if (!status)
        carry_out(cache, list, reserved);
    return status;
}

aura_status aura_pages_grow(struct aura_call call, aura_cache *cache, struct aura_sequence *list)
{
    pthread_mutex_lock(&cache->lock);
    aura_status status = grow(call, cache, list, 0);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

aura_status aura_pages_reserve(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, uint64_t tokens)
{
    size_t most = cache->ring == SIZE_MAX ? SIZE_MAX : cache->kept + cache->ring;
    size_t pages = tokens > UINT64_MAX / 2 ? SIZE_MAX : aura_pages_of(tokens), reserved = pages < most ? pages : most;
    if (!tokens)
        return AURA_OK;
    seq->next = NULL;
    seq->wanted = tokens;
    pthread_mutex_lock(&cache->lock);
    aura_status status = grow(call, cache, seq, reserved);
    pthread_mutex_unlock(&cache->lock);
    if (!status && reserved > seq->reserved)
        seq->reserved = reserved;
    return status;
}
