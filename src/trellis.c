/* The levels of trellis codes. */
#include "base/exact.h"
#include "trellis.h"

/* Whole numbers near the levels that Lloyd's rule finds for paths through normal numbers. 2 and 3 bits have small ones, so that
 * several products fit in 16 bits: against levels of up to 60 that costs 0.05 and 0.4 % of the squared error, and with 4 bits it
 * would cost 4 %. Steps are the best for vectors of dim 64 with the fits of a plan. */
static const struct aura_trellis trellis[3] = {
    {0.0993f, {2, 6, 11, 19}},
    {0.0993f, {1, 3, 5, 7, 10, 13, 17, 24}},
    {0.0470f, {1, 3, 5, 7, 9, 11, 14, 16, 19, 22, 25, 29, 34, 40, 48, 60}},
};

const struct aura_trellis *aura_trellis_of(uint32_t kind)
{
    return &trellis[aura_bits_of(kind) - 2];
}

int8_t aura_trellis_level(uint32_t kind, uint32_t index)
{
    const struct aura_trellis *t = aura_trellis_of(kind);
    const uint32_t half = 1u << aura_bits_of(kind), i = index % (2 * half);
    return (int8_t)(i < half ? -t->level[half - 1 - i] : t->level[i - half]);
}
