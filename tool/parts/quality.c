/* Quality of caches: compares forward passes with exact ones. */
#include "quality.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/base/threads.h"
#include "../../src/file/crc32c.h"
#include "codec.h"
#include "profile_file.h"
#include "reader.h"

const char quality_default_caches[] = "k8v8,k6v6,k5v5,k5v4,k4v4,k4v3,k3v3,k2v2,f16,q8_0,q5_1,q5_0,q4_1,q4_0,iq4_nl";

enum { BLOCK = 32 }; /* rows of exact logits that are in memory at once */

/* What a measurement holds while it runs. */
struct run {
    const struct quality_options *o;
    const struct llm_shape *shape;
    uint32_t rows;              /* positions of a chunk that are compared */
    aura_ctx *ctx;              /* for its threads */
    struct base *base;
    float *logits;              /* [windows][rows of a window + 1][vocab] */
    float *exact;               /* [BLOCK][vocab] */
    struct divergence_row *row; /* [rows] */
    struct divergence *sums;    /* [caches] */
    uint32_t step, steps;
    char *error;
};

static int parse_one(const char *name, struct quality_cache *cache, char *error)
{
    cache->peer = peer_find(name);
    if (cache->peer) {
        snprintf(cache->name, sizeof cache->name, "%.15s", name);
        cache->format = (aura_format){AURA_KIND_F32, AURA_KIND_F32};
        return 0;
    }
    if (!strcmp(name, "profile"))
        return snprintf(cache->name, sizeof cache->name, "profile"), 0;
    if (!aura_format_parse(name, &cache->format) && !aura_format_name(cache->format, cache->name))
        return 0;
    snprintf(error, LLM_ERROR_BYTES, "no cache is called %.40s: give formats like k4v4 or kf16v3, presets (max, safe, quality, "
             "balanced, small), llama.cpp's f16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl, or kivi2, tq4, tq3, tq2; or profile",
             *name ? name : "\"\"");
    return 2;
}

int quality_parse(const char *list, struct quality_cache **caches, size_t *count, char error[LLM_ERROR_BYTES])
{
    size_t most = 1, n = 0;
    for (const char *at = list; *at; at++)
        most += *at == ',';
    struct quality_cache *parsed = calloc(most, sizeof *parsed);
    int bad = !parsed;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "out of memory");
    for (const char *at = list; !bad && n < most; n++) {
        char name[48];
        size_t length = strcspn(at, ",");
        snprintf(name, sizeof name, "%.*s", (int)(length < sizeof name ? length : sizeof name - 1), at);
        bad = parse_one(name, &parsed[n], error);
        at += length + (at[length] == ',');
    }
    if (bad) {
        free(parsed);
        return bad;
    }
    *caches = parsed, *count = n;
    return 0;
}

static int by_bits(const void *a, const void *b)
{
    const struct quality_cache *x = a, *y = b;
    return x->bits == y->bits ? strcmp(x->name, y->name) : (x->bits < y->bits) - (x->bits > y->bits);
}

void quality_sort(struct quality_cache *caches, size_t count)
{
    if (count)
        qsort(caches, count, sizeof *caches, by_bits);
}

int quality_add_codec(const char *command, struct quality_cache **caches, size_t *count)
{
    struct quality_cache *more = realloc(*caches, (*count + 1) * sizeof *more);
    if (!more)
        return -1;
    *caches = more;
    struct quality_cache *c = &more[(*count)++];
    memset(c, 0, sizeof *c);
    codec_name(command, c->name);
    c->codec = command, c->format = (aura_format){AURA_KIND_F32, AURA_KIND_F32};
    return 0;
}

uint32_t quality_depths(uint32_t ctx)
{
    uint32_t n = 0;
    while (n < QUALITY_DEPTHS && (uint32_t)QUALITY_FIRST_DEPTH << n <= ctx)
        n++;
    return n;
}

/* Positions are compared in windows: the last `window_rows` before the last token of each. A row more is computed, which predicts
 * the token behind it. */
static uint32_t windows(const struct quality_options *o)
{
    return o->by_depth ? quality_depths(o->ctx) : 1;
}

