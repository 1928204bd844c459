/* The rules of a cache, each written once, for the CPU and for the device. test/rules.c holds them against values that were
 * worked out by hand.
 *
 * Only what no kernel check would notice is here: integers of queries and weights are written in ref_tile.c and in the
 * kernels, and `aura check` compares them bit by bit.
 *
 * Lengths and tokens are uint64_t. The device has them in 32 bits, and its compiler makes 32-bit arithmetic of what its loops
 * use: aura_sees, aura_ring_row. */
#ifndef AURA_RULES_H
#define AURA_RULES_H

#include <math.h>

#include "format.h"

/* ---- numbers ------------------------------------------------------------------------------------------------------ */

#define AURA_LOG2_E 1.44269504f   /* inside, logits are in units of log2 e: a weight is a power of two */
#define AURA_LN_2 0.693147181f    /* and a log-sum-exp is a natural logarithm again */
#define AURA_LONGEST 60000.f      /* of a vector after balance: every coordinate then fits in f16 after any rotation */

/* The first magnitude that rounds to infinity in a type. f32 numbers are what they are. */
static inline AURA_ANYWHERE float aura_first_infinite(uint32_t dtype)
{
    return dtype == AURA_F16 ? 65520.f : dtype == AURA_BF16 ? 0x1.ffp127f : INFINITY;
}

/* The type of the numbers of a plain side. */
static inline AURA_ANYWHERE aura_dtype aura_dtype_of_kind(uint32_t kind)
{
    return kind == AURA_ROW_F32 ? AURA_F32 : kind == AURA_ROW_F16 ? AURA_F16 : AURA_BF16;
}

/* Whether a row can be divided by the sum of its weights. NaN is not good. */
static inline AURA_ANYWHERE int aura_is_good_sum(float sum)
{
    return sum > 0 && sum <= 0x1p127f;
}

/* What a logit is multiplied with: 0 asks for the usual factor. */
static inline float aura_logit_scale(float asked, uint32_t k_dim)
{
    return asked != 0 ? asked : 1 / sqrtf((float)k_dim);
}

/* Whether the numbers of an attention call are within their limits. NaN is not. */
static inline int aura_are_good_options(float scale, float softcap, uint32_t planes, uint32_t not_causal)
{
    return isfinite(scale) && softcap >= 0 && isfinite(softcap) && planes <= 2 && not_causal <= 1;
}

/* ---- how many bytes of a query ------------------------------------------------------------------------------------ */

/* Bytes of query or weight in each product with a side. 0 asks for as many as its codes deserve. */
static inline AURA_ANYWHERE uint32_t aura_planes_of(uint32_t kind, uint32_t asked)
{
    return asked ? asked : aura_bits_of(kind) <= 5 ? 1 : 2;
}

/* Where nobody asked for a number of planes, one plane of the query moves no logit by more than this, in nats: a key for which
 * it could takes both. With hi instead of 256 hi + lo, a logit lacks
 *
 *     step * (sum over d of lo[d] * level[d]) * k_step * scale * unit
 *
 * which is at most scale times the sum of |lo| times what does not depend on row and key. So every row has a largest scale of
 * a key that one plane is good enough for, and that scale decides, key by key: not what else is in the tile. */
#define AURA_MOST_MOVED 1.f
enum { AURA_NO_LIMIT = 0x7bff }; /* the largest f16 */

/* What rows of a call divide: the limit for a row whose step times sum of |lo| is 1. unit: of logits, as the call has it. */
static inline float aura_limit_of_call(const struct aura_side *keys, float unit, uint32_t asked)
{
    int32_t top = 0;
    if (asked || aura_planes_of(keys->kind, asked) != 1)
        return INFINITY; /* no key decides */
    for (uint32_t code = 0; code < (aura_is_trellis(keys->kind) ? 2u : 1u) << aura_bits_of(keys->kind); code++) {
        int32_t level = aura_level_of_code(keys, (uint8_t)code);
        top = level > top ? level : -level > top ? -level : top;
    }
    return AURA_MOST_MOVED * AURA_LOG2_E / (fabsf(unit) * keys->step * (float)top);
}

/* The largest scale, as f16, of a key for which a row takes one plane. lower: the sum of |lo|. */
static inline AURA_ANYWHERE uint16_t aura_limit_of_row(float of_call, float step, uint32_t lower)
{
    const float limit = of_call / (step * (float)lower);
    uint32_t bits;
    if (!(limit < 65504.f))
        return AURA_NO_LIMIT;
    memcpy(&bits, &limit, sizeof bits);
    return (uint16_t)(limit < 0x1p-14f ? (uint32_t)(limit * 0x1p24f) : (bits >> 13) - (112 << 10)); /* never rounded up */
}

/* Whether a key with this scale, f16 whose sign does not matter, takes both planes in that row. */
static inline AURA_ANYWHERE int aura_takes_both(uint32_t scale, uint32_t limit)
{
    return (scale & 0x7fff) > limit;
}

/* The same of many scales at once: aura_some_above() of what aura_four_above() says of every four, combined with `or`. The top
 * bit of a quarter says that the scale there is above the limit; nothing is carried from one quarter to the next. */
static inline AURA_ANYWHERE uint64_t aura_room_of_limit(uint32_t limit)
{
    return (0x7fff - limit) * 0x0001000100010001u;
}

