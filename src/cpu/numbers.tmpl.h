/* widen and narrow, written once over the words of an instruction set: numbers of 16 bits to floats and back.
 *
 * Needs: vec_load, vec_store, vec_load_f16, vec_load_bf16, vec_store_f16; ivec_of_vec, ivec_plus, ivec_add, ivec_and, ivec_shr,
 *        ivec_store16; AURA_ISA. */

AURA_INLINE void widen_numbers(float *x, const void *from, size_t n, const aura_dtype dtype)
{
    const uint8_t *p = from;
    const size_t whole = n / AURA_LANES * AURA_LANES;
    for (size_t i = 0; i < whole; i += AURA_LANES)
        vec_store(x + i, dtype == AURA_F16 ? vec_load_f16(p + 2 * i, AURA_LANES) : vec_load_bf16(p + 2 * i, AURA_LANES));
    for (size_t i = whole; i < n; i++)
        x[i] = aura_load(from, dtype, i);
}

AURA_INLINE void narrow_numbers(void *to, const float *x, size_t n, const aura_dtype dtype)
{
    uint8_t *p = to;
    const size_t whole = n / AURA_LANES * AURA_LANES;
    for (size_t i = 0; i < whole; i += AURA_LANES) {
        const vec v = vec_load(x + i);
        const ivec bits = ivec_of_vec(v), odd = ivec_and(ivec_shr(bits, 16), 1);
        if (dtype == AURA_F16)
            vec_store_f16(p + 2 * i, v);
        else
            ivec_store16(p + 2 * i, ivec_shr(ivec_plus(bits, ivec_add(odd, 0x7fff)), 16));
    }
    for (size_t i = whole; i < n; i++)
        aura_store(to, dtype, i, x[i]);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                        \
    void aura_widen_##shape##_##isa(float *x, const void *from, aura_dtype dtype, size_t n)        \
    {                                                                                              \
        if (dtype == AURA_F16)                                                                     \
            widen_numbers(x, from, n, AURA_F16);                                                   \
        else if (dtype == AURA_BF16)                                                               \
            widen_numbers(x, from, n, AURA_BF16);                                                  \
        else                                                                                       \
            memcpy(x, from, n * sizeof *x);                                                        \
    }                                                                                              \
    void aura_narrow_##shape##_##isa(void *to, const float *x, aura_dtype dtype, size_t n)         \
    {                                                                                              \
        if (dtype == AURA_F16)                                                                     \
            narrow_numbers(to, x, n, AURA_F16);                                                    \
        else if (dtype == AURA_BF16)                                                               \
            narrow_numbers(to, x, n, AURA_BF16);                                                   \
        else                                                                                       \
            memcpy(to, x, n * sizeof *x);                                                          \
    }
AURA_SHAPES_widen(AURA_STAMP, widen, AURA_ISA)
#undef AURA_STAMP
