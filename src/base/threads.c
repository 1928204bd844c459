/* The workers of a context: threads that sleep until there is a batch of items.
 *
 * Everything turns on one atomic word. A batch is open while its bit is set; a worker enters by adding 1 to the word
 * while that bit is set, and leaves by subtracting 1. The caller takes items like the workers, then clears the bit and
 * waits until nobody is inside. So it never waits for a worker that has not woken up yet: that one finds the door shut.
 * What a batch is (plain fields) changes only while the batch is closed and nobody is inside.
 *
 * A call of the cache is a few batches one right after the other. Waking a thread takes as long as a batch of a short
 * sequence does, so both sides look at the word for a while before they sleep. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime, pthread_sigmask */
#include "exact.h"
#include "threads.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <time.h>

#include "context.h"
#include "fpmode.h"

#define SPIN_NANOSECONDS 50000
#define STACK_BYTES ((size_t)1 << 20) /* 128 KiB for the item, the rest for thread-local data and sanitizers */

/* The word: number of the batch, is it open, how many workers are inside. */
#define OPEN ((uint64_t)1 << 31)
#define INSIDE (OPEN - 1)
#define NUMBER(word) ((uint32_t)((word) >> 32))

struct aura_workers {
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) _Atomic size_t next;        /* the first item that nobody has taken */
    _Alignas(64) size_t items;               /* of the batch */
    void (*item)(void *work, size_t i);
    void *work;
    atomic_flag taken;                       /* somebody's batch is running */
    atomic_uint sleeping;                    /* workers that need to be woken */
    atomic_int caller_sleeps, stop;
    pthread_mutex_t lock;                    /* of the two conditions */
    pthread_cond_t wake, done;
    uint32_t count;
    pthread_t thread[];
};

#if defined(__x86_64__)
static void pause_cpu(void)
{
    _mm_pause();
}
#elif defined(__aarch64__)
static void pause_cpu(void)
{
    __asm__ volatile("yield");
}
#else
static void pause_cpu(void)
{
}
#endif

static uint64_t now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Until ready(workers, what), but not for long. Returns whether it is. The yield is for machines that have more to do than
 * cores: whoever is waited for may be waiting for this very core, and would get it only when the spinning ends. (One core
 * left for two threads, 8 items of 5 us: 96 us a batch without it, 45 with; Xeon, Linux 6.18, 2026-11.) */
static int spin(struct aura_workers *workers, int (*ready)(struct aura_workers *workers, uint32_t what), uint32_t what)
{
    for (uint64_t start = now(); now() - start < SPIN_NANOSECONDS; sched_yield())
        for (int i = 0; i < 32; i++) {
            if (ready(workers, what))
                return 1;
            pause_cpu();
        }
    return 0;
}

static void take_items(struct aura_workers *workers)
{
    uint64_t mode = aura_fpmode_enter();
    size_t items = workers->items, i;
    while ((i = atomic_fetch_add_explicit(&workers->next, 1, memory_order_relaxed)) < items)
        workers->item(workers->work, i);
    aura_fpmode_leave(mode);
}

/* ---- the worker -------------------------------------------------------------------------------------------------- */

/* A batch is open that is not the one numbered `served`; or it is time to go. */
static int worker_ready(struct aura_workers *workers, uint32_t served)
{
    uint64_t word = atomic_load(&workers->word);
    return ((word & OPEN) && NUMBER(word) != served) || atomic_load(&workers->stop);
}

static int enter(struct aura_workers *workers, uint32_t *served)
{
    uint64_t word = atomic_load(&workers->word);
    while ((word & OPEN) && NUMBER(word) != *served)
        if (atomic_compare_exchange_weak(&workers->word, &word, word + 1)) {
            *served = NUMBER(word);
            return 1;
        }
    return 0;
}

static void leave(struct aura_workers *workers)
{
    uint64_t before = atomic_fetch_sub(&workers->word, 1);
    if ((before & (OPEN | INSIDE)) == 1 && atomic_load(&workers->caller_sleeps)) {
        pthread_mutex_lock(&workers->lock); /* it has looked at the word, or is asleep: never in between */
        pthread_cond_signal(&workers->done);
        pthread_mutex_unlock(&workers->lock);
    }
}

static void *worker_main(void *user)
{
    struct aura_workers *workers = user;
    uint32_t served = 0;
    while (!atomic_load(&workers->stop)) {
        if (!spin(workers, worker_ready, served)) {
            pthread_mutex_lock(&workers->lock);
            atomic_fetch_add(&workers->sleeping, 1); /* before the word is looked at: see wake_workers */
            while (!worker_ready(workers, served))
                pthread_cond_wait(&workers->wake, &workers->lock);
            atomic_fetch_sub(&workers->sleeping, 1);
            pthread_mutex_unlock(&workers->lock);
        }
        if (enter(workers, &served)) {
            take_items(workers);
            leave(workers);
        }
    }
    return NULL;
}

/* ---- the caller -------------------------------------------------------------------------------------------------- */

