/* The AURA kernels: edge cases, far offsets and misuse. */
#define _GNU_SOURCE
#include "family_a.h"

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
    sinks[1] = NAN;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_NOT_FINITE && isnan(out[DIM]) && out[0] == plain[0] && strstr(aura_last_error(), "row 1"),
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
    int bad = 0; /* of the two signs one makes the score of head 0 +inf, which is bad, the other -inf, which is weight 0 */
    for (int sign = -1; sign <= 1; sign += 2) {
        k_norm[3] = (float)sign * INFINITY;
        aura_status status = aura_flash_sdpa(ctx, &a);
        bad += isnan(out[0]);
        EXPECT(status == (isnan(out[0]) || isnan(out[DIM]) ? AURA_NOT_FINITE : AURA_OK), "%s", aura_status_text(status));
    }
    EXPECT(bad == 1, "infinite scores: %d of 2 are bad", bad);
    k_norm[3] = kept;
    v_norm[2] = INFINITY;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_NOT_FINITE, "an infinite value");
    memset(v_norm, 0, 6 * sizeof *v_norm);
    EXPECT(!aura_flash_sdpa(ctx, &a) && out[0] == 0 && isfinite(lse[0]), "zero values");
    free_problem(&p);
}

/* ---- offsets beyond 32 bits ---------------------------------------------------------------------------------------------- */

/* KV head 1 begins 4 GiB after head 0, in memory that is reserved and hardly touched. A 32-bit offset would read head 0. */
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

/* ---- misuse -------------------------------------------------------------------------------------------------------------- */

#define REFUSED(call, expected, why)                                                                                   \
    do {                                                                                                               \
        aura_status got_ = (call);                                                                                     \
        EXPECT(got_ == (expected) && aura_last_error()[0], "%s: %s", why, aura_status_text(got_));                     \
        for (size_t i_ = 0; i_ < sizeof out; i_++)                                                                     \
            EXPECT(((uint8_t *)out)[i_] == 0x5a, "%s wrote", why);                                                     \
        a = good;                                                                                                      \
    } while (0)

static void misuse(void)
{
    struct problem p = {4, 4, 64, 4, 2, 6, 8, 8, 0, 0, 4, AURA_F32, AURA_F32, AURA_F32, NO_SIDE, NO_SIDE, NULL, NULL};
    static float out[4 * 64];
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT, good;
    finish_problem(&p, 0, 0, 0, 0);
    memset(out, 0x5a, sizeof out);
    a.keys = p.k.packed, a.values = p.v.packed, a.dim = 64, a.q_heads = 4, a.kv_heads = 2, a.tokens = 6, a.q = p.q, a.out = out;
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
    a.keys.bits = 7;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "7 bits");
    a.values.bits = 0;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "0 bits");
    a.values.bits = 99;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "99 bits");
    a.dim = 60;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "dim 60");
    a.dim = 2048;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "dim 2048");
    a.keys.codes = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no codes");
    a.values.norms = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no norms");
    a.values.codebook = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no codebook");
    a.keys.norm_dtype = (aura_dtype)9;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_UNSUPPORTED, "norm dtype");
    a.q = NULL;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "no queries");
    a.tokens = SIZE_MAX / 2, a.keys.stride = a.values.stride = SIZE_MAX / 2;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_TOO_LARGE, "too many tokens");
    a.q = out;
    REFUSED(aura_flash_sdpa(ctx, &a), AURA_BAD_ARGUMENT, "out over q");
    a.out = NULL;
    EXPECT(aura_flash_sdpa(ctx, &a) == AURA_BAD_ARGUMENT, "no output");
    aura_flash_p1_args p1 = AURA_FLASH_P1_ARGS_INIT;
    float m[8], l[8];
    p1.keys = p.k.packed, p1.values = p.v.packed, p1.dim = 64, p1.q_heads = 4, p1.kv_heads = 2, p1.tokens = 6, p1.q = p.q;
    p1.o = out, p1.m = m, p1.l = l, p1.num_blocks = 1, p1.block_size = 5;
    EXPECT(aura_flash_p1(ctx, &p1) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "cover"), "%s", aura_last_error());
    p1.block_size = 6, p1.l = NULL;
    EXPECT(aura_flash_p1(ctx, &p1) == AURA_BAD_ARGUMENT && out[0] != 0, "no l");
    aura_flash_pass2_args p2 = AURA_FLASH_PASS2_ARGS_INIT;
    p2.dim = 64, p2.q_heads = 4, p2.num_blocks = SIZE_MAX / 8, p2.o = m, p2.m = m, p2.l = l, p2.out = out;
    EXPECT(aura_flash_pass2(ctx, &p2) == AURA_TOO_LARGE, "%s", aura_last_error());
    p2.q_heads = 0, p2.num_blocks = 1;
    EXPECT(aura_flash_pass2(ctx, &p2) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    aura_score_args s = AURA_SCORE_ARGS_INIT;
    s.keys = p.k.packed, s.dim = 64, s.q_heads = 4, s.kv_heads = 2, s.tokens = 6, s.q = p.q, s.scores = out, s.score_stride = 5;
    EXPECT(aura_score(ctx, &s) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    aura_value_args v = AURA_VALUE_ARGS_INIT;
    v.values = p.v.packed, v.dim = 64, v.q_heads = 4, v.kv_heads = 2, v.tokens = 6, v.weights = m, v.out = out, v.sparse_threshold = NAN;
    EXPECT(aura_value(ctx, &v) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    aura_dequant_args d = AURA_DEQUANT_ARGS_INIT;
    d.rows = p.k.packed, d.dim = 64, d.kv_heads = 2, d.tokens = 6, d.out = out, d.out_stride = 2;
    EXPECT(aura_dequant(ctx, &d) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    free_problem(&p);
}

static void tests(void)
{
    RUN(edge_cases);
    RUN(rows_beyond_4_gib);
    RUN(misuse);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
