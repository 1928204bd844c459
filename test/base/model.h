/* Every interleaving of threads, up to a number of preemptions: a file of src/base is compiled into a program with atomics,
 * mutexes, conditions and threads that a scheduler decides about. A thread is a fiber; whenever it is about to touch what others
 * see, the scheduler may let another one go first. One run after the other takes the next choice, until there are none left. A run
 * in which nobody can go on, or of which the program says that it is wrong, is a failure, and the choices that lead there are
 * printed.
 *
 * Memory is sequentially consistent here; orders that are weaker are what the thread sanitizer looks at. */
#ifndef AURA_MODEL_H
#define AURA_MODEL_H

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <ucontext.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "../test.h"

/* ---- the scheduler -------------------------------------------------------------------------------------------------- */

enum { MAIN = 0, FIBERS = 4, STACK = 1 << 18, CHOICES = 4096 };

struct fiber {
    ucontext_t context;
    char *stack;
    void *(*body)(void *);
    void *user;
    int alive;
    const void *waits_for; /* a mutex, a condition, a fiber to join, or &change: not able to go on */
};

static struct fiber fibers[FIBERS];
static int n_fibers, current;
static ucontext_t scheduler;
static const char change; /* what a spinning thread waits for: that somebody writes */

/* The choices of this run: which of how many. Those of the next one are these with the last that has another changed. */
static struct choice {
    unsigned char taken, of;
} choices[CHOICES];
static int n_choices, at_choice;
static int preemptions, most_preemptions;
static const char *wrong;
static const char *lock_left_out_in = ""; /* the planted bug: the function that does without its lock */

static void fail(const char *what)
{
    wrong = wrong ? wrong : what;
}

static int choose(int of)
{
    if (of <= 1 || wrong)
        return 0;
    if (at_choice == CHOICES) {
        fail("a run has too many choices");
        return 0;
    }
    if (at_choice == n_choices) {
        choices[n_choices].taken = 0;
        choices[n_choices++].of = (unsigned char)of;
    }
    return choices[at_choice++].taken;
}

/* Whether there is another run, and its choices. */
static int next_run(void)
{
    while (n_choices && choices[n_choices - 1].taken + 1 == choices[n_choices - 1].of)
        n_choices--;
    if (!n_choices)
        return 0;
    choices[n_choices - 1].taken++;
    return 1;
}

static void yield_to_scheduler(void)
{
    swapcontext(&fibers[current].context, &scheduler);
}

/* Somebody else may go first. */
static void point(void)
{
    yield_to_scheduler();
}

static void wait_for(const void *what)
{
    fibers[current].waits_for = what;
    yield_to_scheduler();
}

static void wake_all(const void *what)
{
    for (int i = 0; i < n_fibers; i++)
        if (fibers[i].waits_for == what)
            fibers[i].waits_for = NULL;
}

static void written(void)
{
    wake_all(&change);
}

static void start(void)
{
    struct fiber *f = &fibers[current];
    f->body(f->user);
    f->alive = 0;
    wake_all(f);
    yield_to_scheduler();
}

static int add_fiber(void *(*body)(void *), void *user)
{
    struct fiber *f = &fibers[n_fibers];
    if (!f->stack)
        f->stack = malloc(STACK);
    f->body = body, f->user = user;
    f->alive = 1, f->waits_for = NULL;
    getcontext(&f->context);
    f->context.uc_stack.ss_sp = f->stack;
    f->context.uc_stack.ss_size = STACK;
    f->context.uc_link = NULL;
    makecontext(&f->context, start, 0);
    return n_fibers++;
}

/* One run, until all have ended or nobody can go on. To take the turn from one that could go on is a preemption. */
static void run_all(void)
{
    while (!wrong) {
        int able[FIBERS], n = 0;
        const int goes_on = fibers[current].alive && !fibers[current].waits_for;
        if (goes_on)
            able[n++] = current;
        for (int i = 0; i < n_fibers; i++)
            if (i != current && fibers[i].alive && !fibers[i].waits_for)
                able[n++] = i;
        if (!n)
            break;
        const int taken = choose(goes_on && preemptions == most_preemptions ? 1 : n);
        preemptions += goes_on && taken > 0;
        current = able[taken];
        swapcontext(&scheduler, &fibers[current].context);
    }
    for (int i = 0; i < n_fibers; i++)
        if (fibers[i].alive)
            fail("some threads wait for ever");
}

/* ---- what the library calls ------------------------------------------------------------------------------------------- */

static int model_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *user)
{
    (void)attributes;
    *thread = (pthread_t)add_fiber(body, user);
    return 0;
}

static int model_join(pthread_t thread, void **result)
{
    (void)result;
    point();
    while (fibers[(int)thread].alive)
        wait_for(&fibers[(int)thread]);
    return 0;
}

