/* Walsh-Hadamard over the lanes of a warp, and the integers of a query. The order of operations is that of ref.c: stride 1,
 * 2, 4 ..., then the norm; so the bits are. */
#ifndef AURA_CUDA_ROTATE_CUH
#define AURA_CUDA_ROTATE_CUH

#include "device.cuh"

/* Coordinate lane * E + i is y[i]. */
template <int E>
__device__ __forceinline__ void hadamard_warp(float (&y)[E], int lane)
{
#pragma unroll
    for (int stride = 1; stride < E; stride *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
            if (!(i & stride)) {
                float a = y[i], b = y[i + stride];
                y[i] = __fadd_rn(a, b);
                y[i + stride] = __fsub_rn(a, b);
            }
#pragma unroll 1 /* done once, code costs more time to fetch than to execute */
    for (int far = 1; far < 32; far *= 2) {
        const float sign = lane & far ? -1.f : 1.f;
#pragma unroll
        for (int i = 0; i < E; i++)
            y[i] = fmaf(y[i], sign, __shfl_xor_sync(~0u, y[i], far)); /* the product is exact */
    }
}

template <int E>
__device__ __forceinline__ void flip_signs(float (&y)[E], const uint32_t *sign, int lane)
{
    const int first = lane * E;
    uint32_t bits = sign[first / 32] >> (first % 32); /* E divides 32 */
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = bits >> i & 1 ? -y[i] : y[i];
}

template <int E>
__device__ __forceinline__ void rotate_warp(float (&y)[E], const uint32_t *sign, float norm, int lane)
{
    flip_signs<E>(y, sign, lane);
    hadamard_warp<E>(y, lane);
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = __fmul_rn(y[i], norm);
}

template <int E>
__device__ __forceinline__ void undo_warp(float (&y)[E], const uint32_t *sign, float norm, int lane)
{
    hadamard_warp<E>(y, lane);
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = __fmul_rn(y[i], norm);
    flip_signs<E>(y, sign, lane);
}

/* The same of a vector in shared memory, by one warp, for any dim: inner * outer, a Sylvester and a Paley factor. `space` is as
 * long as the vector. */
__device__ __forceinline__ void hadamard_shared(float *y, float *space, const uint32_t *paley, uint32_t inner, uint32_t outer)
{
    const uint32_t lane = threadIdx.x % 32, dim = inner * outer;
    for (uint32_t stride = 1; stride < inner; stride *= 2) {
        for (uint32_t i = lane; i < dim / 2; i += 32) {
            uint32_t d = i / stride * 2 * stride + i % stride; /* inner is a power of two, so no pair crosses its blocks */
            float a = y[d], b = y[d + stride];
            y[d] = __fadd_rn(a, b);
            y[d + stride] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    if (outer == 1)
        return;
    for (uint32_t d = lane; d < dim; d += 32)
        space[d] = y[d];
    __syncwarp();
    for (uint32_t d = lane; d < dim; d += 32) {
        uint32_t negative = paley[d / inner];
        float sum = 0;
        for (uint32_t j = 0; j < outer; j++) {
            float term = space[j * inner + d % inner];
            sum = __fadd_rn(sum, negative >> j & 1 ? -term : term);
        }
        y[d] = sum;
    }
    __syncwarp();
}

__device__ __forceinline__ void sign_and_scale(float *y, uint32_t dim, const uint32_t *sign, float norm)
{
    for (uint32_t d = threadIdx.x % 32; d < dim; d += 32)
        y[d] = __fmul_rn(sign[d / 32] >> d % 32 & 1 ? -y[d] : y[d], norm); /* a sign never changes how a product is rounded */
    __syncwarp();
}

/* H (sign * y) / sqrt(dim) */
__device__ __forceinline__ void rotate_shared(float *y, float *space, const uint32_t *sign, const uint32_t *paley, uint32_t inner,
                                              uint32_t outer, float norm)
{
    sign_and_scale(y, inner * outer, sign, 1);
    hadamard_shared(y, space, paley, inner, outer);
    for (uint32_t d = threadIdx.x % 32; d < inner * outer; d += 32)
        y[d] = __fmul_rn(y[d], norm);
    __syncwarp();
}

__device__ __forceinline__ float warp_max(float x)
{
#pragma unroll 1
    for (int far = 16; far; far /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

__device__ __forceinline__ float warp_sum(float x)
{
#pragma unroll 1
    for (int far = 16; far; far /= 2)
        x += __shfl_xor_sync(~0u, x, far);
    return x;
}

/* What aura_query_ref calls top; for every dim of a cache it is this. */
static_assert(INT32_MAX / (127 * AURA_TILE_DIM) >= 32512, "the query's integers depend on the dim");
#define QUERY_TOP 32512.f

#endif
