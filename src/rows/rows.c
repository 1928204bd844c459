/* Vectors to codes and back over plain row-major arrays: rotate, undo, encode, decode. */
#include "../base/exact.h"
#include "rows.h"

#include <math.h>
#include <stdatomic.h>
#include <stdint.h>
#include <string.h>

#include "../base/arguments.h"
#include "../codec.h"
#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../ref.h"
#include "../rotation.h"
#include "../rules.h"
#include "checks.h"
#include "group.h"

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

enum { CHUNK = 64 }; /* rows of an item */

static size_t chunks_of(size_t rows)
{
    return rows / CHUNK + (rows % CHUNK != 0);
}

struct rotate_work {
    const aura_rotate_args *args;
    struct aura_rotator rotator;
};

static void rotate_item(void *user, size_t i)
{
    const struct rotate_work *w = user;
    const aura_rotate_args *a = w->args;
    uint32_t dim = a->rotation->dim;
    size_t in_stride = aura_or(a->in_stride, dim), out_stride = aura_or(a->out_stride, dim), first = i * CHUNK;
    size_t n = a->rows - first < CHUNK ? a->rows - first : CHUNK;
    if (a->in_dtype == AURA_F32 && a->out_dtype == AURA_F32 && in_stride == dim && out_stride == dim) {
        aura_rotator_apply((float *)a->out + first * dim, (const float *)a->in + first * dim, &w->rotator, n);
        return;
    }
    for (size_t row = first; row < first + n; row++) {
        float x[AURA_MAX_DIM];
        aura_load_row(x, a->in, a->in_dtype, row * in_stride, dim);
        aura_rotator_apply(x, x, &w->rotator, 1);
        aura_store_row(a->out, a->out_dtype, row * out_stride, x, dim);
    }
}

/* Multiplications of rotating a row, about: a dense matrix has one for each of its numbers. */
static double rotation_cost(const aura_rotation *r)
{
    return (double)r->dim * (r->kind == AURA_ROTATION_DENSE ? r->dim : 4);
}

static aura_status rotate(struct aura_call call, const aura_rotate_args *a, int undo)
{
    aura_status status;
    struct rotate_work w = {.args = a};
    if ((status = aura_check_call(call, a, sizeof *a)) ||
        (status = aura_check_rotation(call, a->rotation, a->rotation ? a->rotation->dim : 0)) ||
        (status = aura_check_rotate(call, a)) || (status = aura_rotator_init(&w.rotator, call, a->rotation, undo)))
        return status;
    aura_run_rows(call.ctx, (double)a->rows * rotation_cost(a->rotation), chunks_of(a->rows), rotate_item, &w);
    aura_rotator_free(&w.rotator);
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

/* Everything that encoding needs; `floor` is smallest_size() of it. */
struct encoder {
    const aura_encode_args *args;
    aura_row_encode_fn *run;
    struct aura_rotator rotator;
    struct aura_codec_plan plan;
    size_t in_stride, packed_stride;
    float floor;
    _Atomic int bad; /* some value is */
};

static void encode_row(const struct encoder *e, uint8_t *packed, float *scale, size_t row)
{
    float y[AURA_MAX_DIM];
    aura_load_row(y, e->args->in, e->args->in_dtype, row * e->in_stride, e->plan.dim);
    if (e->rotator.rotation)
        aura_rotator_apply(y, y, &e->rotator, 1);
    e->run(packed, scale, y, &e->plan, 1);
}

/* What is wrong with a row. dim: nothing; below it, that coordinate; above it, its scale. */
static uint32_t wrong_with(const struct encoder *e, size_t row, float *number)
{
    const aura_encode_args *a = e->args;
    const float *balance = a->rotation ? a->rotation->balance : NULL;
    float largest = 0;
    for (uint32_t d = 0; d < a->dim; d++) {
        float x = aura_load(a->in, a->in_dtype, row * e->in_stride + d), size = fabsf(balance ? x * balance[d] : x);
        *number = x;
        if (!(size <= LARGEST))
            return d;
        largest = size > largest ? size : largest;
    }
    if (a->scale_dtype != AURA_F16 || sqrtf((float)a->dim) * largest <= 512 * e->floor)
        return a->dim;
    uint8_t packed[AURA_MAX_DIM];
    encode_row(e, packed, number, row);
    return fabsf(*number) < aura_first_infinite(AURA_F16) ? a->dim : a->dim + 1;
}

static void check_item(void *user, size_t i)
{
    struct encoder *e = user;
    float ignored;
    for (size_t row = i * CHUNK; row < e->args->rows && row < (i + 1) * CHUNK; row++)
        if (wrong_with(e, row, &ignored) != e->plan.dim)
            atomic_store(&e->bad, 1);
}

/* Says which row is the first that cannot be encoded. */
static aura_status say_what_is_bad(struct aura_call call, const struct encoder *e)
{
    const aura_encode_args *a = e->args;
    float number = 0;
    size_t row = 0;
    uint32_t d;
    while ((d = wrong_with(e, row, &number)) == a->dim)
        row++;
    if (d > a->dim)
        return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: the scale of row %zu, %g, does not fit in f16", call.name, row,
                         (double)number);
    return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: in[%zu][%u] is %g%s; coordinates must be within 2^40", call.name, row, d,
                     (double)number, a->rotation && a->rotation->balance ? " before balance" : "");
}

