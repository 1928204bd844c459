/* aura demo: what each preset does to recorded attention of a real model, in a table and on a page. */
#include "demo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../../model/llm.h"
#include "../../model/tokenizer.h"
#include "../parts/html.h"
#include "../parts/plot.h"
#include "../parts/replacement.h"
#include "../parts/terminal.h"
#include "../tool.h"

struct arguments {
    const char *html, *model, *prompt;
    uint32_t threads;
    int quick, json, csv;
};

static const struct option options[] = {
    RESULT(html, "--html", "FILE", "where the page is written (aura-demo.html; else nowhere)"),
    PATH(model, "--model", "FILE", "also what a model, GGUF, makes of it: `make model` fetches one"),
    TEXT(prompt, "--prompt", "TEXT", "what that model is asked"),
    FLAG(quick, "--quick", "one layer and short contexts: some seconds"),
    NUMBER(threads, "--threads", 1, 1024, "N", "that work on it (all processors)"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV: a row for each cache and context"),
    LAST_OPTION};

/* ---- for people ---------------------------------------------------------------------------------------------------- */

/* Prints a text at the right of a column. It counts letters, not bytes: a µ has two bytes. */
static void print_right(const char *text, int width)
{
    for (const char *at = text; *at; at++)
        width -= (*at & 0xc0) != 0x80;
    printf("%*s%s", width > 0 ? width : 0, "", text);
}

static void print_head(const struct demo *d)
{
    const struct recording *r = d->recorded;
    printf("aura %s on %s, %u thread%s, %s\n", aura_version(), cpu_name(), d->threads, d->threads == 1 ? "" : "s",
           isa_name(aura_ctx_isas(d->ctx)));
    printf("%s: layer%s", d->file, d->layers == 1 ? "" : "s");
    for (size_t i = 0; i < d->layers; i++)
        printf("%s %u", i ? "," : "", d->recorded[i].layer);
    printf(" of a model, %u tokens,\n%u query heads, %u KV heads, D %u\n\n", r->tokens, r->q_heads, r->kv_heads, r->k_dim);
    printf("%-17s %5s %7s %8s %8s", "", "bits/", "smaller", "output", "KL of");
    printf("    attention of a layer, one token\n");
    printf("%-8s %-8s %5s %7s %8s %8s", "preset", "cache", "value", "by", "error", "weights");
    for (size_t i = 0; i < d->contexts; i++) {
        char tokens[48], text[64];
        plot_number(tokens, d->context[i], "tokens");
        snprintf(text, sizeof text, "at %s", tokens);
        print_right(text, 11);
    }
    printf("\n");
}

static void print_cache(const struct demo *d, const struct demo_cache *c)
{
    printf("%s%-8s %-8s%s %5.2f %6.2fx %6.2f %% %8.1e", *c->preset ? colour(stdout, BOLD) : "", c->preset, c->name,
           *c->preset ? colour(stdout, PLAIN) : "", c->bits, d->caches[0].bits / c->bits, c->output.mean * 100, c->kl.mean);
    for (size_t i = 0; i < d->contexts; i++) {
        char time[48];
        plot_number(time, c->seconds[i], "s");
        print_right(time, 11);
    }
    printf("\n");
}

/* Says what to look at in the table above. */
static void print_what_it_says(const struct demo *d)
{
    char f16[48], small[48], tokens[48];
    const struct demo_cache *balanced = &d->caches[0];
    for (size_t i = 0; i < d->count; i++)
        balanced = !strcmp(d->caches[i].preset, "balanced") ? &d->caches[i] : balanced;
    plot_number(f16, d->caches[0].model_bytes, "B"), plot_number(small, balanced->model_bytes, "B");
    plot_number(tokens, d->context[d->contexts - 1], "tokens");
    printf("\nOutput error: how far attention's output is from attention in double precision.\n"
           "KL: of the attention weights, in nats. Both are means over layers; times are the\n"
           "fastest of many turns.\n");
    printf("\nAn 8B-class model (%u layers, %u KV heads, D %u) with %.0fk tokens of context:\n%s in f16, %s in %s.\n",
           demo_model.layers, demo_model.kv_heads, demo_model.dim, (double)demo_model.tokens / 1024, f16, small,
           balanced->name);
    if (demo_was_busy(d))
        printf("%sThe machine was busy: times varied by a factor of %.1f. When it is idle they say more.%s\n", colour(stdout,
               YELLOW),
               d->unrest, colour(stdout, PLAIN));
    else
        printf("With %s tokens %s (%s) is %.1f times as fast as f16.\n", tokens, balanced->name, balanced->preset,
               demo_faster(d, balanced, d->contexts - 1));
}

/* ---- for programs -------------------------------------------------------------------------------------------------- */

static void print_spread(const char *name, const struct spread *s)
{
    printf(", \"%s\": {\"mean\": %.6g, \"least\": %.6g, \"most\": %.6g}", name, s->mean, s->least, s->most);
}

static void print_json(const struct demo *d)
{
    printf("{\"version\": \"%s\", \"cpu\": ", aura_version());
    print_json_string(cpu_name());
    printf(", \"isa\": \"%s\", \"threads\": %u, \"file\": ", isa_name(aura_ctx_isas(d->ctx)), d->threads);
    print_json_string(d->file);
    printf(", \"seed\": %d, \"layers\": [", DEMO_SEED);
    for (size_t i = 0; i < d->layers; i++)
        printf("%s%u", i ? ", " : "", d->recorded[i].layer);
    printf("], \"seconds\": %.1f, \"unrest\": %.2f, \"caches\": [", d->elapsed, d->unrest);
    for (size_t i = 0; i < d->count; i++) {
        const struct demo_cache *c = &d->caches[i];
        printf("%s\n  {\"cache\": \"%s\", \"preset\": \"%s\", \"bits_per_value\": %.4f, \"times_smaller\": %.4f",
               i ? "," : "", c->name,
               c->preset, c->bits, d->caches[0].bits / c->bits);
        print_spread("output_error", &c->output), print_spread("attention_kl", &c->kl);
        printf(", \"model_bytes\": %.0f, \"times\": [", c->model_bytes);
        for (size_t k = 0; k < d->contexts; k++)
            printf("%s{\"tokens\": %u, \"us\": %.3f, \"times_f16\": %.3f}", k ? ", " : "", d->context[k],
                   c->seconds[k] * 1e6,
                   demo_faster(d, c, k));
        printf("]}");
    }
    printf("\n]");
    if (d->llm)
        printf(", \"model\": "), demo_llm_print_json(d->llm);
    printf("}\n");
}

/* A cache at a context. */
struct demo_row {
    const struct demo *d;
    const struct demo_cache *c;
    size_t context;
};

static void row_fields(struct table *t, const void *row)
{
    const struct demo_row *r = row;
    const struct demo_cache *c = r->c;
    table_text(t, "cache", c->name), table_text(t, "preset", c->preset);
    table_number(t, "bits_per_value", "%.4f", c->bits);
    table_number(t, "times_smaller", "%.4f", r->d->caches[0].bits / c->bits);
    table_number(t, "output_error", "%.6g", c->output.mean), table_number(t, "attention_kl", "%.6g", c->kl.mean);
    table_number(t, "model_bytes", "%.0f", c->model_bytes);
    table_number(t, "tokens", "%u", r->d->context[r->context]);
    table_number(t, "us", "%.3f", c->seconds[r->context] * 1e6);
    table_number(t, "times_f16", "%.3f", demo_faster(r->d, c, r->context));
}

static void origin(struct table *t, const void *demo)
{
    const struct demo *d = demo;
    table_text(t, "file", d->file);
    table_number(t, "seed", "%d", DEMO_SEED);
    table_machine(t);
    table_text(t, "isa", isa_name(aura_ctx_isas(d->ctx)));
    table_number(t, "threads", "%u", d->threads);
    table_number(t, "unrest", "%.2f", d->unrest);
}

static void print_csv(const struct demo *d)
{
    struct table table;
    table_begin(&table, 1, "rows", origin, d);
    for (size_t i = 0; i < d->count; i++)
        for (size_t k = 0; k < d->contexts; k++) {
            const struct demo_row row = {d, &d->caches[i], k};
            table_row(&table, row_fields, &row);
        }
    table_end(&table, NULL, NULL);
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

static int write_page(const struct command *self, const struct demo *d, const char *path)
{
    struct replacement page;
    if (replacement_begin(&page, path))
        return failed(self, "%s: cannot be written: %s; --html names another place", path, strerror(errno));
    html_begin(page.to, "aura: a key/value cache in 2 to 8 bits", "What each format costs and saves, measured on this machine "
               "with recorded attention of a real model. Made by `aura demo`.");
    demo_html(page.to, d);
    return replacement_end(&page, html_end(page.to)) ? failed(self, "%s: cannot be written: %s", path, strerror(errno)) : 0;
}

/* A cache of 8 bits loses next to nothing: if one loses more, something was computed wrong. */
static int is_sound(const struct demo *d)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->caches[i].bits > 8 && !(d->caches[i].output.most < 0.02))
            return 0;
    return 1;
}

