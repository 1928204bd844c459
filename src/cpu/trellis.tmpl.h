/* encode and feedback of trellis codes, written once over the words of an instruction set: a lane is a vector, so that 16 of them
 * go through the trellis side by side, each in the order of the definition.
 *
 * Two states have the same two states before them: 2 a and 2 a + 1 come from a and a + 4. So what survivors carry along, their
 * errors and what those add to channels that are still to come, is loaded once for both.
 *
 * Needs: feedback.tmpl.h, encode.tmpl.h; vec_min, vec_above, vec_lookup16; ivec_add_where, ivec_plus, ivec_xor, ivec_both,
 *        ivec_and, ivec_shl, ivec_shr, ivec_shrv, ivec_set1, ivec_zero, ivec_load, ivec_store, ivec_store8; AURA_ISA. */

/* The levels of the four subsets, and the thresholds between them. */
struct subsets {
    vec level[4], threshold[4];
    float at[4][8]; /* the thresholds again */
};

AURA_INLINE struct subsets trellis_subsets(const struct aura_codec_plan *plan, const int bits)
{
    struct subsets s;
    AURA_UNROLL
    for (int z = 0; z < 4; z++) {
        float level[AURA_LANES], threshold[AURA_LANES];
        for (int m = 0; m < AURA_LANES; m++) {
            level[m] = plan->centroid[4 * (m & ((1 << (bits - 1)) - 1)) + z];
            threshold[m] = plan->threshold[8 * z + m % 8];
            s.at[z][m % 8] = threshold[m];
        }
        s.level[z] = vec_load(level), s.threshold[z] = vec_load(threshold);
    }
    return s;
}

/* The level of subset z next to x, and its place there. */
AURA_INLINE vec trellis_level(ivec *place, vec x, const struct subsets *s, const int z, const int bits)
{
    if (bits == 2) {
        *place = ivec_add_where(ivec_zero(), x, vec_set1(s->at[z][0]), 1);
        return vec_lookup16(s->level[z], *place);
    }
    if (bits == 3) {
        const vec middle = vec_set1(s->at[z][1]);
        const vec next = vec_above(x, middle, vec_set1(s->at[z][0]), vec_set1(s->at[z][2]));
        *place = ivec_add_where(ivec_add_where(ivec_zero(), x, middle, 2), x, next, 1);
        return vec_lookup16(s->level[z], *place);
    }
    const vec middle = vec_set1(s->at[z][3]), next = vec_above(x, middle, vec_set1(s->at[z][1]), vec_set1(s->at[z][5]));
    ivec m = ivec_add_where(ivec_add_where(ivec_zero(), x, middle, 4), x, next, 2);
    *place = ivec_add_where(m, x, vec_lookup16(s->threshold[z], m), 1);
    return vec_lookup16(s->level[z], *place);
}

/* The state with the least cost, the first among equals. */
AURA_INLINE ivec trellis_best(const vec *cost)
{
    ivec state = ivec_zero();
    vec best = cost[0];
    AURA_UNROLL
    for (int s = 1; s < AURA_STATES; s++) { /* what is added leads from the state so far, which is known in the bits of a lane */
        ivec other = ivec_add_where(ivec_zero(), best, cost[s], -1); /* all ones where it is better */
        state = ivec_xor(state, ivec_both(ivec_xor(state, ivec_set1(s)), other));
        best = vec_min(best, cost[s]);
    }
    return state;
}

/* What a path was: for every channel, in each lane, bit s says that the path into state s came from the upper of its two states;
 * the places of levels, 3 bits each, are above: of states, or of subsets. */
struct paths {
    _Alignas(64) uint32_t step[AURA_TILE_DIM][AURA_LANES];
};

