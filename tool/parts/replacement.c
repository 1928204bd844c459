/* Files that are replaced in one step. */
#define _POSIX_C_SOURCE 200809L
#include "replacement.h"

#include <errno.h>
#include <unistd.h>

int replacement_begin(struct replacement *r, const char *path)
{
    enum aura_place place;
    int file, error = aura_find_target(path, r->target, &place);
    r->to = NULL, *r->temporary = 0;
    if (error)
        return errno = error, -1;
    if (place == AURA_PLACE_OTHER)
        return (r->to = fopen(path, "wb")) ? 0 : -1;
    if ((file = aura_open_temporary(r->target, r->temporary, sizeof r->temporary)) < 0)
        return -1;
    if ((r->to = fdopen(file, "wb")))
        return 0;
    error = errno;
    close(file), unlink(r->temporary);
    return errno = error, -1;
}

int replacement_end(struct replacement *r, int bad)
{
    int error = bad ? errno ? errno : EIO : 0;
    if (!error && (fflush(r->to) || ferror(r->to) || (*r->temporary && fsync(fileno(r->to)))))
        error = errno ? errno : EIO;
    if (fclose(r->to) && !error)
        error = errno;
    if (!error && *r->temporary && rename(r->temporary, r->target))
        error = errno;
    if (error && *r->temporary)
        unlink(r->temporary);
    else if (*r->temporary)
        error = aura_sync_directory(r->temporary);
    errno = error;
    return error ? -1 : 0;
}
