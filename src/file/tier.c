/* Pages for tiers: arrays of numbers into pages of a fixed size and back, without a cache. A page is that of a cache all of whose
 * tokens are encoded: the same stages make the same bytes. */
#include "../base/exact.h"
#include "../cache/tile.h"

#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../ref.h"
#include "snapshot.h"

struct aura_page_codec {
    aura_cache shape;   /* what follows from the configuration */
    uint32_t layers;
    float *balance;     /* [2][kv_heads][k_dim], with the inverse; or NULL */
    size_t balance_floats, page_bytes;
};

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

enum { TOGETHER = 16 }; /* vectors that go through a stage */

/* One call. Numbers are [2][layers][tokens][kv_heads][dim]. */
struct tier {
    const aura_page_codec *codec;
    aura_dtype dtype;
    uint32_t tokens;
    const uint8_t *numbers, *pages;
    uint8_t *numbers_out, *pages_out;
    _Atomic size_t bad; /* the first item that cannot be done; SIZE_MAX: none */
};

/* A head of a page of a layer: what an item is about. */
struct part {
    size_t page;
    uint32_t layer, head, first, tokens;
};

static struct part part_of(const struct tier *t, size_t i)
{
    const uint32_t heads = t->codec->shape.config.kv_heads;
    struct part p = {i / heads / t->codec->layers, (uint32_t)(i / heads % t->codec->layers), (uint32_t)(i % heads), 0, 0};
    p.first = (uint32_t)(p.page * AURA_PAGE);
    p.tokens = t->tokens - p.first < AURA_PAGE ? t->tokens - p.first : AURA_PAGE;
    return p;
}

static size_t part_at(const struct tier *t, const struct part *p)
{
    return p->page * t->codec->page_bytes +
           ((size_t)p->layer * t->codec->shape.config.kv_heads + p->head) * t->codec->shape.layout.head_bytes;
}

/* Where the numbers of a token of the part are, in elements. */
static size_t number_at(const struct tier *t, const struct part *p, uint32_t token, int values)
{
    const aura_config *c = &t->codec->shape.config;
    return ((((size_t)values * t->codec->layers + p->layer) * t->tokens + p->first + token) * c->kv_heads + p->head) * c->k_dim;
}

static void found_bad(struct tier *t, size_t i)
{
    size_t first = atomic_load(&t->bad);
    while (i < first && !atomic_compare_exchange_weak(&t->bad, &first, i))
        ;
}

/* One vector, a key with its balance, with zeros up to the dim that is stored. */
static void load_vector(float *x, const struct tier *t, const struct part *p, uint32_t token, int values)
{
    const aura_cache *shape = &t->codec->shape;
    const uint32_t dim = shape->config.k_dim;
    const float *balance = values || !shape->k.balance ? NULL : shape->k.balance + (size_t)p->head * dim;
    const size_t bytes = t->dtype == AURA_F32 ? 4 : 2;
    const uint8_t *from = t->numbers + number_at(t, p, token, values) * bytes;
    for (size_t at = 0; token + TOGETHER < p->tokens && at < dim * bytes; at += 64) /* other heads lie between */
        __builtin_prefetch(from + TOGETHER * (size_t)shape->config.kv_heads * dim * bytes + at);
    shape->ctx->kernels.widen[0](x, from, t->dtype, dim);
    memset(x + dim, 0, (shape->layout.k.dim - dim) * sizeof *x);
    for (uint32_t d = 0; balance && d < dim; d++)
        x[d] = x[d] * balance[d];
}

/* Every head has its share of the tokens of a page, whose numbers are looked at as they lie. Where these may be bad, all vectors
 * of these tokens are checked. */
static void check_item(void *work, size_t i)
{
    struct tier *t = work;
    struct part p = part_of(t, i);
    const uint32_t heads = t->codec->shape.config.kv_heads, all = heads * t->codec->shape.config.k_dim;
    const uint32_t first = p.tokens * p.head / heads, end = p.tokens * (p.head + 1) / heads;
    const size_t item = i - p.head;
    float x[AURA_TILE_DIM];
    for (int values = 0; values < 2; values++) {
        p.head = 0;
        const uint8_t *from = t->numbers + number_at(t, &p, first, values) * aura_dtype_bytes(t->dtype);
        if (aura_are_surely_good(&t->codec->shape, from, t->dtype, (size_t)(end - first) * all, values))
            continue;
        for (; p.head < heads; p.head++)
            for (uint32_t token = first; token < end; token++) {
                load_vector(x, t, &p, token, values);
                if (aura_is_bad_vector(&t->codec->shape, x, values))
                    found_bad(t, item + p.head);
            }
    }
}