/* code[dim] and c[dim] of the path that ends in a state. */
AURA_INLINE void trellis_trace(uint8_t code[][AURA_LANES], float c[][AURA_LANES], const struct paths *p, ivec state,
                               const struct aura_codec_plan *plan, const int of_subsets, const int bits)
{
    const struct table centroid = table_of(plan->centroid, bits + 1);
    for (uint32_t d = 0; d < plan->dim; d++) {
        const ivec step = ivec_load(p->step[d]), u = ivec_and(state, 1);
        const ivec from = ivec_plus(ivec_shr(state, 1), ivec_shl(ivec_and(ivec_shrv(step, state), 1), 2));
        const ivec z1 = ivec_and(ivec_xor(u, ivec_xor(from, ivec_shr(from, 2))), 1), z0 = ivec_and(ivec_shr(from, 1), 1);
        const ivec z = ivec_plus(ivec_plus(z1, z1), z0), of = of_subsets ? z : state;
        const ivec m = ivec_and(ivec_shrv(ivec_shr(step, 8), ivec_plus(of, ivec_plus(of, of))), 7);
        ivec_store8(code[d], ivec_plus(ivec_plus(m, m), u));
        vec_store(c[d], table_lookup(&centroid, ivec_plus(ivec_shl(m, 2), z), bits + 1));
        state = from;
    }
}

/* ---- encode ------------------------------------------------------------------------------------------------------- */

struct encoding {
    _Alignas(64) float y[AURA_TILE_DIM][AURA_LANES], c[AURA_TILE_DIM][AURA_LANES];
    uint8_t code[AURA_TILE_DIM][AURA_LANES];
    struct paths paths;
    _Alignas(64) float unit[AURA_LANES], size2[AURA_LANES], gain[AURA_LANES], dot[AURA_LANES], cc[AURA_LANES];
};

/* The sums of products, in the order of the definition. */
AURA_INLINE vec trellis_dot(float a[][AURA_LANES], float b[][AURA_LANES], uint32_t dim)
{
    vec sum = vec_set1(0);
    for (uint32_t first = dim; first > 0;) {
        vec part = vec_set1(0);
        first -= AURA_TRELLIS_BLOCK;
        AURA_UNROLL
        for (uint32_t d = AURA_TRELLIS_BLOCK; d-- > 0;)
            part = vec_fma(vec_load(a[first + d]), vec_load(b[first + d]), part);
        sum = vec_add(sum, part);
    }
    return sum;
}

/* The cheapest paths of gain * y. */
AURA_INLINE void trellis_paths(struct encoding *e, const struct aura_codec_plan *plan, const int bits)
{
    const struct subsets s = trellis_subsets(plan, bits);
    const vec gain = vec_load(e->gain);
    vec cost[AURA_STATES], next[AURA_STATES], error[4];
    AURA_UNROLL
    for (int i = 0; i < AURA_STATES; i++)
        cost[i] = vec_set1(i ? INFINITY : 0);
    for (uint32_t d = plan->dim; d-- > 0;) {
        const vec x = vec_mul(vec_load(e->y[d]), gain);
        ivec step = ivec_zero();
        AURA_UNROLL
        for (int z = 0; z < 4; z++) {
            ivec m;
            const vec r = vec_sub(x, trellis_level(&m, x, &s, z, bits));
            error[z] = vec_mul(r, r);
            step = ivec_plus(step, ivec_shl(m, 8 + 3 * z));
        }
        AURA_UNROLL
        for (int i = 0; i < AURA_STATES; i++) {
            const int lower = i / 2, upper = lower + 4;
            const int z = (int)aura_trellis_subset((uint32_t)lower, (uint32_t)i % 2);
            const vec a = vec_add(cost[lower], error[z]), b = vec_add(cost[upper], error[z ^ 2]);
            step = ivec_add_where(step, a, b, 1 << i);
            next[i] = vec_min(a, b);
        }
        AURA_UNROLL
        for (int i = 0; i < AURA_STATES; i++)
            cost[i] = next[i];
        ivec_store(e->paths.step[d], step);
    }
    trellis_trace(e->code, e->c, &e->paths, trellis_best(cost), plan, 1, bits);
    vec_store(e->dot, trellis_dot(e->y, e->c, plan->dim)), vec_store(e->cc, trellis_dot(e->c, e->c, plan->dim));
}

