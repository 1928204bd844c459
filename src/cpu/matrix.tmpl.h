/* score and value for an instruction set that multiplies whole matrices of bytes: 16 rows of queries or weights by 16 tokens or
 * channels. A quad of a tile is a row of the right factor as it comes out of the tile: it is unpacked once for up to 32 rows.
 *
 * Sums of products are the same whole numbers as elsewhere, and so are the operations on floats and their order.
 *
 * Needs: tile.tmpl.h; mat_begin, mat_end, mat_multiply, mat_take; ivec_load, ivec_store, ivec_plus, ivec_shl, ivec_set1;
 *        vec_from_int, vec_load, vec_load_f16, vec_set1, vec_mul, vec_add, vec_fma, vec_store; AURA_ISA; AURA_FEW, the kernels that
 *        have few rows. */

enum {
    MAT_ROWS = 16,
    MAT_MOST = 32, /* rows that share what is unpacked */
    MAT_FEW = 8,   /* below that the others are as fast */
    MAT_SUMS = 256 /* of a product */
};

/* Rows in blocks of equally many, so that registers are configured once: the last may begin with rows of the one before. */
struct mat_blocks {
    size_t n, rows; /* of a block */
};
AURA_INLINE struct mat_blocks mat_blocks_of(size_t n)
{
    const size_t blocks = (n + MAT_ROWS - 1) / MAT_ROWS;
    struct mat_blocks b = {blocks, (n + blocks - 1) / blocks};
    return b;
}
AURA_INLINE size_t mat_first(struct mat_blocks b, size_t i, size_t n)
{
    return (i + 1) * b.rows <= n ? i * b.rows : n - b.rows;
}

/* The whole sum of both planes, `apart` sums apart. */
AURA_INLINE ivec mat_sum(const int32_t *sum, size_t apart, const int planes)
{
    return planes == 2 ? ivec_plus(ivec_shl(ivec_load(sum), 8), ivec_load(sum + apart)) : ivec_load(sum);
}

/* ---- score ---- */

enum { MAT_KEYS = AURA_TILE_DIM / 4 * 64 }; /* bytes of 16 tokens */

/* One tile as right factors, a quad a row: to[0] tokens 0 to 15, to[1] the others. What is missing of the last block of 64
 * channels is multiplied by zeros of the query. */
AURA_INLINE void mat_unpack_keys(uint8_t to[2][MAT_KEYS], const struct aura_tile *tile, struct levels levels, const int kind)
{
    const uint32_t runs = tile->side->runs;
    for (uint32_t run = 0; run < runs; run++) {
        struct run at = tile_run(tile->side, run, kind);
        const struct nibbles nibbles[2] = {tile_run_nibbles(tile, at, run, 0, kind), tile_run_nibbles(tile, at, run, 16, kind)};
        AURA_UNROLL
        for (int k = 0; k < 8; k++)
            AURA_UNROLL
            for (int v = 0; v < 2; v++)
                ivec_store(to[v] + (run * 8 + (uint32_t)k) * 64,
                           tile_key_quad(tile, at, 16 * (size_t)v, &nibbles[v], levels, 0, k, kind));
    }
    for (int v = 0; runs % 2 && v < 2; v++)
        memset(to[v] + runs * 512, 0, 512);
}

/* Both sums of a step: of two vectors with one plane, of both planes of a vector with two. A product takes 50 cycles, and what a
 * register has stored is not there at once: registers are stored one step after they were computed, and read another step later.
 * Two steps are 4 KiB, so that none of these loads has the lower address bits of a store that waits: it would wait, too. Without
 * this, score took 1.2 times as long (32 rows, 4 bits, D 128; Intel Xeon, gcc 12, November 2026). */
struct mat_sums {
    _Alignas(64) int32_t sum[2][2 * MAT_SUMS];
    size_t n; /* steps so far */
};

/* What all steps of a call share, and what the last two were for. */
struct mat_scores {
    float *logit;
    const struct aura_query *q;
    const uint8_t *plane; /* the first byte of queries as products take them, and from one to the next */
    size_t plane_stride;
    const struct aura_tile *tile;
    const float *factor, *bias;
    size_t apart, rows;
    struct mat_sums sums;
    struct {
        size_t tile, row, lines;
        uint32_t t;
    } step[2];
};

