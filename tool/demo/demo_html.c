/* The page of aura demo. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../src/format.h"
#include "../../src/base/format_names.h"
#include "demo.h"
#include "../parts/html.h"
#include "../parts/plot.h"
#include "../tool.h"

/* One colour for presets, one for other pairs, one for f16. */
enum { PRESET = 0, PAIR = 2, PLAIN_F16 = 5 };

static unsigned colour_of(const struct demo *d, const struct demo_cache *c)
{
    return c == d->caches ? PLAIN_F16 : *c->preset ? PRESET : PAIR;
}

/* ---- quality ------------------------------------------------------------------------------------------------------- */

/* Error, or divergence, against bits. */
static void chart_quality(FILE *to, const struct demo *d, const char *title, const char *name, const char *unit, int kl)
{
    struct plot_point presets[DEMO_CACHES], others[DEMO_CACHES];
    size_t n = 0, m = 0;
    for (size_t i = 1; i < d->count; i++) {
        const struct demo_cache *c = &d->caches[i];
        const struct spread *s = kl ? &c->kl : &c->output;
        struct plot_point p = {c->bits, s->mean, s->least, s->most, c->name};
        if (*c->preset)
            presets[n++] = p;
        else
            others[m++] = p;
    }
    /* The recording is in f16, so an f16 cache changes only the last bits of sums: in the chart it would squeeze all others. */
    char number[48], note[128];
    plot_number(number, kl ? d->caches[0].kl.mean : d->caches[0].output.mean, unit);
    snprintf(note, sizeof note, "f16, 16 bits, is far below and not in the chart: %s.", number);
    struct plot_series series[] = {{"presets", presets, n, PRESET, 0}, {"other pairs", others, m, PAIR, 0}};
    struct plot plot = {title, {"bits per value", "", 0, 0, 0, NULL, 0}, {name, unit, 1, 0, 0, NULL, 0}, series, 2, 0, note};
    plot_chart(to, &plot);
}

static void section_quality(FILE *to, const struct demo *d)
{
    html_section(to, "Error against bits");
    html_text(to, "Keys and values of recorded layers went through each cache; the output of attention is compared with "
              "attention in double precision over the numbers as recorded. Bars reach from the best to the worst layer. With "
              "every bit less the error about doubles; the keys alone decide the weights, so k5v4 has those of k5v5. The "
              "recording itself is in f16, so an f16 cache changes nothing but the rounding of sums.");
    chart_quality(to, d, "Output error: ‖output − exact‖ / ‖exact‖", "output error", "%", 0);
    chart_quality(to, d, "What happens to the attention weights: KL divergence from the exact ones", "KL divergence, nats",
                  "", 1);
}

static void section_table(FILE *to, const struct demo *d)
{
    char text[48];
    html_section(to, "All numbers");
    html_table_begin(to, "Errors are means over the recorded layers, times are of one layer's attention for one token");
    html_row_begin(to);
    html_cell(to, "cache"), html_cell(to, "preset"), html_cell(to, "bits per value"), html_cell(to, "times smaller");
    html_cell(to, "output error, %%"), html_cell(to, "KL of weights");
    for (size_t i = 0; i < d->contexts; i++) {
        plot_number(text, d->context[i], "tokens");
        html_cell(to, "time at %s", text), html_cell(to, "times as fast");
    }
    html_row_end(to);
    for (size_t k = 0; k < d->count; k++) {
        const struct demo_cache *c = &d->caches[k];
        html_row_begin(to);
        html_cell(to, "%s", c->name), html_cell(to, "%s", c->preset), html_cell(to, "%.2f", c->bits);
        html_cell(to, "%.2f", d->caches[0].bits / c->bits), html_cell(to, "%.3f", 100 * c->output.mean);
        html_cell(to, "%.1e", c->kl.mean);
        for (size_t i = 0; i < d->contexts; i++) {
            plot_number(text, c->seconds[i], "s");
            html_cell(to, "%s", text), html_cell(to, "%.2f", demo_faster(d, c, i));
        }
        html_row_end(to);
    }
    html_table_end(to);
}

