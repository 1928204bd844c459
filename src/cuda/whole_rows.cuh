/* A whole row in shared memory, by one warp: its query on the way in, its result on the way out. For kernels of any dim; those of
 * one dim have rows in registers. */
#ifndef AURA_CUDA_WHOLE_ROWS_CUH
#define AURA_CUDA_WHOLE_ROWS_CUH

#include "merge.cuh"

/* Puts the query of a row into y, balanced and rotated as its keys are. Behind y there is as much space again. Sets row.bad where a
 * number is none. Returns the largest magnitude; 0 of a bad row. */
__device__ __forceinline__ float query_to_shared(const struct dev_attend &a, uint32_t job, uint32_t kv_head, struct row_info &row,
                                                 float *y)
{
    const uint32_t lane = threadIdx.x % 32, dim = a.c.k_dim;
    const int64_t from = job * a.q.seq + row.query * a.q.token + row.head * a.q.head;
    float largest = 0;
    for (uint32_t d = lane; d < dim; d += 32) {
        y[d] = row.there ? load_element(a.q.data, a.q.dtype, from + d) : 0;
        if (a.c.inverse_balance)
            y[d] = __fmul_rn(y[d], a.c.inverse_balance[(size_t)kv_head * dim + d]);
    }
    __syncwarp();
    if (a.c.k_rows)
        rotate_shared(y, y + dim, a.c.k_sign, a.c.codecs->paley[0], a.c.codecs->k_inner, a.c.codecs->k_outer, a.c.k_norm);
    bool bad = false;
    for (uint32_t d = lane; d < dim; d += 32)
        bad |= !(fabsf(y[d]) < INFINITY);
    row.bad = __any_sync(~0u, bad);
    for (uint32_t d = lane; d < dim; d += 32)
        largest = fmaxf(largest, row.bad ? 0 : fabsf(y[d]));
    return warp_largest(largest);
}

/* Puts a row into the caller's tensor. o: weights times values, in rotated space where values are codes. space: as long as o. */
__device__ __forceinline__ void row_from_shared(const struct dev_attend &a, const struct split &g, const struct row_info &row,
                                                float *o, float *space, float m, float l)
{
    const uint32_t lane = threadIdx.x % 32, dim = a.c.v_dim;
    const float keep = a.sinks ? merge_sink(m, l, a.sinks[row.head]) : 1;
    const bool empty = l == 0;
    bool bad = row.bad || g.seq >= a.c.n_seqs || !(empty || aura_is_good_sum(l));
    for (uint32_t d = lane; d < dim; d += 32)
        o[d] = empty ? 0 : o[d] * keep / l;
    __syncwarp();
    if (a.c.v_rows) {
        hadamard_shared(o, space, a.c.codecs->paley[2], a.c.codecs->v_inner, a.c.codecs->v_outer);
        sign_and_scale(o, dim, a.c.v_sign, a.c.v_norm);
    }
    for (uint32_t d = lane; a.c.v_inverse_balance && d < dim; d += 32)
        o[d] *= a.c.v_inverse_balance[(size_t)g.head * dim + d];
    const float limit = aura_first_infinite(a.out.dtype);
    for (uint32_t d = lane; d < dim; d += 32)
        bad |= !(fabsf(o[d]) < limit);
    bad = __any_sync(~0u, bad);
    const int64_t to = g.job * a.out.seq + row.query * a.out.token + row.head * a.out.head;
    for (uint32_t d = lane; d < dim; d += 32)
        store_element(a.out.data, a.out.dtype, to + d, bad ? NAN : o[d]);
    if (lane == 0)
        finish_lse(a, g, row, m, l, bad);
}

#endif
