/* THE list: every stage, every kind, every dim, every shape, every instruction set, every kernel. Nothing else in the tree
 * enumerates them.
 *
 * A kernel is called aura_<stage>_<shape>_<isa>, and the name is an address:
 *     stage  ref.c, ref_attend.c, ref_tile.c or ref_feedback.c define it at aura_<stage>_ref, and ref_trellis.c for trellis codes;
 *            stages.h has its contract, and cpu/<stage>.tmpl.h its body. Some share a file: undo is in rotate.tmpl.h, row_encode in
 *            encode.tmpl.h, unpack in pack.tmpl.h, widen and narrow in numbers.tmpl.h, trellis codes in trellis.tmpl.h.
 *            The stages row_* read and write rows, the layout of the public families; the others work on tiles.
 *     shape  b2 ... b8: codes of that many bits; t2, t3, t4: trellis codes of that many bits; f32, f16, bf16: plain numbers;
 *            any: there is nothing to fix;
 *            p1, p2: one or two bytes of query or weight per product
 *     isa    the vector words it is built from are in cpu/<isa>.h, or in those that cpu/<isa>.c includes
 *
 * The kernels of the GPU are rows of the list too: AURA_CUDA_KERNELS, at the end.
 *
 * doc/add-a-variant.md says how to add a width, a dim, an instruction set or a kernel. A row without code fails to link;
 * code without a row fails -Wmissing-prototypes -Werror. */
#ifndef AURA_VARIANTS_H
#define AURA_VARIANTS_H

/* X(shape, kind, ...): the kinds of a side, each with its number in the public header and in files. */
#define AURA_BITS(X, ...)   \
    X(b2, 2, __VA_ARGS__)   \
    X(b3, 3, __VA_ARGS__)   \
    X(b4, 4, __VA_ARGS__)   \
    X(b5, 5, __VA_ARGS__)   \
    X(b6, 6, __VA_ARGS__)   \
    X(b8, 8, __VA_ARGS__)
#define AURA_PLAIN(X, ...)             \
    X(f32, AURA_ROW_F32, __VA_ARGS__)  \
    X(f16, AURA_ROW_F16, __VA_ARGS__)  \
    X(bf16, AURA_ROW_BF16, __VA_ARGS__)
#define AURA_TRELLIS(X, ...)            \
    X(t2, AURA_TRELLIS_2, __VA_ARGS__)  \
    X(t3, AURA_TRELLIS_3, __VA_ARGS__)  \
    X(t4, AURA_TRELLIS_4, __VA_ARGS__)
#define AURA_CODES(X, ...) AURA_BITS(X, __VA_ARGS__) AURA_TRELLIS(X, __VA_ARGS__)
#define AURA_KINDS(X, ...) AURA_CODES(X, __VA_ARGS__) AURA_PLAIN(X, __VA_ARGS__)
enum { AURA_ROW_F32 = 9, AURA_ROW_F16, AURA_ROW_BF16, AURA_TRELLIS_2, AURA_TRELLIS_3, AURA_TRELLIS_4 };

/* X(dim, ...): the head sizes of a cache. */
#define AURA_DIMS(X, ...) \
    X(64, __VA_ARGS__)    \
    X(80, __VA_ARGS__)    \
    X(96, __VA_ARGS__)    \
    X(112, __VA_ARGS__)   \
    X(128, __VA_ARGS__)   \
    X(192, __VA_ARGS__)   \
    X(256, __VA_ARGS__)   \
    X(512, __VA_ARGS__)

/* What a list becomes with these as X: items of an array; words of a text, each with a space or a comma. */
#define AURA_DIM_ITEM(dim, ...) dim,
#define AURA_DIM_WORD(dim, ...) " " #dim
#define AURA_KIND_ITEM(shape, kind, ...) kind,
#define AURA_KIND_WORD(shape, kind, ...) #kind " "
#define AURA_KIND_COMMA(shape, kind, ...) #kind ", "
#define AURA_SHAPE_WORD(shape, kind, ...) #shape " "
#define AURA_SHAPE_COMMA(shape, kind, ...) #shape ", "

