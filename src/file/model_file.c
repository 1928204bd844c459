/* Models in files: the layers one after the other, each saved like a single cache. */
#include "../base/exact.h"
#include "../cache/model.h"

#include <string.h>

#include "snapshot.h"

/* ---- saving -------------------------------------------------------------------------------------------------------- */

/* Lists the ids of all sequences, which are the same in all layers. The caller frees *ids, which has room for *n + 1. */
static aura_status list_ids(struct aura_call call, const aura_model_cache *model, aura_seq **ids, size_t *n)
{
    aura_cache *cache = model->layer[0];
    void *memory = NULL;
    pthread_mutex_lock((pthread_mutex_t *)&model->lock);
    pthread_mutex_lock(&cache->lock);
    *n = cache->seqs;
    aura_status status = aura_take_memory(call, (*n + 1) * sizeof **ids, &memory);
    *ids = memory;
    if (!status)
        aura_seqs_list(cache, NULL, *ids, *n);
    pthread_mutex_unlock(&cache->lock);
    pthread_mutex_unlock((pthread_mutex_t *)&model->lock);
    return status;
}

/* Saves the sequences in options->seqs, which is not NULL. */
static aura_status save_seqs(struct aura_call call, const aura_model_cache *model, const struct aura_file_output *to,
                             const aura_snapshot_options *options)
{
    uint32_t ready = 0;
    void *memory;
    aura_status status = aura_take_memory(call, model->layers * sizeof(struct aura_saved), &memory);
    if (status)
        return status;
    struct aura_saved *layers = memory;
    for (; !status && ready < model->layers; ready += !status)
        status = aura_saved_init(&layers[ready], call, model->layer[ready], options);
    if (!status)
        status = aura_write_snapshot(call, to, layers, model->layers, 1, options);
    while (ready-- > 0)
        aura_saved_free(&layers[ready]);
    aura_give_memory(call.ctx, layers, model->layers * sizeof *layers);
    return status;
}

/* Of one sequence, or of those in the options where `seq` is NULL. */
static aura_status save(struct aura_call call, const aura_model_cache *model, const aura_seq *seq, struct aura_file_output to,
                        const aura_snapshot_options *options)
{
    aura_seq *ids = NULL;
    size_t n = 0;
    if (!model)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: model is NULL", call.name);
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_check_file_output(call, &to)))
        return status;
    aura_snapshot_options chosen = *options;
    if (seq && (status = aura_choose_seq(call, seq, &chosen)))
        return status;
    if (!chosen.seqs) {
        if ((status = list_ids(call, model, &ids, &n)))
            return status;
        chosen.seqs = ids;
        chosen.n_seqs = n;
    }
    status = save_seqs(call, model, &to, &chosen);
    aura_give_memory(call.ctx, ids, (n + 1) * sizeof *ids);
    return status;
}

static struct aura_call call_of(const aura_model_cache *model, const char *name)
{
    return (struct aura_call){model ? model->ctx : NULL, name};
}

aura_status aura_model_save(const aura_model_cache *model, const char *path, const aura_snapshot_options *options)
{
    return save(call_of(model, "aura_model_save"), model, NULL, aura_to_path(path), options);
}

aura_status aura_model_write(const aura_model_cache *model, aura_sink *sink, const aura_snapshot_options *options)
{
    return save(call_of(model, "aura_model_write"), model, NULL, aura_to_sink(sink), options);
}

aura_status aura_model_size(const aura_model_cache *model, const aura_snapshot_options *options, size_t *bytes)
{
    return save(call_of(model, "aura_model_size"), model, NULL, aura_to_nobody(bytes), options);
}

aura_status aura_model_seq_save(const aura_model_cache *model, aura_seq seq, const char *path,
                                const aura_snapshot_options *options)
{
    return save(call_of(model, "aura_model_seq_save"), model, &seq, aura_to_path(path), options);
}

aura_status aura_model_seq_write(const aura_model_cache *model, aura_seq seq, aura_sink *sink,
                                 const aura_snapshot_options *options)
{
    return save(call_of(model, "aura_model_seq_write"), model, &seq, aura_to_sink(sink), options);
}

aura_status aura_model_seq_size(const aura_model_cache *model, aura_seq seq, const aura_snapshot_options *options, size_t *bytes)
{
    return save(call_of(model, "aura_model_seq_size"), model, &seq, aura_to_nobody(bytes), options);
}

/* ---- loading ------------------------------------------------------------------------------------------------------- */

