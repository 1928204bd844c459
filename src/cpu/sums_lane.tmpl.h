/* The sums of score, value and reference, for an instruction set whose product takes four bytes out of a vector of
 * 16 for all lanes.
 *
 * Few rows: a quad is multiplied as it comes out of the tile, and 16 bytes of a query or of weights are loaded for
 * four quads. With trellis codes the quads of 16 lanes go to memory first, as there are not registers enough for sums
 * beside what makes quads. From 8 rows on, or planes of rows: quads of 16 lanes are unpacked to memory once for all of
 * them, and multiplied 8 rows at a time, whose sums and factors are in registers then.
 *
 * Needs: tile.tmpl.h; ivec_zero, ivec_plus, ivec_shl, ivec_load, ivec_store, ivec_total, ivec_dot_key; fours_load,
 *        ivec_dot_key_lane, ivec_dot_value_lane, pair_load, pair_store, lane_written,
 *        lane_again, rows_store, rows_multiply; WEIGHTS_SIGNED, 1
 *        where values take signed weights; LANE_ROWS, rows of rows_multiply; LANE_CHUNK, bytes of one row that lie
 *        together there; LANE_TRELLIS, from how many rows on trellis codes go there, LANE_ROWS or less. */

enum { LANE_MOST = 2 * LANE_ROWS }; /* rows, or planes of rows, that share what is unpacked */

/* Whether that many queries share a pass over a tile. */
AURA_INLINE int tile_takes(const int rows, const int planes)
{
    return rows * planes <= LANE_MOST && (rows != 3 || planes == 1);
}
AURA_INLINE int lane_is_many(const int rows, const int kind, const int planes)
{
    return rows * planes >= (aura_is_trellis(kind) ? LANE_TRELLIS : LANE_ROWS);
}

/* Keys are signed: nothing is added to them. */
AURA_INLINE int tile_key_offset(const int kind)
{
    (void)kind;
    return 0;
}
AURA_INLINE struct levels tile_key_levels(const struct aura_side *s, const int kind) { return tile_levels(s->level, 0, kind); }
AURA_INLINE struct levels tile_value_levels(const struct aura_side *s, const int kind) { return tile_levels(s->level, 0, kind); }

/* Queries and weights as the products take them: few as they are, but for the order of queries for trellis codes, many in chunks
 * side by side. Row g with plane p is row g * planes + p here. */
struct ready_queries {
    const int8_t *plane; /* of the first query; those of the others are `apart` bytes further on */
    size_t apart;
    _Alignas(64) int8_t turned[LANE_MOST][2][AURA_TILE_DIM];
    _Alignas(64) uint8_t left[LANE_MOST * AURA_TILE_DIM];
};
struct ready_weights {
    const struct aura_weight *w;
    size_t apart; /* from one tile to the next */
    _Alignas(64) uint8_t left[AURA_TILES][LANE_MOST * AURA_TILE];
};

/* Row i of `bytes` goes into its places. */
AURA_INLINE void lane_place(uint8_t *left, const void *row, size_t i, uint32_t bytes, uint32_t flip)
{
    const uint8_t *from = row;
    left += i / LANE_ROWS * LANE_ROWS * bytes + i % LANE_ROWS * LANE_CHUNK;
    for (uint32_t at = 0; at < bytes; at += 16) {
        uint32_t four[4];
        for (uint32_t j = 0; j < 4; j++) {
            memcpy(&four[j], from + at + 4 * j, 4);
            four[j] ^= flip;
        }
        for (uint32_t j = 0; j < 16; j += LANE_CHUNK)
            memcpy(left + (at + j) * LANE_ROWS, (const uint8_t *)four + j, LANE_CHUNK);
    }
}
AURA_INLINE void ready_queries(struct ready_queries *ready, const struct aura_query *q, uint32_t dim, const int rows,
                               const int kind, const int planes)
{
    const uint32_t bytes = aura_padded_run(dim);
    ready->plane = q->plane[0], ready->apart = sizeof *q;
    for (int g = 0; aura_is_trellis(kind) && g < rows; g++)
        tile_turn(ready->turned[g], q + g, dim, planes);
    if (aura_is_trellis(kind))
        ready->plane = ready->turned[0][0], ready->apart = sizeof ready->turned[0];
    for (size_t i = 0; lane_is_many(rows, kind, planes) && i < (size_t)(rows * planes); i++)
        lane_place(ready->left, ready->plane + i / (size_t)planes * ready->apart + i % (size_t)planes * AURA_TILE_DIM, i, bytes, 0);
}
AURA_INLINE void ready_weights(struct ready_weights *ready, const struct aura_weight *w, size_t apart, size_t tiles,
                               const int rows, const int kind, const int planes)
{
    ready->w = w;
    ready->apart = apart;
    for (size_t n = 0; lane_is_many(rows, kind, planes) && n < tiles; n++)
        for (size_t i = 0; i < (size_t)(rows * planes); i++)
            lane_place(ready->left[n], w[n * apart + i / (size_t)planes].plane[i % (size_t)planes], i, AURA_TILE,
                       WEIGHTS_SIGNED ? 0x80808080 : 0);
}

