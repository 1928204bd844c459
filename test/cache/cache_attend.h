/* Attention over a model of a cache, in double, and calls of aura_attend compared with it. */
#ifndef AURA_TEST_CACHE_ATTEND_H
#define AURA_TEST_CACHE_ATTEND_H

#include "cache_tools.h"

/* One job with its options, its numbers, and the right results. */
struct attention {
    const struct model *model;
    uint32_t queries, q_heads;
    float *q;             /* [queries][q_heads][k_dim] */
    float *mask;          /* [queries][mask_stride], of each head or of all, or NULL */
    uint32_t mask_keys;
    size_t mask_stride, mask_head_stride;
    uint64_t *from, *until; /* [queries], or NULL */
    aura_attend_options options;
    double *out;          /* [queries][q_heads][v_dim] */
    double *lse;          /* [queries][q_heads] */
    double *size;         /* the same: sum over tokens of weight * |value| */
    double *logit;        /* the same: |scale| times the largest coordinate of the rotated query times the longest key */
    double *term;         /* the same: the largest |logit|, with everything that is added to it */
    double longest;       /* value of all tokens */
    uint64_t cache_window; /* of a cache with a window; keep_first tokens are seen besides it */
    uint32_t keep_first;
};

/* ---- the oracle ------------------------------------------------------------------------------------------------------ */

/* Four sums: a compiler may not reorder a single one, which would be slow. */
static inline double oracle_dot(const double *a, const float *b, uint32_t n)
{
    double sum[4] = {0};
    for (uint32_t i = 0; i < n; i += 4)
        for (uint32_t j = 0; j < 4; j++)
            sum[j] += a[i + j] * (double)b[i + j];
    return (sum[0] + sum[1]) + (sum[2] + sum[3]);
}

/* norm[heads][len]: the lengths of a side's vectors. */
static inline double *oracle_norms(const struct model *m, const struct model_side *s)
{
    double *norm = malloc((s->heads * m->len + 1) * sizeof *norm);
    for (uint32_t h = 0; h < s->heads; h++)
        for (uint64_t t = 0; t < m->len; t++) {
            const float *x = model_row(m, s, h, t);
            double sum = 0;
            for (uint32_t d = 0; d < s->dim; d++)
                sum += (double)x[d] * (double)x[d];
            norm[h * m->len + t] = sqrt(sum);
        }
    return norm;
}

/* y = H x / sqrt(dim) in double, with the signs of the plan's Paley factor. */
static inline void oracle_hadamard(double *y, const struct aura_rotation_plan *plan)
{
    double x[AURA_MAX_DIM], norm = 1 / sqrt((double)plan->dim);
    for (uint32_t stride = 1; stride < plan->inner; stride *= 2)
        for (uint32_t d = 0; d < plan->dim; d++)
            if (!(d & stride)) {
                double a = y[d], b = y[d + stride];
                y[d] = a + b, y[d + stride] = a - b;
            }
    memcpy(x, y, plan->dim * sizeof *x);
    for (uint32_t d = 0; d < plan->dim; d++) {
        double sum = plan->outer == 1 ? x[d] : 0;
        for (uint32_t j = 0; j < plan->outer && plan->outer > 1; j++) {
            double term = x[j * plan->inner + d % plan->inner];
            sum += plan->outer_negative[d / AURA_LANES * plan->outer + j] >> d % AURA_LANES & 1 ? -term : term;
        }
        y[d] = sum * norm;
    }
}

static inline void oracle_signs(double *y, const struct aura_rotation_plan *plan)
{
    for (uint32_t d = 0; d < plan->dim; d++)
        y[d] = plan->negative[d / AURA_LANES] >> d % AURA_LANES & 1 ? -y[d] : y[d];
}

/* The tokens that query i sees: [first, end), and those that are kept. */
static inline void visible(uint64_t *first, uint64_t *end, const struct attention *a, uint32_t i)
{
    uint64_t window = a->options.window ? a->options.window : a->cache_window;
    *end = a->until ? a->until[i] : a->options.not_causal ? a->model->len : a->model->len - a->queries + i + 1;
    *first = a->from ? a->from[i] : window && window < *end ? *end - window : 0;
}

