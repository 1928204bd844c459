/* What the kernels of aura_cuda_unpack share: decode.cu, decode_codes.cu. */
#ifndef AURA_CUDA_DECODE_CUH
#define AURA_CUDA_DECODE_CUH

#include "../../include/aura_cuda.h"
#include "image.cuh"
#include "rotate.cuh"
#include "split.cuh"

/* One call. a: only what names sequences is set. */
struct dev_unpack {
    struct dev_attend a;
    struct dev_images im;
    struct dev_view k, v;         /* data NULL: not wanted */
    uint32_t first, tokens;
    uint32_t rotated;
};

/* What a block has: tokens [from, to) of a head of a sequence, among those of an image. */
struct unpack_block {
    struct image_block image;
    uint32_t job, from, to;
    uint32_t gone;                /* 1: they are not there, and become NaN */
};

/* Heads are side by side: what a page has is read together, and rows that are neighbours are written together. */
__device__ __forceinline__ struct unpack_block unpack_block_of(const struct dev_unpack &u)
{
    const struct dev_cache &c = u.a.c;
    const uint32_t head = blockIdx.x % c.kv_heads, first = (u.first / IMAGE_TOKENS + blockIdx.x / c.kv_heads) * IMAGE_TOKENS;
    struct unpack_block b = {};
    b.job = blockIdx.y;
    struct seq_now now = seq_at(u.a, b.job);
    b.from = max(first, u.first), b.to = min(first + IMAGE_TOKENS, u.first + u.tokens);
    b.gone = now.seq >= c.n_seqs;
    if (now.top && u.first < now.len && !aura_window_has(&c.window, aura_window_first(&c.window, now.top), u.first, now.len)) {
        if (threadIdx.x == 0)
            atomicOr(&c.seqs[now.seq].status, (uint32_t)AURA_CUDA_GONE);
        b.gone = 1;
    }
    if (b.gone)
        now.len = now.closed = 0;
    b.image = image_block_of(c, now.seq, now.len, now.closed, head, first);
    return b;
}

__device__ __forceinline__ int64_t unpacked_at(const struct dev_unpack &u, const struct dev_view &to, const struct unpack_block &b,
                                               uint32_t token)
{
    return b.job * to.seq + (token - u.first) * to.token + b.image.head * to.head;
}

/* What is not there, as NaN. */
__device__ __forceinline__ void unpack_nothing(const struct dev_unpack &u, const struct unpack_block &b, bool values)
{
    const struct dev_view &to = values ? u.v : u.k;
    const uint32_t dim = values ? u.a.c.v_dim : u.a.c.k_dim;
    if (to.data)
        for (uint32_t i = threadIdx.x; i < (b.to - b.from) * dim; i += blockDim.x)
            store_element(to.data, to.dtype, unpacked_at(u, to, b, b.from + i / dim) + i % dim, NAN);
}

/* A kernel of the call. */
struct unpack_kernel {
    const char *name;
    const void *run;
    uint32_t threads, shared_bytes;
};

/* decode_codes.cu: run NULL if it does not take this call. */
struct unpack_kernel unpack_codes_kernel(const struct dev_unpack &u);

#endif