/* ---- time and memory ----------------------------------------------------------------------------------------------- */

static void section_time(FILE *to, const struct demo *d)
{
    static const unsigned colours[] = {5, 0, 1, 2, 3, 4, 6};
    struct plot_point points[DEMO_CACHES][DEMO_CONTEXTS];
    struct plot_series series[DEMO_CACHES];
    double ticks[DEMO_CONTEXTS];
    size_t n = 0;
    for (size_t k = 0; k < d->count; k++) {
        const struct demo_cache *c = &d->caches[k];
        if (k && !*c->preset)
            continue;
        for (size_t i = 0; i < d->contexts; i++) {
            struct plot_point p = {d->context[i], c->seconds[i], 0, 0, NULL};
            points[n][i] = p, ticks[i] = d->context[i];
        }
        struct plot_series s = {k ? c->name : "f16", points[n], d->contexts, colours[n % 7], 1};
        series[n++] = s;
    }
    struct plot plot = {"Attention of one layer for one token",
                        {"tokens in the cache", "tokens", 1, d->context[0] * 0.8, d->context[d->contexts - 1] * 1.15, ticks,
                            d->contexts},
                        {"time", "s", 1, 0, 0, NULL, 0}, series, n, 0, NULL};
    html_section(to, "Time against context");
    html_text(to, "The recording is repeated until the cache is full; all caches are timed in turns, on %u thread%s. The "
              "cache is read straight from its bits: fewer bytes are fewer bytes to read, which counts where the context is "
              "long.", d->threads, d->threads == 1 ? "" : "s");
    if (demo_was_busy(d))
        html_text(to, "The machine was busy meanwhile: times of f16 varied by a factor of %.1f. Measured on an idle machine, "
                  "this chart is smoother.", d->unrest);
    plot_chart(to, &plot);
}

static void section_memory(FILE *to, const struct demo *d)
{
    static const struct plot_key keys[] = {{"f16", PLAIN_F16}, {"presets", PRESET}, {"other pairs", PAIR}};
    struct plot_bar bars[DEMO_CACHES];
    char notes[DEMO_CACHES][32], title[160];
    for (size_t i = 0; i < d->count; i++) {
        const struct demo_cache *c = &d->caches[i];
        struct plot_bar bar = {i ? c->name : "f16", c->model_bytes, 0, 0, i ? notes[i] : NULL, colour_of(d, c)};
        snprintf(notes[i], sizeof notes[i], "%.2f × smaller", d->caches[0].model_bytes / c->model_bytes);
        bars[i] = bar;
    }
    snprintf(title, sizeof title, "One sequence of %.0fk tokens: %u layers, %u KV heads, D %u",
             (double)demo_model.tokens / 1024,
             demo_model.layers, demo_model.kv_heads, demo_model.dim);
    html_section(to, "Memory of an 8B-class model");
    html_text(to, "Pages and what a sequence has beside them, as the library counts them: codes, scales, references, and the "
              "tokens that stay in f16.");
    plot_bars(to, title, "B", bars, d->count, keys, sizeof keys / sizeof *keys);
}

/* ---- one head ------------------------------------------------------------------------------------------------------ */

enum { STRIPES = 128 };

/* Weight as strength of a colour, over three decades, so that small weights can be seen. */
static const char *const heat_texts[] = {"0.1 %", "1 %", "10 %", "100 %"};

static void heat(FILE *to, const struct demo_head *h, const double *weight, const char *title)
{
    double *cells = calloc((size_t)h->rows * STRIPES, sizeof *cells);
    if (!cells) {
        html_lack();
        return;
    }
    for (size_t row = 0; row < h->rows; row++) {
        for (size_t t = 0; t < h->tokens; t++)
            cells[row * STRIPES + t * STRIPES / h->tokens] += weight[row * h->tokens + t];
        for (size_t i = 0; i < STRIPES; i++)
            cells[row * STRIPES + i] = fmax(1 + log10(cells[row * STRIPES + i] + 1e-12) / 3, 0);
    }
    plot_heat(to, title, cells, h->rows, STRIPES);
    free(cells);
}

