/* Rows of a bench for programs. */
#include "rows_out.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "../../include/aura.h"

/* The end of a value: a number, a text, or a list, in which commas mean something else. */
static const char *end_of_value(const char *at)
{
    int depth = 0, text = 0;
    for (; *at && (text || depth || (*at != ',' && *at != '}')); at++) {
        text ^= *at == '"';
        depth += text ? 0 : *at == '[' ? 1 : *at == ']' ? -1 : 0;
    }
    return at;
}

/* A field of CSV is in quotes where it has a comma; texts of JSON lose theirs. */
static void print_value(const char *at, const char *end)
{
    if (*at == '"')
        at++, end--;
    const int n = (int)(end - at);
    printf(memchr(at, ',', (size_t)n) ? "\"%.*s\"\n" : "%.*s\n", n, at);
}

static void print_csv(const char *object, unsigned row)
{
    const char *name, *name_end, *value, *end;
    for (name = strchr(object, '"'); name; name = strchr(end, '"')) {
        name_end = strchr(++name, '"');
        value = name_end + 1 + strspn(name_end + 1, ": ");
        end = end_of_value(value);
        printf("%u,%.*s,", row, (int)(name_end - name), name);
        print_value(value, end);
    }
}

void print_row(struct rows_out *out, const char *format, ...)
{
    char text[2048];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    if (out->as == ROWS_JSON)
        printf("%s\n  %s", out->rows ? "," : "[", text);
    if (out->as == ROWS_CSV && !out->rows)
        printf("row,field,value\n");
    if (out->as == ROWS_CSV)
        print_csv(text, out->rows);
    out->rows++;
    fflush(stdout);
}

void begin_rows(struct rows_out *out, const char *device)
{
    if (out->as != ROWS_TEXT)
        print_row(out, "{\"version\": \"%s\", \"device\": \"%s\", \"runs\": 41}", aura_version(), device);
}

void end_rows(const struct rows_out *out)
{
    if (out->as == ROWS_JSON)
        printf("\n]\n");
}
