/* emulated_device check --device cuda [PART] [--json]: what `aura check --device cuda` does on a GPU, without one. */
#include <stdio.h>
#include <string.h>

#include "../../../tool/cuda_tool.h"

int main(int argc, char **argv)
{
    if (argc < 4 || strcmp(argv[1], "check") || strcmp(argv[2], "--device") || strcmp(argv[3], "cuda"))
        return fputs("usage: emulated_device check --device cuda [PART] [--json]\n", stderr), 2;
    volatile char room[8192]; /* a launch reads 4096 bytes from its arguments on, which may be the last on the stack */
    room[0] = 0;
    return cuda_check(argc - 4, argv + 4) + room[0];
}
