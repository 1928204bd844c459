/* Sequences of the device: the host hands out their pages (page_table.h), the device has their lengths. What is done to a sequence
 * is done in a cache, or in all layers of a model at once: a group. */
#include "cache.cuh"

#include <new>
#include <string.h>

/* Memory of the host for a call; NULL where there is none. */
template <class T>
struct host_array {
    T *p;
    explicit host_array(size_t n) : p(new (std::nothrow) T[n ? n : 1]()) {}
    host_array(const host_array &) = delete;
    ~host_array()
    {
        delete[] p;
    }
};

static aura_status no_memory(const aura_cuda_cache *c, const char *call)
{
    return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for the call", call);
}

aura_status aura_cuda_check_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq)
{
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    if (c->slots)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the cache has slots, and no sequences", call);
    if (seq >= c->seqs || !c->page_table.used[seq])
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: there is no sequence %u", call, seq);
    return AURA_OK;
}

aura_status aura_cuda_check_alone(const aura_cuda_cache *c, const char *call)
{
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    if (c->slots)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the cache has slots, and no sequences", call);
    if (c->is_layer)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the cache is a layer of a model, which makes and ends sequences",
                                 call);
    return AURA_OK;
}

/* ---- what the device knows --------------------------------------------------------------------------------------------- */

/* A sequence in all caches of a group: these follow each other on the device. state: [g.n]. */
static aura_status read_states(const struct cache_group &g, const char *call, aura_cuda_seq seq, struct dev_seq *state)
{
    const aura_cuda_cache *c = g.layer[0];
    const aura_status status =
        cuda_status(c->ctx, call, cudaMemcpy2D(state, sizeof *state, c->dev.seqs + seq, c->seqs * sizeof *state, sizeof *state, g.n,
                                               cudaMemcpyDeviceToHost), "reading a sequence");
    for (uint32_t i = 0; i < g.n && !status; i++)
        g.layer[i]->known[seq] = state[i];
    return status;
}

static aura_status write_states(const struct cache_group &g, const char *call, aura_cuda_seq seq, const struct dev_seq *state)
{
    const aura_cuda_cache *c = g.layer[0];
    const aura_status status = cuda_status(
        c->ctx, call, when_done(cudaMemcpy2D(c->dev.seqs + seq, c->seqs * sizeof *state, state, sizeof *state, sizeof *state, g.n,
                                             cudaMemcpyHostToDevice)), "writing a sequence");
    for (uint32_t i = 0; i < g.n && !status; i++)
        g.layer[i]->known[seq] = state[i];
    return status;
}

aura_status aura_cuda_read_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq, struct dev_seq *state)
{
    aura_cuda_cache *const one = (aura_cuda_cache *)c;
    return read_states({&one, 1}, call, seq, state);
}

aura_status aura_cuda_write_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq, const struct dev_seq *state)
{
    aura_cuda_cache *const one = (aura_cuda_cache *)c;
    return write_states({&one, 1}, call, seq, state);
}

/* The page that the next append writes to first: that of the first token without a code or, where there are no codes, of the new
 * token. append.cu goes by the same. */
static uint32_t write_page(const aura_cuda_cache *c, const struct dev_seq *state)
{
    return (uint32_t)(aura_settled(state->len, state->closed, c->dev.k_rows || c->dev.v_rows) / AURA_PAGE);
}

void aura_cuda_set_limits(const aura_cuda_cache *c, aura_cuda_seq seq, struct dev_seq *state)
{
    size_t begin, end;
    aura_page_table_own(&c->page_table, seq, write_page(c, state), &begin, &end);
    state->own = (uint32_t)begin * AURA_PAGE;
    state->reserved = (uint32_t)end * AURA_PAGE;
}

/* Words that the host has the device write, on a stream, as arguments of a kernel: nobody waits, and no memory of the host has to
 * stay until they are there. Neighbours that grow evenly, as page numbers do, are one run. */
struct dev_run {
    uint32_t *to;
    uint32_t value, n, step;
};
enum { WRITES = 160 };
struct dev_writes {
    struct dev_run run[WRITES];
};

