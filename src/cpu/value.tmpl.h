/* value, written once over the words of an instruction set.
 *
 * As score with the axes exchanged: a lane is a channel, and a quad is four tokens, whose products with the four
 * weights of each query are added at once. The sums over a tile are exact; only then do they become floats, and those
 * of several tiles are added up in registers.
 *
 * Needs: tile.tmpl.h; ivec_zero, ivec_plus, ivec_dot_value; vec_from_int, vec_load, vec_set1, vec_mul, vec_fma, vec_store;
 *        WEIGHTS_SIGNED, 1 where ivec_dot_value takes signed weights; TILE_VECS, TILE_ROWS as in score; AURA_ISA. */

/* The sum of 32 bytes, eight at a time. */
AURA_INLINE int32_t tile_byte_sum(const uint8_t *byte)
{
    const uint64_t even = 0x00ff00ff00ff00ffu;
    uint64_t sums = 0, eight;
    for (int i = 0; i < AURA_TILE; i += 8) {
        memcpy(&eight, byte + i, sizeof eight);
        sums += (eight & even) + (eight >> 8 & even);
    }
    return (int32_t)(sums * 0x0001000100010001u >> 48);
}

/* The sum of the integer weights: what a constant in all levels adds. */
AURA_INLINE int32_t tile_weight_sum(const struct aura_weight *w, const int planes)
{
    int32_t hi = tile_byte_sum(w->plane[0]);
    return planes == 1 ? hi : 256 * hi + tile_byte_sum(w->plane[1]);
}

/* sum[g][p][v] = products of one tile, channels d .. d + 16 * vecs; rows, vecs, kind and planes are constants. Where
 * weights must be signed bytes, 128 is taken off each, and 128 times the sum of the levels is added at the end. */
AURA_INLINE void value_sums(ivec sum[8][2][TILE_VECS], const struct aura_weight *w, const struct aura_tile *tile,
                                 ivec table, uint32_t d, const int rows, const int vecs, const int kind,
                                 const int planes)
{
    const struct aura_side *s = tile->side;
    ivec plain[TILE_VECS];
    struct run at = tile_run(s, 0, kind);
    AURA_UNROLL
    for (int i = 0; i < rows * planes * vecs; i++)
        sum[i / (planes * vecs)][i / vecs % planes][i % vecs] = ivec_zero();
    AURA_UNROLL
    for (int v = 0; v < vecs; v++)
        plain[v] = ivec_zero();
    tile_prefetch(tile, d / (16 * (uint32_t)vecs), tile_lines(vecs, kind));
    AURA_UNROLL
    for (int k = 0; k < 8; k++) {
        ivec x[TILE_VECS];
        AURA_UNROLL
        for (int v = 0; v < vecs; v++) {
            const uint32_t *words = tile->words + d + 16 * (size_t)v;
            x[v] = tile_quad(words + at.low, words + at.high, s->lanes, table, k, kind);
            if (WEIGHTS_SIGNED)
                plain[v] = ivec_dot_value(plain[v], x[v], ivec_set1(0x01010101), aura_is_wide(kind));
        }
        AURA_UNROLL
        for (int g = 0; g < rows; g++)
            AURA_UNROLL
            for (int p = 0; p < planes; p++) {
                ivec four = tile_four(w[g].plane[p] + 4 * k, WEIGHTS_SIGNED ? 0x80808080 : 0);
                AURA_UNROLL
                for (int v = 0; v < vecs; v++)
                    sum[g][p][v] = ivec_dot_value(sum[g][p][v], x[v], four, aura_is_wide(kind));
            }
    }
    AURA_UNROLL
    for (int i = 0; WEIGHTS_SIGNED && i < rows * planes * vecs; i++) {
        ivec *one = &sum[i / (planes * vecs)][i / vecs % planes][i % vecs];
        *one = ivec_plus(*one, ivec_shl(plain[i % vecs], 7));
    }
}

/* acc[g][d .. d + 16 * vecs) of all tiles. */
AURA_INLINE void value_part(float *acc, size_t stride, const struct aura_weight *w, size_t apart,
                                 const int32_t *shift, const struct aura_tile *tile, size_t tiles, uint32_t d,
                                 const int rows, const int vecs, const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    ivec table = ivec_table(s->level);
    vec o[8][TILE_VECS];
    AURA_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        o[i / vecs][i % vecs] = vec_mul(vec_load(acc + (size_t)(i / vecs) * stride + d + 16 * (uint32_t)(i % vecs)),
                                        vec_set1(w[i / vecs].keep));
    for (size_t n = 0; n < tiles; n++) {
        ivec sum[8][2][TILE_VECS];
        value_sums(sum, w + n * apart, tile + n, table, d, rows, vecs, kind, planes);
        AURA_UNROLL
        for (int g = 0; g < rows; g++)
            AURA_UNROLL
            for (int v = 0; v < vecs; v++) {
                ivec i = planes == 1 ? sum[g][0][v] : ivec_plus(ivec_shl(sum[g][0][v], 8), sum[g][1][v]);
                if (aura_is_split(kind))
                    i = ivec_plus(ivec_plus(i, i), ivec_set1(shift[n * 8 + (size_t)g]));
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
    int32_t shift[AURA_TILES * 8];
    uint32_t d = 0;
    for (size_t i = 0; aura_is_split(kind) && i < tiles * 8; i++)
        shift[i] = i % 8 < (size_t)rows ? tile->side->add * tile_weight_sum(&w[i / 8 * apart + i % 8], planes) : 0;
    for (; d + 16 * TILE_VECS <= dim; d += 16 * TILE_VECS)
        value_part(acc, stride, w, apart, shift, tile, tiles, d, rows, TILE_VECS, kind, planes);
    if (TILE_VECS > 1 && d < dim)
        value_part(acc, stride, w, apart, shift, tile, tiles, d, rows, 1, kind, planes);
}

AURA_INLINE void value_rows(float *acc, size_t stride, const struct aura_weight *w, const struct aura_tile *tile,
                                 size_t n, size_t tiles, const int kind, const int planes)
{
    const int many = TILE_ROWS / planes, few = TILE_ROWS / planes < 4 ? TILE_ROWS / planes : 4;
    size_t g = 0;
    for (; g + (size_t)many <= n && many > few; g += (size_t)many)
        value_block(acc + g * stride, stride, w + g, n, tile, tiles, many, kind, planes);
    for (; g + (size_t)few <= n; g += (size_t)few)
        value_block(acc + g * stride, stride, w + g, n, tile, tiles, few, kind, planes);
    acc += g * stride;
    if (few > 3 && n - g == 3)
        value_block(acc, stride, w + g, n, tile, tiles, 3, kind, planes);
    if (few > 2 && n - g == 2)
        value_block(acc, stride, w + g, n, tile, tiles, 2, kind, planes);
    if (n - g == 1)
        value_block(acc, stride, w + g, n, tile, tiles, 1, kind, planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_value_##shape##_##isa(float *acc, size_t stride, const struct aura_weight *weight,                  \
                                         const struct aura_tile *values, size_t n_query, size_t n_tiles)               \
    {                                                                                                                  \
        value_rows(acc, stride, weight, values, n_query, n_tiles, AURA_KIND_OF(kind), AURA_PLANES_OF(kind));      \
    }
AURA_SHAPES_value(AURA_STAMP, value, AURA_ISA)
#undef AURA_STAMP
