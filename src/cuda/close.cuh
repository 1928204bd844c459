/* A tile of one KV head closes: reference ─ codes ─ pack ─▶ tile, by a block.
 *
 * The f16 rows of the tile are in shared memory, and codes take their place there. A warp encodes two tokens of a side at a time.
 * Values wait for nothing, so they are encoded while one warp makes the reference of a new page, and keys after it. */
#ifndef AURA_CUDA_CLOSE_CUH
#define AURA_CUDA_CLOSE_CUH

#include <stddef.h>

#include "encode.cuh"

enum { APPEND_WARPS = 8, APPEND_THREADS = 32 * APPEND_WARPS };
enum { KEYS, VALUES, REFERENCE }; /* the order of dev_codecs.encoder */
enum { TURNED_DIM = 192 };        /* the largest dim that is no power of two */

/* Shared memory of a block, for dims of up to M. Rows are 16 numbers further apart than they are long, so that the two of a warp are in
 * different banks. sm_86 and sm_89 have 99 KB for a block. */
template <int M>
struct append_space {
    struct dev_encoder encoder[3];
    struct dev_append call;
    uint32_t seq;         /* whose vectors these are, and */
    struct dev_seq state; /* what it is before this call */
    float reference[M];   /* while it is made, the mean */
    int8_t reference_code[M];
    alignas(16) uint16_t row[2][AURA_TILE][M + 16]; /* of the tile that closes: f16 numbers, then codes */
    alignas(16) uint32_t tally[APPEND_WARPS][2][TALLY_PITCH];
    float y[APPEND_WARPS * 2][M < TURNED_DIM ? M : TURNED_DIM];
    __half scale[2][AURA_TILE];
};
static_assert(sizeof(append_space<512>) <= 99 << 10, "there is no more shared memory");

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

/* Rows [from, to) of one tile, which were stored by other calls or before a barrier, to shared memory. They are there after
 * copies_arrived() and a barrier. */
template <int M>
__device__ __forceinline__ void copy_rows(const struct dev_append &a, const append_block &b, uint32_t from, uint32_t to)
{
    const uint32_t k_pieces = a.c.k_rows ? a.c.k_dim / 8 : 0, pieces = k_pieces + (a.c.v_rows ? a.c.v_dim / 8 : 0); /* of 16 bytes */
    for (uint32_t t = from + threadIdx.x / 32; t < to; t += APPEND_WARPS) {
        const size_t row = row_of(a.c, t);
        for (uint32_t i = threadIdx.x % 32; i < pieces; i += 32) {
            const bool values = i >= k_pieces;
            const uint32_t piece = values ? i - k_pieces : i;
            copy_ahead(space<M>()->row[values][t % AURA_TILE] + piece * 8,
                       rows_of(a, b, values) + row * (values ? a.c.v_dim : a.c.k_dim) + piece * 8);
        }
    }
}

/* Before the tokens of this call are stored, which takes two warps, what closing will need is asked for. The call is there after a
 * barrier, encoders after copies_arrived() and a barrier. Of the encoder of references there is no table. */
template <int M>
__device__ __forceinline__ void prepare_closing(const struct dev_append &a, const append_block &b)
{
    append_space<M> *s = space<M>();
    const uint32_t bytes = sizeof s->encoder - sizeof *s->encoder + offsetof(struct dev_encoder, window);
    static_assert(offsetof(struct dev_encoder, window) % 16 == 0 && sizeof s->call / 4 <= APPEND_THREADS, "all is copied in pieces");
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += APPEND_THREADS * 16)
        copy_ahead((uint8_t *)s->encoder + at, (const uint8_t *)a.c.codecs->encoder + at);
    if (threadIdx.x < sizeof s->call / 4)
        ((uint32_t *)&s->call)[threadIdx.x] = ((const uint32_t *)&a)[threadIdx.x];
    if (threadIdx.x / 32 == 6) { /* words of values are changed in place; keys are relative to the reference */
        const uint8_t *head = head_of(a, b, b.closed), *tile = head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes;
        prefetch_all(tile + a.c.v_at, a.c.k_scale_at - a.c.v_at);
        prefetch_all(head + a.c.reference_at, a.c.head_bytes - a.c.reference_at);
    }
}

/* ---- codes ------------------------------------------------------------------------------------------------------------ */

/* Tokens 2 * pair and 2 * pair + 1 of those that close, by a warp. Without a second one, a column that does not close has its place:
 * whatever is there, its codes are not stored. */
