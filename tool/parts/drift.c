/* How long a cache stays on the path of the exact one. */
#include "drift.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "reader.h"

struct drift {
    const struct quality_cache *caches;
    struct drift_result *results;
    uint32_t prompt, steps;
    double *kld; /* [caches][DRIFT_PARTS][texts * steps / DRIFT_PARTS] */
    size_t part; /* numbers of a part */
};

/* Text i of the exact model: its prompt, and what it writes. tokens: [prompt + steps]. */
static int write_text(const struct quality_options *o, uint32_t prompt, uint32_t steps, uint32_t text, uint32_t *tokens,
                      char *error)
{
    const uint32_t vocab = llm_shape(o->llm)->vocab;
    struct reader r;
    float *logits = malloc(vocab * sizeof *logits);
    if (!logits)
        return snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1;
    memcpy(tokens, o->tokens + (size_t)text * prompt, prompt * sizeof *tokens);
    if (o->begin >= 0)
        tokens[0] = (uint32_t)o->begin;
    int bad = reader_open(&r, o, NULL, prompt + steps, error);
    for (uint32_t at = 0, end = prompt; at < prompt + steps - 1 && !bad; at = end, end++) {
        bad = reader_read(&r, tokens + at, end - at, 1, logits);
        const int64_t top = bad ? 0 : top_of(logits, vocab);
        if (top < 0)
            bad = 1, snprintf(error, LLM_ERROR_BYTES, "logits of text %u, token %u are not finite", text + 1, end);
        else
            tokens[end] = (uint32_t)top;
    }
    reader_close(&r);
    free(logits);
    return bad;
}

static void look(void *arg, const char *name, uint32_t chunk, uint32_t position, const struct divergence_row *row)
{
    const struct drift *d = arg;
    size_t i = 0;
    while (d->caches[i].name != name)
        i++;
    struct drift_result *result = &d->results[i];
    const uint32_t step = position + 1 - d->prompt, length = d->steps / DRIFT_PARTS, part = step / length;
    d->kld[(i * DRIFT_PARTS + part) * d->part + (size_t)chunk * length + step % length] = row->kld;
    if (!row->same_top && !result->first[chunk])
        result->first[chunk] = step + 1;
}

static int follow(const struct quality_options *given, struct drift *d, uint32_t texts, const uint32_t *tokens,
                  struct quality_cache *caches, size_t count, char *error)
{
    struct quality_options o = *given;
    o.ctx = d->prompt + d->steps, o.first = d->prompt - 1, o.decode = 1, o.begin = -1, o.base = NULL;
    o.tokens = tokens, o.count = (size_t)texts * o.ctx, o.chunks = texts, o.on_row = look, o.row_arg = d;
    if (quality_measure(&o, caches, count, error))
        return 1;
    for (size_t i = 0; i < count; i++)
        for (uint32_t part = 0; part < DRIFT_PARTS; part++)
            d->results[i].part[part] = estimate_mean(d->kld + (i * DRIFT_PARTS + part) * d->part, d->part);
    return 0;
}

int drift_measure(const struct quality_options *o, uint32_t prompt, uint32_t steps, struct quality_cache *caches, size_t count,
                  struct drift_result *results, char error[LLM_ERROR_BYTES])
{
    const size_t there = o->count / prompt, length = prompt + steps;
    const uint32_t asked = o->chunks && o->chunks < DRIFT_TEXTS ? o->chunks : DRIFT_TEXTS;
    const uint32_t texts = there < asked ? (uint32_t)there : asked;
    struct drift d = {caches, results, prompt, steps, NULL, (size_t)texts * (steps / DRIFT_PARTS)};
    if (!texts)
        return snprintf(error, LLM_ERROR_BYTES, "the text has %zu tokens, and a prompt takes %u", o->count, prompt), 1;
    uint32_t *tokens = calloc(texts * length, sizeof *tokens);
    d.kld = calloc(count * DRIFT_PARTS * d.part, sizeof *d.kld);
    memset(results, 0, count * sizeof *results);
    int bad = !tokens || !d.kld;
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "out of memory");
    for (uint32_t i = 0; i < texts && !bad; i++) {
        if (o->progress)
            o->progress(o->arg, &(struct quality_step){"what the exact one writes", i, texts, i, texts * (uint32_t)(count + 2)});
        bad = write_text(o, prompt, steps, i, tokens + i * length, error);
    }
    for (size_t i = 0; i < count; i++)
        results[i].texts = texts;
    bad = bad || follow(o, &d, texts, tokens, caches, count, error);
    free(tokens), free(d.kld);
    return bad;
}
