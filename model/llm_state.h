/* What the files of llm.h share: a state. */
#ifndef AURA_LLM_STATE_H
#define AURA_LLM_STATE_H

#include "llm_parts.h"
#include "matmul.h"

struct llm_state {
    const struct llm *llm;
    aura_ctx *ctx;
    const struct matmul_kernels *kernels;
    aura_model_cache *cache;
    aura_seq seq;
    size_t capacity;
    llm_on_layer *on_layer;
    void *arg;

    /* Of the tokens of a call. */
    size_t room;        /* in tokens */
    float *x;           /* [tokens][dim]: what the layers add to */
    float *normed;      /* [tokens][dim] */
    float *q, *k, *v;   /* [tokens][heads][head_dim]; attention writes its output over q */
    float *hidden;      /* [tokens][ffn] */
    float *turns;       /* [tokens][rope_dims / 2][2]: cosine and sine */
    struct acts acts;
    void *workspace;    /* of aura_attend */
    size_t workspace_bytes;
};

/* Room for n tokens that end at position `end`. 0 when good. */
int llm_state_grow(struct llm_state *state, size_t n, uint64_t end, char error[LLM_ERROR_BYTES]);

#endif
