/* The list of the runner's kernels: every type of weights, every instruction set. Nothing else in model/ enumerates them.
 *
 * A kernel is called matmul_<type>_<isa>, and the name is an address:
 *     type   weights.h says what a number of that type is, unpack_<type> in weights.c what the bytes of a file are
 *     isa    the name that AURA_ISAS in src/variants.h has; matmul_<isa>.c has its vector words
 * matmul.tmpl.h has the one body of all of them. An instruction set also brings matmul_round_<isa> and matmul_gate_<isa>.
 *
 * A row without code fails to link; code without a row fails -Wmissing-prototypes -Werror. `aura list` prints the kernels and
 * test/model/matmul.c checks them. */
#ifndef AURA_MATMUL_VARIANTS_H
#define AURA_MATMUL_VARIANTS_H

/* X(type, isa, number of the type in a file, bytes of a block in a file, bits of a code, numbers of a part, parts of a block,
 *   zero, is there a min): quantised weights. Where the instruction set does not matter, `isa` is `any`. */
#define WEIGHT_TYPES(X, isa)                 \
    X(Q8_0, isa, 8, 34, 8, 32, 1, 128, 0)    \
    X(Q4_0, isa, 2, 18, 4, 32, 1, 8, 0)      \
    X(Q4_1, isa, 3, 20, 4, 32, 1, 0, 1)      \
    X(Q5_0, isa, 6, 22, 5, 32, 1, 16, 0)     \
    X(Q5_1, isa, 7, 24, 5, 32, 1, 0, 1)      \
    X(Q4_K, isa, 12, 144, 4, 32, 8, 0, 1)    \
    X(Q5_K, isa, 13, 176, 5, 32, 8, 0, 1)    \
    X(Q6_K, isa, 14, 210, 6, 16, 16, 32, 0)

/* X(type, isa, number of the type in a file, bytes of a number): weights that are floats */
#define WEIGHT_FLOATS(X, isa) \
    X(F32, isa, 0, 4)         \
    X(F16, isa, 1, 2)         \
    X(BF16, isa, 30, 2)

/* X(isa, flag of the public header), worst first: a later one is preferred */
#define MATMUL_ISAS(X) MATMUL_ISAS_ANY(X) MATMUL_ISAS_X86(X) MATMUL_ISAS_ARM(X)
#define MATMUL_ISAS_ANY(X) X(ref, AURA_ISA_REF)
#define MATMUL_ISAS_X86(X)   \
    X(avx2, AURA_ISA_AVX2)   \
    X(avx512vnni, AURA_ISA_AVX512VNNI)
#define MATMUL_ISAS_ARM(X) X(dotprod, AURA_ISA_DOTPROD)

#endif
