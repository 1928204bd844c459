/* Whole caches to the device and back, and their files: bytes, names, what is shared, and that a failure changes nothing. */
#include <string.h>

#include "check.cuh"

/* A CPU cache whose sequences share pages, and grew on after that. */
static void make_cache(const struct scene &s, struct filled &f)
{
    const int before = failures;
    fill(s, f);
    if (failures > before)
        return;
    const uint32_t whole = s.tokens[0];
    const std::vector<uint32_t> at = {s.config.window ? whole - 30 : 512, s.config.window ? whole - 3 : 300, whole};
    for (uint32_t n : at) {
        aura_seq fork;
        TRY(aura_seq_fork(f.cache, f.seqs[0], n, &fork));
        f.seqs.push_back(fork);
    }
    const aura_config &c = s.config;
    for (size_t i = 0; i < f.seqs.size(); i += 2) {
        std::vector<float> k = some_tokens(90 + i, 50, c.kv_heads, c.k_dim, true);
        std::vector<float> v = some_tokens(91 + i, 50, c.kv_heads, c.k_dim, false);
        aura_append_job job = AURA_APPEND_JOB_INIT;
        job.seq = f.seqs[i], job.tokens = 50, job.k.data = k.data(), job.v.data = v.data();
        TRY(aura_append(f.cache, &job, 1));
    }
}

static aura_cuda_cache *make_device(const struct scene &s, const struct filled &f, size_t pages, uint32_t seqs, uint64_t seq_tokens)
{
    aura_cuda_config config = AURA_CUDA_CONFIG_INIT;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cuda_cache *made = NULL;
    aura_cache_get_info(f.cache, &info);
    config.cache = info.config;
    config.seqs = seqs;
    config.seq_tokens = seq_tokens ? seq_tokens : 4096;
    for (config.cache.budget_bytes = 1 << 16;; config.cache.budget_bytes += info.page_bytes / 2) {
        aura_cuda_cache_info there = AURA_CUDA_CACHE_INFO_INIT;
        if (aura_cuda_cache_create(f.ctx, &config, &made))
            continue;
        aura_cuda_cache_get_info(made, &there);
        if (there.pages >= pages)
            return made;
        aura_cuda_cache_destroy(made);
    }
}

static size_t free_pages_of(const aura_cuda_cache *c)
{
    aura_cuda_cache_info info = AURA_CUDA_CACHE_INFO_INIT;
    aura_cuda_cache_get_info(c, &info);
    return info.free_pages;
}

static size_t pages_in(const aura_cache *c)
{
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    aura_cache_get_info(c, &info);
    return info.pages - info.free_pages;
}

/* Every sequence has its own on the device, with the same bytes. */
static void compare_pairs(const struct scene &s, const struct filled &f, const aura_cuda_cache *c,
                          const std::vector<aura_cuda_pair> &pairs,
                          const char *when)
{
    if (pairs.size() != f.seqs.size())
        complain(s, "%s: %zu sequences of %zu", when, pairs.size(), f.seqs.size());
    for (size_t i = 0; i < pairs.size(); i++) {
        aura_seq back;
        if (pairs[i].host != f.seqs[i])
            complain(s, "%s: sequence %zu was %u and is said to be %u", when, i, f.seqs[i], pairs[i].host);
        TRY(aura_seq_create(f.cache, &back));
        TRY(aura_cuda_download(c, pairs[i].device, f.cache, back));
        const std::string where = first_difference(f.cache, f.seqs[i], f.cache, back);
        if (!where.empty())
            complain(s, "%s: sequence %zu differs at: %s", when, i, where.c_str());
        TRY(aura_seq_release(f.cache, back));
    }
}

