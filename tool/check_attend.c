/* The cases of the bounded stages: score, softmax, value, reduce. What is right is computed here, in double, from the
 * definition of a coordinate in ref_attend.c; errors are relative to the sum of the magnitudes added up. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../src/codebook.h"
#include "../src/dtype.h"
#include "../src/ref.h"
#include "inputs.h"

enum { MAX_QUERIES = 7, MAX_TOKENS = 40 };

static const size_t token_counts[] = {0, 1, 3, 4, 5, 8, 15, 16, 17, 31, 33, MAX_TOKENS};

static double decoded[MAX_TOKENS * AURA_MAX_DIM]; /* [token][dim], the rows of the case */

/* Rows of the variant's kind, ending where the arena says; gaps between rows hold NaN or canaries, never zeros. */
static struct aura_rows make_rows(const struct trial *t, uint32_t dim, size_t n, struct layout layout, uint64_t *state)
{
    static float centroid[256];
    uint32_t kind = t->variant->kind;
    size_t bytes = kind <= 8 ? dim * kind / 8 : kind == AURA_ROW_F32 ? 4 * dim : 2 * dim, gap = random_bits(state) % 3 * 4;
    struct aura_rows rows = {NULL, bytes + gap, kind, dim, AURA_PADDED(dim) + random_bits(state) % 2 * 16, centroid};
    size_t total = n ? (n - 1) * rows.stride + bytes : 0, element = kind == AURA_ROW_F32 ? 4 : 1;
    uint8_t *data = place(&in, total / element, element, layout);
    const aura_codebook *book;
    do
        book = &aura_codebook_list[random_bits(state) % aura_codebook_count];
    while (kind <= 8 && book->bits != kind);
    for (uint32_t i = 0; i < 256; i++)
        centroid[i] = book->centroid[i % book->levels];
    for (size_t i = 0; i < in.bytes; i++)
        data[i] = 0xff; /* in the gaps: NaN as any kind of number */
    for (size_t row = 0; row < n; row++)
        for (uint32_t d = 0; d < dim; d++) {
            float x = random_normal(state);
            uint16_t half = kind == AURA_ROW_F16 ? aura_f16_from_f32(x) : aura_bf16_from_f32(x);
            if (kind == AURA_ROW_F32)
                memcpy(data + row * rows.stride + 4 * d, &x, 4);
            else if (kind > 8)
                memcpy(data + row * rows.stride + 2 * d, &half, 2);
            else if (d < bytes)
                data[row * rows.stride + d] = (uint8_t)random_bits(state);
        }
    rows.data = data;
    for (size_t i = 0; i < n * dim; i++)
        decoded[i] = aura_ref_coordinate(&rows, i / dim, (uint32_t)(i % dim));
    return rows;
}

static void score_case(struct trial *t, uint32_t dim, size_t queries, size_t n, uint64_t *state)
{
    struct layout layout = layout_of(t->cases);
    struct aura_rows rows = make_rows(t, dim, n, layout, state);
    size_t stride = n + random_bits(state) % 4;
    float q[MAX_QUERIES * (AURA_MAX_DIM + 16)], scale[MAX_TOKENS];
    snprintf(t->where, sizeof t->where, "dim %u, %zu queries, %zu tokens", dim, queries, n);
    for (size_t g = 0; g < queries; g++)
        for (size_t d = 0; d < rows.query_stride; d++) /* zeros to the next 16, then what must not be read */
            q[g * rows.query_stride + d] = d < dim ? random_normal(state) : d < AURA_PADDED(dim) ? 0 : NAN;
    for (size_t i = 0; i < n; i++)
        scale[i] = scale_of_kind(n > 4 ? (int)(random_bits(state) % 3) : 0, state);
    float *s = place(&out, queries && n ? (queries - 1) * stride + n : 0, sizeof(float), layout);
    float *from = place(&in2, n, sizeof(float), layout);
    memcpy(from, scale, n * sizeof *scale);
    ((aura_score_fn *)t->variant->run)(s, stride, q, &rows, from, queries, n);
    check_canaries(t);
    for (size_t g = 0; g < queries; g++)
        for (size_t i = 0; i < n; i++) {
            double sum = 0, size = 0x1p-120;
            for (uint32_t d = 0; d < dim; d++) {
                double term = scale[i] * q[g * rows.query_stride + d] * decoded[i * dim + d];
                sum += term, size += fabs(term);
            }
            bound(t, fabs(s[g * stride + i] - sum) / size, "score", g * n + i);
        }
    t->cases++;
}

static void value_case(struct trial *t, uint32_t dim, size_t queries, size_t n, uint64_t *state)
{
    static float before[MAX_QUERIES * (AURA_MAX_DIM + 16)];
    struct layout layout = layout_of(t->cases);
    struct aura_rows rows = make_rows(t, dim, n, layout, state);
    size_t stride = n + random_bits(state) % 4, acc_size = queries * rows.query_stride;
    snprintf(t->where, sizeof t->where, "dim %u, %zu queries, %zu tokens", dim, queries, n);
    float *w = place(&in2, queries && n ? (queries - 1) * stride + n : 0, sizeof(float), layout);
    float *acc = place(&out, acc_size, sizeof(float), layout);
    for (size_t i = 0; i < in2.bytes / sizeof *w; i++)
        w[i] = i % stride < n ? (float)random_uniform(state) : NAN;
    fill_vector(before, acc_size, NORMAL, state);
    memcpy(acc, before, acc_size * sizeof *acc);
    ((aura_value_fn *)t->variant->run)(acc, w, stride, &rows, queries, n);
    check_canaries(t);
    for (size_t g = 0; g < queries; g++)
        for (uint32_t d = 0; d < rows.query_stride; d++) {
            size_t at = g * rows.query_stride + d;
            double sum = before[at], size = fabs(sum) + 0x1p-120;
            for (size_t i = 0; d < dim && i < n; i++) {
                double term = w[g * stride + i] * decoded[i * dim + d];
                sum += term, size += fabs(term);
            }
            if (d >= dim && memcmp(&acc[at], &before[at], sizeof *acc))
                fail(t, "wrote lane %u past dim", d);
            bound(t, fabs(acc[at] - sum) / size, "coordinate", at);
        }
    t->cases++;
}

