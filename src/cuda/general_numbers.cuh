/* Numbers of the general kernel: plain sides, and the f16 rows of pinned and open tokens, straight from the cache to products
 * of 16-bit numbers. f16 is multiplied by sums of two f16; bf16, whose range is that of f32, by sums of three bf16; f32 is
 * three bf16 itself. */
#ifndef AURA_CUDA_GENERAL_NUMBERS_CUH
#define AURA_CUDA_GENERAL_NUMBERS_CUH

#include "general.cuh"

template <int TYPE>
struct number {
    static constexpr int size = TYPE == AURA_ROW_F32 ? 4 : 2;
    static constexpr int planes = TYPE == AURA_ROW_F32 ? 3 : 1;         /* of A */
    static constexpr int factors = TYPE == AURA_ROW_F16 ? 2 : 3;        /* planes of B */
    static constexpr int batch = 4 / size;                              /* parts of 32 that are asked for together */
};

template <int TYPE>
__device__ __forceinline__ void mma_numbers(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                            uint32_t b1)
{
    if (TYPE == AURA_ROW_F16)
        mma_f16(c, a0, a1, a2, a3, b0, b1);
    else
        mma_bf16(c, a0, a1, a2, a3, b0, b1);
}

/* Takes the next plane, two bf16, from two f32, and leaves the rest of them. */
__device__ __forceinline__ uint32_t take_plane(uint32_t &x, uint32_t &y)
{
    const uint32_t plane = prmt(x, y, 0x7632);
    x = __float_as_uint(__uint_as_float(x) - __uint_as_float(x & 0xffff0000u));
    y = __float_as_uint(__uint_as_float(y) - __uint_as_float(y & 0xffff0000u));
    return plane;
}

/* The planes of two factors of B. */
template <int TYPE>
__device__ __forceinline__ void factor_planes(uint32_t (&plane)[3], float x, float y)
{
    if (TYPE == AURA_ROW_F16) {
        const __half2 upper = __floats2half2_rn(x, y);
        const __half2 lower = __floats2half2_rn(x - __low2float(upper), y - __high2float(upper));
        plane[0] = *(const uint32_t *)&upper;
        plane[1] = *(const uint32_t *)&lower;
    } else {
        uint32_t left[2] = {__float_as_uint(x), __float_as_uint(y)};
#pragma unroll
        for (int i = 0; i < 3; i++)
            plane[i] = take_plane(left[0], left[1]);
    }
}

/* The numbers of one side: rows of the cache's ring, or of the tile. */
struct number_rows {
    const uint8_t *base;
    bool ring;
    uint32_t row_bytes;
};

__device__ __forceinline__ struct number_rows number_rows_of(const struct dev_attend &a, const struct split &g, const uint8_t *tile,
                                                             bool values)
{
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim, kind = values ? a.c.v_kind : a.c.k_kind;
    const __half *rows = values ? a.c.v_rows : a.c.k_rows;
    if (rows)
        return {(const uint8_t *)(rows + ((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows * dim), true, dim * 2};
    return {tile + (values ? a.c.v_at : 0), false, dim * aura_plain_bytes(kind)};
}

__device__ __forceinline__ uint32_t number_at(const struct dev_attend &a, const struct number_rows &n,
                                              const struct general_visit &visit, uint32_t token)
{
    return (n.ring ? row_in(a.c, token, visit.from, visit.to) : token % AURA_TILE) * n.row_bytes;
}

/* ---- keys ---------------------------------------------------------------------------------------------------------------- */

/* Eight numbers of a token as words of A. */
template <int TYPE>
struct eight_numbers {
    uint4 w[number<TYPE>::size / 2];

    __device__ __forceinline__ void load(const uint8_t *from, bool there)
    {
#pragma unroll
        for (int i = 0; i < number<TYPE>::size / 2; i++)
            w[i] = there ? __ldcg((const uint4 *)(from + 16 * i)) : make_uint4(0, 0, 0, 0);
    }
    __device__ __forceinline__ uint4 plane()
    {
        if (TYPE != AURA_ROW_F32)
            return w[0];
        uint4 &first = w[0], &second = w[number<TYPE>::size / 2 - 1], p;
        p.x = take_plane(first.x, first.y), p.y = take_plane(first.z, first.w);
        p.z = take_plane(second.x, second.y), p.w = take_plane(second.z, second.w);
        return p;
    }
};

/* Two rows of A, tokens, against the columns of 32 channels. plane 0 meets all planes of the query; smaller ones the first two. */
template <class S, int TYPE>
__device__ __forceinline__ void multiply_keys(float (&c)[S::NT][2][4], eight_numbers<TYPE> (&k)[4], const uint8_t *q,
                                              uint32_t pitch)
{
    const int gl = threadIdx.x % 32 / 4;
    uint4 b[S::NT][2];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const uint8_t *row = q + 4 * nt * HALF_PLANES * pitch;
        b[nt][0] = *(const uint4 *)(row + gl % 2 * pitch);
        if (number<TYPE>::factors == 3)
            b[nt][1] = gl % 2 ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(row + 2 * pitch);
    }
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int plane = 0; plane < number<TYPE>::planes; plane++) {
            const uint4 x = k[2 * pair].plane(), y = k[2 * pair + 1].plane();
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
                for (int set = 0; set < (plane == 0 && number<TYPE>::factors == 3 ? 2 : 1); set++) {
                    mma_numbers<TYPE>(c[nt][pair], x.x, y.x, x.y, y.y, b[nt][set].x, b[nt][set].y);
                    mma_numbers<TYPE>(c[nt][pair], x.z, y.z, x.w, y.w, b[nt][set].z, b[nt][set].w);
                }
        }
}

