/* Sequences that come to the device together, from a CPU cache or a file, and go together: pages that they share are shared
 * there too, and all of them come or none. */
#include "cache.cuh"

#include <new>
#include <unordered_map>
#include <unordered_set>
#include <vector>

/* Vectors and maps throw where the host has no memory. */
template <class WORK>
static aura_status with_memory(const aura_cuda_cache *c, const char *call, WORK work)
{
    try {
        return work();
    } catch (const std::bad_alloc &) {
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory of the host for lists of pages", call);
    }
}

static void report(const std::vector<aura_cuda_pair> &made, aura_cuda_pair *pairs, size_t *n)
{
    for (size_t i = 0; pairs && i < made.size(); i++)
        pairs[i] = made[i];
    if (n)
        *n = made.size();
}

/* ---- to the device -------------------------------------------------------------------------------------------------- */

/* Sequences on their way: from a CPU cache, or from a file where that is not NULL. */
struct arrival {
    aura_cuda_cache *c;
    const char *call;
    const aura_cache *cpu;
    const struct aura_backend_file *file;
    std::vector<aura_seq> ids; /* of the CPU cache */
    std::unordered_map<const uint8_t *, uint32_t> page; /* where on the device a page is */
    std::vector<aura_cuda_pair> made;
    std::vector<uint16_t> k, v; /* the rows of a file's sequence */
};

static size_t count_of(const struct arrival &a)
{
    return a.file ? aura_backend_file_seqs(a.file) : a.ids.size();
}

static aura_seq describe(const struct arrival &a, size_t i, struct aura_backend_seq *facts)
{
    if (a.file)
        return aura_backend_file_seq(a.file, i, facts);
    aura_backend_find(a.call, a.cpu, a.ids[i], facts);
    return a.ids[i];
}

static const uint8_t *page_at(const struct arrival &a, size_t i, size_t page)
{
    return a.file ? aura_backend_file_page(a.file, i, page) : aura_backend_page(a.cpu, a.ids[i], page);
}

/* Checks that there is room for all sequences before the first one is copied. */
static aura_status check_room(struct arrival &a)
{
    const aura_cuda_cache *c = a.c;
    const uint64_t most = (uint64_t)c->table_pages * AURA_PAGE;
    uint32_t places = 0;
    for (uint32_t i = 0; i < c->seqs; i++)
        places += !c->page_table.used[i];
    if (count_of(a) > places)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_PAGES,
                                 "%s: %zu sequences; there is room for %u more of %u; give seqs a larger number",
                                 a.call, count_of(a), places, c->seqs);
    for (size_t i = 0; i < count_of(a); i++) {
        struct aura_backend_seq facts;
        describe(a, i, &facts);
        if (facts.len > most)
            return aura_backend_fail(c->ctx, AURA_TOO_LARGE, "%s: a sequence of %llu tokens; one of this cache has at most %llu",
                                     a.call, (unsigned long long)facts.len, (unsigned long long)most);
        for (size_t p = 0; p < facts.pages; p++)
            if (aura_backend_has_page(&c->facts, &facts, p))
                a.page[page_at(a, i, p)] = AURA_NO_PAGE;
    }
    const size_t free_pages = aura_cuda_want_pages(c, a.page.size());
    if (a.page.size() > free_pages)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_PAGES, "%s: %zu pages are needed; %zu are free", a.call, a.page.size(),
                                 free_pages);
    a.made.reserve(count_of(a));
    return AURA_OK;
}

/* The rows of a sequence where cudaMemcpy finds them. */
static void find_rows(struct arrival &a, size_t i, struct aura_backend_seq *facts)
{
    const aura_config *f = a.c->facts.config;
    if (!a.file)
        return;
    a.k.assign(a.c->dev.k_rows ? (size_t)f->kv_heads * a.c->facts.rows * f->k_dim : 0, 0);
    a.v.assign(a.c->dev.v_rows ? (size_t)f->kv_heads * a.c->facts.rows * f->v_dim : 0, 0);
    facts->k = a.k.empty() ? NULL : a.k.data();
    facts->v = a.v.empty() ? NULL : a.v.data();
    aura_backend_file_rows(a.file, i, facts->k, facts->v);
}

