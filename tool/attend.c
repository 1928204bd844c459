/* aura attend: puts recorded queries, keys and values through a cache, and compares the result with attention in double. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura.h"
#include "../src/format.h"
#include "parts/codec.h"
#include "parts/peer_quant.h"
#include "parts/recording.h"
#include "tool.h"

enum { ALL = 1000000000 }; /* the value of --layer that means all layers: no file has so many */

struct arguments {
    const char *file, *out, *isa, *cache;
    struct option_texts codecs;
    uint32_t layer, planes, threads, seed;
    int no_reference, no_pinned, no_balance, no_search, no_rollback, json, csv;
    struct recording_options options;
};

enum { MOST_CACHES = 64 };

/* One of ours; or what another returns, of which only the error of stored values is here. */
struct contender {
    char name[16];
    aura_format format;
    const struct peer *peer;
    const char *codec;
};

/* The tensors that --out writes: for each layer the output and the log-sum-exp. */
struct outputs {
    struct tensor_out *tensors;
    size_t count;
};

static const struct option options[] = {
    FORMATS(cache, "--cache", "k4v4,k3v3,balanced ... and llama.cpp's q8_0,q4_0 ... (k4v4)"),
    TEXTS(codecs, "--codec", "COMMAND", "one of your own beside them: doc/codec.md"),
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
    FLAG(csv, "--csv", "as CSV"),
    LAST_OPTION};

/* The names of --cache, and the codecs. */
static int parse_caches(const struct command *self, const struct arguments *c, struct contender *all, size_t *count)
{
    *count = 0;
    for (const char *at = c->cache; *at || at == c->cache; (*count)++) {
        struct contender *one = &all[*count];
        const size_t n = strcspn(at, ",");
        char name[64];
        snprintf(name, sizeof name, "%.*s", (int)(n < sizeof name ? n : sizeof name - 1), at);
        if (*count == MOST_CACHES - OPTION_MOST_TEXTS)
            return usage_error(self, "--cache: at most %d names", MOST_CACHES - OPTION_MOST_TEXTS);
        one->peer = strcmp(name, "f16") ? peer_find(name) : NULL; /* f16 is ours here: the numbers are the same */
        if (one->peer)
            snprintf(one->name, sizeof one->name, "%.15s", name);
        else if (parse_format(self, "--cache", name, &one->format) || aura_format_name(one->format, one->name))
            return 2;
        at += n + (at[n] == ',');
    }
    for (size_t i = 0; i < c->codecs.count; i++) {
        codec_name(c->codecs.list[i], all[*count].name);
        all[(*count)++].codec = c->codecs.list[i];
    }
    return c->out && *count > 1 ? usage_error(self, "--out is of one cache") : 0;
}

static int parse(const struct command *self, struct arguments *c, int argc, char **argv, aura_ctx **ctx)
{
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    if (parse_options(self, argc, argv, c, &c->file) || parse_isa(self, c->isa, &context.isa_mask))
        return 2;
    if (!c->file)
        return usage_error(self, "needs a file of tensors layer.N.q, layer.N.k and layer.N.v, such as "
                           "data/smollm2-attention.safetensors");
    c->options.flags = (c->no_reference ? AURA_NO_REFERENCE : 0) | (c->no_pinned ? AURA_NO_PINNED : 0) |
                       (c->no_search ? AURA_NO_SEARCH : 0) | (c->no_rollback ? AURA_NO_ROLLBACK : 0);
    c->options.planes = c->planes, c->options.seed = c->seed, c->options.balance = !c->no_balance;
    context.threads = c->threads;
    return aura_ctx_create(&context, ctx) ? failed(self, "%s", aura_last_error()) : 0;
}

static const char csv_head[] = "cache,layer,tokens,queries,q_heads,kv_heads,k_dim,v_dim,bits_per_value,pinned,open,output_error,"
                               "attention_kl,lse_error_max,lse_error_mean,file,seed,version,cpu,isa";

