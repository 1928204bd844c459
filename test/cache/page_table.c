/* Pages of a device that is not there: sequences that share them, beside sequences that are plain arrays. The fake device does
 * what the kernels do, as far as it concerns pages: tokens are rows of their sequence until they close, and in pages then. */
#include "../../src/cache/page_table.h"

#include <stdlib.h>

#include "../../tool/parts/inputs.h"
#include "../test.h"

enum { SEQS = 6, PAGES = 40, SEQ_PAGES = 12, ROLLBACK = 16, LONGEST = SEQ_PAGES * AURA_PAGE };

/* struct dev_seq, its rows, and beside it what it should hold. */
struct fake_seq {
    uint32_t len, closed, own, reserved, top;
    uint32_t row[64];
    uint32_t page[SEQ_PAGES]; /* the device's copy of the list */
    uint32_t want[LONGEST], want_len;
};

static struct aura_page_table table;
static struct fake_seq seqs[SEQS];
static uint32_t memory[PAGES][AURA_PAGE];
static int plain; /* 1: tokens go to pages at once */
static struct aura_page_window window; /* all zeros: none */
static uint32_t next_token;
static size_t refused, appended, copied;

static uint32_t first_write(const struct fake_seq *s)
{
    return plain ? s->len : s->closed;
}

static uint32_t top_of(const struct fake_seq *s)
{
    return s->top > s->len ? s->top : s->len;
}

/* The first page, after the kept ones, that it still has. */
static size_t first_of(const struct fake_seq *s)
{
    return aura_window_first(&window, top_of(s));
}

static void set_limits(uint32_t i)
{
    size_t begin, end;
    aura_page_table_own(&table, i, first_write(&seqs[i]) / AURA_PAGE, &begin, &end);
    seqs[i].own = (uint32_t)begin * AURA_PAGE;
    seqs[i].reserved = (uint32_t)end * AURA_PAGE;
}

static size_t shared(uint32_t i)
{
    return aura_list_shared(&table.window, &table.seq[i]);
}

/* ---- the device ----------------------------------------------------------------------------------------------------- */

/* 0: refused. */
static int append(uint32_t i, uint32_t tokens)
{
    struct fake_seq *s = &seqs[i];
    if (!aura_page_table_may_append(s->own, s->reserved, first_write(s), s->len, tokens))
        return 0;
    for (uint32_t n = 0; n < tokens; n++) {
        const uint32_t token = next_token++, at = s->len++;
        s->want[s->want_len++] = token;
        if (plain) {
            memory[s->page[at / AURA_PAGE]][at % AURA_PAGE] = token;
            continue;
        }
        s->row[at % 64] = token;
        for (const uint32_t end = s->len < ROLLBACK ? 0 : (s->len - ROLLBACK) / AURA_TILE * AURA_TILE; s->closed < end; s->closed++)
            memory[s->page[s->closed / AURA_PAGE]][s->closed % AURA_PAGE] = s->row[s->closed % 64];
    }
    return 1;
}

/* On the stream: the host does not know of it. */
static void truncate_there(uint32_t i, uint32_t tokens)
{
    struct fake_seq *s = &seqs[i];
    if (!aura_window_may_cut(&window, first_of(s), tokens))
        return;
    s->top = aura_window_begins_anew(&window, tokens) ? tokens : top_of(s);
    s->len = s->len < tokens ? s->len : tokens;
    s->closed = s->closed < tokens ? s->closed : tokens;
    s->want_len = s->len;
}

/* ---- the host, as seq.cu has it ------------------------------------------------------------------------------------- */

static aura_status reserve(uint32_t i, uint32_t tokens, int fails)
{
    struct aura_page_change c;
    struct fake_seq *s = &seqs[i];
    size_t taken;
    aura_page_table_slide(&table, i, top_of(s));
    set_limits(i);
    const size_t free_before = table.pool.n_free;
    aura_status status = aura_page_table_begin(&table, i, first_write(s) / AURA_PAGE, aura_pages_of(tokens), &c, &taken);
    EXPECT(taken > free_before ? status == AURA_OUT_OF_PAGES : !status && table.pool.n_free == free_before - taken,
           "%zu taken", taken);
    if (status)
        return status;
    if (fails) { /* something went wrong on the device */
        aura_page_table_undo(&table, i, &c);
        return AURA_DEVICE;
    }
    for (size_t p = c.own; p < c.own_end && p < aura_pages_of(s->len); p = aura_window_next(&table.window, c.first, p)) {
        const struct aura_page *from = aura_page_replaced(&table.window, &table.seq[i], p);
        if (from)
            memcpy(memory[aura_page_table_number(&table, i, p)], memory[from - table.page], sizeof memory[0]), copied++;
    }
    for (size_t p = c.own; p < c.end; p++)
        s->page[p] = aura_page_table_number(&table, i, p);
    aura_page_table_commit(&table, i, &c);
    set_limits(i);
    return AURA_OK;
}

