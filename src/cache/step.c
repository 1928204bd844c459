/* Append and attend in one call, and the same for a batch in tensors. */
#include "../base/exact.h"
#include "attend.h"

#include <math.h>
#include <string.h>

#include "../base/batch.h"
#include "../base/fpmode.h"
#include "../base/view.h"

static aura_status append_attend(struct aura_call call, struct aura_append *in, struct aura_attend *ask,
                                 const aura_attend_options *options)
{
    const uint64_t mode = aura_fpmode_enter(), start = aura_nanoseconds();
    aura_status status = aura_append_check(call, in);
    if (!status)
        status = aura_attend_all(call, ask, options);
    aura_count_time(in->cache, AURA_TIME_STEP, start);
    aura_fpmode_leave(mode);
    return status;
}

aura_status aura_append_attend(aura_cache *cache, const aura_append_job *in, size_t n_in, const aura_attend_job *ask, size_t n_ask,
                               const aura_attend_options *options)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_append_attend"};
    struct aura_append first = {cache, in, n_in, NULL, 0};
    struct aura_attend then = {.cache = cache, .jobs = ask, .n_jobs = n_ask, .first = &first};
    if (!cache || (!in && n_in) || (!ask && n_ask))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, !cache ? "cache" : !in && n_in ? "in" : "ask");
    return append_attend(call, &first, &then, options);
}

/* ---- a batch in tensors -------------------------------------------------------------------------------------------- */

enum { FEW_SEQS = 16 }; /* whose jobs are on the stack */

/* From sequence to sequence of a tensor whose strides were checked. */
static ptrdiff_t seq_stride(ptrdiff_t asked, const aura_input *v, uint32_t tokens, uint32_t heads, uint32_t dim)
{
    const struct aura_strides s = aura_view_strides(v, heads, dim);
    const size_t by_token = aura_magnitude(s.token) * tokens, by_head = aura_magnitude(s.head) * heads;
    return asked ? asked : (ptrdiff_t)(by_token > by_head ? by_token : by_head);
}

/* The tensor of sequence i, from token `start` on. */
static aura_input part_of(const aura_input *all, ptrdiff_t stride, size_t i, uint32_t start, uint32_t heads, uint32_t dim)
{
    aura_input part = *all;
    ptrdiff_t at = stride * (ptrdiff_t)i + (all->rows ? 0 : aura_view_strides(all, heads, dim).token * (ptrdiff_t)start);
    part.data = (const char *)all->data + at * (ptrdiff_t)aura_dtype_bytes(all->dtype);
    part.rows = all->rows ? all->rows + start : NULL;
    return part;
}

/* Tensors of the whole batch whose offsets can be computed. */
static aura_status check_tensor(struct aura_call call, const char *what, const aura_input *v, ptrdiff_t stride,
                                const aura_step_args *step, uint32_t heads, uint32_t dim)
{
    aura_status status;
    if ((status = aura_check_view(call, what, v)) || (status = aura_check_view_extent(call, what, v, step->tokens, heads, dim)))
        return status;
    const size_t limit = PTRDIFF_MAX / aura_dtype_bytes(v->dtype) / 4;
    if (aura_times(aura_magnitude(seq_stride(stride, v, step->tokens, heads, dim)), step->n_seqs) > limit)
        return aura_fail(call.ctx, AURA_TOO_LARGE, "%s: %s: %zu sequences with stride %td do not fit in memory", call.name, what,
                         step->n_seqs, stride);
    return AURA_OK;
}

static aura_status check_step(struct aura_call call, const aura_cache *cache, const aura_step_args *step, uint32_t q_heads)
{
    const aura_config *c = &cache->config;
    const aura_input out = aura_place_of(&step->out);
    aura_status status = AURA_OK;
    if (!step->seqs && step->n_seqs)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seqs is NULL", call.name);
    for (size_t i = 0; i < step->n_seqs && step->starts; i++)
        if (step->starts[i] > step->tokens)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: starts[%zu] is %u of %u tokens", call.name, i, step->starts[i],
                             step->tokens);
    if (!q_heads || q_heads > 1u << 16)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u query heads", call.name, q_heads);
    if (!step->n_seqs || !step->tokens)
        return AURA_OK;
    if (step->k.data || step->v.data)
        status = check_tensor(call, "k", &step->k, step->k_seq_stride, step, c->kv_heads, c->k_dim);
    if (!status && (step->k.data || step->v.data))
        status = check_tensor(call, "v", &step->v, step->v_seq_stride, step, c->kv_heads, c->v_dim);
    if (!status)
        status = check_tensor(call, "q", &step->q, step->q_seq_stride, step, q_heads, c->k_dim);
    return status ? status : check_tensor(call, "out", &out, step->out_seq_stride, step, q_heads, c->v_dim);
}

