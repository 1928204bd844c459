/* The mlx-native kernels: float modes and misuse. */
#include "mlx_kernels.h"
#include "../base/modes.h"

/* All outputs of these functions; the norms of the second token are small enough for denormals. */
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
    a.k.bits = a.v.bits = 8, a.k.rows = a.v.rows = all.packed, a.k.norms = a.v.norms = all.norms, a.dim = 256,
        a.q_heads = a.kv_heads = 1;
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
    EXPECT(!run_all(in, before) && all.back[0] != 0 && fabsf(all.back[0]) < 0x1p-126f, "%s: %g", aura_last_error(),
           (double)all.back[0]);
    memcpy(want, &all, sizeof want);
    for (int i = 0; i < N_MODES; i++) {
        memset(&all, 0x5a, sizeof all);
        mode_set(modes[i]);
        int failed = run_all(in, modes[i]);
        mode_set(before);
        EXPECT(!failed && !memcmp(want, &all, sizeof want), "mode 0x%x: functions 0x%x failed, or bytes changed", modes[i],
               (unsigned)failed);
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

/* Good arguments, of which the misuses below change one each. */
static aura_flash_attn_vec_args good_call(const struct cache *c, const float *q, float *out)
{
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    out[0] = out[511] = 12345;
    a.k = c->k, a.v = c->v, a.dim = 256, a.q_heads = 4, a.kv_heads = 2, a.tokens = 10, a.capacity = 16, a.q = q, a.out = out,
        a.scale = 1;
    return a;
}

static void misuse_of_shapes(void)
{
    struct cache c = make_cache(4, 8, AURA_F32, 256, 2, 10, 16, 0);
    static float q[4 * 256], out[4 * 256];
    aura_flash_attn_vec_args a = good_call(&c, q, out), good = a;
    REFUSED(aura_flash_attn_vec(NULL, &a), AURA_BAD_ARGUMENT, "no context");
    REFUSED(aura_flash_attn_vec(ctx, NULL), AURA_BAD_ARGUMENT, "no arguments");
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
    free_cache(&c);
}

static void misuse_of_arrays(void)
{
    struct cache c = make_cache(4, 8, AURA_F32, 256, 2, 10, 16, 0);
    static float q[4 * 256], out[4 * 256], temp[4 * 2 * 258];
    aura_flash_attn_vec_args a = good_call(&c, q, out), good = a;
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
    static float q[256], out[512], temp[2 * 258]; /* exactly as large as the calls say, so that only the intended arrays overlap */
    static uint8_t packed[4 * 128];
    packed[0] = 0x5a, out[0] = 12345;
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
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "packed overlaps in"), "%s",
           aura_last_error());
    e.packed = packed, e.norms = q + 255;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "norms overlaps in"), "%s", aura_last_error());
    e.packed = out, e.norms = out;
    EXPECT(aura_tq_encode(ctx, &e) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "norms overlaps packed"), "%s",
           aura_last_error());
    aura_tq_dequant_args d = {sizeof d, 256, 4, 1, 4, 4, packed, temp, out, 0};
    EXPECT(aura_tq_dequant(ctx, &d) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "slot 4 of 4"), "%s", aura_last_error());
    d.slot = 0, d.packed = out;
    EXPECT(aura_tq_dequant(ctx, &d) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    d.packed = packed, d.norms = out;
    EXPECT(aura_tq_dequant(ctx, &d) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "overlap"), "%s", aura_last_error());
    EXPECT(out[0] == 12345, "something was written");
}

/* Counts with a product that overflows: the call reads and writes nothing. */
static void sizes_that_overflow(void)
{
    static const uint64_t huge[] = {UINT64_MAX, UINT64_MAX - 7, UINT64_MAX / 2 + 1, UINT64_MAX / 4 + 1, UINT64_MAX / 256};
    static float in[2 * 256], out[2 * 256], norms[4];
    static uint8_t packed[2 * 256];
    out[0] = 12345;
    for (size_t i = 0; i < sizeof huge / sizeof *huge; i++) {
        aura_tq_encode_args e = {sizeof e, 256, 8, 2, 1, huge[i], 0, 0, in, AURA_F32, packed, norms, 0};
        EXPECT(aura_tq_encode(ctx, &e) == AURA_TOO_LARGE, "capacity %llx: %s", (unsigned long long)huge[i], aura_last_error());
        e.tokens = huge[i];
        EXPECT(aura_tq_encode(ctx, &e) == AURA_TOO_LARGE, "tokens %llx: %s", (unsigned long long)huge[i], aura_last_error());
        aura_tq_dequant_args d = {sizeof d, 256, 8, 2, huge[i], 0, packed, norms, out, 0};
        EXPECT(aura_tq_dequant(ctx, &d) == AURA_TOO_LARGE, "capacity %llx: %s", (unsigned long long)huge[i], aura_last_error());
        aura_kv_copy_args c = {sizeof c, 2, 256, 1, huge[i], 0, 0, 0, in, out, AURA_F32, AURA_F32};
        EXPECT(aura_kv_copy(ctx, &c) == AURA_TOO_LARGE, "capacity %llx: %s", (unsigned long long)huge[i], aura_last_error());
        c.tokens = huge[i];
        EXPECT(aura_kv_copy(ctx, &c) == AURA_TOO_LARGE, "tokens %llx: %s", (unsigned long long)huge[i], aura_last_error());
    }
    EXPECT(out[0] == 12345, "something was written");
}

/* A sink of +inf takes all the weight, but what is no number stays none, as in one step. */
static void infinite_sinks(void)
{
    static float temp[2 * 256 + 4], out[256];
    const float sink = INFINITY, worse[] = {0, NAN, INFINITY};
    float lse;
    aura_flash_attn_vec_reduce_args r = {sizeof r, 256, 1, 2, temp, out, NULL, &sink, &lse};
    for (int place = 0; place < 3; place++) /* in a row, its sum, its maximum */
        for (int i = 0; i < 3; i++) {
            float *at = &temp[place == 0 ? 13 : place == 1 ? 2 * 256 + 2 : 2 * 256 + 3];
            memset(temp, 0, sizeof temp);
            temp[2 * 256] = temp[2 * 256 + 2] = 1;
            *at = i ? worse[i] : *at;
            const aura_status status = aura_flash_attn_vec_reduce(ctx, &r);
            EXPECT(status == (i ? AURA_NOT_FINITE : AURA_OK) && (i ? isnan(out[0]) && isnan(lse) : out[0] == 0 && lse == INFINITY),
                   "place %d, %g: %s, %g, lse %g", place, (double)worse[i], aura_status_text(status), (double)out[0], (double)lse);
        }
    memset(temp, 0, sizeof temp);
    temp[2 * 256] = 1, temp[2 * 256 + 3] = -INFINITY, temp[4] = NAN; /* numbers of the second part, which saw no key */
    EXPECT(aura_flash_attn_vec_reduce(ctx, &r) == AURA_OK && out[0] == 0, "%s", aura_last_error());
}

static void tests(void)
{
    RUN(infinite_sinks);
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
