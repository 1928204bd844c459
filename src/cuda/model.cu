/* The caches of all layers of a model on a device: one budget, and sequences that are in all of them. */
#include "cache.cuh"

#include <new>

static aura_status check_config(aura_ctx *ctx, const char *call, const aura_cuda_model_config *c)
{
    if (c->size != sizeof *c)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: config.size is %zu, this library knows %zu", call, c->size,
                                 sizeof *c);
    if (c->layers == 0 || c->layers > 65536 || !c->configs)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: %u layers (1 to 65536)%s", call, c->layers,
                                 c->configs ? "" : ", configs is NULL");
    for (uint32_t i = 0; i < c->layers; i++) {
        if (c->configs[i].size != sizeof *c->configs)
            return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: configs[%u].size is %zu, this library knows %zu", call, i,
                                     c->configs[i].size, sizeof *c->configs);
        if (c->configs[i].budget_bytes || c->configs[i].slots)
            return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: configs[%u] has %s; a layer has none", call, i,
                                     c->configs[i].slots ? "slots" : "a budget");
    }
    return AURA_OK;
}

/* The layers, and then the memory of all of them. */
static aura_status make_layers(aura_ctx *ctx, const char *call, const aura_cuda_model_config *config, aura_cuda_model_cache *m)
{
    aura_cuda_config with = AURA_CUDA_CONFIG_INIT;
    with.device = config->device, with.seqs = config->seqs, with.seq_tokens = config->seq_tokens;
    with.batch_invariant = config->batch_invariant, with.allocator = config->allocator;
    with.cache.budget_bytes = config->budget_bytes;
    aura_status status = aura_cuda_check_config(ctx, call, &with);
    if (status || (status = aura_cuda_probe(config->device)))
        return status;
    size_t page = 0;
    m->store.ctx = ctx, m->store.device = config->device, m->store.budget = config->budget_bytes;
    m->store.allocator = config->allocator;
    m->store.layers.reserve(config->layers);
    on_device here(config->device);
    for (uint32_t i = 0; i < config->layers && !status; i++) {
        aura_config layer = config->configs[i];
        aura_cuda_cache *c = NULL;
        if (config->profile)
            status = aura_backend_take_profile(ctx, call, config->profile, config->layers, i, &layer);
        if (!status)
            status = aura_cuda_cache_begin(ctx, call, &layer, &with, &c);
        if (c)
            m->store.layers.push_back(c), c->is_layer = 1;
        page += status ? 0 : c->facts.page_bytes;
    }
    for (aura_cuda_cache *c : m->store.layers)
        c->table_pages = status ? 0 : aura_cuda_table_pages(&with, page);
    return status ? status : aura_cuda_store_make(&m->store, call);
}

extern "C" aura_status aura_cuda_model_cache_create(aura_ctx *ctx, const aura_cuda_model_config *config,
                                                    aura_cuda_model_cache **model)
{
    const char *call = "aura_cuda_model_cache_create";
    if (!ctx || !config || !model)
        return aura_backend_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, !ctx ? "ctx" : config ? "model" : "config");
    aura_status status = check_config(ctx, call, config);
    if (status)
        return status;
    aura_cuda_model_cache *m = new (std::nothrow) aura_cuda_model_cache();
    if (!m)
        return aura_backend_fail(ctx, AURA_OUT_OF_MEMORY, "%s: no memory for the handle", call);
    if ((status = make_layers(ctx, call, config, m)))
        aura_cuda_model_cache_destroy(m);
    else
        *model = m;
    return status;
}

extern "C" void aura_cuda_model_cache_destroy(aura_cuda_model_cache *m)
{
    if (!m)
        return;
    aura_cuda_store_unmake(&m->store);
    delete m;
}

extern "C" aura_status aura_cuda_model_cache_resize(aura_cuda_model_cache *m, size_t budget_bytes)
{
    const char *call = "aura_cuda_model_cache_resize";
    return m ? aura_cuda_store_resize(&m->store, call, budget_bytes)
             : aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: model is NULL", call);
}

