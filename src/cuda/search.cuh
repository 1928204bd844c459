/* Codes that are searched for when a tile closes: trellis codes, and feedback of caches that have a metric. The
 * definitions are in ref_trellis.c and ref_feedback.c; a sum here has the operations and the order of theirs.
 *
 * A warp has four vectors, and a vector has eight lanes. A lane is one fit, and goes through all channels, from the
 * last to the first; of feedback, two more lanes are the vector itself and the error of its plain codes. What lanes
 * carry along is in shared memory, [channel][lane]. The metric comes by panels of 16 channels, which all warps of the
 * block work on together: a lane has the sums of the 16 channels in registers, and an entry of the panel is multiplied
 * with the errors of 32 lanes.
 *
 * None of this has been timed. */
#ifndef AURA_CUDA_SEARCH_CUH
#define AURA_CUDA_SEARCH_CUH

#define restrict __restrict__ /* feedback.h is C */
#include "../feedback.h"
#undef restrict
#include "../trellis.h"
#include "close.cuh"

enum { SEARCH_VECTORS = 4, SEARCH_LANES = 8, PANEL = 16 };
enum { LANE_WHOLE = AURA_FEEDBACK_FITS, LANE_PLAIN }; /* lanes of feedback that are no fit */

/* After append_space: a panel, the weights of channels, then the space of each warp. dim: the larger of both sides. */
static inline AURA_ANYWHERE uint32_t search_block_bytes(uint32_t dim)
{
    return (PANEL + 1) * dim * 4;
}

static inline AURA_ANYWHERE uint32_t search_warp_bytes(uint32_t dim, bool trellis_metric)
{
    return (32 + SEARCH_VECTORS) * dim * 4 + (trellis_metric ? 3 * 16 * dim : 0);
}

/* Whether feedback of trellis codes takes space. */
static inline AURA_ANYWHERE bool feeds_trellis(const struct dev_cache &c)
{
    return (c.k_metric && aura_is_trellis(c.k_kind)) || (c.v_metric && aura_is_trellis(c.v_kind));
}

/* A metric as kernels read it: panels of channels 16 p ..., of rows j from 16 p on, then the weights. */
static inline AURA_ANYWHERE uint32_t panel_at(uint32_t dim, uint32_t panel)
{
    return PANEL * (panel * dim - PANEL / 2 * panel * (panel - 1));
}

static inline AURA_ANYWHERE uint32_t metric_floats(uint32_t dim)
{
    return panel_at(dim, dim / PANEL) + dim;
}

/* Four vectors of a side, as a lane sees them: its own is `vector`, and it is lane `role` of that. */
struct searching {
    const struct dev_encoder *e;
    const float *metric; /* NULL: none */
    float *panel, *weight, *carried, *y; /* carried: [dim][32]; y: [dim][4] */
    uint8_t *steps;      /* [dim][32] of trellis_feedback.cuh, and [dim][16] after it */
    uint32_t dim, vector, role, column;
    bool works, there;   /* the warp has vectors; the lane's is one that closes */
};

template <int M>
__device__ __forceinline__ struct searching searching_of(const struct dev_append &a, const struct closing &c,
                                                         uint32_t unit, bool works, bool values)
{
    struct searching s;
    const uint32_t lane = lane_number(), most = max(a.c.k_dim, a.c.v_dim), warp = works ? threadIdx.x / 32 : 0;
    s.e = &space<M>()->encoder[values];
    s.dim = values ? a.c.v_dim : a.c.k_dim;
    s.metric = values ? a.c.v_metric : a.c.k_metric;
    s.metric = s.metric ? s.metric + (size_t)blockIdx.x * metric_floats(s.dim) : NULL;
    s.panel = (float *)(space<M>() + 1);
    s.weight = s.panel + PANEL * most;
    s.carried = s.weight + most + warp * (search_warp_bytes(most, feeds_trellis(a.c)) / 4);
    s.y = s.carried + 32 * most;
    s.steps = (uint8_t *)(s.y + SEARCH_VECTORS * most);
    s.vector = lane / SEARCH_LANES, s.role = lane % SEARCH_LANES;
    const uint32_t next = c.from + SEARCH_VECTORS * unit + s.vector;
    s.works = works, s.there = works && next < c.to, s.column = min(next, c.to - 1);
    return s;
}

