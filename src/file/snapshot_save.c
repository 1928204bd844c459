/* Caches into files. A save first collects what it will write, because the table before the first section has all sizes. */
#include "../base/exact.h"
#include "snapshot.h"

#include <stdlib.h>
#include <string.h>

#include "../trellis.h"
#include "crc32c.h"

/* ---- what the bytes depend on -------------------------------------------------------------------------------------- */

static void describe_side(const aura_ctx *ctx, uint32_t kind, uint32_t *id, uint32_t *crc)
{
    aura_codebook book;
    *id = *crc = 0;
    if (aura_is_trellis(kind)) {
        const struct aura_trellis *t = aura_trellis_of(kind);
        *id = AURA_TRELLIS_ID + aura_bits_of(kind);
        *crc = aura_crc32c(0, t->level, (size_t)1 << aura_bits_of(kind), ctx->isas);
        *crc = aura_crc32c(*crc, &t->step, sizeof t->step, ctx->isas);
        return;
    }
    if (!aura_is_packed(kind) || aura_codebook_get(AURA_TABLE_GRID, kind, &book))
        return;
    *id = book.id;
    *crc = aura_crc32c(0, book.centroid, book.levels * sizeof *book.centroid, ctx->isas);
    *crc = aura_crc32c(*crc, book.threshold, (book.levels - 1) * sizeof *book.threshold, ctx->isas);
}

static uint32_t signs_crc(const aura_cache *cache, uint32_t stream, const struct aura_side *side)
{
    uint8_t signs[AURA_MAX_DIM / 8];
    if (!aura_is_packed(side->kind))
        return 0;
    aura_signs(cache->config.seed, stream, side->dim, signs);
    return aura_crc32c(0, signs, side->dim / 8, cache->ctx->isas);
}

void aura_describe_config(struct aura_file_config *f, const aura_cache *cache, uint32_t heads)
{
    const aura_config *c = &cache->config;
    const struct aura_layout *l = &cache->layout;
    int reference = aura_keeps_references(l->k.kind, c->flags);
    memset(f, 0, sizeof *f);
    f->k_kind = l->k.kind;
    f->v_kind = l->v.kind;
    f->k_dim = c->k_dim;
    f->v_dim = c->v_dim;
    f->q_heads = c->q_heads / c->kv_heads * heads;
    f->kv_heads = heads;
    f->all_heads = heads;
    f->flags = c->flags;
    f->rollback = c->rollback;
    f->seed = c->seed;
    f->window = c->window;
    f->max_queries = c->max_queries;
    f->keep_first = c->keep_first;
    f->slots = c->slots;
    f->pinned = cache->pinned;
    f->tile_tokens = AURA_TILE;
    f->page_tokens = AURA_PAGE;
    describe_side(cache->ctx, l->k.kind, &f->k_codebook, &f->k_codebook_crc);
    describe_side(cache->ctx, l->v.kind, &f->v_codebook, &f->v_codebook_crc);
    if (reference)
        describe_side(cache->ctx, 8, &f->reference_codebook, &f->reference_codebook_crc);
    f->k_signs_crc = signs_crc(cache, 0, &l->k);
    f->v_signs_crc = signs_crc(cache, 1, &l->v);
    f->head_bytes = l->head_bytes;
    f->rank = cache->rank;
    f->ranks = cache->ranks;
}

/* ---- pages that are shared ----------------------------------------------------------------------------------------- */

/* An entry of the table, and the page that it stands for. */
struct use {
    const uint8_t *page;
    size_t entry;
};

static int compare_uses(const void *a, const void *b)
{
    const struct use *x = a, *y = b;
    if (x->page != y->page)
        return (uintptr_t)x->page < (uintptr_t)y->page ? -1 : 1;
    return (x->entry > y->entry) - (x->entry < y->entry);
}

