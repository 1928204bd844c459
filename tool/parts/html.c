/* Pages of HTML that need no other file. */
#include "html.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "utf8.h"

/* Colours c0 to c7 keep a contrast of at least 3 : 1 with their background in either scheme, and differ in lightness too.
 * A chart is drawn twice, for wide and for narrow windows, so that its text is never scaled down: one of the two is shown. */
static const char style[] =
    ":root { color-scheme: light dark; --paper: #ffffff; --card: #f6f7f9; --ink: #1b1f24; --soft: #57606a; --line: #d5dae0;\n"
    "  --c0: #0b62a8; --c1: #c2410c; --c2: #0a7a55; --c3: #8e3f9e; --c4: #8a6500; --c5: #57606a; --c6: #b4235a;\n"
    "  --c7: #00707c; }\n"
    "@media (prefers-color-scheme: dark) { :root { --paper: #14171b; --card: #1d2127; --ink: #e8eaed; --soft: #a2abb5;\n"
    "  --line: #373e47; --c0: #6cb6ff; --c1: #ff9b66; --c2: #4fd0a5; --c3: #df9af0; --c4: #e3c04f; --c5: #a2abb5;\n"
    "  --c6: #ff8fb4; --c7: #5fd3e0; } }\n"
    "* { box-sizing: border-box; }\n"
    "body { margin: 0 auto; padding: 1.5rem 1rem 4rem; max-width: 64rem; background: var(--paper); color: var(--ink);\n"
    "  font: 1rem/1.55 system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }\n"
    "h1 { font-size: 1.7rem; line-height: 1.2; margin: 0 0 .5rem; }\n"
    "h2 { font-size: 1.2rem; line-height: 1.3; margin: 2.6rem 0 .5rem; }\n"
    "p { margin: .5rem 0; max-width: 46rem; }\n"
    ".lead { color: var(--soft); }\n"
    "figure { margin: 1rem 0; padding: .9rem; background: var(--card); border-radius: 8px; }\n"
    "figcaption { font-weight: 600; margin: 0 0 .4rem; }\n"
    "svg { display: block; width: 100%; height: auto; }\n"
    "svg.narrow { display: none; max-width: 520px; }\n"
    "svg text { fill: var(--ink); font: 13px system-ui, -apple-system, 'Segoe UI', Roboto, 'DejaVu Sans', sans-serif; }\n"
    "svg .soft { fill: var(--soft); }\n"
    "svg .grid { stroke: var(--line); }\n"
    "svg .lead { stroke: var(--soft); }\n"
    "svg .rule { stroke: var(--soft); stroke-dasharray: 5 4; }\n"
    "svg .halo { stroke: var(--card); stroke-width: 4px; stroke-linejoin: round; paint-order: stroke; }\n"
    ".c0 { --c: var(--c0); } .c1 { --c: var(--c1); } .c2 { --c: var(--c2); } .c3 { --c: var(--c3); } .c4 { --c: var(--c4); }\n"
    ".c5 { --c: var(--c5); } .c6 { --c: var(--c6); } .c7 { --c: var(--c7); }\n"
    "svg .ink { stroke: var(--c); fill: none; stroke-width: 2px; }\n"
    "svg .mark { fill: var(--c); stroke: var(--card); stroke-width: 1px; }\n"
    "svg .fill { fill: var(--c); }\n"
    "svg .name { fill: var(--c); font-weight: 600; }\n"
    ".scroll { overflow-x: auto; }\n"
    "table { border-collapse: collapse; font-size: .92rem; font-variant-numeric: tabular-nums; }\n"
    "th, td { padding: .25rem .65rem .25rem 0; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }\n"
    "thead th { white-space: normal; vertical-align: bottom; color: var(--soft); font-weight: 500; min-width: 4.5rem; }\n"
    "th:first-child { text-align: left; position: sticky; left: 0; background: var(--card); }\n"
    ".verdict { font-size: 1.2rem; line-height: 1.4; margin: 1.2rem 0 .8rem; }\n"
    ".warning { padding: .6rem .9rem; border-left: 4px solid var(--c1); background: var(--card); }\n"
    ".note { margin: .5rem 0 0; color: var(--soft); font-size: .92rem; }\n"
    ".numbers { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; margin: 1rem 0; }\n"
    ".numbers > div { padding: .7rem .9rem; background: var(--card); border-radius: 8px; }\n"
    ".numbers b { display: block; font-size: 1.7rem; line-height: 1.2; color: var(--c0); }\n"
    ".numbers span { color: var(--soft); font-size: .92rem; }\n"
    ".columns { display: grid; grid-template-columns: repeat(auto-fit, minmax(13rem, 1fr)); gap: .8rem; margin: 1rem 0; }\n"
    ".columns > div { padding: .7rem .9rem; background: var(--card); border-radius: 8px; overflow-wrap: anywhere; }\n"
    ".columns h3 { margin: 0 0 .3rem; font-size: .95rem; color: var(--soft); }\n"
    ".columns p { margin: 0; white-space: pre-wrap; font-size: .95rem; }\n"
    "@media (max-width: 760px) { body { padding: 1rem .75rem 3rem; } figure { padding: .6rem .5rem; }\n"
    "  svg.wide { display: none; } svg.narrow { display: block; } }\n";

