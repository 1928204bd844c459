/* Attention straight from the tiles, fused: queries are rotated and quantised at the start of a split, then
 *
 *     score ─ softmax ─ value      per tile of 32 tokens, one warp, no shared memory
 *     merge ─ undo                 by the last block of a unit, in the same launch
 *
 * The columns of B of every mma are rows of the block (query heads times query tokens), eight columns at a time: NT such
 * panels. A lane (g, t) has RL rows of a panel.
 *     RL = 1  Column 2 r is the upper byte of row r, column 2 r + 1 the lower byte; with one plane, only the reference of the
 *             page needs the lower byte. The lane ends up with row t and tokens 4 g ... 4 g + 3.
 *     RL = 2  One plane: the columns are eight rows. The lane has rows 2 t and 2 t + 1.
 * Other lanes need the weights of these four tokens, packed into a word, for the value product: a few shuffles, and no shared
 * memory.
 *
 * The next tile is on its way while a warp works on this one: see struct in_flight. */
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

/* The tokens of a visit whose tokens are in f16 rows. */
__device__ __forceinline__ struct tile_tokens rows_visit_of(const struct reach &s, uint32_t visit)
{
    const uint32_t open = (s.open_first / AURA_TILE + visit - (s.pinned_end ? 1 : 0)) * AURA_TILE;
    if (s.pinned_end && visit == 0)
        return {0, 0, s.pinned_end};
    return {open, max(open, s.open_first), min(open + AURA_TILE, s.len)};
}

/* What a warp does of a split: visits rows, rows + WARPS ... below rows_end, whose tokens are in f16 rows; and tiles [tile,
 * tile_end). With a fixed cut, visits [rows, rows_end). General kernels: also tiles [kept, kept_end). */
struct warp_share {
    uint32_t rows, rows_end, tile, tile_end, kept, kept_end;
};

/* With a fixed cut: tasks of a split, as many for each warp. */
__device__ __forceinline__ struct warp_share tasks_share_of(const struct split &g, uint32_t warp, uint32_t warps)
{
    const struct reach &r = g.reach;
    const uint32_t from = g.first + g.n * warp / warps, to = g.first + g.n * (warp + 1) / warps;
    const uint32_t pinned = r.pinned_end ? 1 : 0, open = pinned + r.nodes, size = aura_cut_node(r.level);
    const uint32_t first = pinned + r.kept_nodes; /* of the tiles that are not kept */
    struct warp_share w = {};
    if (from == to)
        return w;
    w.rows = from < pinned ? 0 : pinned + max(from, open) - open;
    w.rows_end = min(to > open ? pinned + to - open : min(to, pinned), pinned + r.open_visits);
    if (min(to, open) > max(from, first)) {
        w.tile = max(r.tile_first, (r.node + max(from, first) - first) * size);
        w.tile_end = min(r.tile_first + r.tiles, (r.node + min(to, open) - first) * size);
    }
    if (min(to, first) > max(from, pinned)) {
        w.kept = max(r.kept_first, (r.kept_node + max(from, pinned) - pinned) * size);
        w.kept_end = min(r.kept_first + r.kept, (r.kept_node + min(to, first) - pinned) * size);
    }
    return w;
}

/* A visit of f16 rows takes a warp about as long as three tiles of codes, so a warp with such a visit gets fewer tiles. Where
 * there are few tiles, it counts as one, so that every warp has something to do. */
template <class S>
__device__ __forceinline__ struct warp_share share_of(const struct split &g, uint32_t warp)
{
    const uint32_t in_rows = (g.reach.pinned_end ? 1 : 0) + g.reach.open_visits, end = min(g.first + g.n, in_rows + g.reach.tiles);
    struct warp_share w = {};
    w.rows = min(g.first, in_rows);
    w.rows_end = max(min(end, in_rows), w.rows);
    const uint32_t n_rows = w.rows_end - w.rows, first = max(g.first, in_rows) - in_rows,
        n = max(end, in_rows + first) - in_rows - first;
    const uint32_t cost = n >= 8 * S::WARPS ? 3 : 1, all = n + cost * n_rows;
    const uint32_t from = all * warp / S::WARPS, to = all * (warp + 1) / S::WARPS;
    const uint32_t before = cost * min(warp, n_rows), with = cost * min(warp + 1, n_rows);
    w.tile = g.reach.tile_first + first + (from > before ? from - before : 0);
    w.tile_end = g.reach.tile_first + first + (to > with ? to - with : 0);
    w.rows += warp;
    return w;
}

/* Asks the second cache for what the warp reads first, and starts the copy of its page's reference: they come while the block
 * prepares the queries. */
template <class S>
__device__ __forceinline__ void prefetch_first(attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                               const struct warp_share &w, uint32_t page)
{
    if (w.rows < w.rows_end) {
        const struct tile_tokens in = rows_visit_of(g.reach, w.rows);
        prefetch_rows<S>(a, g, in.from, in.to);
    }
    if (w.tile < w.tile_end) {
        const uint8_t *head = a.c.pages + (size_t)page * a.c.page_bytes + (size_t)g.head * a.c.head_bytes;
        prefetch_bytes(head + w.tile % AURA_PAGE_TILES * S::TILE_BYTES, S::TILE_BYTES);
        if (a.c.has_reference)
            ask_reference<S>(s, head);
    }
}