static void print_head(const struct arguments *c, const struct contender *all, size_t count)
{
    int balanced = 0;
    for (size_t i = 0; i < count; i++)
        balanced |= !all[i].peer && !all[i].codec && aura_is_packed((uint32_t)all[i].format.k);
    const char *balance = c->no_balance || !balanced ? "none" : "the file's own queries";
    static const char *const planes[] = {"auto", "1", "2"}, *const without[] = {"true", "false"};
    if (c->csv && !c->json) {
        puts(csv_head);
        return;
    }
    if (!c->json) {
        printf("%s: %s, planes %s, seed %u%s%s%s%s\n", c->file, count == 1 ? all[0].name : c->cache, planes[c->planes], c->seed,
               c->no_reference ? ", no reference" : "", c->no_pinned ? ", nothing pinned" : "",
               c->no_search ? ", no search" : "", c->no_rollback ? ", no rollback" : "");
        printf("balance from: %s\nin f16: tokens pinned + open, which are exact\nKL: from the keys as decoded and the queries as "
               "recorded, so of the codec alone; output and lse: from aura_attend,\nand in double from the keys and values as "
               "decoded for what is not ours\n\n", balance);
        printf("%-12s %5s %7s %8s %10s %11s %13s %13s %13s %13s\n", "cache", "layer", "tokens", "in f16", "bits/value", "queries",
               "output error",
               "attention KL", "lse max", "lse mean");
        return;
    }
    printf("{\"file\": ");
    print_json_string(c->file);
    printf(", \"version\": \"%s\", \"cpu\": ", aura_version());
    print_json_string(cpu_name());
    printf(", \"isa\": \"%s\", \"cache\": ", isa_name(aura_cpu_isas()));
    print_json_string(count == 1 ? all[0].name : c->cache);
    printf(", \"planes\": \"%s\", \"seed\": %u, \"reference\": %s, \"pinned\": %s, \"search\": %s, "
           "\"rollback\": %s, \"balance\": \"%s\", \"layers\": [", planes[c->planes], c->seed,
           without[c->no_reference], without[c->no_pinned], without[c->no_search], without[c->no_rollback], balance);
}

static void print_csv(const struct arguments *c, const char *name, const struct recording *r, const struct recording_result *result,
                      const struct recording_errors *e)
{
    char bits[32] = "";
    if (isfinite(result->bits_per_value))
        snprintf(bits, sizeof bits, "%.4f", result->bits_per_value);
    printf("%s,%u,%u,%u,%u,%u,%u,%u,%s,%u,%u,%.6g,%.6g,%.6g,%.6g,", name, r->layer, r->tokens, r->queries, r->q_heads, r->kv_heads,
           r->k_dim, r->v_dim, bits, result->pinned, result->open, e->output, e->kl, e->lse_max, e->lse_mean);
    print_csv_string(c->file);
    printf(",%u,%s,", c->seed, aura_version());
    print_csv_string(cpu_name());
    printf(",%s\n", isa_name(aura_cpu_isas()));
}

