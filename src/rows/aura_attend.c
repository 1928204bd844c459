/* The AURA kernels over packed rows: dequant, score, value, flash pass 1 and 2, single-pass attention. */
#include "../base/exact.h"
#include "group.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../codec.h"
#include "rows.h"

/* ---- packed rows -------------------------------------------------------------------------------------------------- */

static size_t head_stride(const aura_packed *p, size_t tokens)
{
    return p->stride ? p->stride : tokens;
}

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
    if ((status = aura_check_dim(call, dim)) || (status = aura_check_dtype(call, "norm_dtype", p->norm_dtype)) ||
        (status = aura_check_dtype(call, "codebook_dtype", p->codebook_dtype)))
        return status;
    if (p->bits > 8 || !call.ctx->kernels.row_score[p->bits])
        return aura_fail(call.ctx, AURA_UNSUPPORTED, "%s: %s of %u bits; `aura list` names the widths", call.name, side,
                         p->bits);
    if (head_stride(p, tokens) < tokens)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the stride of the %s, %zu, is below the %zu live tokens",
                         call.name, side, p->stride, tokens);
    size_t rows = row_count(head_stride(p, tokens), kv_heads, tokens), bytes = aura_row_bytes(dim, p->bits);
    size_t norm_bytes = aura_dtype_bytes(p->norm_dtype), entry = aura_dtype_bytes(p->codebook_dtype);
    struct aura_extent codes = {"codes", p->codes, 1, bytes, bytes, tokens ? rows : 0};
    struct aura_extent norms = {"norms", p->norms, norm_bytes, 1, 1, tokens ? rows : 0};
    struct aura_extent book = {"codebook", p->codebook, entry, 1, 1, tokens ? (size_t)1 << p->bits : 0};
    if ((status = aura_check_rows(call, &codes)) || (status = aura_check_rows(call, &norms)) ||
        (status = aura_check_rows(call, &book)) || (status = aura_check_apart(call, out, &codes)) ||
        (status = aura_check_apart(call, out, &norms)))
        return status;
    return AURA_OK;
}

/* Takes the codebook. source_head() then takes the rows of one head after another. */
static void source_init(struct aura_source *s, const aura_packed *p, uint32_t dim)
{
    s->kind = p->bits;
    s->dim = dim;
    s->rows = NULL;
    s->norms = NULL;
    s->row_stride = aura_row_bytes(dim, p->bits);
    s->norm_dtype = p->norm_dtype;
    s->parts = 1;
    s->norm_factor = 1;
    for (uint32_t i = 0; i < 256; i++)
        s->centroid[i] = p->codebook ? aura_load(p->codebook, p->codebook_dtype, i & ((1u << p->bits) - 1)) : 0;
}

static void source_head(struct aura_source *s, const aura_packed *p, size_t tokens, size_t head)
{
    size_t first = head * head_stride(p, tokens);
    if (tokens == 0) /* the arrays may be NULL: no address may be computed from them */
        return;
    s->rows = (const uint8_t *)p->codes + first * s->row_stride;
    s->norms = (const uint8_t *)p->norms + first * aura_dtype_bytes(p->norm_dtype);
}

/* The checks of queries and outputs that score, pass 1 and sdpa share. */
static aura_status check_queries(struct aura_call call, const void *q, aura_dtype q_dtype, uint32_t dim,
                                 uint32_t q_heads, const struct aura_extent *out)
{
    aura_status status;
    struct aura_extent in = {"q", q, aura_dtype_bytes(q_dtype), dim, dim, q_heads};
    if ((status = aura_check_dtype(call, "q_dtype", q_dtype)) || (status = aura_check_rows(call, &in)) ||
        (status = aura_check_rows(call, out)) || (status = aura_check_apart(call, out, &in)))
        return status;
    return AURA_OK;
}

/* ---- dequant ------------------------------------------------------------------------------------------------------ */

