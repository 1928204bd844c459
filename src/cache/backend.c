/* A cache seen from another backend. */
#include "../base/exact.h"
#include "backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "cache.h"

void aura_raw_describe(struct aura_raw *raw, const aura_cache *cache)
{
    int k = aura_is_packed(cache->layout.k.kind), v = aura_is_packed(cache->layout.v.kind);
    memset(raw, 0, sizeof *raw);
    raw->config = &cache->config;
    raw->layout = &cache->layout;
    raw->k_turn = k ? &cache->k.turn : NULL;
    raw->v_turn = v ? &cache->v.turn : NULL;
    raw->v_undo = v ? &cache->v.undo : NULL;
    raw->k_codec = k ? &cache->k.codec : NULL;
    raw->v_codec = v ? &cache->v.codec : NULL;
    raw->reference_codec = &cache->reference_codec;
    raw->balance = cache->balance;
    raw->inverse_balance = cache->inverse_balance;
    raw->pinned = cache->pinned;
    raw->rollback = cache->rollback;
    raw->rows = cache->rows;
    raw->page_bytes = cache->page_bytes;
    raw->span = cache->config.window ? cache->config.window + cache->slack : 0;
    raw->kept = cache->kept;
    raw->ring = cache->ring;
}

uint64_t aura_raw_top(const aura_cache *cache, uint64_t len, size_t first)
{
    uint64_t slid = first > cache->kept ? (uint64_t)first * AURA_PAGE + cache->config.window + cache->slack : 0;
    return slid > len ? slid : len;
}

static void describe_seq(struct aura_raw_seq *raw, const aura_cache *cache, const struct aura_sequence *seq)
{
    raw->len = seq->len;
    raw->closed = seq->closed;
    raw->first = seq->first;
    raw->top = aura_raw_top(cache, seq->len, seq->first);
    raw->pages = aura_pages_of(seq->len);
    raw->k = seq->k;
    raw->v = seq->v;
}

aura_status aura_raw_find(const char *name, const aura_cache *cache, aura_seq id, struct aura_raw_seq *raw)
{
    struct aura_call call = {cache->ctx, name};
    const struct aura_sequence *seq = aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    describe_seq(raw, cache, seq);
    return AURA_OK;
}

uint8_t *aura_raw_page(const aura_cache *cache, aura_seq id, size_t i)
{
    struct aura_call call = {cache->ctx, "aura_raw_page"};
    return aura_page_of(cache, aura_find_seq(call, cache, id), i);
}

/* Pages that the sequence, which is empty, shares with others are left to these: their bytes are not wanted. The lock is held. */
static aura_status own_pages(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, size_t pages)
{
    aura_status status = AURA_OK;
    for (size_t p = aura_first_page(cache, seq); p < pages && !status; p = aura_next_page(cache, seq, p)) {
        uint8_t *own;
        if (aura_page_head(aura_page_of(cache, seq, p))->references == 1)
            continue;
        if (!(status = aura_page_new(call, cache, &own))) {
            aura_pages_drop(cache, seq, p, p + 1);
            seq->page[aura_entry_of(cache, p)] = own;
        }
    }
    return status;
}

/* So that the ring of an empty sequence begins with page `first`. The lock is held. */
static void begin_ring(aura_cache *cache, struct aura_sequence *seq, size_t first)
{
    if (first <= cache->kept)
        return;
    if (seq->end > seq->first)
        aura_pages_drop(cache, seq, seq->first, seq->end);
    seq->first = seq->end = first;
}

/* Pages for so many tokens that are there already: none of them is to be written to, so none is copied. */
static aura_status grow_to(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, uint64_t len, uint64_t closed)
{
    seq->next = NULL;
    seq->len = seq->wanted = len;
    seq->closed = closed;
    return aura_pages_grow(call, cache, seq);
}

aura_status aura_raw_fill(const char *name, aura_cache *cache, aura_seq id, uint64_t len, uint64_t closed, size_t first,
                          struct aura_raw_seq *raw)
{
    struct aura_call call = {cache->ctx, name};
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    const uint64_t kept = (uint64_t)cache->kept * AURA_PAGE, before = first > cache->kept ? kept : 0;
    if (!seq)
        return AURA_BAD_ARGUMENT;
    if (seq->len)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: sequence %u has %llu tokens; give an empty one", name, id,
                         (unsigned long long)seq->len);
    aura_status status = grow_to(call, cache, seq, before, before);
    pthread_mutex_lock(&cache->lock);
    if (!status)
        begin_ring(cache, seq, first);
    pthread_mutex_unlock(&cache->lock);
    if (!status)
        status = grow_to(call, cache, seq, len, closed);
    pthread_mutex_lock(&cache->lock);
    if (!status)
        status = own_pages(call, cache, seq, aura_pages_of(len));
    seq->len = status ? 0 : len;
    seq->closed = status ? 0 : closed;
    aura_pages_trim(cache, seq);
    pthread_mutex_unlock(&cache->lock);
    if (!status)
        describe_seq(raw, cache, seq);
    return status;
}

/* ---- whole caches ------------------------------------------------------------------------------------------------------ */

aura_status aura_raw_seqs(const char *name, const aura_cache *cache, aura_seq *seqs, size_t most, size_t *n)
{
    struct aura_call call = {cache->ctx, name};
    pthread_mutex_t *lock = (pthread_mutex_t *)&cache->lock;
    void *memory;
    aura_status status = aura_take_memory(call, (most + 1) * sizeof(struct aura_sequence *), &memory);
    if (status)
        return status;
    struct aura_sequence **list = memory;
    pthread_mutex_lock(lock);
    *n = aura_seqs_list(cache, list, most);
    for (size_t i = 0; i < *n; i++)
        seqs[i] = list[i]->id;
    pthread_mutex_unlock(lock);
    aura_give_memory(call.ctx, memory, (most + 1) * sizeof *list);
    return AURA_OK;
}

aura_status aura_raw_add_page(const char *name, aura_cache *cache, aura_seq id, size_t i, uint8_t **page)
{
    struct aura_call call = {cache->ctx, name};
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    pthread_mutex_lock(&cache->lock);
    aura_status status = aura_pages_table(call, cache, seq, i + 1);
    if (!status && *page)
        aura_page_share(cache, *page);
    else if (!status)
        status = aura_page_new(call, cache, page);
    if (!status) {
        seq->first = seq->end <= cache->kept && i > cache->kept ? i : seq->first;
        seq->page[aura_entry_of(cache, i)] = *page;
        seq->end = i + 1;
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void aura_raw_set_lengths(const char *name, aura_cache *cache, aura_seq id, uint64_t len, uint64_t closed, struct aura_raw_seq *raw)
{
    struct aura_call call = {cache->ctx, name};
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    pthread_mutex_lock(&cache->lock);
    seq->len = len;
    seq->closed = closed;
    aura_count_tokens(cache, seq);
    pthread_mutex_unlock(&cache->lock);
    describe_seq(raw, cache, seq);
}

aura_status aura_raw_fail(const aura_ctx *ctx, aura_status status, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return aura_fail(ctx, status, "%s", text);
}