/* X(stage, family, tolerance), in the order data flows: first over tiles, then over rows.
 * EXACT: a kernel must give the bits of ref*.c; the tolerance is how far that f32 definition may be from the same formula
 * in double. BOUNDED: the tolerance is how far a kernel may be from double. Both are relative to the sum of the
 * magnitudes that were added up; doc/numerics.md derives each. */
#define AURA_STAGES(X)               \
    X(rotate, EXACT, 1e-6)           \
    X(encode, EXACT, 2e-6)           \
    X(feedback, EXACT, 1e-4)         \
    X(pack, EXACT, 0)                \
    X(unpack, EXACT, 4e-7)           \
    X(widen, EXACT, 0)               \
    X(narrow, EXACT, 0.01)           \
    X(query, EXACT, 4e-5)            \
    X(reference, EXACT, 0)           \
    X(score, EXACT, 5e-7)            \
    X(softmax, BOUNDED, 1e-6)        \
    X(value, EXACT, 4e-7)            \
    X(undo, EXACT, 1e-6)             \
    X(row_rotate_dense, EXACT, 1e-5) \
    X(row_encode, EXACT, 2e-6)       \
    X(row_dequant, EXACT, 1.2e-7)    \
    X(row_score, BOUNDED, 1e-6)      \
    X(row_softmax, BOUNDED, 1e-6)    \
    X(row_value, BOUNDED, 2e-6)      \
    X(row_reduce, BOUNDED, 1e-6)

/* X(stage, shape, kind, isa) for every shape of a stage. The kind is one of AURA_KINDS, or 0 where there is none. */
#define AURA_SHAPES_rotate(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_encode(X, stage, isa) AURA_SHAPES_codes(X, stage, isa)
#define AURA_SHAPES_feedback(X, stage, isa) AURA_SHAPES_codes(X, stage, isa)
#define AURA_SHAPES_pack(X, stage, isa) AURA_SHAPES_codes(X, stage, isa)
#define AURA_SHAPES_unpack(X, stage, isa) AURA_SHAPES_codes(X, stage, isa)
#define AURA_SHAPES_widen(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_narrow(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_query(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_reference(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_score(X, stage, isa) AURA_SHAPES_tile(X, stage, isa)
#define AURA_SHAPES_softmax(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_value(X, stage, isa) AURA_SHAPES_tile(X, stage, isa)
#define AURA_SHAPES_undo(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_row_rotate_dense(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_row_encode(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_row_dequant(X, stage, isa) AURA_SHAPES_bits(X, stage, isa)
#define AURA_SHAPES_row_score(X, stage, isa) AURA_SHAPES_kinds(X, stage, isa)
#define AURA_SHAPES_row_softmax(X, stage, isa) X(stage, any, 0, isa)
#define AURA_SHAPES_row_value(X, stage, isa) AURA_SHAPES_kinds(X, stage, isa)
#define AURA_SHAPES_row_reduce(X, stage, isa) X(stage, any, 0, isa)

#define AURA_SHAPES_bits(X, stage, isa) AURA_BITS(AURA_SHAPE, X, stage, isa)
#define AURA_SHAPES_trellis(X, stage, isa) AURA_TRELLIS(AURA_SHAPE, X, stage, isa)
#define AURA_SHAPES_codes(X, stage, isa) AURA_SHAPES_bits(X, stage, isa) AURA_SHAPES_trellis(X, stage, isa)
#define AURA_SHAPES_kinds(X, stage, isa) AURA_BITS(AURA_SHAPE, X, stage, isa) AURA_PLAIN(AURA_SHAPE, X, stage, isa)
#define AURA_SHAPES_tile(X, stage, isa) AURA_CODES(AURA_SHAPE_P1, X, stage, isa) AURA_CODES(AURA_SHAPE_P2, X, stage, isa)
#define AURA_SHAPE(shape, kind, X, stage, isa) X(stage, shape, kind, isa)
#define AURA_SHAPE_P1(shape, kind, X, stage, isa) X(stage, shape##p1, AURA_PLANES(kind, 1), isa)
#define AURA_SHAPE_P2(shape, kind, X, stage, isa) X(stage, shape##p2, AURA_PLANES(kind, 2), isa)
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
    X(amx, AURA_ISA_AMX, "AVX-512 VNNI as above, AMX-INT8 and the system's permission") \
    X(neon, AURA_ISA_NEON, "64-bit ARM")                                             \
    X(dotprod, AURA_ISA_DOTPROD, "64-bit ARM with dot products")                     \
    X(i8mm, AURA_ISA_I8MM, "64-bit ARM with dot products and I8MM")

