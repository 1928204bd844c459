/* Calibration: how strong each channel of the keys and of the queries is, and the balance that follows from it.
 *
 * The codec spreads its noise evenly over the channels of lambda * (key - reference); the query sees it divided by
 * lambda. With K the energy of a channel of the keys and Q that of the queries, the noise in a score is about
 * sum(lambda^2 K) * sum(Q / lambda^2), which is smallest (Cauchy-Schwarz) for lambda^4 = Q / K up to a common factor.
 *
 * A key counts with its distance from its page's reference, the mean of the page's first tile, as in the cache. That is
 * known only when the tile is complete, so the keys of a first tile wait until then. The other way, sums of k and k^2
 * put together at the end, would lose all digits where a channel is a large constant and a little signal, and those are
 * the channels that the reference is for. */
#include "../base/exact.h"

#include <math.h>
#include <string.h>

#include "../../include/aura_file.h"
#include "../base/arguments.h"
#include "../base/fpmode.h"
#include "../base/view.h"
#include "../metric.h"

enum {
    PINNED = 4, /* tokens at the start of a text that the cache does not encode */
    TILE = 32,  /* tokens */
    PAGE = 256
};

/* An energy below this share of the head's mean is noise of the model's own arithmetic, or none at all. */
#define FLOOR 0x1p-60

#define LARGEST_BALANCE 8.0

/* With feedback, errors go where they cost little, and what is left of the balance is to make the channels alike: measured on a
 * model, these powers of a channel's energy and of what its errors cost are best. */
#define KEY_POWER 0.375
#define QUERY_POWER 0.125

struct aura_calibration {
    const aura_ctx *ctx;
    uint32_t q_heads, kv_heads, dim, v_dim;
    size_t bytes;
    uint64_t position, v_position; /* of the next key and of the next value in its text */
    uint64_t n_keys, n_queries, n_values; /* in the sums, per KV head */
    double *key_energy;          /* [kv_heads][dim] sum of (key - reference)^2 */
    double *query_products;      /* [kv_heads][dim * (dim + 1) / 2] sum of q q' over the heads of the group, lower triangles */
    double *value_energy;        /* [kv_heads][v_dim] sum of value^2 */
    double *reference;           /* [kv_heads][dim] of the page that `position` is in */
    float *tile;                 /* [TILE][kv_heads][dim], its first one */
};

static aura_status check_config(struct aura_call call, const aura_calibration_config *config)
{
    aura_status status;
    if (!call.ctx || !config)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, call.ctx ? "config" : "ctx");
    if (config->size != sizeof *config)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: config.size is %zu, this library knows %zu", call.name,
                         config->size, sizeof *config);
    if ((status = aura_check_heads(call, config->q_heads, config->kv_heads)))
        return status;
    if ((status = aura_check_cache_dim(call, "k_dim", config->k_dim)))
        return status;
    return config->v_dim ? aura_check_cache_dim(call, "v_dim", config->v_dim) : AURA_OK;
}

aura_status aura_calibration_create(const aura_ctx *ctx, const aura_calibration_config *config,
                                    aura_calibration **calibration)
{
    struct aura_call call = {ctx, "aura_calibration_create"};
    aura_status status = check_config(call, config);
    if (status)
        return status;
    if (!calibration)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: calibration is NULL", call.name);
    const uint32_t v_dim = config->v_dim ? config->v_dim : config->k_dim;
    size_t channels = (size_t)config->kv_heads * config->k_dim, header = (sizeof(aura_calibration) + 63) / 64 * 64;
    size_t triangles = config->kv_heads * aura_triangle(config->k_dim), values = (size_t)config->kv_heads * v_dim;
    size_t doubles = 2 * channels + triangles + values;
    size_t bytes = header + doubles * sizeof(double) + channels * TILE * sizeof(float); /* below 2^53: no overflow */
    char *memory = ctx->allocator.alloc(ctx->allocator.user, bytes, 64);
    if (!memory)
        return aura_fail(ctx, AURA_OUT_OF_MEMORY, "%s: the allocator has no %zu bytes", call.name, bytes);
    aura_calibration *made = (aura_calibration *)memory;
    memset(memory, 0, header + doubles * sizeof(double));
    made->ctx = ctx;
    made->q_heads = config->q_heads;
    made->kv_heads = config->kv_heads;
    made->dim = config->k_dim;
    made->v_dim = v_dim;
    made->bytes = bytes;
    made->key_energy = (double *)(memory + header);
    made->reference = made->key_energy + channels;
    made->query_products = made->reference + channels;
    made->value_energy = made->query_products + triangles;
    made->tile = (float *)(made->value_energy + values);
    *calibration = made;
    return AURA_OK;
}

