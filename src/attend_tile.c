/* The steps of attend_split, each for the rows of a block and one or a few tiles: where a tile is, its logits, what options do
 * to them, its values. Codes go through the integer stages, f16 rows and plain sides through those of rows. */
#include "exact.h"
#include "attend.h"

#include <math.h>
#include <string.h>

#include "dtype.h"

void aura_find_place(struct aura_place *p, const struct aura_block *b, uint64_t tile)
{
    const aura_cache *cache = b->a->cache;
    const struct aura_sequence *seq = b->plan->seq;
    uint64_t first = tile * AURA_TILE, last = (b->end - 1) / AURA_TILE, left = seq->len - first;
    uint64_t closed = seq->closed > first ? seq->closed - first : 0;
    uint64_t next = tile + b->tiles <= last ? tile + b->tiles : tile;
    p->tile = aura_tile_of(cache, seq, tile, b->head);
    p->ahead = aura_tile_of(cache, seq, next, b->head);
    p->first = first;
    p->columns = left < AURA_TILE ? (uint32_t)left : AURA_TILE;
    p->packed = cache->pinned > first ? cache->pinned : 0;
    p->packed = p->packed < p->columns ? p->packed : p->columns;
    p->packed_end = closed < AURA_TILE ? (uint32_t)closed : AURA_TILE;
    p->packed_end = p->packed_end > p->packed ? p->packed_end : p->packed;
    __builtin_prefetch(p->ahead + cache->layout.k_scale_at, 0, 3);
    __builtin_prefetch(p->ahead + cache->layout.v_scale_at, 0, 3);
    if (next % AURA_PAGE_TILES == 0) { /* a new page: its reference will be needed first of all */
        const uint8_t *reference = p->ahead + cache->layout.reference_at;
        for (uint32_t at = 0; at < cache->config.k_dim + 64; at += 64)
            __builtin_prefetch(reference + at, 0, 3);
    }
}

/* One side of the tile for the integer kernels, unpacked first where that pays. */
static void find_side(struct aura_tile *tile, const struct aura_block *b, uint32_t *bytes, const struct aura_place *p, int values)
{
    const struct aura_layout *l = &b->a->cache->layout;
    uint32_t at = values ? l->v_at : 0;
    tile->words = (const uint32_t *)(const void *)(p->tile + at);
    tile->ahead = (const uint32_t *)(const void *)(p->ahead + at);
    tile->scale = (const uint16_t *)(const void *)(p->tile + l->k_scale_at);
    tile->side = values ? &l->v : &l->k;
    tile->kind = tile->side->kind;
    tile->planes = values ? b->a->v_planes : b->a->k_planes;
    if (b->n > AURA_FEW_ROWS && tile->kind != 8) {
        b->a->cache->ctx->kernels.unpack[tile->kind](bytes, tile);
        tile->words = tile->ahead = bytes;
        tile->kind = AURA_BYTES;
    }
}

/* Columns [from, to) of a side that is kept in rows of plain numbers: f16 rows of the sequence, or the tile itself. */
static struct aura_rows rows_of(const struct aura_block *b, const struct aura_place *p, uint32_t from, int values)
{
    const aura_cache *cache = b->a->cache;
    const struct aura_side *side = values ? &cache->layout.v : &cache->layout.k;
    uint16_t *open = values ? b->plan->seq->v : b->plan->seq->k;
    uint32_t kind = open ? AURA_ROW_F16 : side->kind;
    size_t bytes = side->dim * (kind == AURA_ROW_F32 ? 4 : 2);
    const uint8_t *data = p->tile + (values ? cache->layout.v_at : 0) + from * bytes;
    if (open)
        data = (const uint8_t *)aura_row_of(cache, open, side->dim, b->head, p->first + from);
    struct aura_rows rows = {data, bytes, kind, side->dim, side->dim, open ? 0 : (size_t)(p->ahead - p->tile), NULL};
    return rows;
}

static void score_rows(const struct aura_block *b, float (*logit)[AURA_TILE], const struct aura_place *p, uint32_t from, uint32_t to)
{
    static const float ones[AURA_TILE] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1,
                                          1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    const struct aura_attend *a = b->a;
    if (from >= to)
        return;
    struct aura_rows rows = rows_of(b, p, from, 0);
    a->cache->ctx->kernels.score[rows.kind](&logit[0][from], AURA_TILE, a->q + b->row * rows.dim, &rows, ones, b->n,
                                            to - from);
}

static void value_rows(const struct aura_block *b, float *acc, float (*weight)[AURA_TILE], const struct aura_place *p,
                       uint32_t from, uint32_t to)
{
    if (from >= to)
        return;
    struct aura_rows rows = rows_of(b, p, from, 1);
    b->a->cache->ctx->kernels.value[rows.kind](acc, &weight[0][from], AURA_TILE, &rows, b->n, to - from);
}

/* The reference of a page is one more key, whose score is added to that of all others. */
void aura_page_bias(const struct aura_block *b, struct aura_pass *pass, uint64_t page)
{
    const struct aura_attend *a = b->a;
    const aura_cache *cache = a->cache;
    const uint8_t *head = aura_head_of(cache, b->plan->seq, (size_t)page, b->head);
    int32_t product[AURA_BLOCK_ROWS];
    memset(pass->bias, 0, sizeof pass->bias);
    if (!aura_has_reference(cache, b->plan->seq->closed, page))
        return;
    float scale = aura_f32_from_f16(*(const uint16_t *)(const void *)(head + cache->layout.reference_scale_at));
    cache->ctx->kernels.reference[0](product, a->query + b->row, (const int8_t *)(head + cache->layout.reference_at),
                                     cache->config.k_dim, b->n);
    for (size_t i = 0; i < b->n; i++)
        pass->bias[i] = (float)product[i] * (a->query[b->row + i].step * scale * cache->layout.reference_step * a->unit);
}

