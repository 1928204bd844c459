/* A tile of one KV head closes: reference ─ codes ─ pack ─▶ tile, by a block.
 *
 * The f16 rows of the tile are in shared memory, and codes take their place there. All warps together make the reference of a
 * new page, then a warp encodes two tokens of a side at a time. */
#ifndef AURA_CUDA_CLOSE_CUH
#define AURA_CUDA_CLOSE_CUH

#include <stddef.h>

#include "encode.cuh"

enum { APPEND_WARPS = 8, APPEND_THREADS = 32 * APPEND_WARPS };
enum { KEYS, VALUES, REFERENCE }; /* the order of dev_codecs.encoder */
enum { TURNED_DIM = 192 };        /* the largest dim that is no power of two */

/* Columns [from, to) of a tile are to be encoded. */
struct closing {
    uint8_t *head, *tile;        /* in the page */
    uint32_t from, to;
    uint32_t makes_reference;
    uint32_t value_pairs, pairs; /* of rows: of values, of both sides */
    uint32_t next_pair;          /* that no warp has taken yet */
};

/* The result of one fit for a new reference. */
struct tried_fit {
    float cosine, factor, scale;
};

/* How far a block is. */
struct append_block {
    uint32_t seq, len, closed; /* of this head, as far as it is stored */
    uint32_t end;              /* tokens [closed, end) close */
    uint32_t until;            /* len, when all is stored */
};

/* Shared memory of a block, for dims of up to M. Rows are 16 numbers further apart than they are long, so that the two of a
 * warp are in different banks. sm_86 and sm_89 have 99 KB for a block. */
template <int M>
struct append_space {
    struct dev_encoder encoder[3];
    struct dev_append call;
    uint32_t seq;         /* of the vectors */
    struct dev_seq state; /* of that sequence, before this call */
    struct append_block block; /* while a tile closes, like what follows: nothing is kept in registers then */
    struct closing closing;
    float reference[M];   /* while it is made, the mean */
    struct tried_fit tried[ENCODE_FITS];
    alignas(16) uint16_t row[2][AURA_TILE][M + 16]; /* of the tile that closes: f16 numbers, then codes */
    alignas(16) uint32_t tally[APPEND_WARPS][2][TALLY_PITCH];
    float y[APPEND_WARPS * 2][M < TURNED_DIM ? M : TURNED_DIM];
    __half scale[2][AURA_TILE];
};
static_assert(sizeof(append_space<512>) <= 99 << 10, "there is no more shared memory");

/* A function, and not a pointer in append_block: so the compiler knows that it is shared memory. */
template <int M>
__device__ __forceinline__ append_space<M> *space()
{
    return (append_space<M> *)dynamic_shared();
}


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
 * copies_arrived() and a barrier. A lane has the same piece of all rows that its warp copies: with dims of 128 all pieces at
 * once. */
template <int M>
__device__ __forceinline__ void copy_rows(const struct dev_append &a, const append_block &b, uint32_t from, uint32_t to)
{
    /* of 16 bytes */
    const uint32_t k_pieces = a.c.k_rows ? a.c.k_dim / 8 : 0, pieces = k_pieces + (a.c.v_rows ? a.c.v_dim / 8 : 0);
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 32; i < pieces; i += 32) {
        const bool values = i >= k_pieces;
        const uint32_t piece = values ? i - k_pieces : i, dim = values ? a.c.v_dim : a.c.k_dim;
        const __half *rows = rows_of(a, b, values) + piece * 8;
        uint16_t(*copy)[M + 16] = space<M>()->row[values];
#pragma unroll 1
        for (uint32_t t = from + threadIdx.x / 32; t < to; t += APPEND_WARPS)
            copy_ahead(copy[t % AURA_TILE] + piece * 8, rows + row_of(a.c, t) * dim);
    }
}

