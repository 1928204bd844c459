/* aura check --device cuda: the device against the CPU cache (bytes and logits: equal) and against double (outputs). */
#include <cuda_fp16.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "../../src/cuda/cache.cuh"
#include "cuda_tool.h"
#include "oracle.h"
extern "C" {
#define _Alignas(n) alignas(n)
#include "../../src/ref.h"
#undef _Alignas
#include "../inputs.h"
}

static int failures, cases;

/* One case: a cache, some sequences, one call. */
struct scene {
    std::string name;
    aura_config config = AURA_CONFIG_INIT;
    std::vector<uint32_t> tokens; /* of each sequence */
    uint32_t queries = 1;
    aura_dtype q_dtype = AURA_F32, out_dtype = AURA_F32;
    uint32_t planes = 0, mask_keys = 0, not_causal = 0;
    float scale = 0, softcap = 0;
    uint64_t window = 0;
    bool sinks = false, alibi = false, balance = false;
    uint64_t seed = 1;
};

static void complain(const struct scene &s, const char *format, ...) __attribute__((format(printf, 2, 3)));
static void complain(const struct scene &s, const char *format, ...)
{
    va_list args;
    printf("FAIL %s: ", s.name.c_str());
    va_start(args, format);
    vprintf(format, args);
    va_end(args);
    printf("\n");
    fflush(stdout);
    failures++;
}

