/* llama.cpp's cache types, by the formulas of its plain C versions, and two of papers'. llama.cpp's vectorised q8_0 rounds ties to
 * even and divides in another order: codes that lie exactly between two integers may differ, nothing else. */
#include "peer_quant.h"

#include <math.h>
#include <string.h>

#include "../../include/aura_rows.h"
#include "../../src/base/dtype.h"

static float as_f16(float x)
{
    return aura_f32_from_f16(aura_f16_from_f32(x));
}

/* The number that is largest in magnitude, the first of equals, with its sign. */
static float peak(const float *x)
{
    float most = 0;
    for (int i = 0; i < PEER_BLOCK; i++)
        if (fabsf(x[i]) > fabsf(most))
            most = x[i];
    return most;
}

static float inverse(float d)
{
    return d != 0 ? 1.0f / d : 0.0f;
}

static void block_f16(const float *x, float *out)
{
    for (int i = 0; i < PEER_BLOCK; i++)
        out[i] = as_f16(x[i]);
}

static void block_q8_0(const float *x, float *out)
{
    float d = fabsf(peak(x)) / 127, id = inverse(d), stored = as_f16(d);
    for (int i = 0; i < PEER_BLOCK; i++)
        out[i] = roundf(x[i] * id) * stored;
}

/* Codes 0 ... 2 half - 1 that stand for code - half. The scale's sign is such that the peak is -half, which is exact. */
static void block_signed(const float *x, float *out, int half)
{
    float d = peak(x) / (float)-half, id = inverse(d), stored = as_f16(d);
    for (int i = 0; i < PEER_BLOCK; i++) {
        int code = (int)(x[i] * id + (float)half + 0.5f);
        out[i] = (float)((code < 2 * half ? code : 2 * half - 1) - half) * stored;
    }
}

/* Codes 0 ... top of n numbers, `step` apart, from the smallest to the largest. */
static void span_between(const float *x, float *out, size_t step, size_t n, int top)
{
    float least = x[0], most = x[0];
    for (size_t i = 1; i < n; i++)
        least = x[i * step] < least ? x[i * step] : least, most = x[i * step] > most ? x[i * step] : most;
    float d = (most - least) / (float)top, id = inverse(d), stored = as_f16(d), stored_least = as_f16(least);
    for (size_t i = 0; i < n; i++) {
        int code = (int)((x[i * step] - least) * id + 0.5f);
        out[i * step] = (float)(code < top ? code : top) * stored + stored_least;
    }
}

static void block_between(const float *x, float *out, int top)
{
    span_between(x, out, 1, PEER_BLOCK, top);
}

static void block_kivi2(const float *x, float *out)
{
    block_between(x, out, 3);
}

static void block_q5_1(const float *x, float *out)
{
    block_between(x, out, 31);
}

static void block_q5_0(const float *x, float *out)
{
    block_signed(x, out, 16);
}

static void block_q4_1(const float *x, float *out)
{
    block_between(x, out, 15);
}

static void block_q4_0(const float *x, float *out)
{
    block_signed(x, out, 8);
}

/* The level nearest to x; at a tie the upper one. */
static float nearest_level(float x)
{
    static const float level[16] = {-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113};
    int i = 0;
    while (i < 15 && level[i + 1] <= x)
        i++;
    if (x <= level[0] || i == 15)
        return level[i];
    return x - level[i] < level[i + 1] - x ? level[i] : level[i + 1];
}

/* The peak goes to the outermost level; then the scale is fitted to the codes, each number weighted by its square. */
static void block_iq4_nl(const float *x, float *out)
{
    float most = peak(x), code[PEER_BLOCK], fit = 0, norm = 0;
    if (fabsf(most) < 1e-15f) {
        memset(out, 0, PEER_BLOCK * sizeof *out);
        return;
    }
    float id = 1 / (most / -127);
    for (int i = 0; i < PEER_BLOCK; i++) {
        float weight = x[i] * x[i];
        code[i] = nearest_level(id * x[i]);
        fit += weight * code[i] * x[i];
        norm += weight * code[i] * code[i];
    }
    float stored = as_f16(norm > 0 ? fit / norm : 0);
    for (int i = 0; i < PEER_BLOCK; i++)
        out[i] = stored * code[i];
}

