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

static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 32) * 0xd6e8feb86659fd93u;
    return x ^ x >> 32;
}

uint64_t hash_number(uint64_t x)
{
    pthread_once(&once, make_key);
    return mixed(mixed(x ^ key[0]) ^ key[1]);
}

uint64_t hash_text(const char *text, size_t size)
{
    uint64_t h = size, word;
    pthread_once(&once, make_key);
    h ^= key[0];
    for (; size >= 8; text += 8, size -= 8) {
        memcpy(&word, text, 8);
        h = mixed(h ^ word);
    }
    word = 0;
    if (size)
        memcpy(&word, text, size);
    return mixed(mixed(h ^ word) ^ key[1]);
}