/* Starts to load the encoders: there after copies_arrived() and a barrier. That of references has no tables. */
template <int M>
__device__ __forceinline__ void load_encoders(const struct dev_append &a)
{
    append_space<M> *s = space<M>();
    const uint32_t bytes = sizeof s->encoder - sizeof *s->encoder + offsetof(struct dev_encoder, window);
    static_assert(offsetof(struct dev_encoder, window) % 16 == 0, "all is copied in pieces");
    for (uint32_t at = threadIdx.x * 16; at < bytes; at += APPEND_THREADS * 16)
        copy_ahead((uint8_t *)s->encoder + at, (const uint8_t *)a.c.codecs->encoder + at);
}

/* Starts to load what closing needs, before two warps store the tokens of this call. The arguments of the call are in shared
 * memory after a barrier. */
template <int M>
__device__ __forceinline__ void prepare_closing(const struct dev_append &a, const append_block &b)
{
    append_space<M> *s = space<M>();
    static_assert(sizeof s->call / 4 <= APPEND_THREADS, "a thread copies a word");
    load_encoders<M>(a);
    if (threadIdx.x < sizeof s->call / 4)
        ((uint32_t *)&s->call)[threadIdx.x] = ((const uint32_t *)&a)[threadIdx.x];
    if (threadIdx.x / 32 == 6) { /* words of values are changed in place; keys are relative to the reference */
        const uint8_t *head = head_of(a, b, b.closed), *tile = head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes;
        prefetch_all(tile + a.c.v_at, a.c.k_scale_at - a.c.v_at);
        prefetch_all(head + a.c.reference_at, a.c.head_bytes - a.c.reference_at);
    }
}

/* ---- codes ------------------------------------------------------------------------------------------------------------ */

/* Encodes tokens 2 * pair and 2 * pair + 1 of those that close, by a warp. Where there is no second one, the warp encodes a
 * column that does not close; its codes are not stored. */
template <int M>
__device__ __forceinline__ void encode_pair(const struct dev_append &a, const struct closing &c, uint32_t pair, bool values)
{
    append_space<M> *s = space<M>();
    const uint32_t next = c.from + 2 * pair + lane_number() / 16, column = next < AURA_TILE ? next : c.from - 1;
    const float scale = encode_row(s->row[values][column], s->reference, !values && a.c.has_reference, &s->encoder[values],
                                   s->tally[kept(threadIdx.x / 32)][0]);
    if (lane_number() % 16 == 0)
        s->scale[values][column] = __float2half_rn(scale);
}

/* All pairs of both sides. A warp takes the next pair when it is done with one, because some have more fits to compare than
 * others. */
template <int M>
__device__ __forceinline__ void encode_pairs(const struct dev_append &a, const struct closing &c)
{
    for (uint32_t i = threadIdx.x / 32; i < c.pairs;) {
        const bool values = i < c.value_pairs;
        encode_pair<M>(a, c, values ? i : i - c.value_pairs, values);
        if (lane_number() == 0)
            i = take_next(&space<M>()->closing.next_pair);
        i = __shfl_sync(~0u, i, 0);
    }
}

/* ---- the reference ---------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ float reference_number(const struct dev_encoder *e, int8_t code, float scale)
{
    return __fmul_rn(__fmul_rn(e->step, (float)code), scale);
}

/* The mean of the keys that close, a channel to a thread. */
template <int M>
__device__ __forceinline__ void mean_of_keys(const struct dev_append &a, const struct closing &c)
{
    append_space<M> *s = space<M>();
    const uint32_t from = c.from, to = c.to;
#pragma unroll 1
    for (uint32_t d = threadIdx.x; d < a.c.k_dim; d += APPEND_THREADS) {
        float sum = 0;
#pragma unroll 4
        for (uint32_t t = from; t < to; t++)
            sum = __fadd_rn(sum, number_of_bits(s->row[KEYS][t][d]));
        s->reference[d] = __fdiv_rn(sum, (float)(to - from));
    }
}

