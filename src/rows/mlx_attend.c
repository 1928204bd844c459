/* The attention kernels of mlx-native: flash_attn_vec over plain, TQ and TQ-HB rows, and the reduce of its partials. */
#include "../base/exact.h"
#include "group.h"

#include <float.h>
#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../rules.h"
#include "checks.h"
#include "rows.h"
#include "tq.h"

#define EMPTY_MAX (-FLT_MAX / 2) /* the maximum that a workgroup without tokens writes */

/* ---- one side of the cache ---------------------------------------------------------------------------------------- */

static void source_init(struct aura_source *s, const aura_vec_side *side, uint32_t dim, float scale_factor_d512)
{
    s->dim = dim;
    s->norm_dtype = AURA_F32;
    s->parts = 1;
    s->norms = NULL;
    if (!side->bits) {
        s->kind = aura_row_kind(side->dtype);
        s->row_stride = dim * aura_dtype_bytes(side->dtype);
        return;
    }
    aura_tq_book(side->bits, s->centroid);
    s->kind = side->bits == 4 ? 4 : 8;
    s->row_stride = dim * s->kind / 8;
    s->parts = dim / 256;
    s->norm_factor = aura_tq_norm_factor(dim, scale_factor_d512);
}

/* A copy for one item: the rows of KV head `head`. Without tokens the arrays may be NULL. */
static struct aura_source source_head(const struct aura_source *source, const aura_vec_side *side,
                                      const aura_flash_attn_vec_args *a, size_t head)
{
    struct aura_source s = *source;
    s.rows = a->tokens ? (const uint8_t *)side->rows + head * a->capacity * s.row_stride : NULL;
    if (side->bits && a->tokens)
        s.norms = side->norms + head * a->capacity * s.parts;
    return s;
}

/* Attends to the slots of the ranges that are in [first, end). */
static void attend_inside(struct aura_group *g, const struct aura_source *k, const struct aura_source *v,
                          const struct aura_slot_ranges *r, uint64_t first, uint64_t end)
{
    for (size_t i = 0; i < r->count; i++) {
        uint64_t from = r->range[i].first > first ? r->range[i].first : first;
        uint64_t to = r->range[i].end < end ? r->range[i].end : end;
        if (from < to)
            aura_group_attend(g, k, v, from, to);
    }
}

/* ---- attention ---------------------------------------------------------------------------------------------------- */

/* Stores the partial of workgroup w and row r. O is interleaved: 4 coordinates of each workgroup in turn; (S, M) follow all O. */
static int store_partial(const aura_flash_attn_vec_args *a, const struct aura_group *g, size_t h, size_t r, uint32_t w)
{
    float *o = a->temp + r * g->dim * a->nwg, *sm = a->temp + (size_t)a->q_heads * g->dim * a->nwg + r * 2 * a->nwg;
    int empty = g->max[h] == -INFINITY && !isnan(g->sum[h]);
    for (uint32_t d = 0; d < g->dim; d++)
        o[((size_t)(d / 4) * a->nwg + w) * 4 + d % 4] = g->acc[h * g->stride + d];
    sm[2 * w] = g->sum[h];
    sm[2 * w + 1] = empty ? EMPTY_MAX : g->max[h];
    return !isfinite(g->sum[h]);
}

/* What the items of a call share. */
struct work {
    const aura_ctx *ctx;
    const aura_flash_attn_vec_args *args;
    struct aura_source k, v;
    struct aura_slot_ranges ranges;
    struct aura_rotator undo;
    uint32_t nwg;
    struct aura_bad_rows bad;
};

/* A row that has seen all its tokens. Returns 1 where it is not finite. */
static int finish_row(const struct work *w, struct aura_group *g, size_t h, size_t row)
{
    const aura_flash_attn_vec_args *a = w->args;
    float *to = (a->temp ? a->temp : a->out) + row * g->dim;
    if (a->sinks)
        aura_group_sink(g, h, a->sinks[row]);
    int bad = aura_group_finish(to, a->lse ? a->lse + row : NULL, g, h);
    if (w->undo.rotation)
        aura_rotator_apply(to, to, &w->undo, 1);
    return bad | aura_poison_row(to, g->dim, AURA_F32);
}

