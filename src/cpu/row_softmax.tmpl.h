/* row_softmax, written once over the words of an instruction set.
 *
 * Needs: vec_load, vec_store, vec_set1, vec_add, vec_sub, vec_mul, vec_fma, vec_max, vec_top, vec_sum, vec_round,
 *        vec_exponent, vec_below; AURA_ISA. */

/* exp(x) for x <= 0, relative error below 2e-7; 0 below -87, NaN stays NaN. x = n log 2 + r with n whole, |r| <= 0.35;
 * log 2 is taken off in two parts, and a Taylor polynomial of degree 7 gives exp(r) to 1e-8. */
AURA_INLINE vec row_softmax_exp(vec x)
{
    vec bounded = vec_max(vec_set1(-88.f), x); /* in this order a NaN in x is kept */
    vec n = vec_round(vec_mul(bounded, vec_set1(1.44269504f)));
    vec r = vec_fma(n, vec_set1(-0.693359375f), bounded);
    r = vec_fma(n, vec_set1(2.12194440e-4f), r);
    vec p = vec_set1(1.98412698e-4f);
    p = vec_fma(p, r, vec_set1(1.38888889e-3f));
    p = vec_fma(p, r, vec_set1(8.33333333e-3f));
    p = vec_fma(p, r, vec_set1(4.16666667e-2f));
    p = vec_fma(p, r, vec_set1(0.166666667f));
    p = vec_fma(p, r, vec_set1(0.5f));
    p = vec_fma(p, r, vec_set1(1));
    p = vec_fma(p, r, vec_set1(1));
    return vec_below(x, -87.f, vec_exponent(p, n));
}

/* Lane 0 of exp(x): the same function for single numbers. */
AURA_INLINE float row_softmax_exp1(float x)
{
    float lanes[AURA_LANES];
    vec_store(lanes, row_softmax_exp(vec_set1(x)));
    return lanes[0];
}

AURA_INLINE float row_softmax_block(float *weight, float *max, float *sum, size_t n)
{
    float tail[AURA_LANES], m = *max;
    size_t whole = n / AURA_LANES * AURA_LANES;
    vec top = vec_set1(m), total = vec_set1(0);
    for (int i = 0; i < AURA_LANES; i++)
        tail[i] = -INFINITY;
    memcpy(tail, weight + whole, (n - whole) * sizeof *weight);
    for (size_t t = 0; t < whole; t += AURA_LANES)
        top = vec_max(vec_load(weight + t), top);
    m = vec_top(vec_max(vec_load(tail), top));
    const float unit = m == -INFINITY ? 0 : m; /* then every weight is 0, or NaN where the score is */
    for (size_t t = 0; t < whole; t += AURA_LANES) {
        vec w = row_softmax_exp(vec_sub(vec_load(weight + t), vec_set1(unit)));
        total = vec_add(total, w);
        vec_store(weight + t, w);
    }
    if (whole < n) {
        vec w = row_softmax_exp(vec_sub(vec_load(tail), vec_set1(unit)));
        total = vec_add(total, w);
        vec_store(tail, w);
        memcpy(weight + whole, tail, (n - whole) * sizeof *weight);
    }
    float kept = m == *max || m == -INFINITY ? 1 : row_softmax_exp1(*max - m);
    *max = m;
    *sum = *sum * kept + vec_sum(total);
    return kept;
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    float aura_row_softmax_##shape##_##isa(float *weight, float *max, float *sum, size_t n)                                \
    {                                                                                                                  \
        return row_softmax_block(weight, max, sum, n);                                                                     \
    }
AURA_SHAPES_row_softmax(AURA_STAMP, row_softmax, AURA_ISA)
#undef AURA_STAMP
