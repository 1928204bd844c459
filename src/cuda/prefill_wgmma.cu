/* Attention of many queries by tensor products of whole warp groups (sm_90a): dims 64, 128 and 256, the same on both sides; codes
 * of every width and f16. prefill.cuh says where work comes from.
 *
 * A tile is 128 rows. Of the three warp groups the first takes work and asks the copy engine for images, part by part, as soon as
 * there is room; the other two have 64 rows each. A group asks for the product of the next keys before that of the values that it
 * has weights for, and makes weights of logits meanwhile. The maximum of a row is followed when it is 2^8 behind: weights may be
 * above 1, which f16 has room for. */
#include "kernels.cuh"
#include "prefill.cuh"
#include "words_sm90.cuh"

template <int D_>
struct wgmma_shape {
    static constexpr int D = D_, ROWS = 128, THREADS = 384;
    static constexpr int TOKENS = D == 256 ? 64 : 128;      /* of a stage: accumulators of logits and of values are registers */
    static constexpr int STAGES = D == 64 ? 4 : D == 128 ? 3 : 2;
    static constexpr int LOGITS = TOKENS / 2;               /* of a lane */
    static constexpr int O_COLUMNS = D == 64 ? 64 : 128, O_PARTS = D / O_COLUMNS; /* of one product of values */
    static constexpr uint32_t STAGE_BYTES = TOKENS * D * 2; /* of a side */
};

/* Shared memory; begins at a multiple of 1024. */
template <class S>
struct wgmma_space {
    uint8_t q[S::D / 64][S::ROWS][128];
    uint8_t k[S::STAGES][S::STAGE_BYTES], v[S::STAGES][S::STAGE_BYTES]; /* before and after, k[0] has the matrix that turns rows */
    struct prefill_work work;
    uint64_t k_full[S::STAGES], k_empty[S::STAGES], v_full[S::STAGES], v_empty[S::STAGES];
};

/* Which stage is next, of those that go round; and the parity of the phase that it is in. */
template <class S>
struct wgmma_turn {
    uint32_t stage, parity;
    __device__ __forceinline__ void next()
    {
        const bool around = ++stage == S::STAGES;
        stage = around ? 0 : stage, parity ^= around;
    }
};

template <class S>
__device__ __forceinline__ wgmma_space<S> &wgmma_shared()
{
    return *(wgmma_space<S> *)(((uintptr_t)dynamic_shared() + 1023) & ~(uintptr_t)1023);
}

/* Steps of a tile: S::TOKENS of an image each. */
template <class S>
__device__ __forceinline__ uint32_t steps_of(const struct tile_reach &t)
{
    return images_of(t) * (IMAGE_TOKENS / S::TOKENS);
}

/* The number, among those of the head, of the image of a step. */
template <class S>
__device__ __forceinline__ uint32_t image_of_step(const struct tile_reach &t, uint32_t step)
{
    return image_of(t, step / (IMAGE_TOKENS / S::TOKENS));
}

/* ---- the first group: one of its threads ------------------------------------------------------------------------------ */

template <class S>
__device__ __forceinline__ void ask_step(const struct dev_prefill &p, wgmma_space<S> &s, const struct tile_reach &t, uint32_t step,
                                         const wgmma_turn<S> &turn)
{
    const uint32_t stage = turn.stage, parity = turn.parity ^ 1, part = step % (IMAGE_TOKENS / S::TOKENS);
    const uint8_t *image = image_place(p, s.work, image_of_step<S>(t, step));
    meeting_wait(&s.k_empty[stage], parity);
    meeting_expect(&s.k_full[stage], S::STAGE_BYTES);
    if (S::TOKENS == IMAGE_TOKENS)
        copy_bulk(s.k[stage], image, S::STAGE_BYTES, &s.k_full[stage]);
    else
        for (uint32_t i = 0; i < S::D / 64; i++)
            copy_bulk(s.k[stage] + i * S::TOKENS * 128, image + (i * IMAGE_TOKENS + part * S::TOKENS) * 128, S::TOKENS * 128,
                      &s.k_full[stage]);
    meeting_wait(&s.v_empty[stage], parity);
    meeting_expect(&s.v_full[stage], S::STAGE_BYTES);
    copy_bulk(s.v[stage], image + p.im.v_at + part * S::STAGE_BYTES, S::STAGE_BYTES, &s.v_full[stage]);
}

