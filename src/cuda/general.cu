/* Attention for every format and dim that has no kernel of its own: the kinds of keys and values are looked at tile by tile, and
 * codes go, as signed bytes, through shared memory on their way to the same integer products. Numbers (pinned and open tokens,
 * plain sides) are multiplied as floats. Four rows to a block; everything else is as in attend.cuh. */
#include "cache.cuh"
#include "merge.cuh"
#include "rotate.cuh"
#include "span.cuh"

enum { GENERAL_WARPS = 4, GENERAL_THREADS = 32 * GENERAL_WARPS, GENERAL_ROWS = 4 };

/* Where things are in shared memory, in bytes; the dims decide. */
struct general_layout {
    uint32_t q;                /* s8 [rows][2][k_pad] */
    uint32_t number;           /* float [rows][k_dim]: queries times unit */
    uint32_t space;            /* float [warps][max dim] */
    uint32_t warp, warp_bytes; /* what each warp has: */
    uint32_t stage;            /* s8 [32 tokens][k_pitch], then [v_dim][48]; and first of all things of a row */
    uint32_t logit;            /* float [rows][32]; then the weights */
    uint32_t byte;             /* u8 [rows][2][32] */
    uint32_t acc;              /* float [rows][v_dim] */
    uint32_t bytes;
    uint32_t k_pad, k_pitch;
};

__host__ __device__ static inline struct general_layout general_layout_of(uint32_t k_dim, uint32_t v_dim)
{
    struct general_layout l;
    const uint32_t most = k_dim > v_dim ? k_dim : v_dim;
    l.k_pad = aura_padded_run(k_dim);
    l.k_pitch = l.k_pad + 16; /* so that eight rows are in different banks */
    l.q = 0;
    l.number = l.q + GENERAL_ROWS * 2 * l.k_pad;
    l.space = l.number + GENERAL_ROWS * k_dim * 4;
    l.warp = l.space + GENERAL_WARPS * most * 4;
    const uint32_t keys = AURA_TILE * l.k_pitch, values = v_dim * 48;
    l.stage = 0;
    l.logit = keys > values ? keys : values;
    l.byte = l.logit + GENERAL_ROWS * AURA_TILE * 4;
    l.acc = l.byte + GENERAL_ROWS * 2 * AURA_TILE;
    l.warp_bytes = l.acc + GENERAL_ROWS * v_dim * 4;
    l.bytes = l.warp + GENERAL_WARPS * l.warp_bytes;
    return l;
}

/* What a block of threads and each of its warps work with. */
struct general {
    struct general_layout l;
    uint8_t *shared, *mine;
    row_info *row;
    const struct segment *g;
    __device__ int8_t *q(int r, int plane) const { return (int8_t *)(shared + l.q) + (r * 2 + plane) * l.k_pad; }
    __device__ float *number(uint32_t dim, int r) const { return (float *)(shared + l.number) + r * dim; }
    __device__ int8_t *stage() const { return (int8_t *)(mine + l.stage); }
    __device__ float *logit(int r) const { return (float *)(mine + l.logit) + r * AURA_TILE; }
    __device__ uint8_t *byte(int r, int plane) const { return mine + l.byte + (r * 2 + plane) * AURA_TILE; }
    __device__ float *acc(uint32_t dim, int r) const { return (float *)(mine + l.acc) + r * dim; }
};

/* ---- codes to bytes ---------------------------------------------------------------------------------------------------- */

/* Four codes of a byte each to their levels, signed bytes. */
template <int KIND>
__device__ __forceinline__ uint32_t levels_of(uint32_t quad, const uint32_t (&table)[4])
{
    if (KIND == 8)
        return quad;
    if (KIND > 4) /* 2 c - 31, 2 c - 63 */
        return __vsub4(quad << 1, KIND == 5 ? 0x1f1f1f1fu : 0x3f3f3f3fu);
    uint32_t nibbles = (quad | quad >> 4) & 0x00ff00ffu;
    nibbles = (nibbles | nibbles >> 8) & 0xffffu;
    uint32_t level = prmt(table[0], table[1], nibbles) | prmt(table[2], table[3], nibbles ^ 0x8888u); /* 0 to 127, less 64: */
    level ^= 0x40404040u;
    return level | (level & 0x40404040u) << 1;
}

