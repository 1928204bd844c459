/* The attention of a layer: to the cache, and of prompts also to the tokens of the call as they came. */
#include "llm_state.h"

#include <inttypes.h>

/* Positions that a cache learns from; the least of a prompt that are counted several times. What 64 had taught made the second half
 * of 2 048 tokens worse than nothing (k4v4 0.0023 instead of 0.0020), 128 and 256 better (0.0018, 0.0016); 512 have 0.0015. */
enum { TAUGHT = 512, LEAST_TAUGHT = 128 };

/* Appends, then attends: each query sees what the cache holds after the last token of the call. */
static int append_and_attend(aura_cache *cache, const aura_append_job *in, const aura_attend_job *ask,
                             const aura_attend_options *options)
{
    return aura_append(cache, in, 1) || aura_attend(cache, ask, 1, options);
}

/* state->own gets the tokens of the call, in f32, and nothing else. */
static int store_own(const struct llm_state *state, const aura_append_job *in)
{
    aura_append_job append = *in;
    append.seq = state->own_seq;
    return aura_truncate(state->own, state->own_seq, 0) || aura_append(state->own, &append, 1);
}

/* The tokens of the call among themselves. */
static int attend_own(const struct llm_state *state, const aura_attend_job *ask, const aura_attend_options *options, float *out,
                      float *lse)
{
    aura_attend_job job = *ask;
    job.seq = state->own_seq;
    job.out.data = out, job.lse = lse;
    return aura_attend(state->own, &job, 1, options);
}

/* All queries to all tokens that are in the cache before the call. */
static int attend_older(const struct llm_state *state, const aura_cache *cache, uint64_t tokens, const aura_attend_job *ask,
                        const aura_attend_options *options, float *out)
{
    aura_attend_job job = *ask;
    for (uint32_t i = 0; i < ask->queries; i++)
        state->until[i] = tokens;
    job.until = state->until, job.lse = state->lse, job.out.data = out;
    return aura_attend(cache, &job, 1, options);
}

/* A cache that learns makes something of queries when it has counted 512. Those of a shorter prompt are asked again until it has,
 * but for the one time that every prompt is asked; of very few they would say too little. The answers do not count. */
static int teach(const struct llm_state *state, const aura_cache *cache, const aura_attend_job *ask,
                 const aura_attend_options *options)
{
    int failed = 0;
    for (uint32_t asked = ask->queries; !failed && ask->queries >= LEAST_TAUGHT && asked < TAUGHT; asked += ask->queries)
        failed = attend_older(state, cache, 0, ask, options, state->other);
    return failed;
}

/* The call's own tokens come first: numbers that are not finite end it before a cache learns from them. They are appended to the
 * cache last: one that learns has then counted the call's queries when it encodes. So it is asked even if it is empty. The output
 * replaces the queries. */
static int attend_as_they_came(const struct llm_state *state, aura_cache *cache, uint64_t first, const aura_append_job *in,
                               const aura_attend_job *ask, const aura_attend_options *options)
{
    const struct llm_shape *s = &state->llm->shape;
    aura_merge_args merge = AURA_MERGE_ARGS_INIT;
    merge.rows = (size_t)ask->queries * s->q_heads, merge.dim = s->head_dim;
    merge.a = merge.out = state->q, merge.a_lse = state->lse;
    merge.b = state->other, merge.b_lse = state->other_lse;
    if (store_own(state, in))
        return 1;
    if (!first && !state->learns)
        return attend_own(state, ask, options, state->q, state->lse) || aura_append(cache, in, 1);
    return (!first && teach(state, cache, ask, options)) || attend_own(state, ask, options, state->other, state->other_lse) ||
           attend_older(state, cache, first, ask, options, state->q) || aura_merge(state->ctx, &merge) ||
           aura_append(cache, in, 1);
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
