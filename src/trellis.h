/* Trellis codes: kinds t2, t3, t4. A code of b bits chooses among 2^b of 2^(b+1) levels; which half it chooses from is a matter of
 * the codes of the three channels after its own. So levels are twice as dense as plain codes have them, and an encoder that looks
 * ahead finds a path among them whose errors are smaller than those of rounding.
 *
 * A code is 2 m + u. The level of channel d has the index 4 m + 2 z1 + z0, ascending, where
 *
 *     z1 = u[d] ^ u[d + 1] ^ u[d + 3],   z0 = u[d + 2]
 *
 * and u is 0 beyond the last channel. That is Ungerboeck's code of 8 states: a subset z of levels is every fourth, so that the
 * levels of a subset are far from each other. The state at channel d is u[d + 1] + 2 u[d + 2] + 4 u[d + 3]. Encoding begins at the
 * last channel, as feedback does, and decoding anywhere. */
#ifndef AURA_TRELLIS_H
#define AURA_TRELLIS_H

#include "format.h"

enum {
    AURA_STATES = 8,
    AURA_TRELLIS_BLOCK = 16, /* channels whose errors every survivor of feedback has for itself */
    AURA_TRELLIS_ID = 80     /* plus b: in files, beside the ids of codebooks */
};

/* Levels above 0, of which there are 2^b; those below mirror them. A number is scale * step * level. */
struct aura_trellis {
    float step;
    int8_t level[16];
};

/* The levels of a kind that aura_is_trellis(). */
const struct aura_trellis *aura_trellis_of(uint32_t kind);

/* Level index % 2^(b+1), in steps. */
int8_t aura_trellis_level(uint32_t kind, uint32_t index);

/* Which subset a channel takes whose bit is u, in a state; and the state of the channel before it. */
static inline AURA_ANYWHERE uint32_t aura_trellis_subset(uint32_t state, uint32_t u)
{
    return 2 * ((u ^ state ^ state >> 2) & 1) + (state >> 1 & 1);
}

static inline AURA_ANYWHERE uint32_t aura_trellis_next(uint32_t state, uint32_t u)
{
    return (2 * state + u) % AURA_STATES;
}

/* The index of a level: its code and the state it is in. */
static inline AURA_ANYWHERE uint32_t aura_trellis_index(uint32_t code, uint32_t state)
{
    return 4 * (code >> 1) + aura_trellis_subset(state, code & 1);
}

#endif
