/* Vectors to codes by half a warp each, with the operations and the order of ref.c: lane i of the half has elements i, i + 16,
 * ... and the partial sum i, and halves are added. Compiled without contraction; quotients and roots are IEEE's.
 *
 * Nearly all of the time of a closing tile goes to the nine fits that are tried for each vector, so these share what they can: a
 * number is looked up twice for all of them, sums over lanes are halved until a lane has those of one fit, and it is this lane
 * that divides. */
#ifndef AURA_CUDA_ENCODE_CUH
#define AURA_CUDA_ENCODE_CUH

#include "device.cuh"

/* Fits [0, NEAR) are so near each other that a number meets at most one threshold on its way from the first to the last, and so are
 * fits [NEAR, FITS): factors of 1.25 and 1.15. Thresholds of 4 bits are 1.28 apart or more, which leaves room for half a bin. */
enum { ENCODE_FITS = 9, ENCODE_NEAR = 5 };

/* <y, c> and |c|^2 of all fits. */
struct fit_sums {
    float dot[ENCODE_FITS], size2[ENCODE_FITS];
};

/* The sum over a vector of what the lanes have summed up. */
__device__ __forceinline__ float half_warp_sum(float x)
{
#pragma unroll
    for (int far = 8; far; far /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

__device__ __forceinline__ float half_warp_max(float x)
{
#pragma unroll
    for (int far = 8; far; far /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

/* The numbers of a vector that a lane has: N of them in registers; with N 0 as many as there are, in shared memory. */
template <int N>
struct lane_numbers {
    float y[N];
    __device__ __forceinline__ lane_numbers(const float *from, uint32_t)
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            y[k] = from[16 * k];
    }
    template <class F>
    __device__ __forceinline__ void each(F f) const
    {
#pragma unroll
        for (int k = 0; k < N; k++)
            f(y[k], 16 * k);
    }
};

template <>
struct lane_numbers<0> {
    const float *from;
    uint32_t dim;
    __device__ __forceinline__ lane_numbers(const float *from_, uint32_t dim_) : from(from_), dim(dim_) {}
    template <class F>
    __device__ __forceinline__ void each(F f) const
    {
#pragma unroll 1
        for (uint32_t k = 0; k < dim; k += 16)
            f(from[k], k);
    }
};

/* ---- levels ---------------------------------------------------------------------------------------------------------- */

/* Thresholds that are surely below |y| * factor / bins, a magnitude: the number of its bin by rounding in the last bits of a float. */
__device__ __forceinline__ uint32_t surely_below(const struct dev_encoder *e, float y, float factor)
{
    const uint32_t bin = __float_as_uint(fmaf(fabsf(y), factor, 0x1p23f)) - __float_as_uint(0x1p23f);
    return e->below[min(bin, (uint32_t)sizeof e->below - 1)];
}

/* What finds the level next to a number, and its code. */
template <bool TABLE>
struct level_finder;

/* Up to 4 bits. A v of 0 belongs to the numbers that are not above 0, as there is a threshold there. */
template <>
struct level_finder<true> {
    const struct dev_encoder *e;
    float bins;
    __device__ __forceinline__ level_finder(const struct dev_encoder *e_) : e(e_), bins(e_->bins) {}
    __device__ __forceinline__ const struct dev_window &window(float v) const
    {
        return e->window[!(v > 0)][surely_below(e, v, bins)];
    }
    __device__ __forceinline__ float level(float v) const
    {
        const struct dev_window &w = window(v);
        return fabsf(v) > w.above ? w.high : w.low;
    }
    __device__ __forceinline__ uint8_t code(float v) const
    {
        const struct dev_window &w = window(v);
        const uint32_t code = w.code;
        return (uint8_t)(fabsf(v) > w.above ? code >> 8 : code);
    }
};

/* From 5 bits on: levels are equally spaced, and all is computed to the bit as the tables have it. */
template <>
struct level_finder<false> {
    float bins, shift, last, spacing, half, first_threshold, step;
    uint32_t first_code;
    __device__ __forceinline__ level_finder(const struct dev_encoder *e)
        : bins(e->bins), shift(-e->first / e->spacing - 0.5f), last(-2 * e->first / e->spacing - 1), spacing(e->spacing),
          half(0.5f * e->spacing), first_threshold(e->first + half), step(e->step), first_code(aura_code_of_index(0, e->bits))
    {
    }
    /* The number of a threshold next to v, one of those there are; v is above it or not, and between its neighbours. */
    __device__ __forceinline__ float guess(float v) const
    {
        const float whole = __fsub_rn(__fadd_rn(fmaf(v, bins, shift), 0x1.8p23f), 0x1.8p23f);
        return fminf(fmaxf(whole, 0.f), last);
    }
    __device__ __forceinline__ float level(float v) const
    {
        const float threshold = fmaf(spacing, guess(v), first_threshold);
        return __fmul_rn(step, __fadd_rn(threshold, v > __fmul_rn(step, threshold) ? half : -half));
    }
    __device__ __forceinline__ uint8_t code(float v) const
    {
        const float at = guess(v);
        return (uint8_t)(first_code + (uint32_t)(int)at + (v > __fmul_rn(step, fmaf(spacing, at, first_threshold))));
    }
};

/* ---- fits ------------------------------------------------------------------------------------------------------------ */

/* One number with fits [FROM, TO), between whose first and last it meets one threshold at most. */
template <int FROM, int TO>
__device__ __forceinline__ void add_near(struct fit_sums &s, const struct dev_encoder *e, float y, const float (&factor)[ENCODE_FITS],
                                         float factor_of_bins)
{
    const struct dev_window w = e->window[!(y > 0)][surely_below(e, y, factor_of_bins)];
    const float low = __fmul_rn(y, w.low), high = __fmul_rn(y, w.high);
    const float low2 = __fmul_rn(w.low, w.low), high2 = __fmul_rn(w.high, w.high);
#pragma unroll
    for (int f = FROM; f < TO; f++)
        add_either(s.dot[f], s.size2[f], __fmul_rn(fabsf(y), factor[f]), w.above, high, high2, low, low2);
}

/* A lane's part of the sums of all fits. */
template <int N>
__device__ __forceinline__ void try_fits(struct fit_sums &s, const struct dev_encoder *e, const struct lane_numbers<N> &numbers,
                                         const level_finder<true> &levels, const float (&factor)[ENCODE_FITS])
{
    const float near = __fmul_rn(factor[0], levels.bins), far = __fmul_rn(factor[ENCODE_NEAR], levels.bins);
    numbers.each([&](float y, uint32_t) {
        add_near<0, ENCODE_NEAR>(s, e, y, factor, near);
        add_near<ENCODE_NEAR, ENCODE_FITS>(s, e, y, factor, far);
    });
}

template <int N>
__device__ __forceinline__ void try_fits(struct fit_sums &s, const struct dev_encoder *, const struct lane_numbers<N> &numbers,
                                         const level_finder<false> &levels, const float (&factor)[ENCODE_FITS])
{
    numbers.each([&](float y, uint32_t) {
#pragma unroll
        for (int f = 0; f < ENCODE_FITS; f++) {
            const float c = levels.level(__fmul_rn(y, factor[f]));
            s.dot[f] = __fadd_rn(s.dot[f], __fmul_rn(y, c));
            s.size2[f] = __fadd_rn(s.size2[f], __fmul_rn(c, c));
        }
    });
}

/* Of HAVE sums, lanes below keep the first half and lanes above the second, with what the lane `far` away has of them: the same
 * additions as when every lane does them all. Where there is no sum it is 0. */
template <int HAVE>
__device__ __forceinline__ void halve(float (&x)[ENCODE_FITS], int far, bool above)
{
    constexpr int KEEP = (HAVE + 1) / 2;
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const float first = x[i], second = i + KEEP < HAVE ? x[i + KEEP] : 0;
        x[i] = __fadd_rn(above ? second : first, __shfl_xor_sync(~0u, above ? first : second, far));
    }
}

/* What is left then: the sum of fit fit_of_lane(lane), or 0. */
__device__ __forceinline__ float sum_of_lane(float (&x)[ENCODE_FITS], int lane)
{
    halve<9>(x, 8, lane & 8);
    halve<5>(x, 4, lane & 4);
    halve<3>(x, 2, lane & 2);
    halve<2>(x, 1, lane & 1);
    return x[0];
}

__device__ __forceinline__ int fit_of_lane(int lane)
{
    return min((lane & 8 ? 5 : 0) + (lane & 4 ? 3 : 0) + (lane & 2 ? 2 : 0) + (lane & 1), ENCODE_FITS - 1);
}

/* The first lane that ends with a fit. */
__device__ __forceinline__ constexpr int lane_of_fit(int fit)
{
    return fit < 3 ? fit : fit < 5 ? fit + 1 : fit < 8 ? fit + 3 : 12;
}

/* The lane of the first fit with the largest cosine; 0 where none has one. Lanes without a fit have 0 / 0, which is never better. */
__device__ __forceinline__ int best_lane(float dot, float size2)
{
    const float quotient = __fdiv_rn(dot, __fsqrt_rn(size2)), cosine = quotient > -1 ? quotient : -1;
    const uint32_t best = __ballot_sync(~0u, cosine == half_warp_max(cosine));
    return __ffs(threadIdx.x & 16 ? best >> 16 : best & 0xffff) - 1;
}

/* ---- vectors --------------------------------------------------------------------------------------------------------- */

/* A vector and one fit: what it is multiplied with, <y, c>, |c|^2. */
struct fitted {
    float factor, dot, size2;
};

/* `mine` is the factor of fit_of_lane(lane): one lane divides for one fit. */
template <int N, bool TABLE>
__device__ __forceinline__ struct fitted find_fit(const struct dev_encoder *e, const struct lane_numbers<N> &numbers,
                                                  const level_finder<TABLE> &levels, float mine, int lane)
{
    struct fit_sums s = {};
    float factor[ENCODE_FITS];
#pragma unroll
    for (int f = 0; f < ENCODE_FITS; f++)
        factor[f] = __shfl_sync(~0u, mine, lane_of_fit(f), 16);
    try_fits(s, e, numbers, levels, factor);
    const float dot = sum_of_lane(s.dot, lane), size2 = sum_of_lane(s.size2, lane);
    const int best = best_lane(dot, size2);
    return {__shfl_sync(~0u, mine, best, 16), __shfl_sync(~0u, dot, best, 16), __shfl_sync(~0u, size2, best, 16)};
}

/* Without a search. */
template <int N, bool TABLE>
__device__ __forceinline__ struct fitted only_fit(const struct lane_numbers<N> &numbers, const level_finder<TABLE> &levels,
                                                  float factor)
{
    float dots = 0, squares = 0;
    numbers.each([&](float y, uint32_t) {
        const float c = levels.level(__fmul_rn(y, factor));
        dots = __fadd_rn(dots, __fmul_rn(y, c));
        squares = __fadd_rn(squares, __fmul_rn(c, c));
    });
    return {factor, half_warp_sum(dots), half_warp_sum(squares)};
}

/* Vectors that are too small to matter have the codes of 0 and scale 0. */
template <int N, bool TABLE>
__device__ __forceinline__ float encode_with(uint8_t *code, const float *from, const struct dev_encoder *e, int lane)
{
    const struct lane_numbers<N> numbers(from, e->dim);
    const level_finder<TABLE> levels(e);
    float squares = 0, largest = 0;
    numbers.each([&](float y, uint32_t) {
        squares = __fadd_rn(squares, __fmul_rn(y, y));
        largest = fmaxf(largest, fabsf(y));
    });
    const float norm2 = half_warp_sum(squares), norm = __fsqrt_rn(norm2);
    const float size = e->uniform ? half_warp_max(largest) : __fsqrt_rn(__fdiv_rn(norm2, (float)e->dim));
    const bool tiny = norm <= e->tiny, search = e->n_fits > 1;
    const float mine = tiny ? 0 : __fdiv_rn(__fmul_rn(e->fits[search ? fit_of_lane(lane) : 0], e->unit), size);
    const struct fitted best = search ? find_fit(e, numbers, levels, mine, lane) : only_fit(numbers, levels, mine);
    numbers.each([&](float y, uint32_t k) { code[k] = levels.code(__fmul_rn(y, best.factor)); });
    if (tiny || best.size2 == 0)
        return 0;
    if (e->rule == AURA_SCALE_MATCHED)
        return __fdiv_rn(norm, __fsqrt_rn(best.size2));
    return best.dot > 0 ? __fdiv_rn(norm2, best.dot) : 0;
}

/* Where something is in the shared memory of the block, in bytes. As an argument a pointer would be to any memory. */
__device__ __forceinline__ uint32_t place_of(const void *shared)
{
    return (uint32_t)((const uint8_t *)shared - dynamic_shared());
}

/* code[dim] = codes of y[dim]; returns the scale. Every lane of the warp takes part, with the same encoder; all three are places. */
static __device__ __noinline__ float encode_vector(uint32_t code, uint32_t y, uint32_t encoder)
{
    const int lane = (int)lane_number() % 16;
    const struct dev_encoder *e = (const struct dev_encoder *)(dynamic_shared() + encoder);
    uint8_t *to = dynamic_shared() + code + lane;
    const float *from = (const float *)(dynamic_shared() + y) + lane;
    if (e->bits > 4)
        return encode_with<0, false>(to, from, e, lane);
    return e->dim == 128 ? encode_with<8, true>(to, from, e, lane) : encode_with<0, true>(to, from, e, lane);
}

#endif
