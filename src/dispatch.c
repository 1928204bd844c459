/* CPU and system features, and the table of kernels. No vector code here: this file runs on any CPU. */
#include "exact.h"
#include "dispatch.h"

#include <string.h>

#include "ref.h"

#if defined(__x86_64__)
#include <cpuid.h>
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

uint32_t aura_x86_isas(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0)
{
    const uint32_t fma = 1u << 12, osxsave = 1u << 27, avx = 1u << 28, f16c = 1u << 29;
    const uint32_t avx2 = 1u << 5, bmi2 = 1u << 8, f = 1u << 16, dq = 1u << 17, bw = 1u << 30, vl = 1u << 31;
    const uint32_t base = fma | osxsave | avx | f16c, avx512 = f | dq | bw | vl | bmi2;
    uint32_t isas = AURA_ISA_REF;
    if ((leaf1_ecx & base) == base && (leaf7_ebx & avx2) && (xcr0 & 0x06) == 0x06) {
        isas |= AURA_ISA_AVX2;
        if ((leaf7_ebx & avx512) == avx512 && (xcr0 & 0xe6) == 0xe6)
            isas |= AURA_ISA_AVX512;
    }
    return isas;
}

#if defined(__x86_64__)
uint32_t aura_cpu_isas(void)
{
    uint32_t a, b, c, d, leaf1_ecx, low = 0, high = 0;
    if (!__get_cpuid(1, &a, &b, &leaf1_ecx, &d))
        return AURA_ISA_REF;
    if (leaf1_ecx & 1u << 27) /* OSXSAVE: xgetbv may be asked which registers the system saves */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d))
        return AURA_ISA_REF;
    return aura_x86_isas(leaf1_ecx, b, (uint64_t)high << 32 | low);
}
#elif defined(__aarch64__)
uint32_t aura_cpu_isas(void)
{
    return AURA_ISA_REF | AURA_ISA_NEON;
}
#else
uint32_t aura_cpu_isas(void)
{
    return AURA_ISA_REF;
}
#endif
