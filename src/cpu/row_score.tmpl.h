/* row_score for rows of any kind, written once over the words of an instruction set.
 *
 * The naive score is one row times one query, with a horizontal sum at its end. Two things make it fast: a row is
 * unpacked once for up to four query heads, and 16 sums (4 heads x 4 tokens, 2 x 8 or 1 x 16) are finished together by
 * 15 pairwise additions instead of 16 x 4.
 *
 * Needs: row.tmpl.h; vec_store, vec_set1, vec_add, vec_mul, vec_fma, vec_blend, vec_swap, vec_repeat; SCORE_TOGETHER,
 *        the tokens whose sums stay in registers; AURA_ISA. */

/* Lane i = the sum of all lanes of a[i]. Each step halves the number of vectors: of a pair, one keeps the lanes with
 * bit `stride` clear, the other those with it set. */
AURA_INLINE vec sum_pair(vec a, vec b, const int stride)
{
    const uint16_t second = stride == 1 ? 0xaaaa : stride == 2 ? 0xcccc : stride == 4 ? 0xf0f0 : 0xff00;
    return vec_add(vec_blend(a, b, second), vec_swap(vec_blend(b, a, second), stride));
}

AURA_INLINE vec sum16(vec *a)
{
    AURA_UNROLL
    for (int i = 0; i < 8; i++)
        a[i] = sum_pair(a[i], a[i + 8], 8);
    AURA_UNROLL
    for (int i = 0; i < 4; i++)
        a[i] = sum_pair(a[i], a[i + 4], 4);
    AURA_UNROLL
    for (int i = 0; i < 2; i++)
        a[i] = sum_pair(a[i], a[i + 2], 2);
    return sum_pair(a[0], a[1], 1);
}

/* sum[h * together + k] += q[h] * row t + k, coordinates d to d + n - 1 of them. */
AURA_INLINE void row_score_add(vec *sum, const float *q, const struct aura_rows *rows, const struct table *centroid, size_t t,
                               uint32_t d, uint32_t n, const int heads, const int together, const int kind)
{
    AURA_UNROLL
    for (int k = 0; k < together; k++) {
        vec x = row_vec(rows, centroid, t + (size_t)k, d, n, kind);
        AURA_UNROLL
        for (int h = 0; h < heads; h++)
            sum[h * together + k] = vec_fma(x, vec_load(q + (size_t)h * rows->query_stride + d), sum[h * together + k]);
    }
}

/* a[h * apart + k] = q[h] * row t + k, not yet summed over lanes; `heads` and `together` are constants. */
AURA_INLINE void row_score_dots(vec *a, size_t apart, const float *q, const struct aura_rows *rows,
                            const struct table *centroid, size_t t, const int heads, const int together, const int kind)
{
    vec sum[16];
    uint32_t d = 0;
    AURA_UNROLL
    for (int i = 0; i < heads * together; i++)
        sum[i] = vec_set1(0);
    for (; d + AURA_LANES <= rows->dim; d += AURA_LANES)
        row_score_add(sum, q, rows, centroid, t, d, AURA_LANES, heads, together, kind);
    if (d < rows->dim)
        row_score_add(sum, q, rows, centroid, t, d, rows->dim - d, heads, together, kind);
    AURA_UNROLL
    for (int h = 0; h < heads; h++)
        AURA_UNROLL
        for (int k = 0; k < together; k++)
            a[(size_t)h * apart + (size_t)k] = sum[h * together + k];
}

/* score[h][0] ... of as many tokens as fit into a vector, of which `count` are there: a constant, where all are. */
AURA_INLINE void row_score_some(float *score, size_t score_stride, const float *q, const struct aura_rows *rows,
                                const struct table *centroid, const float *scale, size_t t, size_t count, const int heads,
                                const int kind)
{
    const int tokens = AURA_LANES / heads, together = tokens < SCORE_TOGETHER ? tokens : SCORE_TOGETHER;
    vec a[AURA_LANES];
    float factor[AURA_LANES] = {0}, sums[AURA_LANES];
    size_t k = 0;
    for (; k + (size_t)together <= count; k += (size_t)together)
        row_score_dots(a + k, (size_t)tokens, q, rows, centroid, t + k, heads, together, kind);
    for (; k < count; k++)
        row_score_dots(a + k, (size_t)tokens, q, rows, centroid, t + k, heads, 1, kind);
    for (; k < (size_t)tokens; k++)
        AURA_UNROLL
        for (int h = 0; h < heads; h++)
            a[(size_t)h * (size_t)tokens + k] = vec_set1(0);
    memcpy(factor, scale + t, count * sizeof *scale);
    vec_store(sums, vec_mul(sum16(a), vec_repeat(factor, (uint32_t)tokens)));
    AURA_UNROLL
    for (int h = 0; h < heads; h++)
        memcpy(score + (size_t)h * score_stride + t, sums + h * tokens, count * sizeof *sums);
}

/* Scores of `heads` queries (1, 2 or 4), 16 / heads tokens at a time. The first of a call ask for the rows that come later. */
AURA_INLINE void row_score_heads(float *score, size_t score_stride, const float *q, const struct aura_rows *rows,
                                 const float *scale, size_t n, int first, const int heads, const int kind)
{
    const size_t tokens = AURA_LANES / (size_t)heads;
    struct table centroid = row_table(rows, kind);
    size_t t = 0;
    for (; t + tokens <= n; t += tokens) {
        for (size_t i = 0; first && i < tokens; i++)
            row_prefetch(rows, t + i, kind);
        row_score_some(score, score_stride, q, rows, &centroid, scale, t, tokens, heads, kind);
    }
    for (size_t i = t; first && i < n; i++)
        row_prefetch(rows, i, kind);
    if (t < n)
        row_score_some(score, score_stride, q, rows, &centroid, scale, t, n - t, heads, kind);
}

AURA_INLINE void row_score_rows(float *score, size_t score_stride, const float *q, const struct aura_rows *rows,
                            const float *scale, size_t n_query, size_t n, const int kind)
{
    size_t g = 0, stride = rows->query_stride;
    for (; g + 4 <= n_query; g += 4)
        row_score_heads(score + g * score_stride, score_stride, q + g * stride, rows, scale, n, !g, 4, kind);
    for (; g + 2 <= n_query; g += 2)
        row_score_heads(score + g * score_stride, score_stride, q + g * stride, rows, scale, n, !g, 2, kind);
    if (g < n_query)
        row_score_heads(score + g * score_stride, score_stride, q + g * stride, rows, scale, n, !g, 1, kind);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_row_score_##shape##_##isa(float *score, size_t score_stride, const float *q, const struct aura_rows *rows,   \
                                    const float *scale, size_t n_query, size_t n)                                      \
    {                                                                                                                  \
        row_score_rows(score, score_stride, q, rows, scale, n_query, n, kind);                                             \
    }
AURA_SHAPES_row_score(AURA_STAMP, row_score, AURA_ISA)
#undef AURA_STAMP
