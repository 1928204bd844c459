/* A chart of points and lines. */
#include "plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "html.h"
#include "plot_scale.h"

enum { MOST_BOXES = 400 };

struct box {
    double left, top, right, bottom;
};

/* A chart in one of its two widths. */
struct frame {
    FILE *to;
    const struct plot *plot;
    int width;
    double height, left, right, top, bottom; /* height of the drawing; edges of the square that has the points */
    struct scale x, y;
    struct box taken[MOST_BOXES]; /* by marks and labels */
    size_t n_taken;
};

/* ---- how large ----------------------------------------------------------------------------------------------------- */

static int point_shown(const struct plot *plot, const struct plot_point *p)
{
    return plot_shown(p->x, plot->x.log) && plot_shown(p->y, plot->y.log);
}

static int has_bar(const struct plot *plot, const struct plot_point *p)
{
    return p->low < p->high && plot_shown(p->low, plot->y.log) && plot_shown(p->high, plot->y.log);
}

/* The last point of a line that is shown: its name goes there. NULL: no point is shown. */
static const struct plot_point *end_of(const struct plot *plot, const struct plot_series *s)
{
    for (size_t i = s->count; i-- > 0;)
        if (point_shown(plot, &s->points[i]))
            return &s->points[i];
    return NULL;
}

/* Finds the ranges of both axes. Returns how many points are in them. */
static size_t measure(struct frame *f)
{
    const struct plot *plot = f->plot;
    double x0 = INFINITY, x1 = -INFINITY, y0 = INFINITY, y1 = -INFINITY; /* none yet */
    size_t shown = 0;
    for (size_t i = 0; i < plot->n_series; i++)
        for (size_t k = 0; k < plot->series[i].count; k++) {
            const struct plot_point *p = &plot->series[i].points[k];
            if (!point_shown(plot, p))
                continue;
            shown++;
            plot_include(&x0, &x1, p->x, plot->x.log);
            plot_include(&y0, &y1, p->y, plot->y.log);
            if (has_bar(plot, p))
                plot_include(&y0, &y1, p->low, plot->y.log), plot_include(&y0, &y1, p->high, plot->y.log);
        }
    for (size_t i = 0; i < plot->n_rules; i++)
        plot_include(&y0, &y1, plot->rules[i].y, plot->y.log);
    plot_range(&plot->x, &x0, &x1);
    plot_range(&plot->y, &y0, &y1);
    struct scale x = {plot->x.log, x0, x1, 0, 0}, y = {plot->y.log, y0, y1, 0, 0};
    f->x = x, f->y = y;
    return shown;
}

static size_t ticks_of(const struct plot_axis *axis, const struct scale *s, double ticks[16])
{
    if (!axis->ticks)
        return plot_ticks(ticks, s->least, s->most, s->log);
    size_t n = 0;
    for (size_t i = 0; i < axis->n_ticks && n < 16; i++)
        if (axis->ticks[i] >= s->least && axis->ticks[i] <= s->most)
            ticks[n++] = axis->ticks[i];
    return n;
}

/* A legend is needed where a series is no line: only a line has an end for its name. */
static int has_legend(const struct plot *plot)
{
    int marks = 0;
    for (size_t i = 0; i < plot->n_series; i++)
        marks |= !plot->series[i].joined;
    return marks && plot->n_series > 1;
}

/* Draws the legend, or only returns its height. */
static double legend(const struct frame *f, int draw)
{
    double x = 8, y = LINE;
    if (!has_legend(f->plot))
        return 0;
    for (size_t i = 0; i < f->plot->n_series; i++) {
        const struct plot_series *s = &f->plot->series[i];
        double wide = plot_text_width(s->name) + 34;
        if (i && x + wide > f->width)
            x = 8, y += LINE + 2;
        if (draw && s->joined)
            fprintf(f->to, "<path class=\"ink c%u\" d=\"M%.1f %.1fh16\"/>\n", s->colour % COLOURS_OF_PAGE, x - 2, y - 5);
        if (draw) {
            plot_mark(f->to, x + 6, y - 5, s->colour, NULL);
            plot_text(f->to, x + 17, y, "start", "", s->name);
        }
        x += wide;
    }
    return y + 10;
}

/* Room for the numbers on the left, for the names of lines on the right, for titles above and below. */
static void lay_out(struct frame *f)
{
    double ticks[16], left = 0, right = 10;
    char text[48];
    size_t n = ticks_of(&f->plot->y, &f->y, ticks);
    for (size_t i = 0; i < n; i++) {
        plot_number(text, ticks[i], f->plot->y.unit);
        left = plot_text_width(text) > left ? plot_text_width(text) : left;
    }
    for (size_t i = 0; i < f->plot->n_series; i++) {
        double wide = plot_text_width(f->plot->series[i].name) + 16;
        right = !has_legend(f->plot) && f->plot->series[i].joined && wide > right ? wide : right;
    }
    f->left = left + 14, f->right = f->width - right;
    f->top = legend(f, 0) + LINE + 14;
    f->height = f->top + (f->width == WIDE ? 330 : 250) + 52;
    f->bottom = f->height - 52;
    f->x.from = f->left, f->x.to = f->right;
    f->y.from = f->bottom, f->y.to = f->top;
}

