/* The cases of each stage. A kernel runs between guard pages and canaries and is compared with ref.c bit by bit; ref.c itself is
 * compared with double. To check a new stage, write its case and name it in check_stage() and in check_time.c. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/codebook.h"
#include "../../src/ref.h"
#include "../../src/rotation.h"
#include "../../src/codec.h"
#include "guard.h"
#include "../parts/inputs.h"

struct arena in, in2, more, more2, more3, out, out2; /* mapped at first use, never unmapped */

void fail(struct trial *t, const char *format, ...)
{
    va_list args;
    int n;
    if (t->failure[0])
        return;
    n = snprintf(t->failure, sizeof t->failure, "%s: ", t->where);
    va_start(args, format);
    vsnprintf(t->failure + n, sizeof t->failure - (size_t)n, format, args);
    va_end(args);
}

int is_ref(const struct trial *t)
{
    return t->variant->isa_flag == AURA_ISA_REF;
}

void bound(struct trial *t, double error, const char *what, size_t i)
{
    if (!(error <= t->tolerance))
        fail(t, "%s %zu is off by %.3g, tolerance %.3g", what, i, error, t->tolerance);
    t->worst = error > t->worst ? error : t->worst;
}

void same_bytes(struct trial *t, const void *got, const void *want, size_t n, const char *what)
{
    const uint8_t *a = got, *b = want;
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i]) {
            t->worst = 1;
            fail(t, "byte %zu of %s is 0x%02x, ref has 0x%02x", i, what, a[i], b[i]);
            return;
        }
}

void same_floats(struct trial *t, const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (isnan(got[i]) || memcmp(&got[i], &want[i], sizeof *got)) {
            t->worst = 1;
            fail(t, "%s[%zu] is %a, ref has %a", what, i, (double)got[i], (double)want[i]);
            return;
        }
}

void check_canaries(struct trial *t)
{
    const struct arena *arenas[] = {&in, &in2, &more, &more2, &more3, &out, &out2};
    for (int i = 0; i < 7; i++)
        if (arenas[i]->data && !arena_intact(arenas[i]))
            fail(t, "wrote outside %s", i < 5 ? "an input" : "an output");
}

struct layout layout_of(size_t number)
{
    static const size_t shifts[] = {1, 2, 3, 5, 7, 8, 15};
    number += number / 3; /* breaks the step with cases that come in threes */
    struct layout layout = {(enum placement)(number % 3), shifts[number / 3 % 7]};
    return layout;
}

void *place(struct arena *arena, size_t count, size_t element, struct layout layout)
{
    if (!arena->pages)
        *arena = arena_create(ARENA_BYTES);
    return arena_place(arena, count * element, layout.placement, layout.shift * element);
}

/* ---- rotate, undo ------------------------------------------------------------------------------------------------- */

static void rotate_against_double(struct trial *t, const float *y, const float *x, const struct aura_rotation_plan *plan)
{
    double in64[AURA_MAX_DIM], y64[AURA_MAX_DIM], size[AURA_MAX_DIM];
    for (uint32_t d = 0; d < plan->dim; d++)
        in64[d] = x[d];
    aura_ref_rotate_double(y64, size, in64, plan);
    for (uint32_t d = 0; d < plan->dim; d++) /* below 2^-126 a rounding is 2^-150 whatever the size */
        bound(t, fabs(y[d] - y64[d]) / (size[d] + 0x1p-120), "coordinate", d);
}