/* Runs [0, RUNS) from word `first` on of one lane (a token or a channel), 32 levels each, to consecutive bytes. `lanes` words are
 * side by side. */
template <int KIND, int RUNS>
__device__ __forceinline__ void stage_runs(int8_t *to, const uint32_t *words, const struct aura_side &side, uint32_t run,
                                           uint32_t lane, const uint32_t (&table)[4])
{
    uint32_t word[RUNS][8];
#pragma unroll
    for (int i = 0; i < RUNS; i++)
#pragma unroll
        for (uint32_t w = 0; w < KIND; w++)
            word[i][w] = words[aura_word_at(&side, run + i, w) + lane];
#pragma unroll
    for (int i = 0; i < RUNS; i++)
#pragma unroll
        for (int k = 0; k < 8; k += 4) {
            uint4 four;
            four.x = levels_of<KIND>(aura_unpack_quad(word[i], k, KIND), table);
            four.y = levels_of<KIND>(aura_unpack_quad(word[i], k + 1, KIND), table);
            four.z = levels_of<KIND>(aura_unpack_quad(word[i], k + 2, KIND), table);
            four.w = levels_of<KIND>(aura_unpack_quad(word[i], k + 3, KIND), table);
            *(uint4 *)(to + i * AURA_RUN + 4 * k) = four;
        }
}

__device__ __forceinline__ struct aura_side general_side(uint32_t kind, uint32_t dim, bool values)
{
    struct aura_side side = {};
    side.kind = kind;
    side.dim = dim;
    side.runs = values ? 1 : aura_padded_run(dim) / AURA_RUN;
    side.lanes = values ? dim : AURA_TILE;
    return side;
}

/* One side of a tile: [token][k_pitch], or [channel][48]. Two runs at a time, so that loads are in flight together. */
template <int KIND>
__device__ __noinline__ void stage_side(int8_t *to, uint32_t pitch, const uint32_t *words, uint32_t dim, bool values,
                                        const uint32_t *levels)
{
    const uint32_t lane = threadIdx.x % 32;
    const struct aura_side side = general_side(KIND, dim, values);
    const uint32_t table[4] = {levels[0], levels[1], levels[2], levels[3]};
    if (values) {
        for (uint32_t d = lane; d < dim; d += 32)
            stage_runs<KIND, 1>(to + d * pitch, words, side, 0, d, table);
    } else {
        uint32_t run = 0;
        for (; run + 2 <= side.runs; run += 2)
            stage_runs<KIND, 2>(to + lane * pitch + run * AURA_RUN, words, side, run, lane, table);
        if (run < side.runs)
            stage_runs<KIND, 1>(to + lane * pitch + run * AURA_RUN, words, side, run, lane, table);
    }
}

/* The decoder is chosen here, for every tile. */
__device__ __forceinline__ void stage_any(int8_t *to, uint32_t pitch, const uint32_t *words, uint32_t kind, uint32_t dim, bool values,
                                          const uint32_t *levels)
{
    switch (kind) {
    case 2: stage_side<2>(to, pitch, words, dim, values, levels); break;
    case 3: stage_side<3>(to, pitch, words, dim, values, levels); break;
    case 4: stage_side<4>(to, pitch, words, dim, values, levels); break;
    case 5: stage_side<5>(to, pitch, words, dim, values, levels); break;
    case 6: stage_side<6>(to, pitch, words, dim, values, levels); break;
    default: stage_side<8>(to, pitch, words, dim, values, levels);
    }
}

/* Asks for a tile long before it is read. */
__device__ __forceinline__ void prefetch_general(const struct dev_attend &a, const struct segment &g, uint32_t tile)
{
    const uint8_t *from = page_head(a.c, g.seq, tile / AURA_PAGE_TILES, g.head) + tile % AURA_PAGE_TILES * a.c.tile_bytes;
    for (uint32_t at = threadIdx.x % 32 * 128; at < a.c.tile_bytes; at += 32 * 128)
        asm volatile("prefetch.global.L2 [%0];" ::"l"(from + at));
}

