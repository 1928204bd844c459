/* Partial results to finished rows, by a warp each, where the dim is a power of two: lane i has coordinates i * E ... of it. */
#include "rotate.cuh"
#include "rows_merge.cuh"

/* E numbers of a type from element `at` on, a multiple of E, as they are in memory. All loads begin before the first number is
 * used. */
template <int E, int DTYPE>
struct raw_numbers {
    static constexpr int SIZE = DTYPE == AURA_F32 ? 4 : 2;
    uint32_t word[E * SIZE / 4];
    __device__ __forceinline__ void load(const void *array, size_t at)
    {
        const uint8_t *from = (const uint8_t *)array + at * SIZE;
        if constexpr (E * SIZE >= 16) {
#pragma unroll
            for (int i = 0; i < E * SIZE / 16; i++) {
                const uint4 v = ((const uint4 *)from)[i];
                word[4 * i] = v.x, word[4 * i + 1] = v.y, word[4 * i + 2] = v.z, word[4 * i + 3] = v.w;
            }
        } else if constexpr (E * SIZE == 8) {
            const uint2 v = *(const uint2 *)from;
            word[0] = v.x, word[1] = v.y;
        } else {
            word[0] = *(const uint32_t *)from;
        }
    }
    __device__ __forceinline__ float at(int i) const
    {
        if constexpr (SIZE == 4)
            return __uint_as_float(word[i]);
        const uint32_t both = word[i * SIZE / 4];
        return DTYPE == AURA_F16 ? __half2float(__ushort_as_half((unsigned short)(i % 2 ? both >> 16 : both & 0xffff)))
                                 : __uint_as_float(i % 2 ? both & 0xffff0000u : both << 16);
    }
};

template <int E>
__device__ __forceinline__ void store_numbers(void *array, uint32_t dtype, size_t at, const float (&x)[E])
{
    if (dtype == AURA_F32 && E >= 4) {
#pragma unroll
        for (int i = 0; i < E; i += 4)
            *(float4 *)((float *)array + at + i) = make_float4(x[i], x[(i + 1) % E], x[(i + 2) % E], x[(i + 3) % E]);
        return;
    }
#pragma unroll
    for (int i = 0; i < E; i++)
        store_element(array, dtype, (int64_t)(at + i), x[i]);
}

/* Normalises, undoes, stores. */
template <int E>
__device__ __forceinline__ void finish_row(float (&y)[E], const struct dev_merge &a, const struct merged &r, uint32_t row,
                                           int lane)
{
    int bad = 0, beyond;
#pragma unroll
    for (int i = 0; i < E; i++) {
        y[i] = finished(a, r, y[i]);
        bad |= is_beyond(y[i], AURA_F32);
    }
    beyond = bad = __any_sync(~0u, bad);
    if (lane == 0)
        store_lse(a, r, row, bad);
    if (a.undo.dim) {
        undo_warp<E>(y, a.undo.sign, a.undo.norm, lane);
#pragma unroll
        for (int i = 0; i < E; i++)
            y[i] = a.undo.balance ? __fmul_rn(y[i], a.undo.balance[lane * E + i]) : y[i];
    }
#pragma unroll
    for (int i = 0; i < E; i++)
        beyond |= is_beyond(y[i], a.out_dtype);
    beyond = __any_sync(~0u, beyond);
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = beyond ? NAN : y[i];
    store_numbers<E>(a.out, a.out_dtype, (size_t)row * 32 * E + lane * E, y);
    if (lane == 0 && beyond)
        note_not_finite(a.status, row);
}

/* What a row has of part p besides its coordinates; l 0: there is no such part. Rows that are only added up have neither. */
struct of_part {
    float l, m;
};

__device__ __forceinline__ struct of_part part_at(const struct dev_merge &a, uint32_t row, size_t p)
{
    if (a.mode != MERGE_PASS2)
        return {p < a.parts ? 1.f : 0.f, 0};
    return {p < a.parts ? part_l(a, row, p) : 0, p < a.parts ? part_m(a, row, p) : 0};
}

