/* Quality of caches on a small model: what is compared with what, and that all positions are measured. */
#define _GNU_SOURCE
#include "../../include/aura_file.h"
#include "../../src/base/dtype.h"
#include "../../tool/parts/allocate.h"
#include "../../tool/parts/drift.h"
#include "../../tool/parts/quality.h"

#include "../file/file_tools.h"
#include "../model/llm_tools.h"

enum { CTX = 96, CHUNKS = 3, COUNT = CHUNKS * CTX + 17, ROWS = CTX - 1 - CTX / 2 };

static char error[LLM_ERROR_BYTES];

struct model {
    struct tiny tiny;
    struct gguf_part bytes;
    struct gguf *file;
    struct llm *llm;
    uint32_t tokens[COUNT];
};

static void open_layers(struct model *m, uint32_t head_dim, uint32_t layers)
{
    struct gguf_writer w = {0};
    memset(m, 0, sizeof *m);
    m->tiny = tiny_model("llama");
    m->tiny.head_dim = head_dim, m->tiny.layers = layers;
    tiny_write(&m->tiny, &w);
    m->bytes = gguf_finish(&w);
    EXPECT(!gguf_read(m->bytes.data, m->bytes.size, &m->file, error) && !llm_open_exact(m->file, 2, &m->llm, error), "%s", error);
    for (uint32_t i = 0; i < COUNT; i++)
        m->tokens[i] = (i * i * 11 + i / 3) % m->tiny.vocab;
}

static void open_model(struct model *m, uint32_t head_dim)
{
    open_layers(m, head_dim, 2);
}

static void close_model(struct model *m)
{
    llm_close(m->llm);
    gguf_close(m->file);
    free(m->bytes.data);
}

static struct quality_options options_of(const struct model *m)
{
    return (struct quality_options){
        .llm = m->llm, .tokens = m->tokens, .count = COUNT, .ctx = CTX, .begin = -1, .threads = 2, .seed = 1};
}

/* Measures a list of caches; caches[16] is room enough. */
static void measure(const struct quality_options *o, const char *list, struct quality_cache *caches)
{
    struct quality_cache *parsed = NULL;
    size_t count = 0;
    EXPECT(!quality_parse(list, &parsed, &count, error) && count <= 16 && !quality_measure(o, parsed, count, error), "%s", error);
    if (parsed)
        memcpy(caches, parsed, count * sizeof *parsed);
    free(parsed);
}

static int same_summary(const struct quality_cache *a, const struct quality_cache *b)
{
    const struct divergence_summary *x = &a->result, *y = &b->result;
    return a->bits == b->bits && x->positions == y->positions && x->kld_mean.value == y->kld_mean.value &&
           x->kld_max == y->kld_max && x->ppl.value == y->ppl.value && x->same_top.value == y->same_top.value;
}

/* ---- what is measured ----------------------------------------------------------------------------------------------- */

/* An exact cache has the perplexity of the model in double, and divergence 0. */
static void exact_cache(void)
{
    struct model m;
    struct quality_cache c[16];
    double sum = 0;
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    measure(&o, "kf32vf32", c);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        static double logits[CTX * 64];
        const uint32_t *tokens = m.tokens + chunk * CTX;
        tiny_forward(&m.tiny, tokens, CTX, logits);
        for (uint32_t p = CTX / 2; p < CTX - 1; p++) {
            double total = 0, *row = logits + p * m.tiny.vocab;
            for (uint32_t i = 0; i < m.tiny.vocab; i++)
                total += exp(row[i]);
            sum += log(total) - row[tokens[p + 1]];
        }
    }
    double ppl = exp(sum / (CHUNKS * ROWS));
    EXPECT(c[0].result.positions == CHUNKS * ROWS, "%zu positions", c[0].result.positions);
    EXPECT(fabs(c[0].result.ppl.value / ppl - 1) < 1e-4, "perplexity %g, not %g", c[0].result.ppl.value, ppl);
    EXPECT(c[0].result.kld_max == 0 && c[0].result.same_top.value == 1 && c[0].result.ppl_ratio.value == 1, "of itself");
    close_model(&m);
}