/* A mutex is a word of its own memory: who has it, plus 1. */
static int model_lock(pthread_mutex_t *mutex)
{
    int *owner = (int *)(void *)mutex;
    point();
    while (*owner)
        wait_for(mutex);
    *owner = current + 1;
    return 0;
}

static int model_unlock(pthread_mutex_t *mutex)
{
    *(int *)(void *)mutex = 0;
    wake_all(mutex);
    return 0;
}

static int model_wait(pthread_cond_t *condition, pthread_mutex_t *mutex)
{
    point();
    model_unlock(mutex);
    wait_for(condition);
    while (*(int *)(void *)mutex)
        wait_for(mutex);
    *(int *)(void *)mutex = current + 1;
    return 0;
}

static int model_broadcast(pthread_cond_t *condition)
{
    point();
    wake_all(condition);
    return 0;
}

static int model_signal(pthread_cond_t *condition)
{
    int asleep[FIBERS], n = 0;
    point();
    for (int i = 0; i < n_fibers; i++)
        if (fibers[i].waits_for == condition)
            asleep[n++] = i;
    if (n)
        fibers[asleep[choose(n)]].waits_for = NULL;
    return 0;
}

static int model_mutex_init(pthread_mutex_t *mutex, const pthread_mutexattr_t *attributes)
{
    (void)attributes;
    memset(mutex, 0, sizeof *mutex);
    return 0;
}

/* Spinning ends at once, or never: the clock stands still, or has gone far when it is looked at again. */
static int spins;
static int model_clock(clockid_t id, struct timespec *t)
{
    static long seconds;
    (void)id;
    t->tv_nsec = 0;
    t->tv_sec = spins ? seconds : ++seconds;
    return 0;
}

static int model_yield(void)
{
    return 0;
}

#if defined(__x86_64__)
static void model_pause(void)
{
    wait_for(&change);
}
#endif

static int is_planted(const char *function)
{
    return !strcmp(function, lock_left_out_in);
}

#define pthread_create model_create
#define pthread_join model_join
#define pthread_self() ((pthread_t)(current + 1))
#define pthread_mutex_lock(m) (is_planted(__func__) ? 0 : model_lock(m))
#define pthread_mutex_unlock(m) (is_planted(__func__) ? 0 : model_unlock(m))
#define pthread_mutex_init model_mutex_init
#define pthread_mutex_destroy(m) ((void)(m))
#define pthread_cond_init(c, a) ((void)(c))
#define pthread_cond_destroy(c) ((void)(c))
#define pthread_cond_wait model_wait
#define pthread_cond_signal model_signal
#define pthread_cond_broadcast model_broadcast
#define clock_gettime model_clock
#define sched_yield model_yield
#if defined(__x86_64__)
#define _mm_pause model_pause
#endif
#undef atomic_load
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_and
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_strong
#define ORDER memory_order_seq_cst
#define atomic_load(p) (point(), atomic_load_explicit(p, ORDER))
#define atomic_store(p, x) (point(), written(), (void)atomic_exchange_explicit(p, x, ORDER))
#define atomic_store_explicit(p, x, order) atomic_store(p, x)
#define atomic_fetch_add(p, x) (point(), written(), atomic_fetch_sub_explicit(p, 0 - (x), ORDER))
#define atomic_fetch_add_explicit(p, x, order) atomic_fetch_add(p, x)
#define atomic_fetch_sub(p, x) (point(), written(), atomic_fetch_sub_explicit(p, x, ORDER))
#define atomic_fetch_and(p, x) (point(), written(), atomic_fetch_and_explicit(p, x, ORDER))
#define atomic_compare_exchange_weak(p, expected, x) \
    (point(), written(), atomic_compare_exchange_strong_explicit(p, expected, x, ORDER, ORDER))
#define atomic_compare_exchange_strong atomic_compare_exchange_weak

/* ---- all runs -------------------------------------------------------------------------------------------------------- */

/* All runs of `body` and of what it starts; returns how many there were. A run that goes wrong is the last one, and leaves its
 * memory behind. */
static long explore(void (*prepare)(void), void *(*body)(void *), int spinning, int bound)
{
    long runs = 0;
    spins = spinning, most_preemptions = bound;
    n_choices = 0, wrong = NULL;
    do {
        n_fibers = current = at_choice = preemptions = 0;
        prepare();
        add_fiber(body, NULL);
        run_all();
        runs++;
    } while (!wrong && next_run());
    return runs;
}

static void expect_no_fault(long runs, int bound)
{
    EXPECT(!wrong, "%s, in run %ld", wrong, runs);
    for (int i = 0; wrong && i < at_choice; i++)
        printf("%s%d/%d", i ? " " : "  choices ", choices[i].taken, choices[i].of);
    printf("%s  %d preemptions: %ld runs\n", wrong ? "\n" : "", bound, runs);
    EXPECT(runs > 100, "hardly anything was tried");
}

#endif
