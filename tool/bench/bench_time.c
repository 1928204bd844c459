/* Timing in turns, and threads that start together. */
#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <time.h>

#include "bench.h"

enum { MAX_TURNS = 25, MIN_TURNS = 5, MAX_CONTENDERS = 12 };
static const double least_turn = 0.003; /* seconds; a shorter turn would time the clock and the wake-up of threads */

double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double seconds_since(double start)
{
    const double seconds = now() - start;
    return seconds > 1e-9 ? seconds : 1e-9;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

int take_turns(struct contender *contenders, int n, double budget)
{
    double seconds[MAX_CONTENDERS][MAX_TURNS], together = 0;
    uint32_t times[MAX_CONTENDERS];
    if (n > MAX_CONTENDERS)
        abort();
    for (int i = 0; i < n; i++) {
        struct contender *c = &contenders[i];
        c->run(c->what, 1); /* the first run touches pages and wakes threads */
        double once = c->run(c->what, 1);
        times[i] = once < least_turn ? (uint32_t)(least_turn / (once + 1e-9)) + 1 : 1;
        together += once * (times[i] + (times[i] > 1));
    }
    int turns = together * MAX_TURNS <= budget ? MAX_TURNS : (int)(budget / together);
    turns = turns < MIN_TURNS ? MIN_TURNS : turns - (turns % 2 == 0);
    for (int turn = 0; turn < turns; turn++)
        for (int i = 0; i < n; i++) {
            struct contender *c = &contenders[i];
            if (times[i] > 1)
                c->run(c->what, 1);
            seconds[i][turn] = c->run(c->what, times[i]) / times[i];
        }
    for (int i = 0; i < n; i++) {
        qsort(seconds[i], (size_t)turns, sizeof **seconds, by_size);
        contenders[i].median = seconds[i][turns / 2];
        contenders[i].spread = (seconds[i][turns * 3 / 4] - seconds[i][turns / 4]) / seconds[i][turns / 2];
    }
    return turns;
}

/* ---- a crew -------------------------------------------------------------------------------------------------------- */

struct crew {
    uint32_t threads;
    pthread_t *thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    uint64_t round; /* the lock guards it and `end`; a new number means new work */
    int end;
    void (*work)(void *, uint32_t);
    void *what;
    atomic_uint number, awake, done; /* thread numbers given out; threads that are awake; threads that are done */
    atomic_int go;
};

static void do_part(struct crew *crew, uint32_t i)
{
    atomic_fetch_add(&crew->awake, 1);
    while (!atomic_load(&crew->go)) /* awake: waits some microseconds for the others */
        sched_yield();
    crew->work(crew->what, i);
    atomic_fetch_add(&crew->done, 1);
}

static void *member(void *argument)
{
    struct crew *crew = argument;
    uint32_t i = atomic_fetch_add(&crew->number, 1) + 1; /* the caller is number 0 */
    for (uint64_t seen = 0;;) {
        pthread_mutex_lock(&crew->lock);
        while (crew->round == seen && !crew->end)
            pthread_cond_wait(&crew->wake, &crew->lock);
        seen = crew->round;
        int end = crew->end;
        pthread_mutex_unlock(&crew->lock);
        if (end)
            return NULL;
        do_part(crew, i);
    }
}

struct crew *crew_create(uint32_t threads)
{
    struct crew *crew = calloc(1, sizeof *crew);
    if (!crew || !(crew->thread = calloc(threads, sizeof *crew->thread)))
        return free(crew), NULL;
    pthread_mutex_init(&crew->lock, NULL);
    pthread_cond_init(&crew->wake, NULL);
    for (crew->threads = 1; crew->threads < threads; crew->threads++)
        if (pthread_create(&crew->thread[crew->threads], NULL, member, crew))
            return crew_destroy(crew), NULL;
    return crew;
}

void crew_destroy(struct crew *crew)
{
    if (!crew)
        return;
    pthread_mutex_lock(&crew->lock);
    crew->end = 1;
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    for (uint32_t i = 1; i < crew->threads; i++)
        pthread_join(crew->thread[i], NULL);
    pthread_cond_destroy(&crew->wake);
    pthread_mutex_destroy(&crew->lock);
    free(crew->thread);
    free(crew);
}

double crew_run(struct crew *crew, void (*work)(void *what, uint32_t i), void *what)
{
    crew->work = work, crew->what = what;
    atomic_store(&crew->awake, 0), atomic_store(&crew->done, 0), atomic_store(&crew->go, 0);
    pthread_mutex_lock(&crew->lock);
    crew->round++;
    pthread_cond_broadcast(&crew->wake);
    pthread_mutex_unlock(&crew->lock);
    while (atomic_load(&crew->awake) < crew->threads - 1)
        sched_yield();
    double start = now();
    atomic_store(&crew->go, 1);
    do_part(crew, 0);
    while (atomic_load(&crew->done) < crew->threads)
        sched_yield();
    return seconds_since(start);
}

uint32_t crew_threads(const struct crew *crew)
{
    return crew->threads;
}
