/* Transformers: compares small models of every architecture with the same models in double, and tests what a state promises. */
#define _POSIX_C_SOURCE 200809L
#include <unistd.h>

#include "../../model/llm.h"
#include "llm_tools.h"
#include "../test.h"

enum { MOST = 70, VOCAB = 40 };
static char error[LLM_ERROR_BYTES];

struct opened {
    struct gguf_part bytes;
    struct gguf *file;
    struct llm *llm;
    struct llm_state *state;
};

static struct opened open_bytes(struct gguf_writer *w)
{
    struct opened o = {gguf_finish(w), NULL, NULL, NULL};
    strcpy(error, "");
    if (!gguf_read(o.bytes.data, o.bytes.size, &o.file, error))
        llm_open(o.file, 2, &o.llm, error);
    return o;
}

static struct opened open_tiny(const struct tiny *t)
{
    struct gguf_writer w = {0};
    tiny_write(t, &w);
    return open_bytes(&w);
}

/* With a cache of f32 unless the options say otherwise. */
static struct opened open_state(const struct tiny *t, struct llm_options options)
{
    struct opened o = open_tiny(t);
    if (!options.format.k)
        options.format = (aura_format){AURA_KIND_F32, AURA_KIND_F32};
    if (o.llm)
        llm_state_create(o.llm, &options, &o.state, error);
    EXPECT(o.state, "%s: %s", t->arch, error);
    return o;
}

static void close_all(struct opened *o)
{
    llm_state_destroy(o->state);
    llm_close(o->llm);
    gguf_close(o->file);
    free(o->bytes.data);
}

static void some_tokens(uint32_t *tokens, size_t n)
{
    for (size_t i = 0; i < n; i++)
        tokens[i] = (uint32_t)(i * i * 7 + 3 * i + 1) % VOCAB;
}

/* ---- results ----------------------------------------------------------------------------------------------------- */

/* Compares all logits of a text with those in double; each call reads `step` tokens. */
static void compare(const struct tiny *t, size_t step, uint32_t threads, const char *what)
{
    static double want[MOST * VOCAB];
    static float got[MOST * VOCAB];
    uint32_t tokens[MOST];
    double worst = 0, size = 0;
    struct opened o = open_state(t, (struct llm_options){.threads = threads});
    some_tokens(tokens, MOST);
    tiny_forward(t, tokens, MOST, want);
    for (size_t at = 0; o.state && at < MOST; at += step) {
        size_t n = MOST - at < step ? MOST - at : step;
        EXPECT(!llm_forward(o.state, tokens + at, n, n, got + at * VOCAB, error), "%s: %s", what, error);
    }
    for (int i = 0; i < MOST * VOCAB; i++) {
        worst = fabs(got[i] - want[i]) > worst ? fabs(got[i] - want[i]) : worst;
        size = fabs(want[i]) > size ? fabs(want[i]) : size;
    }
    EXPECT(size > 0.5 && worst <= 2e-5 * size, "%s, %zu at once: logits of up to %g are off by %g", what, step, size, worst);
    close_all(&o);
}

static void architectures(void)
{
    struct tiny t = tiny_model("llama");
    compare(&t, MOST, 1, "llama");
    compare(&t, 1, 2, "llama");
    t.tied = 1, t.factors = 1, t.linear = 4, t.rope_base = 500000;
    compare(&t, 9, 2, "llama with factors and scaling");
    t = tiny_model("qwen2");
    compare(&t, MOST, 2, "qwen2");
    compare(&t, 17, 1, "qwen2");
    t = tiny_model("qwen3");
    t.head_dim = 128, t.tied = 1;
    compare(&t, MOST, 2, "qwen3");
    compare(&t, 3, 1, "qwen3");
}

