/* The definition of rotate, undo and the codec over rows; ref_attend.c and ref_tile.c define the other stages. Plain loops,
 * any width of 1 to 8 bits, any dim; no vectors, no tricks. Where a document and these files disagree, these files are right.
 * First the stages whose results are stored or compared bit by bit: in f32, in one order. Then the same in double, which
 * bounds them. */
#include "base/exact.h"
#include "ref.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "rotation.h"

/* ---- exact, in f32 ----------------------------------------------------------------------------------------------- */

static int negative_sign(const struct aura_rotation_plan *plan, uint32_t d)
{
    return plan->negative[d / AURA_LANES] >> (d % AURA_LANES) & 1;
}

/* H x, not normalised: butterflies of stride 1, 2, 4 ... over the Sylvester factor, then the Paley factor as sums in
 * column order. The matrix is Paley (x) Sylvester, so coordinate d is row d / inner of the one and d % inner of the
 * other. Each Paley sum starts at +0. */
static void hadamard(float *y, const struct aura_rotation_plan *plan)
{
    uint32_t dim = plan->dim, inner = plan->inner, outer = plan->outer;
    for (uint32_t stride = 1; stride < inner; stride *= 2)
        for (uint32_t d = 0; d < dim; d++)
            if (!(d & stride)) {
                float a = y[d], b = y[d + stride];
                y[d] = a + b;
                y[d + stride] = a - b;
            }
    if (outer == 1)
        return;
    float x[AURA_MAX_DIM];
    uint64_t residues = aura_paley_residues(outer);
    memcpy(x, y, dim * sizeof *x);
    for (uint32_t d = 0; d < dim; d++) {
        uint32_t row = d / inner;
        float sum = 0;
        for (uint32_t j = 0; j < outer; j++) {
            int negative = plan->transposed ? aura_paley_negative(outer, residues, j, row)
                                            : aura_paley_negative(outer, residues, row, j);
            float term = x[j * inner + d % inner];
            sum = sum + (negative ? -term : term);
        }
        y[d] = sum;
    }
}

/* y = H (sign * (x * balance)) / sqrt(dim) */
void aura_rotate_ref(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n)
{
    for (size_t row = 0; row < n; row++, x += plan->dim, y += plan->dim) {
        for (uint32_t d = 0; d < plan->dim; d++) {
            float v = plan->balance ? x[d] * plan->balance[d] : x[d];
            y[d] = negative_sign(plan, d) ? -v : v;
        }
        hadamard(y, plan);
        for (uint32_t d = 0; d < plan->dim; d++)
            y[d] = y[d] * plan->norm;
    }
}

/* y = balance * (sign * (H^T x / sqrt(dim))) */
void aura_undo_ref(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n)
{
    for (size_t row = 0; row < n; row++, x += plan->dim, y += plan->dim) {
        memmove(y, x, plan->dim * sizeof *y);
        hadamard(y, plan);
        for (uint32_t d = 0; d < plan->dim; d++) {
            float v = y[d] * plan->norm;
            v = negative_sign(plan, d) ? -v : v;
            y[d] = plan->balance ? v * plan->balance[d] : v;
        }
    }
}

/* Sums in order of j, each from +0. */
void aura_row_rotate_dense_ref(float *y, const float *x, const float *columns, uint32_t dim, size_t n)
{
    for (size_t row = 0; row < n; row++, x += dim, y += dim)
        for (uint32_t i = 0; i < dim; i++) {
            float sum = 0;
            for (uint32_t j = 0; j < dim; j++)
                sum = sum + x[j] * columns[(size_t)j * dim + i];
            y[i] = sum;
        }
}

float aura_ref_dot(const float *a, const float *b, uint32_t n)
{
    float partial[AURA_LANES] = {0};
    for (uint32_t i = 0; i < n; i++)
        partial[i % AURA_LANES] = partial[i % AURA_LANES] + a[i] * b[i];
    for (uint32_t half = AURA_LANES / 2; half; half /= 2)
        for (uint32_t i = 0; i < half; i++)
            partial[i] = partial[i] + partial[i + half];
    return partial[0];
}

/* The number of thresholds strictly below the value: a value on a threshold takes the lower index, NaN takes 0. */
uint32_t aura_ref_index(const struct aura_codec_plan *plan, float value)
{
    uint32_t index = 0;
    for (uint32_t i = 0; i + 1 < 1u << plan->bits; i++)
        index += value > plan->threshold[i];
    return index;
}

