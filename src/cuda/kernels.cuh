/* The kernels of attention that src/variants.h lists, as the host sees them. Each kind has a source file of its own, so that
 * they are compiled side by side. */
#ifndef AURA_CUDA_KERNELS_CUH
#define AURA_CUDA_KERNELS_CUH

#include "../variants.h"
#include "device.cuh"

struct attend_kernels {
    const struct attend_kernel *list;
    uint32_t n;
};

#define DECLARE(kind, ...) struct attend_kernels fused_kernels_b##kind(), wide_kernels_b##kind();
AURA_CUDA_KINDS(DECLARE)
#undef DECLARE
struct attend_kernels fused_kernels_few(), fused_kernels_trellis();

/* general.cu: the general kernels that take this cache, at most two; and where a warp has a tile of it in shared memory. */
struct attend_kernels general_kernels(const struct dev_cache *cache, struct attend_kernel (&list)[2]);
struct dev_stage general_stage(const struct dev_cache *cache);

/* A kernel for many queries: rows, of a tile. run NULL: there is none for this cache. */
struct prefill_kernel {
    const char *name;
    const void *run;
    uint32_t threads, rows, shared_bytes;
};

/* prefill_any.cu, prefill_wgmma.cu: that of every device, and that of sm_90. */
struct dev_images;
struct prefill_kernel prefill_any_kernel(const struct dev_cache *cache, const struct dev_images *images);
struct prefill_kernel prefill_wgmma_kernel(const struct dev_cache *cache, const struct dev_images *images);

#endif