/* To a device cache that has a sequence already, and back to a new cache. */
static void there_and_back(const struct scene &s, const struct filled &f)
{
    struct device_side d;
    d.cache = make_device(s, f, 40, 12, 0);
    aura_cuda_seq other;
    TRY(aura_cuda_seq_create(d.cache, &other));
    TRY(aura_cuda_upload(d.cache, other, f.cache, f.seqs[1]));
    const size_t before = free_pages_of(d.cache);
    std::vector<aura_cuda_pair> pairs(12), back(12);
    size_t n = 0;
    TRY(aura_cuda_cache_upload(d.cache, f.cache, pairs.data(), &n));
    pairs.resize(n);
    if (before - free_pages_of(d.cache) != pages_in(f.cache))
        complain(s, "%zu pages became %zu", pages_in(f.cache), before - free_pages_of(d.cache));
    compare_pairs(s, f, d.cache, pairs, "uploaded");
    TRY(aura_cuda_seq_release(d.cache, other));
    aura_config config = s.config;
    aura_cache *copy;
    config.balance = f.balance.empty() ? NULL : f.balance.data();
    config.v_balance = f.v_balance.empty() ? NULL : f.v_balance.data();
    TRY(aura_cache_create(f.ctx, &config, &copy));
    const aura_status status = aura_cuda_cache_download(d.cache, copy, back.data(), &n);
    if (status || n != pairs.size() || pages_in(copy) != pages_in(f.cache))
        complain(s, "back: %s, %zu sequences, %zu pages of %zu", status ? aura_last_error() : "", n, pages_in(copy),
                 pages_in(f.cache));
    for (size_t i = 0; !status && i < n; i++)
        for (const aura_cuda_pair &p : pairs)
            if (p.device == back[i].device && !same_bytes(f.cache, p.host, copy, back[i].host))
                complain(s, "sequence %u comes back with other bytes", p.host);
    aura_cache_destroy(copy);
}

