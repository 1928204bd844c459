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

#if defined(__x86_64__)
#include <immintrin.h>
AURA_TARGET("avx2,f16c")
static void load_f16_avx2(float *x, const uint16_t *from, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm256_storeu_ps(x + i, _mm256_cvtph_ps(_mm_loadu_si128((const __m128i *)(const void *)(from + i))));
}

static void store_f16_avx2(uint16_t *to, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i += 8)
        _mm_storeu_si128((__m128i *)(void *)(to + i), _mm256_cvtps_ph(_mm256_loadu_ps(x + i), _MM_FROUND_TO_NEAREST_INT));
}

static void levels_avx2(float *y, const uint8_t *code, const struct aura_codec_plan *plan, float scale, size_t n)
{
    for (size_t d = 0; d < n; d++)
        y[d] = plan->step * (plan->spacing * (float)code[d] + plan->first) * scale;
}

static void bytes_avx2(uint8_t *code, const uint32_t *quad, size_t n)
{
    for (int i = 0; i < 4; i++)
        for (size_t d = 0; d < n; d++)
            code[(size_t)i * AURA_TILE_DIM + d] = (uint8_t)(quad[d] >> 8 * i);
}
AURA_TARGET_END
enum { HAS_F16 = AURA_ISA_AVX2 };
#else
enum { HAS_F16 = 0 };
#define load_f16_avx2(x, from, n) ((void)0)
#define store_f16_avx2(to, x, n) ((void)0)
#define levels_avx2(y, code, plan, scale, n) ((void)0)
#define bytes_avx2(code, quad, n) ((void)0)
#endif

/* Numbers in eights where the instructions are there; others one by one. */
static void load_numbers(float *x, const aura_cache *shape, const void *from, aura_dtype dtype, size_t first, size_t n)
{
    if (dtype == AURA_F16 && n % 8 == 0 && shape->ctx->isas & HAS_F16)
        load_f16_avx2(x, (const uint16_t *)from + first, n);
    else
        aura_load_row(x, from, dtype, first, n);
}

static void store_numbers(void *to, const aura_cache *shape, aura_dtype dtype, size_t first, const float *x, size_t n)
{
    if (dtype == AURA_F16 && n % 8 == 0 && shape->ctx->isas & HAS_F16)
        store_f16_avx2((uint16_t *)to + first, x, n);
    else
        aura_store_row(to, dtype, first, x, n);
}

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
    load_numbers(x, shape, t->numbers, t->dtype, number_at(t, p, token, values), dim);
    memset(x + dim, 0, (shape->layout.k.dim - dim) * sizeof *x);
    for (uint32_t d = 0; balance && d < dim; d++)
        x[d] = x[d] * balance[d];
}

static void check_item(void *work, size_t i)
{
    struct tier *t = work;
    const struct part p = part_of(t, i);
    float x[AURA_TILE_DIM];
    for (int values = 0; values < 2; values++)
        for (uint32_t token = 0; token < p.tokens; token++) {
            load_vector(x, t, &p, token, values);
            if (aura_is_bad_vector(&t->codec->shape, x, values)) {
                found_bad(t, i);
                return;
            }
        }
}

/* ---- numbers into pages -------------------------------------------------------------------------------------------- */

