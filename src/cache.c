/* Caches and sequences: create, describe, destroy. */
#include "exact.h"
#include "cache.h"

#include <math.h>
#include <string.h>

#include "fpmode.h"
#include "rotation.h"
#include "rows.h"

static const uint32_t cache_dims[] = {64, 80, 96, 112, 128, 192, 256, 512};

static int is_cache_dim(uint32_t dim)
{
    for (size_t i = 0; i < sizeof cache_dims / sizeof *cache_dims; i++)
        if (cache_dims[i] == dim)
            return 1;
    return 0;
}

static int is_kind(aura_kind kind)
{
    return (kind >= AURA_KIND_B2 && kind <= AURA_KIND_BF16 && kind != 7);
}

static aura_status check_balance(struct aura_call call, const aura_config *c)
{
    for (size_t i = 0; c->balance && i < (size_t)c->kv_heads * c->k_dim; i++)
        if (!(c->balance[i] >= 0.125f && c->balance[i] <= 8)) /* so that NaN fails too */
            return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: balance of KV head %zu, channel %zu is %g, not within 1/8 to 8",
                             call.name, i / c->k_dim, i % c->k_dim, (double)c->balance[i]);
    if (c->balance && !aura_is_packed((uint32_t)c->format.k))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: plain keys take no balance", call.name);
    return AURA_OK;
}

/* The configuration with its defaults, checked. */
static aura_status complete_config(struct aura_call call, aura_config *c, const aura_config *given)
{
    const uint32_t known = AURA_NO_REFERENCE | AURA_NO_PINNED | AURA_NO_ROLLBACK | AURA_NO_OPEN | AURA_NO_SEARCH;
    aura_status status = aura_check_call(call, given, sizeof *given);
    if (status)
        return status;
    *c = *given;
    c->format.k = c->format.k ? c->format.k : AURA_KIND_B4;
    c->format.v = c->format.v ? c->format.v : AURA_KIND_B4;
    c->v_dim = c->v_dim ? c->v_dim : c->k_dim;
    c->rollback = c->rollback ? c->rollback : 16;
    if (!is_kind(c->format.k) || !is_kind(c->format.v))
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: format {%d, %d}: a side has 2, 3, 4, 5, 6 or 8 bits or is f32, f16, bf16",
                         call.name, (int)c->format.k, (int)c->format.v);
    if (!is_cache_dim(c->k_dim) || !is_cache_dim(c->v_dim))
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: k_dim %u, v_dim %u; there are 64, 80, 96, 112, 128, 192, 256 and 512",
                         call.name, c->k_dim, c->v_dim);
    if ((status = aura_check_heads(call, c->q_heads, c->kv_heads)))
        return status;
    if (c->q_heads > 1u << 16)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %u query heads; at most 65536", call.name, c->q_heads);
    if (c->rollback > 32 || (c->flags & ~known))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rollback %u (1 to 32) or flags 0x%x (within 0x%x)", call.name,
                         c->rollback, c->flags, known);
    if (c->flags & AURA_NO_OPEN && !(c->flags & AURA_NO_REFERENCE) && aura_is_packed((uint32_t)c->format.k))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                         "%s: AURA_NO_OPEN needs AURA_NO_REFERENCE: a reference is made of 32 tokens before they are encoded",
                         call.name);
    return check_balance(call, c);
}

static void codec_init(struct aura_codec_side *side, const aura_config *c, uint32_t stream, uint32_t kind, uint32_t dim)
{
    uint8_t signs[AURA_MAX_DIM / 8];
    aura_codebook book;
    aura_scale_rule rule = stream == 1 && kind <= 3 ? AURA_SCALE_UNBIASED : AURA_SCALE_MATCHED;
    if (!aura_is_packed(kind))
        return;
    aura_signs(c->seed, stream, dim, signs);
    aura_rotation_plan_init(&side->turn, dim, signs, NULL, 0);
    aura_rotation_plan_init(&side->undo, dim, signs, NULL, 1);
    aura_codebook_get(AURA_TABLE_GRID, kind, &book);
    aura_codec_plan_init(&side->codec, &book, dim, rule, !(c->flags & AURA_NO_SEARCH));
}

