/* Files into caches. The container has checked the checksums: the bytes are those that somebody wrote. Here everything that
 * they say is checked against the cache, because a checksum does not say that the writer was right. Nothing in the cache
 * changes before all checks are done. */
#include "../base/exact.h"
#include "snapshot.h"

#include <math.h>
#include <string.h>

/* ---- a layer of a file --------------------------------------------------------------------------------------------- */

/* The section, an array of n elements of `size` bytes. NULL, with a message, where it has another length. */
static const void *section_of(const struct aura_loaded *l, uint32_t type, uint64_t n, size_t size)
{
    uint64_t bytes;
    const void *data = aura_reader_find(l->reader, l->layer, type, &bytes);
    if (data && bytes % size == 0 && bytes / size == n)
        return data;
    aura_reader_bad(l->reader, "a section is not as long as it should be");
    return NULL;
}

static aura_status find_numbers(struct aura_loaded *l)
{
    const struct aura_file_config *f = l->config;
    for (int i = 0; i < AURA_NUMBERS; i++) {
        uint32_t kv_heads, dim;
        aura_status status = aura_reader_numbers(l->reader, l->layer, i, &kv_heads, &dim, &l->numbers[i]);
        if (status)
            return status;
        if (!l->numbers[i])
            continue;
        if (kv_heads != f->kv_heads || dim != (aura_numbers_of_values(i) ? f->v_dim : f->k_dim))
            return aura_reader_bad(l->reader, "its balance or metric is of another shape");
        l->numbers[i] += l->first_head * aura_numbers_width(i, dim);
    }
    return AURA_OK;
}

/* What the cache had learnt: a cache that learns always says it. */
static aura_status find_learnt(struct aura_loaded *l, const aura_config *config)
{
    const size_t width = aura_numbers_width(AURA_K_METRIC, l->config->k_dim), n = l->config->kv_heads * width;
    uint64_t bytes;
    const struct aura_file_learnt *f = aura_reader_find(l->reader, l->layer, AURA_SECTION_LEARNT, &bytes);
    if (!f != !aura_learns(config))
        return aura_reader_bad(l->reader, "it learns and has learnt nothing, or the reverse");
    if (!f)
        return AURA_OK;
    if (bytes != sizeof *f + n * sizeof(double) || f->kv_heads != l->config->kv_heads || f->dim != l->config->k_dim ||
        f->positions > AURA_LEARN_POSITIONS)
        return aura_reader_bad(l->reader, "what it has learnt is of another shape");
    const double *sum = (const double *)(const void *)(f + 1);
    for (size_t i = 0; i < n; i++)
        if (!isfinite(sum[i]))
            return aura_reader_bad(l->reader, "it has learnt a number that is none");
    l->learnt = sum + l->first_head * width;
    l->positions = f->positions;
    return AURA_OK;
}

void aura_loaded_learnt(const struct aura_loaded *l, aura_cache *cache)
{
    if (l->learnt && cache->learning)
        aura_learnt_set(cache, l->learnt, l->positions);
}

/* Finds the pages. The file must hold all that it speaks of: a few bytes could otherwise ask for a cache of any size. */
static aura_status find_pages(struct aura_loaded *l)
{
    const struct aura_file_config *f = l->config;
    const aura_format format = {(aura_kind)f->k_kind, (aura_kind)f->v_kind};
    struct aura_layout layout;
    aura_status status = aura_check_format(l->reader->call, format);
    if (status || (status = aura_check_cache_dims(l->reader->call, f->k_dim, f->v_dim)))
        return aura_blame_file(status);
    if (f->slots && (f->slots > UINT64_MAX / 2 || aura_pages_of(f->slots) != f->entries || f->pages != f->entries))
        return aura_reader_bad(l->reader, "it has not the pages of its slots"); /* a cache allocates them all */
    aura_layout_init(&layout, format, f->k_dim, f->v_dim);
    l->pages = section_of(l, AURA_SECTION_PAGES, f->pages, f->kv_heads * layout.head_bytes);
    return l->pages ? AURA_OK : AURA_BAD_FILE;
}

void aura_config_of_file(aura_config *config, const struct aura_file_config *f)
{
    static const aura_config defaults = AURA_CONFIG_INIT;
    *config = defaults;
    config->format.k = (aura_kind)f->k_kind;
    config->format.v = (aura_kind)f->v_kind;
    config->q_heads = f->q_heads;
    config->kv_heads = f->kv_heads;
    config->k_dim = f->k_dim;
    config->v_dim = f->v_dim;
    config->flags = f->flags;
    config->rollback = f->rollback;
    config->seed = f->seed;
    config->window = f->window;
    config->max_queries = f->max_queries;
    config->keep_first = f->keep_first;
    config->slots = f->slots;
}

