/* aura bench --targets: the speeds that the cache should reach with the machine's instructions (D 128, four query heads to a KV
 * head), and whether it reaches them. "Hot" is 4 096 tokens on one thread. Two things that are compared are measured in turns. */
#include <stdio.h>
#include <string.h>

#include "bench.h"
#include "../parts/terminal.h"

enum { HOT = 4096, LONG = 65536, LONGER = 131072 };
static const double budget = 2.5; /* seconds for a comparison */

enum target {
    READ_K4, READ_K4_LONGER, READ_K8, READ_K3, READ_K2, READ_ONE_HEAD, READ_F16, K4_OVER_F16, K8_OVER_F16, QUERIES_4, QUERIES_16,
    HOT_K4, BOTH_PLANES, HOT_K6, HOT_K5, HOT_K3, HOT_K4V2, HOT_K2, DIM_64, DIM_256, GQA_3, GQA_8, AVX2_OVER_AVX512, APPEND,
    APPEND_8, APPEND_8_PLAIN, DECODE_8, PAGES_IN, PAGES_OUT, PREFILL, PREFILL_ONE,
    SCALING, N_ROWS
};

/* What to reach with an instruction set, best first; 0: nothing, the row is for information. Without VNNI a product takes three
 * instructions instead of one, and arithmetic binds instead of the memory. ARM has been counted, not timed. */
static const struct set {
    uint32_t isa;
    const char *name;
    double target[N_ROWS];
} sets[] = {
    {AURA_ISA_AMX,
     "AMX",
     {[READ_K4] = 0.85, [READ_K4_LONGER] = 0.85, [READ_K8] = 0.85, [READ_K3] = 0.6, [READ_ONE_HEAD] = 0.85, [READ_F16] = 0.85,
      [K4_OVER_F16] = 3, [K8_OVER_F16] = 1.6, [QUERIES_4] = 1.3, [QUERIES_16] = 3.5, [HOT_K4] = 2.3, [BOTH_PLANES] = 1.7,
      [HOT_K6] = 1.45, [HOT_K5] = 1.45, [HOT_K3] = 1.1, [HOT_K4V2] = 1, [HOT_K2] = 0.9, [DIM_64] = 1.3, [DIM_256] = 1.3,
      [GQA_3] = 0.85, [GQA_8] = 1.5, [AVX2_OVER_AVX512] = 2.2, [APPEND] = 2e6, [APPEND_8] = 4e6, [APPEND_8_PLAIN] = 4e6,
      [DECODE_8] = 4, [PAGES_IN] = 1, [PAGES_OUT] = 4, [PREFILL] = 0.15, [PREFILL_ONE] = 0.15, [SCALING] = 0.85}},
    {AURA_ISA_AVX512VNNI,
     "AVX-512 VNNI",
     {[READ_K4] = 0.85, [READ_K4_LONGER] = 0.85, [READ_K8] = 0.85, [READ_K3] = 0.6, [READ_ONE_HEAD] = 0.85, [READ_F16] = 0.85,
      [K4_OVER_F16] = 3, [K8_OVER_F16] = 1.6, [QUERIES_4] = 2.9, [QUERIES_16] = 11, [HOT_K4] = 2.3, [BOTH_PLANES] = 1.7,
      [HOT_K6] = 1.45, [HOT_K5] = 1.45, [HOT_K3] = 1.1, [HOT_K4V2] = 1, [HOT_K2] = 0.9, [DIM_64] = 1.3, [DIM_256] = 1.3,
      [GQA_3] = 0.85, [GQA_8] = 2.1, [AVX2_OVER_AVX512] = 2.2, [APPEND] = 2e6, [APPEND_8] = 4e6, [APPEND_8_PLAIN] = 4e6,
      [DECODE_8] = 4, [PAGES_IN] = 1, [PAGES_OUT] = 4, [PREFILL] = 0.5, [PREFILL_ONE] = 0.5, [SCALING] = 0.85}},
    {AURA_ISA_AVXVNNI,
     "AVX-VNNI",
     {[K4_OVER_F16] = 3, [K8_OVER_F16] = 1.6, [QUERIES_4] = 3.5, [QUERIES_16] = 14, [HOT_K4] = 3.3, [BOTH_PLANES] = 1.7,
      [HOT_K6] = 1.6, [HOT_K5] = 1.45, [HOT_K3] = 1.1, [HOT_K4V2] = 1, [HOT_K2] = 1, [DIM_64] = 1.3, [DIM_256] = 1.3,
      [GQA_3] = 0.85, [GQA_8] = 2.1, [APPEND] = 2e6, [APPEND_8] = 4e6, [APPEND_8_PLAIN] = 4e6,
      [DECODE_8] = 4, [PAGES_IN] = 1, [PAGES_OUT] = 4, [PREFILL] = 0.5, [PREFILL_ONE] = 0.5, [SCALING] = 0.85}},
    {AURA_ISA_AVX2,
     "AVX2",
     {[K4_OVER_F16] = 3, [K8_OVER_F16] = 1.6, [QUERIES_4] = 3.6, [QUERIES_16] = 14, [HOT_K4] = 4.2, [BOTH_PLANES] = 1.7,
      [HOT_K6] = 1.45, [HOT_K5] = 1.25, [HOT_K3] = 1.1, [HOT_K4V2] = 1, [HOT_K2] = 0.9, [DIM_64] = 1.3, [DIM_256] = 1.3,
      [GQA_3] = 0.85, [GQA_8] = 2.1, [AVX2_OVER_AVX512] = 2.2, [APPEND] = 2e6, [APPEND_8] = 4e6, [APPEND_8_PLAIN] = 4e6,
      [DECODE_8] = 4, [PAGES_IN] = 1, [PAGES_OUT] = 4, [PREFILL] = 0.5, [PREFILL_ONE] = 0.5, [SCALING] = 0.85}},
    {0, "these instructions", {0}},
};

