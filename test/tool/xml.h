/* Whether a text is well-formed XML, as far as the pages of the tool need it: elements nest and close, attributes are quoted and
 * not given twice, & and < are escaped. Enough to notice a page that a browser would have to repair. */
#ifndef AURA_TEST_XML_H
#define AURA_TEST_XML_H

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char *xml_name(const char *at)
{
    while (isalnum((unsigned char)*at) || *at == '-' || *at == ':')
        at++;
    return at;
}

/* Skips text up to `end` or the end of the string; NULL when a character in it must be escaped. */
static const char *xml_text(const char *at, char end)
{
    static const char *const entities[] = {"&amp;", "&lt;", "&gt;", "&quot;"};
    for (; *at && *at != end; at++) {
        int good = *at != '&' && (*at != '<' || end == '<') && ((unsigned char)*at >= 32 || *at == '\n' || *at == '\t');
        for (size_t i = 0; i < 4; i++)
            good |= !strncmp(at, entities[i], strlen(entities[i]));
        if (!good)
            return NULL;
    }
    return at;
}

/* The attributes of an element; returns where they end, NULL when they are no attributes. */
static const char *xml_attributes(const char *at)
{
    const char *names[16];
    size_t sizes[16], count = 0;
    while (*at == ' ') {
        const char *name = ++at;
        at = xml_name(at);
        size_t size = (size_t)(at - name);
        if (!size || *at++ != '=' || *at++ != '"' || !(at = xml_text(at, '"')) || *at++ != '"' || count == 16)
            return NULL;
        for (size_t i = 0; i < count; i++)
            if (sizes[i] == size && !strncmp(names[i], name, size))
                return NULL;
        names[count] = name, sizes[count++] = size;
    }
    return at;
}

/* NULL when good, otherwise where it goes wrong. */
static inline const char *xml_error(const char *text)
{
    const char *open[64], *at = text;
    size_t sizes[64], depth = 0;
    if (!strncmp(at, "<!DOCTYPE html>", 15))
        at += 15;
    for (;;) {
        const char *next = xml_text(at, '<');
        if (!next || !*next)
            return !next || depth ? at : NULL;
        const char *name = next + 1 + (next[1] == '/'), *end = xml_name(name);
        at = xml_attributes(end);
        if (end == name || !at || depth == 64)
            return next;
        if (next[1] == '/') {
            if (!depth || *at != '>' || sizes[depth - 1] != (size_t)(end - name) ||
                strncmp(open[depth - 1], name, sizes[depth - 1]))
                return next;
            depth--, at++;
        } else if (at[0] == '/' && at[1] == '>') {
            at += 2;
        } else if (*at++ == '>') {
            open[depth] = name, sizes[depth++] = (size_t)(end - name);
        } else {
            return next;
        }
    }
}

#endif