void aura_calibration_destroy(aura_calibration *c)
{
    if (c)
        c->ctx->allocator.free(c->ctx->allocator.user, c, c->bytes);
}

static aura_status check_numbers(struct aura_call call, const char *what, const aura_input *view, uint32_t tokens,
                                 uint32_t heads, uint32_t dim)
{
    struct aura_strides strides = aura_view_strides(view, heads, dim);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < heads; h++) {
            float x[AURA_MAX_DIM];
            aura_view_load(x, view, strides, t, h, dim);
            for (uint32_t d = 0; d < dim; d++)
                if (!isfinite(x[d]))
                    return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: %s: token %u, head %u, channel %u is %g", call.name,
                                     what, t, h, d, (double)x[d]);
        }
    return AURA_OK;
}

/* Everything about a tensor, its values included, before any of it is counted. */
static aura_status check_tensor(struct aura_call call, const char *what, const aura_input *view, uint32_t tokens,
                                uint32_t heads, uint32_t dim)
{
    aura_status status;
    if ((status = aura_check_view(call, what, view)) ||
        (status = aura_check_view_extent(call, what, view, tokens, heads, dim)))
        return status;
    uint64_t mode = aura_fpmode_enter();
    status = check_numbers(call, what, view, tokens, heads, dim);
    aura_fpmode_leave(mode);
    return status;
}

static void add_distance(aura_calibration *c, uint32_t head, const float *key)
{
    double *energy = c->key_energy + (size_t)head * c->dim, *reference = c->reference + (size_t)head * c->dim;
    for (uint32_t d = 0; d < c->dim; d++) {
        double distance = key[d] - reference[d];
        energy[d] += distance * distance;
    }
}

/* The first tile of a page is complete: `first` of its tokens are pinned. */
static void close_tile(aura_calibration *c, uint32_t first)
{
    size_t channels = (size_t)c->kv_heads * c->dim;
    memset(c->reference, 0, channels * sizeof *c->reference);
    for (uint32_t t = first; t < TILE; t++)
        for (size_t i = 0; i < channels; i++)
            c->reference[i] += c->tile[t * channels + i];
    for (size_t i = 0; i < channels; i++)
        c->reference[i] /= TILE - first;
    for (uint32_t t = first; t < TILE; t++)
        for (uint32_t h = 0; h < c->kv_heads; h++)
            add_distance(c, h, c->tile + t * channels + (size_t)h * c->dim);
    c->n_keys += TILE - first;
}