/* ---- numbers ------------------------------------------------------------------------------------------------------------ */

/* Where the number of a column begins, and of which type it is. */
struct numbers {
    const void *data;
    uint32_t dtype;
};

__device__ __forceinline__ struct numbers numbers_of(const struct dev_attend &a, const struct segment &g, const uint8_t *tile,
                                                     uint32_t token, bool values)
{
    const uint32_t dim = values ? a.c.v_dim : a.c.k_dim, kind = values ? a.c.v_kind : a.c.k_kind;
    const __half *rows = values ? a.c.v_rows : a.c.k_rows;
    if (rows)
        return {rows + (((size_t)g.seq * a.c.kv_heads + g.head) * a.c.rows + row_of(a.c, token)) * dim, AURA_F16};
    const uint32_t size = kind == AURA_ROW_F32 ? 4 : 2;
    return {tile + (values ? a.c.v_at : 0) + (size_t)(token % AURA_TILE) * dim * size,
            (uint32_t)(kind == AURA_ROW_F32 ? AURA_F32 : kind == AURA_ROW_F16 ? AURA_F16 : AURA_BF16)};
}

/* Eight numbers from element d on. */
__device__ __forceinline__ void load_eight(float (&x)[8], const struct numbers &n, uint32_t d)
{
    if (n.dtype == AURA_F32) {
        const float4 a = *(const float4 *)((const float *)n.data + d), b = *(const float4 *)((const float *)n.data + d + 4);
        x[0] = a.x, x[1] = a.y, x[2] = a.z, x[3] = a.w, x[4] = b.x, x[5] = b.y, x[6] = b.z, x[7] = b.w;
        return;
    }
    const uint4 v = *(const uint4 *)((const uint16_t *)n.data + d);
    const uint32_t word[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const uint16_t bits = (uint16_t)(i % 2 ? word[i / 2] >> 16 : word[i / 2]);
        x[i] = n.dtype == AURA_F16 ? __half2float(__ushort_as_half(bits)) : __uint_as_float((uint32_t)bits << 16);
    }
}

/* ---- one tile ------------------------------------------------------------------------------------------------------------ */

/* Columns [coded, coded_end) of a side are codes. */
struct columns_of_tile {
    uint32_t first, coded, coded_end;
    const uint8_t *head, *tile;
};

__device__ __forceinline__ bool is_coded(const struct columns_of_tile &c, uint32_t column)
{
    return column >= c.coded && column < c.coded_end;
}

/* The score of the page's reference, per row; all lanes have them. */
__device__ __forceinline__ void general_bias(float (&bias)[GENERAL_ROWS], const struct general &w, const struct dev_attend &a,
                                             const uint8_t *head)
{
    const int lane = threadIdx.x % 32;
    const float scale = __half2float(*(const __half *)(head + a.c.reference_scale_at));
#pragma unroll
    for (int r = 0; r < GENERAL_ROWS; r++) {
        int sum = 0;
        for (uint32_t d = lane * 4; d < a.c.k_dim; d += 128) {
            const int code = *(const int *)(head + a.c.reference_at + d);
            sum += 256 * __dp4a(*(const int *)(w.q(r, 0) + d), code, 0) + __dp4a(*(const int *)(w.q(r, 1) + d), code, 0);
        }
        float factor = __fmul_rn(__fmul_rn(__fmul_rn(w.row[r].step, scale), a.c.reference_step), a.unit);
        bias[r] = __fmul_rn((float)warp_sum(sum), factor);
    }
}

