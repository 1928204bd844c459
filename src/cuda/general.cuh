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
template <int PARTS_, int NT_, int WARPS_, int DIM_>
struct general_shape {
    static constexpr int DIM = DIM_; /* of both sides, which have codes; 0: any, and sides may be plain */
    static constexpr int PARTS = PARTS_, D = 32 * PARTS, NT = NT_, WARPS = WARPS_, THREADS = 32 * WARPS;
    static constexpr int RL = 1, COLUMN_ROWS = 4, ROWS = COLUMN_ROWS * NT;
};

enum { HALF_PLANES = 3 }; /* a query is the sum of two f16 or of three bf16 */
/* Bytes of a query: the upper ones, those that keys are multiplied with beside them, and the lower ones. The second are the lower ones
 * too, or with one plane all 0, so that sums are made of both in the same way. */
enum { UPPER, BESIDE, LOWER, QUERY_COLUMNS };

/* The beginning of shared memory. After it: queries as bytes [row][QUERY_COLUMNS][q_pitch], as 16-bit numbers
 * [row][HALF_PLANES][half_pitch], and the parts of warps, in the place of which warps are merged. */
template <class S>
struct general_space {
    row_info row[S::ROWS];
    uint32_t page[PAGES_NEAR], first_page;
    struct segment segment;
};

/* Where this warp finds things. Then what a lane keeps of a segment: where the first chunks that it copies go; where its words of keys
 * and of values, its scales and its column of queries begin, which lane has the weights of its first tokens, and what its sums begin
 * with; the bias of the page it is in; and of the tile, the f16 scales of four tokens. */
template <class S>
struct general_warp {
    general_space<S> &s;
    uint8_t *q, *half, *parts, *mine;
    uint32_t lane;
    uint8_t *k_to, *v_to, *scales_to;
    const uint8_t *k_words, *v_words, *scales, *column;
    uint32_t weights_from;
    int begin[S::NT][4], upper; /* upper: what the sum of upper bytes is worth */
    float factor[S::NT], bias[S::NT];
    uint2 k_scale, v_scale;

    __device__ __forceinline__ uint8_t *q_column(const struct dev_attend &a, int row, int column) const
    {
        return q + (QUERY_COLUMNS * row + column) * a.stage.q_pitch;
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
    return S::ROWS * (QUERY_COLUMNS * t.q_pitch + HALF_PLANES * t.half_pitch);
}

template <class S>
__device__ __forceinline__ general_warp<S> general_warp_of(uint8_t *shared, const struct dev_attend &a)
{
    uint8_t *q = shared + general_head_bytes<S>(), *half = q + S::ROWS * QUERY_COLUMNS * a.stage.q_pitch;
    uint8_t *parts = q + general_query_bytes<S>(a.stage);
    return {*(general_space<S> *)shared, q, half, parts, kept_shared(parts + threadIdx.x / 32 * a.stage.bytes), lane_number()};
}

/* ---- which tokens -------------------------------------------------------------------------------------------------------- */

/* One item: tokens [from, to) of the tile that begins at `first`, which is there. */
struct general_item {
    uint32_t first, from, to;
    const uint8_t *tile;
};

/* Where a warp is: at the tile with token `first`, of which this lane's first chunk is there; `left` tiles from it on are the warp's. */
struct tile_walk {
    uint32_t first, left;
    const uint8_t *chunk;
};

__device__ __forceinline__ uint32_t rows_items_of(const struct span &s)
{
    return (s.pinned_end ? 1 : 0) + s.open_items;
}

/* Tokens before it have no codes. */
__device__ __forceinline__ uint32_t first_code_of(const struct dev_attend &a)
{
    return a.c.k_rows || a.c.v_rows ? a.c.pinned : 0;
}

/* Item number `item`, which is kept in rows: a side that has codes has these in its f16 rows. */
template <class S>
__device__ __forceinline__ struct general_item rows_of_item(const general_warp<S> &w, const struct dev_attend &a, uint32_t item)
{
    const struct segment &g = w.s.segment;
    const struct tile_tokens r = rows_item_of(g.span, item);
    const uint32_t tile = r.first / AURA_TILE;
    return {r.first, r.from, r.to, page_head(a.c, g.seq, tile / AURA_PAGE_TILES, g.head) + tile % AURA_PAGE_TILES * a.c.tile_bytes};
}

template <class S>
__device__ __forceinline__ struct general_item item_of_tile(const general_warp<S> &w, const struct dev_attend &a, const struct tile_walk &at)
{
    return {at.first, max(at.first, first_code_of(a)), min(at.first + AURA_TILE, w.s.segment.span.closed),
            at.chunk - 16 * (threadIdx.x % 32)};
}

/* Where the lane's first chunk of the tile of token `first` is. Numbers of pages are at hand. */
template <class S>
__device__ __forceinline__ const uint8_t *chunk_of(const general_warp<S> &w, const struct dev_attend &a, uint32_t first)
{
    const struct segment &g = w.s.segment;
    const uint32_t tile = first / AURA_TILE, page = page_of(w.s, a, g, tile);
    return kept(a.c.pages + (size_t)page * a.c.page_bytes + (size_t)g.head * a.c.head_bytes + tile % AURA_PAGE_TILES * a.c.tile_bytes +
                16 * (threadIdx.x % 32));
}

template <class S>
__device__ __forceinline__ struct tile_walk next_tile(const general_warp<S> &w, const struct dev_attend &a, const struct tile_walk &now)
{
    struct tile_walk next = {now.first + AURA_TILE, now.left - 1, now.chunk + a.c.tile_bytes};
    if (next.first % AURA_PAGE == 0 && next.left)
        next.chunk = chunk_of<S>(w, a, next.first);
    return next;
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

/* 32 chunks are four rows of keys, and one of 128 values. */
enum { KEYS_STEP = 4 * (AURA_TILE * 4 + ROW_SPACE), VALUES_STEP = 128 * 4 + ROW_SPACE };

/* All chunks, 32 at a time; each 32 are `step` bytes after those before them. The lane's first one goes from `from` to `to`. */
__device__ __forceinline__ void ask_words(uint8_t *to, const uint8_t *from, uint32_t chunks, uint32_t step)
{
    const uint32_t n = (chunks + 31 - threadIdx.x % 32) / 32;
    uint32_t i = 0;
#pragma unroll 1
    for (; i + 4 <= n; i += 4)
        ask_chunks<4>(to + i * step, from + i * 512, step);
#pragma unroll 1
    for (; i < n; i++)
        ask_chunks<1>(to + i * step, from + i * 512, step);
}

/* A plain side is read from where it is, but from the second cache. The lane's first chunk of it is there. */
__device__ __forceinline__ void ask_numbers(const uint8_t *chunk, uint32_t bytes)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t at = 128 * lane; at < bytes; at += 32 * 128)
        prefetch(chunk - 16 * lane + at);
}

