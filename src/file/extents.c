/* Sequences that travel. What leaves is a snapshot, cut into a header, which has everything but pages and rows, and pieces of
 * memory, a page or the rows of a layer each. Pages that are in memory as they would be in a file are where they are; the others,
 * which are the first and the newest, are copied. On the other side the pieces are the pages of a sequence that nobody finds before
 * all of them have been checked. */
#include "../base/exact.h"
#include "../cache/model.h"

#include <string.h>

#include "crc32c.h"
#include "snapshot.h"

struct aura_extents {
    struct aura_call call;
    uint32_t layers;
    aura_model_cache *model;        /* that a sequence goes to; NULL: a cache, or a sequence that leaves */
    aura_piece *piece;              /* [n] of each layer its pages, then, where there are any, its rows */
    size_t n, *first;               /* first[layers + 1]: of the pieces of a layer */
    size_t copied;
    struct aura_large_sums *sums;   /* [layers] */
    aura_status *status;            /* [layers] of what threads found */
    uint8_t *header, *copies;
    size_t header_bytes, copies_bytes;
    void *memory;                   /* of the arrays */
    size_t memory_bytes;

    struct aura_saved *saved;       /* [layers] of a sequence that leaves */
    struct aura_snapshot snapshot;  /* of one that is expected */
    struct aura_arrival *arrival;   /* [layers], or NULL once it has been adopted */
};

/* ---- what both sides have ------------------------------------------------------------------------------------------ */

static int is_rows(const aura_piece *p)
{
    return p->what == AURA_PIECE_ROWS;
}

/* Of `pages` pages and the rows of all layers; `each` more bytes for every layer. */
static aura_status make(struct aura_call call, uint32_t layers, size_t pages, size_t each, struct aura_extents **made)
{
    const size_t n = pages + layers;
    const size_t bytes = sizeof(struct aura_extents) + n * sizeof(aura_piece) +
                         layers * (each + sizeof(size_t) + sizeof(struct aura_large_sums) + sizeof(aura_status)) +
                         sizeof(size_t) + 64;
    void *memory = NULL;
    aura_status status = aura_take_memory(call, bytes, &memory);
    if (status)
        return status;
    struct aura_extents *e = memset(memory, 0, bytes);
    e->call = call;
    e->layers = layers;
    e->memory = memory;
    e->memory_bytes = bytes;
    e->piece = (aura_piece *)(void *)(e + 1);
    e->first = (size_t *)(void *)(e->piece + n);
    e->saved = (struct aura_saved *)(void *)(e->first + layers + 1);
    e->arrival = (struct aura_arrival *)(void *)(e->first + layers + 1);
    e->sums = (struct aura_large_sums *)(void *)((uint8_t *)(void *)e->saved + layers * each);
    e->status = (aura_status *)(void *)(e->sums + layers);
    *made = e;
    return AURA_OK;
}

static void add_piece(struct aura_extents *e, uint32_t layer, aura_piece_kind what, void *data, size_t bytes)
{
    const aura_piece piece = {data, bytes, what, layer};
    e->piece[e->n++] = piece;
}

/* The zeros that follow a section in a file are part of its checksum. */
static uint32_t padded_crc(const struct aura_extents *e, uint32_t crc, uint64_t bytes)
{
    static const uint8_t zeros[AURA_FILE_ALIGN];
    return aura_crc32c(crc, zeros, (size_t)(aura_file_padded(bytes) - bytes), e->call.ctx->isas);
}

/* The sums of the pieces of a layer as they are now. */
static struct aura_large_sums sums_of(const struct aura_extents *e, size_t layer)
{
    struct aura_large_sums sums = {0, 0};
    uint64_t pages = 0, rows = 0;
    for (size_t i = e->first[layer]; i < e->first[layer + 1]; i++) {
        const aura_piece *p = &e->piece[i];
        uint32_t *crc = is_rows(p) ? &sums.rows : &sums.pages;
        *crc = aura_crc32c(*crc, p->data, p->bytes, e->call.ctx->isas);
        *(is_rows(p) ? &rows : &pages) += p->bytes;
    }
    sums.pages = padded_crc(e, sums.pages, pages);
    sums.rows = padded_crc(e, sums.rows, rows);
    return sums;
}

aura_status aura_extents_get_info(const aura_extents *extents, aura_extents_info *info)
{
    struct aura_call call = {extents ? extents->call.ctx : NULL, "aura_extents_get_info"};
    if (!extents)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: extents is NULL", call.name);
    aura_status status = aura_check_call(call, info, sizeof *info);
    if (status)
        return status;
    info->header = extents->header;
    info->header_bytes = extents->header_bytes;
    info->pieces = extents->piece;
    info->n = extents->n;
    info->copied = extents->copied;
    info->bytes = 0;
    for (size_t i = 0; i < extents->n; i++)
        info->bytes += extents->piece[i].bytes;
    return AURA_OK;
}

