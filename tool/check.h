/* One trial: one variant, all its cases. */
#ifndef AURA_CHECK_H
#define AURA_CHECK_H

#include "../src/dispatch.h"

struct trial {
    const struct aura_variant *variant;
    uint64_t seed;
    double tolerance;    /* of the stage, for the reference against double */
    size_t cases;        /* run so far */
    double worst;        /* largest error so far, in the unit of the tolerance; exact variants: 1 when a bit differs */
    char where[160];     /* the running case, in case it faults */
    char failure[320];   /* "" while all is well: the first failure */
};

/* Runs every case of a stage and fills the trial. The reference is compared with double, everything else with the
 * reference, bit by bit. */
void check_stage(struct trial *trial);

/* Nanoseconds per row of dim 128, from hot caches, in about `seconds`; and the bytes a row reads and writes. */
double time_stage(const struct aura_variant *variant, double seconds, double *bytes_per_row);

#endif
