/* One call that appends and attends: the same bits as the two calls, in every way that it hands its work to threads, and nothing at
 * all where either would have failed. */
#include "../../include/aura_file.h"
#include "cache_tools.h"

enum { SEQS = 3, MOST = 40, HEADS = 2, Q_HEADS = 6, DIM = 64, V_DIM = 80 };

/* Two caches with the same sequences: `one` is stepped, `two` gets the calls that a step stands for. */
struct twins {
    aura_ctx *ctx[2];
    aura_cache *one, *two;
    aura_seq seqs[SEQS]; /* the same ids in both */
};

/* A step in dense tensors, [seq][token][head][dim]. */
struct data {
    float k[SEQS * MOST * HEADS * DIM], v[SEQS * MOST * HEADS * V_DIM], q[SEQS * MOST * Q_HEADS * DIM];
    float out[2][SEQS * MOST * Q_HEADS * V_DIM], lse[2][SEQS * MOST * Q_HEADS];
    uint64_t from[SEQS * MOST], until[SEQS * MOST];
    uint32_t starts[SEQS];
};

static void data_fill(struct data *d, uint64_t seed)
{
    for (size_t i = 0; i < sizeof d->k / sizeof *d->k; i++)
        d->k[i] = random_normal(&seed) + (i % 7 ? 0 : 2);
    for (size_t i = 0; i < sizeof d->v / sizeof *d->v; i++)
        d->v[i] = random_normal(&seed);
    for (size_t i = 0; i < sizeof d->q / sizeof *d->q; i++)
        d->q[i] = random_normal(&seed);
    memset(d->out, 0xff, sizeof d->out);
    memset(d->lse, 0xff, sizeof d->lse);
}

static struct twins twins_new(aura_config config, uint32_t threads)
{
    struct twins t;
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    EXPECT(!aura_ctx_create(&options, &t.ctx[1]), "%s", aura_last_error());
    options.threads = threads;
    EXPECT(!aura_ctx_create(&options, &t.ctx[0]), "%s", aura_last_error());
    t.one = cache_new(t.ctx[0], &config), t.two = cache_new(t.ctx[1], &config);
    for (int i = 0; i < SEQS; i++) {
        t.seqs[i] = seq_new(t.one);
        EXPECT(seq_new(t.two) == t.seqs[i], "ids differ");
    }
    return t;
}

static void twins_free(struct twins *t)
{
    aura_cache_destroy(t->one), aura_cache_destroy(t->two);
    aura_ctx_destroy(t->ctx[0]), aura_ctx_destroy(t->ctx[1]);
}

/* All that a cache holds, in one canonical piece of memory. */
static uint8_t *bytes_of(const aura_cache *cache, size_t *bytes)
{
    aura_sink sink = AURA_SINK_INIT;
    EXPECT(!aura_cache_size(cache, NULL, bytes), "%s", aura_last_error());
    sink.data = malloc(*bytes), sink.bytes = *bytes;
    EXPECT(!aura_cache_write(cache, &sink, NULL), "%s", aura_last_error());
    return sink.data;
}

static void expect_same_caches(const struct twins *t, const char *what)
{
    size_t bytes[2];
    uint8_t *a = bytes_of(t->one, &bytes[0]), *b = bytes_of(t->two, &bytes[1]);
    EXPECT(bytes[0] == bytes[1] && !memcmp(a, b, bytes[0]), "%s: the caches differ", what);
    free(a), free(b);
}

static aura_config step_config(int kind)
{
    static const aura_kind kinds[][2] = {{AURA_KIND_B4, AURA_KIND_B3}, {AURA_KIND_B8, AURA_KIND_F16},
                                         {AURA_KIND_F32, AURA_KIND_F32}};
    aura_config config = config_of(kinds[kind][0], kinds[kind][1], DIM, V_DIM, HEADS);
    config.q_heads = Q_HEADS;
    return config;
}

