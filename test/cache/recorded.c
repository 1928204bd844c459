/* The recording of a real model goes through the cache. The result is as near to exact attention as data/README.md says, and
 * every part of the codec makes it nearer. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../tool/parts/recording.h"
#include "../test.h"

enum { LAYERS = 3, SEEDS = 3 };

static const uint32_t layers[LAYERS] = {1, 18, 25};

/* AURA_QUICK in the environment, where a machine is emulated or a sanitizer slows it down: layer 18 with one seed. */
static int first = 0, last = LAYERS - 1, seeds = SEEDS;

static aura_ctx *ctx;
static struct safetensors file;

/* A layer and its exact attention. */
static struct {
    struct recording r;
    struct recording_exact exact;
    size_t rows;
} g[LAYERS];

/* As in the table: everything but the pinned tokens is encoded. */
static struct recording_options options(const char *cache, uint32_t flags, int balance, int seed)
{
    struct recording_options o = {{(aura_kind)0, (aura_kind)0}, flags | AURA_NO_ROLLBACK, 0, (uint64_t)seed, balance};
    EXPECT(!aura_format_parse(cache, &o.format), "%s", aura_last_error());
    return o;
}

static struct recording_errors errors_of(int i, const struct recording_options *o)
{
    struct recording_errors errors = {NAN, NAN, NAN, NAN};
    struct recording_result result;
    char error[256] = "";
    int bad = recording_run(&g[i].r, ctx, o, &result, error);
    EXPECT(!bad, "%s", error);
    if (!bad) {
        errors = recording_compare(&g[i].r, &result, &g[i].exact);
        EXPECT(!result.open, "%u tokens are open", result.open);
    }
    recording_result_free(&result);
    return errors;
}

/* The exact attention in the recording and ours differ only by the rounding of a float. */
static void exact_attention_is_the_recorded_one(void)
{
    for (int i = first; i <= last; i++) {
        char name[32];
        snprintf(name, sizeof name, "layer.%u.o", layers[i]);
        const struct tensor *o = safetensors_find(&file, name);
        snprintf(name, sizeof name, "layer.%u.lse", layers[i]);
        const struct tensor *lse = safetensors_find(&file, name);
        EXPECT(o && lse && o->elements == g[i].rows * g[i].r.v_dim && lse->elements == g[i].rows, "layer %u", layers[i]);
        for (size_t k = 0; o && k < o->elements; k++) {
            float recorded;
            memcpy(&recorded, o->data + 4 * k, 4);
            double got = g[i].exact.o[k];
            EXPECT(fabs(recorded - got) <= 1e-7 + 1e-7 * fabs(got), "%s[%zu]: %g, %g", o->name, k, recorded, got);
        }
        for (size_t k = 0; lse && k < lse->elements; k++) {
            float recorded;
            memcpy(&recorded, lse->data + 4 * k, 4);
            double got = g[i].exact.lse[k];
            EXPECT(fabs(recorded - got) <= 2e-6 * fabs(got), "%s[%zu]: %g, %g", lse->name, k, recorded, got);
        }
    }
}

/* A cache that stores the numbers exactly has only the error of its arithmetic. The file has f16. */
static void plain_caches_are_exact(void)
{
    static const char *const names[] = {"kf32vf32", "kf16vf16", "kf16vf32"};
    for (int n = 0; n < 3; n++)
        for (int i = first; i <= last; i++) {
            struct recording_options o = options(names[n], 0, 0, 1);
            struct recording_errors e = errors_of(i, &o);
            EXPECT(e.output <= 1e-5 && e.lse_max <= 1e-5 && e.kl <= 1e-9, "%s, layer %u: output %g, lse %g, KL %g", names[n],
                   layers[i], e.output, e.lse_max, e.kl);
        }
}

