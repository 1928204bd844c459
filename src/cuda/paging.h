/* Which page of the device belongs to which sequence: lists of page numbers, references to pages that sequences share, and what
 * must be copied before one of them may write. Plain C that knows of no device, so that it is tested where there is none. */
#ifndef AURA_CUDA_PAGING_H
#define AURA_CUDA_PAGING_H

#include "../format.h"

#ifdef __cplusplus
extern "C" {
#endif

#define AURA_PAGING_NONE UINT32_MAX

/* Whether a sequence of `len` tokens that has the pages of tokens [own, reserved) to itself may append `tokens` more, writing to
 * pages from that of token `first` on. */
static inline AURA_ANYWHERE int aura_paging_may_append(uint32_t own, uint32_t reserved, uint32_t first, uint32_t len, uint32_t tokens)
{
    return first / AURA_PAGE * AURA_PAGE >= own && tokens <= reserved && len <= reserved - tokens;
}

struct aura_paging_seq {
    uint32_t *page; /* [pages] */
    uint32_t pages, capacity;
    uint32_t used;  /* 1: there is such a sequence */
};

struct aura_paging {
    uint32_t n_seqs, n_pages, n_free;
    uint32_t *references;       /* [n_pages]: lists that a page is in */
    uint32_t *free_page;        /* [n_free] are free; the last one goes first */
    struct aura_paging_seq *seq; /* [n_seqs] */
};

/* No sequences, all pages free, page 0 to go first. Fails: AURA_OUT_OF_MEMORY, with a table that may be unmade. */
aura_status aura_paging_make(struct aura_paging *t, uint32_t seqs, uint32_t pages);
void aura_paging_unmake(struct aura_paging *t); /* one of zeros is allowed */

/* The first place without a sequence; AURA_PAGING_NONE: there is none. */
uint32_t aura_paging_place(const struct aura_paging *t);

/* Leaves the first `pages` pages in the list of a sequence, or all where there are no more. */
void aura_paging_cut(struct aura_paging *t, uint32_t seq, uint32_t pages);

/* The first `pages` pages of `from` are in the list of `to` too, which was empty. Fails, with nothing changed:
 * AURA_OUT_OF_MEMORY. */
aura_status aura_paging_share(struct aura_paging *t, uint32_t from, uint32_t pages, uint32_t to);

/* One more entry at the end of a list: *page, to which that is one more reference or, where it is AURA_PAGING_NONE, a free one, written
 * there. Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
aura_status aura_paging_add(struct aura_paging *t, uint32_t seq, uint32_t *page);

/* Pages of a sequence that others have too. */
uint32_t aura_paging_shared(const struct aura_paging *t, uint32_t seq);

/* The pages [*begin, *end) around page `write` that nobody else has; *end == write where that one is not to be written to. */
void aura_paging_own(const struct aura_paging *t, uint32_t seq, uint32_t write, uint32_t *begin, uint32_t *end);

/* What makes pages [write, end) of a sequence its own: entries [first, end) of its list become page[0], page[1] ..., of which
 * those with copy[i] != AURA_PAGING_NONE must get the bytes of page copy[i] before anybody writes there. Between plan and commit
 * or undo nothing else may be done to the table. */
struct aura_paging_plan {
    uint32_t seq, first, end;
    uint32_t *page, *copy; /* [end - first] */
    uint32_t taken;        /* pages that come from the free ones; where planning failed, those that it would have needed */
};

/* Pages from `full` on hold nothing that is worth copying. Fails, with nothing changed: AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
aura_status aura_paging_plan(struct aura_paging *t, uint32_t seq, uint32_t write, uint32_t full, uint32_t end,
                            struct aura_paging_plan *plan);
/* Neither fails; both free the plan. */
void aura_paging_commit(struct aura_paging *t, struct aura_paging_plan *plan);
void aura_paging_undo(struct aura_paging *t, struct aura_paging_plan *plan);

#ifdef __cplusplus
}
#endif
#endif
