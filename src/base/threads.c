/* The workers of a context: threads that sleep until there is a batch of items (batch.h). */
#define _POSIX_C_SOURCE 200809L /* pthread_sigmask */
#include "exact.h"
#include "threads.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>

#include "batch.h"
#include "context.h"
#include "fpmode.h"

#define STACK_BYTES ((size_t)1 << 20) /* 384 KiB for the item, the rest for thread-local data and sanitizers */

struct aura_workers {
    struct aura_batch batch;
    atomic_flag taken; /* somebody's batch is running */
    atomic_int stop;
    uint32_t count;
    pthread_t thread[];
};

struct worker {
    struct aura_workers *workers;
    uint32_t served; /* number of the last batch */
};

/* There is a batch for this worker, or it is time to go. */
static int worker_ready(void *user)
{
    const struct worker *w = user;
    return aura_batch_is_open(&w->workers->batch, w->served) || atomic_load(&w->workers->stop);
}

static void *worker_main(void *user)
{
    struct worker w = {user, 0};
    while (!atomic_load(&w.workers->stop)) {
        aura_batch_wait(&w.workers->batch, worker_ready, &w);
        aura_batch_help(&w.workers->batch, &w.served);
    }
    return NULL;
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

void aura_run_here(size_t items, void (*item)(void *work, size_t i), void *work)
{
    uint64_t mode = aura_fpmode_enter();
    for (size_t i = 0; i < items; i++)
        item(work, i);
    aura_fpmode_leave(mode);
}

void aura_run(const aura_ctx *ctx, size_t items, void (*item)(void *work, size_t i), void *work)
{
    struct aura_workers *workers = ctx->workers;
    struct wrapped wrapped = {item, work};
    if (items > 1 && ctx->executor.run) {
        ctx->executor.run(ctx->executor.user, items, run_wrapped, &wrapped);
    } else if (items > 1 && workers && !atomic_flag_test_and_set(&workers->taken)) {
        aura_batch_run(&workers->batch, items, item, work);
        atomic_flag_clear(&workers->taken);
    } else {
        aura_run_here(items, item, work);
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
    atomic_store(&workers->stop, 1);
    aura_batch_wake(&workers->batch, SIZE_MAX);
    for (uint32_t i = 0; i < workers->count; i++)
        pthread_join(workers->thread[i], NULL);
    aura_batch_end(&workers->batch);
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
    aura_batch_init(&made->batch);
    atomic_init(&made->stop, 0);
    atomic_flag_clear(&made->taken);
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
