/* What a cache will take: bytes of memory, of a workspace and of a snapshot, from its configuration and the lengths of its
 * sequences alone. Sums and products stay at SIZE_MAX where they do not fit, and nothing that is larger than half of it is said. */
#include "../base/exact.h"
#include "../cache/attend.h"
#include "../cache/model.h"
#include "snapshot.h"

#include <string.h>

static size_t plus(size_t a, size_t b)
{
    return a > SIZE_MAX - b ? SIZE_MAX : a + b;
}

static aura_status too_large(struct aura_call call, const aura_plan_job *job)
{
    return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %zu sequences of %llu tokens fit in no memory", call.name, job->seqs,
                     (unsigned long long)job->tokens);
}

/* Of one sequence: how many pages it has after all its tokens, with those that are promised to it, and where its list ends. */
static size_t pages_of_seq(const aura_cache *shape, uint64_t tokens, size_t *end)
{
    const struct aura_page_window *w = &shape->window;
    const size_t all = aura_pages_of(tokens), most = w->span ? w->kept + aura_window_ring(w) : SIZE_MAX;
    const size_t pages = all < most ? all : most, first = aura_window_first(w, tokens);
    *end = pages > w->kept && first + (pages - w->kept) > all ? first + (pages - w->kept) : all;
    return pages;
}

/* Memory of one layer, added to what is there. */
static aura_status add_memory(struct aura_call call, const aura_cache *shape, const aura_plan_job *job, aura_plan_info *sum)
{
    const aura_config *c = &shape->config;
    const size_t seqs = c->slots ? 1 : job->seqs, stride = AURA_PAGE_HEAD + shape->page_bytes;
    size_t places = 0, end = 0;
    const size_t each = pages_of_seq(shape, c->slots ? c->slots : job->tokens, &end), used = aura_times(each, seqs);
    size_t pages = used;
    aura_status status = c->slots ? AURA_OK : aura_places_bytes(call, seqs, &places);
    if (status)
        return status;
    if (end > SIZE_MAX / 64 || used > SIZE_MAX / 8 / stride)
        return too_large(call, job);
    const size_t slabs = aura_slabs_for(shape, &pages);
    sum->pages = plus(sum->pages, used);
    sum->page_bytes = plus(sum->page_bytes, aura_times(used, shape->page_bytes));
    sum->idle_bytes = plus(sum->idle_bytes, aura_times(pages - used, shape->page_bytes));
    sum->overhead_bytes = plus(sum->overhead_bytes, plus(aura_times(pages, AURA_PAGE_HEAD), aura_times(slabs, AURA_SLAB_TAIL)));
    sum->tail_bytes = plus(sum->tail_bytes, aura_times(seqs, shape->rows_bytes));
    sum->seq_bytes = plus(sum->seq_bytes, aura_times(seqs, shape->seq_bytes - shape->rows_bytes + aura_list_bytes(shape, end)));
    sum->seq_bytes = plus(sum->seq_bytes, places);
    sum->fixed_bytes = plus(sum->fixed_bytes, sizeof *shape);
    sum->fixed_bytes = plus(sum->fixed_bytes, aura_numbers_bytes(c) + aura_learning_bytes(c));
    return AURA_OK;
}

/* Bytes of the sections of one layer. No sum overflows: the memory of the same is less than half of all there can be. */
static uint64_t sections_bytes(const aura_cache *shape, const aura_plan_job *job)
{
    const aura_config *c = &shape->config;
    const struct aura_page_window *w = &shape->window;
    const uint64_t tokens = c->slots ? c->slots : job->tokens, seqs = c->slots ? 1 : job->seqs;
    const uint64_t closed = c->slots ? tokens : aura_closed_of(shape, 0, tokens);
    const uint64_t entries = seqs * aura_window_count(w, aura_window_first(w, tokens), aura_pages_of(tokens));
    return aura_layer_sections_bytes(shape, c->kv_heads, seqs, entries, entries, seqs * aura_rows_of(shape, tokens, closed));
}