aura_status aura_dequant(const aura_ctx *ctx, const aura_dequant_args *a)
{
    struct aura_call call = {ctx, "aura_dequant"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->kv_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    size_t out_stride = a->out_stride ? a->out_stride : a->tokens;
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, a->dim,
                              a->tokens ? row_count(out_stride, a->kv_heads, a->tokens) : 0};
    if (out_stride < a->tokens)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: out_stride %zu is below the %zu live tokens", call.name,
                         out_stride, a->tokens);
    if ((status = aura_check_rows(call, &out)) ||
        (status = check_packed(call, "rows", &a->rows, a->dim, a->kv_heads, a->tokens, &out)))
        return status;
    struct aura_source s;
    struct aura_codec_plan plan;
    uint64_t mode = aura_fpmode_enter();
    source_init(&s, &a->rows, a->dim);
    plan.dim = a->dim;
    plan.bits = a->rows.bits;
    plan.row_bytes = (uint32_t)s.row_stride;
    memcpy(plan.centroid, s.centroid, sizeof plan.centroid);
    for (size_t head = 0; head < a->kv_heads; head++) {
        source_head(&s, &a->rows, a->tokens, head);
        for (size_t t = 0; t < a->tokens; t++) {
            float x[AURA_MAX_DIM], norm = aura_load(s.norms, s.norm_dtype, t);
            ctx->kernels.row_dequant[plan.bits](x, s.rows + t * s.row_stride, &norm, &plan, 1);
            aura_store_row(a->out, a->out_dtype, (head * out_stride + t) * a->dim, x, a->dim);
        }
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

/* ---- score, value ------------------------------------------------------------------------------------------------- */

/* Query heads of one KV head, AURA_GROUP at a time: `first` is the head, `heads` how many. */
struct heads {
    size_t first, heads, kv;
};

static int next_heads(struct heads *h, size_t q_heads, size_t kv_heads)
{
    size_t ratio = q_heads / kv_heads;
    h->first += h->heads;
    h->kv = h->first / ratio;
    size_t left = (h->kv + 1) * ratio - h->first;
    h->heads = left < AURA_GROUP ? left : AURA_GROUP;
    return h->first < q_heads;
}

/* Makes the group of these heads, with their queries and without tokens. */
static void group_start(struct aura_group *g, const aura_ctx *ctx, const struct heads *at, uint32_t dim, const void *q,
                        aura_dtype q_dtype)
{
    aura_group_init(g, ctx, dim, at->heads);
    for (size_t h = 0; h < at->heads; h++)
        aura_group_query(g, h, q, q_dtype, at->first + h);
}

aura_status aura_score(const aura_ctx *ctx, const aura_score_args *a)
{
    struct aura_call call = {ctx, "aura_score"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "score_dtype", a->score_dtype)))
        return status;
    size_t stride = a->score_stride ? a->score_stride : a->tokens;
    struct aura_extent out = {"scores", a->scores, aura_dtype_bytes(a->score_dtype), a->tokens, stride,
                              a->tokens ? a->q_heads : 0};
    if ((status = check_queries(call, a->q, a->q_dtype, a->dim, a->q_heads, &out)) ||
        (status = check_packed(call, "keys", &a->keys, a->dim, a->kv_heads, a->tokens, &out)))
        return status;
    struct aura_group g;
    struct aura_source keys;
    struct heads at = {0, 0, 0};
    uint64_t mode = aura_fpmode_enter();
    source_init(&keys, &a->keys, a->dim);
    while (next_heads(&at, a->q_heads, a->kv_heads)) {
        group_start(&g, ctx, &at, a->dim, a->q, a->q_dtype);
        source_head(&keys, &a->keys, a->tokens, at.kv);
        for (size_t t = 0; t < a->tokens; t += AURA_BLOCK) {
            size_t n = a->tokens - t < AURA_BLOCK ? a->tokens - t : AURA_BLOCK;
            aura_group_score(&g, &keys, t, n);
            for (size_t h = 0; h < at.heads; h++)
                aura_store_row(a->scores, a->score_dtype, (at.first + h) * stride + t, g.weight + h * AURA_BLOCK, n);
        }
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

/* Loads the weights of n tokens into the group; those below the threshold become 0. Returns 1 where any is left. */
static int load_weights(struct aura_group *g, const aura_value_args *a, size_t stride, size_t first, size_t t, size_t n)
{
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

aura_status aura_value(const aura_ctx *ctx, const aura_value_args *a)
{
    struct aura_call call = {ctx, "aura_value"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)) ||
        (status = aura_check_dtype(call, "weight_dtype", a->weight_dtype)))
        return status;
    if (isnan(a->sparse_threshold))
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: sparse_threshold is NaN", call.name);
    size_t stride = a->weight_stride ? a->weight_stride : a->tokens;
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, a->dim, a->q_heads};
    struct aura_extent weights = {"weights", a->weights, aura_dtype_bytes(a->weight_dtype), a->tokens, stride,
                                  a->tokens ? a->q_heads : 0};
    if ((status = check_packed(call, "values", &a->values, a->dim, a->kv_heads, a->tokens, &out)) ||
        (status = aura_check_rows(call, &out)) || (status = aura_check_rows(call, &weights)) ||
        (status = aura_check_apart(call, &out, &weights)))
        return status;
    struct aura_group g;
    struct aura_source values;
    struct aura_bad_rows bad = {0, 0};
    struct heads at = {0, 0, 0};
    uint64_t mode = aura_fpmode_enter();
    source_init(&values, &a->values, a->dim);
    while (next_heads(&at, a->q_heads, a->kv_heads)) {
        aura_group_init(&g, ctx, a->dim, at.heads);
        source_head(&values, &a->values, a->tokens, at.kv);
        for (size_t t = 0; t < a->tokens; t += AURA_BLOCK) {
            size_t n = a->tokens - t < AURA_BLOCK ? a->tokens - t : AURA_BLOCK;
            if (load_weights(&g, a, stride, at.first, t, n))
                aura_group_value(&g, &values, t, n);
        }
        for (size_t h = 0; h < at.heads; h++) {
            float *row = g.acc + h * g.stride;
            aura_bad_row(&bad, aura_poison_row(row, a->dim, a->out_dtype), at.first + h);
            aura_store_row(a->out, a->out_dtype, (at.first + h) * a->dim, row, a->dim);
        }
    }
    aura_fpmode_leave(mode);
    return aura_bad_rows_status(call, &bad);
}

