/* What the tool does with a GPU. cuda_check and cuda_bench get the arguments without `--device cuda`; they return the exit code. */
#ifndef AURA_TOOL_CUDA_H
#define AURA_TOOL_CUDA_H

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

int cuda_check(int argc, char **argv);
int cuda_bench(int argc, char **argv);
int cuda_skip(const char *why, int json); /* prints why CUDA is skipped; the exit code of success */
int cuda_has_device(char *text, size_t size); /* the device in words; 0: why there is none */

#ifdef __cplusplus
}
#endif
#endif
