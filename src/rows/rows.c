/* Vectors to codes and back over plain row-major arrays: rotate, undo, encode, decode. */
#include "../base/exact.h"
#include "rows.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../base/arguments.h"
#include "../codec.h"
#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../ref.h"
#include "../rotation.h"
#include "../rules.h"

/* Largest coordinate that is encoded, after balance. A rotated row then stays below 2^50 and sums of squares far from
 * overflow, even with a matrix that is only roughly orthogonal. */
#define LARGEST 0x1p40f

/* ---- rotate, undo ------------------------------------------------------------------------------------------------ */

aura_status aura_rotator_init(struct aura_rotator *rotator, struct aura_call call, const aura_rotation *rotation, int undo)
{
    const aura_ctx *ctx = call.ctx;
    rotator->ctx = ctx;
    rotator->rotation = rotation;
    rotator->undo = undo;
    rotator->transposed = NULL;
    if (!rotation)
        return AURA_OK;
    size_t dim = rotation->dim;
    if (rotation->kind == AURA_ROTATION_HADAMARD) {
        aura_rotation_plan_init(&rotator->plan, rotation->dim, rotation->signs, rotation->balance, undo);
    } else if (!undo) { /* kernels want the matrix by columns; the inverse reads it as it is */
        rotator->transposed = ctx->allocator.alloc(ctx->allocator.user, dim * dim * sizeof(float), 64);
        if (!rotator->transposed)
            return aura_fail(ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name,
                             dim * dim * sizeof(float));
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j < dim; j++)
                rotator->transposed[j * dim + i] = rotation->matrix[i * dim + j];
    }
    return AURA_OK;
}

void aura_rotator_free(struct aura_rotator *rotator)
{
    const aura_ctx *ctx = rotator->ctx;
    if (rotator->transposed)
        ctx->allocator.free(ctx->allocator.user, rotator->transposed,
                            (size_t)rotator->rotation->dim * rotator->rotation->dim * sizeof(float));
}

void aura_rotator_apply(float *y, const float *x, const struct aura_rotator *rotator, size_t n)
{
    const struct aura_kernels *kernels = &rotator->ctx->kernels;
    const aura_rotation *r = rotator->rotation;
    if (r->kind == AURA_ROTATION_HADAMARD) {
        (rotator->undo ? kernels->undo[0] : kernels->rotate[0])(y, x, &rotator->plan, n);
        return;
    }
    for (size_t row = 0; row < n; row++, x += r->dim, y += r->dim) {
        float in[AURA_MAX_DIM]; /* a copy, so that y may be x */
        for (uint32_t d = 0; d < r->dim; d++)
            in[d] = r->balance && !rotator->undo ? x[d] * r->balance[d] : x[d];
        kernels->row_rotate_dense[0](y, in, rotator->undo ? r->matrix : rotator->transposed, r->dim, 1);
        for (uint32_t d = 0; r->balance && rotator->undo && d < r->dim; d++)
            y[d] = y[d] * r->balance[d];
    }
}

static aura_status rotate(struct aura_call call, const aura_rotate_args *a, int undo)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) ||
        (status = aura_check_rotation(call, a->rotation, a->rotation ? a->rotation->dim : 0)) ||
        (status = aura_check_dtype(call, "in_dtype", a->in_dtype)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    uint32_t dim = a->rotation->dim;
    struct aura_extent in = {"in", a->in, aura_dtype_bytes(a->in_dtype), dim, a->in_stride ? a->in_stride : dim, a->rows};
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), dim, a->out_stride ? a->out_stride : dim, a->rows};
    int in_place = a->in == a->out && a->in_dtype == a->out_dtype && in.stride == out.stride;
    if ((status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, &out)) ||
        (!in_place && (status = aura_check_apart(call, &out, &in))))
        return status;

    struct aura_rotator rotator;
    if ((status = aura_rotator_init(&rotator, call, a->rotation, undo)))
        return status;
    uint64_t mode = aura_fpmode_enter();
    if (a->in_dtype == AURA_F32 && a->out_dtype == AURA_F32 && in.stride == dim && out.stride == dim) {
        aura_rotator_apply(a->out, a->in, &rotator, a->rows);
    } else {
        for (size_t row = 0; row < a->rows; row++) {
            float x[AURA_MAX_DIM];
            aura_load_row(x, a->in, a->in_dtype, row * in.stride, dim);
            aura_rotator_apply(x, x, &rotator, 1);
            aura_store_row(a->out, a->out_dtype, row * out.stride, x, dim);
        }
    }
    aura_fpmode_leave(mode);
    aura_rotator_free(&rotator);
    return AURA_OK;
}

