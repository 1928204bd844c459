/* Bars, parts of a whole, and matrices as pictures. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "html.h"
#include "plot.h"
#include "plot_scale.h"

enum { BAR = 22, GAP = 12, TALL = 46 }; /* TALL: parts of a whole */

static double longest_name(const struct plot_bar *bars, size_t count)
{
    double longest = 0;
    for (size_t i = 0; i < count; i++)
        longest = plot_text_width(bars[i].name) > longest ? plot_text_width(bars[i].name) : longest;
    return longest;
}

/* "12.5 GiB, 3.8x" */
static void print_value(char text[160], const struct plot_bar *bar, const char *unit)
{
    char number[48];
    plot_number(number, bar->value, unit);
    snprintf(text, 160, "%s%s%.100s", number, bar->note ? ", " : "", bar->note ? bar->note : "");
}

static void draw_bar(FILE *to, const struct plot_bar *bar, const struct scale *s, double top, const char *unit)
{
    char text[160];
    double end = plot_place(s, bar->value);
    print_value(text, bar, unit);
    fprintf(to, "<rect class=\"fill c%u\" x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%d\" rx=\"2\"><title>",
            bar->colour % COLOURS_OF_PAGE,
            s->from, top, fmax(end - s->from, 1), BAR);
    html_escape(to, bar->name), fputs(": ", to), html_escape(to, text);
    fputs("</title></rect>\n", to);
    if (bar->low < bar->high && plot_shown(bar->low, 0) && plot_shown(bar->high, 0)) {
        fprintf(to, "<path class=\"rule\" d=\"M%.1f %.1fH%.1f\"/>\n", plot_place(s, bar->low), top + BAR / 2.0, plot_place(s,
                bar->high));
        end = fmax(end, plot_place(s, bar->high));
    }
    plot_text(to, s->from - 8, top + BAR - 6, "end", "", bar->name);
    plot_text(to, end + 7, top + BAR - 6, "start", "", text);
}

/* How far a bar and its error bar reach; 0 for a bar that cannot be drawn. */
static double longest(const struct plot_bar *bar)
{
    if (!plot_shown(bar->value, 0) || bar->value < 0)
        return 0;
    return plot_shown(bar->high, 0) ? fmax(bar->value, bar->high) : bar->value;
}

/* What plot_bars() shows. */
struct bars {
    const char *title, *unit;
    const struct plot_bar *bars;
    size_t count;
    const struct plot_key *keys;
    size_t n_keys;
};

static void draw_bars(FILE *to, const struct bars *b, int width)
{
    const struct plot_bar *bars = b->bars;
    const size_t count = b->count;
    const char *unit = b->unit;
    char text[160];
    const double top = 6 + plot_keys(NULL, b->keys, b->n_keys, width);
    double height = top + 2 + (BAR + GAP) * (double)(count ? count : 1), most = 0;
    struct scale s = {0, 0, 1, longest_name(bars, count) + 12, width - 12};
    for (size_t i = 0; i < count; i++)
        most = fmax(most, longest(&bars[i]));
    s.most = most > 0 ? most : 1;
    for (size_t i = 0; i < count; i++) { /* as long as possible, with room for the text behind each bar */
        print_value(text, &bars[i], unit);
        double room = width - 16 - plot_text_width(text) - s.from;
        if (longest(&bars[i]) > 0)
            s.to = fmin(s.to, s.from + room * s.most / longest(&bars[i]));
    }
    s.to = fmax(s.to, s.from + 40);
    plot_svg_begin(to, width, height, b->title);
    plot_keys(to, b->keys, b->n_keys, width);
    for (size_t i = 0; i < count; i++)
        if (plot_shown(bars[i].value, 0) && bars[i].value >= 0)
            draw_bar(to, &bars[i], &s, top + (BAR + GAP) * (double)i, unit);
        else
            plot_text(to, s.from - 8, top + (BAR + GAP) * (double)i + BAR - 6, "end", "", bars[i].name);
    if (!count)
        plot_text(to, width / 2.0, LINE, "middle", "soft", "nothing was measured");
    fputs("</svg>\n", to);
}

void plot_bars(FILE *to, const char *title, const char *unit, const struct plot_bar *bars, size_t count,
               const struct plot_key *keys, size_t n_keys)
{
    const struct bars b = {title, unit, bars, count, keys, n_keys};
    plot_figure_begin(to, title);
    draw_bars(to, &b, WIDE);
    draw_bars(to, &b, NARROW);
    plot_figure_end(to);
}

/* ---- parts --------------------------------------------------------------------------------------------------------- */

