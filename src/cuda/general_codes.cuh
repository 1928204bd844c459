/* Codes of the general kernel: from the words of a tile in shared memory to sums.
 *
 * Both sides are read alike. A run of 32 codes is one step of an mma: lane (g, t) has group t of it, eight codes, for four rows of A
 * that lie side by side: tokens 4 g ... 4 g + 3, or channels. Runs follow each other along the channels of keys; of values a tile has
 * one run, and 32 channels after the other are a part. */
#ifndef AURA_CUDA_GENERAL_CODES_CUH
#define AURA_CUDA_GENERAL_CODES_CUH

#include "general.cuh"

/* Group t is quads first_quad and second_quad of a run: with 8 bits those whose words are in different banks, with 2 bits those in the
 * same bits of nibbles of a word, otherwise neighbours. */
__device__ __forceinline__ int first_quad(uint32_t kind, int t)
{
    return kind == 8 ? t : kind == 2 ? t / 2 * 4 + t % 2 : 2 * t;
}

__device__ __forceinline__ int second_quad(uint32_t kind, int t)
{
    return first_quad(kind, t) + (kind == 8 ? 4 : kind == 2 ? 2 : 1);
}

/* Where code i of a run is among the bytes of a column of B: group after group, each in the order in which codes are decoded. */
__device__ __forceinline__ uint32_t place_in_run(uint32_t kind, uint32_t i)
{
    const uint32_t quad = i / 4, second = kind == 8 ? quad / 4 : kind == 2 ? quad / 2 % 2 : quad % 2;
    const uint32_t t = kind == 8 ? quad % 4 : kind == 2 ? quad / 4 * 2 + quad % 2 : quad / 2;
    return 8 * t + (kind > 4 ? 4 * second + i % 4 : i % 4 * 2 + second);
}

/* The first row of words that lane t reads of a run. */
__device__ __forceinline__ int first_row(uint32_t kind, int t)
{
    return kind == 2 ? t / 2 : kind == 3 ? 0 : t;
}

/* What is taken from a byte to get its level. */
__device__ __forceinline__ int offset_of(uint32_t kind)
{
    return kind == 8 ? code<8>::offset : kind == 6 ? code<6>::offset : kind == 5 ? code<5>::offset : code<4>::offset;
}

/* The words of a group, of four rows of A each. */
template <int KIND>
struct group {
    static constexpr int low = KIND == 5 || KIND == 6 ? 4 : KIND, high = KIND - low; /* words of a run in either plane */
    static constexpr int n = KIND == 3 ? 3 : KIND == 2 || KIND == 4 ? 1 : 2;
    uint4 w[n];

    /* From the lane's first row to its row of the high plane, of so many runs. */
    static __device__ __forceinline__ int high_row(uint32_t runs, int t)
    {
        return runs * low + (KIND == 6 ? t / 2 : 0) - t;
    }

    __device__ __forceinline__ void load(const uint8_t *low_at, const uint8_t *high_at, uint32_t pitch)
    {
        w[0] = *(const uint4 *)low_at;
        if (KIND == 3)
            w[1 % n] = *(const uint4 *)(low_at + pitch), w[2 % n] = *(const uint4 *)(low_at + 2 * pitch);
        if (KIND == 8)
            w[1 % n] = *(const uint4 *)(low_at + 4 * pitch);
        if (high)
            w[1 % n] = *(const uint4 *)high_at;
    }

    /* Row i of the four. */
    __device__ __forceinline__ eight decode(int i, int t, const uint32_t (&table)[4]) const
    {
        eight e;
        const uint32_t x = part(w[0], i);
        if (KIND == 8) {
            e.r[0][0] = x;
            e.r[0][1] = part(w[1 % n], i);
        } else if (KIND == 5) {
            e = join<5>(x, part(w[1 % n], i) >> 2 * t, 0);
        } else if (KIND == 6) {
            e = join<6>(x, part(w[1 % n], i) >> 4 * (t % 2), 0);
        } else if (KIND == 4) {
            e = lookup<4>(x, table);
        } else if (KIND == 3) {
            const uint32_t y = part(w[1 % n], i), z = part(w[2 % n], i), spare = kept(spare_bits(x, y, z)); /* no branch for it */
            e = lookup<3>((t == 0 ? x : t == 1 ? y : t == 2 ? z : spare) & 0x77777777u, table);
        } else {
            e = lookup<2>(x >> 2 * (t % 2) & 0x33333333u, table);
        }
        return e;
    }
};

