/* What a cache does to recorded attention. */
#include "../../include/aura_file.h"
#include "../../include/aura_rows.h"
#include "../../src/format.h"
#include "recording.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ERROR_BYTES = 256, PINNED = 4 };

__attribute__((format(printf, 2, 3))) static int fail(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, ERROR_BYTES, format, arguments);
    va_end(arguments);
    return -1;
}

/* ---- the file ------------------------------------------------------------------------------------------------------ */

static int by_number(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

uint32_t *recording_layers(const struct safetensors *file, size_t *count)
{
    uint32_t *layers = malloc((file->count + 1) * sizeof *layers);
    *count = 0;
    for (size_t i = 0; layers && i < file->count; i++) {
        uint32_t layer;
        char name[32];
        if (sscanf(file->tensors[i].name, "layer.%9u.q", &layer) != 1)
            continue;
        snprintf(name, sizeof name, "layer.%u.q", layer); /* sscanf ignores what follows a number */
        if (!strcmp(file->tensors[i].name, name))
            layers[(*count)++] = layer;
    }
    if (layers)
        qsort(layers, *count, sizeof *layers, by_number);
    return layers;
}

/* A tensor of three dimensions as f32. The library widens it from a copy, because the file aligns nothing. */
static float *load_tensor(const aura_ctx *ctx, const struct safetensors *file, uint32_t layer, char which, size_t shape[3],
                          char *error)
{
    char name[32];
    snprintf(name, sizeof name, "layer.%u.%c", layer, which);
    const struct tensor *t = safetensors_find(file, name);
    if (!t)
        return fail(error, "there is no %s", name), NULL;
    if (!tensor_dtype_bytes(t->dtype))
        return fail(error, "%s is %s: only F16, BF16 and F32 can be read", name, t->dtype), NULL;
    if (t->rank != 3 || !t->elements || t->shape[0] > UINT32_MAX || t->shape[1] > UINT32_MAX || t->shape[2] > UINT32_MAX)
        return fail(error, "%s must be [tokens][heads][dim], not empty", name), NULL;
    memcpy(shape, t->shape, 3 * sizeof *shape);
    void *copy = malloc(t->bytes);
    float *data = t->elements <= SIZE_MAX / sizeof *data ? malloc(t->elements * sizeof *data) : NULL;
    aura_kv_copy_args a = AURA_KV_COPY_ARGS_INIT;
    a.tokens = a.capacity = shape[0], a.heads = (uint32_t)shape[1], a.dim = (uint32_t)shape[2], a.token_major = 1;
    a.in = copy, a.cache = data, a.cache_dtype = AURA_F32;
    a.in_dtype = !strcmp(t->dtype, "F32") ? AURA_F32 : !strcmp(t->dtype, "F16") ? AURA_F16 : AURA_BF16;
    if (copy)
        memcpy(copy, t->data, t->bytes);
    int bad = !copy || !data ? fail(error, "%s: out of memory", name) : 0;
    if (!bad && aura_kv_copy(ctx, &a))
        bad = fail(error, "%s: %s", name, aura_last_error());
    free(copy);
    return bad ? free(data), NULL : data;
}

int recording_load(struct recording *r, const aura_ctx *ctx, const struct safetensors *file, uint32_t layer, char *error)
{
    size_t q[3], k[3], v[3];
    memset(r, 0, sizeof *r);
    if (!(r->q = load_tensor(ctx, file, layer, 'q', q, error)) || !(r->k = load_tensor(ctx, file, layer, 'k', k, error)) ||
        !(r->v = load_tensor(ctx, file, layer, 'v', v, error)))
        return -1;
    if (k[0] != v[0] || k[1] != v[1])
        return fail(error, "layer.%u: k has %zu tokens of %zu heads, v has %zu of %zu", layer, k[0], k[1], v[0], v[1]);
    if (q[2] != k[2])
        return fail(error, "layer.%u: q has dim %zu, k has %zu", layer, q[2], k[2]);
    if (q[1] % k[1])
        return fail(error, "layer.%u: %zu query heads cannot share %zu KV heads", layer, q[1], k[1]);
    if (q[0] > k[0])
        return fail(error, "layer.%u: %zu queries at the end of %zu tokens", layer, q[0], k[0]);
    r->layer = layer, r->tokens = (uint32_t)k[0], r->queries = (uint32_t)q[0];
    r->q_heads = (uint32_t)q[1], r->kv_heads = (uint32_t)k[1], r->k_dim = (uint32_t)k[2], r->v_dim = (uint32_t)v[2];
    return 0;
}

void recording_free(struct recording *r)
{
    free(r->q), free(r->k), free(r->v);
    memset(r, 0, sizeof *r);
}

/* ---- attention in double ------------------------------------------------------------------------------------------- */

/* Eight sums side by side: a compiler may not reorder a single one, which would be slow. All dims of a cache are multiples of 8. */
static double dot(const float *a, const float *b, size_t n)
{
    double sum[8] = {0}, rest = 0;
    for (size_t i = 0; i + 8 <= n; i += 8)
        for (size_t k = 0; k < 8; k++)
            sum[k] += (double)a[i + k] * b[i + k];
    for (size_t i = n / 8 * 8; i < n; i++)
        rest += (double)a[i] * b[i];
    return ((sum[0] + sum[4]) + (sum[2] + sum[6])) + ((sum[1] + sum[5]) + (sum[3] + sum[7])) + rest;
}

/* Computes the logits of one row over the keys that it sees. Returns how many; *lse receives their log-sum-exp. */
static uint32_t row_logits(const struct recording *r, size_t row, const float *k, double *logit, double *lse)
{
    size_t kv_head = row % r->q_heads / (r->q_heads / r->kv_heads);
    uint32_t seen = r->tokens - r->queries + (uint32_t)(row / r->q_heads) + 1;
    const float *q = r->q + row * r->k_dim;
    double scale = 1 / sqrt(r->k_dim), most = -INFINITY, sum = 0;
    for (uint32_t t = 0; t < seen; t++) {
        logit[t] = scale * dot(q, k + (t * (size_t)r->kv_heads + kv_head) * r->k_dim, r->k_dim);
        most = fmax(most, logit[t]);
    }
    for (uint32_t t = 0; t < seen; t++)
        sum += exp(logit[t] - most);
    *lse = most + log(sum);
    return seen;
}

/* One row of exact attention, from its logits. length: [tokens][kv_heads], of the values. */
static void attend_row(const struct recording *r, const float *v, const double *length, size_t row, const double *logit,
                       uint32_t seen, struct recording_exact *exact)
{
    size_t kv_head = row % r->q_heads / (r->q_heads / r->kv_heads);
    double *o = exact->o + row * r->v_dim;
    memset(o, 0, r->v_dim * sizeof *o);
    exact->reach[row] = 0;
    for (uint32_t t = 0; t < seen; t++) {
        size_t vector = t * (size_t)r->kv_heads + kv_head;
        const float *value = v + vector * r->v_dim;
        double weight = exp(logit[t] - exact->lse[row]);
        for (uint32_t d = 0; d < r->v_dim; d++)
            o[d] += weight * value[d];
        exact->reach[row] += weight * length[vector];
    }
}

int recording_attend(const struct recording *r, const float *k, const float *v, int keep_logits, struct recording_exact *exact)
{
    size_t rows = (size_t)r->queries * r->q_heads, vectors = (size_t)r->tokens * r->kv_heads;
    memset(exact, 0, sizeof *exact);
    exact->o = malloc(rows * r->v_dim * sizeof(double)), exact->lse = malloc(rows * sizeof(double));
    exact->reach = malloc(rows * sizeof(double));
    double *length = malloc(vectors * sizeof *length), *logit = malloc((keep_logits ? rows : 1) * r->tokens * sizeof *logit);
    int bad = !exact->o || !exact->lse || !exact->reach || !length || !logit;
    for (size_t i = 0; !bad && i < vectors; i++)
        length[i] = sqrt(dot(v + i * r->v_dim, v + i * r->v_dim, r->v_dim));
    for (size_t row = 0; !bad && row < rows; row++) {
        double *at = logit + (keep_logits ? row * r->tokens : 0);
        uint32_t seen = row_logits(r, row, k, at, &exact->lse[row]);
        attend_row(r, v, length, row, at, seen, exact);
    }
    free(length);
    if (keep_logits)
        exact->logit = logit;
    else
        free(logit);
    return bad ? -1 : 0;
}

void recording_exact_free(struct recording_exact *exact)
{
    free(exact->o), free(exact->lse), free(exact->reach), free(exact->logit);
    memset(exact, 0, sizeof *exact);
}

/* ---- through a cache ----------------------------------------------------------------------------------------------- */

static aura_input input(const float *data)
{
    aura_input in = AURA_INPUT_INIT;
    in.data = data;
    return in;
}

/* The balance vectors of a recording, which the caller frees; NULL on failure. */
static float *own_balance(const struct recording *r, const aura_ctx *ctx, char *error)
{
    float *balance = malloc((size_t)r->kv_heads * r->k_dim * sizeof *balance);
    aura_calibration *calibration = NULL;
    aura_calibration_config config = AURA_CALIBRATION_CONFIG_INIT;
    aura_input k = input(r->k), q = input(r->q);
    config.q_heads = r->q_heads, config.kv_heads = r->kv_heads, config.k_dim = r->k_dim;
    if (!balance)
        return fail(error, "out of memory"), NULL;
    int bad = aura_calibration_create(ctx, &config, &calibration) || aura_calibration_keys(calibration, r->tokens, &k) ||
              aura_calibration_queries(calibration, r->queries, &q) || aura_calibration_balance(calibration, balance);
    if (bad)
        fail(error, "layer %u: no balance: %s", r->layer, aura_last_error());
    aura_calibration_destroy(calibration);
    return bad ? free(balance), NULL : balance;
}

static int is_plain(aura_kind kind)
{
    return !aura_is_packed((uint32_t)kind);
}

static int ask_cache(const struct recording *r, aura_cache *cache, const struct recording_options *options,
                     struct recording_result *result)
{
    aura_append_job append = AURA_APPEND_JOB_INIT;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_attend_options attend = AURA_ATTEND_OPTIONS_INIT;
    aura_cache_info about = AURA_CACHE_INFO_INIT;
    aura_seq_info seq = AURA_SEQ_INFO_INIT;
    aura_view k = AURA_VIEW_INIT, v = AURA_VIEW_INIT;
    append.tokens = r->tokens, append.k = input(r->k), append.v = input(r->v);
    job.queries = r->queries, job.q = input(r->q), job.out.data = result->o, job.lse = result->lse;
    k.data = result->k, v.data = result->v;
    attend.planes = options->planes;
    if (aura_seq_create(cache, &append.seq) || aura_append(cache, &append, 1))
        return -1;
    job.seq = append.seq;
    if (aura_attend(cache, &job, 1, &attend) || aura_cache_decode(cache, job.seq, 0, r->tokens, &k, &v) ||
        aura_cache_get_info(cache, &about) || aura_seq_get_info(cache, job.seq, &seq))
        return -1;
    result->bits_per_value = about.bits_per_value;
    if (is_plain(options->format.k) && is_plain(options->format.v))
        return 0;
    result->open = (uint32_t)(seq.tokens - seq.closed);
    if (!(options->flags & AURA_NO_PINNED))
        result->pinned = seq.closed < PINNED ? (uint32_t)seq.closed : PINNED;
    return 0;
}

int recording_cache(const struct recording *r, aura_ctx *ctx, const struct recording_options *options, aura_cache **cache,
                    char *error)
{
    aura_config config = AURA_CONFIG_INIT;
    float *balance = NULL;
    if (options->balance && !is_plain(options->format.k) && !(balance = own_balance(r, ctx, error)))
        return -1;
    config.format = options->format, config.flags = options->flags, config.seed = options->seed, config.balance = balance;
    config.q_heads = r->q_heads, config.kv_heads = r->kv_heads, config.k_dim = r->k_dim, config.v_dim = r->v_dim;
    int bad = aura_cache_create(ctx, &config, cache) ? fail(error, "layer %u: %s", r->layer, aura_last_error()) : 0;
    free(balance);
    return bad;
}

int recording_run(const struct recording *r, aura_ctx *ctx, const struct recording_options *options,
                  struct recording_result *result, char *error)
{
    size_t rows = (size_t)r->queries * r->q_heads, vectors = (size_t)r->tokens * r->kv_heads;
    aura_cache *cache = NULL;
    memset(result, 0, sizeof *result);
    result->o = malloc(rows * r->v_dim * sizeof(float)), result->lse = malloc(rows * sizeof(float));
    result->k = malloc(vectors * r->k_dim * sizeof(float)), result->v = malloc(vectors * r->v_dim * sizeof(float));
    if (!result->o || !result->lse || !result->k || !result->v)
        return fail(error, "layer %u: out of memory", r->layer);
    if (recording_cache(r, ctx, options, &cache, error))
        return -1;
    int bad = ask_cache(r, cache, options, result) ? fail(error, "layer %u: %s", r->layer, aura_last_error()) : 0;
    aura_cache_destroy(cache);
    return bad;
}

int recording_copy(const struct recording *r, struct recording_result *result)
{
    const size_t rows = (size_t)r->queries * r->q_heads, vectors = (size_t)r->tokens * r->kv_heads;
    memset(result, 0, sizeof *result);
    result->o = malloc(rows * r->v_dim * sizeof(float)), result->lse = malloc(rows * sizeof(float));
    result->k = malloc(vectors * r->k_dim * sizeof(float)), result->v = malloc(vectors * r->v_dim * sizeof(float));
    if (!result->o || !result->lse || !result->k || !result->v)
        return -1;
    memcpy(result->k, r->k, vectors * r->k_dim * sizeof(float));
    memcpy(result->v, r->v, vectors * r->v_dim * sizeof(float));
    return 0;
}

int recording_decoded(const struct recording *r, struct recording_result *result)
{
    const size_t rows = (size_t)r->queries * r->q_heads;
    struct recording_exact made = {0};
    const int bad = recording_attend(r, result->k, result->v, 0, &made);
    for (size_t i = 0; !bad && i < rows * r->v_dim; i++)
        result->o[i] = (float)made.o[i];
    for (size_t i = 0; !bad && i < rows; i++)
        result->lse[i] = (float)made.lse[i];
    recording_exact_free(&made);
    return bad;
}

void recording_result_free(struct recording_result *result)
{
    free(result->o), free(result->lse), free(result->k), free(result->v);
    memset(result, 0, sizeof *result);
}

/* ---- how far apart ------------------------------------------------------------------------------------------------- */

static double mean_kl(const struct recording *r, const float *decoded_keys, const struct recording_exact *exact)
{
    size_t rows = (size_t)r->queries * r->q_heads;
    double *made = exact->logit ? NULL : malloc(r->tokens * sizeof *made), *got = malloc(r->tokens * sizeof *got);
    double sum = got && (made || exact->logit) ? 0 : NAN, lse, got_lse;
    for (size_t row = 0; sum == sum && row < rows; row++) {
        const double *want = made ? made : exact->logit + row * r->tokens;
        uint32_t seen = row_logits(r, row, decoded_keys, got, &got_lse);
        if (made)
            row_logits(r, row, r->k, made, &lse);
        lse = exact->lse[row];
        for (uint32_t t = 0; t < seen; t++)
            sum += exp(want[t] - lse) * ((want[t] - lse) - (got[t] - got_lse));
    }
    free(made), free(got);
    return sum / (double)rows;
}

struct recording_errors recording_compare(const struct recording *r, const struct recording_result *result,
                                          const struct recording_exact *exact)
{
    struct recording_errors errors = {0};
    size_t rows = (size_t)r->queries * r->q_heads;
    double apart = 0, size = 0;
    for (size_t i = 0; i < rows * r->v_dim; i++) {
        apart += (result->o[i] - exact->o[i]) * (result->o[i] - exact->o[i]);
        size += exact->o[i] * exact->o[i];
    }
    for (size_t i = 0; i < rows; i++) {
        double error = fabs(result->lse[i] - exact->lse[i]);
        errors.lse_max = error <= errors.lse_max ? errors.lse_max : error; /* a NaN stays */
        errors.lse_mean += error / (double)rows;
    }
    errors.output = size > 0 ? sqrt(apart / size) : sqrt(apart);
    errors.kl = mean_kl(r, result->k, exact);
    return errors;
}
