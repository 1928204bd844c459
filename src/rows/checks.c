#include "../base/exact.h"
#include "checks.h"

#include <math.h>

#include "tq.h"

/* ---- packed rows -------------------------------------------------------------------------------------------------- */

/* How many rows the array must have: `stride` of every head but the last, and the live ones of the last. */
static size_t row_count(size_t stride, uint32_t heads, size_t tokens)
{
    size_t before = aura_times(stride, heads - 1);
    return before > SIZE_MAX - tokens ? SIZE_MAX : before + tokens;
}

static aura_status check_packed(struct aura_call call, const char *side, const aura_packed *p, uint32_t dim,
                                uint32_t kv_heads, size_t tokens, const struct aura_extent *out)
{
    aura_status status;
    if ((status = aura_check_dtype(call, "norm_dtype", p->norm_dtype)) ||
        (status = aura_check_dtype(call, "codebook_dtype", p->codebook_dtype)))
        return status;
    if (p->bits > 8 || !call.ctx->kernels.row_score[p->bits])
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s of %u bits; `aura list` names the widths", call.name, side,
                         p->bits);
    size_t stride = aura_or(p->stride, tokens);
    if (stride < tokens)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the stride of the %s, %zu, is below the %zu live tokens",
                         call.name, side, p->stride, tokens);
    size_t rows = row_count(stride, kv_heads, tokens), bytes = aura_row_bytes(dim, p->bits);
    size_t norm_bytes = aura_dtype_bytes(p->norm_dtype), entry = aura_dtype_bytes(p->codebook_dtype);
    struct aura_extent codes = {"codes", p->codes, 1, bytes, aura_or(p->packed_stride, bytes), tokens ? rows : 0};
    struct aura_extent norms = {"norms", p->norms, norm_bytes, 1, 1, tokens ? rows : 0};
    struct aura_extent book = {"codebook", p->codebook, entry, 1, 1, tokens ? (size_t)1 << p->bits : 0};
    if ((status = aura_check_rows(call, &codes)) || (status = aura_check_rows(call, &norms)) ||
        (status = aura_check_rows(call, &book)) || (status = aura_check_apart(call, out, &codes)) ||
        (status = aura_check_apart(call, out, &norms)))
        return status;
    return AURA_OK;
}

/* The checks of queries and outputs that score, pass 1 and sdpa share. */
static aura_status check_queries(struct aura_call call, const void *q, aura_dtype q_dtype, uint32_t dim,
                                 uint32_t q_heads, const struct aura_extent *out)
{
    aura_status status;
    struct aura_extent in = {"q", q, aura_dtype_bytes(q_dtype), dim, dim, q_heads};
    if ((status = aura_check_dim(call, dim)) || (status = aura_check_dtype(call, "q_dtype", q_dtype)) ||
        (status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, out)) ||
        (status = aura_check_apart(call, out, &in)))
        return status;
    return AURA_OK;
}

/* ---- AURA --------------------------------------------------------------------------------------------------------- */

aura_status aura_check_dequant(struct aura_call call, const aura_dequant_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->kv_heads, a->kv_heads)) ||
        (status = aura_check_dim(call, a->dim)) || (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    size_t out_stride = aura_or(a->out_stride, a->tokens);
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, a->dim,
                              a->tokens ? row_count(out_stride, a->kv_heads, a->tokens) : 0};
    if (out_stride < a->tokens)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: out_stride %zu is below the %zu live tokens", call.name,
                         out_stride, a->tokens);
    if ((status = aura_check_rows(call, &out)) ||
        (status = check_packed(call, "rows", &a->rows, a->dim, a->kv_heads, a->tokens, &out)))
        return status;
    return AURA_OK;
}

aura_status aura_check_score(struct aura_call call, const aura_score_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "score_dtype", a->score_dtype)))
        return status;
    struct aura_extent out = {"scores", a->scores, aura_dtype_bytes(a->score_dtype), a->tokens,
                              aura_or(a->score_stride, a->tokens), a->tokens ? a->q_heads : 0};
    if ((status = check_queries(call, a->q, a->q_dtype, a->dim, a->q_heads, &out)) ||
        (status = check_packed(call, "keys", &a->keys, a->dim, a->kv_heads, a->tokens, &out)))
        return status;
    return AURA_OK;
}

