/* Codes of the general kernel: from the words of a tile in shared memory to sums.
 *
 * Both sides are read in the same way. A run of 32 codes is one step of an mma: lane (g, t) has octet t of it, eight codes, for
 * four rows of A that lie side by side: tokens 4 g ... 4 g + 3, or channels. Keys have runs along their channels, and a warp
 * takes two of them at a time. Values have one run, the 32 tokens of the tile; 32 channels are a part. */
#ifndef AURA_CUDA_GENERAL_CODES_CUH
#define AURA_CUDA_GENERAL_CODES_CUH

#include "general.cuh"

/* The space of a warp begins with the scales of the tile, then the levels of up to 4 bits. */
enum { K_TABLE = 2 * 2 * AURA_TILE, V_TABLE = K_TABLE + 16, PART_HEAD = V_TABLE + 16 };

/* Octet t of a run is quads first_quad and first_quad + next_quad. With 8 bits they are such that their words are in different
 * banks, with 2 bits such that they have the same bits in the nibbles of a word; otherwise they are neighbours. */
__device__ __forceinline__ int first_quad(uint32_t kind, int t)
{
    return kind == 8 ? t : kind == 2 ? t / 2 * 4 + t % 2 : 2 * t;
}

__device__ __forceinline__ int next_quad(uint32_t kind)
{
    return kind == 8 ? 4 : kind == 2 ? 2 : 1;
}

/* What is taken from a byte to get its level; of trellis codes as of 4 bits. */
__device__ __forceinline__ int offset_of(uint32_t kind)
{
    return kind == 8 ? code<8>::offset : kind == 6 ? code<6>::offset : kind == 5 ? code<5>::offset : code<4>::offset;
}

/* The first row of words that lane t reads of a run. */
__device__ __forceinline__ int first_row(uint32_t kind, int t)
{
    return kind == 2 ? t / 2 : kind == 3 || aura_is_trellis(kind) ? 0 : t;
}

/* The words of an octet, of four rows of A each. */
template <int KIND>
struct octet {
    static constexpr int low = KIND == 5 || KIND == 6 ? 4 : KIND, high = KIND - low; /* low and high words of a run */
    static constexpr int n = KIND == 3 ? 3 : KIND == 2 || KIND == 4 ? 1 : 2;
    uint4 w[n];

    /* From the lane's first row to its row of high words, of so many runs. */
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

/* Those of trellis codes: all words of the run, and words 0 that come after: of the next run, or of the next four channels. */
template <int BITS, bool VALUES>
struct trellis_words {
    static constexpr int low = BITS, high = 0;
    uint4 w[BITS], after;

    static __device__ __forceinline__ int high_row(uint32_t, int)
    {
        return 0;
    }

    /* There is nothing after the last run and after the last channel: what is read there is not used. */
    __device__ __forceinline__ void load(const uint8_t *at, uint32_t pitch, bool last)
    {
#pragma unroll
        for (int i = 0; i < BITS; i++)
            w[i] = *(const uint4 *)(at + i * pitch);
        after = last ? make_uint4(0, 0, 0, 0) : *(const uint4 *)(at + (VALUES ? 16 : BITS * pitch));
    }

