/* Rows of the public families into a cache and out of it. One side decodes to tokens in model space, the other encodes them. */
#include "../base/exact.h"
#include "../cache/cache.h"

#include <string.h>

#include "../base/dtype.h"
#include "tq.h"

/* Tokens as f32, both sides. */
struct numbers {
    const aura_ctx *ctx;
    float *k, *v;
    size_t bytes;
};

/* Takes memory for the tokens; k is NULL where there are none. Fails: AURA_BAD_ARGUMENT (no such sequence),
 * AURA_OUT_OF_MEMORY. */
static aura_status numbers_init(struct numbers *n, struct aura_call call, const aura_cache *cache, aura_seq seq, uint32_t tokens)
{
    const aura_config *c = &cache->config;
    size_t rows = aura_times(tokens, c->kv_heads);
    n->ctx = call.ctx;
    n->k = NULL;
    if (!aura_find_seq(call, cache, seq))
        return AURA_BAD_ARGUMENT;
    if (tokens == 0)
        return AURA_OK;
    n->bytes = aura_times(aura_times(rows, (size_t)c->k_dim + c->v_dim), sizeof(float));
    if (n->bytes > PTRDIFF_MAX)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %u tokens do not fit in memory", call.name, tokens);
    void *memory;
    aura_status status = aura_take_memory(call, n->bytes, &memory);
    if (status)
        return status;
    n->k = memory;
    n->v = n->k + rows * c->k_dim;
    return AURA_OK;
}

static void numbers_free(struct numbers *n)
{
    aura_give_memory(n->ctx, n->k, n->bytes);
}

/* The cache and the args. */
static aura_status check_call(struct aura_call call, const aura_cache *cache, const void *args, size_t size)
{
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    return aura_check_call(call, args, size);
}

static aura_status undo_rows(const aura_ctx *ctx, const aura_rotation *rotation, float *x, uint32_t dim, size_t rows)
{
    aura_rotate_args args = AURA_ROTATE_ARGS_INIT;
    if (!rotation)
        return AURA_OK;
    if (rotation->dim != dim)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "aura_import_rows: a rotation of dim %u for rows of %u", rotation->dim, dim);
    args.rotation = rotation;
    args.rows = rows;
    args.in = args.out = x;
    return aura_undo(ctx, &args);
}

/* ---- AURA rows ----------------------------------------------------------------------------------------------------- */

/* x[kv_heads][tokens][dim] in model space. */
static aura_status decode_rows(const aura_cache *cache, const aura_packed *packed, const aura_rotation *rotation, uint32_t dim,
                               uint32_t tokens, float *x)
{
    aura_dequant_args args = AURA_DEQUANT_ARGS_INIT;
    args.rows = *packed;
    args.dim = dim;
    args.kv_heads = cache->config.kv_heads;
    args.tokens = tokens;
    args.out = x;
    aura_status status = aura_dequant(cache->ctx, &args);
    return status ? status : undo_rows(cache->ctx, rotation, x, dim, (size_t)tokens * args.kv_heads);
}

aura_status aura_import_rows(aura_cache *cache, const aura_import_rows_args *a)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_import_rows"};
    struct numbers n;
    aura_status status = check_call(call, cache, a, sizeof *a);
    if (status || (status = numbers_init(&n, call, cache, a->seq, a->tokens)) || !n.k)
        return status;
    uint32_t k_dim = cache->config.k_dim, v_dim = cache->config.v_dim;
    if (!(status = decode_rows(cache, &a->k, a->k_rotation, k_dim, a->tokens, n.k)) &&
        !(status = decode_rows(cache, &a->v, a->v_rotation, v_dim, a->tokens, n.v))) {
        aura_append_job job = AURA_APPEND_JOB_INIT;
        aura_input k = {n.k, AURA_F32, k_dim, (ptrdiff_t)a->tokens * k_dim, NULL};
        aura_input v = {n.v, AURA_F32, v_dim, (ptrdiff_t)a->tokens * v_dim, NULL};
        job.seq = a->seq;
        job.tokens = a->tokens;
        job.k = k;
        job.v = v;
        status = aura_append(cache, &job, 1);
    }
    numbers_free(&n);
    return status;
}

/* One side, encoded into memory of the call. It goes to the caller's arrays when all heads and sides are known to be good. */
struct encoded {
    const aura_packed_out *to;
    uint8_t *codes, *norms;
    size_t row_bytes, norm_bytes, bytes; /* of a row; of a norm; of all of it */
};