static int show(const struct command *self, const struct demo *d, const struct arguments *a)
{
    const char *path = a->html ? a->html : a->json || a->csv ? NULL : "aura-demo.html";
    int status = path ? write_page(self, d, path) : 0;
    if (a->json) {
        print_json(d);
    } else if (a->csv) {
        print_csv(d);
    } else {
        print_head(d);
        for (size_t i = 0; i < d->count; i++)
            print_cache(d, &d->caches[i]);
        print_what_it_says(d);
        if (d->llm)
            demo_llm_print(d->llm);
        if (!status)
            printf("\nThe same with pictures: %s (any browser). Measured in %.0f s.\n", path, d->elapsed);
    }
    if (!is_sound(d))
        status = failed(self, "8 bits are further from exact attention than 2 %%: `aura check` tells which kernel is wrong");
    return status;
}

/* Measuring takes a minute: what is wrong with the model's file is said before. */
static int check_model(const char *model, uint32_t threads, char *error)
{
    char why[LLM_ERROR_BYTES];
    struct gguf *file = NULL;
    struct tokenizer *tokenizer = NULL;
    struct llm *llm = NULL;
    const int bad = gguf_open(model, &file, why) || tokenizer_create(file, &tokenizer, why) || llm_open(file, threads, &llm, why);
    if (bad)
        snprintf(error, 256, "%.100s: %.150s", model, why);
    llm_close(llm);
    tokenizer_destroy(tokenizer);
    gguf_close(file);
    return bad;
}