/* logit[r][column] of codes. */
__device__ __forceinline__ void score_codes(const struct general &w, const struct dev_attend &a, const struct columns_of_tile &c,
                                            const float (&bias)[GENERAL_ROWS])
{
    const int lane = threadIdx.x % 32, gl = lane / 4, t = lane % 4;
    stage_any(w.stage(), w.l.k_pitch, (const uint32_t *)c.tile, a.c.k_kind, a.c.k_dim, false, a.c.k_table);
    __syncwarp();
    int sum[2][4] = {};
    for (uint32_t d = 0; d < w.l.k_pad; d += 32) {
        const int8_t *q = w.q(gl / 2, gl % 2) + d + 4 * t;
        const uint32_t b0 = *(const uint32_t *)q, b1 = *(const uint32_t *)(q + 16);
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int8_t *k = w.stage() + (16 * half + gl) * w.l.k_pitch + d + 4 * t, *next = k + 8 * w.l.k_pitch;
            mma_s8s8(sum[half], *(const uint32_t *)k, *(const uint32_t *)next, *(const uint32_t *)(k + 16),
                     *(const uint32_t *)(next + 16), b0, b1);
        }
    }
    const __half *scale = (const __half *)(c.tile + a.c.k_scale_at);
#pragma unroll
    for (int i = 0; i < 4; i++) { /* tokens g, g + 8, g + 16, g + 24 of row t */
        const int column = gl + 8 * i, *x = &sum[i / 2][2 * (i % 2)], whole = a.planes % 4 == 1 ? x[0] : x[0] * 256 + x[1];
        w.logit(t)[column] = __fadd_rn(__fmul_rn((float)whole, __fmul_rn(__half2float(scale[column]), w.row[t].factor)), bias[t]);
    }
    __syncwarp();
}

/* logit[r][lane] of a number: one lane, one token. */
__device__ __forceinline__ void score_numbers(const struct general &w, const struct dev_attend &a, const struct columns_of_tile &c)
{
    const uint32_t lane = threadIdx.x % 32;
    if (!is_coded(c, lane) && c.first + lane < w.g->span.len) {
        const struct numbers n = numbers_of(a, *w.g, c.tile, c.first + lane, false);
        float sum[GENERAL_ROWS] = {};
        for (uint32_t d = 0; d < a.c.k_dim; d += 8) {
            float x[8];
            load_eight(x, n, d);
#pragma unroll
            for (int r = 0; r < GENERAL_ROWS; r++)
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[r] = fmaf(x[i], w.number(a.c.k_dim, r)[d + i], sum[r]);
        }
#pragma unroll
        for (int r = 0; r < GENERAL_ROWS; r++)
            w.logit(r)[lane] = sum[r];
    }
    __syncwarp();
}

/* Logits become weights, in place; what has been added up so far is brought to the new maximum. */
__device__ __forceinline__ void general_softmax(const struct general &w, const struct dev_attend &a, const struct columns_of_tile &c,
                                                float (&m)[GENERAL_ROWS], float (&l)[GENERAL_ROWS])
{
    const uint32_t lane = threadIdx.x % 32, token = c.first + lane;
#pragma unroll
    for (int r = 0; r < GENERAL_ROWS; r++) {
        const row_info &row = w.row[r];
        float x = token < w.g->span.len ? w.logit(r)[lane] : 0;
        if (a.trace && row.there && is_coded(c, lane) && token < a.trace_tokens)
            a.trace[(((size_t)w.g->slot * a.queries + row.query) * a.c.q_heads + row.head) * a.trace_tokens + token] = x;
        if (a.options)
            x = apply_options(a, row, w.g->slot, w.g->span.len, token, x);
        x = token >= row.begin && token < row.end ? x : -INFINITY;
        const float most = fmaxf(warp_max(x), m[r]), keep = exp2_approx(m[r] - most), p = exp2_approx(x - most);
        if (keep != 1)
            for (uint32_t d = lane; d < a.c.v_dim; d += 32)
                w.acc(a.c.v_dim, r)[d] *= keep;
        m[r] = most;
        l[r] = l[r] * keep + p;
        w.logit(r)[lane] = p;
    }
    __syncwarp();
}

