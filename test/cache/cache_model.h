/* What a cache must hold: a slow model of aura_cache in plain C, built only on the definitions of the stages in src/ref.c. It
 * stores every token twice: as f16 numbers from when it was appended, and as the numbers that its codes stand for. Two lengths
 * say which of both counts. Nothing is packed: the model does not know the layout of a tile. */
#ifndef AURA_TEST_CACHE_MODEL_H
#define AURA_TEST_CACHE_MODEL_H

#include "../../src/base/exact.h"

#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_file.h"
#include "../../src/ref.h"
#include "../../src/rotation.h"
#include "../../src/codec.h"
#include "../../src/metric.h"
#include "../oracle.h"

enum { PAGE = 256, TILE = 32, PINNED = 4, ROLLBACK = 16 };

/* What tests combine: every kind, the packed ones first, and every dim. */
#define ONE_MORE(...) +1
#define AS_KIND(shape, kind, ...) (aura_kind)(kind),
static const aura_kind kinds[] = {AURA_KINDS(AS_KIND)};
static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
enum { N_KINDS = sizeof kinds / sizeof *kinds, N_BITS = 0 AURA_CODES(ONE_MORE), N_DIMS = sizeof dims / sizeof *dims };

/* Sanitizers and emulators cost 4 to 30 times: their jobs set AURA_QUICK, and every test that takes long has a
 * shorter form for it, in which each kind still occurs on both sides. */
static inline int small_run(void)
{
    static int small = -1;
    if (small < 0)
        small = getenv("AURA_QUICK") != NULL;
    return small;
}

/* ---- how far attention may be from double ---------------------------------------------------------------------------
 *
 * The error of a row is |out - want| against the sum over tokens of weight * |value|. Planes 0 means float arithmetic:
 * there, sums in f32 and exp2 are good to 1e-6 of each weight.
 *
 *   value   what rounding the weights to bytes costs. One plane: half of 1/255 of the largest weight of a tile, 32 times
 *           with signs that chance decides: a percent at most on random data. Two: 1/256 of that.
 *   worst   the same on tiles made for it, where all 31 others are rounded the same way.
 *   flat    the same for a hundred thousand tokens of nearly equal weights, where it averages out.
 *   typical value and logit together, on random data of 255 tokens and more.
 *   logit   what rounding the query costs a logit, relative to |scale| max|q| |k|. One plane: a coordinate is off by up to
 *           1/254 of the largest, as if at random: 1/127/sqrt(12) = 2.3e-3, of which six standard deviations are allowed.
 *           Two: 1/256 of that. A weight is off by as much as its logit is.
 *   half_step  the same for queries and keys made for it, where all coordinates are rounded the same way: half a step, which the
 *           sum of the magnitudes of a key multiplies; that is at most sqrt(dim) |k|.
 *   lse     f32 holds a logit or a sum to this, relative.
 *   nothing  a weight, of the largest, whose product with a scale f32 no longer holds to all its bits.
 */
static const struct {
    double value[3], worst[3], flat[3], typical[3], logit[3], half_step[3], lse, nothing;
} tolerance = {{1e-5, 1e-2, 1e-4},   {1e-5, 1.2e-1, 1e-3}, {1e-5, 2e-3, 1e-4},       {2e-5, 1.5e-2, 1e-3},
               {4e-6, 1.4e-2, 6e-5}, {0, 1 / 253., 1 / 64500.}, 2e-6, 0x1p-100};

/* The planes a side is computed with: 0 for plain numbers. */
static inline uint32_t planes_of(aura_kind kind, uint32_t planes)
{
    if (!aura_is_packed((uint32_t)kind))
        return 0;
    return planes ? planes : kind == AURA_KIND_B6 || kind == AURA_KIND_B8 ? 2 : 1;
}

/* ---- one side ------------------------------------------------------------------------------------------------------- */

