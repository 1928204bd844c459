/* Attention over a cache of 5 bits on both sides. */
#include "attend.cuh"
#include "kernels.cuh"

AURA_CUDA_ATTEND_B5(STAMP_FUSED)

struct attend_kernels fused_kernels_b5()
{
    static const struct attend_kernel list[] = {AURA_CUDA_ATTEND_B5(FUSED_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
