/* Tokens into tiles: whether they can be stored at all, and what a tile is made of. */
#include "../base/exact.h"
#include "tile.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"

/* ---- are the vectors good? ---------------------------------------------------------------------------------------- */

static float length_of(const float *x, uint32_t dim)
{
    float partial[AURA_LANES] = {0}, sum = 0;
    for (uint32_t d = 0; d < dim; d += AURA_LANES)
        for (uint32_t i = 0; i < AURA_LANES; i++)
            partial[i] += x[d + i] * x[d + i];
    for (uint32_t i = 0; i < AURA_LANES; i++)
        sum += partial[i];
    return sqrtf(sum);
}

void aura_balance_vector(float *x, const aura_cache *cache, uint32_t head, int values)
{
    const uint32_t dim = values ? cache->config.v_dim : cache->config.k_dim;
    const float *balance = values ? cache->v.balance : cache->k.balance;
    for (uint32_t d = 0; balance && d < dim; d++)
        x[d] = x[d] * balance[(size_t)head * dim + d];
}

void aura_load_vector(float *x, const aura_cache *cache, const aura_input *view, size_t token, uint32_t head, int values)
{
    uint32_t dim = values ? cache->config.v_dim : cache->config.k_dim, stored = values ? cache->layout.v.dim : cache->layout.k.dim;
    struct aura_strides s = aura_view_strides(view, cache->config.kv_heads, dim);
    cache->ctx->kernels.widen[0](x, aura_view_place(view, s, token, head), view->dtype, dim);
    aura_balance_vector(x, cache, head, values);
    memset(x + dim, 0, (stored - dim) * sizeof *x);
}

/* A plain side takes any finite number that its type can hold. */
int aura_is_bad_vector(const aura_cache *cache, const float *x, int values)
{
    uint32_t kind = values ? cache->layout.v.kind : cache->layout.k.kind, dim = values ? cache->config.v_dim : cache->config.k_dim;
    if (aura_is_packed(kind))
        return !(length_of(x, dim) <= AURA_LONGEST); /* so that NaN is bad */
    float limit = aura_first_infinite(aura_dtype_of_kind(kind));
    int bad = 0;
    for (uint32_t d = 0; d < dim; d++)
        bad |= !(fabsf(x[d]) < limit);
    return bad;
}

void aura_rotate_rows(uint16_t *rows, float *x, const aura_cache *cache, size_t n, int values)
{
    cache->ctx->kernels.rotate[0](x, x, values ? &cache->v.rotate : &cache->k.rotate, n);
    cache->ctx->kernels.narrow[0](rows, x, AURA_F16, n * (values ? cache->layout.v.dim : cache->layout.k.dim));
}

/* The largest magnitude of n numbers; of their bits, as those ascend with it. NaN is the largest. Several are kept side by side,
 * because gcc makes vectors of a maximum only then. */
static int16_t largest_half(const uint16_t *half, size_t n)
{
    enum { SIDE = 32 };
    int16_t top[SIDE] = {0}, most = 0;
    size_t i = 0;
    for (; i + SIDE <= n; i += SIDE)
        for (size_t k = 0; k < SIDE; k++) {
            const int16_t x = (int16_t)(half[i + k] & 0x7fff), y = top[k];
            top[k] = x > y ? x : y;
        }
    for (size_t k = 0; i + k < n; k++)
        top[k] = (int16_t)(half[i + k] & 0x7fff) > top[k] ? (int16_t)(half[i + k] & 0x7fff) : top[k];
    for (size_t k = 0; k < SIDE; k++)
        most = top[k] > most ? top[k] : most;
    return most;
}

static float largest_of(const void *numbers, aura_dtype dtype, size_t n)
{
    const uint32_t *full = numbers;
    int32_t most = 0;
    for (size_t i = 0; dtype == AURA_F32 && i < n; i++)
        most = (int32_t)(full[i] & 0x7fffffff) > most ? (int32_t)(full[i] & 0x7fffffff) : most;
    if (dtype == AURA_F32)
        return aura_f32_from_bits((uint32_t)most);
    const uint16_t top = (uint16_t)largest_half(numbers, n);
    return dtype == AURA_F16 ? aura_f32_from_f16(top) : aura_f32_from_bf16(top);
}

