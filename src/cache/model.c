/* Caches of many layers that share a budget, and sequences that are in all of them. */
#include "../base/exact.h"
#include "../../include/aura_file.h"
#include "../base/numbers.h"
#include "model.h"

#include <string.h>

size_t aura_model_bytes(uint32_t layers)
{
    return sizeof(aura_model_cache) + layers * sizeof(aura_cache *);
}

/* ---- create -------------------------------------------------------------------------------------------------------- */

/* Pages of a layer come in slabs; those that lie idle in one layer are missed in another where there is a budget. */
static void limit_slabs(const aura_model_cache *model, aura_cache *cache)
{
    size_t most = model->budget.limit / 16 / model->layers / cache->page_bytes;
    if (model->budget.limit && most < cache->slab_pages)
        cache->slab_pages = most ? most : 1;
}

aura_status aura_model_make(struct aura_call call, aura_ctx *ctx, const aura_config *configs, uint32_t layers, size_t budget,
                            aura_model_cache **model)
{
    void *memory;
    aura_status status = aura_take_memory(call, aura_model_bytes(layers), &memory);
    if (status)
        return status;
    aura_model_cache *made = memset(memory, 0, aura_model_bytes(layers));
    made->ctx = ctx;
    made->layers = layers;
    made->budget.limit = budget;
    atomic_init(&made->budget.bytes, aura_model_bytes(layers));
    if (pthread_mutex_init(&made->lock, NULL)) {
        aura_give_memory(ctx, made, aura_model_bytes(layers));
        return aura_fail(ctx, AURA_OUT_OF_MEMORY, "%s: the system has no mutex left", call.name);
    }
    for (uint32_t i = 0; !status && i < layers; i++)
        if (!(status = aura_cache_make(call, ctx, &configs[i], made, &made->budget, &made->layer[i])))
            limit_slabs(made, made->layer[i]);
    if (status)
        aura_model_cache_destroy(made);
    else
        *model = made;
    return status;
}

static aura_status check_config(struct aura_call call, const aura_model_config *c)
{
    aura_status status = aura_check_call(call, c, sizeof *c);
    if (status)
        return status;
    if (c->layers == 0 || c->layers > AURA_MOST_LAYERS || !c->configs)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u layers (1 to %d)%s", call.name, c->layers, AURA_MOST_LAYERS,
                         c->configs ? "" : ", configs is NULL");
    for (uint32_t i = 0; i < c->layers; i++) {
        if ((status = aura_check_call(call, &c->configs[i], sizeof *c->configs)))
            return status;
        if (c->configs[i].budget_bytes || c->configs[i].slots)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: configs[%u] has %s; a layer has none", call.name, i,
                             c->configs[i].slots ? "slots" : "a budget");
    }
    return AURA_OK;
}

aura_status aura_take_profile(struct aura_call call, const aura_profile *profile, uint32_t layers, uint32_t layer,
                              aura_config *config)
{
    aura_profile_layer p = AURA_PROFILE_LAYER_INIT;
    aura_status status = aura_profile_get(profile, layer, &p);
    if (status)
        return status;
    if (p.layers != layers)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a profile of %u layers for %u", call.name, p.layers, layers);
    if (!config->format.k && !config->format.v)
        config->format = p.format;
    const float *const numbers[AURA_NUMBERS] = {p.balance, p.v_balance, p.k_metric, p.v_metric};
    for (int i = 0; i < AURA_NUMBERS; i++) {
        const int values = aura_numbers_of_values(i);
        const uint32_t kind = (uint32_t)(values ? config->format.v : config->format.k), has = values ? p.v_dim : p.k_dim;
        const uint32_t dim = values && config->v_dim ? config->v_dim : config->k_dim;
        if (!numbers[i] || aura_numbers(config, i) || (kind && !aura_is_packed(kind)))
            continue;
        if (p.kv_heads != config->kv_heads || has != dim)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT,
                             "%s: layer %u of the profile has %u KV heads of dim %u, configs[%u] %u of %u", call.name, layer,
                             p.kv_heads, has, layer, config->kv_heads, dim);
        *aura_numbers_at(config, i) = numbers[i];
    }
    return AURA_OK;
}

