/* Sequences of the device: the host hands out their pages (page_table.h), the device has their lengths. */
#include "cache.cuh"

aura_status aura_cuda_check_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq)
{
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    if (seq >= c->seqs || !c->page_table.used[seq])
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: there is no sequence %u", call, seq);
    return AURA_OK;
}

aura_status aura_cuda_read_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq, struct dev_seq *state)
{
    return cuda_status(c->ctx, call, cudaMemcpy(state, c->dev.seqs + seq, sizeof *state, cudaMemcpyDeviceToHost),
                       "reading a sequence");
}

aura_status aura_cuda_write_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq, const struct dev_seq *state)
{
    return cuda_status(c->ctx, call, when_done(cudaMemcpy(c->dev.seqs + seq, state, sizeof *state, cudaMemcpyHostToDevice)),
                       "writing a sequence");
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

/* Reads what the device knows of a sequence. Pages that have left its window are given back first, and the device is told which
 * pages the sequence still has: otherwise it could be cut back to the beginning, and then write into pages that others have by
 * then. */
static aura_status settle(aura_cuda_cache *c, const char *call, aura_cuda_seq seq, struct dev_seq *state)
{
    const struct aura_page_list *s = &c->page_table.seq[seq];
    const size_t first = s->first, end = s->end;
    aura_status status = aura_cuda_read_seq(c, call, seq, state);
    if (status)
        return status;
    aura_page_table_slide(&c->page_table, seq, top_of(*state));
    if (s->first == first && s->end == end)
        return AURA_OK;
    aura_cuda_set_limits(c, seq, state);
    return aura_cuda_write_seq(c, call, seq, state);
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

extern "C" aura_status aura_cuda_seq_create(aura_cuda_cache *c, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_seq_create";
    struct dev_seq empty = {};
    aura_cuda_seq made;
    if (!c || !seq)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "seq" : "cache");
    on_device here(c->device);
    aura_status status = aura_cuda_find_place(c, call, &made);
    if (status || (status = aura_cuda_write_seq(c, call, made, &empty)))
        return status;
    c->page_table.used[made] = 1;
    *seq = made;
    return AURA_OK;
}

extern "C" aura_status aura_cuda_seq_release(aura_cuda_cache *c, aura_cuda_seq seq)
{
    const char *call = "aura_cuda_seq_release";
    struct dev_seq empty = {};
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status)
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_write_seq(c, call, seq, &empty)))
        return status;
    aura_page_table_cut(&c->page_table, seq, 0);
    c->page_table.used[seq] = 0;
    return AURA_OK;
}

cudaError_t aura_cuda_write_list(const aura_cuda_cache *c, aura_cuda_seq seq, size_t first, size_t end)
{
    uint32_t number[1024];
    cudaError_t error = cudaSuccess;
    for (size_t at = first, n; at < end && error == cudaSuccess; at += n) {
        for (n = 0; n < 1024 && at + n < end; n++)
            number[n] = aura_page_table_number(&c->page_table, seq, at + n);
        error = cudaMemcpy(c->dev.table + (size_t)seq * c->table_pages + at, number, n * sizeof *number, cudaMemcpyHostToDevice);
    }
    return error;
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
            error = cudaMemcpy(rows + to * n, rows + from * n, n * sizeof *rows, cudaMemcpyDeviceToDevice);
    }
    return error;
}

extern "C" aura_status aura_cuda_seq_fork(aura_cuda_cache *c, aura_cuda_seq from, uint64_t tokens, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_seq_fork";
    struct dev_seq parent, child = {};
    aura_cuda_seq made;
    aura_status status = aura_cuda_check_seq(c, call, from);
    if (!status && !seq)
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call);
    if (status)
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_find_place(c, call, &made)) || (status = settle(c, call, from, &parent)) ||
        (status = check_cut(c, call, &parent, tokens)))
        return status;
    const size_t pages = aura_pages_of(tokens);
    if (aura_page_table_share(&c->page_table, from, pages, made))
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for a list of %zu pages", call, pages);
    if (c->dev.window.span) /* a page that is shared is one entry of its list; both must reserve anyway */
        aura_page_table_cut(&c->page_table, from, aura_pages_of(parent.len));
    child.len = parent.len, child.closed = parent.closed, child.top = parent.top;
    cut(&child, &c->dev.window, (uint32_t)tokens);
    aura_cuda_set_limits(c, made, &child);
    aura_cuda_set_limits(c, from, &parent);
    cudaError_t error = aura_cuda_write_list(c, made, 0, pages);
    if (error == cudaSuccess)
        error = copy_rows(c, from, made);
    status = cuda_status(c->ctx, call, when_done(error), "copying a sequence");
    if (status || (status = aura_cuda_write_seq(c, call, from, &parent)) || (status = aura_cuda_write_seq(c, call, made, &child))) {
        aura_page_table_cut(&c->page_table, made, 0);
        return status;
    }
    c->page_table.used[made] = 1;
    *seq = made;
    return AURA_OK;
}

