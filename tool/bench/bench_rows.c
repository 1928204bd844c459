/* aura bench rows: times the row kernels on one thread, their definitions in ref*.c, and a plain read of the same bytes. All of it
 * is measured in turns, in one run, and the median of the turns is shown: compare within a run. */
#define _GNU_SOURCE
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "../../include/aura_rows.h"
#include "../parts/inputs.h"
#include "../tool.h"

enum { TURNS = 15 };

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* ---- the problem ---------------------------------------------------------------------------------------------------- */

/* One allocation holds every input, so that a plain read of it reads what a kernel reads. */
struct problem {
    uint8_t *data;
    size_t bytes, used;
    uint32_t dim, q_heads, kv_heads;
    size_t tokens;
    aura_packed k, v;
    aura_flash_attn_vec_args vec;
    aura_flash_pass2_args pass2;
    aura_flash_attn_vec_reduce_args reduce;
    aura_rotation rotation;
    float *q, *out, *scores;
};

static void *take(struct problem *p, size_t bytes)
{
    void *at = p->data + p->used;
    p->used += (bytes + 63) / 64 * 64;
    if (p->used > p->bytes)
        abort();
    return at;
}

static aura_packed packed_rows(struct problem *p, uint32_t bits, uint64_t *state)
{
    size_t rows = p->kv_heads * p->tokens, bytes = rows * aura_row_bytes(p->dim, bits);
    uint64_t *codes = take(p, bytes);
    float *norms = take(p, rows * sizeof *norms);
    aura_codebook book;
    aura_codebook_get(AURA_TABLE_GRID, bits, &book);
    for (size_t i = 0; i < bytes / 8; i++)
        codes[i] = random_bits(state);
    for (size_t i = 0; i < rows; i++)
        norms[i] = 0.05f;
    aura_packed packed = {bits, codes, norms, book.centroid, AURA_F32, AURA_F32, 0, 0};
    return packed;
}

static struct problem *make_problem(uint32_t dim, uint32_t q_heads, uint32_t kv_heads, size_t tokens, size_t bytes)
{
    static struct problem p;
    uint64_t state = 1;
    free(p.data), free(p.q), free(p.out), free(p.scores);
    memset(&p, 0, sizeof p);
    p.dim = dim, p.q_heads = q_heads, p.kv_heads = kv_heads, p.tokens = tokens, p.bytes = bytes;
    if (posix_memalign((void **)&p.data, 2 << 20, bytes))
        p.data = NULL;
    p.q = malloc(q_heads * dim * sizeof *p.q);
    p.out = malloc(q_heads * dim * sizeof *p.out);
    p.scores = malloc(q_heads * tokens * sizeof *p.scores + 64);
    if (!p.data || !p.q || !p.out || !p.scores)
        fprintf(stderr, "aura bench: out of memory\n"), exit(1);
    memset(p.data, 0, bytes);
    fill_vector(p.q, q_heads * dim, NORMAL, &state);
    for (size_t i = 0; i < q_heads * tokens; i++)
        p.scores[i] = 1 / (float)tokens;
    return &p;
}

static void must(aura_status status)
{
    if (status)
        fprintf(stderr, "aura bench: %s\n", aura_last_error()), exit(1);
}

static void run_sdpa(const aura_ctx *ctx, struct problem *p)
{
    aura_flash_sdpa_args a = AURA_FLASH_SDPA_ARGS_INIT;
    a.keys = p->k, a.values = p->v, a.dim = p->dim, a.q_heads = p->q_heads, a.kv_heads = p->kv_heads;
    a.tokens = p->tokens, a.q = p->q, a.out = p->out;
    must(aura_flash_sdpa(ctx, &a));
}

static void run_score(const aura_ctx *ctx, struct problem *p)
{
    aura_score_args a = AURA_SCORE_ARGS_INIT;
    a.keys = p->k, a.dim = p->dim, a.q_heads = p->q_heads, a.kv_heads = p->kv_heads, a.tokens = p->tokens;
    a.q = p->q, a.scores = p->scores;
    must(aura_score(ctx, &a));
}