static void fewer_bits_diverge_more(void)
{
    struct model m;
    struct quality_cache c[16];
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    measure(&o, "kf16vf16,k8v8,k6v6,k4v4,k2v2,f16,q8_0,q5_0,q4_0", c);
    for (int i = 0; i < 9; i++) {
        const struct quality_cache *before = i ? &c[i - 1] : NULL;
        EXPECT(c[i].result.kld_mean.value > 0, "%s: nothing happened", c[i].name);
        if (i % 5)
            EXPECT(before->result.kld_mean.value < c[i].result.kld_mean.value && before->bits > c[i].bits, "%s: %g, %s: %g",
                   before->name, before->result.kld_mean.value, c[i].name, c[i].result.kld_mean.value);
    }
    EXPECT(c[5].bits == 16 && c[8].bits == 4.5 && c[3].bits > 4.2 && c[3].bits < 4.5, "%g, %g, %g", c[5].bits, c[8].bits,
           c[3].bits);
    double ours = c[0].result.kld_mean.value, theirs = c[5].result.kld_mean.value;
    EXPECT(ours < 2 * theirs && theirs < 2 * ours, "f16 is f16: %g, %g", ours, theirs);
    close_model(&m);
}

/* Replaces keys and values by what a complete cache decodes. */
struct stand_in {
    aura_ctx *ctx;
    aura_config config;
};

static void store_and_decode(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    const struct stand_in *s = arg;
    aura_cache *cache = NULL;
    aura_seq seq = 0;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    aura_view k_out = {k, AURA_F32, 0, 0, NULL}, v_out = {v, AURA_F32, 0, 0, NULL};
    (void)layer, (void)first, (void)q;
    EXPECT(!aura_cache_create(s->ctx, &s->config, &cache) && !aura_seq_create(cache, &seq), "%s", aura_last_error());
    job.seq = seq, job.tokens = tokens, job.k.data = k, job.v.data = v;
    EXPECT(!aura_append(cache, &job, 1) && !aura_cache_decode(cache, seq, 0, tokens, &k_out, &v_out), "%s", aura_last_error());
    aura_seq_info info = AURA_SEQ_INFO_INIT;
    aura_seq_get_info(cache, seq, &info);
    EXPECT(tokens - info.closed == open_tokens(tokens, s->config.flags & AURA_NO_ROLLBACK ? 0 : s->config.rollback),
           "%u tokens, %u closed", tokens, (unsigned)info.closed);
    aura_cache_destroy(cache);
}

/* The mean divergence with these keys and values, in double. */
static double with_stand_in(const struct model *m, struct stand_in *s)
{
    double sum = 0;
    uint32_t vocab = m->tiny.vocab;
    float *logits = malloc(2 * CTX * vocab * sizeof *logits);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++) {
        for (int i = 0; i < 2; i++) {
            struct llm_options o = {.format = {AURA_KIND_F32, AURA_KIND_F32}, .tokens = CTX, .arg = s};
            struct llm_state *state = NULL;
            o.on_layer = i ? store_and_decode : NULL;
            EXPECT(!llm_state_create(m->llm, &o, &state, error) &&
                   !llm_forward(state, m->tokens + chunk * CTX, CTX, CTX, logits + (size_t)i * CTX * vocab, error), "%s", error);
            llm_state_destroy(state);
        }
        for (uint32_t p = CTX / 2; p < CTX - 1; p++)
            sum += divergence_row(logits + p * vocab, logits + (CTX + p) * vocab, vocab, 0).kld;
    }
    free(logits);
    return sum / (CHUNKS * ROWS);
}

/* Every query reads keys and values as the complete cache decodes them, with rollback and without. The rounding of attention
 * itself adds little. */
static void read_as_stored(void)
{
    struct model m;
    struct quality_cache c[16];
    double seen[2];
    open_model(&m, 64);
    struct stand_in s = {.config = AURA_CONFIG_INIT};
    EXPECT(!aura_ctx_create(NULL, &s.ctx), "%s", aura_last_error());
    s.config.q_heads = m.tiny.q_heads, s.config.kv_heads = m.tiny.kv_heads, s.config.k_dim = 64, s.config.seed = 1;
    s.config.format = (aura_format){AURA_KIND_B3, AURA_KIND_B3};
    for (uint32_t i = 0; i < 2; i++) {
        struct quality_options o = options_of(&m);
        o.rollback = i ? 16 : 0;
        s.config.flags = i ? 0 : AURA_NO_ROLLBACK, s.config.rollback = o.rollback;
        measure(&o, "k3v3", c);
        double want = with_stand_in(&m, &s);
        seen[i] = c[0].result.kld_mean.value;
        EXPECT(fabs(seen[i] / want - 1) < 0.1, "rollback %u: %g, not %g", o.rollback, seen[i], want);
    }
    EXPECT(seen[1] < 0.95 * seen[0], "open tokens diverge less: %g, %g", seen[1], seen[0]);
    aura_ctx_destroy(s.ctx);
    close_model(&m);
}

/* ---- as it is written ------------------------------------------------------------------------------------------------ */