/* What a lane keeps for the codes of a segment. */
template <class S>
__device__ __forceinline__ void begin_codes(general_warp<S> &w, const struct dev_attend &a)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    w.k_words = w.mine + a.stage.k.at + 16 * gl + first_row(a.c.k_kind, t) * a.stage.k.pitch;
    w.v_words = w.mine + a.stage.v.at + 16 * gl + first_row(a.c.v_kind, t) * a.stage.v.pitch;
    w.column = w.q_column(a, gl / 2, gl % 2) + 8 * t;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const row_info &row = w.s.row[lane_row<S>(nt, 0)];
#pragma unroll
        for (int i = 0; i < 2; i++)
            w.begin[nt][i] = -offset_of(a.c.k_kind) * row.sum[i];
        w.factor[nt] = row.factor;
        w.bias[nt] = 0;
    }
}

/* ---- keys ---------------------------------------------------------------------------------------------------------------- */

/* The products of a page's reference: it is one more key, in all rows of A, so that every lane has its own. */
template <class S>
__device__ __forceinline__ void general_bias(general_warp<S> &w, const struct dev_attend &a)
{
    const int t = threadIdx.x % 4;
    const uint32_t kind = a.c.k_kind;
    const uint8_t *reference = w.mine + a.stage.reference;
    const float scale = __half2float(*(const __half *)(reference + (a.c.reference_scale_at - a.c.reference_at)));
    int sum[S::NT][4] = {};
    for (uint32_t d = 0; d < a.stage.k_pad; d += AURA_RUN) {
        const uint32_t first = *(const uint32_t *)(reference + d + 4 * first_quad(kind, t));
        const uint32_t second = *(const uint32_t *)(reference + d + 4 * second_quad(kind, t));
        uint32_t r[2] = {first, second};
        if (kind <= 4)
            in_group_order<4>(r, first, second);
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++) {
            const uint2 b = *(const uint2 *)(w.column + 8 * nt * a.stage.q_pitch + d);
            mma_s8s8(sum[nt], r[0], r[0], r[1], r[1], b.x, b.y, sum[nt]);
        }
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const float factor = __fmul_rn(__fmul_rn(w.s.row[lane_row<S>(nt, 0)].step, scale), a.c.reference_step);
        w.bias[nt] = __fmul_rn((float)(sum[nt][0] * 256 + sum[nt][1]), __fmul_rn(factor, a.unit));
    }
}

/* One run of the channels of 32 tokens. */
template <class S, int KIND>
__device__ __forceinline__ void sum_run(int (&sum)[S::NT][2][4], const general_warp<S> &w, const struct dev_attend &a,
                                        const group<KIND> &x, uint32_t run, const uint32_t (&table)[4])
{
    const int t = threadIdx.x % 4;
    uint32_t b[S::NT][2];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const uint2 column = *(const uint2 *)(w.column + 8 * nt * a.stage.q_pitch + run * AURA_RUN);
        b[nt][0] = column.x, b[nt][1] = column.y;
    }
#pragma unroll
    for (int pair = 0; pair < 2; pair++) {
        const eight row = x.decode(2 * pair, t, table), next = x.decode(2 * pair + 1, t, table);
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++)
            mma_codes<KIND, false>(sum[nt][pair], row, next, b[nt], sum[nt][pair]);
    }
}

