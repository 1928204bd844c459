/* Sequences to the device and back: from and to a CPU cache, and files by way of one. */
#include "cache.cuh"

#include <string.h>

static aura_status check_same(const aura_cuda_cache *c, const char *call, const aura_cache *other)
{
    struct aura_raw r;
    if (!other)
        return aura_raw_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the CPU cache is NULL", call);
    aura_raw_describe(&r, other);
    aura_status status = aura_cuda_check_kind(c->ctx, call, r.config);
    if (status)
        return status;
    const aura_config *a = c->raw.config, *b = r.config;
    int same = a->format.k == b->format.k && a->format.v == b->format.v && a->q_heads == b->q_heads &&
               a->kv_heads == b->kv_heads && a->k_dim == b->k_dim && a->v_dim == b->v_dim && a->flags == b->flags &&
               a->rollback == b->rollback && a->seed == b->seed && !a->balance == !b->balance;
    if (same && a->balance)
        same = !memcmp(a->balance, b->balance, (size_t)a->kv_heads * a->k_dim * sizeof *a->balance);
    return same ? AURA_OK
                : aura_raw_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the two caches have different configurations", call);
}

/* All bytes of a sequence, one way or the other. */
static cudaError_t copy_seq(const aura_cuda_cache *c, aura_cuda_seq seq, const aura_cache *cpu, aura_seq cpu_seq,
                            const struct aura_raw_seq *raw, cudaMemcpyKind kind)
{
    int up = kind == cudaMemcpyHostToDevice;
    cudaError_t error = cudaSuccess;
    const aura_config *f = c->raw.config;
    for (size_t i = 0; i < raw->pages && error == cudaSuccess; i++) {
        uint8_t *there = c->dev.pages + (size_t)c->paging.seq[seq].page[i] * c->raw.page_bytes, *here = aura_raw_page(cpu, cpu_seq, i);
        error = cudaMemcpy(up ? there : here, up ? here : there, c->raw.page_bytes, kind);
    }
    for (int values = 0; values < 2 && error == cudaSuccess; values++) {
        __half *rows = values ? c->dev.v_rows : c->dev.k_rows;
        size_t n = (size_t)f->kv_heads * c->raw.rows * (values ? f->v_dim : f->k_dim);
        void *there = rows + seq * n, *here = values ? raw->v : raw->k;
        if (rows)
            error = cudaMemcpy(up ? there : here, up ? here : there, n * sizeof *rows, kind);
    }
    return when_done(error);
}

extern "C" aura_status aura_cuda_upload(aura_cuda_cache *c, aura_cuda_seq seq, const aura_cache *from, aura_seq from_seq)
{
    const char *call = "aura_cuda_upload";
    struct aura_raw_seq raw;
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status || (status = check_same(c, call, from)) || (status = aura_raw_find(call, from, from_seq, &raw)))
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_read_seq(c, call, seq, &state)))
        return status;
    if (state.len)
        return aura_raw_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: sequence %u has %u tokens; give an empty one", call, seq, state.len);
    if ((status = aura_cuda_seq_reserve(c, seq, raw.len)))
        return status;
    if ((status = cuda_status(c->ctx, call, copy_seq(c, seq, from, from_seq, &raw, cudaMemcpyHostToDevice), "copying to the device")))
        return status;
    if ((status = aura_cuda_read_seq(c, call, seq, &state))) /* with its new limits */
        return status;
    state.len = (uint32_t)raw.len;
    state.closed = (uint32_t)raw.closed;
    state.status = 0;
    return aura_cuda_write_seq(c, call, seq, &state);
}

extern "C" aura_status aura_cuda_download(const aura_cuda_cache *c, aura_cuda_seq seq, aura_cache *to, aura_seq to_seq)
{
    const char *call = "aura_cuda_download";
    struct aura_raw_seq raw;
    struct dev_seq state;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (status || (status = check_same(c, call, to)))
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_read_seq(c, call, seq, &state)) || (status = aura_raw_fill(call, to, to_seq, state.len, state.closed, &raw)))
        return status;
    status = cuda_status(c->ctx, call, copy_seq(c, seq, to, to_seq, &raw, cudaMemcpyDeviceToHost), "copying from the device");
    if (status)
        aura_truncate(to, to_seq, 0);
    return status;
}

/* ---- files ---------------------------------------------------------------------------------------------------------- */

/* A CPU cache of the same configuration, for one sequence on its way. */
static aura_status make_passage(const aura_cuda_cache *c, aura_cache **passage)
{
    aura_config config = *c->raw.config;
    config.budget_bytes = 0;
    return aura_cache_create(c->ctx, &config, passage);
}

extern "C" aura_status aura_cuda_seq_save(const aura_cuda_cache *c, aura_cuda_seq seq, const char *path,
                                          const aura_snapshot_options *options)
{
    aura_cache *passage = NULL;
    aura_seq here;
    aura_status status = aura_cuda_check_seq(c, "aura_cuda_seq_save", seq);
    if (status || (status = make_passage(c, &passage)))
        return status;
    if (!(status = aura_seq_create(passage, &here)) && !(status = aura_cuda_download(c, seq, passage, here)))
        status = aura_seq_save(passage, here, path, options);
    aura_cache_destroy(passage);
    return status;
}

extern "C" aura_status aura_cuda_seq_load(aura_cuda_cache *c, const char *path, const aura_snapshot_options *options,
                                          aura_cuda_seq *seq)
{
    aura_cache *passage = NULL;
    aura_seq here;
    aura_cuda_seq made;
    if (!c || !seq)
        return aura_raw_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "aura_cuda_seq_load: %s is NULL", c ? "seq" : "cache");
    aura_status status = make_passage(c, &passage);
    if (status)
        return status;
    if (!(status = aura_seq_load(passage, path, options, &here)) && !(status = aura_cuda_seq_create(c, &made))) {
        if ((status = aura_cuda_upload(c, made, passage, here)))
            aura_cuda_seq_release(c, made);
        else
            *seq = made;
    }
    aura_cache_destroy(passage);
    return status;
}
