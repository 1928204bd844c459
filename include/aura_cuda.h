/* aura on NVIDIA GPUs: the same cache, the same bytes, the same integers, in device memory.
 *
 * `make cuda` builds it into libaura_cuda, which needs libaura. Errors, structs, owners and messages are those of aura.h. Every
 * error of the CUDA runtime is AURA_DEVICE with its text.
 *
 * Streams  aura_cuda_append, aura_cuda_attend, aura_cuda_step, aura_cuda_truncate and aura_cuda_unpack only launch kernels on the
 *          stream they are given. They allocate nothing, wait for nothing and read nothing from the device, so a CUDA graph can
 *          capture them and replay them while sequences grow. The streams must order the calls on one sequence. The other calls
 *          change or read the cache from the host and wait for the device; while they run, no call on the cache may be in flight
 *          on any stream.
 * Pages    Lengths are on the device; the host hands out pages. An append needs pages that were reserved for its sequence and
 *          that no other sequence shares. aura_cuda_seq_reserve copies the pages that a fork shares. In a cache with a window
 *          the device uses pages again: a few of them serve as many tokens as were reserved.
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

/* Where memory of the device comes from: that of caches, models and workspaces. Give both functions or neither; neither means
 * cudaMalloc(). alloc returns memory of the current device, aligned to 256, that work on `stream` may use, or NULL. free gets the
 * same bytes, when no work on them is left. Functions that create, destroy or resize call them, and wait for `stream`. They must
 * not call the library. */
typedef struct aura_cuda_allocator {
    void *(*alloc)(void *user, size_t bytes, struct CUstream_st *stream);
    void (*free)(void *user, void *memory, size_t bytes, struct CUstream_st *stream);
    void *user;
    struct CUstream_st *stream;
} aura_cuda_allocator;

typedef struct aura_cuda_config {
    size_t size;
    aura_config cache;   /* as for aura_cache_create; budget_bytes is what may be allocated on the device, and must be given */
    int device;          /* ordinal */
    uint32_t seqs;       /* sequences that there can be at once, 1 to 65536; 0: 64 */
    uint64_t seq_tokens; /* tokens that one can have, below 2^31; 0: as many as the budget's pages hold. It costs 4 bytes of
                            each sequence for every 256 tokens, also with a window, where most of the tokens are gone */
    uint32_t batch_invariant; /* 1: a row of attention depends on its query, on the tokens that it sees as they are stored
                                 then, and on the options alone, bit for bit: not on the rest of the batch, nor on how many
                                 queries were asked at once (among calls of 1 to 16; and among those of more), nor on how
                                 tokens were divided into calls, nor on the GPU's multiprocessors. It costs time and
                                 workspace: doc/cuda.md */
    aura_cuda_allocator allocator;
} aura_cuda_config;
#define AURA_CUDA_CONFIG_INIT {sizeof(aura_cuda_config), AURA_CONFIG_INIT, 0, 0, 0, 0, {NULL, NULL, NULL, NULL}}

/* Whether device `device` can be used. Fails: AURA_DEVICE (no driver, no such device, one older than sm_80: the message says
 * which). */
AURA_API aura_status aura_cuda_probe(int device);

/* Makes an empty cache on a device and takes all the memory that it will ever have. The caller owns *cache.
 * Fails: as aura_cache_create(); AURA_UNSUPPORTED (also: a format or dim without a kernel; AURA_LEARN; less shared memory
 * than searching for codes takes), AURA_OUT_OF_PAGES (a budget in which no page fits), AURA_OUT_OF_MEMORY (also: of the device),
 * AURA_DEVICE. */
AURA_API aura_status aura_cuda_cache_create(aura_ctx *ctx, const aura_cuda_config *config, aura_cuda_cache **cache);

/* Frees a cache and all its sequences; NULL is allowed. Never fails. */
AURA_API void aura_cuda_cache_destroy(aura_cuda_cache *cache);

/* Gives a cache another budget, a larger one or one that still holds the pages that are in use. All of these move to new memory,
 * which is there beside the old for the call. seqs and seq_tokens stay as they are: plan them for the largest budget. Graphs
 * that were captured before must not be replayed: capture them again.
 * Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT (also: a layer of a model), AURA_DEVICE. */
