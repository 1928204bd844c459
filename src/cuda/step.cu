/* One call for the next tokens of a batch; and what such calls know of padding and of queries that say what they see. */
#include "cache.cuh"
#include "split.cuh"

enum { STEP_THREADS = 128 };

/* ---- what queries see -------------------------------------------------------------------------------------------------- */

struct dev_seen {
    struct dev_attend a;
    uint2 *seen; /* [n_seqs] */
};

/* A block of threads is a sequence of the call. Where its queries see nothing, nothing is read: [len, 0). */
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) aura_seen_any_cuda(const __grid_constant__ struct dev_seen s)
{
    __shared__ uint32_t not_first, last; /* ~first, so that both are maxima */
    const uint32_t job = blockIdx.x, len = seq_at(s.a, job).len, n = queries_of_job(s.a, job);
    if (threadIdx.x == 0)
        not_first = ~len, last = 0;
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < n; i += STEP_THREADS) {
        const uint2 t = tokens_seen(s.a, job, len, n, i);
        if (t.x >= t.y)
            continue;
        atomicMax(&not_first, ~t.x);
        atomicMax(&last, t.y);
    }
    __syncthreads();
    if (threadIdx.x == 0)
        s.seen[job] = make_uint2(~not_first, last);
}

aura_status aura_cuda_find_seen(const aura_cuda_cache *c, const char *call, const struct dev_attend &a, uint2 *seen,
                                struct CUstream_st *stream)
{
    struct dev_seen s = {a, seen};
    void *params[] = {&s};
    const struct launch how = {dim3(a.n_seqs), STEP_THREADS, 0, stream};
    return aura_cuda_launch(c, call, "seen_any_cuda", (const void *)aura_seen_any_cuda, how, params);
}

/* ---- padding ----------------------------------------------------------------------------------------------------------- */

struct dev_pad {
    const uint32_t *starts, *counts;
    uint32_t queries, q_heads, dim;
    struct dev_view out;
    float *lse;
};

/* Rows that are no token's become 0. A block of threads is a query of the block of a sequence. */
extern "C" __global__ void __launch_bounds__(STEP_THREADS, 1) aura_pad_any_cuda(const __grid_constant__ struct dev_pad p)
{
    const uint32_t job = blockIdx.y, start = p.starts ? min(p.starts[job], p.queries) : 0;
    const uint32_t count = p.counts ? min(p.counts[job], p.queries - start) : p.queries - start;
    for (uint32_t query = blockIdx.x; query < p.queries; query += gridDim.x) {
        if (query >= start && query - start < count)
            continue;
        for (uint32_t i = threadIdx.x; i < p.q_heads * p.dim; i += STEP_THREADS)
            store_element(p.out.data, p.out.dtype, job * p.out.seq + query * p.out.token + i / p.dim * p.out.head + i % p.dim, 0);
        for (uint32_t h = threadIdx.x; p.lse && h < p.q_heads; h += STEP_THREADS)
            p.lse[((size_t)job * p.queries + query) * p.q_heads + h] = -INFINITY;
    }
}

static aura_status clear_padding(const aura_cuda_cache *c, const char *call, const aura_cuda_attend_args *a,
                                 struct CUstream_st *stream)
{
    struct dev_pad p = {a->starts, a->counts, a->queries, c->dev.q_heads, c->dev.v_dim,
                        view_of(&a->out, a->queries, c->dev.q_heads, c->dev.v_dim), a->lse};
    void *params[] = {&p};
    const struct launch how = {dim3(a->queries < 64 ? a->queries : 64, a->n_seqs), STEP_THREADS, 0, stream};
    return aura_cuda_launch(c, call, "pad_any_cuda", (const void *)aura_pad_any_cuda, how, params);
}

/* ---- the call ---------------------------------------------------------------------------------------------------------- */

extern "C" aura_status aura_cuda_step(aura_cuda_cache *c, aura_cuda_workspace *w, const aura_cuda_step_args *step,
                                      struct CUstream_st *stream)
{
    const char *call = "aura_cuda_step";
    if (!c || !w || !step)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call,
                                 !c ? "cache" : w ? "step" : "workspace");
    if (step->size != sizeof *step)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: step.size is %zu, this library knows %zu", call, step->size,
                                 sizeof *step);
    const aura_cuda_attend_args *ask = &step->attend;
    const bool appends = step->k.data || step->v.data;
    aura_cuda_append_args in = AURA_CUDA_APPEND_ARGS_INIT;
    in.seqs = ask->seqs, in.n_seqs = ask->n_seqs, in.tokens = ask->queries;
    in.counts = ask->counts, in.starts = ask->starts, in.k = step->k, in.v = step->v;
    aura_status status = aura_cuda_check_attend(c, w, call, ask);
    if (!status && appends)
        status = aura_cuda_check_append(c, call, &in);
    if (!status && appends)
        status = aura_cuda_append_as(c, call, &in, stream);
    if (!status)
        status = aura_cuda_attend_as(c, w, call, ask, stream);
    if (status || !(ask->starts || ask->counts))
        return status;
    on_device here(c->device);
    return clear_padding(c, call, ask, stream);
}
