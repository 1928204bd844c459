/* How long a stage takes, for `aura check`: hot caches, one thread. */
#define _GNU_SOURCE
#include "check.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "../../src/ref.h"
#include "../../src/rotation.h"
#include "../../src/codec.h"
#include "../parts/inputs.h"

/* Everything a stage may be timed with: 32 rows, 4 queries, dim 128. */
enum { DIM = 128, ROWS = 32, QUERIES = 4, TURNS = 8 };
static struct {
    float x[ROWS * DIM], y[ROWS * DIM], matrix[DIM * DIM], scale[ROWS], weight[QUERIES * ROWS];
    uint8_t packed[ROWS * DIM * 4];
    struct aura_rotation_plan rotation;
    struct aura_codec_plan codec;
    struct aura_rows rows;
    struct aura_metric metric;
    _Alignas(64) float ready[DIM * DIM + DIM];
} bench;

/* The same for stages over tiles: four tiles, as in attention, all with the same codes. */
static struct {
    _Alignas(64) uint32_t words[AURA_TILE * DIM / 4];
    struct aura_query query[ROWS];
    struct aura_weight weight[AURA_TILES * QUERIES];
    struct aura_softmax_row row[QUERIES];
    struct aura_tile tile[AURA_TILES];
    struct aura_scales scales[AURA_TILES];
    struct aura_layout layout;
    float logit[AURA_TILES * QUERIES * AURA_TILE], factor[QUERIES], bias[AURA_TILES * QUERIES];
    int32_t product[ROWS];
    uint16_t scale[AURA_TILE];
} tiles;

static void bench_tile_setup(uint32_t kind, const struct aura_variant *v, uint64_t *state)
{
    struct aura_layout *layout = &tiles.layout;
    aura_format format = {(aura_kind)kind, (aura_kind)kind};
    aura_layout_init(layout, format, DIM, DIM);
    struct aura_tile tile = {tiles.words, (const uint8_t *)tiles.words, tiles.scale,
                             !strcmp(v->stage, "value") ? &layout->v : &layout->k, 1};
    for (size_t i = 0; i < sizeof tiles.words / 4; i++)
        tiles.words[i] = (uint32_t)random_bits(state);
    for (int i = 0; i < AURA_TILE; i++)
        tiles.scale[i] = 0x3c00;
    for (int g = 0; g < QUERIES; g++)
        tiles.factor[g] = 1e-6f, tiles.row[g].max = 0;
    for (int i = 0; i < AURA_TILES * QUERIES; i++)
        tiles.weight[i].keep = 1;
    aura_query_ref(tiles.query, bench.x, DIM, ROWS);
    tile.planes = AURA_PLANES_OF(v->kind);
    struct aura_scales scales = {tiles.scale, NULL, 0, 1};
    for (int i = 0; i < AURA_TILES; i++)
        tiles.tile[i] = tile, tiles.scales[i] = scales;
}

static void bench_setup(const struct aura_variant *v)
{
    uint64_t state = 1;
    char name[80];
    uint32_t kind = AURA_KIND_OF(v->kind);
    int packed = kind && aura_is_packed(kind);
    aura_rotation_plan_init(&bench.rotation, DIM, NULL, NULL, !strcmp(v->stage, "undo"));
    fill_vector(bench.x, ROWS * DIM, NORMAL, &state);
    fill_vector(bench.matrix, DIM * DIM, NORMAL, &state);
    for (int i = 0; i < QUERIES * ROWS; i++)
        bench.weight[i] = 0.5f, bench.scale[i % ROWS] = 1;
    for (int i = 0; i < ROWS * DIM; i++) { /* ordinary numbers of any kind: denormals would be slow */
        uint16_t half = v->kind == AURA_ROW_BF16 ? 0x3f80 : 0x3c00;
        memcpy(bench.packed + 2 * i, &half, 2);
        if (v->kind == AURA_ROW_F32)
            memcpy(bench.packed + 4 * i, &bench.x[i], 4);
    }
    random_plan(&bench.codec, packed ? kind : 4, DIM, name, sizeof name, &state);
    bench.codec.n_fits = !strcmp(v->stage, "feedback") ? 9 : 1; /* what it is for */
    for (int i = 0; i < DIM; i++)
        bench.ready[DIM * DIM + i] = 1;
    struct aura_metric metric = {DIM, bench.ready, bench.ready + DIM * DIM};
    bench.metric = metric;
    struct aura_rows rows = {bench.packed, packed ? bench.codec.row_bytes : v->kind == AURA_ROW_F32 ? 4 * DIM : 2 * DIM,
                             v->kind, DIM, DIM, 0, bench.codec.centroid};
    bench.rows = rows;
    bench_tile_setup(packed ? kind : 4, v, &state);
}

