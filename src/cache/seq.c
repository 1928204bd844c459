/* Sequences: ids, create, fork, release, and everything that changes which tokens a sequence has without looking at them. */
#include "../base/exact.h"
#include "cache.h"

#include <string.h>

/* ---- ids ---------------------------------------------------------------------------------------------------------- */

/* Ids: the low 21 bits are the place + 1, so that none is 0; the others count up when a place is used again, so that an
 * id that was released is noticed. */
enum { PLACE_BITS = 21 };
#define PLACE_MASK ((1u << PLACE_BITS) - 1)

static size_t chunk_size(uint32_t chunk)
{
    return (size_t)64 << chunk;
}

/* Chunk c begins at place 64 (2^c - 1). */
static uint32_t chunk_of(uint32_t place, size_t *within)
{
    uint32_t chunk = 0;
    for (; place >= chunk_size(chunk); chunk++)
        place -= (uint32_t)chunk_size(chunk);
    *within = place;
    return chunk;
}

static _Atomic(struct aura_sequence *) *entry_of(const aura_cache *cache, uint32_t place)
{
    size_t within;
    uint32_t chunk = chunk_of(place, &within);
    if (chunk >= AURA_SEQ_CHUNKS)
        return NULL;
    _Atomic(struct aura_sequence *) *entries = atomic_load_explicit(&((aura_cache *)cache)->chunk[chunk], memory_order_acquire);
    return entries ? entries + within : NULL;
}

struct aura_sequence *aura_find_seq(struct aura_call call, const aura_cache *cache, aura_seq id)
{
    _Atomic(struct aura_sequence *) *entry = id & PLACE_MASK ? entry_of(cache, (id & PLACE_MASK) - 1) : NULL;
    struct aura_sequence *seq = entry ? atomic_load_explicit(entry, memory_order_acquire) : NULL;
    if (seq && seq->id == id)
        return seq;
    aura_fail(call.ctx, AURA_BAD_ARGUMENT, cache->slots ? "%s: sequence %u of a cache of slots, which has none"
                                                        : "%s: there is no sequence %u", call.name, id);
    return NULL;
}

/* Makes the chunk that a place is in. The lock is held. */
static aura_status make_place(struct aura_call call, aura_cache *cache, uint32_t place)
{
    size_t within;
    uint32_t chunk = chunk_of(place, &within);
    void *memory;
    if (chunk >= AURA_SEQ_CHUNKS || place >= PLACE_MASK)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %zu sequences are as many as there can be", call.name, cache->seqs);
    if (entry_of(cache, place))
        return AURA_OK;
    size_t bytes = chunk_size(chunk) * sizeof(struct aura_sequence *);
    aura_status status = aura_cache_alloc(call, cache, bytes, 64, &memory);
    if (status)
        return status;
    memset(memory, 0, bytes);
    atomic_store_explicit(&cache->chunk[chunk], memory, memory_order_release);
    return AURA_OK;
}

aura_status aura_places_bytes(struct aura_call call, size_t seqs, size_t *bytes)
{
    *bytes = 0;
    size_t left = seqs;
    for (uint32_t chunk = 0; left && chunk < AURA_SEQ_CHUNKS; chunk++) {
        *bytes += chunk_size(chunk) * sizeof(struct aura_sequence *);
        left -= left < chunk_size(chunk) ? left : chunk_size(chunk);
    }
    return left ? aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %zu sequences are %zu too many", call.name, seqs, left) : AURA_OK;
}

/* An empty place, below which all are taken. The lock is held. */
static aura_status free_place(struct aura_call call, aura_cache *cache, uint32_t *place)
{
    aura_status status;
    for (*place = cache->next_seq; !(status = make_place(call, cache, *place)); ++*place)
        if (!atomic_load_explicit(entry_of(cache, *place), memory_order_relaxed))
            break;
    return status;
}