/* Tries every fit on that mean, by half a warp each; both halves of the last warp try the last fit. */
template <int M>
__device__ __forceinline__ void try_reference(const struct dev_append &a)
{
    append_space<M> *s = space<M>();
    const struct dev_encoder *e = &s->encoder[REFERENCE];
    const uint32_t fit = min(threadIdx.x / 16, e->n_fits - 1);
    if (threadIdx.x / 32 > (e->n_fits - 1) / 2)
        return;
    const struct mean_numbers mean = {s->reference + threadIdx.x % 16, a.c.k_dim};
    const struct measures m = measure<false>(e, mean);
    const float factor = factor_or_0(e, (int)fit, m);
    struct formula_levels levels(e);
    levels.take((int)fit, factor);
    const struct fitted c = fit_levels(mean, levels, [](uint32_t, uint32_t) {});
    const struct tried_fit tried = {cosine_of(c), factor, scale_of(e, m, c)};
    if (threadIdx.x == 16 * fit)
        s->tried[fit] = tried;
}

/* The first with the largest cosine. */
__device__ __forceinline__ struct tried_fit best_tried(const struct tried_fit *tried, uint32_t n)
{
    struct tried_fit best = tried[0];
#pragma unroll 1
    for (uint32_t i = 1; i < n; i++)
        if (tried[i].cosine > best.cosine)
            best = tried[i];
    return best;
}

/* Encodes the mean: 8-bit codes go into the page, if one is given, and the numbers that they stand for into shared memory. By all
 * warps, because the keys wait for it. */
template <int M>
__device__ __forceinline__ void encode_reference(const struct dev_append &a, const struct closing &c)
{
    append_space<M> *s = space<M>();
    const struct dev_encoder *e = &s->encoder[REFERENCE];
    try_reference<M>(a);
    __syncthreads();
    const struct tried_fit best = best_tried(s->tried, e->n_fits);
    const __half scale = __float2half_rn(best.scale);
    struct formula_levels levels(e);
    levels.take(0, best.factor);
    for (uint32_t d = threadIdx.x; d < a.c.reference_scale_at - a.c.reference_at; d += APPEND_THREADS) {
        const int8_t code = d < a.c.k_dim ? (int8_t)levels.find(s->reference[d], 0).code : 0;
        if (c.head)
            ((int8_t *)(c.head + a.c.reference_at))[d] = code;
        if (d < a.c.k_dim)
            s->reference[d] = reference_number(e, code, __half2float(scale));
    }
    if (threadIdx.x == 0 && c.head)
        *(__half *)(c.head + a.c.reference_scale_at) = scale;
}

