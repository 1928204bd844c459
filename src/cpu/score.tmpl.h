/* score, written once over the words of an instruction set.
 *
 * The naive loop decodes a code and multiplies it by one query. Here a quad of 16 or 32 tokens is decoded once, and one
 * instruction (or a few) adds its four products to the sums of each query: no horizontal sums, as a lane is a token.
 *
 * Where the product takes unsigned times signed bytes, keys go in with an offset that makes them positive, and the
 * offset times the sum of the query is taken off at the end, in wrapping integers.
 *
 * Needs: tile.tmpl.h; ivec_zero, ivec_plus, ivec_add8, ivec_dot_key; vec_from_int, vec_load_f16, vec_set1, vec_mul,
 *        vec_add, vec_store; KEYS_UNSIGNED, 1 where ivec_dot_key takes unsigned keys; TILE_VECS, vectors side by side;
 *        TILE_ROWS, queries together with one plane, half as many with two; TILE_SUMS, vectors of sums that stay in
 *        registers; AURA_ISA. */

/* What is added to the bytes of a quad before the product. Bytes of tables are within -64 to 63, codes that are split are
 * positive. */
AURA_INLINE int tile_key_offset(const int kind)
{
    return !KEYS_UNSIGNED || aura_is_split(kind) ? 0 : kind == 8 ? 128 : 64;
}

AURA_INLINE ivec tile_key_quad(const struct aura_tile *tile, struct run at, size_t lane, ivec table, const int k,
                               const int kind)
{
    const uint32_t *words = tile->words + lane;
    ivec x = tile_quad(words + at.low, words + at.high, AURA_TILE, table, k, kind);
    return kind == 8 ? ivec_add8(x, tile_key_offset(kind)) : x; /* it is in the table otherwise */
}

/* The levels of the keys, as their quads come out of the table. */
AURA_INLINE ivec tile_key_table(const struct aura_side *s, const int kind)
{
    return ivec_add8(ivec_table(s->level), kind >= 2 && kind <= 4 ? tile_key_offset(kind) : 0);
}

/* logit of 16 * vecs tokens from t on; rows, vecs, kind and planes are constants. */
AURA_INLINE void score_part(float *logit, const struct aura_query *q, const struct aura_tile *tile,
                                 const float *factor, const float *bias, uint32_t t, const int rows, const int kind,
                                 const int planes)
{
    const struct aura_side *s = tile->side;
    const int chains = 2 * rows * planes * TILE_VECS <= TILE_SUMS ? 2 : 1; /* few sums: each would wait for its last product */
    ivec sum[8][2][TILE_VECS][2], table = tile_key_table(s, kind);
    AURA_UNROLL
    for (int i = 0; i < rows * planes * TILE_VECS; i++)
        sum[i / (planes * TILE_VECS)][i / TILE_VECS % planes][i % TILE_VECS][0] =
            sum[i / (planes * TILE_VECS)][i / TILE_VECS % planes][i % TILE_VECS][1] = ivec_zero();
    for (uint32_t run = 0; run < s->runs; run++) {
        struct run at = tile_run(s, run, kind);
        tile_prefetch(tile, t / (16 * TILE_VECS) * s->runs + run, tile_lines(TILE_VECS, kind));
        AURA_UNROLL
        for (int k = 0; k < 8; k++) {
            ivec x[TILE_VECS];
            AURA_UNROLL
            for (int v = 0; v < TILE_VECS; v++)
                x[v] = tile_key_quad(tile, at, t + 16 * (size_t)v, table, k, kind);
            AURA_UNROLL
            for (int g = 0; g < rows; g++)
                AURA_UNROLL
                for (int p = 0; p < planes; p++) {
                    ivec four = tile_four(q[g].plane[p] + run * AURA_RUN + 4 * k, 0);
                    AURA_UNROLL
                    for (int v = 0; v < TILE_VECS; v++)
                        sum[g][p][v][k % chains] = ivec_dot_key(sum[g][p][v][k % chains], x[v], four, aura_is_wide(kind));
                }
        }
    }
    vec scale[TILE_VECS];
    AURA_UNROLL
    for (int v = 0; v < TILE_VECS; v++)
        scale[v] = vec_load_f16((const uint8_t *)(tile->scale + t + 16 * (uint32_t)v), AURA_LANES);
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        uint32_t total = (uint32_t)q[g].sum[planes - 1];
        uint32_t correction = total * (uint32_t)(s->add - s->mul * tile_key_offset(kind));
        AURA_UNROLL
        for (int v = 0; v < TILE_VECS; v++) {
            ivec hi = chains == 1 ? sum[g][0][v][0] : ivec_plus(sum[g][0][v][0], sum[g][0][v][1]);
            ivec lo = chains == 1 ? sum[g][planes - 1][v][0] : ivec_plus(sum[g][planes - 1][v][0], sum[g][planes - 1][v][1]);
            ivec i = planes == 1 ? hi : ivec_plus(ivec_shl(hi, 8), lo);
            if (aura_is_split(kind))
                i = ivec_plus(i, i);
            vec x = vec_from_int(ivec_plus(i, ivec_set1((int32_t)correction)));
            x = vec_add(vec_mul(x, vec_mul(scale[v], vec_set1(factor[g]))), vec_set1(bias[g]));
            vec_store(logit + g * AURA_TILE + t + 16 * (uint32_t)v, x);
        }
    }
}

AURA_INLINE void score_block(float *logit, const struct aura_query *q, const struct aura_tile *tile,
                                  const float *factor, const float *bias, const int rows, const int kind,
                                  const int planes)
{
    for (uint32_t t = 0; t < AURA_TILE; t += 16 * TILE_VECS)
        score_part(logit, q, tile, factor, bias, t, rows, kind, planes);
}

/* One tile, in blocks of as many queries as stay in registers: each decodes the tile for itself, which costs less than to
 * keep it decoded. */
AURA_INLINE void score_rows(float *logit, const struct aura_query *q, const struct aura_tile *tile,
                                 const float *factor, const float *bias, size_t n, const int kind, const int planes)
{
    const int many = TILE_ROWS / planes, few = TILE_ROWS / planes < 4 ? TILE_ROWS / planes : 4;
    size_t g = 0;
    for (; g + (size_t)many <= n && many > few; g += (size_t)many)
        score_block(logit + g * AURA_TILE, q + g, tile, factor + g, bias + g, many, kind, planes);
    for (; g + (size_t)few <= n; g += (size_t)few)
        score_block(logit + g * AURA_TILE, q + g, tile, factor + g, bias + g, few, kind, planes);
    logit += g * AURA_TILE;
    if (few > 3 && n - g == 3)
        score_block(logit, q + g, tile, factor + g, bias + g, 3, kind, planes);
    if (few > 2 && n - g == 2)
        score_block(logit, q + g, tile, factor + g, bias + g, 2, kind, planes);
    if (n - g == 1)
        score_block(logit, q + g, tile, factor + g, bias + g, 1, kind, planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_score_##shape##_##isa(float *logit, const struct aura_query *query, const struct aura_tile *keys,   \
                                         const float *factor, const float *bias, size_t n_query, size_t n_tiles)       \
    {                                                                                                                  \
        for (size_t i = 0; i < n_tiles; i++)                                                                           \
            score_rows(logit + i * n_query * AURA_TILE, query, keys + i, factor, bias + i * n_query, n_query,     \
                            AURA_KIND_OF(kind), AURA_PLANES_OF(kind));                                                 \
    }
AURA_SHAPES_score(AURA_STAMP, score, AURA_ISA)
#undef AURA_STAMP
