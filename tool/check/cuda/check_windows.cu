/* Caches with a window: pages that are used again while a stream goes on, and tokens that are gone. */
#include <math.h>

#include <algorithm>

#include "check.cuh"

static struct scene window_of(struct scene s, uint64_t window, uint32_t most, uint32_t keep_first = 0)
{
    s.config.window = window, s.config.max_queries = most, s.config.keep_first = keep_first;
    s.name += " window " + std::to_string(window) + (keep_first ? " and " + std::to_string(keep_first) : "");
    return s;
}

static size_t most_pages(const struct scene &s)
{
    return (s.config.window + std::max(s.config.max_queries, 16u) + AURA_PAGE - 1) / AURA_PAGE + 1 +
           (s.config.keep_first + AURA_PAGE - 1) / AURA_PAGE;
}

/* ---- attention ---------------------------------------------------------------------------------------------------------- */

/* One call over sequences of both sides against the oracle. */
static void attend_both(struct scene s, const struct filled &f, struct device_side &d, const struct both &b, uint32_t queries)
{
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    TRY(aura_seq_get_info(f.cache, b.cpu, &info));
    const aura_config &c = s.config;
    const uint32_t rows = queries * c.q_heads;
    s.tokens = {(uint32_t)info.tokens}, s.queries = queries;
    std::vector<float> q = some_numbers(info.tokens, (size_t)rows * c.k_dim), out(q.size()), lse(rows);
    device_array dq(q.data(), q.size() * 4), dout(out.size() * 4), dlse(rows * 4), ids(&b.gpu, 4);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.queries = queries;
    args.q.data = dq.p, args.out.data = dout.p, args.lse = (float *)dlse.p;
    if (!d.workspace)
        TRY(aura_cuda_workspace_create(d.cache, 1, 16, &d.workspace));
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    TRY_CUDA(cudaMemcpy(out.data(), dout.p, out.size() * 4, cudaMemcpyDeviceToHost));
    TRY_CUDA(cudaMemcpy(lse.data(), dlse.p, rows * 4, cudaMemcpyDeviceToHost));
    struct numbers_of_call call = {q.data(), NULL, NULL, NULL, out.data(), lse.data(), NULL, (uint32_t)info.tokens};
    size_t wrong = 0, bad = 0;
    const struct worst w = compare_call(s, f.cache, {b.cpu}, call, wrong, bad);
    if (w.ratio > 1)
        complain(s, "%llu tokens, %u queries, row %zu: %.1f times the error that is allowed", (unsigned long long)info.tokens,
                 queries, bad, w.ratio);
}

static void check_pages(const struct scene &s, const struct device_side &d, const struct both &b)
{
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &info));
    if (info.pages > most_pages(s))
        complain(s, "%zu pages for %llu tokens; the window needs %zu", info.pages, (unsigned long long)info.tokens, most_pages(s));
}

/* No page is lost, and none belongs to two. */
static void release_all(const struct scene &s, const struct device_side &d, const std::vector<struct both> &seqs)
{
    aura_cuda_cache_info info = AURA_CUDA_CACHE_INFO_INIT;
    for (const struct both &b : seqs)
        TRY(aura_cuda_seq_release(d.cache, b.gpu));
    TRY(aura_cuda_cache_get_info(d.cache, &info));
    if (info.free_pages != info.pages)
        complain(s, "%zu of %zu pages are free in the end", info.free_pages, info.pages);
}

/* ---- growing ------------------------------------------------------------------------------------------------------------- */

/* All that is to come is reserved at once, and takes no more than the window. */
static void run_growth(struct scene s)
{
    struct filled f;
    struct device_side d;
    struct both a;
    const int before = failures;
    s.tokens = {0};
    if (!begin_seqs(s, " grows", f, d, a))
        return;
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, 3000));
    uint32_t tokens = 0;
    for (uint32_t i = 0; failures == before && tokens + s.config.max_queries <= 3000; i++) {
        const uint32_t n = 1 + i * 7 % s.config.max_queries;
        append_both(s, f, d, a, n, 300 + i, 0);
        tokens += n;
        if (i % 16 == 0 || i % 16 == 7) {
            attend_both(s, f, d, a, std::min(n, 1 + i % 5));
            compare_both(s, f, d, a, "growing");
            check_pages(s, d, a);
        }
    }
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, 3100));
    check_pages(s, d, a);
    compare_both(s, f, d, a, "in the end");
    release_all(s, d, {a});
    end_case(s, before, "bytes equal");
}

