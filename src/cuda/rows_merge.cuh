/* Partial results to finished rows. */
#ifndef AURA_CUDA_ROWS_MERGE_CUH
#define AURA_CUDA_ROWS_MERGE_CUH

#include "rows.cuh"

/* MERGE_PASS2: as aura_flash_pass2. MERGE_REDUCE: as aura_flash_attn_vec_reduce, o is interleaved and m, l are pairs (l, m).
 * MERGE_SUM: rows are added up, there are no m and l. */
enum merge_mode { MERGE_PASS2, MERGE_REDUCE, MERGE_SUM };

struct dev_merge {
    const void *o, *m, *l; /* [rows][parts][dim], [rows][parts] */
    void *out;             /* [rows][dim] */
    const void *sinks;     /* row r takes r % sink_heads */
    float *lse;
    struct dev_rows_status *status;
    size_t parts;
    uint32_t rows, dim, dtype, out_dtype, sink_dtype, sink_heads, mode;
    struct dev_rotation undo;
};

/* rows_merge.cu: one launch. */
aura_status aura_cuda_rows_merge(const aura_cuda_rows *rows, const char *call, const struct dev_merge &m,
                                 struct CUstream_st *stream);

/* rows_merge_fast.cu: a kernel by whose warps this is merged, a row each; run NULL: there is none. */
enum { MERGE_WARPS = 4 };
struct merge_kernel {
    const char *name;
    const void *run;
};
struct merge_kernel aura_cuda_merge_kernel(const struct dev_merge *m);

#ifdef __CUDACC__

/* ---- what a row has besides its coordinates ------------------------------------------------------------------------ */

__device__ __forceinline__ float part_l(const struct dev_merge &a, uint32_t row, size_t p)
{
    const size_t i = row * a.parts + p;
    return load_element(a.l, a.dtype, (int64_t)(a.mode == MERGE_REDUCE ? 2 * i : i));
}

__device__ __forceinline__ float part_m(const struct dev_merge &a, uint32_t row, size_t p)
{
    const size_t i = row * a.parts + p;
    return load_element(a.m, a.dtype, (int64_t)(a.mode == MERGE_REDUCE ? 2 * i + 1 : i));
}

__device__ __forceinline__ float sink_of(const struct dev_merge &a, uint32_t row)
{
    return a.sinks ? load_element(a.sinks, a.sink_dtype, row % a.sink_heads) : -INFINITY;
}

/* The weight of a part, before all is divided by the sum. l = 0: the part is empty, and o may hold anything. A sink of +inf takes
 * all the weight, but a part that is not finite still shows. */
__device__ __forceinline__ float part_weight(float m, float l, float largest, bool sink_takes_all)
{
    if (l == 0 || m == -INFINITY)
        return 0;
    return sink_takes_all ? (isfinite(m) ? 0 : NAN) : expf(m - largest);
}

/* The sums of a row. */
struct merged {
    float max, sum, keep; /* keep: what coordinates are multiplied with; without sinks of pass 2, 1 */
    bool empty, good;
};

/* The sink of pass 2 comes after the parts, that of the reduce is one of them: as on the CPU. */
__device__ __forceinline__ struct merged finish_sums(const struct dev_merge &a, float max, float sum, float sink)
{
    struct merged r = {max, sum, 1, false, true};
    if (a.mode == MERGE_SUM)
        return r;
    if (a.mode == MERGE_PASS2 && sink != -INFINITY) {
        const float m = max > sink ? max : sink, add = sink == m ? 1 : expf(sink - m); /* a NaN sink stays: it is on the right */
        r.keep = max == -INFINITY ? 0 : expf(max - m);
        r.sum = sum * r.keep + add, r.max = m;
    }
    r.empty = a.mode == MERGE_REDUCE ? r.sum == 0 : r.max == -INFINITY && !isnan(r.sum);
    r.good = r.empty || (a.mode == MERGE_REDUCE ? isfinite(r.sum) : aura_is_good_sum(r.sum));
    return r;
}

/* A coordinate of the row, normalised. */
__device__ __forceinline__ float finished(const struct dev_merge &a, const struct merged &r, float x)
{
    if (a.mode == MERGE_SUM)
        return x;
    return r.empty ? 0 : !r.good ? NAN : a.mode == MERGE_REDUCE ? x : x * r.keep / r.sum;
}

__device__ __forceinline__ void store_lse(const struct dev_merge &a, const struct merged &r, uint32_t row, bool bad)
{
    if (a.lse)
        a.lse[row] = bad ? NAN : r.empty ? -INFINITY : r.max + logf(r.sum);
}

#endif
#endif
