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
static struct aura_page_window window;
static uint32_t next_token;
static size_t refused, appended, copied;

static uint32_t pages_of(uint32_t tokens)
{
    return (tokens + AURA_PAGE - 1) / AURA_PAGE;
}

static uint32_t first_write(const struct fake_seq *s)
{
    return plain ? s->len : s->closed;
}

static uint32_t top_of(const struct fake_seq *s)
{
    return s->top > s->len ? s->top : s->len;
}

static void set_limits(uint32_t i)
{
    uint32_t begin, end;
    aura_page_table_own(&table, i, first_write(&seqs[i]) / AURA_PAGE, &begin, &end);
    seqs[i].own = begin * AURA_PAGE;
    seqs[i].reserved = end * AURA_PAGE;
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
    if (!aura_page_table_may_cut(&window, top_of(s), tokens))
        return;
    s->top = aura_page_table_top(&window, top_of(s), tokens);
    s->len = s->len < tokens ? s->len : tokens;
    s->closed = s->closed < tokens ? s->closed : tokens;
    s->want_len = s->len;
}

/* ---- the host, as seq.cu has it ------------------------------------------------------------------------------------- */

static aura_status reserve(uint32_t i, uint32_t tokens, int fails)
{
    struct aura_page_plan plan;
    struct fake_seq *s = &seqs[i];
    aura_page_table_slide(&table, i, top_of(s));
    set_limits(i);
    aura_status status = aura_page_table_plan(&table, i, first_write(s) / AURA_PAGE, pages_of(s->len), pages_of(tokens), &plan);
    if (status)
        return status;
    if (fails) { /* something went wrong on the device */
        aura_page_table_undo(&table, &plan);
        return AURA_DEVICE;
    }
    for (uint32_t p = plan.first; p < plan.end; p++) {
        const uint32_t page = plan.page[p - plan.first], from = plan.copy[p - plan.first];
        if (from != AURA_NO_PAGE)
            memcpy(memory[page], memory[from], sizeof memory[page]), copied++;
        s->page[p] = page;
    }
    aura_page_table_commit(&table, &plan);
    set_limits(i);
    return AURA_OK;
}

static int create(uint32_t *made)
{
    *made = aura_page_table_place(&table);
    if (*made == AURA_NO_PAGE)
        return 0;
    memset(&seqs[*made], 0, sizeof seqs[*made]);
    table.seq[*made].used = 1;
    return 1;
}

static void fork_seq(uint32_t from, uint32_t tokens)
{
    uint32_t made = aura_page_table_place(&table);
    if (made == AURA_NO_PAGE || !aura_page_table_may_cut(&window, top_of(&seqs[from]), tokens))
        return;
    struct fake_seq *s = &seqs[made];
    aura_page_table_slide(&table, from, top_of(&seqs[from]));
    if (window.ring)
        aura_page_table_cut(&table, from, pages_of(seqs[from].len));
    EXPECT(!aura_page_table_share(&table, from, pages_of(tokens), made), "no memory");
    *s = seqs[from];
    s->top = aura_page_table_top(&window, top_of(s), tokens);
    s->len = s->want_len = tokens;
    s->closed = s->closed < tokens ? s->closed : tokens;
    table.seq[made].used = 1;
    set_limits(from);
    set_limits(made);
}

static void truncate_here(uint32_t i, uint32_t tokens)
{
    truncate_there(i, tokens);
    aura_page_table_slide(&table, i, top_of(&seqs[i]));
    aura_page_table_cut(&table, i, pages_of(seqs[i].len));
    set_limits(i);
}

static void release(uint32_t i)
{
    aura_page_table_cut(&table, i, 0);
    table.seq[i].used = 0;
}

/* ---- are they what they should be? ------------------------------------------------------------------------------------ */

static void check_seq(uint32_t i)
{
    const struct fake_seq *s = &seqs[i];
    EXPECT(s->len == s->want_len, "sequence %u has %u tokens, not %u", i, s->len, s->want_len);
    for (uint32_t t = 0; t < s->len; t++) {
        if (!aura_page_table_has(&window, top_of(s), t, t + 1))
            continue;
        const uint32_t got = plain || t < s->closed ? memory[s->page[t / AURA_PAGE]][t % AURA_PAGE] : s->row[t % 64];
        EXPECT(got == s->want[t], "sequence %u, token %u", i, t);
    }
    EXPECT(aura_page_table_may_cut(&window, top_of(s), s->len), "sequence %u: tokens of its window are gone", i);
    for (uint32_t p = 0; p < table.seq[i].pages; p++)
        if (aura_page_table_has_page(&table, i, p))
            EXPECT(table.seq[i].page[p] == s->page[p], "sequence %u, page %u: the device has another", i, p);
}

/* Whether entry p of a list is there, and none of its older entries the same page. */
static uint32_t is_new_page(uint32_t i, uint32_t p)
{
    const struct aura_page_list *s = &table.seq[i];
    uint32_t is_new = (uint32_t)aura_page_table_has_page(&table, i, p);
    for (uint32_t older = 0; window.ring && older < p; older++)
        is_new &= !(aura_page_table_has_page(&table, i, older) && s->page[older] == s->page[p]);
    return is_new;
}

