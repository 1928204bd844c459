/* aura: a key/value cache of 2 to 8 bits per number, and attention computed straight from those bits.
 *
 * This header has the cache. Three others include it and add to it: aura_file.h (profiles and snapshots), aura_rows.h (rows
 * of codes in plain arrays, the kernels of AURA and of mlx-native) and aura_cuda.h (GPUs). Each compiles alone as C99 and C++.
 *
 * Errors   Every call that can fail returns aura_status; 0 is success. After a failure aura_last_error() holds this
 *          thread's message: the argument, what was wrong with it, what would be right. A call that fails has written
 *          nothing to the caller's buffers and changed no handle (AURA_NOT_FINITE is the exception).
 * Structs  A struct that may grow starts with its own size, set by its _INIT macro. Zero means the default in every
 *          other field. A size this library does not know is an error, not a guess.
 * Threads  A call may run on any thread with 128 KiB of stack to spare. A handle may be used by several threads at once
 *          unless its comment says not.
 * Floats   The caller's rounding, flush-to-zero and exception modes are put aside during a call and restored after it:
 *          they never change a result.
 */
#ifndef AURA_H
#define AURA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AURA_VERSION_MAJOR 0
#define AURA_VERSION_MINOR 4
#define AURA_VERSION_PATCH 0
#define AURA_VERSION_STRING "0.4.0"

#if defined(__GNUC__)
#define AURA_API __attribute__((visibility("default")))
#else
#define AURA_API
#endif

/* The version of the library that is linked, "major.minor.patch"; AURA_VERSION_STRING is the version of this header.
 * A static string. Never fails. */
AURA_API const char *aura_version(void);

/* ---- errors ---------------------------------------------------------------------------------------------------- */

typedef enum aura_status {
    AURA_OK = 0,
    AURA_BAD_ARGUMENT = 1,  /* a NULL, a zero or inconsistent size, an unknown enum value */
    AURA_BAD_VALUE = 2,     /* the data itself: NaN, Inf, or a vector too large to store */
    AURA_UNSUPPORTED = 3,   /* a well-formed request for which nothing was built: a dim, a bit width, a dtype */
    AURA_TOO_LARGE = 4,     /* sizes whose product does not fit in memory */
    AURA_OUT_OF_MEMORY = 5, /* the allocator returned NULL */
    AURA_NOT_FINITE = 6,    /* an attention call ran, but some rows are NaN because what they attend to is not finite:
                               the message names the first. The one failure after which outputs are written */
    AURA_OUT_OF_PAGES = 7,  /* the cache's budget is used up; everything stored is intact */
    AURA_BAD_FILE = 8,      /* a file that is damaged, or not what it was taken for */
    AURA_IO = 9,            /* the system could not open, read or write a file; the message has its reason */
    AURA_DEVICE = 10        /* a GPU, its driver or the CUDA runtime failed: the message has its text */
} aura_status;

/* One English phrase per status, for logs. A static string, also for a value that is no status. Never fails. */
AURA_API const char *aura_status_text(aura_status status);

/* The message of this thread's last failed call; "" when none has failed yet. The string belongs to the library and
 * lives until this thread's next failing call. A call that succeeds leaves it alone. */
AURA_API const char *aura_last_error(void);

/* ---- element types --------------------------------------------------------------------------------------------- */

typedef enum aura_dtype {
    AURA_F32 = 0,
    AURA_F16 = 1,  /* IEEE binary16 */
    AURA_BF16 = 2  /* the upper half of an f32 */
} aura_dtype;

/* Bytes of one element: 4, 2, 2; 0 for a value that is no dtype. */
AURA_API size_t aura_dtype_bytes(aura_dtype dtype);

/* ---- context --------------------------------------------------------------------------------------------------- */

/* What the kernels may be built from, as bits of a mask. A name is a set of CPU features, defined in src/variants.h.
 * One that adds to another has kernels only for what it speeds up: a mask with it should have the other too. */
