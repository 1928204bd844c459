/* Laws: identities that hold whatever ref*.c say, so that a bug they share with the kernels still shows. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/codebook.h"
#include "../src/base/dtype.h"
#include "../src/ref.h"
#include "../src/rotation.h"
#include "../src/codec.h"
#include "../tool/parts/inputs.h"
#include "test.h"

static uint64_t state = 20261115;

static const aura_codebook *book_of(uint32_t id)
{
    for (size_t i = 0; i < aura_codebook_count; i++)
        if (aura_codebook_list[i].id == id)
            return &aura_codebook_list[i];
    return NULL;
}

static void random_signs(uint8_t *signs, uint32_t dim)
{
    for (uint32_t i = 0; i < (dim + 7) / 8; i++)
        signs[i] = (uint8_t)random_bits(&state);
}

/* ---- rotation ----------------------------------------------------------------------------------------------------- */

static void undo_of_rotate_is_identity(void)
{
    static struct aura_rotation_plan forth, back;
    static float x[AURA_MAX_DIM], y[AURA_MAX_DIM];
    static double x64[AURA_MAX_DIM], y64[AURA_MAX_DIM];
    float balance[AURA_MAX_DIM], reciprocal[AURA_MAX_DIM];
    uint8_t signs[AURA_MAX_DIM / 8];
    int dims = 0;
    for (uint32_t dim = 8; dim <= AURA_MAX_DIM; dim += 8) {
        double size = 0, out_size = 0;
        random_signs(signs, dim);
        for (uint32_t d = 0; d < dim; d++) {
            balance[d] = ldexpf(1, (int)(random_bits(&state) % 5) - 2); /* exact reciprocals */
            reciprocal[d] = 1 / balance[d];
            x64[d] = x[d] = random_normal(&state);
            size += (double)x[d] * balance[d] * x[d] * balance[d];
        }
        if (!aura_rotation_plan_init(&forth, dim, signs, balance, 0))
            continue;
        dims++;
        aura_rotation_plan_init(&back, dim, signs, reciprocal, 1);
        aura_rotate_ref(y, x, &forth, 1);
        for (uint32_t d = 0; d < dim; d++)
            out_size += (double)y[d] * y[d];
        EXPECT(fabs(out_size / size - 1) < 1e-5, "dim %u: the norm changed by %g", dim, out_size / size - 1);
        aura_undo_ref(y, y, &back, 1);
        aura_ref_rotate_double(y64, NULL, x64, &forth);
        memcpy(x64, y64, sizeof x64);
        aura_ref_rotate_double(y64, NULL, x64, &back);
        for (uint32_t d = 0; d < dim; d++) {
            EXPECT(fabsf(y[d] - x[d]) < 2e-5f, "dim %u: %g became %g", dim, (double)x[d], (double)y[d]);
            EXPECT(fabs(y64[d] - x[d]) < 1e-12, "dim %u: %g became %.15g", dim, (double)x[d], y64[d]);
        }
    }
    EXPECT(dims == 36, "%d dims have a rotation", dims); /* multiples of 8 up to 1024; doc/format.md names them */
}

static void head_dims_have_the_promised_matrix(void)
{
    static const struct {
        uint32_t dim, paley;
    } promised[] = {{64, 1}, {80, 20}, {96, 12}, {112, 28}, {128, 1}, {192, 12}, {256, 1}, {320, 20}, {512, 1}, {576, 36}};
    for (size_t i = 0; i < sizeof promised / sizeof *promised; i++)
        EXPECT(aura_paley_order(promised[i].dim) == promised[i].paley, "dim %u has order %u", promised[i].dim,
               aura_paley_order(promised[i].dim));
    EXPECT(aura_paley_order(104) == 0, "52 and 104 have no prime");
    EXPECT(aura_paley_order(0) == 0, "no matrix of order 0");
}

static void paley_rows_are_orthogonal(void)
{
    for (uint32_t order = 4; order <= AURA_MAX_PALEY; order += 4) {
        uint64_t residues;
        if (aura_paley_order(order) != order)
            continue;
        residues = aura_paley_residues(order);
        for (uint32_t i = 0; i < order; i++)
            for (uint32_t j = 0; j < order; j++) {
                int dot = 0;
                for (uint32_t k = 0; k < order; k++)
                    dot += aura_paley_negative(order, residues, i, k) == aura_paley_negative(order, residues, j, k) ? 1 : -1;
                EXPECT(dot == (i == j ? (int)order : 0), "order %u rows %u and %u: %d", order, i, j, dot);
            }
    }
}

