/* The machine around us: instruction sets, float modes, CPUs that are not this one, threads. */
#define _GNU_SOURCE
#include "api.h"

#include <pthread.h>

#include "../src/dispatch.h"
#include "modes.h"

/* Everything a call can produce, from inputs among which denormals matter. */
static struct {
    float rotated[ROWS * DIM], decoded[ROWS * DIM], tiny[ROWS * DIM], scales[ROWS];
    uint8_t packed[ROWS * DIM];
} all;

static int run_all(const aura_ctx *with)
{
    static const float denormal[ROWS] = {0x1p-130f, 0x1p-140f, 1, 0};
    g.encode.search = 1;
    g.rotate.out = all.rotated;
    g.encode.packed = all.packed, g.decode.packed = all.packed;
    g.encode.scales = all.scales, g.decode.scales = all.scales;
    g.decode.out = all.decoded;
    int failed = aura_rotate(with, &g.rotate) || aura_encode(with, &g.encode) || aura_decode(with, &g.decode);
    g.decode.scales = denormal;
    g.decode.out = all.tiny;
    return failed || aura_decode(with, &g.decode);
}

static void setup_all(void)
{
    setup();
    memset(&all, 0, sizeof all);
    for (int i = 0; i < DIM; i++)
        g.x[DIM + i] *= 0x1p-135f;
}

/* Every instruction set gives the same bytes, also side by side. */
static void masks_change_no_byte(void)
{
    static const uint32_t masks[] = {AURA_ISA_AVX2, AURA_ISA_AVX512, AURA_ISA_NEON, AURA_ISA_AVX2 | AURA_ISA_AVX512};
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *plain, *other;
    static uint8_t want[sizeof all];
    o.isa_mask = AURA_ISA_REF;
    EXPECT(!aura_ctx_create(&o, &plain), "%s", aura_last_error());
    setup_all();
    EXPECT(!run_all(plain), "%s", aura_last_error());
    memcpy(want, &all, sizeof want);
    for (int i = 0; i < 4; i++) {
        o.isa_mask = masks[i];
        EXPECT(!aura_ctx_create(&o, &other), "%s", aura_last_error());
        setup_all();
        EXPECT(!run_all(other) && !memcmp(want, &all, sizeof want), "mask 0x%x changed bytes", masks[i]);
        aura_ctx_destroy(other);
    }
    aura_ctx_destroy(plain);
}

static void float_modes_change_no_byte(void)
{
    static uint8_t want[sizeof all];
    unsigned long before = mode_get();
    setup_all();
    EXPECT(!run_all(ctx), "%s", aura_last_error());
    EXPECT(all.rotated[DIM] != 0 && all.tiny[0] != 0, "no denormals here, nothing is tested");
    memcpy(want, &all, sizeof want);
    for (int i = 0; i < N_MODES; i++) {
        setup_all();
        mode_set(modes[i]);
        int failed = run_all(ctx);
        unsigned long after = mode_get();
        mode_set(before);
        EXPECT(!failed && !memcmp(want, &all, sizeof want), "mode 0x%x changed bytes", modes[i]);
        EXPECT(after == modes[i], "mode 0x%x came back as 0x%lx", modes[i], after);
    }
}

static void cpu_without_the_system_has_nothing(void)
{
    const uint32_t ecx = 1u << 12 | 1u << 27 | 1u << 28 | 1u << 29, avx2 = 1u << 5;
    const uint32_t avx512 = avx2 | 1u << 8 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31;
    EXPECT(aura_x86_isas(ecx, avx512, 0xe7) == (AURA_ISA_REF | AURA_ISA_AVX2 | AURA_ISA_AVX512), "all there");
    EXPECT(aura_x86_isas(ecx, avx512, 0x07) == (AURA_ISA_REF | AURA_ISA_AVX2), "zmm not saved by the system");
    EXPECT(aura_x86_isas(ecx, avx512, 0x03) == AURA_ISA_REF, "ymm not saved by the system");
    EXPECT(aura_x86_isas(ecx & ~(1u << 27), avx512, 0xe7) == AURA_ISA_REF, "no OSXSAVE");
    EXPECT(aura_x86_isas(ecx & ~(1u << 12), avx512, 0xe7) == AURA_ISA_REF, "no FMA");
    EXPECT(aura_x86_isas(ecx, avx512 & ~(1u << 30), 0xe7) == (AURA_ISA_REF | AURA_ISA_AVX2), "no AVX-512 BW");
    EXPECT(aura_x86_isas(ecx, 0, 0xe7) == AURA_ISA_REF, "no AVX2");
    for (uint32_t bit = 0; bit < 32; bit++) { /* every feature that the kernels are compiled for is asked for */
        if (ecx >> bit & 1)
            EXPECT(aura_x86_isas(ecx & ~(1u << bit), avx512, 0xe7) == AURA_ISA_REF, "without bit %u of leaf 1", bit);
        if (avx512 >> bit & 1 && bit != 5)
            EXPECT(aura_x86_isas(ecx, avx512 & ~(1u << bit), 0xe7) == (AURA_ISA_REF | AURA_ISA_AVX2), "without bit %u of leaf 7", bit);
    }
}

static void *thread_body(void *user)
{
    static const float x[DIM] = {1, 2, 3};
    float y[DIM], first[DIM];
    uint8_t signs[DIM / 8] = {0x35};
    int *wrong = user;
    aura_rotation rotation = {sizeof rotation, AURA_ROTATION_HADAMARD, DIM, signs, NULL, NULL};
    aura_rotate_args args = {sizeof args, &rotation, 1, x, first, AURA_F32, AURA_F32, 0, 0};
    *wrong = aura_last_error()[0] != 0; /* another thread's message is not ours */
    *wrong |= aura_rotate(ctx, &args) != AURA_OK;
    for (int i = 0; i < 1000; i++) {
        args.out = y;
        *wrong |= aura_rotate(ctx, &args) != AURA_OK || memcmp(y, first, sizeof y);
    }
    return NULL;
}

static void threads_share_a_context(void)
{
    pthread_t threads[4];
    int wrong[4];
    aura_rotate(ctx, NULL); /* leaves a message in this thread */
    for (int i = 0; i < 4; i++)
        pthread_create(&threads[i], NULL, thread_body, &wrong[i]);
    for (int i = 0; i < 4; i++) {
        pthread_join(threads[i], NULL);
        EXPECT(!wrong[i], "thread %d", i);
    }
    EXPECT(strstr(aura_last_error(), "args is NULL"), "%s", aura_last_error());
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx))
        return 1;
    RUN(masks_change_no_byte);
    RUN(float_modes_change_no_byte);
    RUN(cpu_without_the_system_has_nothing);
    RUN(threads_share_a_context);
    aura_ctx_destroy(ctx);
    return test_result();
}
