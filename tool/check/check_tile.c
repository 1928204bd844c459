/* The cases of the exact stages of a tile: encode, query, reference, score, value. Tiles are packed here, and their codes are
 * remembered, so that the definition is compared with what went in. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../src/base/dtype.h"
#include "../../src/feedback.h"
#include "../../src/ref.h"
#include "../../src/trellis.h"
#include "../parts/inputs.h"

enum { MAX_QUERIES = 33, MAX_SIDE = AURA_TILE * AURA_TILE_DIM, N_FILLS = 3 };

static const uint32_t dims[] = {AURA_DIMS(AURA_DIM_ITEM)};
static const size_t counts[] = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 16, 17, MAX_QUERIES};
enum { N_DIMS = sizeof dims / sizeof *dims, N_COUNTS = sizeof counts / sizeof *counts };

/* The same bits, or NaN in both: machines differ in which NaN they produce. */
static void same_or_nan(struct trial *t, const float *got, const float *want, size_t n, const char *what)
{
    for (size_t i = 0; i < n; i++)
        if (!isnan(want[i]) || !isnan(got[i]))
            same_floats(t, got + i, want + i, 1, what);
}

/* ---- trellis codes ---- */

/* The least squared error of a path for gain * y, in double. */
static double least_error(const float *y, double gain, const struct aura_codec_plan *plan)
{
    double cost[AURA_STATES], next[AURA_STATES];
    for (int s = 0; s < AURA_STATES; s++)
        cost[s] = s ? INFINITY : 0;
    for (uint32_t d = plan->dim; d-- > 0; memcpy(cost, next, sizeof cost)) {
        for (int s = 0; s < AURA_STATES; s++)
            next[s] = INFINITY;
        for (uint32_t s = 0; s < AURA_STATES; s++)
            for (uint32_t code = 0; code < 1u << plan->bits; code++) {
                const uint32_t to = aura_trellis_next(s, code & 1);
                const double r = (double)y[d] * gain - (double)plan->centroid[aura_trellis_index(code, s)];
                next[to] = fmin(next[to], cost[s] + r * r);
            }
    }
    for (int s = 1; s < AURA_STATES; s++)
        cost[0] = fmin(cost[0], cost[s]);
    return cost[0];
}

/* How far codes are from the best: their scale from that of its rule; and the best cosine of a fit cannot be less than that of its
 * path's squared error says, cosine * |y| = (|gain y|^2 + |c|^2 - error) / (2 gain |c|), whose least over |c| this is. */
static double trellis_error(const uint8_t *code, float scale, const float *y, const struct aura_codec_plan *plan)
{
    float c[AURA_TILE_DIM];
    double yy = 0, yc = 0, cc = 0, best = 0;
    aura_ref_levels(c, code, plan);
    for (uint32_t d = 0; d < plan->dim; d++)
        yy += (double)y[d] * (double)y[d], yc += (double)y[d] * (double)c[d], cc += (double)c[d] * (double)c[d];
    if (sqrt(yy) <= (double)plan->tiny * (1 + 1e-6) && scale == 0)
        return 0;
    for (uint32_t k = 0; k < plan->n_fits; k += AURA_FEEDBACK_STRIDE) {
        const double gain = (double)plan->fits[k] * (double)plan->sigma / sqrt(yy / plan->dim);
        const double sine2 = least_error(y, gain, plan) / (gain * gain * yy); /* of the angle, at most */
        best = fmax(best, sqrt(fmax(0, 1 - sine2)));
    }
    const double want = plan->rule == AURA_SCALE_MATCHED    ? sqrt(yy / cc)
                        : plan->rule == AURA_SCALE_UNBIASED ? yc > 0 ? yy / yc : 0
                                                            : sqrt(yy / plan->dim) / (double)plan->sigma;
    const double loss = best - yc / sqrt(yy * cc), error = want == 0 ? fabs((double)scale) : fabs((double)scale - want) / want;
    return fmax(loss, error);
}

/* n rows of dim, and what the kernel made of them. */
struct encoded {
    struct aura_codec_plan plan;
    float *y, *scale;
    uint8_t *code;
};