static int run_demo(const struct command *self, int argc, char **argv)
{
    struct arguments a = {NULL, NULL, "Why is the sky blue? Answer in three sentences.", online_cpus(), 0, 0, 0};
    struct demo *d = calloc(1, sizeof *d);
    struct safetensors file = {0};
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    char error[256] = "out of memory", path[DATA_PATH_BYTES];
    if (!d)
        return failed(self, "%s", error);
    int status = parse_options(self, argc, argv, &a, &d->file);
    if (status)
        return free(d), status;
    d->file = d->file ? d->file : find_data("smollm2-attention.safetensors", path);
    d->quick = a.quick, d->threads = context.threads = a.threads;
    if (aura_ctx_create(&context, &d->ctx))
        status = failed(self, "%s", aura_last_error());
    else if (safetensors_read(&file, d->file))
        status = failed(self, "%s: %s; run it where data/ is, or name a recording", d->file, file.error);
    else if (a.model && check_model(a.model, a.threads, error))
        status = failed(self, "%s", error);
    else if (demo_load(d, &file, error) || demo_measure(d, error))
        status = failed(self, "%s: %s", d->file, error);
    else if (a.model && demo_llm_measure(&d->llm, a.model, a.prompt, a.threads, a.quick, error))
        status = failed(self, "%s", error);
    else
        status = show(self, d, &a);
    safetensors_free(&file);
    demo_llm_free(d->llm);
    demo_free(d);
    aura_ctx_destroy(d->ctx);
    free(d);
    return status;
}

const struct command command_demo = {
    "demo", "what each format costs and saves, on a page with charts", "[FILE.safetensors] [OPTIONS]",
    "Puts recorded attention of a real model (FILE, or data/ as it is in the source)\n"
    "through caches of all presets and some other formats: bits, error, KL divergence\n"
    "of attention's weights, time beside f16. Writes a page that a browser shows.\n",
    "FILE", NULL, options, "aura demo --quick\naura demo --model models/SmolLM2-135M-Instruct.Q4_1.gguf\n", run_demo};
