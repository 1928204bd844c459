/* From numbers to their levels and codes. There are several ways, all with the same two functions: take(fit, factor) says which
 * fit is meant, and the factor that numbers are multiplied with for it; then find(y, k) gives the level and the code of y,
 * element k of the lane. MAGNITUDE: the levels that it finds have no sign. */
#ifndef AURA_CUDA_LEVELS_CUH
#define AURA_CUDA_LEVELS_CUH

#include "device.cuh"

struct level_and_code {
    float level;
    uint32_t code; /* in the lower 16 bits; the others may be anything */
};

/* Up to 4 bits, by the tables of dev_encoder. 0 is a threshold, and a number on it is not above it: it takes the window of
 * numbers that are not above 0. The number of the bin is in the last bits of a float, which rounding puts there. */
struct window_levels {
    static constexpr bool MAGNITUDE = false;
    const struct dev_encoder *e;
    float bins, factor;
    __device__ __forceinline__ window_levels(const struct dev_encoder *e_) : e(e_), bins(e_->bins), factor(0) {}
    __device__ __forceinline__ void take(int, float factor_)
    {
        factor = factor_;
    }
    __device__ __forceinline__ struct level_and_code find(float y, uint32_t) const
    {
        const float v = __fmul_rn(y, factor), last = 0x1p23f + sizeof e->below - 1;
        const int bin = (int)__float_as_uint(fminf(fmaf(fabsf(v), bins, 0x1p23f), last)) - 0x4b000000;
        const struct dev_window w = e->window[!(v > 0)][e->below[bin]];
        const bool above = fabsf(v) > w.above;
        return {above ? w.high : w.low, above ? w.code >> 16 : w.code};
    }
};

/* From 5 bits on: levels are equally spaced. The formula gives the same bits as a table. */
struct formula_levels {
    static constexpr bool MAGNITUDE = false;
    float bins, shift, last, spacing, half, first_threshold, step, factor;
    uint32_t first_code;
    __device__ __forceinline__ formula_levels(const struct dev_encoder *e)
        : bins(e->bins), shift(-e->first / e->spacing - 0.5f), last(-2 * e->first / e->spacing - 1), spacing(e->spacing),
          half(0.5f * e->spacing), first_threshold(e->first + half), step(e->step), factor(0),
          first_code(aura_code_of_index(0, e->bits))
    {
    }
    __device__ __forceinline__ void take(int, float factor_)
    {
        factor = factor_;
    }
    /* The number of a threshold next to v: v is between the thresholds before and after it. */
    __device__ __forceinline__ float guess(float v) const
    {
        const float whole = __fsub_rn(__fadd_rn(fmaf(v, bins, shift), 0x1.8p23f), 0x1.8p23f);
        return fminf(fmaxf(whole, 0.f), last);
    }
    __device__ __forceinline__ struct level_and_code find(float y, uint32_t) const
    {
        const float v = __fmul_rn(y, factor), at = guess(v), threshold = fmaf(spacing, at, first_threshold);
        const bool above = v > __fmul_rn(step, threshold);
        return {__fmul_rn(step, __fadd_rn(threshold, above ? half : -half)), (first_code + (uint32_t)(int)at + above) & 0xff};
    }
};

#endif
