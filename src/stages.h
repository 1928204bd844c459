/* The stages, in the order data flows through them: one type and one contract each.
 *
 *     K,V ─ rotate ─ encode ─▶ cache ─┐                        (append, once per token)
 *                                     │
 *     Q ─ rotate ─ query ──▶ score ─ softmax ─ value ─▶ partial ─ merge ─ undo ─▶ output
 *                    └─▶ reference ─┘
 *
 * and the same over rows, the layout of the public families, in floats:
 *
 *     K,V ─ rotate ─ row_encode ─▶ rows ─┐             (and rows ─ row_dequant ─ undo ─▶ K,V)
 *     Q ─ rotate ─▶ row_score ─ row_softmax ─ row_value ─▶ partial ─ row_reduce ─ undo ─▶ output
 *
 * ref.c, ref_attend.c (attention over rows), ref_tile.c (tiles) and ref_feedback.c define what a stage computes. What a
 * kernel may assume is said here:
 *
 *  - The public function has checked the arguments (base/arguments.c); kernels allocate nothing and cannot fail.
 *  - The float environment is IEEE default: round to nearest even, no flush to zero (fpmode.h).
 *  - dim is a multiple of 8 and at most AURA_MAX_DIM; n may be 0.
 *  - Rows are contiguous. A kernel reads and writes exactly the rows it is given: not a byte before or after. What a kernel
 *    of tiles may read further is said at its type.
 *  - Pointers are aligned to their element and no better; output and input do not overlap, except that rotate and undo
 *    accept y == x.
 *  - A stage that variants.h calls EXACT gives the same bits on every instruction set, from integers and IEEE
 *    + - * / sqrt in a fixed order. The others are bounded: see the tolerances there.
 */
#ifndef AURA_STAGES_H
#define AURA_STAGES_H

#include "../include/aura_rows.h"
#include "format.h"
#include "variants.h"

#define AURA_LANES 16                                /* a vector of the vocabulary, on every instruction set */
#define AURA_MAX_BLOCKS (AURA_MAX_DIM / AURA_LANES)  /* vectors in a row */
#define AURA_TILES 4                                 /* the most that go through a stage together */
#define AURA_CELL_ONE 0x1p23f                        /* a whole number added to it is in the lowest bits */
#define AURA_MAX_PALEY 64                            /* largest order of the Paley factor */

/* A rotation made ready: built once, read by any number of calls. See rotation.c. */
struct aura_rotation_plan {
    uint32_t dim;      /* outer * inner */
    uint32_t inner;    /* order of the Sylvester factor, a power of two */
    uint32_t outer;    /* order of the Paley factor, or 1 */
    int transposed;    /* 1: the plan is for undo, the Paley factor is transposed */
    float norm;        /* f32(1 / sqrt(dim)) */
    const float *balance; /* [dim] or NULL; borrowed from the caller */
    uint16_t negative[AURA_MAX_BLOCKS]; /* bit i of word b: coordinate 16 b + i has a negative sign */
    uint16_t outer_negative[AURA_MAX_BLOCKS * AURA_MAX_PALEY]; /* [block][column]: bit i: that entry of the Paley row
                                                                   of coordinate 16 block + i is -1 */
};

/* A codebook and how vectors are fitted to it, made ready: codec.c. */
struct aura_codec_plan {
    uint32_t dim, bits;
    uint32_t row_bytes;    /* aura_row_bytes(dim, bits) */
    uint32_t uniform;      /* fit by the largest coordinate instead of the RMS */
    aura_scale_rule rule;
    float tiny;            /* a vector no longer than this gets the codes of 0 */
    uint32_t keep_tiny;    /* 1: and the scale of its rule; 0: and scale 0 */
    uint32_t n_fits;
    float fits[9];         /* factors on the plain fit, tried in this order */
    float sigma, top;      /* the table's unit, and its highest level */
    float step, spacing, first; /* step > 0: level i is f32(step * (spacing * i + first)), and the threshold above it
                                   f32(step * (spacing * i + first + spacing / 2)), exactly: no table is needed */
    float centroid[256];   /* the levels, padded to 2^bits with the highest; repeated until the array is full */
    float threshold[256];  /* padded to 2^bits - 1 with +inf, which nothing exceeds */
    uint32_t mirrored;     /* 1: the table mirrors itself around 0, and what its width needs beyond that is there: a step above 4
                              bits, and up to 4 bits the cells: a magnitude x is in cell i = x * cells, rounded, at most 15 */
    float cells;
    float cell_threshold[16], cell_low[16], cell_high[16]; /* the threshold in a cell, or +inf; the levels below and above it */
    float cell_count[16];  /* the bits of an integer: thresholds above 0 and below the cell */
    uint32_t trellis;      /* 1: codes are of a trellis, for encode and feedback only. centroid then has 2^(bits+1) levels, and
                              threshold those between the levels 4 m + z and 4 m + 4 + z at 8 z + m. uniform and keep_tiny are 0 */
};