/* The first token at or after t that the query sees: for (t = 0; (t = next_visible(a, t, first)) < end; t++). */
static inline uint64_t next_visible(const struct attention *a, uint64_t t, uint64_t first)
{
    return (t < a->keep_first && !a->from) || t >= first ? t : first;
}

/* logit[t] for the tokens that query i sees through head h. */
static inline void oracle_logits(double *logit, const double *k_norm, const struct attention *a, uint32_t i, uint32_t h)
{
    const struct model_side *s = &a->model->k;
    const aura_attend_options *o = &a->options;
    uint32_t kv = h / (a->q_heads / s->heads);
    size_t row = (size_t)i * a->q_heads + h;
    double q[AURA_MAX_DIM], top = 0, scale = o->scale != 0 ? (double)o->scale : 1 / sqrt((double)s->dim);
    uint64_t first, end;
    visible(&first, &end, a, i);
    for (uint32_t d = 0; d < s->dim; d++)
        q[d] = (double)a->q[row * s->dim + d] / (s->balance ? (double)s->balance[(size_t)kv * s->dim + d] : 1);
    if (!is_plain(s->kind))
        oracle_signs(q, &s->rotate), oracle_hadamard(q, &s->rotate);
    for (uint32_t d = 0; d < s->dim; d++)
        top = fmax(top, fabs(q[d]));
    for (uint64_t t = 0; (t = next_visible(a, t, first)) < end; t++) {
        double x = scale * oracle_dot(q, model_row(a->model, s, kv, t), s->dim);
        a->logit[row] = fmax(a->logit[row], fabs(scale) * top * k_norm[kv * a->model->len + t]);
        if (o->softcap != 0)
            x = (double)o->softcap * tanh(x / (double)o->softcap);
        if (o->alibi)
            x += (double)o->alibi[h] * ((double)t - (double)(end - 1));
        if (a->mask && t + a->mask_keys >= a->model->len)
            x += (double)a->mask[i * a->mask_stride + h * a->mask_head_stride + (t + a->mask_keys - a->model->len)];
        logit[t] = x;
        if (isfinite(x))
            a->term[row] = fmax(a->term[row], fabs(x));
    }
}

/* One row of the job. */
static inline void oracle_row(struct attention *a, uint32_t i, uint32_t h, double *logit, const double *k_norm,
                              const double *v_norm)
{
    const struct model_side *s = &a->model->v;
    size_t row = (size_t)i * a->q_heads + h;
    uint32_t kv = h / (a->q_heads / s->heads);
    double sink = a->options.sinks ? (double)a->options.sinks[h] : -INFINITY, max = sink, sum = 0, *out = a->out + row * s->dim;
    uint64_t first, end;
    visible(&first, &end, a, i);
    a->term[row] = isfinite(sink) ? fabs(sink) : 0;
    a->logit[row] = a->size[row] = 0;
    oracle_logits(logit, k_norm, a, i, h);
    for (uint64_t t = 0; (t = next_visible(a, t, first)) < end; t++)
        max = logit[t] > max ? logit[t] : max;
    for (uint64_t t = 0; (t = next_visible(a, t, first)) < end; t++)
        sum += logit[t] = max == -INFINITY ? 0 : exp(logit[t] - max);
    sum += sink == -INFINITY ? 0 : exp(sink - max);
    memset(out, 0, s->dim * sizeof *out);
    for (uint64_t t = 0; (t = next_visible(a, t, first)) < end && sum > 0; t++) {
        const float *v = model_row(a->model, s, kv, t);
        double p = logit[t] / sum;
        for (uint32_t d = 0; d < s->dim && p > 0; d++)
            out[d] += p * (double)v[d];
        a->size[row] += p > 0 ? p * v_norm[kv * a->model->len + t] : 0;
    }
    a->lse[row] = sum > 0 ? max + log(sum) : -INFINITY;
    if (!is_plain(s->kind))
        oracle_hadamard(out, &s->back), oracle_signs(out, &s->back);
    for (uint32_t d = 0; d < s->dim && s->reciprocal; d++)
        out[d] *= (double)s->reciprocal[(size_t)kv * s->dim + d];
}

