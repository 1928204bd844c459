/* The context and the reporting of errors. */
#ifndef AURA_CONTEXT_H
#define AURA_CONTEXT_H

#include "../dispatch.h"
#include "threads.h"

struct aura_ctx {
    aura_allocator allocator;
    uint64_t memory; /* bytes that the machine has, where the allocator is the C library's; 0: not known */
    aura_log_fn *log;
    void *log_user;
    uint32_t isas;
    struct aura_kernels kernels;
    aura_executor executor; /* run NULL: none */
    struct aura_workers *workers; /* NULL: none */
};

aura_allocator aura_default_allocator(void); /* the C library's */

/* Keeps the message for aura_last_error(), logs it where ctx has a log, and returns `status`. */
aura_status aura_fail(const aura_ctx *ctx, aura_status status, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

#endif
