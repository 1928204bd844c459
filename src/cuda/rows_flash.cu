/* The calls that attend over rows and that merge partial results: pass 1 and 2, single pass, flash_attn_vec, reduce. */
#include "rows_attend.cuh"

#include <float.h>
#include <string.h>

/* ---- merging ------------------------------------------------------------------------------------------------------ */

static struct dev_merge merge_of(const aura_cuda_rows *rows, enum merge_mode mode, uint32_t n, size_t parts, uint32_t dim,
                                 const aura_rotation *undo)
{
    struct dev_merge m;
    memset(&m, 0, sizeof m);
    m.mode = mode, m.rows = n, m.parts = parts, m.dim = dim, m.status = rows->status, m.sink_heads = n;
    m.undo = aura_cuda_rotation_of(undo, 1);
    return m;
}

extern "C" aura_status aura_cuda_flash_pass2(aura_cuda_rows *rows, const aura_flash_pass2_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_flash_pass2";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_flash_pass2(call, a)) || (a->undo && (status = aura_check_rotation_shape(call, a->undo, a->dim))))
        return status;
    struct dev_merge m = merge_of(rows, MERGE_PASS2, a->q_heads, a->num_blocks, a->dim, a->undo);
    m.o = a->o, m.m = a->m, m.l = a->l, m.dtype = (uint32_t)a->partial_dtype, m.out = a->out, m.out_dtype = (uint32_t)a->out_dtype;
    m.sinks = a->sinks, m.sink_dtype = (uint32_t)a->sink_dtype, m.sink_heads = a->sink_heads ? a->sink_heads : a->q_heads;
    m.lse = a->lse;
    return aura_cuda_rows_merge(rows, name, m, stream);
}

extern "C" aura_status aura_cuda_flash_attn_vec_reduce(aura_cuda_rows *rows, const aura_flash_attn_vec_reduce_args *a,
                                                       struct CUstream_st *stream)
{
    const char *name = "aura_cuda_flash_attn_vec_reduce";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_flash_attn_vec_reduce(call, a)) ||
        (a->undo && (status = aura_check_rotation_shape(call, a->undo, a->dim))))
        return status;
    /* One workgroup left finished rows. */
    struct dev_merge m = merge_of(rows, a->nwg == 1 ? MERGE_SUM : MERGE_REDUCE, a->rows, a->nwg, a->dim, a->undo);
    m.o = a->temp, m.m = m.l = a->temp + (size_t)a->rows * a->dim * a->nwg;
    m.out = a->out, m.sinks = a->sinks, m.lse = a->lse;
    return aura_cuda_rows_merge(rows, name, m, stream);
}

/* ---- attention ---------------------------------------------------------------------------------------------------- */

/* The partials of a call that finishes its rows: in the scratch, f32. Returns how many units there are; 0: there is no room. */
static uint32_t take_partials(const aura_cuda_rows *rows, struct dev_rows_call *c, uint64_t tokens)
{
    const size_t bytes = (size_t)c->q_heads * (c->v.dim + 2) * sizeof(float);
    const uint32_t units = aura_cuda_rows_units(rows, *c, ROWS_ATTEND, tokens, bytes);
    float *o = (float *)rows->scratch;
    c->o = o, c->m = o + (size_t)c->q_heads * units * c->v.dim, c->l = (float *)c->m + (size_t)c->q_heads * units;
    c->partial_dtype = AURA_F32;
    return units;
}

static aura_status no_room(struct aura_call call, const aura_cuda_rows *rows, const struct dev_rows_call *c)
{
    return aura_backend_fail(call.ctx, AURA_TOO_LARGE, "%s: partial results need %zu bytes of scratch, there are %zu", call.name,
                             (size_t)c->q_heads * (c->v.dim + 2) * sizeof(float), rows->scratch_bytes);
}

/* Attends, then merges what the units left. */
static aura_status attend_and_merge(const aura_cuda_rows *rows, const char *name, const struct dev_rows_call &c,
                                    struct dev_merge m, struct CUstream_st *stream)
{
    m.o = c.o, m.m = c.m, m.l = c.l, m.dtype = AURA_F32, m.parts = c.tokens.units;
    const aura_status status = aura_cuda_rows_run(rows, name, c, ROWS_ATTEND, stream);
    return status ? status : aura_cuda_rows_merge(rows, name, m, stream);
}