#define TRY(call)                                                                                                      \
    do {                                                                                                               \
        aura_status try_status = (call);                                                                               \
        if (try_status) {                                                                                              \
            complain(s, "%s: %s: %s", #call, aura_status_text(try_status), aura_last_error());                         \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)
#define TRY_CUDA(call)                                                                                                 \
    do {                                                                                                               \
        cudaError_t try_error = (call);                                                                                \
        if (try_error != cudaSuccess) {                                                                                \
            complain(s, "%s: %s", #call, cudaGetErrorString(try_error));                                               \
            return;                                                                                                    \
        }                                                                                                              \
    } while (0)

/* Device memory that goes with its scope; every byte is 0xff, NaN in every type, before it is written. */
struct device_array {
    void *p = NULL;
    size_t bytes;
    explicit device_array(size_t n) : bytes(n + 16)
    {
        if (cudaMalloc(&p, bytes) != cudaSuccess || cudaMemset(p, 0xff, bytes) != cudaSuccess)
            printf("FAIL no %zu bytes on the device\n", n), failures++;
    }
    device_array(const void *from, size_t n) : device_array(n)
    {
        cudaMemcpy(p, from, n, cudaMemcpyHostToDevice);
    }
    ~device_array()
    {
        cudaFree(p);
    }
};

static std::vector<uint8_t> as_type(const std::vector<float> &x, aura_dtype dtype)
{
    std::vector<uint8_t> bytes(x.size() * aura_dtype_bytes(dtype));
    for (size_t i = 0; i < x.size(); i++)
        if (dtype == AURA_F32) {
            memcpy(&bytes[4 * i], &x[i], 4);
        } else if (dtype == AURA_F16) {
            __half h = __float2half_rn(x[i]);
            memcpy(&bytes[2 * i], &h, 2);
        } else {
            uint32_t bits;
            memcpy(&bits, &x[i], 4);
            uint16_t h = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
            memcpy(&bytes[2 * i], &h, 2);
        }
    return bytes;
}

static std::vector<float> as_float(const std::vector<uint8_t> &bytes, aura_dtype dtype)
{
    std::vector<float> x(bytes.size() / aura_dtype_bytes(dtype));
    for (size_t i = 0; i < x.size(); i++)
        if (dtype == AURA_F32) {
            memcpy(&x[i], &bytes[4 * i], 4);
        } else if (dtype == AURA_F16) {
            __half h;
            memcpy(&h, &bytes[2 * i], 2);
            x[i] = __half2float(h);
        } else {
            uint16_t h;
            memcpy(&h, &bytes[2 * i], 2);
            uint32_t bits = (uint32_t)h << 16;
            memcpy(&x[i], &bits, 4);
        }
    return x;
}

/* Keys with channels that stand out and an offset that drifts from page to page. */
static std::vector<float> some_tokens(uint64_t seed, uint32_t tokens, uint32_t heads, uint32_t dim, bool keys)
{
    std::vector<float> x((size_t)tokens * heads * dim);
    for (size_t i = 0; i < x.size(); i++) {
        uint32_t d = i % dim, h = i / dim % heads, t = i / dim / heads;
        float offset = keys ? (float)((d * 7 + h * 3) % 11) * 0.3f - 1.5f + (float)(t / 300) * (d % 3 ? 0.2f : -0.1f) : 0;
        x[i] = random_normal(&seed) * (keys && d % 13 == 5 ? 3.f : 1.f) + offset;
    }
    return x;
}

static bool same_bytes(const aura_cache *a, aura_seq sa, const aura_cache *b, aura_seq sb)
{
    struct aura_raw raw;
    struct aura_raw_seq ra, rb;
    aura_raw_describe(&raw, a);
    if (aura_raw_find("check", a, sa, &ra) || aura_raw_find("check", b, sb, &rb))
        return false;
    bool same = ra.len == rb.len && ra.closed == rb.closed && ra.pages == rb.pages;
    for (size_t i = 0; same && i < ra.pages; i++)
        same = !memcmp(aura_raw_page(a, sa, i), aura_raw_page(b, sb, i), raw.page_bytes);
    const aura_config *c = raw.config;
    if (same && ra.k)
        same = !memcmp(ra.k, rb.k, (size_t)c->kv_heads * raw.rows * c->k_dim * 2);
    if (same && ra.v)
        same = !memcmp(ra.v, rb.v, (size_t)c->kv_heads * raw.rows * c->v_dim * 2);
    return same;
}

/* The bytes that mean something: rows of pinned and open tokens, codes and scales of closed ones, references of pages that have
 * one. Everything else may hold anything. */
static std::string first_difference(const aura_cache *a, aura_seq sa, const aura_cache *b, aura_seq sb)
{
    struct aura_raw raw;
    struct aura_raw_seq x, y;
    aura_raw_describe(&raw, a);
    const struct aura_layout *l = raw.layout;
    if (aura_raw_find("check", a, sa, &x) || aura_raw_find("check", b, sb, &y))
        return "no such sequence";
    if (x.len != y.len || x.closed != y.closed)
        return "lengths " + std::to_string(x.len) + " " + std::to_string(x.closed) + " and " + std::to_string(y.len) + " " + std::to_string(y.closed);
    for (uint64_t t = 0; t < x.len; t++)
        for (uint32_t h = 0; h < raw.config->kv_heads; h++)
            for (int values = 0; values < 2; values++) {
                const struct aura_side *side = values ? &l->v : &l->k;
                const uint8_t *heads[2] = {aura_raw_page(a, sa, t / AURA_PAGE) + (size_t)h * l->head_bytes,
                                           aura_raw_page(b, sb, t / AURA_PAGE) + (size_t)h * l->head_bytes};
                const uint16_t *rows[2] = {values ? x.v : x.k, values ? y.v : y.k};
                const size_t tile = t / AURA_TILE % AURA_PAGE_TILES * l->tile_bytes, c = t % AURA_TILE, ring = raw.rows - raw.pinned;
                bool same = true;
                if (!rows[0]) {
                    size_t bytes = side->bytes / AURA_TILE, at = tile + (values ? l->v_at : 0) + c * bytes;
                    same = !memcmp(heads[0] + at, heads[1] + at, bytes);
                } else if (t < raw.pinned || t >= x.closed) {
                    size_t at = ((size_t)h * raw.rows + (t < raw.pinned ? ring + t : t % ring)) * side->dim;
                    same = !memcmp(rows[0] + at, rows[1] + at, side->dim * 2);
                } else {
                    size_t scale = tile + (values ? l->v_scale_at : l->k_scale_at) + 2 * c;
                    same = !memcmp(heads[0] + scale, heads[1] + scale, 2);
                    for (uint32_t d = 0; same && d < side->dim; d++) {
                        uint8_t code[2];
                        for (int i = 0; i < 2; i++) {
                            struct aura_tile one = {(const uint32_t *)(heads[i] + tile + (values ? l->v_at : 0)), NULL, NULL, side, 1};
                            code[i] = values ? aura_ref_code(&one, (uint32_t)c, d) : aura_ref_code(&one, d, (uint32_t)c);
                        }
                        same = code[0] == code[1];
                    }
                    if (!values && !(raw.config->flags & AURA_NO_REFERENCE))
                        same = same && !memcmp(heads[0] + l->reference_at, heads[1] + l->reference_at, l->reference_scale_at + 2 - l->reference_at);
                }
                if (!same)
                    return (values ? "value of token " : "key of token ") + std::to_string(t) + " head " + std::to_string(h);
            }
    return "";
}

/* A CPU cache with the sequences of the scene. */
struct filled {
    aura_ctx *ctx = NULL;
    aura_cache *cache = NULL;
    std::vector<aura_seq> seqs;
    std::vector<float> balance;
    ~filled()
    {
        aura_cache_destroy(cache);
        aura_ctx_destroy(ctx);
    }
};

static void fill(const struct scene &s, struct filled &f)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_config config = s.config;
    options.threads = 8;
    TRY(aura_ctx_create(&options, &f.ctx));
    if (s.balance) {
        for (uint32_t h = 0; h < config.kv_heads; h++)
            for (uint32_t d = 0; d < config.k_dim; d++)
                f.balance.push_back(ldexpf(1.f + 0.1f * (float)((d + h) % 7), (int)((d * 5 + h) % 4) - 2));
        config.balance = f.balance.data();
    }
    TRY(aura_cache_create(f.ctx, &config, &f.cache));
    uint32_t v_dim = config.v_dim ? config.v_dim : config.k_dim;
    for (uint32_t n : s.tokens) {
        aura_seq seq;
        TRY(aura_seq_create(f.cache, &seq));
        std::vector<float> k = some_tokens(s.seed + 2 * f.seqs.size(), n, config.kv_heads, config.k_dim, true);
        std::vector<float> v = some_tokens(s.seed + 2 * f.seqs.size() + 1, n, config.kv_heads, v_dim, false);
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = seq, job.tokens = n;
        job.k.data = k.data(), job.v.data = v.data();
        if (n)
            TRY(aura_append(f.cache, &job, 1));
        f.seqs.push_back(seq);
    }
}

/* Device cache with copies of the sequences; not in the order of their pages. */
struct device_side {
    aura_cuda_cache *cache = NULL;
    aura_cuda_workspace *workspace = NULL;
    std::vector<aura_cuda_seq> seqs;
    ~device_side()
    {
        aura_cuda_workspace_destroy(workspace);
        aura_cuda_cache_destroy(cache);
    }
};

static aura_cuda_config device_config(const struct scene &s, const struct filled &f)
{
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(f.cache, &info);
    config.cache = info.config;
    config.seqs = (uint32_t)s.tokens.size() + 1;
    size_t pages = 4;
    for (uint32_t n : s.tokens)
        pages += n / AURA_PAGE + 2;
    config.cache.budget_bytes = pages * info.page_bytes + config.seqs * (info.seq_bytes + 65536) + (1 << 20);
    return config;
}

static void upload(const struct scene &s, const struct filled &f, struct device_side &d)
{
    aura_cuda_config config = device_config(s, f);
    TRY(aura_cuda_cache_create(f.ctx, &config, &d.cache));
    d.seqs.resize(s.tokens.size());
    for (size_t i = s.tokens.size(); i-- > 0;) {
        TRY(aura_cuda_seq_create(d.cache, &d.seqs[i]));
        TRY(aura_cuda_upload(d.cache, d.seqs[i], f.cache, f.seqs[i]));
    }
    for (size_t i = 0; i < s.tokens.size(); i++) {
        aura_cache *back;
        aura_seq seq;
        TRY(aura_cache_create(f.ctx, &config.cache, &back));
        aura_status status = aura_seq_create(back, &seq);
        status = status ? status : aura_cuda_download(d.cache, d.seqs[i], back, seq);
        if (status || !same_bytes(f.cache, f.seqs[i], back, seq))
            complain(s, "sequence %zu comes back with other bytes: %s", i, status ? aura_last_error() : "");
        aura_cache_destroy(back);
    }
}

/* The worst of a case, relative to what is allowed and absolute. */
struct worst {
    double row = 0, lse = 0, ratio = 0;
};

static double unit_of(aura_dtype dtype)
{
    return dtype == AURA_F32 ? 0x1p-24 : dtype == AURA_F16 ? 0x1p-11 : 0x1p-8;
}

static void compare_row(const struct scene &s, const struct oracle_row &want, const float *got, float lse, uint32_t dim,
                        struct worst &w)
{
    double error = 0, norm = 0;
    for (uint32_t d = 0; d < dim; d++) {
        error += (got[d] - want.out[d]) * (got[d] - want.out[d]);
        norm += want.out[d] * want.out[d];
    }
    error = sqrt(error);
    double allowed = 1e-5 * want.size + want.slack + unit_of(s.out_dtype) * sqrt(norm) + 0x1p-24 * (s.out_dtype == AURA_F16) * sqrt(dim) + 1e-30;
    double lse_error = want.lse == -INFINITY ? (lse == -INFINITY ? 0 : INFINITY) : fabs(lse - want.lse) / (1 + fabs(want.lse));
    double ratio = fmax(error / allowed, lse_error / 1e-5);
    if (!(error <= INFINITY) || !(lse_error <= INFINITY))
        ratio = INFINITY; /* a NaN */
    w.row = fmax(w.row, (error - want.slack) / (want.size + 1e-30));
    w.lse = fmax(w.lse, lse_error);
    w.ratio = ratio <= w.ratio ? w.ratio : ratio;
}

static void in_parallel(size_t n, const std::function<void(size_t)> &item)
{
    std::atomic<size_t> next(0);
    std::vector<std::thread> threads;
    for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); i++)
        threads.emplace_back([&] {
            for (size_t at; (at = next++) < n;)
                item(at);
        });
    for (std::thread &t : threads)
        t.join();
}

static size_t differing_logits(const struct oracle_row &want, const float *got, const aura_cache *cache,
                               aura_seq seq, uint64_t first, uint64_t end)
{
    struct aura_raw raw;
    struct aura_raw_seq rs;
    size_t wrong = 0;
    aura_raw_describe(&raw, cache);
    if (aura_raw_find("check", cache, seq, &rs))
        return SIZE_MAX;
    for (uint64_t t = first > raw.pinned ? first : raw.pinned; t < rs.closed && t < end; t++)
        wrong += memcmp(&want.logit[t], &got[t], 4) != 0;
    return wrong;
}

/* What went into a call and came out of it, on the host. trace NULL: the logits are not compared. */
struct numbers_of_call {
    const float *q, *sinks, *alibi, *mask, *out, *lse, *trace;
    uint32_t longest;
};

/* All rows of a call against the oracle over these sequences of a CPU cache. wrong: logits with other bits. */
static struct worst compare_call(const struct scene &s, const aura_cache *cache, const std::vector<aura_seq> &seqs,
                                 const struct numbers_of_call &x, size_t &wrong, size_t &first_bad)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(cache, &info);
    const aura_config &c = info.config;
    const struct oracle_options o = {s.scale, s.softcap, s.window, s.sinks ? x.sinks : NULL, s.alibi ? x.alibi : NULL, NULL, s.mask_keys,
                                     s.not_causal, s.planes, s.queries};
    struct worst w;
    std::mutex lock;
    in_parallel(seqs.size() * c.kv_heads, [&](size_t item) {
        const uint32_t i = item / c.kv_heads, head = item % c.kv_heads, ratio = c.q_heads / c.kv_heads;
        struct oracle_options mine = o;
        struct oracle_head *h = oracle_head_new(cache, seqs[i], head);
        std::vector<float> logit(x.longest + 1);
        struct oracle_row want;
        want.logit = logit.data();
        mine.mask = s.mask_keys ? x.mask + (size_t)i * s.queries * s.mask_keys : NULL;
        for (uint32_t r = 0; r < s.queries * ratio; r++) {
            const uint32_t query = r / ratio, q_head = head * ratio + r % ratio;
            const size_t row = ((size_t)i * s.queries + query) * c.q_heads + q_head;
            oracle_attend(&want, h, x.q + row * c.k_dim, query, q_head, &mine);
            std::lock_guard<std::mutex> hold(lock);
            const double before = w.ratio;
            compare_row(s, want, x.out + row * c.v_dim, x.lse[row], c.v_dim, w);
            if (w.ratio > 1 && before <= 1)
                first_bad = row;
            if (x.trace && c.format.k <= AURA_KIND_B8 && (s.window == 0 || s.queries == 1)) {
                uint64_t begin = s.window && s.window < s.tokens[i] ? s.tokens[i] - s.window : 0;
                wrong += differing_logits(want, x.trace + row * x.longest, cache, seqs[i], begin, s.tokens[i]);
            }
        }
        oracle_head_free(h);
    });
    return w;
}

