/* Appends that take vectors which cannot be stored: zeros in their place, and a report. */
#include "cache_tools.h"

enum { TOKENS = 150, HEADS = 3, DIM = 64 };

/* What is made bad: a number of a vector of some token, head and side. */
static const struct {
    uint32_t token, head;
    int values;
    float number;
} bads[] = {{0, 0, 0, NAN}, {2, 1, 1, INFINITY}, {40, 2, 0, -INFINITY}, {40, 0, 1, NAN}, {41, 0, 0, 61000}, {41, 1, 0, NAN},
            {97, 2, 1, -1e30f}, {149, 1, 1, NAN}};
enum { N_BAD = sizeof bads / sizeof *bads };

/* A side of a kind takes every finite number of its type. */
static int is_bad(aura_kind kind, float x)
{
    if (!is_plain(kind))
        return !(fabsf(x) <= 60000);
    return !isfinite(x) || (kind == AURA_KIND_F16 && fabsf(x) > 65000);
}

static void zeros_and_reports(aura_kind k, aura_kind v, uint32_t threads)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    aura_ctx *many = NULL;
    aura_config config = config_of(k, v, DIM, DIM, HEADS);
    float *x[2] = {random_tokens(1, TOKENS, HEADS, DIM, 1), random_tokens(2, TOKENS, HEADS, DIM, 0)};
    uint8_t want[TOKENS] = {0}, bad[TOKENS];
    options.threads = threads, options.isa_mask = aura_ctx_isas(ctx);
    EXPECT(!aura_ctx_create(&options, &many), "%s", aura_last_error());
    aura_cache *cache = cache_new(many, &config);
    aura_seq seq = seq_new(cache), twin = seq_new(cache);
    for (int i = 0; i < N_BAD; i++) {
        x[bads[i].values][(bads[i].token * HEADS + bads[i].head) * DIM + 7] = bads[i].number;
        if (is_bad(bads[i].values ? v : k, bads[i].number))
            want[bads[i].token] |= bads[i].values ? 2 : 1;
    }
    aura_append_job job = AURA_APPEND_JOB_INIT;
    job.seq = seq, job.tokens = TOKENS, job.k.data = x[0], job.v.data = x[1];
    EXPECT(aura_append(cache, &job, 1) == AURA_BAD_VALUE && seq_tokens(cache, seq) == 0, "without a report: %s", aura_last_error());
    memset(bad, 0x55, sizeof bad);
    job.bad = bad;
    EXPECT(!aura_append(cache, &job, 1), "%s", aura_last_error());
    EXPECT(!memcmp(bad, want, sizeof bad), "%s: another report", config_text(&config));
    for (int i = 0; i < N_BAD; i++)
        if (is_bad(bads[i].values ? v : k, bads[i].number))
            memset(x[bads[i].values] + (bads[i].token * HEADS + bads[i].head) * DIM, 0, DIM * sizeof(float));
    job.seq = twin;
    EXPECT(!aura_append(cache, &job, 1), "%s", aura_last_error());
    for (int i = 0; i < TOKENS; i++)
        EXPECT(bad[i] == 0, "token %d is reported, which is good", i);
    static float got[4][TOKENS * HEADS * DIM];
    aura_view views[4];
    for (int i = 0; i < 4; i++)
        views[i] = (aura_view){got[i], AURA_F32, 0, 0, NULL};
    EXPECT(!aura_cache_decode(cache, seq, 0, TOKENS, &views[0], &views[1]) &&
           !aura_cache_decode(cache, twin, 0, TOKENS, &views[2], &views[3]), "%s", aura_last_error());
    EXPECT(!memcmp(got[0], got[2], sizeof *got) && !memcmp(got[1], got[3], sizeof *got), "%s: not as if zeros had been given",
           config_text(&config));
    free(x[0]), free(x[1]);
    aura_cache_destroy(cache);
    aura_ctx_destroy(many);
}

static void every_kind(void)
{
    for (uint32_t i = 0; i < N_KINDS; i++)
        zeros_and_reports(kinds[i], kinds[(i * 3 + 1) % N_KINDS], 1 + i % 3);
}

/* A job that fails for another reason reports nothing; one job may be strict while another is not. */
static void failures_report_nothing(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, DIM, DIM, HEADS);
    static float x[TOKENS * HEADS * DIM];
    uint8_t bad[TOKENS];
    x[5] = NAN;
    memset(bad, 0x55, sizeof bad);
    aura_cache *cache = cache_new(ctx, &config);
    aura_append_job jobs[2] = {AURA_APPEND_JOB_INIT, AURA_APPEND_JOB_INIT};
    for (int i = 0; i < 2; i++)
        jobs[i].seq = seq_new(cache), jobs[i].tokens = TOKENS, jobs[i].k.data = jobs[i].v.data = x;
    jobs[0].bad = bad;
    EXPECT(aura_append(cache, jobs, 2) == AURA_BAD_VALUE && strstr(aura_last_error(), "jobs[1]"), "%s", aura_last_error());
    jobs[1].seq = jobs[0].seq;
    EXPECT(aura_append(cache, jobs, 2) == AURA_BAD_ARGUMENT, "one sequence twice");
    for (int i = 0; i < TOKENS; i++)
        EXPECT(bad[i] == 0x55, "a call that failed reports token %d", i);
    aura_cache_destroy(cache);
}

static void tests(void)
{
    RUN(every_kind);
    RUN(failures_report_nothing);
}

int main(void)
{
    on_every_isa(tests);
    return test_result();
}