/* Takes work until there is none. */
template <class S>
__device__ __forceinline__ void supply(const struct dev_prefill &p, wgmma_space<S> &s)
{
    uint32_t held = ~0u;
    wgmma_turn<S> turn = {0, 0};
    for (;;) {
        if (threadIdx.x == 0)
            take_work(p, s.work, held);
        __syncthreads();
        if (s.work.what == PREFILL_NOTHING)
            return;
        __syncthreads(); /* the queries are there */
        if (threadIdx.x == 0 && s.work.what == PREFILL_ITEM) {
            const struct tile_reach t = tile_reach_of(p, s.work);
            const uint32_t steps = steps_of<S>(t);
            fence_engines();
            for (uint32_t step = 0; step < steps; step++, turn.next())
                ask_step<S>(p, s, t, step, turn);
        }
        __syncthreads();
        if (threadIdx.x == 0)
            work_done(p, s.work);
    }
}

/* ---- rows on their way in and out ------------------------------------------------------------------------------------- */

/* Rows are turned (by a Walsh-Hadamard transform, or not at all) by a product with a matrix of 1 and -1, so that each number
 * crosses no lanes but in the tensor product. What goes in is two f16 that add up to it: what is lost is 2^-22 of the largest of
 * its row.
 *
 * A lane's numbers y[i][4 j + 2 r + e] are, of its row r, columns i * O_COLUMNS + 8 j + 2 t + e: as products leave them, and as
 * images want queries. The caller's tensors have the same registers spread over channels: spread_channel() of the column. Then a
 * lane has eight channels side by side for every four j, and loads and stores 16 bytes of f16 at once. The product takes either
 * order to the other, and with the same matrix: that of a column's spread channel and a plain row is what that of a plain column
 * and a row's spread channel is, since the transform has as many -1 as its two numbers share bits. */
__device__ __forceinline__ uint32_t spread_channel(uint32_t column)
{
    return (column & ~30u) | (column >> 2 & 6) | (column << 2 & 24);
}

/* Of the matrix, rows `row`, which is even, and the next: (-1)^(bits that row and channel share), or 1 where they are the same. */
__device__ __forceinline__ uint32_t turn_of(uint32_t channel, uint32_t row, bool rotated)
{
    if (rotated)
        return (__popc(channel & row) % 2 ? 0xbc00bc00 : 0x3c003c00) ^ channel << 31;
    return channel / 2 == row / 2 ? 0x3c00u << channel % 2 * 16 : 0;
}

/* The matrix, by the threads of both groups. */
template <class S>
__device__ __forceinline__ void make_turn(uint8_t *matrix, bool rotated)
{
    constexpr uint32_t N = S::O_COLUMNS;
    static_assert(N * N * 2 <= S::STAGE_BYTES, "it lies where the first keys will");
    for (uint32_t at = threadIdx.x - 128; at < N * N / 8; at += 256) {
        const uint32_t column = at / (N / 8), first = at % (N / 8) * 8, channel = spread_channel(column);
        *(uint4 *)image_chunk(matrix + first / 64 * (N * 128), column, first % 64 / 8) =
            make_uint4(turn_of(channel, first, rotated), turn_of(channel, first + 2, rotated),
                       turn_of(channel, first + 4, rotated), turn_of(channel, first + 6, rotated));
    }
    fence_products();
    meet_groups();
}

/* A power of two that takes the largest number of a lane's row r to 2^14 or just above, and down[r], which takes back what it does:
 * 0 where all are next to nothing, NaN where one is not finite. */
template <class S>
__device__ __forceinline__ void scale_rows(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], float (&down)[2])
{
    float most[2] = {0, 0}, up[2];
    bool good[2] = {true, true};
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++) {
            const int r = j / 2 % 2;
            most[r] = fmaxf(most[r], fabsf(y[i][j])), good[r] &= fabsf(y[i][j]) < INFINITY;
        }
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], good[r] ? 0 : INFINITY);
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2));
        const uint32_t exponent = __float_as_uint(most[r]) >> 23;
        up[r] = exponent < 27 ? 0 : __uint_as_float((268 - exponent) << 23);
        down[r] = exponent < 27 ? 0 : exponent == 255 ? NAN : __uint_as_float((exponent - 14) << 23);
    }
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++)
            y[i][j] *= up[j / 2 % 2];
}