static struct encoded encode_some(struct trial *t, uint32_t dim, enum vector_kind kind, size_t n, uint64_t *state)
{
    struct encoded e;
    struct layout layout = layout_of(t->cases++);
    char name[80];
    random_plan(&e.plan, t->variant->kind, dim, name, sizeof name, state);
    snprintf(t->where, sizeof t->where, "%s, %zu rows of %s", name, n, vector_kind_name(kind));
    e.y = place(&in, n * dim, sizeof(float), layout), e.scale = place(&out2, n, sizeof(float), layout);
    e.code = place(&out, n * dim, 1, layout);
    for (size_t row = 0; row < n; row++)
        fill_vector(e.y + row * dim, dim, kind, state);
    ((aura_encode_fn *)t->variant->run)(e.code, e.scale, e.y, &e.plan, n);
    check_canaries(t);
    return e;
}

static void trellis_case(struct trial *t, uint32_t dim, enum vector_kind kind, size_t n, uint64_t *state)
{
    static uint8_t want[(AURA_LANES + 1) * AURA_TILE_DIM];
    float want_scale[AURA_LANES + 1];
    const struct encoded e = encode_some(t, dim, kind, n, state);
    const struct aura_codec_plan plan = e.plan;
    const float *y = e.y, *scale = e.scale;
    const uint8_t *code = e.code;
    aura_encode_ref(want, want_scale, y, &plan, n);
    same_bytes(t, code, want, n * dim, "the codes");
    same_floats(t, scale, want_scale, n, "scale");
    for (size_t row = 0; is_ref(t) && row < n; row++)
        bound(t, trellis_error(code + row * dim, scale[row], y + row * dim, &plan), "row", row);
}

static void check_trellis(struct trial *t)
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < N_DIMS; i++) {
        trellis_case(t, dims[i], NORMAL, AURA_LANES + 1, &state);
        for (int kind = 0; kind < N_VECTOR_KINDS && !t->failure[0]; kind++)
            trellis_case(t, dims[i], (enum vector_kind)kind, random_bits(&state) % 4, &state);
    }
}

/* ---- codes, query, reference -------------------------------------------------------------------------------------- */

static void codes_case(struct trial *t, uint32_t dim, enum vector_kind kind, size_t n, uint64_t *state)
{
    static uint8_t want[MAX_ROWS * AURA_MAX_DIM], packed[MAX_ROWS * AURA_MAX_DIM];
    float want_scale[MAX_ROWS], packed_scale[MAX_ROWS];
    const struct encoded e = encode_some(t, dim, kind, n, state);
    const struct aura_codec_plan plan = e.plan;
    const float *y = e.y, *scale = e.scale;
    const uint8_t *code = e.code;
    aura_encode_ref(want, want_scale, y, &plan, n);
    aura_row_encode_ref(packed, packed_scale, y, &plan, n);
    same_bytes(t, code, want, n * dim, "the codes");
    same_floats(t, scale, want_scale, n, "scale");
    same_floats(t, scale, packed_scale, n, "scale, of encode,");
    for (size_t i = 0; i < n * dim; i++)
        if (code[i] != aura_ref_unpack(packed + i / dim * plan.row_bytes, plan.bits, (uint32_t)(i % dim)))
            fail(t, "code %zu is not that of encode", i);
    for (size_t row = 0; is_ref(t) && row < n; row++)
        bound(t, aura_ref_encode_error(packed + row * plan.row_bytes, scale[row], y + row * dim, &plan), "row", row);
}

static void check_codes(struct trial *t)
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < n_check_dims; i++)
        for (int kind = 0; kind < N_VECTOR_KINDS && !t->failure[0]; kind++)
            codes_case(t, check_dims[i], (enum vector_kind)kind, random_bits(&state) % 4, &state);
}

/* Kinds: those of fill_vector(); whole numbers plus a half, which are all ties; and the largest floats. */
enum { TIES = N_VECTOR_KINDS, LARGEST, N_QUERY_KINDS };

