/* Which bytes are UTF-8. */
#include "utf8.h"

size_t utf8_character(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    unsigned char first = at[0];
    size_t n = first == 0     ? 0
               : first < 0x80 ? 1
               : first < 0xc2 ? 0
               : first < 0xe0 ? 2
               : first < 0xf0 ? 3
               : first < 0xf5 ? 4
                              : 0;
    for (size_t i = 1; i < n; i++)
        if ((at[i] & 0xc0) != 0x80)
            return 0;
    if ((first == 0xe0 && at[1] < 0xa0) || (first == 0xf0 && at[1] < 0x90)) /* overlong: a shorter form exists */
        return 0;
    if ((first == 0xed && at[1] > 0x9f) || (first == 0xf4 && at[1] > 0x8f)) /* surrogates; beyond the last character */
        return 0;
    return n;
}
