/* The AURA kernels over packed rows: dequant, score, value, flash pass 1 and 2, single-pass attention. */
#include "../base/exact.h"
#include "group.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../codec.h"
#include "checks.h"
#include "rows.h"

/* ---- packed rows -------------------------------------------------------------------------------------------------- */

/* Takes the codebook. source_head() then takes the rows of one head after another. */
static void source_init(struct aura_source *s, const aura_packed *p, uint32_t dim)
{
    s->kind = p->bits;
    s->dim = dim;
    s->rows = NULL;
    s->norms = NULL;
    s->row_stride = aura_or(p->packed_stride, aura_row_bytes(dim, p->bits));
    s->norm_dtype = p->norm_dtype;
    s->parts = 1;
    s->norm_factor = 1;
    for (uint32_t i = 0; i < 256; i++)
        s->centroid[i] = p->codebook ? aura_load(p->codebook, p->codebook_dtype, i & ((1u << p->bits) - 1)) : 0;
}

/* A copy for one item: the rows of KV head `head`. */
static struct aura_source source_head(const struct aura_source *source, const aura_packed *p, size_t tokens, size_t head)
{
    struct aura_source s = *source;
    size_t first = head * aura_or(p->stride, tokens);
    if (tokens == 0) /* the arrays may be NULL: no address may be computed from them */
        return s;
    s.rows = (const uint8_t *)p->codes + first * s.row_stride;
    s.norms = (const uint8_t *)p->norms + first * aura_dtype_bytes(p->norm_dtype);
    return s;
}

/* ---- dequant ------------------------------------------------------------------------------------------------------ */

/* What the items of a call share. `values` is also that of value, `args` the arguments of whichever function runs. */
struct work {
    const aura_ctx *ctx;
    const void *args;
    struct aura_source keys, values;
    size_t chunks; /* items of one head */
    struct aura_bad_rows bad;
};

enum { CHUNK_ROWS = 256, CHUNK_SCORES = 1024 }; /* tokens of an item */

static void dequant_item(void *user, size_t i)
{
    const struct work *w = user;
    const aura_dequant_args *a = w->args;
    size_t head = i / w->chunks, first = i % w->chunks * CHUNK_ROWS, out_stride = aura_or(a->out_stride, a->tokens);
    size_t end = a->tokens - first < CHUNK_ROWS ? a->tokens : first + CHUNK_ROWS;
    struct aura_source s = source_head(&w->keys, &a->rows, a->tokens, head);
    struct aura_codec_plan plan;
    plan.dim = a->dim;
    plan.bits = a->rows.bits;
    plan.row_bytes = (uint32_t)aura_row_bytes(a->dim, plan.bits);
    memcpy(plan.centroid, s.centroid, sizeof plan.centroid);
    for (size_t t = first; t < end; t++) {
        float x[AURA_MAX_DIM], norm = aura_load(s.norms, s.norm_dtype, t);
        w->ctx->kernels.row_dequant[plan.bits](x, s.rows + t * s.row_stride, &norm, &plan, 1);
        aura_store_row(a->out, a->out_dtype, (head * out_stride + t) * a->dim, x, a->dim);
    }
}

aura_status aura_dequant(const aura_ctx *ctx, const aura_dequant_args *a)
{
    struct aura_call call = {ctx, "aura_dequant"};
    aura_status status = aura_check_dequant(call, a);
    if (status)
        return status;
    struct work w = {.ctx = ctx, .args = a, .chunks = (a->tokens + CHUNK_ROWS - 1) / CHUNK_ROWS};
    uint64_t mode = aura_fpmode_enter();
    source_init(&w.keys, &a->rows, a->dim);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->kv_heads * (double)a->tokens * a->dim, a->kv_heads * w.chunks, dequant_item, &w);
    return AURA_OK;
}

/* ---- score, value ------------------------------------------------------------------------------------------------- */

/* Makes the group of these heads, with their queries and without tokens. */
static void group_start(struct aura_group *g, const aura_ctx *ctx, const struct aura_heads *at, uint32_t k_dim, uint32_t v_dim,
                        const void *q, aura_dtype q_dtype)
{
    aura_group_init(g, ctx, k_dim, v_dim, at->heads);
    for (size_t h = 0; h < at->heads; h++)
        aura_group_query(g, h, q, q_dtype, at->first + h);
}