/* All logits of the first chunk, [CTX][vocab]: `prompt` tokens in one call, then one at a time. */
static float *logits_in_calls(const struct model *m, struct llm_options o, uint32_t prompt)
{
    float *logits = malloc(CTX * m->tiny.vocab * sizeof *logits);
    struct llm_state *state = NULL;
    o.tokens = CTX;
    EXPECT(!llm_state_create(m->llm, &o, &state, error), "%s", error);
    for (uint32_t at = 0, end = prompt; at < CTX; at = end, end++)
        EXPECT(!llm_forward(state, m->tokens + at, end - at, end - at, logits + at * m->tiny.vocab, error), "%s", error);
    llm_state_destroy(state);
    return logits;
}

/* The mean divergence of a chunk from this position on. */
static double mean_divergence(const struct model *m, uint32_t first, const float *exact, const float *logits)
{
    double sum = 0;
    for (uint32_t p = first; p < CTX - 1; p++)
        sum += divergence_row(exact + p * m->tiny.vocab, logits + p * m->tiny.vocab, m->tiny.vocab, 0).kld;
    return sum / (CTX - 1 - first);
}

/* Token by token, a query sees its newest tokens in f16, and a prompt sees itself as it came: the same as a state fed so. */
static void written_token_by_token(void)
{
    struct model m;
    struct quality_cache c[16], together[16];
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    o.chunks = 1, o.rollback = 16;
    measure(&o, "k3v3,kf32vf32", together);
    o.decode = 1;
    measure(&o, "k3v3,kf32vf32", c);
    float *exact = logits_in_calls(&m, (struct llm_options){.format = {AURA_KIND_F32, AURA_KIND_F32}}, CTX);
    const struct llm_options three = {.format = {AURA_KIND_B3, AURA_KIND_B3}, .rollback = 16, .seed = 1, .exact_prompts = 1};
    float *ours = logits_in_calls(&m, three, CTX / 2 + 1);
    const double want = mean_divergence(&m, CTX / 2, exact, ours);
    EXPECT(fabs(c[0].result.kld_mean.value / want - 1) < 1e-6, "%g, not %g", c[0].result.kld_mean.value, want);
    EXPECT(c[0].result.kld_mean.value < 0.8 * together[0].result.kld_mean.value, "%g, together %g", c[0].result.kld_mean.value,
           together[0].result.kld_mean.value);
    EXPECT(c[1].result.kld_max < 1e-8 && c[1].result.accepted.value > 0.9999, "exact: %g", c[1].result.kld_max);
    free(exact), free(ours);
    close_model(&m);
}

/* What a cache of another returns when `tokens` are there and it keeps what ours keeps. The last `prompt` of them are as they
 * came. */
struct other_tail {
    const struct peer *peer;
    uint32_t heads, pinned, prompt;
};

static void store_with_tail(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    const struct other_tail *t = arg;
    const uint32_t there = tokens - t->prompt, closed = there - (uint32_t)open_tokens(there, 16), row = t->heads * 64;
    (void)layer, (void)first, (void)q;
    for (int side = 0; side < 2; side++) {
        float *x = side ? v : k;
        for (uint32_t i = 0; i < there * row; i++)
            if (i < t->pinned * row || i >= closed * row)
                x[i] = aura_f32_from_f16(aura_f16_from_f32(x[i]));
        for (uint32_t at = 0, end = 32; at < closed; at = end, end += 32) { /* tile by tile, as they close */
            const uint32_t from = at < t->pinned ? t->pinned : at;
            peer_store(t->peer, side ? PEER_VALUES : PEER_KEYS, t->heads, 64, end - from, x + from * row);
        }
    }
}

/* With one layer, keys and values do not depend on the cache: every position can be computed from the beginning, with the tail that
 * it has then. */
static void others_keep_what_ours_keep(void)
{
    enum { FIRST = 20 }; /* so that two tiles close on the way */
    static const char *const names[] = {"q4_0", "kivi2", "tq3", "kivi2"};
    struct model m;
    struct quality_cache c[16];
    open_layers(&m, 64, 1);
    float *exact = logits_in_calls(&m, (struct llm_options){.format = {AURA_KIND_F32, AURA_KIND_F32}}, CTX);
    float *logits = malloc(CTX * m.tiny.vocab * sizeof *logits);
    for (int i = 0; i < 4; i++) {
        struct other_tail tail = {peer_find(names[i]), m.tiny.kv_heads, i < 3 ? 4 : 0, 0};
        struct quality_options o = options_of(&m);
        o.chunks = 1, o.rollback = 16, o.decode = 1, o.first = FIRST, o.equal = i < 3; /* kivi2 has a tail in any case */
        measure(&o, names[i], c);
        for (uint32_t p = FIRST; p < CTX - 1; p++) {
            struct llm_options one = {.format = {AURA_KIND_F32, AURA_KIND_F32}, .tokens = CTX, .on_layer = store_with_tail,
                                      .arg = &tail};
            struct llm_state *state = NULL;
            EXPECT(!llm_state_create(m.llm, &one, &state, error) &&
                   !llm_forward(state, m.tokens, p + 1, 1, logits + p * m.tiny.vocab, error), "%s", error);
            llm_state_destroy(state);
        }
        const double want = mean_divergence(&m, FIRST, exact, logits);
        EXPECT(want > 0 && fabs(c[0].result.kld_mean.value / want - 1) < 1e-3, "%s, %d: %g, not %g", names[i], i,
               c[0].result.kld_mean.value, want);
    }
    free(exact), free(logits);
    close_model(&m);
}

