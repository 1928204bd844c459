#include "exact.h"
#include "arguments.h"

#include <math.h>
#include <stdint.h>
#include <stdio.h>

#include "../format.h"
#include "../rotation.h"
#include "../variants.h"
#include "fpmode.h"

static const uint32_t cache_bits[] = {AURA_BITS(AURA_KIND_ITEM)}, cache_kinds[] = {AURA_KINDS(AURA_KIND_ITEM)};
enum {
    N_BITS = sizeof cache_bits / sizeof *cache_bits,
    N_KINDS = sizeof cache_kinds / sizeof *cache_kinds
};

aura_status aura_check_call(struct aura_call call, const void *args, size_t known)
{
    if (!call.ctx || !args)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, call.ctx ? "args" : "ctx");
    size_t size = *(const size_t *)args; /* the first field of every args struct */
    if (size != known)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: args.size is %zu, this library knows %zu", call.name, size,
                         known);
    return AURA_OK;
}

aura_status aura_take_memory(struct aura_call call, size_t bytes, void **memory)
{
    *memory = call.ctx->allocator.alloc(call.ctx->allocator.user, bytes, 64);
    if (!*memory)
        return aura_fail(call.ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name, bytes);
    return AURA_OK;
}

void aura_give_memory(const aura_ctx *ctx, void *memory, size_t bytes)
{
    if (memory)
        ctx->allocator.free(ctx->allocator.user, memory, bytes);
}

aura_status aura_check_dtype(struct aura_call call, const char *what, aura_dtype dtype)
{
    if (!aura_dtype_bytes(dtype))
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s %d is not f32, f16 or bf16", call.name, what, (int)dtype);
    return AURA_OK;
}

aura_status aura_check_dim(struct aura_call call, uint32_t dim)
{
    if (dim == 0 || dim % 8 || dim > AURA_MAX_DIM)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: dim %u is not a multiple of 8 from 8 to %d", call.name, dim,
                         AURA_MAX_DIM);
    return AURA_OK;
}

aura_status aura_check_rows(struct aura_call call, const struct aura_extent *m)
{
    if (!m->data && m->rows)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, m->what);
    if ((uintptr_t)m->data % m->element)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is not aligned to its %zu-byte elements", call.name,
                         m->what, m->element);
    if (m->stride < m->width)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the stride of %s, %zu, is less than a row, %zu", call.name,
                         m->what, m->stride, m->width);
    if (m->rows && m->stride > PTRDIFF_MAX / m->element / m->rows)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %s: %zu rows with stride %zu do not fit in memory", call.name,
                         m->what, m->rows, m->stride);
    return AURA_OK;
}

/* Past the last element: the last row ends with its width, what follows it in the stride may be somebody else's. */
static uintptr_t end_of(const struct aura_extent *m)
{
    return (uintptr_t)m->data + ((m->rows - 1) * m->stride + m->width) * m->element;
}

aura_status aura_check_apart(struct aura_call call, const struct aura_extent *a, const struct aura_extent *b)
{
    if (a->rows && b->rows && (uintptr_t)a->data < end_of(b) && (uintptr_t)b->data < end_of(a))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s overlaps %s", call.name, a->what, b->what);
    return AURA_OK;
}

static aura_status check_matrix(struct aura_call call, const float *matrix, uint32_t dim)
{
    for (size_t i = 0; i < (size_t)dim * dim; i++)
        if (!(fabsf(matrix[i]) <= 1.01f)) /* so that a NaN fails too; 1.01 leaves room for a matrix held in bf16 */
            return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: rotation.matrix[%zu][%zu] is %g, not of an orthogonal matrix",
                             call.name, i / dim, i % dim, (double)matrix[i]);
    return AURA_OK;
}

aura_status aura_check_rotation_shape(struct aura_call call, const aura_rotation *r, uint32_t dim)
{
    aura_status status;
    if (!r)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rotation is NULL", call.name);
    if (r->size != sizeof *r)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rotation.size is %zu, this library knows %zu", call.name,
                         r->size, sizeof *r);
    if ((status = aura_check_dim(call, r->dim)))
        return status;
    if (r->dim != dim)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rotation.dim is %u, dim is %u", call.name, r->dim, dim);
    if (r->kind == AURA_ROTATION_HADAMARD && !aura_paley_order(dim))
        return aura_fail(call.ctx, AURA_UNSUPPORTED,
                         "%s: there is no Hadamard matrix of dim %u here; a dense rotation takes any dim", call.name,
                         dim);
    if (r->kind == AURA_ROTATION_HADAMARD)
        return AURA_OK;
    if (r->kind != AURA_ROTATION_DENSE || !r->matrix)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rotation.%s", call.name,
                         r->kind == AURA_ROTATION_DENSE ? "matrix is NULL" : "kind is unknown");
    return AURA_OK;
}

