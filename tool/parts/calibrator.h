/* Makes a profile of a model: it reads a text, and what its queries look at is counted. */
#ifndef AURA_CALIBRATOR_H
#define AURA_CALIBRATOR_H

#include "../../include/aura_file.h"
#include "text_model.h"

enum { CALIBRATOR_LEAST_TOKENS = 64 }; /* of a chunk: two tiles, because the first one has pinned tokens */

/* One calibration for each layer; the model feeds them while it reads. */
struct calibrator {
    aura_ctx *ctx; /* the caller's */
    aura_calibration **layer;
    uint32_t layers, kv_heads, head_dim;
    int plain;          /* 1: the profile has the balance of the keys alone. The caller sets it before the profile is made */
    aura_status status; /* the first failure */
};

/* Each returns 0 when good; otherwise 1, with a text. In both cases the caller calls calibrator_destroy(). */
int calibrator_create(struct calibrator *c, aura_ctx *ctx, const struct llm_shape *shape, char error[LLM_ERROR_BYTES]);
void calibrator_destroy(struct calibrator *c);

/* Reads at most `tokens` of the text, `ctx` at a time, but not a rest below CALIBRATOR_LEAST_TOKENS. *used: the tokens that were
 * read. */
int calibrator_read(struct calibrator *c, const struct text_model *m, uint32_t ctx, size_t tokens, uint32_t threads, size_t *used,
                    char error[LLM_ERROR_BYTES]);

/* Makes a profile of all layers, which the caller owns; *least and *most are the smallest and the largest factor. */
int calibrator_profile(const struct calibrator *c, const struct llm *llm, aura_profile **profile, float *least, float *most,
                       char error[LLM_ERROR_BYTES]);

#endif
