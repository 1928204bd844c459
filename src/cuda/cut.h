/* How an attention call is cut. Unit and split are the words of src/cache/attend.h; visit is the device's own:
 *
 *     unit    a KV head of a sequence and a block of its rows
 *     visit   the tokens of one tile that are stored in the same way: as codes, open, or pinned. A warp takes a visit at a time.
 *     split   some visits of a unit, one after the other, by one block of threads. Its result is a partial.
 *
 * Units that all have the same number of visits are cut evenly. Otherwise the visits of all units are entries of one flat list,
 * and every block of threads has a piece of it: `per` entries side by side. With a fixed cut, entries are tasks. Plain
 * arithmetic, for kernels and for a test without a device. */
#ifndef AURA_CUDA_CUT_H
#define AURA_CUDA_CUT_H

#include "../format.h"

/* A fixed cut: what a row becomes depends on the tokens that it sees, and on how they are stored, alone. The tiles of a
 * sequence are those of a tree, whose nodes lie at fixed tokens:
 *
 *     leaf    AURA_CUT_LEAF tiles at a multiple of so many: one warp, from nothing
 *     node    of level k: AURA_CUT_FAN of level k - 1, joined in their order; a leaf is one of level 0
 *     row     what is pinned, nodes of level AURA_CUT_LEVELS, tiles that are open, joined in their order
 *
 * A task is a node, or a visit of f16 rows, and is done by one warp, which leaves a partial. Of which level a unit's tasks are
 * is free, as whoever comes last joins what is left: a small call has tasks of leaves, for many warps; a large one larger
 * tasks, and fewer partials. A node of which a row sees nothing changes no bit of it. */
enum { AURA_CUT_LEAF = 4, AURA_CUT_FAN = 4, AURA_CUT_LEVELS = 3 };

/* Tasks that a call has for each warp of the grid, at most, but for what each unit has at its ends and in f16 rows; and the fewest
 * that a block has. */
enum { AURA_CUT_TASKS = 6, AURA_CUT_FEWEST = 4 };

/* Tiles of a node. */
static inline AURA_ANYWHERE uint32_t aura_cut_node(uint32_t level)
{
    return (uint32_t)AURA_CUT_LEAF << 2 * level;
}

/* Nodes that tiles [first, first + n) are of. */
static inline AURA_ANYWHERE uint32_t aura_cut_nodes(uint32_t first, uint32_t n, uint32_t level)
{
    const uint32_t node = aura_cut_node(level);
    return n ? (first + n - 1) / node - first / node + 1 : 0;
}

/* The level of the tasks of a unit of so many tiles; share: tasks that the call has for each unit. */
static inline AURA_ANYWHERE uint32_t aura_cut_level(uint32_t tiles, uint32_t share)
{
    uint32_t level = 0;
    while (level < AURA_CUT_LEVELS && tiles / aura_cut_node(level) > share)
        level++;
    return level;
}

static inline uint32_t aura_cut_share(uint64_t units, uint64_t warps)
{
    const uint64_t share = AURA_CUT_TASKS * warps / units;
    return share ? (uint32_t)share : 1;
}

/* The most tasks of a call of up to so many units, of up to so many tiles and visits of f16 rows each. */
static inline uint64_t aura_cut_most_tasks(uint64_t units, uint64_t warps, uint64_t tiles, uint64_t rows)
{
    const uint64_t all = units * (tiles / AURA_CUT_LEAF), most = AURA_CUT_TASKS * warps;
    return (all < most ? all : most) + units * (tiles / aura_cut_node(AURA_CUT_LEVELS) + 3 + rows);
}

struct aura_cut {
    uint32_t first, n;      /* visits of the unit */
    uint32_t on;            /* entries of the list to the next split of this block */
    uint32_t splits, which; /* splits of the unit, and the number of this one */
    /* 1: there is nothing to do: the entries are no visits */
    uint32_t idle;
};

/* x / d for x below 2^31, by a product. A division is about 30 instructions that wait for each other, at the beginning of a
 * kernel, where there is nothing else to do meanwhile. */
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

/* A second split costs a block about 10 us: it prepares the queries and merges the results again (H200: 18 000 cycles). So
 * units of one length are cut into `splits` each, as equal as possible, and a block takes `run` of them: one split, or some
 * whole units. splits 0: such a cut would leave more than a tenth of the blocks idle. */
struct aura_cut_even {
    uint32_t splits, run;
};

static inline struct aura_cut_even aura_cut_even_of(uint32_t units, uint32_t blocks)
{
    struct aura_cut_even e = {0, 0};
    const uint32_t splits = blocks / units, run = (units + blocks - 1) / blocks;
    if (splits && 10 * (uint64_t)splits * units >= 9 * (uint64_t)blocks)
        e.splits = splits, e.run = 1;
    else if (!splits && 10 * (uint64_t)units >= 9 * (uint64_t)run * blocks)
        e.splits = 1, e.run = run;
    return e;
}

/* Split `which` of a unit of `visits`. The unit has `most` splits, or fewer, so that none is shorter than `least`. */
static inline AURA_ANYWHERE struct aura_cut aura_cut_even_at(uint32_t which, uint32_t visits, uint32_t most,
                                                             struct aura_divider by_most, uint32_t least)
{
    const uint32_t wanted = visits / least, splits = wanted >= most ? most : wanted ? wanted : 1;
    const uint32_t each = splits == most ? aura_divide(visits, by_most) : visits / splits, rest = visits - each * splits;
    const struct aura_cut c = {which * each + (which < rest ? which : rest), each + (which < rest), 1, splits, which,
                               which >= splits};
    return c;
}

/* The flat list: entries of a piece, and entries that a unit has after its visits. */
struct aura_cut_plan {
    uint32_t per, cost;
};

/* All pieces are equally long. A unit costs something besides its visits, so it has `cost` entries more, and a block that has
 * many short units gets fewer of them. Where pieces are short, these entries would only make them uneven: cost is 0 there. */
static inline AURA_ANYWHERE struct aura_cut_plan aura_cut_plan_of(uint32_t visits, uint32_t units, uint32_t blocks, uint32_t least)
{
    struct aura_cut_plan p;
    p.cost = visits / blocks / 8;
    p.cost = p.cost < 64 ? p.cost : 64;
    const uint32_t entries = visits + units * p.cost;
    p.per = (entries + blocks - 1) / blocks;
    p.per = p.per > least ? p.per : least;
    return p;
}

/* With a fixed cut, whose entries are tasks. */
static inline AURA_ANYWHERE struct aura_cut_plan aura_cut_tasks_plan_of(uint32_t tasks, uint32_t blocks)
{
    const uint32_t per = (tasks + blocks - 1) / blocks;
    const struct aura_cut_plan p = {per > AURA_CUT_FEWEST ? per : (uint32_t)AURA_CUT_FEWEST, 0};
    return p;
}

/* The split at entry `at` of the flat list. Its unit begins at entry `start` and has `visits` entries, then `cost` more; the
 * piece of the block ends at `end`. */
static inline AURA_ANYWHERE struct aura_cut aura_cut_at(uint32_t at, uint32_t end, uint32_t per, uint32_t start, uint32_t visits,
                                                        uint32_t cost)
{
    struct aura_cut c = {at - start, 0, visits + cost - (at - start), 0, 0, at - start >= visits};
    if (c.idle)
        return c;
    const uint32_t left = visits - c.first;
    c.n = left < end - at ? left : end - at;
    c.splits = (start + visits - 1) / per - start / per + 1;
    c.which = at / per - start / per;
    c.on = c.n < left ? c.n : c.on;
    return c;
}

#endif