aura_status aura_check_rotation(struct aura_call call, const aura_rotation *r, uint32_t dim)
{
    aura_status status = aura_check_rotation_shape(call, r, dim);
    if (status || r->kind == AURA_ROTATION_HADAMARD)
        return status;
    uint64_t mode = aura_fpmode_enter();
    status = check_matrix(call, r->matrix, dim);
    aura_fpmode_leave(mode);
    return status;
}

/* Levels between 2^-20 and 2^20, ascending, thresholds ascending: then no sum or quotient of encode overflows. */
static aura_status check_levels(struct aura_call call, const aura_codebook *b)
{
    if (!b || !b->centroid || !b->threshold)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: codebook%s is NULL", call.name,
                         !b ? "" : b->centroid ? ".threshold" : ".centroid");
    if (b->bits < 1 || b->bits > 8 || b->levels < 2 || b->levels > 1u << b->bits)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: codebook of %u bits and %u levels", call.name, b->bits,
                         b->levels);
    int good = b->sigma >= 0x1p-20f && b->sigma <= 0x1p20f;
    for (uint32_t i = 0; i < b->levels; i++) {
        float size = fabsf(b->centroid[i]);
        good = good && (size == 0 || (size >= 0x1p-20f && size <= 0x1p20f));
        good = good && (i == 0 || b->centroid[i] > b->centroid[i - 1]);
        good = good && (i + 1 == b->levels || fabsf(b->threshold[i]) <= 0x1p20f);
        good = good && (i == 0 || i + 1 == b->levels || b->threshold[i] > b->threshold[i - 1]);
    }
    if (!good || b->centroid[b->levels - 1] <= 0)
        return aura_fail(call.ctx, AURA_BAD_VALUE,
                         "%s: the codebook's levels and thresholds must ascend, end above 0 and lie within 2^20",
                         call.name);
    if (!call.ctx->kernels.row_encode[b->bits])
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: no kernel for %u bits; `aura list` names the widths",
                         call.name, b->bits);
    return AURA_OK;
}

aura_status aura_check_codebook(struct aura_call call, const aura_codebook *b)
{
    uint64_t mode = aura_fpmode_enter();
    aura_status status = check_levels(call, b);
    aura_fpmode_leave(mode);
    return status;
}

aura_status aura_check_heads(struct aura_call call, uint32_t q_heads, uint32_t kv_heads)
{
    if (q_heads == 0 || kv_heads == 0 || q_heads % kv_heads)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u query heads are not a multiple of %u KV heads", call.name,
                         q_heads, kv_heads);
    return AURA_OK;
}

/* ---- dims and kinds of a cache ------------------------------------------------------------------------------------ */

static int is_one_of(const uint32_t *list, size_t n, uint32_t x)
{
    for (size_t i = 0; i < n; i++)
        if (list[i] == x)
            return 1;
    return 0;
}

/* The list as a message has it: "64, 80 or 96" where `last` is " or ". */
struct list_text {
    char text[128];
};

static struct list_text text_of(const uint32_t *list, size_t n, const char *last)
{
    struct list_text t = {""};
    for (size_t i = 0, at = 0; i < n && at < sizeof t.text; i++)
        at += (size_t)snprintf(t.text + at, sizeof t.text - at, "%s%u", i == 0 ? "" : i + 1 < n ? ", " : last, list[i]);
    return t;
}

/* The largest dim that can be stored. */
static uint32_t largest_dim(void)
{
    uint32_t largest = 0;
    for (uint32_t next; (next = aura_stored_dim(largest + 1));)
        largest = next;
    return largest;
}

aura_status aura_check_cache_dim(struct aura_call call, const char *what, uint32_t dim)
{
    if (dim && aura_stored_dim(dim))
        return AURA_OK;
    return aura_fail(call.ctx, dim ? AURA_UNSUPPORTED : AURA_BAD_ARGUMENT, "%s: %s is %u, not 1 to %u", call.name, what, dim,
                     largest_dim());
}

