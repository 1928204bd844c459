/* Attention of several queries straight from the tiles, by products of whole warp groups (sm_90a):
 *
 *     S^T[64 tokens][N rows]      keys (bytes, registers) x queries (bytes, shared memory)         exact integers
 *     O^T[64 channels][N rows] += values (f16, registers) x weights (f16, shared memory)           f32, no scale of a tile
 *
 * So codes are unpacked once for all N rows of a block. A group of four warps takes a step at a time: half a page, four tiles,
 * which the copy engine brings. Each warp scores a tile of its own, then unpacks D / 4 channels of all four. Weights go to shared
 * memory in the order in which words of values have their tokens: column 8 i + g of a tile is token 4 g + i. The one barrier of a
 * step also votes whether a maximum was left too far behind, or a key takes both planes: the weights of the step are then made
 * again, in registers, or for such keys by panels (wide_panels.cuh). There are masks at the ends and in windows only.
 *
 * A weight is 2^(logit - m) times the scale of its value times `up`, a power of two that keeps such products within f16. A logit is
 * fmaf(fmaf(integer, scale, -WHOLE scale), factor, bias - m): the integer is exact, what follows has two roundings. m moves
 * for those rows alone that were left behind.
 *
 * f16 rows of pinned and open tokens come last, eight rows to a warp, as in the fused kernel. */
#ifndef AURA_CUDA_ATTEND_WIDE_CUH
#define AURA_CUDA_ATTEND_WIDE_CUH

#include "wide_merge.cuh"
#include "wide_panels.cuh"

/* Of the step: sums of this lane's tokens 4 g ... 4 g + 3 of its warp's tile, for rows 8 j + 2 t and the next: integers whose bits
 * are a float WHOLE above them, or floats, kw being 0 then. */
template <class S>
struct wide_scores {
    int sum[2][S::N / 2];
    float ks[4], kw[4], vs[4];
    bool both; /* a key may take both planes */
};

/* ---- score ------------------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void spread_scales(wide_scores<S> &x, uint2 k, uint2 v, float up)
{
#pragma unroll
    for (int i = 0; i < 4; i++) {
        x.ks[i] = half_of(k, i);
        x.kw[i] = S::PL == 1 ? -WHOLE * x.ks[i] : 0;
        x.vs[i] = half_of(v, i) * up;
    }
}

template <class S>
__device__ __forceinline__ void product_keys(int (&sum)[S::N / 2], const uint32_t (&a)[4], uint64_t q)
{
    if (S::KIND == 8)
        product_s8s8(sum, a, q);
    else
        product_u8s8(sum, a, q);
}

/* Products of keys with a plane of the queries are added to the sums. */
template <class S>
__device__ __forceinline__ void ask_products(wide_scores<S> &x, const uint32_t (&a)[2][S::STEPS][4], const wide_space<S> &s,
                                             int plane)
{
    const uint64_t q = operand_at(s.q[plane]);
    sums_are_there(x.sum[0]), sums_are_there(x.sum[1]);
    products_begin();
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int step = 0; step < S::STEPS; step++)
            product_keys<S>(x.sum[pair], a[pair][step], q + step / 4 * (S::N * 8) + step % 4 * 2);
    products_grouped();
}

template <class S>
__device__ __forceinline__ void begin_scores(wide_scores<S> &x, const wide_space<S> &s)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++) {
        const uint2 b = *(const uint2 *)&s.begin[8 * j + 2 * t];
#pragma unroll
        for (int pair = 0; pair < 2; pair++) {
            x.sum[pair][4 * j] = x.sum[pair][4 * j + 2] = (int)b.x;
            x.sum[pair][4 * j + 1] = x.sum[pair][4 * j + 3] = (int)b.y;
        }
    }
}

