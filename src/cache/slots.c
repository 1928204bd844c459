/* A cache without sequences: tokens are encoded at once, wherever the caller wants them. Its pages are those of one sequence
 * that nobody has an id of and that is closed for ever, so that decode and attend read it as they read any other. */
#include "../base/exact.h"
#include "tile.h"

#include <string.h>

#include "../base/dtype.h"

aura_status aura_slots_make(struct aura_call call, aura_cache *cache)
{
    pthread_mutex_lock(&cache->lock);
    aura_status status = aura_seq_make(call, cache, &cache->slots);
    pthread_mutex_unlock(&cache->lock);
    if (!status)
        status = aura_pages_reserve(call, cache, cache->slots, cache->config.slots);
    if (status)
        return status;
    cache->slots->len = cache->config.slots;
    cache->slots->closed = UINT64_MAX;
    for (size_t p = 0; p < cache->slots->pages.end; p++)
        memset(aura_page_of(cache, cache->slots, p), 0, cache->page_bytes); /* a reference of zero, and numbers that are finite */
    return AURA_OK;
}

static aura_status check_cache(struct aura_call call, const aura_cache *cache)
{
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    if (!cache->slots)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the cache has sequences, and no slots", call.name);
    return AURA_OK;
}

aura_status aura_check_slots(struct aura_call call, const aura_cache *cache, const uint64_t *slot, uint32_t tokens)
{
    aura_status status = check_cache(call, cache);
    if (!status && !slot && tokens)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: slot is NULL", call.name);
    for (uint32_t i = 0; !status && i < tokens; i++)
        if (slot[i] >= cache->config.slots)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: slot[%u] is %llu; there are %llu", call.name, i,
                             (unsigned long long)slot[i], (unsigned long long)cache->config.slots);
    return status;
}

static struct aura_page_head *head_of(const aura_cache *cache, uint64_t slot)
{
    return aura_page_head(aura_page_of(cache, cache->slots, (size_t)(slot / AURA_PAGE)));
}

/* ---- write -------------------------------------------------------------------------------------------------------- */

struct write {
    aura_cache *cache;
    const aura_slot_job *jobs;
    size_t n_jobs;
};

/* One token of one head. Everything is on the stack: other tiles may be written meanwhile. */
static void write_token(const aura_cache *cache, const aura_slot_job *job, uint32_t t, uint32_t head, int values)
{
    uint64_t slot = job->slot[t];
    uint32_t c = (uint32_t)(slot % AURA_TILE), dim = values ? cache->layout.v.dim : cache->layout.k.dim;
    uint8_t *tile = aura_tile_of(cache, cache->slots, slot / AURA_TILE, head);
    int reference = !values && aura_has_reference(cache, UINT64_MAX, slot / AURA_PAGE);
    float x[AURA_TILE_DIM], r[AURA_TILE_DIM];
    uint16_t row[AURA_TILE_DIM];
    const uint16_t *rows[AURA_TILE];
    aura_load_vector(x, cache, values ? &job->v : &job->k, t, head, values);
    if (!(values ? cache->slots->v : cache->slots->k)) {
        aura_store_plain(cache, tile, c, x, values);
        return;
    }
    cache->ctx->kernels.rotate[0](x, x, values ? &cache->v.rotate : &cache->k.rotate, 1);
    aura_store_row(row, AURA_F16, 0, x, dim);
    rows[c] = row;
    if (reference)
        aura_load_reference(r, cache, aura_head_of(cache, cache->slots, (size_t)(slot / AURA_PAGE), head));
    if (values)
        aura_encode_values(cache, tile, head, c, c + 1, rows);
    else
        aura_encode_keys(cache, tile, head, c, c + 1, rows, reference ? r : NULL);
}

static void write_item(void *work, size_t head)
{
    struct write *w = work;
    for (size_t i = 0; i < w->n_jobs; i++)
        for (uint32_t t = 0; t < w->jobs[i].tokens; t++)
            for (int values = 0; values < 2; values++)
                write_token(w->cache, &w->jobs[i], t, (uint32_t)head, values);
}

static struct aura_given given_of(const void *jobs, size_t i)
{
    const aura_slot_job *job = (const aura_slot_job *)jobs + i;
    struct aura_given in = {job->tokens, &job->k, &job->v, 0};
    return in;
}

static aura_status check_job(struct aura_call call, const aura_cache *cache, const aura_slot_job *job)
{
    aura_status status = aura_check_call(call, job, sizeof *job);
    if (!status)
        status = aura_check_slots(call, cache, job->slot, job->tokens);
    return status ? status : aura_check_input(call, cache, job->tokens, &job->k, &job->v);
}

