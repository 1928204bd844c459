/* CPU and system features, and the table of kernels. No vector code here: this file runs on any CPU. */
#define _GNU_SOURCE /* syscall */
#include "base/exact.h"
#include "dispatch.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "ref.h"

#if defined(__x86_64__) && defined(__linux__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#elif defined(__x86_64__)
#include <cpuid.h>
#elif defined(__aarch64__) && defined(__linux__)
#include <sys/auxv.h>
#endif

const struct aura_isa aura_isa_list[] = {
#define ISA(isa, flag, needs) {#isa, flag, needs},
    AURA_ISAS(ISA)
#undef ISA
};
const size_t aura_isa_count = sizeof aura_isa_list / sizeof *aura_isa_list;

enum {
#define ISA(isa, flag, needs) FLAG_##isa = flag,
    AURA_ISAS(ISA)
#undef ISA
};

/* Kernels of the other architecture are in the list, so that it is the same everywhere, but are not in this binary. */
#if defined(__x86_64__)
#define X86(fn) (aura_any_fn *)fn
#define ARM(fn) NULL
#elif defined(__aarch64__)
#define X86(fn) NULL
#define ARM(fn) (aura_any_fn *)fn
#else
#define X86(fn) NULL
#define ARM(fn) NULL
#endif

#define SLOT(stage, kind) offsetof(struct aura_kernels, stage) + (kind) * sizeof(aura_any_fn *)
#define ROW(stage, shape, kind, isa, fn) \
    {#stage "_" #shape "_" #isa, #stage, #isa, kind, FLAG_##isa, SLOT(stage, kind), fn},
#define REF_ROW(stage, shape, kind, isa) ROW(stage, shape, kind, isa, (aura_any_fn *)aura_##stage##_ref)
#define X86_ROW(stage, shape, kind, isa) ROW(stage, shape, kind, isa, X86(aura_##stage##_##shape##_##isa))
#define ARM_ROW(stage, shape, kind, isa) ROW(stage, shape, kind, isa, ARM(aura_##stage##_##shape##_##isa))
#define REF_STAGE(stage, family, tolerance) AURA_SHAPES_##stage(REF_ROW, stage, ref)
#define X86_STAGE(stage, isa) AURA_SHAPES_##stage(X86_ROW, stage, isa)
#define ARM_STAGE(stage, isa) AURA_SHAPES_##stage(ARM_ROW, stage, isa)

const struct aura_variant aura_variant_list[] = {
    AURA_STAGES(REF_STAGE)
    AURA_VARIANTS_X86(X86_STAGE)
    AURA_VARIANTS_ARM(ARM_STAGE)
};
const size_t aura_variant_count = sizeof aura_variant_list / sizeof *aura_variant_list;

void aura_kernels_init(struct aura_kernels *kernels, uint32_t isas)
{
    memset(kernels, 0, sizeof *kernels);
    for (size_t i = 0; i < aura_variant_count; i++) {
        const struct aura_variant *v = &aura_variant_list[i];
        if (v->run && (v->isa_flag & (isas | AURA_ISA_REF)))
            memcpy((char *)kernels + v->slot, &v->run, sizeof v->run);
    }
}

uint32_t aura_x86_isas(const struct aura_cpuid *cpu)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, bmi2 = 1u << 8, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    const uint32_t vbmi = 1u << 1, vnni = 1u << 11, avx_vnni = 1u << 4;
    const uint32_t base = fma | osxsave | avx | f16c, avx512 = f | dq | bw | vl | bmi2, avx512vnni = vbmi | vnni;
    uint32_t isas = AURA_ISA_REF;
    if ((cpu->leaf1_ecx & base) != base || !(cpu->leaf7_ebx & avx2) || (cpu->xcr0 & 0x06) != 0x06)
        return isas;
    isas |= AURA_ISA_AVX2;
    if (cpu->leaf7_1_eax & avx_vnni)
        isas |= AURA_ISA_AVXVNNI;
    if ((cpu->leaf7_ebx & avx512) != avx512 || (cpu->xcr0 & 0xe6) != 0xe6)
        return isas;
    isas |= AURA_ISA_AVX512;
    if ((cpu->leaf7_ecx & avx512vnni) != avx512vnni)
        return isas;
    isas |= AURA_ISA_AVX512VNNI;
    const uint32_t amx = 1u << 24 | 1u << 25, names = cpu->leaf1d_ebx >> 16, row_bytes = cpu->leaf1d_ebx & 0xffff;
    const int tiles = names >= 8 && row_bytes >= 64 && (cpu->leaf1d_ecx & 0xffff) >= 16;
    if (tiles && (cpu->leaf7_edx & amx) == amx && (cpu->xcr0 & 0x60000) == 0x60000)
        isas |= AURA_ISA_AMX;
    return isas;
}

