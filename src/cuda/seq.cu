/* Sequences of the device: the host hands out their pages (page_table.h), the device has their lengths. */
#include "cache.cuh"

aura_status aura_cuda_check_seq(const aura_cuda_cache *c, const char *call, aura_cuda_seq seq)
{
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    if (seq >= c->seqs || !c->page_table.seq[seq].used)
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

static uint32_t pages_of(uint64_t tokens)
{
    return (uint32_t)((tokens + AURA_PAGE - 1) / AURA_PAGE);
}

/* The page that the next append writes to first: that of the first token without a code or, where there are no codes, of the new
 * token. append.cu goes by the same. */
static uint32_t write_page(const aura_cuda_cache *c, const struct dev_seq *state)
{
    return (c->dev.k_rows || c->dev.v_rows ? state->closed : state->len) / AURA_PAGE;
}

void aura_cuda_set_limits(const aura_cuda_cache *c, aura_cuda_seq seq, struct dev_seq *state)
{
    uint32_t begin, end;
    aura_page_table_own(&c->page_table, seq, write_page(c, state), &begin, &end);
    state->own = begin * AURA_PAGE;
    state->reserved = end * AURA_PAGE;
}

/* What the device knows of a sequence. Pages that slid out of its window are given back first, and the device told which it has left: it
 * might otherwise go back to the beginning, and on into pages of others. */
static aura_status settle(aura_cuda_cache *c, const char *call, aura_cuda_seq seq, struct dev_seq *state)
{
    const struct aura_page_list *s = &c->page_table.seq[seq];
    const uint32_t first = s->first, pages = s->pages;
    aura_status status = aura_cuda_read_seq(c, call, seq, state);
    if (status)
        return status;
    aura_page_table_slide(&c->page_table, seq, top_of(*state));
    if (s->first == first && s->pages == pages)
        return AURA_OK;
    aura_cuda_set_limits(c, seq, state);
    return aura_cuda_write_seq(c, call, seq, state);
}

/* That a sequence can be cut to so many tokens. */
static aura_status check_cut(const aura_cuda_cache *c, const char *call, const struct dev_seq *state, uint64_t tokens)
{
    if (tokens > state->len)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %llu tokens; the sequence has %u", call, (unsigned long long)tokens,
                             state->len);
    if (!aura_page_table_may_cut(&c->dev.window, top_of(*state), (uint32_t)tokens))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: of the last %u before token %llu some are gone; the least is %u tokens", call,
                             c->dev.window.tokens, (unsigned long long)tokens,
                             aura_page_table_first(&c->dev.window, top_of(*state)) * AURA_PAGE + c->dev.window.tokens);
    return AURA_OK;
}

/* It has so many tokens from now on. */
static void cut(const aura_cuda_cache *c, struct dev_seq *state, uint32_t tokens)
{
    state->top = aura_page_table_top(&c->dev.window, top_of(*state), tokens);
    state->len = tokens;
    state->closed = state->closed < tokens ? state->closed : tokens;
}

/* ---- coming and going ----------------------------------------------------------------------------------------------- */

aura_status aura_cuda_find_place(const aura_cuda_cache *c, const char *call, aura_cuda_seq *seq)
{
    *seq = aura_page_table_place(&c->page_table);
    if (*seq == AURA_NO_PAGE)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_PAGES, "%s: all %u sequences are in use; give seqs a larger number", call, c->seqs);
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
    c->page_table.seq[made].used = 1;
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
    c->page_table.seq[seq].used = 0;
    return AURA_OK;
}