aura_status aura_seq_publish(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, aura_seq *id)
{
    uint32_t place = (*id - 1) & PLACE_MASK;
    aura_status status = *id ? make_place(call, cache, place) : free_place(call, cache, &place);
    if (status)
        return status;
    if (*id && atomic_load_explicit(entry_of(cache, place), memory_order_relaxed))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the place of sequence %u is taken", call.name, *id);
    if (!*id) {
        cache->generation = (cache->generation + 1) & (UINT32_MAX >> PLACE_BITS);
        *id = cache->generation << PLACE_BITS | (place + 1);
        cache->next_seq = place + 1;
    }
    seq->id = *id;
    cache->seqs++;
    atomic_store_explicit(entry_of(cache, place), seq, memory_order_release);
    return AURA_OK;
}

void aura_seq_withdraw(aura_cache *cache, struct aura_sequence *seq)
{
    uint32_t place = (seq->id & PLACE_MASK) - 1;
    atomic_store_explicit(entry_of(cache, place), NULL, memory_order_release);
    if (place < cache->next_seq)
        cache->next_seq = place;
    cache->seqs--;
}

void aura_seqs_continue(aura_cache *cache, uint32_t generation)
{
    cache->generation = generation & (UINT32_MAX >> PLACE_BITS);
}

size_t aura_seqs_list(const aura_cache *cache, struct aura_sequence **list, aura_seq *ids, size_t most)
{
    size_t n = 0;
    for (uint32_t c = 0; c < AURA_SEQ_CHUNKS; c++) {
        _Atomic(struct aura_sequence *) *entries = atomic_load(&((aura_cache *)cache)->chunk[c]);
        for (size_t i = 0; entries && i < chunk_size(c) && n < most; i++) {
            struct aura_sequence *seq = atomic_load(&entries[i]);
            if (seq && list)
                list[n] = seq;
            if (seq && ids)
                ids[n] = seq->id;
            n += seq != NULL;
        }
    }
    return n;
}

aura_status aura_cache_list(const aura_cache *cache, aura_seq *seqs, size_t *n)
{
    if (!cache || !n || (*n && !seqs))
        return aura_fail(cache ? cache->ctx : NULL, AURA_BAD_ARGUMENT, "aura_cache_list: %s is NULL",
                         !cache ? "cache" : n ? "seqs" : "n");
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
    aura_seqs_list(cache, NULL, seqs, *n);
    *n = cache->seqs;
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
    return AURA_OK;
}

/* ---- create, fork, release ---------------------------------------------------------------------------------------- */

aura_status aura_seq_make(struct aura_call call, aura_cache *cache, struct aura_sequence **made)
{
    const aura_config *c = &cache->config;
    void *memory;
    aura_status status = aura_cache_alloc(call, cache, cache->seq_bytes, 64, &memory);
    if (status)
        return status;
    struct aura_sequence *seq = memory;
    memset(seq, 0, sizeof *seq);
    seq->pages.first = cache->window.kept;
    uint16_t *rows = (uint16_t *)((uint8_t *)memory + cache->seq_bytes - cache->rows_bytes);
    if (aura_is_packed(cache->layout.k.kind)) {
        seq->k = rows;
        rows += (size_t)c->kv_heads * cache->rows * cache->layout.k.dim;
    }
    if (aura_is_packed(cache->layout.v.kind))
        seq->v = rows;
    *made = seq;
    return AURA_OK;
}

void aura_seq_unmake(aura_cache *cache, struct aura_sequence *seq)
{
    aura_list_cut(&cache->pool, &cache->window, &seq->pages, 0);
    cache->tokens -= seq->counted;
    aura_cache_free(cache, (void *)seq->pages.page, seq->pages.capacity * sizeof *seq->pages.page);
    aura_cache_free(cache, seq, cache->seq_bytes);
}

static aura_status check_cache(struct aura_call call, const aura_cache *cache)
{
    return cache ? AURA_OK : aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
}

