/* Sampling. All arithmetic is double, in one fixed order, and calls no function of the C library whose last bit may differ. */
#include "../src/base/exact.h"
#include "sample.h"

#include <stdlib.h>
#include <string.h>

struct candidate {
    float logit;
    uint32_t token;
};

struct sampler {
    struct sample_options options;
    uint64_t state;
    uint32_t vocab;
    struct candidate heap[]; /* [vocab] */
};

struct sampler *sampler_create(const struct sample_options *options, uint32_t vocab)
{
    struct sampler *s = malloc(sizeof *s + vocab * sizeof s->heap[0]);
    if (!s)
        return NULL;
    s->options = *options, s->state = options->seed, s->vocab = vocab;
    return s;
}

void sampler_destroy(struct sampler *sampler)
{
    free(sampler);
}

/* splitmix64. */
static uint64_t random_bits(struct sampler *s)
{
    uint64_t z = s->state += 0x9e3779b97f4a7c15u;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9u;
    z = (z ^ z >> 27) * 0x94d049bb133111ebu;
    return z ^ z >> 31;
}

/* e^x for x <= 0: 2^n times the power series of the rest, which is within ln(2) / 2. Below -700 it is 0. */
static double exponential(double x)
{
    static const double series[] = {1.0 / 87178291200, 1.0 / 6227020800, 1.0 / 479001600, 1.0 / 39916800, 1.0 / 3628800,
                                    1.0 / 362880, 1.0 / 40320, 1.0 / 5040, 1.0 / 720, 1.0 / 120, 1.0 / 24, 1.0 / 6, 0.5, 1, 1};
    double sum = 0, power;
    if (!(x > -700))
        return 0;
    int n = (int)(x * 1.4426950408889634 - 0.5);
    double rest = (x - n * 0.693147180369123816490) - n * 1.90821492927058770002e-10;
    for (size_t i = 0; i < sizeof series / sizeof series[0]; i++)
        sum = sum * rest + series[i];
    uint64_t bits = (uint64_t)(1023 + n) << 52;
    memcpy(&power, &bits, sizeof power);
    return sum * power;
}

/* ---- the most likely first ------------------------------------------------------------------------------------------------ */

/* Of equal logits the lower token: so the order does not depend on the heap. */
static int before(struct candidate a, struct candidate b)
{
    return a.logit > b.logit || (a.logit == b.logit && a.token < b.token);
}

static void sift(struct candidate *heap, size_t n, size_t i)
{
    for (size_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && before(heap[child + 1], heap[child]))
            child++;
        if (!before(heap[child], heap[i]))
            return;
        struct candidate c = heap[i];
        heap[i] = heap[child], heap[child] = c;
    }
}

/* Takes the first out of a heap of n, and stores it behind the n - 1 others. */
static struct candidate pop(struct candidate *heap, size_t n)
{
    struct candidate first = heap[0];
    heap[0] = heap[n - 1], heap[n - 1] = first;
    sift(heap, n - 1, 0);
    return first;
}

static uint32_t largest(const float *logits, uint32_t n)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < n; i++)
        if (logits[i] > logits[best])
            best = i;
    return best;
}

/* ---- the draw --------------------------------------------------------------------------------------------------------------- */

static double weight(const struct sampler *s, struct candidate c, float top)
{
    return exponential(((double)c.logit - (double)top) / (double)s->options.temp);
}

/* Returns how many candidates stay. They are at the end of the heap, the most likely last; *total is the sum of their weights.
 * The heap is sorted only as far as needed to decide who stays. */
static size_t choose(struct sampler *s, float top, double *total)
{
    size_t n = s->vocab, most = s->options.top_k && s->options.top_k < n ? s->options.top_k : n, ordered = 0, staying = 0;
    int all_stay = most == n && !(s->options.top_p > 0 && s->options.top_p < 1);
    double share = s->options.top_p > 0 && s->options.top_p < 1 ? (double)s->options.top_p : 2, all = 0;
    for (size_t i = all_stay ? 0 : n / 2; i-- > 0;)
        sift(s->heap, n, i);
    for (; most < n && ordered < most; ordered++)
        all += weight(s, pop(s->heap, n - ordered), top);
    for (size_t i = 0; most == n && i < n; i++)
        all += weight(s, s->heap[i], top);
    for (*total = 0; staying < most && *total < share * all; staying++) {
        if (!all_stay && staying == ordered)
            pop(s->heap, n - ordered++);
        *total += weight(s, s->heap[n - 1 - staying], top);
    }
    return staying;
}

uint32_t sampler_next(struct sampler *s, const float *logits)
{
    uint32_t best = largest(logits, s->vocab);
    double total, sum = 0;
    if (!(s->options.temp > 0))
        return best;
    for (uint32_t i = 0; i < s->vocab; i++)
        s->heap[i] = (struct candidate){logits[i], i};
    size_t staying = choose(s, logits[best], &total);
    double draw = (double)(random_bits(s) >> 11) * 0x1p-53 * total;
    for (size_t i = 0; i < staying; i++) {
        struct candidate c = s->heap[s->vocab - 1 - i];
        sum += weight(s, c, logits[best]);
        if (sum > draw)
            return c.token;
    }
    return best; /* rounding made the sum of all not exceed the draw */
}

void sampler_penalise(float *logits, const uint32_t *tokens, size_t n, float penalty)
{
    for (size_t i = 0; i < n && penalty != 1; i++) {
        size_t first = 0;
        while (tokens[first] != tokens[i])
            first++;
        float *logit = &logits[tokens[i]];
        if (first == i)
            *logit = *logit > 0 ? *logit / penalty : *logit * penalty;
    }
}