/* A case with a cache on either side; false where something failed already. */
static bool begin_case(const struct scene &s, struct filled &f, struct device_side &d)
{
    int before = failures;
    cases++;
    fill(s, f);
    if (failures == before)
        upload(s, f, d);
    return failures == before;
}

static void run_scene(const struct scene &s)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    if (!begin_case(s, f, d))
        return;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(f.cache, &info);
    const aura_config &c = info.config;
    const uint32_t n = (uint32_t)s.tokens.size(), rows = n * s.queries * c.q_heads;
    uint32_t longest = 1;
    for (uint32_t t : s.tokens)
        longest = t > longest ? t : longest;
    uint64_t seed = s.seed + 99;
    std::vector<float> q((size_t)rows * c.k_dim), sinks, alibi, mask;
    for (float &x : q)
        x = random_normal(&seed);
    std::vector<uint8_t> q_bytes = as_type(q, s.q_dtype);
    q = as_float(q_bytes, s.q_dtype);
    for (uint32_t h = 0; h < c.q_heads; h++) {
        sinks.push_back(random_normal(&seed) * 2);
        alibi.push_back(-0.02f * (float)(h + 1) / (float)c.q_heads);
    }
    for (size_t i = 0; i < (size_t)n * s.queries * s.mask_keys; i++)
        mask.push_back(pick(&seed, 4) == 0 ? -INFINITY : random_normal(&seed));
    device_array dq(q_bytes.data(), q_bytes.size()), out((size_t)rows * c.v_dim * aura_dtype_bytes(s.out_dtype)), lse(rows * 4);
    device_array dsinks(sinks.data(), sinks.size() * 4), dalibi(alibi.data(), alibi.size() * 4), dmask(mask.data(), mask.size() * 4);
    device_array ids(d.seqs.data(), n * 4), trace((size_t)rows * longest * 4);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.queries = s.queries;
    args.q.data = dq.p, args.q.dtype = s.q_dtype;
    args.out.data = out.p, args.out.dtype = s.out_dtype;
    args.lse = (float *)lse.p;
    args.mask = s.mask_keys ? (const float *)dmask.p : NULL, args.mask_keys = s.mask_keys;
    args.scale = s.scale, args.softcap = s.softcap, args.window = s.window;
    args.sinks = s.sinks ? (const float *)dsinks.p : NULL, args.alibi = s.alibi ? (const float *)dalibi.p : NULL;
    args.not_causal = s.not_causal, args.planes = s.planes;
    TRY(aura_cuda_workspace_create(d.cache, n, s.queries, &d.workspace));
    aura_cuda_trace(d.workspace, (float *)trace.p, longest);
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    std::vector<uint8_t> got_bytes((size_t)rows * c.v_dim * aura_dtype_bytes(s.out_dtype)), again(got_bytes.size());
    std::vector<float> got_lse(rows), got_trace((size_t)rows * longest);
    TRY_CUDA(cudaMemcpy(got_bytes.data(), out.p, got_bytes.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(got_lse.data(), lse.p, rows * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(got_trace.data(), trace.p, got_trace.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<float> got = as_float(got_bytes, s.out_dtype);
    aura_cuda_trace(d.workspace, NULL, 0);
    for (int i = 0; i < 3; i++) { /* the same call gives the same bits */
        TRY_CUDA(cudaMemset(out.p, 0xff, out.bytes));
        TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
        TRY_CUDA(cudaMemcpy(again.data(), out.p, again.size(), cudaMemcpyDeviceToHost));
        if (memcmp(again.data(), got_bytes.data(), again.size()))
            complain(s, "run %d gives other bits", i + 2);
    }
    struct numbers_of_call n_call = {q.data(), sinks.data(), alibi.data(), mask.data(), got.data(), got_lse.data(), got_trace.data(), longest};
    size_t wrong = 0, first_bad = 0;
    struct worst w = compare_call(s, f.cache, f.seqs, n_call, wrong, first_bad);
    if (wrong)
        complain(s, "%zu logits have other bits than on the CPU", wrong);
    if (w.ratio > 1)
        complain(s, "row %zu, the first: error %.2e of the sum of weight * |value|, lse %.2e; %.1f times what is allowed", first_bad,
                 w.row, w.lse, w.ratio);
    if (failures == before)
        printf("ok   %-58s error %8.1e  lse %8.1e  logits and bytes equal\n", s.name.c_str(), w.row, w.lse);
    fflush(stdout);
}

/* ---- append ---------------------------------------------------------------------------------------------------------- */

/* Tokens in chunks of all sizes on the device: the bytes of the CPU. Then, as a graph that is replayed, one by one. */
static void run_append(const struct scene &s, uint32_t most)
{
    struct filled f;
    struct device_side d;
    int before = failures;
    cases++;
    fill(s, f);
    if (failures > before)
        return;
    aura_cuda_config config = device_config(s, f);
    const aura_config &c = config.cache;
    const uint32_t n = (uint32_t)s.tokens.size();
    uint32_t longest = 1;
    TRY(aura_cuda_cache_create(f.ctx, &config, &d.cache));
    std::vector<std::vector<uint8_t>> k, v;
    const size_t k_row = (size_t)c.kv_heads * c.k_dim * aura_dtype_bytes(s.q_dtype), v_row = (size_t)c.kv_heads * c.v_dim * aura_dtype_bytes(s.q_dtype);
    for (uint32_t i = 0; i < n; i++) {
        aura_cuda_seq seq;
        TRY(aura_cuda_seq_create(d.cache, &seq));
        TRY(aura_cuda_seq_reserve(d.cache, seq, s.tokens[i]));
        d.seqs.push_back(seq);
        k.push_back(as_type(some_tokens(s.seed + 2 * i, s.tokens[i], c.kv_heads, c.k_dim, true), s.q_dtype));
        v.push_back(as_type(some_tokens(s.seed + 2 * i + 1, s.tokens[i], c.kv_heads, c.v_dim, false), s.q_dtype));
        longest = s.tokens[i] > longest ? s.tokens[i] : longest;
    }
    device_array dk(n * most * k_row), dv(n * most * v_row), ids(d.seqs.data(), n * 4), counts(n * 4);
    std::vector<uint32_t> done(n), count(n);
    uint64_t seed = s.seed + 7;
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.tokens = most, args.counts = (const uint32_t *)counts.p;
    args.k.data = dk.p, args.v.data = dv.p, args.k.dtype = args.v.dtype = s.q_dtype;
    cudaStream_t stream;
    cudaGraph_t graph = NULL;
    cudaGraphExec_t replay = NULL;
    TRY_CUDA(cudaStreamCreate(&stream));
    for (int step = 0;; step++) {
        uint32_t left = 0;
        for (uint32_t i = 0; i < n; i++) {
            left += s.tokens[i] - done[i];
            count[i] = pick(&seed, 3) == 0 ? 1 : pick(&seed, (int)most + 1);
            count[i] = count[i] < s.tokens[i] - done[i] ? count[i] : s.tokens[i] - done[i];
            TRY_CUDA(cudaMemcpy((char *)dk.p + i * most * k_row, k[i].data() + done[i] * k_row, count[i] * k_row, cudaMemcpyHostToDevice));
            TRY_CUDA(cudaMemcpy((char *)dv.p + i * most * v_row, v[i].data() + done[i] * v_row, count[i] * v_row, cudaMemcpyHostToDevice));
            done[i] += count[i];
        }
        if (!left)
            break;
        TRY_CUDA(cudaMemcpy(counts.p, count.data(), n * 4, cudaMemcpyHostToDevice));
        if (step == 2) { /* from here on it is a graph */
            TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
            TRY(aura_cuda_append(d.cache, &args, stream));
            TRY_CUDA(cudaStreamEndCapture(stream, &graph));
            TRY_CUDA(cudaGraphInstantiate(&replay, graph, 0));
        }
        if (replay)
            TRY_CUDA(cudaGraphLaunch(replay, stream));
        else
            TRY(aura_cuda_append(d.cache, &args, stream));
        TRY_CUDA(cudaStreamSynchronize(stream));
    }
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    for (uint32_t i = 0; i < n; i++) {
        aura_cache *back;
        aura_seq seq;
        aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info));
        TRY(aura_cache_create(f.ctx, &config.cache, &back));
        TRY(aura_seq_create(back, &seq));
        TRY(aura_cuda_download(d.cache, d.seqs[i], back, seq));
        std::string where = first_difference(f.cache, f.seqs[i], back, seq);
        if (!where.empty() || info.status)
            complain(s, "sequence %u, %u tokens: differs at: %s; status %u", i, s.tokens[i], where.c_str(), info.status);
        aura_cache_destroy(back);
    }
    if (failures == before)
        printf("ok   %-58s append: bytes equal\n", s.name.c_str());
    fflush(stdout);
}

/* A graph of one append and one attend, replayed while the sequences grow: what the last replay gives is attention over what is
 * stored by then. */
static void run_graph()
{
    struct scene s;
    s.name = "graph of append and attend, 90 replays";
    s.config.q_heads = 8, s.config.kv_heads = 2, s.config.k_dim = 128;
    s.tokens = {200, 7};
    const uint32_t n = 2, steps = 90, longest = 200 + steps;
    struct filled f;
    struct device_side d;
    const int before = failures;
    if (!begin_case(s, f, d))
        return;
    for (uint32_t i = 0; i < n; i++)
        TRY(aura_cuda_seq_reserve(d.cache, d.seqs[i], longest));
    const size_t token = 2 * 128;
    std::vector<float> x = some_tokens(5, n * steps, 2, 128, false), q((size_t)n * 8 * 128);
    uint64_t seed = 17;
    for (float &y : q)
        y = random_normal(&seed);
    device_array ids(d.seqs.data(), n * 4), dx(n * token * 4), dq(q.data(), q.size() * 4), out(q.size() * 4), lse(n * 8 * 4);
    aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
    append.seqs = (const aura_cuda_seq *)ids.p, append.n_seqs = n, append.tokens = 1;
    append.k.data = append.v.data = dx.p;
    aura_cuda_attend_args attend = AURA_CUDA_ATTEND_ARGS_INIT;
    attend.seqs = (const aura_cuda_seq *)ids.p, attend.n_seqs = n, attend.queries = 1;
    attend.q.data = dq.p, attend.out.data = out.p, attend.lse = (float *)lse.p;
    TRY(aura_cuda_workspace_create(d.cache, n, 1, &d.workspace));
    cudaStream_t stream;
    cudaGraph_t graph;
    cudaGraphExec_t replay;
    TRY_CUDA(cudaStreamCreate(&stream));
    TRY_CUDA(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
    TRY(aura_cuda_append(d.cache, &append, stream));
    TRY(aura_cuda_attend(d.cache, d.workspace, &attend, stream));
    TRY_CUDA(cudaStreamEndCapture(stream, &graph));
    TRY_CUDA(cudaGraphInstantiate(&replay, graph, 0));
    for (uint32_t step = 0; step < steps; step++) {
        TRY_CUDA(cudaMemcpyAsync(dx.p, x.data() + step * n * token, n * token * 4, cudaMemcpyHostToDevice, stream));
        TRY_CUDA(cudaGraphLaunch(replay, stream));
        TRY_CUDA(cudaStreamSynchronize(stream));
    }
    std::vector<float> got(q.size()), got_lse(n * 8);
    TRY_CUDA(cudaMemcpy(got.data(), out.p, got.size() * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(got_lse.data(), lse.p, got_lse.size() * 4, cudaMemcpyDeviceToHost));
    std::vector<aura_seq> back(n);
    for (uint32_t i = 0; i < n; i++) {
        aura_seq_info info = AURA_SEQ_INFO_INIT;
        TRY(aura_seq_create(f.cache, &back[i]));
        TRY(aura_cuda_download(d.cache, d.seqs[i], f.cache, back[i]));
        TRY(aura_seq_get_info(f.cache, back[i], &info));
        if (info.tokens != s.tokens[i] + steps)
            complain(s, "sequence %u has %llu tokens", i, (unsigned long long)info.tokens);
    }
    size_t wrong = 0, first_bad = 0;
    struct numbers_of_call call = {q.data(), NULL, NULL, NULL, got.data(), got_lse.data(), NULL, longest};
    struct worst w = compare_call(s, f.cache, back, call, wrong, first_bad);
    if (w.ratio > 1)
        complain(s, "error %.2e, %.1f times what is allowed", w.row, w.ratio);
    cudaGraphExecDestroy(replay);
    cudaGraphDestroy(graph);
    cudaStreamDestroy(stream);
    if (failures == before)
        printf("ok   %-58s error %8.1e\n", s.name.c_str(), w.row);
}

/* Bad tokens and a reservation that ends: nothing is stored, the others go on, the status stays until it is cleared. */
static void run_refused()
{
    struct scene s;
    s.name = "append refused";
    s.config.q_heads = s.config.kv_heads = 2, s.config.k_dim = 128;
    s.tokens = {250, 250};
    struct filled f;
    struct device_side d;
    const int before = failures;
    if (!begin_case(s, f, d))
        return;
    const uint32_t most = 20;
    std::vector<float> x((size_t)2 * most * 2 * 128, 0.5f);
    device_array ids(d.seqs.data(), 8), v(x.data(), x.size() * 4);
    x[(size_t)(most + 2) * 2 * 128 + 130] = NAN; /* token 2 of the second sequence, head 1 */
    device_array k(x.data(), x.size() * 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 2, args.tokens = 3;
    args.k.data = k.p, args.v.data = v.p;
    args.k.seq_stride = args.v.seq_stride = most * 2 * 128;
    aura_cuda_seq_info info[2] = {AURA_CUDA_SEQ_INFO_INIT, AURA_CUDA_SEQ_INFO_INIT};
    TRY(aura_cuda_append(d.cache, &args, NULL));
    for (int i = 0; i < 2; i++)
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info[i]));
    if (info[0].tokens != 253 || info[0].status || info[1].tokens != 250 || info[1].status != AURA_CUDA_BAD_VALUE)
        complain(s, "after a NaN: %llu tokens, status %u; %llu tokens, status %u", (unsigned long long)info[0].tokens, info[0].status,
                 (unsigned long long)info[1].tokens, info[1].status);
    args.k.data = v.p, args.tokens = 4; /* good now; beyond the reservation of the first, and the second is still marked */
    TRY(aura_cuda_append(d.cache, &args, NULL));
    for (int i = 0; i < 2; i++)
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info[i]));
    if (info[0].tokens != 253 || info[0].status != AURA_CUDA_OUT_OF_PAGES || info[1].tokens != 250)
        complain(s, "beyond the reservation: %llu tokens, status %u; %llu tokens", (unsigned long long)info[0].tokens, info[0].status,
                 (unsigned long long)info[1].tokens);
    for (int i = 0; i < 2; i++) {
        TRY(aura_cuda_seq_clear_status(d.cache, d.seqs[i]));
        TRY(aura_cuda_seq_reserve(d.cache, d.seqs[i], 300));
    }
    TRY(aura_cuda_append(d.cache, &args, NULL));
    for (int i = 0; i < 2; i++)
        TRY(aura_cuda_seq_get_info(d.cache, d.seqs[i], &info[i]));
    if (info[0].tokens != 257 || info[0].status || info[1].tokens != 254 || info[1].status)
        complain(s, "cleared: %llu tokens, status %u; %llu tokens, status %u", (unsigned long long)info[0].tokens, info[0].status,
                 (unsigned long long)info[1].tokens, info[1].status);
    if (failures == before)
        printf("ok   %s\n", s.name.c_str());
}