/* A packed cache is near the exact one, and each width is nearer than the one before. */
static void formats(void)
{
    static const char *const names[] = {"k3v3", "k4v4", "k6v6", "k8v8", "kf16vf16"};
    struct tiny t = tiny_model("llama");
    static double want[MOST * VOCAB];
    uint32_t tokens[MOST];
    double before = 1e9;
    some_tokens(tokens, MOST);
    tiny_forward(&t, tokens, MOST, want);
    for (int f = 0; f < 5; f++) {
        static float got[MOST * VOCAB];
        struct llm_options options = {.flags = AURA_NO_PINNED, .rollback = 1};
        double sum = 0;
        EXPECT(!aura_format_parse(names[f], &options.format), "%s", names[f]);
        struct opened o = open_state(&t, options);
        EXPECT(!llm_forward(o.state, tokens, MOST, MOST, got, error), "%s: %s", names[f], error);
        for (int i = 0; i < MOST * VOCAB; i++)
            sum += (got[i] - want[i]) * (got[i] - want[i]);
        EXPECT(sum < before, "%s is off by %g, the one before by %g", names[f], sqrt(sum), sqrt(before));
        before = sum;
        close_all(&o);
    }
    EXPECT(before < 1e-2, "an f16 cache is off by %g", sqrt(before));
}

/* ---- prompts ------------------------------------------------------------------------------------------------------- */

static double worst_of(const float *got, const float *want, size_t n)
{
    double worst = 0;
    for (size_t i = 0; i < n; i++)
        worst = fabs((double)got[i] - (double)want[i]) > worst ? fabs((double)got[i] - (double)want[i]) : worst;
    return worst;
}

/* The tokens of a prompt see each other as they came, however few bits the cache has. */
static void prompts_see_themselves(void)
{
    static const char *const names[] = {"k2v2", "kt3vt3", "kf16v2", "kf32v2", "k3vf32"};
    struct tiny t = tiny_model("qwen3");
    static double want[MOST * VOCAB];
    static float got[MOST * VOCAB];
    uint32_t tokens[MOST];
    double worst = 0, size = 0;
    some_tokens(tokens, MOST);
    tiny_forward(&t, tokens, MOST, want);
    for (int f = 0; f < 5; f++)
        for (int learns = 0; learns < 2; learns++) {
            struct llm_options options = {.exact_prompts = 1, .threads = 2, .flags = learns ? AURA_LEARN : 0};
            EXPECT(!aura_format_parse(names[f], &options.format), "%s", names[f]);
            struct opened o = open_state(&t, options);
            EXPECT(!llm_forward(o.state, tokens, MOST, MOST, got, error), "%s: %s", names[f], error);
            for (int i = 0; i < MOST * VOCAB; i++) {
                worst = fabs(got[i] - want[i]) > worst ? fabs(got[i] - want[i]) : worst;
                size = fabs(want[i]) > size ? fabs(want[i]) : size;
            }
            EXPECT(size > 0.5 && worst <= 2e-5 * size, "%s: logits of up to %g are off by %g", names[f], size, worst);
            close_all(&o);
        }
}

/* A plain state has what the first state's cache returns, in every layer. */
static void copy_decoded(const struct tiny *t, const struct opened *from, struct opened *to)
{
    const uint32_t n = (uint32_t)llm_state_tokens(from->state), row = t->kv_heads * t->head_dim;
    float *k = malloc(2 * n * row * sizeof *k), *v = k + n * row;
    aura_seq seq;
    aura_append_job job = AURA_APPEND_JOB_INIT;
    aura_view k_view = AURA_VIEW_INIT, v_view = AURA_VIEW_INIT;
    aura_model_cache *source = llm_state_cache(from->state, &seq), *target = llm_state_cache(to->state, &job.seq);
    job.tokens = n, job.k.data = k_view.data = k, job.v.data = v_view.data = v;
    EXPECT(!llm_state_truncate(to->state, 0, error), "%s", error);
    for (uint32_t layer = 0; layer < t->layers; layer++)
        EXPECT(!aura_cache_decode(aura_model_cache_layer(source, layer), seq, 0, n, &k_view, &v_view) &&
               !aura_append(aura_model_cache_layer(target, layer), &job, 1), "%s", aura_last_error());
    free(k);
}

