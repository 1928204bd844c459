/* Pages of HTML that need no scripts, no other files and no network. They follow the light or dark scheme of the reader's system
 * and the width of the window, and are well-formed XML, too. Callers give plain text: the functions here escape it. */
#ifndef AURA_HTML_H
#define AURA_HTML_H

#include <stdio.h>

/* Begins a page: its head, its title and a subtitle. */
void html_begin(FILE *to, const char *title, const char *lead);
/* Ends the page. 0 when all of it was made and written. */
int html_end(FILE *to);
/* Says that there was no memory for a part of the page: html_end() will fail. */
void html_lack(void);

/* A heading; what follows belongs to it until the next one or the end. */
void html_section(FILE *to, const char *heading);
/* A paragraph. */
__attribute__((format(printf, 2, 3))) void html_text(FILE *to, const char *format, ...);

/* What a page says in one sentence, and numbers in boxes, each with what it is of. */
__attribute__((format(printf, 2, 3))) void html_verdict(FILE *to, const char *format, ...);
void html_numbers_begin(FILE *to);
__attribute__((format(printf, 3, 4))) void html_number(FILE *to, const char *number, const char *format, ...);
void html_numbers_end(FILE *to);
/* A paragraph that nobody should overlook. */
__attribute__((format(printf, 2, 3))) void html_warning(FILE *to, const char *format, ...);

/* A table, cell by cell: row begin, cells, row end. The first row is the head; the first cell of a row is its name. */
void html_table_begin(FILE *to, const char *caption);
void html_row_begin(FILE *to);
__attribute__((format(printf, 2, 3))) void html_cell(FILE *to, const char *format, ...);
void html_row_end(FILE *to);
void html_table_end(FILE *to);

/* Texts to compare, in boxes side by side; in a narrow window one below the other. */
void html_columns_begin(FILE *to);
void html_column(FILE *to, const char *heading, const char *text);
void html_columns_end(FILE *to);

/* Writes a text, escaped for HTML and XML. Control characters and bytes that are no UTF-8 become U+FFFD. */
void html_escape(FILE *to, const char *text);

#endif