struct jobs {
    aura_append_job in[FEW_SEQS];
    aura_attend_job ask[FEW_SEQS];
};

static void make_jobs(const aura_cache *cache, const aura_step_args *step, uint32_t q_heads, aura_append_job *in,
                      aura_attend_job *ask)
{
    const aura_config *c = &cache->config;
    const aura_input out = aura_place_of(&step->out);
    const ptrdiff_t k_stride = seq_stride(step->k_seq_stride, &step->k, step->tokens, c->kv_heads, c->k_dim);
    const ptrdiff_t v_stride = seq_stride(step->v_seq_stride, &step->v, step->tokens, c->kv_heads, c->v_dim);
    const ptrdiff_t q_stride = seq_stride(step->q_seq_stride, &step->q, step->tokens, q_heads, c->k_dim);
    const ptrdiff_t out_stride = seq_stride(step->out_seq_stride, &out, step->tokens, q_heads, c->v_dim);
    for (size_t i = 0; i < step->n_seqs; i++) {
        const uint32_t start = step->starts ? step->starts[i] : 0, tokens = step->tokens - start;
        const size_t first = i * step->tokens + start;
        const aura_append_job no_tokens = AURA_APPEND_JOB_INIT;
        const aura_attend_job no_queries = AURA_ATTEND_JOB_INIT;
        in[i] = no_tokens, ask[i] = no_queries;
        in[i].seq = ask[i].seq = step->seqs[i];
        ask[i].q_heads = q_heads;
        if (!tokens)
            continue;
        if (step->k.data || step->v.data) {
            in[i].tokens = tokens;
            in[i].k = part_of(&step->k, k_stride, i, start, c->kv_heads, c->k_dim);
            in[i].v = part_of(&step->v, v_stride, i, start, c->kv_heads, c->v_dim);
            in[i].bad = step->bad ? step->bad + first : NULL;
        }
        const aura_input to = part_of(&out, out_stride, i, start, q_heads, c->v_dim);
        ask[i].queries = tokens;
        ask[i].q = part_of(&step->q, q_stride, i, start, q_heads, c->k_dim);
        ask[i].out = step->out;
        ask[i].out.data = (void *)to.data;
        ask[i].out.rows = to.rows;
        ask[i].lse = step->lse ? step->lse + first * q_heads : NULL;
        ask[i].from = step->from ? step->from + first : NULL;
        ask[i].until = step->until ? step->until + first : NULL;
    }
}

/* What padding gives. */
static void clear_padding(const aura_cache *cache, const aura_step_args *step, uint32_t q_heads)
{
    static const float zero[AURA_TILE_DIM];
    const uint32_t dim = cache->config.v_dim;
    const aura_input out = aura_place_of(&step->out);
    const struct aura_strides s = aura_view_strides(&out, q_heads, dim);
    const ptrdiff_t stride = seq_stride(step->out_seq_stride, &out, step->tokens, q_heads, dim);
    for (size_t i = 0; i < step->n_seqs && step->starts; i++) {
        aura_view to = step->out;
        to.data = (char *)to.data + stride * (ptrdiff_t)i * (ptrdiff_t)aura_dtype_bytes(to.dtype);
        for (uint32_t t = 0; t < step->starts[i]; t++) {
            for (uint32_t h = 0; h < q_heads; h++) {
                aura_view_store(&to, s, t, h, zero, dim);
                if (step->lse)
                    step->lse[(i * step->tokens + t) * q_heads + h] = -INFINITY;
            }
            if (step->bad)
                step->bad[i * step->tokens + t] = 0;
        }
    }
}

aura_status aura_step(aura_cache *cache, const aura_step_args *step, const aura_attend_options *options)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_step"};
    struct jobs few;
    void *memory = NULL;
    aura_status status;
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    if ((status = aura_check_call(call, step, sizeof *step)))
        return status;
    const uint32_t q_heads = step->q_heads ? step->q_heads : cache->config.q_heads;
    const size_t n = step->n_seqs, bytes = aura_times(n, sizeof *few.in + sizeof *few.ask);
    if ((status = check_step(call, cache, step, q_heads)) ||
        (n > FEW_SEQS && (status = aura_take_memory(call, bytes, &memory))))
        return status;
    aura_attend_job *ask = memory ? memory : few.ask;
    aura_append_job *in = memory ? (aura_append_job *)(void *)(ask + n) : few.in;
    make_jobs(cache, step, q_heads, in, ask);
    struct aura_append first = {cache, in, n, NULL, 0};
    struct aura_attend then = {.cache = cache, .jobs = ask, .n_jobs = n, .first = &first};
    status = append_attend(call, &first, &then, options);
    if (!status || status == AURA_NOT_FINITE)
        clear_padding(cache, step, q_heads);
    aura_give_memory(call.ctx, memory, bytes);
    return status;
}