extern "C" __global__ void aura_write_any_cuda(const __grid_constant__ struct dev_writes w)
{
    const struct dev_run &r = w.run[blockIdx.x];
    for (uint32_t i = threadIdx.x; i < r.n; i += blockDim.x)
        r.to[i] = r.value + i * r.step;
}

struct writer {
    const aura_cuda_cache *c;
    const char *call;
    struct CUstream_st *stream;
    aura_status status = AURA_OK;
    uint32_t n = 0;
    struct dev_writes w;
    writer(const aura_cuda_cache *cache, const char *name, struct CUstream_st *on) : c(cache), call(name), stream(on) {}
    void add(uint32_t *to, uint32_t value)
    {
        struct dev_run *last = n ? &w.run[n - 1] : NULL;
        if (last && to == last->to + last->n && (last->n == 1 || value == last->value + last->n * last->step)) {
            last->step = last->n == 1 ? value - last->value : last->step;
            last->n++;
            return;
        }
        if (n == WRITES)
            flush();
        w.run[n++] = {to, value, 1, 0};
    }
    aura_status flush()
    {
        void *params[] = {&w};
        const struct launch how = {dim3(n), 32, 0, stream};
        if (n && !status)
            status = aura_cuda_launch(c, call, "write_any_cuda", (const void *)aura_write_any_cuda, how, params);
        n = 0;
        return status;
    }
};

/* Entries [first, end) of the list of a sequence. */
static void write_list(struct writer &w, const aura_cuda_cache *c, aura_cuda_seq seq, size_t first, size_t end)
{
    for (size_t i = first; i < end; i++)
        w.add(c->dev.table + (size_t)seq * c->table_pages + i, aura_page_table_number(&c->page_table, seq, i));
}

cudaError_t aura_cuda_write_list(const aura_cuda_cache *c, aura_cuda_seq seq, size_t first, size_t end)
{
    struct writer w(c, "writing a list", NULL);
    write_list(w, c, seq, first, end);
    return w.flush() ? cudaErrorLaunchFailure : cudaSuccess;
}

aura_status aura_cuda_write_lists(const aura_cuda_cache *c, const char *call)
{
    struct writer w(c, call, NULL);
    for (uint32_t i = 0; i < c->seqs; i++)
        if (c->page_table.used[i])
            write_list(w, c, i, 0, c->page_table.seq[i].end);
    return w.flush();
}

/* Reads what the device knows of a sequence. Pages that have left its window are given back first, and the device is told which
 * pages the sequence still has: otherwise it could be cut back to the beginning, and then write into pages that others have by
 * then. */
static aura_status settle(const struct cache_group &g, const char *call, aura_cuda_seq seq, struct dev_seq *state)
{
    aura_status status = read_states(g, call, seq, state);
    bool changed = false;
    for (uint32_t i = 0; i < g.n && !status; i++) {
        const struct aura_page_list *s = &g.layer[i]->page_table.seq[seq];
        const size_t first = s->first, end = s->end;
        aura_page_table_slide(&g.layer[i]->page_table, seq, top_of(state[i]));
        if (s->first == first && s->end == end)
            continue;
        aura_cuda_set_limits(g.layer[i], seq, &state[i]);
        changed = true;
    }
    return status || !changed ? status : write_states(g, call, seq, state);
}

/* Checks that a sequence can be cut to `tokens` tokens. */
static aura_status check_cut(const aura_cuda_cache *c, const char *call, const struct dev_seq *state, uint64_t tokens)
{
    if (tokens > state->len)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens; the sequence has %u", call,
                                 (unsigned long long)tokens, state->len);
    const size_t first = aura_window_first(&c->dev.window, top_of(*state));
    if (!aura_window_may_cut(&c->dev.window, first, tokens))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT,
                                 "%s: of the last %llu before token %llu some are gone; the least is %llu tokens", call,
                                 (unsigned long long)c->dev.window.tokens, (unsigned long long)tokens,
                                 (unsigned long long)aura_window_least_cut(&c->dev.window, first));
    return AURA_OK;
}

/* The sequence has `tokens` tokens from now on. */
static inline AURA_ANYWHERE void cut(struct dev_seq *state, const struct aura_page_window *window, uint32_t tokens)
{
    state->top = aura_window_begins_anew(window, tokens) ? tokens : top_of(*state);
    state->len = tokens;
    state->closed = (uint32_t)aura_closed_by_cut(state->closed, tokens);
}

