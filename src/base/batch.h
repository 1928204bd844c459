/* A batch of items that one thread calls out and any number of others help with; threads.c and team.c are made of it.
 *
 * Everything turns on one atomic word. A batch is open while its bit is set; a helper enters by adding 1 to the word
 * while that bit is set, and leaves by subtracting 1. The caller takes items like the helpers, then clears the bit and
 * waits until nobody is inside. So it never waits for a helper that has not woken up yet: that one finds the door shut.
 * What a batch is (plain fields) changes only while the batch is closed and nobody is inside.
 *
 * A call of the cache is a few batches one right after the other. Waking a thread takes as long as a batch of a short
 * sequence does, so both sides look at the word for a while before they sleep. */
#ifndef AURA_BATCH_H
#define AURA_BATCH_H

#include <pthread.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>

struct aura_batch {
    _Alignas(64) _Atomic uint64_t word;
    _Alignas(64) _Atomic size_t next;        /* the first item that nobody has taken */
    _Alignas(64) size_t items;
    void (*item)(void *work, size_t i);
    void *work;
    atomic_uint sleeping;                    /* helpers that need to be woken */
    atomic_int caller_sleeps;
    pthread_mutex_t lock;                    /* of the two conditions */
    pthread_cond_t wake, done;
};

/* By a clock that is never set. */
uint64_t aura_nanoseconds(void);

void aura_batch_init(struct aura_batch *batch);
void aura_batch_end(struct aura_batch *batch); /* nobody is inside, and nobody sleeps */

/* Calls item(work, i) once for every i < items, here and on the helpers, in the float mode of fpmode.h; returns when all have
 * returned. One caller at a time. */
void aura_batch_run(struct aura_batch *batch, size_t items, void (*item)(void *work, size_t i), void *work);

/* Whether a batch is open that is not the one numbered `served`. */
int aura_batch_is_open(struct aura_batch *batch, uint32_t served);

/* Helps with such a batch, if there is one, until its items are taken; *served becomes its number. */
void aura_batch_help(struct aura_batch *batch, uint32_t *served);

/* Waits until ready(user): at first awake, then asleep. What it looks at is atomic, and who changes it calls aura_batch_wake(),
 * which wakes up to `wanted` of those that sleep. */
void aura_batch_wait(struct aura_batch *batch, int (*ready)(void *user), void *user);
void aura_batch_wake(struct aura_batch *batch, size_t wanted);

#endif
