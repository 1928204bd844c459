/* aura bench --device cuda: attention beside a plain read of the same bytes in the same run. CUDA events, medians; before every
 * run the second cache is filled by reading 512 MB, not by writing, which would leave it full of lines to be written back. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "../cuda_tool.h"
#include "bench_cuda.cuh"
extern "C" {
#include "../parts/inputs.h"
}

static struct rows_out out;

struct shape_case {
    const char *format;
    uint32_t dim, q_heads, kv_heads, batch, tokens, queries, planes, long_seqs;
};

/* How the rows are named: "8 x 32768", or "8 of 1 to 65536" where the lengths differ. */
static std::string lengths_name(const std::vector<uint32_t> &lengths)
{
    const auto ends = std::minmax_element(lengths.begin(), lengths.end());
    const std::string least = std::to_string(*ends.first), most = std::to_string(*ends.second);
    return std::to_string(lengths.size()) + (least == most ? " x " : " of " + least + " to ") + most;
}

/* The same in JSON: the tokens of each where they are equal, or the list of them. */
static std::string lengths_json(const std::vector<uint32_t> &lengths)
{
    std::string list;
    if (std::count(lengths.begin(), lengths.end(), lengths[0]) == (long)lengths.size())
        return "\"tokens\": " + std::to_string(lengths[0]);
    for (uint32_t n : lengths)
        list += (list.empty() ? "" : ", ") + std::to_string(n);
    return "\"lengths\": [" + list + "]";
}

/* A CPU cache with one sequence of the longest length; sequences on the device are copies of it, each with pages of its own. */
static void fill_cpu(aura_ctx *ctx, const aura_config &config, uint32_t tokens, aura_cache **cache, aura_seq *seq)
{
    MUST(aura_cache_create(ctx, &config, cache));
    MUST(aura_seq_create(*cache, seq));
    uint64_t seed = 5;
    std::vector<float> k((size_t)256 * config.kv_heads * config.k_dim), v(k.size());
    for (float &x : k)
        x = random_normal(&seed);
    for (float &x : v)
        x = random_normal(&seed);
    for (uint32_t done = 0; done < tokens; done += 256) {
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = *seq, job.tokens = tokens - done < 256 ? tokens - done : 256;
        job.k.data = k.data(), job.v.data = v.data();
        MUST(aura_append(*cache, &job, 1));
        for (size_t i = 0; i < k.size(); i++) /* other numbers, at little cost */
            k[i] = k[i] * -0.75f + v[(i * 7 + done) % v.size()] * 0.6614378f;
    }
}

/* Microseconds of an attention call. The same cache with and without the option, which concerns calls and workspaces alone. */
static double time_attend(timer &t, aura_cuda_cache *cache, const aura_cuda_attend_args &args, uint32_t batch_invariant)
{
    aura_cuda_workspace *w;
    cache->batch_invariant = batch_invariant;
    MUST(aura_cuda_workspace_create(cache, args.n_seqs, args.queries, &w));
    const double us = t.time([&] { MUST(aura_cuda_attend(cache, w, &args, NULL)); });
    aura_cuda_workspace_destroy(w);
    return us;
}

/* A device cache with sequences of these lengths. */
struct filled_cache {
    aura_cuda_cache *cache;
    std::vector<uint32_t> ids;
    size_t bytes = 0; /* that a call reads */
};