/* ---- the list ------------------------------------------------------------------------------------------------------- */

static struct scene scene_of(uint32_t k, uint32_t v, uint32_t dim, uint32_t q_heads, uint32_t kv_heads, std::vector<uint32_t> tokens)
{
    struct scene s;
    char name[64], format[16];
    s.config.format.k = (aura_kind)k, s.config.format.v = (aura_kind)v;
    s.config.k_dim = dim;
    s.config.q_heads = q_heads, s.config.kv_heads = kv_heads;
    s.config.seed = 11;
    s.tokens = tokens;
    aura_format_name(s.config.format, format);
    snprintf(name, sizeof name, "%s d%u %u/%u", format, dim, q_heads, kv_heads);
    s.name = name;
    return s;
}

static void named(struct scene s, const char *what)
{
    s.name += std::string(" ") + what;
    run_scene(s);
}

/* What every fused format and dim goes through. */
static void check_format(uint32_t kind, uint32_t dim)
{
    for (uint32_t planes = kind >= 6 ? 2 : 1; planes <= 2; planes++) {
        struct scene s = scene_of(kind, kind, dim, 8, 2, {1000, 47, 3, 300, 0, 2100});
        s.planes = planes;
        s.name += planes == 1 ? " p1" : " p2";
        s.balance = true;
        s.seed = kind * 100 + dim;
        named(s, "ragged");
        s.config.q_heads = 16;
        s.tokens = {700, 33, 64};
        named(s, "GQA 8");
        s.config.q_heads = 6, s.queries = 4;
        named(s, "GQA 3, 4 queries");
        s.config.q_heads = 2, s.queries = 16, s.q_dtype = s.out_dtype = AURA_F16;
        named(s, "GQA 1, 16 queries, f16");
    }
}

