#include "../../../src/base/exact.h"
#include "oracle.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../../src/base/dtype.h"
#include "../../../src/cache/backend.h"
#include "../../../src/ref.h"

/* One side: tokens held as codes have levels and a scale, all others have numbers. */
struct side {
    int16_t *level; /* [len][dim] */
    float *scale;   /* [len] */
    float *number;  /* [len][dim] */
    uint8_t *coded; /* [len] */
};

struct oracle_head {
    struct aura_backend_cache facts;
    uint32_t head;
    uint64_t len, closed;
    struct side k, v;
    int8_t *reference;      /* [pages][k_dim] */
    float *reference_scale; /* [pages], 0: there is none */
};

static void decode_side(struct side *to, struct oracle_head *h, const aura_cache *cache, aura_seq seq,
                        const struct aura_backend_seq *rs, int values)
{
    const struct aura_layout *l = h->facts.layout;
    const struct aura_side *side = values ? &l->v : &l->k;
    const uint16_t *rows = values ? rs->v : rs->k;
    uint32_t dim = side->dim, ring = h->facts.rows - h->facts.pinned;
    to->level = calloc(h->len * dim + 1, sizeof *to->level);
    to->scale = calloc(h->len + 1, sizeof *to->scale);
    to->number = calloc(h->len * dim + 1, sizeof *to->number);
    to->coded = calloc(h->len + 1, 1);
    for (uint64_t t = 0; t < h->len; t++) {
        if (!aura_backend_has_page(&h->facts, rs, (size_t)(t / AURA_PAGE)))
            continue;
        const uint8_t *tile = aura_backend_page(cache, seq, (size_t)(t / AURA_PAGE)) + (size_t)h->head * l->head_bytes +
                              t / AURA_TILE % AURA_PAGE_TILES * l->tile_bytes;
        uint32_t c = (uint32_t)(t % AURA_TILE);
        if (!rows) {
            aura_dtype dtype = side->kind == AURA_ROW_F32 ? AURA_F32 : side->kind == AURA_ROW_F16 ? AURA_F16 : AURA_BF16;
            aura_load_row(to->number + t * dim, tile + (values ? l->v_at : 0), dtype, (size_t)c * dim, dim);
        } else if (t < h->facts.pinned || t >= h->closed) {
            size_t row = (size_t)(t < h->facts.pinned ? ring + t : t % ring);
            aura_load_row(to->number + t * dim, rows, AURA_F16, ((size_t)h->head * h->facts.rows + row) * dim, dim);
        } else {
            struct aura_tile one = {(const uint32_t *)(const void *)(tile + (values ? l->v_at : 0)), NULL, NULL, side, 1};
            const uint16_t *scale = (const uint16_t *)(const void *)(tile + (values ? l->v_scale_at : l->k_scale_at));
            to->coded[t] = 1;
            to->scale[t] = aura_f32_from_f16(scale[c]);
            for (uint32_t d = 0; d < dim; d++)
                to->level[t * dim + d] = (int16_t)(values ? aura_ref_level(&one, c, d) : aura_ref_level(&one, d, c));
        }
    }
}

struct oracle_head *oracle_head_new(const aura_cache *cache, aura_seq seq, uint32_t head)
{
    struct oracle_head *h = calloc(1, sizeof *h);
    struct aura_backend_seq rs;
    aura_backend_describe(&h->facts, cache);
    if (aura_backend_find("oracle", cache, seq, &rs))
        abort();
    h->head = head, h->len = rs.len, h->closed = rs.closed;
    decode_side(&h->k, h, cache, seq, &rs, 0);
    decode_side(&h->v, h, cache, seq, &rs, 1);
    uint32_t dim = h->facts.config->k_dim;
    h->reference = calloc((rs.pages + 1) * dim, 1);
    h->reference_scale = calloc(rs.pages + 1, sizeof *h->reference_scale);
    for (size_t p = 0; p < rs.pages && rs.k && !(h->facts.config->flags & AURA_NO_REFERENCE); p++) {
        if (!aura_backend_has_page(&h->facts, &rs, p))
            continue;
        const uint8_t *part = aura_backend_page(cache, seq, p) + (size_t)head * h->facts.layout->head_bytes;
        if (h->closed <= (p * AURA_PAGE > h->facts.pinned ? p * AURA_PAGE : h->facts.pinned))
            continue;
        memcpy(h->reference + p * dim, part + h->facts.layout->reference_at, dim);
        h->reference_scale[p] = aura_f32_from_f16(*(const uint16_t *)(const void *)(part + h->facts.layout->reference_scale_at));
    }
    return h;
}

static void side_free(struct side *s)
{
    free(s->level), free(s->scale), free(s->number), free(s->coded);
}

void oracle_head_free(struct oracle_head *h)
{
    if (!h)
        return;
    side_free(&h->k), side_free(&h->v);
    free(h->reference), free(h->reference_scale);
    free(h);
}

static uint32_t planes_for(uint32_t kind, uint32_t asked)
{
    return asked ? asked : kind <= 5 || kind >= AURA_TRELLIS_2 ? 1 : 2;
}