/* In one call they have the tail of all tokens: the same as ours, which are encoded before any query sees them. */
static void others_in_one_call(void)
{
    struct model m;
    struct quality_cache c[16];
    open_layers(&m, 64, 1);
    struct other_tail tail = {peer_find("q4_0"), m.tiny.kv_heads, 4, 0};
    struct quality_options o = options_of(&m);
    o.chunks = 1, o.rollback = 16, o.equal = 1;
    measure(&o, "q4_0", c);
    const aura_format plain = {AURA_KIND_F32, AURA_KIND_F32};
    float *exact = logits_in_calls(&m, (struct llm_options){.format = plain}, CTX);
    float *logits = logits_in_calls(&m, (struct llm_options){.format = plain, .on_layer = store_with_tail, .arg = &tail}, CTX);
    const double want = mean_divergence(&m, CTX / 2, exact, logits);
    EXPECT(want > 0 && fabs(c[0].result.kld_mean.value / want - 1) < 1e-3, "%g, not %g", c[0].result.kld_mean.value, want);
    free(exact), free(logits);
    close_model(&m);
}

static void note_position(void *arg, const char *name, uint32_t chunk, uint32_t position, const struct divergence_row *row)
{
    double *kld = arg;
    (void)name, (void)chunk;
    kld[position] = row->kld;
}

/* The last token of a prompt sees its own part as it came, and the parts before as they are stored; the token behind the prompt
 * sees all of it as stored. */
static void prompts_of_others(void)
{
    enum { LONG = LLM_PART + 60, LAST = LLM_PART + 48 };
    struct model m;
    struct quality_cache c[16];
    static uint32_t tokens[LONG];
    static double kld[LONG];
    open_layers(&m, 64, 1);
    const uint32_t vocab = m.tiny.vocab;
    for (uint32_t i = 0; i < LONG; i++)
        tokens[i] = (i * i * 11 + i / 3) % vocab;
    struct quality_options o = options_of(&m);
    o.tokens = tokens, o.count = o.ctx = LONG, o.first = LAST, o.rollback = 16, o.decode = 1, o.equal = 1;
    o.on_row = note_position, o.row_arg = kld;
    measure(&o, "q4_0", c);
    for (uint32_t p = LAST; p < LAST + 3; p++) {
        struct other_tail tail = {peer_find("q4_0"), m.tiny.kv_heads, 4, p == LAST ? LAST + 1 - LLM_PART : 0};
        float logits[2][64];
        for (int stored = 0; stored < 2; stored++) {
            struct llm_options one = {.format = {AURA_KIND_F32, AURA_KIND_F32}, .tokens = LONG, .arg = &tail};
            struct llm_state *state = NULL;
            one.on_layer = stored ? store_with_tail : NULL;
            EXPECT(!llm_state_create(m.llm, &one, &state, error), "%s", error);
            EXPECT(!llm_forward(state, tokens, p + 1, 1, logits[stored], error), "%s", error);
            llm_state_destroy(state);
        }
        const double want = divergence_row(logits[0], logits[1], vocab, 0).kld;
        EXPECT(want > 0 && fabs(kld[p] / want - 1) < 2e-2, "position %u: %g, not %g", p, kld[p], want);
    }
    close_model(&m);
}

/* ---- other positions ------------------------------------------------------------------------------------------------- */

struct seen {
    uint32_t first, last, count;
    double sum[2];
};

static void note_row(void *arg, const char *name, uint32_t chunk, uint32_t position, const struct divergence_row *row)
{
    struct seen *s = arg;
    (void)name, (void)chunk;
    s->first = s->count ? s->first : position, s->last = position, s->count++;
    s->sum[position >= 512] += row->kld;
}