/* ---- coming and going ----------------------------------------------------------------------------------------------- */

aura_status aura_cuda_find_place(const aura_cuda_cache *c, const char *call, aura_cuda_seq *seq)
{
    *seq = aura_page_table_place(&c->page_table);
    if (*seq == AURA_NO_PAGE)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_PAGES, "%s: all %u sequences are in use; give seqs a larger number", call,
                                 c->seqs);
    return AURA_OK;
}

aura_status aura_cuda_group_create(const struct cache_group &g, const char *call, aura_cuda_seq *seq)
{
    const aura_cuda_cache *c = g.layer[0];
    aura_cuda_seq made;
    host_array<struct dev_seq> empty(g.n);
    if (!seq)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call);
    if (!empty.p)
        return no_memory(c, call);
    on_device here(c->device);
    aura_status status = aura_cuda_find_place(c, call, &made);
    if (status || (status = write_states(g, call, made, empty.p)))
        return status;
    for (uint32_t i = 0; i < g.n; i++)
        g.layer[i]->page_table.used[made] = 1;
    *seq = made;
    return AURA_OK;
}

aura_status aura_cuda_group_release(const struct cache_group &g, const char *call, aura_cuda_seq seq)
{
    const aura_cuda_cache *c = g.layer[0];
    host_array<struct dev_seq> state(g.n), empty(g.n);
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status)
        return status;
    if (!state.p || !empty.p)
        return no_memory(c, call);
    on_device here(c->device);
    if ((status = read_states(g, call, seq, state.p)) || (status = write_states(g, call, seq, empty.p)))
        return status;
    for (uint32_t i = 0; i < g.n; i++) {
        g.layer[i]->tiles_of_released += state.p[i].tiles;
        aura_page_table_cut(&g.layer[i]->page_table, seq, 0);
        g.layer[i]->page_table.used[seq] = 0;
    }
    return AURA_OK;
}

/* The f16 rows of a sequence to another one. */
static cudaError_t copy_rows(const aura_cuda_cache *c, aura_cuda_seq from, aura_cuda_seq to)
{
    const aura_config *f = c->facts.config;
    cudaError_t error = cudaSuccess;
    for (int values = 0; values < 2 && error == cudaSuccess; values++) {
        __half *rows = values ? c->dev.v_rows : c->dev.k_rows;
        const size_t n = (size_t)f->kv_heads * c->facts.rows * (values ? f->v_dim : f->k_dim);
        if (rows)
            error = cudaMemcpyAsync(rows + to * n, rows + from * n, n * sizeof *rows, cudaMemcpyDeviceToDevice, 0);
    }
    return error;
}

/* The pages of a fork, in all caches or in none. tokens: UINT64_MAX for all that it has in each. */
static aura_status share_pages(const struct cache_group &g, const char *call, aura_cuda_seq from, uint64_t tokens,
                               const struct dev_seq *parent, aura_cuda_seq made)
{
    aura_status status = AURA_OK;
    for (uint32_t i = 0; i < g.n && !status; i++) {
        const size_t pages = aura_pages_of(tokens == UINT64_MAX ? parent[i].len : tokens);
        if (aura_page_table_share(&g.layer[i]->page_table, from, pages, made))
            status = aura_backend_fail(g.layer[i]->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for a list of %zu pages", call, pages);
    }
    for (uint32_t i = 0; i < g.n && status; i++)
        aura_page_table_cut(&g.layer[i]->page_table, made, 0);
    return status;
}

/* What parent and child are from now on, and what the device has of the child. */
static aura_status begin_fork(const struct cache_group &g, const char *call, aura_cuda_seq from, uint64_t tokens,
                              aura_cuda_seq made, struct dev_seq *parent, struct dev_seq *child)
{
    struct writer w(g.layer[0], call, NULL);
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < g.n; i++) {
        aura_cuda_cache *c = g.layer[i];
        const uint32_t len = tokens == UINT64_MAX ? parent[i].len : (uint32_t)tokens;
        if (c->dev.window.span) /* a page that is shared is one entry of its list; both must reserve anyway */
            aura_page_table_cut(&c->page_table, from, aura_pages_of(parent[i].len));
        child[i].len = parent[i].len, child[i].closed = parent[i].closed, child[i].top = parent[i].top;
        cut(&child[i], &c->dev.window, len);
        aura_cuda_set_limits(c, made, &child[i]);
        aura_cuda_set_limits(c, from, &parent[i]);
        write_list(w, c, made, 0, aura_pages_of(len));
        if (error == cudaSuccess)
            error = copy_rows(c, from, made);
    }
    aura_status status = w.flush();
    if (!status)
        status = cuda_status(g.layer[0]->ctx, call, when_done(error), "copying a sequence");
    if (status || (status = write_states(g, call, from, parent)))
        return status;
    return write_states(g, call, made, child);
}

