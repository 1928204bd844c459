/* A tile closes by kernels that search for its codes, as close.cuh has it for others. */
#ifndef AURA_CUDA_CLOSE_SEARCH_CUH
#define AURA_CUDA_CLOSE_SEARCH_CUH

#include "trellis_feedback.cuh"

/* Codes of four vectors, without the metric. Returns the scale of this lane's vector, of trellis codes alone. */
template <int M>
__device__ __forceinline__ float encode_four(const struct searching &s, const struct dev_append &a,
                                             const struct closing &c, uint32_t unit, bool values)
{
    const uint32_t kind = values ? a.c.v_kind : a.c.k_kind;
    load_numbers<M>(s, a, values);
    if (kind == AURA_TRELLIS_2)
        return encode_trellis<M, 2>(s, values);
    if (kind == AURA_TRELLIS_3)
        return encode_trellis<M, 3>(s, values);
    if (kind == AURA_TRELLIS_4)
        return encode_trellis<M, 4>(s, values);
    for (uint32_t pair = 2 * unit; pair < 2 * unit + 2 && 2 * pair < c.to - c.from; pair++)
        encode_pair<M>(a, c, pair, values);
    __syncwarp();
    return 0;
}

/* Codes that cost less in the metric. */
template <int M>
__device__ __forceinline__ void feed_four(const struct searching &s, uint32_t kind, float scale, bool values)
{
    if (kind == AURA_TRELLIS_2)
        feed_trellis<M, 2>(s, scale, values);
    else if (kind == AURA_TRELLIS_3)
        feed_trellis<M, 3>(s, scale, values);
    else if (kind == AURA_TRELLIS_4)
        feed_trellis<M, 4>(s, scale, values);
    else if (kind > 4)
        feed_back<M, formula_levels>(s, values);
    else
        feed_back<M, window_levels>(s, values);
}

/* All vectors of a side that close. Warps that have no space of their own only help with the panels. */
template <int M>
__device__ __forceinline__ void search_side(const struct dev_append &a, const struct closing &c, bool values)
{
    const uint32_t units = (c.to - c.from + SEARCH_VECTORS - 1) / SEARCH_VECTORS, warp = threadIdx.x / 32;
#pragma unroll 1
    for (uint32_t first = 0; first < units; first += a.c.search_warps) {
        const bool works = warp < a.c.search_warps && first + warp < units;
        const struct searching s = searching_of<M>(a, c, first + warp, works, values);
        const float scale = works ? encode_four<M>(s, a, c, first + warp, values) : 0;
        if (s.metric)
            feed_four<M>(s, values ? a.c.v_kind : a.c.k_kind, scale, values);
    }
}

/* Encodes the tokens that close, as close_tokens() does. */
template <int M>
__device__ __noinline__ void close_by_search()
{
    const struct dev_append &a = space<M>()->call;
    const struct closing &c = space<M>()->closing;
    if (c.from >= c.to)
        return;
    find_reference<M>(a, c);
    __syncthreads();
    if (a.c.k_rows)
        search_side<M>(a, c, false);
    if (a.c.v_rows)
        search_side<M>(a, c, true);
    __syncthreads();
    put_codes<M>(a, c);
    __syncthreads();
}

#endif
