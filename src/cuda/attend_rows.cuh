/* Attention over the tokens that are kept in f16, pinned or open: up to 32 at a time, as f16 products. */
#ifndef AURA_CUDA_ATTEND_ROWS_CUH
#define AURA_CUDA_ATTEND_ROWS_CUH

#include "attend_state.cuh"

/* Asks the second cache for the keys and values of tokens [from, to) of one tile, whose rows are side by side. */
template <class S>
__device__ __forceinline__ void prefetch_rows(const struct dev_attend &a, const struct segment &g, uint32_t from, uint32_t to)
{
    const size_t at = (((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows + row_of(a.c, from)) * S::D;
    prefetch_bytes(a.c.k_rows + at, (to - from) * S::D * 2);
    prefetch_bytes(a.c.v_rows + at, (to - from) * S::D * 2);
}

/* Tokens [from, to) of the tile that begins at `first`. Queries and weights are sums of two f16, which is as good as f32 for
 * what follows. */
template <class S>
__device__ __forceinline__ void attend_rows(attend_space<S> &s, const struct dev_attend &a, const struct segment &g,
                                            running<S> &run, uint32_t first, uint32_t from, uint32_t to)
{
    const int lane = threadIdx.x % 32, gl = lane / 4, t = lane % 4;
    const size_t base = ((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows * S::D;
    const __half *k_rows = a.c.k_rows + base + t * 8, *v_rows = a.c.v_rows + base + 4 * gl;
    float c[S::NT][2][4] = {}, logit[S::NT][S::RL][4];
    uint32_t k_at[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        k_at[i] = row_in(a.c, first + 4 * gl + i, from, to) * S::D;
    constexpr int BATCH = S::PARTS < 4 ? S::PARTS : 4; /* parts that are loaded together */
#pragma unroll 1
    for (int done = 0; done < S::PARTS; done += BATCH) {
        uint4 k[BATCH][4];
#pragma unroll
        for (int part = 0; part < BATCH; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                k[part][i] = *(const uint4 *)(k_rows + k_at[i] + (done + part) * 32);
#pragma unroll
        for (int part = 0; part < BATCH; part++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 4 * gl + i;
                k[part][i] = token >= from && token < to ? k[part][i] : make_uint4(0, 0, 0, 0);
            }
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
                for (int plane = 0; plane < S::RL; plane++) {
                    const int row = nt * S::COLUMN_ROWS + (S::RL == 1 ? gl / 2 : gl);
                    uint4 q = *(const uint4 *)&s.half[row][S::RL == 1 ? gl % 2 : plane][(done + part) * 32 + t * 8];
#pragma unroll
                    for (int pair = 0; pair < 2; pair++) {
                        const uint4 &x = k[part][2 * pair], &y = k[part][2 * pair + 1];
                        mma_f16(c[nt][pair], x.x, y.x, x.y, y.y, q.x, q.y);
                        mma_f16(c[nt][pair], x.z, y.z, x.w, y.w, q.z, q.w);
                    }
                }
        }
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++) {
            const row_info &row = s.row[lane_row<S>(nt, r)];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 4 * gl + i;
                const float *x = &c[nt][i / 2][2 * (i % 2)];
                float y = (S::RL == 1 ? x[0] + x[1] : x[r]) * row.top;
                if (a.options)
                    y = apply_options(a, row, g.slot, g.span.len, token, y);
                logit[nt][r][i] = token >= from && token < to && row_sees(a, row, token) ? y : -INFINITY;
            }
        }
    weigh<S>(logit, run);
    uint32_t w[S::NT][S::RL][2][2]; /* [plane][pair of tokens] */
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int r = 0; r < S::RL; r++)
#pragma unroll
            for (int pair = 0; pair < 2; pair++) {
                const float x = logit[nt][r][2 * pair], y = logit[nt][r][2 * pair + 1];
                __half2 upper = __floats2half2_rn(x, y);
                __half2 lower = __floats2half2_rn(x - __low2float(upper), y - __high2float(upper));
                w[nt][r][0][pair] = *(uint32_t *)&upper;
                w[nt][r][1][pair] = *(uint32_t *)&lower;
            }
#pragma unroll
    for (int half = 0; half < 2; half++) { /* tokens 8 t + 4 half ... + 3 */
        uint32_t b[S::NT][S::RL][2];
        const int lane_from = (2 * t + half) * 4 + gl / 2;
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
        uint32_t v_at[4];
        uint2 all[S::PARTS][4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            v_at[i] = row_in(a.c, first + 8 * t + 4 * half + i, from, to) * S::D;
#pragma unroll
        for (int part = 0; part < S::PARTS; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                all[part][i] = *(const uint2 *)(v_rows + v_at[i] + part * 32);
#pragma unroll
        for (int part = 0; part < S::PARTS; part++) {
            uint2 v[4];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + 8 * t + 4 * half + i;
                v[i] = token >= from && token < to ? all[part][i] : make_uint2(0, 0);
            }
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++) {
                float x[2][4] = {};
#pragma unroll
                for (int plane = 0; plane < S::RL; plane++) {
                    const uint32_t *p = b[nt][plane];
                    mma_f16(x[0], prmt(v[0].x, v[1].x, 0x5410), prmt(v[0].x, v[1].x, 0x7632), prmt(v[2].x, v[3].x, 0x5410),
                            prmt(v[2].x, v[3].x, 0x7632), p[0], p[1]);
                    mma_f16(x[1], prmt(v[0].y, v[1].y, 0x5410), prmt(v[0].y, v[1].y, 0x7632), prmt(v[2].y, v[3].y, 0x5410),
                            prmt(v[2].y, v[3].y, 0x7632), p[0], p[1]);
                }
#pragma unroll
                for (int r = 0; r < S::RL; r++)
#pragma unroll
                    for (int i = 0; i < 4; i++) {
                        const float *y = &x[i / 2][2 * (i % 2)];
                        run.o[nt][r][part][i] += S::RL == 1 ? y[0] + y[1] : y[r];
                    }
            }
        }
    }
}

#endif