/* out[g] of the sums of all planes, plus what all rows have. */
AURA_INLINE void lane_sums(ivec out[TILE_MOST][TILE_VECS], const int32_t *sum, ivec plus, const int rows, const int planes)
{
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        const ivec hi = ivec_plus(ivec_load(sum + 16 * g * planes), plus);
        out[g][0] = planes == 1 ? hi : ivec_plus(ivec_shl(hi, 8), ivec_plus(ivec_load(sum + 16 * (g * planes + 1)), plus));
    }
}

/* Pairs of quads in an order in which few parts of nibbles are needed at once, and what is needed for the last time can be
 * overwritten: 4, 0, 6, 2. */
AURA_INLINE int lane_quad(const int i) { return 4 - i % 2 * 4 + i / 2 * 2; }

/* Two quads, 128 bytes: for every four lanes 32. All lanes, or with trellis codes four of them: `pass` says which. */
AURA_INLINE void lane_store(uint8_t *to, ivec even, ivec odd, const int pass, const int passes, const int many)
{
    AURA_UNROLL
    for (int i = 4 / passes * pass; i < 4 / passes * (pass + 1); i++) {
        if (many)
            rows_store(to + 32 * i, even.val[i], odd.val[i]);
        else
            pair_store(to + 32 * i, even.val[i], odd.val[i]);
    }
}

/* How often the quads of trellis codes are made, each time for four lanes: what is for the others is not computed, as nobody asks
 * for it, and all that is computed stays in registers. */
AURA_INLINE int lane_passes(const int kind) { return aura_is_trellis(kind) ? 4 : 1; }

/* ---- many rows ---- */

/* All quads of 16 tokens from t on: for rows_multiply, or for pair_load. */
AURA_INLINE void lane_unpack_keys(uint8_t *x, const struct aura_tile *tile, struct levels levels, uint32_t t, const int many,
                                  const int kind)
{
    const uint32_t runs = tile->side->runs;
    for (uint32_t run = 0; run < runs; run++, x += 8 * 64) {
        const struct run at = tile_run(tile->side, run, kind);
        tile_prefetch(tile, t / 16 * runs + run, tile_lines(1, kind));
        const uint32_t *low = tile_run_low(tile, at, t), *next = tile_run_next(tile, at, run, t, kind);
        AURA_UNROLL
        for (int pass = 0; pass < lane_passes(kind); pass++) {
            low = lane_again(low), next = lane_again(next);
            struct nibbles nibbles = tile_key_subsets(low, next, kind);
            AURA_UNROLL
            for (int i = 0; i < 4; i++) {
                const int k = lane_quad(i);
                if (i % 2 == 0)
                    tile_parts(&nibbles, low, AURA_TILE, i / 2, kind);
                lane_store(x + k * 64, tile_key_quad(tile, at, t, &nibbles, levels, 0, k, kind),
                           tile_key_quad(tile, at, t, &nibbles, levels, 0, k + 1, kind), pass, lane_passes(kind), many);
            }
        }
    }
}

AURA_INLINE void score_sums_many(ivec out[TILE_MOST][TILE_VECS], const struct ready_queries *ready, const struct aura_tile *tile,
                                 struct levels levels, uint32_t t, const int rows, const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    _Alignas(64) uint8_t x[AURA_TILE_DIM / 4 * 64];
    _Alignas(64) int32_t sum[LANE_MOST * 16];
    lane_unpack_keys(x, tile, levels, t, 1, kind);
    for (int i = 0; i < rows * planes; i += LANE_ROWS)
        rows_multiply(sum + 16 * i, ready->left + (size_t)i * s->runs * AURA_RUN, x, s->runs * AURA_RUN / LANE_CHUNK,
                      rows * planes < LANE_ROWS ? LANE_TRELLIS : LANE_ROWS, 0);
    lane_sums(out, sum, ivec_zero(), rows, planes);
}

