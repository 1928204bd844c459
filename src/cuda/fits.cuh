/* Finds the best of nine fits for a vector, by half a warp. The answer is that of the CPU, where the last bits of sums decide,
 * which depend on the order of additions: see ref.c.
 *
 * Up to 4 bits, half a warp makes these sums only for fits that may be the best, and that is nearly always one. The level of a
 * number changes where the number crosses a threshold. All thresholds of all fits cut the line of magnitudes into about 60
 * buckets; in a bucket the level is known for every fit:
 *
 *     magnitudes ─ cells ─▶ buckets: how many, and their sum ─ times the level of (fit, bucket) ─▶ <y, c> and |c|^2 of every fit
 *
 * Counts and sums of buckets are whole numbers, so the order of additions does not matter, and tensor cores can multiply them
 * as bytes. Fits whose cosines are within the error of the largest one are compared by the sums of the CPU.
 *
 * From 5 bits on there would be too many buckets: the sums of the CPU are made for all fits. */
#ifndef AURA_CUDA_FITS_CUH
#define AURA_CUDA_FITS_CUH

#include "levels.cuh"

enum { ENCODE_FITS = 9, FIT_OF_1 = 4 };

/* <y, c> and |c|^2 of a vector and its levels. */
struct fitted {
    float dot, size2;
};

