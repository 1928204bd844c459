/* aura calibrate: a model reads a text, and a profile of what its queries look at is written to a file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura_file.h"
#include "parts/allocate.h"
#include "parts/calibrator.h"
#include "parts/terminal.h"
#include "tool.h"

enum { PROBE_TOKENS = 512, PROBES = 2 }; /* of a chunk on which formats are compared, and such chunks */

struct arguments {
    const char *model, *text, *out;
    uint32_t ctx, tokens, threads;
    double bits;
    int plain, trellis, json, csv;
};

static const struct option options[] = {
    PATH(text, "--text", "FILE", "the text: like what the model will read, some pages"),
    RESULT(out, "-o, --out", "FILE", "the profile to be written"),
    NUMBER(ctx, "--ctx", CALIBRATOR_LEAST_TOKENS, 1 << 20, "N", "tokens that the model reads at a time (2048)"),
    NUMBER(tokens, "--tokens", CALIBRATOR_LEAST_TOKENS, 1 << 30, "N", "at most so many of the text (16384)"),
    REAL(bits, "--bits", ALLOCATE_LEAST_BITS, ALLOCATE_MOST_BITS, "X", "and formats of X bits a value in all: --cache profile"),
    FLAG(trellis, "--trellis", "of trellis codes, where those have as many bits"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    FLAG(plain, "--no-feedback", "balance of the keys alone, as before 0.5"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV"),
    LAST_OPTION};

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
    bad = bad || allocate(&o, a->bits, a->trellis, found, error);
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
    char fewest[16] = "";
    aura_format_name(r->found.fewest, fewest);
    printf("\n%.3f bits a value, mean KL divergence %.4g; %s has %.3f bits and %.4g. Use it with --cache profile.\n",
           r->found.bits, r->found.kld, fewest, r->found.fewest_bits, r->found.fewest_kld);
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
    struct calibrator c = {0};
    struct report report = {.a = a, .c = &c};
    aura_ctx *ctx = NULL;
    aura_profile *profile = NULL;
    float least = 0, most = 0;
    int bad = aura_ctx_create(NULL, &ctx);
    if (bad)
        snprintf(error, sizeof error, "%.200s", aura_last_error());
    bad = bad || calibrator_create(&c, ctx, llm_shape(m->llm), error);
    c.plain = a->plain;
    bad = bad || calibrator_read(&c, m, a->ctx, a->tokens, a->threads, &report.tokens, error) ||
          calibrator_profile(&c, m->llm, &profile, &least, &most, error) ||
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
    aura_ctx_destroy(ctx);
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
    if (a.trellis && !(a.bits > 0))
        return usage_error(self, "--trellis says which codes --bits may give to layers, and there is no --bits");
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