    __device__ __forceinline__ eight decode(int i, int t, const uint32_t (&table)[4]) const
    {
        uint32_t word[BITS];
#pragma unroll
        for (int j = 0; j < BITS; j++)
            word[j] = part(w[j], i);
        const struct subset_bits z = VALUES ? subsets_of_value(w[0], after, i) : subsets_of_key(word[0], part(after, i));
        return trellis_octet<BITS>(z, word, t, table);
    }
};

template <> struct octet<AURA_TRELLIS_2> : trellis_words<2, true> {};
template <> struct octet<AURA_TRELLIS_3> : trellis_words<3, true> {};
template <> struct octet<AURA_TRELLIS_4> : trellis_words<4, true> {};

/* ---- keys ---------------------------------------------------------------------------------------------------------------- */

/* Keys come in pairs of runs, two steps, of which lane t has 16 codes. They are octet t of either run; but with 2 bits word t
 * of the pair, so that a word is read once and its bits are at places that are known when compiling. */
enum { PAIR = 2 * AURA_RUN };

/* The first quad of those eight codes of the pair that lane t has in a step. */
__device__ __forceinline__ int pair_quad(uint32_t kind, int t, int step)
{
    return kind == 2 ? 4 * t + step : 8 * step + first_quad(kind, t);
}

/* Where code i of a pair is among the bytes of a column of B: what lane 0 has, in the order in which it is decoded, then lane 1
 * ... */
__device__ __forceinline__ uint32_t place_in_pair(uint32_t kind, uint32_t i)
{
    const bool trellis = aura_is_trellis(kind); /* channel 8 b + k is code 4 k + b */
    const uint32_t quad = trellis ? i % 8 : i / 4 % 8, byte = trellis ? i / 8 % 4 : i % 4;
    if (kind == 2)
        return i / 16 * 16 + quad % 2 * 8 + 2 * byte + quad / 2 % 2;
    const uint32_t t = kind == 8 ? quad % 4 : quad / 2, second = kind == 8 ? quad / 4 : quad % 2;
    return 16 * t + i / AURA_RUN * 8 + (kind > 4 && !trellis ? 4 * second + byte : 2 * byte + second);
}

template <int KIND>
struct key_pair {
    static constexpr uint32_t pitch = AURA_TILE * 4 + ROW_SPACE;
    static constexpr bool few = KIND == 2 || KIND == 4; /* registers: then two of them can be there */
    octet<KIND> run[KIND == 2 ? 1 : 2];

    /* From where pair 0 is; there are so many runs. */
    __device__ __forceinline__ void load(const uint8_t *low, const uint8_t *high, uint32_t pair, uint32_t)
    {
        using G = octet<KIND>;
#pragma unroll
        for (int i = 0; i < (KIND == 2 ? 1 : 2); i++)
            run[i].load(low + (2 * pair + i) * (G::low * pitch), high + (2 * pair + i) * (G::high * pitch), pitch);
    }

    __device__ __forceinline__ eight decode(int step, int i, int t, const uint32_t (&table)[4]) const
    {
        if (KIND != 2)
            return run[step % (KIND == 2 ? 1 : 2)].decode(i, t, table);
        return lookup<2>(part(run[0].w[0], i) >> 2 * step & 0x33333333u, table);
    }
};

template <int BITS>
struct trellis_pair {
    static constexpr uint32_t pitch = AURA_TILE * 4 + ROW_SPACE;
    static constexpr bool few = false;
    trellis_words<BITS, false> run[2];

    __device__ __forceinline__ void load(const uint8_t *low, const uint8_t *, uint32_t pair, uint32_t runs)
    {
#pragma unroll
        for (int i = 0; i < 2; i++)
            run[i].load(low + (2 * pair + i) * (BITS * pitch), pitch, 2 * pair + i + 1 >= runs);
    }

