/* Sizes and levels of each kind of side. */
#include "base/exact.h"
#include "format.h"

#include <math.h>

#include "codebook.h"
#include "trellis.h"
#include "variants.h"

uint32_t aura_stored_dim(uint32_t dim)
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    uint32_t stored = 0;
    for (size_t i = 0; i < sizeof dims / sizeof *dims; i++)
        if (dims[i] >= dim && (!stored || dims[i] < stored))
            stored = dims[i];
    return stored;
}

static const aura_codebook *grid(uint32_t bits)
{
    for (size_t i = 0; i < aura_codebook_count; i++)
        if (aura_codebook_list[i].id == 16 * (uint32_t)AURA_TABLE_GRID + bits)
            return &aura_codebook_list[i];
    return NULL;
}

static void side_init(struct aura_side *s, uint32_t kind, uint32_t dim, int values)
{
    memset(s, 0, sizeof *s);
    s->kind = kind;
    s->dim = dim;
    if (!aura_is_packed(kind)) {
        s->bytes = AURA_TILE * dim * aura_plain_bytes(kind);
        return;
    }
    s->runs = values ? AURA_TILE / AURA_RUN : aura_padded_run(dim) / AURA_RUN;
    s->lanes = values ? dim : AURA_TILE;
    s->bytes = s->runs * aura_bits_of(kind) * s->lanes * 4;
    s->scale_bytes = AURA_TILE * 2;
    s->mul = aura_is_split(kind) ? 2 : 1;
    s->add = aura_is_split(kind) ? 1 - (1 << kind) : 0;
    if (aura_is_trellis(kind)) {
        s->step = aura_trellis_of(kind)->step;
        for (uint32_t i = 0; i < 32; i++)
            s->level[i] = aura_trellis_level(kind, i);
        return;
    }
    const aura_codebook *book = grid(kind);
    s->step = book->step;
    for (uint32_t i = 0; kind <= 4 && i < 32; i++)
        s->level[i] = (int8_t)lrintf(book->centroid[i % book->levels] / book->step);
}

void aura_layout_init(struct aura_layout *l, aura_format format, uint32_t k_dim, uint32_t v_dim)
{
    side_init(&l->k, (uint32_t)format.k, aura_stored_dim(k_dim), 0);
    side_init(&l->v, (uint32_t)format.v, aura_stored_dim(v_dim), 1);
    l->v_at = l->k.bytes;
    l->k_scale_at = l->v_at + l->v.bytes;
    l->v_scale_at = l->k_scale_at + l->k.scale_bytes;
    l->tile_bytes = l->v_scale_at + l->v.scale_bytes;
    l->reference_at = AURA_PAGE_TILES * l->tile_bytes;
    l->reference_scale_at = l->reference_at + (aura_padded_run(l->k.dim) + 63) / 64 * 64;
    l->head_bytes = l->reference_at;
    l->reference_step = grid(8)->step;
    if (aura_is_packed(l->k.kind))
        l->head_bytes = l->reference_scale_at + 64;
}