static void encode_side(const struct tier *t, const struct part *p, uint8_t *head, int values)
{
    const aura_cache *shape = &t->codec->shape;
    const struct aura_side *side = values ? &shape->layout.v : &shape->layout.k;
    const int relative = !values && aura_keeps_references(side->kind, shape->config.flags);
    uint16_t half[AURA_TILE][AURA_TILE_DIM];
    const uint16_t *rows[AURA_TILE];
    float x[AURA_TILE_DIM], r[AURA_TILE_DIM];
    for (uint32_t first = 0; first < p->tokens; first += AURA_TILE) {
        const uint32_t n = p->tokens - first < AURA_TILE ? p->tokens - first : AURA_TILE;
        uint8_t *tile = head + (size_t)first / AURA_TILE * shape->layout.tile_bytes;
        for (uint32_t c = 0; c < n; c++) {
            rows[c] = half[c];
            load_vector(x, t, p, first + c, values);
            if (!aura_is_packed(side->kind)) {
                aura_store_plain(shape, tile, c, x, values);
                continue;
            }
            shape->ctx->kernels.rotate[0](x, x, values ? &shape->v.rotate : &shape->k.rotate, 1);
            store_numbers(half[c], shape, AURA_F16, 0, x, side->dim);
        }
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

/* Codes of column c of the keys. */
AURA_INLINE void key_codes(uint8_t *code, const uint32_t *words, const struct aura_side *side, uint32_t c, const uint32_t kind)
{
    for (uint32_t run = 0; run < side->runs; run++) {
        uint32_t word[8], quad[8];
        for (uint32_t w = 0; w < kind; w++)
            word[w] = words[aura_word_at(side, run, w) + c];
        for (int k = 0; k < 8; k++)
            quad[k] = aura_unpack_quad(word, k, kind);
        memcpy(code + run * AURA_RUN, quad, sizeof quad);
    }
}

/* Codes of all columns of the values, four tokens at a time. */
AURA_INLINE void value_codes(uint8_t (*code)[AURA_TILE_DIM], const uint32_t *words, const struct aura_side *side, int fast,
                             const uint32_t kind)
{
    uint32_t quad[AURA_TILE_DIM];
    for (int k = 0; k < 8; k++) {
        for (uint32_t d = 0; d < side->dim; d++) {
            uint32_t word[8];
            for (uint32_t w = 0; w < kind; w++)
                word[w] = words[aura_word_at(side, 0, w) + d];
            quad[d] = aura_unpack_quad(word, k, kind);
        }
        if (fast)
            bytes_avx2(code[4 * k], quad, side->dim);
        else
            for (int i = 0; i < 4; i++)
                for (uint32_t d = 0; d < side->dim; d++)
                    code[4 * k + i][d] = (uint8_t)(quad[d] >> 8 * i);
    }
}

/* Codes of a tile, code[column][.], of one width. */
#define UNPACK(shape, kind, ...)                                                                 \
    case kind:                                                                                \
        if (values)                                                                           \
            value_codes(code, words, side, fast, kind);                                       \
        else                                                                                  \
            for (uint32_t c = 0; c < AURA_TILE; c++)                                          \
                key_codes(code[c], words, side, c, kind);                                     \
        break;

static void unpack_tile(uint8_t (*code)[AURA_TILE_DIM], const uint32_t *words, const struct aura_side *side, int fast, int values)
{
    switch (side->kind) {
        AURA_BITS(UNPACK, )
    default: break;
    }
}
#undef UNPACK

/* y = the numbers that codes stand for, in rotated space. */
static void decode_codes(float *y, const uint8_t *code, const struct aura_codec_plan *plan, float scale, uint32_t kind, int fast)
{
    uint8_t index[AURA_TILE_DIM];
    if (kind == 8) {
        for (uint32_t d = 0; d < plan->dim; d++)
            index[d] = (uint8_t)(code[d] + 127);
        code = index;
    }
    if (fast && plan->step > 0 && kind > 4)
        levels_avx2(y, code, plan, scale, plan->dim);
    else
        for (uint32_t d = 0; d < plan->dim; d++)
            y[d] = plan->centroid[code[d]] * scale;
}

static void decode_side(const struct tier *t, const struct part *p, const uint8_t *head, int values)
{
    const aura_cache *shape = &t->codec->shape;
    const struct aura_layout *l = &shape->layout;
    const struct aura_side *side = values ? &l->v : &l->k;
    const uint32_t dim = shape->config.k_dim;
    const int packed = aura_is_packed(side->kind), fast = (shape->ctx->isas & HAS_F16) != 0;
    const int relative = !values && aura_keeps_references(side->kind, shape->config.flags);
    const float *inverse = values || !shape->k.balance ? NULL : shape->k.inverse_balance + (size_t)p->head * dim;
    uint8_t code[AURA_TILE][AURA_TILE_DIM];
    float x[AURA_TILE_DIM], r[AURA_TILE_DIM];
    if (relative)
        aura_load_reference(r, shape, head);
    for (uint32_t token = 0; token < p->tokens; token++) {
        const uint8_t *tile = head + (size_t)token / AURA_TILE * l->tile_bytes, *at = tile + (values ? l->v_at : 0);
        const uint32_t c = token % AURA_TILE;
        const uint16_t *scale = (const uint16_t *)(const void *)(tile + (values ? l->v_scale_at : l->k_scale_at));
        if (packed && c == 0)
            unpack_tile(code, (const uint32_t *)(const void *)at, side, fast, values);
        if (packed)
            decode_codes(x, code[c], values ? &shape->v.codec : &shape->k.codec, aura_f32_from_f16(scale[c]), side->kind, fast);
        else
            aura_load_row(x, at, aura_dtype_of_kind(side->kind), (size_t)c * side->dim, side->dim);
        for (uint32_t d = 0; relative && d < side->dim; d++)
            x[d] = x[d] + r[d];
        if (packed)
            shape->ctx->kernels.undo[0](x, x, values ? &shape->v.undo : &shape->k.undo, 1);
        for (uint32_t d = 0; inverse && d < dim; d++)
            x[d] = x[d] * inverse[d];
        store_numbers(t->numbers_out, shape, t->dtype, number_at(t, p, token, values), x, dim);
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