static void check_options()
{
    struct scene base = scene_of(4, 4, 128, 10, 2, {900, 130, 5}), s;
    s = base, s.sinks = true, named(s, "sinks");
    s = base, s.window = 100, named(s, "window 100");
    s = base, s.window = 100, s.queries = 5, named(s, "window 100, 5 queries");
    s = base, s.window = 1, named(s, "window 1");
    s = base, s.softcap = 5, named(s, "softcap");
    s = base, s.alibi = true, s.queries = 3, named(s, "ALiBi, 3 queries");
    s = base, s.mask_keys = 5, s.queries = 3, named(s, "mask of 5 keys, 3 queries");
    s = base, s.not_causal = 1, s.queries = 3, named(s, "not causal");
    s = base, s.scale = 0.5f, s.out_dtype = AURA_BF16, s.q_dtype = AURA_BF16, named(s, "scale 0.5, bf16");
    s = base, s.sinks = s.alibi = true, s.softcap = 8, s.window = 300, s.queries = 2, s.mask_keys = 4, named(s, "everything");
    static const uint32_t flags[] = {AURA_NO_REFERENCE, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE | AURA_NO_OPEN, AURA_NO_SEARCH};
    for (uint32_t f : flags) {
        s = base, s.config.flags = f;
        named(s, ("flags " + std::to_string(f)).c_str());
    }
    s = base, s.config.q_heads = 40, s.tokens = {513}, named(s, "GQA 20");
    s = base, s.config.q_heads = s.config.kv_heads = 1, s.tokens = {20000}, named(s, "one head, long");
    s = base, s.tokens.assign(100, 40), named(s, "100 sequences");
}