/* A graph of an append and an attend goes round the ring, again and again, without the host. */
static void run_window_graph(struct scene s)
{
    struct filled f;
    struct device_side d;
    struct both a;
    const int before = failures;
    const uint32_t each = 5, steps = 300, row = s.config.kv_heads * s.config.k_dim;
    s.tokens = {0};
    if (!begin_seqs(s, " as a graph", f, d, a))
        return;
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, steps * each));
    TRY(aura_cuda_workspace_create(d.cache, 1, 16, &d.workspace));
    device_array ids(&a.gpu, 4), x(each * row * 4), q(s.config.q_heads * s.config.k_dim * 4),
        out(s.config.q_heads * s.config.k_dim * 4);
    aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
    append.seqs = (const aura_cuda_seq *)ids.p, append.n_seqs = 1, append.tokens = each;
    append.k.data = append.v.data = x.p;
    aura_cuda_attend_args attend = AURA_CUDA_ATTEND_ARGS_INIT;
    attend.seqs = append.seqs, attend.n_seqs = 1, attend.queries = 1, attend.q.data = q.p, attend.out.data = out.p;
    struct captured graph(s, [&](cudaStream_t stream) {
        TRY(aura_cuda_append(d.cache, &append, stream));
        TRY(aura_cuda_attend(d.cache, d.workspace, &attend, stream));
    });
    for (uint32_t step = 0; step < steps; step++) {
        std::vector<float> some = some_tokens(200 + step, each, s.config.kv_heads, s.config.k_dim, false);
        std::vector<float> ask = some_numbers(step, (size_t)s.config.q_heads * s.config.k_dim);
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = a.cpu, job.tokens = each, job.k.data = job.v.data = some.data();
        TRY(aura_append(f.cache, &job, 1));
        TRY_CUDA(cudaMemcpy(x.p, some.data(), some.size() * 4, cudaMemcpyHostToDevice));
        TRY_CUDA(cudaMemcpy(q.p, ask.data(), ask.size() * 4, cudaMemcpyHostToDevice));
        graph.replay(s);
    }
    attend_both(s, f, d, a, 1);
    check_pages(s, d, a);
    compare_both(s, f, d, a, "in the end");
    end_case(s, before, "bytes equal");
}

/* ---- taking back, forks -------------------------------------------------------------------------------------------------- */

/* What the CPU refuses because tokens are gone, the device does not do either, and says so. */
static void refuse_gone(const struct scene &s, const struct filled &f, struct device_side &d, const struct both &b)
{
    aura_cuda_seq_info before = AURA_CUDA_SEQ_INFO_INIT, after = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &before));
    const uint32_t too_few = (uint32_t)before.first + (uint32_t)s.config.window - 1;
    aura_cuda_seq none;
    aura_seq cpu_none;
    device_array ids(&b.gpu, 4), tokens(&too_few, 4);
    if (!before.first || too_few >= before.tokens)
        complain(s, "nothing is gone of %llu tokens", (unsigned long long)before.tokens);
    if (aura_truncate(f.cache, b.cpu, too_few) != AURA_BAD_ARGUMENT ||
        aura_seq_fork(f.cache, b.cpu, too_few, &cpu_none) != AURA_BAD_ARGUMENT)
        complain(s, "the CPU cuts to %u tokens", too_few);
    if (aura_cuda_seq_truncate(d.cache, b.gpu, too_few) != AURA_BAD_ARGUMENT ||
        aura_cuda_seq_fork(d.cache, b.gpu, too_few, &none) != AURA_BAD_ARGUMENT)
        complain(s, "cut to %u tokens, of which some are gone", too_few);
    TRY(aura_cuda_truncate(d.cache, (const aura_cuda_seq *)ids.p, (const uint32_t *)tokens.p, 1, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &after));
    if (after.status != AURA_CUDA_GONE || after.tokens != before.tokens || after.first != before.first)
        complain(s, "truncated on a stream: status %u, %llu tokens", after.status, (unsigned long long)after.tokens);
    append_both(s, f, d, b, 1, 5, AURA_CUDA_GONE);
    compare_both(s, f, d, b, "after a refusal");
}