/* The sequences of a model's layer come and go with those of its other layers. */
static aura_status check_nobodys(struct aura_call call, const aura_cache *cache)
{
    if (cache->model)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a layer of a model; use aura_model_%s", call.name, call.name + 5);
    return AURA_OK;
}

static aura_status check_create(struct aura_call call, const aura_cache *cache, const aura_seq *seq)
{
    aura_status status = check_cache(call, cache);
    if (!status && !seq)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call.name);
    if (!status && cache->slots)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a cache of slots has no sequences; use aura_slots_write", call.name);
    return status ? status : check_nobodys(call, cache);
}

aura_status aura_seq_add(struct aura_call call, aura_cache *cache, aura_seq *id)
{
    struct aura_sequence *made;
    pthread_mutex_lock(&cache->lock);
    aura_status status = aura_seq_make(call, cache, &made);
    if (!status && (status = aura_seq_publish(call, cache, made, id)))
        aura_seq_unmake(cache, made);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

aura_status aura_seq_create(aura_cache *cache, aura_seq *seq)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_create"};
    aura_seq id = 0;
    aura_status status = check_create(call, cache, seq);
    if (!status && !(status = aura_seq_add(call, cache, &id)))
        *seq = id;
    return status;
}

aura_status aura_check_cut(struct aura_call call, const aura_cache *cache, const struct aura_sequence *seq, uint64_t tokens)
{
    if (tokens > seq->len)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens; the sequence has %llu", call.name,
                         (unsigned long long)tokens, (unsigned long long)seq->len);
    if (!aura_window_may_cut(&cache->window, seq->pages.first, tokens))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                         "%s: of the last %llu before token %llu some are gone; the least is %llu tokens, or none at all",
                         call.name, (unsigned long long)cache->config.window, (unsigned long long)tokens,
                         (unsigned long long)aura_window_least_cut(&cache->window, seq->pages.first));
    return AURA_OK;
}

/* `to`, which is empty, becomes the first tokens of `from`. The lock is held. */
static aura_status share_prefix(struct aura_call call, aura_cache *cache, struct aura_sequence *to,
                                const struct aura_sequence *from, uint64_t tokens)
{
    const size_t pages = aura_listed_pages(cache, from, aura_pages_of(tokens));
    aura_status status = aura_pages_table(call, cache, to, pages);
    if (status)
        return status;
    to->shift = from->shift;
    to->len = tokens;
    to->closed = aura_closed_by_cut(from->closed, tokens);
    aura_list_share(&cache->pool, &cache->window, &from->pages, pages, &to->pages);
    if (cache->rows_bytes)
        memcpy(to->k ? to->k : to->v, from->k ? from->k : from->v, cache->rows_bytes);
    aura_count_tokens(cache, to);
    return AURA_OK;
}

aura_status aura_seq_branch(struct aura_call call, aura_cache *cache, aura_seq from, uint64_t tokens, aura_seq *id)
{
    struct aura_sequence *parent = aura_find_seq(call, cache, from), *made;
    aura_status status = parent ? aura_check_cut(call, cache, parent, tokens) : AURA_BAD_ARGUMENT;
    if (status)
        return status;
    pthread_mutex_lock(&cache->lock);
    if (!(status = aura_seq_make(call, cache, &made))) {
        if ((status = share_prefix(call, cache, made, parent, tokens)) || (status = aura_seq_publish(call, cache, made, id)))
            aura_seq_unmake(cache, made);
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

aura_status aura_seq_fork(aura_cache *cache, aura_seq from, uint64_t tokens, aura_seq *seq)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_fork"};
    aura_seq id = 0;
    aura_status status = check_create(call, cache, seq);
    if (!status && !(status = aura_seq_branch(call, cache, from, tokens, &id)))
        *seq = id;
    return status;
}

void aura_seq_discard(aura_cache *cache, struct aura_sequence *seq)
{
    pthread_mutex_lock(&cache->lock);
    aura_seq_withdraw(cache, seq);
    aura_seq_unmake(cache, seq);
    pthread_mutex_unlock(&cache->lock);
}

aura_status aura_seq_release(aura_cache *cache, aura_seq id)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_release"};
    aura_status status = check_cache(call, cache);
    if (!status)
        status = check_nobodys(call, cache);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    aura_seq_discard(cache, seq);
    return AURA_OK;
}

