/* The stages, in the order data flows through them: one type and one contract each.
 *
 *     K,V ─ rotate ─ encode ─▶ rows ─ dequant ─ undo ─▶ K,V
 *
 * What a stage computes is defined in ref.c. What a kernel may assume is said here:
 *
 *  - Arguments were checked at the border (rows.c); kernels allocate nothing and cannot fail.
 *  - The float environment is IEEE default: round to nearest even, no flush to zero (fpmode.h).
 *  - dim is a multiple of 8 and at most AURA_MAX_DIM; n may be 0.
 *  - Rows are contiguous. A kernel reads and writes exactly the rows it is given: not a byte before or after.
 *  - Pointers are aligned to their element and no better; output and input do not overlap, except that rotate and undo
 *    accept y == x.
 *  - Every stage here is exact: the same bits on every instruction set, from IEEE + - * / sqrt in a fixed order.
 */
#ifndef AURA_STAGES_H
#define AURA_STAGES_H

#include "../include/aura.h"
#include "variants.h"

#define AURA_LANES 16                                /* a vector of the vocabulary, on every instruction set */
#define AURA_MAX_BLOCKS (AURA_MAX_DIM / AURA_LANES)  /* vectors in a row */
#define AURA_MAX_PALEY 64                            /* largest order of the Paley factor */

/* A rotation made ready: built once, read by any number of calls. See rotation.c. */
struct aura_rotation_plan {
    uint32_t dim;      /* outer * inner */
    uint32_t inner;    /* order of the Sylvester factor, a power of two */
    uint32_t outer;    /* order of the Paley factor, or 1 */
    int transposed;    /* 1: the plan is for undo, the Paley factor is transposed */
    float norm;        /* f32(1 / sqrt(dim)) */
    const float *balance; /* [dim] or NULL; borrowed from the caller */
    uint16_t negative[AURA_MAX_BLOCKS]; /* bit i of word b: coordinate 16 b + i has a negative sign */
    uint16_t outer_negative[AURA_MAX_BLOCKS * AURA_MAX_PALEY]; /* [block][column]: bit i: that entry of the Paley row
                                                                   of coordinate 16 block + i is -1 */
};

/* A codebook and how vectors are fitted to it, made ready. See rows.c. */
struct aura_codec_plan {
    uint32_t dim, bits;
    uint32_t row_bytes;    /* aura_row_bytes(dim, bits) */
    uint32_t uniform;      /* fit by the largest coordinate instead of the RMS */
    aura_scale_rule rule;
    uint32_t n_fits;
    float fits[9];         /* factors on the plain fit, tried in this order */
    float sigma, top;      /* the table's unit, and its highest level */
    float centroid[256];   /* padded to 2^bits with the highest level */
    float threshold[256];  /* padded to 2^bits - 1 with +inf, which nothing exceeds */
};

/* y[n][dim] = rotation of x[n][dim]. */
typedef void aura_rotate_fn(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n);

/* y[n][dim] = inverse rotation of x[n][dim]; the plan was made for undo. */
typedef void aura_undo_fn(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n);

/* packed[n][row_bytes], scale[n] = codes of y[n][dim]. Every y is finite with |y| <= 2^55. */
typedef void aura_encode_fn(uint8_t *packed, float *scale, const float *y, const struct aura_codec_plan *plan,
                            size_t n);

/* x[n][dim] = scale[n] * centroid of packed[n][row_bytes]. */
typedef void aura_dequant_fn(float *x, const uint8_t *packed, const float *scale, const struct aura_codec_plan *plan,
                             size_t n);

/* Every kernel of the list, declared. */
#define AURA_DECLARE(stage, shape, bits, isa) aura_##stage##_fn aura_##stage##_##shape##_##isa;
#define AURA_DECLARE_ROW(stage, isa) AURA_SHAPES_##stage(AURA_DECLARE, stage, isa)
AURA_VARIANTS(AURA_DECLARE_ROW)
#undef AURA_DECLARE_ROW
#undef AURA_DECLARE

/* The kernels a context uses: for each stage a function per bit width, at index 0 where the width does not matter,
 * NULL where there is no such width. */
struct aura_kernels {
#define AURA_FIELD(stage, tolerance) aura_##stage##_fn *stage[9];
    AURA_STAGES(AURA_FIELD)
#undef AURA_FIELD
};

#endif
