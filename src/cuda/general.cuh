/* What the general kernel keeps: its shape, where things are in shared memory, and the codes of a tile on their way there.
 *
 * It takes every pair of kinds and dims. Tiles are copied as they are, compressed, into shared memory, keys of the next one while this
 * one is worked on; the decoders of keys and of values are chosen for every tile, and give registers of the A operand as in the fused
 * kernel, whose logits, weights and accumulators these are too. Only the dim of values is known when compiling, and only as a number
 * of parts that is large enough. */
#ifndef AURA_CUDA_GENERAL_CUH
#define AURA_CUDA_GENERAL_CUH

#include "attend.cuh"

/* Columns of B are those of the fused kernel with RL = 1: the upper and the lower bytes of four rows. */
template <int PARTS_, int NT_, int WARPS_>
struct general_shape {
    static constexpr int PARTS = PARTS_, D = 32 * PARTS, NT = NT_, WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int RL = 1, COLUMN_ROWS = 4, ROWS = COLUMN_ROWS * NT;
};

enum { HALF_PLANES = 3 }; /* a query is the sum of two f16 or of three bf16 */

/* The beginning of shared memory. After it: queries as bytes [row][2][q_pitch], as 16-bit numbers [row][HALF_PLANES][half_pitch], and
 * the parts of warps, in the place of which warps are merged. */
template <class S>
struct general_space {
    alignas(16) uint32_t k_table[4], v_table[4]; /* levels up to 4 bits: from here they come into registers, and stay there */
    row_info row[S::ROWS];
    uint32_t page[PAGES_NEAR], first_page;
    struct segment segment;
};

/* Where this warp finds things. Then what a lane keeps of a segment: where its words of keys and of values and its column of queries
 * begin, and what its sums begin with; of the page it is in; and of the tiles it has asked for, the f16 scales of four tokens. */
template <class S>
struct general_warp {
    general_space<S> &s;
    uint8_t *q, *half, *parts, *mine;
    const uint8_t *k_words, *v_words, *column;
    int begin[S::NT][2];
    float factor[S::NT], bias[S::NT];
    uint2 k_scale, v_scale;

    __device__ __forceinline__ uint8_t *q_column(const struct dev_attend &a, int row, int plane) const
    {
        return q + (2 * row + plane) * a.stage.q_pitch;
    }
    __device__ __forceinline__ uint8_t *half_column(const struct dev_attend &a, int row, int plane) const
    {
        return half + (HALF_PLANES * row + plane) * a.stage.half_pitch;
    }
};

template <class S>
__host__ __device__ constexpr uint32_t general_head_bytes()
{
    return (sizeof(general_space<S>) + 127) / 128 * 128;
}

template <class S>
__host__ __device__ constexpr uint32_t general_query_bytes(const struct dev_stage &t)
{
    return S::ROWS * (2 * t.q_pitch + HALF_PLANES * t.half_pitch);
}

template <class S>
__device__ __forceinline__ general_warp<S> general_warp_of(uint8_t *shared, const struct dev_attend &a)
{
    uint8_t *q = shared + general_head_bytes<S>(), *half = q + S::ROWS * 2 * a.stage.q_pitch;
    uint8_t *parts = q + general_query_bytes<S>(a.stage);
    return {*(general_space<S> *)shared, q, half, parts, parts + threadIdx.x / 32 * a.stage.bytes};
}

/* ---- which tokens -------------------------------------------------------------------------------------------------------- */

/* One item: tokens [from, to) of the tile that begins at `first`, which is there. With `rows`, a side that has codes has these in its
 * f16 rows. */
struct general_item {
    uint32_t first, from, to;
    bool rows;
    const uint8_t *tile;
};

__device__ __forceinline__ uint32_t rows_items_of(const struct span &s)
{
    return (s.pinned_end ? 1 : 0) + s.open_items;
}

/* Where tile number `tile` of the sequence is. Numbers of pages are at hand for those with codes. */
template <class S>
__device__ __forceinline__ const uint8_t *general_tile(const general_warp<S> &w, const struct dev_attend &a, uint32_t tile, bool rows)
{
    const struct segment &g = w.s.segment;
    const uint32_t page = rows ? a.c.table[(size_t)g.seq * a.c.table_stride + tile / AURA_PAGE_TILES] : page_of(w.s, a, g, tile);
    return kept(a.c.pages + (size_t)page * a.c.page_bytes + (size_t)g.head * a.c.head_bytes + tile % AURA_PAGE_TILES * a.c.tile_bytes);
}