aura_status aura_loaded_init(struct aura_loaded *l, const struct aura_reader *r, uint32_t layer,
                             const aura_snapshot_options *options, aura_config *config)
{
    uint64_t row_bytes;
    memset(l, 0, sizeof *l);
    l->reader = r;
    l->layer = layer;
    l->first_head = options->first_head;
    l->heads = options->heads;
    const struct aura_file_config *f = l->config = section_of(l, AURA_SECTION_CONFIG, 1, sizeof *f);
    if (!f)
        return AURA_BAD_FILE;
    if (f->kv_heads == 0 || f->kv_heads > 1u << 16 || f->q_heads > 1u << 16 || f->q_heads % f->kv_heads)
        return aura_reader_bad(r, "its heads are none or too many");
    aura_status status = aura_check_head_range(r->call, l->first_head, &l->heads, f->kv_heads);
    if (status || (status = find_numbers(l)) || (status = find_pages(l)))
        return status;
    l->seq = section_of(l, AURA_SECTION_SEQS, f->seqs, sizeof *l->seq);
    l->table = l->seq ? section_of(l, AURA_SECTION_TABLE, f->entries, sizeof *l->table) : NULL;
    l->rows = aura_reader_find(r, layer, AURA_SECTION_ROWS, &row_bytes);
    if (!l->table || !l->rows)
        return l->table ? aura_reader_bad(r, "a section is missing") : AURA_BAD_FILE;
    aura_config_of_file(config, f);
    config->q_heads = f->q_heads / f->kv_heads * l->heads;
    config->kv_heads = l->heads;
    for (int i = 0; i < AURA_NUMBERS; i++)
        *aura_numbers_at(config, i) = l->numbers[i];
    return find_learnt(l, config);
}

/* ---- does it fit the cache? ---------------------------------------------------------------------------------------- */

static aura_status other(const struct aura_loaded *l, const char *what, uint64_t file, uint64_t cache)
{
    return aura_fail(l->reader->call.ctx, AURA_BAD_ARGUMENT, "%s: of a cache with another %s, %llu; this one has %llu: %s",
                     l->reader->call.name, what, (unsigned long long)file, (unsigned long long)cache, l->reader->path);
}

static int has_same_numbers(const struct aura_loaded *l, const aura_cache *cache, int i)
{
    const float *file = l->numbers[i], *mine = aura_numbers(&cache->config, i);
    const size_t width = aura_numbers_width(i, aura_numbers_dim(&cache->config, i));
    return !file == !mine && (!file || !memcmp(file, mine, l->heads * width * sizeof *file));
}

aura_status aura_loaded_fits(const struct aura_loaded *l, const aura_cache *cache)
{
    const struct aura_file_config *f = l->config;
    struct aura_file_config c;
    aura_describe_config(&c, cache, cache->config.kv_heads);
    const struct {
        const char *what;
        uint64_t file, cache;
    } same[] = {{"kind of keys", f->k_kind, c.k_kind},
                {"kind of values", f->v_kind, c.v_kind},
                {"k_dim", f->k_dim, c.k_dim},
                {"v_dim", f->v_dim, c.v_dim},
                {"number of KV heads", l->heads, c.kv_heads},
                {"number of query heads", (uint64_t)f->q_heads / f->kv_heads * l->heads, c.q_heads},
                {"flags", f->flags & ~(uint32_t)AURA_LEARN, c.flags & ~(uint32_t)AURA_LEARN}, /* bytes mean the same */
                {"rollback", f->rollback, c.rollback},
                {"seed", f->seed, c.seed},
                {"window", f->window, c.window},
                {"max_queries", f->max_queries, c.max_queries},
                {"keep_first", f->keep_first, c.keep_first},
                {"slots", f->slots, c.slots},
                {"pinned", f->pinned, c.pinned}};
    for (size_t i = 0; i < sizeof same / sizeof *same; i++)
        if (same[i].file != same[i].cache)
            return other(l, same[i].what, same[i].file, same[i].cache);
    for (int i = 0; i < AURA_NUMBERS; i++)
        if (!has_same_numbers(l, cache, i))
            return aura_fail(l->reader->call.ctx, AURA_BAD_ARGUMENT, "%s: of a cache with another %s: %s", l->reader->call.name,
                             i < AURA_K_METRIC ? "balance" : "metric", l->reader->path);
    if (f->rank != c.rank || f->ranks != c.ranks || f->tile_tokens != c.tile_tokens || f->page_tokens != c.page_tokens ||
        f->head_bytes != c.head_bytes ||
        f->k_codebook != c.k_codebook || f->v_codebook != c.v_codebook || f->reference_codebook != c.reference_codebook ||
        f->k_codebook_crc != c.k_codebook_crc || f->v_codebook_crc != c.v_codebook_crc ||
        f->reference_codebook_crc != c.reference_codebook_crc || f->k_signs_crc != c.k_signs_crc ||
        f->v_signs_crc != c.v_signs_crc)
        return aura_fail(l->reader->call.ctx, AURA_UNSUPPORTED,
                         "%s: made with other codebooks, signs or tiles than this library's: %s", l->reader->call.name,
                         l->reader->path);
    return AURA_OK;
}