/* Everything that follows from the configuration. */
static void cache_init(aura_cache *cache, aura_ctx *ctx, const aura_config *c)
{
    struct aura_layout *l = &cache->layout;
    aura_codebook book;
    memset(cache, 0, sizeof *cache);
    cache->ctx = ctx;
    cache->config = *c;
    cache->bytes = sizeof *cache;
    aura_layout_init(l, c->format, c->k_dim, c->v_dim);
    codec_init(&cache->k, c, 0, l->k.kind, c->k_dim);
    codec_init(&cache->v, c, 1, l->v.kind, c->v_dim);
    aura_codebook_get(AURA_TABLE_GRID, 8, &book);
    aura_codec_plan_init(&cache->reference_codec, &book, c->k_dim, AURA_SCALE_MATCHED, !(c->flags & AURA_NO_SEARCH));
    cache->pinned = c->flags & AURA_NO_PINNED ? 0 : AURA_PINNED;
    cache->rollback = c->flags & (AURA_NO_ROLLBACK | AURA_NO_OPEN) ? 0 : c->rollback;
    cache->rows = cache->pinned + (c->flags & AURA_NO_OPEN ? 1 : AURA_RING);
    cache->page_bytes = (size_t)c->kv_heads * l->head_bytes;
    size_t row_bytes = (aura_is_packed(l->k.kind) ? c->k_dim : 0) + (aura_is_packed(l->v.kind) ? c->v_dim : 0);
    cache->seq_bytes = (sizeof(struct aura_sequence) + 63) / 64 * 64 + (size_t)c->kv_heads * cache->rows * row_bytes * 2;
    cache->slab_pages = ((size_t)16 << 20) / cache->page_bytes;
    if (!cache->slab_pages)
        cache->slab_pages = 1;
}

static aura_status copy_balance(struct aura_call call, aura_cache *cache)
{
    const aura_config *c = &cache->config;
    size_t n = (size_t)c->kv_heads * c->k_dim;
    void *memory;
    if (!c->balance)
        return AURA_OK;
    aura_status status = aura_cache_alloc(call, cache, 2 * n * sizeof(float), 64, &memory);
    if (status)
        return status;
    cache->balance = memory;
    cache->inverse_balance = cache->balance + n;
    for (size_t i = 0; i < n; i++) {
        cache->balance[i] = c->balance[i];
        cache->inverse_balance[i] = 1 / c->balance[i];
    }
    cache->config.balance = cache->balance;
    return AURA_OK;
}

aura_status aura_cache_create(aura_ctx *ctx, const aura_config *config, aura_cache **cache)
{
    struct aura_call call = {ctx, "aura_cache_create"};
    aura_config c;
    aura_status status = complete_config(call, &c, config);
    if (status)
        return status;
    if (!cache)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    aura_cache *made = ctx->allocator.alloc(ctx->allocator.user, sizeof *made, 64);
    if (!made)
        return aura_fail(ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name, sizeof *made);
    uint64_t mode = aura_fpmode_enter();
    cache_init(made, ctx, &c);
    size_t least = sizeof *made + made->seq_bytes + made->page_bytes + 4096;
    if (c.budget_bytes && c.budget_bytes < least)
        status = aura_fail(ctx, AURA_OUT_OF_PAGES, "%s: in a budget of %zu bytes no page fits; give %zu or more", call.name,
                           c.budget_bytes, least);
    if (!status)
        status = copy_balance(call, made);
    aura_fpmode_leave(mode);
    if (!status && pthread_mutex_init(&made->lock, NULL)) {
        aura_cache_free(made, made->balance, 2 * (size_t)c.kv_heads * c.k_dim * sizeof(float));
        status = aura_fail(ctx, AURA_OUT_OF_MEMORY, "%s: the system has no mutex left", call.name);
    }
    if (status)
        ctx->allocator.free(ctx->allocator.user, made, sizeof *made);
    else
        *cache = made;
    return status;
}

/* ---- sequences ---------------------------------------------------------------------------------------------------- */

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
    aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: there is no sequence %u", call.name, id);
    return NULL;
}

/* An empty place; makes the chunk it is in. The lock is held. */
static aura_status free_place(struct aura_call call, aura_cache *cache, uint32_t *place)
{
    for (uint32_t i = cache->next_seq;; i++) {
        size_t within;
        uint32_t chunk = chunk_of(i, &within);
        if (chunk >= AURA_SEQ_CHUNKS || i >= PLACE_MASK)
            return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %zu sequences are as many as there can be", call.name, cache->seqs);
        _Atomic(struct aura_sequence *) *entry = entry_of(cache, i);
        if (!entry) {
            void *memory;
            size_t bytes = chunk_size(chunk) * sizeof *entry;
            aura_status status = aura_cache_alloc(call, cache, bytes, 64, &memory);
            if (status)
                return status;
            memset(memory, 0, bytes);
            atomic_store_explicit(&cache->chunk[chunk], memory, memory_order_release);
            entry = entry_of(cache, i);
        }
        *place = i;
        if (!atomic_load_explicit(entry, memory_order_relaxed))
            return AURA_OK;
    }
}

static aura_status seq_create(struct aura_call call, aura_cache *cache, aura_seq *id)
{
    const aura_config *c = &cache->config;
    uint32_t place = 0;
    void *memory;
    aura_status status = free_place(call, cache, &place);
    if (!status)
        status = aura_cache_alloc(call, cache, cache->seq_bytes, 64, &memory);
    if (status)
        return status;
    struct aura_sequence *seq = memory;
    memset(seq, 0, sizeof *seq);
    uint16_t *rows = (uint16_t *)((uint8_t *)memory + (sizeof *seq + 63) / 64 * 64);
    if (aura_is_packed(cache->layout.k.kind)) {
        seq->k = rows;
        rows += (size_t)c->kv_heads * cache->rows * c->k_dim;
    }
    if (aura_is_packed(cache->layout.v.kind))
        seq->v = rows;
    cache->generation = (cache->generation + 1) & (UINT32_MAX >> PLACE_BITS);
    *id = seq->id = cache->generation << PLACE_BITS | (place + 1);
    cache->next_seq = place + 1;
    cache->seqs++;
    atomic_store_explicit(entry_of(cache, place), seq, memory_order_release);
    return AURA_OK;
}