/* Numbers the pages in the order of their first entries, each page once. Later entries of a page get the number of its first. */
static void number_pages(struct aura_saved *s, struct use *use)
{
    qsort(use, s->entries, sizeof *use, compare_uses);
    for (size_t i = 0, first = 0; i < s->entries; i++) {
        first = i && use[i].page == use[i - 1].page ? first : use[i].entry;
        s->table[use[i].entry].page = first;
    }
    for (size_t i = 0; i < s->entries; i++) {
        size_t first = (size_t)s->table[i].page;
        s->table[i].page = first == i ? s->pages++ : s->table[first].page;
    }
}

static uint32_t within_page(uint64_t tokens, uint64_t page)
{
    uint64_t at = page * AURA_PAGE, n = tokens > at ? tokens - at : 0;
    return (uint32_t)(n < AURA_PAGE ? n : AURA_PAGE);
}

/* Adds the columns that a sequence has in a page. The span of a shared page covers all its sequences. */
static void widen_span(struct aura_page_span *span, const aura_cache *cache, const struct aura_sequence *seq, uint64_t page)
{
    uint32_t first = within_page(cache->pinned, page), end = within_page(seq->closed, page);
    uint32_t plain = within_page(seq->len, page);
    if (end > first) {
        span->coded = span->coded_end && span->coded < first ? span->coded : first;
        span->coded_end = span->coded_end > end ? span->coded_end : end;
    }
    span->plain_end = span->plain_end > plain ? span->plain_end : plain;
    span->reference |= aura_has_reference(cache, seq->closed, page);
}

/* ---- collecting ---------------------------------------------------------------------------------------------------- */

static size_t entries_of(const aura_cache *cache, const struct aura_sequence *seq)
{
    size_t n = 0;
    for (size_t p = aura_first_page(cache, seq); p < aura_pages_of(seq->len); p = aura_next_page(cache, seq, p))
        n++;
    return n;
}

void aura_saved_free(struct aura_saved *s)
{
    aura_give_memory(s->cache->ctx, s->memory, s->memory_bytes);
    aura_give_memory(s->cache->ctx, s->seq, (s->most_seqs + 1) * sizeof *s->seq);
}

static aura_status find_seqs(struct aura_saved *s, struct aura_call call, const aura_snapshot_options *options)
{
    aura_cache *cache = (aura_cache *)s->cache;
    void *memory;
    pthread_mutex_lock(&cache->lock);
    s->most_seqs = options->seqs ? options->n_seqs : cache->seqs + !!cache->slots;
    pthread_mutex_unlock(&cache->lock);
    aura_status status = aura_take_memory(call, (s->most_seqs + 1) * sizeof *s->seq, &memory);
    if (status)
        return status;
    s->seq = memory;
    if (!options->seqs && cache->slots) {
        s->seq[s->seqs++] = cache->slots;
        return AURA_OK;
    }
    if (!options->seqs) {
        pthread_mutex_lock(&cache->lock);
        s->seqs = aura_seqs_list(cache, s->seq, NULL, s->most_seqs);
        pthread_mutex_unlock(&cache->lock);
        return AURA_OK;
    }
    for (; s->seqs < options->n_seqs; s->seqs++) {
        if (!(s->seq[s->seqs] = aura_find_seq(call, cache, options->seqs[s->seqs])))
            return AURA_BAD_ARGUMENT;
        for (size_t i = 0; i < s->seqs; i++)
            if (s->seq[i] == s->seq[s->seqs])
                return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: sequence %u twice", call.name, options->seqs[i]);
    }
    return AURA_OK;
}