enum {
    AURA_ISA_REF = 1,  /* plain C, always there */
    AURA_ISA_AVX2 = 2,
    AURA_ISA_AVX512 = 4,
    AURA_ISA_NEON = 8,
    AURA_ISA_AVXVNNI = 16,    /* adds integer dot products to AVX2, */
    AURA_ISA_AVX512VNNI = 32, /* to AVX512, */
    AURA_ISA_DOTPROD = 64,    /* to NEON, */
    AURA_ISA_I8MM = 128       /* integer matrix products to DOTPROD */
};

/* The instruction sets that this CPU and this operating system offer, AURA_ISA_REF included. Never fails. */
AURA_API uint32_t aura_cpu_isas(void);

/* Where a handle's memory comes from. Both functions or neither; neither means the C library.
 * alloc must return memory aligned to `align` (a power of two, at most 2 MiB), or NULL. free gets the same `bytes`.
 * Both may be called from any thread that calls the library, and must not call the library. */
typedef struct aura_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} aura_allocator;

typedef enum aura_log_level { AURA_LOG_ERROR = 0, AURA_LOG_INFO = 1 } aura_log_level;

/* Receives one line without a line end. A failing call that was given the context logs AURA_LOG_ERROR with the text of
 * aura_last_error().
 * May be called from any thread that calls the library, and must not call the library. */
typedef void aura_log_fn(void *user, aura_log_level level, const char *message);

/* Threads of the caller's. run() must call item(work, i) once for every i < items, on any threads and in any order, and
 * return when all have returned. It may be called from several threads at once. item() needs 128 KiB of stack. */
typedef struct aura_executor {
    void (*run)(void *user, size_t items, void (*item)(void *work, size_t i), void *work);
    void *user;
} aura_executor;

typedef struct aura_ctx_options {
    size_t size;
    aura_allocator allocator;
    aura_log_fn *log; /* NULL: silent */
    void *log_user;
    uint32_t isa_mask; /* instruction sets that may be used; 0: all that the machine has. AURA_ISA_REF is implied */
    uint32_t threads;  /* that work on a call of the cache functions, the caller's included, at most 1024; 0 or 1: only the
                          caller's. A pool of the context's own, idle between calls. When two calls want it at once, one
                          of them does without. Results are the same with any number */
    aura_executor executor; /* the caller's threads instead of the pool; not both */
} aura_ctx_options;

#define AURA_CTX_OPTIONS_INIT {sizeof(aura_ctx_options), {NULL, NULL, NULL}, NULL, NULL, 0, 0, {NULL, NULL}}

/* What every other call works in: the kernels chosen for this CPU, the allocator, the log. */
typedef struct aura_ctx aura_ctx;

/* Makes a context. options NULL: all defaults. *ctx is the caller's, to be given to aura_ctx_destroy().
 * Fails: AURA_BAD_ARGUMENT (ctx NULL, unknown size, half an allocator, a mask bit that means nothing,
 * a pool and an executor), AURA_OUT_OF_MEMORY (also: no threads to be had). *ctx is then left alone.
 * A context never changes after this call: any number of threads may use it at once. */
AURA_API aura_status aura_ctx_create(const aura_ctx_options *options, aura_ctx **ctx);

/* Frees a context; NULL is allowed. No call that uses it may be running or follow. */
AURA_API void aura_ctx_destroy(aura_ctx *ctx);

/* The instruction sets this context uses: what the machine has, less what isa_mask left out. 0 for NULL. */
AURA_API uint32_t aura_ctx_isas(const aura_ctx *ctx);

#define AURA_MAX_DIM 1024 /* of a row or head, in every function */

