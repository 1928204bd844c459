/* Snapshots: a cache that was saved and loaded goes on as if nothing had happened. test/file/snapshot_parts.c has parts of
 * caches, rings and slots, test/file/snapshot_damage.c files that are not as they were saved. */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "snapshot_tools.h"

/* Saves, loads and compares. Then all sequences of both caches grow, and the caches are compared again. */
static void expect_round_trip(aura_ctx *in, const aura_config *config, uint32_t tokens)
{
    struct text t = text_new(config, 900);
    aura_seq seq[SEQS], in_b[SEQS];
    char what[160];
    snprintf(what, sizeof what, "%s, %u tokens", config_text(config), tokens);
    aura_cache *a = some_cache(in, config, &t, tokens, seq);
    struct bytes first = saved(a, "first");
    aura_cache *b = load(in, file_path("first"), NULL);
    if (!b)
        return;
    struct bytes second = saved(b, "second");
    EXPECT(same_bytes(first, second), "%s: saved again, other bytes", what);
    for (int i = 0; i < SEQS; i++)
        expect_same(a, seq[i], b, in_b[i] = number_of(a, seq[i]), what);
    for (int i = 0; i < SEQS; i++) {
        uint32_t n = i == 1 ? 70 : 21 + (uint32_t)i;
        grow(a, seq[i], &t, n, 9), grow(b, in_b[i], &t, n, 9);
    }
    aura_truncate(a, seq[0], tokens / 2), aura_truncate(b, in_b[0], tokens / 2);
    grow(a, seq[0], &t, 90, 3), grow(b, in_b[0], &t, 90, 3);
    for (int i = 0; i < SEQS; i++)
        expect_same(a, seq[i], b, in_b[i], what);
    EXPECT(!aura_seq_release(b, in_b[1]) && seq_new(b) != in_b[1], "%s: an id that was released is given again", what);
    aura_cache_destroy(a), aura_cache_destroy(b);
    free(first.data), free(second.data), text_free(&t);
    unlink(file_path("first")), unlink(file_path("second"));
}

static void every_pair_of_kinds(void)
{
    for (int k = 0; k < N_KINDS && test_bad_lines < 5; k++)
        for (int v = 0; v < N_KINDS; v++)
            if (!small_run() || v == (k + 4) % N_KINDS) {
                aura_config config = config_of(kinds[k], kinds[v], dims[(k + v) % 3], dims[(k + 2 * v) % 4], 2);
                config.q_heads = 4;
                expect_round_trip(ctx, &config, 300);
            }
}

static void lengths_around_tiles_and_pages(void)
{
    static const uint32_t lengths[] = {0, 1, 3, 4, 5, 31, 32, 33, 47, 48, 49, 64, 79, 80, 81, 255, 256, 257, 271, 272, 273,
                                       287, 304, 511, 512, 513, 600};
    static const uint32_t flags[] = {0, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_REFERENCE, AURA_NO_OPEN | AURA_NO_REFERENCE};
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths && test_bad_lines < 5; i++)
        for (size_t f = small_run() ? i % 5 : 0; f < 5; f += small_run() ? 5 : 1) {
            aura_config config = config_of(AURA_KIND_B4, f % 2 ? AURA_KIND_B3 : AURA_KIND_F16, 64, 64, 1);
            config.flags |= flags[f];
            config.rollback = f == 3 ? 32 : 0;
            expect_round_trip(ctx, &config, lengths[i]);
        }
}

static void every_dim_and_a_balance(void)
{
    for (int d = 0; d < N_DIMS; d++) {
        aura_config config = config_of(AURA_KIND_B5, AURA_KIND_B8, dims[d], dims[N_DIMS - 1 - d], 2);
        float *balance = some_balance(2, dims[d]);
        config.balance = balance;
        config.seed = 77 + (uint64_t)d;
        if (!small_run() || d == 1)
            expect_round_trip(ctx, &config, 140);
        free(balance);
    }
}

