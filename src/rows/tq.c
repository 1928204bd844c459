/* TQ and TQ-HB caches: signs, encoder, decoder; and the copy into plain caches. */
#include "../base/exact.h"
#include "tq.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../codec.h"
#include "../rotation.h"
#include "group.h"

/* Published with mlx-native; dim 256 uses the first half. */
static const uint8_t tq_signs[64] = {
    0xa7, 0x3b, 0x91, 0xf4, 0x6d, 0xc2, 0x58, 0x0e, 0xb3, 0x7f, 0x24, 0xd6, 0x89, 0x45, 0xea, 0x1c,
    0x63, 0xaf, 0xd8, 0x52, 0x97, 0x0b, 0xe1, 0x3d, 0x76, 0xc4, 0x19, 0xfe, 0x4a, 0x85, 0x2c, 0xdb,
    0xd3, 0x4e, 0xa8, 0x17, 0x9c, 0x5b, 0xe6, 0x31, 0x72, 0xb9, 0x0d, 0xf5, 0x43, 0x8a, 0x6e, 0xc7,
    0x58, 0x2f, 0x94, 0xe1, 0xb6, 0x3d, 0x0a, 0x7c, 0xc5, 0x61, 0xd8, 0x4f, 0xa3, 0x97, 0x1e, 0x85,
};

const uint8_t *aura_tq_signs(uint32_t dim)
{
    return dim == 256 || dim == 512 ? tq_signs : NULL;
}

int aura_tq_book(uint32_t bits, float *centroid)
{
    aura_codebook book;
    if (bits < 4 || aura_codebook_get(AURA_TABLE_TQ, bits, &book))
        return 0;
    for (uint32_t i = 0; centroid && i < 256; i++)
        centroid[i] = book.centroid[i & (book.levels - 1)]; /* upper bits of a byte are ignored, as in the public kernels */
    return 1;
}

static float scale_factor(float sf)
{
    return sf < 1e-6f ? 1 : sf;
}

float aura_tq_norm_factor(uint32_t dim, float sf)
{
    return dim == 256 ? 1 / 16.f : 1 / scale_factor(sf);
}

static aura_status check_shape(struct aura_call call, uint32_t dim, uint32_t bits, uint32_t kv_heads, float sf)
{
    if (dim != 256 && dim != 512)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: dim %u is not 256 or 512", call.name, dim);
    if (!aura_tq_book(bits, NULL))
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %u bits are not 4, 5, 6 or 8", call.name, bits);
    if (kv_heads == 0 || !isfinite(sf))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: kv_heads %u, scale_factor_d512 %g", call.name, kv_heads,
                         (double)sf);
    return AURA_OK;
}

/* tokens <= capacity, and no write past a linear cache. */
static aura_status check_slots(struct aura_call call, uint64_t tokens, uint64_t capacity, uint64_t write_pos,
                               uint32_t sliding)
{
    if (tokens > capacity || (!sliding && (write_pos > capacity || tokens > capacity - write_pos)))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens at %llu do not fit a %s cache of %llu", call.name,
                         (unsigned long long)tokens, (unsigned long long)write_pos, sliding ? "sliding" : "linear",
                         (unsigned long long)capacity);
    return AURA_OK;
}

/* HB stores one byte for a code of any width: it is an 8-bit code of a short table. */
void aura_tq_plan(struct aura_codec_plan *plan, uint32_t dim, uint32_t bits, float sf)
{
    aura_codebook book;
    aura_codebook_get(AURA_TABLE_TQ, bits, &book);
    aura_codec_plan_init(plan, &book, AURA_TQ_PART, AURA_SCALE_RAW, 0);
    plan->bits = bits == 4 ? 4 : 8;
    plan->row_bytes = AURA_TQ_PART * plan->bits / 8;
    plan->tiny = dim == 256 ? 1e-10f : 16 * 1e-10f; /* the limit is on the stored norm: a length, or an RMS */
    plan->keep_tiny = 1;
    plan->fits[0] = dim == 256 ? 1 : scale_factor(sf);
}

