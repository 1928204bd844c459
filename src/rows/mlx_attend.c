/* The attention kernels of mlx-native: flash_attn_vec over plain, TQ and TQ-HB rows, and the reduce of its partials. */
#include "../base/exact.h"
#include "group.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../rules.h"
#include "rows.h"
#include "tq.h"

enum { CHUNK = 32 }; /* positions that a workgroup takes at a time */
#define EMPTY_MAX (-FLT_MAX / 2) /* the maximum that a workgroup without tokens writes */

/* ---- one side of the cache ---------------------------------------------------------------------------------------- */

static aura_status check_side(struct aura_call call, const char *name, const aura_vec_side *s,
                              const aura_flash_attn_vec_args *a, const struct aura_extent *to)
{
    aura_status status;
    if (s->bits && !aura_tq_book(s->bits, NULL))
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s.bits is %u, not 0, 4, 5, 6 or 8", call.name, name, s->bits);
    if (s->bits && a->dim != 256 && a->dim != 512)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s has codes, which dim %u does not have; 256 and 512 do",
                         call.name, name, a->dim);
    if (!s->bits && (status = aura_check_dtype(call, "dtype", s->dtype)))
        return status;
    size_t count = aura_times(a->kv_heads - 1, (size_t)a->capacity);
    count = count > SIZE_MAX - (size_t)a->tokens ? SIZE_MAX : count + (size_t)a->tokens;
    size_t width = s->bits == 4 ? a->dim / 2 : a->dim, element = s->bits ? 1 : aura_dtype_bytes(s->dtype);
    struct aura_extent rows = {name, s->rows, element, width, width, count};
    struct aura_extent norms = {"norms", s->norms, sizeof(float), 1, 1, s->bits ? aura_times(count, a->dim / 256) : 0};
    if ((status = aura_check_rows(call, &rows)) || (status = aura_check_rows(call, &norms)) ||
        (status = aura_check_apart(call, to, &rows)) || (status = aura_check_apart(call, to, &norms)))
        return status;
    return AURA_OK;
}

static void source_init(struct aura_source *s, const aura_vec_side *side, const aura_flash_attn_vec_args *a)
{
    s->dim = a->dim;
    s->norm_dtype = AURA_F32;
    s->parts = 1;
    s->norms = NULL;
    if (!side->bits) {
        s->kind = aura_row_kind(side->dtype);
        s->row_stride = a->dim * aura_dtype_bytes(side->dtype);
        return;
    }
    aura_tq_book(side->bits, s->centroid);
    s->kind = side->bits == 4 ? 4 : 8;
    s->row_stride = a->dim * s->kind / 8;
    s->parts = a->dim / 256;
    s->norm_factor = aura_tq_norm_factor(a->dim, a->scale_factor_d512);
}

static void source_head(struct aura_source *s, const aura_vec_side *side, const aura_flash_attn_vec_args *a, size_t head)
{
    s->rows = (const uint8_t *)side->rows + head * a->capacity * s->row_stride;
    if (side->bits)
        s->norms = side->norms + head * a->capacity * s->parts;
}

/* ---- what is visible ---------------------------------------------------------------------------------------------- */

/* Ranges of slots, up to two for each of the two ranges in time. */
struct ranges {
    size_t count;
    struct {
        uint64_t first, end;
    } range[4];
};

/* Adds the live slots among [first, end). */
static void add_slots(struct ranges *r, uint64_t first, uint64_t end, uint64_t tokens)
{
    end = end < tokens ? end : tokens;
    if (first < end) {
        r->range[r->count].first = first;
        r->range[r->count++].end = end;
    }
}

/* Adds the tokens [from, to) in time. Slot p holds token (p - ring_start) mod capacity, so they begin at slot
 * ring_start + from, and go on at slot 0 after the end of the ring. */
static void add_time(struct ranges *r, const aura_flash_attn_vec_args *a, uint64_t from, uint64_t to)
{
    uint64_t first = a->ring_start + from, end = a->ring_start + to, cap = a->capacity;
    add_slots(r, first < cap ? first : cap, end < cap ? end : cap, a->tokens);
    add_slots(r, first < cap ? 0 : first - cap, end < cap ? 0 : end - cap, a->tokens);
}

/* All live tokens; or the first `keep_first` and the last `window`. */
static struct ranges visible(const aura_flash_attn_vec_args *a)
{
    struct ranges r = {0};
    uint64_t hidden = a->mask_type == 2 && a->window && a->tokens > a->window ? a->tokens - a->window : 0;
    uint64_t kept = a->keep_first < hidden ? a->keep_first : hidden;
    add_time(&r, a, 0, kept);
    add_time(&r, a, hidden, a->tokens);
    return r;
}