/* X(stage, isa) */
#define AURA_VARIANTS(X) AURA_VARIANTS_X86(X) AURA_VARIANTS_ARM(X)
#define AURA_VARIANTS_X86(X) \
    X(rotate, avx2)             \
    X(undo, avx2)               \
    X(encode, avx2)             \
    X(feedback, avx2)           \
    X(pack, avx2)               \
    X(unpack, avx2)             \
    X(widen, avx2)              \
    X(narrow, avx2)             \
    X(query, avx2)              \
    X(reference, avx2)          \
    X(score, avx2)              \
    X(softmax, avx2)            \
    X(value, avx2)              \
    X(row_rotate_dense, avx2)   \
    X(row_encode, avx2)         \
    X(row_dequant, avx2)        \
    X(row_score, avx2)          \
    X(row_softmax, avx2)        \
    X(row_value, avx2)          \
    X(row_reduce, avx2)         \
    X(reference, avxvnni)       \
    X(score, avxvnni)           \
    X(value, avxvnni)           \
    X(rotate, avx512)           \
    X(undo, avx512)             \
    X(encode, avx512)           \
    X(feedback, avx512)         \
    X(pack, avx512)             \
    X(unpack, avx512)           \
    X(widen, avx512)            \
    X(narrow, avx512)           \
    X(query, avx512)            \
    X(reference, avx512)        \
    X(score, avx512)            \
    X(softmax, avx512)          \
    X(value, avx512)            \
    X(row_rotate_dense, avx512) \
    X(row_encode, avx512)       \
    X(row_dequant, avx512)      \
    X(row_score, avx512)        \
    X(row_softmax, avx512)      \
    X(row_value, avx512)        \
    X(row_reduce, avx512)       \
    X(reference, avx512vnni)    \
    X(score, avx512vnni)        \
    X(value, avx512vnni)        \
    X(score, amx)               \
    X(value, amx)
#define AURA_VARIANTS_ARM(X) \
    X(rotate, neon)           \
    X(undo, neon)             \
    X(encode, neon)           \
    X(feedback, neon)         \
    X(pack, neon)             \
    X(unpack, neon)           \
    X(widen, neon)            \
    X(narrow, neon)           \
    X(query, neon)            \
    X(reference, neon)        \
    X(score, neon)            \
    X(softmax, neon)          \
    X(value, neon)            \
    X(row_rotate_dense, neon) \
    X(row_encode, neon)       \
    X(row_dequant, neon)      \
    X(row_score, neon)        \
    X(row_softmax, neon)      \
    X(row_value, neon)        \
    X(row_reduce, neon)       \
    X(reference, dotprod)     \
    X(score, dotprod)         \
    X(value, dotprod)         \
    X(reference, i8mm)        \
    X(score, i8mm)            \
    X(value, i8mm)