/* What came before a prompt is seen as the cache has it, and the few tokens behind one are appended first. */
static void prompts_see_older_tokens_stored(void)
{
    enum { FIRST = 40, SECOND = 26, THIRD = 4 };
    struct tiny t = tiny_model("llama");
    static float got[MOST * VOCAB], want[MOST * VOCAB];
    uint32_t tokens[MOST];
    some_tokens(tokens, MOST);
    for (uint32_t threads = 1; threads < 3; threads++) {
        const struct llm_options codes = {.format = {AURA_KIND_B8, AURA_KIND_B8}, .exact_prompts = 1, .threads = threads,
                                          .rollback = 1};
        struct opened o = open_state(&t, codes), plain = open_state(&t, (struct llm_options){0});
        EXPECT(!llm_forward(o.state, tokens, FIRST, 0, NULL, error), "%s", error);
        copy_decoded(&t, &o, &plain);
        EXPECT(!llm_forward(o.state, tokens + FIRST, SECOND, SECOND, got, error) &&
               !llm_forward(plain.state, tokens + FIRST, SECOND, SECOND, want, error), "%s", error);
        EXPECT(worst_of(got, want, SECOND * VOCAB) < 2e-3, "the second prompt is off by %g", worst_of(got, want, SECOND * VOCAB));
        EXPECT(llm_state_tokens(o.state) == FIRST + SECOND, "%zu tokens", llm_state_tokens(o.state));
        struct opened steps = open_state(&t, (struct llm_options){0});
        copy_decoded(&t, &o, &steps);
        EXPECT(!llm_forward(o.state, tokens + FIRST + SECOND, THIRD, 1, got, error) &&
               !llm_forward(steps.state, tokens + FIRST + SECOND, THIRD, 1, want, error), "%s", error);
        EXPECT(worst_of(got, want, VOCAB) < 2e-2, "the tokens behind it are off by %g", worst_of(got, want, VOCAB));
        close_all(&o), close_all(&plain), close_all(&steps);
    }
}

/* The bytes that a prompt leaves in the first layer are those of the other way: its keys and values do not depend on attention. */
static void prompts_are_stored_as_ever(void)
{
    struct tiny t = tiny_model("llama");
    uint32_t tokens[MOST];
    float k[2][MOST * 2 * 64], v[2][MOST * 2 * 64];
    some_tokens(tokens, MOST);
    for (int exact = 0; exact < 2; exact++) {
        struct opened o = open_state(&t, (struct llm_options){.format = {AURA_KIND_B3, AURA_KIND_B3}, .exact_prompts = exact});
        aura_seq seq;
        aura_model_cache *cache = llm_state_cache(o.state, &seq);
        aura_view k_view = AURA_VIEW_INIT, v_view = AURA_VIEW_INIT;
        k_view.data = k[exact], v_view.data = v[exact];
        EXPECT(!llm_forward(o.state, tokens, MOST, 0, NULL, error), "%s", error);
        EXPECT(!aura_cache_decode(aura_model_cache_layer(cache, 0), seq, 0, MOST, &k_view, &v_view), "%s", aura_last_error());
        close_all(&o);
    }
    EXPECT(!memcmp(k[0], k[1], sizeof k[0]) && !memcmp(v[0], v[1], sizeof v[0]), "other bytes");
}

/* A cache that learns encodes a first prompt by what that prompt's queries have taught it: its keys in the first layer have other
 * bytes than those of a cache that does not. So it is with short prompts, and not with very short ones. */
static void prompts_teach_of(uint32_t count, int teaches)
{
    struct tiny t = tiny_model("llama");
    static uint32_t tokens[600];
    static float k[2][600 * 2 * 64];
    some_tokens(tokens, count);
    for (int learns = 0; learns < 2; learns++) {
        struct llm_options options = {.format = {AURA_KIND_B3, AURA_KIND_B3}, .exact_prompts = 1, .tokens = count};
        options.flags = learns ? AURA_LEARN : 0;
        struct opened o = open_state(&t, options);
        aura_seq seq;
        aura_model_cache *cache = llm_state_cache(o.state, &seq);
        aura_view k_view = AURA_VIEW_INIT, none = AURA_VIEW_INIT;
        k_view.data = k[learns];
        EXPECT(!llm_forward(o.state, tokens, count, 0, NULL, error), "%s", error);
        EXPECT(!aura_cache_decode(aura_model_cache_layer(cache, 0), seq, 0, count, &k_view, &none), "%s", aura_last_error());
        close_all(&o);
    }
    size_t others = 0;
    for (size_t i = 0; i < count / 2 * 2 * 64; i++)
        others += k[0][i] != k[1][i];
    EXPECT(teaches ? others > count / 8 * 64 : !others, "%u tokens: %zu numbers of the first half are others", count, others);
}

static void prompts_teach(void)
{
    prompts_teach_of(600, 1), prompts_teach_of(140, 1), prompts_teach_of(120, 0);
}

