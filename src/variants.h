/* THE list: every stage, every shape, every instruction set, every kernel. Nothing else in the tree enumerates them.
 *
 * A kernel is called aura_<stage>_<shape>_<isa>, and the name is an address:
 *     stage  its meaning is at aura_<stage>_ref in ref.c, its contract in stages.h, its body in cpu/<stage>.tmpl.h
 *     shape  b2 ... b8: the bit width is a constant of the compiled function; any: there is nothing to fix
 *     isa    the vector words it is built from are in cpu/<isa>.c
 *
 * To add a shape, add it to AURA_SHAPES_<stage>. To add an instruction set, add it to AURA_ISAS, write cpu/<isa>.c and
 * add its rows. A row without code fails to link; code without a row fails -Wmissing-prototypes -Werror. */
#ifndef AURA_VARIANTS_H
#define AURA_VARIANTS_H

/* X(stage, tolerance)
 * The stages of this list are exact: a kernel must give the bits of ref.c. The tolerance is how far the f32 definition
 * in ref.c may be from the same formula in double, relative to the sum of the magnitudes that were added up;
 * doc/numerics.md derives each. */
#define AURA_STAGES(X) \
    X(rotate, 1e-6)    \
    X(undo, 1e-6)      \
    X(encode, 2e-6)    \
    X(dequant, 1.2e-7)

/* X(stage, shape, bits, isa) for every shape of a stage */
#define AURA_SHAPES_rotate(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_undo(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_encode(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_dequant(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_bits(X, stage, isa) \
    X(stage, b2, 2, isa)                \
    X(stage, b3, 3, isa)                \
    X(stage, b4, 4, isa)                \
    X(stage, b5, 5, isa)                \
    X(stage, b6, 6, isa)                \
    X(stage, b8, 8, isa)

/* X(isa, flag, what the CPU and the operating system must offer), worst first: a later one is preferred */
#define AURA_ISAS(X)                                       \
    X(ref, AURA_ISA_REF, "a C compiler")                   \
    X(avx2, AURA_ISA_AVX2, "AVX2, FMA and F16C")           \
    X(avx512, AURA_ISA_AVX512, "AVX-512 F, BW, DQ and VL") \
    X(neon, AURA_ISA_NEON, "64-bit ARM")

/* X(stage, isa) */
#define AURA_VARIANTS(X) AURA_VARIANTS_X86(X) AURA_VARIANTS_ARM(X)
#define AURA_VARIANTS_X86(X) \
    X(rotate, avx2)          \
    X(undo, avx2)            \
    X(encode, avx2)          \
    X(dequant, avx2)         \
    X(rotate, avx512)        \
    X(undo, avx512)          \
    X(encode, avx512)        \
    X(dequant, avx512)
#define AURA_VARIANTS_ARM(X) \
    X(rotate, neon)          \
    X(undo, neon)            \
    X(encode, neon)          \
    X(dequant, neon)

#endif
