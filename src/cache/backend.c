/* A cache seen from another backend. */
#include "../base/exact.h"
#include "backend.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model.h"

void aura_backend_describe(struct aura_backend_cache *facts, const aura_cache *cache)
{
    int k = aura_is_packed(cache->layout.k.kind), v = aura_is_packed(cache->layout.v.kind);
    memset(facts, 0, sizeof *facts);
    facts->config = &cache->config;
    facts->layout = &cache->layout;
    facts->k_rotate = k ? &cache->k.rotate : NULL;
    facts->v_rotate = v ? &cache->v.rotate : NULL;
    facts->v_undo = v ? &cache->v.undo : NULL;
    facts->k_codec = k ? &cache->k.codec : NULL;
    facts->v_codec = v ? &cache->v.codec : NULL;
    facts->reference_codec = &cache->reference_codec;
    facts->balance = cache->k.balance;
    facts->inverse_balance = cache->k.inverse_balance;
    facts->v_balance = cache->v.balance;
    facts->v_inverse_balance = cache->v.inverse_balance;
    facts->k_metric = k ? cache->k.metric : NULL;
    facts->v_metric = v ? cache->v.metric : NULL;
    facts->pinned = cache->pinned;
    facts->rollback = cache->rollback;
    facts->rows = cache->rows;
    facts->page_bytes = cache->page_bytes;
    facts->window = cache->window;
}

aura_status aura_backend_take_profile(const aura_ctx *ctx, const char *name, const aura_profile *profile, uint32_t layers,
                                      uint32_t layer, aura_config *config)
{
    struct aura_call call = {ctx, name};
    return aura_take_profile(call, profile, layers, layer, config);
}

static void describe_seq(struct aura_backend_seq *facts, const aura_cache *cache, const struct aura_sequence *seq)
{
    facts->len = seq->len;
    facts->closed = seq->closed;
    facts->first = seq->pages.first;
    facts->top = aura_window_least_top(&cache->window, seq->pages.first, seq->len);
    facts->pages = aura_pages_of(seq->len);
    facts->k = seq->k;
    facts->v = seq->v;
}

aura_status aura_backend_find(const char *name, const aura_cache *cache, aura_seq id, struct aura_backend_seq *facts)
{
    struct aura_call call = {cache->ctx, name};
    const struct aura_sequence *seq = aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    describe_seq(facts, cache, seq);
    return AURA_OK;
}

uint8_t *aura_backend_page(const aura_cache *cache, aura_seq id, size_t i)
{
    struct aura_call call = {cache->ctx, "aura_backend_page"};
    return aura_page_of(cache, aura_find_seq(call, cache, id), i);
}

/* Makes `first` the first page after the kept ones of an empty sequence. The lock is held. */
static void begin_ring(aura_cache *cache, struct aura_sequence *seq, size_t first)
{
    if (first <= cache->window.kept)
        return;
    aura_list_cut(&cache->pool, &cache->window, &seq->pages, cache->window.kept);
    seq->pages.first = seq->pages.end = first;
}

/* Pages for so many tokens. The sequence has them already, as far as the pool knows: so it copies no page to write to. */
static aura_status grow_to(struct aura_call call, aura_cache *cache, struct aura_sequence *seq, uint64_t len, uint64_t closed)
{
    seq->next = NULL;
    seq->len = seq->wanted = len;
    seq->closed = closed;
    return aura_pages_grow(call, cache, seq);
}

aura_status aura_backend_fill(const char *name, aura_cache *cache, aura_seq id, uint64_t len, uint64_t closed, size_t first,
                          struct aura_backend_seq *facts)
{
    struct aura_call call = {cache->ctx, name};
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    const size_t kept = cache->window.kept;
    const uint64_t before = first > kept ? (uint64_t)kept * AURA_PAGE : 0;
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
        status = aura_pages_own(call, cache, seq, aura_pages_of(len)); /* nobody wants the bytes of what it shared */
    seq->len = status ? 0 : len;
    seq->closed = status ? 0 : closed;
    aura_pages_trim(cache, seq);
    pthread_mutex_unlock(&cache->lock);
    if (!status)
        describe_seq(facts, cache, seq);
    return status;
}

/* ---- whole caches ------------------------------------------------------------------------------------------------------ */

aura_status aura_backend_add_page(const char *name, aura_cache *cache, aura_seq id, size_t i, uint8_t **page)
{
    struct aura_call call = {cache->ctx, name};
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    pthread_mutex_lock(&cache->lock);
    aura_status status = aura_pages_add(call, cache, seq, i, page);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

void aura_backend_set_lengths(const char *name, aura_cache *cache, aura_seq id, uint64_t len, uint64_t closed,
                              struct aura_backend_seq *facts)
{
    struct aura_call call = {cache->ctx, name};
    struct aura_sequence *seq = aura_find_seq(call, cache, id);
    pthread_mutex_lock(&cache->lock);
    seq->len = len;
    seq->closed = closed;
    aura_count_tokens(cache, seq);
    pthread_mutex_unlock(&cache->lock);
    describe_seq(facts, cache, seq);
}

aura_status aura_backend_fail(const aura_ctx *ctx, aura_status status, const char *format, ...)
{
    char text[512];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    return aura_fail(ctx, status, "%s", text);
}