void aura_score_tile(const struct aura_block *b, struct aura_pass *pass, const struct aura_place *p, float (*logit)[AURA_TILE])
{
    const struct aura_attend *a = b->a;
    if (!b->plan->seq->k) {
        score_rows(b, logit, p, 0, p->columns);
        return;
    }
    if (p->packed < p->packed_end) {
        struct aura_tile tile;
        find_side(&tile, b, pass->bytes, p, 0);
        a->cache->ctx->kernels.tile_score[AURA_PLANES(tile.kind, tile.planes)](
            logit[0], a->query + b->row, &tile, a->factor + b->row, pass->bias, b->n);
    }
    score_rows(b, logit, p, 0, p->packed);
    score_rows(b, logit, p, p->packed_end, p->columns);
}

/* Softcap, then ALiBi, then the mask; logits are in units of log2 e. */
void aura_apply_options(const struct aura_block *b, const struct aura_place *p, float (*logits)[AURA_TILE])
{
    const aura_attend_options *o = &b->a->options;
    const aura_attend_job *job = b->plan->job;
    const float log2_e = 1.44269504f, cap = o->softcap * log2_e;
    for (size_t i = 0; i < b->n; i++) {
        float *logit = logits[i];
        for (uint32_t t = 0; cap > 0 && t < p->columns; t++)
            logit[t] = cap * tanhf(logit[t] / cap);
        float slope = o->alibi ? o->alibi[aura_q_head_of(b, i)] * log2_e : 0;
        int64_t distance = (int64_t)(p->first - (aura_row_end(b, i) - 1));
        for (uint32_t t = 0; slope != 0 && t < p->columns; t++)
            logit[t] = logit[t] + slope * (float)(distance + t);
        if (!job->mask || p->first + p->columns <= b->plan->len - job->mask_keys)
            continue;
        const float *mask = job->mask + aura_query_of(b, i) * (job->mask_stride ? job->mask_stride : job->mask_keys);
        uint64_t first = b->plan->len - job->mask_keys;
        for (uint32_t t = first > p->first ? (uint32_t)(first - p->first) : 0; t < p->columns; t++)
            logit[t] = logit[t] + mask[p->first + t - first] * log2_e;
    }
}

/* Columns that a row may not see: by index, never by what is in them. */
void aura_hide_columns(const struct aura_block *b, const struct aura_place *p, float (*logit)[AURA_TILE])
{
    for (size_t i = 0; i < b->n; i++) {
        uint64_t begin = aura_row_begin(b, i), end = aura_row_end(b, i);
        for (uint32_t t = 0; t < AURA_TILE; t++)
            if (p->first + t < begin || p->first + t >= end)
                logit[i][t] = -INFINITY;
    }
}

/* Value scales, 0 for columns that hold no code. */
const uint16_t *aura_value_scales(const struct aura_block *b, const struct aura_place *p, uint16_t copy[AURA_TILE])
{
    const uint16_t *scale = (const uint16_t *)(const void *)(p->tile + b->a->cache->layout.v_scale_at);
    if (b->plan->seq->v && p->packed == 0 && p->packed_end == AURA_TILE)
        return scale;
    memset(copy, 0, AURA_TILE * sizeof *copy);
    if (b->plan->seq->v && p->packed < p->packed_end)
        memcpy(copy + p->packed, scale + p->packed, (p->packed_end - p->packed) * sizeof *copy);
    return copy;
}

/* Tokens of the tiles into pass->acc: codes of all tiles at once, then what is kept in rows. */
void aura_value_tiles(const struct aura_block *b, struct aura_pass *pass, const struct aura_place *place, size_t n)
{
    const struct aura_kernels *kernels = &b->a->cache->ctx->kernels;
    const struct aura_side *side = &b->a->cache->layout.v;
    struct aura_tile tile[AURA_TILES];
    int packed = b->plan->seq->v != NULL;
    for (size_t i = 0; packed && i < n; i++)
        find_side(&tile[i], b, pass->bytes + i * side->dim * AURA_TILE / 4, &place[i], 1);
    for (size_t i = 0; packed && i < n * b->n; i++)
        pass->weight[i].factor *= side->step;
    if (packed)
        kernels->tile_value[AURA_PLANES(tile->kind, tile->planes)](pass->acc, side->dim, pass->weight, tile, b->n, n);
    for (size_t i = 0; !packed && i < b->n; i++)
        for (uint32_t d = 0; pass->weight[i].keep != 1 && d < side->dim; d++)
            pass->acc[i * side->dim + d] *= pass->weight[i].keep;
    for (size_t i = 0; i < n; i++) {
        const struct aura_place *p = &place[i];
        value_rows(b, pass->acc, pass->logit + i * b->n, p, 0, packed ? p->packed : p->columns);
        if (packed)
            value_rows(b, pass->acc, pass->logit + i * b->n, p, p->packed_end, p->columns);
    }
}