static void score_item(void *user, size_t i)
{
    const struct work *w = user;
    const aura_score_args *a = w->args;
    struct aura_heads at = aura_heads_of(a->q_heads, a->kv_heads, i / w->chunks);
    size_t first = i % w->chunks * CHUNK_SCORES, end = a->tokens - first < CHUNK_SCORES ? a->tokens : first + CHUNK_SCORES;
    size_t stride = aura_or(a->score_stride, a->tokens);
    struct aura_source keys = source_head(&w->keys, &a->keys, a->tokens, at.kv);
    struct aura_group g;
    group_start(&g, w->ctx, &at, a->dim, a->dim, a->q, a->q_dtype);
    for (size_t t = first; t < end; t += AURA_BLOCK) {
        size_t n = end - t < AURA_BLOCK ? end - t : AURA_BLOCK;
        aura_group_score(&g, &keys, t, n);
        for (size_t h = 0; h < at.heads; h++)
            aura_store_row(a->scores, a->score_dtype, (at.first + h) * stride + t, g.weight + h * AURA_BLOCK, n);
    }
}

aura_status aura_score(const aura_ctx *ctx, const aura_score_args *a)
{
    struct aura_call call = {ctx, "aura_score"};
    aura_status status = aura_check_score(call, a);
    if (status)
        return status;
    struct work w = {.ctx = ctx, .args = a, .chunks = (a->tokens + CHUNK_SCORES - 1) / CHUNK_SCORES};
    uint64_t mode = aura_fpmode_enter();
    source_init(&w.keys, &a->keys, a->dim);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->q_heads * (double)a->tokens * a->dim, aura_head_groups(a->q_heads, a->kv_heads) * w.chunks,
                  score_item, &w);
    return AURA_OK;
}

/* Loads the weights of n tokens into the group; those below the threshold become 0. Returns 1 where any is left. */
static int load_weights(struct aura_group *g, const aura_value_args *a, size_t first, size_t t, size_t n)
{
    size_t stride = aura_or(a->weight_stride, a->tokens);
    int any = 0;
    for (size_t h = 0; h < g->heads; h++)
        for (size_t i = 0; i < n; i++) {
            float w = aura_load(a->weights, a->weight_dtype, (first + h) * stride + t + i);
            int keep = w >= a->sparse_threshold; /* false for NaN */
            g->weight[h * AURA_BLOCK + i] = keep ? w : 0;
            any |= keep;
        }
    return any;
}

static void value_item(void *user, size_t i)
{
    struct work *w = user;
    const aura_value_args *a = w->args;
    struct aura_heads at = aura_heads_of(a->q_heads, a->kv_heads, i);
    struct aura_source values = source_head(&w->values, &a->values, a->tokens, at.kv);
    struct aura_group g;
    aura_group_init(&g, w->ctx, a->dim, a->dim, at.heads);
    for (size_t t = 0; t < a->tokens; t += AURA_BLOCK) {
        size_t n = a->tokens - t < AURA_BLOCK ? a->tokens - t : AURA_BLOCK;
        if (load_weights(&g, a, at.first, t, n))
            aura_group_value(&g, &values, t, n);
    }
    for (size_t h = 0; h < at.heads; h++) {
        float *row = g.acc + h * g.stride;
        aura_bad_row(&w->bad, aura_poison_row(row, a->dim, a->out_dtype), at.first + h);
        aura_store_row(a->out, a->out_dtype, (at.first + h) * a->dim, row, a->dim);
    }
}

aura_status aura_value(const aura_ctx *ctx, const aura_value_args *a)
{
    struct aura_call call = {ctx, "aura_value"};
    aura_status status = aura_check_value(call, a);
    if (status)
        return status;
    struct work w = {.ctx = ctx, .args = a};
    uint64_t mode = aura_fpmode_enter();
    source_init(&w.values, &a->values, a->dim);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->q_heads * (double)a->tokens * a->dim, aura_head_groups(a->q_heads, a->kv_heads), value_item, &w);
    return aura_bad_rows_status(call, &w.bad);
}

/* ---- pass 1 ------------------------------------------------------------------------------------------------------- */

static int store_partial(const aura_flash_p1_args *a, const struct aura_group *g, size_t h, size_t at)
{
    aura_store_row(a->o, a->partial_dtype, at * g->dim, g->acc + h * g->stride, g->dim);
    aura_store(a->m, a->partial_dtype, at, g->max[h]);
    aura_store(a->l, a->partial_dtype, at, g->sum[h]);
    return !isfinite(g->sum[h]);
}

