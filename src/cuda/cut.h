/* How an attention call is cut. A group (sequence, KV head, block of rows) is a number of items; what a block of threads does of
 * one group is a segment. Groups of one length are cut evenly; otherwise all groups in a row are a flat list, of which every block
 * has a contiguous piece of `per` places. Plain arithmetic, for kernels and for a test without a device. */
#ifndef AURA_CUDA_CUT_H
#define AURA_CUDA_CUT_H

#include "../format.h"

/* With a fixed cut a group has at most so many segments, of at least so many items each. Few parts are cheap in a large batch and
 * slow in a small one: 16 of them keep 128 blocks busy with the 8 KV heads of a single sequence. */
enum { AURA_CUT_PARTS = 16, AURA_CUT_LEAST = 32 };

struct aura_cut {
    uint32_t first, n;    /* items of the group */
    uint32_t on;          /* places of the list to the next segment of this block */
    uint32_t parts, part; /* segments of the group, and which this is */
    uint32_t idle;        /* 1: these places are no items, or of a segment that another block began; nothing is to be done */
};

/* x / d for x below 2^31, by a product: a division is some 30 instructions, one after the other, at the beginning of a kernel where
 * nothing else is under way. */
struct aura_divider {
    uint32_t factor, shift;
};

static inline struct aura_divider aura_divider_of(uint32_t d)
{
    struct aura_divider by = {0, 31};
    while ((uint64_t)1 << (by.shift - 31) < d)
        by.shift++;
    by.factor = (uint32_t)((((uint64_t)1 << by.shift) + d - 1) / d);
    return by;
}

static inline AURA_ANYWHERE uint32_t aura_divide(uint32_t x, struct aura_divider by)
{
    return (uint32_t)((uint64_t)x * by.factor >> by.shift);
}

/* A block takes about 10 us more for a second segment, whose queries it makes ready and whose results it merges (H200: 18 000
 * cycles). So groups that are all of one length are cut into `parts` each, as equal as can be, and a block has `run` of these: one
 * part, or whole groups. parts 0: that would leave more than a tenth of the blocks idle. */
struct aura_cut_even {
    uint32_t parts, run;
};

static inline struct aura_cut_even aura_cut_even_of(uint32_t groups, uint32_t blocks)
{
    struct aura_cut_even e = {0, 0};
    const uint32_t parts = blocks / groups, run = (groups + blocks - 1) / blocks;
    if (parts && 10 * (uint64_t)parts * groups >= 9 * (uint64_t)blocks)
        e.parts = parts, e.run = 1;
    else if (!parts && 10 * (uint64_t)groups >= 9 * (uint64_t)run * blocks)
        e.parts = 1, e.run = run;
    return e;
}

/* Part `part` of a group of `items`, which has `most` of them, or fewer that are not shorter than `least`. */
static inline AURA_ANYWHERE struct aura_cut aura_cut_even_at(uint32_t part, uint32_t items, uint32_t most,
                                                             struct aura_divider by_most, uint32_t least)
{
    const uint32_t wanted = items / least, parts = wanted >= most ? most : wanted ? wanted : 1;
    const uint32_t each = parts == most ? aura_divide(items, by_most) : items / parts, rest = items - each * parts;
    const struct aura_cut c = {part * each + (part < rest ? part : rest), each + (part < rest), 1, parts, part, part >= parts};
    return c;
}

/* How long pieces are otherwise, and how many places a group has in the list besides its items. */
struct aura_cut_plan {
    uint32_t per, cost;
};

/* Pieces are equal, and a group has some places more for what it costs besides its items, so that a block with many short groups
 * gets fewer of them; where pieces are short that would only make them uneven. */
static inline AURA_ANYWHERE struct aura_cut_plan aura_cut_plan_of(uint32_t items, uint32_t groups, uint32_t blocks, uint32_t least)
{
    struct aura_cut_plan p;
    p.cost = items / blocks / 8;
    p.cost = p.cost < 64 ? p.cost : 64;
    const uint32_t places = items + groups * p.cost;
    p.per = (places + blocks - 1) / blocks;
    p.per = p.per > least ? p.per : least;
    return p;
}

/* Items of a segment, all but the last, of a fixed cut: the length of the sequence decides, and nothing else. */
static inline AURA_ANYWHERE uint32_t aura_cut_share(uint32_t items)
{
    const uint32_t even = (items + AURA_CUT_PARTS - 1) / AURA_CUT_PARTS;
    return even > AURA_CUT_LEAST ? even : (uint32_t)AURA_CUT_LEAST;
}

/* The segment at place `at` of the flat list, in a group of `items` and then `cost` places that begins at place `start`; the
 * block's piece ends at `end`. With a fixed cut a segment belongs to the block in whose piece it begins, however far it goes. */
static inline AURA_ANYWHERE struct aura_cut aura_cut_at(uint32_t at, uint32_t end, uint32_t per, uint32_t start, uint32_t items,
                                                        uint32_t cost, uint32_t fixed)
{
    struct aura_cut c = {at - start, 0, items + cost - (at - start), 0, 0, at - start >= items};
    if (c.idle)
        return c;
    const uint32_t left = items - c.first, share = aura_cut_share(items), late = c.first % share;
    if (fixed) {
        c.n = left < share - late ? left : share - late;
        c.parts = (items + share - 1) / share;
        c.part = c.first / share;
        c.idle = late > 0;
    } else {
        c.n = left < end - at ? left : end - at;
        c.parts = (start + items - 1) / per - start / per + 1;
        c.part = at / per - start / per;
    }
    c.on = c.n < left ? c.n : c.on;
    return c;
}

#endif
