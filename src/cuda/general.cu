/* Attention for every format and dim that has no kernel of its own; general.cuh says how. */
#include "cache.cuh"
#include "general_codes.cuh"
#include "general_numbers.cuh"
#include "whole_rows.cuh"

/* ---- queries and results ------------------------------------------------------------------------------------------------- */

/* Stores channel d of a query as what keys are multiplied with: bytes, in the order of the octets of codes, and 16-bit numbers.
 * y is the number, q15 the integer. */
template <class S>
__device__ __forceinline__ void store_query(const general_warp<S> &w, const struct dev_attend &a, int r, uint32_t d, float y,
                                            int q15, float half_factor)
{
    const uint32_t place = d / PAIR * PAIR + place_in_pair(a.c.k_kind, d % PAIR);
    const int hi = (q15 + 128) >> 8, lo = q15 - 256 * hi;
    uint32_t plane[3];
    w.q_column(a, r, UPPER)[place] = (uint8_t)hi;
    w.q_column(a, r, BESIDE)[place] = (uint8_t)(takes_lower(a) ? lo : 0);
    w.q_column(a, r, LOWER)[place] = (uint8_t)lo;
    if (a.c.k_rows || a.c.k_kind == AURA_ROW_F16)
        factor_planes<AURA_ROW_F16>(plane, y * half_factor, 0), plane[2] = 0;
    else
        factor_planes<AURA_ROW_BF16>(plane, y * a.unit, 0);
#pragma unroll
    for (int i = 0; i < HALF_PLANES; i++)
        ((uint16_t *)w.half_column(a, r, i))[d] = (uint16_t)plane[i];
}

/* Prepares row r of the split, by one warp. The warp has no tile yet, so that its space in shared memory is free. */
template <class S>
__device__ __forceinline__ void general_query(const general_warp<S> &w, const struct dev_attend &a, const struct split &g, int r)
{
    const uint32_t lane = threadIdx.x % 32, dim = a.c.k_dim;
    row_info row = row_at(a, g, r);
    float *y = (float *)w.mine;
    const float largest = query_to_shared(a, g.job, g.head, row, y);
    const bool tiny = largest < 0x1p-100f;
    const float factor = tiny ? 0 : __fdiv_rn(QUERY_TOP, largest), half_factor = tiny ? 0 : QUERY_HALF_TOP / largest;
    int hi_sum = 0, sum = 0, lower = 0;
    for (uint32_t d = lane; d < a.stage.k_pad; d += 32) {
        const float x = d < dim && !row.bad ? y[d] : 0;
        const int q15 = __float2int_rn(__fmul_rn(x, factor));
        hi_sum += (q15 + 128) >> 8;
        sum += q15;
        lower += abs(q15 - 256 * ((q15 + 128) >> 8));
        store_query<S>(w, a, r, d, x, q15, half_factor);
    }
    row.sum[0] = warp_sum(hi_sum);
    row.sum[1] = warp_sum(sum) - 256 * row.sum[0];
    row.step = tiny ? 0 : __fdiv_rn(largest, QUERY_TOP);
    row.factor = __fmul_rn(__fmul_rn(__fmul_rn(row.step, a.planes % 4 == 1 ? 256.f : 1.f), a.c.k_step), a.unit);
    row.limit = a.limit_of_call < INFINITY ? aura_limit_of_row(a.limit_of_call, row.step, warp_sum(lower)) : AURA_NO_LIMIT;
    row.top = a.c.k_rows || a.c.k_kind == AURA_ROW_F16 ? largest * a.unit / QUERY_HALF_TOP : 1;
    if (lane == 0)
        w.s.row[r] = row;
    __syncwarp();
}

/* Finishes a row, which is merged and in o, by one warp: to the caller's tensor. What the second warp had after o is not needed
 * any more, and is used as space. */
