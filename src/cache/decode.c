/* Tokens out of the cache, in model space. */
#include "../base/exact.h"
#include "tile.h"

#include <string.h>

#include "../base/dtype.h"
#include "../ref.h"

/* The encoded vector of column c, in rotated space. */
static void decode_codes(float *y, const aura_cache *cache, const uint8_t *tile, uint32_t c, int values)
{
    const struct aura_layout *l = &cache->layout;
    const struct aura_codec_plan *codec = values ? &cache->v.codec : &cache->k.codec;
    const uint16_t *scale = (const uint16_t *)(const void *)(tile + (values ? l->v_scale_at : l->k_scale_at));
    struct aura_tile side = {(const uint32_t *)(const void *)(tile + (values ? l->v_at : 0)), NULL, scale,
                             values ? &l->v : &l->k, 1};
    for (uint32_t d = 0; d < side.side->dim; d++) {
        uint8_t code = values ? aura_ref_code(&side, c, d) : aura_ref_code(&side, d, c);
        uint32_t index = side.side->kind == 8 ? (uint32_t)((int8_t)code + 127) : code;
        y[d] = codec->centroid[index] * aura_f32_from_f16(scale[c]);
    }
}

static void decode_key(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head)
{
    uint32_t dim = cache->layout.k.dim, given = cache->config.k_dim;
    float y[AURA_TILE_DIM], r[AURA_TILE_DIM];
    if (token < cache->pinned || token >= seq->closed) {
        aura_load_row(y, aura_row_of(cache, seq->k, dim, head, token), AURA_F16, 0, dim);
    } else {
        decode_codes(y, cache, aura_tile_of(cache, seq, token / AURA_TILE, head), (uint32_t)(token % AURA_TILE), 0);
        if (aura_has_reference(cache, seq->closed, token / AURA_PAGE)) {
            aura_load_reference(r, cache, aura_head_of(cache, seq, (size_t)(token / AURA_PAGE), head));
            for (uint32_t d = 0; d < dim; d++)
                y[d] = y[d] + r[d];
        }
    }
    cache->ctx->kernels.undo[0](x, y, &cache->k.undo, 1);
    for (uint32_t d = 0; cache->k.balance && d < given; d++)
        x[d] = x[d] * cache->k.inverse_balance[(size_t)head * given + d];
}

static void decode_value(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head)
{
    uint32_t dim = cache->layout.v.dim;
    float y[AURA_TILE_DIM];
    if (token < cache->pinned || token >= seq->closed)
        aura_load_row(y, aura_row_of(cache, seq->v, dim, head, token), AURA_F16, 0, dim);
    else
        decode_codes(y, cache, aura_tile_of(cache, seq, token / AURA_TILE, head), (uint32_t)(token % AURA_TILE), 1);
    cache->ctx->kernels.undo[0](x, y, &cache->v.undo, 1);
    for (uint32_t d = 0; cache->v.balance && d < cache->config.v_dim; d++)
        x[d] = x[d] * cache->v.inverse_balance[(size_t)head * cache->config.v_dim + d];
}

static void decode_plain(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head,
                         int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    aura_dtype dtype = aura_dtype_of_kind(side->kind);
    const uint8_t *tile = aura_tile_of(cache, seq, token / AURA_TILE, head) + (values ? cache->layout.v_at : 0);
    aura_load_row(x, tile, dtype, (size_t)(token % AURA_TILE) * side->dim, side->dim);
}

void aura_decode_vector(float *x, const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head,
                        int values)
{
    const uint32_t given = values ? cache->config.v_dim : cache->config.k_dim;
    const uint32_t stored = values ? cache->layout.v.dim : cache->layout.k.dim;
    if (!aura_is_packed(values ? cache->layout.v.kind : cache->layout.k.kind))
        decode_plain(x, cache, seq, token, head, values);
    else if (values)
        decode_value(x, cache, seq, token, head);
    else
        decode_key(x, cache, seq, token, head);
    memset(x + given, 0, (stored - given) * sizeof *x); /* what was zeros */
}

/* One call. */
struct decode {
    const aura_cache *cache;
    const struct aura_sequence *seq;
    uint64_t first;
    const uint64_t *slot;            /* [tokens], instead of tokens from `first` on; or NULL */
    const aura_view *view[2];        /* keys, values; NULL: not asked for */
    struct aura_strides strides[2];
};

static void decode_item(void *work, size_t i)
{
    struct decode *d = work;
    const aura_cache *cache = d->cache;
    uint32_t heads = cache->config.kv_heads, head = (uint32_t)(i % heads);
    uint64_t token = d->slot ? d->slot[i / heads] : d->first + i / heads;
    float x[AURA_TILE_DIM];
    for (int values = 0; values < 2; values++) {
        if (!d->view[values])
            continue;
        aura_decode_vector(x, cache, d->seq, token, head, values);
        uint32_t dim = values ? cache->config.v_dim : cache->config.k_dim;
        aura_view_store(d->view[values], d->strides[values], i / heads, head, x, dim);
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
    aura_run(d->cache->ctx, (size_t)tokens * d->cache->config.kv_heads, decode_item, d);
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
