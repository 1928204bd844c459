/* The command-line tool: finds the subcommand, nothing else. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura.h"
#include "cuda/cuda_tool.h"
#include "tool.h"

static const char help[] =
    "usage: aura COMMAND [OPTIONS]\n"
    "\n"
    "  list                      every kernel, and which this machine uses\n"
    "      [--isa NAME]          as if the machine had NAME and nothing else\n"
    "      [--json]\n"
    "  check [PATTERN]           compare kernels whose name contains PATTERN with the reference\n"
    "      [--isa NAME]          only those of one instruction set, the last part of a name\n"
    "      [--seed N]            other inputs (default 1)\n"
    "      [--bench]             time them longer      [--no-times]  not at all\n"
    "      [--strict]            a kernel that cannot run here is a failure\n"
    "      [--stop]              at the first failure\n"
    "      [--json]\n"
    "  check --union FILE...     fail if a kernel ran in none of these JSON results\n"
    "  bench                     time the cache beside a plain read of as many bytes and beside an f16 cache: a table of\n"
    "                            formats, dims and contexts, or the one configuration that is given:\n"
    "      [--k 4] [--v 4]       bits of keys and values, or f16, bf16, f32      [--dim 128] [--heads 32] [--kv-heads 8]\n"
    "      [--tokens 32768]      in each sequence        [--batch 1]  sequences  [--queries 1]  of each\n"
    "      [--planes auto|1|2]   [--threads N]           (default: all processors)\n"
    "      [--isa NAME]          as if the machine had no better than NAME\n"
    "      [--json]\n"
    "  bench --prefill           512 queries at once to 8192 tokens, beside the machine's int8 products; options as above\n"
    "  bench --targets           what the cache is meant to reach on AVX-512, and whether it does\n"
    "  check --device cuda [PART]  compare the CUDA backend with the CPU's bytes and with double; PART: formats, options, general,\n"
    "                            append\n"
    "  bench --device cuda [ROW]   time it beside a plain read of the same bytes on the GPU; ROW: one row of the table\n"
    "  bench rows [--json]       time the kernels over rows beside the reference and a plain read of the same bytes\n"
    "  attend FILE.safetensors   put recorded queries, keys and values, tensors layer.N.q, .k and .v, through a cache, and\n"
    "                            compare with attention in double\n"
    "      [--layer N]           only that one\n"
    "      [--cache k4v4]        the format, or max, safe, quality, balanced, small\n"
    "      [--planes 1|2]        bytes of queries and weights in the products (default: by the width of each side)\n"
    "      [--no-reference] [--no-pinned] [--no-balance] [--no-search] [--no-rollback]  without these parts of the codec\n"
    "      [--seed N]            other signs (default 1)   [--threads N]   [--isa NAME]\n"
    "      [--out OUT]           write layer.N.o and layer.N.lse to a safetensors file\n"
    "      [--json]\n"
    "  version\n"
    "\n"
    "exit codes: 0 good, 1 a check failed or the work could not be done, 2 bad usage\n";

const char *cpu_name(void)
{
    static char line[256];
    FILE *file = fopen("/proc/cpuinfo", "r");
    const char *name = "unknown CPU";
    while (file && fgets(line, sizeof line, file))
        if (!strncmp(line, "model name", 10) && strchr(line, ':')) {
            line[strcspn(line, "\n")] = 0;
            name = strchr(line, ':') + 2;
            break;
        }
    if (file)
        fclose(file);
    return name;
}

char *read_file(const char *path)
{
    FILE *file = fopen(path, "rb");
    char *text = NULL;
    size_t size = 0, got = 0;
    while (file && (text = realloc(text, size + 65536)) && (got = fread(text + size, 1, 65535, file)) > 0)
        size += got;
    if (text)
        text[size] = 0;
    if (file)
        fclose(file);
    return text;
}

void print_json_string(const char *text)
{
    putchar('"');
    for (; *text; text++)
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if ((unsigned char)*text < 32)
            printf("\\u%04x", *text);
        else
            putchar(*text);
    putchar('"');
}

/* Whether `--device cuda` is among the arguments; they are then those that are left. */
static int on_cuda(int *argc, char **argv)
{
    for (int i = 0; i + 1 < *argc; i++)
        if (!strcmp(argv[i], "--device") && !strcmp(argv[i + 1], "cuda")) {
            memmove(argv + i, argv + i + 2, (size_t)(*argc - i - 2) * sizeof *argv);
            *argc -= 2;
            return 1;
        }
    return 0;
}

int main(int argc, char **argv)
{
    const char *name = argc > 1 ? argv[1] : "";
    int rest = argc > 2 ? argc - 2 : 0;
    if (!strcmp(name, "check") && on_cuda(&rest, argv + 2))
        return cuda_check(rest, argv + 2);
    if (!strcmp(name, "bench") && on_cuda(&rest, argv + 2))
        return cuda_bench(rest, argv + 2);
    if (!strcmp(name, "check"))
        return command_check(argc - 2, argv + 2);
    if (!strcmp(name, "bench"))
        return command_bench(argc - 2, argv + 2);
    if (!strcmp(name, "attend"))
        return command_attend(argc - 2, argv + 2);
    if (!strcmp(name, "list"))
        return command_list(argc - 2, argv + 2);
    if (!strcmp(name, "version") || !strcmp(name, "--version"))
        return puts(aura_version()), 0;
    if (!strcmp(name, "help") || !strcmp(name, "--help") || !strcmp(name, "-h"))
        return fputs(help, stdout), 0;
    fputs(help, stderr);
    return 2;
}
