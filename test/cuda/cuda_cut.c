/* How an attention call on a device is cut, without one: the blocks of all sizes of grids, one after the other. Every visit is in
 * exactly one split, partial results have places of their own, and the nodes of a fixed cut lie at fixed tokens. */
#include "../../src/cuda/cut.h"

#include <stdlib.h>

#include "../../tool/parts/inputs.h"
#include "../test.h"

enum { UNITS = 60, VISITS = 5000, WARPS = 12 };

/* One unit of a call as its splits add up. */
struct seen {
    uint8_t visit[VISITS];
    uint32_t done, splits; /* those so far; those that there are to be */
};

static struct seen seen[UNITS];
static uint32_t most_splits; /* of one block, in the last call */
static uint8_t place[5000 + UNITS]; /* taken by a partial result; those of tasks are the numbers of tasks */

static void add_split(const struct aura_cut *c, uint32_t unit, uint32_t visits, uint32_t block)
{
    struct seen *g = &seen[unit];
    const uint32_t at = block + unit;
    EXPECT(c->n > 0 && c->first + c->n <= visits, "visits %u and %u more of %u", c->first, c->n, visits);
    EXPECT(c->which < c->splits, "split %u of %u", c->which, c->splits);
    EXPECT(!place[at], "two splits at place %u", at);
    EXPECT(g->done == 0 || g->splits == c->splits, "%u splits, and %u", g->splits, c->splits);
    place[at] = 1;
    g->done++;
    g->splits = c->splits;
    for (uint32_t i = c->first; i < c->first + c->n && i < visits; i++)
        g->visit[i]++;
}

/* Units of one length, block after block. Returns the most visits of one. least: of a split. */
static uint32_t run_even(uint32_t each, uint32_t units, uint32_t grid, struct aura_cut_even even, uint32_t least)
{
    const struct aura_divider by = aura_divider_of(even.splits);
    const uint32_t all = units * even.splits;
    uint32_t most = 0;
    EXPECT((uint64_t)even.run * grid >= all, "%u blocks of %u splits for %u", grid, even.run, all);
    for (uint32_t block = 0; block < grid; block++) {
        uint32_t done = 0, splits = 0;
        for (uint32_t at = block * even.run; at < all && at < (block + 1) * even.run; at++) {
            const uint32_t unit = aura_divide(at, by);
            const struct aura_cut c = aura_cut_even_at(at - unit * even.splits, each, even.splits, by, least);
            EXPECT(c.on == 1, "%u places on", c.on);
            if (!c.idle)
                add_split(&c, unit, each, block), done += c.n, splits++;
        }
        most = done > most ? done : most;
        most_splits = splits > most_splits ? splits : most_splits;
    }
    return most;
}

/* What the kernels do, block after block. Returns the most visits of one. fixed: they are tasks. */
static uint32_t run_call(const uint32_t *visits, uint32_t units, uint32_t grid, int fixed)
{
    uint32_t total = 0, most = 0, start[UNITS];
    most_splits = 0;
    memset(seen, 0, sizeof seen);
    memset(place, 0, sizeof place);
    for (uint32_t i = 0; i < units; i++)
        total += visits[i];
    uint32_t each = visits[0];
    for (uint32_t i = 0; i < units; i++)
        each = visits[i] == visits[0] ? each : 0;
    const struct aura_cut_even even = aura_cut_even_of(units, grid);
    if (each && even.splits)
        return run_even(each, units, grid, even, fixed ? (uint32_t)AURA_CUT_FEWEST : (uint32_t)WARPS);
    const struct aura_cut_plan plan = fixed ? aura_cut_tasks_plan_of(total, grid) : aura_cut_plan_of(total, units, grid, WARPS);
    const uint32_t cost = plan.cost, per = plan.per;
    total = 0;
    for (uint32_t i = 0; i < units; i++)
        start[i] = total, total += visits[i] + cost;
    EXPECT((uint64_t)per * grid >= total, "%u blocks of %u places for %u", grid, per, total);
    for (uint32_t block = 0; block < grid; block++) {
        const uint32_t end = block * per + per < total ? block * per + per : total;
        uint32_t done = 0, splits = 0;
        for (uint32_t at = block * per; at < end;) {
            uint32_t unit = units - 1;
            while (start[unit] > at)
                unit--;
            const struct aura_cut c = aura_cut_at(at, end, per, start[unit], visits[unit], cost);
            EXPECT(c.on > 0, "no way on");
            if (!c.idle)
                add_split(&c, unit, visits[unit], block), done += c.n, splits++;
            else
                EXPECT(c.first >= visits[unit], "an idle split begins at visit %u", c.first);
            at += c.on ? c.on : per;
        }
        most = done > most ? done : most;
        most_splits = splits > most_splits ? splits : most_splits;
    }
    return most;
}