/* ---- the kernels of the GPU ----
 *
 * A kernel is called aura_<name>, and the name is an address again:
 *     attend_b4_d128_p1_r4_cuda  codes of 4 bits and dim 128 on both sides, one plane (byte) of query and weight per product,
 *                                blocks of up to 4 rows: cuda/attend_b4.cu stamps it, cuda/attend.cuh has the body
 *     attend_any_d128_r4_cuda    every kind of keys and of values, values of up to dim 128: cuda/general.cu
 *     attend_wide_b4_d128_p2_r64_cuda  the same for up to 64 rows, on sm_90: cuda/attend_wide.cuh
 *     attend_bits_d128_r4_cuda   codes of dim 128 on both sides, every pair of widths: cuda/general.cu
 *     append_any_d128_cuda       keys and values of up to dim 128: cuda/append.cu
 *     append_prompt_d128_cuda    the same for many tokens: cuda/append_prompt.cu
 *     append_search_d128_cuda    the same for trellis codes and with a metric: cuda/close_search.cuh
 *     slots_any_d128_cuda        tokens into slots, of up to dim 128: cuda/append.cu; slots_seen_cuda: cuda/slots.cu
 *     truncate_any_cuda, write_any_cuda  cuda/seq.cu
 *     seen_any_cuda, pad_any_cuda  what queries see that say so themselves; padding of a batch: cuda/step.cu
 *     prefill_d128_cuda          more than 16 queries, dim 128 on both sides: cuda/prefill_wgmma.cu
 *     prefill_any_d128_cuda      the same for every format, values of up to dim 128, on every device: cuda/prefill_any.cu
 *     prefill_jobs_cuda          what comes before either: cuda/prefill.cu
 *     unpack_b4_d128_cuda        tokens as 16-bit numbers, codes of 4 bits and dim 128 on both sides: cuda/decode_codes.cu
 *     unpack_d128_cuda           the same for codes of up to dim 128; unpack_any_cuda for everything: cuda/decode.cu
 *     rows_encode_cuda           over rows, the layout of the public families: cuda/rows_codec.cu and others beside it
 * `aura check --device cuda` says which of them each case ran, and `aura check --union` fails where one of them ran in no case. */

/* X(kind, ...) and X(dim, ...): what attention has kernels of its own for, with the same kind and dim on both sides. */
#define AURA_CUDA_KINDS(X, ...) X(3, __VA_ARGS__) X(4, __VA_ARGS__) X(5, __VA_ARGS__) X(6, __VA_ARGS__) X(8, __VA_ARGS__)
#define AURA_CUDA_DIMS(X, ...) X(64, __VA_ARGS__) X(128, __VA_ARGS__) X(256, __VA_ARGS__)

/* X(shape, kind of keys, kind of values, ...): what else it has some for, of dim 128 on both sides and one plane. */
#define AURA_CUDA_PAIRS(X, ...) AURA_CUDA_FEW_BITS(X, __VA_ARGS__) AURA_CUDA_TRELLIS_PAIRS(X, __VA_ARGS__)
#define AURA_CUDA_FEW_BITS(X, ...) X(b2, 2, 2, __VA_ARGS__) X(b3b2, 3, 2, __VA_ARGS__) X(b4b2, 4, 2, __VA_ARGS__)
#define AURA_CUDA_TRELLIS_PAIRS(X, ...)                   \
    X(t2, AURA_TRELLIS_2, AURA_TRELLIS_2, __VA_ARGS__)    \
    X(t3, AURA_TRELLIS_3, AURA_TRELLIS_3, __VA_ARGS__)    \
    X(t4, AURA_TRELLIS_4, AURA_TRELLIS_4, __VA_ARGS__)

/* X(kind, ...): all widths that the device encodes and that its general kernels read: it refuses a cache of another. */
#define AURA_CUDA_BITS(X, ...) X(2, __VA_ARGS__) AURA_CUDA_KINDS(X, __VA_ARGS__)
#define AURA_CUDA_TRELLIS(X, ...) X(AURA_TRELLIS_2, __VA_ARGS__) X(AURA_TRELLIS_3, __VA_ARGS__) X(AURA_TRELLIS_4, __VA_ARGS__)
#define AURA_CUDA_CODES(X, ...) AURA_CUDA_BITS(X, __VA_ARGS__) AURA_CUDA_TRELLIS(X, __VA_ARGS__)

/* X(name, kind of keys, kind of values, dim, planes, rows of a lane, panels): a block has 4 * rows of a lane * panels rows; a
 * panel is 8 columns of the mma. Up to 5 bits there is one plane too, which aura_planes_of() chooses. */
#define AURA_CUDA_ATTEND(X) \
    AURA_CUDA_ATTEND_B3(X) AURA_CUDA_ATTEND_B4(X) AURA_CUDA_ATTEND_B5(X) AURA_CUDA_ATTEND_B6(X) AURA_CUDA_ATTEND_B8(X) \
    AURA_CUDA_ATTEND_FEW(X) AURA_CUDA_ATTEND_TRELLIS(X)
