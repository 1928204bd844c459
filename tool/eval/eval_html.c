/* The results of `aura eval` as a page: divergence against bits for caches of aura and of llama.cpp, and the table. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "eval.h"
#include "../parts/html.h"
#include "../parts/plot.h"
#include "../parts/replacement.h"

enum { PLAIN_BITS = 16 }; /* caches of at least 16 bits stand below the chart: as points they would squeeze the others together */

enum { AURA, LLAMA_CPP, CODEC, FAMILIES };

static int family_of(const struct quality_cache *c)
{
    return c->codec ? CODEC : c->peer ? LLAMA_CPP : AURA;
}

static struct estimate pick(const struct quality_cache *c, int tail)
{
    return tail ? c->result.kld_p99 : c->result.kld_mean;
}

/* The points of a family; points[count] is room enough. Returns how many. */
static size_t gather(const struct eval_report *r, int family, int tail, struct plot_point *points)
{
    size_t n = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        struct estimate e = pick(c, tail);
        if (family_of(c) != family || c->bits >= PLAIN_BITS)
            continue;
        points[n] = (struct plot_point){.x = c->bits, .y = e.value, .label = c->name};
        if (e.error < e.value) /* a logarithmic axis has no 0, so an error bar must end above it */
            points[n].low = e.value - e.error, points[n].high = e.value + e.error;
        n++;
    }
    return n;
}

/* Caches that are not in the chart, and their numbers; NULL: all of them are. */
static const char *beyond(const struct eval_report *r, int tail, char note[400])
{
    size_t used = 0;
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        char number[48];
        if (c->bits < PLAIN_BITS || used >= 300)
            continue;
        plot_number(number, pick(c, tail).value, "");
        used += (size_t)snprintf(note + used, 400 - used, "%s%s: %s", used ? ", " : "Not in the chart: ", c->name, number);
    }
    return used ? note : NULL;
}

static void print_chart(FILE *to, const struct eval_report *r, int tail)
{
    static const char *const names[FAMILIES] = {"aura", "llama.cpp and papers, stored values", "codecs of one’s own"};
    struct plot_point *points = calloc(FAMILIES * r->count, sizeof *points);
    struct plot_series series[FAMILIES];
    char note[400];
    if (!points)
        html_lack();
    for (int i = 0; i < FAMILIES; i++) {
        struct plot_point *at = points ? points + (size_t)i * r->count : NULL;
        series[i] = (struct plot_series){names[i], at, points ? gather(r, i, tail, at) : 0, (unsigned)i, 0};
    }
    struct plot plot = {.title = tail ? "99 % of positions diverge less than this" : "Mean KL divergence from the exact cache",
                        .x = {.title = "bits per value", .unit = ""},
                        .y = {.title = tail ? "99 % of KLD, nats" : "mean KLD, nats", .unit = "", .log = 1},
                        .series = series, .n_series = FAMILIES, .note = beyond(r, tail, note)};
    plot_chart(to, &plot);
    free(points);
}

static void print_row(FILE *to, const struct quality_cache *c)
{
    const struct divergence_summary *d = &c->result;
    html_row_begin(to);
    html_cell(to, "%s%s", c->name, eval_family_mark(c));
    html_cell(to, "%.2f", c->bits);
    html_cell(to, "%.2e ± %.1e", d->kld_mean.value, d->kld_mean.error);
    html_cell(to, "%.2e", d->kld_median.value);
    html_cell(to, "%.2e", d->kld_p99.value);
    html_cell(to, "%.2e", d->kld_p999.value);
    html_cell(to, "%.2e", d->kld_max);
    html_cell(to, "%.2f ± %.2f", 100 * d->same_top.value, 100 * d->same_top.error);
    html_cell(to, "%.2f", 100 * d->accepted.value);
    html_cell(to, "%.4f", d->ppl.value);
    html_cell(to, "%.4f ± %.4f", d->ppl_ratio.value, d->ppl_ratio.error);
    html_row_end(to);
}

static void print_table(FILE *to, const struct eval_report *r)
{
    static const char *const head[] = {"cache", "bits", "mean KLD", "median", "99 %", "99.9 %", "max", "same top, %", "taken, %",
                                       "perplexity", "of exact"};
    html_table_begin(to, "All of it, sorted by bits");
    html_row_begin(to);
    for (size_t i = 0; i < sizeof head / sizeof *head; i++)
        html_cell(to, "%s", head[i]);
    html_row_end(to);
    for (size_t i = 0; i < r->count; i++)
        print_row(to, &r->caches[i]);
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
    uint32_t open = (uint32_t)open_tokens(o->ctx, o->rollback);
    html_begin(to, "What the cache does to a model",
               "Next-token distributions with compressed caches, beside those with an exact one.");
    eval_print_charts(to, r);
    html_section(to, "What was measured");
    html_text(to, "%s on %s: %u chunks of %u tokens, of which %s compared: %zu positions. Perplexity with "
              "the exact cache, f32: %.4f.", r->model, r->text, quality_chunks(o), o->ctx,
              o->by_depth ? "the last 128 positions before each depth are" : "the second half is", any->positions,
              any->ppl.value / any->ppl_ratio.value);
    html_text(to, "Every query attends to keys and values as a full cache returns them: codes, but for the first 4 tokens of "
              "a chunk, which stay in f16%s. Profile: %s%s.",
              o->decode ? ", and the newest ones, which are open: tokens came one by one, after a prompt whose tokens saw each "
                          "other as they came" :
              open ? ", and the open ones at its end" : "",
              r->profile ? r->profile : "none", o->learn ? "; caches of ours learn" : "");
    html_text(to, "Taken: how many of the tokens that a model with this cache proposes the exact one would take.");
    html_text(to, "Caches with * are llama.cpp's and those of papers, as stored values. What attention rounds besides, in "
              "llama.cpp queries to 8 bits and sums to f16, is not in them. ±: standard errors, as if positions were independent.");
    for (size_t i = 0; i < r->count; i++)
        if (r->caches[i].codec)
            html_text(to, "%s, with +, is a codec: %s.", r->caches[i].name, r->caches[i].codec);
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
