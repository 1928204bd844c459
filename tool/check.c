/* aura check: every kernel of the list against the reference. */
#define _GNU_SOURCE
#include "check.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "guard.h"
#include "tool.h"

struct options {
    const char *pattern, *isa;
    uint64_t seed;
    int bench, json, strict, stop, times;
};

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

/* The reference's time at the same stage and width. */
static double ref_ns(const struct aura_variant *v, double seconds)
{
    double bytes;
    for (size_t i = 0; i < aura_variant_count; i++)
        if (aura_variant_list[i].slot == v->slot && aura_variant_list[i].isa_flag == AURA_ISA_REF)
            return time_stage(&aura_variant_list[i], seconds, &bytes);
    return 0;
}

static void check_variant(struct result *r, const struct aura_variant *v, const struct options *o)
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
    if (r->outcome != FAIL && o->times) {
        double bytes, seconds = o->bench ? 0.1 : 0.003;
        r->ns = time_stage(v, seconds, &bytes);
        r->gb_per_s = bytes / r->ns;
        r->speedup = ref_ns(v, seconds) / r->ns;
    }
}

static void print_text(const struct result *r, const struct options *o)
{
    const struct trial *t = &r->trial;
    printf("%-30s %-9s", t->variant->name, outcome_names[r->outcome]);
    if (r->outcome == SKIP || r->outcome == FAIL) {
        printf("%s\n", r->reason);
        if (r->outcome == FAIL)
            printf("    repeat: aura check %s --seed %llu\n", t->variant->name, (unsigned long long)o->seed);
        return;
    }
    printf("%6zu cases  worst %7.1e", t->cases, t->worst);
    if (o->times)
        printf("  %9.1f ns/row %7.2f GB/s %7.1fx ref", r->ns, r->gb_per_s, r->speedup);
    printf("\n");
}

static void print_json(const struct result *r, int first)
{
    const struct trial *t = &r->trial;
    printf("%s\n  {\"variant\": \"%s\", \"outcome\": \"%s\", \"cases\": %zu, \"worst\": %.3g, \"ns_per_row\": %.1f, "
           "\"gb_per_s\": %.3f, \"times_ref\": %.2f, \"reason\": ",
           first ? "" : ",", t->variant->name, outcome_names[r->outcome], t->cases, t->worst, r->ns, r->gb_per_s,
           r->speedup);
    print_json_string(r->reason);
    printf("}");
}

/* Every variant of the list must have run and passed in at least one of the files. */
static int check_union(char **files, int n)
{
    int missing = 0;
    for (size_t i = 0; i < aura_variant_count; i++) {
        char key[80];
        int found = 0;
        snprintf(key, sizeof key, "\"variant\": \"%s\", \"outcome\": ", aura_variant_list[i].name);
        for (int f = 0; f < n; f++) {
            char *text = read_file(files[f]), *at = text ? strstr(text, key) : NULL;
            if (!text)
                return fprintf(stderr, "aura check: cannot read %s\n", files[f]), 2;
            found |= at && (!strncmp(at + strlen(key), "\"ok\"", 4) || !strncmp(at + strlen(key), "\"marginal\"", 10));
            free(text);
        }
        if (!found)
            printf("never ran: %s\n", aura_variant_list[i].name), missing++;
    }
    printf("%zu variants declared, %d never ran in %d file%s\n", aura_variant_count, missing, n, n == 1 ? "" : "s");
    return missing != 0;
}

static int parse(struct options *o, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        if (!strcmp(argv[i], "--bench"))
            o->bench = 1;
        else if (!strcmp(argv[i], "--json"))
            o->json = 1;
        else if (!strcmp(argv[i], "--strict"))
            o->strict = 1;
        else if (!strcmp(argv[i], "--stop"))
            o->stop = 1;
        else if (!strcmp(argv[i], "--no-times"))
            o->times = 0;
        else if (!strcmp(argv[i], "--isa") && i + 1 < argc)
            o->isa = argv[++i];
        else if (!strcmp(argv[i], "--seed") && i + 1 < argc)
            o->seed = strtoull(argv[++i], NULL, 0);
        else if (argv[i][0] == '-' || o->pattern)
            return fprintf(stderr, "aura check: unknown argument %s\n", argv[i]), 2;
        else
            o->pattern = argv[i];
    }
    return 0;
}

static int selected(const struct aura_variant *v, const struct options *o)
{
    return (!o->pattern || strstr(v->name, o->pattern)) && (!o->isa || !strcmp(v->isa, o->isa));
}

int command_check(int argc, char **argv)
{
    struct options o = {NULL, NULL, 1, 0, 0, 0, 0, 1};
    size_t count[4] = {0}, cases = 0, shown = 0;
    if (argc > 1 && !strcmp(argv[0], "--union"))
        return check_union(argv + 1, argc - 1);
    if (parse(&o, argc, argv))
        return 2;
    if (o.json)
        printf("{\"seed\": %llu, \"variants\": [", (unsigned long long)o.seed);
    else
        printf("aura %s on %s; seed %llu; times are of hot caches, dim 128, one thread\n", aura_version(), cpu_name(),
               (unsigned long long)o.seed);
    for (size_t i = 0; i < aura_variant_count && !(o.stop && count[FAIL]); i++) {
        struct result r;
        if (!selected(&aura_variant_list[i], &o))
            continue;
        check_variant(&r, &aura_variant_list[i], &o);
        count[r.outcome]++;
        cases += r.trial.cases;
        if (o.json)
            print_json(&r, shown == 0);
        else
            print_text(&r, &o);
        fflush(stdout);
        shown++;
    }
    if (o.json)
        printf("\n], \"ok\": %zu, \"marginal\": %zu, \"failed\": %zu, \"skipped\": %zu}\n", count[OK], count[MARGINAL],
               count[FAIL], count[SKIP]);
    else
        printf("%zu variants: %zu ok, %zu marginal, %zu failed, %zu skipped; %zu cases\n", shown, count[OK],
               count[MARGINAL], count[FAIL], count[SKIP], cases);
    if (!shown)
        return fprintf(stderr, "aura check: no variant matches; `aura list` shows them all\n"), 2;
    return count[FAIL] || (o.strict && count[SKIP]);
}
