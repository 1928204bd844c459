/* The cases of the bounded stages: row_score, row_softmax, row_value, row_reduce, softmax. The right result is computed here, in
 * double, from the definition of a coordinate in ref_attend.c. Errors are relative to the sum of the magnitudes added up. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../src/codebook.h"
#include "../../src/base/dtype.h"
#include "../../src/ref.h"
#include "../parts/inputs.h"

enum { MAX_QUERIES = 7, MAX_TOKENS = 40, MAX_WEIGHTS = 33 };

static const size_t token_counts[] = {0, 1, 3, 4, 5, 8, 15, 16, 17, 31, 33, MAX_TOKENS};

static double decoded[MAX_TOKENS * AURA_MAX_DIM]; /* [token][dim], the rows of the case */

/* Makes rows of the variant's kind, which end where the arena says. Gaps between rows hold NaN or canaries, never zeros. */
static struct aura_rows make_rows(const struct trial *t, uint32_t dim, size_t n, struct layout layout, uint64_t *state)
{
    static float centroid[256];
    uint32_t kind = t->variant->kind;
    size_t bytes = kind <= 8 ? dim * kind / 8 : kind == AURA_ROW_F32 ? 4 * dim : 2 * dim, gap = random_bits(state) % 3 * 4;
    struct aura_rows rows = {NULL, bytes + gap, kind, dim, AURA_PADDED(dim) + random_bits(state) % 2 * 16, 64 * (bytes + gap),
                              centroid};
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
        for (size_t d = 0; d < rows.query_stride; d++) /* zeros up to a multiple of 16, then numbers that no kernel may read */
            q[g * rows.query_stride + d] = d < dim ? random_normal(state) : d < AURA_PADDED(dim) ? 0 : NAN;
    for (size_t i = 0; i < n; i++)
        scale[i] = scale_of_kind(n > 4 ? (int)(random_bits(state) % 3) : 0, state);
    float *s = place(&out, queries && n ? (queries - 1) * stride + n : 0, sizeof(float), layout);
    float *from = place(&in2, n, sizeof(float), layout);
    memcpy(from, scale, n * sizeof *scale);
    ((aura_row_score_fn *)t->variant->run)(s, stride, q, &rows, from, queries, n);
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
    ((aura_row_value_fn *)t->variant->run)(acc, w, stride, &rows, queries, n);
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
    float factor = ((aura_row_softmax_fn *)t->variant->run)(w, &max, &sum, n);
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
    bound(t, fabs(factor - want), "the factor", 0);
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
    ((aura_row_reduce_fn *)t->variant->run)(row, weight, partial, dim, nwg);
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

/* Ordinary, peaked, all masked, some masked, +-1000, a NaN, an infinity. */
static void fill_logits(float *p, int kind, uint64_t *state)
{
    for (int i = 0; i < AURA_TILE; i++) {
        p[i] = random_normal(state) * (kind == 1 ? 300.f : 3.f);
        if (kind == 2 || (kind == 3 && pick(state, 2)))
            p[i] = -INFINITY;
        if (kind == 4)
            p[i] = pick(state, 2) ? 1000.f : -1000.f;
    }
    if (kind >= 5)
        p[pick(state, AURA_TILE)] = kind == 5 ? NAN : INFINITY;
}

static double total_of(const struct aura_softmax_row *row)
{
    double sum = 0;
    for (int i = 0; i < AURA_LANES; i++)
        sum += row->sum[i];
    return sum;
}

/* Compares the integers with the products of p and scale: the largest product has the largest integer, the others the nearest. */
static void check_integers(struct trial *t, const struct aura_weight *w, const float *p, const struct aura_scales *scales,
                           int planes)
{
    float product[AURA_TILE], top = 0;
    int most = planes == 1 ? 255 : 65280, largest = 0;
    for (int i = 0; i < AURA_TILE; i++) {
        product[i] = p[i] * aura_f32_from_f16(scales->v[i]);
        top = product[i] > top ? product[i] : top;
    }
    float factor = top >= 0x1p-100f ? top * (1 / (float)most) : 0, product_factor = factor * scales->step;
    same_floats(t, &w->factor, &product_factor, 1, "factor");
    for (int i = 0; i < AURA_TILE; i++) {
        int x = planes == 1 ? w->plane[0][i] : 256 * w->plane[0][i] + w->plane[1][i];
        largest = x > largest ? x : largest;
        if (factor > 0 && !(fabs((double)x * factor - product[i]) <= 0.52 * factor))
            fail(t, "integer %d is %d, not %g", i, x, (double)product[i] / factor);
    }
    if (largest != (factor > 0 ? most : 0))
        fail(t, "the largest integer is %d", largest);
}

/* The inputs and outputs of one call: n queries, `tiles` tiles, arrays [tile][query]. */
struct weights {
    size_t n, tiles;
    struct aura_weight *w;
    float *p;
    const float *logit;
    struct aura_softmax_row *row;
    const struct aura_softmax_row *old;
};

static void check_weight_row(struct trial *t, const struct weights *c, size_t g)
{
    const struct aura_softmax_row *row = &c->row[g], *old = &c->old[g];
    double m = old->max, sum;
    for (size_t i = 0; i < c->tiles * AURA_TILE; i++) {
        double x = c->logit[(i / AURA_TILE * c->n + g) * AURA_TILE + i % AURA_TILE];
        m = x > m ? x : m;
    }
    if ((double)row->max != m)
        fail(t, "the maximum is %g, not %g", (double)row->max, m);
    double keep = m == -INFINITY ? 1 : exp2(old->max - m);
    sum = total_of(old) * keep;
    for (size_t i = 0; i < c->tiles; i++)
        bound(t, fabs(c->w[i * c->n + g].keep - (i ? 1 : keep)), "keep", i);
    for (size_t i = 0; i < c->tiles * AURA_TILE; i++) {
        size_t at = (i / AURA_TILE * c->n + g) * AURA_TILE + i % AURA_TILE;
        float logit = c->logit[at], p = c->p[at];
        double want = logit == -INFINITY ? 0 : exp2(logit - m), argument = want > 0 ? fabs(logit - m) : 0;
        if (logit == -INFINITY && p != 0)
            fail(t, "a masked logit has p %g", (double)p);
        bound(t, fabs(p - want) / (want * (1 + argument) + 1e-30), "p", i);
        sum += want;
    }
    bound(t, fabs(total_of(row) - sum) / (sum + 1e-30), "the sum", 0);
}

/* Scales: ordinary, none, some, huge, tiny, too small to matter. */
static uint16_t weight_scale(int kind, uint64_t *state)
{
    static const float sizes[] = {1, 0, 1, 5e4f, 1e-4f, 1e-7f};
    float scale = kind == 2 && pick(state, 2) ? 0 : (0.1f + (float)random_uniform(state)) * sizes[kind];
    return aura_f16_from_f32(scale);
}

static void weight_case(struct trial *t, size_t n, size_t tiles, int scale_kind, uint64_t *state)
{
    static float logit[MAX_WEIGHTS * AURA_TILE];
    static struct aura_softmax_row old[MAX_WEIGHTS];
    static const float maxima[] = {-INFINITY, 1, 1200, -1200};
    struct aura_scales scales[4]; /* the kernel prefetches beyond them, where nothing is mapped */
    int bad[MAX_WEIGHTS] = {0}, planes = 1 + pick(state, 2);
    struct layout layout = layout_of(t->cases++);
    struct weights c = {n, tiles, place(&out, n * tiles, sizeof(struct aura_weight), layout),
                        place(&out2, n * tiles * AURA_TILE, sizeof(float), layout), logit,
                        place(&more, n, sizeof(struct aura_softmax_row), layout), old};
    uint16_t *v_scale = place(&in2, tiles * AURA_TILE, sizeof *v_scale, layout);
    snprintf(t->where, sizeof t->where, "%zu queries, %zu tiles, %d planes, scales %d", n, tiles, planes, scale_kind);
    for (size_t i = 0; i < tiles * AURA_TILE; i++)
        v_scale[i] = weight_scale(scale_kind, state);
    float step = 0.01f + (float)random_uniform(state);
    for (size_t i = 0; i < tiles; i++) {
        struct aura_scales one = {v_scale + i * AURA_TILE, (const uint8_t *)(uintptr_t)64, i * 7, step};
        scales[i] = one;
    }
    for (size_t i = 0; i < n * tiles; i++) {
        int kind = pick(state, 7 + 3 * (int)tiles) % 10; /* 7 to 9 are ordinary: often enough all tiles are */
        kind = kind > 6 ? 0 : kind;
        fill_logits(logit + i * AURA_TILE, kind, state);
        bad[i % n] |= kind >= 5;
    }
    for (size_t g = 0; g < n; g++) {
        old[g].max = maxima[pick(state, 4)];
        for (int i = 0; i < AURA_LANES; i++)
            old[g].sum[i] = old[g].max == -INFINITY ? 0 : (float)random_uniform(state);
    }
    memcpy(c.p, logit, n * tiles * AURA_TILE * sizeof *c.p);
    memcpy(c.row, old, n * sizeof *c.row);
    ((aura_softmax_fn *)t->variant->run)(c.w, c.p, c.row, scales, (uint32_t)planes, n, tiles);
    check_canaries(t);
    for (size_t g = 0; g < n; g++) {
        if (bad[g] && !isnan(total_of(&c.row[g])))
            fail(t, "a logit that is no number left the sum of query %zu %g", g, total_of(&c.row[g]));
        if (bad[g])
            continue;
        check_weight_row(t, &c, g);
        for (size_t i = 0; i < tiles; i++)
            check_integers(t, &c.w[i * n + g], c.p + (i * n + g) * AURA_TILE, &scales[i], planes);
    }
}

static void check_softmax_tile(struct trial *t)
{
    static const size_t counts[] = {0, 1, 2, 3, 4, 5, 8, 9, 16, 17, MAX_WEIGHTS};
    const int n_counts = sizeof counts / sizeof *counts;
    uint64_t state = t->seed;
    for (int i = 0; i < n_counts * 6 * 4 && !t->failure[0]; i++)
        for (size_t tiles = 1; tiles <= 4 && tiles * counts[i % n_counts] <= MAX_WEIGHTS; tiles++)
            weight_case(t, counts[i % n_counts], tiles, i / n_counts % 6, &state);
}

void check_attend(struct trial *t)
{
    static const uint32_t dims[] = {8, 24, AURA_DIMS(AURA_DIM_ITEM) 120, 1024};
    const char *stage = t->variant->stage;
    uint64_t state = t->seed;
    size_t n_counts = sizeof token_counts / sizeof *token_counts;
    if (!strcmp(stage, "softmax"))
        check_softmax_tile(t);
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        for (size_t k = 0; k < n_counts && !t->failure[0]; k++) {
            size_t queries = (i + k) % (MAX_QUERIES + 1), n = dims[i] > 512 ? token_counts[k] / 2 : token_counts[k];
            if (!strcmp(stage, "row_score"))
                score_case(t, dims[i], queries, n, &state);
            else if (!strcmp(stage, "row_value"))
                value_case(t, dims[i], queries, n, &state);
            else if (!strcmp(stage, "row_softmax"))
                for (int fresh = 0; fresh < 2; fresh++) /* with and without earlier tokens */
                    softmax_case(t, (int)(i % 7), fresh, n, &state);
            else if (!strcmp(stage, "row_reduce"))
                reduce_case(t, (uint32_t)(i + 1) * 64, (uint32_t)(1 + (k * 11 + i) % 32), &state);
        }
}
