/* Problems for the tests of the AURA kernels: caches with room for more tokens, queries, sinks. */
#ifndef AURA_TEST_FAMILY_A_H
#define AURA_TEST_FAMILY_A_H

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_rows.h"
#include "../oracle.h"
#include "../test.h"

static uint64_t state = 7;

/* One side of a cache with room for more tokens: rows without a token are poisoned with NaN norms and all-ones codes. */
struct side {
    aura_packed packed;
    uint8_t *codes;
    void *norms, *codebook;
    double *x; /* [kv_heads][tokens][dim], what the codes stand for */
};

#define NO_SIDE {AURA_PACKED_INIT, NULL, NULL, NULL, NULL}

static void *array_of(const float *x, size_t n, aura_dtype dtype)
{
    char *array = malloc(n * 4 + 4);
    for (size_t i = 0; i < n; i++) {
        uint16_t half = dtype == AURA_F16 ? aura_f16_from_f32(x[i]) : aura_bf16_from_f32(x[i]);
        memcpy(array + i * (dtype == AURA_F32 ? 4 : 2), dtype == AURA_F32 ? (const void *)&x[i] : (const void *)&half,
               dtype == AURA_F32 ? 4 : 2);
    }
    return array;
}

static double number_of(const void *array, size_t i, aura_dtype dtype)
{
    return aura_load(array, dtype, i);
}

/* indices (a i + b) mod 2^bits, norms n0 + n1 i, a codebook on [-1, 1]: the fills of the AURA tests; a = 0: random. */
static struct side make_side(uint32_t bits, uint32_t dim, uint32_t kv_heads, size_t tokens, size_t stride, uint32_t a,
                             uint32_t b, float n0, float n1, aura_dtype norm_dtype, aura_dtype book_dtype)
{
    struct side s;
    size_t row_bytes = aura_row_bytes(dim, bits), rows = kv_heads * stride, live = 0;
    float *norms = malloc(rows * sizeof *norms), book[256];
    s.codes = malloc(rows * row_bytes);
    s.x = malloc(kv_heads * tokens * dim * sizeof *s.x);
    memset(s.codes, 0xff, rows * row_bytes);
    for (uint32_t i = 0; i < 1u << bits; i++)
        book[i] = -1 + 2 * (float)i / (float)((1u << bits) - 1);
    for (size_t r = 0; r < rows; r++) {
        uint8_t *row = s.codes + r * row_bytes;
        norms[r] = NAN;
        if (r % stride >= tokens)
            continue;
        memset(row, 0, row_bytes);
        for (uint32_t d = 0; d < dim; d++) {
            uint32_t index = (uint32_t)(a ? live * dim * a + (uint64_t)d * a + b : random_bits(&state)) & ((1u << bits) - 1);
            for (uint32_t k = 0; k < bits; k++)
                row[(d * bits + k) / 8] |= (uint8_t)((index >> k & 1) << (d * bits + k) % 8);
        }
        norms[r] = a ? n0 + n1 * (float)live : n0 + n1 * (float)random_uniform(&state);
        live++;
    }
    s.norms = array_of(norms, rows, norm_dtype);
    s.codebook = array_of(book, (size_t)1 << bits, book_dtype);
    for (size_t h = 0; h < kv_heads; h++)
        for (size_t t = 0; t < tokens; t++)
            for (uint32_t d = 0; d < dim; d++)
                s.x[(h * tokens + t) * dim + d] =
                    number_of(s.norms, h * stride + t, norm_dtype) *
                    number_of(s.codebook, oracle_unpack(s.codes + (h * stride + t) * row_bytes, bits, d), book_dtype);
    aura_packed packed = {bits, s.codes, s.norms, s.codebook, norm_dtype, book_dtype, stride, 0};
    s.packed = packed;
    free(norms);
    return s;
}

static void free_side(struct side *s)
{
    free(s->codes), free(s->norms), free(s->codebook), free(s->x);
}

/* A whole problem: cache, queries, sinks, and every option. */
struct problem {
    uint32_t kb, vb, dim, q_heads, kv_heads;
    size_t tokens, k_stride, v_stride;
    uint64_t window;
    int has_sinks;
    uint32_t sink_heads;
    aura_dtype side, q_dtype, out; /* of norms, codebooks and sinks; of queries; of outputs */
    struct side k, v;
    void *q, *sinks;
};

static void finish_problem(struct problem *p, uint32_t ka, uint32_t kb, uint32_t va, uint32_t vb)
{
    float *q = malloc(p->q_heads * p->dim * sizeof *q), sinks[64];
    p->k = make_side(p->kb, p->dim, p->kv_heads, p->tokens, p->k_stride, ka, kb, 0.3f, 0.05f, p->side, p->side);
    p->v = make_side(p->vb, p->dim, p->kv_heads, p->tokens, p->v_stride, va, vb, 0.4f, 0.07f, p->side, p->side);
    for (size_t i = 0; i < (size_t)p->q_heads * p->dim; i++)
        q[i] = ka ? ((float)(13 * i % 19) - 9) * 0.02f : random_normal(&state) * 0.3f;
    for (uint32_t h = 0; h < 64; h++)
        sinks[h] = -0.5f + 0.2f * (float)(h % 9);
    p->q = array_of(q, (size_t)p->q_heads * p->dim, p->q_dtype);
    p->sinks = array_of(sinks, 64, p->side);
    free(q);
}

static void free_problem(struct problem *p)
{
    free_side(&p->k), free_side(&p->v), free(p->q), free(p->sinks);
}

#endif
