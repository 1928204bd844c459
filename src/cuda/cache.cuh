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

/* Pages of one size, of the layers that have such. A page of B bytes has the bytes [n B, (n + 1) B) of the arena, n being its
 * number; so layers with pages of other sizes have other numbers for the same bytes. */
struct page_class {
    size_t page_bytes;
    struct aura_page *page;     /* [n_pages] */
    uint32_t n_pages;           /* as many as the arena could hold */
    size_t given;               /* that are in slabs which the class has */
    struct aura_page_pool pool; /* those of them that are free */
};

/* The memory of a cache, or of all layers of a model: what they have once and for all, and the arena with the pages. The arena is
 * cut into slabs. A class of pages takes a slab when it has no free page left; where there is none, one of another class in which
 * every page is free. With a single class, one slab is all of it. */
struct aura_cuda_store {
    aura_ctx *ctx;
    int device;
    aura_cuda_allocator allocator;
    uint8_t *fixed, *arena;
    size_t fixed_bytes, arena_bytes, slab_bytes, budget;
    std::vector<struct page_class> classes;
    std::vector<uint32_t> slabs;           /* whose it is: the number of a class, or NO_CLASS */
    std::vector<aura_cuda_cache *> layers;
};
enum { NO_CLASS = UINT32_MAX };

struct aura_cuda_model_cache {
    struct aura_cuda_store store;
};

struct aura_cuda_cache {
    aura_ctx *ctx;
    aura_cache *shape;       /* an empty CPU cache of the same configuration: checks it, and has the layout and the plans */
    struct aura_backend_cache facts;
    int device;
    uint32_t multiprocessors, seqs, table_pages;
    size_t shared_limit;     /* bytes of shared memory that a block can have */
    size_t n_pages;          /* numbers that pages can have */
    struct aura_cuda_store *store;
    uint32_t page_class;     /* of the store */
    uint64_t slots;          /* 0: the cache has sequences. Otherwise sequence 0 has the pages of all slots, in their order */
    uint32_t is_layer;       /* 1: of a model, which makes and ends sequences, and owns the store */
    struct dev_seq *known;   /* [seqs] what the host has last read or written */
    uint64_t pages_copied, tiles_of_released;
    struct dev_cache dev;
    std::vector<struct attend_kernel> kernels; /* those that take this cache; the general ones last */
    std::vector<struct prefill_ready> prefill; /* the same for many queries */
    struct tile_map tiles;   /* of kernels with tile_rows */
    uint32_t batch_invariant;
    uint32_t by_images; /* 1: more than 16 queries take images, whatever is faster. For `aura check` and `aura bench` */
    struct aura_page_table page_table; /* whose pages are whose; the device has a copy of the lists */
};

/* What a workspace has for more than 16 queries: prefill.cuh. */
struct prefill_place {
    uint8_t *memory; /* NULL: nothing */
    uint32_t seqs, queries, room, beside;
    size_t state_at, chunks_at, jobs_at, done_at, made_at, carry_at, images_at, image_bytes;
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
    struct dev_seq *listed;  /* [seqs] with slots: what a call attends to, as sequences; and their numbers */
    uint32_t *ids;
    size_t partial_floats, partial_rows, counters;
    float *trace;            /* for checks: see dev_attend */
    uint32_t trace_tokens;
    struct prefill_place prefill;
};

/* device.cu: that a configuration is one that the device has. */
aura_status aura_cuda_check_kind(const aura_ctx *ctx, const char *call, const aura_config *config);

/* device.cu: a cache without memory; what it must have beside pages, with a base where it is; what it can do once it has memory. */
aura_status aura_cuda_cache_begin(aura_ctx *ctx, const char *call, const aura_config *config, const aura_cuda_config *with,
                                  aura_cuda_cache **cache);
aura_status aura_cuda_check_config(aura_ctx *ctx, const char *call, const aura_cuda_config *config);
uint32_t aura_cuda_table_pages(const aura_cuda_config *config, size_t page);
size_t aura_cuda_cache_carve(aura_cuda_cache *cache, uint8_t *base);
aura_status aura_cuda_cache_finish(aura_cuda_cache *cache, const char *call);

/* store.cu: memory for the layers of a store; which are begun, and whose table_pages are set. Frees it, and the layers. */
aura_status aura_cuda_store_make(struct aura_cuda_store *store, const char *call);
void aura_cuda_store_unmake(struct aura_cuda_store *store);
/* Memory of the device, by the allocator; NULL is allowed in free. */
aura_status aura_cuda_alloc(const struct aura_cuda_store *store, const char *call, size_t bytes, const char *what, void **memory);
void aura_cuda_free(const struct aura_cuda_store *store, void *memory, size_t bytes);
/* Another budget: all pages that are in use move to a new arena. Fails, with nothing changed, where they do not fit. */
aura_status aura_cuda_store_resize(struct aura_cuda_store *store, const char *call, size_t budget);
/* The free pages of a cache, after it has been seen to that there are `wanted`, if that can be. */
size_t aura_cuda_want_pages(const aura_cuda_cache *cache, size_t wanted);

/* The caches that a call changes together: one, or all layers of a model. A sequence has the same number in all of them. */
struct cache_group {
    aura_cuda_cache *const *layer;
    uint32_t n;
};

/* seq.cu: what the functions of sequences do, in all caches of a group or in none. */
aura_status aura_cuda_group_create(const struct cache_group &g, const char *call, aura_cuda_seq *seq);
aura_status aura_cuda_group_fork(const struct cache_group &g, const char *call, aura_cuda_seq from, uint64_t tokens,
                                 aura_cuda_seq *seq);
