/* Caches of others while a model reads. */
#include "baseline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/base/dtype.h"
#include "codec.h"

enum { TILE = 32, PINNED = 4 };

uint64_t open_tokens(uint64_t tokens, uint32_t rollback)
{
    return tokens < rollback ? tokens : tokens - (tokens - rollback) / TILE * TILE;
}

static int has_tail(const struct baseline *b)
{
    return b->peer && (b->equal || b->peer->by_channel);
}

static size_t row_floats(const struct baseline *b)
{
    return (size_t)b->shape->kv_heads * b->shape->head_dim;
}

static void as_f16(float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = aura_f32_from_f16(aura_f16_from_f32(x[i]));
}

/* Tokens [first, first + n) of one side as the cache stores them; pinned ones stay. */
static void store(const struct baseline *b, enum peer_side side, uint64_t first, size_t n, float *x)
{
    const size_t row = row_floats(b), pinned = b->equal && first < PINNED ? (size_t)(PINNED - first) : 0;
    const size_t keep = pinned < n ? pinned : n;
    as_f16(x, keep * row);
    peer_store(b->peer, side, b->shape->kv_heads, b->shape->head_dim, n - keep, x + keep * row);
}

static float *open_rows(const struct baseline *b, uint32_t layer, int side)
{
    return b->open + ((size_t)layer * 2 + (size_t)side) * b->room * row_floats(b);
}

/* Of the tokens that come, those that will be closed are stored, and the others are kept as they came, too. */
static void take(struct baseline *b, uint32_t layer, enum peer_side side, uint64_t first, uint32_t tokens, float *x)
{
    const size_t row = row_floats(b), now = b->closed > first ? (size_t)(b->closed - first) : 0;
    store(b, side, first, now, x);
    memcpy(open_rows(b, layer, side) + (size_t)(first + now - b->closed) * row, x + now * row, (tokens - now) * row * sizeof *x);
    as_f16(x + now * row, (tokens - now) * row);
}

void baseline_on_layer(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    struct baseline *b = arg;
    const struct llm_shape *s = b->shape;
    double bits = 0;
    (void)q;
    if (b->codec && !b->failed) {
        b->failed = codec_run(b->codec, layer, tokens, s->kv_heads, s->head_dim, s->head_dim, k, v, &bits, b->error);
        b->bits += bits / s->layers;
    } else if (has_tail(b)) {
        take(b, layer, PEER_KEYS, first, tokens, k), take(b, layer, PEER_VALUES, first, tokens, v);
    } else if (b->peer) {
        store(b, PEER_KEYS, first, tokens, k), store(b, PEER_VALUES, first, tokens, v);
    }
}

/* Of one layer whose tokens from b->closed on are gone: n tokens come back as stored, and the others as they are. */
static int put_back(struct baseline *b, struct llm_state *state, uint32_t layer, size_t n, size_t all)
{
    const size_t row = row_floats(b), floats = all * row;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    float *x = malloc(2 * floats * sizeof *x);
    if (!x)
        return snprintf(b->error, LLM_ERROR_BYTES, "out of memory"), 1;
    for (int side = 0; side < 2; side++) {
        float *open = open_rows(b, layer, side);
        memcpy(x + side * floats, open, floats * sizeof *x);
        store(b, side ? PEER_VALUES : PEER_KEYS, b->closed, n, x + side * floats);
        as_f16(x + side * floats + n * row, floats - n * row);
        memmove(open, open + n * row, (all - n) * row * sizeof *open);
    }
    aura_model_cache *model = llm_state_cache(state, &job.seq);
    job.tokens = (uint32_t)all, job.k.data = x, job.v.data = x + floats;
    const int bad = aura_append(aura_model_cache_layer(model, layer), &job, 1);
    if (bad)
        snprintf(b->error, LLM_ERROR_BYTES, "%.200s", aura_last_error());
    free(x);
    return bad;
}

int baseline_before(struct baseline *b, struct llm_state *state, size_t n)
{
    const uint64_t len = llm_state_tokens(state), end = b->decode && n > LLM_FEW ? len : len + n;
    const uint64_t closed = end - open_tokens(end, b->rollback);
    int bad = 0;
    if (!has_tail(b))
        return 0;
    if (!b->open) {
        b->room = LLM_PART + 2 * TILE + b->rollback;
        b->open = calloc(2 * b->shape->layers * b->room * row_floats(b), sizeof *b->open);
        if (!b->open)
            return snprintf(b->error, LLM_ERROR_BYTES, "out of memory"), 1;
    }
    const uint64_t now = closed < len ? closed : len; /* of those that are there already */
    if (now > b->closed) {
        bad = llm_state_truncate(state, (size_t)b->closed, b->error);
        for (uint32_t layer = 0; layer < b->shape->layers && !bad; layer++)
            bad = put_back(b, state, layer, (size_t)(now - b->closed), (size_t)(len - b->closed));
    }
    b->closed = closed;
    return bad;
}

void baseline_end(struct baseline *b)
{
    free(b->open);
    b->open = NULL;
}