static uint32_t window_rows(const struct quality_options *o)
{
    return o->by_depth ? QUALITY_DEPTH_ROWS : o->ctx - 1 - (o->first ? o->first : o->ctx / 2);
}

static uint32_t window_end(const struct quality_options *o, uint32_t window)
{
    return o->by_depth ? (uint32_t)QUALITY_FIRST_DEPTH << window : o->ctx;
}

static uint32_t window_begin(const struct quality_options *o, uint32_t window)
{
    return window_end(o, window) - 1 - window_rows(o);
}

uint32_t quality_rows(const struct quality_options *o)
{
    return windows(o) * window_rows(o);
}

static uint32_t position_of(const struct quality_options *o, uint32_t row)
{
    return window_begin(o, row / window_rows(o)) + row % window_rows(o);
}

uint32_t quality_chunks(const struct quality_options *o)
{
    size_t there = o->count / o->ctx;
    return (uint32_t)(o->chunks && o->chunks < there ? o->chunks : there < UINT32_MAX ? there : UINT32_MAX);
}

/* ---- one pass ------------------------------------------------------------------------------------------------------- */

/* Where the call that begins at `at` ends: at a window's end, or before. */
static uint32_t call_end(const struct quality_options *o, const struct quality_cache *cache, uint32_t at)
{
    uint32_t window = 0;
    while (window_end(o, window) <= at)
        window++;
    if (o->decode && cache) /* an exact cache returns the same however it was filled */
        return at > window_begin(o, 0) ? at + 1 : window_begin(o, 0) + 1;
    return window_end(o, window);
}

/* The logits of all windows of a chunk. */
static int read_chunk(struct run *r, struct reader *reader, const uint32_t *tokens, const struct quality_cache *cache)
{
    const struct quality_options *o = r->o;
    const uint32_t ctx = window_end(o, windows(o) - 1);
    for (uint32_t at = 0, end, window = 0; at < ctx; at = end) {
        end = call_end(o, cache, at);
        window += window_end(o, window) <= at;
        const uint32_t begin = window_begin(o, window), from = at > begin ? at : begin;
        float *logits = r->logits + ((size_t)window * (window_rows(o) + 1) + from - begin) * r->shape->vocab;
        if (reader_read(reader, tokens + at, end - at, end > from ? end - from : 0, logits))
            return 1;
    }
    return 0;
}

