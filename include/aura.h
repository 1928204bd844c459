/* aura: a key/value cache of 2 to 8 bits per number, and attention computed straight from those bits.
 *
 * This header has the cache. Four others include it: aura_file.h (profiles and snapshots), aura_rows.h (rows of codes in
 * plain arrays, and the kernels of AURA and mlx-native), aura_team.h (the threads of an engine) and aura_cuda.h (GPUs).
 * Each compiles alone as C99 and as C++.
 *
 * Errors   Every call that can fail returns aura_status; 0 is success. After a failure aura_last_error() has this
 *          thread's message: the argument, what was wrong with it, what would be right. A call that fails has written
 *          nothing to the caller's buffers and changed no handle. AURA_NOT_FINITE is the one exception.
 *          AURA_BAD_ARGUMENT always includes: a NULL that is not allowed, and a struct of an unknown size.
 * Structs  A struct that may grow starts with its own size, which its _INIT macro sets. Zero means the default in every
 *          other field. A size that this library does not know is an error, not a guess.
 * Owners   What a _create or _load function returns belongs to the caller, who gives it to the _destroy function. A
 *          context must live longer than everything made with it. Input buffers are read during the call only.
 * Threads  A call may run on any thread with 128 KiB of stack to spare, 384 KiB where it encodes with a metric or to trellis codes.
 *          Several threads may use one handle at once unless its comment says otherwise.
 * Floats   A call puts the caller's rounding, flush-to-zero and exception modes aside and restores them at its end. They
 *          never change a result.
 */
#ifndef AURA_H
#define AURA_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define AURA_VERSION_MAJOR 0
#define AURA_VERSION_MINOR 5
#define AURA_VERSION_PATCH 0
#define AURA_VERSION_STRING "0.5.0"

#if defined(__GNUC__)
#define AURA_API __attribute__((visibility("default")))
#else
#define AURA_API
#endif

/* The version of the library that is linked, "major.minor.patch". AURA_VERSION_STRING is the version of this header.
 * The string is static. Never fails. */
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

/* One English phrase per status, for logs. The string is static, also for a value that is no status. Never fails. */
AURA_API const char *aura_status_text(aura_status status);

/* The message of this thread's last failed call; "" when none has failed yet. The string belongs to the library and
 * lives until this thread's next failing call. A call that succeeds leaves it alone. Never fails. */
AURA_API const char *aura_last_error(void);

/* ---- element types --------------------------------------------------------------------------------------------- */

typedef enum aura_dtype {
    AURA_F32 = 0,
    AURA_F16 = 1,  /* IEEE binary16 */
    AURA_BF16 = 2  /* the upper half of an f32 */
} aura_dtype;

/* Bytes of one element: 4, 2, 2; 0 for a value that is no dtype. Never fails. */
AURA_API size_t aura_dtype_bytes(aura_dtype dtype);

/* ---- context --------------------------------------------------------------------------------------------------- */

/* What the kernels may be built from, as bits of a mask. src/variants.h says which CPU features each name stands for.
 * The last five add kernels to another set, and only where they are faster: a mask with one of them should have that
 * other set too. */
enum {
    AURA_ISA_REF = 1,  /* plain C, always there */
    AURA_ISA_AVX2 = 2,
    AURA_ISA_AVX512 = 4,
    AURA_ISA_NEON = 8,
    AURA_ISA_AVXVNNI = 16,    /* adds integer dot products to AVX2 */
    AURA_ISA_AVX512VNNI = 32, /* adds them to AVX512 */
    AURA_ISA_DOTPROD = 64,    /* adds them to NEON */
    AURA_ISA_I8MM = 128,      /* adds integer matrix products to DOTPROD */
    AURA_ISA_AMX = 256        /* adds products of whole matrices to AVX512VNNI, for calls with many query rows */
};

/* The instruction sets that this CPU and this operating system offer, AURA_ISA_REF included. Never fails. Where the CPU has AMX, it
 * asks Linux to let the process use it, once; a context whose mask has no AURA_ISA_AMX does not ask.
 * The environment variable AURA_ISA, the name of a set as in `aura list`, leaves out all that are better: with avx512vnni a program
 * runs without AMX. A name that is none is an error of aura_ctx_create. */
AURA_API uint32_t aura_cpu_isas(void);

/* Where a handle's memory comes from. Give both functions or neither; neither means the C library.
 * alloc must return memory aligned to `align` (a power of two, at most 2 MiB), or NULL. free gets the same `bytes`.
 * The library calls both from any thread that calls the library. They must not call the library. */
typedef struct aura_allocator {
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*free)(void *user, void *memory, size_t bytes);
    void *user;
} aura_allocator;

typedef enum aura_log_level { AURA_LOG_ERROR = 0, AURA_LOG_INFO = 1 } aura_log_level;

