/* The mlx-native kernels: transforms, encoders, decoders, copies. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_rows.h"
#include "../oracle.h"
#include "../test.h"

static uint64_t state = 13;

/* ---- transforms -------------------------------------------------------------------------------------------------------- */

static void fwht(void)
{
    float x[4 * 256], y[4 * 256];
    aura_rotation plain = {sizeof plain, AURA_ROTATION_HADAMARD, 8, NULL, NULL, NULL};
    aura_rotate_args a = {sizeof a, &plain, 1, x, y, AURA_F32, AURA_F32, 0, 0};
    memset(x, 0, sizeof x);
    for (int i = 0; i < 8; i++)
        x[i] = (float)(i + 1);
    EXPECT(!aura_rotate(ctx, &a) && fabsf(y[0] - 36 / sqrtf(8)) < 1e-5f && fabsf(y[1] + 4 / sqrtf(8)) < 1e-5f,
           "known values: %g %g",
           (double)y[0], (double)y[1]);
    for (uint32_t dim = 128; dim <= 512; dim *= 2) {
        const uint8_t *signs = aura_tq_signs(dim);
        plain.dim = dim, a.rows = 1, a.in = x, a.out = y;
        fill_vector(x, dim, NORMAL, &state);
        double energy = 0, after = 0;
        EXPECT(!aura_rotate(ctx, &a), "%s", aura_last_error());
        for (uint32_t i = 0; i < dim; i++)
            energy += (double)x[i] * x[i], after += (double)y[i] * y[i];
        EXPECT(fabs(after / energy - 1) < 1e-5, "energy");
        a.in = y;
        EXPECT(!aura_rotate(ctx, &a), "%s", aura_last_error());
        for (uint32_t i = 0; i < dim; i++)
            EXPECT(fabsf(y[i] - x[i]) < 1e-5f, "without signs it is its own inverse");
        EXPECT((signs != NULL) == (dim > 128), "signs of %u", dim);
        for (uint32_t i = 0; signs && i < dim; i++) { /* premult is y = H s x / sqrt(dim), from the definition */
            double want = 0;
            plain.signs = signs, a.in = x;
            if (i == 0)
                aura_rotate(ctx, &a);
            for (uint32_t j = 0; j < dim; j++)
                want += ((signs[j / 8] >> j % 8 & 1) ^ __builtin_parity(i & j) ? -x[j] : x[j]) / sqrt(dim);
            EXPECT(fabs(y[i] - want) < 1e-5, "premult [%u] is %g, not %g", i, (double)y[i], want);
        }
        plain.signs = NULL;
    }
    plain.dim = 104;
    EXPECT(aura_rotate(ctx, &a) == AURA_UNSUPPORTED, "104 has no transform");
    plain.dim = 256, a.rows = 0;
    EXPECT(!aura_rotate(ctx, &a), "no rows");
}

/* ---- encoders ------------------------------------------------------------------------------------------------------------ */

/* The published steps in double: signs, transform, norm, thresholds. Codes within 1e-6 of a threshold may differ. */
static void compare_encoded(const float *x, uint32_t dim, uint32_t bits, float sf, const uint8_t *packed, const float *norms)
{
    double y[512], square[2] = {0};
    aura_codebook book;
    const uint8_t *signs = aura_tq_signs(dim);
    aura_codebook_get(AURA_TABLE_TQ, bits, &book);
    for (uint32_t i = 0; i < dim; i++) {
        y[i] = 0;
        for (uint32_t j = 0; j < dim; j++)
            y[i] += ((signs[j / 8] >> j % 8 & 1) ^ __builtin_parity(i & j) ? -x[j] : x[j]) / sqrt(dim);
        square[i / 256] += y[i] * y[i];
    }
    for (uint32_t i = 0; i < dim; i++) {
        double norm = dim == 256 ? sqrt(square[0]) : sqrt(square[i / 256] / 256), nearest = 1;
        double v = norm > 1e-10 ? y[i] * (dim == 256 ? 16 : sf) / norm : 0;
        uint32_t want = 0, got = bits == 4 ? packed[i / 2] >> i % 2 * 4 & 15 : packed[i];
        for (uint32_t k = 0; k + 1 < book.levels; k++)
            want += v > book.threshold[k], nearest = fabs(v - book.threshold[k]) < nearest ? fabs(v - book.threshold[k]) : nearest;
        EXPECT(got == want || (nearest < 1e-6 && (got == want + 1 || got + 1 == want)),
               "%u bits, dim %u: code %u is %u, not %u", bits, dim, i, got, want);
        EXPECT(fabs(norms[i / 256] - norm) <= 1e-6 * norm, "norm %g, not %g", (double)norms[i / 256], norm);
    }
}

