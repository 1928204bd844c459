/* A sequence to the device and back: from and to a CPU cache. */
#include "cache.cuh"

#include <string.h>

static int same_balance(const float *a, const float *b, size_t n)
{
    return !a == !b && (!a || !memcmp(a, b, n * sizeof *a));
}

/* What bytes mean does not depend on who asks, on metrics or on learning: those may differ. */
aura_status aura_cuda_check_same(const aura_cuda_cache *c, const char *call, const aura_cache *other)
{
    struct aura_backend_cache r;
    if (!other)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the CPU cache is NULL", call);
    aura_backend_describe(&r, other);
    if (c->slots || r.config->slots)
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: a cache with slots; sequences are copied", call);
    const aura_config *a = c->facts.config, *b = r.config;
    aura_config bytes = *b;
    bytes.q_heads = b->q_heads ? b->q_heads : a->q_heads;
    bytes.flags &= ~(uint32_t)AURA_LEARN;
    bytes.k_metric = bytes.v_metric = NULL;
    aura_status status = aura_cuda_check_kind(c->ctx, call, &bytes);
    if (status)
        return status;
    int same = a->format.k == b->format.k && a->format.v == b->format.v && a->q_heads == bytes.q_heads &&
               a->kv_heads == b->kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->flags == bytes.flags &&
               a->rollback == b->rollback && a->seed == b->seed && a->window == b->window && a->max_queries == b->max_queries &&
               a->keep_first == b->keep_first && same_balance(a->balance, b->balance, (size_t)a->kv_heads * a->k_dim) &&
               same_balance(a->v_balance, b->v_balance, (size_t)a->kv_heads * a->v_dim);
    return same ? AURA_OK
                : aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the two caches have different configurations", call);
}

cudaError_t aura_cuda_copy_rows(const aura_cuda_cache *c, aura_cuda_seq seq, const struct aura_backend_seq *facts,
                                cudaMemcpyKind kind)
{
    const int up = kind == cudaMemcpyHostToDevice;
    const aura_config *f = c->facts.config;
    cudaError_t error = cudaSuccess;
    for (int values = 0; values < 2 && error == cudaSuccess; values++) {
        __half *rows = values ? c->dev.v_rows : c->dev.k_rows;
        size_t n = (size_t)f->kv_heads * c->facts.rows * (values ? f->v_dim : f->k_dim);
        void *there = rows + seq * n, *here = values ? facts->v : facts->k;
        if (rows)
            error = cudaMemcpy(up ? there : here, up ? here : there, n * sizeof *rows, kind);
    }
    return error;
}

/* All bytes of a sequence, one way or the other. */
static cudaError_t copy_seq(const aura_cuda_cache *c, aura_cuda_seq seq, const aura_cache *cpu, aura_seq cpu_seq,
                            const struct aura_backend_seq *facts, cudaMemcpyKind kind)
{
    const int up = kind == cudaMemcpyHostToDevice;
    cudaError_t error = cudaSuccess;
    for (size_t i = 0; i < facts->pages && error == cudaSuccess; i++) {
        if (!aura_backend_has_page(&c->facts, facts, i))
            continue;
        uint8_t *there = c->dev.pages + (size_t)aura_page_table_number(&c->page_table, seq, i) * c->facts.page_bytes;
        uint8_t *here = aura_backend_page(cpu, cpu_seq, i);
        error = cudaMemcpy(up ? there : here, up ? here : there, c->facts.page_bytes, kind);
    }
    return when_done(error == cudaSuccess ? aura_cuda_copy_rows(c, seq, facts, kind) : error);
}

extern "C" aura_status aura_cuda_upload(aura_cuda_cache *c, aura_cuda_seq seq, const aura_cache *from, aura_seq from_seq)
{
    const char *call = "aura_cuda_upload";
    struct aura_backend_seq facts;
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status || (status = aura_cuda_check_same(c, call, from)) || (status = aura_backend_find(call, from, from_seq, &facts)))
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_read_seq(c, call, seq, &state)))
        return status;
    if (state.len)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: sequence %u has %u tokens; give an empty one", call, seq,
                                 state.len);
    if ((status = aura_cuda_seq_reserve(c, seq, facts.len)))
        return status;
    if ((status = cuda_status(c->ctx, call, copy_seq(c, seq, from, from_seq, &facts, cudaMemcpyHostToDevice),
                              "copying to the device")))
        return status;
    if ((status = aura_cuda_read_seq(c, call, seq, &state))) /* with its new limits */
        return status;
    state.len = (uint32_t)facts.len;
    state.closed = (uint32_t)facts.closed;
    state.top = (uint32_t)facts.top;
    state.status = 0;
    aura_page_table_slide(&c->page_table, seq, state.top);
    aura_cuda_set_limits(c, seq, &state);
    return aura_cuda_write_seq(c, call, seq, &state);
}

extern "C" aura_status aura_cuda_download(const aura_cuda_cache *c, aura_cuda_seq seq, aura_cache *to, aura_seq to_seq)
{
    const char *call = "aura_cuda_download";
    struct aura_backend_seq facts;
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status || (status = aura_cuda_check_same(c, call, to)))
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_read_seq(c, call, seq, &state)))
        return status;
    const size_t first = aura_window_first(&c->dev.window, top_of(state));
    if ((status = aura_backend_fill(call, to, to_seq, state.len, state.closed, first, &facts)))
        return status;
    status = cuda_status(c->ctx, call, copy_seq(c, seq, to, to_seq, &facts, cudaMemcpyDeviceToHost), "copying from the device");
    if (status)
        aura_truncate(to, to_seq, 0);
    return status;
}
