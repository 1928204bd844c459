/* Attention of several queries over a cache of 3 bits on both sides, by warp groups. */
#include "attend_wide.cuh"
#include "kernels.cuh"

AURA_CUDA_WIDE_B3(STAMP_WIDE)

struct attend_kernels wide_kernels_b3()
{
    static const struct attend_kernel list[] = {AURA_CUDA_WIDE_B3(WIDE_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