static int by_weight(const void *a, const void *b)
{
    double x = ((const struct plot_point *)a)->x, y = ((const struct plot_point *)b)->x;
    return (x < y) - (x > y);
}

/* The heaviest tokens of the newest query: exact weight against weight with a cache. */
static size_t heaviest(const struct demo_head *h, const double *after, struct plot_point *points, size_t most)
{
    size_t at = (size_t)(h->rows - 1) * h->tokens;
    struct plot_point *all = calloc(h->tokens, sizeof *all);
    if (!all)
        return html_lack(), 0;
    for (uint32_t t = 0; t < h->tokens; t++)
        all[t].x = h->exact[at + t], all[t].y = after[at + t];
    qsort(all, h->tokens, sizeof *all, by_weight);
    most = h->tokens < most ? h->tokens : most;
    memcpy(points, all, most * sizeof *points);
    free(all);
    return most;
}

static void section_head(FILE *to, const struct demo *d)
{
    enum { POINTS = 60 };
    static const unsigned colours[DEMO_SHOWN] = {0, 1};
    const struct demo_head *h = &d->head;
    struct plot_point points[DEMO_SHOWN][POINTS];
    struct plot_series series[DEMO_SHOWN];
    char title[160];
    if (!h->exact || !h->cached[0] || !h->cached[1])
        return;
    html_section(to, "The attention of one head, before and after");
    html_text(to, "Layer %u, query head %u, the one whose attention is spread the widest. Each line is a query, the newest "
              "at the bottom; from left to right the %u tokens it can look at, %u to a stripe; the stronger the colour, the more "
              "weight.", h->layer, h->head, h->tokens, (h->tokens + STRIPES - 1) / STRIPES);
    plot_heat_scale(to, "Weight of a stripe", heat_texts, sizeof heat_texts / sizeof *heat_texts);
    heat(to, h, h->exact, "exact");
    for (size_t i = 0; i < DEMO_SHOWN; i++) {
        snprintf(title, sizeof title, "%s, %.2f bits", h->cache[i]->name, h->cache[i]->bits);
        heat(to, h, h->cached[i], title);
        size_t n = heaviest(h, h->cached[i], points[i], POINTS);
        struct plot_series s = {h->cache[i]->name, points[i], n, colours[i], 0};
        series[DEMO_SHOWN - 1 - i] = s; /* the better one over the worse one */
    }
    struct plot plot = {"The 60 tokens with the most weight, for the newest query",
                        {"exact weight", "%", 1, 0, 0, NULL, 0}, {"weight with the cache", "%", 1, 0, 0, NULL, 0}, series,
                            DEMO_SHOWN, 1, NULL};
    html_text(to, "The same in numbers: on the dashed line nothing has changed.");
    plot_chart(to, &plot);
}

/* ---- bytes --------------------------------------------------------------------------------------------------------- */

static const struct demo_cache *named(const struct demo *d, const char *name)
{
    for (size_t i = 0; i < d->count; i++)
        if (!strcmp(d->caches[i].name, name))
            return &d->caches[i];
    return d->caches;
}

