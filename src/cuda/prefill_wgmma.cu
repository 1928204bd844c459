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
    static constexpr int AT_ONCE = D == 256 ? 2 : 8;        /* rows that a warp rotates at once: each waits for itself alone */
};

/* Shared memory; begins at a multiple of 1024. */
template <class S>
struct wgmma_space {
    uint8_t q[S::D / 64][S::ROWS][128];
    uint8_t k[S::STAGES][S::STAGE_BYTES], v[S::STAGES][S::STAGE_BYTES]; /* then, of the groups, what they have added up */
    float factor[S::ROWS]; /* from products to logits; NaN where a query is not finite */
    struct prefill_work work;
    uint64_t k_full[S::STAGES], k_empty[S::STAGES], v_full[S::STAGES], v_empty[S::STAGES];
};

enum { WGMMA_APART = 4 }; /* floats between rows that are turned */

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

/* ---- queries ---------------------------------------------------------------------------------------------------------- */

/* Walsh-Hadamard of some rows: coordinate lane * E + i of row r is y[r][i]. As hadamard_warp(), which has the same order. */
template <int N, int E>
__device__ __forceinline__ void hadamard_rows(float (&y)[N][E])
{
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int stride = 1; stride < E; stride *= 2)
#pragma unroll
        for (int i = 0; i < E; i++)
#pragma unroll
            for (int r = 0; r < N; r++)
                if (!(i & stride)) {
                    const float a = y[r][i], b = y[r][i + stride];
                    y[r][i] = a + b, y[r][i + stride] = a - b;
                }
#pragma unroll 1
    for (int far = 1; far < 32; far *= 2) {
        const float sign = lane & far ? -1.f : 1.f;
#pragma unroll
        for (int r = 0; r < N; r++)
#pragma unroll
            for (int i = 0; i < E; i++)
                y[r][i] = fmaf(y[r][i], sign, __shfl_xor_sync(~0u, y[r][i], far));
    }
}

/* The lane's numbers of a row of the caller's, all at once where they are aligned. */
template <int E>
__device__ __forceinline__ void load_numbers(float (&y)[E], const struct dev_view &view, int64_t from)
{
    const uint8_t *p = (const uint8_t *)view.data + from * (view.dtype == AURA_F32 ? 4 : 2);
    alignas(16) uint32_t word[E / 2];
    if (view.dtype == AURA_F32 || (uintptr_t)p % (2 * E)) {
#pragma unroll
        for (int i = 0; i < E; i++)
            y[i] = load_element(view.data, view.dtype, from + i);
        return;
    }
    if (E == 2)
        word[0] = *(const uint32_t *)p;
    if (E == 4)
        *(uint2 *)word = *(const uint2 *)p;
    if (E == 8)
        *(uint4 *)word = *(const uint4 *)p;
#pragma unroll
    for (int i = 0; i < E; i++)
        y[i] = number_of(i % 2 ? word[i / 2] >> 16 : word[i / 2] & 0xffff, view.dtype);
}

template <int E>
__device__ __forceinline__ void store_numbers(const struct dev_view &view, int64_t to, const float (&y)[E])
{
    uint8_t *p = (uint8_t *)view.data + to * (view.dtype == AURA_F32 ? 4 : 2);
    alignas(16) uint32_t word[E / 2];
    if (view.dtype == AURA_F32 || (uintptr_t)p % (2 * E)) {
#pragma unroll
        for (int i = 0; i < E; i++)
            store_element(view.data, view.dtype, to + i, y[i]);
        return;
    }
#pragma unroll
    for (int i = 0; i < E / 2; i++)
        word[i] = view.dtype == AURA_F16 ? bits_of(__floats2half2_rn(y[2 * i], y[2 * i + 1]))
                                         : bf16_bits(y[2 * i]) | (uint32_t)bf16_bits(y[2 * i + 1]) << 16;
    if (E == 2)
        *(uint32_t *)p = word[0];
    if (E == 4)
        *(uint2 *)p = *(const uint2 *)word;
    if (E == 8)
        *(uint4 *)p = *(const uint4 *)word;
}

/* Of row `first` and those after it, by one warp: what the lane has of the query, balanced and rotated. */
template <class S>
__device__ __forceinline__ void load_queries(float (&y)[S::AT_ONCE][S::D / 32], const struct dev_prefill &p,
                                             const wgmma_space<S> &s, uint32_t first)
{
    constexpr int E = S::D / 32;
    const struct dev_attend &a = p.a;
    const uint32_t lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < S::AT_ONCE; r++) {
        const row_info row = prefill_row(p, s.work, first + r);
        const int64_t from = s.work.job * a.q.seq + row.query * a.q.token + row.head * a.q.head + lane * E;
#pragma unroll
        for (int i = 0; i < E; i++)
            y[r][i] = 0;
        if (row.there)
            load_numbers<E>(y[r], a.q, from);
    }
    if (a.c.inverse_balance)
