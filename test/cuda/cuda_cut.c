/* How an attention call on a device is cut, without one: the blocks of all sizes of grids, one after the other. Every item is in
 * exactly one segment, partial results have places of their own, and a fixed cut is that of the length alone. */
#include "../../src/cuda/cut.h"

#include <stdlib.h>

#include "../../tool/parts/inputs.h"
#include "../test.h"

enum { GROUPS = 60, ITEMS = 5000, WARPS = 12 };

/* One group of a call as its segments add up. */
struct seen {
    uint8_t item[ITEMS];
    uint32_t segments, parts;
    uint32_t first[AURA_CUT_PARTS], n[AURA_CUT_PARTS]; /* of a fixed cut */
};

static struct seen seen[GROUPS];
static uint32_t most_segments; /* of one block, in the last call */
static uint8_t place[GROUPS * AURA_CUT_PARTS + 5000]; /* taken by a partial result */

static void add_segment(const struct aura_cut *c, uint32_t group, uint32_t items, uint32_t block, int fixed)
{
    struct seen *g = &seen[group];
    const uint32_t at = fixed ? group * AURA_CUT_PARTS + c->part : block + group;
    EXPECT(c->n > 0 && c->first + c->n <= items, "items %u and %u more of %u", c->first, c->n, items);
    EXPECT(c->part < c->parts, "part %u of %u", c->part, c->parts);
    EXPECT(!place[at], "two segments at place %u", at);
    EXPECT(g->segments == 0 || g->parts == c->parts, "%u parts, and %u", g->parts, c->parts);
    place[at] = 1;
    g->segments++;
    g->parts = c->parts;
    for (uint32_t i = c->first; i < c->first + c->n && i < items; i++)
        g->item[i]++;
    if (fixed && c->part < AURA_CUT_PARTS)
        g->first[c->part] = c->first, g->n[c->part] = c->n;
}

/* Groups of one length, block after block. Returns the most items of one. */
static uint32_t run_even(uint32_t each, uint32_t groups, uint32_t grid, struct aura_cut_even even)
{
    const struct aura_divider by = aura_divider_of(even.parts);
    const uint32_t all = groups * even.parts;
    uint32_t most = 0;
    EXPECT((uint64_t)even.run * grid >= all, "%u blocks of %u parts for %u", grid, even.run, all);
    for (uint32_t block = 0; block < grid; block++) {
        uint32_t done = 0, segments = 0;
        for (uint32_t at = block * even.run; at < all && at < (block + 1) * even.run; at++) {
            const uint32_t group = aura_divide(at, by);
            const struct aura_cut c = aura_cut_even_at(at - group * even.parts, each, even.parts, by, WARPS);
            EXPECT(c.on == 1, "%u places on", c.on);
            if (!c.idle)
                add_segment(&c, group, each, block, 0), done += c.n, segments++;
        }
        most = done > most ? done : most;
        most_segments = segments > most_segments ? segments : most_segments;
    }
    return most;
}

/* What the kernels do, block after block. Returns the most items of one. */
static uint32_t run_call(const uint32_t *items, uint32_t groups, uint32_t grid, int fixed)
{
    uint32_t total = 0, most = 0, start[GROUPS];
    most_segments = 0;
    memset(seen, 0, sizeof seen);
    memset(place, 0, sizeof place);
    for (uint32_t i = 0; i < groups; i++)
        total += items[i];
    uint32_t each = items[0];
    for (uint32_t i = 0; i < groups; i++)
        each = items[i] == items[0] ? each : 0;
    const struct aura_cut_even even = aura_cut_even_of(groups, grid);
    if (each && even.parts && !fixed)
        return run_even(each, groups, grid, even);
    const struct aura_cut_plan plan = aura_cut_plan_of(total, groups, grid, WARPS);
    const uint32_t cost = plan.cost, per = plan.per;
    total = 0;
    for (uint32_t i = 0; i < groups; i++)
        start[i] = total, total += items[i] + cost;
    EXPECT((uint64_t)per * grid >= total, "%u blocks of %u places for %u", grid, per, total);
    for (uint32_t block = 0; block < grid; block++) {
        const uint32_t end = block * per + per < total ? block * per + per : total;
        uint32_t done = 0, segments = 0;
        for (uint32_t at = block * per; at < end;) {
            uint32_t group = groups - 1;
            while (start[group] > at)
                group--;
            const struct aura_cut c = aura_cut_at(at, end, per, start[group], items[group], cost, (uint32_t)fixed);
            EXPECT(c.on > 0, "no way on");
            if (!c.idle)
                add_segment(&c, group, items[group], block, fixed), done += c.n, segments++;
            else
                EXPECT(fixed || c.first >= items[group], "an idle segment begins at item %u", c.first);
            at += c.on ? c.on : per;
        }
        most = done > most ? done : most;
        most_segments = segments > most_segments ? segments : most_segments;
    }
    return most;
}

