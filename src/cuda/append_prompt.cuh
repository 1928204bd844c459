/* Appends of many tokens: append_prompt.cu. */
#ifndef AURA_CUDA_APPEND_PROMPT_CUH
#define AURA_CUDA_APPEND_PROMPT_CUH

#include "cache.cuh"

/* From so many tokens of a call on. */
enum { PROMPT_TOKENS = 32 };

/* A kernel: the largest dim that it takes, and its shared memory. */
struct append_kernel {
    const char *name;
    uint32_t dim;
    const void *run;
    size_t shared_bytes;
};

/* Once per cache; whether a call of so many tokens is one; the call. */
cudaError_t aura_cuda_prepare_prompt(const aura_cuda_cache *cache);
int aura_cuda_is_prompt(const aura_cuda_cache *cache, uint32_t tokens);
aura_status aura_cuda_append_prompt(const aura_cuda_cache *cache, const char *call, const struct dev_append &append,
                                    uint32_t seqs, struct CUstream_st *stream);

#endif
