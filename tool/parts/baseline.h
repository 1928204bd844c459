/* A cache that is not ours, while a model reads: an exact cache whose keys and values are replaced by what a peer (peer_quant.h)
 * or a codec (codec.h) would return.
 *
 * With `equal` it keeps in f16 what ours keeps: the first 4 tokens, and the open ones, a tile of 32 being stored when `rollback`
 * tokens have followed it. With `decode` as well, the tokens of a prompt, at most LLM_PART at a time, see each other in f16 (ours
 * in f32: exact_prompts in llm.h), and are stored before the next call. A peer whose blocks are channels of 32 tokens has open
 * tokens, and prompts that see themselves, in any case: it cannot do without. */
#ifndef AURA_BASELINE_H
#define AURA_BASELINE_H

#include "../../model/llm.h"
#include "peer_quant.h"

struct baseline {
    const struct peer *peer;    /* one of both */
    const char *codec;
    const struct llm_shape *shape;
    int equal, decode;
    uint32_t rollback;
    char *error;                /* [LLM_ERROR_BYTES] */
    /* its own */
    double bits;                /* of a codec: the mean of its layers */
    int failed;
    uint64_t closed;            /* tokens that are stored as the cache would store them */
    size_t room;                /* tokens that `open` holds */
    float *open;                /* [layers][2][room][kv_heads * head_dim]: the tokens from `closed` on as they came */
};

/* As llm_on_layer; arg is the baseline. */
void baseline_on_layer(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v);

/* Before a call of llm_forward() with n tokens: stores the tokens that are open no more. 0 when good; otherwise 1, with a text. */
int baseline_before(struct baseline *b, struct llm_state *state, size_t n);

void baseline_end(struct baseline *b);

/* How many tokens at the end of `tokens` are open: a tile closes when `rollback` tokens have followed it. */
uint64_t open_tokens(uint64_t tokens, uint32_t rollback);

#endif