static void query_against_double(struct trial *t, const struct aura_query *q, const float *y, uint32_t dim)
{
    double largest = 0;
    int32_t sum[2] = {0, 0};
    for (uint32_t d = 0; d < dim; d++)
        largest = fabs(y[d]) > largest ? fabs(y[d]) : largest;
    for (uint32_t d = 0; d < dim; d++) {
        int32_t q15 = 256 * q->plane[0][d] + q->plane[1][d];
        double error = fabs(q15 * (double)q->step - y[d]);
        sum[0] += q->plane[0][d], sum[1] += q15;
        if (error > 0.51 * q->step && largest >= 0x1p-100)
            fail(t, "coordinate %u is off by %.3g of a step", d, error / q->step);
        if (largest >= 0x1p-100)
            bound(t, error / largest, "coordinate", d);
        else if (q15 || q->step != 0)
            fail(t, "a vector too small to matter is not all zeros");
    }
    if (sum[0] != q->sum[0] || sum[1] != q->sum[1])
        fail(t, "the sums are %d and %d, not %d and %d", q->sum[0], q->sum[1], sum[0], sum[1]);
}

static void query_case(struct trial *t, uint32_t dim, int kind, size_t n, uint64_t *state)
{
    static struct aura_query want[MAX_ROWS];
    struct layout layout = layout_of(t->cases++);
    float *y = place(&in, n * dim, sizeof(float), layout);
    struct aura_query *q = place(&out, n, sizeof *q, layout);
    snprintf(t->where, sizeof t->where, "dim %u, %zu rows of kind %d", dim, n, kind);
    fill_vector(y, n * dim, kind < N_VECTOR_KINDS ? (enum vector_kind)kind : NORMAL, state);
    for (size_t i = 0; kind >= TIES && i < n * dim; i++)
        y[i] = kind == LARGEST ? y[i] * 0x1p125f : i % dim ? (float)pick(state, 65024) - 32512.5f : -32512;
    for (size_t i = 0; kind == TIES && i < n * dim; i++)
        y[i] = fabsf(y[i]) > 32512 ? 0.5f : y[i];
    ((aura_query_fn *)t->variant->run)(q, y, dim, n);
    check_canaries(t);
    aura_query_ref(want, y, dim, n);
    for (size_t row = 0; row < n; row++) {
        for (int p = 0; p < 2; p++)
            same_bytes(t, q[row].plane[p], want[row].plane[p], (dim + 63) / 64 * 64, p ? "lo" : "hi");
        same_bytes(t, q[row].sum, want[row].sum, sizeof q->sum, "the sums");
        same_floats(t, &q[row].step, &want[row].step, 1, "step");
        if (is_ref(t))
            query_against_double(t, &q[row], y + row * dim, dim);
    }
}

static void check_query(struct trial *t)
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < n_check_dims; i++)
        for (int kind = 0; check_dims[i] % 16 == 0 && check_dims[i] <= AURA_TILE_DIM && kind < N_QUERY_KINDS; kind++)
            for (size_t n = 0; n <= 3 && !t->failure[0]; n += n ? 2 : 1)
                query_case(t, check_dims[i], kind, n, &state);
}

/* Random bytes; all at their upper limits; all at their lower limits; both in turn. Behind the zeros are bytes that no kernel may
 * read. */
static void fill_query(struct aura_query *q, uint32_t dim, int kind, uint64_t *state)
{
    q->sum[0] = q->sum[1] = 0;
    q->step = 1;
    for (uint32_t d = 0; d < AURA_TILE_DIM; d++) {
        uint64_t bits = random_bits(state);
        int up = kind == 1 || (kind == 3 && bits & 1), hi = up ? 127 : -127, lo = up ? 127 : -128;
        if (kind == 0)
            hi = (int)(bits % 255) - 127, lo = (int)(bits >> 32 & 255) - 128;
        if (d >= dim)
            hi = lo = d < (dim + 63) / 64 * 64 ? 0 : (int)(bits & 127);
        q->plane[0][d] = (int8_t)hi;
        q->plane[1][d] = (int8_t)lo;
        q->sum[0] += d < dim ? hi : 0;
        q->sum[1] += d < dim ? 256 * hi + lo : 0;
    }
}

static struct aura_query *make_queries(uint32_t dim, size_t n, int kind, struct layout layout, uint64_t *state)
{
    struct aura_query *q = place(&in2, n, sizeof *q, layout);
    for (size_t g = 0; g < n; g++)
        fill_query(&q[g], dim, kind, state);
    return q;
}