static aura_status collect(struct aura_saved *s, struct aura_call call)
{
    const aura_cache *cache = s->cache;
    for (size_t i = 0; i < s->seqs; i++)
        s->entries += entries_of(cache, s->seq[i]);
    size_t n = s->entries, each = sizeof *s->table + sizeof *s->page + sizeof(struct use);
    size_t learnt = cache->learning ? cache->config.kv_heads * aura_numbers_width(AURA_K_METRIC, cache->config.k_dim) : 0;
    s->memory_bytes = learnt * sizeof *s->learnt + cache->layout.head_bytes + n * each;
    aura_status status = aura_take_memory(call, s->memory_bytes, &s->memory);
    if (status)
        return status;
    memset(s->memory, 0, s->memory_bytes);
    s->head = (uint8_t *)s->memory + learnt * sizeof *s->learnt;
    if (learnt) /* a copy: attention may go on while the file is written, and some files are written twice */
        s->positions = aura_learnt_copy(cache, s->learnt = s->memory);
    s->table = (struct aura_file_entry *)(void *)(s->head + cache->layout.head_bytes);
    s->page = (struct aura_saved_page *)(void *)(s->table + n);
    struct use *use = (struct use *)(void *)(s->page + n);
    for (size_t i = 0, entry = 0; i < s->seqs; i++) {
        const struct aura_sequence *seq = s->seq[i];
        for (size_t p = aura_first_page(cache, seq); p < aura_pages_of(seq->len); p = aura_next_page(cache, seq, p), entry++) {
            use[entry].page = aura_page_of(cache, seq, p);
            use[entry].entry = entry;
        }
    }
    number_pages(s, use);
    for (size_t i = 0, entry = 0; i < s->seqs; i++) {
        const struct aura_sequence *seq = s->seq[i];
        for (size_t p = aura_first_page(cache, seq); p < aura_pages_of(seq->len); p = aura_next_page(cache, seq, p), entry++) {
            struct aura_saved_page *page = &s->page[s->table[entry].page];
            page->page = aura_page_of(cache, seq, p);
            widen_span(&page->span, cache, seq, p);
            memcpy(s->table[entry].written, aura_page_head(page->page)->written, cache->slots ? AURA_PAGE_TILES : 0);
        }
    }
    return AURA_OK;
}

aura_status aura_saved_init(struct aura_saved *s, struct aura_call call, const aura_cache *cache,
                            const aura_snapshot_options *options)
{
    memset(s, 0, sizeof *s);
    s->cache = cache;
    s->first_head = options->first_head;
    s->heads = options->heads;
    aura_status status = aura_check_head_range(call, s->first_head, &s->heads, cache->config.kv_heads);
    if (!status)
        status = find_seqs(s, call, options);
    if (!status)
        status = collect(s, call);
    if (status)
        aura_saved_free(s);
    return status;
}

/* ---- writing ------------------------------------------------------------------------------------------------------- */

static void write_seqs(struct aura_writer *w, const struct aura_saved *s, uint32_t layer)
{
    const aura_cache *cache = s->cache;
    aura_writer_section(w, layer, AURA_SECTION_SEQS, 0);
    for (size_t i = 0; i < s->seqs; i++) {
        const struct aura_sequence *seq = s->seq[i];
        struct aura_file_seq f;
        memset(&f, 0, sizeof f);
        f.tokens = seq->len;
        f.closed = seq->closed < seq->len ? seq->closed : seq->len; /* slots are always closed */
        f.first = cache->ranks ? seq->shift : seq->pages.first;
        f.entries = entries_of(cache, seq);
        f.id = cache->slots ? 0 : (uint32_t)i + 1; /* where it stands, not what the cache calls it: equal caches make equal files */
        f.rows = aura_rows_of(cache, seq->len, seq->closed);
        aura_writer_put(w, &f, sizeof f);
    }
    aura_writer_section(w, layer, AURA_SECTION_TABLE, 0);
    aura_writer_put(w, s->table, s->entries * sizeof *s->table);
}

static void write_pages(struct aura_writer *w, const struct aura_saved *s)
{
    const struct aura_layout *l = &s->cache->layout;
    for (size_t i = 0; i < s->pages && !w->status; i++)
        for (uint32_t h = s->first_head; h < s->first_head + s->heads; h++) {
            aura_canonical_head(s->head, s->page[i].page + (size_t)h * l->head_bytes, l, &s->page[i].span);
            aura_writer_put(w, s->head, l->head_bytes);
        }
}

static void put_side_rows(const struct aura_saved *s, const struct aura_sequence *seq, uint16_t *rows, uint32_t dim,
                          aura_put_fn *put, void *to)
{
    static const uint16_t others[AURA_TILE_DIM]; /* zeros in place of what another rank has */
    uint32_t n = rows ? aura_rows_of(s->cache, seq->len, seq->closed) : 0;
    for (uint32_t h = s->first_head; h < s->first_head + s->heads; h++)
        for (uint32_t i = 0; i < n; i++) {
            uint64_t token = aura_token_of_row(s->cache, seq->len, seq->closed, i);
            const int here = aura_is_here(s->cache, seq, token / AURA_PAGE);
            put(to, here ? aura_row_of(s->cache, rows, dim, h, token) : others, dim * sizeof *rows);
        }
}