static void encoders_as_published(void)
{
    static const uint32_t widths[] = {4, 5, 6, 8};
    for (uint32_t dim = 256; dim <= 512; dim *= 2)
        for (int w = 0; w < 4; w++)
            for (int way = 0; way < 4; way++) { /* linear, ring, ring that wraps, many tokens */
                enum { HEADS = 3, CAPACITY = 8 };
                uint32_t bits = widths[w];
                size_t width = bits == 4 ? dim / 2 : dim, tokens = way == 3 ? 6 : 1;
                float *x = malloc(tokens * HEADS * dim * 4), norms[HEADS * CAPACITY * 2];
                uint8_t *packed = malloc(HEADS * CAPACITY * width);
                aura_tq_encode_args a = AURA_TQ_ENCODE_ARGS_INIT;
                fill_vector(x, tokens * HEADS * dim, way == 1 ? OUTLIERS : NORMAL, &state);
                memset(packed, 0x5a, HEADS * CAPACITY * width), memset(norms, 0x5a, sizeof norms);
                a.dim = dim, a.bits = bits, a.kv_heads = HEADS, a.tokens = tokens, a.capacity = CAPACITY, a.in = x,
                    a.packed = packed, a.norms = norms;
                a.write_pos = way == 0 ? 7 : way == 1 ? 5 : way == 2 ? 10 : 1005, a.sliding = way > 0,
                    a.scale_factor_d512 = way == 2 ? 1.5f : 0;
                EXPECT(!aura_tq_encode(ctx, &a), "%s", aura_last_error());
                for (size_t t = 0; t < tokens; t++)
                    for (size_t h = 0; h < HEADS; h++) {
                        size_t slot = h * CAPACITY + (a.write_pos + t) % CAPACITY;
                        aura_tq_dequant_args d = AURA_TQ_DEQUANT_ARGS_INIT;
                        float back[HEADS * 512];
                        compare_encoded(x + (t * HEADS + h) * dim, dim, bits, way == 2 ? 1.5f : 1, packed + slot * width,
                                        norms + slot * (dim / 256));
                        d.dim = dim, d.bits = bits, d.kv_heads = HEADS, d.capacity = CAPACITY, d.slot = slot % CAPACITY,
                            d.packed = packed;
                        d.norms = norms, d.out = back, d.scale_factor_d512 = a.scale_factor_d512;
                        EXPECT(!aura_tq_dequant(ctx, &d), "%s", aura_last_error());
                        double dot = 0, n1 = 0, n2 = 0; /* against the input: rotate it */
                        float y[512];
                        aura_rotation r = {sizeof r, AURA_ROTATION_HADAMARD, dim, aura_tq_signs(dim), NULL, NULL};
                        aura_rotate_args ra = {sizeof ra, &r, 1, x + (t * HEADS + h) * dim, y, AURA_F32, AURA_F32, 0, 0};
                        aura_rotate(ctx, &ra);
                        for (uint32_t i = 0; i < dim; i++)
                            dot += (double)y[i] * back[h * dim + i], n1 += (double)y[i] * y[i],
                                n2 += (double)back[h * dim + i] * back[h * dim + i];
                        double least = bits == 4 ? 0.985 : bits == 5 ? 0.99 : 0.998;
                        if (dim == 512 && way == 2)
                            least = 0.97; /* a factor of 1.5 pushes the tails over the end of the table */
                        EXPECT(dot / sqrt(n1 * n2) > least, "round trip cosine %g at %u bits", dot / sqrt(n1 * n2), bits);
                    }
                EXPECT(packed[(a.write_pos + tokens) % CAPACITY * width] == 0x5a, "wrote a slot that is not its own");
                free(x), free(packed);
            }
}

