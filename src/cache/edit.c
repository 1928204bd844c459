/* Tokens that go from the middle of a sequence, and keys that change where they are.
 *
 * A page that goes as a whole takes its tokens along. Any other token that moves is decoded, appended at its new place, and
 * encoded again when its tile closes. All happens in the pages that the sequence has: a full cache is when engines ask for it.
 * What can fail comes first, in all layers: checks, memory, copies of pages that others hold too. */
#include "../base/exact.h"
#include "model.h"
#include "tile.h"

#include <string.h>

#include "../base/dtype.h"

/* One sequence of one call. */
struct edit {
    aura_cache *cache;
    struct aura_sequence *seq;
    uint32_t layer;
    struct aura_edit what;
    struct aura_sequence old;  /* what it was, with a copy of its rows: the new rows take their places */
    float *vectors;            /* [kv_heads][AURA_PAGE][dims that are stored] */
    _Atomic uint64_t bad;      /* the first key that cannot be stored, as token * heads + head; UINT64_MAX: none */
};

/* How the tokens go. */
enum way { NONE_GO, THE_END_GOES, PAGES_GO, OTHERS_MOVE };

static enum way way_of(const struct edit *e)
{
    const uint64_t first = e->what.first, end = first + e->what.cut;
    if (!e->what.cut)
        return NONE_GO;
    if (end == e->seq->len)
        return THE_END_GOES;
    int whole = first % AURA_PAGE == 0 && end % AURA_PAGE == 0 && end <= aura_settled_of(e->seq) && !e->cache->config.window;
    return whole && (first || !aura_has_pinned(e->cache, e->seq)) ? PAGES_GO : OTHERS_MOVE;
}

/* ---- a key, mapped ------------------------------------------------------------------------------------------------- */

/* x = key of token `token`, which is at `to` afterwards, mapped, with its balance. Returns 0 where it cannot be stored. */
static int map_key(const struct edit *e, const struct aura_sequence *seq, uint64_t token, uint64_t to, uint32_t head, float *x)
{
    const aura_cache *cache = e->cache;
    const uint32_t dim = cache->config.k_dim;
    aura_decode_vector(x, cache, seq, token, head, 0);
    if (e->what.map && to < e->what.end)
        e->what.map(e->what.user, e->layer, to, head, x);
    aura_balance_vector(x, cache, head, 0);
    if (!e->what.map || !aura_is_bad_vector(cache, x, 0))
        return 1;
    memset(x, 0, dim * sizeof *x); /* nobody stores it, unless the map says something else when it is asked again */
    return 0;
}

/* Whether all keys of a head can be stored. */
static void check_item(void *work, size_t head)
{
    struct edit *e = work;
    float x[AURA_TILE_DIM];
    for (uint64_t t = e->what.first; t < e->what.end; t++) {
        if (map_key(e, e->seq, t + e->what.cut, t, (uint32_t)head, x))
            continue;
        uint64_t key = t * e->cache->config.kv_heads + head, first = atomic_load(&e->bad);
        while (key < first && !atomic_compare_exchange_weak(&e->bad, &first, key))
            ;
        return;
    }
}

/* ---- tokens that move ---------------------------------------------------------------------------------------------- */

/* Tokens [from, ...) of one head to `cut` before. A page of them is decoded before any is stored: what is written next is before
 * the end of that page, and so are the references that are made. */
static void move_item(void *work, size_t head)
{
    const struct edit *e = work;
    const aura_cache *cache = e->cache;
    const uint32_t k_dim = cache->layout.k.dim, v_dim = cache->layout.v.dim, h = (uint32_t)head;
    const uint64_t cut = e->what.cut;
    float *k = e->vectors + head * AURA_PAGE * (k_dim + v_dim), *v = k + (size_t)AURA_PAGE * k_dim;
    uint64_t closed = aura_closed_by_cut(e->old.closed, e->what.first);
    for (uint64_t from = e->what.first + cut, end; from < e->old.len; from = end) {
        end = (from / AURA_PAGE + 1) * AURA_PAGE;
        end = end < e->old.len ? end : e->old.len;
        for (uint64_t t = from; t < end; t++) {
            map_key(e, &e->old, t, t - cut, h, k + (t - from) * k_dim);
            aura_decode_vector(v + (t - from) * v_dim, cache, &e->old, t, h, 1);
            aura_balance_vector(v + (t - from) * v_dim, cache, h, 1);
        }
        for (uint64_t t = from; t < end; t++) {
            aura_store_vector(cache, e->seq, t - cut, h, k + (t - from) * k_dim, 0);
            aura_store_vector(cache, e->seq, t - cut, h, v + (t - from) * v_dim, 1);
            closed = aura_close_tokens(cache, e->seq, h, closed, t - cut + 1);
        }
    }
}