/* A dense rotation by the entries of the Hadamard matrix is the Hadamard rotation. */
static void dense_equals_hadamard(void)
{
    static const uint32_t dims[] = {64, 80, 112};
    static float columns[112 * 112], x[112], by_matrix[112], by_plan[112];
    static struct aura_rotation_plan plan;
    for (int i = 0; i < 6; i++) {
        uint32_t dim = dims[i / 2];
        uint8_t signs[16];
        aura_rotate_fn *turn = i % 2 ? aura_undo_ref : aura_rotate_ref;
        random_signs(signs, dim);
        aura_rotation_plan_init(&plan, dim, signs, NULL, i % 2);
        for (uint32_t column = 0; column < dim; column++) {
            float unit[112] = {0};
            unit[column] = 1;
            turn(columns + column * dim, unit, &plan, 1);
        }
        fill_vector(x, dim, NORMAL, &state);
        aura_row_rotate_dense_ref(by_matrix, x, columns, dim, 1);
        turn(by_plan, x, &plan, 1);
        for (uint32_t d = 0; d < dim; d++)
            EXPECT(fabsf(by_matrix[d] - by_plan[d]) < 1e-5f, "dim %u: %g, %g", dim, (double)by_matrix[d],
                   (double)by_plan[d]);
    }
}

/* ---- codes --------------------------------------------------------------------------------------------------------- */

/* The formula of the public kernels for an index: where it crosses the border of two words, it is made of both. */
static uint32_t unpack_words(const uint8_t *row, uint32_t bits, uint32_t d)
{
    uint32_t word[2] = {0}, at = d * bits / 32, shift = d * bits % 32;
    memcpy(&word[0], row + 4 * at, 4);
    if (shift + bits > 32)
        memcpy(&word[1], row + 4 * at + 4, 4);
    uint64_t both = (uint64_t)word[1] << 32 | word[0];
    return (uint32_t)(both >> shift) & ((1u << bits) - 1);
}

static void codes_survive_packing_at_every_width(void)
{
    static const uint32_t dims[] = {1, 3, 31, 32, 33, 64, 80, 100, 127, 128, 512};
    for (uint32_t bits = 1; bits <= 8; bits++)
        for (int i = 0; i < 11; i++) {
            struct aura_codec_plan plan;
            uint8_t packed[512];
            float y[512], scale, back[512];
            uint32_t dim = dims[i];
            aura_codec_plan_init(&plan, book_of(AURA_TABLE_EXACT * 16 + bits), dim, AURA_SCALE_RAW, 0);
            EXPECT(plan.row_bytes == (dim * bits + 31) / 32 * 4, "row of %u bytes", plan.row_bytes);
            fill_vector(y, dim, NORMAL, &state);
            aura_row_encode_ref(packed, &scale, y, &plan, 1);
            aura_row_dequant_ref(back, packed, &scale, &plan, 1);
            for (uint32_t d = 0; d < dim; d++) {
                uint32_t index = unpack_words(packed, bits, d);
                EXPECT(index == aura_ref_unpack(packed, bits, d), "%u bits, dim %u, index %u", bits, dim, d);
                EXPECT(back[d] == plan.centroid[index] * scale, "%u bits: %g", bits, (double)back[d]);
                EXPECT(fabsf(y[d] / scale - plan.centroid[index]) <= /* no other level is nearer, up to rounding */
                           fabsf(y[d] / scale - plan.centroid[(index + 1) % (1u << bits)]) + 1e-5f, "level %u", index);
            }
            for (uint32_t k = dim * bits; k < plan.row_bytes * 8; k++)
                EXPECT(!(packed[k / 8] >> k % 8 & 1), "padding bit %u is set", k);
        }
}