/* The numbers of the four vectors, before codes take their place. */
template <int M>
__device__ __forceinline__ void load_numbers(const struct searching &s, const struct dev_append &a, bool values)
{
    const bool relative = !values && a.c.has_reference;
    for (uint32_t d = s.role; d < s.dim; d += SEARCH_LANES)
        s.y[SEARCH_VECTORS * d + s.vector] =
            __fsub_rn(number_of_bits(space<M>()->row[values][s.column][d]), relative ? space<M>()->reference[d] : 0.f);
    __syncwarp();
}

__device__ __forceinline__ float number_at(const struct searching &s, uint32_t d)
{
    return s.y[SEARCH_VECTORS * d + s.vector];
}

/* What the numbers of a vector are multiplied with for a fit of 1; 0 for one that keeps its codes. */
__device__ __forceinline__ float unit_of(const struct searching &s, float size2, float largest)
{
    if (!(__fsqrt_rn(size2) > s.e->tiny))
        return 0;
    return __fdiv_rn(s.e->unit, s.e->bits > 4 ? largest : __fsqrt_rn(__fdiv_rn(size2, (float)s.dim)));
}

__device__ __forceinline__ float of_lane(const struct searching &s, float x, uint32_t role)
{
    return __shfl_sync(~0u, x, (int)(SEARCH_LANES * s.vector + role));
}

/* ---- trellis codes
 * --------------------------------------------------------------------------------------------------- */

/* Sums of products over blocks of 16 channels, from the last to the first. */
template <class A, class B>
__device__ __forceinline__ float dot_by_blocks(uint32_t dim, A a, B b)
{
    float sum = 0;
    for (uint32_t first = dim; first > 0;) {
        float part = 0;
        first -= AURA_TRELLIS_BLOCK;
#pragma unroll 4
        for (uint32_t d = first + AURA_TRELLIS_BLOCK; d-- > first;)
            part = fmaf(a(d), b(d), part);
        sum = __fadd_rn(sum, part);
    }
    return sum;
}

/* One step of all eight paths. Bit s of the result: the path into state s comes from the upper of its two; above, the
 * places of x in the four subsets, 3 bits each. */
template <int BITS>
__device__ __forceinline__ uint32_t trellis_step(float (&cost)[AURA_STATES], float x, const struct dev_encoder *e)
{
    float next[AURA_STATES], error[4];
    uint32_t step = 0;
#pragma unroll
    for (int z = 0; z < 4; z++) {
        uint32_t place = 0;
#pragma unroll
        for (int i = 0; i + 1 < 1 << (BITS - 1); i++)
            place += x > e->between[z][i];
        const float r = __fsub_rn(x, e->path_level[4 * place + z]);
        error[z] = __fmul_rn(r, r);
        step |= place << (8 + 3 * z);
    }
#pragma unroll
    for (int s = 0; s < AURA_STATES; s++) {
        const uint32_t z = aura_trellis_subset((uint32_t)s / 2, (uint32_t)s % 2);
        const float lower = __fadd_rn(cost[s / 2], error[z]), upper = __fadd_rn(cost[s / 2 + 4], error[z ^ 2]);
        step |= (uint32_t)(upper < lower) << s;
        next[s] = upper < lower ? upper : lower;
    }
#pragma unroll
    for (int s = 0; s < AURA_STATES; s++)
        cost[s] = next[s];
    return step;
}

/* The cheapest path of gain * y. Then a lane has the index of each level, and the code from bit 8 on. */
template <int BITS>
__device__ __forceinline__ void trellis_path(const struct searching &s, uint32_t *word, float gain)
{
    float cost[AURA_STATES];
#pragma unroll
    for (int i = 0; i < AURA_STATES; i++)
        cost[i] = i ? INFINITY : 0;
#pragma unroll 1
    for (uint32_t d = s.dim; d-- > 0;)
        word[32 * d] = trellis_step<BITS>(cost, __fmul_rn(number_at(s, d), gain), s.e);
    uint32_t state = 0;
    float best = cost[0];
#pragma unroll
    for (uint32_t i = 1; i < AURA_STATES; i++) {
        state = cost[i] < best ? i : state;
        best = fminf(best, cost[i]);
    }
#pragma unroll 1
    for (uint32_t d = 0; d < s.dim; d++) {
        const uint32_t step = word[32 * d], u = state & 1, from = state / 2 + 4 * (step >> state & 1);
        const uint32_t z = aura_trellis_subset(from, u), m = step >> (8 + 3 * z) & 7;
        word[32 * d] = (4 * m + z) | (2 * m + u) << 8;
        state = from;
    }
}

