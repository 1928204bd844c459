/* Codebooks, signs and what kernels need to know of a codec. */
#include "base/exact.h"
#include "codec.h"

#include <math.h>
#include <string.h>

#include "base/context.h"
#include "codebook.h"
#include "trellis.h"

size_t aura_row_bytes(uint32_t dim, uint32_t bits)
{
    if (dim == 0 || dim > AURA_MAX_DIM || bits < 1 || bits > 8)
        return 0;
    return ((size_t)dim * bits + 31) / 32 * 4;
}

aura_status aura_codebook_get(aura_table table, uint32_t bits, aura_codebook *book)
{
    if (!book)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_codebook_get: book is NULL");
    if (table < AURA_TABLE_EXACT || table > AURA_TABLE_TQ)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_codebook_get: there is no table %d", (int)table);
    for (size_t i = 0; i < aura_codebook_count; i++)
        if (aura_codebook_list[i].id / 16 == (uint32_t)table && aura_codebook_list[i].bits == bits) {
            *book = aura_codebook_list[i];
            return AURA_OK;
        }
    return aura_fail(NULL, AURA_UNSUPPORTED, "aura_codebook_get: table %d has no %u-bit codebook", (int)table, bits);
}

/* splitmix64: bit d of the stream is bit d % 64 of output d / 64. */
aura_status aura_signs(uint64_t seed, uint32_t stream, uint32_t dim, uint8_t *bits)
{
    if (!bits || dim == 0 || dim > AURA_MAX_DIM)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_signs: bits is NULL or dim %u is not 1 to %d", dim,
                         AURA_MAX_DIM);
    uint64_t state = seed + stream * 0xd1342543de82ef95u, word = 0;
    memset(bits, 0, (dim + 7) / 8);
    for (uint32_t d = 0; d < dim; d++) {
        if (d % 64 == 0) {
            word = state += 0x9e3779b97f4a7c15u;
            word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9u;
            word = (word ^ word >> 27) * 0x94d049bb133111ebu;
            word ^= word >> 31;
        }
        bits[d / 8] |= (uint8_t)((word >> d % 64 & 1) << d % 8);
    }
    return AURA_OK;
}

/* Levels of a grid table are whole numbers of steps: all whole numbers where 0 is a level, else the odd ones. */
static uint32_t spacing_of(const aura_codebook *book)
{
    return book->levels % 2 ? 1 : 2;
}

/* Whether levels and thresholds follow from step, spacing and first as aura_codec_plan says, to the last bit. */
static int is_arithmetic(const aura_codebook *book)
{
    float spacing = (float)spacing_of(book), first = -spacing * (float)(book->levels - 1) / 2;
    int same = book->step > 0 && book->levels == (book->bits == 8 ? 255u : 1u << book->bits);
    for (uint32_t i = 0; i < book->levels; i++) {
        float at = spacing * (float)i + first;
        same = same && book->centroid[i] == book->step * at;
        same = same && (i + 1 == book->levels || book->threshold[i] == book->step * (at + spacing / 2));
    }
    return same;
}

static int is_mirrored(const struct aura_codec_plan *plan, uint32_t levels)
{
    int same = 1;
    for (uint32_t i = 0; i < levels; i++)
        same = same && plan->centroid[i] == -plan->centroid[levels - 1 - i];
    for (uint32_t i = 0; i + 1 < levels; i++)
        same = same && plan->threshold[i] == -plan->threshold[levels - 2 - i];
    return same;
}

/* Cells so wide that the highest threshold is in the last, at `place` of a cell. 0: two thresholds are in one cell, or one is so
 * near the edge of its cell that rounding decides. */
static int fill_cells(struct aura_codec_plan *plan, float place)
{
    const uint32_t half = 1u << (plan->bits - 1);
    const float *above = plan->threshold + half - 1; /* above[0] is 0 */
    plan->cells = place / above[half - 1];
    for (uint32_t i = 0, count = 0; i < 16; i++) {
        plan->cell_threshold[i] = INFINITY;
        plan->cell_low[i] = plan->centroid[half + count];
        memcpy(&plan->cell_count[i], &count, sizeof count);
        for (uint32_t k = 1; k < half; k++) {
            const float at = above[k] * plan->cells - (float)i;
            if (fabsf(fabsf(at) - 0.5f) < 1e-3f || (fabsf(at) < 0.5f && plan->cell_threshold[i] < INFINITY))
                return 0;
            if (fabsf(at) < 0.5f) {
                plan->cell_threshold[i] = above[k];
                count++;
            }
        }
        plan->cell_high[i] = plan->centroid[half + count];
    }
    return 1;
}

