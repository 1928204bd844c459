#include "exact.h"
#include "not_finite.h"

#include <math.h>

#include "../rules.h"

int aura_poison_row(float *row, uint32_t dim, aura_dtype dtype)
{
    float limit = aura_first_infinite(dtype);
    int bad = 0;
    for (uint32_t d = 0; d < dim; d++)
        bad |= !(fabsf(row[d]) < limit); /* so that NaN is bad */
    for (uint32_t d = 0; bad && d < dim; d++)
        row[d] = NAN;
    return bad;
}

aura_status aura_bad_rows_status(struct aura_call call, const struct aura_bad_rows *bad)
{
    const size_t count = atomic_load(&bad->count);
    if (!count)
        return AURA_OK;
    return aura_fail(call.ctx, AURA_NOT_FINITE, "%s: %zu of the rows are not finite and NaN now, the first is row %zu",
                     call.name, count, SIZE_MAX - atomic_load(&bad->before));
}
