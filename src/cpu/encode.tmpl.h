/* encode and row_encode, written once over the words of an instruction set.
 *
 * The naive index of a value compares it with all 2^bits - 1 thresholds. They ascend, so a search by halves finds the
 * same count in `bits` comparisons: each step looks up the middle threshold of every lane's remaining range and goes up
 * where the value is above it. Equally spaced levels need no search: a quotient is at most one off, and two comparisons with
 * the thresholds around it, computed to the bit as the table has them, decide.
 *
 * Needs: row_codes.tmpl.h; vec_round, vec_fma, vec_sub, vec_from_int, ivec_from_vec; vec_load_n, vec_set1, vec_add,
 *        vec_mul, vec_keep, vec_abs, vec_max, vec_sum, vec_top; ivec_zero, ivec_add, ivec_add_where; AURA_ISA. */

/* The number of thresholds below each lane of v. */
AURA_INLINE ivec encode_index(vec v, const struct table *threshold, const int bits)
{
    ivec index = ivec_zero();
    for (int step = 1 << (bits - 1); step; step /= 2)
        index = ivec_add_where(index, v, table_lookup(threshold, ivec_add(index, step - 1), bits), step);
    return index;
}

/* The same for equally spaced levels; *c is the level. */
AURA_INLINE ivec encode_step(vec *c, vec v, const struct aura_codec_plan *plan, const int bits)
{
    const int levels = bits == 8 ? 255 : 1 << bits;
    vec step = vec_set1(plan->step), spacing = vec_set1(plan->spacing), first = vec_set1(plan->first);
    vec guess = vec_fma(v, vec_set1(1 / (plan->step * plan->spacing)), vec_set1(-plan->first / plan->spacing));
    guess = vec_max(vec_round(guess), vec_set1(1)); /* within 1 to levels - 2, so that it has a neighbour on either side */
    guess = vec_sub(vec_set1(0), vec_max(vec_sub(vec_set1(0), guess), vec_set1((float)(2 - levels))));
    vec above = vec_add(vec_mul(spacing, guess), vec_set1(plan->first + plan->spacing / 2)), below = vec_sub(above, spacing);
    ivec index = ivec_add(ivec_from_vec(guess), -1);
    index = ivec_add_where(index, v, vec_mul(step, below), 1);
    index = ivec_add_where(index, v, vec_mul(step, above), 1);
    *c = vec_mul(step, vec_add(vec_mul(spacing, vec_from_int(index)), first));
    return index;
}

/* Quantises factor * y. Gives <y, c> and |c|^2; writes the codes too where packed is not NULL, in `stored` bits each. */
AURA_INLINE void encode_fit(uint8_t *packed, float *dot, float *size2, const float *y,
                            const struct aura_codec_plan *plan, float factor, const int bits, const int stored)
{
    struct table centroid = table_of(plan->centroid, bits), threshold = table_of(plan->threshold, bits);
    const int steps = bits >= 5 && plan->step > 0;
    vec dots = vec_set1(0), squares = vec_set1(0), scale = vec_set1(factor);
    for (uint32_t d = 0; d < plan->dim; d += AURA_LANES) {
        uint32_t n = plan->dim - d < AURA_LANES ? plan->dim - d : AURA_LANES;
        vec v = vec_load_n(y + d, n);
        vec c, x = vec_mul(v, scale);
        ivec index;
        if (steps) {
            index = encode_step(&c, x, plan, bits);
        } else {
            index = encode_index(x, &threshold, bits);
            c = table_lookup(&centroid, index, bits);
        }
        c = vec_keep(c, n);
        dots = vec_add(dots, vec_mul(v, c));
        squares = vec_add(squares, vec_mul(c, c));
        if (packed)
            codes_pack(packed + d * stored / 8, index, n, stored);
    }
    *dot = vec_sum(dots);
    *size2 = vec_sum(squares);
}

AURA_INLINE void encode_row(uint8_t *packed, float *scale, const float *y, const struct aura_codec_plan *plan,
                            const int bits, const int stored)
{
    vec squares = vec_set1(0), largest = vec_set1(0);
    for (uint32_t d = 0; d < plan->dim; d += AURA_LANES) {
        uint32_t n = plan->dim - d < AURA_LANES ? plan->dim - d : AURA_LANES;
        vec v = vec_load_n(y + d, n);
        squares = vec_add(squares, vec_mul(v, v));
        largest = vec_max(largest, vec_abs(v));
    }
    float norm2 = vec_sum(squares), rms = sqrtf(norm2 / (float)plan->dim);
    float unit = plan->uniform ? plan->top : plan->sigma, size = plan->uniform ? vec_top(largest) : rms;
    float best = -1, best_fit = plan->fits[0], dot, size2;
    int tiny = sqrtf(norm2) <= plan->tiny;
    if (plan->n_fits > 1 && !tiny)
        for (uint32_t k = 0; k < plan->n_fits; k++) {
            encode_fit(NULL, &dot, &size2, y, plan, (plan->fits[k] * unit) / size, bits, stored);
            float cosine = dot / sqrtf(size2);
            if (cosine > best) {
                best = cosine;
                best_fit = plan->fits[k];
            }
        }
    if (stored == bits)
        memset(packed, 0, plan->row_bytes); /* the padding */
    encode_fit(packed, &dot, &size2, y, plan, tiny ? 0 : (best_fit * unit) / size, bits, stored);
    if ((tiny && !plan->keep_tiny) || size2 == 0)
        *scale = 0;
    else if (plan->rule == AURA_SCALE_MATCHED)
        *scale = sqrtf(norm2) / sqrtf(size2);
    else if (plan->rule == AURA_SCALE_UNBIASED)
        *scale = dot > 0 ? norm2 / dot : 0;
    else
        *scale = rms / plan->sigma;
}

#define AURA_STAMP(stage, shape, bits, isa)                                                                            \
    void aura_row_encode_##shape##_##isa(uint8_t *packed, float *scale, const float *y,                                    \
                                     const struct aura_codec_plan *plan, size_t n)                                     \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row++)                                                                           \
            encode_row(packed + row * plan->row_bytes, scale + row, y + row * plan->dim, plan, bits, bits);            \
    }
AURA_SHAPES_row_encode(AURA_STAMP, row_encode, AURA_ISA)
#undef AURA_STAMP

#define AURA_STAMP(stage, shape, bits, isa)                                                                            \
    void aura_encode_##shape##_##isa(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,   \
                                    size_t n)                                                                          \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row++)                                                                           \
            encode_row(code + row * plan->dim, scale + row, y + row * plan->dim, plan, bits, 8);                       \
    }
AURA_SHAPES_encode(AURA_STAMP, encode, AURA_ISA)
#undef AURA_STAMP
