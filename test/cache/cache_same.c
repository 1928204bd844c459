/* What must not change a bit of a result: threads, other jobs of the batch, other queries of a job, the caller's threads, old
 * contents of memory, and the place of the workspace. And attending with a workspace allocates nothing. */
#define _GNU_SOURCE
#include "cache_attend.h"

#include <pthread.h>

#include "../base/modes.h"

/* ---- a batch --------------------------------------------------------------------------------------------------------------- */

/* Sequences of very different lengths with different numbers of queries; one is long enough for several splits. */
enum { JOBS = 5 };
static const uint32_t batch_tokens[2][JOBS] = {{3000, 1, 40, 1025, 300}, {1100, 1, 40, 260, 70}},
    batch_queries[JOBS] = {3, 1, 2, 1, 20};

struct batch {
    aura_cache *cache;
    struct scene scene[JOBS];
    aura_seq seq[JOBS];
    struct attention at[JOBS];
    struct call call[JOBS];
    aura_attend_job jobs[JOBS];
    aura_attend_options options;
    float *out[JOBS]; /* the results: rows, then lse */
    size_t floats[JOBS];
    struct attention crowd_at;
    struct call crowd;  /* so many queries that the work is divided by queries, not by tokens */
};

static aura_config batch_config(int pair)
{
    static const aura_kind pairs[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B8, AURA_KIND_B3},
                                         {AURA_KIND_F16, AURA_KIND_F32}};
    aura_config config = config_of(pairs[pair][0], pairs[pair][1], 64, 80, 2);
    config.q_heads = 6;
    return config;
}

static void batch_init(struct batch *b, aura_config config)
{
    static const aura_attend_options defaults = AURA_ATTEND_OPTIONS_INIT;
    static const float sinks[6] = {0, 1, 2, -1, -2, 0.5f};
    b->cache = NULL;
    b->options = defaults;
    b->options.sinks = sinks;
    for (int i = 0; i < JOBS; i++) {
        b->scene[i] = scene_new(config, batch_tokens[small_run()][i]);
        b->at[i] = attention_new(b->scene[i].model, batch_queries[i], config.q_heads, 200 + (uint64_t)i);
        b->call[i] = call_new(&b->at[i], 0, AURA_F32, AURA_F32, DENSE);
        b->floats[i] = (size_t)batch_queries[i] * config.q_heads * (b->scene[i].model->v.dim + 1);
        b->out[i] = malloc(b->floats[i] * sizeof(float));
    }
    b->crowd_at = attention_new(b->scene[0].model, 280, config.q_heads, 300);
    b->crowd = call_new(&b->crowd_at, 0, AURA_F32, AURA_F32, DENSE);
}

/* The cache of a context, with every sequence in it. */
static void batch_fill(struct batch *b, aura_ctx *in)
{
    aura_append_job jobs[JOBS];
    b->cache = cache_new(in, &b->scene[0].config);
    for (int i = 0; b->cache && i < JOBS; i++) {
        b->seq[i] = seq_new(b->cache);
        jobs[i] = append_job(b->seq[i], &b->scene[i].k, &b->scene[i].v, 0, b->scene[i].tokens);
        b->call[i].job.seq = b->seq[i];
        b->jobs[i] = b->call[i].job;
    }
    EXPECT(b->cache && !aura_append(b->cache, jobs, JOBS), "%s", aura_last_error());
}

static void batch_empty(struct batch *b)
{
    aura_cache_destroy(b->cache);
    b->cache = NULL;
}

static void batch_free(struct batch *b)
{
    batch_empty(b);
    for (int i = 0; i < JOBS; i++) {
        scene_free(&b->scene[i]), attention_free(&b->at[i]), call_free(&b->call[i]);
        free(b->out[i]);
    }
    attention_free(&b->crowd_at), call_free(&b->crowd);
}

/* Copies what a job has written. */
static void batch_keep(struct batch *b, int i)
{
    size_t rows = (size_t)b->jobs[i].queries * 6;
    tensor_get(b->out[i], &b->call[i].out);
    memcpy(b->out[i] + b->floats[i] - rows, b->call[i].lse, rows * sizeof(float));
}