static void reference_case(struct trial *t, uint32_t dim, size_t n, int fill, uint64_t *state)
{
    struct layout layout = layout_of(t->cases++);
    size_t padded = (dim + 63) / 64 * 64;
    int32_t want[MAX_QUERIES];
    int8_t *code = place(&in, padded / 64, 64, layout);
    int32_t *product = place(&out, n, sizeof *product, layout);
    int kind = pick(state, 4);
    snprintf(t->where, sizeof t->where, "dim %u, %zu queries of kind %d, codes %d", dim, n, kind, fill);
    struct aura_query *q = make_queries(dim, n, kind, layout, state);
    for (size_t d = 0; d < padded; d++)
        code[d] = (int8_t)(fill == 0 || d >= dim ? pick(state, 256) - 128 : fill == 1 ? -128 : 127);
    ((aura_reference_fn *)t->variant->run)(product, q, code, dim, n);
    check_canaries(t);
    aura_reference_ref(want, q, code, dim, n);
    same_bytes(t, product, want, n * sizeof *want, "the products");
    for (size_t g = 0; is_ref(t) && g < n; g++) {
        double sum = 0;
        for (uint32_t d = 0; d < dim; d++)
            sum += (256.0 * q[g].plane[0][d] + q[g].plane[1][d]) * code[d];
        bound(t, fabs(product[g] - sum), "product", g);
    }
}

/* ---- tiles -------------------------------------------------------------------------------------------------------- */

static uint8_t codes[MAX_SIDE]; /* [along the packed axis][lane], of the tile made last */

/* Valid until the next call. */
static const struct aura_side *side_of(uint32_t kind, uint32_t dim, int values)
{
    static struct aura_layout layout;
    aura_format format = {(aura_kind)kind, (aura_kind)kind};
    aura_layout_init(&layout, format, dim, dim);
    return values ? &layout.v : &layout.k;
}

static int32_t level_at(const struct aura_side *s, uint32_t i, uint32_t lane)
{
    const int keys = s->lanes == AURA_TILE;
    const uint32_t next = keys ? s->lanes : 1, along = keys ? i : lane, end = keys ? s->runs * AURA_RUN : s->dim;
    const uint8_t *code = codes + i * s->lanes + lane;
    uint32_t state = 0;
    if (!aura_is_trellis(s->kind))
        return aura_level_of_code(s, *code);
    for (uint32_t k = 1; k <= 3 && along + k < end; k++)
        state |= (code[k * next] & 1u) << (k - 1);
    return aura_level_of_code(s, (uint8_t)aura_trellis_index(*code, state));
}

/* A packed tile that ends where the arena says, of random, all lowest or all highest codes. 8-bit codes may also be -128: encode
 * never writes it, but places without a token may hold anything. Kernels prefetch beyond the tile, where nothing is mapped. */
static struct aura_tile make_tile(struct arena *arena, uint32_t kind, uint32_t dim, int values, int fill,
                                  struct layout layout, uint64_t *state)
{
    struct aura_tile tile = {NULL, NULL, NULL, side_of(kind, dim, values), 1};
    const struct aura_side *s = tile.side;
    uint32_t *words = place(arena, s->bytes / 64, 64, layout), quad[8], word[8];
    uint8_t lowest = kind == 8 ? 0x80 : 0, highest = kind == 8 ? 0x7f : (uint8_t)((1 << aura_bits_of(kind)) - 1);
    for (size_t i = 0; i < (size_t)s->runs * AURA_RUN * s->lanes; i += 8) {
        uint64_t eight = random_bits(state);
        for (size_t k = 0; k < 8; k++)
            codes[i + k] = fill == 0 ? (uint8_t)(eight >> 8 * k & ((1 << aura_bits_of(kind)) - 1)) : fill == 1 ? lowest : highest;
    }
    for (uint32_t run = 0; run < s->runs; run++)
        for (uint32_t lane = 0; lane < s->lanes; lane++) {
            memset(quad, 0, sizeof quad);
            for (uint32_t i = 0; i < AURA_RUN; i++) {
                const uint32_t at = aura_place(s, i);
                quad[at / 4] |= (uint32_t)codes[(run * AURA_RUN + i) * s->lanes + lane] << 8 * (at % 4);
            }
            aura_pack_run(word, quad, kind);
            for (uint32_t w = 0; w < aura_bits_of(kind); w++)
                words[aura_word_at(s, run, w) + lane] = word[w];
        }
    tile.words = words;
    tile.ahead = (const uint8_t *)(uintptr_t)64;
    return tile;
}

