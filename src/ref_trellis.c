/* The definition of encode and feedback for trellis codes. Both look for the cheapest path through the trellis, from the last
 * channel to the first, as Viterbi did: of the two paths that lead into a state, the cheaper survives. In f32, in one order; a
 * product and a sum are one operation where fmaf() says so. trellis.h has the code itself. */
#include "base/exact.h"
#include "ref.h"

#include <math.h>
#include <string.h>

#include "feedback.h"
#include "trellis.h"

void aura_ref_levels(float *c, const uint8_t *code, const struct aura_codec_plan *plan)
{
    uint32_t state = 0;
    for (uint32_t d = plan->dim; d-- > 0; state = aura_trellis_next(state, code[d] & 1u))
        c[d] = plan->centroid[plan->trellis ? aura_trellis_index(code[d], state) : code[d]];
}

/* The place of a number among the levels of a subset: thresholds strictly below it. */
static uint32_t place_of(float x, uint32_t subset, const struct aura_codec_plan *plan)
{
    uint32_t m = 0;
    for (uint32_t i = 0; i + 1 < 1u << (plan->bits - 1); i++)
        m += x > plan->threshold[8 * subset + i];
    return m;
}

/* Where a path comes from: for every channel and state after it, the code and the state before it. */
struct step {
    uint8_t code[AURA_STATES], from[AURA_STATES];
};

static void trace(uint8_t *code, const struct step *step, const float *cost, uint32_t dim)
{
    uint32_t state = 0;
    for (uint32_t s = 1; s < AURA_STATES; s++)
        state = cost[s] < cost[state] ? s : state;
    for (uint32_t d = 0; d < dim; d++) {
        code[d] = step[d].code[state];
        state = step[d].from[state];
    }
}

/* A number among the levels of each subset: its place, and what its distance costs, `weight` times the square. */
struct near {
    uint32_t place[4];
    float cost[4];
};

static struct near near_of(float x, float weight, const struct aura_codec_plan *plan)
{
    struct near n;
    for (uint32_t z = 0; z < 4; z++) {
        n.place[z] = place_of(x, z, plan);
        const float r = x - plan->centroid[4 * n.place[z] + z];
        n.cost[z] = (weight * r) * r;
    }
    return n;
}

/* The better of the two branches into a state, the first among equals: its cost is returned, and where it comes from is noted. x[s]
 * is what state s sees, or x[0] what all see. */
static float branch(struct step *step, uint32_t state, const struct near *x, int all, const float *cost)
{
    float best = 0;
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t from = state / 2 + 4 * i, z = aura_trellis_subset(from, state % 2);
        const struct near *n = &x[all ? 0 : from];
        const float sum = cost[from] + n->cost[z];
        if (i == 0 || sum < best) {
            best = sum;
            step->code[state] = (uint8_t)(2 * n->place[z] + state % 2);
            step->from[state] = (uint8_t)from;
        }
    }
    return best;
}

static void begin(float *cost)
{
    for (uint32_t s = 0; s < AURA_STATES; s++)
        cost[s] = s ? INFINITY : 0;
}

/* ---- encode ------------------------------------------------------------------------------------------------------- */

/* The cheapest path for gain * y. */
static void path_of(uint8_t *code, const float *y, float gain, const struct aura_codec_plan *plan)
{
    struct step step[AURA_TILE_DIM];
    float cost[AURA_STATES], next[AURA_STATES];
    begin(cost);
    for (uint32_t d = plan->dim; d-- > 0;) {
        const struct near x = near_of(y[d] * gain, 1, plan);
        for (uint32_t s = 0; s < AURA_STATES; s++)
            next[s] = branch(&step[d], s, &x, 1, cost);
        memcpy(cost, next, sizeof cost);
    }
    trace(code, step, cost, plan->dim);
}