#define LLAMA "llama.cpp"
const struct peer peers[] = {
    {"f16", 16, 0, block_f16, 0, 0, 0, LLAMA},       {"q8_0", 8.5, 0, block_q8_0, 1, 0, 0, LLAMA},
    {"q5_1", 6, 0, block_q5_1, 1, 0, 0, LLAMA},      {"q5_0", 5.5, 0, block_q5_0, 1, 0, 0, LLAMA},
    {"q4_1", 5, 0, block_q4_1, 1, 0, 0, LLAMA},      {"q4_0", 4.5, 0, block_q4_0, 1, 0, 0, LLAMA},
    {"iq4_nl", 4.5, 0, block_iq4_nl, 1, 0, 0, LLAMA}, {"kivi2", 3, 0, block_kivi2, 0, 1, 0, "KIVI"},
    {"tq4", 4, 16, NULL, 0, 0, 4, "TurboQuant"},     {"tq3", 3, 16, NULL, 0, 0, 3, "TurboQuant"},
    {"tq2", 2, 16, NULL, 0, 0, 2, "TurboQuant"},     {NULL, 0, 0, NULL, 0, 0, 0, NULL},
};

double peer_bits(const struct peer *peer, uint32_t dim)
{
    return peer->bits + peer->row_bits / dim;
}

const struct peer *peer_find(const char *name)
{
    for (const struct peer *p = peers; p->name; p++)
        if (!strcmp(p->name, name))
            return p;
    return NULL;
}

/* Keys are rotated in groups of the largest power of two that divides the head, values in groups of 64. A head that 64 does not
 * divide is not rotated. */
uint32_t peer_rotation(uint32_t dim, enum peer_side side)
{
    if (!dim || dim % 64)
        return 0;
    return side == PEER_KEYS ? dim & -dim : 64;
}

/* x = H x / sqrt(n) with Sylvester's H: its own inverse. */
static void hadamard(float *x, uint32_t n)
{
    for (uint32_t stride = 1; stride < n; stride *= 2)
        for (uint32_t i = 0; i < n; i++)
            if (!(i & stride)) {
                float a = x[i], b = x[i + stride];
                x[i] = a + b, x[i + stride] = a - b;
            }
    for (uint32_t i = 0; i < n; i++)
        x[i] *= 1 / sqrtf((float)n);
}

/* A vector's norm in f16, and the numbers of its direction, behind random signs and the largest Hadamard transform that divides
 * the dim, each by the nearest Lloyd-Max level of a normal variable. */
static void store_levels(uint32_t bits, uint32_t dim, float *x)
{
    aura_codebook book;
    const uint32_t turn = dim & -dim;
    uint64_t random = 0x9e3779b97f4a7c15u;
    double sum = 0;
    float sign[AURA_MAX_DIM];
    for (uint32_t i = 0; i < dim; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u;
        sign[i] = random >> 63 ? -1.f : 1.f, sum += (double)x[i] * x[i], x[i] *= sign[i];
    }
    const float norm = as_f16((float)sqrt(sum)), unit = norm > 0 ? sqrtf((float)dim) / (float)sqrt(sum) : 0;
    if (aura_codebook_get(AURA_TABLE_EXACT, bits, &book))
        return; /* bits of the list above are built in */
    for (uint32_t i = 0; i < dim; i += turn)
        hadamard(x + i, turn);
    for (uint32_t i = 0; i < dim; i++) {
        uint32_t level = 0;
        while (level + 1 < book.levels && x[i] * unit > book.threshold[level])
            level++;
        x[i] = book.centroid[level] * norm / sqrtf((float)dim);
    }
    for (uint32_t i = 0; i < dim; i += turn)
        hadamard(x + i, turn);
    for (uint32_t i = 0; i < dim; i++)
        x[i] *= sign[i];
}

static void store_row(const struct peer *peer, enum peer_side side, uint32_t dim, float *x)
{
    uint32_t n = peer->rotated ? peer_rotation(dim, side) : 0;
    if (peer->levels) {
        store_levels(peer->levels, dim, x);
        return;
    }
    for (uint32_t i = 0; n && i < dim; i += n)
        hadamard(x + i, n);
    for (uint32_t i = 0; i < dim; i += PEER_BLOCK)
        peer->block(x + i, x + i);
    for (uint32_t i = 0; n && i < dim; i += n)
        hadamard(x + i, n);
}

void peer_store(const struct peer *peer, enum peer_side side, uint32_t heads, uint32_t dim, size_t tokens, float *x)
{
    const size_t row = (size_t)heads * dim;
    if (!peer->by_channel || side != PEER_KEYS) {
        for (float *end = x + tokens * row; x < end; x += dim)
            store_row(peer, side, dim, x);
        return;
    }
    for (size_t t = 0; t < tokens; t += PEER_BLOCK)
        for (size_t i = 0; i < row; i++)
            span_between(x + t * row + i, x + t * row + i, row, tokens - t < PEER_BLOCK ? tokens - t : PEER_BLOCK, 3);
}
