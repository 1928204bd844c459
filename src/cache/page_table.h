/* Which page belongs to which sequence: one set of rules for the cache of the CPU and for that of the device. A sequence has
 * a list of pages. A page counts the lists that hold it. Before a sequence writes to a page that others hold too, it takes a
 * page of its own.
 *
 * With a window, a sequence loses its oldest pages. It keeps its first `kept` pages, and it has pages [first, end).
 *
 * Nothing here knows a device, an allocator or a lock. pool.c has slabs, budget and lock for the CPU. The device has a fixed
 * number of pages: struct aura_page_table. Callers see to it that a list has memory for its entries. */
#ifndef AURA_PAGE_TABLE_H
#define AURA_PAGE_TABLE_H

#include "../format.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- windows: plain arithmetic, for host and device ------------------------------------------------------------------ */

/* What a window does to the pages of a sequence. Without a window all is 0 but the mask. */
struct aura_page_window {
    uint64_t tokens; /* that a query sees */
    uint64_t span;   /* a page stays until so many tokens have followed its last one; 0: there is no window */
    size_t kept;     /* pages of the first tokens, which stay */
    size_t mask;     /* a list has its entries after the kept ones modulo mask + 1; SIZE_MAX: each has a place of its own */
};

static inline AURA_ANYWHERE size_t aura_pages_of(uint64_t tokens)
{
    return (size_t)((tokens + AURA_PAGE - 1) / AURA_PAGE);
}

/* The most pages that a sequence needs besides the kept ones: those that `span` tokens touch, and the one that is begun. */
static inline AURA_ANYWHERE size_t aura_window_ring(const struct aura_page_window *w)
{
    return w->span ? aura_pages_of(w->span) + 1 : SIZE_MAX;
}

/* The first page after the kept ones that a sequence still has. `top`: the most tokens that it has had since it was last empty. */
static inline AURA_ANYWHERE size_t aura_window_first(const struct aura_page_window *w, uint64_t top)
{
    const size_t first = w->span && top > w->span ? (size_t)((top - w->span) / AURA_PAGE) : 0;
    return first > w->kept ? first : w->kept;
}

/* The least top of a sequence of `len` tokens that has this first page. */
static inline AURA_ANYWHERE uint64_t aura_window_least_top(const struct aura_page_window *w, size_t first, uint64_t len)
{
    const uint64_t slid = first > w->kept ? (uint64_t)first * AURA_PAGE + w->span : 0;
    return slid > len ? slid : len;
}

/* Whether tokens [begin, end) of a sequence are there. `first`: its first page after the kept ones. */
static inline AURA_ANYWHERE int aura_window_has(const struct aura_page_window *w, size_t first, uint64_t begin, uint64_t end)
{
    return first == w->kept || begin / AURA_PAGE >= first || end <= (uint64_t)w->kept * AURA_PAGE;
}

/* Whether a sequence can be cut to so many tokens: those that the next query sees must be there. */
static inline AURA_ANYWHERE int aura_window_may_cut(const struct aura_page_window *w, size_t first, uint64_t tokens)
{
    return aura_window_has(w, first, tokens > w->tokens ? tokens - w->tokens : 0, tokens);
}

/* The least tokens, besides those of the kept pages, that it can be cut to. */
static inline AURA_ANYWHERE uint64_t aura_window_least_cut(const struct aura_page_window *w, size_t first)
{
    return (uint64_t)first * AURA_PAGE + w->tokens;
}

/* Whether a sequence that is cut to so many tokens begins anew: it has nothing left but kept pages, and misses none. */
static inline AURA_ANYWHERE int aura_window_begins_anew(const struct aura_page_window *w, uint64_t tokens)
{
    return tokens <= (uint64_t)w->kept * AURA_PAGE;
}

/* The token that a sequence still has first, of those that a window can take; 0: it has all. */
static inline AURA_ANYWHERE uint64_t aura_window_first_token(const struct aura_page_window *w, size_t first)
{
    return first == w->kept ? 0 : (uint64_t)first * AURA_PAGE;
}

/* Whether a page below the end of a sequence is there. */
static inline AURA_ANYWHERE int aura_window_has_page(const struct aura_page_window *w, size_t first, size_t page)
{
    return page < w->kept || page >= first;
}

/* How many pages below `end` are there; of a page that is there, its place among them. */
static inline AURA_ANYWHERE size_t aura_window_count(const struct aura_page_window *w, size_t first, size_t end)
{
    return end <= w->kept ? end : w->kept + end - first;
}

