/* Pages that come and close in one call are work of their own for threads. They hold the bytes that the same tokens give a few at a
 * time, in one order, on one thread. */
#include "../../include/aura_file.h"
#include "cache_tools.h"

enum { TOKENS = 1500, HEADS = 2, DIM = 64, V_DIM = 80 };

static struct tensor k, v;
static aura_ctx *many;

static uint8_t *bytes_of(const aura_cache *cache, aura_seq seq, size_t *bytes)
{
    aura_sink sink = AURA_SINK_INIT;
    EXPECT(!aura_seq_size(cache, seq, NULL, bytes), "%s", aura_last_error());
    sink.data = malloc(*bytes), sink.bytes = *bytes;
    EXPECT(!aura_seq_write(cache, seq, &sink, NULL), "%s", aura_last_error());
    return sink.data;
}

static void expect_same_seqs(const aura_cache *cache, aura_seq one, aura_seq two, const char *what, uint32_t before)
{
    size_t bytes[2];
    uint8_t *a = bytes_of(cache, one, &bytes[0]), *b = bytes_of(cache, two, &bytes[1]);
    EXPECT(bytes[0] == bytes[1] && !memcmp(a, b, bytes[0]), "%s, after %u tokens: the bytes differ", what, before);
    free(a), free(b);
}

/* `before` tokens, then all others: in one call, and in many. */
static void try_config(const aura_config *config, uint32_t before)
{
    aura_cache *cache = cache_new(many, config);
    aura_seq one = seq_new(cache), two = seq_new(cache);
    const uint32_t most = config->window ? config->max_queries : TOKENS;
    EXPECT(!before || !append(cache, one, &k, &v, 0, before), "%s", aura_last_error());
    for (uint32_t t = before, n; t < TOKENS; t += n) {
        n = TOKENS - t < most ? TOKENS - t : most;
        EXPECT(!append(cache, one, &k, &v, t, n), "%s", aura_last_error());
    }
    for (uint32_t t = 0, n; t < TOKENS; t += n) {
        n = TOKENS - t < 37 ? TOKENS - t : 37;
        EXPECT(!append(cache, two, &k, &v, t, n), "%s", aura_last_error());
    }
    expect_same_seqs(cache, one, two, config_text(config), before);
    aura_cache_destroy(cache);
}

static void a_prompt_in_one_call(void)
{
    static const aura_kind kinds[][2] = {{AURA_KIND_B4, AURA_KIND_B4}, {AURA_KIND_B8, AURA_KIND_F16}, {AURA_KIND_F32, AURA_KIND_B3},
                                         {AURA_KIND_F16, AURA_KIND_BF16}};
    static const uint32_t flags[] = {0, AURA_NO_PINNED, AURA_NO_ROLLBACK, AURA_NO_OPEN | AURA_NO_REFERENCE, AURA_NO_REFERENCE};
    static const uint32_t befores[] = {0, 3, 4, 100, 255, 256, 300, 511};
    for (size_t i = 0; i < 4; i++)
        for (size_t f = 0; f < (i ? 2 : 5); f++)
            for (size_t b = 0; b < 8; b += small_run() ? 3 : 1) {
                aura_config config = config_of(kinds[i][0], kinds[i][1], DIM, V_DIM, HEADS);
                config.flags |= flags[f];
                try_config(&config, befores[b]);
                config.window = 300, config.max_queries = 700;
                if (f == 0)
                    try_config(&config, befores[b]);
            }
}

