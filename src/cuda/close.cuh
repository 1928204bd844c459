/* A tile of one KV head closes: reference ─ codes ─ pack ─▶ tile, by a block.
 *
 * A warp encodes two tokens of a side at a time. Values wait for nothing, so they are encoded while one warp makes the reference of
 * a new page, and keys after it. */
#ifndef AURA_CUDA_CLOSE_CUH
#define AURA_CUDA_CLOSE_CUH

#include "encode.cuh"

enum { APPEND_WARPS = 8, APPEND_THREADS = 32 * APPEND_WARPS };
enum { KEYS, VALUES, REFERENCE }; /* the order of dev_codecs.encoder */

/* Shared memory of a block, for dims of up to M. Vectors are 16 floats further apart than they are long, so that the two of a warp
 * are in different banks; codes 4 bytes, so that those of the same channels are. */
template <int M>
struct append_space {
    struct dev_encoder encoder[3];
    struct dev_append call;
    uint32_t seq;         /* whose vectors these are, and */
    struct dev_seq state; /* what it is before this call */
    float reference[M];
    float y[APPEND_WARPS * 2][M + 16];
    uint8_t code[2][AURA_TILE][M + 4];
    __half scale[2][AURA_TILE];
};

/* Not a member of the block: where the compiler sees where it comes from, it knows that it is shared memory. */
template <int M>
__device__ __forceinline__ append_space<M> *space()
{
    return (append_space<M> *)dynamic_shared();
}

struct append_block {
    uint32_t seq, len, closed; /* of this head, as far as it is stored */
};

/* Columns [from, to) of a tile are to be encoded. */
struct closing {
    uint32_t first;       /* token of column 0 */
    uint32_t from, to;
    uint8_t *head, *tile; /* in the page */
};

__device__ __forceinline__ __half *rows_of(const struct dev_append &a, const append_block &b, bool values)
{
    const size_t dim = values ? a.c.v_dim : a.c.k_dim;
    return (values ? a.c.v_rows : a.c.k_rows) + ((size_t)b.seq * a.c.kv_heads + blockIdx.x) * a.c.rows * dim;
}

__device__ __forceinline__ uint8_t *head_of(const struct dev_append &a, const append_block &b, uint32_t token)
{
    return (uint8_t *)page_head(a.c, b.seq, token / AURA_PAGE, blockIdx.x);
}

/* ---- what closing will need ------------------------------------------------------------------------------------------- */

/* Asks for lines [0, bytes) of p, by one warp. */
__device__ __forceinline__ void prefetch_all(const void *p, uint32_t bytes)
{
#pragma unroll 1
    for (uint32_t at = threadIdx.x % 32 * 128; at < bytes; at += 32 * 128)
        prefetch((const uint8_t *)p + at);
}

/* Before the tokens of this call are stored, which takes two warps; the others ask for what the tile that closes first is made of.
 * The call is there after a barrier, encoders after copies_arrived() and a barrier. */
template <int M>
__device__ __forceinline__ void prepare_closing(const struct dev_append &a, const append_block &b)
{
    const uint32_t warp = threadIdx.x / 32;
    const uint32_t row = b.closed / AURA_TILE * AURA_TILE & (a.c.rows - a.c.pinned - 1); /* the first of 32 in the ring */
    append_space<M> *s = space<M>();
    static_assert(sizeof s->encoder / 16 <= APPEND_THREADS && sizeof s->call / 4 <= APPEND_THREADS, "a thread copies one piece");
    if (threadIdx.x < sizeof s->encoder / 16)
        copy_ahead((uint8_t *)s->encoder + threadIdx.x * 16, (const uint8_t *)a.c.codecs->encoder + threadIdx.x * 16);
    if (threadIdx.x < sizeof s->call / 4)
        ((uint32_t *)&s->call)[threadIdx.x] = ((const uint32_t *)&a)[threadIdx.x];
    if (!a.c.open)
        return;
    if (warp == 4 && a.c.k_rows)
        prefetch_all(rows_of(a, b, false) + (size_t)row * a.c.k_dim, AURA_TILE * a.c.k_dim * 2);
    if (warp == 5 && a.c.v_rows)
        prefetch_all(rows_of(a, b, true) + (size_t)row * a.c.v_dim, AURA_TILE * a.c.v_dim * 2);
    if (warp == 6) { /* words of values are changed in place; keys are relative to the reference */
        const uint8_t *head = head_of(a, b, b.closed), *tile = head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes;
        prefetch_all(tile + a.c.v_at, a.c.k_scale_at - a.c.v_at);
        prefetch_all(head + a.c.reference_at, a.c.head_bytes - a.c.reference_at);
    }
}

/* ---- codes ------------------------------------------------------------------------------------------------------------ */

/* A lane's numbers of a row, relative to r where that is not NULL. Four at a time, which come together. */
__device__ __forceinline__ void load_row(float *y, const __half *row, const float *r, uint32_t dim)
{
#pragma unroll 1
    for (uint32_t d = 0; d < dim; d += 64, y += 64, row += 64) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = d + 16 * i < dim ? __half2float(row[16 * i]) : 0;
#pragma unroll
        for (int i = 0; i < 4; i++)
            if (d + 16 * i < dim)
                y[16 * i] = r ? __fsub_rn(x[i], r[d + 16 * i]) : x[i];
    }
}

