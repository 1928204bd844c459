/* What the general kernels keep: their shape, where things are in shared memory, and the codes of a tile on their way there.
 *
 * They take every pair of kinds and dims. A warp copies tiles into shared memory as they are, compressed: the keys of the next
 * one while it works on this one. It chooses the decoders of keys and of values for every tile. They give registers of the A
 * operand like those of the fused kernels; logits, weights and accumulators are the same too. When compiling, only the dim of
 * values is known, and only as a number of parts (32 channels each) that is large enough. */
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
/* The bytes of a query, in three columns. Keys are multiplied with UPPER and BESIDE. BESIDE has the lower bytes, or where the
 * caller asked for one plane only zeros, so that sums are made in the same way. LOWER always has the lower bytes, for
 * references. */
enum { UPPER, BESIDE, LOWER, QUERY_COLUMNS };

/* The beginning of shared memory. After it: queries as bytes [row][QUERY_COLUMNS][q_pitch]; queries as 16-bit numbers
 * [row][HALF_PLANES][half_pitch]; the space of each warp. When all warps are done, the merge uses the space of the warps. */
template <class S>
struct general_space {
    row_info row[S::ROWS];
    uint32_t page[PAGES_NEAR], first_page;
    struct split split;
};

/* What a warp and its lanes keep while they work on a split. */
template <class S>
struct general_warp {
    general_space<S> &s;
    uint8_t *q, *half, *parts, *mine;                   /* queries as bytes and as numbers; the space of all warps; of this warp */
    uint32_t lane;
    uint8_t *k_to, *v_to, *scales_to;                   /* where the first chunks that the lane copies go */
    const uint8_t *k_words, *v_words, *scales, *column; /* where the words, the scales and the query column of the lane begin */
    uint32_t weights_from;                              /* the lane that has the weights of this lane's first tokens */
    int begin[S::NT][4], upper;                         /* what sums begin with; what the sum of upper bytes is multiplied with */
    int beside;                                         /* all bits, if every key takes both planes */
    uint32_t limit;                                     /* the lowest of the lane's rows */
    float factor[S::NT], bias[S::NT];                   /* bias: of the page that the warp is in */
    uint2 k_scale, v_scale;                             /* of the tile: f16 scales of four tokens */

    __device__ __forceinline__ uint8_t *q_column(const struct dev_attend &a, int row, int column) const
    {
        return q + (QUERY_COLUMNS * row + column) * a.stage.q_pitch;
    }
    __device__ __forceinline__ uint8_t *half_column(const struct dev_attend &a, int row, int plane) const
    {
        return half + (HALF_PLANES * row + plane) * a.stage.half_pitch;
    }
};

/* Whether some key may be multiplied with the lower bytes. */
__device__ __forceinline__ bool takes_lower(const struct dev_attend &a)
{
    return a.planes % 4 == 2 || a.limit_of_call < INFINITY;
}

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

/* One visit: tokens [from, to) of the tile that begins at token `first`, and where the tile is. */
struct general_visit {
    uint32_t first, from, to;
    const uint8_t *tile;
};

/* Where a warp is: at the tile that begins at token `first`. chunk: where the lane's first chunk of it is. left: tiles that the
 * warp still has to do, with this one. */
struct tile_walk {
    uint32_t first, left;
    const uint8_t *chunk;
};

__device__ __forceinline__ uint32_t rows_visits_of(const struct reach &s)
{
    return (s.pinned_end ? 1 : 0) + s.open_visits;
}

/* The first token that can have codes. */
__device__ __forceinline__ uint32_t first_code_of(const struct dev_attend &a)
{
    return a.c.k_rows || a.c.v_rows ? a.c.pinned : 0;
}