/* The sum of products, of 16 channels after the other: each sum of 16 from the last to the first. */
static float dot_of(const float *a, const float *b, uint32_t dim)
{
    float sum = 0;
    for (uint32_t first = dim; first > 0;) {
        float part = 0;
        first -= AURA_TRELLIS_BLOCK;
        for (uint32_t d = first + AURA_TRELLIS_BLOCK; d-- > first;)
            part = fmaf(a[d], b[d], part);
        sum = sum + part;
    }
    return sum;
}

/* The best fit has the best cosine, as with plain codes. A vector that is too small to matter has codes 0 and scale 0. */
static void encode_row(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan)
{
    uint8_t one[AURA_TILE_DIM];
    float c[AURA_TILE_DIM], best = -1;
    const float size2 = dot_of(y, y, plan->dim);
    memset(code, 0, plan->dim);
    *scale = 0;
    const float unit = aura_feedback_unit(plan, size2, 0);
    for (uint32_t k = 0; unit > 0 && k < plan->n_fits; k += AURA_FEEDBACK_STRIDE) {
        path_of(one, y, plan->fits[k] * unit, plan);
        aura_ref_levels(c, one, plan);
        const float dot = dot_of(y, c, plan->dim), cc = dot_of(c, c, plan->dim);
        const float cosine = dot / sqrtf(cc);
        if (!(cosine > best))
            continue;
        best = cosine;
        memcpy(code, one, plan->dim);
        *scale = aura_trellis_scale(plan, size2, dot, cc);
    }
}

void aura_ref_encode_trellis(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, size_t n)
{
    for (size_t row = 0; row < n; row++)
        encode_row(code + row * plan->dim, scale + row, y + row * plan->dim, plan);
}

/* ---- feedback ------------------------------------------------------------------------------------------------------ */

/* Blocks of channels, from the last to the first. Every survivor has the errors of its own path in this block and in the one
 * before. At the end of a block the cheapest survivor decides what the errors of the block before are, and survivors of another
 * opinion end. So the sums over all channels behind that are the same for all. Paths that live meet within a few channels: what
 * ends would hardly have won. */
struct survivors {
    float cost[AURA_STATES];
    float error[AURA_STATES][2 * AURA_TRELLIS_BLOCK]; /* of this block and the one before */
    uint8_t since[AURA_STATES];                       /* the state that its path had when the block began */
};

/* All survivors go on by a channel, d of the block that begins at `first`. e: errors that are decided. */
static void go_on(struct survivors *s, struct step *step, const float *y, float gain, uint32_t first, uint32_t d,
                  const float *e, const struct aura_codec_plan *plan, const struct aura_metric *metric)
{
    const struct survivors before = *s;
    struct near x[AURA_STATES];
    float all[AURA_TILE_DIM];
    const uint32_t own = first + 2 * AURA_TRELLIS_BLOCK < plan->dim ? 2 * AURA_TRELLIS_BLOCK : plan->dim - first;
    memcpy(all, e, plan->dim * sizeof *e);
    for (uint32_t i = 0; i < AURA_STATES; i++) {
        memcpy(all + first, before.error[i], own * sizeof *all);
        x[i] = near_of(aura_ref_chain(y[d] * gain, all, metric, d), metric->weight[d], plan);
    }
    for (uint32_t i = 0; i < AURA_STATES; i++) {
        s->cost[i] = branch(step, i, x, 0, before.cost);
        const uint32_t from = step->from[i], index = aura_trellis_index(step->code[i], from);
        memcpy(s->error[i], before.error[from], sizeof s->error[i]);
        s->error[i][d - first] = y[d] * gain - plan->centroid[index];
        s->since[i] = before.since[from];
    }
}

/* The errors of the block before are decided. */
static void decide(struct survivors *s, float *e, uint32_t first, const struct aura_codec_plan *plan)
{
    uint32_t best = 0;
    if (first + AURA_TRELLIS_BLOCK >= plan->dim)
        return;
    for (uint32_t i = 1; i < AURA_STATES; i++)
        best = s->cost[i] < s->cost[best] ? i : best;
    const uint8_t since = s->since[best];
    memcpy(e + first + AURA_TRELLIS_BLOCK, s->error[best] + AURA_TRELLIS_BLOCK, AURA_TRELLIS_BLOCK * sizeof *e);
    for (uint32_t i = 0; i < AURA_STATES; i++)
        s->cost[i] = s->since[i] == since ? s->cost[i] : INFINITY;
}

