/* A snapshot as another backend reads it: its sequences one by one, from the file or source. */
#include "../base/exact.h"
#include "../cache/backend.h"

#include <string.h>

#include "snapshot.h"

struct aura_backend_file {
    struct aura_snapshot snapshot;
    const aura_cache *shape;
    size_t n;
    struct aura_file_place *place; /* [n] */
};

/* Finds the sequences that the options choose. */
static aura_status find_seqs(struct aura_backend_file *f, struct aura_call call, const aura_snapshot_options *options)
{
    struct aura_loaded *l = &f->snapshot.layer[0];
    void *memory = NULL;
    aura_status status = aura_loaded_verify(l, f->shape);
    f->n = options->seqs ? options->n_seqs : (size_t)l->config->seqs;
    if (status || (status = aura_take_memory(call, f->n * sizeof *f->place + 1, &memory)))
        return status;
    f->place = memory;
    return aura_loaded_find(l, f->shape, options->seqs, f->n, f->place);
}

aura_status aura_backend_open(const char *name, const aura_cache *shape, const char *path, aura_source *source,
                              const aura_snapshot_options *options, struct aura_backend_file **file)
{
    struct aura_call call = {shape->ctx, name};
    const struct aura_file_input from = path ? aura_from_path(path) : aura_from_source(source);
    void *memory = NULL;
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_take_memory(call, sizeof(struct aura_backend_file), &memory)))
        return status;
    struct aura_backend_file *f = memory;
    memset(f, 0, sizeof *f);
    f->shape = shape;
    if ((status = aura_snapshot_open(&f->snapshot, call, &from, 0, options))) {
        aura_give_memory(call.ctx, f, sizeof *f);
        return status;
    }
    if ((status = find_seqs(f, call, options)))
        aura_backend_close(f);
    else
        *file = f;
    return status;
}

void aura_backend_close(struct aura_backend_file *f)
{
    if (!f)
        return;
    const aura_ctx *ctx = f->shape->ctx;
    aura_give_memory(ctx, f->place, f->n * sizeof *f->place + 1);
    aura_snapshot_close(&f->snapshot);
    aura_give_memory(ctx, f, sizeof *f);
}

size_t aura_backend_file_seqs(const struct aura_backend_file *f)
{
    return f->n;
}

aura_seq aura_backend_file_seq(const struct aura_backend_file *f, size_t i, struct aura_backend_seq *facts)
{
    const struct aura_file_seq *s = f->place[i].seq;
    memset(facts, 0, sizeof *facts);
    facts->len = s->tokens;
    facts->closed = s->closed;
    facts->first = (size_t)s->first;
    facts->top = aura_window_least_top(&f->shape->window, facts->first, s->tokens);
    facts->pages = aura_pages_of(s->tokens);
    return s->id;
}

const uint8_t *aura_backend_file_page(const struct aura_backend_file *f, size_t i, size_t page)
{
    const struct aura_file_place *from = &f->place[i];
    const size_t entry = aura_window_count(&f->shape->window, (size_t)from->seq->first, page);
    return aura_loaded_page(&f->snapshot.layer[0], f->shape, from->entry[entry].page);
}

void aura_backend_file_rows(const struct aura_backend_file *f, size_t i, uint16_t *k, uint16_t *v)
{
    aura_loaded_rows(&f->snapshot.layer[0], f->shape, &f->place[i], k, v);
}

aura_status aura_backend_size(const char *name, const aura_cache *shape, const struct aura_backend_seq *seqs, size_t n,
                              size_t pages, const aura_snapshot_options *options, size_t *bytes)
{
    struct aura_call call = {shape->ctx, name};
    uint64_t entries = 0, rows = 0;
    aura_status status = aura_check_snapshot_options(call, &options);
    uint32_t heads = options->heads;
    if (status || (status = aura_check_head_range(call, options->first_head, &heads, shape->config.kv_heads)))
        return status;
    for (size_t i = 0; i < n; i++) {
        entries += aura_window_count(&shape->window, seqs[i].first, aura_pages_of(seqs[i].len));
        rows += aura_rows_of(shape, seqs[i].len, seqs[i].closed);
    }
    const uint64_t layer = aura_layer_sections_bytes(shape, heads, n, entries, pages, rows);
    *bytes = (size_t)aura_snapshot_bytes(layer, 1, aura_count_numbers(&shape->config), options);
    return AURA_OK;
}