/* All runs, of which there are two at least. */
template <class S, int KIND>
__device__ __forceinline__ void sum_keys(int (&sum)[S::NT][2][4], const general_warp<S> &w, const struct dev_attend &a)
{
    using G = group<KIND>;
    constexpr uint32_t pitch = AURA_TILE * 4 + ROW_SPACE;
    const uint32_t runs = a.stage.k_pad / AURA_RUN;
    const uint4 all = *(const uint4 *)w.s.k_table;
    const uint32_t table[4] = {all.x, all.y, all.z, all.w};
    const uint8_t *low = w.k_words, *high = low + G::high_row(runs, threadIdx.x % 4) * (int)pitch;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++)
            sum[nt][0][i] = sum[nt][1][i] = w.begin[nt][i % 2];
    G x, y;
    uint32_t run = 0;
#pragma unroll 1
    do {
        x.load(low + run * G::low * pitch, high + run * G::high * pitch, pitch);
        y.load(low + (run + 1) * G::low * pitch, high + (run + 1) * G::high * pitch, pitch);
        sum_run<S, KIND>(sum, w, a, x, run, table);
        sum_run<S, KIND>(sum, w, a, y, run + 1, table);
    } while ((run += 2) + 2 <= runs);
    if (run < runs) {
        x.load(low + run * G::low * pitch, high + run * G::high * pitch, pitch);
        sum_run<S, KIND>(sum, w, a, x, run, table);
    }
}

/* The decoder is chosen here, for every tile. */
template <class S>
__device__ __forceinline__ void score_codes(float (&logit)[S::NT][1][4], const general_warp<S> &w, const struct dev_attend &a)
{
    int sum[S::NT][2][4];
    switch (a.c.k_kind) {
    case 2: sum_keys<S, 2>(sum, w, a); break;
    case 3: sum_keys<S, 3>(sum, w, a); break;
    case 4: sum_keys<S, 4>(sum, w, a); break;
    case 5: sum_keys<S, 5>(sum, w, a); break;
    case 6: sum_keys<S, 6>(sum, w, a); break;
    default: sum_keys<S, 8>(sum, w, a);
    }
    const bool one = a.planes % 4 == 1; /* then nobody looks at the sums of lower bytes */
    const int upper = one ? 1 : 256, lower = one ? 0 : -1;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int *x = &sum[nt][i / 2][2 * (i % 2)];
            const float whole = (float)(x[0] * upper + (x[1] & lower));
            logit[nt][0][i] = __fadd_rn(__fmul_rn(whole, __fmul_rn(half_of(w.k_scale, i), w.factor[nt])), w.bias[nt]);
        }
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* Weights times value scales as bytes, four tokens in a word, upper and lower ones; and the unit of their sums. */
template <class S>
struct byte_weights {
    uint32_t byte[S::NT][2];
    float factor[S::NT];
};

template <class S>
__device__ __forceinline__ void weights_to_bytes(byte_weights<S> &b, const float (&p)[S::NT][1][4], const general_warp<S> &w,
                                                 const struct dev_attend &a)
{
    const bool one = a.planes / 4 == 1;
    const float most = one ? 255.f : 65280.f;
    float scale[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        scale[i] = half_of(w.v_scale, i);
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        float x[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = p[nt][0][i] * scale[i];
        const float top = fmaxf(row_max(fmaxf(fmaxf(x[0], x[1]), fmaxf(x[2], x[3]))), 0x1p-100f); /* as good as nothing */
        const float to_integer = __fdividef(most, top);
        b.factor[nt] = top * (1 / most) * a.c.v_step;
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = fmaf(x[i], to_integer, WHOLE);
        b.byte[nt][0] = bytes_of(x, one ? LOWEST_BYTES : SECOND_BYTES);
        b.byte[nt][1] = bytes_of(x, LOWEST_BYTES) & (one ? 0 : ~0u);
    }
}

/* The column of B of this lane, and what its sums begin with: see sum_of in attend_tiles.cuh for ONE plane. */
template <int KIND, bool ONE>
__device__ __forceinline__ void weight_column(uint32_t (&b)[2], int (&begin)[4], const uint32_t (&byte)[2])
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, quad[2] = {first_quad(KIND, t), second_quad(KIND, t)};
    uint32_t tokens[2];
#pragma unroll
    for (int i = 0; i < 2; i++) { /* lanes of quad q have tokens 4 q ... */
        const uint32_t even = __shfl_sync(~0u, byte[0], 4 * quad[i] + gl / 2), odd = __shfl_sync(~0u, byte[1], 4 * quad[i] + gl / 2);
        tokens[i] = gl % 2 ? odd : even;
    }
    in_group_order<KIND>(b, tokens[0], tokens[1]);
    begin[0] = begin[1] = ONE ? WHOLE_BITS : 0;
    if (code<KIND>::offset) {
        uint32_t sum = __dp4a(byte[0], 0x01010101u, 0u) + (__dp4a(byte[1], 0x01010101u, 0u) << 16);
        sum += __shfl_xor_sync(~0u, sum, 4);
        sum += __shfl_xor_sync(~0u, sum, 8);
        sum += __shfl_xor_sync(~0u, sum, 16);
        begin[0] -= code<KIND>::offset * (int)(sum & 0xffff);
        begin[1] -= code<KIND>::offset * (int)(sum >> 16);
    }
    begin[2] = __shfl_xor_sync(~0u, begin[0], 4); /* the same number, but the compiler would copy it again and again */
    begin[3] = __shfl_xor_sync(~0u, begin[1], 4);
}