static aura_step_args step_of(const struct twins *t, struct data *d, uint32_t tokens)
{
    aura_step_args step = AURA_STEP_ARGS_INIT;
    step.seqs = t->seqs, step.n_seqs = SEQS, step.tokens = tokens;
    step.k.data = d->k, step.v.data = d->v, step.q.data = d->q, step.out.data = d->out[0], step.lse = d->lse[0];
    return step;
}

/* The jobs of sequence i of such a step, for the other outputs. */
static void jobs_of(const aura_step_args *step, struct data *d, size_t i, aura_append_job *in, aura_attend_job *ask)
{
    const uint32_t start = step->starts ? step->starts[i] : 0;
    const size_t at = i * step->tokens + start;
    const aura_append_job no_tokens = AURA_APPEND_JOB_INIT;
    const aura_attend_job no_queries = AURA_ATTEND_JOB_INIT;
    *in = no_tokens, *ask = no_queries;
    in->seq = ask->seq = step->seqs[i];
    in->tokens = ask->queries = step->tokens - start;
    in->k.data = d->k + at * HEADS * DIM, in->v.data = d->v + at * HEADS * V_DIM;
    ask->q.data = d->q + at * Q_HEADS * DIM, ask->out.data = d->out[1] + at * Q_HEADS * V_DIM;
    ask->lse = d->lse[1] + at * Q_HEADS;
    ask->from = step->from ? step->from + at : NULL, ask->until = step->until ? step->until + at : NULL;
}

/* ---- the same bits --------------------------------------------------------------------------------------------------- */

static void expect_step(struct twins *t, aura_step_args *step, struct data *d, const aura_attend_options *options)
{
    aura_append_job in[SEQS];
    aura_attend_job ask[SEQS];
    for (size_t i = 0; i < SEQS; i++) {
        jobs_of(step, d, i, &in[i], &ask[i]);
        for (size_t row = 0; row < (step->starts ? step->starts[i] : 0) * (size_t)Q_HEADS; row++) { /* what padding gives */
            memset(d->out[1] + (i * step->tokens * Q_HEADS + row) * V_DIM, 0, V_DIM * sizeof(float));
            d->lse[1][i * step->tokens * Q_HEADS + row] = -INFINITY;
        }
    }
    EXPECT(!aura_append(t->two, in, SEQS) && !aura_attend(t->two, ask, SEQS, options), "%s", aura_last_error());
    EXPECT(!aura_step(t->one, step, options), "%s", aura_last_error());
    EXPECT(!memcmp(d->out[0], d->out[1], sizeof *d->out), "outputs differ, %u tokens", step->tokens);
    EXPECT(!memcmp(d->lse[0], d->lse[1], sizeof *d->lse), "lse differs, %u tokens", step->tokens);
}

static void steps_of(aura_config config, uint32_t threads, uint64_t seed)
{
    static struct data d;
    static const uint32_t some[] = {1, 1, 1, 2, 5, 1, 33, MOST};
    struct twins t = twins_new(config, threads);
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    for (int i = 0; i < (small_run() ? 10 : 24); i++) {
        uint32_t tokens = i == 0 ? MOST : some[random_bits(&seed) % 8];
        data_fill(&d, seed);
        aura_step_args step = step_of(&t, &d, tokens);
        options.softcap = i % 5 == 3 ? 20 : 0;
        if (i % 3 == 0) {
            for (int s = 0; s < SEQS; s++)
                d.starts[s] = (uint32_t)(random_bits(&seed) % (s ? tokens + 1 : 3)) % (tokens + 1);
            step.starts = d.starts;
        }
        for (size_t q = 0; q < (size_t)SEQS * tokens; q++) {
            size_t s = q / tokens;
            uint64_t before = seq_tokens(t.one, t.seqs[s]) + q % tokens + 1;
            d.until[q] = before - (step.starts && before > step.starts[s] ? step.starts[s] : 0);
            d.from[q] = d.until[q] > 9 ? d.until[q] - random_bits(&seed) % 9 : 0;
        }
        step.from = i % 4 == 1 ? d.from : NULL, step.until = i % 4 == 1 ? d.until : NULL;
        expect_step(&t, &step, &d, i % 2 ? &options : NULL);
    }
    expect_same_caches(&t, config_text(&config));
    twins_free(&t);
}