/* Two planes: the lower one is added to 256 times the upper one, and sums become floats. */
template <class S>
__device__ __forceinline__ void add_lower(wide_scores<S> &x, const uint32_t (&a)[2][S::STEPS][4], const wide_space<S> &s)
{
    const int t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int offset = code<S::KIND>::offset * s.row[8 * j + 2 * t + e].sum[1];
#pragma unroll
            for (int i = 0; i < 4; i++)
                x.sum[i / 2][4 * j + i % 2 * 2 + e] = x.sum[i / 2][4 * j + i % 2 * 2 + e] * 256 - offset;
        }
    ask_products<S>(x, a, s, 1);
    products_but_last_done<0>();
#pragma unroll
    for (int pair = 0; pair < 2; pair++)
#pragma unroll
        for (int i = 0; i < S::N / 2; i++)
            x.sum[pair][i] = (int)__float_as_uint((float)x.sum[pair][i]);
}

/* ---- softmax ------------------------------------------------------------------------------------------------------------ */

/* Weights to shared memory, their sums to l. Returns whether some are too large. */
template <class S>
__device__ __forceinline__ bool store_weights(float (&l)[S::N / 4], const wide_scores<S> &x, const wide_space<S> &s,
                                              const wide_walk<S> &at, uint8_t *to)
{
    const int t = threadIdx.x % 4;
    const float *bias = s.bias[at.group][(at.step / 2 - at.first_page) % WIDE_PAGES], *m = s.m[at.group];
    bool above = fmaxf(fmaxf(x.vs[0], x.vs[1]), fmaxf(x.vs[2], x.vs[3])) > 4;
    float2 ahead[3] = {}; /* what the next rows need: asked for before the stores of these */
#pragma unroll
    for (int j = -1; j < S::N / 8; j++) {
        const float2 f = ahead[0], b = ahead[1], low = ahead[2];
        if (j + 1 < S::N / 8) {
            const int n = 8 * j + 8 + 2 * t;
            ahead[0] = *(const float2 *)&s.factor[n], ahead[1] = *(const float2 *)&bias[n], ahead[2] = *(const float2 *)&m[n];
        }
        if (j < 0)
            continue;
        const float from[2] = {b.x - low.x, b.y - low.y};
        float sum[2] = {0, 0};
        uint32_t r[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            float p[2];
#pragma unroll
            for (int e = 0; e < 2; e++) {
                const float y = fmaf(__int_as_float(x.sum[i / 2][4 * j + i % 2 * 2 + e]), x.ks[i], x.kw[i]);
                p[e] = exp2_approx(fmaf(y, e ? f.y : f.x, from[e]));
                sum[e] += p[e];
            }
            const __half2 two = __floats2half2_rn(p[0] * x.vs[i], p[1] * x.vs[i]);
            r[i] = *(const uint32_t *)&two;
        }
        l[2 * j] = sum[0], l[2 * j + 1] = sum[1];
        above |= fmaxf(sum[0], sum[1]) > WIDE_MOST;
        store_matrices_turned(to + j * 1024, r);
    }
    return above;
}

/* Takes out what rows do not see: sums become floats, -infinity there. Scales of values that are no codes, or not of the split, may
 * be anything, and become 0. */
template <class S>
__device__ __forceinline__ void hide_tokens(wide_scores<S> &x, const wide_space<S> &s, const struct dev_attend &a,
                                            const wide_walk<S> &at)
{
    const uint32_t first = at.step * WIDE_TOKENS + threadIdx.x / 32 % 4 * AURA_TILE + threadIdx.x % 32 / 4 * 4, t = threadIdx.x % 4;
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const uint2 seen = s.seen[8 * j + 2 * t + e];
#pragma unroll
            for (int i = 0; i < 4; i++) {
                int &sum = x.sum[i / 2][4 * j + i % 2 * 2 + e];
                const float y = fmaf(__int_as_float(sum), x.ks[i], x.kw[i]);
                sum = (int)__float_as_uint(first + i >= seen.x && first + i < seen.y ? y : -INFINITY);
            }
        }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const bool there = first + i >= max(a.c.pinned, at.from) && first + i < min(s.split.reach.closed, at.to);
        x.vs[i] = there ? x.vs[i] : 0;
        x.ks[i] = 1, x.kw[i] = 0;
    }
}