aura_status aura_check_cache_dims(struct aura_call call, uint32_t k_dim, uint32_t v_dim)
{
    aura_status status = aura_check_cache_dim(call, "k_dim", k_dim);
    return status ? status : aura_check_cache_dim(call, "v_dim", v_dim);
}

aura_status aura_check_format(struct aura_call call, aura_format format)
{
    if (is_one_of(cache_kinds, N_KINDS, (uint32_t)format.k) && is_one_of(cache_kinds, N_KINDS, (uint32_t)format.v))
        return AURA_OK;
    return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: format {%d, %d}: a side has %s bits or is t2, t3, t4, f32, f16, bf16",
                     call.name, (int)format.k, (int)format.v, text_of(cache_bits, N_BITS, " or ").text);
}

/* ---- numbers and views -------------------------------------------------------------------------------------------- */

static aura_status check_factors(struct aura_call call, const float *balance, uint32_t kv_heads, uint32_t k_dim)
{
    for (size_t i = 0; i < (size_t)kv_heads * k_dim; i++)
        if (!(balance[i] >= 0.125f && balance[i] <= 8)) /* so that NaN fails too */
            return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: balance of KV head %zu, channel %zu is %g, not within 1/8 to 8",
                             call.name, i / k_dim, i % k_dim, (double)balance[i]);
    return AURA_OK;
}

aura_status aura_check_balance(struct aura_call call, const float *balance, uint32_t kv_heads, uint32_t k_dim)
{
    uint64_t mode = aura_fpmode_enter();
    aura_status status = check_factors(call, balance, kv_heads, k_dim);
    aura_fpmode_leave(mode);
    return status;
}

aura_status aura_check_view(struct aura_call call, const char *what, const aura_input *v)
{
    size_t element = v ? aura_dtype_bytes(v->dtype) : 0;
    if (!v || !v->data)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s%s is NULL", call.name, what, v ? ".data" : "");
    if (!element)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s.dtype %d is not f32, f16 or bf16", call.name, what,
                         (int)v->dtype);
    if ((uintptr_t)v->data % element)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s.data is not aligned to its %zu-byte elements", call.name,
                         what, element);
    return AURA_OK;
}

aura_status aura_check_view_extent(struct aura_call call, const char *what, const aura_input *v, size_t tokens,
                                   uint32_t heads, uint32_t dim)
{
    size_t limit = PTRDIFF_MAX / aura_dtype_bytes(v->dtype) / 4; /* three such sums still fit */
    size_t head = v->head_stride ? aura_magnitude(v->head_stride) : dim;
    size_t token = v->token_stride ? aura_magnitude(v->token_stride) : aura_times(head, heads), given = tokens;
    for (size_t i = 0; v->rows && i < given; i++)
        tokens = v->rows[i] >= tokens ? (size_t)v->rows[i] + 1 : tokens;
    if (aura_times(head, heads) > limit || aura_times(token, tokens) > limit)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %s: %zu rows with strides %td and %td do not fit in memory",
                         call.name, what, tokens, v->token_stride, v->head_stride);
    return AURA_OK;
}

aura_status aura_check_view_apart(struct aura_call call, const char *what, const aura_input *v, size_t tokens,
                                  uint32_t heads, uint32_t dim)
{
    size_t head = v->head_stride ? aura_magnitude(v->head_stride) : dim;
    size_t token = v->token_stride ? aura_magnitude(v->token_stride) : head * heads;
    for (size_t i = 1; v->rows && i < tokens; i++)
        if (v->rows[i] <= v->rows[i - 1])
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s.rows[%zu] is %u after %u; rows of an output ascend", call.name,
                             what, i, v->rows[i], v->rows[i - 1]);
    if (v->rows && tokens)
        tokens = (size_t)(v->rows[tokens - 1] - v->rows[0]) + 1; /* from the first to the last */
    int head_inside = heads == 1 || tokens == 1 || token >= (heads - 1) * head + dim; /* all heads of a token, then the next */
    int token_inside = heads == 1 || tokens == 1 || head >= (tokens - 1) * token + dim; /* or the other way round */
    if ((heads > 1 && head < dim) || (tokens > 1 && token < dim) || !(head_inside || token_inside))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: with strides %td and %td the rows of %s overlap", call.name,
                         v->token_stride, v->head_stride, what);
    return AURA_OK;
}