/* The queries of one group, and what one workgroup sees of their KV head. */
static void vec_item(void *user, size_t i)
{
    struct work *w = user;
    const aura_flash_attn_vec_args *a = w->args;
    struct aura_heads at = aura_heads_of(a->q_heads, a->kv_heads, i / w->nwg);
    struct aura_source k = source_head(&w->k, &a->k, a, at.kv), v = source_head(&w->v, &a->v, a, at.kv);
    uint32_t group = (uint32_t)(i % w->nwg);
    struct aura_group g;
    aura_group_init(&g, w->ctx, a->dim, v.dim, at.heads);
    g.scale = aura_logit_scale(a->scale, a->dim);
    g.softcap = a->softcap;
    for (size_t h = 0; h < at.heads; h++)
        aura_group_query(&g, h, a->q, AURA_F32, at.first + h);
    for (size_t d = 0; a->q_as_f16 && d < at.heads * g.q_stride; d++)
        g.q[d] = aura_f32_from_f16(aura_f16_from_f32(g.q[d]));
    if (w->nwg == 1)
        attend_inside(&g, &k, &v, &w->ranges, 0, a->tokens);
    for (uint64_t chunk = group; w->nwg > 1 && chunk * AURA_VEC_CHUNK < a->tokens; chunk += w->nwg)
        attend_inside(&g, &k, &v, &w->ranges, chunk * AURA_VEC_CHUNK, (chunk + 1) * AURA_VEC_CHUNK);
    for (size_t h = 0; h < at.heads; h++) {
        size_t row = at.first + h;
        aura_bad_row(&w->bad, w->nwg == 1 ? finish_row(w, &g, h, row) : store_partial(a, &g, h, row, group), row);
    }
}

aura_status aura_flash_attn_vec(const aura_ctx *ctx, const aura_flash_attn_vec_args *a)
{
    struct aura_call call = {ctx, "aura_flash_attn_vec"};
    aura_status status = aura_check_flash_attn_vec(call, a);
    if (status)
        return status;
    struct work w = {.ctx = ctx, .args = a, .ranges = aura_visible_slots(a), .nwg = a->temp ? a->nwg : 1};
    uint32_t v_dim = aura_v_dim_of(a->dim, a->v_dim);
    if ((a->undo && (status = aura_check_rotation(call, a->undo, v_dim))) ||
        (status = aura_rotator_init(&w.undo, call, a->undo, 1)))
        return status;
    uint64_t mode = aura_fpmode_enter();
    source_init(&w.k, &a->k, a->dim, a->scale_factor_d512);
    source_init(&w.v, &a->v, v_dim, a->scale_factor_d512);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->q_heads * (double)a->tokens * a->dim, aura_head_groups(a->q_heads, a->kv_heads) * w.nwg, vec_item,
                  &w);
    aura_rotator_free(&w.undo);
    return aura_bad_rows_status(call, &w.bad);
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

struct reduce_work {
    const aura_ctx *ctx;
    const aura_flash_attn_vec_reduce_args *args;
    struct aura_rotator undo;
    struct aura_bad_rows bad;
};

enum { REDUCED = 8 }; /* rows of an item */

static void reduce_item(void *user, size_t i)
{
    struct reduce_work *w = user;
    const aura_flash_attn_vec_reduce_args *a = w->args;
    for (size_t row = i * REDUCED; row < a->rows && row < (i + 1) * REDUCED; row++) {
        float *to = a->out + row * a->dim;
        int is_bad = reduce_row(to, w->ctx, a, row);
        if (a->undo)
            aura_rotator_apply(to, to, &w->undo, 1);
        aura_bad_row(&w->bad, is_bad | aura_poison_row(to, a->dim, AURA_F32), row);
    }
}

aura_status aura_flash_attn_vec_reduce(const aura_ctx *ctx, const aura_flash_attn_vec_reduce_args *a)
{
    struct aura_call call = {ctx, "aura_flash_attn_vec_reduce"};
    aura_status status;
    struct reduce_work w = {.ctx = ctx, .args = a};
    if ((status = aura_check_flash_attn_vec_reduce(call, a)) ||
        (a->undo && (status = aura_check_rotation(call, a->undo, a->dim))) ||
        (status = aura_rotator_init(&w.undo, call, a->undo, 1)))
        return status;
    aura_run_rows(ctx, (double)a->rows * (a->nwg + 1) * a->dim, (a->rows + REDUCED - 1) / REDUCED, reduce_item, &w);
    aura_rotator_free(&w.undo);
    return aura_bad_rows_status(call, &w.bad);
}