/* The cheapest path in the metric for gain * y. */
static void path_with_feedback(uint8_t *code, const float *y, float gain, const struct aura_codec_plan *plan,
                               const struct aura_metric *metric)
{
    struct step step[AURA_TILE_DIM];
    struct survivors s;
    float e[AURA_TILE_DIM] = {0};
    memset(&s, 0, sizeof s);
    begin(s.cost);
    for (uint32_t first = plan->dim; first > 0;) {
        first -= AURA_TRELLIS_BLOCK;
        for (uint32_t i = 0; i < AURA_STATES; i++) {
            memcpy(s.error[i] + AURA_TRELLIS_BLOCK, s.error[i], AURA_TRELLIS_BLOCK * sizeof *s.error[i]);
            s.since[i] = (uint8_t)i;
        }
        for (uint32_t d = first + AURA_TRELLIS_BLOCK; d-- > first;)
            go_on(&s, &step[d], y, gain, first, d, e, plan, metric);
        decide(&s, e, first, plan);
    }
    trace(code, step, s.cost, plan->dim);
}

/* What codes of gain * y cost: the sums of yr, rr and dot. u: chain of y. */
static void sum_up(struct aura_feedback_sums *s, const uint8_t *code, const float *y, const float *u, float gain,
                   const struct aura_codec_plan *plan, const struct aura_metric *metric)
{
    float c[AURA_TILE_DIM], e[AURA_TILE_DIM];
    aura_ref_levels(c, code, plan);
    for (uint32_t d = 0; d < plan->dim; d++)
        e[d] = y[d] * gain - c[d];
    s->yr = s->rr = s->dot = 0;
    for (uint32_t d = plan->dim; d-- > 0;) {
        const float r = aura_ref_chain(e[d], e, metric, d), weighted = metric->weight[d] * r;
        s->yr = fmaf(weighted, u[d], s->yr);
        s->rr = fmaf(weighted, r, s->rr);
        s->dot = fmaf(y[d], c[d], s->dot);
    }
}

static void feedback_row(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                         const struct aura_metric *metric)
{
    float u[AURA_TILE_DIM], c[AURA_TILE_DIM], e[AURA_TILE_DIM], best = 0;
    uint8_t one[AURA_TILE_DIM];
    struct aura_feedback_sums s = {0, 0, 0, 0, 0};
    const float plain = aura_feedback_stored(*scale);
    aura_ref_levels(c, code, plan);
    for (uint32_t d = 0; d < plan->dim; d++)
        e[d] = y[d] - c[d] * plain;
    for (uint32_t d = plan->dim; d-- > 0;) {
        const float r = aura_ref_chain(e[d], e, metric, d);
        best = fmaf(metric->weight[d] * r, r, best);
        u[d] = aura_ref_chain(y[d], y, metric, d);
        s.yy = fmaf(metric->weight[d] * u[d], u[d], s.yy);
        s.size2 = fmaf(y[d], y[d], s.size2);
    }
    const float given = *scale;
    for (uint32_t k = 0; given > 0 && k < aura_trellis_gains(plan); k++) {
        const float gain = aura_trellis_gain(k, given);
        path_with_feedback(one, y, gain, plan, metric);
        sum_up(&s, one, y, u, gain, plan, metric);
        const float with = aura_feedback_stored(aura_feedback_scale(&s, gain, plan->rule));
        const float cost = aura_feedback_cost(&s, gain, with);
        if (cost < best) {
            best = cost;
            *scale = with;
            memcpy(code, one, plan->dim);
        }
    }
}

void aura_ref_feedback_trellis(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                               const struct aura_metric *metric, size_t n)
{
    for (size_t row = 0; row < n; row++)
        feedback_row(code + row * plan->dim, scale + row, y + row * plan->dim, plan, metric);
}
