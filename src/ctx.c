/* Context, versions, errors. */
#include "exact.h"
#include "ctx.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

static void *default_alloc(void *user, size_t bytes, size_t align)
{
    (void)user;
    return aligned_alloc(align, (bytes + align - 1) / align * align);
}

static void default_free(void *user, void *memory, size_t bytes)
{
    (void)user;
    (void)bytes;
    free(memory);
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

aura_status aura_ctx_create(const aura_ctx_options *options, aura_ctx **ctx)
{
    static const aura_ctx_options defaults = AURA_CTX_OPTIONS_INIT;
    aura_allocator c_library = {default_alloc, default_free, NULL};
    uint32_t known = 0;
    if (!ctx)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: ctx is NULL");
    if (!options)
        options = &defaults;
    if (options->size != sizeof *options)
        return aura_fail(NULL, AURA_BAD_ARGUMENT,
                         "aura_ctx_create: options.size is %zu, this library knows %zu; use AURA_CTX_OPTIONS_INIT",
                         options->size, sizeof *options);
    if (!options->allocator.alloc != !options->allocator.free)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: allocator needs both alloc and free, or neither");
    for (size_t i = 0; i < aura_isa_count; i++)
        known |= aura_isa_list[i].flag;
    if (options->isa_mask & ~known)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "aura_ctx_create: isa_mask 0x%x has bits beyond 0x%x",
                         options->isa_mask, known);
    aura_allocator allocator = options->allocator.alloc ? options->allocator : c_library;
    aura_ctx *made = allocator.alloc(allocator.user, sizeof *made, 64);
    if (!made)
        return aura_fail(NULL, AURA_OUT_OF_MEMORY, "aura_ctx_create: the allocator has no %zu bytes", sizeof *made);
    made->allocator = allocator;
    made->log = options->log;
    made->log_user = options->log_user;
    made->isas = (options->isa_mask ? options->isa_mask | AURA_ISA_REF : known) & aura_cpu_isas();
    aura_kernels_init(&made->kernels, made->isas);
    if (made->log)
        log_choice(made);
    *ctx = made;
    return AURA_OK;
}

void aura_ctx_destroy(aura_ctx *ctx)
{
    if (ctx) {
        aura_allocator allocator = ctx->allocator;
        allocator.free(allocator.user, ctx, sizeof *ctx);
    }
}

uint32_t aura_ctx_isas(const aura_ctx *ctx)
{
    return ctx ? ctx->isas : 0;
}
