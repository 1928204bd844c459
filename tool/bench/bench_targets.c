/* aura bench --targets: the speeds that the cache should reach on a machine with AVX-512 (D 128, four query heads to a KV head),
 * and whether it reaches them. "Hot" is 4 096 tokens on one thread. Two things that are compared are measured in turns. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "../parts/terminal.h"

enum { HOT = 4096, LONG = 65536, LONGER = 131072 };
static const double budget = 2.5; /* seconds for a comparison */

struct targets {
    const struct bench *b;
    aura_ctx *single; /* one thread */
    int shown, missed, failed;
};

enum sense { AT_LEAST, AT_MOST };

static void report(struct targets *t, const char *what, double value, enum sense sense, double limit, const char *unit)
{
    int met = sense == AT_LEAST ? value >= limit : value <= limit;
    print_progress(NULL);
    if (t->b->json)
        printf("%s\n  {\"what\": \"%s\", \"value\": %.4f, \"unit\": \"%s\", \"sense\": \"%s\", \"target\": %g, \"met\": %s}",
               t->shown ? "," : "", what, value, unit, sense == AT_LEAST ? "at least" : "at most", limit,
               met ? "true" : "false");
    else
        printf("%-58s %12.4g  %s %g %s%s\n", what, value, sense == AT_LEAST ? ">=" : "<=", limit, unit,
               met ? "" : "   NOT MET");
    t->shown++, t->missed += !met;
    fflush(stdout);
}

static struct shape shape_of(const char *format, uint32_t dim, uint32_t q_heads, uint32_t tokens)
{
    struct shape s = {{AURA_KIND_F16, AURA_KIND_F16}, dim, q_heads, 8, tokens, 1};
    aura_format_parse(format, &s.format);
    return s;
}

/* ---- beside a plain read, all threads -------------------------------------------------------------------------------- */

static void against_read(struct targets *t, const char *format, uint32_t q_heads, uint32_t tokens, double limit, int compare)
{
    struct shape shape = shape_of(format, 128, q_heads, tokens), shape16 = shape_of("kf16vf16", 128, q_heads, tokens);
    struct filled filled = {0}, f16 = {0};
    struct ask ask = {0}, ask16 = {0};
    struct row row;
    char what[80], text[96];
    snprintf(what, sizeof what, "%s, %u tokens, GQA %u: part of the read bandwidth", format, tokens, q_heads / 8);
    print_progress(what);
    int bad = filled_open(&filled, t->b->ctx, &shape) || ask_open(&ask, &filled, 1, 0) ||
              (compare && (filled_open(&f16, t->b->ctx, &shape16) || ask_open(&ask16, &f16, 1, 0))) ||
              measure_row(&row, t->b->crew, &ask, compare ? &ask16 : NULL, 2 * budget);
    if (!bad)
        report(t, what, row.read_seconds / row.seconds, AT_LEAST, limit, "");
    if (!bad && compare) {
        snprintf(text, sizeof text, "%s, %u tokens: times as fast as kf16vf16", format, tokens);
        report(t, text, row.f16_seconds / row.seconds, AT_LEAST, 3, "x");
        snprintf(text, sizeof text, "kf16vf16, %u tokens: part of the read bandwidth", tokens);
        report(t, text, row.f16_read_seconds / row.f16_seconds, AT_LEAST, 0.85, "");
    }
    ask_close(&ask), ask_close(&ask16);
    filled_close(&filled), filled_close(&f16);
    t->failed |= bad;
}

static void four_queries(struct targets *t)
{
    struct shape shape = shape_of("k4v4", 128, 32, LONG);
    struct filled filled = {0};
    struct ask one = {0}, four = {0};
    struct contender c[2] = {{ask_run, &one, 0, 0}, {ask_run, &four, 0, 0}};
    print_progress("four queries");
    int bad = filled_open(&filled, t->b->ctx, &shape) || ask_open(&one, &filled, 1, 0) || ask_open(&four, &filled, 4, 0);
    if (!bad) {
        take_turns(c, 2, budget);
        report(t, "k4v4, 65536 tokens: time of 4 queries over that of one", c[1].median / c[0].median, AT_MOST, 2.2, "x");
    }
    ask_close(&one), ask_close(&four);
    filled_close(&filled);
    t->failed |= bad;
}

/* ---- hot, one thread ------------------------------------------------------------------------------------------------- */

struct hot {
    double seconds, bytes;
};

/* Two configurations in turns. 0 when good. */
static int hot_pair(aura_ctx *ctx_a, const struct shape *a, uint32_t planes_a, aura_ctx *ctx_b, const struct shape *b,
                    uint32_t planes_b, struct hot out[2])
{
    struct filled filled[2];
    struct ask ask[2];
    struct contender c[2] = {{ask_run, &ask[0], 0, 0}, {ask_run, &ask[1], 0, 0}};
    memset(filled, 0, sizeof filled);
    memset(ask, 0, sizeof ask);
    int bad = filled_open(&filled[0], ctx_a, a) || ask_open(&ask[0], &filled[0], 1, planes_a) ||
              filled_open(&filled[1], ctx_b, b) || ask_open(&ask[1], &filled[1], 1, planes_b);
    if (!bad)
        take_turns(c, 2, budget);
    for (int i = 0; i < 2; i++) {
        out[i].seconds = c[i].median, out[i].bytes = filled[i].bytes;
        ask_close(&ask[i]), filled_close(&filled[i]);
    }
    return bad;
}

/* Times a configuration and k4v4, D 128, GQA 4, in turns. */
static int beside_k4v4(struct targets *t, const struct shape *shape, uint32_t planes, struct hot out[2])
{
    struct shape base = shape_of("k4v4", 128, 32, HOT);
    int bad = hot_pair(t->single, &base, 0, t->single, shape, planes, out);
    t->failed |= bad;
    return bad;
}