/* ---- pass 1 ------------------------------------------------------------------------------------------------------- */

static aura_status check_p1(struct aura_call call, const aura_flash_p1_args *a, size_t visible)
{
    aura_status status;
    size_t element = aura_dtype_bytes(a->partial_dtype), parts = aura_times(a->q_heads, a->num_blocks);
    struct aura_extent o = {"o", a->o, element, a->dim, a->dim, parts};
    struct aura_extent m = {"m", a->m, element, 1, 1, parts}, l = {"l", a->l, element, 1, 1, parts};
    if (aura_times(a->num_blocks, a->block_size) < visible)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %zu blocks of %zu do not cover %zu tokens", call.name,
                         a->num_blocks, a->block_size, visible);
    if ((status = check_queries(call, a->q, a->q_dtype, a->dim, a->q_heads, &o)) ||
        (status = aura_check_rows(call, &m)) || (status = aura_check_rows(call, &l)) ||
        (status = check_packed(call, "keys", &a->keys, a->dim, a->kv_heads, a->tokens, &o)) ||
        (status = check_packed(call, "values", &a->values, a->dim, a->kv_heads, a->tokens, &o)))
        return status;
    return AURA_OK;
}

static int store_partial(const aura_flash_p1_args *a, const struct aura_group *g, size_t h, size_t at)
{
    aura_store_row(a->o, a->partial_dtype, at * a->dim, g->acc + h * g->stride, a->dim);
    aura_store(a->m, a->partial_dtype, at, g->max[h]);
    aura_store(a->l, a->partial_dtype, at, g->sum[h]);
    return !isfinite(g->sum[h]);
}

aura_status aura_flash_p1(const aura_ctx *ctx, const aura_flash_p1_args *a)
{
    struct aura_call call = {ctx, "aura_flash_p1"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "partial_dtype", a->partial_dtype)))
        return status;
    size_t visible = a->causal && a->q_position < a->tokens ? (size_t)a->q_position + 1 : a->tokens;
    if ((status = check_p1(call, a, visible)))
        return status;
    struct aura_group g;
    struct aura_source keys, values;
    struct aura_bad_rows bad = {0, 0};
    struct heads at = {0, 0, 0};
    uint64_t mode = aura_fpmode_enter();
    source_init(&keys, &a->keys, a->dim);
    source_init(&values, &a->values, a->dim);
    while (next_heads(&at, a->q_heads, a->kv_heads)) {
        group_start(&g, ctx, &at, a->dim, a->q, a->q_dtype);
        source_head(&keys, &a->keys, a->tokens, at.kv);
        source_head(&values, &a->values, a->tokens, at.kv);
        for (size_t block = 0; block < a->num_blocks; block++) {
            size_t first = aura_times(block, a->block_size) < visible ? block * a->block_size : visible;
            size_t end = visible - first < a->block_size ? visible : first + a->block_size;
            aura_group_clear(&g);
            aura_group_attend(&g, &keys, &values, first, end);
            for (size_t h = 0; h < at.heads; h++)
                aura_bad_row(&bad, store_partial(a, &g, h, (at.first + h) * a->num_blocks + block), at.first + h);
        }
    }
    aura_fpmode_leave(mode);
    return aura_bad_rows_status(call, &bad);
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
    struct aura_bad_rows bad;
};

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
    aura_bad_row(&f->bad, bad, row);
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

