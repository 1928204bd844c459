/* A device that is lost: every call says so, and the process goes on. In a process of its own, since it has no device from then
 * on. */
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "check.cuh"

__global__ void trap_kernel()
{
    lose_everything();
}

/* AURA_DEVICE, with a text of CUDA's. */
static int is_lost(const char *call, aura_status status)
{
    const char *text = aura_last_error();
    if (status == AURA_DEVICE && strstr(text, "cudaError"))
        return 1;
    printf("%s: %s: %s\n", call, aura_status_text(status), text);
    return 0;
}

int lose_device()
{
    aura_ctx *ctx = NULL;
    aura_cuda_cache *cache = NULL, *another = NULL;
    aura_cuda_workspace *workspace = NULL;
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    aura_cuda_seq seq = 0;
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    config.cache.q_heads = config.cache.kv_heads = 2, config.cache.k_dim = 128;
    config.cache.budget_bytes = (size_t)16 << 20;
    if (aura_ctx_create(NULL, &ctx) || aura_cuda_cache_create(ctx, &config, &cache) || aura_cuda_seq_create(cache, &seq) ||
        aura_cuda_seq_reserve(cache, seq, 300) || aura_cuda_workspace_create(cache, 1, 1, &workspace)) {
        printf("%s\n", aura_last_error());
        return 1;
    }
    device_array id(&seq, 4), x(2 * 128 * 4), out(2 * 128 * 4);
    void *none[] = {NULL};
    cudaLaunchKernel((const void *)trap_kernel, dim3(1), dim3(32), none, 0, NULL);
    if (cudaDeviceSynchronize() == cudaSuccess) {
        printf("the device survived a trap\n");
        return 1;
    }
    aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
    append.seqs = (const aura_cuda_seq *)id.p, append.n_seqs = append.tokens = 1;
    append.k.data = append.v.data = x.p;
    aura_cuda_attend_args attend = AURA_CUDA_ATTEND_ARGS_INIT;
    attend.seqs = (const aura_cuda_seq *)id.p, attend.n_seqs = attend.queries = 1;
    attend.q.data = x.p, attend.out.data = out.p;
    const int lost = is_lost("reserve", aura_cuda_seq_reserve(cache, seq, 1000)) &
                     is_lost("info", aura_cuda_seq_get_info(cache, seq, &info)) &
                     is_lost("append", aura_cuda_append(cache, &append, NULL)) &
                     is_lost("attend", aura_cuda_attend(cache, workspace, &attend, NULL)) &
                     is_lost("create", aura_cuda_cache_create(ctx, &config, &another));
    printf("%s\n", aura_last_error());
    aura_cuda_workspace_destroy(workspace);
    aura_cuda_cache_destroy(cache);
    aura_ctx_destroy(ctx);
    return lost ? 0 : 1;
}

void check_lost()
{
    struct scene s;
    const int before = failures;
    int status = 0;
    s.name = "a lost device, in another process";
    cases++;
    fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
        if (as_json)
            dup2(2, 1); /* what it says is no JSON */
        execl("/proc/self/exe", "aura", "check", "--device", "cuda", LOST_CHILD, (char *)NULL);
        _exit(127);
    }
    if (child < 0 || waitpid(child, &status, 0) != child)
        complain(s, "no process");
    else if (!WIFEXITED(status) || WEXITSTATUS(status))
        complain(s, "it %s %d", WIFEXITED(status) ? "ended with" : "was ended by signal",
                 WIFEXITED(status) ? WEXITSTATUS(status) : WTERMSIG(status));
    end_case(s, before, "AURA_DEVICE everywhere");
}