/* for (p = aura_window_begin(); p < end; p = aura_window_next()): the pages that are there. */
static inline AURA_ANYWHERE size_t aura_window_begin(const struct aura_page_window *w, size_t first)
{
    return w->kept ? 0 : first;
}

static inline AURA_ANYWHERE size_t aura_window_next(const struct aura_page_window *w, size_t first, size_t page)
{
    return page + 1 == w->kept ? first : page + 1;
}

/* Where in its list a page is, and how many entries a list needs that ends with page end - 1. */
static inline AURA_ANYWHERE size_t aura_window_entry(const struct aura_page_window *w, size_t page)
{
    return page < w->kept ? page : w->kept + (page & w->mask);
}

static inline AURA_ANYWHERE size_t aura_window_entries(const struct aura_page_window *w, size_t end)
{
    return end <= w->kept ? end : w->kept + (end - 1 <= w->mask ? end : w->mask + 1);
}

/* ---- pages and lists ------------------------------------------------------------------------------------------------- */

/* A page, as far as it matters to whom it belongs. */
struct aura_page {
    struct aura_page *next; /* of a free page: the next free one. Of one that a change took: the page that it replaces, or NULL */
    uint32_t holders;       /* entries of lists that hold it; 0: it is free */
    uint32_t leaving;       /* of these, how many the running call takes away; 0 between calls */
};

/* The free pages, and a count of the others. */
struct aura_page_pool {
    struct aura_page *free; /* the last one that came goes first */
    size_t n_free;
    size_t shared, holders; /* pages with several holders; holders of all pages together */
};

/* Pages below `kept` of the window, as far as there are any, and [first, end) are there. Without a window, first is 0. */
struct aura_page_list {
    struct aura_page **page; /* [capacity], by aura_window_entry() */
    size_t first, end, capacity;
};

static inline struct aura_page *aura_list_page(const struct aura_page_window *w, const struct aura_page_list *list, size_t page)
{
    return list->page[aura_window_entry(w, page)];
}

void aura_page_free(struct aura_page_pool *pool, struct aura_page *page); /* one that nobody holds */
struct aura_page *aura_page_take(struct aura_page_pool *pool);            /* there is a free one */
struct aura_page *aura_page_share(struct aura_page_pool *pool, struct aura_page *page);
void aura_page_leave(struct aura_page_pool *pool, struct aura_page *page);

/* Pages of a list; and those of them that have other holders too. */
size_t aura_list_count(const struct aura_page_window *w, const struct aura_page_list *list);
size_t aura_list_shared(const struct aura_page_window *w, const struct aura_page_list *list);

/* Entry i of a list, its last; pages that it lacks before it are gone. NULL takes a free page, of which there is one. */
struct aura_page *aura_list_add(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                                size_t i, struct aura_page *page);
/* `to`, which is empty, gets the first `pages` pages of `from`, in which no page may be several entries. */
void aura_list_share(struct aura_page_pool *pool, const struct aura_page_window *w, const struct aura_page_list *from,
                     size_t pages, struct aura_page_list *to);
/* Leaves pages [from, to), of those that are there; their entries are the caller's to fill. */
void aura_list_leave(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t from,
                     size_t to);
/* Takes pages [from, to) out of the middle. There is no window. */
void aura_list_remove(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t from,
                      size_t to);
/* Leaves pages from `end` on. Where only kept pages are left, none is gone any more. */
void aura_list_cut(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t end);
/* Leaves pages before `first` but the kept ones. */
void aura_list_slide(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list, size_t first);

/* ---- changes: a list gets pages to write to --------------------------------------------------------------------------- */

/* What a list becomes: it has pages [first, end) and, of those that it has already, [own, own_end) to itself.
 *
 * With a window, a list may get more pages than a ring has. Entry i is then the page of entry i - ring again, if nobody else
 * holds that page: when the sequence writes to entry i, it no longer needs the tokens of entry i - ring. Such a page has one
 * holder for all its entries. */
struct aura_page_change {
    size_t first, end, own, own_end;
    size_t had; /* aura_list_begin() writes here where the list ended */
};

/* How many pages a call needs that changes several lists, one after the other: the sum of aura_change_takes() less that of
 * aura_change_frees(). Call frees for all lists, then takes for all, in the order of the changes, then forget for all. */
size_t aura_change_frees(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c);
size_t aura_change_takes(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c);
void aura_change_forget(const struct aura_page_window *w, const struct aura_page_list *list, const struct aura_page_change *c);