/* Compares it with the copy. */
static void batch_same(const struct batch *b, int i, const char *what)
{
    size_t rows = (size_t)b->jobs[i].queries * 6;
    float *got = malloc(b->floats[i] * sizeof *got);
    tensor_get(got, &b->call[i].out);
    memcpy(got + b->floats[i] - rows, b->call[i].lse, rows * sizeof(float));
    EXPECT(!memcmp(got, b->out[i], b->floats[i] * sizeof *got), "%s: job %d of k%u has other bits", what, i,
           (unsigned)b->scene[0].config.format.k);
    free(got);
}

static void batch_attend(struct batch *b, const aura_attend_job *jobs, size_t n)
{
    for (int i = 0; i < JOBS; i++)
        tensor_fill(&b->call[i].out, 0xff);
    EXPECT(!aura_attend(b->cache, jobs, n, &b->options), "%s", aura_last_error());
}

/* Runs every job alone, on the caller's thread. All other results are compared with these. */
static void batch_reference(struct batch *b)
{
    for (int i = 0; i < JOBS; i++) {
        batch_attend(b, &b->jobs[i], 1);
        batch_keep(b, i);
    }
}

/* ---- threads and batch-mates ---------------------------------------------------------------------------------------------- */

/* All jobs at once, in two orders, and pairs of them. */
static void batch_mates(struct batch *b, const char *what)
{
    aura_attend_job turned[JOBS];
    batch_attend(b, b->jobs, JOBS);
    for (int i = 0; i < JOBS; i++)
        batch_same(b, i, what), turned[JOBS - 1 - i] = b->jobs[i];
    batch_attend(b, turned, JOBS);
    for (int i = 0; i < JOBS; i++)
        batch_same(b, i, what);
    for (int i = 0; i + 1 < JOBS; i++) {
        batch_attend(b, b->jobs + i, 2);
        batch_same(b, i, what), batch_same(b, i + 1, what);
    }
}

static void batch_crowd(struct batch *b, const char *what)
{
    aura_attend_job jobs[JOBS + 1];
    memcpy(jobs, b->jobs, sizeof b->jobs);
    b->crowd.job.seq = b->seq[0], jobs[JOBS] = b->crowd.job;
    batch_attend(b, jobs, JOBS + 1);
    for (int i = 0; i < JOBS; i++)
        batch_same(b, i, what);
}

static aura_ctx *ctx_with_threads(uint32_t threads)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = NULL;
    options.isa_mask = aura_ctx_isas(ctx), options.threads = threads;
    EXPECT(!aura_ctx_create(&options, &made), "%u threads: %s", threads, aura_last_error());
    return made;
}

static void try_threads(struct batch *b)
{
    static const uint32_t threads[] = {1, 2, 3, 7};
    batch_fill(b, ctx);
    batch_reference(b);
    batch_mates(b, "no pool");
    if (b->scene[0].config.format.k == AURA_KIND_B4)
        batch_crowd(b, "a crowd");
    batch_empty(b);
    for (int i = 0; i < 4; i += small_run() ? 2 : 1) {
        aura_ctx *own = ctx_with_threads(threads[i]);
        batch_fill(b, own);
        for (int j = 0; j < JOBS; j++)
            expect_model(b->cache, b->seq[j], b->scene[j].model, "appended by a pool");
        batch_mates(b, "a pool");
        if (i == 2 && b->scene[0].config.format.k == AURA_KIND_B4)
            batch_crowd(b, "a crowd and a pool");
        batch_empty(b);
        aura_ctx_destroy(own);
    }
}

static void threads_and_batch_mates(void)
{
    static struct batch b;
    for (int pair = 0; pair < 3; pair++) {
        batch_init(&b, batch_config(pair));
        for (int isa = 0; use_isa(isa); isa++)
            try_threads(&b);
        batch_free(&b);
    }
}

