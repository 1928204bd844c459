/* Attention of many queries by tensor products of whole warp groups (sm_90a): dims 64, 128 and 256, the same on both sides; codes
 * of every width and f16. prefill.cuh says where work comes from.
 *
 * A tile is 128 rows. Of the first of three warp groups one warp takes items and asks the copy engine for images, part by part, as
 * soon as they are made and there is room. The other two groups have 64 rows each. A group asks for the product of the next keys
 * before that of the values that it has weights for, and makes weights of logits meanwhile. The maximum of a row is followed when
 * it is 2^8 behind: weights may be above 1, which f16 has room for.
 *
 * Before an item these two groups make the images that nobody has taken. Once they have begun with items, the three other warps
 * of the first group make images beside them. */
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
    static constexpr uint32_t AHEAD = 4, BEHIND = 1;        /* images that are taken at once */
    static constexpr int FEWER = D == 256 ? 40 : 104, MORE = (THREADS * 168 - 128 * FEWER) / 256; /* registers of a thread */
};

/* Shared memory; begins at a multiple of 1024. */
template <class S>
struct wgmma_space {
    uint8_t q[S::D / 64][S::ROWS][128];
    uint8_t k[S::STAGES][S::STAGE_BYTES], v[S::STAGES][S::STAGE_BYTES]; /* before and after, k[0] has the matrix that turns rows */
    struct prefill_work item[2], making[4]; /* items: this one and the next; images: of the groups that compute, and of warps */
    uint64_t k_full[S::STAGES], k_empty[S::STAGES], v_full[S::STAGES], v_empty[S::STAGES];
    uint64_t item_there[2], queries_there, items_begin;
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

/* ---- the first group -------------------------------------------------------------------------------------------------- */

/* By one thread. */
template <class S>
__device__ __forceinline__ void ask_step(const struct dev_prefill &p, wgmma_space<S> &s, const struct prefill_work &w,
                                         const struct tile_reach &t, uint32_t step, const wgmma_turn<S> &turn)
{
    const uint32_t stage = turn.stage, parity = turn.parity ^ 1, part = step % (IMAGE_TOKENS / S::TOKENS);
    const uint8_t *image = image_place(p, w, image_of_step<S>(t, step));
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

/* Takes items until there are none, by one warp. The next one is taken while the groups that compute finish this one. */
template <class S>
__device__ __forceinline__ void supply(const struct dev_prefill &p, wgmma_space<S> &s)
{
    const bool first = threadIdx.x == 0;
    wgmma_turn<S> turn = {0, 0};
    for (uint32_t n = 0;; n++) {
        struct prefill_work &w = s.item[n % 2];
        if (first)
            take_item(p, w), meeting_arrive(&s.item_there[n % 2]);
        __syncwarp();
        if (w.what == PREFILL_NOTHING)
            return;
        const struct tile_reach t = tile_reach_of(p, w);
        constexpr uint32_t PARTS = IMAGE_TOKENS / S::TOKENS;
        const uint32_t steps = steps_of<S>(t);
        uint32_t there = steps ? images_there(p, w, t, 0) * PARTS : 0;
        meeting_wait(&s.queries_there, n % 2); /* until then the first keys' place has the matrix */
        fence_engines();
        for (uint32_t step = 0; step < steps; step++, turn.next()) {
            if (step == there)
                there += images_there(p, w, t, step / PARTS) * PARTS, fence_engines();
            if (first)
                ask_step<S>(p, s, w, t, step, turn);
            __syncwarp();
        }
    }
}

/* Images that were taken, by some threads. */
template <uint32_t THREADS, uint32_t DIM>
__device__ __forceinline__ void make_taken(const struct dev_prefill &p, const struct prefill_work &w, uint32_t thread)
{
    const struct prefill_job &j = p.jobs[w.job];
    prefetch_pages(p, w, thread / 32, THREADS / 32);
    for (uint32_t i = w.first; i < w.first + w.images; i++) {
        const struct image_block b = image_block_of(p.a.c, j.seq, j.len, j.closed, w.head, token_of_image(j, i));
#pragma unroll 1
        for (uint32_t at = thread; at < IMAGE_THREADS; at += THREADS)
            make_image<DIM>(p.im, p.a.c, b, image_place(p, w, i), at);
    }
    fence_engines();
}

/* Makes images until there are none left to make, by each of the other warps. Together with all of help_images() they would take
 * images that an item waits for, and a warp alone is slow. */
template <class S>
__device__ __forceinline__ void make_images(const struct dev_prefill &p, wgmma_space<S> &s)
{
    struct prefill_work &w = s.making[threadIdx.x / 32];
    meeting_wait(&s.items_begin, 0);
    for (;;) {
        if (threadIdx.x % 32 == 0 && !take_images(p, w, p.jobs[p.a.n_seqs].chunk, S::BEHIND))
            w.what = PREFILL_NOTHING;
        __syncwarp();
        if (w.what == PREFILL_NOTHING)
            return;
        make_taken<32, S::D>(p, w, threadIdx.x % 32);
        __syncwarp();
        if (threadIdx.x % 32 == 0)
            images_made(p, w);
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
#pragma unroll 1 /* done once for a tile, code costs more time to fetch than to execute */
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
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++)
            most[j / 2 % 2] = largest_or_nan(most[j / 2 % 2], fabsf(y[i][j]));
#pragma unroll
    for (int r = 0; r < 2; r++) {
        most[r] = largest_or_nan(most[r], __shfl_xor_sync(~0u, most[r], 1));
        most[r] = largest_or_nan(most[r], __shfl_xor_sync(~0u, most[r], 2));
        const uint32_t exponent = __float_as_uint(most[r]) >> 23 & 255;
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

/* Numbers of a row that begins there can be loaded and stored 16 bytes at once. */
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

/* A number's place in y of row r: the j-th of those that are spread. */
__device__ __forceinline__ constexpr int place_of(int r, int j)
{
    return j / 2 * 4 + 2 * r + j % 2;
}

/* The lane's numbers of a row of the caller's, spread, as row r. All are on their way at once where they can be loaded 16 bytes at
 * once, but for those of f32, which are twice as many. (A branch for each type makes ptxas let products wait for each other.) */
template <class S>
__device__ __forceinline__ void load_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, const struct dev_view &view, int64_t from)
{
    if (view.dtype == AURA_F32 || !is_wide(view, from)) {
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 4; j++)
                y[i][place_of(r, j)] = load_element(view.data, view.dtype, from + lane_channel<S>(i, j / 8) + j % 8);
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
            y[i][place_of(r, j)] = number_of(j % 2 ? two >> 16 : two & 0xffff, view.dtype);
        }
}

/* Row r times factors of channels. */
template <class S>
__device__ __forceinline__ void times_factors(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, const float *factors)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j += 4) {
            const float4 f = *(const float4 *)&factors[lane_channel<S>(i, j / 8) + j % 8];
            y[i][place_of(r, j)] *= f.x, y[i][place_of(r, j + 1)] *= f.y;
            y[i][place_of(r, j + 2)] *= f.z, y[i][place_of(r, j + 3)] *= f.w;
        }
}

