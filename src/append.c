/* Tokens into the cache: rotate, keep in f16, and encode a tile when it closes.
 *
 *     K,V ─ balance ─ rotate ─ f16 row ─┬─▶ pinned and open tokens
 *                                       └─ tile closes: reference ─ codes ─ pack ─▶ tile
 *
 * A KV head of a sequence depends on no other, so (job, KV head) is the unit of work. */
#include "exact.h"
#include "cache.h"

#include <math.h>
#include <string.h>

#include "dtype.h"
#include "fpmode.h"
#include "view.h"

#define LONGEST 60000.f /* of a vector after balance: every coordinate then fits in f16 after any rotation */

/* One call. */
struct append {
    aura_cache *cache;
    const aura_append_job *jobs;
    size_t n_jobs;
    _Atomic size_t bad; /* the first bad row as ((job * heads + head) * 2 + side), or SIZE_MAX */
};

static struct aura_sequence *seq_of(const aura_cache *cache, aura_seq id)
{
    struct aura_call call = {cache->ctx, "aura_append"};
    return aura_find_seq(call, cache, id);
}

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

/* Row x of a side, with its balance. */
static void load_row(float *x, const aura_cache *cache, const aura_view *view, struct aura_strides s, size_t token,
                     uint32_t head, uint32_t dim, int values)
{
    const float *balance = values || !cache->balance ? NULL : cache->balance + (size_t)head * dim;
    aura_view_load(x, view, s, token, head, dim);
    for (uint32_t d = 0; balance && d < dim; d++)
        x[d] = x[d] * balance[d];
}

/* A plain side takes any finite number that its type can hold. */
static int bad_row(const aura_cache *cache, const float *x, uint32_t dim, int values)
{
    uint32_t kind = values ? cache->layout.v.kind : cache->layout.k.kind;
    if (aura_is_packed(kind))
        return !(length_of(x, dim) <= LONGEST); /* so that NaN is bad */
    float limit = kind == AURA_ROW_F16 ? 65520 : kind == AURA_ROW_BF16 ? 0x1.ffp127f : INFINITY;
    int bad = 0;
    for (uint32_t d = 0; d < dim; d++)
        bad |= !(fabsf(x[d]) < limit);
    return bad;
}

/* The first bad token of one side and head; SIZE_MAX: none. */
static size_t first_bad_token(const aura_cache *cache, const aura_append_job *job, uint32_t head, int values)
{
    const aura_view *view = values ? &job->v : &job->k;
    uint32_t dim = values ? cache->config.v_dim : cache->config.k_dim;
    struct aura_strides s = aura_view_strides(view, cache->config.kv_heads, dim);
    float x[AURA_TILE_DIM];
    for (size_t t = 0; t < job->tokens; t++) {
        load_row(x, cache, view, s, t, head, dim, values);
        if (bad_row(cache, x, dim, values))
            return t;
    }
    return SIZE_MAX;
}

static void check_item(void *work, size_t i)
{
    struct append *a = work;
    uint32_t heads = a->cache->config.kv_heads;
    if (first_bad_token(a->cache, &a->jobs[i / 2 / heads], (uint32_t)(i / 2 % heads), (int)(i % 2)) == SIZE_MAX)
        return;
    size_t first = atomic_load(&a->bad);
    while (i < first && !atomic_compare_exchange_weak(&a->bad, &first, i))
        ;
}

static aura_status check_values(struct aura_call call, struct append *a)
{
    const aura_cache *cache = a->cache;
    uint32_t heads = cache->config.kv_heads;
    atomic_init(&a->bad, SIZE_MAX);
    aura_run(cache->ctx, a->n_jobs * heads * 2, check_item, a);
    size_t bad = atomic_load(&a->bad);
    if (bad == SIZE_MAX)
        return AURA_OK;
    size_t job = bad / 2 / heads;
    uint32_t head = (uint32_t)(bad / 2 % heads);
    int values = (int)(bad % 2), packed = aura_is_packed(values ? cache->layout.v.kind : cache->layout.k.kind);
    return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: jobs[%zu].%s, token %zu, KV head %u %s", call.name, job,
                     values ? "v" : "k", first_bad_token(cache, &a->jobs[job], head, values), head,
                     packed ? "has a NaN or Inf, or is longer than 60000" : "has a number that its kind cannot hold");
}

