/* A team of lent threads through the public calls: what is stored and attended to is the same with any number of them, and each
 * misuse has its message. test/base/team_model.c has the interleavings. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../../include/aura_team.h"
#include "../test.h"

/* ---- an engine: n threads, each of which enters every operation, and a barrier after it ------------------------------- */

enum { MOST_THREADS = 4, STEPS = 60 };

struct engine {
    aura_team *team;
    void (*operation)(struct engine *engine, int step); /* what thread 0 does */
    atomic_int arrived, step;
    int threads;
    int (*takes_part)(int thread, int step);
    int (*threads_of)(int step);
};

static void barrier(struct engine *e, int step)
{
    if (atomic_fetch_add(&e->arrived, 1) + 1 == e->threads) {
        atomic_store(&e->arrived, 0);
        atomic_store(&e->step, step + 1);
    }
    while (atomic_load(&e->step) <= step)
        sched_yield();
}

struct member {
    struct engine *engine;
    int thread;
};

static void *member_main(void *user)
{
    struct member *m = user;
    struct engine *e = m->engine;
    for (int step = 0; step < STEPS; step++) {
        const int threads = e->threads_of(step);
        if (m->thread == 0) {
            EXPECT(!aura_team_lead(e->team, (uint32_t)threads), "%s", aura_last_error());
            e->operation(e, step);
            EXPECT(!aura_team_end(e->team), "%s", aura_last_error());
        } else if (m->thread < threads && e->takes_part(m->thread, step)) {
            EXPECT(!aura_team_serve(e->team, (uint32_t)m->thread), "%s", aura_last_error());
        }
        barrier(e, step);
    }
    return NULL;
}

static void run_engine(struct engine *e)
{
    pthread_t thread[MOST_THREADS];
    struct member member[MOST_THREADS];
    for (int i = 0; i < e->threads; i++) {
        member[i].engine = e, member[i].thread = i;
        if (i && pthread_create(&thread[i], NULL, member_main, &member[i]))
            exit(1);
    }
    member_main(&member[0]);
    for (int i = 1; i < e->threads; i++)
        pthread_join(thread[i], NULL);
}

static int always(int thread, int step)
{
    (void)thread, (void)step;
    return 1;
}

static int sometimes(int thread, int step)
{
    return (thread * 7 + step * 5) % 3 > 0;
}

static int late(int thread, int step)
{
    usleep((useconds_t)((thread + step) % 4) * 60);
    return 1;
}

static int all(int step)
{
    (void)step;
    return MOST_THREADS;
}

static int changing(int step)
{
    return 1 + (step * 3 + step / 7) % MOST_THREADS;
}

/* ---- a cache on it ---------------------------------------------------------------------------------------------------- */

enum { Q_HEADS = 8, KV_HEADS = 4, DIM = 64, PROMPT = 300 };

static struct world {
    aura_ctx *ctx;
    aura_cache *cache;
    aura_seq seq;
    float out[STEPS][Q_HEADS * DIM];
} alone, together;

static float number(int step, int i)
{
    return (float)((step * 131 + i * 7919) % 1000) / 500 - 1;
}

/* Appends a token, or a prompt at first, and attends to all: a few batches in each lead. */
static void decode_step(struct world *w, int step)
{
    static float k[PROMPT * KV_HEADS * DIM], q[Q_HEADS * DIM];
    const int tokens = step ? 1 : PROMPT;
    aura_append_job in = AURA_APPEND_JOB_INIT;
    aura_attend_job ask = AURA_ATTEND_JOB_INIT;
    for (int i = 0; i < tokens * KV_HEADS * DIM; i++)
        k[i] = number(step, i);
    for (int i = 0; i < Q_HEADS * DIM; i++)
        q[i] = number(step + 1, i);
    in.seq = ask.seq = w->seq;
    in.tokens = (uint32_t)tokens, in.k.data = k, in.v.data = k;
    ask.queries = 1, ask.q.data = q, ask.out.data = w->out[step];
    EXPECT(!aura_append(w->cache, &in, 1) && !aura_attend(w->cache, &ask, 1, NULL), "%s", aura_last_error());
}

static void operation_of_the_cache(struct engine *e, int step)
{
    (void)e;
    decode_step(&together, step);
}