static aura_status encode_side(struct encoded *e, struct aura_call call, const aura_packed_out *to, const float *x, uint32_t dim,
                               size_t rows)
{
    aura_encode_args args = AURA_ENCODE_ARGS_INIT;
    e->to = to;
    if (!to->codes)
        return AURA_OK;
    e->row_bytes = to->codebook ? aura_row_bytes(dim, to->codebook->bits) : 0;
    e->norm_bytes = aura_dtype_bytes(to->norm_dtype);
    if (!e->row_bytes || !e->norm_bytes || !to->norms)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a codebook that is none, norms NULL or of no known type", call.name);
    e->bytes = rows * (e->row_bytes + e->norm_bytes);
    void *memory;
    aura_status status = aura_take_memory(call, e->bytes, &memory);
    if (status)
        return status;
    e->codes = memory;
    e->norms = e->codes + rows * e->row_bytes;
    args.codebook = to->codebook;
    args.rotation = to->rotation;
    args.dim = dim;
    args.rows = rows;
    args.in = x;
    args.packed = e->codes;
    args.scales = e->norms;
    args.scale_dtype = to->norm_dtype;
    args.rule = to->rule;
    args.search = to->search;
    args.tiny = to->tiny;
    return aura_encode(call.ctx, &args);
}

static aura_status check_out(struct aura_call call, const struct encoded *e, uint32_t heads, uint32_t tokens)
{
    size_t stride = e->to->stride ? e->to->stride : tokens, rows = aura_times(stride, heads);
    aura_status status;
    if (!e->codes)
        return AURA_OK;
    if (stride < tokens)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a stride of %zu rows for %u tokens", call.name, stride, tokens);
    struct aura_extent codes = {"codes", e->to->codes, 1, e->row_bytes, e->row_bytes, rows};
    struct aura_extent norms = {"norms", e->to->norms, e->norm_bytes, 1, 1, rows};
    if ((status = aura_check_rows(call, &codes)) || (status = aura_check_rows(call, &norms)))
        return status;
    return aura_check_apart(call, &codes, &norms);
}

static void store_side(const struct encoded *e, uint32_t heads, uint32_t tokens)
{
    size_t stride = e->to->stride ? e->to->stride : tokens;
    for (size_t h = 0; e->codes && h < heads; h++) {
        memcpy((uint8_t *)e->to->codes + h * stride * e->row_bytes, e->codes + h * tokens * e->row_bytes, tokens * e->row_bytes);
        memcpy((uint8_t *)e->to->norms + h * stride * e->norm_bytes, e->norms + h * tokens * e->norm_bytes, tokens * e->norm_bytes);
    }
}

aura_status aura_export_rows(const aura_cache *cache, const aura_export_rows_args *a)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_export_rows"};
    struct numbers n;
    struct encoded k = {0}, v = {0};
    aura_status status = check_call(call, cache, a, sizeof *a);
    if (status || (status = numbers_init(&n, call, cache, a->seq, a->tokens)) || !n.k)
        return status;
    uint32_t k_dim = cache->config.k_dim, v_dim = cache->config.v_dim, heads = cache->config.kv_heads;
    size_t rows = (size_t)a->tokens * heads;
    aura_view k_view = {n.k, AURA_F32, k_dim, (ptrdiff_t)a->tokens * k_dim, NULL};
    aura_view v_view = {n.v, AURA_F32, v_dim, (ptrdiff_t)a->tokens * v_dim, NULL};
    if (!(status = aura_cache_decode(cache, a->seq, a->first, a->tokens, &k_view, &v_view)) &&
        !(status = encode_side(&k, call, &a->k, n.k, k_dim, rows)) && !(status = encode_side(&v, call, &a->v, n.v, v_dim, rows)) &&
        !(status = check_out(call, &k, heads, a->tokens)) && !(status = check_out(call, &v, heads, a->tokens))) {
        store_side(&k, heads, a->tokens);
        store_side(&v, heads, a->tokens);
    }
    aura_give_memory(call.ctx, k.codes, k.bytes);
    aura_give_memory(call.ctx, v.codes, v.bytes);
    numbers_free(&n);
    return status;
}

/* ---- TQ and TQ-HB -------------------------------------------------------------------------------------------------- */

/* x[tokens][kv_heads][dim] in model space. */
static aura_status decode_tq(struct aura_call call, const aura_cache *cache, const aura_import_tq_args *a,
                             const aura_vec_side *side, uint32_t dim, float *x)
{
    uint32_t heads = cache->config.kv_heads;
    aura_tq_dequant_args args = AURA_TQ_DEQUANT_ARGS_INIT;
    aura_status status = AURA_OK;
    args.dim = dim;
    args.bits = side->bits;
    args.kv_heads = heads;
    args.capacity = a->capacity;
    args.packed = side->rows;
    args.norms = side->norms;
    args.scale_factor_d512 = a->scale_factor_d512;
    for (uint32_t t = 0; !status && t < a->tokens; t++) {
        args.slot = (a->ring_start + t) % a->capacity;
        args.out = x + (size_t)t * heads * dim;
        status = aura_tq_dequant(call.ctx, &args);
    }
    aura_rotation rotation = AURA_ROTATION_INIT;
    rotation.dim = dim;
    rotation.signs = aura_tq_signs(dim);
    return status ? status : undo_rows(call.ctx, &rotation, x, dim, (size_t)a->tokens * heads);
}

