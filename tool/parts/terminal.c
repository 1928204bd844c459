/* Output that differs between a terminal and a file. */
#define _GNU_SOURCE
#include "terminal.h"

#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

static int is_dumb(void)
{
    const char *term = getenv("TERM");
    return term && !strcmp(term, "dumb");
}

const char *colour(FILE *to, enum colour colour)
{
    static const char *const codes[COLOURS] = {"\033[0m", "\033[1m", "\033[2m", "\033[32m", "\033[33m", "\033[31m"};
    const char *no = getenv("NO_COLOR");
    return (no && *no) || is_dumb() || !isatty(fileno(to)) ? "" : codes[colour];
}

unsigned terminal_columns(int file)
{
    struct winsize size;
    return ioctl(file, TIOCGWINSZ, &size) || !size.ws_col ? 80 : size.ws_col;
}

static int showing; /* whether the terminal shows progress */

void print_progress(const char *text)
{
    if (isatty(2) && !is_dumb()) /* as much as fits a line: of a longer one only the last line could be replaced */
        fprintf(stderr, "\r\033[K%.*s", (int)terminal_columns(2) - 1, text ? text : "");
    else if (text)
        fprintf(stderr, "%s\n", text);
    showing = text != NULL;
    fflush(stderr);
}

void end_progress(void)
{
    if (showing)
        print_progress(NULL);
}
