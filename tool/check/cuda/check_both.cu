/* The same done on both sides: sequences of a CPU cache and their like on the device. */
#include "check.cuh"

void make_both(const struct scene &s, const struct filled &f, struct device_side &d, struct both &first)
{
    aura_cuda_config config = device_config(s, f);
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(f.cache, &info);
    config.seqs = 8;
    config.seq_tokens = 8192;
    config.cache.budget_bytes += 32 * info.page_bytes + 8 * (info.seq_bytes + 65536);
    TRY(aura_cuda_cache_create(f.ctx, &config, &d.cache));
    TRY(aura_cuda_seq_create(d.cache, &first.gpu));
    TRY(aura_cuda_upload(d.cache, first.gpu, f.cache, f.seqs[0]));
    first.cpu = f.seqs[0];
}

bool begin_seqs(struct scene &s, const char *what, struct filled &f, struct device_side &d, struct both &first)
{
    const int before = failures;
    s.name += what;
    cases++;
    fill(s, f);
    if (failures == before)
        make_both(s, f, d, first);
    return failures == before;
}

void append_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b, uint32_t n,
                        uint64_t seed, uint32_t wanted)
{
    aura_cache_info about = AURA_CACHE_INFO_INIT;
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT, after = AURA_CUDA_SEQ_INFO_INIT;
    aura_cache_get_info(f.cache, &about);
    const aura_config &c = about.config;
    std::vector<float> k = some_tokens(seed, n, c.kv_heads, c.k_dim, true);
    std::vector<float> v = some_tokens(seed + 1, n, c.kv_heads, c.v_dim, false);
    device_array dk(k.data(), k.size() * 4), dv(v.data(), v.size() * 4), ids(&b.gpu, 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.tokens = n;
    args.k.data = dk.p, args.v.data = dv.p;
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &info));
    TRY(aura_cuda_append(d.cache, &args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &after));
    if (after.status != wanted || after.tokens != info.tokens + (wanted ? 0 : n))
        complain(s, "%u tokens to %llu: status %u, wanted %u, %llu tokens", n, (unsigned long long)info.tokens, after.status,
                 wanted, (unsigned long long)after.tokens);
    if (wanted) {
        TRY(aura_cuda_seq_clear_status(d.cache, b.gpu));
        return;
    }
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = b.cpu, job.tokens = n, job.k.data = k.data(), job.v.data = v.data();
    TRY(aura_append(f.cache, &job, 1));
}

void reserve_more(const struct scene &s, const struct device_side &d, const struct both &b, uint32_t n)
{
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &info));
    TRY(aura_cuda_seq_reserve(d.cache, b.gpu, info.tokens + n));
}

struct both fork_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b, uint32_t n)
{
    struct both made = {};
    aura_status status = aura_seq_fork(f.cache, b.cpu, n, &made.cpu);
    status = status ? status : aura_cuda_seq_fork(d.cache, b.gpu, n, &made.gpu);
    if (status)
        complain(s, "fork: %s", aura_last_error());
    return made;
}

void truncate_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b, uint32_t n,
                          bool on_stream)
{
    TRY(aura_truncate(f.cache, b.cpu, n));
    if (!on_stream) {
        TRY(aura_cuda_seq_truncate(d.cache, b.gpu, n));
        return;
    }
    device_array ids(&b.gpu, 4), tokens(&n, 4);
    TRY(aura_cuda_truncate(d.cache, (const aura_cuda_seq *)ids.p, (const uint32_t *)tokens.p, 1, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
}

void compare_both(const struct scene &s, const struct filled &f, const struct device_side &d, const struct both &b,
                  const char *when)
{
    aura_seq back;
    TRY(aura_seq_create(f.cache, &back));
    TRY(aura_cuda_download(d.cache, b.gpu, f.cache, back));
    const std::string where = first_difference(f.cache, b.cpu, f.cache, back);
    if (!where.empty())
        complain(s, "%s: sequence %u differs at: %s", when, b.gpu, where.c_str());
    TRY(aura_seq_release(f.cache, back));
}