static void extreme_vectors_in_tq(void)
{
    static const float sizes[] = {0, 1e-11f, 1e-9f, 1e9f};
    for (int i = 0; i < 4; i++)
        for (uint32_t dim = 256; dim <= 512; dim *= 2)
            for (uint32_t bits = 4; bits <= 8; bits += 4) {
                float x[512], norms[2];
                uint8_t packed[512];
                aura_tq_encode_args a = AURA_TQ_ENCODE_ARGS_INIT;
                for (uint32_t d = 0; d < dim; d++)
                    x[d] = d == 3 ? sizes[i] : 0;
                a.dim = dim, a.bits = bits, a.kv_heads = 1, a.tokens = 1, a.capacity = 1, a.in = x, a.packed = packed,
                    a.norms = norms;
                EXPECT(!aura_tq_encode(ctx, &a), "%s", aura_last_error());
                compare_encoded(x, dim, bits, 1, packed, norms);
                if (sizes[i] < 1e-10f)
                    EXPECT(packed[0] == (bits == 4 ? 0x77 : 127), "codes of zero: 0x%x", packed[0]);
                static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1.000002p40f};
                for (int b = 0; b < 4; b++) {
                    x[9] = bad[b], packed[0] = 0x5a;
                    EXPECT(aura_tq_encode(ctx, &a) == AURA_BAD_VALUE && packed[0] == 0x5a &&
                           strstr(aura_last_error(), "in[0][0][9]"), "%s", aura_last_error());
                }
                x[9] = 0x1p40f;
                EXPECT(!aura_tq_encode(ctx, &a), "%s", aura_last_error());
            }
}

/* At 4 bits and dim 256 an AURA row and a TQ row are the same bytes. */
static void aura_rows_are_tq_nibbles(void)
{
    float x[2 * 256], norms[2], scales[2];
    uint8_t tq[2 * 128], rows[2 * 128];
    aura_codebook book;
    aura_rotation r = {sizeof r, AURA_ROTATION_HADAMARD, 256, aura_tq_signs(256), NULL, NULL};
    aura_tq_encode_args a = AURA_TQ_ENCODE_ARGS_INIT;
    aura_encode_args e = AURA_ENCODE_ARGS_INIT;
    fill_vector(x, 512, NORMAL, &state);
    aura_codebook_get(AURA_TABLE_TQ, 4, &book);
    a.dim = 256, a.bits = 4, a.kv_heads = 2, a.tokens = 1, a.capacity = 1, a.in = x, a.packed = tq, a.norms = norms;
    e.codebook = &book, e.rotation = &r, e.dim = 256, e.rows = 2, e.in = x, e.packed = rows, e.scales = scales,
        e.rule = AURA_SCALE_RAW;
    EXPECT(!aura_tq_encode(ctx, &a) && !aura_encode(ctx, &e) && !memcmp(tq, rows, sizeof tq), "the bytes differ");
    EXPECT(norms[1] == 16 * scales[1], "norm %g, scale %g", (double)norms[1], (double)scales[1]);
}

/* ---- copies ------------------------------------------------------------------------------------------------------------- */

