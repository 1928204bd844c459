/* The steps of attend_split, each for the rows of a block and one or a few tiles: where a tile is, its logits, what options do
 * to them, its values. Codes go through the integer stages, f16 rows and plain sides through those of rows. */
#include "../base/exact.h"
#include "attend.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"

/* What is the same for all tiles of a pass. Prefetching follows the order of a tile: score asks for three quarters
 * of the keys, value for three quarters of the values, softmax for the bytes between. A plain side prefetches itself; softmax
 * then asks for the last quarter of the other side. */
void aura_start_tiles(const struct aura_block *b, struct aura_pass *pass)
{
    const struct aura_layout *l = &b->a->cache->layout;
    const int k_packed = aura_is_packed(l->k.kind), v_packed = aura_is_packed(l->v.kind);
    size_t k_end = k_packed ? l->k.bytes / 4 * 3 / 64 * 64 : l->v_at + l->v.bytes / 4 * 3 / 64 * 64;
    size_t v_begin = !v_packed ? l->v_at : k_packed ? l->tile_bytes - l->v.bytes / 4 * 3 / 64 * 64 : l->tile_bytes;
    struct aura_tile k = {NULL, NULL, NULL, &l->k, b->a->k_planes}, v = {NULL, NULL, NULL, &l->v, b->a->v_planes};
    struct aura_scales scales = {NULL, NULL, v_begin > k_end ? (v_begin - k_end) / 64 : 0, v_packed ? l->v.step : 1};
    for (size_t i = 0; i < AURA_TILES; i++) {
        pass->k[i] = k;
        pass->v[i] = v;
        pass->scales[i] = scales;
    }
    pass->middle = k_end;
    pass->v_ahead = k_packed && v_packed ? v_begin : l->v_at;
    pass->next = NULL;
    pass->page = UINT64_MAX;
    pass->limit = AURA_NO_LIMIT;
    for (size_t i = 0; k_packed && i < b->n; i++)
        pass->limit = b->a->limit[b->row + i] < pass->limit ? b->a->limit[b->row + i] : pass->limit;
}

static const uint8_t *tile_at(const struct aura_block *b, uint64_t tile)
{
    return aura_tile_of(b->a->cache, b->plan->seq, aura_tile_number(b, tile), b->head);
}

/* Which columns of a tile are what. */
static void find_columns(struct aura_place *p, const struct aura_block *b)
{
    const aura_cache *cache = b->a->cache;
    uint64_t left = b->plan->len - p->first, closed = b->plan->closed > p->first ? b->plan->closed - p->first : 0;
    p->full = p->first >= cache->pinned && closed >= AURA_TILE && left >= AURA_TILE;
    p->packed = 0;
    p->packed_end = p->columns = AURA_TILE;
    if (p->full)
        return;
    p->columns = left < AURA_TILE ? (uint32_t)left : AURA_TILE;
    p->packed = cache->pinned > p->first ? cache->pinned : 0;
    p->packed = p->packed < p->columns ? p->packed : p->columns;
    p->packed_end = closed < p->columns ? (uint32_t)closed : p->columns;
    p->packed_end = p->packed_end > p->packed ? p->packed_end : p->packed;
}

/* Columns [from, to) of a side that is stored in rows of plain numbers: f16 rows of the sequence, or the tile itself. */
static struct aura_rows rows_of(const struct aura_block *b, const struct aura_place *p, uint32_t from, int values)
{
    const aura_cache *cache = b->a->cache;
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    uint16_t *open = values ? b->plan->seq->v : b->plan->seq->k;
    uint32_t kind = open ? AURA_ROW_F16 : side->kind;
    size_t bytes = side->dim * aura_plain_bytes(kind);
    const uint8_t *data = p->tile + (values ? cache->layout.v_at : 0) + from * bytes;
    if (open)
        data = (const uint8_t *)aura_row_of(cache, open, side->dim, b->head, p->first + from);
    struct aura_rows rows = {data, bytes, kind, side->dim, side->dim, open ? 0 : (size_t)(p->ahead - p->tile), NULL};
    return rows;
}

