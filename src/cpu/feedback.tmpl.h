/* feedback, written once over the words of an instruction set: a lane is a vector, so that 16 of them go side by side
 * through the same sums, each in the order of the definition.
 *
 * The naive loop finishes one coordinate at a time, and adds up for it what all later ones say: every product is a load
 * of an error, and each waits for the one before. Here some coordinates, `rows`, are added up together, over all
 * coordinates after them. Then the last of them is rounded and its error goes to the others, then the next. No sum
 * changes its order by that.
 *
 * To round is a long way from one instruction to the next. So FEEDBACK_FITS fits go side by side, each with errors of
 * its own, and share what they load of the metric.
 *
 * Needs: encode.tmpl.h; vec_load, vec_store, vec_set1, vec_add, vec_sub, vec_mul, vec_fma, vec_abs, vec_max;
 *        ivec_columns, vec_of_ivec, ivec_store8, ivec_and, ivec_shl, ivec_shr, ivec_plus, ivec_xor, ivec_zero;
 *        FEEDBACK_ROWS, which divides 16, and FEEDBACK_FITS, at most 3; AURA_ISA. */

/* 16 vectors, [coordinate][vector]. */
struct feedback {
    const struct aura_codec_plan *plan;
    const struct aura_metric *metric;
    _Alignas(64) float y[AURA_TILE_DIM][AURA_LANES], u[AURA_TILE_DIM][AURA_LANES]; /* u: chain of y */
    _Alignas(64) float e[3][AURA_TILE_DIM][AURA_LANES]; /* errors of fits; of trellis codes errors, chain, levels */
    uint8_t code[AURA_FEEDBACK_FITS][AURA_TILE_DIM][AURA_LANES];
    struct aura_feedback_sums sums[AURA_FEEDBACK_FITS][AURA_LANES];
    float gain[AURA_FEEDBACK_FITS][AURA_LANES], unit[AURA_LANES];
    float plain[AURA_LANES]; /* what the codes of encode cost */
};

/* Coordinates that are added up together where n sums of each are; they divide 16. */
AURA_INLINE int feedback_together(const int n)
{
    return n == 1 ? FEEDBACK_ROWS : FEEDBACK_ROWS / 2;
}

/* x[n][k] + sum over j >= first + rows of l[j][first + k] e[n][j]; n and rows are constants. */
AURA_INLINE void feedback_add(vec x[][FEEDBACK_ROWS], const struct aura_metric *metric, float (*const e[])[AURA_LANES],
                              uint32_t first, const int n, const int rows)
{
    const uint32_t dim = metric->dim;
    const float *l = metric->l + first;
    for (uint32_t j = dim; j-- > first + (uint32_t)rows;) {
        vec error[3];
        AURA_UNROLL
        for (int i = 0; i < n; i++)
            error[i] = vec_load(e[i][j]);
        AURA_UNROLL
        for (int k = 0; k < rows; k++) {
            const vec by = vec_set1(l[(size_t)j * dim + (size_t)k]);
            AURA_UNROLL
            for (int i = 0; i < n; i++)
                x[i][k] = vec_fma(by, error[i], x[i][k]);
        }
    }
}

/* The same for one of them, first + k, to those before it. */
AURA_INLINE void feedback_pass(vec *x, const struct aura_metric *metric, vec error, uint32_t first, const int k)
{
    const float *l = metric->l + (size_t)(first + (uint32_t)k) * metric->dim + first;
    AURA_UNROLL
    for (int i = 0; i < k; i++)
        x[i] = vec_fma(vec_set1(l[i]), error, x[i]);
}

/* cost[i] = what from[i] costs; u[i] = its chain, where that is not NULL; for i < n, a constant. */
AURA_INLINE void feedback_chains(vec *cost, float (*const u[])[AURA_LANES], const struct aura_metric *metric,
                                 float (*const from[])[AURA_LANES], const int n)
{
    const int rows = feedback_together(n);
    vec x[2][FEEDBACK_ROWS];
    AURA_UNROLL
    for (int i = 0; i < n; i++)
        cost[i] = vec_set1(0);
    for (uint32_t first = metric->dim; first > 0;) {
        first -= (uint32_t)rows;
        AURA_UNROLL
        for (int i = 0; i < n * rows; i++)
            x[i / rows][i % rows] = vec_load(from[i / rows][first + (uint32_t)(i % rows)]);
        feedback_add(x, metric, from, first, n, rows);
        AURA_UNROLL
        for (int i = 0; i < n * rows; i++) {
            const int k = rows - 1 - i / n, c = i % n;
            const uint32_t d = first + (uint32_t)k;
            feedback_pass(x[c], metric, vec_load(from[c][d]), first, k);
            cost[c] = vec_fma(vec_mul(vec_set1(metric->weight[d]), x[c][k]), x[c][k], cost[c]);
            if (u[c])
                vec_store(u[c][d], x[c][k]);
        }
    }
}

