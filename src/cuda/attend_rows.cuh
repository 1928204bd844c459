/* Attention over the tokens that are kept in f16, pinned or open: up to 32 at a time, as f16 products. */
#ifndef AURA_CUDA_ATTEND_ROWS_CUH
#define AURA_CUDA_ATTEND_ROWS_CUH

#include "attend_state.cuh"

/* Asks the second cache for the keys and values of tokens [from, to) of one tile, whose rows are side by side. */
template <class S>
__device__ __forceinline__ void prefetch_rows(const struct dev_attend &a, const struct split &g, uint32_t from, uint32_t to)
{
    const size_t at = (((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows + row_of(a.c, from)) * S::D;
    prefetch_bytes(a.c.k_rows + at, (to - from) * S::D * 2);
    prefetch_bytes(a.c.v_rows + at, (to - from) * S::D * 2);
}

/* Tokens [from, to) of the tile that begins at `first`: those that are attended to. The tile may have others, which count for
 * nothing. */
struct tile_tokens {
    uint32_t first, from, to;
    __device__ __forceinline__ bool has(uint32_t token) const
    {
        return token >= from && token < to;
    }
};

/* Some channels of four keys, from token `first` on: zeros in place of those of tokens that do not count. */
__device__ __forceinline__ void clear_others(uint4 (&k)[4], const struct tile_tokens &in, uint32_t first)
{
#pragma unroll
    for (int i = 0; i < 4; i++)
        k[i] = in.has(first + i) ? k[i] : make_uint4(0, 0, 0, 0);
}

/* One part (32 channels) of four keys times the same of all queries, added to c. Queries are sums of two f16, which is as good
 * as f32 for what follows. The products of either have a sum of their own, in two columns or in c[nt][0] and c[nt][1], so
 * that a row becomes the same however many rows a block has. */
template <class S, class SPACE>
__device__ __forceinline__ void multiply_key_rows(float (&c)[S::NT][S::RL][2][4], const SPACE &s, const uint4 (&k)[4], int part)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int plane = 0; plane < S::RL; plane++) {
            const int row = nt * S::COLUMN_ROWS + (S::RL == 1 ? gl / 2 : gl);
            uint4 q = *(const uint4 *)&s.half[row][S::RL == 1 ? gl % 2 : plane][part * 32 + t * 8];
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const uint4 &x = k[2 * pair], &y = k[2 * pair + 1];
                mma_f16(c[nt][plane][pair], x.x, y.x, x.y, y.y, q.x, q.y);
                mma_f16(c[nt][plane][pair], x.z, y.z, x.w, y.w, q.z, q.w);
            }
        }
}

/* Logits of the tokens, options applied; -inf for what a row does not see. rows: of the keys, from this lane's first channel on. */
template <class S, class SPACE>
__device__ __forceinline__ void score_rows(float (&logit)[S::NT][S::RL][4], const SPACE &s, const struct dev_attend &a,
                                           const struct split &g, const struct tile_tokens &in, const __half *rows)
{
    constexpr int BATCH = S::PARTS < 4 ? S::PARTS : 4; /* parts that are loaded together */
    const int gl = threadIdx.x % 32 / 4;
    float c[S::NT][S::RL][2][4] = {};
    uint32_t at[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        at[i] = row_in(a.c, in.first + 4 * gl + i, in.from, in.to) * S::D;
#pragma unroll 1
    for (int done = 0; done < S::PARTS; done += BATCH) {
        uint4 k[BATCH][4];
#pragma unroll
        for (int part = 0; part < BATCH; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                k[part][i] = *(const uint4 *)(rows + at[i] + (done + part) * 32);
#pragma unroll
        for (int part = 0; part < BATCH; part++) {
            clear_others(k[part], in, in.first + 4 * gl);
            multiply_key_rows<S>(c, s, k[part], done + part);
        }
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = in.first + 4 * gl + i;
                const float *x = &c[nt][0][i / 2][2 * (i % 2)], *lower = &c[nt][S::RL - 1][i / 2][2 * (i % 2)];
                float y = (S::RL == 1 ? x[0] + x[1] : x[r] + lower[r]) * row.top;
                if (a.options)
                    y = apply_options(a, row, g.job, g.reach.len, token, y);
                logit[nt][r][i] = in.has(token) && row_sees(a, row, token) ? y : -INFINITY;
            }
        }
}

/* Weights as sums of two f16, in the layout of what they were computed from: [plane][pair of tokens]. */
template <class S>
__device__ __forceinline__ void halve_weights(uint32_t (&w)[S::NT][S::RL][2][2], const float (&weight)[S::NT][S::RL][4])
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const float x = weight[nt][r][2 * pair], y = weight[nt][r][2 * pair + 1];
                __half2 upper = __floats2half2_rn(x, y);
                __half2 lower = __floats2half2_rn(x - __low2float(upper), y - __high2float(upper));
                w[nt][r][0][pair] = *(uint32_t *)&upper;
                w[nt][r][1][pair] = *(uint32_t *)&lower;
            }
}

