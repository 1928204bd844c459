/* Attention straight from the tiles:
 *
 *     Q ─ rotate ─ query ─▶ score ─ softmax ─ value ─▶ partial ─ merge ─ undo ─▶ output
 *
 * in three rounds over all threads: prepare the queries, attend (attend_split is the data flow), finish the rows. Tokens
 * are cut at multiples of 1024 into partial results that are merged in order, so that neither threads nor other jobs
 * change a bit. */
#include "../base/exact.h"
#include "attend.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../base/batch.h"
#include "../base/dtype.h"
#include "../base/fpmode.h"
#include "../base/not_finite.h"
#include "../base/view.h"

/* The job that contains unit or item `i`, by its first one. Jobs without any have the same first as the next. */
static const struct aura_attend_plan *plan_of(const struct aura_attend *a, size_t i, int items)
{
    size_t low = 0, high = a->n_jobs;
    while (high - low > 1) {
        size_t middle = (low + high) / 2, first = items ? a->plan[middle].first_item : a->plan[middle].first_unit;
        if (first <= i)
            low = middle;
        else
            high = middle;
    }
    return &a->plan[low];
}

/* Unit `unit` of a job. */
static struct aura_block block_of(const struct aura_attend *a, const struct aura_attend_plan *plan, size_t unit)
{
    struct aura_block b = {.a = a, .plan = plan, .list = plan->job->tiles};
    b.head = (uint32_t)(unit / plan->blocks);
    b.first = unit % plan->blocks * a->block_rows;
    b.n = plan->rows - b.first < a->block_rows ? plan->rows - b.first : a->block_rows;
    b.row = plan->first_row + b.head * plan->rows + b.first;
    struct aura_span all, any;
    any = aura_queries_span(a, plan->job, plan->len, aura_query_of(&b, 0), aura_query_of(&b, b.n - 1), &all);
    b.begin = any.begin;
    b.end = any.end;
    b.all_begin = all.begin;
    b.all_end = all.end;
    b.kept = aura_kept_apart(a, plan->job, b.all_begin); /* of some row: each has them as if it were alone */
    if (!aura_kept_apart(a, plan->job, b.begin) && aura_kept_of(a, plan->job))
        b.begin = 0;
    return b;
}

/* ---- round 1: queries --------------------------------------------------------------------------------------------- */

/* The integers of a query, and what they are worth with this call's planes. */
static void prepare_integers(const struct aura_attend *a, size_t row, const float *q, uint32_t dim)
{
    struct aura_query *query = &a->query[row];
    float byte = a->k_planes == 1 ? 256.f : 1.f; /* what the last bit of the integer stands for */
    uint32_t lower = 0;
    a->cache->ctx->kernels.query[0](query, q, dim, 1);
    a->factor[row] = query->step * byte * a->cache->layout.k.step * a->unit;
    for (uint32_t d = 0; d < dim; d++)
        lower += (uint32_t)abs(query->plane[1][d]);
    a->limit[row] = aura_limit_of_row(a->limit_of_call, query->step, lower);
}

static void prepare_row(const struct aura_block *b, size_t i)
{
    const struct aura_attend *a = b->a;
    const aura_cache *cache = a->cache;
    const aura_config *c = &cache->config;
    const uint32_t dim = cache->layout.k.dim;
    size_t row = b->row + i;
    float *q = a->q + row * dim;
    aura_view_load(q, &b->plan->job->q, aura_view_strides(&b->plan->job->q, a->q_heads, c->k_dim), aura_query_of(b, i),
                   aura_q_head_of(b, i), c->k_dim);
    memset(q + c->k_dim, 0, (dim - c->k_dim) * sizeof *q);
    if (aura_is_packed(cache->layout.k.kind)) {
        for (uint32_t d = 0; cache->k.balance && d < c->k_dim; d++)
            q[d] = q[d] * cache->k.inverse_balance[(size_t)b->head * c->k_dim + d];
        cache->ctx->kernels.rotate[0](q, q, &cache->k.rotate, 1);
    }
    a->bad[row] = (uint8_t)aura_poison_row(q, dim, AURA_F32);
    if (a->bad[row])
        memset(q, 0, dim * sizeof *q);
    if (aura_is_packed(cache->layout.k.kind))
        prepare_integers(a, row, q, dim);
    for (uint32_t d = 0; d < dim; d++)
        q[d] = q[d] * a->unit;
}