struct targets {
    struct bench *b;
    const struct set *set;
    aura_ctx *single; /* one thread */
    int shown, missed, failed;
};

enum sense { AT_LEAST, AT_MOST };

/* A line of the report. */
struct target_row {
    const char *what, *unit;
    double value, limit; /* limit 0: none */
    enum sense sense;
    int met;
};

static void target_fields(struct table *t, const void *row)
{
    const struct target_row *r = row;
    table_text(t, "what", r->what);
    table_number(t, "value", "%.4f", r->value);
    table_text(t, "unit", r->unit);
    table_text(t, "sense", r->sense == AT_LEAST ? "at least" : "at most");
    if (r->limit != 0)
        table_number(t, "target", "%g", r->limit);
    else
        table_text(t, "target", NULL);
    table_number(t, "met", "%s", r->met ? "true" : "false");
}

static void missed_field(struct table *t, const void *targets)
{
    table_number(t, "missed", "%d", ((const struct targets *)targets)->missed);
}

static void report(struct targets *t, enum target row, const char *what, double value, enum sense sense, const char *unit)
{
    const double limit = t->set->target[row];
    const int met = limit == 0 || (sense == AT_LEAST ? value >= limit : value <= limit);
    const struct target_row r = {what, unit, value, limit, sense, met};
    print_progress(NULL);
    if (t->b->table)
        table_row(t->b->table, target_fields, &r);
    else if (limit == 0)
        printf("%-58s %12.4g  %s\n", what, value, unit);
    else
        printf("%-58s %12.4g  %s %g %s%s\n", what, value, sense == AT_LEAST ? ">=" : "<=", limit, unit, met ? "" : "   NOT MET");
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

/* over_f16: the row that compares with f16, or N_ROWS. */
static void against_read(struct targets *t, enum target row, const char *format, uint32_t q_heads, uint32_t tokens,
                         enum target over_f16)
{
    struct shape shape = shape_of(format, 128, q_heads, tokens), shape16 = shape_of("kf16vf16", 128, q_heads, tokens);
    struct filled filled = {0}, f16 = {0};
    struct ask ask = {0}, ask16 = {0};
    struct row got;
    const int compare = over_f16 != N_ROWS;
    char what[80], text[96];
    snprintf(what, sizeof what, "%s, %u tokens, GQA %u: part of the read bandwidth", format, tokens, q_heads / 8);
    print_progress(what);
    int bad = filled_open(&filled, t->b->ctx, &shape) || ask_open(&ask, &filled, 1, 0) ||
              (compare && (filled_open(&f16, t->b->ctx, &shape16) || ask_open(&ask16, &f16, 1, 0))) ||
              measure_row(&got, t->b->crew, &ask, compare ? &ask16 : NULL, 2 * budget);
    if (!bad)
        report(t, row, what, got.read_seconds / got.seconds, AT_LEAST, "");
    if (!bad && compare) {
        snprintf(text, sizeof text, "%s, %u tokens: times as fast as kf16vf16", format, tokens);
        report(t, over_f16, text, got.f16_seconds / got.seconds, AT_LEAST, "x");
    }
    if (!bad && over_f16 == K4_OVER_F16) {
        snprintf(text, sizeof text, "kf16vf16, %u tokens: part of the read bandwidth", tokens);
        report(t, READ_F16, text, got.f16_read_seconds / got.f16_seconds, AT_LEAST, "");
    }
    ask_close(&ask), ask_close(&ask16);
    filled_close(&filled), filled_close(&f16);
    t->failed |= bad;
}

static void several_queries(struct targets *t, enum target row, uint32_t queries)
{
    struct shape shape = shape_of("k4v4", 128, 32, LONG);
    struct filled filled = {0};
    struct ask one = {0}, many = {0};
    struct contender c[2] = {{ask_run, &one, 0, 0}, {ask_run, &many, 0, 0}};
    char what[80];
    print_progress("several queries");
    int bad = filled_open(&filled, t->b->ctx, &shape) || ask_open(&one, &filled, 1, 0) || ask_open(&many, &filled, queries, 0);
    if (!bad) {
        take_turns(c, 2, budget);
        snprintf(what, sizeof what, "k4v4, %u tokens: time of %u queries over that of one", (unsigned)LONG, queries);
        report(t, row, what, c[1].median / c[0].median, AT_MOST, "x");
    }
    ask_close(&one), ask_close(&many);
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
    static const struct {
        enum target row;
        const char *format;
    } formats[] = {{HOT_K6, "k6v6"}, {HOT_K5, "k5v5"}, {HOT_K3, "k3v3"}, {HOT_K4V2, "k4v2"}, {HOT_K2, "k2v2"}};
    struct shape shape = shape_of("k4v4", 128, 32, HOT);
    struct hot hot[2];
    char what[80];
    print_progress("hot");
    if (!beside_k4v4(t, &shape, 2, hot)) {
        report(t, HOT_K4, "k4v4, hot: per (query head x token)", hot[0].seconds / (32.0 * HOT) * 1e9, AT_MOST, "ns");
        report(t, BOTH_PLANES, "k4v4, hot: time with both planes over that with one", hot[1].seconds / hot[0].seconds, AT_MOST,
               "x");
    }
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++) {
        shape = shape_of(formats[i].format, 128, 32, HOT);
        snprintf(what, sizeof what, "%s, hot: time over that of k4v4", formats[i].format);
        if (!beside_k4v4(t, &shape, 0, hot))
            report(t, formats[i].row, what, hot[1].seconds / hot[0].seconds, AT_MOST, "x");
    }
    for (uint32_t dim = 64; dim <= 256; dim *= 4) {
        shape = shape_of("k4v4", dim, 32, HOT);
        snprintf(what, sizeof what, "k4v4, D %u, hot: time per byte over that of D 128", dim);
        if (!beside_k4v4(t, &shape, 0, hot))
            report(t, dim == 64 ? DIM_64 : DIM_256, what, hot[1].seconds / hot[1].bytes / (hot[0].seconds / hot[0].bytes), AT_MOST,
                   "x");
    }
    for (uint32_t gqa = 3; gqa <= 8; gqa += 5) {
        shape = shape_of("k4v4", 128, 8 * gqa, HOT);
        snprintf(what, sizeof what, "k4v4, GQA %u, hot: time over that of GQA 4", gqa);
        if (!beside_k4v4(t, &shape, 0, hot))
            report(t, gqa == 3 ? GQA_3 : GQA_8, what, hot[1].seconds / hot[0].seconds, AT_MOST, "x");
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
        report(t, AVX2_OVER_AVX512, "k4v4, hot: time with AVX2 over that with AVX-512", hot[1].seconds / hot[0].seconds, AT_MOST,
               "x");
    aura_ctx_destroy(avx2);
}

/* ---- the rest -------------------------------------------------------------------------------------------------------- */

static void codec_targets(struct targets *t)
{
    struct shape shape = shape_of("k4v4", 128, 32, HOT), wide = shape_of("k8v8", 128, 32, HOT);
    struct codec_speed k8;
    double spread, speed = append_speed(t->b->isa_mask, &shape, 0, budget, &spread);
    if (speed > 0)
        report(t, APPEND, "append f16 to k4v4, one thread", speed, AT_LEAST, "vectors/s");
    const int bad = codec_speed(t->b->isa_mask, &wide, budget, &k8);
    if (!bad) {
        report(t, APPEND_8, "append f16 to k8v8, one thread", k8.append, AT_LEAST, "vectors/s");
        report(t, APPEND_8_PLAIN, "append f16 to k8v8 without search, one thread", k8.append_plain, AT_LEAST, "vectors/s");
        report(t, DECODE_8, "decode k8v8 to f16, one thread", k8.decode, AT_LEAST, "GB/s");
        report(t, PAGES_IN, "f16 to pages of k8v8, one thread", k8.pages_in, AT_LEAST, "GB/s");
        report(t, PAGES_OUT, "pages of k8v8 to f16, one thread", k8.pages_out, AT_LEAST, "GB/s");
    }
    t->failed |= speed <= 0 || bad;
}

/* On one thread, or on all of them. */
static void prefill_target(struct targets *t, enum target row, aura_ctx *ctx, uint32_t threads)
{
    struct shape shape = shape_of("k4v4", 128, 32, 8192);
    struct filled filled = {0};
    struct ask ask = {0};
    struct crew *crew = crew_create(threads);
    struct peak peak = {crew, aura_ctx_isas(ctx)};
    struct contender c[2] = {{ask_run, &ask, 0, 0}, {peak_run, &peak, 0, 0}};
    char what[96];
    snprintf(what, sizeof what, "k4v4, 512 queries of 8192, %u thread%s: part of %s alone", threads, threads == 1 ? "" : "s",
             peak_name(peak.isas));
    int bad = !crew || filled_open(&filled, ctx, &shape) || ask_open(&ask, &filled, 512, 0);
    if (!bad) {
        take_turns(c, 2, 2 * budget);
        double speed = byte_products(&shape, 512, 0) / c[0].median, best = (double)PEAK_PRODUCTS * threads / c[1].median;
        report(t, row, what, speed / best, AT_LEAST, "");
    }
    ask_close(&ask);
    filled_close(&filled);
    crew_destroy(crew);
    t->failed |= bad;
}

/* How much faster some threads are than one, as a part of their number. */
static void scaling_target(struct targets *t, uint32_t threads)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *several = NULL;
    struct shape shape = shape_of("k4v4", 128, 32, LONG);
    struct filled filled[2];
    struct ask ask[2];
    struct contender c[2] = {{ask_run, &ask[0], 0, 0}, {ask_run, &ask[1], 0, 0}};
    char what[96];
    memset(filled, 0, sizeof filled);
    memset(ask, 0, sizeof ask);
    print_progress("threads");
    options.isa_mask = t->b->isa_mask, options.threads = threads;
    int bad = aura_ctx_create(&options, &several) || filled_open(&filled[0], t->single, &shape) ||
              ask_open(&ask[0], &filled[0], 512, 0) || filled_open(&filled[1], several, &shape) ||
              ask_open(&ask[1], &filled[1], 512, 0);
    if (!bad) {
        take_turns(c, 2, 4 * budget);
        snprintf(what, sizeof what, "k4v4, 512 queries of %u: speed of %u threads, part of their number", (unsigned)LONG,
                 threads);
        report(t, SCALING, what, c[0].median / c[1].median / threads, AT_LEAST, "");
    }
    for (int i = 0; i < 2; i++)
        ask_close(&ask[i]), filled_close(&filled[i]);
    aura_ctx_destroy(several);
    t->failed |= bad;
}