extern "C" aura_status aura_cuda_flash_p1(aura_cuda_rows *rows, const aura_flash_p1_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_flash_p1";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_flash_p1(call, a)) || a->num_blocks == 0)
        return status;
    if (a->num_blocks > INT32_MAX)
        return aura_backend_fail(call.ctx, AURA_TOO_LARGE, "%s: %zu blocks", name, a->num_blocks);
    struct dev_rows_call c = aura_cuda_rows_call(rows, a->q_heads, a->kv_heads);
    c.k = packed_side(&a->keys, a->dim, a->tokens), c.v = packed_side(&a->values, aura_v_dim_of(a->dim, a->v_dim), a->tokens);
    c.q = a->q, c.q_dtype = (uint32_t)a->q_dtype;
    c.tokens = aura_cuda_rows_tokens(0, aura_p1_visible(a), (uint32_t)a->num_blocks);
    c.tokens.unit_stride = c.tokens.unit_tokens = a->block_size, c.tokens.chunk_stride = ROWS_CHUNK;
    c.o = a->o, c.m = a->m, c.l = a->l, c.partial_dtype = (uint32_t)a->partial_dtype, c.report = 1;
    return aura_cuda_rows_run(rows, name, c, ROWS_ATTEND, stream);
}

extern "C" aura_status aura_cuda_flash_sdpa(aura_cuda_rows *rows, const aura_flash_sdpa_args *a, struct CUstream_st *stream)
{
    const char *name = "aura_cuda_flash_sdpa";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_flash_sdpa(call, a)))
        return status;
    const uint32_t v_dim = aura_v_dim_of(a->dim, a->v_dim);
    if (a->undo && (status = aura_check_rotation_shape(call, a->undo, v_dim)))
        return status;
    const uint64_t first = a->window && a->window < a->tokens ? a->tokens - a->window : 0;
    struct dev_rows_call c = aura_cuda_rows_call(rows, a->q_heads, a->kv_heads);
    c.k = packed_side(&a->keys, a->dim, a->tokens), c.v = packed_side(&a->values, v_dim, a->tokens);
    c.q = a->q, c.q_dtype = (uint32_t)a->q_dtype;
    const uint32_t units = take_partials(rows, &c, a->tokens - first);
    if (!units)
        return no_room(call, rows, &c);
    c.tokens = aura_cuda_rows_tokens(first, a->tokens, units);
    struct dev_merge m = merge_of(rows, MERGE_PASS2, a->q_heads, units, v_dim, a->undo);
    m.out = a->out, m.out_dtype = (uint32_t)a->out_dtype, m.lse = a->lse, m.sinks = a->sinks;
    m.sink_dtype = (uint32_t)a->sink_dtype, m.sink_heads = a->sink_heads ? a->sink_heads : a->q_heads;
    return attend_and_merge(rows, name, c, m, stream);
}

/* ---- mlx-native --------------------------------------------------------------------------------------------------- */

/* The tokens of a call: what it sees, in chunks that units take in turn. */
static struct dev_tokens vec_tokens(const aura_flash_attn_vec_args *a, uint32_t units)
{
    const struct aura_slot_ranges seen = aura_visible_slots(a);
    struct dev_tokens k = aura_cuda_rows_tokens(0, a->tokens, units);
    k.ranges = (uint32_t)seen.count;
    k.from[0] = k.to[0] = 0; /* where nothing is seen */
    for (size_t i = 0; i < seen.count; i++)
        k.from[i] = seen.range[i].first, k.to[i] = seen.range[i].end;
    return k;
}

extern "C" aura_status aura_cuda_flash_attn_vec(aura_cuda_rows *rows, const aura_flash_attn_vec_args *a,
                                                struct CUstream_st *stream)
{
    const char *name = "aura_cuda_flash_attn_vec";
    aura_status status = check_rows_handle(rows, name);
    if (status)
        return status;
    const struct aura_call call = {rows->ctx, name};
    if ((status = aura_check_flash_attn_vec(call, a)))
        return status;
    const uint32_t v_dim = aura_v_dim_of(a->dim, a->v_dim);
    if (a->undo && (status = aura_check_rotation_shape(call, a->undo, v_dim)))
        return status;
    struct dev_rows_call c = aura_cuda_rows_call(rows, a->q_heads, a->kv_heads);
    c.k = vec_side(rows, &a->k, a->dim, a->capacity, a->scale_factor_d512);
    c.v = vec_side(rows, &a->v, v_dim, a->capacity, a->scale_factor_d512);
    c.q = a->q, c.q_dtype = AURA_F32, c.q_as_f16 = a->q_as_f16 != 0;
    c.scale = aura_logit_scale(a->scale, a->dim), c.softcap = a->softcap;
    if (a->temp && a->nwg > 1) {
        c.tokens = vec_tokens(a, a->nwg);
        c.o = a->temp, c.m = c.l = a->temp + (size_t)a->q_heads * v_dim * a->nwg, c.partial_dtype = AURA_F32;
        c.interleaved = c.report = 1;
        return aura_cuda_rows_run(rows, name, c, ROWS_ATTEND, stream);
    }
    const uint32_t units = take_partials(rows, &c, a->tokens);
    if (!units)
        return no_room(call, rows, &c);
    c.tokens = vec_tokens(a, units);
    struct dev_merge m = merge_of(rows, MERGE_PASS2, a->q_heads, units, v_dim, a->undo);
    m.out = a->temp ? a->temp : a->out, m.lse = a->lse, m.sinks = a->sinks;
    return attend_and_merge(rows, name, c, m, stream);
}
