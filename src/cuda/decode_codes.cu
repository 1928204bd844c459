/* aura_cuda_unpack where both sides have codes of 4 bits and dim 128, and rows are aligned.
 *
 * A warp has one side of an image, and one loop takes 16 tokens at a time, of keys as of values: what a warp executes is short,
 * and all warps of a multiprocessor execute the same. While a tile is decoded, the next one is on its way to shared memory.
 *
 * A lane (g = lane / 4, t = lane % 4) has two tokens, and of each channels 32 run + 8 t + 0 ... 7, which are a word of nibbles:
 * of keys it is one as stored, of values it is made of eight. In model space levels with their offset are the bytes of A in
 * products with the Walsh-Hadamard matrix of a run, whose columns are in such an order that the lane gets the same channels
 * back. Sums are exact; the scale of a token, the factor of a channel and the reference come after them. In rotated space levels
 * become numbers where they are. */
#include "decode.cuh"

enum { CODES_DIM = 128, CODES_RUNS = CODES_DIM / AURA_RUN, CODES_THREADS = 64, CODES_BLOCKS = 8 };

/* Bytes between rows of words in shared memory: what lanes read together is in different banks. */
enum { KEYS_PITCH = 4 * AURA_TILE + 32, VALUES_PITCH = 4 * CODES_DIM + 16 };

/* An int as the lower bits of a float, and what that is; what the offset of all bytes is in channel 0. */
enum { INT_IN_FLOAT = 0x4b400000, INT_IN_FLOAT_IS = 3 << 22, OFFSET_IN_FIRST = CODES_DIM / 2 * 128 };

/* What a warp has there: a tile and the next one; by channel, what comes after the products. In rotated space the reference is two
 * f16 numbers of each pair of channels. */
struct codes_space {
    struct {
        uint8_t words[4 * CODES_RUNS * KEYS_PITCH];
        uint16_t scale[AURA_TILE];
    } stage[2];
    float factor[CODES_DIM];
    union {
        float reference[CODES_DIM];
        uint32_t reference_pair[CODES_DIM / 2];
    };
};
static_assert(4 * VALUES_PITCH <= 4 * CODES_RUNS * KEYS_PITCH, "tiles of values need more room");

/* What a warp knows. */
struct codes_warp {
    struct codes_space *space;
    uint32_t g, t;
    uint32_t values;       /* 1: it has values */
    uint32_t from, to;     /* tokens of the image's that are wanted, and are codes */
    uint16_t *rows;        /* the caller's, of token u.first: where the lane's channels begin; and how far it is to the next */
    int64_t pitch;
    uint32_t table[4];
    uint32_t matrix[4][2]; /* B of the products, columns 8 t + 2 j and 8 t + 2 j + 1 of a run */
};

/* Nibbles of a word are channels 0 4 1 5 2 6 3 7 of eight; so are the bytes that a lookup makes of them. */
__device__ __forceinline__ uint32_t channel_of_byte(uint32_t i)
{
    return i % 2 * 4 + i / 2;
}

/* Rows are channels of A as bytes have them, 8 t ... of a run; the column is a channel of the result. */
__device__ __forceinline__ void make_matrix(struct codes_warp &w)
{
#pragma unroll
    for (uint32_t j = 0; j < 8; j++) {
        const uint32_t column = w.g / 2 * 8 + j / 2 * 2 + w.g % 2;
        uint32_t word = 0;
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            word |= (__popc((8 * w.t + channel_of_byte(j % 2 * 4 + i)) & column) % 2 ? 255u : 1u) << 8 * i;
        w.matrix[j / 2][j % 2] = word;
    }
}

