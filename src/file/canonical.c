/* Pages as they are in files. In memory, a column without a token holds whatever was there before, and so does a reference
 * that is not made yet. In a file both are zero: equal caches make equal files, and no truncated token gets into one. */
#include "../base/exact.h"
#include "snapshot.h"

#include <string.h>

/* Columns [first, end) of a tile. */
struct columns {
    uint32_t first, end;
};

static struct columns columns_of(uint32_t tile, uint32_t first, uint32_t end)
{
    uint32_t at = tile * AURA_TILE;
    struct columns c = {first > at ? first - at : 0, end > at ? end - at : 0};
    c.first = c.first < AURA_TILE ? c.first : AURA_TILE;
    c.end = c.end < AURA_TILE ? c.end : AURA_TILE;
    return c;
}

static int is_column(struct columns c, uint32_t i)
{
    return i >= c.first && i < c.end;
}

static void clear_scales(uint8_t *scales, struct columns c)
{
    uint16_t *scale = (uint16_t *)(void *)scales;
    for (uint32_t i = 0; i < AURA_TILE; i++)
        if (!is_column(c, i))
            scale[i] = 0;
}

/* In a tile of keys, column i is word i of every 32. */
static void clear_keys(uint8_t *tile, const struct aura_side *side, struct columns c)
{
    uint32_t *words = (uint32_t *)(void *)tile;
    for (uint32_t row = 0; row < side->bytes / (AURA_TILE * 4); row++)
        for (uint32_t i = 0; i < AURA_TILE; i++)
            if (!is_column(c, i))
                words[row * AURA_TILE + i] = 0;
}

/* In a tile of values, a column is the same bits of every word. */
static void clear_values(uint8_t *values, const struct aura_side *side, struct columns c)
{
    uint32_t *words = (uint32_t *)(void *)values, quad[8], mask[8];
    uint8_t all = (uint8_t)(side->kind == 8 ? 255 : (1u << aura_bits_of(side->kind)) - 1), column[AURA_TILE];
    for (uint32_t i = 0; i < AURA_TILE; i++)
        column[i] = is_column(c, i) ? all : 0;
    memcpy(quad, column, sizeof quad);
    aura_pack_run(mask, quad, side->kind);
    for (uint32_t w = 0; w < aura_bits_of(side->kind); w++)
        for (uint32_t d = 0; d < side->dim; d++)
            words[aura_word_at(side, 0, w) + d] &= mask[w];
}

static void clear_plain(uint8_t *rows, const struct aura_side *side, struct columns c)
{
    uint32_t row = side->bytes / AURA_TILE;
    for (uint32_t i = 0; i < AURA_TILE; i++)
        if (!is_column(c, i))
            memset(rows + (size_t)i * row, 0, row);
}

void aura_canonical_head(uint8_t *to, const uint8_t *head, const struct aura_layout *l, const struct aura_page_span *span)
{
    memcpy(to, head, l->head_bytes);
    for (uint32_t tile = 0; tile < AURA_PAGE_TILES; tile++) {
        uint8_t *at = to + (size_t)tile * l->tile_bytes;
        struct columns coded = columns_of(tile, span->coded, span->coded_end), plain = columns_of(tile, 0, span->plain_end);
        if (aura_is_packed(l->k.kind)) {
            clear_keys(at, &l->k, coded);
            clear_scales(at + l->k_scale_at, coded);
        } else {
            clear_plain(at, &l->k, plain);
        }
        if (aura_is_packed(l->v.kind)) {
            clear_values(at + l->v_at, &l->v, coded);
            clear_scales(at + l->v_scale_at, coded);
        } else {
            clear_plain(at + l->v_at, &l->v, plain);
        }
    }
    if (l->head_bytes == l->reference_at)
        return;
    if (!span->reference)
        memset(to + l->reference_at, 0, l->head_bytes - l->reference_at);
    memset(to + l->reference_scale_at + 2, 0, l->head_bytes - l->reference_scale_at - 2);
}

int aura_is_canonical_head(const uint8_t *head, const struct aura_layout *l, const struct aura_page_span *span)
{
    const int k_packed = aura_is_packed(l->k.kind), v_packed = aura_is_packed(l->v.kind);
    uint32_t rest = 0;
    if ((k_packed || v_packed) && (span->coded > 0 || span->coded_end < AURA_PAGE))
        return 0;
    if ((!k_packed || !v_packed) && span->plain_end < AURA_PAGE)
        return 0;
    for (uint32_t i = span->reference ? l->reference_scale_at + 2 : l->reference_at; i < l->head_bytes; i++)
        rest |= head[i];
    return !rest;
}

/* ---- can these numbers have been stored? --------------------------------------------------------------------------- */

int aura_is_sound_f16(const uint8_t *rows, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= (rows[2 * i + 1] & 0x7cu) == 0x7cu; /* all bits of the exponent: NaN or Inf */
    return !bad;
}

static int is_sound_plain(const uint8_t *rows, const struct aura_side *side)
{
    uint32_t bad = 0;
    if (side->kind == AURA_ROW_F16)
        return aura_is_sound_f16(rows, side->bytes / 2);
    uint32_t size = aura_plain_bytes(side->kind); /* bf16 is the upper half of an f32 */
    for (uint32_t i = size; i <= side->bytes; i += size)
        bad |= (rows[i - 1] & 0x7fu) == 0x7fu && rows[i - 2] & 0x80u;
    return !bad;
}

/* -128 is no 8-bit code; the other kinds have a level for every code. */
static int is_sound_code(const uint8_t *code, size_t n)
{
    uint32_t bad = 0;
    for (size_t i = 0; i < n; i++)
        bad |= code[i] == 0x80;
    return !bad;
}

static int is_sound_side(const uint8_t *at, const uint8_t *scales, const struct aura_side *side)
{
    if (!aura_is_packed(side->kind))
        return is_sound_plain(at, side);
    return aura_is_sound_f16(scales, AURA_TILE) && (side->kind != 8 || is_sound_code(at, side->bytes));
}

int aura_is_sound_head(const uint8_t *head, const struct aura_layout *l)
{
    int sound = 1;
    for (uint32_t tile = 0; sound && tile < AURA_PAGE_TILES; tile++) {
        const uint8_t *at = head + (size_t)tile * l->tile_bytes;
        sound = is_sound_side(at, at + l->k_scale_at, &l->k) && is_sound_side(at + l->v_at, at + l->v_scale_at, &l->v);
    }
    if (l->head_bytes > l->reference_at)
        sound = sound && is_sound_code(head + l->reference_at, l->reference_scale_at - l->reference_at) &&
                aura_is_sound_f16(head + l->reference_scale_at, 1);
    return sound;
}