/* Scales come with keys, of both sides. */
template <class S>
__device__ __forceinline__ void ask_scales(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    copy_ahead_if(w.lane < a.stage.scale_chunks, w.scales_to, chunk + a.c.k_scale_at);
}

/* The keys of a tile; and its values. */
template <class S>
__device__ __forceinline__ void ask_any_keys(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    if (a.stage.k.chunks)
        ask_words(w.k_to, chunk, a.stage.k.chunks, KEYS_STEP);
    else
        ask_numbers(chunk, a.c.v_at);
    ask_scales<S>(w, a, chunk);
}

template <class S>
__device__ __forceinline__ void ask_any_values(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    const uint8_t *from = chunk + a.c.v_at;
    if (!a.stage.v.chunks) {
        ask_numbers(from, a.c.k_scale_at - a.c.v_at);
        return;
    }
    if (a.c.v_dim == 128) {
        ask_words(w.v_to, from, a.stage.v.chunks, VALUES_STEP);
        return;
    }
#pragma unroll 1
    for (uint32_t row = 0; row < a.c.v_kind; row++)
        ask_words(w.v_to + row * a.stage.v.pitch, from + row * 4 * a.c.v_dim, a.c.v_dim / 4, 512);
}

/* And of KIND and 128 channels, of which every lane has a chunk for every bit. */
template <class S, int KIND>
__device__ __forceinline__ void ask_keys(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    ask_chunks<KIND>(w.k_to, chunk, KEYS_STEP);
    ask_scales<S>(w, a, chunk);
}

template <class S, int KIND>
__device__ __forceinline__ void ask_values(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    ask_chunks<KIND>(w.v_to, chunk + a.c.v_at, VALUES_STEP);
}

/* The reference of the page whose tile this is. */
template <class S>
__device__ __forceinline__ void ask_reference(const general_warp<S> &w, const struct dev_attend &a, const struct tile_walk &at)
{
    const uint8_t *from = at.chunk - at.first / AURA_TILE % AURA_PAGE_TILES * a.c.tile_bytes + a.c.reference_at;
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t c = lane; c < a.stage.reference_chunks; c += 32)
        copy_ahead(w.mine + a.stage.reference + 16 * c, from + 16 * (c - lane));
}

#endif
