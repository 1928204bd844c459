/* What a calibration gives a cache: up to four arrays, each with as many floats for every KV head. Configurations, profiles and
 * files have the same four. */
#ifndef AURA_NUMBERS_H
#define AURA_NUMBERS_H

#include "../../include/aura.h"

enum { AURA_K_BALANCE, AURA_V_BALANCE, AURA_K_METRIC, AURA_V_METRIC, AURA_NUMBERS };

static inline int aura_numbers_of_values(int i)
{
    return i == AURA_V_BALANCE || i == AURA_V_METRIC;
}

/* Floats of one KV head: a factor for each channel, or a lower triangle. */
static inline size_t aura_numbers_width(int i, uint32_t dim)
{
    return i == AURA_K_METRIC || i == AURA_V_METRIC ? (size_t)dim * (dim + 1) / 2 : dim;
}

static inline const float **aura_numbers_at(aura_config *c, int i)
{
    if (aura_numbers_of_values(i))
        return i == AURA_V_BALANCE ? &c->v_balance : &c->v_metric;
    return i == AURA_K_BALANCE ? &c->balance : &c->k_metric;
}

static inline const float *aura_numbers(const aura_config *c, int i)
{
    return *aura_numbers_at((aura_config *)c, i);
}

static inline uint32_t aura_numbers_dim(const aura_config *c, int i)
{
    return aura_numbers_of_values(i) ? c->v_dim : c->k_dim;
}

#endif