aura_status aura_model_cache_create(aura_ctx *ctx, const aura_model_config *config, aura_model_cache **model)
{
    struct aura_call call = {ctx, "aura_model_cache_create"};
    aura_status status = check_config(call, config);
    if (status)
        return status;
    if (!model)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: model is NULL", call.name);
    size_t bytes = config->layers * sizeof *config->configs;
    void *memory;
    if ((status = aura_take_memory(call, bytes, &memory)))
        return status;
    aura_config *configs = memcpy(memory, config->configs, bytes);
    for (uint32_t i = 0; !status && config->profile && i < config->layers; i++)
        status = aura_take_profile(call, config->profile, config->layers, i, &configs[i]);
    if (!status)
        status = aura_model_make(call, ctx, configs, config->layers, config->budget_bytes, model);
    aura_give_memory(ctx, configs, bytes);
    return status;
}

void aura_model_cache_destroy(aura_model_cache *model)
{
    if (!model)
        return;
    for (uint32_t i = 0; i < model->layers; i++)
        if (model->layer[i])
            aura_cache_unmake(model->layer[i]);
    pthread_mutex_destroy(&model->lock);
    aura_give_memory(model->ctx, model, aura_model_bytes(model->layers));
}

/* ---- information --------------------------------------------------------------------------------------------------- */

static aura_status check_model(struct aura_call call, const aura_model_cache *model)
{
    return model ? AURA_OK : aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: model is NULL", call.name);
}

aura_cache *aura_model_cache_layer(const aura_model_cache *model, uint32_t layer)
{
    return model && layer < model->layers ? model->layer[layer] : NULL;
}

aura_status aura_model_cache_list(const aura_model_cache *model, aura_seq *seqs, size_t *n)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_cache_list"};
    aura_status status = check_model(call, model);
    return status ? status : aura_cache_list(model->layer[0], seqs, n);
}

aura_status aura_model_cache_get_info(const aura_model_cache *model, aura_model_cache_info *info)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_cache_get_info"};
    aura_status status = check_model(call, model);
    if (status || (status = aura_check_call(call, info, sizeof *info)))
        return status;
    aura_model_cache_info sum = AURA_MODEL_CACHE_INFO_INIT;
    sum.layers = model->layers;
    sum.bytes = atomic_load(&((aura_model_cache *)model)->budget.bytes);
    sum.budget_bytes = model->budget.limit;
    for (uint32_t i = 0; i < model->layers; i++) {
        aura_cache_info layer = AURA_CACHE_INFO_INIT;
        aura_cache_get_info(model->layer[i], &layer);
        sum.seqs = layer.seqs;
        sum.pages += layer.pages;
        sum.free_pages += layer.free_pages;
        sum.tokens += layer.tokens;
        sum.pages_copied += layer.pages_copied;
        sum.tiles_closed += layer.tiles_closed;
        sum.append_s += layer.append_s;
        sum.attend_s += layer.attend_s;
        sum.step_s += layer.step_s;
    }
    *info = sum;
    return AURA_OK;
}

/* ---- sequences ----------------------------------------------------------------------------------------------------- */

void aura_model_discard(aura_model_cache *model, aura_seq id, uint32_t layers)
{
    struct aura_call call = {model->ctx, "aura_model_seq_release"};
    for (uint32_t i = 0; i < layers; i++)
        aura_seq_discard(model->layer[i], aura_find_seq(call, model->layer[i], id));
}