static void fill_device(aura_ctx *ctx, const shape_case &s, const std::vector<uint32_t> &lengths, filled_cache &f)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_cache *cpu;
    aura_seq cpu_seq;
    MUST(aura_format_parse(s.format, &config.format));
    config.k_dim = s.dim, config.q_heads = s.q_heads, config.kv_heads = s.kv_heads, config.seed = 1;
    config.flags = AURA_NO_SEARCH; /* of the scale: it costs time here and changes no speed */
    fill_cpu(ctx, config, *std::max_element(lengths.begin(), lengths.end()), &cpu, &cpu_seq);
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    MUST(aura_cache_get_info(cpu, &info));
    size_t pages = 0;
    for (uint32_t n : lengths)
        pages += n / AURA_PAGE + 1;
    aura_cuda_config dc = AURA_CUDA_CONFIG_INIT;
    dc.cache = info.config;
    dc.seqs = (uint32_t)lengths.size();
    dc.seq_tokens = 1 << 20;
    dc.cache.budget_bytes = pages * info.page_bytes + dc.seqs * (info.seq_bytes + 32768) + (8 << 20);
    MUST(aura_cuda_cache_create(ctx, &dc, &f.cache));
    std::vector<uint32_t> order(lengths.size());
    f.ids.resize(lengths.size());
    for (size_t i = 0; i < order.size(); i++)
        order[i] = (uint32_t)i;
    std::sort(order.begin(), order.end(), [&](uint32_t a, uint32_t b) { return lengths[a] > lengths[b]; });
    for (uint32_t i : order) { /* longest first: the CPU's sequence only gets shorter */
        MUST(aura_truncate(cpu, cpu_seq, lengths[i]));
        MUST(aura_cuda_seq_create(f.cache, &f.ids[i]));
        MUST(aura_cuda_upload(f.cache, f.ids[i], cpu, cpu_seq));
        f.bytes += (size_t)(lengths[i] * (double)info.page_bytes / AURA_PAGE);
    }
    aura_cache_destroy(cpu);
}

/* Microseconds: a read of the bytes, a call, a call that is batch-invariant. */
struct times {
    double read, attend, invariant;
};

static void print_case(const shape_case &s, const std::vector<uint32_t> &lengths, size_t bytes, const times &us)
{
    if (out.as)
        print_row(&out, "{\"cache\": \"%s\", \"dim\": %u, \"q_heads\": %u, \"kv_heads\": %u, \"seqs\": %zu, %s, \"queries\": %u, "
               "\"planes\": %u, \"long_seqs\": %u, \"read_us\": %.2f, \"attend_us\": %.2f, \"batch_invariant_us\": %.2f}",
               s.format, s.dim, s.q_heads, s.kv_heads, lengths.size(), lengths_json(lengths).c_str(), s.queries, s.planes,
               s.long_seqs, us.read, us.attend, us.invariant);
    else
        printf("%-6s D%-3u %2u/%-2u %15s q%-2u p%u%s  read %7.1f us  attend %7.1f us  %5.1f %%  %.2f TB/s  "
               "batch_invariant %7.1f us  %.2f x\n",
               s.format, s.dim, s.q_heads, s.kv_heads, lengths_name(lengths).c_str(), s.queries, s.planes,
               s.long_seqs ? " long" : "", us.read, us.attend,
               us.read / us.attend * 100, bytes / us.attend / 1e6, us.invariant, us.invariant / us.attend);
    fflush(stdout);
}

/* The tensors of a call on the device. */
struct call_tensors {
    void *q, *out, *ids;
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    call_tensors(const shape_case &s, const filled_cache &f)
    {
        uint64_t seed = 9;
        std::vector<__half> numbers((size_t)f.ids.size() * s.queries * s.q_heads * s.dim);
        for (__half &x : numbers)
            x = __float2half(random_normal(&seed));
        MUST_CUDA(cudaMalloc(&q, numbers.size() * 2));
        MUST_CUDA(cudaMalloc(&out, numbers.size() * 2));
        MUST_CUDA(cudaMalloc(&ids, f.ids.size() * 4));
        MUST_CUDA(cudaMemcpy(q, numbers.data(), numbers.size() * 2, cudaMemcpyHostToDevice));
        MUST_CUDA(cudaMemcpy(ids, f.ids.data(), f.ids.size() * 4, cudaMemcpyHostToDevice));
        args.seqs = (const aura_cuda_seq *)ids, args.n_seqs = (uint32_t)f.ids.size(), args.queries = s.queries;
        args.q.data = q, args.out.data = out, args.q.dtype = args.out.dtype = AURA_F16;
        args.planes = s.planes, args.long_seqs = s.long_seqs;
    }
    call_tensors(const call_tensors &) = delete;
    ~call_tensors()
    {
        cudaFree(q), cudaFree(out), cudaFree(ids);
    }
};

