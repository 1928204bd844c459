/* Pages and the lists that hold them. */
#include "page_table.h"

#include <stdlib.h>
#include <string.h>

/* ---- single pages ---------------------------------------------------------------------------------------------------- */

void aura_page_free(struct aura_page_pool *pool, struct aura_page *page)
{
    page->next = pool->free;
    pool->free = page;
    pool->n_free++;
}

struct aura_page *aura_page_take(struct aura_page_pool *pool)
{
    struct aura_page *page = pool->free;
    pool->free = page->next;
    pool->n_free--;
    page->next = NULL;
    page->holders = 1;
    pool->holders++;
    return page;
}

void aura_page_leave(struct aura_page_pool *pool, struct aura_page *page)
{
    const uint32_t left = --page->holders;
    pool->holders--;
    if (left == 1)
        pool->shared--;
    if (left == 0)
        aura_page_free(pool, page);
}

struct aura_page *aura_page_share(struct aura_page_pool *pool, struct aura_page *page)
{
    pool->holders++;
    if (page->holders++ == 1)
        pool->shared++;
    return page;
}

/* Whether nobody else has a page when those that leave are gone. */
static int is_own(const struct aura_page *page)
{
    return page->holders - page->leaving == 1;
}

/* ---- lists ----------------------------------------------------------------------------------------------------------- */

/* Whether entry i is the page of entry i - ring again. */
static int is_again(const struct aura_page_window *w, const struct aura_page_list *list, size_t i)
{
    const size_t ring = aura_window_ring(w);
    return i >= ring && i - ring >= list->first && aura_list_page(w, list, i - ring) == aura_list_page(w, list, i);
}

/* Whether entry i + ring is the page of entry i again. */
static int goes_on(const struct aura_page_window *w, const struct aura_page_list *list, size_t i)
{
    const size_t ring = aura_window_ring(w);
    return list->end > ring && i < list->end - ring && aura_list_page(w, list, i + ring) == aura_list_page(w, list, i);
}

/* Whether pages [first, end) are more than a ring, so that some may be several entries. */
static int is_long(const struct aura_page_window *w, size_t first, size_t end)
{
    return end > first && end - first > aura_window_ring(w);
}

size_t aura_list_count(const struct aura_page_window *w, const struct aura_page_list *list)
{
    size_t n = aura_window_count(w, list->first, list->end);
    for (size_t i = list->first; is_long(w, list->first, list->end) && i < list->end; i++)
        n -= (size_t)is_again(w, list, i);
    return n;
}

size_t aura_list_shared(const struct aura_page_window *w, const struct aura_page_list *list)
{
    size_t n = 0;
    for (size_t p = aura_window_begin(w, list->first); p < list->end; p = aura_window_next(w, list->first, p))
        n += aura_list_page(w, list, p)->holders > 1;
    return n;
}

struct aura_page *aura_list_add(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                                size_t i, struct aura_page *page)
{
    page = page ? aura_page_share(pool, page) : aura_page_take(pool);
    if (list->end < i)
        list->first = i;
    list->page[aura_window_entry(w, i)] = page;
    list->end = i + 1;
    return page;
}

void aura_list_share(struct aura_page_pool *pool, const struct aura_page_window *w, const struct aura_page_list *from,
                     size_t pages, struct aura_page_list *to)
{
    to->first = pages > w->kept ? from->first : w->kept;
    to->end = pages;
    for (size_t p = aura_window_begin(w, to->first); p < pages; p = aura_window_next(w, to->first, p))
        to->page[aura_window_entry(w, p)] = aura_page_share(pool, aura_list_page(w, from, p));
}

void aura_list_leave(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t from,
                     size_t to)
{
    size_t p = aura_window_has_page(w, list->first, from) ? from : list->first;
    for (; p < to; p = aura_window_next(w, list->first, p))
        aura_page_leave(pool, aura_list_page(w, list, p));
}

void aura_list_remove(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t from,
                      size_t to)
{
    aura_list_leave(pool, w, list, from, to);
    memmove(list->page + from, list->page + to, (list->end - to) * sizeof *list->page);
    list->end -= to - from;
}

void aura_list_cut(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t end)
{
    while (list->end > end) {
        const size_t i = --list->end;
        if (aura_window_has_page(w, list->first, i) && !is_again(w, list, i))
            aura_page_leave(pool, aura_list_page(w, list, i));
    }
    if (end <= w->kept)
        list->first = w->kept;
}

void aura_list_slide(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t first)
{
    for (; list->first < first && list->first < list->end; list->first++)
        if (!goes_on(w, list, list->first))
            aura_page_leave(pool, aura_list_page(w, list, list->first));
}

/* ---- changes --------------------------------------------------------------------------------------------------------- */

