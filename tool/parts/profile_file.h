/* A profile that a command got by --profile, with the context that it is made in. */
#ifndef AURA_PROFILE_FILE_H
#define AURA_PROFILE_FILE_H

#include "text_model.h"

#include "../../include/aura_file.h"

struct profile_file {
    aura_ctx *ctx;
    aura_profile *profile; /* NULL: none */
};

/* path NULL: none. 0 when good; otherwise 1, and aura_last_error() says why. In both cases the caller calls
 * profile_file_close(). */
int profile_file_open(struct profile_file *file, const char *path);
void profile_file_close(struct profile_file *file);

/* The profile that a user gets who has none and says "auto": the model reads OWN_TOKENS tokens of data/dictionary.txt. With `keep`
 * it is kept in the user's cache directory, by the fingerprint of the weights, and taken from there the next time. The text of m, if
 * it has one, stays. 0 when good; otherwise 1, with a text. In both cases the caller calls profile_file_close(). */
enum { OWN_TOKENS = 1024 };
int profile_file_make(struct profile_file *file, const struct text_model *m, uint32_t threads, int keep,
                      char error[LLM_ERROR_BYTES]);

/* Whether it says of a layer what that is best held in. profile NULL: no. */
int profile_has_formats(const aura_profile *profile);

#endif