static void prepare_item(void *work, size_t i)
{
    const struct aura_attend *a = work;
    const struct aura_attend_plan *plan = plan_of(a, i, 0);
    struct aura_block b = block_of(a, plan, i - plan->first_unit);
    for (size_t row = 0; row < b.n; row++)
        prepare_row(&b, row);
}

/* ---- round 2: tiles ------------------------------------------------------------------------------------------------ */

/* The data flow: the tiles of [begin, end) into pass->acc and pass->softmax. */
static void attend_split(const struct aura_block *b, struct aura_pass *pass, uint64_t begin, uint64_t end)
{
    const struct aura_attend *a = b->a;
    const int options = a->options.softcap > 0 || a->options.alibi || b->plan->job->mask;
    memset(pass->acc, 0, b->n * a->cache->layout.v.dim * sizeof *pass->acc);
    memset(pass->softmax, 0, b->n * sizeof *pass->softmax);
    for (size_t i = 0; i < b->n; i++)
        pass->softmax[i].max = -INFINITY;
    aura_start_tiles(b, pass);
    uint64_t tile = aura_tile_here(b, begin / AURA_TILE), last = (end + AURA_TILE - 1) / AURA_TILE;
    for (uint64_t n; tile < last; tile = aura_tile_here(b, tile + n)) {
        n = AURA_TILES - tile % AURA_TILES;
        n = last - tile < n ? last - tile : n;
        aura_find_tiles(b, pass, tile, (size_t)n);
        aura_score_tiles(b, pass, n);
        for (size_t i = 0; i < n; i++) {
            const struct aura_place *p = &pass->place[i];
            if (options)
                aura_apply_options(b, p, pass->logit + i * b->n);
            if (p->first < b->all_begin || p->first + AURA_TILE > b->all_end)
                aura_hide_columns(b, p, pass->logit + i * b->n);
        }
        a->cache->ctx->kernels.softmax[0](pass->weight, pass->logit[0], pass->softmax, pass->scales, a->v_planes, b->n, n);
        aura_value_tiles(b, pass, n);
    }
}

/* into = both. A part that saw nothing is the identity; a sum that is NaN stays so. */
static void merge(struct aura_partial *into, float *into_acc, const struct aura_partial *part, const float *part_acc,
                  uint32_t dim)
{
    if (part->max == -INFINITY && !isnan(part->sum))
        return;
    if (into->max == -INFINITY && !isnan(into->sum)) {
        memcpy(into_acc, part_acc, dim * sizeof *into_acc);
        *into = *part;
        return;
    }
    float m = part->max > into->max ? part->max : into->max;
    float keep = into->max == m ? 1 : exp2f(into->max - m), add = part->max == m ? 1 : exp2f(part->max - m);
    for (uint32_t d = 0; d < dim; d++)
        into_acc[d] = into_acc[d] * keep + part_acc[d] * add;
    into->sum = into->sum * keep + part->sum * add;
    into->max = m;
}

static struct aura_partial row_result(const struct aura_softmax_row *row)
{
    float sum[AURA_LANES];
    memcpy(sum, row->sum, sizeof sum);
    for (int half = AURA_LANES / 2; half; half /= 2) /* one after the other, each would wait for the one before */
        for (int i = 0; i < half; i++)
            sum[i] += sum[i + half];
    struct aura_partial p = {row->max, sum[0]};
    return p;
}

/* Where the partial result of row i of a block is. */
static size_t partial_of(const struct aura_block *b, size_t i, size_t split)
{
    size_t per_row = b->a->splits_per_item ? b->plan->splits : 1;
    return b->plan->first_partial + (b->row + i - b->plan->first_row) * per_row + (b->a->splits_per_item ? split : 0);
}

/* As long as a partial has seen nothing, nobody looks at its accumulator. */
static void clear_partial(const struct aura_attend *a, size_t at)
{
    a->partial[at].max = -INFINITY;
    a->partial[at].sum = 0;
}