/* A key as the cache holds it, decoded. */
static double key_number(const struct oracle_head *h, uint64_t t, uint32_t d)
{
    const uint32_t dim = h->facts.config->k_dim;
    if (!h->k.coded[t])
        return h->k.number[t * dim + d];
    return (double)h->k.level[t * dim + d] * h->k.scale[t] * h->facts.layout->k.step +
           (double)h->reference[t / AURA_PAGE * dim + d] * h->reference_scale[t / AURA_PAGE] * h->facts.layout->reference_step;
}

static void exact_logits(struct oracle_row *row, const struct oracle_head *h, const float *q, float unit)
{
    row->one = row->both = 0;
    for (uint64_t t = 0; t < h->len; t++) {
        double sum = 0;
        for (uint32_t d = 0; d < h->facts.config->k_dim; d++)
            sum += (double)q[d] * unit * key_number(h, t, d);
        row->logit[t] = (float)sum;
    }
}

/* The largest scale of a key that one plane of the query is good enough for: then its logit moves by at most one nat. */
static float largest_quiet_scale(const struct oracle_head *h, const struct aura_query *query, float unit)
{
    const struct aura_side *k = &h->facts.layout->k;
    float lower = 0, top = k->kind == 5 ? 31 : 0;
    for (uint32_t d = 0; d < h->facts.config->k_dim; d++)
        lower += (float)abs(query->plane[1][d]);
    for (uint32_t i = 0; (k->kind <= 4 || k->kind >= AURA_TRELLIS_2) && i < 32; i++)
        top = fmaxf(top, (float)abs(k->level[i]));
    float limit = 1.44269504f / (fabsf(unit) * k->step * top) / (query->step * lower);
    int exponent = limit < 0x1p-14f ? -24 : ilogbf(limit) - 10; /* of the last place of f16 */
    return limit < 65504 ? ldexpf(floorf(ldexpf(limit, -exponent)), exponent) : 65504;
}

/* The logits before options, in units of log2 e; in f32 with the operations of doc/numerics.md where keys are codes. */
static void logits(struct oracle_row *row, const struct oracle_head *h, float *q, float unit, uint32_t asked)
{
    uint32_t dim = h->facts.config->k_dim, planes = planes_for(h->facts.layout->k.kind, asked);
    struct aura_query query;
    memset(&query, 0, sizeof query);
    if (h->facts.k_rotate)
        aura_query_ref(&query, q, dim, 1);
    float limit = !asked && planes == 1 ? largest_quiet_scale(h, &query, unit) : INFINITY, bias = 0;
    row->one = row->both = 0;
    for (uint64_t t = 0; t < h->len; t++) {
        if (t % AURA_PAGE == 0) {
            int32_t product = 0;
            float scale = h->reference_scale[t / AURA_PAGE];
            bias = 0;
            aura_reference_ref(&product, &query, h->reference + t / AURA_PAGE * dim, dim, 1);
            if (scale != 0)
                bias = (float)product * (query.step * scale * h->facts.layout->reference_step * unit);
        }
        if (!h->k.coded[t]) {
            double sum = 0;
            for (uint32_t d = 0; d < dim; d++)
                sum += (double)q[d] * unit * h->k.number[t * dim + d];
            row->logit[t] = (float)sum;
            continue;
        }
        int32_t sum = 0, one = planes == 1 && !(h->k.scale[t] > limit);
        float factor = query.step * (one ? 256.f : 1.f) * h->facts.layout->k.step * unit;
        for (uint32_t d = 0; d < dim; d++)
            sum += (one ? query.plane[0][d] : 256 * query.plane[0][d] + query.plane[1][d]) * h->k.level[t * dim + d];
        row->logit[t] = (float)sum * (h->k.scale[t] * factor) + bias;
        *(one ? &row->one : &row->both) += 1;
    }
}

static int is_seen(uint32_t keep_first, uint64_t t, uint64_t begin, uint64_t end)
{
    return (t >= begin || t < keep_first) && t < end;
}

static double with_options(double x, const struct oracle_head *h, const struct oracle_options *o, uint32_t query,
                           uint32_t q_head, uint64_t t, uint64_t end)
{
    const double log2_e = 1.44269504088896340736;
    if (o->softcap > 0)
        x = (double)o->softcap * log2_e * tanh(x / ((double)o->softcap * log2_e));
    if (o->alibi)
        x += (double)o->alibi[q_head] * log2_e * ((double)t - (double)(end - 1));
    if (o->mask && t + o->mask_keys >= h->len)
        x += (double)o->mask[(size_t)query * o->mask_keys + (t + o->mask_keys - h->len)] * log2_e;
    return x;
}

