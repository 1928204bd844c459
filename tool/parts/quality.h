/* What a cache does to a model: compares its next-token distributions with those of an exact cache, f32 on both sides.
 *
 * A text is cut into chunks of `ctx` tokens. A chunk goes through the model in one call, so every query attends to keys and values
 * as the cache holds them when the chunk is complete: as codes, except the 4 pinned tokens, which stay in f16, and the open tokens
 * at its end. With rollback 0 and ctx a multiple of 32 no token is open. That is harder than generating text, where the newest
 * tokens are always open. As in llama.cpp's perplexity, the second half of a chunk is compared: positions ctx / 2 to ctx - 2,
 * each of which predicts the token after it.
 *
 * With `decode` the model reads the tokens up to the first that is compared as a prompt, and every other one in a call of its own,
 * as if it wrote them: so each query sees what a user's query would see. The tokens of a part of a prompt see each other as they
 * came (llm_forward()), and later ones see the open tokens as they are.
 *
 * With `by_depth` the 128 positions before 512, 1024, 2048 ... tokens are compared instead of the second half.
 *
 * A cache of others is an exact one whose keys and values are replaced by what it would return (baseline.h). */
#ifndef AURA_QUALITY_H
#define AURA_QUALITY_H

#include "../../include/aura.h"
#include "../../model/llm.h"
#include "base_logits.h"
#include "baseline.h"
#include "divergence.h"

enum { QUALITY_DEPTHS = 12, QUALITY_FIRST_DEPTH = 512, QUALITY_DEPTH_ROWS = 128 };

struct quality_cache {
    char name[16];
    aura_format format;               /* zero: what the profile says of each layer */
    const aura_format *formats;       /* [layers] instead of it; NULL: none */
    const struct peer *peer;          /* NULL: one of ours, or a codec */
    const char *codec;                /* a command of codec.h; NULL: none */
    double bits;                      /* per value; for one of ours set by quality_measure() */
    struct divergence_summary result; /* of quality_measure() */
    struct estimate depth[QUALITY_DEPTHS]; /* with by_depth: the mean divergence before 512 << i tokens */
    struct estimate ratio;            /* with `against`: the quotient of the mean divergences, in pairs of positions */
};

/* The list of caches that `aura eval` measures by itself, ours and llama.cpp's, from many bits to few. */
extern const char quality_default_caches[];

/* Reads names separated by commas: formats and presets of aura_format_parse(), types of peer_find(). The caller frees *caches
 * [*count]. 0 when good; otherwise 2 for a name that is none, or 1, with a text. */
int quality_parse(const char *list, struct quality_cache **caches, size_t *count, char error[LLM_ERROR_BYTES]);

/* Adds a codec to the list. 0 when good; otherwise there is no memory. */
int quality_add_codec(const char *command, struct quality_cache **caches, size_t *count);

/* From most bits to least, as tables show them; caches of as many bits by their names. */
void quality_sort(struct quality_cache *caches, size_t count);

/* A pass of a chunk through the model that is about to begin. */
struct quality_step {
    const char *cache;
    uint32_t chunk, chunks;
    uint32_t step, steps; /* of all of them */
};

/* A position of a chunk that was compared. */
typedef void quality_on_row(void *arg, const char *cache, uint32_t chunk, uint32_t position, const struct divergence_row *row);

struct quality_options {
    const struct llm *llm;       /* from llm_open_exact() if small divergences matter */
    const uint32_t *tokens;      /* [count] of the whole text */
    size_t count;
    uint32_t ctx;                /* at least 4 */
    uint32_t first;              /* position that is compared first; 0: ctx / 2 */
    uint32_t chunks;             /* 0: as many as there are tokens for */
    int decode, by_depth;
    int equal;                   /* caches of others keep in f16 what ours keep: see baseline.h */
    const char *against;         /* the name of one of the caches, for `ratio`; NULL: none */
    int64_t begin;               /* replaces the first token of each chunk, for models that want one there; -1: none */
    uint32_t threads, rollback;  /* rollback 0: none */
    uint64_t seed;
    const aura_profile *profile; /* NULL: none */
    int learn;                   /* caches of ours learn: AURA_LEARN; they then read LLM_PART tokens at a time */
    const char *base;            /* a file that keeps the exact logits; NULL: none */
    uint64_t model_bytes;        /* with `base`: size and checksum of the model's file */
    uint32_t model_crc;
    int rounded;                 /* with `base`: 1 for a model of llm_open(), 0 for one of llm_open_exact() */
    void (*progress)(void *arg, const struct quality_step *step); /* NULL: none */
    void *arg;
    quality_on_row *on_row; /* NULL: none. Caches of a chunk one after the other */
    void *row_arg;
};

/* How many chunks are measured: those asked for, or all of the text; 0: the text has not even one. */
uint32_t quality_chunks(const struct quality_options *options);

/* Positions of a chunk that are compared. */
uint32_t quality_rows(const struct quality_options *options);

/* How many depths by_depth compares: those that are not above ctx. */
uint32_t quality_depths(uint32_t ctx);


/* Fills in the results of all caches, chunk by chunk. 0 when good; otherwise 1, with a text. */
int quality_measure(const struct quality_options *options, struct quality_cache *caches, size_t count,
                    char error[LLM_ERROR_BYTES]);

#endif