template <class S>
struct finish_general {
    static constexpr bool FROM_SHARED = true;
    static __device__ __forceinline__ void row(const struct dev_attend &a, const struct split &g, const struct row_info &row,
                                               float *o, float m, float l)
    {
        float *space = o + sizeof(merge_space<S::D, S::ROWS, S::WARPS>::o[0]) / sizeof(float);
        row_from_shared(a, g, row, o, space, m, l);
    }
};

/* ---- one visit after the other ------------------------------------------------------------------------------------- */

/* Writes the logits of codes for checks, applies the options, and hides what a row does not see. A token outside the visit has
 * no scale: what is stored there may be anything, and becomes 0. */
template <class S>
__device__ __forceinline__ void hide_tokens(float (&logit)[S::NT][1][4], general_warp<S> &w, const struct dev_attend &a,
                                            const struct general_visit &visit, bool codes)
{
    const struct split &g = w.s.split;
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t token = visit.first + threadIdx.x % 32 / 4 * 4 + i, keep = i % 2 ? 0x0000ffffu : 0xffff0000u;
        (i < 2 ? w.v_scale.x : w.v_scale.y) &= token >= visit.from && token < visit.to ? ~0u : keep;
    }
#pragma unroll
    for (int nt = 0; nt < S::NT; nt++) {
        const row_info &row = w.s.row[lane_row<S>(nt, 0)];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const uint32_t token = visit.first + threadIdx.x % 32 / 4 * 4 + i;
            float &x = logit[nt][0][i];
            if (a.trace && codes && row.there && token >= visit.from && token < visit.to && token < a.trace_tokens)
                a.trace[(((size_t)g.job * a.queries + row.query) * a.c.q_heads + row.head) * a.trace_tokens + token] = x;
            if (a.options)
                x = apply_options(a, row, g.job, g.reach.len, token, x);
            x = token >= visit.from && token < visit.to && row_sees(a, row, token) ? x : -INFINITY;
        }
    }
}

/* Tiles in which no row has to hide a token: their first token is in [begin, begin + more]. */
struct plain_tiles {
    uint32_t begin, more;
};

template <class S>
__device__ __forceinline__ struct plain_tiles plain_tiles_of(const general_warp<S> &w, const struct dev_attend &a)
{
    uint32_t begin = first_code_of(a), end = w.s.split.reach.closed; /* codes that all rows see */
    for (int r = 0; r < S::ROWS && w.s.row[r].there; r++) {
        begin = max(begin, w.s.row[r].begin);
        end = min(end, w.s.row[r].end);
    }
    if (a.options || a.trace || end < begin + AURA_TILE)
        return {~0u, 0}; /* none */
    return {begin, end - begin - AURA_TILE};
}

/* A visit whose tokens have no codes. */
template <class S>
__device__ __forceinline__ void general_rows(general_warp<S> &w, const struct dev_attend &a, running<S> &run,
                                             const struct general_visit &visit)
{
    float p[S::NT][1][4];
    score_any_numbers<S>(p, w, a, visit);
    hide_tokens<S>(p, w, a, visit, false);
    weigh<S>(p, run);
    value_any_numbers<S>(run, p, w, a, visit);
}

