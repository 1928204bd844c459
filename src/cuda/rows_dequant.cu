/* Rows of codes as numbers; and numbers as rows of a plain cache. */
#include "rows_side.cuh"

enum { DEQUANT_THREADS = 256, EIGHT = 8 };

struct dev_dequant {
    struct dev_rows_side rows;
    uint32_t kv_heads, out_dtype;
    size_t tokens, out_stride; /* rows */
    void *out;
};

/* A thread has eight coordinates, whose codes are as many bytes as a code has bits. */
extern "C" __global__ void __launch_bounds__(DEQUANT_THREADS) aura_rows_dequant_cuda(const __grid_constant__ struct dev_dequant a)
{
    __shared__ float centroid[256];
    load_book(centroid, a.rows);
    __syncthreads();
    const uint32_t bits = a.rows.kind, mask = (1u << bits) - 1, eights = a.rows.dim / EIGHT;
    const size_t n = (size_t)a.kv_heads * a.tokens * eights, step = (size_t)gridDim.x * DEQUANT_THREADS;
    for (size_t i = (size_t)blockIdx.x * DEQUANT_THREADS + threadIdx.x; i < n; i += step) {
        const size_t row = i / eights, head = row / a.tokens, t = row % a.tokens;
        const uint32_t eight = (uint32_t)(i % eights);
        const uint8_t *from = row_at(a.rows, head, t) + eight * bits;
        const float norm = norm_at(a.rows, head, t, 0);
        uint64_t codes = 0;
        for (uint32_t k = 0; k < bits; k++)
            codes |= (uint64_t)from[k] << 8 * k;
        for (uint32_t k = 0; k < EIGHT; k++)
            store_element(a.out, a.out_dtype, (int64_t)((head * a.out_stride + t) * a.rows.dim + eight * EIGHT + k),
                          __fmul_rn(centroid[codes >> k * bits & mask], norm));
    }
}

extern "C" aura_status aura_cuda_dequant(aura_cuda_rows *rows, const aura_dequant_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_dequant";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_dequant(call, a)) || a->tokens == 0)
        return status;
    struct dev_dequant d = {packed_side(&a->rows, a->dim, a->tokens), a->kv_heads, (uint32_t)a->out_dtype, a->tokens,
                            aura_or(a->out_stride, a->tokens),        a->out};
    const size_t wanted = ((size_t)a->kv_heads * a->tokens * (a->dim / EIGHT) + DEQUANT_THREADS - 1) / DEQUANT_THREADS;
    const size_t most = (size_t)rows->multiprocessors * 32;
    const struct launch how = {dim3((uint32_t)(wanted < most ? wanted : most)), DEQUANT_THREADS, 0, stream};
    void *params[] = {&d};
    return aura_cuda_rows_launch(rows, name, "rows_dequant_cuda", (const void *)aura_rows_dequant_cuda, how, params);
}

/* ---- TQ -------------------------------------------------------------------------------------------------------------- */

struct dev_tq_dequant {
    struct dev_rows_side side;
    uint32_t kv_heads;
    uint64_t slot;
    float *out;
};

/* A block has a head of the slot. */
extern "C" __global__ void __launch_bounds__(DEQUANT_THREADS)
    aura_rows_tq_dequant_cuda(const __grid_constant__ struct dev_tq_dequant a)
{
    __shared__ float centroid[256];
    load_book(centroid, a.side);
    __syncthreads();
    const uint8_t *row = row_at(a.side, blockIdx.x, a.slot);
    for (uint32_t d = threadIdx.x; d < a.side.dim; d += DEQUANT_THREADS)
        a.out[(size_t)blockIdx.x * a.side.dim + d] =
            __fmul_rn(coordinate(a.side, centroid, row, d), norm_at(a.side, blockIdx.x, a.slot, d / AURA_TQ_PART));
}

extern "C" aura_status aura_cuda_tq_dequant(aura_cuda_rows *rows, const aura_tq_dequant_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_tq_dequant";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_tq_dequant(call, a)))
        return status;
    const aura_vec_side side = {a->bits, AURA_F32, a->packed, a->norms};
    struct dev_tq_dequant d = {vec_side(rows, &side, a->dim, a->capacity, a->scale_factor_d512), a->kv_heads, a->slot, a->out};
    const struct launch how = {dim3(a->kv_heads), DEQUANT_THREADS, 0, stream};
    void *params[] = {&d};
    return aura_cuda_rows_launch(rows, name, "rows_tq_dequant_cuda", (const void *)aura_rows_tq_dequant_cuda, how, params);
}

/* ---- plain caches ---------------------------------------------------------------------------------------------------- */

extern "C" __global__ void __launch_bounds__(DEQUANT_THREADS) aura_rows_kv_copy_cuda(const __grid_constant__ aura_kv_copy_args a)
{
    const uint64_t n = a.tokens * a.heads * a.dim, step = (uint64_t)gridDim.x * DEQUANT_THREADS;
    const uint64_t first = a.sliding ? a.write_pos % a.capacity : a.write_pos;
    for (uint64_t i = (uint64_t)blockIdx.x * DEQUANT_THREADS + threadIdx.x; i < n; i += step) {
        const uint64_t token = i / a.dim / a.heads, head = i / a.dim % a.heads, to = first + token;
        const uint64_t slot = to < a.capacity ? to : to - a.capacity;
        const uint64_t row = a.token_major ? slot * a.heads + head : head * a.capacity + slot;
        store_element(a.cache, a.cache_dtype, (int64_t)(row * a.dim + i % a.dim), load_element(a.in, a.in_dtype, (int64_t)i));
    }
}

extern "C" aura_status aura_cuda_kv_copy(aura_cuda_rows *rows, const aura_kv_copy_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_kv_copy";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_kv_copy(call, a)) || a->tokens == 0)
        return status;
    const uint64_t wanted = (a->tokens * a->heads * a->dim + DEQUANT_THREADS - 1) / DEQUANT_THREADS;
    const uint64_t most = (uint64_t)rows->multiprocessors * 32;
    aura_kv_copy_args copy = *a;
    const struct launch how = {dim3((uint32_t)(wanted < most ? wanted : most)), DEQUANT_THREADS, 0, stream};
    void *params[] = {&copy};
    return aura_cuda_rows_launch(rows, name, "rows_kv_copy_cuda", (const void *)aura_rows_kv_copy_cuda, how, params);
}