/* The pages of a sequence that are not there yet, and its list. */
static aura_status bring_pages(struct arrival &a, size_t i, aura_cuda_seq seq, const struct aura_backend_seq *facts)
{
    const aura_cuda_cache *c = a.c;
    cudaError_t error = cudaSuccess;
    for (size_t p = 0; p < facts->pages && error == cudaSuccess; p++) {
        if (!aura_backend_has_page(&c->facts, facts, p))
            continue;
        const uint8_t *here = page_at(a, i, p);
        uint32_t &there = a.page[here];
        const bool is_new = there == AURA_NO_PAGE;
        if (aura_page_table_add(&a.c->page_table, seq, p, &there))
            return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for a list of %zu pages", a.call, facts->pages);
        if (is_new)
            error = cudaMemcpy(c->dev.pages + (size_t)there * c->facts.page_bytes, here, c->facts.page_bytes,
                               cudaMemcpyHostToDevice);
    }
    if (error == cudaSuccess)
        error = aura_cuda_write_list(c, seq, 0, facts->pages);
    return cuda_status(c->ctx, a.call, error, "copying pages to the device");
}

static aura_status bring(struct arrival &a, size_t i)
{
    struct aura_backend_seq facts;
    aura_cuda_pair made = {describe(a, i, &facts), 0};
    aura_status status = aura_cuda_find_place(a.c, a.call, &made.device);
    if (status)
        return status;
    a.c->page_table.used[made.device] = 1;
    a.made.push_back(made);
    if ((status = bring_pages(a, i, made.device, &facts)))
        return status;
    find_rows(a, i, &facts);
    return cuda_status(a.c->ctx, a.call, when_done(aura_cuda_copy_rows(a.c, made.device, &facts, cudaMemcpyHostToDevice)),
                       "copying rows to the device");
}

/* Which pages are shared is known only when all sequences are there. */
static aura_status begin_seqs(const struct arrival &a)
{
    aura_status status = AURA_OK;
    for (size_t i = 0; i < a.made.size() && !status; i++) {
        struct dev_seq state = {};
        struct aura_backend_seq facts;
        describe(a, i, &facts);
        state.len = (uint32_t)facts.len;
        state.closed = (uint32_t)facts.closed;
        state.top = (uint32_t)facts.top;
        aura_cuda_set_limits(a.c, a.made[i].device, &state);
        status = aura_cuda_write_seq(a.c, a.call, a.made[i].device, &state);
    }
    return status;
}

static aura_status arrive(struct arrival &a)
{
    on_device here(a.c->device);
    aura_status status = aura_cuda_check_alone(a.c, a.call);
    if (status || (status = check_room(a)))
        return status;
    status = with_memory(a.c, a.call, [&] {
        aura_status each = AURA_OK;
        for (size_t i = 0; i < count_of(a) && !each; i++)
            each = bring(a, i);
        return each ? each : begin_seqs(a);
    });
    for (size_t i = 0; status && i < a.made.size(); i++) {
        const struct dev_seq empty = {};
        aura_cuda_write_seq(a.c, a.call, a.made[i].device, &empty);
        aura_page_table_cut(&a.c->page_table, a.made[i].device, 0);
        a.c->page_table.used[a.made[i].device] = 0;
    }
    return status;
}

extern "C" aura_status aura_cuda_cache_upload(aura_cuda_cache *c, const aura_cache *from, aura_cuda_pair *pairs, size_t *n)
{
    const char *call = "aura_cuda_cache_upload";
    aura_cache_info info = AURA_CACHE_INFO_INIT;
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    aura_status status = aura_cuda_check_same(c, call, from);
    if (status || (status = aura_cache_get_info(from, &info)))
        return status;
    return with_memory(c, call, [&] {
        struct arrival a = {c, call, from, NULL, std::vector<aura_seq>(info.seqs), {}, {}, {}, {}};
        size_t there = a.ids.size();
        aura_status each = aura_cache_list(from, a.ids.data(), &there);
        if (there < a.ids.size())
            a.ids.resize(there);
        if (!each && !(each = arrive(a)))
            report(a.made, pairs, n);
        return each;
    });
}

