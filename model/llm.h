/* Transformers of the llama family from GGUF files: architectures llama, qwen2 and qwen3. Their attention is nothing but calls
 * of aura: keys and values go into an aura_model_cache of any format, queries attend to it. */
#ifndef AURA_LLM_H
#define AURA_LLM_H

#include "../include/aura.h"
#include "gguf.h"

enum { LLM_ERROR_BYTES = GGUF_ERROR_BYTES };

struct llm_shape {
    char arch[16];                    /* "llama", "qwen2", "qwen3" */
    uint32_t vocab, layers, dim, ffn; /* dim: numbers of a token's vector; ffn: between the two products of a feed-forward block */
    uint32_t q_heads, kv_heads, head_dim;
    uint32_t ctx;                     /* tokens that it was trained for */
    float eps;                        /* of the norms */
    uint32_t rope_dims;               /* RoPE rotates the first rope_dims numbers of each head */
    int rope_neox;                    /* 0: pairs are neighbours; 1: they are rope_dims / 2 apart */
    double rope_base, rope_scale;     /* angle of pair i: position * rope_scale * rope_base^(-2 i / rope_dims) */
    int bias, qk_norm, tied;          /* q, k and v have a bias; heads of q and k are normed; the output is the embedding */
};

/* Weights, ready for products, and the shape. Read-only: any number of states may use one, on any threads. */
struct llm;

/* The file must stay open as long as the model. `threads` threads prepare the weights. 0 when good; otherwise 1, with a text:
 * an architecture, a type or an option that is not supported, a tensor that is missing or has another shape. */
int llm_open(const struct gguf *file, uint32_t threads, struct llm **llm, char error[LLM_ERROR_BYTES]);
/* The same with all weights as f32, 4 bytes each: products then do not round vectors to bytes. For measuring what a cache does:
 * rounding would turn any difference, however small, into a larger one (doc/quality-tables.md). */
int llm_open_exact(const struct gguf *file, uint32_t threads, struct llm **llm, char error[LLM_ERROR_BYTES]);
void llm_close(struct llm *llm); /* NULL is allowed */
const struct llm_shape *llm_shape(const struct llm *llm);

/* What an error of a value of this layer costs, for each KV head: the sum over the query heads of its group of W'W, W being the
 * columns of the output projection that read the head. metric: [kv_heads][head_dim * (head_dim + 1) / 2], lower triangles by
 * rows, as aura_config takes them. 0 when good; otherwise there is no memory. */
int llm_value_metric(const struct llm *llm, uint32_t layer, float *metric);

/* Called before a layer appends and attends. It may change q [tokens][q_heads][head_dim], and k and v
 * [tokens][kv_heads][head_dim], which have their norms and RoPE. The tokens are at the positions from `first` on. */
typedef void llm_on_layer(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v);

/* Tokens of a call. Few: those that a model writes, and drafts. A part: of a prompt at a time, which is fast. */
enum { LLM_FEW = 16, LLM_PART = 512 };

/* Zero means the default in every field. */
struct llm_options {
    uint32_t threads;            /* 0: 1 */
    aura_format format;          /* zero: what the profile says; k4v4 where it says nothing */
    const aura_format *formats;  /* [layers], copied: instead of format. NULL: none */
    uint32_t flags, rollback;    /* as in aura_config */
    const aura_profile *profile; /* copied. NULL: none */
    uint64_t seed;               /* of the cache's signs */
    size_t tokens;               /* the most that the state will hold; 0: as many as the model was trained for */
    uint32_t isa_mask;           /* as in aura_ctx_options, for products too */
    int exact_prompts;           /* 1: the tokens of a call of more than LLM_FEW see each other as they came; see llm_forward() */
    llm_on_layer *on_layer;      /* NULL: none */
    void *arg;
};

/* One sequence, and the memory to compute its next tokens. One thread at a time may use it. */
struct llm_state;

int llm_state_create(const struct llm *llm, const struct llm_options *options, struct llm_state **state,
                     char error[LLM_ERROR_BYTES]);
void llm_state_destroy(struct llm_state *state); /* NULL is allowed */

/* Appends n tokens and computes the logits [wanted][vocab] of the last `wanted` of them. All n go through each layer together:
 * the layer appends their keys and values, then all n queries attend causally. So each query sees the keys before it as the cache
 * holds them after the last of the n. With exact_prompts and more than LLM_FEW tokens, a query sees the tokens of this call as they
 * came, in f32, and older ones as the cache held them before the call: so what the codes of these tokens cost is paid by what comes
 * after them, and not by themselves too. That takes the time of n queries over n tokens of f32: 512 at a time are fast. A cache
 * without codes is as without exact_prompts; and few tokens need none, as the newest ones, `rollback` at least, are in f16.
 * 0 when good; otherwise 1, with a text and as many tokens as before: no such token, no room (n more would be above `tokens`),
 * wanted above n, numbers that are not finite, no memory. Where layers had taken the tokens before one failed, older tokens
 * that were open may be codes now, as after llm_state_truncate(). */
int llm_forward(struct llm_state *state, const uint32_t *tokens, size_t n, size_t wanted, float *logits,
                char error[LLM_ERROR_BYTES]);

size_t llm_state_tokens(const struct llm_state *state);   /* in the cache */
size_t llm_state_capacity(const struct llm_state *state); /* the most that it can hold */
size_t llm_state_bytes(const struct llm_state *state);    /* that the cache has allocated */
double llm_state_bits(const struct llm_state *state);     /* per value of a full page, the mean over the layers */
aura_model_cache_info llm_state_info(const struct llm_state *state); /* of its cache; times are with those of exact_prompts */

/* Keeps the first `tokens`. 0 when good; otherwise 1, with a text. */
int llm_state_truncate(struct llm_state *state, size_t tokens, char error[LLM_ERROR_BYTES]);

/* Saves the sequence as a snapshot (doc/snapshot.md), and loads one: loading replaces what the state holds. 0 when good;
 * otherwise 1, with a text and the state as it was. */
int llm_state_save(const struct llm_state *state, const char *path, const void *note, size_t bytes, char error[LLM_ERROR_BYTES]);
/* The note of a saved state, with a zero after it; the caller frees it. *note NULL: it has none. */
int llm_state_note(const struct llm_state *state, const char *path, char **note, char error[LLM_ERROR_BYTES]);
int llm_state_load(struct llm_state *state, const char *path, char error[LLM_ERROR_BYTES]);

/* The cache and the sequence in it. The state owns both. */
aura_model_cache *llm_state_cache(const struct llm_state *state, aura_seq *seq);

#endif
