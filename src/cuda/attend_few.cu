/* Attention over a cache of 2 bits of values, and 2, 3 or 4 of keys. */
#include "attend.cuh"
#include "kernels.cuh"

AURA_CUDA_ATTEND_FEW(STAMP_FUSED)

struct attend_kernels fused_kernels_few()
{
    static const struct attend_kernel list[] = {AURA_CUDA_ATTEND_FEW(FUSED_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
