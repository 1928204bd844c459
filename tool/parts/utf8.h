/* What is text and what is not: bytes of models, files and arguments may be anything. */
#ifndef AURA_UTF8_H
#define AURA_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 character that a string has here; 0 when none begins here: half a character, one that is written longer than
 * it needs to be, half of a surrogate pair, or the end. */
size_t utf8_character(const char *at);

#endif
