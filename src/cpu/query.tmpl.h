/* query, written once over the words of an instruction set.
 *
 * Needs: vec_load, vec_set1, vec_mul, vec_abs, vec_max, vec_top; ivec_from_vec, ivec_add, ivec_sar, ivec_and,
 *        ivec_plus, ivec_store8, ivec_total; AURA_ISA. */

AURA_INLINE void query_row(struct aura_query *query, const float *y, uint32_t dim)
{
    const int32_t limit = INT32_MAX / (127 * (int32_t)dim);
    const float top = (float)(limit < 32512 ? limit : 32512);
    vec most = vec_set1(0);
    for (uint32_t d = 0; d < dim; d += AURA_LANES)
        most = vec_max(most, vec_abs(vec_load(y + d)));
    float largest = vec_top(most);
    const int tiny = largest < 0x1p-100f;
    vec factor = vec_set1(tiny ? 0 : top / largest);
    ivec hi_sum = ivec_zero(), sum = ivec_zero();
    for (uint32_t d = 0; d < dim; d += AURA_LANES) {
        ivec q15 = ivec_from_vec(vec_mul(vec_load(y + d), factor)), hi = ivec_sar(ivec_add(q15, 128), 8);
        ivec_store8((uint8_t *)query->plane[0] + d, ivec_and(hi, 255));
        ivec_store8((uint8_t *)query->plane[1] + d, ivec_and(q15, 255)); /* q15 - 256 hi, as a byte */
        hi_sum = ivec_plus(hi_sum, hi);
        sum = ivec_plus(sum, q15);
    }
    for (uint32_t p = 0; p < 2; p++)
        memset(query->plane[p] + dim, 0, (dim + 63) / 64 * 64 - dim);
    query->sum[0] = ivec_total(hi_sum);
    query->sum[1] = ivec_total(sum);
    query->step = tiny ? 0 : largest / top;
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_query_##shape##_##isa(struct aura_query *query, const float *y, uint32_t dim, size_t n)                  \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row++)                                                                           \
            query_row(query + row, y + row * dim, dim);                                                                \
    }
AURA_SHAPES_query(AURA_STAMP, query, AURA_ISA)
#undef AURA_STAMP
