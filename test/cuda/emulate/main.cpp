/* emulated_device check --device cuda [PART] [--json]: what `aura check --device cuda` does on a GPU, without one. */
#include <stdio.h>
#include <string.h>

#include "../../../tool/cuda_tool.h"

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], "check") || strcmp(argv[2], "--device") || strcmp(argv[3], "cuda"))
        return fputs("usage: emulated_device check --device cuda [PART] [--json]\n", stderr), 2;
    return cuda_check(argc - 4, argv + 4);
}
