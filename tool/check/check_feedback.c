/* The cases of feedback. Its definition is compared with double in the one thing it promises: no vector costs more than with the
 * codes that it was given. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../src/base/dtype.h"
#include "../../src/feedback.h"
#include "../../src/metric.h"
#include "../../src/ref.h"
#include "../../src/rotation.h"
#include "../parts/inputs.h"

enum { MOST = AURA_TILE_DIM, MOST_ROWS = AURA_LANES + 1 };

/* Metrics: of so few queries that most errors cost nothing; of many, some channels being much stronger; none at all. */
enum { FEW, MANY, NONE, N_METRICS };
static const char *const metric_names[N_METRICS] = {"3 queries", "many queries", "no query"};
static _Alignas(64) float ready[MOST * MOST + MOST];
static double scratch[MOST * MOST + MOST];
static float triangle[MOST * (MOST + 1) / 2];

static void make_metric(struct aura_metric *metric, uint32_t dim, int which, uint64_t *state)
{
    const uint32_t queries = which == FEW ? 3 : which == MANY ? 48 : 0;
    struct aura_rotation_plan rotation;
    float q[MOST];
    memset(triangle, 0, sizeof triangle);
    for (uint32_t n = 0; n < queries; n++) {
        fill_vector(q, dim, NORMAL, state);
        for (uint32_t i = 0; i < dim; i++)
            q[i] *= i % 7 == 0 ? 9 : 1;
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j <= i; j++)
                triangle[(size_t)i * (i + 1) / 2 + j] += q[i] * q[j];
    }
    aura_rotation_plan_init(&rotation, dim, NULL, NULL, 0);
    aura_metric_init(metric, ready, scratch, triangle, dim, NULL, &rotation);
}

/* How much more a row costs than the one it was made of, as a part of that and of a hundredth of what the vector itself would
 * cost: of errors that are nearly nothing, f32 sees no difference. */
static double excess(const uint8_t *code, float scale, const uint8_t *plain, float plain_scale, const float *y,
                     const struct aura_codec_plan *plan, const struct aura_metric *metric)
{
    double size;
    const double with = (double)aura_feedback_stored(scale), before = (double)aura_feedback_stored(plain_scale);
    const double cost = aura_ref_metric_error(code, with, y, plan, metric, &size);
    const double least = aura_ref_metric_error(plain, before, y, plan, metric, &size);
    return cost <= least ? 0 : (cost - least) / (least + size / 100);
}

static void feedback_case(struct trial *t, const struct aura_metric *metric, const char *metric_name, enum vector_kind kind,
                          size_t n, uint64_t *state)
{
    static uint8_t plain[MOST_ROWS * MOST], want[MOST_ROWS * MOST];
    const uint32_t dim = metric->dim;
    float plain_scale[MOST_ROWS], want_scale[MOST_ROWS];
    struct aura_codec_plan plan;
    struct layout layout = layout_of(t->cases++);
    char name[80];
    random_plan(&plan, t->variant->kind, dim, name, sizeof name, state);
    plan.rule = t->cases % 3 ? AURA_SCALE_MATCHED : AURA_SCALE_UNBIASED;
    snprintf(t->where, sizeof t->where, "%s, %zu rows of %s, %s", name, n, vector_kind_name(kind), metric_name);
    float *y = place(&in, n * dim, sizeof(float), layout), *scale = place(&out2, n, sizeof(float), layout);
    uint8_t *code = place(&out, n * dim, 1, layout);
    for (size_t row = 0; row < n; row++)
        fill_vector(y + row * dim, dim, kind, state);
    aura_encode_ref(plain, plain_scale, y, &plan, n);
    memcpy(want, plain, n * dim), memcpy(code, plain, n * dim);
    memcpy(want_scale, plain_scale, n * sizeof *scale), memcpy(scale, plain_scale, n * sizeof *scale);
    ((aura_feedback_fn *)t->variant->run)(code, scale, y, &plan, metric, n);
    check_canaries(t);
    aura_feedback_ref(want, want_scale, y, &plan, metric, n);
    same_bytes(t, code, want, n * dim, "the codes");
    same_floats(t, scale, want_scale, n, "scale");
    for (size_t row = 0; is_ref(t) && row < n; row++)
        if (isfinite(aura_feedback_stored(plain_scale[row]))) /* the contract */
            bound(t, excess(code + row * dim, scale[row], plain + row * dim, plain_scale[row], y + row * dim, &plan, metric),
                  "row", row);
}

void check_feedback(struct trial *t)
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    uint64_t state = t->seed;
    struct aura_metric metric;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++) {
        const uint32_t dim = dims[i];
        const int turns = dim <= 128 ? N_METRICS : 1;
        for (int turn = 0; turn < turns && !t->failure[0]; turn++) {
            const int which = (turn + (int)i) % N_METRICS;
            make_metric(&metric, dim, dim > 256 ? MANY : which, &state);
            feedback_case(t, &metric, metric_names[which], NORMAL, dim <= 128 ? MOST_ROWS : 2, &state);
            for (int kind = 0; kind < N_VECTOR_KINDS && dim <= 80 && !t->failure[0]; kind++)
                feedback_case(t, &metric, metric_names[which], (enum vector_kind)kind, random_bits(&state) % 4, &state);
        }
    }
}
