/* A cache over many processes beside one of this process alone, which holds the same tokens. Started by mpirun with any number of
 * ranks; rank 0 prints. A test has failed where it has on any rank.
 *
 *     ranks                    all tests
 *     ranks --save PATH        makes a cache and saves it
 *     ranks --load PATH        loads it, on any number of ranks, and compares it with what was saved
 *     ranks --loop PATH        saves again and again, until somebody kills it
 *     ranks --wait SECONDS     attends for ever; rank 1 stops doing so after a while, and its pid is printed */
#define _DEFAULT_SOURCE
#include "pair.h"

#include <signal.h>
#include <sys/resource.h>
#include <time.h>

/* ---- as one process ------------------------------------------------------------------------------------------------- */

static void like_one_process(void)
{
    static const aura_kind some[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B8, AURA_KIND_B3}, {AURA_KIND_F16, AURA_KIND_F32},
                                        {AURA_KIND_B5, AURA_KIND_BF16}};
    static const uint32_t lengths[] = {1, 2600, 37, 300, 1100, 0, 256};
    float *balance = some_balance(KV_HEADS, 64);
    for (int i = 0; i < (ranks > 4 ? 2 : 4) && test_bad_lines < 3; i++) { /* of many ranks each does all of it */
        aura_config config = whole_config(some[i][0], some[i][1]);
        config.balance = i == 0 ? balance : NULL;
        config.flags |= i == 1 ? AURA_NO_PINNED | AURA_NO_ROLLBACK : 0;
        struct pair p = pair_of(&config, 1, NULL);
        for (int k = 0; k < (i ? 5 : 7); k++)
            add_seq(&p, lengths[k]);
        expect_same_tokens(&p, config_text(&config));
        expect_all_ways(&p, config_text(&config));
        pair_free(&p);
    }
    free(balance);
}

/* Pages are where they should be, and nowhere else. */
static void pages_are_dealt(void)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B4);
    struct pair p = pair_of(&config, 1, NULL);
    for (int i = 0; i < 3; i++) {
        const uint32_t pages = 9;
        add_seq(&p, pages * 256 - 5);
        aura_seq_info info = AURA_SEQ_INFO_INIT;
        uint64_t mine = 0;
        for (uint32_t page = 0; page < pages; page++)
            mine += (page + (uint32_t)i) % (uint32_t)ranks == (uint32_t)me;
        EXPECT(!aura_mpi_seq_get_info(p.many, p.b[i], &info) && info.pages == mine, "sequence %d: %zu pages, not %llu", i,
               info.pages, (unsigned long long)mine);
    }
    pair_free(&p);
}

static void sequences_come_and_go(void)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_F16);
    struct pair p = pair_of(&config, 1, NULL);
    add_seq(&p, 700), add_seq(&p, 520);
    for (int i = 0; i < 2; i++) { /* forks, which go on in pages that they share */
        EXPECT(!aura_seq_fork(p.one, p.a[i], 515 - (uint64_t)i * 260, &p.a[p.seqs]) &&
                   !aura_mpi_seq_fork(p.many, p.b[i], 515 - (uint64_t)i * 260, &p.b[p.seqs]), "%s", aura_last_error());
        p.seqs++;
        add_tokens(&p, p.seqs - 1, 300), add_tokens(&p, i, 33);
    }
    expect_same_tokens(&p, "forks");
    EXPECT(!aura_truncate(p.one, p.a[0], 300) && !aura_mpi_truncate(p.many, p.b[0], 300), "%s", aura_last_error());
    add_tokens(&p, 0, 450);
    EXPECT(!aura_mpi_seq_reserve(p.many, p.b[1], 5000), "%s", aura_last_error());
    add_tokens(&p, 1, 400);
    EXPECT(!aura_seq_release(p.one, p.a[2]) && !aura_mpi_seq_release(p.many, p.b[2]), "%s", aura_last_error());
    p.a[2] = p.a[3], p.b[2] = p.b[3], p.seqs = 3;
    expect_same_tokens(&p, "cut, reserved, released"), expect_all_ways(&p, "cut, reserved, released");
    EXPECT(aura_mpi_truncate(p.many, p.b[0], 1 << 20) == AURA_BAD_ARGUMENT &&
               aura_mpi_seq_release(p.many, 999) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "rank 0: "), "%s",
           aura_last_error());
    pair_free(&p);
}

