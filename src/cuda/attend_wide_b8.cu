/* Attention of several queries over a cache of 8 bits on both sides, by warp groups. */
#include "attend_wide.cuh"
#include "kernels.cuh"

AURA_CUDA_WIDE_B8(STAMP_WIDE)

struct attend_kernels wide_kernels_b8()
{
    static const struct attend_kernel list[] = {AURA_CUDA_WIDE_B8(WIDE_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
