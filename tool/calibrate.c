/* aura calibrate: a model reads a text, and a profile of what its queries look at is written to a file. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura_file.h"
#include "parts/allocate.h"
#include "parts/terminal.h"
#include "parts/text_model.h"
#include "tool.h"

enum { LEAST_TOKENS = 64 }; /* of a chunk: two tiles, because the first one has pinned tokens */
enum { PROBE_TOKENS = 512, PROBES = 2 }; /* of a chunk on which formats are compared, and such chunks */

struct arguments {
    const char *model, *text, *out;
    uint32_t ctx, tokens, threads;
    double bits;
    int plain, json, csv;
};

static const struct option options[] = {
    PATH(text, "--text", "FILE", "the text: like what the model will read, some pages"),
    RESULT(out, "-o, --out", "FILE", "the profile to be written"),
    NUMBER(ctx, "--ctx", LEAST_TOKENS, 1 << 20, "N", "tokens that the model reads at a time (2048)"),
    NUMBER(tokens, "--tokens", LEAST_TOKENS, 1 << 30, "N", "at most so many of the text (16384)"),
    REAL(bits, "--bits", ALLOCATE_LEAST_BITS, ALLOCATE_MOST_BITS, "X", "and formats of X bits a value in all: --cache profile"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    FLAG(plain, "--no-feedback", "balance of the keys alone: what a GPU takes"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV"),
    LAST_OPTION};

/* One calibration for each layer; the model feeds them while it reads. */
struct calibrator {
    aura_ctx *ctx;
    aura_calibration **layer;
    uint32_t layers, kv_heads, head_dim;
    int plain;
    aura_status status; /* the first failure */
};

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

/* Makes a profile of all layers; *least and *most are the smallest and the largest factor. */
static int make_profile(const struct calibrator *c, const struct llm *llm, aura_profile **profile, float *least, float *most,
                        char *error)
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

static void report_probe(void *arg, const struct quality_step *step)
{
    char line[80];
    snprintf(line, sizeof line, "%s: pass %u of %u, chunk %u of %u", step->cache, step->step + 1, step->steps, step->chunk + 1,
             step->chunks);
    (void)arg;
    print_progress(line);
}

/* Finds the formats of all layers and puts them into the profile. They are compared on the end of what was read: what came first is
 * in every profile. */
static int add_formats(const struct arguments *a, const struct text_model *m, size_t read, aura_profile *profile,
                       struct allocation *found, char *error)
{
    const size_t most = (size_t)PROBES * PROBE_TOKENS, count = read < most ? read : most;
    const struct quality_options o = {.llm = m->llm, .tokens = m->tokens + read - count, .count = count, .begin = m->begin,
                                      .ctx = (uint32_t)(count < PROBE_TOKENS ? count : PROBE_TOKENS), .seed = 1,
                                      .threads = a->threads, .profile = profile, .progress = report_probe};
    const uint32_t layers = llm_shape(m->llm)->layers;
    found->formats = malloc(layers * sizeof *found->formats);
    int bad = !found->formats;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "out of memory");
    bad = bad || allocate(&o, a->bits, found, error);
    for (uint32_t i = 0; i < layers && !bad; i++) {
        aura_profile_layer layer = AURA_PROFILE_LAYER_INIT, with;
        bad = aura_profile_get(profile, i, &layer);
        with = layer, with.format = found->formats[i];
        bad = bad || aura_profile_put(profile, i, &with);
        if (bad)
            snprintf(error, LLM_ERROR_BYTES, "%.200s", aura_last_error());
    }
    return bad;
}

/* What was made, for people and for programs. */
struct report {
    const struct arguments *a;
    const struct calibrator *c;
    size_t tokens;
    double least, most;
    struct allocation found; /* formats NULL: nobody asked for any */
};

static void report_fields(struct table *t, const void *report)
{
    const struct report *r = report;
    table_text(t, "profile", r->a->out);
    table_number(t, "tokens", "%zu", r->tokens);
    table_number(t, "layers", "%u", r->c->layers), table_number(t, "kv_heads", "%u", r->c->kv_heads);
    table_number(t, "head_dim", "%u", r->c->head_dim);
    table_number(t, "least", "%.4g", r->least), table_number(t, "most", "%.4g", r->most);
    table_number(t, "feedback", "%s", r->c->plain ? "false" : "true");
    if (!r->found.formats)
        return;
    table_number(t, "bits", "%.4f", r->found.bits), table_number(t, "kld", "%.5g", r->found.kld);
    table_number(t, "fewest_bits", "%.4f", r->found.fewest_bits), table_number(t, "fewest_kld", "%.5g", r->found.fewest_kld);
}

/* The format of each layer, and what they are worth. */
static void print_formats(const struct report *r)
{
    for (uint32_t i = 0; i < r->c->layers; i++) {
        char name[16];
        printf("%s%s", i % 10 ? " " : i ? "\n  " : "  ", aura_format_name(r->found.formats[i], name) ? "?" : name);
    }
    printf("\n%.3f bits a value, mean KL divergence %.4g; k2v2 has %.3f bits and %.4g. Use it with --cache profile.\n",
           r->found.bits, r->found.kld, r->found.fewest_bits, r->found.fewest_kld);
}

static void origin(struct table *t, const void *arguments)
{
    const struct arguments *a = arguments;
    table_text(t, "model", a->model), table_text(t, "text", a->text);
    table_machine(t);
}

static void print_report(const struct report *r)
{
    struct table table = {0};
    if (r->a->json) { /* one object: there is one row */
        putchar('{');
        report_fields(&table, r), origin(&table, r->a);
        puts("}");
        return;
    }
    if (!r->a->csv) {
        printf("%s: %u layers, %u KV heads of %u, from %zu tokens of %s; factors from %.2f to %.2f\n", r->a->out, r->c->layers,
               r->c->kv_heads, r->c->head_dim, r->tokens, r->a->text, r->least, r->most);
        if (r->found.formats)
            print_formats(r);
        return;
    }
    table_begin(&table, 1, "profiles", origin, r->a);
    table_row(&table, report_fields, r);
    table_end(&table, NULL, NULL);
}

static int calibrate(const struct command *self, const struct arguments *a, const struct text_model *m)
{
    char error[LLM_ERROR_BYTES] = "";
    struct calibrator c = {.plain = a->plain};
    struct report report = {.a = a, .c = &c};
    aura_profile *profile = NULL;
    float least = 0, most = 0;
    int bad = calibrator_create(&c, llm_shape(m->llm));
    if (bad)
        snprintf(error, sizeof error, "%.200s", c.layer ? aura_last_error() : "out of memory");
    bad = bad || read_text(&c, a, m, &report.tokens, error) || make_profile(&c, m->llm, &profile, &least, &most, error) ||
          (a->bits > 0 && add_formats(a, m, report.tokens, profile, &report.found, error));
    report.least = (double)least, report.most = (double)most;
    print_progress(NULL);
    if (!bad && aura_profile_save(profile, a->out))
        bad = snprintf(error, sizeof error, "%.200s", aura_last_error()) > 0;
    if (!bad)
        print_report(&report);
    aura_profile_destroy(profile);
    free(report.found.formats);
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
    "Reads a text with a model and writes to a profile what errors of keys and values\n"
    "cost: balance and metrics. `aura run` and `aura eval` take it by --profile. With\n"
    "--bits also the format in which each layer is best held, so that all together\n"
    "take so many bits: each layer's errors are measured, which takes a while.\n",
    "MODEL", NULL, options,
    "aura calibrate model.gguf --text data/essay.txt -o model.profile\n", run};