static aura_status check_cache(struct aura_call call, const aura_cache *cache)
{
    return cache ? AURA_OK : aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
}

aura_status aura_seq_create(aura_cache *cache, aura_seq *seq)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_create"};
    aura_status status = check_cache(call, cache);
    if (!status && !seq)
        status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call.name);
    if (status)
        return status;
    pthread_mutex_lock(&cache->lock);
    status = seq_create(call, cache, seq);
    pthread_mutex_unlock(&cache->lock);
    return status;
}

/* The lock is held. */
static void seq_destroy(aura_cache *cache, struct aura_sequence *seq)
{
    aura_cache_free(cache, seq->page, seq->capacity * sizeof *seq->page);
    aura_cache_free(cache, seq, cache->seq_bytes);
    cache->seqs--;
}

aura_status aura_seq_release(aura_cache *cache, aura_seq id)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_release"};
    aura_status status = check_cache(call, cache);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    uint32_t place = (id & PLACE_MASK) - 1;
    aura_pages_give(cache, seq, 0);
    pthread_mutex_lock(&cache->lock);
    atomic_store_explicit(entry_of(cache, place), NULL, memory_order_release);
    if (place < cache->next_seq)
        cache->next_seq = place;
    seq_destroy(cache, seq);
    pthread_mutex_unlock(&cache->lock);
    return AURA_OK;
}

void aura_cache_destroy(aura_cache *cache)
{
    if (!cache)
        return;
    const aura_ctx *ctx = cache->ctx;
    for (uint32_t c = 0; c < AURA_SEQ_CHUNKS; c++) {
        _Atomic(struct aura_sequence *) *entries = atomic_load(&cache->chunk[c]);
        for (size_t i = 0; entries && i < chunk_size(c); i++)
            if (atomic_load(&entries[i]))
                seq_destroy(cache, atomic_load(&entries[i]));
        aura_cache_free(cache, (void *)entries, entries ? chunk_size(c) * sizeof *entries : 0);
    }
    aura_pool_free(cache);
    aura_cache_free(cache, cache->balance, 2 * (size_t)cache->config.kv_heads * cache->config.k_dim * sizeof(float));
    pthread_mutex_destroy(&cache->lock);
    ctx->allocator.free(ctx->allocator.user, cache, sizeof *cache);
}

/* ---- information, space ------------------------------------------------------------------------------------------- */

size_t aura_cache_bytes(const aura_cache *cache)
{
    if (!cache)
        return 0;
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
    size_t bytes = cache->bytes;
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
    return bytes;
}

aura_status aura_cache_get_info(const aura_cache *cache, aura_cache_info *info)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_cache_get_info"};
    aura_status status = check_cache(call, cache);
    if (status || (status = aura_check_call(call, info, sizeof *info)))
        return status;
    const aura_config *c = &cache->config;
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
    info->bytes = cache->bytes;
    info->pages = cache->pages;
    info->free_pages = cache->free_pages;
    info->seqs = cache->seqs;
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
    info->config = *c;
    info->page_bytes = cache->page_bytes;
    info->seq_bytes = cache->seq_bytes;
    info->bits_per_value = 8.0 * cache->layout.head_bytes / ((double)AURA_PAGE * (c->k_dim + c->v_dim));
    return AURA_OK;
}

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
    info->pages = seq->n_pages;
    return AURA_OK;
}

aura_status aura_seq_reserve(aura_cache *cache, aura_seq id, uint64_t tokens)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_reserve"};
    aura_status status = check_cache(call, cache);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, id);
    size_t before;
    if (!seq)
        return AURA_BAD_ARGUMENT;
    if (!(status = aura_pages_take(call, cache, seq, tokens, &before)) && aura_pages_of(tokens) > seq->reserved)
        seq->reserved = aura_pages_of(tokens);
    return status;
}

aura_status aura_truncate(aura_cache *cache, aura_seq id, uint64_t tokens)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_truncate"};
    aura_status status = check_cache(call, cache);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, id);
    if (!seq)
        return AURA_BAD_ARGUMENT;
    if (tokens > seq->len)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens; the sequence has %llu", call.name,
                         (unsigned long long)tokens, (unsigned long long)seq->len);
    size_t keep = aura_pages_of(tokens) > seq->reserved ? aura_pages_of(tokens) : seq->reserved;
    seq->len = tokens;
    seq->closed = seq->closed < tokens ? seq->closed : tokens;
    aura_pages_give(cache, seq, keep);
    return AURA_OK;
}
