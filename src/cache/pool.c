/* The memory of a cache. Pages come in slabs: each has as many as there are already, so that a small cache stays small, up
 * to about 16 MiB; from 2 MiB on they are aligned so that the system can back them with huge pages. A slab of which no page
 * is in use is given back when the budget has nothing left for something else, be it of another layer of the model.
 *
 * Whose pages are whose is in page_table.h. Everything that it changes, pool.c changes under the lock: a sequence that is to
 * write to a shared page gets a copy and then leaves the page, in one go. So the only holder of a page may write to it
 * without asking. */
#include "../base/exact.h"
#include "model.h"

#include <string.h>

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
        aura_cache_free(cache, slab, bytes + AURA_SLAB_TAIL);
    }
}

static size_t count_free(const uint8_t *slab, size_t bytes, size_t stride)
{
    size_t n = 0;
    for (size_t at = AURA_PAGE_HEAD; at < bytes; at += stride)
        n += aura_page_head((uint8_t *)slab + at)->page.holders == 0;
    return n;
}

/* Gives back the slabs of which no page is in use. The lock is held. */
static void trim_slabs(aura_cache *cache)
{
    size_t stride = AURA_PAGE_HEAD + cache->page_bytes, bytes;
    uint8_t *list = cache->pool.n_free ? cache->slabs : NULL;
    if (!list)
        return;
    cache->slabs = NULL;
    cache->pool.free = NULL;
    cache->pool.n_free = 0;
    while (list) {
        uint8_t *tail = pop(&list), *slab = slab_of(tail, &bytes);
        if (count_free(slab, bytes, stride) == bytes / stride) {
            cache->pages -= bytes / stride;
            aura_cache_free(cache, slab, bytes + AURA_SLAB_TAIL);
            continue;
        }
        push(&cache->slabs, tail);
        for (size_t at = AURA_PAGE_HEAD; at < bytes; at += stride)
            if (aura_page_head(slab + at)->page.holders == 0)
                aura_page_free(&cache->pool, &aura_page_head(slab + at)->page);
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

/* Pages of the next slab of a cache that has so many: as many as all others have together, of slots as many as are wanted. */
static size_t next_slab(const aura_cache *cache, size_t has, size_t wanted)
{
    size_t pages = cache->config.slots ? wanted : has;
    pages = pages < cache->slab_pages ? pages : cache->slab_pages;
    return pages ? pages : 1;
}

size_t aura_slabs_for(const aura_cache *cache, size_t *pages)
{
    size_t has = 0, slabs = 0;
    while (has < *pages && next_slab(cache, has, *pages - has) < cache->slab_pages) {
        has += next_slab(cache, has, *pages - has);
        slabs++;
    }
    if (has < *pages) { /* from here on all are alike, but for the last one of slots */
        const size_t whole = cache->slab_pages, left = *pages - has;
        const size_t more = cache->config.slots ? left / whole : (left - 1) / whole + 1;
        has += more * whole;
        slabs += more;
        if (has < *pages) {
            has = *pages;
            slabs++;
        }
    }
    *pages = has;
    return slabs;
}

/* The same, fewer where the budget ends; at least 1. */
static size_t slab_size(const aura_cache *cache, size_t wanted)
{
    size_t pages = next_slab(cache, cache->pages, wanted), budget = cache->budget->limit;
    size_t used = atomic_load(&cache->budget->bytes) + AURA_SLAB_TAIL;
    size_t left = budget > used ? (budget - used) / (AURA_PAGE_HEAD + cache->page_bytes) : 0;
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
    while (!aura_budget_take(cache->budget, pages * stride + AURA_SLAB_TAIL)) { /* another layer may have been faster */
        if (pages == 1)
            return fail_budget(call, cache, stride + AURA_SLAB_TAIL);
        pages = slab_size(cache, wanted);
    }
    size_t bytes = pages * stride;
    aura_status status = allocate(call, cache, bytes + AURA_SLAB_TAIL, bytes >= 2 << 20 ? 2 << 20 : 4096, &memory);
    if (status)
        return status;
    uint8_t *slab = memory, *tail = slab + bytes;
    memcpy(tail + sizeof tail, &slab, sizeof slab);
    memcpy(tail + 2 * sizeof tail, &bytes, sizeof bytes);
    push(&cache->slabs, tail);
    for (size_t i = pages; i-- > 0;) {
        memset(slab + i * stride, 0, AURA_PAGE_HEAD);
        aura_page_free(&cache->pool, &aura_page_head(slab + i * stride + AURA_PAGE_HEAD)->page);
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
    if (cache->ctx->memory && pages > cache->ctx->memory / (AURA_PAGE_HEAD + cache->page_bytes))
        return aura_fail(call.ctx, AURA_OUT_OF_MEMORY, "%s: %zu pages of %zu bytes are more than this machine has", call.name,
                         pages, cache->page_bytes);
    return AURA_OK;
}

/* So many pages more. Where they end in the middle, because of another layer or the allocator, they are given back. */
static aura_status add_slabs(struct aura_call call, aura_cache *cache, size_t pages)
{
    aura_status status = make_room(call, cache, pages);
    for (size_t end = cache->pool.n_free + pages; !status && cache->pool.n_free < end;)
        status = add_slab(call, cache, end - cache->pool.n_free);
    if (status)
        trim_slabs(cache);
    return status;
}

/* ---- the pages of a sequence --------------------------------------------------------------------------------------- */

/* Entries of a list that had `capacity`, and must end with page end - 1. */
static size_t capacity_for(const aura_cache *cache, size_t capacity, size_t end)
{
    const size_t needed = aura_window_entries(&cache->window, end);
    capacity = capacity ? capacity : 16;
    while (capacity < needed)
        capacity *= 2;
    return capacity;
}

size_t aura_list_bytes(const aura_cache *cache, size_t end)
{
    return end ? capacity_for(cache, 0, end) * sizeof(struct aura_page *) : 0;
}

aura_status aura_pages_table(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t end)
{
    struct aura_page_list *list = &seq->pages;
    const size_t capacity = capacity_for(cache, list->capacity, end);
    void *memory;
    if (capacity == list->capacity)
        return AURA_OK;
    aura_status status = aura_cache_alloc(call, cache, capacity * sizeof *list->page, 64, &memory);
    if (status)
        return status;
    memset(memory, 0, capacity * sizeof *list->page);
    if (list->capacity)
        memcpy(memory, (void *)list->page, list->capacity * sizeof *list->page);
    aura_cache_free(cache, (void *)list->page, list->capacity * sizeof *list->page);
    list->page = memory;
    list->capacity = capacity;
    return AURA_OK;
}

aura_status aura_pages_add(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t i, uint8_t **page)
{
    aura_status status = aura_pages_table(call, cache, seq, i + 1);
    if (!status && !*page && !cache->pool.n_free)
        status = add_slabs(call, cache, 1);
    if (!status) {
        aura_list_add(&cache->pool, &cache->window, &seq->pages, i, *page ? &aura_page_head(*page)->page : NULL);
        *page = (uint8_t *)aura_list_page(&cache->window, &seq->pages, i) + AURA_PAGE_HEAD;
    }
    return status;
}

void aura_count_tokens(aura_cache *cache, struct aura_sequence *seq)
{
    uint64_t gone = (uint64_t)(seq->pages.first - cache->window.kept) * AURA_PAGE;
    cache->tokens += seq->len - gone - seq->counted; /* modulo 2^64 */
    seq->counted = seq->len - gone;
}

/* One past the last page of a sequence whose pages begin at `first`, with what is reserved. */
static size_t end_of(const aura_cache *cache, const struct aura_sequence *seq, size_t first, uint64_t tokens, size_t reserved)
{
    size_t needed = aura_listed_pages(cache, seq, aura_pages_of(tokens)), kept = cache->window.kept;
    size_t promised = reserved <= kept ? reserved : first + (reserved - kept);
    return needed > promised ? needed : promised;
}

void aura_pages_trim(aura_cache *cache, struct aura_sequence *seq)
{
    const struct aura_page_window *w = &cache->window;
    struct aura_page_list *list = &seq->pages;
    if (list->first > w->kept && aura_window_begins_anew(w, seq->len))
        aura_list_cut(&cache->pool, w, list, w->kept);
    size_t end = end_of(cache, seq, list->first, seq->len, seq->reserved);
    aura_list_cut(&cache->pool, w, list, end);
    while (list->end < end && cache->pool.n_free)
        aura_list_add(&cache->pool, w, list, list->end, NULL);
    aura_count_tokens(cache, seq);
}

/* ---- growing ------------------------------------------------------------------------------------------------------- */

/* Pages that are written to when a sequence grows to so many tokens: those of tokens that are encoded and, of plain sides,
 * those of new tokens. The two are at most a page apart. */
static void written_pages(struct aura_page_change *c, const aura_cache *cache, const struct aura_sequence *seq, uint64_t tokens)
{
    uint64_t closed = seq->closed > cache->pinned ? seq->closed : cache->pinned;
    uint64_t end = seq->k || seq->v ? aura_closed_of(cache, seq->closed, tokens) : 0;
    int plain = (!seq->k || !seq->v) && tokens > seq->len;
    c->own = c->own_end = 0;
    if (end > closed) {
        c->own = aura_listed_pages(cache, seq, (size_t)(closed / AURA_PAGE));
        c->own_end = aura_listed_pages(cache, seq, aura_pages_of(end));
    }
    if (plain) {
        c->own = end > closed ? c->own : aura_listed_pages(cache, seq, (size_t)(seq->len / AURA_PAGE));
        c->own_end = aura_listed_pages(cache, seq, aura_pages_of(tokens));
    }
    c->own_end = c->own_end < seq->pages.end ? c->own_end : seq->pages.end;
}

/* The change of a sequence that grows to the tokens that are wanted. */
static struct aura_page_change growth_of(const aura_cache *cache, const struct aura_sequence *seq)
{
    struct aura_page_change c = {0};
    size_t first = aura_window_first(&cache->window, seq->wanted), end;
    c.first = first > seq->pages.first ? first : seq->pages.first;
    end = end_of(cache, seq, c.first, seq->wanted, seq->reserved);
    c.end = end > seq->pages.end ? end : seq->pages.end;
    written_pages(&c, cache, seq, seq->wanted);
    if (c.own >= cache->window.kept && c.own < c.first)
        c.own = c.first;
    return c;
}

/* The change of a sequence that is promised room for them. */
static struct aura_page_change reservation_of(const aura_cache *cache, const struct aura_sequence *seq, size_t reserved)
{
    struct aura_page_change c = {0};
    size_t first = seq->pages.first, end = end_of(cache, seq, first, 0, reserved);
    c.first = first;
    c.end = end > seq->pages.end ? end : seq->pages.end;
    written_pages(&c, cache, seq, seq->wanted);
    if (aura_window_first(&cache->window, seq->wanted) > first) { /* shared pages that slide out would leave nothing to write to */
        c.own = c.own_end && c.own < first ? c.own : first;
        c.own_end = seq->pages.end;
    }
    return c;
}

static struct aura_page_change change_of(const aura_cache *cache, const struct aura_sequence *seq, size_t reserved)
{
    return reserved ? reservation_of(cache, seq, reserved) : growth_of(cache, seq);
}

/* How many pages must come from slabs. */
static size_t pages_wanted(aura_cache *cache, struct aura_sequence *list, size_t reserved)
{
    const struct aura_page_window *w = &cache->window;
    size_t wanted = 0, freed = cache->pool.n_free;
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct aura_page_change c = change_of(cache, seq, reserved);
        freed += aura_change_frees(w, &seq->pages, &c);
    }
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct aura_page_change c = change_of(cache, seq, reserved);
        wanted += aura_change_takes(w, &seq->pages, &c);
    }
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct aura_page_change c = change_of(cache, seq, reserved);
        aura_change_forget(w, &seq->pages, &c);
    }
    return wanted > freed ? wanted - freed : 0;
}

