/* A codec's plan made ready for the device: windows of levels, and for the search of a fit cells, buckets and weights
 * (fits.cuh). */
#include <algorithm>
#include <math.h>
#include <string.h>
#include <vector>

#include "cache.cuh"
#include "fits.cuh"

/* The window of numbers that are surely above `below` of the thresholds on their side of 0, where `sign` is. A number on a
 * threshold takes the lower index: below 0 that is the one further out, so what is compared with there is the last number
 * before. */
static struct dev_window window_of(const struct aura_codec_plan *p, uint32_t below, int sign)
{
    const uint32_t middle = 1u << (p->bits - 1), next = below + 1 < middle ? below + 1 : below;
    struct dev_window w = {INFINITY, 0, 0, 0};
    w.code = sign > 0 ? (middle + below) | (middle + next) << 16 : (middle - 1 - below) | (middle - 1 - next) << 16;
    w.low = sign * p->centroid[middle + below];
    w.high = sign * p->centroid[middle + next];
    if (next > below)
        w.above = sign > 0 ? p->threshold[middle + below] : nextafterf(p->threshold[middle + below], 0);
    return w;
}

/* Grid tables are the same on both sides of 0. The last threshold is 107 bins: with 4 bits, where the room between thresholds is
 * narrowest, all thresholds are whole bins then. */
static void make_windows(struct dev_encoder *e, const struct aura_codec_plan *p)
{
    const uint32_t middle = 1u << (p->bits - 1);
    e->bins = 107 / p->threshold[2 * middle - 2];
    for (uint32_t i = 0; i < middle; i++) {
        e->window[0][i] = window_of(p, i, 1);
        e->window[1][i] = window_of(p, i, -1);
    }
    for (uint32_t b = 0; b < sizeof e->below; b++) /* with room for roundings */
        for (uint32_t i = 0; i + 1 < middle; i++)
            e->below[b] += p->threshold[middle + i] * e->bins < (float)b - 0.51f;
}

/* Where a number of fit 1 is when fit `fit` brings it to threshold i of those above 0. */
static double cut_at(const struct aura_codec_plan *p, uint32_t i, uint32_t fit)
{
    const double one = p->fits[FIT_OF_1] * p->sigma, at_fit = p->fits[fit] * p->sigma;
    return p->threshold[(1u << (p->bits - 1)) + i] * one / at_fit;
}

/* All cuts, in parts of a cell, in order. Cuts that are at most one part apart become one, because no number can be told to be
 * between them. */
static std::vector<uint32_t> cuts_of(const struct aura_codec_plan *p, double parts)
{
    std::vector<uint32_t> cuts;
    for (uint32_t i = 0; i + 1 < 1u << (p->bits - 1); i++)
        for (uint32_t f = 0; f < ENCODE_FITS; f++)
            cuts.push_back((uint32_t)lrint(cut_at(p, i, f) * parts));
    std::sort(cuts.begin(), cuts.end());
    cuts.erase(std::unique(cuts.begin(), cuts.end(), [](uint32_t a, uint32_t b) { return b - a <= 1; }), cuts.end());
    return cuts;
}

/* Whether every cell has at most one cut, and every cut is so far from the ends of its cell that rounding moves no number near it
 * into another cell. */
static bool cells_suffice(const std::vector<uint32_t> &cuts)
{
    bool suffice = true;
    for (size_t i = 0; i < cuts.size(); i++) {
        const uint32_t low = cuts[i] % (1u << CELL_BITS);
        suffice = suffice && low > UNSURE && low < (1u << CELL_BITS) - UNSURE && cuts[i] >> CELL_BITS < CELLS;
        suffice = suffice && (i == 0 || cuts[i] >> CELL_BITS > cuts[i - 1] >> CELL_BITS);
    }
    return suffice && cuts.size() < BUCKETS;
}

/* The word of a cell, to which a part is added with the bits of PARTS_0: see fits.cuh. Without a cut, what is below bit 16 then
 * is far from 0 on both sides. */
static void make_cells(struct dev_encoder *e, const std::vector<uint32_t> &cuts)
{
    size_t below = 0;
    for (uint32_t i = 0; i < CELLS; i++) {
        const bool cut = below < cuts.size() && cuts[below] >> CELL_BITS == i;
        const uint32_t room = cut ? (1u << 16) - (cuts[below] % (1u << CELL_BITS) - UNSURE / 2) : 1u << 14;
        e->cell[i] = (uint32_t)(below << 16) + room - (i << CELL_BITS) - PARTS_0_BITS;
        below += cut;
    }
}