static void run_value(const aura_ctx *ctx, struct problem *p)
{
    aura_value_args a = AURA_VALUE_ARGS_INIT;
    a.values = p->v, a.dim = p->dim, a.q_heads = p->q_heads, a.kv_heads = p->kv_heads, a.tokens = p->tokens;
    a.weights = p->scores, a.out = p->out;
    must(aura_value(ctx, &a));
}

static void run_vec(const aura_ctx *ctx, struct problem *p)
{
    must(aura_flash_attn_vec(ctx, &p->vec));
}

static void run_pass2(const aura_ctx *ctx, struct problem *p)
{
    must(aura_flash_pass2(ctx, &p->pass2));
}

static void run_reduce(const aura_ctx *ctx, struct problem *p)
{
    must(aura_flash_attn_vec_reduce(ctx, &p->reduce));
}

/* ---- measuring ------------------------------------------------------------------------------------------------------- */

struct contexts {
    aura_ctx *best, *plain;
    struct table *table; /* NULL: for people */
};

struct row_times {
    const char *name, *unit;
    double time, units, bytes, reading, ref, spread;
};

static void row_fields(struct table *t, const void *times)
{
    const struct row_times *r = times;
    table_text(t, "name", r->name);
    table_number(t, "ns", "%.3f", r->time / r->units * 1e9);
    table_text(t, "per", r->unit);
    table_number(t, "gb_per_s", "%.3f", r->bytes / r->time / 1e9);
    table_number(t, "read_gb_per_s", "%.3f", r->bytes / r->reading / 1e9);
    table_number(t, "read_ratio", "%.3f", r->reading / r->time);
    table_number(t, "times_ref", "%.1f", r->ref / r->time);
    table_number(t, "spread", "%.3f", r->spread);
}

static void rows_origin(struct table *t, const void *nothing)
{
    (void)nothing;
    table_text(t, "bench", "rows");
    table_machine(t);
    table_text(t, "compiler", compiler_name);
    table_number(t, "threads", "1");
}

/* Times the kernel and the plain read in turns, and the definition, which is slow, fewer times. */
static void measure(struct contexts *c, const char *name, void (*run)(const aura_ctx *, struct problem *), struct problem *p,
                    double units, const char *unit)
{
    double fast[TURNS], read[TURNS], slow[3];
    run(c->best, p);
    for (int i = 0; i < TURNS; i++) {
        double start = now();
        run(c->best, p);
        fast[i] = seconds_since(start);
        double middle = now();
        read_bytes(p->data, p->used);
        read[i] = seconds_since(middle);
    }
    for (int i = 0; i < 3; i++) {
        double start = now();
        run(c->plain, p);
        slow[i] = seconds_since(start);
    }
    qsort(fast, TURNS, sizeof *fast, by_size), qsort(read, TURNS, sizeof *read, by_size), qsort(slow, 3, sizeof *slow, by_size);
    double time = fast[TURNS / 2], reading = read[TURNS / 2], bytes = (double)p->used;
    const struct row_times r = {name, unit, time, units, bytes, reading, slow[1], (fast[TURNS * 3 / 4] - fast[TURNS / 4]) / time};
    if (c->table)
        table_row(c->table, row_fields, &r);
    else
        printf("%-34s %8.2f ns/%-11s %7.2f GB/s %7.2f GB/s %5.0f %% %7.1fx  %3.0f %%\n", name, time / units * 1e9, unit,
               bytes / time / 1e9, bytes / reading / 1e9, reading / time * 100, slow[1] / time, r.spread * 100);
    fflush(stdout);
}

static void bench_packed(struct contexts *c, uint32_t kb, uint32_t vb)
{
    char name[64];
    uint64_t state = 2;
    struct problem *p = make_problem(128, 32, 8, 4096, (size_t)32 << 20);
    double pairs = (double)p->q_heads * (double)p->tokens;
    p->k = packed_rows(p, kb, &state);
    snprintf(name, sizeof name, "score int%u, D 128, GQA 4", kb);
    measure(c, name, run_score, p, pairs, "head_token");
    p->v = packed_rows(p, vb, &state);
    snprintf(name, sizeof name, "sdpa k%uv%u, D 128, GQA 4", kb, vb);
    measure(c, name, run_sdpa, p, pairs, "head_token");
    p->used = 0;
    p->v = packed_rows(p, vb, &state);
    snprintf(name, sizeof name, "value int%u, D 128, GQA 4", vb);
    measure(c, name, run_value, p, pairs, "head_token");
}