    __device__ __forceinline__ eight decode(int step, int i, int t, const uint32_t (&table)[4]) const
    {
        return run[step].decode(i, t, table);
    }
};

template <> struct key_pair<AURA_TRELLIS_2> : trellis_pair<2> {};
template <> struct key_pair<AURA_TRELLIS_3> : trellis_pair<3> {};
template <> struct key_pair<AURA_TRELLIS_4> : trellis_pair<4> {};

/* All lanes with the same rows have the same number. The compiler does not know that, and would copy it again and again. */
__device__ __forceinline__ int same_again(int x)
{
    return __shfl_xor_sync(~0u, x, 4);
}

/* What a lane keeps for the codes of a split. */
template <class S>
__device__ __forceinline__ void begin_codes(general_warp<S> &w, const struct dev_attend &a)
{
    const uint32_t lane = w.lane;
    const int gl = lane / 4, t = lane % 4, both = a.planes % 4 == 2;
    if (lane < 8)
        ((uint32_t *)(w.mine + K_TABLE))[lane] = (lane < 4 ? a.c.k_table : a.c.v_table)[lane % 4];
    w.k_to = kept_shared(w.mine + a.stage.k.at + 16 * lane + lane / 8 * ROW_SPACE);
    w.v_to = kept_shared(w.mine + a.stage.v.at + 16 * lane);
    w.scales_to = kept_shared(w.mine + 16 * lane + (a.stage.k.chunks ? 0 : 2 * AURA_TILE));
    w.scales = kept_shared(w.mine + 8 * gl);
    w.k_words = kept_shared(w.mine + a.stage.k.at + 16 * gl + (a.c.k_kind == 2 ? t : first_row(a.c.k_kind, t)) * a.stage.k.pitch);
    w.v_words = kept_shared(w.mine + a.stage.v.at + 16 * gl + first_row(a.c.v_kind, t) * a.stage.v.pitch);
    w.column = kept_shared(w.q_column(a, gl / 2, gl % 2 ? BESIDE : UPPER) + 16 * t);
    w.weights_from = kept(4 * first_quad(a.c.v_kind, t) + gl / 2); /* lanes of quad q have tokens 4 q ... */
    w.upper = kept(both ? 256 : 1);
    w.beside = kept(both ? ~0 : 0);
    uint32_t limit = AURA_NO_LIMIT;
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const row_info &row = w.s.row[lane_row<S>(nt, 0)];
#pragma unroll
        for (int i = 0; i < 2; i++)
            w.begin[nt][i] = i && !takes_lower(a) ? 0 : -offset_of(a.c.k_kind) * row.sum[i];
#pragma unroll
        for (int i = 0; i < 2; i++)
            w.begin[nt][2 + i] = same_again(w.begin[nt][i]);
        w.factor[nt] = row.factor;
        w.bias[nt] = 0;
        limit = min(limit, row.limit);
    }
    w.limit = kept(limit);
}

/* The products of a page's reference: it is one more key, in all rows of A, so that every lane has its own. */
template <class S>
__device__ __forceinline__ void general_bias(general_warp<S> &w, const struct dev_attend &a)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t kind = a.c.k_kind;
    const uint8_t *reference = w.mine + a.stage.reference, *column = w.q_column(a, gl / 2, gl % 2 ? LOWER : UPPER) + 16 * t;
    const float scale = __half2float(*(const __half *)(reference + (a.c.reference_scale_at - a.c.reference_at)));
    int sum[S::NT][4] = {};
    for (uint32_t step = 0; step < a.stage.k_pad / AURA_RUN; step++) {
        const uint32_t at = step / 2 * PAIR + 4 * pair_quad(kind, t, step % 2);
        uint32_t r[2];
        if (aura_is_trellis(kind)) { /* channels 8 b + 2 t and the next, for every b */
            const uint16_t *two = (const uint16_t *)(reference + AURA_RUN * step + 2 * t);
            r[0] = two[0] | (uint32_t)two[4] << 16, r[1] = two[8] | (uint32_t)two[12] << 16;
        } else {
            const uint32_t first = *(const uint32_t *)(reference + at), second =
                *(const uint32_t *)(reference + at + 4 * next_quad(kind));
            r[0] = first, r[1] = second;
            if (kind <= 4)
                in_octet_order<4>(r, first, second);
        }
#pragma unroll
        for (int nt = 0; nt < S::NT; nt++) {
            const uint2 b = *(const uint2 *)(column + 4 * nt * QUERY_COLUMNS * a.stage.q_pitch + step / 2 * PAIR + step % 2 * 8);
            mma_s8s8(sum[nt], r[0], r[0], r[1], r[1], b.x, b.y, sum[nt]);
        }
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const float factor = __fmul_rn(__fmul_rn(w.s.row[lane_row<S>(nt, 0)].step, scale), a.c.reference_step);
        w.bias[nt] = __fmul_rn((float)(sum[nt][0] * 256 + sum[nt][1]), __fmul_rn(factor, a.unit));
    }
}

/* One pair of runs of the channels of 32 tokens. FIRST: sums begin here. */
template <class S, int KIND, bool FIRST>
__device__ __forceinline__ void sum_pair(int (&sum)[S::NT][2][4], const general_warp<S> &w, const struct dev_attend &a,
                                         const key_pair<KIND> &x, uint32_t pair, const uint32_t (&table)[4])
{
    const int t = threadIdx.x % 4;
    uint32_t b[S::NT][2][2];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const uint4 column = *(const uint4 *)(w.column + 4 * nt * QUERY_COLUMNS * a.stage.q_pitch + pair * PAIR);
        b[nt][0][0] = column.x, b[nt][0][1] = column.y, b[nt][1][0] = column.z, b[nt][1][1] = column.w;
    }
