/* Rows of queries and results on their way in and out of prefill_wgmma.cu; S is its shape.
 *
 * Rows are turned (by a Walsh-Hadamard transform, or not at all) by a product with a matrix of 1 and -1, so that each number
 * crosses no lanes but in the tensor product. What goes in is two f16 that add up to it: what is lost is 2^-22 of the largest of
 * its row.
 *
 * A lane's numbers y[i][4 j + 2 r + e] are, of its row r, columns i * O_COLUMNS + 8 j + 2 t + e: as products leave them, and as
 * images want queries. The caller's tensors have the same registers spread over channels: spread_channel() of the column. Then a
 * lane has eight channels side by side for every four j, and loads and stores 16 bytes of f16 at once. The product takes either
 * order to the other, and with the same matrix: that of a column's spread channel and a plain row is what that of a plain column
 * and a row's spread channel is, since the transform has as many -1 as its two numbers share bits. */
#ifndef AURA_CUDA_PREFILL_ROWS_CUH
#define AURA_CUDA_PREFILL_ROWS_CUH

#include "prefill.cuh"
#include "words_sm90.cuh"

/* The channel of a column, and the column of a channel. */
__device__ __forceinline__ uint32_t spread_channel(uint32_t column)
{
    return (column & ~30u) | (column >> 2 & 6) | (column << 2 & 24);
}

/* Of the matrix, rows `row`, which is even, and the next: (-1)^(bits that row and channel share), or 1 where they are the same. */
__device__ __forceinline__ uint32_t turn_of(uint32_t channel, uint32_t row, bool rotated)
{
    if (rotated)
        return (__popc(channel & row) % 2 ? 0xbc00bc00 : 0x3c003c00) ^ channel << 31;
    return channel / 2 == row / 2 ? 0x3c00u << channel % 2 * 16 : 0;
}

/* The matrix, by the threads of both groups. */
template <class S>
__device__ __forceinline__ void make_turn(uint8_t *matrix, bool rotated)
{
    constexpr uint32_t N = S::O_COLUMNS;
    static_assert(N * N * 2 <= S::STAGE_BYTES, "it lies where the first keys will");
#pragma unroll 1 /* done once for a tile, code costs more time to fetch than to execute */
    for (uint32_t at = threadIdx.x - 128; at < N * N / 8; at += 256) {
        const uint32_t column = at / (N / 8), first = at % (N / 8) * 8, channel = spread_channel(column);
        *(uint4 *)image_chunk(matrix + first / 64 * (N * 128), column, first % 64 / 8) =
            make_uint4(turn_of(channel, first, rotated), turn_of(channel, first + 2, rotated),
                       turn_of(channel, first + 4, rotated), turn_of(channel, first + 6, rotated));
    }
    fence_products();
    meet_groups();
}

/* A power of two that takes the largest number of a lane's row r to 2^14 or just above, and down[r], which takes back what it does:
 * 0 where all are next to nothing, NaN where one is not finite. */
template <class S>
__device__ __forceinline__ void scale_rows(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], float (&down)[2])
{
    float most[2] = {0, 0}, up[2];
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++)
            most[j / 2 % 2] = largest_or_nan(most[j / 2 % 2], fabsf(y[i][j]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = largest_or_nan(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = largest_or_nan(most[r], __shfl_xor_sync(~0u, most[r], 2));
        const uint32_t exponent = __float_as_uint(most[r]) >> 23 & 255;
        up[r] = exponent < 27 ? 0 : __uint_as_float((268 - exponent) << 23);
        down[r] = exponent < 27 ? 0 : exponent == 255 ? NAN : __uint_as_float((exponent - 14) << 23);
    }
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++)
            y[i][j] *= up[j / 2 % 2];
}

/* Turns rows: times down[r] of scale_rows(), they are then what they were, or its transform without its norm. `matrix` is space
 * that both groups share. */
template <class S>
__device__ __forceinline__ void turn_rows(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], uint8_t *matrix, bool rotated, float (&down)[2])
{
    constexpr int N = S::O_COLUMNS;
    make_turn<S>(matrix, rotated);
    if (S::O_PARTS == 2 && rotated)
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float a = y[0][j], b = y[S::O_PARTS - 1][j];
            y[0][j] = a + b, y[S::O_PARTS - 1][j] = a - b;
        }
    scale_rows<S>(y, down);
    const uint64_t columns = operand_at(matrix);
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++) {
        uint32_t high[N / 4], low[N / 4];
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            const __half2 two = __floats2half2_rn(y[i][2 * j], y[i][2 * j + 1]);
            high[j] = bits_of(two);
            low[j] = bits_of(__floats2half2_rn(y[i][2 * j] - __low2float(two), y[i][2 * j + 1] - __high2float(two)));
        }
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            y[i][j] = 0;
        sums_are_there(y[i]);
        products_begin();
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            product_registers(y[i], &high[4 * k], columns + k / 4 * (N * 8) + k % 4 * 2);
            product_registers(y[i], &low[4 * k], columns + k / 4 * (N * 8) + k % 4 * 2);
        }
        products_grouped();
        products_but_last_done<0>();
        sums_are_there(y[i]);
    }
}

/* Numbers of a row that begins there can be loaded and stored 16 bytes at once. */
__device__ __forceinline__ bool is_wide(const struct dev_view &view, int64_t row)
{
    return ((uintptr_t)view.data + row * (view.dtype == AURA_F32 ? 4 : 2)) % 16 == 0;
}

/* Lane (g, t) of warp w of a group: of rows 16 w + g and 16 w + g + 8. */
template <class S>
__device__ __forceinline__ uint32_t lane_first_row()
{
    return (threadIdx.x / 128 - 1) * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
}