#define AURA_CUDA_ATTEND_B3(X) AURA_CUDA_ONE_PLANE(X, 3) AURA_CUDA_TWO_PLANES(X, 3)
#define AURA_CUDA_ATTEND_B4(X) AURA_CUDA_ONE_PLANE(X, 4) AURA_CUDA_TWO_PLANES(X, 4)
#define AURA_CUDA_ATTEND_B5(X) AURA_CUDA_ONE_PLANE(X, 5) AURA_CUDA_TWO_PLANES(X, 5)
#define AURA_CUDA_ATTEND_B6(X) AURA_CUDA_TWO_PLANES(X, 6)
#define AURA_CUDA_ATTEND_B8(X) AURA_CUDA_TWO_PLANES(X, 8)
#define AURA_CUDA_ATTEND_FEW(X) AURA_CUDA_FEW_BITS(AURA_CUDA_PAIR_ROWS, X)
#define AURA_CUDA_ATTEND_TRELLIS(X) AURA_CUDA_TRELLIS_PAIRS(AURA_CUDA_PAIR_ROWS, X)
#define AURA_CUDA_ONE_PLANE(X, kind)                   \
    AURA_CUDA_DIMS(AURA_CUDA_ROW, X, kind, 1, 4, 1, 1) \
    AURA_CUDA_DIMS(AURA_CUDA_ROW, X, kind, 1, 8, 2, 1) \
    AURA_CUDA_DIMS(AURA_CUDA_ROW, X, kind, 1, 16, 2, 2)
#define AURA_CUDA_TWO_PLANES(X, kind)                  \
    AURA_CUDA_DIMS(AURA_CUDA_ROW, X, kind, 2, 4, 1, 1) \
    AURA_CUDA_DIMS(AURA_CUDA_ROW, X, kind, 2, 8, 1, 2)