/* ---- sharing --------------------------------------------------------------------------------------------------------- */

static void shared_pages_are_saved_once(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    aura_cache *a = cache_new(ctx, &config);
    aura_cache_info x = AURA_CACHE_INFO_INIT, y = AURA_CACHE_INFO_INIT;
    aura_seq seq[20];
    seq[0] = seq_new(a);
    grow(a, seq[0], &t, 800, 0);
    struct bytes alone = saved(a, "alone");
    for (uint64_t i = 1; i < 20; i++) /* the parent has more tokens of a page than its forks */
        EXPECT(!aura_seq_fork(a, seq[0], 813 - 13 * i, &seq[i]), "%s", aura_last_error());
    struct bytes all = saved(a, "all");
    EXPECT(all.size - alone.size < 19 * (10 * 1024), "%zu bytes for one, %zu for twenty", alone.size, all.size);
    aura_cache *b = load(ctx, file_path("all"), NULL);
    aura_seq in_b[20];
    for (int i = 0; i < 20; i++)
        in_b[i] = number_of(a, seq[i]);
    aura_cache_get_info(a, &x), aura_cache_get_info(b, &y);
    EXPECT(y.shared_pages == x.shared_pages && y.holders == x.holders &&
           y.pages - y.free_pages == x.pages - x.free_pages && y.shared_pages == 4 &&
               y.tokens == x.tokens && y.seqs == 20, "%zu pages shared, %zu holders, %zu pages", y.shared_pages,
               y.holders, y.pages - y.free_pages);
    grow(b, in_b[3], &t, 100, 1), grow(a, seq[3], &t, 100, 1); /* one sequence changes, the others do not */
    for (int i = 0; i < 20; i++)
        expect_same(a, seq[i], b, in_b[i], "shared");
    for (int i = 0; i < 20; i++)
        EXPECT(!aura_seq_release(b, in_b[i]), "%s", aura_last_error());
    aura_cache_get_info(b, &y);
    EXPECT(y.free_pages == y.pages && y.holders == 0 && y.shared_pages == 0 && y.tokens == 0, "%zu of %zu pages free",
           y.free_pages, y.pages);
    aura_cache_destroy(a), aura_cache_destroy(b);
    free(alone.data), free(all.data), text_free(&t);
    unlink(file_path("alone")), unlink(file_path("all"));
}

/* No file has stale bytes, of columns that were truncated or of pages that were used before. */
static void the_past_is_not_saved(void)
{
    static const aura_kind pairs[][2] = {{AURA_KIND_B3, AURA_KIND_B5}, {AURA_KIND_B8, AURA_KIND_F32},
                                         {AURA_KIND_BF16, AURA_KIND_B6}, {AURA_KIND_B2, AURA_KIND_B2}};
    for (int p = 0; p < 4; p++)
        for (uint32_t cut = 250; cut < 300; cut += 7) {
            aura_config config = config_of(pairs[p][0], pairs[p][1], 80, 64, 1);
            static struct counting c[2];
            struct text t = text_new(&config, 900);
            struct bytes file[2];
            for (int dirty = 0; dirty < 2; dirty++) {
                aura_ctx *own = counting_ctx(&c[dirty], dirty ? 0xa5 : 0x3c, 1);
                aura_cache *cache = cache_new(own, &config);
                aura_seq seq = seq_new(cache);
                if (dirty) {
                    aura_seq past = seq_new(cache);
                    grow(cache, past, &t, 700, 100);
                    EXPECT(!aura_seq_release(cache, past), "%s", aura_last_error());
                } else {
                    EXPECT(!aura_seq_release(cache, seq_new(cache)), "%s", aura_last_error());
                }
                grow(cache, seq, &t, 330, 0);
                EXPECT(!aura_truncate(cache, seq, cut), "%s", aura_last_error());
                file[dirty] = saved(cache, "clean");
                aura_cache_destroy(cache), aura_ctx_destroy(own);
            }
            EXPECT(same_bytes(file[0], file[1]), "pair %d, cut to %u: the file tells of the past", p, cut);
            free(file[0].data), free(file[1].data), text_free(&t);
        }
    unlink(file_path("clean"));
}