aura_status aura_cuda_group_fork(const struct cache_group &g, const char *call, aura_cuda_seq from, uint64_t tokens,
                                 aura_cuda_seq *seq)
{
    const aura_cuda_cache *c = g.layer[0];
    host_array<struct dev_seq> parent(g.n), child(g.n);
    aura_cuda_seq made;
    aura_status status = aura_cuda_check_seq(c, call, from);
    if (!status && !seq)
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call);
    if (status)
        return status;
    if (!parent.p || !child.p)
        return no_memory(c, call);
    on_device here(c->device);
    if ((status = aura_cuda_find_place(c, call, &made)) || (status = settle(g, call, from, parent.p)))
        return status;
    for (uint32_t i = 0; i < g.n && !status && tokens != UINT64_MAX; i++)
        status = check_cut(g.layer[i], call, &parent.p[i], tokens);
    if (status || (status = share_pages(g, call, from, tokens, parent.p, made)))
        return status;
    status = begin_fork(g, call, from, tokens, made, parent.p, child.p);
    for (uint32_t i = 0; i < g.n; i++) {
        if (status)
            aura_page_table_cut(&g.layer[i]->page_table, made, 0);
        g.layer[i]->page_table.used[made] = !status;
    }
    if (!status)
        *seq = made;
    return status;
}

/* ---- space ---------------------------------------------------------------------------------------------------------- */

/* Copies shared pages that the sequence replaces, as far as it may have tokens in them, and has the device know the new ones. */
static cudaError_t carry_out(struct writer &w, aura_cuda_cache *c, aura_cuda_seq seq, size_t full,
                             const struct aura_page_change *change)
{
    const struct aura_page_table *t = &c->page_table;
    const size_t bytes = c->facts.page_bytes;
    size_t first = change->had; /* entry that is new */
    cudaError_t error = cudaSuccess;
    for (size_t p = change->own; p < change->own_end && error == cudaSuccess;
         p = aura_window_next(&t->window, change->first, p)) {
        const struct aura_page *shared = aura_page_replaced(&t->window, &t->seq[seq], p);
        if (!shared)
            continue;
        first = p < first ? p : first;
        const size_t to = aura_page_table_number(t, seq, p), from = (size_t)(shared - t->page);
        if (p >= full)
            continue;
        error = cudaMemcpyAsync(c->dev.pages + to * bytes, c->dev.pages + from * bytes, bytes, cudaMemcpyDeviceToDevice, w.stream);
        c->pages_copied++;
    }
    write_list(w, c, seq, first, change->end);
    return error;
}

static aura_status fail_reserve(const aura_cuda_cache *c, const char *call, aura_status status, uint64_t tokens, size_t pages)
{
    if (status == AURA_OUT_OF_PAGES)
        return aura_backend_fail(c->ctx, status, "%s: %llu tokens need %zu more pages; %zu are free", call,
                                 (unsigned long long)tokens, pages, aura_cuda_want_pages(c, 0));
    return aura_backend_fail(c->ctx, status, "%s: no memory for a list of %zu pages", call, pages);
}

