/* What a step of many rows seldom needs: maxima that move; and weights where keys take both planes, eight rows at a time by
 * products of a warp, so that the code is short. */
#ifndef AURA_CUDA_WIDE_PANELS_CUH
#define AURA_CUDA_WIDE_PANELS_CUH

#include "wide_state.cuh"

/* A maximum that is as far behind as WIDE_BEHIND moves, where some row's is left too far: a lane then has four weights whose sum
 * is above WIDE_MOST. It ends up WIDE_AHEAD behind, so that the next may be larger. */
#define WIDE_MOST 1024.f
#define WIDE_BEHIND 7.f
#define WIDE_AHEAD 4.f

/* What a lane knows of its tokens, 4 g ... of its warp's tile. */
template <class S>
struct wide_tokens {
    uint32_t first;
    uint2 k_scales;
    float vs[4]; /* scales of values, times `up`; 0 of tokens that are no codes or not of the split: those may be anything */
};

template <class S>
__device__ __forceinline__ struct wide_tokens<S> tokens_of(const wide_space<S> &s, const struct dev_attend &a,
                                                           const wide_walk<S> &at, const uint8_t *stage)
{
    const uint32_t warp = threadIdx.x / 32 % 4;
    const uint2 v = load_scales<S>(stage, warp, true);
    struct wide_tokens<S> x;
    x.first = at.step * WIDE_TOKENS + warp * AURA_TILE + threadIdx.x % 32 / 4 * 4;
    x.k_scales = load_scales<S>(stage, warp, false);
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t token = x.first + i;
        const bool there = token >= max(a.c.pinned, at.from) && token < min(s.split.reach.closed, at.to);
        x.vs[i] = there ? half_of(v, i) * s.up[at.group] : 0;
    }
    return x;
}

/* Sums of both planes for rows 8 j ... : [plane][pair of tokens]. */
template <class S>
__device__ __forceinline__ void panel_sums(int (&sum)[2][2][4], wide_space<S> &s, const uint8_t *stage, int j,
                                           const uint32_t (&table)[4])
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint4 w[keys<S::KIND, S::D>::n];
    load_keys<S>(w, stage, threadIdx.x / 32 % 4);
#pragma unroll
    for (int plane = 0; plane < 2; plane++)
#pragma unroll
        for (int i = 0; i < 8; i++)
            sum[plane][i / 4][i % 4] = -code<S::KIND>::offset * s.row[8 * j + 2 * t + i % 2].sum[plane];
#pragma unroll
    for (int step = 0; step < S::STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            uint32_t a[4];
            key_operand<S>(a, w, step, pair, table);
#pragma unroll
            for (int plane = 0; plane < 2; plane++) {
                const uint32_t b0 = *query_word(s, plane, 8 * j + gl, step, t, 0);
                const uint32_t b1 = *query_word(s, plane, 8 * j + gl, step, t, 1);
                if (S::KIND == 8)
                    mma_s8s8(sum[plane][pair], a[0], a[1], a[2], a[3], b0, b1, sum[plane][pair]);
                else
                    mma_u8s8(sum[plane][pair], a[0], a[1], a[2], a[3], b0, b1, sum[plane][pair]);
            }
        }
}

/* Logits of rows 8 j + 2 t and the next, [row][token]; -inf where a row does not see a token. */
template <class S>
__device__ __forceinline__ void panel_logits(float (&logit)[2][4], wide_space<S> &s, const struct dev_attend &a,
                                             const wide_walk<S> &at, const wide_tokens<S> &x, const uint8_t *stage, int j,
                                             const uint32_t (&table)[4], bool trace)
{
    int sum[2][2][4];
    panel_sums<S>(sum, s, stage, j, table);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const int n = 8 * j + 2 * (threadIdx.x % 4) + e;
        const row_info &row = s.row[n];
        const float bias = s.bias[at.group][(at.step / 2 - at.first_page) % WIDE_PAGES][n];
        const uint2 seen = s.seen[n];
        const size_t to = (((size_t)s.split.job * a.queries + row.query) * a.c.q_heads + row.head) * a.trace_tokens;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int upper = sum[0][i / 2][i % 2 * 2 + e], lower = sum[1][i / 2][i % 2 * 2 + e];
            const uint32_t token = x.first + i;
            const bool both = S::PL == 1 && aura_takes_both(low_half(x.k_scales, i) >> 16 * (i % 2), row.limit);
            const float whole = S::PL == 2 ? (float)(upper * 256 + lower) : both ? fmaf((float)lower, 0x1p-8f, (float)upper)
                                                                                 : (float)upper;
            const float y = fmaf(whole * half_of(x.k_scales, i), s.factor[n], bias);
            if (trace && row.there && token < a.trace_tokens && token >= at.from && token < at.to)
                a.trace[to + token] = y;
            logit[e][i] = token >= seen.x && token < seen.y ? y : -INFINITY;
        }
    }
}