/* The workspace of a call with a job for each sequence. A cache of slots takes lengths from the jobs, and so does this one. */
static aura_status workspace_bytes(struct aura_call call, aura_cache *shape, const aura_plan_job *job, size_t *bytes)
{
    static const aura_attend_job one = AURA_ATTEND_JOB_INIT;
    const uint64_t tokens = shape->config.slots ? shape->config.slots : job->tokens;
    const size_t n = shape->config.slots ? 1 : job->seqs;
    struct aura_sequence nobody;
    void *memory;
    if (!aura_takes_at_once(shape->config.window, shape->config.max_queries, job->queries))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u queries at once; a cache with a window takes max_queries = %u",
                         call.name, job->queries, shape->config.max_queries);
    aura_status status = aura_take_memory(call, n * sizeof one + 1, &memory);
    if (status)
        return status;
    aura_attend_job *jobs = memory;
    for (size_t i = 0; i < n; i++) {
        jobs[i] = one;
        jobs[i].queries = job->queries;
        jobs[i].tokens = tokens;
    }
    struct aura_attend a = {.cache = shape, .jobs = jobs, .n_jobs = n};
    memset(&nobody, 0, sizeof nobody);
    shape->slots = &nobody;
    if (!(status = aura_attend_heads(call, &a)))
        status = aura_attend_measure(call, &a, tokens, 1, bytes);
    shape->slots = NULL;
    aura_give_memory(call.ctx, memory, n * sizeof one + 1);
    return status;
}

static aura_status add_layer(struct aura_call call, aura_cache *shape, const aura_plan_job *job, aura_plan_info *sum,
                             uint64_t *sections, uint32_t *numbers)
{
    const aura_config *c = &shape->config;
    size_t workspace = 0;
    if (c->slots && (job->layers || job->seqs || job->tokens))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: slots, and layers %u, seqs %zu, tokens %llu", call.name, job->layers,
                         job->seqs, (unsigned long long)job->tokens);
    aura_status status = add_memory(call, shape, job, sum);
    if (!status && job->queries)
        status = workspace_bytes(call, shape, job, &workspace);
    if (status)
        return status;
    sum->bytes = plus(plus(plus(sum->page_bytes, sum->idle_bytes), plus(sum->tail_bytes, sum->seq_bytes)),
                      plus(sum->overhead_bytes, sum->fixed_bytes));
    if (sum->bytes > SIZE_MAX / 4)
        return too_large(call, job);
    *sections += sections_bytes(shape, job);
    *numbers += aura_count_numbers(c);
    sum->workspace_bytes = workspace > sum->workspace_bytes ? workspace : sum->workspace_bytes;
    return AURA_OK;
}

aura_status aura_plan(aura_ctx *ctx, const aura_plan_job *job, aura_plan_info *info)
{
    static const aura_snapshot_options plain = AURA_SNAPSHOT_OPTIONS_INIT;
    struct aura_call call = {ctx, "aura_plan"};
    aura_plan_info sum = AURA_PLAN_INFO_INIT;
    uint64_t sections = 0;
    uint32_t numbers = 0;
    void *memory = NULL;
    if (!ctx)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: ctx is NULL", call.name);
    aura_status status = aura_check_call(call, job, sizeof *job);
    if (status || (status = aura_check_call(call, info, sizeof *info)))
        return status;
    if (!job->configs || job->layers > AURA_MOST_LAYERS)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %u layers (up to %d)%s", call.name, job->layers, AURA_MOST_LAYERS,
                         job->configs ? "" : ", configs is NULL");
    if (job->tokens > UINT64_MAX / 4)
        return too_large(call, job);
    if ((status = aura_take_memory(call, sizeof(aura_cache), &memory)))
        return status;
    const uint32_t layers = job->layers ? job->layers : 1;
    sum.fixed_bytes = job->layers ? aura_model_bytes(layers) : 0;
    for (uint32_t i = 0; !status && i < layers; i++)
        if (!(status = aura_cache_shape(call, ctx, &job->configs[i], memory)))
            status = add_layer(call, memory, job, &sum, &sections, &numbers);
    aura_give_memory(ctx, memory, sizeof(aura_cache));
    if (status)
        return status;
    sum.snapshot_bytes = (size_t)aura_snapshot_bytes(sections, layers, numbers, &plain);
    *info = sum;
    return AURA_OK;
}