static void hot_targets(struct targets *t)
{
    static const char *const formats[] = {"k6v6", "k5v5", "k3v3", "k4v2"};
    struct shape shape = shape_of("k4v4", 128, 32, HOT);
    struct hot hot[2];
    char what[80];
    print_progress("hot");
    if (!beside_k4v4(t, &shape, 2, hot)) {
        report(t, "k4v4, hot: per (query head x token)", hot[0].seconds / (32.0 * HOT) * 1e9, AT_MOST, 2.3, "ns");
        report(t, "k4v4, hot: time with both planes over that with one", hot[1].seconds / hot[0].seconds, AT_MOST, 1.7, "x");
    }
    for (int i = 0; i < 4; i++) {
        shape = shape_of(formats[i], 128, 32, HOT);
        snprintf(what, sizeof what, "%s, hot: time over that of k4v4", formats[i]);
        if (!beside_k4v4(t, &shape, 0, hot))
            report(t, what, hot[1].seconds / hot[0].seconds, AT_MOST, 1.6, "x");
    }
    for (uint32_t dim = 64; dim <= 256; dim *= 4) {
        shape = shape_of("k4v4", dim, 32, HOT);
        snprintf(what, sizeof what, "k4v4, D %u, hot: time per byte over that of D 128", dim);
        if (!beside_k4v4(t, &shape, 0, hot))
            report(t, what, hot[1].seconds / hot[1].bytes / (hot[0].seconds / hot[0].bytes), AT_MOST, 1.3, "x");
    }
    for (uint32_t gqa = 3; gqa <= 8; gqa += 5) {
        shape = shape_of("k4v4", 128, 8 * gqa, HOT);
        snprintf(what, sizeof what, "k4v4, GQA %u, hot: time over that of GQA 4", gqa);
        if (!beside_k4v4(t, &shape, 0, hot))
            report(t, what, hot[1].seconds / hot[0].seconds, AT_MOST, gqa == 3 ? 0.85 : 2.1, "x");
    }
}

/* A machine without AVX-512 has nothing to compare. */
static void avx2_target(struct targets *t)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    struct shape shape = shape_of("k4v4", 128, 32, HOT);
    struct hot hot[2];
    aura_ctx *avx2 = NULL;
    options.isa_mask = AURA_ISA_REF | AURA_ISA_AVX2;
    if (!(aura_ctx_isas(t->single) & AURA_ISA_AVX512))
        return;
    if (aura_ctx_create(&options, &avx2) || hot_pair(t->single, &shape, 0, avx2, &shape, 0, hot))
        t->failed = 1;
    else
        report(t, "k4v4, hot: time with AVX2 over that with AVX-512", hot[1].seconds / hot[0].seconds, AT_MOST, 2.2, "x");
    aura_ctx_destroy(avx2);
}

/* ---- the rest -------------------------------------------------------------------------------------------------------- */

static void append_target(struct targets *t)
{
    struct shape shape = shape_of("k4v4", 128, 32, HOT);
    double spread, speed = append_speed(t->b->isa_mask, &shape, budget, &spread);
    if (speed > 0)
        report(t, "append f16 to k4v4, one thread", speed, AT_LEAST, 250000, "vectors/s");
    t->failed |= speed <= 0;
}

static void prefill_target(struct targets *t)
{
    struct shape shape = shape_of("k4v4", 128, 32, 8192);
    struct filled filled = {0};
    struct ask ask = {0};
    struct peak peak = {t->b->crew, aura_ctx_isas(t->b->ctx)};
    struct contender c[2] = {{ask_run, &ask, 0, 0}, {peak_run, &peak, 0, 0}};
    char what[96];
    snprintf(what, sizeof what, "k4v4, 512 queries of 8192: part of %s alone", peak_name(peak.isas));
    int bad = filled_open(&filled, t->b->ctx, &shape) || ask_open(&ask, &filled, 512, 0);
    if (!bad) {
        take_turns(c, 2, 4 * budget);
        double speed = byte_products(&shape, 512, 0) / c[0].median, best = (double)PEAK_PRODUCTS * t->b->threads / c[1].median;
        report(t, what, speed / best, AT_LEAST, 0.4, "");
    }
    ask_close(&ask);
    filled_close(&filled);
    t->failed |= bad;
}

int bench_targets(const struct bench *b)
{
    struct targets t = {b, NULL, 0, 0, 0};
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.isa_mask = b->isa_mask;
    if (aura_ctx_create(&options, &t.single))
        return fprintf(stderr, "aura bench: %s\n", aura_last_error()), 1;
    print_bench_head(b, "targets");
    if (!b->json)
        printf("%-58s %12s  target\n", "", "measured");
    against_read(&t, "k4v4", 32, LONG, 0.85, 1);
    against_read(&t, "k4v4", 32, LONGER, 0.85, 0);
    against_read(&t, "k8v8", 32, LONG, 0.85, 0);
    against_read(&t, "k3v3", 32, LONG, 0.6, 0);
    against_read(&t, "k2v2", 32, LONG, 0.6, 0);
    against_read(&t, "k4v4", 8, LONG, 0.85, 0);
    four_queries(&t);
    hot_targets(&t);
    avx2_target(&t);
    append_target(&t);
    prefill_target(&t);
    print_progress(NULL);
    if (b->json)
        printf("\n], \"missed\": %d}\n", t.missed);
    else
        printf("%d of %d not met\n", t.missed, t.shown);
    aura_ctx_destroy(t.single);
    return t.failed || t.missed ? 1 : 0;
}