/* Tokens 2 * pair and 2 * pair + 1 of those that close, by a warp. Without a second one the first is encoded twice. */
template <int M>
__device__ __forceinline__ void encode_pair(const struct dev_append &a, const append_block &b, const struct closing &c, uint32_t pair,
                                            bool values)
{
    append_space<M> *s = space<M>();
    const uint32_t lane = threadIdx.x % 16, column = min(c.from + 2 * pair + threadIdx.x / 16 % 2, c.to - 1);
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim;
    const __half *row = rows_of(a, b, values) + (size_t)row_of(a.c, c.first + column) * dim;
    float *y = s->y[threadIdx.x / 16];
    load_row(y + lane, row + lane, !values && a.c.has_reference ? s->reference + lane : NULL, dim);
    const float scale = encode_vector(place_of(s->code[values][column]), place_of(y), place_of(&s->encoder[values]));
    if (lane == 0)
        s->scale[values][column] = __float2half_rn(scale);
}

/* All pairs of keys, of values, or of both, by warps [first, APPEND_WARPS). Which of them begins depends on the head, so that the four
 * schedulers of a multiprocessor have the same to do for all blocks together. */
template <int M>
__device__ __forceinline__ void encode_pairs(const struct dev_append &a, const append_block &b, const struct closing &c, bool keys,
                                             bool values, uint32_t first)
{
    const uint32_t pairs = (c.to - c.from + 1) / 2, n_values = values ? pairs : 0, n = n_values + (keys ? pairs : 0);
    const uint32_t warps = APPEND_WARPS - first;
#pragma unroll 1
    for (uint32_t i = (threadIdx.x / 32 - first + blockIdx.x / 2) % warps; i < n; i += warps)
        encode_pair<M>(a, b, c, i < n_values ? i : i - n_values, i < n_values);
}

/* ---- the reference ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float reference_number(const struct dev_encoder *e, int8_t code, float scale)
{
    return __fmul_rn(__fmul_rn(e->step, (float)code), scale);
}

/* The mean of the unpinned keys of a tile, all of them open. */
template <int M>
__device__ __forceinline__ void mean_of_keys(const struct dev_append &a, const append_block &b, uint32_t first)
{
    const __half *rows = rows_of(a, b, false);
    const uint32_t from = max(first, a.c.pinned), end = first + AURA_TILE;
    for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += APPEND_THREADS) {
        float sum = 0;
#pragma unroll 16
        for (uint32_t t = from; t < end; t++)
            sum = __fadd_rn(sum, __half2float(rows[(size_t)row_of(a.c, t) * a.c.k_dim + d]));
        space<M>()->y[0][d] = __fdiv_rn(sum, (float)(end - from));
    }
}

/* Of that mean, by one warp: 8-bit codes into the page, and what they stand for. Both halves of the warp do the same. */
template <int M>
__device__ __forceinline__ void make_reference(const struct dev_append &a, uint8_t *head)
{
    append_space<M> *s = space<M>();
    int8_t *code = (int8_t *)s->code[KEYS][0];
    const __half scale = __float2half_rn(encode_vector(place_of(code), place_of(s->y[0]), place_of(&s->encoder[REFERENCE])));
    __syncwarp();
    for (uint32_t d = threadIdx.x % 32; d < a.c.reference_scale_at - a.c.reference_at; d += 32) {
        ((int8_t *)(head + a.c.reference_at))[d] = d < a.c.k_dim ? code[d] : 0;
        if (d < a.c.k_dim)
            s->reference[d] = reference_number(&s->encoder[REFERENCE], code[d], __half2float(scale));
    }
    if (threadIdx.x % 32 == 0)
        *(__half *)(head + a.c.reference_scale_at) = scale;
}

template <int M>
__device__ __forceinline__ void load_reference(const struct dev_append &a, const uint8_t *head)
{
    append_space<M> *s = space<M>();
    const int8_t *code = (const int8_t *)(head + a.c.reference_at);
    const float scale = __half2float(*(const __half *)(head + a.c.reference_scale_at));
    for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += APPEND_THREADS)
        s->reference[d] = reference_number(&s->encoder[REFERENCE], code[d], scale);
}

/* ---- packing ---------------------------------------------------------------------------------------------------------- */

/* How a side is laid out, as format.h asks for it. */
__device__ __forceinline__ struct aura_side side_of(uint32_t kind, uint32_t dim, bool values)
{
    struct aura_side side = {};
    side.kind = kind;
    side.dim = dim;
    side.runs = values ? 1 : aura_padded_run(dim) / AURA_RUN;
    side.lanes = values ? dim : (uint32_t)AURA_TILE;
    return side;
}

