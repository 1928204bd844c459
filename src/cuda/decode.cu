/* aura_cuda_unpack: tokens as f16 or bf16 numbers, for kernels of the caller's own.
 *
 * For codes of dims 64, 128 and 256 on both sides: a warp decodes words in registers, straight into the A of
 * products with a Walsh-Hadamard matrix of 16 channels. In rotated space the matrix is that of 1, and there are no
 * additions after it. Everything else is decoded number by number, a vector by a warp. */
#include "cache.cuh"
#include "decode.cuh"

/* ---- by products ------------------------------------------------------------------------------------------------- */

/* A warp has 64 tokens of a side, and 16 of them at a time are the rows of A; a lane (g = lane / 4, t = lane % 4)
 * has two, and of each channels 32 run + 8 t + 0 ... 7. In bits of a channel: 3 and 4 are t, 5 and up are the run;
 * of the lower three, which are the lane's own, bit 2 is `set`. A product sums over the 16 channels that differ in
 * bits 0, 1, 3 and 4, and its columns are in such an order that the lane gets the same channels back: the rest of a
 * rotation is additions within the lane, and eight channels side by side are one store.
 *
 * Where the codes come from depends on the kind: bytes_of_keys() and bytes_of_values() give levels with their
 * offset, as bytes. Words of keys run along channels, and what a lane needs of two tokens is there. Those of values
 * run along tokens; the bytes of two channels are joined. */
enum { UNPACK_TOKENS = 128, UNPACK_THREADS = 128, UNPACK_GROUP = 64 };

/* What a warp knows. A product takes a[0 ... 3] of a set: channels 0 and 1 of the first token, of the second;
 * channels 2 and 3. */
template <int W_, bool VALUES_, int EASY_>
struct unpacking {
    static constexpr int W = W_, DIM = 32 * W_, RUNS = W_ < 4 ? W_ : 4; /* RUNS: whose sums there are at a time */
    static constexpr bool VALUES = VALUES_;
    static constexpr int EASY = EASY_; /* 0, or what numbers become, where nothing has to be asked: see unpack_side() */
    uint32_t group;        /* the first token, in the image */
    bool mixed;            /* not all of the group are codes */
    bool aligned;          /* eight numbers are one store */
    uint32_t matrix[2][2]; /* B: [columns of bit 1][rows of bit 1] */
    uint32_t token[2];     /* the lane's two, in the image */
    __half2 times[2];      /* their scales */
    uint32_t byte[W_][4];  /* keys: [run][of the first token: channels 0 ... 3, 4 ... 7; of the second] */
    uint32_t joined[VALUES_ ? W_ : 1][4]; /* values: the same of the two tokens after these */
    float sum[RUNS][2][2][4]; /* [run][set][columns of bit 1][two of the first token, two of the second] */
};

/* What a block looks up, in shared memory: what sums of a channel are multiplied with, and the reference of keys. */
struct unpack_tables {
    float factor[2][256];
    uint32_t reference[128]; /* two channels */
};

__device__ __forceinline__ struct unpack_tables &unpack_shared()
{
    return *(struct unpack_tables *)dynamic_shared();
}

__device__ __forceinline__ void make_tables(const struct dev_unpack &u, const struct image_block &b)
{
    const struct dev_cache &c = u.a.c;
    struct unpack_tables &s = unpack_shared();
    for (uint32_t side = 0; side < 2; side++) {
        const uint32_t dim = side ? c.v_dim : c.k_dim, *sign = side ? c.v_sign : c.k_sign;
        const float *inverse = side ? c.v_inverse_balance : c.inverse_balance, unit = side ? u.im.v.unit : u.im.k.unit;
        for (uint32_t d = threadIdx.x; d < dim; d += UNPACK_THREADS) {
            float factor = unit * (side ? c.v_norm : c.k_norm) * (inverse ? inverse[(size_t)b.head * dim + d] : 1);
            factor = u.rotated ? unit : sign[d / 32] >> d % 32 & 1 ? -factor : factor;
            s.factor[side][d] = factor;
        }
    }
    const __half *reference_scale = (const __half *)(b.page + c.reference_scale_at);
    const float scale = c.has_reference ? __half2float(*reference_scale) * u.im.reference : 0;
    for (uint32_t i = threadIdx.x; i < c.k_dim / 2; i += UNPACK_THREADS) {
        const uint32_t codes = c.has_reference ? *(const uint16_t *)(b.page + c.reference_at + 2 * i) : 0;
        s.reference[i] = bits_of(__floats2half2_rn((float)(int8_t)codes * scale, (float)(int8_t)(codes >> 8) * scale));
    }
}

