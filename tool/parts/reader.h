/* A model that reads tokens through a cache, ours or another's (baseline.h). */
#ifndef AURA_READER_H
#define AURA_READER_H

#include "baseline.h"

struct quality_cache;
struct quality_options;

struct reader {
    struct baseline other;
    struct llm_state *state;
    size_t part, vocab; /* part: the most tokens of a call */
    char *error; /* [LLM_ERROR_BYTES] */
};

/* Room for `tokens` tokens, with this cache; NULL: the exact one, f32. 0 when good; otherwise 1, with a text. In both cases the
 * caller calls reader_close(). The reader must stay where it is. */
int reader_open(struct reader *r, const struct quality_options *options, const struct quality_cache *cache, size_t tokens,
                char error[LLM_ERROR_BYTES]);

/* As llm_forward(), in parts where the cache makes a difference between one call and several. */
int reader_read(struct reader *r, const uint32_t *tokens, size_t n, size_t wanted, float *logits);

/* Bits per value of the cache, once it has read. */
double reader_bits(const struct reader *r);

void reader_close(struct reader *r);

#endif
