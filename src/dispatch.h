/* Which kernels exist, which of them this machine can run, and the table a context uses. */
#ifndef AURA_DISPATCH_H
#define AURA_DISPATCH_H

#include "stages.h"

typedef void aura_any_fn(void); /* a kernel whose type is that of its stage */

/* One kernel of the list. */
struct aura_variant {
    const char *name;         /* "encode_b3_avx2" */
    const char *stage, *isa;
    uint32_t kind;            /* of its shape: the last argument but one in variants.h; 0 where there is none */
    uint32_t isa_flag;
    size_t slot;              /* where in struct aura_kernels it goes */
    aura_any_fn *run;         /* NULL: not on this architecture */
};

struct aura_isa {
    const char *name;
    uint32_t flag;
    const char *needs;
};

extern const struct aura_variant aura_variant_list[]; /* the definitions first, better ones later */
extern const size_t aura_variant_count;
extern const struct aura_isa aura_isa_list[];
extern const size_t aura_isa_count;

/* Fills the table with the definition, then with every better kernel that `isas` allows. */
void aura_kernels_init(struct aura_kernels *kernels, uint32_t isas);

/* What a CPU says of itself: a test can make up other machines. */
struct aura_cpuid {
    uint32_t leaf1_ecx;              /* CPUID leaf 1 */
    uint32_t leaf7_ebx, leaf7_ecx, leaf7_edx; /* leaf 7, subleaf 0 */
    uint32_t leaf7_1_eax;            /* leaf 7, subleaf 1; 0 where there is none */
    uint32_t leaf1d_ebx, leaf1d_ecx; /* leaf 0x1d, subleaf 1, of tile registers: how many and bytes of a row, rows; 0: no leaf */
    uint64_t xcr0;                   /* the registers that the system saves */
};

/* The x86 instruction sets that these words stand for: the CPU has them *and* the system saves their registers. */
uint32_t aura_x86_isas(const struct aura_cpuid *cpu);

/* aura_cpu_isas() without those that `wanted` does not have: permission for them is not asked. */
uint32_t aura_usable_isas(uint32_t wanted);

/* Those that AURA_ISA in the environment allows, all where it is not set. 0: `name` is none. */
uint32_t aura_isas_up_to(const char *name);

/* The ARM instruction sets that these words of Linux's auxiliary vector stand for. */
uint32_t aura_arm_isas(uint64_t hwcap, uint64_t hwcap2);

#endif