#define AURA_CUDA_PAIR_ROWS(shape, k_kind, v_kind, X)                        \
    X(attend_##shape##_d128_p1_r4_cuda, k_kind, v_kind, 128, 1, 1, 1)        \
    X(attend_##shape##_d128_p1_r8_cuda, k_kind, v_kind, 128, 1, 2, 1)        \
    X(attend_##shape##_d128_p1_r16_cuda, k_kind, v_kind, 128, 1, 2, 2)
#define AURA_CUDA_ROW(dim, X, kind, planes, rows, lane_rows, columns) \
    X(attend_b##kind##_d##dim##_p##planes##_r##rows##_cuda, kind, kind, dim, planes, lane_rows, columns)

/* X(name, kind, dim, planes, rows): the same for many rows, by warp groups of sm_90. Codes of up to 5 bits have one plane
 * too, for calls of up to 16 queries; calls of more queries take two. */
#define AURA_CUDA_WIDE(X) \
    AURA_CUDA_WIDE_B3(X) AURA_CUDA_WIDE_B4(X) AURA_CUDA_WIDE_B5(X) AURA_CUDA_WIDE_B6(X) AURA_CUDA_WIDE_B8(X)
#define AURA_CUDA_WIDE_B3(X) AURA_CUDA_WIDE_ONE(X, 3) AURA_CUDA_WIDE_MORE(X, 3, 2)
#define AURA_CUDA_WIDE_B4(X) AURA_CUDA_WIDE_ONE(X, 4) AURA_CUDA_WIDE_MORE(X, 4, 2)
#define AURA_CUDA_WIDE_B5(X) AURA_CUDA_WIDE_ONE(X, 5) AURA_CUDA_WIDE_MORE(X, 5, 2)
#define AURA_CUDA_WIDE_B6(X) AURA_CUDA_DIMS(AURA_CUDA_WIDE_ROW, X, 6, 2, 16) AURA_CUDA_WIDE_MORE(X, 6, 2)
#define AURA_CUDA_WIDE_B8(X) AURA_CUDA_DIMS(AURA_CUDA_WIDE_ROW, X, 8, 2, 16) AURA_CUDA_WIDE_MORE(X, 8, 2)
#define AURA_CUDA_WIDE_ONE(X, kind) AURA_CUDA_DIMS(AURA_CUDA_WIDE_ROW, X, kind, 1, 16) AURA_CUDA_WIDE_MORE(X, kind, 1)
#define AURA_CUDA_WIDE_MORE(X, kind, planes)               \
    AURA_CUDA_DIMS(AURA_CUDA_WIDE_ROW, X, kind, planes, 32) \
    AURA_CUDA_WIDE_ROW(64, X, kind, planes, 64) AURA_CUDA_WIDE_ROW(128, X, kind, planes, 64)
#define AURA_CUDA_WIDE_ROW(dim, X, kind, planes, rows) \
    X(attend_wide_b##kind##_d##dim##_p##planes##_r##rows##_cuda, kind, dim, planes, rows)

/* X(name, parts, panels, warps, blocks of a multiprocessor, dim): values of up to 32 * parts channels; a dim that is not 0 is
 * that of both sides, which have codes. */
#define AURA_CUDA_GENERAL(X)                       \
    X(attend_any_d128_r4_cuda, 4, 1, 8, 2, 0)      \
    X(attend_any_d128_r8_cuda, 4, 2, 4, 3, 0)      \
    X(attend_any_d256_r4_cuda, 8, 1, 4, 3, 0)      \
    X(attend_any_d256_r8_cuda, 8, 2, 4, 2, 0)      \
    X(attend_any_d512_r4_cuda, 16, 1, 4, 2, 0)     \
    X(attend_bits_d128_r4_cuda, 4, 1, 8, 2, 128)   \
    X(attend_bits_d128_r8_cuda, 4, 2, 4, 3, 128)

/* X(name, dim): the largest of keys and of values. */
#define AURA_CUDA_APPEND(X)      \
    X(append_any_d128_cuda, 128) \
    X(append_any_d256_cuda, 256) \
    X(append_any_d512_cuda, 512)

/* The same for many tokens of a sequence. */
#define AURA_CUDA_PROMPT(X)         \
    X(append_prompt_d128_cuda, 128) \
    X(append_prompt_d256_cuda, 256) \
    X(append_prompt_d512_cuda, 512)

/* The same where codes are searched for: trellis codes, and sides with a metric. */
#define AURA_CUDA_SEARCH(X) X(append_search_d128_cuda, 128) X(append_search_d256_cuda, 256) X(append_search_d512_cuda, 512)

/* The same for slots: keys and values of up to that dim. */
#define AURA_CUDA_SLOTS(X) X(slots_any_d128_cuda, 128) X(slots_any_d256_cuda, 256) X(slots_any_d512_cuda, 512)
#define AURA_CUDA_SLOTS_SEARCH(X) \
    X(slots_search_d128_cuda, 128) X(slots_search_d256_cuda, 256) X(slots_search_d512_cuda, 512)

/* X(name, dim): attention of many queries with wgmma, keys and values of this dim. */
#define AURA_CUDA_PREFILL(X) \
    X(prefill_d64_cuda, 64)    \
    X(prefill_d128_cuda, 128)  \
    X(prefill_d256_cuda, 256)

/* X(name, dim, groups, split): the same with mma, and for every format, values of up to this dim: groups of 64 channels of a warp,
 * split warps for a row. */
#define AURA_CUDA_PREFILL_ANY(X)           \
    X(prefill_any_d128_cuda, 128, 2, 1)    \
    X(prefill_any_d256_cuda, 256, 4, 1)    \
    X(prefill_any_d512_cuda, 512, 4, 2)

/* X(name, mode): over rows, every kind, dim and alignment, in the order of the modes. */
#define AURA_CUDA_ROWS_ANY(X)             \
    X(rows_score_any_cuda, ROWS_SCORE)    \
    X(rows_value_any_cuda, ROWS_VALUE)    \
    X(rows_attend_any_cuda, ROWS_ATTEND)

/* X(name, mode, kind, dim, blocks of a multiprocessor): over aligned rows, both sides of this kind and dim; kind 16: f16. */
#define AURA_CUDA_ROWS_TILES(X)                               \
    X(rows_score_b3_d128_cuda, ROWS_SCORE, 3, 128, 1)         \
    X(rows_score_b4_d128_cuda, ROWS_SCORE, 4, 128, 1)         \
    X(rows_score_b8_d128_cuda, ROWS_SCORE, 8, 128, 1)         \
    X(rows_value_b3_d128_cuda, ROWS_VALUE, 3, 128, 1)         \
    X(rows_value_b4_d128_cuda, ROWS_VALUE, 4, 128, 1)         \
    X(rows_value_b8_d128_cuda, ROWS_VALUE, 8, 128, 1)         \
    X(rows_attend_b2_d128_cuda, ROWS_ATTEND, 2, 128, 1)       \
    X(rows_attend_b3_d128_cuda, ROWS_ATTEND, 3, 128, 1)       \
    X(rows_attend_b4_d64_cuda, ROWS_ATTEND, 4, 64, 1)         \
    X(rows_attend_b4_d128_cuda, ROWS_ATTEND, 4, 128, 1)       \
    X(rows_attend_b4_d256_cuda, ROWS_ATTEND, 4, 256, 1)       \
    X(rows_attend_b6_d128_cuda, ROWS_ATTEND, 6, 128, 1)       \
    X(rows_attend_b8_d128_cuda, ROWS_ATTEND, 8, 128, 1)       \
    X(rows_attend_b8_d256_cuda, ROWS_ATTEND, 8, 256, 1)       \
    X(rows_attend_f16_d64_cuda, ROWS_ATTEND, 16, 64, 2)       \
    X(rows_attend_f16_d128_cuda, ROWS_ATTEND, 16, 128, 2)     \
    X(rows_attend_f16_d256_cuda, ROWS_ATTEND, 16, 256, 1)

/* X(name, dim): rows are merged by warps; of the layout of AURA, and of that of mlx-native. */
#define AURA_CUDA_ROWS_PASS2(X)   \
    X(rows_pass2_d64_cuda, 64)    \
    X(rows_pass2_d128_cuda, 128)  \
    X(rows_pass2_d256_cuda, 256)  \
    X(rows_pass2_d512_cuda, 512)
#define AURA_CUDA_ROWS_REDUCE(X)  \
    X(rows_reduce_d128_cuda, 128) \
    X(rows_reduce_d256_cuda, 256) \
    X(rows_reduce_d512_cuda, 512)

/* X(name, ...): all over rows. */
#define AURA_CUDA_ROWS(X)                                                                                     \
    X(rows_rotate_cuda, 0) X(rows_encode_cuda, 0) X(rows_dequant_cuda, 0) X(rows_merge_any_cuda, 0)           \
    X(rows_tq_encode_cuda, 0) X(rows_tq_dequant_cuda, 0) X(rows_kv_copy_cuda, 0)                              \
    AURA_CUDA_ROWS_ANY(X) AURA_CUDA_ROWS_TILES(X) AURA_CUDA_ROWS_PASS2(X) AURA_CUDA_ROWS_REDUCE(X)

/* X(name, ...): all of them. */
#define AURA_CUDA_KERNELS(X)                                                                                  \
    AURA_CUDA_SLOTS(X) AURA_CUDA_SLOTS_SEARCH(X) X(slots_seen_cuda, 0)                                        \
    AURA_CUDA_APPEND(X) AURA_CUDA_PROMPT(X) AURA_CUDA_SEARCH(X)                                              \
    X(truncate_any_cuda, 0) X(write_any_cuda, 0) X(seen_any_cuda, 0) X(pad_any_cuda, 0)                      \
    AURA_CUDA_ATTEND(X) AURA_CUDA_GENERAL(X) AURA_CUDA_PREFILL(X)                                             \
    AURA_CUDA_WIDE(X) AURA_CUDA_PREFILL_ANY(X) X(prefill_jobs_cuda, 0) \
    X(unpack_b4_d128_cuda, 128) X(unpack_d128_cuda, 128) X(unpack_d256_cuda, 256) X(unpack_any_cuda, 0) AURA_CUDA_ROWS(X)

#endif