/* Few tokens, and a cache without codes, go the short way: the same bits as without exact_prompts. The second 16 tokens close a
 * tile. */
static void no_prompts(void)
{
    struct tiny t = tiny_model("llama");
    uint32_t tokens[MOST];
    float logits[2][VOCAB];
    some_tokens(tokens, MOST);
    for (int plain = 0; plain < 2; plain++) {
        for (int exact = 0; exact < 2; exact++) {
            const uint32_t kind = plain ? AURA_KIND_F16 : AURA_KIND_B3, step = plain ? MOST / 2 : LLM_FEW;
            struct opened o = open_state(&t, (struct llm_options){.format = {kind, kind}, .exact_prompts = exact, .rollback = 1});
            for (uint32_t at = 0; at < 2 * step + (plain ? 0 : step); at += step)
                EXPECT(!llm_forward(o.state, tokens + at, step, 1, logits[exact], error), "%s", error);
            close_all(&o);
        }
        EXPECT(!memcmp(logits[0], logits[1], sizeof logits[0]), "other logits, %d", plain);
    }
}

/* A model of which token 0 has a weight that is not finite, and tokens without it. */
static struct opened open_with_bad_token(uint32_t *tokens, uint32_t n)
{
    struct tiny t = tiny_model("llama");
    struct gguf_writer w = {0};
    const float nan = NAN;
    some_tokens(tokens, n);
    for (uint32_t i = 0; i < n; i++)
        tokens[i] += !tokens[i];
    tiny_write(&t, &w);
    memcpy(w.data.data, &nan, sizeof nan);
    return open_bytes(&w);
}

/* A prompt that fails in the middle leaves what was there, and the next one is right. */
static void prompts_that_fail(void)
{
    uint32_t tokens[MOST];
    float logits[VOCAB], again[VOCAB];
    struct opened o = open_with_bad_token(tokens, MOST);
    const struct llm_options options = {.format = {AURA_KIND_B4, AURA_KIND_B4}, .exact_prompts = 1, .rollback = 30};
    EXPECT(o.llm && !llm_state_create(o.llm, &options, &o.state, error), "%s", error);
    EXPECT(!llm_forward(o.state, tokens, 20, 0, NULL, error) && !llm_forward(o.state, tokens + 20, 30, 1, logits, error), "%s",
           error);
    EXPECT(!llm_state_truncate(o.state, 20, error), "%s", error);
    uint32_t kept = tokens[40];
    tokens[40] = 0;
    EXPECT(llm_forward(o.state, tokens + 20, 30, 1, again, error) && strstr(error, "layer 0"), "%s", error);
    EXPECT(llm_state_tokens(o.state) == 20, "%zu tokens", llm_state_tokens(o.state));
    tokens[40] = kept;
    EXPECT(!llm_forward(o.state, tokens + 20, 30, 1, again, error) && !memcmp(logits, again, sizeof logits), "other logits; %s",
           error);
    close_all(&o);
}

/* A cache that learns learns nothing from a prompt that is refused. */
static void prompts_that_fail_teach_nothing(void)
{
    enum { LONG = 600 };
    static uint32_t tokens[LONG];
    float logits[2][VOCAB];
    struct opened o = open_with_bad_token(tokens, LONG);
    for (int fails = 0; fails < 2; fails++) {
        const struct llm_options options = {.format = {AURA_KIND_B3, AURA_KIND_B3}, .exact_prompts = 1, .flags = AURA_LEARN,
                                            .tokens = LONG + 20};
        EXPECT(o.llm && !llm_state_create(o.llm, &options, &o.state, error), "%s", error);
        const uint32_t kept = tokens[LONG - 1];
        tokens[LONG - 1] = fails ? 0 : kept;
        EXPECT(!fails || llm_forward(o.state, tokens, LONG, 0, NULL, error), "a weight that is not finite");
        tokens[LONG - 1] = kept;
        EXPECT(!llm_forward(o.state, tokens, 300, 0, NULL, error) && !llm_forward(o.state, tokens + 300, 300, 0, NULL, error) &&
               !llm_forward(o.state, tokens, 1, 1, logits[fails], error), "%s", error);
        llm_state_destroy(o.state);
    }
    o.state = NULL;
    EXPECT(!memcmp(logits[0], logits[1], sizeof logits[0]), "other logits");
    close_all(&o);
}

