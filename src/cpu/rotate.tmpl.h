/* rotate and undo, written once over the words of an instruction set (see avx512.h for the shortest set).
 *
 * The naive loop is dim * dim multiplications. Butterflies make it dim * log2(inner); those of stride 1 to 8 stay
 * inside a vector, the longer ones add and subtract whole vectors. The Paley factor is a short sum: when inner is below
 * 16, one vector holds 16 / inner rows of it, so each column is repeated across the vector and its signs are a lane
 * mask. The order of additions in every coordinate is that of ref.c.
 *
 * Needs: vec, vec_load, vec_load_n, vec_store, vec_store_n, vec_set1, vec_add, vec_sub, vec_mul, vec_fma, vec_flip, vec_swap,
 *        vec_repeat; AURA_ISA. */

/* Lanes of the second half of each pair hold a - b: there v is b and its swap a. */
AURA_INLINE vec rotate_butterfly(vec v, const int stride)
{
    static const float signs[4][AURA_LANES] = {
        {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1},
        {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1},
        {1, 1, 1, 1, -1, -1, -1, -1, 1, 1, 1, 1, -1, -1, -1, -1},
        {1, 1, 1, 1, 1, 1, 1, 1, -1, -1, -1, -1, -1, -1, -1, -1},
    };
    return vec_fma(v, vec_load(signs[stride == 1 ? 0 : stride == 2 ? 1 : stride == 4 ? 2 : 3]), vec_swap(v, stride));
}

/* The butterflies that stay inside a vector. */
AURA_INLINE vec rotate_inside(vec v, uint32_t inner)
{
    if (inner > 1)
        v = rotate_butterfly(v, 1);
    if (inner > 2)
        v = rotate_butterfly(v, 2);
    if (inner > 4)
        v = rotate_butterfly(v, 4);
    if (inner > 8)
        v = rotate_butterfly(v, 8);
    return v;
}

/* The butterflies between vectors, in place. */
AURA_INLINE void rotate_across(float *x, uint32_t dim, uint32_t inner)
{
    for (uint32_t stride = AURA_LANES; stride < inner; stride *= 2)
        for (uint32_t base = 0; base < dim; base += 2 * stride)
            for (uint32_t d = base; d < base + stride; d += AURA_LANES) {
                vec a = vec_load(x + d), b = vec_load(x + d + stride);
                vec_store(x + d, vec_add(a, b));
                vec_store(x + d + stride, vec_sub(a, b));
            }
}

/* Block `block` of the result: the Paley sums, where there is such a factor, then the norm. */
AURA_INLINE vec rotate_result(const float *x, const struct aura_rotation_plan *plan, uint32_t block)
{
    const uint16_t *negative = plan->outer_negative + block * plan->outer;
    uint32_t d = block * AURA_LANES, within = plan->inner > AURA_LANES ? d % plan->inner : 0;
    vec sum;
    if (plan->outer == 1)
        return vec_mul(vec_load(x + d), vec_set1(plan->norm));
    sum = vec_set1(0);
    for (uint32_t j = 0; j < plan->outer; j++)
        sum = vec_add(sum, vec_flip(vec_repeat(x + j * plan->inner + within, plan->inner), negative[j]));
    return vec_mul(sum, vec_set1(plan->norm));
}

/* Vectors of 16 * blocks numbers, a power of two: all of one stays in registers where there are enough. */
AURA_INLINE void rotate_whole(float *y, const float *x, const struct aura_rotation_plan *plan, const int blocks, const int undo)
{
    vec v[16];
    AURA_UNROLL
    for (int i = 0; i < blocks; i++) {
        v[i] = vec_load(x + i * AURA_LANES);
        if (!undo && plan->balance)
            v[i] = vec_mul(v[i], vec_load(plan->balance + i * AURA_LANES));
        if (!undo)
            v[i] = vec_flip(v[i], plan->negative[i]);
        v[i] = rotate_inside(v[i], AURA_LANES);
    }
    AURA_UNROLL
    for (int stride = 1; stride < blocks; stride *= 2)
        AURA_UNROLL
        for (int i = 0; i < blocks; i++)
            if (!(i & stride)) {
                const vec a = v[i], b = v[i + stride];
                v[i] = vec_add(a, b);
                v[i + stride] = vec_sub(a, b);
            }
    AURA_UNROLL
    for (int i = 0; i < blocks; i++) {
        v[i] = vec_mul(v[i], vec_set1(plan->norm));
        if (undo)
            v[i] = vec_flip(v[i], plan->negative[i]);
        if (undo && plan->balance)
            v[i] = vec_mul(v[i], vec_load(plan->balance + i * AURA_LANES));
        vec_store(y + i * AURA_LANES, v[i]);
    }
}

AURA_INLINE void rotate_row(float *y, const float *x, const struct aura_rotation_plan *plan, const int undo)
{
    float work[AURA_MAX_DIM + AURA_LANES]; /* the last block may be half a vector */
    uint32_t dim = plan->dim, blocks = (dim + AURA_LANES - 1) / AURA_LANES;
    for (uint32_t block = 0; block < blocks; block++) {
        uint32_t d = block * AURA_LANES, n = dim - d < AURA_LANES ? dim - d : AURA_LANES;
        vec v = vec_load_n(x + d, n);
        if (!undo && plan->balance)
            v = vec_mul(v, vec_load_n(plan->balance + d, n));
        if (!undo)
            v = vec_flip(v, plan->negative[block]);
        vec_store(work + d, rotate_inside(v, plan->inner));
    }
    rotate_across(work, dim, plan->inner);
    for (uint32_t block = 0; block < blocks; block++) {
        uint32_t d = block * AURA_LANES, n = dim - d < AURA_LANES ? dim - d : AURA_LANES;
        vec v = rotate_result(work, plan, block);
        if (undo)
            v = vec_flip(v, plan->negative[block]);
        if (undo && plan->balance)
            v = vec_mul(v, vec_load_n(plan->balance + d, n));
        vec_store_n(y + d, v, n);
    }
}

AURA_INLINE void rotate_rows(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n, const int undo)
{
    const uint32_t blocks = plan->outer == 1 ? plan->dim / AURA_LANES : 0;
    for (size_t row = 0; row < n; row++, y += plan->dim, x += plan->dim)
        if (blocks == 8)
            rotate_whole(y, x, plan, 8, undo);
        else if (blocks == 4)
            rotate_whole(y, x, plan, 4, undo);
        else if (blocks == 16)
            rotate_whole(y, x, plan, 16, undo);
        else
            rotate_row(y, x, plan, undo);
}

#define AURA_STAMP(stage, shape, kind, isa)                                                                            \
    void aura_##stage##_##shape##_##isa(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n)     \
    {                                                                                                                  \
        rotate_rows(y, x, plan, n, ROTATE_IS_##stage);                                                                 \
    }
#define ROTATE_IS_rotate 0
#define ROTATE_IS_undo 1
AURA_SHAPES_rotate(AURA_STAMP, rotate, AURA_ISA)
AURA_SHAPES_undo(AURA_STAMP, undo, AURA_ISA)
#undef AURA_STAMP