/* The logits of a chunk with this cache; NULL: the exact one. */
static int forward(struct run *r, uint32_t chunk, struct quality_cache *cache)
{
    const struct quality_options *o = r->o;
    struct reader reader;
    if (o->progress)
        o->progress(o->arg, &(struct quality_step){cache ? cache->name : "exact", chunk, quality_chunks(o), r->step, r->steps});
    r->step++;
    uint32_t *tokens = malloc(o->ctx * sizeof *tokens);
    if (!tokens)
        return snprintf(r->error, LLM_ERROR_BYTES, "out of memory"), 1;
    memcpy(tokens, o->tokens + (size_t)chunk * o->ctx, o->ctx * sizeof *tokens);
    if (o->begin >= 0)
        tokens[0] = (uint32_t)o->begin;
    const int bad = reader_open(&reader, o, cache, o->ctx, r->error) || read_chunk(r, &reader, tokens, cache);
    if (!bad && cache)
        cache->bits = reader_bits(&reader);
    reader_close(&reader);
    free(tokens);
    return bad;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

struct comparison {
    const struct run *r;
    const uint32_t *tokens; /* of the chunk */
    uint32_t first;         /* row of this block */
};

static void compare_row(void *work, size_t i)
{
    const struct comparison *c = work;
    const struct quality_options *o = c->r->o;
    const uint32_t row = c->first + (uint32_t)i;
    const size_t vocab = c->r->shape->vocab, at = row + row / window_rows(o); /* behind each window is a row that nobody compares */
    c->r->row[row] = divergence_row(c->r->exact + i * vocab, c->r->logits + at * vocab, (uint32_t)vocab,
                                    c->tokens[position_of(o, row) + 1]);
}

static int compare(struct run *r, uint32_t chunk, const struct quality_cache *cache, struct divergence *sum)
{
    size_t vocab = r->shape->vocab;
    struct comparison c = {r, r->o->tokens + (size_t)chunk * r->o->ctx, 0};
    for (; c.first < r->rows; c.first += BLOCK) {
        uint32_t n = r->rows - c.first < BLOCK ? r->rows - c.first : BLOCK;
        for (uint32_t i = 0; i < n; i++)
            if (base_read(r->base, chunk, c.first + i, r->exact + i * vocab, r->error))
                return 1;
        aura_run(r->ctx, n, compare_row, &c);
    }
    for (uint32_t i = 0; i < r->rows; i++) {
        if (!r->row[i].finite)
            return snprintf(r->error, LLM_ERROR_BYTES, "%s: logits of chunk %u, position %u are not finite", cache->name, chunk + 1,
                            position_of(r->o, i)), 1;
        if (r->o->on_row)
            r->o->on_row(r->o->row_arg, cache->name, chunk, position_of(r->o, i), &r->row[i]);
        if (divergence_add(sum, &r->row[i]))
            return snprintf(r->error, LLM_ERROR_BYTES, "out of memory"), 1;
    }
    return 0;
}

/* The exact logits of a chunk, unless the file has them. */
static int measure_exactly(struct run *r, uint32_t chunk)
{
    const uint32_t rows = window_rows(r->o);
    if (base_chunks(r->base) > chunk)
        return 0;
    int bad = forward(r, chunk, NULL);
    for (uint32_t w = 0; w < windows(r->o) && !bad; w++)
        bad = base_add(r->base, r->logits + (size_t)w * (rows + 1) * r->shape->vocab, rows, r->error);
    return bad;
}

static int measure_chunk(struct run *r, uint32_t chunk, struct quality_cache *caches, size_t count)
{
    if (measure_exactly(r, chunk) || base_check(r->base, chunk, r->error))
        return 1;
    for (size_t i = 0; i < count; i++)
        if (forward(r, chunk, &caches[i]) || compare(r, chunk, &caches[i], &r->sums[i]))
            return 1;
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

/* The cache that the others are compared with; NULL: there is none of that name. */
static const struct quality_cache *cache_of(const char *name, const struct quality_cache *caches, size_t count)
{
    for (size_t i = 0; name && i < count; i++)
        if (!strcmp(caches[i].name, name))
            return &caches[i];
    return NULL;
}

static int check_arguments(const struct quality_options *o, const struct quality_cache *caches, size_t count, char *error)
{
    uint32_t dim = llm_shape(o->llm)->head_dim;
    if (o->ctx < 4)
        return snprintf(error, LLM_ERROR_BYTES, "chunks of %u tokens are too short: at least 4", o->ctx), 1;
    if (o->by_depth && (o->decode || o->ctx < QUALITY_FIRST_DEPTH))
        return snprintf(error, LLM_ERROR_BYTES, "%s", o->decode ? "divergence by depth is not measured token by token" :
                        "depths begin at 512 tokens: give --ctx 512 or more"), 1;
    if (o->against && !cache_of(o->against, caches, count))
        return snprintf(error, LLM_ERROR_BYTES, "--against %.40s is not among the caches", o->against), 1;
    if (!quality_chunks(o))
        return snprintf(error, LLM_ERROR_BYTES, "the text has %zu tokens, and a chunk takes %u: give a longer text or a smaller "
                        "--ctx", o->count, o->ctx), 1;
    for (size_t i = 0; i < count; i++)
        if (!caches[i].format.k && !caches[i].formats && !profile_has_formats(o->profile))
            return snprintf(error, LLM_ERROR_BYTES, "the cache \"profile\" needs --profile and formats in it: "
                            "`aura calibrate --bits N` finds them"), 1;
        else if (caches[i].peer && dim % PEER_BLOCK)
            return snprintf(error, LLM_ERROR_BYTES, "%s has blocks of 32 numbers, and heads of this model have %u", caches[i].name,
                            dim), 1;
        else if (caches[i].peer && caches[i].peer->by_channel && o->decode && !o->rollback)
            return snprintf(error, LLM_ERROR_BYTES, "%s stores 32 tokens together: token by token it needs --rollback 1 or more",
                            caches[i].name), 1;
    return 0;
}

static int open_base(struct run *r)
{
    const struct quality_options *o = r->o;
    uint32_t isas = aura_cpu_isas();
    struct base_key key = {.model_bytes = o->model_bytes, .model_crc = o->model_crc, .tokens = o->count, .ctx = o->ctx,
                           .vocab = r->shape->vocab, .rows = r->rows, .isas = isas,
                           .rounded = (uint32_t)o->rounded | (uint32_t)o->by_depth << 1 | o->first << 2};
    key.tokens_crc = aura_crc32c(0, o->tokens, o->count * sizeof *o->tokens, isas);
    snprintf(key.version, sizeof key.version, "%s", aura_version());
    return base_open(o->base, &key, &r->base, r->error);
}

static int start(struct run *r, size_t count)
{
    size_t vocab = r->shape->vocab;
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.threads = r->o->threads;
    r->logits = malloc(((size_t)r->rows + windows(r->o)) * vocab * sizeof *r->logits);
    r->exact = malloc(BLOCK * vocab * sizeof *r->exact);
    r->row = malloc(r->rows * sizeof *r->row);
    r->sums = calloc(count ? count : 1, sizeof *r->sums);
    if (!r->logits || !r->exact || !r->row || !r->sums)
        return snprintf(r->error, LLM_ERROR_BYTES, "no memory for the logits of a chunk: a smaller --ctx needs less"), 1;
    if (aura_ctx_create(&options, &r->ctx))
        return snprintf(r->error, LLM_ERROR_BYTES, "%.200s", aura_last_error()), 1;
    return open_base(r);
}

/* The mean divergence before each depth. Returns 0 when there is no memory. */
static int sum_up_depths(const struct run *r, const struct divergence *sum, struct quality_cache *cache)
{
    double *kld = malloc(sum->positions * sizeof *kld);
    for (uint32_t w = 0; kld && w < windows(r->o); w++) {
        size_t n = 0;
        for (size_t i = 0; i < sum->positions; i++)
            if (i % r->rows / window_rows(r->o) == w)
                kld[n++] = sum->kld[i];
        cache->depth[w] = estimate_mean(kld, n);
    }
    free(kld);
    return kld != NULL;
}

static int sum_up(const struct run *r, struct quality_cache *caches, size_t count)
{
    const struct quality_cache *other = cache_of(r->o->against, caches, count);
    for (size_t i = 0; i < count; i++) {
        if (other)
            caches[i].ratio = estimate_ratio(r->sums[i].kld, r->sums[other - caches].kld, r->sums[i].positions);
        if (r->o->by_depth && !sum_up_depths(r, &r->sums[i], &caches[i]))
            return snprintf(r->error, LLM_ERROR_BYTES, "out of memory"), 1;
    }
    for (size_t i = 0; i < count; i++)
        caches[i].result = divergence_sum_up(&r->sums[i]); /* this sorts them */
    return 0;
}

int quality_measure(const struct quality_options *o, struct quality_cache *caches, size_t count, char error[LLM_ERROR_BYTES])
{
    if (check_arguments(o, caches, count, error))
        return 1;
    struct run r = {.o = o, .shape = llm_shape(o->llm), .rows = quality_rows(o), .error = error};
    uint32_t chunks = quality_chunks(o);
    int bad = start(&r, count);
    if (!bad) {
        uint32_t there = base_chunks(r.base) < chunks ? base_chunks(r.base) : chunks;
        r.steps = chunks * (uint32_t)count + chunks - there;
    }
    for (uint32_t chunk = 0; chunk < chunks && !bad; chunk++)
        bad = measure_chunk(&r, chunk, caches, count);
    bad = bad || sum_up(&r, caches, count);
    for (size_t i = 0; r.sums && i < count; i++)
        divergence_free(&r.sums[i]);
    base_close(r.base);
    aura_ctx_destroy(r.ctx);
    free(r.logits), free(r.exact), free(r.row), free(r.sums);
    return bad;
}