AURA_API aura_status aura_cuda_cache_resize(aura_cuda_cache *cache, size_t budget_bytes);

typedef struct aura_cuda_cache_info {
    size_t size;
    aura_config config;       /* with the defaults filled in */
    size_t bytes;             /* of device memory */
    size_t budget_bytes;
    size_t page_bytes, pages, free_pages;
    uint32_t seqs, multiprocessors; /* seqs: that there can be */
    uint32_t seqs_in_use;
    size_t shared_pages, holders;   /* these five as in aura_cache_info */
    uint64_t tokens, token_slots;
    uint64_t pages_copied, tiles_closed;
} aura_cuda_cache_info;
#define AURA_CUDA_CACHE_INFO_INIT {sizeof(aura_cuda_cache_info), AURA_CONFIG_INIT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info. It waits for the device. In a layer of a model, bytes are those of all layers; pages, free_pages and
 * shared_pages are those of all layers whose pages are as large. Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_cache_get_info(const aura_cuda_cache *cache, aura_cuda_cache_info *info);

/* Makes an empty sequence. Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_PAGES (as many sequences as there can be), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_create(aura_cuda_cache *cache, aura_cuda_seq *seq);

/* Makes a sequence that begins with the first `tokens` tokens of another and shares their pages, as aura_seq_fork() does.
 * Before either is appended to, aura_cuda_seq_reserve() must give it pages that it does not share. Until then an append to it
 * sets AURA_CUDA_OUT_OF_PAGES.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it has; with a window, tokens that are
 * gone, as in aura_truncate()), AURA_OUT_OF_PAGES (as many sequences as there can be), AURA_OUT_OF_MEMORY (of the host),
 * AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_fork(aura_cuda_cache *cache, aura_cuda_seq from, uint64_t tokens, aura_cuda_seq *seq);

/* Ends a sequence. The pages that it does not share go back to the cache. Fails: AURA_BAD_ARGUMENT (no such sequence),
 * AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_release(aura_cuda_cache *cache, aura_cuda_seq seq);

/* Gives the sequence all pages that it needs until it has `tokens` tokens: new ones, and copies of those that it shares and
 * would write to. The device takes no pages itself, so a sequence never has more tokens than were reserved for it. With a
 * window a sequence has at most the pages that aura_config says, and those that it shares, however many tokens follow. Pages
 * whose tokens have left the window go back with the next reservation, fork or truncation.
 * Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY (of the host), AURA_TOO_LARGE (more than seq_tokens),
 * AURA_BAD_ARGUMENT (no such sequence), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_reserve(aura_cuda_cache *cache, aura_cuda_seq seq, uint64_t tokens);

/* The same without waiting: pages are copied and lists written on the stream, after what is on it already and before what follows.
 * It can be called while work on the cache is in flight on that stream, and be captured. The host goes by what it knew of the
 * sequence when one of the other calls last looked at it: it copies shared pages from the one on to which the next append
 * would then have written, and gives back no pages of a window. Where aura_cuda_truncate() has cut below that page since, appends
 * set AURA_CUDA_OUT_OF_PAGES until aura_cuda_seq_reserve(). Fails as that does. */
AURA_API aura_status aura_cuda_seq_reserve_on(aura_cuda_cache *cache, aura_cuda_seq seq, uint64_t tokens,
                                              struct CUstream_st *stream);

/* For beams, as aura_model_seqs_select(): to[i] becomes from[which[i]]. A sequence that is chosen keeps its number in the first
 * place that has it and is forked, whole, for the others; those that nobody chose are released. `to` may be `from`. Reserve before
 * the next append.
 * Fails, with nothing changed, as aura_cuda_seq_fork() does; AURA_BAD_ARGUMENT also where `from` has one twice. */
AURA_API aura_status aura_cuda_seqs_select(aura_cuda_cache *cache, const aura_cuda_seq *from, size_t n_from, const uint32_t *which,
                                           size_t n, aura_cuda_seq *to);