/* B of the products: rows are channels of A, whose bits 3 and 4 are the lane's t, columns those of D, whose bits are
 * g / 2. */
__device__ __forceinline__ uint32_t matrix_pair(uint32_t column_1, uint32_t row_1, bool rotated)
{
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4, column = g / 2 << 3 | column_1 << 1 | g % 2;
    uint32_t pair = 0;
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t row = t << 3 | row_1 << 1 | i, sign = __popc(row & column) & 1;
        pair |= (rotated ? (row == column ? 0x3c00u : 0u) : 0x3c00u | sign << 15) << 16 * i;
    }
    return pair;
}

/* Of two tokens of a tile, 4 g + 2 m and the next one: the bytes of octet t of every run, in their order. */
template <class U, int KIND>
__device__ __forceinline__ void bytes_of_keys(U &w, const struct dev_unpack &u, const uint8_t *tile, int m)
{
    using O = octet<KIND>;
    const uint32_t t = threadIdx.x % 4;
    const uint8_t *from = tile + threadIdx.x % 32 / 4 * 16 + m * 8;
#pragma unroll
    for (int run = 0; run < U::W; run++) {
        uint4 word[O::words], after = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int i = 0; i < O::words; i++) {
            const uint2 two = *(const uint2 *)(from + O::row(run, U::W, t, i) * 128);
            word[i] = make_uint4(two.x, two.y, 0, 0);
        }
        if (O::trellis && run + 1 < U::W) {
            const uint2 two = *(const uint2 *)(from + O::row(run + 1, U::W, t, 0) * 128);
            after.x = two.x, after.y = two.y;
        }
#pragma unroll
        for (int second = 0; second < 2; second++) {
            uint32_t byte[2];
            O::template levels_of<false>(byte, word, after, second, t, u.a.c.k_table);
            constexpr bool in_order = code<KIND>::natural || O::trellis; /* else 0 4 1 5, then 2 6 3 7 */
            w.byte[run][2 * second] = in_order ? byte[0] : prmt(byte[0], byte[1], 0x6420);
            w.byte[run][2 * second + 1] = in_order ? byte[1] : prmt(byte[0], byte[1], 0x7531);
        }
    }
}

/* Of four tokens of the lane's octet, v of a tile: bytes of two of them, joined for pairs of channels; which these
 * are says token_of_value(). */
template <class U, int KIND>
__device__ __forceinline__ void bytes_of_values(U &w, const struct dev_unpack &u, const uint8_t *tile, uint32_t v,
                                                int half)
{
    using O = octet<KIND>;
    const uint8_t *from = tile + u.a.c.v_at + threadIdx.x % 4 * 32;
#pragma unroll
    for (int i = 0; i < 2 * U::W; i++) {
        const uint32_t at = i / 2 * 128 + i % 2 * 16;
        uint4 word[O::words], after = make_uint4(0, 0, 0, 0);
#pragma unroll
        for (int j = 0; j < O::words; j++)
            word[j] = *(const uint4 *)(from + O::row(0, 1, v, j) * (4 * U::DIM) + at);
        if (O::trellis && threadIdx.x % 4 * 8 + i / 2 * 32 + i % 2 * 4 + 4 < U::DIM)
            after = *(const uint4 *)(from + at + 16);
        uint32_t four[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            uint32_t byte[2];
            O::template levels_of<true>(byte, word, after, j, v, u.a.c.v_table);
            four[j] = half ? byte[1] : byte[0];
        }
#pragma unroll
        for (int j = 0; j < 2; j++) {
            w.byte[i / 2][i % 2 * 2 + j] = prmt(four[2 * j], four[2 * j + 1], 0x5140);
            w.joined[i / 2][i % 2 * 2 + j] = prmt(four[2 * j], four[2 * j + 1], 0x7362);
        }
    }
}