static void a_step_is_append_and_attend(void)
{
    for (uint64_t i = 0; i < 3; i++)
        for (uint32_t threads = 1; threads <= 3; threads += 2) {
            aura_config config = step_config((int)i);
            steps_of(config, threads, 10 * i + threads);
            config.window = 70, config.max_queries = MOST;
            steps_of(config, threads, 10 * i + threads + 5);
        }
}

/* Heads first, a stride of its own, half floats, rows, and queries without new tokens. */
static void tensors_of_any_shape(void)
{
    static struct data d, e;
    enum { TOKENS = 8, GAP = 24 };
    static uint16_t out[SEQS * (Q_HEADS * TOKENS * V_DIM + GAP)];
    static const uint32_t rows[TOKENS] = {3, 1, 0, 2, 7, 5, 6, 4};
    struct twins t = twins_new(step_config(0), 2);
    data_fill(&d, 3), e = d;
    aura_step_args step = step_of(&t, &d, TOKENS), plain = step_of(&t, &e, TOKENS);
    for (size_t s = 0; s < SEQS; s++)
        for (size_t i = 0; i < TOKENS; i++) { /* the same in dense tensors */
            memcpy(e.v + (s * TOKENS + i) * HEADS * V_DIM, d.v + (s * TOKENS + rows[i]) * HEADS * V_DIM,
                   HEADS * V_DIM * sizeof(float));
            for (size_t h = 0; h < HEADS; h++)
                memcpy(e.k + ((s * TOKENS + i) * HEADS + h) * DIM, d.k + (((SEQS - 1 - s) * HEADS + h) * TOKENS + i) * DIM,
                       DIM * sizeof(float));
        }
    step.k.token_stride = DIM, step.k.head_stride = TOKENS * DIM, step.k_seq_stride = -(HEADS * TOKENS * DIM);
    step.k.data = d.k + (SEQS - 1) * HEADS * TOKENS * DIM; /* the last sequence first */
    step.v.rows = rows;
    step.out.data = out, step.out.dtype = AURA_F16, step.out.token_stride = V_DIM, step.out.head_stride = TOKENS * V_DIM;
    step.out_seq_stride = Q_HEADS * TOKENS * V_DIM + GAP;
    memset(out, 0x55, sizeof out);
    EXPECT(!aura_step(t.one, &step, NULL) && !aura_step(t.two, &plain, NULL), "%s", aura_last_error());
    expect_same_caches(&t, "heads first");
    step.k.data = step.v.data = NULL; /* the same queries once more */
    memset(out, 0x55, sizeof out);
    EXPECT(!aura_step(t.one, &step, NULL), "%s", aura_last_error());
    expect_same_caches(&t, "no new tokens");
    for (size_t s = 0; s < SEQS; s++)
        for (size_t i = 0; i < TOKENS * Q_HEADS * V_DIM; i++) {
            size_t token = i / (Q_HEADS * V_DIM), head = i / V_DIM % Q_HEADS;
            uint16_t want = aura_f16_from_f32(e.out[0][s * TOKENS * Q_HEADS * V_DIM + i]);
            if (out[s * (Q_HEADS * TOKENS * V_DIM + GAP) + (head * TOKENS + token) * V_DIM + i % V_DIM] != want)
                EXPECT(0, "sequence %zu, token %zu, head %zu differs", s, token, head);
        }
    EXPECT(out[Q_HEADS * TOKENS * V_DIM] == 0x5555, "a byte between sequences was written");
    twins_free(&t);
}

