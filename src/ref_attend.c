/* The definition of attention, in double: score, softmax, value; the same in one pass; partial results and how
 * they merge. The edge cases are decided here, once, for every kernel:
 *
 *   no token visible          output 0, log-sum-exp -inf
 *   score -inf (masked)       weight 0; all scores -inf is the same as no token. (The public kernels differ: NaN there)
 *   score NaN or +inf         the row is NaN and reported: an overflow or bad data, never a plausible number
 *   sink -inf                 no sink
 *   sink +inf                 takes all the weight: output 0, log-sum-exp +inf
 *   sink NaN                  the row is NaN and reported
 *   only a sink               output 0, log-sum-exp = sink
 *   window 0                  no window; window W >= 1 keeps the last min(W, n) tokens, for any W up to 2^64 - 1
 *   key with scale 0          score 0: the token is visible and has its weight
 *   value with scale 0        adds nothing to the output, its weight to the sum */
#include "base/exact.h"
#include "ref.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"

double aura_ref_coordinate(const struct aura_rows *rows, size_t t, uint32_t d)
{
    const uint8_t *row = rows->data + t * rows->stride;
    float x;
    uint16_t half;
    if (rows->kind <= 8)
        return rows->centroid[aura_ref_unpack(row, rows->kind, d)];
    if (rows->kind == AURA_ROW_F32) {
        memcpy(&x, row + 4 * d, sizeof x);
        return x;
    }
    memcpy(&half, row + 2 * d, sizeof half);
    return rows->kind == AURA_ROW_F16 ? aura_f32_from_f16(half) : aura_f32_from_bf16(half);
}

void aura_row_score_ref(float *score, size_t score_stride, const float *q, const struct aura_rows *rows, const float *scale,
                    size_t n_query, size_t n)
{
    for (size_t g = 0; g < n_query; g++)
        for (size_t t = 0; t < n; t++) {
            double sum = 0;
            for (uint32_t d = 0; d < rows->dim; d++)
                sum += (double)q[g * rows->query_stride + d] * aura_ref_coordinate(rows, t, d);
            score[g * score_stride + t] = (float)(sum * scale[t]);
        }
}

float aura_row_softmax_ref(float *weight, float *max, float *sum, size_t n)
{
    float m = *max;
    for (size_t t = 0; t < n; t++)
        m = weight[t] > m ? weight[t] : m;
    double kept = m == -INFINITY ? 1 : exp((double)*max - m), total = *sum * kept;
    for (size_t t = 0; t < n; t++) {
        double w = weight[t] == -INFINITY ? 0 : exp((double)weight[t] - m);
        total += w;
        weight[t] = (float)w;
    }
    *max = m;
    *sum = (float)total;
    return (float)kept;
}

void aura_row_value_ref(float *acc, const float *weight, size_t weight_stride, const struct aura_rows *rows, size_t n_query,
                    size_t n)
{
    for (size_t g = 0; g < n_query; g++)
        for (uint32_t d = 0; d < rows->dim; d++) {
            double sum = acc[g * rows->query_stride + d];
            for (size_t t = 0; t < n; t++)
                sum += (double)weight[g * weight_stride + t] * aura_ref_coordinate(rows, t, d);
            acc[g * rows->query_stride + d] = (float)sum;
        }
}

void aura_row_reduce_ref(float *out, const float *weight, const float *partial, uint32_t dim, uint32_t nwg)
{
    for (uint32_t d = 0; d < dim; d++) {
        double sum = 0;
        for (uint32_t w = 0; w < nwg; w++)
            sum += (double)weight[w] * partial[((size_t)(d / 4) * nwg + w) * 4 + d % 4];
        out[d] = (float)sum;
    }
}

void aura_ref_row(double *x, const struct aura_ref_rows *rows, size_t t)
{
    const struct aura_codec_plan *codec = rows->codec;
    for (uint32_t d = 0; d < rows->dim; d++)
        x[d] = codec ? (double)codec->centroid[aura_ref_unpack(rows->packed + t * codec->row_bytes, codec->bits, d)] *
                           rows->scale[t]
                     : (double)rows->plain[t * rows->dim + d];
}

/* score[t - first] = q . key t. q is rotated like the keys and carries the softmax scale. */
void aura_ref_score(double *score, const double *q, const struct aura_ref_rows *keys, size_t first, size_t end)
{
    double key[AURA_MAX_DIM];
    for (size_t t = first; t < end; t++) {
        double sum = 0;
        aura_ref_row(key, keys, t);
        for (uint32_t d = 0; d < keys->dim; d++)
            sum += q[d] * key[d];
        score[t - first] = sum;
    }
}

/* exp(a - b), where two equal infinities are equal. */
static double exp_difference(double a, double b)
{
    return a == b ? 1 : exp(a - b);
}

