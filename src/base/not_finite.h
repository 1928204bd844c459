/* Rows of an output that are not finite. */
#ifndef AURA_NOT_FINITE_H
#define AURA_NOT_FINITE_H

#include <stdatomic.h>

#include "arguments.h"

/* 1 when a coordinate is not finite, or would not be in that type; then all of the row becomes NaN. */
int aura_poison_row(float *row, uint32_t dim, aura_dtype dtype);

/* Counts rows that are not finite, for the status of the call; begins as zeros. Any thread of the call may report one. */
struct aura_bad_rows {
    _Atomic size_t count, before; /* before: SIZE_MAX less the first of them */
};
static inline void aura_bad_row(struct aura_bad_rows *bad, int is_bad, size_t row)
{
    if (!is_bad)
        return;
    size_t before = atomic_load(&bad->before);
    while (SIZE_MAX - row > before && !atomic_compare_exchange_weak(&bad->before, &before, SIZE_MAX - row))
        ;
    atomic_fetch_add(&bad->count, 1);
}
aura_status aura_bad_rows_status(struct aura_call call, const struct aura_bad_rows *bad);

#endif
