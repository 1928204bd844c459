/* The sums of score, value and reference, for an instruction set whose only product of bytes adds two neighbours in 16 bits.
 *
 * One plane: products of bytes, and as many quads as fit are added up in 16 bits before they go into the 32 of a sum. How many
 * do is a matter of the largest level. Two planes, and bytes whose products do not even fit once: products of 16-bit numbers,
 * 256 hi + lo at once, with the even and the odd bytes of a quad.
 *
 * Keys go in unsigned, with an offset as in sums.tmpl.h. Weights of two planes are 16 bits without a sign, which no product
 * takes: 32768 is taken off each, and 32768 times the sum of the levels is added at the end.
 *
 * Needs: tile.tmpl.h; ivec_zero, ivec_plus, ivec_plus16, ivec_pairs, ivec_dot16, ivec_even, ivec_odd, ivec_store, ivec_total;
 *        TILE_VECS, TILE_ROWS as there. */

/* Whether that many queries share a pass over a tile. */
AURA_INLINE int tile_takes(const int rows, const int planes)
{
    (void)planes;
    return rows <= TILE_ROWS;
}

/* The levels of 2 bits, +-15 and +-50, are multiples of 5: what is multiplied is a fifth of them. */
AURA_INLINE int tile_unit(const int kind) { return kind == 2 ? 5 : 1; }

AURA_INLINE ivec times_unit(ivec v, const int kind) { return tile_unit(kind) == 5 ? ivec_plus(v, ivec_shl(v, 2)) : v; }

/* What is added to a key's levels; see sums.tmpl.h. Levels of t2 and t3 are small. */
AURA_INLINE int tile_key_offset(const int kind)
{
    if (aura_is_trellis(kind))
        return kind == AURA_TRELLIS_2 ? 19 : kind == AURA_TRELLIS_3 ? 24 : 64;
    return aura_is_split(kind) ? 0 : kind == 8 ? 128 : kind == 2 ? 50 : 64;
}

AURA_INLINE struct levels tile_unit_levels(const struct aura_side *s, int offset, const int kind)
{
    int8_t level[32];
    for (int i = 0; i < 32; i++)
        level[i] = (int8_t)(s->level[i] / tile_unit(kind));
    return tile_levels(level, offset / tile_unit(kind), kind);
}
AURA_INLINE struct levels tile_key_levels(const struct aura_side *s, const int kind)
{
    return tile_unit_levels(s, tile_key_offset(kind), kind);
}
AURA_INLINE struct levels tile_value_levels(const struct aura_side *s, const int kind)
{
    return tile_unit_levels(s, 0, kind);
}

/* Quads that can be added up in 16 bits, 0: not even one. A byte of the other factor is at most `other`. */
AURA_INLINE int quads_of_sum(int largest, int other, const int planes)
{
    const int most = planes == 2 ? 0 : 32767 / (2 * largest * other);
    return most >= 4 ? 4 : most == 3 ? 2 : most;
}
AURA_INLINE int key_quads(const int kind, const int planes)
{
    const int largest = kind == 2 ? 20 : kind == AURA_TRELLIS_2 ? 38 : kind == AURA_TRELLIS_3 ? 48
                        : aura_is_table(kind) ? 127 : (1 << kind) - 1;
    return quads_of_sum(largest, 127, planes);
}
AURA_INLINE int value_quads(const int kind, const int planes)
{
    const int largest = kind == 2 ? 10 : kind == AURA_TRELLIS_2 ? 19 : kind == AURA_TRELLIS_3 ? 24
                        : aura_is_table(kind) ? 64 : (1 << kind) - 1;
    return quads_of_sum(largest, 255, planes);
}

/* 16-bit numbers of some bytes, 256 hi + lo, or hi alone: of those at even and of those at odd places. */
AURA_INLINE ivec even_of_planes(ivec hi, ivec lo, const int sign, const int planes)
{
    return planes == 1 ? ivec_even(hi, sign) : ivec_plus16(ivec_shl(ivec_and(hi, 0x00ff00ff), 8), ivec_even(lo, sign));
}
AURA_INLINE ivec odd_of_planes(ivec hi, ivec lo, const int sign, const int planes)
{
    return planes == 1 ? ivec_odd(hi, sign) : ivec_plus16(ivec_and(hi, 0xff00ff00), ivec_odd(lo, sign));
}

