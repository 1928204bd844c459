/* Caches: create, describe, destroy. */
#include "../base/exact.h"
#include "cache.h"

#include <math.h>
#include <string.h>

#include "../base/batch.h"
#include "../base/fpmode.h"
#include "../codec.h"
#include "../rotation.h"

static aura_status check_windows_and_slots(struct aura_call call, const aura_config *c)
{
    if (!c->window && (c->max_queries || c->keep_first))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: max_queries %u and keep_first %u are of a window; there is none",
                         call.name, c->max_queries, c->keep_first);
    if (c->window && c->slots)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a window of slots; give the window to aura_attend", call.name);
    if (c->window > UINT64_MAX / 4 || c->slots > SIZE_MAX / 2)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: window %llu or slots %llu", call.name, (unsigned long long)c->window,
                         (unsigned long long)c->slots);
    return AURA_OK;
}

/* The configuration with its defaults, checked. */
static aura_status complete_config(struct aura_call call, aura_config *c, const aura_config *given)
{
    const uint32_t known = AURA_NO_REFERENCE | AURA_NO_PINNED | AURA_NO_ROLLBACK | AURA_NO_OPEN | AURA_NO_SEARCH | AURA_LEARN;
    aura_status status = aura_check_call(call, given, sizeof *given);
    if (status)
        return status;
    *c = *given;
    c->format.k = c->format.k ? c->format.k : AURA_KIND_B4;
    c->format.v = c->format.v ? c->format.v : AURA_KIND_B4;
    c->v_dim = c->v_dim ? c->v_dim : c->k_dim;
    c->rollback = c->rollback ? c->rollback : 16;
    c->max_queries = c->window && !c->max_queries ? 512 : c->max_queries;
    c->flags |= c->slots ? AURA_NO_PINNED | AURA_NO_OPEN : 0;
    if ((status = aura_check_format(call, c->format)) || (status = aura_check_cache_dims(call, c->k_dim, c->v_dim)) ||
        (status = aura_check_heads(call, c->q_heads ? c->q_heads : c->kv_heads, c->kv_heads)))
        return status;
    if (c->q_heads > 1u << 16 || c->kv_heads > 1u << 16)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %u query heads, %u KV heads; at most 65536", call.name, c->q_heads,
                         c->kv_heads);
    if (c->rollback > AURA_MAX_ROLLBACK || (c->flags & ~known))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rollback %u (1 to %d) or flags 0x%x (within 0x%x)", call.name,
                         c->rollback, (int)AURA_MAX_ROLLBACK, c->flags, known);
    if (c->flags & AURA_NO_OPEN && !(c->flags & AURA_NO_REFERENCE) && !c->slots && aura_is_packed((uint32_t)c->format.k))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                         "%s: AURA_NO_OPEN needs AURA_NO_REFERENCE: a reference is made of 32 tokens before they are encoded",
                         call.name);
    if ((status = check_windows_and_slots(call, c)))
        return status;
    return aura_check_numbers(call, c);
}

_Static_assert((AURA_RING & (AURA_RING - 1)) == 0, "aura_ring_row() needs a power of two");

static void codec_init(struct aura_codec_side *side, const aura_config *c, uint32_t stream, uint32_t kind, uint32_t dim)
{
    uint8_t signs[AURA_MAX_DIM / 8];
    aura_scale_rule rule = stream == 1 && aura_bits_of(kind) <= 3 ? AURA_SCALE_UNBIASED : AURA_SCALE_MATCHED;
    if (!aura_is_packed(kind))
        return;
    aura_signs(c->seed, stream, dim, signs);
    aura_rotation_plan_init(&side->rotate, dim, signs, NULL, 0);
    aura_rotation_plan_init(&side->undo, dim, signs, NULL, 1);
    aura_kind_plan_init(&side->codec, kind, dim, rule, !(c->flags & AURA_NO_SEARCH));
}