/* ---- other caches ---------------------------------------------------------------------------------------------------- */

static void refuses_other_configurations(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 2), c;
    struct text t = text_new(&config, 100);
    float *balance = some_balance(2, 64), *other = some_balance(2, 64);
    other[5] = 1.25f * other[5];
    config.q_heads = 4, config.window = 100, config.balance = balance;
    aura_cache *a = cache_new(ctx, &config);
    aura_seq seq = seq_new(a), got = 7;
    grow(a, seq, &t, 60, 0);
    EXPECT(!aura_cache_save(a, file_path("a"), NULL), "%s", aura_last_error());
#define REFUSED(field, value, name)                                                                                              \
    do {                                                                                                                         \
        c = config;                                                                                                              \
        c.field = value;                                                                                                         \
        aura_cache *b = cache_new(ctx, &c);                                                                                      \
        size_t before = aura_cache_bytes(b);                                                                                     \
        aura_status status = aura_seq_load(b, file_path("a"), NULL, &got);                                                       \
        EXPECT(status == AURA_BAD_ARGUMENT && strstr(aura_last_error(), name) && got == 7, "another %s: %s", name,         \
               aura_last_error());                                                                                              \
        EXPECT(aura_cache_bytes(b) == before, "it allocated");                                                                   \
        aura_cache_destroy(b);                                                                                                   \
    } while (0)
    REFUSED(format.k, AURA_KIND_B5, "kind of keys");
    REFUSED(format.v, AURA_KIND_F16, "kind of values");
    REFUSED(v_dim, 128, "v_dim");
    REFUSED(q_heads, 8, "query heads");
    REFUSED(flags, 0, "flags");
    REFUSED(rollback, 8, "rollback");
    REFUSED(seed, 12, "seed");
    REFUSED(window, 101, "window");
    REFUSED(max_queries, 77, "max_queries");
    REFUSED(keep_first, 3, "keep_first");
    REFUSED(balance, NULL, "balance");
    REFUSED(balance, other, "balance");
    config.balance = NULL, config.k_dim = 80;
    REFUSED(kv_heads, 1, "dim");
    aura_cache_destroy(a);
    unlink(file_path("a")), text_free(&t), free(balance), free(other);
}

/* Loading stays within the budget; a load that does not fit changes nothing. */
static void budgets(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    struct text t = text_new(&config, 900);
    aura_seq seq[SEQS], mine, got = 7;
    aura_cache *a = some_cache(ctx, &config, &t, 800, seq), *b = NULL;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    EXPECT(!aura_cache_save(a, file_path("a"), NULL) && !aura_seq_save(a, seq[0], file_path("one"), NULL), "%s", aura_last_error());
    aura_cache *full = load(ctx, file_path("a"), NULL);
    size_t enough = aura_cache_bytes(full);
    aura_cache_destroy(full);
    for (o.budget_bytes = 1; o.budget_bytes < enough; o.budget_bytes += o.budget_bytes < enough - 40000 ? 20000 : 900)
        EXPECT(aura_cache_load(ctx, file_path("a"), &o, &b) == AURA_OUT_OF_PAGES && !b, "%zu bytes of %zu: %s",
               o.budget_bytes, enough, aura_last_error());
    o.budget_bytes = enough;
    b = load(ctx, file_path("a"), &o);
    EXPECT(b && aura_cache_bytes(b) <= enough, "%zu bytes of %zu", b ? aura_cache_bytes(b) : 0, enough);
    aura_cache_destroy(b);

    config.budget_bytes = 131000;
    b = cache_new(ctx, &config);
    mine = seq_new(b);
    grow(b, mine, &t, 700, 3);
    struct state before = state_of(b, mine);
    EXPECT(aura_seq_load(b, file_path("one"), NULL, &got) == AURA_OUT_OF_PAGES && got == 7, "%s", aura_last_error());
    struct state after = state_of(b, mine);
    EXPECT(after.info.seqs == 1 && after.info.holders == before.info.holders && after.info.shared_pages == 0 &&
           after.info.tokens == before.info.tokens &&
               after.info.bytes <= 131000 && !memcmp(after.out, before.out, before.bytes), "a refused load left something");
    EXPECT(!aura_seq_release(b, mine) && !aura_seq_load(b, file_path("one"), NULL, &got), "%s", aura_last_error());
    expect_same(a, seq[0], b, got, "in a budget");
    aura_cache_destroy(a), aura_cache_destroy(b);
    free(before.out), free(after.out), text_free(&t);
    unlink(file_path("a")), unlink(file_path("one"));
}

