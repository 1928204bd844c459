/* Codes of rows in registers, and tables of their levels in shared memory: two f16 numbers for each. */
#ifndef AURA_CUDA_ROWS_TABLE_CUH
#define AURA_CUDA_ROWS_TABLE_CUH

#include "rows_side.cuh"

/* ---- codes in registers ------------------------------------------------------------------------------------------------ */

/* BYTES bytes, which begin at a multiple of the largest power of two that divides them. */
template <int BYTES>
__device__ __forceinline__ void load_words(uint32_t (&w)[(BYTES + 3) / 4], const uint8_t *p, bool wanted)
{
#pragma unroll
    for (int i = 0; i < (BYTES + 3) / 4; i++)
        w[i] = 0;
    if (!wanted)
        return;
    if constexpr (BYTES % 16 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 16; i++) {
            const uint4 v = load_once(p + 16 * i);
            w[4 * i] = v.x, w[4 * i + 1] = v.y, w[4 * i + 2] = v.z, w[4 * i + 3] = v.w;
        }
    } else if constexpr (BYTES % 8 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 8; i++) {
            const uint2 v = ((const uint2 *)p)[i];
            w[2 * i] = v.x, w[2 * i + 1] = v.y;
        }
    } else if constexpr (BYTES % 4 == 0) {
#pragma unroll
        for (int i = 0; i < BYTES / 4; i++)
            w[i] = ((const uint32_t *)p)[i];
    } else {
#pragma unroll
        for (int i = 0; i < BYTES / 2; i++)
            w[i / 2] |= (uint32_t)((const uint16_t *)p)[i] << 16 * (i % 2);
    }
}

/* N bits from bit `at` on. */
template <int N, int WORDS>
__device__ __forceinline__ uint32_t bits_at(const uint32_t (&w)[WORDS], int at)
{
    const uint32_t low = w[at / 32] >> at % 32;
    const uint32_t high = at % 32 + N > 32 ? w[(at / 32 + 1) % WORDS] << (32 - at % 32) % 32 : 0;
    return (low | high) & ((1u << N) - 1);
}

/* f16 numbers side by side, as their high and low parts; of plain numbers there is no low part. */
struct two_parts {
    uint32_t high, low;
};

/* Levels of codes, in shared memory. Up to 4 bits an entry is of a pair of codes, above of one. Entries are 256 bytes apart, and
 * those of 4 and 8 bits begin at a multiple of 64 KB: then one prmt makes an address of a byte of codes. What a lane reads is a
 * copy of its own, so that no two meet in a bank:
 *
 *     keys     bytes 0 to 127: both parts of a pair, 16 copies; or of a code, 32 copies
 *     values   bytes 128 to 255: the high parts of a pair, 32 copies, the low ones 64 KB further; or both of a code
 *
 * Parts of a pair of keys are rows g and g + 8 of A, so that they come into the registers where the product wants them. */
enum { TABLE_STRIDE = 256, TABLE_VALUES = 128, TABLE_SPACE = 65536 };

template <int BITS>
struct table {
    static constexpr bool PAIRS = BITS <= 4;
    static constexpr int ENTRIES = BITS == 16 ? 0 : PAIRS ? 1 << 2 * BITS : 1 << BITS, COPIES = PAIRS ? 16 : 32;
    uint32_t mine; /* where the copy of this lane is, of entry 0 */
    __device__ __forceinline__ uint32_t at(uint32_t index) const
    {
        return index * TABLE_STRIDE + mine;
    }
    __device__ __forceinline__ uint32_t at_byte(uint32_t word, int byte) const
    {
        return prmt(word, mine, 0x7604 | (uint32_t)byte << 4);
    }
    /* Of two single codes. */
    __device__ __forceinline__ static struct two_parts singles(uint32_t a, uint32_t b)
    {
        const uint32_t x = shared_at<uint32_t>(a), y = shared_at<uint32_t>(b);
        return {prmt(x, y, 0x5410), prmt(x, y, 0x7632)};
    }
    __device__ __forceinline__ static struct two_parts key_pair(uint32_t place)
    {
        const uint2 v = shared_at<uint2>(place);
        return {v.x, v.y};
    }
    __device__ __forceinline__ static struct two_parts value_pair(uint32_t place)
    {
        return {shared_at<uint32_t>(place), shared_at<uint32_t>(place + TABLE_SPACE)};
    }
};

/* The power of two that brings x to 2^14 ... 2^15; 1 where that means nothing. */
__device__ __forceinline__ float unit_for(float x)
{
    const int exponent = (int)(__float_as_uint(x) >> 23 & 255);
    return exponent == 0 || exponent == 255 ? 1 : __uint_as_float((uint32_t)min(max(254 + 14 - exponent, 1), 254) << 23);
}

/* x in f16, and what is missing. */
__device__ __forceinline__ uint32_t parts_of(float x)
{
    const __half high = __float2half_rn(x);
    const float back = __half2float(high);
    const __half low = __float2half_rn(isfinite(back) ? x - back : back);
    return (uint32_t)__half_as_ushort(high) | (uint32_t)__half_as_ushort(low) << 16;
}

/* The table of a side at `to`, by all threads of the block; returns what its levels were multiplied with. */
template <int BITS, bool VALUES>
__device__ __forceinline__ float make_table(uint8_t *to, const struct dev_rows_side &s)
{
    if constexpr (BITS == 16) {
        return 1;
    } else {
        using T = table<BITS>;
        constexpr uint32_t COPIES = VALUES ? 32 : T::COPIES;
        __shared__ float levels[256];
        float largest = 0;
        __syncthreads();
        load_book(levels, s);
        __syncthreads();
        for (uint32_t i = threadIdx.x % 32; i < 1u << BITS; i += 32)
            largest = isfinite(levels[i]) ? fmaxf(largest, fabsf(levels[i])) : largest;
        for (int far = 16; far; far /= 2)
            largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
        const float unit = unit_for(largest);
        const auto level = [&](uint32_t code) { return parts_of(levels[code & ((1u << BITS) - 1)] * unit); };
        for (uint32_t i = threadIdx.x; i < T::ENTRIES * COPIES; i += blockDim.x) {
            const uint32_t a = level(i / COPIES), b = level(i / COPIES >> BITS);
            const uint32_t high = prmt(a, b, 0x5410), low = prmt(a, b, 0x7632);
            uint8_t *copy = to + i / COPIES * TABLE_STRIDE + i % COPIES * (128 / COPIES);
            if constexpr (!T::PAIRS)
                *(uint32_t *)copy = a;
            else if constexpr (!VALUES)
                *(uint2 *)copy = make_uint2(high, low);
            else
                *(uint32_t *)copy = high, *(uint32_t *)(copy + TABLE_SPACE) = low;
        }
        return unit;
    }
}

#endif
