/* Tokens out of the cache, in model space. */
#include "../base/exact.h"
#include "tile.h"

#include <string.h>

#include "../base/dtype.h"

enum { MOST_FLOATS = 8192 }; /* that are decoded together: 32 KiB of stack, a tile of up to 256 channels */

/* Encoded vectors, columns [from, to) of a tile, in rotated space: y[to - from][dim]. */
static void decode_codes(float *y, const aura_cache *cache, const uint8_t *tile, uint32_t from, uint32_t to, const float *r,
                         int values)
{
    const struct aura_layout *l = &cache->layout;
    const struct aura_side *s = values ? &l->v : &l->k;
    const struct aura_tile side = {(const uint32_t *)(const void *)(tile + (values ? l->v_at : 0)), NULL,
                                   (const uint16_t *)(const void *)(tile + (values ? l->v_scale_at : l->k_scale_at)), s, 1};
    cache->ctx->kernels.unpack[s->kind](y, &side, from, to, r);
}

/* Tokens [token, token + n) of one tile, in rotated space. */
static void decode_rotated(float *y, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t n,
                           uint32_t head, int values)
{
    const uint32_t dim = values ? cache->layout.v.dim : cache->layout.k.dim, c = (uint32_t)(token % AURA_TILE);
    float r[AURA_TILE_DIM];
    uint32_t from = 0, to = n;
    while (from < n && token + from < cache->pinned)
        from++;
    while (to > from && token + to > seq->closed)
        to--;
    for (uint32_t i = 0; i < n; i++)
        if (i < from || i >= to)
            cache->ctx->kernels.widen[0](y + (size_t)i * dim, aura_row_of(cache, values ? seq->v : seq->k, dim, head, token + i),
                                         AURA_F16, dim);
    if (from >= to)
        return;
    const int relative = !values && aura_has_reference(cache, seq->closed, token / AURA_PAGE);
    if (relative)
        aura_load_reference(r, cache, aura_head_of(cache, seq, (size_t)(token / AURA_PAGE), head));
    decode_codes(y + (size_t)from * dim, cache, aura_tile_of(cache, seq, token / AURA_TILE, head), c + from, c + to,
                 relative ? r : NULL, values);
}

static void decode_plain(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head,
                         int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    aura_dtype dtype = aura_dtype_of_kind(side->kind);
    const uint8_t *tile = aura_tile_of(cache, seq, token / AURA_TILE, head) + (values ? cache->layout.v_at : 0);
    aura_load_row(x, tile, dtype, (size_t)(token % AURA_TILE) * side->dim, side->dim);
}

/* Tokens [token, token + n) of one tile, in model space: x[n][stored dim]. */
static void decode_tokens(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t n,
                          uint32_t head, int values)
{
    const uint32_t given = values ? cache->config.v_dim : cache->config.k_dim;
    const uint32_t stored = values ? cache->layout.v.dim : cache->layout.k.dim;
    const struct aura_codec_side *plan = values ? &cache->v : &cache->k;
    const float *inverse = plan->balance ? plan->inverse_balance + (size_t)head * given : NULL;
    if (!aura_is_packed(values ? cache->layout.v.kind : cache->layout.k.kind)) {
        for (uint32_t i = 0; i < n; i++)
            decode_plain(x + (size_t)i * stored, cache, seq, token + i, head, values);
    } else {
        decode_rotated(x, cache, seq, token, n, head, values);
        cache->ctx->kernels.undo[0](x, x, &plan->undo, n);
        for (uint32_t i = 0; inverse && i < n; i++)
            for (uint32_t d = 0; d < given; d++)
                x[(size_t)i * stored + d] = x[(size_t)i * stored + d] * inverse[d];
    }
    for (uint32_t i = 0; stored > given && i < n; i++)
        memset(x + (size_t)i * stored + given, 0, (stored - given) * sizeof *x); /* what was zeros */
}

void aura_decode_vector(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head,
                        int values)
{
    decode_tokens(x, cache, seq, token, 1, head, values);
}

/* One call. */
struct decode {
    const aura_cache *cache;
    const struct aura_sequence *seq;
    uint64_t first;
    uint32_t tokens;
    const uint64_t *slot;            /* [tokens], instead of tokens from `first` on; or NULL */
    const aura_view *view[2];        /* keys, values; NULL: not asked for */
    struct aura_strides strides[2];
};

