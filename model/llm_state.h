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

    /* Of a prompt whose tokens see each other as they came. */
    aura_cache *own;    /* f32: the tokens of the call, in one layer after the other; NULL: exact_prompts is off, or nothing is
                         * stored as codes */
    aura_seq own_seq;
    int learns;         /* the cache: AURA_LEARN */
    float *other;       /* [tokens][q_heads][head_dim]: attention to the tokens of the call, where there is that to the cache too */
    float *lse, *other_lse; /* [tokens][q_heads] */
    uint64_t *until;    /* [tokens] */
};

/* Whether a call of n tokens is a prompt of that kind. */
int llm_is_prompt(const struct llm_state *state, size_t n);

/* Attention of a layer: state->q of the n tokens from position `first` on becomes their output, and the cache of the layer takes
 * state->k and state->v. 0 when good; otherwise 1, with a text, and the cache may have taken them or not. */
int llm_attend(struct llm_state *state, uint32_t layer, uint64_t first, size_t n, char error[LLM_ERROR_BYTES]);

/* Room for n tokens that end at position `end`. 0 when good. */
int llm_state_grow(struct llm_state *state, size_t n, uint64_t end, char error[LLM_ERROR_BYTES]);

#endif
