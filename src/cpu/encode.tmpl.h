/* encode and row_encode, written once over the words of an instruction set.
 *
 * The naive index of a value compares it with all 2^bits - 1 thresholds. They ascend, so a search by halves finds the
 * same count in `bits` comparisons: each step looks up the middle threshold of every lane's remaining range and goes up
 * where the value is above it. Equally spaced levels need no search: a quotient is at most one off, and two comparisons with
 * the thresholds around it, computed to the bit as the table has them, decide.
 *
 * That is encode_fit(), for any table. Tables that mirror themselves around 0 have something faster, encode_mirrored(): the
 * levels of |y|, which give the same products and squares. Of equally spaced levels it takes the quotient as it is: where
 * that is so near a threshold that rounding may decide, the fit is made the other way, once in a few dozen fits.
 * Other tables are divided into 16 cells, in each of which one threshold is at most; so one comparison decides.
 *
 * Needs: row_codes.tmpl.h; vec_round, vec_fma, vec_sub, vec_from_int, ivec_from_vec; vec_load_n, vec_set1, vec_add,
 *        vec_mul, vec_keep, vec_abs, vec_max, vec_min, vec_sum, vec_sum2, vec_sums, vec_top, vec_above; ivec_zero,
 *        ivec_add, ivec_add_where, ivec_plus, ivec_and, ivec_xor, ivec_sar, ivec_shr, ivec_set1, ivec_of_vec, vec_of_ivec;
 *        TIES_NONE, ties_note, ties_found; ENCODE_FITS, the fits that are tried together; AURA_ISA. */

