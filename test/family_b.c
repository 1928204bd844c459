/* The mlx-native kernels: flash_attn_vec over plain, TQ and TQ-HB caches, reduce with and without undo, encoders, copies. */
#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "modes.h"
#include "oracle.h"
#include "test.h"

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

/* bits 0: numbers of dtype. Otherwise random codes and norms; what they decode to is computed here from the table. */
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
                rows[s * c->dim + d] = (uint8_t)(code | (bits < 8 ? (random_bits(&state) & 1) << 7 : 0)); /* upper bits are masked */
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

struct options {
    uint32_t q_heads, nwg, mask_type, q_as_f16; /* nwg 0: straight to the output */
    uint64_t window, ring_start;
    float scale, softcap;
    uint64_t keep_first;
    int sinks;
};

static void check_attention(const struct cache *c, const struct options *o, const char *what)
{
    size_t count = (size_t)o->q_heads * c->dim;
    float *q = malloc(count * 4), *out = malloc(count * 4), *temp = malloc((count + 2 * o->q_heads) * (o->nwg + 1) * 4);
    uint8_t *seen = calloc(c->capacity, 1);
    float sinks[64], got_lse[64];
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    fill_vector(q, count, NORMAL, &state);
    memset(out, 0x5a, count * 4);
    a.k = c->k, a.v = c->v, a.dim = c->dim, a.q_heads = o->q_heads, a.kv_heads = c->kv_heads;
    a.tokens = c->tokens, a.capacity = c->capacity, a.q = q, a.out = out, a.temp = o->nwg ? temp : NULL, a.nwg = o->nwg;
    a.mask_type = o->mask_type, a.window = o->window, a.ring_start = o->ring_start, a.scale = o->scale, a.softcap = o->softcap;
    a.scale_factor_d512 = c->sf, a.q_as_f16 = o->q_as_f16, a.keep_first = o->keep_first;
    for (int h = 0; h < 64; h++)
        sinks[h] = h == 2 ? -INFINITY : (float)(h % 5) - 1;
    a.sinks = o->sinks && !o->nwg ? sinks : NULL, r.sinks = o->sinks && o->nwg > 1 ? sinks : NULL;
    a.lse = o->nwg ? NULL : got_lse, r.lse = o->nwg > 1 ? got_lse : NULL;
    EXPECT(!aura_flash_attn_vec(ctx, &a), "%s: %s", what, aura_last_error());
    r.dim = c->dim, r.rows = o->q_heads, r.nwg = o->nwg, r.temp = temp, r.out = out;
    EXPECT(!o->nwg || !aura_flash_attn_vec_reduce(ctx, &r), "%s: %s", what, aura_last_error());
    for (uint64_t p = 0; p < c->tokens; p++) {
        uint64_t i = (p + c->capacity - o->ring_start) % c->capacity;
        uint64_t hidden = o->mask_type == 2 && o->window && c->tokens > o->window ? c->tokens - o->window : 0;
        seen[p] = i < c->tokens && (i >= hidden || i < o->keep_first);
    }
    for (size_t h = 0; h < o->q_heads; h++) {
        size_t kv = h / (o->q_heads / c->kv_heads) * c->capacity * c->dim;
        double q64[AURA_MAX_DIM], want[AURA_MAX_DIM], lse, size;
        struct oracle oracle = {c->dim, c->tokens, c->k64 + kv, c->v64 + kv, seen, o->scale == 0 ? 1 / sqrt(c->dim) : o->scale, o->softcap, -INFINITY};
        if (a.sinks || r.sinks)
            oracle.sink = sinks[h];
        for (uint32_t d = 0; d < c->dim; d++)
            q64[d] = o->q_as_f16 ? oracle_round(q[h * c->dim + d], AURA_F16) : q[h * c->dim + d];
        oracle_attend(want, &lse, &size, &oracle, q64);
        EXPECT(o->nwg == 1 || fabs(got_lse[h] - lse) < 1e-5 * (1 + fabs(lse)) || got_lse[h] == lse, "%s: lse %g, not %g", what, (double)got_lse[h], lse);
        for (uint32_t d = 0; d < c->dim; d++)
            EXPECT(fabs(out[h * c->dim + d] - want[d]) <= 2e-5 * (size + 1e-30), "%s nwg %u window %llu ring %llu: [%zu][%u] is %g, not %g",
                   what, o->nwg, (unsigned long long)o->window, (unsigned long long)o->ring_start, h, d, (double)out[h * c->dim + d], want[d]);
    }
    free(q), free(out), free(temp), free(seen);
}

