/* Text in pieces. */
#include "stream.h"

#include <stdlib.h>
#include <string.h>

/* Bytes of a character by its first byte; 0 where none begins with it. */
static size_t character_bytes(unsigned char first)
{
    static const unsigned char from[] = {0x00, 0x80, 0xc2, 0xe0, 0xf0, 0xf5}, bytes[] = {1, 0, 2, 3, 4, 0};
    size_t i = 0;
    while (i + 1 < sizeof from && first >= from[i + 1])
        i++;
    return bytes[i];
}

/* Bytes at the end of a text that may be the beginning of a character. */
static size_t unfinished(const char *text, size_t size)
{
    for (size_t back = 1; back <= 3 && back <= size; back++) {
        unsigned char c = (unsigned char)text[size - back];
        if ((c & 0xc0) != 0x80)
            return character_bytes(c) > back ? back : 0;
    }
    return 0;
}

/* Bytes at the end of a text that may be the beginning of one that stops it. */
static size_t may_stop(const struct stream *s)
{
    size_t most = 0;
    for (size_t i = 0; i < s->n_stops; i++)
        for (size_t n = strlen(s->stops[i]) - 1; n > most; n--)
            if (n <= s->size && !memcmp(s->text + s->size - n, s->stops[i], n))
                most = n;
    return most;
}

/* Cuts the text off where one that stops it begins; the new bytes begin at `from`. */
static void stop(struct stream *s, size_t from)
{
    for (size_t i = 0; i < s->n_stops; i++) {
        const size_t n = strlen(s->stops[i]);
        for (size_t at = from < n ? 0 : from - n + 1; at + n <= s->size; at++)
            if (!memcmp(s->text + at, s->stops[i], n))
                s->size = at, s->stopped = 1;
    }
}

static void show(struct stream *s, size_t end)
{
    if (s->to && end > s->shown) {
        fwrite(s->text + s->shown, 1, end - s->shown, s->to);
        fflush(s->to);
    }
    s->shown = end;
}

int stream_add(struct stream *s, const char *bytes, size_t size)
{
    if (size > s->room - s->size) {
        size_t room = 2 * (s->size + size);
        char *grown = realloc(s->text, room);
        if (!grown)
            return -1;
        s->text = grown, s->room = room;
    }
    if (size)
        memcpy(s->text + s->size, bytes, size);
    s->size += size;
    stop(s, s->size - size);
    const size_t half = unfinished(s->text, s->size), held = s->stopped ? 0 : may_stop(s);
    show(s, s->size - (half > held ? half : held));
    return 0;
}

void stream_end(struct stream *s)
{
    show(s, s->size);
}

void stream_clear(struct stream *s)
{
    s->size = s->shown = 0;
    s->stopped = 0;
}

void stream_free(struct stream *s)
{
    free(s->text);
    memset(s, 0, sizeof *s);
}

/* Bytes of the character at text[i]. 0: it is cut off, overlong, a surrogate or beyond the last of Unicode. */
static size_t whole_character(const char *text, size_t size)
{
    const unsigned char *p = (const unsigned char *)text;
    size_t n = character_bytes(p[0]);
    if (n == 0 || n > size)
        return 0;
    for (size_t i = 1; i < n; i++)
        if ((p[i] & 0xc0) != 0x80)
            return 0;
    if ((p[0] == 0xe0 && p[1] < 0xa0) || (p[0] == 0xed && p[1] > 0x9f) || (p[0] == 0xf0 && p[1] < 0x90) ||
        (p[0] == 0xf4 && p[1] > 0x8f))
        return 0;
    return n;
}

void stream_print_json(const struct stream *s)
{
    putchar('"');
    for (size_t i = 0; i < s->size;) {
        size_t n = whole_character(s->text + i, s->size - i);
        unsigned char c = (unsigned char)s->text[i];
        if (n == 0)
            printf("\\ufffd");
        else if (c == '"' || c == '\\')
            printf("\\%c", c);
        else if (c < 32)
            printf("\\u%04x", c);
        else
            fwrite(s->text + i, 1, n, stdout);
        i += n ? n : 1;
    }
    putchar('"');
}
