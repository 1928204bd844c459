/* What another backend needs of a cache: what follows from its configuration, and the bytes of a sequence. Compiles as C
 * and as C++; nothing of how the CPU cache keeps its pages shows here. */
#ifndef AURA_RAW_H
#define AURA_RAW_H

#include "stages.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Everything that follows from a configuration. Pointers into the cache. */
struct aura_raw {
    const aura_config *config;    /* with the defaults filled in */
    const struct aura_layout *layout;
    const struct aura_rotation_plan *k_turn, *v_turn, *v_undo; /* NULL for a plain side */
    const struct aura_codec_plan *k_codec, *v_codec, *reference_codec;
    const float *balance, *inverse_balance; /* [kv_heads][k_dim], or NULL */
    uint32_t pinned, rollback;
    uint32_t rows;                /* f16 rows per head and sequence: open ones by position modulo (rows - pinned), then pinned */
    size_t page_bytes;
};

/* A sequence as it is stored. */
struct aura_raw_seq {
    uint64_t len, closed;
    size_t pages;                 /* that hold its tokens */
    uint16_t *k, *v;              /* [kv_heads][rows][dim]; NULL for a plain side */
};

void aura_raw_describe(struct aura_raw *raw, const aura_cache *cache);

/* Fails: AURA_BAD_ARGUMENT (no such sequence), with a message that names `call`. */
aura_status aura_raw_find(const char *call, const aura_cache *cache, aura_seq seq, struct aura_raw_seq *raw);

/* Page i < pages of a sequence that aura_raw_find found; valid until the sequence changes. */
uint8_t *aura_raw_page(const aura_cache *cache, aura_seq seq, size_t i);

/* Gives an empty sequence of a cache without a window pages of its own for `len` tokens, and these lengths; what the pages
 * hold is the caller's to write. Fails, with nothing changed, as aura_append does for want of space, and with
 * AURA_BAD_ARGUMENT where the sequence is not empty. */
aura_status aura_raw_fill(const char *call, aura_cache *cache, aura_seq seq, uint64_t len, uint64_t closed,
                          struct aura_raw_seq *raw);

/* aura_fail for callers that have no ctx.h. */
aura_status aura_raw_fail(const aura_ctx *ctx, aura_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#ifdef __cplusplus
}
#endif
#endif
