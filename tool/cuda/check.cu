/* aura check --device cuda: the device against the CPU cache (bytes and logits: equal) and against double (outputs). */
#include "check.cuh"
#include "cuda_tool.h"

extern "C" void cuda_list(void)
{
    cudaDeviceProp p;
    if (aura_cuda_probe(0) || cudaGetDeviceProperties(&p, 0) != cudaSuccess)
        printf("  CUDA: skipped: %s\n", aura_last_error());
    else
        printf("  CUDA: %s, compute capability %d.%d, %d multiprocessors\n", p.name, p.major, p.minor, p.multiProcessorCount);
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
    run_invariant(cut);
    cut.tokens = {700};
    run_fork(cut);
}

static const struct {
    const char *name;
    void (*run)();
    int asked; /* 1: only where it is asked for */
} parts[] = {
    {"formats", check_formats, 0}, {"options", check_options, 0}, {"general", check_general, 0},     {"append", check_append, 0},
    {"seqs", check_seqs, 0},       {"caches", check_caches, 0},   {"windows", check_windows, 0},     {"batch", check_batch, 0},
    {"recording", check_recording, 0}, {"lost", check_lost, 0}, {"small", check_small, 1},
};

extern "C" int cuda_check(int argc, char **argv)
{
    const std::string only = argc > 0 ? argv[0] : "";
    int run = 0;
    if (aura_cuda_probe(0)) {
        printf("skip CUDA: %s\n", aura_last_error());
        return 0;
    }
    if (only == LOST_CHILD)
        return lose_device();
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    printf("aura %s on %s, %d multiprocessors\n", aura_version(), properties.name, properties.multiProcessorCount);
    for (const auto &part : parts)
        if (only.empty() ? !part.asked : only == part.name)
            part.run(), run++;
    if (!run) {
        fprintf(stderr, "aura check: no part %s; there are", only.c_str());
        for (const auto &part : parts)
            fprintf(stderr, " %s", part.name);
        fprintf(stderr, "\n");
        return 2;
    }
    printf("%d cases, %d failures\n", cases, failures);
    return failures ? 1 : 0;
}
