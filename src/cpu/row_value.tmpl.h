/* row_value for rows of any kind, written once over the words of an instruction set.
 *
 * The naive loop loads and stores the accumulator for every token; here a few vectors of it per head stay in registers
 * while all tokens pass.
 *
 * Needs: row.tmpl.h; vec_store_n, vec_set1, vec_fma; VALUE_VECS, the vectors of a head that stay in registers; AURA_ISA. */

/* acc[h][d .. d + 16 * vecs) += all tokens; `heads` and `vecs` are constants, `lanes` count in the last vector. The first
 * heads of a call ask for the rows that come later. */
AURA_INLINE void row_value_part(float *acc, const float *weight, size_t weight_stride, const struct aura_rows *rows,
                            const struct table *centroid, uint32_t d, uint32_t lanes, size_t n, int first,
                            const int heads, const int vecs, const int kind)
{
    size_t stride = rows->query_stride;
    vec sum[4][4];
    AURA_UNROLL
    for (int h = 0; h < heads; h++)
        AURA_UNROLL
        for (int v = 0; v < vecs; v++)
            sum[h][v] = vec_load_n(acc + (size_t)h * stride + d + 16 * v, lanes);
    for (size_t t = 0; t < n; t++) {
        vec x[4];
        if (first && d == 0)
            row_prefetch(rows, t, kind);
        AURA_UNROLL
        for (int v = 0; v < vecs; v++)
            x[v] = row_vec(rows, centroid, t, d + 16 * (uint32_t)v, lanes, kind);
        AURA_UNROLL
        for (int h = 0; h < heads; h++) {
            vec w = vec_set1(weight[(size_t)h * weight_stride + t]);
            AURA_UNROLL
            for (int v = 0; v < vecs; v++)
                sum[h][v] = vec_fma(w, x[v], sum[h][v]);
        }
    }
    AURA_UNROLL
    for (int h = 0; h < heads; h++)
        AURA_UNROLL
        for (int v = 0; v < vecs; v++)
            vec_store_n(acc + (size_t)h * stride + d + 16 * v, sum[h][v], lanes);
}

AURA_INLINE void row_value_heads(float *acc, const float *weight, size_t weight_stride, const struct aura_rows *rows,
                             size_t n, int first, const int heads, const int kind)
{
    struct table centroid = row_table(rows, kind);
    uint32_t d = 0, dim = rows->dim;
    for (; d + 16 * VALUE_VECS <= dim; d += 16 * VALUE_VECS)
        row_value_part(acc, weight, weight_stride, rows, &centroid, d, AURA_LANES, n, first, heads, VALUE_VECS, kind);
    for (; d + AURA_LANES <= dim; d += AURA_LANES)
        row_value_part(acc, weight, weight_stride, rows, &centroid, d, AURA_LANES, n, first, heads, 1, kind);
    if (d < dim)
        row_value_part(acc, weight, weight_stride, rows, &centroid, d, dim - d, n, first, heads, 1, kind);
}

AURA_INLINE void row_value_rows(float *acc, const float *weight, size_t weight_stride, const struct aura_rows *rows,
                            size_t n_query, size_t n, const int kind)
{
    size_t g = 0, stride = rows->query_stride;
    for (; g + 4 <= n_query; g += 4)
        row_value_heads(acc + g * stride, weight + g * weight_stride, weight_stride, rows, n, !g, 4, kind);
    for (; g + 2 <= n_query; g += 2)
        row_value_heads(acc + g * stride, weight + g * weight_stride, weight_stride, rows, n, !g, 2, kind);
    if (g < n_query)
        row_value_heads(acc + g * stride, weight + g * weight_stride, weight_stride, rows, n, !g, 1, kind);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_row_value_##shape##_##isa(float *acc, const float *weight, size_t weight_stride,                             \
                                    const struct aura_rows *rows, size_t n_query, size_t n)                            \
    {                                                                                                                  \
        row_value_rows(acc, weight, weight_stride, rows, n_query, n, kind);                                                \
    }
AURA_SHAPES_row_value(AURA_STAMP, row_value, AURA_ISA)
#undef AURA_STAMP