__device__ __forceinline__ void value_codes(const struct general &w, const struct dev_attend &a, const struct columns_of_tile &c)
{
    const int lane = threadIdx.x % 32, gl = lane / 4, t = lane % 4, planes = a.planes / 4;
    const float most = planes == 1 ? 255.f : 65280.f, scale = __half2float(((const __half *)(c.tile + a.c.v_scale_at))[lane]);
    float factor = 0;
    stage_any(w.stage(), 48, (const uint32_t *)(c.tile + a.c.v_at), a.c.v_kind, a.c.v_dim, true, a.c.v_table);
#pragma unroll
    for (int r = 0; r < GENERAL_ROWS; r++) {
        const float x = is_coded(c, lane) ? w.logit(r)[lane] * scale : 0, top = warp_max(x);
        const bool none = !(top >= 0x1p-100f);
        const uint32_t whole = none ? 0 : __float2uint_rn(x * (most / top));
        w.byte(r, 0)[lane] = (uint8_t)(planes == 1 ? whole : whole >> 8);
        w.byte(r, 1)[lane] = (uint8_t)(planes == 1 ? 0 : whole);
        factor = r == t && !none ? top * (1 / most) * a.c.v_step : factor;
    }
    __syncwarp();
    const uint8_t *b = w.byte(gl / 2, gl % 2) + 4 * t;
    const uint32_t b0 = *(const uint32_t *)b, b1 = *(const uint32_t *)(b + 16);
    for (uint32_t d = 0; d < a.c.v_dim; d += 16) {
        const int8_t *v = w.stage() + (d + gl) * 48 + 4 * t, *next = v + 8 * 48;
        int sum[4] = {};
        mma_s8u8(sum, *(const uint32_t *)v, *(const uint32_t *)next, *(const uint32_t *)(v + 16), *(const uint32_t *)(next + 16), b0, b1);
        float *o = w.acc(a.c.v_dim, t) + d + gl;
        o[0] = fmaf((float)(planes == 1 ? sum[0] : sum[0] * 256 + sum[1]), factor, o[0]);
        o[8] = fmaf((float)(planes == 1 ? sum[2] : sum[2] * 256 + sum[3]), factor, o[8]);
    }
    __syncwarp();
}

/* Columns that are numbers: lanes are channels, eight each. */
__device__ __forceinline__ void value_numbers(const struct general &w, const struct dev_attend &a, const struct columns_of_tile &c)
{
    const uint32_t lane = threadIdx.x % 32, n = min((uint32_t)AURA_TILE, w.g->span.len - c.first);
    for (uint32_t d = lane * 8; d < a.c.v_dim; d += 256) {
        float sum[GENERAL_ROWS][8] = {};
        for (uint32_t column = 0; column < n; column++) {
            if (is_coded(c, column))
                continue;
            float x[8];
            load_eight(x, numbers_of(a, *w.g, c.tile, c.first + column, true), d);
#pragma unroll
            for (int r = 0; r < GENERAL_ROWS; r++) {
                const float p = w.logit(r)[column]; /* weight 0 is a token not seen: 0 * NaN must not undo that */
#pragma unroll
                for (int i = 0; i < 8; i++)
                    sum[r][i] = p == 0 ? sum[r][i] : fmaf(p, x[i], sum[r][i]);
            }
        }
#pragma unroll
        for (int r = 0; r < GENERAL_ROWS; r++)
#pragma unroll
            for (int i = 0; i < 8; i++)
                w.acc(a.c.v_dim, r)[d + i] += sum[r][i];
    }
    __syncwarp();
}

__device__ __forceinline__ void general_tile(const struct general &w, const struct dev_attend &a, uint32_t tile,
                                             float (&m)[GENERAL_ROWS], float (&l)[GENERAL_ROWS])
{
    const struct segment &g = *w.g;
    struct columns_of_tile c;
    c.first = tile * AURA_TILE;
    c.head = page_head(a.c, g.seq, tile / AURA_PAGE_TILES, g.head);
    c.tile = c.head + (tile % AURA_PAGE_TILES) * a.c.tile_bytes;
    const uint32_t coded = min(max(a.c.pinned, c.first) - c.first, (uint32_t)AURA_TILE);
    const uint32_t coded_end = min(max(g.span.closed, c.first) - c.first, (uint32_t)AURA_TILE);
    struct columns_of_tile k = c, v = c;
    k.coded = a.c.k_rows ? coded : 0, k.coded_end = a.c.k_rows ? max(coded, coded_end) : 0;
    v.coded = a.c.v_rows ? coded : 0, v.coded_end = a.c.v_rows ? max(coded, coded_end) : 0;
    if (k.coded < k.coded_end) {
        float bias[GENERAL_ROWS] = {};
        if (a.c.has_reference)
            general_bias(bias, w, a, c.head);
        score_codes(w, a, k, bias);
    }
    if (k.coded_end - k.coded < AURA_TILE)
        score_numbers(w, a, k);
    general_softmax(w, a, k, m, l);
    if (v.coded < v.coded_end)
        value_codes(w, a, v);
    if (v.coded_end - v.coded < AURA_TILE)
        value_numbers(w, a, v);
}

