/* aura bench: times the cache, a plain read of the same number of bytes, and an f16 cache. */
#define _GNU_SOURCE
#include "bench.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_file.h"
#include "../../src/format.h"
#include "../cuda_tool.h"
#include "../parts/terminal.h"
#include "../tool.h"

static void origin(struct table *t, const void *bench)
{
    const struct bench *b = bench;
    table_text(t, "bench", b->what);
    table_machine(t);
    table_text(t, "compiler", compiler_name);
    table_number(t, "threads", "%u", b->threads);
    table_text(t, "isa", isa_name(aura_ctx_isas(b->ctx)));
}

void print_bench_head(struct bench *b, const char *what)
{
    b->what = what;
    if (b->table)
        table_begin(b->table, b->csv, "rows", origin, b);
    else
        printf("aura %s on %s, tool compiled by %s, %u thread%s, %s; medians of turns taken in one run\n", aura_version(),
               cpu_name(), compiler_name, b->threads, b->threads == 1 ? "" : "s", isa_name(aura_ctx_isas(b->ctx)));
    fflush(stdout);
}

int measure_row(struct row *row, struct crew *crew, struct ask *a, struct ask *f16, double budget)
{
    struct plain_read read = {0}, f16_read = {0};
    struct contender c[4] = {{ask_run, a, 0, 0}, {plain_read_run, &read, 0, 0}, {ask_run, f16, 0, 0},
                             {plain_read_run, &f16_read, 0, 0}};
    memset(row, 0, sizeof *row);
    row->shape = a->filled->shape, row->queries = a->queries, row->planes = a->options.planes, row->bytes = a->filled->bytes;
    int bad = plain_read_open(&read, crew, (size_t)row->bytes) ||
              (f16 && plain_read_open(&f16_read, crew, (size_t)f16->filled->bytes));
    if (bad) {
        fprintf(stderr, "aura bench: no memory to read\n");
    } else {
        row->turns = take_turns(c, f16 ? 4 : 2, budget);
        row->seconds = c[0].median, row->spread = c[0].spread, row->read_seconds = c[1].median;
        if (f16)
            row->f16_bytes = f16->filled->bytes, row->f16_seconds = c[2].median, row->f16_read_seconds = c[3].median;
    }
    plain_read_close(&read), plain_read_close(&f16_read);
    return bad ? -1 : 0;
}

/* ---- one configuration ---------------------------------------------------------------------------------------------- */

/* How many products of a query row with a token attention takes: query heads x tokens x queries. */
static double pairs(const struct shape *s, uint32_t queries)
{
    return (double)s->q_heads * s->tokens * s->batch * queries;
}

static const char *const planes_names[] = {"auto", "1", "2"};

/* Of f16 itself there is nothing beside it: those fields are not numbers then, so null. */
void bench_row_fields(struct table *t, const void *row)
{
    char format[16];
    const struct row *r = row;
    const struct shape *s = &r->shape;
    const double n = pairs(s, r->queries), f16 = r->f16_seconds > 0 ? r->f16_seconds : NAN;
    const double f16_read = r->f16_seconds > 0 ? r->f16_read_seconds : NAN;
    aura_format_name(s->format, format);
    table_text(t, "format", format);
    table_number(t, "dim", "%u", s->dim), table_number(t, "heads", "%u", s->q_heads);
    table_number(t, "kv_heads", "%u", s->kv_heads), table_number(t, "tokens", "%u", s->tokens);
    table_number(t, "batch", "%u", s->batch), table_number(t, "queries", "%u", r->queries);
    table_text(t, "planes", planes_names[r->planes]);
    table_number(t, "turns", "%d", r->turns);
    table_number(t, "us", "%.2f", r->seconds * 1e6), table_number(t, "ns", "%.4f", r->seconds / n * 1e9);
    table_number(t, "gb_per_s", "%.3f", r->bytes / r->seconds / 1e9);
    table_number(t, "read_gb_per_s", "%.3f", r->bytes / r->read_seconds / 1e9);
    table_number(t, "read_ratio", "%.4f", r->read_seconds / r->seconds);
    table_number(t, "spread", "%.4f", r->spread);
    table_number(t, "f16_ns", "%.4f", f16 / n * 1e9);
    table_number(t, "f16_gb_per_s", "%.3f", r->f16_bytes / f16 / 1e9);
    table_number(t, "f16_read_gb_per_s", "%.3f", r->f16_bytes / f16_read / 1e9);
    table_number(t, "f16_read_ratio", "%.4f", f16_read / f16);
    table_number(t, "times_f16", "%.3f", f16 / r->seconds);
    table_number(t, "append_vectors_per_s", "%.0f", r->append);
}