static void kv_copies(void)
{
    enum { HEADS = 2, DIM = 5, CAPACITY = 4, TOKENS = 4 };
    float in[TOKENS * HEADS * DIM], cache[HEADS * CAPACITY * DIM];
    uint16_t half[HEADS * CAPACITY * DIM];
    aura_kv_copy_args a = AURA_KV_COPY_ARGS_INIT;
    for (int i = 0; i < TOKENS * HEADS * DIM; i++)
        in[i] = (float)i * 0.37f;
    for (int way = 0; way < 4; way++) { /* linear, wrapping, token-major, to f16 */
        size_t tokens = way == 0 ? 3 : TOKENS, pos = way == 0 ? 1 : way == 1 ? 7 : 0;
        memset(cache, 0x5a, sizeof cache), memset(half, 0x5a, sizeof half);
        a.heads = HEADS, a.dim = DIM, a.tokens = tokens, a.capacity = CAPACITY, a.write_pos = pos, a.sliding = way == 1;
        a.token_major = way == 2, a.in = in, a.cache = way == 3 ? (void *)half : cache, a.cache_dtype = way == 3 ? AURA_F16
            : AURA_F32;
        EXPECT(!aura_kv_copy(ctx, &a), "%s", aura_last_error());
        for (size_t t = 0; t < tokens; t++)
            for (size_t h = 0; h < HEADS; h++)
                for (size_t d = 0; d < DIM; d++) {
                    size_t slot = (pos + t) % CAPACITY, at = (way == 2 ? slot * HEADS + h : h * CAPACITY + slot) * DIM + d;
                    float want = in[(t * HEADS + h) * DIM + d];
                    EXPECT(way == 3 ? half[at] == aura_f16_from_f32(want) : cache[at] == want, "way %d token %zu", way, t);
                }
        if (way == 0)
            EXPECT(((uint8_t *)cache)[0] == 0x5a, "slot 0 was not written to");
    }
    a.sliding = 0, a.token_major = 0, a.cache = cache, a.cache_dtype = AURA_F32, a.write_pos = 1;
    memset(cache, 0x5a, sizeof cache);
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)cache)[40] == 0x5a, "a write past a linear cache");
    a.sliding = 1, a.tokens = 5;
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT, "two tokens for one slot");
    a.tokens = 2, a.dim = 0;
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "dim"), "dim 0: %s", aura_last_error());
    a.dim = DIM, a.in = cache + 3;
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    a.in = in, a.sliding = 0, a.write_pos = 5, a.tokens = 1;
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)cache)[40] == 0x5a,
           "a write beyond the end of a linear cache");
    a.tokens = 0, a.sliding = 1, a.in = NULL, a.cache = NULL;
    EXPECT(!aura_kv_copy(ctx, &a), "no tokens: %s", aura_last_error());
    a.heads = 0;
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT, "no heads");
}

/* A write position that wraps: 2^64 - 1 is slot 0 of 3; the next token goes to slot 1. */
static void positions_without_end(void)
{
    float in[2 * 256], cache[3 * 256] = {0}, norms[3] = {0};
    uint8_t packed[3 * 128];
    aura_kv_copy_args c = AURA_KV_COPY_ARGS_INIT;
    aura_tq_encode_args e = AURA_TQ_ENCODE_ARGS_INIT;
    fill_vector(in, 512, NORMAL, &state);
    c.heads = 1, c.dim = 256, c.tokens = 2, c.capacity = 3, c.write_pos = UINT64_MAX, c.sliding = 1, c.in = in, c.cache = cache;
    EXPECT(!aura_kv_copy(ctx, &c) && !memcmp(cache, in, sizeof in), "%s", aura_last_error());
    e.dim = 256, e.bits = 4, e.kv_heads = 1, e.tokens = 2, e.capacity = 3, e.write_pos = UINT64_MAX, e.sliding = 1, e.in = in;
    e.packed = packed, e.norms = norms;
    EXPECT(!aura_tq_encode(ctx, &e) && norms[0] > 1 && norms[1] > 1 && norms[2] == 0, "%g %g %g", (double)norms[0],
           (double)norms[1], (double)norms[2]);
}

static void tests(void)
{
    RUN(fwht);
    RUN(encoders_as_published);
    RUN(extreme_vectors_in_tq);
    RUN(aura_rows_are_tq_nibbles);
    RUN(kv_copies);
    RUN(positions_without_end);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
