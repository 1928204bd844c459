/* aura_run: every item once, on whatever threads there are, in one float mode. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../../src/base/context.h"
#include "modes.h"
#include "../test.h"

enum { MOST = 1000 };

static aura_ctx *make(uint32_t threads)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = NULL;
    o.threads = threads;
    EXPECT(!aura_ctx_create(&o, &made), "%u threads: %s", threads, aura_last_error());
    return made;
}

/* Plain ints, not atomic: an item that runs twice at once, or that the caller does not see, is a race. */
struct counts {
    int ran[MOST];
    int slow; /* every item whose number is a multiple of it takes a while; 0: none */
};

static void count(void *work, size_t i)
{
    struct counts *c = work;
    c->ran[i]++;
    if (c->slow && i % (size_t)c->slow == 0)
        usleep(300); /* longer than a thread spins: the others have to sleep */
}

/* 1 when the first `items` ran exactly once and no other did. */
static int once(const struct counts *c, size_t items)
{
    for (size_t i = 0; i < MOST; i++)
        if (c->ran[i] != (i < items))
            return 0;
    return 1;
}

static void every_item_runs_once(void)
{
    static const uint32_t threads[] = {0, 1, 2, 3, 7};
    static const size_t items[] = {0, 1, 2, 1000};
    static struct counts c;
    for (size_t t = 0; t < 5; t++) {
        aura_ctx *ctx = make(threads[t]);
        for (int repeat = 0; repeat < 40; repeat++)
            for (size_t n = 0; n < 4; n++) {
                memset(&c, 0, sizeof c);
                c.slow = repeat % 4 == 3 ? 333 : 0;
                aura_run(ctx, items[n], count, &c);
                EXPECT(once(&c, items[n]), "%u threads, %zu items", threads[t], items[n]);
            }
        aura_ctx_destroy(ctx);
    }
}

/* Items that wait for each other: they end only when every thread has taken one. */
struct meeting {
    atomic_uint arrived;
    unsigned expected;
    atomic_int late;
};

static void meet(void *work, size_t i)
{
    struct meeting *m = work;
    time_t deadline = time(NULL) + 20;
    (void)i;
    atomic_fetch_add(&m->arrived, 1);
    while (atomic_load(&m->arrived) < m->expected && !atomic_load(&m->late)) {
        sched_yield();
        if (time(NULL) > deadline)
            atomic_store(&m->late, 1);
    }
}

static void all_threads_take_part(void)
{
    static const uint32_t threads[] = {2, 3, 7};
    for (size_t t = 0; t < 3; t++) {
        aura_ctx *ctx = make(threads[t]);
        for (int repeat = 0; repeat < 60 && !test_bad_lines; repeat++) {
            struct meeting m = {0, threads[t], 0};
            usleep((useconds_t)(repeat % 6 * 20)); /* the workers spin, fall asleep, sleep */
            aura_run(ctx, threads[t], meet, &m);
            EXPECT(!atomic_load(&m.late), "%u threads, repeat %d: %u came", threads[t], repeat, atomic_load(&m.arrived));
        }
        aura_ctx_destroy(ctx);
    }
}

static pthread_t item_thread;
static void note_thread(void *work, size_t i)
{
    (void)work, (void)i;
    item_thread = pthread_self();
}

static void one_item_stays_here(void)
{
    aura_ctx *ctx = make(3);
    for (int i = 0; i < 200; i++) {
        aura_run(ctx, 1, note_thread, NULL);
        EXPECT(pthread_equal(item_thread, pthread_self()), "a single item went to another thread");
    }
    aura_ctx_destroy(ctx);
}

/* ---- several calls at once --------------------------------------------------------------------------------------- */

struct user {
    aura_ctx *ctx;
    pthread_t thread;
    int wrong;
};

static void *use(void *arg)
{
    struct user *u = arg;
    struct counts *c = malloc(sizeof *c);
    for (int repeat = 0; repeat < 200; repeat++) {
        memset(c, 0, sizeof *c);
        aura_run(u->ctx, 50, count, c);
        u->wrong += !once(c, 50);
    }
    free(c);
    return NULL;
}

static void calls_from_several_threads(void)
{
    struct user users[4] = {{0}};
    aura_ctx *ctx = make(3);
    for (int i = 0; i < 4; i++) {
        users[i].ctx = ctx;
        EXPECT(!pthread_create(&users[i].thread, NULL, use, &users[i]), "no thread");
    }
    for (int i = 0; i < 4; i++) {
        pthread_join(users[i].thread, NULL);
        EXPECT(!users[i].wrong, "user %d: %d wrong", i, users[i].wrong);
    }
    aura_ctx_destroy(ctx);
}

struct outer {
    const aura_ctx *ctx;
    struct counts inner[8];
};

static void run_inner(void *work, size_t i)
{
    struct outer *o = work;
    aura_run(o->ctx, 100, count, &o->inner[i]);
}

static void items_may_run_items(void)
{
    static struct outer o;
    aura_ctx *ctx = make(3);
    memset(&o, 0, sizeof o);
    o.ctx = ctx;
    aura_run(ctx, 8, run_inner, &o);
    for (int i = 0; i < 8; i++)
        EXPECT(once(&o.inner[i], 100), "item %d", i);
    aura_ctx_destroy(ctx);
}

/* ---- the caller's threads ---------------------------------------------------------------------------------------- */

