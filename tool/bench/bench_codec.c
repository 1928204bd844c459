/* aura bench --codec: how fast one thread turns f16 vectors into a cache and back, and arrays of numbers into pages and back. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_file.h"
#include "../../src/variants.h"
#include "../parts/terminal.h"
#include "bench.h"

enum { TOKENS = 1024 };

/* One format: pages of one layer, both ways, and a cache that is read. */
struct codec {
    aura_ctx *ctx;
    aura_page_codec *pages_of, *plain; /* plain: without a search */
    aura_cache *cache;
    aura_seq seq;
    void *pages;
    size_t bytes;            /* of the pages */
    uint16_t *numbers, *out; /* [2][TOKENS][kv_heads][dim] */
    size_t n;                /* of them */
};

static int trouble(const char *what)
{
    fprintf(stderr, "aura bench: %s\n", what);
    return 1;
}

static void or_exit(aura_status status)
{
    if (status) {
        trouble(aura_last_error());
        exit(1);
    }
}

static double encode_pages(const struct codec *c, const aura_page_codec *by, uint32_t times)
{
    const double start = now();
    for (uint32_t i = 0; i < times; i++)
        or_exit(aura_pages_encode(by, c->numbers, AURA_F16, TOKENS, c->pages, c->bytes));
    return seconds_since(start);
}

static double pages_in_run(void *what, uint32_t times)
{
    const struct codec *c = what;
    return encode_pages(c, c->pages_of, times);
}

static double plain_in_run(void *what, uint32_t times)
{
    const struct codec *c = what;
    return encode_pages(c, c->plain, times);
}

static double pages_out_run(void *what, uint32_t times)
{
    struct codec *c = what;
    const double start = now();
    for (uint32_t i = 0; i < times; i++)
        or_exit(aura_pages_decode(c->pages_of, c->pages, c->bytes, TOKENS, c->out, AURA_F16));
    return seconds_since(start);
}

static double decode_run(void *what, uint32_t times)
{
    struct codec *c = what;
    const aura_view k = {c->out, AURA_F16, 0, 0, NULL}, v = {c->out + c->n / 2, AURA_F16, 0, 0, NULL};
    const double start = now();
    for (uint32_t i = 0; i < times; i++)
        or_exit(aura_cache_decode(c->cache, c->seq, 0, TOKENS, &k, &v));
    return seconds_since(start);
}

static int codec_open(struct codec *c, uint32_t isa_mask, const struct shape *shape)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_config config = AURA_CONFIG_INIT;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    uint64_t state = 1;
    options.isa_mask = isa_mask, options.threads = 1;
    config.format = shape->format, config.k_dim = config.v_dim = shape->dim;
    config.q_heads = shape->q_heads, config.kv_heads = shape->kv_heads;
    c->n = (size_t)2 * TOKENS * shape->kv_heads * shape->dim;
    c->numbers = malloc(c->n * sizeof *c->numbers), c->out = calloc(c->n, sizeof *c->out);
    for (size_t i = 0; c->numbers && i < c->n; i++) { /* 1 to 2, and their negatives */
        state = state * 6364136223846793005u + 1442695040888963407u;
        c->numbers[i] = (uint16_t)(0x3c00 | (state >> 40 & 0x83ff));
    }
    if (!c->numbers || !c->out)
        return trouble("out of memory");
    if (aura_ctx_create(&options, &c->ctx) || aura_page_codec_create(c->ctx, &config, 1, &c->pages_of) ||
        aura_cache_create(c->ctx, &config, &c->cache) || aura_seq_create(c->cache, &c->seq))
        return trouble(aura_last_error());
    config.flags |= AURA_NO_SEARCH;
    if (aura_page_codec_create(c->ctx, &config, 1, &c->plain))
        return trouble(aura_last_error());
    c->bytes = aura_page_codec_bytes(c->pages_of, TOKENS);
    if (!(c->pages = malloc(c->bytes)))
        return trouble("out of memory");
    job.seq = c->seq, job.tokens = TOKENS;
    job.k.data = c->numbers, job.v.data = c->numbers + c->n / 2, job.k.dtype = job.v.dtype = AURA_F16;
    return aura_append(c->cache, &job, 1) ? trouble(aura_last_error()) : 0;
}