/* Takes the pages, after aura_list_slide() to c->first; the pool has enough. The caller then copies what aura_page_replaced()
 * says, and calls commit or undo. Nothing else may be done to the list meanwhile. None of the three fails. */
void aura_list_begin(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                     struct aura_page_change *c);
void aura_list_commit(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                      const struct aura_page_change *c);
void aura_list_undo(struct aura_page_pool *pool, const struct aura_page_window *w, struct aura_page_list *list,
                    const struct aura_page_change *c);

/* The page whose bytes page p of [own, own_end) is to get before anybody writes to it; NULL: it has its bytes. */
static inline struct aura_page *aura_page_replaced(const struct aura_page_window *w, const struct aura_page_list *list, size_t p)
{
    return aura_list_page(w, list, p)->next;
}

/* ---- a fixed number of pages and of sequences, both numbered: the device ----------------------------------------------- */

#define AURA_NO_PAGE UINT32_MAX

/* Whether a sequence of `len` tokens that has the pages of tokens [own, reserved) to itself may append `tokens` more, writing to
 * pages from that of token `first` on. */
static inline AURA_ANYWHERE int aura_page_table_may_append(uint32_t own, uint32_t reserved, uint32_t first, uint32_t len,
                                                           uint32_t tokens)
{
    return first / AURA_PAGE * AURA_PAGE >= own && tokens <= reserved && len <= reserved - tokens;
}

struct aura_page_table {
    uint32_t n_seqs, n_pages;
    struct aura_page *page;     /* [n_pages] */
    struct aura_page_pool pool;
    struct aura_page_pool *of;  /* not NULL: pages and pool are somebody else's, and `pool` is not used */
    struct aura_page_list *seq; /* [n_seqs] */
    uint8_t *used;              /* [n_seqs] 1: there is such a sequence */
    struct aura_page_window window;
};

/* No sequences, all pages free, page 0 to go first. window NULL: none. Fails: AURA_OUT_OF_MEMORY, with a table that may be
 * unmade. */
aura_status aura_page_table_make(struct aura_page_table *t, uint32_t seqs, uint32_t pages, const struct aura_page_window *window);
/* The same for tables that share pages and the pool that has the free ones among them. These are the caller's. */
aura_status aura_page_table_make_in(struct aura_page_table *t, uint32_t seqs, struct aura_page *page, uint32_t pages,
                                    struct aura_page_pool *pool, const struct aura_page_window *window);
void aura_page_table_unmake(struct aura_page_table *t); /* one of zeros is allowed */

/* Where the free pages are. */
static inline struct aura_page_pool *aura_page_table_pool(struct aura_page_table *t)
{
    return t->of ? t->of : &t->pool;
}

/* The first place without a sequence; AURA_NO_PAGE: there is none. */
uint32_t aura_page_table_place(const struct aura_page_table *t);

/* The number of page i of a sequence; of one that is gone, any number of a page. */
uint32_t aura_page_table_number(const struct aura_page_table *t, uint32_t seq, size_t i);

/* aura_list_cut() and aura_list_share() of sequences. Sharing fails, with nothing changed: AURA_OUT_OF_MEMORY. */
void aura_page_table_cut(struct aura_page_table *t, uint32_t seq, size_t pages);
aura_status aura_page_table_share(struct aura_page_table *t, uint32_t from, size_t pages, uint32_t to);

/* A sequence has had up to `top` tokens since it was last empty: it leaves the pages that are gone. */
void aura_page_table_slide(struct aura_page_table *t, uint32_t seq, uint64_t top);

/* aura_list_add(). *page: a number or, for a free page, AURA_NO_PAGE, and its number is written there. Fails, with nothing changed:
 * AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
aura_status aura_page_table_add(struct aura_page_table *t, uint32_t seq, size_t i, uint32_t *page);

/* The pages [*begin, *end) around page `write` that nobody else has; *end == write where that one is not to be written to. */
void aura_page_table_own(const struct aura_page_table *t, uint32_t seq, size_t write, size_t *begin, size_t *end);

/* Begins a change that gives a sequence pages [write, end) to itself. It takes *taken free pages. Fails, with nothing changed
 * but *taken: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
aura_status aura_page_table_begin(struct aura_page_table *t, uint32_t seq, size_t write, size_t end, struct aura_page_change *c,
                                  size_t *taken);
void aura_page_table_commit(struct aura_page_table *t, uint32_t seq, const struct aura_page_change *c);
void aura_page_table_undo(struct aura_page_table *t, uint32_t seq, const struct aura_page_change *c);

#ifdef __cplusplus
}
#endif
#endif