/* data/README.md, its table. */
static const struct {
    const char *cache;
    uint32_t flags;
    int balance;
    double output[LAYERS], kl[LAYERS];
} table[] = {
    {"k8v8", 0, 1, {0.0049, 0.0065, 0.0064}, {4e-5, 4e-5, 2e-5}},
    {"k6v6", 0, 1, {0.021, 0.027, 0.027}, {6.0e-4, 6.5e-4, 3.3e-4}},
    {"k5v5", 0, 1, {0.041, 0.053, 0.051}, {2.3e-3, 2.5e-3, 1.2e-3}},
    {"k4v4", AURA_NO_REFERENCE | AURA_NO_PINNED, 0, {0.114, 0.159, 0.192}, {0.0225, 0.0319, 0.0238}},
    {"k4v4", 0, 0, {0.079, 0.121, 0.118}, {0.0100, 0.0186, 0.0093}},
    {"k4v4", 0, 1, {0.075, 0.095, 0.085}, {0.0074, 0.0089, 0.0038}},
    {"k3v3", 0, 1, {0.154, 0.195, 0.187}, {0.030, 0.034, 0.018}},
    {"k2v2", 0, 1, {0.31, 0.39, 0.36}, {0.12, 0.14, 0.067}},
};
enum { ROWS = sizeof table / sizeof *table };

static double kl_of[SEEDS][ROWS][LAYERS]; /* for the law below */

/* Better than the table is wrong, too: then the cache did not encode something. */
static void expect_near(const char *what, double got, double wanted, double factor, int row, int i)
{
    EXPECT(got <= wanted * factor && got * factor >= wanted, "%s, flags %u, balance %d, layer %u: %s %g, not %g",
           table[row].cache, table[row].flags, table[row].balance, layers[i], what, got, wanted);
}

/* One choice of signs may be a third off: of 8 seeds the worst had 1.37 times the table's KL, the best 0.82. The mean of three
 * seeds is nearer. */
static void errors_are_those_of_the_table(void)
{
    const double one = 1.45, mean = seeds == SEEDS ? 1.2 : one;
    for (int row = 0; row < ROWS; row++)
        for (int i = first; i <= last; i++) {
            double output = 0, kl = 0;
            for (int seed = 0; seed < seeds; seed++) {
                struct recording_options o = options(table[row].cache, table[row].flags, table[row].balance, seed + 1);
                struct recording_errors e = errors_of(i, &o);
                output += e.output / seeds, kl += e.kl / seeds, kl_of[seed][row][i] = e.kl;
                expect_near("output error of one seed", e.output, table[row].output[i], one, row, i);
                expect_near("KL of one seed", e.kl, table[row].kl[i], one, row, i);
            }
            expect_near("output error", output, table[row].output[i], mean, row, i);
            expect_near("KL", kl, table[row].kl[i], mean, row, i);
        }
}

/* Why the codec is more than signs, a rotation and a table. */
static void the_parts_of_the_codec_pay(void)
{
    enum { PLAIN = 3, CENTRED = 4, ALL = 5 }; /* rows of the table */
    for (int seed = 0; seed < seeds; seed++)
        for (int i = first; i <= last; i++) {
            double plain = kl_of[seed][PLAIN][i], centred = kl_of[seed][CENTRED][i], all = kl_of[seed][ALL][i];
            EXPECT(plain >= 2.5 * all, "layer %u, seed %d: KL %g with all, %g plain", layers[i], seed + 1, all, plain);
            EXPECT(plain >= 1.4 * centred, "layer %u, seed %d: KL %g centred, %g plain", layers[i], seed + 1, centred, plain);
        }
}

/* ||row error|| / sum of p * |value|, relative to exact attention over the same codes: the cost of integer arithmetic. The stored
 * codes do not depend on planes, so one exact result serves both. */
