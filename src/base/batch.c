/* Items taken by several threads, and threads that wait for items. */
#define _POSIX_C_SOURCE 200809L /* clock_gettime */
#include "exact.h"
#include "batch.h"

#include <sched.h>
#include <time.h>

#include "fpmode.h"

#define SPIN_NANOSECONDS 50000

/* The word: number of the batch, is it open, how many helpers are inside. */
#define OPEN ((uint64_t)1 << 31)
#define INSIDE (OPEN - 1)
#define NUMBER(word) ((uint32_t)((word) >> 32))

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

uint64_t aura_nanoseconds(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* Until ready(user), but not for long. Returns whether it is. The yield is for machines that have more to do than
 * cores: whoever is waited for may be waiting for this very core, and would get it only when the spinning ends. (One core
 * left for two threads, 8 items of 5 us: 96 us a batch without it, 45 with; Xeon, Linux 6.18, 2026-11.) */
static int spin(int (*ready)(void *user), void *user)
{
    for (uint64_t start = aura_nanoseconds(); aura_nanoseconds() - start < SPIN_NANOSECONDS; sched_yield())
        for (int i = 0; i < 32; i++) {
            if (ready(user))
                return 1;
            pause_cpu();
        }
    return 0;
}

static void take_items(struct aura_batch *batch)
{
    uint64_t mode = aura_fpmode_enter();
    size_t items = batch->items, i;
    while ((i = atomic_fetch_add_explicit(&batch->next, 1, memory_order_relaxed)) < items)
        batch->item(batch->work, i);
    aura_fpmode_leave(mode);
}

/* ---- the helper -------------------------------------------------------------------------------------------------- */

int aura_batch_is_open(struct aura_batch *batch, uint32_t served)
{
    uint64_t word = atomic_load(&batch->word);
    return (word & OPEN) && NUMBER(word) != served;
}

static int enter(struct aura_batch *batch, uint32_t *served)
{
    uint64_t word = atomic_load(&batch->word);
    while ((word & OPEN) && NUMBER(word) != *served)
        if (atomic_compare_exchange_weak(&batch->word, &word, word + 1)) {
            *served = NUMBER(word);
            return 1;
        }
    return 0;
}

static void leave(struct aura_batch *batch)
{
    uint64_t before = atomic_fetch_sub(&batch->word, 1);
    if ((before & (OPEN | INSIDE)) == 1 && atomic_load(&batch->caller_sleeps)) {
        pthread_mutex_lock(&batch->lock); /* it has looked at the word, or is asleep: never in between */
        pthread_cond_signal(&batch->done);
        pthread_mutex_unlock(&batch->lock);
    }
}

void aura_batch_help(struct aura_batch *batch, uint32_t *served)
{
    if (enter(batch, served)) {
        take_items(batch);
        leave(batch);
    }
}

void aura_batch_wait(struct aura_batch *batch, int (*ready)(void *user), void *user)
{
    if (ready(user) || spin(ready, user))
        return;
    pthread_mutex_lock(&batch->lock);
    atomic_fetch_add(&batch->sleeping, 1); /* before the look: see aura_batch_wake */
    while (!ready(user))
        pthread_cond_wait(&batch->wake, &batch->lock);
    atomic_fetch_sub(&batch->sleeping, 1);
    pthread_mutex_unlock(&batch->lock);
}

/* ---- the caller -------------------------------------------------------------------------------------------------- */

/* Something has changed. A helper that is not counted yet will look at it after counting itself: adding nothing is a
 * write too, so that one of the two comes first, whatever the order of what changed. */
void aura_batch_wake(struct aura_batch *batch, size_t wanted)
{
    size_t sleeping = atomic_fetch_add(&batch->sleeping, 0);
    if (!sleeping)
        return;
    pthread_mutex_lock(&batch->lock); /* those that have looked before the change are asleep when we have this */
    pthread_mutex_unlock(&batch->lock);
    if (wanted >= sleeping)
        pthread_cond_broadcast(&batch->wake);
    for (size_t i = 0; wanted < sleeping && i < wanted; i++)
        pthread_cond_signal(&batch->wake);
}

static int nobody_inside(void *user)
{
    struct aura_batch *batch = user;
    return !(atomic_load(&batch->word) & INSIDE);
}

void aura_batch_run(struct aura_batch *batch, size_t items, void (*item)(void *work, size_t i), void *work)
{
    uint32_t number = NUMBER(atomic_load(&batch->word)) + 1;
    batch->items = items;
    batch->item = item;
    batch->work = work;
    atomic_store_explicit(&batch->next, 0, memory_order_relaxed);
    atomic_store(&batch->word, (uint64_t)number << 32 | OPEN);
    aura_batch_wake(batch, items - 1);
    take_items(batch);
    atomic_fetch_and(&batch->word, ~OPEN);
    if (nobody_inside(batch) || spin(nobody_inside, batch))
        return;
    pthread_mutex_lock(&batch->lock);
    atomic_store(&batch->caller_sleeps, 1); /* before the word is looked at: see leave */
    while (!nobody_inside(batch))
        pthread_cond_wait(&batch->done, &batch->lock);
    atomic_store(&batch->caller_sleeps, 0);
    pthread_mutex_unlock(&batch->lock);
}

/* ---- birth and death --------------------------------------------------------------------------------------------- */

void aura_batch_init(struct aura_batch *batch)
{
    atomic_init(&batch->word, 0);
    atomic_init(&batch->next, 0);
    atomic_init(&batch->sleeping, 0);
    atomic_init(&batch->caller_sleeps, 0);
    pthread_mutex_init(&batch->lock, NULL);
    pthread_cond_init(&batch->wake, NULL);
    pthread_cond_init(&batch->done, NULL);
}

void aura_batch_end(struct aura_batch *batch)
{
    pthread_cond_destroy(&batch->done);
    pthread_cond_destroy(&batch->wake);
    pthread_mutex_destroy(&batch->lock);
}
