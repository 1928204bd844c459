/* Attention over a cache of 4 bits on both sides. */
#include "attend.cuh"
#include "kernels.cuh"

struct attend_kernels fused_kernels_b4()
{
#define ENTRY(kind, dim, planes, rl, nt) fused_kernel<kind, dim, planes, rl, nt>(),
    static const struct attend_kernel list[] = {FUSED_ONE_PLANE(ENTRY, 4) FUSED_TWO_PLANES(ENTRY, 4)};
#undef ENTRY
    return {list, sizeof list / sizeof *list};
}
