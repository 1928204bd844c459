/* Many query rows of a KV head (attend_wide.cuh): f16 rows, and from what groups and splits have to rows of the caller. */
#ifndef AURA_CUDA_WIDE_MERGE_CUH
#define AURA_CUDA_WIDE_MERGE_CUH

#include "wide_state.cuh"

/* What a group has, to be merged. */
template <class S>
__device__ __forceinline__ void store_group(wide_space<S> &s, wide_merge<S> &to, const struct dev_attend &a, wide_running<S> &run,
                                            uint32_t group)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const float unit = a.c.v_step / s.up[group];
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int n = 8 * j + 2 * t + e;
            const float l = row_sum(run.l[2 * j + e]);
            if (gl == 0)
                s.sums[group][warp][n] += l;
        }
    group_meets(group);
    const float (*sums)[S::N] = s.sums[group];
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int n = 8 * j + 2 * t + e;
#pragma unroll
            for (int b = 0; b < S::MB; b++)
                *(float2 *)&to.o[group][n][channel_of<S>(b, 0)] =
                    make_float2(run.o[b][4 * j + e] * unit, run.o[b][4 * j + 2 + e] * unit);
        }
    const int n = threadIdx.x % 128;
    if (n < S::N)
        to.m[n][group] = s.m[group][n], to.l[n][group] = (sums[0][n] + sums[1][n]) + (sums[2][n] + sums[3][n]);
}

/* f16 rows: eight rows of the block by a warp; warps with the same rows take visits by turns. */
template <class S>
__device__ __forceinline__ void attend_panels(wide_space<S> &s, wide_merge<S> &to, const struct dev_attend &a, uint32_t visit,
                                              uint32_t end)
{
    using P = typename S::PANEL;
    const struct split &g = s.split;
    const int gl = threadIdx.x % 32 / 4;
    const wide_queries<S> all = wide_queries_of(s);
#pragma unroll 1
    for (int i = threadIdx.x / 32; i < S::PANELS * S::PANEL_SLOTS; i += S::WARPS) {
        const int first = i % S::PANELS * 8, slot = i / S::PANELS;
        const wide_queries<S> mine = {all.q + first, all.half + first, all.row + first};
        running<P> run;
        begin_running<P>(run, mine.row);
#pragma unroll 1
        for (uint32_t at = visit + slot; at < end; at += S::PANEL_SLOTS)
            attend_rows<P>(mine, a, g, run, rows_visit_of(g.reach, at));
#pragma unroll
        for (int r = 0; r < 2; r++) {
            const int n = first + lane_row<P>(0, r), part = S::GROUPS + slot;
            const float l = row_sum(run.l[0][r]);
#pragma unroll
            for (int j = 0; j < P::PARTS; j++)
                *(float4 *)&to.o[part][n][32 * j + 4 * gl] =
                    make_float4(run.o[0][r][j][0], run.o[0][r][j][1], run.o[0][r][j][2], run.o[0][r][j][3]);
            if (gl == 0)
                to.m[n][part] = run.m[0][r], to.l[n][part] = l;
        }
    }
}

/* Four neighbouring channels of a row. */
__device__ __forceinline__ void add_scaled(float4 &to, const float4 &x, float by)
{
    to.x = fmaf(x.x, by, to.x), to.y = fmaf(x.y, by, to.y), to.z = fmaf(x.z, by, to.z), to.w = fmaf(x.w, by, to.w);
}