static void positions_by_depth(void)
{
    struct model m;
    struct quality_cache c[16], whole[16];
    struct seen seen = {0};
    static uint32_t tokens[1040];
    open_model(&m, 64);
    for (uint32_t i = 0; i < 1040; i++)
        tokens[i] = (i * i * 11 + i / 3) % m.tiny.vocab;
    struct quality_options o = options_of(&m);
    o.tokens = tokens, o.count = 1040, o.ctx = 1040, o.by_depth = 1, o.on_row = note_row, o.row_arg = &seen;
    measure(&o, "k3v3", c);
    EXPECT(seen.count == 256 && seen.first == 383 && seen.last == 1022 && quality_depths(1040) == 2, "%u from %u to %u", seen.count,
           seen.first, seen.last);
    for (int i = 0; i < 2; i++)
        EXPECT(fabs(c[0].depth[i].value / (seen.sum[i] / 128) - 1) < 1e-9, "depth %d: %g", i, c[0].depth[i].value);
    for (int i = 0; i < 2; i++) { /* what comes behind so many tokens changes nothing before */
        memset(&seen, 0, sizeof seen);
        o.by_depth = 0, o.ctx = 512u << i, o.first = o.ctx - 129, o.chunks = 1;
        measure(&o, "k3v3", whole);
        EXPECT(seen.count == 128 && fabs(whole[0].result.kld_mean.value / c[0].depth[i].value - 1) < 1e-6, "%g, %g",
               whole[0].result.kld_mean.value, c[0].depth[i].value);
    }
    close_model(&m);
}

static void ratios_are_of_pairs(void)
{
    struct model m;
    struct quality_cache c[16];
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    o.against = "k4v4";
    measure(&o, "k4v4,k3v3", c);
    EXPECT(c[0].ratio.value == 1 && c[0].ratio.error == 0, "of itself: %g", c[0].ratio.value);
    EXPECT(fabs(c[1].ratio.value - c[1].result.kld_mean.value / c[0].result.kld_mean.value) < 1e-9 && c[1].ratio.error > 0, "%g",
           c[1].ratio.value);
    const struct estimate e = estimate_ratio((double[]){2, 5, 2}, (double[]){1, 2, 1}, 3);
    EXPECT(fabs(e.value - 2.25) < 1e-12 && fabs(e.error - sqrt(0.375 / 6) / (4. / 3)) < 1e-12, "%g, %g", e.value, e.error);
    close_model(&m);
}

/* The exact cache follows itself to the end; fewer bits leave the path, at the step of the first row whose most likely token is
 * another. */
static void drift_from_the_path(void)
{
    struct model m;
    struct quality_cache *caches = NULL;
    struct drift_result r[2];
    size_t n = 0;
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    o.rollback = 16, o.chunks = 2;
    EXPECT(!quality_parse("kf32vf32,k2v2", &caches, &n, error) && !drift_measure(&o, 40, 80, caches, n, r, error), "%s", error);
    EXPECT(r[0].texts == 2 && !r[0].first[0] && !r[0].first[1] && caches[0].result.positions == 160, "%u", r[0].first[0]);
    EXPECT(r[0].part[3].value < 1e-8 && r[1].part[0].value > 0 && r[1].part[3].value > 0, "%g, %g", r[0].part[3].value,
           r[1].part[3].value);
    const uint32_t other = (uint32_t)!!r[1].first[0] + !!r[1].first[1];
    EXPECT((caches[1].result.same_top.value == 1) == !other, "%u texts, %g", other, caches[1].result.same_top.value);
    o.count = 39;
    EXPECT(drift_measure(&o, 40, 80, caches, n, r, error) && strstr(error, "39 tokens"), "%s", error);
    free(caches);
    close_model(&m);
}

static void profile_counts(void)
{
    struct model m;
    struct quality_cache c[16], with[16];
    float balance[2 * 64];
    aura_ctx *ctx = NULL;
    aura_profile *profile = NULL;
    open_model(&m, 64);
    for (int i = 0; i < 128; i++)
        balance[i] = i % 2 ? 4.0f : 0.25f;
    EXPECT(!aura_ctx_create(NULL, &ctx) && !aura_profile_create(ctx, 2, &profile), "%s", aura_last_error());
    for (uint32_t layer = 0; layer < 2; layer++)
        EXPECT(!aura_profile_set(profile, layer, 2, 64, balance), "%s", aura_last_error());
    struct quality_options o = options_of(&m);
    measure(&o, "k4v4,q4_0,kf32vf32", c);
    o.profile = profile;
    measure(&o, "k4v4,q4_0,kf32vf32", with);
    EXPECT(!same_summary(&c[0], &with[0]), "ours has balance");
    EXPECT(same_summary(&c[1], &with[1]) && same_summary(&c[2], &with[2]), "the others have none");
    aura_profile_destroy(profile);
    aura_ctx_destroy(ctx);
    close_model(&m);
}