/* Turns rows: times down[r] of scale_rows(), they are then what they were, or its transform without its norm. `matrix` is space
 * that both groups share. */
template <class S>
__device__ __forceinline__ void turn_rows(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], uint8_t *matrix, bool rotated, float (&down)[2])
{
    constexpr int N = S::O_COLUMNS;
    make_turn<S>(matrix, rotated);
    if (S::O_PARTS == 2 && rotated)
#pragma unroll
        for (int j = 0; j < N / 2; j++) {
            const float a = y[0][j], b = y[S::O_PARTS - 1][j];
            y[0][j] = a + b, y[S::O_PARTS - 1][j] = a - b;
        }
    scale_rows<S>(y, down);
    const uint64_t columns = operand_at(matrix);
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++) {
        uint32_t high[N / 4], low[N / 4];
#pragma unroll
        for (int j = 0; j < N / 4; j++) {
            const __half2 two = __floats2half2_rn(y[i][2 * j], y[i][2 * j + 1]);
            high[j] = bits_of(two);
            low[j] = bits_of(__floats2half2_rn(y[i][2 * j] - __low2float(two), y[i][2 * j + 1] - __high2float(two)));
        }
#pragma unroll
        for (int j = 0; j < N / 2; j++)
            y[i][j] = 0;
        sums_are_there(y[i]);
        products_begin();
#pragma unroll
        for (int k = 0; k < N / 16; k++) {
            product_registers(y[i], &high[4 * k], columns + k / 4 * (N * 8) + k % 4 * 2);
            product_registers(y[i], &low[4 * k], columns + k / 4 * (N * 8) + k % 4 * 2);
        }
        products_grouped();
        products_but_last_done<0>();
        sums_are_there(y[i]);
    }
}

__device__ __forceinline__ void times_eight(float (&y)[8], const float *factors)
{
    const float4 a = ((const float4 *)factors)[0], b = ((const float4 *)factors)[1];
    y[0] *= a.x, y[1] *= a.y, y[2] *= a.z, y[3] *= a.w, y[4] *= b.x, y[5] *= b.y, y[6] *= b.z, y[7] *= b.w;
}

/* Eight numbers to the caller's tensor. wide: they can be stored 16 bytes at once. */
__device__ __forceinline__ void store_eight(const struct dev_view &view, int64_t to, bool wide, const float (&y)[8])
{
    if (!wide) {
#pragma unroll
        for (int i = 0; i < 8; i++)
            store_element(view.data, view.dtype, to + i, y[i]);
    } else if (view.dtype == AURA_F32) {
        float4 *p = (float4 *)((float *)view.data + to);
        p[0] = make_float4(y[0], y[1], y[2], y[3]), p[1] = make_float4(y[4], y[5], y[6], y[7]);
    } else {
        uint32_t word[4];
#pragma unroll
        for (int i = 0; i < 4; i++)
            word[i] = view.dtype == AURA_F16 ? bits_of(__floats2half2_rn(y[2 * i], y[2 * i + 1]))
                                             : bf16_bits(y[2 * i]) | (uint32_t)bf16_bits(y[2 * i + 1]) << 16;
        *(uint4 *)((uint16_t *)view.data + to) = make_uint4(word[0], word[1], word[2], word[3]);
    }
}

/* Whether a row that begins there can be. */
__device__ __forceinline__ bool is_wide(const struct dev_view &view, int64_t row)
{
    return ((uintptr_t)view.data + row * (view.dtype == AURA_F32 ? 4 : 2)) % 16 == 0;
}

/* Lane (g, t) of warp w of a group: of rows 16 w + g and 16 w + g + 8. */
template <class S>
__device__ __forceinline__ uint32_t lane_first_row()
{
    return (threadIdx.x / 128 - 1) * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
}

