/* The sums of score, value and reference, for an instruction set with products of bytes whose four results it adds to a lane: a
 * quad is multiplied as it comes out of the tile, once for each byte plane of query or weight.
 *
 * Where the product takes unsigned times signed bytes, keys go in with an offset that makes them positive, and score takes the
 * offset times the sum of the query off at the end, in wrapping integers.
 *
 * Needs: tile.tmpl.h; ivec_zero, ivec_plus, ivec_total, ivec_dot_key, ivec_dot_value; KEYS_UNSIGNED, 1 where ivec_dot_key takes
 *        unsigned keys; WEIGHTS_SIGNED, 1 where ivec_dot_value takes signed weights; TILE_VECS, vectors side by side; TILE_ROWS,
 *        queries together with one plane, half as many with two; TILE_SUMS, vectors of sums that stay in registers. */

/* Whether that many queries share a pass over a tile. */
AURA_INLINE int tile_takes(const int rows, const int planes) { return rows * planes <= TILE_ROWS; }

/* What is added to the bytes of a key's quad before the product. Bytes of tables are within -64 to 63, codes that are split
 * are positive. */
AURA_INLINE int tile_key_offset(const int kind)
{
    return !KEYS_UNSIGNED || aura_is_split(kind) ? 0 : kind == 8 ? 128 : 64;
}

AURA_INLINE struct levels tile_key_levels(const struct aura_side *s, const int kind)
{
    return tile_levels(s->level, tile_key_offset(kind), kind);
}
AURA_INLINE struct levels tile_value_levels(const struct aura_side *s, const int kind)
{
    return tile_levels(s->level, 0, kind);
}

/* Queries and weights as the products take them: here, as they are, but for the order of queries for trellis codes. */
struct ready_queries {
    const struct aura_query *q;
    _Alignas(64) int8_t turned[TILE_ROWS][2][AURA_TILE_DIM];
};
struct ready_weights {
    const struct aura_weight *w;
    size_t apart; /* from one tile to the next */
};
AURA_INLINE void ready_queries(struct ready_queries *ready, const struct aura_query *q, uint32_t dim, const int rows,
                               const int kind, const int planes)
{
    ready->q = q;
    for (int g = 0; aura_is_trellis(kind) && g < rows; g++)
        tile_turn(ready->turned[g], q + g, dim, planes);
}
AURA_INLINE void ready_weights(struct ready_weights *ready, const struct aura_weight *w, size_t apart, size_t tiles,
                               const int rows, const int kind, const int planes)
{
    (void)tiles, (void)rows, (void)kind, (void)planes;
    ready->w = w;
    ready->apart = apart;
}

/* sum[g][v] = products of 16 * TILE_VECS tokens from t on, offset included; rows, kind and planes are constants. */
AURA_INLINE void score_sums(ivec out[TILE_MOST][TILE_VECS], const struct ready_queries *ready, const struct aura_tile *tile,
                            struct levels levels, uint32_t t, const int rows, const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    const struct aura_query *q = ready->q;
    const int chains = 2 * rows * planes * TILE_VECS <= TILE_SUMS ? 2 : 1; /* few sums: each would wait for its last product */
    ivec sum[8][2][TILE_VECS][2];
    AURA_UNROLL
    for (int i = 0; i < rows * planes * TILE_VECS; i++)
        sum[i / (planes * TILE_VECS)][i / TILE_VECS % planes][i % TILE_VECS][0] =
            sum[i / (planes * TILE_VECS)][i / TILE_VECS % planes][i % TILE_VECS][1] = ivec_zero();
    for (uint32_t run = 0; run < s->runs; run++) {
        struct run at = tile_run(s, run, kind);
        tile_prefetch(tile, t / (16 * TILE_VECS) * s->runs + run, tile_lines(TILE_VECS, kind));
        struct nibbles nibbles[TILE_VECS];
        AURA_UNROLL
        for (int v = 0; v < TILE_VECS; v++)
            nibbles[v] = tile_run_nibbles(tile, at, run, t + 16 * (size_t)v, kind);
        AURA_UNROLL
        for (int k = 0; k < 8; k++) {
            ivec x[TILE_VECS];
            AURA_UNROLL
            for (int v = 0; v < TILE_VECS; v++)
                x[v] = tile_key_quad(tile, at, t + 16 * (size_t)v, &nibbles[v], levels, tile_key_offset(kind), k, kind);
            AURA_UNROLL
            for (int g = 0; g < rows; g++)
                AURA_UNROLL
                for (int p = 0; p < planes; p++) {
                    const int8_t *plane = aura_is_trellis(kind) ? ready->turned[g][p] : q[g].plane[p];
                    ivec four = tile_four(plane + run * AURA_RUN + 4 * k, 0);
                    AURA_UNROLL
                    for (int v = 0; v < TILE_VECS; v++)
                        sum[g][p][v][k % chains] = ivec_dot_key(sum[g][p][v][k % chains], x[v], four, aura_is_wide(kind));
                }
        }
    }
    AURA_UNROLL
    for (int i = 0; i < rows * TILE_VECS; i++) {
        const int g = i / TILE_VECS, v = i % TILE_VECS;
        ivec hi = chains == 1 ? sum[g][0][v][0] : ivec_plus(sum[g][0][v][0], sum[g][0][v][1]);
        ivec lo = chains == 1 ? sum[g][planes - 1][v][0] : ivec_plus(sum[g][planes - 1][v][0], sum[g][planes - 1][v][1]);
        out[g][v] = planes == 1 ? hi : ivec_plus(ivec_shl(hi, 8), lo);
    }
}

