/* What another backend needs of a cache: what follows from its configuration, and the bytes of a sequence. Compiles as C
 * and as C++; nothing of how the CPU cache stores its pages shows here. */
#ifndef AURA_BACKEND_H
#define AURA_BACKEND_H

#include "../../include/aura_file.h"
#include "../stages.h"
#include "page_table.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything that follows from a configuration. Pointers into the cache. */
struct aura_backend_cache {
    const aura_config *config;    /* with the defaults filled in */
    const struct aura_layout *layout;
    const struct aura_rotation_plan *k_rotate, *v_rotate, *v_undo; /* NULL for a plain side */
    const struct aura_codec_plan *k_codec, *v_codec, *reference_codec;
    const float *balance, *inverse_balance;     /* [kv_heads][k_dim], or NULL */
    const float *v_balance, *v_inverse_balance; /* [kv_heads][v_dim], or NULL */
    const struct aura_metric *k_metric, *v_metric; /* [kv_heads], or NULL */
    uint32_t pinned, rollback;
    uint32_t rows;                /* f16 rows per head and sequence: open ones by position modulo (rows - pinned), then pinned */
    size_t page_bytes;
    struct aura_page_window window;
};

/* A sequence as it is stored. */
struct aura_backend_seq {
    uint64_t len, closed;
    uint64_t top;                 /* aura_window_least_top(): the device goes by it, not by `first` */
    size_t first, pages;          /* pages below `kept` of the window and [first, pages) are there and hold its tokens */
    uint16_t *k, *v;              /* [kv_heads][rows][dim]; NULL for a plain side */
};

void aura_backend_describe(struct aura_backend_cache *facts, const aura_cache *cache);

/* What the caches of a model on the CPU take of a profile: the format, balances and metrics of a layer whose configuration has
 * none. Fails: AURA_BAD_ARGUMENT (other layers, heads or dims), with a message that names `call`. */
aura_status aura_backend_take_profile(const aura_ctx *ctx, const char *call, const aura_profile *profile, uint32_t layers,
                                      uint32_t layer, aura_config *config);

/* Fails: AURA_BAD_ARGUMENT (no such sequence), with a message that names `call`. */
aura_status aura_backend_find(const char *call, const aura_cache *cache, aura_seq seq, struct aura_backend_seq *facts);

/* Whether page i < pages is there. */
static inline int aura_backend_has_page(const struct aura_backend_cache *facts, const struct aura_backend_seq *seq, size_t i)
{
    return aura_window_has_page(&facts->window, seq->first, i);
}

/* A page that is there, of a sequence that aura_backend_find found; valid until the sequence changes. */
uint8_t *aura_backend_page(const aura_cache *cache, aura_seq seq, size_t i);

/* Gives an empty sequence pages of its own and these lengths. With a window, it gets the kept pages and those from `first` on.
 * The caller writes what the pages hold. Fails, with nothing changed, as aura_append does where there is no space, and with
 * AURA_BAD_ARGUMENT where the sequence is not empty. */
aura_status aura_backend_fill(const char *call, aura_cache *cache, aura_seq seq, uint64_t len, uint64_t closed, size_t first,
                          struct aura_backend_seq *facts);

/* ---- whole caches ---- */

/* Page i of a new sequence; pages that it lacks before it are gone. *page is a page of the cache, which the sequence then
 * shares, or NULL: it gets one of its own. Call aura_backend_set_lengths() after the last page. The caller writes what the
 * pages hold. Fails as aura_append does where there is no space. */
aura_status aura_backend_add_page(const char *call, aura_cache *cache, aura_seq seq, size_t i, uint8_t **page);
void aura_backend_set_lengths(const char *call, aura_cache *cache, aura_seq seq, uint64_t len, uint64_t closed,
                              struct aura_backend_seq *facts);

/* ---- files: backend_file.c ---- */

/* A snapshot of a cache like `shape`, from a path or, where that is NULL, a source: the sequences that `options` name, or
 * all. Everything in it has been checked. The shape and where it comes from must live as long as it is open. Fails as
 * aura_seq_load and aura_seq_read do. */
struct aura_backend_file;
aura_status aura_backend_open(const char *call, const aura_cache *shape, const char *path, aura_source *source,
                              const aura_snapshot_options *options, struct aura_backend_file **file);
void aura_backend_close(struct aura_backend_file *file); /* NULL is allowed */
size_t aura_backend_file_seqs(const struct aura_backend_file *file);
/* Sequence i: its number in the file, and its facts but the rows, which aura_backend_file_rows() writes. */
aura_seq aura_backend_file_seq(const struct aura_backend_file *file, size_t i, struct aura_backend_seq *facts);
const uint8_t *aura_backend_file_page(const struct aura_backend_file *file, size_t i, size_t page);
void aura_backend_file_rows(const struct aura_backend_file *file, size_t i, uint16_t *k, uint16_t *v);
/* Bytes of a snapshot of sequences of these lengths, which have `pages` different pages. Fails as aura_cache_size does. */
aura_status aura_backend_size(const char *call, const aura_cache *shape, const struct aura_backend_seq *seqs, size_t n,
                              size_t pages, const aura_snapshot_options *options, size_t *bytes);

/* aura_fail for callers that have no context.h. */
aura_status aura_backend_fail(const aura_ctx *ctx, aura_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
