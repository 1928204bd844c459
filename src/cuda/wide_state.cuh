/* Many query rows of a KV head over tiles, by products of whole warp groups (sm_90a): what a block keeps, and what comes before
 * the tiles. Units, visits and splits are those of split.cuh; the queries' integers, scores and merge those of the fused kernel.
 * attend_wide.cuh says how it goes. */
#ifndef AURA_CUDA_WIDE_STATE_CUH
#define AURA_CUDA_WIDE_STATE_CUH

#include <type_traits>

#include "attend.cuh"
#include "words_sm90.cuh"

enum {
    WIDE_OF_ROWS = 8,                   /* tiles that a visit of f16 rows counts as: blocks with and without end alike */
    WIDE_STEP = 4,                      /* tiles of a step: half a page */
    WIDE_TOKENS = WIDE_STEP * AURA_TILE,
    WIDE_PAGES = 16,                    /* whose biases are made together: rows of a product */
    WIDE_SHARED = 227 * 1024            /* bytes that a block can have */
};

/* KEPT: the queries in f16 have a place of their own. BUFFERS: of weights, of a group. */
template <int KIND, int D, int PL, int N_, int GROUPS_, int STAGES_, int BUFFERS_, bool KEPT_>
struct wide_shape : shape<KIND, D, PL, 2, 1, 4> {
    static constexpr int N = N_, MB = D / 64, GROUPS = GROUPS_, STAGES = STAGES_, WARPS = 4 * GROUPS, THREADS = 32 * WARPS;
    static constexpr int BUFFERS = BUFFERS_;
    static constexpr bool KEPT = KEPT_;
    static constexpr uint32_t TILE_ROWS = KIND * D / 16 + 1, BOX = tiles_of_copy(TILE_ROWS), BOXES = WIDE_STEP / BOX;
    static constexpr uint32_t BOX_SPACE = (BOX * TILE_ROWS * 128 + 1023) / 1024 * 1024;
    static constexpr int Q_GROUPS = D > 128 ? 2 : 1;
    using PANEL = shape<KIND, D, PL, 2, 1, 4>; /* eight rows of a warp: f16 rows */
    static constexpr int PANELS = N / 8, PANEL_SLOTS = WARPS / PANELS > 0 ? WARPS / PANELS : 1;
    static constexpr int PARTS_OF_BLOCK = GROUPS + PANEL_SLOTS; /* that are merged */
    static constexpr size_t HALF_BYTES = sizeof(__half) * N * 2 * (D + 8);
};

template <class S>
using wide_merge = merge_space<S::D, S::N, S::PARTS_OF_BLOCK>;

/* The queries in plain order: bytes are where weights will be. */
template <class S>
struct wide_queries {
    int8_t (*q)[2][S::D + 8];
    __half (*half)[2][S::D + 8];
    row_info *row;
};

template <class S>
struct wide_space {
    union {
        alignas(1024) uint8_t stage[S::GROUPS][S::STAGES][S::BOXES][S::BOX_SPACE];
        wide_merge<S> merge; /* comes after */
    };
    union {
        alignas(1024) uint8_t weight[S::GROUPS][S::BUFFERS][2][S::N][128]; /* [tokens / 64], as operands */
        alignas(16) uint8_t plain[S::HALF_BYTES / 2 + (S::KEPT ? 0 : S::HALF_BYTES)]; /* before: queries, bytes and maybe f16 */
    };
    alignas(16) uint8_t half[S::KEPT ? S::HALF_BYTES : 16];
    alignas(1024) uint8_t q[2][S::Q_GROUPS][S::N][128]; /* [plane], as an operand */
    row_info row[S::N];
    alignas(16) float factor[S::N];
    alignas(16) int begin[S::N];                        /* of the sums */
    alignas(16) uint2 seen[S::N];                       /* codes [x, y) of the split that a row sees */
    alignas(16) float m[S::GROUPS][S::N], keep[S::GROUPS][S::N], bias[S::GROUPS][WIDE_PAGES][S::N];
    float most[S::GROUPS][4][S::N];                     /* of warps */
    float sums[S::GROUPS][4][S::N];                     /* of weights, by warps: of those that panels made; at the end, of all */
    float v_most[S::GROUPS][4], up[S::GROUPS];
    alignas(16) uint8_t reference[S::GROUPS][WIDE_PAGES][S::D + 16]; /* of pages that come next */
    uint32_t page[PAGES_NEAR], first_page;
    struct split split;
    uint64_t full[S::GROUPS][S::STAGES];
};