/* What an error of a vector costs, made ready: metric.c. */
struct aura_metric {
    uint32_t dim;
    const float *l;      /* [dim][dim]: l[j][i] for i < j, else 0 */
    const float *weight; /* [dim] > 0: an error e costs the sum over i of weight[i] * (e[i] + sum over j > i of l[j][i] e[j])^2 */
};

/* Rows of keys or values, one vector each, as row_score and row_value read them. */
struct aura_rows {
    const uint8_t *data;   /* row t begins at data + t * stride; read exactly to the end of its codes or numbers */
    size_t stride;         /* bytes */
    uint32_t kind;         /* bits, or AURA_ROW_F32 ... */
    uint32_t dim;
    size_t query_stride;   /* floats from one query to the next in q and acc; a multiple of AURA_LANES, at least dim */
    size_t ahead;          /* bytes from a row to the one that will be read a block later, for prefetching */
    const float *centroid; /* [256], packed rows: the levels, repeated, so that unused upper index bits are harmless */
};

/* y[n][dim] = rotation of x[n][dim]. */
typedef void aura_rotate_fn(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n);

/* y[n][dim] = inverse rotation of x[n][dim]; the plan was made for undo. */
typedef void aura_undo_fn(float *y, const float *x, const struct aura_rotation_plan *plan, size_t n);

/* y[n][dim] = sum over j of x[j] * columns[j][.]: `columns` holds the matrix by columns, [dim][dim]. y is not x. */
typedef void aura_row_rotate_dense_fn(float *y, const float *x, const float *columns, uint32_t dim, size_t n);

/* packed[n][row_bytes], scale[n] = codes of y[n][dim]. Every y is finite with |y| <= 2^55. */
typedef void aura_row_encode_fn(uint8_t *packed, float *scale, const float *y, const struct aura_codec_plan *plan,
                            size_t n);

/* x[n][dim] = scale[n] * centroid of packed[n][row_bytes]. */
typedef void aura_row_dequant_fn(float *x, const uint8_t *packed, const float *scale, const struct aura_codec_plan *plan,
                             size_t n);

/* score[g][t] = scale[t] * (q[g] . row t), g < n_query, t < n. score[g] begins at score + g * score_stride, q[g] at
 * q + g * rows->query_stride, with zeros from dim to the next multiple of AURA_LANES. */
typedef void aura_row_score_fn(float *score, size_t score_stride, const float *q, const struct aura_rows *rows,
                           const float *scale, size_t n_query, size_t n);

/* In place: weight[t] = exp(weight[t] - m) with m = max(*max, all scores); *sum = *sum * a + sum of the weights, where
 * a = exp(old *max - m) is returned; *max = m. Score -inf: weight 0. All -inf: weights 0, a = 1. A NaN or +inf among the
 * scores leaves *sum NaN. */
typedef float aura_row_softmax_fn(float *weight, float *max, float *sum, size_t n);

/* acc[g][d] += sum over t of weight[g][t] * row t [d], d < dim; acc[g] begins at acc + g * rows->query_stride. */
typedef void aura_row_value_fn(float *acc, const float *weight, size_t weight_stride, const struct aura_rows *rows,
                           size_t n_query, size_t n);

/* out[4 i + k] = sum over w < nwg of weight[w] * partial[i][w][k], i < dim / 4: the interleaved partial layout of
 * flash_attn_vec. dim is a multiple of 16, nwg 1 to 32. */
typedef void aura_row_reduce_fn(float *out, const float *weight, const float *partial, uint32_t dim, uint32_t nwg);

/* code[n][dim] = the indices that row_encode packs, a byte each; scale[n] as there. Of a plan with a trellis: its codes, and dim is
 * a multiple of 16 and at most AURA_TILE_DIM. */
typedef void aura_encode_fn(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, size_t n);

/* code[n][dim] and scale[n] are what encode made of y[n][dim] with the same plan, whose rule is MATCHED or UNBIASED. They become
 * codes and scale of feedback where those cost less in the metric, both with their scales as f16; else they stay. dim is a
 * multiple of 16, and scales are numbers in f16. */
typedef void aura_feedback_fn(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan,
                              const struct aura_metric *metric, size_t n);

/* words = the codes of a whole side of a tile: index[32][dim] as encode gives them. What belongs to no code is 0. */
typedef void aura_pack_fn(uint32_t *words, const uint8_t *index, const struct aura_side *side);

struct aura_tile;
/* x[to - from][dim] = tokens [from, to) of one side of a tile: (step * level) * scale + r[dim], each rounded; r NULL: nothing is
 * added. words may have any alignment here. */
typedef void aura_unpack_fn(float *x, const struct aura_tile *tile, uint32_t from, uint32_t to, const float *r);

