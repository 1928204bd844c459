/* Rows of an output that are not finite. */
#ifndef AURA_NOT_FINITE_H
#define AURA_NOT_FINITE_H

#include "arguments.h"

/* 1 when a coordinate is not finite, or would not be in that type; then all of the row becomes NaN. */
int aura_poison_row(float *row, uint32_t dim, aura_dtype dtype);

/* Counts rows that are not finite, for the status of the call. */
struct aura_bad_rows {
    size_t count, first;
};
static inline void aura_bad_row(struct aura_bad_rows *bad, int is_bad, size_t row)
{
    if (is_bad && bad->count++ == 0)
        bad->first = row;
}
aura_status aura_bad_rows_status(struct aura_call call, const struct aura_bad_rows *bad);

#endif