/* ---- tiles -------------------------------------------------------------------------------------------------------- */

void aura_load_reference(float *r, const aura_cache *cache, const uint8_t *head)
{
    const int8_t *code = (const int8_t *)(head + cache->layout.reference_at);
    float scale = aura_f32_from_f16(*(const uint16_t *)(const void *)(head + cache->layout.reference_scale_at));
    for (uint32_t d = 0; d < cache->config.k_dim; d++)
        r[d] = cache->reference_codec.centroid[code[d] + 127] * scale;
}

/* The mean of the unpinned keys of a tile, all of them open, as 8-bit codes. The sum runs in token order. */
static void make_reference(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t h,
                           uint8_t *head)
{
    uint32_t dim = cache->config.k_dim, count = 0;
    float mean[AURA_TILE_DIM] = {0}, y[AURA_TILE_DIM], scale;
    uint8_t index[AURA_TILE_DIM];
    int8_t *code = (int8_t *)(head + cache->layout.reference_at);
    for (uint64_t t = tile * AURA_TILE; t < (tile + 1) * AURA_TILE; t++) {
        if (t < cache->pinned)
            continue;
        aura_load_row(y, aura_row_of(cache, seq->k, dim, h, t), AURA_F16, 0, dim);
        for (uint32_t d = 0; d < dim; d++)
            mean[d] = mean[d] + y[d];
        count++;
    }
    for (uint32_t d = 0; d < dim; d++)
        mean[d] = mean[d] / (float)count;
    cache->ctx->kernels.codes[8](index, &scale, mean, &cache->reference_codec, 1);
    memset(code, 0, cache->layout.reference_scale_at - cache->layout.reference_at);
    for (uint32_t d = 0; d < dim; d++)
        code[d] = (int8_t)aura_code_of_index(index[d], 8);
    *(uint16_t *)(void *)(head + cache->layout.reference_scale_at) = aura_f16_from_f32(scale);
}

/* Codes of one vector, padded with zeros to whole runs. */
static void encode_vector(const aura_cache *cache, uint8_t *code, uint16_t *scale, const float *y, int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    const struct aura_codec_plan *codec = values ? &cache->v.codec : &cache->k.codec;
    float full;
    cache->ctx->kernels.codes[side->kind](code, &full, y, codec, 1);
    *scale = aura_f16_from_f32(full);
    for (uint32_t d = 0; side->kind == 8 && d < side->dim; d++)
        code[d] = aura_code_of_index(code[d], 8);
    memset(code + side->dim, 0, aura_padded_run(side->dim) - side->dim);
}

/* Column c of the keys. */
static void put_key(const aura_cache *cache, uint8_t *tile, uint32_t c, const uint8_t *code)
{
    const struct aura_side *side = &cache->layout.k;
    uint32_t *words = (uint32_t *)(void *)tile;
    for (uint32_t run = 0; run < side->runs; run++) {
        uint32_t quad[8], word[8];
        memcpy(quad, code + run * AURA_RUN, sizeof quad);
        aura_pack_run(word, quad, side->kind);
        for (uint32_t w = 0; w < side->kind; w++)
            words[aura_word_at(side, run, w) + c] = word[w];
    }
}

/* Columns [first, end) of the values, whose codes are code[c][.]; the other columns keep theirs. */
static void put_values(const aura_cache *cache, uint8_t *tile, uint32_t first, uint32_t end,
                       uint8_t code[AURA_TILE][AURA_TILE_DIM])
{
    const struct aura_side *side = &cache->layout.v;
    uint32_t *words = (uint32_t *)(void *)(tile + cache->layout.v_at), mask[8], ours[8];
    uint8_t all = (uint8_t)(side->kind == 8 ? 255 : (1u << side->kind) - 1), column[AURA_TILE];
    for (uint32_t c = 0; c < AURA_TILE; c++) {
        column[c] = c >= first && c < end ? all : 0;
        if (!column[c])
            memset(code[c], 0, side->dim);
    }
    memcpy(ours, column, sizeof ours);
    aura_pack_run(mask, ours, side->kind); /* the bits that belong to our columns */
    for (uint32_t d = 0; d < side->dim; d++) {
        uint32_t quad[8], word[8];
        for (uint32_t k = 0; k < 8; k++)
            quad[k] = code[4 * k][d] | (uint32_t)code[4 * k + 1][d] << 8 | (uint32_t)code[4 * k + 2][d] << 16 |
                      (uint32_t)code[4 * k + 3][d] << 24;
        aura_pack_run(word, quad, side->kind);
        for (uint32_t w = 0; w < side->kind; w++) {
            uint32_t *to = &words[aura_word_at(side, 0, w) + d];
            *to = (*to & ~mask[w]) | word[w];
        }
    }
}