/* ---- the square ---------------------------------------------------------------------------------------------------- */

static void line(FILE *to, const char *class, double x0, double y0, double x1, double y1)
{
    fprintf(to, "<path class=\"%s\" d=\"M%.1f %.1fL%.1f %.1f\"/>\n", class, x0, y0, x1, y1);
}

static void draw_axes(const struct frame *f)
{
    double ticks[16], free_from = -1;
    char text[48];
    size_t n = ticks_of(&f->plot->y, &f->y, ticks);
    for (size_t i = 0; i < n; i++) {
        double y = plot_place(&f->y, ticks[i]);
        plot_number(text, ticks[i], f->plot->y.unit);
        line(f->to, "grid", f->left, y, f->right, y);
        plot_text(f->to, f->left - 7, y + 4.5, "end", "soft", text);
    }
    n = ticks_of(&f->plot->x, &f->x, ticks);
    for (size_t i = 0; i < n; i++) {
        double x = plot_place(&f->x, ticks[i]), half;
        plot_number(text, ticks[i], f->plot->x.unit);
        half = plot_text_width(text) / 2;
        line(f->to, "grid", x, f->top, x, f->bottom);
        if (x - half < free_from || x + half > f->width)
            continue; /* its neighbour takes the room */
        plot_text(f->to, x, f->bottom + LINE, "middle", "soft", text);
        free_from = x + half + 6;
    }
    plot_text(f->to, 4, f->top - 14, "start", "", f->plot->y.title);
    plot_text(f->to, f->right, f->bottom + LINE + 21, "end", "", f->plot->x.title);
}

static void draw_rules(const struct frame *f)
{
    for (size_t i = 0; i < f->plot->n_rules; i++) {
        const struct plot_rule *r = &f->plot->rules[i];
        if (!plot_shown(r->y, f->y.log))
            continue;
        double y = plot_place(&f->y, r->y);
        line(f->to, "rule", f->left, y, f->right, y);
        plot_text(f->to, f->right - 4, y - 6, "end", "soft halo", r->label);
    }
    double from = f->x.least > f->y.least ? f->x.least : f->y.least, to = f->x.most < f->y.most ? f->x.most : f->y.most;
    if (f->plot->diagonal && from < to)
        line(f->to, "rule", plot_place(&f->x, from), plot_place(&f->y, from), plot_place(&f->x, to), plot_place(&f->y, to));
}

/* ---- points -------------------------------------------------------------------------------------------------------- */

static void take(struct frame *f, double left, double top, double right, double bottom)
{
    struct box box = {left, top, right, bottom};
    if (f->n_taken < MOST_BOXES)
        f->taken[f->n_taken++] = box;
}

static int is_free(const struct frame *f, const struct box *b)
{
    if (b->left < 2 || b->right > f->width - 2 || b->top < f->top - 12 || b->bottom > f->bottom)
        return 0;
    for (size_t i = 0; i < f->n_taken; i++)
        if (b->left < f->taken[i].right && f->taken[i].left < b->right && b->top < f->taken[i].bottom &&
            f->taken[i].top < b->bottom)
            return 0;
    return 1;
}

/* Puts a label beside its point where nothing else is. Without room it is left out: the mark shows it when pointed at. */
static void draw_label(struct frame *f, double x, double y, const char *label)
{
    static const struct {
        double x, y, part; /* place of the label; part: how much of the text is left of it */
        const char *anchor;
    } places[] = {{9, 4.5, 0, "start"}, {0, -9, 0.5, "middle"},  {-9, 4.5, 1, "end"}, {0, 20, 0.5, "middle"},
                  {7, -7, 0, "start"},  {-7, -7, 1, "end"}, {7, 16, 0, "start"}, {-7, 16, 1, "end"}};
    double wide = plot_text_width(label);
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        double at_x = x + places[i].x, at_y = y + places[i].y;
        struct box box = {at_x - places[i].part * wide, at_y - 12, at_x + (1 - places[i].part) * wide, at_y + 4};
        if (!is_free(f, &box))
            continue;
        take(f, box.left, box.top, box.right, box.bottom);
        plot_text(f->to, at_x, at_y, places[i].anchor, "halo", label);
        return;
    }
}

