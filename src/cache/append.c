/* Tokens into the cache: rotate, store in f16, and encode a tile when it closes.
 *
 *     K,V ─ balance ─ rotate ─ f16 row ─┬─▶ pinned and open tokens
 *                                       └─ tile closes: reference ─ codes ─ pack ─▶ tile
 *
 * A KV head of a sequence depends on no other, and an inner page, which comes and is encoded in one call, depends on no other
 * page: its keys have a reference of their own, and its rows need not stay. So (job, KV head, inner page) is a unit of work, and
 * (job, KV head) with all its other tokens is one. */
#include "../base/exact.h"
#include "tile.h"

#include <string.h>

#include "../base/batch.h"
#include "../base/dtype.h"

static struct aura_sequence *seq_of(const aura_cache *cache, aura_seq id)
{
    struct aura_call call = {cache->ctx, "aura_append"};
    return aura_find_seq(call, cache, id);
}

/* ---- tiles that close ---------------------------------------------------------------------------------------------- */

/* The reference of the page of a tile whose unpinned keys are all open. */
static void make_reference(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t h, uint8_t *head)
{
    const uint16_t *rows[AURA_TILE];
    uint32_t n = 0;
    for (uint64_t t = tile * AURA_TILE; t < (tile + 1) * AURA_TILE; t++)
        if (t >= cache->pinned)
            rows[n++] = aura_row_of(cache, seq->k, cache->layout.k.dim, h, t);
    aura_mean_reference(cache, head, rows, n);
}

static void close_keys(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t h,
                       uint64_t closed, uint32_t first, uint32_t end)
{
    uint64_t page = tile / AURA_PAGE_TILES;
    uint8_t *head = aura_head_of(cache, seq, (size_t)page, h);
    int reference = aura_has_reference(cache, UINT64_MAX, page);
    const uint16_t *rows[AURA_TILE];
    float r[AURA_TILE_DIM];
    if (reference && !aura_has_reference(cache, closed, page))
        make_reference(cache, seq, tile, h, head);
    if (reference)
        aura_load_reference(r, cache, head);
    for (uint32_t c = first; c < end; c++)
        rows[c] = aura_row_of(cache, seq->k, cache->layout.k.dim, h, tile * AURA_TILE + c);
    aura_encode_keys(cache, aura_tile_of(cache, seq, tile, h), h, first, end, rows, reference ? r : NULL);
}

static void close_values(const aura_cache *cache, const struct aura_sequence *seq, uint64_t tile, uint32_t h,
                         uint32_t first, uint32_t end)
{
    const uint16_t *rows[AURA_TILE];
    for (uint32_t c = first; c < end; c++)
        rows[c] = aura_row_of(cache, seq->v, cache->layout.v.dim, h, tile * AURA_TILE + c);
    aura_encode_values(cache, aura_tile_of(cache, seq, tile, h), h, first, end, rows);
}

uint64_t aura_close_tokens(const aura_cache *cache, const struct aura_sequence *seq, uint32_t h, uint64_t closed, uint64_t len)
{
    uint64_t end = aura_closed_of(cache, closed, len); /* all of one tile */
    uint64_t tile = closed / AURA_TILE, first = closed > cache->pinned ? closed : cache->pinned;
    if (first >= end || !aura_has_page(cache, seq, (size_t)(tile / AURA_PAGE_TILES)))
        return end; /* pinned tokens only, which are never encoded; or tokens that have slid out of the window */
    uint32_t from = (uint32_t)(first - tile * AURA_TILE), to = (uint32_t)(end - tile * AURA_TILE);
    if (seq->k)
        close_keys(cache, seq, tile, h, closed, from, to);
    if (seq->v)
        close_values(cache, seq, tile, h, from, to);
    return end;
}

/* ---- tokens ------------------------------------------------------------------------------------------------------- */

void aura_store_vector(const aura_cache *cache, const struct aura_sequence *seq, uint64_t token, uint32_t head, float *x,
                       int values)
{
    uint32_t dim = values ? cache->layout.v.dim : cache->layout.k.dim;
    uint16_t *rows = values ? seq->v : seq->k;
    if (!rows) {
        aura_store_plain(cache, aura_tile_of(cache, seq, token / AURA_TILE, head), (uint32_t)(token % AURA_TILE), x, values);
        return;
    }
    aura_rotate_rows(aura_row_of(cache, rows, dim, head, token), x, cache, 1, values);
}

/* One vector of a job. Other heads may be marking the same token. */
static void load_vector(float *x, const aura_cache *cache, const aura_append_job *job, size_t t, uint32_t head, int values)
{
    aura_load_vector(x, cache, values ? &job->v : &job->k, t, head, values);
    if (!job->bad || !aura_is_bad_vector(cache, x, values))
        return;
    memset(x, 0, (values ? cache->config.v_dim : cache->config.k_dim) * sizeof *x);
    __atomic_fetch_or(&job->bad[t], values ? 2 : 1, __ATOMIC_RELAXED);
}