/* The level next to a number, and its index. */
AURA_INLINE vec feedback_level(ivec *index, vec x, const struct feedback *f, const struct table *threshold,
                               const struct table *centroid, const int bits)
{
    vec c;
    if (bits >= 5 && f->plan->step > 0) {
        *index = encode_step(&c, x, f->plan, bits);
        return c;
    }
    *index = encode_index(x, threshold, bits);
    return table_lookup(centroid, *index, bits);
}

AURA_INLINE void feedback_sums(struct aura_feedback_sums *sums, vec yr, vec rr, vec dot)
{
    float lane[3][AURA_LANES];
    vec_store(lane[0], yr), vec_store(lane[1], rr), vec_store(lane[2], dot);
    for (int v = 0; v < AURA_LANES; v++)
        sums[v].yr = lane[0][v], sums[v].rr = lane[1][v], sums[v].dot = lane[2][v];
}

/* n fits from `fit` on; n is a constant. */
AURA_INLINE void feedback_round(struct feedback *f, uint32_t fit, const int n, const int bits)
{
    const struct table centroid = table_of(f->plan->centroid, bits), threshold = table_of(f->plan->threshold, bits);
    const struct aura_metric *metric = f->metric;
    const int rows = feedback_together(n);
    float(*e[FEEDBACK_FITS])[AURA_LANES];
    vec x[FEEDBACK_FITS][FEEDBACK_ROWS], gain[FEEDBACK_FITS], yr[FEEDBACK_FITS], rr[FEEDBACK_FITS], dot[FEEDBACK_FITS];
    AURA_UNROLL
    for (int i = 0; i < n; i++)
        e[i] = f->e[i], gain[i] = vec_load(f->gain[fit + (uint32_t)i]), yr[i] = rr[i] = dot[i] = vec_set1(0);
    for (uint32_t first = metric->dim; first > 0;) {
        first -= (uint32_t)rows;
        AURA_UNROLL
        for (int i = 0; i < n * rows; i++)
            x[i / rows][i % rows] = vec_mul(vec_load(f->y[first + (uint32_t)(i % rows)]), gain[i / rows]);
        feedback_add(x, metric, e, first, n, rows);
        AURA_UNROLL
        for (int i = 0; i < n * rows; i++) {
            const int k = rows - 1 - i / n, v = i % n;
            const uint32_t d = first + (uint32_t)k;
            ivec index;
            const vec y = vec_load(f->y[d]), c = feedback_level(&index, x[v][k], f, &threshold, &centroid, bits);
            const vec error = vec_sub(vec_mul(y, gain[v]), c), r = vec_sub(x[v][k], c);
            const vec weighted = vec_mul(vec_set1(metric->weight[d]), r);
            feedback_pass(x[v], metric, error, first, k);
            vec_store(e[v][d], error);
            ivec_store8(f->code[fit + (uint32_t)v][d], index);
            yr[v] = vec_fma(weighted, vec_load(f->u[d]), yr[v]);
            rr[v] = vec_fma(weighted, r, rr[v]);
            dot[v] = vec_fma(y, c, dot[v]);
        }
    }
    AURA_UNROLL
    for (int i = 0; i < n; i++)
        feedback_sums(f->sums[fit + (uint32_t)i], yr[i], rr[i], dot[i]);
}

/* y and, in e[0], the errors of the codes of encode, of n vectors and zeros for those that are missing. */
AURA_INLINE void feedback_turn(struct feedback *f, const uint8_t *code, const float *scale, const float *y, size_t n,
                               const int bits, const int trellis)
{
    const uint32_t dim = f->plan->dim;
    const struct table centroid = table_of(f->plan->centroid, bits + trellis);
    float stored[AURA_LANES];
    uint8_t whole[AURA_LANES * AURA_LANES]; /* codes of 16 coordinates */
    ivec quad[8], state = ivec_zero();
    for (size_t v = 0; v < AURA_LANES; v++)
        stored[v] = v < n ? aura_feedback_stored(scale[v]) : 0;
    const vec with = vec_load(stored);
    for (uint32_t first = dim; first > 0;) {
        first -= AURA_LANES;
        _Alignas(64) float rows[AURA_LANES][AURA_LANES] = {{0}};
        memset(whole, 0, sizeof whole);
        for (size_t v = 0; v < n; v++) {
            memcpy(rows[v], y + v * dim + first, sizeof rows[v]);
            memcpy(whole + v * AURA_LANES, code + v * dim + first, AURA_LANES);
        }
        AURA_UNROLL
        for (int half = 0; half < 2; half++) {
            ivec_columns(quad, (const uint8_t *)rows + 32 * half, sizeof rows[0], 8);
            AURA_UNROLL
            for (int k = 0; k < 8; k++)
                vec_store(f->y[first + 8 * (uint32_t)half + (uint32_t)k], vec_of_ivec(quad[k]));
        }
        ivec_columns(quad, whole, AURA_LANES, 4);
        AURA_UNROLL
        for (int k = AURA_LANES - 1; k >= 0; k--) {
            ivec index = ivec_and(ivec_shr(quad[k / 4], k % 4 * 8), 0xff);
            if (trellis) {
                const ivec u = ivec_and(index, 1), z1 = ivec_and(ivec_xor(u, ivec_xor(state, ivec_shr(state, 2))), 1);
                const ivec z0 = ivec_and(ivec_shr(state, 1), 1), m = ivec_shl(ivec_shr(index, 1), 2);
                index = ivec_plus(m, ivec_plus(ivec_plus(z1, z1), z0));
                state = ivec_and(ivec_plus(ivec_plus(state, state), u), AURA_STATES - 1);
            }
            const vec x = vec_load(f->y[first + (uint32_t)k]), c = table_lookup(&centroid, index, bits + trellis);
            vec_store(f->e[0][first + (uint32_t)k], vec_sub(x, vec_mul(c, with)));
        }
    }
}