static int create(uint32_t *made)
{
    *made = aura_page_table_place(&table);
    if (*made == AURA_NO_PAGE)
        return 0;
    memset(&seqs[*made], 0, sizeof seqs[*made]);
    table.used[*made] = 1;
    return 1;
}

static void fork_seq(uint32_t from, uint32_t tokens)
{
    uint32_t made = aura_page_table_place(&table);
    if (made == AURA_NO_PAGE || !aura_window_may_cut(&window, first_of(&seqs[from]), tokens))
        return;
    struct fake_seq *s = &seqs[made];
    aura_page_table_slide(&table, from, top_of(&seqs[from]));
    if (window.span)
        aura_page_table_cut(&table, from, aura_pages_of(seqs[from].len));
    EXPECT(!aura_page_table_share(&table, from, aura_pages_of(tokens), made), "no memory");
    *s = seqs[from];
    s->top = aura_window_begins_anew(&window, tokens) ? tokens : top_of(s);
    s->len = s->want_len = tokens;
    s->closed = s->closed < tokens ? s->closed : tokens;
    table.used[made] = 1;
    set_limits(from);
    set_limits(made);
}

static void truncate_here(uint32_t i, uint32_t tokens)
{
    truncate_there(i, tokens);
    aura_page_table_slide(&table, i, top_of(&seqs[i]));
    aura_page_table_cut(&table, i, aura_pages_of(seqs[i].len));
    set_limits(i);
}

static void release(uint32_t i)
{
    aura_page_table_cut(&table, i, 0);
    table.used[i] = 0;
}

/* ---- are they what they should be? ------------------------------------------------------------------------------------ */

/* By the host's list; the fake device goes by tokens. */
static int has_page(uint32_t i, uint32_t p)
{
    return aura_window_has_page(&table.window, table.seq[i].first, p);
}

static void check_seq(uint32_t i)
{
    const struct fake_seq *s = &seqs[i];
    EXPECT(s->len == s->want_len, "sequence %u has %u tokens, not %u", i, s->len, s->want_len);
    for (uint32_t t = 0; t < s->len; t++) {
        if (!aura_window_has(&window, first_of(s), t, t + 1))
            continue;
        const uint32_t got = plain || t < s->closed ? memory[s->page[t / AURA_PAGE]][t % AURA_PAGE] : s->row[t % 64];
        EXPECT(got == s->want[t], "sequence %u, token %u", i, t);
    }
    EXPECT(aura_window_may_cut(&window, first_of(s), s->len), "sequence %u: tokens of its window are gone", i);
    for (uint32_t p = 0; p < table.seq[i].end; p++)
        if (has_page(i, p))
            EXPECT(aura_page_table_number(&table, i, p) == s->page[p], "sequence %u, page %u: the device has another", i, p);
}

/* Whether entry p of a list is there, and none of its older entries the same page. */
static uint32_t is_new_page(uint32_t i, uint32_t p)
{
    uint32_t is_new = (uint32_t)has_page(i, p);
    for (uint32_t older = 0; window.span && older < p; older++)
        is_new &= !(has_page(i, older) && aura_page_table_number(&table, i, older) == aura_page_table_number(&table, i, p));
    return is_new;
}