static void open_world(struct world *w, const aura_executor *executor)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_config c = AURA_CONFIG_INIT;
    if (executor)
        o.executor = *executor;
    c.q_heads = Q_HEADS, c.kv_heads = KV_HEADS, c.k_dim = DIM;
    memset(w, 0, sizeof *w);
    if (aura_ctx_create(&o, &w->ctx) || aura_cache_create(w->ctx, &c, &w->cache) || aura_seq_create(w->cache, &w->seq))
        exit(1);
}

static void close_world(struct world *w)
{
    aura_cache_destroy(w->cache);
    aura_ctx_destroy(w->ctx);
}

static void expect_same(int (*takes_part)(int, int), int (*threads_of)(int))
{
    struct engine e = {.operation = operation_of_the_cache, .threads = MOST_THREADS};
    e.takes_part = takes_part, e.threads_of = threads_of;
    EXPECT(!aura_team_create(NULL, MOST_THREADS, &e.team), "%s", aura_last_error());
    const aura_executor executor = aura_team_executor(e.team);
    open_world(&together, &executor);
    run_engine(&e);
    EXPECT(!memcmp(alone.out, together.out, sizeof alone.out), "other results on lent threads");
    close_world(&together);
    aura_team_destroy(e.team);
}

static void results_are_those_of_one_thread(void)
{
    open_world(&alone, NULL);
    for (int step = 0; step < STEPS; step++)
        decode_step(&alone, step);
    expect_same(always, all);
    expect_same(always, changing);
    expect_same(sometimes, all);
    expect_same(late, changing);
    close_world(&alone);
}

/* ---- do they help? ---------------------------------------------------------------------------------------------------- */

static atomic_int arrived, met;

/* Items that end only when all threads have taken one, or after a long time. */
static void meet(void *work, size_t i)
{
    const time_t deadline = time(NULL) + 20;
    (void)work, (void)i;
    atomic_fetch_add(&arrived, 1);
    while (atomic_load(&arrived) % MOST_THREADS && time(NULL) < deadline)
        sched_yield();
    if (time(NULL) < deadline)
        atomic_fetch_add(&met, 1);
}

static void meet_twice(struct engine *e, int step)
{
    const aura_executor executor = aura_team_executor(e->team);
    for (int section = 0; step < 2 && section < 2; section++) {
        executor.run(executor.user, MOST_THREADS, meet, NULL);
        usleep(section ? 0 : 300); /* longer than a thread looks: it has to be woken for the second */
    }
}

static void all_threads_work(void)
{
    struct engine e = {.operation = meet_twice, .threads = MOST_THREADS, .takes_part = always, .threads_of = all};
    atomic_store(&arrived, 0), atomic_store(&met, 0);
    EXPECT(!aura_team_create(NULL, MOST_THREADS, &e.team), "%s", aura_last_error());
    run_engine(&e);
    EXPECT(atomic_load(&met) == 4 * MOST_THREADS, "%d of %d items met the others", atomic_load(&met), 4 * MOST_THREADS);
    aura_team_destroy(e.team);
}

/* An item that calls out items of its own gets them done on its own thread. */
static void inner(void *work, size_t i)
{
    (void)i;
    atomic_fetch_add((atomic_int *)work, 1);
}

struct nesting {
    aura_executor executor;
    atomic_int ran;
};

static void outer(void *work, size_t i)
{
    struct nesting *n = work;
    (void)i;
    n->executor.run(n->executor.user, 5, inner, &n->ran);
}

static void items_may_call_out_items(void)
{
    struct nesting n = {.ran = 0};
    aura_team *team = NULL;
    EXPECT(!aura_team_create(NULL, 2, &team), "%s", aura_last_error());
    n.executor = aura_team_executor(team);
    EXPECT(!aura_team_lead(team, 2), "%s", aura_last_error());
    n.executor.run(n.executor.user, 3, outer, &n);
    EXPECT(!aura_team_end(team), "%s", aura_last_error());
    n.executor.run(n.executor.user, 3, outer, &n); /* nobody leads: this thread alone */
    EXPECT(atomic_load(&n.ran) == 30, "%d items ran", atomic_load(&n.ran));
    aura_team_destroy(team);
}

/* ---- misuse ------------------------------------------------------------------------------------------------------------ */

