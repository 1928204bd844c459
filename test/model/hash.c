/* Hashes of what a file says: no file can know them. */
#include "../../model/hash.h"

#include <string.h>

#include "../test.h"

enum { WORDS = 20000, PLACES = 1 << 16 };

/* The inverse of x ^ x >> 32, and of the odd factor, modulo 2^64. */
static uint64_t unmixed(uint64_t x)
{
    uint64_t inverse = 0xd6e8feb86659fd93u;
    for (int i = 0; i < 6; i++)
        inverse *= 2 - 0xd6e8feb86659fd93u * inverse;
    x = (x ^ x >> 32) * inverse;
    return x ^ x >> 32;
}

static int places_of(int numbers)
{
    static unsigned char taken[PLACES];
    int n = 0;
    memset(taken, 0, sizeof taken);
    for (uint64_t i = 0; i < WORDS; i++) {
        uint64_t word = unmixed(unmixed(i << 16)); /* as often as the hash mixes: without a key all of these fall on place 0 */
        if (!numbers)
            word = unmixed(word) ^ sizeof word;
        unsigned char *place = &taken[(numbers ? hash_number(word) : hash_text((const char *)&word, sizeof word)) % PLACES];
        n += !*place;
        *place = 1;
    }
    return n;
}

/* 20 000 of 65 536 places taken at random are about 17 200 different ones. */
static void names_made_to_collide_do_not(void)
{
    EXPECT(places_of(0) > 16000, "%d texts fall on %d places", WORDS, places_of(0));
    EXPECT(places_of(1) > 16000, "%d numbers fall on %d places", WORDS, places_of(1));
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
    RUN(names_made_to_collide_do_not);
    RUN(the_same_text_has_one_hash);
    return test_result();
}