#pragma unroll
    for (int step = 0; step < 2; step++)
#pragma unroll
        for (int two = 0; two < 2; two++) {
            const eight row = x.decode(step, 2 * two, t, table), next = x.decode(step, 2 * two + 1, t, table);
#pragma unroll
            for (int nt = 0; nt < S::NT; nt++)
                mma_codes<KIND, false>(sum[nt][two], row, next, b[nt][step], FIRST && step == 0 ? w.begin[nt] : sum[nt][two]);
        }
}

/* All pairs. */
template <class S, int KIND>
__device__ __forceinline__ void sum_keys(int (&sum)[S::NT][2][4], const general_warp<S> &w, const struct dev_attend &a)
{
    using P = key_pair<KIND>;
    const uint32_t runs = (S::DIM ? S::DIM : a.c.k_dim + AURA_RUN - 1) / AURA_RUN;
    const uint4 all = *(const uint4 *)(w.mine + K_TABLE);
    const uint32_t table[4] = {all.x, all.y, all.z, all.w};
    const uint8_t *low = w.k_words, *high = low + octet<KIND>::high_row(runs, threadIdx.x % 4) * (int)P::pitch;
    P x;
    x.load(low, high, 0, runs);
    if (S::DIM == 2 * PAIR) {
        P y;
        if (P::few)
            y.load(low, high, 1, runs);
        sum_pair<S, KIND, true>(sum, w, a, x, 0, table);
        if (!P::few)
            y.load(low, high, 1, runs);
        sum_pair<S, KIND, false>(sum, w, a, y, 1, table);
        return;
    }
    sum_pair<S, KIND, true>(sum, w, a, x, 0, table);
#pragma unroll 1
    for (uint32_t pair = 1; pair < a.stage.k_pad / PAIR; pair++) {
        x.load(low, high, pair, runs);
        sum_pair<S, KIND, false>(sum, w, a, x, pair, table);
    }
}

/* The same; and the copies of the next tile's keys start, if there is one, to where these were. */
template <class S, int KIND>
__device__ __forceinline__ void take_keys(int (&sum)[S::NT][2][4], const general_warp<S> &w, const struct dev_attend &a,
                                          const struct tile_walk &next)
{
    sum_keys<S, KIND>(sum, w, a);
    __syncwarp();
    if (S::DIM && next.left)
        ask_keys<S, KIND>(w, a, next.chunk);
}

/* One plane: logits of keys whose scale is above the limit of a row become those of two. */
template <class S>
__device__ __forceinline__ void score_both(float (&logit)[S::NT][1][4], const int (&sum)[S::NT][2][4], const general_warp<S> &w,
                                           const struct dev_attend &a)
{
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const row_info &row = w.s.row[lane_row<S>(nt, 0)];
        const float factor = __fmul_rn(__fmul_rn(row.step, a.c.k_step), a.unit);
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int *x = &sum[nt][i / 2][2 * (i % 2)];
            const float both = __fmul_rn((float)(x[0] * 256 + x[1]), __fmul_rn(half_of(w.k_scale, i), factor));
            if (aura_takes_both(low_half(w.k_scale, i) >> 16 * (i % 2), row.limit))
                logit[nt][0][i] = __fadd_rn(both, w.bias[nt]);
        }
    }
}