void aura_seqs_free(aura_cache *cache)
{
    for (uint32_t c = 0; c < AURA_SEQ_CHUNKS; c++) {
        _Atomic(struct aura_sequence *) *entries = atomic_load(&cache->chunk[c]);
        for (size_t i = 0; entries && i < chunk_size(c); i++)
            if (atomic_load(&entries[i]))
                aura_seq_unmake(cache, atomic_load(&entries[i]));
        aura_cache_free(cache, (void *)entries, entries ? chunk_size(c) * sizeof *entries : 0);
    }
}

uint64_t aura_closed_of(const aura_cache *cache, uint64_t closed, uint64_t len)
{
    if (!aura_is_packed(cache->layout.k.kind) && !aura_is_packed(cache->layout.v.kind))
        return 0; /* nothing is ever encoded */
    return aura_closed_after(closed, len, cache->rollback, !(cache->config.flags & AURA_NO_OPEN));
}

/* ---- information, space ------------------------------------------------------------------------------------------- */

aura_status aura_seq_get_info(const aura_cache *cache, aura_seq id, aura_seq_info *info)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_get_info"};
    aura_status status = check_cache(call, cache);
    if (status || (status = aura_check_call(call, info, sizeof *info)))
        return status;
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    info->tokens = seq->len;
    info->closed = seq->closed;
    info->pages = aura_list_count(&cache->window, &seq->pages);
    info->first = aura_window_first_token(&cache->window, seq->pages.first);
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
    info->shared_pages = aura_list_shared(&cache->window, &seq->pages);
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
    return AURA_OK;
}

aura_status aura_seq_reserve(aura_cache *cache, aura_seq id, uint64_t tokens)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_reserve"};
    aura_status status = check_cache(call, cache);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, id);
    return seq ? aura_pages_reserve(call, cache, seq, tokens) : AURA_BAD_ARGUMENT;
}

/* ---- tokens that go, or come with shared pages ---------------------------------------------------------------------- */

void aura_seq_cut(aura_cache *cache, struct aura_sequence *seq, uint64_t tokens)
{
    seq->len = tokens;
    seq->closed = aura_closed_by_cut(seq->closed, tokens);
    pthread_mutex_lock(&cache->lock);
    aura_pages_trim(cache, seq);
    pthread_mutex_unlock(&cache->lock);
}

aura_status aura_truncate(aura_cache *cache, aura_seq id, uint64_t tokens)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_truncate"};
    aura_status status = check_cache(call, cache);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    if (!(status = aura_check_cut(call, cache, seq, tokens)))
        aura_seq_cut(cache, seq, tokens);
    return status;
}

aura_status aura_check_range(struct aura_call call, const struct aura_sequence *seq, uint64_t first, uint64_t tokens)
{
    if (first > seq->len || tokens > seq->len - first)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens from token %llu on; the sequence has %llu", call.name,
                         (unsigned long long)tokens, (unsigned long long)first, (unsigned long long)seq->len);
    return AURA_OK;
}

/* That a range is of whole pages to which nobody will write. */
static aura_status check_whole_pages(struct aura_call call, const aura_cache *cache, const struct aura_sequence *seq,
                                     uint64_t first, uint64_t tokens)
{
    if (cache->config.window)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: pages of a window stay in their order; decode and append instead",
                         call.name);
    if (first % AURA_PAGE || tokens % AURA_PAGE || first + tokens > aura_settled_of(seq))
        return aura_fail(call.ctx, AURA_UNSUPPORTED,
                         "%s: tokens [%llu, %llu); only whole pages of 256 tokens below token %llu can go from place to place; "
                         "decode and append instead", call.name, (unsigned long long)first,
                         (unsigned long long)(first + tokens), (unsigned long long)aura_settled_of(seq));
    return AURA_OK;
}