struct model_side {
    aura_kind kind;
    uint32_t dim, heads;
    size_t capacity, pages;
    float *balance, *reciprocal; /* [heads][dim], or NULL: none */
    struct aura_metric *metric;  /* [heads], or NULL: none */
    float *ready;                /* what they point to */
    int relative;                /* keys are encoded relative to their page's reference */
    struct aura_rotation_plan rotate, back;
    struct aura_codec_plan codec, reference_codec;
    float *half;      /* [heads][capacity][dim] rotated, as f16 holds it; for plain numbers what is stored */
    float *coded;     /* [heads][capacity][dim] what the codes of a closed token stand for, still rotated */
    uint8_t *known;   /* [heads][capacity] 1: coded is there; otherwise whoever asks first computes it */
    float *reference; /* [heads][pages][dim] */
};

static inline int is_plain(aura_kind kind)
{
    return kind == AURA_KIND_F32 || kind == AURA_KIND_F16 || kind == AURA_KIND_BF16;
}

static inline aura_dtype plain_dtype(aura_kind kind)
{
    return kind == AURA_KIND_F16 ? AURA_F16 : kind == AURA_KIND_BF16 ? AURA_BF16 : AURA_F32;
}

/* Memory for sides with as many heads of that dim. */
static inline void model_side_room(struct model_side *s, uint32_t heads, uint32_t dim, size_t capacity)
{
    s->capacity = capacity, s->pages = capacity / PAGE + 1;
    s->half = malloc(heads * capacity * dim * sizeof(float) + 1);
    s->coded = malloc(heads * capacity * dim * sizeof(float) + 1);
    s->known = malloc(heads * capacity + 1);
    s->reference = malloc(heads * s->pages * dim * sizeof(float));
}

static inline void model_side_metric(struct model_side *s, const float *triangles)
{
    const size_t floats = aura_metric_floats(s->dim);
    if (!triangles)
        return;
    double *scratch = malloc(aura_metric_scratch(s->dim) * sizeof *scratch);
    s->metric = malloc(s->heads * sizeof *s->metric), s->ready = malloc(s->heads * floats * sizeof(float));
    for (uint32_t h = 0; h < s->heads; h++)
        if (!aura_metric_init(&s->metric[h], s->ready + h * floats, scratch, triangles + h * aura_triangle(s->dim), s->dim,
                              s->reciprocal ? s->reciprocal + (size_t)h * s->dim : NULL, &s->rotate))
            abort(); /* tests of bad metrics have no model */
    free(scratch);
}

/* All but the memory. */
static inline void model_side_init(struct model_side *s, const aura_config *c, int keys)
{
    uint8_t signs[AURA_MAX_DIM / 8];
    aura_codebook book;
    s->kind = keys ? c->format.k : c->format.v;
    s->kind = s->kind ? s->kind : AURA_KIND_B4;
    s->dim = keys || !c->v_dim ? c->k_dim : c->v_dim;
    s->heads = c->kv_heads;
    if (is_plain(s->kind))
        return;
    const float *balance = keys ? c->balance : c->v_balance;
    if (balance) {
        s->balance = malloc(s->heads * s->dim * sizeof(float));
        s->reciprocal = malloc(s->heads * s->dim * sizeof(float));
        for (size_t i = 0; i < (size_t)s->heads * s->dim; i++)
            s->balance[i] = balance[i], s->reciprocal[i] = 1 / balance[i];
    }
    s->relative = keys && !(c->flags & AURA_NO_REFERENCE);
    aura_signs(c->seed, keys ? 0 : 1, s->dim, signs);
    aura_rotation_plan_init(&s->rotate, s->dim, signs, NULL, 0);
    aura_rotation_plan_init(&s->back, s->dim, signs, NULL, 1);
    model_side_metric(s, keys ? c->k_metric : c->v_metric);
    const int few = s->kind <= AURA_KIND_B3 || s->kind == AURA_KIND_T2 || s->kind == AURA_KIND_T3;
    aura_kind_plan_init(&s->codec, (uint32_t)s->kind, s->dim, keys || !few ? AURA_SCALE_MATCHED : AURA_SCALE_UNBIASED,
                        !(c->flags & AURA_NO_SEARCH));
    aura_codebook_get(AURA_TABLE_GRID, 8, &book);
    aura_codec_plan_init(&s->reference_codec, &book, s->dim, AURA_SCALE_MATCHED, !(c->flags & AURA_NO_SEARCH));
}

