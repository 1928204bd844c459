/* Quality of caches: compares forward passes with exact ones. */
#include "quality.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/base/threads.h"
#include "../../src/file/crc32c.h"
#include "codec.h"

const char quality_default_caches[] = "k8v8,k6v6,k5v5,k5v4,k4v4,k4v3,k3v3,k2v2,f16,q8_0,q5_1,q5_0,q4_1,q4_0,iq4_nl";

enum { BLOCK = 32 }; /* rows of exact logits that are in memory at once */

/* What a measurement holds while it runs. */
struct run {
    const struct quality_options *o;
    const struct llm_shape *shape;
    uint32_t rows;              /* positions of a chunk that are compared */
    aura_ctx *ctx;              /* for its threads */
    struct base *base;
    float *logits;              /* [rows + 1][vocab]: the last row predicts a token behind the chunk */
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
        cache->format = (aura_format){AURA_KIND_F32, AURA_KIND_F32}, cache->bits = cache->peer->bits;
        return 0;
    }
    if (!aura_format_parse(name, &cache->format) && !aura_format_name(cache->format, cache->name))
        return 0;
    snprintf(error, LLM_ERROR_BYTES, "no cache is called %.40s: give formats like k4v4 or kf16v3, presets (max, safe, quality, "
             "balanced, small), or llama.cpp's f16, q8_0, q5_1, q5_0, q4_1, q4_0, iq4_nl", *name ? name : "\"\"");
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

uint32_t quality_rows(uint32_t ctx)
{
    return ctx - 1 - ctx / 2;
}

uint32_t quality_open_tokens(uint32_t ctx, uint32_t rollback)
{
    return ctx < rollback ? ctx : ctx - (ctx - rollback) / 32 * 32; /* a tile closes when `rollback` tokens have followed it */
}

uint32_t quality_chunks(const struct quality_options *o)
{
    size_t there = o->count / o->ctx;
    return (uint32_t)(o->chunks && o->chunks < there ? o->chunks : there < UINT32_MAX ? there : UINT32_MAX);
}

/* ---- one pass ------------------------------------------------------------------------------------------------------- */

struct peer_hook {
    const struct peer *peer;
    const struct llm_shape *shape;
    struct quality_cache *cache; /* of a codec */
    double bits;                 /* of the layers so far, a sum */
    int failed;
    char *error;
};

static void store_with_codec(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    struct peer_hook *hook = arg;
    const struct llm_shape *s = hook->shape;
    double bits = 0;
    (void)first, (void)q;
    if (hook->failed)
        return;
    hook->failed = codec_run(hook->cache->codec, layer, tokens, s->kv_heads, s->head_dim, s->head_dim, k, v, &bits, hook->error);
    hook->bits += bits / s->layers;
}

static void store_as_peer(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    const struct peer_hook *hook = arg;
    size_t rows = (size_t)tokens * hook->shape->kv_heads;
    (void)layer, (void)first, (void)q;
    peer_store(hook->peer, PEER_KEYS, hook->shape->head_dim, rows, k);
    peer_store(hook->peer, PEER_VALUES, hook->shape->head_dim, rows, v);
}

/* The logits of the last r->rows + 1 tokens of a chunk, which the state reads in parts. */
static int read_parts(struct run *r, struct llm_state *state, const uint32_t *tokens, size_t part)
{
    const size_t ctx = r->o->ctx, wanted = ctx - (r->rows + 1);
    for (size_t at = 0, end; at < ctx; at = end) {
        end = ctx - at < part ? ctx : at + part;
        const size_t from = at > wanted ? at : wanted;
        if (llm_forward(state, tokens + at, end - at, end > from ? end - from : 0, r->logits + (from - wanted) * r->shape->vocab,
                        r->error))
            return 1;
    }
    return 0;
}

/* The logits of a chunk with this cache; NULL: the exact one. */
static int forward(struct run *r, uint32_t chunk, struct quality_cache *cache)
{
    const struct quality_options *o = r->o;
    struct peer_hook hook = {cache ? cache->peer : NULL, r->shape, cache, 0, 0, r->error};
    struct llm_options options = {.threads = o->threads, .tokens = o->ctx, .seed = o->seed, .profile = o->profile,
                                  .format = cache ? cache->format : (aura_format){AURA_KIND_F32, AURA_KIND_F32},
                                  .flags = o->rollback ? 0 : AURA_NO_ROLLBACK, .rollback = o->rollback};
    options.flags |= o->learn && cache ? AURA_LEARN : 0;
    if (hook.peer)
        options.on_layer = store_as_peer, options.arg = &hook;
    else if (cache && cache->codec)
        options.on_layer = store_with_codec, options.arg = &hook;
    if (o->progress)
        o->progress(o->arg, &(struct quality_step){cache ? cache->name : "exact", chunk, quality_chunks(o), r->step, r->steps});
    r->step++;

    uint32_t *tokens = malloc(o->ctx * sizeof *tokens);
    struct llm_state *state = NULL;
    if (!tokens)
        return snprintf(r->error, LLM_ERROR_BYTES, "out of memory"), 1;
    memcpy(tokens, o->tokens + (size_t)chunk * o->ctx, o->ctx * sizeof *tokens);
    if (o->begin >= 0)
        tokens[0] = (uint32_t)o->begin;
    int bad = llm_state_create(r->o->llm, &options, &state, r->error) ||
              read_parts(r, state, tokens, o->learn && cache && !cache->peer && !cache->codec ? QUALITY_PART : o->ctx);
    bad = hook.failed || bad; /* the codec's text stays: what follows it is of its numbers */
    if (!bad && cache && !cache->peer)
        cache->bits = cache->codec ? hook.bits : llm_state_bits(state);
    llm_state_destroy(state);
    free(tokens);
    return bad;
}

