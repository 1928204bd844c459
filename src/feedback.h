/* What the definition of the stage feedback and its kernels decide alike: the scale of codes, and what their error costs. */
#ifndef AURA_FEEDBACK_H
#define AURA_FEEDBACK_H

#include <math.h>

#include "base/dtype.h"
#include "stages.h"

/* Codes c were found for gain * y. What is summed up of them, in the metric: y'My, y'Mr and r'Mr with r = gain * y - c; and
 * plainly: y'y and y'c. */
struct aura_feedback_sums {
    float yy, yr, rr, size2, dot;
};

/* Of the fits of a plan every other is tried, so with feedback each costs dim / 2 times as much as without. */
enum { AURA_FEEDBACK_FITS = 5, AURA_FEEDBACK_STRIDE = 2 }; /* of trellis codes as of others */

/* The factor that the numbers of a vector are multiplied by for a fit of 1; 0 for a vector that keeps its codes. */
static inline float aura_feedback_unit(const struct aura_codec_plan *plan, float size2, float largest)
{
    if (!(sqrtf(size2) > plan->tiny))
        return 0;
    return plan->uniform ? plan->top / largest : plan->sigma / sqrtf(size2 / (float)plan->dim);
}

/* The scale: the vector keeps its length in the metric (matched), or its product with itself (unbiased). */
static inline AURA_ANYWHERE float aura_feedback_scale(const struct aura_feedback_sums *s, float gain, aura_scale_rule rule)
{
    if (rule == AURA_SCALE_UNBIASED)
        return s->dot > 0 ? s->size2 / s->dot : 0;
    const float cc = (gain * gain) * s->yy - ((gain + gain) * s->yr - s->rr);
    return cc > 0 ? sqrtf(s->yy) / sqrtf(cc) : 0;
}

/* The gains that feedback tries for trellis codes: factors on one over the scale that the codes of encode have, which is near the
 * best. Each costs as much as five fits of plain codes, and these are as good as five fits of a plan: of what errors cost without
 * feedback, 0.192, 0.177 and 0.190 are left for t2, t3 and t4, and 0.185, 0.183 and 0.192 with those. */
static inline uint32_t aura_trellis_gains(const struct aura_codec_plan *plan)
{
    return plan->n_fits == 1 ? 1 : plan->bits == 4 ? 3 : 4;
}

static inline AURA_ANYWHERE float aura_trellis_gain(uint32_t i, float scale)
{
    const float factor = i == 0 ? 1.f : i == 1 ? 0.95f : i == 2 ? 1.05f : 1.1f;
    return scale > 0 ? factor / scale : 0;
}

/* The scale of trellis codes without a metric; cc: c'c. */
static inline float aura_trellis_scale(const struct aura_codec_plan *plan, float size2, float dot, float cc)
{
    if (plan->rule == AURA_SCALE_UNBIASED)
        return dot > 0 ? size2 / dot : 0;
    return plan->rule == AURA_SCALE_MATCHED ? sqrtf(size2) / sqrtf(cc) : sqrtf(size2 / (float)plan->dim) / plan->sigma;
}

/* What the error y - scale * c = (1 - scale * gain) * y + scale * r costs. */
static inline AURA_ANYWHERE float aura_feedback_cost(const struct aura_feedback_sums *s, float gain, float scale)
{
    const float off = 1 - scale * gain;
    return (off * off) * s->yy + (((off + off) * scale) * s->yr + (scale * scale) * s->rr);
}

/* As it is stored. */
static inline float aura_feedback_stored(float scale)
{
    return aura_f32_from_f16(aura_f16_from_f32(scale));
}

#endif