/* Fills out, lse and the sizes for the model as it is now. */
static inline void oracle_compute(struct attention *a)
{
    size_t rows = (size_t)a->queries * a->q_heads;
    double *logit = malloc((a->model->len + 1) * sizeof *logit);
    double *k_norm = oracle_norms(a->model, &a->model->k), *v_norm = oracle_norms(a->model, &a->model->v);
    free(a->out), free(a->lse);
    a->out = malloc(rows * a->model->v.dim * sizeof *a->out);
    a->lse = malloc(4 * rows * sizeof *a->lse);
    a->longest = 0;
    for (size_t i = 0; i < a->model->v.heads * a->model->len; i++)
        a->longest = fmax(a->longest, v_norm[i]);
    a->size = a->lse + rows, a->logit = a->size + rows, a->term = a->logit + rows;
    for (uint32_t i = 0; i < a->queries; i++)
        for (uint32_t h = 0; h < a->q_heads; h++)
            oracle_row(a, i, h, logit, k_norm, v_norm);
    free(logit), free(k_norm), free(v_norm);
}

/* ---- scenes ------------------------------------------------------------------------------------------------------------ */

/* Tokens, and a model that has appended them all: made once for the caches of all instruction sets. */
struct scene {
    aura_config config;
    uint32_t tokens;
    struct tensor k, v;
    struct model *model;
};

static inline struct scene scene_typed(aura_config config, uint32_t tokens, float *keys, float *values, aura_dtype dtype,
                                       enum layout layout)
{
    struct scene s = {config, tokens, tensor_new(tokens, config.kv_heads, config.k_dim, dtype, layout),
                      tensor_new(tokens, config.kv_heads, config.v_dim ? config.v_dim : config.k_dim, dtype, layout),
                      model_create(&config, tokens)};
    tensor_set(&s.k, keys), tensor_set(&s.v, values);
    tensor_get(keys, &s.k), tensor_get(values, &s.v); /* rounded to the element type */
    model_append(s.model, keys, values, tokens);
    return s;
}

static inline struct scene scene_of(aura_config config, uint32_t tokens, float *keys, float *values)
{
    return scene_typed(config, tokens, keys, values, AURA_F32, DENSE);
}

static inline struct scene scene_new(aura_config config, uint32_t tokens)
{
    float *keys = random_tokens(51 + 2 * tokens, tokens, config.kv_heads, config.k_dim, 1);
    float *values = random_tokens(52 + 2 * tokens, tokens, config.kv_heads, config.v_dim ? config.v_dim : config.k_dim, 0);
    struct scene s = scene_of(config, tokens, keys, values);
    free(keys), free(values);
    return s;
}

static inline void scene_free(struct scene *s)
{
    model_destroy(s->model);
    tensor_free(&s->k), tensor_free(&s->v);
}

/* A cache with one sequence that holds all of it. */
static inline aura_cache *scene_cache(aura_ctx *in, const struct scene *s, aura_seq *seq)
{
    aura_cache *cache = cache_new(in, &s->config);
    *seq = cache ? seq_new(cache) : 0;
    EXPECT(*seq && !append(cache, *seq, &s->k, &s->v, 0, s->tokens), "%s: %s", config_text(&s->config), aura_last_error());
    return cache;
}

/* ---- problems ---------------------------------------------------------------------------------------------------------- */

static inline struct attention attention_new(const struct model *m, uint32_t queries, uint32_t q_heads, uint64_t seed)
{
    static const aura_attend_options defaults = AURA_ATTEND_OPTIONS_INIT;
    struct attention a = {.model = m, .queries = queries, .q_heads = q_heads, .options = defaults};
    size_t count = (size_t)queries * q_heads * m->k.dim;
    a.q = malloc(count * sizeof *a.q + 1);
    for (size_t i = 0; i < count; i++)
        a.q[i] = random_normal(&seed);
    return a;
}

