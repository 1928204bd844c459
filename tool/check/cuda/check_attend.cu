/* Attention on the device: logits have the CPU's bits, outputs are near to those in double. */
#include <math.h>
#include <string.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <thread>

#include "check.cuh"

static double unit_of(aura_dtype dtype)
{
    return dtype == AURA_F32 ? 0x1p-24 : dtype == AURA_F16 ? 0x1p-11 : 0x1p-8;
}

bool has_many_queries(const struct scene &s)
{
    return s.queries > FEW_QUERIES;
}

/* How many of a row's queries a sequence has. */
static uint32_t count_of(const struct scene &s, size_t seq)
{
    return s.counts.empty() ? s.queries - (s.starts.empty() ? 0 : s.starts[seq]) : s.counts[seq];
}

/* Whether the last attention of the case was by warp groups: its weights are f16, not integers, and its logits are computed by
 * fused operations. */
static bool was_wide()
{
    return last_kernel().find("attend_wide") != std::string::npos;
}

/* What the kernel had: some of those by warp groups have more than was asked for. */
static uint32_t planes_of(const struct scene &s)
{
    return was_wide() && last_kernel().find("_p2_") != std::string::npos ? 2 : s.planes;
}

/* What rows of more than 16 queries may be off, of |out|, and their lse: from images; from codes with both planes. */
struct allowed {
    double row, all, lse;
};

static struct allowed allowed_to_many()
{
    return last_kernel().find("prefill") != std::string::npos ? allowed{5e-3, 1e-3, 5e-3} : allowed{2e-3, 5e-4, 1e-4};
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
    const double weights = has_many_queries(s) ? allowed_to_many().row * sqrt(norm)
                                               : (was_wide() ? 0x1p-11 : 1e-5) * want.size + want.slack;
    double allowed = weights + unit_of(s.out_dtype) * sqrt(norm) +
                     0x1p-24 * (s.out_dtype == AURA_F16) * sqrt(dim) + 1e-30;
    double lse_error = want.lse == -INFINITY ? (lse == -INFINITY ? 0 : INFINITY) : fabs(lse - want.lse) / (1 + fabs(want.lse));
    double ratio = fmax(error / allowed, lse_error / (has_many_queries(s) ? allowed_to_many().lse : 1e-5));
    w.error2 += error * error, w.norm2 += norm;
    if (!(error <= INFINITY) || !(lse_error <= INFINITY))
        ratio = INFINITY; /* a NaN */
    w.row = fmax(w.row, has_many_queries(s) ? error / (sqrt(norm) + 1e-30) : (error - want.slack) / (want.size + 1e-30));
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

/* Two fused operations in place of three that round: the last bits of the largest. */
static bool is_same_logit(float want, float got, float largest)
{
    return was_wide() ? fabsf(want - got) <= 0x1p-21f * largest : memcmp(&want, &got, 4) == 0;
}

static size_t differing_logits(const struct oracle_row &want, const float *got, const aura_cache *cache,
                               aura_seq seq, uint64_t first, uint64_t end)
{
    float largest = 0;
    struct aura_backend_cache facts;
    struct aura_backend_seq rs;
    size_t wrong = 0;
    aura_backend_describe(&facts, cache);
    if (aura_backend_find("check", cache, seq, &rs))
        return SIZE_MAX;
    for (uint64_t t = 0; t < rs.len; t++)
        largest = fmaxf(largest, fabsf(want.logit[t]));
    for (uint64_t t = first > facts.pinned ? first : facts.pinned; t < rs.closed && t < end; t++)
        wrong += !is_same_logit(want.logit[t], got[t], largest);
    return wrong;
}

struct worst compare_call(const struct scene &s, const aura_cache *cache, const std::vector<aura_seq> &seqs,
                                 const struct numbers_of_call &x, size_t &wrong, size_t &first_bad)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(cache, &info);
    const aura_config &c = info.config;
    const uint64_t window = s.window ? s.window : c.window;
    const struct oracle_options o = {s.scale, s.softcap, window, s.sinks ? x.sinks : NULL, s.alibi ? x.alibi : NULL, NULL,
                                     s.mask_keys, s.not_causal, planes_of(s), s.queries, has_many_queries(s), was_wide(), NULL,
                                     NULL};
    struct worst w;
    std::mutex lock;
    in_parallel(seqs.size() * c.kv_heads, [&](size_t item) {
        const uint32_t i = item / c.kv_heads, head = item % c.kv_heads, ratio = c.q_heads / c.kv_heads;
        struct oracle_options mine = o;
        struct oracle_head *h = oracle_head_new(cache, seqs[i], head);
        std::vector<float> logit(x.longest + 1);
        struct oracle_row want;
        want.logit = logit.data();
        const size_t first = (size_t)i * s.queries + (s.starts.empty() ? 0 : s.starts[i]); /* query */
        mine.mask = s.mask_keys ? x.mask + first * s.mask_keys : NULL;
        mine.queries = count_of(s, i);
        mine.from = s.from.empty() ? NULL : s.from.data() + first, mine.until = s.until.empty() ? NULL : s.until.data() + first;
        for (uint32_t r = 0; r < mine.queries * ratio; r++) {
            const uint32_t query = r / ratio, q_head = head * ratio + r % ratio;
            const size_t row = (first + query) * c.q_heads + q_head;
            oracle_attend(&want, h, x.q + row * c.k_dim, query, q_head, &mine);
            std::lock_guard<std::mutex> hold(lock);
            const double before = w.ratio;
            w.one += want.one, w.both += want.both;
            compare_row(s, want, x.out + row * c.v_dim, x.lse[row], c.v_dim, w);
            if (w.ratio > 1 && before <= 1)
                first_bad = row;
            if (x.trace && !has_many_queries(s) && aura_is_packed((uint32_t)c.format.k) && (window == 0 || s.queries == 1) &&
                s.from.empty() && s.until.empty()) {
                uint64_t begin = window && window < s.tokens[i] ? s.tokens[i] - window : 0;
                wrong += differing_logits(want, x.trace + row * x.longest, cache, seqs[i], begin, s.tokens[i]);
            }
        }
        oracle_head_free(h);
    });
    return w;
}

