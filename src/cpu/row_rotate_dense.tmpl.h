/* row_rotate_dense, written once over the words of an instruction set: coordinate x[j] times column j is added for all
 * outputs at once, so each output is a sum in order of j. Multiply, then add: these are exact bits.
 *
 * Needs: vec_load_n, vec_store_n, vec_set1, vec_add, vec_mul; AURA_ISA. */

AURA_INLINE void row_rotate_dense_one(float *y, const float *x, const float *columns, uint32_t dim)
{
    for (uint32_t i = 0; i < dim; i += 4 * AURA_LANES) {
        vec sum[4] = {vec_set1(0), vec_set1(0), vec_set1(0), vec_set1(0)};
        uint32_t vecs = (dim - i + AURA_LANES - 1) / AURA_LANES < 4 ? (dim - i + AURA_LANES - 1) / AURA_LANES : 4;
        uint32_t last = dim - i - (vecs - 1) * AURA_LANES < AURA_LANES ? dim - i - (vecs - 1) * AURA_LANES : AURA_LANES;
        for (uint32_t j = 0; j < dim; j++) {
            const float *column = columns + (size_t)j * dim + i;
            vec factor = vec_set1(x[j]);
            for (uint32_t v = 0; v < vecs; v++) {
                vec c = vec_load_n(column + v * AURA_LANES, v + 1 < vecs ? AURA_LANES : last);
                sum[v] = vec_add(sum[v], vec_mul(factor, c));
            }
        }
        for (uint32_t v = 0; v < vecs; v++)
            vec_store_n(y + i + v * AURA_LANES, sum[v], v + 1 < vecs ? AURA_LANES : last);
    }
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_row_rotate_dense_##shape##_##isa(float *y, const float *x, const float *columns, uint32_t dim, size_t n)     \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row++)                                                                           \
            row_rotate_dense_one(y + row * dim, x + row * dim, columns, dim);                                              \
    }
AURA_SHAPES_row_rotate_dense(AURA_STAMP, row_rotate_dense, AURA_ISA)
#undef AURA_STAMP