aura_status aura_calibration_keys(aura_calibration *c, uint32_t tokens, const aura_input *k)
{
    struct aura_call call = {c ? c->ctx : NULL, "aura_calibration_keys"};
    if (!c)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: calibration is NULL", call.name);
    aura_status status = tokens ? check_tensor(call, "k", k, tokens, c->kv_heads, c->dim) : AURA_OK;
    if (status || !tokens)
        return status;
    uint64_t mode = aura_fpmode_enter();
    struct aura_strides strides = aura_view_strides(k, c->kv_heads, c->dim);
    for (uint32_t t = 0; t < tokens; t++, c->position++) {
        uint32_t in_page = (uint32_t)(c->position % PAGE);
        for (uint32_t h = 0; h < c->kv_heads; h++) {
            float key[AURA_MAX_DIM];
            aura_view_load(key, k, strides, t, h, c->dim);
            if (in_page < TILE)
                memcpy(c->tile + ((size_t)in_page * c->kv_heads + h) * c->dim, key, c->dim * sizeof *key);
            else
                add_distance(c, h, key);
        }
        if (in_page == TILE - 1)
            close_tile(c, c->position < PAGE ? PINNED : 0);
        else if (in_page >= TILE)
            c->n_keys++;
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

aura_status aura_calibration_queries(aura_calibration *c, uint32_t tokens, const aura_input *q)
{
    struct aura_call call = {c ? c->ctx : NULL, "aura_calibration_queries"};
    if (!c)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: calibration is NULL", call.name);
    aura_status status = tokens ? check_tensor(call, "q", q, tokens, c->q_heads, c->dim) : AURA_OK;
    if (status || !tokens)
        return status;
    uint64_t mode = aura_fpmode_enter();
    uint32_t group = c->q_heads / c->kv_heads;
    struct aura_strides strides = aura_view_strides(q, c->q_heads, c->dim);
    for (uint32_t t = 0; t < tokens; t++)
        for (uint32_t h = 0; h < c->q_heads; h++) {
            float query[AURA_MAX_DIM];
            double *products = c->query_products + (h / group) * aura_triangle(c->dim);
            aura_view_load(query, q, strides, t, h, c->dim);
            for (uint32_t i = 0; i < c->dim; products += ++i)
                for (uint32_t j = 0; j <= i; j++)
                    products[j] += (double)query[i] * query[j];
        }
    c->n_queries += (uint64_t)tokens * group;
    aura_fpmode_leave(mode);
    return AURA_OK;
}

aura_status aura_calibration_values(aura_calibration *c, uint32_t tokens, const aura_input *v)
{
    struct aura_call call = {c ? c->ctx : NULL, "aura_calibration_values"};
    if (!c)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: calibration is NULL", call.name);
    aura_status status = tokens ? check_tensor(call, "v", v, tokens, c->kv_heads, c->v_dim) : AURA_OK;
    if (status || !tokens)
        return status;
    uint64_t mode = aura_fpmode_enter();
    struct aura_strides strides = aura_view_strides(v, c->kv_heads, c->v_dim);
    for (uint32_t t = 0; t < tokens; t++, c->v_position++) {
        if (c->v_position < PINNED)
            continue;
        for (uint32_t h = 0; h < c->kv_heads; h++) {
            float value[AURA_MAX_DIM];
            double *energy = c->value_energy + (size_t)h * c->v_dim;
            aura_view_load(value, v, strides, t, h, c->v_dim);
            for (uint32_t d = 0; d < c->v_dim; d++)
                energy[d] += (double)value[d] * value[d];
        }
        c->n_values++;
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

aura_status aura_calibration_next_text(aura_calibration *c)
{
    if (!c)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_calibration_next_text: calibration is NULL");
    c->v_position = 0;
    c->position = 0; /* an incomplete tile is overwritten before anybody looks at it */
    return AURA_OK;
}

/* 0 where the whole head has no energy. */
static double floor_of(const double *energy, uint32_t dim)
{
    double sum = 0;
    for (uint32_t d = 0; d < dim; d++)
        sum += energy[d];
    return sum / dim * FLOOR;
}

/* A channel without energy on one side can take any factor: noise where no query looks costs nothing, nor does room for
 * keys that are all 0. It gets what the floor gives, which is a limit of the range. But it must not push the others there
 * too, so the geometric mean is that of the channels that have energy on both sides. Without any: no balance. */
static void balance_head(float *balance, const double *key_energy, const double *query_energy, uint32_t dim, double key_power,
                         double query_power)
{
    double log_factor[AURA_MAX_DIM], sum = 0;
    double key_floor = floor_of(key_energy, dim), query_floor = floor_of(query_energy, dim);
    uint32_t alive = 0;
    for (uint32_t d = 0; d < dim; d++) {
        double key = fmax(key_energy[d], key_floor), query = fmax(query_energy[d], query_floor);
        int both = key_energy[d] > key_floor && query_energy[d] > query_floor;
        log_factor[d] = key > 0 && query > 0 ? query_power * log2(query) - key_power * log2(key) : 0;
        sum += both ? log_factor[d] : 0;
        alive += (uint32_t)both;
    }
    for (uint32_t d = 0; d < dim; d++) {
        double factor = alive ? exp2(log_factor[d] - sum / alive) : 1;
        balance[d] = (float)fmin(fmax(factor, 1 / LARGEST_BALANCE), LARGEST_BALANCE);
    }
}

/* The diagonal of a triangle: energies. */
static void diagonal(double *energy, const double *triangle, uint32_t dim)
{
    for (uint32_t d = 0; d < dim; d++)
        energy[d] = triangle[aura_triangle(d) + d];
}

/* Both balances of keys. Sums do for means: their counts are the same for all channels. */
static aura_status key_balance(const char *name, const aura_calibration *c, float *balance, double key_power, double query_power)
{
    if (!c || !balance)
        return aura_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", name, c ? "balance" : "calibration");
    if (!c->n_keys || !c->n_queries)
        return aura_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: no %s yet", name,
                         c->n_keys ? "queries" : "keys: a text counts from its 32nd token on");
    uint64_t mode = aura_fpmode_enter();
    for (uint32_t h = 0; h < c->kv_heads; h++) {
        double query_energy[AURA_MAX_DIM];
        diagonal(query_energy, c->query_products + h * aura_triangle(c->dim), c->dim);
        balance_head(balance + (size_t)h * c->dim, c->key_energy + (size_t)h * c->dim, query_energy, c->dim, key_power,
                     query_power);
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

aura_status aura_calibration_balance(const aura_calibration *c, float *balance)
{
    return key_balance("aura_calibration_balance", c, balance, 0.25, 0.25);
}

aura_status aura_calibration_k_balance(const aura_calibration *c, float *balance)
{
    return key_balance("aura_calibration_k_balance", c, balance, KEY_POWER, QUERY_POWER);
}

aura_status aura_calibration_v_balance(const aura_calibration *c, const float *v_metric, float *balance)
{
    const char *name = "aura_calibration_v_balance";
    if (!c || !v_metric || !balance)
        return aura_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", name,
                         !c ? "calibration" : v_metric ? "balance" : "v_metric");
    if (!c->n_values)
        return aura_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: no values yet: a text counts from its 5th token on", name);
    for (uint32_t h = 0; h < c->kv_heads; h++)
        for (uint32_t d = 0; d < c->v_dim; d++) {
            const float x = v_metric[h * aura_triangle(c->v_dim) + aura_triangle(d) + d];
            if (!(x >= 0 && x < INFINITY))
                return aura_fail(c->ctx, AURA_BAD_VALUE, "%s: KV head %u, channel %u has %g on the diagonal", name, h, d,
                                 (double)x);
        }
    uint64_t mode = aura_fpmode_enter();
    for (uint32_t h = 0; h < c->kv_heads; h++) {
        double cost[AURA_MAX_DIM];
        for (uint32_t d = 0; d < c->v_dim; d++)
            cost[d] = v_metric[h * aura_triangle(c->v_dim) + aura_triangle(d) + d];
        balance_head(balance + (size_t)h * c->v_dim, c->value_energy + (size_t)h * c->v_dim, cost, c->v_dim, KEY_POWER,
                     QUERY_POWER);
    }
    aura_fpmode_leave(mode);
    return AURA_OK;
}

aura_status aura_calibration_metric(const aura_calibration *c, float *k_metric)
{
    const char *name = "aura_calibration_metric";
    if (!c || !k_metric)
        return aura_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", name, c ? "k_metric" : "calibration");
    if (!c->n_queries)
        return aura_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: no queries yet", name);
    uint64_t mode = aura_fpmode_enter();
    for (size_t i = 0; i < c->kv_heads * aura_triangle(c->dim); i++)
        k_metric[i] = (float)(c->query_products[i] / (double)c->n_queries);
    aura_fpmode_leave(mode);
    return AURA_OK;
}
