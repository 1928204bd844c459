/* Files are replaced in one step: a new one is written beside the old one, and renamed when it is complete and on disk. */
#define _POSIX_C_SOURCE 200809L /* fsync, strerror_r, O_CLOEXEC */
#include "../base/exact.h"
#include "container.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "place.h"

struct aura_replacement {
    struct aura_call call;
    const char *path;
    int file;
    char target[AURA_TARGET_BYTES];       /* the file that is replaced: the path, or where it leads as a link */
    char temporary[AURA_TEMPORARY_BYTES]; /* the name of the file until it is complete */
};

aura_status aura_fail_io(struct aura_call call, const char *what, const char *path, int error)
{
    char text[80];
    if (strerror_r(error, text, sizeof text))
        snprintf(text, sizeof text, "error %d", error);
    return aura_fail(call.ctx, AURA_IO, "%s: cannot %s: %s: %s", call.name, what, text, path);
}

aura_status aura_check_path(struct aura_call call, const char *path)
{
    if (!path || !*path)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: path is %s", call.name, path ? "empty" : "NULL");
    return AURA_OK;
}

/* The file that a path leads to. A device, a pipe or a directory is refused. */
static aura_status find_target(struct aura_call call, const char *path, char target[AURA_TARGET_BYTES])
{
    enum aura_place place;
    const int error = aura_find_target(path, target, &place);
    if (error)
        return aura_fail_io(call, error == ENAMETOOLONG ? "write" : "follow the link", path, error);
    return place == AURA_PLACE_FILE ? AURA_OK
                                    : aura_fail(call.ctx, AURA_IO, "%s: only a file can be replaced: %s", call.name, path);
}

static aura_status open_temporary(struct aura_replacement *f)
{
    f->file = aura_open_temporary(f->target, f->temporary, sizeof f->temporary);
    return f->file < 0 ? aura_fail_io(f->call, "create", f->temporary, errno) : AURA_OK;
}

aura_status aura_replace_begin(struct aura_call call, const char *path, struct aura_replacement **file)
{
    void *memory = NULL;
    aura_status status = aura_check_path(call, path);
    if (status || (status = aura_take_memory(call, sizeof(struct aura_replacement), &memory)))
        return status;
    struct aura_replacement *f = memory;
    f->call = call;
    f->path = path;
    if ((status = find_target(call, path, f->target)) || (status = open_temporary(f)))
        aura_give_memory(call.ctx, f, sizeof *f);
    else
        *file = f;
    return status;
}

aura_status aura_replace_write(struct aura_replacement *f, const void *data, size_t bytes, uint64_t offset)
{
    while (bytes) {
        ssize_t n = pwrite(f->file, data, bytes, (off_t)offset);
        if (n < 0 && errno != EINTR)
            return aura_fail_io(f->call, "write", f->temporary, errno);
        if (n > 0) {
            data = (const uint8_t *)data + n;
            bytes -= (size_t)n;
            offset += (uint64_t)n;
        }
    }
    return AURA_OK;
}

aura_status aura_replace_end(struct aura_replacement *f, aura_status status)
{
    int error;
    if (!status && fsync(f->file))
        status = aura_fail_io(f->call, "write", f->temporary, errno);
    if (close(f->file) && !status)
        status = aura_fail_io(f->call, "write", f->temporary, errno);
    if (!status && rename(f->temporary, f->target))
        status = aura_fail_io(f->call, "replace", f->path, errno);
    if (status)
        unlink(f->temporary);
    else if ((error = aura_sync_directory(f->temporary)))
        status = aura_fail_io(f->call, "sync the directory of", f->path, error);
    aura_give_memory(f->call.ctx, f, sizeof *f);
    return status;
}