/* The sum over a vector of what the lanes have summed up. */
__device__ __forceinline__ float half_warp_sum(float x)
{
#pragma unroll
    for (int far = 8; far; far /= 2)
        x = __fadd_rn(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

__device__ __forceinline__ float half_warp_max(float x)
{
#pragma unroll
    for (int far = 8; far; far /= 2)
        x = fmaxf(x, __shfl_xor_sync(~0u, x, far));
    return x;
}

/* Sums over all numbers of the vector; calls f(k, code) for each. */
template <class Numbers, class Levels, class F>
__device__ __forceinline__ struct fitted fit_levels(const Numbers &numbers, const Levels &levels, F f)
{
    float dots = 0, squares = 0;
    numbers.each([&](float y, uint32_t k) { return levels.find(y, k); },
                 [&](float y, uint32_t k, const struct level_and_code &c) {
                     dots = __fadd_rn(dots, __fmul_rn(Levels::MAGNITUDE ? fabsf(y) : y, c.level));
                     squares = __fadd_rn(squares, __fmul_rn(c.level, c.level));
                     f(k, c.code);
                 });
    return {half_warp_sum(dots), half_warp_sum(squares)};
}

/* What a vector of this size is multiplied with: the CPU's product and quotient. */
__device__ __forceinline__ float factor_of(const struct dev_encoder *e, int fit, float size)
{
    return __fdiv_rn(__fmul_rn(e->fits[fit], e->unit), size);
}

/* ---- up to 4 bits: buckets --------------------------------------------------------------------------------------------- */

/* A bucket is a word: the sum in SUM_BITS bits, above it the count. Two tallies of a warp begin in different banks. */
enum { BUCKETS = 64, TALLY_PITCH = BUCKETS + 16, SUM_BITS = 24 };

/* A magnitude is counted in parts, of which a cell has 2^CELL_BITS. There are fewer than 2^23 parts, so they fit in the last
 * bits of a float between 2^23 and 2^24. A cut is where a threshold of some fit is. Roundings may move a number past a cut: two
 * on either side of the comparison, of up to half a part each, and part and cut are whole numbers. So a number up to 3 parts
 * from a cut may be on either side of it. Numbers in a stretch of UNSURE parts around a cut count as such; these few are
 * compared as the CPU compares them. A cell has at most one stretch, and its word says where: word + part has the bucket from
 * bit 16 on, and below that how far the number is above the beginning of the stretch, modulo 2^16. */
enum { CELL_BITS = 15, CELLS = 1 << (23 - CELL_BITS), UNSURE = 9 };
#define PARTS_0 0x1p23f
#define PARTS_0_BITS 0x4b000000

/* A set of fits: bit 4 f is fit f, bit 29 the last one. likely_fits() finds them at these bits. */
enum { ALL_FITS = 0x31111111 };

__device__ __forceinline__ int first_fit(uint32_t fits)
{
    return (__ffs((int)fits) + 2) / 4;
}

/* Finds levels by buckets: what take_tally finds is kept where numbers are in registers, else found again. A number that may be on
 * either side of a cut is where the CPU's comparison has it, at the fit whose cut it is. */
template <int N>
struct bucket_levels {
    static constexpr bool MAGNITUDE = true;
    const struct dev_encoder *e;
    const uint8_t *codes; /* [bucket], of numbers above 0 */
    float cells, size;
    uint32_t flip;        /* from their codes to those of others */
    uint32_t kept[N ? N : 1];
    __device__ __forceinline__ bucket_levels(const struct dev_encoder *e_, float one, float size_)
        : e(e_), codes(NULL), size(size_), flip((1u << e_->bits) - 1)
    {
        cells = __fmul_rn(one, e->cells);
    }
    __device__ __forceinline__ void take(int fit, float)
    {
        codes = e->code[fit];
    }
    /* The bucket from bit 16 on. */
    __device__ __forceinline__ uint32_t place(float y) const
    {
        const uint32_t part = __float_as_uint(fminf(fmaf(fabsf(y), cells, PARTS_0), 0x1.fffffep23f));
        return e->cell[(int)(part >> CELL_BITS) - (PARTS_0_BITS >> CELL_BITS)] + part;
    }
    static __device__ __forceinline__ bool unsure(uint32_t at)
    {
        return (at & 0xffff) < UNSURE;
    }
    /* The place of a number that is unsure, and in the bucket above the cut so far. `agree` becomes false where two fits have
     * that cut and have the number on different sides of it. */
    __device__ __forceinline__ uint32_t decided(float y, uint32_t at, bool &agree) const
    {
        const uint32_t bucket = at >> 16;
        struct window_levels exact(e);
        bool above = false, below = false;
#pragma unroll 1
        for (int fit = 0; fit < ENCODE_FITS; fit++) {
            const uint32_t code = e->code[fit][bucket];
            if (code == e->code[fit][bucket - 1])
                continue;
            exact.take(fit, factor_of(e, fit, size));
            const bool is_above = (exact.find(y, 0).code & 0xffff) == (y > 0 ? code : code ^ flip);
            above |= is_above, below |= !is_above;
        }
        agree &= !(above && below);
        return above ? at : at - (1u << 16);
    }
    __device__ __forceinline__ uint32_t sure_place(float y, bool &agree) const
    {
        const uint32_t at = place(y);
        return unsure(at) ? decided(y, at, agree) : at;
    }
    /* Decides the unsure ones among the places in registers, one after the other. This is rare. */
    template <class Numbers>
    __device__ __forceinline__ void decide_kept(const Numbers &numbers, bool &agree)
    {
#pragma unroll 1
        for (int k = 0; k < N; k++) {
            float y = 0;
            uint32_t at = UNSURE;
#pragma unroll
            for (int i = 0; i < N; i++) {
                y = i == k ? numbers.y[i] : y;
                at = i == k ? kept[i] : at;
            }
            if (unsure(at))
                at = decided(y, at, agree);
#pragma unroll
            for (int i = 0; i < N; i++)
                kept[i] = i == k ? at : kept[i];
        }
    }
    __device__ __forceinline__ struct level_and_code find(float y, uint32_t k) const
    {
        bool agree;
        const uint32_t code = codes[(N ? kept[k / 16] : sure_place(y, agree)) >> 16];
        return {e->level[code], y > 0 ? code : code ^ flip};
    }
};

/* The tally of a vector; false where it may be wrong. `one` is the factor of FIT_OF_1. */
template <class Numbers, int N>
__device__ __forceinline__ bool take_tally(uint32_t *tally, struct bucket_levels<N> &levels, const Numbers &numbers, float one)
{
    const float share = __fmul_rn(one, levels.e->share);
    bool agree = true;
    if constexpr (N > 0) {
        uint32_t nearest = UNSURE;
        numbers.each([&](float y, uint32_t) { return levels.place(y); },
                     [&](float, uint32_t k, uint32_t at) {
                         levels.kept[k / 16] = at;
                         nearest = min(nearest, at & 0xffff);
                     });
        if (levels.unsure(nearest))
            levels.decide_kept(numbers, agree);
    }
    numbers.each([&](float y, uint32_t k) { return N ? levels.kept[k / 16] : levels.sure_place(y, agree); },
                 [&](float y, uint32_t, uint32_t at) {
                     atomicAdd(&tally[at >> 16], __float_as_uint(fmaf(fabsf(y), share, PARTS_0)) - PARTS_0_BITS + (1u << SUM_BITS));
                 });
    return agree;
}

/* Bytes `plane` of four words. */
__device__ __forceinline__ uint32_t plane_of(uint4 w, uint32_t plane)
{
    const uint32_t both = plane | (plane + 4) << 4;
    return prmt(prmt(w.x, w.y, both), prmt(w.z, w.w, both), 0x5410);
}

/* The whole sum of one vector, in all four lanes of a group of four. Before, a product with a tally is in columns 2 t and 2 t + 1:
 * lanes with t 0 and 2 have bytes 0 and 1 of the sum, lanes with t 1 and 3 byte 2 and the counts. */
__device__ __forceinline__ int whole_sum(int low, int high, bool odd)
{
    const int part = odd ? low << 16 : low + (high << 8);
    return part + __shfl_xor_sync(~0u, part, 1);
}

/* The fits that may be the best, as bits, of the vector of this half of the warp; `tally` is the first of two. The weights are
 * levels, low and high bytes of their squares: fit g of rows g, g + 8, g + 16, the last fit of rows 24, 25 and 26; and row 27
 * is 1. */
__device__ __forceinline__ uint32_t likely_fits(const uint32_t *tally, const struct dev_encoder *e)
{
    const uint32_t lane = lane_number(), plane = lane / 4 % 4;
    const uint32_t *words = tally + lane / 16 * TALLY_PITCH + lane % 4 * 4;
    uint32_t b[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        b[i] = plane_of(*(const uint4 *)(words + 16 * i), plane);
    int x[2][4] = {};
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint4 w = e->weight[i][lane];
        mma_u8u8(x[i / 2], w.x, w.y, w.z, w.w, b[i % 2 * 2], b[i % 2 * 2 + 1], x[i / 2]);
    }
    const bool odd = lane & 1;
    const int dot = whole_sum(x[0][0], x[0][1], odd), last_dot = whole_sum(x[1][2], x[1][3], odd);
    const int size2 = x[0][3] + (x[1][1] << 8);
    const int last_size2 = __shfl_sync(~0u, x[1][3], lane + 4) + (__shfl_sync(~0u, x[1][3], lane + 8) << 8);
    const float cosine = odd ? (float)dot * rsqrt_approx((float)size2) : 0;
    const float last_cosine = odd && lane < 4 ? (float)last_dot * rsqrt_approx((float)last_size2) : 0;
    float largest = fmaxf(cosine, last_cosine);
#pragma unroll
    for (int far = 4; far < 32; far *= 2)
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, far));
    const uint32_t t = lane / 16 * 2 + 1; /* where the vector of this half is */
    const uint32_t fits = __ballot_sync(~0u, cosine >= largest - e->margin) >> t & 0x11111111;
    const uint32_t last = __ballot_sync(~0u, last_cosine >= largest - e->margin) >> t & 1;
    const uint32_t overflow = __ballot_sync(~0u, x[1][3] != (int)e->dim) >> (12 + t) & 1; /* row 27: 256 numbers in one bucket */
    return overflow ? (uint32_t)ALL_FITS : fits | last << 29;
}

