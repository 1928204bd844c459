/* Which splits of an attention call a block does: cut.h says what a unit, a visit and a split are. The device finds them from
 * the lengths that sequences have when the kernel runs. The last block to be done with a unit merges the partials of its
 * splits, in their order.
 *
 * A kernel can read nothing before it knows its split. So every warp finds it for itself, and there is no barrier. */
#ifndef AURA_CUDA_SPLIT_CUH
#define AURA_CUDA_SPLIT_CUH

#include "device.cuh"

/* A sequence as the device has it now. Where there is no sequence of that number, it is empty. */
struct seq_now {
    uint32_t seq, len, closed;
    uint32_t top; /* top_of(), in a cache with a window */
};

__device__ __forceinline__ struct seq_now seq_at(const struct dev_attend &a, uint32_t job)
{
    struct seq_now s = {a.seqs[job], 0, 0, 0};
    if (s.seq < a.c.n_seqs) {
        const uint2 lengths = *(const uint2 *)&a.c.seqs[s.seq].len;
        s.len = lengths.x, s.closed = lengths.y;
        s.top = a.c.window.span ? top_of(a.c.seqs[s.seq]) : 0;
    }
    return s;
}

/* Queries of a sequence of the call: so many, from this one of its block on. Those before are padding. */
__device__ __forceinline__ uint32_t first_query_of_job(const struct dev_attend &a, uint32_t job)
{
    return a.starts ? min(a.starts[job], a.queries) : 0;
}

__device__ __forceinline__ uint32_t queries_of_job(const struct dev_attend &a, uint32_t job)
{
    const uint32_t most = a.queries - first_query_of_job(a, job);
    return a.counts ? min(a.counts[job], most) : most;
}

/* The tokens that query number `query` of a sequence sees: [x, y). queries: those of the sequence, without padding. */
__device__ __forceinline__ uint2 tokens_seen(const struct dev_attend &a, uint32_t job, uint32_t len, uint32_t queries,
                                             uint32_t query)
{
    const size_t at = (size_t)job * a.queries + first_query_of_job(a, job) + query;
    uint32_t end = (uint32_t)aura_seen_end(len, queries, query, a.not_causal);
    if (a.until)
        end = min(a.until[at], len);
    return make_uint2(a.from ? min(a.from[at], end) : (uint32_t)aura_seen_begin(end, a.window), end);
}

/* What a unit reads, in the order of its visits: the pinned tokens, tiles of open tokens, tiles of codes that every row keeps
 * in sight, tiles of codes. */
struct reach {
    uint32_t len, closed;
    uint32_t pinned_end;              /* 0: no pinned token is seen. Otherwise tokens [0, pinned_end) are one visit */
    uint32_t open_first, open_visits; /* open tokens [open_first, len) */
    uint32_t kept_first, kept;        /* tiles with codes of the first tokens, which are seen from beyond the window */
    uint32_t tile_first, tiles;       /* the others with codes */
    uint32_t visits;                  /* at least 1, so that every unit has a split, which writes its rows; fixed cut: tasks */
    uint32_t level, node, nodes;      /* fixed cut: of tasks, the first of them, how many. Pinned come before, open after them */
    uint32_t kept_node, kept_nodes;   /* likewise of the kept tiles. They are the first of `nodes` */
    uint32_t gone;                    /* 1: a query would see tokens that are gone */
};

/* What is to be done becomes a number of visits, or of tasks. */
__device__ __forceinline__ void count_visits(const struct dev_attend &a, struct reach &s)
{
    uint32_t of_tiles = s.kept + s.tiles;
    if (a.fixed_cut) {
        s.level = aura_cut_level(of_tiles, a.share);
        s.node = s.tile_first / aura_cut_node(s.level);
        s.kept_node = s.kept_first / aura_cut_node(s.level);
        s.kept_nodes = aura_cut_nodes(s.kept_first, s.kept, s.level);
        s.nodes = of_tiles = s.kept_nodes + aura_cut_nodes(s.tile_first, s.tiles, s.level);
    }
    s.visits = max(1u, (s.pinned_end ? 1 : 0) + s.open_visits + of_tiles);
}

/* The tiles of codes: of kept tokens, and of those from `begin` on. Kept tiles are always apart, also where the window reaches
 * them: with a fixed cut, a row then has the same bits however far its window reaches. */
