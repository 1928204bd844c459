/* The mlx-native kernels: flash_attn_vec over plain, TQ and TQ-HB caches, and the reduce with and without undo. */
#include "mlx_kernels.h"
#include "../../src/variants.h"

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
        struct oracle oracle = {c->dim, c->tokens, c->k64 + kv, c->v64 + kv, seen,
                                o->scale == 0 ? 1 / sqrt(c->dim) : o->scale, o->softcap, -INFINITY};
        if (a.sinks || r.sinks)
            oracle.sink = sinks[h];
        for (uint32_t d = 0; d < c->dim; d++)
            q64[d] = o->q_as_f16 ? oracle_round(q[h * c->dim + d], AURA_F16) : q[h * c->dim + d];
        oracle_attend(want, &lse, &size, &oracle, q64);
        EXPECT(o->nwg == 1 || fabs(got_lse[h] - lse) < 1e-5 * (1 + fabs(lse)) || got_lse[h] == lse, "%s: lse %g, not %g",
               what, (double)got_lse[h], lse);
        for (uint32_t d = 0; d < c->dim; d++)
            EXPECT(fabs(out[h * c->dim + d] - want[d]) <= 2e-5 * (size + 1e-30),
                   "%s nwg %u window %llu ring %llu: [%zu][%u] is %g, not %g",
                   what, o->nwg, (unsigned long long)o->window, (unsigned long long)o->ring_start, h, d,
                   (double)out[h * c->dim + d], want[d]);
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
                struct cache c = make_cache(0, 0, (aura_dtype)type, cases[i].dim, cases[i].kv, cases[i].tokens,
                                            cases[i].capacity, 0);
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
                 {5, 256, 4, 2, 32, 0}, {6, 256, 4, 2, 32, 0}, {8, 256, 32, 4, 1024, 0}, {8, 512, 8, 4, 64, 0},
                 {5, 512, 8, 2, 33, 0}, {6, 512, 3, 1, 65, 20}};
    for (int i = 0; i < 11; i++) {
        struct cache c = make_cache(cases[i].bits, cases[i].bits, AURA_F32, cases[i].dim, cases[i].kv, cases[i].tokens,
                                    cases[i].tokens + 3, i % 2 ? 16 : 0);
        struct options o = {cases[i].q, 16, cases[i].window ? 2 : 0, 0, cases[i].window, 0, 1 / sqrtf((float)cases[i].dim),
                            0, 0, 0};
        check_attention(&c, &o, "TQ");
        o.nwg = 0, o.softcap = 5;
        check_attention(&c, &o, "TQ with softcap");
        free_cache(&c);
    }
}

/* K and V of different kinds, and dims that the public kernels do not have. */
static void mixed_kinds_and_dims(void)
{
    static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM) 320, 1024};
    static const uint64_t tokens[] = {1, 31, 32, 33, 63, 64, 65, 100};
    for (int i = 0; i < (int)(sizeof dims / sizeof *dims); i++)
        for (int t = 0; t < 8; t++) {
            struct cache c = make_cache(0, 0, (aura_dtype)((i + t) % 3), dims[i], 1 + (uint32_t)t % 3, tokens[t],
                                        tokens[t] + (uint64_t)i, 0);
            uint64_t windows[] = {0, 1, tokens[t] - 1, tokens[t], tokens[t] + 1, UINT32_MAX, UINT64_MAX, 7};
            struct options o = {c.kv_heads * (1 + (uint32_t)i), (uint32_t)(t * 4 + i) % 33, 2, 0, windows[(i + t) % 8], 0,
                                0.1f, t % 2 ? 30 : 0,
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

/* Every slot is the oldest once; windows are smaller than the ring; and every number of workgroups. */
static void rings_and_workgroups(void)
{
    static const uint64_t windows[] = {0, 1, 7, 20, 39, 40};
    for (uint64_t start = 0; start < 40; start++)
        for (uint32_t bits = 0; bits <= 8; bits += 4) {
            struct cache c = make_cache(bits, bits, AURA_F32, 256, 1, 40, 40, 0);
            for (int w = 0; w < 6; w++) { /* the window begins before the end of the ring, and behind it */
                struct options o = {2, (uint32_t)(start + 5 * (uint64_t)w) % 33, 2, 0, windows[w], start, 0.06f, 0,
                                    (start + (uint64_t)w) % 6, w % 2};
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
    a.k = c.k, a.v = c.v, a.dim = 256, a.q_heads = 2, a.kv_heads = 2, a.tokens = 1, a.capacity = 4, a.q = q, a.out = out,
        a.scale = 1;
    a.ring_start = 2; /* slot 0 is the third in time, behind the one token that is there */
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
            EXPECT(!aura_flash_attn_vec_reduce(ctx, &a) && !memcmp(fused, plain, rows * dim * 4),
                   "dim %u nwg %u: fused differs", dim, nwg);
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
    sm[6] = INFINITY; /* divided by it, every partial row is 0 */
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_NOT_FINITE && isnan(out[64]) && isfinite(out[0]), "infinite S: %g",
           (double)out[64]);
    sm[6] = 1, temp[64 * 2 + 5] = INFINITY;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_NOT_FINITE && isnan(out[64]) && isnan(out[127]) && isfinite(out[0]),
           "infinite O");
    EXPECT(strstr(aura_last_error(), "row 1"), "%s", aura_last_error());
    memset(out, 0x5a, sizeof out);
    a.temp = NULL;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)out)[0] == 0x5a, "%s", aura_last_error());
    a.temp = temp, a.undo = &undo; /* of another dim */
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_BAD_ARGUMENT && ((uint8_t *)out)[0] == 0x5a, "%s", aura_last_error());
    a.undo = NULL, a.out = temp + 131;
    EXPECT(aura_flash_attn_vec_reduce(ctx, &a) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s",
           aura_last_error());
    a.nwg = 1, a.out = temp + 128; /* with one workgroup temp is [rows][dim] */
    EXPECT(!aura_flash_attn_vec_reduce(ctx, &a) && temp[128] == temp[0], "%s", aura_last_error());
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
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