/* The decoder is chosen here, for every tile. */
template <class S>
__device__ __forceinline__ void score_codes(float (&logit)[S::NT][1][4], const general_warp<S> &w, const struct dev_attend &a,
                                            const struct tile_walk &next)
{
    int sum[S::NT][2][4];
    switch (a.c.k_kind) {
    case 2: take_keys<S, 2>(sum, w, a, next); break;
    case 3: take_keys<S, 3>(sum, w, a, next); break;
    case 4: take_keys<S, 4>(sum, w, a, next); break;
    case 5: take_keys<S, 5>(sum, w, a, next); break;
    case 6: take_keys<S, 6>(sum, w, a, next); break;
    case AURA_TRELLIS_2: take_keys<S, AURA_TRELLIS_2>(sum, w, a, next); break;
    case AURA_TRELLIS_3: take_keys<S, AURA_TRELLIS_3>(sum, w, a, next); break;
    case AURA_TRELLIS_4: take_keys<S, AURA_TRELLIS_4>(sum, w, a, next); break;
    default: take_keys<S, 8>(sum, w, a, next);
    }
    if (!S::DIM && next.left)
        ask_any_keys<S>(w, a, next.chunk);
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int *x = &sum[nt][i / 2][2 * (i % 2)];
            const float whole = (float)(x[0] * w.upper + (x[1] & w.beside));
            logit[nt][0][i] = __fadd_rn(__fmul_rn(whole, __fmul_rn(half_of(w.k_scale, i), w.factor[nt])), w.bias[nt]);
        }
    if (has_scale_above(w.k_scale, w.limit))
        score_both<S>(logit, sum, w, a);
}

/* ---- values -------------------------------------------------------------------------------------------------------------- */

/* Weights times value scales as bytes, four tokens in a word, upper and lower ones, which with ONE plane are not there; and the
 * unit of their sums. */
template <class S>
struct byte_weights {
    uint32_t byte[S::NT][2];
    float factor[S::NT];
};

template <class S, bool ONE>
__device__ __forceinline__ void weights_to_bytes(byte_weights<S> &b, const float (&p)[S::NT][1][4], const general_warp<S> &w,
                                                 const struct dev_attend &a)
{
    constexpr float most = ONE ? 255.f : 65280.f;
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
        const float to_integer = most * reciprocal_approx(top);
        b.factor[nt] = top * (1 / most) * a.c.v_step;
#pragma unroll
        for (int i = 0; i < 4; i++)
            x[i] = fmaf(x[i], to_integer, WHOLE);
        b.byte[nt][0] = bytes_of(x, ONE ? LOWEST_BYTES : SECOND_BYTES);
        b.byte[nt][1] = ONE ? 0 : bytes_of(x, LOWEST_BYTES);
    }
}

/* The column of B of this lane, and what its sums begin with: see sum_of in attend_tiles.cuh for ONE plane. The offset of
 * levels is one more value of all tokens, in all rows of A. */
template <int KIND, bool ONE>
__device__ __forceinline__ void weight_column(uint32_t (&b)[2], int (&begin)[4], const uint32_t (&byte)[2], uint32_t from)
{
    uint32_t tokens[2];
#pragma unroll
    for (int i = 0; i < 2; i++) {
        tokens[i] = __shfl_sync(~0u, byte[0], from + 4 * next_quad(KIND) * i);
        if (!ONE) {
            const uint32_t lower = __shfl_sync(~0u, byte[1], from + 4 * next_quad(KIND) * i);
            tokens[i] = threadIdx.x / 4 % 2 ? lower : tokens[i];
        }
    }
    in_octet_order<KIND>(b, tokens[0], tokens[1]);
#pragma unroll
    for (int i = 0; i < 4; i++)
        begin[i] = ONE ? WHOLE_BITS : 0;
    if (code<KIND>::offset) {
        constexpr uint32_t level = 0x01010101u * (256 - code<KIND>::offset);
        mma_s8u8(begin, level, level, level, level, b[0], b[1], begin);
    }
}