/* The channel of the first of the eight numbers y[i][16 m] ... of a lane, spread. */
template <class S>
__device__ __forceinline__ uint32_t lane_channel(int i, int m)
{
    return i * S::O_COLUMNS + 32 * m + threadIdx.x % 4 * 8;
}

/* The lane's numbers of a row of the caller's, spread, as row r. All are on their way at once where they can be loaded 16 bytes at
 * once, but for those of f32, which are twice as many. */
template <class S>
__device__ __forceinline__ void load_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, const struct dev_view &view, int64_t from)
{
    if (view.dtype == AURA_F32 || !is_wide(view, from)) {
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 4; j++)
                y[i][j / 2 * 4 + 2 * r + j % 2] = load_element(view.data, view.dtype, from + lane_channel<S>(i, j / 8) + j % 8);
        return;
    }
    uint4 word[S::O_PARTS][S::O_COLUMNS / 32];
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++)
            word[i][m] = *(const uint4 *)((const uint16_t *)view.data + from + lane_channel<S>(i, m));
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++) {
            const uint4 &v = word[i][j / 8];
            const uint32_t two = j % 8 < 2 ? v.x : j % 8 < 4 ? v.y : j % 8 < 6 ? v.z : v.w;
            y[i][j / 2 * 4 + 2 * r + j % 2] = number_of(j % 2 ? two >> 16 : two & 0xffff, view.dtype);
        }
}

/* The lane's queries, spread: balanced, and with the signs of the rotation. */
template <class S>
__device__ __forceinline__ void load_queries(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], const struct dev_prefill &p,
                                             const struct prefill_work &w)
{
    const struct dev_attend &a = p.a;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const row_info row = prefill_row(p, w, lane_first_row<S>() + 8 * r);
        const int64_t from = w.job * a.q.seq + row.query * a.q.token + row.head * a.q.head;
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 4; j++)
                y[i][j / 2 * 4 + 2 * r + j % 2] = 0;
        if (row.there)
            load_row<S>(y, r, a.q, from);
    }
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++)
#pragma unroll
            for (int r = 0; r < 2; r++) {
                const uint32_t channel = lane_channel<S>(i, m);
                float eight[8];
#pragma unroll
                for (int j = 0; j < 8; j++)
                    eight[j] = y[i][16 * m + j / 2 * 4 + 2 * r + j % 2];
                if (a.c.inverse_balance)
                    times_eight(eight, a.c.inverse_balance + (size_t)w.head * S::D + channel);
                if (a.c.k_rows)
                    flip_signs<8>(eight, a.c.k_sign, channel / 8);
#pragma unroll
                for (int j = 0; j < 8; j++)
                    y[i][16 * m + j / 2 * 4 + 2 * r + j % 2] = eight[j];
            }
}

/* Queries as f16, where products find them, and factors from products to logits: NaN where a query is not finite. Factors are above
 * 0, so that they keep maxima and -inf: the query takes the sign of the scale. */
template <class S>
__device__ __forceinline__ void wgmma_queries(const struct dev_prefill &p, wgmma_space<S> &s,
                                              float (&y)[S::O_PARTS][S::O_COLUMNS / 2], float (&factor)[2])
{
    /* 2^15 is above what goes into a product, and it adds at most 128 of these up. */
    const float top = 0x1p15f * S::O_COLUMNS, times = copysignf(PREFILL_QUERY_TOP / top, p.a.unit);
    float down[2];
    load_queries<S>(y, p, s.work);
    turn_rows<S>(y, s.k[0], p.a.c.k_rows, down);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const bool bad = isnan(down[r]);
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 8; j++) {
                const uint32_t d = i * S::O_COLUMNS + 8 * j;
                const float *two = &y[i][4 * j + 2 * r];
                *(__half2 *)(image_chunk(&s.q[d / 64][0][0], lane_first_row<S>() + 8 * r, d % 64 / 8) + threadIdx.x % 4 * 4) =
                    bad ? __floats2half2_rn(0, 0) : __floats2half2_rn(two[0] * times, two[1] * times);
            }
        factor[r] = down[r] * (top / PREFILL_QUERY_TOP) * (p.a.c.k_rows ? p.a.c.k_norm : 1) * fabsf(p.a.unit) * p.im.k.unit;
        factor[r] = bad ? NAN : fmaxf(factor[r], 0x1p-100f);
    }
}

