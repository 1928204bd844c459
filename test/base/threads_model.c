/* The workers and their caller, every interleaving of them (model.h). An item that runs twice, never, or after its batch, is a
 * failure. */
#define _GNU_SOURCE
#include "model.h"

#include "../../src/base/batch.c"
#include "../../src/base/threads.c"

/* ---- what they are watched at ---------------------------------------------------------------------------------------- */

enum { BATCHES = 2, ITEMS = 3 };
static int workers, open_batch, calls[BATCHES][ITEMS];

static void item(void *work, size_t i)
{
    const int batch = *(int *)work;
    point();
    if (batch != open_batch)
        fail("an item runs before or after its batch");
    calls[batch][i]++;
    point();
}

static void *plain_alloc(void *user, size_t bytes, size_t align)
{
    void *memory = NULL;
    (void)user;
    return posix_memalign(&memory, align, bytes) ? NULL : memory;
}

static void plain_free(void *user, void *memory, size_t bytes)
{
    (void)user, (void)bytes;
    free(memory);
}

/* Workers come, do two batches, one smaller than there are threads, and go. */
static void *caller(void *user)
{
    aura_ctx made = {.allocator = {plain_alloc, plain_free, NULL}}, *ctx = &made;
    uint32_t started;
    (void)user;
    if (aura_workers_create(&ctx->allocator, (uint32_t)workers + 1, &ctx->workers, &started))
        fail("no workers");
    for (int batch = 0; !wrong && batch < BATCHES; batch++) {
        const size_t items = batch ? ITEMS : 2;
        open_batch = batch;
        aura_run(ctx, items, item, &batch);
        open_batch = -1;
        for (size_t i = 0; i < items; i++)
            if (calls[batch][i] != 1)
                fail("an item ran twice, or not at all");
    }
    aura_workers_destroy(ctx->workers, &ctx->allocator);
    return NULL;
}

static void prepare(void)
{
    memset(calls, 0, sizeof calls);
    open_batch = -1;
}

static void expect_none(int n_workers, int spinning, int bound)
{
    workers = n_workers;
    expect_no_fault(explore(prepare, caller, spinning, bound), bound);
}

static void nobody_sleeps_through_a_batch(void)
{
    expect_none(1, 0, 3);
    expect_none(2, 0, 2);
}

static void nobody_spins_for_ever(void)
{
#if defined(__x86_64__)
    expect_none(1, 1, 3);
    expect_none(2, 1, 2);
#else
    test_skip = "only x86 has a word for a pause that can be watched";
#endif
}

/* Without the lock, the signal may come when the caller has looked at the word and does not sleep yet. Then it sleeps for ever. */
static void a_planted_bug_is_found(void)
{
    workers = 1;
    lock_left_out_in = "leave";
    explore(prepare, caller, 0, 4);
    lock_left_out_in = "";
    EXPECT(wrong && strstr(wrong, "for ever"), "%s", wrong ? wrong : "nothing was noticed");
}

int main(void)
{
    RUN(nobody_sleeps_through_a_batch);
    RUN(nobody_spins_for_ever);
    RUN(a_planted_bug_is_found);
    return test_result();
}
