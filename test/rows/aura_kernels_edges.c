/* The AURA kernels: edge cases, far offsets and misuse. */
#define _GNU_SOURCE
#include "aura_kernels.h"
#include "../../src/dispatch.h"
#include "../base/modes.h"

#include <sys/mman.h>

/* ---- the edge cases, cell by cell --------------------------------------------------------------------------------------- */

static void edge_cases(void)
{
    enum { DIM = 64 };
    struct problem p = {4, 4, DIM, 2, 1, 6, 6, 6, 0, 0, 2, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    float out[2 * DIM], lse[2], sinks[2] = {-INFINITY, 1};
    finish_problem(&p, 0, 0, 0, 0);
    float *k_norm = p.k.norms, *v_norm = p.v.norms, kept = k_norm[3];
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT, none;
    a.keys = p.k.packed, a.values = p.v.packed, a.dim = DIM, a.q_heads = 2, a.kv_heads = 1, a.tokens = 6, a.q = p.q;
    a.out = out, a.lse = lse;
    none = a, none.tokens = 0;
    EXPECT(!aura_flash_sdpa(ctx, &none) && out[0] == 0 && lse[0] == -INFINITY, "no tokens: %g", (double)out[0]);
    none.sinks = sinks;
    EXPECT(!aura_flash_sdpa(ctx, &none) && out[0] == 0 && out[DIM] == 0 && lse[0] == -INFINITY && lse[1] == 1, "only a sink");
    aura_flash_sdpa_args one = a;
    one.tokens = 1, one.keys.stride = one.values.stride = 6;
    EXPECT(!aura_flash_sdpa(ctx, &one) && fabs(out[3] - p.v.x[3]) < 1e-7, "one token is exact: %g", (double)out[3]);
    float plain[2 * DIM];
    EXPECT(!aura_flash_sdpa(ctx, &a), "%s", aura_last_error());
    memcpy(plain, out, sizeof plain);
    a.sinks = sinks;
    EXPECT(!aura_flash_sdpa(ctx, &a) && !memcmp(out, plain, DIM * sizeof *out) && out[DIM] != plain[DIM], "a sink of -inf is none");
    sinks[1] = INFINITY;
    EXPECT(!aura_flash_sdpa(ctx, &a) && out[DIM] == 0 && lse[1] == INFINITY, "a sink of +inf takes all: %g", (double)out[DIM]);
    sinks[1] = 1e30f;
    EXPECT(!aura_flash_sdpa(ctx, &a) && out[DIM] == 0 && lse[1] == 1e30f, "a large sink takes all: %g", (double)out[DIM]);
    sinks[1] = -1e30f;
    EXPECT(!aura_flash_sdpa(ctx, &a) && !memcmp(out, plain, sizeof out), "a sink far below changes nothing");
    sinks[1] = NAN;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_NOT_FINITE && isnan(out[DIM]) && out[0] == plain[0] &&
           strstr(aura_last_error(), "row 1"),
           "a NaN sink: %s", aura_last_error());
    a.sinks = NULL;
    k_norm[3] = 0;
    EXPECT(!aura_flash_sdpa(ctx, &a) && isfinite(out[0]), "a zero key is visible, with score 0");
    k_norm[3] = NAN;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_NOT_FINITE && isnan(out[0]) && isnan(out[DIM]), "a NaN key norm: %g", (double)out[0]);
    EXPECT(strstr(aura_last_error(), "2 of the rows"), "%s", aura_last_error());
    a.window = 2;
    EXPECT(!aura_flash_sdpa(ctx, &a), "outside the window it does not matter");
    a.window = 0;
    float v_kept = v_norm[3];
    v_norm[3] = NAN; /* does not matter where its weight is 0 */
    int bad = 0; /* one sign makes the score of head 0 +inf, which is bad; the other makes it -inf, which is weight 0 */
    for (int sign = -1; sign <= 1; sign += 2) {
        k_norm[3] = (float)sign * INFINITY;
        aura_status status = aura_flash_sdpa(ctx, &a);
        bad += isnan(out[0]);
        EXPECT(status == (isnan(out[0]) || isnan(out[DIM]) ? AURA_NOT_FINITE : AURA_OK), "%s", aura_status_text(status));
    }
    EXPECT(bad == 1, "infinite scores: %d of 2 are bad", bad);
    k_norm[3] = kept, v_norm[3] = v_kept;
    v_norm[2] = INFINITY;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_NOT_FINITE && isnan(lse[0]), "an infinite value: lse %g", (double)lse[0]);
    memset(v_norm, 0, 6 * sizeof *v_norm);
    EXPECT(!aura_flash_sdpa(ctx, &a) && out[0] == 0 && isfinite(lse[0]), "zero values");
    free_problem(&p);
}