/* ---- what a group keeps ----------------------------------------------------------------------------------------------- */

template <class S>
struct wgmma_running {
    float m[2], l[2], keep[2];
    float o[S::O_PARTS][S::O_COLUMNS / 2], x[S::LOGITS]; /* x: products, logits, weights */
    uint32_t weight[S::LOGITS / 2];
    float factor[2]; /* from products to logits; NaN where a query is not finite */
    uint32_t begin[2], end[2];
};

/* Adds what a part has left to what there is. To nothing, it is that, bit for bit. */
template <class S>
__device__ __forceinline__ void add_carry(const struct dev_prefill &p, wgmma_running<S> &run, uint32_t carry)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const float *from = carry_of(p, carry, lane_first_row<S>() + 8 * r);
        const float other = __ldcg(from), m = fmaxf(run.m[r], other);
        const float keep = exp2_approx(run.m[r] - m), add = exp2_approx(other - m);
        run.m[r] = m;
        run.l[r] = fmaf(run.l[r], keep, __ldcg(from + 2 + t) * add);
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 8; j++) {
                const float2 x = __ldcg((const float2 *)&from[PREFILL_CARRIED + i * S::O_COLUMNS + 8 * j + 2 * t]);
                float *o = &run.o[i][4 * j + 2 * r];
                o[0] = fmaf(o[0], keep, x.x * add), o[1] = fmaf(o[1], keep, x.y * add);
            }
    }
}

template <class S>
__device__ __forceinline__ void begin_rows(const struct dev_prefill &p, const struct prefill_work &w, wgmma_running<S> &run)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const row_info row = prefill_row(p, w, lane_first_row<S>() + 8 * r);
        run.begin[r] = row.begin, run.end[r] = row.end, run.m[r] = NOTHING, run.l[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++)
            run.o[i][j] = 0;
    if (w.part && p.state->way != PREFILL_BESIDE)
        add_carry<S>(p, run, w.carry);
}

template <class S>
__device__ __forceinline__ void keep_carry(const struct dev_prefill &p, const wgmma_space<S> &s, const wgmma_running<S> &run)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *to = carry_of(p, s.work.carry, lane_first_row<S>() + 8 * r);
        __stcg(to, run.m[r]);
        __stcg(to + 2 + t, run.l[r]);
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 8; j++)
                __stcg((float2 *)&to[PREFILL_CARRIED + i * S::O_COLUMNS + 8 * j + 2 * t],
                       make_float2(run.o[i][4 * j + 2 * r], run.o[i][4 * j + 2 * r + 1]));
    }
}

/* What a lane has added up of row r, turned, becomes what the caller gets. Returns whether all of it is finite. */
template <class S>
__device__ __forceinline__ bool finish_numbers(const struct dev_prefill &p, wgmma_running<S> &run, uint32_t head, int r, bool empty,
                                               float down, float times)
{
    const struct dev_attend &a = p.a;
    const float limit = aura_first_infinite(a.out.dtype);
    bool good = true;
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++) {
            const uint32_t channel = lane_channel<S>(i, m);
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                eight[j] = empty ? 0 : run.o[i][16 * m + j / 2 * 4 + 2 * r + j % 2] * down * times;
            if (a.c.v_inverse_balance)
                times_eight(eight, a.c.v_inverse_balance + (size_t)head * S::D + channel);
#pragma unroll
            for (int j = 0; j < 8; j++)
                good &= fabsf(eight[j]) < limit;
            if (a.c.v_rows)
                flip_signs<8>(eight, a.c.v_sign, channel / 8);
#pragma unroll
            for (int j = 0; j < 8; j++)
                run.o[i][16 * m + j / 2 * 4 + 2 * r + j % 2] = eight[j];
        }
    return good;
}

/* Row r of a lane, turned, to the caller's tensor. */
template <class S>
__device__ __forceinline__ void store_row(const struct dev_prefill &p, const wgmma_running<S> &run, int r, int64_t to, bool bad)
{
    const bool wide = is_wide(p.a.out, to);
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++) {
            float eight[8];
#pragma unroll
            for (int j = 0; j < 8; j++)
                eight[j] = bad ? NAN : run.o[i][16 * m + j / 2 * 4 + 2 * r + j % 2];
            store_eight(p.a.out, to + lane_channel<S>(i, m), wide, eight);
        }
}