static void heads_are_divided(void)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B8);
    float *balance = some_balance(KV_HEADS, 64);
    config.balance = balance;
    for (uint32_t groups = 2; groups <= 4; groups *= 2) {
        aura_mpi_cache *none = NULL;
        aura_mpi_options options = options_of(groups);
        if ((uint32_t)ranks % groups) {
            EXPECT(aura_mpi_cache_create(ctx, MPI_COMM_WORLD, &config, &options, &none) == AURA_BAD_ARGUMENT && !none, "%u",
                   groups);
            continue;
        }
        struct pair p = pair_of(&config, groups, NULL);
        aura_mpi_cache_info info = AURA_MPI_CACHE_INFO_INIT;
        EXPECT(!aura_mpi_cache_get_info(p.many, &info) && info.first_head == p.first_head && info.kv_heads == p.heads &&
                   info.ranks == (uint32_t)ranks / groups, "%s", aura_last_error());
        add_seq(&p, 900), add_seq(&p, 130);
        expect_same_tokens(&p, "heads"), expect_all_ways(&p, "heads");
        pair_free(&p);
    }
    free(balance);
}

/* ---- the wire ------------------------------------------------------------------------------------------------------ */

static void bytes_do_not_depend_on_the_context(void)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B4);
    struct pair p = pair_of(&config, 1, NULL);
    static struct answer to;
    float *q = random_tokens(5, 6, Q_HEADS, 64, 0);
    add_seq(&p, 40);
    for (int round = 0; round < 3; round++) {
        for (uint32_t everywhere = 0; everywhere < 2; everywhere++) {
            struct way w = {4, everywhere, AURA_ATTEND_OPTIONS_INIT, 0, 0, AURA_F32};
            aura_mpi_cache_info before = AURA_MPI_CACHE_INFO_INIT, after = AURA_MPI_CACHE_INFO_INIT;
            size_t rows = 0, first = 0, n = 0;
            EXPECT(!aura_mpi_cache_get_info(p.many, &before), "%s", aura_last_error());
            wire_bytes = wire_calls = wire_messages = 0;
            EXPECT(!ask_pair(&p, &w, 1, q, &to, &rows) && !aura_mpi_rows(p.many, rows, &first, &n), "%s", aura_last_error());
            const uint64_t others = (uint64_t)ranks - 1, row = (64 + 1) * 4;
            const uint64_t bytes = (others ? 32 : 0) + (rows - n) * row + (everywhere ? n * row * others : 0);
            const uint64_t messages = (others > 0) + (n == rows ? 0 : others) + (everywhere ? others : 0);
            EXPECT(wire_bytes == bytes && wire_calls == 2 + everywhere && (rows < (size_t)ranks || wire_messages == messages),
                   "%llu bytes, %llu messages; not %llu, %llu", (unsigned long long)wire_bytes, (unsigned long long)wire_messages,
                   (unsigned long long)bytes, (unsigned long long)messages);
            EXPECT(!aura_mpi_cache_get_info(p.many, &after) && after.sent_bytes - before.sent_bytes == wire_bytes &&
                       after.messages - before.messages == wire_messages, "the library counts %llu bytes, %llu messages",
                   (unsigned long long)(after.sent_bytes - before.sent_bytes),
                   (unsigned long long)(after.messages - before.messages));
        }
        wire_bytes = wire_calls = 0;
        aura_append_job job = tokens_of(&p, p.b[0], 0, 900);
        EXPECT(!aura_mpi_append(p.many, &job, 1) && wire_calls == 1 && wire_bytes == (ranks > 1 ? 32 : 0), "append: %llu bytes",
               (unsigned long long)wire_bytes);
    }
    free(q), pair_free(&p);
}

/* ---- failures ------------------------------------------------------------------------------------------------------ */