static void check_call(const uint32_t *visits, uint32_t units)
{
    for (uint32_t i = 0; i < units; i++) {
        EXPECT(seen[i].done == seen[i].splits, "%u of %u splits", seen[i].done, seen[i].splits);
        for (uint32_t k = 0; k < visits[i]; k++)
            EXPECT(seen[i].visit[k] == 1, "visit %u of unit %u: %u times", k, i, seen[i].visit[k]);
    }
}

static void every_visit_once(void)
{
    uint64_t seed = 3;
    uint32_t visits[UNITS];
    for (int round = 0; round < 300 && !test_bad_lines; round++) {
        const uint32_t units = 1 + (uint32_t)pick(&seed, UNITS), grid = 1 + (uint32_t)pick(&seed, round % 2 ? 300 : 20);
        const int most = round % 3 == 0 ? 40 : round % 3 == 1 ? 600 : VISITS;
        for (uint32_t i = 0; i < units; i++)
            visits[i] = round % 5 && i ? visits[0] : 1 + (uint32_t)pick(&seed, most);
        for (int fixed = 0; fixed < 2; fixed++) {
            run_call(visits, units, grid, fixed);
            check_call(visits, units);
        }
    }
}

/* Nodes are where tokens say, whatever a unit begins with; every tile is in one; no call has more tasks than there is room for. */
static void nodes_lie_at_tokens(void)
{
    uint64_t seed = 4;
    for (int round = 0; round < 3000 && !test_bad_lines; round++) {
        const uint32_t first = (uint32_t)pick(&seed, 3000), tiles = 1 + (uint32_t)pick(&seed, round % 3 ? 90000 : 300);
        const uint32_t units = 1 + (uint32_t)pick(&seed, 3000), warps = 1 + (uint32_t)pick(&seed, 4000), rows = 4;
        const uint32_t share = aura_cut_share(units, warps), level = aura_cut_level(tiles, share);
        const uint32_t nodes = aura_cut_nodes(first, tiles, level), size = aura_cut_node(level);
        EXPECT(size == AURA_CUT_LEAF * (level == 0 ? 1u : level == 1 ? 4u : level == 2 ? 16u : 64u), "%u tiles", size);
        EXPECT(first / size * size <= first && (first / size + nodes) * size >= first + tiles &&
                   (first / size + nodes - 1) * size < first + tiles, "%u nodes of %u", nodes, size);
        EXPECT(level == AURA_CUT_LEVELS || tiles / size <= share, "level %u of %u tiles, %u tasks", level, tiles, share);
        EXPECT(level == 0 || tiles / aura_cut_node(level - 1) > share, "level %u of %u tiles is too high", level, tiles);
        const uint64_t most = aura_cut_most_tasks(units, warps, tiles, rows);
        EXPECT((uint64_t)units * (nodes + rows) <= most, "%u units of %u tasks", units, nodes);
        EXPECT(most <= aura_cut_most_tasks(units + 1, warps, tiles, rows), "less room for more units");
    }
}

/* Tiles of the warp that has most, of tasks of `size` tiles that a block has side by side. */
static uint32_t longest_warp(uint32_t tasks, uint32_t size, uint32_t warps)
{
    return (tasks + warps - 1) / warps * size;
}

