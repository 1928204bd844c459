/* A team: an engine's threads as helpers of a batch (batch.h).
 *
 * Leads are numbered. A member has a word that says how many leads were for it and which was the last; it counts itself how
 * often it came. So it knows whether its lead is still to come, under way or over, and nobody waits for anybody to arrive:
 * members look at their words, and the leader at nothing. */
#include "exact.h"
#include "../../include/aura_team.h"

#include <string.h>

#include "batch.h"
#include "context.h"

#define LEAD(called) ((uint32_t)((called) >> 32))
#define COUNT(called) ((uint32_t)(called))
#define REACHED(number, wanted) ((int32_t)((number) - (wanted)) >= 0) /* of numbers that begin again after 2^32 */

struct member {
    _Alignas(64) atomic_flag inside; /* and for this thread alone: */
    uint32_t came;                   /* how often */
    uint32_t served;                 /* number of the last batch */
};

struct aura_team {
    struct aura_batch batch;
    _Alignas(64) _Atomic uint32_t ended; /* the last lead that is over */
    _Alignas(64) _Atomic uintptr_t leader; /* self() of the thread that leads; 0: nobody. What follows is its own: */
    uint32_t begun;                      /* the last lead */
    uint32_t now;                        /* threads of this lead */
    int busy;                            /* a batch is running: what its items call out runs on their own thread */
    aura_allocator allocator;
    uint32_t threads;
    _Atomic uint64_t *called;            /* [threads] the last lead that was for a member; how many there were */
    struct member member[];
};

/* Which thread this is; never 0. */
static uintptr_t self(void)
{
    return (uintptr_t)pthread_self();
}

static int leads(aura_team *team)
{
    return atomic_load(&team->leader) == self();
}

/* ---- the leader --------------------------------------------------------------------------------------------------- */

static void run(void *user, size_t items, void (*item)(void *work, size_t i), void *work)
{
    aura_team *team = user;
    if (leads(team) && team->now > 1 && !team->busy) {
        team->busy = 1;
        aura_batch_run(&team->batch, items, item, work);
        team->busy = 0;
        return;
    }
    for (size_t i = 0; i < items; i++)
        item(work, i);
}

aura_executor aura_team_executor(aura_team *team)
{
    aura_executor executor = {team ? run : NULL, team};
    return executor;
}

aura_status aura_team_lead(aura_team *team, uint32_t threads)
{
    uintptr_t nobody = 0;
    if (!team)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_lead: team is NULL");
    if (threads == 0 || threads > team->threads)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_lead: %u threads; the team has 1 to %u", threads, team->threads);
    if (!atomic_compare_exchange_strong(&team->leader, &nobody, self()))
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_lead: %s leads already",
                         nobody == self() ? "this thread" : "another thread");
    team->now = threads;
    if (threads == 1)
        return AURA_OK;
    team->begun++;
    for (uint32_t i = 1; i < threads; i++) {
        uint64_t called = atomic_load_explicit(&team->called[i], memory_order_relaxed);
        called = (uint64_t)team->begun << 32 | (COUNT(called) + 1);
        atomic_store_explicit(&team->called[i], called, memory_order_release);
    }
    aura_batch_wake(&team->batch, SIZE_MAX);
    return AURA_OK;
}

aura_status aura_team_end(aura_team *team)
{
    if (!team || !leads(team))
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_end: %s", team ? "this thread does not lead" : "team is NULL");
    if (team->now > 1) {
        atomic_store(&team->ended, team->begun);
        aura_batch_wake(&team->batch, SIZE_MAX);
    }
    atomic_store(&team->leader, 0);
    return AURA_OK;
}

/* ---- the others --------------------------------------------------------------------------------------------------- */

struct serving {
    aura_team *team;
    uint32_t thread;
    uint32_t lead; /* that it has come for */
};

static int is_called(void *user)
{
    const struct serving *s = user;
    uint64_t called = atomic_load(&s->team->called[s->thread]);
    return REACHED(COUNT(called), s->team->member[s->thread].came);
}

static int is_over(const struct serving *s)
{
    return REACHED(atomic_load(&s->team->ended), s->lead);
}

/* There are items, or there will be no more. */
static int is_needed(void *user)
{
    const struct serving *s = user;
    return aura_batch_is_open(&s->team->batch, s->team->member[s->thread].served) || is_over(s);
}

aura_status aura_team_serve(aura_team *team, uint32_t thread)
{
    struct serving s = {team, thread, 0};
    if (!team)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_serve: team is NULL");
    if (thread == 0 || thread >= team->threads)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_serve: thread %u of a team of %u; thread 0 leads", thread,
                         team->threads);
    if (leads(team))
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_serve: this thread leads");
    struct member *m = &team->member[thread];
    if (atomic_flag_test_and_set(&m->inside))
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_serve: a thread %u serves already", thread);
    m->came++;
    aura_batch_wait(&team->batch, is_called, &s);
    s.lead = LEAD(atomic_load(&team->called[thread]));
    while (!is_over(&s)) {
        aura_batch_wait(&team->batch, is_needed, &s);
        if (!is_over(&s))
            aura_batch_help(&team->batch, &m->served);
    }
    atomic_flag_clear(&m->inside);
    return AURA_OK;
}

/* ---- birth and death --------------------------------------------------------------------------------------------- */

static size_t team_bytes(uint32_t threads)
{
    return sizeof(aura_team) + threads * (sizeof(struct member) + sizeof(_Atomic uint64_t));
}

aura_status aura_team_create(const aura_allocator *allocator, uint32_t threads, aura_team **team)
{
    const aura_allocator from = allocator && allocator->alloc ? *allocator : aura_default_allocator();
    if (!team)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_create: team is NULL");
    if (threads == 0 || threads > AURA_MAX_THREADS)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_create: threads is %u; 1 to %d", threads, AURA_MAX_THREADS);
    if (allocator && !allocator->alloc != !allocator->free)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_team_create: allocator needs both alloc and free, or neither");
    aura_team *made = from.alloc(from.user, team_bytes(threads), 64);
    if (!made)
        return aura_fail(NULL, AURA_OUT_OF_MEMORY, "aura_team_create: the allocator has no memory for %u threads", threads);
    memset(made, 0, team_bytes(threads));
    aura_batch_init(&made->batch);
    atomic_init(&made->ended, 0);
    atomic_init(&made->leader, 0);
    made->allocator = from;
    made->threads = threads;
    made->called = (_Atomic uint64_t *)(void *)&made->member[threads];
    for (uint32_t i = 0; i < threads; i++) {
        atomic_init(&made->called[i], 0);
        atomic_flag_clear(&made->member[i].inside);
    }
    *team = made;
    return AURA_OK;
}

void aura_team_destroy(aura_team *team)
{
    if (team) {
        const aura_allocator allocator = team->allocator;
        const size_t bytes = team_bytes(team->threads);
        aura_batch_end(&team->batch);
        allocator.free(allocator.user, team, bytes);
    }
}