#pragma unroll
        for (int i = 0; i < E; i++) {
            const float balance = a.c.inverse_balance[(size_t)s.work.head * S::D + lane * E + i];
#pragma unroll
            for (int r = 0; r < S::AT_ONCE; r++)
                y[r][i] *= balance;
        }
    if (!a.c.k_rows)
        return;
#pragma unroll
    for (int r = 0; r < S::AT_ONCE; r++)
        flip_signs<E>(y[r], a.c.k_sign, lane);
    hadamard_rows(y);
#pragma unroll
    for (int r = 0; r < S::AT_ONCE; r++)
#pragma unroll
        for (int i = 0; i < E; i++)
            y[r][i] *= a.c.k_norm;
}

/* These queries as f16. Factors are above 0, so that they keep maxima and -inf: the query takes the sign of the scale. */
template <class S>
__device__ __forceinline__ void wgmma_queries(const struct dev_prefill &p, wgmma_space<S> &s, uint32_t first)
{
    constexpr int E = S::D / 32;
    const uint32_t lane = threadIdx.x % 32;
    float y[S::AT_ONCE][E];
    load_queries<S>(y, p, s, first);
#pragma unroll
    for (int r = 0; r < S::AT_ONCE; r++) {
        float largest = 0;
        bool bad = false;
#pragma unroll
        for (int i = 0; i < E; i++)
            bad |= !(fabsf(y[r][i]) < INFINITY), largest = fmaxf(largest, fabsf(y[r][i]));
        bad = __any_sync(~0u, bad);
        largest = bad ? 0 : warp_largest(largest);
        const float factor = largest < 0x1p-100f ? 0 : copysignf(PREFILL_QUERY_TOP / largest, p.a.unit);
#pragma unroll
        for (int i = 0; i < E; i += 2) {
            const uint32_t d = lane * E + i;
            *(__half2 *)(image_chunk(&s.q[d / 64][0][0], first + r, d % 64 / 8) + d % 8 * 2) =
                bad ? __floats2half2_rn(0, 0) : __floats2half2_rn(y[r][i] * factor, y[r][i + 1] * factor);
        }
        if (lane == 0)
            s.factor[first + r] = bad ? NAN : fmaxf(largest / PREFILL_QUERY_TOP * fabsf(p.a.unit) * p.im.k.unit, 0x1p-100f);
    }
}

/* ---- what a group keeps ----------------------------------------------------------------------------------------------- */

/* Lane (g, t) of warp w of a group: of rows 16 w + g and 16 w + g + 8. */
template <class S>
struct wgmma_running {
    float m[2], l[2], keep[2];
    float o[S::O_PARTS][S::O_COLUMNS / 2], x[S::LOGITS]; /* x: products, logits, weights */
    uint32_t weight[S::LOGITS / 2];
    float factor[2];
    uint32_t begin[2], end[2];
};

