/* One call for the next tokens of a batch: the bytes and the rows of aura_step(). */
#include <math.h>
#include <string.h>

#include <algorithm>

#include "check.cuh"

/* Tensors of a batch on both sides. */
struct batch {
    uint32_t n, tokens;
    std::vector<float> k, v, q, out, lse;
    device_array dk, dv, dq, dout, dlse, ids, starts;
    aura_cuda_step_args args = AURA_CUDA_STEP_ARGS_INIT;
    batch(const struct device_side &d, uint32_t n_, uint32_t tokens_)
        : n(n_), tokens(tokens_), dk(size(d, 0) * 4), dv(size(d, 1) * 4), dq(size(d, 2) * 4), dout(size(d, 3) * 4),
          dlse((size_t)n_ * tokens_ * d.cache->dev.q_heads * 4), ids(d.seqs.data(), n_ * 4), starts(n_ * 4)
    {
        args.k.data = dk.p, args.v.data = dv.p;
        aura_cuda_attend_args &a = args.attend;
        a.seqs = (const aura_cuda_seq *)ids.p, a.n_seqs = n, a.queries = tokens, a.starts = (const uint32_t *)starts.p;
        a.q.data = dq.p, a.out.data = dout.p, a.lse = (float *)dlse.p;
    }
    size_t size(const struct device_side &d, int which) const
    {
        const struct dev_cache &c = d.cache->dev;
        return (size_t)n * tokens * (which < 2 ? c.kv_heads : c.q_heads) * (which % 2 ? c.v_dim : c.k_dim);
    }
};

/* Numbers for the next step, padding being NaN, and where each sequence begins. */
static void next_numbers(const struct scene &s, const struct device_side &d, struct batch &b, uint64_t seed,
                         const std::vector<uint32_t> &starts)
{
    const struct dev_cache &c = d.cache->dev;
    b.k = some_tokens(seed, b.n * b.tokens, c.kv_heads, c.k_dim, true), b.v = some_numbers(seed + 1, b.size(d, 1));
    b.q = some_numbers(seed + 2, b.size(d, 2));
    for (uint32_t i = 0; i < b.n; i++)
        for (std::vector<float> *x : {&b.k, &b.v, &b.q}) {
            const size_t row = x->size() / b.n / b.tokens;
            std::fill_n(x->begin() + i * b.tokens * row, starts[i] * row, NAN);
        }
    TRY_CUDA(cudaMemcpy(b.dk.p, b.k.data(), b.k.size() * 4, cudaMemcpyHostToDevice));
    TRY_CUDA(cudaMemcpy(b.dv.p, b.v.data(), b.v.size() * 4, cudaMemcpyHostToDevice));
    TRY_CUDA(cudaMemcpy(b.dq.p, b.q.data(), b.q.size() * 4, cudaMemcpyHostToDevice));
    TRY_CUDA(cudaMemcpy(b.starts.p, starts.data(), b.n * 4, cudaMemcpyHostToDevice));
}

