/* How far the next-token distributions of a model are from its exact ones: position by position, and summed up. */
#ifndef AURA_DIVERGENCE_H
#define AURA_DIVERGENCE_H

#include <stddef.h>
#include <stdint.h>

/* The index of the largest logit, the first of equals; -1 where a logit is not finite. */
int64_t top_of(const float *logits, uint32_t vocab);

/* One position. All in double, natural logarithms. */
struct divergence_row {
    double kld;       /* sum of p ln(p / q): p from the exact logits, q from the others */
    double nll;       /* -ln q of the next token of the text */
    double exact_nll; /* -ln p of the same token */
    double accepted;  /* sum of min(p, q): the chance that the exact model takes a token that the other one proposes */
    int same_top;     /* both have the same most likely token, the first of equals */
    int finite;       /* 0: some logit is NaN or Inf, and nothing above means anything */
};
struct divergence_row divergence_row(const float *exact, const float *logits, uint32_t vocab, uint32_t next);

/* All positions of a text, in order. A struct of zeros has none. */
struct divergence {
    size_t positions, room, same_top;
    double *kld, *nll, *accepted; /* [positions] */
    double *excess;               /* [positions] nll - exact_nll */
};

/* 0 when good; otherwise there is no memory. */
int divergence_add(struct divergence *d, const struct divergence_row *row);
void divergence_free(struct divergence *d);

/* A number and its standard error as if positions were independent. NAN: there are too few positions. */
struct estimate {
    double value, error;
};

struct divergence_summary {
    size_t positions;
    struct estimate kld_mean, kld_median, kld_p99, kld_p999;
    double kld_max;
    struct estimate accepted;  /* mean */
    struct estimate same_top;  /* share of positions */
    struct estimate ppl;       /* exp of the mean nll */
    struct estimate ppl_ratio; /* to the exact logits' ppl; its error comes from pairs of positions, so it is much smaller */
};

/* At least one position. Sorts the divergences. */
struct divergence_summary divergence_sum_up(struct divergence *d);

/* The mean of n numbers, and its standard error. */
struct estimate estimate_mean(const double *x, size_t n);

/* The quotient of the means of x and y, which were measured in pairs: what both have in common is not in its error. */
struct estimate estimate_ratio(const double *x, const double *y, size_t n);

/* The q-quantile of n sorted numbers, interpolated between neighbours. Its error: the rank has a binomial standard deviation; half
 * the distance between the numbers one such deviation below and above the rank, where both exist. */
struct estimate estimate_quantile(const double *sorted, size_t n, double q);

#endif
