/* From numbers to places in a drawing. */
#include "plot_scale.h"

#include <math.h>
#include <string.h>

#include "html.h"

/* ---- numbers ------------------------------------------------------------------------------------------------------- */

/* A small power of ten as people write it. */
static void print_power(char text[48], double value)
{
    static const char *const digits[] = {"⁰", "¹", "²", "³", "⁴", "⁵", "⁶", "⁷", "⁸", "⁹"};
    int power = (int)floor(log10(value) + 1e-9);
    double lead = value / pow(10, power);
    size_t used = 0;
    if (fabs(lead - 1) > 0.005)
        used = (size_t)snprintf(text, 48, "%.3g·", lead);
    used += (size_t)snprintf(text + used, 48 - used, "10%s", power < 0 ? "⁻" : "");
    power = power < 0 ? -power : power;
    for (int unit = power >= 100 ? 100 : power >= 10 ? 10 : 1; unit; unit /= 10)
        used += (size_t)snprintf(text + used, 48 - used, "%s", digits[power / unit % 10]);
}

/* Divides a number by the largest of its unit's steps that is not above it. */
static const char *prefix(double *value, double step, const char *const *names, int least, int count)
{
    double size = fabs(*value);
    int i = 0;
    for (; i > least && size > 0 && size < 0.9995; i--)
        size *= step;
    for (; i < least + count - 1 && size >= step * 0.9995; i++)
        size /= step;
    *value = copysign(size, *value);
    return names[i - least];
}

static void print_three_digits(char text[48], double value, const char *unit)
{
    snprintf(text, 48, fabs(value) >= 999.5 ? "%.0f%s%s" : "%.3g%s%s", value, *unit ? " " : "", unit);
}

void plot_number(char text[48], double value, const char *unit)
{
    static const char *const seconds[] = {"ns", "µs", "ms", "s"}, *const bytes[] = {"B", "KiB", "MiB", "GiB", "TiB"};
    if (!strcmp(unit, "s")) {
        const char *name = prefix(&value, 1000, seconds, -3, 4);
        print_three_digits(text, value, name);
    } else if (!strcmp(unit, "B")) {
        const char *name = prefix(&value, 1024, bytes, 0, 5);
        print_three_digits(text, value, name);
    } else if (!strcmp(unit, "tokens") && value >= 1024 && fmod(value, 1024) == 0) {
        snprintf(text, 48, "%.0fk", value / 1024);
    } else if (!strcmp(unit, "tokens")) {
        snprintf(text, 48, "%.0f", value);
    } else if (!strcmp(unit, "%") && !(value > 0 && value < 9.995e-6)) {
        print_three_digits(text, value * 100, "%");
    } else if (value > 0 && (value < 9.995e-4 || value >= 1e6) && isfinite(value)) {
        char number[48];
        print_power(number, strcmp(unit, "%") ? value : value * 100);
        snprintf(text, 48, "%.38s%s%.8s", number, *unit ? " " : "", unit);
    } else {
        print_three_digits(text, value, unit);
    }
}

/* ---- ticks --------------------------------------------------------------------------------------------------------- */

enum { MOST_TICKS = 16 };

/* 1, 10, 100 ...; also 2, 5, 20, 50 ... where these are few. */
static size_t log_ticks(double *ticks, double least, double most)
{
    int from = (int)floor(log10(least) + 1e-9), to = (int)ceil(log10(most) - 1e-9), every = (to - from) / 8 + 1;
    int between = most / least <= 300;
    size_t n = 0;
    for (int power = from; power <= to; power += every)
        for (int lead = 1; lead < 10; lead = lead == 1 && between ? 2 : lead == 2 ? 5 : 10) {
            double tick = lead * pow(10, power);
            if (tick >= least * (1 - 1e-9) && tick <= most * (1 + 1e-9) && n < MOST_TICKS)
                ticks[n++] = tick;
        }
    return n;
}

size_t plot_ticks(double ticks[16], double least, double most, int log)
{
    size_t n = 0;
    if (!(least < most) || (log && least <= 0) || !isfinite(least) || !isfinite(most))
        return 0;
    if (log)
        return log_ticks(ticks, least, most);
    double rough = (most - least) / 6, step = pow(10, floor(log10(rough)));
    step *= rough / step > 5 ? 10 : rough / step > 2 ? 5 : rough / step > 1 ? 2 : 1;
    for (double i = ceil(least / step - 1e-9); i * step <= most + step * 1e-9 && n < MOST_TICKS; i++)
        ticks[n++] = i * step + 0.0; /* no minus before a zero */
    return n;
}

