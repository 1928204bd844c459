/* Attention over a cache in double, with the integers that every backend agrees on: the query's bytes and the rounded weights.
 * So a kernel is held to 1e-5 of the sum of weight * |value|, whatever the planes. */
#ifndef AURA_TOOL_CUDA_ORACLE_H
#define AURA_TOOL_CUDA_ORACLE_H

#include "../../../include/aura.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Shared by the rows of a call; as in aura_attend_options, with masks [queries][mask_keys]. */
struct oracle_options {
    float scale, softcap;
    uint64_t window;
    const float *sinks, *alibi, *mask;
    uint32_t mask_keys, not_causal, planes, queries;
    uint32_t exact; /* 1: no integers: double from the numbers that the cache holds */
    uint32_t smooth; /* 1: weights are not rounded to integers */
    const uint32_t *from, *until; /* [queries] or NULL: as in aura_attend_job */
};

/* One row. out, lse: the answer. size: sum of weight * |value|, what errors are relative to. slack: what weights cost that
 * are so near to a rounding boundary that either integer is right. logit[tokens]: f32, exact for tokens held as codes. */
struct oracle_row {
    double out[512], lse, size, slack;
    float *logit;
    uint64_t one, both; /* tokens held as codes, by planes of their logit */
};

/* What a sequence holds for one KV head, decoded once for all rows. */
struct oracle_head;
struct oracle_head *oracle_head_new(const aura_cache *cache, aura_seq seq, uint32_t head);
void oracle_head_free(struct oracle_head *head);

/* q[k_dim]: the query of token `query` and head `q_head`, as its element type has it. */
void oracle_attend(struct oracle_row *row, const struct oracle_head *head, const float *q, uint32_t query, uint32_t q_head,
                   const struct oracle_options *options);

#ifdef __cplusplus
}
#endif
#endif