/* weight[t] = exp(score[t] - lse), lse = log(sum of exp(score) + exp(sink)); sink -inf: none. */
void aura_ref_softmax(double *weight, double *lse, const double *score, size_t n, double sink)
{
    double max = sink, sum = 0;
    int bad = isnan(sink);
    for (size_t t = 0; t < n; t++) {
        bad |= isnan(score[t]) || score[t] == INFINITY;
        max = score[t] > max ? score[t] : max;
    }
    sum = sink > -INFINITY ? exp_difference(sink, max) : 0;
    for (size_t t = 0; t < n; t++)
        sum += weight[t] = score[t] > -INFINITY ? exp_difference(score[t], max) : 0;
    for (size_t t = 0; t < n; t++)
        weight[t] = bad ? NAN : sum > 0 ? weight[t] / sum : 0;
    *lse = bad ? NAN : sum > 0 ? max + log(sum) : -INFINITY;
}

/* out[d] = sum over t of weight[t - first] * value t [d] */
void aura_ref_value(double *out, const double *weight, const struct aura_ref_rows *values, size_t first, size_t end)
{
    double value[AURA_MAX_DIM];
    memset(out, 0, values->dim * sizeof *out);
    for (size_t t = first; t < end; t++) {
        aura_ref_row(value, values, t);
        for (uint32_t d = 0; d < values->dim; d++)
            out[d] += weight[t - first] * value[d];
    }
}

size_t aura_ref_first_visible(size_t n_tokens, uint64_t window)
{
    return window == 0 || window >= n_tokens ? 0 : n_tokens - (size_t)window;
}

void aura_ref_partial_clear(struct aura_ref_partial *partial)
{
    memset(partial, 0, sizeof *partial);
    partial->m = -INFINITY;
}

/* Adds the tokens [first, end) one by one, keeping the largest score as the unit of the weights. */
void aura_ref_attend(struct aura_ref_partial *partial, const double *q, const struct aura_ref_rows *keys,
                     const struct aura_ref_rows *values, size_t first, size_t end)
{
    double value[AURA_MAX_DIM], score;
    for (size_t t = first; t < end; t++) {
        aura_ref_score(&score, q, keys, t, t + 1);
        if (score == INFINITY)
            score = NAN;
        if (score == -INFINITY)
            continue;
        aura_ref_row(value, values, t);
        double m = partial->m > score ? partial->m : score; /* NaN is kept: it is on the right */
        double keep = isnan(m) ? NAN : exp_difference(partial->m, m), add = isnan(m) ? NAN : exp(score - m);
        for (uint32_t d = 0; d < values->dim; d++)
            partial->o[d] = partial->o[d] * keep + add * value[d];
        partial->l = partial->l * keep + add;
        partial->m = m;
    }
}

/* Weights of a part are in units of exp(its m); both are brought to the larger. Associative and order-free but for
 * rounding; a part with m = -inf is the identity. */
void aura_ref_merge(struct aura_ref_partial *into, const struct aura_ref_partial *part, uint32_t dim)
{
    if (part->m == -INFINITY)
        return;
    double m = isnan(into->m) || isnan(part->m) ? NAN : fmax(into->m, part->m);
    double keep = isnan(m) ? NAN : exp_difference(into->m, m), add = isnan(m) ? NAN : exp_difference(part->m, m);
    if (into->m == -INFINITY)
        keep = 0;
    for (uint32_t d = 0; d < dim; d++)
        into->o[d] = into->o[d] * keep + part->o[d] * add;
    into->l = into->l * keep + part->l * add;
    into->m = m;
}

/* A learned sink is one more token, whose value is 0. */
void aura_ref_merge_sink(struct aura_ref_partial *into, double sink, uint32_t dim)
{
    struct aura_ref_partial part;
    aura_ref_partial_clear(&part);
    part.m = sink;
    part.l = 1;
    aura_ref_merge(into, &part, dim);
}

/* Normalises. Returns 1 for a row that is not a number; the caller must report it. */
int aura_ref_finish(double *out, double *lse, const struct aura_ref_partial *partial, uint32_t dim)
{
    int empty = partial->m == -INFINITY;
    for (uint32_t d = 0; d < dim; d++)
        out[d] = empty ? 0 : partial->o[d] / partial->l;
    *lse = empty ? -INFINITY : partial->m + log(partial->l);
    return isnan(*lse);
}

/* Merge, sink, normalise and leave the rotated space, as one step. */
int aura_ref_merge_undo(double *out, double *lse, const struct aura_ref_partial *parts, size_t n_parts, double sink,
                        const struct aura_rotation_plan *undo)
{
    struct aura_ref_partial all;
    double rotated[AURA_MAX_DIM];
    aura_ref_partial_clear(&all);
    for (size_t i = 0; i < n_parts; i++)
        aura_ref_merge(&all, &parts[i], undo->dim);
    aura_ref_merge_sink(&all, sink, undo->dim);
    int bad = aura_ref_finish(rotated, lse, &all, undo->dim);
    aura_ref_rotate_double(out, NULL, rotated, undo);
    return bad;
}