/* x[n] = numbers of a type; and to[n] = the numbers of a type nearest to x, ties to even. x has no NaN; those of `from` stay. */
typedef void aura_widen_fn(float *x, const void *from, aura_dtype dtype, size_t n);
typedef void aura_narrow_fn(void *to, const float *x, aura_dtype dtype, size_t n);

/* A rotated query as integers of 15 bits in two signed bytes: y[d] is about step * (256 hi[d] + lo[d]). */
struct aura_query {
    _Alignas(64) int8_t plane[2][AURA_TILE_DIM]; /* hi, lo; zeros from dim to the next multiple of 64 */
    int32_t sum[2];                              /* of hi; of 256 hi + lo */
    float step;
};

/* query[n] = integers of y[n][dim], dim a multiple of 16, every y finite. */
typedef void aura_query_fn(struct aura_query *query, const float *y, uint32_t dim, size_t n);

/* product[g] = sum over d < dim of (256 hi + lo) of query g * code[d]; code is 64-byte aligned and read to the next
 * multiple of 64. */
typedef void aura_reference_fn(int32_t *product, const struct aura_query *query, const int8_t *code, uint32_t dim,
                               size_t n_query);

/* One side of a tile as kernels read it. */
struct aura_tile {
    const uint32_t *words;  /* 64-byte aligned */
    const uint8_t *ahead;   /* where the next read will begin: score and value prefetch three quarters of a side; any address */
    const uint16_t *scale;  /* keys, and values for unpack: f16 [32] */
    const struct aura_side *side;
    uint32_t planes;        /* of query or weights */
};

/* logit[i][g][t] = (float)sum * (scale[t] * factor[g]) + bias[i][g] for the 32 tokens t of tile i, where sum is the exact
 * sum over channels of level * q; q is hi of query g with one plane, 256 hi + lo with two. The stage query makes integers
 * so small that the sum fits in 31 bits. All tiles have the same side and number of planes. */
typedef void aura_score_fn(float *logit, const struct aura_query *query, const struct aura_tile *keys,
                                const float *factor, const float *bias, size_t n_query, size_t n_tiles);

/* The softmax of one query over the tiles it has seen. */
struct aura_softmax_row {
    float max;             /* -inf before the first */
    float sum[AURA_LANES]; /* of the weights, in parts: only the sum of all parts means something */
};

/* The weights of one query for a tile, as integers: weight of token t = factor * (256 hi + lo), or factor * hi. */
struct aura_weight {
    uint8_t plane[2][AURA_TILE]; /* hi, lo */
    float factor;
    float keep;                  /* what the accumulator is multiplied by first */
};

/* What softmax needs of a tile. */
struct aura_scales {
    const uint16_t *v;    /* f16 [32], >= 0, and 0 where there is no code */
    const uint8_t *ahead; /* lines that will be read next, for prefetching; any address */
    size_t lines;
    float step;           /* of the levels: weight factors are multiplied by it */
};

/* In place: p[i][g][t] = 2^(logit - max) for tiles i, where max is the largest logit of these tiles and of those before. keep
 * of the first tile is 2^(old max - max), of the others 1. weight[i][g] = p * scales[i].v[t] as integers: the largest of a
 * tile becomes 255 with one plane and 65280 with two, and factor includes step. Logit -inf: p = 0. All -inf so far: p = 0,
 * keep = 1. A NaN or +inf leaves the sum NaN. */
typedef void aura_softmax_fn(struct aura_weight *weight, float *p, struct aura_softmax_row *row,
                                 const struct aura_scales *scales, uint32_t planes, size_t n_query, size_t n_tiles);

/* acc[g][d] = acc[g][d] * keep of weight[0][g]; then, tile by tile, with one rounding: acc[g][d] += (float)i * factor, where
 * i is the exact sum over the 32 tokens of weight[tile][g] * level. acc[g] begins at acc + g * stride, stride a multiple of
 * AURA_LANES. All tiles have the same side and number of planes. */
typedef void aura_value_fn(float *acc, size_t stride, const struct aura_weight *weight,
                                const struct aura_tile *values, size_t n_query, size_t n_tiles);

#define AURA_PADDED(dim) (((size_t)(dim) + AURA_LANES - 1) / AURA_LANES * AURA_LANES)

/* Every kernel of the list, declared. */
#define AURA_DECLARE(stage, shape, kind, isa) aura_##stage##_fn aura_##stage##_##shape##_##isa;
#define AURA_DECLARE_ROW(stage, isa) AURA_SHAPES_##stage(AURA_DECLARE, stage, isa)
AURA_VARIANTS(AURA_DECLARE_ROW)
#undef AURA_DECLARE_ROW
#undef AURA_DECLARE

/* The kernels a context uses: for each stage a function per bit width or kind of row, at index 0 where neither matters,
 * NULL where there is no such shape. */
struct aura_kernels {
#define AURA_FIELD(stage, family, tolerance) aura_##stage##_fn *stage[AURA_N_KINDS];
    AURA_STAGES(AURA_FIELD)
#undef AURA_FIELD
};

#endif