/* ---- the cache ---------------------------------------------------------------------------------------------------
 *
 * aura_cache holds the keys and values of one attention layer, for many sequences, in pages of 256 tokens. Append
 * tokens, attend to them; the caller never sees a tile. doc/format.md draws the bytes, doc/numerics.md says how near the
 * results are.
 *
 * Threads: calls on different sequences may run at once, also where these share pages. On one sequence, any number of
 * calls that read it (attend, decode, aura_seq_get_info, fork and copy from it) may run at once, or one call that changes
 * it (append, truncate, reserve, remove, copy to it, release), not both. Creating a sequence may run beside anything.
 * Destroying the cache may run beside nothing. A cache of slots has rules of its own, see aura_slots_write().
 */

/* How one side of a cache is stored: that many bits per number, or plain numbers. */
typedef enum aura_kind {
    AURA_KIND_B2 = 2,
    AURA_KIND_B3 = 3,
    AURA_KIND_B4 = 4,
    AURA_KIND_B5 = 5,
    AURA_KIND_B6 = 6,
    AURA_KIND_B8 = 8,
    AURA_KIND_F32 = 9,
    AURA_KIND_F16 = 10,
    AURA_KIND_BF16 = 11
} aura_kind;

/* Every pair is a format. */
typedef struct aura_format {
    aura_kind k, v;
} aura_format;

/* "k4v4", "k8v4", "kf16v3", "kbf16vf32" ..., or a preset: "max" k8v8, "safe" k6v6, "quality" k5v5, "balanced" k4v4,
 * "small" k3v3. Fails: AURA_BAD_ARGUMENT (NULL, no format of that name). */
AURA_API aura_status aura_format_parse(const char *name, aura_format *format);

/* The other way: "k4v4". name[16] is the caller's. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_format_name(aura_format format, char name[16]);

/* Parts of the codec that can be switched off; doc/numerics.md shows what each is worth. */
enum {
    AURA_NO_REFERENCE = 1, /* keys are encoded as they are, not relative to their page's reference */
    AURA_NO_PINNED = 2,    /* the first 4 tokens are encoded like all others */
    AURA_NO_ROLLBACK = 4,  /* a tile of 32 tokens is encoded as soon as it is full */
    AURA_NO_OPEN = 8,      /* a token is encoded at once. Needs AURA_NO_REFERENCE; implies AURA_NO_ROLLBACK */
    AURA_NO_SEARCH = 16    /* the plain fit instead of the best of nine */
};

typedef struct aura_config {
    size_t size;
    aura_format format;          /* zero: k4v4 */
    uint32_t q_heads, kv_heads;
    uint32_t k_dim, v_dim;       /* 64, 80, 96, 112, 128, 192, 256 or 512; v_dim 0: k_dim */
    uint32_t flags;              /* AURA_NO_... */
    uint32_t rollback;           /* tokens that truncate can take back without loss: 1 to 32; 0: 16 */
    uint64_t seed;               /* of the signs */
    const float *balance;        /* [kv_heads][k_dim] factors on the keys, each within 1/8 to 8, from aura_calibration; copied.
                                    NULL: none. Plain keys take none */
    size_t budget_bytes;         /* what the cache may allocate in all; 0: no limit */

    /* A sliding window: a token is seen by itself and the `window` - 1 that follow it, so that pages whose tokens nobody
     * will see again are used for new tokens. With slack = max(max_queries, rollback), the page of a token is kept at
     * least until window + slack tokens have followed, and a sequence has at most ceil((window + slack) / 256) + 1 pages,
     * and those of its first keep_first tokens. 0: no window, everything is kept. */
    uint64_t window;
    uint32_t max_queries;        /* most tokens of an append job, and most queries of an attend job, with a window; 0: 512 */
    uint32_t keep_first;         /* so many tokens at the beginning are seen by all, however long ago; needs a window */

    /* Slots instead of sequences: see aura_slots_write(). 0: sequences */
    uint64_t slots;
} aura_config;
#define AURA_CONFIG_INIT {sizeof(aura_config), {(aura_kind)0, (aura_kind)0}, 0, 0, 0, 0, 0, 0, 0, NULL, 0, 0, 0, 0, 0}