static void scale_rules_keep_their_promise(void)
{
    for (size_t b = 0; b < aura_codebook_count; b++)
        for (int rule = 0; rule < 3; rule++) {
            enum { DIM = 128 };
            struct aura_codec_plan plan;
            uint8_t packed[DIM];
            float y[DIM], scale, x[DIM];
            double norm2 = 0, size2 = 0, dot = 0;
            aura_codec_plan_init(&plan, &aura_codebook_list[b], DIM, (aura_scale_rule)rule, rule & 1);
            fill_vector(y, DIM, NORMAL, &state);
            aura_row_encode_ref(packed, &scale, y, &plan, 1);
            aura_row_dequant_ref(x, packed, &scale, &plan, 1);
            for (int d = 0; d < DIM; d++)
                norm2 += (double)y[d] * y[d], size2 += (double)x[d] * x[d], dot += (double)x[d] * y[d];
            if (rule == AURA_SCALE_MATCHED)
                EXPECT(fabs(size2 / norm2 - 1) < 1e-6, "book 0x%x: |x|^2 off by %g", aura_codebook_list[b].id, size2 / norm2 - 1);
            if (rule == AURA_SCALE_UNBIASED)
                EXPECT(fabs(dot / norm2 - 1) < 1e-6, "book 0x%x: <x,y> off by %g", aura_codebook_list[b].id, dot / norm2 - 1);
            if (rule == AURA_SCALE_RAW)
                EXPECT(fabs(scale * plan.sigma / sqrt(norm2 / DIM) - 1) < 1e-6, "scale %g", (double)scale);
        }
}

/* Normal numbers with true tails: the sum of uniforms in inputs.c has lighter ones. */
static void normal_vector(float *x, size_t n, uint64_t *own)
{
    for (size_t i = 0; i < n; i++)
        x[i] = (float)(sqrt(-2 * log(1 - random_uniform(own))) * cos(6.283185307179586 * random_uniform(own)));
}

/* Mean squared error of normal vectors, relative to their energy. */
static double distortion(uint32_t id, uint32_t search)
{
    enum { DIM = 128, N = 2000 };
    struct aura_codec_plan plan;
    double error = 0, energy = 0;
    uint64_t own = 7; /* the same vectors for every table */
    aura_codec_plan_init(&plan, book_of(id), DIM, AURA_SCALE_UNBIASED, search);
    for (int i = 0; i < N; i++) {
        uint8_t packed[DIM];
        float y[DIM], scale, c[DIM];
        double dot = 0, size2 = 0, norm2 = 0;
        normal_vector(y, DIM, &own);
        aura_row_encode_ref(packed, &scale, y, &plan, 1);
        scale = 1;
        aura_row_dequant_ref(c, packed, &scale, &plan, 1);
        for (int d = 0; d < DIM; d++)
            norm2 += (double)y[d] * y[d], size2 += (double)c[d] * c[d], dot += (double)c[d] * y[d];
        error += norm2 - dot * dot / size2; /* with the best scale for these codes */
        energy += norm2;
    }
    return error / energy;
}

static void distortion_is_that_of_theory_and_search_lowers_it(void)
{
    static const struct {
        uint32_t id;
        double theory, gain; /* theory: the loss of an ideal table; gain: what the search must save at least */
    } rows[] = {{0x22, 0.11748, 0.005}, {0x23, 0.034548, 0.03}, {0x24, 0.009501, 0.10}};
    for (int i = 0; i < 3; i++) {
        double plain = distortion(rows[i].id, 0), searched = distortion(rows[i].id, 1);
        EXPECT(fabs(plain / rows[i].theory - 1) < 0.05, "book 0x%x: %g, theory %g", rows[i].id, plain, rows[i].theory);
        EXPECT(searched < plain * (1 - rows[i].gain), "book 0x%x: search %g, plain %g", rows[i].id, searched, plain);
    }
    double b5 = distortion(0x25, 1), b6 = distortion(0x26, 1), b8 = distortion(0x28, 1);
    EXPECT(b5 < 0.0028 && b6 < 0.00080 && b8 < 0.00005, "5, 6, 8 bits: %g, %g, %g", b5, b6, b8);
}

/* Inner products with a decoded vector, relative to those with the vector itself. D is the distortion of the table. The slope is
 * 1 - D for the raw scale, sqrt(1 - D) when norms are matched, and 1 when unbiased. */
