/* Without CUDA the tool says so, which is no failure. A build without CUDA has these functions in place of the backend's. */
#include <stdio.h>
#include <string.h>

#include "cuda_tool.h"
#include "parts/json.h"

int cuda_skip(const char *why, int json)
{
    if (!json)
        return printf("skip CUDA: %s\n", why), 0;
    printf("{\"device\": null, \"skipped\": ");
    print_json_string(why);
    printf(", \"results\": [], \"cases\": 0, \"failures\": 0}\n");
    return 0;
}

#if !defined(AURA_HAVE_CUDA)

static const char why[] = "this aura was built without it; `make cuda` builds it where the CUDA toolkit is";

int cuda_check(int argc, char **argv)
{
    int json = 0;
    for (int i = 0; i < argc; i++)
        json |= !strcmp(argv[i], "--json");
    return cuda_skip(why, json);
}

int cuda_bench(int argc, char **argv)
{
    (void)argc, (void)argv;
    return cuda_skip(why, 0);
}

int cuda_has_device(char *text, size_t size)
{
    snprintf(text, size, "%s", why);
    return 0;
}

#endif
