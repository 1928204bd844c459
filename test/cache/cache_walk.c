/* Random walks of a cache, compared with a plain array implementation: create, append, truncate, fork, remove, copy, reserve,
 * release, save, load, decode, attend, in pools that are often full, with windows and without, and with allocations that fail.
 *
 *     test_cache_walk                 some seconds of it
 *     test_cache_walk STEPS [SEED]    STEPS steps, from a seed on; `make test-long` takes a million
 *     test_cache_walk STEPS SEED 1    repeats one failed walk, and compares everything after every step */
#define _DEFAULT_SOURCE /* mkdtemp */
#include "cache_walk.h"

enum { WALK_STEPS = 600 }; /* then another cache */

static long steps_wanted = 16000;
static uint64_t first_seed = 1;

static struct choices from_seed(uint64_t seed)
{
    struct choices c = {seed * 0x9e3779b97f4a7c15u, NULL, 0, 0};
    return c;
}

/* Finds the shortest beginning of a failed walk that still fails when everything is compared after every step. */
static void repeat(uint64_t seed, long seen)
{
    int bad = test_bad_lines;
    test_bad_lines = 0;
    long steps = walk(from_seed(seed), seen, 1);
    printf("  seed %llu: wrong after %ld steps", (unsigned long long)seed, seen);
    printf(test_bad_lines ? ", %ld of which are enough: test_cache_walk %ld %llu 1\n" : ", but not when it was repeated\n",
           steps, steps,
           (unsigned long long)seed);
    test_bad_lines += bad;
}

static void a_cache_is_what_plain_arrays_say(void)
{
    long done = 0;
    uint64_t seed = first_seed;
    for (; done < steps_wanted && !test_bad_lines; seed++) {
        long steps = walk(from_seed(seed), WALK_STEPS, 0);
        if (test_bad_lines)
            repeat(seed, steps);
        done += steps;
    }
    printf("  %ld operations, seeds %llu to %llu; the pool was full %ld times, an allocation failed %ld times; pages "
           "copied %ld, slid out %ld, removed %ld times, tokens moved %ld, keys mapped %ld, joined %ld, reloaded %ld times\n",
           done, (unsigned long long)first_seed, (unsigned long long)seed - 1, walked.full, walked.failed, walked.copied,
           walked.slid, walked.removed, walked.moved, walked.mapped, walked.joined, walked.reloaded);
    if (done >= 10000)
        EXPECT(walked.full && walked.failed && walked.copied && walked.slid && walked.removed && walked.joined && walked.reloaded &&
                   walked.moved && walked.mapped,
               "something never happened");
}

static void one_walk(void)
{
    printf("  %ld steps\n", walk(from_seed(first_seed), steps_wanted, 1));
}

int main(int argc, char **argv)
{
    steps_wanted = argc > 1 ? atol(argv[1]) : small_run() ? 1500 : steps_wanted;
    first_seed = argc > 2 ? strtoull(argv[2], NULL, 10) : first_seed;
    if (!files_begin() || aura_ctx_create(NULL, &ctx))
        return 1;
    walk_texts();
    test_run("a_cache_is_what_plain_arrays_say", argc > 3 ? one_walk : a_cache_is_what_plain_arrays_say);
    aura_ctx_destroy(ctx);
    files_end();
    return test_result();
}
