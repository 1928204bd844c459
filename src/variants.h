/* THE list: every stage, every shape, every instruction set, every kernel. Nothing else in the tree enumerates them.
 *
 * A kernel is called aura_<stage>_<shape>_<isa>, and the name is an address:
 *     stage  its meaning is at aura_<stage>_ref in ref.c or ref_attend.c, its contract in stages.h, its body in
 *            cpu/<stage>.tmpl.h; undo is in rotate.tmpl.h
 *     shape  b2 ... b8: rows of packed codes of that many bits; f32, f16, bf16: rows of plain numbers;
 *            any: there is nothing to fix
 *     isa    the vector words it is built from are in cpu/<isa>.c
 *
 * To add a shape, add it to AURA_SHAPES_<stage>. To add an instruction set, add it to AURA_ISAS, write cpu/<isa>.c and
 * add its rows. A row without code fails to link; code without a row fails -Wmissing-prototypes -Werror. */
#ifndef AURA_VARIANTS_H
#define AURA_VARIANTS_H

/* X(stage, family, tolerance)
 * EXACT: a kernel must give the bits of ref.c; the tolerance is how far that f32 definition may be from the same formula
 * in double. BOUNDED: the tolerance is how far a kernel may be from double. Both are relative to the sum of the
 * magnitudes that were added up; doc/numerics.md derives each. */
#define AURA_STAGES(X)           \
    X(rotate, EXACT, 1e-6)       \
    X(undo, EXACT, 1e-6)         \
    X(rotate_dense, EXACT, 1e-5) \
    X(encode, EXACT, 2e-6)       \
    X(dequant, EXACT, 1.2e-7)    \
    X(score, BOUNDED, 1e-6)      \
    X(softmax, BOUNDED, 1e-6)    \
    X(value, BOUNDED, 2e-6)      \
    X(reduce, BOUNDED, 1e-6)

/* X(stage, shape, kind, isa) for every shape of a stage. The kind is the bit width, or one of AURA_ROW_F32 ..., or 0 */
#define AURA_SHAPES_rotate(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_undo(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_rotate_dense(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_encode(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_dequant(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_score(X, stage, isa) AURA_SHAPES_bits(X, stage, isa) AURA_SHAPES_plain(X, stage, isa)
#define AURA_SHAPES_softmax(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_value(X, stage, isa) AURA_SHAPES_bits(X, stage, isa) AURA_SHAPES_plain(X, stage, isa)
#define AURA_SHAPES_reduce(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_bits(X, stage, isa) \
    X(stage, b2, 2, isa)                \
    X(stage, b3, 3, isa)                \
    X(stage, b4, 4, isa)                \
    X(stage, b5, 5, isa)                \
    X(stage, b6, 6, isa)                \
    X(stage, b8, 8, isa)
#define AURA_SHAPES_plain(X, stage, isa)  \
    X(stage, f32, AURA_ROW_F32, isa)      \
    X(stage, f16, AURA_ROW_F16, isa)      \
    X(stage, bf16, AURA_ROW_BF16, isa)
enum { AURA_ROW_F32 = 9, AURA_ROW_F16, AURA_ROW_BF16, AURA_N_KINDS };

/* X(isa, flag, what the CPU and the operating system must offer), worst first: a later one is preferred */
#define AURA_ISAS(X)                                       \
    X(ref, AURA_ISA_REF, "a C compiler")                   \
    X(avx2, AURA_ISA_AVX2, "AVX2, FMA and F16C")           \
    X(avx512, AURA_ISA_AVX512, "AVX-512 F, BW, DQ, VL and BMI2") \
    X(neon, AURA_ISA_NEON, "64-bit ARM")

/* X(stage, isa) */
#define AURA_VARIANTS(X) AURA_VARIANTS_X86(X) AURA_VARIANTS_ARM(X)
#define AURA_VARIANTS_X86(X) \
    X(rotate, avx2)          \
    X(undo, avx2)            \
    X(rotate_dense, avx2)    \
    X(encode, avx2)          \
    X(dequant, avx2)         \
    X(score, avx2)           \
    X(softmax, avx2)         \
    X(value, avx2)           \
    X(reduce, avx2)          \
    X(rotate, avx512)        \
    X(undo, avx512)          \
    X(rotate_dense, avx512)  \
    X(encode, avx512)        \
    X(dequant, avx512)       \
    X(score, avx512)         \
    X(softmax, avx512)       \
    X(value, avx512)         \
    X(reduce, avx512)
#define AURA_VARIANTS_ARM(X) \
    X(rotate, neon)          \
    X(undo, neon)            \
    X(rotate_dense, neon)    \
    X(encode, neon)          \
    X(dequant, neon)         \
    X(score, neon)           \
    X(softmax, neon)         \
    X(value, neon)           \
    X(reduce, neon)

#endif