aura_status aura_check_tq_encode(struct aura_call call, const aura_tq_encode_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) ||
        (status = check_shape(call, a->dim, a->bits, a->kv_heads, a->scale_factor_d512)) ||
        (status = check_slots(call, a->tokens, a->capacity, a->write_pos, a->sliding)) ||
        (status = aura_check_dtype(call, "in_dtype", a->in_dtype)))
        return status;
    size_t slots = a->tokens ? aura_times(a->kv_heads, (size_t)a->capacity) : 0, width = a->bits == 4 ? a->dim / 2 : a->dim;
    size_t element = aura_dtype_bytes(a->in_dtype);
    struct aura_extent in = {"in", a->in, element, a->dim, a->dim, aura_times((size_t)a->tokens, a->kv_heads)};
    struct aura_extent packed = {"packed", a->packed, 1, width, width, slots};
    struct aura_extent norms = {"norms", a->norms, sizeof(float), a->dim / AURA_TQ_PART, a->dim / AURA_TQ_PART, slots};
    if ((status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, &packed)) ||
        (status = aura_check_rows(call, &norms)) || (status = aura_check_apart(call, &packed, &in)) ||
        (status = aura_check_apart(call, &norms, &in)) || (status = aura_check_apart(call, &norms, &packed)))
        return status;
    return AURA_OK;
}

aura_status aura_check_tq_numbers(struct aura_call call, const aura_tq_encode_args *a)
{
    for (size_t i = 0; i < a->tokens * a->kv_heads * a->dim; i++) {
        float x = aura_load(a->in, a->in_dtype, i);
        if (!(fabsf(x) <= 0x1p40f))
            return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: in[%zu][%zu][%zu] is %g; coordinates must be within 2^40",
                             call.name, i / a->dim / a->kv_heads, i / a->dim % a->kv_heads, i % a->dim, (double)x);
    }
    return AURA_OK;
}

struct encode_work {
    const aura_ctx *ctx;
    const aura_tq_encode_args *args;
    struct aura_rotation_plan rotation;
    struct aura_codec_plan codec;
};

static void encode_token(void *user, size_t t)
{
    const struct encode_work *w = user;
    const aura_tq_encode_args *a = w->args;
    uint32_t parts = a->dim / AURA_TQ_PART;
    uint64_t slot = a->sliding ? (a->write_pos % a->capacity + t) % a->capacity : a->write_pos + t;
    for (size_t head = 0; head < a->kv_heads; head++) {
        float y[2 * AURA_TQ_PART], rms[2];
        size_t row = head * a->capacity + slot;
        aura_load_row(y, a->in, a->in_dtype, (t * a->kv_heads + head) * a->dim, a->dim);
        w->ctx->kernels.rotate[0](y, y, &w->rotation, 1);
        w->ctx->kernels.row_encode[w->codec.bits]((uint8_t *)a->packed + row * parts * w->codec.row_bytes, rms, y, &w->codec,
                                                  parts);
        for (uint32_t part = 0; part < parts; part++)
            a->norms[row * parts + part] = parts == 1 ? 16 * rms[part] : rms[part];
    }
}

aura_status aura_tq_encode(const aura_ctx *ctx, const aura_tq_encode_args *a)
{
    struct aura_call call = {ctx, "aura_tq_encode"};
    aura_status status = aura_check_tq_encode(call, a);
    if (status || (status = aura_check_tq_numbers(call, a)))
        return status;
    struct encode_work w = {.ctx = ctx, .args = a};
    uint64_t mode = aura_fpmode_enter();
    aura_rotation_plan_init(&w.rotation, a->dim, tq_signs, NULL, 0);
    aura_tq_plan(&w.codec, a->dim, a->bits, a->scale_factor_d512);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, 12. * (double)a->tokens * a->kv_heads * a->dim, (size_t)a->tokens, encode_token, &w);
    return AURA_OK;
}

