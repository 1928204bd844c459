/* The results of `aura eval`, for people and for programs. */
#include <math.h>
#include <stdio.h>

#include "eval.h"
#include "../parts/terminal.h"
#include "../tool.h"

static void print_head(const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    uint32_t chunks = quality_chunks(o), open = (uint32_t)open_tokens(o->ctx, o->rollback);
    const struct divergence_summary *any = &r->caches[0].result;
    printf("%s on %s: %u chunk%s of %u tokens, %zu positions compared, %s\n", r->model, r->text, chunks, chunks == 1 ? "" : "s",
           o->ctx, any->positions, o->by_depth ? "the last 128 before each depth" : "the second half of each");
    if (o->ctx > llm_shape(o->llm)->ctx)
        printf("that is more than the %u that the model was trained for\n", llm_shape(o->llm)->ctx);
    printf("perplexity with the exact cache, f32: %.4f\n", any->ppl.value / any->ppl_ratio.value);
    printf("keys and values of ours: codes, but for the first 4 tokens of a chunk, in f16");
    if (o->decode)
        printf(", and the newest %u to %u, which are open: tokens came one by one,\n"
               "after a prompt whose tokens saw each other as they came, %d at a time", o->rollback, o->rollback + 31, LLM_PART);
    else if (open)
        printf(", and its last %u, which are open", open);
    if (o->equal || o->decode)
        printf("; %s", o->equal ? "so with the others" : "the others store a prompt before anything reads it, as llama.cpp does");
    printf("\nprofile: %s%s\n", r->profile ? r->profile : "none", o->learn ? "; the caches learn" : "");
    if (o->rounded)
        printf("products: on bytes, whose rounding adds some 0.003 to the divergence of every cache\n");
    printf("llama.cpp's and papers', with *: as stored values; what their attention rounds besides is not in them\n");
    for (size_t i = 0; i < r->count; i++)
        if (r->caches[i].codec)
            printf("%s, with +: %s; all of its tokens as it returns them, none in f16\n", r->caches[i].name, r->caches[i].codec);
    printf("±: standard error, as if positions were independent; KL divergence from the exact cache in nats\n"
           "taken: how many tokens that a model with this cache proposes the exact one would take, as a draft of its own\n\n");
}

const char *eval_family_mark(const struct quality_cache *c)
{
    return c->peer ? "*" : c->codec ? "+" : "";
}

static void print_row(const struct quality_options *o, const struct quality_cache *c)
{
    const struct divergence_summary *d = &c->result;
    char name[20];
    snprintf(name, sizeof name, "%s%s", c->name, eval_family_mark(c));
    printf("%s%-8s%s %6.2f  %9.2e ± %-8.1e %9.2e %9.2e %9.2e %9.2e  %6.2f ± %-5.2f %8.2f %9.4f %8.4f ± %.4f", colour(stdout, BOLD),
           name, colour(stdout, PLAIN), c->bits, d->kld_mean.value, d->kld_mean.error, d->kld_median.value, d->kld_p99.value,
           d->kld_p999.value, d->kld_max, 100 * d->same_top.value, 100 * d->same_top.error, 100 * d->accepted.value, d->ppl.value,
           d->ppl_ratio.value, d->ppl_ratio.error);
    if (o->against)
        printf("  %7.3f ± %.3f", c->ratio.value, c->ratio.error);
    printf("\n");
}

/* The mean divergence by depth, a table of its own. */
static void print_depths(const struct eval_report *r)
{
    const uint32_t depths = quality_depths(r->options->ctx);
    printf("\nmean KLD of the 128 positions before so many tokens\n%-8s", "cache");
    for (uint32_t i = 0; i < depths; i++)
        printf(" %19u", (unsigned)QUALITY_FIRST_DEPTH << i);
    for (size_t k = 0; k < r->count; k++) {
        printf("\n%-8s", r->caches[k].name);
        for (uint32_t i = 0; i < depths; i++)
            printf("  %8.2e ± %-7.1e", r->caches[k].depth[i].value, r->caches[k].depth[i].error);
    }
    printf("\n");
}

void eval_print_table(const struct eval_report *r)
{
    print_head(r);
    printf("%-8s %6s  %-20s %9s %9s %9s %9s  %-14s %8s %9s %17s", "cache", "bits", "     mean KLD", "median", "99 %", "99.9 %",
           "max", "same top, %", "taken, %", "ppl", "ppl / exact");
    if (r->options->against)
        printf("     KLD / %s", r->options->against);
    printf("\n");
    for (size_t i = 0; i < r->count; i++)
        print_row(r->options, &r->caches[i]);
    if (r->options->by_depth)
        print_depths(r);
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
    static char name[48];
    snprintf(name, sizeof name, "%s, stored values", c->peer ? c->peer->family : "");
    return c->codec ? "codec" : c->peer ? name : "aura";
}

