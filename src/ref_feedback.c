/* The definition of feedback: coordinates are rounded from the last to the first, and what the errors made so far cost is taken
 * into account by the next. metric.c has the mathematics. In f32, in one order; a product and a sum are one operation where fmaf()
 * says so. */
#include "base/exact.h"
#include "ref.h"

#include <math.h>
#include <string.h>

#include "feedback.h"

float aura_ref_chain(float x, const float *e, const struct aura_metric *metric, uint32_t i)
{
    for (uint32_t j = metric->dim; j-- > i + 1;)
        x = fmaf(metric->l[(size_t)j * metric->dim + i], e[j], x);
    return x;
}

/* What an error costs. */
static float cost_of(const float *e, const struct aura_metric *metric)
{
    float sum = 0;
    for (uint32_t i = metric->dim; i-- > 0;) {
        const float x = aura_ref_chain(e[i], e, metric, i);
        sum = fmaf(metric->weight[i] * x, x, sum);
    }
    return sum;
}

/* One fit: codes, and the sums of yr, rr and dot. u: chain of y. */
static void round_all(uint8_t *code, struct aura_feedback_sums *s, const float *y, const float *u, float gain,
                      const struct aura_codec_plan *plan, const struct aura_metric *metric)
{
    float e[AURA_TILE_DIM];
    s->yr = s->rr = s->dot = 0;
    for (uint32_t i = plan->dim; i-- > 0;) {
        const float t = y[i] * gain, target = aura_ref_chain(t, e, metric, i);
        code[i] = (uint8_t)aura_ref_index(plan, target);
        const float c = plan->centroid[code[i]], r = target - c, weighted = metric->weight[i] * r;
        e[i] = t - c;
        s->yr = fmaf(weighted, u[i], s->yr);
        s->rr = fmaf(weighted, r, s->rr);
        s->dot = fmaf(y[i], c, s->dot);
    }
}

static void feedback_row(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                         const struct aura_metric *metric)
{
    float u[AURA_TILE_DIM], e[AURA_TILE_DIM], largest = 0, best = INFINITY, best_scale = 0;
    uint8_t one[AURA_TILE_DIM], best_code[AURA_TILE_DIM];
    struct aura_feedback_sums s = {0, 0, 0, 0, 0};
    for (uint32_t i = plan->dim; i-- > 0;) {
        u[i] = aura_ref_chain(y[i], y, metric, i);
        s.yy = fmaf(metric->weight[i] * u[i], u[i], s.yy);
        s.size2 = fmaf(y[i], y[i], s.size2);
        largest = fabsf(y[i]) > largest ? fabsf(y[i]) : largest;
    }
    const float unit = aura_feedback_unit(plan, s.size2, largest);
    for (uint32_t k = 0; unit > 0 && k < plan->n_fits; k += AURA_FEEDBACK_STRIDE) {
        const float gain = plan->fits[k] * unit;
        round_all(one, &s, y, u, gain, plan, metric);
        const float with = aura_feedback_stored(aura_feedback_scale(&s, gain, plan->rule));
        const float cost = aura_feedback_cost(&s, gain, with);
        if (cost < best) {
            best = cost;
            best_scale = with;
            memcpy(best_code, one, plan->dim);
        }
    }
    const float plain = aura_feedback_stored(*scale);
    for (uint32_t i = 0; i < plan->dim; i++)
        e[i] = y[i] - plan->centroid[code[i]] * plain;
    if (best < cost_of(e, metric)) {
        *scale = best_scale;
        memcpy(code, best_code, plan->dim);
    }
}

void aura_feedback_ref(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                       const struct aura_metric *metric, size_t n)
{
    if (plan->trellis) {
        aura_ref_feedback_trellis(code, scale, y, plan, metric, n);
        return;
    }
    for (size_t row = 0; row < n; row++)
        feedback_row(code + row * plan->dim, scale + row, y + row * plan->dim, plan, metric);
}

double aura_ref_metric_error(const uint8_t *code, double scale, const float *y, const struct aura_codec_plan *plan,
                             const struct aura_metric *metric, double *size)
{
    double sum = 0, all = 0;
    float c[AURA_TILE_DIM];
    aura_ref_levels(c, code, plan);
    for (uint32_t i = 0; i < plan->dim; i++) {
        double error = 0, whole = 0;
        for (uint32_t j = i; j < plan->dim; j++) {
            const double l = j == i ? 1 : (double)metric->l[(size_t)j * plan->dim + i];
            error += l * ((double)y[j] - scale * (double)c[j]);
            whole += l * (double)y[j];
        }
        sum += (double)metric->weight[i] * error * error;
        all += (double)metric->weight[i] * whole * whole;
    }
    *size = all;
    return sum;
}