static void score_rows(const struct aura_block *b, float (*logit)[AURA_TILE], const struct aura_place *p, uint32_t from,
                       uint32_t to)
{
    static const float ones[AURA_TILE] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct aura_attend *a = b->a;
    if (from >= to)
        return;
    struct aura_rows rows = rows_of(b, p, from, 0);
    a->cache->ctx->kernels.row_score[rows.kind](&logit[0][from], AURA_TILE, a->q + b->row * rows.dim, &rows, ones, b->n,
                                            to - from);
}

static void value_rows(const struct aura_block *b, float *acc, float (*weight)[AURA_TILE], const struct aura_place *p,
                       uint32_t from, uint32_t to)
{
    if (from >= to)
        return;
    struct aura_rows rows = rows_of(b, p, from, 1);
    b->a->cache->ctx->kernels.row_value[rows.kind](acc, &weight[0][from], AURA_TILE, &rows, b->n, to - from);
}

/* The reference of a page is one more key, whose score is added to that of all others. */
static void page_bias(const struct aura_block *b, float *bias, uint64_t page)
{
    const struct aura_attend *a = b->a;
    const aura_cache *cache = a->cache;
    const uint8_t *head = aura_head_of(cache, b->plan->seq, (size_t)page, b->head);
    int32_t product[AURA_BLOCK_ROWS];
    memset(bias, 0, b->n * sizeof *bias);
    if (!aura_has_reference(cache, b->plan->closed, page))
        return;
    float scale = aura_f32_from_f16(*(const uint16_t *)(const void *)(head + cache->layout.reference_scale_at));
    cache->ctx->kernels.reference[0](product, a->query + b->row, (const int8_t *)(head + cache->layout.reference_at),
                                     cache->layout.k.dim, b->n);
    for (size_t i = 0; i < b->n; i++)
        bias[i] = (float)product[i] * (a->query[b->row + i].step * scale * cache->layout.reference_step * a->unit);
}

/* Value scales, 0 for columns that hold no code. */
static const uint16_t *value_scales(const struct aura_block *b, const struct aura_place *p, uint16_t copy[AURA_TILE])
{
    const uint16_t *scale = (const uint16_t *)(const void *)(p->tile + b->a->cache->layout.v_scale_at);
    if (b->plan->seq->v && p->full)
        return scale;
    memset(copy, 0, AURA_TILE * sizeof *copy);
    if (b->plan->seq->v && p->packed < p->packed_end)
        memcpy(copy + p->packed, scale + p->packed, (p->packed_end - p->packed) * sizeof *copy);
    return copy;
}

/* The scores of the references of n tiles: of a sequence they are all in one page, often that of the tiles before. */
static void find_bias(const struct aura_block *b, struct aura_pass *pass, uint64_t tile, size_t n)
{
    const int scattered = b->list != NULL;
    for (size_t i = 0; scattered && i < n; i++)
        page_bias(b, pass->bias + i * b->n, aura_tile_number(b, tile + i) / AURA_PAGE_TILES);
    if (scattered || tile / AURA_PAGE_TILES == pass->page)
        return;
    page_bias(b, pass->bias, pass->page = tile / AURA_PAGE_TILES);
    for (size_t i = 1; i < AURA_TILES; i++)
        memcpy(pass->bias + i * b->n, pass->bias, b->n * sizeof *pass->bias);
}

