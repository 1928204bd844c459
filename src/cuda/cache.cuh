/* A device cache on the host's side. */
#ifndef AURA_CUDA_CACHE_CUH
#define AURA_CUDA_CACHE_CUH

#include <vector>

#include "../../include/aura_cuda.h"
#include "device.cuh"
#include "kernels.cuh"

/* A kernel for many queries, and how many blocks of threads it is launched with. */
struct prefill_ready {
    struct prefill_kernel kernel;
    uint32_t blocks;
};

struct aura_cuda_cache {
    aura_ctx *ctx;
    aura_cache *shape;       /* an empty CPU cache of the same configuration: checks it, and has the layout and the plans */
    struct aura_backend_cache facts;
    int device;
    uint32_t multiprocessors, seqs, table_pages;
    size_t shared_limit;     /* bytes of shared memory that a block can have */
    size_t bytes, n_pages;
    uint8_t *memory;         /* all of it */
    struct dev_cache dev;
    std::vector<struct attend_kernel> kernels; /* those that take this cache; the general ones last */
    std::vector<struct prefill_ready> prefill; /* the same for many queries */
    struct tile_map tiles;   /* of kernels with tile_rows */
    uint32_t batch_invariant;
    struct aura_page_table page_table; /* whose pages are whose; the device has a copy of the lists */
};

/* What a workspace has for more than 16 queries: prefill.cuh. */
struct prefill_place {
    uint8_t *memory; /* NULL: nothing */
    uint32_t seqs, queries, room, beside;
    size_t state_at, chunks_at, jobs_at, done_at, carry_at, images_at;
};

struct aura_cuda_workspace {
    const aura_cuda_cache *cache;
    uint8_t *memory;
    size_t bytes;
    float *partial;
    float2 *partial_ml;
    uint32_t *counter;
    uint32_t seqs;
    uint2 *seen;             /* [seqs]: see dev_attend */
    size_t partial_floats, partial_rows, counters;
    float *trace;            /* for checks: see dev_attend */
    uint32_t trace_tokens;
    struct prefill_place prefill;
};

/* device.cu: that a configuration is one that the device has. */
aura_status aura_cuda_check_kind(const aura_ctx *ctx, const char *call, const aura_config *config);

/* seq.cu: that there is such a sequence; what the device knows of it. */
aura_status aura_cuda_check_seq(const aura_cuda_cache *cache, const char *call, aura_cuda_seq seq);
aura_status aura_cuda_read_seq(const aura_cuda_cache *cache, const char *call, aura_cuda_seq seq, struct dev_seq *state);
aura_status aura_cuda_write_seq(const aura_cuda_cache *cache, const char *call, aura_cuda_seq seq, const struct dev_seq *state);

/* The place of a new sequence; which of its pages a sequence may write to; entries [first, end) of its list to the device. */
aura_status aura_cuda_find_place(const aura_cuda_cache *cache, const char *call, aura_cuda_seq *seq);
void aura_cuda_set_limits(const aura_cuda_cache *cache, aura_cuda_seq seq, struct dev_seq *state);
cudaError_t aura_cuda_write_list(const aura_cuda_cache *cache, aura_cuda_seq seq, size_t first, size_t end);

/* copy.cu: that a CPU cache is like this one; the f16 rows of a sequence, one way or the other. */
aura_status aura_cuda_check_same(const aura_cuda_cache *cache, const char *call, const aura_cache *other);
cudaError_t aura_cuda_copy_rows(const aura_cuda_cache *cache, aura_cuda_seq seq, const struct aura_backend_seq *facts,
                                cudaMemcpyKind kind);

/* encoder.cu, append.cu, attend.cu: once per cache. side: of up to 4 bits; has the levels. */
void aura_cuda_make_encoder(struct dev_encoder *encoder, const struct aura_codec_plan *plan, const struct aura_side *side);
aura_status aura_cuda_prepare_append(const aura_cuda_cache *cache, const char *call);
aura_status aura_cuda_prepare_attend(aura_cuda_cache *cache, const char *call);

