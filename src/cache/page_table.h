/* Which page of the device belongs to which sequence: lists of page numbers, references to pages that sequences share, and what
 * must be copied before one of them may write. Plain C that knows of no device, so that it is tested where there is none.
 *
 * With a window, a list is a ring that is written out: where entry i is the page of entry i - ring again, appending goes on into it, on
 * a stream, without the host, and what the older entry stood for is gone by then. A page is in a list once, for references, however
 * many of its entries it is; one that is shared is one entry of each list. */
#ifndef AURA_PAGE_TABLE_H
#define AURA_PAGE_TABLE_H

#include "../format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AURA_NO_PAGE UINT32_MAX

/* Whether a sequence of `len` tokens that has the pages of tokens [own, reserved) to itself may append `tokens` more, writing to
 * pages from that of token `first` on. */
static inline AURA_ANYWHERE int aura_page_table_may_append(uint32_t own, uint32_t reserved, uint32_t first, uint32_t len, uint32_t tokens)
{
    return first / AURA_PAGE * AURA_PAGE >= own && tokens <= reserved && len <= reserved - tokens;
}

/* What a window does to the pages of a sequence. All zeros: there is none. */
struct aura_page_window {
    uint32_t tokens; /* that a query sees */
    uint32_t span;   /* a page is there until so many have followed its last token */
    uint32_t kept;   /* pages at the beginning that stay */
    uint32_t ring;   /* most pages besides: enough for span, and for the one that is begun */
};

/* With a window, pages [kept, this one) of a sequence are gone that has had up to `top` tokens since it was last empty. */
static inline AURA_ANYWHERE uint32_t aura_page_table_first(const struct aura_page_window *w, uint32_t top)
{
    const uint32_t first = w->ring && top > w->span ? (top - w->span) / AURA_PAGE : 0;
    return first > w->kept ? first : w->kept;
}

/* Whether tokens [begin, end) of such a sequence are there. */
static inline AURA_ANYWHERE int aura_page_table_has(const struct aura_page_window *w, uint32_t top, uint32_t begin, uint32_t end)
{
    const uint32_t first = aura_page_table_first(w, top);
    return first == w->kept || begin / AURA_PAGE >= first || end <= w->kept * AURA_PAGE;
}

/* Whether it can be cut to so many tokens: those that the next query sees must be there. */
static inline AURA_ANYWHERE int aura_page_table_may_cut(const struct aura_page_window *w, uint32_t top, uint32_t tokens)
{
    return aura_page_table_has(w, top, tokens > w->tokens ? tokens - w->tokens : 0, tokens);
}

/* The most tokens that it has had after that: it begins anew where nothing is left but what stays anyway. */
static inline AURA_ANYWHERE uint32_t aura_page_table_top(const struct aura_page_window *w, uint32_t top, uint32_t tokens)
{
    return tokens <= w->kept * AURA_PAGE ? tokens : top;
}

struct aura_page_list {
    uint32_t *page; /* [pages] */
    uint32_t pages, capacity;
    uint32_t first; /* entries [kept, first) are gone */
    uint32_t used;  /* 1: there is such a sequence */
};

struct aura_page_table {
    uint32_t n_seqs, n_pages, n_free;
    uint32_t *references;       /* [n_pages]: lists that a page is in */
    uint32_t *free_page;        /* [n_free] are free; the last one goes first */
    struct aura_page_list *seq; /* [n_seqs] */
    struct aura_page_window window;
};

/* No sequences, all pages free, page 0 to go first. window NULL: none. Fails: AURA_OUT_OF_MEMORY, with a table that may be unmade. */
aura_status aura_page_table_make(struct aura_page_table *t, uint32_t seqs, uint32_t pages, const struct aura_page_window *window);
void aura_page_table_unmake(struct aura_page_table *t); /* one of zeros is allowed */

/* The first place without a sequence; AURA_NO_PAGE: there is none. */
uint32_t aura_page_table_place(const struct aura_page_table *t);

/* Leaves the first `pages` pages in the list of a sequence, or all where there are no more. */
void aura_page_table_cut(struct aura_page_table *t, uint32_t seq, uint32_t pages);

/* With a window: pages that are gone go back, of a sequence that has had up to `top` tokens since it was last empty. */
void aura_page_table_slide(struct aura_page_table *t, uint32_t seq, uint32_t top);

/* Whether entry i of a list is there. */
int aura_page_table_has_page(const struct aura_page_table *t, uint32_t seq, uint32_t i);

/* Pages of a sequence. */
uint32_t aura_page_table_count(const struct aura_page_table *t, uint32_t seq);

/* The first `pages` pages of `from` are in the list of `to` too, which was empty; with a window, no page may be several entries of the
 * first. Fails, with nothing changed: AURA_OUT_OF_MEMORY. */
aura_status aura_page_table_share(struct aura_page_table *t, uint32_t from, uint32_t pages, uint32_t to);

/* Entry i of a list, its last; those that it lacks before it are gone. *page, to which that is one more reference or, where it is
 * AURA_NO_PAGE, a free one, written there. Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
aura_status aura_page_table_add(struct aura_page_table *t, uint32_t seq, uint32_t i, uint32_t *page);

/* Pages of a sequence that others have too. */
uint32_t aura_page_table_shared(const struct aura_page_table *t, uint32_t seq);

/* The pages [*begin, *end) around page `write` that nobody else has; *end == write where that one is not to be written to. */
void aura_page_table_own(const struct aura_page_table *t, uint32_t seq, uint32_t write, uint32_t *begin, uint32_t *end);

/* What makes pages [write, end) of a sequence its own: entries [first, end) of its list become page[0], page[1] ..., of which
 * those with copy[i] != AURA_NO_PAGE must get the bytes of page copy[i] before anybody writes there. Between plan and commit
 * or undo nothing else may be done to the table. */
struct aura_page_plan {
    uint32_t seq, first, end;
    uint32_t *page, *copy; /* [end - first] */
    uint32_t taken;        /* pages that come from the free ones; where planning failed, those that it would have needed */
};

/* Pages from `full` on hold nothing that is worth copying. Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
aura_status aura_page_table_plan(struct aura_page_table *t, uint32_t seq, uint32_t write, uint32_t full, uint32_t end,
                            struct aura_page_plan *plan);
/* Neither fails; both free the plan. */
void aura_page_table_commit(struct aura_page_table *t, struct aura_page_plan *plan);
void aura_page_table_undo(struct aura_page_table *t, struct aura_page_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