__device__ __forceinline__ void find_tiles(const struct dev_attend &a, struct reach &s, uint32_t pinned, uint32_t begin)
{
    const uint32_t first = max(pinned, begin), end = (s.closed + AURA_TILE - 1) / AURA_TILE;
    s.tile_first = first / AURA_TILE;
    s.tiles = s.closed > first ? end - s.tile_first : 0;
    if (!a.c.kept_tiles) /* as nearly always: all of this runs before a block can read anything */
        return;
    s.kept_first = pinned / AURA_TILE;
    s.kept = s.closed > pinned ? max(min(a.c.kept_tiles, end), s.kept_first) - s.kept_first : 0;
    s.tile_first = max(s.tile_first, a.c.kept_tiles);
    s.tiles = s.closed > first && end > s.tile_first ? end - s.tile_first : 0;
}

__device__ __forceinline__ struct reach reach_of(const struct dev_attend &a, const struct seq_now &now, uint32_t job)
{
    struct reach s = {};
    s.len = now.len, s.closed = now.closed;
    const uint32_t queries = a.counts || a.starts ? queries_of_job(a, job) : a.queries;
    /* of the first query, or of the one that sees the oldest token */
    const uint32_t begin =
        a.seen ? min(a.seen[job].x, s.len)
               : (uint32_t)aura_seen_begin(aura_seen_end(s.len, max(queries, 1u), 0, a.not_causal), a.window);
    const size_t there = aura_window_first(&a.c.window, now.top);
    if (now.top && queries && !aura_window_has(&a.c.window, there, begin, a.seen ? a.seen[job].y : s.len)) { /* as of no sequence */
        s.len = s.closed = 0;
        s.gone = s.visits = 1;
        return s;
    }
    if (!a.c.k_rows && !a.c.v_rows) { /* both sides are plain: there are tiles and nothing else */
        s.closed = s.len;
        find_tiles(a, s, 0, begin);
        count_visits(a, s);
        return s;
    }
    uint32_t pinned = min(a.c.pinned, s.len);
    s.pinned_end = pinned > begin ? pinned : min(pinned, a.c.keep_first);
    s.open_first = max(max(a.c.pinned, s.closed), a.c.kept_tiles && a.c.keep_first > s.closed ? 0 : begin);
    s.open_visits = s.len > s.open_first ? (s.len - 1) / AURA_TILE - s.open_first / AURA_TILE + 1 : 0;
    find_tiles(a, s, a.c.pinned, begin);
    count_visits(a, s);
    return s;
}

/* What a block does: entries [at, end) of a list. Where all units have `each` visits and are cut evenly, an entry is a split.
 * Otherwise each is 0, and an entry is a visit or one of the `cost` entries after the visits of a unit. */
struct piece {
    uint32_t each, at, end;
    uint32_t cost, per;
    /* in shared memory, [i]: visits of all units of the sequences before the i-th. NULL up to 32 sequences; then mine and before
     * are used */
    const uint32_t *prefix;
    struct seq_now mine;    /* the sequence of this lane */
    uint32_t before;        /* entries before it */
};

/* The sequence of this lane, with up to 32 of them. The lengths of sequences 0 to 31 are asked for before it is known which are
 * meant: nearly always they are among these, and one wait for memory is enough. */
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

/* For more than 32 sequences, by all threads of the block: fills prefix. Returns the visits of a unit where all have the same
 * number, otherwise 0. */
__device__ __forceinline__ uint32_t visits_before(uint32_t *prefix, const struct dev_attend &a, uint32_t units)
{
    uint32_t other = 0;
    for (uint32_t i = threadIdx.x; i < a.n_seqs; i += blockDim.x)
        prefix[i + 1] = reach_of(a, seq_at(a, i), i).visits * units;
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
    return other ? 0 : each / units;
}

/* space: a.n_seqs + 1 numbers of shared memory. Units of one length are not cut into splits of fewer than `least` visits. */
__device__ __forceinline__ struct piece piece_of(uint32_t *space, const struct dev_attend &a, uint32_t least)
{
    const uint32_t units = a.c.kv_heads * a.row_blocks, lane = threadIdx.x % 32;
    struct piece p = {};
    uint32_t visits = 0, total;
    if (a.n_seqs <= 32) {
        p.mine = lane_seq(a);
        visits = lane < a.n_seqs ? reach_of(a, p.mine, lane).visits : 0;
        const uint32_t first = __shfl_sync(~0u, visits, 0);
        p.each = __any_sync(~0u, lane < a.n_seqs && visits != first) ? 0 : first;
    } else {
        p.prefix = space;
        p.each = visits_before(space, a, units);
    }
    if (p.each && a.even.splits) {
        total = units * a.n_seqs * a.even.splits;
        p.at = min(total, blockIdx.x * a.even.run);
        p.end = min(total, p.at + a.even.run);
        return p;
    }
    p.each = 0;
    const uint32_t last = p.prefix ? 0 : warp_prefix(visits * units);
    total = p.prefix ? space[a.n_seqs] : __shfl_sync(~0u, last, 31);
    const struct aura_cut_plan plan = a.fixed_cut ? aura_cut_tasks_plan_of(total, gridDim.x)
                                                  : aura_cut_plan_of(total, units * a.n_seqs, gridDim.x, least);
    p.cost = plan.cost, p.per = plan.per;
    p.before = lane < a.n_seqs ? last - visits * units + lane * units * p.cost : ~0u;
    total += units * p.cost * a.n_seqs;
    p.at = min(total, blockIdx.x * p.per);
    p.end = min(total, p.at + p.per);
    return p;
}

