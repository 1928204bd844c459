/* aura attend: puts recorded queries, keys and values through a cache, and compares the result with attention in double. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura.h"
#include "parts/recording.h"
#include "tool.h"

enum { ALL = 1000000000 }; /* the value of --layer that means all layers: no file has so many */

struct arguments {
    const char *file, *out, *isa;
    aura_format cache;
    uint32_t layer, planes, threads, seed;
    int no_reference, no_pinned, no_balance, no_search, no_rollback, json;
    struct recording_options options;
    char format[16];
};

/* The tensors that --out writes: for each layer the output and the log-sum-exp. */
struct outputs {
    struct tensor_out *tensors;
    size_t count;
};

static const struct option options[] = {
    FORMAT(cache, "--cache", "k4v4 and so on, or max, safe, quality, balanced, small"),
    NUMBER(layer, "--layer", 0, 999999999, "N", "only that one"),
    NUMBER(planes, "--planes", 1, 2, "N", "bytes of queries and weights in the products (by width)"),
    FLAG(no_reference, "--no-reference", "without the reference that keys are stored relative to"),
    FLAG(no_pinned, "--no-pinned", "without the first four tokens in f16"),
    FLAG(no_balance, "--no-balance", "without balancing keys by what queries look at"),
    FLAG(no_search, "--no-search", "without the search for the best scale"),
    FLAG(no_rollback, "--no-rollback", "without the newest tokens in f16"),
    NUMBER(seed, "--seed", 0, UINT32_MAX, "N", "other signs (1)"),
    NUMBER(threads, "--threads", 1, 1024, "N", "that work on it (all processors)"),
    ISA(isa, "as if the machine had no better than NAME"),
    RESULT(out, "--out", "FILE", "write layer.N.o and layer.N.lse to a safetensors file"),
    FLAG(json, "--json", "as JSON"),
    LAST_OPTION};

static int parse(const struct command *self, struct arguments *c, int argc, char **argv, aura_ctx **ctx)
{
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    if (parse_options(self, argc, argv, c, &c->file) || parse_isa(self, c->isa, &context.isa_mask))
        return 2;
    if (!c->file)
        return usage_error(self, "needs a file of tensors layer.N.q, layer.N.k and layer.N.v, such as "
                           "data/smollm2-attention.safetensors");
    aura_format_name(c->cache, c->format);
    c->options.format = c->cache;
    c->options.flags = (c->no_reference ? AURA_NO_REFERENCE : 0) | (c->no_pinned ? AURA_NO_PINNED : 0) |
                       (c->no_search ? AURA_NO_SEARCH : 0) | (c->no_rollback ? AURA_NO_ROLLBACK : 0);
    c->options.planes = c->planes, c->options.seed = c->seed, c->options.balance = !c->no_balance;
    context.threads = c->threads;
    return aura_ctx_create(&context, ctx) ? failed(self, "%s", aura_last_error()) : 0;
}

static void print_head(const struct arguments *c)
{
    const char *balance = c->no_balance || c->options.format.k >= AURA_KIND_F32 ? "none" : "the file's own queries";
    static const char *const planes[] = {"auto", "1", "2"}, *const without[] = {"true", "false"};
    if (!c->json) {
        printf("%s: %s, planes %s, seed %u%s%s%s%s\n", c->file, c->format, planes[c->planes], c->seed,
               c->no_reference ? ", no reference" : "", c->no_pinned ? ", nothing pinned" : "",
               c->no_search ? ", no search" : "", c->no_rollback ? ", no rollback" : "");
        printf("balance from: %s\nin f16: tokens pinned + open, which are exact\nKL: from the keys as decoded and the queries as "
               "recorded, so of the codec alone; output and lse: from aura_attend\n\n", balance);
        printf("%5s %7s %8s %10s %11s %13s %13s %13s %13s\n", "layer", "tokens", "in f16", "bits/value", "queries", "output error",
               "attention KL", "lse max", "lse mean");
        return;
    }
    printf("{\"file\": ");
    print_json_string(c->file);
    printf(", \"cache\": \"%s\", \"planes\": \"%s\", \"seed\": %u, \"reference\": %s, \"pinned\": %s, \"search\": %s, "
           "\"rollback\": %s, \"balance\": \"%s\", \"layers\": [", c->format, planes[c->planes], c->seed,
           without[c->no_reference], without[c->no_pinned], without[c->no_search], without[c->no_rollback], balance);
}

static void print_layer(const struct arguments *c, const struct recording *r, const struct recording_result *result,
                        const struct recording_errors *e, int first)
{
    char size[32];
    snprintf(size, sizeof size, "%u x %u", r->queries, r->q_heads);
    if (c->json)
        printf("%s\n  {\"layer\": %u, \"tokens\": %u, \"queries\": %u, \"q_heads\": %u, \"kv_heads\": %u, \"k_dim\": %u, "
               "\"v_dim\": %u, \"bits_per_value\": %.4f, \"pinned\": %u, \"open\": %u, \"output_error\": %.6g, "
               "\"attention_kl\": %.6g, \"lse_error_max\": %.6g, \"lse_error_mean\": %.6g}", first ? "" : ",", r->layer,
               r->tokens, r->queries, r->q_heads, r->kv_heads, r->k_dim, r->v_dim, result->bits_per_value, result->pinned,
               result->open, e->output, e->kl, e->lse_max, e->lse_mean);
    else
        printf("%5u %7u %3u + %-2u %10.3f %11s %13.4g %13.4g %13.4g %13.4g\n", r->layer, r->tokens, result->pinned,
               result->open, result->bits_per_value, size, e->output, e->kl, e->lse_max, e->lse_mean);
    fflush(stdout);
}