__device__ __forceinline__ uint32_t token_of_value(uint32_t kind, int half, int m, int second)
{
    const bool natural = aura_bits_of(kind) > 4; /* of an octet 0 1 2 3 and 4 5 6 7, else 0 4 1 5 and 2 6 3 7 */
    return natural ? 4 * half + 2 * m + second : 2 * half + m + 4 * second;
}

/* A of a set of a run, from bytes. */
template <class U>
__device__ __forceinline__ void rows_of_codes(uint32_t (&a)[4], const U &w, const struct dev_unpack &u, int run,
                                              int set)
{
    const struct dev_image_side &side = U::VALUES ? u.im.v : u.im.k;
    const uint32_t *references = unpack_shared().reference + 16 * run + 4 * (threadIdx.x % 4) + 2 * set;
    const uint2 reference = U::VALUES ? make_uint2(0, 0) : *(const uint2 *)references;
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
        for (int second = 0; second < 2; second++) {
            const uint32_t byte = U::VALUES ? w.byte[run][2 * set + i] : w.byte[run][2 * second + set];
            const __half2 level = __hsub2(half2_of(prmt(byte, side.magic, (U::VALUES ? second : i) ? 0x4342 : 0x4140)),
                                          half2_of(side.zero));
            const __half2 offset = half2_of(i ? reference.y : reference.x);
            a[2 * i + second] = bits_of(U::VALUES ? __hmul2(level, w.times[second])
                                                  : __hfma2(level, w.times[second], offset));
        }
}

/* Four channels of a token that is no code, in units of the side: an f16 row, and 0 beyond the end. */
__device__ __noinline__ uint2 four_of_row(const struct dev_cache &c, const struct image_block &b, bool values,
                                          uint32_t token, uint32_t channel, float inverse_unit)
{
    const __half *rows = values ? c.v_rows : c.k_rows;
    const uint32_t dim = values ? c.v_dim : c.k_dim;
    const size_t row = ((size_t)b.seq * c.kv_heads + b.head) * c.rows + row_of(c, token);
    uint32_t two[2] = {0, 0};
    for (int i = 0; i < 2 && token < b.len; i++) {
        const uint32_t x = *(const uint32_t *)(rows + row * dim + channel + 2 * i);
        two[i] = bits_of(__floats2half2_rn(number_of(x & 0xffff, AURA_F16) * inverse_unit,
                                           number_of(x >> 16, AURA_F16) * inverse_unit));
    }
    return make_uint2(two[0], two[1]);
}

template <class U>
__device__ __forceinline__ void rows_of_set(uint32_t (&a)[4], const U &w, const struct dev_unpack &u,
                                            const struct image_block &b, int run, int set)
{
    const float inverse_unit = U::VALUES ? u.im.v.inverse_unit : u.im.k.inverse_unit;
    rows_of_codes(a, w, u, run, set);
    if (U::EASY || !w.mixed)
        return;
#pragma unroll
    for (int second = 0; second < 2; second++) {
        const uint32_t at = b.first + w.token[second], channel = 32 * run + 8 * (threadIdx.x % 4) + 4 * set;
        if (at >= b.from && at < b.to)
            continue;
        const uint2 four = four_of_row(u.a.c, b, U::VALUES, at, channel, inverse_unit);
        a[second] = four.x, a[2 + second] = four.y;
    }
}