static void published_dense_cases(void)
{
    static const struct {
        uint32_t dim, q, kv;
        uint64_t tokens, capacity, window;
        float scale;
    } cases[] = {{256, 4, 4, 32, 64, 0, 0.0625f}, {256, 16, 8, 48, 48, 0, 1}, {256, 4, 4, 64, 128, 16, 0.0625f},
                 {512, 4, 4, 32, 64, 0, 0.044f},  {512, 8, 2, 40, 64, 0, 0.044f}, {512, 4, 2, 64, 70, 16, 0.044f}};
    for (int i = 0; i < 6; i++)
        for (int type = AURA_F32; type <= AURA_BF16; type++)
            for (uint32_t nwg = 0; nwg <= 32; nwg += nwg < 2 ? 1 : 15) {
                struct cache c = make_cache(0, 0, (aura_dtype)type, cases[i].dim, cases[i].kv, cases[i].tokens, cases[i].capacity, 0);
                struct options o = {cases[i].q, nwg, cases[i].window ? 2 : 1, nwg & 1, cases[i].window, 0, cases[i].scale, 0, 0, 0};
                check_attention(&c, &o, "dense");
                free_cache(&c);
            }
}

static void published_tq_cases(void)
{
    static const struct {
        uint32_t bits, dim, q, kv;
        uint64_t tokens, window;
    } cases[] = {{4, 256, 8, 4, 64, 0}, {4, 256, 4, 4, 8, 0}, {4, 512, 4, 2, 32, 0}, {8, 256, 8, 4, 64, 0}, {8, 256, 8, 4, 256, 64},
                 {5, 256, 4, 2, 32, 0}, {6, 256, 4, 2, 32, 0}, {8, 256, 32, 4, 1024, 0}, {8, 512, 8, 4, 64, 0}, {5, 512, 8, 2, 33, 0}, {6, 512, 3, 1, 65, 20}};
    for (int i = 0; i < 11; i++) {
        struct cache c = make_cache(cases[i].bits, cases[i].bits, AURA_F32, cases[i].dim, cases[i].kv, cases[i].tokens, cases[i].tokens + 3, i % 2 ? 16 : 0);
        struct options o = {cases[i].q, 16, cases[i].window ? 2 : 0, 0, cases[i].window, 0, 1 / sqrtf((float)cases[i].dim), 0, 0, 0};
        check_attention(&c, &o, "TQ");
        o.nwg = 0, o.softcap = 5;
        check_attention(&c, &o, "TQ with softcap");
        free_cache(&c);
    }
}

