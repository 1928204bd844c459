#define _GNU_SOURCE
#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xa5, MARGIN = 1024 }; /* bytes on either side that hold canaries; beyond them are unmapped pages */

struct arena arena_create(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    uint8_t *all = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + page, size, PROT_READ | PROT_WRITE)) {
        perror("aura check: no memory for the cases");
        exit(1);
    }
    struct arena arena = {all + page, NULL, size, 0};
    return arena;
}

/* The mapped bytes that are watched: the buffer and its margins. */
static uint8_t *watched_start(const struct arena *arena)
{
    return arena->data - arena->pages < MARGIN ? arena->pages : arena->data - MARGIN;
}

static uint8_t *watched_end(const struct arena *arena)
{
    uint8_t *end = arena->pages + arena->size, *data_end = arena->data + arena->bytes;
    return end - data_end < MARGIN ? end : data_end + MARGIN;
}

void *arena_place(struct arena *arena, size_t bytes, enum placement placement, size_t shift)
{
    if (bytes + 64 > arena->size)
        abort(); /* a case larger than its arena is a mistake in the case */
    arena->bytes = bytes;
    if (placement == AT_END)
        arena->data = arena->pages + arena->size - bytes;
    else
        arena->data = arena->pages + (placement == SHIFTED ? shift : 0);
    memset(watched_start(arena), CANARY, (size_t)(watched_end(arena) - watched_start(arena)));
    return arena->data;
}

int arena_intact(const struct arena *arena)
{
    for (const uint8_t *p = watched_start(arena); p < arena->data; p++)
        if (*p != CANARY)
            return 0;
    for (const uint8_t *p = arena->data + arena->bytes; p < watched_end(arena); p++)
        if (*p != CANARY)
            return 0;
    return 1;
}

static sigjmp_buf guard_return;

static void on_fault(int number)
{
    siglongjmp(guard_return, number);
}

int guard_run(void (*body)(void *user), void *user)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGILL, SIGFPE};
    struct sigaction ours, old[4];
    memset(&ours, 0, sizeof ours);
    ours.sa_handler = on_fault;
    for (int i = 0; i < 4; i++)
        sigaction(faults[i], &ours, &old[i]);
    int caught = sigsetjmp(guard_return, 1);
    if (!caught)
        body(user);
    for (int i = 0; i < 4; i++)
        sigaction(faults[i], &old[i], NULL);
    return caught;
}
