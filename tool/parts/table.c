/* Tables for programs. Nothing is allocated: fields are said twice where CSV needs their names first. */
#include "table.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "json.h"

/* What separates a field from the one before it; JSON also has its name. Returns whether its value follows. */
static int begin_field(struct table *t, const char *name)
{
    const int first = t->fields++ == 0;
    fputs(first ? "" : t->csv ? "," : ", ", stdout);
    if (t->names)
        fputs(name, stdout);
    else if (!t->csv)
        printf("\"%s\": ", name);
    return !t->names;
}

void table_text(struct table *t, const char *name, const char *text)
{
    if (!begin_field(t, name))
        return;
    if (t->csv)
        print_csv_string(text ? text : "");
    else if (text)
        print_json_string(text);
    else
        fputs("null", stdout);
}

void table_number(struct table *t, const char *name, const char *format, ...)
{
    char text[64];
    va_list list;
    if (!begin_field(t, name))
        return;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    const int finite = !strstr(text, "nan") && !strstr(text, "inf"); /* JSON has neither */
    fputs(finite ? text : t->csv ? "" : "null", stdout);
}

void table_begin(struct table *t, int csv, const char *rows, table_fields *origin, const void *of)
{
    const struct table new = {csv, 0, origin, of, 0, 0};
    *t = new;
    if (csv)
        return;
    putchar('{');
    origin(t, of);
    printf("%s\"%s\": [", t->fields ? ", " : "", rows);
    fflush(stdout);
}

static void csv_line(struct table *t, table_fields *fields, const void *of, int names)
{
    t->names = names;
    t->fields = 0;
    fields(t, of);
    t->origin(t, t->of);
    putchar('\n');
}

void table_row(struct table *t, table_fields *fields, const void *of)
{
    if (t->csv && !t->rows)
        csv_line(t, fields, of, 1);
    if (t->csv) {
        csv_line(t, fields, of, 0);
    } else {
        fputs(t->rows ? ",\n  {" : "\n  {", stdout);
        t->fields = 0;
        fields(t, of);
        putchar('}');
    }
    t->rows++;
    fflush(stdout);
}

void table_end(struct table *t, table_fields *totals, const void *of)
{
    if (t->csv)
        return;
    fputs("\n]", stdout);
    if (totals) {
        t->fields = 1; /* a comma comes before the first */
        totals(t, of);
    }
    puts("}");
}