/* K and V of different kinds, and dims the public kernels do not have. */
static void mixed_kinds_and_dims(void)
{
    static const uint32_t dims[] = {64, 80, 96, 112, 128, 192, 256, 320, 512, 1024};
    static const uint64_t tokens[] = {1, 31, 32, 33, 63, 64, 65, 100};
    for (int i = 0; i < 10; i++)
        for (int t = 0; t < 8; t++) {
            struct cache c = make_cache(0, 0, (aura_dtype)((i + t) % 3), dims[i], 1 + (uint32_t)t % 3, tokens[t], tokens[t] + (uint64_t)i, 0);
            uint64_t windows[] = {0, 1, tokens[t] - 1, tokens[t], tokens[t] + 1, UINT32_MAX, UINT64_MAX, 7};
            struct options o = {c.kv_heads * (1 + (uint32_t)i), (uint32_t)(t * 4 + i) % 33, 2, 0, windows[(i + t) % 8], 0, 0.1f, t % 2 ? 30 : 0,
                                (uint64_t)(t % 3) * 4, i % 2};
            check_attention(&c, &o, "dense");
            free_cache(&c);
        }
    for (uint32_t kb = 0; kb <= 8; kb++)
        for (uint32_t vb = 0; vb <= 8; vb++) {
            if ((kb && kb < 4) || kb == 7 || (vb && vb < 4) || vb == 7)
                continue;
            struct cache c = make_cache(kb, vb, AURA_F16, kb % 2 ? 512 : 256, 2, 50, 60, 1);
            struct options o = {6, kb + vb, 0, 0, 0, 0, 0.06f, 0, 0, 0};
            check_attention(&c, &o, "mixed");
            free_cache(&c);
        }
}

/* Every slot as the oldest, windows smaller than the ring; and every number of workgroups. */
static void rings_and_workgroups(void)
{
    static const uint64_t windows[] = {0, 1, 7, 20, 39, 40};
    for (uint64_t start = 0; start < 40; start++)
        for (uint32_t bits = 0; bits <= 8; bits += 4) {
            struct cache c = make_cache(bits, bits, AURA_F32, 256, 1, 40, 40, 0);
            for (int w = 0; w < 6; w++) { /* the window begins before the end of the ring, and behind it */
                struct options o = {2, (uint32_t)(start + 5 * (uint64_t)w) % 33, 2, 0, windows[w], start, 0.06f, 0, (start + (uint64_t)w) % 6, w % 2};
                check_attention(&c, &o, "ring");
            }
            struct options all = {2, 3, start % 2, 0, 7, start, 0.06f, 0, 2, 0}; /* mask types 0 and 1 have no window */
            check_attention(&c, &all, "ring without window");
            free_cache(&c);
        }
    struct cache all = make_cache(4, 8, AURA_F32, 256, 2, 1100, 1200, 0);
    for (uint32_t nwg = 0; nwg <= 32; nwg++) {
        struct options o = {4, nwg, 0, 0, 0, 0, nwg % 2 ? 0 : 0.06f, 0, 0, 0};
        check_attention(&all, &o, "workgroups");
    }
    free_cache(&all);
}

static void all_masked_is_zero_and_poison_is_reported(void)
{
    struct cache c = make_cache(8, 8, AURA_F32, 256, 2, 1, 4, 0);
    float q[2 * 256] = {1}, out[2 * 256], temp[2 * 3 * 258];
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    a.k = c.k, a.v = c.v, a.dim = 256, a.q_heads = 2, a.kv_heads = 2, a.tokens = 1, a.capacity = 4, a.q = q, a.out = out, a.scale = 1;
    a.ring_start = 2; /* slot 0 is number 2 in time, past the one live token */
    memset(out, 0x5a, sizeof out);
    EXPECT(!aura_flash_attn_vec(ctx, &a), "%s", aura_last_error());
    for (int i = 0; i < 2 * 256; i++)
        EXPECT(out[i] == 0 && !signbit(out[i]), "masked row has %g", (double)out[i]);
    a.temp = temp, a.nwg = 3;
    r.dim = 256, r.rows = 2, r.nwg = 3, r.temp = temp, r.out = out;
    EXPECT(!aura_flash_attn_vec(ctx, &a) && temp[2 * 3 * 256] == 0 && temp[2 * 3 * 256 + 1] == -FLT_MAX / 2, "an empty workgroup");
    memset(out, 0x5a, sizeof out);
    EXPECT(!aura_flash_attn_vec_reduce(ctx, &r) && out[0] == 0 && out[511] == 0, "empty workgroups reduce to %g", (double)out[0]);
    ((float *)c.k.norms)[4] = INFINITY, a.ring_start = 0; /* KV head 1 */
    EXPECT(aura_flash_attn_vec(ctx, &a) == AURA_NOT_FINITE && strstr(aura_last_error(), "row 1"), "%s", aura_last_error());
    EXPECT(aura_flash_attn_vec_reduce(ctx, &r) == AURA_NOT_FINITE && isnan(out[256]) && isfinite(out[0]), "%s", aura_last_error());
    a.temp = NULL;
    EXPECT(aura_flash_attn_vec(ctx, &a) == AURA_NOT_FINITE && isnan(out[300]) && isfinite(out[3]), "%s", aura_last_error());
    free_cache(&c);
}