aura_status aura_check_value(struct aura_call call, const aura_value_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)) ||
        (status = aura_check_dtype(call, "weight_dtype", a->weight_dtype)))
        return status;
    if (a->dim == 0 || a->dim > AURA_MAX_DIM)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: dim %u is not 1 to %d", call.name, a->dim, AURA_MAX_DIM);
    if (isnan(a->sparse_threshold))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: sparse_threshold is NaN", call.name);
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, a->dim, a->q_heads};
    struct aura_extent weights = {"weights", a->weights, aura_dtype_bytes(a->weight_dtype), a->tokens,
                                  aura_or(a->weight_stride, a->tokens), a->tokens ? a->q_heads : 0};
    if ((status = check_packed(call, "values", &a->values, a->dim, a->kv_heads, a->tokens, &out)) ||
        (status = aura_check_rows(call, &out)) || (status = aura_check_rows(call, &weights)) ||
        (status = aura_check_apart(call, &out, &weights)))
        return status;
    return AURA_OK;
}

aura_status aura_check_flash_p1(struct aura_call call, const aura_flash_p1_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "partial_dtype", a->partial_dtype)))
        return status;
    uint32_t v_dim = aura_v_dim_of(a->dim, a->v_dim);
    size_t element = aura_dtype_bytes(a->partial_dtype), parts = aura_times(a->q_heads, a->num_blocks);
    size_t visible = aura_p1_visible(a);
    struct aura_extent o = {"o", a->o, element, v_dim, v_dim, parts};
    struct aura_extent m = {"m", a->m, element, 1, 1, parts}, l = {"l", a->l, element, 1, 1, parts};
    if (aura_times(a->num_blocks, a->block_size) < visible)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %zu blocks of %zu do not cover %zu tokens", call.name,
                         a->num_blocks, a->block_size, visible);
    if ((status = check_queries(call, a->q, a->q_dtype, a->dim, a->q_heads, &o)) ||
        (status = aura_check_dim(call, v_dim)) || (status = aura_check_rows(call, &m)) || (status = aura_check_rows(call, &l)) ||
        (status = check_packed(call, "keys", &a->keys, a->dim, a->kv_heads, a->tokens, &o)) ||
        (status = check_packed(call, "values", &a->values, v_dim, a->kv_heads, a->tokens, &o)))
        return status;
    return AURA_OK;
}

/* Sinks and log-sum-exp, of pass 2 and sdpa. */
static aura_status check_finish(struct aura_call call, const void *sinks, aura_dtype dtype, uint32_t heads,
                                const float *lse, const struct aura_extent *out)
{
    aura_status status;
    struct aura_extent extent = {"sinks", sinks, aura_dtype_bytes(dtype), 1, 1, heads};
    struct aura_extent sums = {"lse", lse, sizeof(float), 1, 1, lse ? out->rows : 0};
    if ((status = aura_check_rows(call, &sums)) || (status = aura_check_apart(call, &sums, out)))
        return status;
    if (!sinks)
        return AURA_OK;
    if ((status = aura_check_dtype(call, "sink_dtype", dtype)) || (status = aura_check_rows(call, &extent)))
        return status;
    return AURA_OK;
}

aura_status aura_check_flash_pass2(struct aura_call call, const aura_flash_pass2_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->q_heads)) ||
        (status = aura_check_dim(call, a->dim)) || (status = aura_check_dtype(call, "partial_dtype", a->partial_dtype)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    uint32_t sink_heads = a->sink_heads ? a->sink_heads : a->q_heads;
    size_t element = aura_dtype_bytes(a->partial_dtype), parts = aura_times(a->q_heads, a->num_blocks);
    struct aura_extent o = {"o", a->o, element, a->dim, a->dim, parts}, m = {"m", a->m, element, 1, 1, parts};
    struct aura_extent l = {"l", a->l, element, 1, 1, parts};
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, a->dim, a->q_heads};
    if ((status = aura_check_rows(call, &o)) || (status = aura_check_rows(call, &m)) ||
        (status = aura_check_rows(call, &l)) || (status = aura_check_rows(call, &out)) ||
        (status = aura_check_apart(call, &out, &o)) ||
        (status = check_finish(call, a->sinks, a->sink_dtype, sink_heads, a->lse, &out)))
        return status;
    return AURA_OK;
}

aura_status aura_check_flash_sdpa(struct aura_call call, const aura_flash_sdpa_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    uint32_t sink_heads = a->sink_heads ? a->sink_heads : a->q_heads, v_dim = aura_v_dim_of(a->dim, a->v_dim);
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), v_dim, v_dim, a->q_heads};
    if ((status = check_queries(call, a->q, a->q_dtype, a->dim, a->q_heads, &out)) || (status = aura_check_dim(call, v_dim)) ||
        (status = check_packed(call, "keys", &a->keys, a->dim, a->kv_heads, a->tokens, &out)) ||
        (status = check_packed(call, "values", &a->values, v_dim, a->kv_heads, a->tokens, &out)) ||
        (status = check_finish(call, a->sinks, a->sink_dtype, sink_heads, a->lse, &out)))
        return status;
    return AURA_OK;
}