/* All layers must have the same sequences. */
static aura_status check_same_seqs(const struct aura_snapshot *s)
{
    const struct aura_loaded *first = &s->layer[0];
    for (uint32_t i = 1; i < s->layers; i++) {
        const struct aura_loaded *l = &s->layer[i];
        if (l->config->seqs != first->config->seqs)
            return aura_reader_bad(&s->reader, "its layers have different sequences");
        for (uint64_t k = 0; k < l->config->seqs; k++)
            if (l->seq[k].id != first->seq[k].id)
                return aura_reader_bad(&s->reader, "its layers have different sequences");
    }
    return AURA_OK;
}

static aura_status fill_model(struct aura_snapshot *s, aura_model_cache *model, const aura_snapshot_options *options)
{
    aura_status status = check_same_seqs(s);
    for (uint32_t i = 0; !status && i < s->layers; i++)
        status = aura_blame_file(aura_loaded_verify(&s->layer[i], model->layer[i]));
    for (uint32_t i = 0; !status && i < s->layers; i++) {
        status = aura_loaded_seqs(&s->layer[i], model->layer[i], options->seqs, options->n_seqs, NULL);
        aura_seqs_continue(model->layer[i], s->layer[i].config->generation);
        aura_loaded_learnt(&s->layer[i], model->layer[i]);
        status = options->seqs ? status : aura_blame_file(status);
    }
    return status;
}

static aura_status load_model(const char *name, aura_ctx *ctx, struct aura_file_input from, const aura_snapshot_options *options,
                              aura_model_cache **model)
{
    struct aura_call call = {ctx, name};
    struct aura_snapshot s;
    aura_model_cache *made = NULL;
    if (!ctx || !model)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, ctx ? "model" : "ctx");
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_snapshot_open(&s, call, &from, 1, options)))
        return status;
    for (uint32_t i = 0; !status && i < s.layers; i++)
        if (s.config[i].slots)
            status = aura_reader_bad(&s.reader, "a layer of a model has slots");
    if (!status)
        status = aura_blame_file(aura_model_make(call, ctx, s.config, s.layers, options->budget_bytes, &made));
    if (!status && (status = fill_model(&s, made, options)))
        aura_model_cache_destroy(made);
    aura_snapshot_close(&s);
    if (!status)
        *model = made;
    return status;
}

aura_status aura_model_load(aura_ctx *ctx, const char *path, const aura_snapshot_options *options, aura_model_cache **model)
{
    return load_model("aura_model_load", ctx, aura_from_path(path), options, model);
}

aura_status aura_model_read(aura_ctx *ctx, aura_source *source, const aura_snapshot_options *options, aura_model_cache **model)
{
    return load_model("aura_model_read", ctx, aura_from_source(source), options, model);
}

static aura_status load_seq(const char *name, aura_model_cache *model, struct aura_file_input from,
                            const aura_snapshot_options *options, aura_seq *seq)
{
    struct aura_call call = {model ? model->ctx : NULL, name};
    struct aura_snapshot s;
    aura_seq id = 0, made = 0;
    uint32_t done = 0;
    if (!model || !seq)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, model ? "seq" : "model");
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_snapshot_open(&s, call, &from, 1, options)))
        return status;
    if (s.layers != model->layers)
        status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %u layers in the file, %u in the model: %s", call.name, s.layers,
                           model->layers, s.reader.path);
    if (!status)
        status = check_same_seqs(&s);
    for (uint32_t i = 0; !status && i < s.layers; i++)
        status = aura_loaded_verify(&s.layer[i], model->layer[i]);
    if (!status)
        status = aura_pick_seq(&s.layer[0], options, &id);
    pthread_mutex_lock(&model->lock);
    for (; !status && done < s.layers; done += !status)
        status = aura_loaded_seqs(&s.layer[done], model->layer[done], &id, 1, &made);
    if (status && done)
        aura_model_discard(model, made, done);
    pthread_mutex_unlock(&model->lock);
    for (uint32_t i = 0; !status && i < s.layers; i++)
        aura_loaded_learnt(&s.layer[i], model->layer[i]);
    aura_snapshot_close(&s);
    if (!status)
        *seq = made;
    return status;
}

aura_status aura_model_seq_load(aura_model_cache *model, const char *path, const aura_snapshot_options *options, aura_seq *seq)
{
    return load_seq("aura_model_seq_load", model, aura_from_path(path), options, seq);
}

aura_status aura_model_seq_read(aura_model_cache *model, aura_source *source, const aura_snapshot_options *options, aura_seq *seq)
{
    return load_seq("aura_model_seq_read", model, aura_from_source(source), options, seq);
}