/* A row is one bit stream, least significant bit first: index d is bits [d * bits, d * bits + bits). */
uint32_t aura_ref_unpack(const uint8_t *row, uint32_t bits, uint32_t d)
{
    uint32_t index = 0;
    for (uint32_t k = 0; k < bits; k++)
        index |= (uint32_t)(row[(d * bits + k) / 8] >> ((d * bits + k) % 8) & 1) << k;
    return index;
}

static void pack(uint8_t *row, uint32_t bits, uint32_t d, uint32_t index)
{
    for (uint32_t k = 0; k < bits; k++)
        row[(d * bits + k) / 8] |= (uint8_t)((index >> k & 1) << ((d * bits + k) % 8));
}

/* The factor that brings a vector to the table before thresholds are compared: its RMS becomes fit * sigma, or, for
 * the equally spaced tables, its largest coordinate becomes fit * top. 0 for a vector too small to matter. */
static float gain(const float *y, const struct aura_codec_plan *plan, float norm2, float fit)
{
    if (sqrtf(norm2) <= plan->tiny)
        return 0;
    if (!plan->uniform)
        return (fit * plan->sigma) / sqrtf(norm2 / (float)plan->dim);
    float largest = 0;
    for (uint32_t d = 0; d < plan->dim; d++)
        largest = fabsf(y[d]) > largest ? fabsf(y[d]) : largest;
    return (fit * plan->top) / largest;
}

/* Every fit of the plan is tried; the one whose centroids have the best cosine with y wins, the first among equals.
 * Edge cases: |y| <= tiny stores the codes of 0, and scale 0 unless the plan keeps it. Centroids that are all 0,
 * and for the unbiased rule those not on the vector's side at all (<y,c> <= 0: a strange table), store scale 0. */
void aura_row_encode_ref(uint8_t *packed, float *scale, const float *y, const struct aura_codec_plan *plan, size_t n)
{
    for (size_t row = 0; row < n; row++, y += plan->dim, packed += plan->row_bytes) {
        uint32_t index[AURA_MAX_DIM];
        float c[AURA_MAX_DIM];
        float norm2 = aura_ref_dot(y, y, plan->dim), best = -1, best_fit = plan->fits[0], dot = 0, size2 = 0;
        for (uint32_t k = 0; k <= plan->n_fits; k++) { /* one more round, to take the codes of the best */
            float fit = k < plan->n_fits ? plan->fits[k] : best_fit, factor = gain(y, plan, norm2, fit);
            for (uint32_t d = 0; d < plan->dim; d++) {
                index[d] = aura_ref_index(plan, y[d] * factor);
                c[d] = plan->centroid[index[d]];
            }
            dot = aura_ref_dot(y, c, plan->dim);
            size2 = aura_ref_dot(c, c, plan->dim);
            float cosine = dot / sqrtf(size2); /* times |y|; NaN when size2 is 0, which is never better */
            if (k < plan->n_fits && cosine > best) {
                best = cosine;
                best_fit = fit;
            }
        }
        memset(packed, 0, plan->row_bytes);
        for (uint32_t d = 0; d < plan->dim; d++)
            pack(packed, plan->bits, d, index[d]);
        if ((sqrtf(norm2) <= plan->tiny && !plan->keep_tiny) || size2 == 0)
            scale[row] = 0;
        else if (plan->rule == AURA_SCALE_MATCHED)
            scale[row] = sqrtf(norm2) / sqrtf(size2);
        else if (plan->rule == AURA_SCALE_UNBIASED)
            scale[row] = dot > 0 ? norm2 / dot : 0;
        else
            scale[row] = sqrtf(norm2 / (float)plan->dim) / plan->sigma;
    }
}

void aura_row_dequant_ref(float *x, const uint8_t *packed, const float *scale, const struct aura_codec_plan *plan, size_t n)
{
    for (size_t row = 0; row < n; row++, x += plan->dim, packed += plan->row_bytes)
        for (uint32_t d = 0; d < plan->dim; d++)
            x[d] = plan->centroid[aura_ref_unpack(packed, plan->bits, d)] * scale[row];
}

/* ---- the bounds, in double ---------------------------------------------------------------------------------------- */

