/* Caches for the tests of the mlx-native kernels. */
#ifndef AURA_TEST_FAMILY_B_H
#define AURA_TEST_FAMILY_B_H

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_rows.h"
#include "../oracle.h"
#include "../test.h"

static uint64_t state = 11;

/* A cache of one kind on either side; slots that hold no token are poisoned. */
struct cache {
    aura_vec_side k, v;
    uint32_t dim, kv_heads;
    uint64_t tokens, capacity;
    float sf;
    double *k64, *v64; /* [kv_heads][capacity][dim] */
};

static void store_number(void *array, aura_dtype dtype, size_t i, float x)
{
    aura_store(array, dtype, i, x);
}

/* bits 0: plain numbers of the dtype. Otherwise random codes and norms; this function decodes them with the table. */
static aura_vec_side make_side(const struct cache *c, uint32_t bits, aura_dtype dtype, double **x64)
{
    size_t slots = c->kv_heads * c->capacity, parts = c->dim / 256;
    uint8_t *rows = malloc(slots * c->dim * 4);
    float *norms = malloc(slots * 2 * sizeof *norms);
    aura_codebook book;
    if (bits)
        aura_codebook_get(AURA_TABLE_TQ, bits, &book);
    memset(rows, 0xff, slots * c->dim * 4);
    *x64 = malloc(slots * c->dim * sizeof **x64);
    for (size_t s = 0; s < slots; s++) {
        int live = s % c->capacity < c->tokens;
        for (size_t p = 0; p < 2 && bits; p++)
            if (p < parts)
                norms[s * parts + p] = live ? (c->dim == 256 ? 16.f : 1.f) * (0.3f + (float)random_uniform(&state)) : NAN;
        for (uint32_t d = 0; d < c->dim; d++) {
            float x = live ? oracle_round(random_normal(&state) * 0.5f, dtype) : NAN;
            uint32_t code = bits ? (uint32_t)random_bits(&state) & ((1u << bits) - 1) : 0;
            if (!bits) {
                store_number(rows, dtype, s * c->dim + d, x);
                (*x64)[s * c->dim + d] = x;
                continue;
            }
            if (bits == 4) {
                uint8_t *byte = rows + (s * c->dim + d) / 2;
                *byte = d % 2 ? (uint8_t)((*byte & 0x0f) | code << 4) : (uint8_t)((*byte & 0xf0) | code);
            } else {
                /* upper bits are masked */
                rows[s * c->dim + d] = (uint8_t)(code | (bits < 8 ? (random_bits(&state) & 1) << 7 : 0));
            }
            double norm = norms[s * parts + d / 256];
            (*x64)[s * c->dim + d] = book.centroid[code] * (c->dim == 256 ? norm / 16 : norm / (c->sf < 1e-6f ? 1 : c->sf));
        }
    }
    aura_vec_side side = {bits, dtype, rows, norms};
    return side;
}

static struct cache make_cache(uint32_t kb, uint32_t vb, aura_dtype dtype, uint32_t dim, uint32_t kv_heads, uint64_t tokens,
                               uint64_t capacity, float sf)
{
    struct cache c = {AURA_VEC_SIDE_INIT, AURA_VEC_SIDE_INIT, dim, kv_heads, tokens, capacity, sf, NULL, NULL};
    c.k = make_side(&c, kb, dtype, &c.k64);
    c.v = make_side(&c, vb, dtype, &c.v64);
    return c;
}

static void free_cache(struct cache *c)
{
    free((void *)c->k.rows), free((void *)c->v.rows), free((void *)c->k.norms), free((void *)c->v.norms);
    free(c->k64), free(c->v64);
}

#endif