/* ---- reduce ---------------------------------------------------------------------------------------------------------- */

static void fused_undo_equals_unfused(void)
{
    static const uint32_t dims[] = {64, 128, 256, 512, 1024};
    for (int i = 0; i < 5; i++)
        for (uint32_t nwg = 1; nwg <= 32; nwg += nwg < 4 ? 1 : 7) {
            uint32_t dim = dims[i], rows = 5;
            uint8_t signs[AURA_MAX_DIM / 8];
            float *temp = malloc(rows * nwg * (dim + 2) * 4), *fused = malloc(rows * dim * 4), *plain = malloc(rows * dim * 4);
            aura_rotation rotation = {sizeof rotation, AURA_ROTATION_HADAMARD, dim, signs, NULL, NULL};
            aura_rotate_args undo = {sizeof undo, &rotation, rows, plain, plain, AURA_F32, AURA_F32, 0, 0};
            aura_flash_attn_vec_reduce_args a = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
            if (aura_tq_signs(dim))
                memcpy(signs, aura_tq_signs(dim), dim / 8);
            else
                aura_signs(1, 1, dim, signs);
            fill_vector(temp, rows * nwg * (dim + 2), NORMAL, &state);
            for (size_t k = (size_t)rows * dim * nwg; k < rows * nwg * (dim + 2); k += 2)
                temp[k] = fabsf(temp[k]) + 0.1f;
            a.dim = dim, a.rows = rows, a.nwg = nwg, a.temp = temp, a.out = plain;
            EXPECT(!aura_flash_attn_vec_reduce(ctx, &a), "%s", aura_last_error());
            for (uint32_t row = 0; row < rows && nwg > 1; row++) { /* against the formula */
                const float *sm = temp + (size_t)rows * dim * nwg + row * 2 * nwg;
                for (uint32_t d = 0; d < dim; d++) {
                    double sum = 0, total = 0, size = 0;
                    for (uint32_t w = 0; w < nwg; w++) {
                        double term = exp(sm[2 * w + 1]) * temp[(size_t)row * dim * nwg + ((size_t)(d / 4) * nwg + w) * 4 + d % 4];
                        sum += exp(sm[2 * w + 1]) * sm[2 * w], total += term, size += fabs(term);
                    }
                    EXPECT(fabs(plain[row * dim + d] - total / sum) < 2e-6 * size / sum, "reduce [%u][%u]", row, d);
                }
            }
            EXPECT(!aura_undo(ctx, &undo), "%s", aura_last_error());
            a.out = fused, a.undo = &rotation;
            EXPECT(!aura_flash_attn_vec_reduce(ctx, &a) && !memcmp(fused, plain, rows * dim * 4), "dim %u nwg %u: fused differs", dim, nwg);
            free(temp), free(fused), free(plain);
        }
}