static void score_bias_is_that_of_the_scale_rule(void)
{
    enum { DIM = 128, N = 4000 };
    static const double lost[] = {0, 0, 0.11748, 0.034548, 0.009501};
    for (uint32_t bits = 2; bits <= 4; bits++)
        for (int rule = 0; rule < 3; rule++) {
            struct aura_codec_plan plan;
            double cross = 0, square = 0;
            uint64_t own = 5;
            aura_codec_plan_init(&plan, book_of(AURA_TABLE_EXACT * 16 + bits), DIM, (aura_scale_rule)rule, 0);
            for (int i = 0; i < N; i++) {
                uint8_t packed[DIM];
                float y[DIM], x[DIM], q[DIM], scale;
                double want = 0, got = 0;
                normal_vector(y, DIM, &own), normal_vector(q, DIM, &own);
                aura_row_encode_ref(packed, &scale, y, &plan, 1);
                aura_row_dequant_ref(x, packed, &scale, &plan, 1);
                for (int d = 0; d < DIM; d++) /* the query depends on the key, so that the score is not near 0 */
                    want += (q[d] + y[d]) * y[d], got += (q[d] + y[d]) * x[d];
                cross += want * got, square += want * want;
            }
            double slope = cross / square, theory = 1 - lost[bits];
            theory = rule == AURA_SCALE_UNBIASED ? 1 : rule == AURA_SCALE_MATCHED ? sqrt(theory) : theory;
            EXPECT(fabs(slope - theory) < 0.005, "%u bits, rule %d: slope %g, theory %g", bits, rule, slope, theory);
        }
}

/* What TQ promises of a round trip: relative error at 4 bits between .085 and .11, less with every bit. */
static void round_trips_lose_what_is_known(void)
{
    double b4 = sqrt(distortion(0x44, 0)), b5 = sqrt(distortion(0x45, 0)), b6 = sqrt(distortion(0x46, 0));
    EXPECT(b4 > 0.085 && b4 < 0.11 && b5 < b4 && b6 < b5, "4, 5, 6 bits: %g, %g, %g", b4, b5, b6);
}

/* On structured vectors, with an offset and a few large channels, the signed Hadamard rotation is as good as a random one. */
static void hadamard_is_as_good_as_random(void)
{
    enum { DIM = 64, N = 500 };
    static float columns[DIM * DIM], x[DIM], y[DIM];
    static struct aura_rotation_plan fast;
    struct aura_codec_plan codec;
    double error[2] = {0};
    uint8_t signs[DIM / 8];
    random_signs(signs, DIM);
    aura_rotation_plan_init(&fast, DIM, signs, NULL, 0);
    aura_codec_plan_init(&codec, book_of(0x24), DIM, AURA_SCALE_UNBIASED, 0);
    normal_vector(columns, DIM * DIM, &state);
    for (int i = 0; i < DIM; i++) { /* Gram-Schmidt */
        for (int j = 0; j <= i; j++) {
            double dot = 0;
            for (int d = 0; d < DIM; d++)
                dot += (double)columns[i * DIM + d] * columns[j * DIM + d];
            for (int d = 0; d < DIM; d++)
                columns[i * DIM + d] = (float)(j < i ? columns[i * DIM + d] - dot * columns[j * DIM + d]
                                               : columns[i * DIM + d] / sqrt(dot));
        }
    }
    for (int n = 0; n < N; n++) {
        normal_vector(x, DIM, &state);
        for (int d = 0; d < DIM; d++)
            x[d] = x[d] + 1 + (d % 16 == 3 ? 8 * x[d] : 0);
        for (int way = 0; way < 2; way++) {
            uint8_t packed[DIM];
            float scale, back[DIM];
            if (way)
                aura_row_rotate_dense_ref(y, x, columns, DIM, 1);
            else
                aura_rotate_ref(y, x, &fast, 1);
            aura_row_encode_ref(packed, &scale, y, &codec, 1);
            aura_row_dequant_ref(back, packed, &scale, &codec, 1);
            for (int d = 0; d < DIM; d++)
                error[way] += (back[d] - y[d]) * (double)(back[d] - y[d]);
        }
    }
    EXPECT(error[0] < 1.2 * error[1], "Hadamard %g, random %g", error[0], error[1]);
}