static void read_targets(struct targets *t)
{
    against_read(t, READ_K4, "k4v4", 32, LONG, K4_OVER_F16);
    against_read(t, READ_K4_LONGER, "k4v4", 32, LONGER, N_ROWS);
    against_read(t, READ_K8, "k8v8", 32, LONG, K8_OVER_F16);
    against_read(t, READ_K3, "k3v3", 32, LONG, N_ROWS);
    against_read(t, READ_K2, "k2v2", 32, LONG, N_ROWS);
    against_read(t, READ_ONE_HEAD, "k4v4", 8, LONG, N_ROWS);
}

static void prefill_targets(struct targets *t)
{
    if (t->b->threads > 1)
        prefill_target(t, PREFILL, t->b->ctx, t->b->threads);
    prefill_target(t, PREFILL_ONE, t->single, 1);
}

static void scaling_targets(struct targets *t)
{
    for (uint32_t threads = 2; threads < t->b->threads; threads *= 2)
        scaling_target(t, threads);
    if (t->b->threads > 1)
        scaling_target(t, t->b->threads);
}

/* Whether a part of the rows was asked for. */
static int wants(const struct bench *b, const char *part)
{
    return !b->part || !strcmp(b->part, part);
}

int bench_targets(struct bench *b)
{
    struct targets t = {b, sets, NULL, 0, 0, 0};
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.isa_mask = b->isa_mask;
    if (b->part && !strcmp(b->part, "threads") && b->threads < 2)
        return fprintf(stderr, "aura bench: --part threads compares one thread with more: there are none\n"), 1;
    if (aura_ctx_create(&options, &t.single))
        return fprintf(stderr, "aura bench: %s\n", aura_last_error()), 1;
    while (t.set->isa && !(t.set->isa & aura_ctx_isas(t.single)))
        t.set++;
    print_bench_head(b, "targets");
    if (!b->table)
        printf("%-58s %12s  target of %s\n", "", "measured", t.set->name);
    if (wants(b, "read"))
        read_targets(&t);
    if (wants(b, "queries"))
        several_queries(&t, QUERIES_4, 4), several_queries(&t, QUERIES_16, 16);
    if (wants(b, "hot"))
        hot_targets(&t), avx2_target(&t);
    if (wants(b, "codec"))
        codec_targets(&t);
    if (wants(b, "prefill"))
        prefill_targets(&t);
    if (wants(b, "threads"))
        scaling_targets(&t);
    print_progress(NULL);
    if (b->table)
        table_end(b->table, missed_field, &t);
    else
        printf("%d of %d not met\n", t.missed, t.shown);
    aura_ctx_destroy(t.single);
    return t.failed || t.missed ? 1 : 0;
}
