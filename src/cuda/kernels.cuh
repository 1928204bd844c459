/* The instances of the fused kernel: THE list of what is specialised on the device. One source file per kind, so that they are
 * compiled side by side. */
#ifndef AURA_CUDA_KERNELS_CUH
#define AURA_CUDA_KERNELS_CUH

#include "device.cuh"

/* X(kind): both sides have it. */
#define FUSED_KINDS(X) X(3) X(4) X(5) X(6) X(8)

/* X(kind, dim, planes, rows of a lane, column tiles): a block has 4 * these rows. One plane up to 5 bits, as `auto` has it. */
#define FUSED_DIMS(X, kind, planes, rl, nt) X(kind, 64, planes, rl, nt) X(kind, 128, planes, rl, nt) X(kind, 256, planes, rl, nt)
#define FUSED_ONE_PLANE(X, kind) FUSED_DIMS(X, kind, 1, 1, 1) FUSED_DIMS(X, kind, 1, 2, 1) FUSED_DIMS(X, kind, 1, 2, 2)
#define FUSED_TWO_PLANES(X, kind) FUSED_DIMS(X, kind, 2, 1, 1) FUSED_DIMS(X, kind, 2, 1, 2)

struct attend_kernels {
    const struct attend_kernel *list;
    uint32_t n;
};

#define DECLARE(kind) struct attend_kernels fused_kernels_b##kind();
FUSED_KINDS(DECLARE)
#undef DECLARE

/* general.cu: for all else. */
struct attend_kernel general_kernel(uint32_t k_dim, uint32_t v_dim);

#endif