/* A tile. The copies of the next one start as soon as there is room for them. */
template <class S>
__device__ __forceinline__ void general_tile(general_warp<S> &w, const struct dev_attend &a, running<S> &run,
                                             const struct tile_walk &now,
                                             const struct tile_walk &next, const struct plain_tiles &plain)
{
    const bool k_codes = S::DIM || a.stage.k.chunks, v_codes = S::DIM || a.stage.v.chunks;
    float p[S::NT][1][4];
    copies_but_last_arrived();
    __syncwarp();
    w.k_scale = *(const uint2 *)w.scales, w.v_scale = *(const uint2 *)(w.scales + 2 * AURA_TILE);
    if (now.first % AURA_PAGE == 0 && a.stage.reference_chunks)
        general_bias<S>(w, a);
    if (k_codes) {
        score_codes<S>(p, w, a, next);
    } else {
        score_any_numbers<S>(p, w, a, visit_of_tile<S>(w, a, now));
        __syncwarp();
        if (next.left)
            ask_any_keys<S>(w, a, next.chunk);
    }
    if (next.first % AURA_PAGE == 0 && next.left)
        ask_reference<S>(w, a, next);
    copies_grouped();
    if (now.first - plain.begin > plain.more)
        hide_tokens<S>(p, w, a, visit_of_tile<S>(w, a, now), k_codes);
    weigh<S>(p, run);
    if (v_codes) {
        value_codes<S>(run, p, w, a, next);
    } else {
        value_any_numbers<S>(run, p, w, a, visit_of_tile<S>(w, a, now));
        if (next.left)
            ask_any_values<S>(w, a, next.chunk);
    }
    copies_grouped();
}

template <class S>
__device__ __forceinline__ void general_tiles(general_warp<S> &w, const struct dev_attend &a, running<S> &run, struct tile_walk now)
{
    const struct plain_tiles plain = plain_tiles_of<S>(w, a);
    const uint32_t begin = now.first / AURA_TILE;
    copies_but_last_arrived();
    __syncwarp();
    if (a.stage.reference_chunks)
        general_bias<S>(w, a);
    while (now.left) {
        const struct tile_walk next = next_tile<S>(w, a, now);
        general_tile<S>(w, a, run, now, next, plain);
        const uint32_t done = next.first / AURA_TILE;
        if (a.fixed_cut && (done % AURA_CUT_LEAF == 0 || !next.left)) {
            no_space none;
            keep_leaf<S>(a, w.s.split, run, begin, done, done + next.left, none);
            begin_running<S>(run, w.s.row);
        }
        now = next;
    }
    copies_arrived();
}

/* What a warp of a general kernel does of a split. Visits are even here: one of f16 rows is no longer than a tile. */
template <class S>
__device__ __forceinline__ struct warp_share general_share_of(const struct dev_attend &a, const struct split &g, uint32_t warp)
{
    if (a.fixed_cut)
        return tasks_share_of(g, warp, S::WARPS);
    /* A unit without tokens still has one visit; there is nothing to do in it. */
    const struct reach &r = g.reach;
    const uint32_t rows = rows_visits_of(r), kept = rows + r.kept, at = g.first + g.n * warp / S::WARPS;
    const uint32_t end = min(g.first + g.n * (warp + 1) / S::WARPS, kept + r.tiles), tile = max(at, kept);
    const uint32_t first = r.tile_first + tile - kept, first_kept = r.kept_first + min(max(at, rows), kept) - rows;
    return {at, min(end, rows), first, first + (end > tile ? end - tile : 0), first_kept,
            max(first_kept, r.kept_first + min(max(end, rows), kept) - rows)};
}

/* Tiles [tile, end): what the warp asks for before it comes to the first. */
template <class S>
__device__ __forceinline__ struct tile_walk begin_tiles(general_warp<S> &w, const struct dev_attend &a, uint32_t tile, uint32_t end)
{
    struct tile_walk now = {tile * AURA_TILE, end - tile, NULL};
    if (now.left) {
        now.chunk = chunk_of<S>(w, a, now.first);
        ask_any_keys<S>(w, a, now.chunk);
        ask_reference<S>(w, a, now);
        copies_grouped();
        ask_any_values<S>(w, a, now.chunk);
        copies_grouped();
    }
    return now;
}

/* The visits of a warp. Copies of keys and copies of values are groups that take turns; a group is empty where there is nothing
 * to copy. While the warp waits for one, the group of the other side is on its way. */