/* By all threads of a group, when warps have left their maxima: those of rows that are too far behind move, and what there is of
 * them is scaled. So does `up`, which keeps weights times scales of values within f16. */
template <class S>
__device__ __forceinline__ void follow_maxima(wide_running<S> &run, float (&vs)[4], wide_space<S> &s, const wide_walk<S> &at)
{
    const uint32_t group = at.group, n = threadIdx.x % 128, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const float *v = s.v_most[group], v_most = fmaxf(fmaxf(v[0], v[1]), fmaxf(v[2], v[3]));
    /* v_most has `up` in it: below 2 it is, and by a power of two */
    const float less = v_most > 4 ? __uint_as_float((254u - (__float_as_uint(fminf(v_most, 0x1p100f)) >> 23)) << 23) : 1;
    if (n < S::N) {
        const float (*most)[S::N] = s.most[group], old = s.m[group][n];
        const float largest = fmaxf(fmaxf(most[0][n], most[1][n]), fmaxf(most[2][n], most[3][n]));
        const float next = largest > old + WIDE_BEHIND ? largest - WIDE_AHEAD : old;
        s.keep[group][n] = exp2_approx(old - next), s.m[group][n] = next;
    }
    if (n == 0)
        s.up[group] *= less;
    group_meets(group);
#pragma unroll
    for (int i = 0; i < 4; i++)
        vs[i] *= less;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) {
        const float2 keep = *(const float2 *)&s.keep[group][8 * j + 2 * t];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const float k = e ? keep.y : keep.x;
            run.l[2 * j + e] *= k;
#pragma unroll
            for (int i = 0; i < 2 * S::MB; i++)
                run.o[i / 2][4 * j + i % 2 * 2 + e] *= k * less;
        }
    }
    for (uint32_t i = threadIdx.x % 32; i < S::N; i += 32)
        s.sums[group][warp][i] *= s.keep[group][i];
    __syncwarp();
}

/* Weights of a panel, from logits: to shared memory; their sums are added to those of the warp. */
template <class S>
__device__ __forceinline__ void store_panel(wide_space<S> &s, const wide_walk<S> &at, const wide_tokens<S> &x,
                                            const float (&logit)[2][4], int j, uint8_t *to)
{
    const uint32_t gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    float sum[2] = {0, 0};
    uint32_t r[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        float p[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
            p[e] = exp2_approx(logit[e][i] - s.m[at.group][8 * j + 2 * t + e]);
            sum[e] += p[e];
        }
        const __half2 two = __floats2half2_rn(p[0] * x.vs[i], p[1] * x.vs[i]);
        r[i] = *(const uint32_t *)&two;
    }
    store_matrices_turned(to + j * 1024, r);
#pragma unroll
    for (int e = 0; e < 2; e++) {
        const float all = row_sum(sum[e]);
        if (gl == 0)
            s.sums[at.group][warp][8 * j + 2 * t + e] += all;
    }
}

/* What is done with all panels of a step. */
enum wide_pass { PASS_TRACE, PASS_LARGEST, PASS_WEIGHTS };

/* Logits for checks; largest logits; or weights. */
template <class S>
__device__ __forceinline__ void pass_panels(wide_space<S> &s, const struct dev_attend &a, const wide_walk<S> &at,
                                            const uint8_t *stage, uint8_t *to, const uint32_t (&table)[4], enum wide_pass pass)
{
    const uint32_t gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const struct wide_tokens<S> x = tokens_of<S>(s, a, at, stage);
    const float v_most = row_max(fmaxf(fmaxf(x.vs[0], x.vs[1]), fmaxf(x.vs[2], x.vs[3])));
    if (threadIdx.x % 32 == 0 && pass == PASS_LARGEST)
        s.v_most[at.group][warp] = v_most;
#pragma unroll 1
    for (int j = 0; j < S::PANELS; j++) {
        float logit[2][4];
        panel_logits<S>(logit, s, a, at, x, stage, j, table, pass == PASS_TRACE);
        if (pass == PASS_WEIGHTS)
            store_panel<S>(s, at, x, logit, j, to);
#pragma unroll
        for (int e = 0; e < 2 && pass == PASS_LARGEST; e++) {
            const float most = row_max(fmaxf(fmaxf(logit[e][0], logit[e][1]), fmaxf(logit[e][2], logit[e][3])));
            if (gl == 0)
                s.most[at.group][warp][8 * j + 2 * t + e] = fmaxf(most, NOTHING);
        }
    }
}

#endif