/* Pages that replace shared ones get the same bytes, where any of them mean something. */
static void copy_pages(aura_cache *cache, const struct aura_sequence *seq, const struct aura_page_change *c)
{
    const struct aura_page_window *w = &cache->window;
    for (size_t p = c->own; p < c->own_end; p = aura_window_next(w, seq->pages.first, p)) {
        const struct aura_page *shared = aura_page_replaced(w, &seq->pages, p);
        uint64_t ranks = cache->ranks ? cache->ranks : 1, first = (p * ranks + aura_page_here(cache, seq, 0)) * AURA_PAGE;
        if (!shared || !(seq->closed > first || ((!seq->k || !seq->v) && seq->len > first)))
            continue;
        memcpy((uint8_t *)aura_list_page(w, &seq->pages, p) + AURA_PAGE_HEAD, (const uint8_t *)shared + AURA_PAGE_HEAD,
               cache->page_bytes);
        cache->pages_copied++;
    }
}

static void carry_out(aura_cache *cache, struct aura_sequence *list, size_t reserved)
{
    const struct aura_page_window *w = &cache->window;
    for (struct aura_sequence *seq = list; seq; seq = seq->next)
        aura_list_slide(&cache->pool, w, &seq->pages, change_of(cache, seq, reserved).first);
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        struct aura_page_change c = change_of(cache, seq, reserved);
        aura_list_begin(&cache->pool, w, &seq->pages, &c);
        copy_pages(cache, seq, &c);
        aura_list_commit(&cache->pool, w, &seq->pages, &c); /* only now may others write to what was shared */
    }
}

