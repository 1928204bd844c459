/* What the row functions of the device share: their handle, rotations and rows as kernels take them. */
#ifndef AURA_CUDA_ROWS_CUH
#define AURA_CUDA_ROWS_CUH

#include "cache.cuh"

#include "../../include/aura_cuda_rows.h"
extern "C" {
#include "../codec.h"
#include "../rotation.h"
#include "../rows/checks.h"
#include "../rows/tq.h"
}

/* What went wrong on the device; zeros: nothing. Rows from 2^32 on count as the last before. */
struct dev_rows_status {
    uint32_t not_finite, not_finite_before; /* how many rows; UINT32_MAX less the first */
    uint32_t bad_values, bad_values_before;
};

enum { TQ_WIDTHS = 4, ROWS_SCRATCH = 32 << 20 };

struct aura_cuda_rows {
    const aura_ctx *ctx;
    int device;
    uint32_t multiprocessors;
    size_t scratch_bytes, shared_limit; /* shared_limit: that a launch may ask for */
    uint8_t *memory; /* all of it */
    struct dev_rows_status *status;
    float *tq; /* [TQ_WIDTHS][256]: the levels of 4, 5, 6 and 8 bits, as aura_tq_book() has them */
    uint8_t *scratch;
};

/* rows_handle.cu: launches a kernel of the list. */
aura_status aura_cuda_rows_launch(const aura_cuda_rows *rows, const char *call, const char *name, const void *kernel,
                                  const struct launch &how, void **params);

/* That there is a handle to check arguments with. */
static inline aura_status check_rows_handle(const aura_cuda_rows *rows, const char *call)
{
    return rows ? AURA_OK : aura_backend_fail(NULL, AURA_BAD_ARGUMENT, "%s: rows is NULL", call);
}

/* ---- rotations ---- */

/* A rotation or its inverse. dim 0: none. */
struct dev_rotation {
    uint32_t dim, inner, outer, dense, undo;
    float norm;
    const float *balance, *matrix; /* on the device; balance may be NULL */
    uint32_t sign[AURA_MAX_DIM / 32];
    uint64_t paley[AURA_MAX_PALEY]; /* bit j of word i: entry (i, j) is -1 */
};

/* rows_handle.cu: of a rotation that was checked, or of NULL. */
struct dev_rotation aura_cuda_rotation_of(const aura_rotation *rotation, int undo);

#ifdef __CUDACC__

/* The rest of a rotation after what comes first: y = H y by one warp, in shared memory. `space` is as long as y. */
__device__ __forceinline__ void hadamard_row(float *y, float *space, const struct dev_rotation &r)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t stride = 1; stride < r.inner; stride *= 2) {
        for (uint32_t i = lane; i < r.dim / 2; i += 32) {
            const uint32_t d = i / stride * 2 * stride + i % stride;
            const float a = y[d], b = y[d + stride];
            y[d] = __fadd_rn(a, b);
            y[d + stride] = __fsub_rn(a, b);
        }
        __syncwarp();
    }
    if (r.outer == 1)
        return;
    for (uint32_t d = lane; d < r.dim; d += 32)
        space[d] = y[d];
    __syncwarp();
    for (uint32_t d = lane; d < r.dim; d += 32) {
        const uint64_t negative = r.paley[d / r.inner];
        float sum = 0;
        for (uint32_t j = 0; j < r.outer; j++) {
            const float term = space[j * r.inner + d % r.inner];
            sum = __fadd_rn(sum, negative >> j & 1 ? -term : term);
        }
        y[d] = sum;
    }
    __syncwarp();
}

/* Sums in order of j, each from +0, as aura_row_rotate_dense_ref. */
__device__ __forceinline__ void dense_row(float *y, float *space, const struct dev_rotation &r)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t d = lane; d < r.dim; d += 32)
        space[d] = y[d];
    __syncwarp();
    for (uint32_t i = lane; i < r.dim; i += 32) {
        float sum = 0;
        for (uint32_t j = 0; j < r.dim; j++)
            sum = __fadd_rn(sum, __fmul_rn(space[j], r.matrix[r.undo ? (size_t)j * r.dim + i : (size_t)i * r.dim + j]));
        y[i] = sum;
    }
    __syncwarp();
}

__device__ __forceinline__ float signed_by(const struct dev_rotation &r, uint32_t d, float x)
{
    return r.sign[d / 32] >> d % 32 & 1 ? -x : x;
}

/* The rotation of a row in shared memory, by one warp, with the operations and the order of ref.c. */
__device__ __forceinline__ void rotate_row(float *y, float *space, const struct dev_rotation &r)
{
    const uint32_t lane = threadIdx.x % 32;
    if (!r.dim)
        return;
    for (uint32_t d = lane; d < r.dim && !r.undo; d += 32) {
        const float x = r.balance ? __fmul_rn(y[d], r.balance[d]) : y[d];
        y[d] = r.dense ? x : signed_by(r, d, x);
    }
    __syncwarp();
    if (r.dense)
        dense_row(y, space, r);
    else
        hadamard_row(y, space, r);
    for (uint32_t d = lane; d < r.dim; d += 32) {
        float x = r.dense ? y[d] : __fmul_rn(y[d], r.norm);
        x = r.undo && !r.dense ? signed_by(r, d, x) : x;
        y[d] = r.undo && r.balance ? __fmul_rn(x, r.balance[d]) : x;
    }
    __syncwarp();
}

/* ---- what went wrong ---- */

__device__ __forceinline__ void note_row(uint32_t *count, uint32_t *before, uint64_t row)
{
    atomicAdd(count, 1u);
    atomicMax(before, UINT32_MAX - (uint32_t)(row < UINT32_MAX ? row : UINT32_MAX));
}

__device__ __forceinline__ void note_not_finite(struct dev_rows_status *s, uint64_t row)
{
    note_row(&s->not_finite, &s->not_finite_before, row);
}

/* Whether a number cannot be stored in that type; NaN cannot. */
__device__ __forceinline__ bool is_beyond(float x, uint32_t dtype)
{
    return !(fabsf(x) < aura_first_infinite(dtype));
}

#endif
#endif