/* ---- queries and results ------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void general_query(const struct general &w, const struct dev_attend &a, int r)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = a.c.k_dim;
    row_info row = {};
    row.there = w.g->first_row + r < a.rows;
    const uint32_t index = row.there ? w.g->first_row + r : 0; /* a row too many looks at what another one may look at */
    row.query = index / a.c.ratio;
    row.head = w.g->head * a.c.ratio + index % a.c.ratio;
    const int32_t end = a.not_causal ? (int32_t)w.g->span.len : (int32_t)(w.g->span.len + row.query + 1) - (int32_t)a.queries;
    row.end = row.there && end > 0 ? end : 0;
    row.begin = a.window && a.window < row.end ? row.end - a.window : 0;
    float *y = w.number(dim, r), largest = 0;
    const int64_t from = w.g->slot * a.q.seq + row.query * a.q.token + row.head * a.q.head;
    for (uint32_t d = lane; d < dim; d += 32) {
        y[d] = row.there ? load_element(a.q.data, a.q.dtype, from + d) : 0;
        if (a.c.inverse_balance)
            y[d] = __fmul_rn(y[d], a.c.inverse_balance[(size_t)w.g->head * dim + d]);
    }
    __syncwarp();
    if (a.c.k_rows)
        rotate_shared(y, (float *)(w.shared + w.l.space) + warp * max(dim, a.c.v_dim), a.c.k_sign, a.c.codecs->paley[0],
                      a.c.codecs->k_inner, a.c.codecs->k_outer, a.c.k_norm);
    bool bad = false;
    for (uint32_t d = lane; d < dim; d += 32)
        bad |= !(fabsf(y[d]) < INFINITY);
    row.bad = __any_sync(~0u, bad);
    for (uint32_t d = lane; d < dim; d += 32) {
        y[d] = row.bad ? 0 : y[d];
        largest = fmaxf(largest, fabsf(y[d]));
    }
    largest = warp_max(largest);
    const bool tiny = largest < 0x1p-100f;
    const float factor = tiny ? 0 : __fdiv_rn(QUERY_TOP, largest);
    for (uint32_t d = lane; d < w.l.k_pad; d += 32) {
        const int q15 = d < dim ? __float2int_rn(__fmul_rn(y[d], factor)) : 0, hi = (q15 + 128) >> 8;
        w.q(r, 0)[d] = (int8_t)hi;
        w.q(r, 1)[d] = (int8_t)(q15 - 256 * hi);
        if (d < dim)
            y[d] = y[d] * a.unit;
    }
    row.step = tiny ? 0 : __fdiv_rn(largest, QUERY_TOP);
    row.factor = __fmul_rn(__fmul_rn(__fmul_rn(row.step, a.planes % 4 == 1 ? 256.f : 1.f), a.c.k_step), a.unit);
    if (lane == 0)
        w.row[r] = row;
    __syncwarp();
}