/* Codes of four vectors, in place of their numbers; the scale of this lane's vector is returned. */
template <int M, int BITS>
__device__ __forceinline__ float encode_trellis(const struct searching &s, bool values)
{
    uint32_t *word = (uint32_t *)s.carried + lane_number();
    const auto y = [&](uint32_t d) { return number_at(s, d); };
    const auto level = [&](uint32_t d) { return s.e->path_level[word[32 * d] & 31]; };
    const float size2 = dot_by_blocks(s.dim, y, y), unit = unit_of(s, size2, 0);
    const uint32_t fit = min(AURA_FEEDBACK_STRIDE * s.role, (uint32_t)ENCODE_FITS - 1);
    trellis_path<BITS>(s, word, __fmul_rn(s.e->fits[fit], unit));
    const float dot = dot_by_blocks(s.dim, y, level), cc = dot_by_blocks(s.dim, level, level);
    const float cosine = __fdiv_rn(dot, __fsqrt_rn(cc));
    const float mine = s.e->rule == AURA_SCALE_UNBIASED ? dot > 0 ? __fdiv_rn(size2, dot) : 0
                                                        : __fdiv_rn(__fsqrt_rn(size2), __fsqrt_rn(cc));
    uint32_t best = SEARCH_LANES;
    float most = -1, scale = 0;
    for (uint32_t i = 0; AURA_FEEDBACK_STRIDE * i < s.e->n_fits; i++) {
        const float other = of_lane(s, cosine, i), its_scale = of_lane(s, mine, i);
        if (unit > 0 && other > most)
            best = i, most = other, scale = its_scale;
    }
    __syncwarp();
    for (uint32_t d = s.role; s.there && d < s.dim; d += SEARCH_LANES)
        space<M>()->row[values][s.column][d] =
            (uint16_t)(best < SEARCH_LANES ? ((uint32_t *)s.carried)[32 * d + SEARCH_LANES * s.vector + best] >> 8 : 0);
    if (s.there && s.role == 0)
        space<M>()->scale[values][s.column] = __float2half_rn(scale);
    __syncwarp();
    return scale;
}

/* ---- feedback
 * -------------------------------------------------------------------------------------------------------- */

/* The level of a code. */
__device__ __forceinline__ float level_of(const struct dev_encoder *e, uint32_t code)
{
    if (e->bits > 4) {
        const uint32_t index = (code - aura_code_of_index(0, e->bits)) & 0xff;
        return __fmul_rn(e->step, fmaf(e->spacing, (float)index, e->first));
    }
    const uint32_t middle = 1u << (e->bits - 1);
    return code >= middle ? e->level[code] : -e->level[2 * middle - 1 - code];
}

/* What a lane has of a vector: its gain, and its sums. */
struct feedback_lane {
    bool fits;
    float gain, size2;
    struct aura_feedback_sums sums;
};

template <int M>
__device__ __forceinline__ struct feedback_lane begin_feedback(const struct searching &s, bool values)
{
    struct feedback_lane f = {s.role < AURA_FEEDBACK_FITS, 1, 0, {0, 0, 0, 0, 0}};
    float largest = 0;
    const float plain = __half2float(space<M>()->scale[values][s.column]);
#pragma unroll 4
    for (uint32_t d = s.dim; d-- > 0;) {
        const float y = number_at(s, d);
        f.sums.size2 = fmaf(y, y, f.sums.size2);
        largest = fmaxf(largest, fabsf(y));
    }
    const uint32_t fit = min(AURA_FEEDBACK_STRIDE * s.role, (uint32_t)ENCODE_FITS - 1);
    if (f.fits)
        f.gain = __fmul_rn(s.e->fits[fit], unit_of(s, f.sums.size2, largest));
    for (uint32_t d = 0; !f.fits && d < s.dim; d++) {
        const float y = number_at(s, d), c = level_of(s.e, space<M>()->row[values][s.column][d]);
        s.carried[32 * d + lane_number()] = s.role == LANE_PLAIN ? __fsub_rn(y, __fmul_rn(c, plain)) : y;
    }
    __syncwarp();
    return f;
}

/* Panel number `panel` to shared memory, by the block. */
__device__ __forceinline__ void load_panel(const struct searching &s, uint32_t panel)
{
    const float *from = s.metric + panel_at(s.dim, panel);
    __syncthreads();
    for (uint32_t i = 4 * threadIdx.x; i < PANEL * (s.dim - PANEL * panel); i += 4 * APPEND_THREADS)
        copy_ahead(s.panel + i, from + i);
    copies_arrived();
    __syncthreads();
}

