/* What aura demo measures: errors, weights of attention, times, memory. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/base/format_names.h"
#include "../bench/bench.h"
#include "demo.h"
#include "../parts/terminal.h"

enum { ERROR_BYTES = 256, SHOWN_QUERIES = 32 };

const struct demo_model demo_model = {32, 8, 128, 131072};

/* Formats beside the presets: keys with more bits than values, and formats with too few bits. */
static const char *const pairs[] = {"k5v4", "k4v3", "k2v2"};
static const uint32_t contexts[DEMO_CONTEXTS] = {1024, 8192, 65536};

static int fail(char *error, const char *text)
{
    snprintf(error, ERROR_BYTES, "%s", text);
    return -1;
}

/* ---- what there is to measure -------------------------------------------------------------------------------------- */

static void add_cache(struct demo *d, const char *preset, aura_format format)
{
    struct demo_cache *c = &d->caches[d->count++];
    memset(c, 0, sizeof *c);
    c->preset = preset, c->format = format;
    aura_format_name(format, c->name);
}

static int by_bits(const void *a, const void *b)
{
    double x = ((const struct demo_cache *)a)->model_bytes, y = ((const struct demo_cache *)b)->model_bytes;
    return (x < y) - (x > y);
}

/* The bytes of a model's cache: its pages and the rest of a sequence. An empty cache tells their sizes. */
static int count_memory(struct demo *d, struct demo_cache *c, char *error)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache *cache = NULL;
    config.format = c->format, config.q_heads = config.kv_heads = demo_model.kv_heads, config.k_dim = demo_model.dim;
    if (aura_cache_create(d->ctx, &config, &cache) || aura_cache_get_info(cache, &info))
        return aura_cache_destroy(cache), fail(error, aura_last_error());
    double pages = (double)demo_model.tokens / 256;
    c->model_bytes = demo_model.layers * (pages * (double)info.page_bytes + (double)info.seq_bytes);
    aura_cache_destroy(cache);
    return 0;
}

int demo_load(struct demo *d, const struct safetensors *file, char *error)
{
    size_t count;
    aura_format format = {AURA_KIND_F16, AURA_KIND_F16};
    uint32_t *layers = recording_layers(file, &count);
    int bad = !layers ? fail(error, "out of memory") : !count ? fail(error, "no tensor is called layer.N.q") : 0;
    for (size_t i = 0; i < count && !bad && i < (d->quick ? 1 : DEMO_LAYERS); i++)
        bad = recording_load(&d->recorded[d->layers++], d->ctx, file, layers[i], error);
    free(layers);
    d->contexts = d->quick ? 2 : DEMO_CONTEXTS;
    memcpy(d->context, contexts, sizeof contexts);
    add_cache(d, "", format);
    for (size_t i = 0; i < aura_preset_count; i++)
        add_cache(d, aura_presets[i].name, aura_presets[i].format);
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        if (!aura_format_parse(pairs[i], &format))
            add_cache(d, "", format);
    for (size_t i = 0; i < d->count && !bad; i++)
        bad = count_memory(d, &d->caches[i], error);
    qsort(d->caches, d->count, sizeof *d->caches, by_bits);
    return bad;
}

void demo_free(struct demo *d)
{
    for (size_t i = 0; i < d->layers; i++)
        recording_free(&d->recorded[i]);
    free(d->head.exact), free(d->head.cached[0]), free(d->head.cached[1]);
}

/* ---- errors -------------------------------------------------------------------------------------------------------- */

static struct recording_options options_of(const struct demo_cache *c)
{
    struct recording_options o = {c->format, 0, 0, DEMO_SEED, 1};
    return o;
}

static void include(struct spread *s, double value, size_t layers, size_t layer)
{
    s->mean += value / (double)layers;
    s->least = layer && s->least < value ? s->least : value;
    s->most = layer && s->most > value ? s->most : value;
}

/* The weights of one head from its exact logits, for the queries that are shown. */
static double *weights_of(const struct recording *r, const struct recording_exact *exact, const struct demo_head *h)
{
    double *weight = calloc((size_t)h->rows * h->tokens, sizeof *weight);
    for (uint32_t i = 0; weight && i < h->rows; i++) {
        uint32_t query = r->queries - h->rows + i, seen = r->tokens - r->queries + query + 1;
        size_t row = (size_t)query * r->q_heads + h->head;
        for (uint32_t t = 0; t < seen; t++)
            weight[(size_t)i * h->tokens + t] = exp(exact->logit[row * r->tokens + t] - exact->lse[row]);
    }
    return weight;
}