void aura_extents_destroy(aura_extents *e)
{
    if (!e)
        return;
    const aura_ctx *ctx = e->call.ctx;
    const int arriving = e->snapshot.layer != NULL;
    for (uint32_t i = 0; arriving && e->arrival && i < e->layers; i++)
        aura_arrival_free(&e->arrival[i]);
    if (arriving)
        aura_snapshot_close(&e->snapshot);
    aura_give_memory(ctx, e->copies, e->copies_bytes);
    aura_give_memory(ctx, arriving ? NULL : e->header, e->header_bytes);
    aura_give_memory(ctx, e->memory, e->memory_bytes);
}

/* ---- a sequence that leaves ---------------------------------------------------------------------------------------- */

/* Whether the heads of a page that leave are in memory as they are in a file. */
static int is_in_place(const struct aura_saved *s, size_t page)
{
    const struct aura_layout *l = &s->cache->layout;
    int same = 1;
    for (uint32_t h = s->first_head; same && h < s->first_head + s->heads; h++)
        same = aura_is_canonical_head(s->page[page].page + (size_t)h * l->head_bytes, l, &s->page[page].span);
    return same;
}

static size_t page_bytes(const struct aura_saved *s)
{
    return s->heads * (size_t)s->cache->layout.head_bytes;
}

static void put_to_memory(void *to, const void *data, size_t bytes)
{
    uint8_t **at = to;
    memcpy(*at, data, bytes);
    *at += bytes;
}

/* All pieces; where `at` is not NULL, with copies from there on. Returns what the copies take. */
static size_t place_pieces(struct aura_extents *e, uint8_t *at)
{
    size_t bytes = 0;
    e->n = e->copied = 0;
    for (uint32_t i = 0; i < e->layers; i++) {
        const struct aura_saved *s = &e->saved[i];
        const size_t rows = aura_saved_rows_bytes(s);
        e->first[i] = e->n;
        for (size_t p = 0; p < s->pages; p++) {
            const size_t first = (size_t)s->first_head * s->cache->layout.head_bytes;
            const int in_place = is_in_place(s, p);
            add_piece(e, i, AURA_PIECE_PAGE, in_place ? s->page[p].page + first : at ? at + bytes : NULL, page_bytes(s));
            for (uint32_t h = 0; at && !in_place && h < s->heads; h++)
                aura_canonical_head(at + bytes + (size_t)h * s->cache->layout.head_bytes,
                                    s->page[p].page + first + (size_t)h * s->cache->layout.head_bytes, &s->cache->layout,
                                    &s->page[p].span);
            bytes += in_place ? 0 : page_bytes(s);
            e->copied += !in_place;
        }
        if (rows)
            add_piece(e, i, AURA_PIECE_ROWS, at ? at + bytes : NULL, rows);
        uint8_t *to = at ? at + bytes : NULL;
        if (to)
            aura_saved_rows(s, put_to_memory, &to);
        bytes += rows;
        e->copied += rows > 0;
    }
    e->first[e->layers] = e->n;
    return bytes;
}

static void sum_item(void *work, size_t layer)
{
    struct aura_extents *e = work;
    e->sums[layer] = sums_of(e, layer);
}

static int append_header(void *user, const void *data, size_t bytes)
{
    put_to_memory(user, data, bytes);
    return 0;
}

static int count_header(void *user, const void *data, size_t bytes)
{
    (void)data;
    *(size_t *)user += bytes;
    return 0;
}

static aura_status make_header(struct aura_extents *e, uint32_t model, const aura_snapshot_options *options)
{
    aura_sink sink = AURA_SINK_INIT;
    void *memory = NULL;
    sink.write = count_header;
    sink.user = &e->header_bytes;
    aura_status status = aura_write_header(e->call, &sink, e->saved, e->layers, model, options, e->sums);
    if (status || (status = aura_take_memory(e->call, e->header_bytes, &memory)))
        return status;
    uint8_t *at = e->header = memory;
    sink.write = append_header;
    sink.user = &at;
    return aura_write_header(e->call, &sink, e->saved, e->layers, model, options, e->sums);
}

static aura_status leave(struct aura_extents *e, uint32_t model, const aura_snapshot_options *options)
{
    void *memory = NULL;
    e->copies_bytes = place_pieces(e, NULL) + 1;
    aura_status status = aura_take_memory(e->call, e->copies_bytes, &memory);
    if (status)
        return status;
    e->copies = memory;
    place_pieces(e, e->copies);
    aura_run(e->call.ctx, e->layers, sum_item, e);
    return make_header(e, model, options);
}