static void rotate_case(struct trial *t, uint32_t dim, enum vector_kind kind, size_t n, struct layout layout,
                        uint64_t *state)
{
    static float x[MAX_ROWS * AURA_MAX_DIM], want[MAX_ROWS * AURA_MAX_DIM], balance[AURA_MAX_DIM];
    struct aura_rotation_plan plan;
    uint8_t signs[AURA_MAX_DIM / 8];
    uint64_t choice = random_bits(state);
    int undo = !strcmp(t->variant->stage, "undo"), balanced = choice & 1, in_place = choice & 2 && !is_ref(t);
    snprintf(t->where, sizeof t->where, "dim %u, %zu rows of %s%s%s", dim, n, vector_kind_name(kind),
             balanced ? ", balanced" : "", in_place ? ", in place" : "");
    for (size_t i = 0; i < sizeof signs; i++)
        signs[i] = (uint8_t)random_bits(state);
    for (uint32_t d = 0; d < dim; d++)
        balance[d] = 0.125f + 4 * (float)random_uniform(state);
    for (size_t row = 0; row < n; row++)
        fill_vector(x + row * dim, dim, kind, state);
    aura_rotation_plan_init(&plan, dim, choice & 4 ? NULL : signs, balanced ? balance : NULL, undo);

    float *from = place(&in, n * dim, sizeof(float), layout), *to = place(&out, n * dim, sizeof(float), layout);
    memcpy(in_place ? to : from, x, n * dim * sizeof *x);
    ((aura_rotate_fn *)t->variant->run)(to, in_place ? to : from, &plan, n);
    check_canaries(t);
    (undo ? aura_undo_ref : aura_rotate_ref)(want, x, &plan, n);
    same_floats(t, to, want, n * dim, "y");
    for (size_t row = 0; is_ref(t) && row < n; row++)
        rotate_against_double(t, to + row * dim, x + row * dim, &plan);
    t->cases++;
}

static void check_rotate(struct trial *t)
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < n_check_dims; i++)
        for (int kind = 0; kind < N_VECTOR_KINDS && aura_paley_order(check_dims[i]); kind++)
            for (size_t n = 0; n <= 3 && !t->failure[0]; n += n ? 2 : 1)
                rotate_case(t, check_dims[i], (enum vector_kind)kind, n, layout_of(t->cases), &state);
}

static void dense_case(struct trial *t, uint32_t dim, enum vector_kind kind, size_t n, struct layout layout,
                       uint64_t *state)
{
    static float columns[128 * 128], want[MAX_ROWS * 128];
    snprintf(t->where, sizeof t->where, "dim %u, %zu rows of %s", dim, n, vector_kind_name(kind));
    float *x = place(&in, n * dim, sizeof(float), layout), *y = place(&out, n * dim, sizeof(float), layout);
    fill_vector(columns, (size_t)dim * dim, NORMAL, state);
    fill_vector(x, n * dim, kind, state);
    float *matrix = place(&in2, (size_t)dim * dim, sizeof(float), layout);
    memcpy(matrix, columns, (size_t)dim * dim * sizeof *columns);
    ((aura_row_rotate_dense_fn *)t->variant->run)(y, x, matrix, dim, n);
    check_canaries(t);
    aura_row_rotate_dense_ref(want, x, columns, dim, n);
    same_floats(t, y, want, n * dim, "y");
    for (size_t i = 0; is_ref(t) && i < n * dim; i++) {
        double sum = 0, size = 0x1p-120;
        for (uint32_t j = 0; j < dim; j++) {
            double term = (double)x[i / dim * dim + j] * columns[j * dim + i % dim];
            sum += term, size += fabs(term);
        }
        bound(t, fabs(y[i] - sum) / size, "coordinate", i);
    }
    t->cases++;
}

static void check_dense(struct trial *t)
{
    uint64_t state = t->seed;
    for (uint32_t dim = 8; dim <= 128; dim += 8)
        for (int kind = 0; kind < N_VECTOR_KINDS && !t->failure[0]; kind++)
            dense_case(t, dim, (enum vector_kind)kind, random_bits(&state) % 4, layout_of(t->cases), &state);
}

/* ---- encode ------------------------------------------------------------------------------------------------------- */

void random_plan(struct aura_codec_plan *plan, uint32_t kind, uint32_t dim, char *name, size_t name_size,
                 uint64_t *state)
{
    const aura_codebook *book;
    uint32_t search = random_bits(state) & 1;
    aura_scale_rule rule = (aura_scale_rule)(random_bits(state) % 3);
    if (aura_is_trellis(kind)) {
        aura_trellis_plan_init(plan, kind, dim, rule, search);
        snprintf(name, name_size, "dim %u, rule %d, search %u", dim, (int)rule, search);
        return;
    }
    do
        book = &aura_codebook_list[random_bits(state) % aura_codebook_count];
    while (book->bits != kind);
    aura_codec_plan_init(plan, book, dim, rule, search);
    snprintf(name, name_size, "dim %u, codebook 0x%02x, rule %d, search %u", dim, book->id, (int)rule, search);
}

