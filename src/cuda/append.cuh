/* Vectors of an append: are they good, rotated, to their rows; and whether a sequence takes them. For append.cu and
 * append_prompt.cu. */
#ifndef AURA_CUDA_APPEND_CUH
#define AURA_CUDA_APPEND_CUH

#include "../../include/aura_cuda.h"
#include "close.cuh"
#include "rotate.cuh"

#define SURELY_GOOD (AURA_LONGEST / 32) /* a vector of up to 512 such numbers is not longer */

/* Numbers first, first + stride ... of a vector as the caller has them, 0 beyond its end. All loads start before the first
 * number is used: with a branch on the type for each number, every load would wait for the one before. */
template <int E>
struct numbers {
    uint32_t bits[E];
    float balance[E];
};

template <int E>
__device__ __forceinline__ void ask_for(struct numbers<E> &n, const struct dev_append &a, uint32_t job, uint32_t token,
                                        uint32_t head, uint32_t first, uint32_t stride, bool values)
{
    const void *data = values ? a.v.data : a.k.data;
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim;
    const uint32_t row = (a.starts ? min(a.starts[job], a.tokens) : 0) + token;
    const int64_t at = values ? job * a.v.seq + row * a.v.token + head * a.v.head
                              : job * a.k.seq + row * a.k.token + head * a.k.head;
    if ((values ? a.v.dtype : a.k.dtype) == AURA_F32) {
#pragma unroll
        for (int i = 0; i < E; i++)
            n.bits[i] = first + i * stride < dim ? ((const uint32_t *)data)[at + first + i * stride] : 0;
    } else {
#pragma unroll
        for (int i = 0; i < E; i++)
            n.bits[i] = first + i * stride < dim ? ((const uint16_t *)data)[at + first + i * stride] : 0;
    }
#pragma unroll
    for (int i = 0; i < E; i++)
        n.balance[i] = 1;
    const float *balance = values ? a.c.v_balance : a.c.balance;
    if (balance) {
#pragma unroll
        for (int i = 0; i < E; i++)
            n.balance[i] = first + i * stride < dim ? balance[(size_t)head * dim + first + i * stride] : 0;
    }
}

template <int E>
__device__ __forceinline__ float number_of(const struct numbers<E> &n, const struct dev_append &a, int i, bool values)
{
    const uint32_t dtype = values ? a.v.dtype : a.k.dtype;
    const float half = __half2float(__ushort_as_half((unsigned short)n.bits[i]));
    const float x = dtype == AURA_F16 ? half : __uint_as_float(dtype == AURA_F32 ? n.bits[i] : n.bits[i] << 16);
    return __fmul_rn(x, n.balance[i]); /* a product with 1 changes nothing */
}

/* ---- are the vectors good? ----------------------------------------------------------------------------------------- */

/* Whether each number of this warp's vectors, of tokens [from, to), is so small that the vectors are surely good. Nearly
 * all are. */
__device__ __forceinline__ bool surely_good(const struct dev_append &a, uint32_t job, uint32_t from, uint32_t to)
{
    bool good = true;
    for (uint32_t i = from * a.c.kv_heads + threadIdx.x / 32; i < to * a.c.kv_heads; i += APPEND_WARPS)
#pragma unroll 1
        for (uint32_t d = threadIdx.x % 32; d < max(a.c.k_dim, a.c.v_dim); d += 128) {
            struct numbers<4> k, v;
            ask_for(k, a, job, i / a.c.kv_heads, i % a.c.kv_heads, d, 32, false);
            ask_for(v, a, job, i / a.c.kv_heads, i % a.c.kv_heads, d, 32, true);
#pragma unroll
            for (int j = 0; j < 4; j++)
                good &= fabsf(number_of(k, a, j, false)) < SURELY_GOOD && fabsf(number_of(v, a, j, true)) < SURELY_GOOD;
        }
    return good;
}

/* Whether a vector is refused, by half a warp: the test of length_of() and bad_row() in tile.c, with the same order of
 * additions. */