static inline AURA_ANYWHERE uint64_t aura_four_above(uint64_t scales, uint64_t room)
{
    return (scales & 0x7fff7fff7fff7fffu) + room;
}

static inline AURA_ANYWHERE int aura_some_above(uint64_t fours)
{
    return (fours & 0x8000800080008000u) != 0;
}

/* ---- which tokens are encoded ------------------------------------------------------------------------------------- */

/* Tokens below this are encoded once a sequence has `len`, if those below `closed` were before: whole tiles that `rollback`
 * tokens follow. A cache that has no open tokens encodes each at once. */
static inline AURA_ANYWHERE uint64_t aura_closed_after(uint64_t closed, uint64_t len, uint32_t rollback, uint32_t has_open)
{
    uint64_t whole = len < rollback ? 0 : (len - rollback) / AURA_TILE * AURA_TILE, end = has_open ? whole : len;
    return end > closed ? end : closed;
}

/* The length at which aura_closed_after() next says more than `closed`, in a cache that has open tokens. */
static inline AURA_ANYWHERE uint64_t aura_next_close(uint64_t closed, uint32_t rollback)
{
    return (closed / AURA_TILE + 1) * AURA_TILE + rollback;
}

/* The same after a cut to `tokens`: codes that exist stay, whatever tile they are of. */
static inline AURA_ANYWHERE uint64_t aura_closed_by_cut(uint64_t closed, uint64_t tokens)
{
    return closed < tokens ? closed : tokens;
}

/* The window of a call: its own, or that of the cache. 0: none. */
static inline AURA_ANYWHERE uint64_t aura_window_of_call(uint64_t asked, uint64_t of_cache)
{
    return asked ? asked : of_cache;
}

/* Whether a cache with this window, 0: none, takes so many tokens or queries at once: its pages are kept for max_queries. */
static inline AURA_ANYWHERE int aura_takes_at_once(uint64_t window, uint32_t max_queries, uint32_t tokens)
{
    return !window || tokens <= max_queries;
}

/* Tokens below this are as they will always be. has_codes: a side of the cache is encoded. */
static inline AURA_ANYWHERE uint64_t aura_settled(uint64_t len, uint64_t closed, int has_codes)
{
    return has_codes ? closed : len;
}

/* Which f16 row of a head holds a token that is pinned or open. A head has `rows`: a ring, whose size is a power of two, for
 * the open tokens; then one row for each pinned token. */
static inline AURA_ANYWHERE uint32_t aura_ring_row(uint64_t token, uint32_t pinned, uint32_t rows)
{
    const uint32_t ring = rows - pinned;
    return token < pinned ? ring + (uint32_t)token : (uint32_t)token & (ring - 1);
}

/* Whether keys of such a cache are encoded relative to a reference of their page. */
static inline AURA_ANYWHERE int aura_keeps_references(uint32_t k_kind, uint32_t flags)
{
    return aura_is_packed(k_kind) && !(flags & AURA_NO_REFERENCE);
}

/* In such a cache, a page has its reference from the moment its first unpinned token is encoded; the bytes of the reference
 * mean nothing before. */
static inline AURA_ANYWHERE int aura_page_has_reference(uint64_t closed, uint64_t page, uint32_t pinned)
{
    const uint64_t first = page * AURA_PAGE;
    return closed > (first > pinned ? first : pinned);
}

/* ---- pages dealt to ranks ----------------------------------------------------------------------------------------- */

/* Which of `ranks` processes has a page of a sequence: pages go to them in turn. The shift is the sequence's, so that the first
 * pages of many sequences are spread too. */
static inline uint32_t aura_rank_of_page(uint64_t page, uint32_t shift, uint32_t ranks)
{
    return (uint32_t)((page + shift) % ranks);
}

/* The first page from `page` on that a rank has. */
static inline uint64_t aura_next_page_of_rank(uint64_t page, uint32_t shift, uint32_t rank, uint32_t ranks)
{
    return page + (rank + ranks - aura_rank_of_page(page, shift, ranks)) % ranks;
}

/* How many of the first `pages` pages a rank has; of one of them, its place among these. */
static inline uint64_t aura_pages_of_rank(uint64_t pages, uint32_t shift, uint32_t rank, uint32_t ranks)
{
    const uint64_t first = aura_next_page_of_rank(0, shift, rank, ranks);
    return pages > first ? (pages - first - 1) / ranks + 1 : 0;
}

/* ---- what a query sees -------------------------------------------------------------------------------------------- */

/* One past the newest token that query `query` of `queries` sees: the queries are at the last positions of the sequence. 0
 * where the sequence is shorter than that. */
static inline AURA_ANYWHERE uint64_t aura_seen_end(uint64_t len, uint32_t queries, uint64_t query, uint32_t not_causal)
{
    const uint64_t end = len + query + 1;
    return not_causal ? len : end > queries ? end - queries : 0;
}

/* The oldest token of the window that ends there. Window 0: none. */
static inline AURA_ANYWHERE uint64_t aura_seen_begin(uint64_t end, uint64_t window)
{
    return window && window < end ? end - window : 0;
}

/* Whether a query with these limits sees a token. The first `keep_first` tokens are seen from beyond the window too. */
static inline AURA_ANYWHERE int aura_sees(uint64_t token, uint64_t begin, uint64_t end, uint32_t keep_first)
{
    return (token >= begin || token < keep_first) && token < end;
}

#endif
