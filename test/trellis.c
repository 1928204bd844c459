/* Trellis codes against what trellis.h and doc/format.md say of them, worked out here bit by bit; and what they are for: smaller
 * errors than plain codes of as many bits. */
#include "../src/base/exact.h"

#include <math.h>
#include <string.h>

#include "../src/codec.h"
#include "../src/ref.h"
#include "../src/trellis.h"
#include "oracle.h"
#include "test.h"

static const uint32_t kinds[3] = {AURA_KIND_T2, AURA_KIND_T3, AURA_KIND_T4};
static const int levels[3][16] = {{2, 6, 11, 19},
                                  {1, 3, 5, 7, 10, 13, 17, 24},
                                  {1, 3, 5, 7, 9, 11, 14, 16, 19, 22, 25, 29, 34, 40, 48, 60}};
static uint64_t state = 1;

static uint32_t any(uint32_t n)
{
    state = state * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(state >> 33) % n;
}

/* Level index 4 m + 2 z1 + z0 of 2^(b+1) that ascend and mirror themselves; u is 0 beyond the last channel. */
static int level_of(const uint8_t *code, uint32_t d, uint32_t dim, int bits)
{
    int u[4] = {0}, half = 1 << bits;
    for (uint32_t i = 0; i < 4 && d + i < dim; i++)
        u[i] = code[d + i] & 1;
    const int index = 4 * (code[d] >> 1) + 2 * (u[0] ^ u[1] ^ u[3]) + u[2];
    return index < half ? -levels[bits - 2][half - 1 - index] : levels[bits - 2][index - half];
}

static void codes_stand_for_levels(void)
{
    for (int bits = 2; bits <= 4; bits++) {
        struct aura_codec_plan plan;
        uint8_t code[80];
        float c[80];
        aura_kind_plan_init(&plan, kinds[bits - 2], 80, AURA_SCALE_MATCHED, 1);
        for (int d = 0; d < 80; d++)
            code[d] = (uint8_t)any(1u << bits);
        aura_ref_levels(c, code, &plan);
        for (uint32_t d = 0; d < 80; d++) {
            const float step = aura_trellis_of(kinds[bits - 2])->step;
            EXPECT(c[d] == step * (float)level_of(code, d, 80, bits), "%d bits, channel %u: %g", bits, d, (double)c[d]);
        }
    }
}

/* Where doc/format.md says that bits of a code are: word, and bit. */
static uint32_t word_of(int bits, int bit, uint32_t k)
{
    return bit == 0 ? 0 : bits == 2 ? 1 : bit < 3 ? 1 + k % 2 : 3;
}

static uint32_t bit_of(int bits, int bit, uint32_t k, uint32_t i)
{
    return 8 * i + (bit == 3 ? k ^ 4 : bit == 0 || bits == 2 ? k : 2 * (k / 2) + (uint32_t)bit - 1);
}

static void bits_are_where_the_format_says(void)
{
    static _Alignas(64) uint32_t words[32 * 80];
    static uint8_t index[32 * 80];
    for (int bits = 2; bits <= 4; bits++)
        for (int values = 0; values < 2; values++) {
            struct aura_layout layout;
            uint16_t scale[32];
            aura_format format = {(aura_kind)kinds[bits - 2], (aura_kind)kinds[bits - 2]};
            aura_layout_init(&layout, format, 80, 80);
            const struct aura_side *s = values ? &layout.v : &layout.k;
            for (size_t i = 0; i < sizeof index; i++)
                index[i] = (uint8_t)any(1u << bits);
            aura_pack_ref(words, index, s);
            EXPECT(s->bytes == 32u * (values ? 80 : 96) * (uint32_t)bits / 8, "%u bytes", s->bytes);
            struct aura_tile tile = {words, NULL, scale, s, 1};
            for (uint32_t t = 0; t < 32; t++)
                for (uint32_t d = 0; d < 80; d++) {
                    const uint32_t c = d % 32, k = values ? t / 4 : c % 8, i = values ? t % 4 : c / 8, lane = values ? d : t;
                    const uint8_t code = index[t * 80 + d];
                    for (int bit = 0; bit < bits; bit++) {
                        const uint32_t row = (values ? 0 : d / 32 * (uint32_t)bits) + word_of(bits, bit, k);
                        const uint32_t got = words[row * s->lanes + lane] >> bit_of(bits, bit, k, i) & 1;
                        EXPECT(got == (code >> bit & 1u), "%d bits, %d, token %u, channel %u, bit %d", bits, values, t, d, bit);
                    }
                    const int level = aura_ref_level(&tile, values ? t : d, values ? d : t);
                    EXPECT(level == level_of(index + t * 80, d, 80, bits), "%d bits, %d: token %u, channel %u", bits, values, t, d);
                }
        }
}

/* The mean squared error of what is stored, relative to the energy. */
static double error_of(uint32_t kind, uint32_t dim, int vectors)
{
    struct aura_codec_plan plan;
    double error = 0, energy = 0;
    state = dim;
    aura_kind_plan_init(&plan, kind, dim, AURA_SCALE_MATCHED, 1);
    for (int n = 0; n < vectors; n++) {
        float y[AURA_TILE_DIM], c[AURA_TILE_DIM], scale;
        uint8_t code[AURA_TILE_DIM];
        for (uint32_t d = 0; d < dim; d++) {
            y[d] = -6;
            for (int i = 0; i < 12; i++)
                y[d] += (float)any(1 << 20) / (1 << 20);
        }
        aura_encode_ref(code, &scale, y, &plan, 1);
        aura_ref_levels(c, code, &plan);
        for (uint32_t d = 0; d < dim; d++) {
            const double e = (double)y[d] - (double)c[d] * (double)oracle_round(scale, AURA_F16);
            error += e * e, energy += (double)y[d] * (double)y[d];
        }
    }
    return error / energy;
}

/* A quarter less at 2 bits, three tenths at 3 and 4: the issue of it all. */
static void errors_are_smaller_than_those_of_plain_codes(void)
{
    static const double most[3] = {0.79, 0.74, 0.76};
    for (uint32_t dim = 64; dim <= 128; dim += 64)
        for (uint32_t bits = 2; bits <= 4; bits++) {
            const double plain = error_of(bits, dim, 60), trellis = error_of(kinds[bits - 2], dim, 60);
            EXPECT(trellis <= most[bits - 2] * plain, "%u bits, dim %u: %g instead of %g", bits, dim, trellis, plain);
        }
}

int main(void)
{
    RUN(codes_stand_for_levels);
    RUN(bits_are_where_the_format_says);
    RUN(errors_are_smaller_than_those_of_plain_codes);
    return test_result();
}
