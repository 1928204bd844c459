/* The results of `aura eval`, for people and for programs. */
#include <math.h>
#include <stdio.h>

#include "eval.h"
#include "../parts/terminal.h"
#include "../tool.h"

static void print_head(const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    uint32_t chunks = quality_chunks(o), open = quality_open_tokens(o->ctx, o->rollback);
    const struct divergence_summary *any = &r->caches[0].result;
    printf("%s on %s: %u chunk%s of %u tokens, %zu positions compared, the second half of each\n", r->model, r->text, chunks,
           chunks == 1 ? "" : "s", o->ctx, any->positions);
    if (o->ctx > llm_shape(o->llm)->ctx)
        printf("that is more than the %u that the model was trained for\n", llm_shape(o->llm)->ctx);
    printf("perplexity with the exact cache, f32: %.4f\n", any->ppl.value / any->ppl_ratio.value);
    printf("keys and values of ours: codes, but for the first 4 tokens of a chunk, in f16");
    if (open)
        printf(", and its last %u, which are open", open);
    printf("\nprofile: %s%s\n", r->profile ? r->profile : "none", o->learn ? "; the caches learn" : "");
    if (o->rounded)
        printf("products: on bytes, whose rounding adds some 0.003 to the divergence of every cache\n");
    printf("llama.cpp's, with *: as stored values behind its rotation; what its attention rounds besides is not in them\n");
    for (size_t i = 0; i < r->count; i++)
        if (r->caches[i].codec)
            printf("%s, with +: %s; all of its tokens as it returns them, none in f16\n", r->caches[i].name, r->caches[i].codec);
    printf("±: standard error, as if positions were independent; KL divergence from the exact cache in nats\n\n");
}

const char *eval_family_mark(const struct quality_cache *c)
{
    return c->peer ? "*" : c->codec ? "+" : "";
}

static void print_row(const struct quality_cache *c)
{
    const struct divergence_summary *d = &c->result;
    char name[20];
    snprintf(name, sizeof name, "%s%s", c->name, eval_family_mark(c));
    printf("%s%-8s%s %6.2f  %9.2e ± %-8.1e %9.2e %9.2e %9.2e %9.2e  %6.2f ± %-5.2f %9.4f %8.4f ± %.4f\n", colour(stdout, BOLD),
           name, colour(stdout, PLAIN), c->bits, d->kld_mean.value, d->kld_mean.error, d->kld_median.value, d->kld_p99.value,
           d->kld_p999.value, d->kld_max, 100 * d->same_top.value, 100 * d->same_top.error, d->ppl.value, d->ppl_ratio.value,
           d->ppl_ratio.error);
}

void eval_print_table(const struct eval_report *r)
{
    print_head(r);
    printf("%-8s %6s  %-20s %9s %9s %9s %9s  %-14s %9s %17s\n", "cache", "bits", "     mean KLD", "median", "99 %", "99.9 %", "max",
           "same top, %", "ppl", "ppl / exact");
    for (size_t i = 0; i < r->count; i++)
        print_row(&r->caches[i]);
}

/* JSON has no NaN: null stands for it. */
static void json_number(const char *name, double x)
{
    if (isfinite(x))
        printf(", \"%s\": %.7g", name, x);
    else
        printf(", \"%s\": null", name);
}

static void json_estimate(const char *name, struct estimate e)
{
    char with_error[32];
    snprintf(with_error, sizeof with_error, "%s_se", name);
    json_number(name, e.value);
    json_number(with_error, e.error);
}

static const char *family_of(const struct quality_cache *c)
{
    return c->codec ? "codec" : c->peer ? "llama.cpp, stored values" : "aura";
}

/* What a table is of: without it nobody can repeat it. */
static void json_origin(const struct eval_report *r)
{
    printf(", \"model\": ");
    print_json_string(r->model);
    printf(", \"text\": ");
    print_json_string(r->text);
    printf(", \"seed\": %llu, \"version\": \"%s\", \"cpu\": ", (unsigned long long)r->options->seed, aura_version());
    print_json_string(cpu_name());
    printf(", \"isa\": \"%s\", \"threads\": %u", isa_name(aura_cpu_isas()), r->options->threads);
}

static void csv_number(double x)
{
    if (isfinite(x))
        printf(",%.7g", x);
    else
        printf(",");
}

void eval_print_csv(const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    printf("cache,family,bits,kld_mean,kld_mean_se,kld_median,kld_p99,kld_p999,kld_max,same_top,ppl,ppl_ratio,ppl_ratio_se,"
           "positions,ctx,rollback,profile,model,text,seed,version,cpu,isa,threads\n");
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        const struct divergence_summary *d = &c->result;
        const double numbers[] = {c->bits, d->kld_mean.value, d->kld_mean.error, d->kld_median.value, d->kld_p99.value,
                                  d->kld_p999.value, d->kld_max, d->same_top.value, d->ppl.value, d->ppl_ratio.value,
                                  d->ppl_ratio.error};
        printf("%s,%s", c->name, c->codec ? "codec" : c->peer ? "llama.cpp" : "aura");
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            csv_number(numbers[k]);
        printf(",%zu,%u,%u,", d->positions, o->ctx, o->rollback);
        print_csv_string(r->profile ? r->profile : ""), putchar(','), print_csv_string(r->model), putchar(','),
            print_csv_string(r->text);
        printf(",%llu,%s,", (unsigned long long)o->seed, aura_version());
        print_csv_string(cpu_name());
        printf(",%s,%u\n", isa_name(aura_cpu_isas()), o->threads);
    }
}

void eval_print_json(const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    printf("[");
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        const struct divergence_summary *d = &c->result;
        printf("%s\n  {\"cache\": \"%s\", \"family\": \"%s\"", i ? "," : "", c->name,
               family_of(c));
        json_number("bits", c->bits);
        json_estimate("kld_mean", d->kld_mean);
        json_estimate("kld_median", d->kld_median);
        json_estimate("kld_p99", d->kld_p99);
        json_estimate("kld_p999", d->kld_p999);
        json_number("kld_max", d->kld_max);
        json_estimate("same_top", d->same_top);
        json_estimate("ppl", d->ppl);
        json_estimate("ppl_ratio", d->ppl_ratio);
        printf(", \"positions\": %zu, \"ctx\": %u, \"rollback\": %u, \"profile\": ", d->positions, o->ctx, o->rollback);
        if (r->profile)
            print_json_string(r->profile);
        printf("%s, \"learn\": %s", r->profile ? "" : "null", o->learn ? "true" : "false");
        json_origin(r);
        printf("}");
    }
    printf("\n]\n");
}