/* The rows of a group, to the caller's tensor. Writes over the first keys. */
template <class S>
__device__ __forceinline__ void finish_rows(const struct dev_prefill &p, wgmma_space<S> &s, wgmma_running<S> &run)
{
    const struct dev_attend &a = p.a;
    struct split g = {};
    g.job = s.work.job, g.seq = p.jobs[s.work.job].seq;
    float down[2];
    turn_rows<S>(run.o, s.k[0], a.c.v_rows, down);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const row_info row = prefill_row(p, s.work, lane_first_row<S>() + 8 * r);
        float most = run.m[r], sum = run.l[r] + __shfl_xor_sync(~0u, run.l[r], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float keep = a.sinks ? merge_sink(most, sum, a.sinks[row.head]) : 1;
        const bool empty = sum == 0;
        const float times = empty ? 0 : keep / sum * (a.c.v_rows ? a.c.v_norm : 1);
        bool bad = !finish_numbers<S>(p, run, s.work.head, r, empty, down[r] * p.im.v.unit, times);
        bad |= isnan(run.factor[r]) || g.seq >= a.c.n_seqs || !(empty || aura_is_good_sum(sum));
        bad |= __shfl_xor_sync(~0u, (int)bad, 1) != 0;
        bad |= __shfl_xor_sync(~0u, (int)bad, 2) != 0;
        if (!row.there)
            continue;
        store_row<S>(p, run, r, g.job * a.out.seq + row.query * a.out.token + row.head * a.out.head, bad);
        if (threadIdx.x % 4 == 0)
            finish_lse(a, g, row, most, sum, bad);
    }
}

/* ---- products and weights --------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void ask_logits(wgmma_space<S> &s, wgmma_running<S> &run, const wgmma_turn<S> &turn)
{
    const uint64_t q = operand_at(&s.q[0][uniform(threadIdx.x / 128 - 1) * 64][0]),
                   k = operand_at(s.k[0]) + turn.stage * (S::STAGE_BYTES / 16);
    meeting_wait(&s.k_full[turn.stage], turn.parity);
    products_begin();
#pragma unroll
    for (int i = 0; i < S::D / 16; i++)
        product_shared(run.x, q + i / 4 * (S::ROWS * 8) + i % 4 * 2, k + i / 4 * (S::TOKENS * 8) + i % 4 * 2, i > 0);
    products_grouped();
}

template <class S>
__device__ __forceinline__ void ask_sums(wgmma_space<S> &s, wgmma_running<S> &run, const wgmma_turn<S> &turn)
{
    const uint64_t v = operand_at(s.v[0]) + turn.stage * (S::STAGE_BYTES / 16);
    meeting_wait(&s.v_full[turn.stage], turn.parity);
    products_begin();
#pragma unroll
    for (int i = 0; i < S::TOKENS / 16; i++)
#pragma unroll
        for (int j = 0; j < S::O_PARTS; j++)
            product_registers(run.o[j], &run.weight[4 * i], v + i / 4 * (S::D * 8) + j * (S::O_COLUMNS * 8) + i % 4 * 2);
    products_grouped();
}

template <class S>
__device__ __forceinline__ void give_stage(uint64_t *empty)
{
    if (threadIdx.x % 32 == 0)
        meeting_arrive(empty);
}

/* -inf for what a row does not see. */
template <class S>
__device__ __forceinline__ void hide_unseen(const struct dev_prefill &p, wgmma_running<S> &run, uint32_t token)
{
#pragma unroll
    for (int i = 0; i < S::LOGITS; i++) {
        const uint32_t at = token + 8 * (i / 4) + 2 * (threadIdx.x % 4) + i % 2;
        const int r = i / 2 % 2;
        run.x[i] = aura_sees(at, run.begin[r], run.end[r], p.a.c.keep_first) ? run.x[i] : -INFINITY;
    }
}

