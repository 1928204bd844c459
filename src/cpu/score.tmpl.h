/* score, written once over the words of an instruction set.
 *
 * The naive loop decodes a code and multiplies it by one query. Here a quad of 16 or 32 tokens is decoded once, and one
 * instruction (or a few) adds its four products to the sums of each query: no horizontal sums, as a lane is a token.
 *
 * Needs: tile.tmpl.h; score_sums and what is with it, of one of the files sums*.tmpl.h; ivec_plus, ivec_set1; vec_from_int,
 *        vec_load_f16, vec_set1, vec_mul, vec_add, vec_store; AURA_ISA. */

/* logit of 16 * vecs tokens from t on; rows, vecs, kind and planes are constants. */
AURA_INLINE void score_part(float *logit, const struct aura_query *q, const struct ready_queries *ready, struct levels levels,
                            const struct aura_tile *tile, const float *factor, const float *bias, uint32_t t, const int rows,
                            const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    ivec sum[TILE_MOST][TILE_VECS];
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

/* Blocks of as many queries as share a pass over the tiles; `rows` is a constant. Says how many queries are done. */
AURA_INLINE size_t score_blocks(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                                const float *bias, size_t n, size_t done, size_t tiles, const int rows, const int kind,
                                const int planes)
{
    for (; tile_takes(rows, planes) && n - done >= (size_t)rows; done += (size_t)rows)
        score_block(logit + done * AURA_TILE, q + done, tile, factor + done, bias + done, n, tiles, rows, kind, planes);
    return done;
}

AURA_INLINE void score_rows(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                            const float *bias, size_t n, size_t tiles, const int kind, const int planes)
{
    size_t done = score_blocks(logit, q, tile, factor, bias, n, 0, tiles, 16, kind, planes);
    done = score_blocks(logit, q, tile, factor, bias, n, done, tiles, 8, kind, planes);
    done = score_blocks(logit, q, tile, factor, bias, n, done, tiles, 4, kind, planes);
    done = score_blocks(logit, q, tile, factor, bias, n, done, tiles, 3, kind, planes);
    done = score_blocks(logit, q, tile, factor, bias, n, done, tiles, 2, kind, planes);
    score_blocks(logit, q, tile, factor, bias, n, done, tiles, 1, kind, planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_score_##shape##_##isa(float *logit, const struct aura_query *query, const struct aura_tile *keys,   \
                                         const float *factor, const float *bias, size_t n_query, size_t n_tiles)       \
    {                                                                                                                  \
        score_rows(logit, query, keys, factor, bias, n_query, n_tiles, AURA_KIND_OF(kind), AURA_PLANES_OF(kind));      \
    }
AURA_SHAPES_score(AURA_STAMP, score, AURA_ISA)
#undef AURA_STAMP