/* Every pair of kinds, every dim, through the general kernel; and planes that the fused kernels do not have. */
static void check_general()
{
    static const uint32_t kinds[] = {2, 3, 4, 5, 6, 8, 9, 10, 11}, dims[] = {64, 80, 96, 112, 128, 192, 256, 512};
    uint32_t i = 0;
    for (uint32_t k : kinds)
        for (uint32_t v : kinds) {
            struct scene s = scene_of(k, v, dims[i % 8], 6, 2, {330, 40, 1});
            s.config.v_dim = dims[(i * 3 + 1) % 8];
            s.balance = k <= 8 && i % 2, s.planes = i % 3, s.queries = 1 + i % 5, s.seed = 700 + i;
            s.sinks = i % 4 == 1, s.alibi = i % 5 == 2, s.window = i % 7 == 3 ? 70 : 0, s.softcap = i % 6 == 4 ? 5.f : 0;
            s.mask_keys = i % 9 == 5 ? 1 : 0, s.not_causal = i % 8 == 6;
            s.q_dtype = (aura_dtype)(i % 3), s.out_dtype = (aura_dtype)(i / 3 % 3);
            s.name += "/" + std::to_string(s.config.v_dim) + " p" + std::to_string(s.planes) + " q" + std::to_string(s.queries);
            named(s, "general");
            i++;
        }
    for (uint32_t dim : dims) {
        struct scene s = scene_of(4, 2, dim, 8, 2, {1200, 31, 257});
        named(s, "general, longer");
    }
    struct scene s = scene_of(8, 8, 128, 8, 2, {700, 33});
    s.planes = 1;
    named(s, "p1 general");
}