/* ---- numbers into pages -------------------------------------------------------------------------------------------- */

/* Tokens [first, first + n) of one tile: rows of f16 where the side has codes, else numbers in the tile. */
static void load_tile(uint16_t *rows, uint8_t *tile, const struct tier *t, const struct part *p, uint32_t first, uint32_t n,
                      int values)
{
    const aura_cache *shape = &t->codec->shape;
    const struct aura_side *side = values ? &shape->layout.v : &shape->layout.k;
    float x[TOGETHER * AURA_TILE_DIM];
    for (uint32_t c = 0, some; c < n; c += some) {
        some = n - c < TOGETHER ? n - c : TOGETHER;
        for (uint32_t i = 0; i < some; i++)
            load_vector(x + (size_t)i * side->dim, t, p, first + c + i, values);
        if (aura_is_packed(side->kind))
            aura_rotate_rows(rows + (size_t)c * side->dim, x, shape, some, values);
        for (uint32_t i = 0; !aura_is_packed(side->kind) && i < some; i++)
            aura_store_plain(shape, tile, c + i, x + (size_t)i * side->dim, values);
    }
}

static void encode_side(const struct tier *t, const struct part *p, uint8_t *head, int values)
{
    const aura_cache *shape = &t->codec->shape;
    const struct aura_side *side = values ? &shape->layout.v : &shape->layout.k;
    const int relative = !values && aura_keeps_references(side->kind, shape->config.flags);
    uint16_t half[AURA_TILE * AURA_TILE_DIM];
    const uint16_t *rows[AURA_TILE];
    float r[AURA_TILE_DIM];
    for (uint32_t c = 0; c < AURA_TILE; c++)
        rows[c] = half + (size_t)c * side->dim;
    for (uint32_t first = 0; first < p->tokens; first += AURA_TILE) {
        const uint32_t n = p->tokens - first < AURA_TILE ? p->tokens - first : AURA_TILE;
        uint8_t *tile = head + (size_t)first / AURA_TILE * shape->layout.tile_bytes;
        load_tile(half, tile, t, p, first, n, values);
        if (!aura_is_packed(side->kind))
            continue;
        if (relative && first == 0)
            aura_mean_reference(shape, head, rows, n);
        if (relative && first == 0)
            aura_load_reference(r, shape, head);
        if (values)
            aura_encode_values(shape, tile, p->head, 0, n, rows);
        else
            aura_encode_keys(shape, tile, p->head, 0, n, rows, relative ? r : NULL);
    }
}

static void encode_item(void *work, size_t i)
{
    struct tier *t = work;
    const struct part p = part_of(t, i);
    uint8_t *head = t->pages_out + part_at(t, &p);
    memset(head, 0, t->codec->shape.layout.head_bytes);
    encode_side(t, &p, head, 0);
    encode_side(t, &p, head, 1);
}

/* ---- pages into numbers -------------------------------------------------------------------------------------------- */