/* As many groups as registers allow, then what shared memory has room for: of these, the first. */
template <int KIND, int D, int PL, int N, int GROUPS, int STAGES, int BUFFERS, bool KEPT>
struct wide_try {
    using S = wide_shape<KIND, D, PL, N, GROUPS, STAGES, BUFFERS, KEPT>;
    static constexpr bool fits = sizeof(wide_space<S>) + 2048 <= WIDE_SHARED;
};

template <class FIRST, class... OTHERS>
struct wide_first {
    using S = typename std::conditional<FIRST::fits, FIRST, wide_first<OTHERS...>>::type::S;
};
template <class LAST>
struct wide_first<LAST> {
    using S = typename LAST::S;
};

template <int KIND, int D, int PL, int N, int GROUPS = (D > 128 || N > 32 ? 2 : 3)>
using wide_most =
    typename wide_first<wide_try<KIND, D, PL, N, GROUPS, 3, 2, true>, wide_try<KIND, D, PL, N, GROUPS, 2, 2, true>,
                        wide_try<KIND, D, PL, N, GROUPS, 2, 1, true>, wide_try<KIND, D, PL, N, GROUPS, 2, 1, false>,
                        wide_try<KIND, D, PL, N, GROUPS - 1, 2, 2, true>, wide_try<KIND, D, PL, N, 1, 2, 1, false>>::S;

template <class S>
__device__ __forceinline__ wide_queries<S> wide_queries_of(wide_space<S> &s)
{
    return {(int8_t(*)[2][S::D + 8])s.plain, (__half(*)[2][S::D + 8])(S::KEPT ? s.half : s.plain + S::HALF_BYTES / 2), s.row};
}

/* Where a group is. */
template <class S>
struct wide_walk {
    uint32_t group, step, end;        /* steps [step, end) */
    uint32_t from, to;                /* tokens of the split */
    uint32_t plain, plain_end;        /* steps in which every row sees every token, and all are codes */
    uint32_t first_page;              /* whose bias is the first */
    uint32_t asked;                   /* steps before this one are on their way */
    uint32_t stage, parity, ask_stage;
};

/* What a lane has of the tokens before. Sums of steps that were weighed by panels are in wide_space.sums. */
template <class S>
struct wide_running {
    float o[S::MB][S::N / 2], l[S::N / 4];
};

/* The channel of o[b][2 r ...]. */
template <class S>
__device__ __forceinline__ uint32_t channel_of(int b, int r)
{
    const uint32_t gl = threadIdx.x % 32 / 4, warp = threadIdx.x / 32 % 4;
    return S::D == 64 ? 32 * (warp / 2) + 4 * gl + 2 * (warp % 2) + r : 32 * (warp + 4 * (b / 2)) + 4 * gl + 2 * (b % 2) + r;
}

/* ---- queries ------------------------------------------------------------------------------------------------------------ */

/* A place in an operand of bytes: word of columns 4 t ... of step `step`; half 1: those 16 further on. */
template <class S>
__device__ __forceinline__ uint32_t *query_word(wide_space<S> &s, int plane, uint32_t row, int step, int t, int half)
{
    const uint32_t byte = 32 * (step % 4) + 16 * half + 4 * t;
    return (uint32_t *)(s.q[plane][step / 4][row] + ((byte / 16) ^ row % 8) * 16 + byte % 16);
}

/* Rows of this warp; the next is asked for before one is waited for. */
template <class S>
__device__ __forceinline__ void wide_rows(wide_space<S> &s, const struct dev_attend &a, const struct split &g)
{
    wide_queries<S> to = wide_queries_of(s);
    asked_row<S> next;
    ask_row<S>(next, a, g, threadIdx.x / 32);
#pragma unroll 1
    for (int r = threadIdx.x / 32; r < S::N; r += S::WARPS) {
        const asked_row<S> now = next;
        ask_row<S>(next, a, g, min(r + S::WARPS, S::N - 1));
        prepare_row<S>(to, a, now, r);
    }
}