static void store_vector(const struct decode *d, size_t token, uint32_t head, const float *x, int values)
{
    const aura_view *view = d->view[values];
    char *at = (char *)view->data + aura_view_at(view->dtype, view->rows, d->strides[values], token, head);
    d->cache->ctx->kernels.narrow[0](at, x, view->dtype, values ? d->cache->config.v_dim : d->cache->config.k_dim);
}

/* Tokens that follow each other in a tile, of one head: all that are asked for, or one slot. */
static void decode_item(void *work, size_t i)
{
    const struct decode *d = work;
    const aura_cache *cache = d->cache;
    const uint32_t head = (uint32_t)(i % cache->config.kv_heads);
    const size_t part = i / cache->config.kv_heads; /* of the call: tile or slot */
    const uint64_t tile = d->first / AURA_TILE + part, begin = d->slot ? d->slot[part] : tile * AURA_TILE;
    const uint64_t first = d->slot || begin > d->first ? begin : d->first, end = d->slot ? begin + 1 : d->first + d->tokens;
    float x[MOST_FLOATS];
    for (int values = 0; values < 2; values++) {
        const uint32_t stored = values ? cache->layout.v.dim : cache->layout.k.dim, most = MOST_FLOATS / stored;
        if (!d->view[values])
            continue;
        for (uint64_t token = first, n; token < end && token < begin + AURA_TILE; token += n) {
            n = (end < begin + AURA_TILE ? end : begin + AURA_TILE) - token;
            n = n < most ? n : most;
            decode_tokens(x, cache, d->seq, token, (uint32_t)n, head, values);
            for (uint64_t t = 0; t < n; t++)
                store_vector(d, d->slot ? part : (size_t)(token + t - d->first), head, x + t * stored, values);
        }
    }
}

static aura_status check_side(struct aura_call call, struct decode *d, const char *what, const aura_view *view,
                              uint32_t tokens, int values)
{
    const aura_config *c = &d->cache->config;
    uint32_t dim = values ? c->v_dim : c->k_dim;
    aura_status status;
    d->view[values] = view && view->data ? view : NULL;
    if (!d->view[values])
        return AURA_OK;
    aura_input place = aura_place_of(view);
    if ((status = aura_check_view(call, what, &place)) ||
        (status = aura_check_view_extent(call, what, &place, tokens, c->kv_heads, dim)))
        return status;
    d->strides[values] = aura_view_strides(&place, c->kv_heads, dim);
    return aura_check_view_apart(call, what, &place, tokens, c->kv_heads, dim);
}

static aura_status decode(struct aura_call call, struct decode *d, uint32_t tokens, const aura_view *k, const aura_view *v)
{
    aura_status status;
    if ((status = check_side(call, d, "k", k, tokens, 0)) || (status = check_side(call, d, "v", v, tokens, 1)))
        return status;
    const uint64_t tiles = tokens ? (d->first + tokens - 1) / AURA_TILE - d->first / AURA_TILE + 1 : 0;
    d->tokens = tokens;
    aura_run(d->cache->ctx, (size_t)(d->slot ? tokens : tiles) * d->cache->config.kv_heads, decode_item, d);
    return AURA_OK;
}

aura_status aura_cache_decode(const aura_cache *cache, aura_seq seq, uint64_t first, uint32_t tokens, const aura_view *k,
                              const aura_view *v)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_cache_decode"};
    struct decode d = {.cache = cache, .first = first};
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    if (!(d.seq = aura_find_seq(call, cache, seq)))
        return AURA_BAD_ARGUMENT;
    if (first > d.seq->len || tokens > d.seq->len - first)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: tokens [%llu, %llu) of %llu", call.name,
                         (unsigned long long)first, (unsigned long long)first + tokens, (unsigned long long)d.seq->len);
    if (!aura_tokens_exist(cache, d.seq, first, first + tokens))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: tokens [%llu, %llu) are not all there; those below %llu are gone, but "
                         "for the first %u", call.name, (unsigned long long)first, (unsigned long long)first + tokens,
                         (unsigned long long)d.seq->pages.first * AURA_PAGE, cache->config.keep_first);
    return decode(call, &d, tokens, k, v);
}

aura_status aura_slots_decode(const aura_cache *cache, const uint64_t *slot, uint32_t tokens, const aura_view *k,
                              const aura_view *v)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_slots_decode"};
    struct decode d = {.cache = cache, .slot = slot};
    aura_status status = aura_check_slots(call, cache, slot, tokens);
    if (status)
        return status;
    d.seq = cache->slots;
    return decode(call, &d, tokens, k, v);
}
