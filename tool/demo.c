/* aura demo: what each preset does to recorded attention of a real model, in a table and on a page. */
#include "demo.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "page.h"
#include "plot.h"
#include "terminal.h"
#include "tool.h"

static const char recorded[] = "data/smollm2-attention.safetensors";

struct arguments {
    const char *html;
    uint32_t threads;
    int quick, json;
};

static const struct option options[] = {
    PATH(html, "--html", "FILE", "where the page is written (aura-demo.html; with --json nowhere)"),
    FLAG(quick, "--quick", "one layer and short contexts: some seconds"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    FLAG(json, "--json", "as JSON"),
    LAST_OPTION};

/* ---- for people ---------------------------------------------------------------------------------------------------- */

static void print_head(const struct demo *d)
{
    const struct recording *r = d->recorded;
    printf("aura %s on %s, %u threads, %s\n", aura_version(), cpu_name(), d->threads, isa_name(aura_ctx_isas(d->ctx)));
    printf("%s: layer%s", d->file, d->layers == 1 ? "" : "s");
    for (size_t i = 0; i < d->layers; i++)
        printf("%s %u", i ? "," : "", d->recorded[i].layer);
    printf(" of a model, %u tokens,\n%u query heads, %u KV heads, D %u\n\n", r->tokens, r->q_heads, r->kv_heads, r->k_dim);
    printf("%-17s %6s %7s %8s %8s", "", "bits /", "smaller", "output", "KL of");
    printf("  %s\n", "attention of a layer for one token");
    printf("%-8s %-8s %6s %7s %8s %8s", "preset", "cache", "value", "by", "error", "weights");
    for (size_t i = 0; i < d->contexts; i++) {
        char tokens[48], text[64];
        plot_number(tokens, d->context[i], "tokens");
        snprintf(text, sizeof text, "at %s", tokens);
        printf(" %11s", text);
    }
    printf("\n");
}

static void print_cache(const struct demo *d, const struct demo_cache *c)
{
    printf("%s%-8s %-8s%s %6.2f %6.2fx %7.2f%% %8.1e", *c->preset ? colour(stdout, BOLD) : "", c->preset, c->name,
           *c->preset ? colour(stdout, PLAIN) : "", c->bits, d->caches[0].bits / c->bits, c->output.mean * 100, c->kl.mean);
    for (size_t i = 0; i < d->contexts; i++) {
        char time[48];
        plot_number(time, c->seconds[i], "s");
        printf(" %12s", time); /* a letter of three has two bytes */
    }
    printf("\n");
}

/* What to look at in the table above. */
static void print_what_it_says(const struct demo *d)
{
    char f16[48], small[48], tokens[48];
    const struct demo_cache *balanced = &d->caches[0];
    for (size_t i = 0; i < d->count; i++)
        balanced = !strcmp(d->caches[i].preset, "balanced") ? &d->caches[i] : balanced;
    plot_number(f16, d->caches[0].model_bytes, "B"), plot_number(small, balanced->model_bytes, "B");
    plot_number(tokens, d->context[d->contexts - 1], "tokens");
    printf("\nOutput error: how far attention's output is from attention in double precision. KL: of\n"
           "the attention weights, in nats. Both are means over layers; times are medians.\n");
    printf("\n%s (%s) at %s tokens: %.1f times as fast as f16. An 8B-class model (%u layers,\n%u KV heads, D %u) with %.0fk tokens of "
           "context: %s in f16, %s in %s.\n", balanced->name, balanced->preset, tokens, demo_faster(d, balanced, d->contexts - 1),
           demo_model.layers, demo_model.kv_heads, demo_model.dim, (double)demo_model.tokens / 1024, f16, small, balanced->name);
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
    printf(", \"layers\": [");
    for (size_t i = 0; i < d->layers; i++)
        printf("%s%u", i ? ", " : "", d->recorded[i].layer);
    printf("], \"seconds\": %.1f, \"caches\": [", d->elapsed);
    for (size_t i = 0; i < d->count; i++) {
        const struct demo_cache *c = &d->caches[i];
        printf("%s\n  {\"cache\": \"%s\", \"preset\": \"%s\", \"bits_per_value\": %.4f, \"times_smaller\": %.4f", i ? "," : "", c->name,
               c->preset, c->bits, d->caches[0].bits / c->bits);
        print_spread("output_error", &c->output), print_spread("attention_kl", &c->kl);
        printf(", \"model_bytes\": %.0f, \"times\": [", c->model_bytes);
        for (size_t k = 0; k < d->contexts; k++)
            printf("%s{\"tokens\": %u, \"us\": %.3f, \"times_f16\": %.3f}", k ? ", " : "", d->context[k], c->seconds[k] * 1e6,
                   demo_faster(d, c, k));
        printf("]}");
    }
    printf("\n]}\n");
}

/* ---- the command --------------------------------------------------------------------------------------------------- */

static int write_page(const struct command *self, const struct demo *d, const char *path)
{
    FILE *to = fopen(path, "wb");
    if (!to)
        return failed(self, "%s: cannot be written: %s; --html names another place", path, strerror(errno));
    page_begin(to, "aura: a key/value cache in 2 to 8 bits", "What each format costs and saves, measured on this machine with "
               "recorded attention of a real model. Made by `aura demo`.");
    demo_page(to, d);
    int bad = page_end(to);
    return fclose(to) || bad ? failed(self, "%s: cannot be written: %s", path, strerror(errno)) : 0;
}

/* A cache of 8 bits loses next to nothing. One that does was computed wrong. */
static int is_sound(const struct demo *d)
{
    for (size_t i = 0; i < d->count; i++)
        if (d->caches[i].bits > 8 && !(d->caches[i].output.most < 0.02))
            return 0;
    return 1;
}

static int show(const struct command *self, const struct demo *d, const struct arguments *a)
{
    const char *path = a->html ? a->html : a->json ? NULL : "aura-demo.html";
    int status = path ? write_page(self, d, path) : 0;
    if (a->json) {
        print_json(d);
    } else {
        print_head(d);
        for (size_t i = 0; i < d->count; i++)
            print_cache(d, &d->caches[i]);
        print_what_it_says(d);
        if (!status)
            printf("\nThe same with pictures: %s (any browser). Measured in %.0f s.\n", path, d->elapsed);
    }
    if (!is_sound(d))
        status = failed(self, "8 bits are further from exact attention than 2 %%: `aura check` tells which kernel is wrong");
    return status;
}

static int run_demo(const struct command *self, int argc, char **argv)
{
    struct arguments a = {NULL, online_cpus(), 0, 0};
    struct demo *d = calloc(1, sizeof *d);
    struct safetensors file = {0};
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    char error[256] = "out of memory";
    if (!d)
        return failed(self, "%s", error);
    int status = parse_options(self, argc, argv, &a, &d->file);
    if (status)
        return free(d), status;
    d->file = d->file ? d->file : recorded, d->quick = a.quick, d->threads = context.threads = a.threads;
    if (aura_ctx_create(&context, &d->ctx))
        status = failed(self, "%s", aura_last_error());
    else if (safetensors_read(&file, d->file))
        status = failed(self, "%s: %s; run it where data/ is, or name a recording", d->file, file.error);
    else if (demo_load(d, &file, error) || demo_measure(d, error))
        status = failed(self, "%s: %s", d->file, error);
    else
        status = show(self, d, &a);
    safetensors_free(&file);
    demo_free(d);
    aura_ctx_destroy(d->ctx);
    free(d);
    return status;
}

const struct command command_demo = {
    "demo", "what each format costs and saves, on a page with charts", "[FILE.safetensors] [OPTIONS]",
    "Puts recorded attention of a real model (data/smollm2-attention.safetensors) through\n"
    "caches of all presets and a few other formats: bits per value, error, KL divergence\n"
    "of the attention weights, time beside f16. Writes a page that any browser shows.\n",
    "FILE", NULL, options, "aura demo --quick\n", run_demo};