/* ---- comparing ------------------------------------------------------------------------------------------------------ */

struct comparison {
    const struct run *r;
    const uint32_t *next; /* [rows]: the token that follows each */
    uint32_t first;       /* row of this block */
};

static void compare_row(void *work, size_t i)
{
    const struct comparison *c = work;
    size_t vocab = c->r->shape->vocab, row = c->first + i;
    c->r->row[row] = divergence_row(c->r->exact + i * vocab, c->r->logits + row * vocab, (uint32_t)vocab, c->next[row]);
}

static int compare(struct run *r, uint32_t chunk, const struct quality_cache *cache, struct divergence *sum)
{
    size_t vocab = r->shape->vocab;
    struct comparison c = {r, r->o->tokens + (size_t)chunk * r->o->ctx + r->o->ctx / 2 + 1, 0};
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
                            r->o->ctx / 2 + i), 1;
        if (r->o->on_row)
            r->o->on_row(r->o->row_arg, cache->name, chunk, r->o->ctx / 2 + i, &r->row[i]);
        if (divergence_add(sum, &r->row[i]))
            return snprintf(r->error, LLM_ERROR_BYTES, "out of memory"), 1;
    }
    return 0;
}

static int measure_chunk(struct run *r, uint32_t chunk, struct quality_cache *caches, size_t count)
{
    if (base_chunks(r->base) <= chunk && (forward(r, chunk, NULL) || base_add(r->base, r->logits, r->rows, r->error)))
        return 1;
    if (base_check(r->base, chunk, r->error))
        return 1;
    for (size_t i = 0; i < count; i++)
        if (forward(r, chunk, &caches[i]) || compare(r, chunk, &caches[i], &r->sums[i]))
            return 1;
    return 0;
}

/* ---- all of it ------------------------------------------------------------------------------------------------------ */

static int check_arguments(const struct quality_options *o, const struct quality_cache *caches, size_t count, char *error)
{
    uint32_t dim = llm_shape(o->llm)->head_dim;
    if (o->ctx < 4)
        return snprintf(error, LLM_ERROR_BYTES, "chunks of %u tokens are too short: at least 4", o->ctx), 1;
    if (!quality_chunks(o))
        return snprintf(error, LLM_ERROR_BYTES, "the text has %zu tokens, and a chunk takes %u: give a longer text or a smaller "
                        "--ctx", o->count, o->ctx), 1;
    for (size_t i = 0; i < count; i++)
        if (caches[i].peer && dim % PEER_BLOCK)
            return snprintf(error, LLM_ERROR_BYTES, "%s has blocks of 32 numbers, and heads of this model have %u", caches[i].name,
                            dim), 1;
    return 0;
}

static int open_base(struct run *r)
{
    const struct quality_options *o = r->o;
    uint32_t isas = aura_cpu_isas();
    struct base_key key = {.model_bytes = o->model_bytes, .model_crc = o->model_crc, .tokens = o->count, .ctx = o->ctx,
                           .vocab = r->shape->vocab, .rows = r->rows, .isas = isas, .rounded = (uint32_t)o->rounded};
    key.tokens_crc = aura_crc32c(0, o->tokens, o->count * sizeof *o->tokens, isas);
    snprintf(key.version, sizeof key.version, "%s", aura_version());
    return base_open(o->base, &key, &r->base, r->error);
}

static int start(struct run *r, size_t count)
{
    size_t vocab = r->shape->vocab;
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.threads = r->o->threads;
    r->logits = malloc(((size_t)r->rows + 1) * vocab * sizeof *r->logits);
    r->exact = malloc(BLOCK * vocab * sizeof *r->exact);
    r->row = malloc(r->rows * sizeof *r->row);
    r->sums = calloc(count ? count : 1, sizeof *r->sums);
    if (!r->logits || !r->exact || !r->row || !r->sums)
        return snprintf(r->error, LLM_ERROR_BYTES, "no memory for the logits of a chunk: a smaller --ctx needs less"), 1;
    if (aura_ctx_create(&options, &r->ctx))
        return snprintf(r->error, LLM_ERROR_BYTES, "%.200s", aura_last_error()), 1;
    return open_base(r);
}

int quality_measure(const struct quality_options *o, struct quality_cache *caches, size_t count, char error[LLM_ERROR_BYTES])
{
    if (check_arguments(o, caches, count, error))
        return 1;
    struct run r = {.o = o, .shape = llm_shape(o->llm), .rows = quality_rows(o->ctx), .error = error};
    uint32_t chunks = quality_chunks(o);
    int bad = start(&r, count);
    if (!bad) {
        uint32_t there = base_chunks(r.base) < chunks ? base_chunks(r.base) : chunks;
        r.steps = chunks * (uint32_t)count + chunks - there;
    }
    for (uint32_t chunk = 0; chunk < chunks && !bad; chunk++)
        bad = measure_chunk(&r, chunk, caches, count);
    for (size_t i = 0; i < count && !bad; i++)
        caches[i].result = divergence_sum_up(&r.sums[i]);
    for (size_t i = 0; r.sums && i < count; i++)
        divergence_free(&r.sums[i]);
    base_close(r.base);
    aura_ctx_destroy(r.ctx);
    free(r.logits), free(r.exact), free(r.row), free(r.sums);
    return bad;
}