static inline void model_side_free_balance(struct model_side *s)
{
    free(s->balance), free(s->reciprocal), free(s->metric), free(s->ready);
    s->balance = s->reciprocal = s->ready = NULL;
    s->metric = NULL;
}

static inline void model_side_free(struct model_side *s)
{
    free(s->half), free(s->coded), free(s->known), free(s->reference);
    model_side_free_balance(s);
}

static inline float *model_half(const struct model_side *s, uint32_t head, uint64_t t)
{
    return s->half + ((size_t)head * s->capacity + t) * s->dim;
}

static inline float *model_coded(const struct model_side *s, uint32_t head, uint64_t t)
{
    return s->coded + ((size_t)head * s->capacity + t) * s->dim;
}

static inline uint8_t *model_known(const struct model_side *s, uint32_t head, uint64_t t)
{
    return s->known + (size_t)head * s->capacity + t;
}

static inline float *model_reference(const struct model_side *s, uint32_t head, uint64_t page)
{
    return s->reference + ((size_t)head * s->pages + page) * s->dim;
}

/* x[heads][dim], a token as it is appended. */
static inline void model_side_put(struct model_side *s, uint64_t t, const float *x)
{
    for (uint32_t h = 0; h < s->heads; h++, x += s->dim) {
        float *y = model_half(s, h, t);
        if (!is_plain(s->kind)) {
            s->rotate.balance = s->balance ? s->balance + (size_t)h * s->dim : NULL;
            aura_rotate_ref(y, x, &s->rotate, 1);
        }
        for (uint32_t d = 0; d < s->dim; d++)
            y[d] = is_plain(s->kind) ? oracle_round(x[d], plain_dtype(s->kind)) : oracle_round(y[d], AURA_F16);
    }
}

/* What the codes of a vector stand for, with the scale rounded to f16. metric NULL: without feedback. */
static inline void model_quantise(float *out, const float *y, const struct aura_codec_plan *codec, const struct aura_metric *metric)
{
    uint8_t code[AURA_MAX_DIM];
    float scale;
    aura_encode_ref(code, &scale, y, codec, 1);
    if (metric)
        aura_feedback_ref(code, &scale, y, codec, metric, 1);
    scale = oracle_round(scale, AURA_F16);
    aura_ref_levels(out, code, codec);
    for (uint32_t d = 0; d < codec->dim; d++)
        out[d] = out[d] * scale;
}

static inline void model_form_reference(struct model_side *s, uint32_t head, uint64_t page, uint64_t pinned)
{
    uint64_t first = page * PAGE > pinned ? page * PAGE : pinned, end = page * PAGE + TILE;
    float mean[AURA_MAX_DIM] = {0};
    for (uint64_t t = first; t < end; t++)
        for (uint32_t d = 0; d < s->dim; d++)
            mean[d] = mean[d] + model_half(s, head, t)[d];
    for (uint32_t d = 0; d < s->dim; d++)
        mean[d] = mean[d] / (float)(end - first);
    model_quantise(model_reference(s, head, page), mean, &s->reference_codec, NULL);
}

/* What the codes of a closed token stand for. Its f16 numbers and its page's reference stay what they were when it closed. */
static inline const float *model_code_of(const struct model_side *s, uint32_t head, uint64_t t)
{
    float y[AURA_MAX_DIM], *out = model_coded(s, head, t);
    const float *half = model_half(s, head, t), *r = model_reference(s, head, t / PAGE);
    if (*model_known(s, head, t))
        return out;
    for (uint32_t d = 0; d < s->dim; d++)
        y[d] = s->relative ? half[d] - r[d] : half[d];
    model_quantise(out, y, &s->codec, s->metric ? &s->metric[head] : NULL);
    for (uint32_t d = 0; d < s->dim && s->relative; d++)
        out[d] = out[d] + r[d];
    *model_known(s, head, t) = 1;
    return out;
}

/* Encodes tokens [first, end) of one tile; the tokens before `first` have codes already, or are pinned. The page has a reference
 * exactly when it has a closed token that is not pinned. */
