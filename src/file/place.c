/* Where a path leads, and a file beside it. */
#define _POSIX_C_SOURCE 200809L /* lstat, readlink, fchmod, fsync, O_CLOEXEC */
#include "../base/exact.h"
#include "place.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_TEMPORARIES = 1000, MOST_LINKS = 40 };

/* One step along a link: target becomes the path in the link, relative to the link's folder. Returns 0, or an errno. */
static int follow_link(char target[AURA_TARGET_BYTES])
{
    char link[AURA_TARGET_BYTES];
    ssize_t n = readlink(target, link, sizeof link);
    char *slash = strrchr(target, '/');
    size_t folder = n > 0 && link[0] != '/' && slash ? (size_t)(slash - target) + 1 : 0;
    if (n <= 0)
        return n ? errno : ENOENT;
    if (folder + (size_t)n >= AURA_TARGET_BYTES)
        return ENAMETOOLONG;
    memcpy(target + folder, link, (size_t)n);
    target[folder + (size_t)n] = 0;
    return 0;
}

int aura_find_target(const char *path, char target[AURA_TARGET_BYTES], enum aura_place *place)
{
    struct stat about;
    *place = AURA_PLACE_FILE;
    if (strlen(path) >= AURA_TARGET_BYTES)
        return ENAMETOOLONG;
    strcpy(target, path);
    for (int links = 0; !lstat(target, &about) && !S_ISREG(about.st_mode); links++) {
        if (!S_ISLNK(about.st_mode))
            return *place = AURA_PLACE_OTHER, 0;
        const int error = links == MOST_LINKS ? ELOOP : follow_link(target);
        if (error)
            return error;
    }
    return 0; /* there is no file yet, or opening it will report what is wrong */
}

int aura_open_temporary(const char *target, char *name, size_t bytes)
{
    struct stat old;
    const int replaces = !stat(target, &old);
    int file = -1;
    snprintf(name, bytes, "%s", target);
    if (replaces && access(target, W_OK)) /* a rename would not ask */
        return -1;
    errno = EEXIST;
    for (int i = 0; i < MOST_TEMPORARIES && file < 0 && errno == EEXIST; i++) {
        snprintf(name, bytes, "%s.tmp-%ld-%d", target, (long)getpid(), i);
        file = open(name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, replaces ? old.st_mode & 0600 : 0666);
    }
    if (file >= 0 && replaces)
        fchmod(file, old.st_mode & 0777); /* where that cannot be, fewer may read it */
    return file;
}

int aura_sync_directory(char *path)
{
    char *slash = strrchr(path, '/');
    if (slash)
        slash[slash == path] = 0;
    const int directory = open(slash ? path : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int error = directory < 0 || (fsync(directory) && errno != EINVAL) ? errno : 0; /* EINVAL: it cannot sync a directory */
    if (directory >= 0)
        close(directory);
    return error;
}