static aura_status extents_of(struct aura_call call, aura_cache *const *layers, uint32_t n, uint32_t model, aura_seq seq,
                              const aura_snapshot_options *options, aura_extents **extents)
{
    struct aura_extents *e = NULL;
    size_t pages = 0;
    void *memory = NULL;
    uint32_t ready = 0;
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status)
        return status;
    aura_snapshot_options chosen = *options;
    if ((status = aura_choose_seq(call, &seq, &chosen)) ||
        (status = aura_take_memory(call, n * sizeof(struct aura_saved), &memory)))
        return status;
    struct aura_saved *saved = memory;
    for (; !status && ready < n; ready += !status) {
        status = aura_saved_init(&saved[ready], call, layers[ready], &chosen);
        pages += status ? 0 : saved[ready].pages;
    }
    if (!status && !(status = make(call, n, pages, sizeof *saved, &e))) {
        memcpy(e->saved, saved, n * sizeof *saved);
        status = leave(e, model, &chosen);
        e->saved = NULL;
    }
    while (ready-- > 0)
        aura_saved_free(&saved[ready]);
    aura_give_memory(call.ctx, memory, n * sizeof *saved);
    if (status)
        aura_extents_destroy(e);
    else
        *extents = e;
    return status;
}

aura_status aura_seq_extents(const aura_cache *cache, aura_seq seq, const aura_snapshot_options *options, aura_extents **extents)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_extents"};
    aura_cache *layer = (aura_cache *)cache;
    if (!cache || !extents)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, cache ? "extents" : "cache");
    return extents_of(call, &layer, 1, 0, seq, options, extents);
}

aura_status aura_model_seq_extents(const aura_model_cache *model, aura_seq seq, const aura_snapshot_options *options,
                                   aura_extents **extents)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_extents"};
    if (!model || !extents)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, model ? "extents" : "model");
    return extents_of(call, model->layer, model->layers, 1, seq, options, extents);
}

/* ---- a sequence that is expected ----------------------------------------------------------------------------------- */

/* The sequence of a header that was checked, as far as that goes: pages in the caches, memory for rows. */
static aura_status make_places(struct aura_extents *e, aura_cache *const *layers)
{
    void *memory = NULL;
    uint64_t rows = 0, at = 0, bytes;
    aura_status status = AURA_OK;
    for (uint32_t i = 0; i < e->layers; i++)
        rows += aura_reader_find(&e->snapshot.reader, i, AURA_SECTION_ROWS, &bytes) ? bytes : 0;
    if ((status = aura_take_memory(e->call, (size_t)rows + 1, &memory)))
        return status;
    e->copies = memset(memory, 0, (size_t)rows + 1);
    e->copies_bytes = (size_t)rows + 1;
    for (uint32_t i = 0; i < e->layers; i++) {
        struct aura_loaded *l = &e->snapshot.layer[i];
        e->first[i] = e->n;
        if ((status = aura_arrival_make(&e->arrival[i], l, layers[i], NULL, 0)))
            return status;
        for (uint64_t p = 0; p < l->config->pages; p++) {
            if (!e->arrival[i].page[p])
                return aura_reader_bad(l->reader, "it has a page of no sequence");
            add_piece(e, i, AURA_PIECE_PAGE, e->arrival[i].page[p], l->heads * (size_t)layers[i]->layout.head_bytes);
        }
        aura_reader_find(&e->snapshot.reader, i, AURA_SECTION_ROWS, &bytes);
        e->arrival[i].from[0].rows = e->copies + at;
        if (bytes)
            add_piece(e, i, AURA_PIECE_ROWS, e->copies + at, (size_t)bytes);
        e->copied += bytes > 0;
        at += bytes;
    }
    e->first[e->layers] = e->n;
    return AURA_OK;
}

static aura_status check_header(struct aura_snapshot *s, aura_cache *const *layers, uint32_t n)
{
    aura_status status = AURA_OK;
    if (s->layers != n)
        return aura_fail(s->reader.call.ctx, AURA_BAD_ARGUMENT, "%s: %u layers in the header, %u in the model",
                         s->reader.call.name, s->layers, n);
    for (uint32_t i = 0; !status && i < n; i++) {
        if (s->layer[i].config->seqs != 1)
            return aura_reader_bad(&s->reader, "it is not of one sequence");
        if (!(status = aura_loaded_fits(&s->layer[i], layers[i])))
            status = aura_loaded_check_lists(&s->layer[i], layers[i]);
    }
    return status;
}

