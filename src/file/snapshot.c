/* Snapshots of single caches: loading. snapshot_save.c has saving, model_file.c both for models. */
#include "../base/exact.h"
#include "snapshot.h"

#include <string.h>

static size_t layers_bytes(uint32_t layers)
{
    return layers * (sizeof(struct aura_loaded) + sizeof(aura_config));
}

aura_status aura_snapshot_open(struct aura_snapshot *s, struct aura_call call, const struct aura_file_input *from, uint32_t model,
                               const aura_snapshot_options *options)
{
    void *memory = NULL;
    aura_status status = aura_reader_open(&s->reader, call, from, AURA_FILE_SNAPSHOT);
    if (status)
        return status;
    s->layers = s->reader.content.layers;
    if (s->reader.content.model != model)
        status = aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s: %s", call.name,
                           model ? "of one cache, not of a model" : "of a model, not of one cache", s->reader.path);
    else if (s->layers > s->reader.sections || (!model && s->layers != 1))
        status = aura_reader_bad(&s->reader, "it lacks layers");
    else
        status = aura_take_memory(call, layers_bytes(s->layers), &memory);
    if (status) {
        aura_reader_close(&s->reader);
        return status;
    }
    s->layer = memory;
    s->config = (aura_config *)(void *)(s->layer + s->layers);
    for (uint32_t i = 0; !status && i < s->layers; i++)
        status = aura_loaded_init(&s->layer[i], &s->reader, i, options, &s->config[i]);
    if (status)
        aura_snapshot_close(s);
    return status;
}

void aura_snapshot_close(struct aura_snapshot *s)
{
    aura_give_memory(s->reader.call.ctx, s->layer, layers_bytes(s->layers));
    aura_reader_close(&s->reader);
}

aura_status aura_loaded_verify(struct aura_loaded *l, const aura_cache *cache)
{
    aura_status status = aura_loaded_fits(l, cache);
    return status ? status : aura_loaded_check(l, cache);
}

/* ---- a cache ------------------------------------------------------------------------------------------------------- */

/* Fills a new cache with what the file has. */
static aura_status fill_cache(struct aura_snapshot *s, aura_cache *cache, const aura_snapshot_options *options)
{
    struct aura_loaded *l = &s->layer[0];
    aura_status status = aura_blame_file(aura_loaded_verify(l, cache));
    if (status)
        return status;
    if (cache->slots && options->seqs)
        return aura_fail(cache->ctx, AURA_BAD_ARGUMENT, "%s: seqs of a cache of slots", s->reader.call.name);
    if (cache->slots)
        aura_loaded_slots(l, cache);
    else if ((status = aura_loaded_seqs(l, cache, options->seqs, options->n_seqs, NULL)))
        return options->seqs ? status : aura_blame_file(status);
    aura_seqs_continue(cache, l->config->generation);
    aura_loaded_learnt(l, cache);
    return AURA_OK;
}

static aura_status load_cache(const char *name, aura_ctx *ctx, struct aura_file_input from, const aura_snapshot_options *options,
                              aura_cache **cache)
{
    struct aura_call call = {ctx, name};
    struct aura_snapshot s;
    aura_cache *made = NULL;
    if (!ctx || !cache)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, ctx ? "cache" : "ctx");
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_snapshot_open(&s, call, &from, 0, options)))
        return status;
    s.config[0].budget_bytes = options->budget_bytes;
    status = aura_blame_file(aura_cache_make(call, ctx, &s.config[0], NULL, NULL, &made));
    if (!status && (status = fill_cache(&s, made, options)))
        aura_cache_destroy(made);
    aura_snapshot_close(&s);
    if (!status)
        *cache = made;
    return status;
}

aura_status aura_cache_load(aura_ctx *ctx, const char *path, const aura_snapshot_options *options, aura_cache **cache)
{
    return load_cache("aura_cache_load", ctx, aura_from_path(path), options, cache);
}

aura_status aura_cache_read(aura_ctx *ctx, aura_source *source, const aura_snapshot_options *options, aura_cache **cache)
{
    return load_cache("aura_cache_read", ctx, aura_from_source(source), options, cache);
}

/* ---- a sequence ---------------------------------------------------------------------------------------------------- */

aura_status aura_pick_seq(const struct aura_loaded *l, const aura_snapshot_options *options, aura_seq *id)
{
    if (options->n_seqs == 1)
        *id = options->seqs[0];
    else if (!options->seqs && l->config->seqs == 1)
        *id = l->seq[0].id;
    else
        return aura_fail(l->reader->call.ctx, AURA_BAD_ARGUMENT, "%s: one of the %llu sequences must be named in seqs: %s",
                         l->reader->call.name, (unsigned long long)l->config->seqs, l->reader->path);
    return AURA_OK;
}

static aura_status load_seq(const char *name, aura_cache *cache, struct aura_file_input from, const aura_snapshot_options *options,
                            aura_seq *seq)
{
    struct aura_call call = {cache ? cache->ctx : NULL, name};
    struct aura_snapshot s;
    aura_seq id, made = 0;
    if (!cache || !seq)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, cache ? "seq" : "cache");
    if (cache->model || cache->slots)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the cache is %s", call.name,
                         cache->model ? "a layer of a model; use the call for sequences of models" : "one of slots");
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_snapshot_open(&s, call, &from, 0, options)))
        return status;
    if (!(status = aura_loaded_verify(&s.layer[0], cache)) && !(status = aura_pick_seq(&s.layer[0], options, &id)))
        status = aura_loaded_seqs(&s.layer[0], cache, &id, 1, &made);
    if (!status)
        aura_loaded_learnt(&s.layer[0], cache);
    aura_snapshot_close(&s);
    if (!status)
        *seq = made;
    return status;
}

aura_status aura_seq_load(aura_cache *cache, const char *path, const aura_snapshot_options *options, aura_seq *seq)
{
    return load_seq("aura_seq_load", cache, aura_from_path(path), options, seq);
}

aura_status aura_seq_read(aura_cache *cache, aura_source *source, const aura_snapshot_options *options, aura_seq *seq)
{
    return load_seq("aura_seq_read", cache, aura_from_source(source), options, seq);
}

/* ---- notes ------------------------------------------------------------------------------------------------------------ */

aura_status aura_snapshot_note(aura_ctx *ctx, const char *path, void *note, size_t *bytes)
{
    struct aura_call call = {ctx, "aura_snapshot_note"};
    const struct aura_file_input from = aura_from_path(path);
    struct aura_reader r;
    uint64_t length = 0;
    if (!ctx || !bytes || (*bytes && !note))
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, !ctx ? "ctx" : bytes ? "note" : "bytes");
    aura_status status = aura_reader_open(&r, call, &from, AURA_FILE_SNAPSHOT);
    if (status)
        return status;
    const void *found = aura_reader_find(&r, r.content.layers - 1, AURA_SECTION_NOTE, &length);
    length = found ? length : 0;
    if (*bytes && length > *bytes)
        status = aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: a note of %llu bytes; there is room for %zu: %s", call.name,
                           (unsigned long long)length, *bytes, path);
    else if (*bytes && found)
        memcpy(note, found, (size_t)length);
    if (!status)
        *bytes = (size_t)length;
    aura_reader_close(&r);
    return status;
}