/* ---- the caller's threads ------------------------------------------------------------------------------------------------ */

struct errand {
    void (*item)(void *work, size_t i);
    void *work;
    size_t i;
};

static void *run_errand(void *user)
{
    struct errand *e = user;
    e->item(e->work, e->i);
    return NULL;
}

static size_t items_run;

/* Backwards, every fifth one on a thread of its own. */
static void run_items(void *user, size_t items, void (*item)(void *work, size_t i), void *work)
{
    *(size_t *)user += items;
    for (size_t i = items; i-- > 0;) {
        struct errand e = {item, work, i};
        pthread_t thread;
        if (i % 5 == 3 && !pthread_create(&thread, NULL, run_errand, &e))
            pthread_join(thread, NULL);
        else
            item(work, i);
    }
}

static void count_run(void *user, size_t items, void (*item)(void *work, size_t i), void *work)
{
    ++*(size_t *)user;
    for (size_t i = 0; i < items; i++)
        item(work, i);
}

/* A step of one token is little work: threads are asked for it once. A step that closes a tile is not little. */
static void try_short_step(void)
{
    enum { HEADS = 2, DIM = 64 };
    static float x[64 * HEADS * DIM], out[HEADS * DIM];
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_config config = AURA_CONFIG_INIT;
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    aura_ctx *own = NULL;
    aura_cache *cache = NULL;
    size_t runs = 0, closing = 0;
    for (size_t i = 0; i < sizeof x / sizeof *x; i++)
        x[i] = (float)(i % 97) / 97 - 0.5f;
    options.executor.run = count_run, options.executor.user = &runs;
    config.q_heads = config.kv_heads = HEADS, config.k_dim = DIM;
    EXPECT(!aura_ctx_create(&options, &own) && !aura_cache_create(own, &config, &cache) && !aura_seq_create(cache, &in.seq), "%s",
           aura_last_error());
    in.tokens = 1, ask.seq = in.seq, ask.queries = 1, ask.q.data = x, ask.out.data = out;
    for (size_t t = 0; t < 64; t++) {
        in.k.data = in.v.data = x + t * HEADS * DIM;
        runs = 0;
        EXPECT(!aura_append(cache, &in, 1), "%s", aura_last_error());
        closing += runs > 0;
        EXPECT(!aura_attend(cache, &ask, 1, NULL) && runs <= 2, "token %zu: %s, %zu runs", t, aura_last_error(), runs);
    }
    EXPECT(closing == 1, "%zu of 64 tokens were appended by threads; one tile closes", closing);
    aura_cache_destroy(cache);
    aura_ctx_destroy(own);
}

static void try_executor(struct batch *b)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *own = NULL;
    options.isa_mask = aura_ctx_isas(ctx);
    options.executor.run = run_items, options.executor.user = &items_run;
    options.threads = 3;
    EXPECT(aura_ctx_create(&options, &own) == AURA_BAD_ARGUMENT && !own, "a pool and an executor");
    options.threads = 0;
    EXPECT(!aura_ctx_create(&options, &own), "%s", aura_last_error());
    batch_fill(b, ctx);
    batch_reference(b);
    batch_empty(b);
    batch_fill(b, own);
    items_run = 0;
    batch_mates(b, "an executor");
    EXPECT(items_run > JOBS, "only %zu items were given to the executor", items_run);
    batch_empty(b);
    aura_ctx_destroy(own);
}

static void executor_of_the_caller(void)
{
    static struct batch b;
    batch_init(&b, batch_config(0));
    for (int isa = 0; use_isa(isa); isa++)
        try_executor(&b);
    try_short_step();
    batch_free(&b);
}

/* ---- what memory held before ------------------------------------------------------------------------------------------------ */