/* ---- space ---------------------------------------------------------------------------------------------------------- */

/* Copies shared pages that the sequence replaces, as far as it has tokens in them, and has the device know the new ones. */
static cudaError_t carry_out(const aura_cuda_cache *c, aura_cuda_seq seq, uint32_t len, const struct aura_page_change *change)
{
    const struct aura_page_table *t = &c->page_table;
    const size_t full = aura_pages_of(len), bytes = c->facts.page_bytes;
    size_t first = change->had; /* entry that is new */
    cudaError_t error = cudaSuccess;
    for (size_t p = change->own; p < change->own_end && error == cudaSuccess;
         p = aura_window_next(&t->window, change->first, p)) {
        const struct aura_page *shared = aura_page_replaced(&t->window, &t->seq[seq], p);
        if (!shared)
            continue;
        first = p < first ? p : first;
        const size_t to = aura_page_table_number(t, seq, p), from = (size_t)(shared - t->page);
        if (p < full)
            error = cudaMemcpy(c->dev.pages + to * bytes, c->dev.pages + from * bytes, bytes, cudaMemcpyDeviceToDevice);
    }
    return when_done(error == cudaSuccess ? aura_cuda_write_list(c, seq, first, change->end) : error);
}

static aura_status fail_reserve(const aura_cuda_cache *c, const char *call, aura_status status, uint64_t tokens, size_t pages)
{
    if (status == AURA_OUT_OF_PAGES)
        return aura_backend_fail(c->ctx, status, "%s: %llu tokens need %zu more pages; %zu are free", call,
                                 (unsigned long long)tokens, pages, c->page_table.pool.n_free);
    return aura_backend_fail(c->ctx, status, "%s: no memory for a list of %zu pages", call, pages);
}

extern "C" aura_status aura_cuda_seq_reserve(aura_cuda_cache *c, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_seq_reserve";
    struct aura_page_change change;
    size_t taken;
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status)
        return status;
    if (tokens > (uint64_t)c->table_pages * AURA_PAGE)
        return aura_backend_fail(c->ctx, AURA_TOO_LARGE, "%s: %llu tokens; a sequence of this cache has at most %llu", call,
                                 (unsigned long long)tokens, (unsigned long long)c->table_pages * AURA_PAGE);
    on_device here(c->device);
    if ((status = settle(c, call, seq, &state)))
        return status;
    if ((status = aura_page_table_begin(&c->page_table, seq, write_page(c, &state), aura_pages_of(tokens), &change, &taken)))
        return fail_reserve(c, call, status, tokens, taken);
    const cudaError_t error = carry_out(c, seq, state.len, &change);
    if ((status = cuda_status(c->ctx, call, error, "copying shared pages or writing the page table"))) {
        aura_page_table_undo(&c->page_table, seq, &change);
        return status;
    }
    aura_page_table_commit(&c->page_table, seq, &change);
    aura_cuda_set_limits(c, seq, &state);
    return aura_cuda_write_seq(c, call, seq, &state);
}

extern "C" aura_status aura_cuda_seq_truncate(aura_cuda_cache *c, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_seq_truncate";
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status)
        return status;
    on_device here(c->device);
    if ((status = settle(c, call, seq, &state)) || (status = check_cut(c, call, &state, tokens)))
        return status;
    cut(&state, &c->dev.window, (uint32_t)tokens);
    aura_page_table_cut(&c->page_table, seq, aura_pages_of(tokens));
    aura_cuda_set_limits(c, seq, &state);
    return aura_cuda_write_seq(c, call, seq, &state);
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