/* Sums of runs [4 upper, 4 upper + 4). Of more than 128 channels the other half takes part in the products. */
template <class U>
__device__ __forceinline__ void add_up_runs(U &w, const struct dev_unpack &u, const struct image_block &b, int upper)
{
#pragma unroll
    for (int i = 0; i < U::RUNS * 2; i++) {
        uint32_t a[4];
#pragma unroll
        for (int j = 0; j < 8; j++)
            w.sum[i / 2][i % 2][j / 4][j % 4] = 0;
#pragma unroll
        for (int other = 0; other < U::W / U::RUNS; other++) {
            if (u.rotated && other != upper)
                continue;
            const uint32_t flip = other && upper && !u.rotated ? 0x80008000u : 0;
            rows_of_set(a, w, u, b, i / 2 + 4 * other, i % 2);
#pragma unroll
            for (int j = 0; j < 2; j++)
                mma_f16(w.sum[i / 2][i % 2][j], a[0], a[1], a[2], a[3], w.matrix[j][0] ^ flip, w.matrix[j][1] ^ flip);
        }
    }
    if (!u.rotated)
#pragma unroll
        for (int stride = 1; stride < 2 * U::RUNS; stride *= 2)
#pragma unroll
            for (int j = 0; j < 2 * U::RUNS; j++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    if (!(j & stride)) {
                        float &low = w.sum[j / 2][j % 2][i / 4][i % 4];
                        float &high = w.sum[(j + stride) / 2][(j + stride) % 2][i / 4][i % 4];
                        const float both = low + high;
                        high = low - high, low = both;
                    }
}

__device__ __noinline__ void store_apart(uint16_t *to, uint4 eight)
{
    for (int i = 0; i < 8; i++)
        to[i] = (uint16_t)(part(eight, i / 2) >> 16 * (i % 2));
}

/* The lane's channels of its tokens, of runs [4 upper, 4 upper + 4). */
template <class U>
__device__ __forceinline__ void store_runs(const U &w, const struct dev_unpack &u, const struct unpack_block &b,
                                           int upper)
{
    const struct dev_view &to = U::VALUES ? u.v : u.k;
    const uint32_t first = 128 * upper + 8 * (threadIdx.x % 4);
    const float *factors = unpack_shared().factor[U::VALUES] + first;
    uint16_t *row[2];
#pragma unroll
    for (int second = 0; second < 2; second++) {
        const uint32_t at = b.image.first + w.token[second];
        row[second] = U::EASY || (at >= b.from && at < b.to) ? (uint16_t *)to.data + unpacked_at(u, to, b, at) + first : NULL;
    }
#pragma unroll
    for (int run = 0; run < U::RUNS; run++) {
        const float4 low = *(const float4 *)(factors + 32 * run), high = *(const float4 *)(factors + 32 * run + 4);
        const float factor[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int second = 0; second < 2; second++) {
            float x[8];
#pragma unroll
            for (int i = 0; i < 8; i++)
                x[i] = w.sum[run][i / 4][i / 2 % 2][2 * second + i % 2] * factor[i];
            const uint4 eight = eight_of(x, U::EASY ? U::EASY : to.dtype);
            if (U::EASY || (row[second] && w.aligned))
                *(uint4 *)(row[second] + 32 * run) = eight;
            else if (row[second])
                store_apart(row[second] + 32 * run, eight);
        }
    }
}

template <class U>
__device__ __forceinline__ void finish_tokens(U &w, const struct dev_unpack &u, const struct unpack_block &b)
{
#pragma unroll 1
    for (int upper = 0; upper < U::W / U::RUNS; upper++) {
        add_up_runs(w, u, b.image, upper);
        store_runs(w, u, b, upper);
    }
}

template <class U>
__device__ __forceinline__ void unpack_keys(U &w, const struct dev_unpack &u, const struct unpack_block &b)
{
    const struct dev_cache &c = u.a.c;
#pragma unroll 1
    for (uint32_t i = 0; i < 4; i++) {
        const uint32_t in_tile = threadIdx.x % 32 / 4 * 4 + i % 2 * 2;
        const uint8_t *tile = image_tile(c, b.image, w.group / AURA_TILE + i / 2);
        const uint32_t scales = *(const uint32_t *)(tile + c.k_scale_at + 2 * in_tile);
#define UNPACK_KIND(kind, ...) \
    if (c.k_kind == kind)      \
        bytes_of_keys<U, kind>(w, u, tile, i % 2);
        AURA_CUDA_CODES(UNPACK_KIND)
#undef UNPACK_KIND
        w.token[0] = w.group + i / 2 * AURA_TILE + in_tile, w.token[1] = w.token[0] + 1;
        w.times[0] = half2_of(prmt(scales, 0, 0x1010)), w.times[1] = half2_of(prmt(scales, 0, 0x3232));
        finish_tokens(w, u, b);
    }
}

template <class U>
__device__ __forceinline__ void unpack_values(U &w, const struct dev_unpack &u, const struct unpack_block &b)
{
    const struct dev_cache &c = u.a.c;
    const uint32_t g = threadIdx.x % 32 / 4, v = g % 4;
    const uint8_t *tile = image_tile(c, b.image, w.group / AURA_TILE + g / 4);
#pragma unroll 1
    for (int i = 0; i < 4; i++) {
        if (i % 2) {
#pragma unroll
            for (int j = 0; j < 4 * U::W; j++)
                w.byte[j / 4][j % 4] = w.joined[j / 4][j % 4];
        } else {
#define UNPACK_KIND(kind, ...) \
    if (c.v_kind == kind)      \
        bytes_of_values<U, kind>(w, u, tile, v, i / 2);
            AURA_CUDA_CODES(UNPACK_KIND)
#undef UNPACK_KIND
        }
#pragma unroll
        for (int second = 0; second < 2; second++) {
            const uint32_t of_octet = token_of_value(c.v_kind, i / 2, i % 2, second);
            const uint32_t scale = *(const uint16_t *)(tile + c.v_scale_at + 16 * v + 2 * of_octet);
            w.token[second] = w.group + 8 * g + of_octet;
            w.times[second] = half2_of(prmt(scale, 0, 0x1010));
        }
        finish_tokens(w, u, b);
    }
}

template <int DIM, bool VALUES, int EASY>
__device__ __forceinline__ void unpack_group(const struct dev_unpack &u, const struct unpack_block &b, uint32_t group,
                                             bool mixed, bool aligned)
{
    struct unpacking<DIM / 32, VALUES, EASY> w;
    w.group = group, w.mixed = mixed, w.aligned = aligned;
#pragma unroll
    for (int i = 0; i < 4; i++)
        w.matrix[i / 2][i % 2] = matrix_pair(i / 2, i % 2, u.rotated);
    if constexpr (VALUES)
        unpack_values(w, u, b);
    else
        unpack_keys(w, u, b);
}

/* A side of this dim. Nearly all groups are codes, wanted whole and stored to aligned rows: code for these alone asks nothing for
 * each set of channels, so that what a warp executes is short and has no branches to fetch. */
template <int DIM, bool VALUES>
__device__ __forceinline__ void unpack_side(const struct dev_unpack &u, const struct unpack_block &b, uint32_t group)
{
    const struct dev_view &to = VALUES ? u.v : u.k;
    const uint32_t first = b.image.first + group, end = first + UNPACK_GROUP;
    const bool mixed = first < b.image.from || end > b.image.to, whole = first >= b.from && end <= b.to;
    const bool aligned = (uintptr_t)to.data % 16 == 0 && to.seq % 8 == 0 && to.token % 8 == 0 && to.head % 8 == 0;
    if (!mixed && whole && aligned && to.dtype == AURA_F16)
        unpack_group<DIM, VALUES, AURA_F16>(u, b, group, false, true);
    else if (!mixed && whole && aligned)
        unpack_group<DIM, VALUES, AURA_BF16>(u, b, group, false, true);
    else
        unpack_group<DIM, VALUES, 0>(u, b, group, mixed, aligned);
}

/* MOST: the largest dim. Of four warps, two have keys and two values. */
template <int MOST>
__device__ __forceinline__ void unpack_by_products(const struct dev_unpack &u)
{
    const struct unpack_block b = unpack_block_of(u);
    const uint32_t warp = threadIdx.x / 32, group = warp / 2 * UNPACK_GROUP, first = b.image.first + group;
    const bool values = warp % 2;
    if (b.gone) {
        unpack_nothing(u, b, false), unpack_nothing(u, b, true);
        return;
    }
    make_tables(u, b.image);
    __syncthreads();
    if (!(values ? u.v.data : u.k.data) || first >= b.to || first + UNPACK_GROUP <= b.from)
        return;
#define UNPACK_DIM(dim, ...)                                                  \
    if (dim <= MOST && (values ? u.a.c.v_dim : u.a.c.k_dim) == dim) {         \
        if (values)                                                           \
            unpack_side<dim <= MOST ? dim : 64, true>(u, b, group);           \
        else                                                                  \
            unpack_side<dim <= MOST ? dim : 64, false>(u, b, group);          \
    }
    AURA_CUDA_DIMS(UNPACK_DIM)
#undef UNPACK_DIM
}

extern "C" __global__ void __launch_bounds__(UNPACK_THREADS, 4)
    aura_unpack_d128_cuda(const __grid_constant__ struct dev_unpack u)
{
    unpack_by_products<128>(u);
}

extern "C" __global__ void __launch_bounds__(UNPACK_THREADS, 2)
    aura_unpack_d256_cuda(const __grid_constant__ struct dev_unpack u)
{
    unpack_by_products<256>(u);
}

/* ---- number by number -------------------------------------------------------------------------------------------- */

/* The undoing of a rotation has the transpose of its Paley factor. */
struct unpack_space {
    uint32_t k_undo[32];
    float y[IMAGE_THREADS / 32][2][AURA_TILE_DIM];
};

extern "C" __global__ void __launch_bounds__(IMAGE_THREADS) aura_unpack_any_cuda(const __grid_constant__ struct dev_unpack u)
{
    const struct dev_cache &c = u.a.c;
    const struct dev_codecs *p = c.codecs;
    const struct unpack_block b = unpack_block_of(u);
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32;
    struct unpack_space &s = *(struct unpack_space *)dynamic_shared();
    if (b.gone) {
        unpack_nothing(u, b, false), unpack_nothing(u, b, true);
        return;
    }
    if (warp == 0) {
        uint32_t column = 0;
        for (uint32_t j = 0; j < 32; j++)
            column |= (p->paley[0][j] >> lane & 1) << j;
        s.k_undo[lane] = column;
    }
    __syncthreads();
    float *y = s.y[warp][0], *space = s.y[warp][1];
    for (uint32_t i = 2 * b.from + warp; i < 2 * b.to; i += IMAGE_THREADS / 32) {
        const bool values = i % 2;
        const struct dev_view &to = values ? u.v : u.k;
        const uint32_t dim = values ? c.v_dim : c.k_dim, token = i / 2;
        if (!to.data)
            continue;
        __syncwarp();
        for (uint32_t d = lane; d < dim; d += 32)
            y[d] = stored_number(c, b.image, values, token, d);
        __syncwarp();
        if (!u.rotated && (values ? c.v_rows : c.k_rows)) {
            hadamard_shared(y, space, values ? p->paley[2] : s.k_undo, values ? p->v_inner : p->k_inner,
                            values ? p->v_outer : p->k_outer);
            sign_and_scale(y, dim, values ? c.v_sign : c.k_sign, values ? c.v_norm : c.k_norm);
        }
        for (uint32_t d = lane; d < dim; d += 32) {
            const float *inverse = u.rotated ? NULL : values ? c.v_inverse_balance : c.inverse_balance;
            store_element(to.data, to.dtype, unpacked_at(u, to, b, token) + d,
                          inverse ? y[d] * inverse[(size_t)b.image.head * dim + d] : y[d]);
        }
    }
}

/* ---- the call ---------------------------------------------------------------------------------------------------- */

static bool is_by_products(const struct dev_cache &c)
{
    bool k = false, v = false;
#define IS_DIM(dim, ...) k |= c.k_dim == dim, v |= c.v_dim == dim;
    AURA_CUDA_DIMS(IS_DIM)
#undef IS_DIM
    return k && v && aura_is_packed(c.k_kind) && aura_is_packed(c.v_kind);
}

static bool is_good_view(const aura_cuda_view *v)
{
    return !v->data || v->dtype == AURA_F16 || v->dtype == AURA_BF16;
}

static aura_status check_unpack(const aura_cuda_cache *c, const char *call, const aura_cuda_unpack_args *a)
{
    if (a->size != sizeof *a)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: args.size is %zu, this library knows %zu", call, a->size,
                                 sizeof *a);
    if (!a->seqs || (!a->k.data && !a->v.data))
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: %s NULL", call, a->seqs ? "k.data and v.data are" : "seqs is");
    if (a->n_seqs == 0 || a->n_seqs > ATTEND_MAX_SEQS || (uint64_t)a->n_seqs * c->dev.kv_heads > 65535 || a->rotated > 1)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT,
                                 "%s: %u sequences (1 to %d, with their KV heads 65535 at most) or rotated %u (0 or 1)", call,
                                 a->n_seqs, (int)ATTEND_MAX_SEQS, a->rotated);
    if (a->tokens == 0 || a->first >= 1ull << 31 || a->first + a->tokens > 1ull << 31)
        return aura_backend_fail(c->ctx, AURA_BAD_ARGUMENT, "%s: tokens %llu and %u more (at least 1, below 2^31)", call,
                                 (unsigned long long)a->first, a->tokens);
    if (!is_good_view(&a->k) || !is_good_view(&a->v))
        return aura_backend_fail(c->ctx, AURA_UNSUPPORTED, "%s: k.dtype %d or v.dtype %d is not f16 or bf16", call,
                                 (int)a->k.dtype, (int)a->v.dtype);
    return AURA_OK;
}

