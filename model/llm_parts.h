/* What the files of llm.h share: the weights of a model. */
#ifndef AURA_LLM_PARTS_H
#define AURA_LLM_PARTS_H

#include "llm.h"
#include "weights.h"

struct llm_layer {
    float *attn_norm, *ffn_norm;       /* [dim] */
    float *q_norm, *k_norm;            /* [head_dim]; NULL: none */
    float *q_bias, *k_bias, *v_bias;   /* [heads * head_dim]; NULL: none */
    struct matrix q, k, v, out;        /* dim to heads * head_dim, and back */
    struct matrix gate, up, down;      /* dim to ffn, and back */
};

struct llm {
    struct llm_shape shape;
    const struct gguf_tensor *embedding; /* [vocab][dim], as in the file */
    float *out_norm;                     /* [dim] */
    struct matrix head;                  /* dim to vocab */
    float *rope_factors;                 /* [rope_dims / 2]: RoPE divides its angles by them; NULL: none */
    const struct gguf *file;
    struct llm_layer *layers;
    int has_blocks, has_floats;          /* whether a matrix is quantised; whether one is not */
};

/* Writes a text; returns 1, which all functions of llm.h return for a failure. */
int llm_fail(char error[LLM_ERROR_BYTES], const char *format, ...) __attribute__((format(printf, 2, 3)));

#endif