template <class S>
__device__ __forceinline__ void general_visits(general_warp<S> &w, const struct dev_attend &a, running<S> &run,
                                               const struct warp_share &mine)
{
    struct tile_walk now = begin_tiles<S>(w, a, mine.tile, mine.tile_end);
    for (uint32_t at = mine.rows; at < mine.rows_end; at++) {
        general_rows<S>(w, a, run, visit_of_rows<S>(w, a, at));
        if (a.fixed_cut) {
            keep_visit<S>(a, w.s.split, run, at);
            begin_running<S>(run, w.s.row);
        }
    }
    uint32_t kept = mine.kept;
#pragma unroll 1
    for (;;) {
        if (now.left)
            general_tiles<S>(w, a, run, now);
        if (kept >= mine.kept_end)
            break;
        now = begin_tiles<S>(w, a, kept, mine.kept_end), kept = mine.kept_end;
    }
}

/* ---- the kernel ---------------------------------------------------------------------------------------------------------- */

template <class S>
__device__ __forceinline__ void general_split(general_warp<S> &w, const struct dev_attend &a)
{
    const struct split &g = w.s.split;
    const uint32_t warp = threadIdx.x / 32;
    gather_pages<S>(w.s, a, g);
    for (int r = warp; r < S::ROWS; r += S::WARPS)
        general_query<S>(w, a, g, r);
    __syncthreads();
    running<S> run;
    begin_running<S>(run, w.s.row);
    begin_codes<S>(w, a);
    const struct warp_share mine = general_share_of<S>(a, g, warp);
    general_visits<S>(w, a, run, mine);
    __syncthreads(); /* what is merged takes the place of tiles */
    struct {
        merge_space<S::D, S::ROWS, S::WARPS> &merge;
    } space = {*(merge_space<S::D, S::ROWS, S::WARPS> *)w.parts};
    if (a.fixed_cut) {
        join_tasks<S, finish_general<S>>(a, g, w.s.row, space.merge, mine);
        return;
    }
    store_running<S>(space, run);
    __syncthreads();
    merge_split<S::D, S::ROWS, S::WARPS, finish_general<S>>(a, g, w.s.row, space.merge);
}

/* Bytes of shared memory, but for the list of sequences at their end. */
template <class S>
__host__ __device__ __forceinline__ uint32_t general_bytes(const struct dev_stage &t)
{
    const uint32_t merge = sizeof(merge_space<S::D, S::ROWS, S::WARPS>), tiles = S::WARPS * t.bytes;
    return general_head_bytes<S>() + general_query_bytes<S>(t) + (merge > tiles ? merge : tiles);
}

/* The body of the general kernels. */
template <class S>
__device__ __forceinline__ void attend_general(const struct dev_attend &a)
{
    uint8_t *shared = dynamic_shared();
    general_warp<S> w = general_warp_of<S>(shared, a);
    uint32_t *prefix = (uint32_t *)(shared + general_bytes<S>(a.stage));
    const struct piece p = piece_of(prefix, a, S::WARPS);
    uint32_t on;
    for (uint32_t at = p.at; at < p.end; at += on) {
        const struct split g = split_at(a, p, at, S::ROWS, S::WARPS);
        on = g.on;
        __syncthreads(); /* all are done with the split before */
        if (threadIdx.x == 0)
            w.s.split = g;
        __syncthreads();
        if (!g.idle)
            general_split<S>(w, a);
    }
}

/* ---- which there are ----------------------------------------------------------------------------------------------------- */

static uint32_t round_up(uint32_t x, uint32_t unit)
{
    return (x + unit - 1) / unit * unit;
}

/* One side, from `at` on: `words` of a lane, `lanes` side by side. Kernels read as if there were `read_words` and `read_lanes`,
 * so that there must be space for these. */
static struct dev_staged stage_side(uint32_t at, uint32_t words, uint32_t lanes, uint32_t read_words, uint32_t read_lanes)
{
    struct dev_staged s = {};
    const uint32_t row = lanes * 4;
    s.at = at;
    s.chunks = words * row / 16;
    s.pitch = row + ROW_SPACE;
    s.end = at + read_words * s.pitch + (words ? 4 * (read_lanes - lanes) : 0);
    return s;
}