static void check_table(void)
{
    uint32_t references[PAGES] = {0}, in_use = 0;
    for (uint32_t i = 0; i < SEQS; i++) {
        EXPECT(table.seq[i].used || !table.seq[i].pages, "pages of no sequence");
        for (uint32_t p = 0; p < table.seq[i].pages; p++)
            references[table.seq[i].page[p]] += is_new_page(i, p);
        if (table.seq[i].used)
            check_seq(i);
    }
    for (uint32_t p = 0; p < PAGES; p++) {
        EXPECT(references[p] == table.references[p], "page %u: %u references, %u counted", p, references[p], table.references[p]);
        in_use += references[p] > 0;
    }
    EXPECT(in_use + table.n_free == PAGES, "%u pages in use, %u free", in_use, table.n_free);
    for (uint32_t i = 0; i < table.n_free; i++)
        EXPECT(!references[table.free_page[i]], "page %u is free and in use", table.free_page[i]);
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
    if (!table.seq[i].used) {
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
        const uint32_t tokens = s->len + (uint32_t)pick(seed, 400), free_before = table.n_free;
        const aura_status status = tokens > LONGEST ? AURA_TOO_LARGE : reserve(i, tokens, pick(seed, 5) == 0);
        EXPECT(!status || table.n_free == free_before || (window.ring && table.n_free > free_before),
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

/* A window of so many tokens, of which 90 more than it are kept. */
static void set_window(uint32_t tokens, uint32_t kept)
{
    window.tokens = tokens;
    window.span = tokens + 90;
    window.kept = kept;
    window.ring = pages_of(window.span) + 1;
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
    EXPECT(!reserve(a, LONGEST, 0) && table.n_free == PAGES - window.ring, "%u pages", PAGES - table.n_free);
    while (seqs[a].len + 90 <= LONGEST) {
        EXPECT(append(a, 90), "at token %u", seqs[a].len);
        check_table();
    }
    EXPECT(aura_page_table_count(&table, a) == window.ring, "%u pages", aura_page_table_count(&table, a));
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
    EXPECT(table.n_free == PAGES, "%u pages are free", table.n_free);
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
    EXPECT(aura_page_table_shared(&table, parent) == 3 && table.seq[1].pages == 3, "%u shared",
           aura_page_table_shared(&table, parent));
    EXPECT(!append(parent, 1) && !append(1, 1), "into pages that are shared");
    EXPECT(!reserve(1, 800, 0) && append(1, 100), "the fork");
    EXPECT(aura_page_table_shared(&table, 1) == 2 && copied > 0, "two pages stay shared");
    EXPECT(!append(parent, 1) && !reserve(parent, 0, 0) && append(parent, 60), "the last page is the parent's alone again");
    check_table();
    truncate_there(1, 300); /* into a page that is shared; the device must refuse by itself */
    EXPECT(!append(1, 1), "into a shared page after a truncation");
    EXPECT(!reserve(1, 320, 0) && append(1, 20), "with a copy of it");
    check_table();
    release(parent);
    check_table();
    release(1);
    EXPECT(table.n_free == PAGES, "%u pages are free", table.n_free);
    aura_page_table_unmake(&table);
}

static void all_or_nothing(void)
{
    uint32_t a;
    start(0);
    create(&a);
    EXPECT(reserve(a, PAGES * AURA_PAGE + 1, 0) == AURA_OUT_OF_PAGES && table.n_free == PAGES, "too many pages");
    EXPECT(!reserve(a, SEQ_PAGES * AURA_PAGE, 0) && table.n_free == PAGES - SEQ_PAGES, "as many as a sequence has");
    EXPECT(!reserve(a, 1, 0) && table.n_free == PAGES - SEQ_PAGES, "less than it has changes nothing");
    EXPECT(table.seq[a].page[0] == 0 && table.seq[a].page[5] == 5, "pages in their order");
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
    EXPECT(table.references[page] == 2 && table.references[other] == 2 && table.n_free == PAGES - 2, "references");
    EXPECT(aura_page_table_shared(&table, a) == 1 && aura_page_table_shared(&table, b) == 3, "shared pages");
    EXPECT(!reserve(a, 3 * AURA_PAGE, 0) && table.references[page] == 1, "a has pages of its own");
    for (; table.n_free; none = AURA_NO_PAGE)
        EXPECT(!aura_page_table_add(&table, b, table.seq[b].pages, &none), "no memory");
    EXPECT(aura_page_table_add(&table, b, table.seq[b].pages, &none) == AURA_OUT_OF_PAGES && none == AURA_NO_PAGE,
           "there was no page left");
    EXPECT(!aura_page_table_add(&table, b, table.seq[b].pages, &page) && table.references[page] == 2,
           "one that is there is no new one");
    release(a), release(b);
    EXPECT(table.n_free == PAGES, "%u pages are free", table.n_free);
    aura_page_table_unmake(&table);
}

int main(void)
{
    RUN(walk);
    RUN(walk_in_windows);
    RUN(ring);
    RUN(fork_and_write);
    RUN(all_or_nothing);
    RUN(page_by_page);
    return test_result();
}