static void draw_line(const struct frame *f, const struct plot_series *s)
{
    const char *letter = "M";
    if (!s->joined || !end_of(f->plot, s))
        return;
    fprintf(f->to, "<path class=\"ink c%u\" d=\"", s->colour % COLOURS_OF_PAGE);
    for (size_t i = 0; i < s->count; i++)
        if (point_shown(f->plot, &s->points[i])) {
            fprintf(f->to, "%s%.1f %.1f", letter, plot_place(&f->x, s->points[i].x), plot_place(&f->y, s->points[i].y));
            letter = "L";
        }
    fputs("\"/>\n", f->to);
}

static void draw_point(struct frame *f, const struct plot_series *s, const struct plot_point *p)
{
    char x[48], y[48], title[256];
    double at_x = plot_place(&f->x, p->x), at_y = plot_place(&f->y, p->y);
    plot_number(x, p->x, f->plot->x.unit), plot_number(y, p->y, f->plot->y.unit);
    snprintf(title, sizeof title, "%.60s%s%.60s: %s, %s", s->name, p->label ? " " : "", p->label ? p->label : "", x, y);
    if (has_bar(f->plot, p)) {
        double low = plot_place(&f->y, p->low), high = plot_place(&f->y, p->high);
        fprintf(f->to, "<path class=\"ink c%u\" d=\"M%.1f %.1fV%.1fm-4 0h8M%.1f %.1fh8\"/>\n", s->colour % COLOURS_OF_PAGE,
                at_x, low, high,
                at_x - 4, low);
    }
    plot_mark(f->to, at_x, at_y, s->colour, title);
    take(f, at_x - 6, at_y - 6, at_x + 6, at_y + 6);
}

/* Writes the names of lines beside their ends, and pushes them apart where ends are near each other. */
static void draw_names(struct frame *f)
{
    struct name {
        double y;
        const struct plot_series *series;
    } names[32];
    size_t n = 0;
    for (size_t i = 0; i < f->plot->n_series; i++) {
        const struct plot_point *end = end_of(f->plot, &f->plot->series[i]);
        if (has_legend(f->plot) || !f->plot->series[i].joined || !end || n == 32)
            continue;
        struct name name = {plot_place(&f->y, end->y), &f->plot->series[i]};
        size_t at = n++;
        for (; at > 0 && names[at - 1].y > name.y; at--)
            names[at] = names[at - 1];
        names[at] = name;
    }
    for (size_t i = 1; i < n; i++) /* push down from the first, then up from the last if it has left the square */
        names[i].y = names[i].y < names[i - 1].y + 15 ? names[i - 1].y + 15 : names[i].y;
    for (size_t i = n; i-- > 0;) {
        double limit = i + 1 == n ? f->bottom : names[i + 1].y - 15;
        names[i].y = names[i].y > limit ? limit : names[i].y;
    }
    for (size_t i = 0; i < n; i++) {
        char class[16];
        double x = plot_place(&f->x, end_of(f->plot, names[i].series)->x) + 11;
        snprintf(class, sizeof class, "name c%u", names[i].series->colour % COLOURS_OF_PAGE);
        plot_text(f->to, x, names[i].y + 4.5, "start", class, names[i].series->name);
        take(f, x, names[i].y - 8, x + plot_text_width(names[i].series->name), names[i].y + 8);
    }
}

static void draw_series(struct frame *f)
{
    const struct plot *plot = f->plot;
    for (size_t i = 0; i < plot->n_series; i++)
        draw_line(f, &plot->series[i]);
    for (size_t i = 0; i < plot->n_series; i++)
        for (size_t k = 0; k < plot->series[i].count; k++)
            if (point_shown(plot, &plot->series[i].points[k]))
                draw_point(f, &plot->series[i], &plot->series[i].points[k]);
    draw_names(f);
    for (size_t i = 0; i < plot->n_series; i++) /* labels come after all marks and names: they must not cover one */
        for (size_t k = 0; k < plot->series[i].count; k++) {
            const struct plot_point *p = &plot->series[i].points[k];
            if (p->label && point_shown(plot, p))
                draw_label(f, plot_place(&f->x, p->x), plot_place(&f->y, p->y), p->label);
        }
}

static void draw(FILE *to, const struct plot *plot, int width)
{
    struct frame *f = calloc(1, sizeof *f);
    if (!f) {
        html_lack();
        return;
    }
    f->to = to, f->plot = plot, f->width = width;
    size_t shown = measure(f);
    lay_out(f);
    plot_svg_begin(to, width, f->height, plot->title);
    legend(f, 1);
    draw_axes(f);
    draw_rules(f);
    draw_series(f);
    if (!shown)
        plot_text(to, (f->left + f->right) / 2, (f->top + f->bottom) / 2, "middle", "soft", "nothing was measured");
    fputs("</svg>\n", to);
    free(f);
}

void plot_chart(FILE *to, const struct plot *plot)
{
    plot_figure_begin(to, plot->title);
    draw(to, plot, WIDE);
    draw(to, plot, NARROW);
    plot_figure_end(to);
}
