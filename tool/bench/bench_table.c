/* aura bench without arguments: the formats, dims and contexts that people have, in one table. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "../parts/terminal.h"

static const char *const formats[] = {"k8v8", "k6v6", "k5v5", "k4v4", "k4v2", "k3v3", "k2v2", "kf16vf16"};
static const uint32_t dims[] = {64, 128, 256};
static const uint32_t contexts[] = {131072, 65536, 4096}; /* descending: a cache is filled once and then shortened */
enum {
    FORMATS = sizeof formats / sizeof *formats,
    DIMS = sizeof dims / sizeof *dims,
    CONTEXTS = sizeof contexts / sizeof *contexts
};

/* Seconds for a row. The table has 72 rows and fills 24 caches, so it takes minutes. */
static const double row_budget = 0.7;

static void print_row(const char *format, const struct row *r)
{
    double n = (double)r->shape.q_heads * r->shape.tokens, f16 = r->f16_seconds > 0 ? r->f16_seconds : r->seconds;
    double f16_ratio = (r->f16_seconds > 0 ? r->f16_read_seconds : r->read_seconds) / f16;
    printf("%-9s %4u %7u %9.3f %8.2f %8.2f %7.1f %% %9.3f %7.1f %% %7.2fx %11.0f %7.1f %%\n", format, r->shape.dim,
           r->shape.tokens, r->seconds / n * 1e9, r->bytes / r->seconds / 1e9, r->bytes / r->read_seconds / 1e9,
           r->read_seconds / r->seconds * 100, f16 / n * 1e9, f16_ratio * 100, f16 / r->seconds, r->append, r->spread * 100);
}

/* All contexts of one format; f16[i] is the f16 cache of contexts[i]. */
static int bench_format(struct bench *b, int number, uint32_t dim, struct ask *f16)
{
    struct filled filled = {0};
    struct ask ask = {0};
    struct shape shape = {{AURA_KIND_F16, AURA_KIND_F16}, dim, 32, 8, contexts[0], 1};
    struct row row;
    double spread, append = 0;
    char text[80];
    const char *format = formats[number % FORMATS];
    int bad = 0, is_f16 = !strcmp(format, "kf16vf16");
    snprintf(text, sizeof text, "%d of %d: %s, D %u", number + 1, DIMS * FORMATS, format, dim);
    print_progress(text);
    bad = aura_format_parse(format, &shape.format) || (append = append_speed(b->isa_mask, &shape, 0, row_budget, &spread)) <= 0 ||
          (!is_f16 && (filled_open(&filled, b->ctx, &shape) || ask_open(&ask, &filled, 1, 0)));
    for (int i = 0; i < CONTEXTS && !bad; i++) {
        bad = (!is_f16 && filled_shorten(&filled, contexts[i])) ||
              measure_row(&row, b->crew, is_f16 ? &f16[i] : &ask, is_f16 ? NULL : &f16[i], row_budget);
        print_progress(NULL);
        row.append = append;
        if (!bad)
            results_add(b, &row);
        if (!bad && b->table)
            table_row(b->table, bench_row_fields, &row);
        else if (!bad)
            print_row(format, &row);
        fflush(stdout);
        print_progress(i + 1 < CONTEXTS ? text : NULL);
    }
    ask_close(&ask);
    filled_close(&filled);
    if (!bad && b->html) /* what is measured by now stays, however this ends */
        bad = write_bench_html(b->self, b, b->html);
    return bad;
}

int bench_table(struct bench *b)
{
    struct filled f16[CONTEXTS] = {{{{0, 0}, 0, 0, 0, 0, 0}, NULL, NULL, 0}};
    struct ask ask[CONTEXTS];
    int bad = 0, number = 0;
    memset(ask, 0, sizeof ask);
    print_bench_head(b, "table");
    if (!b->table)
        printf("32 query heads, 8 KV heads, one query; ns per (query head x token); read: GB/s of a plain read of as many "
               "bytes; append: vectors, one thread\n\n"
               "%-9s %4s %7s %9s %8s %8s %9s %9s %9s %8s %11s %9s\n", "cache", "D", "tokens", "ns", "GB/s", "read", "ratio",
               "f16: ns", "ratio", "faster", "append/s", "spread");
    for (int d = 0; d < DIMS && !bad; d++) {
        for (int i = 0; i < CONTEXTS && !bad; i++) {
            struct shape shape = {{AURA_KIND_F16, AURA_KIND_F16}, dims[d], 32, 8, contexts[i], 1};
            bad = filled_open(&f16[i], b->ctx, &shape) || ask_open(&ask[i], &f16[i], 1, 0);
        }
        for (int i = 0; i < FORMATS && !bad; i++)
            bad = bench_format(b, number++, dims[d], ask);
        for (int i = 0; i < CONTEXTS; i++)
            ask_close(&ask[i]), filled_close(&f16[i]);
    }
    if (b->table)
        table_end(b->table, NULL, NULL);
    return bad ? 1 : 0;
}
