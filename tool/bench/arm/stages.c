/* stages STAGE FORMAT ROWS TURNS: a stage of attention over four tiles, D 128, TURNS times. count.sh runs it under an emulator that
 * counts instructions, with two numbers of turns: the difference is what a turn takes. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../../src/base/context.h"
#include "../../../src/rules.h"
#include "../../../src/stages.h"

enum { DIM = 128, MOST = 64, WORDS = AURA_TILE * DIM / 4 + 64 };

static struct {
    _Alignas(64) uint32_t words[AURA_TILES][WORDS];
    struct aura_query query[MOST];
    struct aura_weight weight[AURA_TILES * MOST];
    struct aura_softmax_row row[MOST];
    struct aura_scales scales[AURA_TILES];
    struct aura_tile k[AURA_TILES], v[AURA_TILES];
    struct aura_layout layout;
    float x[MOST * DIM], acc[MOST * DIM], logit[AURA_TILES * MOST * AURA_TILE], factor[MOST], bias[AURA_TILES * MOST];
    uint16_t scale[AURA_TILE];
} all;

static float some(uint32_t *state)
{
    *state = *state * 1664525u + 1013904223u;
    return (float)(*state >> 8) * 0x1p-24f;
}

static void fill(const struct aura_kernels *kernels, uint32_t planes)
{
    uint32_t state = 1;
    for (int i = 0; i < MOST * DIM; i++)
        all.x[i] = some(&state) - 0.5f;
    kernels->query[0](all.query, all.x, DIM, MOST);
    for (size_t i = 0; i < AURA_TILES * WORDS; i++)
        all.words[i / WORDS][i % WORDS] = (uint32_t)(some(&state) * 65536) << 16 | (uint32_t)(some(&state) * 65536);
    for (int i = 0; i < AURA_TILE; i++)
        all.scale[i] = 0x3c00; /* 1 */
    for (int i = 0; i < MOST; i++)
        all.factor[i] = 1e-6f, all.row[i].max = 0;
    for (int i = 0; i < AURA_TILES * MOST * AURA_TILE; i++)
        all.logit[i] = -8 * some(&state);
    for (int i = 0; i < AURA_TILES; i++) {
        const struct aura_tile tile = {all.words[i], (const uint8_t *)all.words, all.scale, &all.layout.k, planes};
        const struct aura_scales scales = {all.scale, NULL, 0, 1};
        all.k[i] = all.v[i] = tile, all.v[i].side = &all.layout.v, all.scales[i] = scales;
    }
}

int main(int argc, char **argv)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_format format;
    aura_ctx *ctx;
    options.threads = 1;
    if (argc != 5 || aura_format_parse(argv[2], &format) || atoi(argv[3]) > MOST || aura_ctx_create(&options, &ctx))
        return fprintf(stderr, "usage: stages score|softmax|value FORMAT ROWS TURNS\n"), 2;
    const struct aura_kernels *kernels = &ctx->kernels;
    const uint32_t kind = (uint32_t)format.k, planes = aura_planes_of(kind, 0);
    const size_t rows = (size_t)atoi(argv[3]);
    aura_layout_init(&all.layout, format, DIM, DIM);
    fill(kernels, planes);
    for (long i = atol(argv[4]); i > 0; i--) {
        if (!strcmp(argv[1], "score"))
            kernels->score[AURA_PLANES(kind, planes)](all.logit, all.query, all.k, all.factor, all.bias, rows, AURA_TILES);
        else if (!strcmp(argv[1], "softmax"))
            kernels->softmax[0](all.weight, all.logit, all.row, all.scales, planes, rows, AURA_TILES);
        else
            kernels->value[AURA_PLANES(kind, planes)](all.acc, DIM, all.weight, all.v, rows, AURA_TILES);
    }
    aura_ctx_destroy(ctx);
    return 0;
}