/* ---- does it make sense? ------------------------------------------------------------------------------------------- */

/* Lengths and pages of one sequence. */
static aura_status check_seq(const struct aura_loaded *l, const aura_cache *cache, const struct aura_file_seq *s)
{
    const struct aura_page_window *w = &cache->window;
    const uint64_t first = cache->ranks ? 0 : s->first; /* a shard has a shift there */
    if (!s->id != !!cache->slots || (cache->slots && s->tokens != cache->config.slots))
        return aura_reader_bad(l->reader, "a sequence has no name, or slots have one");
    if (s->tokens > UINT64_MAX / 2 || s->closed > s->tokens || aura_closed_of(cache, s->closed, s->tokens) != s->closed)
        return aura_reader_bad(l->reader, "a sequence has impossible lengths");
    uint64_t pages = aura_pages_of(s->tokens), kept = w->kept;
    if (first < kept || (first > kept && (!w->span || first > pages)) || (pages > kept && pages - first > aura_window_ring(w)) ||
        (cache->ranks && s->first > UINT32_MAX))
        return aura_reader_bad(l->reader, "a sequence has impossible pages");
    if (!aura_window_may_cut(w, (size_t)first, s->tokens))
        return aura_reader_bad(l->reader, "a sequence lacks tokens of its window");
    const uint64_t there = cache->ranks ? aura_pages_of_rank(pages, (uint32_t)s->first, cache->rank, cache->ranks)
                                        : aura_window_count(w, (size_t)first, (size_t)pages);
    if (s->entries != there || s->rows != aura_rows_of(cache, s->tokens, s->closed))
        return aura_reader_bad(l->reader, "a sequence lacks pages or rows");
    return AURA_OK;
}

/* A sequence with tokens has pages or rows in the file. An empty one has nothing there, but memory for its rows when it is loaded:
 * this much for all of them, whatever the file's size, and this much more for each of its bytes. */
enum { MOST_FOR_EMPTY = 64 << 20, MOST_PER_BYTE = 4096 };

static aura_status check_seqs(const struct aura_loaded *l, const aura_cache *cache)
{
    const struct aura_file_config *f = l->config;
    uint64_t entries = 0, rows = 0, empty = 0, bytes;
    if (cache->slots && f->seqs != 1)
        return aura_reader_bad(l->reader, "slots are not one sequence");
    aura_reader_find(l->reader, l->layer, AURA_SECTION_ROWS, &bytes);
    for (uint64_t i = 0; i < f->seqs; i++) {
        aura_status status = check_seq(l, cache, &l->seq[i]);
        if (status)
            return status;
        if (l->seq[i].entries > f->entries - entries)
            return aura_reader_bad(l->reader, "its sequences have more pages than its table");
        entries += l->seq[i].entries;
        empty += l->seq[i].tokens == 0;
        rows += (uint64_t)l->seq[i].rows * f->kv_heads * aura_row_pair_bytes(cache); /* below 2^40 */
        if (rows > bytes)
            return aura_reader_bad(l->reader, "its sequences have more rows than there are");
    }
    if (empty > (MOST_FOR_EMPTY + (uint64_t)MOST_PER_BYTE * l->reader->bytes) / (cache->rows_bytes + 1))
        return aura_reader_bad(l->reader, "its empty sequences take more memory than a file of its size may ask for");
    return entries == f->entries && rows == bytes ? AURA_OK : aura_reader_bad(l->reader, "it has pages or rows of no sequence");
}

