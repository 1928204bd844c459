/* Sequences that come and go, share pages, get shorter, go to files: on the device as on the CPU, where everything is done too. */
#include <string.h>

#include "check.cuh"

/* ---- forks ------------------------------------------------------------------------------------------------------------ */

/* A sequence and three forks of it: at its end, inside a page, between pages. */
struct family {
    struct filled f;
    struct device_side d;
    struct both all[4];
};

static void make_family(const struct scene &s, struct family &x)
{
    const int before = failures;
    fill(s, x.f);
    if (failures == before)
        make_both(s, x.f, x.d, x.all[0]);
    if (failures > before)
        return;
    aura_cuda_cache_info whole = AURA_CUDA_CACHE_INFO_INIT, now = AURA_CUDA_CACHE_INFO_INIT;
    TRY(aura_cuda_cache_get_info(x.d.cache, &whole));
    static const uint32_t at[] = {700, 300, 512};
    for (int i = 0; i < 3; i++)
        x.all[i + 1] = fork_both(s, x.f, x.d, x.all[0], at[i]);
    TRY(aura_cuda_cache_get_info(x.d.cache, &now));
    if (now.free_pages != whole.free_pages)
        complain(s, "forks took %zu pages", whole.free_pages - now.free_pages);
}

static void compare_family(const struct scene &s, const struct family &x, const char *when)
{
    for (const struct both &b : x.all)
        compare_both(s, x.f, x.d, b, when);
}

/* Nobody may write before it reserves; afterwards nobody sees what another one appends. */
static void append_to_forks(const struct scene &s, const struct family &x)
{
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    for (const struct both &b : x.all)
        append_both(s, x.f, x.d, b, 3, 50, AURA_CUDA_OUT_OF_PAGES);
    for (uint32_t i = 0; i < 4; i++) {
        reserve_more(s, x.d, x.all[i], 90);
        append_both(s, x.f, x.d, x.all[i], 90, 60 + 2 * i, 0);
    }
    compare_family(s, x, "after forks");
    TRY(aura_cuda_seq_get_info(x.d.cache, x.all[2].gpu, &info));
    if (info.shared_pages != 1 || info.pages != 2)
        complain(s, "a fork at token 300 shares %zu of %zu pages", info.shared_pages, info.pages);
}

/* By the host and by the stream, above and below what is closed, into pages that are shared. */
static void truncate_forks(const struct scene &s, const struct family &x)
{
    const struct both &a = x.all[0], &b = x.all[1], &c = x.all[2];
    truncate_both(s, x.f, x.d, a, 780, true); /* still open: as if it had not been appended */
    append_both(s, x.f, x.d, a, 5, 70, 0);
    truncate_both(s, x.f, x.d, b, 690, false);
    reserve_more(s, x.d, b, 200);
    append_both(s, x.f, x.d, b, 200, 80, 0);
    truncate_both(s, x.f, x.d, c, 100, true); /* into the first page, which all share */
    append_both(s, x.f, x.d, c, 1, 90, AURA_CUDA_OUT_OF_PAGES);
    reserve_more(s, x.d, c, 40);
    append_both(s, x.f, x.d, c, 40, 100, 0);
    compare_family(s, x, "after truncations");
    aura_cuda_seq none;
    if (!aura_cuda_seq_truncate(x.d.cache, b.gpu, 100000) || !aura_cuda_seq_fork(x.d.cache, b.gpu, 100000, &none))
        complain(s, "more tokens than there are");
}

/* Places and pages of those that go are used again, and no page is lost. */
static void release_forks(const struct scene &s, struct family &x)
{
    aura_cuda_cache_info now = AURA_CUDA_CACHE_INFO_INIT;
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_seq_release(x.d.cache, x.all[0].gpu));
    TRY(aura_seq_create(x.f.cache, &x.all[0].cpu));
    TRY(aura_cuda_seq_create(x.d.cache, &x.all[0].gpu));
    reserve_more(s, x.d, x.all[0], 600);
    append_both(s, x.f, x.d, x.all[0], 600, 110, 0);
    compare_family(s, x, "after a release");
    for (const struct both &b : x.all)
        TRY(aura_cuda_seq_release(x.d.cache, b.gpu));
    TRY(aura_cuda_cache_get_info(x.d.cache, &now));
    if (now.free_pages != now.pages)
        complain(s, "%zu pages of %zu are free in the end", now.free_pages, now.pages);
    const aura_cuda_seq gone = x.all[1].gpu;
    if (!aura_cuda_seq_release(x.d.cache, gone) || !aura_cuda_seq_reserve(x.d.cache, gone, 1) ||
        !aura_cuda_seq_get_info(x.d.cache, 99, &info))
        complain(s, "a sequence that was released, or never was, is one");
}

