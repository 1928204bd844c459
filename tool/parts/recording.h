/* Recorded attention: the queries, keys and values of a layer from a safetensors file go through a cache, and the output is
 * compared with attention in double. */
#ifndef AURA_RECORDING_H
#define AURA_RECORDING_H

#include "../../include/aura.h"
#include "safetensors.h"

/* layer.N.q, layer.N.k and layer.N.v, widened to f32, which loses nothing. The queries are those of the last positions. */
struct recording {
    uint32_t layer, tokens, queries, q_heads, kv_heads, k_dim, v_dim;
    float *q; /* [queries][q_heads][k_dim] */
    float *k; /* [tokens][kv_heads][k_dim] */
    float *v; /* [tokens][kv_heads][v_dim] */
};

/* The layers of a file in ascending order, [*count]; the caller frees them. NULL: no memory. */
uint32_t *recording_layers(const struct safetensors *file, size_t *count);

/* 0 when good; otherwise error[256] says what was wrong. In both cases the caller calls recording_free(). */
int recording_load(struct recording *r, const aura_ctx *ctx, const struct safetensors *file, uint32_t layer, char *error);
void recording_free(struct recording *r);

/* Attention in double. Rows are (query, head). */
struct recording_exact {
    double *o;     /* [queries][q_heads][v_dim] */
    double *lse;   /* [queries][q_heads] */
    double *reach; /* [queries][q_heads]: the sum of weight * |value|, to which an error in the output is compared */
    double *logit; /* [queries][q_heads][tokens]; NULL where the caller did not ask for them */
};

/* Causal attention over these keys and values, scale 1 / sqrt(k_dim). 0 when good; otherwise there is no memory. In both cases the
 * caller calls recording_exact_free(). */
int recording_attend(const struct recording *r, const float *k, const float *v, int keep_logits, struct recording_exact *exact);
void recording_exact_free(struct recording_exact *exact);

struct recording_options {
    aura_format format;
    uint32_t flags, planes; /* as in aura_config and aura_attend_options */
    uint64_t seed;
    int balance; /* 1: from the recording's own keys and queries */
};

/* Makes an empty cache for a recording, with its balance, which the caller destroys. 0 when good, otherwise error[256] has the
 * reason. */
int recording_cache(const struct recording *r, aura_ctx *ctx, const struct recording_options *options, aura_cache **cache,
                    char *error);

/* What a cache makes of a recording. */
struct recording_result {
    double bits_per_value;
    uint32_t pinned, open; /* tokens held in f16 beside the codes; 0 where both sides are plain */
    float *o, *lse;        /* [queries][q_heads][v_dim], [queries][q_heads]: from aura_attend */
    float *k, *v;          /* [tokens][kv_heads][k_dim], [tokens][kv_heads][v_dim]: from aura_cache_decode */
};

/* Appends all tokens to one sequence, attends, decodes. 0 when good, otherwise error[256] has the reason. In both cases the caller
 * calls recording_result_free(). */
int recording_run(const struct recording *r, aura_ctx *ctx, const struct recording_options *options,
                  struct recording_result *result, char *error);

/* For other caches than ours. The first copies the recording's keys and values to k and v of a result of zeros; the caller changes
 * them as the cache does, and the second computes o and lse from them, in double. 0 when good; otherwise there is no memory. */
int recording_copy(const struct recording *r, struct recording_result *result);
int recording_decoded(const struct recording *r, struct recording_result *result);
void recording_result_free(struct recording_result *result);

/* How far a result is from exact attention. */
struct recording_errors {
    double output;    /* |o - exact| / |exact| over all queries and heads */
    double kl;        /* mean over queries and heads of KL(exact weights || weights from the decoded keys), natural log. Both
                         from the queries as recorded and in double: what the codec does to the keys and nothing else */
    double lse_max, lse_mean; /* |lse - exact lse|, lse from aura_attend */
};
struct recording_errors recording_compare(const struct recording *r, const struct recording_result *result,
                                          const struct recording_exact *exact);

#endif
