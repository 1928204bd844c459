/* Slots instead of sequences: for engines that own their block table. Sequence 0, which nobody has a number of, has all pages. */
#include "cache.cuh"

enum { MOST_SLOTS = 16384 }; /* that a call writes: a block looks at all of them */

aura_status aura_cuda_make_slots(aura_cuda_cache *c, const char *call, uint64_t slots)
{
    aura_cuda_seq seq;
    struct dev_seq state;
    aura_status status = aura_cuda_group_create({&c, 1}, call, &seq);
    if (status || (status = aura_cuda_group_reserve({&c, 1}, call, seq, slots, NULL, true)) ||
        (status = aura_cuda_read_seq(c, call, seq, &state)))
        return status;
    state.len = state.closed = (uint32_t)slots; /* for aura_cuda_unpack */
    if ((status = aura_cuda_write_seq(c, call, seq, &state)))
        return status;
    c->slots = slots;
    /* A reference of zero, and numbers that are finite. */
    return cuda_status(c->ctx, call, when_done(cudaMemset(c->dev.pages, 0, c->n_pages * c->facts.page_bytes)),
                       "clearing the pages");
}

static aura_status check_cache(const aura_cuda_cache *c, const char *call)
{
    if (!c)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call);
    if (!c->slots)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: the cache has sequences, and no slots", call);
    return AURA_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------------ */

/* [tokens][heads][dim]: a token is what a sequence is in other calls. */
static struct dev_view tokens_of(const aura_cuda_view *v, uint32_t heads, uint32_t dim)
{
    struct dev_view d = view_of(v, 1, heads, dim);
    d.seq = d.token;
    return d;
}

static aura_status check_write(const aura_cuda_cache *c, const char *call, uint32_t tokens, const void *slot,
                               const aura_cuda_view *k, const aura_cuda_view *v)
{
    if (tokens == 0 || tokens > MOST_SLOTS)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %u at once (1 to %d)", call, tokens, (int)MOST_SLOTS);
    if (!slot || !k->data || !v->data)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call,
                                 !slot ? "the list of slots or pages" : k->data ? "v.data" : "k.data");
    if (!aura_dtype_bytes(k->dtype) || !aura_dtype_bytes(v->dtype))
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: k.dtype %d or v.dtype %d is not f32, f16 or bf16", call,
                                 (int)k->dtype, (int)v->dtype);
    return AURA_OK;
}

static struct dev_slots describe(const aura_cuda_cache *c, uint32_t tokens, const uint64_t *slot, const aura_cuda_view *k,
                                 const aura_cuda_view *v)
{
    struct dev_slots s = {};
    s.a.c = c->dev, s.a.tokens = 1, s.a.slots = 1;
    s.a.k = tokens_of(k, c->dev.kv_heads, c->dev.k_dim);
    s.a.v = tokens_of(v, c->dev.kv_heads, c->dev.v_dim);
    s.slot = slot, s.tokens = tokens, s.slots = c->slots;
    return s;
}

extern "C" aura_status aura_cuda_slots_write(aura_cuda_cache *c, const aura_cuda_slot_args *args, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_slots_write";
    aura_status status = check_cache(c, call);
    if (!status && (!args || args->size != sizeof *args))
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: args is NULL or args.size is wrong", call);
    if (status || (status = check_write(c, call, args->tokens, args->slot, &args->k, &args->v)))
        return status;
    struct dev_slots s = describe(c, args->tokens, args->slot, &args->k, &args->v);
    return aura_cuda_write_slots(c, call, s, stream);
}