/* Channels from v_dim on, in the last part, are whatever is there: nobody looks at their sums. */
template <class S, int KIND, bool ONE>
__device__ __forceinline__ void add_values(running<S> &run, const byte_weights<S> &weights, const general_warp<S> &w,
                                           const struct dev_attend &a)
{
    using G = group<KIND>;
    const int t = threadIdx.x % 4;
    const uint32_t pitch = a.stage.v.pitch;
    const uint4 all = *(const uint4 *)w.s.v_table;
    const uint32_t table[4] = {all.x, all.y, all.z, all.w};
    const uint8_t *low = w.v_words, *high = low + G::high_row(1, t) * (int)pitch;
    uint32_t b[S::NT][2];
    int begin[S::NT][4];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
        weight_column<KIND, ONE>(b[nt], begin[nt], weights.byte[nt]);
#pragma unroll
    for (int j = 0; j < S::PARTS; j++) {
        if (32 * j >= a.c.v_dim)
            break;
        G x;
        x.load(low + 128 * j, high + 128 * j, pitch);
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            const eight row = x.decode(2 * pair, t, table), next = x.decode(2 * pair + 1, t, table);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++) {
                int sum[4];
                mma_codes<KIND, true>(sum, row, next, b[nt], begin[nt]);
#pragma unroll
                for (int i = 0; i < 2; i++) {
                    float &o = run.o[nt][0][j][2 * pair + i];
                    const float x = ONE ? __int_as_float(sum[2 * i]) - WHOLE : (float)(sum[2 * i] * 256 + sum[2 * i + 1]);
                    o = fmaf(x, weights.factor[nt], o);
                }
            }
        }
    }
}

template <class S, bool ONE>
__device__ __forceinline__ void add_any_values(running<S> &run, const byte_weights<S> &b, const general_warp<S> &w,
                                               const struct dev_attend &a)
{
    switch (a.c.v_kind) {
    case 2: add_values<S, 2, ONE>(run, b, w, a); break;
    case 3: add_values<S, 3, ONE>(run, b, w, a); break;
    case 4: add_values<S, 4, ONE>(run, b, w, a); break;
    case 5: add_values<S, 5, ONE>(run, b, w, a); break;
    case 6: add_values<S, 6, ONE>(run, b, w, a); break;
    default: add_values<S, 8, ONE>(run, b, w, a);
    }
}

template <class S>
__device__ __forceinline__ void value_codes(running<S> &run, const float (&p)[S::NT][1][4], const general_warp<S> &w,
                                            const struct dev_attend &a)
{
    byte_weights<S> b;
    weights_to_bytes<S>(b, p, w, a);
    if (a.planes / 4 == 1)
        add_any_values<S, true>(run, b, w, a);
    else
        add_any_values<S, false>(run, b, w, a);
}

#endif
