/* softmax, written once over the words of an instruction set.
 *
 * Needs: vec_load, vec_store, vec_set1, vec_add, vec_sub, vec_mul, vec_fma, vec_max, vec_tops, vec_fraction, vec_scale2,
 *        vec_load_f16; ivec_from_vec, ivec_store_planes; AURA_ISA. */

enum { WEIGHT_ROWS = 4 }; /* queries side by side */

/* 2^x for x <= 0, relative error below 2e-7; 0 below -125, NaN stays NaN. x = n + r with n whole and r from 0 to 1; the
 * best polynomial of degree 5 gives 2^r to 7.5e-8. */
AURA_INLINE vec softmax_exp2(vec x)
{
    vec r = vec_fraction(x), p = vec_set1(1.87757669e-3f);
    p = vec_fma(p, r, vec_set1(8.98933969e-3f));
    p = vec_fma(p, r, vec_set1(5.58263175e-2f));
    p = vec_fma(p, r, vec_set1(0.240153611f));
    p = vec_fma(p, r, vec_set1(0.693153083f));
    p = vec_fma(p, r, vec_set1(0.99999994f));
    return vec_scale2(p, x);
}

/* A new maximum: what was summed so far counts less. */
static __attribute__((noinline)) void weight_rescale(struct aura_weight *weight, struct aura_softmax_row *row, float m)
{
    float kept[AURA_LANES] = {0};
    if (row->max > -INFINITY)
        vec_store(kept, softmax_exp2(vec_set1(row->max - m)));
    weight->keep = kept[0];
    vec_store(row->sum, vec_mul(vec_load(row->sum), vec_set1(kept[0])));
    row->max = m;
}

/* The largest logit of some queries first, in all tiles: then no tile waits for the one before. unit[g] is what logits are
 * taken relative to. */
AURA_INLINE void softmax_max(float *unit, struct aura_weight *weight, const float *p, struct aura_softmax_row *row, size_t apart,
                            size_t n_tiles, const int rows)
{
    vec most[WEIGHT_ROWS];
    float top[WEIGHT_ROWS];
    AURA_UNROLL
    for (int g = 0; g < rows; g++)
        most[g] = vec_set1(row[g].max);
    for (size_t i = 0; i < n_tiles; i++)
        AURA_UNROLL
        for (int g = 0; g < rows; g++) {
            const float *x = p + (i * apart + (size_t)g) * AURA_TILE;
            most[g] = vec_max(vec_max(vec_load(x), vec_load(x + 16)), most[g]);
            weight[i * apart + (size_t)g].keep = 1;
        }
    vec_tops(top, most, rows);
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        if (top[g] > row[g].max)
            weight_rescale(weight + g, row + g, top[g]);
        unit[g] = row[g].max == -INFINITY ? 0 : row[g].max; /* then every p is 0, or NaN where the logit is */
    }
}

/* p and its sum of one tile; product[g] = p * scale, and the largest of each. rows is a constant. */
AURA_INLINE void softmax_products(float (*product)[AURA_TILE], float *largest, float *p, struct aura_softmax_row *row,
                                 const float *unit, const uint16_t *v_scale, const int rows)
{
    vec scale0 = vec_load_f16((const uint8_t *)v_scale, AURA_LANES);
    vec scale1 = vec_load_f16((const uint8_t *)(v_scale + 16), AURA_LANES), top[WEIGHT_ROWS];
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        vec a = softmax_exp2(vec_sub(vec_load(p + g * AURA_TILE), vec_set1(unit[g])));
        vec b = softmax_exp2(vec_sub(vec_load(p + g * AURA_TILE + 16), vec_set1(unit[g])));
        vec_store(p + g * AURA_TILE, a);
        vec_store(p + g * AURA_TILE + 16, b);
        vec_store(row[g].sum, vec_add(vec_load(row[g].sum), vec_add(a, b)));
        a = vec_mul(a, scale0);
        b = vec_mul(b, scale1);
        vec_store(product[g], a);
        vec_store(product[g] + 16, b);
        top[g] = vec_max(a, b);
    }
    vec_tops(largest, top, rows);
}