/* Of the channels that a lane has here, 4 lane + 0 ... 3: the factor, and the reference in model space with it. */
__device__ __forceinline__ void make_channels(const struct codes_warp &w, const struct dev_unpack &u, const struct image_block &b)
{
    const struct dev_cache &c = u.a.c;
    const uint32_t lane = threadIdx.x % 32, first = 4 * lane, *sign = w.values ? c.v_sign : c.k_sign;
    const float *inverse = w.values ? c.v_inverse_balance : c.inverse_balance, step = w.values ? c.v_step : c.k_step;
    const bool has_reference = c.has_reference && !w.values;
    const float unit = u.rotated ? u.im.reference : c.reference_step / step; /* levels are whole numbers in model space */
    const float scale = has_reference ? __half2float(*(const __half *)(b.page + c.reference_scale_at)) * unit : 0;
    const uint32_t codes = has_reference ? *(const uint32_t *)(b.page + c.reference_at + first) : 0;
    float reference[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        reference[i] = (float)(int8_t)(codes >> 8 * i) * scale;
    if (u.rotated) {
#pragma unroll
        for (int i = 0; i < 2; i++) /* of values, what changes no number by being added */
            w.space->reference_pair[2 * lane + i] =
                w.values ? 0x80008000u : bits_of(__floats2half2_rn(reference[2 * i], reference[2 * i + 1]));
        return;
    }
    if (has_reference)
        hadamard_warp<4>(reference, lane);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const float factor = step * (w.values ? c.v_norm : c.k_norm) * (inverse ? inverse[b.head * CODES_DIM + first + i] : 1);
        w.space->factor[first + i] = sign[lane / 8] >> (first + i) % 32 & 1 ? -factor : factor;
        w.space->reference[first + i] = reference[i] * w.space->factor[first + i];
    }
}

/* Starts the copy of a tile. */
__device__ __forceinline__ void ask_for_tile(const struct codes_warp &w, const struct dev_cache &c, const uint8_t *tile,
                                             uint32_t stage)
{
    const uint32_t lane = threadIdx.x % 32, pitch = w.values ? VALUES_PITCH : 4 * KEYS_PITCH; /* of 512 bytes */
    const uint8_t *from = tile + (w.values ? c.v_at : 0) + 16 * lane;
    uint8_t *to = w.space->stage[stage].words + (w.values ? 16 * lane : lane / 8 * KEYS_PITCH + lane % 8 * 16);
#pragma unroll
    for (uint32_t i = 0; i < 4; i++)
        copy_ahead(to + i * pitch, from + 512 * i);
    copy_ahead_if(lane < 4, (uint8_t *)w.space->stage[stage].scale + 16 * lane,
                  tile + (w.values ? c.v_scale_at : c.k_scale_at) + 16 * lane);
}

/* The lane's tokens of 16, in the tile. Those of values are codes i and i + 4 of an octet, a byte of its words. */
__device__ __forceinline__ uint32_t codes_token(const struct codes_warp &w, uint32_t step, uint32_t second)
{
    return w.values ? w.g % 4 * 8 + 2 * step + w.g / 4 + 4 * second : 16 * step + w.g + 8 * second;
}

/* Their words, of each run. */
__device__ __forceinline__ void words_of_keys(uint32_t (&word)[CODES_RUNS][2], const struct codes_warp &w, const uint8_t *words,
                                              uint32_t step)
{
    const uint8_t *from = words + w.t * KEYS_PITCH + codes_token(w, step, 0) * 4;
#pragma unroll
    for (int run = 0; run < CODES_RUNS; run++)
#pragma unroll
        for (int second = 0; second < 2; second++)
            word[run][second] = *(const uint32_t *)(from + run * 4 * KEYS_PITCH + second * 32);
}

__device__ __forceinline__ void words_of_values(uint32_t (&word)[CODES_RUNS][2], const struct codes_warp &w, const uint8_t *words,
                                                uint32_t step)
{
    const uint32_t byte = 2 * step + w.g / 4, bytes = byte | (4 + byte) << 4;
    const uint8_t *from = words + w.g % 4 * VALUES_PITCH + w.t * 32;
#pragma unroll
    for (int run = 0; run < CODES_RUNS; run++) {
        uint32_t four[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
            const uint4 x = *(const uint4 *)(from + run * 128 + i * 16);
            four[i] = prmt(prmt(x.x, x.y, bytes), prmt(x.z, x.w, bytes), 0x5410);
        }
        word[run][0] = picked(0x0f0f0f0fu, four[0], four[1] << 4);
        word[run][1] = picked(0x0f0f0f0fu, four[0] >> 4, four[1]);
    }
}

