/* What the parts of `aura bench` share. Things that are compared are measured in turns, in one run, because the speed of memory
 * changes with what else the machine does. */
#ifndef AURA_BENCH_H
#define AURA_BENCH_H

#include "../../include/aura.h"
#include "../parts/table.h"

/* ---- time: bench_time.c -------------------------------------------------------------------------------------------- */

double now(void); /* seconds */
/* Seconds since then: a nanosecond at least, also where the clock has not moved, so that no rate is infinite. */
double seconds_since(double start);

/* Something to time. run() does it `times` times and returns how many seconds that took. */
struct contender {
    double (*run)(void *what, uint32_t times);
    void *what;
    double median, spread; /* median: seconds of one time; spread: the distance of the quartiles divided by the median */
};

/* Runs all contenders in turns, each turn long enough for the clock, for about `budget` seconds in all. A contender that runs
 * several times in a turn first runs once untimed, so that its data is hot. Returns the number of turns, odd and at least 5. */
int take_turns(struct contender *contenders, int n, double budget);

/* Threads that wait for work. */
struct crew;
struct crew *crew_create(uint32_t threads); /* the caller is one of them; NULL: the system gives no threads */
void crew_destroy(struct crew *crew);
/* Calls work(what, i) for i < threads, each on its own thread, all at once. Returns the seconds between the moment when all threads
 * are awake and the moment when all are done. */
double crew_run(struct crew *crew, void (*work)(void *what, uint32_t i), void *what);
uint32_t crew_threads(const struct crew *crew);

/* ---- a plain read: bench_read.c ------------------------------------------------------------------------------------ */

/* Reads bytes as fast as this core can, and does nothing else. */
void read_bytes(const uint8_t *data, size_t bytes);

/* A buffer that a crew reads; each thread reads its part. */
struct plain_read {
    struct crew *crew;
    uint8_t *data;
    size_t bytes; /* the caller may lower it */
    uint32_t times;
};
int plain_read_open(struct plain_read *r, struct crew *crew, size_t bytes); /* 0 when good */
void plain_read_close(struct plain_read *r);
double plain_read_run(void *plain_read, uint32_t times); /* a contender's run */

/* ---- the machine's int8 products: bench_peak.c --------------------------------------------------------------------- */

struct peak {
    struct crew *crew;
    uint32_t isas; /* as of aura_ctx_isas() */
};
double peak_run(void *peak, uint32_t times); /* a contender's run; one time is PEAK_PRODUCTS on every thread */
const char *peak_name(uint32_t isas);        /* the instruction that does them */
enum { PEAK_PRODUCTS = 1 << 26 };

/* ---- caches: bench_cache.c ----------------------------------------------------------------------------------------- */

struct shape {
    aura_format format;
    uint32_t dim, q_heads, kv_heads, tokens, batch;
};

/* A cache full of random numbers. */
struct filled {
    struct shape shape;
    aura_cache *cache;
    aura_seq *seqs; /* [batch] */
    double bytes;   /* that attention over all tokens must read */
};
/* 0 when good; otherwise a message was printed. */
int filled_open(struct filled *f, aura_ctx *ctx, const struct shape *shape);
int filled_shorten(struct filled *f, uint32_t tokens);
void filled_close(struct filled *f);

/* Queries to a cache. */
struct ask {
    const struct filled *filled;
    uint32_t queries;
    aura_attend_job *jobs; /* [batch] */
    aura_attend_options options;
    float *q, *out;
};
int ask_open(struct ask *a, const struct filled *f, uint32_t queries, uint32_t planes);
void ask_close(struct ask *a);
double ask_run(void *ask, uint32_t times); /* a contender's run; ends the program when attending fails */

/* How many f16 vectors per second one thread with these instruction sets appends to a cache with these flags (0: with every part
 * of the codec). It takes about `budget` seconds; 0: it failed, with a message. */
double append_speed(uint32_t isa_mask, const struct shape *shape, uint32_t flags, double budget, double *spread);

/* ---- codecs: bench_codec.c ------------------------------------------------------------------------------------------ */

/* One thread: vectors a second that aura_append() takes, also with AURA_NO_SEARCH; GB/s, counted in f16,
 * of aura_cache_decode(), of aura_pages_encode(),
 * also with AURA_NO_SEARCH, and of aura_pages_decode(). */
struct codec_speed {
    double append, append_spread, append_plain, decode, pages_in, pages_in_plain, pages_out;
};
/* Takes about three times `budget` seconds. 0 when good; otherwise a message was printed. */
int codec_speed(uint32_t isa_mask, const struct shape *shape, double budget, struct codec_speed *speed);

/* ---- what is printed: bench.c, bench_table.c, bench_targets.c -------------------------------------------------------- */

struct bench {
    aura_ctx *ctx;
    struct crew *crew;
    uint32_t threads, isa_mask, planes, queries;
    struct shape shape;
    struct table *table;     /* where rows go for programs; NULL: they are printed for people */
    int csv, one;            /* one: a format was given */
    const char *what;        /* of print_bench_head() */
    struct results *results; /* rows for a page; NULL: none is asked for */
    const struct command *self;
    const char *html;        /* where the page goes; NULL: none is asked for */
    const char *part;        /* of the targets; NULL: all */
};

int bench_rows(struct table *table, int csv);
int bench_one(struct bench *b);
int bench_table(struct bench *b);
int bench_codec(struct bench *b);
int bench_prefill(struct bench *b);
int bench_targets(struct bench *b);

/* The times of one configuration, a plain read of as many bytes, an f16 cache of the same shape, and a read of its bytes. */
struct row {
    struct shape shape;
    uint32_t queries, planes;
    int turns;
    double bytes, seconds, spread, read_seconds;
    double f16_bytes, f16_seconds, f16_read_seconds; /* 0: not measured */
    double append; /* vectors a second, one thread */
};
/* f16 may be NULL. 0 when good. */
int measure_row(struct row *row, struct crew *crew, struct ask *a, struct ask *f16, double budget);
table_fields bench_row_fields; /* of a row */

/* Rows for a page, and the page: bench_html.c. The caller calls free(). */
struct results *results_create(void);
void results_add(const struct bench *b, const struct row *row);
struct command;
int write_bench_html(const struct command *self, const struct bench *b, const char *path);

/* How many products of two bytes attention takes for these queries. */
double byte_products(const struct shape *shape, uint32_t queries, uint32_t planes);

void print_bench_head(struct bench *b, const char *what);

struct command;

/* How fast a model decodes at given depths, with each cache: bench_model.c. */
struct model_bench {
    const char *path, *depths, *caches; /* lists with commas; NULL: the default */
    uint32_t threads, isa_mask;
    struct table *table; /* as in struct bench */
    int csv;
};
int bench_model(const struct command *self, const struct model_bench *options); /* the exit code */

/* ---- many processes: bench_mpi.c ----------------------------------------------------------------------------------- */

int bench_mpi(struct bench *b); /* the exit code */

#endif