/* The lane's columns of B for tokens 8 t + 4 half ... + 3, from the lanes that have their weights. */
template <class S>
__device__ __forceinline__ void gather_weights(uint32_t (&b)[S::NT][S::RL][2], const uint32_t (&w)[S::NT][S::RL][2][2], int half)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, lane_from = (2 * t + half) * 4 + gl / 2;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int plane = 0; plane < S::RL; plane++)
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                uint32_t even = __shfl_sync(~0u, S::RL == 1 ? w[nt][0][0][pair] : w[nt][0][plane][pair], lane_from);
                uint32_t odd = __shfl_sync(~0u, S::RL == 1 ? w[nt][0][1][pair] : w[nt][S::RL - 1][plane][pair], lane_from);
                b[nt][plane][pair] = gl % 2 ? odd : even;
            }
}

/* One part of four values times their weights, added to o. */
template <class S>
__device__ __forceinline__ void multiply_value_rows(running<S> &run, const uint32_t (&b)[S::NT][S::RL][2], const uint2 (&v)[4],
                                                    int part)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        float x[S::RL][2][4] = {};
#pragma unroll
        for (int plane = 0; plane < S::RL; plane++) {
            const uint32_t *p = b[nt][plane];
            mma_f16(x[plane][0], prmt(v[0].x, v[1].x, 0x5410), prmt(v[0].x, v[1].x, 0x7632), prmt(v[2].x, v[3].x, 0x5410),
                    prmt(v[2].x, v[3].x, 0x7632), p[0], p[1]);
            mma_f16(x[plane][1], prmt(v[0].y, v[1].y, 0x5410), prmt(v[0].y, v[1].y, 0x7632), prmt(v[2].y, v[3].y, 0x5410),
                    prmt(v[2].y, v[3].y, 0x7632), p[0], p[1]);
        }
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const float *y = &x[0][i / 2][2 * (i % 2)], *lower = &x[S::RL - 1][i / 2][2 * (i % 2)];
                run.o[nt][r][part][i] += S::RL == 1 ? y[0] + y[1] : y[r] + lower[r];
            }
    }
}

/* Values of the tokens times their weights, added to o: four tokens of a lane at a time. rows: of the values, likewise. */
template <class S>
__device__ __forceinline__ void value_rows(running<S> &run, const uint32_t (&w)[S::NT][S::RL][2][2], const struct dev_attend &a,
                                           const struct tile_tokens &in, const __half *rows)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < 2; half++) {
        uint32_t b[S::NT][S::RL][2], at[4];
        uint2 all[S::PARTS][4];
        gather_weights<S>(b, w, half);
#pragma unroll
        for (int i = 0; i < 4; i++)
            at[i] = row_in(a.c, in.first + 8 * t + 4 * half + i, in.from, in.to) * S::D;
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[part][i] = *(const uint2 *)(rows + at[i] + part * 32);
#pragma unroll
        for (int part = 0; part < S::PARTS; part++) {
            uint2 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++)
                v[i] = in.has(in.first + 8 * t + 4 * half + i) ? all[part][i] : make_uint2(0, 0);
            multiply_value_rows<S>(run, b, v, part);
        }
    }
}

/* score, softmax, value. */
template <class S, class SPACE>
__device__ __forceinline__ void attend_rows(const SPACE &s, const struct dev_attend &a, const struct split &g,
                                            running<S> &run, const struct tile_tokens &in)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const size_t base = ((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows * S::D;
    const __half *k_rows = a.c.k_rows + base + t * 8, *v_rows = a.c.v_rows + base + 4 * gl;
    float p[S::NT][S::RL][4]; /* logits, then weights */
    uint32_t w[S::NT][S::RL][2][2];
    score_rows<S>(p, s, a, g, in, k_rows);
    weigh<S>(p, run);
    halve_weights<S>(w, p);
    value_rows<S>(run, w, a, in, v_rows);
}

#endif