/* out[g][v] = products of tile n, channels d .. d + 16 * vecs; rows, vecs, kind and planes are constants. Where weights must be
 * signed bytes, 128 is taken off each, and 128 times the sum of the levels is added at the end. */
AURA_INLINE void value_sums(ivec out[TILE_MOST][TILE_VECS], const struct ready_weights *ready, size_t n,
                            const struct aura_tile *tile, struct levels levels, uint32_t d, const int rows, const int vecs,
                            const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    const struct aura_weight *w = ready->w + n * ready->apart;
    ivec sum[8][2][TILE_VECS], plain[TILE_VECS];
    struct run at = tile_run(s, 0, kind);
    AURA_UNROLL
    for (int i = 0; i < rows * planes * vecs; i++)
        sum[i / (planes * vecs)][i / vecs % planes][i % vecs] = ivec_zero();
    AURA_UNROLL
    for (int v = 0; v < vecs; v++)
        plain[v] = ivec_zero();
    tile_prefetch(tile, d / (16 * (uint32_t)vecs), tile_lines(vecs, kind));
    struct nibbles nibbles[TILE_VECS];
    AURA_UNROLL
    for (int v = 0; v < vecs; v++)
        nibbles[v] = tile_value_nibbles(tile->words + d + 16 * (size_t)v, s->lanes, s->dim - d - 16 * (uint32_t)v, kind);
    AURA_UNROLL
    for (int k = 0; k < 8; k++) {
        ivec x[TILE_VECS];
        AURA_UNROLL
        for (int v = 0; v < vecs; v++) {
            const uint32_t *words = tile->words + d + 16 * (size_t)v;
            x[v] = tile_value_quad(words, at, s, &nibbles[v], levels, k, kind);
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
    for (int i = 0; i < rows * vecs; i++) {
        const int g = i / vecs, v = i % vecs;
        ivec hi = WEIGHTS_SIGNED ? ivec_plus(sum[g][0][v], ivec_shl(plain[v], 7)) : sum[g][0][v];
        ivec lo = WEIGHTS_SIGNED ? ivec_plus(sum[g][planes - 1][v], ivec_shl(plain[v], 7)) : sum[g][planes - 1][v];
        out[g][v] = planes == 1 ? hi : ivec_plus(ivec_shl(hi, 8), lo);
    }
}

/* Both planes of a query times a key of 8 bits. */
AURA_INLINE int32_t reference_row(const struct aura_query *q, const int8_t *code, uint32_t dim)
{
    ivec sum[2];
    AURA_UNROLL
    for (int p = 0; p < 2; p++) {
        sum[p] = ivec_zero();
        for (uint32_t d = 0; d < dim; d += 64)
            sum[p] = ivec_dot_key(sum[p], ivec_add8(ivec_load(code + d), KEYS_UNSIGNED ? 128 : 0),
                                  ivec_load(q->plane[p] + d), 1);
    }
    uint32_t total = (uint32_t)ivec_total(ivec_plus(ivec_shl(sum[0], 8), sum[1]));
    return (int32_t)(total - (KEYS_UNSIGNED ? 128 * (uint32_t)q->sum[1] : 0));
}