static void query_integers(void)
{
    static const uint32_t dims[] = {64, 80, 112, 128, 256, 512};
    static struct aura_query q;
    static float y[AURA_MAX_DIM];
    for (int i = 0; i < 6; i++)
        for (int kind = 0; kind < N_VECTOR_KINDS; kind++) {
            uint32_t dim = dims[i];
            int64_t worst = 0, sum = 0;
            float largest = 0;
            fill_vector(y, dim, (enum vector_kind)kind, &state);
            aura_query_ref(&q, y, dim, 1);
            for (uint32_t d = 0; d < dim; d++) {
                int32_t q15 = 256 * q.plane[0][d] + q.plane[1][d];
                largest = fmaxf(largest, fabsf(y[d]));
                worst += 127 * (int64_t)abs(q15);
                sum += q15;
                EXPECT(fabs((double)q15 * q.step - y[d]) <= 0.51 * q.step + 0x1p-100, "%s: %d * %g is not %g",
                       vector_kind_name((enum vector_kind)kind), q15, (double)q.step, (double)y[d]);
                EXPECT(abs(q15 - 256 * q.plane[0][d]) <= 128, "hi is not the nearest");
            }
            EXPECT(worst <= INT32_MAX, "dim %u: a sum can reach %lld", dim, (long long)worst);
            EXPECT(sum == q.sum[1], "sum %d", q.sum[1]);
            EXPECT((largest < 0x1p-100f) == (q.step == 0), "a query of %g has step %g", (double)largest, (double)q.step);
        }
    memset(y, 0, sizeof y);
    y[3] = 0x1p-120f; /* top / largest would be infinite */
    aura_query_ref(&q, y, 64, 1);
    EXPECT(q.step == 0 && q.sum[1] == 0 && q.plane[0][3] == 0 && q.plane[1][3] == 0, "a tiny query has step %g", (double)q.step);
}

/* ---- element types ------------------------------------------------------------------------------------------------- */

static void f16_and_bf16_round_to_nearest_even(void)
{
    for (uint32_t h = 0; h < 0x7c00; h++) { /* every finite f16 of positive sign, and the next */
        float a = aura_f32_from_f16((uint16_t)h), b = h == 0x7bff ? 65536.f : aura_f32_from_f16((uint16_t)(h + 1));
        float middle = (float)(((double)a + b) / 2); /* exact */
        uint16_t even = (uint16_t)(h & 1 ? h + 1 : h);
        EXPECT(a == (float)ldexp((h & 0x3ff) + (h >> 10 ? 1024 : 0), (int)(h >> 10 ? h >> 10 : 1) - 25), "0x%x is %g", h,
               (double)a);
        EXPECT(aura_f16_from_f32(a) == h && aura_f16_from_f32(-a) == (h | 0x8000), "%g", (double)a);
        EXPECT(aura_f16_from_f32(middle) == even, "tie %g went to 0x%x", (double)middle, aura_f16_from_f32(middle));
        EXPECT(aura_f16_from_f32(nextafterf(middle, 0)) == h, "below the tie %g", (double)middle);
        EXPECT(aura_f16_from_f32(nextafterf(middle, INFINITY)) == h + 1, "above the tie %g", (double)middle);
    }
    EXPECT(aura_f16_from_f32(INFINITY) == 0x7c00 && aura_f16_from_f32(1e30f) == 0x7c00, "infinity");
    EXPECT(isnan(aura_f32_from_f16(aura_f16_from_f32(NAN))) && isnan(aura_f32_from_bf16(aura_bf16_from_f32(NAN))), "NaN");
    for (uint32_t h = 0; h < 0x7f80; h++) {
        float a = aura_f32_from_bf16((uint16_t)h), middle = aura_f32_from_bits(h << 16 | 0x8000);
        EXPECT(aura_bf16_from_f32(a) == h, "%g", (double)a);
        EXPECT(aura_bf16_from_f32(middle) == (h & 1 ? h + 1 : h), "tie %g", (double)middle);
        EXPECT(aura_bf16_from_f32(aura_f32_from_bits(h << 16 | 0x8001)) == h + 1, "above the tie %g", (double)middle);
    }
}

int main(void)
{
    RUN(undo_of_rotate_is_identity);
    RUN(head_dims_have_the_promised_matrix);
    RUN(paley_rows_are_orthogonal);
    RUN(dense_equals_hadamard);
    RUN(codes_survive_packing_at_every_width);
    RUN(scale_rules_keep_their_promise);
    RUN(distortion_is_that_of_theory_and_search_lowers_it);
    RUN(score_bias_is_that_of_the_scale_rule);
    RUN(round_trips_lose_what_is_known);
    RUN(hadamard_is_as_good_as_random);
    RUN(query_integers);
    RUN(f16_and_bf16_round_to_nearest_even);
    return test_result();
}