/* What a call reads besides the cache, on the host. */
struct inputs_of_call {
    std::vector<float> q, sinks, alibi, mask;
    std::vector<uint8_t> q_bytes;
};

static struct inputs_of_call some_inputs(const struct scene &s, const aura_config &c)
{
    struct inputs_of_call x;
    uint64_t seed = s.seed + 99;
    x.q.resize(s.tokens.size() * s.queries * c.q_heads * c.k_dim);
    for (float &y : x.q)
        y = random_normal(&seed);
    x.q_bytes = as_type(x.q, s.q_dtype);
    x.q = as_float(x.q_bytes, s.q_dtype);
    for (uint32_t h = 0; h < c.q_heads; h++) {
        x.sinks.push_back(random_normal(&seed) * 2);
        x.alibi.push_back(-0.02f * (float)(h + 1) / (float)c.q_heads);
    }
    for (size_t i = 0; i < s.tokens.size() * s.queries * s.mask_keys; i++)
        x.mask.push_back(pick(&seed, 4) == 0 ? -INFINITY : random_normal(&seed));
    return x;
}

/* The call of a scene, and what it needs on the device. */
struct call_of_scene {
    uint32_t n, rows, longest;
    size_t out_bytes;
    device_array q, sinks, alibi, mask, ids, counts, starts, from, until, out, lse, trace;
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    call_of_scene(const struct scene &s, const aura_config &c, const struct inputs_of_call &x, const struct device_side &d)
        : n((uint32_t)s.tokens.size()), rows(n * s.queries * c.q_heads),
          longest(std::max(1u, *std::max_element(s.tokens.begin(), s.tokens.end()))),
          out_bytes((size_t)rows * c.v_dim * aura_dtype_bytes(s.out_dtype)), q(x.q_bytes.data(), x.q_bytes.size()),
          sinks(x.sinks.data(), x.sinks.size() * 4), alibi(x.alibi.data(), x.alibi.size() * 4),
          mask(x.mask.data(), x.mask.size() * 4), ids(d.seqs.data(), n * 4),
          counts(s.counts.data(), s.counts.size() * 4), starts(s.starts.data(), s.starts.size() * 4),
          from(s.from.data(), s.from.size() * 4), until(s.until.data(), s.until.size() * 4), out(out_bytes), lse(rows * 4),
          trace(has_many_queries(s) ? 4 : (size_t)rows * longest * 4)
    {
        args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = n, args.queries = s.queries;
        args.q.data = q.p, args.q.dtype = s.q_dtype;
        args.out.data = out.p, args.out.dtype = s.out_dtype;
        args.lse = (float *)lse.p;
        args.mask = s.mask_keys ? (const float *)mask.p : NULL, args.mask_keys = s.mask_keys;
        args.scale = s.scale, args.softcap = s.softcap, args.window = s.window;
        args.sinks = s.sinks ? (const float *)sinks.p : NULL, args.alibi = s.alibi ? (const float *)alibi.p : NULL;
        args.not_causal = s.not_causal, args.planes = s.planes;
        args.counts = s.counts.empty() ? NULL : (const uint32_t *)counts.p;
        args.long_seqs = s.long_seqs;
        args.starts = s.starts.empty() ? NULL : (const uint32_t *)starts.p;
        args.from = s.from.empty() ? NULL : (const uint32_t *)from.p;
        args.until = s.until.empty() ? NULL : (const uint32_t *)until.p;
    }
};