static void print_layer(const struct arguments *c, const char *name, const struct recording *r,
                        const struct recording_result *result, const struct recording_errors *e, int first)
{
    char size[32], bits[32] = "null";
    snprintf(size, sizeof size, "%u x %u", r->queries, r->q_heads);
    if (isfinite(result->bits_per_value))
        snprintf(bits, sizeof bits, "%.4f", result->bits_per_value);
    if (c->json)
        printf("%s\n  {\"cache\": \"%s\", \"layer\": %u, \"tokens\": %u, \"queries\": %u, \"q_heads\": %u, \"kv_heads\": %u, "
               "\"k_dim\": %u, "
               "\"v_dim\": %u, \"bits_per_value\": %s, \"pinned\": %u, \"open\": %u, \"output_error\": %.6g, "
               "\"attention_kl\": %.6g, \"lse_error_max\": %.6g, \"lse_error_mean\": %.6g}", first ? "" : ",", name, r->layer,
               r->tokens, r->queries, r->q_heads, r->kv_heads, r->k_dim, r->v_dim, bits, result->pinned,
               result->open, e->output, e->kl, e->lse_max, e->lse_mean);
    else if (c->csv)
        print_csv(c, name, r, result, e);
    else
        printf("%-12s %5u %7u %3u + %-2u %10.3f %11s %13.4g %13.4g %13.4g %13.4g\n", name, r->layer, r->tokens, result->pinned,
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

/* What one of the contenders makes of a layer. */
static int put_through(const struct arguments *c, aura_ctx *ctx, const struct contender *one, const struct recording *r,
                       struct recording_result *result, char *error)
{
    struct recording_options options = c->options;
    options.format = one->format;
    if (!one->peer && !one->codec)
        return recording_run(r, ctx, &options, result, error);
    if (recording_copy(r, result))
        return snprintf(error, 256, "layer %u: out of memory", r->layer), -1;
    result->bits_per_value = one->peer ? (peer_bits(one->peer, r->k_dim) + peer_bits(one->peer, r->v_dim)) / 2 : NAN;
    if (one->peer && (r->k_dim % PEER_BLOCK || r->v_dim % PEER_BLOCK))
        return snprintf(error, 256, "layer %u: %.15s has blocks of %d numbers, and heads have %u and %u", r->layer, one->name,
                        PEER_BLOCK, r->k_dim, r->v_dim), -1;
    if (one->peer) {
        peer_store(one->peer, PEER_KEYS, r->kv_heads, r->k_dim, r->tokens, result->k);
        peer_store(one->peer, PEER_VALUES, r->kv_heads, r->v_dim, r->tokens, result->v);
    } else if (codec_run(one->codec, r->layer, r->tokens, r->kv_heads, r->k_dim, r->v_dim, result->k, result->v,
                         &result->bits_per_value, error)) {
        return -1;
    }
    return recording_decoded(r, result) ? (snprintf(error, 256, "layer %u: out of memory", r->layer), -1) : 0;
}

static int run_layer(const struct command *self, const struct arguments *c, aura_ctx *ctx, const struct safetensors *file,
                     const struct contender *one, uint32_t layer, int first, struct outputs *outputs)
{
    struct recording r;
    struct recording_result result = {0};
    char error[256] = "out of memory";
    struct recording_exact exact = {0};
    int bad = recording_load(&r, ctx, file, layer, error) || put_through(c, ctx, one, &r, &result, error) ||
              recording_attend(&r, r.k, r.v, 0, &exact);
    if (!bad) {
        struct recording_errors errors = recording_compare(&r, &result, &exact);
        bad = !isfinite(errors.output + errors.kl + errors.lse_max + errors.lse_mean);
        if (bad)
            snprintf(error, sizeof error, "layer %u: out of memory, or its numbers are too large to be compared", layer);
        else
            print_layer(c, one->name, &r, &result, &errors, first);
        bad = bad || keep(outputs, &r, &result);
    }
    if (bad)
        failed(self, "%s: %s", c->file, error);
    recording_result_free(&result);
    recording_exact_free(&exact);
    recording_free(&r);
    return bad ? 1 : 0;
}

static int run_file(const struct command *self, const struct arguments *c, aura_ctx *ctx, const struct safetensors *file,
                    const struct contender *all, size_t n)
{
    size_t count;
    uint32_t *layers = recording_layers(file, &count);
    struct outputs outputs = {calloc(2 * count * n + 1, sizeof *outputs.tensors), 0};
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
        print_head(c, all, n);
    for (size_t k = 0; k < n; k++)
        for (size_t i = 0; i < count && !status; i++)
            if (c->layer == ALL || c->layer == layers[i])
                status = run_layer(self, c, ctx, file, &all[k], layers[i], !done++, &outputs);
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
    struct arguments c = {.cache = "k4v4", .layer = ALL, .threads = online_cpus(), .seed = 1};
    struct safetensors file;
    aura_ctx *ctx = NULL;
    struct contender all[MOST_CACHES] = {{{0}, {0, 0}, NULL, NULL}};
    size_t n = 0;
    int status = parse(self, &c, argc, argv, &ctx);
    if (status || (status = parse_caches(self, &c, all, &n)))
        return aura_ctx_destroy(ctx), status;
    if (safetensors_read(&file, c.file))
        status = failed(self, "%s: %s", c.file, file.error);
    else
        status = run_file(self, &c, ctx, &file, all, n);
    safetensors_free(&file);
    aura_ctx_destroy(ctx);
    return status;
}

const struct command command_attend = {
    "attend", "put recorded attention through a cache and compare", "FILE.safetensors [OPTIONS]",
    "Puts queries, keys and values (tensors layer.N.q, .k and .v) through a cache and\n"
    "compares what comes out with attention in double. Of llama.cpp's types and of\n"
    "codecs only the error of stored values is measured.\n", "FILE", NULL, options,
    "aura attend data/smollm2-attention.safetensors --cache k4v4,q4_0\n", run_attend};