/* Rows of tokens outside the visit may be anything, and so may their logits. */
template <class S, int TYPE>
__device__ __forceinline__ void score_numbers(float (&logit)[S::NT][1][4], const general_warp<S> &w, const struct dev_attend &a,
                                              const struct number_rows &rows, const struct general_visit &visit)
{
    constexpr int BATCH = number<TYPE>::batch;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint8_t *q = w.half_column(a, gl / 2, 0) + 16 * t;
    float c[S::NT][2][4] = {};
    uint32_t at[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        at[i] = number_at(a, rows, visit, visit.first + 4 * gl + i) + 8 * t * number<TYPE>::size;
#pragma unroll 1
    for (uint32_t done = 0; done < a.c.k_dim; done += 32 * BATCH) {
        eight_numbers<TYPE> k[BATCH][4];
#pragma unroll
        for (int part = 0; part < BATCH; part++)
#pragma unroll
            for (int i = 0; i < 4; i++)
                k[part][i].load(rows.base + at[i] + (done + 32 * part) * number<TYPE>::size, done + 32 * part + 8 * t < a.c.k_dim);
#pragma unroll
        for (int part = 0; part < BATCH; part++)
            if (done + 32 * part < a.c.k_dim)
                multiply_keys<S, TYPE>(c, k[part], q + 2 * (done + 32 * part), a.stage.half_pitch);
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const float *x = &c[nt][i / 2][2 * (i % 2)];
            logit[nt][0][i] = (x[0] + x[1]) * w.s.row[lane_row<S>(nt, 0)].top;
        }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* Four channels of four tokens; as words of A, channel c of two of them in one. */
template <int TYPE>
struct four_by_four {
    uint32_t w[4][number<TYPE>::size]; /* [token] */

    __device__ __forceinline__ void load(int i, const uint8_t *from, bool there)
    {
        if (TYPE == AURA_ROW_F32) {
            const uint4 x = there ? __ldcg((const uint4 *)from) : make_uint4(0, 0, 0, 0);
            w[i][0] = x.x, w[i][1] = x.y, w[i][number<TYPE>::size / 2] = x.z, w[i][number<TYPE>::size - 1] = x.w;
        } else {
            const uint2 x = there ? __ldcg((const uint2 *)from) : make_uint2(0, 0);
            w[i][0] = x.x, w[i][1] = x.y;
        }
    }
    __device__ __forceinline__ uint32_t plane(int channel, int pair)
    {
        if (TYPE == AURA_ROW_F32)
            return take_plane(w[2 * pair][channel % number<TYPE>::size], w[2 * pair + 1][channel % number<TYPE>::size]);
        return prmt(w[2 * pair][channel / 2], w[2 * pair + 1][channel / 2], channel % 2 ? 0x7632 : 0x5410);
    }
};

/* The columns of B for tokens 8 t + 4 half ... + 3: planes 0 and 1 of the weights, then plane 2 and nothing. */
template <class S, int TYPE>
__device__ __forceinline__ void weight_factors(uint32_t (&b)[S::NT][2][2], const uint32_t (&weight)[S::NT][2][3], int half)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, from = (2 * t + half) * 4 + gl / 2;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const uint32_t even = __shfl_sync(~0u, weight[nt][pair][0], from), odd = __shfl_sync(~0u, weight[nt][pair][1], from);
            b[nt][0][pair] = gl % 2 ? odd : even;
            if (number<TYPE>::factors == 3) {
                const uint32_t last = __shfl_sync(~0u, weight[nt][pair][2], from);
                b[nt][1][pair] = gl % 2 ? 0 : last;
            }
        }
}

