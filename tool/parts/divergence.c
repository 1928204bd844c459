/* Divergence of next-token distributions. */
#include "divergence.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

int64_t top_of(const float *logits, uint32_t vocab)
{
    int64_t top = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        if (!isfinite(logits[i]))
            return -1;
        if (logits[i] > logits[top])
            top = i;
    }
    return top;
}

struct divergence_row divergence_row(const float *exact, const float *logits, uint32_t vocab, uint32_t next)
{
    int64_t top_p = top_of(exact, vocab), top_q = top_of(logits, vocab);
    if (top_p < 0 || top_q < 0)
        return (struct divergence_row){0};
    double max_p = exact[top_p], max_q = logits[top_q], sum_p = 0, sum_q = 0, gap = 0;
    for (uint32_t i = 0; i < vocab; i++) {
        double p = exp(exact[i] - max_p);
        sum_p += p;
        gap += p * ((double)exact[i] - (double)logits[i]);
        sum_q += exp(logits[i] - max_q);
    }
    double log_p = max_p + log(sum_p), log_q = max_q + log(sum_q), kld = gap / sum_p - log_p + log_q, accepted = 0;
    for (uint32_t i = 0; i < vocab; i++)
        accepted += exp(fmin(exact[i] - log_p, logits[i] - log_q));
    struct divergence_row row = {.nll = log_q - logits[next], .exact_nll = log_p - exact[next], .finite = 1};
    row.kld = kld > 0 ? kld : 0; /* only rounding makes it negative */
    row.same_top = top_p == top_q;
    row.accepted = accepted < 1 ? accepted : 1;
    return row;
}

static int grow(double **array, size_t room)
{
    double *larger = realloc(*array, room * sizeof **array);
    if (larger)
        *array = larger;
    return larger ? 0 : -1;
}

int divergence_add(struct divergence *d, const struct divergence_row *row)
{
    if (d->positions == d->room) {
        size_t room = d->room ? 2 * d->room : 1024;
        if (grow(&d->kld, room) || grow(&d->nll, room) || grow(&d->excess, room) || grow(&d->accepted, room))
            return -1;
        d->room = room;
    }
    d->kld[d->positions] = row->kld, d->nll[d->positions] = row->nll;
    d->excess[d->positions] = row->nll - row->exact_nll, d->accepted[d->positions] = row->accepted;
    d->positions++;
    d->same_top += (size_t)(row->same_top != 0);
    return 0;
}

void divergence_free(struct divergence *d)
{
    free(d->kld), free(d->nll), free(d->excess), free(d->accepted);
    memset(d, 0, sizeof *d);
}

struct estimate estimate_mean(const double *x, size_t n)
{
    double sum = 0, squares = 0;
    for (size_t i = 0; i < n; i++)
        sum += x[i];
    double mean = sum / (double)n;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - mean) * (x[i] - mean);
    return (struct estimate){mean, n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) : NAN};
}

struct estimate estimate_ratio(const double *x, const double *y, size_t n)
{
    const double mean = estimate_mean(y, n).value, ratio = estimate_mean(x, n).value / mean;
    double squares = 0;
    for (size_t i = 0; i < n; i++)
        squares += (x[i] - ratio * y[i]) * (x[i] - ratio * y[i]);
    return (struct estimate){ratio, n > 1 ? sqrt(squares / (double)(n - 1) / (double)n) / mean : NAN};
}

static double at_rank(const double *sorted, size_t n, double rank)
{
    size_t i = (size_t)rank;
    return i + 1 < n ? sorted[i] + (rank - (double)i) * (sorted[i + 1] - sorted[i]) : sorted[n - 1];
}

struct estimate estimate_quantile(const double *sorted, size_t n, double q)
{
    double rank = q * (double)(n - 1), spread = sqrt((double)n * q * (1 - q));
    double error = NAN;
    if (spread > 0 && rank - spread >= 0 && rank + spread <= (double)(n - 1))
        error = (at_rank(sorted, n, rank + spread) - at_rank(sorted, n, rank - spread)) / 2;
    return (struct estimate){at_rank(sorted, n, rank), error};
}

static int ascending(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

/* exp of a mean, with its error to first order. */
static struct estimate estimate_exp(struct estimate e)
{
    return (struct estimate){exp(e.value), exp(e.value) * e.error};
}

struct divergence_summary divergence_sum_up(struct divergence *d)
{
    size_t n = d->positions;
    struct divergence_summary s = {.positions = n, .kld_mean = estimate_mean(d->kld, n), .accepted = estimate_mean(d->accepted, n)};
    qsort(d->kld, n, sizeof *d->kld, ascending);
    s.kld_median = estimate_quantile(d->kld, n, 0.5);
    s.kld_p99 = estimate_quantile(d->kld, n, 0.99);
    s.kld_p999 = estimate_quantile(d->kld, n, 0.999);
    s.kld_max = d->kld[n - 1];
    double share = (double)d->same_top / (double)n;
    s.same_top = (struct estimate){share, sqrt(share * (1 - share) / (double)n)};
    s.ppl = estimate_exp(estimate_mean(d->nll, n));
    s.ppl_ratio = estimate_exp(estimate_mean(d->excess, n));
    return s;
}