/* All quads of 16 channels from d on; returns their sums over the tokens where weights are signed. */
AURA_INLINE ivec lane_unpack_values(uint8_t *x, const struct aura_tile *tile, struct levels levels, uint32_t d, const int many,
                                    const int kind)
{
    const struct aura_side *s = tile->side;
    const struct run at = tile_run(s, 0, kind);
    const uint32_t *words = tile->words + d;
    const fours one = fours_load("\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1", 0);
    ivec plain = ivec_zero();
    AURA_UNROLL
    for (int pass = 0; pass < lane_passes(kind); pass++) {
        words = lane_again(words);
        struct nibbles nibbles = tile_value_subsets(words, s->lanes, s->dim - d, kind);
        ivec sum = ivec_zero();
        AURA_UNROLL
        for (int i = 0; i < 4; i++) {
            const int k = lane_quad(i);
            if (i % 2 == 0)
                tile_parts(&nibbles, words, s->lanes, i / 2, kind);
            const ivec even = tile_value_quad(words, at, s, &nibbles, levels, k, kind);
            const ivec odd = tile_value_quad(words, at, s, &nibbles, levels, k + 1, kind);
            lane_store(x + 64 * k, even, odd, pass, lane_passes(kind), many);
            if (WEIGHTS_SIGNED)
                sum = ivec_dot_value_lane(ivec_dot_value_lane(sum, even, one, 0), odd, one, 0);
        }
        AURA_UNROLL
        for (int i = 4 / lane_passes(kind) * pass; i < 4 / lane_passes(kind) * (pass + 1); i++)
            plain.val[i] = sum.val[i];
    }
    return plain;
}

AURA_INLINE void value_sums_many(ivec out[TILE_MOST][TILE_VECS], const struct ready_weights *ready, size_t n,
                                 const struct aura_tile *tile, struct levels levels, uint32_t d, const int rows, const int kind,
                                 const int planes)
{
    _Alignas(64) uint8_t x[8 * 64];
    _Alignas(64) int32_t sum[LANE_MOST * 16];
    tile_prefetch(tile, d / 16, tile_lines(1, kind));
    const ivec plain = lane_unpack_values(x, tile, levels, d, 1, kind);
    for (int i = 0; i < rows * planes; i += LANE_ROWS)
        rows_multiply(sum + 16 * i, ready->left[n] + i * AURA_TILE, x, AURA_TILE / LANE_CHUNK,
                      rows * planes < LANE_ROWS ? LANE_TRELLIS : LANE_ROWS, 1);
    lane_sums(out, sum, ivec_shl(plain, 7), rows, planes);
}

/* ---- few rows ---- */

AURA_INLINE void score_sums_few(ivec out[TILE_MOST][TILE_VECS], const struct ready_queries *ready, const struct aura_tile *tile,
                                struct levels levels, uint32_t t, const int rows, const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    const int many = rows * planes, chains = many <= 2 ? 2 : 1; /* few sums: each would wait for its last product */
    const struct nibbles none = tile_no_nibbles();
    _Alignas(64) uint8_t x[AURA_TILE_DIM / 4 * 64];
    ivec sum[4][2];
    if (aura_is_trellis(kind))
        lane_unpack_keys(x, tile, levels, t, 0, kind);
    AURA_UNROLL
    for (int i = 0; i < many; i++)
        sum[i][0] = sum[i][1] = ivec_zero();
    const int8_t *plane = ready->plane;
    const uint8_t *from = x;
    for (uint32_t run = 0; run < s->runs; run++, plane += AURA_RUN, from += 8 * 64) {
        const struct run at = tile_run(s, run, kind);
        if (!aura_is_trellis(kind))
            tile_prefetch(tile, t / 16 * s->runs + run, tile_lines(1, kind));
        AURA_UNROLL
        for (int four = 0; four < 2; four++) {
            fours y[4];
            ivec2 pair = {ivec_zero(), ivec_zero()};
            AURA_UNROLL
            for (int i = 0; i < many; i++)
                y[i] = fours_load(plane + (size_t)(i / planes) * ready->apart + i % planes * AURA_TILE_DIM + 16 * four, 0);
            AURA_UNROLL
            for (int k = 4 * four; k < 4 * four + 4; k++) {
                if (aura_is_trellis(kind) && k % 2 == 0)
                    pair = pair_load(from + 64 * k);
                const ivec there = k % 2 ? pair.b : pair.a;
                const ivec quad = aura_is_trellis(kind) ? there : tile_key_quad(tile, at, t, &none, levels, 0, k, kind);
                AURA_UNROLL
                for (int i = 0; i < many; i++)
                    sum[i][k % chains] = ivec_dot_key_lane(sum[i][k % chains], quad, y[i], k % 4);
            }
        }
    }
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        const ivec *hi = sum[g * planes], *lo = sum[g * planes + planes - 1];
        const ivec first = chains == 1 ? hi[0] : ivec_plus(hi[0], hi[1]), last = chains == 1 ? lo[0] : ivec_plus(lo[0], lo[1]);
        out[g][0] = planes == 1 ? first : ivec_plus(ivec_shl(first, 8), last);
    }
}