static void check_table(void)
{
    uint32_t holders[PAGES] = {0}, in_use = 0, n_free = 0, in_several = 0, all = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        uint32_t count = 0;
        EXPECT(table.used[i] || !table.seq[i].end, "pages of no sequence");
        for (uint32_t p = 0; p < table.seq[i].end; p++) {
            holders[aura_page_table_number(&table, i, p)] += is_new_page(i, p);
            count += is_new_page(i, p);
        }
        EXPECT(aura_list_count(&table.window, &table.seq[i]) == count, "sequence %u: not %u pages", i, count);
        if (table.used[i])
            check_seq(i);
    }
    for (uint32_t p = 0; p < PAGES; p++) {
        EXPECT(holders[p] == table.page[p].holders, "page %u: %u holders, %u counted", p, holders[p], table.page[p].holders);
        EXPECT(!table.page[p].leaving && (!holders[p] || !table.page[p].next), "page %u: a change is under way", p);
        in_use += holders[p] > 0;
        in_several += holders[p] > 1;
        all += holders[p];
    }
    EXPECT(in_use + table.pool.n_free == PAGES, "%u pages in use, %zu free", in_use, table.pool.n_free);
    EXPECT(in_several == table.pool.shared && all == table.pool.holders, "%zu shared, %zu holders", table.pool.shared,
           table.pool.holders);
    for (const struct aura_page *page = table.pool.free; page && n_free <= PAGES; page = page->next, n_free++)
        EXPECT(!holders[page - table.page], "page %zu is free and in use", (size_t)(page - table.page));
    EXPECT(n_free == table.pool.n_free, "%u pages are free, not %zu", n_free, table.pool.n_free);
}

/* ---- tests ------------------------------------------------------------------------------------------------------------ */

static void start(int with_plain)
{
    plain = with_plain;
    memset(memory, 0xff, sizeof memory);
    EXPECT(!aura_page_table_make(&table, SEQS, PAGES, &window), "no memory");
}

static void step(uint64_t *seed)
{
    const uint32_t i = (uint32_t)pick(seed, SEQS);
    uint32_t made;
    if (!table.used[i]) {
        create(&made);
        return;
    }
    struct fake_seq *s = &seqs[i];
    const uint32_t cut = (uint32_t)pick(seed, pick(seed, 2) ? (int)s->len + 1 : s->len < 40 ? (int)s->len + 1 : 40);
    switch (pick(seed, 12)) {
    case 0: fork_seq(i, s->len - (pick(seed, 2) ? 0 : cut)); break;
    case 1: truncate_here(i, s->len - cut); break;
    case 2: truncate_there(i, s->len - cut); break;
    case 3:
        if (pick(seed, 4) == 0)
            release(i);
        break;
    case 4: case 5: case 6: {
        const uint32_t tokens = s->len + (uint32_t)pick(seed, 400);
        const size_t free_before = table.pool.n_free;
        const aura_status status = tokens > LONGEST ? AURA_TOO_LARGE : reserve(i, tokens, pick(seed, 5) == 0);
        EXPECT(!status || table.pool.n_free == free_before || (window.span && table.pool.n_free > free_before),
               "a reservation failed and kept pages");
        EXPECT(status || s->len >= tokens || aura_page_table_may_append(s->own, s->reserved, first_write(s), s->len,
                                                                        tokens - s->len),
               "reserved, but not to be written to");
        break;
    }
    default:
        if (append(i, 1 + (uint32_t)pick(seed, 90)))
            appended++;
        else
            refused++;
    }
}

static void walk_with(uint64_t seed, int with_plain)
{
    refused = appended = copied = 0;
    start(with_plain);
    for (int n = 0; n < 20000 && !test_bad_lines; n++) {
        step(&seed);
        check_table();
    }
    EXPECT(appended > 2000 && refused > 1000 && copied > 60, "%zu appends, %zu refused, %zu copies", appended, refused, copied);
    aura_page_table_unmake(&table);
}

static void walk(void)
{
    walk_with(11, 0);
    walk_with(12, 1);
}

/* A window of so many tokens; pages stay for 90 more. */
static void set_window(uint32_t tokens, uint32_t kept)
{
    window.tokens = tokens;
    window.span = tokens + 90;
    window.kept = kept;
}

static void walk_in_windows(void)
{
    static const uint32_t tokens[] = {1, 166, 300, 1500};
    for (uint32_t i = 0; i < 8; i++) {
        set_window(tokens[i / 2], i % 2);
        walk_with(13 + i, i / 2 % 2);
    }
    memset(&window, 0, sizeof window);
}

