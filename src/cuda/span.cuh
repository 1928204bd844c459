/* Which part of an attention call a block does, found on the device from the lengths that are there. A group is a (sequence, KV head,
 * block of rows), what a block does of one is a segment: cut.h. Segments of a group are merged in order by whichever block is last.
 *
 * Nothing can be read before this is known, so that all of it is done by every warp for itself, without a barrier. */
#ifndef AURA_CUDA_SPAN_CUH
#define AURA_CUDA_SPAN_CUH

#include "device.cuh"

/* A sequence as it is on the device; of a number that is none, nothing is there. */
struct seq_now {
    uint32_t seq, len, closed;
    uint32_t top; /* top_of(), in a cache with a window */
};

__device__ __forceinline__ struct seq_now seq_at(const struct dev_attend &a, uint32_t slot)
{
    struct seq_now s = {a.seqs[slot], 0, 0, 0};
    if (s.seq < a.c.n_seqs) {
        const uint2 lengths = *(const uint2 *)&a.c.seqs[s.seq].len;
        s.len = lengths.x, s.closed = lengths.y;
        s.top = a.c.window.span ? top_of(a.c.seqs[s.seq]) : 0;
    }
    return s;
}

/* What a group reads: pinned f16 rows, tiles of open f16 rows, tiles of codes, in this order, one item each. */
struct span {
    uint32_t len, closed;
    uint32_t pinned_end;             /* pinned tokens [0, pinned_end) are an item where this is not 0 */
    uint32_t open_first, open_items; /* tokens [open_first, len) */
    uint32_t tile_first, tiles;      /* tiles with codes */
    uint32_t items;                  /* at least 1, so that every group has a segment and its rows are written */
    uint32_t gone;                   /* 1: a query would see tokens that are gone */
};

__device__ __forceinline__ struct span span_of(const struct dev_attend &a, const struct seq_now &now)
{
    struct span s = {};
    s.len = now.len, s.closed = now.closed;
    const uint32_t begin = (uint32_t)aura_seen_begin(aura_seen_end(s.len, a.queries, 0, a.not_causal), a.window); /* of the first query */
    const size_t there = aura_window_first(&a.c.window, now.top);
    if (now.top && !aura_window_has(&a.c.window, there, begin, s.len)) { /* as of no sequence */
        s.len = s.closed = 0;
        s.gone = s.items = 1;
        return s;
    }
    if (!a.c.k_rows && !a.c.v_rows) { /* both sides are plain: there are tiles and nothing else */
        s.closed = s.len;
        s.tile_first = begin / AURA_TILE;
        s.tiles = s.len > begin ? (s.len - 1) / AURA_TILE - s.tile_first + 1 : 0;
        s.items = max(1u, s.tiles);
        return s;
    }
    uint32_t pinned = min(a.c.pinned, s.len), first = max(a.c.pinned, begin);
    s.pinned_end = pinned > begin ? pinned : min(pinned, a.c.keep_first);
    s.open_first = max(first, s.closed);
    s.open_items = s.len > s.open_first ? (s.len - 1) / AURA_TILE - s.open_first / AURA_TILE + 1 : 0;
    s.tile_first = first / AURA_TILE;
    s.tiles = s.closed > first ? (s.closed - 1) / AURA_TILE - s.tile_first + 1 : 0;
    s.items = max(1u, (s.pinned_end ? 1 : 0) + s.open_items + s.tiles);
    return s;
}

/* What a block does: places [at, end) of a list. Where all groups have `each` items and are cut evenly, a place is a part of a group.
 * Otherwise (each is 0) it is an item, or one of the `cost` places that a group has besides. */
struct piece {
    uint32_t each, at, end;
    uint32_t cost, per;
    const uint32_t *prefix; /* [i]: items of all groups of the sequences before i; in shared memory. NULL with up to 32 sequences: */
    struct seq_now mine;    /* then lane i has the i-th, */
    uint32_t before;        /* and the places before it */
};

/* The sequence of this lane, with up to 32 of them. The lengths of sequences 0 to 31 are asked for before it is known which are meant:
 * nearly always they are among these, and one wait for memory is enough. */
__device__ __forceinline__ struct seq_now lane_seq(const struct dev_attend &a)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint2 guess = *(const uint2 *)&a.c.seqs[min(lane, a.c.n_seqs - 1)].len;
    struct seq_now s = {lane < a.n_seqs ? a.seqs[lane] : ~0u, 0, 0, 0};
    const uint32_t len = __shfl_sync(~0u, guess.x, s.seq % 32), closed = __shfl_sync(~0u, guess.y, s.seq % 32);
    if (s.seq >= a.c.n_seqs)
        return s;
    if (s.seq < 32 && !a.c.window.span)
        s.len = len, s.closed = closed;
    else
        s = seq_at(a, lane);
    return s;
}