uint32_t aura_arm_isas(uint64_t hwcap, uint64_t hwcap2)
{
    const uint64_t asimddp = 1u << 20, i8mm = 1u << 13;
    uint32_t isas = AURA_ISA_REF | AURA_ISA_NEON;
    if (hwcap & asimddp)
        isas |= AURA_ISA_DOTPROD | (hwcap2 & i8mm ? AURA_ISA_I8MM : 0);
    return isas;
}

uint32_t aura_isas_up_to(const char *name)
{
    uint32_t isas = 0;
    for (size_t i = 0; i < aura_isa_count; i++) { /* the worst comes first */
        isas |= aura_isa_list[i].flag;
        if (name && !strcmp(aura_isa_list[i].name, name))
            return isas;
    }
    return name ? 0 : isas;
}

uint32_t aura_cpu_isas(void)
{
    return aura_usable_isas(~0u);
}

/* What the environment leaves of these. A name that is none leaves all: aura_ctx_create says so. */
static uint32_t left_of(uint32_t isas)
{
    const char *name = getenv("AURA_ISA");
    const uint32_t up_to = aura_isas_up_to(name && *name ? name : NULL);
    return up_to ? isas & (up_to | AURA_ISA_REF) : isas;
}

#if defined(AURA_PLAIN_TILES)
/* For tests: see cpu/amx.c. */
static uint32_t with_tiles(uint32_t isas, uint32_t wanted)
{
    return isas & AURA_ISA_AVX2 ? isas | (wanted & AURA_ISA_AMX) : isas;
}
#elif defined(__x86_64__) && defined(__linux__)
/* Linux saves tile registers only for a process that has asked. It refuses where a signal stack is too small for them. */
static int may_use_tiles(void)
{
    static atomic_int known; /* 1: no, 2: yes. Two threads that ask at once get the same answer */
    const long ask = 0x1023, look = 0x1022, tile_data = 18; /* ARCH_REQ_XCOMP_PERM, ARCH_GET_XCOMP_PERM */
    uint64_t granted = 0;
    if (!atomic_load(&known)) {
        const int yes = !syscall(SYS_arch_prctl, ask, tile_data) && !syscall(SYS_arch_prctl, look, &granted) &&
                        (granted >> tile_data & 1);
        atomic_store(&known, yes ? 2 : 1);
    }
    return atomic_load(&known) == 2;
}

static uint32_t with_tiles(uint32_t isas, uint32_t wanted)
{
    return isas & wanted & AURA_ISA_AMX && may_use_tiles() ? isas : isas & ~(uint32_t)AURA_ISA_AMX;
}
#else
static uint32_t with_tiles(uint32_t isas, uint32_t wanted)
{
    (void)wanted;
    return isas & ~(uint32_t)AURA_ISA_AMX;
}
#endif

#if defined(__x86_64__)
static uint32_t machine_isas(void)
{
    struct aura_cpuid cpu = {0};
    uint32_t a, b, c, d, last_subleaf, low = 0, high = 0;
    if (!__get_cpuid(1, &a, &b, &cpu.leaf1_ecx, &d))
        return AURA_ISA_REF;
    if (cpu.leaf1_ecx & 1u << 27) /* OSXSAVE: xgetbv may be asked which registers the system saves */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    cpu.xcr0 = (uint64_t)high << 32 | low;
    if (!__get_cpuid_count(7, 0, &last_subleaf, &cpu.leaf7_ebx, &cpu.leaf7_ecx, &cpu.leaf7_edx))
        return AURA_ISA_REF;
    if (last_subleaf >= 1)
        __get_cpuid_count(7, 1, &cpu.leaf7_1_eax, &b, &c, &d);
    __get_cpuid_count(0x1d, 1, &a, &cpu.leaf1d_ebx, &cpu.leaf1d_ecx, &d);
    return aura_x86_isas(&cpu);
}
#elif defined(__aarch64__) && defined(__linux__)
static uint32_t machine_isas(void)
{
    return aura_arm_isas(getauxval(AT_HWCAP), getauxval(AT_HWCAP2));
}
#elif defined(__aarch64__)
static uint32_t machine_isas(void)
{
    return aura_arm_isas(0, 0); /* what every one has: only Linux is asked for more */
}
#else
static uint32_t machine_isas(void)
{
    return AURA_ISA_REF;
}
#endif

uint32_t aura_usable_isas(uint32_t wanted)
{
    wanted = left_of(wanted | AURA_ISA_REF);
    return with_tiles(machine_isas(), wanted) & wanted;
}