/* The signs of the rotation, of both rows. */
template <class S>
__device__ __forceinline__ void flip_rows(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], const uint32_t *sign)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int m = 0; m < S::O_COLUMNS / 32; m++) {
            const uint32_t word = sign[lane_channel<S>(i, m) / 32] >> threadIdx.x % 4 * 8;
#pragma unroll
            for (int j = 0; j < 8; j++)
#pragma unroll
                for (int r = 0; r < 2; r++) {
                    float &x = y[i][16 * m + place_of(r, j)];
                    x = word >> j & 1 ? -x : x;
                }
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
                y[i][place_of(r, j)] = 0;
        if (row.there)
            load_row<S>(y, r, a.q, from);
        if (a.c.inverse_balance)
            times_factors<S>(y, r, a.c.inverse_balance + (size_t)w.head * S::D);
    }
    if (a.c.k_rows)
        flip_rows<S>(y, a.c.k_sign);
}

/* Queries as f16, where products find them, and factors from products to logits: NaN where a query is not finite. Factors are above
 * 0, so that they keep maxima and -inf: the query takes the sign of the scale. */
template <class S>
__device__ __forceinline__ void wgmma_queries(const struct dev_prefill &p, wgmma_space<S> &s, const struct prefill_work &w,
                                              float (&y)[S::O_PARTS][S::O_COLUMNS / 2], float (&factor)[2])
{
    /* 2^15 is above what goes into a product, and it adds at most 128 of these up. */
    const float top = 0x1p15f * S::O_COLUMNS, times = copysignf(PREFILL_QUERY_TOP / top, p.a.unit);
    float down[2];
    load_queries<S>(y, p, w);
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
                    __floats2half2_rn(two[0] * times, two[1] * times);
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
__device__ __forceinline__ void keep_carry(const struct dev_prefill &p, const struct prefill_work &w, const wgmma_running<S> &run)
{
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float *to = carry_of(p, w.carry, lane_first_row<S>() + 8 * r);
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

/* Whether a lane's numbers of row r are finite, in the caller's type. */
template <class S>
__device__ __forceinline__ bool is_finite(const float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, uint32_t dtype)
{
    float most = 0;
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            most = largest_or_nan(most, fabsf(y[i][place_of(r, j)]));
    return most < aura_first_infinite(dtype);
}

template <uint32_t DTYPE>
__device__ __forceinline__ uint32_t two_of(float x, float y)
{
    return DTYPE == AURA_F16 ? bits_of(__floats2half2_rn(x, y)) : bf16_bits(x) | (uint32_t)bf16_bits(y) << 16;
}

/* Row r of a lane, turned, to the caller's tensor. */
template <class S, uint32_t DTYPE>
__device__ __forceinline__ void store_row_of(uint8_t *row, const float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j += DTYPE == AURA_F32 ? 4 : 8) {
            const float *x = &y[i][place_of(r, j)];
            const uint32_t channel = lane_channel<S>(i, j / 8) + j % 8;
            if (DTYPE == AURA_F32)
                *(float4 *)(row + 4 * channel) = make_float4(x[0], x[1], x[4], x[5]);
            else
                *(uint4 *)(row + 2 * channel) = make_uint4(two_of<DTYPE>(x[0], x[1]), two_of<DTYPE>(x[4], x[5]),
                                                           two_of<DTYPE>(x[8], x[9]), two_of<DTYPE>(x[12], x[13]));
        }
}

template <class S>
__device__ __forceinline__ void store_row(const struct dev_view &view, int64_t to, const float (&y)[S::O_PARTS][S::O_COLUMNS / 2],
                                          int r)
{
    uint8_t *row = (uint8_t *)view.data + to * (view.dtype == AURA_F32 ? 4 : 2);
    const bool wide = is_wide(view, to);
    if (wide && view.dtype == AURA_F16)
        return store_row_of<S, AURA_F16>(row, y, r);
    if (wide && view.dtype == AURA_BF16)
        return store_row_of<S, AURA_BF16>(row, y, r);
    if (wide)
        return store_row_of<S, AURA_F32>(row, y, r);
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            store_element(view.data, view.dtype, to + lane_channel<S>(i, j / 8) + j % 8, y[i][place_of(r, j)]);
}

template <class S>
__device__ __forceinline__ void times_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, float by)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            y[i][place_of(r, j)] *= by;
}