template <class S, int TYPE>
__device__ __forceinline__ void multiply_values(running<S> &run, int j, four_by_four<TYPE> &v, const uint32_t (&b)[S::NT][2][2])
{
#pragma unroll
    for (int two = 0; two < 2; two++) { /* channels 2 two and the next are two rows of A */
        float x[S::NT][4] = {};
#pragma unroll
        for (int plane = 0; plane < number<TYPE>::planes; plane++) {
            const uint32_t a0 = v.plane(2 * two, 0), a1 = v.plane(2 * two + 1, 0), a2 = v.plane(2 * two, 1),
                a3 = v.plane(2 * two + 1, 1);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
                for (int set = 0; set < (plane == 0 && number<TYPE>::factors == 3 ? 2 : 1); set++)
                    mma_numbers<TYPE>(x[nt], a0, a1, a2, a3, b[nt][set][0], b[nt][set][1]);
        }
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++) {
            run.o[nt][0][j][2 * two] += x[nt][0] + x[nt][1];
            run.o[nt][0][j][2 * two + 1] += x[nt][2] + x[nt][3];
        }
    }
}

/* A token outside the visit has weight 0, but its numbers may be NaN: they are not read. */
template <class S, int TYPE>
__device__ __forceinline__ void value_numbers(running<S> &run, const float (&p)[S::NT][1][4], const struct dev_attend &a,
                                              const struct number_rows &rows, const struct general_visit &visit)
{
    constexpr int BATCH = number<TYPE>::batch;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    uint32_t weight[S::NT][2][3];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
            factor_planes<TYPE>(weight[nt][pair], p[nt][0][2 * pair], p[nt][0][2 * pair + 1]);
#pragma unroll 1
    for (int half = 0; half < 2; half++) {
        const uint32_t token = visit.first + 8 * t + 4 * half;
        uint32_t b[S::NT][2][2], at[4];
        weight_factors<S, TYPE>(b, weight, half);
#pragma unroll
        for (int i = 0; i < 4; i++)
            at[i] = number_at(a, rows, visit, token + i) + 4 * gl * number<TYPE>::size;
#pragma unroll
        for (int done = 0; done < S::PARTS; done += BATCH) {
            if (32 * done >= a.c.v_dim)
                break;
            four_by_four<TYPE> v[BATCH];
#pragma unroll
            for (int j = 0; j < BATCH; j++)
#pragma unroll
                for (int i = 0; i < 4; i++)
                    v[j].load(i, rows.base + at[i] + 32 * (done + j) * number<TYPE>::size,
                              32 * (done + j) + 4 * gl < a.c.v_dim && token + i >= visit.from && token + i < visit.to);
#pragma unroll
            for (int j = 0; j < BATCH; j++)
                multiply_values<S, TYPE>(run, done + j, v[j], b);
        }
    }
}

/* ---- which type ---------------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void score_any_numbers(float (&logit)[S::NT][1][4], const general_warp<S> &w, const struct dev_attend &a,
                                                  const struct general_visit &visit)
{
    const struct number_rows rows = number_rows_of(a, w.s.split, visit.tile, false);
    if (!S::DIM && a.c.k_kind == AURA_ROW_F32)
        score_numbers<S, AURA_ROW_F32>(logit, w, a, rows, visit);
    else if (!S::DIM && a.c.k_kind == AURA_ROW_BF16)
        score_numbers<S, AURA_ROW_BF16>(logit, w, a, rows, visit);
    else
        score_numbers<S, AURA_ROW_F16>(logit, w, a, rows, visit);
}

template <class S>
__device__ __forceinline__ void value_any_numbers(running<S> &run, const float (&p)[S::NT][1][4], const general_warp<S> &w,
                                                  const struct dev_attend &a, const struct general_visit &visit)
{
    const struct number_rows rows = number_rows_of(a, w.s.split, visit.tile, true);
    if (!S::DIM && a.c.v_kind == AURA_ROW_F32)
        value_numbers<S, AURA_ROW_F32>(run, p, a, rows, visit);
    else if (!S::DIM && a.c.v_kind == AURA_ROW_BF16)
        value_numbers<S, AURA_ROW_BF16>(run, p, a, rows, visit);
    else
        value_numbers<S, AURA_ROW_F16>(run, p, a, rows, visit);
}

#endif
