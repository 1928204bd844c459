/* Building rotations: which Hadamard matrix a dim has, its signs, and the plan that kernels read. */
#ifndef AURA_ROTATION_H
#define AURA_ROTATION_H

#include "stages.h"

/* The order of the Paley factor of a dim: 1 for a power of two, 0 where there is no matrix. */
uint32_t aura_paley_order(uint32_t dim);

/* 1 when entry (i, j) of the Paley matrix of that order is -1. `residues` is aura_paley_residues(order). */
uint64_t aura_paley_residues(uint32_t order);
int aura_paley_negative(uint32_t order, uint64_t residues, uint32_t i, uint32_t j);

/* Fills a plan for a Hadamard rotation. Returns 0 where the dim has none. */
int aura_rotation_plan_init(struct aura_rotation_plan *plan, uint32_t dim, const uint8_t *signs, const float *balance,
                            int transposed);

#endif