template <int M>
__device__ __forceinline__ void encode_pair(const struct dev_append &a, const struct closing &c, uint32_t pair, bool values)
{
    append_space<M> *s = space<M>();
    const uint32_t next = c.from + 2 * pair + threadIdx.x / 16 % 2, column = next < AURA_TILE ? next : c.from - 1;
    const uint32_t reference = !values && a.c.has_reference ? place_of(s->reference) : 0;
    const float scale = encode_row(place_of(s->row[values][column]), reference, place_of(&s->encoder[values]),
                                   place_of(s->tally[threadIdx.x / 32]));
    if (threadIdx.x % 16 == 0)
        s->scale[values][column] = __float2half_rn(scale);
}

/* All pairs of keys, of values, or of both, by warps [first, APPEND_WARPS). Which of them begins depends on the head, so that the four
 * schedulers of a multiprocessor have the same to do for all blocks together. */
template <int M>
__device__ __forceinline__ void encode_pairs(const struct dev_append &a, const struct closing &c, bool keys, bool values,
                                             uint32_t first)
{
    const uint32_t pairs = (c.to - c.from + 1) / 2, n_values = values ? pairs : 0, n = n_values + (keys ? pairs : 0);
    const uint32_t warps = APPEND_WARPS - first;
#pragma unroll 1
    for (uint32_t i = (threadIdx.x / 32 - first + blockIdx.x / 2) % warps; i < n; i += warps)
        encode_pair<M>(a, c, i < n_values ? i : i - n_values, i < n_values);
}

/* ---- the reference ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float reference_number(const struct dev_encoder *e, int8_t code, float scale)
{
    return __fmul_rn(__fmul_rn(e->step, (float)code), scale);
}

/* The mean of the keys that close, by one warp, four channels to a lane. */
template <int M>
__device__ __forceinline__ void mean_of_keys(const struct dev_append &a, const struct closing &c)
{
    append_space<M> *s = space<M>();
#pragma unroll 1
    for (uint32_t d = threadIdx.x % 32 * 4; d < a.c.k_dim; d += 128) {
        float sum[4] = {};
#pragma unroll 4
        for (uint32_t t = c.from; t < c.to; t++) {
            const uint2 four = *(const uint2 *)&s->row[KEYS][t][d];
#pragma unroll
            for (int i = 0; i < 4; i++)
                sum[i] = __fadd_rn(sum[i], half_of(four, i));
        }
#pragma unroll
        for (int i = 0; i < 4; i++)
            s->reference[d + i] = __fdiv_rn(sum[i], (float)(c.to - c.from));
    }
    __syncwarp();
}

/* Of that mean: 8-bit codes into the page, and what they stand for. */
template <int M>
__device__ __forceinline__ void make_reference(const struct dev_append &a, const struct closing &c)
{
    append_space<M> *s = space<M>();
    const uint32_t lane = threadIdx.x % 16;
    mean_of_keys<M>(a, c);
    const struct mean_numbers mean = {s->reference + lane, s->reference_code + lane, a.c.k_dim};
    const __half scale = __float2half_rn(encode_by_formula<true>(&s->encoder[REFERENCE], mean));
    __syncwarp();
    for (uint32_t d = threadIdx.x % 32; d < a.c.reference_scale_at - a.c.reference_at; d += 32) {
        const int8_t code = d < a.c.k_dim ? s->reference_code[d] : 0;
        ((int8_t *)(c.head + a.c.reference_at))[d] = code;
        if (d < a.c.k_dim)
            s->reference[d] = reference_number(&s->encoder[REFERENCE], code, __half2float(scale));
    }
    if (threadIdx.x % 32 == 0)
        *(__half *)(c.head + a.c.reference_scale_at) = scale;
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

/* One run of one key: 32 codes, each in 16 bits. */
template <int M>
__device__ __forceinline__ void put_key(const struct dev_append &a, const struct closing &c, uint32_t run, uint32_t column)
{
    const struct aura_side side = side_of(a.c.k_kind, a.c.k_dim, false);
    uint32_t quad[8], word[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; k += 2) {
        const uint32_t d = run * AURA_RUN + 4 * k; /* dims are multiples of 16 */
        const uint4 codes = d < side.dim ? *(const uint4 *)&space<M>()->row[KEYS][column][d] : make_uint4(0, 0, 0, 0);
        quad[k] = prmt(codes.x, codes.y, 0x6420);
        quad[k + 1] = prmt(codes.z, codes.w, 0x6420);
    }
    aura_pack_run(word, quad, side.kind);
#pragma unroll
    for (uint32_t w = 0; w < 8; w++)
        if (w < side.kind)
            ((uint32_t *)c.tile)[aura_word_at(&side, run, w) + column] = word[w];
}

/* All bits of the columns [from, to) that are in quad k. */
__device__ __forceinline__ uint32_t columns_of_quad(const struct closing &c, uint32_t k)
{
    const uint32_t columns = (c.to < AURA_TILE ? 1u << c.to : 0) - (1u << c.from), four = columns >> 4 * k & 15;
    return (four * 0x204081 & 0x01010101) * 255;
}

/* The words of one channel, whose mask has the bits that close; others are kept. */
__device__ __forceinline__ void put_channel(uint32_t *words, const uint32_t (&quad)[8], const uint32_t (&mask)[8],
                                            const struct aura_side &side, bool all)
{
    uint32_t word[8];
    aura_pack_run(word, quad, side.kind);
#pragma unroll
    for (uint32_t w = 0; w < 8; w++)
        if (w < side.kind) {
            uint32_t *to = words + aura_word_at(&side, 0, w);
            *to = all ? word[w] : word[w] | (*to & ~mask[w]);
        }
}

/* Channels d and d + 1 of all values. */
template <int M>
__device__ __forceinline__ void put_channels(const struct dev_append &a, const struct closing &c, uint32_t d)
{
    const struct aura_side side = side_of(a.c.v_kind, a.c.v_dim, true);
    const bool all = c.to - c.from == AURA_TILE;
    uint32_t *words = (uint32_t *)(c.tile + a.c.v_at) + d, first[8], second[8], bits[8], mask[8];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++)
        bits[k] = columns_of_quad(c, k) & aura_each_byte((1u << side.kind) - 1);
    aura_pack_run(mask, bits, side.kind);
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        uint32_t both[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            both[i] = *(const uint32_t *)&space<M>()->row[VALUES][4 * k + i][d];
        const uint32_t low = prmt(both[0], both[1], 0x6240), high = prmt(both[2], both[3], 0x6240);
        first[k] = prmt(low, high, 0x5410) & columns_of_quad(c, k);
        second[k] = prmt(low, high, 0x7632) & columns_of_quad(c, k);
    }
    put_channel(words, first, mask, side, all);
    put_channel(words + 1, second, mask, side, all);
}