/* Cuts a sequence to its first `tokens` tokens, as aura_truncate() does. All pages that these do not need go back to the
 * cache, reserved or not: reserve again before the next append.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it has; with a window, tokens that are
 * gone), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_truncate(aura_cuda_cache *cache, aura_cuda_seq seq, uint64_t tokens);

/* What goes wrong on the device sets a bit of its sequence, which stays set until aura_cuda_seq_clear_status(). */
enum {
    AURA_CUDA_BAD_VALUE = 1,    /* an append had NaN, Inf or a vector that is too long: nothing of it was stored */
    AURA_CUDA_OUT_OF_PAGES = 2, /* an append went beyond the reservation, or into shared pages: nothing of it was stored */
    AURA_CUDA_NOT_FINITE = 4,   /* rows of an attend are NaN, as with AURA_NOT_FINITE */
    AURA_CUDA_GONE = 8,         /* tokens that have left the cache's window were needed: aura_cuda_truncate() cut nothing, or
                                   all rows of the sequence in an attend are NaN */
    AURA_CUDA_NO_SLOT = 16      /* of a cache of slots: there is no such slot or page; nothing was stored for it */
};
typedef struct aura_cuda_seq_info {
    size_t size;
    uint64_t tokens, closed; /* as in aura_seq_info */
    uint64_t reserved;       /* tokens that it can have before it needs other pages */
    size_t pages, shared_pages; /* that it has; of these, shared with other sequences */
    uint32_t status;         /* AURA_CUDA_... bits; while any but AURA_CUDA_NOT_FINITE is set, appends do nothing */
    uint64_t first;          /* as in aura_seq_info */
} aura_cuda_seq_info;
#define AURA_CUDA_SEQ_INFO_INIT {sizeof(aura_cuda_seq_info), 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info. Fails: AURA_BAD_ARGUMENT (no such sequence), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_get_info(const aura_cuda_cache *cache, aura_cuda_seq seq, aura_cuda_seq_info *info);

/* Clears the status bits of a sequence. Fails: AURA_BAD_ARGUMENT (no such sequence), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_clear_status(aura_cuda_cache *cache, aura_cuda_seq seq);

/* ---- models -------------------------------------------------------------------------------------------------------
 *
 * aura_cuda_model_cache is the caches of all layers of a model on a device, as aura_model_cache is on the CPU: each has its own
 * format and window; all share one budget. A sequence is in all of them under one number. Append, attend and the other calls on
 * a stream work on the layers, which are caches like any other, with one exception: only the functions here create, fork, select
 * and release sequences. Those of one cache fail with AURA_BAD_ARGUMENT, and so do those that load or upload new ones. */
typedef struct aura_cuda_model_cache aura_cuda_model_cache;

typedef struct aura_cuda_model_config {
    size_t size;
    uint32_t layers;             /* 1 to 65536 */
    const aura_config *configs;  /* [layers]; budget_bytes and slots must be 0 */
    const aura_profile *profile; /* as in aura_model_config; NULL: none */
    size_t budget_bytes;         /* what all layers may allocate on the device; must be given */
    int device;
    uint32_t seqs;               /* as in aura_cuda_config, for all layers, like the next two */
    uint64_t seq_tokens;         /* 0: as many as the budget holds, with a page of each layer for 256 tokens */
    uint32_t batch_invariant;
    aura_cuda_allocator allocator;
} aura_cuda_model_config;
#define AURA_CUDA_MODEL_CONFIG_INIT {sizeof(aura_cuda_model_config), 0, NULL, NULL, 0, 0, 0, 0, 0, {NULL, NULL, NULL, NULL}}

/* Makes the caches of a model, without sequences, and takes all their memory. The caller owns *model.
 * Fails: as aura_cuda_cache_create(); AURA_BAD_ARGUMENT also where the profile has other layers, heads or dims. */
AURA_API aura_status aura_cuda_model_cache_create(aura_ctx *ctx, const aura_cuda_model_config *config,
                                                  aura_cuda_model_cache **model);

/* Frees a model's caches and all its sequences; NULL is allowed. Workspaces of its layers are destroyed before. Never fails. */
AURA_API void aura_cuda_model_cache_destroy(aura_cuda_model_cache *model);

/* aura_cuda_cache_resize() for all layers. Fails as that does. */
AURA_API aura_status aura_cuda_model_cache_resize(aura_cuda_model_cache *model, size_t budget_bytes);