static void accuracy(const char *cache, int i, const struct recording_result *result, const struct recording_exact *want,
                     uint32_t planes)
{
    /* The design allows one plane 1 % in the mean and 12 % at worst, two planes a thousandth. The bounds here are twice the
     * measured errors, which is less. */
    double mean_limit = planes == 1 ? 0.005 : 5e-5, worst_limit = planes == 1 ? 0.06 : 5e-4, mean = 0, worst = 0;
    uint32_t dim = g[i].r.v_dim;
    for (size_t row = 0; row < g[i].rows; row++) {
        double apart = 0;
        for (size_t d = row * dim; d < (row + 1) * dim; d++)
            apart += (result->o[d] - want->o[d]) * (result->o[d] - want->o[d]);
        apart = sqrt(apart) / want->reach[row];
        mean += apart / (double)g[i].rows, worst = apart <= worst ? worst : apart;
    }
    EXPECT(mean <= mean_limit && worst <= worst_limit, "%s, %u planes, layer %u: mean %g, worst %g", cache, planes, layers[i],
           mean, worst);
}

static void planes_cost_little(void)
{
    static const char *const caches[] = {"k4v4", "k8v8", "k2v2"};
    for (int n = 0; n < 3; n++)
        for (int i = first; i <= last; i++) {
            struct recording_options o = options(caches[n], 0, 1, 1);
            struct recording_exact want = {0};
            for (o.planes = 1; o.planes <= 2; o.planes++) {
                struct recording_result result;
                char error[256] = "out of memory";
                int bad = recording_run(&g[i].r, ctx, &o, &result, error) ||
                          (o.planes == 1 && recording_attend(&g[i].r, result.k, result.v, 0, &want));
                EXPECT(!bad, "%s", error);
                if (!bad)
                    accuracy(caches[n], i, &result, &want, o.planes);
                recording_result_free(&result);
            }
            recording_exact_free(&want);
        }
}

/* Open tokens are exact, so a result with rollback may only be better. */
static void open_tokens_only_help(void)
{
    for (int i = first; i <= last; i++) {
        struct recording_options closed = options("k4v4", 0, 1, 1), open = closed;
        struct recording_errors a = errors_of(i, &closed), b = {0};
        struct recording_result result;
        char error[256] = "";
        open.flags = 0;
        EXPECT(!recording_run(&g[i].r, ctx, &open, &result, error), "%s", error);
        if (!error[0])
            b = recording_compare(&g[i].r, &result, &g[i].exact);
        EXPECT(result.open == 32 && result.pinned == 4, "%u open, %u pinned", result.open, result.pinned);
        EXPECT(b.kl < a.kl, "layer %u: KL %g with open tokens, %g without", layers[i], b.kl, a.kl);
        recording_result_free(&result);
    }
}

int main(void)
{
    aura_ctx_options context = AURA_CTX_OPTIONS_INIT;
    char error[256];
    context.threads = 2;
    if (getenv("AURA_QUICK"))
        first = last = 1, seeds = 1;
    if (aura_ctx_create(&context, &ctx) || safetensors_read(&file, "data/smollm2-attention.safetensors"))
        return printf("FAIL recorded: %s%s\n", aura_last_error(), file.error), 1;
    for (int i = first; i <= last; i++) {
        if (recording_load(&g[i].r, ctx, &file, layers[i], error))
            return printf("FAIL recorded: %s\n", error), 1;
        g[i].rows = (size_t)g[i].r.queries * g[i].r.q_heads;
        if (recording_attend(&g[i].r, g[i].r.k, g[i].r.v, 1, &g[i].exact))
            return printf("FAIL recorded: out of memory\n"), 1;
    }
    RUN(exact_attention_is_the_recorded_one);
    RUN(plain_caches_are_exact);
    RUN(errors_are_those_of_the_table);
    RUN(the_parts_of_the_codec_pay);
    RUN(planes_cost_little);
    RUN(open_tokens_only_help);
    for (int i = first; i <= last; i++)
        recording_free(&g[i].r), recording_exact_free(&g[i].exact);
    safetensors_free(&file);
    aura_ctx_destroy(ctx);
    return test_result();
}
