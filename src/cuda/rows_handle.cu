/* The handle of the row functions: its memory, what went wrong, launches. */
#include "rows.cuh"

#include <new>
#include <string.h>

aura_status aura_cuda_rows_launch(const aura_cuda_rows *rows, const char *call, const char *name, const void *kernel,
                                  const struct launch &how, void **params)
{
    on_device here(rows->device);
    const cudaError_t error = cudaLaunchKernel(kernel, how.blocks, dim3(how.threads), params, how.shared_bytes, how.stream);
    if (error == cudaSuccess && aura_cuda_tell_launch)
        aura_cuda_tell_launch(name);
    return cuda_status(rows->ctx, call, error, "launching a kernel");
}

struct dev_rotation aura_cuda_rotation_of(const aura_rotation *rotation, int undo)
{
    struct dev_rotation r;
    memset(&r, 0, sizeof r);
    if (!rotation)
        return r;
    r.dim = rotation->dim, r.undo = undo != 0, r.dense = rotation->kind == AURA_ROTATION_DENSE;
    r.balance = rotation->balance, r.matrix = rotation->matrix;
    if (r.dense)
        return r;
    struct aura_rotation_plan plan;
    aura_rotation_plan_init(&plan, rotation->dim, rotation->signs, NULL, undo);
    r.inner = plan.inner, r.outer = plan.outer, r.norm = plan.norm;
    for (uint32_t d = 0; d < r.dim; d++)
        r.sign[d / 32] |= (uint32_t)(plan.negative[d / AURA_LANES] >> d % AURA_LANES & 1) << d % 32;
    for (uint32_t i = 0; r.outer > 1 && i < r.outer; i++)
        for (uint32_t j = 0; j < r.outer; j++) {
            const uint32_t d = i * r.inner;
            r.paley[i] |= (uint64_t)(plan.outer_negative[d / AURA_LANES * r.outer + j] >> d % AURA_LANES & 1) << j;
        }
    return r;
}

/* Takes the memory and fills what calls read: no status, and the levels of TQ. */
static cudaError_t make_memory(aura_cuda_rows *rows)
{
    static const uint32_t widths[TQ_WIDTHS] = {4, 5, 6, 8};
    const size_t head = sizeof(struct dev_rows_status), tables = TQ_WIDTHS * 256 * sizeof(float);
    float levels[TQ_WIDTHS][256];
    int count = 0, shared = 0;
    const size_t apart = 4096; /* what a kernel has besides the memory of its launch, at most */
    cudaError_t error;
    if ((error = cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, rows->device)) != cudaSuccess ||
        (error = cudaDeviceGetAttribute(&shared, cudaDevAttrMaxSharedMemoryPerBlockOptin, rows->device)) != cudaSuccess ||
        (error = cudaMalloc(&rows->memory, head + tables + rows->scratch_bytes)) != cudaSuccess)
        return error;
    rows->multiprocessors = (uint32_t)count, rows->shared_limit = (size_t)shared > apart ? (size_t)shared - apart : 0;
    rows->status = (struct dev_rows_status *)rows->memory;
    rows->tq = (float *)(rows->memory + head);
    rows->scratch = rows->memory + head + tables;
    for (int i = 0; i < TQ_WIDTHS; i++)
        aura_tq_book(widths[i], levels[i]);
    if ((error = cudaMemset(rows->status, 0, head)) != cudaSuccess)
        return error;
    return when_done(cudaMemcpy(rows->tq, levels, tables, cudaMemcpyHostToDevice));
}

extern "C" aura_status aura_cuda_rows_create(const aura_ctx *ctx, int device, size_t scratch_bytes, aura_cuda_rows **rows)
{
    const char *call = "aura_cuda_rows_create";
    if (!ctx || !rows)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, ctx ? "rows" : "ctx");
    *rows = NULL;
    aura_status status = aura_cuda_probe(device);
    if (status)
        return status;
    if (scratch_bytes > SIZE_MAX / 2)
        return aura_backend_fail(ctx, AURA_OUT_OF_MEMORY, "%s: %zu bytes of scratch", call, scratch_bytes);
    aura_cuda_rows *made = new (std::nothrow) aura_cuda_rows();
    if (!made)
        return aura_backend_fail(ctx, AURA_OUT_OF_MEMORY, "%s: no memory of the host", call);
    on_device here(device);
    made->ctx = ctx, made->device = device, made->scratch_bytes = scratch_bytes ? scratch_bytes : (size_t)ROWS_SCRATCH;
    if ((status = cuda_status(ctx, call, make_memory(made), "making room for rows")))
        aura_cuda_rows_destroy(made);
    else
        *rows = made;
    return status;
}

extern "C" void aura_cuda_rows_destroy(aura_cuda_rows *rows)
{
    if (!rows)
        return;
    on_device here(rows->device);
    cudaFree(rows->memory);
    delete rows;
}

extern "C" aura_status aura_cuda_rows_finish(aura_cuda_rows *rows, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_rows_finish";
    struct dev_rows_status s = {0, 0, 0, 0}, none = {0, 0, 0, 0};
    aura_status status = check_rows_handle(rows, call);
    if (status)
        return status;
    on_device here(rows->device);
    cudaError_t error = cudaMemcpyAsync(&s, rows->status, sizeof s, cudaMemcpyDeviceToHost, stream);
    if (error == cudaSuccess)
        error = cudaStreamSynchronize(stream);
    if (error == cudaSuccess && memcmp(&s, &none, sizeof s)) {
        error = cudaMemcpyAsync(rows->status, &none, sizeof none, cudaMemcpyHostToDevice, stream);
        if (error == cudaSuccess)
            error = cudaStreamSynchronize(stream);
    }
    if ((status = cuda_status(rows->ctx, call, error, "waiting for the stream")))
        return status;
    if (s.bad_values)
        return aura_backend_fail(
            rows->ctx, AURA_BAD_VALUE,
            "%s: %u rows were not encoded, the first is row %u: NaN, Inf, a coordinate beyond 2^40, or a scale "
            "that its type cannot hold",
            call, s.bad_values, UINT32_MAX - s.bad_values_before);
    if (s.not_finite)
        return aura_backend_fail(rows->ctx, AURA_NOT_FINITE, "%s: %u of the rows are not finite and NaN now, the first is row %u",
                                 call, s.not_finite, UINT32_MAX - s.not_finite_before);
    return AURA_OK;
}
