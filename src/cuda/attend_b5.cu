/* Attention over a cache of 5 bits on both sides. */
#include "attend.cuh"
#include "kernels.cuh"

struct attend_kernels fused_kernels_b5()
{
#define ENTRY(kind, dim, planes, rl, nt) fused_kernel<kind, dim, planes, rl, nt>(),
    static const struct attend_kernel list[] = {FUSED_ONE_PLANE(ENTRY, 5) FUSED_TWO_PLANES(ENTRY, 5)};
#undef ENTRY
    return {list, sizeof list / sizeof *list};
}
