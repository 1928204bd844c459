/* The machine: instruction sets, float modes, other CPUs, threads. */
#define _GNU_SOURCE
#include "api.h"

#include <pthread.h>

#include "../../src/dispatch.h"
#include "modes.h"

/* All outputs of the calls over rows, from inputs with denormals that matter. */
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

/* Every instruction set gives the same bytes, also with contexts side by side. */
static void masks_change_no_byte(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *plain, *other;
    static uint8_t want[sizeof all];
    o.isa_mask = AURA_ISA_REF;
    EXPECT(!aura_ctx_create(&o, &plain), "%s", aura_last_error());
    setup_all();
    EXPECT(!run_all(plain), "%s", aura_last_error());
    memcpy(want, &all, sizeof want);
    for (size_t i = 0; i <= aura_isa_count; i++) { /* each one, and all of them */
        o.isa_mask = i < aura_isa_count ? aura_isa_list[i].flag : 0;
        EXPECT(!aura_ctx_create(&o, &other), "%s", aura_last_error());
        setup_all();
        EXPECT(!run_all(other) && !memcmp(want, &all, sizeof want), "mask 0x%x changed bytes", o.isa_mask);
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

static const struct aura_cpuid every_feature = {
    1u << 12 | 1u << 27 | 1u << 28 | 1u << 29, 1u << 5 | 1u << 8 | 1u << 16 | 1u << 17 | 1u << 30 | 1u << 31,
    1u << 1 | 1u << 11, 1u << 24 | 1u << 25, 1u << 4, 8u << 16 | 64, 16, 0x600e7};

static void cpu_without_the_system_has_nothing(void)
{
    const uint32_t avx2 = AURA_ISA_REF | AURA_ISA_AVX2 | AURA_ISA_AVXVNNI;
    const uint32_t all_of_it = avx2 | AURA_ISA_AVX512 | AURA_ISA_AVX512VNNI;
    struct aura_cpuid none = {0}, ones = {~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u, ~0u}, cpu = every_feature;
    EXPECT(aura_x86_isas(&cpu) == (all_of_it | AURA_ISA_AMX) && aura_x86_isas(&ones) == (all_of_it | AURA_ISA_AMX), "all there");
    EXPECT(aura_x86_isas(&none) == AURA_ISA_REF, "nothing there");
    for (uint64_t bit = 0x20000; bit <= 0x40000; bit *= 2) {
        cpu.xcr0 = every_feature.xcr0 ^ bit;
        EXPECT(aura_x86_isas(&cpu) == all_of_it, "tiles, or how they are laid out, not saved by the system");
    }
    cpu.xcr0 = 0x07;
    EXPECT(aura_x86_isas(&cpu) == avx2, "zmm not saved by the system");
    cpu.xcr0 = 0x03;
    EXPECT(aura_x86_isas(&cpu) == AURA_ISA_REF, "ymm not saved by the system");
    cpu.xcr0 = 0;
    EXPECT(aura_x86_isas(&cpu) == AURA_ISA_REF, "nothing saved by the system");
}

/* Detection asks for every feature that the kernels are compiled for: it refuses a CPU that lacks one bit. */
static void without_a_bit(uint32_t *word, uint32_t asked, const struct aura_cpuid *cpu, uint32_t left, const char *name)
{
    for (uint32_t bit = 0; bit < 32; bit++)
        if (asked >> bit & 1) {
            *word ^= 1u << bit;
            EXPECT(aura_x86_isas(cpu) == left, "without bit %u of %s: 0x%x", bit, name, aura_x86_isas(cpu));
            *word ^= 1u << bit;
        }
}

static void every_feature_is_asked_for(void)
{
    const uint32_t avx2 = AURA_ISA_REF | AURA_ISA_AVX2, every = AURA_ISA_AVX512 | AURA_ISA_AVX512VNNI | avx2 | AURA_ISA_AMX;
    const uint32_t no_amx = (every | AURA_ISA_AVXVNNI) & ~(uint32_t)AURA_ISA_AMX;
    struct aura_cpuid cpu = {~0u, ~0u, ~0u, ~0u, ~0u, 8u << 16 | 64, 16, 0x600e7};
    without_a_bit(&cpu.leaf1_ecx, every_feature.leaf1_ecx, &cpu, AURA_ISA_REF, "leaf 1");
    without_a_bit(&cpu.leaf7_ebx, 1u << 5, &cpu, AURA_ISA_REF, "leaf 7");
    without_a_bit(&cpu.leaf7_ebx, every_feature.leaf7_ebx & ~(1u << 5), &cpu, avx2 | AURA_ISA_AVXVNNI, "leaf 7");
    without_a_bit(&cpu.leaf7_ecx, every_feature.leaf7_ecx, &cpu, avx2 | AURA_ISA_AVXVNNI | AURA_ISA_AVX512,
                  "leaf 7 ecx");
    without_a_bit(&cpu.leaf7_1_eax, every_feature.leaf7_1_eax, &cpu, every, "leaf 7.1");
    without_a_bit(&cpu.leaf7_edx, every_feature.leaf7_edx, &cpu, no_amx, "leaf 7 edx");
    without_a_bit(&cpu.leaf1d_ebx, every_feature.leaf1d_ebx, &cpu, no_amx, "leaf 1d ebx: registers, bytes of a row");
    without_a_bit(&cpu.leaf1d_ecx, every_feature.leaf1d_ecx, &cpu, no_amx, "leaf 1d ecx: rows");

    const uint32_t neon = AURA_ISA_REF | AURA_ISA_NEON;
    EXPECT(aura_arm_isas(0, 0) == neon && aura_arm_isas(~(1u << 20), ~0u) == neon, "no dot products, so no I8MM");
    EXPECT(aura_arm_isas(1u << 20, ~(1u << 13)) == (neon | AURA_ISA_DOTPROD), "dot products");
    EXPECT(aura_arm_isas(1u << 20, 1u << 13) == (neon | AURA_ISA_DOTPROD | AURA_ISA_I8MM), "I8MM");
}

/* AURA_ISA leaves out what is better than what it names: the way to run without AMX a program that has no option for it. */
static void the_environment_leaves_out(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = NULL;
    const char *before = getenv("AURA_ISA");
    uint32_t had = aura_cpu_isas(), allowed = 0;
    for (size_t i = 0; i < aura_isa_count; i++) {
        allowed |= aura_isa_list[i].flag;
        setenv("AURA_ISA", aura_isa_list[i].name, 1);
        EXPECT(aura_cpu_isas() == (had & allowed), "AURA_ISA=%s: 0x%x", aura_isa_list[i].name, aura_cpu_isas());
        EXPECT(!aura_ctx_create(NULL, &made) && aura_ctx_isas(made) == (had & allowed), "%s", aura_last_error());
        aura_ctx_destroy(made);
    }
    setenv("AURA_ISA", "avx1024", 1);
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "avx1024"), "%s", aura_last_error());
    setenv("AURA_ISA", "", 1);
    EXPECT(aura_cpu_isas() == had && !aura_ctx_create(&o, &made), "%s", aura_last_error());
    aura_ctx_destroy(made);
    if (before)
        setenv("AURA_ISA", before, 1);
    else
        unsetenv("AURA_ISA");
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
    RUN(every_feature_is_asked_for);
    RUN(the_environment_leaves_out);
    RUN(threads_share_a_context);
    aura_ctx_destroy(ctx);
    return test_result();
}