/* Runs a stage over tiles; 0 when the stage is none of them. */
static int bench_tile(const struct aura_variant *v)
{
    if (!strcmp(v->stage, "encode"))
        ((aura_encode_fn *)v->run)(bench.packed, bench.scale, bench.x, &bench.codec, ROWS);
    else if (!strcmp(v->stage, "feedback"))
        ((aura_feedback_fn *)v->run)(bench.packed, bench.scale, bench.x, &bench.codec, &bench.metric, ROWS);
    else if (!strcmp(v->stage, "pack"))
        ((aura_pack_fn *)v->run)(tiles.words, bench.packed, &tiles.layout.k);
    else if (!strcmp(v->stage, "unpack"))
        ((aura_unpack_fn *)v->run)(bench.y, tiles.tile, 0, AURA_TILE, NULL);
    else if (!strcmp(v->stage, "widen"))
        ((aura_widen_fn *)v->run)(bench.y, bench.packed, AURA_F16, ROWS * DIM);
    else if (!strcmp(v->stage, "narrow"))
        ((aura_narrow_fn *)v->run)(bench.packed, bench.x, AURA_F16, ROWS * DIM);
    else if (!strcmp(v->stage, "query"))
        ((aura_query_fn *)v->run)(tiles.query, bench.x, DIM, ROWS);
    else if (!strcmp(v->stage, "reference"))
        ((aura_reference_fn *)v->run)(tiles.product, tiles.query, (const int8_t *)tiles.words, DIM, ROWS);
    else if (!strcmp(v->stage, "score"))
        ((aura_score_fn *)v->run)(tiles.logit, tiles.query, tiles.tile, tiles.factor, tiles.bias, QUERIES, AURA_TILES);
    else if (!strcmp(v->stage, "softmax"))
        ((aura_softmax_fn *)v->run)(tiles.weight, tiles.logit, tiles.row, tiles.scales, 1, QUERIES, AURA_TILES);
    else if (!strcmp(v->stage, "value"))
        ((aura_value_fn *)v->run)(bench.y, DIM, tiles.weight, tiles.tile, QUERIES, AURA_TILES);
    else
        return 0;
    return 1;
}

static void bench_run(const struct aura_variant *v)
{
    float max = 0, sum = 0;
    if (bench_tile(v))
        return;
    if (!strcmp(v->stage, "rotate") || !strcmp(v->stage, "undo"))
        ((aura_rotate_fn *)v->run)(bench.y, bench.x, &bench.rotation, ROWS);
    else if (!strcmp(v->stage, "row_rotate_dense"))
        ((aura_row_rotate_dense_fn *)v->run)(bench.y, bench.x, bench.matrix, DIM, ROWS);
    else if (!strcmp(v->stage, "row_encode"))
        ((aura_row_encode_fn *)v->run)(bench.packed, bench.scale, bench.x, &bench.codec, ROWS);
    else if (!strcmp(v->stage, "row_dequant"))
        ((aura_row_dequant_fn *)v->run)(bench.y, bench.packed, bench.scale, &bench.codec, ROWS);
    else if (!strcmp(v->stage, "row_score"))
        ((aura_row_score_fn *)v->run)(bench.weight, ROWS, bench.x, &bench.rows, bench.scale, QUERIES, ROWS);
    else if (!strcmp(v->stage, "row_value"))
        ((aura_row_value_fn *)v->run)(bench.y, bench.weight, ROWS, &bench.rows, QUERIES, ROWS);
    else if (!strcmp(v->stage, "row_softmax"))
        ((aura_row_softmax_fn *)v->run)(bench.x, &max, &sum, ROWS * DIM);
    else
        ((aura_row_reduce_fn *)v->run)(bench.y, bench.weight, bench.x, DIM, ROWS);
}

/* Whether a stage goes over tiles of tokens; the others go over rows. */
static int reads_tiles(const struct aura_variant *v)
{
    return !strcmp(v->stage, "score") || !strcmp(v->stage, "softmax") || !strcmp(v->stage, "value");
}

/* Bytes that a row reads and writes; for row_softmax and row_reduce a 32nd of the bytes of a call. */
static double bench_bytes(const struct aura_variant *v)
{
    if (!strcmp(v->stage, "row_encode") || !strcmp(v->stage, "row_dequant"))
        return DIM * 4 + bench.codec.row_bytes + 4;
    if (!strcmp(v->stage, "row_score") || !strcmp(v->stage, "row_value"))
        return (double)bench.rows.stride + 4;
    if (reads_tiles(v) && strcmp(v->stage, "softmax"))
        return (double)tiles.tile->side->bytes / AURA_TILE + 2;
    if (!strcmp(v->stage, "softmax")) /* logits, p, a scale, weights */
        return QUERIES * (4 + 4 + 1) + 4;
    if (!strcmp(v->stage, "encode") || !strcmp(v->stage, "feedback"))
        return DIM * 4 + DIM + 4;
    if (!strcmp(v->stage, "query") || !strcmp(v->stage, "widen") || !strcmp(v->stage, "narrow"))
        return DIM * 4 + DIM * 2;
    if (!strcmp(v->stage, "pack") || !strcmp(v->stage, "unpack"))
        return tiles.layout.k.bytes / AURA_TILE + DIM * (v->stage[0] == 'p' ? 1 : 4);
    if (!strcmp(v->stage, "reference"))
        return DIM * 2;
    return !strcmp(v->stage, "row_reduce") ? DIM * 4 : DIM * 8;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

double time_stage(const struct aura_variant *v, double seconds, double *bytes_per_row)
{
    double best = INFINITY, end = now() + seconds;
    bench_setup(v);
    *bytes_per_row = bench_bytes(v);
    do {
        double start = now();
        for (int i = 0; i < TURNS; i++) /* many runs: reading the clock takes as long as one run of a short stage */
            bench_run(v);
        double taken = (now() - start) / TURNS;
        best = taken < best ? taken : best;
    } while (now() < end);
    best = best > 1e-12 ? best : 1e-12; /* the clock may not have moved, and no rate is infinite */
    return best / (reads_tiles(v) ? AURA_TILES * AURA_TILE : ROWS) * 1e9;
}
