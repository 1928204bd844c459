/* Which characters are letters, numbers and spaces: the tokenizers split text by these classes. */
#ifndef AURA_UNICODE_H
#define AURA_UNICODE_H

#include <stddef.h>
#include <stdint.h>

enum unicode_class {
    UNICODE_OTHER,
    UNICODE_LETTER, /* \p{L} */
    UNICODE_NUMBER, /* \p{N} */
    UNICODE_SPACE   /* \s: White_Space */
};

/* Runs of one class, in order: the first character of a run << 2 | its class. The first run begins at 0. */
extern const uint32_t unicode_ranges[];
extern const size_t unicode_range_count;

#endif