/* 32 channels of the weighted sum of the tile. */
template <class S, int KIND, bool ONE>
__device__ __forceinline__ void add_part(running<S> &run, int j, const octet<KIND> &x, const uint32_t (&b)[S::NT][2],
                                         const int (&begin)[S::NT][4], const byte_weights<S> &weights, const uint32_t (&table)[4])
{
    const int t = threadIdx.x % 4;
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

/* The words of part j; the lane has channels 4 gl ... of it. */
template <int KIND>
__device__ __forceinline__ void load_part(octet<KIND> &x, const uint8_t *low, const uint8_t *high, int j, uint32_t pitch,
                                          uint32_t dim)
{
    if constexpr (code<KIND>::trellis)
        x.load(low + 128 * j, pitch, 32 * j + threadIdx.x % 32 / 4 * 4 + 4 >= dim);
    else
        x.load(low + 128 * j, high + 128 * j, pitch);
}

/* Channels from v_dim on, in the last parts, may be anything: nobody reads their sums. */
template <class S, int KIND, bool ONE>
__device__ __forceinline__ void add_values(running<S> &run, const byte_weights<S> &weights, const general_warp<S> &w,
                                           const struct dev_attend &a)
{
    using G = octet<KIND>;
    const uint32_t pitch = S::DIM ? S::DIM * 4 + ROW_SPACE : a.stage.v.pitch;
    const uint4 all = *(const uint4 *)(w.mine + V_TABLE);
    const uint32_t table[4] = {all.x, all.y, all.z, all.w};
    const uint8_t *low = w.v_words, *high = low + G::high_row(1, threadIdx.x % 4) * (int)pitch;
    uint32_t b[S::NT][2];
    int begin[S::NT][4];
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++)
        weight_column<KIND, ONE>(b[nt], begin[nt], weights.byte[nt], w.weights_from);
#pragma unroll
    for (int j = 0; j < S::PARTS; j += 2) {
        if (!S::DIM && j && 32 * j >= a.c.v_dim)
            break;
        G x, y;
        load_part<KIND>(x, low, high, j, pitch, S::DIM ? S::DIM : a.c.v_dim);
        load_part<KIND>(y, low, high, j + 1, pitch, S::DIM ? S::DIM : a.c.v_dim);
        add_part<S, KIND, ONE>(run, j, x, b, begin, weights, table);
        add_part<S, KIND, ONE>(run, j + 1, y, b, begin, weights, table);
    }
}

/* The same; and the copies of the next tile's values start, if there is one, to where these were. */
template <class S, int KIND, bool ONE>
__device__ __forceinline__ void take_values(running<S> &run, const byte_weights<S> &b, const general_warp<S> &w,
                                            const struct dev_attend &a, const struct tile_walk &next)
{
    add_values<S, KIND, ONE>(run, b, w, a);
    __syncwarp();
    if (S::DIM && next.left)
        ask_values<S, KIND>(w, a, next.chunk);
}

template <class S, bool ONE>
__device__ __forceinline__ void take_any_values(running<S> &run, const float (&p)[S::NT][1][4], const general_warp<S> &w,
                                                const struct dev_attend &a, const struct tile_walk &next)
{
    byte_weights<S> b;
    weights_to_bytes<S, ONE>(b, p, w, a);
    copies_but_last_arrived();
    __syncwarp();
    switch (a.c.v_kind) {
    case 2: take_values<S, 2, ONE>(run, b, w, a, next); break;
    case 3: take_values<S, 3, ONE>(run, b, w, a, next); break;
    case 4: take_values<S, 4, ONE>(run, b, w, a, next); break;
    case 5: take_values<S, 5, ONE>(run, b, w, a, next); break;
    case 6: take_values<S, 6, ONE>(run, b, w, a, next); break;
    case AURA_TRELLIS_2: take_values<S, AURA_TRELLIS_2, ONE>(run, b, w, a, next); break;
    case AURA_TRELLIS_3: take_values<S, AURA_TRELLIS_3, ONE>(run, b, w, a, next); break;
    case AURA_TRELLIS_4: take_values<S, AURA_TRELLIS_4, ONE>(run, b, w, a, next); break;
    default: take_values<S, 8, ONE>(run, b, w, a, next);
    }
}

template <class S>
__device__ __forceinline__ void value_codes(running<S> &run, const float (&p)[S::NT][1][4], const general_warp<S> &w,
                                            const struct dev_attend &a, const struct tile_walk &next)
{
    if (a.planes / 4 == 1)
        take_any_values<S, true>(run, p, w, a, next);
    else
        take_any_values<S, false>(run, p, w, a, next);
    if (!S::DIM && next.left)
        ask_any_values<S>(w, a, next.chunk);
}

#endif