static void bench_case(timer &t, aura_ctx *ctx, const shape_case &s, const std::vector<uint32_t> &lengths)
{
    filled_cache f;
    fill_device(ctx, s, lengths, f);
    times us = {1e9, 0, 0};
    {
        const call_tensors call(s, f);
        for (int blocks : {2, 4, 8, 16})
            us.read = std::min(us.read, t.time([&] { t.read(f.cache->dev.pages, f.bytes, blocks); }));
        us.attend = time_attend(t, f.cache, call.args, 0);
        us.invariant = time_attend(t, f.cache, call.args, 1);
    }
    print_case(s, lengths, f.bytes, us);
    aura_cuda_cache_destroy(f.cache);
}

/* Microseconds of calls and bytes of workspaces: as it comes, and with room for all images. */
struct many_times {
    double us[2], mb[2];
};

static many_times time_many(timer &t, filled_cache &f, const shape_case &s, const call_tensors &call, uint32_t by_images)
{
    many_times m;
    f.cache->by_images = by_images;
    for (int all = 0; all < 2; all++) {
        const size_t images = (size_t)s.batch * s.kv_heads * s.tokens * s.dim * 4;
        aura_cuda_workspace *w;
        MUST(aura_cuda_workspace_create_sized(f.cache, s.batch, s.queries, all ? images : 0, &w));
        m.mb[all] = (double)aura_cuda_workspace_bytes(w) / 1e6;
        m.us[all] = t.time([&] { MUST(aura_cuda_attend(f.cache, w, &call.args, NULL)); });
        aura_cuda_workspace_destroy(w);
    }
    return m;
}

/* More than 16 queries: as the library chooses, and by images whatever is faster. */
static void bench_prefill(timer &t, aura_ctx *ctx, const shape_case &s)
{
    filled_cache f;
    fill_device(ctx, s, std::vector<uint32_t>(s.batch, s.tokens), f);
    many_times chosen, images;
    {
        const call_tensors call(s, f);
        const uint32_t few = 1024; /* rows: calls of more go by images anyway */
        chosen = time_many(t, f, s, call, 0);
        images = s.queries * s.q_heads / s.kv_heads > few ? chosen : time_many(t, f, s, call, 1);
    }
    const double keys = s.tokens - (s.queries - 1) / 2., flops = 4. * s.batch * s.queries * s.q_heads * s.dim * keys;
    const std::string lengths = lengths_name(std::vector<uint32_t>(s.batch, s.tokens));
    if (out.as)
        print_row(&out, "{\"cache\": \"%s\", \"dim\": %u, \"q_heads\": %u, \"kv_heads\": %u, \"seqs\": %u, \"tokens\": %u, "
               "\"queries\": %u, \"workspace_mb\": [%.1f, %.1f], \"attend_us\": [%.2f, %.2f], \"by_images_us\": [%.2f, %.2f]}",
               s.format, s.dim, s.q_heads, s.kv_heads, s.batch, s.tokens, s.queries, chosen.mb[0], chosen.mb[1], chosen.us[0],
               chosen.us[1], images.us[0], images.us[1]);
    else
        printf("%-6s D%-3u %2u/%-2u %15s q%-4u   attend %8.1f us with %5.1f MB, %8.1f us with %5.1f MB: %5.1f TFLOP/s; "
               "by images %8.1f and %8.1f us\n", s.format, s.dim, s.q_heads, s.kv_heads, lengths.c_str(), s.queries, chosen.us[0],
               chosen.mb[0], chosen.us[1], chosen.mb[1], flops / chosen.us[1] / 1e6, images.us[0], images.us[1]);
    fflush(stdout);
    aura_cuda_cache_destroy(f.cache);
}

/* Metrics of heads, lower triangles, in which two channels have the less in common the further they are apart. */
static std::vector<float> near_metric(uint32_t heads, uint32_t dim)
{
    std::vector<float> m;
    for (uint32_t h = 0; h < heads; h++)
        for (uint32_t i = 0; i < dim; i++)
            for (uint32_t j = 0; j <= i; j++)
                m.push_back(powf(0.7f, (float)(i - j)));
    return m;
}

