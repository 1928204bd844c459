/* Pages of the device and their sequences. */
#include "page_table.h"

#include <stdlib.h>
#include <string.h>

aura_status aura_page_table_make(struct aura_page_table *t, uint32_t seqs, uint32_t pages, const struct aura_page_window *window)
{
    memset(t, 0, sizeof *t);
    if (window)
        t->window = *window;
    t->references = calloc(pages ? pages : 1, sizeof *t->references);
    t->free_page = malloc((pages ? pages : 1) * sizeof *t->free_page);
    t->seq = calloc(seqs ? seqs : 1, sizeof *t->seq);
    if (!t->references || !t->free_page || !t->seq)
        return AURA_OUT_OF_MEMORY;
    t->n_seqs = seqs;
    t->n_pages = t->n_free = pages;
    for (uint32_t i = 0; i < pages; i++)
        t->free_page[i] = pages - 1 - i;
    for (uint32_t i = 0; i < seqs; i++)
        t->seq[i].first = t->window.kept;
    return AURA_OK;
}

void aura_page_table_unmake(struct aura_page_table *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++)
        free(t->seq[i].page);
    free(t->references), free(t->free_page), free(t->seq);
    memset(t, 0, sizeof *t);
}

uint32_t aura_page_table_place(const struct aura_page_table *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++)
        if (!t->seq[i].used)
            return i;
    return AURA_NO_PAGE;
}

/* ---- references ---------------------------------------------------------------------------------------------------- */

static uint32_t take(struct aura_page_table *t)
{
    uint32_t page = t->free_page[--t->n_free];
    t->references[page] = 1;
    return page;
}

static void drop(struct aura_page_table *t, uint32_t page)
{
    if (--t->references[page] == 0)
        t->free_page[t->n_free++] = page;
}

static int is_own(const struct aura_page_table *t, uint32_t seq, uint32_t i)
{
    return t->references[t->seq[seq].page[i]] == 1;
}

static aura_status grow(struct aura_page_list *s, uint32_t pages)
{
    if (pages <= s->capacity)
        return AURA_OK;
    uint32_t capacity = pages < 8 ? 8 : pages;
    if (capacity / 2 < s->capacity && s->capacity <= UINT32_MAX / 2)
        capacity = 2 * s->capacity;
    uint32_t *page = realloc(s->page, (size_t)capacity * sizeof *page);
    if (!page)
        return AURA_OUT_OF_MEMORY;
    s->page = page;
    s->capacity = capacity;
    return AURA_OK;
}

int aura_page_table_has_page(const struct aura_page_table *t, uint32_t seq, uint32_t i)
{
    return i < t->window.kept || i >= t->seq[seq].first;
}

/* Whether entry i is the page of an older one. */
static int is_again(const struct aura_page_table *t, uint32_t seq, uint32_t i)
{
    const struct aura_page_list *s = &t->seq[seq];
    const uint32_t ring = t->window.ring;
    return ring && i >= ring && i - ring >= s->first && s->page[i - ring] == s->page[i];
}

void aura_page_table_cut(struct aura_page_table *t, uint32_t seq, uint32_t pages)
{
    struct aura_page_list *s = &t->seq[seq];
    while (s->pages > pages) {
        const uint32_t i = --s->pages;
        if (aura_page_table_has_page(t, seq, i) && !is_again(t, seq, i))
            drop(t, s->page[i]);
    }
    if (pages <= t->window.kept)
        s->first = t->window.kept;
}

void aura_page_table_slide(struct aura_page_table *t, uint32_t seq, uint32_t top)
{
    struct aura_page_list *s = &t->seq[seq];
    const uint32_t first = aura_page_table_first(&t->window, top);
    if (first < s->first) /* it was empty in between */
        aura_page_table_cut(t, seq, t->window.kept);
    for (; s->first < first && s->first < s->pages; s->first++) {
        const uint32_t again = s->first + t->window.ring;
        if (again >= s->pages || s->page[again] != s->page[s->first])
            drop(t, s->page[s->first]);
    }
}

uint32_t aura_page_table_count(const struct aura_page_table *t, uint32_t seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->seq[seq].pages; i++)
        n += aura_page_table_has_page(t, seq, i) && !is_again(t, seq, i);
    return n;
}

aura_status aura_page_table_share(struct aura_page_table *t, uint32_t from, uint32_t pages, uint32_t to)
{
    struct aura_page_list *s = &t->seq[to];
    aura_status status = grow(s, pages);
    if (status)
        return status;
    s->first = pages > t->window.kept ? t->seq[from].first : t->window.kept;
    s->pages = pages;
    for (uint32_t i = 0; i < pages; i++) {
        s->page[i] = t->seq[from].page[i];
        if (aura_page_table_has_page(t, to, i))
            t->references[s->page[i]]++;
    }
    return AURA_OK;
}