aura_status aura_loaded_check_lists(const struct aura_loaded *l, const aura_cache *cache)
{
    const struct aura_file_config *f = l->config;
    aura_status status = check_seqs(l, cache);
    for (uint64_t i = 0; !status && i < f->entries; i++)
        if (l->table[i].page >= f->pages)
            status = aura_reader_bad(l->reader, "a sequence has a page that is not there");
    return status;
}

aura_status aura_loaded_check(struct aura_loaded *l, const aura_cache *cache)
{
    const struct aura_file_config *f = l->config;
    size_t head_bytes = cache->layout.head_bytes;
    uint64_t row_bytes;
    aura_status status = aura_loaded_check_lists(l, cache);
    if (status)
        return status;
    for (uint64_t i = 0; i < f->pages * f->kv_heads; i++)
        if (!aura_is_sound_head(l->pages + i * head_bytes, &cache->layout))
            return aura_reader_bad(l->reader, "a page has a number that is none");
    aura_reader_find(l->reader, l->layer, AURA_SECTION_ROWS, &row_bytes);
    if (!aura_is_sound_f16(l->rows, (size_t)row_bytes / 2))
        return aura_reader_bad(l->reader, "a row has a number that is none");
    return AURA_OK;
}

/* ---- where things are ---------------------------------------------------------------------------------------------- */

aura_status aura_loaded_find(const struct aura_loaded *l, const aura_cache *cache, const aura_seq *ids, size_t n,
                             struct aura_file_place *place)
{
    struct aura_file_place at = {l->seq, l->table, l->rows};
    memset(place, 0, n * sizeof *place);
    for (uint64_t s = 0; s < l->config->seqs; s++) {
        for (size_t i = ids ? 0 : (size_t)s; i < (ids ? n : (size_t)s + 1); i++)
            if (!ids || ids[i] == at.seq->id)
                place[i] = at;
        at.entry += at.seq->entries;
        at.rows += (size_t)at.seq->rows * l->config->kv_heads * aura_row_pair_bytes(cache);
        at.seq++;
    }
    for (size_t i = 0; i < n; i++)
        if (!place[i].seq)
            return aura_fail(l->reader->call.ctx, AURA_BAD_ARGUMENT, "%s: there is no sequence %u in %s", l->reader->call.name,
                             ids[i], l->reader->path);
    return AURA_OK;
}

const uint8_t *aura_loaded_page(const struct aura_loaded *l, const aura_cache *cache, uint64_t page)
{
    return l->pages + (page * l->config->kv_heads + l->first_head) * cache->layout.head_bytes;
}

static void copy_side_rows(const struct aura_loaded *l, const aura_cache *cache, const struct aura_file_seq *s, uint16_t *rows,
                           uint32_t dim, const uint8_t *from)
{
    for (uint32_t h = 0; h < l->heads; h++)
        for (uint32_t row = 0; row < s->rows; row++)
            memcpy(aura_row_of(cache, rows, dim, h, aura_token_of_row(cache, s->tokens, s->closed, row)),
                   from + ((size_t)(l->first_head + h) * s->rows + row) * dim * sizeof *rows, dim * sizeof *rows);
}

void aura_loaded_rows(const struct aura_loaded *l, const aura_cache *cache, const struct aura_file_place *place, uint16_t *k,
                      uint16_t *v)
{
    const struct aura_file_config *f = l->config;
    size_t k_bytes = (size_t)place->seq->rows * f->kv_heads * cache->layout.k.dim * sizeof *k;
    if (k)
        copy_side_rows(l, cache, place->seq, k, cache->layout.k.dim, place->rows);
    if (v)
        copy_side_rows(l, cache, place->seq, v, cache->layout.v.dim, place->rows + (k ? k_bytes : 0));
}

/* ---- sequences ----------------------------------------------------------------------------------------------------- */

static aura_status arrival_init(struct aura_arrival *a, const struct aura_loaded *l, aura_cache *cache, size_t n)
{
    size_t pages = (size_t)l->config->pages;
    memset(a, 0, sizeof *a);
    a->l = l;
    a->cache = cache;
    a->n = n;
    a->memory_bytes = n * sizeof *a->from + (n + pages + 1) * sizeof(void *);
    aura_status status = aura_take_memory(l->reader->call, a->memory_bytes, &a->memory);
    if (status)
        return status;
    memset(a->memory, 0, a->memory_bytes);
    a->from = a->memory;
    a->to = (struct aura_sequence **)(void *)(a->from + n);
    a->page = (uint8_t **)(void *)(a->to + n);
    return AURA_OK;
}

