/* Profiles: the balance, the metrics and the formats of a model. */
#include "../base/exact.h"

#include <string.h>

#include "../base/fpmode.h"
#include "../metric.h"
#include "container.h"

struct layer {
    uint32_t kv_heads, k_dim, v_dim;
    float *numbers[AURA_NUMBERS]; /* NULL: none */
    aura_format format;           /* zero: none */
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

static uint32_t dim_of(const struct layer *l, int i)
{
    return aura_numbers_of_values(i) ? l->v_dim : l->k_dim;
}

static size_t numbers_bytes(const struct layer *l, int i)
{
    return l->kv_heads * aura_numbers_width(i, dim_of(l, i)) * sizeof(float);
}

static void layer_free(const aura_profile *profile, struct layer *l)
{
    for (int i = 0; i < AURA_NUMBERS; i++)
        aura_give_memory(profile->ctx, l->numbers[i], numbers_bytes(l, i));
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
        layer_free(profile, &profile->layer[i]);
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

/* That a layer could have metrics i, in double. Fails: AURA_BAD_VALUE, AURA_OUT_OF_MEMORY. */
static aura_status check_metrics(struct aura_call call, const struct layer *l, int i, const float *metric)
{
    const uint32_t dim = dim_of(l, i);
    const size_t bytes = aura_metric_scratch(dim) * sizeof(double);
    void *scratch;
    aura_status status = aura_take_memory(call, bytes, &scratch);
    if (status)
        return status;
    uint64_t mode = aura_fpmode_enter();
    for (uint32_t h = 0; !status && h < l->kv_heads; h++)
        if (!aura_is_metric(scratch, metric + h * aura_triangle(dim), dim))
            status = aura_fail(call.ctx, AURA_BAD_VALUE,
                               "%s: %c_metric of KV head %u has a NaN or Inf, or an error that costs less than nothing", call.name,
                               i == AURA_K_METRIC ? 'k' : 'v', h);
    aura_fpmode_leave(mode);
    aura_give_memory(call.ctx, scratch, bytes);
    return status;
}

static aura_status check_numbers(struct aura_call call, const struct layer *l, int i, const float *numbers)
{
    aura_status status = aura_check_heads(call, l->kv_heads, l->kv_heads);
    if (status || (status = aura_check_cache_dim(call, aura_numbers_of_values(i) ? "v_dim" : "k_dim", dim_of(l, i))))
        return status;
    return i < AURA_K_METRIC ? aura_check_balance(call, numbers, l->kv_heads, dim_of(l, i)) : check_metrics(call, l, i, numbers);
}

/* Copies numbers into a layer of the profile, which then has no others, and the format of `with`. */
static aura_status profile_put(struct aura_call call, aura_profile *profile, uint32_t layer, struct layer with,
                               const float *const numbers[AURA_NUMBERS])
{
    aura_status status = with.format.k || with.format.v ? aura_check_format(call, with.format) : AURA_OK;
    for (int i = 0; !status && i < AURA_NUMBERS; i++) {
        void *memory;
        if (numbers[i] && !(status = check_numbers(call, &with, i, numbers[i])) &&
            !(status = aura_take_memory(call, numbers_bytes(&with, i), &memory)))
            with.numbers[i] = memcpy(memory, numbers[i], numbers_bytes(&with, i));
    }
    if (status) {
        layer_free(profile, &with);
        return status;
    }
    layer_free(profile, &profile->layer[layer]);
    profile->layer[layer] = with;
    return AURA_OK;
}

aura_status aura_profile_set(aura_profile *profile, uint32_t layer, uint32_t kv_heads, uint32_t k_dim, const float *balance)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_set"};
    const struct layer with = {balance ? kv_heads : 0, balance ? k_dim : 0, 0, {NULL}, {(aura_kind)0, (aura_kind)0}};
    const float *const numbers[AURA_NUMBERS] = {balance};
    aura_status status = check_layer(call, profile, layer);
    return status ? status : profile_put(call, profile, layer, with, numbers);
}

aura_status aura_profile_put(aura_profile *profile, uint32_t layer, const aura_profile_layer *with)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_put"};
    aura_status status = check_layer(call, profile, layer);
    if (status || (status = aura_check_call(call, with, sizeof *with)))
        return status;
    const float *const numbers[AURA_NUMBERS] = {with->balance, with->v_balance, with->k_metric, with->v_metric};
    const int k = with->balance || with->k_metric, v = with->v_balance || with->v_metric;
    const struct layer to = {k || v ? with->kv_heads : 0, k ? with->k_dim : 0, v ? with->v_dim : 0, {NULL}, with->format};
    return profile_put(call, profile, layer, to, numbers);
}

