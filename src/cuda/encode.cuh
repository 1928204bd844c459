/* Vectors to codes by half a warp each, with the operations and the order of ref.c: lane i of the half has elements i, i + 16,
 * ... and the partial sum i, and halves are added. Compiled without contraction; quotients and roots are IEEE's. */
#ifndef AURA_CUDA_ENCODE_CUH
#define AURA_CUDA_ENCODE_CUH

#include "fits.cuh"

/* ---- the numbers of a vector that a lane has ------------------------------------------------------------------------------ */

__device__ __forceinline__ float number_of_bits(uint16_t half)
{
    return __half2float(__ushort_as_half(half));
}

/* Numbers of a vector. each(look_up, use) calls use(y, k, look_up(y, k)) for each number y of the lane, which is k elements
 * after its first. Where the numbers are in registers, all look-ups come before the first use, so that they do not wait for
 * each other.
 *
 * A row of f16 in shared memory, relative to a reference or not. Codes take the place of its numbers. N of them are in
 * registers; with N 0 all are read again every time. */
template <int N>
struct row_numbers {
    static constexpr int DIM = 16 * N;
    uint16_t *row;
    float y[N];
    __device__ __forceinline__ row_numbers(uint16_t *row_, const float *reference, bool relative, uint32_t) : row(row_)
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            y[k] = number_of_bits(row[16 * k]);
        if (!relative)
            return;
#pragma unroll
        for (int k = 0; k < N; k++)
            y[k] = __fsub_rn(y[k], reference[16 * k]);
    }
    template <class L, class U>
    __device__ __forceinline__ void each(L look_up, U use) const
    {
        decltype(look_up(0.f, 0u)) found[N];
#pragma unroll
        for (int k = 0; k < N; k++)
            found[k] = look_up(y[k], 16 * k);
#pragma unroll
        for (int k = 0; k < N; k++)
            use(y[k], 16 * k, found[k]);
    }
    __device__ __forceinline__ void put(uint32_t k, uint32_t code) const
    {
        row[k] = (uint16_t)code;
    }
};

template <>
struct row_numbers<0> {
    static constexpr int DIM = 0;
    uint16_t *row;
    const float *reference;
    bool relative;
    uint32_t dim;
    __device__ __forceinline__ row_numbers(uint16_t *row_, const float *reference_, bool relative_, uint32_t dim_)
        : row(row_), reference(reference_), relative(relative_), dim(dim_)
    {
    }
    template <class L, class U>
    __device__ __forceinline__ void each(L look_up, U use) const
    {
#pragma unroll 1
        for (uint32_t k = 0; k < dim; k += 16) {
            const float y = __fsub_rn(number_of_bits(row[k]), relative ? reference[k] : 0.f); /* less 0 changes nothing */
            use(y, k, look_up(y, k));
        }
    }
    __device__ __forceinline__ void put(uint32_t k, uint32_t code) const
    {
        row[k] = (uint16_t)code;
    }
};

/* The mean that becomes a reference, in shared memory. */
struct mean_numbers {
    static constexpr int DIM = 0;
    const float *mean;
    uint32_t dim;
    template <class L, class U>
    __device__ __forceinline__ void each(L look_up, U use) const
    {
#pragma unroll 4
        for (uint32_t k = 0; k < dim; k += 16)
            use(mean[k], k, look_up(mean[k], k));
    }
};

/* ---- vectors --------------------------------------------------------------------------------------------------------- */

struct measures {
    float norm2, norm, size;
    bool tiny;
};

/* `size` becomes the unit of the encoder with fit 1: the RMS of a vector with a table, else its largest number. A quotient by a
 * power of two is a product. */