/* Makes a sequence with all its pages, shared as in the file. New pages are not filled yet. The caller holds the lock. */
static aura_status make_seq(struct aura_arrival *a, size_t i)
{
    aura_cache *cache = a->cache;
    struct aura_call call = a->l->reader->call;
    const struct aura_file_seq *from = a->from[i].seq;
    size_t first = (size_t)from->first, end = aura_pages_of(from->tokens), n = 0;
    aura_status status = aura_seq_make(call, cache, &a->to[i]);
    if (status)
        return status;
    struct aura_sequence *seq = a->to[i];
    if ((status = aura_pages_table(call, cache, seq, end)))
        return status;
    for (size_t p = aura_window_begin(&cache->window, first); p < end; p = aura_window_next(&cache->window, first, p))
        if ((status = aura_pages_add(call, cache, seq, p, &a->page[a->from[i].entry[n++].page])))
            return status;
    seq->len = from->tokens;
    seq->closed = from->closed;
    aura_count_tokens(cache, seq);
    return AURA_OK;
}

aura_status aura_arrival_make(struct aura_arrival *a, const struct aura_loaded *l, aura_cache *cache, const aura_seq *ids,
                              size_t n)
{
    aura_status status = arrival_init(a, l, cache, ids ? n : (size_t)l->config->seqs);
    if (status || (status = aura_loaded_find(l, cache, ids, a->n, a->from))) {
        aura_arrival_free(a);
        return status;
    }
    pthread_mutex_lock(&cache->lock);
    for (size_t i = 0; !status && i < a->n; i++)
        status = make_seq(a, i);
    pthread_mutex_unlock(&cache->lock);
    if (status)
        aura_arrival_free(a);
    return status;
}

void aura_arrival_free(struct aura_arrival *a)
{
    if (!a->memory)
        return;
    pthread_mutex_lock(&a->cache->lock);
    for (size_t i = 0; i < a->n; i++)
        if (a->to[i])
            aura_seq_unmake(a->cache, a->to[i]);
    pthread_mutex_unlock(&a->cache->lock);
    aura_give_memory(a->cache->ctx, a->memory, a->memory_bytes);
    a->memory = NULL;
}

void aura_arrival_rows(const struct aura_arrival *a)
{
    for (size_t i = 0; i < a->n; i++)
        aura_loaded_rows(a->l, a->cache, &a->from[i], a->to[i]->k, a->to[i]->v);
}

/* Fills pages and rows, before other threads can find the sequences. */
static void fill_in(const struct aura_arrival *a)
{
    const struct aura_loaded *l = a->l;
    for (uint64_t p = 0; p < l->config->pages; p++)
        if (a->page[p])
            memcpy(a->page[p], aura_loaded_page(l, a->cache, p), l->heads * a->cache->layout.head_bytes);
    aura_arrival_rows(a);
}

aura_status aura_arrival_publish(struct aura_arrival *a, aura_seq *as)
{
    aura_cache *cache = a->cache;
    aura_status status = AURA_OK;
    size_t published = 0;
    pthread_mutex_lock(&cache->lock);
    for (; !status && published < a->n; published += !status) {
        aura_seq same = a->from[published].seq->id;
        status = aura_seq_publish(a->l->reader->call, cache, a->to[published], as ? &as[published] : &same);
    }
    for (size_t i = 0; i < published; i++) {
        if (status)
            aura_seq_withdraw(cache, a->to[i]);
        else
            a->to[i] = NULL; /* the cache has it now */
    }
    pthread_mutex_unlock(&cache->lock);
    return status;
}

aura_status aura_loaded_seqs(const struct aura_loaded *l, aura_cache *cache, const aura_seq *ids, size_t n, aura_seq *as)
{
    struct aura_arrival a;
    aura_status status = aura_arrival_make(&a, l, cache, ids, n);
    if (status)
        return status;
    fill_in(&a);
    status = aura_arrival_publish(&a, as);
    aura_arrival_free(&a);
    return status;
}

/* Slots are one sequence without an id. The cache has its pages from the start. */
void aura_loaded_slots(const struct aura_loaded *l, aura_cache *cache)
{
    for (uint64_t p = 0; p < l->config->entries; p++) {
        uint8_t *page = aura_page_of(cache, cache->slots, (size_t)p);
        memcpy(page, aura_loaded_page(l, cache, l->table[p].page), l->heads * cache->layout.head_bytes);
        memcpy(aura_page_head(page)->written, l->table[p].written, sizeof l->table[p].written);
    }
}
