/* Two attention results over different keys become the result over both. */
#include "../base/exact.h"

#include <math.h>
#include <string.h>

#include "../base/dtype.h"
#include "../base/not_finite.h"
#include "../base/threads.h"
#include "cache.h"

/* `out` may be `in` itself: a row is read whole before it is written. */
static aura_status check_same_or_apart(struct aura_call call, const struct aura_extent *out, const struct aura_extent *in)
{
    return out->data == in->data ? AURA_OK : aura_check_apart(call, out, in);
}

static aura_status check_merge(struct aura_call call, const aura_merge_args *args)
{
    aura_status status;
    if ((status = aura_check_call(call, args, sizeof *args)) || (status = aura_check_dtype(call, "dtype", args->dtype)))
        return status;
    if (args->dim == 0 || args->dim > AURA_MAX_DIM)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: dim %u is not 1 to %d", call.name, args->dim, AURA_MAX_DIM);
    size_t element = aura_dtype_bytes(args->dtype), dim = args->dim, rows = args->rows;
    struct aura_extent a = {"a", args->a, element, dim, dim, rows}, b = {"b", args->b, element, dim, dim, rows};
    struct aura_extent out = {"out", args->out, element, dim, dim, rows};
    struct aura_extent a_lse = {"a_lse", args->a_lse, 4, 1, 1, rows}, b_lse = {"b_lse", args->b_lse, 4, 1, 1, rows};
    struct aura_extent out_lse = {"out_lse", args->out_lse, 4, 1, 1, args->out_lse ? rows : 0};
    if ((status = aura_check_rows(call, &a)) || (status = aura_check_rows(call, &b)) ||
        (status = aura_check_rows(call, &out)) || (status = aura_check_rows(call, &a_lse)) ||
        (status = aura_check_rows(call, &b_lse)) || (status = aura_check_rows(call, &out_lse)) ||
        (status = check_same_or_apart(call, &out, &a)) || (status = check_same_or_apart(call, &out, &b)) ||
        (status = check_same_or_apart(call, &out_lse, &a_lse)) || (status = check_same_or_apart(call, &out_lse, &b_lse)) ||
        (status = aura_check_apart(call, &out, &a_lse)) || (status = aura_check_apart(call, &out, &b_lse)) ||
        (status = aura_check_apart(call, &out_lse, &a)) || (status = aura_check_apart(call, &out_lse, &b)) ||
        (status = aura_check_apart(call, &out_lse, &out)))
        return status;
    return AURA_OK;
}

/* out = the parts by the weights of their keys. The edge cases are those of ref_attend.c: -inf is no keys, and the row that comes
 * with it is not looked at; +inf is a sink that takes all the weight, and there can be one only. */
int aura_merge_row(float *out, float *out_lse, const float *const *part, const float *lse, size_t n, uint32_t dim,
                   aura_dtype dtype)
{
    double m = -INFINITY, sum = 0;
    int none = 1, infinite = 0;
    for (size_t i = 0; i < n; i++) {
        m = lse[i] > m ? lse[i] : m; /* the weight of a NaN is NaN */
        none = none && lse[i] == -INFINITY;
        infinite += lse[i] == INFINITY;
    }
    double all[AURA_MAX_DIM];
    memset(all, 0, dim * sizeof *all);
    for (size_t i = 0; i < n; i++) {
        if (lse[i] == -INFINITY)
            continue;
        const double weight = lse[i] == m ? 1 : exp(lse[i] - m);
        for (uint32_t d = 0; d < dim; d++)
            all[d] += weight * part[i][d];
        sum += weight;
    }
    sum = infinite > 1 ? NAN : sum;
    for (uint32_t d = 0; d < dim; d++)
        out[d] = none ? 0 : (float)(all[d] / sum);
    const int bad = aura_poison_row(out, dim, dtype);
    *out_lse = bad ? NAN : none ? -INFINITY : (float)(m + log(sum));
    return bad;
}

enum { ITEM_ROWS = 64 }; /* some 10 microseconds */

struct merging {
    const aura_merge_args *args;
    struct aura_bad_rows bad;
};

static void merge_rows(void *work, size_t item)
{
    struct merging *m = work;
    const aura_merge_args *args = m->args;
    for (size_t row = item * ITEM_ROWS; row < args->rows && row < (item + 1) * ITEM_ROWS; row++) {
        float a[AURA_MAX_DIM], b[AURA_MAX_DIM], out[AURA_MAX_DIM], lse;
        const float *const part[2] = {a, b}, part_lse[2] = {args->a_lse[row], args->b_lse[row]};
        aura_load_row(a, args->a, args->dtype, row * args->dim, args->dim);
        aura_load_row(b, args->b, args->dtype, row * args->dim, args->dim);
        aura_bad_row(&m->bad, aura_merge_row(out, &lse, part, part_lse, 2, args->dim, args->dtype), row);
        aura_store_row(args->out, args->dtype, row * args->dim, out, args->dim);
        if (args->out_lse)
            args->out_lse[row] = lse;
    }
}

aura_status aura_merge(const aura_ctx *ctx, const aura_merge_args *args)
{
    struct aura_call call = {ctx, "aura_merge"};
    struct merging m = {args, {0, 0}};
    aura_status status = check_merge(call, args);
    if (status)
        return status;
    const size_t items = args->rows / ITEM_ROWS + (args->rows % ITEM_ROWS != 0);
    if (items > 1)
        aura_run(ctx, items, merge_rows, &m);
    else
        aura_run_here(items, merge_rows, &m);
    return aura_bad_rows_status(call, &m.bad);
}
