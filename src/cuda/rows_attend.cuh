/* A call that scores, sums or attends over rows, as kernels take it; and how tokens are divided.
 *
 *     group   up to ROWS_GROUP query heads of one KV head: they share one pass over its rows
 *     unit    some of the tokens, by one block of threads: it leaves a partial result of its group
 *
 * A unit has chunks of 32 tokens, side by side or not. A token is seen where it is in one of the ranges. */
#ifndef AURA_CUDA_ROWS_ATTEND_CUH
#define AURA_CUDA_ROWS_ATTEND_CUH

#include "rows_merge.cuh"
#include "rows_side.cuh"

enum { ROWS_GROUP = 8, ROWS_CHUNK = 32 };

/* Chunk i of unit u begins at token first + u * unit_stride + i * chunk_stride, and ends before `end` and unit_tokens after the
 * unit's beginning. */
struct dev_tokens {
    uint64_t first, end, unit_stride, unit_tokens, chunk_stride;
    uint32_t units, ranges;
    uint64_t from[4], to[4]; /* what is seen; at least one range */
};

enum rows_output { OUT_PARTIAL, OUT_INTERLEAVED };

struct dev_rows_call {
    struct dev_rows_side k, v;
    struct dev_tokens tokens;
    uint32_t q_heads, ratio, groups; /* groups of a KV head */
    const void *q;
    uint32_t q_dtype, q_as_f16;
    float scale, softcap;
    /* scores, or weights */
    void *scores;
    uint32_t score_dtype;
    size_t score_stride;
    float threshold;
    /* partials: [q_heads][units][v.dim], [q_heads][units]; interleaved: o is `temp` of flash_attn_vec */
    void *o, *m, *l;
    uint32_t partial_dtype, interleaved, report; /* report: say which sums are not finite */
    struct dev_rows_status *status;
};

enum rows_mode { ROWS_SCORE, ROWS_VALUE, ROWS_ATTEND };

/* rows_calls.cu: a call without arrays; tokens [first, end), all seen, in chunks that units take in turn. */
struct dev_rows_call aura_cuda_rows_call(const aura_cuda_rows *rows, uint32_t q_heads, uint32_t kv_heads);
struct dev_tokens aura_cuda_rows_tokens(uint64_t first, uint64_t end, uint32_t units);

/* Into how many units `tokens` tokens of a call go that has its sides: enough for the device, none with less than 256 tokens, and
 * not more than the scratch has room for, `bytes` of each; 0: not even for one. */
uint32_t aura_cuda_rows_units(const aura_cuda_rows *rows, const struct dev_rows_call &c, enum rows_mode mode, uint64_t tokens,
                              size_t bytes);

/* rows_tiles.cu: how many blocks of its kernel for the call a multiprocessor has; 0: there is none. heads: of a group. */
uint32_t aura_cuda_rows_blocks(const aura_cuda_rows *rows, const struct dev_rows_call &c, enum rows_mode mode, uint32_t *heads);

/* One launch, by the best kernel that takes the call: of rows_tiles.cu, or of rows_any.cu, which takes all of them. */
aura_status aura_cuda_rows_run(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                               struct CUstream_st *stream);
aura_status aura_cuda_rows_tiles(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                                 struct CUstream_st *stream, bool *taken); /* taken: false, and nothing was launched */
aura_status aura_cuda_rows_any(const aura_cuda_rows *rows, const char *call, const struct dev_rows_call &c, enum rows_mode mode,
                               struct CUstream_st *stream);

#ifdef __CUDACC__

__device__ __forceinline__ bool is_seen(const struct dev_tokens &k, uint64_t t)
{
    bool seen = t >= k.from[0] && t < k.to[0];
    for (uint32_t i = 1; i < k.ranges; i++)
        seen |= t >= k.from[i] && t < k.to[i];
    return seen;
}

/* Where a unit begins and ends. Sizes may be so large that products wrap: those units are empty. */
__device__ __forceinline__ void unit_limits(const struct dev_tokens &k, uint32_t unit, uint64_t *first, uint64_t *end)
{
    const uint64_t all = k.end - k.first;
    const bool is_empty = unit && k.unit_stride > all / unit;
    *first = is_empty ? k.end : k.first + unit * k.unit_stride;
    *end = k.end - *first < k.unit_tokens ? k.end : *first + k.unit_tokens;
}

/* The query heads of a block: the first of them, how many, and their KV head. */
struct rows_heads {
    uint32_t first, n, kv;
};

__device__ __forceinline__ struct rows_heads heads_of(const struct dev_rows_call &c, uint32_t group, uint32_t most)
{
    const uint32_t kv = group / c.groups, done = group % c.groups * most;
    return {kv * c.ratio + done, min(c.ratio - done, most), kv};
}

#endif
#endif