/* What the CPU cache can do and the device cannot is refused; pages that sequences share are copied, and never written to. */
static void run_shared()
{
    struct scene s;
    s.name = "shared pages, windows, slots";
    s.config.q_heads = s.config.kv_heads = 2, s.config.k_dim = 128;
    s.tokens = {700};
    struct filled f;
    struct device_side d;
    int before = failures;
    cases++;
    fill(s, f);
    aura_seq fork, copy;
    TRY(aura_seq_reserve(f.cache, f.seqs[0], 700));
    TRY(aura_seq_fork(f.cache, f.seqs[0], 700, &fork));
    upload(s, f, d);
    if (failures > before)
        return;
    TRY(aura_seq_create(f.cache, &copy));
    TRY(aura_cuda_download(d.cache, d.seqs[0], f.cache, copy)); /* a copy of its own, to compare with */
    TRY(aura_truncate(f.cache, f.seqs[0], 0)); /* its reserved pages are the fork's too */
    aura_cuda_seq other;
    TRY(aura_cuda_seq_create(d.cache, &other));
    if (!aura_cuda_download(d.cache, d.seqs[0], f.cache, fork))
        complain(s, "a sequence with tokens was written to");
    TRY(aura_cuda_download(d.cache, other, f.cache, f.seqs[0])); /* nothing */
    TRY(aura_cuda_download(d.cache, d.seqs[0], f.cache, f.seqs[0]));
    if (!same_bytes(f.cache, copy, f.cache, fork) || !same_bytes(f.cache, copy, f.cache, f.seqs[0]))
        complain(s, "a fork changed");
    for (int slots = 0; slots < 2; slots++) {
        aura_cuda_config config = device_config(s, f);
        aura_cuda_cache *refused = NULL;
        aura_cache *cpu;
        aura_config shape = s.config;
        (slots ? shape.slots : shape.window) = (slots ? config.cache.slots : config.cache.window) = 4096;
        aura_status status = aura_cuda_cache_create(f.ctx, &config, &refused);
        if (status != AURA_UNSUPPORTED || !strstr(aura_last_error(), slots ? "slots" : "window"))
            complain(s, "create: %s: %s", aura_status_text(status), aura_last_error());
        TRY(aura_cache_create(f.ctx, &shape, &cpu));
        status = aura_cuda_upload(d.cache, other, cpu, 0);
        if (status != AURA_UNSUPPORTED)
            complain(s, "upload: %s: %s", aura_status_text(status), aura_last_error());
        aura_cache_destroy(cpu);
    }
    if (failures == before)
        printf("ok   %s\n", s.name.c_str());
}

