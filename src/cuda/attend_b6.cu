/* Attention over a cache of 6 bits on both sides. */
#include "attend.cuh"
#include "kernels.cuh"

struct attend_kernels fused_kernels_b6()
{
#define ENTRY(kind, dim, planes, rl, nt) fused_kernel<kind, dim, planes, rl, nt>(),
    static const struct attend_kernel list[] = {FUSED_TWO_PLANES(ENTRY, 6)};
#undef ENTRY
    return {list, sizeof list / sizeof *list};
}
