/* From numbers to places in a drawing; what the files of plot.h share. */
#ifndef AURA_PLOT_SCALE_H
#define AURA_PLOT_SCALE_H

#include "plot.h"

/* Drawn for a window of at least 760 pixels, and for a narrower one: html.c shows one of the two. */
enum { WIDE = 820, NARROW = 380, LETTER = 8, LINE = 18, COLOURS_OF_PAGE = 8 }; /* LETTER: of 13 pixels, in a wide font */

struct scale {
    int log;
    double least, most; /* of the numbers */
    double from, to;    /* where these are in the drawing */
};

/* Whether an axis can show a number. */
int plot_shown(double value, int log);
/* Widens the range from *least to *most so that it has a number; a range begins with least above most. */
void plot_include(double *least, double *most, double value, int log);
/* Makes the range that the axis shows: its own if it has one, else that of the numbers with some air. It is never empty. */
void plot_range(const struct plot_axis *axis, double *least, double *most);
double plot_place(const struct scale *scale, double value);

/* About the width in pixels of a text 13 pixels high. */
double plot_text_width(const char *text);

/* <svg ...> of that size, for wide or narrow windows; the caller ends it. */
void plot_svg_begin(FILE *to, int width, double height, const char *title);
void plot_figure_begin(FILE *to, const char *title);
void plot_note(FILE *to, const char *text); /* a paragraph of a figure; NULL: none */
void plot_figure_end(FILE *to);

/* A text at a place; anchor is "start", "middle" or "end", class may be "". */
void plot_text(FILE *to, double x, double y, const char *anchor, const char *class, const char *text);
/* The mark of a colour at a place; pointing at it shows the text. One without a text is a key: it says what the colour means. */
void plot_mark(FILE *to, double x, double y, unsigned colour, const char *title);

/* Marks and their names from left to right, line below line, from the top of a drawing. Returns their height; 0: there are none. */
double plot_keys(FILE *to, const struct plot_key *keys, size_t count, int width); /* to NULL: nothing is drawn */

#endif
