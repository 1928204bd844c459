/* Feedback for trellis codes, as ref_trellis.c defines it. A lane is a state: it has the targets and the errors of its
 * survivor for the 16 channels of a panel in registers, and those of the survivor that it takes after come by shuffles.
 * Errors that are decided are the same for all states, so that a lane adds up two of the 16 channels for the others.
 *
 * None of this has been timed. */
#ifndef AURA_CUDA_TRELLIS_FEEDBACK_CUH
#define AURA_CUDA_TRELLIS_FEEDBACK_CUH

#include "search.cuh"

static_assert((int)PANEL == (int)AURA_TRELLIS_BLOCK && (int)SEARCH_LANES == (int)AURA_STATES, "a lane is a state");

/* A state of the search for one gain. */
struct survivor {
    float now[PANEL];    /* targets and errors of this panel */
    float before[PANEL]; /* errors of the one before, of the state when this one began */
    float cost;
    uint32_t since;                  /* the state that its path had when the panel began */
};

/* One of the gains that are tried; errors go to lane `lane` of what is carried. */
struct trial {
    float gain;
    uint32_t lane;
};

__device__ __forceinline__ float *errors_of(const struct searching &s, const struct trial &t)
{
    return s.carried + SEARCH_LANES * s.vector + t.lane;
}

/* Of a channel, the index of its level and bit u above it. */
__device__ __forceinline__ uint8_t *path_of(const struct searching &s, uint32_t lane)
{
    return s.steps + 32 * s.dim + SEARCH_VECTORS * lane + s.vector;
}

/* The state with the least cost, the first among equals. */
__device__ __forceinline__ uint32_t cheapest(const struct searching &s, float cost)
{
    float best = of_lane(s, cost, 0);
    uint32_t state = 0;
#pragma unroll
    for (uint32_t i = 1; i < AURA_STATES; i++) {
        const float other = of_lane(s, cost, i);
        state = other < best ? i : state;
        best = other < best ? other : best;
    }
    return state;
}