static void begin_token(void)
{
    struct model m, other;
    struct quality_cache c[16], with[16], want[16];
    open_model(&m, 64), open_model(&other, 64);
    struct quality_options o = options_of(&m), changed = options_of(&other);
    for (uint32_t chunk = 0; chunk < CHUNKS; chunk++)
        other.tokens[chunk * CTX] = 7;
    measure(&o, "k4v4", c);
    measure(&changed, "k4v4", want);
    o.begin = 7;
    measure(&o, "k4v4", with);
    EXPECT(same_summary(&with[0], &want[0]) && !same_summary(&with[0], &c[0]), "it takes the place of the first token");
    close_model(&m), close_model(&other);
}

static void threads_change_nothing(void)
{
    struct model m;
    struct quality_cache c[16], other[16];
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    measure(&o, "k4v4,q5_1", c);
    o.threads = 5;
    measure(&o, "k4v4,q5_1", other);
    EXPECT(same_summary(&c[0], &other[0]) && same_summary(&c[1], &other[1]), "five threads");
    close_model(&m);
}

/* ---- going on ------------------------------------------------------------------------------------------------------- */

static void count_exact(void *arg, const struct quality_step *step)
{
    uint32_t *count = arg;
    count[0] += !strcmp(step->cache, "exact");
    count[1]++;
    EXPECT(step->step < step->steps && step->step + 1 == count[1] && step->chunk < step->chunks, "step %u of %u", step->step,
           step->steps);
}

static void base_goes_on(void)
{
    struct model m;
    struct quality_cache c[16], other[16];
    uint32_t count[2] = {0, 0};
    const char *path = file_path("base");
    open_model(&m, 64);
    struct quality_options o = options_of(&m);
    measure(&o, "k4v4,q4_0", c);
    o.base = path, o.model_bytes = 5, o.model_crc = 6, o.progress = count_exact, o.arg = count;
    o.chunks = 2;
    measure(&o, "k4v4", other);
    EXPECT(count[0] == 2 && count[1] == 4, "%u exact passes of %u", count[0], count[1]);
    count[0] = count[1] = 0, o.chunks = 0;
    EXPECT(!truncate(path, 68 + ROWS * 40 * 4 + 4 + 1000), "in the middle of the second chunk");
    measure(&o, "k4v4,q4_0", other);
    EXPECT(count[0] == CHUNKS - 1 && count[1] == CHUNKS - 1 + 2 * CHUNKS, "%u exact passes of %u", count[0], count[1]);
    EXPECT(same_summary(&c[0], &other[0]) && same_summary(&c[1], &other[1]), "the same with a file that was interrupted");
    count[0] = count[1] = 0;
    measure(&o, "q4_0", other);
    EXPECT(count[0] == 0 && same_summary(&c[1], &other[0]), "nothing exact is computed again");

    struct quality_cache *one = NULL;
    size_t n = 0;
    EXPECT(!quality_parse("k4v4", &one, &n, error), "%s", error);
    m.tokens[COUNT - 1] ^= 1;
    EXPECT(quality_measure(&o, one, n, error) && strstr(error, "another text"), "%s", error);
    m.tokens[COUNT - 1] ^= 1, o.rounded = 1;
    EXPECT(quality_measure(&o, one, n, error) && strstr(error, "--rounded"), "%s", error);
    free(one);
    unlink(path);
    close_model(&m);
}

static void refused(void)
{
    struct model m, odd;
    struct quality_cache *one = NULL, *peer = NULL;
    size_t n = 0;
    open_model(&m, 64), open_model(&odd, 80);
    EXPECT(!quality_parse("k4v4", &one, &n, error) && !quality_parse("q4_0", &peer, &n, error), "%s", error);
    struct quality_options o = options_of(&m), of_odd = options_of(&odd);
    o.count = CTX - 1;
    EXPECT(quality_chunks(&o) == 0 && quality_measure(&o, one, n, error) && strstr(error, "the text has 95 tokens"), "%s", error);
    o = options_of(&m), o.ctx = 3;
    EXPECT(quality_measure(&o, one, n, error) && strstr(error, "at least 4"), "%s", error);
    o = options_of(&m), m.tokens[5] = m.tiny.vocab;
    EXPECT(quality_measure(&o, one, n, error) && strstr(error, "vocabulary"), "%s", error);
    EXPECT(quality_measure(&of_odd, peer, n, error) && strstr(error, "blocks of 32"), "%s", error);
    EXPECT(!quality_measure(&of_odd, one, n, error), "%s", error);
    o = options_of(&m), m.tokens[5] = 0, o.by_depth = 1;
    EXPECT(quality_measure(&o, one, n, error) && strstr(error, "512"), "%s", error);
    o.by_depth = 0, o.against = "q8_0";
    EXPECT(quality_measure(&o, one, n, error) && strstr(error, "not among"), "%s", error);
    struct quality_cache *kivi = NULL;
    EXPECT(!quality_parse("kivi2", &kivi, &n, error), "%s", error);
    o.against = NULL, o.decode = 1;
    EXPECT(quality_measure(&o, kivi, n, error) && strstr(error, "--rollback"), "%s", error);
    free(kivi);
    free(one), free(peer);
    close_model(&m), close_model(&odd);
}

