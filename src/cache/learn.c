/* What a cache learns of its readers: it adds up q q' of the queries that attention sees, and when it has seen enough of them
 * that is the metric of its keys.
 *
 * One call after the other counts its queries, in the order of its jobs and, of each KV head, in one order of sums: the bytes of a
 * cache that learns depend on its calls, and on nothing else. */
#include "../base/exact.h"
#include "attend.h"

#include <math.h>
#include <string.h>

#include "../base/fpmode.h"
#include "../base/view.h"
#include "../metric.h"

/* Counting every step of a token took 2 % of a small model's time. So calls with few queries count only where the first
 * sequence's length is a multiple of 4: that of a conversation learns too, at a quarter of the price. */
enum { FEW_QUERIES = 4, OF_SMALL_STEPS = 4 };

struct aura_learning {
    pthread_mutex_t lock; /* of all but the last two */
    uint64_t positions;   /* counted */
    double *sum;          /* [kv_heads][k_dim * (k_dim + 1) / 2] of q q' over the heads of the group, lower triangles */
    double *scratch;
    float *triangle, *ready;
    struct aura_metric *made; /* [kv_heads] */
    _Atomic(struct aura_metric *) metric; /* made, once it is complete; NULL before */
    _Atomic int over;     /* nothing is counted any more */
};

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

int aura_learns(const aura_config *c)
{
    return c->flags & AURA_LEARN && aura_is_packed((uint32_t)c->format.k) && !c->k_metric;
}

size_t aura_learning_bytes(const aura_config *c)
{
    const size_t heads = c->kv_heads, triangle = aura_triangle(c->k_dim);
    if (!aura_learns(c))
        return 0;
    return padded(sizeof(struct aura_learning)) + padded(heads * triangle * sizeof(double)) +
           padded(aura_metric_scratch(aura_stored_dim(c->k_dim)) * sizeof(double)) + padded(triangle * sizeof(float)) +
           padded(heads * sizeof(struct aura_metric)) + heads * aura_metric_floats(aura_stored_dim(c->k_dim)) * sizeof(float);
}

aura_status aura_learning_make(struct aura_call call, aura_cache *cache)
{
    const aura_config *c = &cache->config;
    const size_t heads = c->kv_heads, triangle = aura_triangle(c->k_dim), bytes = aura_learning_bytes(c);
    void *memory;
    if (!bytes)
        return AURA_OK;
    aura_status status = aura_cache_alloc(call, cache, bytes, 64, &memory);
    if (status)
        return status;
    char *at = memset(memory, 0, bytes);
    struct aura_learning *l = memory;
    at += padded(sizeof *l), l->sum = (double *)(void *)at;
    at += padded(heads * triangle * sizeof *l->sum), l->scratch = (double *)(void *)at;
    at += padded(aura_metric_scratch(cache->layout.k.dim) * sizeof *l->scratch), l->triangle = (float *)(void *)at;
    at += padded(triangle * sizeof *l->triangle), l->made = (struct aura_metric *)(void *)at;
    at += padded(heads * sizeof *l->made), l->ready = (float *)(void *)at;
    atomic_init(&l->metric, NULL), atomic_init(&l->over, 0);
    if (pthread_mutex_init(&l->lock, NULL)) {
        aura_cache_free(cache, memory, bytes);
        return aura_fail(call.ctx, AURA_OUT_OF_MEMORY, "%s: the system has no mutex left", call.name);
    }
    cache->learning = l;
    return AURA_OK;
}

void aura_learning_unmake(aura_cache *cache)
{
    if (!cache->learning)
        return;
    pthread_mutex_destroy(&cache->learning->lock);
    aura_cache_free(cache, cache->learning, aura_learning_bytes(&cache->config));
}

const struct aura_metric *aura_learnt_metric(const aura_cache *cache, uint32_t head)
{
    const struct aura_metric *metric = atomic_load_explicit(&cache->learning->metric, memory_order_acquire);
    return metric ? &metric[head] : NULL;
}

/* ---- counting ------------------------------------------------------------------------------------------------------ */

/* The queries of a call that count: the first `left` positions of it. */
struct count {
    const struct aura_attend *a;
    struct aura_learning *l;
    uint64_t left;
};

static void count_query(double *sum, const float *q, uint32_t dim)
{
    double none = 0;
    for (uint32_t d = 0; d < dim; d++)
        none += q[d] * 0.0;
    if (!(none == 0)) /* a NaN or an Inf teaches nothing */
        return;
    for (uint32_t i = 0; i < dim; sum += ++i)
        for (uint32_t j = 0; j <= i; j++)
            sum[j] += (double)q[i] * q[j];
}