static aura_status load(aura_cuda_cache *c, const char *call, const struct aura_backend_file *file, aura_cuda_pair *pairs,
                        size_t *n)
{
    return with_memory(c, call, [&] {
        struct arrival a = {c, call, NULL, file, {}, {}, {}, {}, {}};
        aura_status status = arrive(a);
        if (!status)
            report(a.made, pairs, n);
        return status;
    });
}

/* Where a snapshot comes from: a path or, where that is NULL, a source. */
struct origin {
    const char *path;
    aura_source *source;
};

static aura_status load_cache(aura_cuda_cache *c, const char *call, struct origin from, const aura_snapshot_options *options,
                              aura_cuda_pair *pairs, size_t *n)
{
    struct aura_backend_file *file = NULL;
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    aura_status status = aura_backend_open(call, c->shape, from.path, from.source, options, &file);
    if (!status)
        status = load(c, call, file, pairs, n);
    aura_backend_close(file);
    return status;
}

extern "C" aura_status aura_cuda_cache_load(aura_cuda_cache *c, const char *path, const aura_snapshot_options *options,
                                            aura_cuda_pair *pairs, size_t *n)
{
    return load_cache(c, "aura_cuda_cache_load", {path ? path : "", NULL}, options, pairs, n);
}

extern "C" aura_status aura_cuda_cache_read(aura_cuda_cache *c, aura_source *source, const aura_snapshot_options *options,
                                            aura_cuda_pair *pairs, size_t *n)
{
    return load_cache(c, "aura_cuda_cache_read", {NULL, source}, options, pairs, n);
}

static aura_status load_seq(aura_cuda_cache *c, const char *call, struct origin from, const aura_snapshot_options *options,
                            aura_cuda_seq *seq)
{
    struct aura_backend_file *file = NULL;
    aura_cuda_pair made;
    if (!c || !seq)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "seq" : "cache");
    aura_status status = aura_backend_open(call, c->shape, from.path, from.source, options, &file);
    if (!status && aura_backend_file_seqs(file) != 1)
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: of %zu sequences one must be named in seqs", call,
                               aura_backend_file_seqs(file));
    if (!status && !(status = load(c, call, file, &made, NULL)))
        *seq = made.device;
    aura_backend_close(file);
    return status;
}

extern "C" aura_status aura_cuda_seq_load(aura_cuda_cache *c, const char *path, const aura_snapshot_options *options,
                                          aura_cuda_seq *seq)
{
    return load_seq(c, "aura_cuda_seq_load", {path ? path : "", NULL}, options, seq);
}

extern "C" aura_status aura_cuda_seq_read(aura_cuda_cache *c, aura_source *source, const aura_snapshot_options *options,
                                          aura_cuda_seq *seq)
{
    return load_seq(c, "aura_cuda_seq_read", {NULL, source}, options, seq);
}

/* ---- from the device ------------------------------------------------------------------------------------------------- */

/* Sequences on their way back. */
struct departure {
    const aura_cuda_cache *c;
    const char *call;
    aura_cache *to;
    std::vector<aura_cuda_seq> seqs;
    std::unordered_map<uint32_t, uint8_t *> page; /* where in the CPU cache a page is */
    std::vector<aura_cuda_pair> made;
};

static aura_status take_back_pages(struct departure &d, const aura_cuda_pair &made, const struct dev_seq *state)
{
    const aura_cuda_cache *c = d.c;
    const struct aura_page_window *w = &c->dev.window;
    const size_t pages = aura_pages_of(state->len), first = aura_window_first(w, top_of(*state));
    cudaError_t error = cudaSuccess;
    for (size_t p = aura_window_begin(w, first); p < pages && error == cudaSuccess; p = aura_window_next(w, first, p)) {
        const uint32_t there = aura_page_table_number(&c->page_table, made.device, p);
        uint8_t *&here = d.page[there];
        const bool is_new = !here;
        aura_status status = aura_backend_add_page(d.call, d.to, made.host, p, &here);
        if (status)
            return status;
        if (is_new)
            error = cudaMemcpy(here, c->dev.pages + (size_t)there * c->facts.page_bytes, c->facts.page_bytes,
                               cudaMemcpyDeviceToHost);
    }
    return cuda_status(c->ctx, d.call, error, "copying pages from the device");
}

