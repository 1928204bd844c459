/* An attention call checked, counted and laid out. */
#include "../base/exact.h"
#include "attend.h"

#include <math.h>
#include <string.h>

#include "../base/view.h"

/* ---- checks ------------------------------------------------------------------------------------------------------- */

static aura_status check_numbers(struct aura_call call, const char *what, const float *x, uint32_t n)
{
    for (uint32_t i = 0; x && i < n; i++)
        if (!isfinite(x[i]))
            return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: %s[%u] is %g", call.name, what, i, (double)x[i]);
    return AURA_OK;
}

aura_status aura_attend_heads(struct aura_call call, struct aura_attend *a)
{
    const aura_config *c = &a->cache->config;
    aura_status status;
    a->q_heads = c->q_heads;
    for (size_t i = 0; i < a->n_jobs; i++) {
        const aura_attend_job *job = &a->jobs[i];
        if ((status = aura_check_call(call, job, sizeof *job)))
            return status;
        uint32_t heads = job->q_heads ? job->q_heads : c->q_heads;
        if (!heads || heads % c->kv_heads || heads > 1u << 16 || (i && heads != a->q_heads))
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                             "%s: jobs[%zu] has %u query heads for %u KV heads: a multiple, up to 65536, the same in all jobs",
                             call.name, i, heads, c->kv_heads);
        a->q_heads = heads;
    }
    return AURA_OK;
}

aura_status aura_attend_set(struct aura_call call, struct aura_attend *a, const aura_attend_options *given)
{
    static const aura_attend_options defaults = AURA_ATTEND_OPTIONS_INIT;
    const aura_config *c = &a->cache->config;
    aura_attend_options *o = &a->options;
    aura_status status;
    if (!given)
        given = &defaults;
    if ((status = aura_check_call(call, given, sizeof *given)) || (status = check_numbers(call, "alibi", given->alibi, a->q_heads)))
        return status;
    *o = *given;
    o->scale = aura_logit_scale(o->scale, c->k_dim);
    if (!aura_are_good_options(o->scale, o->softcap, o->planes, o->not_causal))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: scale %g, softcap %g, planes %u or not_causal %u is out of range",
                         call.name, (double)o->scale, (double)o->softcap, o->planes, o->not_causal);
    if (c->window && o->window > c->window)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a window of %llu; the cache keeps %llu tokens", call.name,
                         (unsigned long long)o->window, (unsigned long long)c->window);
    o->window = aura_window_of_call(o->window, c->window);
    a->unit = o->scale * AURA_LOG2_E;
    a->k_planes = aura_planes_of(a->cache->layout.k.kind, o->planes);
    a->v_planes = aura_planes_of(a->cache->layout.v.kind, o->planes);
    a->limit_of_call = aura_limit_of_call(&a->cache->layout.k, a->unit, o->planes);
    return AURA_OK;
}

/* What a job attends to; NULL, with a message, where there is nothing of the kind. */
static const struct aura_sequence *seq_of(struct aura_call call, const aura_cache *cache, const aura_attend_job *job)
{
    if (!cache->slots && !job->tiles && !job->tokens)
        return aura_find_seq(call, cache, job->seq);
    if (cache->slots && !job->seq)
        return cache->slots;
    aura_fail(call.ctx, AURA_BAD_ARGUMENT,
              cache->slots ? "%s: sequence %u of a cache of slots; seq is 0 there, and tokens and tiles say what to attend to"
                           : "%s: tokens or tiles with sequence %u; they are for a cache of slots",
              call.name, job->seq);
    return NULL;
}

/* Whether the call appends to the sequence of job i before it attends: most often with its own job i. */
static int grows(const struct aura_attend *a, size_t i)
{
    const struct aura_append *first = a->first;
    if (!first || (i < first->n_jobs && first->jobs[i].seq == a->jobs[i].seq))
        return first != NULL;
    for (size_t j = 0; j < first->n_jobs; j++)
        if (first->jobs[j].seq == a->jobs[i].seq)
            return 1;
    return 0;
}

static uint64_t len_of(const struct aura_attend *a, size_t i, const struct aura_sequence *seq)
{
    return a->cache->slots ? a->jobs[i].tokens : grows(a, i) ? seq->wanted : seq->len;
}

