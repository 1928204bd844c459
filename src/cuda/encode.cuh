/* Vectors to codes by half a warp each, with the operations and the order of ref.c: lane i of the half has elements i, i + 16,
 * ... and the partial sum i, and halves are added. Compiled without contraction; quotients and roots are IEEE's. */
#ifndef AURA_CUDA_ENCODE_CUH
#define AURA_CUDA_ENCODE_CUH

#include "device.cuh"

/* The sum over a vector of what the lanes have summed up. */
__device__ __forceinline__ float half_warp_sum(float x)
{
#pragma unroll
    for (int far = 8; far; far /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

/* What guesses the index of equally spaced levels; scale 0: they are not. */
struct spacing {
    float scale, shift, top;
};

__device__ __forceinline__ struct spacing spacing_of(const struct aura_codec_plan *p)
{
    if (!(p->step > 0 && p->bits >= 5))
        return {0, 0, 0};
    return {1 / (p->step * p->spacing), -p->first / p->spacing, p->bits == 8 ? 253.f : (float)((1 << p->bits) - 2)};
}

/* The number of thresholds below v. Equally spaced ones are guessed and the guess, which is at most one off, corrected. */
__device__ __forceinline__ uint32_t code_index(float v, const struct aura_codec_plan *p, const struct spacing &s)
{
    if (s.scale != 0) {
        int at = (int)fminf(fmaxf(rintf(fmaf(v, s.scale, s.shift)), 1.f), s.top);
        return (uint32_t)(at - 1 + (v > p->threshold[at - 1]) + (v > p->threshold[at]));
    }
    uint32_t index = 0;
    for (uint32_t step = 1u << (p->bits - 1); step; step /= 2)
        index += v > p->threshold[index + step - 1] ? step : 0;
    return index;
}

/* One fit of N * 16 numbers: <y, c> and |c|^2. */
template <int N>
__device__ __forceinline__ void try_fit(float &dot, float &size2, const float (&y)[N], const struct aura_codec_plan *p,
                                        const struct spacing &s, float factor)
{
    float dots = 0, squares = 0;
#pragma unroll
    for (int k = 0; k < N; k++) {
        float c = p->centroid[code_index(__fmul_rn(y[k], factor), p, s)];
        dots = __fadd_rn(dots, __fmul_rn(y[k], c));
        squares = __fadd_rn(squares, __fmul_rn(c, c));
    }
    dot = half_warp_sum(dots);
    size2 = half_warp_sum(squares);
}

/* code[N * 16] = indices; returns the scale. Every lane of the warp takes part; `p` is in shared memory. */
template <int N>
__device__ __noinline__ float encode_vector(uint8_t *code, const float *from, const struct aura_codec_plan *p)
{
    const int lane = threadIdx.x % 16;
    const struct spacing s = spacing_of(p);
    float y[N], squares = 0, largest = 0, best = -1, best_fit = p->fits[0], dot, size2;
#pragma unroll
    for (int k = 0; k < N; k++) {
        y[k] = from[lane + 16 * k];
        squares = __fadd_rn(squares, __fmul_rn(y[k], y[k]));
        largest = fmaxf(largest, fabsf(y[k]));
    }
    const float norm2 = half_warp_sum(squares);
#pragma unroll
    for (int far = 8; far; far /= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
    const float rms = __fsqrt_rn(__fdiv_rn(norm2, (float)(N * 16)));
    const float unit = p->uniform ? p->top : p->sigma, size = p->uniform ? largest : rms;
    const bool tiny = __fsqrt_rn(norm2) <= p->tiny;
    for (uint32_t f = 0; f < p->n_fits && p->n_fits > 1; f++) {
        try_fit<N>(dot, size2, y, p, s, tiny ? 0 : __fdiv_rn(__fmul_rn(p->fits[f], unit), size));
        float cosine = __fdiv_rn(dot, __fsqrt_rn(size2));
        if (!tiny && cosine > best) {
            best = cosine;
            best_fit = p->fits[f];
        }
    }
    const float factor = tiny ? 0 : __fdiv_rn(__fmul_rn(best_fit, unit), size);
    try_fit<N>(dot, size2, y, p, s, factor);
#pragma unroll
    for (int k = 0; k < N; k++)
        code[lane + 16 * k] = (uint8_t)code_index(__fmul_rn(y[k], factor), p, s);
    if ((tiny && !p->keep_tiny) || size2 == 0)
        return 0;
    if (p->rule == AURA_SCALE_MATCHED)
        return __fdiv_rn(__fsqrt_rn(norm2), __fsqrt_rn(size2));
    return dot > 0 ? __fdiv_rn(norm2, dot) : 0;
}

/* For the dims of a cache. */
__device__ __forceinline__ float encode_any(uint8_t *code, const float *y, const struct aura_codec_plan *p)
{
    switch (p->dim) {
    case 64: return encode_vector<4>(code, y, p);
    case 80: return encode_vector<5>(code, y, p);
    case 96: return encode_vector<6>(code, y, p);
    case 112: return encode_vector<7>(code, y, p);
    case 128: return encode_vector<8>(code, y, p);
    case 192: return encode_vector<12>(code, y, p);
    case 256: return encode_vector<16>(code, y, p);
    default: return encode_vector<32>(code, y, p);
    }
}

#endif