/* Queries and weights as the products take them. */
struct ready_queries {
    const int8_t *plane; /* of the first query; those of the others are `apart` bytes further on */
    size_t apart;
    _Alignas(64) int8_t turned[TILE_ROWS][2][AURA_TILE_DIM];
    uint32_t pair[TILE_ROWS][2][AURA_TILE_DIM / 4];
};
struct ready_weights {
    const struct aura_weight *w;
    size_t apart; /* from one tile to the next */
    uint32_t pair[AURA_TILES][TILE_ROWS][2][AURA_TILE / 2];
};
AURA_INLINE void ready_queries(struct ready_queries *ready, const struct aura_query *q, uint32_t dim, const int rows,
                               const int kind, const int planes)
{
    ready->plane = q->plane[0], ready->apart = sizeof *q;
    for (int g = 0; aura_is_trellis(kind) && g < rows; g++)
        tile_turn(ready->turned[g], q + g, dim, planes);
    if (aura_is_trellis(kind))
        ready->plane = ready->turned[0][0], ready->apart = sizeof ready->turned[0];
    for (int g = 0; !key_quads(kind, planes) && g < rows; g++)
        for (uint32_t d = 0; d < dim; d += 64) {
            const int8_t *plane = ready->plane + (size_t)g * ready->apart + d;
            ivec hi = ivec_load(plane), lo = ivec_load(plane + AURA_TILE_DIM);
            ivec_store(ready->pair[g][0] + d / 4, even_of_planes(hi, lo, 1, planes));
            ivec_store(ready->pair[g][1] + d / 4, odd_of_planes(hi, lo, 1, planes));
        }
}
AURA_INLINE void ready_weights(struct ready_weights *ready, const struct aura_weight *w, size_t apart, size_t tiles,
                               const int rows, const int kind, const int planes)
{
    ready->w = w;
    ready->apart = apart;
    for (size_t i = 0; !value_quads(kind, planes) && i < tiles * (size_t)rows; i++) {
        const struct aura_weight *one = &w[i / (size_t)rows * apart + i % (size_t)rows];
        uint32_t *pair = ready->pair[i / (size_t)rows][i % (size_t)rows][0];
        uint8_t bytes[2][64] = {{0}};
        for (int p = 0; p < planes; p++)
            memcpy(bytes[p], one->plane[p], AURA_TILE);
        ivec hi = ivec_load(bytes[0]), lo = ivec_load(bytes[1]), off = ivec_set1(planes == 1 ? 0 : (int32_t)0x80008000);
        ivec_store(pair, ivec_plus16(even_of_planes(hi, lo, 0, planes), off));
        ivec_store(pair + AURA_TILE / 2, ivec_plus16(odd_of_planes(hi, lo, 0, planes), off));
    }
}

/* sum[g][v] += products of quads k to k + quads - 1 in bytes. four[g], the bytes of query or weight, begins `apart` bytes after
 * that of the query before; k, quads and what is a matter of shape are constants. */
AURA_INLINE void sums_add8(ivec sum[TILE_MOST][TILE_VECS], const ivec x[4][TILE_VECS], const void *four, size_t apart, const int k,
                           const int rows, const int vecs, const int quads, const int values)
{
    AURA_UNROLL
    for (int g = 0; g < rows; g++) {
        ivec part[TILE_VECS];
        AURA_UNROLL
        for (int i = 0; i < quads * vecs; i++) {
            const int j = i / vecs, v = i % vecs;
            ivec y = tile_four((const uint8_t *)four + (size_t)g * apart + 4 * (k + j), 0);
            ivec pairs = values ? ivec_pairs(y, x[j][v]) : ivec_pairs(x[j][v], y);
            part[v] = j ? ivec_plus16(part[v], pairs) : pairs;
        }
        AURA_UNROLL
        for (int v = 0; v < vecs; v++)
            sum[g][v] = ivec_dot16(sum[g][v], part[v], ivec_set1(0x00010001));
    }
}

/* sum[g][v] += products of quad k in 16-bit numbers, and plain[v] += the quad, in 16 bits: first of its even and then of its odd
 * bytes, as both at once would take too many registers. pair[g] begins `apart` words after that of the query before. */
AURA_INLINE void sums_add16(ivec sum[TILE_MOST][TILE_VECS], ivec plain[TILE_VECS], const ivec x[TILE_VECS], const uint32_t *pair,
                            size_t apart, const int k, const int rows, const int vecs, const int sign)
{
    AURA_UNROLL
    for (int odd = 0; odd < 2; odd++) {
        ivec y[TILE_VECS];
        AURA_UNROLL
        for (int v = 0; v < vecs; v++) {
            y[v] = odd ? ivec_odd(x[v], sign) : ivec_even(x[v], sign);
            plain[v] = ivec_plus16(plain[v], y[v]);
        }
        AURA_UNROLL
        for (int g = 0; g < rows; g++) {
            ivec two = tile_four(pair + (2 * (size_t)g + (size_t)odd) * apart + k, 0);
            AURA_UNROLL
            for (int v = 0; v < vecs; v++)
                sum[g][v] = ivec_dot16(sum[g][v], y[v], two);
        }
    }
}

