#include "cuda_kernels.h"

#include "../../src/variants.h"

#define NAME(name, ...) #name,
const char *const cuda_kernel_list[] = {AURA_CUDA_KERNELS(NAME)};
const size_t cuda_kernel_count = sizeof cuda_kernel_list / sizeof *cuda_kernel_list;