/* Receives one line without a line end. A call that was given the context and fails logs AURA_LOG_ERROR with the text of
 * aura_last_error(). The library calls it from any thread that calls the library. It must not call the library. */
typedef void aura_log_fn(void *user, aura_log_level level, const char *message);

/* The caller's own threads. run() must call item(work, i) once for every i < items, on any threads and in any order, and
 * return when all of them have returned. Several threads may call run() at once. item() needs the stack that calls need.
 * aura_team.h has one for engines whose threads all enter an operation at once. */
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
    uint32_t threads;  /* that work on one call, the caller's included, at most 1024; 0 or 1: only the caller's. The
                          context keeps the others, which sleep between calls. When two calls need them at once, one call
                          works alone. Results are the same with any number */
    aura_executor executor; /* the caller's threads instead of the context's; not both */
} aura_ctx_options;

#define AURA_CTX_OPTIONS_INIT {sizeof(aura_ctx_options), {NULL, NULL, NULL}, NULL, NULL, 0, 0, {NULL, NULL}}

/* What every other call works in: the kernels chosen for this CPU, the allocator, the log. */
typedef struct aura_ctx aura_ctx;

/* Makes a context. options NULL: all defaults. The caller owns *ctx.
 * Fails: AURA_BAD_ARGUMENT (half an allocator, a mask bit that means nothing, threads and an executor),
 * AURA_OUT_OF_MEMORY (also: the system has no threads left).
 * A context never changes after this call: any number of threads may use it at once. */
AURA_API aura_status aura_ctx_create(const aura_ctx_options *options, aura_ctx **ctx);

/* Frees a context; NULL is allowed. No call that uses it may be running or follow. Never fails. */
AURA_API void aura_ctx_destroy(aura_ctx *ctx);

/* The instruction sets this context uses: what the machine has, less what isa_mask left out. 0 for NULL. Never fails. */
AURA_API uint32_t aura_ctx_isas(const aura_ctx *ctx);

#define AURA_MAX_DIM 1024 /* of a head or row, in every function */

/* ---- the cache ---------------------------------------------------------------------------------------------------
 *
 * aura_cache holds the keys and values of one attention layer, for many sequences, in pages of 256 tokens. Append
 * tokens, then attend to them; the caller never sees a tile. doc/format.md draws the bytes, doc/numerics.md says how near
 * the results are.
 *
 * Threads: calls on different sequences may run at once, also where these share pages. On one sequence, any number of
 * calls that read it (attend, decode, aura_seq_get_info, fork and copy from it) may run at once, or one call that changes
 * it (append, truncate, reserve, remove, map, copy to it, release), not both. Creating a sequence may run beside anything.
 * Destroying the cache may run beside nothing. A cache of slots has rules of its own: see "slots" below.
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
    AURA_KIND_BF16 = 11,
    AURA_KIND_T2 = 12, /* codes of 2, 3 and 4 bits along a trellis: smaller errors than B2, B3 and B4 in the same bytes */
    AURA_KIND_T3 = 13,
    AURA_KIND_T4 = 14
} aura_kind;

/* The kinds of keys and values. Every pair is a format. */
typedef struct aura_format {
    aura_kind k, v;
} aura_format;

/* Reads the name of a format: "k4v4", "k8v4", "kt3vt3", "kf16v3", "kbf16vf32" ..., or a preset: "max" is k8v8, "safe"
 * k6v6, "quality" k5v5, "balanced" k4v4, "small" k3v3. Fails: AURA_BAD_ARGUMENT (no format of that name). */
AURA_API aura_status aura_format_parse(const char *name, aura_format *format);

/* Writes the name of a format, "k4v4", into the caller's name[16]. Fails: AURA_BAD_ARGUMENT (a kind that is none). */
AURA_API aura_status aura_format_name(aura_format format, char name[16]);

/* Parts of the codec that can be switched off; doc/numerics.md shows what each is worth. */
enum {
    AURA_NO_REFERENCE = 1, /* keys are encoded as they are, not relative to their page's reference */
    AURA_NO_PINNED = 2,    /* the first 4 tokens are encoded like all others */
    AURA_NO_ROLLBACK = 4,  /* a tile of 32 tokens is encoded as soon as it is full */
    AURA_NO_OPEN = 8,      /* a token is encoded at once. Needs AURA_NO_REFERENCE; implies AURA_NO_ROLLBACK */
    AURA_NO_SEARCH = 16,   /* the plain fit instead of the best of nine */

    /* And one that is switched on. The cache adds up q q' of the queries that it is asked, until it has those of 512 positions;
     * of calls with up to 4 only those of a first sequence whose length is a multiple of 4. That is then the k_metric of all keys
     * that are encoded later. So bytes depend on the calls. While a cache learns, attention calls wait for each other in that
     * part only. Without effect where there is a k_metric, and on plain keys. What was learnt is saved, and loaded with a cache,
     * or with a sequence into a cache that has learnt nothing yet. The GPU does not learn */
    AURA_LEARN = 32
};