static inline void model_side_close(struct model_side *s, uint64_t first, uint64_t end, uint64_t pinned)
{
    uint64_t page = first / PAGE, start = page * PAGE > pinned ? page * PAGE : pinned;
    for (uint32_t h = 0; h < s->heads && !is_plain(s->kind); h++) {
        if (s->relative && first <= start)
            model_form_reference(s, h, page, pinned);
        memset(model_known(s, h, first), 0, (size_t)(end - first));
    }
}

/* ---- one sequence ---------------------------------------------------------------------------------------------------- */

struct model {
    uint64_t len, closed;      /* pinned tokens and [closed, len) count as f16, the rest as codes */
    uint64_t pinned, rollback;
    int open;                  /* 0: a token is encoded at once */
    struct model_side k, v;
};

/* An empty model of another cache in the memory of this one, which must be large enough. */
static inline void model_init(struct model *m, const aura_config *c)
{
    m->len = m->closed = 0;
    m->pinned = c->flags & AURA_NO_PINNED ? 0 : PINNED;
    m->rollback = c->flags & (AURA_NO_ROLLBACK | AURA_NO_OPEN) ? 0 : c->rollback ? c->rollback : ROLLBACK;
    m->open = !(c->flags & AURA_NO_OPEN);
    model_side_free_balance(&m->k), model_side_free_balance(&m->v);
    model_side_init(&m->k, c, 1);
    model_side_init(&m->v, c, 0);
}

static inline struct model *model_create(const aura_config *c, size_t capacity)
{
    struct model *m = calloc(1, sizeof *m);
    model_side_room(&m->k, c->kv_heads, c->k_dim, capacity);
    model_side_room(&m->v, c->kv_heads, c->v_dim ? c->v_dim : c->k_dim, capacity);
    model_init(m, c);
    return m;
}

static inline void model_destroy(struct model *m)
{
    if (!m)
        return;
    model_side_free(&m->k), model_side_free(&m->v);
    free(m);
}

/* How many of `len` tokens are closed in a sequence that was never truncated. */
static inline uint64_t model_closed_at(const struct model *m, uint64_t len)
{
    if (!m->open)
        return len;
    return len < m->rollback ? 0 : (len - m->rollback) / TILE * TILE;
}

/* Counts n more tokens, which model_side_put() has put behind the others. */
static inline void model_grow(struct model *m, uint64_t n)
{
    m->len += n;
    for (uint64_t end = model_closed_at(m, m->len), next; m->closed < end; m->closed = next) {
        next = (m->closed / TILE + 1) * TILE;
        next = next < end ? next : end;
        model_side_close(&m->k, m->closed, next, m->pinned);
        model_side_close(&m->v, m->closed, next, m->pinned);
    }
}

/* k[n][heads][k_dim], v[n][heads][v_dim]. */
static inline void model_append(struct model *m, const float *k, const float *v, uint64_t n)
{
    for (uint64_t i = 0; i < n; i++) {
        model_side_put(&m->k, m->len + i, k + i * m->k.heads * m->k.dim);
        model_side_put(&m->v, m->len + i, v + i * m->v.heads * m->v.dim);
    }
    model_grow(m, n);
}

static inline void model_decode(float *out, const struct model *m, struct model_side *s, uint64_t first, uint64_t n);

/* Encodes the keys of tokens [first, end) again, of those that are codes in a page. The page gets a new reference if all its codes
 * are among them. */
static inline void model_encode_again(struct model *m, uint64_t page, uint64_t first, uint64_t end)
{
    struct model_side *s = &m->k;
    uint64_t start = page * PAGE > m->pinned ? page * PAGE : m->pinned;
    uint64_t stop = (page + 1) * PAGE < m->closed ? (page + 1) * PAGE : m->closed;
    uint64_t tile = page * PAGE + TILE < stop ? page * PAGE + TILE : stop;
    first = first > start ? first : start, end = end < stop ? end : stop;
    for (uint32_t h = 0; h < s->heads && first < end && !is_plain(s->kind); h++) {
        float mean[AURA_MAX_DIM] = {0}, *r = model_reference(s, h, page);
        for (uint32_t d = 0; d < s->dim && s->relative && first == start && end == stop; d++) {
            for (uint64_t t = start; t < tile; t++)
                mean[d] = mean[d] + model_half(s, h, t)[d];
            mean[d] = mean[d] / (float)(tile - start);
        }
        if (s->relative && first == start && end == stop)
            model_quantise(r, mean, &s->reference_codec, NULL);
        memset(model_known(s, h, first), 0, (size_t)(end - first));
    }
}