/* ---- scales -------------------------------------------------------------------------------------------------------- */

int plot_shown(double value, int log)
{
    return isfinite(value) && (!log || value > 0);
}

void plot_include(double *least, double *most, double value, int log)
{
    if (!plot_shown(value, log))
        return;
    *least = value < *least ? value : *least;
    *most = value > *most ? value : *most;
}

void plot_range(const struct plot_axis *axis, double *least, double *most)
{
    if (axis->least < axis->most && (!axis->log || axis->least > 0)) {
        *least = axis->least, *most = axis->most;
        return;
    }
    if (*least > *most)
        *least = axis->log ? 1 : 0, *most = axis->log ? 10 : 1;
    if (axis->log) {
        double air = *least < *most ? pow(*most / *least, 0.06) : 2;
        *least /= air, *most *= air;
    } else {
        double air = *least < *most ? 0.06 * (*most - *least) : fabs(*least) / 2 + (*least == 0);
        *least = *least >= 0 && *least <= air * 4 ? 0 : *least - air; /* the axis begins at 0 where 0 is near */
        *most += air;
    }
}

double plot_place(const struct scale *s, double value)
{
    double part = s->log ? log(value / s->least) / log(s->most / s->least) : (value - s->least) / (s->most - s->least);
    return s->from + part * (s->to - s->from);
}

/* ---- pieces of a drawing ------------------------------------------------------------------------------------------- */

double plot_text_width(const char *text)
{
    double letters = 0;
    for (; *text; text++)
        letters += (*text & 0xc0) != 0x80;
    return letters * LETTER;
}

void plot_figure_begin(FILE *to, const char *title)
{
    fputs("<figure>\n<figcaption>", to);
    html_escape(to, title);
    fputs("</figcaption>\n", to);
}

void plot_note(FILE *to, const char *text)
{
    fputs(text ? "<p class=\"note\">" : "", to);
    html_escape(to, text);
    fputs(text ? "</p>\n" : "", to);
}

void plot_figure_end(FILE *to)
{
    fputs("</figure>\n", to);
}

void plot_svg_begin(FILE *to, int width, double height, const char *title)
{
    fprintf(to, "<svg class=\"%s\" viewBox=\"0 0 %d %.0f\" role=\"img\" aria-label=\"",
            width == WIDE ? "wide" : "narrow", width, height);
    html_escape(to, title);
    fputs("\">\n", to);
}

void plot_text(FILE *to, double x, double y, const char *anchor, const char *class, const char *text)
{
    fprintf(to, "<text x=\"%.1f\" y=\"%.1f\" text-anchor=\"%s\"%s%s%s>", x, y, anchor, *class ? " class=\"" : "", class,
            *class ? "\"" : "");
    html_escape(to, text);
    fputs("</text>\n", to);
}

void plot_mark(FILE *to, double x, double y, unsigned colour, const char *title)
{
    static const char *const shapes[] = {"m-5 0a5 5 0 1 0 10 0a5 5 0 1 0 -10 0z", "m-4.5 -4.5h9v9h-9z",
        "m0 -5.5l5.5 9.5h-11z",
                                         "m0 -6l6 6l-6 6l-6 -6z", "m0 5.5l5.5 -9.5h-11z", "m-5.5 -3.5h11v7h-11z",
                                         "m-2 -5.5h4v3.5h3.5v4h-3.5v3.5h-4v-3.5h-3.5v-4h3.5z",
                                         "m-3 -5.5l3 3l3 -3l2.5 2.5l-3 3l3 3l-2.5 2.5l-3 -3l-3 3l-2.5 -2.5l3 -3l-3 -3z"};
    fprintf(to, "<path class=\"mark%s c%u\" d=\"M%.1f %.1f%s\">", title ? "" : " key", colour % COLOURS_OF_PAGE, x, y,
            shapes[colour % COLOURS_OF_PAGE]);
    if (title) {
        fputs("<title>", to);
        html_escape(to, title);
        fputs("</title>", to);
    }
    fputs("</path>\n", to);
}

double plot_keys(FILE *to, const struct plot_key *keys, size_t count, int width)
{
    double x = 8, y = LINE;
    for (size_t i = 0; i < count; i++) {
        const double wide = plot_text_width(keys[i].name) + 34;
        if (i && x + wide > width)
            x = 8, y += LINE + 2;
        if (to) {
            plot_mark(to, x + 6, y - 5, keys[i].colour, NULL);
            plot_text(to, x + 17, y, "start", "", keys[i].name);
        }
        x += wide;
    }
    return count ? y + 10 : 0;
}