template <class S>
__device__ __forceinline__ struct general_item general_item_of(const general_warp<S> &w, const struct dev_attend &a, uint32_t item)
{
    const struct span &s = w.s.segment.span;
    const uint32_t rows_items = rows_items_of(s);
    if (item < rows_items) {
        const struct rows_item r = rows_item_of(s, item);
        return {r.first, r.from, r.to, true, general_tile<S>(w, a, r.first / AURA_TILE, true)};
    }
    const uint32_t tile = s.tile_first + item - rows_items, pinned = a.c.k_rows || a.c.v_rows ? a.c.pinned : 0;
    return {tile * AURA_TILE, max(tile * AURA_TILE, pinned), min((tile + 1) * AURA_TILE, s.closed), false,
            general_tile<S>(w, a, tile, false)};
}

/* The same from the item before it, where that is a tile. */
template <class S>
__device__ __forceinline__ struct general_item next_item_of(const general_warp<S> &w, const struct dev_attend &a,
                                                            const struct general_item &now)
{
    static_assert(AURA_PINNED <= AURA_TILE, "no second tile has pinned tokens");
    const uint32_t first = now.first + AURA_TILE;
    return {first, first, min(first + AURA_TILE, w.s.segment.span.closed), false,
            first % AURA_PAGE ? now.tile + a.c.tile_bytes : general_tile<S>(w, a, first / AURA_TILE, false)};
}

/* ---- tiles into shared memory ------------------------------------------------------------------------------------------- */

/* N chunks of this lane at once, since the compiler puts instructions of its own before copies that follow no other. */
template <int N>
__device__ __forceinline__ void ask_chunks(uint8_t *to, const uint8_t *from, uint32_t step)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        copy_ahead(to + i * step, from + i * 512);
}

/* All chunks, 32 at a time; each 32 are `step` bytes after those before them. The lane's first one goes to `to`. */
__device__ __forceinline__ void ask_words(uint8_t *to, const uint8_t *words, uint32_t chunks, uint32_t step)
{
    const uint32_t lane = threadIdx.x % 32;
    const uint8_t *from = words + 16 * lane;
    const uint32_t n = (chunks + 31 - lane) / 32;
    uint32_t i = 0;
#pragma unroll 1
    for (; i + 4 <= n; i += 4)
        ask_chunks<4>(to + i * step, from + i * 512, step);
    if (n & 2) {
        ask_chunks<2>(to + i * step, from + i * 512, step);
        i += 2;
    }
    if (n & 1)
        ask_chunks<1>(to + i * step, from + i * 512, step);
}

/* A plain side is read from where it is, but from the second cache. */
__device__ __forceinline__ void ask_numbers(const uint8_t *from, uint32_t bytes)
{
    for (uint32_t at = 128 * (threadIdx.x % 32); at < bytes; at += 32 * 128)
        prefetch(from + at);
}

/* The keys of a tile, and the reference of its page with the first that the warp has of it. */
template <class S>
__device__ __forceinline__ void ask_tile_keys(general_warp<S> &w, const struct dev_attend &a, const struct general_item &item,
                                              bool new_page)
{
    const uint32_t lane = threadIdx.x % 32;
    if (!a.stage.k.chunks) {
        ask_numbers(item.tile, a.c.v_at);
        return;
    }
    ask_words(w.mine + a.stage.k.at + 16 * lane + lane / 8 * ROW_SPACE, item.tile, a.stage.k.chunks, 512 + 4 * ROW_SPACE); /* four rows */
    w.k_scale = __ldcg((const uint2 *)(item.tile + a.c.k_scale_at + lane / 4 * 8));
    if (new_page) {
        const uint8_t *from = item.tile - item.first / AURA_TILE % AURA_PAGE_TILES * a.c.tile_bytes + a.c.reference_at;
        for (uint32_t c = lane; c < a.stage.reference_chunks; c += 32)
            copy_ahead(w.mine + a.stage.reference + 16 * c, from + 16 * c);
    }
}

template <class S>
__device__ __forceinline__ void ask_tile_values(general_warp<S> &w, const struct dev_attend &a, const struct general_item &item)
{
    const uint32_t lane = threadIdx.x % 32;
    uint8_t *to = w.mine + a.stage.v.at + 16 * lane;
    const uint8_t *words = item.tile + a.c.v_at;
    if (!a.stage.v.chunks) {
        ask_numbers(words, a.c.k_scale_at - a.c.v_at);
        return;
    }
    if (a.c.v_dim == 128) { /* 32 chunks are a row */
        ask_words(to, words, a.stage.v.chunks, 512 + ROW_SPACE);
    } else {
        for (uint32_t row = 0; row < a.c.v_kind; row++)
            ask_words(to + row * a.stage.v.pitch, words + row * 4 * a.c.v_dim, a.c.v_dim / 4, 512);
    }
    w.v_scale = __ldcg((const uint2 *)(item.tile + a.c.v_scale_at + lane / 4 * 8));
}

#endif