void run_fork(struct scene s)
{
    struct family x;
    const int before = failures;
    s.name += " forks and truncations";
    cases++;
    make_family(s, x);
    if (failures == before)
        append_to_forks(s, x);
    if (failures == before)
        truncate_forks(s, x);
    if (failures == before)
        release_forks(s, x);
    end_case(s, before, "bytes equal");
}

/* A graph that appends a draft of four tokens and takes back what is not accepted, whose numbers come from the device: the bytes
 * are those of a sequence that got the accepted tokens alone. */
static void run_draft()
{
    struct scene s = scene_of(4, 4, 128, 2, 2, {500});
    struct filled f;
    struct device_side d;
    struct both a;
    const int before = failures;
    const uint32_t draft = 4, steps = 60, row = 2 * 128;
    if (!begin_seqs(s, " drafts in a graph", f, d, a))
        return;
    TRY(aura_cuda_seq_reserve(d.cache, a.gpu, s.tokens[0] + steps * draft));
    device_array ids(&a.gpu, 4), x(draft * row * 4), left(4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.tokens = draft;
    args.k.data = args.v.data = x.p;
    struct captured graph(s, [&](cudaStream_t stream) {
        TRY(aura_cuda_append(d.cache, &args, stream));
        TRY(aura_cuda_truncate(d.cache, args.seqs, (const uint32_t *)left.p, 1, stream));
    });
    uint32_t tokens = s.tokens[0];
    for (uint32_t step = 0; step < steps; step++) {
        std::vector<float> some = some_tokens(200 + step, draft, 2, 128, false);
        const uint32_t accepted = step * 7 % 5;
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = a.cpu, job.tokens = accepted, job.k.data = job.v.data = some.data();
        if (accepted)
            TRY(aura_append(f.cache, &job, 1));
        tokens += accepted;
        TRY_CUDA(cudaMemcpy(x.p, some.data(), some.size() * 4, cudaMemcpyHostToDevice));
        TRY_CUDA(cudaMemcpy(left.p, &tokens, 4, cudaMemcpyHostToDevice));
        graph.replay(s);
    }
    compare_both(s, f, d, a, "in the end");
    end_case(s, before, "bytes equal");
}

/* Sequences and reservations beyond what there is: an error, and nothing else. */
static void run_limits()
{
    struct scene s = scene_of(4, 4, 128, 2, 2, {300});
    struct filled f;
    struct device_side d;
    struct both a;
    const int before = failures;
    if (!begin_seqs(s, " limits", f, d, a))
        return;
    aura_cuda_cache_info start = AURA_CUDA_CACHE_INFO_INIT, now = AURA_CUDA_CACHE_INFO_INIT;
    TRY(aura_cuda_cache_get_info(d.cache, &start));
    aura_status status = aura_cuda_seq_reserve(d.cache, a.gpu, (start.free_pages + 3) * AURA_PAGE);
    if (status != AURA_OUT_OF_PAGES && status != AURA_TOO_LARGE)
        complain(s, "more pages than there are: %s", aura_status_text(status));
    status = aura_cuda_seq_reserve(d.cache, a.gpu, UINT64_MAX);
    if (status != AURA_TOO_LARGE)
        complain(s, "2^64 tokens: %s", aura_status_text(status));
    TRY(aura_cuda_cache_get_info(d.cache, &now));
    if (now.free_pages != start.free_pages)
        complain(s, "a reservation failed and took %zu pages", start.free_pages - now.free_pages);
    std::vector<aura_cuda_seq> made;
    aura_cuda_seq seq;
    while (!(status = aura_cuda_seq_create(d.cache, &seq)) && made.size() < 100)
        made.push_back(seq);
    if (status != AURA_OUT_OF_PAGES || made.size() + 1 != start.seqs)
        complain(s, "%zu sequences besides: %s", made.size(), aura_status_text(status));
    status = aura_cuda_seq_fork(d.cache, a.gpu, 10, &seq);
    if (status != AURA_OUT_OF_PAGES)
        complain(s, "a fork too many: %s", aura_status_text(status));
    TRY(aura_cuda_seq_release(d.cache, made[2]));
    TRY(aura_cuda_seq_create(d.cache, &seq));
    if (seq != made[2])
        complain(s, "the place of %u is not used again, but %u", made[2], seq);
    compare_both(s, f, d, a, "in the end");
    end_case(s, before, "");
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

/* The device writes the file that the CPU writes, and reads it. */
static void run_snapshot(struct scene s)
{
    struct filled f;
    struct device_side d;
    struct both a, loaded;
    const int before = failures;
    if (!begin_seqs(s, " snapshots", f, d, a))
        return;
    const struct scratch_file cpu("-cpu"), gpu("-gpu"), none("-none");
    TRY(aura_seq_save(f.cache, a.cpu, cpu.path.c_str(), NULL));
    TRY(aura_cuda_seq_save(d.cache, a.gpu, gpu.path.c_str(), NULL));
    const std::string x = read_all(cpu), y = read_all(gpu);
    if (x.empty() || x != y)
        complain(s, "files of %zu and %zu bytes, which differ", x.size(), y.size());
    loaded.cpu = a.cpu;
    TRY(aura_cuda_seq_load(d.cache, cpu.path.c_str(), NULL, &loaded.gpu));
    compare_both(s, f, d, loaded, "loaded");
    reserve_more(s, d, loaded, 70);
    append_both(s, f, d, loaded, 70, 7, 0);
    compare_both(s, f, d, loaded, "loaded and appended to");
    aura_cuda_cache_info now = AURA_CUDA_CACHE_INFO_INIT, after = AURA_CUDA_CACHE_INFO_INIT;
    TRY(aura_cuda_cache_get_info(d.cache, &now));
    aura_status status = aura_cuda_seq_load(d.cache, none.path.c_str(), NULL, &loaded.gpu);
    TRY(aura_cuda_cache_get_info(d.cache, &after));
    if (status != AURA_IO || after.free_pages != now.free_pages)
        complain(s, "a file that is not there: %s", aura_status_text(status));
    end_case(s, before, "files equal");
}

/* A cache with balanced values is another than one without; one with a metric is not, as its bytes mean the same: only its sequence
 * is missing. */
static void refuse_feedback(const struct scene &s, const struct filled &f, struct device_side &d, aura_cuda_seq to)
{
    const aura_config &c = s.config;
    std::vector<float> metric(c.kv_heads * c.k_dim * (c.k_dim + 1) / 2), balance(c.kv_heads * c.k_dim, 1.f);
    for (int metrics = 0; metrics < 2; metrics++) {
        aura_config shape = s.config;
        aura_cache *cpu;
        (metrics ? shape.k_metric : shape.v_balance) = metrics ? metric.data() : balance.data();
        TRY(aura_cache_create(f.ctx, &shape, &cpu));
        if (aura_cuda_upload(d.cache, to, cpu, 0) != AURA_BAD_ARGUMENT ||
            !strstr(aura_last_error(), "different configurations") != metrics)
            complain(s, "upload of %s: %s", metrics ? "a metric" : "balanced values", aura_last_error());
        aura_cache_destroy(cpu);
    }
}

/* ---- what there is not ------------------------------------------------------------------------------------------------ */

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
    aura_cuda_config learning = device_config(s, f), headless = learning;
    aura_cuda_cache *none = NULL;
    headless.cache.q_heads = 0; /* the CPU's cache learns it from the jobs */
    if (aura_cuda_cache_create(f.ctx, &headless, &none) != AURA_UNSUPPORTED || !strstr(aura_last_error(), "q_heads is 0"))
        complain(s, "create without query heads: %s", aura_last_error());
    learning.cache.flags |= AURA_LEARN;
    if (aura_cuda_cache_create(f.ctx, &learning, &none) != AURA_UNSUPPORTED || !strstr(aura_last_error(), "does not learn"))
        complain(s, "create with AURA_LEARN: %s", aura_last_error());
    refuse_feedback(s, f, d, other);
    for (int slots = 0; slots < 2; slots++) {
        aura_cache *cpu;
        aura_config shape = s.config;
        (slots ? shape.slots : shape.window) = 4096;
        shape.keep_first = slots ? 0 : 8;
        TRY(aura_cache_create(f.ctx, &shape, &cpu));
        const aura_status status = aura_cuda_upload(d.cache, other, cpu, 0);
        if (status != (slots ? AURA_UNSUPPORTED : AURA_BAD_ARGUMENT))
            complain(s, "upload: %s: %s", aura_status_text(status), aura_last_error());
        aura_cache_destroy(cpu);
    }
    end_case(s, before, "");
}

void check_seqs()
{
    static const uint32_t pairs[][2] = {{4, 4}, {8, 3}, {4, 10}, {11, 2}, {10, 10}};
    for (const uint32_t *p : pairs) {
        struct scene s = scene_of(p[0], p[1], 128, 2, 2, {700});
        s.balance = p[0] <= 8;
        run_fork(s);
        run_snapshot(s);
    }
    static const uint32_t flags[] = {AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE | AURA_NO_OPEN};
    for (uint32_t bits : flags) {
        struct scene s = scene_of(4, 4, 80, 2, 2, {700});
        s.config.flags = bits;
        s.name += " flags " + std::to_string(bits);
        run_fork(s);
    }
    run_draft();
    run_limits();
    run_shared();
}