size_t aura_change_frees(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c)
{
    size_t n = 0;
    for (size_t p = list->first; p < c->first && p < list->end; p++) {
        struct aura_page *page = aura_list_page(w, list, p);
        if (!goes_on(w, list, p))
            n += ++page->leaving == page->holders;
    }
    return n;
}

/* Whether a new entry i takes no page, because entry i - ring has one that is the list's own after the change. */
static int is_recycled(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c,
                       size_t i)
{
    const size_t ring = aura_window_ring(w), older = i - ring;
    if (i < ring || older < c->first)
        return 0;
    return older >= list->end || (older >= c->own && older < c->own_end) || is_own(aura_list_page(w, list, older));
}

size_t aura_change_takes(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c)
{
    size_t n = c->end > list->end ? c->end - list->end : 0;
    for (size_t p = c->own; p < c->own_end; p = aura_window_next(w, c->first, p)) {
        struct aura_page *page = aura_list_page(w, list, p);
        if (!is_own(page))
            page->leaving++, n++;
    }
    for (size_t i = list->end; is_long(w, c->first, c->end) && i < c->end; i++)
        n -= (size_t)is_recycled(w, list, c, i);
    return n;
}

void aura_change_forget(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c)
{
    for (size_t p = list->first; p < c->first && p < list->end; p++)
        aura_list_page(w, list, p)->leaving = 0;
    for (size_t p = c->own; p < c->own_end; p = aura_window_next(w, c->first, p))
        aura_list_page(w, list, p)->leaving = 0;
}

void aura_list_begin(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                     struct aura_page_change *c)
{
    for (size_t p = c->own; p < c->own_end; p = aura_window_next(w, c->first, p)) {
        struct aura_page **entry = &list->page[aura_window_entry(w, p)], *shared = *entry;
        if (is_own(shared))
            continue;
        shared->leaving++;
        *entry = aura_page_take(pool);
        (*entry)->next = shared;
    }
    for (c->had = list->end; list->end < c->end; list->end++) {
        struct aura_page **entry = &list->page[aura_window_entry(w, list->end)];
        if (is_recycled(w, list, c, list->end))
            *entry = aura_list_page(w, list, list->end - aura_window_ring(w));
        else
            *entry = aura_page_take(pool);
    }
}

/* What page p replaced goes, or comes back; NULL: it replaced none. */
static struct aura_page *take_replaced(const struct aura_page_window *w, const struct aura_page_list *list, size_t p)
{
    struct aura_page *page = aura_list_page(w, list, p), *shared = page->next;
    page->next = NULL;
    if (shared)
        shared->leaving--;
    return shared;
}

void aura_list_commit(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                      const struct aura_page_change *c)
{
    for (size_t p = c->own; p < c->own_end; p = aura_window_next(w, c->first, p)) {
        struct aura_page *shared = take_replaced(w, list, p);
        if (shared)
            aura_page_leave(pool, shared);
    }
}

void aura_list_undo(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                    const struct aura_page_change *c)
{
    aura_list_cut(pool, w, list, c->had);
    for (size_t p = c->own; p < c->own_end; p = aura_window_next(w, c->first, p)) {
        struct aura_page **entry = &list->page[aura_window_entry(w, p)], *taken = *entry, *shared = take_replaced(w, list, p);
        if (!shared)
            continue;
        *entry = shared;
        aura_page_leave(pool, taken);
    }
}

/* ---- tables ---------------------------------------------------------------------------------------------------------- */

/* All but the pages. */
static aura_status make_lists(struct aura_page_table *t, uint32_t seqs, const struct aura_page_window *window)
{
    memset(t, 0, sizeof *t);
    if (window)
        t->window = *window;
    t->window.mask = SIZE_MAX; /* the device finds a page by its number in the sequence */
    t->seq = calloc(seqs ? seqs : 1, sizeof *t->seq);
    t->used = calloc(seqs ? seqs : 1, sizeof *t->used);
    if (!t->seq || !t->used)
        return AURA_OUT_OF_MEMORY;
    t->n_seqs = seqs;
    for (uint32_t i = 0; i < seqs; i++)
        t->seq[i].first = t->window.kept;
    return AURA_OK;
}

aura_status aura_page_table_make(struct aura_page_table *t, uint32_t seqs, uint32_t pages, const struct aura_page_window *window)
{
    const aura_status status = make_lists(t, seqs, window);
    t->page = calloc(pages ? pages : 1, sizeof *t->page);
    if (status || !t->page)
        return AURA_OUT_OF_MEMORY;
    t->n_pages = pages;
    for (uint32_t i = pages; i-- > 0;)
        aura_page_free(&t->pool, &t->page[i]);
    return AURA_OK;
}

aura_status aura_page_table_make_in(struct aura_page_table *t, uint32_t seqs, struct aura_page *page, uint32_t pages,
                                    struct aura_page_pool *pool, const struct aura_page_window *window)
{
    const aura_status status = make_lists(t, seqs, window);
    t->of = pool;
    t->page = page;
    t->n_pages = pages;
    return status;
}

