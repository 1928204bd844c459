/* What rows.c makes of public rotations. */
#ifndef AURA_ROWS_ROWS_H
#define AURA_ROWS_ROWS_H

#include "../base/arguments.h"

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