extern "C" aura_status aura_cuda_slots_reference(aura_cuda_cache *c, const uint64_t *pages, uint32_t n, const aura_cuda_view *k,
                                                 struct CUstream_st *stream)
{
    const char *call = "aura_cuda_slots_reference";
    aura_status status = check_cache(c, call);
    if (!status && !k)
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: k is NULL", call);
    if (status || (status = check_write(c, call, n, pages, k, k)))
        return status;
    if (!c->dev.has_reference)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT,
                                 "%s: keys have no reference here: they are plain, or AURA_NO_REFERENCE is set", call);
    struct dev_slots s = describe(c, n, pages, k, k);
    s.references = 1, s.slots = aura_pages_of(c->slots);
    return aura_cuda_write_slots(c, call, s, stream);
}

extern "C" aura_status aura_cuda_slots_clear(aura_cuda_cache *c, uint64_t page, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_slots_clear";
    aura_status status = check_cache(c, call);
    if (!status && page >= aura_pages_of(c->slots))
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: page %llu; %llu slots are %zu pages", call,
                                   (unsigned long long)page, (unsigned long long)c->slots, aura_pages_of(c->slots));
    if (status)
        return status;
    on_device here(c->device);
    uint8_t *at = c->dev.pages + (size_t)aura_page_table_number(&c->page_table, 0, (size_t)page) * c->facts.page_bytes;
    return cuda_status(c->ctx, call, cudaMemsetAsync(at, 0, c->facts.page_bytes, stream), "clearing a page");
}

extern "C" aura_status aura_cuda_slots_status(aura_cuda_cache *c, uint32_t *bits)
{
    const char *call = "aura_cuda_slots_status";
    struct dev_seq state;
    aura_status status = check_cache(c, call);
    if (!status && !bits)
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: status is NULL", call);
    if (status)
        return status;
    on_device here(c->device);
    if ((status = aura_cuda_read_seq(c, call, 0, &state)))
        return status;
    *bits = state.status;
    state.status = 0;
    return *bits ? aura_cuda_write_seq(c, call, 0, &state) : AURA_OK;
}

/* ---- attending ---------------------------------------------------------------------------------------------------------- */

struct dev_listed {
    const uint32_t *pages, *tokens;
    uint32_t n_seqs, stride, n_pages;
    uint32_t most; /* pages of a list */
    struct dev_seq *listed;
    uint32_t *ids;
};

/* A warp is a sequence of the call. One with a page that there is not is none: its rows become NaN. So does one with a number of
 * tokens that no cache holds, as of -1. */
extern "C" __global__ void aura_slots_seen_cuda(const __grid_constant__ struct dev_listed s)
{
    const uint32_t i = (blockIdx.x * blockDim.x + threadIdx.x) / 32, lane = threadIdx.x % 32;
    const uint32_t len = i < s.n_seqs ? s.tokens[i] : 0, pages = (len + AURA_PAGE - 1) / AURA_PAGE;
    bool bad = len >= 1u << 31 || pages > s.most;
    for (uint32_t p = lane; p < pages && !bad; p += 32)
        bad = s.pages[(size_t)i * s.stride + p] >= s.n_pages;
    bad = __any_sync(~0u, bad);
    if (i >= s.n_seqs || lane)
        return;
    struct dev_seq seq = {};
    seq.len = seq.closed = bad ? 0 : len;
    s.listed[i] = seq;
    s.ids[i] = bad ? ~0u : i;
}

aura_status aura_cuda_list_slots(const aura_cuda_cache *c, const aura_cuda_workspace *w, const char *call,
                                 const aura_cuda_attend_args *a, struct CUstream_st *stream)
{
    const uint32_t pages = (uint32_t)aura_pages_of(c->slots);
    /* A fixed cut has room for the partials of as many tokens as there are slots. */
    const uint32_t most = c->batch_invariant && pages < a->page_stride ? pages : a->page_stride;
    struct dev_listed s = {a->pages, a->tokens, a->n_seqs, a->page_stride, pages, most, w->listed, w->ids};
    void *params[] = {&s};
    const struct launch how = {dim3((a->n_seqs + 3) / 4), 128, 0, stream};
    return aura_cuda_launch(c, call, "slots_seen_cuda", (const void *)aura_slots_seen_cuda, how, params);
}