/* A sequence of all layers or of none: an empty one, or with `from` the first `tokens` tokens of that. */
static aura_status add_to_layers(struct aura_call call, aura_model_cache *model, const aura_seq *from, uint64_t tokens,
                                 aura_seq *seq)
{
    aura_status status = check_model(call, model);
    aura_seq id = 0;
    uint32_t made = 0;
    if (!status && !seq)
        status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seq is NULL", call.name);
    if (status)
        return status;
    pthread_mutex_lock(&model->lock);
    for (; !status && made < model->layers; made += !status)
        status = from ? aura_seq_branch(call, model->layer[made], *from, tokens, &id) : aura_seq_add(call, model->layer[made], &id);
    if (status)
        aura_model_discard(model, id, made);
    pthread_mutex_unlock(&model->lock);
    if (!status)
        *seq = id;
    return status;
}

aura_status aura_model_seq_create(aura_model_cache *model, aura_seq *seq)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_create"};
    return add_to_layers(call, model, NULL, 0, seq);
}

aura_status aura_model_seq_fork(aura_model_cache *model, aura_seq from, uint64_t tokens, aura_seq *seq)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_fork"};
    return add_to_layers(call, model, &from, tokens, seq);
}

aura_status aura_model_seq_release(aura_model_cache *model, aura_seq seq)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_release"};
    aura_status status = check_model(call, model);
    if (status)
        return status;
    pthread_mutex_lock(&model->lock);
    if (aura_find_seq(call, model->layer[0], seq))
        aura_model_discard(model, seq, model->layers);
    else
        status = AURA_BAD_ARGUMENT;
    pthread_mutex_unlock(&model->lock);
    return status;
}

aura_status aura_model_seq_truncate(aura_model_cache *model, aura_seq seq, uint64_t tokens)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_truncate"};
    aura_status status = check_model(call, model);
    for (uint32_t i = 0; !status && i < model->layers; i++) {
        struct aura_sequence *s = aura_find_seq(call, model->layer[i], seq);
        status = s ? aura_check_cut(call, model->layer[i], s, tokens) : AURA_BAD_ARGUMENT;
    }
    for (uint32_t i = 0; !status && i < model->layers; i++)
        status = aura_truncate(model->layer[i], seq, tokens);
    return status;
}

static aura_status edit_model(struct aura_call call, aura_model_cache *model, aura_seq seq, const struct aura_edit *what)
{
    aura_status status = check_model(call, model);
    return status ? status : aura_edit_layers(call, model->layer, model->layers, 0, seq, what);
}

aura_status aura_model_seq_remove(aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t tokens)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_remove"};
    struct aura_edit what = {first, tokens, 0, 1, 0, NULL, NULL};
    return edit_model(call, model, seq, &what);
}

aura_status aura_model_seq_shift(aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t tokens, aura_map_key_fn *map,
                                 void *user)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_shift"};
    struct aura_edit what = {first, tokens, 0, 1, 1, map, user};
    return edit_model(call, model, seq, &what);
}

aura_status aura_model_seq_map_keys(aura_model_cache *model, aura_seq seq, uint64_t first, uint64_t tokens, aura_map_key_fn *map,
                                    void *user)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_map_keys"};
    struct aura_edit what = {first, 0, first + tokens, 0, 1, map, user};
    return edit_model(call, model, seq, &what);
}

/* Takes back the reservations of the first layers: before[i] pages were promised to layer i. */
static void reserve_less(struct aura_call call, aura_model_cache *model, aura_seq seq, const size_t *before, uint32_t layers)
{
    for (uint32_t i = 0; i < layers; i++) {
        aura_cache *cache = model->layer[i];
        struct aura_sequence *s = aura_find_seq(call, cache, seq);
        s->reserved = before[i];
        pthread_mutex_lock(&cache->lock);
        aura_pages_trim(cache, s);
        pthread_mutex_unlock(&cache->lock);
    }
}

