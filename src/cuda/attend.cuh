/* Attention straight from the tiles, fused: queries are rotated and quantised at the start of a segment, then
 *
 *     score ─ softmax ─ value      per tile of 32 tokens, one warp, no shared memory
 *     merge ─ undo                 by the last block of a group, in the same launch
 *
 * The rows of B of every mma are the rows of a KV head's group (query heads times query tokens). With RL = 1, column 2 r is the
 * upper byte of row r and column 2 r + 1 the lower one, which with one plane is used for the page's reference alone; lane
 * (g, t) then ends up with row t and tokens 4 g ... 4 g + 3. With RL = 2 and one plane, columns are eight rows and the lane
 * has rows 2 t and 2 t + 1. Those four tokens, packed into a word, are what other lanes need for the value product: a few
 * shuffles and no shared memory.
 *
 * The next tile is in flight while this one is worked on: see struct in_flight. */
#ifndef AURA_CUDA_ATTEND_CUH
#define AURA_CUDA_ATTEND_CUH

#include "attend_rows.cuh"
#include "attend_tiles.cuh"

template <class S, class SPACE>
__device__ __forceinline__ void store_running(SPACE &s, running<S> &run)
{
    const int warp = threadIdx.x / 32, gl = threadIdx.x % 32 / 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const int row = lane_row<S>(nt, r);
            const float l = row_sum(run.l[nt][r]);
#pragma unroll
            for (int j = 0; j < S::PARTS; j++) {
                const float *o = run.o[nt][r][j];
                *(float4 *)&s.merge.o[warp][row][32 * j + 4 * gl] = make_float4(o[0], o[1], o[2], o[3]);
            }
            if (gl == 0)
                s.merge.m[row][warp] = run.m[nt][r], s.merge.l[row][warp] = l;
        }
}

/* The tokens of an item that is kept in rows. */
__device__ __forceinline__ struct tile_tokens rows_item_of(const struct span &s, uint32_t item)
{
    const uint32_t open = (s.open_first / AURA_TILE + item - (s.pinned_end ? 1 : 0)) * AURA_TILE;
    if (s.pinned_end && item == 0)
        return {0, 0, s.pinned_end};
    return {open, max(open, s.open_first), min(open + AURA_TILE, s.len)};
}

/* What a warp has of a segment: of the items in rows [rows, rows_end) every WARPS-th from its own on, and tiles [tile, tile_end). */
struct warp_share {
    uint32_t rows, rows_end, tile, tile_end;
};

/* An item in rows takes a warp about as long as three tiles, so those who have one get fewer of these; with few tiles to a warp,
 * everyone should have something. */
template <class S>
__device__ __forceinline__ struct warp_share share_of(const struct segment &g, uint32_t warp)
{
    const uint32_t in_rows = (g.span.pinned_end ? 1 : 0) + g.span.open_items, end = min(g.first + g.n, in_rows + g.span.tiles);
    struct warp_share w;
    w.rows = min(g.first, in_rows);
    w.rows_end = max(min(end, in_rows), w.rows);
    const uint32_t n_rows = w.rows_end - w.rows, first = max(g.first, in_rows) - in_rows, n = max(end, in_rows + first) - in_rows - first;
    const uint32_t cost = n >= 8 * S::WARPS ? 3 : 1, all = n + cost * n_rows;
    const uint32_t from = all * warp / S::WARPS, to = all * (warp + 1) / S::WARPS;
    const uint32_t before = cost * min(warp, n_rows), with = cost * min(warp + 1, n_rows);
    w.tile = g.span.tile_first + first + (from > before ? from - before : 0);
    w.tile_end = g.span.tile_first + first + (to > with ? to - with : 0);
    w.rows += warp;
    return w;
}

/* What the warp reads first is on its way, into the second cache, while queries are made ready; its page's reference to its place. */
template <class S>
__device__ __forceinline__ void prefetch_first(attend_space<S> &s, const struct dev_attend &a, const struct segment &g, const struct warp_share &w, uint32_t page)
{
    if (w.rows < w.rows_end) {
        const struct tile_tokens in = rows_item_of(g.span, w.rows);
        prefetch_rows<S>(a, g, in.from, in.to);
    }
    if (w.tile < w.tile_end) {
        const uint8_t *head = a.c.pages + (size_t)page * a.c.page_bytes + (size_t)g.head * a.c.head_bytes;
        prefetch_bytes(head + w.tile % AURA_PAGE_TILES * S::TILE_BYTES, S::TILE_BYTES);
        if (a.c.has_reference)
            ask_reference<S>(s, head);
    }
}

/* The numbers of the pages that the segment reads. */
template <class S>
__device__ __forceinline__ void gather_pages(attend_space<S> &s, const struct dev_attend &a, const struct segment &g)
{
    const uint32_t in_rows = (g.span.pinned_end ? 1 : 0) + g.span.open_items;
    const uint32_t first_page = (max(g.first, in_rows) - in_rows + g.span.tile_first) / AURA_PAGE_TILES;
    const uint32_t pages = (g.span.closed + AURA_PAGE - 1) / AURA_PAGE; /* of the sequence that have codes */
    for (uint32_t i = threadIdx.x; i < min(g.n / AURA_PAGE_TILES + 2, (uint32_t)PAGES_NEAR) && first_page + i < pages; i += S::THREADS)
        s.page[i] = a.c.table[(size_t)g.seq * a.c.table_stride + first_page + i];
    if (threadIdx.x == 0)
        s.first_page = first_page;
}

