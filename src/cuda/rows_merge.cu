/* Partial results to finished rows: pass 2 of AURA, the reduce of mlx-native, plain sums; with what undoes a rotation. Here a
 * block has a row in shared memory; rows_merge_fast.cu takes powers of two. */
#include "rows_merge.cuh"

#include <string.h>

/* ---- every dim, by a block ------------------------------------------------------------------------------------------ */

enum { MERGE_THREADS = 128, MERGE_DIMS = AURA_MAX_DIM / MERGE_THREADS };

struct merge_space {
    float y[AURA_MAX_DIM], space[AURA_MAX_DIM];
    float weight[MERGE_THREADS], l[MERGE_THREADS];
    float each[MERGE_THREADS / 32];
};

template <class OP>
__device__ __forceinline__ float over_block(struct merge_space &s, float x, OP op)
{
    for (int far = 16; far; far /= 2)
        x = op(x, __shfl_xor_sync(~0u, x, far));
    __syncthreads();
    if (threadIdx.x % 32 == 0)
        s.each[threadIdx.x / 32] = x;
    __syncthreads();
    x = s.each[0];
    for (int i = 1; i < MERGE_THREADS / 32; i++)
        x = op(x, s.each[i]);
    return x;
}

/* The largest m of a row; of the reduce with the sink. */
__device__ __forceinline__ float largest_of(struct merge_space &s, const struct dev_merge &a, uint32_t row, float sink)
{
    float largest = a.mode == MERGE_REDUCE ? sink : -INFINITY;
    for (size_t p = threadIdx.x; p < a.parts && a.mode != MERGE_SUM; p += MERGE_THREADS)
        largest = part_l(a, row, p) == 0 ? largest : fmaxf(largest, part_m(a, row, p));
    return over_block(s, largest, [](float x, float y) { return fmaxf(x, y); });
}

/* Adds parts [first, first + n), whose weights are in shared memory. */
__device__ __forceinline__ void add_parts(float (&acc)[MERGE_DIMS], const struct merge_space &s, const struct dev_merge &a,
                                          uint32_t row, size_t first, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        if (s.l[i] == 0)
            continue;
        const size_t p = first + i;
#pragma unroll
        for (uint32_t k = 0; k < MERGE_DIMS; k++) {
            const uint32_t d = threadIdx.x + k * MERGE_THREADS;
            const size_t at = a.mode == MERGE_REDUCE ? (row * (size_t)(a.dim / 4) + d / 4) * a.parts * 4 + p * 4 + d % 4
                                                     : (row * a.parts + p) * a.dim + d;
            if (d < a.dim)
                acc[k] = fmaf(s.weight[i], load_element(a.o, a.dtype, (int64_t)at), acc[k]);
        }
    }
}

/* All parts; returns the sums, and the coordinates in acc. Of the reduce, weights are divided before they are multiplied. */
__device__ __forceinline__ struct merged merge_parts(float (&acc)[MERGE_DIMS], struct merge_space &s, const struct dev_merge &a,
                                                     uint32_t row)
{
    const float sink = sink_of(a, row), largest = largest_of(s, a, row, sink);
    const bool takes_all = a.mode == MERGE_REDUCE && sink == INFINITY;
    float sum = 0, divisor = 1;
    for (int divided = a.mode == MERGE_REDUCE ? 0 : 1; divided < 2; divided++) {
        for (size_t first = 0; first < a.parts; first += MERGE_THREADS) {
            const uint32_t n = a.parts - first < MERGE_THREADS ? (uint32_t)(a.parts - first) : MERGE_THREADS;
            const bool mine = threadIdx.x < n;
            const float l = a.mode == MERGE_SUM ? 1 : mine ? part_l(a, row, first + threadIdx.x) : 0;
            const float w = a.mode == MERGE_SUM ? 1
                          : mine                ? part_weight(part_m(a, row, first + threadIdx.x), l, largest, takes_all)
                                                : 0;
            if (divided < 1 || a.mode != MERGE_REDUCE)
                sum += l * w;
            __syncthreads();
            s.weight[threadIdx.x] = divisor == 1 ? w : w / divisor, s.l[threadIdx.x] = l;
            __syncthreads();
            if (divided)
                add_parts(acc, s, a, row, first, n);
        }
        if (!divided) {
            sum = over_block(s, sum, [](float x, float y) { return x + y; });
            sum += sink == -INFINITY ? 0 : takes_all ? 1 : expf(sink - largest);
            divisor = sum == 0 ? 1 : sum;
        }
    }
    if (a.mode == MERGE_PASS2)
        sum = over_block(s, sum, [](float x, float y) { return x + y; });
    return finish_sums(a, largest, sum, sink);
}

extern "C" __global__ void __launch_bounds__(MERGE_THREADS) aura_rows_merge_any_cuda(const __grid_constant__ struct dev_merge a)
{
    struct merge_space &s = *(struct merge_space *)dynamic_shared();
    float acc[MERGE_DIMS] = {};
    const uint32_t row = blockIdx.x;
    const struct merged r = merge_parts(acc, s, a, row);
    int bad = 0;
#pragma unroll
    for (uint32_t k = 0; k < MERGE_DIMS; k++) {
        const uint32_t d = threadIdx.x + k * MERGE_THREADS;
        if (d >= a.dim)
            continue;
        s.y[d] = finished(a, r, acc[k]);
        bad |= is_beyond(s.y[d], AURA_F32);
    }
    bad = __syncthreads_or(bad);
    if (threadIdx.x == 0)
        store_lse(a, r, row, bad);
    if (threadIdx.x < 32)
        rotate_row(s.y, s.space, a.undo);
    __syncthreads();
    int beyond = bad;
    for (uint32_t d = threadIdx.x; d < a.dim; d += MERGE_THREADS)
        beyond |= is_beyond(s.y[d], a.out_dtype);
    beyond = __syncthreads_or(beyond);
    for (uint32_t d = threadIdx.x; d < a.dim; d += MERGE_THREADS)
        store_element(a.out, a.out_dtype, (int64_t)((size_t)row * a.dim + d), beyond ? NAN : s.y[d]);
    if (threadIdx.x == 0 && beyond)
        note_not_finite(a.status, row);
}

/* ---- the choice ----------------------------------------------------------------------------------------------------- */

aura_status aura_cuda_rows_merge(const aura_cuda_rows *rows, const char *call, const struct dev_merge &m,
                                 struct CUstream_st *stream)
{
    struct dev_merge copy = m;
    void *params[] = {&copy};
    const struct merge_kernel fast = aura_cuda_merge_kernel(&m);
    const struct launch by_warps = {dim3((m.rows + MERGE_WARPS - 1) / MERGE_WARPS), 32 * MERGE_WARPS, 0, stream};
    const struct launch by_blocks = {dim3(m.rows), MERGE_THREADS, sizeof(struct merge_space), stream};
    if (m.rows == 0)
        return AURA_OK;
    if (fast.run)
        return aura_cuda_rows_launch(rows, call, fast.name, fast.run, by_warps, params);
    return aura_cuda_rows_launch(rows, call, "rows_merge_any_cuda", (const void *)aura_rows_merge_any_cuda, by_blocks, params);
}