/* ---- what a state promises ----------------------------------------------------------------------------------------- */

static struct seen {
    uint32_t calls, layers, tokens;
    uint64_t first;
} seen;

static void look(void *arg, uint32_t layer, uint64_t first, uint32_t tokens, float *q, float *k, float *v)
{
    (void)q, (void)k;
    seen.calls++, seen.layers += layer, seen.first = first, seen.tokens = tokens;
    for (size_t i = 0; *(int *)arg && i < (size_t)tokens * 2 * 64; i++)
        v[i] = 0;
}

/* The hook sees every layer, and attention uses what it changes. */
static void hook(void)
{
    struct tiny t = tiny_model("llama");
    int wipe = 0;
    float plain[VOCAB], same[VOCAB], wiped[VOCAB];
    uint32_t tokens[9];
    some_tokens(tokens, 9);
    struct opened a = open_state(&t, (struct llm_options){0}),
        b = open_state(&t, (struct llm_options){.on_layer = look, .arg = &wipe});
    EXPECT(!llm_forward(a.state, tokens, 9, 1, plain, error) && !llm_forward(b.state, tokens, 4, 0, NULL, error), "%s", error);
    EXPECT(!llm_forward(b.state, tokens + 4, 5, 1, same, error), "%s", error);
    EXPECT(seen.calls == 4 && seen.layers == 2 && seen.first == 4 && seen.tokens == 5, "%u calls, the last from %u on",
           seen.calls, (unsigned)seen.first);
    for (int i = 0; i < VOCAB; i++)
        EXPECT(fabsf(plain[i] - same[i]) < 1e-4f, "logit %d: %g, looked at %g", i, (double)plain[i], (double)same[i]);
    wipe = 1;
    EXPECT(!llm_state_truncate(b.state, 0, error) && !llm_forward(b.state, tokens, 9, 1, wiped, error), "%s", error);
    double change = 0;
    for (int i = 0; i < VOCAB; i++)
        change += fabs((double)wiped[i] - (double)plain[i]);
    EXPECT(change > 0.1, "values of zero change nothing");
    close_all(&a);
    close_all(&b);
}

static void limits(void)
{
    struct tiny t = tiny_model("llama");
    float logits[VOCAB], again[VOCAB];
    uint32_t tokens[MOST];
    some_tokens(tokens, MOST);
    struct opened o = open_state(&t, (struct llm_options){.tokens = 20});
    EXPECT(llm_state_capacity(o.state) == 20 && llm_state_tokens(o.state) == 0, "%zu of %zu", llm_state_tokens(o.state),
           llm_state_capacity(o.state));
    EXPECT(!llm_forward(o.state, tokens, 12, 1, logits, error), "%s", error);
    EXPECT(llm_forward(o.state, tokens, 9, 1, again, error) && strstr(error, "context is full"), "%s", error);
    EXPECT(llm_forward(o.state, tokens, 0, 0, again, error), "no tokens");
    EXPECT(llm_forward(o.state, tokens, 2, 3, again, error), "more logits than tokens");
    EXPECT(llm_forward(o.state, (uint32_t[]){1, VOCAB}, 2, 1, again, error) && strstr(error, "vocabulary has 40"), "%s", error);
    EXPECT(llm_state_tokens(o.state) == 12, "%zu tokens after calls that failed", llm_state_tokens(o.state));
    EXPECT(!llm_forward(o.state, tokens + 12, 8, 1, again, error), "%s", error);
    EXPECT(llm_state_tokens(o.state) == 20 && llm_state_bytes(o.state) > 0, "%zu tokens", llm_state_tokens(o.state));
    EXPECT(llm_state_truncate(o.state, 21, error), "more tokens than there are");
    close_all(&o);
}

/* A weight that is not finite. In the embedding, the cache refuses its key; in the output, only the logits show it, after all
 * layers. Both are errors, and the state keeps its tokens. */
