/* What a command writes to a file of the user's: whole, or not at all. */
#ifndef AURA_REPLACEMENT_H
#define AURA_REPLACEMENT_H

#include <stdio.h>

#include "../../src/file/place.h"

struct replacement {
    FILE *to;
    char target[AURA_TARGET_BYTES], temporary[AURA_TEMPORARY_BYTES]; /* temporary is "" where it is written straight to a device */
};

/* Begins a file, in r->to. What is there stays until replacement_end(). A device or a pipe is written to as it is. 0 when good;
 * otherwise -1, with errno. */
int replacement_begin(struct replacement *r, const char *path);

/* Puts the file in its place. With `bad`, for which errno has the reason, or where not all of it could be written, removes it, and
 * what was there stays. 0 when it is in its place; otherwise -1, with errno. */
int replacement_end(struct replacement *r, int bad);

#endif