__device__ __forceinline__ bool bad_vector(const struct dev_append &a, uint32_t job, uint32_t token, uint32_t head, bool values)
{
    const uint32_t lane = threadIdx.x % 16, dim = values ? a.c.v_dim : a.c.k_dim, kind = values ? a.c.v_kind : a.c.k_kind;
    const float limit = aura_first_infinite(aura_dtype_of_kind(kind));
    float lane_sum = 0, sum = 0;
    bool bad = false;
#pragma unroll 1
    for (uint32_t d = lane; d < dim; d += 16) {
        struct numbers<1> n;
        ask_for(n, a, job, token, head, d, 0, values);
        const float x = number_of(n, a, 0, values);
        lane_sum = __fadd_rn(lane_sum, __fmul_rn(x, x));
        bad |= !(fabsf(x) < limit);
    }
    for (int i = 0; i < 16; i++) /* by both halves of the warp, which may be of different sides */
        sum = __fadd_rn(sum, __shfl_sync(~0u, lane_sum, i, 16));
    return !aura_is_packed(kind) ? bad : !(__fsqrt_rn(sum) <= AURA_LONGEST);
}

__device__ __forceinline__ bool any_bad(const struct dev_append &a, uint32_t job, uint32_t from, uint32_t to)
{
    bool bad = false;
    const uint32_t n = to * a.c.kv_heads * 2;
    for (uint32_t first = from * a.c.kv_heads * 2; first < n; first += 2 * APPEND_WARPS) { /* all lanes stay together */
        uint32_t i = min(first + threadIdx.x / 16, n - 1);
        bad |= bad_vector(a, job, i / 2 / a.c.kv_heads, i / 2 % a.c.kv_heads, i % 2);
    }
    return __syncthreads_or(bad);
}

/* ---- tokens --------------------------------------------------------------------------------------------------------- */

/* Stores a vector of 32 * E numbers, which is in registers: coordinate lane * E + i is y[i]. It goes to its row and, where this
 * call encodes it, to `open`; either may be NULL. */
template <int E>
__device__ __forceinline__ void store_rotated(const struct dev_append &a, uint32_t job, uint32_t token, uint32_t head, __half *row,
                                              __half *open, bool values)
{
    const uint32_t lane = threadIdx.x % 32, first = lane * E;
    const uint32_t negative = (values ? a.c.v_sign[first / 32] : a.c.k_sign[first / 32]) >> first % 32;
    const float norm = values ? a.c.v_norm : a.c.k_norm;
    struct numbers<E> n;
    float y[E];
    ask_for(n, a, job, token, head, first, 1, values);
#pragma unroll
    for (int i = 0; i < E; i++) {
        const float x = number_of(n, a, i, values);
        y[i] = negative >> i & 1 ? -x : x;
    }
    hadamard_warp<E>(y, lane);
    if (row)
#pragma unroll
        for (int i = 0; i < E; i++)
            row[first + i] = __float2half_rn(__fmul_rn(y[i], norm));
    if (!open)
        return;
#pragma unroll
    for (int i = 0; i < E; i++)
        open[first + i] = __float2half_rn(__fmul_rn(y[i], norm));
}

__device__ __forceinline__ float load_one(const struct dev_append &a, uint32_t token, uint32_t d, bool values)
{
    struct numbers<1> n;
    ask_for(n, a, blockIdx.y, token, blockIdx.x, d, 0, values);
    return number_of(n, a, 0, values);
}

/* The same for dims that are not powers of two. The vector is in shared memory. */
template <int M>
__device__ __forceinline__ void store_rotated_any(const struct dev_append &a, uint32_t token, __half *row, __half *open,
                                                  bool values)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = values ? a.c.v_dim : a.c.k_dim;
    const struct dev_codecs *p = a.c.codecs;
    float *y = space<M>()->y[2 * warp];