/* Everything that no fit changes. */
AURA_INLINE void feedback_begin(struct feedback *f)
{
    float(*const from[2])[AURA_LANES] = {f->e[0], f->y}, (*const u[2])[AURA_LANES] = {NULL, f->u};
    float lane[3][AURA_LANES];
    vec cost[2], size2 = vec_set1(0), largest = vec_set1(0);
    if (FEEDBACK_FITS > 1) {
        feedback_chains(cost, u, f->metric, from, 2);
    } else {
        feedback_chains(cost, u, f->metric, from, 1);
        feedback_chains(cost + 1, u + 1, f->metric, from + 1, 1);
    }
    for (uint32_t d = f->plan->dim; d-- > 0;) {
        const vec x = vec_load(f->y[d]);
        size2 = vec_fma(x, x, size2);
        largest = vec_max(largest, vec_abs(x));
    }
    vec_store(f->plain, cost[0]);
    vec_store(lane[0], cost[1]), vec_store(lane[1], size2), vec_store(lane[2], largest);
    for (int v = 0; v < AURA_LANES; v++) {
        for (int k = 0; k < AURA_FEEDBACK_FITS; k++)
            f->sums[k][v].yy = lane[0][v], f->sums[k][v].size2 = lane[1][v];
        f->unit[v] = aura_feedback_unit(f->plan, lane[1][v], lane[2][v]);
    }
}

AURA_INLINE void trellis_round(struct feedback *f, uint32_t fit, const int bits); /* trellis.tmpl.h */

/* Codes and sums of all fits. */
AURA_INLINE void feedback_fits(struct feedback *f, uint32_t fits, const int bits, const int trellis)
{
    uint32_t k = 0;
    for (; trellis && k < fits; k++)
        trellis_round(f, k, bits);
    for (; k + FEEDBACK_FITS <= fits; k += FEEDBACK_FITS)
        feedback_round(f, k, FEEDBACK_FITS, bits);
    if (FEEDBACK_FITS > 2 && fits - k == 2)
        feedback_round(f, k, 2, bits);
    else if (FEEDBACK_FITS > 1 && fits - k == 1)
        feedback_round(f, k, 1, bits);
}

/* Up to 16 vectors. */
AURA_INLINE void feedback_rows(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                               const struct aura_metric *metric, size_t n, const int bits, const int trellis)
{
    const uint32_t every = AURA_FEEDBACK_STRIDE;
    const uint32_t fits = trellis ? aura_trellis_gains(plan) : (plan->n_fits + every - 1) / every;
    struct feedback f;
    f.plan = plan;
    f.metric = metric;
    feedback_turn(&f, code, scale, y, n, bits, trellis);
    feedback_begin(&f);
    for (uint32_t k = 0; k < fits; k++)
        for (size_t v = 0; v < AURA_LANES; v++)
            f.gain[k][v] =
                !trellis ? plan->fits[k * every] * f.unit[v] : v < n ? aura_trellis_gain(k, scale[v]) : 0;
    feedback_fits(&f, fits, bits, trellis);
    for (size_t v = 0; v < n; v++) {
        float best = INFINITY, best_scale = 0;
        uint32_t best_fit = 0;
        for (uint32_t k = 0; k < fits; k++) {
            const struct aura_feedback_sums *s = &f.sums[k][v];
            const float gain = f.gain[k][v], with = aura_feedback_stored(aura_feedback_scale(s, gain, plan->rule));
            const float cost = aura_feedback_cost(s, gain, with);
            if (gain > 0 && cost < best)
                best = cost, best_scale = with, best_fit = k;
        }
        if (!(best < f.plain[v]))
            continue;
        scale[v] = best_scale;
        for (uint32_t d = 0; d < plan->dim; d++)
            code[v * plan->dim + d] = f.code[best_fit][d][v];
    }
}

#define AURA_STAMP(stage, shape, bits, isa)                                                                            \
    void aura_feedback_##shape##_##isa(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, \
                                       const struct aura_metric *metric, size_t n)                                     \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row += AURA_LANES)                                                               \
            feedback_rows(code + row * plan->dim, scale + row, y + row * plan->dim, plan, metric,                      \
                          n - row < AURA_LANES ? n - row : AURA_LANES, bits, 0);                                       \
    }
AURA_SHAPES_bits(AURA_STAMP, feedback, AURA_ISA)
#undef AURA_STAMP
