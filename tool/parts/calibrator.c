/* A model reads a text, and calibrations see its queries, keys and values. */
#include "calibrator.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "terminal.h"

static void look(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    struct calibrator *c = arg;
    aura_input keys = {k, AURA_F32, 0, 0, NULL}, queries = {q, AURA_F32, 0, 0, NULL}, values = {v, AURA_F32, 0, 0, NULL};
    (void)first;
    if (!c->status)
        c->status = aura_calibration_keys(c->layer[layer], tokens, &keys);
    if (!c->status)
        c->status = aura_calibration_queries(c->layer[layer], tokens, &queries);
    if (!c->status)
        c->status = aura_calibration_values(c->layer[layer], tokens, &values);
}

int calibrator_create(struct calibrator *c, aura_ctx *ctx, const struct llm_shape *shape, char error[LLM_ERROR_BYTES])
{
    aura_calibration_config config = AURA_CALIBRATION_CONFIG_INIT;
    config.q_heads = shape->q_heads, config.kv_heads = shape->kv_heads, config.k_dim = shape->head_dim;
    c->layers = shape->layers, c->kv_heads = shape->kv_heads, c->head_dim = shape->head_dim;
    c->ctx = ctx;
    c->layer = calloc(c->layers, sizeof(aura_calibration *));
    c->status = c->layer ? AURA_OK : AURA_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < c->layers && !c->status; i++)
        c->status = aura_calibration_create(c->ctx, &config, &c->layer[i]);
    if (c->status)
        snprintf(error, LLM_ERROR_BYTES, "%.200s", c->layer ? aura_last_error() : "out of memory");
    return c->status != AURA_OK;
}

void calibrator_destroy(struct calibrator *c)
{
    for (uint32_t i = 0; c->layer && i < c->layers; i++)
        aura_calibration_destroy(c->layer[i]);
    free(c->layer);
    memset(c, 0, sizeof *c);
}

/* Reads one chunk as a text of its own: its positions begin at 0. */
static int read_chunk(struct calibrator *c, const struct text_model *m, size_t first, size_t n, uint32_t threads, char *error)
{
    struct llm_options o = {.threads = threads, .format = {AURA_KIND_F32, AURA_KIND_F32}, .tokens = n, .on_layer = look,
                            .arg = c};
    struct llm_state *state = NULL;
    uint32_t *tokens = malloc(n * sizeof *tokens);
    if (!tokens)
        return snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1;
    memcpy(tokens, m->tokens + first, n * sizeof *tokens);
    if (m->begin >= 0)
        tokens[0] = (uint32_t)m->begin;
    int bad = llm_state_create(m->llm, &o, &state, error) || llm_forward(state, tokens, n, 0, NULL, error);
    llm_state_destroy(state);
    free(tokens);
    for (uint32_t i = 0; i < c->layers && !c->status; i++)
        c->status = aura_calibration_next_text(c->layer[i]);
    if (!bad && c->status)
        snprintf(error, LLM_ERROR_BYTES, "%.200s", aura_last_error());
    return bad || c->status;
}

int calibrator_read(struct calibrator *c, const struct text_model *m, uint32_t ctx, size_t tokens, uint32_t threads, size_t *used,
                    char error[LLM_ERROR_BYTES])
{
    const size_t count = m->count < tokens ? m->count : tokens;
    if (count < CALIBRATOR_LEAST_TOKENS)
        return snprintf(error, LLM_ERROR_BYTES, "the text has %zu tokens; calibration needs at least %d", count,
                        CALIBRATOR_LEAST_TOKENS), 1;
    for (*used = 0; count - *used >= CALIBRATOR_LEAST_TOKENS;) {
        size_t n = count - *used < ctx ? count - *used : ctx;
        char line[80];
        snprintf(line, sizeof line, "read %zu of %zu tokens", *used, count);
        print_progress(line);
        if (read_chunk(c, m, *used, n, threads, error))
            return 1;
        *used += n;
    }
    return 0;
}

/* What a profile has for a layer. */
struct found {
    float *balance, *v_balance, *k_metric, *v_metric;
};

/* Puts what was found out about a layer into the profile. */
static int put_layer(const struct calibrator *c, const struct llm *llm, const struct found *f, aura_profile *profile,
                     uint32_t layer)
{
    aura_profile_layer with = AURA_PROFILE_LAYER_INIT;
    with.kv_heads = c->kv_heads, with.k_dim = with.v_dim = c->head_dim;
    if (c->plain)
        return aura_calibration_balance(c->layer[layer], f->balance) ||
               aura_profile_set(profile, layer, c->kv_heads, c->head_dim, f->balance);
    with.balance = f->balance, with.v_balance = f->v_balance, with.k_metric = f->k_metric, with.v_metric = f->v_metric;
    return llm_value_metric(llm, layer, f->v_metric) || aura_calibration_k_balance(c->layer[layer], f->balance) ||
           aura_calibration_metric(c->layer[layer], f->k_metric) ||
           aura_calibration_v_balance(c->layer[layer], f->v_metric, f->v_balance) || aura_profile_put(profile, layer, &with);
}

int calibrator_profile(const struct calibrator *c, const struct llm *llm, aura_profile **profile, float *least, float *most,
                       char error[LLM_ERROR_BYTES])
{
    const size_t n = (size_t)c->kv_heads * c->head_dim, triangles = n * (c->head_dim + 1) / 2;
    float *memory = malloc(2 * (n + triangles) * sizeof *memory);
    const struct found f = {memory, memory + n, memory + 2 * n, memory + 2 * n + triangles};
    int bad = !memory || aura_profile_create(c->ctx, c->layers, profile);
    *least = INFINITY, *most = 0;
    for (uint32_t i = 0; i < c->layers && !bad; i++) {
        bad = put_layer(c, llm, &f, *profile, i);
        for (size_t j = 0; j < (c->plain ? n : 2 * n) && !bad; j++)
            *least = fminf(*least, memory[j]), *most = fmaxf(*most, memory[j]);
    }
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "%.200s", memory && *aura_last_error() ? aura_last_error() : "out of memory");
    free(memory);
    return bad;
}