/* Tokens [c, c + n) of a tile as they were given, but for rounding: x[n][stored dim]. r: what keys are relative to, or NULL. */
static void decode_tokens(float *x, const struct tier *t, const uint8_t *tile, uint32_t head, uint32_t c, uint32_t n,
                          const float *r, int values)
{
    const aura_cache *shape = &t->codec->shape;
    const struct aura_layout *l = &shape->layout;
    const struct aura_side *side = values ? &l->v : &l->k;
    const uint8_t *at = tile + (values ? l->v_at : 0);
    const uint32_t dim = shape->config.k_dim;
    const float *inverse = values || !shape->k.balance ? NULL : shape->k.inverse_balance + (size_t)head * dim;
    const struct aura_tile words = {(const uint32_t *)(const void *)at, NULL,
                                    (const uint16_t *)(const void *)(tile + (values ? l->v_scale_at : l->k_scale_at)), side, 1};
    if (aura_is_packed(side->kind))
        shape->ctx->kernels.unpack[side->kind](x, &words, c, c + n, r);
    else
        aura_load_row(x, at, aura_dtype_of_kind(side->kind), (size_t)c * side->dim, (size_t)n * side->dim);
    if (aura_is_packed(side->kind))
        shape->ctx->kernels.undo[0](x, x, values ? &shape->v.undo : &shape->k.undo, n);
    for (uint32_t i = 0; inverse && i < n; i++)
        for (uint32_t d = 0; d < dim; d++)
            x[(size_t)i * side->dim + d] = x[(size_t)i * side->dim + d] * inverse[d];
}

static void decode_side(const struct tier *t, const struct part *p, const uint8_t *head, int values)
{
    const aura_cache *shape = &t->codec->shape;
    const struct aura_side *side = values ? &shape->layout.v : &shape->layout.k;
    const int relative = !values && aura_keeps_references(side->kind, shape->config.flags);
    float x[TOGETHER * AURA_TILE_DIM], r[AURA_TILE_DIM];
    if (relative)
        aura_load_reference(r, shape, head);
    for (uint32_t token = 0, n; token < p->tokens; token += n) {
        const uint8_t *tile = head + (size_t)token / AURA_TILE * shape->layout.tile_bytes;
        n = p->tokens - token < TOGETHER ? p->tokens - token : TOGETHER;
        decode_tokens(x, t, tile, p->head, token % AURA_TILE, n, relative ? r : NULL, values);
        for (uint32_t i = 0; i < n; i++)
            shape->ctx->kernels.narrow[0](t->numbers_out + number_at(t, p, token + i, values) * aura_dtype_bytes(t->dtype),
                                          x + (size_t)i * side->dim, t->dtype, shape->config.k_dim);
    }
}

/* Pages come from somewhere else: a number that nobody can have stored is found before anything is written. */
static void sound_item(void *work, size_t i)
{
    struct tier *t = work;
    const struct part p = part_of(t, i);
    if (!aura_is_sound_head(t->pages + part_at(t, &p), &t->codec->shape.layout))
        found_bad(t, i);
}

static void decode_item(void *work, size_t i)
{
    struct tier *t = work;
    const struct part p = part_of(t, i);
    const uint8_t *head = t->pages + part_at(t, &p);
    decode_side(t, &p, head, 0);
    decode_side(t, &p, head, 1);
}

/* ---- the calls ----------------------------------------------------------------------------------------------------- */

aura_status aura_page_codec_create(aura_ctx *ctx, const aura_config *config, uint32_t layers, aura_page_codec **codec)
{
    struct aura_call call = {ctx, "aura_page_codec_create"};
    void *memory = NULL;
    if (!ctx || !codec)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, ctx ? "codec" : "ctx");
    if (layers == 0 || layers > AURA_MOST_LAYERS)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %u layers", call.name, layers);
    aura_status status = aura_take_memory(call, sizeof(aura_page_codec), &memory);
    if (status)
        return status;
    aura_page_codec *made = memset(memory, 0, sizeof *made);
    aura_cache *shape = &made->shape;
    status = aura_cache_shape(call, ctx, config, shape);
    const aura_config *c = &shape->config;
    if (!status && (c->k_dim != c->v_dim || c->window || c->slots || c->budget_bytes))
        status = aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: keys and values of one size, and no window, slots or budget", call.name);
    if (!status && (c->k_metric || c->v_metric || c->v_balance))
        status = aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: metrics and a balance of values are of caches", call.name);
    made->balance_floats = status || !c->balance ? 0 : 2 * (size_t)c->kv_heads * c->k_dim;
    if (!status && made->balance_floats &&
        !(status = aura_take_memory(call, made->balance_floats * sizeof(float), (void **)&made->balance))) {
        const size_t n = made->balance_floats / 2;
        for (size_t i = 0; i < n; i++) {
            made->balance[i] = c->balance[i];
            made->balance[n + i] = 1 / c->balance[i];
        }
        shape->k.balance = made->balance;
        shape->k.inverse_balance = made->balance + n;
    }
    made->layers = layers;
    made->page_bytes = (size_t)layers * shape->page_bytes;
    if (status)
        aura_give_memory(ctx, made, sizeof *made);
    else
        *codec = made;
    return status;
}

