/* Context, versions, errors. */
#define _DEFAULT_SOURCE /* madvise */
#include "exact.h"
#include "context.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__linux__)
#include <sys/mman.h>
#include <sys/sysinfo.h>
#endif

static _Thread_local char last_error[256];

const char *aura_version(void)
{
    return AURA_VERSION_STRING;
}

const char *aura_status_text(aura_status status)
{
    switch (status) {
    case AURA_OK: return "ok";
    case AURA_BAD_ARGUMENT: return "bad argument";
    case AURA_BAD_VALUE: return "bad value in the data";
    case AURA_UNSUPPORTED: return "not supported";
    case AURA_TOO_LARGE: return "too large";
    case AURA_OUT_OF_MEMORY: return "out of memory";
    case AURA_NOT_FINITE: return "some rows are not finite";
    case AURA_OUT_OF_PAGES: return "out of pages";
    case AURA_BAD_FILE: return "bad file";
    case AURA_IO: return "input or output failed";
    case AURA_DEVICE: return "device failure";
    }
    return "unknown status";
}

const char *aura_last_error(void)
{
    return last_error;
}

size_t aura_dtype_bytes(aura_dtype dtype)
{
    switch (dtype) {
    case AURA_F32: return 4;
    case AURA_F16:
    case AURA_BF16: return 2;
    }
    return 0;
}

aura_status aura_fail(const aura_ctx *ctx, aura_status status, const char *format, ...)
{
    va_list args;
    va_start(args, format);
    vsnprintf(last_error, sizeof last_error, format, args);
    va_end(args);
    if (ctx && ctx->log)
        ctx->log(ctx->log_user, AURA_LOG_ERROR, last_error);
    return status;
}

/* The C library promises memory that the machine does not have, and the system ends a process that then uses it. */
static uint64_t machine_memory(void)
{
#if defined(__linux__)
    struct sysinfo about;
    if (!sysinfo(&about))
        return ((uint64_t)about.totalram + about.totalswap) * about.mem_unit;
#endif
    return 0;
}

static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    if (bytes > SIZE_MAX - align)
        return NULL;
    size_t rounded = (bytes + align - 1) / align * align; /* C11 wants a multiple */
    void *memory = aligned_alloc(align, rounded);
#if defined(MADV_HUGEPAGE)
    if (memory && align >= 2 << 20) /* what is read tile after tile: without huge pages every tile misses the TLB */
        madvise(memory, rounded, MADV_HUGEPAGE);
#endif
    return memory;
}

static void default_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
}

aura_allocator aura_default_allocator(void)
{
    aura_allocator c_library = {default_alloc, default_free, NULL};
    return c_library;
}

static void log_choice(const aura_ctx *ctx)
{
    char line[128];
    int n = snprintf(line, sizeof line, "aura %s uses", AURA_VERSION_STRING);
    for (size_t i = 0; i < aura_isa_count; i++)
        if (ctx->isas & aura_isa_list[i].flag)
            n += snprintf(line + n, sizeof line - (size_t)n, " %s", aura_isa_list[i].name);
    ctx->log(ctx->log_user, AURA_LOG_INFO, line);
}

static aura_status check_options(const aura_ctx_options *o, uint32_t known_isas)
{
    if (o->size != sizeof *o)
        return aura_fail(NULL, AURA_BAD_ARGUMENT,
                         "aura_ctx_create: options.size is %zu, this library knows %zu; use AURA_CTX_OPTIONS_INIT",
                         o->size, sizeof *o);
    if (!o->allocator.alloc != !o->allocator.free)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: allocator needs both alloc and free, or neither");
    if (o->isa_mask & ~known_isas)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: isa_mask 0x%x has bits beyond 0x%x", o->isa_mask,
                         known_isas);
    const char *name = getenv("AURA_ISA");
    if (name && *name && !aura_isas_up_to(name))
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: AURA_ISA is %.32s in the environment, which names no "
                         "instruction set; `aura list` shows them", name);
    if (o->threads > AURA_MAX_THREADS)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: threads is %u, at most %d", o->threads,
                         AURA_MAX_THREADS);
    if (o->threads > 1 && o->executor.run)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: threads is %u and there is an executor; give one of them",
                         o->threads);
    return AURA_OK;
}

/* The threads that the options ask for, if any. */
static aura_status make_workers(aura_ctx *ctx, uint32_t threads)
{
    uint32_t started;
    ctx->workers = NULL;
    if (threads < 2 || !aura_workers_create(&ctx->allocator, threads, &ctx->workers, &started))
        return AURA_OK;
    if (started)
        return aura_fail(NULL, AURA_OUT_OF_MEMORY, "aura_ctx_create: only %u of %u threads could be had", started, threads);
    return aura_fail(NULL, AURA_OUT_OF_MEMORY, "aura_ctx_create: the allocator has no memory for %u threads",
                     threads);
}

aura_status aura_ctx_create(const aura_ctx_options *options, aura_ctx **ctx)
{
    static const aura_ctx_options defaults = AURA_CTX_OPTIONS_INIT;
    uint32_t known = 0;
    aura_status status;
    if (!ctx)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: ctx is NULL");
    if (!options)
        options = &defaults;
    for (size_t i = 0; i < aura_isa_count; i++)
        known |= aura_isa_list[i].flag;
    if ((status = check_options(options, known)))
        return status;
    aura_allocator allocator = options->allocator.alloc ? options->allocator : aura_default_allocator();
    aura_ctx *made = allocator.alloc(allocator.user, sizeof *made, 64);
    if (!made)
        return aura_fail(NULL, AURA_OUT_OF_MEMORY, "aura_ctx_create: the allocator has no %zu bytes", sizeof *made);
    made->allocator = allocator;
    made->memory = options->allocator.alloc ? 0 : machine_memory();
    made->log = options->log;
    made->log_user = options->log_user;
    made->executor = options->executor;
    made->isas = aura_usable_isas(options->isa_mask ? options->isa_mask : known);
    aura_kernels_init(&made->kernels, made->isas);
    if ((status = make_workers(made, options->threads))) {
        allocator.free(allocator.user, made, sizeof *made);
        return status;
    }
    if (made->log)
        log_choice(made);
    *ctx = made;
    return AURA_OK;
}

void aura_ctx_destroy(aura_ctx *ctx)
{
    if (ctx) {
        aura_allocator allocator = ctx->allocator;
        aura_workers_destroy(ctx->workers, &allocator);
        allocator.free(allocator.user, ctx, sizeof *ctx);
    }
}

uint32_t aura_ctx_isas(const aura_ctx *ctx)
{
    return ctx ? ctx->isas : 0;
}