static void reduce_reports_rows(void)
{
    float temp[2 * 2 * 66], out[2 * 64];
    aura_rotation undo = {sizeof undo, AURA_ROTATION_HADAMARD, 128, NULL, NULL, NULL};
    aura_flash_attn_vec_reduce_args a = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    fill_vector(temp, 2 * 2 * 66, NORMAL, &state);
    float *sm = temp + 2 * 2 * 64;
    sm[0] = sm[2] = sm[4] = sm[6] = 1;
    a.dim = 64, a.rows = 2, a.nwg = 2, a.temp = temp, a.out = out;
    EXPECT(!aura_flash_attn_vec_reduce(ctx, &a), "%s", aura_last_error());
    sm[6] = INFINITY; /* over it, every partial row is 0 */
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_NOT_FINITE && isnan(out[64]) && isfinite(out[0]), "infinite S: %g", (double)out[64]);
    sm[6] = 1, temp[64 * 2 + 5] = INFINITY;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_NOT_FINITE && isnan(out[64]) && isnan(out[127]) && isfinite(out[0]), "infinite O");
    EXPECT(strstr(aura_last_error(), "row 1"), "%s", aura_last_error());
    memset(out, 0x5a, sizeof out);
    a.temp = NULL;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)out)[0] == 0x5a, "%s", aura_last_error());
    a.temp = temp, a.undo = &undo; /* of another dim */
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)out)[0] == 0x5a, "%s", aura_last_error());
    a.undo = NULL, a.out = temp + 131;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    a.nwg = 1, a.out = temp + 128; /* with one workgroup temp is [rows][dim] */
    EXPECT(!aura_flash_attn_vec_reduce(ctx, &a) && temp[128] == temp[0], "%s", aura_last_error());
}

/* ---- transforms -------------------------------------------------------------------------------------------------------- */

static void fwht(void)
{
    float x[4 * 256], y[4 * 256];
    aura_rotation plain = {sizeof plain, AURA_ROTATION_HADAMARD, 8, NULL, NULL, NULL};
    aura_rotate_args a = {sizeof a, &plain, 1, x, y, AURA_F32, AURA_F32, 0, 0};
    memset(x, 0, sizeof x);
    for (int i = 0; i < 8; i++)
        x[i] = (float)(i + 1);
    EXPECT(!aura_rotate(ctx, &a) && fabsf(y[0] - 36 / sqrtf(8)) < 1e-5f && fabsf(y[1] + 4 / sqrtf(8)) < 1e-5f, "known values: %g %g",
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
        EXPECT(got == want || (nearest < 1e-6 && (got == want + 1 || got + 1 == want)), "%u bits, dim %u: code %u is %u, not %u", bits, dim, i, got, want);
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
                a.dim = dim, a.bits = bits, a.kv_heads = HEADS, a.tokens = tokens, a.capacity = CAPACITY, a.in = x, a.packed = packed, a.norms = norms;
                a.write_pos = way == 0 ? 7 : way == 1 ? 5 : way == 2 ? 10 : 1005, a.sliding = way > 0, a.scale_factor_d512 = way == 2 ? 1.5f : 0;
                EXPECT(!aura_tq_encode(ctx, &a), "%s", aura_last_error());
                for (size_t t = 0; t < tokens; t++)
                    for (size_t h = 0; h < HEADS; h++) {
                        size_t slot = h * CAPACITY + (a.write_pos + t) % CAPACITY;
                        aura_tq_dequant_args d = AURA_TQ_DEQUANT_ARGS_INIT;
                        float back[HEADS * 512];
                        compare_encoded(x + (t * HEADS + h) * dim, dim, bits, way == 2 ? 1.5f : 1, packed + slot * width, norms + slot * (dim / 256));
                        d.dim = dim, d.bits = bits, d.kv_heads = HEADS, d.capacity = CAPACITY, d.slot = slot % CAPACITY, d.packed = packed;
                        d.norms = norms, d.out = back, d.scale_factor_d512 = a.scale_factor_d512;
                        EXPECT(!aura_tq_dequant(ctx, &d), "%s", aura_last_error());
                        double dot = 0, n1 = 0, n2 = 0; /* against the input: rotate it */
                        float y[512];
                        aura_rotation r = {sizeof r, AURA_ROTATION_HADAMARD, dim, aura_tq_signs(dim), NULL, NULL};
                        aura_rotate_args ra = {sizeof ra, &r, 1, x + (t * HEADS + h) * dim, y, AURA_F32, AURA_F32, 0, 0};
                        aura_rotate(ctx, &ra);
                        for (uint32_t i = 0; i < dim; i++)
                            dot += (double)y[i] * back[h * dim + i], n1 += (double)y[i] * y[i], n2 += (double)back[h * dim + i] * back[h * dim + i];
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
                a.dim = dim, a.bits = bits, a.kv_heads = 1, a.tokens = 1, a.capacity = 1, a.in = x, a.packed = packed, a.norms = norms;
                EXPECT(!aura_tq_encode(ctx, &a), "%s", aura_last_error());
                compare_encoded(x, dim, bits, 1, packed, norms);
                if (sizes[i] < 1e-10f)
                    EXPECT(packed[0] == (bits == 4 ? 0x77 : 127), "codes of zero: 0x%x", packed[0]);
                static const float bad[] = {NAN, INFINITY, -INFINITY, 0x1.000002p40f};
                for (int b = 0; b < 4; b++) {
                    x[9] = bad[b], packed[0] = 0x5a;
                    EXPECT(aura_tq_encode(ctx, &a) == AURA_BAD_VALUE && packed[0] == 0x5a && strstr(aura_last_error(), "in[0][0][9]"), "%s", aura_last_error());
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
    e.codebook = &book, e.rotation = &r, e.dim = 256, e.rows = 2, e.in = x, e.packed = rows, e.scales = scales, e.rule = AURA_SCALE_RAW;
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
        a.token_major = way == 2, a.in = in, a.cache = way == 3 ? (void *)half : cache, a.cache_dtype = way == 3 ? AURA_F16 : AURA_F32;
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
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)cache)[40] == 0x5a, "a write beyond the end of a linear cache");
    a.tokens = 0, a.sliding = 1, a.in = NULL, a.cache = NULL;
    EXPECT(!aura_kv_copy(ctx, &a), "no tokens: %s", aura_last_error());
    a.heads = 0;
    EXPECT(aura_kv_copy(ctx, &a) == AURA_BAD_ARGUMENT, "no heads");
}