static void p1_item(void *user, size_t i)
{
    struct work *w = user;
    const aura_flash_p1_args *a = w->args;
    struct aura_heads at = aura_heads_of(a->q_heads, a->kv_heads, i / a->num_blocks);
    struct aura_source keys = source_head(&w->keys, &a->keys, a->tokens, at.kv);
    struct aura_source values = source_head(&w->values, &a->values, a->tokens, at.kv);
    size_t block = i % a->num_blocks, visible = aura_p1_visible(a);
    size_t first = aura_times(block, a->block_size) < visible ? block * a->block_size : visible;
    size_t end = visible - first < a->block_size ? visible : first + a->block_size;
    struct aura_group g;
    group_start(&g, w->ctx, &at, a->dim, w->values.dim, a->q, a->q_dtype);
    aura_group_attend(&g, &keys, &values, first, end);
    for (size_t h = 0; h < at.heads; h++)
        aura_bad_row(&w->bad, store_partial(a, &g, h, (at.first + h) * a->num_blocks + block), at.first + h);
}

aura_status aura_flash_p1(const aura_ctx *ctx, const aura_flash_p1_args *a)
{
    struct aura_call call = {ctx, "aura_flash_p1"};
    aura_status status = aura_check_flash_p1(call, a);
    if (status)
        return status;
    struct work w = {.ctx = ctx, .args = a};
    uint64_t mode = aura_fpmode_enter();
    source_init(&w.keys, &a->keys, a->dim);
    source_init(&w.values, &a->values, aura_v_dim_of(a->dim, a->v_dim));
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->q_heads * (double)aura_p1_visible(a) * a->dim,
                  aura_head_groups(a->q_heads, a->kv_heads) * a->num_blocks, p1_item, &w);
    return aura_bad_rows_status(call, &w.bad);
}

/* ---- sinks and finished rows, shared by pass 2 and sdpa ------------------------------------------------------------ */

struct finish {
    const void *sinks;
    aura_dtype sink_dtype;
    uint32_t sink_heads;
    void *out;
    aura_dtype out_dtype;
    float *lse;
    struct aura_rotator undo;
    struct work work;
};

static void finish_row(struct finish *f, struct aura_group *g, size_t h, size_t row)
{
    float out[AURA_MAX_DIM];
    if (f->sinks)
        aura_group_sink(g, h, aura_load(f->sinks, f->sink_dtype, row % f->sink_heads));
    int bad = aura_group_finish(out, f->lse ? f->lse + row : NULL, g, h);
    if (f->undo.rotation)
        aura_rotator_apply(out, out, &f->undo, 1);
    bad |= aura_poison_row(out, g->dim, f->out_dtype);
    aura_store_row(f->out, f->out_dtype, row * g->dim, out, g->dim);
    aura_bad_row(&f->work.bad, bad, row);
}

/* ---- pass 2 ------------------------------------------------------------------------------------------------------- */

/* Adds n blocks of a row from `first` on. Block b has the weight exp(m_b - m), where m is the largest maximum. A block with
 * l = 0 is skipped, not multiplied by 0: its o may hold anything. */
static void merge_blocks(struct aura_group *g, const aura_flash_pass2_args *a, size_t row, size_t first, size_t n,
                         float m)
{
    float weight[AURA_BLOCK], l[AURA_BLOCK], max = m, ignored = 0;
    uint32_t kind = aura_row_kind(a->partial_dtype);
    size_t bytes = a->dim * aura_dtype_bytes(a->partial_dtype);
    for (size_t i = 0; i < n; i++) {
        l[i] = aura_load(a->l, a->partial_dtype, row * a->num_blocks + first + i);
        weight[i] = l[i] == 0 ? -INFINITY : aura_load(a->m, a->partial_dtype, row * a->num_blocks + first + i);
    }
    g->kernels->row_softmax[0](weight, &max, &ignored, n);
    for (size_t i = 0, run; i < n; i += run + 1) {
        for (run = 0; i + run < n && l[i + run] != 0; run++)
            g->sum[0] += l[i + run] * weight[i + run];
        struct aura_rows rows = {(const uint8_t *)a->o + (row * a->num_blocks + first + i) * bytes, bytes, kind, a->dim,
                                 g->stride, AURA_BLOCK * bytes, NULL};
        g->kernels->row_value[kind](g->acc, weight + i, AURA_BLOCK, &rows, 1, run);
    }
}