typedef struct aura_cuda_model_cache_info {
    size_t size;
    uint32_t layers;
    size_t bytes, budget_bytes; /* of device memory */
    size_t seqs;                /* that there are */
    size_t pages, free_pages;   /* of all layers. The bytes of a page differ from layer to layer: aura_cuda_cache_get_info() */
    size_t free_bytes;          /* that are no layer's pages yet: any may take them */
    uint64_t tokens;            /* of all layers, as the next two */
    uint64_t pages_copied, tiles_closed;
} aura_cuda_model_cache_info;
#define AURA_CUDA_MODEL_CACHE_INFO_INIT {sizeof(aura_cuda_model_cache_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info. It waits for the device. Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_model_cache_get_info(const aura_cuda_model_cache *model, aura_cuda_model_cache_info *info);

/* The cache of a layer. The model owns it: do not destroy it. NULL where there is no such layer. Never fails. */
AURA_API aura_cuda_cache *aura_cuda_model_cache_layer(const aura_cuda_model_cache *model, uint32_t layer);

/* These do in all layers what aura_cuda_seq_create(), _fork(), _release(), _truncate(), _reserve(), _reserve_on() and
 * aura_cuda_seqs_select() do in one. Fail as those do, then in no layer; AURA_BAD_ARGUMENT also where one layer has fewer than
 * `tokens` tokens, for fork and truncate; AURA_OUT_OF_MEMORY also of the host. */
AURA_API aura_status aura_cuda_model_seq_create(aura_cuda_model_cache *model, aura_cuda_seq *seq);
AURA_API aura_status aura_cuda_model_seq_fork(aura_cuda_model_cache *model, aura_cuda_seq from, uint64_t tokens,
                                              aura_cuda_seq *seq);
AURA_API aura_status aura_cuda_model_seq_release(aura_cuda_model_cache *model, aura_cuda_seq seq);
AURA_API aura_status aura_cuda_model_seq_truncate(aura_cuda_model_cache *model, aura_cuda_seq seq, uint64_t tokens);
AURA_API aura_status aura_cuda_model_seq_reserve(aura_cuda_model_cache *model, aura_cuda_seq seq, uint64_t tokens);
AURA_API aura_status aura_cuda_model_seq_reserve_on(aura_cuda_model_cache *model, aura_cuda_seq seq, uint64_t tokens,
                                                    struct CUstream_st *stream);
AURA_API aura_status aura_cuda_model_seqs_select(aura_cuda_model_cache *model, const aura_cuda_seq *from, size_t n_from,
                                                 const uint32_t *which, size_t n, aura_cuda_seq *to);

/* ---- copies and files -------------------------------------------------------------------------------------------- */

/* Copies a sequence of a CPU cache to an empty one on the device, and back: the same bytes. The two caches must have equal
 * configurations, except for the budget and what the CPU's may have besides: AURA_LEARN, metrics, q_heads 0.
 * Fail, with nothing changed: AURA_BAD_ARGUMENT (other configurations, a target that is not empty), AURA_UNSUPPORTED (slots),
 * AURA_OUT_OF_PAGES, AURA_TOO_LARGE, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_upload(aura_cuda_cache *cache, aura_cuda_seq seq, const aura_cache *from, aura_seq from_seq);
AURA_API aura_status aura_cuda_download(const aura_cuda_cache *cache, aura_cuda_seq seq, aura_cache *to, aura_seq to_seq);

typedef struct aura_cuda_pair {
    aura_seq host; /* in a CPU cache: an id; in a file: a number */
    aura_cuda_seq device;
} aura_cuda_pair;

/* Copy all sequences of a CPU cache to new ones on the device, and all of the device to new ones of a CPU cache: the same
 * bytes. Pages that sequences share are shared in the copy too. Neither cache need be empty. *n pairs say which sequence became
 * which; pairs must have room for all of them. pairs and n may be NULL.
 * Fail as aura_cuda_upload() and aura_cuda_download() do, with nothing changed; AURA_OUT_OF_PAGES also where there cannot be so
 * many sequences. */
AURA_API aura_status aura_cuda_cache_upload(aura_cuda_cache *cache, const aura_cache *from, aura_cuda_pair *pairs, size_t *n);
AURA_API aura_status aura_cuda_cache_download(const aura_cuda_cache *cache, aura_cache *to, aura_cuda_pair *pairs, size_t *n);