/* Largest logits of this warp's tokens, and its largest scale of a value. */
template <class S>
__device__ __forceinline__ void find_largest(const wide_scores<S> &x, wide_space<S> &s, const wide_walk<S> &at)
{
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const float *bias = s.bias[at.group][(at.step / 2 - at.first_page) % WIDE_PAGES];
#pragma unroll
    for (int j = 0; j < S::N / 8; j++)
#pragma unroll
        for (int e = 0; e < 2; e++) {
            const int n = 8 * j + 2 * t + e;
            float most = NOTHING;
#pragma unroll
            for (int i = 0; i < 4; i++)
                most = fmaxf(most, fmaf(__int_as_float(x.sum[i / 2][4 * j + i % 2 * 2 + e]), x.ks[i], x.kw[i]));
            most = row_max(fmaf(most, s.factor[n], bias[n])); /* factors are above 0 */
            if (gl == 0)
                s.most[at.group][warp][n] = most;
        }
    const float v_most = row_max(fmaxf(fmaxf(x.vs[0], x.vs[1]), fmaxf(x.vs[2], x.vs[3])));
    if (threadIdx.x % 32 == 0)
        s.v_most[at.group][warp] = v_most;
}

/* ---- value -------------------------------------------------------------------------------------------------------------- */

/* Values of a tile: the channels of this warp, as rows of A. */
template <class S>
struct wide_values {
    uint32_t a[S::MB][2][4];
};

template <class S>
constexpr uint32_t value_offset = S::KIND == 8 ? 128 : code<S::KIND>::offset; /* a byte is the level and this */

/* Eight levels as f16, pairs of tokens (0, 4) (1, 5) (2, 6) (3, 7) of the octet: 0x6400 and a byte below are 1024 and the byte. */
template <class S>
__device__ __forceinline__ void levels_of(uint32_t (&h)[4], const eight &e)
{
    constexpr uint32_t zero = (0x6400 + value_offset<S>) * 0x10001u;
    uint32_t b[2] = {joined<S>(e, 0), joined<S>(e, 1)};
    if (code<S::KIND>::natural) {
        const uint32_t first = b[0], second = b[1];
        b[0] = prmt(first, second, 0x5140), b[1] = prmt(first, second, 0x7362);
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t byte = S::KIND == 8 ? b[i / 2] ^ 0x80808080u : b[i / 2];
        const uint32_t x = prmt(byte, 0x64646464u, i % 2 ? 0x4342 : 0x4140);
        const __half2 y = __hsub2(*(const __half2 *)&x, *(const __half2 *)&zero);
        h[i] = *(const uint32_t *)&y;
    }
}

/* The words of these channels: parts of 32, one or two. */
template <class S>
struct wide_words {
    static constexpr int PARTS = (S::D + 127) / 128;
    uint4 w[PARTS][values<S::KIND, 32>::n];
};

template <class S>
__device__ __forceinline__ void load_values(wide_words<S> &to, const uint8_t *stage,
                                            uint32_t tile)
{
    using V = values<S::KIND, 32>;
    const uint32_t gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
#pragma unroll
    for (int half = 0; half < wide_words<S>::PARTS; half++) {
        const uint32_t part = S::D == 64 ? warp / 2 : warp + 4 * half;
#pragma unroll
        for (int i = 0; i < V::n; i++) {
            uint4 &w = to.w[half][i];
            w = load_shared16(stage + chunk_at<S>(tile, S::V_AT / 128 + V::lane_word(V::is_second(i), t) * (S::D / 32) + part, gl));
            if (S::D == 64 && warp % 2)
                w.x = w.z, w.y = w.w;
        }
    }
}

