/* Attention over a cache of 8 bits on both sides. */
#include "attend.cuh"
#include "kernels.cuh"

AURA_CUDA_ATTEND_B8(STAMP_FUSED)

struct attend_kernels fused_kernels_b8()
{
    static const struct attend_kernel list[] = {AURA_CUDA_ATTEND_B8(FUSED_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
