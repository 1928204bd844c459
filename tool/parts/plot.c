/* A chart of points and lines. */
#include "plot.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "html.h"
#include "plot_scale.h"

enum { MOST_BOXES = 600 };

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

/* Draws the legend, or only returns its height. Series of which nothing is shown are not in it. */
static double legend(const struct frame *f, int draw)
{
    enum { MOST_KEYS = 32 };
    struct plot_key keys[MOST_KEYS];
    size_t n = 0;
    for (size_t i = 0; i < f->plot->n_series && n < MOST_KEYS && has_legend(f->plot); i++)
        if (end_of(f->plot, &f->plot->series[i]))
            keys[n++] = (struct plot_key){f->plot->series[i].name, f->plot->series[i].colour};
    return plot_keys(draw ? f->to : NULL, keys, n, f->width);
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

static void draw_diagonal(const struct frame *f)
{
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
    if (b->left < f->left || b->right > f->width - 2 || b->top < f->top - 12 || b->bottom > f->bottom)
        return 0;
    for (size_t i = 0; i < f->n_taken; i++)
        if (b->left < f->taken[i].right && f->taken[i].left < b->right && b->top < f->taken[i].bottom &&
            f->taken[i].top < b->bottom)
            return 0;
    return 1;
}

/* A place for a label: where its text begins, and the box that it takes. */
struct spot {
    double x, y;
    const char *anchor;
    struct box box;
};

/* A label whose text has `part` of its width left of x. */
static struct spot spot_at(double x, double y, double wide, double part)
{
    struct spot s = {x, y, part == 0 ? "start" : part == 1 ? "end" : "middle",
                     {x - part * wide - 2, y - 12, x + (1 - part) * wide + 2, y + 4}};
    return s;
}

/* Beside a point, where nothing else is. 0: there is no room. */
static int spot_beside(const struct frame *f, double x, double y, double wide, struct spot *spot)
{
    static const struct {
        double x, y, part;
    } places[] = {{9, 4.5, 0}, {0, -9, 0.5}, {-9, 4.5, 1}, {0, 20, 0.5}, {7, -7, 0}, {-7, -7, 1}, {7, 16, 0}, {-7, 16, 1}};
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        *spot = spot_at(x + places[i].x, y + places[i].y, wide, places[i].part);
        if (is_free(f, &spot->box))
            return 1;
    }
    return 0;
}

/* The nearest free place of the square, however far. 0: there is none. */
static int spot_anywhere(const struct frame *f, double x, double y, double wide, struct spot *spot)
{
    double nearest = INFINITY;
    for (double at_y = f->top; at_y < f->bottom; at_y += 6)
        for (double at_x = f->left + 2 + wide / 2; at_x < f->right - wide / 2; at_x += 6) {
            struct spot s = spot_at(at_x, at_y, wide, 0.5);
            const double far = hypot(at_x - x, 1.5 * (at_y - 4 - y)); /* up and down is better than aside: texts are wide */
            if (far < nearest && is_free(f, &s.box))
                nearest = far, *spot = s;
        }
    return nearest < INFINITY;
}

/* No label is left out: without room beside its point it goes elsewhere, with a line; without any room it covers something. */
static void draw_label(struct frame *f, double x, double y, const char *label)
{
    const double wide = plot_text_width(label);
    struct spot s;
    if (!spot_beside(f, x, y, wide, &s)) {
        if (spot_anywhere(f, x, y, wide, &s))
            line(f->to, "lead", x, y, fmin(fmax(x, s.box.left), s.box.right), fmin(fmax(y, s.box.top), s.box.bottom));
        else
            s = spot_at(x + 9, y + 4.5, wide, 0);
    }
    take(f, s.box.left, s.box.top, s.box.right, s.box.bottom);
    plot_text(f->to, s.x, s.y, s.anchor, "halo", label);
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
        fprintf(f->to, "<path class=\"ink c%u\" d=\"M%.1f %.1fV%.1fm-4 0h8M%.1f %.1fh8\"/>\n", s->colour % COLOURS_OF_PAGE, at_x,
                low, high, at_x - 4, low);
        take(f, at_x - 5, high, at_x + 5, low);
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
    draw_diagonal(f);
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
    plot_note(to, plot->note);
    plot_figure_end(to);
}