/* Fills pages with long vectors, which would show in a result, and releases them. */
static void soil(aura_cache *cache, uint32_t tokens, int release)
{
    aura_config config = batch_config(0);
    float *x = malloc((size_t)tokens * 2 * 80 * sizeof *x);
    aura_seq seq = seq_new(cache);
    struct tensor k = tensor_new(tokens, 2, config.k_dim, AURA_F32, DENSE),
        v = tensor_new(tokens, 2, config.v_dim, AURA_F32, DENSE);
    for (size_t i = 0; i < (size_t)tokens * 2 * 80; i++)
        x[i] = i % 7 ? 5000.f : -5000.f;
    tensor_set(&k, x), tensor_set(&v, x);
    EXPECT(!append(cache, seq, &k, &v, 0, tokens), "%s", aura_last_error());
    EXPECT(release ? !aura_seq_release(cache, seq) : !aura_truncate(cache, seq, 0), "%s", aura_last_error());
    tensor_free(&k), tensor_free(&v);
    free(x);
}

/* A cache in memory full of `fill`; with `dirty`, its pages were used before. Its sequences were truncated, which must leave no
 * trace either. */
static void batch_fill_dirty(struct batch *b, aura_ctx *own, int dirty)
{
    b->cache = cache_new(own, &b->scene[0].config);
    if (dirty)
        soil(b->cache, 700, 0), soil(b->cache, 3000, 1);
    for (int j = 0; j < JOBS; j++) {
        b->seq[j] = b->call[j].job.seq = seq_new(b->cache);
        b->jobs[j] = b->call[j].job;
        EXPECT(!append(b->cache, b->seq[j], &b->scene[j].k, &b->scene[j].v, 0, b->scene[j].tokens), "%s", aura_last_error());
        if (b->scene[j].tokens > 40) {
            EXPECT(!append(b->cache, b->seq[j], &b->scene[0].k, &b->scene[0].v, 100, ROLLBACK), "%s", aura_last_error());
            EXPECT(!aura_truncate(b->cache, b->seq[j], b->scene[j].tokens), "%s", aura_last_error());
        }
    }
}

static void old_bytes_are_not_seen(void)
{
    static const int fills[] = {0x00, 0xff, 0x7b};
    static struct counting c;
    static struct batch b;
    for (int pair = 0; pair < 3; pair++) {
        batch_init(&b, batch_config(pair));
        for (int isa = 0; use_isa(isa); isa++)
            for (int i = 0; i < 6; i += small_run() ? 4 : 1) {
                aura_ctx *own = counting_ctx(&c, fills[i % 3], 1);
                batch_fill_dirty(&b, own, i >= 3);
                if (i == 0)
                    batch_reference(&b);
                batch_mates(&b, i < 3 ? "fresh memory" : "used memory");
                batch_empty(&b);
                aura_ctx_destroy(own);
            }
        batch_free(&b);
    }
}

static void try_float_modes(struct batch *b)
{
    unsigned long before = mode_get();
    batch_fill(b, ctx);
    batch_reference(b);
    for (int i = 0; i < N_MODES; i++) {
        mode_set(modes[i]);
        aura_status status = aura_attend(b->cache, b->jobs, JOBS, &b->options);
        unsigned long after = mode_get();
        mode_set(before);
        EXPECT(!status && after == modes[i], "mode 0x%x: %s, left as 0x%lx", modes[i], aura_last_error(), after);
        for (int j = 0; j < JOBS; j++)
            batch_same(b, j, "float mode");
    }
    batch_empty(b);
}

static void float_modes_change_no_bit(void)
{
    static struct batch b;
    batch_init(&b, batch_config(0));
    for (int isa = 0; use_isa(isa); isa++)
        try_float_modes(&b);
    batch_free(&b);
}

/* ---- the workspace ---------------------------------------------------------------------------------------------------------- */