typedef struct aura_config {
    size_t size;
    aura_format format;          /* zero: k4v4 */
    uint32_t q_heads, kv_heads;  /* q_heads 0: every attend job says it */
    uint32_t k_dim, v_dim;       /* 1 to 512; v_dim 0: k_dim. Others than 64, 80, 96, 112, 128, 192, 256 and 512 are stored with
                                    zeros up to the next of these, which changes no result */
    uint32_t flags;              /* AURA_NO_..., AURA_LEARN */
    uint32_t rollback;           /* tokens that truncate can take back without loss: 1 to 224; 0: 16. A sequence has f16 rows
                                    for 64 tokens of each KV head, with more than 32 for 128, with more than 96 for 256 */
    uint64_t seed;               /* of the signs */
    const float *balance;        /* [kv_heads][k_dim] factors on the keys, each within 1/8 to 8, from aura_calibration; copied.
                                    NULL: none. Plain keys take none */
    size_t budget_bytes;         /* what the cache may allocate in all; 0: no limit */

    /* Feedback: what an error of a stored key or value costs those who read it, a symmetric matrix of each KV head. Tokens are
     * then encoded so that e'Me is small; what the codes mean does not change. [kv_heads][dim * (dim + 1) / 2], the lower
     * triangles by rows: entry (i, j), j <= i, at i * (i + 1) / 2 + j; copied. Keys: E[q q'] of the queries, from
     * aura_calibration_metric(). Values: the sum over the heads of the group of W'W, W being their columns of the output
     * projection. NULL: none. Plain sides take none */
    const float *k_metric, *v_metric;
    const float *v_balance;      /* [kv_heads][v_dim] factors on the values, like balance */

    /* A sliding window: a token is seen by itself and by the `window` - 1 tokens after it. The cache uses pages again when
     * nobody will see their tokens any more. slack is max(max_queries, rollback). The page of a token stays at least until
     * window + slack tokens have followed. A sequence has at most ceil((window + slack) / 256) + 1 pages, and those of its
     * first keep_first tokens. 0: no window, every token stays. */
    uint64_t window;
    uint32_t max_queries;        /* with a window: most tokens of an append job and most queries of an attend job; 0: 512 */
    uint32_t keep_first;         /* with a window: every query sees this many tokens at the beginning, however old */

    /* Slots instead of sequences: see "slots" below. 0: sequences */
    uint64_t slots;
} aura_config;
#define AURA_CONFIG_INIT \
    {sizeof(aura_config), {(aura_kind)0, (aura_kind)0}, 0, 0, 0, 0, 0, 0, 0, NULL, 0, NULL, NULL, NULL, 0, 0, 0, 0}

typedef struct aura_cache aura_cache;
typedef uint32_t aura_seq; /* a sequence of one cache; never 0 */

/* Makes a cache without sequences. The caller owns *cache.
 * Fails: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (a kind or dim nobody built), AURA_BAD_VALUE (balance, metric), AURA_OUT_OF_MEMORY,
 * AURA_OUT_OF_PAGES (a budget in which no page fits). */
AURA_API aura_status aura_cache_create(aura_ctx *ctx, const aura_config *config, aura_cache **cache);

/* Frees a cache and all its sequences; NULL is allowed. No call that uses it may be running or follow. Never fails. */
AURA_API void aura_cache_destroy(aura_cache *cache);

/* What a cache is and holds. */
typedef struct aura_cache_info {
    size_t size;
    aura_config config;      /* with the defaults filled in; balance points into the cache */
    size_t bytes;            /* allocated by the cache in all, as aura_cache_bytes() says */
    size_t page_bytes;       /* 256 tokens of all KV heads */
    size_t seq_bytes;        /* what a sequence needs besides pages */
    size_t pages, free_pages; /* allocated; of these, in no sequence */
    size_t seqs;
    double bits_per_value;   /* of a full page, scales and reference included */
    size_t shared_pages;     /* that are in more than one sequence */
    size_t holders;          /* of all pages together: sharing saves holders - (pages - free_pages) pages */
    uint64_t tokens;         /* in the pages of all sequences; a token of a shared page counts once in each */
    uint64_t token_slots;    /* 256 * holders: 1 - tokens / token_slots of the space is empty or reserved */
    /* Since the cache was made: pages copied because others had them too; tiles that appends closed, of all KV heads; and seconds
     * in aura_append(), in aura_attend(), and in aura_append_attend() and aura_step(), of all threads together. */
    uint64_t pages_copied, tiles_closed;
    double append_s, attend_s, step_s;
} aura_cache_info;
#define AURA_CACHE_INFO_INIT {sizeof(aura_cache_info), AURA_CONFIG_INIT, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info. It may run beside any call but aura_cache_destroy(). Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_cache_get_info(const aura_cache *cache, aura_cache_info *info);