static void json_depths(const struct quality_options *o, const struct quality_cache *c)
{
    printf(", \"depths\": [");
    for (uint32_t i = 0; i < quality_depths(o->ctx); i++) {
        printf("%s{\"tokens\": %u", i ? ", " : "", (unsigned)QUALITY_FIRST_DEPTH << i);
        json_estimate("kld_mean", c->depth[i]);
        printf("}");
    }
    printf("]");
}

/* What a table is of: without it nobody can repeat it. */
static void json_origin(const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    printf(", \"rollback\": %u, \"equal\": %s, \"profile\": ", o->rollback, o->equal ? "true" : "false");
    if (r->profile)
        print_json_string(r->profile);
    printf("%s, \"learn\": %s", r->profile ? "" : "null", o->learn ? "true" : "false");
    printf(", \"model\": ");
    print_json_string(r->model);
    printf(", \"text\": ");
    if (r->text)
        print_json_string(r->text);
    printf("%s, \"seed\": %llu, \"version\": \"%s\", \"cpu\": ", r->text ? "" : "null",
           (unsigned long long)o->seed, aura_version());
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

/* The same for a line of CSV, from the model on. */
static void csv_origin(const struct eval_report *r)
{
    print_csv_string(r->profile ? r->profile : ""), putchar(','), print_csv_string(r->model), putchar(','),
        print_csv_string(r->text ? r->text : "");
    printf(",%llu,%s,", (unsigned long long)r->options->seed, aura_version());
    print_csv_string(cpu_name());
    printf(",%s,%u\n", isa_name(aura_cpu_isas()), r->options->threads);
}

void eval_print_csv(const struct eval_report *r)
{
    const struct quality_options *o = r->options;
    printf("cache,family,bits,kld_mean,kld_mean_se,kld_median,kld_p99,kld_p999,kld_max,same_top,ppl,ppl_ratio,ppl_ratio_se,"
           "accepted,accepted_se,against,against_se,positions,ctx,rollback,decode,equal,profile,model,text,seed,version,cpu,isa,"
           "threads\n");
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        const struct divergence_summary *d = &c->result;
        const double numbers[] = {c->bits, d->kld_mean.value, d->kld_mean.error, d->kld_median.value, d->kld_p99.value,
                                  d->kld_p999.value, d->kld_max, d->same_top.value, d->ppl.value, d->ppl_ratio.value,
                                  d->ppl_ratio.error, d->accepted.value, d->accepted.error, o->against ? c->ratio.value : NAN,
                                  o->against ? c->ratio.error : NAN};
        printf("%s,%s", c->name, c->codec ? "codec" : c->peer ? c->peer->family : "aura");
        for (size_t k = 0; k < sizeof numbers / sizeof *numbers; k++)
            csv_number(numbers[k]);
        printf(",%zu,%u,%u,%d,%d,", d->positions, o->ctx, o->rollback, o->decode, o->equal);
        csv_origin(r);
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
        json_estimate("accepted", d->accepted);
        if (o->against)
            json_estimate("against", c->ratio);
        if (o->by_depth)
            json_depths(o, c);
        printf(", \"positions\": %zu, \"ctx\": %u, \"decode\": %s", d->positions, o->ctx, o->decode ? "true" : "false");
        json_origin(r);
        printf("}");
    }
    printf("\n]\n");
}

/* ---- records ---------------------------------------------------------------------------------------------------------- */

static const char *const hop_names[2] = {"one hop", "two hops"};

static void records_table(const struct eval_report *r, uint32_t facts, struct records_result (*results)[2])
{
    printf("%s: %u facts that are much alike, and questions about each; %u round%s\n", r->model, facts, r->options->chunks,
           r->options->chunks == 1 ? "" : "s");
    printf("profile: %s%s; of ours the newest tokens are open, and a prompt sees itself as it came%s\n",
           r->profile ? r->profile : "none", r->options->learn ? "; the caches learn" : "",
           r->options->equal ? "; so with the others" : "");
    printf("margin: logit of the right answer less the best wrong one's, nats; lost: of it, against the exact cache, in pairs\n\n");
    printf("%-8s %6s", "", "");
    for (int hops = 0; hops < 2; hops++)
        printf("  %-46s", hop_names[hops]);
    printf("\n%-8s %6s", "cache", "bits");
    for (int hops = 0; hops < 2; hops++)
        printf("  %-14s%-16s%-16s", "right, %", "margin", "lost");
    printf("\n");
    for (size_t i = 0; i <= r->count; i++) {
        printf("%-8s %6.2f", i ? r->caches[i - 1].name : "exact", i ? r->caches[i - 1].bits : 32.0);
        for (int hops = 0; hops < 2; hops++) {
            const struct records_result *x = &results[i][hops];
            printf("  %5.1f ± %-5.1f %6.2f ± %-5.2f  %6.2f ± %-5.2f", 100 * x->right.value, 100 * x->right.error, x->margin.value,
                   x->margin.error, x->loss.value, x->loss.error);
        }
        printf("\n");
    }
}