/* A workspace of exactly the bytes asked for, aligned to 64 and no better, between canaries. */
static void attend_in_a_workspace(struct batch *b, struct counting *c, size_t bytes)
{
    enum { EDGE = 256 };
    char *whole = malloc(bytes + 2 * EDGE + 256), *space = whole + EDGE;
    size_t calls = c->calls;
    space += 64 - (uintptr_t)space % 64;
    space += (uintptr_t)space % 128 ? 0 : 64;
    memset(whole, 0xab, bytes + 2 * EDGE + 256);
    b->options.workspace = space, b->options.workspace_bytes = bytes;
    batch_mates(b, "a workspace");
    EXPECT(c->calls == calls, "attending with a workspace called the allocator %zu times", c->calls - calls);
    for (char *p = whole; p < whole + bytes + 2 * EDGE + 256; p++)
        if ((p < space || p >= space + bytes) && *p != (char)0xab) {
            EXPECT(0, "a byte %td from the workspace was written", p - space);
            break;
        }
    if (bytes) {
        b->options.workspace_bytes = bytes - 1;
        EXPECT(aura_attend(b->cache, b->jobs, JOBS, &b->options) == AURA_BAD_ARGUMENT, "a byte less");
        b->options.workspace = space + 32, b->options.workspace_bytes = bytes;
        EXPECT(aura_attend(b->cache, b->jobs, JOBS, &b->options) == AURA_BAD_ARGUMENT, "not aligned to 64");
    }
    b->options.workspace = NULL, b->options.workspace_bytes = 0;
    free(whole);
}

static void try_workspace(struct batch *b, uint32_t threads)
{
    static struct counting c;
    aura_ctx *own = counting_ctx(&c, 0xff, threads);
    size_t bytes = 0, planned = 0;
    batch_fill(b, own);
    batch_reference(b);
    EXPECT(!aura_attend_workspace(b->cache, b->jobs, JOBS, 0, &bytes), "%s", aura_last_error());
    EXPECT(!aura_attend_workspace(b->cache, b->jobs, JOBS, 1 << 20, &planned) && planned >= bytes,
           "%zu bytes for more tokens, not %zu", planned, bytes);
    attend_in_a_workspace(b, &c, bytes);
    size_t used = c.bytes;
    batch_attend(b, b->jobs, JOBS);
    EXPECT(c.bytes == used && !c.wrong, "a call without a workspace kept %zu bytes", c.bytes - used);
    c.fail_in = 0, c.failed = 0;
    aura_status status = aura_attend(b->cache, b->jobs, JOBS, &b->options);
    EXPECT(status == (c.failed ? AURA_OUT_OF_MEMORY : AURA_OK), "no memory: %s", aura_status_text(status));
    c.fail_in = -1;
    batch_empty(b);
    aura_ctx_destroy(own);
}

static void workspaces(void)
{
    static struct batch b;
    for (int pair = 0; pair < 3; pair++) {
        batch_init(&b, batch_config(pair));
        for (int isa = 0; use_isa(isa); isa++)
            try_workspace(&b, 1), try_workspace(&b, 3);
        batch_free(&b);
    }
}

/* Every query is read before the first row is written: an engine may attend in place. */
static void output_over_the_queries(void)
{
    enum { TOKENS = 100, HEADS = 6, DIM = 64, QUERIES = 3 };
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B5, DIM, DIM, 2);
    float kv[TOKENS * 2 * DIM], q[QUERIES * HEADS * DIM], out[QUERIES * HEADS * DIM];
    uint64_t state = 5;
    config.q_heads = HEADS;
    fill_vector(kv, TOKENS * 2 * DIM, NORMAL, &state);
    fill_vector(q, QUERIES * HEADS * DIM, NORMAL, &state);
    aura_cache *cache = cache_new(ctx, &config);
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job job = AURA_ATTEND_JOB_INIT;
    in.seq = job.seq = seq_new(cache), in.tokens = TOKENS, in.k.data = in.v.data = kv;
    job.queries = QUERIES, job.q.data = q, job.out.data = out;
    EXPECT(!aura_append(cache, &in, 1) && !aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
    float *kept = malloc(sizeof q);
    memcpy(kept, q, sizeof q);
    for (int shift = -3; shift <= 3; shift++) { /* by so many heads: rows lie on queries of other heads and tokens */
        float *space = malloc((QUERIES * HEADS + 6) * DIM * sizeof *space);
        memcpy(space + 3 * DIM, kept, sizeof q);
        job.q.data = space + 3 * DIM;
        job.out.data = space + (3 + shift) * DIM;
        EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
        EXPECT(!memcmp(out, job.out.data, sizeof out), "in place, %d heads on, the rows are others", shift);
        free(space);
    }
    free(kept);
    aura_cache_destroy(cache);
}