/* Rounds the queries to an element type, so that the oracle uses the same numbers. */
static inline void attention_round(struct attention *a, aura_dtype dtype)
{
    for (size_t i = 0; i < (size_t)a->queries * a->q_heads * a->model->k.dim; i++)
        a->q[i] = oracle_round(a->q[i], dtype);
}

static inline void attention_free(struct attention *a)
{
    free(a->q), free(a->mask), free(a->from), free(a->until), free(a->out), free(a->lse);
    a->q = a->mask = NULL, a->from = a->until = NULL, a->out = a->lse = NULL;
}

/* ---- comparison -------------------------------------------------------------------------------------------------------- */

/* The largest errors so far, in units of the allowed error; the option -v prints them. */
static struct {
    double row[3][3], lse[3]; /* by planes of the keys and of the values */
} worst;

static inline void note(double *most, double ratio)
{
    if (!(ratio <= *most))
        *most = ratio;
}

/* What rounding the query may cost a logit, as in the table of tolerances. */
static inline double logit_tolerance(const struct attention *a, int adversarial)
{
    uint32_t planes = planes_of(a->model->k.kind, a->options.planes);
    double worst = tolerance.half_step[planes] * sqrt((double)a->model->k.dim);
    return adversarial && worst > tolerance.logit[planes] ? worst : tolerance.logit[planes];
}

/* How far one row is from the oracle, in units of the allowed error: above 1 is wrong. `adversarial` allows the larger error of
 * tiles and queries that are made to be bad; where their logits may be off by more than half a nat, any mean of the values. */
static inline double row_error(const float *got, const struct attention *a, size_t row, aura_dtype dtype, int adversarial)
{
    uint32_t dim = a->model->v.dim, pk = planes_of(a->model->k.kind, a->options.planes),
        pv = planes_of(a->model->v.kind, a->options.planes);
    const double *want = a->out + row * dim;
    double error = 0, norm = 0, off = logit_tolerance(a, adversarial) * a->logit[row] + tolerance.lse * a->term[row];
    double allowed = (adversarial ? tolerance.worst[pv] + expm1(2 * off) : tolerance.value[pv] + off) * a->size[row];
    for (uint32_t d = 0; d < dim; d++) {
        error += ((double)got[d] - want[d]) * ((double)got[d] - want[d]);
        norm += want[d] * want[d];
    }
    allowed = adversarial && off > 0.5 ? 2.5 * a->longest : allowed;
    allowed += tolerance.nothing * a->longest + oracle_unit(dtype) * sqrt(norm);
    allowed += (dtype == AURA_F16 ? 0x1p-25 : 1e-40) * sqrt((double)dim);
    note(&worst.row[pk][pv], sqrt(error) / allowed);
    return sqrt(error) / allowed;
}

static inline double lse_error(float got, const struct attention *a, size_t row, int adversarial)
{
    uint32_t pk = planes_of(a->model->k.kind, a->options.planes);
    if (a->lse[row] == -INFINITY)
        return got == -INFINITY ? 0 : INFINITY;
    double allowed = logit_tolerance(a, adversarial) * a->logit[row] + tolerance.lse * (1 + a->term[row] + fabs(a->lse[row]));
    double ratio = fabs((double)got - a->lse[row]) / allowed;
    note(&worst.lse[pk], ratio);
    return ratio;
}