/* ---- keys that change ---------------------------------------------------------------------------------------------- */

/* The codes of tokens [begin, end) of a page, from f16 rows. A page all of whose codes change gets a new reference, the mean of
 * its first tile, as an append would; else the codes that stay need the one it has. */
static void encode_page(const struct edit *e, uint32_t h, uint64_t begin, uint64_t end, const uint16_t *rows)
{
    const aura_cache *cache = e->cache;
    const struct aura_sequence *seq = e->seq;
    const uint32_t dim = cache->layout.k.dim;
    const uint64_t page = begin / AURA_PAGE, pinned = cache->pinned;
    const uint64_t first = page * AURA_PAGE > pinned ? page * AURA_PAGE : pinned;
    const uint64_t last = (page + 1) * AURA_PAGE < seq->closed ? (page + 1) * AURA_PAGE : seq->closed;
    const uint64_t tile_end = (first / AURA_TILE + 1) * AURA_TILE < end ? (first / AURA_TILE + 1) * AURA_TILE : end;
    const int relative = aura_has_reference(cache, seq->closed, page);
    uint8_t *at = aura_head_of(cache, seq, (size_t)page, h);
    const uint16_t *row[AURA_TILE];
    float r[AURA_TILE_DIM];
    for (uint64_t t = begin; t < tile_end; t++)
        row[t - begin] = rows + (t - begin) * dim;
    if (relative && begin == first && end == last)
        aura_mean_reference(cache, at, row, (uint32_t)(tile_end - begin));
    if (relative)
        aura_load_reference(r, cache, at);
    for (uint64_t t = begin, next; t < end; t = next) {
        next = (t / AURA_TILE + 1) * AURA_TILE < end ? (t / AURA_TILE + 1) * AURA_TILE : end;
        for (uint64_t i = t; i < next; i++)
            row[i % AURA_TILE] = rows + (i - begin) * dim;
        aura_encode_keys(cache, aura_tile_of(cache, seq, t / AURA_TILE, h), h, (uint32_t)(t % AURA_TILE),
                         (uint32_t)((next - 1) % AURA_TILE + 1), row, relative ? r : NULL);
    }
}

/* The keys of tokens [first, end) of one head, page by page. */
static void map_item(void *work, size_t head)
{
    const struct edit *e = work;
    const aura_cache *cache = e->cache;
    struct aura_sequence *seq = e->seq;
    const uint32_t dim = cache->layout.k.dim, h = (uint32_t)head;
    uint16_t *rows = (uint16_t *)(e->vectors + head * AURA_PAGE * (dim + cache->layout.v.dim));
    float x[AURA_TILE_DIM];
    for (uint64_t begin = e->what.first, end; begin < e->what.end; begin = end) {
        uint64_t coded = begin, coded_end = begin; /* among these tokens, those with codes */
        end = (begin / AURA_PAGE + 1) * AURA_PAGE < e->what.end ? (begin / AURA_PAGE + 1) * AURA_PAGE : e->what.end;
        if (seq->k) {
            coded = cache->pinned > begin ? cache->pinned : begin;
            coded_end = seq->closed < end ? seq->closed : end;
        }
        for (uint64_t t = begin; t < end; t++) {
            map_key(e, seq, t, t, h, x);
            if (t < coded || t >= coded_end) {
                aura_store_vector(cache, seq, t, h, x, 0);
                continue;
            }
            cache->ctx->kernels.rotate[0](x, x, &cache->k.rotate, 1);
            aura_store_row(rows + (t - coded) * dim, AURA_F16, 0, x, dim);
        }
        if (coded < coded_end)
            encode_page(e, h, coded, coded_end, rows);
    }
}

