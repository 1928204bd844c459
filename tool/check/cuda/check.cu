/* aura check --device cuda: the device against the CPU cache (bytes and logits: equal) and against double (outputs). */
#include <string.h>

#include "check.cuh"
#include "../../cuda_tool.h"

extern "C" int cuda_has_device(char *text, size_t size)
{
    cudaDeviceProp p;
    const int there = !aura_cuda_probe(0) && cudaGetDeviceProperties(&p, 0) == cudaSuccess;
    if (there)
        snprintf(text, size, "%s, compute capability %d.%d, %d multiprocessors", p.name, p.major, p.minor, p.multiProcessorCount);
    else
        snprintf(text, size, "%s", aura_last_error());
    return there;
}

/* A little of every kernel, for tools that make everything a hundred times as slow. */
static void check_small()
{
    const struct scene fused = scene_of(4, 4, 128, 8, 2, {300, 40}), general = scene_of(4, 2, 80, 6, 2, {300, 40});
    const struct scene common = scene_of(2, 4, 128, 8, 2, {300, 40}); /* codes of 128 channels: another general kernel */
    struct scene cut = scene_of(8, 8, 64, 2, 1, {1200, 40});
    for (const struct scene &s : {fused, general, common}) {
        run_scene(s);
        run_append(s, 70);
    }
    struct scene many = scene_of(4, 4, 128, 8, 2, {300, 40}), odd = scene_of(4, 2, 80, 6, 2, {300, 40});
    for (struct scene *s : {&many, &odd}) {
        s->queries = 20, s->name += " 20 queries";
        run_scene(*s);
    }
    struct scene several = scene_of(4, 4, 128, 8, 2, {700, 40}); /* of 16, 32 and 64 rows */
    for (uint32_t queries : {4u, 8u, 16u}) {
        several.queries = queries, several.long_seqs = true;
        several.name = "k4v4 d128 " + std::to_string(queries) + " queries, long";
        run_scene(several);
    }
    run_invariant(cut);
    cut.tokens = {700};
    run_fork(cut);
    check_rows_small();
}

static const struct {
    const char *name;
    void (*run)();
    int asked; /* 1: only where it is asked for */
} parts[] = {
    {"formats", check_formats, 0}, {"options", check_options, 0}, {"general", check_general, 0}, {"prefill", check_prefill, 0},
    {"codes", check_codes, 0}, {"unpack", check_unpack, 0}, {"append", check_append, 0}, {"seqs", check_seqs, 0},
    {"caches", check_caches, 0}, {"windows", check_windows, 0}, {"batch", check_batch, 0}, {"recording", check_recording, 0},
    {"lost", check_lost, 0}, {"step", check_step, 0}, {"models", check_models, 0}, {"slots", check_slots, 0},
    {"rows", check_rows, 0}, {"small", check_small, 1},
};

/* What is asked for: a part, and how to print. */
static int read_arguments(int argc, char **argv, std::string &only)
{
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--json"))
            as_json = 1;
        else if (argv[i][0] != '-' && only.empty())
            only = argv[i];
        else
            return fprintf(stderr, "aura check: %s: with --device cuda there are a PART and --json\n", argv[i]), 2;
    }
    bool known = only.empty() || only == LOST_CHILD;
    for (const auto &p : parts)
        known |= only == p.name;
    if (known)
        return 0;
    fprintf(stderr, "aura check: no part %s; there are", only.c_str());
    for (const auto &p : parts)
        fprintf(stderr, " %s", p.name);
    return fprintf(stderr, "\n"), 2;
}

static void print_head()
{
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    if (!as_json) {
        printf("aura %s on %s, %d multiprocessors\n", aura_version(), properties.name, properties.multiProcessorCount);
        return;
    }
    printf("{\"version\": \"%s\", \"device\": ", aura_version());
    print_json_string(properties.name);
    printf(", \"multiprocessors\": %d, \"results\": [", properties.multiProcessorCount);
}

extern "C" int cuda_check(int argc, char **argv)
{
    std::string only;
    if (read_arguments(argc, argv, only))
        return 2;
    if (aura_cuda_probe(0))
        return cuda_skip(aura_last_error(), as_json);
    if (only == LOST_CHILD)
        return lose_device();
    print_head();
    watch_kernels();
    for (const auto &p : parts)
        if (only.empty() ? !p.asked : only == p.name) {
            part = p.name;
            p.run();
        }
    if (as_json)
        printf("\n], \"variants\": [");
    print_kernels(only.empty());
    printf(as_json ? "\n], \"cases\": %d, \"failures\": %d}\n" : "%d cases, %d failures\n", cases, failures);
    return failures ? 1 : 0;
}