aura_status aura_flash_pass2(const aura_ctx *ctx, const aura_flash_pass2_args *a)
{
    struct aura_call call = {ctx, "aura_flash_pass2"};
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
    struct finish f = {a->sinks, a->sink_dtype, sink_heads, a->out, a->out_dtype, a->lse, {0}, {0, 0}};
    if ((status = aura_check_rows(call, &o)) || (status = aura_check_rows(call, &m)) ||
        (status = aura_check_rows(call, &l)) || (status = aura_check_rows(call, &out)) ||
        (status = aura_check_apart(call, &out, &o)) ||
        (status = check_finish(call, a->sinks, a->sink_dtype, sink_heads, a->lse, &out)) ||
        (a->undo && (status = aura_check_rotation(call, a->undo, a->dim))) ||
        (status = aura_rotator_init(&f.undo, call, a->undo, 1)))
        return status;
    struct aura_group g;
    uint64_t mode = aura_fpmode_enter();
    aura_group_init(&g, ctx, a->dim, 1);
    for (size_t row = 0; row < a->q_heads; row++) {
        merge_row(&g, a, row);
        finish_row(&f, &g, 0, row);
    }
    aura_fpmode_leave(mode);
    aura_rotator_free(&f.undo);
    return aura_bad_rows_status(call, &f.bad);
}

/* ---- single pass -------------------------------------------------------------------------------------------------- */

aura_status aura_flash_sdpa(const aura_ctx *ctx, const aura_flash_sdpa_args *a)
{
    struct aura_call call = {ctx, "aura_flash_sdpa"};
    aura_status status;
    if ((status = aura_check_call(call, a, sizeof *a)) || (status = aura_check_heads(call, a->q_heads, a->kv_heads)) ||
        (status = aura_check_dtype(call, "out_dtype", a->out_dtype)))
        return status;
    uint32_t sink_heads = a->sink_heads ? a->sink_heads : a->q_heads;
    struct aura_extent out = {"out", a->out, aura_dtype_bytes(a->out_dtype), a->dim, a->dim, a->q_heads};
    struct finish f = {a->sinks, a->sink_dtype, sink_heads, a->out, a->out_dtype, a->lse, {0}, {0, 0}};
    if ((status = check_queries(call, a->q, a->q_dtype, a->dim, a->q_heads, &out)) ||
        (status = check_packed(call, "keys", &a->keys, a->dim, a->kv_heads, a->tokens, &out)) ||
        (status = check_packed(call, "values", &a->values, a->dim, a->kv_heads, a->tokens, &out)) ||
        (status = check_finish(call, a->sinks, a->sink_dtype, sink_heads, a->lse, &out)) ||
        (a->undo && (status = aura_check_rotation(call, a->undo, a->dim))) ||
        (status = aura_rotator_init(&f.undo, call, a->undo, 1)))
        return status;
    struct aura_group g;
    struct aura_source keys, values;
    struct heads at = {0, 0, 0};
    size_t first = a->window && a->window < a->tokens ? a->tokens - (size_t)a->window : 0;
    uint64_t mode = aura_fpmode_enter();
    source_init(&keys, &a->keys, a->dim);
    source_init(&values, &a->values, a->dim);
    while (next_heads(&at, a->q_heads, a->kv_heads)) {
        group_start(&g, ctx, &at, a->dim, a->q, a->q_dtype);
        source_head(&keys, &a->keys, a->tokens, at.kv);
        source_head(&values, &a->values, a->tokens, at.kv);
        aura_group_attend(&g, &keys, &values, first, a->tokens);
        for (size_t h = 0; h < at.heads; h++)
            finish_row(&f, &g, h, at.first + h);
    }
    aura_fpmode_leave(mode);
    aura_rotator_free(&f.undo);
    return aura_bad_rows_status(call, &f.bad);
}
