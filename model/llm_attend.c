/* The attention of a layer: to the cache, and of prompts also to the tokens of the call as they came. */
#include "llm_state.h"

#include <inttypes.h>

/* Appends, then attends: each query sees what the cache holds after the last token of the call. */
static int append_and_attend(aura_cache *cache, const aura_append_job *in, const aura_attend_job *ask,
                             const aura_attend_options *options)
{
    return aura_append(cache, in, 1) || aura_attend(cache, ask, 1, options);
}

/* The tokens of the call among themselves: state->own has them in f32, and nothing else. */
static int attend_own(const struct llm_state *state, const aura_append_job *in, const aura_attend_job *ask,
                      const aura_attend_options *options, float *out, float *lse)
{
    aura_append_job append = *in;
    aura_attend_job job = *ask;
    append.seq = job.seq = state->own_seq;
    job.out.data = out, job.lse = lse;
    return aura_truncate(state->own, state->own_seq, 0) || aura_append(state->own, &append, 1) ||
           aura_attend(state->own, &job, 1, options);
}

/* All queries to all tokens that are in the cache before the call. The output replaces the queries. */
static int attend_older(const struct llm_state *state, const aura_cache *cache, uint64_t tokens, const aura_attend_job *ask,
                        const aura_attend_options *options)
{
    aura_attend_job job = *ask;
    for (uint32_t i = 0; i < ask->queries; i++)
        state->until[i] = tokens;
    job.until = state->until, job.lse = state->lse;
    return aura_attend(cache, &job, 1, options);
}

/* The call's own tokens come first: numbers that are not finite end it before a cache learns from them. They are appended to the
 * cache last: one that learns has then counted the call's queries when it encodes. So it is asked even if it is empty. */
static int attend_as_they_came(const struct llm_state *state, aura_cache *cache, uint64_t first, const aura_append_job *in,
                               const aura_attend_job *ask, const aura_attend_options *options)
{
    const struct llm_shape *s = &state->llm->shape;
    aura_merge_args merge = AURA_MERGE_ARGS_INIT;
    merge.rows = (size_t)ask->queries * s->q_heads, merge.dim = s->head_dim;
    merge.a = merge.out = state->q, merge.a_lse = state->lse;
    merge.b = state->other, merge.b_lse = state->other_lse;
    if (!first && !state->learns)
        return attend_own(state, in, ask, options, state->q, state->lse) || aura_append(cache, in, 1);
    return attend_own(state, in, ask, options, state->other, state->other_lse) ||
           attend_older(state, cache, first, ask, options) || aura_merge(state->ctx, &merge) || aura_append(cache, in, 1);
}

int llm_attend(struct llm_state *state, uint32_t layer, uint64_t first, size_t n, char error[LLM_ERROR_BYTES])
{
    aura_cache *cache = aura_model_cache_layer(state->cache, layer);
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    in.seq = ask.seq = state->seq;
    in.tokens = ask.queries = (uint32_t)n;
    in.k.data = state->k, in.v.data = state->v;
    ask.q.data = ask.out.data = state->q;
    options.workspace = state->workspace, options.workspace_bytes = state->workspace_bytes;
    if (llm_is_prompt(state, n) ? attend_as_they_came(state, cache, first, &in, &ask, &options)
                                : append_and_attend(cache, &in, &ask, &options))
        return llm_fail(error, "layer %" PRIu32 ": %s", layer, aura_last_error());
    return 0;
}
