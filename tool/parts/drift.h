/* Drift: the exact model continues texts by its most likely tokens, and caches follow it token by token. Until a cache would have
 * written another token, its own text is the same; then it goes its own way. */
#ifndef AURA_DRIFT_H
#define AURA_DRIFT_H

#include "quality.h"

enum { DRIFT_TEXTS = 16, DRIFT_PARTS = 4 };

struct drift_result {
    uint32_t texts;
    uint32_t first[DRIFT_TEXTS];              /* the step, from 1 on, at which another token is the most likely one; 0: none is */
    struct estimate part[DRIFT_PARTS];        /* mean divergence in each quarter of the steps */
};

/* Continues the first `prompt` tokens of each of options->chunks pieces of the text, at most DRIFT_TEXTS, by `steps` tokens, a
 * multiple of DRIFT_PARTS. options as for quality_measure(); ctx, first and decode are set here. results: [count]; the caches'
 * own results are those of all steps. 0 when good; otherwise 1, with a text. */
int drift_measure(const struct quality_options *options, uint32_t prompt, uint32_t steps, struct quality_cache *caches,
                  size_t count, struct drift_result *results, char error[LLM_ERROR_BYTES]);

#endif