/* The queries in the order of the keys' octets, and what is known of a row. A row that is not there has weights of 0. */
template <class S>
__device__ __forceinline__ void wide_operands(wide_space<S> &s, const struct dev_attend &a, const struct split &g,
                                              const wide_walk<S> &at)
{
    using K = keys<S::KIND, S::D>;
    const wide_queries<S> from = wide_queries_of(s);
#pragma unroll 2
    for (int i = threadIdx.x; i < 2 * S::N * S::STEPS * 4; i += S::THREADS) {
        const int t = i % 4, step = i / 4 % S::STEPS, row = i / 4 / S::STEPS % S::N, plane = i / 4 / S::STEPS / S::N;
        const uint2 x = *(const uint2 *)&from.q[row][plane][K::run_of(step, t) * 32 + K::octet_of(step, t) * 8];
        uint32_t b[2];
        in_octet_order<S::KIND>(b, x.x, x.y);
        *query_word(s, plane, row, step, t, 0) = b[0];
        *query_word(s, plane, row, step, t, 1) = b[1];
    }
    for (int n = threadIdx.x; n < S::N; n += S::THREADS) {
        const row_info &row = s.row[n];
        s.factor[n] = fmaxf(row.factor, 0x1p-100f); /* times -infinity it is that: of zeros, sums are 0 */
        s.seen[n] = make_uint2(max(max(row.begin, a.c.pinned), at.from), min(min(row.end, g.reach.closed), at.to));
        s.begin[n] = (S::PL == 1 ? WHOLE_BITS : 0) - code<S::KIND>::offset * s.row[n].sum[0];
        for (int group = 0; group < S::GROUPS; group++)
            s.m[group][n] = s.row[n].there ? NOTHING : -NOTHING;
    }
    for (int i = threadIdx.x; i < S::GROUPS * 4 * S::N; i += S::THREADS)
        (&s.sums[0][0][0])[i] = 0;
    if (threadIdx.x < S::GROUPS)
        s.up[threadIdx.x] = 0x1p60f;
    fence_products();
}

/* ---- biases ------------------------------------------------------------------------------------------------------------- */

/* Starts the copies of the references of the pages from this one on. By all threads of a group. */
template <class S>
__device__ __forceinline__ void ask_references(wide_space<S> &s, const struct dev_attend &a, const struct split &g,
                                               const wide_walk<S> &at, uint32_t page)
{
    constexpr uint32_t CHUNKS = S::D / 16 + 1;
    const uint32_t pages = (at.end + 1) / 2 - page;
    if (!a.c.has_reference || at.step >= at.end || page >= (at.end + 1) / 2)
        return;
#pragma unroll 1
    for (uint32_t i = threadIdx.x % 128; i < min(pages, (uint32_t)WIDE_PAGES) * CHUNKS; i += 128) {
        const uint32_t number = a.c.table[(size_t)g.seq * a.c.table_stride + page + i / CHUNKS];
        const uint8_t *head = a.c.pages + (size_t)number * a.c.page_bytes + (size_t)g.head * a.c.head_bytes;
        copy_ahead(&s.reference[at.group][i / CHUNKS][16 * (i % CHUNKS)], head + S::REFERENCE_AT + 16 * (i % CHUNKS));
    }
}

/* The biases of WIDE_PAGES pages, whose references have been asked for: pages are the rows of a product, eight rows of the
 * block its columns. The references of those that follow are asked for. */
