/* THE list: every stage, every shape, every instruction set, every kernel. Nothing else in the tree enumerates them.
 *
 * A kernel is called aura_<stage>_<shape>_<isa>, and the name is an address:
 *     stage  its meaning is at aura_<stage>_ref in ref.c, ref_attend.c or, for the stages of a tile, ref_tile.c; its
 *            contract is in stages.h, its body in cpu/<stage>.tmpl.h; undo is in rotate.tmpl.h, codes in encode.tmpl.h
 *     shape  b2 ... b8: codes of that many bits; f32, f16, bf16: plain numbers; any: there is nothing to fix;
 *            p1, p2: one or two bytes of query or weight per product
 *     isa    the vector words it is built from are in cpu/<isa>.h, or in those that cpu/<isa>.c includes
 *
 * To add a shape, add it to AURA_SHAPES_<stage>. To add an instruction set, add it to AURA_ISAS, write cpu/<isa>.c
 * and add its rows. A row without code fails to link; code without a row fails -Wmissing-prototypes -Werror. */
#ifndef AURA_VARIANTS_H
#define AURA_VARIANTS_H

/* X(stage, family, tolerance)
 * EXACT: a kernel must give the bits of ref.c; the tolerance is how far that f32 definition may be from the same formula
 * in double. BOUNDED: the tolerance is how far a kernel may be from double. Both are relative to the sum of the
 * magnitudes that were added up; doc/numerics.md derives each. */
#define AURA_STAGES(X)            \
    X(rotate, EXACT, 1e-6)        \
    X(undo, EXACT, 1e-6)          \
    X(rotate_dense, EXACT, 1e-5)  \
    X(encode, EXACT, 2e-6)        \
    X(dequant, EXACT, 1.2e-7)     \
    X(score, BOUNDED, 1e-6)       \
    X(softmax, BOUNDED, 1e-6)     \
    X(value, BOUNDED, 2e-6)       \
    X(reduce, BOUNDED, 1e-6)      \
    X(codes, EXACT, 2e-6)         \
    X(query, EXACT, 4e-5)         \
    X(reference, EXACT, 0)        \
    X(tile_score, EXACT, 5e-7)    \
    X(tile_weight, BOUNDED, 1e-6) \
    X(tile_value, EXACT, 4e-7)

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
#define AURA_SHAPES_codes(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_query(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_reference(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_tile_score(X, stage, isa) AURA_SHAPES_tile(X, stage, isa)
#define AURA_SHAPES_tile_weight(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_tile_value(X, stage, isa) AURA_SHAPES_tile(X, stage, isa)
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
#define AURA_SHAPES_tile(X, stage, isa)            \
    X(stage, b2p1, AURA_PLANES(2, 1), isa)          \
    X(stage, b3p1, AURA_PLANES(3, 1), isa)          \
    X(stage, b4p1, AURA_PLANES(4, 1), isa)          \
    X(stage, b5p1, AURA_PLANES(5, 1), isa)          \
    X(stage, b6p1, AURA_PLANES(6, 1), isa)          \
    X(stage, b8p1, AURA_PLANES(8, 1), isa)          \
    X(stage, b2p2, AURA_PLANES(2, 2), isa)          \
    X(stage, b3p2, AURA_PLANES(3, 2), isa)          \
    X(stage, b4p2, AURA_PLANES(4, 2), isa)          \
    X(stage, b5p2, AURA_PLANES(5, 2), isa)          \
    X(stage, b6p2, AURA_PLANES(6, 2), isa)          \
    X(stage, b8p2, AURA_PLANES(8, 2), isa)
enum { AURA_ROW_F32 = 9, AURA_ROW_F16, AURA_ROW_BF16 };
#define AURA_PLANES(kind, planes) ((kind) + 16 * ((planes) - 1))
#define AURA_KIND_OF(shape) ((shape) % 16)
#define AURA_PLANES_OF(shape) ((shape) / 16 + 1)
enum { AURA_N_KINDS = 32 };

/* X(isa, flag, what the CPU and the operating system must offer), worst first: a later one is preferred */
#define AURA_ISAS(X)                                                                 \
    X(ref, AURA_ISA_REF, "a C compiler")                                             \
    X(avx2, AURA_ISA_AVX2, "AVX2, FMA and F16C")                                     \
    X(avxvnni, AURA_ISA_AVXVNNI, "AVX2, FMA, F16C and AVX-VNNI")                     \
    X(avx512, AURA_ISA_AVX512, "AVX-512 F, BW, DQ, VL and BMI2")                     \
    X(avx512vnni, AURA_ISA_AVX512VNNI, "AVX-512 F, BW, DQ, VL, VNNI, VBMI and BMI2") \
    X(neon, AURA_ISA_NEON, "64-bit ARM")                                             \
    X(dotprod, AURA_ISA_DOTPROD, "64-bit ARM with dot products")                     \
    X(i8mm, AURA_ISA_I8MM, "64-bit ARM with dot products and I8MM")

/* X(stage, isa) */
#define AURA_VARIANTS(X) AURA_VARIANTS_X86(X) AURA_VARIANTS_ARM(X)
#define AURA_VARIANTS_X86(X)  \
    X(rotate, avx2)           \
    X(undo, avx2)             \
    X(rotate_dense, avx2)     \
    X(encode, avx2)           \
    X(dequant, avx2)          \
    X(score, avx2)            \
    X(softmax, avx2)          \
    X(value, avx2)            \
    X(reduce, avx2)           \
    X(codes, avx2)            \
    X(query, avx2)            \
    X(reference, avx2)        \
    X(tile_score, avx2)       \
    X(tile_weight, avx2)      \
    X(tile_value, avx2)       \
    X(reference, avxvnni)     \
    X(tile_score, avxvnni)    \
    X(tile_value, avxvnni)    \
    X(rotate, avx512)         \
    X(undo, avx512)           \
    X(rotate_dense, avx512)   \
    X(encode, avx512)         \
    X(dequant, avx512)        \
    X(score, avx512)          \
    X(softmax, avx512)        \
    X(value, avx512)          \
    X(reduce, avx512)         \
    X(codes, avx512)          \
    X(query, avx512)          \
    X(reference, avx512)      \
    X(tile_score, avx512)     \
    X(tile_weight, avx512)    \
    X(tile_value, avx512)     \
    X(reference, avx512vnni)  \
    X(tile_score, avx512vnni) \
    X(tile_value, avx512vnni)
#define AURA_VARIANTS_ARM(X) \
    X(rotate, neon)          \
    X(undo, neon)            \
    X(rotate_dense, neon)    \
    X(encode, neon)          \
    X(dequant, neon)         \
    X(score, neon)           \
    X(softmax, neon)         \
    X(value, neon)           \
    X(reduce, neon)          \
    X(codes, neon)           \
    X(query, neon)           \
    X(reference, neon)       \
    X(tile_score, neon)      \
    X(tile_weight, neon)     \
    X(tile_value, neon)      \
    X(reference, dotprod)    \
    X(tile_score, dotprod)   \
    X(tile_value, dotprod)   \
    X(reference, i8mm)       \
    X(tile_score, i8mm)      \
    X(tile_value, i8mm)

#endif