aura_status aura_profile_get(const aura_profile *profile, uint32_t layer, aura_profile_layer *info)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_get"};
    aura_status status = check_layer(call, profile, layer);
    if (status || (status = aura_check_call(call, info, sizeof *info)))
        return status;
    const struct layer *l = &profile->layer[layer];
    info->layers = profile->layers;
    info->kv_heads = l->kv_heads;
    info->k_dim = l->k_dim;
    info->v_dim = l->v_dim;
    info->balance = l->numbers[AURA_K_BALANCE];
    info->v_balance = l->numbers[AURA_V_BALANCE];
    info->k_metric = l->numbers[AURA_K_METRIC];
    info->v_metric = l->numbers[AURA_V_METRIC];
    info->format = l->format;
    return AURA_OK;
}

static void write_profile(struct aura_writer *w, const void *what)
{
    const aura_profile *profile = what;
    struct aura_file_content content = {profile->layers, 0};
    aura_writer_section(w, 0, AURA_SECTION_FILE, 0);
    aura_writer_put(w, &content, sizeof content);
    for (uint32_t i = 0; i < profile->layers; i++) {
        const struct layer *l = &profile->layer[i];
        for (int n = 0; n < AURA_NUMBERS; n++)
            if (l->numbers[n])
                aura_writer_numbers(w, i, n, l->kv_heads, dim_of(l, n), l->numbers[n]);
        if (!l->format.k)
            continue;
        struct aura_file_format format = {(uint32_t)l->format.k, (uint32_t)l->format.v};
        aura_writer_section(w, i, AURA_SECTION_FORMAT, AURA_SECTION_OPTIONAL);
        aura_writer_put(w, &format, sizeof format);
    }
}

aura_status aura_profile_save(const aura_profile *profile, const char *path)
{
    struct aura_call call = {profile ? profile->ctx : NULL, "aura_profile_save"};
    const struct aura_file_output to = aura_to_path(path);
    struct aura_file_plan plan = {AURA_FILE_PROFILE, 1, aura_file_padded(sizeof(struct aura_file_content)), write_profile, profile};
    aura_status status = check_layer(call, profile, 0);
    if (status)
        return status;
    for (uint32_t i = 0; i < profile->layers; i++) {
        const struct layer *l = &profile->layer[i];
        for (int n = 0; n < AURA_NUMBERS; n++)
            if (l->numbers[n]) {
                plan.sections++;
                plan.bytes += aura_numbers_section_bytes(n, l->kv_heads, dim_of(l, n));
            }
        plan.sections += l->format.k != 0;
        plan.bytes += l->format.k ? aura_file_padded(sizeof(struct aura_file_format)) : 0;
    }
    plan.bytes += aura_file_front(plan.sections);
    return aura_write_file(call, &to, &plan);
}

static aura_status load_layer(struct aura_call call, aura_profile *profile, const struct aura_reader *r, uint32_t layer)
{
    struct layer with = {0, 0, 0, {NULL}, {(aura_kind)0, (aura_kind)0}};
    const float *numbers[AURA_NUMBERS];
    aura_status status = aura_reader_format(r, layer, &with.format);
    if (status)
        return status;
    for (int i = 0; i < AURA_NUMBERS; i++) {
        uint32_t heads, dim, *const has = aura_numbers_of_values(i) ? &with.v_dim : &with.k_dim;
        if ((status = aura_reader_numbers(r, layer, i, &heads, &dim, &numbers[i])))
            return status;
        if (!numbers[i])
            continue;
        if ((with.kv_heads && with.kv_heads != heads) || (*has && *has != dim))
            return aura_reader_bad(r, "balance and metric of a layer are of other shapes");
        with.kv_heads = heads;
        *has = dim;
    }
    return profile_put(call, profile, layer, with, numbers);
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
    for (uint32_t i = 0; !status && i < made->layers; i++)
        status = load_layer(call, made, &r, i);
    aura_reader_close(&r);
    if (status)
        aura_profile_destroy(made);
    else
        *profile = made;
    return status == AURA_BAD_ARGUMENT || status == AURA_BAD_VALUE ? AURA_BAD_FILE : status;
}