template <class S>
__device__ __forceinline__ uint32_t lane_first_row()
{
    return (threadIdx.x / 128 - 1) * 64 + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
}

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
__device__ __forceinline__ void begin_rows(const struct dev_prefill &p, const wgmma_space<S> &s, wgmma_running<S> &run)
{
#pragma unroll
    for (int r = 0; r < 2; r++) {
        const row_info row = prefill_row(p, s.work, lane_first_row<S>() + 8 * r);
        run.factor[r] = s.factor[lane_first_row<S>() + 8 * r], run.begin[r] = row.begin, run.end[r] = row.end;
        run.m[r] = NOTHING, run.l[r] = 0;
    }
#pragma unroll
    for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
        for (int j = 0; j < S::O_COLUMNS / 2; j++)
            run.o[i][j] = 0;
    if (s.work.part && p.state->way != PREFILL_BESIDE)
        add_carry<S>(p, run, s.work.carry);
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

/* Rows `first` ... of the tile, which are in `rows` and have these m and l; to the caller's tensor. */
template <class S>
__device__ __forceinline__ void finish_some(const struct dev_prefill &p, const wgmma_space<S> &s, uint32_t first, const float *rows,
                                            const float (&m)[S::AT_ONCE], const float (&l)[S::AT_ONCE])
{
    constexpr int E = S::D / 32, PITCH = S::D + WGMMA_APART;
    const struct dev_attend &a = p.a;
    const uint32_t lane = threadIdx.x % 32;
    const float limit = aura_first_infinite(a.out.dtype);
    float y[S::AT_ONCE][E];
    struct split g = {};
    g.job = s.work.job, g.seq = p.jobs[s.work.job].seq;
#pragma unroll
    for (int r = 0; r < S::AT_ONCE; r++)
#pragma unroll
        for (int i = 0; i < E; i++)
            y[r][i] = rows[r * PITCH + lane * E + i];
    if (a.c.v_rows)
        hadamard_rows(y);
#pragma unroll
    for (int r = 0; r < S::AT_ONCE; r++) {
        const row_info row = prefill_row(p, s.work, first + r);
        float most = m[r], sum = l[r];
        const float keep = a.sinks ? merge_sink(most, sum, a.sinks[row.head]) : 1;
        const bool empty = sum == 0;
        bool bad = isnan(s.factor[first + r]) || g.seq >= a.c.n_seqs || !(empty || aura_is_good_sum(sum));
        const float times = empty ? 0 : keep / sum * (a.c.v_rows ? a.c.v_norm : 1);
#pragma unroll
        for (int i = 0; i < E; i++)
            y[r][i] = empty ? 0 : y[r][i] * times;
        if (a.c.v_inverse_balance) {
#pragma unroll
            for (int i = 0; i < E; i++)
                y[r][i] *= a.c.v_inverse_balance[(size_t)s.work.head * S::D + lane * E + i];
        }
#pragma unroll
        for (int i = 0; i < E; i++)
            bad |= !(fabsf(y[r][i]) < limit);
        if (a.c.v_rows)
            flip_signs<E>(y[r], a.c.v_sign, lane);
        bad = __any_sync(~0u, bad);
        const int64_t to = g.job * a.out.seq + row.query * a.out.token + row.head * a.out.head + lane * E;
        if (!row.there)
            continue;
#pragma unroll
        for (int i = 0; i < E; i++)
            y[r][i] = bad ? NAN : y[r][i];
        store_numbers<E>(a.out, to, y[r]);
        if (lane == 0)
            finish_lse(a, g, row, most, sum, bad);
    }
}

/* The rows of a warp, by way of the shared memory that images were in: eight rows at a time. */
template <class S>
__device__ __forceinline__ void finish_warp(const struct dev_prefill &p, wgmma_space<S> &s, const wgmma_running<S> &run)
{
    constexpr int PITCH = S::D + WGMMA_APART;
    static_assert(8 * 8 * PITCH * 4 <= 2 * S::STAGES * S::STAGE_BYTES, "eight warps, each with eight rows");
    const uint32_t warp = threadIdx.x / 32 - 4, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float *rows = (float *)s.k[0] + warp * 8 * PITCH;
#pragma unroll
    for (int r = 0; r < 2; r++) {
        float sum = run.l[r] + __shfl_xor_sync(~0u, run.l[r], 1);
        sum += __shfl_xor_sync(~0u, sum, 2);
#pragma unroll
        for (int i = 0; i < S::O_PARTS; i++)
#pragma unroll
            for (int j = 0; j < S::O_COLUMNS / 8; j++)
                *(float2 *)&rows[g * PITCH + i * S::O_COLUMNS + 8 * j + 2 * t] =
                    make_float2(run.o[i][4 * j + 2 * r] * p.im.v.unit, run.o[i][4 * j + 2 * r + 1] * p.im.v.unit);
        __syncwarp();
#pragma unroll 1
        for (int first = 0; first < 8; first += S::AT_ONCE) {
            float m[S::AT_ONCE], l[S::AT_ONCE];
#pragma unroll
            for (int i = 0; i < S::AT_ONCE; i++)
                m[i] = __shfl_sync(~0u, run.m[r], 4 * (first + i)), l[i] = __shfl_sync(~0u, sum, 4 * (first + i));
            finish_some<S>(p, s, 16 * warp + 8 * r + first, rows + first * PITCH, m, l);
        }
        __syncwarp();
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
    const uint32_t warp = threadIdx.x / 32 - 4;
#pragma unroll 1
    for (uint32_t r = 0; r < 16; r += S::AT_ONCE)
        wgmma_queries<S>(p, s, 16 * warp + r);
    fence_engines();
    __syncthreads();
    wgmma_running<S> run;
    const struct tile_reach t = tile_reach_of(p, s.work);
    const uint32_t steps = uniform(steps_of<S>(t));
    begin_rows<S>(p, s, run);
    if (steps)
        attend_steps<S>(p, s, run, t, steps, turn);
    meet_groups(); /* the other group may still read what finish_warp() writes over */
    bool last = is_last_part(p, s.work);
    if (!last) {
        keep_carry<S>(p, s, run);
        meet_groups();
        if (threadIdx.x == 128)
            tile_done(p, s.work);
        meet_groups();
        last = s.work.last;
        if (last) {
            begin_rows<S>(p, s, run);
            for (uint32_t i = 0; i < p.jobs[s.work.job].parts; i++)
                add_carry<S>(p, run, carry_of_part(p, s.work, i));
        }
    }
    if (last)
        finish_warp<S>(p, s, run);
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
