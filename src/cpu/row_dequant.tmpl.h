/* row_dequant, written once over the words of an instruction set.
 *
 * Needs: row_codes.tmpl.h; vec_store_n, vec_mul, vec_set1; AURA_ISA. */

AURA_INLINE void row_dequant_one(float *x, const uint8_t *packed, float scale, const struct aura_codec_plan *plan,
                             const int bits)
{
    struct table centroid = table_of(plan->centroid, bits);
    for (uint32_t d = 0; d < plan->dim; d += AURA_LANES) {
        uint32_t n = plan->dim - d < AURA_LANES ? plan->dim - d : AURA_LANES;
        ivec index = n == AURA_LANES ? codes_unpack16(packed + d * bits / 8, bits)
                                     : codes_unpack(packed + d * bits / 8, n, bits);
        vec_store_n(x + d, vec_mul(table_lookup(&centroid, index, bits), vec_set1(scale)), n);
    }
}

#define AURA_STAMP(stage, shape, bits, isa)                                                                            \
    void aura_row_dequant_##shape##_##isa(float *x, const uint8_t *packed, const float *scale,                             \
                                      const struct aura_codec_plan *plan, size_t n)                                    \
    {                                                                                                                  \
        for (size_t row = 0; row < n; row++)                                                                           \
            row_dequant_one(x + row * plan->dim, packed + row * plan->row_bytes, scale[row], plan, bits);                  \
    }
AURA_SHAPES_row_dequant(AURA_STAMP, row_dequant, AURA_ISA)
#undef AURA_STAMP
