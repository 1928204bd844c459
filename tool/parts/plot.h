/* Charts for pages (html.h), as SVG in the page. A chart leaves out numbers that are not finite, and on a logarithmic axis those
 * that are not positive; a chart without any number says so. It is a figure with its title as caption. */
#ifndef AURA_PLOT_H
#define AURA_PLOT_H

#include <stddef.h>
#include <stdio.h>

/* Writes a number of a unit with three digits: "s" gives 350 µs; "B" 16 GiB; "tokens" 64k; "%" writes 0.25 as 25 %. Any other unit
 * follows the number; "": none. */
void plot_number(char text[48], double value, const char *unit);

struct plot_axis {
    const char *title; /* what is on it, "time of a token" */
    const char *unit;  /* as of plot_number(); never NULL */
    int log;
    double least, most; /* the range that is shown at least; both 0: the range of the points */
    const double *ticks; /* NULL: round numbers */
    size_t n_ticks;
};

struct plot_point {
    double x, y;
    double low, high;  /* an error bar from low to high; both 0: none */
    const char *label; /* beside the point, or where there is room, with a line to the point; NULL: none */
};

struct plot_series {
    const char *name;
    const struct plot_point *points;
    size_t count;
    unsigned colour; /* 0 to 7; also the shape of its marks */
    int joined;      /* 1: a line; 0: marks alone. If all series are lines, their names are at their ends, otherwise in a legend */
};

struct plot {
    const char *title;
    struct plot_axis x, y;
    const struct plot_series *series;
    size_t n_series;
    int diagonal;     /* 1: the line of x = y too */
    const char *note; /* a sentence below: what has no place in the chart; NULL: none */
};
void plot_chart(FILE *to, const struct plot *plot);

struct plot_bar {
    const char *name;
    double value;
    double low, high; /* as of a point */
    const char *note; /* after the number; NULL: none */
    unsigned colour;
};
/* What a colour means. */
struct plot_key {
    const char *name;
    unsigned colour;
};
/* Bars from 0, one below the other. The axis is never logarithmic: a bar shows a proportion. A chart whose bars have more than one
 * colour has keys[n_keys] that say what each means. */
void plot_bars(FILE *to, const char *title, const char *unit, const struct plot_bar *bars, size_t count,
               const struct plot_key *keys, size_t n_keys);

/* Parts of a whole side by side, each as wide as its value, and a list of them below; the list leaves out parts without a name. */
void plot_parts(FILE *to, const char *title, const char *unit, const struct plot_bar *parts, size_t count);

/* A matrix of values from 0 to 1 as a picture of one colour; the stronger it is, the more. All matrices have the same colour. */
void plot_heat(FILE *to, const char *title, const double *value, size_t rows, size_t columns);
/* What strengths of that colour mean: the texts stand at equal distances from 0 to 1. */
void plot_heat_scale(FILE *to, const char *title, const char *const *texts, size_t count);

/* Round numbers of an axis from least to most, ascending: at most 16. Returns how many. */
size_t plot_ticks(double ticks[16], double least, double most, int log);

#endif