static void misuse(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, 64, 64, 1);
    aura_cache *a = cache_new(ctx, &config), *b = NULL;
    aura_seq seq = seq_new(a), got = 7;
    aura_snapshot_options o = AURA_SNAPSHOT_OPTIONS_INIT;
    EXPECT(!aura_cache_save(a, file_path("a"), NULL), "%s", aura_last_error());
    EXPECT(aura_cache_save(NULL, file_path("a"), NULL) == AURA_BAD_ARGUMENT &&
           aura_cache_save(a, NULL, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    EXPECT(aura_cache_load(NULL, file_path("a"), NULL, &b) == AURA_BAD_ARGUMENT &&
           aura_cache_load(ctx, NULL, NULL, &b) == AURA_BAD_ARGUMENT &&
               aura_cache_load(ctx, file_path("a"), NULL, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    EXPECT(aura_seq_save(NULL, seq, file_path("a"), NULL) == AURA_BAD_ARGUMENT &&
           aura_seq_save(a, 99, file_path("a"), NULL) == AURA_BAD_ARGUMENT, "NULLs");
    EXPECT(aura_seq_load(NULL, file_path("a"), NULL, &got) == AURA_BAD_ARGUMENT &&
           aura_seq_load(a, file_path("a"), NULL, NULL) == AURA_BAD_ARGUMENT, "NULLs");
    EXPECT(aura_cache_load(ctx, file_path("none"), NULL, &b) == AURA_IO &&
           aura_seq_load(a, file_path("none"), NULL, &got) == AURA_IO, "no file");
    o.size--;
    EXPECT(aura_cache_save(a, file_path("a"), &o) == AURA_BAD_ARGUMENT &&
           aura_cache_load(ctx, file_path("a"), &o, &b) == AURA_BAD_ARGUMENT, "size");
    o.size++, o.n_seqs = 1;
    EXPECT(aura_cache_save(a, file_path("a"), &o) == AURA_BAD_ARGUMENT &&
           aura_seq_load(a, file_path("a"), &o, &got) == AURA_BAD_ARGUMENT, "seqs NULL");
    o.seqs = &seq;
    EXPECT(aura_seq_save(a, seq, file_path("a"), &o) == AURA_BAD_ARGUMENT, "two ways of saying which");
    EXPECT(!b && got == 7, "something was loaded");
    aura_model_cache *model = NULL;
    EXPECT(aura_model_load(ctx, file_path("a"), NULL, &model) == AURA_BAD_ARGUMENT && !model, "a cache is no model");
    aura_cache_destroy(a);
    unlink(file_path("a"));
}

int main(void)
{
    if (aura_ctx_create(NULL, &ctx) || !files_begin())
        return 1;
    RUN(every_pair_of_kinds);
    RUN(lengths_around_tiles_and_pages);
    RUN(every_dim_and_a_balance);
    RUN(shared_pages_are_saved_once);
    RUN(the_past_is_not_saved);
    RUN(refuses_other_configurations);
    RUN(budgets);
    RUN(misuse);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