aura_status aura_pages_own(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t end)
{
    const struct aura_page_window *w = &cache->window;
    struct aura_page_list *list = &seq->pages;
    struct aura_page_change c = {list->first, list->end, aura_first_page(cache, seq), end, 0};
    size_t wanted = aura_change_takes(w, list, &c);
    aura_change_forget(w, list, &c);
    aura_status status = wanted > cache->pool.n_free ? add_slabs(call, cache, wanted - cache->pool.n_free) : AURA_OK;
    if (!status) {
        aura_list_begin(&cache->pool, w, list, &c);
        aura_list_commit(&cache->pool, w, list, &c);
    }
    return status;
}

void aura_pages_written(const aura_cache *cache, const struct aura_sequence *seq, uint64_t cut, uint64_t tokens, size_t *begin,
                        size_t *end)
{
    struct aura_sequence shorter = *seq;
    struct aura_page_change c = {0};
    shorter.len = cut;
    shorter.closed = aura_closed_by_cut(seq->closed, cut);
    written_pages(&c, cache, &shorter, tokens);
    *begin = c.own >= cache->window.kept && c.own < seq->pages.first ? seq->pages.first : c.own;
    *end = c.own_end;
}

aura_status aura_pages_unshare(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t begin, size_t end)
{
    const struct aura_page_window *w = &cache->window;
    struct aura_page_list *list = &seq->pages;
    struct aura_page_change c = {list->first, list->end, begin, end, 0};
    pthread_mutex_lock(&cache->lock);
    size_t wanted = aura_change_takes(w, list, &c);
    aura_change_forget(w, list, &c);
    aura_status status = wanted > cache->pool.n_free ? add_slabs(call, cache, wanted - cache->pool.n_free) : AURA_OK;
    if (!status) {
        aura_list_begin(&cache->pool, w, list, &c);
        copy_pages(cache, seq, &c);
        aura_list_commit(&cache->pool, w, list, &c);
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

static aura_status grow(struct aura_call call, aura_cache *cache, struct aura_sequence *list, size_t reserved)
{
    for (struct aura_sequence *seq = list; seq; seq = seq->next) {
        size_t end = seq->wanted > UINT64_MAX / 2 ? SIZE_MAX : change_of(cache, seq, reserved).end;
        size_t pages = aura_list_count(&cache->window, &seq->pages) + (end - seq->pages.end);
        if (pages > SIZE_MAX / 4 / (AURA_PAGE_HEAD + cache->page_bytes))
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
    size_t most = cache->window.span ? cache->window.kept + aura_window_ring(&cache->window) : SIZE_MAX;
    size_t pages = tokens > UINT64_MAX / 2 ? SIZE_MAX : aura_listed_pages(cache, seq, aura_pages_of(tokens));
    size_t reserved = pages < most ? pages : most;
    if (!reserved)
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