/* ---- mlx-native --------------------------------------------------------------------------------------------------- */

static aura_status check_side(struct aura_call call, const char *name, const aura_vec_side *s, uint32_t dim,
                              const aura_flash_attn_vec_args *a, const struct aura_extent *to)
{
    aura_status status;
    if (s->bits && !aura_tq_book(s->bits, NULL))
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s.bits is %u, not 0, 4, 5, 6 or 8", call.name, name, s->bits);
    if (s->bits && dim != 256 && dim != 512)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s has codes, which dim %u does not have; 256 and 512 do",
                         call.name, name, dim);
    if (!s->bits && (status = aura_check_dtype(call, "dtype", s->dtype)))
        return status;
    size_t count = a->tokens ? row_count((size_t)a->capacity, a->kv_heads, (size_t)a->tokens) : 0;
    size_t width = s->bits == 4 ? dim / 2 : dim, element = s->bits ? 1 : aura_dtype_bytes(s->dtype);
    struct aura_extent rows = {name, s->rows, element, width, width, count};
    struct aura_extent norms = {"norms", s->norms, sizeof(float), 1, 1, s->bits ? aura_times(count, dim / 256) : 0};
    if ((status = aura_check_rows(call, &rows)) || (status = aura_check_rows(call, &norms)) ||
        (status = aura_check_apart(call, to, &rows)) || (status = aura_check_apart(call, to, &norms)))
        return status;
    return AURA_OK;
}

static aura_status check_vec_dim(struct aura_call call, uint32_t dim)
{
    aura_status status = aura_check_dim(call, dim);
    if (!status && dim % 16)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: dim %u is not a multiple of 16", call.name, dim);
    return status;
}

static aura_status check_vec_numbers(struct aura_call call, const aura_flash_attn_vec_args *a)
{
    if (a->capacity < a->tokens || (a->ring_start && a->ring_start >= a->capacity))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens, capacity %llu, ring_start %llu", call.name,
                         (unsigned long long)a->tokens, (unsigned long long)a->capacity,
                         (unsigned long long)a->ring_start);
    if (a->capacity > SIZE_MAX / 2)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: capacity %llu", call.name, (unsigned long long)a->capacity);
    if (a->mask_type > 2 || !(a->softcap >= 0) || isinf(a->softcap) || !isfinite(a->scale) ||
        !isfinite(a->scale_factor_d512))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: mask_type %u, scale %g, softcap %g or scale_factor_d512 %g",
                         call.name, a->mask_type, (double)a->scale, (double)a->softcap, (double)a->scale_factor_d512);
    if (a->temp ? a->nwg < 1 || a->nwg > 32 : !a->out)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s", call.name,
                         a->temp ? "nwg is not 1 to 32" : "neither out nor temp is given");
    if (a->temp && (a->sinks || a->lse || (a->undo && a->nwg > 1)))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: with temp, sinks and lse are for the reduce, with nwg above 1 undo too",
                         call.name);
    return AURA_OK;
}

aura_status aura_check_flash_attn_vec(struct aura_call call, const aura_flash_attn_vec_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)))
        return status;
    uint32_t v_dim = aura_v_dim_of(a->dim, a->v_dim);
    if ((status = check_vec_dim(call, a->dim)) || (status = check_vec_dim(call, v_dim)) ||
        (status = aura_check_heads(call, a->q_heads, a->kv_heads)) || (status = check_vec_numbers(call, a)))
        return status;
    size_t width = a->nwg == 1 ? v_dim : (size_t)v_dim + 2; /* with one workgroup temp has no (S, M) */
    struct aura_extent q = {"q", a->q, sizeof(float), a->dim, a->dim, a->q_heads};
    struct aura_extent out = {"out", a->out, sizeof(float), v_dim, v_dim, a->q_heads};
    struct aura_extent temp = {"temp", a->temp, sizeof(float), width, width, aura_times(a->q_heads, a->nwg)};
    const struct aura_extent *to = a->temp ? &temp : &out;
    if ((status = aura_check_rows(call, &q)) || (status = aura_check_rows(call, to)) ||
        (status = aura_check_apart(call, to, &q)) || (status = check_side(call, "k", &a->k, a->dim, a, to)) ||
        (status = check_side(call, "v", &a->v, v_dim, a, to)))
        return status;
    return AURA_OK;
}