/* The first of some fits that has the largest cosine; `mine` is the factor of fit `lane`. The warp stays together until both halves
 * are through. */
template <class Numbers, class Levels>
__device__ __forceinline__ int best_of(uint32_t fits, const Numbers &numbers, Levels levels, float mine)
{
    int best = first_fit(fits);
    float most = -1;
    for (uint32_t left = fits; __any_sync(~0u, left != 0); left &= left - 1) {
        const int fit = left ? first_fit(left) : best;
        levels.take(fit, __shfl_sync(~0u, mine, fit, 16));
        const struct fitted c = fit_levels(numbers, levels, [](uint32_t, uint32_t) {});
        const float cosine = __fdiv_rn(c.dot, __fsqrt_rn(c.size2));
        best = cosine > most ? fit : best;
        most = cosine > most ? cosine : most;
    }
    return best;
}

/* Has `levels` take the best of some fits. */
template <class Numbers, class Levels>
__device__ __forceinline__ void take_best(Levels &levels, uint32_t fits, const Numbers &numbers, float mine)
{
    const bool several = __any_sync(~0u, (fits & (fits - 1)) != 0);
    const int fit = several ? best_of(fits, numbers, levels, mine) : first_fit(fits);
    levels.take(fit, __shfl_sync(~0u, mine, fit, 16));
}

/* The tally of a vector of which nothing is known yet, then the fits that may be its best; sure is false where `levels` may be
 * wrong. Both halves of a warp have a vector. */
