/* The parts of JSON that several commands print. */
#include "json.h"

#include <stdio.h>
#include <string.h>

#include "utf8.h"

void print_json_string(const char *text)
{
    putchar('"');
    while (*text) {
        size_t n = utf8_character(text);
        if (*text == '"' || *text == '\\')
            printf("\\%c", *text);
        else if (n == 1 && (unsigned char)*text < 32)
            printf("\\u%04x", *text);
        else if (n)
            fwrite(text, 1, n, stdout);
        else
            fputs("\\ufffd", stdout); /* JSON must be UTF-8, and this byte is not */
        text += n ? n : 1;
    }
    putchar('"');
}

void print_csv_string(const char *text)
{
    const int quoted = strpbrk(text, ",\"\r\n") != NULL;
    if (quoted)
        putchar('"');
    for (; *text; text++) {
        if (*text == '"')
            putchar('"');
        putchar(*text);
    }
    if (quoted)
        putchar('"');
}