static void check_call(const uint32_t *items, uint32_t groups)
{
    for (uint32_t i = 0; i < groups; i++) {
        EXPECT(seen[i].segments == seen[i].parts, "%u of %u parts", seen[i].segments, seen[i].parts);
        for (uint32_t k = 0; k < items[i]; k++)
            EXPECT(seen[i].item[k] == 1, "item %u of group %u: %u times", k, i, seen[i].item[k]);
    }
}

static void every_item_once(void)
{
    uint64_t seed = 3;
    uint32_t items[GROUPS];
    for (int round = 0; round < 300 && !test_bad_lines; round++) {
        const uint32_t groups = 1 + (uint32_t)pick(&seed, GROUPS), grid = 1 + (uint32_t)pick(&seed, round % 2 ? 300 : 20);
        const int most = round % 3 == 0 ? 40 : round % 3 == 1 ? 600 : ITEMS;
        for (uint32_t i = 0; i < groups; i++)
            items[i] = round % 5 && i ? items[0] : 1 + (uint32_t)pick(&seed, most);
        for (int fixed = 0; fixed < 2; fixed++) {
            run_call(items, groups, grid, fixed);
            check_call(items, groups);
        }
    }
}

/* Alone, on any grid, or anywhere in a batch: the same segments. */
static void fixed_cut_is_of_the_length(void)
{
    uint64_t seed = 4;
    uint32_t items[GROUPS];
    for (int round = 0; round < 200 && !test_bad_lines; round++) {
        const uint32_t mine = 1 + (uint32_t)pick(&seed, round % 2 ? 300 : ITEMS), at = (uint32_t)pick(&seed, GROUPS);
        struct seen alone;
        run_call(&mine, 1, 1 + (uint32_t)pick(&seed, 200), 1);
        alone = seen[0];
        EXPECT(alone.parts <= AURA_CUT_PARTS, "%u parts", alone.parts);
        for (uint32_t i = 0; i < GROUPS; i++)
            items[i] = i == at ? mine : 1 + (uint32_t)pick(&seed, 900);
        run_call(items, GROUPS, 1 + (uint32_t)pick(&seed, 200), 1);
        EXPECT(!memcmp(&alone, &seen[at], sizeof alone), "%u items are cut otherwise at place %u", mine, at);
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

/* Groups of one length are cut where pieces end: no block has a second segment for the rest of a group. */
static void equal_groups_are_cut_at_pieces(void)
{
    static const struct {
        uint32_t groups, items, grid, segments;
    } cases[] = {{8, 258, 132, 1}, {8, 1027, 264, 1}, {44, 1027, 132, 1}, {60, 300, 132, 1},
                 {60, 7, 132, 1},  {60, 300, 30, 2},  {60, 300, 31, 2}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t items[GROUPS];
        for (uint32_t g = 0; g < GROUPS; g++)
            items[g] = cases[i].items;
        const uint32_t most = run_call(items, cases[i].groups, cases[i].grid, 0);
        check_call(items, cases[i].groups);
        const uint32_t shares = cases[i].grid > cases[i].groups ? cases[i].grid / cases[i].groups : 1;
        const uint32_t fair = (cases[i].items + shares - 1) / shares * cases[i].segments, least = 2 * WARPS - 1;
        EXPECT(most <= (fair > least ? fair : least), "%u groups, %u blocks: %u items in one", cases[i].groups, cases[i].grid,
               most);
        EXPECT(most_segments == cases[i].segments, "%u groups, %u blocks: %u segments in one", cases[i].groups, cases[i].grid,
               most_segments);
    }
}

/* No block has more than its share and one segment besides. */
static void fixed_cut_is_fair(void)
{
    uint32_t items[GROUPS], total = 0, longest = 0;
    uint64_t seed = 5;
    for (uint32_t i = 0; i < GROUPS; i++) {
        items[i] = 1 + (uint32_t)pick(&seed, ITEMS);
        total += items[i];
        longest = items[i] > longest ? items[i] : longest;
    }
    const uint32_t most = run_call(items, GROUPS, 132, 1), share = (total + 131) / 132;
    EXPECT(most <= share + aura_cut_share(longest), "%u items in a block; a share is %u", most, share);
}

int main(void)
{
    RUN(a_product_divides);
    RUN(every_item_once);
    RUN(equal_groups_are_cut_at_pieces);
    RUN(fixed_cut_is_of_the_length);
    RUN(fixed_cut_is_fair);
    return test_result();
}