static void bench_vec(struct contexts *c)
{
    struct problem *p = make_problem(256, 16, 8, 8192, (size_t)72 << 20);
    size_t bytes = (size_t)p->kv_heads * p->tokens * p->dim * 2;
    aura_flash_attn_vec_args a = AURA_FLASH_ATTN_VEC_ARGS_INIT;
    uint16_t *k = take(p, bytes), *v = take(p, bytes);
    for (size_t i = 0; i < bytes / 2; i++)
        k[i] = v[i] = (uint16_t)(0x3000 + i % 977); /* ordinary f16 numbers */
    a.k.dtype = a.v.dtype = AURA_F16, a.k.rows = k, a.v.rows = v, a.dim = 256, a.q_heads = 16, a.kv_heads = 8;
    a.tokens = a.capacity = 8192, a.q = p->q, a.out = p->out, a.scale = 0.0625f;
    p->vec = a;
    measure(c, "flash_attn_vec f16, D 256, GQA 2", run_vec, p, 16 * 8192.0, "head_token");
}

static void bench_merges(struct contexts *c)
{
    enum { ROWS = 1024, PARTS = 32 };
    uint64_t state = 3;
    struct problem *p = make_problem(256, ROWS, 1, 1, (size_t)48 << 20);
    aura_flash_pass2_args a = AURA_FLASH_PASS2_ARGS_INIT;
    float *o = take(p, ROWS * PARTS * 256 * 4), *m = take(p, ROWS * PARTS * 4), *l = take(p, ROWS * PARTS * 4);
    fill_vector(o, ROWS * PARTS * 256, NORMAL, &state);
    fill_vector(m, ROWS * PARTS, NORMAL, &state);
    for (int i = 0; i < ROWS * PARTS; i++)
        l[i] = 2;
    a.dim = 256, a.q_heads = ROWS, a.num_blocks = PARTS, a.o = o, a.m = m, a.l = l, a.out = p->out;
    p->pass2 = a;
    measure(c, "pass 2, 1024 x 32, D 256", run_pass2, p, ROWS, "row");

    aura_flash_attn_vec_reduce_args r = AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT;
    aura_rotation rotation = AURA_ROTATION_INIT;
    p->used = 0;
    float *temp = take(p, ROWS * PARTS * 258 * 4);
    for (size_t i = ROWS * PARTS * 256; i < ROWS * PARTS * 258; i += 2)
        temp[i] = 2, temp[i + 1] = random_normal(&state);
    rotation.dim = 256, rotation.signs = aura_tq_signs(256);
    p->rotation = rotation;
    r.dim = 256, r.rows = ROWS, r.nwg = PARTS, r.temp = temp, r.out = p->out, r.undo = &p->rotation;
    p->reduce = r;
    measure(c, "reduce + undo, 1024 x 32, D 256", run_reduce, p, ROWS, "row");
}

int bench_rows(struct table *table, int csv)
{
    static const uint32_t pairs[][2] = {{4, 4}, {4, 2}, {3, 3}, {5, 5}, {6, 6}, {8, 8}};
    struct contexts c = {NULL, NULL, table};
    aura_ctx_options only_ref = AURA_CTX_OPTIONS_INIT;
    only_ref.isa_mask = AURA_ISA_REF;
    if (aura_ctx_create(NULL, &c.best) || aura_ctx_create(&only_ref, &c.plain))
        return fprintf(stderr, "aura bench: %s\n", aura_last_error()), 1;
    if (table)
        table_begin(table, csv, "rows", rows_origin, NULL);
    else
        printf("aura %s on %s, tool compiled by %s, one thread, median of %d turns\n%-34s %23s %12s %12s %7s %8s %6s\n",
               aura_version(), cpu_name(), compiler_name, TURNS, "", "time", "kernel", "plain read", "ratio", "ref", "spread");
    for (size_t i = 0; i < sizeof pairs / sizeof *pairs; i++)
        bench_packed(&c, pairs[i][0], pairs[i][1]);
    bench_vec(&c);
    bench_merges(&c);
    if (table)
        table_end(table, NULL, NULL);
    aura_ctx_destroy(c.best);
    aura_ctx_destroy(c.plain);
    return 0;
}