/* The code of each bucket with each fit. Above the last cut there is one bucket; more are never met. */
static void make_codes(struct dev_encoder *e, const struct aura_codec_plan *p, const std::vector<uint32_t> &cuts, double parts)
{
    const uint32_t middle = 1u << (p->bits - 1);
    for (uint32_t f = 0; f < ENCODE_FITS; f++)
        for (uint32_t b = 0; b < BUCKETS; b++) {
            const size_t cut = std::min((size_t)b, cuts.size());
            e->code[f][b] = (uint8_t)middle;
            for (uint32_t i = 0; i + 1 < middle; i++)
                e->code[f][b] += cut > 0 && lrint(cut_at(p, i, f) * parts) <= (long)cuts[cut - 1] + 1;
        }
    for (uint32_t i = middle; i < 2 * middle; i++)
        e->level[i] = p->centroid[i];
}

/* Row `row` of the weights for a bucket; likely_fits says which is what. */
static uint8_t weight_of(const struct dev_encoder *e, const struct aura_side *side, uint32_t row, uint32_t bucket)
{
    const uint32_t what = row < 24 ? row / 8 : row - 24, code = e->code[row < 24 ? row % 8 : ENCODE_FITS - 1][bucket];
    const int32_t level = aura_level_of_code(side, (uint8_t)code);
    return (uint8_t)(what == 0 ? level : what == 1 ? level * level : what == 2 ? level * level >> 8 : what == 3);
}

/* As operands of mma: lane (g, t) has rows g and g + 8, bytes 4 t ... and 16 + 4 t ... of 32. */
static void make_weights(struct dev_encoder *e, const struct aura_side *side)
{
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t lane = 0; lane < 32; lane++) {
            uint8_t byte[4][4];
            for (uint32_t r = 0; r < 4; r++)
                for (uint32_t b = 0; b < 4; b++)
                    byte[r][b] = weight_of(e, side, i / 2 * 16 + r % 2 * 8 + lane / 4, i % 2 * 32 + r / 2 * 16 + lane % 4 * 4 + b);
            memcpy(&e->weight[i][lane], byte, sizeof byte);
        }
}

/* The shares of a vector add up to less than 2^SUM_BITS. Each share is wrong by at most half, so cosine times length is wrong by at
 * most sqrt(dim) / 2. The CPU's own sums add one rounding for each addition. The margin covers both errors, twice, because two fits
 * are compared. */
static void make_search(struct dev_encoder *e, const struct aura_codec_plan *p, const struct aura_side *side)
{
    float parts = (float)(0x1p23 / cut_at(p, (1u << (p->bits - 1)) - 2, 0));
    while (!cells_suffice(cuts_of(p, parts))) /* 256 times for 4 bits, once or not at all for others */
        parts *= 1 - 0x1p-14f;
    const std::vector<uint32_t> cuts = cuts_of(p, parts);
    make_cells(e, cuts);
    make_codes(e, p, cuts, parts);
    make_weights(e, side);
    e->cells = parts;
    e->share = (float)(0x0.ffcp24 / (p->dim * p->fits[FIT_OF_1] * p->sigma));
    e->margin = (float)((1.1875 * p->dim + 40) / sqrt(p->dim));
}

/* A cache never keeps the scales of tiny vectors. */
void aura_cuda_make_encoder(struct dev_encoder *e, const struct aura_codec_plan *p, const struct aura_side *side)
{
    memset(e, 0, sizeof *e);
    e->bits = p->bits, e->dim = p->dim, e->n_fits = p->n_fits;
    e->rule = (uint32_t)p->rule, e->tiny = p->tiny;
    memcpy(e->fits, p->fits, sizeof e->fits);
    e->unit = p->uniform ? p->top : p->sigma;
    e->step = p->step, e->spacing = p->spacing, e->first = p->first;
    if (p->trellis) {
        memcpy(e->path_level, p->centroid, sizeof e->path_level);
        memcpy(e->between, p->threshold, sizeof e->between);
        return;
    }
    if (p->bits > 4) {
        e->bins = 1 / (p->step * p->spacing);
        return;
    }
    make_windows(e, p);
    if (p->n_fits > 1)
        make_search(e, p, side);
}
