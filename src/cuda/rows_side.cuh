/* One side of a cache over plain arrays as kernels read it: packed codes with norms, or plain numbers. */
#ifndef AURA_CUDA_ROWS_SIDE_CUH
#define AURA_CUDA_ROWS_SIDE_CUH

#include <string.h>

#include "rows.cuh"

struct dev_rows_side {
    const uint8_t *rows;          /* token 0 of KV head 0 */
    size_t row_stride, head_rows; /* bytes from token to token; rows from head to head */
    const void *norms;            /* [row][parts]; NULL: plain numbers */
    const void *book;             /* [2^kind] */
    uint32_t kind, dim;           /* bits, or AURA_ROW_F32 ... */
    uint32_t norm_dtype, book_dtype, parts;
    float norm_factor;
};

static inline struct dev_rows_side packed_side(const aura_packed *p, uint32_t dim, size_t tokens)
{
    struct dev_rows_side s = {(const uint8_t *)p->codes,
                              aura_or(p->packed_stride, aura_row_bytes(dim, p->bits)),
                              aura_or(p->stride, tokens),
                              p->norms,
                              p->codebook,
                              p->bits,
                              dim,
                              (uint32_t)p->norm_dtype,
                              (uint32_t)p->codebook_dtype,
                              1,
                              1.f};
    return s;
}

/* A side of mlx-native. */
static inline struct dev_rows_side vec_side(const aura_cuda_rows *rows, const aura_vec_side *s, uint32_t dim, uint64_t capacity,
                                            float sf)
{
    const float *book = rows->tq + 256 * (s->bits == 4 ? 0 : s->bits == 5 ? 1 : s->bits == 6 ? 2 : 3);
    struct dev_rows_side d;
    memset(&d, 0, sizeof d);
    d.rows = (const uint8_t *)s->rows, d.head_rows = (size_t)capacity, d.dim = dim, d.parts = 1, d.norm_factor = 1;
    if (!s->bits) {
        d.kind = s->dtype == AURA_F32 ? AURA_ROW_F32 : s->dtype == AURA_F16 ? AURA_ROW_F16 : AURA_ROW_BF16;
        d.row_stride = dim * aura_dtype_bytes(s->dtype);
        return d;
    }
    d.kind = s->bits == 4 ? 4 : 8, d.row_stride = dim * d.kind / 8;
    d.norms = s->norms, d.norm_dtype = d.book_dtype = AURA_F32, d.book = book;
    d.parts = dim / 256, d.norm_factor = aura_tq_norm_factor(dim, sf);
    return d;
}

#ifdef __CUDACC__

/* The levels of every code, by all threads of a block. */
__device__ __forceinline__ void load_book(float *centroid, const struct dev_rows_side &s)
{
    for (uint32_t i = threadIdx.x; i < 256 && s.kind <= 8; i += blockDim.x)
        centroid[i] = s.book ? load_element(s.book, s.book_dtype, i & ((1u << s.kind) - 1)) : 0;
}

__device__ __forceinline__ const uint8_t *row_at(const struct dev_rows_side &s, size_t head, size_t t)
{
    return s.rows + (head * s.head_rows + t) * s.row_stride;
}

__device__ __forceinline__ float norm_at(const struct dev_rows_side &s, size_t head, size_t t, uint32_t part)
{
    return load_element(s.norms, s.norm_dtype, (int64_t)((head * s.head_rows + t) * s.parts + part)) * s.norm_factor;
}

/* Code d of a packed row. It reads no byte that is not the row's. */
__device__ __forceinline__ uint32_t code_at(const uint8_t *row, uint32_t bits, uint32_t d)
{
    const uint32_t at = d * bits, low = row[at / 8] >> at % 8;
    const uint32_t high = at % 8 + bits > 8 ? (uint32_t)row[at / 8 + 1] << (8 - at % 8) : 0;
    return (low | high) & ((1u << bits) - 1);
}

/* Coordinate d of a row, without its norm. */
__device__ __forceinline__ float coordinate(const struct dev_rows_side &s, const float *centroid, const uint8_t *row, uint32_t d)
{
    if (s.kind <= 8)
        return centroid[code_at(row, s.kind, d)];
    return load_element(row, s.kind == AURA_ROW_F32 ? AURA_F32 : s.kind == AURA_ROW_F16 ? AURA_F16 : AURA_BF16, d);
}

#endif
#endif
