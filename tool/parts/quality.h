/* What a cache does to a model: its next-token distributions beside those that it has with an exact cache, f32 on both sides.
 *
 * A text is cut into chunks of `ctx` tokens. A chunk goes through the model in one call, so that every query attends to keys and
 * values as the cache has them when the chunk is complete: codes, except the 4 pinned tokens, which stay in f16, and the open
 * ones at its end. With rollback 0 and ctx a multiple of 32 none is open. That is harder than generating text, where the newest
 * tokens are always open. As in llama.cpp's perplexity, the second half of a chunk is compared, positions ctx / 2 to ctx - 2,
 * each for the token that follows.
 *
 * Caches of llama.cpp are an exact cache whose keys and values were replaced by what llama.cpp would have stored (peer_quant.h). */
#ifndef AURA_QUALITY_H
#define AURA_QUALITY_H

#include "../../include/aura.h"
#include "../../model/llm.h"
#include "base_logits.h"
#include "divergence.h"
#include "peer_quant.h"

struct quality_cache {
    char name[16];
    aura_format format;
    const struct peer *peer;          /* NULL: one of ours */
    double bits;                      /* per value; of ours it is known after quality_measure() */
    struct divergence_summary result; /* of quality_measure() */
};

/* What to do with every cache of ours and every one of llama.cpp's, from many bits to few. */
extern const char quality_default_caches[];

/* Names separated by commas: formats and presets of aura_format_parse(), types of peer_find(). *caches [*count] is the caller's,
 * to be freed. 0 when good; otherwise 1, with a text. */
int quality_parse(const char *list, struct quality_cache **caches, size_t *count, char error[LLM_ERROR_BYTES]);

/* One pass of a chunk through the model, about to begin. */
struct quality_step {
    const char *cache;
    uint32_t chunk, chunks;
    uint32_t step, steps; /* of all of them */
};

struct quality_options {
    const struct llm *llm;       /* of llm_open_exact(), where small divergences are to be seen */
    const uint32_t *tokens;      /* [count] of the whole text */
    size_t count;
    uint32_t ctx;                /* at least 4 */
    uint32_t chunks;             /* 0: as many as there are tokens for */
    int64_t begin;               /* a token that takes the place of the first of each chunk, where the model wants one; -1: none */
    uint32_t threads, rollback;  /* rollback 0: none */
    uint64_t seed;
    const aura_profile *profile; /* NULL: none */
    const char *base;            /* a file that keeps the exact logits; NULL: none */
    uint64_t model_bytes;        /* with `base`: what tells models apart */
    uint32_t model_crc;
    int rounded;                 /* with `base`: 1 for a model of llm_open(), 0 for one of llm_open_exact() */
    void (*progress)(void *arg, const struct quality_step *step); /* NULL: none */
    void *arg;
};

/* Chunks that options ask for, or that there are; 0: not even one. */
uint32_t quality_chunks(const struct quality_options *options);

/* Positions of a chunk that are compared. */
uint32_t quality_rows(uint32_t ctx);

/* Tokens at the end of a chunk that caches of ours have not encoded yet, and hold in f16. */
uint32_t quality_open_tokens(uint32_t ctx, uint32_t rollback);

/* Fills in the results of all caches, chunk by chunk. 0 when good; otherwise 1, with a text. */
int quality_measure(const struct quality_options *options, struct quality_cache *caches, size_t count,
                    char error[LLM_ERROR_BYTES]);

#endif
