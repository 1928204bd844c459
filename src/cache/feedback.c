/* What a cache was calibrated with: balance and metrics, copied from its configuration and made ready. */
#include "../base/exact.h"
#include "cache.h"

#include <string.h>

#include "../base/numbers.h"
#include "../metric.h"

static const char *const names[AURA_NUMBERS] = {"balance", "v_balance", "k_metric", "v_metric"};

static size_t padded(size_t bytes)
{
    return (bytes + 63) / 64 * 64;
}

static int is_metric(int i)
{
    return i == AURA_K_METRIC || i == AURA_V_METRIC;
}

aura_status aura_check_numbers(struct aura_call call, const aura_config *c)
{
    for (int i = 0; i < AURA_NUMBERS; i++) {
        const int values = aura_numbers_of_values(i);
        if (!aura_numbers(c, i))
            continue;
        if (!aura_is_packed((uint32_t)(values ? c->format.v : c->format.k)))
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: plain %s take no %s", call.name, values ? "values" : "keys",
                             is_metric(i) ? "metric" : "balance");
        aura_status status = AURA_OK;
        if (!is_metric(i) && (status = aura_check_balance(call, aura_numbers(c, i), c->kv_heads, aura_numbers_dim(c, i))))
            return status;
    }
    return AURA_OK;
}

/* The factors and one over them; or the triangles, the list of metrics, what kernels read. */
static size_t bytes_of(const aura_config *c, int i)
{
    const size_t heads = c->kv_heads, dim = aura_numbers_dim(c, i);
    if (!is_metric(i))
        return 2 * heads * dim * sizeof(float);
    return padded(heads * aura_triangle((uint32_t)dim) * sizeof(float)) + padded(heads * sizeof(struct aura_metric)) +
           heads * aura_metric_floats(aura_stored_dim((uint32_t)dim)) * sizeof(float);
}

size_t aura_numbers_bytes(const aura_config *c)
{
    size_t bytes = 0;
    for (int i = 0; i < AURA_NUMBERS; i++)
        bytes += aura_numbers(c, i) ? bytes_of(c, i) : 0;
    return bytes;
}

static void make_balance(aura_cache *cache, int i, float *memory)
{
    const aura_config *c = &cache->config;
    struct aura_codec_side *side = aura_numbers_of_values(i) ? &cache->v : &cache->k;
    const size_t n = (size_t)c->kv_heads * aura_numbers_dim(c, i);
    side->balance = memcpy(memory, aura_numbers(c, i), n * sizeof *memory);
    side->inverse_balance = memory + n;
    for (size_t d = 0; d < n; d++)
        side->inverse_balance[d] = 1 / side->balance[d];
}

static aura_status make_metrics(struct aura_call call, aura_cache *cache, int i, char *memory, double *scratch)
{
    const uint32_t heads = cache->config.kv_heads, dim = aura_numbers_dim(&cache->config, i), stored = aura_stored_dim(dim);
    struct aura_codec_side *side = aura_numbers_of_values(i) ? &cache->v : &cache->k;
    const size_t triangles = heads * aura_triangle(dim) * sizeof(float);
    side->triangle = memcpy(memory, aura_numbers(&cache->config, i), triangles);
    side->metric = (struct aura_metric *)(void *)(memory + padded(triangles));
    float *ready = (float *)(void *)(memory + padded(triangles) + padded(heads * sizeof *side->metric));
    for (uint32_t h = 0; h < heads; h++, ready += aura_metric_floats(stored))
        if (!aura_metric_init(&side->metric[h], ready, scratch, side->triangle + h * aura_triangle(dim), dim,
                              side->balance ? side->inverse_balance + (size_t)h * dim : NULL, &side->rotate))
            return aura_fail(call.ctx, AURA_BAD_VALUE,
                             "%s: %s of KV head %u has a NaN or Inf, or an error that costs less than nothing", call.name,
                             names[i], h);
    return AURA_OK;
}

aura_status aura_numbers_make(struct aura_call call, aura_cache *cache)
{
    aura_config *c = &cache->config;
    const uint32_t dim = cache->layout.k.dim > cache->layout.v.dim ? cache->layout.k.dim : cache->layout.v.dim;
    const size_t scratch_bytes = aura_metric_scratch(dim) * sizeof(double);
    void *scratch = NULL, *memory;
    aura_status status = AURA_OK;
    if (c->k_metric || c->v_metric)
        status = aura_take_memory(call, scratch_bytes, &scratch);
    for (int i = 0; !status && i < AURA_NUMBERS; i++) { /* balance comes first: metrics need it */
        if (!aura_numbers(c, i) || (status = aura_cache_alloc(call, cache, bytes_of(c, i), 64, &memory)))
            continue;
        if (is_metric(i))
            status = make_metrics(call, cache, i, memory, scratch);
        else
            make_balance(cache, i, memory);
        *aura_numbers_at(c, i) = memory;
    }
    aura_give_memory(call.ctx, scratch, scratch_bytes);
    return status;
}

void aura_numbers_unmake(aura_cache *cache)
{
    const aura_config *c = &cache->config;
    const float *mine[AURA_NUMBERS] = {cache->k.balance, cache->v.balance, cache->k.triangle, cache->v.triangle};
    for (int i = 0; i < AURA_NUMBERS; i++)
        aura_cache_free(cache, (float *)mine[i], bytes_of(c, i));
}