typedef struct aura_cache aura_cache;
typedef uint32_t aura_seq; /* a sequence of one cache; never 0 */

/* Makes a cache without sequences. *cache is the caller's, to be given to aura_cache_destroy() before its ctx goes.
 * Fails: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (a kind or dim nobody built), AURA_BAD_VALUE (balance), AURA_OUT_OF_MEMORY,
 * AURA_OUT_OF_PAGES (a budget in which no page fits). */
AURA_API aura_status aura_cache_create(aura_ctx *ctx, const aura_config *config, aura_cache **cache);
AURA_API void aura_cache_destroy(aura_cache *cache); /* NULL is allowed */

/* What a cache is and holds. */
typedef struct aura_cache_info {
    size_t size;
    aura_config config;      /* with the defaults filled in; balance points into the cache */
    size_t bytes;            /* allocated by the cache, all told: aura_cache_bytes() */
    size_t page_bytes;       /* 256 tokens of all KV heads */
    size_t seq_bytes;        /* what a sequence needs besides pages */
    size_t pages, free_pages; /* allocated; of these, not owned by a sequence */
    size_t seqs;
    double bits_per_value;   /* of a full page, scales and reference included */
    size_t shared_pages;     /* that more than one sequence refers to */
    size_t references;       /* to pages, of all sequences: references - (pages - free_pages) pages are saved by sharing */
    uint64_t tokens;         /* in the pages of all sequences, each counted for itself */
    uint64_t token_slots;    /* 256 * references: 1 - tokens / token_slots of the space is empty or reserved */
} aura_cache_info;
#define AURA_CACHE_INFO_INIT {sizeof(aura_cache_info), AURA_CONFIG_INIT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}
AURA_API aura_status aura_cache_get_info(const aura_cache *cache, aura_cache_info *info);
AURA_API size_t aura_cache_bytes(const aura_cache *cache); /* 0 for NULL */

/* A new empty sequence; its id is valid until aura_seq_release(). Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_PAGES,
 * AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_create(aura_cache *cache, aura_seq *seq);
/* A new sequence that begins with the first `tokens` tokens of another: it shares their pages, and a page is copied when
 * one of those that share it is to write to it. What the two hold is from then on as if each had been appended alone,
 * truncated to `tokens` in the case of the new one. Reservations are not inherited.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it has; with a window, tokens that
 * are gone, as aura_truncate()), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_fork(aura_cache *cache, aura_seq from, uint64_t tokens, aura_seq *seq);
/* Gives the pages back that no other sequence shares. Fails: AURA_BAD_ARGUMENT (no such sequence). */
AURA_API aura_status aura_seq_release(aura_cache *cache, aura_seq seq);

typedef struct aura_seq_info {
    size_t size;
    uint64_t tokens;  /* appended and not truncated */
    uint64_t closed;  /* tokens from here on are held in f16; truncating to it or above loses nothing */
    size_t pages;
    size_t shared_pages; /* of these, shared with other sequences */
    uint64_t first;   /* tokens from here on are there; with a window those before are gone, but for keep_first */
} aura_seq_info;
#define AURA_SEQ_INFO_INIT {sizeof(aura_seq_info), 0, 0, 0, 0, 0}
AURA_API aura_status aura_seq_get_info(const aura_cache *cache, aura_seq seq, aura_seq_info *info);

/* Gives the sequence pages for `tokens` tokens in all, and pages of its own for those that it shares and would write to:
 * until it has more, append cannot fail for want of space. After it was forked or copied from, or truncated into pages
 * that it shares, that has to be asked for again.
 * Fails: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT, AURA_TOO_LARGE, with nothing changed. */
AURA_API aura_status aura_seq_reserve(aura_cache *cache, aura_seq seq, uint64_t tokens);

/* Where a tensor [token][head][dim] is. Strides in elements, either sign; 0: contiguous. dim is always contiguous. */
typedef struct aura_view {
    void *data;
    aura_dtype dtype;
    ptrdiff_t token_stride, head_stride;
} aura_view;
#define AURA_VIEW_INIT {NULL, AURA_F32, 0, 0}

