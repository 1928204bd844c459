/* Which kernels exist, which of them this machine can run, and the table a context uses. */
#ifndef AURA_DISPATCH_H
#define AURA_DISPATCH_H

#include "stages.h"

typedef void aura_any_fn(void); /* a kernel whose type is that of its stage */

/* One row of the list, spelled out. */
struct aura_variant {
    const char *name;         /* "encode_b3_avx2" */
    const char *stage, *isa;
    uint32_t kind;            /* of rows: bits, or AURA_ROW_F32 ...; 0 where it does not matter */
    uint32_t isa_flag;
    size_t slot;              /* where in struct aura_kernels it goes */
    aura_any_fn *run;         /* NULL: not on this architecture */
};

struct aura_isa {
    const char *name;
    uint32_t flag;
    const char *needs;
};

extern const struct aura_variant aura_variant_list[]; /* reference first, better ones later */
extern const size_t aura_variant_count;
extern const struct aura_isa aura_isa_list[];
extern const size_t aura_isa_count;

/* Fills the table with the reference, then with every better kernel that `isas` allows. */
void aura_kernels_init(struct aura_kernels *kernels, uint32_t isas);

/* The x86 instruction sets that these CPUID words and this XCR0 stand for: the CPU has them *and* the system saves
 * their registers. Apart from aura_cpu_isas() so that a test can ask about other machines. */
uint32_t aura_x86_isas(uint32_t leaf1_ecx, uint32_t leaf7_ebx, uint64_t xcr0);

#endif