static int32_t level[AURA_TILES][AURA_TILE * AURA_TILE_DIM]; /* [along the packed axis][lane], of the tiles made last */

/* One to four tiles of a variant. The last ends at a page that is not mapped. */
static size_t make_tiles(struct aura_tile tile[AURA_TILES], struct trial *t, uint32_t dim, int values, int fill,
                         struct layout layout, uint64_t *state)
{
    static _Alignas(64) uint32_t words[AURA_TILES][MAX_SIDE / 4];
    uint32_t kind = AURA_KIND_OF(t->variant->kind);
    size_t n = 1 + (size_t)pick(state, AURA_TILES);
    for (size_t i = 0; i < n; i++) {
        tile[i] = make_tile(&in, kind, dim, values, fill, layout, state);
        tile[i].planes = AURA_PLANES_OF(t->variant->kind);
        for (uint32_t k = 0; k < AURA_TILE * dim; k++)
            level[i][k] = level_at(tile[i].side, k / tile[i].side->lanes, k % tile[i].side->lanes);
        if (i + 1 < n)
            tile[i].words = memcpy(words[i], tile[i].words, tile[i].side->bytes);
    }
    snprintf(t->where, sizeof t->where, "dim %u, codes of %u bits, filled %d", dim, aura_bits_of(kind), fill);
    return n;
}

/* Ordinary; 0; denormal; the largest float; and now and then a NaN, which may change the result of its own token only. */
static uint16_t key_scale(int kind, uint64_t *state)
{
    if (kind == 4 && pick(state, 4) == 0)
        return 0x7e01;
    if (kind == 2)
        return (uint16_t)pick(state, 1024);
    return kind == 1 ? 0 : kind == 3 ? 0x7bff : (uint16_t)(0x2c00 + pick(state, 4096));
}

static void score_tile_case(struct trial *t, uint32_t dim, size_t n, int fill, uint64_t *state)
{
    static float want[AURA_TILES * MAX_QUERIES * AURA_TILE];
    struct layout layout = layout_of(t->cases++);
    struct aura_tile keys[AURA_TILES];
    size_t tiles = make_tiles(keys, t, dim, 0, fill, layout, state);
    int query_kind = pick(state, 4), scale_kind = pick(state, 5), length = (int)strlen(t->where);
    struct aura_query *q = make_queries(dim, n, query_kind, layout, state);
    uint16_t *scale = place(&more, tiles * AURA_TILE, sizeof *scale, layout);
    float *factor = place(&more2, n, sizeof(float), layout), *bias = place(&more3, n * tiles, sizeof(float), layout);
    float *logit = place(&out, n * tiles * AURA_TILE, sizeof(float), layout);
    snprintf(t->where + length, sizeof t->where - (size_t)length, ", %zu tiles, %zu queries of kind %d, scales %d", tiles, n,
             query_kind, scale_kind);
    for (size_t i = 0; i < tiles * AURA_TILE; i++)
        scale[i] = key_scale(scale_kind, state);
    for (size_t i = 0; i < tiles; i++)
        keys[i].scale = scale + i * AURA_TILE;
    for (size_t g = 0; g < n; g++)
        factor[g] = random_normal(state) * 1e-5f;
    for (size_t i = 0; i < n * tiles; i++)
        bias[i] = pick(state, 3) ? random_normal(state) : 0;
    ((aura_score_fn *)t->variant->run)(logit, q, keys, factor, bias, n, tiles);
    check_canaries(t);
    aura_score_ref(want, q, keys, factor, bias, n, tiles);
    same_or_nan(t, logit, want, n * tiles * AURA_TILE, "logit");
    for (size_t i = 0; is_ref(t) && i < n * tiles * AURA_TILE; i++) {
        size_t row = i / AURA_TILE, tile = row / n, token = i % AURA_TILE;
        const struct aura_query *one = &q[row % n];
        double sum = 0, x = aura_f32_from_f16(scale[tile * AURA_TILE + token]), b = bias[row];
        for (uint32_t d = 0; d < dim; d++)
            sum += (keys->planes == 1 ? one->plane[0][d] : 256.0 * one->plane[0][d] + one->plane[1][d]) *
                   level[tile][d * AURA_TILE + token];
        double term = sum * x * factor[row % n];
        if (!isnan(x))
            bound(t, fabs(logit[i] - (term + b)) / (fabs(term) + fabs(b) + 0x1p-120), "logit", i);
    }
}