/* Kinds: ordinary, peaked, all masked, some masked, far below the running maximum, a NaN, an infinity. */
static void softmax_case(struct trial *t, int kind, int fresh, size_t n, uint64_t *state)
{
    float score[MAX_TOKENS], max = kind == 4 ? 300 : fresh ? -INFINITY : 1, sum = max > -1e30f ? 2.5f : 0;
    float old_max = max, old_sum = sum;
    float *w = place(&out, n, sizeof(float), layout_of(t->cases));
    snprintf(t->where, sizeof t->where, "kind %d, %s, %zu scores", kind, fresh ? "first" : "not first", n);
    for (size_t i = 0; i < n; i++) {
        score[i] = random_normal(state) * (kind == 1 ? 300.f : 3.f);
        if (kind == 2 || (kind == 3 && random_bits(state) % 2))
            score[i] = -INFINITY;
    }
    if (n && kind >= 5)
        score[random_bits(state) % n] = kind == 5 ? NAN : INFINITY;
    memcpy(w, score, n * sizeof *w);
    float kept = ((aura_softmax_fn *)t->variant->run)(w, &max, &sum, n);
    check_canaries(t);
    t->cases++;
    if (n && kind >= 5) {
        if (!isnan(sum))
            fail(t, "a score that is no number left the sum %g", (double)sum);
        return;
    }
    double m = old_max, total = 0;
    for (size_t i = 0; i < n; i++)
        m = score[i] > m ? score[i] : m;
    if ((double)max != m)
        fail(t, "the maximum is %g, not %g", (double)max, m);
    double want = m == -INFINITY ? 1 : exp(old_max - m);
    bound(t, fabs(kept - want), "the factor", 0);
    total = old_sum * want;
    for (size_t i = 0; i < n; i++) {
        double p = score[i] == -INFINITY ? 0 : exp(score[i] - m);
        if (score[i] == -INFINITY && w[i] != 0)
            fail(t, "a masked score has weight %g", (double)w[i]);
        /* score - max is rounded before exp sees it, which moves the weight by that much of itself */
        double argument = p > 0 ? fabs(score[i] - m) : 0;
        bound(t, fabs(w[i] - p) / (p * (1 + argument) + 1e-30), "weight", i);
        total += p;
    }
    bound(t, fabs(sum - total) / (total + 1e-30), "the sum", 0);
}

static void reduce_case(struct trial *t, uint32_t dim, uint32_t nwg, uint64_t *state)
{
    struct layout layout = layout_of(t->cases);
    float *partial = place(&in, (size_t)dim * nwg, sizeof(float), layout);
    float *weight = place(&in2, nwg, sizeof(float), layout), *row = place(&out, dim, sizeof(float), layout);
    snprintf(t->where, sizeof t->where, "dim %u, %u workgroups", dim, nwg);
    fill_vector(partial, (size_t)dim * nwg, NORMAL, state);
    for (uint32_t w = 0; w < nwg; w++)
        weight[w] = (float)random_uniform(state);
    ((aura_reduce_fn *)t->variant->run)(row, weight, partial, dim, nwg);
    check_canaries(t);
    for (uint32_t d = 0; d < dim; d++) {
        double sum = 0, size = 0x1p-120;
        for (uint32_t w = 0; w < nwg; w++) {
            double term = (double)weight[w] * partial[((size_t)(d / 4) * nwg + w) * 4 + d % 4];
            sum += term, size += fabs(term);
        }
        bound(t, fabs(row[d] - sum) / size, "coordinate", d);
    }
    t->cases++;
}

void check_attend(struct trial *t)
{
    static const uint32_t dims[] = {8, 24, 64, 80, 96, 112, 120, 128, 192, 256, 512, 1024};
    const char *stage = t->variant->stage;
    uint64_t state = t->seed;
    size_t n_counts = sizeof token_counts / sizeof *token_counts;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t k = 0; k < n_counts && !t->failure[0]; k++) {
            size_t queries = (i + k) % (MAX_QUERIES + 1), n = dims[i] > 512 ? token_counts[k] / 2 : token_counts[k];
            if (!strcmp(stage, "score"))
                score_case(t, dims[i], queries, n, &state);
            else if (!strcmp(stage, "value"))
                value_case(t, dims[i], queries, n, &state);
            else if (!strcmp(stage, "softmax"))
                for (int fresh = 0; fresh < 2; fresh++) /* with and without tokens seen before */
                    softmax_case(t, (int)(i % 7), fresh, n, &state);
            else if (!strcmp(stage, "reduce"))
                reduce_case(t, (uint32_t)(i + 1) * 64, (uint32_t)(1 + (k * 11 + i) % 32), &state);
        }
}
