/* aura bench --html: the measurements as a page. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "../parts/html.h"
#include "../parts/plot.h"
#include "../parts/replacement.h"
#include "../tool.h"

enum { MEANINGLESS = 15 }; /* percent: ratios of times that vary by more say little */
enum { MOST_ROWS = 128, MOST_LINES = 16, MOST_CONTEXTS = 8 };

struct results {
    struct row rows[MOST_ROWS];
    size_t count;
};

struct results *results_create(void)
{
    return calloc(1, sizeof(struct results));
}

void results_add(const struct bench *b, const struct row *row)
{
    if (b->results && b->results->count < MOST_ROWS)
        b->results->rows[b->results->count++] = *row;
}

static int same_shape(const struct row *a, const struct row *b)
{
    return a->shape.dim == b->shape.dim && a->shape.format.k == b->shape.format.k && a->shape.format.v == b->shape.format.v;
}

/* A line for every format of one dim: the rows of a format follow each other. */
static void chart_times(FILE *to, const struct row *rows, size_t count, const char *title)
{
    struct plot_point points[MOST_LINES][MOST_CONTEXTS];
    struct plot_series lines[MOST_LINES];
    char names[MOST_LINES][16];
    size_t n = 0;
    for (size_t i = 0; i < count && n < MOST_LINES; n++) {
        size_t m = 0;
        aura_format_name(rows[i].shape.format, names[n]);
        for (size_t first = i; i < count && same_shape(&rows[first], &rows[i]); i++)
            if (m < MOST_CONTEXTS) {
                struct plot_point p = {rows[i].shape.tokens, rows[i].seconds, 0, 0, NULL};
                points[n][m++] = p;
            }
        for (size_t k = 0; k < m / 2; k++) { /* measured from the longest context to the shortest */
            struct plot_point swap = points[n][k];
            points[n][k] = points[n][m - 1 - k], points[n][m - 1 - k] = swap;
        }
        int f16 = !strcmp(names[n], "kf16vf16");
        struct plot_series line = {names[n], points[n], m, f16 ? 5u : (unsigned)(n + (n >= 5)),
                                   1}; /* grey is what all compare with */
        lines[n] = line;
    }
    static const double ticks[] = {4096, 16384, 65536, 131072};
    struct plot plot = {title, {"tokens in the cache", "tokens", 1, 0, 0, ticks, 4}, {"time", "s", 1, 0, 0, NULL, 0}, lines,
        n, 0, NULL};
    plot_chart(to, &plot);
}

/* One row, the plain read of as many bytes, and f16, as bars. */
static void bars_of_row(FILE *to, const struct row *r)
{
    static const struct plot_key keys[] = {{"attention", 0}, {"a plain read of as many bytes", 2}, {"attention with f16", 5}};
    const int f16 = r->f16_seconds > 0;
    char name[16], title[200], tokens[48], read[32];
    aura_format_name(r->shape.format, name);
    plot_number(tokens, r->shape.tokens, "tokens");
    snprintf(read, sizeof read, "read of %s", name);
    snprintf(title, sizeof title, "D %u, %u query heads, %u KV heads, %s tokens, batch %u, queries %u", r->shape.dim,
             r->shape.q_heads,
             r->shape.kv_heads, tokens, r->shape.batch, r->queries);
    struct plot_bar bars[] = {{name, r->seconds, 0, 0, NULL, 0},
                              {read, r->read_seconds, 0, 0, NULL, 2},
                              {"kf16vf16", r->f16_seconds, 0, 0, NULL, 5},
                              {"read of f16", r->f16_read_seconds, 0, 0, NULL, 2}};
    plot_bars(to, title, "s", bars, f16 ? 4 : 2, keys, f16 ? 3 : 2);
}

static void table(FILE *to, const struct results *results)
{
    char text[48], name[16];
    html_section(to, "All numbers");
    html_table_begin(to, "Time of attention for one query token, beside a plain read of as many bytes and beside f16");
    html_row_begin(to);
    html_cell(to, "cache"), html_cell(to, "D"), html_cell(to, "tokens"), html_cell(to, "time"), html_cell(to, "GB/s");
    html_cell(to, "plain read, GB/s"), html_cell(to, "of the plain read"), html_cell(to, "times as fast as f16");
    html_row_end(to);
    for (size_t i = 0; i < results->count; i++) {
        const struct row *r = &results->rows[i];
        char doubt[32] = "";
        if (r->spread * 100 > MEANINGLESS)
            snprintf(doubt, sizeof doubt, " ± %.0f %%", fmin(r->spread * 100, 999));
        aura_format_name(r->shape.format, name);
        html_row_begin(to);
        html_cell(to, "%s", name), html_cell(to, "%u", r->shape.dim);
        plot_number(text, r->shape.tokens, "tokens");
        html_cell(to, "%s", text);
        plot_number(text, r->seconds, "s");
        html_cell(to, "%s", text), html_cell(to, "%.2f", r->bytes / r->seconds / 1e9);
        html_cell(to, "%.2f", r->bytes / r->read_seconds / 1e9);
        html_cell(to, "%.1f %%%s", r->read_seconds / r->seconds * 100, doubt);
        if (r->f16_seconds > 0)
            html_cell(to, "%.2f%s", r->f16_seconds / r->seconds, doubt);
        else
            html_cell(to, "1");
        html_row_end(to);
    }
    html_table_end(to);
}

/* Says where times vary so much that what they are compared with says little. */
static void warn(FILE *to, const struct results *results)
{
    size_t many = 0;
    for (size_t i = 0; i < results->count; i++)
        many += results->rows[i].spread * 100 > MEANINGLESS;
    if (many)
        html_warning(to, "Warning: in %zu of %zu rows, marked with ±, turns varied by more than %d %%. Their ratios say little; an "
                  "idle machine gives better ones.", many, results->count, MEANINGLESS);
}

int write_bench_html(const struct command *self, const struct bench *b, const char *path)
{
    const struct results *results = b->results;
    struct replacement page;
    char title[80];
    if (replacement_begin(&page, path))
        return failed(self, "%s: cannot be written: %s", path, strerror(errno));
    FILE *to = page.to;
    html_begin(to, "aura bench", "Attention straight from the cache, beside a plain read of as many bytes and beside an f16 "
               "cache.");
    html_text(to, "aura %s on %s, %u thread%s, %s; medians of turns taken in one run.", aura_version(), cpu_name(),
              b->threads, b->threads == 1 ? "" : "s",
              isa_name(aura_ctx_isas(b->ctx)));
    warn(to, results);
    for (size_t i = 0, end; i < results->count && results->count > 1; i = end) {
        for (end = i; end < results->count && results->rows[end].shape.dim == results->rows[i].shape.dim; end++)
            continue;
        snprintf(title, sizeof title, "D %u: attention for one token", results->rows[i].shape.dim);
        chart_times(to, results->rows + i, end - i, title);
    }
    if (results->count == 1)
        bars_of_row(to, results->rows);
    table(to, results);
    return replacement_end(&page, html_end(to)) ? failed(self, "%s: cannot be written: %s", path, strerror(errno)) : 0;
}