/* Up to 16 vectors. */
AURA_INLINE void trellis_encode(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, size_t n,
                                const int bits)
{
    struct encoding e;
    float best[AURA_LANES];
    for (uint32_t d = 0; d < plan->dim; d++)
        for (size_t v = 0; v < AURA_LANES; v++)
            e.y[d][v] = v < n ? y[v * plan->dim + d] : 0;
    vec_store(e.size2, trellis_dot(e.y, e.y, plan->dim));
    for (size_t v = 0; v < AURA_LANES; v++)
        e.unit[v] = aura_feedback_unit(plan, e.size2[v], 0), best[v] = -1;
    memset(code, 0, n * plan->dim);
    memset(scale, 0, n * sizeof *scale);
    for (uint32_t k = 0; k < plan->n_fits; k += AURA_FEEDBACK_STRIDE) {
        for (size_t v = 0; v < AURA_LANES; v++)
            e.gain[v] = plan->fits[k] * e.unit[v];
        trellis_paths(&e, plan, bits);
        for (size_t v = 0; v < n; v++) {
            const float cosine = e.dot[v] / sqrtf(e.cc[v]);
            if (!(e.unit[v] > 0 && cosine > best[v]))
                continue;
            best[v] = cosine;
            scale[v] = aura_trellis_scale(plan, e.size2[v], e.dot[v], e.cc[v]);
            for (uint32_t d = 0; d < plan->dim; d++)
                code[v * plan->dim + d] = e.code[d][v];
        }
    }
}

/* ---- feedback ------------------------------------------------------------------------------------------------------ */

/* What survivors carry along of a block: the errors of channels that are done, and targets of those that are not. */
typedef float carried[AURA_STATES][AURA_TRELLIS_BLOCK][AURA_LANES];

struct survivors {
    _Alignas(64) carried block[3];                   /* two of this block in turn, and the errors of the block before */
    vec cost[AURA_STATES], since[AURA_STATES], gain; /* since: the state when the block began, as a number */
    int now, other, before;                          /* which of them is what */
};

/* The targets of a block for all survivors, without what it adds to itself. */
AURA_INLINE void trellis_targets(struct survivors *s, const struct feedback *f, uint32_t first)
{
    const uint32_t dim = f->metric->dim, own = first + AURA_TRELLIS_BLOCK, decided = own + AURA_TRELLIS_BLOCK;
    const float *l = f->metric->l + first;
    for (uint32_t k = 0; k < AURA_TRELLIS_BLOCK; k += FEEDBACK_ROWS) {
        vec common[FEEDBACK_ROWS], x[FEEDBACK_ROWS];
        AURA_UNROLL
        for (uint32_t i = 0; i < FEEDBACK_ROWS; i++)
            common[i] = vec_mul(vec_load(f->y[first + k + i]), s->gain);
        for (uint32_t j = dim; j-- > decided;) {
            const vec error = vec_load(f->e[0][j]);
            AURA_UNROLL
            for (uint32_t i = 0; i < FEEDBACK_ROWS; i++)
                common[i] = vec_fma(vec_set1(l[(size_t)j * dim + k + i]), error, common[i]);
        }
        for (int state = 0; state < AURA_STATES; state++) {
            AURA_UNROLL
            for (uint32_t i = 0; i < FEEDBACK_ROWS; i++)
                x[i] = common[i];
            for (uint32_t j = decided; own < dim && j-- > own;) {
                const vec error = vec_load(s->block[s->before][state][j - own]);
                AURA_UNROLL
                for (uint32_t i = 0; i < FEEDBACK_ROWS; i++)
                    x[i] = vec_fma(vec_set1(l[(size_t)j * dim + k + i]), error, x[i]);
            }
            AURA_UNROLL
            for (uint32_t i = 0; i < FEEDBACK_ROWS; i++)
                vec_store(s->block[s->now][state][k + i], x[i]);
        }
    }
}

