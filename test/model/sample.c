/* Sampling: which tokens stay, how often they are drawn, and that the same seed gives the same tokens everywhere. */
#include <math.h>
#include <stdlib.h>

#include "../../model/sample.h"
#include "../test.h"

enum { VOCAB = 50 };
static float logits[VOCAB];

/* 50 logits: token 7 has the largest, tokens 3 and 30 share the second place. */
static void make_logits(void)
{
    for (int i = 0; i < VOCAB; i++)
        logits[i] = (float)((i * 37) % 50) / 10.0f;
    logits[7] = 6, logits[3] = logits[30] = 5.5f;
}

static void draw(const struct sample_options *options, int n, int counts[VOCAB])
{
    struct sampler *s = sampler_create(options, VOCAB);
    memset(counts, 0, VOCAB * sizeof *counts);
    for (int i = 0; s && i < n; i++)
        counts[sampler_next(s, logits) % VOCAB]++;
    sampler_destroy(s);
}

static void greedy(void)
{
    int counts[VOCAB];
    draw(&(struct sample_options){0, 3, 0.5f, 1}, 20, counts);
    EXPECT(counts[7] == 20, "token 7 came %d times", counts[7]);
    logits[20] = logits[7];
    draw(&(struct sample_options){0, 0, 0, 1}, 20, counts);
    EXPECT(counts[7] == 20, "of two largest the first came %d times of 20", counts[7]);
    make_logits();
}

/* Compares frequencies with the probabilities in double: within five standard deviations. `staying` tokens can be drawn. */
static void frequencies(const struct sample_options *options, const int *order, int staying, const char *name)
{
    enum { DRAWS = 40000 };
    int counts[VOCAB], seen = 0;
    double total = 0;
    draw(options, DRAWS, counts);
    for (int i = 0; i < staying; i++)
        total += exp((double)logits[order[i]] / (double)options->temp);
    for (int i = 0; i < staying; i++) {
        double p = exp((double)logits[order[i]] / (double)options->temp) / total, expected = p * DRAWS;
        EXPECT(fabs(counts[order[i]] - expected) <= 5 * sqrt(expected * (1 - p)) + 1, "%s: token %d came %d times, not %g", name,
               order[i], counts[order[i]], expected);
        seen += counts[order[i]];
    }
    EXPECT(seen == DRAWS, "%s: %d draws of tokens that must not come", name, DRAWS - seen);
}

static int by_logit(const void *a, const void *b)
{
    int x = *(const int *)a, y = *(const int *)b;
    return logits[x] > logits[y] ? -1 : logits[x] < logits[y] ? 1 : x - y;
}

static void shares(void)
{
    int order[VOCAB], staying = 0;
    double all = 0, sum = 0, five = 0;
    for (int i = 0; i < VOCAB; i++)
        order[i] = i, all += exp((double)logits[i]);
    qsort(order, VOCAB, sizeof *order, by_logit);
    frequencies(&(struct sample_options){1, 0, 0, 1}, order, VOCAB, "all");
    frequencies(&(struct sample_options){0.5f, 0, 1, 2}, order, VOCAB, "temperature");
    frequencies(&(struct sample_options){1, 5, 0, 3}, order, 5, "top k");
    frequencies(&(struct sample_options){1, 2, 0, 3}, order, 2, "top k at a tie: the lower token");
    frequencies(&(struct sample_options){1, 1, 0, 3}, order, 1, "top 1");
    for (; sum < 0.7 * all; staying++)
        sum += exp((double)logits[order[staying]]);
    frequencies(&(struct sample_options){1, 0, 0.7f, 4}, order, staying, "top p");
    for (int i = 0; i < 5; i++)
        five += exp((double)logits[order[i]]);
    for (staying = 0, sum = 0; sum < 0.7 * five; staying++)
        sum += exp((double)logits[order[staying]]);
    frequencies(&(struct sample_options){1, 5, 0.7f, 5}, order, staying, "top k, then top p");
    frequencies(&(struct sample_options){1, 0, 1e-6f, 6}, order, 1, "a share so small that one is enough");
}

static void same_everywhere(void)
{
    static const uint32_t recorded[12] = {8, 7, 3, 3, 7, 39, 7, 35, 3, 4, 7, 30};
    struct sampler *a = sampler_create(&(struct sample_options){0.8f, 20, 0.95f, 42}, VOCAB);
    struct sampler *b = sampler_create(&(struct sample_options){0.8f, 20, 0.95f, 43}, VOCAB);
    int differ = 0;
    for (int i = 0; i < 12; i++) {
        uint32_t token = sampler_next(a, logits);
        EXPECT(token == recorded[i], "draw %d is %u, not %u", i, token, recorded[i]);
        differ += sampler_next(b, logits) != token;
    }
    EXPECT(differ > 0, "another seed, and the same tokens");
    sampler_destroy(a);
    sampler_destroy(b);
}

/* Logits so far apart that only the first token has a weight. */
static void far_apart(void)
{
    static const float far[3] = {-3e38f, 3e38f, 0};
    struct sampler *s = sampler_create(&(struct sample_options){1, 0, 0, 1}, 3);
    for (int i = 0; i < 50; i++)
        EXPECT(sampler_next(s, far) == 1, "a token without weight");
    sampler_destroy(s);
}

/* By hand: a token that comes twice counts once; what is below 0 goes further down. */
static void penalty(void)
{
    static const uint32_t tokens[] = {3, 0, 3, 2};
    const float want[] = {2, 5, -6, 1.5f, -1};
    float got[] = {4, 5, -3, 3, -1};
    sampler_penalise(got, tokens, 4, 1);
    EXPECT(got[0] == 4 && got[2] == -3 && got[3] == 3, "1 is no penalty");
    sampler_penalise(got, tokens, 4, 2);
    for (int i = 0; i < 5; i++)
        EXPECT(got[i] == want[i], "logit %d is %g, not %g", i, (double)got[i], (double)want[i]);
}

int main(void)
{
    make_logits();
    RUN(greedy);
    RUN(shares);
    RUN(same_everywhere);
    RUN(far_apart);
    RUN(penalty);
    return test_result();
}