template <class S>
__device__ __forceinline__ void unpack_values(wide_values<S> &v, const wide_words<S> &from, const uint32_t (&table)[4])
{
    using V = values<S::KIND, 32>;
    const uint32_t t = threadIdx.x % 4;
#pragma unroll
    for (int half = 0; half < wide_words<S>::PARTS; half++) {
#pragma unroll
        for (int b = 0; b < (S::D == 64 ? 1 : 2); b++) {
            uint32_t x[4], y[4];
            levels_of<S>(x, V::decode(from.w[half], 0, 2 * b, t, table));
            levels_of<S>(y, V::decode(from.w[half], 0, 2 * b + 1, t, table));
#pragma unroll
            for (int i = 0; i < 2; i++) {
                uint32_t *a = v.a[2 * half + b][i];
                a[0] = x[2 * i], a[1] = y[2 * i], a[2] = x[2 * i + 1], a[3] = y[2 * i + 1];
            }
        }
    }
}

template <class S>
__device__ __forceinline__ void product_values(wide_running<S> &run, const wide_values<S> &v, uint64_t weights, int tile)
{
#pragma unroll
    for (int b = 0; b < S::MB; b++)
#pragma unroll
        for (int i = 0; i < 2; i++)
            product_registers(run.o[b], v.a[b][i], weights + tile / 2 * (S::N * 8) + tile % 2 * 4 + 2 * i);
}

/* ---- a step ------------------------------------------------------------------------------------------------------------- */

/* Scores of the step, and its scales. */
template <class S>
__device__ __forceinline__ void score_step(wide_scores<S> &x, const wide_space<S> &s, const wide_walk<S> &at, const uint8_t *stage,
                                           const uint32_t (&table)[4], uint32_t limit)
{
    const uint32_t warp = uniform(threadIdx.x / 32 % 4);
    uint32_t a[2][S::STEPS][4];
    uint4 w[keys<S::KIND, S::D>::n];
    load_keys<S>(w, stage, warp);
    const uint2 scales = load_scales<S>(stage, warp, false), v_scales = load_scales<S>(stage, warp, true);
    begin_scores<S>(x, s);
#pragma unroll
    for (int step = 0; step < S::STEPS; step++)
#pragma unroll
        for (int pair = 0; pair < 2; pair++)
            key_operand<S>(a[pair][step], w, step, pair, table);
    ask_products<S>(x, a, s, 0);
    spread_scales<S>(x, scales, v_scales, s.up[at.group]);
    const uint64_t four = (uint64_t)scales.y << 32 | scales.x;
    x.both = S::PL == 1 && aura_some_above(aura_four_above(four, aura_room_of_limit(limit)));
    products_but_last_done<0>();
    if (S::PL == 2)
        add_lower<S>(x, a, s);
}

/* All panels of a step: logits for checks; then, where it is wanted, largest logits and weights. */
template <class S>
__device__ __forceinline__ void weigh_panels(wide_running<S> &run, wide_scores<S> &x, wide_space<S> &s, const struct dev_attend &a,
                                             const wide_walk<S> &at, const uint8_t *stage, uint8_t *to,
                                             const uint32_t (&table)[4], bool wanted)
{
    enum wide_pass pass = a.trace ? PASS_TRACE : PASS_LARGEST;
#pragma unroll 1
    for (;;) {
        pass_panels<S>(s, a, at, stage, to, table, pass);
        if (pass == PASS_WEIGHTS || !wanted)
            break;
        if (pass == PASS_LARGEST) {
            group_meets(at.group);
            follow_maxima<S>(run, x.vs, s, at);
        }
        pass = pass == PASS_TRACE ? PASS_LARGEST : PASS_WEIGHTS;
    }
    fence_products();
    group_meets(at.group);
}

/* Weights of the step are in shared memory after this. Where some are too large, maxima move and they are made again from the same
 * sums, once: panels round a logit before they take its maximum off, so that theirs are never too large, not even of logits whose
 * last place is worth more than the room between a maximum and a weight. */