/* What came out of the call, on the host. */
struct results_of_call {
    std::vector<uint8_t> out;
    std::vector<float> lse, trace;
};

/* The call with a trace; then three more without, which give the same bits. */
static void run_call(const struct scene &s, struct device_side &d, struct call_of_scene &call, struct results_of_call &got)
{
    const bool traced = !has_many_queries(s);
    TRY(aura_cuda_workspace_create_sized(d.cache, call.n, s.queries, s.image_bytes, &d.workspace));
    aura_cuda_trace(d.workspace, traced ? (float *)call.trace.p : NULL, call.longest);
    TRY(aura_cuda_attend(d.cache, d.workspace, &call.args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    got.out.resize(call.out_bytes), got.lse.resize(call.rows), got.trace.resize(traced ? (size_t)call.rows * call.longest : 0);
    std::vector<uint8_t> again(call.out_bytes);
    TRY_CUDA(cudaMemcpy(got.out.data(), call.out.p, got.out.size(), cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(got.lse.data(), call.lse.p, got.lse.size() * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(got.trace.data(), call.trace.p, got.trace.size() * 4, cudaMemcpyDeviceToHost));
    aura_cuda_trace(d.workspace, NULL, 0);
    for (int i = 0; i < (traced ? 3 : 1); i++) {
        TRY_CUDA(cudaMemset(call.out.p, 0xff, call.out.bytes));
        TRY(aura_cuda_attend(d.cache, d.workspace, &call.args, NULL));
        TRY_CUDA(cudaMemcpy(again.data(), call.out.p, again.size(), cudaMemcpyDeviceToHost));
        if (memcmp(again.data(), got.out.data(), again.size()))
            complain(s, "run %d gives other bits", i + 2);
    }
}

static void run_once(const struct scene &s)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    if (!begin_case(s, f, d))
        return;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(f.cache, &info);
    const struct inputs_of_call x = some_inputs(s, info.config);
    struct call_of_scene call(s, info.config, x, d);
    struct results_of_call got;
    run_call(s, d, call, got);
    if (last_kernel().find(s.kernel) == std::string::npos)
        complain(s, "%s ran, not one of %s", last_kernel().c_str(), s.kernel);
    if (failures > before)
        return;
    const std::vector<float> out = as_float(got.out, s.out_dtype);
    const struct numbers_of_call numbers = {x.q.data(), x.sinks.data(),  x.alibi.data(),   x.mask.data(),
                                            out.data(), got.lse.data(), got.trace.data(), call.longest};
    size_t wrong = 0, first_bad = 0;
    struct worst w = compare_call(s, f.cache, f.seqs, numbers, wrong, first_bad);
    if (wrong)
        complain(s, "%zu logits have other bits than on the CPU", wrong);
    if (w.ratio > 1)
        complain(s, "row %zu, the first: error %.2e of the sum of weight * |value|, lse %.2e; %.1f times what is allowed",
                 first_bad, w.row, w.lse, w.ratio);
    if (s.loud && planes_of(s) != 2 && (!w.one || !w.both))
        complain(s, "%zu logits of one plane, %zu of both: it should have either", (size_t)w.one, (size_t)w.both);
    const double all = sqrt(w.error2 / (w.norm2 + 1e-30));
    if (has_many_queries(s) && !(all <= allowed_to_many().all + unit_of(s.out_dtype)))
        complain(s, "error %.2e of |out|, all rows together", all);
    if (failures > before)
        return;
    if (has_many_queries(s))
        report("ok", s.name, "error %8.1e of |out|, worst row %8.1e  lse %8.1e", all, w.row, w.lse);
    else
        report("ok", s.name, "error %8.1e  lse %8.1e  logits %s", w.row, w.lse, was_wide() ? "near" : "and bytes equal");
}

void run_scene(const struct scene &s)
{
    run_once(s);
    if (!has_many_queries(s) || s.by_images || s.batch_invariant)
        return;
    struct scene images = s;
    images.by_images = true, images.kernel = "prefill", images.name += " from images";
    run_once(images);
}

/* ---- the list ------------------------------------------------------------------------------------------------------- */

static void named(struct scene s, const char *what)
{
    s.name += std::string(" ") + what;
    run_scene(s);
}

/* Logits of 1e9, whose last place is worth more than the room that a kernel leaves for weights. One token has all the weight, and
 * the last bits decide which; so all that is known of an output is that it is no longer than the longest value. */
static void run_steep(struct scene s, const char *what)
{
    struct filled f;
    struct device_side d;
    const int before = failures;
    s.name += std::string(" ") + what;
    s.scale = 1e8f;
    if (!begin_case(s, f, d))
        return;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(f.cache, &info);
    const aura_config &c = info.config;
    const struct inputs_of_call x = some_inputs(s, c);
    struct call_of_scene call(s, c, x, d);
    struct results_of_call got;
    run_call(s, d, call, got);
    if (failures > before)
        return;
    const size_t row = c.v_dim, all = (size_t)s.tokens[0] * c.kv_heads;
    std::vector<float> v(all * row);
    aura_view none = AURA_VIEW_INIT, to = AURA_VIEW_INIT;
    to.data = v.data();
    TRY(aura_cache_decode(f.cache, f.seqs[0], 0, s.tokens[0], &none, &to));
    const auto longest = [&](const std::vector<float> &x, size_t rows) {
        double most = 0;
        for (size_t r = 0; r < rows; r++) {
            double sum = 0;
            for (size_t i = 0; i < row; i++)
                sum += (double)x[r * row + i] * (double)x[r * row + i];
            most = sum <= most ? most : sum; /* NaN stays */
        }
        return sqrt(most);
    };
    const double most = longest(v, all), out = longest(as_float(got.out, s.out_dtype), call.rows);
    if (!(out > 0 && out <= 1.01 * most))
        complain(s, "outputs of up to %g, of values of up to %g", out, most);
    end_case(s, before, "finite");
}

/* What every fused format and dim goes through. */
static void check_format(uint32_t kind, uint32_t v_kind, uint32_t dim, uint32_t most_planes)
{
    for (uint32_t planes = aura_planes_of(kind, 0); planes <= most_planes; planes++) {
        struct scene s = scene_of(kind, v_kind, dim, 8, 2, {1000, 47, 3, 300, 0, 2100});
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
    struct scene s = scene_of(kind, v_kind, dim, 4, 2, {700, 33, 0, 1500});
    s.queries = 16, s.seed = kind * 100 + dim, s.counts = {16, 3, 16, 7}, s.window = 600, s.long_seqs = true;
    named(s, "GQA 2, 16, 3 and 7 queries, window 600, long");
    s.config.q_heads = 8, s.tokens = {900, 20}, s.counts.clear(), s.window = 0;
    named(s, "GQA 4, 16 queries, long");
    s.queries = 4, s.window = 200, s.seed++, s.sinks = true;
    named(s, "GQA 4, 4 queries, window 200, sinks, long");
}

/* Where nobody asked for planes, long keys take both and others one, in the same row and the same tile. */
static void check_loud(struct scene s)
{
    s.loud = true;
    s.tokens = {700, 33, 64, 300};
    named(s, "long keys");
    s.config.q_heads = 16, s.sinks = true;
    named(s, "long keys, GQA 8, sinks");
    s.queries = 3, s.window = 170, s.sinks = false;
    named(s, "long keys, 3 queries, window 170");
    s.long_seqs = true, s.window = 0;
    named(s, "long keys, 3 queries, long");
    s.loud_by = 1200; /* one plane is wrong by more than all weights are apart */
    named(s, "very long keys, 3 queries, long");
}

void check_formats()
{
    for (uint32_t kind : {AURA_CUDA_KINDS(AURA_DIM_ITEM)})
        for (uint32_t dim : {AURA_CUDA_DIMS(AURA_DIM_ITEM)}) {
            check_format(kind, kind, dim, 2);
            if (aura_planes_of(kind, 0) == 1)
                check_loud(scene_of(kind, kind, dim, 8, 2, {}));
        }
#define PAIR(shape, k_kind, v_kind, ...) {k_kind, v_kind},
    static const uint32_t pairs[][2] = {AURA_CUDA_PAIRS(PAIR)};
#undef PAIR
    for (const uint32_t(&p)[2] : pairs) {
        check_format(p[0], p[1], 128, 1);
        check_loud(scene_of(p[0], p[1], 128, 8, 2, {}));
    }
}

/* Padding on the left, and queries that say what they see: by every family of kernels, as many sequences as a warp has lanes and
 * more. */
static void check_ranges(const struct scene &base)
{
    struct scene s = base;
    s.queries = 5, s.starts = {0, 2, 5}, named(s, "5 queries, padding");
    s.counts = {4, 2, 0}, s.mask_keys = 7, named(s, "5 queries, padding on both sides, mask");
    for (uint32_t queries : {3u, 40u})
        for (int which = 1; which < 4; which++) {
            s = base, s.queries = queries, s.starts = {0, 1, 2}, s.seed = 7, s.window = which == 2 ? 90 : 0;
            s.alibi = which == 3;
            s.tokens = {900, 130, 60};
            uint64_t seed = queries + which;
            for (uint32_t i = 0; i < 3 * queries; i++) {
                /* The least that a query then ends at; none sees nothing but where both say so. */
                const uint32_t len = s.tokens[i / queries], own = len + i % queries + 1 - queries;
                const uint32_t until = which & 2 ? 1 + pick(&seed, (int)len) : own;
                if (which & 1)
                    s.from.push_back(which == 3 && i % 5 == 4 ? until : pick(&seed, (int)until));
                if (which & 2)
                    s.until.push_back(until);
            }
            const char *what = which == 1 ? " queries, from" : which == 2 ? " queries, until, window 90" : " queries, both, ALiBi";
            named(s, (std::to_string(queries) + what).c_str());
        }
    s = base, s.config.window = 200, s.config.max_queries = 8, s.config.keep_first = 3, s.tokens = {900}, s.queries = 3;
    s.from = {750, 900, 690}, s.until = {760, 900, 898};
    named(s, "in a window that keeps 3, from, until"); /* these see the kept ones no more */
    s.from = {}, s.until = {870, 850, 860};
    named(s, "in a window that keeps 3, until");
    s = base, s.tokens.assign(40, 70), s.queries = 2;
    for (uint32_t i = 0; i < 80; i++)
        s.from.push_back(i % 60), s.until.push_back(i % 60 + i % 11);
    named(s, "40 sequences, from, until");
    s = scene_of(4, 2, 80, 6, 2, {330, 40}), s.queries = 3, s.starts = {1, 0};
    s.from = {0, 40, 329, 5, 39, 0}, s.until = {330, 41, 330, 20, 40, 1};
    named(s, "general, from, until, padding");
}

void check_options()
{
    struct scene base = scene_of(4, 4, 128, 10, 2, {900, 130, 5}), s;
    s = base, s.sinks = true, named(s, "sinks");
    s = base, s.window = 100, named(s, "window 100");
    s = base, s.window = 100, s.queries = 5, named(s, "window 100, 5 queries");
    s = base, s.window = 100, s.queries = 2, s.counts = {2, 1, 2}, named(s, "window 100, 2 and 1 queries");
    s = base, s.window = 1, named(s, "window 1");
    s = base, s.softcap = 5, named(s, "softcap");
    s = base, s.alibi = true, s.queries = 3, named(s, "ALiBi, 3 queries");
    s = base, s.mask_keys = 5, s.queries = 3, named(s, "mask of 5 keys, 3 queries");
    s = base, s.not_causal = 1, s.queries = 3, named(s, "not causal");
    s = base, s.scale = 0.5f, s.out_dtype = AURA_BF16, s.q_dtype = AURA_BF16, named(s, "scale 0.5, bf16");
    s = base, s.sinks = s.alibi = true, s.softcap = 8, s.window = 300, s.queries = 2, s.mask_keys = 4, named(s, "everything");
    s.queries = 4, s.long_seqs = true, named(s, "everything, 4 queries, long");
    s = base, s.queries = 5, s.long_seqs = true, s.not_causal = 1, s.config.flags = AURA_NO_REFERENCE, named(s, "5 queries, long");
    s = base, s.queries = 16, s.long_seqs = true, s.softcap = 5, s.tokens = {300}, named(s, "softcap, 16 queries, long");
    s = base, s.scale = -0.3f, named(s, "scale -0.3");
    s.config.q_heads = 8, s.queries = 16, s.long_seqs = true, named(s, "scale -0.3, 16 queries, long");
    for (uint32_t kind : {4u, 8u})
        for (uint32_t planes = 0; planes < 2; planes++) { /* one: no key takes both */
            s = scene_of(kind, kind, 128, 8, 2, {900}), s.queries = 16, s.long_seqs = true, s.planes = planes;
            run_steep(s, "logits of 1e9, 16 queries, long");
            s.queries = 6, run_steep(s, "logits of 1e9, 6 queries, long");
            s.queries = 1, s.long_seqs = false, run_steep(s, "logits of 1e9");
        }
    s = base, s.config.q_heads = 16, s.queries = 16, s.counts = {16, 0, 8}, s.long_seqs = true, s.tokens = {900, 300, 700};
    named(s, "16, 0 and 8 queries, long");
    static const uint32_t flags[] = {AURA_NO_REFERENCE, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE | AURA_NO_OPEN,
                                     AURA_NO_SEARCH};
    for (uint32_t f : flags) {
        s = base, s.config.flags = f;
        named(s, ("flags " + std::to_string(f)).c_str());
    }
    check_ranges(base);
    s = base, s.config.q_heads = 40, s.tokens = {513}, named(s, "GQA 20");
    s = base, s.config.q_heads = s.config.kv_heads = 1, s.tokens = {20000}, named(s, "one head, long");
    s = base, s.tokens.assign(100, 40), named(s, "100 sequences");
}

/* Codes of 128 channels on both sides have general kernels of their own: every pair of kinds, four rows and eight. */
static void check_general_common()
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM)};
    uint32_t i = 0;
    for (uint32_t k : kinds)
        for (uint32_t v : kinds) {
            struct scene s = scene_of(k, v, 128, 8, 2, {600, 40, 257});
            s.planes = (i + i / 6) % 3, s.queries = 1 + (i / 2 + i / 6) % 2, s.seed = 900 + i, s.balance = i % 2;
            s.window = i % 7 == 3 ? 300 : 0;
            s.softcap = i % 8 == 4 ? 5.f : 0;
            if (i % 5 == 1)
                s.config.flags = AURA_NO_REFERENCE;
            s.name += " p" + std::to_string(s.planes) + " q" + std::to_string(s.queries);
            if (k != v || k == 2)
                named(s, "general");
            i++;
        }
}

/* Every pair of kinds, every dim, through the general kernel; and planes that the fused kernels do not have. */
void check_general()
{
    static const uint32_t kinds[] = {AURA_CUDA_BITS(AURA_DIM_ITEM) AURA_PLAIN(AURA_KIND_ITEM)}, dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
    const uint32_t n_dims = sizeof dims / sizeof *dims;
    uint32_t i = 0;
    for (uint32_t k : kinds)
        for (uint32_t v : kinds) {
            struct scene s = scene_of(k, v, dims[i % n_dims], 6, 2, {330, 40, 1});
            s.config.v_dim = dims[(i * 3 + 1) % n_dims];
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
    check_general_common();
    for (uint32_t kind : {2, 3, 4, 5}) {
        check_loud(scene_of(kind, kind == 2 ? 4 : 8, 128, 8, 2, {}));
        check_loud(scene_of(kind, kind == 2 ? 2 : 8, 80, 8, 2, {}));
    }
    struct scene s = scene_of(8, 8, 128, 8, 2, {700, 33});
    s.planes = 1;
    named(s, "p1 general");
}
