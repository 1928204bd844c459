/* What depends on whether somebody is looking. */
#ifndef AURA_TERMINAL_H
#define AURA_TERMINAL_H

#include <stdio.h>

enum colour { PLAIN, BOLD, DIM, GREEN, YELLOW, RED, COLOURS };

/* What begins a colour on this stream, PLAIN what ends it: "" where the stream is no terminal, the terminal is a dumb one, or
 * the environment has a NO_COLOR that is not empty (no-color.org). */
const char *colour(FILE *to, enum colour colour);

/* What is being done, on stderr: on a terminal one line that the next replaces, elsewhere a line each. NULL: no more. */
void print_progress(const char *text);

#endif