/* Values of one tile into o, with weights p; codes with rounded weights. */
static void add_tile(struct oracle_row *row, double *o, const struct oracle_head *h, const double *p, uint64_t first,
                     uint64_t end, uint32_t planes)
{
    uint32_t dim = h->facts.config->v_dim;
    double top = 0, most = planes == 1 ? 255 : planes == 2 ? 65280 : 0x1p40; /* 0 planes: weights as they are */
    for (uint64_t t = first; t < end; t++)
        if (h->v.coded[t] && p[t - first] * h->v.scale[t] > top)
            top = p[t - first] * h->v.scale[t];
    for (uint64_t t = first; t < end; t++) {
        double size = 0, weight = p[t - first];
        if (h->v.coded[t]) {
            double exact = top > 0 ? weight * h->v.scale[t] / top * most : 0, whole = rint(exact), step = h->facts.layout->v.step;
            for (uint32_t d = 0; d < dim; d++) {
                o[d] += top / most * whole * step * h->v.level[t * dim + d];
                size += (double)h->v.level[t * dim + d] * h->v.level[t * dim + d];
            }
            size = sqrt(size) * step;
            if (fabs(fabs(exact - whole) - 0.5) < exact * 1e-5 + 1e-6)
                row->slack += top / most * size;
            size *= h->v.scale[t];
        } else {
            for (uint32_t d = 0; d < dim; d++) {
                o[d] += weight * h->v.number[t * dim + d];
                size += (double)h->v.number[t * dim + d] * h->v.number[t * dim + d];
            }
            size = sqrt(size);
        }
        row->size += weight * size;
    }
}

/* Takes the balance of values out of a row. What may be wrong grows as much as the largest factor. */
static void unbalance(struct oracle_row *row, const struct oracle_head *h)
{
    const uint32_t dim = h->facts.config->v_dim;
    const float *balance = h->facts.v_balance ? h->facts.v_balance + (size_t)h->head * dim : NULL;
    double largest = balance ? 0 : 1;
    for (uint32_t d = 0; balance && d < dim; d++)
        row->out[d] /= balance[d], largest = fmax(largest, 1 / (double)balance[d]);
    row->size *= largest, row->slack *= largest;
}

void oracle_attend(struct oracle_row *row, const struct oracle_head *h, const float *given, uint32_t query, uint32_t q_head,
                   const struct oracle_options *options)
{
    const aura_config *c = h->facts.config;
    float q[AURA_TILE_DIM], unit = (options->scale != 0 ? options->scale : 1 / sqrtf((float)c->k_dim)) * 1.44269504f;
    int64_t last = options->not_causal ? (int64_t)h->len : (int64_t)h->len - options->queries + query + 1;
    uint64_t end = options->until ? options->until[query] : last > 0 ? (uint64_t)last : 0;
    uint64_t begin = options->from ? options->from[query] : options->window && options->window < end ? end - options->window : 0;
    const uint32_t keep_first = options->from ? 0 : c->keep_first;
    double o[AURA_TILE_DIM] = {0}, l = 0, m = -INFINITY, sink = options->sinks ? options->sinks[q_head] : -INFINITY;
    for (uint32_t d = 0; d < c->k_dim; d++)
        q[d] = h->facts.inverse_balance ? given[d] * h->facts.inverse_balance[(size_t)h->head * c->k_dim + d] : given[d];
    if (h->facts.k_rotate)
        aura_rotate_ref(q, q, h->facts.k_rotate, 1);
    if (options->exact)
        exact_logits(row, h, q, unit);
    else
        logits(row, h, q, unit, options->planes);
    const uint32_t v_planes = options->exact || options->smooth ? 0 : planes_for(h->facts.layout->v.kind, options->planes);
    double *x = malloc((h->len + 1) * sizeof *x);
    row->size = row->slack = 0;
    for (uint64_t t = 0; t < end; t++) {
        if (!is_seen(keep_first, t, begin, end))
            continue;
        x[t] = with_options(row->logit[t], h, options, query, q_head, t, end);
        m = x[t] > m ? x[t] : m;
    }
    for (uint64_t first = 0; first < end && m > -INFINITY; first += AURA_TILE) {
        double p[AURA_TILE];
        uint64_t stop = first + AURA_TILE < h->len ? first + AURA_TILE : h->len;
        for (uint64_t t = first; t < stop; t++)
            l += p[t - first] = is_seen(keep_first, t, begin, end) && x[t] > -INFINITY ? exp2(x[t] - m) : 0;
        add_tile(row, o, h, p, first, stop, v_planes);
    }
    m *= 0.69314718055994530942;
    if (sink > -INFINITY) {
        double most = sink > m ? sink : m, keep = l > 0 ? exp(m - most) : 0;
        for (uint32_t d = 0; d < c->v_dim; d++)
            o[d] *= keep;
        l = l * keep + exp(sink - most), row->size *= keep, row->slack *= keep;
        m = most;
    }
    row->lse = l > 0 ? m + log(l) : -INFINITY;
    for (uint32_t d = 0; d < c->v_dim; d++)
        o[d] = l > 0 ? o[d] / l : 0;
    row->size = l > 0 ? row->size / l : 0, row->slack = l > 0 ? row->slack / l : 0;
    memcpy(row->out, o, c->v_dim * sizeof *o);
    if (h->facts.v_undo)
        aura_ref_rotate_double(row->out, NULL, o, h->facts.v_undo);
    unbalance(row, h);
    free(x);
}