/* Attends to the slots of the ranges that are in [first, end). */
static void attend_inside(struct aura_group *g, const struct aura_source *k, const struct aura_source *v,
                          const struct ranges *r, uint64_t first, uint64_t end)
{
    for (size_t i = 0; i < r->count; i++) {
        uint64_t from = r->range[i].first > first ? r->range[i].first : first;
        uint64_t to = r->range[i].end < end ? r->range[i].end : end;
        if (from < to)
            aura_group_attend(g, k, v, from, to);
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------------- */

static aura_status check_vec(struct aura_call call, const aura_flash_attn_vec_args *a)
{
    aura_status status;
    struct aura_extent q = {"q", a->q, sizeof(float), a->dim, a->dim, a->q_heads};
    struct aura_extent out = {"out", a->out, sizeof(float), a->dim, a->dim, a->q_heads};
    struct aura_extent temp = {"temp", a->temp, sizeof(float), (size_t)a->dim + 2, (size_t)a->dim + 2,
                               aura_times(a->q_heads, a->nwg)};
    const struct aura_extent *to = a->temp ? &temp : &out;
    if ((status = aura_check_dim(call, a->dim)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)))
        return status;
    if (a->dim % 16)
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: dim %u is not a multiple of 16", call.name, a->dim);
    if (a->tokens == 0 || a->capacity < a->tokens || a->ring_start >= a->capacity)
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
    if (a->temp && (a->sinks || a->lse))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: with temp, sinks and lse belong to the reduce", call.name);
    if ((status = aura_check_rows(call, &q)) || (status = aura_check_rows(call, to)) ||
        (status = aura_check_apart(call, to, &q)) || (status = check_side(call, "k", &a->k, a, to)) ||
        (status = check_side(call, "v", &a->v, a, to)))
        return status;
    return AURA_OK;
}

/* Stores the partial of workgroup w and row r. O is interleaved: 4 coordinates of each workgroup in turn; (S, M) follow all O. */
static int store_partial(const aura_flash_attn_vec_args *a, const struct aura_group *g, size_t h, size_t r, uint32_t w)
{
    float *o = a->temp + r * a->dim * a->nwg, *sm = a->temp + (size_t)a->q_heads * a->dim * a->nwg + r * 2 * a->nwg;
    int empty = g->max[h] == -INFINITY && !isnan(g->sum[h]);
    for (uint32_t d = 0; d < a->dim; d++)
        o[((size_t)(d / 4) * a->nwg + w) * 4 + d % 4] = g->acc[h * g->stride + d];
    sm[2 * w] = g->sum[h];
    sm[2 * w + 1] = empty ? EMPTY_MAX : g->max[h];
    return !isfinite(g->sum[h]);
}

/* Attends for the rows of one group and stores them, finished or as partials. */
static void attend_group(struct aura_group *g, const aura_flash_attn_vec_args *a, const struct aura_source *k,
                         const struct aura_source *v, size_t first_row, struct aura_bad_rows *bad)
{
    struct ranges r = visible(a);
    uint32_t nwg = a->temp ? a->nwg : 1;
    for (uint32_t w = 0; w < nwg; w++) {
        aura_group_clear(g);
        if (nwg == 1)
            attend_inside(g, k, v, &r, 0, a->tokens);
        for (uint64_t chunk = w; nwg > 1 && chunk * CHUNK < a->tokens; chunk += nwg)
            attend_inside(g, k, v, &r, chunk * CHUNK, (chunk + 1) * CHUNK);
        for (size_t h = 0; h < g->heads; h++) {
            size_t row = first_row + h;
            float *to = (a->temp ? a->temp : a->out) + row * a->dim, *lse = a->lse ? a->lse + row : NULL;
            if (a->sinks)
                aura_group_sink(g, h, a->sinks[row]);
            aura_bad_row(bad, nwg == 1 ? aura_group_finish(to, lse, g, h) : store_partial(a, g, h, row, w), row);
        }
    }
}

aura_status aura_flash_attn_vec(const aura_ctx *ctx, const aura_flash_attn_vec_args *a)
{
    struct aura_call call = {ctx, "aura_flash_attn_vec"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = check_vec(call, a)))
        return status;
    struct aura_group g;
    struct aura_source k, v;
    struct aura_bad_rows bad = {0, 0};
    size_t ratio = a->q_heads / a->kv_heads;
    uint64_t mode = aura_fpmode_enter();
    source_init(&k, &a->k, a);
    source_init(&v, &a->v, a);
    for (size_t first = 0, n; first < a->q_heads; first += n) {
        size_t left = ratio - first % ratio;
        n = left < AURA_GROUP ? left : AURA_GROUP;
        aura_group_init(&g, ctx, a->dim, n);
        g.scale = aura_logit_scale(a->scale, a->dim);
        g.softcap = a->softcap;
        for (size_t h = 0; h < n; h++)
            aura_group_query(&g, h, a->q, AURA_F32, first + h);
        for (size_t i = 0; a->q_as_f16 && i < n * g.stride; i++)
            g.q[i] = aura_f32_from_f16(aura_f16_from_f32(g.q[i]));
        source_head(&k, &a->k, a, first / ratio);
        source_head(&v, &a->v, a, first / ratio);
        attend_group(&g, a, &k, &v, first, &bad);
    }
    aura_fpmode_leave(mode);
    return aura_bad_rows_status(call, &bad);
}