/* Jobs that are no pairs: in another order, two for a sequence, one for a sequence that does not grow. */
static void jobs_of_any_order(void)
{
    static struct data d;
    struct twins t = twins_new(step_config(0), 3);
    data_fill(&d, 77);
    aura_step_args step = step_of(&t, &d, 4);
    for (int round = 0; round < 12; round++) {
        aura_append_job in[SEQS], no_bad[2];
        aura_attend_job ask[SEQS + 1], twin[SEQS + 1];
        uint8_t bad[4] = {9, 9, 9, 9};
        data_fill(&d, (uint64_t)round);
        for (size_t i = 0; i < SEQS; i++)
            jobs_of(&step, &d, i, &in[i], &twin[SEQS - 1 - i]);
        jobs_of(&step, &d, 0, &no_bad[0], &twin[SEQS]);
        no_bad[0] = in[0], no_bad[1] = in[2]; /* sequence 1 grows in the first round only */
        no_bad[0].bad = bad;
        twin[SEQS].out.data = d.out[1] + SEQS * 4 * Q_HEADS * V_DIM, twin[SEQS].lse = NULL, twin[SEQS].queries = 2;
        for (size_t i = 0; i < SEQS + 1; i++) {
            ask[i] = twin[i];
            ask[i].out.data = d.out[0] + ((float *)twin[i].out.data - d.out[1]);
            ask[i].lse = twin[i].lse ? d.lse[0] + (twin[i].lse - d.lse[1]) : NULL;
        }
        const aura_append_job *jobs = round ? no_bad : in;
        const size_t n = round ? 2 : SEQS, asks = round % 2 ? SEQS + 1 : 1;
        EXPECT(!aura_append(t.two, jobs, n) && !aura_attend(t.two, twin, asks, NULL), "%s", aura_last_error());
        EXPECT(!aura_append_attend(t.one, jobs, n, ask, asks, NULL), "%s", aura_last_error());
        EXPECT(!memcmp(d.out[0], d.out[1], sizeof *d.out) && !memcmp(d.lse[0], d.lse[1], sizeof *d.lse), "round %d differs", round);
        EXPECT(!round || (bad[0] | bad[1] | bad[2] | bad[3]) == 0, "good tokens are called bad");
    }
    EXPECT(!aura_append_attend(t.one, NULL, 0, NULL, 0, NULL), "nothing is nothing: %s", aura_last_error());
    expect_same_caches(&t, "jobs");
    twins_free(&t);
}

/* The outputs are written over the keys, the values or the queries. */
static void outputs_over_inputs(void)
{
    static struct data d, copy;
    struct twins t = twins_new(step_config(0), 3);
    for (int where = 0; where < 3; where++) {
        data_fill(&d, (uint64_t)where + 5);
        copy = d;
        aura_step_args step = step_of(&t, &d, 1);
        step.v.data = copy.v, step.q.data = copy.q; /* of each tensor another copy, so that only one is overwritten */
        float *place = where == 0 ? d.k : where == 1 ? copy.v : copy.q;
        step.out.data = place;
        static struct data want;
        want = d;
        aura_step_args plain = step_of(&t, &want, 1);
        aura_append_job in[SEQS];
        aura_attend_job ask[SEQS];
        for (size_t i = 0; i < SEQS; i++)
            jobs_of(&plain, &want, i, &in[i], &ask[i]);
        EXPECT(!aura_append(t.two, in, SEQS) && !aura_attend(t.two, ask, SEQS, NULL), "%s", aura_last_error());
        EXPECT(!aura_step(t.one, &step, NULL), "%s", aura_last_error());
        EXPECT(!memcmp(place, want.out[1], SEQS * Q_HEADS * V_DIM * sizeof(float)), "over tensor %d: outputs differ", where);
        expect_same_caches(&t, "outputs over inputs");
    }
    twins_free(&t);
}

/* ---- nothing, or all -------------------------------------------------------------------------------------------------- */

static void expect_refused(struct twins *t, struct data *d, const aura_step_args *step, const aura_attend_options *options,
                           aura_status status, const char *words)
{
    static struct data before;
    before = *d;
    aura_status got = aura_step(t->one, step, options);
    EXPECT(got == status && strstr(aura_last_error(), words), "%d, not %d: %s", got, status, aura_last_error());
    EXPECT(!memcmp(before.out, d->out, sizeof d->out) && !memcmp(before.lse, d->lse, sizeof d->lse), "%s: outputs", words);
    expect_same_caches(t, words);
}