aura_status aura_cuda_group_release(const struct cache_group &g, const char *call, aura_cuda_seq seq);
aura_status aura_cuda_group_truncate(const struct cache_group &g, const char *call, aura_cuda_seq seq, uint64_t tokens);
aura_status aura_cuda_group_reserve(const struct cache_group &g, const char *call, aura_cuda_seq seq, uint64_t tokens,
                                    struct CUstream_st *stream, bool waits);
aura_status aura_cuda_group_select(const struct cache_group &g, const char *call, const aura_cuda_seq *from, size_t n_from,
                                   const uint32_t *which, size_t n, aura_cuda_seq *to);

/* seq.cu: that there is such a sequence; that the cache is no layer; what the device knows of a sequence. */
aura_status aura_cuda_check_alone(const aura_cuda_cache *cache, const char *call);
aura_status aura_cuda_check_seq(const aura_cuda_cache *cache, const char *call, aura_cuda_seq seq);
aura_status aura_cuda_read_seq(const aura_cuda_cache *cache, const char *call, aura_cuda_seq seq, struct dev_seq *state);
aura_status aura_cuda_write_seq(const aura_cuda_cache *cache, const char *call, aura_cuda_seq seq, const struct dev_seq *state);

/* The place of a new sequence; which of its pages a sequence may write to; entries [first, end) of its list to the device. */
aura_status aura_cuda_find_place(const aura_cuda_cache *cache, const char *call, aura_cuda_seq *seq);
void aura_cuda_set_limits(const aura_cuda_cache *cache, aura_cuda_seq seq, struct dev_seq *state);
cudaError_t aura_cuda_write_list(const aura_cuda_cache *cache, aura_cuda_seq seq, size_t first, size_t end);

/* The lists of all sequences to the device. */
aura_status aura_cuda_write_lists(const aura_cuda_cache *cache, const char *call);

/* copy.cu: that a CPU cache is like this one; the f16 rows of a sequence, one way or the other. */
aura_status aura_cuda_check_same(const aura_cuda_cache *cache, const char *call, const aura_cache *other);
cudaError_t aura_cuda_copy_rows(const aura_cuda_cache *cache, aura_cuda_seq seq, const struct aura_backend_seq *facts,
                                cudaMemcpyKind kind);

/* encoder.cu, append.cu, attend.cu: once per cache. side: of up to 4 bits; has the levels. */
void aura_cuda_make_encoder(struct dev_encoder *encoder, const struct aura_codec_plan *plan, const struct aura_side *side);
aura_status aura_cuda_prepare_append(aura_cuda_cache *cache, const char *call);
aura_status aura_cuda_prepare_attend(aura_cuda_cache *cache, const char *call);

/* append.cu, attend.cu: that the calls would be launched; the calls, for the public function named call. */
aura_status aura_cuda_check_append(const aura_cuda_cache *cache, const char *call, const aura_cuda_append_args *args);
aura_status aura_cuda_append_as(const aura_cuda_cache *cache, const char *call, const aura_cuda_append_args *args,
                                struct CUstream_st *stream);
aura_status aura_cuda_check_attend(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                                   const aura_cuda_attend_args *args);
aura_status aura_cuda_attend_as(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                                const aura_cuda_attend_args *args, struct CUstream_st *stream);

aura_status aura_cuda_write_slots(const aura_cuda_cache *cache, const char *call, struct dev_slots &write,
                                  struct CUstream_st *stream);

/* slots.cu: takes the pages of a cache of slots; the lists of a call as sequences, of which the call then is. */
aura_status aura_cuda_make_slots(aura_cuda_cache *cache, const char *call, uint64_t slots);
aura_status aura_cuda_list_slots(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                                 const aura_cuda_attend_args *args, struct CUstream_st *stream);

/* step.cu: what the queries of each sequence see, all together. */
aura_status aura_cuda_find_seen(const aura_cuda_cache *cache, const char *call, const struct dev_attend &a, uint2 *seen,
                                struct CUstream_st *stream);

/* tile_map.cu: what copy_tile() copies from: `rows` of 128 bytes at a time of the parts of pages that are a KV head's. */
aura_status aura_cuda_make_tile_map(struct aura_cuda_cache *cache, const char *call, uint32_t rows);

/* prefill.cu: once per cache; the bytes that a workspace needs for it; the images of a cache; the call, which is described. */
aura_status aura_cuda_prepare_prefill(aura_cuda_cache *cache, const char *call);
size_t aura_cuda_plan_prefill(aura_cuda_workspace *workspace, uint32_t seqs, uint32_t queries, size_t image_bytes,
                              size_t partial_bytes);
struct dev_images aura_cuda_images_of(const struct dev_cache *cache);
aura_status aura_cuda_prefill(const aura_cuda_cache *cache, const aura_cuda_workspace *workspace, const char *call,
                              const struct dev_attend &described, struct CUstream_st *stream);

/* Calls with this workspace write their logits there, on the device; NULL: no longer. For `aura check`. */
void aura_cuda_trace(aura_cuda_workspace *workspace, float *trace, uint32_t tokens);

/* device.cu: lets a kernel be launched with so much shared memory, or more. The permission belongs to the kernel, which several
 * caches use: what one of them needs is never taken away by another that needs less. */
cudaError_t aura_cuda_allow_shared(const void *kernel, size_t bytes);

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