/* Save all sequences, or those in `options`, to a snapshot, the file of aura_cache_save(), and load all sequences of such a
 * file, or those in `options`, as new ones. `pairs` says which sequence has which number in the file. A load goes from the file to
 * the device; a save goes through memory of the host that holds all of it.
 * Fail as aura_cache_save() and aura_seq_load() do, and as the two above; loading with nothing changed. AURA_BAD_ARGUMENT also
 * where the file has another configuration: the message says in what. */
AURA_API aura_status aura_cuda_cache_save(const aura_cuda_cache *cache, const char *path, const aura_snapshot_options *options,
                                          aura_cuda_pair *pairs, size_t *n);
AURA_API aura_status aura_cuda_cache_load(aura_cuda_cache *cache, const char *path, const aura_snapshot_options *options,
                                          aura_cuda_pair *pairs, size_t *n);

/* The same for one sequence, as aura_seq_save() and aura_seq_load() do. Fail as the two above do. */
AURA_API aura_status aura_cuda_seq_save(const aura_cuda_cache *cache, aura_cuda_seq seq, const char *path,
                                        const aura_snapshot_options *options);
AURA_API aura_status aura_cuda_seq_load(aura_cuda_cache *cache, const char *path, const aura_snapshot_options *options,
                                        aura_cuda_seq *seq);

/* The same with sinks and sources, as aura_cache_write(), aura_seq_read() and the others of aura_file.h; _size says how many bytes
 * a snapshot has, from the lengths of the sequences alone. Fail as those and as the four above do. */
AURA_API aura_status aura_cuda_cache_size(const aura_cuda_cache *cache, const aura_snapshot_options *options, size_t *bytes);
AURA_API aura_status aura_cuda_cache_write(const aura_cuda_cache *cache, aura_sink *sink, const aura_snapshot_options *options,
                                           aura_cuda_pair *pairs, size_t *n);
AURA_API aura_status aura_cuda_cache_read(aura_cuda_cache *cache, aura_source *source, const aura_snapshot_options *options,
                                          aura_cuda_pair *pairs, size_t *n);
AURA_API aura_status aura_cuda_seq_size(const aura_cuda_cache *cache, aura_cuda_seq seq, const aura_snapshot_options *options,
                                        size_t *bytes);
AURA_API aura_status aura_cuda_seq_write(const aura_cuda_cache *cache, aura_cuda_seq seq, aura_sink *sink,
                                         const aura_snapshot_options *options);
AURA_API aura_status aura_cuda_seq_read(aura_cuda_cache *cache, aura_source *source, const aura_snapshot_options *options,
                                        aura_cuda_seq *seq);

/* ---- sequences that travel ----------------------------------------------------------------------------------------- */

/* As the extents of aura_file.h, from and to the device: the same header and the same pieces, so that one end may be a GPU and the
 * other a CPU. The pieces are memory of the host, which the extents own: a sequence is copied from the device when its extents are
 * made, and to it when it is adopted, after all bytes have been checked. */
typedef struct aura_cuda_extents aura_cuda_extents;

/* Makes the extents of a sequence as it is now; it may change afterwards. The caller owns *extents.
 * Fails: as aura_seq_extents(), AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_extents(const aura_cuda_cache *cache, aura_cuda_seq seq, const aura_snapshot_options *options,
                                           aura_cuda_extents **extents);

/* Takes memory of the host for the sequence of a header. The caller owns *extents, and destroys them before the cache.
 * Fails, with nothing changed: as aura_seq_expect(). */
AURA_API aura_status aura_cuda_seq_expect(aura_cuda_cache *cache, const void *header, size_t bytes, aura_cuda_extents **extents);

/* Fills the caller's *info. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_cuda_extents_get_info(const aura_cuda_extents *extents, aura_extents_info *info);

/* Checks what was written to the pieces, and makes the sequence on the device. Destroy the extents afterwards, also where it fails.
 * Fails, with no sequence made: as aura_seq_adopt(); AURA_OUT_OF_PAGES also where the device has no room, AURA_DEVICE. */
AURA_API aura_status aura_cuda_seq_adopt(aura_cuda_extents *extents, aura_cuda_seq *seq);