/* What merge_warps() does, four channels at a time. */
template <class S>
__device__ __forceinline__ void merge_parts(const struct dev_attend &a, wide_merge<S> &s, bool alone, size_t at, int parts)
{
#pragma unroll 2
    for (int i = threadIdx.x; i < S::N * S::D / 4; i += S::THREADS) {
        const int row = i / (S::D / 4), d = 4 * (i % (S::D / 4));
        float4 o = {0, 0, 0, 0};
        float m = NOTHING, l = 0;
#pragma unroll 4
        for (int w = 0; w < parts; w++)
            m = fmaxf(m, s.m[row][w]);
#pragma unroll 4
        for (int w = 0; w < parts; w++) {
            const float by = exp2_approx(s.m[row][w] - m);
            l = fmaf(s.l[row][w], by, l);
            add_scaled(o, *(const float4 *)&s.o[w][row][d], by);
        }
        if (alone)
            *(float4 *)&s.o[0][row][d] = o;
        else
            __stcg((float4 *)&a.partial[(at + row) * S::D + d], o);
        if (d == 0 && alone)
            s.all_m[row] = m, s.all_l[row] = l;
        else if (d == 0)
            __stcg(&a.partial_ml[at + row], make_float2(m, l));
    }
    __syncthreads();
}

/* What merge_splits() does: four places of a thread at a time, as there are few splits and many rows. */
template <class S>
__device__ __forceinline__ void merge_partials(const struct dev_attend &a, wide_merge<S> &s, uint32_t first, uint32_t splits)
{
    constexpr int PLACES = 4, ALL = S::N * S::D / 4;
    float *weight = &s.o[1][0][0]; /* [split][row] */
    static_assert((S::PARTS_OF_BLOCK - 1) * sizeof s.o[0] >= 132 * S::N * sizeof *weight,
                  "a split of every multiprocessor: those of sm_90, for which this is, have at most 132");
#pragma unroll 1
    for (int row = threadIdx.x; row < S::N; row += S::THREADS) {
        const float2 *all = &a.partial_ml[(size_t)first * S::N + row];
        float m = NOTHING, l = 0;
#pragma unroll 4
        for (uint32_t p = 0; p < splits; p++)
            m = fmaxf(m, __ldcg(&all[p * S::N]).x);
#pragma unroll 4
        for (uint32_t p = 0; p < splits; p++) {
            const float2 ml = __ldcg(&all[p * S::N]);
            const float by = exp2_approx(ml.x - m);
            weight[p * S::N + row] = by;
            l = fmaf(ml.y, by, l);
        }
        s.all_m[row] = m, s.all_l[row] = l;
    }
    __syncthreads();
#pragma unroll 1
    for (int i = threadIdx.x; i < ALL; i += PLACES * S::THREADS) {
        float4 o[PLACES] = {};
#pragma unroll 2
        for (uint32_t p = 0; p < splits; p++)
#pragma unroll
            for (int k = 0; k < PLACES; k++) {
                const int place = min(i + k * S::THREADS, ALL - 1);
                const float4 x = __ldcg((const float4 *)&a.partial[(size_t)(first + p) * S::N * S::D] + place);
                add_scaled(o[k], x, weight[p * S::N + place / (S::D / 4)]);
            }
#pragma unroll
        for (int k = 0; k < PLACES; k++) {
            const int place = i + k * S::THREADS;
            if (place < ALL)
                *(float4 *)&s.o[0][place / (S::D / 4)][4 * (place % (S::D / 4))] = o[k];
        }
    }
    __syncthreads();
}

/* What merge_split() does. */
template <class S>
__device__ __forceinline__ void merge_wide(wide_space<S> &s, const struct dev_attend &a, const struct split &g, int parts)
{
    merge_parts<S>(a, s.merge, g.splits == 1, (size_t)(g.first_partial + g.which) * S::N, parts);
    if (g.splits > 1) {
        if (!last_of_unit(a, g, &s.merge.last))
            return;
        merge_partials<S>(a, s.merge, g.first_partial, g.splits);
    }
#pragma unroll 1
    for (int row = threadIdx.x / 32; row < S::N; row += S::WARPS)
        if (s.row[row].there)
            finish_rotated<S::D>::row(a, g, s.row[row], s.merge.o[0][row], s.merge.all_m[row], s.merge.all_l[row]);
}

#endif
