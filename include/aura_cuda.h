/* aura on NVIDIA GPUs: the same cache, the same bytes, the same integers, in device memory.
 *
 * Built by `make cuda` into libaura_cuda, which needs libaura. Errors, structs and messages are those of aura.h; every error
 * of the CUDA runtime is AURA_DEVICE with its text.
 *
 * Streams  aura_cuda_append, aura_cuda_attend and aura_cuda_truncate only launch kernels on the stream they are given: they
 *          allocate nothing, wait for nothing and read nothing from the device, so a CUDA graph can capture them and replay
 *          them while sequences grow. Calls on one sequence must be ordered by their streams. The other calls change or read
 *          the cache from the host and wait for what they asked of the device; no call on the cache may be in flight on any
 *          stream during them.
 * Pages    Lengths live on the device, pages are handed out by the host: a sequence can be appended to as far as pages were
 *          reserved for it that no other sequence has. Pages that a fork shares are copied by aura_cuda_seq_reserve. In a cache with
 *          a window pages are used again, so that a sequence can go on for as many tokens as were reserved in few of them.
 * Threads  One thread at a time per cache.
 */
#ifndef AURA_CUDA_H
#define AURA_CUDA_H

#include "aura_file.h"

#ifdef __cplusplus
extern "C" {
#endif

struct CUstream_st; /* cudaStream_t is a pointer to it */

typedef struct aura_cuda_cache aura_cuda_cache;
typedef struct aura_cuda_workspace aura_cuda_workspace;
typedef uint32_t aura_cuda_seq; /* a sequence of one device cache: 0, 1, 2 ... below `seqs` of its configuration */

typedef struct aura_cuda_config {
    size_t size;
    aura_config cache;   /* as for aura_cache_create; budget_bytes is what may be allocated on the device, and must be given */
    int device;          /* ordinal */
    uint32_t seqs;       /* sequences that there can be at once, 1 to 65536; 0: 64 */
    uint64_t seq_tokens; /* tokens that one can have, below 2^31; 0: as many as the budget's pages hold. With a window, which holds on
                            to few of them, this is all that counts: 4 bytes of each sequence for every 256 */
    uint32_t batch_invariant; /* 1: what attention gives for a sequence depends on that sequence and its queries alone, bit for bit,
                                 and not on the rest of the batch nor on the GPU's multiprocessors. It costs time: doc/cuda.md */
} aura_cuda_config;
#define AURA_CUDA_CONFIG_INIT {sizeof(aura_cuda_config), AURA_CONFIG_INIT, 0, 0, 0, 0}

/* Whether device `device` can be used; the message says why not: no driver, no such device, one older than sm_80.
 * Fails: AURA_DEVICE. */
AURA_API aura_status aura_cuda_probe(int device);

/* Makes an empty cache on a device: all memory that it will ever have, taken at once. It keeps `ctx` for messages.
 * Fails: as aura_cache_create; AURA_UNSUPPORTED (slots, a format or dim without a kernel, keep_first beyond
 * the pinned tokens: 4, or none with AURA_NO_PINNED or two plain sides), AURA_OUT_OF_PAGES (a budget
 * in which no page fits), AURA_OUT_OF_MEMORY (of the device), AURA_DEVICE. */
AURA_API aura_status aura_cuda_cache_create(aura_ctx *ctx, const aura_cuda_config *config, aura_cuda_cache **cache);
AURA_API void aura_cuda_cache_destroy(aura_cuda_cache *cache); /* NULL is allowed */

typedef struct aura_cuda_cache_info {
    size_t size;
    aura_config config;       /* with the defaults filled in */
    size_t bytes;             /* of device memory */
    size_t page_bytes, pages, free_pages;
    uint32_t seqs, multiprocessors;
} aura_cuda_cache_info;
#define AURA_CUDA_CACHE_INFO_INIT {sizeof(aura_cuda_cache_info), AURA_CONFIG_INIT, 0, 0, 0, 0, 0, 0}
AURA_API aura_status aura_cuda_cache_get_info(const aura_cuda_cache *cache, aura_cuda_cache_info *info);

/* A new empty sequence. Fails: AURA_OUT_OF_PAGES (as many as there can be), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_create(aura_cuda_cache *cache, aura_cuda_seq *seq);
/* A new sequence that begins with the first `tokens` tokens of another and shares their pages; what it holds is as after
 * aura_seq_fork(). Before either is appended to, aura_cuda_seq_reserve() must give it pages of its own: until then appends to
 * it set AURA_CUDA_OUT_OF_PAGES.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it has; with a window, tokens that are gone, as
 * aura_truncate()), AURA_OUT_OF_PAGES (as many sequences as there can be), AURA_OUT_OF_MEMORY (of the host), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_fork(aura_cuda_cache *cache, aura_cuda_seq from, uint64_t tokens, aura_cuda_seq *seq);
/* Gives the pages back that no other sequence has. Fails: AURA_BAD_ARGUMENT, AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_release(aura_cuda_cache *cache, aura_cuda_seq seq);
/* Pages of its own for all that is appended until the sequence has `tokens` tokens: new ones, and copies of those that it
 * shares and would write to. A sequence never has more tokens than were reserved for it: the device takes no pages. With a window
 * it then has no more of them than aura_config says, and those that it shares besides, however many tokens are to come. What they push
 * out of the window goes back with the next reservation, fork or truncation.
 * Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY (of the host), AURA_TOO_LARGE (more than seq_tokens),
 * AURA_BAD_ARGUMENT, AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_reserve(aura_cuda_cache *cache, aura_cuda_seq seq, uint64_t tokens);
/* Keeps the first `tokens` tokens, as aura_truncate() does, and gives the pages back that are not needed for them, reserved or
 * not: reserve again before the next append. Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it
 * has; with a window, tokens that are gone), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_truncate(aura_cuda_cache *cache, aura_cuda_seq seq, uint64_t tokens);

/* What goes wrong on the device is kept with its sequence until aura_cuda_seq_clear_status(). */
enum {
    AURA_CUDA_BAD_VALUE = 1,    /* an append had NaN, Inf or a vector that is too long: nothing of it was stored */
    AURA_CUDA_OUT_OF_PAGES = 2, /* an append went beyond the reservation, or into pages that are shared: nothing of it was stored */
    AURA_CUDA_NOT_FINITE = 4,   /* rows of an attend are NaN, as with AURA_NOT_FINITE */
    AURA_CUDA_GONE = 8          /* aura_cuda_truncate() would have left, or a query seen, tokens that are out of the cache's window and
                                   gone: nothing was cut; all rows of that sequence are NaN */
};
typedef struct aura_cuda_seq_info {
    size_t size;
    uint64_t tokens, closed; /* as in aura_seq_info */
    uint64_t reserved;       /* tokens that it can have before it needs other pages */
    size_t pages, shared_pages; /* that it has; of these, those that others have too */
    uint32_t status;         /* AURA_CUDA_... bits; while one is set that is not AURA_CUDA_NOT_FINITE, appends do nothing */
    uint64_t first;          /* as in aura_seq_info */
} aura_cuda_seq_info;
#define AURA_CUDA_SEQ_INFO_INIT {sizeof(aura_cuda_seq_info), 0, 0, 0, 0, 0, 0, 0}
AURA_API aura_status aura_cuda_seq_get_info(const aura_cuda_cache *cache, aura_cuda_seq seq, aura_cuda_seq_info *info);
AURA_API aura_status aura_cuda_seq_clear_status(aura_cuda_cache *cache, aura_cuda_seq seq);

/* Copies a sequence of a CPU cache to an empty one on the device, and back: the same bytes. The caches must have been made
 * with equal configurations (budget apart). Fails, with nothing changed: AURA_BAD_ARGUMENT (other configurations, a target
 * that is not empty), AURA_UNSUPPORTED (slots), AURA_OUT_OF_PAGES, AURA_TOO_LARGE, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_upload(aura_cuda_cache *cache, aura_cuda_seq seq, const aura_cache *from, aura_seq from_seq);
AURA_API aura_status aura_cuda_download(const aura_cuda_cache *cache, aura_cuda_seq seq, aura_cache *to, aura_seq to_seq);

/* All sequences of a CPU cache as new ones of the device's, and all of the device's as new ones of a CPU cache: the same bytes; pages
 * that sequences share are shared there too. Neither cache need be empty. What became of which goes to pairs[*n], which has room for all
 * of them; either may be NULL. Fail like aura_cuda_upload() and aura_cuda_download(), also with AURA_OUT_OF_PAGES (sequences),
 * with nothing changed. */
typedef struct aura_cuda_pair {
    aura_seq host; /* in a CPU cache or a file */
    aura_cuda_seq device;
} aura_cuda_pair;
AURA_API aura_status aura_cuda_cache_upload(aura_cuda_cache *cache, const aura_cache *from, aura_cuda_pair *pairs, size_t *n);
AURA_API aura_status aura_cuda_cache_download(const aura_cuda_cache *cache, aura_cache *to, aura_cuda_pair *pairs, size_t *n);

/* All sequences, or those in `options`, to a snapshot, the file of aura_cache_save(), in which they have the names in `pairs`; and
 * those of a file, or the ones of them in `options`, as new sequences. What is loaded goes from the file to the device; what is saved
 * goes through memory of the host, as much as it takes.
 * Fail like aura_cache_save() and aura_seq_load() (AURA_BAD_ARGUMENT where the file is of another configuration: the message says in
 * what), and like the two above; loading with nothing changed. */
AURA_API aura_status aura_cuda_cache_save(const aura_cuda_cache *cache, const char *path, const aura_snapshot_options *options,
                                          aura_cuda_pair *pairs, size_t *n);
AURA_API aura_status aura_cuda_cache_load(aura_cuda_cache *cache, const char *path, const aura_snapshot_options *options,
                                          aura_cuda_pair *pairs, size_t *n);

/* The same for one sequence, as aura_seq_save() and aura_seq_load(). */
AURA_API aura_status aura_cuda_seq_save(const aura_cuda_cache *cache, aura_cuda_seq seq, const char *path,
                                        const aura_snapshot_options *options);
AURA_API aura_status aura_cuda_seq_load(aura_cuda_cache *cache, const char *path, const aura_snapshot_options *options,
                                        aura_cuda_seq *seq);

/* A tensor [sequence][token][head][dim] on the device. Strides in elements; 0: contiguous. */
typedef struct aura_cuda_view {
    void *data;
    aura_dtype dtype;
    ptrdiff_t seq_stride, token_stride, head_stride;
} aura_cuda_view;
#define AURA_CUDA_VIEW_INIT {NULL, AURA_F32, 0, 0, 0}

typedef struct aura_cuda_append_args {
    size_t size;
    const aura_cuda_seq *seqs; /* [n_seqs] on the device, all different */
    uint32_t n_seqs;           /* 1 to 4096 */
    uint32_t tokens;           /* of each sequence */
    const uint32_t *counts;    /* [n_seqs] on the device: only so many of the `tokens` of each; or NULL */
    aura_cuda_view k, v;       /* [n_seqs][tokens][kv_heads][k_dim], [...][v_dim]; only read */
} aura_cuda_append_args;
#define AURA_CUDA_APPEND_ARGS_INIT \
    {sizeof(aura_cuda_append_args), NULL, 0, 0, NULL, AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT}

/* Appends in one launch; the bytes are those of aura_append. What is wrong with the tokens of a sequence is found on the device:
 * then its status says so, nothing of them is stored, and the other sequences are not concerned.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT (also: more than max_queries tokens with a window), AURA_UNSUPPORTED (dtype),
 * AURA_DEVICE. */
AURA_API aura_status aura_cuda_append(aura_cuda_cache *cache, const aura_cuda_append_args *args, struct CUstream_st *stream);

/* Keeps the first tokens[i] tokens of seqs[i], or all where it has no more: on the stream, so that what a graph appended to check a
 * draft can be taken back by the graph. As aura_truncate(), but all pages stay reserved. Where it cuts into pages that are
 * shared, the next append sets AURA_CUDA_OUT_OF_PAGES: reserve again. With a window, tokens that are gone set AURA_CUDA_GONE.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT, AURA_DEVICE. */
AURA_API aura_status aura_cuda_truncate(aura_cuda_cache *cache, const aura_cuda_seq *seqs, const uint32_t *tokens, uint32_t n_seqs,
                                        struct CUstream_st *stream); /* seqs, tokens: [n_seqs] on the device; n_seqs 1 to 4096 */

/* Where an attend keeps its partial results. One call at a time may use it: make one per stream.
 * For calls of up to `seqs` sequences of `queries` queries each. Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_workspace_create(const aura_cuda_cache *cache, uint32_t seqs, uint32_t queries,
                                                aura_cuda_workspace **workspace);
AURA_API void aura_cuda_workspace_destroy(aura_cuda_workspace *workspace); /* NULL is allowed */

typedef struct aura_cuda_attend_args {
    size_t size;
    const aura_cuda_seq *seqs; /* [n_seqs] on the device */
    uint32_t n_seqs;           /* 1 to 4096 */
    uint32_t queries;          /* of each: 1 to 16, at its newest positions as in aura_attend_job. Those before position 0
                                  see nothing */
    aura_cuda_view q, out;     /* [n_seqs][queries][q_heads][k_dim], [...][v_dim] */
    float *lse;                /* [n_seqs][queries][q_heads] on the device, or NULL */
    const float *mask;         /* [n_seqs][queries][mask_keys] on the device, added to the logits of the last mask_keys keys, or NULL */
    uint32_t mask_keys;
    float scale, softcap;      /* as in aura_attend_options */
    uint64_t window;
    const float *sinks, *alibi; /* [q_heads] on the device, or NULL */
    uint32_t not_causal, planes;
} aura_cuda_attend_args;
#define AURA_CUDA_ATTEND_ARGS_INIT                                                                                     \
    {sizeof(aura_cuda_attend_args), NULL, 0, 0, AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT, NULL, NULL, 0, 0, 0, 0, NULL, \
     NULL, 0, 0}

/* Attention in one launch. The same call over the same sequences gives the same bits. Rows that are not finite are NaN and
 * set AURA_CUDA_NOT_FINITE; a number in seqs that is too large for a sequence gives NaN, one that was released is empty.
 * In a cache with a window, queries that would see tokens that are gone set AURA_CUDA_GONE.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT (also: more queries or a larger window than the cache's), AURA_UNSUPPORTED,
 * AURA_TOO_LARGE (for the workspace), AURA_DEVICE. */
AURA_API aura_status aura_cuda_attend(const aura_cuda_cache *cache, aura_cuda_workspace *workspace,
                                      const aura_cuda_attend_args *args, struct CUstream_st *stream);

#ifdef __cplusplus
}
#endif
#endif