/* Lists the ids of the sequences, as many as fit into seqs[*n], in the order in which a snapshot has them. *n becomes how many
 * there are. With *n 0 seqs may be NULL. It may run beside any call but aura_cache_destroy(). Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_cache_list(const aura_cache *cache, aura_seq *seqs, size_t *n);

/* Bytes that the cache has allocated in all; 0 for NULL. It may run beside any call but aura_cache_destroy(). Never fails. */
AURA_API size_t aura_cache_bytes(const aura_cache *cache);

/* ---- sequences --------------------------------------------------------------------------------------------------- */

/* Makes an empty sequence. Its id is valid until aura_seq_release().
 * Fails: AURA_BAD_ARGUMENT (also: a cache of slots, a layer of a model), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_create(aura_cache *cache, aura_seq *seq);

/* Makes a sequence that begins with the first `tokens` tokens of another. The two share pages; the cache copies a shared
 * page when one of its sequences is to write to it. From then on each is as if it had been appended to alone; the new one as
 * if it had been truncated to `tokens` then. It inherits no reservation.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it has; with a window, tokens that
 * are gone, as in aura_truncate()), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_fork(aura_cache *cache, aura_seq from, uint64_t tokens, aura_seq *seq);

/* Ends a sequence. The pages that it does not share go back to the cache.
 * Fails: AURA_BAD_ARGUMENT (no such sequence, a layer of a model). */
AURA_API aura_status aura_seq_release(aura_cache *cache, aura_seq seq);

typedef struct aura_seq_info {
    size_t size;
    uint64_t tokens;  /* appended and not truncated */
    uint64_t closed;  /* tokens from here on are held in f16; truncating to it or above loses nothing */
    size_t pages;
    size_t shared_pages; /* of these, shared with other sequences */
    uint64_t first;   /* tokens from here on are there; with a window those before are gone, except keep_first */
} aura_seq_info;
#define AURA_SEQ_INFO_INIT {sizeof(aura_seq_info), 0, 0, 0, 0, 0}

/* Fills the caller's *info. It reads the sequence. Fails: AURA_BAD_ARGUMENT (no such sequence). */
AURA_API aura_status aura_seq_get_info(const aura_cache *cache, aura_seq seq, aura_seq_info *info);

/* Gives the sequence pages for `tokens` tokens in all, and copies of the pages that it shares and would write to. Until it
 * has more tokens than that, append cannot fail for want of space. Reserve again after a fork or copy from the sequence, and
 * after it was truncated into pages that it shares.
 * Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT, AURA_TOO_LARGE. */
AURA_API aura_status aura_seq_reserve(aura_cache *cache, aura_seq seq, uint64_t tokens);

/* ---- append, cut, copy, decode ----------------------------------------------------------------------------------- */

/* Where a tensor [token][head][dim] is that the library reads. Strides in elements, either sign; 0: contiguous. dim is always
 * contiguous. The caller owns the struct and what it points to; the library keeps neither. */
typedef struct aura_input {
    const void *data;
    aura_dtype dtype;
    ptrdiff_t token_stride, head_stride;
    const uint32_t *rows; /* [tokens]: token i is row rows[i] of the tensor, whose row 0 is at data. NULL: it is row i */
} aura_input;
#define AURA_INPUT_INIT {NULL, AURA_F32, 0, 0, NULL}

/* The same for one that it writes. Its rows must ascend, so that none is there twice. */
typedef struct aura_view {
    void *data;
    aura_dtype dtype;
    ptrdiff_t token_stride, head_stride;
    const uint32_t *rows;
} aura_view;
#define AURA_VIEW_INIT {NULL, AURA_F32, 0, 0, NULL}

typedef struct aura_append_job {
    size_t size;
    aura_seq seq;
    uint32_t tokens;
    aura_input k, v; /* [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim]; keys, like queries, after RoPE */
    uint8_t *bad;    /* [tokens]: a vector that cannot be stored becomes zeros, and bad[i] says of token i: 1 a key was such a
                        vector, 2 a value, 3 both, 0 none. NULL: the call fails instead */
} aura_append_job;
#define AURA_APPEND_JOB_INIT {sizeof(aura_append_job), 0, 0, AURA_INPUT_INIT, AURA_INPUT_INIT, NULL}

/* Appends tokens to any number of different sequences: to all of them or to none. The bytes stored do not depend on how
 * the caller divides tokens into calls, on the instruction set or on threads.
 * Fails, with nothing changed: AURA_BAD_VALUE (NaN, Inf, or a vector longer than 60 000 after balance, in a job without `bad`:
 * the message names it), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT (no such sequence, one sequence twice, more than
 * max_queries tokens with a window), AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_append(aura_cache *cache, const aura_append_job *jobs, size_t n_jobs);

/* Cuts a sequence to its first `tokens` tokens. At or above `closed` of aura_seq_info the result is as if the others had
 * never been appended; below it, the tokens that stay are as they were encoded. Pages that are neither needed nor reserved go
 * back to the cache. Never allocates.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such sequence, more tokens than it has; with a window, a cut after
 * which some of the last `window` tokens would be gone). A window always lets the caller cut max(max_queries, rollback)
 * tokens, or all of them. */