static void print_append(const char *format, bool metric, const double *us)
{
    if (out.as)
        print_row(&out, "{\"cache\": \"%s\", \"dim\": 128, \"kv_heads\": 8, \"seqs\": 64, \"metric\": %d, \"append_us\": %.2f, "
               "\"append_closing_us\": %.2f}", format, metric, us[0], us[1]);
    else
        printf("%-6s D128 append of a token to 64 sequences, 8 KV heads%s: %.1f us; %.1f us when a tile of each closes\n", format,
               metric ? ", with a metric" : "", us[0], us[1]);
    fflush(stdout);
}

/* Append of one token to 64 sequences with 8 KV heads: when no tile closes, and when all do. */
static void bench_append(timer &t, aura_ctx *ctx, const char *format, bool metric)
{
    aura_config config = AURA_CONFIG_INIT;
    const uint32_t n = 64, length = 32 + 16 - 2; /* one more token and a tile is about to close */
    const std::vector<float> near = near_metric(8, 128);
    MUST(aura_format_parse(format, &config.format));
    config.k_dim = 128, config.q_heads = 32, config.kv_heads = 8, config.seed = 1;
    config.k_metric = config.v_metric = metric ? near.data() : NULL;
    aura_cuda_config dc = AURA_CUDA_CONFIG_INIT;
    dc.cache = config;
    dc.cache.budget_bytes = (size_t)64 << 20;
    dc.seqs = n, dc.seq_tokens = 512;
    aura_cuda_cache *cache;
    MUST(aura_cuda_cache_create(ctx, &dc, &cache));
    std::vector<uint32_t> ids(n);
    for (uint32_t &id : ids) {
        MUST(aura_cuda_seq_create(cache, &id));
        MUST(aura_cuda_seq_reserve(cache, id, 256));
    }
    uint64_t seed = 3;
    const size_t row = (size_t)8 * 128;
    std::vector<__half> x(n * length * row);
    for (__half &h : x)
        h = __float2half(random_normal(&seed));
    void *dx, *dids;
    MUST_CUDA(cudaMalloc(&dx, x.size() * 2));
    MUST_CUDA(cudaMalloc(&dids, n * 4));
    MUST_CUDA(cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
    MUST_CUDA(cudaMemcpy(dids, ids.data(), n * 4, cudaMemcpyHostToDevice));
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)dids, args.n_seqs = n, args.tokens = length;
    args.k.data = args.v.data = dx, args.k.dtype = args.v.dtype = AURA_F16;
    args.k.seq_stride = args.v.seq_stride = length * row;
    MUST(aura_cuda_append(cache, &args, NULL));
    args.tokens = 1;
    std::vector<struct dev_seq> state(n);
    double us[2];
    for (int closes = 0; closes < 2; closes++) {
        MUST_CUDA(cudaMemcpy(state.data(), cache->dev.seqs, n * sizeof(struct dev_seq), cudaMemcpyDeviceToHost));
        std::vector<float> all;
        for (int i = 0; i < 21; i++) { /* the same state every time */
            float ms;
            MUST_CUDA(cudaMemcpy(cache->dev.seqs, state.data(), n * sizeof(struct dev_seq), cudaMemcpyHostToDevice));
            t.read(t.flush, t.flush_bytes, 8);
            MUST_CUDA(cudaEventRecord(t.begin));
            MUST(aura_cuda_append(cache, &args, NULL));
            MUST_CUDA(cudaEventRecord(t.end));
            MUST_CUDA(cudaEventSynchronize(t.end));
            MUST_CUDA(cudaEventElapsedTime(&ms, t.begin, t.end));
            all.push_back(ms);
        }
        std::sort(all.begin(), all.end());
        us[closes] = all[10] * 1e3;
    }
    print_append(format, metric, us);
    aura_cuda_cache_destroy(cache);
    cudaFree(dx), cudaFree(dids);
}