static void close_keys(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t h,
                       uint64_t closed, uint32_t first, uint32_t end)
{
    uint32_t dim = cache->config.k_dim;
    uint64_t page = tile / AURA_PAGE_TILES;
    uint8_t *to = aura_tile_of(cache, seq, tile, h), *head = aura_head_of(cache, seq, (size_t)page, h);
    uint16_t *scale = (uint16_t *)(void *)(to + cache->layout.k_scale_at);
    int reference = aura_has_reference(cache, UINT64_MAX, page);
    float y[AURA_TILE_DIM], r[AURA_TILE_DIM];
    uint8_t code[AURA_TILE_DIM];
    if (reference && !aura_has_reference(cache, closed, page))
        make_reference(cache, seq, tile, h, head);
    if (reference)
        aura_load_reference(r, cache, head);
    for (uint32_t c = first; c < end; c++) {
        aura_load_row(y, aura_row_of(cache, seq->k, dim, h, tile * AURA_TILE + c), AURA_F16, 0, dim);
        for (uint32_t d = 0; reference && d < dim; d++)
            y[d] = y[d] - r[d];
        encode_vector(cache, code, &scale[c], y, 0);
        put_key(cache, to, c, code);
    }
}

static void close_values(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t h,
                         uint32_t first, uint32_t end)
{
    uint32_t dim = cache->config.v_dim;
    uint8_t *to = aura_tile_of(cache, seq, tile, h), code[AURA_TILE][AURA_TILE_DIM];
    uint16_t *scale = (uint16_t *)(void *)(to + cache->layout.v_scale_at);
    float y[AURA_TILE_DIM];
    for (uint32_t c = first; c < end; c++) {
        aura_load_row(y, aura_row_of(cache, seq->v, dim, h, tile * AURA_TILE + c), AURA_F16, 0, dim);
        encode_vector(cache, code[c], &scale[c], y, 1);
    }
    put_values(cache, to, first, end, code);
}

/* Encodes the tokens [closed, end) of one head; they are of one tile. */
static void close_tokens(const aura_cache *cache, const struct aura_sequence *seq, uint32_t h, uint64_t closed,
                         uint64_t end)
{
    uint64_t tile = closed / AURA_TILE, first = closed > cache->pinned ? closed : cache->pinned;
    if (first >= end) /* pinned tokens only, which are never encoded */
        return;
    uint32_t from = (uint32_t)(first - tile * AURA_TILE), to = (uint32_t)(end - tile * AURA_TILE);
    if (seq->k)
        close_keys(cache, seq, tile, h, closed, from, to);
    if (seq->v)
        close_values(cache, seq, tile, h, from, to);
}

