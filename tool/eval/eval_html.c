/* The results of `aura eval` as a page: divergence against bits for caches of aura and of llama.cpp, and the table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"
#include "../parts/html.h"
#include "../parts/plot.h"
#include "../parts/replacement.h"

enum { PLAIN_BITS = 16 }; /* caches of at least 16 bits are lines, not points: as points they would squeeze the others together */

static int by_bits(const void *a, const void *b)
{
    double x = ((const struct plot_point *)a)->x, y = ((const struct plot_point *)b)->x;
    return (x > y) - (x < y);
}

static struct estimate pick(const struct quality_cache *c, int tail)
{
    return tail ? c->result.kld_p99 : c->result.kld_mean;
}

/* The points of aura's caches or of llama.cpp's, in order of bits; points[count] is room enough. Returns how many. */
static size_t gather(const struct eval_report *r, int peers, int tail, struct plot_point *points)
{
    size_t n = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        struct estimate e = pick(c, tail);
        if ((c->peer != NULL) != peers || c->bits >= PLAIN_BITS)
            continue;
        points[n] = (struct plot_point){.x = c->bits, .y = e.value, .label = c->name};
        if (e.error < e.value) /* a logarithmic axis has no 0, so an error bar must end above it */
            points[n].low = e.value - e.error, points[n].high = e.value + e.error;
        n++;
    }
    qsort(points, n, sizeof *points, by_bits);
    return n;
}

static void print_chart(FILE *to, const struct eval_report *r, int tail)
{
    struct plot_point *points = calloc(2 * r->count, sizeof *points);
    struct plot_rule *rules = calloc(r->count, sizeof *rules);
    size_t ours = 0, theirs = 0, levels = 0;
    if (!points || !rules) {
        html_lack();
    } else {
        ours = gather(r, 0, tail, points), theirs = gather(r, 1, tail, points + r->count);
        for (size_t i = 0; i < r->count; i++)
            if (r->caches[i].bits >= PLAIN_BITS && pick(&r->caches[i], tail).value > 0)
                rules[levels++] = (struct plot_rule){pick(&r->caches[i], tail).value, r->caches[i].name};
    }
    struct plot_series series[2] = {{"aura", points, ours, 0, 0},
                                    {"llama.cpp, stored values", points ? points + r->count : NULL, theirs, 1, 0}};
    struct plot plot = {.title = tail ? "99 % of positions diverge less than this" : "Mean KL divergence from the exact cache",
                        .x = {.title = "bits per value", .unit = ""},
                        .y = {.title = tail ? "99 % of KLD, nats" : "mean KLD, nats", .unit = "", .log = 1},
                        .series = series, .n_series = 2, .rules = rules, .n_rules = levels};
    plot_chart(to, &plot);
    free(points), free(rules);
}

static void print_table(FILE *to, const struct eval_report *r)
{
    static const char *const head[] = {"cache", "bits", "mean KLD", "+-", "median", "99 %", "99.9 %", "max",
                                       "same top", "perplexity", "of exact"};
    html_table_begin(to, "All of it");
    html_row_begin(to);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        html_cell(to, "%s", head[i]);
    html_row_end(to);
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        const struct divergence_summary *d = &c->result;
        html_row_begin(to);
        html_cell(to, "%s%s", c->name, c->peer ? "*" : "");
        html_cell(to, "%.2f", c->bits);
        html_cell(to, "%.3g", d->kld_mean.value);
        html_cell(to, "%.2g", d->kld_mean.error);
        html_cell(to, "%.3g", d->kld_median.value);
        html_cell(to, "%.3g", d->kld_p99.value);
        html_cell(to, "%.3g", d->kld_p999.value);
        html_cell(to, "%.3g", d->kld_max);
        html_cell(to, "%.2f %%", 100 * d->same_top.value);
        html_cell(to, "%.4f", d->ppl.value);
        html_cell(to, "%.4f", d->ppl_ratio.value);
        html_row_end(to);
    }
    html_table_end(to);
}

void eval_print_charts(FILE *to, const struct eval_report *r)
{
    print_chart(to, r, 0);
    print_chart(to, r, 1);
    print_table(to, r);
}

static int print_page(FILE *to, const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    const struct divergence_summary *any = &r->caches[0].result;
    uint32_t open = quality_open_tokens(o->ctx, o->rollback);
    html_begin(to, "What the cache does to a model",
               "Next-token distributions with compressed caches, beside those with an exact one.");
    eval_print_charts(to, r);
    html_section(to, "What was measured");
    html_text(to, "%s on %s: %u chunks of %u tokens, of which the second half is compared: %zu positions. Perplexity with "
              "the exact cache, f32: %.4f.", r->model, r->text, quality_chunks(o), o->ctx, any->positions,
              any->ppl.value / any->ppl_ratio.value);
    html_text(to, "Every query attends to keys and values as a full cache returns them: codes, but for the first 4 tokens of "
              "a chunk, which stay in f16%s. Profile: %s%s.", open ? ", and the open ones at its end" : "",
              r->profile ? r->profile : "none", o->learn ? "; caches of ours learn" : "");
    html_text(to, "Caches with * are llama.cpp's, as stored values behind its rotation. What its attention rounds besides, "
              "queries to 8 bits and sums to f16, is not in them. Errors are standard errors as if positions were independent.");
    return html_end(to);
}

int eval_write_html(const struct eval_report *r, const char *path, char error[LLM_ERROR_BYTES])
{
    struct replacement page;
    const int bad = replacement_begin(&page, path) || replacement_end(&page, print_page(page.to, r));
    if (bad)
        snprintf(error, LLM_ERROR_BYTES, "%.150s: cannot be written: %s", path, strerror(errno));
    return bad;
}