struct dev_stage general_stage(const struct dev_cache *c)
{
    struct dev_stage t = {};
    t.k_pad = round_up(c->k_dim, PAIR);
    t.q_pitch = round_up(t.k_pad, 128) + 64; /* so that two columns, of which 64 bytes are read at once, are in different banks */
    t.half_pitch = round_up(2 * t.k_pad, 128) + 64;
    t.scale_chunks = (c->tile_bytes - c->k_scale_at) / 16;
    const uint32_t k_bits = c->k_rows ? aura_bits_of(c->k_kind) : 0, v_bits = c->v_rows ? aura_bits_of(c->v_kind) : 0;
    const uint32_t runs = aura_padded_run(c->k_dim) / AURA_RUN;
    t.k = stage_side(PART_HEAD, k_bits * runs, AURA_TILE, k_bits * (t.k_pad / AURA_RUN), AURA_TILE);
    t.v = stage_side(t.k.end, v_bits, c->v_dim, v_bits, round_up(c->v_dim, 2 * 32));
    t.reference = t.v.end;
    t.reference_chunks = c->has_reference ? (c->reference_scale_at - c->reference_at) / 16 + 1 : 0;
    const uint32_t tile = t.reference + 16 * t.reference_chunks, query = 2 * 4 * c->k_dim; /* and space to rotate it */
    t.bytes = round_up(tile > query ? tile : query, 128);
    return t;
}

template <int PARTS, int NT, int WARPS, int BLOCKS_, int DIM>
struct general {
    static constexpr int BLOCKS = BLOCKS_;
    using S = general_shape<PARTS, NT, WARPS, DIM>;
};

#define STAMP_GENERAL(name, ...)                                                                                \
    extern "C" __global__ void __launch_bounds__(general<__VA_ARGS__>::S::THREADS, general<__VA_ARGS__>::BLOCKS) \
        aura_##name(const __grid_constant__ struct dev_attend a)                                                \
    {                                                                                                           \
        attend_general<general<__VA_ARGS__>::S>(a);                                                             \
    }
AURA_CUDA_GENERAL(STAMP_GENERAL)
#undef STAMP_GENERAL

/* A general kernel, and the shared memory that it needs for a cache. */
struct general_entry {
    struct attend_kernel kernel;
    int dim; /* of both sides, which have codes; 0: any */
    uint32_t (*bytes)(const struct dev_stage &t);
};

template <class S>
static struct general_entry general_entry_of(const char *name, const void *run)
{
    return {{name, 0, (uint32_t)S::D, 0, (uint32_t)S::ROWS, (uint32_t)S::THREADS, run, 0, 0}, S::DIM, general_bytes<S>};
}

/* The smallest that hold the values: for four rows, and for eight where there are registers for them. Codes of 128 channels, which
 * are the most common, have their own. */
struct attend_kernels general_kernels(const struct dev_cache *c, struct attend_kernel (&list)[2])
{
#define ENTRY(name, ...) general_entry_of<general<__VA_ARGS__>::S>(#name, (const void *)aura_##name),
    static const struct general_entry all[] = {AURA_CUDA_GENERAL(ENTRY)};
#undef ENTRY
    const struct dev_stage t = general_stage(c);
    const int common = t.k.chunks && t.v.chunks && c->k_dim == 128 && c->v_dim == 128 ? 128 : 0;
    uint32_t dim = UINT32_MAX, n = 0;
    for (const struct general_entry &e : all)
        if (e.dim == common && e.kernel.dim >= c->v_dim && e.kernel.dim < dim)
            dim = e.kernel.dim;
    for (const struct general_entry &e : all)
        if (e.dim == common && e.kernel.dim == dim && n < 2) {
            list[n] = e.kernel;
            list[n++].shared_bytes = e.bytes(t);
        }
    return {list, n};
}