static void not_finite(void)
{
    struct tiny t = tiny_model("llama");
    const size_t places[2] = {0, (size_t)(t.vocab + 1) * t.dim * sizeof(float)}; /* token 0; the output's first row */
    for (int i = 0; i < 2; i++) {
        struct gguf_writer w = {0};
        uint32_t tokens[2] = {1, 2};
        float logits[VOCAB], nan = NAN;
        tiny_write(&t, &w);
        memcpy(w.data.data + places[i], &nan, sizeof nan);
        struct opened o = open_bytes(&w);
        EXPECT(o.llm && !llm_state_create(o.llm, &(struct llm_options){.format = {AURA_KIND_B4, AURA_KIND_B4}}, &o.state,
                                          error), "%s", error);
        EXPECT(!llm_forward(o.state, tokens, 2, 0, NULL, error), "%s", error);
        EXPECT(llm_forward(o.state, (uint32_t[]){0, 3, 4}, 3, 1, logits, error) &&
               strstr(error, i ? "not finite" : "layer 0"), "%s", error);
        EXPECT(llm_state_tokens(o.state) == 2 && !llm_forward(o.state, tokens, 2, 0, NULL, error), "%zu tokens; %s",
               llm_state_tokens(o.state), error);
        close_all(&o);
    }
}

/* A vector whose squares f32 cannot hold has a norm all the same: its length does not matter after it. */
static void large_vectors(void)
{
    struct tiny t = tiny_model("llama");
    float logits[2][VOCAB];
    for (int i = 0; i < 2; i++) {
        struct gguf_writer w = {0};
        tiny_write(&t, &w);
        float *embedding = (float *)(void *)w.data.data;
        for (uint32_t d = 0; d < t.dim; d++)
            embedding[3 * t.dim + d] = tiny_weight(&t, "token_embd.weight", 3 * t.dim + d) * (i ? 1e25f : 1e12f);
        struct opened o = open_bytes(&w);
        EXPECT(o.llm && !llm_state_create(o.llm, &(struct llm_options){.format = {AURA_KIND_F32, AURA_KIND_F32}}, &o.state,
                                          error), "%s", error);
        EXPECT(o.state && !llm_forward(o.state, (uint32_t[]){3}, 1, 1, logits[i], error), "%s", error);
        close_all(&o);
    }
    for (int i = 0; i < VOCAB; i++)
        EXPECT(fabsf(logits[0][i] - logits[1][i]) <= 1e-4f * (1 + fabsf(logits[0][i])), "logit %d: %g, %g", i,
               (double)logits[0][i], (double)logits[1][i]);
    EXPECT(logits[1][0] != 0 || logits[1][1] != 0, "there is nothing left");
}

/* After truncation or a snapshot the same tokens have the same logits, bit for bit. */
static void back_again(void)
{
    struct tiny t = tiny_model("qwen3");
    char path[64];
    float first[VOCAB], second[VOCAB], third[VOCAB];
    uint32_t tokens[MOST];
    some_tokens(tokens, MOST);
    snprintf(path, sizeof path, "/tmp/aura-test-llm-%d", (int)getpid());
    struct llm_options options = {.format = {AURA_KIND_B4, AURA_KIND_B4}, .threads = 2};
    struct opened o = open_state(&t, options), other = open_state(&t, options);
    EXPECT(!llm_forward(o.state, tokens, 60, 0, NULL, error) && !llm_state_save(o.state, path, NULL, 0, error), "%s", error);
    EXPECT(!llm_forward(o.state, tokens + 60, 4, 1, first, error), "%s", error);
    EXPECT(!llm_state_truncate(o.state, 60, error) && !llm_forward(o.state, tokens + 60, 4, 1, second, error), "%s", error);
    EXPECT(!memcmp(first, second, sizeof first), "after truncation another logit");
    EXPECT(!llm_forward(other.state, tokens, 5, 0, NULL, error) && !llm_state_load(other.state, path, error), "%s", error);
    EXPECT(llm_state_tokens(other.state) == 60, "%zu tokens loaded", llm_state_tokens(other.state));
    EXPECT(!llm_forward(other.state, tokens + 60, 4, 1, third, error) && !memcmp(first, third, sizeof first),
           "after loading another logit");
    EXPECT(llm_state_load(other.state, "/no/such/file", error) && llm_state_tokens(other.state) == 64, "%s", error);
    close_all(&other);
    options.tokens = 30;
    other = open_state(&t, options);
    EXPECT(llm_state_load(other.state, path, error) && strstr(error, "60 tokens") && llm_state_tokens(other.state) == 0,
           "%s", error);
    aura_model_cache_info info = AURA_MODEL_CACHE_INFO_INIT;
    aura_seq seq;
    EXPECT(!aura_model_cache_get_info(llm_state_cache(other.state, &seq), &info) && info.seqs == 1,
           "%zu sequences are left", info.seqs);
    unlink(path);
    close_all(&other);
    close_all(&o);
}