int aura_are_surely_good(const aura_cache *cache, const void *numbers, aura_dtype dtype, size_t n, int values)
{
    const uint32_t kind = values ? cache->layout.v.kind : cache->layout.k.kind;
    const uint32_t dim = values ? cache->config.v_dim : cache->config.k_dim;
    if (values ? cache->v.balance : cache->k.balance)
        return 0;
    const float plain = aura_first_infinite(aura_dtype_of_kind(kind));
    return largest_of(numbers, dtype, n) < (aura_is_packed(kind) ? 0.99f * AURA_LONGEST / sqrtf((float)dim) : plain);
}

/* The first bad token in [first, end) of one side and head; SIZE_MAX: none. */
static size_t first_bad_token(const aura_cache *cache, const struct aura_given *in, size_t first, size_t end, uint32_t head,
                              int values)
{
    const aura_input *view = values ? in->v : in->k;
    const uint32_t dim = values ? cache->config.v_dim : cache->config.k_dim;
    float x[AURA_TILE_DIM];
    end = end < in->tokens ? end : in->tokens;
    for (size_t t = first; t < end && view; t++) {
        const struct aura_strides s = aura_view_strides(view, cache->config.kv_heads, dim);
        if (aura_are_surely_good(cache, aura_view_place(view, s, t, head), view->dtype, dim, values))
            continue;
        aura_load_vector(x, cache, view, t, head, values);
        if (aura_is_bad_vector(cache, x, values))
            return t;
    }
    return SIZE_MAX;
}

aura_status aura_check_input(struct aura_call call, const aura_cache *cache, uint32_t tokens, const aura_input *k,
                             const aura_input *v)
{
    const aura_config *c = &cache->config;
    aura_status status;
    if (tokens == 0)
        return AURA_OK;
    if ((status = aura_check_view(call, "k", k)) || (status = aura_check_view(call, "v", v)) ||
        (status = aura_check_view_extent(call, "k", k, tokens, c->kv_heads, c->k_dim)) ||
        (status = aura_check_view_extent(call, "v", v, tokens, c->kv_heads, c->v_dim)))
        return status;
    return AURA_OK;
}

#define FEW_VECTORS 32 /* are checked sooner than handed over */

/* One call. */
struct check {
    const aura_cache *cache;
    aura_given_of *given_of;
    const void *jobs;
    size_t pages;       /* of the longest job */
    _Atomic size_t bad; /* the first bad page as ((job * heads + head) * 2 + side) * pages + page, or SIZE_MAX */
};

static void check_item(void *work, size_t i)
{
    struct check *c = work;
    uint32_t heads = c->cache->config.kv_heads;
    const size_t side = i / c->pages, from = i % c->pages * AURA_PAGE;
    struct aura_given in = c->given_of(c->jobs, side / 2 / heads);
    if (in.zeros ||
        first_bad_token(c->cache, &in, from, from + AURA_PAGE, (uint32_t)(side / 2 % heads), (int)(side % 2)) == SIZE_MAX)
        return;
    size_t first = atomic_load(&c->bad);
    while (i < first && !atomic_compare_exchange_weak(&c->bad, &first, i))
        ;
}

aura_status aura_check_vectors(struct aura_call call, const aura_cache *cache, aura_given_of *given_of, const void *jobs,
                               size_t n_jobs)
{
    struct check c = {cache, given_of, jobs, 1, 0};
    uint32_t heads = cache->config.kv_heads;
    atomic_init(&c.bad, SIZE_MAX);
    size_t vectors = 0;
    for (size_t i = 0; i < n_jobs; i++) {
        const size_t tokens = given_of(jobs, i).tokens, pages = aura_pages_of(tokens);
        vectors += tokens * heads * 2;
        c.pages = pages > c.pages ? pages : c.pages;
    }
    if (vectors <= FEW_VECTORS)
        aura_run_here(n_jobs * heads * 2 * c.pages, check_item, &c);
    else
        aura_run(cache->ctx, n_jobs * heads * 2 * c.pages, check_item, &c);
    size_t bad = atomic_load(&c.bad);
    if (bad == SIZE_MAX)
        return AURA_OK;
    bad /= c.pages;
    size_t job = bad / 2 / heads;
    uint32_t head = (uint32_t)(bad / 2 % heads);
    int values = (int)(bad % 2), packed = aura_is_packed(values ? cache->layout.v.kind : cache->layout.k.kind);
    struct aura_given in = given_of(jobs, job);
    uint64_t mode = aura_fpmode_enter();
    size_t token = first_bad_token(cache, &in, 0, SIZE_MAX, head, values);
    aura_fpmode_leave(mode);
    return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: jobs[%zu].%s, token %zu, KV head %u %s", call.name, job,
                     values ? "v" : "k", token, head,
                     packed ? "has a NaN or Inf, or is longer than 60000" : "has a number that its kind cannot hold");
}