/* One run of one key. */
template <int M>
__device__ __forceinline__ void put_key(const struct dev_append &a, const struct closing &c, uint32_t run, uint32_t column)
{
    const struct aura_side side = side_of(a.c.k_kind, a.c.k_dim, false);
    uint32_t quad[8], word[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        const uint32_t d = run * AURA_RUN + 4 * k; /* dims are multiples of 4 */
        quad[k] = d < side.dim ? *(const uint32_t *)&space<M>()->code[KEYS][column][d] : 0;
    }
    aura_pack_run(word, quad, side.kind);
#pragma unroll
    for (uint32_t w = 0; w < 8; w++)
        if (w < side.kind)
            ((uint32_t *)c.tile)[aura_word_at(&side, run, w) + column] = word[w];
}

/* word[kind] = the bits of columns [from, to) of a run. */
__device__ __forceinline__ void mask_columns(uint32_t (&word)[8], uint32_t from, uint32_t to, uint32_t kind)
{
    const uint32_t all = kind == 8 ? 255 : (1u << kind) - 1;
    uint32_t quad[8] = {};
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
        quad[i / 4] |= i >= from && i < to ? all << i % 4 * 8 : 0;
    aura_pack_run(word, quad, kind);
}

/* One channel of all values. Columns before and after those that close keep their bits. */
template <int M>
__device__ __forceinline__ void put_channel(const struct dev_append &a, const struct closing &c, uint32_t d)
{
    const struct aura_side side = side_of(a.c.v_kind, a.c.v_dim, true);
    uint32_t *words = (uint32_t *)(c.tile + a.c.v_at) + d, quad[8] = {}, word[8];
#pragma unroll
    for (uint32_t i = 0; i < 32; i++)
        quad[i / 4] |= i >= c.from && i < c.to ? (uint32_t)space<M>()->code[VALUES][i][d] << i % 4 * 8 : 0;
    aura_pack_run(word, quad, side.kind);
    if (c.to - c.from < AURA_TILE) {
        uint32_t mask[8];
        mask_columns(mask, c.from, c.to, side.kind);
#pragma unroll
        for (uint32_t w = 0; w < 8; w++)
            if (w < side.kind)
                word[w] |= words[aura_word_at(&side, 0, w)] & ~mask[w];
    }
#pragma unroll
    for (uint32_t w = 0; w < 8; w++)
        if (w < side.kind)
            words[aura_word_at(&side, 0, w)] = word[w];
}

/* Keys by the first threads and values by the next: with dims of 128 each thread has one run or one channel. */
template <int M>
__device__ __forceinline__ void put_codes(const struct dev_append &a, const struct closing &c)
{
    const uint32_t runs = a.c.k_rows ? aura_padded_run(a.c.k_dim) / AURA_RUN : 0, channels = a.c.v_rows ? a.c.v_dim : 0;
    for (uint32_t i = threadIdx.x; i < runs * AURA_TILE + channels; i += APPEND_THREADS) {
        const uint32_t column = i % AURA_TILE;
        if (i >= runs * AURA_TILE)
            put_channel<M>(a, c, i - runs * AURA_TILE);
        else if (column >= c.from && column < c.to)
            put_key<M>(a, c, i / AURA_TILE, column);
    }
    const uint32_t column = threadIdx.x % AURA_TILE, side = threadIdx.x / AURA_TILE;
    if (side < 2 && column >= c.from && column < c.to && (side == VALUES ? a.c.v_rows : a.c.k_rows))
        ((__half *)(c.tile + (side == VALUES ? a.c.v_scale_at : a.c.k_scale_at)))[column] = space<M>()->scale[side][column];
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

/* Encodes the tokens [closed, end) of the head; they are of one tile. prepare_closing was called, and a barrier is between. Ends with
 * a barrier, so that rows and shared memory can be used again. A function of its own, with the arguments of the call in shared memory
 * where a function can read them: what it needs registers for must not be in the way of appends that close nothing. */
template <int M>
__device__ __noinline__ void close_tokens(append_block b, uint32_t end)
{
    const struct dev_append &a = space<M>()->call;
    const uint32_t begin = max(b.closed, a.c.pinned), first = b.closed / AURA_TILE * AURA_TILE;
    if (begin >= end) /* pinned tokens only, which are never encoded */
        return;
    uint8_t *head = head_of(a, b, b.closed);
    const struct closing c = {first, begin - first, end - first, head,
                              head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes};
    const bool make = a.c.has_reference && b.closed <= max(b.closed / AURA_PAGE * AURA_PAGE, a.c.pinned);
    copies_arrived();
    if (make)
        mean_of_keys<M>(a, b, first);
    __syncthreads();
    if (make) {
        if (threadIdx.x < 32)
            make_reference<M>(a, head);
        else
            encode_pairs<M>(a, b, c, false, a.c.v_rows, 1);
    } else if (a.c.has_reference) {
        load_reference<M>(a, head);
    }
    __syncthreads();
    encode_pairs<M>(a, b, c, a.c.k_rows, a.c.v_rows && !make, 0);
    __syncthreads();
    put_codes<M>(a, c);
    __syncthreads();
}

#endif