/* One rank has NaN, or no pages left, or calls something else: all fail alike, and nothing has changed. */
static void one_failure_is_everybodys(void)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B4);
    struct pair p = pair_of(&config, 1, NULL);
    aura_seq seq = 0;
    add_seq(&p, 600), add_seq(&p, 90);
    for (int who = 0; who < ranks; who += ranks > 4 ? 3 : 1) {
        aura_append_job jobs[2] = {tokens_of(&p, p.b[0], 0, 300), tokens_of(&p, p.b[1], 0, 1500)};
        float *bad = random_tokens(8, 300, KV_HEADS, 64, 0), *out = malloc(Q_HEADS * 64 * sizeof *out);
        bad[77 * KV_HEADS * 64 + 5] = NAN;
        if (me == who)
            jobs[0].k.data = bad;
        EXPECT(aura_mpi_append(p.many, jobs, 2) == AURA_BAD_VALUE && strstr(aura_last_error(), "rank ") &&
                   atoi(strstr(aura_last_error(), "rank ") + 5) == who, "NaN on rank %d: %s", who, aura_last_error());
        jobs[0].tokens = me == who ? 200 : 300, jobs[0].k.data = p.t.k.view.data;
        EXPECT(ranks == 1 || aura_mpi_append(p.many, jobs, 2) == AURA_BAD_ARGUMENT, "other tokens on rank %d", who);
        EXPECT(ranks == 1 || (me == who ? aura_mpi_seq_create(p.many, &seq) : aura_mpi_truncate(p.many, p.b[0], 10)) ==
                   AURA_BAD_ARGUMENT, "other calls");
        aura_attend_job ask = AURA_ATTEND_JOB_INIT;
        ask.seq = me == who ? 4711 : p.b[0], ask.queries = 1, ask.q.data = bad, ask.out.data = out;
        out[3] = 42;
        EXPECT(aura_mpi_attend(p.many, &ask, 1, NULL, 1) == AURA_BAD_ARGUMENT && out[3] == 42, "no such sequence on rank %d", who);
        ask.seq = p.b[0], ask.q.data = bad + 77 * KV_HEADS * 64; /* a query that is NaN on one rank makes one row NaN on all */
        ask.q.data = me == who ? ask.q.data : bad;
        EXPECT(aura_mpi_attend(p.many, &ask, 1, NULL, 1) == AURA_NOT_FINITE && isnan(out[5]) && isfinite(out[64 * 3]), "%s: %g",
               aura_last_error(), (double)out[5]);
        EXPECT(aura_mpi_attend(p.many, &ask, 1, NULL, 0) == AURA_NOT_FINITE, "also where that row is another rank's");
        expect_same_tokens(&p, "after failures");
        if (who == 0) /* under the same id everywhere, also where one was made that others did not make */
            add_seq(&p, 50);
        free(bad), free(out);
    }
    add_tokens(&p, 0, 100);
    expect_all_ways(&p, "after failures"), pair_free(&p);
}

static void no_pages_on_one_rank(void)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B4);
    for (int who = 0; who < ranks; who += ranks > 4 ? 3 : 1) {
        aura_config own = config;
        aura_mpi_cache *many = NULL;
        aura_mpi_options options = options_of(1);
        own.budget_bytes = me == who ? 800000 : 0;
        EXPECT(!aura_mpi_cache_create(ctx, MPI_COMM_WORLD, &own, &options, &many), "%s", aura_last_error());
        struct pair p = pair_of(&config, 1, many);
        add_seq(&p, 600);
        aura_append_job job = tokens_of(&p, p.b[0], 0, 1900);
        aura_status status = AURA_OK;
        for (int i = 0; i < 60 && !status; i++) {
            aura_append_job same = tokens_of(&p, p.a[0], 0, 1900);
            if (!(status = aura_mpi_append(p.many, &job, 1)))
                EXPECT(!aura_append(p.one, &same, 1), "%s", aura_last_error());
        }
        aura_mpi_cache_info info = AURA_MPI_CACHE_INFO_INIT;
        aura_seq_info about = AURA_SEQ_INFO_INIT;
        EXPECT(status == AURA_OUT_OF_PAGES, "rank %d: %s", who, aura_status_text(status));
        EXPECT(!aura_mpi_cache_get_info(p.many, &info) && !aura_mpi_seq_get_info(p.many, p.b[0], &about) &&
                   about.pages == info.pages - info.free_pages, "%zu pages, %zu in use", about.pages, info.pages - info.free_pages);
        uint64_t mine = 0; /* what the others had taken already, they gave back */
        for (uint64_t page = 0; page * 256 < about.tokens; page++)
            mine += page % (uint64_t)ranks == (uint64_t)me;
        EXPECT(about.pages == mine, "%zu pages, not %llu", about.pages, (unsigned long long)mine);
        EXPECT(aura_mpi_seq_reserve(p.many, p.b[0], 1 << 20) == AURA_OUT_OF_PAGES, "%s", aura_last_error());
        EXPECT(!aura_mpi_seq_get_info(p.many, p.b[0], &about) && about.pages == mine, "%zu pages, not %llu", about.pages,
               (unsigned long long)mine);
        expect_same_tokens(&p, "no pages");
        pair_free(&p);
    }
    config.window = 300;
    aura_mpi_cache *none = NULL;
    EXPECT(aura_mpi_cache_create(ctx, MPI_COMM_WORLD, &config, NULL, &none) == AURA_UNSUPPORTED && !none, "a window");
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