/* Moves o and lse of a layer from the result to the tensors for --out. */
static int keep(struct outputs *outputs, const struct recording *r, struct recording_result *result)
{
    struct tensor_out *t = &outputs->tensors[outputs->count];
    for (int i = 0; i < 2; i++) {
        char *tensor = malloc(32);
        if (!tensor)
            return -1;
        snprintf(tensor, 32, "layer.%u.%s", r->layer, i ? "lse" : "o");
        t[i].name = tensor, t[i].rank = i ? 2 : 3, t[i].data = i ? result->lse : result->o;
        t[i].shape[0] = r->queries, t[i].shape[1] = r->q_heads, t[i].shape[2] = r->v_dim;
        outputs->count++;
        if (i)
            result->lse = NULL;
        else
            result->o = NULL;
    }
    return 0;
}

static void free_outputs(struct outputs *outputs)
{
    for (size_t i = 0; i < outputs->count; i++)
        free((void *)(uintptr_t)outputs->tensors[i].name), free((void *)(uintptr_t)outputs->tensors[i].data);
    free(outputs->tensors);
}

static int run_layer(const struct command *self, const struct arguments *c, aura_ctx *ctx, const struct safetensors *file,
                     uint32_t layer, int first, struct outputs *outputs)
{
    struct recording r;
    struct recording_result result = {0};
    char error[256] = "out of memory";
    struct recording_exact exact = {0};
    int bad = recording_load(&r, ctx, file, layer, error) || recording_run(&r, ctx, &c->options, &result, error) ||
              recording_attend(&r, r.k, r.v, 0, &exact);
    if (!bad) {
        struct recording_errors errors = recording_compare(&r, &result, &exact);
        bad = !isfinite(errors.output + errors.kl + errors.lse_max + errors.lse_mean);
        if (bad)
            snprintf(error, sizeof error, "layer %u: out of memory, or its numbers are too large to be compared", layer);
        else
            print_layer(c, &r, &result, &errors, first);
        bad = bad || keep(outputs, &r, &result);
    }
    if (bad)
        failed(self, "%s: %s", c->file, error);
    recording_result_free(&result);
    recording_exact_free(&exact);
    recording_free(&r);
    return bad ? 1 : 0;
}

static int run_file(const struct command *self, const struct arguments *c, aura_ctx *ctx, const struct safetensors *file)
{
    size_t count;
    uint32_t *layers = recording_layers(file, &count);
    struct outputs outputs = {calloc(2 * count + 1, sizeof *outputs.tensors), 0};
    int status = 0, asked = 0, done = 0;
    for (size_t i = 0; i < count; i++)
        asked += c->layer == ALL || c->layer == layers[i];
    if (!layers || !outputs.tensors)
        status = failed(self, "out of memory");
    else if (!asked && c->layer == ALL)
        status = failed(self, "%s: no tensor is called layer.N.q", c->file);
    else if (!asked)
        status = failed(self, "%s: there is no layer.%u.q; leave out --layer for all", c->file, c->layer);
    else
        print_head(c);
    for (size_t i = 0; i < count && !status; i++)
        if (c->layer == ALL || c->layer == layers[i])
            status = run_layer(self, c, ctx, file, layers[i], !done++, &outputs);
    if (done && c->json)
        printf("\n]}\n");
    if (!status && c->out && safetensors_write(c->out, outputs.tensors, outputs.count))
        status = failed(self, "%s: cannot be written: %s", c->out, strerror(errno));
    free_outputs(&outputs);
    free(layers);
    return status;
}

static int run_attend(const struct command *self, int argc, char **argv)
{
    struct arguments c = {.cache = {AURA_KIND_B4, AURA_KIND_B4}, .layer = ALL, .threads = online_cpus(), .seed = 1};
    struct safetensors file;
    aura_ctx *ctx = NULL;
    int status = parse(self, &c, argc, argv, &ctx);
    if (status)
        return status;
    if (safetensors_read(&file, c.file))
        status = failed(self, "%s: %s", c.file, file.error);
    else
        status = run_file(self, &c, ctx, &file);
    safetensors_free(&file);
    aura_ctx_destroy(ctx);
    return status;
}

const struct command command_attend = {
    "attend", "put recorded attention through a cache and compare", "FILE.safetensors [OPTIONS]",
    "Puts queries, keys and values (tensors layer.N.q, .k and .v) through a cache and\n"
    "compares what comes out with attention in double.\n", "FILE", NULL, options,
    "aura attend data/smollm2-attention.safetensors --cache k3v3\n", run_attend};