static void codec_close(struct codec *c)
{
    aura_page_codec_destroy(c->pages_of);
    aura_page_codec_destroy(c->plain);
    aura_cache_destroy(c->cache);
    aura_ctx_destroy(c->ctx);
    free(c->pages), free(c->numbers), free(c->out);
}

int codec_speed(uint32_t isa_mask, const struct shape *shape, double budget, struct codec_speed *speed)
{
    struct codec c = {0};
    struct contender in[2] = {{plain_in_run, &c, 0, 0}, {pages_in_run, &c, 0, 0}};
    struct contender others[2] = {{pages_out_run, &c, 0, 0}, {decode_run, &c, 0, 0}};
    int bad = codec_open(&c, isa_mask, shape);
    if (!bad) {
        const double gigabytes = 2e-9 * (double)c.n;
        take_turns(in, 2, budget / 2);
        take_turns(others, 2, budget / 2);
        speed->pages_in_plain = gigabytes / in[0].median, speed->pages_in = gigabytes / in[1].median;
        speed->pages_out = gigabytes / others[0].median, speed->decode = gigabytes / others[1].median;
        speed->append_plain = append_speed(isa_mask, shape, AURA_NO_SEARCH, budget, &speed->append_spread);
        speed->append = append_speed(isa_mask, shape, 0, budget, &speed->append_spread);
        bad = speed->append <= 0 || speed->append_plain <= 0;
    }
    codec_close(&c);
    return bad;
}

/* A row of the table. */
struct codec_row {
    const char *format;
    uint32_t dim;
    struct codec_speed speed;
};

static void codec_fields(struct table *t, const void *of)
{
    const struct codec_row *r = of;
    table_text(t, "format", r->format);
    table_number(t, "dim", "%u", r->dim);
    table_number(t, "append_vectors_per_s", "%.0f", r->speed.append), table_number(t, "spread", "%.4f", r->speed.append_spread);
    table_number(t, "append_no_search_vectors_per_s", "%.0f", r->speed.append_plain);
    table_number(t, "decode_gb_per_s", "%.3f", r->speed.decode);
    table_number(t, "pages_in_gb_per_s", "%.3f", r->speed.pages_in);
    table_number(t, "pages_in_no_search_gb_per_s", "%.3f", r->speed.pages_in_plain);
    table_number(t, "pages_out_gb_per_s", "%.3f", r->speed.pages_out);
}

int bench_codec(struct bench *b)
{
    static const char *const formats[] = {"k8v8", "k6v6", "k5v5", "k4v4", "k3v3", "k2v2"};
    char given[16];
    int bad = 0;
    aura_format_name(b->shape.format, given);
    print_bench_head(b, "codec");
    if (!b->table)
        printf("one thread, D %u; GB/s of the f16 numbers\n%-6s %17s %8s %14s %14s %10s %14s %11s\n", b->shape.dim, "",
               "append, vectors/s", "spread", "without search", "decode, GB/s", "pages in", "without search", "pages out");
    for (size_t i = 0; !bad && i < (b->one ? 1 : sizeof formats / sizeof *formats); i++) {
        struct shape shape = b->shape;
        struct codec_row row = {.format = b->one ? given : formats[i], .dim = shape.dim};
        const struct codec_speed *s = &row.speed;
        if (!b->one)
            aura_format_parse(formats[i], &shape.format);
        print_progress(row.format);
        bad = codec_speed(b->isa_mask, &shape, 1.5, &row.speed);
        print_progress(NULL);
        if (!bad && b->table)
            table_row(b->table, codec_fields, &row);
        else if (!bad)
            printf("%-6s %17.0f %7.1f%% %14.0f %14.2f %10.2f %14.2f %11.2f\n", row.format, s->append, s->append_spread * 100,
                   s->append_plain, s->decode, s->pages_in, s->pages_in_plain, s->pages_out);
        fflush(stdout);
    }
    if (b->table)
        table_end(b->table, NULL, NULL);
    return bad;
}