/* ---- offsets beyond 32 bits ---------------------------------------------------------------------------------------------- */

/* KV head 1 begins 4 GiB after head 0, in reserved memory that is hardly touched. A 32-bit offset would read head 0. */
static void rows_beyond_4_gib(void)
{
    enum { DIM = 64, T = 5 };
    const size_t stride = (size_t)1 << 27, far_codes = stride * 32, far_norms = stride * 4;
    uint8_t *codes = mmap(NULL, far_codes + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *norms = mmap(NULL, far_norms + 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    struct problem p = {4, 4, DIM, 2, 2, T, T, T, 0, 0, 2, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    float near[2 * DIM], far[2 * DIM];
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    finish_problem(&p, 0, 0, 0, 0);
    if (codes == MAP_FAILED || norms == MAP_FAILED) {
        test_skip = "no 5 GiB of address space";
        return;
    }
    a.keys = p.k.packed, a.values = p.v.packed, a.dim = DIM, a.q_heads = a.kv_heads = 2, a.tokens = T, a.q = p.q, a.out = near;
    EXPECT(!aura_flash_sdpa(ctx, &a), "%s", aura_last_error());
    memcpy(codes, p.k.codes, T * 32), memcpy(codes + far_codes, p.k.codes + T * 32, T * 32);
    memcpy(norms, p.k.norms, T * 4), memcpy(norms + far_norms, (char *)p.k.norms + T * 4, T * 4);
    a.keys.codes = codes, a.keys.norms = norms, a.keys.stride = stride, a.out = far;
    EXPECT(!aura_flash_sdpa(ctx, &a) && !memcmp(near, far, sizeof near), "far rows give something else: %s", aura_last_error());
    EXPECT(!aura_flash_sdpa(ctx, &a) && !memcmp(near, far, sizeof near), "the same call gives something else");
    munmap(codes, far_codes + 4096), munmap(norms, far_norms + 4096);
    free_problem(&p);
}

/* A row that fits f32 but not the type of the output is an error, and is not stored as infinity. */
static void rows_beyond_the_output_type(void)
{
    struct problem p = {4, 4, 64, 2, 2, 6, 6, 6, 0, 0, 2, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    uint16_t out[2 * 64];
    float lse[2];
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    finish_problem(&p, 0, 0, 0, 0);
    for (int t = 0; t < 6; t++)
        ((float *)p.v.norms)[6 + t] = 1e6f; /* KV head 1 */
    a.keys = p.k.packed, a.values = p.v.packed, a.dim = 64, a.q_heads = a.kv_heads = 2, a.tokens = 6, a.q = p.q;
    a.out = out, a.out_dtype = AURA_F16, a.lse = lse;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_NOT_FINITE && strstr(aura_last_error(), "row 1"), "%s", aura_last_error());
    EXPECT(isfinite(aura_f32_from_f16(out[3])) && isnan(aura_f32_from_f16(out[64])), "rows 0 and 1: 0x%x 0x%x", out[3], out[64]);
    a.out_dtype = AURA_BF16;
    EXPECT(!aura_flash_sdpa(ctx, &a), "bf16 holds it: %s", aura_last_error());
    a.lse = (float *)(void *)((char *)lse + 1);
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_BAD_ARGUMENT, "a misaligned lse");
    free_problem(&p);
}

/* Blocks far larger than the cache: products of sizes wrap, but blocks cover the right tokens. And the errors of pass 1. */
static void huge_blocks_and_bad_rows_in_pass_1(void)
{
    struct problem p = {4, 4, 64, 4, 2, 6, 8, 8, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    float o[4 * 3 * 64], m[4 * 3], l[4 * 3], plain[4 * 64], out[4 * 64];
    aura_flash_p1_args a = AURA_FLASH_P1_ARGS_INIT;
    aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
    finish_problem(&p, 0, 0, 0, 0);
    a.keys = p.k.packed, a.values = p.v.packed, a.dim = 64, a.q_heads = 4, a.kv_heads = 2, a.tokens = 6, a.q = p.q;
    a.o = o, a.m = m, a.l = l, a.num_blocks = 1, a.block_size = 6;
    b.dim = 64, b.q_heads = 4, b.num_blocks = 1, b.o = o, b.m = m, b.l = l, b.out = plain;
    EXPECT(!aura_flash_p1(ctx, &a) && !aura_flash_pass2(ctx, &b), "%s", aura_last_error());
    a.num_blocks = b.num_blocks = 3, a.block_size = SIZE_MAX / 2 + 2, b.out = out;
    EXPECT(!aura_flash_p1(ctx, &a) && !aura_flash_pass2(ctx, &b), "%s", aura_last_error());
    a.num_blocks = 2; /* times the size is 2 */
    EXPECT(!aura_flash_p1(ctx, &a), "%s", aura_last_error());
    a.num_blocks = 3;
    EXPECT(!aura_flash_p1(ctx, &a), "%s", aura_last_error());
    EXPECT(m[2] == -INFINITY && l[2] == 0 && !memcmp(out, plain, sizeof out), "a block was counted twice");
    ((float *)p.k.norms)[8] = NAN; /* KV head 1 */
    EXPECT(aura_flash_p1(ctx, &a) == AURA_NOT_FINITE && strstr(aura_last_error(), "row 2"), "%s", aura_last_error());
    EXPECT(aura_flash_pass2(ctx, &b) == AURA_NOT_FINITE && strstr(aura_last_error(), "2 of the rows"), "%s", aura_last_error());
    EXPECT(out[0] == plain[0] && isnan(out[2 * 64]), "rows 0 and 1 are good");
    free_problem(&p);
}

/* Without tokens or heads, every array that no kernel reads may be NULL, whatever the strides. */
static void no_tokens_and_no_arrays(void)
{
    float q[2 * 64] = {1}, out[2 * 64] = {1};
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    aura_flash_p1_args b = AURA_FLASH_P1_ARGS_INIT;
    aura_score_args s = AURA_SCORE_ARGS_INIT;
    aura_value_args v = AURA_VALUE_ARGS_INIT;
    aura_dequant_args d = AURA_DEQUANT_ARGS_INIT;
    a.keys.bits = a.values.bits = 4, a.keys.stride = a.values.stride = 8;
    b.keys = b.values = s.keys = v.values = d.rows = a.keys;
    a.dim = b.dim = s.dim = v.dim = d.dim = 64;
    a.q_heads = a.kv_heads = b.q_heads = b.kv_heads = s.q_heads = s.kv_heads = v.q_heads = v.kv_heads = d.kv_heads = 2;
    a.q = b.q = s.q = q, a.out = out, v.out = out;
    EXPECT(!aura_flash_sdpa(ctx, &a) && out[0] == 0, "sdpa: %s", aura_last_error());
    out[0] = 1;
    EXPECT(!aura_value(ctx, &v) && out[0] == 0, "value: %s", aura_last_error());
    EXPECT(!aura_flash_p1(ctx, &b) && !aura_score(ctx, &s) && !aura_dequant(ctx, &d), "%s", aura_last_error());
}

/* All outputs of these functions, with denormals among them. */
static struct {
    float dequant[2 * 6 * 64], score[4 * 6], value[4 * 64], o[4 * 2 * 64], m[8], l[8], pass2[4 * 64], sdpa[4 * 64];
} all;

/* A bit for each function that failed or changed the float mode. */
static int run_all(const struct problem *p, unsigned long mode)
{
    aura_dequant_args d = {sizeof d, p->k.packed, 64, 2, 6, all.dequant, AURA_F32, 0};
    aura_score_args s = {sizeof s, p->k.packed, 64, 4, 2, 6, p->q, all.score, AURA_F32, AURA_F32, 0};
    aura_value_args v = {sizeof v, p->v.packed, 64, 4, 2, 6, all.score, all.value, AURA_F32, AURA_F32, 0, -1e30f};
    aura_flash_p1_args a = {sizeof a, p->k.packed, p->v.packed, 64, 4, 2, 6, p->q, AURA_F32, AURA_F32, all.o, all.m, all.l,
                            2, 4, 0, 0, 0};
    aura_flash_pass2_args b = AURA_FLASH_PASS2_ARGS_INIT;
    aura_flash_sdpa_args f = AURA_FLASH_SDPA_ARGS_INIT;
    b.dim = 64, b.q_heads = 4, b.num_blocks = 2, b.o = all.o, b.m = all.m, b.l = all.l, b.out = all.pass2;
    f.keys = p->k.packed, f.values = p->v.packed, f.dim = 64, f.q_heads = 4, f.kv_heads = 2, f.tokens = 6, f.q = p->q,
        f.out = all.sdpa;
    int failed = aura_dequant(ctx, &d) || mode_get() != mode;
    failed |= (aura_score(ctx, &s) || mode_get() != mode) << 1;
    failed |= (aura_value(ctx, &v) || mode_get() != mode) << 2;
    failed |= (aura_flash_p1(ctx, &a) || mode_get() != mode) << 3;
    failed |= (aura_flash_pass2(ctx, &b) || mode_get() != mode) << 4;
    return failed | (aura_flash_sdpa(ctx, &f) || mode_get() != mode) << 5;
}

static void float_modes_change_no_byte(void)
{
    struct problem p = {4, 3, 64, 4, 2, 6, 6, 6, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    static uint8_t want[sizeof all];
    unsigned long before = mode_get();
    finish_problem(&p, 0, 0, 0, 0);
    ((float *)p.k.norms)[2] = 0x1p-133f;
    for (int t = 0; t < 6; t++)
        ((float *)p.v.norms)[6 + t] = 0x1p-130f;
    EXPECT(!run_all(&p, before) && all.dequant[2 * 64] != 0 && all.score[2] != 0 && all.sdpa[3 * 64] != 0, "%s", aura_last_error());
    memcpy(want, &all, sizeof want);
    for (int i = 0; i < N_MODES; i++) {
        memset(&all, 0x5a, sizeof all);
        mode_set(modes[i]);
        int failed = run_all(&p, modes[i]);
        mode_set(before);
        EXPECT(!failed && !memcmp(want, &all, sizeof want), "mode 0x%x: functions 0x%x failed, or bytes changed", modes[i],
               (unsigned)failed);
    }
    free_problem(&p);
}

/* ---- misuse -------------------------------------------------------------------------------------------------------------- */

#define REFUSED(call, expected, why)                                                                                   \
    do {                                                                                                               \
        aura_status got_ = (call);                                                                                     \
        EXPECT(got_ == (expected) && aura_last_error()[0], "%s: %s", why, aura_status_text(got_));                     \
        for (size_t i_ = 0; i_ < sizeof out; i_++)                                                                     \
            EXPECT(((uint8_t *)out)[i_] == 0x5a, "%s wrote", why);                                                     \
        a = good;                                                                                                      \
    } while (0)

/* A good call, on which the misuses below change one argument each. The output is poisoned. */
static struct problem good_call(aura_flash_sdpa_args *a, float out[4 * 64])
{
    struct problem p = {4, 4, 64, 4, 2, 6, 8, 8, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    finish_problem(&p, 0, 0, 0, 0);
    memset(out, 0x5a, 4 * 64 * sizeof *out);
    a->keys = p.k.packed, a->values = p.v.packed, a->dim = 64, a->q_heads = 4, a->kv_heads = 2, a->tokens = 6, a->q = p.q,
        a->out = out;
    return p;
}

static void misuse_of_shapes(void)
{
    static float out[4 * 64];
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT, good;
    struct problem p = good_call(&a, out);
    good = a;
    REFUSED(aura_flash_sdpa(NULL, &a), AURA_BAD_ARGUMENT, "no context");
    REFUSED(aura_flash_sdpa(ctx, NULL), AURA_BAD_ARGUMENT, "no arguments");
    a.size = 4;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "size");
    a.kv_heads = 0;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "zero heads");
    a.q_heads = 0;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "zero query heads");
    a.kv_heads = 3;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "heads that do not divide");
    a.keys.stride = 5;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "capacity below length");
    a.keys.bits = 1;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "1 bit");
    a.values.bits = 0;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "0 bits");
    a.values.bits = 9; /* in the list of kernels, 9 stands for plain rows */
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "9 bits");
    a.values.bits = 99;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "99 bits");
    a.dim = 60;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "dim 60");
    a.dim = 2048;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "dim 2048");
    free_problem(&p);
}

