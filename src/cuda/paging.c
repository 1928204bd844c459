/* Pages of the device and their sequences. */
#include "paging.h"

#include <stdlib.h>
#include <string.h>

aura_status aura_paging_make(struct aura_paging *t, uint32_t seqs, uint32_t pages)
{
    memset(t, 0, sizeof *t);
    t->references = calloc(pages ? pages : 1, sizeof *t->references);
    t->free_page = malloc((pages ? pages : 1) * sizeof *t->free_page);
    t->seq = calloc(seqs ? seqs : 1, sizeof *t->seq);
    if (!t->references || !t->free_page || !t->seq)
        return AURA_OUT_OF_MEMORY;
    t->n_seqs = seqs;
    t->n_pages = t->n_free = pages;
    for (uint32_t i = 0; i < pages; i++)
        t->free_page[i] = pages - 1 - i;
    return AURA_OK;
}

void aura_paging_unmake(struct aura_paging *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++)
        free(t->seq[i].page);
    free(t->references), free(t->free_page), free(t->seq);
    memset(t, 0, sizeof *t);
}

uint32_t aura_paging_place(const struct aura_paging *t)
{
    for (uint32_t i = 0; i < t->n_seqs; i++)
        if (!t->seq[i].used)
            return i;
    return AURA_PAGING_NONE;
}

/* ---- references ---------------------------------------------------------------------------------------------------- */

static uint32_t take(struct aura_paging *t)
{
    uint32_t page = t->free_page[--t->n_free];
    t->references[page] = 1;
    return page;
}

static void drop(struct aura_paging *t, uint32_t page)
{
    if (--t->references[page] == 0)
        t->free_page[t->n_free++] = page;
}

static int is_own(const struct aura_paging *t, uint32_t seq, uint32_t i)
{
    return t->references[t->seq[seq].page[i]] == 1;
}

static aura_status grow(struct aura_paging_seq *s, uint32_t pages)
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

void aura_paging_cut(struct aura_paging *t, uint32_t seq, uint32_t pages)
{
    struct aura_paging_seq *s = &t->seq[seq];
    while (s->pages > pages)
        drop(t, s->page[--s->pages]);
}

aura_status aura_paging_share(struct aura_paging *t, uint32_t from, uint32_t pages, uint32_t to)
{
    struct aura_paging_seq *s = &t->seq[to];
    aura_status status = grow(s, pages);
    if (status)
        return status;
    for (uint32_t i = 0; i < pages; i++) {
        s->page[i] = t->seq[from].page[i];
        t->references[s->page[i]]++;
    }
    s->pages = pages;
    return AURA_OK;
}

aura_status aura_paging_add(struct aura_paging *t, uint32_t seq, uint32_t *page)
{
    struct aura_paging_seq *s = &t->seq[seq];
    aura_status status = *page == AURA_PAGING_NONE && !t->n_free ? AURA_OUT_OF_PAGES : grow(s, s->pages + 1);
    if (status)
        return status;
    if (*page == AURA_PAGING_NONE)
        *page = take(t);
    else
        t->references[*page]++;
    s->page[s->pages++] = *page;
    return AURA_OK;
}

uint32_t aura_paging_shared(const struct aura_paging *t, uint32_t seq)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < t->seq[seq].pages; i++)
        n += !is_own(t, seq, i);
    return n;
}

void aura_paging_own(const struct aura_paging *t, uint32_t seq, uint32_t write, uint32_t *begin, uint32_t *end)
{
    const uint32_t pages = t->seq[seq].pages;
    *begin = *end = write < pages ? write : pages;
    while (*begin > 0 && is_own(t, seq, *begin - 1))
        --*begin;
    while (*end < pages && is_own(t, seq, *end))
        ++*end;
}

/* ---- pages to write to --------------------------------------------------------------------------------------------- */

/* Whether a page has to come for entry i. */
static int is_wanted(const struct aura_paging *t, uint32_t seq, uint32_t i)
{
    return i >= t->seq[seq].pages || !is_own(t, seq, i);
}

aura_status aura_paging_plan(struct aura_paging *t, uint32_t seq, uint32_t write, uint32_t full, uint32_t end,
                            struct aura_paging_plan *plan)
{
    const struct aura_paging_seq *s = &t->seq[seq];
    memset(plan, 0, sizeof *plan);
    plan->seq = seq;
    plan->first = write < s->pages ? write : s->pages; /* a list has no gaps */
    while (plan->first < end && !is_wanted(t, seq, plan->first))
        plan->first++;
    plan->end = plan->first < end ? end : plan->first;
    for (uint32_t i = plan->first; i < plan->end; i++)
        plan->taken += (uint32_t)is_wanted(t, seq, i);
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
        const int wanted = is_wanted(t, seq, i);
        plan->page[i - plan->first] = wanted ? take(t) : s->page[i];
        plan->copy[i - plan->first] = wanted && i < s->pages && i < full ? s->page[i] : AURA_PAGING_NONE;
    }
    return AURA_OK;
}

void aura_paging_commit(struct aura_paging *t, struct aura_paging_plan *plan)
{
    struct aura_paging_seq *s = &t->seq[plan->seq];
    for (uint32_t i = plan->first; i < plan->end; i++) {
        const uint32_t page = plan->page[i - plan->first];
        if (i < s->pages && s->page[i] != page)
            drop(t, s->page[i]);
        s->page[i] = page;
    }
    s->pages = plan->end > s->pages ? plan->end : s->pages;
    free(plan->page);
}

void aura_paging_undo(struct aura_paging *t, struct aura_paging_plan *plan)
{
    const struct aura_paging_seq *s = &t->seq[plan->seq];
    for (uint32_t i = plan->end; i-- > plan->first;) {
        const uint32_t page = plan->page[i - plan->first];
        if (i >= s->pages || s->page[i] != page)
            drop(t, page);
    }
    free(plan->page);
}
