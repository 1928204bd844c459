/* Hashes of what a file says: no file can know them. */
#define _POSIX_C_SOURCE 200809L
#include "../../model/hash.h"

#include <inttypes.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../test.h"

enum { WORDS = 20000, PLACES = 1 << 16 };

/* On how many places the words fall that differ in sixteen bits from the given one on. */
static int places_of(int shift, int numbers)
{
    static unsigned char taken[PLACES];
    int n = 0;
    memset(taken, 0, sizeof taken);
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t word = i << shift;
        unsigned char *place = &taken[(numbers ? hash_number(word) : hash_text((const char *)&word, sizeof word)) % PLACES];
        n += !*place;
        *place = 1;
    }
    return n;
}

/* 20 000 of 65 536 places taken at random are about 17 200 different ones. */
static void words_that_are_alike_spread(void)
{
    for (int shift = 0; shift <= 48; shift += 8) {
        EXPECT(places_of(shift, 0) > 16800, "%d texts from bit %d on fall on %d places", WORDS, shift, places_of(shift, 0));
        EXPECT(places_of(shift, 1) > 16800, "%d numbers from bit %d on fall on %d places", WORDS, shift, places_of(shift, 1));
    }
}

/* So a file made to collide in one process does not in the next. Comes first: the first hash of a process makes its key. */
static void another_process_hashes_otherwise(void)
{
    uint64_t its = 0;
    int pipes[2];
    EXPECT(pipe(pipes) == 0, "no pipe");
    pid_t child = fork();
    if (child == 0) {
        its = hash_text("aura", 4);
        _exit(write(pipes[1], &its, sizeof its) != (ssize_t)sizeof its);
    }
    EXPECT(read(pipes[0], &its, sizeof its) == (ssize_t)sizeof its && waitpid(child, NULL, 0) == child, "no second process");
    EXPECT(its != hash_text("aura", 4), "both have %016" PRIx64, its);
    close(pipes[0]), close(pipes[1]);
}

static void the_same_text_has_one_hash(void)
{
    char text[] = "x a text of some length", *other = text + 1;
    EXPECT(hash_text(other, 10) == hash_text(" a text of", 10), "the address counts");
    EXPECT(hash_text("ab", 2) != hash_text("ab\0", 3), "the length does not count");
    EXPECT(hash_number(5) == hash_number(5) && hash_number(5) != hash_number(6), "numbers");
}

int main(void)
{
    RUN(another_process_hashes_otherwise);
    RUN(words_that_are_alike_spread);
    RUN(the_same_text_has_one_hash);
    return test_result();
}