/* Random weights; all the largest; all 0; one token alone. */
static void fill_weight(struct aura_weight *w, uint32_t planes, int kind, uint64_t *state)
{
    int one = pick(state, AURA_TILE), keep = pick(state, 4);
    w->factor = pick(state, 8) ? (float)random_uniform(state) * 1e-4f : 0;
    w->keep = keep == 0 ? 0 : keep == 1 ? 1 : (float)random_uniform(state);
    for (int i = 0; i < AURA_TILE; i++) {
        int all = kind == 1 || (kind == 3 && i == one);
        w->plane[0][i] = (uint8_t)(kind == 0 ? pick(state, 256) : all ? 255 : 0);
        w->plane[1][i] = (uint8_t)(kind == 0 || planes == 1 ? pick(state, 256) : 0); /* of one plane, nobody reads the second */
    }
}

/* The sum of one tile for one coordinate, in double. */
static double value_sum(const struct aura_weight *w, uint32_t planes, const int32_t *number, uint32_t d, uint32_t dim)
{
    double sum = 0;
    for (uint32_t k = 0; k < AURA_TILE; k++)
        sum += (planes == 1 ? w->plane[0][k] : 256.0 * w->plane[0][k] + w->plane[1][k]) * number[k * dim + d];
    return sum * w->factor;
}

static void value_tile_case(struct trial *t, uint32_t dim, size_t n, int fill, uint64_t *state)
{
    static float before[MAX_QUERIES * (AURA_TILE_DIM + 16)], want[MAX_QUERIES * (AURA_TILE_DIM + 16)];
    struct layout layout = layout_of(t->cases++);
    struct aura_tile values[AURA_TILES];
    size_t tiles = make_tiles(values, t, dim, 1, fill, layout, state);
    int kind = pick(state, 4), length = (int)strlen(t->where);
    size_t stride = dim + 16 * (size_t)pick(state, 2), size = n ? (n - 1) * stride + dim : 0;
    struct aura_weight *w = place(&in2, n * tiles, sizeof *w, layout);
    float *acc = place(&out, size, sizeof(float), layout);
    snprintf(t->where + length, sizeof t->where - (size_t)length, ", %zu tiles, %zu weights of kind %d", tiles, n, kind);
    for (size_t g = 0; g < n * tiles; g++)
        fill_weight(&w[g], values->planes, kind, state);
    for (size_t i = 0; i < size; i++)
        before[i] = i % stride < dim ? random_normal(state) : 12345;
    memcpy(acc, before, size * sizeof *acc);
    memcpy(want, before, size * sizeof *acc);
    ((aura_value_fn *)t->variant->run)(acc, stride, w, values, n, tiles);
    check_canaries(t);
    aura_value_ref(want, stride, w, values, n, tiles);
    same_floats(t, acc, want, size, "acc"); /* also between the rows, where the kernel may change nothing */
    for (size_t i = 0; is_ref(t) && i < size; i++) {
        double sum = (double)before[i] * w[i / stride].keep, magnitude = fabs(sum) + 0x1p-120;
        for (size_t k = 0; k < tiles && i % stride < dim; k++) {
            double one = value_sum(&w[k * n + i / stride], values->planes, level[k], (uint32_t)(i % stride), dim);
            sum += one, magnitude += fabs(one);
        }
        if (i % stride < dim)
            bound(t, fabs(acc[i] - sum) / magnitude, "coordinate", i);
    }
}

/* ---- indices into words, words into numbers, and numbers of two types ------------------------------------------------ */

