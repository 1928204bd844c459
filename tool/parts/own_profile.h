/* The profile that a user gets who has none and says "auto": from a text of the project's. */
#ifndef AURA_OWN_PROFILE_H
#define AURA_OWN_PROFILE_H

#include "profile_file.h"
#include "text_model.h"

enum { OWN_TOKENS = 1024 };

/* The model reads OWN_TOKENS tokens of data/dictionary.txt. With `keep` the profile is kept in the user's cache directory, by the
 * fingerprint of the weights, and taken from there the next time. The text of m, if it has one, stays. 0 when good; otherwise 1,
 * with a text. In both cases the caller calls profile_file_close(). */
int own_profile_make(struct profile_file *file, const struct text_model *m, uint32_t threads, int keep,
                     char error[LLM_ERROR_BYTES]);

#endif