void aura_find_tiles(const struct aura_block *b, struct aura_pass *pass, uint64_t tile, size_t n)
{
    const struct aura_layout *l = &b->a->cache->layout;
    const int scattered = b->list != NULL;
    const uint8_t *at = pass->next ? pass->next : tile_at(b, tile);
    const uint64_t next = aura_tile_here(b, tile + n);
    pass->next = next * AURA_TILE < b->end ? tile_at(b, next) : at;
    for (size_t i = 0; i < n; i++) {
        struct aura_place *p = &pass->place[i];
        const uint8_t *ahead = pass->next + i * l->tile_bytes;
        p->tile = scattered && i ? tile_at(b, tile + i) : at + i * l->tile_bytes;
        p->ahead = ahead;
        p->first = (tile + i) * AURA_TILE;
        find_columns(p, b);
        pass->k[i].words = (const uint32_t *)(const void *)p->tile;
        pass->k[i].ahead = ahead;
        pass->k[i].scale = (const uint16_t *)(const void *)(p->tile + l->k_scale_at);
        pass->v[i].words = (const uint32_t *)(const void *)(p->tile + l->v_at);
        pass->v[i].ahead = ahead + pass->v_ahead;
        pass->scales[i].v = value_scales(b, p, pass->copy[i]);
        pass->scales[i].ahead = ahead + pass->middle;
    }
    for (uint32_t line = 0; next % AURA_PAGE_TILES == 0 && line < l->k.dim / 64 + 2; line++) /* the next reference */
        __builtin_prefetch(pass->next + l->reference_at + 64 * line, 0, 3);
    if (b->plan->seq->k)
        find_bias(b, pass, tile, n);
}

static __attribute__((noinline)) int has_code_above(const uint16_t *scale, const struct aura_place *p, uint32_t limit)
{
    for (uint32_t t = p->packed; t < p->packed_end; t++)
        if (aura_takes_both(scale[t], limit))
            return 1;
    return 0;
}

/* Whether some key of a tile takes both planes in a row with this limit. Nearly always none does, and nearly all tiles are full:
 * that has to be quick. */
static inline int has_scale_above(const uint16_t *scale, const struct aura_place *p, uint32_t limit)
{
    const uint64_t room = aura_room_of_limit(limit);
    uint64_t above = 0, four;
    if (!p->full)
        return has_code_above(scale, p, limit);
    for (size_t i = 0; i < AURA_TILE; i += 4) {
        memcpy(&four, scale + i, sizeof four);
        above |= aura_four_above(four, room);
    }
    return aura_some_above(above);
}

/* A tile whose scales are not all below every row's limit, once more for those rows, with both planes: its keys above the limit
 * have the logits of a call that asks for two. */
static void score_both(const struct aura_block *b, struct aura_pass *pass, size_t tile)
{
    const struct aura_attend *a = b->a;
    const struct aura_place *p = &pass->place[tile];
    const struct aura_side *side = &a->cache->layout.k;
    const uint16_t *limit = a->limit + b->row;
    struct aura_tile keys = pass->k[tile];
    _Alignas(64) float both[AURA_BLOCK_ROWS][AURA_TILE];
    float factor[AURA_BLOCK_ROWS];
    keys.planes = 2;
    for (size_t i = 0, end; i < b->n; i = end + 1) { /* rows that follow each other, together */
        for (end = i; end < b->n && has_scale_above(keys.scale, p, limit[end]); end++)
            factor[end] = a->query[b->row + end].step * side->step * a->unit;
        if (end > i)
            a->cache->ctx->kernels.score[AURA_PLANES(side->kind, 2)](both[i], a->query + b->row + i, &keys, factor + i,
                                                                     pass->bias + tile * b->n + i, end - i, 1);
        for (size_t row = i; row < end; row++)
            for (uint32_t t = p->packed; t < p->packed_end; t++)
                if (aura_takes_both(keys.scale[t], limit[row]))
                    pass->logit[tile * b->n + row][t] = both[row][t];
    }
}

void aura_score_tiles(const struct aura_block *b, struct aura_pass *pass, size_t n)
{
    const struct aura_attend *a = b->a;
    size_t coded = 0; /* codes end somewhere, and do not begin again */
    while (b->plan->seq->k && coded < n && pass->place[coded].packed < pass->place[coded].packed_end)
        coded++;
    if (coded)
        a->cache->ctx->kernels.score[AURA_PLANES(a->cache->layout.k.kind, a->k_planes)](
            pass->logit[0], a->query + b->row, pass->k, a->factor + b->row, pass->bias, b->n, coded);
    for (size_t i = 0; pass->limit < AURA_NO_LIMIT && i < coded; i++)
        if (has_scale_above(pass->k[i].scale, &pass->place[i], pass->limit))
            score_both(b, pass, i);
    for (size_t i = 0; i < n; i++) {
        const struct aura_place *p = &pass->place[i];
        if (!b->plan->seq->k) {
            score_rows(b, pass->logit + i * b->n, p, 0, p->columns);
        } else if (!p->full) {
            score_rows(b, pass->logit + i * b->n, p, 0, p->packed);
            score_rows(b, pass->logit + i * b->n, p, p->packed_end, p->columns);
        }
    }
}