/* sum[g][v] = products of 16 * TILE_VECS tokens from t on, offset included; rows, kind and planes are constants. */
AURA_INLINE void score_sums(ivec sum[TILE_MOST][TILE_VECS], const struct ready_queries *ready, const struct aura_tile *tile,
                            struct levels levels, uint32_t t, const int rows, const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    const int quads = key_quads(kind, planes);
    AURA_UNROLL
    for (int i = 0; i < rows * TILE_VECS; i++)
        sum[i / TILE_VECS][i % TILE_VECS] = ivec_zero();
    for (uint32_t run = 0; run < s->runs; run++) {
        struct run at = tile_run(s, run, kind);
        ivec x[4][TILE_VECS], plain[TILE_VECS] = {ivec_zero()};
        tile_prefetch(tile, t / (16 * TILE_VECS) * s->runs + run, tile_lines(TILE_VECS, kind));
        struct nibbles nibbles[TILE_VECS];
        AURA_UNROLL
        for (int v = 0; v < TILE_VECS; v++)
            nibbles[v] = tile_run_nibbles(tile, at, run, t + 16 * (size_t)v, kind);
        AURA_UNROLL
        for (int k = 0; k < 8; k++) {
            const int j = quads ? k % quads : 0;
            AURA_UNROLL
            for (int v = 0; v < TILE_VECS; v++)
                x[j][v] = tile_key_quad(tile, at, t + 16 * (size_t)v, &nibbles[v], levels, tile_key_offset(kind), k, kind);
            if (quads && j == quads - 1)
                sums_add8(sum, x, ready->plane + run * AURA_RUN, ready->apart, k - j, rows, TILE_VECS, quads, 0);
            if (!quads)
                sums_add16(sum, plain, x[0], ready->pair[0][0] + run * 8, AURA_TILE_DIM / 4, k, rows, TILE_VECS, 0);
        }
    }
    AURA_UNROLL
    for (int i = 0; i < rows * TILE_VECS; i++)
        sum[i / TILE_VECS][i % TILE_VECS] = times_unit(sum[i / TILE_VECS][i % TILE_VECS], kind);
}

/* sum[g][v] = products of tile n, channels d .. d + 16 * vecs; rows, vecs, kind and planes are constants. */
AURA_INLINE void value_sums(ivec sum[TILE_MOST][TILE_VECS], const struct ready_weights *ready, size_t n,
                            const struct aura_tile *tile, struct levels levels, uint32_t d, const int rows, const int vecs,
                            const int kind, const int planes)
{
    const struct aura_side *s = tile->side;
    const struct aura_weight *w = ready->w + n * ready->apart;
    const struct run at = tile_run(s, 0, kind);
    const int quads = value_quads(kind, planes);
    ivec x[4][TILE_VECS], plain[TILE_VECS];
    AURA_UNROLL
    for (int i = 0; i < rows * vecs; i++)
        sum[i / vecs][i % vecs] = plain[i % vecs] = ivec_zero();
    tile_prefetch(tile, d / (16 * (uint32_t)vecs), tile_lines(vecs, kind));
    struct nibbles nibbles[TILE_VECS];
    AURA_UNROLL
    for (int v = 0; v < vecs; v++)
        nibbles[v] = tile_value_nibbles(tile->words + d + 16 * (size_t)v, s->lanes, s->dim - d - 16 * (uint32_t)v, kind);
    AURA_UNROLL
    for (int k = 0; k < 8; k++) {
        const int j = quads ? k % quads : 0;
        AURA_UNROLL
        for (int v = 0; v < vecs; v++) {
            const uint32_t *words = tile->words + d + 16 * (size_t)v;
            x[j][v] = tile_quad(words + at.low, words + at.high, s->lanes, &nibbles[v], levels, k, kind);
        }
        if (quads && j == quads - 1)
            sums_add8(sum, x, w->plane[0], sizeof *w, k - j, rows, vecs, quads, 1);
        if (!quads)
            sums_add16(sum, plain, x[0], ready->pair[n][0][0], AURA_TILE / 2, k, rows, vecs, !aura_is_split(kind));
    }
    AURA_UNROLL
    for (int v = 0; v < vecs; v++)
        plain[v] = ivec_shl(ivec_dot16(ivec_zero(), plain[v], ivec_set1(0x00010001)), 15);
    AURA_UNROLL
    for (int i = 0; i < rows * vecs; i++) {
        ivec *one = &sum[i / vecs][i % vecs];
        *one = times_unit(planes == 2 ? ivec_plus(*one, plain[i % vecs]) : *one, kind);
    }
}

/* Both planes of a query times a key of 8 bits. */
AURA_INLINE int32_t reference_row(const struct aura_query *q, const int8_t *code, uint32_t dim)
{
    ivec sum = ivec_zero();
    for (uint32_t d = 0; d < dim; d += 64) {
        ivec hi = ivec_load(q->plane[0] + d), lo = ivec_load(q->plane[1] + d), x = ivec_load(code + d);
        sum = ivec_dot16(sum, ivec_even(x, 1), even_of_planes(hi, lo, 1, 2));
        sum = ivec_dot16(sum, ivec_odd(x, 1), odd_of_planes(hi, lo, 1, 2));
    }
    return ivec_total(sum);
}