static aura_status check_tiles(struct aura_call call, const aura_config *c, const aura_attend_job *job)
{
    uint64_t tiles = (c->slots + AURA_TILE - 1) / AURA_TILE;
    if (!job->tiles && job->tokens > c->slots)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens in %llu slots", call.name,
                         (unsigned long long)job->tokens, (unsigned long long)c->slots);
    for (uint64_t i = 0; job->tiles && i < job->tokens / AURA_TILE + (job->tokens % AURA_TILE > 0); i++)
        if (job->tiles[i] >= tiles)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: tiles[%llu] is %u; %llu slots are %llu tiles", call.name,
                             (unsigned long long)i, job->tiles[i], (unsigned long long)c->slots, (unsigned long long)tiles);
    return AURA_OK;
}

struct aura_span aura_queries_span(const struct aura_attend *a, const aura_attend_job *job, uint64_t len, size_t first, size_t last,
                                   struct aura_span *all)
{
    struct aura_span any = {UINT64_MAX, 0};
    const size_t step = job->from || job->until || first == last ? 1 : last - first; /* positions ascend with the queries */
    all->begin = 0;
    all->end = UINT64_MAX;
    for (size_t i = first; i <= last; i += step) {
        struct aura_span s = aura_query_span(a, job, len, i);
        all->begin = s.begin > all->begin ? s.begin : all->begin;
        all->end = s.end < all->end ? s.end : all->end;
        if (s.begin >= s.end)
            continue;
        any.begin = s.begin < any.begin ? s.begin : any.begin;
        any.end = s.end > any.end ? s.end : any.end;
    }
    any.begin = any.end ? any.begin : 0;
    return any;
}

static struct aura_span job_span(const struct aura_attend *a, const aura_attend_job *job, uint64_t len)
{
    struct aura_span none = {0, 0}, all;
    return job->queries ? aura_queries_span(a, job, len, 0, job->queries - 1, &all) : none;
}

/* The limits that a job has of its own. */
static aura_status check_limits(struct aura_call call, const aura_attend_job *job, uint64_t len)
{
    for (uint32_t i = 0; i < job->queries && (job->from || job->until); i++) {
        uint64_t until = job->until ? job->until[i] : len, from = job->from ? job->from[i] : 0;
        if (from > until || until > len)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: query %u sees tokens [%llu, %llu) of %llu", call.name, i,
                             (unsigned long long)from, (unsigned long long)until, (unsigned long long)len);
    }
    return AURA_OK;
}

static aura_status check_window(struct aura_call call, const struct aura_attend *a, size_t i, const struct aura_sequence *seq,
                                uint64_t len)
{
    const aura_config *c = &a->cache->config;
    const aura_attend_job *job = &a->jobs[i];
    struct aura_span seen = job_span(a, job, len);
    size_t first = seq->pages.first, slid = grows(a, i) ? aura_window_first(&a->cache->window, len) : first;
    first = slid > first ? slid : first;
    if (!aura_takes_at_once(c->window, c->max_queries, job->queries))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u queries at once; a cache with a window takes max_queries = %u",
                         call.name, job->queries, c->max_queries);
    if (seen.begin < seen.end && !aura_window_has(&a->cache->window, first, seen.begin, seen.end))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u queries would see tokens from %llu on; those below %llu are gone",
                         call.name, job->queries, (unsigned long long)seen.begin,
                         (unsigned long long)first * AURA_PAGE);
    return AURA_OK;
}

static aura_status check_job(struct aura_call call, const struct aura_attend *a, size_t i, const struct aura_sequence *seq)
{
    const aura_config *c = &a->cache->config;
    const aura_attend_job *job = &a->jobs[i];
    uint64_t len = len_of(a, i, seq);
    aura_status status;
    if ((status = check_limits(call, job, len)))
        return status;
    if (!a->options.not_causal && !job->until && job->queries > len)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                         "%s: %u queries at the newest positions of sequence %u, which has %llu tokens", call.name, job->queries,
                         job->seq, (unsigned long long)len);
    if (job->mask && (job->mask_keys > len || (job->mask_stride && job->mask_stride < job->mask_keys)))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a mask of %u keys with stride %zu over %llu tokens", call.name,
                         job->mask_keys, job->mask_stride, (unsigned long long)len);
    if (job->mask && aura_times(job->mask_stride, job->queries) > PTRDIFF_MAX / sizeof(float))
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: a mask of %u queries with stride %zu does not fit in memory", call.name,
                         job->queries, job->mask_stride);
    if (job->mask && aura_times(job->mask_head_stride, a->q_heads) > PTRDIFF_MAX / sizeof(float))
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: masks of %u heads with stride %zu do not fit in memory",
                         call.name, a->q_heads, job->mask_head_stride);
    if ((c->slots && (status = check_tiles(call, c, job))) || (c->window && (status = check_window(call, a, i, seq, len))))
        return status;
    if (job->queries == 0)
        return AURA_OK;
    const aura_input out = aura_place_of(&job->out);
    if ((status = aura_check_view(call, "q", &job->q)) || (status = aura_check_view(call, "out", &out)) ||
        (status = aura_check_view_extent(call, "q", &job->q, job->queries, a->q_heads, c->k_dim)) ||
        (status = aura_check_view_extent(call, "out", &out, job->queries, a->q_heads, c->v_dim)) ||
        (status = aura_check_view_apart(call, "out", &out, job->queries, a->q_heads, c->v_dim)))
        return status;
    return AURA_OK;
}

