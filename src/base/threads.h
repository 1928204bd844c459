/* Work spread over threads: those of the caller's executor, the context's own workers, or the caller's thread alone. */
#ifndef AURA_THREADS_H
#define AURA_THREADS_H

#include <stddef.h>
#include <stdint.h>

#include "../../include/aura.h"

#define AURA_MAX_THREADS 1024

struct aura_workers;

/* `threads` counts the one that will call aura_run, so threads - 1 are started; at least 2, at most AURA_MAX_THREADS.
 * Fails with AURA_OUT_OF_MEMORY, and then no thread is left running; *started says how many threads there could be, or is 0
 * where the allocator had no memory. */
aura_status aura_workers_create(const aura_allocator *allocator, uint32_t threads, struct aura_workers **workers,
                                uint32_t *started);
void aura_workers_destroy(struct aura_workers *workers, const aura_allocator *allocator); /* NULL is allowed */

/* Calls item(work, i) once for every i < items, on any of the context's threads in any order, and returns when all have
 * returned; what they wrote is then seen by the caller. Items run in the float mode of fpmode.h whatever the threads
 * are in. An item may call aura_run itself; its items then run on its own thread. */
void aura_run(const aura_ctx *ctx, size_t items, void (*item)(void *work, size_t i), void *work);

/* The same on this thread alone: for work that takes no longer than to hand it over, about a microsecond. */
void aura_run_here(size_t items, void (*item)(void *work, size_t i), void *work);

#endif