/* What the device gives, padding included, and that the CPU's step leaves the same bytes. */
static void compare_step(struct scene s, const struct filled &f, const struct device_side &d, struct batch &b,
                         const std::vector<uint32_t> &starts)
{
    const struct dev_cache &c = d.cache->dev;
    b.out.resize(b.size(d, 3)), b.lse.resize((size_t)b.n * b.tokens * c.q_heads);
    TRY_CUDA(cudaMemcpy(b.out.data(), b.dout.p, b.out.size() * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(b.lse.data(), b.dlse.p, b.lse.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<float> cpu_out(b.out.size()), cpu_lse(b.lse.size());
    aura_step_args step = AURA_STEP_ARGS_INIT;
    step.seqs = f.seqs.data(), step.n_seqs = b.n, step.tokens = b.tokens, step.starts = starts.data();
    step.k.data = b.k.data(), step.v.data = b.v.data(), step.q.data = b.q.data(), step.out.data = cpu_out.data();
    step.lse = cpu_lse.data();
    TRY(aura_step(f.cache, &step, NULL));
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    TRY(aura_cache_get_info(f.cache, &info));
    s.starts = starts, s.queries = b.tokens;
    uint32_t longest = 1;
    for (uint32_t i = 0; i < b.n; i++) {
        s.tokens[i] += b.tokens - starts[i];
        longest = std::max(longest, s.tokens[i]);
        for (uint32_t t = 0; t < starts[i]; t++)
            for (uint32_t h = 0; h < c.q_heads; h++) {
                const size_t row = ((size_t)i * b.tokens + t) * c.q_heads + h;
                const float *y = &b.out[row * c.v_dim];
                const bool zero = std::all_of(y, y + c.v_dim, [](float x) { return x == 0; });
                if (!zero || b.lse[row] != -INFINITY)
                    return complain(s, "padding: sequence %u, token %u, head %u is not 0", i, t, h);
            }
    }
    compare_appended(s, f, d, info.config);
    size_t wrong = 0, first_bad = 0;
    const struct numbers_of_call call = {b.q.data(), NULL, NULL, NULL, b.out.data(), b.lse.data(), NULL, longest};
    const struct worst w = compare_call(s, f.cache, f.seqs, call, wrong, first_bad);
    if (!(w.ratio <= 1))
        complain(s, "row %zu, the first: error %.2e, %.1f times what is allowed", first_bad, w.row, w.ratio);
}

/* Steps with padding of all lengths, the later ones by a graph. */
static void run_steps(struct scene s, uint32_t tokens, uint32_t steps)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " steps of " + std::to_string(tokens);
    if (!begin_case(s, f, d))
        return;
    const uint32_t n = (uint32_t)s.tokens.size();
    for (uint32_t i = 0; i < n; i++)
        TRY(aura_cuda_seq_reserve(d.cache, d.seqs[i], s.tokens[i] + steps * tokens));
    TRY(aura_cuda_workspace_create(d.cache, n, tokens, &d.workspace));
    struct batch b(d, n, tokens);
    struct captured graph(s, [&](cudaStream_t stream) { TRY(aura_cuda_step(d.cache, d.workspace, &b.args, stream)); });
    for (uint32_t step = 0; step < steps && failures == before; step++) {
        std::vector<uint32_t> starts(n);
        for (uint32_t i = 0; i < n; i++)
            starts[i] = (7 * step + 5 * i + step * i) % (tokens + 1);
        next_numbers(s, d, b, 100 * step + s.seed, starts);
        if (step) {
            graph.replay(s);
        } else {
            TRY(aura_cuda_step(d.cache, d.workspace, &b.args, NULL));
            TRY_CUDA(cudaDeviceSynchronize());
        }
        compare_step(s, f, d, b, starts);
        for (uint32_t i = 0; i < n; i++)
            s.tokens[i] += tokens - starts[i];
    }
    end_case(s, before, "bytes equal, rows near, padding 0");
}

/* A call that would fail in its second half does not do the first. */
static void run_refused_steps()
{
    struct scene s = scene_of(4, 4, 128, 4, 2, {250, 250});
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += " steps refused";
    if (!begin_case(s, f, d))
        return;
    TRY(aura_cuda_workspace_create(d.cache, 1, 2, &d.workspace));
    struct batch b(d, 2, 2);
    next_numbers(s, d, b, 5, {0, 0});
    aura_cuda_step_args good = b.args;
    aura_status status = aura_cuda_step(d.cache, d.workspace, &b.args, NULL);
    const bool small = status == AURA_TOO_LARGE && strstr(aura_last_error(), "aura_cuda_step");
    b.args = good, b.args.attend.n_seqs = 1, b.args.attend.q.data = NULL;
    const bool query = aura_cuda_step(d.cache, d.workspace, &b.args, NULL) == AURA_BAD_ARGUMENT;
    b.args = good, b.args.attend.n_seqs = 1, b.args.v.data = NULL;
    const bool value = aura_cuda_step(d.cache, d.workspace, &b.args, NULL) == AURA_BAD_ARGUMENT;
    b.args = good, b.args.size = 8;
    const bool size = aura_cuda_step(d.cache, d.workspace, &b.args, NULL) == AURA_BAD_ARGUMENT;
    b.args = good, b.args.attend.n_seqs = 1, b.args.attend.from = (const uint32_t *)b.starts.p;
    const bool none = aura_cuda_step(d.cache, NULL, &b.args, NULL) == AURA_BAD_ARGUMENT;
    if (!small || !query || !value || !size || !none)
        complain(s, "small workspace %d, no query %d, no value %d, size %d, no workspace %d", small, query, value, size, none);
    b.args = good, b.args.attend.n_seqs = 1, b.args.k.data = b.args.v.data = NULL; /* the tokens are there */
    TRY(aura_cuda_step(d.cache, d.workspace, &b.args, NULL));
    for (int i = 0; i < 2; i++) {
        aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info));
        if (info.tokens != 250 || info.status)
            complain(s, "a step that was refused appended: %llu tokens, status %u", (unsigned long long)info.tokens, info.status);
    }
    end_case(s, before, "");
}

void check_step()
{
    run_steps(scene_of(4, 4, 128, 8, 2, {0, 250, 30}), 1, 4);
    run_steps(scene_of(4, 4, 128, 8, 2, {0, 250, 30}), 9, 6);
    run_steps(scene_of(8, 4, 64, 4, 2, {0, 100}), 40, 3);
    struct scene window = scene_of(3, 3, 80, 4, 2, {0, 900});
    window.config.window = 200, window.config.max_queries = 12, window.config.keep_first = 3;
    run_steps(window, 12, 4);
    run_refused_steps();
}