static void print_one(const struct row *r, double append_spread)
{
    char format[16];
    const struct shape *s = &r->shape;
    double n = pairs(s, r->queries), f16_bytes = r->f16_bytes;
    aura_format_name(s->format, format);
    printf("D %u, %u query heads, %u KV heads, %u tokens, batch %u, %u %s, planes %s, %d turns\n\n", s->dim, s->q_heads,
           s->kv_heads, s->tokens, s->batch, r->queries, r->queries == 1 ? "query" : "queries", planes_names[r->planes], r->turns);
    printf("%-10s %12s %22s %12s %12s %7s\n", "", "time", "ns/(head token query)", "cache", "plain read", "ratio");
    printf("%-10s %9.1f us %22.3f %7.2f GB/s %7.2f GB/s %5.1f %%\n", format, r->seconds * 1e6, r->seconds / n * 1e9,
           r->bytes / r->seconds / 1e9, r->bytes / r->read_seconds / 1e9, r->read_seconds / r->seconds * 100);
    if (r->f16_seconds > 0)
        printf("%-10s %9.1f us %22.3f %7.2f GB/s %7.2f GB/s %5.1f %%\n\n%.2f times as fast as kf16vf16", "kf16vf16",
               r->f16_seconds * 1e6, r->f16_seconds / n * 1e9, f16_bytes / r->f16_seconds / 1e9,
               f16_bytes / r->f16_read_seconds / 1e9, r->f16_read_seconds / r->f16_seconds * 100, r->f16_seconds / r->seconds);
    printf("\nspread of %s %.1f %%; append %.0f vectors/s on one thread, spread %.1f %%\n", format, r->spread * 100, r->append,
           append_spread * 100);
}

static int is_f16(aura_format format)
{
    return format.k == AURA_KIND_F16 && format.v == AURA_KIND_F16;
}

/* Whether there is such a cache: to fill one takes a while. */
static int exists(const struct bench *b)
{
    aura_config config = AURA_CONFIG_INIT;
    aura_plan_job job = AURA_PLAN_JOB_INIT;
    aura_plan_info plan = AURA_PLAN_INFO_INIT;
    config.format = b->shape.format, config.k_dim = b->shape.dim;
    config.q_heads = b->shape.q_heads, config.kv_heads = b->shape.kv_heads;
    job.configs = &config, job.seqs = b->shape.batch, job.tokens = b->shape.tokens;
    return !aura_plan(b->ctx, &job, &plan);
}

int bench_one(struct bench *b)
{
    struct filled filled = {0}, f16 = {0};
    struct ask ask = {0}, ask16 = {0};
    struct shape shape16 = b->shape;
    struct row row;
    double spread = 0;
    int compare = !is_f16(b->shape.format);
    shape16.format.k = shape16.format.v = AURA_KIND_F16;
    print_progress("filling");
    int bad = filled_open(&filled, b->ctx, &b->shape) || ask_open(&ask, &filled, b->queries, b->planes) ||
              (compare && (filled_open(&f16, b->ctx, &shape16) || ask_open(&ask16, &f16, b->queries, 0)));
    if (!bad)
        print_progress("measuring");
    bad = bad || measure_row(&row, b->crew, &ask, compare ? &ask16 : NULL, 4) ||
          (row.append = append_speed(b->isa_mask, &b->shape, 0, 2, &spread)) <= 0;
    print_progress(NULL);
    if (!bad) {
        results_add(b, &row);
        print_bench_head(b, "one");
        if (b->table)
            table_row(b->table, bench_row_fields, &row), table_end(b->table, NULL, NULL);
        else
            print_one(&row, spread);
    }
    ask_close(&ask), ask_close(&ask16);
    filled_close(&filled), filled_close(&f16);
    return bad ? 1 : 0;
}