/* Two tokens of the caller's: where the lane's channels begin, and whether they are wanted. */
struct codes_rows {
    uint16_t *at[2];
    bool wanted[2];
};

template <int DTYPE>
__device__ __forceinline__ void store_eight(const struct codes_rows &rows, int second, int run, const float (&x)[8])
{
    store_once_if(rows.wanted[second], rows.at[second] + AURA_RUN * run, eight_of(x, DTYPE));
}

/* In model space. Runs 2 p and 2 p + 1 are added and subtracted as bytes, whose offset is 128 then; it is in channels 0 and 32. A
 * scale is f16, and its products with what comes off again are exact: so is what is left of a sum. */
template <int DTYPE>
__device__ __forceinline__ void store_turned(const struct codes_warp &w, const uint32_t (&byte)[CODES_RUNS][2][2],
                                             const float (&scale)[2], const struct codes_rows &rows)
{
    const float each = INT_IN_FLOAT_IS, first = w.t == 0 ? (float)(INT_IN_FLOAT_IS + OFFSET_IN_FIRST) : each;
    const float less[2] = {-each * scale[0], -each * scale[1]}, less_first[2] = {-first * scale[0], -first * scale[1]};
    const int zero[4] = {INT_IN_FLOAT, INT_IN_FLOAT, INT_IN_FLOAT, INT_IN_FLOAT};
    uint32_t a[2][2][4]; /* [difference][p] */
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint32_t low = byte[i / 4 * 2][i % 2][i / 2 % 2], high = byte[i / 4 * 2 + 1][i % 2][i / 2 % 2];
        a[0][i / 4][i % 4] = low + high, a[1][i / 4][i % 4] = low + 0x80808080u - high;
    }
#pragma unroll
    for (int run = 0; run < CODES_RUNS; run++) {
        const uint32_t(*of)[4] = a[run % 2], flip = run / 2 ? 0xfefefefeu : 0; /* 1 to -1 */
        int sum[4][4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const uint32_t(&m)[2] = w.matrix[j];
            mma_u8s8(sum[j], of[0][0], of[0][1], of[0][2], of[0][3], m[0], m[1], zero);
            mma_u8s8(sum[j], of[1][0], of[1][1], of[1][2], of[1][3], m[0] ^ flip, m[1] ^ flip, sum[j]);
        }
        const float4 *factor = (const float4 *)(w.space->factor + AURA_RUN * run + 8 * w.t);
        const float4 *reference = (const float4 *)(w.space->reference + AURA_RUN * run + 8 * w.t);
        const float4 f[2] = {factor[0], factor[1]}, r[2] = {reference[0], reference[1]};
        const float times[8] = {f[0].x, f[0].y, f[0].z, f[0].w, f[1].x, f[1].y, f[1].z, f[1].w};
        const float plus[8] = {r[0].x, r[0].y, r[0].z, r[0].w, r[1].x, r[1].y, r[1].z, r[1].w};
#pragma unroll
        for (int second = 0; second < 2; second++) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = fmaf(fmaf(__int_as_float(sum[i / 2][2 * second + i % 2]), scale[second],
                                 run < 2 && i == 0 ? less_first[second] : less[second]), times[i], plus[i]);
            store_eight<DTYPE>(rows, second, run, x);
        }
    }
}