/* ---- the steps of a call ------------------------------------------------------------------------------------------- */

static aura_status check_edit(struct aura_call call, struct edit *e)
{
    const struct aura_edit *w = &e->what;
    const enum way way = way_of(e);
    const uint64_t end = way == OTHERS_MOVE ? e->seq->len : w->map ? w->end + w->cut : w->first; /* of what is looked at */
    aura_status status = aura_check_range(call, e->seq, w->first, w->cut);
    if (!status && w->map)
        status = aura_check_range(call, e->seq, w->first, w->cut + (w->end - w->first));
    if (!status && way != NONE_GO && way != PAGES_GO)
        status = aura_check_cut(call, e->cache, e->seq, w->first);
    if (status || way == THE_END_GOES)
        return status;
    if (w->first < end && !aura_tokens_exist(e->cache, e->seq, w->first, end))
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: of the tokens from %llu on some are gone; those from %llu on are there",
                         call.name, (unsigned long long)w->first, (unsigned long long)e->seq->pages.first * AURA_PAGE);
    if (!w->map)
        return AURA_OK;
    atomic_init(&e->bad, UINT64_MAX);
    aura_run(e->cache->ctx, e->cache->config.kv_heads, check_item, e);
    uint64_t bad = atomic_load(&e->bad), heads = e->cache->config.kv_heads;
    if (bad == UINT64_MAX)
        return AURA_OK;
    return aura_fail(call.ctx, AURA_BAD_VALUE, "%s: the mapped key of layer %u, token %llu, KV head %llu cannot be stored",
                     call.name, e->layer, (unsigned long long)(bad / heads), (unsigned long long)(bad % heads));
}

/* Gives the sequence pages of its own where it will write. */
static aura_status prepare_edit(struct aura_call call, struct edit *e)
{
    const struct aura_edit *w = &e->what;
    const struct aura_sequence *seq = e->seq;
    const enum way way = way_of(e);
    size_t begin = 0, end = 0;
    if (way == OTHERS_MOVE) {
        aura_pages_written(e->cache, seq, w->first, seq->len - w->cut, &begin, &end);
    } else if (way != THE_END_GOES && w->map && w->first < w->end) {
        uint64_t from = w->first + w->cut, to = w->end + w->cut;
        from = seq->k && from < e->cache->pinned ? e->cache->pinned : from;
        to = seq->k && to > seq->closed ? seq->closed : to;
        begin = (size_t)(from / AURA_PAGE);
        end = from < to ? aura_pages_of(to) : begin;
    }
    return begin < end ? aura_pages_unshare(call, e->cache, e->seq, begin, end) : AURA_OK;
}

/* Pages [first, first + cut) leave the list. */
static void remove_pages(struct edit *e)
{
    aura_cache *cache = e->cache;
    struct aura_sequence *seq = e->seq;
    pthread_mutex_lock(&cache->lock);
    aura_list_remove(&cache->pool, &cache->window, &seq->pages, (size_t)(e->what.first / AURA_PAGE),
                     (size_t)((e->what.first + e->what.cut) / AURA_PAGE));
    seq->len -= e->what.cut;
    seq->closed -= seq->closed ? e->what.cut : 0; /* it stays 0 where nothing is encoded */
    aura_pages_trim(cache, seq);
    pthread_mutex_unlock(&cache->lock);
}

static void move_tokens(struct edit *e, uint16_t *rows)
{
    aura_cache *cache = e->cache;
    struct aura_sequence *seq = e->seq;
    uint64_t closed = aura_closed_by_cut(seq->closed, e->what.first);
    e->old = *seq;
    if (cache->rows_bytes) {
        const uint16_t *from = seq->k ? seq->k : seq->v;
        memcpy(rows, from, cache->rows_bytes);
        e->old.k = seq->k ? rows + (seq->k - from) : NULL;
        e->old.v = seq->v ? rows + (seq->v - from) : NULL;
    }
    aura_run(cache->ctx, cache->config.kv_heads, move_item, e);
    pthread_mutex_lock(&cache->lock);
    seq->len -= e->what.cut;
    seq->closed = aura_closed_of(cache, closed, seq->len);
    aura_pages_trim(cache, seq);
    pthread_mutex_unlock(&cache->lock);
}

