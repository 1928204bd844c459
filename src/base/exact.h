/* Included by every source file, before any function: makes plain `cc` produce the same bits as the build system.
 *
 * Rotated vectors, codes and scales are promised to be bit-identical on every instruction set, so no compiler may fuse
 * a multiply and an add. gcc in its default dialect does so even between intrinsics and ignores STDC FP_CONTRACT;
 * clang does so for scalar code even with -std=c11. One pragma each stops both, for the rest of the file.
 *
 * Every word of a vocabulary and every template is AURA_INLINE.
 *
 * AURA_UNROLL before a loop with a constant count keeps an array of vectors in registers, also at -O2.
 *
 * AURA_TARGET switches the instruction set for the functions between it and AURA_TARGET_END, so that no source file
 * needs flags of its own. AURA_TARGET_ARM takes the set twice: gcc's intrinsics ask for an architecture, and clang before
 * 16 knows features alone. */
#ifndef AURA_EXACT_H
#define AURA_EXACT_H

#define AURA_INLINE static inline __attribute__((always_inline))

#define AURA_TEXT(x) #x
#define AURA_PRAGMA(x) _Pragma(AURA_TEXT(x))

#if defined(__clang__)
#pragma STDC FP_CONTRACT OFF
#define AURA_TARGET(set) AURA_PRAGMA(clang attribute push(__attribute__((target(set))), apply_to = function))
#define AURA_TARGET_ARM(arch, features) AURA_TARGET(features)
#define AURA_TARGET_END AURA_PRAGMA(clang attribute pop)
#define AURA_UNROLL AURA_PRAGMA(clang loop unroll(full))
#else
#pragma GCC optimize("fp-contract=off")
#if defined(__aarch64__)
/* gcc 12 schedules before it assigns registers: all loads of an unrolled loop first, and then it spills what it loaded.
 * This is here and not beside the kernels because gcc inlines no function that was compiled with other options: what a
 * kind is would be asked for at run time, and everything for trellis codes and wide ones be part of every kernel. */
#pragma GCC optimize("no-schedule-insns")
#endif
#define AURA_TARGET(set) AURA_PRAGMA(GCC push_options) AURA_PRAGMA(GCC target(set))
#define AURA_TARGET_ARM(arch, features) AURA_TARGET(arch)
#define AURA_TARGET_END AURA_PRAGMA(GCC pop_options)
#define AURA_UNROLL AURA_PRAGMA(GCC unroll 16)
#endif

#if defined(__FAST_MATH__)
#error "aura must not be compiled with -ffast-math: stored bytes would depend on the compiler"
#endif

#if __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "aura's formats are little-endian and are read in place: this machine is not supported"
#endif

#endif