/* What aura_seq_map_keys() does. */
static inline void model_map(struct model *m, uint64_t first, uint64_t n, aura_map_key_fn *map, void *user)
{
    struct model_side *s = &m->k;
    float *keys = malloc(n * s->heads * s->dim * sizeof *keys + 1);
    model_decode(keys, m, s, first, n);
    for (uint64_t t = 0; t < n; t++) {
        for (uint32_t h = 0; h < s->heads; h++)
            map(user, 0, first + t, h, keys + (t * s->heads + h) * s->dim);
        model_side_put(s, first + t, keys + t * s->heads * s->dim);
    }
    for (uint64_t page = first / PAGE; page * PAGE < first + n; page++)
        model_encode_again(m, page, first, first + n);
    free(keys);
}

static inline void model_truncate(struct model *m, uint64_t len)
{
    m->len = len;
    m->closed = m->closed < len ? m->closed : len;
}

static inline void *model_copy_of(const void *memory, size_t bytes)
{
    return memory ? memcpy(malloc(bytes + 1), memory, bytes) : NULL;
}

static inline void model_side_clone(struct model_side *s)
{
    size_t rows = s->heads * s->capacity * s->dim * sizeof(float), factors = s->heads * s->dim * sizeof(float);
    s->half = model_copy_of(s->half, rows), s->coded = model_copy_of(s->coded, rows);
    s->known = model_copy_of(s->known, s->heads * s->capacity);
    s->reference = model_copy_of(s->reference, s->pages * factors);
    s->balance = model_copy_of(s->balance, factors), s->reciprocal = model_copy_of(s->reciprocal, factors);
    s->ready = model_copy_of(s->ready, s->heads * aura_metric_floats(s->dim) * sizeof(float));
    s->metric = model_copy_of(s->metric, s->heads * sizeof *s->metric);
    for (uint32_t h = 0; s->metric && h < s->heads; h++) {
        float *ready = s->ready + h * aura_metric_floats(s->dim);
        s->metric[h].l = ready, s->metric[h].weight = ready + (size_t)s->dim * s->dim;
    }
}

static inline struct model *model_clone(const struct model *m)
{
    struct model *copy = model_copy_of(m, sizeof *m);
    model_side_clone(&copy->k), model_side_clone(&copy->v);
    return copy;
}

/* Makes the model one of its first `len` tokens. Only for a sequence that was never truncated. */
static inline void model_view(struct model *m, uint64_t len)
{
    m->len = len;
    m->closed = model_closed_at(m, len);
}

/* Token t as attention sees it: rotated, or the plain numbers. */
static inline const float *model_row(const struct model *m, const struct model_side *s, uint32_t head, uint64_t t)
{
    return is_plain(s->kind) || t < m->pinned || t >= m->closed ? model_half(s, head, t) : model_code_of(s, head, t);
}

/* out[n][heads][dim]: tokens [first, first + n) back in model space. */
static inline void model_decode(float *out, const struct model *m, struct model_side *s, uint64_t first, uint64_t n)
{
    for (uint64_t t = first; t < first + n; t++)
        for (uint32_t h = 0; h < s->heads; h++, out += s->dim) {
            const float *y = model_row(m, s, h, t);
            if (is_plain(s->kind)) {
                memcpy(out, y, s->dim * sizeof *out);
                continue;
            }
            s->back.balance = s->reciprocal ? s->reciprocal + (size_t)h * s->dim : NULL;
            aura_undo_ref(out, y, &s->back, 1);
        }
}

#endif