static aura_status take_back(struct departure &d, aura_cuda_seq seq)
{
    struct aura_backend_seq facts;
    struct dev_seq state;
    aura_cuda_pair made = {0, seq};
    aura_status status = aura_cuda_read_seq(d.c, d.call, seq, &state);
    if (status || (status = aura_seq_create(d.to, &made.host)))
        return status;
    d.made.push_back(made);
    if ((status = take_back_pages(d, made, &state)))
        return status;
    aura_backend_set_lengths(d.call, d.to, made.host, state.len, state.closed, &facts);
    return cuda_status(d.c->ctx, d.call, when_done(aura_cuda_copy_rows(d.c, seq, &facts, cudaMemcpyDeviceToHost)),
                       "copying rows from the device");
}

static aura_status depart(struct departure &d)
{
    on_device here(d.c->device);
    aura_status status = with_memory(d.c, d.call, [&] {
        aura_status each = AURA_OK;
        d.made.reserve(d.seqs.size());
        for (size_t i = 0; i < d.seqs.size() && !each; i++)
            each = take_back(d, d.seqs[i]);
        return each;
    });
    for (size_t i = 0; status && i < d.made.size(); i++)
        aura_seq_release(d.to, d.made[i].host);
    return status;
}

static std::vector<aura_cuda_seq> all_seqs(const aura_cuda_cache *c)
{
    std::vector<aura_cuda_seq> seqs;
    for (aura_cuda_seq i = 0; i < c->seqs; i++)
        if (c->page_table.used[i])
            seqs.push_back(i);
    return seqs;
}

extern "C" aura_status aura_cuda_cache_download(const aura_cuda_cache *c, aura_cache *to, aura_cuda_pair *pairs, size_t *n)
{
    const char *call = "aura_cuda_cache_download";
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    aura_status status = aura_cuda_check_same(c, call, to);
    if (status)
        return status;
    return with_memory(c, call, [&] {
        struct departure d = {c, call, to, all_seqs(c), {}, {}};
        aura_status each = depart(d);
        if (!each)
            report(d.made, pairs, n);
        return each;
    });
}

static aura_status check_options(const aura_cuda_cache *c, const char *call, const aura_snapshot_options *options)
{
    if (options && options->size != sizeof *options)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: options.size is %zu, this library knows %zu", call, options->size,
                                 sizeof *options);
    if (options && options->n_seqs && !options->seqs)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: seqs is NULL, n_seqs %zu", call, options->n_seqs);
    return AURA_OK;
}

/* Where a snapshot goes: a path or a sink; or nowhere, because only its length is asked for. */
struct goal {
    const char *path;
    aura_sink *sink;
    size_t *bytes;
};

/* Its length, from the lengths and the pages of the sequences. */
static aura_status measure(const aura_cuda_cache *c, const char *call, const std::vector<aura_cuda_seq> &seqs,
                           const aura_snapshot_options *options, size_t *bytes)
{
    const struct aura_page_window *w = &c->dev.window;
    std::vector<struct aura_backend_seq> facts(seqs.size());
    std::unordered_set<uint32_t> pages;
    on_device here(c->device);
    for (size_t i = 0; i < seqs.size(); i++) {
        struct dev_seq state;
        aura_status status = aura_cuda_read_seq(c, call, seqs[i], &state);
        if (status)
            return status;
        facts[i].len = state.len;
        facts[i].closed = state.closed;
        facts[i].first = aura_window_first(w, top_of(state));
        const size_t first = facts[i].first, end = aura_pages_of(state.len);
        for (size_t p = aura_window_begin(w, first); p < end; p = aura_window_next(w, first, p))
            pages.insert(aura_page_table_number(&c->page_table, seqs[i], p));
    }
    return aura_backend_size(call, c->shape, facts.data(), facts.size(), pages.size(), options, bytes);
}