static void encode_run(struct trial *t, const float *y, const struct aura_codec_plan *plan, size_t n,
                       struct layout layout)
{
    static uint8_t want[MAX_ROWS * AURA_MAX_DIM];
    float want_scale[MAX_ROWS];
    float *from = place(&in, n * plan->dim, sizeof(float), layout);
    uint8_t *packed = place(&out, n * plan->row_bytes, 1, layout);
    float *scale = place(&out2, n, sizeof(float), layout);
    memcpy(from, y, n * plan->dim * sizeof *y);
    ((aura_row_encode_fn *)t->variant->run)(packed, scale, from, plan, n);
    check_canaries(t);
    aura_row_encode_ref(want, want_scale, y, plan, n);
    same_bytes(t, packed, want, n * plan->row_bytes, "the codes");
    same_floats(t, scale, want_scale, n, "scale");
    for (size_t row = 0; is_ref(t) && row < n; row++)
        bound(t, aura_ref_encode_error(packed + row * plan->row_bytes, scale[row], y + row * plan->dim, plan), "row",
              row);
    t->cases++;
}

/* Values exactly on the thresholds, and the next floats on either side. The highest level is present and the fit is by the
 * largest coordinate, so the factor is 1 and every comparison is a tie or one float away from one. alone: only one is; the others
 * are between thresholds. The grid has a tie where others have none: it is taken every other time. */
static void encode_ties(struct trial *t, uint32_t dim, int alone, uint64_t *state)
{
    struct aura_codec_plan plan;
    float y[AURA_MAX_DIM];
    char name[80];
    random_plan(&plan, t->variant->kind, dim, name, sizeof name, state);
    if (alone && t->cases % 2) {
        aura_codebook book;
        aura_codebook_get(AURA_TABLE_GRID, plan.bits, &book);
        aura_codec_plan_init(&plan, &book, dim, AURA_SCALE_UNBIASED, 0);
        snprintf(name, sizeof name, "dim %u, the grid", dim);
    }
    plan.uniform = 1;
    plan.n_fits = 1;
    plan.fits[0] = 1;
    const uint32_t levels = plan.bits == 8 ? 255u : 1u << plan.bits, at = (uint32_t)random_bits(state) % dim;
    for (uint32_t d = 0; d < dim; d++) {
        float threshold = plan.threshold[random_bits(state) % ((1u << plan.bits) - 1)];
        float toward = random_bits(state) % 3 == 0 ? -1e9f : random_bits(state) % 2 ? threshold : 1e9f;
        const uint32_t i = (uint32_t)random_bits(state) % levels;
        y[d] = isinf(threshold) ? 0 : nextafterf(threshold, toward);
        if (alone && d != at)
            y[d] = i ? plan.centroid[i] * 0.75f + plan.threshold[i - 1] * 0.25f : plan.centroid[0];
    }
    y[(at + 1) % dim] = plan.top;
    snprintf(t->where, sizeof t->where, "%s, %s", name, alone ? "a tie" : "ties");
    encode_run(t, y, &plan, 1, layout_of(t->cases));
}

/* Exactly on the limit of "too small to matter", one float below it, and a limit of a row family, which keeps the scale. */
static void encode_limits(struct trial *t, uint32_t dim, uint64_t *state)
{
    static const float sizes[] = {0x1p-50f, 0x1.fffffep-51f, 1e-8f, 1.1e-8f};
    for (int i = 0; i < 4; i++) {
        struct aura_codec_plan plan;
        float y[AURA_MAX_DIM] = {0};
        char name[80];
        random_plan(&plan, t->variant->kind, dim, name, sizeof name, state);
        if (i > 1)
            plan.tiny = 1e-8f, plan.keep_tiny = 1;
        y[random_bits(state) % dim] = -sizes[i];
        snprintf(t->where, sizeof t->where, "%s, limit %d", name, i);
        encode_run(t, y, &plan, 1, layout_of(t->cases));
    }
}

/* A codebook of the caller: three levels, one of them 0, so far apart that all of a flat vector becomes 0. */
static void encode_zero_level(struct trial *t, uint32_t dim)
{
    static const float centroid[] = {-10, 0, 10}, threshold[] = {-5, 5};
    aura_codebook book = {0, t->variant->kind, 3, 0, 1, 0, centroid, threshold};
    struct aura_codec_plan plan;
    float y[2 * AURA_MAX_DIM];
    for (uint32_t d = 0; d < dim; d++)
        y[d] = 1, y[dim + d] = d == 3 ? 100 : 1;
    aura_codec_plan_init(&plan, &book, dim, AURA_SCALE_UNBIASED, 1);
    snprintf(t->where, sizeof t->where, "dim %u, a table with a level 0", dim);
    encode_run(t, y, &plan, 2, layout_of(t->cases));
}