void aura_saved_rows(const struct aura_saved *s, aura_put_fn *put, void *to)
{
    const struct aura_layout *l = &s->cache->layout;
    for (size_t i = 0; i < s->seqs; i++) {
        put_side_rows(s, s->seq[i], s->seq[i]->k, l->k.dim, put, to);
        put_side_rows(s, s->seq[i], s->seq[i]->v, l->v.dim, put, to);
    }
}

size_t aura_saved_rows_bytes(const struct aura_saved *s)
{
    size_t rows = 0;
    for (size_t i = 0; i < s->seqs; i++)
        rows += aura_rows_of(s->cache, s->seq[i]->len, s->seq[i]->closed);
    return rows * s->heads * aura_row_pair_bytes(s->cache);
}

static void put_to_writer(void *to, const void *data, size_t bytes)
{
    aura_writer_put(to, data, bytes);
}

/* What the heads were calibrated with, if they were. */
static void write_numbers(struct aura_writer *w, const struct aura_saved *s, uint32_t layer, int i)
{
    const float *numbers = aura_numbers(&s->cache->config, i);
    const uint32_t dim = aura_numbers_dim(&s->cache->config, i);
    if (numbers)
        aura_writer_numbers(w, layer, i, s->heads, dim, numbers + s->first_head * aura_numbers_width(i, dim));
}

/* The sections of a layer but for its pages and rows, and what is behind them. */
static void write_lists(struct aura_writer *w, const struct aura_saved *s, uint32_t layer)
{
    struct aura_file_config f;
    aura_describe_config(&f, s->cache, s->heads);
    f.seqs = s->seqs;
    f.entries = s->entries;
    f.pages = s->pages;
    aura_writer_section(w, layer, AURA_SECTION_CONFIG, 0);
    aura_writer_put(w, &f, sizeof f);
    write_numbers(w, s, layer, AURA_K_BALANCE);
    write_seqs(w, s, layer);
}

/* What aura_write_file() needs to know. */
struct content {
    const struct aura_saved *layers;
    uint32_t n, model;
    const aura_snapshot_options *options;
    const struct aura_large_sums *sums; /* [n]: pages and rows are somewhere else; NULL: they are written */
};

static void write_learnt(struct aura_writer *w, const struct aura_saved *s, uint32_t layer)
{
    const uint32_t dim = s->cache->config.k_dim;
    const size_t width = aura_numbers_width(AURA_K_METRIC, dim);
    const struct aura_file_learnt head = {s->heads, dim, s->positions, {0}};
    if (!s->learnt)
        return;
    aura_writer_section(w, layer, AURA_SECTION_LEARNT, 0);
    aura_writer_put(w, &head, sizeof head);
    aura_writer_put(w, s->learnt + s->first_head * width, s->heads * width * sizeof *s->learnt);
}

static void write_layer(struct aura_writer *w, const struct content *c, uint32_t layer)
{
    const struct aura_saved *s = &c->layers[layer];
    write_lists(w, s, layer);
    aura_writer_section(w, layer, AURA_SECTION_PAGES, 0);
    if (c->sums)
        aura_writer_elsewhere(w, (uint64_t)s->pages * s->heads * s->cache->layout.head_bytes, c->sums[layer].pages);
    else
        write_pages(w, s);
    aura_writer_section(w, layer, AURA_SECTION_ROWS, 0);
    if (c->sums)
        aura_writer_elsewhere(w, aura_saved_rows_bytes(s), c->sums[layer].rows);
    else
        aura_saved_rows(s, put_to_writer, w);
    for (int i = AURA_V_BALANCE; i < AURA_NUMBERS; i++)
        write_numbers(w, s, layer, i);
    write_learnt(w, s, layer);
}

