/* aura check: compares every kernel of the list with its definition in ref*.c. */
#define _GNU_SOURCE
#include "check.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../cuda_tool.h"
#include "guard.h"
#include "../parts/cuda_kernels.h"
#include "../parts/terminal.h"
#include "../tool.h"

struct arguments {
    const char *pattern, *isa, *device;
    uint32_t seed;
    int bench, json, csv, strict, stop, no_times;
    struct option_rest results;
};

static const struct option options[] = {
    ISA(isa, "only those of one instruction set, the last part of a name"),
    NUMBER(seed, "--seed", 0, UINT32_MAX, "N", "other inputs (1)"),
    FLAG(bench, "--bench", "time them longer"),
    FLAG(no_times, "--no-times", "do not time them"),
    FLAG(strict, "--strict", "a kernel that cannot run here is a failure"),
    FLAG(stop, "--stop", "stop at the first failure"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV"),
    CHOICE(device, "--device", "cpu cuda", "NAME", "cuda: the CUDA backend against the CPU's bytes and double"),
    REST(results, "--union", "FILE...", "fail if a kernel ran in none of these JSON results"),
    LAST_OPTION};

enum outcome { OK, MARGINAL, FAIL, SKIP };
static const char *const outcome_names[] = {"ok", "marginal", "FAIL", "skip"};

struct result {
    enum outcome outcome;
    struct trial trial;
    char reason[400]; /* of a skip or a failure */
    double ns, gb_per_s, speedup;
};

static double tolerance_of(const char *stage)
{
#define TOLERANCE(name, family, tolerance) \
    if (!strcmp(stage, #name))       \
        return tolerance;
    AURA_STAGES(TOLERANCE)
#undef TOLERANCE
    return 0;
}

static const char *needs_of(const struct aura_variant *v)
{
    for (size_t i = 0; i < aura_isa_count; i++)
        if (aura_isa_list[i].flag == v->isa_flag)
            return aura_isa_list[i].needs;
    return "";
}

static void run_body(void *user)
{
    check_stage(user);
}

static void judge(struct result *r)
{
    struct trial *t = &r->trial;
    int caught = guard_run(run_body, t);
    if (caught)
        snprintf(r->reason, sizeof r->reason, "%s: %s", t->where, strsignal(caught));
    else if (t->failure[0])
        snprintf(r->reason, sizeof r->reason, "%s", t->failure);
    else if (t->cases == 0)
        snprintf(r->reason, sizeof r->reason, "declared, but no case ran");
    r->outcome = r->reason[0] ? FAIL : t->worst > t->tolerance / 2 ? MARGINAL : OK;
}

/* The time of the definition at the same stage and shape. */
static double ref_ns(const struct aura_variant *v, double seconds)
{
    double bytes;
    for (size_t i = 0; i < aura_variant_count; i++)
        if (aura_variant_list[i].slot == v->slot && aura_variant_list[i].isa_flag == AURA_ISA_REF)
            return time_stage(&aura_variant_list[i], seconds, &bytes);
    return 0;
}

static void check_variant(struct result *r, const struct aura_variant *v, const struct arguments *o)
{
    memset(r, 0, sizeof *r);
    r->trial.variant = v;
    r->trial.seed = o->seed;
    r->trial.tolerance = tolerance_of(v->stage);
    if (!v->run || !(v->isa_flag & aura_cpu_isas())) {
        r->outcome = SKIP;
        snprintf(r->reason, sizeof r->reason, "needs %s", needs_of(v));
        return;
    }
    judge(r);
    if (r->outcome != FAIL && !o->no_times) {
        double bytes, seconds = o->bench ? 0.1 : 0.003;
        r->ns = time_stage(v, seconds, &bytes);
        r->gb_per_s = bytes / r->ns;
        r->speedup = ref_ns(v, seconds) / r->ns;
    }
}

static void print_text(const struct result *r, const struct arguments *o)
{
    const struct trial *t = &r->trial;
    static const enum colour colours[] = {GREEN, YELLOW, RED, DIM};
    printf("%-30s %s%-9s%s", t->variant->name, colour(stdout, colours[r->outcome]), outcome_names[r->outcome],
           colour(stdout, PLAIN));
    if (r->outcome == SKIP || r->outcome == FAIL) {
        printf("%s\n", r->reason);
        if (r->outcome == FAIL)
            printf("    repeat: aura check %s --seed %u\n", t->variant->name, o->seed);
        return;
    }
    printf("%6zu cases  worst %7.1e", t->cases, t->worst);
    if (!o->no_times)
        printf("  %9.1f ns/row %7.2f GB/s %7.1fx ref", r->ns, r->gb_per_s, r->speedup);
    printf("\n");
}

static void result_fields(struct table *t, const void *result)
{
    const struct result *r = result;
    table_text(t, "variant", r->trial.variant->name);
    table_text(t, "outcome", outcome_names[r->outcome]);
    table_number(t, "cases", "%zu", r->trial.cases);
    table_number(t, "worst", "%.3g", r->trial.worst);
    table_number(t, "ns_per_row", "%.1f", r->ns);
    table_number(t, "gb_per_s", "%.3f", r->gb_per_s);
    table_number(t, "times_ref", "%.2f", r->speedup);
    table_text(t, "reason", r->reason);
}

static void origin(struct table *t, const void *arguments)
{
    const struct arguments *o = arguments;
    table_number(t, "seed", "%u", o->seed);
    table_machine(t);
    table_text(t, "compiler", compiler_name);
}

static void count_fields(struct table *t, const void *counts)
{
    const size_t *count = counts;
    table_number(t, "ok", "%zu", count[OK]), table_number(t, "marginal", "%zu", count[MARGINAL]);
    table_number(t, "failed", "%zu", count[FAIL]), table_number(t, "skipped", "%zu", count[SKIP]);
}

/* Whether one of the texts, which are what `aura check --json` printed, says that the kernel ran and passed. */
static int ran_in(char *const *texts, int n, const char *name)
{
    char key[80];
    snprintf(key, sizeof key, "\"variant\": \"%s\", \"outcome\": ", name);
    for (int i = 0; i < n; i++) {
        const char *at = strstr(texts[i], key), *outcome = at ? at + strlen(key) : "";
        if (!strncmp(outcome, "\"ok\"", 4) || !strncmp(outcome, "\"marginal\"", 10))
            return 1;
    }
    return 0;
}

/* Names those that did not. */
static int count_missing(char *const *texts, int n)
{
    int missing = 0;
    for (size_t i = 0; i < aura_variant_count + cuda_kernel_count; i++) {
        const char *name = i < aura_variant_count ? aura_variant_list[i].name : cuda_kernel_list[i - aura_variant_count];
        if (!ran_in(texts, n, name))
            printf("never ran: %s\n", name), missing++;
    }
    return missing;
}

/* Every kernel of the list, of CPUs and of the GPU, must have run and passed in at least one of the files. */
static int check_union(const struct command *self, char **files, int n)
{
    int read = 0, missing = 0;
    size_t size;
    char **texts = calloc((size_t)n, sizeof *texts);
    while (texts && read < n && (texts[read] = read_file(files[read], &size)))
        read++;
    const int error = errno;
    if (read == n)
        missing = count_missing(texts, n);
    for (int i = 0; i < read; i++)
        free(texts[i]);
    free(texts);
    if (read < n && error == ENOMEM)
        return failed(self, "%s: out of memory", files[read]);
    if (read < n)
        return usage_error(self, "cannot read %s: it must be what `aura check --json` printed", files[read]);
    printf("%zu variants declared, %zu of them for CUDA; %d never ran in %d file%s\n", aura_variant_count + cuda_kernel_count,
           cuda_kernel_count, missing, n, n == 1 ? "" : "s");
    return missing != 0;
}

static int selected(const struct aura_variant *v, const struct arguments *o)
{
    return (!o->pattern || strstr(v->name, o->pattern)) && (!o->isa || !strcmp(v->isa, o->isa));
}

static int run_check(const struct command *self, int argc, char **argv)
{
    struct arguments o = {.seed = 1};
    size_t count[4] = {0}, cases = 0, shown = 0;
    struct table table;
    if (on_cuda(&argc, argv))
        return cuda_check(argc, argv);
    if (parse_options(self, argc, argv, &o, &o.pattern))
        return 2;
    if (o.results.count)
        return check_union(self, o.results.list, o.results.count);
    const int text = !o.json && !o.csv;
    if (!text)
        table_begin(&table, o.csv && !o.json, "variants", origin, &o);
    else
        printf("aura %s on %s; seed %u; times are of hot caches, dim 128, one thread\n", aura_version(), cpu_name(),
               o.seed);
    for (size_t i = 0; i < aura_variant_count && !(o.stop && count[FAIL]); i++) {
        struct result r;
        if (!selected(&aura_variant_list[i], &o))
            continue;
        check_variant(&r, &aura_variant_list[i], &o);
        count[r.outcome]++;
        cases += r.trial.cases;
        if (!text)
            table_row(&table, result_fields, &r);
        else
            print_text(&r, &o);
        fflush(stdout);
        shown++;
    }
    if (!text)
        table_end(&table, count_fields, count);
    else
        printf("%zu variants: %zu ok, %zu marginal, %zu failed, %zu skipped; %zu cases\n", shown, count[OK],
               count[MARGINAL], count[FAIL], count[SKIP], cases);
    if (!shown)
        return usage_error(self, "no kernel of a CPU matches; `aura list` shows them all, "
                           "and --device cuda checks those of the GPU");
    return count[FAIL] || (o.strict && count[SKIP]);
}

const struct command command_check = {
    "check", "compare every kernel with its definition", "[PATTERN] [OPTIONS]\n--union FILE...\n--device cuda [PART] [--json]",
    "Runs kernels whose name has PATTERN in it on awkward inputs, and compares with\n"
    "plain C in double. A failure prints the command that repeats it, and the exit\n"
    "code is 1. PART is one of the GPU's checks; an unknown one gets their names.\n",
    "PATTERN", NULL, options, "aura check                     all of them, in a minute\naura check score --isa avx2    a few\n",
    run_check};
