/* A team of lent threads, every interleaving of them (model.h): whoever comes early, late or not at all, each item runs once and
 * within its batch, the leader gets through, and every call returns. */
#define _GNU_SOURCE
#include "model.h"

#include "../../src/base/batch.c"
#include "../../src/base/team.c"

/* ---- what they are watched at ---------------------------------------------------------------------------------------- */

enum { MEMBERS = 2, MOST_LEADS = 3, ITEMS = 2 };

static struct plan {
    int leads, threads[MOST_LEADS]; /* of each */
    int comes[MEMBERS + 1];         /* how often a member comes */
} plan;
static aura_team *team;
static int open_batch, calls[2 * MOST_LEADS][ITEMS], helped;

static void item(void *work, size_t i)
{
    const int batch = *(int *)work;
    point();
    if (batch != open_batch)
        fail("an item runs before or after its batch");
    calls[batch][i]++;
    helped |= current != MAIN;
    point();
}

static void *member(void *user)
{
    const uint32_t thread = (uint32_t)(uintptr_t)user;
    for (int i = 0; i < plan.comes[thread]; i++)
        if (aura_team_serve(team, thread))
            fail("a member was refused");
    return NULL;
}

/* Each lead but the last has two batches: the members stay for the second. */
static void lead(int number)
{
    const aura_executor executor = aura_team_executor(team);
    if (aura_team_lead(team, (uint32_t)plan.threads[number]))
        fail("the leader was refused");
    for (int batch = 2 * number; !wrong && batch < 2 * number + (number + 1 < plan.leads ? 2 : 1); batch++) {
        open_batch = batch;
        executor.run(executor.user, ITEMS, item, &batch);
        open_batch = -1;
        for (int i = 0; i < ITEMS; i++)
            if (calls[batch][i] != 1)
                fail("an item ran twice, or not at all");
    }
    if (aura_team_end(team))
        fail("the leader was not let go");
}

static void *leader(void *user)
{
    pthread_t threads[MEMBERS + 1];
    (void)user;
    if (aura_team_create(NULL, MEMBERS + 1, &team))
        fail("no team");
    for (uintptr_t i = 1; i <= MEMBERS; i++)
        if (plan.comes[i])
            pthread_create(&threads[i], NULL, member, (void *)i);
    for (int i = 0; !wrong && i < plan.leads; i++)
        lead(i);
    for (int i = 1; i <= MEMBERS; i++)
        if (plan.comes[i])
            pthread_join(threads[i], NULL);
    aura_team_destroy(team);
    return NULL;
}

static void prepare(void)
{
    memset(calls, 0, sizeof calls);
    open_batch = -1;
}

static void expect_none(struct plan p, int spinning, int bound)
{
    plan = p;
    helped = 0;
    expect_no_fault(explore(prepare, leader, spinning, bound), bound);
    EXPECT(helped, "no member ever helped");
}

static const struct plan two_leads = {2, {2, 2}, {0, 2, 0}};

static void everybody_returns(void)
{
    const struct plan growing = {2, {2, 3}, {0, 2, 1}}, shrinking = {2, {3, 2}, {0, 2, 1}};
    expect_none(two_leads, 0, 3);
    expect_none(growing, 0, 2);
    expect_none(shrinking, 0, 1);
}

/* Who never comes is not waited for, and who leaves a lead out does not wait either. */
static void nobody_waits_for_who_does_not_come(void)
{
    const struct plan absent = {2, {3, 3}, {0, 0, 2}}, once = {3, {2, 2, 2}, {0, 1, 0}};
    expect_none(absent, 0, 2);
    expect_none(once, 0, 2);
}

static void nobody_spins_for_ever(void)
{
#if defined(__x86_64__)
    const struct plan growing = {2, {2, 3}, {0, 2, 1}};
    expect_none(two_leads, 1, 3);
    expect_none(growing, 1, 1);
#else
    test_skip = "only x86 has a word for a pause that can be watched";
#endif
}

/* Without the lock, the end of a lead may come when a member has looked and does not sleep yet. Then it sleeps for ever. */
static void a_planted_bug_is_found(void)
{
    plan = two_leads;
    lock_left_out_in = "aura_batch_wake";
    explore(prepare, leader, 0, 3);
    lock_left_out_in = "";
    EXPECT(wrong && strstr(wrong, "for ever"), "%s", wrong ? wrong : "nothing was noticed");
}

int main(void)
{
    RUN(everybody_returns);
    RUN(nobody_waits_for_who_does_not_come);
    RUN(nobody_spins_for_ever);
    RUN(a_planted_bug_is_found);
    return test_result();
}