/* The numbers of the pages that the split reads, but for those of kept tiles, which come before. */
template <class S, class SPACE>
__device__ __forceinline__ void gather_pages(SPACE &s, const struct dev_attend &a, const struct split &g)
{
    const uint32_t in_rows = (g.reach.pinned_end ? 1 : 0) + g.reach.open_visits;
    uint32_t first = max(g.first, in_rows + g.reach.kept) - in_rows - g.reach.kept + g.reach.tile_first, tiles = g.n;
    if (a.fixed_cut) {
        const struct warp_share all = tasks_share_of(g, 0, 1);
        first = max(all.tile, g.reach.tile_first), tiles = all.tile_end - all.tile;
    }
    const uint32_t first_page = first / AURA_PAGE_TILES;
    const uint32_t pages = (g.reach.closed + AURA_PAGE - 1) / AURA_PAGE; /* of the sequence that have codes */
    for (uint32_t i = threadIdx.x; i < min(tiles / AURA_PAGE_TILES + 2, (uint32_t)PAGES_NEAR) &&
         first_page + i < pages; i += S::THREADS)
        s.page[i] = a.c.table[(size_t)g.seq * a.c.table_stride + first_page + i];
    if (threadIdx.x == 0)
        s.first_page = first_page;
}

/* All that a split needs before its first tile. Loads start in the order in which they are waited for. again: the queries are
 * those of the split before. */
template <class S>
__device__ __forceinline__ struct warp_share begin_split(attend_space<S> &s, const struct dev_attend &a, const struct split &g,
                                                         bool again)
{
    const int warp = threadIdx.x / 32;
    const struct warp_share w = a.fixed_cut ? tasks_share_of(g, warp, S::WARPS) : share_of<S>(g, warp);
    uint32_t page = 0;
    asked_row<S> q = {};
    if (w.tile < w.tile_end)
        page = a.c.table[(size_t)g.seq * a.c.table_stride + w.tile / AURA_PAGE_TILES];
    if (warp < S::ROWS && !again)
        ask_row<S>(q, a, g, warp);
    prefetch_first<S>(s, a, g, w, page);
    if (threadIdx.x == 0) {
        s.split = g;
        prefetch(&a.counter[g.unit]);
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
__device__ __forceinline__ void attend_split(attend_space<S> &s, const struct dev_attend &a, const struct warp_share &w)
{
    const struct split &g = s.split;
    running<S> run;
    begin_running<S>(run, s.row);
    for (uint32_t visit = w.rows; visit < w.rows_end; visit += a.fixed_cut ? 1 : S::WARPS) {
        attend_rows<S>(s, a, g, run, rows_visit_of(g.reach, visit));
        if (a.fixed_cut) {
            keep_visit<S>(a, g, run, visit);
            begin_running<S>(run, s.row);
        }
    }
    if (w.tile < w.tile_end)
        attend_tiles<S>(s, a, g, run, w.tile, w.tile_end);
    if (a.fixed_cut) {
        join_tasks<S, finish_rotated<S::D>>(a, g, s.row, s.merge, w);
        return;
    }
    store_running<S>(s, run);
    __syncthreads();
    merge_split<S::D, S::ROWS, S::WARPS>(a, g, s.row, s.merge);
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
        const struct split g = split_at(a, p, at, S::ROWS, S::WARPS);
        on = g.on;
        if (g.idle)
            continue;
        if (last != ~0u)
            __syncthreads(); /* all are done with the split before */
        attend_split<S>(s, a, begin_split<S>(s, a, g, g.unit == last));
        last = g.unit;
    }
}

/* Warps of a block, and blocks on a multiprocessor: the most with which a warp can have two tiles in registers and spills
 * nothing inside the loop. Bytes in flight count as much as warps. Values that are asked for half a tile later leave room for
 * 16 warps, which take 90 us instead of 79.6 for k4v4, D 128, 8 x 32768. With 3 bits 16 warps just fit, and take 80.6 us
 * instead of 75.5 (H200, 2026-11-15). With 2 bits, 16 are as fast as 12: k2v2 53.0 and 53.6 us, kt2vt2 65.9 and 66.4; k3v2 takes
 * 59.5 instead of 57.7, k4v2 68.5 instead of 65.4 (H200, 2026-11-18). */
constexpr int fused_warps(int k_bits, int v_bits, int dim, int rl, int nt)
{
    const int bits = k_bits > v_bits ? k_bits : v_bits;
    return dim == 128 && nt == 1 && bits <= (rl == 1 ? 5 : 4) ? 12 : 8;
}

constexpr int fused_blocks(int bits, int dim, int rl, int nt)
{
    return dim == 64 && rl * nt == 1 && bits <= 4 ? 2 : 1;
}

template <int K_KIND, int V_KIND, int D, int PL, int RL, int NT>
struct fused {
    static constexpr int BLOCKS = fused_blocks(code<K_KIND>::bits, D, RL, NT);
    using S = pair_shape<K_KIND, V_KIND, D, PL, RL, NT, fused_warps(code<K_KIND>::bits, code<V_KIND>::bits, D, RL, NT)>;
    static_assert(S::TILE_BYTES % 64 == 0 && D % 64 == 0, "the layout of a page");
    static constexpr attend_kernel entry(const char *name, const void *run)
    {
        return {name,  K_KIND, D, PL, (uint32_t)S::ROWS, (uint32_t)S::THREADS, run, (uint32_t)sizeof(attend_space<S>),
                BLOCKS, 0,      0, V_KIND};
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