aura_status aura_rotate(const aura_ctx *ctx, const aura_rotate_args *args)
{
    struct aura_call call = {ctx, "aura_rotate"};
    return rotate(call, args, 0);
}

aura_status aura_undo(const aura_ctx *ctx, const aura_rotate_args *args)
{
    struct aura_call call = {ctx, "aura_undo"};
    return rotate(call, args, 1);
}

/* ---- encode, decode ---------------------------------------------------------------------------------------------- */

static aura_status check_encode(struct aura_call call, const aura_encode_args *a, size_t *in_stride, size_t *packed_stride)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_codebook(call, a->codebook)) ||
        (status = aura_check_dim(call, a->dim)) || (a->rotation && (status = aura_check_rotation(call, a->rotation, a->dim))) ||
        (status = aura_check_dtype(call, "in_dtype", a->in_dtype)) ||
        (status = aura_check_dtype(call, "scale_dtype", a->scale_dtype)))
        return status;
    if (a->rule < AURA_SCALE_MATCHED || a->rule > AURA_SCALE_RAW || a->search > 1 || !(a->tiny >= 0 && a->tiny <= 1))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rule %d, search %u or tiny %g is out of range", call.name,
                         (int)a->rule, a->search, (double)a->tiny);
    size_t row_bytes = aura_row_bytes(a->dim, a->codebook->bits);
    *in_stride = a->in_stride ? a->in_stride : a->dim;
    *packed_stride = a->packed_stride ? a->packed_stride : row_bytes;
    struct aura_extent in = {"in", a->in, aura_dtype_bytes(a->in_dtype), a->dim, *in_stride, a->rows};
    struct aura_extent packed = {"packed", a->packed, 1, row_bytes, *packed_stride, a->rows};
    struct aura_extent scales = {"scales", a->scales, aura_dtype_bytes(a->scale_dtype), 1, 1, a->rows};
    if ((status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, &packed)) ||
        (status = aura_check_rows(call, &scales)) || (status = aura_check_apart(call, &packed, &in)) ||
        (status = aura_check_apart(call, &scales, &in)) || (status = aura_check_apart(call, &scales, &packed)))
        return status;
    return AURA_OK;
}

/* A lower bound of |c| for all codes of a row, 0 where there is none. With it, most rows need no exact |y| / |c| to know that
 * their scale fits. The raw scale has, in place of |c|, the length that the table is made for. */
static float smallest_size(const aura_codebook *book, uint32_t dim, aura_scale_rule rule)
{
    float smallest = book->centroid[book->levels - 1];
    if (rule == AURA_SCALE_RAW)
        return sqrtf((float)dim) * book->sigma;
    if (book->uniform)
        return 0.95f * smallest; /* the largest coordinate gets the highest level, or 0.95 of it */
    for (uint32_t i = 0; i < book->levels; i++)
        smallest = fabsf(book->centroid[i]) < smallest ? fabsf(book->centroid[i]) : smallest;
    return sqrtf((float)dim) * smallest;
}

/* Everything that encoding needs, with space for one row. */
struct encoder {
    const aura_encode_args *args;
    aura_row_encode_fn *run;
    struct aura_rotator rotator;
    struct aura_codec_plan plan;
    size_t in_stride;
    float y[AURA_MAX_DIM];
};

static void encode_row(struct encoder *e, uint8_t *packed, float *scale, size_t row)
{
    aura_load_row(e->y, e->args->in, e->args->in_dtype, row * e->in_stride, e->plan.dim);
    if (e->rotator.rotation)
        aura_rotator_apply(e->y, e->y, &e->rotator, 1);
    e->run(packed, scale, e->y, &e->plan, 1);
}