/* Entry (i, j) of the whole matrix, from its definition rather than by butterflies. */
static double hadamard_entry(const struct aura_rotation_plan *plan, uint64_t residues, uint32_t i, uint32_t j)
{
    uint32_t inner = plan->inner, a = i / inner, b = j / inner, common = (i % inner) & (j % inner);
    int negative = 0;
    if (plan->outer > 1)
        negative = aura_paley_negative(plan->outer, residues, plan->transposed ? b : a, plan->transposed ? a : b);
    for (; common; common &= common - 1)
        negative ^= 1;
    return negative ? -1 : 1;
}

void aura_ref_rotate_double(double *y, double *size, const double *x, const struct aura_rotation_plan *plan)
{
    uint64_t residues = plan->outer > 1 ? aura_paley_residues(plan->outer) : 0;
    double norm = 1 / sqrt((double)plan->dim);
    for (uint32_t i = 0; i < plan->dim; i++) {
        double sum = 0, magnitude = 0;
        for (uint32_t j = 0; j < plan->dim; j++) {
            double term = x[j] * hadamard_entry(plan, residues, i, j) * norm;
            if (!plan->transposed)
                term *= (negative_sign(plan, j) ? -1 : 1) * (plan->balance ? (double)plan->balance[j] : 1);
            sum += term;
            magnitude += fabs(term);
        }
        double after = 1;
        if (plan->transposed)
            after = (negative_sign(plan, i) ? -1 : 1) * (plan->balance ? (double)plan->balance[i] : 1);
        y[i] = sum * after;
        if (size)
            size[i] = magnitude * fabs(after);
    }
}

/* The cosine (times |y|) of the codes that one fit gives, in double throughout. */
static double cosine_of_fit(const float *y, const struct aura_codec_plan *plan, double norm2, double fit)
{
    double largest = 0, dot = 0, size2 = 0;
    for (uint32_t d = 0; d < plan->dim; d++)
        largest = fabs(y[d]) > largest ? fabs(y[d]) : largest; /* with fmax, gcc 12 for ARM crashes at -O3 */
    double factor = plan->uniform ? fit * plan->top / largest : fit * plan->sigma / sqrt(norm2 / plan->dim);
    for (uint32_t d = 0; d < plan->dim; d++) {
        uint32_t index = 0;
        for (uint32_t i = 0; i + 1 < 1u << plan->bits; i++)
            index += y[d] * factor > plan->threshold[i];
        dot += y[d] * (double)plan->centroid[index];
        size2 += (double)plan->centroid[index] * plan->centroid[index];
    }
    return size2 > 0 ? dot / sqrt(size2) : 0;
}

double aura_ref_encode_error(const uint8_t *packed, float scale, const float *y, const struct aura_codec_plan *plan)
{
    double norm2 = 0, dot = 0, size2 = 0, best = 0;
    int zero_codes = 1;
    for (uint32_t d = 0; d < plan->dim; d++) {
        uint32_t index = aura_ref_unpack(packed, plan->bits, d);
        double c = plan->centroid[index];
        norm2 += (double)y[d] * y[d];
        dot += y[d] * c;
        size2 += c * c;
        zero_codes &= index == aura_ref_index(plan, 0);
    }
    double near = sqrt(norm2) / plan->tiny;
    if (near <= 1 && !plan->keep_tiny) /* within a rounding of the limit either answer is right */
        return (scale == 0 && zero_codes) || near > 1 - 1e-6 ? 0 : 1;
    if (near <= 1 && !zero_codes && near < 1 - 1e-6)
        return 1;
    for (uint32_t k = 0; k < plan->n_fits; k++)
        best = fmax(best, cosine_of_fit(y, plan, norm2, plan->fits[k]));
    if (size2 == 0 || best == 0 || (plan->rule == AURA_SCALE_UNBIASED && dot <= 0))
        return scale == 0 ? 0 : 1;
    double want = plan->rule == AURA_SCALE_MATCHED    ? sqrt(norm2 / size2)
                  : plan->rule == AURA_SCALE_UNBIASED ? norm2 / dot
                                                      : sqrt(norm2 / plan->dim) / plan->sigma;
    double loss = near <= 1 + 1e-6 ? 0 : (best - dot / sqrt(size2)) / best, error = fabs(scale - want) / fabs(want);
    double worst = loss > error ? loss : error;
    return worst >= 0 ? worst : isnan(worst) ? 1 : 0;
}
