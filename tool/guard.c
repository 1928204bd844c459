#define _GNU_SOURCE
#include "guard.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { CANARY = 0xa5 };

struct arena arena_create(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE), size = (bytes + page - 1) / page * page;
    uint8_t *all = mmap(NULL, size + 2 * page, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (all == MAP_FAILED || mprotect(all + page, size, PROT_READ | PROT_WRITE)) {
        perror("aura: mmap");
        exit(2);
    }
    struct arena arena = {all + page, NULL, size, 0};
    return arena;
}

void *arena_place(struct arena *arena, size_t bytes, enum placement placement, size_t shift)
{
    if (bytes + 64 > arena->size)
        abort(); /* a case larger than its arena is a mistake in the case */
    memset(arena->pages, CANARY, arena->size);
    arena->bytes = bytes;
    if (placement == AT_END)
        arena->data = arena->pages + arena->size - bytes;
    else
        arena->data = arena->pages + (placement == SHIFTED ? shift : 0);
    return arena->data;
}

int arena_intact(const struct arena *arena)
{
    for (const uint8_t *p = arena->pages; p < arena->pages + arena->size; p++)
        if ((p < arena->data || p >= arena->data + arena->bytes) && *p != CANARY)
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