static void check_encode(struct trial *t)
{
    static float y[MAX_ROWS * AURA_MAX_DIM];
    uint64_t state = t->seed;
    for (size_t i = 0; i < n_check_dims; i++) {
        for (int turn = 0; turn < 2 * N_VECTOR_KINDS && !t->failure[0]; turn++) {
            struct aura_codec_plan plan;
            char name[80];
            size_t n = random_bits(&state) % 4;
            enum vector_kind kind = (enum vector_kind)(turn % N_VECTOR_KINDS);
            random_plan(&plan, t->variant->kind, check_dims[i], name, sizeof name, &state);
            for (size_t row = 0; row < n; row++)
                fill_vector(y + row * plan.dim, plan.dim, kind, &state);
            snprintf(t->where, sizeof t->where, "%s, %zu rows of %s", name, n, vector_kind_name(kind));
            encode_run(t, y, &plan, n, layout_of(t->cases));
        }
        for (int turn = 0; turn < 24 && !t->failure[0]; turn++)
            encode_ties(t, check_dims[i], turn >= 4, &state);
        encode_limits(t, check_dims[i], &state);
        encode_zero_level(t, check_dims[i]);
    }
}

/* ---- dequant ------------------------------------------------------------------------------------------------------ */

static void dequant_case(struct trial *t, uint32_t dim, int fill, int scale_kind, size_t n, struct layout layout,
                         uint64_t *state)
{
    static float want[MAX_ROWS * AURA_MAX_DIM];
    struct aura_codec_plan plan;
    char name[80];
    random_plan(&plan, t->variant->kind, dim, name, sizeof name, state);
    snprintf(t->where, sizeof t->where, "%s, %zu rows, codes %d, scale %d", name, n, fill, scale_kind);
    uint8_t *packed = place(&in, n * plan.row_bytes, 1, layout);
    float *scale = place(&in2, n, sizeof(float), layout), *x = place(&out, n * dim, sizeof(float), layout);
    for (size_t i = 0; i < n * plan.row_bytes; i++) /* random, all lowest, all highest */
        packed[i] = fill == 0 ? (uint8_t)random_bits(state) : fill == 1 ? 0 : 0xff;
    for (size_t row = 0; row < n; row++)
        scale[row] = scale_of_kind(scale_kind, state);
    ((aura_row_dequant_fn *)t->variant->run)(x, packed, scale, &plan, n);
    check_canaries(t);
    aura_row_dequant_ref(want, packed, scale, &plan, n);
    same_floats(t, x, want, n * dim, "x");
    for (size_t i = 0; is_ref(t) && i < n * dim; i++) {
        double exact = (double)plan.centroid[aura_ref_unpack(packed + i / dim * plan.row_bytes, plan.bits,
                                                             (uint32_t)(i % dim))] * scale[i / dim];
        bound(t, fabs(x[i] - exact) / (fabs(exact) + 0x1p-120), "coordinate", i % dim);
    }
    t->cases++;
}

static void check_dequant(struct trial *t)
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < n_check_dims; i++)
        for (int fill = 0; fill < 3; fill++)
            for (int scale = 0; scale < N_SCALE_KINDS && !t->failure[0]; scale++)
                dequant_case(t, check_dims[i], fill, scale, random_bits(&state) % 4, layout_of(t->cases), &state);
}

/* ---- by name ------------------------------------------------------------------------------------------------------ */

void check_stage(struct trial *t)
{
    const char *stage = t->variant->stage;
    if (!strcmp(stage, "rotate") || !strcmp(stage, "undo"))
        check_rotate(t);
    else if (!strcmp(stage, "row_rotate_dense"))
        check_dense(t);
    else if (!strcmp(stage, "row_encode"))
        check_encode(t);
    else if (!strcmp(stage, "row_dequant"))
        check_dequant(t);
    else if (!check_tile(t))
        check_attend(t);
}
