/* Output that differs between a terminal and a file. */
#ifndef AURA_TERMINAL_H
#define AURA_TERMINAL_H

#include <stdio.h>

enum colour { PLAIN, BOLD, DIM, GREEN, YELLOW, RED, COLOURS };

/* The text that begins a colour on this stream; PLAIN gives the text that ends it. "" where the stream is no terminal, the terminal
 * has no colours, or NO_COLOR in the environment is not empty (no-color.org). */
const char *colour(FILE *to, enum colour colour);

/* Says on stderr what the tool is doing. On a terminal the next message replaces the line, elsewhere each has its own line. NULL
 * ends the messages. */
void print_progress(const char *text);

/* Takes the last one from the terminal, if it is still there: before a message, or an answer. */
void end_progress(void);

/* The columns of the terminal that a file is; 80 where that is not known. */
unsigned terminal_columns(int file);

#endif
