/* aura record: the queries, keys and values of a model that reads a text, as `aura attend` and data/ have them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "parts/safetensors.h"
#include "parts/terminal.h"
#include "parts/text_model.h"
#include "tool.h"

struct arguments {
    const char *model, *text, *out, *layers;
    uint32_t ctx, queries, threads;
};

static const struct option options[] = {
    PATH(text, "--text", "FILE", "what the model reads"),
    RESULT(out, "-o, --out", "FILE", "the file of tensors, safetensors"),
    TEXT(layers, "--layers", "LIST", "1,18,25 ... (the first, the middle and the last)"),
    NUMBER(ctx, "--ctx", 1, 1 << 20, "N", "tokens of the text (1024, or as many as it has)"),
    NUMBER(queries, "--queries", 1, 1 << 20, "N", "of the last so many positions (128)"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    LAST_OPTION};

enum { MOST_LAYERS = 64, TENSORS = 3 };

struct record {
    const struct llm_shape *shape;
    uint32_t layer[MOST_LAYERS], layers;
    uint32_t tokens, queries;
    struct tensor_out tensors[TENSORS * MOST_LAYERS];
    char names[TENSORS * MOST_LAYERS][32];
    float *data; /* of all tensors */
};

static int parse_layers(const struct command *self, struct record *r, const char *list)
{
    const uint32_t last = r->shape->layers - 1;
    if (!list) {
        const uint32_t some[] = {0, r->shape->layers / 2, last};
        for (int i = 0; i < 3; i++)
            if (!r->layers || some[i] > r->layer[r->layers - 1])
                r->layer[r->layers++] = some[i];
        return 0;
    }
    for (const char *at = list; *at;) {
        char *end;
        const unsigned long n = strtoul(at, &end, 10);
        if (end == at || *at == '-' || (*end && *end != ',') || n > last || r->layers == MOST_LAYERS ||
            (r->layers && n <= r->layer[r->layers - 1]))
            return usage_error(self, "--layers %s: must be ascending numbers from 0 to %u with commas between them, at most %d",
                               list, last, MOST_LAYERS);
        r->layer[r->layers++] = (uint32_t)n;
        at = *end ? end + 1 : end;
    }
    return r->layers ? 0 : usage_error(self, "--layers: names none");
}

/* Tensors layer.N.q, layer.N.k and layer.N.v, one behind the other in memory. */
static int make_tensors(struct record *r)
{
    static const char letters[] = "qkv";
    const struct llm_shape *s = r->shape;
    size_t floats = 0;
    for (uint32_t i = 0; i < TENSORS * r->layers; i++) {
        const int is_q = i % TENSORS == 0;
        struct tensor_out *t = &r->tensors[i];
        snprintf(r->names[i], sizeof r->names[i], "layer.%u.%c", r->layer[i / TENSORS], letters[i % TENSORS]);
        *t = (struct tensor_out){
            r->names[i], 3, {is_q ? r->queries : r->tokens, is_q ? s->q_heads : s->kv_heads, s->head_dim}, NULL};
        floats += t->shape[0] * t->shape[1] * t->shape[2];
    }
    if (!(r->data = malloc(floats * sizeof *r->data)))
        return -1;
    float *at = r->data;
    for (uint32_t i = 0; i < TENSORS * r->layers; i++) {
        r->tensors[i].data = at;
        at += r->tensors[i].shape[0] * r->tensors[i].shape[1] * r->tensors[i].shape[2];
    }
    return 0;
}

static void keep(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    const struct record *r = arg;
    const float *from[TENSORS] = {q + (size_t)(tokens - r->queries) * r->shape->q_heads * r->shape->head_dim, k, v};
    (void)first;
    for (uint32_t i = 0; i < TENSORS * r->layers; i++) {
        const struct tensor_out *t = &r->tensors[i];
        if (r->layer[i / TENSORS] == layer)
            memcpy((float *)(uintptr_t)t->data, from[i % TENSORS], t->shape[0] * t->shape[1] * t->shape[2] * sizeof(float));
    }
}

/* All tokens in one pass, through an exact cache. */
static int read_text(struct record *r, const struct text_model *m, uint32_t threads, char error[LLM_ERROR_BYTES])
{
    struct llm_options options = {.threads = threads, .tokens = r->tokens, .format = {AURA_KIND_F32, AURA_KIND_F32},
                                  .on_layer = keep, .arg = r};
    struct llm_state *state = NULL;
    const int bad = llm_state_create(m->llm, &options, &state, error) || llm_forward(state, m->tokens, r->tokens, 0, NULL, error);
    llm_state_destroy(state);
    return bad;
}

static int record(const struct command *self, const struct arguments *a, struct record *r, const struct text_model *m)
{
    char error[LLM_ERROR_BYTES] = "";
    r->shape = llm_shape(m->llm);
    r->tokens = m->count < a->ctx ? (uint32_t)m->count : a->ctx;
    r->queries = a->queries < r->tokens ? a->queries : r->tokens;
    int status = parse_layers(self, r, a->layers);
    if (status)
        return status;
    if (make_tensors(r))
        return failed(self, "no memory for %u tokens of %u layers", r->tokens, r->layers);
    if (read_text(r, m, a->threads, error))
        return failed(self, "%s: %s", a->model, error);
    if (safetensors_write(a->out, r->tensors, TENSORS * r->layers))
        return failed(self, "%s: cannot be written: %s", a->out, strerror(errno));
    printf("%s: %u layers, %u tokens, %u queries; `aura attend %s` puts them through a cache\n", a->out, r->layers, r->tokens,
           r->queries, a->out);
    return 0;
}

static int run_record(const struct command *self, int argc, char **argv)
{
    struct arguments a = {.ctx = 1024, .queries = 128, .threads = online_cpus()};
    struct text_model m = {0};
    char error[LLM_ERROR_BYTES] = "";
    int status = parse_options(self, argc, argv, &a, &a.model);
    if (status)
        return status;
    if (!a.model || !a.text || !a.out)
        return usage_error(self, "needs a %s", !a.model ? "model, a GGUF file" : !a.text ? "text: --text FILE" : "result: -o FILE");
    struct record *r = calloc(1, sizeof *r);
    if (!r)
        return failed(self, "no memory");
    if (text_model_open(&m, a.model, a.text, a.threads, 0, error))
        status = failed(self, "%s", error);
    else
        status = record(self, &a, r, &m);
    text_model_close(&m);
    free(r->data);
    free(r);
    return status;
}

const struct command command_record = {
    "record", "keep the queries, keys and values of a model", "MODEL --text FILE -o FILE.safetensors [OPTIONS]",
    "Lets a model read a text through an exact cache and keeps what its layers put\n"
    "into it, keys after RoPE: tensors layer.N.q, .k and .v in f32, for aura attend\n"
    "and for anything else that reads safetensors. Products do not round.\n",
    "MODEL", NULL, options, "aura record model.gguf --text data/essay.txt -o essay.safetensors\n",
    run_record};