/* ---- exact products ------------------------------------------------------------------------------------------------- */

/* A copy of a file with matrices in Q8_0, or in f32 with the numbers that the Q8_0 blocks stand for. */
static struct gguf_part rounded_copy(const struct gguf *file, int as_floats)
{
    struct gguf_writer w = {0};
    for (uint64_t i = 0; i < gguf_values(file); i++) {
        const struct gguf_value *v = gguf_value_at(file, i);
        char key[96], text[96];
        uint64_t number = 0;
        double real = 0;
        struct gguf_text string = {"", 0};
        snprintf(key, sizeof key, "%.*s", (int)v->key.size, v->key.data);
        if (gguf_uint(file, key, &number) == 1)
            gguf_put_u32(&w, key, (uint32_t)number);
        else if (gguf_float(file, key, &real) == 1)
            gguf_put_f32(&w, key, (float)real);
        else if (gguf_string(file, key, &string) == 1)
            snprintf(text, sizeof text, "%.*s", (int)string.size, string.data), gguf_put_string(&w, key, text);
    }
    for (uint64_t i = 0; i < gguf_tensors(file); i++) {
        const struct gguf_tensor *t = gguf_tensor_at(file, i);
        size_t n = (size_t)(t->size[0] * t->size[1]);
        uint8_t *blocks = malloc(n / 32 * 34);
        float *x = malloc(n * sizeof *x);
        char name[96];
        snprintf(name, sizeof name, "%.*s", (int)t->name.size, t->name.data);
        memcpy(x, t->data, n * sizeof *x);
        for (size_t b = 0; t->dims == 2 && b < n / 32; b++) {
            static const uint8_t scale[2] = {0x00, 0x18}; /* 2^-9 in f16 */
            memcpy(blocks + 34 * b, scale, 2);
            for (size_t j = 0; j < 32; j++) {
                int8_t code = (int8_t)lrintf(x[32 * b + j] * 512);
                blocks[34 * b + 2 + j] = (uint8_t)code, x[32 * b + j] = (float)code / 512;
            }
        }
        if (t->dims == 2 && !as_floats)
            gguf_put_tensor(&w, name, GGUF_TYPE_Q8_0, 2, t->size, blocks, n / 32 * 34);
        else
            gguf_put_tensor(&w, name, GGUF_TYPE_F32, t->dims, t->size, x, n * sizeof *x);
        free(blocks), free(x);
    }
    return gguf_finish(&w);
}

static void logits_of(const struct gguf_part *bytes, int exact, const uint32_t *tokens, float *logits)
{
    struct gguf *file = NULL;
    struct llm *llm = NULL;
    struct llm_state *state = NULL;
    struct llm_options o = {.format = {AURA_KIND_F32, AURA_KIND_F32}};
    EXPECT(!gguf_read(bytes->data, bytes->size, &file, error) && !(exact ? llm_open_exact : llm_open)(file, 2, &llm, error) &&
           !llm_state_create(llm, &o, &state, error) && !llm_forward(state, tokens, 32, 32, logits, error), "%s", error);
    llm_state_destroy(state);
    llm_close(llm);
    gguf_close(file);
}

/* A model with quantised weights, opened by llm_open_exact(), equals the model with the numbers that these stand for. */
static void exact_products(void)
{
    struct model m;
    static float exact[32 * 40], floats[32 * 40], rounded[32 * 40];
    open_model(&m, 64);
    struct gguf_part blocks = rounded_copy(m.file, 0), plain = rounded_copy(m.file, 1);
    logits_of(&blocks, 1, m.tokens, exact);
    logits_of(&plain, 0, m.tokens, floats);
    logits_of(&blocks, 0, m.tokens, rounded);
    EXPECT(!memcmp(exact, floats, sizeof exact), "the same bits");
    EXPECT(memcmp(exact, rounded, sizeof exact), "llm_open() rounds vectors");
    free(blocks.data), free(plain.data);
    close_model(&m);
}

/* ---- bits where they count ------------------------------------------------------------------------------------------- */

enum { MANY = 6 };