AURA_API aura_status aura_truncate(aura_cache *cache, aura_seq seq, uint64_t tokens);

/* Removes tokens [first, first + tokens). The tokens after them move down; a position that the caller rotated into a key stays in
 * it. The end of the sequence goes as with aura_truncate(). Whole encoded pages go without a change to others: first and tokens are
 * multiples of 256, first + tokens <= closed, there is no window, and pinned tokens are not among them. After any other range, what
 * follows is decoded, cut off and appended, all in place: it is encoded again when its tiles close.
 * Fails, with no token changed: AURA_BAD_ARGUMENT (no such sequence, tokens that it does not have; with a window, tokens from
 * `first` on that are gone, or a cut to `first` that aura_truncate() refuses), AURA_OUT_OF_MEMORY, AURA_OUT_OF_PAGES (only where
 * pages are shared: those that it writes to are copied, and stay so). */
AURA_API aura_status aura_seq_remove(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens);

/* Changes key[k_dim] of a token and KV head, in model space, to what is stored instead. `token` is where it is after the call,
 * `layer` 0 for a cache that is no model's. The library asks from any thread that works on the call, and twice for each key, the
 * first time to see that all can be stored: the answer must be the same. It must not call the library. */
typedef void aura_map_key_fn(void *user, uint32_t layer, uint64_t token, uint32_t kv_head, float *key);

/* Maps the keys of tokens [first, first + tokens), for example to other positions. Values stay bit by bit. Keys that are codes are
 * encoded again: relative to a new reference where all codes of their page are, else to the one that the page has.
 * Fails as aura_seq_remove() does, and AURA_BAD_VALUE (a key that cannot be stored), with no token changed. */
AURA_API aura_status aura_seq_map_keys(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens, aura_map_key_fn *map,
                                       void *user);

/* aura_seq_remove(), and the keys of all tokens after the range mapped on their way: they are encoded once. Fails as both do. */
AURA_API aura_status aura_seq_shift(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens, aura_map_key_fn *map,
                                    void *user);

/* Appends tokens [first, first + tokens) of one sequence to another, or to itself. The two share the pages, so the tokens
 * are the same bit by bit. This is possible where it is exact:
 *   - first and tokens are multiples of 256, and all these tokens are encoded: first + tokens <= closed;
 *   - `to` has a multiple of 256 tokens, and all of them are encoded: closed = tokens, as after truncating to closed;
 *   - in a cache with pinned tokens, first is 0 exactly when `to` is empty.
 * To move tokens, copy them and remove them.
 * Fails, with nothing changed: AURA_UNSUPPORTED (any other range, and every copy with a window: decode and append),
 * AURA_BAD_ARGUMENT (no such sequence, tokens that it does not have), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_copy(aura_cache *cache, aura_seq from, uint64_t first, uint64_t tokens, aura_seq to);

/* Writes tokens [first, first + tokens) in model space, as attention sees them, to the caller's views. A view with data
 * NULL is left out. It reads the sequence.
 * Fails: AURA_BAD_ARGUMENT (tokens that it does not have or that are gone, strides or rows that would overlap),
 * AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_cache_decode(const aura_cache *cache, aura_seq seq, uint64_t first, uint32_t tokens,
                                       const aura_view *k, const aura_view *v);

/* ---- attention --------------------------------------------------------------------------------------------------- */

/* Queries of the sequence's newest positions: query i of n is at position tokens - n + i and sees the keys up to and
 * including its own. */
typedef struct aura_attend_job {
    size_t size;
    aura_seq seq;
    uint32_t queries;
    aura_input q;       /* [queries][q_heads][k_dim] */
    aura_view out;      /* [queries][q_heads][v_dim]; may overlap q */
    float *lse;         /* [queries][q_heads] natural log-sum-exp, sinks included; -inf where nothing is seen. Or NULL */
    const float *mask;  /* [queries][mask_keys], added to the logits of the last mask_keys keys; -inf hides a key. For
                           all heads, or one for each: mask_head_stride. NULL: none */
    uint32_t mask_keys;
    size_t mask_stride; /* floats from query to query; 0: mask_keys */
    const uint32_t *tiles; /* slots only: see "slots" below */
    uint64_t tokens;       /* slots only */
    const uint64_t *from, *until; /* [queries] each, or NULL. Query i sees tokens [from[i], until[i]), whatever the window,
                              keep_first and causality are. until alone: window and ALiBi count from token until[i] - 1, where
                              the query then is; so the queries of any position can be asked. from alone: up to its own position */
    uint32_t q_heads;      /* 0: those of the cache. All jobs of a call have the same */
    size_t mask_head_stride; /* floats from the mask of a query head to that of the next; 0: all have the same */
} aura_attend_job;
#define AURA_ATTEND_JOB_INIT \
    {sizeof(aura_attend_job), 0, 0, AURA_INPUT_INIT, AURA_VIEW_INIT, NULL, NULL, 0, 0, NULL, 0, NULL, NULL, 0, 0}