/* Begins the change of one cache. */
static aura_status begin_change(aura_cuda_cache *c, const char *call, aura_cuda_seq seq, uint64_t tokens,
                                const struct dev_seq *state, struct aura_page_change *change)
{
    size_t taken;
    const size_t write = write_page(c, state), end = aura_pages_of(tokens);
    aura_status status = aura_page_table_begin(&c->page_table, seq, write, end, change, &taken);
    if (status == AURA_OUT_OF_PAGES && aura_cuda_want_pages(c, taken) >= taken)
        status = aura_page_table_begin(&c->page_table, seq, write, end, change, &taken);
    return status ? fail_reserve(c, call, status, tokens, taken) : AURA_OK;
}

/* Which pages it may now write to, on the device too. */
static void write_limits(struct writer &w, aura_cuda_cache *c, aura_cuda_seq seq, struct dev_seq *state)
{
    aura_cuda_set_limits(c, seq, state);
    w.add(&c->dev.seqs[seq].own, state->own);
    w.add(&c->dev.seqs[seq].reserved, state->reserved);
    c->known[seq] = *state;
}

/* Has the device do what the lists say, on a stream. */
static aura_status carry_out_all(const struct cache_group &g, struct writer &w, aura_cuda_seq seq, const struct dev_seq *state,
                                 const struct aura_page_change *change, bool waits)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < g.n && error == cudaSuccess; i++) {
        const size_t full = waits ? aura_pages_of(state[i].len) : SIZE_MAX; /* it may have grown since the host looked */
        error = carry_out(w, g.layer[i], seq, full, &change[i]);
    }
    aura_status status = w.flush();
    if (!status)
        status = cuda_status(w.c->ctx, w.call, waits ? when_done(error) : error, "copying shared pages or writing the page table");
    return status;
}

aura_status aura_cuda_group_reserve(const struct cache_group &g, const char *call, aura_cuda_seq seq, uint64_t tokens,
                                    struct CUstream_st *stream, bool waits)
{
    const aura_cuda_cache *c = g.layer[0];
    host_array<struct dev_seq> state(g.n);
    host_array<struct aura_page_change> change(g.n);
    aura_status status = aura_cuda_check_seq(c, call, seq);
    uint32_t begun = 0;
    if (status)
        return status;
    if (tokens > (uint64_t)c->table_pages * AURA_PAGE)
        return aura_backend_fail(c->ctx, AURA_TOO_LARGE, "%s: %llu tokens; a sequence of this cache has at most %llu", call,
                                 (unsigned long long)tokens, (unsigned long long)c->table_pages * AURA_PAGE);
    if (!state.p || !change.p)
        return no_memory(c, call);
    on_device here(c->device);
    if (waits && (status = settle(g, call, seq, state.p)))
        return status;
    for (uint32_t i = 0; i < g.n && !waits; i++)
        state.p[i] = g.layer[i]->known[seq];
    for (; begun < g.n && !status; begun += !status)
        status = begin_change(g.layer[begun], call, seq, tokens, &state.p[begun], &change.p[begun]);
    struct writer w(c, call, stream);
    if (!status)
        status = carry_out_all(g, w, seq, state.p, change.p, waits);
    for (uint32_t i = 0; i < begun; i++) {
        if (status)
            aura_page_table_undo(&g.layer[i]->page_table, seq, &change.p[i]);
        else
            aura_page_table_commit(&g.layer[i]->page_table, seq, &change.p[i]);
    }
    if (status)
        return status;
    for (uint32_t i = 0; i < g.n; i++)
        write_limits(w, g.layer[i], seq, &state.p[i]);
    status = w.flush();
    return status || !waits ? status : cuda_status(c->ctx, call, when_done(cudaSuccess), "writing a sequence");
}

aura_status aura_cuda_group_truncate(const struct cache_group &g, const char *call, aura_cuda_seq seq, uint64_t tokens)
{
    const aura_cuda_cache *c = g.layer[0];
    host_array<struct dev_seq> state(g.n);
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status)
        return status;
    if (!state.p)
        return no_memory(c, call);
    on_device here(c->device);
    if ((status = settle(g, call, seq, state.p)))
        return status;
    for (uint32_t i = 0; i < g.n && !status; i++)
        status = check_cut(g.layer[i], call, &state.p[i], tokens);
    if (status)
        return status;
    for (uint32_t i = 0; i < g.n; i++) {
        cut(&state.p[i], &g.layer[i]->dev.window, (uint32_t)tokens);
        aura_page_table_cut(&g.layer[i]->page_table, seq, aura_pages_of(tokens));
        aura_cuda_set_limits(g.layer[i], seq, &state.p[i]);
    }
    return write_states(g, call, seq, state.p);
}

