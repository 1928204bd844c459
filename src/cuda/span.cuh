/* How the work of an attention call is cut, on the device, from the lengths that are there: a flat list of (sequence, KV head,
 * block of rows, item), cut into equal contiguous pieces, one per block of threads. A block's piece of one (sequence, KV head,
 * block of rows), a group, is a segment, unless the call has a fixed cut; segments of a group are merged in order by whichever
 * block is last. */
#ifndef AURA_CUDA_SPAN_CUH
#define AURA_CUDA_SPAN_CUH

#include "device.cuh"

#include "cut.h"

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
    if (!a.c.k_rows && !a.c.v_rows) { /* both sides are plain: there are tiles and nothing else */
        s.closed = s.len;
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

/* prefix[i] = items of all groups of the sequences before i; by all threads of the block. Returns the items of a group where all have
 * the same, otherwise 0. */
__device__ __forceinline__ uint32_t span_prefix(uint32_t *prefix, const struct dev_attend &a)
{
    uint32_t groups = a.c.kv_heads * a.row_blocks, other = 0;
    for (uint32_t i = threadIdx.x; i < a.n_seqs; i += blockDim.x)
        prefix[i + 1] = span_of(a, i).items * groups;
    if (threadIdx.x == 0)
        prefix[0] = 0;
    __syncthreads();
    const uint32_t each = prefix[1];
    for (uint32_t i = threadIdx.x; i < a.n_seqs; i += blockDim.x)
        other |= prefix[i + 1] != each;
    other = __syncthreads_or(other);
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
    return other ? 0 : each / groups;
}

/* The flat list and a block's piece of it, [at, end). */
struct piece {
    const uint32_t *prefix;
    uint32_t cost, more; /* places of a group, and of the groups of a sequence, that are no items */
    uint32_t per, at, end;
};

__device__ __forceinline__ struct piece piece_of(uint32_t *prefix, const struct dev_attend &a, uint32_t least)
{
    const uint32_t each = span_prefix(prefix, a), items = prefix[a.n_seqs], groups = a.c.kv_heads * a.row_blocks;
    const struct aura_cut_plan plan = aura_cut_plan_of(items, groups * a.n_seqs, each, gridDim.x, least);
    struct piece p;
    p.prefix = prefix;
    p.per = plan.per;
    p.cost = plan.cost;
    p.more = p.cost * groups;
    const uint32_t places = items + p.more * a.n_seqs;
    p.at = min(places, blockIdx.x * p.per);
    p.end = min(places, p.at + p.per);
    return p;
}

/* The sequence of place `at` of the flat list. */
__device__ __forceinline__ uint32_t span_find(const struct piece &p, uint32_t n, uint32_t at)
{
    uint32_t low = 0, high = n;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (p.prefix[middle] + p.more * middle <= at)
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
    uint32_t on;               /* places to the next segment of the block */
    uint32_t parts, part;      /* segments of the group, and which this is */
    uint32_t partial;          /* where the partial results of the group begin */
    uint32_t idle;             /* 1: nothing is to be done */
    struct span span;
};

__device__ __forceinline__ struct segment segment_at(const struct dev_attend &a, const struct piece &p, uint32_t at, uint32_t block_rows)
{
    struct segment g;
    g.slot = span_find(p, a.n_seqs, at);
    g.seq = a.seqs[g.slot];
    g.span = span_of(a, g.slot);
    const uint32_t places = g.span.items + p.cost, within = at - p.prefix[g.slot] - p.more * g.slot, unit = within / places;
    g.head = unit / a.row_blocks;
    g.first_row = unit % a.row_blocks * block_rows;
    g.group = g.slot * a.c.kv_heads * a.row_blocks + unit;
    const struct aura_cut c = aura_cut_at(at, p.end, p.per, at - within + unit * places, g.span.items, p.cost, a.fixed_cut);
    g.first = c.first, g.n = c.n, g.on = c.on;
    g.parts = c.parts, g.part = c.part;
    g.idle = c.idle;
    /* Of an even cut unique too: from segment to segment the block or the group advances. */
    g.partial = a.fixed_cut ? g.group * AURA_CUT_PARTS : blockIdx.x - g.part + g.group;
    return g;
}

#endif
