/* The state of a sequence: its cache, and room for the tokens of a call. */
#define _POSIX_C_SOURCE 200809L
#include "llm_state.h"

#include <stdlib.h>
#include <string.h>

#include "../include/aura_file.h"
#include "../src/base/threads.h"

static int create_cache(struct llm_state *state, const struct llm_options *options, char *error)
{
    const struct llm_shape *s = &state->llm->shape;
    aura_config config = AURA_CONFIG_INIT, *configs = malloc(s->layers * sizeof *configs);
    aura_model_config model = AURA_MODEL_CONFIG_INIT;
    if (!configs)
        return llm_fail(error, "no memory for %u layers", s->layers);
    config.format = options->format;
    config.q_heads = s->q_heads, config.kv_heads = s->kv_heads, config.k_dim = s->head_dim;
    config.flags = options->flags, config.rollback = options->rollback, config.seed = options->seed;
    for (uint32_t i = 0; i < s->layers; i++) {
        configs[i] = config;
        if (options->formats)
            configs[i].format = options->formats[i];
    }
    model.layers = s->layers, model.configs = configs, model.profile = options->profile;
    int failed = aura_model_cache_create(state->ctx, &model, &state->cache) || aura_model_seq_create(state->cache, &state->seq);
    free(configs);
    return failed ? llm_fail(error, "the cache: %s", aura_last_error()) : 0;
}

static int is_plain(uint32_t kind)
{
    return kind == AURA_KIND_F32 || kind == AURA_KIND_F16 || kind == AURA_KIND_BF16;
}

/* Whether some side of some layer is stored as codes. */
static int has_codes(const struct llm_state *state)
{
    int found = 0;
    for (uint32_t i = 0; i < state->llm->shape.layers; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(aura_model_cache_layer(state->cache, i), &info); /* cannot fail */
        found |= !is_plain((uint32_t)info.config.format.k) || !is_plain((uint32_t)info.config.format.v);
    }
    return found;
}

/* The cache of the tokens of a call, which has them as they came. */
static int create_own(struct llm_state *state, char *error)
{
    const struct llm_shape *s = &state->llm->shape;
    aura_config config = AURA_CONFIG_INIT;
    config.format = (aura_format){AURA_KIND_F32, AURA_KIND_F32};
    config.q_heads = s->q_heads, config.kv_heads = s->kv_heads, config.k_dim = s->head_dim;
    if (aura_cache_create(state->ctx, &config, &state->own) || aura_seq_create(state->own, &state->own_seq))
        return llm_fail(error, "the cache of a prompt: %s", aura_last_error());
    return 0;
}

int llm_is_prompt(const struct llm_state *state, size_t n)
{
    return state->own && n > LLM_FEW;
}

int llm_state_create(const struct llm *llm, const struct llm_options *options, struct llm_state **state,
                     char error[LLM_ERROR_BYTES])
{
    struct llm_state *made = calloc(1, sizeof *made);
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    if (!made)
        return llm_fail(error, "no memory");
    context.threads = options->threads, context.isa_mask = options->isa_mask;
    made->llm = llm;
    made->capacity = options->tokens ? options->tokens : llm->shape.ctx;
    made->on_layer = options->on_layer, made->arg = options->arg;
    made->learns = options->flags & AURA_LEARN;
    made->acts.wants_block = llm->has_blocks, made->acts.wants_plain = llm->has_floats;
    if (aura_ctx_create(&context, &made->ctx))
        return llm_fail(error, "%s", aura_last_error()), llm_state_destroy(made), 1;
    made->kernels = matmul_kernels(aura_ctx_isas(made->ctx));
    if (create_cache(made, options, error) || (options->exact_prompts && has_codes(made) && create_own(made, error)))
        return llm_state_destroy(made), 1;
    *state = made;
    return 0;
}

static void free_room(struct llm_state *state)
{
    float **all[] = {&state->x,      &state->normed, &state->q,     &state->k,   &state->v,
                     &state->hidden, &state->turns,  &state->other, &state->lse, &state->other_lse};
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        free(*all[i]);
        *all[i] = NULL;
    }
    free(state->until);
    state->until = NULL, state->room = 0;
}

void llm_state_destroy(struct llm_state *state)
{
    if (!state)
        return;
    free_room(state);
    free(state->workspace);
    acts_destroy(&state->acts);
    aura_model_cache_destroy(state->cache);
    aura_cache_destroy(state->own);
    aura_ctx_destroy(state->ctx);
    free(state);
}

/* ---- room --------------------------------------------------------------------------------------------------------------- */

static float *floats(size_t tokens, size_t each)
{
    void *memory = NULL;
    if (each > SIZE_MAX / sizeof(float) / tokens || posix_memalign(&memory, 64, tokens * each * sizeof(float)))
        return NULL;
    return memory;
}

static int grow_prompt(struct llm_state *state, size_t n)
{
    const uint32_t heads = state->llm->shape.q_heads;
    state->other = floats(n, (size_t)heads * state->llm->shape.head_dim);
    state->lse = floats(n, heads), state->other_lse = floats(n, heads);
    state->until = calloc(n, sizeof *state->until);
    return !state->other || !state->lse || !state->other_lse || !state->until;
}

