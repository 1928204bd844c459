/* Buffers that notice a wrong access: memory that ends at an unmapped page, canaries around outputs, and faults as results. */
#ifndef AURA_GUARD_H
#define AURA_GUARD_H

#include <setjmp.h>
#include <stddef.h>
#include <stdint.h>

/* Where in its arena a buffer lies. */
enum placement {
    AT_END,    /* its last byte is the last mapped one: reading past it faults */
    AT_START,  /* its first byte is the first mapped one: reading before it faults */
    SHIFTED    /* aligned to `shift` bytes and no better; canaries on both sides */
};

struct arena {
    uint8_t *pages;       /* mapped, with an unmapped page before and after */
    uint8_t *data;        /* the buffer placed last */
    size_t size, bytes;   /* of pages, of data */
};

/* Maps an arena; exits with a message when the system has none to give. */
struct arena arena_create(size_t bytes);

/* Fills the arena with canaries and places a buffer of `bytes` in it. */
void *arena_place(struct arena *arena, size_t bytes, enum placement placement, size_t shift);

/* 1 when every canary outside the buffer is unchanged. */
int arena_intact(const struct arena *arena);

/* Runs `body(user)`; returns 0, or the signal number (SIGSEGV, SIGBUS, SIGILL, SIGFPE) that ended it. */
int guard_run(void (*body)(void *user), void *user);

#endif