template <class S>
__device__ __forceinline__ void set_row(float (&y)[S::O_PARTS][S::O_COLUMNS / 2], int r, float x)
{
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 4; j++)
            y[i][place_of(r, j)] = x;
}

/* The rows of a group, to the caller's tensor. Writes over the first keys. */
template <class S>
__device__ __forceinline__ void finish_rows(const struct dev_prefill &p, wgmma_space<S> &s, const struct prefill_work &w,
                                            wgmma_running<S> &run)
{
    const struct dev_attend &a = p.a;
    struct split g = {};
    g.job = w.job, g.seq = p.jobs[w.job].seq;
    float down[2];
    turn_rows<S>(run.o, s.k[0], a.c.v_rows, down);
    if (a.c.v_rows)
        flip_rows<S>(run.o, a.c.v_sign);
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const row_info row = prefill_row(p, w, lane_first_row<S>() + 8 * r);
        float most = run.m[r], sum = run.l[r] + __shfl_xor_sync(~0u, run.l[r], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
        const float keep = a.sinks ? merge_sink(most, sum, a.sinks[row.head]) : 1;
        const bool empty = sum == 0;
        times_row<S>(run.o, r, down[r] * p.im.v.unit);
        times_row<S>(run.o, r, empty ? 0 : keep / sum * (a.c.v_rows ? a.c.v_norm : 1));
        if (a.c.v_inverse_balance)
            times_factors<S>(run.o, r, a.c.v_inverse_balance + (size_t)w.head * S::D);
        if (empty)
            set_row<S>(run.o, r, 0);
        bool bad = !is_finite<S>(run.o, r, a.out.dtype);
        bad |= isnan(run.factor[r]) || g.seq >= a.c.n_seqs || !(empty || aura_is_good_sum(sum));
        bad |= __shfl_xor_sync(~0u, (int)bad, 1) != 0;
        bad |= __shfl_xor_sync(~0u, (int)bad, 2) != 0;
        if (bad)
            set_row<S>(run.o, r, NAN);
        if (!row.there)
            continue;
        store_row<S>(a.out, g.job * a.out.seq + row.query * a.out.token + row.head * a.out.head, run.o, r);
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

/* The groups that compute make images, of chunks before `end`, as long as there are some that nobody has taken. */
template <class S>
__device__ __forceinline__ void help_images(const struct dev_prefill &p, wgmma_space<S> &s, uint32_t end)
{
    struct prefill_work &w = s.making[0];
    for (;;) {
        if (threadIdx.x == 128 && !take_images(p, w, end, S::AHEAD))
            w.what = PREFILL_NOTHING;
        meet_groups();
        if (uniform(w.what) == PREFILL_NOTHING)
            return;
        make_taken<256, S::D>(p, w, threadIdx.x - 128);
        meet_groups();
        if (threadIdx.x == 128)
            images_made(p, w);
    }
}

/* An item, by these groups. */
template <class S>
__device__ __forceinline__ void attend_item(const struct dev_prefill &p, wgmma_space<S> &s, struct prefill_work &w,
                                            wgmma_turn<S> &turn)
{
    wgmma_running<S> run;
    wgmma_queries<S>(p, s, w, run.o, run.factor);
    fence_engines();
    meet_groups();
    meeting_arrive(&s.queries_there);
    const struct tile_reach t = tile_reach_of(p, w);
    const uint32_t steps = uniform(steps_of<S>(t));
    begin_rows<S>(p, w, run);
    if (steps)
        attend_steps<S>(p, s, run, t, steps, turn);
    wait_for_images(p, w, threadIdx.x - 128, 256); /* it is done when all of its chunk are, those too that it has not read */
    meet_groups(); /* the other group may still read what finish_rows() writes over */
    bool last = is_last_part(p, w);
    if (!last) {
        keep_carry<S>(p, w, run);
        meet_groups();
        if (threadIdx.x == 128)
            tile_done(p, w);
        meet_groups();
        last = w.last;
        if (last) {
            begin_rows<S>(p, w, run);
            for (uint32_t i = 0; i < p.jobs[w.job].parts; i++)
                add_carry<S>(p, run, carry_of_part(p, w, i));
        }
    }
    if (last)
        finish_rows<S>(p, s, w, run);
    fence_engines();
    meet_groups();
    if (threadIdx.x == 128)
        item_done(p, w);
}

template <class S>
__device__ __forceinline__ void compute(const struct dev_prefill &p, wgmma_space<S> &s)
{
    wgmma_turn<S> turn = {0, 0};
    for (uint32_t n = 0;; n++) {
        meeting_wait(&s.item_there[n % 2], n / 2 % 2);
        struct prefill_work &w = s.item[n % 2];
        const bool is_item = uniform(w.what) == PREFILL_ITEM;
        help_images<S>(p, s, w.help);
        if (n == 0 && threadIdx.x == 128)
            meeting_arrive(&s.items_begin);
        if (!is_item)
            return;
        attend_item<S>(p, s, w, turn);
    }
}

template <class S>
__device__ __forceinline__ void prefill_wgmma(const struct dev_prefill &p)
{
    wgmma_space<S> &s = wgmma_shared<S>();
    if (threadIdx.x == 0) {
        for (int i = 0; i < S::STAGES; i++) {
            meeting_init(&s.k_full[i], 1), meeting_init(&s.v_full[i], 1);
            meeting_init(&s.k_empty[i], 8), meeting_init(&s.v_empty[i], 8);
        }
        meeting_init(&s.item_there[0], 1), meeting_init(&s.item_there[1], 1);
        meeting_init(&s.queries_there, 256), meeting_init(&s.items_begin, 1);
    }
    __syncthreads();
    if (uniform(threadIdx.x / 128) == 0) {
        fewer_registers<S::FEWER>();
        if (uniform(threadIdx.x / 32) == 0)
            supply<S>(p, s);
        else
            make_images<S>(p, s);
    } else {
        more_registers<S::MORE>();
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