void aura_page_codec_destroy(aura_page_codec *codec)
{
    if (!codec)
        return;
    const aura_ctx *ctx = codec->shape.ctx;
    aura_give_memory(ctx, codec->balance, codec->balance_floats * sizeof(float));
    aura_give_memory(ctx, codec, sizeof *codec);
}

size_t aura_page_codec_bytes(const aura_page_codec *codec, uint32_t tokens)
{
    return codec ? aura_times(codec->page_bytes, aura_pages_of(tokens)) : 0;
}

/* Sizes, alignments, and that the two do not overlap. */
static aura_status check_tier(struct aura_call call, const aura_page_codec *codec, aura_dtype dtype, uint32_t tokens,
                              const void *numbers, const void *pages, size_t bytes)
{
    aura_status status;
    if (!codec)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: codec is NULL", call.name);
    if (bytes != aura_page_codec_bytes(codec, tokens))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %zu bytes; the pages of %u tokens have %zu", call.name, bytes, tokens,
                         aura_page_codec_bytes(codec, tokens));
    if ((status = aura_check_dtype(call, "dtype", dtype)))
        return status;
    const aura_config *c = &codec->shape.config;
    const size_t width = (size_t)c->kv_heads * c->k_dim, rows = aura_times(2 * (size_t)codec->layers, tokens);
    const struct aura_extent plain = {"numbers", numbers, aura_dtype_bytes(dtype), width, width, rows};
    const struct aura_extent coded = {"pages", pages, 4, bytes / 4, bytes / 4, tokens ? 1 : 0};
    if ((status = aura_check_rows(call, &plain)) || (status = aura_check_rows(call, &coded)))
        return status;
    return aura_check_apart(call, &plain, &coded);
}

static aura_status run_tier(struct aura_call call, struct tier *t, void (*check)(void *, size_t), void (*item)(void *, size_t))
{
    const aura_page_codec *codec = t->codec;
    const uint32_t heads = codec->shape.config.kv_heads;
    const size_t items = aura_pages_of(t->tokens) * codec->layers * heads;
    atomic_init(&t->bad, SIZE_MAX);
    aura_run(call.ctx, items, check, t);
    const size_t bad = atomic_load(&t->bad);
    if (bad != SIZE_MAX)
        return aura_fail(call.ctx, t->pages_out ? AURA_BAD_VALUE : AURA_BAD_FILE, "%s: page %zu, layer %zu, KV head %zu has %s",
                         call.name, bad / heads / codec->layers, bad / heads % codec->layers, bad % heads,
                         t->pages_out ? "a vector with NaN or Inf, or too large to store" : "a number that nobody can have stored");
    aura_run(call.ctx, items, item, t);
    return AURA_OK;
}

aura_status aura_pages_encode(const aura_page_codec *codec, const void *numbers, aura_dtype dtype, uint32_t tokens, void *pages,
                              size_t bytes)
{
    struct aura_call call = {codec ? codec->shape.ctx : NULL, "aura_pages_encode"};
    struct tier t = {.codec = codec, .dtype = dtype, .tokens = tokens, .numbers = numbers, .pages_out = pages};
    aura_status status = check_tier(call, codec, dtype, tokens, numbers, pages, bytes);
    return status || !tokens ? status : run_tier(call, &t, check_item, encode_item);
}

aura_status aura_pages_decode(const aura_page_codec *codec, const void *pages, size_t bytes, uint32_t tokens, void *numbers,
                              aura_dtype dtype)
{
    struct aura_call call = {codec ? codec->shape.ctx : NULL, "aura_pages_decode"};
    struct tier t = {.codec = codec, .dtype = dtype, .tokens = tokens, .pages = pages, .numbers_out = numbers};
    aura_status status = check_tier(call, codec, dtype, tokens, numbers, pages, bytes);
    return status || !tokens ? status : run_tier(call, &t, sound_item, decode_item);
}