/* ---- files that are something else ----------------------------------------------------------------------------------- */

/* The message when a changed file is opened. */
static void refuses(const struct tiny *t, void (*change)(struct gguf_writer *w), const char *why)
{
    struct gguf_writer w = {0};
    if (change)
        change(&w);
    tiny_write(t, &w);
    struct opened o = open_bytes(&w);
    EXPECT(!o.llm && strstr(error, why), "expected \"%s\", got \"%s\"", why, error);
    close_all(&o);
}

static void with_yarn(struct gguf_writer *w) { gguf_put_string(w, "llama.rope.scaling.type", "yarn"); }
static void with_experts(struct gguf_writer *w) { gguf_put_u32(w, "llama.expert_count", 8); }
static void with_window(struct gguf_writer *w) { gguf_put_u32(w, "llama.attention.sliding_window", 4096); }
static void with_odd_turns(struct gguf_writer *w) { gguf_put_u32(w, "llama.rope.dimension_count", 63); }

static void with_a_factor(struct gguf_writer *w) { gguf_put_f32(w, "llama.rope.scaling.factor", 4); }
static void with_an_old_factor(struct gguf_writer *w) { gguf_put_f32(w, "llama.rope.scale_linear", 4); }
static void with_no_order(struct gguf_writer *w) { gguf_put_bool(w, "llama.attention.causal", 0); }
static void with_something_new(struct gguf_writer *w) { gguf_put_u32(w, "llama.attention.\033[2Jmagic", 1); }

static void others(void)
{
    struct tiny t = tiny_model("mamba");
    refuses(&t, NULL, "architecture mamba is not supported");
    t = tiny_model("llama");
    refuses(&t, with_yarn, "yarn is not supported");
    refuses(&t, with_experts, "llama.expert_count");
    refuses(&t, with_window, "llama.attention.sliding_window");
    refuses(&t, with_odd_turns, "63 numbers of each head");
    refuses(&t, with_a_factor, "rope.scaling.factor 4 without the type linear");
    refuses(&t, with_an_old_factor, "rope.scale_linear 4");
    refuses(&t, with_no_order, "llama.attention.causal: what it asks for is not supported");
    refuses(&t, with_something_new, "key llama.attention.?[2Jmagic is not known here");
    t.add = "blk.0.attn_sinks";
    refuses(&t, NULL, "tensor blk.0.attn_sinks: a llama model");
    t = tiny_model("qwen2"), t.leave_out = "blk.1.attn_k.bias";
    refuses(&t, NULL, "tensor blk.1.attn_k.bias is missing");
    t = tiny_model("llama"), t.leave_out = "blk.1.ffn_down.weight";
    refuses(&t, NULL, "tensor blk.1.ffn_down.weight is missing");
    t = tiny_model("llama"), t.leave_out = "token_embd.weight";
    refuses(&t, NULL, "token_embd.weight is missing");
    t = tiny_model("llama"), t.kv_heads = 3;
    refuses(&t, NULL, "4 query heads");
}

/* A head size without kernels is an error of the cache, when the state is made. */
static void unknown_dim(void)
{
    struct tiny t = tiny_model("llama");
    t.head_dim = 520;
    struct opened o = open_tiny(&t);
    EXPECT(o.llm && llm_state_create(o.llm, &(struct llm_options){0}, &o.state, error) && strstr(error, "520"), "%s", error);
    close_all(&o);
}

/* --write FILE: the model with which test/run.sh tries the tool. */
int main(int argc, char **argv)
{
    if (argc > 2 && !strcmp(argv[1], "--write"))
        return talker_write(argv[2], 0);
    RUN(architectures);
    RUN(formats);
    RUN(prompts_see_themselves);
    RUN(prompts_see_older_tokens_stored);
    RUN(prompts_are_stored_as_ever);
    RUN(prompts_teach);
    RUN(no_prompts);
    RUN(prompts_that_fail);
    RUN(prompts_that_fail_teach_nothing);
    RUN(hook);
    RUN(limits);
    RUN(not_finite);
    RUN(large_vectors);
    RUN(back_again);
    RUN(others);
    RUN(unknown_dim);
    return test_result();
}
