/* Text that comes in pieces; a piece may end inside a character. The stream keeps all of it, and shows whole characters only. What
 * may be the beginning of a text that stops it is not shown until it is clear that it is not. */
#ifndef AURA_STREAM_H
#define AURA_STREAM_H

#include <stddef.h>
#include <stdio.h>

struct stream {
    FILE *to;    /* NULL: nothing is shown */
    char *text;  /* [size] */
    size_t size, room, shown;
    const char *const *stops; /* [n_stops]: at the first of these the text ends, without it */
    size_t n_stops;
    int stopped;              /* it has ended */
};

/* 0 when good; -1: no memory. */
int stream_add(struct stream *s, const char *bytes, size_t size);

/* Shows what is left: the beginning of a character whose end did not come. */
void stream_end(struct stream *s);
/* Begins a new text. */
void stream_clear(struct stream *s);
void stream_free(struct stream *s);

/* Writes the text as a string of JSON; bytes that are no UTF-8 become U+FFFD. */
void stream_print_json(const struct stream *s);

#endif
