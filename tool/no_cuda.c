/* What stands for the CUDA backend in a build without it: a clear word, and no failure. */
#include <stdio.h>

#include "cuda/cuda_tool.h"

#if !defined(AURA_HAVE_CUDA)

static const char why[] = "this aura was built without it; `make cuda` builds it where the CUDA toolkit is";

int cuda_check(int argc, char **argv)
{
    (void)argc, (void)argv;
    printf("skip CUDA: %s\n", why);
    return 0;
}

int cuda_bench(int argc, char **argv)
{
    return cuda_check(argc, argv);
}

void cuda_list(void)
{
    printf("  CUDA: skipped: %s\n", why);
}

#endif