static void carry_out(struct edit *e, void *memory)
{
    const enum way way = way_of(e);
    const uint32_t heads = e->cache->config.kv_heads, dims = e->cache->layout.k.dim + e->cache->layout.v.dim;
    e->vectors = memory;
    if (way == THE_END_GOES)
        aura_seq_cut(e->cache, e->seq, e->what.first);
    else if (way == PAGES_GO)
        remove_pages(e);
    else if (way == OTHERS_MOVE)
        move_tokens(e, (uint16_t *)(e->vectors + (size_t)heads * AURA_PAGE * dims));
    if (e->what.map && (way == NONE_GO || way == PAGES_GO))
        aura_run(e->cache->ctx, heads, map_item, e);
}

static size_t bytes_of(const struct edit *e)
{
    const struct aura_layout *l = &e->cache->layout;
    const enum way way = way_of(e);
    if (way == THE_END_GOES || (way != OTHERS_MOVE && !e->what.map))
        return 0;
    size_t rows = way == OTHERS_MOVE ? e->cache->rows_bytes : 0;
    return (size_t)e->cache->config.kv_heads * AURA_PAGE * (l->k.dim + l->v.dim) * sizeof(float) + rows;
}

aura_status aura_edit_layers(struct aura_call call, aura_cache *const *layers, uint32_t n, uint32_t first, aura_seq id,
                             const struct aura_edit *what)
{
    size_t bytes = 0;
    void *memory = NULL;
    aura_status status = AURA_OK;
    if (what->maps && !what->map)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: map is NULL", call.name);
    for (int step = 0; step < 3 && !status; step++) {
        for (uint32_t i = 0; i < n && !status; i++) {
            struct edit e = {.cache = layers[i], .layer = first + i, .what = *what};
            if (!(e.seq = aura_find_seq(call, layers[i], id)))
                return AURA_BAD_ARGUMENT; /* found out in the first step */
            if (what->all)
                e.what.end = e.seq->len > what->cut ? e.seq->len - what->cut : 0;
            status = step == 0 ? check_edit(call, &e) : step == 1 ? prepare_edit(call, &e) : AURA_OK;
            if (step == 0 && !status)
                bytes = bytes_of(&e) > bytes ? bytes_of(&e) : bytes;
            if (step == 2)
                carry_out(&e, memory);
        }
        if (step == 0 && !status && bytes)
            status = aura_take_memory(call, bytes, &memory);
    }
    aura_give_memory(call.ctx, memory, bytes);
    return status;
}

/* ---- the calls ----------------------------------------------------------------------------------------------------- */

/* Which layer of its model a cache is; 0 where it is nobody's. */
static uint32_t layer_of(const aura_cache *cache)
{
    uint32_t i = 0;
    while (cache->model && cache->model->layer[i] != cache)
        i++;
    return i;
}

static aura_status edit_one(struct aura_call call, aura_cache *cache, aura_seq seq, const struct aura_edit *what)
{
    if (!cache)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: cache is NULL", call.name);
    return aura_edit_layers(call, &cache, 1, layer_of(cache), seq, what);
}

aura_status aura_seq_remove(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_remove"};
    struct aura_edit what = {first, tokens, 0, 1, 0, NULL, NULL};
    return edit_one(call, cache, seq, &what);
}

aura_status aura_seq_shift(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens, aura_map_key_fn *map, void *user)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_shift"};
    struct aura_edit what = {first, tokens, 0, 1, 1, map, user};
    return edit_one(call, cache, seq, &what);
}

aura_status aura_seq_map_keys(aura_cache *cache, aura_seq seq, uint64_t first, uint64_t tokens, aura_map_key_fn *map, void *user)
{
    struct aura_call call = {cache ? cache->ctx : NULL, "aura_seq_map_keys"};
    struct aura_edit what = {first, 0, first + tokens, 0, 1, map, user};
    return edit_one(call, cache, seq, &what);
}