static void count_head(void *work, size_t head)
{
    const struct count *c = work;
    const struct aura_attend *a = c->a;
    const uint32_t dim = a->cache->config.k_dim, ratio = aura_ratio_of(a);
    double *sum = c->l->sum + head * aura_triangle(dim);
    uint64_t left = c->left;
    float q[AURA_TILE_DIM];
    for (size_t i = 0; i < a->n_jobs && left; i++) {
        const aura_input *view = &a->jobs[i].q;
        for (uint32_t t = 0; t < a->jobs[i].queries && left; t++, left--)
            for (uint32_t h = 0; h < ratio; h++) {
                aura_view_load(q, view, aura_view_strides(view, a->q_heads, dim), t, (uint32_t)head * ratio + h, dim);
                count_query(sum, q, dim);
            }
    }
}

void aura_learn_queries(const struct aura_attend *a)
{
    struct aura_learning *l = a->cache->learning;
    uint64_t queries = 0;
    if (!l || atomic_load_explicit(&l->over, memory_order_acquire))
        return;
    for (size_t i = 0; i < a->n_jobs; i++)
        queries += a->jobs[i].queries;
    if (!queries || (queries <= FEW_QUERIES && a->plan[0].len % OF_SMALL_STEPS))
        return;
    pthread_mutex_lock(&l->lock);
    struct count c = {a, l, AURA_LEARN_POSITIONS - l->positions};
    c.left = c.left < queries ? c.left : queries;
    aura_run(a->cache->ctx, a->cache->config.kv_heads, count_head, &c);
    l->positions += c.left;
    pthread_mutex_unlock(&l->lock);
}

/* The metric of a KV head, in the scale that fits f32. Returns 0 where nothing was learnt that makes sense. */
static int make_metric(const aura_cache *cache, struct aura_learning *l, uint32_t head)
{
    const uint32_t dim = cache->config.k_dim;
    const double *sum = l->sum + head * aura_triangle(dim);
    const float *inverse = cache->k.inverse_balance;
    double trace = 0;
    for (uint32_t d = 0; d < dim; d++)
        trace += sum[aura_triangle(d) + d];
    for (size_t i = 0; i < aura_triangle(dim); i++)
        l->triangle[i] = trace > 0 ? (float)(sum[i] / trace) : 0;
    return aura_metric_init(&l->made[head], l->ready + head * aura_metric_floats(cache->layout.k.dim), l->scratch, l->triangle,
                            dim, inverse ? inverse + (size_t)head * dim : NULL, &cache->k.rotate);
}

void aura_learn_enough(const aura_cache *cache)
{
    struct aura_learning *l = cache->learning;
    if (!l || atomic_load_explicit(&l->over, memory_order_acquire))
        return;
    pthread_mutex_lock(&l->lock);
    if (l->positions == AURA_LEARN_POSITIONS && !atomic_load_explicit(&l->over, memory_order_relaxed)) {
        const uint64_t mode = aura_fpmode_enter();
        int good = 1;
        for (uint32_t h = 0; good && h < cache->config.kv_heads; h++)
            good = make_metric(cache, l, h);
        if (good)
            atomic_store_explicit(&l->metric, l->made, memory_order_release);
        atomic_store_explicit(&l->over, 1, memory_order_release);
        aura_fpmode_leave(mode);
    }
    pthread_mutex_unlock(&l->lock);
}

/* ---- files ----------------------------------------------------------------------------------------------------------- */

uint64_t aura_learnt_copy(const aura_cache *cache, double *sum)
{
    struct aura_learning *l = cache->learning;
    pthread_mutex_lock(&l->lock);
    memcpy(sum, l->sum, cache->config.kv_heads * aura_triangle(cache->config.k_dim) * sizeof *sum);
    const uint64_t positions = l->positions;
    pthread_mutex_unlock(&l->lock);
    return positions;
}

void aura_learnt_set(aura_cache *cache, const double *sum, uint64_t positions)
{
    struct aura_learning *l = cache->learning;
    pthread_mutex_lock(&l->lock);
    if (!l->positions) {
        memcpy(l->sum, sum, cache->config.kv_heads * aura_triangle(cache->config.k_dim) * sizeof *sum);
        l->positions = positions;
    }
    pthread_mutex_unlock(&l->lock);
    aura_learn_enough(cache);
}
