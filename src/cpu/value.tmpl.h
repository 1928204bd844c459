/* value, written once over the words of an instruction set.
 *
 * As score with the axes exchanged: a lane is a channel, and a quad is four tokens, whose products with the four
 * weights of each query are added at once. The sums over a tile are exact; only then do they become floats, and those
 * of several tiles are added up in registers.
 *
 * Needs: tile.tmpl.h; value_sums and what is with it, of one of the files sums*.tmpl.h; ivec_plus, ivec_set1; vec_from_int,
 *        vec_load, vec_set1, vec_mul, vec_fma, vec_store; AURA_ISA. */

/* acc[g][d .. d + 16 * vecs) of all tiles. */
AURA_INLINE void value_part(float *acc, size_t stride, const struct aura_weight *w, size_t apart, const int32_t *shift,
                            const struct ready_weights *ready, struct levels levels, const struct aura_tile *tile, size_t tiles,
                            uint32_t d, const int rows, const int vecs, const int kind, const int planes)
{
    vec o[TILE_MOST][TILE_VECS];
    AURA_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        o[i / vecs][i % vecs] = vec_mul(vec_load(acc + (size_t)(i / vecs) * stride + d + 16 * (uint32_t)(i % vecs)),
                                        vec_set1(w[i / vecs].keep));
    for (size_t n = 0; n < tiles; n++) {
        ivec sum[TILE_MOST][TILE_VECS];
        value_sums(sum, ready, n, tile + n, levels, d, rows, vecs, kind, planes);
        AURA_UNROLL
        for (int g = 0; g < rows; g++)
            AURA_UNROLL
            for (int v = 0; v < vecs; v++) {
                ivec i = sum[g][v];
                if (!tile_has_levels(kind))
                    i = ivec_plus(ivec_plus(i, i), ivec_set1(shift[n * TILE_MOST + (size_t)g]));
                o[g][v] = vec_fma(vec_from_int(i), vec_set1(w[n * apart + (size_t)g].factor), o[g][v]);
            }
    }
    AURA_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        vec_store(acc + (size_t)(i / vecs) * stride + d + 16 * (uint32_t)(i % vecs), o[i / vecs][i % vecs]);
}

AURA_INLINE void value_block(float *acc, size_t stride, const struct aura_weight *w, size_t apart,
                                  const struct aura_tile *tile, size_t tiles, const int rows, const int kind,
                                  const int planes)
{
    const uint32_t dim = tile->side->dim;
    const struct levels levels = tile_value_levels(tile->side, kind);
    struct ready_weights ready;
    int32_t shift[AURA_TILES * TILE_MOST];
    uint32_t d = 0;
    ready_weights(&ready, w, apart, tiles, rows, kind, planes);
    for (size_t i = 0; !tile_has_levels(kind) && i < tiles * TILE_MOST; i++)
        shift[i] = i % TILE_MOST < (size_t)rows
                       ? tile->side->add * tile_weight_sum(&w[i / TILE_MOST * apart + i % TILE_MOST], planes) : 0;
    for (; d + 16 * TILE_VECS <= dim; d += 16 * TILE_VECS)
        value_part(acc, stride, w, apart, shift, &ready, levels, tile, tiles, d, rows, TILE_VECS, kind, planes);
    if (TILE_VECS > 1 && d < dim)
        value_part(acc, stride, w, apart, shift, &ready, levels, tile, tiles, d, rows, 1, kind, planes);
}

/* Blocks of rows as in score.tmpl.h. */
AURA_INLINE size_t value_blocks(float *acc, size_t stride, const struct aura_weight *w, const struct aura_tile *tile, size_t n,
                                size_t done, size_t tiles, const int rows, const int kind, const int planes)
{
    for (; tile_takes(rows, planes) && n - done >= (size_t)rows; done += (size_t)rows)
        value_block(acc + done * stride, stride, w + done, n, tile, tiles, rows, kind, planes);
    return done;
}

AURA_INLINE void value_rows(float *acc, size_t stride, const struct aura_weight *w, const struct aura_tile *tile,
                                 size_t n, size_t tiles, const int kind, const int planes)
{
    size_t done = value_blocks(acc, stride, w, tile, n, 0, tiles, 16, kind, planes);
    done = value_blocks(acc, stride, w, tile, n, done, tiles, 8, kind, planes);
    done = value_blocks(acc, stride, w, tile, n, done, tiles, 4, kind, planes);
    done = value_blocks(acc, stride, w, tile, n, done, tiles, 3, kind, planes);
    done = value_blocks(acc, stride, w, tile, n, done, tiles, 2, kind, planes);
    value_blocks(acc, stride, w, tile, n, done, tiles, 1, kind, planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_value_##shape##_##isa(float *acc, size_t stride, const struct aura_weight *weight,                  \
                                         const struct aura_tile *values, size_t n_query, size_t n_tiles)               \
    {                                                                                                                  \
        value_rows(acc, stride, weight, values, n_query, n_tiles, AURA_KIND_OF(kind), AURA_PLANES_OF(kind));      \
    }
AURA_SHAPES_value(AURA_STAMP, value, AURA_ISA)
#undef AURA_STAMP