/* The items of a group where all have the same, otherwise 0, by all threads of the block, for more sequences than a warp has lanes. */
__device__ __forceinline__ uint32_t span_prefix(uint32_t *prefix, const struct dev_attend &a, uint32_t groups)
{
    uint32_t other = 0;
    for (uint32_t i = threadIdx.x; i < a.n_seqs; i += blockDim.x)
        prefix[i + 1] = span_of(a, seq_at(a, i)).items * groups;
    if (threadIdx.x == 0)
        prefix[0] = 0;
    __syncthreads();
    const uint32_t each = prefix[1];
    for (uint32_t i = threadIdx.x; i < a.n_seqs; i += blockDim.x)
        other |= prefix[i + 1] != each;
    other = __syncthreads_or(other);
    if (threadIdx.x < 32) {
        uint32_t carry = 0;
        for (uint32_t first = 0; first < a.n_seqs; first += 32) {
            uint32_t i = first + threadIdx.x, x = i < a.n_seqs ? prefix[i + 1] : 0;
            x = warp_prefix(x);
            if (i < a.n_seqs)
                prefix[i + 1] = x + carry;
            carry += __shfl_sync(~0u, x, 31);
        }
    }
    __syncthreads();
    return other ? 0 : each / groups;
}

/* `space`: a.n_seqs + 1 numbers of shared memory. Of groups of one length, none is cut into segments of fewer than `least` items. */
__device__ __forceinline__ struct piece piece_of(uint32_t *space, const struct dev_attend &a, uint32_t least)
{
    const uint32_t groups = a.c.kv_heads * a.row_blocks, lane = threadIdx.x % 32;
    struct piece p = {};
    uint32_t items = 0, total;
    if (a.n_seqs <= 32) {
        p.mine = lane_seq(a);
        items = lane < a.n_seqs ? span_of(a, p.mine).items : 0;
        const uint32_t first = __shfl_sync(~0u, items, 0);
        p.each = __any_sync(~0u, lane < a.n_seqs && items != first) ? 0 : first;
    } else {
        p.prefix = space;
        p.each = span_prefix(space, a, groups);
    }
    if (p.each && a.even.parts) {
        total = groups * a.n_seqs * a.even.parts;
        p.at = min(total, blockIdx.x * a.even.run);
        p.end = min(total, p.at + a.even.run);
        return p;
    }
    p.each = 0;
    const uint32_t last = p.prefix ? 0 : warp_prefix(items * groups);
    total = p.prefix ? space[a.n_seqs] : __shfl_sync(~0u, last, 31);
    const struct aura_cut_plan plan = aura_cut_plan_of(total, groups * a.n_seqs, gridDim.x, least);
    p.cost = plan.cost, p.per = plan.per;
    p.before = lane < a.n_seqs ? last - items * groups + lane * groups * p.cost : ~0u;
    total += groups * p.cost * a.n_seqs;
    p.at = min(total, blockIdx.x * p.per);
    p.end = min(total, p.at + p.per);
    return p;
}

/* The sequence of place `at` of a list with more of them than a warp has lanes. */
__device__ __forceinline__ uint32_t span_find(const struct piece &p, const struct dev_attend &a, uint32_t at)
{
    uint32_t low = 0, high = a.n_seqs, more = p.cost * a.c.kv_heads * a.row_blocks;
    while (high - low > 1) {
        uint32_t middle = (low + high) / 2;
        if (p.prefix[middle] + more * middle <= at)
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

/* By whole warps. */
__device__ __forceinline__ struct segment segment_at(const struct dev_attend &a, const struct piece &p, uint32_t at, uint32_t block_rows,
                                                     uint32_t least)
{
    struct segment g;
    const uint32_t groups = a.c.kv_heads * a.row_blocks;
    const uint32_t of_all = p.each ? aura_divide(at, a.by_parts) : 0; /* the group of this part */
    g.slot = p.each   ? aura_divide(of_all, a.by_groups)
             : p.prefix ? span_find(p, a, at)
                        : 31 - __clz(__ballot_sync(~0u, p.before <= at));
    const struct seq_now now = p.prefix ? seq_at(a, g.slot)
                                        : seq_now{__shfl_sync(~0u, p.mine.seq, g.slot), __shfl_sync(~0u, p.mine.len, g.slot),
                                                  __shfl_sync(~0u, p.mine.closed, g.slot),
                                                  a.c.window.span ? __shfl_sync(~0u, p.mine.top, g.slot) : 0};
    g.seq = now.seq;
    g.span = span_of(a, now);
    if (g.span.gone) {
        if (threadIdx.x == 0)
            atomicOr(&a.c.seqs[g.seq].status, (uint32_t)AURA_CUDA_GONE);
        g.seq = a.c.n_seqs;
    }
    struct aura_cut c;
    uint32_t unit; /* the group among those of the sequence */
    if (p.each) {
        unit = of_all - g.slot * groups;
        c = aura_cut_even_at(at - of_all * a.even.parts, p.each, a.even.parts, a.by_parts, least);
    } else {
        const uint32_t begin = p.prefix ? p.prefix[g.slot] + p.cost * groups * g.slot : __shfl_sync(~0u, p.before, g.slot);
        const uint32_t places = g.span.items + p.cost;
        unit = (at - begin) / places;
        c = aura_cut_at(at, p.end, p.per, begin + unit * places, g.span.items, p.cost, a.fixed_cut);
    }
    g.head = aura_divide(unit, a.by_row_blocks);
    g.first_row = (unit - g.head * a.row_blocks) * block_rows;
    g.group = g.slot * groups + unit;
    g.first = c.first, g.n = c.n, g.on = c.on;
    g.parts = c.parts, g.part = c.part;
    g.idle = c.idle;
    /* Of an even cut unique too: from segment to segment the block or the group advances. */
    g.partial = a.fixed_cut ? g.group * AURA_CUT_PARTS : blockIdx.x - g.part + g.group;
    return g;
}

#endif
