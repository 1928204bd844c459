/* What rows.c makes of public codebooks and rotations. */
#ifndef AURA_ROWS_H
#define AURA_ROWS_H

#include "../base/arguments.h"

/* Fills a plan. The codebook is a valid one. search 1: the nine fits of doc/format.md, 0: the plain fit. */
void aura_codec_plan_init(struct aura_codec_plan *plan, const aura_codebook *book, uint32_t dim, aura_scale_rule rule,
                          uint32_t search);

/* A rotation or its inverse, made ready. */
struct aura_rotator {
    const aura_ctx *ctx;
    const aura_rotation *rotation; /* NULL: leave the rows as they are */
    int undo;
    float *transposed; /* of a dense matrix, where kernels need it */
    struct aura_rotation_plan plan;
};

/* Fails: AURA_OUT_OF_MEMORY. */
aura_status aura_rotator_init(struct aura_rotator *rotator, struct aura_call call, const aura_rotation *rotation, int undo);
void aura_rotator_free(struct aura_rotator *rotator);
void aura_rotator_apply(float *y, const float *x, const struct aura_rotator *rotator, size_t n); /* y may be x */

#endif