/* What is saved, whoever makes it. */
static struct pair saved_pair(uint32_t groups, aura_mpi_cache *many)
{
    static float *balance;
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B8);
    balance = balance ? balance : some_balance(KV_HEADS, 64);
    config.balance = balance;
    struct pair p = pair_of(&config, groups, many);
    if (many) { /* the sequences are there: only the model is made, and the numbers that they have now */
        p.many = NULL;
        aura_mpi_options options = options_of(groups);
        EXPECT(!aura_mpi_cache_create(ctx, MPI_COMM_WORLD, &config, &options, &p.many), "%s", aura_last_error());
    }
    add_seq(&p, 900), add_seq(&p, 0), add_seq(&p, 700);
    EXPECT(!aura_seq_fork(p.one, p.a[0], 700, &p.a[3]) && !aura_mpi_seq_fork(p.many, p.b[0], 700, &p.b[3]), "%s",
           aura_last_error());
    p.seqs = 4;
    add_tokens(&p, 3, 444);
    if (many) {
        aura_mpi_cache_destroy(p.many);
        p.many = many;
        for (int i = 0; i < 4; i++)
            p.b[i] = (aura_seq)i + 1;
    }
    return p;
}

static void save_pair(const char *path)
{
    for (uint32_t groups = 1; groups <= 2 && (uint32_t)ranks % groups == 0; groups++) {
        char name[300];
        struct pair p = saved_pair(groups, NULL);
        snprintf(name, sizeof name, "%s.%u", path, groups);
        EXPECT(!aura_mpi_cache_save(p.many, name), "%s", aura_last_error());
        EXPECT(!aura_mpi_cache_save(p.many, name), "%s", aura_last_error()); /* over the first one */
        pair_free(&p);
    }
}