/* Shared by all jobs of a call. logit = scale * q.k, then softcap * tanh(logit / softcap), then + alibi[head] *
 * (key position - query position), then + mask. */
typedef struct aura_attend_options {
    size_t size;
    float scale;         /* 0: 1 / sqrt(k_dim) */
    float softcap;       /* 0: none */
    uint64_t window;     /* a query sees its last `window` keys, its own included, and the cache's keep_first. 0: the
                            cache's window, which is the most there can be, or all keys where the cache has none */
    const float *sinks;  /* [q_heads] logits that join the denominator with value 0, or NULL */
    const float *alibi;  /* [q_heads] slopes, or NULL */
    uint32_t not_causal; /* 1: every query sees all keys; the window and ALiBi then count from the newest key */
    uint32_t planes;     /* bytes of query and weights that enter the integer products: 1, 2; 0: 1 for sides of up to 5
                            bits, 2 for 6 and 8, and for keys whose logit one byte of the query could move by more than a
                            nat */
    void *workspace;     /* at least aura_attend_workspace() bytes, aligned to 64; NULL: allocated for the call */
    size_t workspace_bytes;
} aura_attend_options;
#define AURA_ATTEND_OPTIONS_INIT {sizeof(aura_attend_options), 0, 0, 0, NULL, NULL, 0, 0, NULL, 0}

/* Computes the attention of every query head to the cache. options NULL: all defaults. A row that sees no key is 0.
 * Results do not depend on the number of threads or on the other jobs. With a workspace nothing is allocated. It reads the
 * sequences.
 * Fails, with nothing written: AURA_BAD_ARGUMENT (also: more causal queries than tokens; from above until, or either beyond the
 * tokens; in a cache with a window, a larger window, more than max_queries queries, or tokens that are gone between the first
 * and the last that a job sees), AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE, AURA_OUT_OF_MEMORY.
 * Fails, with everything written: AURA_NOT_FINITE. A row is NaN where its query, its mask or the plain keys and values that
 * it sees hold NaN or Inf. All other rows are good. */
AURA_API aura_status aura_attend(const aura_cache *cache, const aura_attend_job *jobs, size_t n_jobs,
                                 const aura_attend_options *options);

/* aura_append() and then aura_attend(), in one call that hands its work to threads once where that is short. The same bits.
 * Fails as both do, with nothing appended and nothing written, but AURA_NOT_FINITE: then all was done. */
AURA_API aura_status aura_append_attend(aura_cache *cache, const aura_append_job *in, size_t n_in, const aura_attend_job *ask,
                                        size_t n_ask, const aura_attend_options *options);

/* The next tokens of a batch of sequences, in tensors that have them all: keys and values are appended, and each token asks. */
typedef struct aura_step_args {
    size_t size;
    const aura_seq *seqs;      /* [n_seqs], all different */
    size_t n_seqs;
    uint32_t tokens;           /* of every sequence, with its padding */
    const uint32_t *starts;    /* [n_seqs] the first starts[i] tokens of seqs[i] are padding: neither read nor stored, and their
                                  outputs are 0. NULL: none */
    aura_input k, v, q;        /* [n_seqs][tokens][heads][dim]. data of k and v NULL: nothing is appended, the tokens are there */
    aura_view out;             /* may overlap the others */
    ptrdiff_t k_seq_stride, v_seq_stride, q_seq_stride, out_seq_stride; /* elements from sequence to sequence; 0: as far as the
                                  larger of tokens * token_stride and heads * head_stride. rows are the same in each */
    float *lse;                /* [n_seqs][tokens][q_heads], or NULL */
    const uint64_t *from, *until; /* [n_seqs][tokens] each, or NULL: as in aura_attend_job. Padding is no token */
    uint32_t q_heads;          /* 0: those of the cache */
    uint8_t *bad;              /* [n_seqs][tokens], or NULL: as in aura_append_job */
} aura_step_args;
#define AURA_STEP_ARGS_INIT \
    {sizeof(aura_step_args), NULL, 0, 0, NULL, AURA_INPUT_INIT, AURA_INPUT_INIT, AURA_INPUT_INIT, AURA_VIEW_INIT, 0, 0, 0, 0, \
     NULL, NULL, NULL, 0, NULL}

/* Does it as aura_append_attend() does. With a workspace and up to 16 sequences it allocates nothing but pages.
 * Fails as that does, and AURA_BAD_ARGUMENT where a start is beyond `tokens`. */