template <bool TABLE, class Numbers>
__device__ __forceinline__ struct measures measure(const struct dev_encoder *e, const Numbers &numbers)
{
    float squares = 0, largest = 0;
    numbers.each([](float y, uint32_t) { return __fmul_rn(y, y); },
                 [&](float y, uint32_t, float square) {
                     squares = __fadd_rn(squares, square);
                     largest = fmaxf(largest, fabsf(y));
                 });
    const float norm2 = half_warp_sum(squares), norm = __fsqrt_rn(norm2);
    static_assert((Numbers::DIM & (Numbers::DIM - 1)) == 0, "1 / DIM is exact");
    const float mean2 = Numbers::DIM ? __fmul_rn(norm2, 1.f / Numbers::DIM) : __fdiv_rn(norm2, (float)e->dim);
    return {norm2, norm, TABLE ? __fsqrt_rn(mean2) : half_warp_max(largest), norm <= e->tiny};
}

/* The scale of a vector with these levels; 0 where it is too small to matter. */
__device__ __forceinline__ float scale_of(const struct dev_encoder *e, const struct measures &m, const struct fitted &c)
{
    if (m.tiny || c.size2 == 0)
        return 0;
    if (e->rule == AURA_SCALE_MATCHED)
        return __fdiv_rn(m.norm, __fsqrt_rn(c.size2));
    return c.dot > 0 ? __fdiv_rn(m.norm2, c.dot) : 0;
}

/* Codes of all numbers; returns the scale. Vectors that are too small to matter have the codes of 0. */
template <class Numbers, class Levels>
__device__ __forceinline__ float put_levels(const struct dev_encoder *e, const Numbers &numbers, const Levels &levels,
                                            const struct measures &m)
{
    return scale_of(e, m, fit_levels(numbers, levels, [&](uint32_t k, uint32_t code) { numbers.put(k, code); }));
}

__device__ __forceinline__ float factor_or_0(const struct dev_encoder *e, int fit, const struct measures &m)
{
    return m.tiny ? 0 : factor_of(e, fit, m.size);
}

/* A tiny vector has the codes of 0 with all fits. Where buckets cannot tell, all fits are tried with levels that need none. */
template <class Numbers>
__device__ __forceinline__ float encode_by_table(const struct dev_encoder *e, const Numbers &numbers, uint32_t *tally)
{
    const struct measures m = measure<true>(e, numbers);
    const float mine = factor_or_0(e, min((int)lane_number() % 16, (int)e->n_fits - 1), m);
    uint32_t fits = 1;
    if (e->n_fits > 1) {
        const float one = __shfl_sync(~0u, mine, FIT_OF_1, 16);
        struct bucket_levels<Numbers::DIM / 16> buckets(e, one, m.size);
        bool sure;
        const uint32_t likely = search_fits(sure, buckets, numbers, tally, one);
        fits = m.tiny ? 1 : sure ? likely : (uint32_t)ALL_FITS;
        if (!__any_sync(~0u, !sure)) {
            take_best(buckets, fits, numbers, mine);
            return put_levels(e, numbers, buckets, m);
        }
    }
    struct window_levels windows(e);
    take_best(windows, fits, numbers, mine);
    return put_levels(e, numbers, windows, m);
}

template <class Numbers>
__device__ __forceinline__ float encode_by_formula(const struct dev_encoder *e, const Numbers &numbers)
{
    const struct measures m = measure<false>(e, numbers);
    struct formula_levels levels(e);
    levels.take(0, e->n_fits > 1 ? best_factor(e, numbers, levels, m.size, m.tiny) : factor_or_0(e, 0, m));
    return put_levels(e, numbers, levels, m);
}

/* Encodes two rows, one by each half of the warp: codes take the place of numbers. Returns the scale of this half's row. All other
 * arguments are the same for both. */
__device__ __forceinline__ float encode_row(uint16_t *row, const float *reference, bool relative, const struct dev_encoder *e,
                                            uint32_t *tally)
{
    const uint32_t lane = lane_number() % 16;
    row += lane, reference += lane;
    if (e->bits > 4)
        return encode_by_formula(e, row_numbers<0>(row, reference, relative, e->dim));
    return e->dim == 128 ? encode_by_table(e, row_numbers<8>(row, reference, relative, 128), tally)
                         : encode_by_table(e, row_numbers<0>(row, reference, relative, e->dim), tally);
}

#endif