/* Frees extents; NULL is allowed. Never fails. */
AURA_API void aura_cuda_extents_destroy(aura_cuda_extents *extents);

/* ---- on a stream -------------------------------------------------------------------------------------------------- */

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
    const uint32_t *counts;    /* [n_seqs] on the device: how many of its `tokens` each sequence takes; NULL: all */
    aura_cuda_view k, v;       /* [n_seqs][tokens][kv_heads][k_dim], [...][v_dim]; only read */
    const uint32_t *starts;    /* [n_seqs] on the device: the first starts[i] of the `tokens` of seqs[i] are padding, neither read
                                  nor stored; `counts` says how many follow. NULL: none */
} aura_cuda_append_args;
#define AURA_CUDA_APPEND_ARGS_INIT \
    {sizeof(aura_cuda_append_args), NULL, 0, 0, NULL, AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT, NULL}

/* Appends in one launch; the bytes are those of aura_append(). The device finds what is wrong with the tokens of a sequence: it
 * sets a status bit of that sequence and stores none of its tokens. The other sequences are not affected.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT (also: more than max_queries tokens with a window), AURA_UNSUPPORTED (dtype),
 * AURA_DEVICE. */
AURA_API aura_status aura_cuda_append(aura_cuda_cache *cache, const aura_cuda_append_args *args, struct CUstream_st *stream);

/* Cuts seqs[i] to its first tokens[i] tokens; a sequence that has no more stays as it is. It runs on the stream: a graph that
 * appends to check a draft can take the tokens back itself. As aura_truncate(), but all pages stay reserved. After a cut into
 * shared pages the next append sets AURA_CUDA_OUT_OF_PAGES: reserve again. With a window, tokens that are gone set
 * AURA_CUDA_GONE. Fails, with nothing launched: AURA_BAD_ARGUMENT, AURA_DEVICE. */
AURA_API aura_status aura_cuda_truncate(aura_cuda_cache *cache, const aura_cuda_seq *seqs, const uint32_t *tokens, uint32_t n_seqs,
                                        struct CUstream_st *stream); /* seqs, tokens: [n_seqs] on the device; n_seqs 1 to 4096 */

typedef struct aura_cuda_unpack_args {
    size_t size;
    const aura_cuda_seq *seqs; /* [n_seqs] on the device */
    uint32_t n_seqs;           /* 1 to 4096; times kv_heads at most 65535 */
    uint32_t tokens;           /* of each sequence, from `first` on */
    uint64_t first;
    aura_cuda_view k, v;       /* [n_seqs][tokens][kv_heads][k_dim], [...][v_dim], f16 or bf16, written; data NULL: not wanted */
    uint32_t rotated;          /* 1: in the space that the cache holds them in, keys balanced; 0: as they were appended */
} aura_cuda_unpack_args;
#define AURA_CUDA_UNPACK_ARGS_INIT \
    {sizeof(aura_cuda_unpack_args), NULL, 0, 0, 0, AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT, 0}

/* Writes tokens [first, first + tokens) of sequences as numbers, for kernels that read such: what aura_cache_decode() gives, to
 * the precision of the type. Tokens beyond the end of a sequence are 0. A number that is no sequence's gives NaN; so do, with a
 * window, tokens that are gone, which also set AURA_CUDA_GONE. An f32 beyond the type's range becomes infinite.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (dtype), AURA_DEVICE. */
AURA_API aura_status aura_cuda_unpack(const aura_cuda_cache *cache, const aura_cuda_unpack_args *args, struct CUstream_st *stream);

/* Makes the place for what attends of up to `seqs` sequences with `queries` queries each leave on their way. One call at a time
 * may use it: make one per stream. The caller owns *workspace, and destroys it before the cache. For more than 16 queries there
 * is room for images of what is cached, in f16: image_bytes of them, or with 0 what a call can need, at most 64 MB. More room
 * makes calls faster in which a few hundred queries see more tokens than it holds; the least is four images of 128 tokens of a
 * KV head. Fewer queries, which read codes, leave there what they have on their way: where that does not fit, they take images
 * too, and several times as long.
 * Fail: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY, AURA_DEVICE. */