/* The text, too, is written in this mode: to make a double of a signalling NaN is an exception. */
static aura_status fail_with_value(struct aura_call call, const struct encoder *e)
{
    uint64_t mode = aura_fpmode_enter();
    aura_status status = say_what_is_bad(call, e);
    aura_fpmode_leave(mode);
    return status;
}

static void encode_item(void *user, size_t i)
{
    const struct encoder *e = user;
    const aura_encode_args *a = e->args;
    for (size_t row = i * CHUNK; row < a->rows && row < (i + 1) * CHUNK; row++) {
        float scale;
        encode_row(e, (uint8_t *)a->packed + row * e->packed_stride, &scale, row);
        aura_store(a->scales, a->scale_dtype, row, scale);
    }
}

aura_status aura_encode(const aura_ctx *ctx, const aura_encode_args *args)
{
    struct aura_call call = {ctx, "aura_encode"};
    struct encoder e = {.args = args};
    aura_status status;
    if ((status = aura_check_encode(call, args)) ||
        (args->rotation && (status = aura_check_rotation(call, args->rotation, args->dim))) ||
        (status = aura_rotator_init(&e.rotator, call, args->rotation, 0)))
        return status;
    e.run = ctx->kernels.row_encode[args->codebook->bits];
    uint64_t mode = aura_fpmode_enter();
    aura_codec_plan_init(&e.plan, args->codebook, args->dim, args->rule, args->search);
    e.floor = smallest_size(args->codebook, args->dim, args->rule);
    aura_fpmode_leave(mode);
    if (args->tiny > 0) {
        e.plan.tiny = args->tiny;
        e.plan.keep_tiny = 1;
    }
    e.in_stride = aura_or(args->in_stride, args->dim);
    e.packed_stride = aura_or(args->packed_stride, e.plan.row_bytes);
    double cost = (double)args->rows * (8. * args->dim * e.plan.n_fits + (args->rotation ? rotation_cost(args->rotation) : 0));
    aura_run_rows(ctx, cost, chunks_of(args->rows), check_item, &e); /* every row before the first is written */
    if (atomic_load(&e.bad))
        status = fail_with_value(call, &e);
    else
        aura_run_rows(ctx, cost, chunks_of(args->rows), encode_item, &e);
    aura_rotator_free(&e.rotator);
    return status;
}

struct decoder {
    const aura_ctx *ctx;
    const aura_decode_args *args;
    struct aura_rotator rotator;
    struct aura_codec_plan plan;
    size_t packed_stride, out_stride;
};

static void decode_item(void *user, size_t i)
{
    const struct decoder *d = user;
    const aura_decode_args *a = d->args;
    for (size_t row = i * CHUNK; row < a->rows && row < (i + 1) * CHUNK; row++) {
        float x[AURA_MAX_DIM], scale = aura_load(a->scales, a->scale_dtype, row);
        d->ctx->kernels.row_dequant[d->plan.bits](x, (const uint8_t *)a->packed + row * d->packed_stride, &scale, &d->plan, 1);
        if (d->rotator.rotation)
            aura_rotator_apply(x, x, &d->rotator, 1);
        aura_store_row(a->out, a->out_dtype, row * d->out_stride, x, a->dim);
    }
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
    struct decoder d = {.ctx = ctx, .args = a, .packed_stride = aura_or(a->packed_stride, row_bytes),
                        .out_stride = aura_or(a->out_stride, a->dim)};
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, d.out_stride, a->rows};
    struct aura_extent packed = {"packed", a->packed, 1, row_bytes, d.packed_stride, a->rows};
    struct aura_extent scales = {"scales", a->scales, aura_dtype_bytes(a->scale_dtype), 1, 1, a->rows};
    if ((status = aura_check_rows(call, &out)) || (status = aura_check_rows(call, &packed)) ||
        (status = aura_check_rows(call, &scales)) || (status = aura_check_apart(call, &out, &packed)) ||
        (status = aura_check_apart(call, &out, &scales)))
        return status;
    if ((status = aura_rotator_init(&d.rotator, call, a->rotation, 1)))
        return status;
    uint64_t mode = aura_fpmode_enter();
    aura_codec_plan_init(&d.plan, a->codebook, a->dim, AURA_SCALE_MATCHED, 0);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->rows * (a->dim + (a->rotation ? rotation_cost(a->rotation) : 0)), chunks_of(a->rows), decode_item,
                  &d);
    aura_rotator_free(&d.rotator);
    return AURA_OK;
}
