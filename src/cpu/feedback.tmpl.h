/* feedback, written once over the words of an instruction set: a lane is a vector, so that 16 of them go side by side through the
 * same sums, each in the order of the definition.
 *
 * The naive loop finishes one coordinate at a time, and adds up for it what all later ones say: every product is a load of an
 * error, and each waits for the one before. Here FEEDBACK_ROWS coordinates are added up together, over all coordinates after
 * them. Then the last of them is rounded and its error goes to the others, then the next. No sum changes its order by that.
 *
 * Needs: encode.tmpl.h; vec_load, vec_store, vec_set1, vec_add, vec_sub, vec_mul, vec_fma, vec_abs, vec_max; ivec_store8;
 *        FEEDBACK_ROWS, which divides 16; AURA_ISA. */

/* 16 vectors, [coordinate][vector]. */
struct feedback {
    const struct aura_codec_plan *plan;
    const struct aura_metric *metric;
    _Alignas(64) float y[AURA_TILE_DIM][AURA_LANES], u[AURA_TILE_DIM][AURA_LANES]; /* u: chain of y */
    _Alignas(64) float e[AURA_TILE_DIM][AURA_LANES];                               /* errors */
    uint8_t code[AURA_FEEDBACK_FITS][AURA_TILE_DIM][AURA_LANES];
    struct aura_feedback_sums sums[AURA_LANES];
    float unit[AURA_LANES], gain[AURA_LANES], plain[AURA_LANES];                   /* plain: what the codes of encode cost */
};

/* x[k] + sum over j >= first + FEEDBACK_ROWS of l[j][first + k] e[j]. */
AURA_INLINE void feedback_add(vec *x, const struct feedback *f, float e[][AURA_LANES], uint32_t first)
{
    const uint32_t dim = f->metric->dim;
    const float *l = f->metric->l + first;
    for (uint32_t j = dim; j-- > first + FEEDBACK_ROWS;) {
        const vec error = vec_load(e[j]);
        AURA_UNROLL
        for (int k = 0; k < FEEDBACK_ROWS; k++)
            x[k] = vec_fma(vec_set1(l[(size_t)j * dim + k]), error, x[k]);
    }
}

/* The same for one of them, first + k, to those before it. */
AURA_INLINE void feedback_pass(vec *x, const struct feedback *f, vec error, uint32_t first, const int k)
{
    const float *l = f->metric->l + (size_t)(first + (uint32_t)k) * f->metric->dim + first;
    AURA_UNROLL
    for (int i = 0; i < FEEDBACK_ROWS; i++)
        if (i < k)
            x[i] = vec_fma(vec_set1(l[i]), error, x[i]);
}