/* Pages [first, end) of a sequence that a job brings and closes, and that have no pinned tokens. */
struct inner {
    uint64_t first, end;
};

static struct inner inner_of(const aura_cache *cache, const aura_append_job *job, const struct aura_sequence *seq)
{
    const uint64_t begin = seq->len > cache->pinned ? seq->len : cache->pinned, len = seq->len + job->tokens;
    const uint64_t settled = aura_settled(len, aura_closed_of(cache, seq->closed, len), seq->k || seq->v);
    struct inner in = {aura_pages_of(begin), settled / AURA_PAGE};
    if (in.end < in.first)
        in.end = in.first;
    return in;
}

/* One side of a tile of an inner page. */
static void fill_side(const aura_cache *cache, const struct aura_sequence *seq, const aura_append_job *job, uint64_t tile,
                      uint32_t head, int values)
{
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    uint8_t *at = aura_tile_of(cache, seq, tile, head), *page = aura_head_of(cache, seq, (size_t)(tile / AURA_PAGE_TILES), head);
    const int reference = !values && aura_has_reference(cache, UINT64_MAX, tile / AURA_PAGE_TILES);
    uint16_t row[AURA_TILE * AURA_TILE_DIM];
    const uint16_t *rows[AURA_TILE];
    float x[AURA_LANES * AURA_TILE_DIM];
    for (uint32_t c = 0; c < AURA_TILE; c += AURA_LANES) {
        for (uint32_t i = 0; i < AURA_LANES; i++) {
            rows[c + i] = row + (c + i) * side->dim;
            load_vector(x + i * side->dim, cache, job, (size_t)(tile * AURA_TILE + c + i - seq->len), head, values);
            if (!aura_is_packed(side->kind))
                aura_store_plain(cache, at, c + i, x + i * side->dim, values);
        }
        if (aura_is_packed(side->kind))
            aura_rotate_rows(row + c * side->dim, x, cache, AURA_LANES, values);
    }
    if (!aura_is_packed(side->kind))
        return;
    if (reference && tile % AURA_PAGE_TILES == 0)
        aura_mean_reference(cache, page, rows, AURA_TILE);
    if (reference)
        aura_load_reference(x, cache, page);
    if (values)
        aura_encode_values(cache, at, head, 0, AURA_TILE, rows);
    else
        aura_encode_keys(cache, at, head, 0, AURA_TILE, rows, reference ? x : NULL);
}

/* All tokens of a job but those of inner pages, in their order: rows are used again and again. */
static void append_outer(const aura_cache *cache, const struct aura_sequence *seq, const aura_append_job *job, uint32_t head)
{
    const struct inner inner = inner_of(cache, job, seq);
    const uint64_t first = inner.first * AURA_PAGE, end = inner.end * AURA_PAGE;
    uint64_t closed = seq->closed;
    float x[AURA_TILE_DIM];
    for (size_t t = 0; t < job->tokens; t++) {
        if (first < end && seq->len + t == first) {
            while ((seq->k || seq->v) && closed < first) /* tiles that wait for the tokens that are left out */
                closed = aura_close_tokens(cache, seq, head, closed, closed / AURA_TILE * AURA_TILE + AURA_TILE + cache->rollback);
            closed = seq->k || seq->v ? end : 0;
            t = (size_t)(end - seq->len);
            if (t == job->tokens)
                return;
        }
        const int here = aura_is_here(cache, seq, (seq->len + t) / AURA_PAGE);
        for (int values = 0; values < 2 && (here || job->bad); values++) { /* all ranks say what was bad */
            load_vector(x, cache, job, t, head, values);
            if (here)
                aura_store_vector(cache, seq, seq->len + t, head, x, values);
        }
        closed = aura_close_tokens(cache, seq, head, closed, seq->len + t + 1);
    }
}

/* What is bad in a page of another rank. */
static void mark_bad(const aura_cache *cache, const struct aura_sequence *seq, const aura_append_job *job, uint64_t page,
                     uint32_t head)
{
    float x[AURA_TILE_DIM];
    for (uint64_t token = page * AURA_PAGE; job->bad && token < (page + 1) * AURA_PAGE; token++)
        for (int values = 0; values < 2; values++)
            load_vector(x, cache, job, (size_t)(token - seq->len), head, values);
}

void aura_append_item(void *work, size_t i)
{
    const struct aura_append *a = work;
    const size_t heads = a->cache->config.kv_heads, part = i / (a->n_jobs * heads);
    const uint32_t head = (uint32_t)(i % heads);
    const aura_append_job *job = &a->jobs[i / heads % a->n_jobs];
    const struct aura_sequence *seq = seq_of(a->cache, job->seq);
    if (part == 0) {
        append_outer(a->cache, seq, job, head);
        return;
    }
    const struct inner inner = inner_of(a->cache, job, seq);
    const uint64_t page = inner.first + part - 1;
    if (page < inner.end && !aura_is_here(a->cache, seq, page)) {
        mark_bad(a->cache, seq, job, page, head);
        return;
    }
    for (uint64_t tile = page * AURA_PAGE_TILES; page < inner.end && tile < (page + 1) * AURA_PAGE_TILES; tile++) {
        fill_side(a->cache, seq, job, tile, head, 0);
        fill_side(a->cache, seq, job, tile, head, 1);
    }
}

