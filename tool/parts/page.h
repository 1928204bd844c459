/* Pages of HTML that need nothing else: no scripts, no files, no network. Light or dark as the reader's system is, wide or
 * narrow as the window is. What is written is also well-formed XML. Every text is escaped here: callers give plain text. */
#ifndef AURA_PAGE_H
#define AURA_PAGE_H

#include <stdio.h>

/* The page's head, its title and what stands under it. */
void page_begin(FILE *to, const char *title, const char *lead);
/* Ends the page. 0 when all of it was written. */
int page_end(FILE *to);

/* A heading; what follows belongs to it until the next one or the end. */
void page_section(FILE *to, const char *heading);
/* A paragraph. */
__attribute__((format(printf, 2, 3))) void page_text(FILE *to, const char *format, ...);
/* A command that can be typed, or what was printed: in a box, with its line ends. */
void page_code(FILE *to, const char *text);

/* A table, cell by cell: row begin, cells, row end. The first row is the head; the first cell of a row is its name. */
void page_table_begin(FILE *to, const char *caption);
void page_row_begin(FILE *to);
__attribute__((format(printf, 2, 3))) void page_cell(FILE *to, const char *format, ...);
void page_row_end(FILE *to);
void page_table_end(FILE *to);

/* Boxes side by side, one below the other where the window is narrow: texts to be compared. */
void page_columns_begin(FILE *to);
void page_column(FILE *to, const char *heading, const char *text);
void page_columns_end(FILE *to);

/* Text with what HTML and XML have for themselves escaped; what is not UTF-8, or a control character, becomes U+FFFD. */
void page_escape(FILE *to, const char *text);

#endif