static aura_status expect(struct aura_call call, aura_cache *const *layers, uint32_t n, aura_model_cache *model, const void *header,
                          size_t bytes, aura_extents **extents)
{
    static const aura_snapshot_options all = AURA_SNAPSHOT_OPTIONS_INIT;
    const struct aura_file_input from = aura_from_header(header, bytes);
    struct aura_extents *e = NULL;
    struct aura_snapshot s;
    size_t pages = 0;
    aura_status status = aura_snapshot_open(&s, call, &from, model != NULL, &all);
    if (status)
        return status;
    if (!(status = check_header(&s, layers, n))) {
        for (uint32_t i = 0; i < n; i++)
            pages += (size_t)s.layer[i].config->pages;
        status = make(call, n, pages, sizeof(struct aura_arrival), &e);
    }
    if (status) {
        aura_snapshot_close(&s);
        return status;
    }
    e->model = model;
    e->snapshot = s;
    for (uint32_t i = 0; i < n; i++)
        e->snapshot.layer[i].reader = &e->snapshot.reader; /* where it is from now on */
    e->header = e->snapshot.reader.copy;
    e->header_bytes = bytes;
    if ((status = make_places(e, layers)))
        aura_extents_destroy(e);
    else
        *extents = e;
    return status;
}

aura_status aura_seq_expect(aura_cache *cache, const void *header, size_t bytes, aura_extents **extents)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_expect"};
    if (!cache || !extents)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, cache ? "extents" : "cache");
    if (cache->model || cache->slots)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the cache is %s", call.name,
                         cache->model ? "a layer of a model; use the call for sequences of models" : "one of slots");
    return expect(call, &cache, 1, NULL, header, bytes, extents);
}

aura_status aura_model_seq_expect(aura_model_cache *model, const void *header, size_t bytes, aura_extents **extents)
{
    struct aura_call call = {model ? model->ctx : NULL, "aura_model_seq_expect"};
    if (!model || !extents)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, model ? "extents" : "model");
    return expect(call, model->layer, model->layers, model, header, bytes, extents);
}

/* ---- what has come ------------------------------------------------------------------------------------------------- */

/* Whether the bytes are those that left, and can have been stored. */
static void check_item(void *work, size_t layer)
{
    struct aura_extents *e = work;
    const struct aura_loaded *l = &e->snapshot.layer[layer];
    const struct aura_reader *r = &e->snapshot.reader;
    const struct aura_layout *layout = &e->arrival[layer].cache->layout;
    const struct aura_large_sums sums = sums_of(e, layer);
    int sound = sums.pages == r->table[aura_reader_at(r, (uint32_t)layer, AURA_SECTION_PAGES)].crc &&
                sums.rows == r->table[aura_reader_at(r, (uint32_t)layer, AURA_SECTION_ROWS)].crc;
    for (size_t i = e->first[layer]; sound && i < e->first[layer + 1]; i++) {
        const uint8_t *at = e->piece[i].data;
        if (is_rows(&e->piece[i]))
            sound = aura_is_sound_f16(at, e->piece[i].bytes / 2);
        for (uint32_t h = 0; !is_rows(&e->piece[i]) && sound && h < l->heads; h++)
            sound = aura_is_sound_head(at + (size_t)h * layout->head_bytes, layout);
    }
    e->status[layer] = sound ? AURA_OK : AURA_BAD_FILE;
}

/* In all layers under one id, or in none. */
static aura_status publish(struct aura_extents *e, aura_seq *id)
{
    aura_status status = AURA_OK;
    uint32_t done = 0;
    if (e->model)
        pthread_mutex_lock(&e->model->lock);
    for (; !status && done < e->layers; done += !status)
        status = aura_arrival_publish(&e->arrival[done], id);
    if (status && done)
        aura_model_discard(e->model, *id, done);
    if (e->model)
        pthread_mutex_unlock(&e->model->lock);
    return status;
}

aura_status aura_seq_adopt(aura_extents *e, aura_seq *seq)
{
    struct aura_call call = {e ? e->call.ctx : NULL, "aura_seq_adopt"};
    aura_seq id = 0;
    if (!e || !seq)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", call.name, e ? "seq" : "extents");
    if (!e->snapshot.layer || !e->arrival)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: extents of a sequence that %s", call.name,
                         e->snapshot.layer ? "was adopted, or refused, before" : "leaves, not of one that is expected");
    aura_run(call.ctx, e->layers, check_item, e);
    aura_status status = AURA_OK;
    for (uint32_t i = 0; !status && i < e->layers; i++)
        if (e->status[i])
            status = aura_fail(call.ctx, AURA_BAD_FILE, "%s: pages or rows of layer %u are not those that left", call.name, i);
    for (uint32_t i = 0; !status && i < e->layers; i++)
        aura_arrival_rows(&e->arrival[i]);
    if (!status)
        status = publish(e, &id);
    for (uint32_t i = 0; i < e->layers; i++)
        aura_arrival_free(&e->arrival[i]);
    e->arrival = NULL;
    e->n = 0; /* the pages are the sequence's now, or nobody's */
    if (!status)
        *seq = id;
    return status;
}