/* Keys by the first threads and values by the next: with dims of 128 each thread has one run, two channels, or nothing. */
template <int M>
__device__ __forceinline__ void put_codes(const struct dev_append &a, const struct closing &c)
{
    const uint32_t runs = a.c.k_rows ? aura_padded_run(a.c.k_dim) / AURA_RUN : 0, pairs = a.c.v_rows ? a.c.v_dim / 2 : 0;
    for (uint32_t i = threadIdx.x; i < runs * AURA_TILE + pairs; i += APPEND_THREADS) {
        const uint32_t column = i % AURA_TILE;
        if (i >= runs * AURA_TILE)
            put_channels<M>(a, c, 2 * (i - runs * AURA_TILE));
        else if (column >= c.from && column < c.to)
            put_key<M>(a, c, i / AURA_TILE, column);
    }
    const uint32_t column = threadIdx.x % AURA_TILE, side = threadIdx.x / AURA_TILE;
    if (side < 2 && column >= c.from && column < c.to && (side == VALUES ? a.c.v_rows : a.c.k_rows))
        ((__half *)(c.tile + (side == VALUES ? a.c.v_scale_at : a.c.k_scale_at)))[column] = space<M>()->scale[side][column];
}

/* ---- all of it -------------------------------------------------------------------------------------------------------- */

/* Encodes the tokens [closed, end) of the head; they are of one tile, and their rows and what prepare_closing asked for are in shared
 * memory. Ends with a barrier, so that this can be used again. A function of its own, with the arguments of the call in shared memory
 * where a function can read them: what it needs registers for must not be in the way of appends that close nothing. */
template <int M>
__device__ __noinline__ void close_tokens(append_block b, uint32_t end)
{
    const struct dev_append &a = space<M>()->call;
    const uint32_t begin = max(b.closed, a.c.pinned), first = b.closed / AURA_TILE * AURA_TILE;
    if (begin >= end) /* pinned tokens only, which are never encoded */
        return;
    uint8_t *head = head_of(a, b, b.closed);
    const struct closing c = {begin - first, end - first, head, head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes};
    const bool make = a.c.has_reference && b.closed <= max(b.closed / AURA_PAGE * AURA_PAGE, a.c.pinned);
    if (make) {
        if (threadIdx.x < 32)
            make_reference<M>(a, c);
        else
            encode_pairs<M>(a, c, false, a.c.v_rows, 1);
    } else if (a.c.has_reference) {
        load_reference<M>(a, head);
    }
    __syncthreads();
    encode_pairs<M>(a, c, a.c.k_rows, a.c.v_rows && !make, 0);
    __syncthreads();
    put_codes<M>(a, c);
    __syncthreads();
}

#endif