void aura_page_table_unmake(struct aura_page_table *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++)
        free((void *)t->seq[i].page);
    if (!t->of)
        free(t->page);
    free(t->seq), free(t->used);
    memset(t, 0, sizeof *t);
}

uint32_t aura_page_table_place(const struct aura_page_table *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++)
        if (!t->used[i])
            return i;
    return AURA_NO_PAGE;
}

uint32_t aura_page_table_number(const struct aura_page_table *t, uint32_t seq, size_t i)
{
    const struct aura_page *page = aura_list_page(&t->window, &t->seq[seq], i);
    return page ? (uint32_t)(page - t->page) : 0;
}

/* Memory for a list that ends with page end - 1. */
static aura_status reserve_list(const struct aura_page_table *t, struct aura_page_list *list, size_t end)
{
    const size_t needed = aura_window_entries(&t->window, end);
    if (needed <= list->capacity)
        return AURA_OK;
    size_t capacity = needed < 8 ? 8 : needed;
    if (capacity / 2 < list->capacity)
        capacity = 2 * list->capacity;
    void *memory = realloc((void *)list->page, capacity * sizeof *list->page);
    if (!memory)
        return AURA_OUT_OF_MEMORY;
    list->page = memory;
    memset((void *)(list->page + list->capacity), 0, (capacity - list->capacity) * sizeof *list->page);
    list->capacity = capacity;
    return AURA_OK;
}

void aura_page_table_cut(struct aura_page_table *t, uint32_t seq, size_t pages)
{
    aura_list_cut(aura_page_table_pool(t), &t->window, &t->seq[seq], pages);
}

void aura_page_table_slide(struct aura_page_table *t, uint32_t seq, uint64_t top)
{
    const size_t first = aura_window_first(&t->window, top);
    if (first < t->seq[seq].first) /* it was empty in between */
        aura_page_table_cut(t, seq, t->window.kept);
    aura_list_slide(aura_page_table_pool(t), &t->window, &t->seq[seq], first);
}

aura_status aura_page_table_share(struct aura_page_table *t, uint32_t from, size_t pages, uint32_t to)
{
    aura_status status = reserve_list(t, &t->seq[to], pages);
    if (!status)
        aura_list_share(aura_page_table_pool(t), &t->window, &t->seq[from], pages, &t->seq[to]);
    return status;
}

aura_status aura_page_table_add(struct aura_page_table *t, uint32_t seq, size_t i, uint32_t *page)
{
    struct aura_page_list *list = &t->seq[seq];
    const int is_new = *page == AURA_NO_PAGE;
    aura_status status = is_new && !aura_page_table_pool(t)->n_free ? AURA_OUT_OF_PAGES : reserve_list(t, list, i + 1);
    if (!status)
        *page = (uint32_t)(aura_list_add(aura_page_table_pool(t), &t->window, list, i, is_new ? NULL : &t->page[*page]) - t->page);
    return status;
}

void aura_page_table_own(const struct aura_page_table *t, uint32_t seq, size_t write, size_t *begin, size_t *end)
{
    const struct aura_page_list *list = &t->seq[seq];
    const struct aura_page_window *w = &t->window;
    *begin = *end = write < list->end ? write : list->end;
    while (*begin > 0 && aura_window_has_page(w, list->first, *begin - 1) && is_own(aura_list_page(w, list, *begin - 1)))
        --*begin;
    while (*end < list->end && is_own(aura_list_page(w, list, *end)))
        ++*end;
}

aura_status aura_page_table_begin(struct aura_page_table *t, uint32_t seq, size_t write, size_t end, struct aura_page_change *c,
                                  size_t *taken)
{
    struct aura_page_list *list = &t->seq[seq];
    c->first = list->first;
    c->end = end > list->end ? end : list->end;
    c->own = write < list->end ? write : list->end;
    c->own_end = end < list->end ? end : list->end;
    *taken = aura_change_takes(&t->window, list, c);
    aura_change_forget(&t->window, list, c);
    if (*taken > aura_page_table_pool(t)->n_free)
        return AURA_OUT_OF_PAGES;
    if (reserve_list(t, list, c->end))
        return AURA_OUT_OF_MEMORY;
    aura_list_begin(aura_page_table_pool(t), &t->window, list, c);
    return AURA_OK;
}

void aura_page_table_commit(struct aura_page_table *t, uint32_t seq, const struct aura_page_change *c)
{
    aura_list_commit(aura_page_table_pool(t), &t->window, &t->seq[seq], c);
}

void aura_page_table_undo(struct aura_page_table *t, uint32_t seq, const struct aura_page_change *c)
{
    aura_list_undo(aura_page_table_pool(t), &t->window, &t->seq[seq], c);
}