static void misuse_of_arrays(void)
{
    static float out[4 * 64];
    float sinks[4];
    aura_rotation undo = {sizeof undo, AURA_ROTATION_HADAMARD, 128, NULL, NULL, NULL};
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT, good;
    struct problem p = good_call(&a, out);
    good = a;
    a.keys.codes = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no codes");
    a.values.norms = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no norms");
    a.values.codebook = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no codebook");
    a.keys.norm_dtype = (aura_dtype)9;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "norm dtype");
    a.values.codebook_dtype = (aura_dtype)9;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "codebook dtype");
    a.sinks = sinks, a.sink_dtype = (aura_dtype)9;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "sink dtype");
    a.undo = &undo; /* of another dim */
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "undo");
    a.keys.codes = out + 255;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "out over codes");
    a.values.norms = out + 255;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "out over norms");
    a.q_heads = a.kv_heads = 3, a.keys.stride = SIZE_MAX / 2 + 1; /* twice that is 0 */
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_TOO_LARGE, "a stride that wraps");
    a.keys.stride = SIZE_MAX - 2; /* and 6 tokens more are 3 */
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_TOO_LARGE, "a stride that wraps with the tokens");
    a.q = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no queries");
    a.tokens = SIZE_MAX / 2, a.keys.stride = a.values.stride = SIZE_MAX / 2;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_TOO_LARGE, "too many tokens");
    a.q = out;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "out over q");
    a.out = NULL;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_BAD_ARGUMENT, "no output");
    free_problem(&p);
}