/* What a block sees of the 1024 tokens from `begin` on, into the partial of a split. */
static void attend_range(const struct aura_block *b, struct aura_pass *pass, size_t split, uint64_t begin)
{
    const struct aura_attend *a = b->a;
    uint32_t dim = a->cache->layout.v.dim;
    uint64_t end = begin + a->split < b->end ? begin + a->split : b->end;
    begin = begin > b->begin ? begin : b->begin;
    if (begin >= end)
        return;
    attend_split(b, pass, begin, end);
    for (size_t i = 0; i < b->n; i++) {
        size_t at = partial_of(b, i, split);
        struct aura_partial part = row_result(&pass->softmax[i]);
        merge(&a->partial[at], a->acc + at * dim, &part, pass->acc + i * dim, dim);
    }
}

/* Splits [first, last) of a block, each into its own partial, or all into one. */
static void attend_splits(const struct aura_block *b, size_t first, size_t last)
{
    const struct aura_attend *a = b->a;
    struct aura_pass pass;
    struct aura_block kept = *b;
    kept.begin = 0;
    kept.end = b->kept;
    kept.is_kept = 1;
    for (size_t split = first; split < last; split++) {
        uint64_t number = split < b->plan->kept_splits ? split : b->plan->first_split + (split - b->plan->kept_splits);
        if (a->splits_per_item || split == 0)
            for (size_t i = 0; i < b->n; i++)
                clear_partial(a, partial_of(b, i, split));
        attend_range(&kept, &pass, split, number * a->split);
        attend_range(b, &pass, split, number * a->split);
    }
}

static void attend_item(void *work, size_t i)
{
    const struct aura_attend *a = work;
    const struct aura_attend_plan *plan = plan_of(a, i, 1);
    size_t per_item = a->splits_per_item ? a->splits_per_item : plan->splits;
    size_t runs = a->splits_per_item ? (plan->splits + per_item - 1) / per_item : 1;
    size_t unit = (i - plan->first_item) / runs, first = (i - plan->first_item) % runs * per_item;
    struct aura_block b = block_of(a, plan, unit);
    if (plan->splits)
        attend_splits(&b, first, first + per_item < plan->splits ? first + per_item : plan->splits);
}

/* ---- round 3: outputs --------------------------------------------------------------------------------------------- */

/* A learned sink is one more token, whose value is 0. */
static void merge_sink(struct aura_partial *into, float *acc, float sink, uint32_t dim)
{
    static const float zero[AURA_TILE_DIM];
    struct aura_partial part = {sink * AURA_LOG2_E, 1};
    if (sink == INFINITY) { /* takes all the weight */
        memset(acc, 0, dim * sizeof *acc);
        into->sum = isnan(into->sum) ? NAN : 1;
        into->max = INFINITY;
    } else if (isnan(sink)) {
        into->sum = NAN;
    } else {
        merge(into, acc, &part, zero, dim);
    }
}

static void finish_row(const struct aura_block *b, size_t i)
{
    const struct aura_attend *a = b->a;
    const aura_cache *cache = a->cache;
    const aura_attend_job *job = b->plan->job;
    uint32_t dim = cache->layout.v.dim, given = cache->config.v_dim, head = aura_q_head_of(b, i);
    struct aura_partial all = {-INFINITY, 0};
    float out[AURA_TILE_DIM];
    memset(out, 0, dim * sizeof *out);
    for (size_t split = 0; split < (a->splits_per_item ? b->plan->splits : b->plan->splits > 0); split++) {
        size_t at = partial_of(b, i, split);
        merge(&all, out, &a->partial[at], a->acc + at * dim, dim);
    }
    if (a->options.sinks)
        merge_sink(&all, out, a->options.sinks[head], dim);
    int empty = all.max == -INFINITY && !isnan(all.sum), bad = a->bad[b->row + i] || !(empty || aura_is_good_sum(all.sum));
    for (uint32_t d = 0; d < dim; d++)
        out[d] = bad ? NAN : empty ? 0 : out[d] / all.sum;
    if (!bad && aura_is_packed(cache->layout.v.kind))
        cache->ctx->kernels.undo[0](out, out, &cache->v.undo, 1);
    for (uint32_t d = 0; !bad && cache->v.balance && d < given; d++)
        out[d] = out[d] * cache->v.inverse_balance[(size_t)b->head * given + d];
    bad = aura_poison_row(out, given, job->out.dtype);
    a->bad[b->row + i] = (uint8_t)bad;
    const aura_input place = aura_place_of(&job->out);
    aura_view_store(&job->out, aura_view_strides(&place, a->q_heads, given), aura_query_of(b, i), head, out, given);
    if (job->lse)
        job->lse[aura_query_of(b, i) * a->q_heads + head] =
            bad ? NAN : empty ? -INFINITY : all.max * AURA_LN_2 + logf(all.sum);
}

