/* Which bytes are UTF-8: models, files and arguments may hold any bytes. */
#ifndef AURA_UTF8_H
#define AURA_UTF8_H

#include <stddef.h>

/* Bytes of the UTF-8 character that begins here. 0: half a character, an overlong one, half of a surrogate pair, or the end of the
 * string. */
size_t utf8_character(const char *at);

#endif