static int grow_room(struct llm_state *state, size_t n)
{
    const struct llm_shape *s = &state->llm->shape;
    size_t q = (size_t)s->q_heads * s->head_dim, kv = (size_t)s->kv_heads * s->head_dim;
    if (n <= state->room)
        return 0;
    free_room(state);
    state->x = floats(n, s->dim), state->normed = floats(n, s->dim), state->hidden = floats(n, s->ffn);
    state->q = floats(n, q), state->k = floats(n, kv), state->v = floats(n, kv), state->turns = floats(n, s->rope_dims);
    if (!state->x || !state->normed || !state->hidden || !state->q || !state->k || !state->v || !state->turns ||
        (llm_is_prompt(state, n) && grow_prompt(state, n)))
        return free_room(state), -1;
    state->room = n;
    return 0;
}

/* The workspace grows with the length of the sequence. The length is rounded up, so that not every token makes it grow. Layers of
 * other formats need another one: all use the largest. */
static int grow_workspace(struct llm_state *state, size_t n, uint64_t end)
{
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    size_t bytes = 0;
    job.queries = (uint32_t)n, job.seq = state->own_seq;
    if (llm_is_prompt(state, n) && aura_attend_workspace(state->own, &job, 1, n, &bytes))
        return -1;
    job.seq = state->seq;
    for (uint32_t i = 0; i < state->llm->shape.layers; i++) {
        size_t needs = 0;
        if (aura_attend_workspace(aura_model_cache_layer(state->cache, i), &job, 1, (end + 4095) / 4096 * 4096, &needs))
            return -1;
        bytes = needs > bytes ? needs : bytes;
    }
    if (bytes <= state->workspace_bytes)
        return 0;
    free(state->workspace);
    state->workspace = NULL, state->workspace_bytes = 0;
    if (posix_memalign(&state->workspace, 64, bytes))
        return state->workspace = NULL, -1;
    state->workspace_bytes = bytes;
    return 0;
}

int llm_state_grow(struct llm_state *state, size_t n, uint64_t end, char error[LLM_ERROR_BYTES])
{
    if (grow_room(state, n) || grow_workspace(state, n, end))
        return llm_fail(error, "no memory for %zu tokens at once", n);
    return 0;
}

/* ---- what it holds -------------------------------------------------------------------------------------------------------- */

size_t llm_state_tokens(const struct llm_state *state)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    return aura_seq_get_info(aura_model_cache_layer(state->cache, 0), state->seq, &info) ? 0 : (size_t)info.tokens;
}

size_t llm_state_capacity(const struct llm_state *state)
{
    return state->capacity;
}

aura_model_cache_info llm_state_info(const struct llm_state *state)
{
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_cache_info own = AURA_CACHE_INFO_INIT;
    aura_model_cache_get_info(state->cache, &info); /* cannot fail */
    if (state->own) {
        aura_cache_get_info(state->own, &own); /* nor can this */
        info.append_s += own.append_s, info.attend_s += own.attend_s;
    }
    return info;
}

size_t llm_state_bytes(const struct llm_state *state)
{
    return llm_state_info(state).bytes;
}

double llm_state_bits(const struct llm_state *state)
{
    const uint32_t layers = state->llm->shape.layers;
    double sum = 0;
    for (uint32_t i = 0; i < layers; i++) {
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(aura_model_cache_layer(state->cache, i), &info); /* cannot fail */
        sum += info.bits_per_value;
    }
    return sum / layers;
}

int llm_state_truncate(struct llm_state *state, size_t tokens, char error[LLM_ERROR_BYTES])
{
    return aura_model_seq_truncate(state->cache, state->seq, tokens) ? llm_fail(error, "%s", aura_last_error()) : 0;
}

int llm_state_save(const struct llm_state *state, const char *path, const void *note, size_t bytes, char error[LLM_ERROR_BYTES])
{
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    options.note = note, options.note_bytes = bytes;
    return aura_model_seq_save(state->cache, state->seq, path, &options) ? llm_fail(error, "%s", aura_last_error()) : 0;
}

int llm_state_note(const struct llm_state *state, const char *path, char **note, char error[LLM_ERROR_BYTES])
{
    size_t bytes = 0;
    *note = NULL;
    if (aura_snapshot_note(state->ctx, path, NULL, &bytes))
        return llm_fail(error, "%s", aura_last_error());
    if (!bytes)
        return 0;
    char *text = malloc(bytes + 1);
    if (!text || aura_snapshot_note(state->ctx, path, text, &bytes))
        return free(text), llm_fail(error, text ? "%s" : "no memory", aura_last_error());
    text[bytes] = 0;
    *note = text;
    return 0;
}

int llm_state_load(struct llm_state *state, const char *path, char error[LLM_ERROR_BYTES])
{
    aura_seq loaded, before = state->seq;
    if (aura_model_seq_load(state->cache, path, NULL, &loaded))
        return llm_fail(error, "%s", aura_last_error());
    state->seq = loaded;
    size_t tokens = llm_state_tokens(state);
    if (tokens > state->capacity) {
        state->seq = before;
        aura_model_seq_release(state->cache, loaded);
        return llm_fail(error, "it holds %zu tokens, and there is room for %zu", tokens, state->capacity);
    }
    aura_model_seq_release(state->cache, before);
    return 0;
}

aura_model_cache *llm_state_cache(const struct llm_state *state, aura_seq *seq)
{
    *seq = state->seq;
    return state->cache;
}