/* The two states after a and a + 4, at channel k of the block that begins at `first`. */
AURA_INLINE ivec trellis_pair(struct survivors *s, vec *cost, vec *since, ivec step, const struct feedback *f,
                              const struct subsets *subsets, uint32_t first, uint32_t k, const int a, const int bits)
{
    const uint32_t d = first + k;
    const vec t = vec_mul(vec_load(f->y[d]), s->gain), weight = vec_set1(f->metric->weight[d]);
    const float (*one)[AURA_LANES] = s->block[s->now][a], (*two)[AURA_LANES] = s->block[s->now][a + 4];
    vec sum[2][2], error[2];
    AURA_UNROLL
    for (int u = 0; u < 2; u++) {
        const int z = (int)aura_trellis_subset((uint32_t)a, (uint32_t)u), state = 2 * a + u;
        const vec x = vec_load(one[k]), y = vec_load(two[k]);
        ivec m, n;
        const vec c = trellis_level(&m, x, subsets, z, bits), b = trellis_level(&n, y, subsets, z ^ 2, bits);
        const vec r = vec_sub(x, c), q = vec_sub(y, b);
        sum[u][0] = vec_add(s->cost[a], vec_mul(vec_mul(weight, r), r));
        sum[u][1] = vec_add(s->cost[a + 4], vec_mul(vec_mul(weight, q), q));
        error[u] = vec_sub(t, vec_above(sum[u][0], sum[u][1], c, b));
        cost[state] = vec_min(sum[u][0], sum[u][1]);
        since[state] = vec_above(sum[u][0], sum[u][1], s->since[a], s->since[a + 4]);
        const ivec upper = ivec_add_where(ivec_zero(), sum[u][0], sum[u][1], -1);
        m = ivec_xor(m, ivec_both(ivec_xor(m, n), upper));
        step = ivec_plus(step, ivec_plus(ivec_and(upper, 1u << state), ivec_shl(m, 8 + 3 * state)));
    }
    float (*to)[AURA_LANES] = s->block[s->other][2 * a], (*to_odd)[AURA_LANES] = s->block[s->other][2 * a + 1];
    const float *l = f->metric->l + (size_t)d * f->metric->dim + first;
    for (uint32_t i = 0; i < k; i++) {
        const vec x = vec_load(one[i]), y = vec_load(two[i]), by = vec_set1(l[i]);
        vec_store(to[i], vec_fma(by, error[0], vec_above(sum[0][0], sum[0][1], x, y)));
        vec_store(to_odd[i], vec_fma(by, error[1], vec_above(sum[1][0], sum[1][1], x, y)));
    }
    vec_store(to[k], error[0]), vec_store(to_odd[k], error[1]);
    for (uint32_t i = k + 1; i < AURA_TRELLIS_BLOCK; i++) {
        const vec x = vec_load(one[i]), y = vec_load(two[i]);
        vec_store(to[i], vec_above(sum[0][0], sum[0][1], x, y));
        vec_store(to_odd[i], vec_above(sum[1][0], sum[1][1], x, y));
    }
    return step;
}

/* The errors of the block before are those of the cheapest survivor; survivors that have others end. */
AURA_INLINE void trellis_decide(struct survivors *s, struct feedback *f, uint32_t first)
{
    const uint32_t own = first + AURA_TRELLIS_BLOCK;
    const vec half = vec_set1(0.5f), never = vec_set1(INFINITY);
    vec best = s->cost[0], since = s->since[0];
    if (own >= f->metric->dim)
        return;
    AURA_UNROLL
    for (int i = 1; i < AURA_STATES; i++) {
        since = vec_above(best, s->cost[i], since, s->since[i]);
        best = vec_min(best, s->cost[i]);
    }
    AURA_UNROLL
    for (int i = 0; i < AURA_STATES; i++)
        s->cost[i] = vec_above(half, vec_abs(vec_sub(s->since[i], since)), never, s->cost[i]);
    for (uint32_t k = 0; k < AURA_TRELLIS_BLOCK; k++) {
        vec error = vec_load(s->block[s->before][0][k]);
        AURA_UNROLL
        for (int i = 1; i < AURA_STATES; i++)
            error = vec_above(half, vec_abs(vec_sub(vec_set1((float)i), since)), error, vec_load(s->block[s->before][i][k]));
        vec_store(f->e[0][own + k], error);
    }
}

