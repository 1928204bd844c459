/* The definition of every stage: ref.c, ref_attend.c, ref_tile.c, ref_feedback.c and ref_trellis.c. */
#ifndef AURA_REF_H
#define AURA_REF_H

#include "stages.h"

/* ---- exact stages: defined in f32, in one order; kernels too, where there is no better one ------------------- */

aura_rotate_fn aura_rotate_ref;
aura_undo_fn aura_undo_ref;
aura_row_encode_fn aura_row_encode_ref;
aura_row_rotate_dense_fn aura_row_rotate_dense_ref;
aura_row_dequant_fn aura_row_dequant_ref;

/* The fixed order of every sum over a vector: element i into partial i mod 16, then halves are added. */
float aura_ref_dot(const float *a, const float *b, uint32_t n);

/* Index `d` of a packed row, and the index of a value. */
uint32_t aura_ref_unpack(const uint8_t *row, uint32_t bits, uint32_t d);
uint32_t aura_ref_index(const struct aura_codec_plan *plan, float value);

/* ---- the same in double: bounds on the above -------------------------------------------------------------------- */

/* One row. `size[d]`, where not NULL, is the sum of the magnitudes that went into y[d]. */
void aura_ref_rotate_double(double *y, double *size, const double *x, const struct aura_rotation_plan *plan);

/* How far an encoded row is from the best that double arithmetic finds: the larger of its relative loss of cosine and
 * the relative error of its scale. 1 where that is NaN. */
double aura_ref_encode_error(const uint8_t *packed, float scale, const float *y, const struct aura_codec_plan *plan);

/* ---- bounded stages: sums in double, rounded to f32 at the end; kernels too, likewise ----------------------------- */

aura_row_score_fn aura_row_score_ref;
aura_row_softmax_fn aura_row_softmax_ref;
aura_row_value_fn aura_row_value_ref;
aura_row_reduce_fn aura_row_reduce_ref;

/* Coordinate d of row t. */
double aura_ref_coordinate(const struct aura_rows *rows, size_t t, uint32_t d);

/* ---- tiles: integers, and floats in one order; kernels too, likewise ----------------------------------------------- */

aura_encode_fn aura_encode_ref;
aura_feedback_fn aura_feedback_ref;
aura_pack_fn aura_pack_ref;
aura_unpack_fn aura_unpack_ref;
aura_widen_fn aura_widen_ref;
aura_narrow_fn aura_narrow_ref;
aura_query_fn aura_query_ref;
aura_reference_fn aura_reference_ref;
aura_score_fn aura_score_ref;
aura_softmax_fn aura_softmax_ref;
aura_value_fn aura_value_ref;

/* encode and feedback of a plan with a trellis: ref_trellis.c. */
void aura_ref_encode_trellis(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, size_t n);
void aura_ref_feedback_trellis(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                               const struct aura_metric *metric, size_t n);

/* c[dim] = the levels that the codes of a vector stand for. */
void aura_ref_levels(float *c, const uint8_t *code, const struct aura_codec_plan *plan);

/* x + sum over j > i of l[j][i] e[j], from the last j to the first. */
float aura_ref_chain(float x, const float *e, const struct aura_metric *metric, uint32_t i);

/* In double: what the error of a vector that is stored as these codes with this scale costs. size: what the vector itself would. */
double aura_ref_metric_error(const uint8_t *code, double scale, const float *y, const struct aura_codec_plan *plan,
                             const struct aura_metric *metric, double *size);

/* Code i along the packed axis and its level, in the given lane. */
uint8_t aura_ref_code(const struct aura_tile *tile, uint32_t i, uint32_t lane);
int32_t aura_ref_level(const struct aura_tile *tile, uint32_t i, uint32_t lane);

/* ---- attention, in double ---------------------------------------------------------------------------------------- */

/* n vectors as a cache holds them: packed codes, or plain floats where codec is NULL. */
struct aura_ref_rows {
    const struct aura_codec_plan *codec;
    const uint8_t *packed;  /* [n][row_bytes] */
    const float *scale;     /* [n] */
    const float *plain;     /* [n][dim] */
    uint32_t dim;
};

/* An attention result over some of the tokens, not yet normalised: weights are exp(score - m), l is their sum, o the
 * weighted sum of the values. m = -inf: no token, whatever l and o hold. */
struct aura_ref_partial {
    double m, l;
    double o[AURA_MAX_DIM];
};

void aura_ref_row(double *x, const struct aura_ref_rows *rows, size_t t);
void aura_ref_score(double *score, const double *q, const struct aura_ref_rows *keys, size_t first, size_t end);
void aura_ref_softmax(double *weight, double *lse, const double *score, size_t n, double sink);
void aura_ref_value(double *out, const double *weight, const struct aura_ref_rows *values, size_t first, size_t end);

size_t aura_ref_first_visible(size_t n_tokens, uint64_t window);
void aura_ref_partial_clear(struct aura_ref_partial *partial);
void aura_ref_attend(struct aura_ref_partial *partial, const double *q, const struct aura_ref_rows *keys,
                     const struct aura_ref_rows *values, size_t first, size_t end);
void aura_ref_merge(struct aura_ref_partial *into, const struct aura_ref_partial *part, uint32_t dim);
void aura_ref_merge_sink(struct aura_ref_partial *into, double sink, uint32_t dim);
int aura_ref_finish(double *out, double *lse, const struct aura_ref_partial *partial, uint32_t dim);
int aura_ref_merge_undo(double *out, double *lse, const struct aura_ref_partial *parts, size_t n_parts, double sink,
                        const struct aura_rotation_plan *undo);

#endif