/* append.cu, attend.cu: that the calls would be launched; the calls, for the public function named call. */
aura_status aura_cuda_check_append(const aura_cuda_cache *cache, const char *call, const aura_cuda_append_args *args);
aura_status aura_cuda_append_as(const aura_cuda_cache *cache, const char *call, const aura_cuda_append_args *args,
                                struct CUstream_st *stream);
aura_status aura_cuda_check_attend(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                                   const aura_cuda_attend_args *args);
aura_status aura_cuda_attend_as(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                                const aura_cuda_attend_args *args, struct CUstream_st *stream);

/* step.cu: what the queries of each sequence see, all together. */
aura_status aura_cuda_find_seen(const aura_cuda_cache *cache, const char *call, const struct dev_attend &a, uint2 *seen,
                                struct CUstream_st *stream);

/* tile_map.cu: what copy_tile() copies from: `rows` of 128 bytes at a time of the parts of pages that are a KV head's. */
aura_status aura_cuda_make_tile_map(struct aura_cuda_cache *cache, const char *call, uint32_t rows);

/* prefill.cu: once per cache; the bytes that a workspace needs for it; the images of a cache; the call, which is described. */
aura_status aura_cuda_prepare_prefill(aura_cuda_cache *cache, const char *call);
size_t aura_cuda_plan_prefill(aura_cuda_workspace *workspace, uint32_t seqs, uint32_t queries, size_t image_bytes);
struct dev_images aura_cuda_images_of(const struct dev_cache *cache);
aura_status aura_cuda_prefill(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                              const struct dev_attend &described, struct CUstream_st *stream);

/* Calls with this workspace write their logits there, on the device; NULL: no longer. For `aura check`. */
void aura_cuda_trace(aura_cuda_workspace *workspace, float *trace, uint32_t tokens);

/* How a kernel is launched. */
struct launch {
    dim3 blocks;
    uint32_t threads;
    size_t shared_bytes;
    struct CUstream_st *stream;
};

/* device.cu: launches a kernel of the list. Where there is somebody to be told, it is told the name; `aura check` sets this
 * once, before its first call, to count the kernels that ran. */
aura_status aura_cuda_launch(const aura_cuda_cache *cache, const char *call, const char *name, const void *kernel,
                             const struct launch &how, void **params);
extern void (*aura_cuda_tell_launch)(const char *name);

/* The device of a cache is the current one while this lives. */
struct on_device {
    int before;
    explicit on_device(int device)
    {
        if (cudaGetDevice(&before) != cudaSuccess)
            before = device;
        cudaSetDevice(device);
    }
    ~on_device()
    {
        cudaSetDevice(before);
    }
};

/* A tensor of the caller's for kernels, strides of 0 filled in. tokens: of a sequence. */
static inline struct dev_view view_of(const aura_cuda_view *v, uint32_t tokens, uint32_t heads, uint32_t dim)
{
    struct dev_view d = {v->data, (uint32_t)v->dtype, v->seq_stride, v->token_stride, v->head_stride};
    d.head = d.head ? d.head : dim;
    d.token = d.token ? d.token : d.head * heads;
    d.seq = d.seq ? d.seq : d.token * tokens;
    return d;
}

/* AURA_OK, or the status of a CUDA error with its text. Errors that are not of the device's making are forgotten by it. */
static inline aura_status cuda_status(const aura_ctx *ctx, const char *call, cudaError_t error, const char *what)
{
    if (error == cudaSuccess)
        return AURA_OK;
    cudaGetLastError();
    return aura_backend_fail(ctx, error == cudaErrorMemoryAllocation ? AURA_OUT_OF_MEMORY : AURA_DEVICE, "%s: %s: %s (%s)", call,
                             what, cudaGetErrorString(error), cudaGetErrorName(error));
}

/* What was asked of the default stream is done. Copies may return before they are, and a caller's stream need not wait for them. */
static inline cudaError_t when_done(cudaError_t error)
{
    return error == cudaSuccess ? cudaStreamSynchronize(0) : error;
}

#endif