aura_status aura_page_table_add(struct aura_page_table *t, uint32_t seq, uint32_t i, uint32_t *page)
{
    struct aura_page_list *s = &t->seq[seq];
    aura_status status = *page == AURA_NO_PAGE && !t->n_free ? AURA_OUT_OF_PAGES : grow(s, i + 1);
    if (status)
        return status;
    if (*page == AURA_NO_PAGE)
        *page = take(t);
    else
        t->references[*page]++;
    if (s->pages < i)
        s->first = i;
    for (; s->pages < i; s->pages++)
        s->page[s->pages] = *page; /* whatever: they are gone */
    s->page[s->pages++] = *page;
    return AURA_OK;
}

uint32_t aura_page_table_shared(const struct aura_page_table *t, uint32_t seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->seq[seq].pages; i++)
        n += aura_page_table_has_page(t, seq, i) && !is_own(t, seq, i);
    return n;
}

void aura_page_table_own(const struct aura_page_table *t, uint32_t seq, uint32_t write, uint32_t *begin, uint32_t *end)
{
    const uint32_t pages = t->seq[seq].pages;
    *begin = *end = write < pages ? write : pages;
    while (*begin > 0 && aura_page_table_has_page(t, seq, *begin - 1) && is_own(t, seq, *begin - 1))
        --*begin;
    while (*end < pages && is_own(t, seq, *end))
        ++*end;
}

/* ---- pages to write to --------------------------------------------------------------------------------------------- */

/* Whether entry i needs another page than it has. */
static int is_wanted(const struct aura_page_table *t, uint32_t seq, uint32_t i)
{
    return i >= t->seq[seq].pages || !is_own(t, seq, i);
}

/* Whether that is the page of an older entry: one that is there, and nobody else's once the plan is carried out. */
static int is_recycled(const struct aura_page_table *t, const struct aura_page_plan *plan, uint32_t i)
{
    const uint32_t ring = t->window.ring, older = i - ring;
    return ring && i >= ring && older >= t->seq[plan->seq].first && (older >= plan->first || is_own(t, plan->seq, older));
}

static int is_taken(const struct aura_page_table *t, const struct aura_page_plan *plan, uint32_t i)
{
    return is_wanted(t, plan->seq, i) && !is_recycled(t, plan, i);
}

/* The page of entry i when the plan is carried out. */
static uint32_t planned_page(struct aura_page_table *t, const struct aura_page_plan *plan, uint32_t i)
{
    const uint32_t older = i - t->window.ring;
    if (!is_wanted(t, plan->seq, i))
        return t->seq[plan->seq].page[i];
    if (!is_recycled(t, plan, i))
        return take(t);
    return older >= plan->first ? plan->page[older - plan->first] : t->seq[plan->seq].page[older];
}

aura_status aura_page_table_plan(struct aura_page_table *t, uint32_t seq, uint32_t write, uint32_t full, uint32_t end,
                            struct aura_page_plan *plan)
{
    const struct aura_page_list *s = &t->seq[seq];
    memset(plan, 0, sizeof *plan);
    plan->seq = seq;
    plan->first = write < s->pages ? write : s->pages; /* a list has no gaps from there on */
    while (plan->first < end && !is_wanted(t, seq, plan->first))
        plan->first++;
    plan->end = plan->first < end ? end : plan->first;
    for (uint32_t i = plan->first; i < plan->end; i++)
        plan->taken += (uint32_t)is_taken(t, plan, i);
    if (plan->taken > t->n_free)
        return AURA_OUT_OF_PAGES;
    const size_t n = plan->end - plan->first;
    plan->page = malloc((2 * n + 1) * sizeof *plan->page);
    plan->copy = plan->page ? plan->page + n : NULL;
    if (!plan->page || grow(&t->seq[seq], plan->end)) {
        free(plan->page);
        return AURA_OUT_OF_MEMORY;
    }
    for (uint32_t i = plan->first; i < plan->end; i++) {
        const int copied = is_wanted(t, seq, i) && i < s->pages && i < full;
        plan->copy[i - plan->first] = copied ? s->page[i] : AURA_NO_PAGE;
        plan->page[i - plan->first] = planned_page(t, plan, i);
    }
    return AURA_OK;
}

void aura_page_table_commit(struct aura_page_table *t, struct aura_page_plan *plan)
{
    struct aura_page_list *s = &t->seq[plan->seq];
    for (uint32_t i = plan->first; i < plan->end; i++) {
        const uint32_t page = plan->page[i - plan->first];
        if (i < s->pages && s->page[i] != page)
            drop(t, s->page[i]);
        s->page[i] = page;
    }
    s->pages = plan->end > s->pages ? plan->end : s->pages;
    free(plan->page);
}

void aura_page_table_undo(struct aura_page_table *t, struct aura_page_plan *plan)
{
    for (uint32_t i = plan->end; i-- > plan->first;)
        if (is_taken(t, plan, i))
            drop(t, plan->page[i - plan->first]);
    free(plan->page);
}