static void misuse_of_the_others(void)
{
    struct problem p = {4, 4, 64, 4, 2, 6, 8, 8, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    static float out[4 * 64];
    float m[8], l[8];
    aura_rotation undo = {sizeof undo, AURA_ROTATION_HADAMARD, 128, NULL, NULL, NULL};
    aura_flash_p1_args p1 = AURA_FLASH_P1_ARGS_INIT;
    finish_problem(&p, 0, 0, 0, 0);
    memset(out, 0x5a, sizeof out);
    p1.keys = p.k.packed, p1.values = p.v.packed, p1.dim = 64, p1.q_heads = 4, p1.kv_heads = 2, p1.tokens = 6, p1.q = p.q;
    p1.o = out, p1.m = m, p1.l = l, p1.num_blocks = 1, p1.block_size = 5;
    EXPECT(aura_flash_p1(ctx, &p1) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "cover"), "%s", aura_last_error());
    p1.block_size = 6, p1.l = NULL;
    EXPECT(aura_flash_p1(ctx, &p1) == AURA_BAD_ARGUMENT && out[0] != 0, "no l");
    aura_flash_pass2_args p2 = AURA_FLASH_PASS2_ARGS_INIT;
    p2.dim = 64, p2.q_heads = 4, p2.num_blocks = SIZE_MAX / 8, p2.o = m, p2.m = m, p2.l = l, p2.out = out;
    EXPECT(aura_flash_pass2(ctx, &p2) == AURA_TOO_LARGE, "%s", aura_last_error());
    p2.num_blocks = 1, p2.undo = &undo;
    EXPECT(aura_flash_pass2(ctx, &p2) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "rotation"), "%s", aura_last_error());
    p2.undo = NULL, p2.o = out;
    EXPECT(aura_flash_pass2(ctx, &p2) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    p2.q_heads = 0;
    EXPECT(aura_flash_pass2(ctx, &p2) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    aura_score_args s = AURA_SCORE_ARGS_INIT;
    s.keys = p.k.packed, s.dim = 64, s.q_heads = 4, s.kv_heads = 2, s.tokens = 6, s.q = p.q, s.scores = out, s.score_stride = 5;
    EXPECT(aura_score(ctx, &s) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    aura_value_args v = AURA_VALUE_ARGS_INIT;
    v.values = p.v.packed, v.dim = 64, v.q_heads = 4, v.kv_heads = 2, v.tokens = 6, v.weights = m, v.out = out,
        v.sparse_threshold = NAN;
    EXPECT(aura_value(ctx, &v) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    v.weights = out, v.sparse_threshold = 0;
    EXPECT(aura_value(ctx, &v) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    aura_dequant_args d = AURA_DEQUANT_ARGS_INIT;
    d.rows = p.k.packed, d.dim = 64, d.kv_heads = 2, d.tokens = 6, d.out = out, d.out_stride = 2;
    EXPECT(aura_dequant(ctx, &d) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    free_problem(&p);
}

/* Counts and strides with a product that overflows: the call reads and writes nothing. */
static void sizes_that_overflow(void)
{
    static const size_t huge[] = {SIZE_MAX, SIZE_MAX - 7, SIZE_MAX / 2 + 1, SIZE_MAX / 4 + 1, SIZE_MAX / 16 + 1};
    struct problem p = {4, 4, 64, 4, 2, 6, 8, 8, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    static float out[4 * 64];
    finish_problem(&p, 0, 0, 0, 0);
    memset(out, 0x5a, sizeof out);
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        aura_dequant_args d = AURA_DEQUANT_ARGS_INIT;
        d.rows = p.k.packed, d.dim = 64, d.kv_heads = 2, d.tokens = 1, d.out = out, d.out_stride = huge[i];
        EXPECT(aura_dequant(ctx, &d) == AURA_TOO_LARGE, "out_stride %zx: %s", huge[i], aura_last_error());
        d.out_stride = 0, d.tokens = d.rows.stride = huge[i];
        EXPECT(aura_dequant(ctx, &d) == AURA_TOO_LARGE, "tokens %zx: %s", huge[i], aura_last_error());
        aura_score_args s = AURA_SCORE_ARGS_INIT;
        s.keys = p.k.packed, s.dim = 64, s.q_heads = 4, s.kv_heads = 2, s.tokens = 6, s.q = p.q, s.scores = out,
            s.score_stride = huge[i];
        EXPECT(aura_score(ctx, &s) == AURA_TOO_LARGE, "score_stride %zx: %s", huge[i], aura_last_error());
        s.score_stride = 0, s.keys.stride = huge[i];
        EXPECT(aura_score(ctx, &s) == AURA_TOO_LARGE, "stride of keys %zx: %s", huge[i], aura_last_error());
        aura_value_args v = AURA_VALUE_ARGS_INIT;
        v.values = p.v.packed, v.dim = 64, v.q_heads = 4, v.kv_heads = 2, v.tokens = 6, v.weights = p.q, v.out = out,
            v.weight_stride = huge[i];
        EXPECT(aura_value(ctx, &v) == AURA_TOO_LARGE, "weight_stride %zx: %s", huge[i], aura_last_error());
        v.weight_stride = 0, v.values.stride = huge[i];
        EXPECT(aura_value(ctx, &v) == AURA_TOO_LARGE, "stride of values %zx: %s", huge[i], aura_last_error());
        aura_flash_p1_args p1 = AURA_FLASH_P1_ARGS_INIT;
        p1.keys = p.k.packed, p1.values = p.v.packed, p1.dim = 64, p1.q_heads = 4, p1.kv_heads = 2, p1.tokens = 6, p1.q = p.q;
        p1.o = out, p1.m = out, p1.l = out, p1.num_blocks = huge[i], p1.block_size = 6;
        EXPECT(aura_flash_p1(ctx, &p1) == AURA_TOO_LARGE, "num_blocks %zx: %s", huge[i], aura_last_error());
    }
    for (size_t i = 0; i < sizeof out; i++)
        EXPECT(((uint8_t *)out)[i] == 0x5a, "something was written");
    free_problem(&p);
}

/* Of a dim that is no multiple of 16 the last vector is half full. What stands in for the codes that are not there is not code 0,
 * whose level nobody has checked. */
static void no_code_is_not_code_0(void)
{
    enum { ODD = 72, PADDED = 80 };
    static uint8_t row[16 * ODD];
    static float q[PADDED], centroid[256];
    const float scale = 1;
    memset(row, 0xff, sizeof row);
    for (int d = 0; d < ODD; d++)
        q[d] = 1;
    for (size_t i = 0; i < aura_variant_count; i++) {
        const struct aura_variant *v = &aura_variant_list[i];
        if (strcmp(v->stage, "row_score") || v->kind > 8 || !v->run || !(v->isa_flag & aura_cpu_isas()))
            continue;
        for (int c = 0; c < 256; c++)
            centroid[c] = c % (1 << v->kind) ? 2 : NAN;
        struct aura_rows rows = {row, ODD, v->kind, ODD, PADDED, 0, centroid};
        float score = 0;
        ((aura_row_score_fn *)v->run)(&score, 1, q, &rows, &scale, 1, 1);
        EXPECT(score == 2 * ODD, "%s: %g", v->name, (double)score);
    }
}

static void tests(void)
{
    RUN(no_code_is_not_code_0);
    RUN(edge_cases);
    RUN(rows_beyond_4_gib);
    RUN(rows_beyond_the_output_type);
    RUN(huge_blocks_and_bad_rows_in_pass_1);
    RUN(no_tokens_and_no_arrays);
    RUN(float_modes_change_no_byte);
    RUN(misuse_of_shapes);
    RUN(misuse_of_arrays);
    RUN(misuse_of_the_others);
    RUN(sizes_that_overflow);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