/* As many tokens taken back as there can be: then a single query is all that the tokens are there for. */
static void ask_beyond(struct scene s, const struct filled &f, struct device_side &d, const struct both &b)
{
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &info));
    truncate_both(s, f, d, b, (uint32_t)(info.first + s.config.window), true);
    compare_both(s, f, d, b, "at the least");
    attend_both(s, f, d, b, 1);
    const uint32_t queries = 2, rows = queries * s.config.q_heads;
    std::vector<float> q(rows * s.config.k_dim, 1.f), out(q.size());
    device_array ids(&b.gpu, 4), dq(q.data(), q.size() * 4), dout(q.size() * 4);
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.queries = queries, args.q.data = dq.p, args.out.data = dout.p;
    TRY_CUDA(cudaMemset(dout.p, 0, q.size() * 4));
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    TRY_CUDA(cudaMemcpy(out.data(), dout.p, out.size() * 4, cudaMemcpyDeviceToHost));
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &info));
    if (info.status != AURA_CUDA_GONE || !std::all_of(out.begin(), out.end(), [](float x) { return isnan(x); }))
        complain(s, "a query that sees a token that is gone: status %u", info.status);
    TRY(aura_cuda_seq_clear_status(d.cache, b.gpu));
    args.window = s.config.window - 1; /* which it does not see */
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    TRY(aura_cuda_seq_get_info(d.cache, b.gpu, &info));
    args.window = s.config.window + 1;
    if (info.status || aura_cuda_attend(d.cache, d.workspace, &args, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "windows that are smaller and larger: status %u", info.status);
    aura_cuda_append_args append = AURA_CUDA_APPEND_ARGS_INIT;
    append.seqs = args.seqs, append.n_seqs = 1, append.tokens = s.config.max_queries + 1, append.k.data = append.v.data = dq.p;
    if (aura_cuda_append(d.cache, &append, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "more tokens at once than the window has slack for");
}

static void run_window_forks(struct scene s)
{
    struct filled f;
    struct device_side d;
    struct both a;
    const int before = failures;
    const uint32_t most = s.config.max_queries;
    s.tokens = {2000};
    if (!begin_seqs(s, " truncations and forks", f, d, a))
        return;
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, 5000));
    append_both(s, f, d, a, most, 1, 0);
    truncate_both(s, f, d, a, 2000 + most - 20, true);
    append_both(s, f, d, a, most, 2, 0);
    truncate_both(s, f, d, a, 2000 + most, false);
    reserve_more(s, d, a, 2000); /* more than once round: the forks must not have a page twice */
    append_both(s, f, d, a, most, 4, 0);
    compare_both(s, f, d, a, "after truncations");
    const struct both b = fork_both(s, f, d, a, 2000 + most), c = fork_both(s, f, d, a, 2000 + 2 * most);
    for (const struct both &x : {a, b, c})
        append_both(s, f, d, x, 1, 6, AURA_CUDA_OUT_OF_PAGES);
    reserve_more(s, d, a, 2000);
    append_both(s, f, d, a, most, 8, 0);
    for (uint32_t i = 0; failures == before && i < 40; i++)
        for (const struct both &x : {i < 20 ? b : a, c}) { /* the parent waits: others leave pages that it still has */
            reserve_more(s, d, x, most);
            append_both(s, f, d, x, most, 10 + 3 * i + x.gpu, 0);
            if (i % 5 == 0)
                compare_both(s, f, d, x, "after forks");
            if (i % 3 == 0)
                attend_both(s, f, d, x, 3);
            if (i == 19)
                compare_both(s, f, d, a, "after others went on");
        }
    refuse_gone(s, f, d, a);
    ask_beyond(s, f, d, a);
    truncate_both(s, f, d, b, 0, true); /* and from the beginning again */
    append_both(s, f, d, b, 1, 7, AURA_CUDA_OUT_OF_PAGES);
    reserve_more(s, d, b, 900);
    for (uint32_t i = 0; i * most < 900 - most; i++)
        append_both(s, f, d, b, most, 80 + i, 0);
    compare_both(s, f, d, b, "begun again");
    compare_both(s, f, d, c, "beside one that began again");
    if (s.config.keep_first) { /* the first page stays, and what is in it */
        truncate_both(s, f, d, c, 100, true);
        compare_both(s, f, d, c, "cut to its first page");
        attend_both(s, f, d, c, 2);
        reserve_more(s, d, c, most);
        append_both(s, f, d, c, most, 9, 0);
        compare_both(s, f, d, c, "and on from there");
    }
    if (!aura_cuda_seq_reserve(d.cache, a.gpu, 1 << 20))
        complain(s, "more tokens than seq_tokens");
    release_all(s, d, {a, b, c});
    end_case(s, before, "bytes equal");
}

