/* Laws of attention, and every edge case that ref_attend.c decides. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/codebook.h"
#include "../src/ref.h"
#include "../src/rotation.h"
#include "../src/codec.h"
#include "../tool/parts/inputs.h"
#include "test.h"

enum { DIM = 64, N = 100 };

static uint64_t state = 99;

/* A small cache: 4-bit keys, 2-bit values, and a query. */
struct cache {
    struct aura_codec_plan key_codec, value_codec;
    uint8_t key_packed[N * DIM], value_packed[N * DIM];
    float key_scale[N], value_scale[N];
    struct aura_ref_rows keys, values;
    double q[DIM];
};

static struct cache *make_cache(void)
{
    static struct cache c;
    static float x[N * DIM];
    const aura_codebook *b4 = NULL, *b2 = NULL;
    for (size_t i = 0; i < aura_codebook_count; i++) {
        b4 = aura_codebook_list[i].id == 0x24 ? &aura_codebook_list[i] : b4;
        b2 = aura_codebook_list[i].id == 0x22 ? &aura_codebook_list[i] : b2;
    }
    aura_codec_plan_init(&c.key_codec, b4, DIM, AURA_SCALE_MATCHED, 1);
    aura_codec_plan_init(&c.value_codec, b2, DIM, AURA_SCALE_UNBIASED, 1);
    fill_vector(x, N * DIM, NORMAL, &state);
    aura_row_encode_ref(c.key_packed, c.key_scale, x, &c.key_codec, N);
    fill_vector(x, N * DIM, NORMAL, &state);
    aura_row_encode_ref(c.value_packed, c.value_scale, x, &c.value_codec, N);
    struct aura_ref_rows keys = {&c.key_codec, c.key_packed, c.key_scale, NULL, DIM};
    struct aura_ref_rows values = {&c.value_codec, c.value_packed, c.value_scale, NULL, DIM};
    c.keys = keys;
    c.values = values;
    for (int d = 0; d < DIM; d++)
        c.q[d] = random_normal(&state);
    return &c;
}

/* Largest difference between two outputs; 1 where either is NaN. */
static double difference(const double *a, const double *b)
{
    double worst = 0;
    for (int d = 0; d < DIM; d++) {
        double e = fabs(a[d] - b[d]);
        if (!(e <= 1e300))
            return 1;
        worst = e > worst ? e : worst;
    }
    return worst;
}

/* One pass over [first, N) with a sink. */
static int one_pass(double *out, double *lse, const struct cache *c, size_t first, double sink)
{
    struct aura_ref_partial p;
    aura_ref_partial_clear(&p);
    aura_ref_attend(&p, c->q, &c->keys, &c->values, first, N);
    aura_ref_merge_sink(&p, sink, DIM);
    return aura_ref_finish(out, lse, &p, DIM);
}

static void composed(double *out, double *lse, const struct cache *c, size_t first, double sink)
{
    double score[N], weight[N];
    aura_ref_score(score, c->q, &c->keys, first, N);
    aura_ref_softmax(weight, lse, score, N - first, sink);
    aura_ref_value(out, weight, &c->values, first, N);
}

static void fused_equals_composed(void)
{
    static const double sinks[] = {-INFINITY, -3, 0, 40};
    struct cache *c = make_cache();
    for (int i = 0; i < 4; i++)
        for (size_t first = 0; first <= N; first += 25) {
            double a[DIM], b[DIM], lse_a, lse_b;
            EXPECT(!one_pass(a, &lse_a, c, first, sinks[i]), "not finite");
            composed(b, &lse_b, c, first, sinks[i]);
            EXPECT(difference(a, b) < 1e-12, "sink %g: %g", sinks[i], difference(a, b));
            EXPECT(lse_a == lse_b || fabs(lse_a - lse_b) < 1e-12, "lse %g, %g", lse_a, lse_b);
        }
}

static void splits_merge_in_any_order_and_grouping(void)
{
    struct cache *c = make_cache();
    double whole[DIM], lse;
    one_pass(whole, &lse, c, 0, -INFINITY);
    for (int turn = 0; turn < 200; turn++) {
        static struct aura_ref_partial parts[8];
        double out[DIM], got;
        size_t edge[9] = {0, 0, 0, 0, 0, 0, 0, 0, N};
        int alive = 8;
        for (int i = 1; i < 8; i++) /* edges may coincide: merging an empty part changes nothing */
            edge[i] = edge[i - 1] + random_bits(&state) % (N - edge[i - 1] + 1) / 2;
        for (int i = 0; i < 8; i++) {
            aura_ref_partial_clear(&parts[i]);
            aura_ref_attend(&parts[i], c->q, &c->keys, &c->values, edge[i], edge[i + 1]);
        }
        while (alive > 1) { /* merge any two, in either direction */
            int i = (int)(random_bits(&state) % (unsigned)alive), j = (int)(random_bits(&state) % (unsigned)alive);
            if (i == j)
                continue;
            aura_ref_merge(&parts[i], &parts[j], DIM);
            parts[j] = parts[--alive];
        }
        aura_ref_finish(out, &got, &parts[0], DIM);
        EXPECT(difference(out, whole) < 1e-12 && fabs(got - lse) < 1e-12, "off by %g, lse %g", difference(out, whole), got - lse);
    }
}

