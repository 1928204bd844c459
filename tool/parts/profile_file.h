/* A profile that a command got by --profile, with the context that it is made in. */
#ifndef AURA_PROFILE_FILE_H
#define AURA_PROFILE_FILE_H

#include "../../include/aura_file.h"

struct profile_file {
    aura_ctx *ctx;
    aura_profile *profile; /* NULL: none */
};

/* path NULL: none. 0 when good; otherwise 1, and aura_last_error() says why. In both cases the caller calls
 * profile_file_close(). */
int profile_file_open(struct profile_file *file, const char *path);
void profile_file_close(struct profile_file *file);

/* Whether it says of a layer what that is best held in. profile NULL: no. */
int profile_has_formats(const aura_profile *profile);

#endif