template <int M>
__device__ __forceinline__ void make_reference(const struct dev_append &a, const struct closing &c)
{
    mean_of_keys<M>(a, c);
    __syncthreads();
    encode_reference<M>(a, c);
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

/* From quads of channels to those of trellis codes: byte i of quad k is channel 8 i + k. */
__device__ __forceinline__ void turn_quads(uint32_t (&quad)[8])
{
    uint32_t turned[8];
#pragma unroll
    for (int k = 0; k < 8; k++) { /* channel 8 i + k is byte k % 4 of quad 2 i + k / 4 */
        const uint32_t both = k % 4 | (4 + k % 4) << 4;
        turned[k] = prmt(prmt(quad[k / 4], quad[2 + k / 4], both), prmt(quad[4 + k / 4], quad[6 + k / 4], both), 0x5410);
    }
#pragma unroll
    for (int k = 0; k < 8; k++)
        quad[k] = turned[k];
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
    if (aura_is_trellis(side.kind))
        turn_quads(quad);
    aura_pack_run(word, quad, side.kind);
#pragma unroll
    for (uint32_t w = 0; w < 8; w++)
        if (w < aura_bits_of(side.kind))
            ((uint32_t *)c.tile)[aura_word_at(&side, run, w) + column] = word[w];
}

/* All bits of the columns [from, to) that are in quad k. */
__device__ __forceinline__ uint32_t columns_of_quad(const struct closing &c, uint32_t k)
{
    const uint32_t columns = (c.to < AURA_TILE ? 1u << c.to : 0) - (1u << c.from), four = columns >> 4 * k & 15;
    return (four * 0x204081 & 0x01010101) * 255;
}

/* One channel of all values. Where only some columns of the tile close, the bits of the others stay: the words are loaded
 * first, all at once. */
template <int M>
__device__ __forceinline__ void put_channel(const struct dev_append &a, const struct closing &c, uint32_t d)
{
    const struct aura_side side = side_of(a.c.v_kind, a.c.v_dim, true);
    const bool all = c.to - c.from == AURA_TILE;
    uint32_t *words = (uint32_t *)(c.tile + a.c.v_at) + d, quad[8], word[8], before[8] = {};
    if (!all)
#pragma unroll
        for (uint32_t w = 0; w < 8; w++)
            if (w < aura_bits_of(side.kind))
                before[w] = words[aura_word_at(&side, 0, w)];
#pragma unroll
    for (uint32_t k = 0; k < 8; k++) {
        const uint16_t *row = &space<M>()->row[VALUES][4 * k][d];
        quad[k] = prmt(prmt(row[0], row[M + 16], 0x0040), prmt(row[2 * (M + 16)], row[3 * (M + 16)], 0x0040), 0x5410);
    }
    if (!all) {
        uint32_t bits[8], mask[8];
#pragma unroll
        for (uint32_t k = 0; k < 8; k++) {
            quad[k] &= columns_of_quad(c, k);
            bits[k] = columns_of_quad(c, k) & aura_each_byte((1u << aura_bits_of(side.kind)) - 1);
        }
        aura_pack_run(mask, bits, side.kind);
#pragma unroll
        for (uint32_t w = 0; w < 8; w++)
            before[w] &= ~mask[w];
    }
    aura_pack_run(word, quad, side.kind);
#pragma unroll
    for (uint32_t w = 0; w < 8; w++)
        if (w < aura_bits_of(side.kind))
            words[aura_word_at(&side, 0, w)] = word[w] | before[w];
}

/* The first threads store keys, the next ones values: with dims of 128 a thread has one run or one channel. c is a copy,
 * because the compiler must assume that every store changes the one in shared memory. */
template <int M>
__device__ __forceinline__ void put_codes(const struct dev_append &a, const struct closing c)
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

/* By one thread, before the barrier. */
template <int M>
__device__ __forceinline__ void begin_closing(const struct dev_append &a, const append_block &b)
{
    const uint32_t begin = max(b.closed, a.c.pinned), first = b.closed / AURA_TILE * AURA_TILE;
    struct closing c;
    c.head = head_of(a, b, b.closed), c.tile = c.head + (b.closed / AURA_TILE % AURA_PAGE_TILES) * a.c.tile_bytes;
    c.from = begin - first, c.to = b.end - first;
    c.makes_reference = a.c.has_reference && !a.slots && !aura_page_has_reference(b.closed, b.closed / AURA_PAGE, a.c.pinned);
    const uint32_t pairs = (c.to - c.from + 1) / 2;
    c.value_pairs = a.c.v_rows ? pairs : 0, c.pairs = c.value_pairs + (a.c.k_rows ? pairs : 0);
    c.next_pair = APPEND_WARPS; /* each begins with one */
    space<M>()->block = b;
    space<M>()->closing = c;
}

template <int M>
__device__ __forceinline__ void find_reference(const struct dev_append &a, const struct closing &c)
{
    if (c.makes_reference)
        make_reference<M>(a, c);
    else if (a.c.has_reference)
        load_reference<M>(a, c.head);
}

/* Encodes the tokens that close. They are of one tile; their rows, and what prepare_closing() has loaded, are in shared memory.
 * Ends with a barrier, so that shared memory can be used again. It is not inlined and reads its arguments from shared memory,
 * so that an append that closes nothing does not need its registers. */
template <int M>
__device__ __noinline__ void close_tokens()
{
    const struct dev_append &a = space<M>()->call;
    const struct closing &c = space<M>()->closing;
    if (c.from >= c.to) /* pinned tokens only, which are never encoded */
        return;
    find_reference<M>(a, c);
    __syncthreads();
    encode_pairs<M>(a, c);
    __syncthreads();
    put_codes<M>(a, c);
    __syncthreads();
}

#endif