/* The RMS of a rotated vector already suits a Lloyd-Max table; a plain grid is fitted by its largest coordinate, where clipping a
 * little pays at 5 and 6 bits and hardly at 8. */
static const float table_fits[9] = {0.80f, 0.85f, 0.90f, 0.95f, 1.00f, 1.05f, 1.10f, 1.15f, 1.20f};

void aura_codec_plan_init(struct aura_codec_plan *plan, const aura_codebook *book, uint32_t dim, aura_scale_rule rule,
                          uint32_t search)
{
    static const float grid_fits[9] = {0.95f, 1.03125f, 1.1125f, 1.19375f, 1.275f, 1.35625f, 1.4375f, 1.51875f, 1.6f};
    static const float grid8_fits[9] = {0.95f,  0.98125f, 1.0125f,  1.04375f, 1.075f,
                                        1.10625f, 1.1375f,  1.16875f, 1.2f};
    plan->dim = dim;
    plan->bits = book->bits;
    plan->row_bytes = (uint32_t)aura_row_bytes(dim, book->bits);
    plan->uniform = book->uniform;
    plan->rule = rule;
    plan->sigma = book->sigma;
    plan->top = book->centroid[book->levels - 1];
    plan->tiny = 0x1.fffffep-51f; /* the last float below 2^-50 */
    plan->keep_tiny = 0;
    plan->n_fits = search ? 9 : 1;
    plan->fits[0] = 1;
    if (search)
        memcpy(plan->fits, !book->uniform ? table_fits : book->bits < 8 ? grid_fits : grid8_fits, sizeof plan->fits);
    plan->step = book->uniform && is_arithmetic(book) ? book->step : 0;
    plan->spacing = (float)spacing_of(book);
    plan->first = -plan->spacing * (float)(book->levels - 1) / 2;
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t index = i & ((1u << book->bits) - 1);
        plan->centroid[i] = index < book->levels ? book->centroid[index] : plan->top;
        plan->threshold[i] = i + 1 < book->levels ? book->threshold[i] : INFINITY;
    }
    plan->cells = 0;
    plan->trellis = 0;
    for (uint32_t i = 0; i < 16; i++)
        plan->cell_threshold[i] = plan->cell_low[i] = plan->cell_high[i] = plan->cell_count[i] = 0;
    plan->mirrored = is_mirrored(plan, book->levels) && book->levels == (book->bits == 8 ? 255u : 1u << book->bits);
    if (book->bits > 4 || !plan->mirrored || book->bits < 2)
        plan->mirrored = plan->mirrored && plan->step > 0 && book->bits > 4;
    else
        for (int i = 0; !(plan->mirrored = (uint32_t)fill_cells(plan, 14.6f + 0.05f * (float)i)) && i < 16; i++)
            ;
}

void aura_trellis_plan_init(struct aura_codec_plan *plan, uint32_t kind, uint32_t dim, aura_scale_rule rule, uint32_t search)
{
    const uint32_t bits = aura_bits_of(kind), each = 1u << (bits - 1); /* levels of a subset */
    const float step = aura_trellis_of(kind)->step;
    memset(plan, 0, sizeof *plan);
    plan->dim = dim;
    plan->bits = bits;
    plan->row_bytes = (uint32_t)aura_row_bytes(dim, bits);
    plan->rule = rule;
    plan->sigma = 1;
    plan->tiny = 0x1.fffffep-51f;
    plan->trellis = 1;
    plan->n_fits = search ? 9 : 1;
    plan->fits[0] = 1;
    if (search)
        memcpy(plan->fits, table_fits, sizeof plan->fits);
    for (uint32_t i = 0; i < 256; i++) {
        plan->centroid[i] = step * (float)aura_trellis_level(kind, i);
        plan->threshold[i] = INFINITY;
    }
    for (uint32_t z = 0; z < 4; z++)
        for (uint32_t m = 0; m + 1 < each; m++)
            plan->threshold[8 * z + m] = 0.5f * (plan->centroid[4 * m + z] + plan->centroid[4 * m + 4 + z]);
    plan->top = plan->centroid[4 * each - 1];
}

void aura_kind_plan_init(struct aura_codec_plan *plan, uint32_t kind, uint32_t dim, aura_scale_rule rule, uint32_t search)
{
    aura_codebook book;
    if (aura_is_trellis(kind)) {
        aura_trellis_plan_init(plan, kind, dim, rule, search);
        return;
    }
    aura_codebook_get(AURA_TABLE_GRID, kind, &book);
    aura_codec_plan_init(plan, &book, dim, rule, search);
}