/* u = chain of x, where u is not NULL; returns what x costs. */
AURA_INLINE vec feedback_chain(float u[][AURA_LANES], const struct feedback *f, float from[][AURA_LANES])
{
    vec sum = vec_set1(0), x[FEEDBACK_ROWS];
    for (uint32_t first = f->metric->dim; first > 0;) {
        first -= FEEDBACK_ROWS;
        AURA_UNROLL
        for (int k = 0; k < FEEDBACK_ROWS; k++)
            x[k] = vec_load(from[first + (uint32_t)k]);
        feedback_add(x, f, from, first);
        AURA_UNROLL
        for (int k = FEEDBACK_ROWS - 1; k >= 0; k--) {
            const uint32_t i = first + (uint32_t)k;
            feedback_pass(x, f, vec_load(from[i]), first, k);
            sum = vec_fma(vec_mul(vec_set1(f->metric->weight[i]), x[k]), x[k], sum);
            if (u)
                vec_store(u[i], x[k]);
        }
    }
    return sum;
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

/* One fit. */
AURA_INLINE void feedback_round(struct feedback *f, uint8_t code[][AURA_LANES], const int bits)
{
    const struct table centroid = table_of(f->plan->centroid, bits), threshold = table_of(f->plan->threshold, bits);
    const vec gain = vec_load(f->gain);
    vec yr = vec_set1(0), rr = vec_set1(0), dot = vec_set1(0), x[FEEDBACK_ROWS];
    float sums[3][AURA_LANES];
    for (uint32_t first = f->metric->dim; first > 0;) {
        first -= FEEDBACK_ROWS;
        AURA_UNROLL
        for (int k = 0; k < FEEDBACK_ROWS; k++)
            x[k] = vec_mul(vec_load(f->y[first + (uint32_t)k]), gain);
        feedback_add(x, f, f->e, first);
        AURA_UNROLL
        for (int k = FEEDBACK_ROWS - 1; k >= 0; k--) {
            const uint32_t i = first + (uint32_t)k;
            ivec index;
            const vec y = vec_load(f->y[i]), c = feedback_level(&index, x[k], f, &threshold, &centroid, bits);
            const vec error = vec_sub(vec_mul(y, gain), c), r = vec_sub(x[k], c);
            const vec weighted = vec_mul(vec_set1(f->metric->weight[i]), r);
            feedback_pass(x, f, error, first, k);
            vec_store(f->e[i], error);
            ivec_store8(code[i], index);
            yr = vec_fma(weighted, vec_load(f->u[i]), yr);
            rr = vec_fma(weighted, r, rr);
            dot = vec_fma(y, c, dot);
        }
    }
    vec_store(sums[0], yr), vec_store(sums[1], rr), vec_store(sums[2], dot);
    for (int v = 0; v < AURA_LANES; v++) {
        f->sums[v].yr = sums[0][v];
        f->sums[v].rr = sums[1][v];
        f->sums[v].dot = sums[2][v];
    }
}

/* Everything that no fit changes. */
AURA_INLINE void feedback_begin(struct feedback *f, const uint8_t *code, const float *scale, const float *y, size_t n)
{
    const struct aura_codec_plan *plan = f->plan;
    float sums[3][AURA_LANES];
    for (size_t v = 0; v < AURA_LANES; v++) {
        const float with = v < n ? aura_feedback_stored(scale[v]) : 0;
        uint32_t state = 0;
        for (uint32_t d = plan->dim; d-- > 0;) {
            const float x = v < n ? y[v * plan->dim + d] : 0;
            uint32_t index = v < n ? code[v * plan->dim + d] : 0;
            if (plan->trellis) {
                const uint32_t u = index & 1;
                index = aura_trellis_index(index, state);
                state = aura_trellis_next(state, u);
            }
            f->y[d][v] = x;
            f->e[d][v] = v < n ? x - plan->centroid[index] * with : 0;
        }
    }
    vec_store(f->plain, feedback_chain(NULL, f, f->e));
    vec size2 = vec_set1(0), largest = vec_set1(0);
    for (uint32_t d = plan->dim; d-- > 0;) {
        const vec x = vec_load(f->y[d]);
        size2 = vec_fma(x, x, size2);
        largest = vec_max(largest, vec_abs(x));
    }
    vec_store(sums[0], feedback_chain(f->u, f, f->y)), vec_store(sums[1], size2), vec_store(sums[2], largest);
    for (int v = 0; v < AURA_LANES; v++) {
        f->sums[v].yy = sums[0][v];
        f->sums[v].size2 = sums[1][v];
        f->unit[v] = aura_feedback_unit(plan, sums[1][v], sums[2][v]);
    }
}

AURA_INLINE void trellis_round(struct feedback *f, uint8_t code[][AURA_LANES], const int bits); /* trellis.tmpl.h */

/* Up to 16 vectors. */
AURA_INLINE void feedback_rows(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                               const struct aura_metric *metric, size_t n, const int bits, const int trellis)
{
    struct feedback f;
    float best[AURA_LANES], best_scale[AURA_LANES];
    uint32_t best_fit[AURA_LANES];
    f.plan = plan;
    f.metric = metric;
    feedback_begin(&f, code, scale, y, n);
    for (size_t v = 0; v < n; v++)
        best[v] = INFINITY;
    const uint32_t fits = trellis ? aura_trellis_gains(plan) : (plan->n_fits + AURA_FEEDBACK_STRIDE - 1) / AURA_FEEDBACK_STRIDE;
    for (uint32_t k = 0; k < fits; k++) {
        for (size_t v = 0; v < AURA_LANES; v++)
            f.gain[v] = !trellis ? plan->fits[k * AURA_FEEDBACK_STRIDE] * f.unit[v] : v < n ? aura_trellis_gain(k, scale[v]) : 0;
        if (trellis)
            trellis_round(&f, f.code[k], bits);
        else
            feedback_round(&f, f.code[k], bits);
        for (size_t v = 0; v < n; v++) {
            const float with = aura_feedback_stored(aura_feedback_scale(&f.sums[v], f.gain[v], plan->rule));
            const float cost = aura_feedback_cost(&f.sums[v], f.gain[v], with);
            if (f.gain[v] > 0 && cost < best[v]) {
                best[v] = cost;
                best_scale[v] = with;
                best_fit[v] = k;
            }
        }
    }
    for (size_t v = 0; v < n; v++) {
        if (!(best[v] < f.plain[v]))
            continue;
        scale[v] = best_scale[v];
        for (uint32_t d = 0; d < plan->dim; d++)
            code[v * plan->dim + d] = f.code[best_fit[v]][d][v];
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