/* Row r of the group, whole, in acc of the first warp: to the caller's tensor. */
__device__ __forceinline__ void general_finish(const struct general &w, const struct dev_attend &a, int r, float *o, float m, float l)
{
    const uint32_t lane = threadIdx.x % 32, warp = threadIdx.x / 32, dim = a.c.v_dim;
    const row_info &row = w.row[r];
    const struct segment &g = *w.g;
    const float keep = a.sinks ? merge_sink(m, l, a.sinks[row.head]) : 1;
    const bool empty = l == 0;
    bool bad = row.bad || g.seq >= a.c.n_seqs || !(empty || (l > 0 && l <= 0x1p127f));
    for (uint32_t d = lane; d < dim; d += 32)
        o[d] = empty ? 0 : o[d] * keep / l;
    __syncwarp();
    if (a.c.v_rows) {
        hadamard_shared(o, (float *)(w.shared + w.l.space) + warp * max(dim, a.c.k_dim), a.c.codecs->paley[2], a.c.codecs->v_inner,
                        a.c.codecs->v_outer);
        sign_and_scale(o, dim, a.c.v_sign, a.c.v_norm);
    }
    const float limit = a.out.dtype == AURA_F16 ? 65520.f : a.out.dtype == AURA_BF16 ? 0x1.ffp127f : INFINITY;
    for (uint32_t d = lane; d < dim; d += 32)
        bad |= !(fabsf(o[d]) < limit);
    bad = __any_sync(~0u, bad);
    const int64_t to = g.slot * a.out.seq + row.query * a.out.token + row.head * a.out.head;
    for (uint32_t d = lane; d < dim; d += 32)
        store_element(a.out.data, a.out.dtype, to + d, bad ? NAN : o[d]);
    if (lane == 0)
        finish_lse(a, g, row, m, l, bad);
}

/* The warps of a block into acc of the first, m[0] and l[0]; then, where the group has several segments, those. */
struct general_sums {
    float m[GENERAL_WARPS][GENERAL_ROWS], l[GENERAL_WARPS][GENERAL_ROWS];
    uint32_t last;
};

__device__ __forceinline__ void general_merge_warps(const struct general &w, const struct dev_attend &a, struct general_sums &s)
{
    const uint32_t dim = a.c.v_dim;
    float *first = (float *)(w.shared + w.l.warp + w.l.acc);
    for (uint32_t i = threadIdx.x; i < GENERAL_ROWS * dim; i += GENERAL_THREADS) {
        float most = NOTHING, o = 0;
        for (int n = 0; n < GENERAL_WARPS; n++)
            most = fmaxf(most, s.m[n][i / dim]);
        for (int n = 0; n < GENERAL_WARPS; n++)
            o += ((float *)(w.shared + w.l.warp + n * w.l.warp_bytes + w.l.acc))[i] * exp2_approx(s.m[n][i / dim] - most);
        first[i] = o;
    }
    __syncthreads();
    if (threadIdx.x < GENERAL_ROWS) {
        float most = NOTHING, l = 0;
        for (int n = 0; n < GENERAL_WARPS; n++)
            most = fmaxf(most, s.m[n][threadIdx.x]);
        for (int n = 0; n < GENERAL_WARPS; n++)
            l += s.l[n][threadIdx.x] * exp2_approx(s.m[n][threadIdx.x] - most);
        s.m[0][threadIdx.x] = most, s.l[0][threadIdx.x] = l;
    }
    __syncthreads();
}

/* 1: this block has the whole group now. */
__device__ __forceinline__ bool general_merge_segments(const struct general &w, const struct dev_attend &a, struct general_sums &s)
{
    const struct segment &g = *w.g;
    const uint32_t dim = a.c.v_dim, first = blockIdx.x - g.part + g.group;
    float *o = (float *)(w.shared + w.l.warp + w.l.acc);
    const size_t mine = (size_t)(first + g.part) * GENERAL_ROWS;
    for (uint32_t i = threadIdx.x; i < GENERAL_ROWS * dim; i += GENERAL_THREADS)
        __stcg(&a.partial[mine * dim + i], o[i]);
    if (threadIdx.x < GENERAL_ROWS)
        __stcg(&a.partial_ml[mine + threadIdx.x], make_float2(s.m[0][threadIdx.x], s.l[0][threadIdx.x]));
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) {
        s.last = atomicAdd(&a.counter[g.group], 1u) == g.parts - 1;
        if (s.last)
            a.counter[g.group] = 0;
    }
    __syncthreads();
    if (!s.last)
        return false;
    __threadfence();
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32; /* a warp per row */
    float most = NOTHING, l = 0;
    for (uint32_t p = lane; p < g.parts; p += 32)
        most = fmaxf(most, __ldcg(&a.partial_ml[(size_t)(first + p) * GENERAL_ROWS + warp]).x);
    most = warp_max(most);
    for (uint32_t d = lane; d < dim; d += 32)
        o[warp * dim + d] = 0;