/* Rows of the layout of AURA, and rows that are only added up. The numbers of TOGETHER parts are on their way at a time; those of
 * the first are asked for before anything else, so that a short row waits for memory once. */
template <int E, int DTYPE>
__device__ __forceinline__ void merge_row_of(const struct dev_merge &a)
{
    constexpr uint32_t BYTES = E * raw_numbers<E, DTYPE>::SIZE, TOGETHER = 256 / BYTES < 32 ? 256 / BYTES : 32;
    const uint32_t row = blockIdx.x * MERGE_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32;
    if (row >= a.rows)
        return;
    struct raw_numbers<E, DTYPE> x[TOGETHER];
    const auto load = [&](size_t first) {
        const size_t from = (row * a.parts + first) * (32 * E) + lane * E;
        const uint32_t n = first + TOGETHER <= a.parts ? TOGETHER : (uint32_t)(a.parts - first);
        if (n == TOGETHER) { /* places that are known when compiling, and nothing to ask */
#pragma unroll
            for (uint32_t k = 0; k < TOGETHER; k++)
                x[k].load(a.o, from + k * (32 * E));
            return;
        }
#pragma unroll
        for (uint32_t k = 0; k < TOGETHER; k++)
            if (k < n)
                x[k].load(a.o, from + k * (32 * E));
    };
    load(0);
    struct of_part part = part_at(a, row, lane);
    float acc[E] = {}, largest = part.l == 0 ? -INFINITY : fmaxf(-INFINITY, part.m), sum = 0;
    for (size_t p = lane + 32; p < a.parts; p += 32) {
        const struct of_part more = part_at(a, row, p);
        largest = more.l == 0 ? largest : fmaxf(largest, more.m);
    }
    largest = warp_max(largest);
    for (size_t first = 0; first < a.parts; first += 32) {
        const uint32_t n = a.parts - first < 32 ? (uint32_t)(a.parts - first) : 32;
        part = first ? part_at(a, row, first + lane) : part;
        float w = a.mode == MERGE_PASS2 ? part_weight(part.m, part.l, largest, false) : 1;
        sum += part.l * w;
        w = part.l == 0 ? -1 : w; /* o of an empty part may hold anything: below 0 says that it is left out */
        for (uint32_t i = 0; i < n; i += TOGETHER) {
            if (first + i)
                load(first + i);
#pragma unroll
            for (uint32_t k = 0; k < TOGETHER; k++) {
                const float weight = __shfl_sync(~0u, w, (int)(i + k) % 32); /* of no part, below 0 as well */
#pragma unroll
                for (int e = 0; e < E; e++)
                    acc[e] = weight < 0 ? acc[e] : fmaf(weight, x[k].at(e), acc[e]);
            }
        }
    }
    finish_row<E>(acc, a, finish_sums(a, largest, warp_sum(sum), sink_of(a, row)), row, (int)lane);
}

template <int E>
__device__ __forceinline__ void merge_row(const struct dev_merge &a)
{
    if (a.dtype == AURA_F32)
        merge_row_of<E, AURA_F32>(a);
    else if (a.dtype == AURA_F16)
        merge_row_of<E, AURA_F16>(a);
    else
        merge_row_of<E, AURA_BF16>(a);
}

/* ---- the layout of mlx-native ---------------------------------------------------------------------------------------- */

/* Eight lanes have four numbers each of eight chunks; in the end lane w of the eight has the sums of chunk w. */
template <int HALF>
__device__ __forceinline__ void sum_of_halves(float (&v)[8][4], uint32_t w)
{
    const bool upper = w & HALF;
#pragma unroll
    for (int j = 0; j < HALF; j++)
#pragma unroll
        for (int f = 0; f < 4; f++) {
            const float keep = upper ? v[j + HALF][f] : v[j][f], send = upper ? v[j][f] : v[j + HALF][f];
            v[j][f] = keep + __shfl_xor_sync(~0u, send, HALF);
        }
}