typedef struct aura_append_job {
    size_t size;
    aura_seq seq;
    uint32_t tokens;
    aura_view k, v; /* [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim]; only read */
} aura_append_job;
#define AURA_APPEND_JOB_INIT {sizeof(aura_append_job), 0, 0, AURA_VIEW_INIT, AURA_VIEW_INIT}

/* Appends to any number of different sequences: all of it or nothing. The bytes stored do not depend on how tokens were
 * divided into calls, on the instruction set or on threads.
 * Fails, with nothing changed: AURA_BAD_VALUE (NaN, Inf, or a vector longer than 60 000 after balance: the message names
 * it), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT (NULLs, no such sequence, one sequence twice, more than
 * max_queries tokens with a window), AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_append(aura_cache *cache, const aura_append_job *jobs, size_t n_jobs);

/* Keeps the first `tokens` tokens. At or above `closed` of aura_seq_info it is as if the rest had never been appended;
 * below, what is kept stays as it was encoded. Pages that are no longer needed nor reserved go back to the cache. Never
 * allocates; fails only with AURA_BAD_ARGUMENT (no such sequence, more tokens than there are; with a window, where the last
 * `window` of those that would be left are not all there any more: max(max_queries, rollback) tokens can always be taken
 * back, and all of them). */
AURA_API aura_status aura_truncate(aura_cache *cache, aura_seq seq, uint64_t tokens);

/* Removes tokens [first, first + tokens); those after them move down, encoded as they are: a position that was turned into
 * the keys stays there. Only what costs nothing: the end of the sequence, which is aura_truncate(), or whole pages, first and
 * tokens being multiples of 256, of which all tokens are encoded (first + tokens <= closed), and not the first page where it
 * holds pinned tokens.
 * Fails, with nothing changed: AURA_UNSUPPORTED (everything else, and all but the end with a window: decode what follows,
 * truncate and append it again), AURA_BAD_ARGUMENT (no such sequence, tokens that it does not have). */
AURA_API aura_status aura_seq_remove(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens);

/* Appends tokens [first, first + tokens) of a sequence to another, or to itself, by sharing their pages: bit by bit what
 * they are there. Only where that is exact: first and tokens are multiples of 256 and all these tokens are encoded
 * (first + tokens <= closed); `to` has a multiple of 256 tokens, none of them open (closed = tokens, as after truncating
 * to closed or less); and where there are pinned tokens, first is 0 exactly if `to` is empty. To move is to copy and to
 * remove.
 * Fails, with nothing changed: AURA_UNSUPPORTED (everything else, and all of it with a window: decode and append),
 * AURA_BAD_ARGUMENT (no such sequence, tokens that it does not have), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_copy(aura_cache *cache, aura_seq from, uint64_t first, uint64_t tokens, aura_seq to);

/* Tokens [first, first + tokens) back in model space, as attention sees them. Either view may have data NULL.
 * Fails: AURA_BAD_ARGUMENT (range, tokens that are gone, NULLs, strides at which rows would overlap), AURA_UNSUPPORTED. */
AURA_API aura_status aura_cache_decode(const aura_cache *cache, aura_seq seq, uint64_t first, uint32_t tokens,
                                       const aura_view *k, const aura_view *v);

/* Queries of the sequence's newest positions: query i of n is at position tokens - n + i and sees the keys up to and
 * including its own. */