/* A write position that wraps: 2^64 - 1 is slot 0 of 3, and the next token goes to slot 1. */
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
    EXPECT(!aura_tq_encode(ctx, &e) && norms[0] > 1 && norms[1] > 1 && norms[2] == 0, "%g %g %g", (double)norms[0], (double)norms[1], (double)norms[2]);
}

/* Everything these functions can produce; the norms of the second token are small enough for denormals. */
static struct {
    uint8_t packed[2 * 256];
    float norms[2], back[256], copy[2 * 256], out[256], temp[2 * 258], reduced[256];
} all;

static int run_all(const float *in, unsigned long mode)
{
    aura_rotation undo = {sizeof undo, AURA_ROTATION_HADAMARD, 256, aura_tq_signs(256), NULL, NULL};
    aura_tq_encode_args e = {sizeof e, 256, 8, 1, 2, 2, 0, 0, in, AURA_F32, all.packed, all.norms, 0};
    aura_tq_dequant_args d = {sizeof d, 256, 8, 1, 2, 1, all.packed, all.norms, all.back, 0};
    aura_kv_copy_args c = {sizeof c, 1, 256, 2, 2, 0, 0, 0, in, all.copy, AURA_F32, AURA_F32};
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    aura_flash_attn_vec_reduce_args r = {sizeof r, 256, 1, 2, all.temp, all.reduced, &undo, NULL, NULL};
    int failed = aura_tq_encode(ctx, &e) || mode_get() != mode;
    all.norms[1] = 0x1p-126f;
    failed |= (aura_tq_dequant(ctx, &d) || mode_get() != mode) << 1;
    failed |= (aura_kv_copy(ctx, &c) || mode_get() != mode) << 2;
    a.k.bits = a.v.bits = 8, a.k.rows = a.v.rows = all.packed, a.k.norms = a.v.norms = all.norms, a.dim = 256, a.q_heads = a.kv_heads = 1;
    a.tokens = a.capacity = 2, a.q = in, a.out = all.out, a.scale = 0.06f, a.softcap = 20;
    failed |= (aura_flash_attn_vec(ctx, &a) || mode_get() != mode) << 3;
    a.temp = all.temp, a.nwg = 2;
    failed |= (aura_flash_attn_vec(ctx, &a) || mode_get() != mode) << 4;
    return failed | (aura_flash_attn_vec_reduce(ctx, &r) || mode_get() != mode) << 5;
}