/* In rotated space. */
template <int DTYPE>
__device__ __forceinline__ void store_as_they_are(const struct codes_warp &w, const struct dev_image_side &side,
                                                  const uint32_t (&byte)[CODES_RUNS][2][2], const __half2 (&scale)[2],
                                                  const struct codes_rows &rows)
{
#pragma unroll
    for (int run = 0; run < CODES_RUNS; run++) {
        const uint4 reference = *(const uint4 *)(w.space->reference_pair + AURA_RUN / 2 * run + 4 * w.t);
#pragma unroll
        for (int second = 0; second < 2; second++) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i += 2) {
                const __half2 level = octet<4>::template pair<false>(byte[run][second], i, side);
                const __half2 both = __hfma2(level, scale[second], half2_of(part(reference, i / 2)));
                x[i] = __low2float(both) * side.unit, x[i + 1] = __high2float(both) * side.unit;
            }
            store_eight<DTYPE>(rows, second, run, x);
        }
    }
}

/* 16 tokens of a tile that has arrived. */
template <int DTYPE, bool ROTATED>
__device__ __forceinline__ void decode_step(const struct codes_warp &w, const struct dev_unpack &u, const struct unpack_block &b,
                                            uint32_t tile, uint32_t step)
{
    const auto &stage = w.space->stage[tile % 2];
    uint32_t word[CODES_RUNS][2], byte[CODES_RUNS][2][2];
    if (w.values)
        words_of_values(word, w, stage.words, step);
    else
        words_of_keys(word, w, stage.words, step);
#pragma unroll
    for (int i = 0; i < 2 * CODES_RUNS; i++) {
        const uint32_t one[1] = {word[i / 2][i % 2]};
        octet<4>::levels(byte[i / 2][i % 2], one, 0, w.table);
    }
    __half2 scale[2];
    struct codes_rows rows;
#pragma unroll
    for (uint32_t second = 0; second < 2; second++) {
        const uint32_t token = codes_token(w, step, second);
        scale[second] = half2_of(prmt(stage.scale[token], 0, 0x1010));
        const uint32_t at = b.image.first + tile * AURA_TILE + token;
        rows.at[second] = w.rows + (at - u.first) * w.pitch, rows.wanted[second] = at >= w.from && at < w.to;
    }
    if constexpr (ROTATED) {
        store_as_they_are<DTYPE>(w, w.values ? u.im.v : u.im.k, byte, scale, rows);
    } else {
        const float number[2] = {__low2float(scale[0]), __low2float(scale[1])};
        store_turned<DTYPE>(w, byte, number, rows);
    }
}

/* All codes of the warp. */
template <int DTYPE, bool ROTATED>
__device__ __forceinline__ void decode_tiles(struct codes_warp &w, const struct dev_unpack &u, const struct unpack_block &b)
{
    const uint32_t first = (w.from - b.image.first) / AURA_TILE, end = (w.to - b.image.first + AURA_TILE - 1) / AURA_TILE;
    ask_for_tile(w, u.a.c, image_tile(u.a.c, b.image, first), first % 2);
    copies_grouped();
    make_channels(w, u, b.image);
    if constexpr (!ROTATED)
        make_matrix(w);
#pragma unroll 1
    for (uint32_t tile = first; tile < end; tile++) {
        if (tile + 1 < end)
            ask_for_tile(w, u.a.c, image_tile(u.a.c, b.image, tile + 1), (tile + 1) % 2);
        copies_grouped();
        copies_but_last_arrived();
        __syncwarp();
#pragma unroll 1
        for (uint32_t step = 0; step < 2; step++)
            decode_step<DTYPE, ROTATED>(w, u, b, tile, step);
        __syncwarp();
    }
}

