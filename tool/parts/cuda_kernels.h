/* The kernels of the GPU by name, for those who print or count them; also where there is no GPU, and no CUDA. */
#ifndef AURA_TOOL_CUDA_KERNELS_H
#define AURA_TOOL_CUDA_KERNELS_H

#include <stddef.h>

extern const char *const cuda_kernel_list[]; /* all of src/variants.h, in its order */
extern const size_t cuda_kernel_count;

#endif
