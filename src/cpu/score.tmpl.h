/* score, written once over the words of an instruction set.
 *
 * The naive loop decodes a code and multiplies it by one query. Here a quad of 16 or 32 tokens is decoded once, and one
 * instruction (or a few) adds its four products to the sums of each query: no horizontal sums, as a lane is a token.
 *
 * Needs: tile.tmpl.h; score_sums and what is with it, of sums.tmpl.h or sums16.tmpl.h; ivec_plus, ivec_set1; vec_from_int,
 *        vec_load_f16, vec_set1, vec_mul, vec_add, vec_store; AURA_ISA. */

/* logit of 16 * vecs tokens from t on; rows, vecs, kind and planes are constants. */
AURA_INLINE void score_part(float *logit, const struct aura_query *q, const struct ready_queries *ready, struct levels levels,
                            const struct aura_tile *tile, const float *factor, const float *bias, uint32_t t, const int rows,
                            const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    ivec sum[8][TILE_VECS];
    vec scale[TILE_VECS];
    score_sums(sum, ready, tile, levels, t, rows, kind, planes);
    AURA_UNROLL
    for (int v = 0; v < TILE_VECS; v++)
        scale[v] = vec_load_f16((const uint8_t *)(tile->scale + t + 16 * (uint32_t)v), AURA_LANES);
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        uint32_t total = (uint32_t)q[g].sum[planes - 1];
        uint32_t correction = total * (uint32_t)(s->add - s->mul * tile_key_offset(kind));
        AURA_UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            ivec i = aura_is_split(kind) ? ivec_plus(sum[g][v], sum[g][v]) : sum[g][v];
            vec x = vec_from_int(ivec_plus(i, ivec_set1((int32_t)correction)));
            x = vec_add(vec_mul(x, vec_mul(scale[v], vec_set1(factor[g]))), vec_set1(bias[g]));
            vec_store(logit + g * AURA_TILE + t + 16 * (uint32_t)v, x);
        }
    }
}

/* Some queries, all tiles; n is how many queries there are beside them. */
AURA_INLINE void score_block(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                             const float *bias, size_t n, size_t tiles, const int rows, const int kind, const int planes)
{
    const struct levels levels = tile_key_levels(tile->side, kind);
    struct ready_queries ready;
    ready_queries(&ready, q, tile->side->dim, rows, kind, planes);
    for (size_t i = 0; i < tiles; i++)
        for (uint32_t t = 0; t < AURA_TILE; t += 16 * TILE_VECS)
            score_part(logit + i * n * AURA_TILE, q, &ready, levels, tile + i, factor, bias + i * n, t, rows, kind, planes);
}

/* Blocks of as many queries as stay in registers: each decodes the tiles for itself, which costs less than to keep them
 * decoded. */
AURA_INLINE void score_rows(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                            const float *bias, size_t n, size_t tiles, const int kind, const int planes)
{
    const int many = tile_rows(planes), few = tile_rows(planes) < 4 ? tile_rows(planes) : 4;
    size_t g = 0;
    for (; g + (size_t)many <= n && many > few; g += (size_t)many)
        score_block(logit + g * AURA_TILE, q + g, tile, factor + g, bias + g, n, tiles, many, kind, planes);
    for (; g + (size_t)few <= n; g += (size_t)few)
        score_block(logit + g * AURA_TILE, q + g, tile, factor + g, bias + g, n, tiles, few, kind, planes);
    logit += g * AURA_TILE;
    if (few > 3 && n - g == 3)
        score_block(logit, q + g, tile, factor + g, bias + g, n, tiles, 3, kind, planes);
    if (few > 2 && n - g == 2)
        score_block(logit, q + g, tile, factor + g, bias + g, n, tiles, 2, kind, planes);
    if (n - g == 1)
        score_block(logit, q + g, tile, factor + g, bias + g, n, tiles, 1, kind, planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_score_##shape##_##isa(float *logit, const struct aura_query *query, const struct aura_tile *keys,   \
                                         const float *factor, const float *bias, size_t n_query, size_t n_tiles)       \
    {                                                                                                                  \
        score_rows(logit, query, keys, factor, bias, n_query, n_tiles, AURA_KIND_OF(kind), AURA_PLANES_OF(kind));      \
    }
AURA_SHAPES_score(AURA_STAMP, score, AURA_ISA)
#undef AURA_STAMP