static struct unpack_kernel unpack_kernel_of(const struct dev_unpack &u)
{
    const struct dev_cache &c = u.a.c;
    const struct unpack_kernel codes = unpack_codes_kernel(u);
    if (codes.run)
        return codes;
    if (!is_by_products(c))
        return {"unpack_any_cuda", (const void *)aura_unpack_any_cuda, IMAGE_THREADS, sizeof(struct unpack_space)};
    if (c.k_dim > 128 || c.v_dim > 128)
        return {"unpack_d256_cuda", (const void *)aura_unpack_d256_cuda, UNPACK_THREADS, sizeof(struct unpack_tables)};
    return {"unpack_d128_cuda", (const void *)aura_unpack_d128_cuda, UNPACK_THREADS, sizeof(struct unpack_tables)};
}

extern "C" aura_status aura_cuda_unpack(const aura_cuda_cache *c, const aura_cuda_unpack_args *args, struct CUstream_st *stream)
{
    const char *call = "aura_cuda_unpack";
    if (!c || !args)
        return aura_backend_fail(c ? c->ctx : NULL, AURA_BAD_ARGUMENT, "%s: %s is NULL", call, c ? "args" : "cache");
    aura_status status = check_unpack(c, call, args);
    if (status)
        return status;
    struct dev_unpack u = {};
    u.a.c = c->dev, u.a.seqs = args->seqs, u.a.n_seqs = args->n_seqs;
    u.im = aura_cuda_images_of(&c->dev);
    u.k = view_of(&args->k, args->tokens, c->dev.kv_heads, c->dev.k_dim);
    u.v = view_of(&args->v, args->tokens, c->dev.kv_heads, c->dev.v_dim);
    u.first = (uint32_t)args->first, u.tokens = args->tokens, u.rotated = args->rotated;
    const struct unpack_kernel k = unpack_kernel_of(u);
    on_device here(c->device);
    status = cuda_status(c->ctx, call, aura_cuda_allow_shared(k.run, k.shared_bytes), "preparing a kernel");
    const uint32_t blocks = (u.first + u.tokens - 1) / IMAGE_TOKENS - u.first / IMAGE_TOKENS + 1;
    void *params[] = {&u};
    const struct launch how = {dim3(blocks * c->dev.kv_heads, u.a.n_seqs), k.threads, k.shared_bytes, stream};
    return status ? status : aura_cuda_launch(c, call, k.name, k.run, how, params);
}
