/* Profiles: the balance vectors of a model. */
#include "../base/exact.h"

#include <string.h>

#include "container.h"

struct layer {
    uint32_t kv_heads, k_dim;
    float *balance; /* NULL: none */
};

struct aura_profile {
    aura_ctx *ctx;
    uint32_t layers;
    struct layer layer[];
};

static size_t profile_bytes(uint32_t layers)
{
    return sizeof(aura_profile) + layers * sizeof(struct layer);
}

static size_t balance_bytes(const struct layer *l)
{
    return (size_t)l->kv_heads * l->k_dim * sizeof *l->balance;
}

static aura_status profile_create(struct aura_call call, aura_ctx *ctx, uint32_t layers, aura_profile **profile)
{
    if (layers == 0 || layers > AURA_MOST_LAYERS)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u layers; 1 to %d", call.name, layers, AURA_MOST_LAYERS);
    void *memory;
    aura_status status = aura_take_memory(call, profile_bytes(layers), &memory);
    if (status)
        return status;
    aura_profile *made = memset(memory, 0, profile_bytes(layers));
    made->ctx = ctx;
    made->layers = layers;
    *profile = made;
    return AURA_OK;
}

/* ctx and where the result goes. */
static aura_status check_new(struct aura_call call, aura_profile **profile)
{
    if (!call.ctx || !profile)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, call.ctx ? "profile" : "ctx");
    return AURA_OK;
}

aura_status aura_profile_create(aura_ctx *ctx, uint32_t layers, aura_profile **profile)
{
    struct aura_call call = {ctx, "aura_profile_create"};
    aura_status status = check_new(call, profile);
    return status ? status : profile_create(call, ctx, layers, profile);
}

void aura_profile_destroy(aura_profile *profile)
{
    if (!profile)
        return;
    for (uint32_t i = 0; i < profile->layers; i++)
        aura_give_memory(profile->ctx, profile->layer[i].balance, balance_bytes(&profile->layer[i]));
    aura_give_memory(profile->ctx, profile, profile_bytes(profile->layers));
}

static aura_status check_layer(struct aura_call call, const aura_profile *profile, uint32_t layer)
{
    if (!profile)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: profile is NULL", call.name);
    if (layer >= profile->layers)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: layer %u of %u", call.name, layer, profile->layers);
    return AURA_OK;
}

static aura_status profile_set(struct aura_call call, aura_profile *profile, uint32_t layer, struct layer with,
                               const float *balance)
{
    struct layer *l = &profile->layer[layer];
    aura_status status;
    void *memory;
    if (balance) {
        if ((status = aura_check_heads(call, with.kv_heads, with.kv_heads)) ||
            (status = aura_check_cache_dim(call, "k_dim", with.k_dim)) ||
            (status = aura_check_balance(call, balance, with.kv_heads, with.k_dim)) ||
            (status = aura_take_memory(call, balance_bytes(&with), &memory)))
            return status;
        with.balance = memcpy(memory, balance, balance_bytes(&with));
    }
    aura_give_memory(profile->ctx, l->balance, balance_bytes(l));
    *l = with;
    return AURA_OK;
}

aura_status aura_profile_set(aura_profile *profile, uint32_t layer, uint32_t kv_heads, uint32_t k_dim, const float *balance)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_set"};
    struct layer with = {balance ? kv_heads : 0, balance ? k_dim : 0, NULL};
    aura_status status = check_layer(call, profile, layer);
    return status ? status : profile_set(call, profile, layer, with, balance);
}

aura_status aura_profile_get(const aura_profile *profile, uint32_t layer, aura_profile_layer *info)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_get"};
    aura_status status = check_layer(call, profile, layer);
    if (status || (status = aura_check_call(call, info, sizeof *info)))
        return status;
    info->layers = profile->layers;
    info->kv_heads = profile->layer[layer].kv_heads;
    info->k_dim = profile->layer[layer].k_dim;
    info->balance = profile->layer[layer].balance;
    return AURA_OK;
}

static void write_profile(struct aura_writer *w, const void *what)
{
    const aura_profile *profile = what;
    struct aura_file_content content = {profile->layers, 0};
    aura_writer_section(w, 0, AURA_SECTION_FILE, 0);
    aura_writer_put(w, &content, sizeof content);
    for (uint32_t i = 0; i < profile->layers; i++)
        if (profile->layer[i].balance)
            aura_writer_balance(w, i, profile->layer[i].kv_heads, profile->layer[i].k_dim, profile->layer[i].balance);
}

aura_status aura_profile_save(const aura_profile *profile, const char *path)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_save"};
    const struct aura_file_output to = aura_to_path(path);
    struct aura_file_plan plan = {AURA_FILE_PROFILE, 1, aura_file_padded(sizeof(struct aura_file_content)), write_profile, profile};
    aura_status status = check_layer(call, profile, 0);
    if (status)
        return status;
    for (uint32_t i = 0; i < profile->layers; i++)
        if (profile->layer[i].balance) {
            plan.sections++;
            plan.bytes += aura_balance_section_bytes(profile->layer[i].kv_heads, profile->layer[i].k_dim);
        }
    plan.bytes += aura_file_front(plan.sections);
    return aura_write_file(call, &to, &plan);
}

aura_status aura_profile_load(aura_ctx *ctx, const char *path, aura_profile **profile)
{
    struct aura_call call = {ctx, "aura_profile_load"};
    const struct aura_file_input from = aura_from_path(path);
    struct aura_reader r;
    aura_profile *made = NULL;
    aura_status status = check_new(call, profile);
    if (status || (status = aura_reader_open(&r, call, &from, AURA_FILE_PROFILE)))
        return status;
    if (r.content.layers > AURA_MOST_LAYERS || r.content.model)
        status = aura_reader_bad(&r, "it has no or too many layers");
    if (!status)
        status = profile_create(call, ctx, r.content.layers, &made);
    for (uint32_t i = 0; !status && i < made->layers; i++) {
        struct layer with = {0, 0, NULL};
        const float *balance;
        if (!(status = aura_reader_balance(&r, i, &with.kv_heads, &with.k_dim, &balance)) && balance)
            status = profile_set(call, made, i, with, balance);
    }
    aura_reader_close(&r);
    if (status)
        aura_profile_destroy(made);
    else
        *profile = made;
    return status == AURA_BAD_ARGUMENT || status == AURA_BAD_VALUE ? AURA_BAD_FILE : status;
}