/* Products become weights, and keep what sums are to be multiplied with. Returns whether any is not 1. A factor is not negative. */
template <class S>
__device__ __forceinline__ bool make_weights(wgmma_running<S> &run)
{
    float most[2] = {run.x[0], run.x[2]};
#pragma unroll
    for (int i = 0; i < S::LOGITS; i++)
        most[i / 2 % 2] = fmaxf(most[i / 2 % 2], run.x[i]);
    bool any = false;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = fmaxf(most[r], __shfl_xor_sync(~0u, most[r], 2)) * run.factor[r];
        const bool behind = most[r] > run.m[r] + 8;
        run.keep[r] = behind ? exp2_approx(run.m[r] - most[r]) : 1;
        run.m[r] = behind ? most[r] : run.m[r];
        run.l[r] *= run.keep[r];
        any |= behind;
    }
#pragma unroll
    for (int i = 0; i < S::LOGITS; i++)
        run.x[i] = exp2_approx(fmaf(run.x[i], run.factor[i / 2 % 2], -run.m[i / 2 % 2]));
#pragma unroll
    for (int i = 0; i < S::LOGITS; i++)
        run.l[i / 2 % 2] += run.x[i];
    /* A sum is never below 0. That it is asked, and what follows is a branch, keeps weights before the wait that comes then. */
    return __any_sync(~0u, any || run.l[0] + run.l[1] < 0);
}

template <class S>
__device__ __forceinline__ void pack_weights(wgmma_running<S> &run)
{
#pragma unroll
    for (int i = 0; i < S::LOGITS / 2; i++)
        run.weight[i] = bits_of(__floats2half2_rn(run.x[2 * i], run.x[2 * i + 1]));
}

template <class S>
__device__ __forceinline__ void scale_sums(wgmma_running<S> &run)
{
#pragma unroll
    for (int j = 0; j < S::O_PARTS; j++)
#pragma unroll
        for (int i = 0; i < S::O_COLUMNS / 2; i++)
            run.o[j][i] *= run.keep[i / 2 % 2];
}

/* ---- an item ---------------------------------------------------------------------------------------------------------- */

/* The logits of step `step` are there: those that a row does not see are hidden. */
template <class S>
__device__ __forceinline__ void hide_step(const struct dev_prefill &p, wgmma_running<S> &run, const struct tile_reach &t,
                                          uint32_t step)
{
    constexpr uint32_t PARTS = IMAGE_TOKENS / S::TOKENS;
    const uint32_t token = token_of(t, step / PARTS);
    if (!is_all_seen(t, token))
        hide_unseen<S>(p, run, token + step % PARTS * S::TOKENS);
}

/* All steps. turn is uniform, so that a warp finds a stage's operands once for all lanes. */
template <class S>
__device__ __forceinline__ void attend_steps(const struct dev_prefill &p, wgmma_space<S> &s, wgmma_running<S> &run,
                                             const struct tile_reach &t, uint32_t steps, wgmma_turn<S> &turn)
{
    turn = {uniform(turn.stage), uniform(turn.parity)};
    ask_logits<S>(s, run, turn);
    products_but_last_done<0>();
    give_stage<S>(&s.k_empty[turn.stage]);
    hide_step<S>(p, run, t, 0);
    if (make_weights<S>(run))
        scale_sums<S>(run); /* what was carried */
    pack_weights<S>(run);
    for (uint32_t step = 1; step < steps; step++) {
        const wgmma_turn<S> before = turn;
        turn.next();
        ask_logits<S>(s, run, turn);
        ask_sums<S>(s, run, before);
        products_but_last_done<1>();
        give_stage<S>(&s.k_empty[turn.stage]);
        hide_step<S>(p, run, t, step);
        if (make_weights<S>(run)) {
            products_but_last_done<0>();
            scale_sums<S>(run);
        }
        products_but_last_done<0>();
        give_stage<S>(&s.v_empty[before.stage]);
        pack_weights<S>(run);
    }
    ask_sums<S>(s, run, turn);
    products_but_last_done<0>();
    give_stage<S>(&s.v_empty[turn.stage]);
    turn.next();
}