/* The number of thresholds below each lane of v. All lanes begin with the one in the middle. */
AURA_INLINE ivec encode_index(vec v, const struct table *threshold, const int bits)
{
    const int half = 1 << (bits - 1);
    ivec index = ivec_add_where(ivec_zero(), v, vec_set1(threshold->entry[half - 1]), half);
    AURA_UNROLL
    for (int i = 2; i <= bits; i++) {
        const int step = 1 << (bits - i);
        index = ivec_add_where(index, v, table_lookup(threshold, ivec_add(index, step - 1), bits), step);
    }
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

/* ---- tables that mirror themselves --------------------------------------------------------------------------------- */

/* A quotient is added to ENCODE_ONE, which leaves it 13 binary places: rounding errors of up to 165 levels are less than half of
 * the last of them, so that a quotient near a threshold has zeros there. */
#define ENCODE_ONE 1024.f
#define ENCODE_PLACES 0x1fffu

/* What of a plan stays the same for all vectors. */
struct mirrored {
    vec threshold, low, high; /* of cells */
    vec first, last, distance, base;
};

AURA_INLINE struct mirrored encode_mirror(const struct aura_codec_plan *plan, const int bits)
{
    const int levels = bits == 8 ? 255 : 1 << bits, odd = bits == 8;
    struct mirrored m;
    m.threshold = vec_load(plan->cell_threshold), m.low = vec_load(plan->cell_low), m.high = vec_load(plan->cell_high);
    m.distance = vec_set1(plan->step * plan->spacing), m.base = vec_set1(odd ? -ENCODE_ONE * plan->step : plan->step);
    m.first = vec_set1(bits > 4 ? ENCODE_ONE + (odd ? 0.5f : 0) : AURA_CELL_ONE);
    m.last = vec_set1(bits > 4 ? ENCODE_ONE + (float)((levels - 1) / 2) : AURA_CELL_ONE + AURA_LANES - 1);
    return m;
}

/* What a magnitude is multiplied with: equally spaced levels are counted. */
AURA_INLINE float encode_quotient(const struct aura_codec_plan *plan, float factor, const int bits)
{
    return bits > 4 ? factor * (1 / (plan->step * plan->spacing)) : factor;
}

/* The magnitude of the level of each lane, whose sign is `negative`, 1 or 0: a value on a threshold takes the lower index, and that
 * is the larger magnitude where it is negative. `near` notes lanes in which rounding may have decided. */
AURA_INLINE vec encode_level(ties *near, const struct mirrored *m, vec size, ivec negative, vec factor, vec cells, const int bits)
{
    if (bits > 4) {
        ivec sum = ivec_of_vec(vec_fma(size, factor, m->first));
        *near = ties_note(*near, sum, ENCODE_PLACES);
        vec whole = vec_min(vec_of_ivec(ivec_and(sum, ~ENCODE_PLACES)), m->last);
        if (bits == 8) /* the product with a power of two is exact, and so is the sum before it is rounded */
            return vec_fma(m->distance, whole, m->base);
        return vec_fma(m->distance, vec_sub(whole, vec_set1(ENCODE_ONE)), m->base);
    }
    vec x = vec_of_ivec(ivec_plus(ivec_of_vec(vec_mul(size, factor)), negative));
    ivec cell = ivec_of_vec(vec_min(vec_fma(x, cells, m->first), m->last));
    return vec_above(x, vec_lookup16(m->threshold, cell), vec_lookup16(m->low, cell), vec_lookup16(m->high, cell));
}

/* dot[i] = <y, c>, size2[i] = |c|^2 of fits i < n. Returns the fits, as bits, of which it cannot be told here. */
AURA_INLINE uint32_t encode_try(float *dot, float *size2, const struct mirrored *m, const float *y,
                                const struct aura_codec_plan *plan, const float *factor, const int n, const int bits)
{
    const vec cells = vec_set1(plan->cells);
    vec dots[ENCODE_FITS], squares[ENCODE_FITS], by[ENCODE_FITS];
    ties near[ENCODE_FITS];
    uint32_t unsure = 0;
    AURA_UNROLL
    for (int i = 0; i < n; i++)
        dots[i] = squares[i] = vec_set1(0), by[i] = vec_set1(factor[i]), near[i] = TIES_NONE;
    for (uint32_t d = 0; d < plan->dim; d += AURA_LANES) {
        const vec v = vec_load(y + d), size = vec_abs(v);
        const ivec negative = ivec_shr(ivec_of_vec(v), 31);
        AURA_UNROLL
        for (int i = 0; i < n; i++) {
            const vec c = encode_level(&near[i], m, size, negative, by[i], cells, bits);
            dots[i] = vec_add(dots[i], vec_mul(size, c));
            squares[i] = vec_add(squares[i], vec_mul(c, c));
        }
    }
    if (n == ENCODE_FITS) {
        const struct sums sums = vec_sums(dots, squares);
        memcpy(dot, sums.dot, sizeof sums.dot);
        memcpy(size2, sums.size2, sizeof sums.size2);
    } else {
        for (int i = 0; i < n; i++) {
            const struct two sums = vec_sum2(dots[i], squares[i]);
            dot[i] = sums.first, size2[i] = sums.second;
        }
    }
    AURA_UNROLL
    for (int i = 0; i < n; i++)
        unsure |= (uint32_t)(bits > 4 && ties_found(near[i])) << i;
    return unsure;
}

/* Codes of a fit, `stored` bits each. 0: it cannot be told here, and anything was written. */
AURA_INLINE int encode_codes(uint8_t *packed, const float *y, const struct aura_codec_plan *plan, float factor, const int bits,
                             const int stored)
{
    const struct mirrored m = encode_mirror(plan, bits);
    const vec by = vec_set1(factor), cells = vec_set1(plan->cells), count = vec_load(plan->cell_count);
    ties near = TIES_NONE;
    for (uint32_t d = 0; d < plan->dim; d += AURA_LANES) {
        const vec v = vec_load(y + d), size = vec_abs(v);
        ivec up = ivec_zero(), sign; /* levels above or below the middle; 0 where v > 0, else -1 */
        if (bits > 4) {
            ivec sum = ivec_of_vec(vec_fma(size, by, m.first));
            near = ties_note(near, sum, ENCODE_PLACES);
            vec whole = vec_min(vec_of_ivec(ivec_and(sum, ~ENCODE_PLACES)), m.last);
            up = ivec_add(ivec_shr(ivec_of_vec(whole), 13), -0x22400);
            sign = ivec_sar(ivec_of_vec(v), 31);
        } else {
            vec x = vec_of_ivec(ivec_plus(ivec_of_vec(vec_mul(size, by)), ivec_shr(ivec_of_vec(v), 31)));
            ivec cell = ivec_of_vec(vec_min(vec_fma(x, cells, m.first), m.last));
            up = ivec_add_where(ivec_of_vec(vec_lookup16(count, cell)), x, vec_lookup16(m.threshold, cell), 1);
            sign = ivec_add_where(ivec_set1(-1), v, vec_set1(0), 1);
        }
        up = ivec_xor(up, sign);
        if (bits == 8) /* there is a level 0 */
            up = ivec_plus(up, ivec_and(sign, 1));
        codes_pack(packed + d * stored / 8, ivec_add(up, bits == 8 ? 127 : 1 << (bits - 1)), AURA_LANES, stored);
    }
    return bits <= 4 || !ties_found(near);
}

/* ---- the best of all fits ------------------------------------------------------------------------------------------ */

/* <y, c> and |c|^2 of fits [first, first + n). */
AURA_INLINE void encode_fits(float *dot, float *size2, const float *y, const struct aura_codec_plan *plan, float unit, float size,
                             uint32_t first, const int n, const int mirrored, const int bits)
{
    float factor[ENCODE_FITS], by[ENCODE_FITS];
    for (int i = 0; i < n; i++) {
        factor[i] = (plan->fits[first + (uint32_t)i] * unit) / size;
        by[i] = encode_quotient(plan, factor[i], bits);
    }
    const struct mirrored m = encode_mirror(plan, bits);
    const uint32_t unsure = mirrored ? encode_try(dot, size2, &m, y, plan, by, n, bits) : (1u << n) - 1;
    for (int i = 0; i < n && unsure; i++)
        if (unsure >> i & 1)
            encode_fit(NULL, dot + i, size2 + i, y, plan, factor[i], bits, bits);
}

/* The index of the best fit, the first among equals, with its <y, c> and |c|^2. */
AURA_INLINE uint32_t encode_best(float *dot, float *size2, const float *y, const struct aura_codec_plan *plan, float unit,
                                 float size, const int mirrored, const int bits)
{
    float dots[AURA_LANES] = {0}, squares[AURA_LANES] = {0}, cosine[AURA_LANES], best = -1; /* at most 9 fits */
    uint32_t found = 0, k = 0;
    for (; k + ENCODE_FITS <= plan->n_fits; k += ENCODE_FITS)
        encode_fits(dots + k, squares + k, y, plan, unit, size, k, ENCODE_FITS, mirrored, bits);
    for (; k < plan->n_fits; k++)
        encode_fits(dots + k, squares + k, y, plan, unit, size, k, 1, mirrored, bits);
    for (k = 0; k < AURA_LANES; k++) /* of all that there is room for: the compiler makes vectors of it */
        cosine[k] = dots[k] / sqrtf(squares[k]);
    for (k = 0; k < plan->n_fits; k++) { /* without a branch: which fit is best cannot be foretold */
        found += (k - found) & -(uint32_t)(cosine[k] > best);
        best = cosine[k] > best ? cosine[k] : best;
    }
    *dot = dots[found];
    *size2 = squares[found];
    return found;
}

AURA_INLINE void encode_row(uint8_t *packed, float *scale, const float *y, const struct aura_codec_plan *plan,
                            const int bits, const int stored)
{
    const uint32_t whole = plan->dim / AURA_LANES * AURA_LANES;
    vec squares = vec_set1(0), largest = vec_set1(0);
    for (uint32_t d = 0; d < plan->dim; d += AURA_LANES) {
        const vec v = d < whole ? vec_load(y + d) : vec_load_n(y + d, plan->dim - d);
        squares = vec_add(squares, vec_mul(v, v));
        largest = vec_max(largest, vec_abs(v));
    }
    const int mirrored = plan->mirrored && plan->dim == whole;
    float norm2 = vec_sum(squares), rms = sqrtf(norm2 / (float)plan->dim);
    float unit = plan->uniform ? plan->top : plan->sigma, size = plan->uniform ? vec_top(largest) : rms;
    float dot = 0, size2 = 0;
    uint32_t found = 0;
    int tiny = sqrtf(norm2) <= plan->tiny;
    if (!tiny && (mirrored || plan->n_fits > 1))
        found = encode_best(&dot, &size2, y, plan, unit, size, mirrored, bits);
    const float factor = tiny ? 0 : (plan->fits[found] * unit) / size;
    if (stored == bits)
        memset(packed, 0, plan->row_bytes); /* the padding */
    if (tiny || !mirrored || !encode_codes(packed, y, plan, encode_quotient(plan, factor, bits), bits, stored))
        encode_fit(packed, &dot, &size2, y, plan, factor, bits, stored);
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
AURA_SHAPES_bits(AURA_STAMP, encode, AURA_ISA) /* trellis.tmpl.h has the others */
#undef AURA_STAMP