static void draw_part(FILE *to, const struct plot_bar *part, double x, double wide, const char *text)
{
    fprintf(to, "<rect class=\"fill c%u\" x=\"%.1f\" y=\"2\" width=\"%.1f\" height=\"%d\"><title>",
            part->colour % COLOURS_OF_PAGE, x,
            fmax(wide - 1.5, 0.8), TALL);
    html_escape(to, part->name ? part->name : ""), fputs(part->name ? ": " : "", to), html_escape(to, text);
    fputs("</title></rect>\n", to);
}

static void draw_parts(FILE *to, const char *title, const char *unit, const struct plot_bar *parts, size_t count, int width)
{
    char text[160];
    double whole = 0, x = 1, y = TALL + 26;
    size_t listed = 0;
    for (size_t i = 0; i < count; i++) {
        whole += plot_shown(parts[i].value, 0) && parts[i].value > 0 ? parts[i].value : 0;
        listed += parts[i].name != NULL;
    }
    plot_svg_begin(to, width, TALL + 12 + (LINE + 2) * (double)listed, title);
    for (size_t i = 0; i < count && whole > 0; i++) {
        if (!plot_shown(parts[i].value, 0) || parts[i].value <= 0)
            continue;
        double wide = parts[i].value / whole * (width - 2);
        print_value(text, &parts[i], unit);
        draw_part(to, &parts[i], x, wide, text);
        x += wide;
        if (!parts[i].name)
            continue;
        plot_mark(to, 8, y - 5, parts[i].colour, NULL);
        plot_text(to, 20, y, "start", "", parts[i].name);
        plot_text(to, width - 4, y, "end", "soft", text);
        y += LINE + 2;
    }
    fputs("</svg>\n", to);
}

void plot_parts(FILE *to, const char *title, const char *unit, const struct plot_bar *parts, size_t count)
{
    plot_figure_begin(to, title);
    draw_parts(to, title, unit, parts, count, WIDE);
    draw_parts(to, title, unit, parts, count, NARROW);
    plot_figure_end(to);
}

/* ---- a matrix ------------------------------------------------------------------------------------------------------ */

enum { LEVELS = 12, HEAT = 0 }; /* HEAT: the colour */

/* Cells of nearly the same value are one path: a page with thousands of rectangles would be large and slow. */
void plot_heat(FILE *to, const char *title, const double *value, size_t rows, size_t columns)
{
    plot_figure_begin(to, title);
    fprintf(to, "<svg viewBox=\"0 0 %zu %zu\" preserveAspectRatio=\"none\" "
            "style=\"height:%zupx\" role=\"img\" aria-label=\"", columns ? columns : 1, rows ? rows : 1, rows * 4 + 20);
    html_escape(to, title);
    fputs("\">\n", to);
    for (int level = 1; level <= LEVELS; level++) {
        fprintf(to, "<path class=\"fill c%d\" opacity=\"%.3f\" d=\"M0 0", HEAT, level / (double)LEVELS);
        for (size_t i = 0; i < rows * columns; i++)
            if (plot_shown(value[i], 0) && (int)ceil(fmin(fmax(value[i], 0), 1) * LEVELS) == level)
                fprintf(to, "M%zu %zuh1v1h-1z", i % columns, i / columns);
        fputs("\"/>\n", to);
    }
    fputs("</svg>\n", to);
    plot_figure_end(to);
}

static void draw_scale(FILE *to, const char *title, const char *const *texts, size_t count, int width)
{
    enum { STRIP = 16 };
    const double left = 40, wide = width - 80; /* the first and the last text are half outside */
    plot_svg_begin(to, width, STRIP + LINE + 8, title);
    for (int level = 1; level <= LEVELS; level++)
        fprintf(to, "<rect class=\"fill key c%d\" opacity=\"%.3f\" x=\"%.1f\" y=\"2\" width=\"%.1f\" height=\"%d\"/>\n", HEAT,
                level / (double)LEVELS, left + (level - 1) * wide / LEVELS, wide / LEVELS, STRIP);
    for (size_t i = 0; i < count; i++)
        plot_text(to, left + wide * (double)i / (double)(count > 1 ? count - 1 : 1), STRIP + LINE + 1, "middle", "soft", texts[i]);
    fputs("</svg>\n", to);
}

void plot_heat_scale(FILE *to, const char *title, const char *const *texts, size_t count)
{
    plot_figure_begin(to, title);
    draw_scale(to, title, texts, count, WIDE);
    draw_scale(to, title, texts, count, NARROW);
    plot_figure_end(to);
}
