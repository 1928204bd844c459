/* aura calibrate: a model reads a text, and a profile of what its queries look at is written to a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura_file.h"
#include "parts/terminal.h"
#include "parts/text_model.h"
#include "tool.h"

enum { LEAST_TOKENS = 64 }; /* of a chunk: two tiles, because the first one has pinned tokens */

struct arguments {
    const char *model, *text, *out;
    uint32_t ctx, tokens, threads;
    int json;
};

static const struct option options[] = {
    PATH(text, "--text", "FILE", "the text: like what the model will read, some pages"),
    RESULT(out, "-o, --out", "FILE", "the profile to be written"),
    NUMBER(ctx, "--ctx", LEAST_TOKENS, 1 << 20, "N", "tokens that the model reads at a time (2048)"),
    NUMBER(tokens, "--tokens", LEAST_TOKENS, 1 << 30, "N", "at most so many of the text (16384)"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    FLAG(json, "--json", "as JSON"),
    LAST_OPTION};

/* One calibration for each layer; the model feeds them while it reads. */
struct calibrator {
    aura_ctx *ctx;
    aura_calibration **layer;
    uint32_t layers, kv_heads, head_dim;
    aura_status status; /* the first failure */
};

static void look(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    struct calibrator *c = arg;
    aura_input keys = {k, AURA_F32, 0, 0, NULL}, queries = {q, AURA_F32, 0, 0, NULL};
    (void)first, (void)v;
    if (!c->status)
        c->status = aura_calibration_keys(c->layer[layer], tokens, &keys);
    if (!c->status)
        c->status = aura_calibration_queries(c->layer[layer], tokens, &queries);
}

static int calibrator_create(struct calibrator *c, const struct llm_shape *shape)
{
    aura_calibration_config config = AURA_CALIBRATION_CONFIG_INIT;
    config.q_heads = shape->q_heads, config.kv_heads = shape->kv_heads, config.k_dim = shape->head_dim;
    c->layers = shape->layers, c->kv_heads = shape->kv_heads, c->head_dim = shape->head_dim;
    c->layer = calloc(c->layers, sizeof(aura_calibration *));
    c->status = c->layer ? aura_ctx_create(NULL, &c->ctx) : AURA_OUT_OF_MEMORY;
    for (uint32_t i = 0; i < c->layers && !c->status; i++)
        c->status = aura_calibration_create(c->ctx, &config, &c->layer[i]);
    return c->status != AURA_OK;
}

static void calibrator_destroy(struct calibrator *c)
{
    for (uint32_t i = 0; c->layer && i < c->layers; i++)
        aura_calibration_destroy(c->layer[i]);
    free(c->layer);
    aura_ctx_destroy(c->ctx);
}

/* Reads one chunk as a text of its own: its positions begin at 0. */
static int read_chunk(struct calibrator *c, const struct arguments *a, const struct text_model *m, size_t first, size_t n,
                      char *error)
{
    struct llm_options o = {.threads = a->threads, .format = {AURA_KIND_F32, AURA_KIND_F32}, .tokens = n, .on_layer = look,
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

/* Reads all chunks, but not the rest of the text where it is below LEAST_TOKENS. *used: the tokens that were read. */
static int read_text(struct calibrator *c, const struct arguments *a, const struct text_model *m, size_t *used, char *error)
{
    size_t count = m->count < a->tokens ? m->count : a->tokens;
    if (count < LEAST_TOKENS)
        return snprintf(error, LLM_ERROR_BYTES, "the text has %zu tokens; calibration needs at least %d", count, LEAST_TOKENS), 1;
    for (*used = 0; count - *used >= LEAST_TOKENS;) {
        size_t n = count - *used < a->ctx ? count - *used : a->ctx;
        char line[80];
        snprintf(line, sizeof line, "read %zu of %zu tokens", *used, count);
        print_progress(line);
        if (read_chunk(c, a, m, *used, n, error))
            return 1;
        *used += n;
    }
    return 0;
}

/* Writes the factors of all layers to a file; *least and *most are the smallest and the largest factor. */
static int write_profile(const struct calibrator *c, const char *path, float *least, float *most, char *error)
{
    size_t n = (size_t)c->kv_heads * c->head_dim;
    float *balance = malloc(n * sizeof *balance);
    aura_profile *profile = NULL;
    aura_status status = balance ? aura_profile_create(c->ctx, c->layers, &profile) : AURA_OUT_OF_MEMORY;
    *least = INFINITY, *most = 0;
    for (uint32_t i = 0; i < c->layers && !status; i++) {
        status = aura_calibration_balance(c->layer[i], balance);
        for (size_t j = 0; j < n && !status; j++)
            *least = fminf(*least, balance[j]), *most = fmaxf(*most, balance[j]);
        status = status ? status : aura_profile_set(profile, i, c->kv_heads, c->head_dim, balance);
    }
    status = status ? status : aura_profile_save(profile, path);
    if (status)
        snprintf(error, LLM_ERROR_BYTES, "%.200s", balance ? aura_last_error() : "out of memory");
    aura_profile_destroy(profile);
    free(balance);
    return status != AURA_OK;
}

static int calibrate(const struct command *self, const struct arguments *a, const struct text_model *m)
{
    char error[LLM_ERROR_BYTES] = "";
    struct calibrator c = {0};
    size_t used = 0;
    float least = 0, most = 0;
    int bad = calibrator_create(&c, llm_shape(m->llm));
    if (bad)
        snprintf(error, sizeof error, "%.200s", c.layer ? aura_last_error() : "out of memory");
    bad = bad || read_text(&c, a, m, &used, error) || write_profile(&c, a->out, &least, &most, error);
    print_progress(NULL);
    if (!bad && a->json) {
        printf("{\"profile\": ");
        print_json_string(a->out);
        printf(", \"tokens\": %zu, \"layers\": %u, \"kv_heads\": %u, \"head_dim\": %u, \"least\": %.4g, \"most\": %.4g}\n", used,
               c.layers, c.kv_heads, c.head_dim, (double)least, (double)most);
    } else if (!bad) {
        printf("%s: %u layers, %u KV heads of %u, from %zu tokens of %s; factors from %.2f to %.2f\n", a->out, c.layers, c.kv_heads,
               c.head_dim, used, a->text, (double)least, (double)most);
    }
    calibrator_destroy(&c);
    return bad ? failed(self, "%s", error) : 0;
}

static int run(const struct command *self, int argc, char **argv)
{
    struct arguments a = {.ctx = 2048, .tokens = 16384, .threads = online_cpus()};
    struct text_model m = {0};
    char error[LLM_ERROR_BYTES] = "";
    int status = parse_options(self, argc, argv, &a, &a.model);
    if (status)
        return status;
    if (!a.model)
        return usage_error(self, "needs a model, a GGUF file; `make model` fetches one into models/");
    if (!a.text || !a.out)
        return usage_error(self, "needs --text, what to read, and -o, the profile to write");
    if (text_model_open(&m, a.model, a.text, a.threads, 0, error))
        status = failed(self, "%s", error);
    else
        status = calibrate(self, &a, &m);
    text_model_close(&m);
    return status;
}

const struct command command_calibrate = {
    "calibrate", "make a model's profile from a text", "MODEL --text FILE -o FILE [OPTIONS]",
    "Reads a text with a model and writes what its queries look at, as the balance\n"
    "of its keys, to a profile: `aura run` and `aura eval` take it by --profile.\n",
    "MODEL", NULL, options,
    "aura calibrate model.gguf --text data/essay.txt -o model.profile\n", run};
