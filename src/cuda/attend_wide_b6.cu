/* Attention of several queries over a cache of 6 bits on both sides, by warp groups. */
#include "attend_wide.cuh"
#include "kernels.cuh"

AURA_CUDA_WIDE_B6(STAMP_WIDE)

struct attend_kernels wide_kernels_b6()
{
    static const struct attend_kernel list[] = {AURA_CUDA_WIDE_B6(WIDE_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