typedef struct aura_attend_job {
    size_t size;
    aura_seq seq;
    uint32_t queries;
    aura_view q, out;   /* [queries][q_heads][k_dim], [queries][q_heads][v_dim]; out may overlap q */
    float *lse;         /* [queries][q_heads] natural log-sum-exp, sinks included; -inf where nothing is seen. Or NULL */
    const float *mask;  /* [queries][mask_keys], added to the logits of the last mask_keys keys for all heads; -inf hides a
                           key. NULL: none */
    uint32_t mask_keys;
    size_t mask_stride; /* floats from query to query; 0: mask_keys */
    const uint32_t *tiles; /* slots only: see aura_slots_write() */
    uint64_t tokens;
} aura_attend_job;
#define AURA_ATTEND_JOB_INIT {sizeof(aura_attend_job), 0, 0, AURA_VIEW_INIT, AURA_VIEW_INIT, NULL, NULL, 0, 0, NULL, 0}

/* Shared by all jobs of a call. logit = scale * q.k, then softcap * tanh(logit / softcap), then + alibi[head] *
 * (key position - query position), then + mask. */
typedef struct aura_attend_options {
    size_t size;
    float scale;         /* 0: 1 / sqrt(k_dim) */
    float softcap;       /* 0: none */
    uint64_t window;     /* a query sees its last `window` keys, its own included; 0: all, or the cache's own window, which
                            is the most there can be. Those of the cache's keep_first are seen besides */
    const float *sinks;  /* [q_heads] logits that join the denominator with value 0, or NULL */
    const float *alibi;  /* [q_heads] slopes, or NULL */
    uint32_t not_causal; /* 1: every query sees all keys; the window and ALiBi then count from the newest key */
    uint32_t planes;     /* bytes of query and weights that enter the integer products: 1, 2; 0: 1 for sides of up to 5
                            bits, 2 for 6 and 8 */
    void *workspace;     /* at least aura_attend_workspace() bytes, aligned to 64; NULL: allocated for the call */
    size_t workspace_bytes;
} aura_attend_options;
#define AURA_ATTEND_OPTIONS_INIT {sizeof(aura_attend_options), 0, 0, 0, NULL, NULL, 0, 0, NULL, 0}

/* Attention of every query head to the cache. options NULL: all defaults. Results do not depend on the number of threads
 * or on the other jobs. With a workspace nothing is allocated.
 * A row that sees no key is 0. Fails with AURA_BAD_ARGUMENT (also: more causal queries than tokens; in a cache with a window
 * a larger one, more queries than max_queries, or a query that would see tokens that are gone), AURA_UNSUPPORTED,
 * AURA_TOO_LARGE, AURA_OUT_OF_MEMORY and nothing written; or with AURA_NOT_FINITE, see there: rows whose query, mask or
 * plain keys and values hold NaN or Inf are NaN, and all others are good. */
AURA_API aura_status aura_attend(const aura_cache *cache, const aura_attend_job *jobs, size_t n_jobs,
                                 const aura_attend_options *options);

/* Bytes of workspace that these jobs need, and that are enough for fewer queries of each; of a job only seq and queries are
 * looked at, of slots queries and tokens. To plan ahead for sequences that grow, give `tokens`, the most that any will have
 * (0: those that each has now). Fails: AURA_BAD_ARGUMENT, AURA_TOO_LARGE. */
AURA_API aura_status aura_attend_workspace(const aura_cache *cache, const aura_attend_job *jobs, size_t n_jobs,
                                           uint64_t tokens, size_t *bytes);

/* ---- slots: for engines that own their slot map --------------------------------------------------------------------
 *
 * A cache whose config has `slots` holds tokens in slots 0 ... slots - 1 instead of sequences; what a slot means is the
 * caller's business. All pages are allocated when it is created. A token is encoded at once into its slot; nothing is
 * pinned or open (AURA_NO_PINNED and AURA_NO_OPEN are implied). Slots 32 i ... 32 i + 31 are tile i, 256 slots are a page.
 * Keys are encoded relative to their page's reference, which is zero where the caller has set none.
 *
 * To attend, a job has seq 0, and the sequence is `tokens` tokens in the tiles tiles[0], tiles[1] ... in that order;
 * tiles NULL means tiles 0, 1, 2 ... Positions, causality, window and mask go by the index in that list; slots that hold
 * something else are hidden by the mask. Calls of sequences fail with AURA_BAD_ARGUMENT, as do calls of slots elsewhere.
 *
 * Threads: tiles are independent. On one tile, any number of attend and decode calls may run at once, or one that writes
 * to it. Setting a reference and clearing count as writing to all tiles of the page. */