static void load_pair(const char *path)
{
    for (uint32_t old = 1; old <= 2; old++)
        for (uint32_t groups = 1; groups <= 2 && (uint32_t)ranks % groups == 0; groups++) {
            char name[300];
            aura_mpi_cache *many = NULL;
            aura_mpi_options options = options_of(groups);
            snprintf(name, sizeof name, "%s.%u", path, old);
            if (access(name, R_OK)) /* whoever saved had an odd number of ranks */
                continue;
            EXPECT(!aura_mpi_cache_load(ctx, MPI_COMM_WORLD, name, &options, &many), "%s", aura_last_error());
            if (!many)
                return;
            struct pair p = saved_pair(groups, many);
            expect_same_tokens(&p, "loaded"), expect_all_ways(&p, "loaded");
            aura_mpi_cache_info info = AURA_MPI_CACHE_INFO_INIT;
            size_t held = 0;
            aura_seq_info about = AURA_SEQ_INFO_INIT;
            for (int i = 0; i < 4; i++)
                held += aura_mpi_seq_get_info(p.many, p.b[i], &about) ? 0 : about.pages;
            EXPECT(!aura_mpi_cache_get_info(p.many, &info) && info.pages - info.free_pages <= held, "%s", aura_last_error());
            size_t shared = held - (info.pages - info.free_pages), all = 0;
            MPI_Allreduce(&shared, &all, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
            EXPECT(all == 2 * (size_t)groups, "%zu pages are shared, not 2 of each group", all); /* of 700 tokens, but the last */
            add_tokens(&p, 0, 300), add_tokens(&p, 3, 80);
            const int made = add_seq(&p, 600); /* three pages, dealt as if there had been no file: the fourth that was created */
            uint64_t mine = 0;
            for (uint32_t page = 0; page < 3; page++)
                mine += (page + 3) % info.ranks == info.rank;
            EXPECT(!aura_mpi_seq_get_info(p.many, p.b[made], &about) && about.pages == mine, "a new one has %zu pages, not %llu",
                   about.pages, (unsigned long long)mine);
            expect_same_tokens(&p, "gone on"), pair_free(&p);
        }
}

static char shared_dir[64];

/* Rank 0 does something to files while the others wait. `what` is for a shell in the folder of the files. */
static void to_files(const char *what)
{
    char command[400];
    snprintf(command, sizeof command, "cd %s && %s", shared_dir, what);
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT(me || !system(command), "cannot do: %s", command);
    MPI_Barrier(MPI_COMM_WORLD);
}

/* A rank that cannot write its shard, and a manifest that cannot be written: the save fails everywhere, leaves nothing behind, and
 * what was saved before is whole. */
static void a_save_that_fails(void)
{
    char path[200], blocked[200];
    struct pair p = saved_pair(1, NULL);
    aura_mpi_cache *many = NULL;
    snprintf(path, sizeof path, "%s/kept", shared_dir), snprintf(blocked, sizeof blocked, "%s/blocked", shared_dir);
    EXPECT(!aura_mpi_cache_save(p.many, path), "%s", aura_last_error());
    signal(SIGXFSZ, SIG_IGN);
    for (int who = 0; who < ranks; who += ranks > 4 ? 3 : 1) {
        struct rlimit before, none;
        getrlimit(RLIMIT_FSIZE, &before);
        none = before, none.rlim_cur = 0;
        add_tokens(&p, 0, 40);
        EXPECT(me != who || !setrlimit(RLIMIT_FSIZE, &none), "no limit");
        EXPECT(aura_mpi_cache_save(p.many, path) == AURA_IO && strstr(aura_last_error(), "rank "), "rank %d: %s", who,
               aura_last_error());
        EXPECT(!setrlimit(RLIMIT_FSIZE, &before), "no limit");
    }
    to_files("mkdir -p blocked");
    EXPECT(aura_mpi_cache_save(p.many, blocked) == AURA_IO, "over a folder: %s", aura_last_error());
    pair_free(&p);
    char count[100];
    snprintf(count, sizeof count, "test $(ls | grep -c '^kept[.]') = %d && test $(ls | grep -c '^blocked[.]') = 0", ranks);
    to_files(count);
    aura_mpi_options options = options_of(1);
    EXPECT(!aura_mpi_cache_load(ctx, MPI_COMM_WORLD, path, &options, &many), "%s", aura_last_error());
    if (many) {
        p = saved_pair(1, many);
        expect_same_tokens(&p, "what was saved before"), pair_free(&p);
    }
    to_files("rm -r blocked kept*");
}

/* The shard that the same rank saved at another time. */
static void a_shard_of_another_save(void)
{
    char path[200], other[200];
    aura_mpi_cache *many = NULL;
    struct pair p = saved_pair(1, NULL);
    snprintf(path, sizeof path, "%s/first", shared_dir), snprintf(other, sizeof other, "%s/second", shared_dir);
    EXPECT(!aura_mpi_cache_save(p.many, path), "%s", aura_last_error());
    EXPECT(!aura_mpi_seq_release(p.many, p.b[2]) && !aura_mpi_cache_save(p.many, other), "%s", aura_last_error());
    pair_free(&p);
    to_files("cp $(ls second.* | tail -n 1) $(ls first.* | tail -n 1)");
    EXPECT(aura_mpi_cache_load(ctx, MPI_COMM_WORLD, path, NULL, &many) == AURA_BAD_FILE && !many &&
               strstr(aura_last_error(), "not that of its manifest"), "%s", aura_last_error());
    to_files("rm first* second*");
}

static void files_in_one_process_group(void)
{
    char path[200], shard[300];
    aura_mpi_cache *many = NULL;
    snprintf(path, sizeof path, "%s/cache", shared_dir);
    save_pair(path), load_pair(path);
    snprintf(path, sizeof path, "%s/cache.1", shared_dir);
    aura_cache *one = NULL;
    EXPECT(aura_cache_load(ctx, path, NULL, &one) == AURA_BAD_FILE && strstr(aura_last_error(), "not a snapshot"), "%s",
           aura_last_error());
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(shard, sizeof shard, "cd %s && ls cache.1.* | tail -n 1 | xargs -I{} dd if=/dev/urandom of={} bs=1 seek=9000 count=8 "
                                  "conv=notrunc 2>/dev/null", shared_dir);
    EXPECT(me || !system(shard), "cannot damage a shard");
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT(aura_mpi_cache_load(ctx, MPI_COMM_WORLD, path, NULL, &many) == AURA_BAD_FILE && !many, "%s", aura_last_error());
    MPI_Barrier(MPI_COMM_WORLD);
    snprintf(shard, sizeof shard, "cd %s && rm $(ls cache.1.* | tail -n 1)", shared_dir);
    EXPECT(me || !system(shard), "cannot remove a shard");
    MPI_Barrier(MPI_COMM_WORLD);
    EXPECT(aura_mpi_cache_load(ctx, MPI_COMM_WORLD, path, NULL, &many) == AURA_IO && !many, "%s", aura_last_error());
    EXPECT(aura_mpi_cache_load(ctx, MPI_COMM_WORLD, "/no/such/file", NULL, &many) == AURA_IO && !many, "%s", aura_last_error());
    struct pair p = saved_pair(1, NULL);
    EXPECT(aura_mpi_cache_save(p.many, "/no/such/folder/file") == AURA_IO, "%s", aura_last_error());
    expect_same_tokens(&p, "not saved"), pair_free(&p);
}

/* ---- running ------------------------------------------------------------------------------------------------------- */

/* A test that failed on any rank has failed. */
static void run(const char *name, void (*test)(void))
{
    test_bad_lines = 0;
    test();
    int bad = test_bad_lines, any = 0;
    MPI_Allreduce(&bad, &any, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
    fflush(stdout);
    MPI_Barrier(MPI_COMM_WORLD);
    test_failures += any > 0;
    if (me == 0)
        printf("%s %s with %d ranks\n", any ? "FAIL" : "ok", name, ranks);
    fflush(stdout);
}

static void wait_for_ever(double seconds)
{
    aura_config config = whole_config(AURA_KIND_B4, AURA_KIND_B4);
    aura_mpi_options options = options_of(1);
    aura_mpi_cache *many = NULL;
    options.timeout_s = seconds;
    EXPECT(!aura_mpi_cache_create(ctx, MPI_COMM_WORLD, &config, &options, &many), "%s", aura_last_error());
    struct pair p = pair_of(&config, 1, many);
    add_seq(&p, 900);
    if (me == ranks - 1)
        printf("pid %d\n", (int)getpid()), fflush(stdout);
    for (;;) { /* not everywhere: that compares by a call of MPI's that waits without end for a rank that is stopped */
        struct way w = {1, 0, AURA_ATTEND_OPTIONS_INIT, 0, 0, AURA_F32};
        expect_like_one(&p, &w, "while others live");
    }
}

static void save_for_ever(const char *path)
{
    struct pair p = saved_pair(1, NULL);
    if (me == ranks - 1)
        printf("pid %d\n", (int)getpid()), fflush(stdout);
    for (;;) {
        EXPECT(!aura_mpi_cache_save(p.many, path), "%s", aura_last_error());
        if (me == 0)
            printf("saved\n"), fflush(stdout);
    }
}

static const char *path_given;
static void save_given(void) { save_pair(path_given); }
static void load_given(void) { load_pair(path_given); }

int main(int argc, char **argv)
{
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &me), MPI_Comm_size(MPI_COMM_WORLD, &ranks);
    if (aura_ctx_create(NULL, &ctx))
        MPI_Abort(MPI_COMM_WORLD, 1);
    path_given = argc > 2 ? argv[2] : NULL;
    if (argc > 2 && !strcmp(argv[1], "--wait"))
        wait_for_ever(atof(argv[2]));
    if (argc > 2 && !strcmp(argv[1], "--loop"))
        save_for_ever(argv[2]);
    if (argc > 2) {
        run(argv[1] + 2, !strcmp(argv[1], "--save") ? save_given : load_given);
    } else {
        snprintf(shared_dir, sizeof shared_dir, "/tmp/aura-mpi-XXXXXX");
        EXPECT(me || mkdtemp(shared_dir), "no place for files");
        MPI_Bcast(shared_dir, sizeof shared_dir, MPI_CHAR, 0, MPI_COMM_WORLD);
        run("like_one_process", like_one_process);
        run("pages_are_dealt", pages_are_dealt);
        run("sequences_come_and_go", sequences_come_and_go);
        run("heads_are_divided", heads_are_divided);
        run("bytes_do_not_depend_on_the_context", bytes_do_not_depend_on_the_context);
        run("one_failure_is_everybodys", one_failure_is_everybodys);
        run("no_pages_on_one_rank", no_pages_on_one_rank);
        run("files_in_one_process_group", files_in_one_process_group);
        run("a_save_that_fails", a_save_that_fails);
        run("a_shard_of_another_save", a_shard_of_another_save);
        char gone[100];
        snprintf(gone, sizeof gone, "rm -r %s", shared_dir);
        EXPECT(me || !system(gone), "cannot remove %s", shared_dir);
    }
    aura_ctx_destroy(ctx);
    MPI_Finalize();
    return test_result();
}
