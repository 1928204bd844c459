/* Attention in double, written for the tests alone: no code of the library decides what is right. */
#ifndef AURA_ORACLE_H
#define AURA_ORACLE_H

#include <math.h>
#include <stdint.h>
#include <stdlib.h>

#include "../include/aura.h"
#include "../src/base/dtype.h"
#include "../tool/parts/inputs.h"
#include "test.h"

/* Keys and values as numbers, [token][dim], and which tokens are seen. */
struct oracle {
    uint32_t dim;
    size_t tokens;
    const double *k, *v;
    const uint8_t *seen;  /* [tokens], or NULL: all */
    double scale, softcap, sink; /* sink -INFINITY: none */
};

/* out[dim] and the log-sum-exp; *size, where not NULL, is the largest sum over tokens of weight * |value|. */
static inline void oracle_attend(double *out, double *lse, double *size, const struct oracle *o, const double *q)
{
    double max = o->sink, sum = 0, *weight = malloc((o->tokens + 1) * sizeof *weight);
    for (size_t t = 0; t < o->tokens; t++) {
        double dot = 0;
        for (uint32_t d = 0; d < o->dim; d++)
            dot += q[d] * o->k[t * o->dim + d];
        dot *= o->scale;
        weight[t] = o->softcap > 0 ? o->softcap * tanh(dot / o->softcap) : dot;
        if (o->seen && !o->seen[t])
            weight[t] = -INFINITY;
        max = weight[t] > max ? weight[t] : max;
    }
    for (size_t t = 0; t < o->tokens; t++)
        sum += weight[t] = weight[t] == -INFINITY ? 0 : exp(weight[t] - max);
    sum += o->sink == -INFINITY ? 0 : exp(o->sink - max);
    if (size)
        *size = 0;
    for (uint32_t d = 0; d < o->dim; d++) {
        double total = 0, magnitude = 0;
        for (size_t t = 0; t < o->tokens; t++) {
            total += weight[t] * o->v[t * o->dim + d];
            magnitude += fabs(weight[t] * o->v[t * o->dim + d]);
        }
        out[d] = sum > 0 ? total / sum : 0;
        if (size && sum > 0 && magnitude / sum > *size)
            *size = magnitude / sum;
    }
    *lse = sum > 0 ? max + log(sum) : -INFINITY;
    free(weight);
}

/* Rounding of one number to an element type. */
static inline float oracle_round(float x, aura_dtype dtype)
{
    return dtype == AURA_F16    ? aura_f32_from_f16(aura_f16_from_f32(x))
           : dtype == AURA_BF16 ? aura_f32_from_bf16(aura_bf16_from_f32(x))
                                : x;
}

/* Half a unit in the last place of a type, relative. */
static inline double oracle_unit(aura_dtype dtype)
{
    return dtype == AURA_F16 ? 0x1p-11 : dtype == AURA_BF16 ? 0x1p-8 : 0x1p-24;
}

/* Index d of a row of `bits`-bit indices, by words, as the AURA kernels state it. */
static inline uint32_t oracle_unpack(const uint8_t *row, uint32_t bits, uint32_t d)
{
    uint32_t at = d * bits / 32, shift = d * bits % 32, word[2] = {0};
    memcpy(&word[0], row + 4 * at, 4);
    if (shift + bits > 32)
        memcpy(&word[1], row + 4 * at + 4, 4);
    return (uint32_t)(((uint64_t)word[1] << 32 | word[0]) >> shift) & ((1u << bits) - 1);
}

/* The context under test. Every test of a program runs once for each instruction set of the machine. A derived set has kernels
 * for integer dot products only: it runs together with the set it extends, and only if `derived` is set. AURA_TEST_ISA in the
 * environment leaves only one. */
static aura_ctx *ctx;

static inline void on_isas(void (*tests)(void), int derived)
{
    static const struct {
        uint32_t flag, base;
        const char *name;
    } isas[] = {{AURA_ISA_REF, 0, "ref"},
                {AURA_ISA_AVX2, 0, "avx2"},
                {AURA_ISA_AVXVNNI, AURA_ISA_AVX2, "avxvnni"},
                {AURA_ISA_AVX512, 0, "avx512"},
                {AURA_ISA_AVX512VNNI, AURA_ISA_AVX512, "avx512vnni"},
                {AURA_ISA_AMX, AURA_ISA_AVX512 | AURA_ISA_AVX512VNNI, "amx"},
                {AURA_ISA_NEON, 0, "neon"},
                {AURA_ISA_DOTPROD, AURA_ISA_NEON, "dotprod"},
                {AURA_ISA_I8MM, AURA_ISA_NEON | AURA_ISA_DOTPROD, "i8mm"}};
    for (size_t i = 0; i < sizeof isas / sizeof *isas; i++) {
        aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
        options.isa_mask = isas[i].flag | isas[i].base;
        const char *only = getenv("AURA_TEST_ISA");
        if ((only && strcmp(only, isas[i].name)) || (isas[i].base && !derived) || !(aura_cpu_isas() & isas[i].flag) ||
            aura_ctx_create(&options, &ctx))
            continue;
        test_suffix = isas[i].name;
        tests();
        aura_ctx_destroy(ctx);
    }
}

static inline void on_every_isa(void (*tests)(void))
{
    on_isas(tests, 0);
}

/* For tests that reach the integer stages of tiles: derived sets have only these. */
static inline void on_every_tile_isa(void (*tests)(void))
{
    on_isas(tests, 1);
}

#endif