/* A call that fails gives back pages that slid out, and another sequence has them: the first may not begin anew in them. */
static void run_given_back(struct scene s)
{
    struct filled f;
    struct device_side d;
    struct both a, b = {};
    const int before = failures;
    s.tokens = {0};
    if (!begin_seqs(s, " pages given back", f, d, a))
        return;
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, 1500));
    for (uint32_t i = 0; i < 35; i++)
        append_both(s, f, d, a, 40, 20 + i, 0);
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    if (aura_cuda_seq_truncate(d.cache, a.gpu, 400) != AURA_BAD_ARGUMENT)
        complain(s, "cut to 400 tokens, which are gone");
    TRY(aura_cuda_seq_get_info(d.cache, a.gpu, &info));
    if (info.pages >= most_pages(s))
        complain(s, "%zu pages: nothing was given back", info.pages);
    compare_both(s, f, d, a, "with fewer pages");
    TRY(aura_seq_create(f.cache, &b.cpu));
    TRY(aura_cuda_seq_create(d.cache, &b.gpu));
    reserve_more(s, d, b, 200);
    for (uint32_t i = 0; i < 5; i++)
        append_both(s, f, d, b, 40, 70 + i, 0);
    truncate_both(s, f, d, a, 0, true);
    append_both(s, f, d, a, 40, 80, AURA_CUDA_OUT_OF_PAGES);
    compare_both(s, f, d, b, "beside one that began again");
    end_case(s, before, "bytes equal");
}

/* A sequence that was cut to where its newest query just sees the oldest token that is left, and a call that has place for more
 * queries than there are: nothing that anybody sees is gone. */
static void run_few_of_many(uint32_t queries)
{
    struct scene s = window_of(scene_of(4, 4, 64, 4, 2, {1276, 900}), 1000, 20, 0);
    struct filled f;
    struct device_side d;
    const int before = failures;
    const uint32_t heads = s.config.q_heads, dim = s.config.k_dim, cut = 1260, counts[] = {1, 0};
    s.name += " 1 and 0 of " + std::to_string(queries) + " queries", s.queries = queries;
    if (!begin_case(s, f, d))
        return;
    TRY(aura_cuda_workspace_create(d.cache, 2, queries, &d.workspace));
    const std::vector<float> q = some_numbers(7, (size_t)2 * queries * heads * dim);
    std::vector<float> alone(heads * dim), among(heads * dim);
    device_array dq(q.data(), q.size() * 4), out(q.size() * 4), ids(d.seqs.data(), 8), few(counts, 8), lengths(&cut, 4);
    TRY(aura_cuda_truncate(d.cache, (const aura_cuda_seq *)ids.p, (const uint32_t *)lengths.p, 1, NULL));
    aura_cuda_attend_args args = AURA_CUDA_ATTEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.q.data = dq.p, args.out.data = out.p, args.planes = 2;
    args.n_seqs = args.queries = 1;
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    TRY_CUDA(cudaMemcpy(alone.data(), out.p, alone.size() * 4, cudaMemcpyDeviceToHost));
    args.n_seqs = 2, args.queries = queries, args.counts = (const uint32_t *)few.p;
    TRY(aura_cuda_attend(d.cache, d.workspace, &args, NULL));
    TRY_CUDA(cudaMemcpy(among.data(), out.p, among.size() * 4, cudaMemcpyDeviceToHost));
    for (size_t i = 0; i < among.size(); i++)
        if (!(fabsf(among[i] - alone[i]) <= 1e-3f))
            return complain(s, "number %zu is %g, and %g of a query alone", i, (double)among[i], (double)alone[i]);
    for (uint32_t seq : d.seqs) {
        aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
        TRY(aura_cuda_seq_get_info(d.cache, seq, &info));
        if (info.status)
            complain(s, "status %u of sequence %u", info.status, seq);
    }
    end_case(s, before, "near");
}

