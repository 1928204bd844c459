/* How the work of an attention call is cut, on the device, from the lengths that are there: a flat list of (sequence, KV head,
 * block of rows, item), cut into equal contiguous pieces, one per block of threads. A block's piece of one (sequence, KV head,
 * block of rows), a group, is a segment; segments of a group are merged in order by whichever block is last. */
#ifndef AURA_CUDA_SPAN_CUH
#define AURA_CUDA_SPAN_CUH

#include "device.cuh"

/* What a group reads: pinned f16 rows, tiles of open f16 rows, tiles of codes, in this order, one item each. */
struct span {
    uint32_t len, closed;
    uint32_t pinned_end;             /* pinned tokens [0, pinned_end) are an item where this is not 0 */
    uint32_t open_first, open_items; /* tokens [open_first, len) */
    uint32_t tile_first, tiles;      /* tiles with codes */
    uint32_t items;                  /* at least 1, so that every group has a segment and its rows are written */
};

__device__ __forceinline__ struct span span_of(const struct dev_attend &a, uint32_t slot)
{
    struct span s = {};
    uint32_t id = a.seqs[slot];
    if (id < a.c.n_seqs) {
        s.len = a.c.seqs[id].len;
        s.closed = a.c.seqs[id].closed;
    }
    uint32_t newest = a.not_causal ? s.len : s.len + 1 > a.queries ? s.len + 1 - a.queries : 0; /* end of the first query */
    uint32_t begin = a.window && a.window < newest ? newest - a.window : 0;
    if (a.general) {
        s.tile_first = begin / AURA_TILE;
        s.tiles = s.len > begin ? (s.len - 1) / AURA_TILE - s.tile_first + 1 : 0;
        s.items = max(1u, s.tiles);
        return s;
    }
    uint32_t pinned = min(a.c.pinned, s.len), first = max(a.c.pinned, begin);
    s.pinned_end = pinned > begin ? pinned : 0;
    s.open_first = max(first, s.closed);
    s.open_items = s.len > s.open_first ? (s.len - 1) / AURA_TILE - s.open_first / AURA_TILE + 1 : 0;
    s.tile_first = first / AURA_TILE;
    s.tiles = s.closed > first ? (s.closed - 1) / AURA_TILE - s.tile_first + 1 : 0;
    s.items = max(1u, (s.pinned_end ? 1 : 0) + s.open_items + s.tiles);
    return s;
}

/* prefix[i] = items of all groups of the sequences before i; by all threads of the block. */
__device__ __forceinline__ void span_prefix(uint32_t *prefix, const struct dev_attend &a)
{
    uint32_t groups = a.c.kv_heads * a.row_blocks;
    for (uint32_t i = threadIdx.x; i < a.n_seqs; i += blockDim.x)
        prefix[i + 1] = span_of(a, i).items * groups;
    if (threadIdx.x == 0)
        prefix[0] = 0;
    __syncthreads();
    if (threadIdx.x < 32 && a.n_seqs > 1) {
        uint32_t carry = 0;
        for (uint32_t first = 0; first < a.n_seqs; first += 32) {
            uint32_t i = first + threadIdx.x, x = i < a.n_seqs ? prefix[i + 1] : 0;
            for (int far = 1; far < 32; far *= 2) {
                uint32_t other = __shfl_up_sync(~0u, x, far);
                x += threadIdx.x >= far ? other : 0;
            }
            if (i < a.n_seqs)
                prefix[i + 1] = x + carry;
            carry += __shfl_sync(~0u, x, 31);
        }
    }
    __syncthreads();
}

/* The sequence of item `at` of the flat list. */
__device__ __forceinline__ uint32_t span_find(const uint32_t *prefix, uint32_t n, uint32_t at)
{
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (prefix[middle] <= at)
            low = middle;
        else
            high = middle;
    }
    return low;
}

/* One segment, as all threads of its block see it. */
struct segment {
    uint32_t slot, seq;        /* place in the call; sequence */
    uint32_t head, first_row;  /* KV head; first of its rows in this block */
    uint32_t group;            /* number of the group in the call */
    uint32_t first, n;         /* items */
    uint32_t parts, part;      /* segments of the group, and which this is */
    struct span span;
};

__device__ __forceinline__ struct segment segment_at(const struct dev_attend &a, const uint32_t *prefix, uint32_t at,
                                                     uint32_t end, uint32_t per, uint32_t block_rows)
{
    struct segment g;
    g.slot = span_find(prefix, a.n_seqs, at);
    g.seq = a.seqs[g.slot];
    g.span = span_of(a, g.slot);
    uint32_t within = at - prefix[g.slot], unit = within / g.span.items, start = at - within + unit * g.span.items;
    g.head = unit / a.row_blocks;
    g.first_row = unit % a.row_blocks * block_rows;
    g.group = g.slot * a.c.kv_heads * a.row_blocks + unit;
    g.first = at - start;
    g.n = min(g.span.items - g.first, end - at);
    g.parts = (start + g.span.items - 1) / per - start / per + 1;
    g.part = at / per - start / per;
    return g;
}

#endif