static void float_modes_change_no_byte(void)
{
    static uint8_t want[sizeof all];
    float in[2 * 256];
    unsigned long before = mode_get();
    fill_vector(in, 512, NORMAL, &state);
    EXPECT(!run_all(in, before) && all.back[0] != 0 && fabsf(all.back[0]) < 0x1p-126f, "%s: %g", aura_last_error(), (double)all.back[0]);
    memcpy(want, &all, sizeof want);
    for (int i = 0; i < N_MODES; i++) {
        memset(&all, 0x5a, sizeof all);
        mode_set(modes[i]);
        int failed = run_all(in, modes[i]);
        mode_set(before);
        EXPECT(!failed && !memcmp(want, &all, sizeof want), "mode 0x%x: functions 0x%x failed, or bytes changed", modes[i], (unsigned)failed);
    }
}

/* ---- misuse ---------------------------------------------------------------------------------------------------------------- */

#define REFUSED(call, expected, why)                                                                                   \
    do {                                                                                                               \
        aura_status got_ = (call);                                                                                     \
        EXPECT(got_ == (expected) && aura_last_error()[0], "%s: %s", why, aura_status_text(got_));                     \
        EXPECT(out[0] == 12345 && out[511] == 12345, "%s wrote", why);                                                 \
        a = good;                                                                                                      \
    } while (0)

static void misuse(void)
{
    struct cache c = make_cache(4, 8, AURA_F32, 256, 2, 10, 16, 0);
    float q[4 * 256] = {0}, out[4 * 256], temp[16];
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT, good;
    out[0] = out[511] = 12345;
    a.k = c.k, a.v = c.v, a.dim = 256, a.q_heads = 4, a.kv_heads = 2, a.tokens = 10, a.capacity = 16, a.q = q, a.out = out, a.scale = 1;
    good = a;
    REFUSED(aura_flash_attn_vec(NULL, &a), AURA_BAD_ARGUMENT, "no context");
    REFUSED(aura_flash_attn_vec(ctx, NULL), AURA_BAD_ARGUMENT, "no arguments");
    a.tokens = 0;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "no tokens");
    a.capacity = 9;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "capacity below length");
    a.ring_start = 16;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "ring_start beyond the ring");
    a.kv_heads = 3;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "heads that do not divide");
    a.q_heads = 0;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "zero heads");
    a.dim = 128;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_UNSUPPORTED, "TQ of dim 128");
    a.dim = 264;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_UNSUPPORTED, "dim 264");
    a.k.bits = 7;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_UNSUPPORTED, "7 bits");
    a.v.bits = 3;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_UNSUPPORTED, "3 bits");
    a.k.norms = NULL;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "no norms");
    a.v.rows = NULL;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "no rows");
    a.mask_type = 3;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "mask type 3");
    a.scale = NAN;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "scale");
    a.softcap = -1;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "softcap");
    a.softcap = INFINITY;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "no softcap is 0");
    a.scale_factor_d512 = NAN;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "scale_factor_d512");
    a.q = out;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "out over q");
    a.v.rows = out + 1023;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "out over rows");
    a.k.norms = out;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "out over norms");
    a.temp = q, a.nwg = 1;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "temp over q");
    a.temp = (float *)(void *)((char *)temp + 2), a.nwg = 1;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "temp not aligned");
    a.temp = temp, a.nwg = 33;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "33 workgroups");
    a.temp = temp, a.nwg = 0;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "0 workgroups");
    a.out = NULL;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "no output");
    a.capacity = UINT64_MAX, a.kv_heads = 1;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_TOO_LARGE, "capacity of one head");
    a.capacity = UINT64_MAX / 2, a.kv_heads = 4;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_TOO_LARGE, "capacity");
    a.temp = temp, a.nwg = 2, a.sinks = q;
    REFUSED(aura_flash_attn_vec(ctx, &a), AURA_BAD_ARGUMENT, "sinks with temp");
    free_cache(&c);
}