static void section_bytes(FILE *to, const struct demo *d)
{
    const struct demo_cache *c = named(d, "k4v4");
    struct aura_layout l;
    char title[160];
    aura_layout_init(&l, c->format, demo_model.dim, demo_model.dim);
    struct plot_bar tile[] = {{"keys: codes, a lane is a token", l.k.bytes, 0, 0, NULL, 0},
                              {"values: codes, a lane is a channel", l.v.bytes, 0, 0, NULL, 2},
                              {"scales of keys, f16", l.k.scale_bytes, 0, 0, NULL, 1},
                              {"scales of values, f16", l.v.scale_bytes, 0, 0, NULL, 4}};
    struct plot_bar page[AURA_PAGE_TILES + 2];
    for (int i = 0; i < AURA_PAGE_TILES; i++) {
        struct plot_bar part = {i ? NULL : "tiles", l.tile_bytes, 0, 0, i ? NULL : "each of eight", 0};
        page[i] = part;
    }
    struct plot_bar reference = {"reference that keys are relative to, s8", l.reference_scale_at - l.reference_at, 0, 0,
        NULL, 1};
    struct plot_bar scale = {"its scale, f16, padded", l.head_bytes - l.reference_scale_at, 0, 0, NULL, 4};
    page[AURA_PAGE_TILES] = reference, page[AURA_PAGE_TILES + 1] = scale;
    html_section(to, "Where the bytes are");
    html_text(to, "A tile is %d tokens of one KV head, a page is %d tiles of every KV head. Numbers are of %s and D %u: %.3f "
              "bits per value, of which the codes are %.0f.", AURA_TILE, AURA_PAGE_TILES, c->name, demo_model.dim,
              8.0 * l.head_bytes / (2.0 * AURA_PAGE * demo_model.dim), 8.0 * l.k.bytes / (AURA_TILE * demo_model.dim));
    snprintf(title, sizeof title, "A tile: %u bytes", l.tile_bytes);
    plot_parts(to, title, "bytes", tile, sizeof tile / sizeof *tile);
    snprintf(title, sizeof title, "One KV head's part of a page: %u bytes for %d tokens; in f16 it would be %d",
             l.head_bytes, AURA_PAGE,
             AURA_PAGE * (int)demo_model.dim * 2 * 2);
    plot_parts(to, title, "bytes", page, AURA_PAGE_TILES + 2);
}

/* The default in one sentence and three numbers. */
static void verdict(FILE *to, const struct demo *d)
{
    const struct demo_cache *f16 = d->caches, *c = named(d, "k4v4");
    const size_t last = d->contexts - 1;
    const double faster = demo_faster(d, c, last), smaller = f16->model_bytes / c->model_bytes;
    char tokens[48], error[48], number[48], speed[80], from[48], becomes[48];
    plot_number(tokens, d->context[last], "tokens"), plot_number(error, c->output.mean, "%");
    plot_number(from, f16->model_bytes, "B"), plot_number(becomes, c->model_bytes, "B");
    if (faster > 0.95 && faster < 1.05)
        snprintf(speed, sizeof speed, "is as fast as f16 at %s tokens", tokens);
    else
        snprintf(speed, sizeof speed, "is %.1f times as %s at %s tokens", faster < 1 ? 1 / faster : faster,
                 faster < 1 ? "slow" : "fast", tokens);
    html_verdict(to, "The default, %s, takes %.1f times less memory than f16, %s, and changes the output of attention by %s%s.",
                 c->name, smaller, speed, error,
                 demo_was_busy(d) ? "; but the machine was busy, and its times may mislead" : "");
    html_numbers_begin(to);
    snprintf(number, sizeof number, "%.2f ×", smaller);
    html_number(to, number, "smaller: the cache of an 8B-class model, %s, becomes %s", from, becomes);
    snprintf(number, sizeof number, "%.2f ×", faster);
    html_number(to, number, "as fast: attention of a layer for one token, after %s tokens", tokens);
    html_number(to, error, "away from exact attention, the mean over recorded layers");
    html_numbers_end(to);
}

void demo_html(FILE *to, const struct demo *d)
{
    verdict(to, d);
    html_text(to, "aura %s on %s, %u thread%s, %s.", aura_version(), cpu_name(), d->threads, d->threads == 1 ? "" : "s",
              isa_name(aura_ctx_isas(d->ctx)));
    html_text(to, "Recording: %s, %zu layer%s, %u tokens, %u query heads, %u KV heads, D %u.", d->file, d->layers,
              d->layers == 1 ? "" : "s",
              d->recorded[0].tokens, d->recorded[0].q_heads, d->recorded[0].kv_heads, d->recorded[0].k_dim);
    section_memory(to, d); /* first what a cache saves, then what it costs */
    section_time(to, d);
    section_quality(to, d);
    if (d->llm)
        demo_llm_page(to, d->llm);
    section_head(to, d);
    section_bytes(to, d);
    section_table(to, d);
}
