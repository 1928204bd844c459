/* Speculative decoding: guess some words, let the model look at all of them in one call, keep those that it would have written,
 * take the others back. The text must be that which comes word by word; with 8 bits, as rounding can turn a near tie. */
#include <aura.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS = 24, HEADS = 2, DIM = 64, N = HEADS * DIM, TEXT = 300, GUESSES = 4, MOST = GUESSES + 1 };

static float meaning[WORDS][N], question[WORDS][N]; /* a toy of a model: key and value of every word, and its query */
static int plain[TEXT + MOST], guessed[TEXT + MOST]; /* the text */

static void check(aura_status status)
{
    if (status)
        exit((fprintf(stderr, "speculative: %s\n", aura_last_error()), 1));
}

static int most_like(const float *out) /* five words on: a word that follows itself would be dull */
{
    float like[WORDS] = {0};
    int best = 0;
    for (int i = 0; i < WORDS * N; i++)
        like[i / N] += out[i % N] * meaning[(i / N + 5) % WORDS][i % N];
    for (int w = 1; w < WORDS; w++)
        best = like[w] > like[best] ? w : best;
    return best;
}

/* Appends n words; next[i] is what the model puts after word i. */
static void run(aura_cache *cache, aura_seq seq, const int *word, int n, int *next)
{
    float kv[MOST][N], q[MOST][N], out[MOST][N];
    aura_append_job append = AURA_APPEND_JOB_INIT;
    aura_attend_job attend = AURA_ATTEND_JOB_INIT;
    for (int i = 0; i < n; i++)
        memcpy(kv[i], meaning[word[i]], sizeof *kv), memcpy(q[i], question[word[i]], sizeof *q);
    append.seq = attend.seq = seq, append.tokens = attend.queries = (uint32_t)n;
    append.k.data = append.v.data = kv, attend.q.data = q, attend.out.data = out;
    check(aura_append(cache, &append, 1)), check(aura_attend(cache, &attend, 1, NULL)); /* query i sees words 0 to i */
    for (int i = 0; i < n; i++)
        next[i] = most_like(out[i]);
}

/* Writes the text with so many guesses a step; returns the number of steps. */
static int generate(aura_ctx *ctx, int guesses, int *text)
{
    aura_config config = AURA_CONFIG_INIT; /* rollback: the newest 16 tokens can be taken back without a trace */
    aura_cache *cache;
    aura_seq seq;
    int next[MOST], steps = 0, n = 0, right;
    config.format.k = config.format.v = AURA_KIND_B8, config.q_heads = config.kv_heads = HEADS, config.k_dim = DIM;
    check(aura_cache_create(ctx, &config, &cache)), check(aura_seq_create(cache, &seq));
    for (; n < TEXT; steps++) { /* words 0 to n are known, of which the cache has n; it began with word 0 */
        for (int i = n, at = 0; i < n + guesses; text[i + 1] = text[at], i++) /* what followed this word the last time */
            for (int back = 0; back < i; back++)
                at = text[back] == text[i] ? back + 1 : at;
        run(cache, seq, text + n, guesses + 1, next);
        for (right = 0; right < guesses && text[n + right + 1] == next[right];)
            right++;
        text[n + right + 1] = next[right], n += right + 1;
        check(aura_truncate(cache, seq, (uint64_t)n)); /* the wrong guesses were never there */
    }
    return aura_cache_destroy(cache), steps;
}

int main(void)
{
    aura_ctx *ctx;
    for (uint32_t i = 0, x = 1; i < 2 * WORDS * N; i++)
        (i % 2 ? meaning : question)[i / 2 / N][i / 2 % N] =
            (i % 2 ? 1 : 4) * ((float)((x = x * 1664525u + 1013904223u) >> 8) / (1 << 23) - 1);
    check(aura_ctx_create(NULL, &ctx));
    int slow = generate(ctx, 0, plain), fast = generate(ctx, GUESSES, guessed);
    int bad = memcmp(plain, guessed, TEXT * sizeof *plain) || fast >= slow;
    printf("speculative: %d words in %d steps instead of %d, %s\n", TEXT, fast, slow, bad ? "WRONG" : "the same text");
    return aura_ctx_destroy(ctx), bad;
}