static void write_content(struct aura_writer *w, const void *what)
{
    const struct content *c = what;
    struct aura_file_content content = {c->n, c->model};
    aura_writer_section(w, 0, AURA_SECTION_FILE, 0);
    aura_writer_put(w, &content, sizeof content);
    for (uint32_t i = 0; i < c->n; i++)
        write_layer(w, c, i);
    if (c->options->note) {
        aura_writer_section(w, c->n - 1, AURA_SECTION_NOTE, AURA_SECTION_OPTIONAL);
        aura_writer_put(w, c->options->note, c->options->note_bytes);
    }
}

/* ---- how long it is ------------------------------------------------------------------------------------------------ */

uint64_t aura_layer_sections_bytes(const aura_cache *cache, uint32_t heads, uint64_t seqs, uint64_t entries, uint64_t pages,
                                   uint64_t rows)
{
    uint64_t numbers = 0;
    for (int i = 0; i < AURA_NUMBERS; i++)
        if (aura_numbers(&cache->config, i))
            numbers += aura_numbers_section_bytes(i, heads, aura_numbers_dim(&cache->config, i));
    if (aura_learns(&cache->config))
        numbers += aura_file_padded(sizeof(struct aura_file_learnt) +
                                    heads * aura_numbers_width(AURA_K_METRIC, cache->config.k_dim) * sizeof(double));
    return aura_file_padded(sizeof(struct aura_file_config)) + numbers +
           aura_file_padded(seqs * sizeof(struct aura_file_seq)) + aura_file_padded(entries * sizeof(struct aura_file_entry)) +
           aura_file_padded(pages * heads * cache->layout.head_bytes) + aura_file_padded(rows * heads * aura_row_pair_bytes(cache));
}

uint32_t aura_count_numbers(const aura_config *c)
{
    uint32_t n = 0;
    for (int i = 0; i < AURA_NUMBERS; i++)
        n += aura_numbers(c, i) != NULL;
    return n + (uint32_t)aura_learns(c);
}

static uint32_t count_sections(uint32_t layers, uint32_t numbers, const aura_snapshot_options *options)
{
    return (options->note ? 2 : 1) + 5 * layers + numbers;
}

uint64_t aura_snapshot_bytes(uint64_t layer_bytes, uint32_t layers, uint32_t numbers, const aura_snapshot_options *options)
{
    return aura_file_front(count_sections(layers, numbers, options)) + aura_file_padded(sizeof(struct aura_file_content)) +
           layer_bytes + (options->note ? aura_file_padded(options->note_bytes) : 0);
}

static uint64_t saved_bytes(const struct aura_saved *s)
{
    uint64_t rows = 0;
    for (size_t i = 0; i < s->seqs; i++)
        rows += aura_rows_of(s->cache, s->seq[i]->len, s->seq[i]->closed);
    return aura_layer_sections_bytes(s->cache, s->heads, s->seqs, s->entries, s->pages, rows);
}

static aura_status write_plan(struct aura_call call, const struct aura_file_output *to, const struct content *content)
{
    uint64_t layer_bytes = 0;
    uint32_t numbers = 0, n = content->n;
    for (uint32_t i = 0; i < n; i++) {
        layer_bytes += saved_bytes(&content->layers[i]);
        numbers += aura_count_numbers(&content->layers[i].cache->config);
    }
    const uint32_t kind = content->layers[0].cache->ranks ? AURA_FILE_SHARD : AURA_FILE_SNAPSHOT;
    const struct aura_file_plan plan = {kind, count_sections(n, numbers, content->options),
                                        aura_snapshot_bytes(layer_bytes, n, numbers, content->options), write_content, content};
    return aura_write_file(call, to, &plan);
}

aura_status aura_write_snapshot(struct aura_call call, const struct aura_file_output *to, const struct aura_saved *layers,
                                uint32_t n, uint32_t model, const aura_snapshot_options *options)
{
    const struct content content = {layers, n, model, options, NULL};
    return write_plan(call, to, &content);
}