/* ---- sizes -------------------------------------------------------------------------------------------------------- */

static size_t splits_of(const struct aura_attend *a, uint64_t tokens)
{
    return (size_t)(tokens / a->split + (tokens % a->split > 0));
}

/* One job counted, without its place and its splits. */
static struct aura_attend_plan plan_of(const struct aura_attend *a, size_t i, const struct aura_sequence *seq, uint64_t tokens)
{
    const aura_attend_job *job = &a->jobs[i];
    const size_t rows = (size_t)job->queries * aura_ratio_of(a), blocks = (rows + a->block_rows - 1) / a->block_rows;
    const uint64_t len = tokens ? tokens : len_of(a, i, seq);
    const uint64_t closed = grows(a, i) ? aura_closed_of(a->cache, seq->closed, len) : seq->closed;
    struct aura_attend_plan plan = {job, seq, len, closed, rows, blocks, 0, 0, 0, 0, 0, 0, 0};
    return plan;
}

static void find_splits(const struct aura_attend *a, struct aura_attend_plan *plan)
{
    struct aura_span seen = job_span(a, plan->job, plan->len);
    uint64_t kept = aura_kept_apart(a, plan->job, seen.begin);
    if (!kept && aura_kept_of(a, plan->job))
        seen.begin = 0;
    plan->kept_splits = splits_of(a, kept);
    plan->first_split = (size_t)(seen.begin / a->split);
    if (plan->first_split < plan->kept_splits)
        plan->first_split = plan->kept_splits;
    size_t end = splits_of(a, seen.end);
    plan->splits = plan->kept_splits + (end > plan->first_split ? end - plan->first_split : 0);
}

/* The most splits of a job whose sequence has `len` tokens or less: those of all tokens that can be there. */
static size_t most_splits_of(const struct aura_attend *a, uint64_t len)
{
    const struct aura_page_window *w = &a->cache->window;
    size_t all = splits_of(a, len);
    size_t there = splits_of(a, w->span + AURA_PAGE) + 1 + splits_of(a, (uint64_t)w->kept * AURA_PAGE);
    return w->span && there < all ? there : all;
}

/* The arrays of the workspace, one after the other. A NULL base measures. */
static size_t carve(struct aura_attend *a, uint8_t *base)
{
    const struct aura_layout *l = &a->cache->layout;
    size_t at = 0;
    int packed = aura_is_packed(l->k.kind);
    struct {
        void **array;
        size_t bytes;
    } parts[] = {
        {(void **)&a->plan, a->n_jobs * sizeof *a->plan},
        {(void **)&a->query, packed ? a->rows * sizeof *a->query : 0},
        {(void **)&a->q, a->rows * l->k.dim * sizeof *a->q},
        {(void **)&a->factor, packed ? a->rows * sizeof *a->factor : 0},
        {(void **)&a->limit, packed ? a->rows * sizeof *a->limit : 0},
        {(void **)&a->bad, a->rows},
        {(void **)&a->partial, a->partials * sizeof *a->partial},
        {(void **)&a->acc, a->partials * l->v.dim * sizeof *a->acc},
    };
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        if (base)
            *parts[i].array = base + at;
        at += (parts[i].bytes + 63) / 64 * 64;
    }
    return at;
}