/* Targets of a panel, without what it adds to itself. */
__device__ __forceinline__ void begin_panel(struct survivor &v, const struct searching &s, const struct trial &t,
                                            uint32_t first)
{
    const float *e = errors_of(s, t);
    float two[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        two[i] = __fmul_rn(number_at(s, first + 2 * s.role + i), t.gain);
#pragma unroll 4
    for (uint32_t j = s.dim; j-- > first + 2 * PANEL;) {
        const float2 l = *(const float2 *)(s.panel + PANEL * (j - first) + 2 * s.role);
        two[0] = fmaf(l.x, e[32 * j], two[0]), two[1] = fmaf(l.y, e[32 * j], two[1]);
    }
#pragma unroll
    for (int k = 0; k < PANEL; k++)
        v.now[k] = of_lane(s, two[k % 2], (uint32_t)k / 2);
    if (first + PANEL < s.dim)
#pragma unroll
        for (int j = PANEL - 1; j >= 0; j--)
#pragma unroll
            for (int k = 0; k < PANEL; k++)
                v.now[k] = fmaf(s.panel[PANEL * (PANEL + j) + k], v.before[j], v.now[k]);
    v.since = s.role;
}

/* Place of x among the levels of a subset. */
template <int BITS>
__device__ __forceinline__ uint32_t place_in(const struct dev_encoder *e, float x, uint32_t z)
{
    uint32_t place = 0;
#pragma unroll
    for (int i = 0; i + 1 < 1 << (BITS - 1); i++)
        place += x > e->between[z][i];
    return place;
}

/* All survivors go on by channel k of a panel. */
template <int BITS>
__device__ __forceinline__ void go_on(struct survivor &v, const struct searching &s, const struct trial &t,
                                      uint32_t first, const int k)
{
    const uint32_t d = first + k, u = s.role % 2, lower = s.role / 2;
    const float x = v.now[k], weight = s.weight[d];
    uint32_t places = 0;
    float sum[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++) {
        const uint32_t z = aura_trellis_subset(s.role, i), place = place_in<BITS>(s.e, x, z);
        const float r = __fsub_rn(x, s.e->path_level[4 * place + z]);
        sum[i] = __fadd_rn(v.cost, __fmul_rn(__fmul_rn(weight, r), r));
        places |= place << 4 * i;
    }
    float from_lower[2], from_upper[2];
#pragma unroll
    for (uint32_t i = 0; i < 2; i++)
        from_lower[i] = of_lane(s, sum[i], lower), from_upper[i] = of_lane(s, sum[i], lower + 4);
    const float a = u ? from_lower[1] : from_lower[0], b = u ? from_upper[1] : from_upper[0];
    const uint32_t upper = b < a, from = lower + 4 * upper;
    const uint32_t place = __shfl_sync(~0u, places, (int)(SEARCH_LANES * s.vector + from)) >> 4 * u & 7;
    const float level = s.e->path_level[4 * place + aura_trellis_subset(from, u)];
    const float error = __fsub_rn(__fmul_rn(number_at(s, d), t.gain), level);
    v.cost = upper ? b : a;
    v.since = __shfl_sync(~0u, v.since, (int)(SEARCH_LANES * s.vector + from));
#pragma unroll
    for (int i = 0; i < PANEL; i++) {
        const float its = of_lane(s, v.now[i], from);
        v.now[i] = i < k ? fmaf(s.panel[PANEL * k + i], error, its) : i == k ? error : its;
    }
    s.steps[32 * d + lane_number()] = (uint8_t)(place | upper << 3);
}

/* The errors of the panel before are those of the cheapest survivor; survivors that have others end. */
__device__ __forceinline__ void decide(struct survivor &v, const struct searching &s, const struct trial &t,
                                       uint32_t first)
{
    const uint32_t best = cheapest(s, v.cost);
    const uint32_t since = __shfl_sync(~0u, v.since, (int)(SEARCH_LANES * s.vector + best));
    float *e = errors_of(s, t);
    v.cost = v.since == since ? v.cost : INFINITY;
#pragma unroll
    for (int k = 0; k < PANEL; k++)
        if (s.role == since)
            e[32 * (first + PANEL + k)] = v.before[k];
    __syncwarp();
}

/* The errors of the cheapest path, and what it is. */
__device__ __forceinline__ void trace_path(const struct searching &s, const struct trial &t, float cost)
{
    uint32_t state = cheapest(s, cost);
    float *e = errors_of(s, t);
    uint8_t *path = path_of(s, t.lane);
    __syncwarp();
#pragma unroll 1
    for (uint32_t d = 0; s.role == 0 && d < s.dim; d++) {
        const uint32_t step = s.steps[32 * d + SEARCH_LANES * s.vector + state];
        const uint32_t u = state % 2, from = state / 2 + 4 * (step >> 3);
        const uint32_t index = 4 * (step & 7) + aura_trellis_subset(from, u);
        e[32 * d] = __fsub_rn(__fmul_rn(number_at(s, d), t.gain), s.e->path_level[index]);
        path[16 * d] = (uint8_t)(index | u << 5);
        state = from;
    }
    __syncwarp();
}

/* The cheapest path in the metric for one gain, by the block. */
template <int BITS>
__device__ __forceinline__ void search_path(const struct searching &s, const struct trial &t)
{
    struct survivor v = {};
    v.cost = s.role ? INFINITY : 0;
#pragma unroll 1
    for (uint32_t panel = s.dim / PANEL; panel-- > 0;) {
        const uint32_t first = PANEL * panel;
        load_panel(s, panel);
        if (!s.works)
            continue;
        begin_panel(v, s, t, first);
#pragma unroll
        for (int k = PANEL - 1; k >= 0; k--)
            go_on<BITS>(v, s, t, first, k);
        if (first + PANEL < s.dim)
            decide(v, s, t, first);
#pragma unroll
        for (int k = 0; k < PANEL; k++)
            v.before[k] = v.now[k];
    }
    if (s.works)
        trace_path(s, t, v.cost);
}

/* Sums over the channels of a panel, of errors that are all known. */
__device__ __forceinline__ void sum_panel(const struct searching &s, struct feedback_lane &f, uint32_t first)
{
    float *mine = s.carried + lane_number(), x[PANEL];
    const uint8_t *path = path_of(s, s.role % 4);
#pragma unroll
    for (uint32_t k = 0; k < PANEL; k++)
        x[k] = mine[32 * (first + k)];
#pragma unroll 2
    for (uint32_t j = s.dim; j-- > first + PANEL;)
#pragma unroll
        for (int k = 0; k < PANEL; k++)
            x[k] = fmaf(s.panel[PANEL * (j - first) + k], mine[32 * j], x[k]);
#pragma unroll
    for (int j = PANEL - 1; j > 0; j--)
#pragma unroll
        for (int k = 0; k < j; k++)
            x[k] = fmaf(s.panel[PANEL * j + k], mine[32 * (first + j)], x[k]);
#pragma unroll
    for (int k = PANEL - 1; k >= 0; k--) {
        const float y = number_at(s, first + k), weighted = __fmul_rn(s.weight[first + k], x[k]);
        f.sums.yr = fmaf(weighted, of_lane(s, x[k], LANE_WHOLE), f.sums.yr);
        f.sums.rr = fmaf(weighted, x[k], f.sums.rr);
        f.sums.dot = fmaf(y, f.fits ? s.e->path_level[path[16 * (first + k)] & 31] : y, f.sums.dot);
    }
}

/* What lanes that are no gain carry: the vector, and the error of the codes that it has. */
template <int M>
__device__ __forceinline__ void begin_sums(const struct searching &s, struct feedback_lane &f, uint32_t gains,
                                           float scale, bool values)
{
    const float plain = __half2float(__float2half_rn(scale));
    uint32_t state = 0;
    f.fits = s.role < gains;
#pragma unroll 1
    for (uint32_t d = s.dim; d-- > 0;) {
        const float y = number_at(s, d);
        const uint32_t code = space<M>()->row[values][s.column][d];
        const float c = s.e->path_level[aura_trellis_index(code, state) & 31];
        f.sums.size2 = fmaf(y, y, f.sums.size2);
        if (!f.fits)
            s.carried[32 * d + lane_number()] = s.role == LANE_PLAIN ? __fsub_rn(y, __fmul_rn(c, plain)) : y;
        state = aura_trellis_next(state, code & 1);
    }
    __syncwarp();
}

/* The first gain whose error costs least, if that is less than the error of the codes so far costs. */
template <int M>
__device__ __forceinline__ void end_sums(const struct searching &s, struct feedback_lane &f, uint32_t gains, float given,
                                         bool values)
{
    f.sums.yy = of_lane(s, f.sums.rr, LANE_WHOLE);
    float least = of_lane(s, f.sums.rr, LANE_PLAIN), its_scale = 0;
    const float scale = aura_feedback_scale(&f.sums, f.gain, (aura_scale_rule)s.e->rule);
    const float with = __half2float(__float2half_rn(scale)), cost = aura_feedback_cost(&f.sums, f.gain, with);
    uint32_t best = SEARCH_LANES;
    for (uint32_t i = 0; i < gains; i++) {
        const float other = of_lane(s, cost, i), other_scale = of_lane(s, with, i);
        if (given > 0 && other < least)
            best = i, least = other, its_scale = other_scale;
    }
    if (!s.there || best == SEARCH_LANES)
        return;
    const uint8_t *path = path_of(s, best);
    for (uint32_t d = s.role; d < s.dim; d += SEARCH_LANES)
        space<M>()->row[values][s.column][d] = (uint16_t)((path[16 * d] & 31) / 4 * 2 + (path[16 * d] >> 5));
    if (s.role == 0)
        space<M>()->scale[values][s.column] = __float2half_rn(its_scale);
}

/* All threads of the block come here. scale: of the codes so far, of the lane's vector. */
template <int M, int BITS>
__device__ __forceinline__ void feed_trellis(const struct searching &s, float scale, bool values)
{
    const uint32_t gains = s.e->n_fits == 1 ? 1 : BITS == 4 ? 3 : 4;
    struct feedback_lane f = {};
    for (uint32_t d = threadIdx.x; d < s.dim; d += APPEND_THREADS)
        s.weight[d] = s.metric[panel_at(s.dim, s.dim / PANEL) + d];
#pragma unroll 1
    for (uint32_t i = 0; i < gains; i++) {
        const struct trial t = {aura_trellis_gain(i, scale), i};
        f.gain = s.role == i ? t.gain : f.gain;
        search_path<BITS>(s, t);
    }
    if (s.works)
        begin_sums<M>(s, f, gains, scale, values);
#pragma unroll 1
    for (uint32_t panel = s.dim / PANEL; panel-- > 0;) {
        load_panel(s, panel);
        if (s.works)
            sum_panel(s, f, PANEL * panel);
    }
    if (s.works)
        end_sums<M>(s, f, gains, scale, values);
    __syncthreads();
}

#endif