static void finish_item(void *work, size_t i)
{
    const struct aura_attend *a = work;
    const struct aura_attend_plan *plan = plan_of(a, i, 0);
    struct aura_block b = block_of(a, plan, i - plan->first_unit);
    for (size_t row = 0; row < b.n; row++)
        finish_row(&b, row);
}

/* A unit that is one item, from its queries to its outputs: one thing to hand to a thread instead of three. With few tokens, that
 * takes longer than to attend to them. */
static void unit_item(void *work, size_t i)
{
    prepare_item(work, i);
    attend_item(work, i);
    finish_item(work, i);
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static aura_status bad_rows(struct aura_call call, const struct aura_attend *a)
{
    size_t bad = 0;
    for (size_t i = 0; i < a->rows; i++)
        bad += a->bad[i];
    for (size_t j = 0; bad && j < a->n_jobs; j++) {
        const struct aura_attend_plan *plan = &a->plan[j];
        uint32_t ratio = aura_ratio_of(a);
        for (size_t i = 0; i < plan->rows * a->cache->config.kv_heads; i++)
            if (a->bad[plan->first_row + i])
                return aura_fail(call.ctx, AURA_NOT_FINITE,
                                 "%s: %zu rows are not finite and NaN now, among them jobs[%zu], query %zu, head %zu", call.name,
                                 bad, j, i % plan->rows / ratio, i / plan->rows * ratio + i % plan->rows % ratio);
    }
    return AURA_OK;
}

/* Memory from the first to the last byte of some views. */
struct extent {
    uintptr_t first, end;
};

static void widen(struct extent *all, const aura_input *view, size_t queries, uint32_t heads, uint32_t dim)
{
    const struct aura_strides s = aura_view_strides(view, heads, dim);
    const size_t last = queries - 1, bytes = dim * aura_dtype_bytes(view->dtype);
    for (size_t i = 0; i < queries; i += view->rows || !last ? 1 : last)
        for (uint32_t h = 0; h < heads; h += heads > 1 ? heads - 1 : 1) {
            const uintptr_t at = (uintptr_t)view->data + (uintptr_t)aura_view_at(view->dtype, view->rows, s, i, h);
            all->first = at < all->first ? at : all->first;
            all->end = at + bytes > all->end ? at + bytes : all->end;
        }
}

static int are_apart(const struct extent *a, const struct extent *b)
{
    return a->end <= b->first || b->end <= a->first;
}

/* Whether no output is among what is read: then it may be written while other inputs are still to be read. */
static int outputs_are_apart(const struct aura_attend *a)
{
    const aura_config *c = &a->cache->config;
    struct extent out = {UINTPTR_MAX, 0}, q = out, k = out, v = out;
    for (size_t i = 0; i < a->n_jobs; i++) {
        const aura_attend_job *job = &a->jobs[i];
        const aura_input place = aura_place_of(&job->out);
        if (job->queries == 0)
            continue;
        widen(&q, &job->q, job->queries, a->q_heads, c->k_dim);
        widen(&out, &place, job->queries, a->q_heads, c->v_dim);
    }
    for (size_t i = 0; a->first && i < a->first->n_jobs; i++) {
        const aura_append_job *job = &a->first->jobs[i];
        if (job->tokens == 0)
            continue;
        widen(&k, &job->k, job->tokens, c->kv_heads, c->k_dim);
        widen(&v, &job->v, job->tokens, c->kv_heads, c->v_dim);
    }
    return are_apart(&q, &out) && are_apart(&k, &out) && are_apart(&v, &out); /* an engine's may lie between them */
}

/* Whether job i asks the sequence that job i appends to, and nobody asks another: a KV head then depends on itself alone, and is
 * one item of either. */
static int jobs_are_pairs(const struct aura_attend *a)
{
    size_t i = 0;
    while (a->first && i < a->n_jobs && i < a->first->n_jobs && a->jobs[i].seq == a->first->jobs[i].seq)
        i++;
    return a->first && i == a->n_jobs && !a->first->inner;
}

/* A KV head of a job, from its new tokens to its outputs. */
static void step_item(void *work, size_t i)
{
    const struct aura_attend *a = work;
    const size_t heads = a->cache->config.kv_heads, job = i / heads;
    aura_append_item((void *)a->first, i);
    if (job < a->n_jobs && a->plan[job].blocks)
        unit_item(work, a->plan[job].first_unit + i % heads);
}

static void attend_rounds(struct aura_attend *a, int apart)
{
    const aura_ctx *ctx = a->cache->ctx;
    if (a->whole && apart) {
        aura_run(ctx, a->units, unit_item, a);
    } else {
        aura_run(ctx, a->units, prepare_item, a);
        aura_run(ctx, a->items, attend_item, a);
        aura_run(ctx, a->units, finish_item, a);
    }
}

static aura_status attend(struct aura_call call, struct aura_attend *a, void *workspace)
{
    aura_status status = a->first ? aura_append_begin(call, a->first) : AURA_OK;
    if (status)
        return status;
    if (a->rows)
        aura_attend_place(a, workspace);
    aura_learn_queries(a);
    const int apart = a->rows && outputs_are_apart(a);
    if (apart && a->whole && a->one_block && jobs_are_pairs(a)) {
        aura_run(a->cache->ctx, a->first->n_jobs * a->cache->config.kv_heads, step_item, a);
    } else {
        if (a->first)
            aura_append_run(a->first);
        if (a->rows)
            attend_rounds(a, apart);
    }
    if (a->first)
        aura_append_end(a->first);
    aura_learn_enough(a->cache); /* only now: a call that appends too encodes as two calls would */
    return a->rows ? bad_rows(call, a) : AURA_OK;
}

aura_status aura_attend_all(struct aura_call call, struct aura_attend *a, const aura_attend_options *options)
{
    size_t bytes = 0;
    aura_status status;
    if ((status = aura_attend_heads(call, a)) || (status = aura_attend_set(call, a, options)) ||
        (status = aura_attend_measure(call, a, 0, 0, &bytes)))
        return status;
    if (a->options.workspace && (a->options.workspace_bytes < bytes || (uintptr_t)a->options.workspace % 64))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                         "%s: a workspace of %zu bytes; these jobs need %zu, aligned to 64; ask aura_attend_workspace",
                         call.name, a->options.workspace_bytes, bytes);
    if (a->options.workspace || !a->rows)
        return attend(call, a, a->options.workspace);
    const aura_allocator *allocator = &a->cache->ctx->allocator;
    void *workspace = allocator->alloc(allocator->user, bytes, 64);
    if (!workspace)
        return aura_fail(call.ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name, bytes);
    status = attend(call, a, workspace);
    allocator->free(allocator->user, workspace, bytes);
    return status;
}

aura_status aura_attend(const aura_cache *cache, const aura_attend_job *jobs, size_t n_jobs,
                        const aura_attend_options *options)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_attend"};
    struct aura_attend a = {.cache = cache, .jobs = jobs, .n_jobs = n_jobs};
    if (!cache || (!jobs && n_jobs))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, cache ? "jobs" : "cache");
    const uint64_t mode = aura_fpmode_enter(), start = aura_nanoseconds();
    aura_status status = aura_attend_all(call, &a, options);
    aura_count_time(cache, AURA_TIME_ATTEND, start);
    aura_fpmode_leave(mode);
    return status;
}