/* Every slot once: each is marked as it comes by, and all marks are gone at the end. A tile has one writer, so that its marks
 * are nobody else's. */
static aura_status check_twice(struct aura_call call, const struct write *w)
{
    aura_status status = AURA_OK;
    for (size_t i = 0; i < w->n_jobs; i++)
        for (uint32_t t = 0; t < w->jobs[i].tokens; t++) {
            uint64_t slot = w->jobs[i].slot[t];
            uint32_t *busy = &head_of(w->cache, slot)->busy[slot / AURA_TILE % AURA_PAGE_TILES], bit = 1u << slot % AURA_TILE;
            if (*busy & bit)
                status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: slot %llu is twice in the call", call.name,
                                   (unsigned long long)slot);
            *busy |= bit;
        }
    for (size_t i = 0; i < w->n_jobs; i++)
        for (uint32_t t = 0; t < w->jobs[i].tokens; t++)
            head_of(w->cache, w->jobs[i].slot[t])->busy[w->jobs[i].slot[t] / AURA_TILE % AURA_PAGE_TILES] = 0;
    return status;
}

aura_status aura_slots_write(aura_cache *cache, const aura_slot_job *jobs, size_t n_jobs)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_slots_write"};
    struct write w = {cache, jobs, n_jobs};
    aura_status status = check_cache(call, cache);
    if (!status && !jobs && n_jobs)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: jobs is NULL", call.name);
    for (size_t i = 0; i < n_jobs && !status; i++)
        status = check_job(call, cache, &jobs[i]);
    if (status || (status = check_twice(call, &w)) || (status = aura_check_vectors(call, cache, given_of, jobs, n_jobs)))
        return status;
    aura_run(cache->ctx, cache->config.kv_heads, write_item, &w);
    for (size_t i = 0; i < n_jobs; i++)
        for (uint32_t t = 0; t < jobs[i].tokens; t++)
            head_of(cache, jobs[i].slot[t])->written[jobs[i].slot[t] / AURA_TILE % AURA_PAGE_TILES] = 1;
    return AURA_OK;
}

/* ---- pages -------------------------------------------------------------------------------------------------------- */

static aura_status check_page(struct aura_call call, const aura_cache *cache, uint64_t page)
{
    aura_status status = check_cache(call, cache);
    if (!status && page >= cache->slots->pages.end)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: page %llu; %llu slots are %zu pages", call.name,
                         (unsigned long long)page, (unsigned long long)cache->config.slots, cache->slots->pages.end);
    return status;
}

struct reference {
    const aura_cache *cache;
    const aura_input *k;
    size_t page;
};

static void reference_item(void *work, size_t head)
{
    struct reference *r = work;
    float x[AURA_TILE_DIM];
    aura_load_vector(x, r->cache, r->k, 0, (uint32_t)head, 0);
    r->cache->ctx->kernels.rotate[0](x, x, &r->cache->k.rotate, 1);
    aura_store_reference(r->cache, aura_head_of(r->cache, r->cache->slots, r->page, (uint32_t)head), x);
}

static struct aura_given one_key(const void *view, size_t i)
{
    struct aura_given in = {1, view, NULL, 0};
    (void)i;
    return in;
}

aura_status aura_slots_reference(aura_cache *cache, uint64_t page, const aura_input *k)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_slots_reference"};
    struct reference r = {cache, k, (size_t)page};
    aura_status status = check_page(call, cache, page);
    if (status)
        return status;
    const aura_config *c = &cache->config;
    if (!aura_has_reference(cache, UINT64_MAX, page))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                         "%s: keys have no reference here: they are plain, or AURA_NO_REFERENCE is set", call.name);
    for (int tile = 0; tile < AURA_PAGE_TILES; tile++)
        if (head_of(cache, page * AURA_PAGE)->written[tile])
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: page %llu was written to; a reference comes before, or after "
                             "aura_slots_clear", call.name, (unsigned long long)page);
    if (!k)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: k is NULL", call.name);
    if ((status = aura_check_view(call, "k", k)) || (status = aura_check_view_extent(call, "k", k, 1, c->kv_heads, c->k_dim)) ||
        (status = aura_check_vectors(call, cache, one_key, k, 1)))
        return status;
    aura_run(cache->ctx, c->kv_heads, reference_item, &r);
    return AURA_OK;
}

aura_status aura_slots_clear(aura_cache *cache, uint64_t page)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_slots_clear"};
    aura_status status = check_page(call, cache, page);
    if (status)
        return status;
    memset(aura_page_of(cache, cache->slots, (size_t)page), 0, cache->page_bytes);
    memset(head_of(cache, page * AURA_PAGE)->written, 0, AURA_PAGE_TILES);
    return AURA_OK;
}