/* The channels of a panel. */
template <class Levels>
__device__ __forceinline__ void feed_panel(const struct searching &s, struct feedback_lane &f, const Levels &levels,
                                           uint32_t first)
{
    float *mine = s.carried + lane_number(), x[PANEL];
#pragma unroll
    for (uint32_t k = 0; k < PANEL; k++)
        x[k] = f.fits ? __fmul_rn(number_at(s, first + k), f.gain) : mine[32 * (first + k)];
#pragma unroll 2
    for (uint32_t j = s.dim; j-- > first + PANEL;) {
        const float e = mine[32 * j];
        const float4 *l = (const float4 *)(s.panel + PANEL * (j - first));
#pragma unroll
        for (uint32_t k = 0; k < PANEL; k += 4) {
            const float4 four = l[k / 4];
            x[k] = fmaf(four.x, e, x[k]), x[k + 1] = fmaf(four.y, e, x[k + 1]);
            x[k + 2] = fmaf(four.z, e, x[k + 2]), x[k + 3] = fmaf(four.w, e, x[k + 3]);
        }
    }
#pragma unroll
    for (int k = PANEL - 1; k >= 0; k--) {
        const uint32_t d = first + k;
        const float y = number_at(s, d), target = x[k], c = f.fits ? levels.find(target, 0).level : y;
        const float r = f.fits ? __fsub_rn(target, c) : target, weighted = __fmul_rn(s.weight[d], r);
        const float e = f.fits ? __fsub_rn(__fmul_rn(y, f.gain), c) : mine[32 * d];
        f.sums.yr = fmaf(weighted, of_lane(s, target, LANE_WHOLE), f.sums.yr);
        f.sums.rr = fmaf(weighted, r, f.sums.rr);
        f.sums.dot = fmaf(y, c, f.sums.dot);
        mine[32 * d] = e;
#pragma unroll
        for (int i = 0; i < k; i++)
            x[i] = fmaf(s.panel[PANEL * k + i], e, x[i]);
    }
}

/* The first fit whose error costs least, if that is less than the error of the plain codes costs. Its level of a
 * channel is what its error is short of, up to a rounding that is far smaller than the distance of levels. */
template <int M, class Levels>
__device__ __forceinline__ void end_feedback(const struct searching &s, struct feedback_lane &f, const Levels &levels,
                                             bool values)
{
    f.sums.yy = of_lane(s, f.sums.rr, LANE_WHOLE);
    const float plain = of_lane(s, f.sums.rr, LANE_PLAIN);
    const float scale = aura_feedback_scale(&f.sums, f.gain, (aura_scale_rule)s.e->rule);
    const float with = __half2float(__float2half_rn(scale)), cost = aura_feedback_cost(&f.sums, f.gain, with);
    uint32_t best = SEARCH_LANES;
    float least = INFINITY, its_scale = 0, gain = 0;
    for (uint32_t i = 0; AURA_FEEDBACK_STRIDE * i < s.e->n_fits; i++) {
        const float other = of_lane(s, cost, i), other_scale = of_lane(s, with, i), other_gain = of_lane(s, f.gain, i);
        if (other_gain > 0 && other < least)
            best = i, least = other, its_scale = other_scale, gain = other_gain;
    }
    if (!s.there || !(least < plain))
        return;
    for (uint32_t d = s.role; d < s.dim; d += SEARCH_LANES) {
        const float e = s.carried[32 * d + SEARCH_LANES * s.vector + best];
        space<M>()->row[values][s.column][d] =
            (uint16_t)levels.find(__fsub_rn(__fmul_rn(number_at(s, d), gain), e), 0).code;
    }
    if (s.role == 0)
        space<M>()->scale[values][s.column] = __float2half_rn(its_scale);
}

/* All threads of the block come here. */
template <int M, class Levels>
__device__ __forceinline__ void feed_back(const struct searching &s, bool values)
{
    struct feedback_lane f = {};
    Levels levels(s.e);
    levels.take(0, 1);
    if (s.works)
        f = begin_feedback<M>(s, values);
    for (uint32_t d = threadIdx.x; d < s.dim; d += APPEND_THREADS)
        s.weight[d] = s.metric[panel_at(s.dim, s.dim / PANEL) + d];
#pragma unroll 1
    for (uint32_t panel = s.dim / PANEL; panel-- > 0;) {
        load_panel(s, panel);
        if (s.works)
            feed_panel(s, f, levels, PANEL * panel);
    }
    __syncwarp();
    if (s.works)
        end_feedback<M>(s, f, levels, values);
    __syncthreads();
}

#endif