/* The same for plain numbers. */
static aura_status load_plain(struct aura_call call, const aura_cache *cache, const aura_import_tq_args *a,
                              const aura_vec_side *side, uint32_t dim, float *x)
{
    uint32_t heads = cache->config.kv_heads;
    size_t element = aura_dtype_bytes(side->dtype);
    struct aura_extent rows = {"rows", side->rows, element, dim, dim, aura_times(heads, (size_t)a->capacity)};
    aura_status status = aura_check_dtype(call, "dtype", side->dtype);
    if (status || (status = aura_check_rows(call, &rows)))
        return status;
    for (uint32_t t = 0; t < a->tokens; t++)
        for (size_t h = 0; h < heads; h++) {
            size_t row = h * (size_t)a->capacity + (size_t)((a->ring_start + t) % a->capacity);
            aura_load_row(x + ((size_t)t * heads + h) * dim, side->rows, side->dtype, row * dim, dim);
        }
    return AURA_OK;
}

static aura_status import_side(struct aura_call call, const aura_cache *cache, const aura_import_tq_args *a,
                               const aura_vec_side *side, uint32_t dim, float *x)
{
    return side->bits ? decode_tq(call, cache, a, side, dim, x) : load_plain(call, cache, a, side, dim, x);
}

aura_status aura_import_tq(aura_cache *cache, const aura_import_tq_args *a)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_import_tq"};
    struct numbers n;
    aura_status status = check_call(call, cache, a, sizeof *a);
    if (status)
        return status;
    if (a->tokens > a->capacity || (a->tokens && a->ring_start >= a->capacity))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u tokens from slot %llu on of %llu", call.name, a->tokens,
                         (unsigned long long)a->ring_start, (unsigned long long)a->capacity);
    if ((status = numbers_init(&n, call, cache, a->seq, a->tokens)) || !n.k)
        return status;
    if (!(status = import_side(call, cache, a, &a->k, cache->config.k_dim, n.k)) &&
        !(status = import_side(call, cache, a, &a->v, cache->config.v_dim, n.v))) {
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = a->seq;
        job.tokens = a->tokens;
        job.k.data = n.k;
        job.v.data = n.v;
        status = aura_append(cache, &job, 1);
    }
    numbers_free(&n);
    return status;
}

/* Writes one side into slots, or only checks that it can. */
static aura_status export_side(struct aura_call call, const aura_cache *cache, const aura_export_tq_args *a, const aura_vec_out *to,
                               const float *x, uint32_t dim, int only_check)
{
    aura_tq_encode_args tq = AURA_TQ_ENCODE_ARGS_INIT;
    aura_kv_copy_args plain = AURA_KV_COPY_ARGS_INIT;
    if (!to->rows)
        return AURA_OK;
    tq.dim = plain.dim = dim;
    tq.kv_heads = plain.heads = cache->config.kv_heads;
    tq.tokens = plain.tokens = a->tokens;
    tq.capacity = plain.capacity = a->capacity;
    tq.write_pos = plain.write_pos = a->write_pos;
    tq.sliding = plain.sliding = a->sliding;
    tq.in = plain.in = x;
    tq.bits = to->bits;
    tq.packed = plain.cache = to->rows;
    tq.norms = to->norms;
    tq.scale_factor_d512 = a->scale_factor_d512;
    plain.cache_dtype = to->dtype;
    if (only_check) {
        const aura_status status = to->bits ? aura_check_tq_encode(call, &tq) : aura_check_kv_copy(call, &plain);
        return to->bits && !status ? aura_check_tq_numbers(call, &tq) : status;
    }
    return to->bits ? aura_tq_encode(call.ctx, &tq) : aura_kv_copy(call.ctx, &plain);
}

aura_status aura_export_tq(const aura_cache *cache, const aura_export_tq_args *a)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_export_tq"};
    struct numbers n;
    aura_status status = check_call(call, cache, a, sizeof *a);
    if (status || (status = numbers_init(&n, call, cache, a->seq, a->tokens)) || !n.k)
        return status;
    uint32_t k_dim = cache->config.k_dim, v_dim = cache->config.v_dim;
    aura_view k = {n.k, AURA_F32, 0, 0, NULL}, v = {n.v, AURA_F32, 0, 0, NULL};
    status = aura_cache_decode(cache, a->seq, a->first, a->tokens, &k, &v);
    for (int only_check = 1; !status && only_check >= 0; only_check--)
        if (!(status = export_side(call, cache, a, &a->k, n.k, k_dim, only_check)))
            status = export_side(call, cache, a, &a->v, n.v, v_dim, only_check);
    numbers_free(&n);
    return status;
}