cudaError_t aura_cuda_write_list(const aura_cuda_cache *c, aura_cuda_seq seq, const uint32_t *page, uint32_t first, uint32_t end)
{
    if (first == end)
        return cudaSuccess;
    return cudaMemcpy(c->dev.table + (size_t)seq * c->table_pages + first, page, (size_t)(end - first) * sizeof *page,
                      cudaMemcpyHostToDevice);
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
    const uint32_t pages = pages_of(tokens);
    if (aura_page_table_share(&c->page_table, from, pages, made))
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory for a list of %u pages", call, pages);
    if (c->dev.window.ring) /* a page that is shared is one entry of its list; both must reserve anyway */
        aura_page_table_cut(&c->page_table, from, pages_of(parent.len));
    child.len = parent.len, child.closed = parent.closed, child.top = parent.top;
    cut(c, &child, (uint32_t)tokens);
    aura_cuda_set_limits(c, made, &child);
    aura_cuda_set_limits(c, from, &parent);
    cudaError_t error = aura_cuda_write_list(c, made, c->page_table.seq[made].page, 0, pages);
    if (error == cudaSuccess)
        error = copy_rows(c, from, made);
    status = cuda_status(c->ctx, call, when_done(error), "copying a sequence");
    if (status || (status = aura_cuda_write_seq(c, call, from, &parent)) || (status = aura_cuda_write_seq(c, call, made, &child))) {
        aura_page_table_cut(&c->page_table, made, 0);
        return status;
    }
    c->page_table.seq[made].used = 1;
    *seq = made;
    return AURA_OK;
}

/* ---- space ---------------------------------------------------------------------------------------------------------- */

/* Copies what a plan wants copied, and has the device know the pages. */
static cudaError_t carry_out(const aura_cuda_cache *c, const struct aura_page_plan *plan)
{
    cudaError_t error = cudaSuccess;
    for (uint32_t i = 0; i < plan->end - plan->first && error == cudaSuccess; i++)
        if (plan->copy[i] != AURA_NO_PAGE)
            error = cudaMemcpy(c->dev.pages + plan->page[i] * c->facts.page_bytes, c->dev.pages + plan->copy[i] * c->facts.page_bytes,
                               c->facts.page_bytes, cudaMemcpyDeviceToDevice);
    return when_done(error == cudaSuccess ? aura_cuda_write_list(c, plan->seq, plan->page, plan->first, plan->end) : error);
}

static aura_status fail_plan(const aura_cuda_cache *c, const char *call, aura_status status, uint64_t tokens, uint32_t pages)
{
    if (status == AURA_OUT_OF_PAGES)
        return aura_backend_fail(c->ctx, status, "%s: %llu tokens need %u more pages; %u are free", call, (unsigned long long)tokens, pages,
                             c->page_table.n_free);
    return aura_backend_fail(c->ctx, status, "%s: no memory for a list of %u pages", call, pages);
}

extern "C" aura_status aura_cuda_seq_reserve(aura_cuda_cache *c, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_seq_reserve";
    struct aura_page_plan plan;
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
    if ((status = aura_page_table_plan(&c->page_table, seq, write_page(c, &state), pages_of(state.len), pages_of(tokens), &plan)))
        return fail_plan(c, call, status, tokens, plan.taken);
    if ((status = cuda_status(c->ctx, call, carry_out(c, &plan), "copying shared pages or writing the page table"))) {
        aura_page_table_undo(&c->page_table, &plan);
        return status;
    }
    aura_page_table_commit(&c->page_table, &plan);
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
    cut(c, &state, (uint32_t)tokens);
    aura_page_table_cut(&c->page_table, seq, pages_of(tokens));
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
    if (!aura_page_table_may_cut(&t.window, top, tokens)) {
        atomicOr(&seq->status, (uint32_t)AURA_CUDA_GONE);
        return;
    }
    seq->top = aura_page_table_top(&t.window, top, tokens);
    seq->len = tokens;
    seq->closed = min(seq->closed, tokens);
}

extern "C" aura_status aura_cuda_truncate(aura_cuda_cache *c, const aura_cuda_seq *seqs, const uint32_t *tokens, uint32_t n_seqs,
                                          struct CUstream_st *stream)
{
    const char *call = "aura_cuda_truncate";
    if (!c || !seqs || !tokens)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, !c ? "cache" : seqs ? "tokens" : "seqs");
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
    info->first = aura_page_table_first(&c->dev.window, top_of(state));
    info->first = info->first > c->dev.window.kept ? info->first * AURA_PAGE : 0;
    info->reserved = state.reserved;
    info->pages = aura_page_table_count(&c->page_table, seq);
    info->shared_pages = aura_page_table_shared(&c->page_table, seq);
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