static void check_pack(struct trial *t)
{
    static _Alignas(64) uint32_t want[AURA_TILE * AURA_TILE_DIM];
    uint64_t state = t->seed;
    for (size_t i = 0; i < 2 * N_DIMS && !t->failure[0]; i++) {
        const uint32_t dim = dims[i / 2], kind = t->variant->kind, codes = kind == 8 ? 255 : 1u << aura_bits_of(kind);
        struct aura_layout shape;
        struct layout layout = layout_of(t->cases++);
        aura_layout_init(&shape, (aura_format){(aura_kind)kind, (aura_kind)kind}, dim, dim);
        const struct aura_side *side = i % 2 ? &shape.v : &shape.k;
        uint8_t *index = place(&in, (size_t)AURA_TILE * dim, 1, layout);
        uint32_t *words = place(&out, side->bytes / 4, 4, layout);
        snprintf(t->where, sizeof t->where, "%s of dim %u", i % 2 ? "values" : "keys", dim);
        for (size_t k = 0; k < (size_t)AURA_TILE * dim; k++)
            index[k] = (uint8_t)pick(&state, codes);
        ((aura_pack_fn *)t->variant->run)(words, index, side);
        check_canaries(t);
        aura_pack_ref(want, index, side);
        same_bytes(t, words, want, side->bytes, "the words");
        struct aura_tile tile = {want, NULL, NULL, side, 1};
        for (uint32_t k = 0; is_ref(t) && k < AURA_TILE * dim; k++)
            if (aura_ref_code(&tile, i % 2 ? k / dim : k % dim, i % 2 ? k % dim : k / dim) != aura_code_of_index(index[k], kind))
                fail(t, "code %u is another", k);
    }
}

static void unpack_case(struct trial *t, uint32_t dim, int values, uint32_t from, uint32_t to, uint64_t *state)
{
    static float want[AURA_TILE * AURA_TILE_DIM];
    const uint32_t kind = t->variant->kind;
    struct aura_layout shape;
    struct layout layout = layout_of(t->cases++);
    aura_layout_init(&shape, (aura_format){(aura_kind)kind, (aura_kind)kind}, dim, dim);
    const struct aura_side *side = values ? &shape.v : &shape.k;
    uint32_t *words = place(&in, side->bytes / 4, 4, layout);
    uint16_t *scale = place(&in2, AURA_TILE, 2, layout);
    float *x = place(&out, (size_t)(to - from) * dim, sizeof *x, layout);
    snprintf(t->where, sizeof t->where, "%s of dim %u, tokens %u to %u", values ? "values" : "keys", dim, from, to);
    for (size_t k = 0; k < side->bytes / 4; k++)
        words[k] = (uint32_t)random_bits(state);
    for (int k = 0; k < AURA_TILE; k++)
        scale[k] = (uint16_t)pick(state, 0x7c00); /* any that is none of inf and NaN, subnormal ones too */
    struct aura_tile tile = {words, NULL, scale, side, 1};
    float *r = t->cases % 2 ? place(&more, dim, sizeof *r, layout) : NULL;
    if (r)
        fill_vector(r, dim, NORMAL, state);
    ((aura_unpack_fn *)t->variant->run)(x, &tile, from, to, r);
    check_canaries(t);
    aura_unpack_ref(want, &tile, from, to, r);
    same_floats(t, x, want, (size_t)(to - from) * dim, "x");
    for (uint32_t k = 0; is_ref(t) && k < (to - from) * dim; k++) {
        const uint32_t token = from + k / dim, d = k % dim;
        const double level = aura_ref_level(&tile, values ? token : d, values ? d : token);
        const double exact = level * side->step * (double)aura_f32_from_f16(scale[token]), add = r ? (double)r[d] : 0;
        bound(t, fabs(x[k] - (exact + add)) / (fabs(exact) + fabs(add) + 0x1p-120), "number", k);
    }
}

static void check_unpack(struct trial *t)
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < 8 * N_DIMS && !t->failure[0]; i++) {
        const uint32_t a = (uint32_t)pick(&state, AURA_TILE + 1), b = (uint32_t)pick(&state, AURA_TILE + 1);
        const int whole = i % 8 < 2;
        unpack_case(t, dims[i / 8], (int)(i % 2), whole ? 0 : a < b ? a : b, whole ? AURA_TILE : a < b ? b : a, &state);
    }
}