/* ---- tiles -------------------------------------------------------------------------------------------------------- */

void aura_load_reference(float *r, const aura_cache *cache, const uint8_t *head)
{
    const int8_t *code = (const int8_t *)(head + cache->layout.reference_at);
    float scale = aura_f32_from_f16(*(const uint16_t *)(const void *)(head + cache->layout.reference_scale_at));
    for (uint32_t d = 0; d < cache->layout.k.dim; d++)
        r[d] = cache->reference_codec.centroid[code[d] + 127] * scale;
}

void aura_store_reference(const aura_cache *cache, uint8_t *head, const float *mean)
{
    uint32_t dim = cache->layout.k.dim;
    uint8_t index[AURA_TILE_DIM];
    int8_t *code = (int8_t *)(head + cache->layout.reference_at);
    float scale;
    cache->ctx->kernels.encode[8](index, &scale, mean, &cache->reference_codec, 1);
    memset(code, 0, cache->layout.reference_scale_at - cache->layout.reference_at);
    for (uint32_t d = 0; d < dim; d++)
        code[d] = (int8_t)aura_code_of_index(index[d], 8);
    memset(head + cache->layout.reference_scale_at, 0, cache->layout.head_bytes - cache->layout.reference_scale_at);
    *(uint16_t *)(void *)(head + cache->layout.reference_scale_at) = aura_f16_from_f32(scale);
}

void aura_mean_reference(const aura_cache *cache, uint8_t *head, const uint16_t *const *rows, uint32_t n)
{
    uint32_t dim = cache->layout.k.dim;
    float mean[AURA_TILE_DIM] = {0}, y[AURA_TILE_DIM];
    for (uint32_t i = 0; i < n; i++) {
        cache->ctx->kernels.widen[0](y, rows[i], AURA_F16, dim);
        for (uint32_t d = 0; d < dim; d++)
            mean[d] = mean[d] + y[d];
    }
    for (uint32_t d = 0; d < dim; d++)
        mean[d] = mean[d] / (float)n;
    aura_store_reference(cache, head, mean);
}

/* Indices and scales of n vectors y, which lie dim after dim as the indices do. */
static void encode_vectors(const aura_cache *cache, uint8_t *index, uint16_t *scale, const float *y, uint32_t n, uint32_t head,
                           int values)
{
    const uint32_t kind = values ? cache->layout.v.kind : cache->layout.k.kind;
    const struct aura_codec_side *codec = values ? &cache->v : &cache->k;
    float full[AURA_LANES];
    cache->ctx->kernels.encode[kind](index, full, y, &codec->codec, n);
    const struct aura_metric *metric = codec->metric ? &codec->metric[head] : NULL;
    if (!values && cache->learning)
        metric = aura_learnt_metric(cache, head);
    if (metric)
        cache->ctx->kernels.feedback[kind](index, full, y, &codec->codec, metric, n);
    cache->ctx->kernels.narrow[0](scale, full, AURA_F16, n);
}