typedef struct aura_slot_job {
    size_t size;
    uint32_t tokens;
    const uint64_t *slot; /* [tokens] */
    aura_view k, v;       /* [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim]; only read */
} aura_slot_job;
#define AURA_SLOT_JOB_INIT {sizeof(aura_slot_job), 0, NULL, AURA_VIEW_INIT, AURA_VIEW_INIT}

/* Writes tokens into slots, whatever was there: all of them or none. Fails, with nothing changed: as aura_append(), and
 * AURA_BAD_ARGUMENT (no such slot, a slot twice in a call). Never allocates. */
AURA_API aura_status aura_slots_write(aura_cache *cache, const aura_slot_job *jobs, size_t n_jobs);

/* Makes a key, k[1][kv_heads][k_dim], the reference of page `page` (slots 256 page ...): best the mean of the keys to
 * come. Only before anything is written to the page, or after aura_slots_clear(). Fails: AURA_BAD_VALUE,
 * AURA_BAD_ARGUMENT (also: no such page, one that was written to, plain keys, AURA_NO_REFERENCE). */
AURA_API aura_status aura_slots_reference(aura_cache *cache, uint64_t page, const aura_view *k);

/* Forgets the tokens of a page and its reference. Fails: AURA_BAD_ARGUMENT (no such page). */
AURA_API aura_status aura_slots_clear(aura_cache *cache, uint64_t page);

/* The tokens in these slots back in model space; one that was never written is 0. Either view may have data NULL.
 * Fails: AURA_BAD_ARGUMENT (no such slot, NULLs, strides), AURA_UNSUPPORTED. */
AURA_API aura_status aura_slots_decode(const aura_cache *cache, const uint64_t *slot, uint32_t tokens, const aura_view *k,
                                       const aura_view *v);

/* Merges two attention results over different keys: out = the result over both. An lse of -inf stands for no keys. Sinks
 * must have been given to one of the two calls only. out and out_lse may be those of `a` or of `b`. */
typedef struct aura_merge_args {
    size_t size;
    size_t rows;
    uint32_t dim;
    aura_dtype dtype;
    const void *a, *b;            /* [rows][dim] */
    const float *a_lse, *b_lse;   /* [rows] */
    void *out;                    /* [rows][dim] */
    float *out_lse;               /* [rows], or NULL */
} aura_merge_args;
#define AURA_MERGE_ARGS_INIT {sizeof(aura_merge_args), 0, 0, AURA_F32, NULL, NULL, NULL, NULL, NULL, NULL}
AURA_API aura_status aura_merge(const aura_ctx *ctx, const aura_merge_args *args);

/* Calibration: what the queries of a model look at decides how its keys are balanced. Give keys in token order from
 * position 0 of a text, and the queries of any positions; then take the factors. */
typedef struct aura_calibration aura_calibration;

typedef struct aura_calibration_config {
    size_t size;
    uint32_t q_heads, kv_heads, k_dim;
} aura_calibration_config;
#define AURA_CALIBRATION_CONFIG_INIT {sizeof(aura_calibration_config), 0, 0, 0}

/* Fails: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (dim), AURA_OUT_OF_MEMORY. Not for several threads at once. */
AURA_API aura_status aura_calibration_create(const aura_ctx *ctx, const aura_calibration_config *config,
                                             aura_calibration **calibration);