/* A sequence goes on for as long as it likes in the pages that it got at the start; others take no more of them than they need. */
static void ring(void)
{
    uint32_t a;
    set_window(300, 0);
    start(0);
    create(&a);
    EXPECT(!reserve(a, LONGEST, 0) && table.pool.n_free == PAGES - 3, "%zu pages", PAGES - table.pool.n_free);
    while (seqs[a].len + 90 <= LONGEST) {
        EXPECT(append(a, 90), "at token %u", seqs[a].len);
        check_table();
    }
    EXPECT(aura_list_count(&table.window, &table.seq[a]) == 3, "%zu pages", aura_list_count(&table.window, &table.seq[a]));
    truncate_there(a, seqs[a].len - 90);
    truncate_there(a, 2000); /* gone */
    EXPECT(seqs[a].len > 2000, "cut to tokens that are gone");
    fork_seq(a, seqs[a].len);
    EXPECT(!append(a, 1) && !append(1, 1), "into pages that are shared");
    EXPECT(!reserve(1, seqs[1].len + 90, 0) && append(1, 90), "the fork");
    check_table();
    truncate_there(a, 0);
    EXPECT(!append(a, 1) && !reserve(a, 600, 0) && append(a, 90), "it begins again");
    check_table();
    release(a), release(1);
    EXPECT(table.pool.n_free == PAGES, "%zu pages are free", table.pool.n_free);
    aura_page_table_unmake(&table);
    memset(&window, 0, sizeof window);
}

/* A fork must reserve before it appends, and so must its parent; afterwards neither sees the other's tokens. */
static void fork_and_write(void)
{
    uint32_t parent;
    start(0);
    create(&parent);
    EXPECT(!reserve(parent, 900, 0) && append(parent, 700), "700 tokens");
    fork_seq(parent, 700);
    EXPECT(shared(parent) == 3 && table.seq[1].end == 3, "%zu shared",
           shared(parent));
    EXPECT(!append(parent, 1) && !append(1, 1), "into pages that are shared");
    EXPECT(!reserve(1, 800, 0) && append(1, 100), "the fork");
    EXPECT(shared(1) == 2 && copied > 0, "two pages stay shared");
    EXPECT(!append(parent, 1) && !reserve(parent, 0, 0) && append(parent, 60), "the last page is the parent's alone again");
    check_table();
    truncate_there(1, 300); /* into a page that is shared; the device must refuse by itself */
    EXPECT(!append(1, 1), "into a shared page after a truncation");
    EXPECT(!reserve(1, 320, 0) && append(1, 20), "with a copy of it");
    check_table();
    release(parent);
    check_table();
    release(1);
    EXPECT(table.pool.n_free == PAGES, "%zu pages are free", table.pool.n_free);
    aura_page_table_unmake(&table);
}

static void all_or_nothing(void)
{
    uint32_t a;
    start(0);
    create(&a);
    EXPECT(reserve(a, PAGES * AURA_PAGE + 1, 0) == AURA_OUT_OF_PAGES && table.pool.n_free == PAGES, "too many pages");
    EXPECT(!reserve(a, SEQ_PAGES * AURA_PAGE, 0) && table.pool.n_free == PAGES - SEQ_PAGES, "as many as a sequence has");
    EXPECT(!reserve(a, 1, 0) && table.pool.n_free == PAGES - SEQ_PAGES, "less than it has changes nothing");
    EXPECT(aura_page_table_number(&table, a, 0) == 0 && aura_page_table_number(&table, a, 5) == 5, "pages in their order");
    aura_page_table_unmake(&table);
}

/* A list that is made page by page: new ones, one that another sequence has, one twice. */
static void page_by_page(void)
{
    uint32_t a, b, page = AURA_NO_PAGE, other = AURA_NO_PAGE, none = AURA_NO_PAGE;
    start(0);
    create(&a), create(&b);
    EXPECT(!aura_page_table_add(&table, a, 0, &page) && !aura_page_table_add(&table, b, 0, &page) &&
           !aura_page_table_add(&table, b, 1, &other) &&
           !aura_page_table_add(&table, b, 2, &other), "no memory");
    EXPECT(table.page[page].holders == 2 && table.page[other].holders == 2 && table.pool.n_free == PAGES - 2, "holders");
    EXPECT(shared(a) == 1 && shared(b) == 3, "shared pages");
    EXPECT(!reserve(a, 3 * AURA_PAGE, 0) && table.page[page].holders == 1, "a has pages of its own");
    for (; table.pool.n_free; none = AURA_NO_PAGE)
        EXPECT(!aura_page_table_add(&table, b, table.seq[b].end, &none), "no memory");
    EXPECT(aura_page_table_add(&table, b, table.seq[b].end, &none) == AURA_OUT_OF_PAGES && none == AURA_NO_PAGE,
           "there was no page left");
    EXPECT(!aura_page_table_add(&table, b, table.seq[b].end, &page) && table.page[page].holders == 2,
           "one that is there is no new one");
    release(a), release(b);
    EXPECT(table.pool.n_free == PAGES, "%zu pages are free", table.pool.n_free);
    aura_page_table_unmake(&table);
}