/* The pinned tokens of a sequence to another. */
static void copy_pinned(const aura_cache *cache, struct aura_sequence *to, const struct aura_sequence *from)
{
    const uint32_t k_dim = cache->layout.k.dim, v_dim = cache->layout.v.dim;
    for (uint32_t h = 0; h < cache->config.kv_heads; h++)
        for (uint32_t t = 0; t < cache->pinned; t++) {
            if (to->k)
                memcpy(aura_row_of(cache, to->k, k_dim, h, t), aura_row_of(cache, from->k, k_dim, h, t), k_dim * 2);
            if (to->v)
                memcpy(aura_row_of(cache, to->v, v_dim, h, t), aura_row_of(cache, from->v, v_dim, h, t), v_dim * 2);
        }
}

static aura_status check_copy(struct aura_call call, const aura_cache *cache, const struct aura_sequence *from, uint64_t first,
                              uint64_t tokens, const struct aura_sequence *to)
{
    aura_status status;
    if ((status = aura_check_range(call, from, first, tokens)) || !tokens ||
        (status = check_whole_pages(call, cache, from, first, tokens)))
        return status;
    if (to->len % AURA_PAGE || aura_settled_of(to) != to->len)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: to a sequence of %llu tokens, of which %llu are encoded; it takes pages "
                         "when all are, and a multiple of 256; truncate it, or decode and append instead", call.name,
                         (unsigned long long)to->len, (unsigned long long)aura_settled_of(to));
    if (aura_has_pinned(cache, to) && !first != !to->len)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: from token %llu to %llu; pinned tokens stay at the beginning; decode and "
                         "append instead", call.name, (unsigned long long)first, (unsigned long long)to->len);
    return AURA_OK;
}

/* The lock is held. */
static aura_status share_pages(struct aura_call call, aura_cache *cache, const struct aura_sequence *from, size_t first,
                               size_t pages, struct aura_sequence *to)
{
    size_t at = aura_pages_of(to->len), end = at + pages;
    aura_status status = aura_pages_table(call, cache, to, end);
    if (status)
        return status;
    aura_list_leave(&cache->pool, &cache->window, &to->pages, at, end < to->pages.end ? end : to->pages.end); /* reserved ones */
    for (size_t i = 0; i < pages; i++)
        to->pages.page[at + i] = aura_page_share(&cache->pool, from->pages.page[first + i]);
    if (to->len == 0)
        copy_pinned(cache, to, from);
    to->pages.end = end > to->pages.end ? end : to->pages.end;
    to->len += (uint64_t)pages * AURA_PAGE;
    to->closed = to->k || to->v ? to->len : 0;
    aura_count_tokens(cache, to);
    return AURA_OK;
}

aura_status aura_seq_copy(aura_cache *cache, aura_seq from, uint64_t first, uint64_t tokens, aura_seq to)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_copy"};
    aura_status status = check_cache(call, cache);
    struct aura_sequence *source = status ? NULL : aura_find_seq(call, cache, from);
    struct aura_sequence *target = source ? aura_find_seq(call, cache, to) : NULL;
    if (!target)
        return AURA_BAD_ARGUMENT;
    if ((status = check_copy(call, cache, source, first, tokens, target)) || !tokens)
        return status;
    pthread_mutex_lock(&cache->lock);
    status = share_pages(call, cache, source, (size_t)(first / AURA_PAGE), (size_t)(tokens / AURA_PAGE), target);
    pthread_mutex_unlock(&cache->lock);
    return status;
}