/* The slack is for tokens that are taken back, or asked about at once. The mask is the least 2^n - 1 of at least ring - 1, so that
 * as many pages as a ring have places of their own. */
static void window_init(aura_cache *cache)
{
    const aura_config *c = &cache->config;
    struct aura_page_window *w = &cache->window;
    w->mask = SIZE_MAX;
    if (!c->window)
        return;
    w->tokens = c->window;
    w->span = c->window + (c->max_queries > cache->rollback ? c->max_queries : cache->rollback);
    w->kept = aura_pages_of(c->keep_first);
    w->mask = 1;
    while (w->mask < aura_window_ring(w) - 1)
        w->mask = 2 * w->mask + 1;
}

/* Rows for the open tokens of a head: a power of two, since tokens take them in turns. */
static uint32_t ring_of(uint32_t rollback)
{
    uint32_t ring = AURA_RING;
    while (ring < AURA_TILE + rollback)
        ring *= 2;
    return ring;
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
    cache->budget = &cache->own_budget;
    cache->own_budget.limit = c->budget_bytes;
    atomic_init(&cache->own_budget.bytes, sizeof *cache);
    aura_layout_init(l, c->format, c->k_dim, c->v_dim);
    codec_init(&cache->k, c, 0, l->k.kind, l->k.dim);
    codec_init(&cache->v, c, 1, l->v.kind, l->v.dim);
    aura_codebook_get(AURA_TABLE_GRID, 8, &book);
    aura_codec_plan_init(&cache->reference_codec, &book, l->k.dim, AURA_SCALE_MATCHED, !(c->flags & AURA_NO_SEARCH));
    cache->pinned = c->flags & AURA_NO_PINNED ? 0 : AURA_PINNED;
    cache->rollback = c->flags & (AURA_NO_ROLLBACK | AURA_NO_OPEN) ? 0 : c->rollback;
    cache->rows = cache->pinned + (c->flags & AURA_NO_OPEN ? 1 : ring_of(cache->rollback));
    cache->page_bytes = (size_t)c->kv_heads * l->head_bytes;
    window_init(cache);
    size_t row_bytes = 2 * ((aura_is_packed(l->k.kind) ? l->k.dim : 0) + (aura_is_packed(l->v.kind) ? l->v.dim : 0));
    cache->rows_bytes = (size_t)c->kv_heads * cache->rows * row_bytes;
    cache->seq_bytes = (sizeof(struct aura_sequence) + 63) / 64 * 64 + cache->rows_bytes;
    cache->slab_pages = ((size_t)16 << 20) / cache->page_bytes;
    if (!cache->slab_pages)
        cache->slab_pages = 1;
}

aura_status aura_cache_shape(struct aura_call call, aura_ctx *ctx, const aura_config *config, aura_cache *shape)
{
    aura_config c;
    aura_status status = complete_config(call, &c, config);
    if (status)
        return status;
    uint64_t mode = aura_fpmode_enter();
    cache_init(shape, ctx, &c);
    aura_fpmode_leave(mode);
    return AURA_OK;
}

aura_status aura_cache_make(struct aura_call call, aura_ctx *ctx, const aura_config *config, struct aura_model_cache *model,
                            struct aura_budget *budget, aura_cache **cache)
{
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
    if (pthread_mutex_init(&made->lock, NULL)) {
        aura_fpmode_leave(mode);
        ctx->allocator.free(ctx->allocator.user, made, sizeof *made);
        return aura_fail(ctx, AURA_OUT_OF_MEMORY, "%s: the system has no mutex left", call.name);
    }
    size_t least = sizeof *made + made->seq_bytes + made->page_bytes + 4096;
    if (model) {
        made->model = model;
        made->budget = budget;
        if (!aura_budget_take(budget, sizeof *made)) {
            atomic_fetch_add(&budget->bytes, sizeof *made); /* which aura_cache_unmake gives back */
            status = aura_fail(ctx, AURA_OUT_OF_PAGES, "%s: a budget of %zu bytes is too small for such a model", call.name,
                               budget->limit);
        }
    }
    if (c.budget_bytes && c.budget_bytes < least)
        status = aura_fail(ctx, AURA_OUT_OF_PAGES, "%s: in a budget of %zu bytes no page fits; give %zu or more", call.name,
                           c.budget_bytes, least);
    if (!status)
        status = aura_numbers_make(call, made);
    if (!status)
        status = aura_learning_make(call, made);
    aura_fpmode_leave(mode);
    if (!status && c.slots)
        status = aura_slots_make(call, made);
    if (status)
        aura_cache_unmake(made);
    else
        *cache = made;
    return status;
}

