/* Attention of several queries over a cache of 5 bits on both sides, by warp groups. */
#include "attend_wide.cuh"
#include "kernels.cuh"

AURA_CUDA_WIDE_B5(STAMP_WIDE)

struct attend_kernels wide_kernels_b5()
{
    static const struct attend_kernel list[] = {AURA_CUDA_WIDE_B5(WIDE_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