/* ---- beams -------------------------------------------------------------------------------------------------------------- */

/* That all are there, once each, and that a choice is one of them. */
static aura_status check_choice(const aura_cuda_cache *c, const char *call, const aura_cuda_seq *from, size_t n_from,
                                const uint32_t *which, size_t n)
{
    host_array<uint8_t> seen(c->seqs);
    if (!seen.p)
        return no_memory(c, call);
    for (size_t i = 0; i < n_from; i++) {
        aura_status status = aura_cuda_check_seq(c, call, from[i]);
        if (status)
            return status;
        if (seen.p[from[i]]++)
            return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: sequence %u is in `from` twice", call, from[i]);
    }
    for (size_t i = 0; i < n; i++)
        if (which[i] >= n_from)
            return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: which[%zu] is %u of %zu", call, i, which[i], n_from);
    return AURA_OK;
}

aura_status aura_cuda_group_select(const struct cache_group &g, const char *call, const aura_cuda_seq *from, size_t n_from,
                                   const uint32_t *which, size_t n, aura_cuda_seq *to)
{
    const aura_cuda_cache *c = g.layer[0];
    if ((n_from && !from) || (n && (!which || !to)))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call,
                                 n_from && !from ? "from" : which ? "to" : "which");
    host_array<aura_cuda_seq> made(n);
    host_array<uint8_t> chosen(n_from), forked(n);
    if (!made.p || !chosen.p || !forked.p)
        return no_memory(c, call);
    aura_status status = check_choice(c, call, from, n_from, which, n);
    size_t done = 0;
    for (; done < n && !status; done += !status) {
        made.p[done] = from[which[done]];
        if (chosen.p[which[done]])
            status = aura_cuda_group_fork(g, call, from[which[done]], UINT64_MAX, &made.p[done]), forked.p[done] = 1;
        chosen.p[which[done]] = 1;
    }
    for (size_t i = 0; i < done && status; i++)
        if (forked.p[i])
            aura_cuda_group_release(g, call, made.p[i]);
    for (size_t i = 0; i < n_from && !status; i++)
        if (!chosen.p[i])
            status = aura_cuda_group_release(g, call, from[i]);
    if (!status && n)
        memcpy(to, made.p, n * sizeof *to);
    return status;
}

/* ---- of one cache -------------------------------------------------------------------------------------------------------- */

extern "C" aura_status aura_cuda_seq_create(aura_cuda_cache *c, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_seq_create";
    const aura_status status = aura_cuda_check_alone(c, call);
    return status ? status : aura_cuda_group_create({&c, 1}, call, seq);
}

extern "C" aura_status aura_cuda_seq_release(aura_cuda_cache *c, aura_cuda_seq seq)
{
    const char *call = "aura_cuda_seq_release";
    const aura_status status = aura_cuda_check_alone(c, call);
    return status ? status : aura_cuda_group_release({&c, 1}, call, seq);
}

extern "C" aura_status aura_cuda_seq_fork(aura_cuda_cache *c, aura_cuda_seq from, uint64_t tokens, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_seq_fork";
    const aura_status status = aura_cuda_check_alone(c, call);
    /* UINT64_MAX means something else there; nobody has so many either. */
    return status ? status : aura_cuda_group_fork({&c, 1}, call, from, tokens == UINT64_MAX ? tokens - 1 : tokens, seq);
}

extern "C" aura_status aura_cuda_seq_reserve(aura_cuda_cache *c, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_seq_reserve";
    const aura_status status = aura_cuda_check_seq(c, call, seq);
    return status ? status : aura_cuda_group_reserve({&c, 1}, call, seq, tokens, NULL, true);
}

extern "C" aura_status aura_cuda_seq_truncate(aura_cuda_cache *c, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_seq_truncate";
    const aura_status status = aura_cuda_check_seq(c, call, seq);
    return status ? status : aura_cuda_group_truncate({&c, 1}, call, seq, tokens);
}