/* What is read and written, in units of a copy's bytes: such a copy takes as long as `us` of it would. */
static double copy_us(timer &t, size_t bytes)
{
    void *from, *to;
    MUST_CUDA(cudaMalloc(&from, bytes / 2));
    MUST_CUDA(cudaMalloc(&to, bytes / 2));
    const double us = t.time([&] { MUST_CUDA(cudaMemcpyAsync(to, from, bytes / 2, cudaMemcpyDeviceToDevice, 0)); });
    cudaFree(from), cudaFree(to);
    return us;
}

/* All tokens as f16, beside a copy that reads and writes as many bytes. */
static void bench_unpack(timer &t, aura_ctx *ctx, const shape_case &s, uint32_t rotated)
{
    filled_cache f;
    fill_device(ctx, s, std::vector<uint32_t>(s.batch, s.tokens), f);
    const size_t side = (size_t)s.batch * s.tokens * s.kv_heads * s.dim * 2;
    void *k, *v, *ids;
    MUST_CUDA(cudaMalloc(&k, side));
    MUST_CUDA(cudaMalloc(&v, side));
    MUST_CUDA(cudaMalloc(&ids, f.ids.size() * 4));
    MUST_CUDA(cudaMemcpy(ids, f.ids.data(), f.ids.size() * 4, cudaMemcpyHostToDevice));
    aura_cuda_unpack_args args = AURA_CUDA_UNPACK_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids, args.n_seqs = s.batch, args.tokens = s.tokens, args.rotated = rotated;
    args.k.data = k, args.v.data = v, args.k.dtype = args.v.dtype = AURA_F16;
    const double us = t.time([&] { MUST(aura_cuda_unpack(f.cache, &args, NULL)); });
    cudaFree(k), cudaFree(v), cudaFree(ids);
    const double copy = copy_us(t, f.bytes + 2 * side);
    if (out.as)
        print_row(&out, "{\"cache\": \"%s\", \"dim\": %u, \"kv_heads\": %u, \"seqs\": %u, \"tokens\": %u, \"rotated\": %u, "
               "\"unpack_us\": %.2f, \"copy_us\": %.2f}", s.format, s.dim, s.kv_heads, s.batch, s.tokens, rotated, us, copy);
    else
        printf("%-6s D%-3u %u KV heads, %u x %u tokens to f16 in %s space: %.1f us, a copy of as many bytes %.1f us, %.1f %%\n",
               s.format, s.dim, s.kv_heads, s.batch, s.tokens, rotated ? "rotated" : "model", us, copy, copy / us * 100);
    fflush(stdout);
    aura_cuda_cache_destroy(f.cache);
}