/* The word has changed. A worker that is not counted yet will look at it after counting itself. */
static void wake_workers(struct aura_workers *workers, size_t wanted)
{
    size_t sleeping = atomic_load(&workers->sleeping);
    if (!sleeping)
        return;
    pthread_mutex_lock(&workers->lock); /* those that have looked at the old word are asleep when we have this */
    pthread_mutex_unlock(&workers->lock);
    if (wanted >= sleeping)
        pthread_cond_broadcast(&workers->wake);
    for (size_t i = 0; wanted < sleeping && i < wanted; i++)
        pthread_cond_signal(&workers->wake);
}

static int nobody_inside(struct aura_workers *workers, uint32_t unused)
{
    (void)unused;
    return !(atomic_load(&workers->word) & INSIDE);
}

static void run_batch(struct aura_workers *workers, size_t items, void (*item)(void *work, size_t i), void *work)
{
    uint32_t number = NUMBER(atomic_load(&workers->word)) + 1;
    workers->items = items;
    workers->item = item;
    workers->work = work;
    atomic_store_explicit(&workers->next, 0, memory_order_relaxed);
    atomic_store(&workers->word, (uint64_t)number << 32 | OPEN);
    wake_workers(workers, items - 1);
    take_items(workers);
    atomic_fetch_and(&workers->word, ~OPEN);
    if (nobody_inside(workers, 0) || spin(workers, nobody_inside, 0))
        return;
    pthread_mutex_lock(&workers->lock);
    atomic_store(&workers->caller_sleeps, 1); /* before the word is looked at: see leave */
    while (!nobody_inside(workers, 0))
        pthread_cond_wait(&workers->done, &workers->lock);
    atomic_store(&workers->caller_sleeps, 0);
    pthread_mutex_unlock(&workers->lock);
}

/* What the executor is given: its threads may be in any float mode. */
struct wrapped {
    void (*item)(void *work, size_t i);
    void *work;
};

static void run_wrapped(void *user, size_t i)
{
    const struct wrapped *w = user;
    uint64_t mode = aura_fpmode_enter();
    w->item(w->work, i);
    aura_fpmode_leave(mode);
}

void aura_run(const aura_ctx *ctx, size_t items, void (*item)(void *work, size_t i), void *work)
{
    struct aura_workers *workers = ctx->workers;
    struct wrapped wrapped = {item, work};
    if (items > 1 && ctx->executor.run) {
        ctx->executor.run(ctx->executor.user, items, run_wrapped, &wrapped);
    } else if (items > 1 && workers && !atomic_flag_test_and_set(&workers->taken)) {
        run_batch(workers, items, item, work);
        atomic_flag_clear(&workers->taken);
    } else {
        uint64_t mode = aura_fpmode_enter();
        for (size_t i = 0; i < items; i++)
            item(work, i);
        aura_fpmode_leave(mode);
    }
}

/* ---- birth and death --------------------------------------------------------------------------------------------- */

static size_t workers_bytes(uint32_t count)
{
    return sizeof(struct aura_workers) + count * sizeof(pthread_t);
}

/* Starts as many workers as it can, with every signal blocked: the application's are for its own threads. */
static void start_workers(struct aura_workers *workers, uint32_t wanted)
{
    sigset_t all, before;
    pthread_attr_t attributes;
    sigfillset(&all);
    if (pthread_attr_init(&attributes))
        return;
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    while (workers->count < wanted && !pthread_create(&workers->thread[workers->count], &attributes, worker_main, workers))
        workers->count++;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
}

/* `wanted` is what the memory was allocated for. */
static void end_workers(struct aura_workers *workers, const aura_allocator *allocator, uint32_t wanted)
{
    pthread_mutex_lock(&workers->lock);
    atomic_store(&workers->stop, 1);
    pthread_cond_broadcast(&workers->wake);
    pthread_mutex_unlock(&workers->lock);
    for (uint32_t i = 0; i < workers->count; i++)
        pthread_join(workers->thread[i], NULL);
    pthread_cond_destroy(&workers->done);
    pthread_cond_destroy(&workers->wake);
    pthread_mutex_destroy(&workers->lock);
    allocator->free(allocator->user, workers, workers_bytes(wanted));
}

aura_status aura_workers_create(const aura_allocator *allocator, uint32_t threads, struct aura_workers **workers,
                                uint32_t *started)
{
    uint32_t wanted = threads - 1;
    struct aura_workers *made = allocator->alloc(allocator->user, workers_bytes(wanted), 64);
    *started = 0;
    if (!made)
        return AURA_OUT_OF_MEMORY;
    atomic_init(&made->word, 0);
    atomic_init(&made->next, 0);
    atomic_init(&made->sleeping, 0);
    atomic_init(&made->caller_sleeps, 0);
    atomic_init(&made->stop, 0);
    atomic_flag_clear(&made->taken);
    pthread_mutex_init(&made->lock, NULL);
    pthread_cond_init(&made->wake, NULL);
    pthread_cond_init(&made->done, NULL);
    made->count = 0;
    start_workers(made, wanted);
    if (made->count < wanted) {
        *started = made->count + 1;
        end_workers(made, allocator, wanted);
        return AURA_OUT_OF_MEMORY;
    }
    *workers = made;
    return AURA_OK;
}

void aura_workers_destroy(struct aura_workers *workers, const aura_allocator *allocator)
{
    if (workers)
        end_workers(workers, allocator, workers->count);
}