/* A list that lacks pages after the kept ones: they are gone, and are nobody's to give back. */
static void pages_that_are_gone(void)
{
    uint32_t a, page = AURA_NO_PAGE;
    set_window(300, 1);
    start(0);
    create(&a);
    EXPECT(!aura_page_table_add(&table, a, 0, &page) && table.seq[a].first == 1, "page 0");
    for (uint32_t i = 4; i < 6; i++) {
        page = AURA_NO_PAGE;
        EXPECT(!aura_page_table_add(&table, a, i, &page) && table.page[page].holders == 1, "page %u", i);
    }
    EXPECT(table.seq[a].first == 4 && table.seq[a].end == 6, "pages [%zu, %zu)", table.seq[a].first, table.seq[a].end);
    EXPECT(aura_list_count(&table.window, &table.seq[a]) == 3, "pages 0, 4 and 5");
    release(a);
    EXPECT(table.pool.n_free == PAGES && table.seq[a].first == 1, "%zu pages are free", table.pool.n_free);
    aura_page_table_unmake(&table);
    memset(&window, 0, sizeof window);
}

/* The rules of a window against numbers worked out by hand: queries see 300 tokens, a page stays for 390, the first page always. */
static void rules(void)
{
    const struct aura_page_window w = {300, 390, 1, 3}, none = {0, 0, 0, SIZE_MAX};
    EXPECT(aura_window_ring(&w) == 3 && aura_window_ring(&none) == SIZE_MAX, "390 tokens are in 2 pages or 3");
    EXPECT(aura_window_first(&w, 901) == 1 && aura_window_first(&w, 902) == 2 && aura_window_first(&w, 1158) == 3,
           "902 = 390 + 2 pages");
    EXPECT(aura_window_first(&w, 0) == 1 && aura_window_first(&none, 1u << 30) == 0, "nothing is gone");
    EXPECT(aura_window_least_top(&w, 2, 850) == 902 && aura_window_least_top(&w, 2, 1000) == 1000 &&
           aura_window_least_top(&w, 1, 850) == 850, "what a first page says of the top");
    EXPECT(!aura_window_has(&w, 2, 511, 900) && aura_window_has(&w, 2, 512, 900), "page 1 is gone, page 2 is not");
    EXPECT(aura_window_has(&w, 2, 0, 256) && !aura_window_has(&w, 2, 0, 257) && aura_window_has(&w, 1, 0, 900), "page 0 stays");
    EXPECT(!aura_window_may_cut(&w, 2, 811) && aura_window_may_cut(&w, 2, 812) && aura_window_may_cut(&w, 2, 256) &&
           !aura_window_may_cut(&w, 2, 257) && aura_window_least_cut(&w, 2) == 812, "812 = 300 + 2 pages");
    EXPECT(aura_window_begins_anew(&w, 256) && !aura_window_begins_anew(&w, 257) && aura_window_begins_anew(&none, 0),
           "the first page");
    EXPECT(aura_window_first_token(&w, 1) == 0 && aura_window_first_token(&w, 2) == 512, "the first token after what is gone");
    EXPECT(aura_window_has_page(&w, 3, 0) && !aura_window_has_page(&w, 3, 2) && aura_window_has_page(&w, 3, 3),
           "pages 1 and 2 are gone");
    EXPECT(aura_window_count(&w, 3, 1) == 1 && aura_window_count(&w, 3, 5) == 3 && aura_window_count(&none, 0, 5) == 5,
           "pages 0, 3, 4");
    EXPECT(aura_window_begin(&w, 3) == 0 && aura_window_next(&w, 3, 0) == 3 && aura_window_next(&w, 3, 3) == 4 &&
           aura_window_begin(&none, 0) == 0, "from page 0 to page 3");
    EXPECT(aura_window_entry(&w, 0) == 0 && aura_window_entry(&w, 1) == 2 && aura_window_entry(&w, 5) == 2 &&
           aura_window_entry(&none, 5) == 5, "modulo 4, after one");
    EXPECT(aura_window_entries(&w, 1) == 1 && aura_window_entries(&w, 3) == 4 && aura_window_entries(&w, 9) == 5 &&
           aura_window_entries(&none, 9) == 9, "entries");
}

int main(void)
{
    RUN(rules);
    RUN(walk);
    RUN(walk_in_windows);
    RUN(ring);
    RUN(fork_and_write);
    RUN(all_or_nothing);
    RUN(page_by_page);
    RUN(pages_that_are_gone);
    return test_result();
}