void eval_print_records(const struct eval_report *r, uint32_t facts, struct records_result (*results)[2], int json, int csv)
{
    if (!json && !csv) {
        records_table(r, facts, results);
        return;
    }
    printf(json ? "[" : "cache,bits,hops,right,right_se,margin,margin_se,lost,lost_se,facts,rounds,profile,model,text,seed,version,"
           "cpu,isa,threads\n");
    for (size_t i = 0; i < 2 * (r->count + 1); i++) {
        const struct records_result *x = &results[i / 2][i % 2];
        const char *name = i / 2 ? r->caches[i / 2 - 1].name : "exact";
        const double bits = i / 2 ? r->caches[i / 2 - 1].bits : 32;
        if (json) {
            printf("%s\n  {\"cache\": \"%s\", \"hops\": %zu, \"facts\": %u, \"rounds\": %u", i ? "," : "", name, i % 2 + 1,
                   facts, r->options->chunks);
            json_number("bits", bits), json_estimate("right", x->right), json_estimate("margin", x->margin);
            json_estimate("lost", x->loss), json_origin(r), printf("}");
        } else {
            const struct estimate all[] = {x->right, x->margin, x->loss};
            printf("%s,%.7g,%zu", name, bits, i % 2 + 1);
            for (size_t k = 0; k < sizeof all / sizeof *all; k++)
                csv_number(all[k].value), csv_number(all[k].error);
            printf(",%u,%u,", facts, r->options->chunks), csv_origin(r);
        }
    }
    printf("%s", json ? "\n]\n" : "");
}

/* ---- drift ------------------------------------------------------------------------------------------------------------ */

static void drift_table(const struct eval_report *r, uint32_t prompt, uint32_t steps, const struct drift_result *results)
{
    printf("%s on %s: %u texts, prompts of %u tokens and %u that the exact model wrote, its most likely ones\n", r->model, r->text,
           results->texts, prompt, steps);
    printf("profile: %s%s; of ours the newest tokens are open, and a prompt sees itself as it came%s\n\n",
           r->profile ? r->profile : "none", r->options->learn ? "; the caches learn" : "",
           r->options->equal ? "; so with the others" : "");
    printf("%-8s %6s  %-14s", "cache", "bits", "same top, %");
    for (uint32_t i = 0; i < DRIFT_PARTS; i++)
        printf(" KLD to step %-8u", (i + 1) * steps / DRIFT_PARTS);
    printf(" first other token at step\n");
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        printf("%-8s %6.2f  %6.2f ± %-5.2f", c->name, c->bits, 100 * c->result.same_top.value, 100 * c->result.same_top.error);
        for (uint32_t k = 0; k < DRIFT_PARTS; k++)
            printf(" %9.2e ± %-8.1e", results[i].part[k].value, results[i].part[k].error);
        for (uint32_t k = 0; k < results[i].texts; k++)
            if (results[i].first[k])
                printf(" %u", results[i].first[k]);
            else
                printf(" never");
        printf("\n");
    }
}

void eval_print_drift(const struct eval_report *r, uint32_t prompt, uint32_t steps, const struct drift_result *results, int json,
                      int csv)
{
    if (!json && !csv) {
        drift_table(r, prompt, steps, results);
        return;
    }
    printf(json ? "[" : "cache,bits,chunk,first_other,same_top,kld_mean,kld_mean_se,prompt,steps,profile,model,text,seed,version,"
           "cpu,isa,threads\n");
    for (size_t i = 0; i < r->count; i++) {
        const struct quality_cache *c = &r->caches[i];
        for (uint32_t k = 0; csv && k < results[i].texts; k++) {
            printf("%s,%.7g,%u,%u", c->name, c->bits, k + 1, results[i].first[k]);
            csv_number(c->result.same_top.value), csv_number(c->result.kld_mean.value), csv_number(c->result.kld_mean.error);
            printf(",%u,%u,", prompt, steps), csv_origin(r);
        }
        if (csv)
            continue;
        printf("%s\n  {\"cache\": \"%s\", \"prompt\": %u, \"steps\": %u, \"first_other\": [", i ? "," : "", c->name, prompt, steps);
        for (uint32_t k = 0; k < results[i].texts; k++)
            printf("%s%u", k ? ", " : "", results[i].first[k]);
        printf("], \"parts\": [");
        for (uint32_t k = 0; k < DRIFT_PARTS; k++)
            printf("%s{\"to\": %u", k ? ", " : "", (k + 1) * steps / DRIFT_PARTS),
                json_estimate("kld_mean", results[i].part[k]), printf("}");
        printf("]");
        json_number("bits", c->bits), json_estimate("same_top", c->result.same_top), json_estimate("kld_mean", c->result.kld_mean);
        json_origin(r), printf("}");
    }
    printf("%s", json ? "\n]\n" : "");
}