/* A job without work beside one whose tokens are two items: as many items as there are units, but not one of each. */
static void nothing_to_see_beside_two_splits(void)
{
    enum { TOKENS = 1500, DIM = 64 };
    static const uint64_t until = 0;
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, DIM, DIM, 1);
    struct scene scene = scene_new(config, TOKENS);
    aura_cache *cache = cache_new(ctx, &config);
    float q[DIM], alone[DIM], beside[DIM], nothing[DIM];
    uint64_t state = 6;
    aura_attend_job jobs[2] = {AURA_ATTEND_JOB_INIT, AURA_ATTEND_JOB_INIT};
    fill_vector(q, DIM, NORMAL, &state);
    aura_append_job in = append_job(seq_new(cache), &scene.k, &scene.v, 0, TOKENS);
    for (int i = 0; i < 2; i++)
        jobs[i].seq = in.seq, jobs[i].queries = 1, jobs[i].q.data = q;
    jobs[0].until = &until, jobs[0].out.data = nothing, jobs[1].out.data = alone;
    EXPECT(!aura_append(cache, &in, 1) && !aura_attend(cache, jobs + 1, 1, NULL), "%s", aura_last_error());
    jobs[1].out.data = beside;
    EXPECT(!aura_attend(cache, jobs, 2, NULL), "%s", aura_last_error());
    EXPECT(!memcmp(alone, beside, sizeof alone), "a job that sees nothing changed the row of another");
    for (int d = 0; d < DIM; d++)
        EXPECT(nothing[d] == 0, "a row that sees nothing has %g", (double)nothing[d]);
    aura_cache_destroy(cache);
    scene_free(&scene);
}

/* The newest queries of a sequence in calls of `at_once`, each with the limit that it has among all; or all of them, with none. */
static void ask_in_calls(float *out, aura_cache *cache, aura_seq seq, const float *q, size_t row, uint64_t tokens, uint32_t queries,
                         uint32_t at_once)
{
    uint64_t until[32];
    for (uint32_t i = 0; i < queries; i++)
        until[i] = tokens - queries + 1 + i;
    for (uint32_t i = 0; i < queries; i += at_once) {
        aura_attend_job job = AURA_ATTEND_JOB_INIT;
        job.seq = seq, job.queries = queries - i < at_once ? queries - i : at_once;
        job.q.data = q + i * row, job.out.data = out + i * row;
        job.until = at_once < queries ? until + i : NULL;
        EXPECT(!aura_attend(cache, &job, 1, NULL), "%s", aura_last_error());
    }
}

/* A row's bits do not depend on how many queries were asked at once; nor, where a window leaves the first tokens, on whether
 * the windows of others reach them; nor on how the tokens came. */