AURA_API aura_status aura_step(aura_cache *cache, const aura_step_args *step, const aura_attend_options *options);

/* Says how many bytes of workspace these jobs need. They are enough for fewer queries of each job too. Of a job the call
 * reads only seq, queries and q_heads; with slots, also tokens. `tokens` is the most that any sequence will have, to plan
 * ahead; 0: what each has now. It reads the sequences. Fails: AURA_BAD_ARGUMENT, AURA_TOO_LARGE. */
AURA_API aura_status aura_attend_workspace(const aura_cache *cache, const aura_attend_job *jobs, size_t n_jobs,
                                           uint64_t tokens, size_t *bytes);

/* Merges two attention results over different keys into the result over both. Give sinks to one of the two attention calls
 * only. */
typedef struct aura_merge_args {
    size_t size;
    size_t rows;
    uint32_t dim;                 /* 1 to AURA_MAX_DIM */
    aura_dtype dtype;
    const void *a, *b;            /* [rows][dim] */
    const float *a_lse, *b_lse;   /* [rows]; -inf: no keys, and the row that comes with it counts for nothing */
    void *out;                    /* [rows][dim]; may be a or b */
    float *out_lse;               /* [rows], or NULL; may be a_lse or b_lse */
} aura_merge_args;
#define AURA_MERGE_ARGS_INIT {sizeof(aura_merge_args), 0, 0, AURA_F32, NULL, NULL, NULL, NULL, NULL, NULL}

/* Writes out and out_lse. Never allocates.
 * Fails, with nothing written: AURA_BAD_ARGUMENT (also: dim, a misaligned pointer, buffers that overlap in another way),
 * AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. Fails, with everything written: AURA_NOT_FINITE (a row is NaN, and its lse, where
 * an input or the result is not finite; all other rows are good). */
AURA_API aura_status aura_merge(const aura_ctx *ctx, const aura_merge_args *args);

/* ---- slots: for engines that own their slot map --------------------------------------------------------------------
 *
 * A cache whose config has `slots` holds tokens in slots 0 ... slots - 1 instead of sequences. What a slot means is the
 * caller's business. aura_cache_create() allocates all pages. A token is encoded into its slot at once; nothing is pinned or
 * open (AURA_NO_PINNED and AURA_NO_OPEN are implied). Slots 32 i ... 32 i + 31 are tile i, and 256 slots are a page. Keys are
 * encoded relative to their page's reference, which is zero where the caller has set none.
 *
 * To attend, a job has seq 0. Its `tokens` tokens are in the tiles tiles[0], tiles[1] ... in that order; tiles NULL means
 * tiles 0, 1, 2 ... Position, causality, window and mask go by the index in that list. The mask hides slots that hold
 * something else. Calls about sequences fail with AURA_BAD_ARGUMENT, and so do calls about slots in a cache of sequences.
 *
 * Threads: tiles are independent. On one tile, any number of attend and decode calls may run at once, or one that writes
 * to it. Setting a reference and clearing count as writing to all tiles of the page. */
typedef struct aura_slot_job {
    size_t size;
    uint32_t tokens;
    const uint64_t *slot; /* [tokens] */
    aura_input k, v;      /* [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim] */
} aura_slot_job;
#define AURA_SLOT_JOB_INIT {sizeof(aura_slot_job), 0, NULL, AURA_INPUT_INIT, AURA_INPUT_INIT}

/* Writes tokens into slots and replaces what was there: all of them or none. Never allocates.
 * Fails, with nothing changed: AURA_BAD_VALUE and AURA_UNSUPPORTED as aura_append(), AURA_BAD_ARGUMENT (no such slot, a slot
 * twice in a call), AURA_TOO_LARGE. */
AURA_API aura_status aura_slots_write(aura_cache *cache, const aura_slot_job *jobs, size_t n_jobs);

/* Makes a key, k[1][kv_heads][k_dim], the reference of page `page`, which has slots 256 page ... 256 page + 255. Best is the
 * mean of the keys to come. Call it before anything is written to the page, or after aura_slots_clear().
 * Fails, with nothing changed: AURA_BAD_VALUE, AURA_BAD_ARGUMENT (also: no such page, one that was written to, plain keys,
 * AURA_NO_REFERENCE), AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_slots_reference(aura_cache *cache, uint64_t page, const aura_input *k);

/* Forgets the tokens of a page and its reference. Fails: AURA_BAD_ARGUMENT (no such page). */
AURA_API aura_status aura_slots_clear(aura_cache *cache, uint64_t page);

