/* aura eval: what a cache does to the next-token distributions of a model. */
#include "eval.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../bench/bench.h"
#include "../parts/own_profile.h"
#include "../parts/replacement.h"
#include "../parts/terminal.h"
#include "../parts/text_model.h"
#include "../tool.h"

enum { DECODE_ROLLBACK = 16 }; /* what a cache has that nobody told otherwise */

struct arguments {
    const char *model, *text, *cache, *profile, *base, *html, *positions, *against;
    struct option_texts codecs;
    uint32_t ctx, chunks, rollback, seed, threads, drift, records;
    int learn, rounded, json, csv, decode, equal, depths;
};

static const struct option options[] = {
    PATH(text, "--text", "FILE", "the text, at least --ctx tokens of it"),
    FORMATS(cache, "--cache", "k4v4,q4_0 ..., profile (a default of both families)"),
    TEXTS(codecs, "--codec", "COMMAND", "one of your own beside them: doc/codec.md"),
    PATH(profile, "--profile", "FILE", "from `aura calibrate`; auto: of an own text, not kept"),
    FLAG(learn, "--learn", "caches of ours learn metrics from the queries"),
    NUMBER(ctx, "--ctx", 4, 1 << 20, "N", "tokens of a chunk (2048); its second half is compared"),
    FLAG(decode, "--decode", "read the compared half token by token, as written"),
    FLAG(equal, "--equal", "others keep in f16 what ours keep: 4 first, open ones"),
    FLAG(depths, "--depths", "by depth: 128 positions before 512, 1024 ... tokens"),
    TEXT(against, "--against", "CACHE", "quotients of mean divergences, in pairs of positions"),
    NUMBER(records, "--records", 2, 64, "N", "questions about N facts that are much alike; no --text"),
    NUMBER(drift, "--drift", 4, 1 << 16, "N", "follow N tokens that the exact model writes"),
    NUMBER(chunks, "--chunks", 1, 1 << 20, "N", "so many of the text (all; --records: 4, --drift: 4)"),
    NUMBER(rollback, "--rollback", 0, 32, "N", "tokens that may be taken back, in f16 (0; as written: 16)"),
    PATH(base, "--base", "FILE", "keep the exact logits there, and go on from there"),
    FLAG(rounded, "--rounded", "products on bytes, as `aura run`: fast, but with noise"),
    NUMBER(seed, "--seed", 0, UINT32_MAX, "N", "other signs (1)"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    RESULT(positions, "--positions", "FILE", "KL divergence at every position, CSV"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV"),
    RESULT(html, "--html", "FILE", "a page with charts: divergence against bits"),
    LAST_OPTION};

/* All passes take about the same time, so the past ones tell how long the others will take. arg: when the first began. */
static void report_progress(void *arg, const struct quality_step *step)
{
    double passed = now() - *(const double *)arg;
    char left[32] = "", line[128];
    if (step->step) {
        unsigned seconds = (unsigned)(passed / step->step * (step->steps - step->step) + 0.5);
        snprintf(left, sizeof left, ", %u:%02u left", seconds / 60, seconds % 60);
    }
    snprintf(line, sizeof line, "chunk %u of %u, %s: pass %u of %u%s", step->chunk + 1, step->chunks, step->cache, step->step + 1,
             step->steps, left);
    print_progress(line);
}

static int check(const struct command *self, const struct arguments *a, struct quality_cache **caches, size_t *count)
{
    char error[LLM_ERROR_BYTES] = "";
    if (!a->model)
        return usage_error(self, "needs a model, a GGUF file; `make model` fetches one into models/");
    if (!a->text && !a->records)
        return usage_error(self, "needs --text, such as --text data/novel.txt");
    if (!!a->records + !!a->drift + a->depths > 1)
        return usage_error(self, "--records, --drift and --depths are measured one at a time");
    if (a->codecs.count && (a->records || a->drift || a->decode))
        return usage_error(self, "a codec gets whole chunks: --decode, --records and --drift are not for it");
    if ((a->records || a->drift) && (a->html || a->base || a->positions || a->against))
        return usage_error(self, "--html, --base, --positions and --against are not for --records and --drift");
    if (a->records % 2)
        return usage_error(self, "--records: %u is odd, and two hops take pairs", a->records);
    if (a->drift % DRIFT_PARTS)
        return usage_error(self, "--drift: %u is no multiple of %d", a->drift, DRIFT_PARTS);
    const int status = quality_parse(a->cache, caches, count, error);
    if (status)
        return status == 2 ? usage_error(self, "--cache: %s", error) : failed(self, "%s", error);
    for (size_t i = 0; i < a->codecs.count; i++)
        if (quality_add_codec(a->codecs.list[i], caches, count))
            return failed(self, "no memory");
    return 0;
}

static void print_position(void *arg, const char *cache, uint32_t chunk, uint32_t position, const struct divergence_row *row)
{
    fprintf(arg, "%s,%u,%u,%.9g,%.9g,%.9g,%d\n", cache, chunk + 1, position, row->kld, row->nll, row->exact_nll, row->same_top);
}

/* Measures, and writes the file of --positions. */
static int measure_positions(const struct arguments *a, struct quality_options *o, struct quality_cache *caches, size_t count,
                             char error[LLM_ERROR_BYTES])
{
    struct replacement file;
    if (!a->positions)
        return quality_measure(o, caches, count, error);
    if (replacement_begin(&file, a->positions))
        return snprintf(error, LLM_ERROR_BYTES, "%.150s: cannot be written: %s", a->positions, strerror(errno)), 1;
    fprintf(file.to, "cache,chunk,position,kld,nll,exact_nll,same_top\n");
    o->on_row = print_position, o->row_arg = file.to;
    const int bad = quality_measure(o, caches, count, error);
    if (bad)
        errno = ECANCELED;
    if (replacement_end(&file, bad) && !bad)
        return snprintf(error, LLM_ERROR_BYTES, "%.150s: cannot be written: %s", a->positions, strerror(errno)), 1;
    return bad;
}

enum { ROUNDS = 4, DRIFT_PROMPT = 256 };

static int measure_records(const struct arguments *a, const struct text_model *m, struct quality_options *o,
                           struct quality_cache *caches, size_t count, char error[LLM_ERROR_BYTES])
{
    struct records_result(*results)[2] = calloc(count + 1, sizeof *results);
    o->chunks = a->chunks ? a->chunks : ROUNDS, o->decode = 1;
    if (!results)
        return snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1;
    int bad = records_measure(o, m->tokenizer, m->begin, a->records, o->chunks, caches, count, results, error);
    print_progress(NULL);
    if (!bad)
        eval_print_records(&(struct eval_report){a->model, NULL, a->profile, o, caches, count}, a->records, results,
                           a->json, a->csv);
    free(results);
    return bad;
}

static int measure_drift(const struct arguments *a, struct quality_options *o, struct quality_cache *caches, size_t count,
                         char error[LLM_ERROR_BYTES])
{
    struct drift_result *results = calloc(count, sizeof *results);
    o->chunks = a->chunks ? a->chunks : ROUNDS;
    if (!results)
        return snprintf(error, LLM_ERROR_BYTES, "out of memory"), 1;
    int bad = drift_measure(o, DRIFT_PROMPT, a->drift, caches, count, results, error);
    print_progress(NULL);
    if (!bad)
        eval_print_drift(&(struct eval_report){a->model, a->text, a->profile, o, caches, count}, DRIFT_PROMPT, a->drift, results,
                         a->json, a->csv);
    free(results);
    return bad;
}

/* Measures all caches and prints the results; the model, the text and the profile are open. */
static int measure(const struct command *self, const struct arguments *a, const struct text_model *m, const aura_profile *profile,
                   struct quality_cache *caches, size_t count)
{
    char error[LLM_ERROR_BYTES] = "";
    double begin = now();
    struct quality_options o = {.llm = m->llm, .tokens = m->tokens, .count = m->count, .begin = m->begin, .ctx = a->ctx,
                                .chunks = a->chunks, .threads = a->threads, .rollback = a->rollback, .seed = a->seed,
                                .profile = profile, .learn = a->learn, .base = a->base, .rounded = a->rounded,
                                .decode = a->decode, .equal = a->equal, .by_depth = a->depths, .against = a->against,
                                .progress = report_progress, .arg = &begin};
    if (a->records || a->drift)
        return (a->records ? measure_records(a, m, &o, caches, count, error) : measure_drift(a, &o, caches, count, error)) ?
               failed(self, "%s", error) : 0;
    int bad = (a->base && file_identity(a->model, &o.model_bytes, &o.model_crc, error)) ||
              measure_positions(a, &o, caches, count, error);
    print_progress(NULL);
    if (bad)
        return failed(self, "%s", error);
    quality_sort(caches, count);
    struct eval_report report = {a->model, a->text, a->profile, &o, caches, count};
    if (a->json)
        eval_print_json(&report);
    else if (a->csv)
        eval_print_csv(&report);
    else
        eval_print_table(&report);
    return a->html && eval_write_html(&report, a->html, error) ? failed(self, "%s", error) : 0;
}

static int run(const struct command *self, int argc, char **argv)
{
    struct arguments a = {.cache = quality_default_caches, .ctx = 2048, .rollback = UINT32_MAX, .seed = 1,
                          .threads = online_cpus()};
    struct quality_cache *caches = NULL;
    struct text_model m = {0};
    struct profile_file profile = {0};
    char error[LLM_ERROR_BYTES] = "";
    size_t count = 0;
    int status = parse_options(self, argc, argv, &a, &a.model);
    if (a.rollback == UINT32_MAX) /* nobody has said */
        a.rollback = a.decode || a.drift || a.records ? DECODE_ROLLBACK : 0;
    status = status ? status : check(self, &a, &caches, &count);
    const int makes_one = a.profile && !strcmp(a.profile, "auto");
    if (!status && !makes_one && profile_file_open(&profile, a.profile))
        status = failed(self, "%s", aura_last_error());
    if (!status && (text_model_open(&m, a.model, a.text, a.threads, a.rounded, error) ||
                    (makes_one && own_profile_make(&profile, &m, a.threads, 0, error))))
        status = failed(self, "%s", error);
    status = status ? status : measure(self, &a, &m, profile.profile, caches, count);
    text_model_close(&m);
    profile_file_close(&profile);
    free(caches);
    return status;
}

const struct command command_eval = {
    "eval", "perplexity and divergence of a model through caches", "MODEL --text FILE [OPTIONS]",
    "How far the next-token distributions of a model are from those with an exact\n"
    "cache: mean and tails of the KL divergence, perplexity, same top token, for\n"
    "caches of ours and, as stored values, of llama.cpp's: f16, q8_0 ... iq4_nl.\n",
    "MODEL", NULL, options,
    "aura eval models/SmolLM2-135M-Instruct.Q4_1.gguf --text data/novel.txt\n", run};