AURA_API void aura_calibration_destroy(aura_calibration *calibration); /* NULL is allowed */
/* The next keys of the text. Fails, with nothing counted: AURA_BAD_VALUE (NaN, Inf), AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_calibration_keys(aura_calibration *calibration, uint32_t tokens, const aura_view *k);
AURA_API aura_status aura_calibration_queries(aura_calibration *calibration, uint32_t tokens, const aura_view *q);
/* Ends a text: the next keys are again those of position 0. */
AURA_API aura_status aura_calibration_next_text(aura_calibration *calibration);
/* balance[kv_heads][k_dim] = (E[q^2] / E[(k - reference)^2])^(1/4) per channel, with geometric mean 1, within 1/8 to 8.
 * Fails: AURA_BAD_ARGUMENT (also: no keys beyond the pinned ones in a whole tile, or no queries yet). */
AURA_API aura_status aura_calibration_balance(const aura_calibration *calibration, float *balance);

/* ---- models ------------------------------------------------------------------------------------------------------
 *
 * aura_model_cache is the caches of all layers of a model, each of its own format, with one budget, and sequences that are
 * in all of them under one id. Append and attend go to the layers, which are caches like any other, except that sequences
 * are created, forked and released for the model: AURA_BAD_ARGUMENT for one layer.
 *
 * Threads: as for caches; what creates, forks or releases a sequence here does so in all layers.
 */
typedef struct aura_model_cache aura_model_cache;
typedef struct aura_profile aura_profile; /* aura_file.h has its functions */

typedef struct aura_model_config {
    size_t size;
    uint32_t layers;             /* 1 to 65536 */
    const aura_config *configs;  /* [layers]; budget_bytes and slots must be 0 */
    const aura_profile *profile; /* whose balance the layers take that have none in their config; plain keys take none. It
                                    must have as many layers. NULL: none */
    size_t budget_bytes;         /* what all of it may allocate; 0: no limit. With a limit, layers take their pages in smaller
                                    parts, and a part that a layer does not use goes to another that is in want of it */
} aura_model_config;
#define AURA_MODEL_CONFIG_INIT {sizeof(aura_model_config), 0, NULL, NULL, 0}

/* *model is the caller's, to be given to aura_model_cache_destroy() before its ctx goes. Fails like aura_cache_create(). */
AURA_API aura_status aura_model_cache_create(aura_ctx *ctx, const aura_model_config *config, aura_model_cache **model);
AURA_API void aura_model_cache_destroy(aura_model_cache *model); /* NULL is allowed. The layers go too */

typedef struct aura_model_cache_info {
    size_t size;
    uint32_t layers;
    size_t bytes;             /* allocated, all told */
    size_t budget_bytes;
    size_t seqs;
    size_t pages, free_pages; /* of all layers; in bytes they differ from layer to layer: aura_cache_get_info() */
    uint64_t tokens;          /* in the pages of all layers */
} aura_model_cache_info;
#define AURA_MODEL_CACHE_INFO_INIT {sizeof(aura_model_cache_info), 0, 0, 0, 0, 0, 0, 0}
AURA_API aura_status aura_model_cache_get_info(const aura_model_cache *model, aura_model_cache_info *info);

/* The cache of a layer: the model's, not to be destroyed. NULL where there is none. */
AURA_API aura_cache *aura_model_cache_layer(const aura_model_cache *model, uint32_t layer);

/* Like aura_seq_create(), _fork(), _release(), aura_truncate() and aura_seq_reserve(), in all layers or, where they fail, in
 * none. Fork and truncate need layers that all have so many tokens. */
AURA_API aura_status aura_model_seq_create(aura_model_cache *model, aura_seq *seq);
AURA_API aura_status aura_model_seq_fork(aura_model_cache *model, aura_seq from, uint64_t tokens, aura_seq *seq);
AURA_API aura_status aura_model_seq_release(aura_model_cache *model, aura_seq seq);
AURA_API aura_status aura_model_seq_truncate(aura_model_cache *model, aura_seq seq, uint64_t tokens);
AURA_API aura_status aura_model_seq_reserve(aura_model_cache *model, aura_seq seq, uint64_t tokens);

#ifdef __cplusplus
}
#endif
#endif