/* What a fixed cut costs, by counts, where 132 multiprocessors have a block of 12 warps each: the tiles of the block that has most,
 * and of its longest warp; and bytes of partials, written and read, beside those of tiles, if a warp joined nothing (k4v4,
 * D 128, four rows). */
static void fixed_cut_is_fair(void)
{
    static const struct {
        uint32_t seqs, tiles, block, warp;
        double bytes;
    } cases[] = {{1, 256, 16, 4, 0.25}, {1, 1024, 64, 8, 0.25}, {1, 4096, 256, 24, 0.25}, {8, 1024, 512, 48, 0.07},
                 {32, 256, 512, 64, 0.07}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const uint32_t units = 8 * cases[i].seqs, level = aura_cut_level(cases[i].tiles, aura_cut_share(units, 132 * 12));
        const uint32_t nodes = aura_cut_nodes(0, cases[i].tiles, level), size = aura_cut_node(level);
        const struct aura_cut_even even = aura_cut_even_of(units, 132);
        const struct aura_cut c = aura_cut_even_at(0, nodes, even.splits, aura_divider_of(even.splits), AURA_CUT_FEWEST);
        const uint32_t block = even.run * c.n * size, warp = even.run * longest_warp(c.n, size, 12);
        const double bytes = 2.0 * nodes * 4 * (128 + 2) * 4 / (cases[i].tiles * 4224.0);
        EXPECT(block <= cases[i].block, "%u x %u tiles: %u of a block", cases[i].seqs, cases[i].tiles, block);
        EXPECT(warp <= cases[i].warp, "%u x %u tiles: %u of a warp", cases[i].seqs, cases[i].tiles, warp);
        EXPECT(bytes <= cases[i].bytes, "%u x %u tiles: partials are %.3f of the bytes", cases[i].seqs, cases[i].tiles, bytes);
    }
}

static void a_product_divides(void)
{
    uint64_t seed = 6;
    for (int i = 0; i < 200000 && !test_bad_lines; i++) {
        const uint32_t d = 1 + (uint32_t)(random_bits(&seed) >> (32 + pick(&seed, 32)));
        uint32_t x = (uint32_t)(random_bits(&seed) >> (33 + pick(&seed, 31)));
        x = i % 3 ? x : x / d * d - (i % 2 && x >= d); /* where quotients change */
        if (d < 1u << 31)
            EXPECT(aura_divide(x, aura_divider_of(d)) == x / d, "%u / %u = %u", x, d, aura_divide(x, aura_divider_of(d)));
    }
}

/* Units of one length are cut where pieces end: no block has a second split for the rest of a unit. */
static void equal_units_are_cut_at_pieces(void)
{
    static const struct {
        uint32_t units, visits, grid, splits;
    } cases[] = {{8, 258, 132, 1}, {8, 1027, 264, 1}, {44, 1027, 132, 1}, {60, 300, 132, 1}, {60, 7, 132, 1}, {60, 300, 30, 2},
                 {60, 300, 31, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t visits[UNITS];
        for (uint32_t g = 0; g < UNITS; g++)
            visits[g] = cases[i].visits;
        const uint32_t most = run_call(visits, cases[i].units, cases[i].grid, 0);
        check_call(visits, cases[i].units);
        const uint32_t shares = cases[i].grid > cases[i].units ? cases[i].grid / cases[i].units : 1;
        const uint32_t fair = (cases[i].visits + shares - 1) / shares * cases[i].splits, least = 2 * WARPS - 1;
        EXPECT(most <= (fair > least ? fair : least), "%u units, %u blocks: %u visits in one", cases[i].units, cases[i].grid, most);
        EXPECT(most_splits == cases[i].splits, "%u units, %u blocks: %u splits in one", cases[i].units, cases[i].grid, most_splits);
    }
}

int main(void)
{
    RUN(a_product_divides);
    RUN(every_visit_once);
    RUN(equal_units_are_cut_at_pieces);
    RUN(nodes_lie_at_tokens);
    RUN(fixed_cut_is_fair);
    return test_result();
}