template <class Numbers, int N>
__device__ __forceinline__ uint32_t search_fits(bool &sure, struct bucket_levels<N> &levels, const Numbers &numbers,
                                                uint32_t *tally, float one)
{
    const uint32_t lane = lane_number() % 16, half = lane_number() / 16;
    uint32_t *words = (uint32_t *)((uint8_t *)tally + kept(half * TALLY_PITCH * 4));
    __syncwarp();
    *(uint4 *)(words + 4 * lane) = make_uint4(0, 0, 0, 0);
    __syncwarp();
    sure = !(__ballot_sync(~0u, !take_tally(words, levels, numbers, one)) >> 16 * half & 0xffff);
    __syncwarp();
    return likely_fits(tally, levels.e);
}

/* ---- from 5 bits on: sums of all fits ---------------------------------------------------------------------------------- */

/* <y, c> and |c|^2 of FITS fits. */
template <int FITS>
struct fit_sums {
    float dot[FITS], size2[FITS];
};

/* Of HAVE sums, lanes below keep the first half and lanes above the second, with what the lane `far` away has of them: the same
 * additions as when every lane does them all. Where there is no sum it is 0. */
template <int HAVE, int FITS>
__device__ __forceinline__ void halve(float (&x)[FITS], int far, bool above)
{
    constexpr int KEEP = (HAVE + 1) / 2;
#pragma unroll
    for (int i = 0; i < KEEP; i++) {
        const float first = x[i], second = i + KEEP < HAVE ? x[i + KEEP] : 0;
        x[i] = __fadd_rn(above ? second : first, __shfl_xor_sync(~0u, above ? first : second, far));
    }
}

/* What is left then: the sum of fit fit_of_lane<FITS>(lane), or 0. */
template <int FITS>
__device__ __forceinline__ float sum_of_lane(float (&x)[FITS], int lane)
{
    halve<FITS>(x, 8, lane & 8);
    halve<(FITS + 1) / 2>(x, 4, lane & 4);
    halve<(FITS + 3) / 4>(x, 2, lane & 2);
    halve<(FITS + 7) / 8>(x, 1, lane & 1);
    return x[0];
}

template <int FITS>
__device__ __forceinline__ constexpr int fit_of_lane(int lane)
{
    return (lane & 8 ? (FITS + 1) / 2 : 0) + (lane & 4 ? (FITS + 3) / 4 : 0) + (lane & 2 ? (FITS + 7) / 8 : 0) +
           (lane & 1 ? (FITS + 15) / 16 : 0);
}

/* A lane that has the factor of a fit. */
template <int FITS>
__device__ __forceinline__ constexpr int lane_of_fit(int fit)
{
    int lane = 0;
    while (fit_of_lane<FITS>(lane) != fit)
        lane++;
    return lane;
}

/* The cosine of a vector and its levels, times the vector's length; below all of them where all levels are 0. */
__device__ __forceinline__ float cosine_of(const struct fitted &c)
{
    const float quotient = __fdiv_rn(c.dot, __fsqrt_rn(c.size2));
    return quotient > -1 ? quotient : -1;
}

/* The lane of the first fit with the largest cosine, of 16 lanes; 0 where none has one. Lanes without a fit have 0 / 0, which
 * is never better. */
__device__ __forceinline__ int best_lane(const struct fitted &c)
{
    const float cosine = cosine_of(c), largest = half_warp_max(cosine);
    const uint32_t best = __ballot_sync(~0u, cosine == largest);
    return __ffs((int)(lane_number() & 16 ? best >> 16 : best & 0xffff)) - 1;
}

/* The factor of the best fit of a vector of this size. */
template <class Numbers>
__device__ __forceinline__ float best_factor(const struct dev_encoder *e, const Numbers &numbers, struct formula_levels levels,
                                             float size, bool tiny)
{
    constexpr int FITS = ENCODE_FITS;
    const int lane = (int)lane_number() % 16;
    const float mine = tiny ? 0 : factor_of(e, min(fit_of_lane<FITS>(lane), ENCODE_FITS - 1), size);
    struct fit_sums<FITS> s = {};
    float factor[FITS];
#pragma unroll
    for (int f = 0; f < FITS; f++)
        factor[f] = __shfl_sync(~0u, mine, lane_of_fit<FITS>(f), 16);
    numbers.each([](float, uint32_t) { return 0; },
                 [&](float y, uint32_t k, int) {
#pragma unroll
                     for (int f = 0; f < FITS; f++) {
                         levels.take(f, factor[f]);
                         const float c = levels.find(y, k).level;
                         s.dot[f] = __fadd_rn(s.dot[f], __fmul_rn(y, c));
                         s.size2[f] = __fadd_rn(s.size2[f], __fmul_rn(c, c));
                     }
                 });
    return __shfl_sync(~0u, mine, best_lane({sum_of_lane(s.dot, lane), sum_of_lane(s.size2, lane)}), 16);
}

#endif