/* Checks every row before the first is written. */
static aura_status check_values(struct aura_call call, struct encoder *e)
{
    const aura_encode_args *a = e->args;
    const float *balance = a->rotation ? a->rotation->balance : NULL;
    float floor = smallest_size(a->codebook, a->dim, a->rule);
    for (size_t row = 0; row < a->rows; row++) {
        float largest = 0, scale;
        for (uint32_t d = 0; d < a->dim; d++) {
            float x = aura_load(a->in, a->in_dtype, row * e->in_stride + d), size = fabsf(balance ? x * balance[d] : x);
            if (!(size <= LARGEST))
                return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: in[%zu][%u] is %g%s; coordinates must be within 2^40",
                                 call.name, row, d, (double)x, balance ? " before balance" : "");
            largest = size > largest ? size : largest;
        }
        if (a->scale_dtype != AURA_F16 || sqrtf((float)a->dim) * largest <= 512 * floor)
            continue;
        uint8_t packed[AURA_MAX_DIM];
        encode_row(e, packed, &scale, row);
        if (!(fabsf(scale) < aura_first_infinite(AURA_F16)))
            return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: the scale of row %zu, %g, does not fit in f16", call.name,
                             row, (double)scale);
    }
    return AURA_OK;
}

aura_status aura_encode(const aura_ctx *ctx, const aura_encode_args *args)
{
    struct aura_call call = {ctx, "aura_encode"};
    struct encoder e;
    size_t packed_stride = 0;
    aura_status status = check_encode(call, args, &e.in_stride, &packed_stride);
    if (status)
        return status;
    if ((status = aura_rotator_init(&e.rotator, call, args->rotation, 0)))
        return status;
    uint64_t mode = aura_fpmode_enter();
    e.args = args;
    e.run = ctx->kernels.row_encode[args->codebook->bits];
    aura_codec_plan_init(&e.plan, args->codebook, args->dim, args->rule, args->search);
    if (args->tiny > 0) {
        e.plan.tiny = args->tiny;
        e.plan.keep_tiny = 1;
    }
    status = check_values(call, &e);
    for (size_t row = 0; !status && row < args->rows; row++) {
        float scale;
        encode_row(&e, (uint8_t *)args->packed + row * packed_stride, &scale, row);
        aura_store(args->scales, args->scale_dtype, row, scale);
    }
    aura_fpmode_leave(mode);
    aura_rotator_free(&e.rotator);
    return status;
}

aura_status aura_decode(const aura_ctx *ctx, const aura_decode_args *args)
{
    struct aura_call call = {ctx, "aura_decode"};
    const aura_decode_args *a = args;
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_codebook(call, a->codebook)) ||
        (status = aura_check_dim(call, a->dim)) || (a->rotation && (status = aura_check_rotation(call, a->rotation, a->dim))) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)) ||
        (status = aura_check_dtype(call, "scale_dtype", a->scale_dtype)))
        return status;
    size_t row_bytes = aura_row_bytes(a->dim, a->codebook->bits);
    size_t packed_stride = a->packed_stride ? a->packed_stride : row_bytes;
    size_t out_stride = a->out_stride ? a->out_stride : a->dim;
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, out_stride, a->rows};
    struct aura_extent packed = {"packed", a->packed, 1, row_bytes, packed_stride, a->rows};
    struct aura_extent scales = {"scales", a->scales, aura_dtype_bytes(a->scale_dtype), 1, 1, a->rows};
    if ((status = aura_check_rows(call, &out)) || (status = aura_check_rows(call, &packed)) ||
        (status = aura_check_rows(call, &scales)) || (status = aura_check_apart(call, &out, &packed)) ||
        (status = aura_check_apart(call, &out, &scales)))
        return status;

    struct aura_rotator rotator;
    struct aura_codec_plan plan;
    if ((status = aura_rotator_init(&rotator, call, a->rotation, 1)))
        return status;
    uint64_t mode = aura_fpmode_enter();
    aura_codec_plan_init(&plan, a->codebook, a->dim, AURA_SCALE_MATCHED, 0);
    for (size_t row = 0; row < a->rows; row++) {
        float x[AURA_MAX_DIM], scale = aura_load(a->scales, a->scale_dtype, row);
        ctx->kernels.row_dequant[plan.bits](x, (const uint8_t *)a->packed + row * packed_stride, &scale, &plan, 1);
        if (rotator.rotation)
            aura_rotator_apply(x, x, &rotator, 1);
        aura_store_row(a->out, a->out_dtype, row * out_stride, x, a->dim);
    }
    aura_fpmode_leave(mode);
    aura_rotator_free(&rotator);
    return AURA_OK;
}