aura_status aura_check_tq_dequant(struct aura_call call, const aura_tq_dequant_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) ||
        (status = check_shape(call, a->dim, a->bits, a->kv_heads, a->scale_factor_d512)))
        return status;
    if (a->slot >= a->capacity)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: slot %llu of %llu", call.name, (unsigned long long)a->slot,
                         (unsigned long long)a->capacity);
    size_t slots = aura_times(a->kv_heads, (size_t)a->capacity), width = a->bits == 4 ? a->dim / 2 : a->dim;
    struct aura_extent packed = {"packed", a->packed, 1, width, width, slots};
    struct aura_extent norms = {"norms", a->norms, sizeof(float), a->dim / AURA_TQ_PART, a->dim / AURA_TQ_PART, slots};
    struct aura_extent out = {"out", a->out, sizeof(float), a->dim, a->dim, a->kv_heads};
    if ((status = aura_check_rows(call, &packed)) || (status = aura_check_rows(call, &norms)) ||
        (status = aura_check_rows(call, &out)) || (status = aura_check_apart(call, &out, &packed)) ||
        (status = aura_check_apart(call, &out, &norms)))
        return status;
    return AURA_OK;
}

aura_status aura_tq_dequant(const aura_ctx *ctx, const aura_tq_dequant_args *a)
{
    const struct aura_call call = {ctx, "aura_tq_dequant"};
    const aura_status status = aura_check_tq_dequant(call, a);
    if (status)
        return status;
    struct aura_codec_plan codec;
    uint32_t parts = a->dim / AURA_TQ_PART;
    uint64_t mode = aura_fpmode_enter();
    aura_tq_plan(&codec, a->dim, a->bits, a->scale_factor_d512);
    for (size_t head = 0; head < a->kv_heads; head++) {
        size_t row = head * a->capacity + a->slot;
        float scale[2];
        for (uint32_t part = 0; part < parts; part++)
            scale[part] = a->norms[row * parts + part] * aura_tq_norm_factor(a->dim, a->scale_factor_d512);
        ctx->kernels.row_dequant[codec.bits](a->out + head * a->dim, (const uint8_t *)a->packed + row * parts * codec.row_bytes,
                                         scale, &codec, parts);
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

/* ---- plain caches ------------------------------------------------------------------------------------------------- */

aura_status aura_check_kv_copy(struct aura_call call, const aura_kv_copy_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->heads, a->heads)) ||
        (status = check_slots(call, a->tokens, a->capacity, a->write_pos, a->sliding)) ||
        (status = aura_check_dtype(call, "in_dtype", a->in_dtype)) ||
        (status = aura_check_dtype(call, "cache_dtype", a->cache_dtype)))
        return status;
    size_t slots = a->tokens ? aura_times(a->heads, (size_t)a->capacity) : 0;
    struct aura_extent in = {"in", a->in, aura_dtype_bytes(a->in_dtype), a->dim, a->dim,
                             aura_times((size_t)a->tokens, a->heads)};
    struct aura_extent cache = {"cache", a->cache, aura_dtype_bytes(a->cache_dtype), a->dim, a->dim, slots};
    if (a->dim == 0)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: dim is 0", call.name);
    if ((status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, &cache)) ||
        (status = aura_check_apart(call, &cache, &in)))
        return status;
    return AURA_OK;
}

static void copy_token(void *user, size_t t)
{
    const aura_kv_copy_args *a = user;
    uint64_t slot = a->sliding ? (a->write_pos % a->capacity + t) % a->capacity : a->write_pos + t;
    for (size_t head = 0; head < a->heads; head++) {
        size_t row = a->token_major ? slot * a->heads + head : head * a->capacity + slot;
        for (uint32_t d = 0; d < a->dim; d++)
            aura_store(a->cache, a->cache_dtype, row * a->dim + d,
                       aura_load(a->in, a->in_dtype, (t * a->heads + head) * a->dim + d));
    }
}

aura_status aura_kv_copy(const aura_ctx *ctx, const aura_kv_copy_args *a)
{
    struct aura_call call = {ctx, "aura_kv_copy"};
    aura_status status = aura_check_kv_copy(call, a);
    if (status)
        return status;
    aura_run_rows(ctx, (double)a->tokens * a->heads * a->dim, (size_t)a->tokens, copy_token, (void *)a);
    return AURA_OK;
}
