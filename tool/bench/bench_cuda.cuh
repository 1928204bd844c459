/* What the benches of the GPU share: a plain read, and times. */
#ifndef AURA_TOOL_BENCH_CUDA_CUH
#define AURA_TOOL_BENCH_CUDA_CUH

#include <stdio.h>
#include <stdlib.h>

#include <algorithm>
#include <functional>
#include <vector>

#include "../../src/cuda/cache.cuh"
#include "../parts/rows_out.h"

int cuda_bench_rows(int as); /* bench_cuda_rows.cu */

#define MUST(call)                                                                                                     \
    do {                                                                                                               \
        aura_status must_status = (call);                                                                              \
        if (must_status) {                                                                                             \
            printf("aura bench: %s: %s\n", #call, aura_last_error());                                                  \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)
#define MUST_CUDA(call)                                                                                                \
    do {                                                                                                               \
        cudaError_t must_error = (call);                                                                               \
        if (must_error != cudaSuccess) {                                                                               \
            printf("aura bench: %s: %s\n", #call, cudaGetErrorString(must_error));                                     \
            exit(1);                                                                                                   \
        }                                                                                                              \
    } while (0)

static __global__ void read_kernel(const uint4 *from, size_t n, uint4 *to)
{
    uint4 s = make_uint4(0, 0, 0, 0);
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    size_t i = blockIdx.x * (size_t)blockDim.x + threadIdx.x;
    for (; i + 3 * stride < n; i += 4 * stride) {
        uint4 a = load_once(from + i), b = load_once(from + i + stride), c = load_once(from + i + 2 * stride),
              d = load_once(from + i + 3 * stride);
        s.x ^= a.x ^ b.x ^ c.x ^ d.x, s.y ^= a.y ^ b.y ^ c.y ^ d.y, s.z ^= a.z ^ b.z ^ c.z ^ d.z, s.w ^= a.w ^ b.w ^ c.w ^ d.w;
    }
    for (; i < n; i += stride) {
        uint4 a = load_once(from + i);
        s.x ^= a.x, s.y ^= a.y, s.z ^= a.z, s.w ^= a.w;
    }
    if (s.x == 0x12345678 && s.y == 0x9abcdef0 && s.z == 1 && s.w == 2) /* so that nothing is left out */
        *to = s;
}

struct timer {
    uint4 *flush;
    size_t flush_bytes = (size_t)512 << 20;
    cudaEvent_t begin, end;
    int multiprocessors;
    timer()
    {
        MUST_CUDA(cudaMalloc(&flush, flush_bytes));
        MUST_CUDA(cudaMemset(flush, 1, flush_bytes));
        MUST_CUDA(cudaEventCreate(&begin));
        MUST_CUDA(cudaEventCreate(&end));
        MUST_CUDA(cudaDeviceGetAttribute(&multiprocessors, cudaDevAttrMultiProcessorCount, 0));
    }
    void read(const void *from, size_t bytes, int blocks)
    {
        read_kernel<<<multiprocessors * blocks, 256>>>((const uint4 *)from, bytes / 16, flush);
    }
    /* Median of 41 runs, in microseconds. */
    double time(const std::function<void()> &run)
    {
        std::vector<float> all;
        for (int i = 0; i < 43; i++) {
            float ms;
            read(flush, flush_bytes, 8);
            MUST_CUDA(cudaEventRecord(begin));
            run();
            MUST_CUDA(cudaEventRecord(end));
            MUST_CUDA(cudaEventSynchronize(end));
            MUST_CUDA(cudaEventElapsedTime(&ms, begin, end));
            if (i >= 2)
                all.push_back(ms);
        }
        std::sort(all.begin(), all.end());
        return all[all.size() / 2] * 1e3;
    }
};

#endif