aura_status aura_cache_create(aura_ctx *ctx, const aura_config *config, aura_cache **cache)
{
    struct aura_call call = {ctx, "aura_cache_create"};
    return aura_cache_make(call, ctx, config, NULL, NULL, cache);
}

void aura_cache_destroy(aura_cache *cache)
{
    if (cache && !cache->model) /* a layer goes with its model */
        aura_cache_unmake(cache);
}

void aura_cache_unmake(aura_cache *cache)
{
    const aura_ctx *ctx = cache->ctx;
    aura_seqs_free(cache);
    if (cache->slots)
        aura_seq_unmake(cache, cache->slots);
    aura_pool_free(cache);
    aura_learning_unmake(cache);
    aura_numbers_unmake(cache);
    pthread_mutex_destroy(&cache->lock);
    atomic_fetch_sub(&cache->budget->bytes, sizeof *cache);
    ctx->allocator.free(ctx->allocator.user, cache, sizeof *cache);
}

/* ---- information --------------------------------------------------------------------------------------------------- */

size_t aura_cache_bytes(const aura_cache *cache)
{
    if (!cache)
        return 0;
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
    size_t bytes = cache->bytes;
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
    return bytes;
}

/* Attention only reads a cache, and threads may do so side by side. */
void aura_count_time(const aura_cache *cache, enum aura_time what, uint64_t start)
{
    atomic_fetch_add_explicit(&((aura_cache *)cache)->nanoseconds[what], aura_nanoseconds() - start, memory_order_relaxed);
}

static double seconds_of(const aura_cache *cache, enum aura_time what)
{
    return 1e-9 * (double)atomic_load_explicit(&((aura_cache *)cache)->nanoseconds[what], memory_order_relaxed);
}

aura_status aura_cache_get_info(const aura_cache *cache, aura_cache_info *info)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_cache_get_info"};
    aura_status status;
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    if ((status = aura_check_call(call, info, sizeof *info)))
        return status;
    const aura_config *c = &cache->config;
    pthread_mutex_lock((pthread_mutex_t *)&cache->lock);
    info->bytes = cache->bytes;
    info->pages = cache->pages;
    info->free_pages = cache->pool.n_free;
    info->seqs = cache->seqs;
    info->shared_pages = cache->pool.shared;
    info->holders = cache->pool.holders;
    info->tokens = cache->tokens;
    info->pages_copied = cache->pages_copied;
    info->tiles_closed = cache->tiles_closed;
    pthread_mutex_unlock((pthread_mutex_t *)&cache->lock);
    info->append_s = seconds_of(cache, AURA_TIME_APPEND);
    info->attend_s = seconds_of(cache, AURA_TIME_ATTEND);
    info->step_s = seconds_of(cache, AURA_TIME_STEP);
    info->token_slots = (uint64_t)info->holders * AURA_PAGE;
    info->config = *c;
    info->page_bytes = cache->page_bytes;
    info->seq_bytes = cache->seq_bytes;
    info->bits_per_value = 8.0 * cache->layout.head_bytes / ((double)AURA_PAGE * (c->k_dim + c->v_dim));
    return AURA_OK;
}
