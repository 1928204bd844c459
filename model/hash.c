/* Hashes with a key. */
#define _POSIX_C_SOURCE 200809L
#include "hash.h"

#include <fcntl.h>
#include <pthread.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static uint64_t key[2];
static pthread_once_t once = PTHREAD_ONCE_INIT;

/* Where the system has no random numbers, the clock and an address are hard enough to guess. */
static void make_key(void)
{
    struct timespec now = {0, 0};
    int file = open("/dev/urandom", O_RDONLY | O_CLOEXEC);
    ssize_t got = file >= 0 ? read(file, key, sizeof key) : -1;
    if (file >= 0)
        close(file);
    if (got == (ssize_t)sizeof key)
        return;
    clock_gettime(CLOCK_REALTIME, &now);
    key[0] = (uint64_t)now.tv_nsec * 0x9e3779b97f4a7c15u ^ (uint64_t)now.tv_sec;
    key[1] = (uint64_t)(uintptr_t)&now * 0xd6e8feb86659fd93u ^ (uint64_t)getpid();
}

/* SipHash with one round a word and three at the end: whoever does not know the key cannot make two texts meet. */
static uint64_t turned(uint64_t x, int bits)
{
    return x << bits | x >> (64 - bits);
}

static void rounds(uint64_t v[4], int n)
{
    for (; n > 0; n--) {
        v[0] += v[1], v[2] += v[3];
        v[1] = turned(v[1], 13) ^ v[0], v[3] = turned(v[3], 16) ^ v[2];
        v[0] = turned(v[0], 32);
        v[2] += v[1], v[0] += v[3];
        v[1] = turned(v[1], 17) ^ v[2], v[3] = turned(v[3], 21) ^ v[0];
        v[2] = turned(v[2], 32);
    }
}

static void take_word(uint64_t v[4], uint64_t word)
{
    v[3] ^= word;
    rounds(v, 1);
    v[0] ^= word;
}

uint64_t hash_text(const char *text, size_t size)
{
    pthread_once(&once, make_key);
    uint64_t v[4] = {key[0] ^ 0x736f6d6570736575u, key[1] ^ 0x646f72616e646f6du, key[0] ^ 0x6c7967656e657261u,
                     key[1] ^ 0x7465646279746573u};
    uint64_t word, last = (uint64_t)size << 56;
    for (; size >= sizeof word; text += sizeof word, size -= sizeof word) {
        memcpy(&word, text, sizeof word);
        take_word(v, word);
    }
    for (size_t i = 0; i < size; i++)
        last |= (uint64_t)(unsigned char)text[i] << 8 * i;
    take_word(v, last);
    v[2] ^= 0xff;
    rounds(v, 3);
    return v[0] ^ v[1] ^ v[2] ^ v[3];
}

uint64_t hash_number(uint64_t x)
{
    return hash_text((const char *)&x, sizeof x);
}
