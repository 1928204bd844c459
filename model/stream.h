/* Text that comes in pieces which may end inside a character: kept whole, and shown a whole character at a time. */
#ifndef AURA_STREAM_H
#define AURA_STREAM_H

#include <stddef.h>
#include <stdio.h>

struct stream {
    FILE *to;    /* NULL: nothing is shown */
    char *text;  /* [size] */
    size_t size, room, shown;
};

/* 0 when good; -1: no memory. */
int stream_add(struct stream *s, const char *bytes, size_t size);

/* Shows what is left, which is then no whole character. */
void stream_end(struct stream *s);
void stream_free(struct stream *s);

/* As a string of JSON; what is no UTF-8 is U+FFFD there. */
void stream_print_json(const struct stream *s);

#endif
