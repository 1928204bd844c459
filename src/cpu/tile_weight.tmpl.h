/* tile_weight, written once over the words of an instruction set.
 *
 * Needs: vec_load, vec_store, vec_set1, vec_add, vec_sub, vec_mul, vec_fma, vec_max, vec_top, vec_round, vec_scale2,
 *        vec_load_f16; ivec_from_vec, ivec_and, ivec_shr, ivec_store8; WEIGHT_ROWS, queries
 *        side by side; AURA_ISA. */

/* 2^x for x <= 0, relative error below 2e-7; 0 below -125.5, NaN stays NaN. x = n + r with n whole and |r| <= 1/2; the
 * best polynomial of degree 5 gives 2^r to 7.5e-8. */
AURA_INLINE vec weight_exp2(vec x)
{
    vec bounded = vec_max(vec_set1(-126.f), x); /* in this order a NaN in x is kept */
    vec n = vec_round(bounded), r = vec_sub(bounded, n);
    vec p = vec_set1(1.32764725e-3f);
    p = vec_fma(p, r, vec_set1(9.67554096e-3f));
    p = vec_fma(p, r, vec_set1(5.55071309e-2f));
    p = vec_fma(p, r, vec_set1(0.240221202f));
    p = vec_fma(p, r, vec_set1(0.693146944f));
    p = vec_fma(p, r, vec_set1(1.00000012f));
    return vec_scale2(p, n);
}

/* The largest logit of one query first, in all tiles: then no tile waits for the one before. */
AURA_INLINE void weight_max(struct aura_weight *weight, const float *p, struct aura_softmax_row *row, size_t apart,
                            size_t n_tiles)
{
    vec most = vec_set1(row->max);
    for (size_t i = 0; i < n_tiles; i++) {
        const float *x = p + i * apart * AURA_TILE;
        most = vec_max(vec_max(vec_load(x), vec_load(x + 16)), most);
        weight[i * apart].keep = 1;
    }
    float m = vec_top(most);
    if (m > row->max) {
        float kept[AURA_LANES] = {0};
        if (row->max > -INFINITY)
            vec_store(kept, weight_exp2(vec_set1(row->max - m)));
        weight->keep = kept[0];
        vec_store(row->sum, vec_mul(vec_load(row->sum), vec_set1(kept[0])));
        row->max = m;
    }
}

/* The integers of 16 tokens: plane[0], and plane[1] where there are two. */
AURA_INLINE void weight_store(uint8_t *hi, uint8_t *lo, vec weight, uint32_t planes)
{
    ivec i = ivec_from_vec(weight);
    if (planes == 2) {
        ivec_store8(lo, ivec_and(i, 255));
        i = ivec_shr(i, 8);
    }
    ivec_store8(hi, i);
}

/* One tile of some queries: p, its sum, and the integer weights. Each query is a long chain of steps, so they go side by
 * side; rows is a constant. */
AURA_INLINE void weight_tile(struct aura_weight *weight, float *p, struct aura_softmax_row *row, vec scale0, vec scale1,
                             const uint32_t planes, const int rows)
{
    const float most = planes == 1 ? 255.f : 65280.f;
    vec a[WEIGHT_ROWS], b[WEIGHT_ROWS];
    float largest[WEIGHT_ROWS];
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        vec unit = vec_set1(row[g].max == -INFINITY ? 0 : row[g].max); /* then every p is 0, or NaN where the logit is */
        a[g] = weight_exp2(vec_sub(vec_load(p + g * AURA_TILE), unit));
        b[g] = weight_exp2(vec_sub(vec_load(p + g * AURA_TILE + 16), unit));
    }
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        vec_store(p + g * AURA_TILE, a[g]);
        vec_store(p + g * AURA_TILE + 16, b[g]);
        vec_store(row[g].sum, vec_add(vec_load(row[g].sum), vec_add(a[g], b[g])));
        a[g] = vec_mul(a[g], scale0);
        b[g] = vec_mul(b[g], scale1);
        largest[g] = vec_top(vec_max(a[g], b[g]));
    }
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        const int none = !(largest[g] >= 0x1p-100f);
        vec to_integer = vec_set1(none ? 0 : most / largest[g]);
        weight[g].factor = none ? 0 : largest[g] * (1 / most);
        weight_store(weight[g].plane[0], weight[g].plane[1], vec_mul(a[g], to_integer), planes);
        weight_store(weight[g].plane[0] + 16, weight[g].plane[1] + 16, vec_mul(b[g], to_integer), planes);
    }
}

AURA_INLINE void weight_tiles(struct aura_weight *weight, float *p, struct aura_softmax_row *row,
                              const uint16_t *const *v_scale, uint32_t planes, size_t n_query, size_t n_tiles)
{
    for (size_t g = 0; g < n_query; g++)
        weight_max(weight + g, p + g * AURA_TILE, row + g, n_query, n_tiles);
    for (size_t i = 0; i < n_tiles; i++, weight += n_query, p += n_query * AURA_TILE) {
        vec scale0 = vec_load_f16((const uint8_t *)v_scale[i], AURA_LANES);
        vec scale1 = vec_load_f16((const uint8_t *)(v_scale[i] + 16), AURA_LANES);
        size_t g = 0;
        for (; g + WEIGHT_ROWS <= n_query; g += WEIGHT_ROWS)
            weight_tile(weight + g, p + g * AURA_TILE, row + g, scale0, scale1, planes, WEIGHT_ROWS);
        for (; g < n_query; g++)
            weight_tile(weight + g, p + g * AURA_TILE, row + g, scale0, scale1, planes, 1);
    }
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_tile_weight_##shape##_##isa(struct aura_weight *weight, float *p, struct aura_softmax_row *row,          \
                                          const uint16_t *const *v_scale, uint32_t planes, size_t n_query,             \
                                          size_t n_tiles)                                                              \
    {                                                                                                                  \
        weight_tiles(weight, p, row, v_scale, planes, n_query, n_tiles);                                               \
    }
AURA_SHAPES_tile_weight(AURA_STAMP, tile_weight, AURA_ISA)
#undef AURA_STAMP
