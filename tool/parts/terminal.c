/* Output that differs between a terminal and a file. */
#define _GNU_SOURCE
#include "terminal.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *colour(FILE *to, enum colour colour)
{
    static const char *const codes[COLOURS] = {"\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m"};
    const char *no = getenv("NO_COLOR"), *term = getenv("TERM");
    return (no && *no) || (term && !strcmp(term, "dumb")) || !isatty(fileno(to)) ? "" : codes[colour];
}

void print_progress(const char *text)
{
    if (isatty(2))
        fprintf(stderr, "\r%-78s\r%s", "", text ? text : "");
    else if (text)
        fprintf(stderr, "%s\n", text);
    fflush(stderr);
}