/* A prompt of 4096 tokens to one sequence. */
static void bench_prompt(timer &t, aura_ctx *ctx)
{
    const uint32_t tokens = 4096, heads = 8, dim = 128;
    aura_cuda_config dc = AURA_CUDA_CONFIG_INIT;
    dc.cache.k_dim = dim, dc.cache.q_heads = 32, dc.cache.kv_heads = heads, dc.cache.seed = 1;
    dc.cache.budget_bytes = (size_t)64 << 20, dc.seqs = 1, dc.seq_tokens = 2 * tokens;
    aura_cuda_cache *cache;
    uint32_t id;
    MUST(aura_cuda_cache_create(ctx, &dc, &cache));
    MUST(aura_cuda_seq_create(cache, &id));
    MUST(aura_cuda_seq_reserve(cache, id, tokens));
    uint64_t seed = 3;
    std::vector<__half> x((size_t)tokens * heads * dim);
    for (__half &h : x)
        h = __float2half(random_normal(&seed));
    void *dx, *dids;
    struct dev_seq state;
    MUST_CUDA(cudaMalloc(&dx, x.size() * 2));
    MUST_CUDA(cudaMalloc(&dids, 4));
    MUST_CUDA(cudaMemcpy(dx, x.data(), x.size() * 2, cudaMemcpyHostToDevice));
    MUST_CUDA(cudaMemcpy(dids, &id, 4, cudaMemcpyHostToDevice));
    MUST_CUDA(cudaMemcpy(&state, &cache->dev.seqs[id], sizeof state, cudaMemcpyDeviceToHost));
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)dids, args.n_seqs = 1, args.tokens = tokens;
    args.k.data = args.v.data = dx, args.k.dtype = args.v.dtype = AURA_F16;
    std::vector<float> all;
    for (int i = 0; i < 11; i++) {
        float ms;
        MUST_CUDA(cudaMemcpy(&cache->dev.seqs[id], &state, sizeof state, cudaMemcpyHostToDevice));
        MUST_CUDA(cudaEventRecord(t.begin));
        MUST(aura_cuda_append(cache, &args, NULL));
        MUST_CUDA(cudaEventRecord(t.end));
        MUST_CUDA(cudaEventSynchronize(t.end));
        MUST_CUDA(cudaEventElapsedTime(&ms, t.begin, t.end));
        all.push_back(ms);
    }
    std::sort(all.begin(), all.end());
    if (out.as)
        print_row(&out, "{\"cache\": \"k4v4\", \"dim\": 128, \"kv_heads\": 8, \"prompt\": %u, \"append_us\": %.1f}", tokens,
                  all[5] * 1e3);
    else
        printf("k4v4   D128 append of %u tokens to one sequence, 8 KV heads: %.1f us\n", tokens, all[5] * 1e3);
    aura_cuda_cache_destroy(cache);
    cudaFree(dx), cudaFree(dids);
}

static const shape_case table[] = {
    {"k4v4", 128, 32, 8, 1, 8192, 1, 0},   {"k4v4", 128, 32, 8, 1, 32768, 1, 0}, {"k4v4", 128, 32, 8, 1, 131072, 1, 0},
    {"k4v4", 128, 32, 8, 8, 8192, 1, 0},   {"k4v4", 128, 32, 8, 8, 32768, 1, 0}, {"k4v4", 128, 32, 8, 32, 8192, 1, 0},
    {"k4v4", 128, 32, 8, 8, 32768, 1, 2},  {"k8v8", 128, 32, 8, 8, 32768, 1, 0}, {"k6v6", 128, 32, 8, 8, 32768, 1, 0},
    {"k5v5", 128, 32, 8, 8, 32768, 1, 0},  {"k3v3", 128, 32, 8, 8, 32768, 1, 0}, {"k4v4", 64, 32, 8, 8, 32768, 1, 0},
    {"k4v4", 256, 32, 8, 8, 32768, 1, 0},  {"k4v4", 128, 64, 8, 8, 32768, 1, 0}, {"k4v4", 128, 8, 8, 8, 32768, 1, 0},
    {"k4v2", 128, 32, 8, 8, 32768, 1, 0},
    {"k2v2", 128, 32, 8, 8, 32768, 1, 0},  {"k8v4", 128, 32, 8, 8, 32768, 1, 0}, {"kf16v4", 128, 32, 8, 8, 32768, 1, 0},
    {"k3v2", 128, 32, 8, 8, 32768, 1, 0},  {"kt2vt2", 128, 32, 8, 8, 32768, 1, 0}, {"kt3vt3", 128, 32, 8, 8, 32768, 1, 0},
    {"kt4vt4", 128, 32, 8, 8, 32768, 1, 0},
};