/* The cheapest paths in the metric for gain * y; their codes, and levels in c. */
AURA_INLINE void trellis_search(struct feedback *f, uint8_t code[][AURA_LANES], float c[][AURA_LANES], vec gain, const int bits)
{
    const struct subsets subsets = trellis_subsets(f->plan, bits);
    struct survivors s;
    struct paths paths;
    vec cost[AURA_STATES], since[AURA_STATES];
    s.now = 0, s.other = 1, s.before = 2, s.gain = gain;
    AURA_UNROLL
    for (int i = 0; i < AURA_STATES; i++)
        s.cost[i] = vec_set1(i ? INFINITY : 0);
    for (uint32_t first = f->metric->dim; first > 0;) {
        first -= AURA_TRELLIS_BLOCK;
        trellis_targets(&s, f, first);
        AURA_UNROLL
        for (int i = 0; i < AURA_STATES; i++)
            s.since[i] = vec_set1((float)i);
        for (uint32_t k = AURA_TRELLIS_BLOCK; k-- > 0;) {
            ivec step = ivec_zero();
            AURA_UNROLL
            for (int a = 0; a < AURA_STATES / 2; a++)
                step = trellis_pair(&s, cost, since, step, f, &subsets, first, k, a, bits);
            AURA_UNROLL
            for (int i = 0; i < AURA_STATES; i++)
                s.cost[i] = cost[i], s.since[i] = since[i];
            ivec_store(paths.step[first + k], step);
            const int swap = s.now;
            s.now = s.other, s.other = swap;
        }
        trellis_decide(&s, f, first);
        const int swap = s.before;
        s.before = s.now, s.now = swap;
    }
    trellis_trace(code, c, &paths, trellis_best(s.cost), f->plan, 0, bits);
}

/* One fit: codes, and the sums of yr, rr and dot. */
AURA_INLINE void trellis_round(struct feedback *f, uint32_t fit, const int bits)
{
    float(*const e)[AURA_LANES] = f->e[0], (*const r)[AURA_LANES] = f->e[1], (*const c)[AURA_LANES] = f->e[2];
    const vec gain = vec_load(f->gain[fit]);
    vec yr = vec_set1(0), rr, dot = vec_set1(0);
    trellis_search(f, f->code[fit], c, gain, bits);
    for (uint32_t d = 0; d < f->metric->dim; d++)
        vec_store(e[d], vec_sub(vec_mul(vec_load(f->y[d]), gain), vec_load(c[d])));
    feedback_chains(&rr, &r, f->metric, &e, 1);
    for (uint32_t d = f->metric->dim; d-- > 0;) {
        yr = vec_fma(vec_mul(vec_set1(f->metric->weight[d]), vec_load(r[d])), vec_load(f->u[d]), yr);
        dot = vec_fma(vec_load(f->y[d]), vec_load(c[d]), dot);
    }
    feedback_sums(f->sums[fit], yr, rr, dot);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_encode_##shape##_##isa(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,   \
                                    size_t n)                                                                          \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row += AURA_LANES)                                                               \
            trellis_encode(code + row * plan->dim, scale + row, y + row * plan->dim, plan,                             \
                           n - row < AURA_LANES ? n - row : AURA_LANES, (int)aura_bits_of(kind));                      \
    }                                                                                                                  \
    void aura_feedback_##shape##_##isa(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, \
                                       const struct aura_metric *metric, size_t n)                                     \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row += AURA_LANES)                                                               \
            feedback_rows(code + row * plan->dim, scale + row, y + row * plan->dim, plan, metric,                      \
                          n - row < AURA_LANES ? n - row : AURA_LANES, (int)aura_bits_of(kind), 1);                    \
    }
AURA_SHAPES_trellis(AURA_STAMP, encode, AURA_ISA)
#undef AURA_STAMP