/* By way of a CPU cache that lives for the call, so that what is in files has one author. */
static aura_status save(const aura_cuda_cache *c, const char *call, const std::vector<aura_cuda_seq> &seqs, struct goal to,
                        const aura_snapshot_options *options, aura_cuda_pair *pairs, size_t *n)
{
    aura_config config = *c->facts.config;
    config.budget_bytes = 0;
    struct departure d = {c, call, NULL, seqs, {}, {}};
    aura_snapshot_options all = AURA_SNAPSHOT_OPTIONS_INIT;
    if (options)
        all = *options;
    all.seqs = NULL;
    all.n_seqs = 0;
    if (to.bytes)
        return measure(c, call, seqs, &all, to.bytes);
    aura_status status = aura_cache_create(c->ctx, &config, &d.to);
    if (!status && !(status = depart(d)))
        status = to.sink ? aura_cache_write(d.to, to.sink, &all) : aura_cache_save(d.to, to.path, &all);
    for (size_t i = 0; i < d.made.size(); i++)
        d.made[i].host = (aura_seq)(i + 1); /* its number in the snapshot */
    if (!status)
        report(d.made, pairs, n);
    aura_cache_destroy(d.to);
    return status;
}

static aura_status save_cache(const aura_cuda_cache *c, const char *call, struct goal to, const aura_snapshot_options *options,
                              aura_cuda_pair *pairs, size_t *n)
{
    if (!c || (!to.path && !to.sink && !to.bytes))
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "where it goes" : "cache");
    aura_status status = check_options(c, call, options);
    if (!status && c->slots)
        status = aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: a cache with slots; sequences are saved", call);
    for (size_t i = 0; options && i < options->n_seqs && !status; i++)
        status = aura_cuda_check_seq(c, call, options->seqs[i]);
    if (status)
        return status;
    return with_memory(c, call, [&] {
        std::vector<aura_cuda_seq> some;
        if (options && options->seqs)
            some.assign(options->seqs, options->seqs + options->n_seqs);
        return save(c, call, options && options->seqs ? some : all_seqs(c), to, options, pairs, n);
    });
}

extern "C" aura_status aura_cuda_cache_save(const aura_cuda_cache *c, const char *path, const aura_snapshot_options *options,
                                            aura_cuda_pair *pairs, size_t *n)
{
    return save_cache(c, "aura_cuda_cache_save", {path, NULL, NULL}, options, pairs, n);
}

extern "C" aura_status aura_cuda_cache_write(const aura_cuda_cache *c, aura_sink *sink, const aura_snapshot_options *options,
                                             aura_cuda_pair *pairs, size_t *n)
{
    return save_cache(c, "aura_cuda_cache_write", {NULL, sink, NULL}, options, pairs, n);
}

extern "C" aura_status aura_cuda_cache_size(const aura_cuda_cache *c, const aura_snapshot_options *options, size_t *bytes)
{
    return save_cache(c, "aura_cuda_cache_size", {NULL, NULL, bytes}, options, NULL, NULL);
}

static aura_status save_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq, struct goal to,
                            const aura_snapshot_options *options)
{
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status || (status = check_options(c, call, options)))
        return status;
    if (!to.path && !to.sink && !to.bytes)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: where it goes is NULL", call);
    if (options && options->seqs)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: seqs is given, and seq too; several are saved with their cache",
                                 call);
    return with_memory(c, call, [&] { return save(c, call, {seq}, to, options, NULL, NULL); });
}

extern "C" aura_status aura_cuda_seq_save(const aura_cuda_cache *c, aura_cuda_seq seq, const char *path,
                                          const aura_snapshot_options *options)
{
    return save_seq(c, "aura_cuda_seq_save", seq, {path, NULL, NULL}, options);
}

extern "C" aura_status aura_cuda_seq_write(const aura_cuda_cache *c, aura_cuda_seq seq, aura_sink *sink,
                                           const aura_snapshot_options *options)
{
    return save_seq(c, "aura_cuda_seq_write", seq, {NULL, sink, NULL}, options);
}

extern "C" aura_status aura_cuda_seq_size(const aura_cuda_cache *c, aura_cuda_seq seq, const aura_snapshot_options *options,
                                          size_t *bytes)
{
    return save_seq(c, "aura_cuda_seq_size", seq, {NULL, NULL, bytes}, options);
}
