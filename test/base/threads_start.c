/* Threads that do not start. This program compiles threads.c itself, with a pthread_create that fails when told to. So the linker
 * does not take that of the library. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>

#include "../test.h"

static int may_start, started, signals_blocked;
static int sometimes_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*body)(void *), void *user)
{
    sigset_t mask;
    if (started >= may_start)
        return EAGAIN;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    signals_blocked += sigismember(&mask, SIGTERM) && sigismember(&mask, SIGUSR1);
    started++;
    return pthread_create(thread, attributes, body, user);
}
static int joined;
static int counted_join(pthread_t thread, void **result)
{
    joined++;
    return pthread_join(thread, result);
}
#define pthread_create sometimes_create
#define pthread_join counted_join
#include "../../src/base/threads.c"
#undef pthread_create
#undef pthread_join

static size_t allocated;
static void *counting_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    if (posix_memalign(&memory, align, bytes))
        return NULL;
    allocated += bytes;
    return memory;
}
static void counting_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    allocated -= bytes;
    free(memory);
}

static void those_started_are_ended(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made = (aura_ctx *)&o;
    o.allocator.alloc = counting_alloc, o.allocator.free = counting_free;
    o.threads = 6;
    for (may_start = 0; may_start < 5; may_start++) {
        char text[64];
        started = joined = 0;
        aura_status status = aura_ctx_create(&o, &made);
        snprintf(text, sizeof text, "only %d of 6 threads", may_start + 1);
        EXPECT(status == AURA_OUT_OF_MEMORY && strstr(aura_last_error(), text), "%s", aura_last_error());
        EXPECT(made == (aura_ctx *)&o && started == may_start && joined == started && allocated == 0,
               "%d started, %d ended, %zu bytes left", started, joined, allocated);
    }
    started = joined = 0;
    EXPECT(!aura_ctx_create(&o, &made), "%s", aura_last_error());
    aura_ctx_destroy(made);
    EXPECT(started == 5 && joined == 5 && allocated == 0, "%d started, %d ended", started, joined);
}

/* Signals are for the application's threads: none of its handlers runs in a worker. */
static void workers_block_signals(void)
{
    aura_ctx_options o = AURA_CTX_OPTIONS_INIT;
    aura_ctx *made;
    sigset_t before, after;
    o.threads = may_start = 4;
    started = signals_blocked = 0;
    pthread_sigmask(SIG_SETMASK, NULL, &before);
    EXPECT(!aura_ctx_create(&o, &made), "%s", aura_last_error());
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    EXPECT(signals_blocked == 3, "%d of 3", signals_blocked);
    EXPECT(sigismember(&before, SIGTERM) == sigismember(&after, SIGTERM), "the caller's mask has changed");
    aura_ctx_destroy(made);
}

int main(void)
{
    RUN(those_started_are_ended);
    RUN(workers_block_signals);
    return test_result();
}
