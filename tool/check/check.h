/* One trial: one variant, all its cases. */
#ifndef AURA_CHECK_H
#define AURA_CHECK_H

#include "../../src/dispatch.h"
#include "guard.h"

struct trial {
    const struct aura_variant *variant;
    uint64_t seed;
    double tolerance;    /* of the stage: see variants.h */
    size_t cases;        /* run so far */
    double worst;        /* largest error so far, in the unit of the tolerance; exact variants: 1 when a bit differs */
    char where[160];     /* the running case: the report of a fault names it */
    char failure[320];   /* "" while all is well: the first failure */
};

/* ---- what the cases share ---- */

enum { MAX_ROWS = 5, ARENA_BYTES = 1 << 17 };
extern struct arena in, in2, more, more2, more3, out, out2; /* the first five are for inputs; kernels may change `more` in place */

/* Where the buffers of a case lie; it changes from case to case. */
struct layout {
    enum placement placement;
    size_t shift; /* in elements */
};
struct layout layout_of(size_t number);
void *place(struct arena *arena, size_t count, size_t element, struct layout layout);
void check_canaries(struct trial *trial);

/* Notes the first failure, with the case. */
void fail(struct trial *trial, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* An error in the unit of the tolerance. NaN is a failure, always. */
void bound(struct trial *trial, double error, const char *what, size_t i);
void same_bytes(struct trial *trial, const void *got, const void *want, size_t n, const char *what);
void same_floats(struct trial *trial, const float *got, const float *want, size_t n, const char *what);

int is_ref(const struct trial *trial);
/* A random codebook of the width with a random rule of its scale, searched or not; and its name. */
void random_plan(struct aura_codec_plan *plan, uint32_t kind, uint32_t dim, char *name, size_t name_size,
                 uint64_t *state);

/* The cases of row_score, row_softmax, row_value, row_reduce and softmax; and of feedback. */
void check_attend(struct trial *trial);

void check_feedback(struct trial *trial);

/* The cases of the exact stages of a tile; 0 when the stage is none of them. */
int check_tile(struct trial *trial);

/* Runs every case of a stage and fills the trial. Of an exact stage the definition is compared with double, and every other
 * kernel with the definition, bit by bit. Of a bounded stage every kernel is compared with double. */
void check_stage(struct trial *trial);

/* Measures, in about `seconds`, the nanoseconds for one row of dim 128 with hot caches, and the bytes that it reads and writes.
 * Where queries meet tokens, that is one token for 4 queries. */
double time_stage(const struct aura_variant *variant, double seconds, double *bytes_per_row);

#endif
