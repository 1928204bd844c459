/* Recorded attention through the device: as far from exact attention as through the CPU. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "check.cuh"
extern "C" {
#include "../../parts/recording.h"
}

static const char path[] = "data/smollm2-attention.safetensors";

enum { QUERIES = 16 }; /* of a call */

/* The queries of a recording, some at a time, with all tokens there: what a query must not see yet is masked. */
static void attend_recording(const struct scene &s, const struct device_side &d, aura_cuda_seq seq, const struct recording &r,
                             struct recording_result &result)
{
    const size_t q_each = (size_t)r.q_heads * r.k_dim, o_each = (size_t)r.q_heads * r.v_dim;
    device_array id(&seq, 4), dq(r.q, r.queries * q_each * 4), out(r.queries * o_each * 4), lse((size_t)r.queries * r.q_heads * 4);
    std::vector<float> mask((size_t)r.queries * r.queries);
    for (size_t i = 0; i < mask.size(); i++)
        mask[i] = i % r.queries > i / r.queries ? -INFINITY : 0;
    device_array dmask(mask.data(), mask.size() * 4);
    for (uint32_t first = 0; first < r.queries; first += QUERIES) {
        aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
        args.seqs = (const aura_cuda_seq *)id.p, args.n_seqs = 1;
        args.queries = r.queries - first < QUERIES ? r.queries - first : QUERIES;
        args.q.data = (float *)dq.p + first * q_each, args.out.data = (float *)out.p + first * o_each;
        args.lse = (float *)lse.p + (size_t)first * r.q_heads;
        args.not_causal = 1, args.mask_keys = r.queries, args.mask = (const float *)dmask.p + (size_t)first * r.queries;
        TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    }
    TRY_CUDA(cudaMemcpy(result.o, out.p, r.queries * o_each * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(result.lse, lse.p, (size_t)r.queries * r.q_heads * 4, cudaMemcpyDeviceToHost));
}

/* What recording_run() does, with the device's append and attend. The arrays of `result` are there. */
static void run_device(const struct scene &s, aura_ctx *ctx, const struct recording &r, struct recording_result &result)
{
    struct device_side d;
    struct filled back;
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    aura_cuda_seq seq;
    aura_seq here;
    config.cache = s.config;
    config.cache.budget_bytes = (size_t)64 << 20;
    config.seqs = 1;
    TRY(aura_cuda_cache_create(ctx, &config, &d.cache));
    TRY(aura_cuda_workspace_create(d.cache, 1, QUERIES, &d.workspace));
    TRY(aura_cuda_seq_create(d.cache, &seq));
    TRY(aura_cuda_seq_reserve(d.cache, seq, r.tokens));
    const size_t vectors = (size_t)r.tokens * r.kv_heads;
    device_array id(&seq, 4), k(r.k, vectors * r.k_dim * 4), v(r.v, vectors * r.v_dim * 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)id.p, args.n_seqs = 1, args.tokens = r.tokens;
    args.k.data = k.p, args.v.data = v.p;
    TRY(aura_cuda_append(d.cache, &args, NULL));
    attend_recording(s, d, seq, r, result);
    TRY(aura_cache_create(ctx, &s.config, &back.cache));
    TRY(aura_seq_create(back.cache, &here));
    TRY(aura_cuda_download(d.cache, seq, back.cache, here));
    aura_view k_view = AURA_VIEW_INIT, v_view = AURA_VIEW_INIT;
    k_view.data = result.k, v_view.data = result.v;
    TRY(aura_cache_decode(back.cache, here, 0, r.tokens, &k_view, &v_view));
}

static void run_recording(aura_ctx *ctx, const struct recording &r, const struct recording_exact &exact, const char *format)
{
    struct scene s;
    struct recording_options options = {};
    struct recording_result cpu = {}, gpu = {};
    char error[256];
    const int before = failures;
    cases++;
    aura_format_parse(format, &options.format);
    options.seed = 1;
    s.name = std::string("recording, layer ") + std::to_string(r.layer) + ", " + format;
    s.config.format = options.format, s.config.seed = options.seed;
    s.config.q_heads = r.q_heads, s.config.kv_heads = r.kv_heads, s.config.k_dim = r.k_dim, s.config.v_dim = r.v_dim;
    if (recording_run(&r, ctx, &options, &cpu, error) ||
        recording_run(&r, ctx, &options, &gpu, error)) /* for its arrays, which are written over */
        complain(s, "%s", error);
    else
        run_device(s, ctx, r, gpu);
    if (failures == before) {
        const struct recording_errors a = recording_compare(&r, &cpu, &exact), b = recording_compare(&r, &gpu, &exact);
        char told[128];
        if (!(fabs(a.output - b.output) <= 1e-3 * a.output + 1e-6) || a.kl != b.kl ||
            !(fabs(a.lse_max - b.lse_max) <= 1e-3 * a.lse_max + 1e-5))
            complain(s, "output error %.6f, KL %.8f, lse %.2e; on the CPU %.6f, %.8f, %.2e", b.output, b.kl, b.lse_max, a.output,
                     a.kl, a.lse_max);
        snprintf(told, sizeof told, "output error %.5f, CPU %.5f; KL %.2e, equal", b.output, a.output, b.kl);
        end_case(s, before, told);
    }
    recording_result_free(&cpu);
    recording_result_free(&gpu);
}

void check_recording()
{
    struct safetensors file;
    aura_ctx *ctx = NULL;
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    size_t count = 0;
    if (safetensors_read(&file, path)) {
        report("skip", "recording", "%s", file.error);
        safetensors_free(&file);
        return;
    }
    uint32_t *layers = recording_layers(&file, &count);
    if (!layers || aura_ctx_create(&options, &ctx))
        report("FAIL", "recording", "%s", layers ? aura_last_error() : "out of memory");
    for (size_t i = 0; ctx && i < count; i++) {
        struct recording r;
        struct recording_exact exact = {};
        char error[256] = "out of memory";
        if (recording_load(&r, ctx, &file, layers[i], error) || recording_attend(&r, r.k, r.v, 1, &exact))
            report("FAIL", "recording", "%s", error);
        else
            for (const char *format : {"k4v4", "k8v8", "k3v3", "k4v2"})
                run_recording(ctx, r, exact, format);
        recording_exact_free(&exact);
        recording_free(&r);
    }
    free(layers);
    aura_ctx_destroy(ctx);
    safetensors_free(&file);
}