AURA_API aura_status aura_cuda_workspace_create(const aura_cuda_cache *cache, uint32_t seqs, uint32_t queries,
                                                aura_cuda_workspace **workspace);
AURA_API aura_status aura_cuda_workspace_create_sized(const aura_cuda_cache *cache, uint32_t seqs, uint32_t queries,
                                                      size_t image_bytes, aura_cuda_workspace **workspace);

/* Bytes of device memory that a workspace has; 0 of NULL. Never fails. */
AURA_API size_t aura_cuda_workspace_bytes(const aura_cuda_workspace *workspace);

/* Frees a workspace; NULL is allowed. Never fails. */
AURA_API void aura_cuda_workspace_destroy(aura_cuda_workspace *workspace);

typedef struct aura_cuda_attend_args {
    size_t size;
    const aura_cuda_seq *seqs; /* [n_seqs] on the device */
    uint32_t n_seqs;           /* 1 to 4096 */
    uint32_t queries;          /* of each: 1 to 65536, at its newest positions as in aura_attend_job. A query before position 0
                                  sees nothing */
    aura_cuda_view q, out;     /* [n_seqs][queries][q_heads][k_dim], [...][v_dim] */
    float *lse;                /* [n_seqs][queries][q_heads] on the device, or NULL */
    const float *mask;         /* [n_seqs][queries][mask_keys] on the device, added to the logits of the last mask_keys keys;
                                  or NULL */
    uint32_t mask_keys;
    float scale, softcap;      /* as in aura_attend_options */
    uint64_t window;
    const float *sinks, *alibi; /* [q_heads] on the device, or NULL */
    uint32_t not_causal, planes; /* planes: of up to 16 queries; more take both, or f16. 2: no kernel whose
                                    weights are f16, unless long_seqs says so */
    const uint32_t *counts;     /* [n_seqs] on the device: how many of its `queries` each sequence has; its other rows stay as
                                   they are. NULL: all */
    uint32_t long_seqs;         /* 1: most sequences have 16384 tokens or more. The host does not know; where queries times heads of
                                   a group are 9 or more it may then choose a kernel that costs more to begin with, which large
                                   batches of many queries take anyway: doc/cuda.md */
    const uint32_t *starts;     /* [n_seqs] on the device: the first starts[i] queries of seqs[i] are padding, like those beyond
                                   its count: rows that stay as they are. NULL: none */
    const uint32_t *from, *until; /* [n_seqs][queries] each, on the device, or NULL: as in aura_attend_job. Padding is no query.
                                   What is beyond the tokens of the sequence is as if it were its length */
    const uint32_t *pages;      /* slots only, see below: [n_seqs][page_stride] and [n_seqs], on the device. Otherwise NULL */
    uint32_t page_stride;
    const uint32_t *tokens;
} aura_cuda_attend_args;
#define AURA_CUDA_ATTEND_ARGS_INIT                                                                                     \
    {sizeof(aura_cuda_attend_args), NULL, 0, 0, AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT, NULL, NULL, 0, 0, 0, 0, NULL, \
     NULL, 0, 0, NULL, 0, NULL, NULL, NULL, NULL, 0, NULL}

/* Computes attention in one launch; that of many more than 16 queries in two, from images of what is cached. More than 16 are as
 * exact as f16 is. The same call over the same sequences, with the same workspace, gives the same bits. Rows that are not finite
 * are NaN and set AURA_CUDA_NOT_FINITE. A number in seqs that is no sequence's gives NaN; a released sequence is empty. In a cache
 * with a window, queries that would see tokens that are gone set AURA_CUDA_GONE.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT (also: more queries or a larger window than the cache's), AURA_UNSUPPORTED,
 * AURA_TOO_LARGE (for the workspace), AURA_DEVICE. */
AURA_API aura_status aura_cuda_attend(const aura_cuda_cache *cache, aura_cuda_workspace *workspace,
                                      const aura_cuda_attend_args *args, struct CUstream_st *stream);