/* 16 logits of a row; codes that are split are not levels yet. */
AURA_INLINE void mat_logit(float *logit, ivec sum, int32_t add, vec scale, float factor, float bias, const int kind)
{
    sum = aura_is_split(kind) ? ivec_plus(ivec_plus(sum, sum), ivec_set1(add)) : sum;
    vec_store(logit, vec_add(vec_mul(vec_from_int(sum), vec_mul(scale, vec_set1(factor))), vec_set1(bias)));
}

/* The logits of a step, 32 tokens or with two planes 16; asks for lines of what will be read next. */
AURA_INLINE void mat_finish(const struct mat_scores *m, size_t turn, const int kind, const int planes)
{
    const size_t first = m->step[turn].row, at = m->step[turn].tile * m->apart + first, rows = m->rows, lines = m->step[turn].lines;
    const uint32_t t = m->step[turn].t;
    const int32_t *sum = m->sums.sum[turn];
    const struct aura_tile *tile = m->tile + m->step[turn].tile;
    const struct aura_query *q = m->q + first;
    const float *factor = m->factor + first, *bias = m->bias + at;
    float *logit = m->logit + at * AURA_TILE + t;
    const vec scale0 = vec_load_f16((const uint8_t *)(tile->scale + t), AURA_LANES);
    const vec scale1 = planes == 1 ? vec_load_f16((const uint8_t *)(tile->scale + 16), AURA_LANES) : scale0;
    for (size_t g = 0; g < rows; g++, logit += AURA_TILE) {
        const int32_t add = aura_is_split(kind) ? (int32_t)((uint32_t)q[g].sum[planes - 1] * (uint32_t)tile->side->add) : 0;
        mat_logit(logit, mat_sum(sum + g * 16, MAT_SUMS, planes), add, scale0, factor[g], bias[g], kind);
        if (planes == 1)
            mat_logit(logit + 16, mat_sum(sum + MAT_SUMS + g * 16, MAT_SUMS, planes), add, scale1, factor[g], bias[g], kind);
    }
    for (size_t line = 0; line < lines; line++)
        tile_prefetch(tile, t / 16 * lines + line, 1);
}

/* Rows from `first` on of one tile, from token t on. */
AURA_INLINE void mat_score_step(struct mat_scores *m, uint8_t keys[2][MAT_KEYS], size_t tile, size_t first, uint32_t t,
                                size_t lines, const int kind, const int planes)
{
    const size_t turn = m->sums.n % 2, a_next = planes == 2 ? AURA_TILE_DIM : 0, b_next = planes == 1 ? MAT_KEYS : 0;
    mat_multiply(turn, m->plane + first * m->plane_stride, a_next, m->plane_stride, keys[t / 16], b_next,
                 (m->tile->side->runs + 1) / 2, 1);
    if (m->sums.n > 0)
        mat_take(m->sums.sum[!turn], !turn);
    if (m->sums.n > 1)
        mat_finish(m, turn, kind, planes);
    m->step[turn].tile = tile, m->step[turn].row = first, m->step[turn].lines = lines, m->step[turn].t = t;
    m->sums.n++;
}

/* Up to MAT_MOST of `apart` queries. */
AURA_INLINE void mat_score(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                           const float *bias, size_t apart, size_t n, size_t tiles, const int kind, const int planes)
{
    const struct levels levels = tile_levels(tile->side->level, 0, kind);
    const struct mat_blocks blocks = mat_blocks_of(n);
    _Alignas(64) uint8_t keys[2][MAT_KEYS];
    _Alignas(64) int8_t turned[MAT_MOST][2][AURA_TILE_DIM];
    struct mat_scores m;
    m.logit = logit, m.q = q, m.tile = tile, m.factor = factor, m.bias = bias;
    m.apart = apart, m.rows = blocks.rows, m.sums.n = 0;
    m.plane = (const uint8_t *)q->plane[0], m.plane_stride = sizeof *q;
    for (size_t g = 0; aura_is_trellis(kind) && g < n; g++)
        tile_turn(turned[g], q + g, tile->side->dim, planes);
    if (aura_is_trellis(kind))
        m.plane = (const uint8_t *)turned[0][0], m.plane_stride = sizeof turned[0];
    mat_begin((uint32_t)blocks.rows, 64);
    for (size_t i = 0; i < tiles; i++) {
        mat_unpack_keys(keys, tile + i, levels, kind);
        for (size_t b = 0; b < blocks.n; b++)
            for (uint32_t t = 0; t < AURA_TILE; t += planes == 1 ? AURA_TILE : 16)
                mat_score_step(&m, keys, i, mat_first(blocks, b, n), t,
                               b ? 0 : tile->side->runs * (size_t)tile_lines(3 - planes, kind), kind, planes);
    }
    const size_t last = (m.sums.n - 1) % 2;
    mat_take(m.sums.sum[last], last);
    if (m.sums.n > 1)
        mat_finish(&m, !last, kind, planes);
    mat_finish(&m, last, kind, planes);
    mat_end();
}