/* All tiles of some queries, in three steps. From a logit to its integer is a chain of a hundred cycles; a step has enough
 * chains side by side to fill that time. */
AURA_INLINE void softmax_block(struct aura_weight *weight, float *p, struct aura_softmax_row *row,
                              const struct aura_scales *scales, size_t n_query, size_t n_tiles, int first,
                              const uint32_t planes, const int rows)
{
    const float most = planes == 1 ? 255.f : 65280.f;
    _Alignas(64) float product[AURA_TILES * WEIGHT_ROWS][AURA_TILE];
    float unit[WEIGHT_ROWS], largest[AURA_TILES * WEIGHT_ROWS] = {0}, to_integer[AURA_TILES * WEIGHT_ROWS];
    softmax_max(unit, weight, p, row, n_query, n_tiles, rows);
    for (size_t i = 0; i < n_tiles; i++) {
        for (size_t line = 0; first && line < scales[i].lines; line++)
            __builtin_prefetch(scales[i].ahead + 64 * line, 0, 2);
        softmax_products(product + i * WEIGHT_ROWS, largest + i * WEIGHT_ROWS, p + i * n_query * AURA_TILE, row, unit, scales[i].v,
                         rows);
    }
    for (int i = 0; i < AURA_TILES * WEIGHT_ROWS; i++) { /* one by one: a vector of them would wait for four stores */
        const int none = !(largest[i] >= 0x1p-100f);
        to_integer[i] = none ? 0 : most / largest[i];
        largest[i] = none ? 0 : largest[i] * (1 / most) * scales->step;
    }
    for (size_t i = 0; i < n_tiles; i++)
        AURA_UNROLL
        for (int g = 0; g < rows; g++) {
            struct aura_weight *to = weight + i * n_query + g;
            const float *x = product[i * WEIGHT_ROWS + (size_t)g];
            vec factor = vec_set1(to_integer[i * WEIGHT_ROWS + (size_t)g]);
            ivec_store_planes(to->plane, ivec_from_vec(vec_mul(vec_load(x), factor)),
                              ivec_from_vec(vec_mul(vec_load(x + 16), factor)), planes);
            to->factor = largest[i * WEIGHT_ROWS + (size_t)g];
        }
}

AURA_INLINE void softmax_rows(struct aura_weight *weight, float *p, struct aura_softmax_row *row, const struct aura_scales *scales,
                             size_t n_query, size_t n_tiles, const uint32_t planes)
{
    size_t g = 0;
    for (; g + WEIGHT_ROWS <= n_query; g += WEIGHT_ROWS)
        softmax_block(weight + g, p + g * AURA_TILE, row + g, scales, n_query, n_tiles, g == 0, planes, WEIGHT_ROWS);
    weight += g, p += g * AURA_TILE, row += g;
    if (n_query - g == 3)
        softmax_block(weight, p, row, scales, n_query, n_tiles, g == 0, planes, 3);
    else if (n_query - g == 2)
        softmax_block(weight, p, row, scales, n_query, n_tiles, g == 0, planes, 2);
    else if (n_query - g == 1)
        softmax_block(weight, p, row, scales, n_query, n_tiles, g == 0, planes, 1);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_softmax_##shape##_##isa(struct aura_weight *weight, float *p, struct aura_softmax_row *row,          \
                                          const struct aura_scales *scales, uint32_t planes, size_t n_query,             \
                                          size_t n_tiles)                                                              \
    {                                                                                                                  \
        if (planes == 1)                                                                                               \
            softmax_rows(weight, p, row, scales, n_query, n_tiles, 1);                                                 \
        else                                                                                                           \
            softmax_rows(weight, p, row, scales, n_query, n_tiles, 2);                                                 \
    }
AURA_SHAPES_softmax(AURA_STAMP, softmax, AURA_ISA)
#undef AURA_STAMP
