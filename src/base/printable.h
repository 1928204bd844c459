/* Texts from files, for a person to read: a terminal obeys control characters, so no message may hold one. */
#ifndef AURA_PRINTABLE_H
#define AURA_PRINTABLE_H

/* In place: a question mark for each control character, those of one byte and those that UTF-8 writes as two (U+0080 to U+009F). */
static inline void aura_make_printable(char *text)
{
    for (unsigned char *at = (unsigned char *)text; *at; at++) {
        const int in_two = at[0] == 0xc2 && at[1] >= 0x80 && at[1] < 0xa0;
        if (in_two)
            at[0] = at[1] = '?';
        else if (*at < 0x20 || *at == 0x7f)
            *at = '?';
    }
}

#endif
