/* score and value for an instruction set that multiplies whole matrices of bytes: 16 rows of queries or weights by 16 tokens or
 * channels. A quad of a tile is a row of the right factor as it comes out of the tile: it is unpacked once for up to 32 rows.
 *
 * Sums of products are the same whole numbers as elsewhere, and so are the operations on floats and their order.
 *
 * Needs: tile.tmpl.h; mat_begin, mat_end, mat_products; ivec_load, ivec_store, ivec_plus, ivec_shl, ivec_set1;
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

/* The whole sum of both planes, which are `apart` sums apart; with what codes that are split need. */
AURA_INLINE ivec mat_sum(const int32_t *sum, size_t apart, int32_t add, const int kind, const int planes)
{
    ivec whole = ivec_load(sum);
    if (planes == 2)
        whole = ivec_plus(ivec_shl(whole, 8), ivec_load(sum + apart));
    return aura_is_split(kind) ? ivec_plus(ivec_plus(whole, whole), ivec_set1(add)) : whole;
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

/* Logits of one tile, some rows, from their sums; asks for `lines` lines of what will be read next. */
AURA_INLINE void mat_logits(float *logit, const int32_t *sum, const struct aura_query *q, const struct aura_tile *tile,
                            const float *factor, const float *bias, size_t rows, size_t lines, const int kind, const int planes)
{
    const vec scale0 = vec_load_f16((const uint8_t *)tile->scale, AURA_LANES);
    const vec scale1 = vec_load_f16((const uint8_t *)(tile->scale + 16), AURA_LANES);
    for (size_t g = 0; g < rows; g++) {
        const int32_t add = (int32_t)((uint32_t)q[g].sum[planes - 1] * (uint32_t)tile->side->add);
        vec x = vec_from_int(mat_sum(sum + g * 16, 4 * MAT_SUMS, add, kind, planes));
        vec y = vec_from_int(mat_sum(sum + MAT_SUMS + g * 16, 4 * MAT_SUMS, add, kind, planes));
        x = vec_add(vec_mul(x, vec_mul(scale0, vec_set1(factor[g]))), vec_set1(bias[g]));
        y = vec_add(vec_mul(y, vec_mul(scale1, vec_set1(factor[g]))), vec_set1(bias[g]));
        vec_store(logit + g * AURA_TILE, x);
        vec_store(logit + g * AURA_TILE + 16, y);
        for (size_t line = g; line < lines; line += rows)
            tile_prefetch(tile, line, 1);
    }
}

/* What the sums of a block of rows and of one or two tiles are for. */
struct mat_step {
    size_t tile, tiles, row, lines;
};

/* The logits of a step. */
AURA_INLINE void mat_finish(float *logit, int32_t *sum, struct mat_step s, const struct aura_query *q, const struct aura_tile *tile,
                            const float *factor, const float *bias, size_t apart, size_t rows, const int kind, const int planes)
{
    for (size_t i = 0; i < s.tiles; i++) {
        const size_t at = (s.tile + i) * apart + s.row;
        mat_logits(logit + at * AURA_TILE, sum + i * 2 * MAT_SUMS, q + s.row, tile + s.tile + i, factor + s.row, bias + at, rows,
                   s.lines, kind, planes);
    }
}

/* Up to MAT_MOST of `apart` queries. Sums become logits one step late, while the next are computed: a product takes 50 cycles, and
 * what a tile register has stored is not there for some time. */
AURA_INLINE void mat_score(float *logit, const struct aura_query *q, const struct aura_tile *tile, const float *factor,
                           const float *bias, size_t apart, size_t n, size_t tiles, const int kind, const int planes)
{
    const struct levels levels = tile_levels(tile->side->level, 0, kind);
    const struct mat_blocks blocks = mat_blocks_of(n);
    const uint32_t steps = (tile->side->runs + 1) / 2;
    _Alignas(64) uint8_t keys[4][MAT_KEYS]; /* of two tiles */
    _Alignas(64) int32_t sum[2][2 * 4 * MAT_SUMS];
    _Alignas(64) int8_t turned[MAT_MOST][2][AURA_TILE_DIM];
    const int8_t *plane = q->plane[0];
    size_t stride = sizeof *q; /* of queries */
    for (size_t g = 0; aura_is_trellis(kind) && g < n; g++)
        tile_turn(turned[g], q + g, tile->side->dim, planes);
    if (aura_is_trellis(kind))
        plane = turned[0][0], stride = sizeof turned[0];
    struct mat_step now = {0, 0, 0, 0}, before = now;
    int turn = 0;
    mat_begin((uint32_t)blocks.rows, 64);
    for (; now.tile < tiles; now.tile += now.tiles) {
        now.tiles = tiles - now.tile < 2 ? 1 : 2;
        for (size_t k = 0; k < now.tiles; k++)
            mat_unpack_keys(keys + 2 * k, tile + now.tile + k, levels, kind);
        for (size_t b = 0; b < blocks.n; b++) {
            now.row = mat_first(blocks, b, n);
            now.lines = b ? 0 : tile->side->runs * (size_t)tile_lines(2, kind);
            for (int p = 0; p < planes; p++)
                if (now.tiles == 2)
                    mat_products(sum[turn] + p * 4 * MAT_SUMS, plane + now.row * stride + p * AURA_TILE_DIM, stride, keys[0],
                                 MAT_KEYS, steps, 4, 1);
                else
                    mat_products(sum[turn] + p * 4 * MAT_SUMS, plane + now.row * stride + p * AURA_TILE_DIM, stride, keys[0],
                                 MAT_KEYS, steps, 2, 1);
            turn = !turn;
            mat_finish(logit, sum[turn], before, q, tile, factor, bias, apart, blocks.rows, kind, planes);
            before = now;
        }
    }
    mat_finish(logit, sum[!turn], before, q, tile, factor, bias, apart, blocks.rows, kind, planes);
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
    AURA_UNROLL
    for (int k = 0; k < 8; k++)
        AURA_UNROLL
        for (int v = 0; v < vecs; v++) {
            const uint32_t *words = tile->words + d + 16 * (size_t)v;
            ivec_store(to[v] + k * 64, tile_quad(words + at.low, words + at.high, s->lanes, &nibbles[v], levels, k, kind));
        }
}

/* What all steps of a call share. */
struct mat_values {
    float *acc;
    size_t stride, apart, n, tiles;
    const struct aura_weight *w;
    const struct aura_tile *tile;
    struct mat_blocks blocks;
    int32_t shift[AURA_TILES * MAT_MOST];
};

/* acc of row g, 16 * vecs channels, from the sums of all tiles. */
AURA_INLINE void mat_add(float *acc, const int32_t *sum, const struct mat_values *m, size_t g, const int vecs, const int kind,
                         const int planes)
{
    const size_t lo = AURA_TILES * 2 * MAT_SUMS;
    const vec keep = vec_set1(m->w[g].keep);
    vec a = vec_mul(vec_load(acc), keep), b = vecs > 1 ? vec_mul(vec_load(acc + 16), keep) : a;
    for (size_t i = 0; i < m->tiles; i++) {
        const vec factor = vec_set1(m->w[i * m->apart + g].factor);
        const int32_t add = aura_is_split(kind) ? m->shift[i * MAT_MOST + g] : 0;
        a = vec_fma(vec_from_int(mat_sum(sum + i * 2 * MAT_SUMS, lo, add, kind, planes)), factor, a);
        if (vecs > 1)
            b = vec_fma(vec_from_int(mat_sum(sum + (i * 2 + 1) * MAT_SUMS, lo, add, kind, planes)), factor, b);
    }
    vec_store(acc, a);
    if (vecs > 1)
        vec_store(acc + 16, b);
}

/* The sums of block b, channels from d on, into their accumulators: of the rows that no block before has. Asks for what the next
 * tiles have there. */
AURA_INLINE void mat_add_rows(const struct mat_values *m, const int32_t *sum, size_t b, uint32_t d, const int vecs, const int kind,
                              const int planes)
{
    const size_t first = mat_first(m->blocks, b, m->n), end = first + m->blocks.rows;
    const size_t lines = b ? 0 : (size_t)tile_lines(vecs, kind);
    for (size_t g = b * m->blocks.rows; g < end; g++) {
        mat_add(m->acc + g * m->stride + d, sum + (g - first) * 16, m, g, vecs, kind, planes);
        for (size_t line = g; line < lines; line += m->blocks.rows)
            for (size_t i = 0; i < m->tiles; i++)
                tile_prefetch(m->tile + i, d / (16 * (uint32_t)vecs) * lines + line, 1);
    }
}

/* The sums that wait to be added: one step late, as in score. NULL: none do. */
struct mat_late {
    const int32_t *sum;
    size_t block;
    uint32_t d;
};

/* Channels d to d + 16 * vecs of all rows. */
AURA_INLINE void mat_value_part(const struct mat_values *m, struct mat_late *late, int32_t (*sum)[4 * AURA_TILES * MAT_SUMS],
                                struct levels levels, uint32_t d, const int vecs, const int kind, const int planes)
{
    const size_t lo = AURA_TILES * 2 * MAT_SUMS;
    _Alignas(64) uint8_t values[AURA_TILES][2][8 * 64];
    for (size_t i = 0; i < m->tiles; i++)
        mat_unpack_values(values[i], m->tile + i, levels, d, vecs, kind);
    for (size_t b = 0; b < m->blocks.n; b++) {
        const size_t first = mat_first(m->blocks, b, m->n);
        int32_t *to = sum[late->sum == sum[0]];
        for (size_t i = 0; i < m->tiles; i++)
            for (int p = 0; p < planes; p++)
                mat_products(to + (size_t)p * lo + i * 2 * MAT_SUMS, m->w[i * m->apart + first].plane[p], sizeof *m->w,
                             values[i][0], sizeof values[i][0], 1, vecs, 0);
        if (late->sum)
            mat_add_rows(m, late->sum, late->block, late->d, vecs, kind, planes);
        late->sum = to, late->block = b, late->d = d;
    }
}

AURA_INLINE void mat_value(float *acc, size_t stride, const struct aura_weight *w, size_t apart, const struct aura_tile *tile,
                           size_t n, size_t tiles, const int kind, const int planes)
{
    const struct levels levels = tile_levels(tile->side->level, 0, kind);
    const uint32_t dim = tile->side->dim;
    struct mat_values m = {.acc = acc, .stride = stride, .apart = apart, .n = n, .tiles = tiles, .w = w, .tile = tile};
    struct mat_late late = {NULL, 0, 0};
    _Alignas(64) int32_t sum[2][4 * AURA_TILES * MAT_SUMS];
    uint32_t d = 0;
    m.blocks = mat_blocks_of(n);
    for (size_t i = 0; aura_is_split(kind) && i < tiles * MAT_MOST; i++)
        m.shift[i] = i % MAT_MOST < n ? tile->side->add * tile_weight_sum(&w[i / MAT_MOST * apart + i % MAT_MOST], planes) : 0;
    mat_begin((uint32_t)m.blocks.rows, AURA_TILE);
    for (; d + 32 <= dim; d += 32)
        mat_value_part(&m, &late, sum, levels, d, 2, kind, planes);
    mat_add_rows(&m, late.sum, late.block, late.d, 2, kind, planes);
    late.sum = NULL;
    if (d < dim) {
        mat_value_part(&m, &late, sum, levels, d, 1, kind, planes);
        mat_add_rows(&m, late.sum, late.block, late.d, 1, kind, planes);
    }
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