template <class S>
__device__ __forceinline__ void weigh_step(wide_running<S> &run, wide_scores<S> &x, wide_space<S> &s, const struct dev_attend &a,
                                           const wide_walk<S> &at, const uint8_t *stage, uint8_t *weights,
                                           const uint32_t (&table)[4], bool first)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    uint8_t *to = weights + (warp / 2 * S::N + lane % 8) * 128 + (((4 * warp + lane / 8) % 8) ^ lane % 8) * 16;
    float l[S::N / 4];
    bool panels = false, again = first;
    if (S::PL == 1 && first) /* a maximum of sums of one plane may be too large, and none ever comes down */
        again = !__any_sync(~0u, group_any(at.group, x.both));
    if (at.step < at.plain || at.step >= at.plain_end)
        hide_tokens<S>(x, s, a, at);
#pragma unroll 1
    for (;; again = true) {
        if (again) {
            find_largest<S>(x, s, at);
            group_meets(at.group);
            follow_maxima<S>(run, x.vs, s, at);
        }
        const bool above = store_weights<S>(l, x, s, at, to) || x.both;
        fence_products();
        panels = __any_sync(~0u, group_any(at.group, above));
        if (!panels || again || (S::PL == 1 && __any_sync(~0u, group_any(at.group, x.both))))
            break;
    }
    if (panels || a.trace)
        weigh_panels<S>(run, x, s, a, at, stage, to, table, panels);
    if (panels)
        return;
#pragma unroll
    for (int i = 0; i < S::N / 4; i++)
        run.l[i] += l[i];
}

/* Values of the step: those of a tile are unpacked while those of the tile before are multiplied. */
template <class S>
__device__ __forceinline__ void value_step(wide_running<S> &run, const uint8_t *stage, uint64_t operand, const uint32_t (&table)[4])
{
    wide_values<S> v[2];
    wide_words<S> words[2];
    load_values<S>(words[0], stage, 0);
#pragma unroll
    for (int tile = 0; tile < WIDE_STEP; tile++) {
        if (tile + 1 < WIDE_STEP)
            load_values<S>(words[(tile + 1) % 2], stage, tile + 1);
        if (tile >= 2)
            products_but_last_done<1>();
        unpack_values<S>(v[tile % 2], words[tile % 2], table);
        products_begin();
        product_values<S>(run, v[tile % 2], operand, tile);
        products_grouped();
    }
    products_but_last_done<0>();
}

/* The least of the rows that are there. */
template <class S>
__device__ __forceinline__ uint32_t lowest_limit(const wide_space<S> &s)
{
    uint32_t limit = AURA_NO_LIMIT;
    for (int n = threadIdx.x % 32; n < S::N; n += 32)
        limit = min(limit, s.row[n].there ? s.row[n].limit : (uint32_t)AURA_NO_LIMIT);
    for (int far = 16; far; far /= 2)
        limit = min(limit, __shfl_xor_sync(~0u, limit, far));
    return limit;
}

/* All steps of a group. */
template <class S>
__device__ __forceinline__ void attend_steps(wide_running<S> &run, wide_space<S> &s, const struct dev_wide &w, wide_walk<S> &at)
{
    const struct dev_attend &a = w.a;
    const uint32_t warp = uniform(threadIdx.x / 32 % 4), begin = at.step, limit = lowest_limit<S>(s);
    uint32_t table[4];
#pragma unroll
    for (int i = 0; i < 4; i++)
        table[i] = kept(a.c.k_table[i]);
#pragma unroll 1
    for (; at.step < at.end; at.step++) {
        wide_scores<S> x;
        const uint8_t *stage = s.stage[at.group][at.stage][0];
        uint8_t *weights = s.weight[at.group][(at.step - begin) % S::BUFFERS][0][0];
        if (at.step == begin || at.step % (2 * WIDE_PAGES) == at.first_page % WIDE_PAGES * 2)
            make_biases<S>(s, a, at);
        meeting_wait(&s.full[at.group][at.stage], at.parity);
        score_step<S>(x, s, at, stage, table, limit);
        weigh_step<S>(run, x, s, a, at, stage, weights, table, at.step == begin);
        if (warp == 0 && at.step > begin && at.asked < at.end) /* all are done with the step before */
            ask_step<S>(s, w, s.split, at, page_of(s, a, s.split, at.asked * WIDE_STEP));
        value_step<S>(run, stage, operand_at(weights), table);
        if (S::BUFFERS == 1)
            group_meets(at.group); /* weights are read */
        const bool around = ++at.stage == S::STAGES;
        at.stage = around ? 0 : at.stage, at.parity ^= around;
    }
}