/* All rows of a finished call; a NaN is larger than anything. */
static inline void expect_rows(const struct tensor *out, const float *lse, const struct attention *a, int adversarial,
                               const char *what)
{
    size_t rows = (size_t)a->queries * a->q_heads;
    float *got = malloc(rows * a->model->v.dim * sizeof *got);
    char where[400];
    tensor_get(got, out);
    for (size_t row = 0; row < rows; row++) {
        double error = row_error(got + row * a->model->v.dim, a, row, out->view.dtype, adversarial);
        double off = lse ? lse_error(lse[row], a, row, adversarial) : 0;
        if (error <= 1 && off <= 1)
            continue;
        snprintf(where, sizeof where, "%s %s: k%u v%u, %llu tokens, planes %u, query %zu head %zu",
                 test_suffix ? test_suffix : "", what,
                 (unsigned)a->model->k.kind, (unsigned)a->model->v.kind, (unsigned long long)a->model->len,
                 a->options.planes, row / a->q_heads, row % a->q_heads);
        EXPECT(error <= 1, "%s: the error is %.3g of what is allowed; size %.3g, logit %.3g", where, error, a->size[row],
               a->logit[row]);
        EXPECT(off <= 1, "%s: lse %.9g, not %.9g: %.3g of what is allowed", where, (double)lse[row], a->lse[row], off);
    }
    free(got);
}

/* ---- calls --------------------------------------------------------------------------------------------------------------- */

/* A job with tensors of its own. */
struct call {
    struct tensor q, out;
    float *lse;
    aura_attend_job job;
};

static inline struct call call_new(const struct attention *a, aura_seq seq, aura_dtype q_dtype, aura_dtype out_dtype,
                                   enum layout layout)
{
    static const aura_attend_job defaults = AURA_ATTEND_JOB_INIT;
    struct call c;
    c.q = tensor_new(a->queries, a->q_heads, a->model->k.dim, q_dtype, layout);
    c.out = tensor_new(a->queries, a->q_heads, a->model->v.dim, out_dtype, (enum layout)((layout + 1) % N_LAYOUTS));
    tensor_set(&c.q, a->q);
    c.lse = malloc((size_t)a->queries * a->q_heads * sizeof *c.lse);
    memset(c.lse, 0xff, (size_t)a->queries * a->q_heads * sizeof *c.lse);
    c.job = defaults;
    c.job.seq = seq, c.job.queries = a->queries;
    c.job.q = as_input(c.q.view), c.job.out = c.out.view, c.job.lse = c.lse;
    c.job.mask = a->mask, c.job.mask_keys = a->mask_keys, c.job.from = a->from, c.job.until = a->until;
    c.job.mask_stride = a->mask_stride == a->mask_keys && a->mask_keys % 2 ? 0 : a->mask_stride; /* 0 means the same */
    c.job.mask_head_stride = a->mask_head_stride;
    return c;
}

static inline void call_free(struct call *c)
{
    tensor_free(&c->q), tensor_free(&c->out);
    free(c->lse);
}

/* The worst row of a finished call, |error| / sum of weight * |value|; NaN is infinite. */
static inline double worst_row(const struct call *c, const struct attention *a)
{
    size_t rows = (size_t)a->queries * a->q_heads, dim = a->model->v.dim;
    float *got = malloc(rows * dim * sizeof *got);
    double most = 0;
    tensor_get(got, &c->out);
    for (size_t row = 0; row < rows; row++) {
        double error = 0;
        for (size_t d = 0; d < dim; d++)
            error += pow((double)got[row * dim + d] - a->out[row * dim + d], 2);
        error = sqrt(error) / a->size[row];
        most = error <= most ? most : isnan(error) ? INFINITY : error;
    }
    free(got);
    return most;
}

/* One job in f32: attends and compares. The oracle must have been computed. */
static inline void expect_attention(const aura_cache *cache, aura_seq seq, struct attention *a, const char *what)
{
    struct call c = call_new(a, seq, AURA_F32, AURA_F32, DENSE);
    aura_status status = aura_attend(cache, &c.job, 1, &a->options);
    EXPECT(!status, "%s: %llu tokens: %s", what, (unsigned long long)a->model->len, aura_last_error());
    if (!status)
        expect_rows(&c.out, c.lse, a, 0, what);
    call_free(&c);
}

static inline void print_worst(void)
{
    for (int k = 0; k < 3; k++)
        printf("  planes %d: lse %.3g, rows %.3g %.3g %.3g of what is allowed\n", k, worst.lse[k], worst.row[k][0], worst.row[k][1],
               worst.row[k][2]);
}

#endif