static void a_failure_changes_nothing(void)
{
    static struct data d;
    aura_config config = step_config(0);
    config.window = 300, config.max_queries = MOST;
    struct twins t = twins_new(config, 2);
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    char workspace[64];
    data_fill(&d, 9);
    aura_step_args good = step_of(&t, &d, MOST), bad = good;
    for (int i = 0; i < 21; i++)
        expect_step(&t, &good, &d, NULL); /* 840 tokens: the first page is gone with the next */
    d.starts[1] = MOST + 1, bad.starts = d.starts;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "starts[1] is 41 of 40");
    bad = good, d.k[100] = NAN;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_VALUE, "jobs[0].k");
    d.k[100] = 0, bad.until = d.until;
    for (size_t i = 0; i < SEQS * MOST; i++)
        d.until[i] = 21 * MOST + i % MOST + 1;
    d.until[77]++;
    expect_step(&t, &good, &d, NULL);
    for (size_t i = 0; i < SEQS * MOST; i++)
        d.until[i] = 23 * MOST, d.from[i] = 23 * MOST - 20;
    d.until[77]++;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "of 920");
    d.until[77]--, d.from[5] = 300, bad.from = d.from; /* there now, gone afterwards */
    EXPECT(seq_tokens(t.one, t.seqs[0]) == 880, "%llu tokens", (unsigned long long)seq_tokens(t.one, t.seqs[0]));
    d.from[5] = 511;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "are gone");
    bad = good, bad.q_heads = 5;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "5 query heads");
    bad = good, bad.q.data = NULL;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "q.data is NULL");
    bad = good, bad.v.data = NULL;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "v.data is NULL");
    bad = good, bad.out_seq_stride = PTRDIFF_MAX / 8;
    expect_refused(&t, &d, &bad, NULL, AURA_TOO_LARGE, "out: 3 sequences");
    bad = good, bad.seqs = NULL;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "seqs is NULL");
    const aura_seq twice[SEQS] = {t.seqs[0], t.seqs[1], t.seqs[0]};
    bad = good, bad.seqs = twice;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "jobs 0 and 2 are both");
    bad = good, options.workspace = workspace;
    expect_refused(&t, &d, &bad, &options, AURA_BAD_ARGUMENT, "a workspace of 0 bytes");
    bad.size--;
    expect_refused(&t, &d, &bad, NULL, AURA_BAD_ARGUMENT, "size");
    EXPECT(aura_step(NULL, &good, NULL) == AURA_BAD_ARGUMENT && aura_step(t.one, NULL, NULL) == AURA_BAD_ARGUMENT, "NULL");
    EXPECT(aura_append_attend(NULL, NULL, 0, NULL, 0, NULL) == AURA_BAD_ARGUMENT, "no cache");
    EXPECT(aura_append_attend(t.one, NULL, 1, NULL, 0, NULL) == AURA_BAD_ARGUMENT, "no jobs");
    EXPECT(aura_append_attend(t.one, NULL, 0, NULL, 1, NULL) == AURA_BAD_ARGUMENT, "no jobs");
    expect_step(&t, &good, &d, NULL);
    twins_free(&t);
}