/* ---- a split ------------------------------------------------------------------------------------------------------------ */

/* The tile at which a cut before a visit lies. A visit of f16 rows, of which there are in_rows, counts as WIDE_OF_ROWS tiles; then
 * the cut moves to a whole step, but for the ends of the unit. */
__device__ __forceinline__ uint32_t wide_cut(const struct reach &r, uint32_t visit, uint32_t in_rows)
{
    const uint32_t ahead = WIDE_OF_ROWS * in_rows, all = r.tiles + in_rows;
    uint32_t tile = r.tile_first + r.tiles;
    if (visit < all)
        tile = r.tile_first + max((uint32_t)((float)visit / (float)all * (float)(r.tiles + ahead)), ahead) - ahead;
    const uint32_t end = r.tile_first + r.tiles, whole = (tile + WIDE_STEP / 2) / WIDE_STEP * WIDE_STEP;
    return tile <= r.tile_first ? r.tile_first : tile >= end ? end : min(max(whole, r.tile_first), end);
}

/* The steps of this group. */
template <class S>
__device__ __forceinline__ void walk_of(wide_walk<S> &at, const struct split &g)
{
    const uint32_t in_rows = (g.reach.pinned_end ? 1 : 0) + g.reach.open_visits, groups = S::GROUPS;
    const uint32_t first = wide_cut(g.reach, g.first, in_rows), end = wide_cut(g.reach, g.first + g.n, in_rows);
    const uint32_t step = first / WIDE_STEP, steps = end > first ? (end + WIDE_STEP - 1) / WIDE_STEP - step : 0;
    at.from = first * AURA_TILE, at.to = end * AURA_TILE;
    at.step = at.asked = uniform(step + steps * at.group / groups);
    at.end = uniform(step + steps * (at.group + 1) / groups);
    at.first_page = at.step / 2;
}

/* Steps in which every row sees every token; none, where no row is there. */
template <class S>
__device__ __forceinline__ void find_plain(wide_walk<S> &at, const wide_space<S> &s)
{
    uint32_t begin = 0, end = ~0u;
    for (int n = threadIdx.x % 32; n < S::N; n += 32)
        if (s.row[n].there)
            begin = max(begin, s.seen[n].x), end = min(end, s.seen[n].y);
    for (int far = 16; far; far /= 2)
        begin = max(begin, __shfl_xor_sync(~0u, begin, far)), end = min(end, __shfl_xor_sync(~0u, end, far));
    at.plain = uniform((begin + WIDE_TOKENS - 1) / WIDE_TOKENS);
    at.plain_end = uniform(end == ~0u ? 0 : end / WIDE_TOKENS);
}

/* The numbers of the pages that the split reads. */
template <class S>
__device__ __forceinline__ void gather_wide_pages(wide_space<S> &s, const struct dev_attend &a, const struct split &g,
                                                  uint32_t first, uint32_t end)
{
    const uint32_t page = first / AURA_PAGE, pages = (g.reach.closed + AURA_PAGE - 1) / AURA_PAGE;
    for (uint32_t i = threadIdx.x; i < PAGES_NEAR && page + i < min((end + AURA_PAGE - 1) / AURA_PAGE, pages); i += S::THREADS)
        s.page[i] = a.c.table[(size_t)g.seq * a.c.table_stride + page + i];
    if (threadIdx.x == 0)
        s.first_page = page, s.split = g;
}