/* First tokens that are kept in tiles, beside windows that end before them, next to them, among them, and far behind. */
static void check_kept()
{
    struct scene s = window_of(scene_of(4, 4, 64, 4, 2, {1500, 290, 310, 340, 395, 430, 4}), 300, 40, 100);
    s.name += ", some queries";
    for (uint32_t queries : {1u, 7u, 33u}) {
        s.queries = queries;
        run_scene(s);
    }
    s = window_of(scene_of(8, 3, 80, 6, 2, {2900, 700, 200}), 260, 40, 600);
    s.alibi = s.sinks = true, s.softcap = 6, s.mask_keys = 3, s.window = 100, s.name += ", everything";
    for (uint32_t queries : {3u, 40u}) {
        s.queries = queries;
        run_scene(s);
    }
    s = window_of(scene_of(4, 4, 128, 4, 1, {100, 170}), 20, 16, 150); /* kept ones that are still open */
    s.config.rollback = 64, s.queries = 2;
    run_scene(s);
    s = window_of(scene_of(4, 4, 128, 4, 1, {700, 90}), 30, 16, 64);
    s.config.flags = AURA_NO_PINNED | AURA_NO_OPEN | AURA_NO_REFERENCE;
    run_scene(s);
}

void check_windows()
{
    for (uint32_t queries : {5u, 16u, 20u})
        run_few_of_many(queries);
    /* Kinds, keep_first; 1: also over time, which takes an emulated device seconds. */
    static const uint32_t list[][4] = {{4, 4, 0, 1}, {4, 2, 0, 0}, {8, 10, 0, 1}, {10, 11, 0, 0}, {4, 4, 4, 0}, {8, 10, 3, 1},
                                       {4, 4, 70, 0}, {8, 10, 300, 1}, {10, 11, 5, 0}, {3, 5, 520, 0}};
    for (const uint32_t *p : list) {
        struct scene s = window_of(scene_of(p[0], p[1], 64, 4, 2, {1500, 290, 0, 2065}), 300, 40, p[2]);
        run_scene(s);
        s.queries = 5;
        s.name += " 5 queries";
        run_scene(s);
        if (!p[3])
            continue;
        run_growth(window_of(scene_of(p[0], p[1], 64, 4, 2, {}), 300, 40, p[2]));
        run_window_forks(window_of(scene_of(p[0], p[1], 64, 4, 2, {}), 300, 40, p[2]));
        run_caches(window_of(scene_of(p[0], p[1], 64, 2, 2, {2000, 40, 0}), 300, 64, p[2]), false);
    }
    check_kept();
    struct scene s = window_of(scene_of(4, 4, 64, 4, 2, {1500, 290}), 300, 40);
    s.window = 100;
    s.name += ", 100 in the call";
    run_scene(s);
    s = window_of(scene_of(4, 2, 80, 4, 2, {1500, 290, 303, 2}), 300, 40, 4);
    s.alibi = s.sinks = true, s.softcap = 6, s.mask_keys = 3, s.queries = 3, s.window = 100;
    s.name += ", everything";
    run_scene(s);
    s = window_of(scene_of(4, 4, 64, 4, 2, {600}), 1, 16);
    run_scene(s);
    run_growth(s);
    s = window_of(scene_of(4, 4, 64, 4, 2, {600}), 257, 16);
    s.config.flags = AURA_NO_REFERENCE | AURA_NO_OPEN;
    run_growth(s);
    s = window_of(scene_of(4, 5, 64, 2, 1, {}), 2, 600); /* whole pages are gone before they are encoded */
    s.config.flags = AURA_NO_ROLLBACK;
    run_growth(s);
    s = window_of(scene_of(4, 10, 64, 2, 1, {}), 1, 511); /* what is encoded last and what is stored first are a ring apart */
    s.config.rollback = 32;
    run_growth(s);
    run_given_back(window_of(scene_of(4, 4, 64, 2, 2, {}), 300, 40));
    run_window_graph(window_of(scene_of(4, 4, 64, 4, 2, {}), 300, 40));
}