/* Softcap, then ALiBi, then the mask; logits are in units of log2 e. */
void aura_apply_options(const struct aura_block *b, const struct aura_place *p, float (*logits)[AURA_TILE])
{
    const aura_attend_options *o = &b->a->options;
    const aura_attend_job *job = b->plan->job;
    const float cap = o->softcap * AURA_LOG2_E;
    for (size_t i = 0; i < b->n; i++) {
        float *logit = logits[i];
        for (uint32_t t = 0; cap > 0 && t < p->columns; t++)
            logit[t] = cap * tanhf(logit[t] / cap);
        float slope = o->alibi ? o->alibi[aura_q_head_of(b, i)] * AURA_LOG2_E : 0;
        int64_t distance = (int64_t)(p->first - (aura_row_span(b, i).end - 1));
        for (uint32_t t = 0; slope != 0 && t < p->columns; t++)
            logit[t] = logit[t] + slope * (float)(distance + t);
        if (!job->mask || p->first + p->columns <= b->plan->len - job->mask_keys)
            continue;
        const float *mask = job->mask + aura_query_of(b, i) * (job->mask_stride ? job->mask_stride : job->mask_keys) +
                            aura_q_head_of(b, i) * job->mask_head_stride;
        uint64_t first = b->plan->len - job->mask_keys;
        for (uint32_t t = first > p->first ? (uint32_t)(first - p->first) : 0; t < p->columns; t++)
            logit[t] = logit[t] + mask[p->first + t - first] * AURA_LOG2_E;
    }
}

/* Columns that a row may not see: by index, never by what is in them. A row has the first tokens in the pass where it would have
 * them if it were alone, whatever the other rows of its block see: its bits are the same then. */
void aura_hide_columns(const struct aura_block *b, const struct aura_place *p, float (*logit)[AURA_TILE])
{
    for (size_t i = 0; i < b->n; i++) {
        struct aura_span row = aura_row_span(b, i);
        const int apart = aura_kept_apart(b->a, b->plan->job, row.begin) > 0;
        const uint32_t keep = apart == b->is_kept ? aura_kept_of(b->a, b->plan->job) : 0;
        const uint64_t begin = b->is_kept ? row.end : row.begin;
        for (uint64_t t = p->first; t < p->first + AURA_TILE; t++)
            if (!aura_sees(t, begin, row.end, keep))
                logit[i][t - p->first] = -INFINITY;
    }
}

/* Tokens of the tiles into pass->acc: codes of all tiles at once, then what is in rows. */
void aura_value_tiles(const struct aura_block *b, struct aura_pass *pass, size_t n)
{
    const struct aura_kernels *kernels = &b->a->cache->ctx->kernels;
    const struct aura_side *side = &b->a->cache->layout.v;
    const int packed = b->plan->seq->v != NULL;
    if (packed) {
        kernels->value[AURA_PLANES(side->kind, b->a->v_planes)](pass->acc, side->dim, pass->weight, pass->v, b->n, n);
    }
    for (size_t i = 0; !packed && i < b->n; i++)
        for (uint32_t d = 0; pass->weight[i].keep != 1 && d < side->dim; d++)
            pass->acc[i * side->dim + d] *= pass->weight[i].keep;
    for (size_t i = 0; i < n; i++) {
        const struct aura_place *p = &pass->place[i];
        if (packed && p->full)
            continue;
        value_rows(b, pass->acc, pass->logit + i * b->n, p, 0, packed ? p->packed : p->columns);
        if (packed)
            value_rows(b, pass->acc, pass->logit + i * b->n, p, p->packed_end, p->columns);
    }
}