/* A chunk is four coordinates of all workgroups. Eight lanes read the workgroups of a chunk, 128 bytes side by side, and four such
 * groups four chunks: those that their lanes have in the end. */
template <int E>
__device__ __forceinline__ void reduce_row(const struct dev_merge &a)
{
    const uint32_t row = blockIdx.x * MERGE_WARPS + threadIdx.x / 32, lane = threadIdx.x % 32, group = lane / 8, mine = lane % 8;
    if (row >= a.rows)
        return;
    const uint32_t nwg = (uint32_t)a.parts;
    const float sink = sink_of(a, row), l = lane < nwg ? part_l(a, row, lane) : 0, m = lane < nwg ? part_m(a, row, lane) : 0;
    const float largest = warp_max(l == 0 ? sink : fmaxf(sink, m)), w = part_weight(m, l, largest, sink == INFINITY);
    float sum = warp_sum(l * w), y[E], weight[4], its_l[4];
    sum += sink == -INFINITY ? 0 : sink == INFINITY ? 1 : expf(sink - largest);
    const float divided = sum == 0 ? w : w / sum;
#pragma unroll
    for (int k = 0; k < 4; k++) {
        weight[k] = __shfl_sync(~0u, divided, (int)mine + 8 * k);
        its_l[k] = __shfl_sync(~0u, l, (int)mine + 8 * k); /* 0 where there is no such workgroup */
    }
    const float *o = (const float *)a.o + (size_t)row * 32 * E * nwg + mine * 4;
#pragma unroll
    for (int b = 0; b < E / 4; b++) {
        float v[8][4] = {};
#pragma unroll
        for (int i = 0; i < 8; i++)
#pragma unroll
            for (int k = 0; k < 4; k++)
                if (its_l[k] != 0) {
                    const float4 x = *(const float4 *)(o + (size_t)((group * 8 + i) * (E / 4) + b) * nwg * 4 + 32 * k);
                    v[i][0] = fmaf(weight[k], x.x, v[i][0]), v[i][1] = fmaf(weight[k], x.y, v[i][1]);
                    v[i][2] = fmaf(weight[k], x.z, v[i][2]), v[i][3] = fmaf(weight[k], x.w, v[i][3]);
                }
        sum_of_halves<4>(v, mine);
        sum_of_halves<2>(v, mine);
        sum_of_halves<1>(v, mine);
#pragma unroll
        for (int f = 0; f < 4; f++)
            y[4 * b + f] = v[0][f];
    }
    finish_row<E>(y, a, finish_sums(a, largest, sum, sink), row, (int)lane);
}

#define STAMP(name, dim, body, blocks)                                            \
    extern "C" __global__ void __launch_bounds__(32 * MERGE_WARPS, blocks)        \
        aura_##name(const __grid_constant__ struct dev_merge a)                   \
    {                                                                             \
        body<dim / 32>(a);                                                        \
    }
#define STAMP_PASS2(name, dim) STAMP(name, dim, merge_row, (dim) <= 128 ? 5 : 4)
#define STAMP_REDUCE(name, dim) STAMP(name, dim, reduce_row, 4)
AURA_CUDA_ROWS_PASS2(STAMP_PASS2)
AURA_CUDA_ROWS_REDUCE(STAMP_REDUCE)

struct merge_kernel aura_cuda_merge_kernel(const struct dev_merge *m)
{
    const struct merge_kernel none = {NULL, NULL};
    if (m->undo.dim && (m->undo.dense || m->undo.outer != 1))
        return none;
    if (((uintptr_t)m->o | (uintptr_t)m->out) % 16)
        return none;
#define ENTRY(name, dim_) \
    if (m->dim == dim_)   \
        return {#name, (const void *)aura_##name};
    if (m->mode == MERGE_REDUCE) {
        AURA_CUDA_ROWS_REDUCE(ENTRY)
        return none;
    }
    AURA_CUDA_ROWS_PASS2(ENTRY)
#undef ENTRY
    return none;
}