/* A page that several sequences brought with them belongs to nobody until it is copied. */
static void append_to_shared(const struct scene &s, const struct filled &f)
{
    struct device_side d;
    d.cache = make_device(s, f, 40, 12, 0);
    std::vector<aura_cuda_pair> pairs(12);
    size_t n = 0;
    TRY(aura_cuda_cache_upload(d.cache, f.cache, pairs.data(), &n));
    pairs.resize(n);
    const aura_cuda_pair fork = pairs[3]; /* all of its pages are its parent's too */
    const aura_config &c = s.config;
    std::vector<float> k = some_tokens(7, 40, c.kv_heads, c.k_dim, true), v = some_tokens(8, 40, c.kv_heads, c.k_dim, false);
    device_array dk(k.data(), k.size() * 4), dv(v.data(), v.size() * 4), ids(&fork.device, 4);
    aura_cuda_append_args args = AURA_CUDA_APPEND_ARGS_INIT;
    args.seqs = (const aura_cuda_seq *)ids.p, args.n_seqs = 1, args.tokens = 40;
    args.k.data = dk.p, args.v.data = dv.p;
    aura_cuda_seq_info info = AURA_CUDA_SEQ_INFO_INIT;
    TRY(aura_cuda_append(d.cache, &args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    TRY(aura_cuda_seq_get_info(d.cache, fork.device, &info));
    if (info.status != AURA_CUDA_OUT_OF_PAGES || !info.shared_pages)
        complain(s, "an append to shared pages: status %u, %zu are shared", info.status, info.shared_pages);
    TRY(aura_cuda_seq_clear_status(d.cache, fork.device));
    TRY(aura_cuda_seq_reserve(d.cache, fork.device, info.tokens + 40));
    TRY(aura_cuda_append(d.cache, &args, NULL));
    TRY_CUDA(cudaDeviceSynchronize());
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = f.seqs[3], job.tokens = 40, job.k.data = k.data(), job.v.data = v.data();
    TRY(aura_append(f.cache, &job, 1));
    compare_pairs(s, f, d.cache, pairs, "appended to");
}

/* ---- files ------------------------------------------------------------------------------------------------------------ */

static void write_all(const struct scratch_file &to, const std::string &text)
{
    FILE *out = fopen(to.path.c_str(), "wb");
    if (out) {
        fwrite(text.data(), 1, text.size(), out);
        fclose(out);
    }
}

/* Sequences that have their numbers in a snapshot get their ids in the CPU cache. */
static void name_pairs(const struct scene &s, const struct filled &f, std::vector<aura_cuda_pair> &pairs, size_t n)
{
    pairs.resize(n);
    for (size_t i = 0; i < n; i++) {
        if (pairs[i].host != i + 1 || i >= f.seqs.size())
            complain(s, "sequence %zu has the number %u", i, pairs[i].host);
        else
            pairs[i].host = f.seqs[i];
    }
}

/* What a file has, a sink gets, and its length is known before. A source gives it back. */
static void write_and_read(const struct scene &s, const struct filled &f, aura_cuda_cache *from, const std::string &file)
{
    struct device_side d;
    d.cache = make_device(s, f, 20, 8, 0);
    std::vector<aura_cuda_pair> pairs(8);
    size_t bytes = 0, n = 0;
    TRY(aura_cuda_cache_size(from, NULL, &bytes));
    std::string text(bytes, '?');
    aura_sink sink = AURA_SINK_INIT;
    sink.data = &text[0], sink.bytes = bytes;
    TRY(aura_cuda_cache_write(from, &sink, NULL, NULL, NULL));
    if (text != file || sink.used != bytes)
        complain(s, "a sink got %zu bytes of %zu, other ones than a file of %zu", sink.used, bytes, file.size());
    aura_source source = AURA_SOURCE_INIT;
    source.data = text.data(), source.bytes = bytes;
    TRY(aura_cuda_cache_read(d.cache, &source, NULL, pairs.data(), &n));
    name_pairs(s, f, pairs, n);
    compare_pairs(s, f, d.cache, pairs, "from a source");
    const size_t free_before = free_pages_of(d.cache);
    source.bytes = bytes - 1;
    if (aura_cuda_cache_read(d.cache, &source, NULL, NULL, NULL) != AURA_BAD_FILE || free_pages_of(d.cache) != free_before)
        complain(s, "a source that is too short: %s", aura_last_error());
    sink.bytes = bytes - 1;
    if (aura_cuda_cache_write(from, &sink, NULL, NULL, NULL) != AURA_BAD_ARGUMENT ||
        aura_cuda_cache_write(from, NULL, NULL, NULL, NULL) != AURA_BAD_ARGUMENT ||
        aura_cuda_cache_read(d.cache, NULL, NULL, NULL, NULL) != AURA_BAD_ARGUMENT ||
        aura_cuda_cache_size(from, NULL, NULL) != AURA_BAD_ARGUMENT)
        complain(s, "a sink that is too small, or none: %s", aura_last_error());
    /* one sequence */
    aura_cuda_seq again;
    TRY(aura_cuda_seq_size(from, pairs[1].device, NULL, &bytes));
    text.assign(bytes, '?');
    sink.data = &text[0], sink.bytes = bytes;
    TRY(aura_cuda_seq_write(d.cache, pairs[1].device, &sink, NULL));
    size_t cpu_bytes = 0;
    TRY(aura_seq_size(f.cache, f.seqs[1], NULL, &cpu_bytes));
    std::string cpu(cpu_bytes, '?');
    sink.data = &cpu[0], sink.bytes = cpu_bytes;
    TRY(aura_seq_write(f.cache, f.seqs[1], &sink, NULL));
    if (cpu != text)
        complain(s, "a sequence of %zu bytes, on the CPU of %zu", text.size(), cpu.size());
    source.data = cpu.data(), source.bytes = cpu.size();
    TRY(aura_cuda_seq_read(from, &source, NULL, &again));
    TRY(aura_cuda_seq_release(from, again));
}

/* The pieces of one side to where the other expects them. `damage`: a bit of the last piece on its way. */
static void move_pieces(const struct scene &s, const aura_extents_info &from, const aura_extents_info &to, bool damage)
{
    if (from.n != to.n || from.bytes != to.bytes)
        complain(s, "%zu pieces leave, %zu are expected", from.n, to.n);
    for (size_t i = 0; i < from.n && i < to.n && from.pieces[i].bytes == to.pieces[i].bytes; i++)
        memcpy(to.pieces[i].data, from.pieces[i].data, from.pieces[i].bytes);
    if (damage && to.n)
        ((uint8_t *)to.pieces[to.n - 1].data)[5] ^= 4;
}

/* A sequence leaves the device with the header and the bytes with which it leaves the CPU, and comes to another device. */
static void travel(const struct scene &s, const struct filled &f, aura_cuda_cache *from, const std::vector<aura_cuda_pair> &pairs)
{
    for (size_t i = 0; i < pairs.size(); i++) {
        struct device_side d;
        d.cache = make_device(s, f, 20, 8, 0);
        aura_cuda_extents *gpu = NULL, *there = NULL;
        aura_extents *cpu = NULL;
        aura_extents_info a = AURA_EXTENTS_INFO_INIT, b = AURA_EXTENTS_INFO_INIT, c = AURA_EXTENTS_INFO_INIT;
        TRY(aura_cuda_seq_extents(from, pairs[i].device, NULL, &gpu));
        TRY(aura_seq_extents(f.cache, pairs[i].host, NULL, &cpu));
        TRY(aura_cuda_extents_get_info(gpu, &a));
        TRY(aura_extents_get_info(cpu, &b));
        if (a.header_bytes != b.header_bytes || memcmp(a.header, b.header, a.header_bytes) || a.n != b.n)
            complain(s, "sequence %zu leaves with another header than that of the CPU", i);
        for (size_t k = 0; k < a.n && k < b.n; k++)
            if (a.pieces[k].bytes != b.pieces[k].bytes || memcmp(a.pieces[k].data, b.pieces[k].data, a.pieces[k].bytes))
                complain(s, "sequence %zu: piece %zu has other bytes than that of the CPU", i, k);
        const size_t free_before = free_pages_of(d.cache);
        aura_cuda_seq made = 77;
        for (int damage = 1; damage >= 0; damage--) {
            TRY(aura_cuda_seq_expect(d.cache, a.header, a.header_bytes, &there));
            TRY(aura_cuda_extents_get_info(there, &c));
            move_pieces(s, a, c, damage && a.n);
            const aura_status wanted = damage && a.n ? AURA_BAD_FILE : AURA_OK, status = aura_cuda_seq_adopt(there, &made);
            if (status != wanted || (status && (made != 77 || free_pages_of(d.cache) != free_before)))
                complain(s, "sequence %zu%s: %s: %s", i, damage ? ", damaged" : "", aura_status_text(status), aura_last_error());
            aura_cuda_extents_destroy(there);
            if (damage && !a.n)
                TRY(aura_cuda_seq_release(d.cache, made));
        }
        struct filled one = {};
        one.ctx = f.ctx, one.cache = f.cache, one.seqs = {pairs[i].host};
        compare_pairs(s, one, d.cache, {{pairs[i].host, made}}, "that travelled");
        one.ctx = NULL, one.cache = NULL;
        if (aura_cuda_seq_adopt(gpu, &made) != AURA_BAD_ARGUMENT ||
            aura_cuda_seq_expect(d.cache, a.header, a.header_bytes - 1, &there) != AURA_BAD_FILE)
            complain(s, "one that leaves was adopted, or half a header taken: %s", aura_last_error());
        aura_cuda_extents_destroy(gpu);
        aura_extents_destroy(cpu);
    }
}

/* The device writes the file that the CPU writes, and reads it. */
static void save_and_load(const struct scene &s, const struct filled &f, const struct scratch_file &cpu)
{
    struct device_side d, other;
    d.cache = make_device(s, f, 20, 8, 0);
    other.cache = make_device(s, f, 20, 8, 0);
    std::vector<aura_cuda_pair> pairs(8), saved(8);
    size_t n = 0;
    struct scratch_file gpu("-gpu");
    TRY(aura_cache_save(f.cache, cpu.path.c_str(), NULL));
    TRY(aura_cuda_cache_load(d.cache, cpu.path.c_str(), NULL, pairs.data(), &n));
    name_pairs(s, f, pairs, n);
    compare_pairs(s, f, d.cache, pairs, "loaded");
    travel(s, f, d.cache, pairs);
    TRY(aura_cuda_cache_save(d.cache, gpu.path.c_str(), NULL, saved.data(), &n));
    const std::string x = read_all(cpu), y = read_all(gpu);
    if (x.empty() || x != y || n != pairs.size())
        complain(s, "files of %zu and %zu bytes, %zu sequences, which differ", x.size(), y.size(), n);
    for (size_t i = 0; i < n; i++)
        if (saved[i].device != pairs[i].device || saved[i].host != i + 1)
            complain(s, "%u was saved as %u, number %u", pairs[i].device, saved[i].device, saved[i].host);
    write_and_read(s, f, d.cache, y);
    /* some of them, by their names on either side */
    aura_snapshot_options options = AURA_SNAPSHOT_OPTIONS_INIT;
    const aura_cuda_seq some[] = {pairs[3].device, pairs[0].device};
    options.seqs = some, options.n_seqs = 2;
    TRY(aura_cuda_cache_save(d.cache, gpu.path.c_str(), &options, saved.data(), &n));
    const aura_seq wanted = saved[1].host;
    options.seqs = &wanted, options.n_seqs = 1;
    TRY(aura_cuda_cache_load(other.cache, gpu.path.c_str(), &options, saved.data(), &n));
    struct filled one = {};
    one.ctx = f.ctx, one.cache = f.cache, one.seqs = {f.seqs[0]};
    saved.resize(n);
    if (n == 1 && saved[0].host == wanted)
        saved[0].host = f.seqs[0];
    compare_pairs(s, one, other.cache, saved, "one of two");
    if (aura_cuda_seq_load(other.cache, gpu.path.c_str(), NULL, &saved[0].device) != AURA_BAD_ARGUMENT)
        complain(s, "of two sequences, none was named");
    TRY(aura_cuda_seq_load(other.cache, gpu.path.c_str(), &options, &saved[0].device));
    compare_pairs(s, one, other.cache, saved, "the same by itself");
    one.ctx = NULL, one.cache = NULL;
}

/* A load that fails, which leaves everything as it was. */
static void refused(const struct scene &s, aura_cuda_cache *c, const struct scratch_file &from, aura_status wanted,
                    const char *word)
{
    aura_cuda_pair pairs[16];
    aura_cuda_seq seq;
    size_t n = 77;
    const size_t pages = free_pages_of(c);
    const aura_status status = aura_cuda_cache_load(c, from.path.c_str(), NULL, pairs, &n);
    if (status != wanted || !strstr(aura_last_error(), word) || n != 77)
        complain(s, "%s: %s: %s", word, aura_status_text(status), aura_last_error());
    if (free_pages_of(c) != pages)
        complain(s, "%s: %zu pages were free, now %zu", word, pages, free_pages_of(c));
    TRY(aura_cuda_seq_create(c, &seq));
    if (seq != 0)
        complain(s, "%s: there are sequences", word);
    TRY(aura_cuda_seq_release(c, seq));
}

/* The same sequences for caches of another kind. */
static void refuse_others(const struct scene &s, const struct filled &f, const struct scratch_file &good)
{
    static const char *const words[] = {"kind of keys", "k_dim", "seed", "KV heads"};
    for (int i = 0; i < 4; i++) {
        struct filled other;
        struct device_side d;
        struct scene x = s;
        x.tokens = {};
        if (i == 0)
            x.config.format.k = (aura_kind)(s.config.format.k == AURA_KIND_B5 ? AURA_KIND_B4 : AURA_KIND_B5);
        x.config.k_dim = i == 1 ? 192 : x.config.k_dim;
        x.config.seed += i == 2;
        x.config.kv_heads = i == 3 ? 1 : x.config.kv_heads;
        fill(x, other);
        d.cache = make_device(x, other, 20, 8, 0);
        refused(s, d.cache, good, AURA_BAD_ARGUMENT, words[i]);
        const aura_status status = aura_cuda_cache_upload(d.cache, f.cache, NULL, NULL);
        if (status != AURA_BAD_ARGUMENT || free_pages_of(d.cache) < 20)
            complain(s, "upload, other %s: %s", words[i], aura_status_text(status));
    }
}

static void refuse_files(const struct scene &s, const struct filled &f, const struct scratch_file &good)
{
    struct device_side d, few, none, tight;
    struct scratch_file bad("-bad"), missing("-missing");
    const std::string text = read_all(good);
    d.cache = make_device(s, f, 20, 8, 0);
    write_all(bad, text.substr(0, text.size() / 2));
    refused(s, d.cache, bad, AURA_BAD_FILE, "");
    std::string changed = text;
    changed[text.size() / 2] ^= 4;
    write_all(bad, changed);
    refused(s, d.cache, bad, AURA_BAD_FILE, "");
    refused(s, d.cache, missing, AURA_IO, "");
    few.cache = make_device(s, f, 20, (uint32_t)f.seqs.size() - 1, 0);
    refused(s, few.cache, good, AURA_OUT_OF_PAGES, "sequences");
    none.cache = make_device(s, f, 3, 8, 0);
    refused(s, none.cache, good, AURA_OUT_OF_PAGES, "pages are needed");
    tight.cache = make_device(s, f, 20, 8, 512);
    refused(s, tight.cache, good, AURA_TOO_LARGE, "tokens");
    aura_config config = s.config;
    aura_cache *small;
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    size_t n = 77;
    TRY(aura_cuda_cache_load(d.cache, good.path.c_str(), NULL, NULL, NULL));
    aura_cache_get_info(f.cache, &info);
    config.balance = f.balance.empty() ? NULL : f.balance.data();
    config.v_balance = f.v_balance.empty() ? NULL : f.v_balance.data();
    config.budget_bytes = 4 * info.page_bytes;
    TRY(aura_cache_create(f.ctx, &config, &small));
    const aura_status status = aura_cuda_cache_download(d.cache, small, NULL, &n);
    aura_cache_get_info(small, &info);
    if (status != AURA_OUT_OF_PAGES || info.seqs || info.pages != info.free_pages || n != 77)
        complain(s, "to a cache that is too small: %s, %zu sequences", aura_status_text(status), info.seqs);
    aura_cache_destroy(small);
}

void run_caches(struct scene s, bool errors)
{
    const int before = failures;
    struct filled f;
    struct scratch_file cpu("-cpu");
    s.name += errors ? " whole caches, and what is refused" : " whole caches";
    cases++;
    make_cache(s, f);
    if (failures == before)
        save_and_load(s, f, cpu);
    if (failures == before)
        there_and_back(s, f);
    if (failures == before && errors)
        refuse_files(s, f, cpu);
    if (failures == before && errors)
        refuse_others(s, f, cpu);
    if (failures == before)
        append_to_shared(s, f);
    end_case(s, before, "bytes and files equal");
}

void check_caches()
{
    static const uint32_t pairs[][2] = {{4, 4}, {4, 10}, {11, 2}, {10, 10}};
    for (const uint32_t *p : pairs) {
        struct scene s = scene_of(p[0], p[1], 128, 2, 2, {700, 40, 0});
        s.balance = p[0] <= 8;
        run_caches(s, p[0] == 4 && p[1] == 4);
    }
}