aura_status aura_check_flash_attn_vec_reduce(struct aura_call call, const aura_flash_attn_vec_reduce_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_dim(call, a->dim)))
        return status;
    if (a->dim % 16 || a->nwg < 1 || a->nwg > 32)
        return aura_fail(call.ctx, a->dim % 16 ? AURA_UNSUPPORTED : AURA_BAD_ARGUMENT,
                         "%s: dim %u must be a multiple of 16, nwg %u from 1 to 32", call.name, a->dim, a->nwg);
    if (a->nwg == 1 && (a->sinks || a->lse))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: with nwg 1 the rows are finished, sinks and lse come too late",
                         call.name);
    size_t count = aura_times(a->rows, a->nwg), width = a->nwg == 1 ? a->dim : (size_t)a->dim + 2;
    struct aura_extent temp = {"temp", a->temp, sizeof(float), width, width, count};
    struct aura_extent out = {"out", a->out, sizeof(float), a->dim, a->dim, a->rows};
    if ((status = aura_check_rows(call, &temp)) || (status = aura_check_rows(call, &out)) ||
        (status = aura_check_apart(call, &out, &temp)))
        return status;
    return AURA_OK;
}

/* ---- which slots are seen ----------------------------------------------------------------------------------------- */

/* Adds the live slots among [first, end). */
static void add_slots(struct aura_slot_ranges *r, uint64_t first, uint64_t end, uint64_t tokens)
{
    end = end < tokens ? end : tokens;
    if (first < end) {
        r->range[r->count].first = first;
        r->range[r->count++].end = end;
    }
}

/* Adds the tokens [from, to) in time. Slot p holds token (p - ring_start) mod capacity, so they begin at slot
 * ring_start + from, and go on at slot 0 after the end of the ring. */
static void add_time(struct aura_slot_ranges *r, const aura_flash_attn_vec_args *a, uint64_t from, uint64_t to)
{
    uint64_t first = a->ring_start + from, end = a->ring_start + to, cap = a->capacity;
    add_slots(r, first < cap ? first : cap, end < cap ? end : cap, a->tokens);
    add_slots(r, first < cap ? 0 : first - cap, end < cap ? 0 : end - cap, a->tokens);
}

/* All live tokens; or the first `keep_first` and the last `window`. */
struct aura_slot_ranges aura_visible_slots(const aura_flash_attn_vec_args *a)
{
    struct aura_slot_ranges r = {0};
    uint64_t hidden = a->mask_type == 2 && a->window && a->tokens > a->window ? a->tokens - a->window : 0;
    uint64_t kept = a->keep_first < hidden ? a->keep_first : hidden;
    add_time(&r, a, 0, kept);
    add_time(&r, a, hidden, a->tokens);
    return r;
}

/* ---- vectors to codes --------------------------------------------------------------------------------------------- */

aura_status aura_check_encode(struct aura_call call, const aura_encode_args *a)
{
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_codebook(call, a->codebook)) ||
        (status = aura_check_dim(call, a->dim)) || (status = aura_check_dtype(call, "in_dtype", a->in_dtype)) ||
        (status = aura_check_dtype(call, "scale_dtype", a->scale_dtype)))
        return status;
    if (a->rule < AURA_SCALE_MATCHED || a->rule > AURA_SCALE_RAW || a->search > 1 || !(a->tiny >= 0 && a->tiny <= 1))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: rule %d, search %u or tiny %g is out of range", call.name,
                         (int)a->rule, a->search, (double)a->tiny);
    size_t row_bytes = aura_row_bytes(a->dim, a->codebook->bits);
    struct aura_extent in = {"in", a->in, aura_dtype_bytes(a->in_dtype), a->dim, aura_or(a->in_stride, a->dim), a->rows};
    struct aura_extent packed = {"packed", a->packed, 1, row_bytes, aura_or(a->packed_stride, row_bytes), a->rows};
    struct aura_extent scales = {"scales", a->scales, aura_dtype_bytes(a->scale_dtype), 1, 1, a->rows};
    if ((status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, &packed)) ||
        (status = aura_check_rows(call, &scales)) || (status = aura_check_apart(call, &packed, &in)) ||
        (status = aura_check_apart(call, &scales, &in)) || (status = aura_check_apart(call, &scales, &packed)))
        return status;
    return AURA_OK;
}

aura_status aura_check_rotate(struct aura_call call, const aura_rotate_args *a)
{
    aura_status status;
    if ((status = aura_check_dtype(call, "in_dtype", a->in_dtype)) || (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    uint32_t dim = a->rotation->dim;
    struct aura_extent in = {"in", a->in, aura_dtype_bytes(a->in_dtype), dim, aura_or(a->in_stride, dim), a->rows};
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), dim, aura_or(a->out_stride, dim), a->rows};
    int in_place = a->in == a->out && a->in_dtype == a->out_dtype && in.stride == out.stride;
    if ((status = aura_check_rows(call, &in)) || (status = aura_check_rows(call, &out)) ||
        (!in_place && (status = aura_check_apart(call, &out, &in))))
        return status;
    return AURA_OK;
}