AURA_INLINE void mat_score_rows(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                                const float *bias, size_t n, size_t tiles, const int kind, const int planes)
{
    for (size_t g = 0; g < n; g += MAT_MOST)
        mat_score(logit + g * AURA_TILE, q + g, tile, factor + g, bias + g, n, n - g < MAT_MOST ? n - g : MAT_MOST, tiles, kind,
                  planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_score_##shape##_##isa(float *logit, const struct aura_query *query, const struct aura_tile *keys,        \
                                    const float *factor, const float *bias, size_t n_query, size_t n_tiles)            \
    {                                                                                                                  \
        if (n_query < MAT_FEW)                                                                                         \
            AURA_FEW(score, shape)(logit, query, keys, factor, bias, n_query, n_tiles);                                \
        else                                                                                                           \
            mat_score_rows(logit, query, keys, factor, bias, n_query, n_tiles, AURA_KIND_OF(kind),                     \
                           AURA_PLANES_OF(kind));                                                                      \
    }
AURA_SHAPES_score(AURA_STAMP, score, AURA_ISA)
#undef AURA_STAMP

/* ---- value ---- */

/* Channels d to d + 16 * vecs of one tile as right factors, a quad of tokens a row. */
AURA_INLINE void mat_unpack_values(uint8_t to[2][8 * 64], const struct aura_tile *tile, struct levels levels, uint32_t d,
                                   const int vecs, const int kind)
{
    const struct aura_side *s = tile->side;
    const struct run at = tile_run(s, 0, kind);
    struct nibbles nibbles[2];
    AURA_UNROLL
    for (int v = 0; v < vecs; v++)
        nibbles[v] = tile_value_nibbles(tile->words + d + 16 * (size_t)v, s->lanes, s->dim - d - 16 * (uint32_t)v, kind);
    tile_prefetch(tile, d / (16 * (uint32_t)vecs), tile_lines(vecs, kind));
    AURA_UNROLL
    for (int k = 0; k < 8; k++)
        AURA_UNROLL
        for (int v = 0; v < vecs; v++) {
            const uint32_t *words = tile->words + d + 16 * (size_t)v;
            ivec x = tile_value_quad(words, at, s, &nibbles[v], levels, k, kind);
            if (!tile_has_levels(kind)) /* what many rows share may take two additions */
                x = ivec_add8(ivec_plus(x, x), 1 - (1 << kind));
            ivec_store(to[v] + k * 64, x);
        }
}

/* What all steps of a call share. */
struct mat_values {
    float *acc;
    size_t stride, apart, n, tiles;
    const struct aura_weight *w;
    struct mat_blocks blocks;
    /* The bytes of w: there, half of the rows lie in two cache lines each. */
    _Alignas(64) uint8_t weight[AURA_TILES][2][MAT_MOST][AURA_TILE];
    _Alignas(64) int32_t sum[AURA_TILES * 2][2 * MAT_SUMS]; /* of tile and plane: two vectors */
};

/* The sums of one tile, row g of a block, the first or the second vector. */
AURA_INLINE vec mat_add(vec acc, const struct mat_values *m, size_t tile, size_t g, size_t first, int vector,
                        const int planes)
{
    const int32_t *sum = m->sum[tile * (size_t)planes] + vector * MAT_SUMS + (g - first) * 16;
    return vec_fma(vec_from_int(mat_sum(sum, 2 * MAT_SUMS, planes)), vec_set1(m->w[tile * m->apart + g].factor), acc);
}

/* Channels d to d + 16 * vecs of the rows of block b that no block before has. */
AURA_INLINE void mat_accumulate(const struct mat_values *m, size_t b, uint32_t d, const int vecs, const int planes)
{
    const size_t first = mat_first(m->blocks, b, m->n), end = first + m->blocks.rows, tiles = m->tiles;
    for (size_t g = b * m->blocks.rows; g < end; g++) {
        float *acc = m->acc + g * m->stride + d;
        const vec keep = vec_set1(m->w[g].keep);
        vec x = vec_mul(vec_load(acc), keep), y = vecs > 1 ? vec_mul(vec_load(acc + 16), keep) : x;
        for (size_t i = 0; i < tiles; i++) {
            x = mat_add(x, m, i, g, first, 0, planes);
            if (vecs > 1)
                y = mat_add(y, m, i, g, first, 1, planes);
        }
        vec_store(acc, x);
        if (vecs > 1)
            vec_store(acc + 16, y);
    }
}

/* Channels d to d + 16 * vecs of all rows. With one vector, what is behind it is multiplied for nobody. */
AURA_INLINE void mat_value_part(struct mat_values *m, uint8_t (*values)[2][8 * 64], const struct aura_tile *tile,
                                struct levels levels, uint32_t d, const int vecs, const int kind, const int planes)
{
    const size_t products = m->tiles * (size_t)planes;
    for (size_t i = 0; i < m->tiles; i++)
        mat_unpack_values(values[i], tile + i, levels, d, vecs, kind);
    for (size_t b = 0; b < m->blocks.n; b++) {
        const size_t first = mat_first(m->blocks, b, m->n);
        for (size_t i = 0; i < products; i++) {
            mat_multiply(i % 2, m->weight[i / (size_t)planes][i % (size_t)planes][first], 0, AURA_TILE,
                         values[i / (size_t)planes][0], 8 * 64, 1, 0);
            if (i)
                mat_take(m->sum[i - 1], (i - 1) % 2);
        }
        mat_take(m->sum[products - 1], (products - 1) % 2);
        mat_accumulate(m, b, d, vecs, planes);
    }
}

AURA_INLINE void mat_value(float *acc, size_t stride, const struct aura_weight *w, size_t apart, const struct aura_tile *tile,
                           size_t n, size_t tiles, const int kind, const int planes)
{
    const struct levels levels = tile_levels(tile->side->level, 0, kind);
    const uint32_t dim = tile->side->dim;
    _Alignas(64) uint8_t values[AURA_TILES][2][8 * 64] = {{{0}}};
    struct mat_values m;
    uint32_t d = 0;
    m.acc = acc, m.stride = stride, m.apart = apart, m.n = n, m.tiles = tiles, m.w = w, m.blocks = mat_blocks_of(n);
    mat_begin((uint32_t)m.blocks.rows, AURA_TILE);
    for (size_t i = 0; i < tiles; i++)
        for (size_t g = 0; g < n; g++) {
            for (int p = 0; p < planes; p++)
                memcpy(m.weight[i][p][g], w[i * apart + g].plane[p], AURA_TILE);
        }
    for (; d + 32 <= dim; d += 32)
        mat_value_part(&m, values, tile, levels, d, 2, kind, planes);
    if (d < dim)
        mat_value_part(&m, values, tile, levels, d, 1, kind, planes);
    mat_end();
}

AURA_INLINE void mat_value_rows(float *acc, size_t stride, const struct aura_weight *w, const struct aura_tile *tile, size_t n,
                                size_t tiles, const int kind, const int planes)
{
    for (size_t g = 0; g < n; g += MAT_MOST)
        mat_value(acc + g * stride, stride, w + g, n, tile, n - g < MAT_MOST ? n - g : MAT_MOST, tiles, kind, planes);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_value_##shape##_##isa(float *acc, size_t stride, const struct aura_weight *weight,                       \
                                    const struct aura_tile *values, size_t n_query, size_t n_tiles)                    \
    {                                                                                                                  \
        if (n_query < MAT_FEW)                                                                                         \
            AURA_FEW(value, shape)(acc, stride, weight, values, n_query, n_tiles);                                     \
        else                                                                                                           \
            mat_value_rows(acc, stride, weight, values, n_query, n_tiles, AURA_KIND_OF(kind), AURA_PLANES_OF(kind));   \
    }
AURA_SHAPES_value(AURA_STAMP, value, AURA_ISA)
#undef AURA_STAMP