/* ---- many queries at once ------------------------------------------------------------------------------------------- */

struct prefill {
    const struct bench *b;
    char format[16];
    double seconds, spread, speed, best; /* speed and best: products of bytes a second */
    const char *instruction;             /* of the best */
};

static void prefill_fields(struct table *t, const void *prefill)
{
    const struct prefill *p = prefill;
    const struct shape *s = &p->b->shape;
    table_text(t, "format", p->format);
    table_number(t, "dim", "%u", s->dim), table_number(t, "heads", "%u", s->q_heads);
    table_number(t, "kv_heads", "%u", s->kv_heads), table_number(t, "tokens", "%u", s->tokens);
    table_number(t, "queries", "%u", p->b->queries);
    table_number(t, "ms", "%.3f", p->seconds * 1e3);
    table_number(t, "products_per_s", "%.4g", p->speed), table_number(t, "peak_products_per_s", "%.4g", p->best);
    table_text(t, "peak_instruction", p->instruction);
    table_number(t, "peak_ratio", "%.4f", p->speed / p->best), table_number(t, "spread", "%.4f", p->spread);
}

static void print_prefill(struct bench *b, const struct prefill *p)
{
    const struct shape *s = &b->shape;
    print_bench_head(b, "prefill");
    if (b->table)
        table_row(b->table, prefill_fields, p), table_end(b->table, NULL, NULL);
    else
        printf("%s, D %u, %u query heads, %u KV heads: the last %u queries of %u tokens, causal\n%.1f ms, %.1f G int8 "
               "products/s; %s alone does %.1f G/s: %.1f %% of the peak, spread %.1f %%\n", p->format, s->dim, s->q_heads,
               s->kv_heads, b->queries, s->tokens, p->seconds * 1e3, p->speed / 1e9, p->instruction, p->best / 1e9,
               p->speed / p->best * 100, p->spread * 100);
}

int bench_prefill(struct bench *b)
{
    struct filled filled = {0};
    struct ask ask = {0};
    struct peak peak = {b->crew, aura_ctx_isas(b->ctx)};
    struct contender c[2] = {{ask_run, &ask, 0, 0}, {peak_run, &peak, 0, 0}};
    struct prefill p = {.b = b, .instruction = peak_name(peak.isas)};
    aura_format_name(b->shape.format, p.format);
    print_progress("filling");
    int bad = filled_open(&filled, b->ctx, &b->shape) || ask_open(&ask, &filled, b->queries, b->planes);
    if (!bad) {
        print_progress("measuring");
        take_turns(c, 2, 8);
    }
    print_progress(NULL);
    p.seconds = c[0].median, p.spread = c[0].spread;
    p.speed = byte_products(&b->shape, b->queries, b->planes) / c[0].median;
    p.best = (double)PEAK_PRODUCTS * b->threads / c[1].median;
    if (!bad)
        print_prefill(b, &p);
    ask_close(&ask);
    filled_close(&filled);
    return bad ? 1 : 0;
}

/* ---- the command ----------------------------------------------------------------------------------------------------- */

struct arguments {
    const char *k, *v, *planes, *isa, *device, *html, *model, *depths, *caches, *part;
    uint32_t dim, heads, kv_heads, tokens, batch, queries, threads;
    int prefill, targets, codec, mpi, json, csv;
};

static const char kinds[] = AURA_BITS(AURA_KIND_WORD) AURA_TRELLIS(AURA_SHAPE_WORD) "f16 bf16 f32";