#pragma unroll 4
    for (uint32_t p = 0; p < g.parts; p++) {
        const size_t at = (size_t)(first + p) * GENERAL_ROWS + warp;
        const float2 ml = __ldcg(&a.partial_ml[at]);
        const float add = exp2_approx(ml.x - most);
        l += ml.y * add;
        for (uint32_t d = lane; d < dim; d += 32)
            o[warp * dim + d] += __ldcg(&a.partial[at * dim + d]) * add;
    }
    if (lane == 0)
        s.m[0][warp] = most, s.l[0][warp] = l;
    __syncthreads();
    return true;
}

static_assert(GENERAL_WARPS == GENERAL_ROWS, "a warp finishes a row");

/* ---- the kernel ---------------------------------------------------------------------------------------------------------- */

__device__ __forceinline__ void general_segment(const struct general &w, const struct dev_attend &a, struct general_sums &s)
{
    const struct segment &g = *w.g;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    float m[GENERAL_ROWS], l[GENERAL_ROWS];
    general_query(w, a, warp);
    for (int r = 0; r < GENERAL_ROWS; r++) {
        m[r] = NOTHING, l[r] = 0;
        for (uint32_t d = lane; d < a.c.v_dim; d += 32)
            w.acc(a.c.v_dim, r)[d] = 0;
    }
    __syncthreads();
    const uint32_t item = g.first + g.n * warp / GENERAL_WARPS, end = min(g.first + g.n * (warp + 1) / GENERAL_WARPS, g.span.tiles);
    for (uint32_t i = item; i < min(item + 2, end); i++)
        prefetch_general(a, g, g.span.tile_first + i);
    for (uint32_t i = item; i < end; i++) {
        if (i + 2 < end)
            prefetch_general(a, g, g.span.tile_first + i + 2);
        general_tile(w, a, g.span.tile_first + i, m, l);
    }
#pragma unroll
    for (int r = 0; r < GENERAL_ROWS; r++) {
        float sum = l[r];
#pragma unroll
        for (int far = 16; far; far /= 2)
            sum += __shfl_xor_sync(~0u, sum, far);
        if (lane == 0)
            s.m[warp][r] = m[r], s.l[warp][r] = sum;
    }
    __syncthreads();
    general_merge_warps(w, a, s);
    if ((g.parts == 1 || general_merge_segments(w, a, s)) && w.row[warp].there)
        general_finish(w, a, warp, (float *)(w.shared + w.l.warp + w.l.acc) + warp * a.c.v_dim, s.m[0][warp], s.l[0][warp]);
    __syncthreads();
}

__global__ void __launch_bounds__(GENERAL_THREADS) attend_general(const __grid_constant__ struct dev_attend a)
{
    extern __shared__ __align__(16) uint8_t shared[];
    __shared__ row_info row[GENERAL_ROWS];
    __shared__ struct segment segment;
    __shared__ struct general_sums sums;
    struct general w;
    w.l = general_layout_of(a.c.k_dim, a.c.v_dim);
    w.shared = shared;
    w.mine = shared + w.l.warp + threadIdx.x / 32 * w.l.warp_bytes;
    w.row = row;
    w.g = &segment;
    uint32_t *prefix = (uint32_t *)(shared + w.l.bytes);
    span_prefix(prefix, a);
    const uint32_t total = prefix[a.n_seqs], per = max((total + gridDim.x - 1) / gridDim.x, (uint32_t)GENERAL_WARPS);
    uint32_t at = blockIdx.x * per;
    const uint32_t end = min(total, at + per);
    while (at < end) {
        if (threadIdx.x == 0)
            segment = segment_at(a, prefix, at, end, per, GENERAL_ROWS);
        __syncthreads();
        at += segment.n;
        general_segment(w, a, sums);
    }
}

struct attend_kernel general_kernel(uint32_t k_dim, uint32_t v_dim)
{
    return {0, 0, 0, GENERAL_ROWS, GENERAL_THREADS, (const void *)attend_general, general_layout_of(k_dim, v_dim).bytes, 0};
}