/* For more than 32 sequences: whose entry `at` is. */
__device__ __forceinline__ uint32_t job_at(const struct piece &p, const struct dev_attend &a, uint32_t at)
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

/* One split, as all threads of its block see it. */
struct split {
    uint32_t job, seq;         /* number of the sequence in the call; in the cache */
    uint32_t head, first_row;  /* KV head; first of its rows in this block */
    uint32_t unit;             /* number of the unit in the call */
    uint32_t first, n;         /* visits; with a fixed cut, tasks */
    uint32_t on;               /* entries to the next split of the block */
    uint32_t splits, which;    /* splits of the unit, and the number of this one */
    uint32_t first_partial;    /* of the unit, in the workspace */
    uint32_t idle;             /* 1: nothing is to be done */
    struct reach reach;
};

/* By whole warps. */
__device__ __forceinline__ struct split split_at(const struct dev_attend &a, const struct piece &p, uint32_t at,
                                                 uint32_t block_rows,
                                                     uint32_t least)
{
    struct split g;
    const uint32_t units = a.c.kv_heads * a.row_blocks;
    const uint32_t of_all = p.each ? aura_divide(at, a.by_splits) : 0; /* the unit of this split */
    g.job = p.each   ? aura_divide(of_all, a.by_units)
             : p.prefix ? job_at(p, a, at)
                        : 31 - __clz(__ballot_sync(~0u, p.before <= at));
    const struct seq_now now = p.prefix ? seq_at(a, g.job)
                                        : seq_now{__shfl_sync(~0u, p.mine.seq, g.job), __shfl_sync(~0u, p.mine.len, g.job),
                                                  __shfl_sync(~0u, p.mine.closed, g.job),
                                                  a.c.window.span ? __shfl_sync(~0u, p.mine.top, g.job) : 0};
    g.seq = now.seq;
    g.reach = reach_of(a, now, g.job);
    if (g.reach.gone) {
        if (threadIdx.x == 0)
            atomicOr(&a.c.seqs[g.seq].status, (uint32_t)AURA_CUDA_GONE);
        g.seq = a.c.n_seqs;
    }
    struct aura_cut c;
    uint32_t unit, start = 0; /* among those of the sequence; where its entries begin */
    if (p.each) {
        unit = of_all - g.job * units;
        c = aura_cut_even_at(at - of_all * a.even.splits, p.each, a.even.splits, a.by_splits,
                             a.fixed_cut ? (uint32_t)AURA_CUT_FEWEST : least);
    } else {
        const uint32_t begin = p.prefix ? p.prefix[g.job] + p.cost * units * g.job : __shfl_sync(~0u, p.before, g.job);
        const uint32_t entries = g.reach.visits + p.cost;
        unit = (at - begin) / entries;
        start = begin + unit * entries;
        c = aura_cut_at(at, p.end, p.per, start, g.reach.visits, p.cost);
    }
    g.head = aura_divide(unit, a.by_row_blocks);
    g.first_row = (unit - g.head * a.row_blocks) * block_rows;
    g.unit = g.job * units + unit;
    g.first = c.first, g.n = c.n, g.on = c.on;
    g.splits = c.splits, g.which = c.which;
    g.idle = c.idle;
    if (a.counts || a.starts) /* a block of rows none of which is there */
        g.idle |= g.first_row >= queries_of_job(a, g.job) * a.c.ratio;
    /* No two splits have the same place, with an even cut too: from one to the next, the block or the unit advances. */
    g.first_partial = !a.fixed_cut ? blockIdx.x - g.which + g.unit : p.each ? g.unit * p.each : start;
    return g;
}

#endif