aura_status aura_write_header(struct aura_call call, aura_sink *sink, const struct aura_saved *layers, uint32_t n, uint32_t model,
                              const aura_snapshot_options *options, const struct aura_large_sums *sums)
{
    const struct content content = {layers, n, model, options, sums};
    const struct aura_file_output to = aura_to_sink(sink);
    return write_plan(call, &to, &content);
}

/* ---- the calls ----------------------------------------------------------------------------------------------------- */

aura_status aura_check_head_range(struct aura_call call, uint32_t first, uint32_t *heads, uint32_t all)
{
    if (first >= all || *heads > all - first)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: KV heads [%u, %llu) of %u", call.name, first,
                         (unsigned long long)first + *heads, all);
    *heads = *heads ? *heads : all - first;
    return AURA_OK;
}

aura_status aura_check_snapshot_options(struct aura_call call, const aura_snapshot_options **options)
{
    static const aura_snapshot_options defaults = AURA_SNAPSHOT_OPTIONS_INIT;
    aura_status status = *options ? aura_check_call(call, *options, sizeof **options) : AURA_OK;
    *options = *options ? *options : &defaults;
    if (!status && (*options)->n_seqs && !(*options)->seqs)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seqs is NULL, n_seqs %zu", call.name, (*options)->n_seqs);
    if (!status && (*options)->note_bytes && (!(*options)->note || (*options)->note_bytes > (size_t)1 << 30))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: a note of %zu bytes %s", call.name, (*options)->note_bytes,
                         (*options)->note ? "is longer than 2^30" : "that is NULL");
    return status;
}

aura_status aura_choose_seq(struct aura_call call, const aura_seq *seq, aura_snapshot_options *options)
{
    if (options->seqs)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: seqs is given, and seq too; several are saved with their cache or model",
                         call.name);
    options->seqs = seq;
    options->n_seqs = 1;
    return AURA_OK;
}

/* Of one sequence, or of those in the options where `seq` is NULL. */
static aura_status save(struct aura_call call, const aura_cache *cache, const aura_seq *seq, struct aura_file_output to,
                        const aura_snapshot_options *options)
{
    struct aura_saved s;
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    aura_status status = aura_check_snapshot_options(call, &options);
    if (status || (status = aura_check_file_output(call, &to)))
        return status;
    aura_snapshot_options chosen = *options;
    if (seq && (status = aura_choose_seq(call, seq, &chosen)))
        return status;
    if ((status = aura_saved_init(&s, call, cache, &chosen)))
        return status;
    status = aura_write_snapshot(call, &to, &s, 1, 0, &chosen);
    aura_saved_free(&s);
    return status;
}

static struct aura_call call_of(const aura_cache *cache, const char *name)
{
    return (struct aura_call){cache ? cache->ctx : NULL, name};
}

aura_status aura_cache_save(const aura_cache *cache, const char *path, const aura_snapshot_options *options)
{
    return save(call_of(cache, "aura_cache_save"), cache, NULL, aura_to_path(path), options);
}

aura_status aura_cache_write(const aura_cache *cache, aura_sink *sink, const aura_snapshot_options *options)
{
    return save(call_of(cache, "aura_cache_write"), cache, NULL, aura_to_sink(sink), options);
}

aura_status aura_cache_size(const aura_cache *cache, const aura_snapshot_options *options, size_t *bytes)
{
    return save(call_of(cache, "aura_cache_size"), cache, NULL, aura_to_nobody(bytes), options);
}

aura_status aura_seq_save(const aura_cache *cache, aura_seq seq, const char *path, const aura_snapshot_options *options)
{
    return save(call_of(cache, "aura_seq_save"), cache, &seq, aura_to_path(path), options);
}

aura_status aura_seq_write(const aura_cache *cache, aura_seq seq, aura_sink *sink, const aura_snapshot_options *options)
{
    return save(call_of(cache, "aura_seq_write"), cache, &seq, aura_to_sink(sink), options);
}

aura_status aura_seq_size(const aura_cache *cache, aura_seq seq, const aura_snapshot_options *options, size_t *bytes)
{
    return save(call_of(cache, "aura_seq_size"), cache, &seq, aura_to_nobody(bytes), options);
}