/* All that a segment needs before its first tile. Memory is asked for in the order in which it is waited for. `again`: queries are
 * those of the segment before. */
template <class S>
__device__ __forceinline__ struct warp_share begin_segment(attend_space<S> &s, const struct dev_attend &a, const struct segment &g, bool again)
{
    const int warp = threadIdx.x / 32;
    const struct warp_share w = share_of<S>(g, warp);
    uint32_t page = 0;
    asked_row<S> q;
    if (w.tile < w.tile_end)
        page = a.c.table[(size_t)g.seq * a.c.table_stride + w.tile / AURA_PAGE_TILES];
    if (warp < S::ROWS && !again)
        ask_row<S>(q, a, g, warp);
    prefetch_first<S>(s, a, g, w, page);
    if (threadIdx.x == 0) {
        s.segment = g;
        prefetch(&a.counter[g.group]);
    }
    gather_pages<S>(s, a, g);
    for (int r = warp; r < S::ROWS && !again; r += S::WARPS) {
        if (r != warp)
            ask_row<S>(q, a, g, r);
        prepare_row<S>(s, a, q, r);
    }
    copies_arrived();
    __syncthreads();
    return w;
}

template <class S>
__device__ __forceinline__ void attend_segment(attend_space<S> &s, const struct dev_attend &a, const struct warp_share &w)
{
    const struct segment &g = s.segment;
    running<S> run;
    begin_running<S>(run, s.row);
    for (uint32_t item = w.rows; item < w.rows_end; item += S::WARPS)
        attend_rows<S>(s, a, g, run, rows_item_of(g.span, item));
    if (w.tile < w.tile_end)
        attend_tiles<S>(s, a, g, run, w.tile, w.tile_end);
    store_running<S>(s, run);
    __syncthreads();
    merge_segment<S::D, S::ROWS, S::WARPS>(a, g, s.row, s.merge);
}

/* The body of the fused kernels. */
template <class S>
__device__ __forceinline__ void attend_fused(const struct dev_attend &a)
{
    uint8_t *shared = dynamic_shared();
    attend_space<S> &s = *(attend_space<S> *)shared;
    const struct piece p = piece_of((uint32_t *)(shared + sizeof(attend_space<S>)), a, S::WARPS);
    uint32_t on, last = ~0u;
    for (uint32_t at = p.at; at < p.end; at += on) {
        const struct segment g = segment_at(a, p, at, S::ROWS, S::WARPS);
        on = g.on;
        if (g.idle)
            continue;
        if (last != ~0u)
            __syncthreads(); /* all are done with the segment before */
        attend_segment<S>(s, a, begin_segment<S>(s, a, g, g.group == last));
        last = g.group;
    }
}

/* Warps of a block, and blocks on a multiprocessor: as many as leave a tile twice in registers without anything being spilled inside
 * the loop. What counts is bytes in flight as much as warps: with values asked for half a tile later 16 warps fit, and take 90 us
 * instead of 79.6 for k4v4, D 128, 8 x 32768; with 3 bits and all but spilled, 16 take 80.6 instead of 75.5 (H200, 2026-11-15). */
constexpr int fused_warps(int kind, int dim, int rl, int nt)
{
    return dim == 128 && nt == 1 && kind <= (rl == 1 ? 5 : 4) ? 12 : 8;
}

constexpr int fused_blocks(int kind, int dim, int rl, int nt)
{
    return dim == 64 && rl * nt == 1 && kind <= 4 ? 2 : 1;
}

template <int KIND, int D, int PL, int RL, int NT>
struct fused {
    static constexpr int BLOCKS = fused_blocks(KIND, D, RL, NT);
    using S = shape<KIND, D, PL, RL, NT, fused_warps(KIND, D, RL, NT)>;
    static_assert(S::TILE_BYTES % 64 == 0 && D % 64 == 0, "the layout of a page");
    static constexpr attend_kernel entry(const char *name, const void *run)
    {
        return {name, KIND, D, PL, (uint32_t)S::ROWS, (uint32_t)S::THREADS, run, (uint32_t)sizeof(attend_space<S>), BLOCKS};
    }
};

/* For rows of AURA_CUDA_ATTEND: the kernel of that name, and what the host knows of it. */
#define STAMP_FUSED(name, ...)                                                                              \
    extern "C" __global__ void __launch_bounds__(fused<__VA_ARGS__>::S::THREADS, fused<__VA_ARGS__>::BLOCKS) \
        aura_##name(const __grid_constant__ struct dev_attend a)                                            \
    {                                                                                                       \
        attend_fused<fused<__VA_ARGS__>::S>(a);                                                             \
    }
#define FUSED_ENTRY(name, ...) fused<__VA_ARGS__>::entry(#name, (const void *)aura_##name),

#endif