/* Visit number `visit`, whose tokens have no codes: a side of codes has them in f16 rows, a plain side in its tile. */
template <class S>
__device__ __forceinline__ struct general_visit visit_of_rows(const general_warp<S> &w, const struct dev_attend &a, uint32_t visit)
{
    const struct split &g = w.s.split;
    const struct tile_tokens r = rows_visit_of(g.reach, visit);
    const uint32_t tile = r.first / AURA_TILE;
    return {r.first, r.from, r.to, page_head(a.c, g.seq, tile / AURA_PAGE_TILES, g.head) + tile % AURA_PAGE_TILES * a.c.tile_bytes};
}

template <class S>
__device__ __forceinline__ struct general_visit visit_of_tile(const general_warp<S> &w, const struct dev_attend &a,
                                                              const struct tile_walk &at)
{
    return {at.first, max(at.first, first_code_of(a)), min(at.first + AURA_TILE, w.s.split.reach.closed),
            at.chunk - 16 * (threadIdx.x % 32)};
}

/* Where the lane's first chunk of the tile of token `first` is. */
template <class S>
__device__ __forceinline__ const uint8_t *chunk_of(const general_warp<S> &w, const struct dev_attend &a, uint32_t first)
{
    const struct split &g = w.s.split;
    const uint32_t tile = first / AURA_TILE, page = page_of(w.s, a, g, tile);
    return kept(a.c.pages + (size_t)page * a.c.page_bytes + (size_t)g.head * a.c.head_bytes +
                tile % AURA_PAGE_TILES * a.c.tile_bytes + 16 * (threadIdx.x % 32));
}

template <class S>
__device__ __forceinline__ struct tile_walk next_tile(const general_warp<S> &w, const struct dev_attend &a,
                                                      const struct tile_walk &now)
{
    struct tile_walk next = {now.first + AURA_TILE, now.left - 1, now.chunk + a.c.tile_bytes};
    if (next.first % AURA_PAGE == 0 && next.left)
        next.chunk = chunk_of<S>(w, a, next.first);
    return next;
}

/* ---- tiles into shared memory ------------------------------------------------------------------------------------------- */

/* N chunks of this lane at once: the compiler adds instructions before a copy that does not follow another one. */
template <int N>
__device__ __forceinline__ void ask_chunks(uint8_t *to, const uint8_t *from, uint32_t step)
{
#pragma unroll
    for (int i = 0; i < N; i++)
        copy_ahead(to + i * step, from + i * 512);
}

/* 32 chunks are four rows of keys, and one of 128 values. */
enum { KEYS_STEP = 4 * (AURA_TILE * 4 + ROW_SPACE), VALUES_STEP = 128 * 4 + ROW_SPACE };

/* All chunks, 32 at a time; in shared memory each 32 are `step` bytes after the 32 before. The lane's first one goes from
 * `from` to `to`. */
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

/* A plain side is not copied: the second cache is asked for it. chunk: where the lane's first chunk of it is. */
__device__ __forceinline__ void ask_numbers(const uint8_t *chunk, uint32_t bytes)
{
    const uint32_t lane = threadIdx.x % 32;
    for (uint32_t at = 128 * lane; at < bytes; at += 32 * 128)
        prefetch(chunk - 16 * lane + at);
}

/* The scales of both sides come with the keys. */
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
    for (uint32_t row = 0; row < aura_bits_of(a.c.v_kind); row++)
        ask_words(w.v_to + row * a.stage.v.pitch, from + row * 4 * a.c.v_dim, a.c.v_dim / 4, 512);
}

/* The same for codes of KIND and 128 channels: every lane has one chunk for each bit. */
template <class S, int KIND>
__device__ __forceinline__ void ask_keys(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    ask_chunks<code<KIND>::bits>(w.k_to, chunk, KEYS_STEP);
    ask_scales<S>(w, a, chunk);
}

template <class S, int KIND>
__device__ __forceinline__ void ask_values(const general_warp<S> &w, const struct dev_attend &a, const uint8_t *chunk)
{
    ask_chunks<code<KIND>::bits>(w.v_to, chunk + a.c.v_at, VALUES_STEP);
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
