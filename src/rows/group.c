#include "../base/exact.h"
#include "group.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../rules.h"

void aura_run_rows(const aura_ctx *ctx, double multiplications, size_t items, void (*item)(void *work, size_t i), void *work)
{
    if (multiplications < 0x1p16) /* ten microseconds of one thread; to hand work over takes one */
        aura_run_here(items, item, work);
    else
        aura_run(ctx, items, item, work);
}

void aura_group_init(struct aura_group *g, const aura_ctx *ctx, uint32_t k_dim, uint32_t v_dim, size_t heads)
{
    g->kernels = &ctx->kernels;
    g->heads = heads;
    g->k_dim = k_dim;
    g->dim = v_dim;
    g->q_stride = AURA_PADDED(k_dim);
    g->stride = AURA_PADDED(v_dim);
    g->scale = 1;
    g->softcap = 0;
    memset(g->q, 0, heads * g->q_stride * sizeof *g->q);
    aura_group_clear(g);
}

void aura_group_clear(struct aura_group *g)
{
    for (size_t h = 0; h < g->heads; h++) {
        g->max[h] = -INFINITY;
        g->sum[h] = 0;
    }
    memset(g->acc, 0, g->heads * g->stride * sizeof *g->acc);
}

void aura_group_query(struct aura_group *g, size_t h, const void *q, aura_dtype dtype, size_t row)
{
    aura_load_row(g->q + h * g->q_stride, q, dtype, row * g->k_dim, g->k_dim);
}

/* Part `part` of n rows from token t on, as the kernels read them; stride: of queries or accumulators. */
static struct aura_rows rows_of(const struct aura_source *s, size_t stride, uint64_t t, uint32_t part)
{
    uint32_t dim = s->dim / s->parts;
    struct aura_rows rows = {s->rows + t * s->row_stride + (size_t)part * dim * s->kind / 8,
                             s->row_stride, s->kind, dim, stride, AURA_BLOCK * s->row_stride, s->centroid};
    return rows;
}

static void load_norms(float *norm, const struct aura_source *s, uint64_t t, uint32_t part, size_t n)
{
    size_t first = (size_t)t * s->parts + part;
    for (size_t i = 0; !s->norms && i < n; i++)
        norm[i] = 1;
    for (size_t i = 0; s->norms && s->norm_dtype == AURA_F32 && i < n; i++)
        norm[i] = ((const float *)s->norms)[first + i * s->parts] * s->norm_factor;
    for (size_t i = 0; s->norms && s->norm_dtype != AURA_F32 && i < n; i++)
        norm[i] = aura_load(s->norms, s->norm_dtype, first + i * s->parts) * s->norm_factor;
}

void aura_group_score(struct aura_group *g, const struct aura_source *keys, uint64_t t, size_t n)
{
    for (uint32_t part = 0; part < keys->parts; part++) {
        struct aura_rows rows = rows_of(keys, g->q_stride, t, part);
        float *to = part ? g->product : g->weight;
        load_norms(g->norm, keys, t, part, n);
        g->kernels->row_score[keys->kind](to, AURA_BLOCK, g->q + part * rows.dim, &rows, g->norm, g->heads, n);
    }
    for (size_t h = 0; h < g->heads; h++) {
        float *logit = g->weight + h * AURA_BLOCK, *other = g->product + h * AURA_BLOCK;
        for (size_t i = 0; keys->parts > 1 && i < n; i++)
            logit[i] += other[i];
        for (size_t i = 0; g->scale != 1 && i < n; i++)
            logit[i] *= g->scale;
        for (size_t i = 0; g->softcap > 0 && i < n; i++)
            logit[i] = g->softcap * tanhf(logit[i] / g->softcap);
    }
}

static void softmax(struct aura_group *g, size_t n)
{
    for (size_t h = 0; h < g->heads; h++) {
        float kept = g->kernels->row_softmax[0](g->weight + h * AURA_BLOCK, &g->max[h], &g->sum[h], n);
        for (size_t d = h * g->stride; kept != 1 && d < (h + 1) * g->stride; d++)
            g->acc[d] *= kept;
    }
}

