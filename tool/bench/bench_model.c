/* aura bench --model: how fast a model decodes at a depth, that is behind that many tokens, with each cache. All caches are open
 * at once and take turns, some tokens each, so that other work of the machine slows all of them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "../parts/inputs.h"
#include "../../model/llm.h"
#include "../parts/terminal.h"
#include "../tool.h"

enum {
    MOST = 16,          /* caches, and depths */
    TURN = 8,           /* tokens that a cache decodes before it is the next one's turn */
    TURNS = 4,
    DECODED = TURN * TURNS
};

struct contestant {
    aura_format format;
    char name[16];
    struct llm_state *state;
    double filling, seconds[DECODED]; /* filling: seconds to get to this depth; seconds: of each token behind it */
    size_t filled;
};

struct match {
    const struct command *self;
    const struct model_bench *options;
    struct llm *llm;
    float *logits;
    uint64_t random;
    struct contestant cache[MOST];
    uint32_t depth[MOST];
    size_t caches, depths;
};

/* ---- lists --------------------------------------------------------------------------------------------------------- */

/* The next word of a list with commas, in word[32]; NULL: no more. A longer word is cut, and is then no name. */
static const char *next_word(const char *list, char word[32])
{
    if (!list || !*list)
        return NULL;
    size_t n = strcspn(list, ",");
    snprintf(word, 32, "%.*s", (int)(n < 31 ? n : 31), list);
    return list[n] ? list + n + 1 : list + n;
}

static int read_caches(struct match *m)
{
    char word[32];
    const char *at = m->options->caches ? m->options->caches : "kf16vf16,k8v8,k4v4,k3v3";
    while ((at = next_word(at, word)) != NULL) {
        struct contestant *c = &m->cache[m->caches];
        if (m->caches == MOST)
            return usage_error(m->self, "--cache has more than %d formats", MOST);
        if (parse_format(m->self, "--cache", word, &c->format))
            return 2;
        aura_format_name(c->format, c->name);
        m->caches++;
    }
    return m->caches ? 0 : usage_error(m->self, "--cache needs formats with commas between them, such as kf16vf16,k4v4");
}

static int read_depths(struct match *m)
{
    char word[32], *end;
    const char *at = m->options->depths ? m->options->depths : "0,2048,8192";
    while ((at = next_word(at, word)) != NULL) {
        unsigned long depth = strtoul(word, &end, 10);
        if (*word < '0' || *word > '9' || *end || depth > 1ul << 24 || m->depths == MOST ||
            (m->depths && depth < m->depth[m->depths - 1] + DECODED))
            return usage_error(m->self, "--depth %s: must be at most %d numbers of tokens, each at least %d above the one before",
                               word, MOST, DECODED);
        m->depth[m->depths++] = (uint32_t)depth;
    }
    return m->depths ? 0 : usage_error(m->self, "--depth needs numbers of tokens with commas between them, such as 0,2048");
}

/* ---- measuring ----------------------------------------------------------------------------------------------------- */

static int step(struct match *m, struct contestant *c, uint32_t n, size_t wanted)
{
    uint32_t token[LLM_PART];
    char error[LLM_ERROR_BYTES];
    for (uint32_t i = 0; i < n; i++)
        token[i] = (uint32_t)(random_bits(&m->random) % llm_shape(m->llm)->vocab);
    return llm_forward(c->state, token, n, wanted, m->logits, error) ? failed(m->self, "%s: %s", c->name, error) : 0;
}

static int fill(struct match *m, struct contestant *c, uint32_t depth)
{
    char text[80];
    double start = now();
    size_t tokens = llm_state_tokens(c->state);
    c->filled = depth - tokens;
    for (; tokens < depth; tokens = llm_state_tokens(c->state)) {
        snprintf(text, sizeof text, "%s: %zu of %u tokens", c->name, tokens, depth);
        print_progress(text);
        if (step(m, c, depth - tokens < LLM_PART ? (uint32_t)(depth - tokens) : LLM_PART, 0))
            return 1;
    }
    c->filling = seconds_since(start);
    return 0;
}

static int decode_in_turns(struct match *m)
{
    for (size_t turn = 0; turn < TURNS; turn++)
        for (size_t i = 0; i < m->caches; i++)
            for (size_t k = 0; k < TURN; k++) {
                double start = now();
                if (step(m, &m->cache[i], 1, 1))
                    return 1;
                m->cache[i].seconds[turn * TURN + k] = seconds_since(start);
            }
    return 0;
}

/* Decodes a token untimed: after it, weights are in memory and threads are awake. */
static int warm_up(struct match *m, struct contestant *c)
{
    char error[LLM_ERROR_BYTES];
    if (step(m, c, 1, 1))
        return 1;
    return llm_state_truncate(c->state, 0, error) ? failed(m->self, "%s: %s", c->name, error) : 0;
}