/* ---- reduce ------------------------------------------------------------------------------------------------------- */

/* Whether a part that saw a key holds a number that is none: in one step its row would be NaN, whatever the sink is. */
static int has_bad_part(const float *o, const float *sm, uint32_t dim, uint32_t nwg)
{
    int bad = 0;
    for (uint32_t w = 0; w < nwg; w++) {
        if (sm[2 * w] == 0)
            continue;
        bad |= !isfinite(sm[2 * w]) || !isfinite(sm[2 * w + 1]);
        for (uint32_t d = 0; d < dim; d++)
            bad |= !isfinite(o[((size_t)d / 4 * nwg + w) * 4 + d % 4]);
    }
    return bad;
}

/* One row: the partial rows by their weights, exp(M_w - largest M) over the sum of these. Returns 1 where it is not finite. */
static int reduce_row(float *out, const aura_ctx *ctx, const aura_flash_attn_vec_reduce_args *a, size_t row)
{
    const float *o = a->temp + row * a->dim * a->nwg, *sm = a->temp + (size_t)a->rows * a->dim * a->nwg + row * 2 * a->nwg;
    float weight[33], max = -INFINITY, ignored = 0, sum = 0; /* the last is the sink's */
    int bad = 0;
    if (a->nwg == 1) {
        memcpy(out, o, a->dim * sizeof *out);
    } else {
        for (uint32_t w = 0; w < a->nwg; w++)
            weight[w] = sm[2 * w] == 0 ? -INFINITY : sm[2 * w + 1];
        weight[a->nwg] = a->sinks ? a->sinks[row] : -INFINITY;
        if (weight[a->nwg] == INFINITY) { /* takes all the weight */
            memset(out, 0, a->dim * sizeof *out);
            if ((bad = has_bad_part(o, sm, a->dim, a->nwg)))
                out[0] = NAN;
            aura_poison_row(out, a->dim, AURA_F32);
            if (a->lse)
                a->lse[row] = bad ? NAN : INFINITY;
            return bad;
        }
        ctx->kernels.row_softmax[0](weight, &max, &ignored, a->nwg + 1);
        sum = weight[a->nwg];
        for (uint32_t w = 0; w < a->nwg; w++)
            sum += sm[2 * w] * weight[w];
        for (uint32_t w = 0; w < a->nwg; w++)
            weight[w] = sum == 0 ? 0 : weight[w] / sum;
        ctx->kernels.row_reduce[0](out, weight, o, a->dim, a->nwg);
        bad = !isfinite(sum);
    }
    if (bad)
        out[0] = NAN;
    bad = aura_poison_row(out, a->dim, AURA_F32);
    if (a->lse)
        a->lse[row] = bad ? NAN : sum == 0 ? -INFINITY : max + logf(sum);
    return bad;
}

aura_status aura_flash_attn_vec_reduce(const aura_ctx *ctx, const aura_flash_attn_vec_reduce_args *a)
{
    struct aura_call call = {ctx, "aura_flash_attn_vec_reduce"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_dim(call, a->dim)))
        return status;
    if (a->dim % 16 || a->nwg < 1 || a->nwg > 32)
        return aura_fail(ctx, a->dim % 16 ? AURA_UNSUPPORTED : AURA_BAD_ARGUMENT,
                         "%s: dim %u must be a multiple of 16, nwg %u from 1 to 32", call.name, a->dim, a->nwg);
    if (a->nwg == 1 && (a->sinks || a->lse))
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: with nwg 1 the rows are finished, sinks and lse come too late",
                         call.name);
    size_t count = aura_times(a->rows, a->nwg), width = a->nwg == 1 ? a->dim : (size_t)a->dim + 2;
    struct aura_extent temp = {"temp", a->temp, sizeof(float), width, width, count};
    struct aura_extent out = {"out", a->out, sizeof(float), a->dim, a->dim, a->rows};
    struct aura_rotator undo;
    if ((status = aura_check_rows(call, &temp)) || (status = aura_check_rows(call, &out)) ||
        (status = aura_check_apart(call, &out, &temp)) ||
        (a->undo && (status = aura_check_rotation(call, a->undo, a->dim))) ||
        (status = aura_rotator_init(&undo, call, a->undo, 1)))
        return status;
    struct aura_bad_rows bad = {0, 0};
    uint64_t mode = aura_fpmode_enter();
    for (size_t row = 0; row < a->rows; row++) {
        float *to = a->out + row * a->dim;
        int is_bad = reduce_row(to, ctx, a, row);
        if (a->undo)
            aura_rotator_apply(to, to, &undo, 1);
        aura_bad_row(&bad, is_bad | aura_poison_row(to, a->dim, AURA_F32), row);
    }
    aura_fpmode_leave(mode);
    aura_rotator_free(&undo);
    return aura_bad_rows_status(call, &bad);
}
