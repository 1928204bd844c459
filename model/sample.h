/* The next token from logits. The same logits, options and seed give the same tokens on every machine. */
#ifndef AURA_SAMPLE_H
#define AURA_SAMPLE_H

#include <stddef.h>
#include <stdint.h>

/* Applied in this order. */
struct sample_options {
    float temp;      /* logits are divided by it. 0: the largest logit wins, the first of equal ones, whatever the others are */
    uint32_t top_k;  /* only the k most likely; 0: all */
    float top_p;     /* of these, the fewest whose share reaches p; 0 or 1: all */
    uint64_t seed;
};

struct sampler; /* the options, the generator, and room for the candidates */

/* NULL: no memory. */
struct sampler *sampler_create(const struct sample_options *options, uint32_t vocab);
void sampler_destroy(struct sampler *sampler); /* NULL is allowed */

/* The token that comes next; logits [vocab] are finite. */
uint32_t sampler_next(struct sampler *sampler, const float *logits);

/* Makes tokens that were there less likely, before the next one is taken: a logit above 0 is divided by `penalty`, one below is
 * multiplied with it, once for each different token of tokens[n]. 1: nothing changes. */
void sampler_penalise(float *logits, const uint32_t *tokens, size_t n, float penalty);

#endif