/* Column c of the keys. */
static void put_key(const aura_cache *cache, uint8_t *tile, uint32_t c, const uint8_t *index)
{
    const struct aura_side *side = &cache->layout.k;
    uint32_t *words = (uint32_t *)(void *)tile;
    for (uint32_t run = 0; run < side->runs; run++) {
        uint8_t code[AURA_RUN] = {0};
        uint32_t quad[8], word[8];
        for (uint32_t i = 0; i < AURA_RUN && run * AURA_RUN + i < side->dim; i++)
            code[aura_place(side, i)] = aura_code_of_index(index[run * AURA_RUN + i], side->kind);
        memcpy(quad, code, sizeof quad);
        aura_pack_run(word, quad, side->kind);
        for (uint32_t w = 0; w < aura_bits_of(side->kind); w++)
            words[aura_word_at(side, run, w) + c] = word[w];
    }
}

/* Columns [first, end) of the values; the other columns keep their codes. */
static void put_values(const aura_cache *cache, uint8_t *tile, uint32_t first, uint32_t end, const uint8_t *index)
{
    const struct aura_side *side = &cache->layout.v;
    uint32_t *words = (uint32_t *)(void *)(tile + cache->layout.v_at), mask[8], quad[8], word[8];
    uint8_t all = (uint8_t)(side->kind == 8 ? 255 : (1u << aura_bits_of(side->kind)) - 1), column[AURA_TILE] = {0};
    memset(column + first, all, end - first);
    memcpy(quad, column, sizeof quad);
    aura_pack_run(mask, quad, side->kind); /* the bits that belong to our columns */
    memset(column, 0, sizeof column);
    for (uint32_t d = 0; d < side->dim; d++) {
        for (uint32_t c = first; c < end; c++)
            column[c] = aura_code_of_index(index[(size_t)c * side->dim + d], side->kind);
        memcpy(quad, column, sizeof quad);
        aura_pack_run(word, quad, side->kind);
        for (uint32_t w = 0; w < aura_bits_of(side->kind); w++) {
            uint32_t *to = &words[aura_word_at(side, 0, w) + d];
            *to = (*to & ~mask[w]) | word[w];
        }
    }
}

static void encode_columns(const aura_cache *cache, uint8_t *tile, uint32_t head, uint32_t first, uint32_t end,
                           const uint16_t *const rows[AURA_TILE], const float *r, int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    const uint32_t dim = side->dim;
    uint8_t *at = tile + (values ? cache->layout.v_at : 0), index[AURA_TILE * AURA_TILE_DIM];
    uint16_t *scale = (uint16_t *)(void *)(tile + (values ? cache->layout.v_scale_at : cache->layout.k_scale_at));
    float y[AURA_LANES * AURA_TILE_DIM];
    for (uint32_t c = first, n; c < end; c += n) {
        n = end - c < AURA_LANES ? end - c : AURA_LANES;
        for (uint32_t i = 0; i < n; i++) {
            float *to = y + (size_t)i * dim;
            cache->ctx->kernels.widen[0](to, rows[c + i], AURA_F16, dim);
            for (uint32_t d = 0; r && d < dim; d++)
                to[d] = to[d] - r[d];
        }
        encode_vectors(cache, index + (size_t)c * dim, &scale[c], y, n, head, values);
    }
    if (first == 0 && end == AURA_TILE)
        cache->ctx->kernels.pack[side->kind]((uint32_t *)(void *)at, index, side);
    else if (values)
        put_values(cache, tile, first, end, index);
    else
        for (uint32_t c = first; c < end; c++)
            put_key(cache, tile, c, index + (size_t)c * dim);
}

void aura_encode_keys(const aura_cache *cache, uint8_t *tile, uint32_t head, uint32_t first, uint32_t end,
                      const uint16_t *const rows[AURA_TILE], const float *r)
{
    encode_columns(cache, tile, head, first, end, rows, r, 0);
}

void aura_encode_values(const aura_cache *cache, uint8_t *tile, uint32_t head, uint32_t first, uint32_t end,
                        const uint16_t *const rows[AURA_TILE])
{
    encode_columns(cache, tile, head, first, end, rows, NULL, 1);
}

void aura_store_plain(const aura_cache *cache, uint8_t *tile, uint32_t c, const float *x, int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    aura_store_row(tile + (values ? cache->layout.v_at : 0), aura_dtype_of_kind(side->kind), (size_t)c * side->dim, x, side->dim);
}