static int lacking; /* whether the page that is being written lacks a part; one page is written at a time */

void html_lack(void)
{
    lacking = 1;
}

/* ---- text ---------------------------------------------------------------------------------------------------------- */

/* Bytes of the character that begins here; 0 when none does, or when XML forbids it. */
static size_t character(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    size_t n = utf8_character(text);
    if (n == 1)
        return at[0] == 0x7f || (at[0] < 0x20 && at[0] != '\n' && at[0] != '\t') ? 0 : 1;
    return n == 3 && at[0] == 0xef && at[1] == 0xbf && at[2] > 0xbd ? 0 : n; /* U+FFFE and U+FFFF */
}

void html_escape(FILE *to, const char *text)
{
    while (text && *text) {
        size_t n = character(text);
        switch (n == 1 ? *text : 0) {
        case '&': fputs("&amp;", to); break;
        case '<': fputs("&lt;", to); break;
        case '>': fputs("&gt;", to); break;
        case '"': fputs("&quot;", to); break;
        default:
            if (n)
                fwrite(text, 1, n, to);
            else
                fputs("\xef\xbf\xbd", to);
        }
        text += n ? n : 1;
    }
}

/* Prints what printf makes of the arguments, escaped, between two tags. */
static void print_escaped(FILE *to, const char *before, const char *after, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int size = vsnprintf(NULL, 0, format, again);
    va_end(again);
    char *text = size < 0 ? NULL : malloc((size_t)size + 1);
    lacking |= !text;
    fputs(before, to);
    if (text) {
        vsnprintf(text, (size_t)size + 1, format, arguments);
        html_escape(to, text);
    }
    fputs(after, to);
    free(text);
}

void html_text(FILE *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_escaped(to, "<p>", "</p>\n", format, arguments);
    va_end(arguments);
}

void html_verdict(FILE *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_escaped(to, "<p class=\"verdict\">", "</p>\n", format, arguments);
    va_end(arguments);
}

void html_warning(FILE *to, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    print_escaped(to, "<p class=\"warning\">", "</p>\n", format, arguments);
    va_end(arguments);
}

void html_numbers_begin(FILE *to)
{
    fputs("<div class=\"numbers\">\n", to);
}

void html_number(FILE *to, const char *number, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    fputs("<div><b>", to);
    html_escape(to, number);
    print_escaped(to, "</b><span>", "</span></div>\n", format, arguments);
    va_end(arguments);
}

void html_numbers_end(FILE *to)
{
    fputs("</div>\n", to);
}

/* ---- the page ------------------------------------------------------------------------------------------------------ */

void html_begin(FILE *to, const char *title, const char *lead)
{
    lacking = 0;
    fputs("<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n"
          "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/>\n<title>", to);
    html_escape(to, title);
    fprintf(to, "</title>\n<style>\n%s</style>\n</head>\n<body>\n<header>\n<h1>", style);
    html_escape(to, title);
    fputs("</h1>\n<p class=\"lead\">", to);
    html_escape(to, lead);
    fputs("</p>\n</header>\n<main>\n", to);
}

int html_end(FILE *to)
{
    fputs("</main>\n</body>\n</html>\n", to);
    if (lacking)
        errno = ENOMEM;
    return lacking || fflush(to) || ferror(to) ? -1 : 0;
}

void html_section(FILE *to, const char *heading)
{
    fputs("<h2>", to);
    html_escape(to, heading);
    fputs("</h2>\n", to);
}

/* ---- tables -------------------------------------------------------------------------------------------------------- */

/* Where in its table the next cell goes. One table is written at a time. */
static int row, cell;

void html_table_begin(FILE *to, const char *caption)
{
    row = 0;
    fputs("<figure>\n<figcaption>", to);
    html_escape(to, caption);
    fputs("</figcaption>\n<div class=\"scroll\">\n<table>\n", to);
}

void html_row_begin(FILE *to)
{
    cell = 0;
    fputs(row == 0 ? "<thead>\n<tr>" : row == 1 ? "<tbody>\n<tr>" : "<tr>", to);
}

void html_cell(FILE *to, const char *format, ...)
{
    int head = row == 0 || cell == 0;
    va_list arguments;
    va_start(arguments, format);
    print_escaped(to, !head ? "<td>" : row ? "<th scope=\"row\">" : "<th scope=\"col\">", head ? "</th>" : "</td>", format,
                  arguments);
    va_end(arguments);
    cell++;
}

void html_row_end(FILE *to)
{
    fputs(row++ == 0 ? "</tr>\n</thead>\n" : "</tr>\n", to);
}

void html_table_end(FILE *to)
{
    fputs(row > 1 ? "</tbody>\n</table>\n</div>\n</figure>\n" : "</table>\n</div>\n</figure>\n", to);
}

/* ---- columns ------------------------------------------------------------------------------------------------------- */

void html_columns_begin(FILE *to)
{
    fputs("<div class=\"columns\">\n", to);
}

void html_column(FILE *to, const char *heading, const char *text)
{
    fputs("<div><h3>", to);
    html_escape(to, heading);
    fputs("</h3><p>", to);
    html_escape(to, text);
    fputs("</p></div>\n", to);
}

void html_columns_end(FILE *to)
{
    fputs("</div>\n", to);
}