extern "C" aura_status aura_cuda_seqs_select(aura_cuda_cache *c, const aura_cuda_seq *from, size_t n_from, const uint32_t *which,
                                             size_t n, aura_cuda_seq *to)
{
    const char *call = "aura_cuda_seqs_select";
    const aura_status status = aura_cuda_check_alone(c, call);
    return status ? status : aura_cuda_group_select({&c, 1}, call, from, n_from, which, n, to);
}

/* ---- on a stream --------------------------------------------------------------------------------------------------------- */

extern "C" aura_status aura_cuda_seq_reserve_on(aura_cuda_cache *c, aura_cuda_seq seq, uint64_t tokens, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_seq_reserve_on";
    const aura_status status = aura_cuda_check_seq(c, call, seq);
    return status ? status : aura_cuda_group_reserve({&c, 1}, call, seq, tokens, stream, false);
}

struct dev_truncate {
    struct dev_seq *seqs;
    struct aura_page_window window;
    const uint32_t *ids, *tokens;
    uint32_t n_seqs, n;
};

extern "C" __global__ void aura_truncate_any_cuda(const __grid_constant__ struct dev_truncate t)
{
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= t.n || t.ids[i] >= t.n_seqs)
        return;
    struct dev_seq *seq = &t.seqs[t.ids[i]];
    const uint32_t tokens = min(seq->len, t.tokens[i]), top = top_of(*seq);
    if (!aura_window_may_cut(&t.window, aura_window_first(&t.window, top), tokens)) {
        atomicOr(&seq->status, (uint32_t)AURA_CUDA_GONE);
        return;
    }
    cut(seq, &t.window, tokens);
}

extern "C" aura_status aura_cuda_truncate(aura_cuda_cache *c, const aura_cuda_seq *seqs, const uint32_t *tokens, uint32_t n_seqs,
                                          struct CUstream_st *stream)
{
    const char *call = "aura_cuda_truncate";
    if (c && c->slots)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the cache has slots, and no sequences", call);
    if (!c || !seqs || !tokens)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, !c ? "cache" : seqs ? "tokens"
                                 : "seqs");
    if (n_seqs == 0 || n_seqs > ATTEND_MAX_SEQS)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u sequences (1 to %d)", call, n_seqs, (int)ATTEND_MAX_SEQS);
    on_device here(c->device);
    struct dev_truncate t = {c->dev.seqs, c->dev.window, seqs, tokens, c->dev.n_seqs, n_seqs};
    void *params[] = {&t};
    const struct launch how = {dim3((n_seqs + 127) / 128), 128, 0, stream};
    return aura_cuda_launch(c, call, "truncate_any_cuda", (const void *)aura_truncate_any_cuda, how, params);
}

/* ---- information ---------------------------------------------------------------------------------------------------- */

extern "C" aura_status aura_cuda_seq_get_info(const aura_cuda_cache *c, aura_cuda_seq seq, aura_cuda_seq_info *info)
{
    const char *call = "aura_cuda_seq_get_info";
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (!status && (!info || info->size != sizeof *info))
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: info is NULL or info.size is wrong", call);
    if (status)
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_read_seq(c, call, seq, &state)))
        return status;
    info->tokens = state.len;
    info->closed = state.closed;
    info->first = aura_window_first_token(&c->dev.window, aura_window_first(&c->dev.window, top_of(state)));
    info->reserved = state.reserved;
    info->pages = aura_list_count(&c->page_table.window, &c->page_table.seq[seq]);
    info->shared_pages = aura_list_shared(&c->page_table.window, &c->page_table.seq[seq]);
    info->status = state.status;
    return AURA_OK;
}

extern "C" aura_status aura_cuda_seq_clear_status(aura_cuda_cache *c, aura_cuda_seq seq)
{
    const char *call = "aura_cuda_seq_clear_status";
    uint32_t none = 0;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status)
        return status;
    on_device here(c->device);
    return cuda_status(c->ctx, call,
                       when_done(cudaMemcpy(&c->dev.seqs[seq].status, &none, sizeof none, cudaMemcpyHostToDevice)),
                       "writing a sequence");
}