/* The head whose weights are spread over the most tokens: where all weight is on one token, no cache can do much harm. */
static uint32_t widest_head(const struct recording *r, const struct recording_exact *exact)
{
    uint32_t best = 0;
    double most = -1;
    for (uint32_t head = 0; head < r->q_heads; head++) {
        size_t row = (size_t)(r->queries - 1) * r->q_heads + head;
        double entropy = 0;
        for (uint32_t t = 0; t < r->tokens; t++) {
            double log_weight = exact->logit[row * r->tokens + t] - exact->lse[row];
            entropy -= exp(log_weight) * log_weight;
        }
        if (entropy > most)
            most = entropy, best = head;
    }
    return best;
}

/* The page shows the weights of k4v4 and k3v3: returns the index of this cache among them, or -1. */
static int shown_as(const struct demo_cache *c)
{
    return !strcmp(c->name, "k4v4") ? 0 : !strcmp(c->name, "k3v3") ? 1 : -1;
}

/* The weights of one head of the middle layer: there models look at more tokens than in the first and last layers. */
static int keep_weights(struct demo *d, const struct recording *r, const struct recording_exact *exact)
{
    struct demo_head *h = &d->head;
    h->layer = r->layer, h->tokens = r->tokens, h->head = widest_head(r, exact);
    h->rows = r->queries < SHOWN_QUERIES ? r->queries : SHOWN_QUERIES;
    return (h->exact = weights_of(r, exact, h)) ? 0 : -1;
}

static int keep_cached(struct demo *d, const struct recording *r, const struct demo_cache *c,
                       const struct recording_result *result)
{
    struct recording_exact after = {0};
    int which = shown_as(c), bad = recording_attend(r, result->k, result->v, 1, &after);
    if (!bad)
        bad = !(d->head.cached[which] = weights_of(r, &after, &d->head));
    d->head.cache[which] = c;
    recording_exact_free(&after);
    return bad ? -1 : 0;
}

static int measure_cache(struct demo *d, size_t layer, struct demo_cache *c, const struct recording_exact *exact, int shown,
                         char *error)
{
    const struct recording *r = &d->recorded[layer];
    struct recording_options options = options_of(c);
    struct recording_result result = {0};
    int bad = recording_run(r, d->ctx, &options, &result, error);
    if (!bad) {
        struct recording_errors e = recording_compare(r, &result, exact);
        if (!isfinite(e.output + e.kl))
            bad = fail(error, "out of memory, or the recorded numbers are too large to be compared");
        c->bits = result.bits_per_value;
        include(&c->output, e.output, d->layers, layer);
        include(&c->kl, fmax(e.kl, 0), d->layers, layer); /* rounding may make the divergence of plain numbers negative */
        if (!bad && shown && shown_as(c) >= 0)
            bad = keep_cached(d, r, c, &result) ? fail(error, "out of memory") : 0;
    }
    recording_result_free(&result);
    return bad;
}

static int measure_errors(struct demo *d, char *error)
{
    int bad = 0;
    for (size_t layer = 0; layer < d->layers && !bad; layer++) {
        const struct recording *r = &d->recorded[layer];
        struct recording_exact exact = {0};
        int shown = layer == d->layers / 2;
        char text[80];
        bad = recording_attend(r, r->k, r->v, 1, &exact) || (shown && keep_weights(d, r, &exact))
                  ? fail(error, "out of memory")
                  : 0;
        for (size_t i = 0; i < d->count && !bad; i++) {
            snprintf(text, sizeof text, "errors: layer %u, %s (%zu of %zu)", r->layer, d->caches[i].name,
                     layer * d->count + i + 1, d->layers * d->count);
            print_progress(text);
            bad = measure_cache(d, layer, &d->caches[i], &exact, shown, error);
        }
        recording_exact_free(&exact);
    }
    return bad;
}

/* ---- times --------------------------------------------------------------------------------------------------------- */

/* A cache that is filled with the recording again and again, and the queries of a new token. */
struct asked {
    aura_cache *cache;
    aura_attend_job job;
    aura_attend_options options;
    float *out;
    int failed;
};

/* Seconds of one time. The first failure stays in `failed`. */
static double asked_run(struct asked *a, uint32_t times)
{
    double start = now();
    for (uint32_t i = 0; i < times && !a->failed; i++)
        a->failed = aura_attend(a->cache, &a->job, 1, &a->options) != AURA_OK;
    return seconds_since(start) / times;
}