/* No memory, then no pages. */
static void no_room_changes_nothing(void)
{
    static struct data d;
    struct counting c;
    aura_ctx *in = counting_ctx(&c, 0xff, 1);
    struct twins t = twins_new(step_config(0), 1);
    aura_config config = step_config(0);
    data_fill(&d, 9);
    aura_step_args step = step_of(&t, &d, MOST);
    for (int budget = 0; budget < 2; budget++) {
        aura_cache *kept = t.one;
        aura_cache_info info = AURA_CACHE_INFO_INIT;
        t.one = cache_new(in, &config);
        for (int i = 0; i < SEQS; i++)
            EXPECT(seq_new(t.one) == t.seqs[i], "ids");
        EXPECT(!aura_cache_get_info(t.one, &info), "%s", aura_last_error());
        if (budget) {
            config.budget_bytes = info.bytes + 2 * info.page_bytes;
            aura_cache_destroy(t.one);
            t.one = cache_new(in, &config);
            for (int i = 0; i < SEQS; i++)
                seq_new(t.one);
            aura_status status = aura_step(t.one, &step, NULL);
            EXPECT(status == AURA_OUT_OF_PAGES, "%d: %s", status, aura_last_error());
            EXPECT(seq_tokens(t.one, t.seqs[0]) == 0, "tokens were appended");
        }
        for (long fail = 0; !budget && fail < 20; fail++) {
            c.fail_in = fail, c.failed = 0;
            aura_status status = aura_step(t.one, &step, NULL);
            c.fail_in = -1;
            if (!c.failed) {
                EXPECT(!status && seq_tokens(t.one, t.seqs[2]) == MOST && fail > 1, "%s", aura_last_error());
                break;
            }
            EXPECT(status == AURA_OUT_OF_MEMORY && !seq_tokens(t.one, t.seqs[0]), "%d: %s", status, aura_last_error());
        }
        aura_cache_destroy(t.one);
        t.one = kept;
    }
    EXPECT(c.blocks == 1 && !c.wrong, "%zu blocks, %d wrong", c.blocks, c.wrong); /* the context */
    aura_ctx_destroy(in);
    twins_free(&t);
}

/* Bad keys become zeros where the caller says so; a bad query spoils its own rows; a step with a workspace allocates nothing. */
static void bad_numbers(void)
{
    static struct data d;
    struct counting c;
    uint8_t bad[SEQS * 2];
    aura_ctx *in = counting_ctx(&c, 0xff, 1);
    aura_config config = step_config(0);
    aura_cache *cache = cache_new(in, &config);
    struct twins t = {{NULL}, cache, NULL, {seq_new(cache), seq_new(cache), seq_new(cache)}};
    aura_attend_options options = AURA_ATTEND_OPTIONS_INIT;
    data_fill(&d, 9);
    aura_step_args step = step_of(&t, &d, 2);
    options.workspace_bytes = 1 << 20;
    options.workspace = aligned_alloc(64, options.workspace_bytes);
    memset(bad, 0xff, sizeof bad);
    d.starts[0] = 1, d.starts[1] = 0, d.starts[2] = 2;
    d.k[0] = d.k[5 * HEADS * DIM] = NAN; /* padding */
    d.k[2 * HEADS * DIM] = INFINITY, d.v[3 * HEADS * V_DIM] = NAN, d.q[3 * Q_HEADS * DIM] = NAN;
    step.bad = bad, step.starts = d.starts;
    for (int i = 0; i < SEQS; i++)
        EXPECT(!aura_seq_reserve(cache, t.seqs[i], 9), "%s", aura_last_error());
    size_t calls = c.calls;
    EXPECT(aura_step(cache, &step, &options) == AURA_NOT_FINITE, "%s", aura_last_error());
    EXPECT(c.calls == calls, "%zu allocations", c.calls - calls);
    static const uint8_t want[SEQS * 2] = {0, 0, 1, 2, 0, 0};
    EXPECT(!memcmp(bad, want, sizeof bad), "%d %d %d %d", bad[0], bad[1], bad[2], bad[3]);
    EXPECT(seq_tokens(cache, t.seqs[0]) == 1 && seq_tokens(cache, t.seqs[1]) == 2 && seq_tokens(cache, t.seqs[2]) == 0, "tokens");
    EXPECT(isnan(d.out[0][3 * Q_HEADS * V_DIM]) && isfinite(d.out[0][(3 * Q_HEADS + 1) * V_DIM]), "only the bad row is NaN");
    EXPECT(d.out[0][0] == 0 && d.lse[0][0] == -INFINITY && isfinite(d.out[0][Q_HEADS * V_DIM]), "padding is 0");
    free(options.workspace);
    aura_cache_destroy(cache);
    aura_ctx_destroy(in);
}

int main(void)
{
    RUN(a_step_is_append_and_attend);
    RUN(tensors_of_any_shape);
    RUN(jobs_of_any_order);
    RUN(outputs_over_inputs);
    RUN(a_failure_changes_nothing);
    RUN(no_room_changes_nothing);
    RUN(bad_numbers);
    return test_result();
}