extern "C" aura_cuda_cache *aura_cuda_model_cache_layer(const aura_cuda_model_cache *m, uint32_t layer)
{
    return m && layer < m->store.layers.size() ? m->store.layers[layer] : NULL;
}

static aura_status check_model(const aura_cuda_model_cache *m, const char *call)
{
    return m ? AURA_OK : aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: model is NULL", call);
}

extern "C" aura_status aura_cuda_model_cache_get_info(const aura_cuda_model_cache *m, aura_cuda_model_cache_info *info)
{
    const char *call = "aura_cuda_model_cache_get_info";
    aura_status status = check_model(m, call);
    if (!status && (!info || info->size != sizeof *info))
        status = aura_backend_fail(m->store.ctx, AURA_BAD_ARGUMENT, "%s: info is NULL or info.size is wrong", call);
    if (status)
        return status;
    const struct aura_cuda_store *s = &m->store;
    aura_cuda_model_cache_info sum = AURA_CUDA_MODEL_CACHE_INFO_INIT;
    sum.layers = (uint32_t)s->layers.size();
    sum.bytes = s->fixed_bytes + s->arena_bytes;
    sum.budget_bytes = s->budget;
    for (const struct page_class &k : s->classes)
        sum.pages += k.given, sum.free_pages += k.pool.n_free;
    for (size_t i = 0; i < s->slabs.size(); i++)
        sum.free_bytes += s->slabs[i] == NO_CLASS ? s->slab_bytes : 0;
    for (const aura_cuda_cache *c : s->layers) {
        aura_cuda_cache_info layer = AURA_CUDA_CACHE_INFO_INIT;
        if ((status = aura_cuda_cache_get_info(c, &layer)))
            return status;
        sum.seqs = layer.seqs_in_use;
        sum.tokens += layer.tokens;
        sum.pages_copied += layer.pages_copied, sum.tiles_closed += layer.tiles_closed;
    }
    *info = sum;
    return AURA_OK;
}

/* ---- sequences ----------------------------------------------------------------------------------------------------------- */

static struct cache_group group_of(const aura_cuda_model_cache *m)
{
    return {m->store.layers.data(), (uint32_t)m->store.layers.size()};
}

extern "C" aura_status aura_cuda_model_seq_create(aura_cuda_model_cache *m, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_model_seq_create";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_create(group_of(m), call, seq);
}

extern "C" aura_status aura_cuda_model_seq_fork(aura_cuda_model_cache *m, aura_cuda_seq from, uint64_t tokens, aura_cuda_seq *seq)
{
    const char *call = "aura_cuda_model_seq_fork";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_fork(group_of(m), call, from, tokens == UINT64_MAX ? tokens - 1 : tokens, seq);
}

extern "C" aura_status aura_cuda_model_seq_release(aura_cuda_model_cache *m, aura_cuda_seq seq)
{
    const char *call = "aura_cuda_model_seq_release";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_release(group_of(m), call, seq);
}

extern "C" aura_status aura_cuda_model_seq_truncate(aura_cuda_model_cache *m, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_model_seq_truncate";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_truncate(group_of(m), call, seq, tokens);
}

extern "C" aura_status aura_cuda_model_seq_reserve(aura_cuda_model_cache *m, aura_cuda_seq seq, uint64_t tokens)
{
    const char *call = "aura_cuda_model_seq_reserve";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_reserve(group_of(m), call, seq, tokens, NULL, true);
}

extern "C" aura_status aura_cuda_model_seq_reserve_on(aura_cuda_model_cache *m, aura_cuda_seq seq, uint64_t tokens,
                                                      struct CUstream_st *stream)
{
    const char *call = "aura_cuda_model_seq_reserve_on";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_reserve(group_of(m), call, seq, tokens, stream, false);
}

extern "C" aura_status aura_cuda_model_seqs_select(aura_cuda_model_cache *m, const aura_cuda_seq *from, size_t n_from,
                                                   const uint32_t *which, size_t n, aura_cuda_seq *to)
{
    const char *call = "aura_cuda_model_seqs_select";
    const aura_status status = check_model(m, call);
    return status ? status : aura_cuda_group_select(group_of(m), call, from, n_from, which, n, to);
}
