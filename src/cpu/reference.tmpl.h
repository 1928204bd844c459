/* reference, written once over the words of an instruction set: one key of 8-bit codes, once per page and query.
 *
 * Needs: reference_row of sums.tmpl.h or sums16.tmpl.h; AURA_ISA. */

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_reference_##shape##_##isa(int32_t *product, const struct aura_query *query, const int8_t *code,          \
                                        uint32_t dim, size_t n_query)                                                  \
    {                                                                                                                  \
        for (size_t g = 0; g < n_query; g++)                                                                           \
            product[g] = reference_row(query + g, code, dim);                                                          \
    }
AURA_SHAPES_reference(AURA_STAMP, reference, AURA_ISA)
#undef AURA_STAMP
