/* Rows of codes as numbers. */
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
