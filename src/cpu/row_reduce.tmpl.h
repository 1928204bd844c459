/* row_reduce, written once over the words of an instruction set.
 *
 * Needs: sum_pair of row_score.tmpl.h; vec_load, vec_store, vec_set1, vec_fma; AURA_ISA. */

/* Four float4 groups at a time: lanes are 4 workgroups x 4 coordinates; two pairwise steps add the workgroups up. */
AURA_INLINE void row_reduce_one(float *out, const float *weight, const float *partial, uint32_t dim, uint32_t nwg)
{
    float spread[4 * 32 + AURA_LANES]; /* each weight four times */
    for (uint32_t w = 0; w < nwg; w++)
        for (int k = 0; k < 4; k++)
            spread[4 * w + k] = weight[w];
    for (uint32_t i = 0; i < dim / 4; i += 4) {
        const float *group = partial + (size_t)i * nwg * 4;
        vec a[4];
        for (int g = 0; g < 4; g++) {
            uint32_t w = 0;
            a[g] = vec_set1(0);
            for (; w + 4 <= nwg; w += 4)
                a[g] = vec_fma(vec_load(group + 4 * w), vec_load(spread + 4 * w), a[g]);
            for (; w < nwg; w++) {
                float one[AURA_LANES] = {0};
                memcpy(one, group + 4 * w, 4 * sizeof *one);
                a[g] = vec_fma(vec_load(one), vec_set1(weight[w]), a[g]);
            }
            group += 4 * nwg;
        }
        vec_store(out + 4 * i, sum_pair(sum_pair(a[0], a[2], 8), sum_pair(a[1], a[3], 8), 4));
    }
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_row_reduce_##shape##_##isa(float *out, const float *weight, const float *partial, uint32_t dim,              \
                                     uint32_t nwg)                                                                     \
    {                                                                                                                  \
        row_reduce_one(out, weight, partial, dim, nwg);                                                                    \
    }
AURA_SHAPES_row_reduce(AURA_STAMP, row_reduce, AURA_ISA)
#undef AURA_STAMP