#pragma unroll 1
    for (uint32_t d = lane; d < dim; d += 32)
        y[d] = load_one(a, token, d, values);
    __syncwarp();
    rotate_shared(y, space<M>()->y[2 * warp + 1], values ? a.c.v_sign : a.c.k_sign, p->paley[values],
                  values ? p->v_inner : p->k_inner, values ? p->v_outer : p->k_outer, values ? a.c.v_norm : a.c.k_norm);
#pragma unroll 1
    for (uint32_t d = lane; d < dim; d += 32) {
        if (row)
            row[d] = __float2half_rn(y[d]);
        if (open)
            open[d] = __float2half_rn(y[d]);
    }
    __syncwarp();
}

/* Stores a vector of a plain side in its tile. */
__device__ __forceinline__ void store_plain(const struct dev_append &a, const append_block &b, uint32_t token, uint32_t position,
                                         bool values)
{
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim, kind = values ? a.c.v_kind : a.c.k_kind;
    const uint32_t dtype = aura_dtype_of_kind(kind);
    uint8_t *tile = head_of(a, b, position) + (position / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes + (values ? a.c.v_at : 0);
#pragma unroll 1
    for (uint32_t d = threadIdx.x % 32; d < dim; d += 32)
        store_element(tile, dtype, (int64_t)(position % AURA_TILE) * dim + d, load_one(a, token, d, values));
}

/* Rotates a vector of the head, by one warp, to its row and to `open`; either may be NULL. */
template <int M>
__device__ __forceinline__ void put_rotated(const struct dev_append &a, uint32_t token, __half *row, __half *open, bool values)
{
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim;
    if (dim == 128)
        store_rotated<4>(a, blockIdx.y, token, blockIdx.x, row, open, values);
    else if (dim == 64)
        store_rotated<2>(a, blockIdx.y, token, blockIdx.x, row, open, values);
    else if (M >= 256 && dim == 256)
        store_rotated<8>(a, blockIdx.y, token, blockIdx.x, row, open, values);
    else if (M >= 512 && dim == 512)
        store_rotated<16>(a, blockIdx.y, token, blockIdx.x, row, open, values);
    else
        store_rotated_any<M>(a, token, row, open, values);
}

/* Stores a vector of the head where new tokens go, by one warp. This call encodes tokens below `end`. */
template <int M>
__device__ __forceinline__ void store_vector(const struct dev_append &a, const append_block &b, uint32_t token,
                                             uint32_t position, uint32_t end, bool values)
{
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim;
    if (!aura_is_packed(values ? a.c.v_kind : a.c.k_kind))
        return store_plain(a, b, token, position, values);
    __half *row = rows_of(a, b, values) + (size_t)row_of(a.c, position) * dim;
    __half *open = position < end ? (__half *)space<M>()->row[values][position % AURA_TILE] : NULL;
    put_rotated<M>(a, token, row, open, values);
}

/* ---- what a sequence takes ------------------------------------------------------------------------------------------ */

/* The tokens that a sequence of the call brings. */
__device__ __forceinline__ uint32_t tokens_of_job(const struct dev_append &a, uint32_t job)
{
    const uint32_t most = a.tokens - (a.starts ? min(a.starts[job], a.tokens) : 0);
    return a.counts ? min(a.counts[job], most) : most;
}

/* Whether an earlier call has left a mark, so that nothing is taken. */
__device__ __forceinline__ bool is_marked(const struct dev_seq &state)
{
    return state.status & (AURA_CUDA_BAD_VALUE | AURA_CUDA_OUT_OF_PAGES | AURA_CUDA_GONE);
}

/* Whether there are not pages of its own for so many tokens. */
__device__ __forceinline__ bool is_full(const struct dev_cache &c, const struct dev_seq &state, uint32_t tokens)
{
    /* The page of this token is the first that is written to. */
    const uint32_t first = (uint32_t)aura_settled(state.len, state.closed, c.k_rows || c.v_rows);
    return !aura_page_table_may_append(state.own, state.reserved, first, state.len, tokens);
}

#endif