/* The next tokens of a batch of sequences: keys and values are appended, and each token asks, as in aura_step(). */
typedef struct aura_cuda_step_args {
    size_t size;
    aura_cuda_view k, v;          /* [n_seqs][queries][kv_heads][k_dim], [...][v_dim]. data of both NULL: nothing is appended, the
                                     tokens are there */
    aura_cuda_attend_args attend; /* seqs (all different), starts and counts are those of the append too; queries are its tokens */
} aura_cuda_step_args;
#define AURA_CUDA_STEP_ARGS_INIT \
    {sizeof(aura_cuda_step_args), AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT, AURA_CUDA_ATTEND_ARGS_INIT}

/* aura_cuda_append() and then aura_cuda_attend(), on one stream; then rows of padding are 0, and their lse -inf. Where the device
 * refuses the tokens of a sequence, its queries see what it had: look at its status.
 * Fails as both do, with nothing launched. */
AURA_API aura_status aura_cuda_step(aura_cuda_cache *cache, aura_cuda_workspace *workspace, const aura_cuda_step_args *step,
                                    struct CUstream_st *stream);

/* ---- slots: for engines that own their block table -----------------------------------------------------------------
 *
 * A cache whose config has `slots` (below 2^31) holds tokens in slots 0 ... slots - 1 instead of sequences, as on the CPU: a token
 * is encoded into its slot at once, relative to its page's reference. The budget must hold all pages.
 *
 * Blocks are pages: slots 256 p ... 256 p + 255 are page p. To attend, a call has pages, page_stride and tokens, and seqs NULL.
 * Sequence i of the call is tokens[i] tokens, in pages[i][0], pages[i][1] ... in that order, all slots of each; page numbers are
 * uint32_t, rows page_stride of them apart, and beyond the last that is needed they may be anything. Position, causality, window
 * and mask go by the index in that list; a mask hides slots that hold something else. Lists and slots are read on the device when
 * the kernels run, so that a graph can be replayed with others. A list with a page that there is not gives NaN, and so do
 * rows that are not finite; no status says so. aura_cuda_unpack() of sequence 0 has the slots in their order. Lists of smaller
 * blocks, tiles[] of the CPU, are not there: doc/cuda.md says why. Calls about sequences fail with AURA_BAD_ARGUMENT, and copies
 * and files with AURA_UNSUPPORTED. */
typedef struct aura_cuda_slot_args {
    size_t size;
    uint32_t tokens;      /* 1 to 16384 */
    const uint64_t *slot; /* [tokens] on the device; of a slot that is there twice, the last token is stored */
    aura_cuda_view k, v;  /* [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim]; seq_stride means nothing */
} aura_cuda_slot_args;
#define AURA_CUDA_SLOT_ARGS_INIT {sizeof(aura_cuda_slot_args), 0, NULL, AURA_CUDA_VIEW_INIT, AURA_CUDA_VIEW_INIT}

/* Writes tokens into slots and replaces what was there, in one launch on a stream. A token that cannot be stored, or that has no
 * slot, sets a status bit; its slot stays as it was, and the other tokens are stored.
 * Fails, with nothing launched: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (dtype), AURA_DEVICE. */
AURA_API aura_status aura_cuda_slots_write(aura_cuda_cache *cache, const aura_cuda_slot_args *args, struct CUstream_st *stream);

/* Makes keys k[n][kv_heads][k_dim] the references of pages[n], which is on the device; as aura_slots_reference(), but whether a
 * page was written to is the caller's to know. It runs on the stream. Fails as aura_cuda_slots_write(); AURA_BAD_ARGUMENT also for
 * plain keys or AURA_NO_REFERENCE. */
AURA_API aura_status aura_cuda_slots_reference(aura_cuda_cache *cache, const uint64_t *pages, uint32_t n, const aura_cuda_view *k,
                                               struct CUstream_st *stream);

/* Forgets the tokens of a page and its reference, on the stream. Fails: AURA_BAD_ARGUMENT (no such page), AURA_DEVICE. */
AURA_API aura_status aura_cuda_slots_clear(aura_cuda_cache *cache, uint64_t page, struct CUstream_st *stream);

/* What went wrong since the last such call: AURA_CUDA_BAD_VALUE, AURA_CUDA_NO_SLOT, or both. It waits for the device.
 * Fails: AURA_BAD_ARGUMENT, AURA_DEVICE. */
AURA_API aura_status aura_cuda_slots_status(aura_cuda_cache *cache, uint32_t *status);

#ifdef __cplusplus
}
#endif
#endif