aura_status aura_model_seq_reserve(aura_model_cache *model, aura_seq seq, uint64_t tokens)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_reserve"};
    aura_status status = check_model(call, model);
    if (status)
        return status;
    if (!aura_find_seq(call, model->layer[0], seq))
        return AURA_BAD_ARGUMENT;
    uint32_t done = 0;
    void *memory;
    if ((status = aura_take_memory(call, model->layers * sizeof(size_t), &memory)))
        return status;
    size_t *before = memory;
    for (; !status && done < model->layers; done += !status) {
        struct aura_sequence *s = aura_find_seq(call, model->layer[done], seq);
        before[done] = s->reserved;
        status = aura_pages_reserve(call, model->layer[done], s, tokens);
    }
    if (status)
        reserve_less(call, model, seq, before, done);
    aura_give_memory(call.ctx, before, model->layers * sizeof *before);
    return status;
}

/* ---- beams --------------------------------------------------------------------------------------------------------- */

/* That all are there, once each, and that a choice is one of them. */
static aura_status check_choice(struct aura_call call, const aura_model_cache *model, const aura_seq *from, size_t n_from,
                                const uint32_t *which, size_t n)
{
    for (size_t i = 0; i < n_from; i++) {
        if (!aura_find_seq(call, model->layer[0], from[i]))
            return AURA_BAD_ARGUMENT;
        for (size_t j = 0; j < i; j++)
            if (from[j] == from[i])
                return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: from[%zu] and from[%zu] are both %u", call.name, j, i, from[i]);
    }
    for (size_t i = 0; i < n; i++)
        if (which[i] >= n_from)
            return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: which[%zu] is %u of %zu", call.name, i, which[i], n_from);
    return AURA_OK;
}

/* A whole sequence once more, in all layers or in none. The lock is held. */
static aura_status fork_whole(struct aura_call call, aura_model_cache *model, aura_seq from, aura_seq *id)
{
    aura_status status = AURA_OK;
    uint32_t made = 0;
    *id = 0;
    for (; !status && made < model->layers; made += !status)
        status = aura_seq_branch(call, model->layer[made], from, aura_find_seq(call, model->layer[made], from)->len, id);
    if (status)
        aura_model_discard(model, *id, made);
    return status;
}

/* The first place with a choice; n: it is in none. */
static size_t place_of(const uint32_t *which, size_t n, size_t choice)
{
    size_t i = 0;
    while (i < n && which[i] != choice)
        i++;
    return i;
}

/* made[n] of from[]: the lock is held. */
static aura_status select_seqs(struct aura_call call, aura_model_cache *model, const aura_seq *from, size_t n_from,
                               const uint32_t *which, size_t n, aura_seq *made)
{
    aura_status status = check_choice(call, model, from, n_from, which, n);
    size_t done = 0;
    for (; !status && done < n; done += !status) {
        made[done] = from[which[done]];
        if (place_of(which, n, which[done]) < done)
            status = fork_whole(call, model, from[which[done]], &made[done]);
    }
    for (size_t i = 0; status && i < done; i++)
        if (place_of(which, n, which[i]) < i)
            aura_model_discard(model, made[i], model->layers);
    for (size_t i = 0; !status && i < n_from; i++)
        if (place_of(which, n, i) == n)
            aura_model_discard(model, from[i], model->layers);
    return status;
}

aura_status aura_model_seqs_select(aura_model_cache *model, const aura_seq *from, size_t n_from, const uint32_t *which, size_t n,
                                   aura_seq *to)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seqs_select"};
    aura_status status = check_model(call, model);
    void *memory = NULL;
    if (!status && ((n_from && !from) || (n && (!which || !to))))
        status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name,
                           n_from && !from ? "from" : which ? "to" : "which");
    const size_t bytes = aura_times(n + 1, sizeof *to);
    if (status || (status = aura_take_memory(call, bytes, &memory)))
        return status;
    pthread_mutex_lock(&model->lock);
    status = select_seqs(call, model, from, n_from, which, n, memory);
    pthread_mutex_unlock(&model->lock);
    if (!status && n)
        memcpy(to, memory, n * sizeof *to);
    aura_give_memory(call.ctx, memory, bytes);
    return status;
}
