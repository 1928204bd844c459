/* reference, written once over the words of an instruction set: one key of 8-bit codes, once per page and query.
 *
 * Needs: ivec_load, ivec_zero, ivec_add8, ivec_dot_key, ivec_plus, ivec_shl, ivec_total; KEYS_UNSIGNED; AURA_ISA. */

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

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_reference_##shape##_##isa(int32_t *product, const struct aura_query *query, const int8_t *code,          \
                                        uint32_t dim, size_t n_query)                                                  \
    {                                                                                                                  \
        for (size_t g = 0; g < n_query; g++)                                                                           \
            product[g] = reference_row(query + g, code, dim);                                                          \
    }
AURA_SHAPES_reference(AURA_STAMP, reference, AURA_ISA)
#undef AURA_STAMP