/* Keys have what keys need: with the sides of all layers exchanged it is worse. */
static void expect_sides(const struct quality_options *o, const aura_format *formats, double kld)
{
    aura_format exchanged[MANY];
    struct quality_cache other = {.name = "exchanged", .formats = exchanged};
    int differ = 0;
    for (int i = 0; i < MANY; i++) {
        exchanged[i] = (aura_format){formats[i].v, formats[i].k};
        differ += formats[i].k != formats[i].v;
    }
    EXPECT(differ, "sides are alike, so this shows nothing");
    EXPECT(!quality_measure(o, &other, 1, error) && other.result.kld_mean.value > kld, "%g exchanged, %g as chosen; %s",
           other.result.kld_mean.value, kld, error);
}

/* Never more bits than were asked for, and no step that would still fit is left; better than the same bits on all layers. What is
 * measured is what a cache with these formats has, and a profile hands them on. */
static void bits_where_they_count(void)
{
    struct model m;
    struct quality_cache c[16];
    aura_format formats[MANY];
    struct allocation a = {.formats = formats}, all = {.formats = formats};
    aura_ctx *ctx = NULL;
    aura_profile *profile = NULL;
    open_layers(&m, 64, MANY);
    struct quality_options o = options_of(&m);
    o.chunks = 1;
    measure(&o, "k2v2,k3v3,k8v8", c);
    EXPECT(!allocate(&o, c[2].bits, 0, &all, error), "%s", error);
    for (int i = 0; i < MANY; i++)
        EXPECT(formats[i].k == AURA_KIND_B8 && formats[i].v == AURA_KIND_B8, "layer %d: bits are left", i);
    const double step = (c[1].bits - c[0].bits) / (2 * MANY), asked = (c[0].bits + c[1].bits) / 2 + step / 2;
    EXPECT(!allocate(&o, asked, 0, &a, error), "%s", error);
    EXPECT(a.bits <= asked && a.bits > asked - 2 * step, "%g bits instead of %g", a.bits, asked);
    expect_sides(&o, formats, a.kld);
    EXPECT(a.fewest_bits == c[0].bits && a.fewest_kld == c[0].result.kld_mean.value, "not those of k2v2");
    EXPECT(!aura_ctx_create(NULL, &ctx) && !aura_profile_create(ctx, MANY, &profile), "%s", aura_last_error());
    for (uint32_t i = 0; i < MANY; i++) {
        aura_profile_layer layer = AURA_PROFILE_LAYER_INIT;
        layer.format = formats[i];
        EXPECT(!aura_profile_put(profile, i, &layer), "%s", aura_last_error());
    }
    o.profile = profile;
    measure(&o, "profile,k3v2,k2v3", c);
    EXPECT(c[0].bits == a.bits && c[0].result.kld_mean.value == a.kld, "%g bits, %g; measured as %g, %g", c[0].bits,
           c[0].result.kld_mean.value, a.bits, a.kld);
    EXPECT(a.kld < c[1].result.kld_mean.value && a.kld < c[2].result.kld_mean.value, "%g: k3v2 has %g, k2v3 %g", a.kld,
           c[1].result.kld_mean.value, c[2].result.kld_mean.value);
    EXPECT(allocate(&o, 2.0, 0, &a, error) && strstr(error, "the least is"), "too few bits: %s", error);
    o.profile = NULL;
    EXPECT(!allocate(&o, asked, 1, &all, error) && all.bits == a.bits && all.kld < a.kld, "trellis codes: %g bits, %g; %s",
           all.bits, all.kld, error);
    for (int i = 0; i < MANY; i++)
        EXPECT(formats[i].k == AURA_KIND_T2 || formats[i].k == AURA_KIND_T3 || formats[i].k == AURA_KIND_T4, "none in layer %d",
               i);
    struct quality_cache *parsed = NULL;
    size_t count;
    EXPECT(!quality_parse("profile", &parsed, &count, error) && quality_measure(&o, parsed, count, error) &&
           strstr(error, "needs --profile"), "no profile: %s", error);
    free(parsed);
    aura_profile_destroy(profile);
    aura_ctx_destroy(ctx);
    close_model(&m);
}

int main(void)
{
    RUN(exact_cache);
    RUN(fewer_bits_diverge_more);
    RUN(read_as_stored);
    RUN(written_token_by_token);
    RUN(others_keep_what_ours_keep);
    RUN(others_in_one_call);
    RUN(prompts_of_others);
    RUN(positions_by_depth);
    RUN(ratios_are_of_pairs);
    RUN(drift_from_the_path);
    RUN(profile_counts);
    RUN(begin_token);
    RUN(threads_change_nothing);
    EXPECT(files_begin(), "a directory for files");
    RUN(base_goes_on);
    files_end();
    RUN(refused);
    RUN(exact_products);
    RUN(bits_where_they_count);
    return test_result();
}
