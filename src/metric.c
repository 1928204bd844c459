/* Metrics, made ready once for all vectors of a KV head.
 *
 * A stored vector is off by e, in the space that is rotated and balanced. Its reader notices e'Me: for keys M is E[q q'] of the
 * queries, for values the sum of W'W of the heads' output projections. With M = L D L', L lower triangular with ones on its
 * diagonal,
 *
 *     e'Me = sum over i of D[i] * (e[i] + sum over j > i of L[j][i] e[j])^2
 *
 * so coordinates that are rounded from the last to the first can each make up for those before: GPTQ and QuIP do the same
 * with weights. All in double, + - * / only, in one order: equal metrics give equal bytes everywhere. */
#include "base/exact.h"
#include "metric.h"

#include <math.h>
#include <string.h>

#include "rotation.h"

/* A part of the mean diagonal that is added to the whole diagonal. It bounds what real queries that are unlike those of the
 * calibration can make of an error. */
#define RIDGE 0x1p-7

/* y = the rotation of x, not normalised: butterflies, then the Paley factor as sums in column order. */
static void rotate_row(double *y, const double *x, const struct aura_rotation_plan *plan)
{
    const uint32_t dim = plan->dim, inner = plan->inner, outer = plan->outer;
    double t[AURA_TILE_DIM];
    for (uint32_t d = 0; d < dim; d++)
        t[d] = plan->negative[d / AURA_LANES] >> (d % AURA_LANES) & 1 ? -x[d] : x[d];
    for (uint32_t stride = 1; stride < inner; stride *= 2)
        for (uint32_t d = 0; d < dim; d++)
            if (!(d & stride)) {
                const double a = t[d], b = t[d + stride];
                t[d] = a + b;
                t[d + stride] = a - b;
            }
    for (uint32_t d = 0; d < dim; d++) {
        const uint16_t *negative = plan->outer_negative + d / AURA_LANES * outer;
        double sum = outer == 1 ? t[d] : 0;
        for (uint32_t j = 0; outer > 1 && j < outer; j++) {
            const double term = t[j * inner + d % inner];
            sum += negative[j] >> (d % AURA_LANES) & 1 ? -term : term;
        }
        y[d] = sum;
    }
}

/* a[dim][dim], symmetric: both its rows and its columns are rotated. row: [dim]. */
static void rotate_both(double *a, double *row, const struct aura_rotation_plan *plan)
{
    const size_t dim = plan->dim;
    for (int side = 0; side < 2; side++) {
        for (size_t i = 0; i < dim; i++) {
            rotate_row(row, a + i * dim, plan);
            memcpy(a + i * dim, row, dim * sizeof *row);
        }
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j < i; j++) {
                const double other = a[i * dim + j];
                a[i * dim + j] = a[j * dim + i];
                a[j * dim + i] = other;
            }
    }
}

/* The whole matrix from its triangle, on either side divided by the balance, with zeros from `given` on. Returns its trace; NaN
 * where a number is none. */
static double load(double *a, const float *triangle, uint32_t given, const float *inverse_balance, uint32_t dim)
{
    double trace = 0, none = 0, size = 0;
    memset(a, 0, (size_t)dim * dim * sizeof *a);
    for (uint32_t i = 0; i < given; i++)
        for (uint32_t j = 0; j <= i; j++) {
            double x = triangle[(size_t)i * (i + 1) / 2 + j];
            none += x * 0; /* NaN for Inf, too */
            size += fabs(x);
            if (inverse_balance)
                x = x * inverse_balance[i] * inverse_balance[j];
            a[(size_t)i * dim + j] = a[(size_t)j * dim + i] = x;
            trace += i == j ? x : 0;
        }
    return trace == 0 && size > 0 ? NAN : trace + none;
}

/* a / mean + RIDGE = L D L' in place, L below the diagonal and D on it. product: [dim]. Returns 0 where D is less than the ridge
 * by more than rounding explains. */
static int factorise(double *a, double *product, uint32_t n, double mean)
{
    const size_t dim = n;
    for (size_t i = 0; i < dim * dim; i++)
        a[i] = a[i] / mean;
    for (size_t j = 0; j < dim; j++) {
        double *row = a + j * dim;
        double pivot = row[j] + RIDGE;
        for (size_t k = 0; k < j; k++) {
            product[k] = row[k] * a[k * dim + k];
            pivot = pivot - row[k] * product[k];
        }
        if (!(pivot >= RIDGE / 2))
            return 0;
        row[j] = pivot;
        for (size_t i = j + 1; i < dim; i++) {
            double x = a[i * dim + j];
            for (size_t k = 0; k < j; k++)
                x = x - a[i * dim + k] * product[k];
            a[i * dim + j] = x / pivot;
        }
    }
    return 1;
}

int aura_is_metric(double *scratch, const float *triangle, uint32_t dim)
{
    const double trace = load(scratch, triangle, dim, NULL, dim);
    return trace == 0 || (trace > 0 && trace < 0x1p900 && factorise(scratch, scratch + (size_t)dim * dim, dim, trace / dim));
}

int aura_metric_init(struct aura_metric *metric, float *memory, double *scratch, const float *triangle, uint32_t given,
                     const float *inverse_balance, const struct aura_rotation_plan *rotate)
{
    const uint32_t dim = rotate->dim;
    double *row = scratch + (size_t)dim * dim;
    const double trace = load(scratch, triangle, given, inverse_balance, dim);
    metric->dim = dim;
    metric->l = memory;
    metric->weight = memory + (size_t)dim * dim;
    if (!(trace >= 0) || trace > 0x1p900) /* NaN is neither */
        return 0;
    if (trace == 0) {
        for (size_t i = 0; i < dim; i++)
            for (size_t j = 0; j < dim; j++)
                scratch[i * dim + j] = i == j;
    } else {
        rotate_both(scratch, row, rotate);
        if (!factorise(scratch, row, dim, trace)) /* rotated, but not normalised: its trace is dim times as large */
            return 0;
    }
    for (size_t i = 0; i < dim; i++) {
        for (size_t j = 0; j < dim; j++)
            memory[i * dim + j] = j < i ? (float)scratch[i * dim + j] : 0;
        memory[(size_t)dim * dim + i] = (float)scratch[i * dim + i];
    }
    return 1;
}
