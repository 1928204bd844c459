/* Tables for programs: an object of JSON with an array of rows, or lines of CSV, from the same fields. */
#ifndef AURA_TOOL_TABLE_H
#define AURA_TOOL_TABLE_H

#include <stddef.h>

struct table;

/* Says the fields of something by calls of table_text() and table_number(), the same ones for every row of a table. */
typedef void table_fields(struct table *table, const void *of);

struct table {
    int csv;  /* otherwise JSON */
    size_t rows;
    /* What the table is of: the first fields of the object; in CSV, where nothing is outside of the rows, the last of each row. */
    table_fields *origin;
    const void *of;
    size_t fields; /* of the line so far; a line of names comes before the first row of CSV */
    int names;
};

/* `rows` is what JSON calls them. */
void table_begin(struct table *table, int csv, const char *rows, table_fields *origin, const void *of);
void table_row(struct table *table, table_fields *fields, const void *of);
/* `totals` may be NULL; CSV has no place for them. */
void table_end(struct table *table, table_fields *totals, const void *of);

void table_text(struct table *table, const char *name, const char *text); /* NULL: null, or an empty field */
/* Anything that needs no quotes: numbers, true and false. A number that is not finite becomes null, or an empty field. */
__attribute__((format(printf, 3, 4))) void table_number(struct table *table, const char *name, const char *format, ...);

#endif