static void token_order_is_irrelevant(void)
{
    struct cache *c = make_cache();
    double before[DIM], after[DIM], lse_before, lse_after;
    one_pass(before, &lse_before, c, 0, 1);
    for (size_t t = N - 1; t > 0; t--) {
        size_t u = random_bits(&state) % (t + 1), kb = c->key_codec.row_bytes, vb = c->value_codec.row_bytes;
        for (size_t i = 0; i < kb; i++) {
            uint8_t swap = c->key_packed[t * kb + i];
            c->key_packed[t * kb + i] = c->key_packed[u * kb + i], c->key_packed[u * kb + i] = swap;
        }
        for (size_t i = 0; i < vb; i++) {
            uint8_t swap = c->value_packed[t * vb + i];
            c->value_packed[t * vb + i] = c->value_packed[u * vb + i], c->value_packed[u * vb + i] = swap;
        }
        float k = c->key_scale[t], v = c->value_scale[t];
        c->key_scale[t] = c->key_scale[u], c->key_scale[u] = k;
        c->value_scale[t] = c->value_scale[u], c->value_scale[u] = v;
    }
    one_pass(after, &lse_after, c, 0, 1);
    EXPECT(difference(before, after) < 1e-12 && fabs(lse_before - lse_after) < 1e-12, "off by %g", difference(before, after));
}

static void merge_undo_equals_its_parts(void)
{
    struct cache *c = make_cache();
    static struct aura_rotation_plan undo;
    struct aura_ref_partial parts[2];
    double fused[DIM], rotated[DIM], want[DIM], lse_fused, lse;
    uint8_t signs[DIM / 8] = {0x5a, 0xc3, 0x17, 0x88, 0xf0, 0x0d, 0x99, 0x21};
    aura_rotation_plan_init(&undo, DIM, signs, NULL, 1);
    for (int i = 0; i < 2; i++) {
        aura_ref_partial_clear(&parts[i]);
        aura_ref_attend(&parts[i], c->q, &c->keys, &c->values, (size_t)i * N / 2, (size_t)(i + 1) * N / 2);
    }
    EXPECT(!aura_ref_merge_undo(fused, &lse_fused, parts, 2, 0.5, &undo), "not finite");
    one_pass(rotated, &lse, c, 0, 0.5);
    aura_ref_rotate_double(want, NULL, rotated, &undo);
    EXPECT(difference(fused, want) < 1e-12 && fabs(lse - lse_fused) < 1e-12, "off by %g", difference(fused, want));
}

/* ---- edge cases ---------------------------------------------------------------------------------------------------- */

static int all_zero(const double *out)
{
    for (int d = 0; d < DIM; d++)
        if (out[d] != 0)
            return 0;
    return 1;
}

static void nothing_to_see(void)
{
    struct cache *c = make_cache();
    double out[DIM], lse;
    EXPECT(!one_pass(out, &lse, c, N, -INFINITY) && all_zero(out) && lse == -INFINITY, "no token: lse %g", lse);
    EXPECT(!one_pass(out, &lse, c, N, 2.5) && all_zero(out) && lse == 2.5, "only a sink: lse %g", lse);
    composed(out, &lse, c, N, -INFINITY);
    EXPECT(all_zero(out) && lse == -INFINITY, "no token, composed");
}

/* The test chooses the scores: a score is a plain key of one coordinate times a query of one. */
static int attend_scores(double *out, double *lse, const float *score, size_t n, double sink)
{
    static float keys[N], values[N * DIM];
    struct aura_ref_rows k = {NULL, NULL, NULL, keys, 1}, v = {NULL, NULL, NULL, values, DIM};
    struct aura_ref_partial p;
    double q = 1;
    memcpy(keys, score, n * sizeof *score);
    for (size_t i = 0; i < n * DIM; i++)
        values[i] = (float)(i / DIM + 1);
    aura_ref_partial_clear(&p);
    aura_ref_attend(&p, &q, &k, &v, 0, n);
    aura_ref_merge_sink(&p, sink, DIM);
    return aura_ref_finish(out, lse, &p, DIM);
}