static void check_append()
{
    static const uint32_t pairs[][2] = {{4, 4}, {3, 3}, {2, 5}, {5, 2}, {6, 6}, {8, 8}, {4, 10}, {11, 3}, {9, 8}, {10, 10}};
    static const uint32_t dims[] = {128, 64, 80, 96, 112, 192, 256, 512};
    for (const uint32_t *p : pairs)
        for (uint32_t dim : {128, 80}) {
            struct scene s = scene_of(p[0], p[1], dim, 2, 2, {600, 31, 290});
            s.balance = p[0] <= 8, s.seed = p[0] * 10 + p[1];
            run_append(s, 70);
        }
    for (uint32_t dim : dims) {
        struct scene s = scene_of(4, 4, dim, 2, 2, {300, 64});
        run_append(s, 40);
    }
    static const uint32_t flags[] = {AURA_NO_REFERENCE, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE | AURA_NO_OPEN, AURA_NO_SEARCH};
    for (uint32_t f : flags) {
        struct scene s = scene_of(4, 4, 128, 2, 2, {300, 64});
        s.config.flags = f;
        s.name += " flags " + std::to_string(f);
        run_append(s, 40);
    }
    run_refused();
    run_shared();
    run_graph();
}

extern "C" void cuda_list(void)
{
    cudaDeviceProp p;
    if (aura_cuda_probe(0) || cudaGetDeviceProperties(&p, 0) != cudaSuccess)
        printf("  CUDA: skipped: %s\n", aura_last_error());
    else
        printf("  CUDA: %s, compute capability %d.%d, %d multiprocessors\n", p.name, p.major, p.minor, p.multiProcessorCount);
}

extern "C" int cuda_check(int argc, char **argv)
{
    const std::string only = argc > 0 ? argv[0] : "";
    if (aura_cuda_probe(0)) {
        printf("skip CUDA: %s\n", aura_last_error());
        return 0;
    }
    cudaDeviceProp properties;
    cudaGetDeviceProperties(&properties, 0);
    printf("aura %s on %s, %d multiprocessors\n", aura_version(), properties.name, properties.multiProcessorCount);
    for (uint32_t kind : {4, 3, 5, 6, 8})
        for (uint32_t dim : {128, 64, 256})
            if (only.empty() || only == "formats")
                check_format(kind, dim);
    if (only.empty() || only == "options")
        check_options();
    if (only.empty() || only == "general")
        check_general();
    if (only.empty() || only == "append")
        check_append();
    printf("%d cases, %d failures\n", cases, failures);
    return failures ? 1 : 0;
}