/* The images of a piece of work, by the two groups that compute. */
template <class S>
__device__ __forceinline__ void make_images(const struct dev_prefill &p, const wgmma_space<S> &s)
{
    const struct prefill_job &j = p.jobs[s.work.job];
    prefetch_pages(p, s.work, threadIdx.x / 32 - 4, 8);
    for (uint32_t i = s.work.first; i < s.work.first + s.work.images; i++) {
        const struct image_block b = image_block_of(p.a.c, j.seq, j.len, j.closed, s.work.head, token_of_image(j, i));
        make_image(p.im, p.a.c, b, image_place(p, s.work, i), threadIdx.x - 128);
    }
    fence_engines();
    __syncthreads();
}

/* An item, by these groups. */
template <class S>
__device__ __forceinline__ void attend_item(const struct dev_prefill &p, wgmma_space<S> &s, wgmma_turn<S> &turn)
{
    wgmma_running<S> run;
    wgmma_queries<S>(p, s, run.o, run.factor);
    fence_engines();
    __syncthreads();
    const struct tile_reach t = tile_reach_of(p, s.work);
    const uint32_t steps = uniform(steps_of<S>(t));
    begin_rows<S>(p, s.work, run);
    if (steps)
        attend_steps<S>(p, s, run, t, steps, turn);
    meet_groups(); /* the other group may still read what finish_rows() writes over */
    bool last = is_last_part(p, s.work);
    if (!last) {
        keep_carry<S>(p, s, run);
        meet_groups();
        if (threadIdx.x == 128)
            tile_done(p, s.work);
        meet_groups();
        last = s.work.last;
        if (last) {
            begin_rows<S>(p, s.work, run);
            for (uint32_t i = 0; i < p.jobs[s.work.job].parts; i++)
                add_carry<S>(p, run, carry_of_part(p, s.work, i));
        }
    }
    if (last)
        finish_rows<S>(p, s, run);
    fence_engines();
}

template <class S>
__device__ __forceinline__ void compute(const struct dev_prefill &p, wgmma_space<S> &s)
{
    wgmma_turn<S> turn = {0, 0};
    for (;;) {
        __syncthreads();
        const uint32_t what = uniform(s.work.what);
        if (what == PREFILL_NOTHING)
            return;
        if (what == PREFILL_IMAGE)
            make_images<S>(p, s);
        else
            attend_item<S>(p, s, turn);
        __syncthreads();
    }
}

template <class S>
__device__ __forceinline__ void prefill_wgmma(const struct dev_prefill &p)
{
    wgmma_space<S> &s = wgmma_shared<S>();
    if (threadIdx.x == 0)
        for (int i = 0; i < S::STAGES; i++) {
            meeting_init(&s.k_full[i], 1), meeting_init(&s.v_full[i], 1);
            meeting_init(&s.k_empty[i], 8), meeting_init(&s.v_empty[i], 8);
        }
    __syncthreads();
    if (uniform(threadIdx.x / 128) == 0) {
        fewer_registers<40>();
        supply<S>(p, s);
    } else {
        more_registers<232>();
        compute<S>(p, s);
    }
}

#define STAMP_PREFILL(name, dim)                                                                                          \
    extern "C" __global__ void __launch_bounds__(wgmma_shape<dim>::THREADS, 1) aura_##name(                               \
        const __grid_constant__ struct dev_prefill p)                                                                     \
    {                                                                                                                     \
        prefill_wgmma<wgmma_shape<dim>>(p);                                                                               \
    }
AURA_CUDA_PREFILL(STAMP_PREFILL)
#undef STAMP_PREFILL

/* None where the device is not of sm_90: this file has no code for others. */
struct prefill_kernel prefill_wgmma_kernel(const struct dev_cache *c, const struct dev_images *im)
{
    cudaFuncAttributes known;
    if (c->k_dim != c->v_dim || im->ups_at)
        return {};
#define ENTRY(name, dim)                                                                              \
    if (c->k_dim == dim && cudaFuncGetAttributes(&known, (const void *)aura_##name) == cudaSuccess)   \
        return {#name, (const void *)aura_##name, wgmma_shape<dim>::THREADS, wgmma_shape<dim>::ROWS, \
                sizeof(wgmma_space<wgmma_shape<dim>>) + 1024};
    AURA_CUDA_PREFILL(ENTRY)
#undef ENTRY
    cudaGetLastError();
    return {};
}