static int asked_open(struct asked *a, struct demo *d, const struct demo_cache *c, char *error)
{
    const struct recording *r = &d->recorded[d->layers / 2];
    struct recording_options options = options_of(c);
    aura_append_job append = AURA_APPEND_JOB_INIT;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    aura_attend_options attend = AURA_ATTEND_OPTIONS_INIT;
    uint32_t tokens = d->context[d->contexts - 1];
    a->job = job, a->options = attend;
    if (recording_cache(r, d->ctx, &options, &a->cache, error))
        return -1;
    if (!(a->out = malloc((size_t)r->q_heads * r->v_dim * sizeof *a->out)))
        return fail(error, "out of memory");
    int bad = aura_seq_create(a->cache, &append.seq) || aura_seq_reserve(a->cache, append.seq, tokens);
    append.k.data = r->k, append.v.data = r->v;
    for (uint32_t at = 0; at < tokens && !bad; at += append.tokens) {
        append.tokens = tokens - at < r->tokens ? tokens - at : r->tokens;
        bad = aura_append(a->cache, &append, 1);
    }
    a->job.seq = append.seq, a->job.queries = 1, a->job.out.data = a->out;
    a->job.q.data = r->q + (size_t)(r->queries - 1) * r->q_heads * r->k_dim;
    bad = bad || aura_attend_workspace(a->cache, &a->job, 1, 0, &a->options.workspace_bytes);
    if (!bad && !(a->options.workspace = aligned_alloc(64, (a->options.workspace_bytes + 127) / 64 * 64)))
        return fail(error, "out of memory");
    return bad || aura_attend(a->cache, &a->job, 1, &a->options) ? fail(error, aura_last_error()) : 0;
}

static void asked_close(struct asked *a)
{
    aura_cache_destroy(a->cache);
    free(a->out), free(a->options.workspace);
}

/* Times all caches in turns of a millisecond or more. The fastest turn counts: other work of the machine can only make a turn
 * longer. How much longer turns are on average is the unrest of the measurement. */
static void time_caches(struct demo *d, struct asked *asked, size_t context)
{
    double sum = 0, end = now() + (d->quick ? 0.3 : 5);
    uint32_t times[DEMO_CACHES], turns = 0;
    for (size_t i = 0; i < d->count; i++) {
        double once = asked_run(&asked[i], 2); /* the first run touches pages and wakes threads */
        times[i] = once < 1e-3 ? (uint32_t)(1e-3 / (once + 1e-9)) + 1 : 1;
        d->caches[i].seconds[context] = once;
    }
    for (; turns < 5 || now() < end; turns++)
        for (size_t i = 0; i < d->count; i++) {
            double seconds = asked_run(&asked[i], times[i]);
            d->caches[i].seconds[context] = fmin(d->caches[i].seconds[context], seconds);
            sum += i == 0 ? seconds : 0;
        }
    d->unrest = fmax(d->unrest, sum / turns / d->caches[0].seconds[context]);
}

/* The longest context first: caches are filled once and then shortened. */
static int measure_times(struct demo *d, char *error)
{
    struct asked asked[DEMO_CACHES];
    char text[80];
    int bad = 0;
    memset(asked, 0, sizeof asked);
    for (size_t i = 0; i < d->count && !bad; i++) {
        snprintf(text, sizeof text, "times: filling %s with %u tokens", d->caches[i].name, d->context[d->contexts - 1]);
        print_progress(text);
        bad = asked_open(&asked[i], d, &d->caches[i], error);
    }
    for (size_t context = d->contexts; context-- > 0 && !bad;) {
        snprintf(text, sizeof text, "times: %zu caches in turns at %u tokens", d->count, d->context[context]);
        print_progress(text);
        for (size_t i = 0; i < d->count && !bad; i++)
            bad = aura_truncate(asked[i].cache, asked[i].job.seq, d->context[context]) ? fail(error, aura_last_error()) : 0;
        if (!bad)
            time_caches(d, asked, context);
        for (size_t i = 0; i < d->count && !bad; i++)
            bad = asked[i].failed ? fail(error, aura_last_error()) : 0;
    }
    for (size_t i = 0; i < d->count; i++)
        asked_close(&asked[i]);
    return bad;
}

double demo_faster(const struct demo *d, const struct demo_cache *c, size_t context)
{
    return d->caches[0].seconds[context] / c->seconds[context];
}

int demo_was_busy(const struct demo *d)
{
    return d->unrest > 1.5;
}

int demo_measure(struct demo *d, char *error)
{
    double start = now();
    int bad = measure_errors(d, error) || measure_times(d, error);
    print_progress(NULL);
    d->elapsed = now() - start;
    return bad;
}