static size_t taken, given;

static void *count_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    taken += bytes;
    return posix_memalign(&memory, align, bytes) ? NULL : memory;
}

static void count_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    given += bytes;
    free(memory);
}

static void refused(aura_status status, const char *word)
{
    EXPECT(status == AURA_BAD_ARGUMENT && strstr(aura_last_error(), word), "status %d, %s", (int)status, aura_last_error());
}

static void *serve_once(void *user)
{
    EXPECT(!aura_team_serve(user, 1), "%s", aura_last_error());
    return NULL;
}

static void *lead_from_elsewhere(void *user)
{
    refused(aura_team_lead(user, 2), "another thread leads");
    refused(aura_team_end(user), "does not lead");
    return NULL;
}

static void misuse_is_refused(void)
{
    aura_team *team = NULL;
    aura_allocator half = {NULL, NULL, NULL};
    pthread_t other;
    half.free = count_free;
    refused(aura_team_create(NULL, 2, NULL), "team is NULL");
    refused(aura_team_create(NULL, 0, &team), "threads is 0");
    refused(aura_team_create(NULL, 1025, &team), "threads is 1025");
    refused(aura_team_create(&half, 2, &team), "both");
    EXPECT(!team && !aura_team_executor(NULL).run, "made of nothing");
    EXPECT(!aura_team_create(NULL, 2, &team), "%s", aura_last_error());
    refused(aura_team_end(team), "does not lead");
    refused(aura_team_lead(team, 0), "0 threads");
    refused(aura_team_lead(team, 3), "3 threads");
    refused(aura_team_serve(team, 0), "thread 0 leads");
    refused(aura_team_serve(team, 2), "thread 2");
    refused(aura_team_lead(NULL, 1), "NULL");
    refused(aura_team_serve(NULL, 1), "NULL");
    refused(aura_team_end(NULL), "NULL");
    EXPECT(!aura_team_lead(team, 2), "%s", aura_last_error());
    refused(aura_team_lead(team, 2), "this thread leads already");
    refused(aura_team_serve(team, 1), "this thread leads");
    pthread_create(&other, NULL, lead_from_elsewhere, team);
    pthread_join(other, NULL);
    EXPECT(!aura_team_end(team), "%s", aura_last_error());
    EXPECT(!aura_team_serve(team, 1), "came too late, and was refused: %s", aura_last_error());
    aura_team_destroy(team);
    aura_team_destroy(NULL);
}

/* The number that serves is refused to another thread until it is back. */
static void a_number_serves_once(void)
{
    aura_team *team = NULL;
    pthread_t other;
    EXPECT(!aura_team_create(NULL, 2, &team), "%s", aura_last_error());
    pthread_create(&other, NULL, serve_once, team);
    usleep(20000); /* it waits for a lead by now, asleep */
    refused(aura_team_serve(team, 1), "serves already");
    EXPECT(!aura_team_lead(team, 2) && !aura_team_end(team), "%s", aura_last_error());
    pthread_join(other, NULL);
    aura_team_destroy(team);
}

static void *no_alloc(void *user, size_t bytes, size_t align)
{
    (void)user, (void)bytes, (void)align;
    return NULL;
}

static void its_memory_is_the_allocators(void)
{
    const aura_allocator counting = {count_alloc, count_free, NULL}, none = {no_alloc, count_free, NULL};
    aura_team *team = NULL;
    EXPECT(aura_team_create(&none, 2, &team) == AURA_OUT_OF_MEMORY && !team, "no memory, and a team");
    EXPECT(!aura_team_create(&counting, 8, &team) && taken > 0, "%s", aura_last_error());
    const size_t before = taken;
    for (uint32_t i = 0; i < 100; i++)
        EXPECT(!aura_team_lead(team, 1 + i % 8) && !aura_team_end(team), "%s", aura_last_error());
    aura_team_destroy(team);
    EXPECT(taken == before && given == taken, "%zu bytes taken, %zu given back", taken, given);
}

int main(void)
{
    RUN(results_are_those_of_one_thread);
    RUN(all_threads_work);
    RUN(items_may_call_out_items);
    RUN(misuse_is_refused);
    RUN(a_number_serves_once);
    RUN(its_memory_is_the_allocators);
    return test_result();
}