static int all_finite(const float *x, size_t n)
{
    uint32_t largest = 0;
    for (size_t i = 0; i < n; i++) {
        uint32_t magnitude = aura_f32_bits(x[i]) & 0x7fffffff;
        largest = magnitude > largest ? magnitude : largest;
    }
    return largest < 0x7f800000;
}

/* Kernels take eight coordinates at a time, and read to the end of the last: packed rows that end before it are copied. What is
 * added up for coordinates that are not there is nobody's. */
static void value_of_odd_rows(struct aura_group *g, const struct aura_rows *rows, size_t n)
{
    enum { TOGETHER = 8 };
    const uint32_t dim = (rows->dim + 7) / 8 * 8;
    const size_t bytes = aura_row_bytes(rows->dim, rows->kind), wide = aura_row_bytes(dim, rows->kind);
    uint8_t copy[TOGETHER * AURA_MAX_DIM];
    struct aura_rows whole = {copy, wide, rows->kind, dim, rows->query_stride, 0, rows->centroid};
    for (size_t t = 0; t < n; t += TOGETHER) {
        const size_t count = n - t < TOGETHER ? n - t : TOGETHER;
        memset(copy, 0, count * wide);
        for (size_t i = 0; i < count; i++)
            memcpy(copy + i * wide, rows->data + (t + i) * rows->stride, bytes);
        g->kernels->row_value[rows->kind](g->acc, g->product + t, AURA_BLOCK, &whole, g->heads, count);
    }
}

void aura_group_value(struct aura_group *g, const struct aura_source *values, uint64_t t, size_t n)
{
    for (uint32_t part = 0; part < values->parts; part++) {
        struct aura_rows rows = rows_of(values, g->stride, t, part);
        load_norms(g->norm, values, t, part, n);
        /* Weight 0 is a token that is not seen: 0 * NaN must not count. A comparison in the common loop would stop the
         * compiler from vectorising it: 3.2 ns per head and token became 11.5. */
        int finite = all_finite(g->norm, n);
        for (size_t h = 0; h < g->heads; h++) {
            const float *weight = g->weight + h * AURA_BLOCK;
            float *product = g->product + h * AURA_BLOCK;
            for (size_t i = 0; finite && i < n; i++)
                product[i] = weight[i] * g->norm[i];
            for (size_t i = 0; !finite && i < n; i++)
                product[i] = weight[i] == 0 ? 0 : weight[i] * g->norm[i];
        }
        if (values->dim % 8)
            value_of_odd_rows(g, &rows, n);
        else
            g->kernels->row_value[values->kind](g->acc + part * rows.dim, g->product, AURA_BLOCK, &rows, g->heads, n);
    }
}

void aura_group_attend(struct aura_group *g, const struct aura_source *keys, const struct aura_source *values,
                       uint64_t first, uint64_t end)
{
    for (uint64_t t = first; t < end; t += AURA_BLOCK) {
        size_t n = end - t < AURA_BLOCK ? (size_t)(end - t) : AURA_BLOCK;
        aura_group_score(g, keys, t, n);
        softmax(g, n);
        aura_group_value(g, values, t, n);
    }
}

void aura_group_sink(struct aura_group *g, size_t h, float sink)
{
    if (sink == -INFINITY)
        return;
    float m = g->max[h] > sink ? g->max[h] : sink; /* a NaN sink stays: it is on the right */
    float kept = g->max[h] == -INFINITY ? 0 : expf(g->max[h] - m), add = sink == m ? 1 : expf(sink - m);
    for (size_t d = h * g->stride; d < (h + 1) * g->stride; d++)
        g->acc[d] *= kept;
    g->sum[h] = g->sum[h] * kept + add;
    g->max[h] = m;
}

int aura_group_finish(float *out, float *lse, const struct aura_group *g, size_t h)
{
    float sum = g->sum[h];
    int empty = g->max[h] == -INFINITY && !isnan(sum), good = empty || aura_is_good_sum(sum);
    for (uint32_t d = 0; d < g->dim; d++)
        out[d] = empty ? 0 : good ? g->acc[h * g->stride + d] / sum : NAN;
    int bad = aura_poison_row(out, g->dim, AURA_F32);
    if (lse)
        *lse = bad ? NAN : empty ? -INFINITY : g->max[h] + logf(sum);
    return bad;
}