static void merge_row(struct aura_group *g, const aura_flash_pass2_args *a, size_t row)
{
    aura_group_clear(g);
    for (size_t b = 0; b < a->num_blocks; b++) {
        float m = aura_load(a->m, a->partial_dtype, row * a->num_blocks + b);
        float l = aura_load(a->l, a->partial_dtype, row * a->num_blocks + b);
        if (l != 0)
            g->max[0] = g->max[0] > m ? g->max[0] : m;
    }
    for (size_t b = 0; b < a->num_blocks; b += AURA_BLOCK)
        merge_blocks(g, a, row, b, a->num_blocks - b < AURA_BLOCK ? a->num_blocks - b : AURA_BLOCK, g->max[0]);
}

enum { MERGED = 8 }; /* rows of an item */

static void pass2_item(void *user, size_t i)
{
    struct finish *f = user;
    const aura_flash_pass2_args *a = f->work.args;
    struct aura_group g;
    aura_group_init(&g, f->work.ctx, a->dim, a->dim, 1);
    for (size_t row = i * MERGED; row < a->q_heads && row < (i + 1) * MERGED; row++) {
        merge_row(&g, a, row);
        finish_row(f, &g, 0, row);
    }
}

aura_status aura_flash_pass2(const aura_ctx *ctx, const aura_flash_pass2_args *a)
{
    struct aura_call call = {ctx, "aura_flash_pass2"};
    aura_status status;
    struct finish f;
    if ((status = aura_check_flash_pass2(call, a)) || (a->undo && (status = aura_check_rotation(call, a->undo, a->dim))) ||
        (status = aura_rotator_init(&f.undo, call, a->undo, 1)))
        return status;
    struct work w = {.ctx = ctx, .args = a};
    f.work = w, f.sinks = a->sinks, f.sink_dtype = a->sink_dtype, f.sink_heads = a->sink_heads ? a->sink_heads : a->q_heads;
    f.out = a->out, f.out_dtype = a->out_dtype, f.lse = a->lse;
    aura_run_rows(ctx, (double)a->q_heads * (double)(a->num_blocks + 1) * a->dim, (a->q_heads + MERGED - 1) / MERGED, pass2_item,
                  &f);
    aura_rotator_free(&f.undo);
    return aura_bad_rows_status(call, &f.work.bad);
}

/* ---- single pass -------------------------------------------------------------------------------------------------- */

static void sdpa_item(void *user, size_t i)
{
    struct finish *f = user;
    const aura_flash_sdpa_args *a = f->work.args;
    struct aura_heads at = aura_heads_of(a->q_heads, a->kv_heads, i);
    struct aura_source keys = source_head(&f->work.keys, &a->keys, a->tokens, at.kv);
    struct aura_source values = source_head(&f->work.values, &a->values, a->tokens, at.kv);
    struct aura_group g;
    group_start(&g, f->work.ctx, &at, a->dim, f->work.values.dim, a->q, a->q_dtype);
    aura_group_attend(&g, &keys, &values, a->window && a->window < a->tokens ? a->tokens - (size_t)a->window : 0, a->tokens);
    for (size_t h = 0; h < at.heads; h++)
        finish_row(f, &g, h, at.first + h);
}

aura_status aura_flash_sdpa(const aura_ctx *ctx, const aura_flash_sdpa_args *a)
{
    struct aura_call call = {ctx, "aura_flash_sdpa"};
    aura_status status = aura_check_flash_sdpa(call, a);
    if (status)
        return status;
    struct finish f;
    uint32_t v_dim = aura_v_dim_of(a->dim, a->v_dim);
    if ((a->undo && (status = aura_check_rotation(call, a->undo, v_dim))) ||
        (status = aura_rotator_init(&f.undo, call, a->undo, 1)))
        return status;
    struct work w = {.ctx = ctx, .args = a};
    f.work = w, f.sinks = a->sinks, f.sink_dtype = a->sink_dtype, f.sink_heads = a->sink_heads ? a->sink_heads : a->q_heads;
    f.out = a->out, f.out_dtype = a->out_dtype, f.lse = a->lse;
    uint64_t mode = aura_fpmode_enter();
    source_init(&f.work.keys, &a->keys, a->dim);
    source_init(&f.work.values, &a->values, v_dim);
    aura_fpmode_leave(mode);
    aura_run_rows(ctx, (double)a->q_heads * (double)a->tokens * a->dim, aura_head_groups(a->q_heads, a->kv_heads), sdpa_item, &f);
    aura_rotator_free(&f.undo);
    return aura_bad_rows_status(call, &f.work.bad);
}