/* Writes the tokens in these slots, in model space, to the caller's views. A slot that was never written gives 0. A view with
 * data NULL is left out.
 * Fails: AURA_BAD_ARGUMENT (no such slot, strides or rows that would overlap), AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_slots_decode(const aura_cache *cache, const uint64_t *slot, uint32_t tokens, const aura_view *k,
                                       const aura_view *v);

/* ---- models ------------------------------------------------------------------------------------------------------
 *
 * aura_model_cache is the caches of all layers of a model. Each has its own format; all share one budget. A sequence is in
 * all of them under one id. Append and attend work on the layers, which are caches like any other, with one exception: only
 * the functions here create, fork and release sequences. Those of one cache fail with AURA_BAD_ARGUMENT.
 *
 * Threads: as for caches. A call that creates, forks or releases a sequence here does so in all layers.
 */
typedef struct aura_model_cache aura_model_cache;
typedef struct aura_profile aura_profile; /* aura_file.h has its functions */

typedef struct aura_model_config {
    size_t size;
    uint32_t layers;             /* 1 to 65536 */
    const aura_config *configs;  /* [layers]; budget_bytes and slots must be 0 */
    const aura_profile *profile; /* has the format and the balance of layers whose config has none; plain keys take no balance. It
                                    must have as many layers. Read during the call only. NULL: none */
    size_t budget_bytes;         /* what all layers may allocate; 0: no limit. With a limit a layer takes its pages in smaller
                                    parts, and a part that one layer does not use goes to another that needs it */
} aura_model_config;
#define AURA_MODEL_CONFIG_INIT {sizeof(aura_model_config), 0, NULL, NULL, 0}

/* Makes the caches of a model, without sequences. The caller owns *model.
 * Fails: as aura_cache_create(); AURA_BAD_ARGUMENT also where the profile has other layers, heads or dims. */
AURA_API aura_status aura_model_cache_create(aura_ctx *ctx, const aura_model_config *config, aura_model_cache **model);

/* Frees a model's caches and all its sequences; NULL is allowed. No call that uses them may be running or follow.
 * Never fails. */
AURA_API void aura_model_cache_destroy(aura_model_cache *model);

typedef struct aura_model_cache_info {
    size_t size;
    uint32_t layers;
    size_t bytes;             /* allocated in all */
    size_t budget_bytes;
    size_t seqs;
    size_t pages, free_pages; /* of all layers. The bytes of a page differ from layer to layer: aura_cache_get_info() */
    uint64_t tokens;          /* in the pages of all layers */
    uint64_t pages_copied, tiles_closed; /* of all layers, as in aura_cache_info */
    double append_s, attend_s, step_s;
} aura_model_cache_info;
#define AURA_MODEL_CACHE_INFO_INIT {sizeof(aura_model_cache_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info. It may run beside any call but aura_model_cache_destroy(). Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_model_cache_get_info(const aura_model_cache *model, aura_model_cache_info *info);

/* Lists the ids of the sequences, as aura_cache_list() does. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_model_cache_list(const aura_model_cache *model, aura_seq *seqs, size_t *n);

/* The cache of a layer. The model owns it: do not destroy it. NULL where there is no such layer. Never fails. */
AURA_API aura_cache *aura_model_cache_layer(const aura_model_cache *model, uint32_t layer);

/* These five do what aura_seq_create(), aura_seq_fork(), aura_seq_release(), aura_truncate() and aura_seq_reserve() do, in
 * all layers. Fail as those do, then in no layer; AURA_BAD_ARGUMENT also where one layer has fewer than `tokens` tokens, for
 * fork and truncate. Reserve may also fail with AURA_OUT_OF_MEMORY of its own. */
AURA_API aura_status aura_model_seq_create(aura_model_cache *model, aura_seq *seq);
AURA_API aura_status aura_model_seq_fork(aura_model_cache *model, aura_seq from, uint64_t tokens, aura_seq *seq);
AURA_API aura_status aura_model_seq_release(aura_model_cache *model, aura_seq seq);
AURA_API aura_status aura_model_seq_truncate(aura_model_cache *model, aura_seq seq, uint64_t tokens);
AURA_API aura_status aura_model_seq_reserve(aura_model_cache *model, aura_seq seq, uint64_t tokens);

/* For beams: to[i] becomes from[which[i]]. A sequence that is chosen keeps its id in the first place that has it and is forked,
 * whole, for the others; those that nobody chose are released. `to` may be `from`.
 * Fails, with nothing changed, as aura_model_seq_fork() does; AURA_BAD_ARGUMENT also where `from` has one twice. */
AURA_API aura_status aura_model_seqs_select(aura_model_cache *model, const aura_seq *from, size_t n_from, const uint32_t *which,
                                            size_t n, aura_seq *to);

/* aura_seq_remove(), aura_seq_map_keys() and aura_seq_shift() in all layers. Fail as those do, then in no layer. */
AURA_API aura_status aura_model_seq_remove(aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t tokens);
AURA_API aura_status aura_model_seq_map_keys(aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t tokens,
                                             aura_map_key_fn *map, void *user);
AURA_API aura_status aura_model_seq_shift(aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t tokens,
                                          aura_map_key_fn *map, void *user);

#ifdef __cplusplus
}
#endif
#endif