/* Sequences of one call that differ in what they bring. */
static void prompts_of_several_sequences(void)
{
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B5, DIM, V_DIM, HEADS);
    aura_cache *cache = cache_new(many, &config);
    static const uint32_t tokens[] = {TOKENS, 1, 0, 700, 256};
    aura_append_job jobs[5];
    for (int i = 0; i < 5; i++)
        jobs[i] = append_job(seq_new(cache), &k, &v, 0, tokens[i]);
    EXPECT(!aura_append(cache, jobs, 5), "%s", aura_last_error());
    for (int i = 0; i < 5; i++) {
        aura_seq alone = seq_new(cache);
        for (uint32_t t = 0, n; t < tokens[i]; t += n) {
            n = tokens[i] - t < 50 ? tokens[i] - t : 50;
            EXPECT(!append(cache, alone, &k, &v, t, n), "%s", aura_last_error());
        }
        expect_same_seqs(cache, jobs[i].seq, alone, "one of several", tokens[i]);
    }
    aura_cache_destroy(cache);
}

/* Tokens that cannot be stored, in pages of all sorts: the first is named, or each becomes zeros and is marked. */
static void bad_tokens_in_pages(void)
{
    static const uint32_t bad_at[] = {1, 300, 777, TOKENS - 1};
    static uint8_t bad[TOKENS];
    aura_config config = config_of(AURA_KIND_B4, AURA_KIND_B4, DIM, V_DIM, HEADS);
    aura_cache *cache = cache_new(many, &config);
    float *keys = random_tokens(1, TOKENS, HEADS, DIM, 1), *zeros = random_tokens(1, TOKENS, HEADS, DIM, 1);
    for (int i = 0; i < 4; i++) {
        keys[((size_t)bad_at[i] * HEADS + 1) * DIM + 5] = NAN;
        memset(zeros + ((size_t)bad_at[i] * HEADS + 1) * DIM, 0, DIM * sizeof *zeros);
    }
    aura_append_job job = append_job(seq_new(cache), &k, &v, 0, TOKENS), good = append_job(seq_new(cache), &k, &v, 0, TOKENS);
    for (int i = 0; i < 4; i++) {
        char words[64];
        const uint32_t from = i ? bad_at[i - 1] + 1 : 0; /* behind the last */
        job.k = tensor_from(&k, 0), job.k.data = keys + (size_t)from * HEADS * DIM, job.tokens = TOKENS - from;
        snprintf(words, sizeof words, "jobs[0].k, token %u, KV head 1", bad_at[i] - from);
        EXPECT(aura_append(cache, &job, 1) == AURA_BAD_VALUE && strstr(aura_last_error(), words), "%s, not %s", aura_last_error(),
               words);
    }
    job.k.data = keys, job.tokens = TOKENS, job.bad = bad, good.k.data = zeros;
    EXPECT(!aura_append(cache, &job, 1) && !aura_append(cache, &good, 1), "%s", aura_last_error());
    expect_same_seqs(cache, job.seq, good.seq, "zeros", 0);
    for (uint32_t t = 0; t < TOKENS; t++)
        EXPECT(bad[t] == (t == bad_at[0] || t == bad_at[1] || t == bad_at[2] || t == bad_at[3]), "token %u: %d", t, bad[t]);
    free(keys), free(zeros);
    aura_cache_destroy(cache);
}

int main(void)
{
    aura_ctx_options options = AURA_CTX_OPTIONS_INIT;
    options.threads = 3;
    if (aura_ctx_create(NULL, &ctx) || aura_ctx_create(&options, &many))
        return 1;
    k = tensor_new(TOKENS, HEADS, DIM, AURA_F32, DENSE), v = tensor_new(TOKENS, HEADS, V_DIM, AURA_F32, DENSE);
    float *x = random_tokens(1, TOKENS, HEADS, DIM, 1), *y = random_tokens(2, TOKENS, HEADS, V_DIM, 0);
    tensor_set(&k, x), tensor_set(&v, y);
    free(x), free(y);
    RUN(a_prompt_in_one_call);
    RUN(prompts_of_several_sequences);
    RUN(bad_tokens_in_pages);
    tensor_free(&k), tensor_free(&v);
    aura_ctx_destroy(many), aura_ctx_destroy(ctx);
    return test_result();
}