static void however_many_queries(void)
{
    enum { DIM = 64, HEADS = 3, QUERIES = 24, LONGEST = 1100 };
    static const struct {
        aura_kind k, v;
        uint32_t tokens, window;
    } cases[] = {{AURA_KIND_B4, AURA_KIND_B4, LONGEST, 0},  {AURA_KIND_B8, AURA_KIND_B3, 109, 64},
                 {AURA_KIND_B4, AURA_KIND_B6, 109, 64},     {AURA_KIND_B2, AURA_KIND_B5, 150, 0},
                 {AURA_KIND_F16, AURA_KIND_F32, 109, 64}};
    static float q[QUERIES * HEADS * DIM], all[QUERIES * HEADS * DIM], some[QUERIES * HEADS * DIM];
    uint64_t state = 7;
    fill_vector(q, QUERIES * HEADS * DIM, NORMAL, &state);
    for (size_t c = 0; c < sizeof cases / sizeof *cases; c++) {
        aura_config config = config_of(cases[c].k, cases[c].v, DIM, DIM, 1);
        config.q_heads = HEADS, config.window = cases[c].window, config.max_queries = cases[c].window ? QUERIES : 0;
        config.keep_first = cases[c].window ? 4 : 0;
        struct scene scene = scene_new(config, cases[c].tokens);
        aura_cache *cache = cache_new(ctx, &config);
        aura_seq seq[2] = {seq_new(cache), seq_new(cache)};
        for (uint32_t i = 0, n; i < cases[c].tokens; i += n) { /* one at a time, and by sevens */
            aura_append_job in[8];
            n = cases[c].tokens - i < 7 ? cases[c].tokens - i : 7;
            for (uint32_t t = 0; t < n; t++)
                in[t] = append_job(seq[0], &scene.k, &scene.v, i + t, 1);
            in[n] = append_job(seq[1], &scene.k, &scene.v, i, n);
            for (uint32_t t = 0; t <= n; t++)
                EXPECT(!aura_append(cache, &in[t], 1), "%s", aura_last_error());
        }
        ask_in_calls(all, cache, seq[0], q, HEADS * DIM, cases[c].tokens, QUERIES, QUERIES);
        for (uint32_t at_once = 1; at_once < QUERIES; at_once += 4) { /* 5 and 13 are odd parts of blocks of rows */
            ask_in_calls(some, cache, seq[at_once == 5], q, HEADS * DIM, cases[c].tokens, QUERIES, at_once);
            for (uint32_t i = 0; i < QUERIES; i++)
                EXPECT(!memcmp(all + i * HEADS * DIM, some + i * HEADS * DIM, HEADS * DIM * sizeof *all),
                       "k%u v%u, %u tokens: query %u, asked in calls of %u, has other bits", (unsigned)cases[c].k,
                       (unsigned)cases[c].v, cases[c].tokens, i, at_once);
        }
        aura_cache_destroy(cache);
        scene_free(&scene);
    }
}

static void in_place(void)
{
    RUN(however_many_queries);
    RUN(output_over_the_queries);
    RUN(nothing_to_see_beside_two_splits);
}

/* A workspace is also large enough for fewer queries and fewer tokens, however the work is then split. */
static void workspaces_grow_with_the_work(void)
{
    static const uint32_t queries[] = {1, 2, 8, 60, 100, 300, 340, 345, 400, 1000, 3000};
    static const uint64_t tokens[] = {1, 1024, 1025, 5000, 70000, 1 << 20};
    aura_config config = batch_config(0);
    aura_cache *cache = cache_new(ctx, &config);
    aura_attend_job jobs[2] = {AURA_ATTEND_JOB_INIT, AURA_ATTEND_JOB_INIT};
    size_t before[sizeof tokens / sizeof *tokens] = {0};
    jobs[0].seq = seq_new(cache), jobs[1].seq = seq_new(cache);
    for (size_t i = 0; i < sizeof queries / sizeof *queries; i++)
        for (size_t j = 0; j < sizeof tokens / sizeof *tokens; j++) {
            size_t bytes = 0;
            jobs[0].queries = queries[i], jobs[1].queries = queries[i] / 2;
            EXPECT(!aura_attend_workspace(cache, jobs, 2, tokens[j], &bytes), "%s", aura_last_error());
            EXPECT(bytes >= before[j] && (j == 0 || bytes >= before[j - 1]),
                   "%u queries over %llu tokens: %zu bytes, less than for fewer", queries[i],
                   (unsigned long long)tokens[j], bytes);
            before[j] = bytes;
        }
    aura_cache_destroy(cache);
}

int main(void)
{
    isas_open(1);
    RUN(threads_and_batch_mates);
    RUN(executor_of_the_caller);
    RUN(old_bytes_are_not_seen);
    RUN(float_modes_change_no_bit);
    RUN(workspaces);
    RUN(workspaces_grow_with_the_work);
    on_every_tile_isa(in_place);
    isas_close();
    return test_result();
}