static const struct option options[] = {
    CHOICE(k, "--k", kinds, "BITS", "of keys: " AURA_BITS(AURA_KIND_COMMA) AURA_TRELLIS(AURA_SHAPE_COMMA) "or f16, bf16, f32 (4)"),
    CHOICE(v, "--v", kinds, "BITS", "of values (4)"),
    NUMBER(dim, "--dim", 8, AURA_MAX_DIM, "N", "of a head:" AURA_DIMS(AURA_DIM_WORD) " (128)"),
    NUMBER(heads, "--heads", 1, 65536, "N", "query heads (32)"),
    NUMBER(kv_heads, "--kv-heads", 1, 65536, "N", "key/value heads (8)"),
    NUMBER(tokens, "--tokens", 1, 1u << 30, "N", "in each sequence (32768; with --prefill 8192)"),
    NUMBER(batch, "--batch", 1, 65536, "N", "sequences (1)"),
    NUMBER(queries, "--queries", 1, 65536, "N", "of each sequence (1; with --prefill 512)"),
    CHOICE(planes, "--planes", "auto 1 2", "N", "bytes of queries and weights in the products: auto, 1, 2"),
    NUMBER(threads, "--threads", 1, 1024, "N", "that work on it (all processors)"),
    ISA(isa, "as if the machine had no better than NAME"),
    FLAG(prefill, "--prefill", "many queries at once, beside the machine's int8 products"),
    FLAG(targets, "--targets", "what the cache is meant to reach here, and if it does"),
    CHOICE(part, "--part", "read queries hot codec prefill threads", "NAME",
           "of --targets: read, queries, hot, codec, prefill, threads"),
    FLAG(codec, "--codec", "append, decode, pages: one thread, all widths or --k --v"),
    FLAG(mpi, "--mpi", "under mpirun: one context over all ranks, up to --tokens"),
    CHOICE(device, "--device", "cpu cuda", "NAME", "cuda: the GPU, beside a plain read of the same bytes"),
    PATH(model, "--model", "FILE", "decode with a model, GGUF, instead"),
    TEXT(depths, "--depth", "LIST", "of --model: tokens before those timed (0,2048,8192)"),
    FORMATS(caches, "--cache", "of --model: formats (kf16vf16,k8v8,k4v4,k3v3)"),
    RESULT(html, "--html", "FILE", "write a page with charts too: of the table, or of one shape"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV"),
    LAST_OPTION};

/* Whether the arguments ask for one configuration; otherwise they ask for the table. */
static int is_given(const struct arguments *c)
{
    return c->k || c->v || c->planes || c->dim || c->heads || c->kv_heads || c->tokens || c->batch || c->queries;
}

static uint32_t or_else(uint32_t given, uint32_t otherwise)
{
    return given ? given : otherwise;
}

/* Fills in the defaults. 0 when good. */
static int prepare(const struct command *self, struct bench *b, const struct arguments *c)
{
    char format[32];
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    snprintf(format, sizeof format, "k%.8sv%.8s", c->k ? c->k : "4", c->v ? c->v : "4");
    if (aura_format_parse(format, &b->shape.format))
        return usage_error(self, "%s", aura_last_error());
    b->planes = !c->planes || !strcmp(c->planes, "auto") ? 0 : c->planes[0] == '1' ? 1 : 2;
    b->shape.dim = or_else(c->dim, 128), b->shape.q_heads = or_else(c->heads, 32), b->shape.kv_heads = or_else(c->kv_heads, 8);
    b->shape.tokens = or_else(c->tokens, c->prefill ? 8192 : c->mpi ? 131072 : 32768), b->shape.batch = or_else(c->batch, 1);
    b->queries = or_else(c->queries, c->prefill ? 512 : 1), b->threads = or_else(c->threads, online_cpus());
    if (b->queries > b->shape.tokens)
        return usage_error(self, "%u queries at the end of %u tokens: there must be as many tokens at least", b->queries,
                           b->shape.tokens);
    if (c->prefill && (!aura_is_packed((uint32_t)b->shape.format.k) || !aura_is_packed((uint32_t)b->shape.format.v)))
        return usage_error(self, "--prefill counts int8 products: both sides must be of 2 to 8 bits");
    if (parse_isa(self, c->isa, &b->isa_mask))
        return 2;
    context.threads = b->threads, context.isa_mask = b->isa_mask;
    if (aura_ctx_create(&context, &b->ctx))
        return failed(self, "%s", aura_last_error());
    if (!(b->crew = crew_create(b->threads)))
        return failed(self, "no threads to be had");
    return 0;
}

/* Where the rows go: to the table, or, for people, nowhere. */
static struct table *for_programs(const struct arguments *c, struct table *table)
{
    return c->json || c->csv ? table : NULL;
}

static int run_model(const struct command *self, const struct arguments *c, const char *what, struct table *table)
{
    struct model_bench m = {c->model, c->depths, c->caches, or_else(c->threads, online_cpus()), 0, for_programs(c, table),
                            c->csv && !c->json};
    if (!c->model)
        return usage_error(self, "--depth and --cache are of --model; for one format of a cache alone give --k and --v");
    if (what || is_given(c) || c->prefill || c->targets || c->device)
        return usage_error(self, "with --model only --depth, --cache, --threads, --isa, --json and --csv mean something");
    return parse_isa(self, c->isa, &m.isa_mask) ? 2 : bench_model(self, &m);
}

static int run_bench(const struct command *self, int argc, char **argv)
{
    struct arguments c = {0};
    struct bench b = {0};
    struct table table;
    const char *what = NULL;
    if (on_cuda(&argc, argv))
        return cuda_bench(argc, argv);
    int status = parse_options(self, argc, argv, &c, &what);
    if (status)
        return status;
    if (c.html && (what || c.targets || c.prefill || c.model || c.codec))
        return usage_error(self, "--html is for the table and for one shape, not for %s",
                           what ? what : c.targets ? "--targets" : c.prefill ? "--prefill" : c.codec ? "--codec" : "--model");
    if (c.codec && (what || c.targets || c.prefill || c.mpi || c.model))
        return usage_error(self, "--codec is a table of its own: only --k, --v, --dim, --kv-heads and --isa go with it");
    if (c.part && !c.targets)
        return usage_error(self, "--part is of --targets");
    if (c.model || c.depths || c.caches)
        return run_model(self, &c, what, &table);
    if (what && (is_given(&c) || c.isa || c.threads || c.prefill || c.targets))
        return usage_error(self, "rows takes no option but --json and --csv");
    if (c.mpi && (what || c.html || c.targets || c.prefill))
        return usage_error(self, "--mpi is for one shape: with --prefill, --targets, --html or rows it means nothing");
    if (c.targets && (is_given(&c) || c.prefill))
        return usage_error(self, "--targets says itself what is measured");
    if (what)
        return bench_rows(for_programs(&c, &table), c.csv && !c.json);
    if (c.html && !(b.results = results_create()))
        return failed(self, "out of memory");
    b.one = c.k || c.v, b.self = self, b.html = c.html, b.part = c.part;
    b.table = for_programs(&c, &table), b.csv = c.csv && !c.json;
    c.threads = c.mpi && !c.threads ? 1 : c.threads; /* of each rank */
    if (!(status = prepare(self, &b, &c)) && !c.targets && is_given(&c) && !exists(&b))
        status = failed(self, "%s", aura_last_error());
    if (!status)
        status = (c.codec ? bench_codec : c.mpi ? bench_mpi : c.targets ? bench_targets : c.prefill ? bench_prefill :
                  is_given(&c) ? bench_one : bench_table)(&b);
    if (!status && c.html)
        status = write_bench_html(self, &b, c.html);
    crew_destroy(b.crew);
    aura_ctx_destroy(b.ctx);
    free(b.results);
    return status;
}

const struct command command_bench = {
    "bench", "time the cache beside a plain read and an f16 cache",
    "[rows] [OPTIONS]\n--device cuda [rows|ROW|--shape SHAPE ...] [--json] [--csv]",
    "A table of formats, dims and contexts; or one shape; or the kernels over rows.\n"
    "SHAPE is FORMAT,DIM,Q_HEADS,KV_HEADS,SEQS,TOKENS,QUERIES and maybe ,long.\n", "rows", "rows", options,
    "", run_bench};
