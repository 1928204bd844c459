/* The instances of the fused kernel: THE list of what is specialised on the device. One source file per kind, so that they are
 * compiled side by side. */
#ifndef AURA_CUDA_KERNELS_CUH
#define AURA_CUDA_KERNELS_CUH

#include "device.cuh"

/* X(kind): both sides have it. */
#define FUSED_KINDS(X) X(3) X(4) X(5) X(6) X(8)

/* X(kind, dim, planes, rows of a lane, column tiles): a block has 4 * these rows. One plane up to 5 bits, as `auto` has it. */
#ifdef AURA_EMULATED /* 256 is 128 with other constants, and half of the time that the emulated kernels take to compile */
#define FUSED_DIMS(X, kind, planes, rl, nt) X(kind, 64, planes, rl, nt) X(kind, 128, planes, rl, nt)
#else
#define FUSED_DIMS(X, kind, planes, rl, nt) X(kind, 64, planes, rl, nt) X(kind, 128, planes, rl, nt) X(kind, 256, planes, rl, nt)
#endif
#define FUSED_ONE_PLANE(X, kind) FUSED_DIMS(X, kind, 1, 1, 1) FUSED_DIMS(X, kind, 1, 2, 1) FUSED_DIMS(X, kind, 1, 2, 2)
#define FUSED_TWO_PLANES(X, kind) FUSED_DIMS(X, kind, 2, 1, 1) FUSED_DIMS(X, kind, 2, 1, 2)

struct attend_kernels {
    const struct attend_kernel *list;
    uint32_t n;
};

#define DECLARE(kind) struct attend_kernels fused_kernels_b##kind();
FUSED_KINDS(DECLARE)
#undef DECLARE

/* general.cu: for all else. Those that take a cache; and how its tiles are staged. */
struct attend_kernels general_kernels(const struct dev_cache *cache, struct attend_kernel (&list)[2]);
struct dev_stage general_stage(const struct dev_cache *cache);

#endif