/* ---- the call ----------------------------------------------------------------------------------------------------- */

static aura_status check_job(struct aura_call call, const aura_cache *cache, const aura_append_job *jobs, size_t i)
{
    const aura_config *c = &cache->config;
    const aura_append_job *job = &jobs[i];
    aura_status status = aura_check_call(call, job, sizeof *job);
    struct aura_sequence *seq = status ? NULL : aura_find_seq(call, cache, job->seq);
    if (status)
        return status;
    if (!seq)
        return AURA_BAD_ARGUMENT;
    for (size_t j = 0; j < i; j++)
        if (jobs[j].seq == job->seq)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: jobs %zu and %zu are both of sequence %u", call.name, j, i,
                             job->seq);
    if (!aura_takes_at_once(c->window, c->max_queries, job->tokens))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u tokens at once; a cache with a window takes max_queries = %u",
                         call.name, job->tokens, c->max_queries);
    return aura_check_input(call, cache, job->tokens, &job->k, &job->v);
}

static struct aura_given given_of(const void *jobs, size_t i)
{
    const aura_append_job *job = (const aura_append_job *)jobs + i;
    struct aura_given in = {job->tokens, &job->k, &job->v, job->bad != NULL};
    return in;
}

aura_status aura_append_check(struct aura_call call, struct aura_append *a)
{
    aura_status status;
    a->list = NULL;
    a->inner = 0;
    for (size_t i = 0; i < a->n_jobs; i++)
        if ((status = check_job(call, a->cache, a->jobs, i)))
            return status;
    if ((status = aura_check_vectors(call, a->cache, given_of, a->jobs, a->n_jobs)))
        return status;
    for (size_t i = a->n_jobs; i-- > 0;) {
        struct aura_sequence *seq = seq_of(a->cache, a->jobs[i].seq);
        seq->next = a->list;
        seq->wanted = seq->len + a->jobs[i].tokens;
        a->list = seq;
        const struct inner inner = inner_of(a->cache, &a->jobs[i], seq);
        a->inner = inner.end - inner.first > a->inner ? (size_t)(inner.end - inner.first) : a->inner;
    }
    return AURA_OK;
}

aura_status aura_append_begin(struct aura_call call, const struct aura_append *a)
{
    aura_status status = aura_pages_grow(call, a->cache, a->list);
    for (size_t i = 0; !status && i < a->n_jobs; i++)
        if (a->jobs[i].bad)
            memset(a->jobs[i].bad, 0, a->jobs[i].tokens);
    return status;
}

/* Whether this is the step of few sequences, no tile of which closes: it takes no longer than to hand it to threads. */
static int is_short(const aura_cache *cache, const struct aura_sequence *list)
{
    uint64_t tokens = 0;
    for (const struct aura_sequence *seq = list; seq; seq = seq->next) {
        tokens += seq->wanted - seq->len;
        if (aura_closed_of(cache, seq->closed, seq->wanted) != seq->closed)
            return 0;
    }
    return tokens * cache->config.kv_heads <= 16;
}

void aura_append_run(const struct aura_append *a)
{
    const size_t items = a->n_jobs * a->cache->config.kv_heads * (1 + a->inner);
    if (is_short(a->cache, a->list))
        aura_run_here(items, aura_append_item, (void *)a);
    else
        aura_run(a->cache->ctx, items, aura_append_item, (void *)a);
}

void aura_append_end(const struct aura_append *a)
{
    aura_cache *cache = a->cache;
    pthread_mutex_lock(&cache->lock);
    for (struct aura_sequence *seq = a->list; seq; seq = seq->next) {
        seq->len = seq->wanted;
        const uint64_t closed = aura_closed_of(cache, seq->closed, seq->len);
        cache->tiles_closed += (closed / AURA_TILE - seq->closed / AURA_TILE) * cache->config.kv_heads;
        seq->closed = closed;
        aura_count_tokens(cache, seq);
    }
    pthread_mutex_unlock(&cache->lock);
}

aura_status aura_append(aura_cache *cache, const aura_append_job *jobs, size_t n_jobs)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_append"};
    struct aura_append a = {cache, jobs, n_jobs, NULL, 0};
    aura_status status;
    if (!cache || (!jobs && n_jobs))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, cache ? "jobs" : "cache");
    const uint64_t start = aura_nanoseconds();
    if ((status = aura_append_check(call, &a)) || (status = aura_append_begin(call, &a)))
        return status;
    aura_append_run(&a);
    aura_append_end(&a);
    aura_count_time(cache, AURA_TIME_APPEND, start);
    return AURA_OK;
}
