/* Attention over a cache of trellis codes of as many bits on both sides. */
#include "attend.cuh"
#include "kernels.cuh"

AURA_CUDA_ATTEND_TRELLIS(STAMP_FUSED)

struct attend_kernels fused_kernels_trellis()
{
    static const struct attend_kernel list[] = {AURA_CUDA_ATTEND_TRELLIS(FUSED_ENTRY)};
    return {list, sizeof list / sizeof *list};
}
