/* The pages of the tool: well-formed whatever they show, with round ticks, and without NaN or infinity. */
#define _GNU_SOURCE
#include <math.h>
#include <stdlib.h>

#include "../../tool/parts/html.h"
#include "../../tool/parts/plot.h"
#include "../test.h"
#include "xml.h"

static char *page;
static size_t page_size;

static FILE *begin(const char *title)
{
    FILE *to = open_memstream(&page, &page_size);
    html_begin(to, title, "lead");
    return to;
}

/* Ends the page and checks it. */
static void end(FILE *to)
{
    EXPECT(!html_end(to), "not written");
    fclose(to);
    const char *bad = xml_error(page);
    EXPECT(!bad, "not well-formed at: %.60s", bad);
    EXPECT(!strstr(page, "nan") && !strstr(page, "inf\"") && !strstr(page, "inf "), "a number that is none");
}

static size_t count(const char *what)
{
    size_t n = 0;
    for (const char *at = page; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void done(void)
{
    free(page);
    page = NULL;
}

static void the_checker_sees_errors(void)
{
    static const char *const good[] = {"<a/>", "<a b=\"1\"><c>x &amp; y</c></a>", "<!DOCTYPE html>\n<p>&lt;</p>\n"};
    static const char *const bad[] = {"<a>", "<a></b>", "<a b=1/>", "<a>&</a>", "<a b=\"<\"/>", "</a>",
                                      "<a b=\"1\" b=\"2\"/>",
                                      "<a><b></a></b>", "<a>\x01</a>", "<>"};
    for (size_t i = 0; i < sizeof good / sizeof *good; i++)
        EXPECT(!xml_error(good[i]), "%s", good[i]);
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
        EXPECT(xml_error(bad[i]), "%s", bad[i]);
}

static void text_is_escaped(void)
{
    FILE *to = begin("<title> & \"more\"");
    html_section(to, "a < b");
    html_text(to, "%s", "x > y & z \xff\x01 \xc3\xa9 \xed\xa0\x80 \xf0\x9f\x99\x82 \xe2\x82");
    html_table_begin(to, "caption <1>");
    html_row_begin(to), html_cell(to, "%s", "<b>"), html_cell(to, "%d %%", 5), html_row_end(to);
    html_row_begin(to), html_cell(to, "%s", "r&d"), html_cell(to, "%s", ""), html_row_end(to);
    html_table_end(to);
    html_columns_begin(to), html_column(to, "\"k4v4\"", "</div>"), html_columns_end(to);
    html_verdict(to, "%s", "<good>"), html_warning(to, "%d & more", 15);
    html_numbers_begin(to), html_number(to, "< 3", "%s", "times & more"), html_numbers_end(to);
    end(to);
    EXPECT(strstr(page, "<p class=\"verdict\">&lt;good&gt;</p>") && strstr(page, "<p class=\"warning\">15 &amp; more</p>") &&
           strstr(page, "<div><b>&lt; 3</b><span>times &amp; more</span></div>"), "verdict, warning and number");
    EXPECT(strstr(page, "<title>&lt;title&gt; &amp; &quot;more&quot;</title>"), "title");
    EXPECT(strstr(page, "z \xef\xbf\xbd\xef\xbf\xbd \xc3\xa9 \xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd \xf0\x9f\x99\x82 "
                  "\xef\xbf\xbd"), "bytes that are no text");
    EXPECT(count("<script") == 0 && count("http") == 0, "it needs nothing else");
    done();
}

static const struct plot_point line_points[] = {
    {1024, 1e-4, 0, 0, NULL}, {8192, 9e-4, 8e-4, 1.1e-3, NULL}, {65536, 7e-3, 0, 0, NULL}};
static const struct plot_point odd_points[] = {
    {NAN, 1, 0, 0, "a"}, {1, INFINITY, 0, 0, "b"}, {-1, 1, 0, 0, "c"}, {0, 1, 0, 0, "d"}, {2, 3, NAN, INFINITY, "e & f"}};

static struct plot chart_of(const struct plot_series *series, size_t n, int log)
{
    struct plot plot = {"time <of a token>",
                        {"tokens", "tokens", log, 0, 0, NULL, 0},
                        {"time", "s", log, 0, 0, NULL, 0},
                        series,
                        n,
                        0,
                        NULL};
    return plot;
}

static void a_chart_has_its_points(void)
{
    struct plot_series series[] = {
        {"k4v4 <&>", line_points, 3, 0, 1}, {"f16", line_points, 3, 1, 0}, {"both", line_points, 3, 2, 0}};
    struct plot plot = chart_of(series, 3, 1);
    plot.diagonal = 1, plot.note = "f16 > 2 ms";
    FILE *to = begin("chart");
    plot_chart(to, &plot);
    end(to);
    EXPECT(count("<svg") == 2 && count("class=\"wide\"") == 1 && count("class=\"narrow\"") == 1, "a drawing for each width");
    EXPECT(count("<path class=\"mark") == 2 * (3 * 3 + 3), "%zu marks, the legend's too", count("<path class=\"mark"));
    EXPECT(count("k4v4 &lt;&amp;&gt;: 8k, 900 µs") == 2, "what a mark says");
    EXPECT(count(">k4v4 &lt;&amp;&gt;</text>") == 2 && count(">both</text>") == 2, "names in the legend");
    EXPECT(count("V") >= 6, "error bars");
    EXPECT(count(">1 ms</text>") == 2 && count("<p class=\"note\">f16 &gt; 2 ms</p>") == 1, "ticks, and the note once");
    EXPECT(count("class=\"mark key c") == 2 * 3, "%zu keys", count("class=\"mark key c"));
    done();
}

static void lines_have_their_names_at_their_ends(void)
{
    struct plot_series series[] = {
        {"one", line_points, 3, 0, 1}, {"two", line_points, 3, 9, 1}, {"three", line_points, 3, 2, 1}};
    struct plot plot = chart_of(series, 3, 1);
    double y[3] = {0};
    FILE *to = begin("names");
    plot_chart(to, &plot);
    end(to);
    for (int i = 0; i < 3; i++) { /* three equal lines: their names must not cover each other */
        const char *at = strstr(page, i == 0 ? ">one</text>" : i == 1 ? ">two</text>" : ">three</text>");
        while (at && at > page && strncmp(at, " y=\"", 4))
            at--;
        y[i] = at ? strtod(at + 4, NULL) : 0;
    }
    EXPECT(fabs(y[0] - y[1]) >= 14 && fabs(y[1] - y[2]) >= 14 && fabs(y[0] - y[2]) >= 14, "at %g, %g and %g", y[0], y[1],
           y[2]);
    EXPECT(count("class=\"name c1\"") == 2 && !strstr(page, "c9"), "a ninth colour is the second");
    done();
}

/* Boxes of labels as a wide font draws them. */
static int labels_cover(const char *svg)
{
    struct {
        double left, top;
    } box[64];
    size_t n = 0;
    for (const char *at = svg, *end = strstr(svg, "</svg>"); (at = strstr(at, "<text x=\"")) && at < end && n < 64; at++) {
        double x = strtod(at + 9, NULL), y = strtod(strstr(at, "y=\"") + 3, NULL);
        const char *anchor = strstr(at, "anchor=\"") + 8, *class = strstr(at, "class=\"halo\"");
        if (!class || class > strchr(at, '>'))
            continue;
        box[n].left = x - (*anchor == 'm' ? 16 : *anchor == 'e' ? 32 : 0), box[n++].top = y;
    }
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < i; k++)
            if (fabs(box[i].left - box[k].left) < 32 && fabs(box[i].top - box[k].top) < 12)
                return 1;
    return n == 0;
}

static void no_label_is_left_out(void)
{
    enum { CROWD = 40 };
    char names[CROWD][16], text[32];
    struct plot_point points[CROWD];
    for (int i = 0; i < CROWD; i++) { /* in twos and threes at nearly the same place */
        snprintf(names[i], sizeof names[i], "n%03d", i);
        points[i] = (struct plot_point){4 + i / 3 * 0.3, 1e-3 * (1 + 0.01 * (i % 3)), 0, 0, names[i]};
    }
    struct plot_series series = {"crowd", points, CROWD, 0, 0};
    struct plot plot = chart_of(&series, 1, 1);
    FILE *to = begin("labels");
    plot_chart(to, &plot);
    end(to);
    for (int i = 0; i < CROWD; i++) {
        snprintf(text, sizeof text, ">%.7s</text>", names[i]);
        EXPECT(count(text) == 2, "%s is there %zu times", names[i], count(text));
    }
    EXPECT(count("class=\"lead\"") > 0, "lines to points that are elsewhere");
    EXPECT(!labels_cover(strstr(page, "<svg class=\"wide\"")), "wide: labels cover each other");
    EXPECT(!labels_cover(strstr(page, "<svg class=\"narrow\"")), "narrow: labels cover each other");
    done();
}

static void what_cannot_be_drawn_is_left_out(void)
{
    struct plot_series series[] = {{"odd", odd_points, 5, 0, 1}, {"none", NULL, 0, 1, 1}};
    for (int log = 0; log < 2; log++)
        for (size_t n = 0; n <= 2; n++) {
            struct plot plot = chart_of(series, n, log);
            FILE *to = begin("odd");
            plot_chart(to, &plot);
            end(to);
            EXPECT(count("<path class=\"mark") == (n ? 2 * (log ? 1u : 3u) : 0), "%zu marks, log %d",
                   count("<path class=\"mark"), log);
            EXPECT(count("nothing was measured") == (n ? 0 : 2), "says that it is empty");
            done();
        }
}

static void bars_and_parts(void)
{
    struct plot_bar bars[] = {{"f16", 16.0 * (1 << 30), 0, 0, "1x", 5}, {"k4v4 & more", 4.4 * (1 << 30), 4e9, 5e9, NULL, 0},
                              {"none", NAN, 0, 0, NULL, 1}, {"zero", 0, 0, 0, NULL, 2}};
    static const struct plot_key keys[] = {{"ours & theirs", 0}, {"f16 alone", 5}};
    static const char *const texts[] = {"nothing", "half", "all of it"};
    double heat[12] = {0, 0.5, 1, NAN, -1, 2, 0.1};
    FILE *to = begin("bars");
    plot_bars(to, "memory", "B", bars, 4, keys, 2), plot_parts(to, "a tile", "B", bars, 4), plot_heat(to, "weights", heat, 3, 4);
    plot_heat_scale(to, "weight", texts, 3);
    struct plot_bar more[] = {{"two of them", 4224, 0, 0, "each", 0}, {NULL, 4224, 0, 0, NULL, 1}};
    plot_parts(to, "a page", "bytes", more, 2);
    plot_bars(to, "empty", "B", NULL, 0, NULL, 0), plot_parts(to, "empty", "B", NULL, 0), plot_heat(to, "empty", NULL, 0, 0);
    end(to);
    EXPECT(count(">16 GiB, 1x</text>") == 4 && count(">4.4 GiB</text>") == 4, "numbers with units");
    EXPECT(count("<rect") - count("<rect class=\"fill key") == 2 * 3 + 2 * 2 + 2 * 2, "%zu bars", count("<rect"));
    EXPECT(count(">ours &amp; theirs</text>") == 2 && count(">f16 alone</text>") == 2, "what colours mean");
    EXPECT(count("<rect class=\"fill key c0\"") == 2 * 12 && count("<path class=\"fill c0\" opacity") == 2 * 12,
           "the picture and its scale have one colour");
    EXPECT(count(">nothing</text>") == 2 && count(">half</text>") == 2 && count(">all of it</text>") == 2, "what the scale says");
    EXPECT(count(">4224 bytes, each</text>") == 2, "a part without a name is not listed");
    EXPECT(count("h1v1h-1z") == 4, "%zu cells", count("h1v1h-1z"));
    done();
}

static void expect_ticks(double least, double most, int log, const char *want)
{
    double ticks[16];
    char text[512] = "";
    size_t n = plot_ticks(ticks, least, most, log);
    for (size_t i = 0; i < n; i++)
        snprintf(text + strlen(text), sizeof text - strlen(text), "%s%g", i ? " " : "", ticks[i]);
    EXPECT(!strcmp(text, want), "%g to %g: %s instead of %s", least, most, text, want);
}

static void ticks_are_round(void)
{
    expect_ticks(0, 10, 0, "0 2 4 6 8 10");
    expect_ticks(-0.31, 0.29, 0, "-0.3 -0.2 -0.1 0 0.1 0.2");
    expect_ticks(1, 100, 1, "1 2 5 10 20 50 100");
    expect_ticks(0.2, 20, 1, "0.2 0.5 1 2 5 10 20");
    expect_ticks(3e-6, 0.04, 1, "1e-05 0.0001 0.001 0.01");
    expect_ticks(1e-20, 1e20, 1, "1e-20 1e-14 1e-08 0.01 10000 1e+10 1e+16");
    expect_ticks(0, 1, 1, "");
    expect_ticks(2, 2, 0, "");
    expect_ticks(0, INFINITY, 0, "");
}

static void numbers_have_units(void)
{
    static const struct {
        double value;
        const char *unit, *text;
    } cases[] = {
        {3.5e-4, "s", "350 µs"},  {2, "s", "2 s"},          {1e-9, "s", "1 ns"},        {0, "s", "0 s"},
        {0.9999, "s", "1 s"},     {16384, "B", "16 KiB"},   {1000, "B", "1000 B"},      {1 << 30, "B", "1 GiB"},
        {65536, "tokens", "64k"}, {1000, "tokens", "1000"}, {0.125, "%", "12.5 %"},     {3.1e-7, "%", "3.1·10⁻⁵ %"},
        {4.25, "", "4.25"},       {1e-5, "", "10⁻⁵"},       {2.5e-12, "", "2.5·10⁻¹²"}, {1e6, "tokens/s", "10⁶ tokens/s"},
        {12.5, "x", "12.5 x"}};
    char text[48];
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        plot_number(text, cases[i].value, cases[i].unit);
        EXPECT(!strcmp(text, cases[i].text), "%s instead of %s", text, cases[i].text);
    }
}

int main(void)
{
    RUN(the_checker_sees_errors);
    RUN(text_is_escaped);
    RUN(a_chart_has_its_points);
    RUN(lines_have_their_names_at_their_ends);
    RUN(no_label_is_left_out);
    RUN(what_cannot_be_drawn_is_left_out);
    RUN(bars_and_parts);
    RUN(ticks_are_round);
    RUN(numbers_have_units);
    return test_result();
}
