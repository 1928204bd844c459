/* How tokens are divided, which kernel runs; and the calls that make scores and add up values. */
#include "rows_attend.cuh"

#include <string.h>

struct dev_tokens aura_cuda_rows_tokens(uint64_t first, uint64_t end, uint32_t units)
{
    struct dev_tokens k;
    memset(&k, 0, sizeof k);
    k.first = first, k.end = end, k.units = units;
    k.unit_stride = ROWS_CHUNK, k.unit_tokens = UINT64_MAX, k.chunk_stride = (uint64_t)ROWS_CHUNK * units;
    k.ranges = 1, k.from[0] = first, k.to[0] = end;
    return k;
}

/* Tables and queries are made ready by every block: of tiles there are as many blocks as run at once, and no more. */
uint32_t aura_cuda_rows_units(const aura_cuda_rows *rows, const struct dev_rows_call &c, enum rows_mode mode, uint64_t tokens,
                              size_t bytes)
{
    uint32_t heads;
    const uint32_t blocks = aura_cuda_rows_blocks(rows, c, mode, &heads), per_sm = blocks ? blocks : 16;
    const uint64_t groups = (uint64_t)(c.q_heads / c.ratio) * ((c.ratio + heads - 1) / heads);
    const uint64_t wanted = (uint64_t)rows->multiprocessors * per_sm / groups, most = tokens / 256;
    const uint64_t room = rows->scratch_bytes / bytes, units = wanted < most ? wanted : most;
    return (uint32_t)(room < 1 ? 0 : room < units ? room : units < 1 ? 1 : units < 1024 ? units : 1024);
}

static aura_status no_room(struct aura_call call, const aura_cuda_rows *rows, size_t wanted)
{
    return aura_backend_fail(call.ctx, AURA_TOO_LARGE, "%s: partial results need %zu bytes of scratch, there are %zu", call.name,
                             wanted, rows->scratch_bytes);
}

struct dev_rows_call aura_cuda_rows_call(const aura_cuda_rows *rows, uint32_t q_heads, uint32_t kv_heads)
{
    struct dev_rows_call c;
    memset(&c, 0, sizeof c);
    c.q_heads = q_heads, c.ratio = q_heads / kv_heads, c.scale = 1, c.status = rows->status;
    return c;
}

aura_status aura_cuda_rows_run(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                               struct CUstream_st *stream)
{
    bool taken;
    const aura_status status = aura_cuda_rows_tiles(rows, call, c, mode, stream, &taken);
    return taken || status ? status : aura_cuda_rows_any(rows, call, c, mode, stream);
}

/* ---- score, value ------------------------------------------------------------------------------------------------- */

extern "C" aura_status aura_cuda_score(aura_cuda_rows *rows, const aura_score_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_score";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_score(call, a)) || a->tokens == 0)
        return status;
    struct dev_rows_call c = aura_cuda_rows_call(rows, a->q_heads, a->kv_heads);
    c.k = packed_side(&a->keys, a->dim, a->tokens), c.q = a->q, c.q_dtype = (uint32_t)a->q_dtype;
    c.scores = a->scores, c.score_dtype = (uint32_t)a->score_dtype, c.score_stride = aura_or(a->score_stride, a->tokens);
    c.tokens = aura_cuda_rows_tokens(0, a->tokens, aura_cuda_rows_units(rows, c, ROWS_SCORE, a->tokens, 1));
    return aura_cuda_rows_run(rows, name, c, ROWS_SCORE, stream);
}

extern "C" aura_status aura_cuda_value(aura_cuda_rows *rows, const aura_value_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_value";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_value(call, a)))
        return status;
    struct dev_rows_call c = aura_cuda_rows_call(rows, a->q_heads, a->kv_heads);
    const size_t bytes = aura_times((size_t)a->q_heads * a->dim, sizeof(float));
    c.v = packed_side(&a->values, a->dim, a->tokens), c.threshold = a->sparse_threshold;
    const uint32_t units = aura_cuda_rows_units(rows, c, ROWS_VALUE, a->tokens, bytes);
    if (!units)
        return no_room(call, rows, bytes);
    c.scores = (void *)a->weights, c.score_dtype = (uint32_t)a->weight_dtype,
    c.score_stride = aura_or(a->weight_stride, a->tokens);
    c.tokens = aura_cuda_rows_tokens(0, a->tokens, units), c.o = rows->scratch, c.partial_dtype = AURA_F32;
    if ((status = aura_cuda_rows_run(rows, name, c, ROWS_VALUE, stream)))
        return status;
    struct dev_merge m;
    memset(&m, 0, sizeof m);
    m.mode = MERGE_SUM, m.o = rows->scratch, m.dtype = AURA_F32, m.parts = units, m.rows = a->q_heads, m.dim = a->dim;
    m.out = a->out, m.out_dtype = (uint32_t)a->out_dtype, m.status = rows->status;
    return aura_cuda_rows_merge(rows, name, m, stream);
}