/* How far a sequence of `len` tokens is closed: whole tiles with `rollback` tokens after them. */
static uint64_t closed_of(const aura_cache *cache, uint64_t closed, uint64_t len)
{
    uint64_t end = len < cache->rollback ? 0 : (len - cache->rollback) / AURA_TILE * AURA_TILE;
    if (!aura_is_packed(cache->layout.k.kind) && !aura_is_packed(cache->layout.v.kind))
        return 0; /* nothing is ever encoded */
    if (cache->config.flags & AURA_NO_OPEN)
        end = len;
    return end > closed ? end : closed;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------- */

/* One vector to where it is kept first. */
static void store_row(const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head, float *x,
                      int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    uint16_t *rows = values ? seq->v : seq->k;
    if (rows) {
        cache->ctx->kernels.rotate[0](x, x, values ? &cache->v.turn : &cache->k.turn, 1);
        aura_store_row(aura_row_of(cache, rows, side->dim, head, token), AURA_F16, 0, x, side->dim);
        return;
    }
    aura_dtype dtype = side->kind == AURA_ROW_F32 ? AURA_F32 : side->kind == AURA_ROW_F16 ? AURA_F16 : AURA_BF16;
    uint8_t *tile = aura_tile_of(cache, seq, token / AURA_TILE, head) + (values ? cache->layout.v_at : 0);
    aura_store_row(tile, dtype, (size_t)(token % AURA_TILE) * side->dim, x, side->dim);
}

static void append_item(void *work, size_t i)
{
    struct append *a = work;
    const aura_cache *cache = a->cache;
    const aura_config *c = &cache->config;
    const aura_append_job *job = &a->jobs[i / c->kv_heads];
    const struct aura_sequence *seq = seq_of(cache, job->seq);
    struct aura_strides k = aura_view_strides(&job->k, c->kv_heads, c->k_dim);
    struct aura_strides v = aura_view_strides(&job->v, c->kv_heads, c->v_dim);
    uint32_t head = (uint32_t)(i % c->kv_heads);
    uint64_t closed = seq->closed;
    float x[AURA_TILE_DIM];
    for (size_t t = 0; t < job->tokens; t++) {
        load_row(x, cache, &job->k, k, t, head, c->k_dim, 0);
        store_row(cache, seq, seq->len + t, head, x, 0);
        load_row(x, cache, &job->v, v, t, head, c->v_dim, 1);
        store_row(cache, seq, seq->len + t, head, x, 1);
        uint64_t end = closed_of(cache, closed, seq->len + t + 1);
        if (end > closed)
            close_tokens(cache, seq, head, closed, end);
        closed = end;
    }
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static aura_status check_job(struct aura_call call, const aura_cache *cache, const aura_append_job *jobs, size_t i)
{
    const aura_config *c = &cache->config;
    const aura_append_job *job = &jobs[i];
    aura_status status = aura_check_call(call, job, sizeof *job);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, job->seq);
    if (status)
        return status;
    if (!seq)
        return AURA_BAD_ARGUMENT;
    for (size_t j = 0; j < i; j++)
        if (jobs[j].seq == job->seq)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: jobs %zu and %zu are both of sequence %u", call.name, j, i,
                             job->seq);
    if (job->tokens == 0)
        return AURA_OK;
    if ((status = aura_check_view(call, "k", &job->k)) || (status = aura_check_view(call, "v", &job->v)) ||
        (status = aura_check_view_extent(call, "k", &job->k, job->tokens, c->kv_heads, c->k_dim)) ||
        (status = aura_check_view_extent(call, "v", &job->v, job->tokens, c->kv_heads, c->v_dim)))
        return status;
    return AURA_OK;
}

/* Pages for all jobs or for none. */
static aura_status take_pages(struct aura_call call, struct append *a)
{
    for (size_t i = 0; i < a->n_jobs; i++) {
        struct aura_sequence *seq = seq_of(a->cache, a->jobs[i].seq);
        size_t before;
        aura_status status = aura_pages_take(call, a->cache, seq, seq->len + a->jobs[i].tokens, &before);
        if (!status)
            continue;
        while (i-- > 0) {
            seq = seq_of(a->cache, a->jobs[i].seq);
            size_t needed = aura_pages_of(seq->len);
            aura_pages_give(a->cache, seq, needed > seq->reserved ? needed : seq->reserved);
        }
        return status;
    }
    return AURA_OK;
}

aura_status aura_append(aura_cache *cache, const aura_append_job *jobs, size_t n_jobs)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_append"};
    struct append a = {cache, jobs, n_jobs, 0};
    aura_status status = AURA_OK;
    if (!cache || (!jobs && n_jobs))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, cache ? "jobs" : "cache");
    for (size_t i = 0; i < n_jobs; i++)
        if ((status = check_job(call, cache, jobs, i)))
            return status;
    if ((status = check_values(call, &a)) || (status = take_pages(call, &a)))
        return status;
    aura_run(cache->ctx, n_jobs * cache->config.kv_heads, append_item, &a);
    for (size_t i = 0; i < n_jobs; i++) {
        struct aura_sequence *seq = seq_of(cache, jobs[i].seq);
        seq->len += jobs[i].tokens;
        seq->closed = closed_of(cache, seq->closed, seq->len);
    }
    return AURA_OK;
}