AURA_INLINE void value_sums_few(ivec out[TILE_MOST][TILE_VECS], const struct ready_weights *ready, size_t n,
                                const struct aura_tile *tile, struct levels levels, uint32_t d, const int rows, const int kind,
                                const int planes)
{
    const struct aura_side *s = tile->side;
    const struct run at = tile_run(s, 0, kind);
    const struct aura_weight *w = ready->w + n * ready->apart;
    const uint32_t *words = tile->words + d;
    const struct nibbles none = tile_no_nibbles();
    const fours one = fours_load("\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1\1", 0);
    const int many = rows * planes;
    _Alignas(64) uint8_t x[8 * 64];
    ivec sum[4], plain = ivec_zero();
    tile_prefetch(tile, d / 16, tile_lines(1, kind));
    if (aura_is_trellis(kind)) {
        plain = lane_unpack_values(x, tile, levels, d, 0, kind);
        lane_written(x);
    }
    AURA_UNROLL
    for (int i = 0; i < many; i++)
        sum[i] = ivec_zero();
    AURA_UNROLL
    for (int four = 0; four < 2; four++) {
        fours y[4];
        ivec2 pair = {ivec_zero(), ivec_zero()};
        AURA_UNROLL
        for (int i = 0; i < many; i++)
            y[i] = fours_load(w[i / planes].plane[i % planes] + 16 * four, WEIGHTS_SIGNED ? 0x80808080 : 0);
        AURA_UNROLL
        for (int k = 4 * four; k < 4 * four + 4; k++) {
            if (aura_is_trellis(kind) && k % 2 == 0)
                pair = pair_load(x + 64 * k);
            const ivec there = k % 2 ? pair.b : pair.a;
            const ivec quad = aura_is_trellis(kind) ? there : tile_value_quad(words, at, s, &none, levels, k, kind);
            if (WEIGHTS_SIGNED && !aura_is_trellis(kind))
                plain = ivec_dot_value_lane(plain, quad, one, 0);
            AURA_UNROLL
            for (int i = 0; i < many; i++)
                sum[i] = ivec_dot_value_lane(sum[i], quad, y[i], k % 4);
        }
    }
    plain = ivec_shl(plain, 7);
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        const ivec hi = WEIGHTS_SIGNED ? ivec_plus(sum[g * planes], plain) : sum[g * planes];
        const ivec lo = WEIGHTS_SIGNED ? ivec_plus(sum[g * planes + planes - 1], plain) : sum[g * planes + planes - 1];
        out[g][0] = planes == 1 ? hi : ivec_plus(ivec_shl(hi, 8), lo);
    }
}

/* ---- what score and value call ---- */

/* sum[g][0] = products of 16 tokens from t on; rows, kind and planes are constants. */
AURA_INLINE void score_sums(ivec sum[TILE_MOST][TILE_VECS], const struct ready_queries *ready, const struct aura_tile *tile,
                            struct levels levels, uint32_t t, const int rows, const int kind, const int planes)
{
    if (lane_is_many(rows, kind, planes))
        score_sums_many(sum, ready, tile, levels, t, rows, kind, planes);
    else
        score_sums_few(sum, ready, tile, levels, t, rows, kind, planes);
}

/* sum[g][0] = products of tile n, channels d .. d + 16; rows, kind and planes are constants. Where weights must be
 * signed bytes, 128 is taken off each, and 128 times the sum of the levels is added at the end. */
AURA_INLINE void value_sums(ivec sum[TILE_MOST][TILE_VECS], const struct ready_weights *ready, size_t n,
                            const struct aura_tile *tile, struct levels levels, uint32_t d, const int rows, const int vecs,
                            const int kind, const int planes)
{
    (void)vecs;
    if (lane_is_many(rows, kind, planes))
        value_sums_many(sum, ready, n, tile, levels, d, rows, kind, planes);
    else
        value_sums_few(sum, ready, n, tile, levels, d, rows, kind, planes);
}

/* Both planes of a query times a key of 8 bits. */
AURA_INLINE int32_t reference_row(const struct aura_query *q, const int8_t *code, uint32_t dim)
{
    ivec sum[2] = {ivec_zero(), ivec_zero()};
    for (uint32_t d = 0; d < dim; d += 64)
        for (int p = 0; p < 2; p++)
            sum[p] = ivec_dot_key(sum[p], ivec_load(code + d), ivec_load(q->plane[p] + d), 1);
    return ivec_total(ivec_plus(ivec_shl(sum[0], 8), sum[1]));
}