template <class S>
__device__ __forceinline__ void make_biases(wide_space<S> &s, const struct dev_attend &a, const wide_walk<S> &at)
{
    using K = keys<S::KIND, S::D>;
    const int gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4, warp = threadIdx.x / 32 % 4;
    const uint8_t (*reference)[S::D + 16] = s.reference[at.group];
    copies_arrived();
    group_meets(at.group);
#pragma unroll 1
    for (int j = warp; j < S::N / 8; j += 4) {
        int sum[2][4] = {};
#pragma unroll 4
        for (int k = 0; k < S::STEPS && a.c.has_reference; k++) {
            uint32_t r[2][2];
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint2 x = *(const uint2 *)&reference[gl + 8 * i][K::run_of(k, t) * 32 + K::octet_of(k, t) * 8];
                in_octet_order<S::KIND>(r[i], x.x, x.y);
            }
#pragma unroll
            for (int plane = 0; plane < 2; plane++)
                mma_s8s8(sum[plane], r[0][0], r[1][0], r[0][1], r[1][1], *query_word(s, plane, 8 * j + gl, k, t, 0),
                         *query_word(s, plane, 8 * j + gl, k, t, 1), sum[plane]);
        }
#pragma unroll
        for (int i = 0; i < 4; i++) {
            const int page = gl + i / 2 * 8, n = 8 * j + 2 * t + i % 2;
            const float scale = __half2float(*(const __half *)&reference[page][S::D]);
            const float factor = __fmul_rn(__fmul_rn(__fmul_rn(s.row[n].step, scale), a.c.reference_step), a.unit);
            s.bias[at.group][page][n] =
                a.c.has_reference && s.row[n].there ? __fmul_rn((float)(sum[0][i] * 256 + sum[1][i]), factor) : 0;
        }
    }
    group_meets(at.group);
    ask_references<S>(s, a, s.split, at, at.step / 2 + WIDE_PAGES);
}

/* ---- tiles -------------------------------------------------------------------------------------------------------------- */

/* By warp 0 of the group: asks for a step. */
template <class S>
__device__ __forceinline__ void ask_step(wide_space<S> &s, const struct dev_wide &w, const struct split &g, wide_walk<S> &at,
                                         uint32_t page)
{
    uint64_t *full = &s.full[at.group][at.ask_stage];
    if (threadIdx.x % 32 == 0) {
        meeting_expect(full, WIDE_STEP * S::TILE_BYTES);
#pragma unroll
        for (uint32_t box = 0; box < S::BOXES; box++)
            copy_tile(s.stage[at.group][at.ask_stage][box], &w.map, (at.asked % 2 * WIDE_STEP + box * S::BOX) * S::TILE_ROWS,
                      page * w.a.c.kv_heads + g.head, full);
    }
    __syncwarp();
    at.ask_stage = at.ask_stage + 1 == S::STAGES ? 0 : at.ask_stage + 1;
    at.asked++;
}

/* Where 16 bytes of a row of a tile are, of a step in shared memory. */
template <class S>
__device__ __forceinline__ uint32_t chunk_at(uint32_t tile, uint32_t row, uint32_t chunk)
{
    const uint32_t in_box = tile % S::BOX * S::TILE_ROWS + row;
    return tile / S::BOX * S::BOX_SPACE + in_box * 128 + (chunk ^ in_box % 8) * 16;
}

/* The scales of tokens 4 g ... of a tile: of keys, of values. */
template <class S>
__device__ __forceinline__ uint2 load_scales(const uint8_t *stage, uint32_t tile, bool of_values)
{
    const uint32_t gl = threadIdx.x % 32 / 4;
    return load_shared8(stage + chunk_at<S>(tile, S::TILE_ROWS - 1, gl / 2 + (of_values ? 4 : 0)) + gl % 2 * 8);
}

template <class S>
__device__ __forceinline__ void load_keys(uint4 (&w)[keys<S::KIND, S::D>::n], const uint8_t *stage, uint32_t tile)
{
    using K = keys<S::KIND, S::D>;
    const uint32_t gl = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < K::n; i++)
        w[i] = load_shared16(stage + chunk_at<S>(tile, K::lane_word(K::is_high(i), t) + K::step_word(i), gl));
}

/* The two halves of a table give each level once; the other half gives 0. */
template <class S>
__device__ __forceinline__ uint32_t joined(const eight &e, int i)
{
    return code<S::KIND>::halves == 2 ? e.r[0][i] + e.r[1][i] : e.r[0][i];
}

template <class S>
__device__ __forceinline__ void key_operand(uint32_t (&a)[4], const uint4 (&w)[keys<S::KIND, S::D>::n], int step, int pair,
                                            const uint32_t (&table)[4])
{
    const int t = threadIdx.x % 4;
    const eight x = keys<S::KIND, S::D>::decode(w, step, 2 * pair, t, table),
                y = keys<S::KIND, S::D>::decode(w, step, 2 * pair + 1, t, table);
    a[0] = joined<S>(x, 0), a[1] = joined<S>(y, 0), a[2] = joined<S>(x, 1), a[3] = joined<S>(y, 1);
}

#endif
