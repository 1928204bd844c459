/* A metric made ready for the stage feedback: what an error of a stored vector costs its reader, e'Me. */
#ifndef AURA_METRIC_H
#define AURA_METRIC_H

#include "stages.h"

/* Numbers of a metric as callers have it: the lower triangle, row by row. */
static inline size_t aura_triangle(uint32_t dim)
{
    return (size_t)dim * (dim + 1) / 2;
}

/* Floats of a metric that was made ready, and doubles that it takes to do so. */
static inline size_t aura_metric_floats(uint32_t dim)
{
    return (size_t)dim * dim + dim;
}

static inline size_t aura_metric_scratch(uint32_t dim)
{
    return (size_t)dim * dim + dim;
}

/* Makes a metric ready: memory[aura_metric_floats(dim)], aligned to 64, is what kernels read from then on, scratch is used
 * during the call. triangle[aura_triangle(given)] is in the space of the model, whose vectors have the first `given` of dim
 * channels, and zeros in the others; inverse_balance[given], or NULL, is one over the factors of the side, and rotate the
 * rotation that follows. A triangle of zeros becomes the identity. Returns 0 where the triangle is none of a metric: NaN, Inf,
 * or an error that costs less than nothing. */
int aura_metric_init(struct aura_metric *metric, float *memory, double *scratch, const float *triangle, uint32_t given,
                     const float *inverse_balance, const struct aura_rotation_plan *rotate);

/* Whether aura_metric_init() would take a triangle. scratch[aura_metric_scratch(dim)]. */
int aura_is_metric(double *scratch, const float *triangle, uint32_t dim);

#endif