static aura_status count_jobs(struct aura_call call, struct aura_attend *a, uint64_t tokens, int plan_only)
{
    uint32_t heads = a->cache->config.kv_heads;
    const size_t most = SIZE_MAX / 8192 / 4; /* of all jobs together: then no size of the workspace overflows */
    size_t split_partials = 0, most_splits = 0;
    for (size_t i = 0; i < a->n_jobs; i++) {
        const aura_attend_job *job = &a->jobs[i];
        const struct aura_sequence *seq = seq_of(call, a->cache, job);
        aura_status status;
        if (!seq)
            return AURA_BAD_ARGUMENT;
        if (!plan_only && (status = check_job(call, a, i, seq)))
            return status;
        struct aura_attend_plan plan = plan_of(a, i, seq, tokens);
        if (plan_only)
            plan.splits = most_splits_of(a, plan.len);
        else
            find_splits(a, &plan);
        if (plan.rows > (most - a->rows) / heads || plan.splits > (most - split_partials) / heads / (plan.rows + 1))
            return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %u queries over %llu tokens", call.name, job->queries,
                             (unsigned long long)plan.len);
        a->rows += plan.rows * heads;
        a->units += plan.blocks * heads;
        split_partials += plan.rows * heads * plan.splits;
        most_splits = plan.splits > most_splits ? plan.splits : most_splits;
        a->items += plan.blocks * heads * plan.splits;
    }
    /* With many units each is one item. With few, a unit is cut into runs of splits, so that one sequence with one KV head
     * still uses all threads: runs as long as leave 64 items, for the sake of the memory's own prefetching. */
    a->splits_per_item = a->units >= 64 ? 0 : a->items / 64 + 1 < 8 ? a->items / 64 + 1 : 8;
    a->partials = a->splits_per_item ? split_partials : a->rows;
    if (plan_only && !a->splits_per_item) { /* a call with fewer queries would have fewer units, and be cut by tokens */
        size_t cut = 63 * a->block_rows * most_splits;
        cut = cut < split_partials ? cut : split_partials;
        a->partials = cut > a->rows ? cut : a->rows;
    }
    return AURA_OK;
}

aura_status aura_attend_measure(struct aura_call call, struct aura_attend *a, uint64_t tokens, int plan_only, size_t *bytes)
{
    size_t most = AURA_BLOCK_FLOATS / a->cache->layout.v.dim;
    a->block_rows = most < AURA_BLOCK_ROWS ? most : AURA_BLOCK_ROWS;
    a->split = AURA_SPLIT * (uint64_t)(a->cache->ranks ? a->cache->ranks : 1);
    a->rows = a->units = a->items = a->partials = 0;
    aura_status status = count_jobs(call, a, tokens, plan_only);
    if (!status)
        *bytes = carve(a, NULL);
    return status;
}

void aura_attend_place(struct aura_attend *a, void *workspace)
{
    struct aura_call call = {a->cache->ctx, "aura_attend"};
    uint32_t heads = a->cache->config.kv_heads;
    carve(a, workspace);
    a->rows = a->units = a->items = a->partials = 0;
    a->whole = a->one_block = 1;
    for (size_t i = 0; i < a->n_jobs; i++) {
        const struct aura_sequence *seq = seq_of(call, a->cache, &a->jobs[i]);
        struct aura_attend_plan *plan = &a->plan[i];
        *plan = plan_of(a, i, seq, 0);
        find_splits(a, plan);
        plan->first_row = a->rows;
        plan->first_unit = a->units;
        plan->first_item = a->items;
        plan->first_partial = a->partials;
        size_t runs = a->splits_per_item ? (plan->splits + a->splits_per_item - 1) / a->splits_per_item : 1;
        a->rows += plan->rows * heads;
        a->units += plan->blocks * heads;
        a->items += plan->blocks * heads * runs;
        a->whole &= runs == 1;
        a->one_block &= plan->blocks <= 1;
        a->partials += plan->rows * heads * (a->splits_per_item ? plan->splits : 1);
    }
}

/* ---- the calls ---------------------------------------------------------------------------------------------------- */

aura_status aura_attend_workspace(const aura_cache *cache, const aura_attend_job *jobs, size_t n_jobs, uint64_t tokens,
                                  size_t *bytes)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_attend_workspace"};
    struct aura_attend a = {.cache = cache, .jobs = jobs, .n_jobs = n_jobs};
    if (!cache || (!jobs && n_jobs) || !bytes)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, !cache ? "cache" : !bytes ? "bytes" : "jobs");
    aura_status status = aura_attend_heads(call, &a);
    return status ? status : aura_attend_measure(call, &a, tokens, 1, bytes);
}