static const shape_case several[] = {
    {"k4v4", 128, 32, 8, 8, 32768, 2, 0, 0}, {"k4v4", 128, 32, 8, 8, 32768, 4, 0, 0}, {"k4v4", 128, 32, 8, 8, 32768, 8, 0, 0},
    {"k4v4", 128, 32, 8, 8, 32768, 16, 0, 0}, {"k4v4", 128, 32, 8, 8, 32768, 8, 0, 1}, {"k4v4", 128, 32, 8, 8, 32768, 16, 0, 1},
    {"k3v3", 128, 32, 8, 8, 32768, 4, 0, 0}, {"k3v3", 128, 32, 8, 8, 32768, 16, 0, 0}, {"k3v3", 128, 32, 8, 8, 32768, 16, 0, 1},
    {"k5v5", 128, 32, 8, 8, 32768, 4, 0, 0}, {"k5v5", 128, 32, 8, 8, 32768, 16, 0, 0}, {"k5v5", 128, 32, 8, 8, 32768, 16, 0, 1},
    {"k6v6", 128, 32, 8, 8, 32768, 4, 0, 0}, {"k6v6", 128, 32, 8, 8, 32768, 16, 0, 0}, {"k6v6", 128, 32, 8, 8, 32768, 16, 0, 1},
    {"k8v8", 128, 32, 8, 8, 32768, 4, 0, 0}, {"k8v8", 128, 32, 8, 8, 32768, 16, 0, 0}, {"k8v8", 128, 32, 8, 8, 32768, 16, 0, 1},
    {"k4v4", 64, 32, 8, 8, 32768, 16, 0, 0}, {"k4v4", 64, 32, 8, 8, 32768, 16, 0, 1}, {"k4v4", 256, 32, 8, 8, 32768, 16, 0, 0},
    {"k4v4", 256, 32, 8, 8, 32768, 16, 0, 1}, {"k4v4", 128, 64, 8, 8, 32768, 4, 0, 0}, {"k4v4", 128, 64, 8, 8, 32768, 4, 0, 1},
    {"k4v4", 128, 32, 8, 1, 8192, 4, 0, 0}, {"k4v4", 128, 32, 8, 1, 8192, 16, 0, 0}, {"k4v4", 128, 32, 8, 1, 8192, 16, 0, 1},
};

static const shape_case prefills[] = {
    {"k4v4", 128, 32, 8, 1, 32768, 2048, 0}, {"k4v4", 128, 32, 8, 1, 32768, 512, 0}, {"k4v4", 128, 32, 8, 1, 8192, 2048, 0},
    {"k4v4", 128, 32, 8, 8, 32768, 17, 0},   {"k4v4", 128, 32, 8, 8, 32768, 64, 0},   {"k4v4", 64, 32, 8, 1, 32768, 2048, 0},
    {"k4v4", 256, 32, 8, 1, 32768, 2048, 0}, {"k8v8", 128, 32, 8, 1, 32768, 2048, 0}, {"k3v3", 128, 32, 8, 1, 32768, 2048, 0},
    {"k2v2", 128, 32, 8, 1, 32768, 2048, 0}, {"kf16v4", 128, 32, 8, 1, 32768, 2048, 0}, {"k4v4", 96, 32, 8, 1, 32768, 512, 0},
    {"k4v4", 128, 32, 8, 1, 8192, 17, 0},    {"k4v4", 128, 32, 8, 1, 32768, 64, 0},  {"k4v4", 128, 32, 8, 8, 32768, 128, 0},
    {"k8v8", 128, 32, 8, 8, 32768, 64, 0},
};

/* FORMAT,DIM,Q_HEADS,KV_HEADS,SEQS,TOKENS,QUERIES[,long], e.g. k4v4,128,32,8,8,32768,16,long. */
static bool parse_shape(const char *text, shape_case *s, char (&format)[16])
{
    int end = 0;
    *s = {};
    s->format = format;
    if (sscanf(text, "%15[^,],%u,%u,%u,%u,%u,%u%n", format, &s->dim, &s->q_heads, &s->kv_heads, &s->batch, &s->tokens, &s->queries,
               &end) != 7)
        return false;
    s->long_seqs = !strcmp(text + end, ",long");
    return (s->long_seqs || !text[end]) && s->kv_heads && s->batch && s->tokens && s->queries && s->tokens < 1u << 20 &&
           s->batch <= 4096 && s->queries <= 65536 && s->q_heads <= 1024 && s->dim <= 512;
}

static void bench_shape(timer &t, aura_ctx *ctx, const shape_case &s)
{
    if (s.queries > FEW_QUERIES)
        bench_prefill(t, ctx, s);
    else
        bench_case(t, ctx, s, std::vector<uint32_t>(s.batch, s.tokens));
}