struct fake_executor {
    int calls;
    size_t items;
    unsigned long mode; /* of its threads */
};

static void run_backwards(void *user, size_t items, void (*item)(void *work, size_t i), void *work)
{
    struct fake_executor *e = user;
    unsigned long before = mode_get();
    e->calls++;
    e->items += items;
    mode_set(e->mode);
    for (size_t i = items; i-- > 0;)
        item(work, i);
    mode_set(before);
}

static void the_executor_is_used(void)
{
    static struct counts c;
    struct fake_executor e = {0, 0, mode_get()};
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *ctx;
    o.executor.run = run_backwards;
    o.executor.user = &e;
    o.threads = 1;
    EXPECT(!aura_ctx_create(&o, &ctx), "%s", aura_last_error());
    memset(&c, 0, sizeof c);
    aura_run(ctx, 77, count, &c);
    EXPECT(once(&c, 77) && e.calls == 1 && e.items == 77, "%d calls with %zu items", e.calls, e.items);
    memset(&c, 0, sizeof c);
    aura_run(ctx, 1, count, &c);
    aura_run(ctx, 0, count, &c);
    EXPECT(once(&c, 1) && e.calls == 1, "one item is not worth a call");
    aura_ctx_destroy(ctx);
}

struct seen_modes {
    unsigned long mode[64];
};

static void note_mode(void *work, size_t i)
{
    struct seen_modes *s = work;
    s->mode[i] = mode_get();
    usleep(50); /* so that other threads get some */
}

/* Threads inherit the float mode of the thread that starts them, so the test also makes the pool in an unusual mode. */
static void items_run_in_one_float_mode(void)
{
    unsigned long normal = mode_get();
    for (int m = 0; m < N_MODES; m++)
        for (int way = 0; way < 3; way++) {
            struct seen_modes seen;
            struct fake_executor e = {0, 0, modes[m]};
            aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
            aura_ctx *ctx;
            o.threads = way == 1 ? 3 : 1;
            o.executor.run = way == 2 ? run_backwards : NULL;
            o.executor.user = &e;
            mode_set(modes[m]);
            aura_status status = aura_ctx_create(&o, &ctx);
            aura_run(ctx, 64, note_mode, &seen);
            unsigned long after = mode_get();
            mode_set(normal);
            EXPECT(!status, "%s", aura_last_error());
            EXPECT(after == modes[m], "mode 0x%x came back as 0x%lx", modes[m], after);
            for (int i = 0; i < 64; i++)
                EXPECT(seen.mode[i] == normal, "way %d: item %d ran in mode 0x%lx", way, i, seen.mode[i]);
            aura_ctx_destroy(ctx);
        }
}

/* ---- options ----------------------------------------------------------------------------------------------------- */

static void misuse(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = (aura_ctx *)&o;
    o.threads = 1025;
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "1024"), "%s", aura_last_error());
    o.threads = UINT32_MAX;
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT, "%s", aura_last_error());
    o.threads = 2;
    o.executor.run = run_backwards;
    EXPECT(aura_ctx_create(&o, &made) == AURA_BAD_ARGUMENT && strstr(aura_last_error(), "executor"), "%s", aura_last_error());
    EXPECT(made == (aura_ctx *)&o, "a failing create changed *ctx");
}

static size_t allocated;
static int allocations_left;
static void *scarce_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    if (allocations_left-- <= 0 || posix_memalign(&memory, align, bytes))
        return NULL;
    allocated += bytes;
    return memory;
}
static void scarce_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    allocated -= bytes;
    free(memory);
}

static void no_memory_for_the_pool(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = (aura_ctx *)&o;
    int tries = 0;
    o.allocator.alloc = scarce_alloc, o.allocator.free = scarce_free;
    o.threads = 5;
    for (;; tries++) {
        allocations_left = tries;
        aura_status status = aura_ctx_create(&o, &made);
        if (!status)
            break;
        EXPECT(status == AURA_OUT_OF_MEMORY && strstr(aura_last_error(), "aura_ctx_create: the allocator"), "%s",
               aura_last_error());
        EXPECT(made == (aura_ctx *)&o && allocated == 0, "%zu bytes left after failure %d", allocated, tries);
    }
    EXPECT(tries == 2, "a context and a pool are %d allocations", tries);
    aura_ctx_destroy(made);
    EXPECT(allocated == 0, "%zu bytes not given back", allocated);
}

static void the_default_allocator_aligns(void)
{
    aura_ctx *ctx = make(0);
    aura_allocator a = ctx->allocator;
    for (size_t align = 64; align <= (size_t)2 << 20; align *= 2) {
        void *memory = a.alloc(a.user, align + 1, align);
        EXPECT(memory && (uintptr_t)memory % align == 0, "%zu: %p", align, memory);
        if (memory)
            memset(memory, 1, align + 1);
        a.free(a.user, memory, align + 1);
    }
    EXPECT(!a.alloc(a.user, SIZE_MAX - 5, 64), "more than there is");
    aura_ctx_destroy(ctx);
}

int main(void)
{
    RUN(every_item_runs_once);
    RUN(all_threads_take_part);
    RUN(one_item_stays_here);
    RUN(calls_from_several_threads);
    RUN(items_may_run_items);
    RUN(the_executor_is_used);
    RUN(items_run_in_one_float_mode);
    RUN(misuse);
    RUN(no_memory_for_the_pool);
    RUN(the_default_allocator_aligns);
    return test_result();
}
