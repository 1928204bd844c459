/* A caller for whom an invalid operation is a signal: numbers that are none are refused, or become NaN, without one. */
#define _GNU_SOURCE
#include <fenv.h>
#include <math.h>
#include <setjmp.h>
#include <signal.h>
#include <stdlib.h>

#include "../../include/aura_file.h"
#include "../../include/aura_rows.h"
#include "../test.h"

#if defined(__x86_64__) && defined(__GLIBC__)

static aura_ctx *ctx;
static sigjmp_buf back;

static void on_signal(int number)
{
    (void)number;
    siglongjmp(back, 1);
}

/* The call with exceptions that are signals; its status is one of the two. */
#define EXPECT_QUIET(call, status, other)                                          \
    do {                                                                           \
        if (sigsetjmp(back, 1)) {                                                  \
            fedisableexcept(FE_ALL_EXCEPT);                                        \
            EXPECT(0, "%s: a signal", #call);                                      \
            break;                                                                 \
        }                                                                          \
        feenableexcept(FE_INVALID | FE_DIVBYZERO | FE_OVERFLOW);                   \
        aura_status got_ = (call);                                                 \
        const int kept_ = fegetexcept() & FE_INVALID;                              \
        fedisableexcept(FE_ALL_EXCEPT);                                            \
        EXPECT(got_ == (status) || got_ == (other), "%s: %s", #call, aura_status_text(got_)); \
        EXPECT(kept_, "%s leaves the caller's mode changed", #call);               \
    } while (0)

static float nans[4096];
static uint16_t nans_of_16_bits[4096];

static void caches(void)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_cache *cache = NULL, *none = NULL;
    config.q_heads = 2, config.kv_heads = 1, config.k_dim = 64;
    for (volatile int f16 = 0; f16 < 2; f16++)
        for (volatile int kind = 0; kind < 3; kind++) {
            static const aura_kind kinds[3] = {AURA_KIND_B4, AURA_KIND_F16, AURA_KIND_F32};
            aura_append_job in = AURA_APPEND_JOB_INIT;
            config.format.k = config.format.v = kinds[kind];
            EXPECT(!aura_cache_create(ctx, &config, &cache) && !aura_seq_create(cache, &in.seq), "%s", aura_last_error());
            in.tokens = 3, in.k.data = in.v.data = f16 ? (void *)nans_of_16_bits : nans;
            in.k.dtype = in.v.dtype = f16 ? AURA_F16 : AURA_F32;
            EXPECT_QUIET(aura_append(cache, &in, 1), AURA_BAD_VALUE, AURA_OK);
            aura_cache_destroy(cache);
        }
    config.format.k = config.format.v = AURA_KIND_B4;
    config.balance = nans;
    EXPECT_QUIET(aura_cache_create(ctx, &config, &none), AURA_BAD_VALUE, AURA_BAD_VALUE);
    config.balance = NULL, config.slots = 300;
    EXPECT(!aura_cache_create(ctx, &config, &cache), "%s", aura_last_error());
    uint64_t slot[2] = {7, 200};
    aura_slot_job job = AURA_SLOT_JOB_INIT;
    job.tokens = 2, job.slot = slot, job.k.data = job.v.data = nans;
    EXPECT_QUIET(aura_slots_write(cache, &job, 1), AURA_BAD_VALUE, AURA_BAD_VALUE);
    aura_input mean = {nans, AURA_F32, 0, 0, NULL};
    EXPECT_QUIET(aura_slots_reference(cache, 0, &mean), AURA_BAD_VALUE, AURA_BAD_VALUE);
    aura_cache_destroy(cache);
}

static void attention(void)
{
    static float k[40 * 64], out[2 * 64];
    aura_config config = AURA_CONFIG_INIT;
    aura_cache *cache = NULL;
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    for (int i = 0; i < 40 * 64; i++)
        k[i] = (float)(i % 7) - 3;
    config.q_heads = 2, config.kv_heads = 1, config.k_dim = 64;
    EXPECT(!aura_cache_create(ctx, &config, &cache) && !aura_seq_create(cache, &in.seq), "%s", aura_last_error());
    in.tokens = 40, in.k.data = in.v.data = k;
    EXPECT(!aura_append(cache, &in, 1), "%s", aura_last_error());
    ask.seq = in.seq, ask.queries = 1, ask.q.data = k, ask.out.data = out;
    for (volatile int i = 0; i < 4; i++) {
        aura_attend_options o = AURA_ATTEND_OPTIONS_INIT;
        o.scale = i == 0 ? NAN : 0, o.softcap = i == 1 ? NAN : 0, o.alibi = i == 2 ? nans : NULL;
        ask.mask = i == 3 ? nans : NULL, ask.mask_keys = i == 3 ? 40 : 0;
        EXPECT_QUIET(aura_attend(cache, &ask, 1, &o), i == 3 ? AURA_OK : AURA_BAD_ARGUMENT,
                     i == 3 ? AURA_NOT_FINITE : AURA_BAD_VALUE);
    }
    ask.q.data = nans, ask.mask = NULL, ask.mask_keys = 0;
    EXPECT_QUIET(aura_attend(cache, &ask, 1, NULL), AURA_NOT_FINITE, AURA_NOT_FINITE);
    aura_cache_destroy(cache);
}

static void profiles_and_calibration(void)
{
    aura_profile *profile = NULL;
    aura_calibration *calibration = NULL;
    aura_calibration_config config = AURA_CALIBRATION_CONFIG_INIT;
    aura_input view = {nans, AURA_F32, 0, 0, NULL};
    float balance[64];
    EXPECT(!aura_profile_create(ctx, 1, &profile), "%s", aura_last_error());
    EXPECT_QUIET(aura_profile_set(profile, 0, 1, 64, nans), AURA_BAD_VALUE, AURA_BAD_VALUE);
    aura_profile_destroy(profile);
    config.q_heads = config.kv_heads = 1, config.k_dim = 64;
    EXPECT(!aura_calibration_create(ctx, &config, &calibration), "%s", aura_last_error());
    EXPECT_QUIET(aura_calibration_keys(calibration, 40, &view), AURA_BAD_VALUE, AURA_BAD_VALUE);
    EXPECT_QUIET(aura_calibration_queries(calibration, 40, &view), AURA_BAD_VALUE, AURA_BAD_VALUE);
    EXPECT_QUIET(aura_calibration_balance(calibration, balance), AURA_OK, AURA_BAD_ARGUMENT);
    aura_calibration_destroy(calibration);
}

static void rows(void)
{
    static float out[64];
    static uint8_t packed[64];
    float scale[1];
    aura_rotation dense = AURA_ROTATION_INIT, plain = AURA_ROTATION_INIT;
    aura_rotate_args rotate = AURA_ROTATE_ARGS_INIT;
    aura_encode_args encode = AURA_ENCODE_ARGS_INIT;
    aura_codebook book, bad;
    dense.kind = AURA_ROTATION_DENSE, dense.dim = 64, dense.matrix = nans;
    plain.dim = 64;
    rotate.rows = 1, rotate.in = nans, rotate.out = out;
    rotate.rotation = &dense;
    EXPECT_QUIET(aura_rotate(ctx, &rotate), AURA_BAD_VALUE, AURA_BAD_VALUE);
    rotate.rotation = &plain;
    EXPECT_QUIET(aura_rotate(ctx, &rotate), AURA_OK, AURA_BAD_VALUE);
    EXPECT(!aura_codebook_get(AURA_TABLE_GRID, 4, &book), "%s", aura_last_error());
    encode.rows = 1, encode.dim = 64, encode.in = nans, encode.codebook = &book, encode.packed = packed, encode.scales = scale;
    EXPECT_QUIET(aura_encode(ctx, &encode), AURA_OK, AURA_BAD_VALUE);
    bad = book, bad.sigma = NAN, bad.centroid = nans;
    encode.codebook = &bad;
    EXPECT_QUIET(aura_encode(ctx, &encode), AURA_BAD_VALUE, AURA_BAD_ARGUMENT);
}

int main(void)
{
    struct sigaction action = {.sa_handler = on_signal};
    uint32_t signalling = 0x7fa00001u;
    sigaction(SIGFPE, &action, NULL);
    for (size_t i = 0; i < sizeof nans / sizeof *nans; i++) {
        memcpy(&nans[i], &signalling, sizeof signalling);
        nans_of_16_bits[i] = 0x7d01;
    }
    if (aura_ctx_create(NULL, &ctx))
        return 125;
    RUN(caches);
    RUN(attention);
    RUN(profiles_and_calibration);
    RUN(rows);
    aura_ctx_destroy(ctx);
    return test_result();
}

#else

static void caches(void)
{
    test_skip = "this machine has no exceptions that are signals";
}

int main(void)
{
    RUN(caches);
    return test_result();
}

#endif
