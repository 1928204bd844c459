/* Files are replaced in one step: a new one is written beside the old one, and renamed when it is complete and on disk. */
#define _POSIX_C_SOURCE 200809L /* fsync, strerror_r, O_CLOEXEC */
#include "../base/exact.h"
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TEMPORARIES = 1000, MOST_LINKS = 40, TARGET_BYTES = 4096 };

struct aura_replacement {
    struct aura_call call;
    const char *path;
    int file;
    char target[TARGET_BYTES];         /* the file that is replaced: the path, or where it leads as a link */
    char temporary[TARGET_BYTES + 48]; /* the name of the file until it is complete */
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

/* One step along a link: target becomes the path in the link, relative to the link's folder. Returns 0, or an errno. */
static int follow_link(char target[TARGET_BYTES])
{
    char link[TARGET_BYTES];
    ssize_t n = readlink(target, link, sizeof link);
    char *slash = strrchr(target, '/');
    size_t folder = n > 0 && link[0] != '/' && slash ? (size_t)(slash - target) + 1 : 0;
    if (n <= 0)
        return n ? errno : ENOENT;
    if (folder + (size_t)n >= TARGET_BYTES)
        return ENAMETOOLONG;
    memcpy(target + folder, link, (size_t)n);
    target[folder + (size_t)n] = 0;
    return 0;
}

/* The file that a path leads to. A link stays a link, and its target is replaced, also one that is not there yet. A device, a
 * pipe or a directory is refused: a rename would put a file in its place. */
static aura_status find_target(struct aura_call call, const char *path, char target[TARGET_BYTES])
{
    struct stat about;
    if (strlen(path) >= TARGET_BYTES)
        return aura_fail_io(call, "write", path, ENAMETOOLONG);
    strcpy(target, path);
    for (int links = 0; !lstat(target, &about); links++) {
        if (S_ISREG(about.st_mode))
            return AURA_OK;
        if (!S_ISLNK(about.st_mode))
            return aura_fail(call.ctx, AURA_IO, "%s: only a file can be replaced: %s", call.name, path);
        const int error = links == MOST_LINKS ? ELOOP : follow_link(target);
        if (error)
            return aura_fail_io(call, "follow the link", path, error);
    }
    return AURA_OK; /* there is no file yet, or opening it will report what is wrong */
}

/* Creates a file beside the one to be replaced. It skips names that killed writers have left behind. */
static aura_status open_temporary(struct aura_replacement *f)
{
    for (int i = 0; i < MOST_TEMPORARIES; i++) {
        snprintf(f->temporary, sizeof f->temporary, "%s.tmp-%ld-%d", f->target, (long)getpid(), i);
        f->file = open(f->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (f->file >= 0)
            return AURA_OK;
        if (errno != EEXIST)
            break;
    }
    return aura_fail_io(f->call, "create", f->temporary, errno);
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

/* A rename is on disk when its directory is. EINVAL: the file system cannot sync a directory. */
static aura_status sync_directory(struct aura_replacement *f)
{
    aura_status status = AURA_OK;
    char *slash = strrchr(f->temporary, '/');
    if (slash)
        slash[slash == f->temporary] = 0;
    int directory = open(slash ? f->temporary : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 || (fsync(directory) && errno != EINVAL))
        status = aura_fail_io(f->call, "sync the directory of", f->path, errno);
    if (directory >= 0)
        close(directory);
    return status;
}

aura_status aura_replace_end(struct aura_replacement *f, aura_status status)
{
    if (!status && fsync(f->file))
        status = aura_fail_io(f->call, "write", f->temporary, errno);
    if (close(f->file) && !status)
        status = aura_fail_io(f->call, "write", f->temporary, errno);
    if (!status && rename(f->temporary, f->target))
        status = aura_fail_io(f->call, "replace", f->path, errno);
    if (status)
        unlink(f->temporary);
    else
        status = sync_directory(f);
    aura_give_memory(f->call.ctx, f, sizeof *f);
    return status;
}