/* What the command line asks for. */
struct asked_for {
    size_t only = SIZE_MAX; /* one row of the table */
    bool rows = false;
    std::vector<const char *> shapes; /* beside the row, or alone */
};

static bool parse_args(int argc, char **argv, asked_for &asked)
{
    shape_case shape;
    char format[16];
    for (int i = 0; i < argc; i++)
        if (!strcmp(argv[i], "--json"))
            out.as = ROWS_JSON;
        else if (!strcmp(argv[i], "--csv"))
            out.as = out.as == ROWS_JSON ? ROWS_JSON : ROWS_CSV;
        else if (!strcmp(argv[i], "rows"))
            asked.rows = true;
        else if (argv[i][0] >= '0' && argv[i][0] <= '9')
            asked.only = (size_t)atoi(argv[i]);
        else if (!strcmp(argv[i], "--shape") && i + 1 < argc && parse_shape(argv[i + 1], &shape, format))
            asked.shapes.push_back(argv[++i]);
        else
            return fprintf(stderr, "aura bench: %s: with --device cuda there are rows, a ROW (a number), --json, --csv and --shape "
                           "FORMAT,DIM,Q_HEADS,KV_HEADS,SEQS,TOKENS,QUERIES[,long]\n", argv[i]), false;
    return true;
}

/* All rows of the table, or one. */
static void bench_all(timer &t, aura_ctx *ctx, size_t only)
{
    for (size_t i = 0; i < sizeof table / sizeof *table; i++)
        if (only == SIZE_MAX || only == i)
            bench_case(t, ctx, table[i], std::vector<uint32_t>(table[i].batch, table[i].tokens));
    for (const char *format : {"k4v4", "k3v3", "kt2vt2", "kt3vt3", "kt4vt4"})
        for (bool metric : {false, true})
            if (only == SIZE_MAX || only == 100)
                bench_append(t, ctx, format, metric);
    for (size_t i = 0; i < sizeof several / sizeof *several; i++)
        if (only == SIZE_MAX || only == 300 || only == 301 + i)
            bench_case(t, ctx, several[i], std::vector<uint32_t>(several[i].batch, several[i].tokens));
    if (only == SIZE_MAX || only == 102)
        bench_prompt(t, ctx);
    for (uint32_t rotated = 0; rotated < 2; rotated++)
        if (only == SIZE_MAX || only == 103)
            bench_unpack(t, ctx, {"k4v4", 128, 32, 8, 8, 32768, 1, 0}, rotated);
    if (only == SIZE_MAX || only == 101)
        bench_case(t, ctx, {"k4v4", 128, 32, 8, 8, 65536, 1, 0}, {1, 65536, 50000, 1000, 65536, 40000, 30071, 10000});
    for (size_t i = 0; i < sizeof prefills / sizeof *prefills; i++)
        if (only == SIZE_MAX || only == 200 || only == 201 + i)
            bench_prefill(t, ctx, prefills[i]);
}

extern "C" int cuda_bench(int argc, char **argv)
{
    asked_for asked;
    if (!parse_args(argc, argv, asked))
        return 2;
    if (aura_cuda_probe(0))
        return cuda_skip(aura_last_error(), 0);
    if (asked.rows)
        return cuda_bench_rows(out.as);
    cudaDeviceProp properties;
    MUST_CUDA(cudaGetDeviceProperties(&properties, 0));
    begin_rows(&out, properties.name);
    if (!out.as)
        printf("aura %s on %s; medians of 41 runs, second cache flushed by a read\n", aura_version(), properties.name);
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *ctx;
    options.threads = 16;
    MUST(aura_ctx_create(&options, &ctx));
    timer t;
    if (asked.shapes.empty() || asked.only != SIZE_MAX)
        bench_all(t, ctx, asked.only);
    for (const char *text : asked.shapes) {
        shape_case shape;
        char format[16];
        if (parse_shape(text, &shape, format))
            bench_shape(t, ctx, shape);
    }
    end_rows(&out);
    aura_ctx_destroy(ctx);
    return 0;
}