static int by_size(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* What is said about a cache at a depth. */
struct decoded {
    const struct contestant *c;
    uint32_t depth;
    double median, mean, spread, bits, bytes;
};

static void row_fields(struct table *t, const void *decoded)
{
    const struct decoded *d = decoded;
    table_text(t, "cache", d->c->name);
    table_number(t, "bits", "%.3f", d->bits);
    table_number(t, "depth", "%u", d->depth);
    table_number(t, "tokens_per_s", "%.2f", 1 / d->median);
    table_number(t, "ms", "%.3f", d->median * 1e3), table_number(t, "mean_ms", "%.3f", d->mean * 1e3);
    table_number(t, "spread", "%.4f", d->spread);
    table_number(t, "cache_bytes", "%.0f", d->bytes);
    table_number(t, "prompt_tokens", "%zu", d->c->filled);
    table_number(t, "prompt_tokens_per_s", "%.1f", d->c->filled ? (double)d->c->filled / d->c->filling : NAN);
}

static void print_row(struct match *m, struct contestant *c, uint32_t depth)
{
    struct decoded d = {c, depth, 0, 0, 0, llm_state_bits(c->state), (double)llm_state_bytes(c->state)};
    qsort(c->seconds, DECODED, sizeof *c->seconds, by_size);
    for (size_t i = 0; i < DECODED; i++)
        d.mean += c->seconds[i] / DECODED;
    d.median = c->seconds[DECODED / 2], d.spread = (c->seconds[DECODED * 3 / 4] - c->seconds[DECODED / 4]) / d.median;
    if (m->options->table) {
        table_row(m->options->table, row_fields, &d);
        return;
    }
    printf("%-10s %10.2f %8u %12.1f %12.2f %9.1f %% %9.1f MB", c->name, d.bits, depth, 1 / d.median, d.median * 1e3,
           d.spread * 100, d.bytes / 1e6);
    if (c->filled)
        printf(" %12.1f", (double)c->filled / c->filling);
    printf("\n");
    fflush(stdout);
}

static void origin(struct table *t, const void *match)
{
    const struct match *m = match;
    table_text(t, "bench", "model");
    table_text(t, "model", m->options->path);
    table_machine(t);
    table_text(t, "compiler", compiler_name);
    table_number(t, "threads", "%u", m->options->threads);
}

static void print_head(const struct match *m)
{
    const struct llm_shape *s = llm_shape(m->llm);
    if (m->options->table) {
        table_begin(m->options->table, m->options->csv, "rows", origin, m);
        return;
    }
    printf("aura %s on %s, tool compiled by %s, %u thread%s; the median of %d tokens, in turns\n", aura_version(), cpu_name(),
           compiler_name, m->options->threads, m->options->threads == 1 ? "" : "s", DECODED);
    printf("%s: %s, %u layers, %u query heads, %u KV heads, D %u\n\n", m->options->path, s->arch, s->layers, s->q_heads,
           s->kv_heads, s->head_dim);
    printf("%-10s %10s %8s %12s %12s %11s %12s %12s\n", "cache", "bits/value", "depth", "tokens/s", "ms/token", "spread", "cache",
           "prompt/s");
}

/* ---- all of it ----------------------------------------------------------------------------------------------------- */

static int open_states(struct match *m)
{
    char error[LLM_ERROR_BYTES];
    for (size_t i = 0; i < m->caches; i++) {
        struct llm_options options = {.threads = m->options->threads, .format = m->cache[i].format,
                                      .isa_mask = m->options->isa_mask, .tokens = (size_t)m->depth[m->depths - 1] + DECODED,
                                      .exact_prompts = 1};
        if (llm_state_create(m->llm, &options, &m->cache[i].state, error))
            return failed(m->self, "%s", error);
    }
    m->logits = malloc(llm_shape(m->llm)->vocab * sizeof *m->logits);
    return m->logits ? 0 : failed(m->self, "out of memory");
}

static int measure(struct match *m)
{
    print_head(m);
    for (size_t i = 0; i < m->caches; i++)
        if (warm_up(m, &m->cache[i]))
            return 1;
    for (size_t d = 0; d < m->depths; d++) {
        for (size_t i = 0; i < m->caches; i++)
            if (fill(m, &m->cache[i], m->depth[d]))
                return 1;
        print_progress("decoding");
        if (decode_in_turns(m))
            return 1;
        print_progress(NULL);
        for (size_t i = 0; i < m->caches; i++)
            print_row(m, &m->cache[i], m->depth[d]);
    }
    if (m->options->table)
        table_end(m->options->table, NULL, NULL);
    return 0;
}

int bench_model(const struct command *self, const struct model_bench *options)
{
    struct match m = {.self = self, .options = options, .random = 1};
    struct gguf *file = NULL;
    char error[LLM_ERROR_BYTES];
    int status = read_caches(&m);
    status = status ? status : read_depths(&m);
    if (!status && gguf_open(options->path, &file, error))
        status = failed(self, "%s: %s", options->path, error);
    if (!status && llm_open(file, options->threads, &m.llm, error))
        status = failed(self, "%s: %s", options->path, error);
    if (!status && !(status = open_states(&m)))
        status = measure(&m);
    for (size_t i = 0; i < m.caches; i++)
        llm_state_destroy(m.cache[i].state);
    free(m.logits);
    llm_close(m.llm);
    gguf_close(file);
    return status;
}