static void misuse_of_the_others(void)
{
    float q[256] = {0}, out[256], temp[16];
    out[0] = 12345;
    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    r.dim = 256, r.rows = 1, r.nwg = 1, r.temp = temp, r.out = out, r.sinks = q;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &r) == AURA_BAD_ARGUMENT && out[0] == 12345, "sinks with nwg 1");
    r.sinks = NULL;
    r.dim = 256, r.rows = 1, r.nwg = 33, r.temp = temp, r.out = out;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &r) == AURA_BAD_ARGUMENT && out[0] == 12345, "33 workgroups");
    r.nwg = 0;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &r) == AURA_BAD_ARGUMENT, "0 workgroups");
    r.nwg = 2, r.dim = 72;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &r) == AURA_UNSUPPORTED, "dim 72");
    aura_tq_encode_args e = AURA_TQ_ENCODE_ARGS_INIT;
    uint8_t packed[16] = {0x5a};
    e.dim = 100, e.bits = 4, e.kv_heads = 1, e.tokens = 1, e.capacity = 4, e.in = q, e.packed = packed, e.norms = temp;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_UNSUPPORTED, "dim 100");
    e.dim = 256, e.bits = 3;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_UNSUPPORTED, "3 bits");
    e.bits = 4, e.write_pos = 4;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && packed[0] == 0x5a, "a write past a linear cache");
    e.write_pos = 0, e.kv_heads = 0;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT, "no heads");
    e.kv_heads = 1, e.scale_factor_d512 = NAN;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "scale_factor"), "%s", aura_last_error());
    e.scale_factor_d512 = 0, e.packed = q + 255;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "packed overlaps in"), "%s", aura_last_error());
    e.packed = packed, e.norms = q + 255;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "norms overlaps in"), "%s", aura_last_error());
    e.packed = out, e.norms = out;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "norms overlaps packed"), "%s", aura_last_error());
    aura_tq_dequant_args d = {sizeof d, 256, 4, 1, 4, 4, packed, temp, out, 0};
    EXPECT(aura_tq_dequant(ctx, &d) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "slot 4 of 4"), "%s", aura_last_error());
    d.slot = 0, d.packed = out;
    EXPECT(aura_tq_dequant(ctx, &d) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    d.packed = packed, d.norms = out;
    EXPECT(aura_tq_dequant(ctx, &d) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    EXPECT(out[0] == 12345, "something was written");
}

static void tests(void)
{
    RUN(published_dense_cases);
    RUN(published_tq_cases);
    RUN(mixed_kinds_and_dims);
    RUN(rings_and_workgroups);
    RUN(all_masked_is_zero_and_poison_is_reported);
    RUN(fused_undo_equals_unfused);
    RUN(reduce_reports_rows);
    RUN(fwht);
    RUN(encoders_as_published);
    RUN(extreme_vectors_in_tq);
    RUN(aura_rows_are_tq_nibbles);
    RUN(kv_copies);
    RUN(positions_without_end);
    RUN(float_modes_change_no_byte);
    RUN(misuse);
    RUN(misuse_of_the_others);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