static void infinite_and_bad_scores(void)
{
    const float masked = -INFINITY;
    double out[DIM], lse, none = -INFINITY;
    float all[] = {masked, masked, masked}, first[] = {masked, 2, masked}, one[] = {0.5f, masked};
    float nan_score[] = {1, NAN, 2}, overflow[] = {1, INFINITY}, both[] = {INFINITY, masked};
    EXPECT(!attend_scores(out, &lse, all, 3, none) && all_zero(out) && lse == none, "all masked: lse %g", lse);
    EXPECT(!attend_scores(out, &lse, all, 3, 1.0) && all_zero(out) && lse == 1, "all masked and a sink");
    EXPECT(!attend_scores(out, &lse, first, 3, none) && out[0] == 2 && lse == 2, "-inf before any finite score: %g", out[0]);
    EXPECT(!attend_scores(out, &lse, one, 2, none) && out[0] == 1 && lse == 0.5, "one token is exact: %g", out[0]);
    EXPECT(attend_scores(out, &lse, nan_score, 3, none) && isnan(out[0]) && isnan(lse), "NaN score gave %g", out[0]);
    EXPECT(attend_scores(out, &lse, overflow, 2, none) && isnan(out[0]), "+inf score gave %g", out[0]);
    EXPECT(attend_scores(out, &lse, both, 2, none) && isnan(out[0]), "+inf score first gave %g", out[0]);
    double weight[2], score[] = {1, NAN};
    aura_ref_softmax(weight, &lse, score, 2, none);
    EXPECT(isnan(weight[0]) && isnan(lse), "softmax of NaN gave %g", weight[0]);
}

static void sinks(void)
{
    float score[] = {1, 3};
    double out[DIM], plain[DIM], lse, lse_plain;
    attend_scores(plain, &lse_plain, score, 2, -INFINITY);
    double p = exp(1 - 3.0), want = (p * 1 + 2) / (p + 1);
    EXPECT(fabs(plain[0] - want) < 1e-12, "two tokens: %g, not %g", plain[0], want);
    attend_scores(out, &lse, score, 2, 3);
    EXPECT(fabs(out[0] - (p * 1 + 2) / (p + 2)) < 1e-12, "a sink takes its share: %g", out[0]);
    EXPECT(fabs(lse - (3 + log(p + 2))) < 1e-12, "a sink is in the log-sum-exp: %g", lse);
    EXPECT(!attend_scores(out, &lse, score, 2, INFINITY) && all_zero(out) && lse == INFINITY, "sink +inf: %g", out[0]);
    EXPECT(attend_scores(out, &lse, score, 2, NAN) && isnan(out[0]), "sink NaN: %g", out[0]);
    attend_scores(out, &lse, score, 2, -1e300);
    EXPECT(difference(out, plain) == 0 && lse == lse_plain, "a sink far below changes nothing");
}

static void windows(void)
{
    static const struct {
        uint64_t window;
        size_t first;
    } cases[] = {{0, 0}, {1, N - 1}, {2, N - 2}, {N - 1, 1}, {N, 0}, {N + 1, 0}, {UINT32_MAX, 0}, {UINT64_MAX, 0}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        EXPECT(aura_ref_first_visible(N, cases[i].window) == cases[i].first, "window %llu starts at %zu",
               (unsigned long long)cases[i].window, aura_ref_first_visible(N, cases[i].window));
    EXPECT(aura_ref_first_visible(0, 5) == 0, "empty");
}

static void zero_scales(void)
{
    struct cache *c = make_cache();
    double out[DIM], lse, score[N];
    memset(c->key_scale, 0, sizeof c->key_scale);
    aura_ref_score(score, c->q, &c->keys, 0, N);
    one_pass(out, &lse, c, 0, -INFINITY);
    EXPECT(score[7] == 0 && fabs(lse - log(N)) < 1e-12, "zero keys are visible and equal: lse %g", lse);
    memset(c->value_scale, 0, sizeof c->value_scale);
    EXPECT(!one_pass(out, &lse, c, 0, -INFINITY) && all_zero(out) && fabs(lse - log(N)) < 1e-12, "zero values");
}

static void extreme_vectors_encode_to_something_finite(void)
{
    for (int kind = 0; kind < N_VECTOR_KINDS; kind++)
        for (size_t b = 0; b < aura_codebook_count; b++) {
            struct aura_codec_plan plan;
            float y[DIM], x[DIM], scale;
            uint8_t packed[DIM];
            double norm2 = 0;
            aura_codec_plan_init(&plan, &aura_codebook_list[b], DIM, (aura_scale_rule)(b % 3), b & 1);
            fill_vector(y, DIM, (enum vector_kind)kind, &state);
            aura_row_encode_ref(packed, &scale, y, &plan, 1);
            aura_row_dequant_ref(x, packed, &scale, &plan, 1);
            for (int d = 0; d < DIM; d++) {
                norm2 += (double)y[d] * y[d];
                EXPECT(isfinite(x[d]), "%s, book 0x%x: %g", vector_kind_name((enum vector_kind)kind),
                       aura_codebook_list[b].id, (double)x[d]);
            }
            if (norm2 < 0x1p-101)
                EXPECT(scale == 0, "%s has scale %g", vector_kind_name((enum vector_kind)kind), (double)scale);
        }
}

int main(void)
{
    RUN(fused_equals_composed);
    RUN(splits_merge_in_any_order_and_grouping);
    RUN(token_order_is_irrelevant);
    RUN(merge_undo_equals_its_parts);
    RUN(nothing_to_see);
    RUN(infinite_and_bad_scores);
    RUN(sinks);
    RUN(windows);
    RUN(zero_scales);
    RUN(extreme_vectors_encode_to_something_finite);
    return test_result();
}