/* Every number of 16 bits that is none of NaN; and floats: halves between them, and what is next to these. */
static void check_numbers(struct trial *t)
{
    static float want[1024];
    static uint16_t halves[1024];
    const int narrow = !strcmp(t->variant->stage, "narrow");
    uint64_t state = t->seed;
    for (uint32_t turn = 0; turn < 3 * 64 && !t->failure[0]; turn++) {
        const aura_dtype dtype = turn % 3 == 0 ? AURA_F16 : turn % 3 == 1 ? AURA_BF16 : AURA_F32;
        const size_t n = turn % 5 ? 1024 : pick(&state, 50), bytes = dtype == AURA_F32 ? 4 : 2;
        const uint32_t infinite = dtype == AURA_BF16 ? 0x7f80 : 0x7c00;
        struct layout layout = layout_of(t->cases++);
        snprintf(t->where, sizeof t->where, "numbers of type %d, %zu from %u on", (int)dtype, n, turn / 3 * 1024);
        for (uint32_t i = 0; i < n; i++) {
            const uint32_t bits = turn / 3 * 1024 + i;
            halves[i] = (uint16_t)((bits & 0x7fff) > infinite ? 0 : bits);
        }
        float *x = place(narrow ? &in : &out, n, 4, layout);
        void *numbers = place(narrow ? &out : &in, n, bytes, layout);
        aura_load_row(want, halves, dtype == AURA_F32 ? AURA_F16 : dtype, 0, n);
        for (size_t i = 0; narrow && i < n; i++) { /* between it and the next, or nearly */
            const float half = fabsf(aura_f32_from_f16((uint16_t)(halves[i] ^ 1)) - want[i]) / 2;
            const float tie = dtype == AURA_F16 ? want[i] + half : aura_f32_from_bits((uint32_t)halves[i] << 16 | 0x8000);
            const float side = i % 3 == 0 ? tie : nextafterf(tie, i % 3 == 1 ? INFINITY : -INFINITY);
            want[i] = isnan(side) || i % 7 == 0 ? want[i] : side;
        }
        if (narrow) {
            uint8_t bytes_wanted[4096];
            memcpy(x, want, n * 4);
            ((aura_narrow_fn *)t->variant->run)(numbers, x, dtype, n);
            check_canaries(t);
            aura_narrow_ref(bytes_wanted, x, dtype, n);
            same_bytes(t, numbers, bytes_wanted, n * bytes, "the numbers");
            for (size_t i = 0; is_ref(t) && i < n; i++)
                if (isfinite(x[i]) && fabsf(x[i]) < 65504 && fabsf(x[i]) > 0x1p-14f)
                    bound(t, fabs(aura_load(numbers, dtype, i) - (double)x[i]) / fabs((double)x[i]), "number", i);
        } else {
            memcpy(numbers, dtype == AURA_F32 ? (const void *)want : halves, n * bytes);
            ((aura_widen_fn *)t->variant->run)(x, numbers, dtype, n);
            check_canaries(t);
            same_floats(t, x, want, n, "x");
        }
    }
}

/* ---- by name ------------------------------------------------------------------------------------------------------ */

/* Every dim, every count and every fill, but only a third of the pairs of dim and count; many queries only with a small dim. */
static void check_products(struct trial *t, void one(struct trial *, uint32_t, size_t, int, uint64_t *))
{
    uint64_t state = t->seed;
    for (size_t i = 0; i < N_DIMS; i++)
        for (size_t k = 0; k < N_COUNTS && !t->failure[0]; k++)
            if ((i + k) % 3 == 0 && counts[k] * dims[i] <= MAX_QUERIES * 128)
                one(t, dims[i], counts[k], (int)(t->cases % N_FILLS), &state);
    for (int turn = 0; turn < 12 * N_FILLS && !t->failure[0]; turn++)
        one(t, dims[turn % 3 * 3 + 1], 1 + (size_t)turn % 5, turn % N_FILLS, &state);
}

int check_tile(struct trial *t)
{
    const char *stage = t->variant->stage;
    if (!strcmp(stage, "encode") && aura_is_trellis(t->variant->kind))
        check_trellis(t);
    else if (!strcmp(stage, "encode"))
        check_codes(t);
    else if (!strcmp(stage, "feedback"))
        check_feedback(t);
    else if (!strcmp(stage, "pack"))
        check_pack(t);
    else if (!strcmp(stage, "unpack"))
        check_unpack(t);
    else if (!strcmp(stage, "widen") || !strcmp(stage, "narrow"))
        check_numbers(t);
    else if (!strcmp(stage, "query"))
        check_query(t);
    else if (!strcmp(stage, "reference"))
        check_products(t, reference_case);
    else if (!strcmp(stage, "score"))
        check_products(t, score_tile_case);
    else if (!strcmp(stage, "value"))
        check_products(t, value_tile_case);
    else
        return 0;
    return 1;
}