/* The channel of the first of the eight numbers y[i][16 m] ... of a lane, spread. */
template <class S>
__device__ __forceinline__ uint32_t lane_channel(int i, int m)
{
    return i * S::O_COLUMNS + 32 * m + threadIdx.x % 4 * 8;
}

/* A number's place in y of row r: the j-th of those that are spread. */
__device__ __forceinline__ constexpr int place_of(int r, int j)
{
    return j / 2 * 4 + 2 * r + j % 2;
}

/* The lane's numbers of a row of the caller's, spread, as row r. All are on their way at once where they can be loaded 16 bytes at
 * once, but for those of f32, which are twice as many. (A branch for each type makes ptxas let products wait for each other.) */
template <class S>
__device__ __forceinline__ void load_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, const struct dev_view &view, int64_t from)
{
    if (view.dtype == AURA_F32 || !is_wide(view, from)) {
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 4; j++)
                y[i][place_of(r, j)] = load_element(view.data, view.dtype, from + lane_channel<S>(i, j / 8) + j % 8);
        return;
    }
    uint4 word[S::O_PARTS][S::O_COLUMNS / 32];
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++)
            word[i][m] = *(const uint4 *)((const uint16_t *)view.data + from + lane_channel<S>(i, m));
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++) {
            const uint4 &v = word[i][j / 8];
            const uint32_t two = j % 8 < 2 ? v.x : j % 8 < 4 ? v.y : j % 8 < 6 ? v.z : v.w;
            y[i][place_of(r, j)] = number_of(j % 2 ? two >> 16 : two & 0xffff, view.dtype);
        }
}

/* Row r times factors of channels. */
template <class S>
__device__ __forceinline__ void times_factors(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, const float *factors)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j += 4) {
            const float4 f = *(const float4 *)&factors[lane_channel<S>(i, j / 8) + j % 8];
            y[i][place_of(r, j)] *= f.x, y[i][place_of(r, j + 1)] *= f.y;
            y[i][place_of(r, j + 2)] *= f.z, y[i][place_of(r, j + 3)] *= f.w;
        }
}

/* The signs of the rotation, of both rows. */
template <class S>
__device__ __forceinline__ void flip_rows(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], const uint32_t *sign)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++) {
            const uint32_t word = sign[lane_channel<S>(i, m) / 32] >> threadIdx.x % 4 * 8;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &x = y[i][16 * m + place_of(r, j)];
                    x = word >> j & 1 ? -x : x;
                }
        }
}

/* The lane's queries, spread: balanced, and with the signs of the rotation. */
template <class S>
__device__ __forceinline__ void load_queries(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], const struct dev_prefill &p,
                                             const struct prefill_work &w)
{
    const struct dev_attend &a = p.a;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const row_info row = prefill_row(p, w, lane_first_row<S>() + 8 * r);
        const int64_t from = w.job * a.q.seq + row.query * a.q.token + row.head * a.q.head;
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 4; j++)
                y[i][place_of(r, j)] = 0;
        if (row.there)
            load_row<S>(y, r, a.q, from);
        if (a.c.inverse_balance)
            times_factors<S>(y, r, a.c.inverse_balance + (size_t)w.head * S::D);
    }
    if (a.c.k_rows)
        flip_rows<S>(y, a.c.k_sign);
}

/* Whether a lane's numbers of row r are finite, in the caller's type. */
template <class S>
__device__ __forceinline__ bool is_finite(const float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, uint32_t dtype)
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            most = largest_or_nan(most, fabsf(y[i][place_of(r, j)]));
    return most < aura_first_infinite(dtype);
}

/* Row r of a lane, turned, to the caller's tensor. */
template <class S, uint32_t DTYPE>
__device__ __forceinline__ void store_row_of(uint8_t *row, const float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j += DTYPE == AURA_F32 ? 4 : 8) {
            const float *x = &y[i][place_of(r, j)];
            const uint32_t channel = lane_channel<S>(i, j / 8) + j % 8;
            if (DTYPE == AURA_F32)
                *(float4 *)(row + 4 * channel) = make_float4(x[0], x[1], x[4], x[5]);
            else
                *(uint4 *)(row + 2 * channel) = make_uint4(pair_of(x[0], x[1], DTYPE), pair_of(x[4], x[5], DTYPE),
                                                           pair_of(x[8], x[9], DTYPE), pair_of(x[12], x[13], DTYPE));
        }
}

template <class S>
__device__ __forceinline__ void store_row(const struct dev_view &view, int64_t to, const float (&y)[S::O_PARTS][S::O_COLUMNS / 2],
                                          int r)
{
    uint8_t *row = (uint8_t *)view.data + to * (view.dtype == AURA_F32 ? 4 : 2);
    const bool wide = is_wide(view, to);
    if (wide && view.dtype == AURA_F16)
        return store_row_of<S, AURA_F16>(row, y, r);
    if (wide && view.dtype == AURA_BF16)
        return store_row_of<S, AURA_BF16>(row, y, r);
    if (wide)
        return store_row_of<S, AURA_F32>(row, y, r);
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            store_element(view.data, view.dtype, to + lane_channel<S>(i, j / 8) + j % 8, y[i][place_of(r, j)]);
}

/* Does something to each of the lane's numbers of a row. */
template <class S, class CHANGE>
__device__ __forceinline__ void change_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, const CHANGE &change)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            change(y[i][place_of(r, j)]);
}

template <class S>
__device__ __forceinline__ void times_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, float by)
{
    change_row<S>(y, r, [by](float &x) { x *= by; });
}

template <class S>
__device__ __forceinline__ void set_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, float to)
{
    change_row<S>(y, r, [to](float &x) { x = to; });
}

#endif