/* Tokens [from, to), which are no codes: f16 rows, and 0 beyond the end. Four are loaded at a time. */
__device__ __forceinline__ void decode_rows(const struct codes_warp &w, const struct dev_unpack &u, const struct unpack_block &b,
                                            uint32_t from, uint32_t to)
{
    const struct dev_cache &c = u.a.c;
    const struct dev_view &view = w.values ? u.v : u.k;
    const uint32_t first = 4 * (4 * w.g + w.t);
    const float *inverse = u.rotated ? NULL : w.values ? c.v_inverse_balance : c.inverse_balance;
    const __half *rows = (w.values ? c.v_rows : c.k_rows) +
                         ((size_t)b.image.seq * c.kv_heads + b.image.head) * c.rows * CODES_DIM + first;
#pragma unroll 1
    for (uint32_t token = from; token < to; token += 4) {
        uint2 four[4];
#pragma unroll
        for (uint32_t i = 0; i < 4; i++)
            four[i] = token + i >= min(to, b.image.len) ? make_uint2(0, 0)
                                                        : *(const uint2 *)(rows + row_of(c, token + i) * CODES_DIM);
#pragma unroll
        for (uint32_t i = 0; i < 4; i++) {
            float x[4];
#pragma unroll
            for (int j = 0; j < 4; j++)
                x[j] = half_of(four[i], j);
            if (!u.rotated)
                undo_warp<4>(x, w.values ? c.v_sign : c.k_sign, w.values ? c.v_norm : c.k_norm, first / 4);
#pragma unroll
            for (uint32_t j = 0; j < 4; j++)
                x[j] *= inverse ? inverse[b.image.head * CODES_DIM + first + j] : 1;
            if (token + i < to)
                *(uint2 *)((uint16_t *)view.data + unpacked_at(u, view, b, token + i) + first) =
                    make_uint2(pair_of(x[0], x[1], view.dtype), pair_of(x[2], x[3], view.dtype));
        }
    }
}

extern "C" __global__ void __launch_bounds__(CODES_THREADS, CODES_BLOCKS)
    aura_unpack_b4_d128_cuda(const __grid_constant__ struct dev_unpack u)
{
    const struct unpack_block b = unpack_block_of(u);
    struct codes_warp w;
    if (b.gone) {
        unpack_nothing(u, b, false), unpack_nothing(u, b, true);
        return;
    }
    w.g = lane_number() / 4, w.t = lane_number() % 4;
    w.values = uniform(threadIdx.x / 32), w.space = (struct codes_space *)dynamic_shared() + w.values;
    w.from = min(max(b.from, b.image.from), b.to), w.to = max(w.from, min(b.to, b.image.to));
    const struct dev_view &to = w.values ? u.v : u.k;
    if (!to.data)
        return;
#pragma unroll 1
    for (uint32_t after = 0; after < 2; after++)
        decode_rows(w, u, b, after ? w.to : b.from, after ? b.to : w.from);
    if (w.from < w.to) {
#pragma unroll
        for (int i = 0; i < 4; i++)
            w.table[i] = w.values ? u.a.c.v_table[i] : u.a.c.k_table[i];
        w.rows = (uint16_t *)to.data + unpacked_at(u, to, b, u.first) + 8 * w.t, w.pitch = to.token;
        if (u.rotated && to.dtype == AURA_F16)
            decode_tiles<AURA_F16, true>(w, u, b);
        else if (u.rotated)
            decode_tiles<AURA_BF16, true>(w, u, b);
        else if (to.dtype == AURA_F16)
            decode_tiles<AURA_F16, false>(w, u, b);
        else
            decode_tiles<AURA_BF16, false>(w, u, b);
    }
}

static bool is_aligned(const struct dev_view &to)
{
    return (uintptr_t)to.data % 16 == 0 && to.seq % 8 == 0 && to.token % 8 == 0 && to.head % 8 == 0;
}

struct unpack_kernel unpack_codes_kernel(const struct dev_unpack &u)
{
    const struct dev_cache &c = u.a.c;
    const bool takes = c.k_kind == 4 && c.v_kind == 4 && c.k_dim == CODES_DIM && c.v_dim == CODES_DIM && is_aligned(u.k) &&
                       is_aligned(u.v);
    return {"unpack_b4_d128_cuda", takes ? (const void *)aura_unpack_b4_d128_cuda : NULL, CODES_THREADS,
            2 * (uint32_t)sizeof(struct codes_space)};
}
