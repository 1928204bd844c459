/* Inputs that break things: the numbers every kernel is tried on. */
#ifndef AURA_INPUTS_H
#define AURA_INPUTS_H

#include <stddef.h>
#include <stdint.h>

/* splitmix64 and a normal deviate from it; the same numbers everywhere. */
uint64_t random_bits(uint64_t *state);
double random_uniform(uint64_t *state); /* [0, 1) */
float random_normal(uint64_t *state);
int pick(uint64_t *state, int n); /* 0 to n - 1 */

/* Kinds of vectors, all finite. */
enum vector_kind {
    NORMAL,       /* N(0,1) */
    OUTLIERS,     /* N(0,1) with a few coordinates 50 times as large */
    ONE_HOT,
    CONSTANT,
    ZERO,
    SIGNED_ZERO,  /* +0 and -0 */
    TINY,         /* about 2^-53 .. 2^-50: on both sides of "too small to matter" */
    DENORMAL,
    HUGE_VALUES,  /* up to 2^39 */
    MIXED,        /* every exponent from 2^-60 to 2^20 */
    N_VECTOR_KINDS
};
const char *vector_kind_name(enum vector_kind kind);
void fill_vector(float *x, size_t n, enum vector_kind kind, uint64_t *state);

/* Scales: ordinary, 0, negative, denormal, huge. */
enum { N_SCALE_KINDS = 5 };
float scale_of_kind(int kind, uint64_t *state);

/* The dims that a rotation or a row is tried with: all dims of a cache, and awkward multiples of 8 around them. */
extern const uint32_t check_dims[];
extern const size_t n_check_dims;

#endif