template <class S>
__device__ __forceinline__ void attend_wide_split(wide_space<S> &s, const struct dev_wide &w, const struct split &g,
                                                  wide_walk<S> &at)
{
    const struct dev_attend &a = w.a;
    const uint32_t in_rows = (g.reach.pinned_end ? 1 : 0) + g.reach.open_visits, visit = min(g.first, in_rows),
                   visit_end = max(min(g.first + g.n, in_rows), visit);
    walk_of<S>(at, g);
    if (threadIdx.x / 32 % 4 == 0)
        for (int i = 0; i < S::STAGES && at.asked < at.end; i++)
            ask_step<S>(s, w, g, at, a.c.table[(size_t)g.seq * a.c.table_stride + at.asked / 2]);
    ask_references<S>(s, a, g, at, at.first_page);
    for (uint32_t i = visit + threadIdx.x / 32; i < visit_end; i += S::WARPS) {
        const struct tile_tokens rows = rows_visit_of(g.reach, i);
        prefetch_rows<S>(a, g, rows.from, rows.to);
    }
    gather_wide_pages<S>(s, a, g, at.from, at.to);
    wide_rows<S>(s, a, g);
    __syncthreads();
    wide_operands<S>(s, a, g, at);
    __syncthreads();
    find_plain<S>(at, s);
    wide_running<S> run = {};
    if (at.step < at.end)
        attend_steps<S>(run, s, w, at);
    at.asked = at.end, at.ask_stage = at.stage; /* as warp 0 has them */
    wide_merge<S> &merge = s.merge;
    __syncthreads(); /* tiles are read */
    store_group<S>(s, merge, a, run, at.group);
    if (visit < visit_end) {
        if (!S::KEPT) {
            __syncthreads(); /* limits of rows are read */
            wide_rows<S>(s, a, g);
            __syncthreads();
        }
        attend_panels<S>(s, merge, a, visit, visit_end);
    }
    __syncthreads();
    merge_wide<S>(s, a, g, visit < visit_end ? S::PARTS_OF_BLOCK : S::GROUPS);
}

/* The body of the kernels. */
template <class S>
__device__ __forceinline__ void attend_wide(const struct dev_wide &w)
{
    const struct dev_attend &a = w.a;
    uint8_t *shared = dynamic_shared(); /* an offset from it, so that the compiler knows where this points */
    wide_space<S> &s = *(wide_space<S> *)(shared + (-(uintptr_t)shared & 1023));
    const struct piece p = piece_of((uint32_t *)(dynamic_shared() + sizeof s + 1024), a, 2 * WIDE_STEP * S::GROUPS);
    wide_walk<S> at = {};
    at.group = uniform(threadIdx.x / 128);
    if (threadIdx.x == 0)
        for (int i = 0; i < S::GROUPS * S::STAGES; i++)
            meeting_init(&s.full[i / S::STAGES][i % S::STAGES], 1);
    __syncthreads();
    uint32_t on;
    for (uint32_t i = uniform(p.at); i < uniform(p.end); i += on) {
        const struct split g = split_at(a, p, i, S::N, 2 * WIDE_STEP * S::GROUPS);
        on = uniform(g.on);
        if (uniform(g.idle))
            continue;
        attend_wide_split<S>(s, w, g, at);
        fence_products();
        __syncthreads();
    }
}

/* For rows of AURA_CUDA_WIDE. */
#define STAMP_WIDE(name, kind, dim, planes, rows)                                                           \
    extern "C" __global__ void __launch_bounds__(wide_most<kind, dim, planes, rows>::THREADS, 1)            \
        aura_##name(const __grid_constant__ struct dev_wide w)                                              \
    {                                                                                                       \
        attend_wide<wide_most<kind, dim, planes, rows>>(w);                                                 \
    }
#define WIDE_ENTRY(name, kind, dim, planes, rows) wide_entry<wide_most<kind, dim, planes, rows>>(#name, (const void *)aura_##name),

template <class S>
constexpr attend_kernel wide_entry(const char *name, const void *run)
{
    return {name, S::KIND, S::D, S::PL, (uint32_t)S::N, (uint32_t)S::THREADS, run, (uint32_t)sizeof(wide_space<S>) + 1024, 1,
            S::TILE_ROWS, 1, 0};
}

#endif
