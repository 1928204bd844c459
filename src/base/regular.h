/* Files to be read that somebody named. A pipe in place of a file would hold the reader up for as long as nobody writes. */
#ifndef AURA_REGULAR_H
#define AURA_REGULAR_H

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

/* A regular file, open for reading; NULL with errno where there is none: EINVAL where the path is something else. */
static inline FILE *aura_open_regular(const char *path)
{
    struct stat about;
    FILE *opened = NULL;
    int file = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), error;
    if (file >= 0 && !fstat(file, &about)) {
        errno = EINVAL;
        opened = S_ISREG(about.st_mode) ? fdopen(file, "rb") : NULL;
    }
    error = errno;
    if (file >= 0 && !opened)
        close(file);
    errno = error;
    return opened;
}

#endif
