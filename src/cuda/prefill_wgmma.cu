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
#include "prefill_rows.cuh"

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
