/* Sequences of the device that travel: by way of a CPU cache that the extents own, so that headers, pieces and checks have one
 * author. The pieces are memory of the host. */
#include "cache.cuh"

#include <new>

struct aura_cuda_extents {
    aura_cuda_cache *to;  /* that a sequence goes to; NULL: it leaves */
    aura_ctx *ctx;
    aura_cache *host;
    aura_extents *inner;
};

extern "C" void aura_cuda_extents_destroy(aura_cuda_extents *e)
{
    if (!e)
        return;
    aura_extents_destroy(e->inner);
    aura_cache_destroy(e->host);
    delete e;
}

/* Extents with an empty CPU cache, which has room for what the device can hold. */
static aura_status make(const aura_cuda_cache *c, const char *call, aura_cuda_extents **made)
{
    aura_config config = *c->facts.config;
    aura_cuda_extents *e = new (std::nothrow) aura_cuda_extents();
    if (!e)
        return aura_backend_fail(c->ctx, AURA_OUT_OF_MEMORY, "%s: no memory", call);
    e->ctx = c->ctx;
    config.budget_bytes = 2 * c->n_pages * c->facts.page_bytes + ((size_t)64 << 20);
    const aura_status status = aura_cache_create(c->ctx, &config, &e->host);
    if (status)
        aura_cuda_extents_destroy(e);
    else
        *made = e;
    return status;
}

extern "C" aura_status aura_cuda_seq_extents(const aura_cuda_cache *c, aura_cuda_seq seq, const aura_snapshot_options *options,
                                             aura_cuda_extents **extents)
{
    const char *call = "aura_cuda_seq_extents";
    aura_cuda_extents *e = NULL;
    aura_seq host = 0;
    aura_status status = aura_cuda_check_seq(c, call, seq);
    if (!status && !extents)
        status = aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: extents is NULL", call);
    if (status || (status = make(c, call, &e)))
        return status;
    if (!(status = aura_seq_create(e->host, &host)) && !(status = aura_cuda_download(c, seq, e->host, host)))
        status = aura_seq_extents(e->host, host, options, &e->inner);
    if (status)
        aura_cuda_extents_destroy(e);
    else
        *extents = e;
    return status;
}

extern "C" aura_status aura_cuda_seq_expect(aura_cuda_cache *c, const void *header, size_t bytes, aura_cuda_extents **extents)
{
    const char *call = "aura_cuda_seq_expect";
    aura_cuda_extents *e = NULL;
    if (!c || !extents)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "extents" : "cache");
    aura_status status = aura_cuda_check_alone(c, call);
    if (status || (status = make(c, call, &e)))
        return status;
    e->to = c;
    if ((status = aura_seq_expect(e->host, header, bytes, &e->inner)))
        aura_cuda_extents_destroy(e);
    else
        *extents = e;
    return status;
}

extern "C" aura_status aura_cuda_extents_get_info(const aura_cuda_extents *e, aura_extents_info *info)
{
    if (!e)
        return aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "aura_cuda_extents_get_info: extents is NULL");
    return aura_extents_get_info(e->inner, info);
}

extern "C" aura_status aura_cuda_seq_adopt(aura_cuda_extents *e, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_seq_adopt";
    aura_seq host = 0;
    aura_cuda_seq made = 0;
    if (!e || !seq)
        return aura_backend_fail(e ? e->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, e ? "seq" : "extents");
    if (!e->to)
        return aura_backend_fail(e->ctx, AURA_BAD_ARGUMENT, "%s: extents of a sequence that leaves, not of one that is expected",
                                 call);
    aura_status status = aura_seq_adopt(e->inner, &host);
    if (status || (status = aura_cuda_seq_create(e->to, &made)))
        return status;
    if ((status = aura_cuda_upload(e->to, made, e->host, host)))
        aura_cuda_seq_release(e->to, made);
    else
        *seq = made;
    aura_seq_release(e->host, host);
    return status;
}
