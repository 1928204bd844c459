/* aura over plain arrays: codebooks, rotations and rows of codes, the kernels of AURA and of mlx-native over such rows, and
 * rows in and out of a cache.
 *
 * Errors, structs, owners and floats are those of aura.h. All buffers are the caller's.
 * Threads  Any number of calls may run at once, as long as none writes to a buffer that another uses. A call that has enough to do
 *          spreads it over the threads or the executor of its context: heads, blocks, workgroups or rows side by side. The bits do
 *          not depend on how many threads there are.
 */
#ifndef AURA_ROWS_H
#define AURA_ROWS_H

#include "aura.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- codebooks ------------------------------------------------------------------------------------------------- */

typedef enum aura_table {
    AURA_TABLE_EXACT = 1, /* Lloyd-Max for N(0,1), solved to convergence: 1 to 8 bits */
    AURA_TABLE_GRID = 2,  /* aura's own, levels that are integers times a step: 2, 3, 4, 5, 6, 8 bits */
    AURA_TABLE_AURA = 3,  /* as published with the AURA kernels, for dim 128: 2, 3, 4, 6, 8 bits */
    AURA_TABLE_TQ = 4     /* as published with mlx-native TurboQuant: 2, 3, 4, 5, 6, 8 bits */
} aura_table;

/* A scalar quantiser. The index of a value is the number of thresholds that are smaller than it, so a value that equals a
 * threshold takes the lower index. Plain data: a caller may fill one with its own tables. */
typedef struct aura_codebook {
    uint32_t id;            /* 16 * table + bits for the built-in ones; stored files name codebooks by it */
    uint32_t bits;          /* 1 to 8 */
    uint32_t levels;        /* 2 to 2^bits; 2^bits except for the 8-bit grid, which has 255 */
    uint32_t uniform;       /* 1: equal spacing; vectors are fitted by their largest coordinate instead of their RMS */
    float sigma;            /* standard deviation of the values the table is made for: 1, or 1/sqrt(128) for AURA */
    float step;             /* centroid = step * integer for the grid tables; 0: no such step */
    const float *centroid;  /* [levels], ascending */
    const float *threshold; /* [levels - 1], ascending */
} aura_codebook;

/* Fills the caller's *book with a built-in codebook, whose arrays are static. Fails: AURA_BAD_ARGUMENT (no such table),
 * AURA_UNSUPPORTED (no such width in that table). */
AURA_API aura_status aura_codebook_get(aura_table table, uint32_t bits, aura_codebook *book);

/* ---- rotation -------------------------------------------------------------------------------------------------- */

typedef enum aura_rotation_kind {
    AURA_ROTATION_HADAMARD = 0, /* y = H (sign * balance * x) / sqrt(dim) */
    AURA_ROTATION_DENSE = 1     /* y = M (balance * x) */
} aura_rotation_kind;

/* An orthogonal map. H is a Hadamard matrix: Sylvester's where dim is a power of two, otherwise Paley (x) Sylvester,
 * which exists for 80, 96, 112, 192, 320, 576 and others (doc/format.md names the rule). */
typedef struct aura_rotation {
    size_t size;
    aura_rotation_kind kind;
    uint32_t dim;         /* a multiple of 8, 8 to AURA_MAX_DIM */
    const uint8_t *signs; /* HADAMARD: dim bits, least significant first, 1 = negative; NULL: all positive */
    const float *matrix;  /* DENSE: [dim][dim], y[i] = sum over j of matrix[i][j] x[j]; it must be orthogonal */
    const float *balance; /* [dim] factors on the un-rotated side; NULL: all 1 */
} aura_rotation;

#define AURA_ROTATION_INIT {sizeof(aura_rotation), AURA_ROTATION_HADAMARD, 0, NULL, NULL, NULL}

/* Fills the caller's bits[(dim + 7) / 8] with the signs of a seed. `stream` 0 is for keys, 1 for values. doc/format.md
 * defines the generator. Fails: AURA_BAD_ARGUMENT (also: dim 0 or above AURA_MAX_DIM). */
AURA_API aura_status aura_signs(uint64_t seed, uint32_t stream, uint32_t dim, uint8_t *bits);

typedef struct aura_rotate_args {
    size_t size;
    const aura_rotation *rotation;
    size_t rows;      /* 0: nothing to do */
    const void *in;   /* [rows][dim] */
    void *out;        /* [rows][dim]; may be `in` itself when dtype and stride are the same, else must not overlap it */
    aura_dtype in_dtype, out_dtype;
    size_t in_stride, out_stride; /* elements from row to row; 0: dim */
} aura_rotate_args;

#define AURA_ROTATE_ARGS_INIT {sizeof(aura_rotate_args), NULL, 0, NULL, NULL, AURA_F32, AURA_F32, 0, 0}

/* Rotates rows: out = rotation(in). It computes in f32 in one fixed order: the bits are the same on every instruction set.
 * NaN and Inf pass through as f32 arithmetic has them.
 * Fails, with nothing written: AURA_BAD_ARGUMENT (also: a misaligned pointer, strides below dim, dim that is no multiple of 8
 * or out of range, out that overlaps in), AURA_BAD_VALUE (a matrix that cannot be orthogonal), AURA_UNSUPPORTED (no Hadamard
 * matrix of that dim, a dtype nobody knows), AURA_TOO_LARGE, AURA_OUT_OF_MEMORY (of a copy of a dense matrix). */
AURA_API aura_status aura_rotate(const aura_ctx *ctx, const aura_rotate_args *args);

/* The inverse: the transpose, then `balance` as factors. Give the reciprocals of the balance that aura_rotate() had.
 * Fails as aura_rotate() does, but takes no memory. */
AURA_API aura_status aura_undo(const aura_ctx *ctx, const aura_rotate_args *args);

/* ---- rows: vectors to codes and back --------------------------------------------------------------------------- */

/* What is stored with the codes, so that x is about scale * centroid[code]. */
typedef enum aura_scale_rule {
    AURA_SCALE_MATCHED = 0,  /* |x| / |c|: the decoded vector has the length of the original */
    AURA_SCALE_UNBIASED = 1, /* |x|^2 / <x,c>: the decoded vector projects onto the original without loss */
    AURA_SCALE_RAW = 2       /* rms(x) / sigma: what the thresholds were fitted with, no correction */
} aura_scale_rule;

/* Bytes of one packed row: dim indices of `bits` bits in one little-endian bit stream, padded with zero bits to whole
 * 32-bit words. 0 when dim is 0 or above AURA_MAX_DIM, or bits is not 1 to 8. Never fails. */
AURA_API size_t aura_row_bytes(uint32_t dim, uint32_t bits);

typedef struct aura_encode_args {
    size_t size;
    const aura_codebook *codebook;
    const aura_rotation *rotation; /* NULL: the rows are rotated already */
    uint32_t dim;                  /* a multiple of 8, 8 to AURA_MAX_DIM; that of the rotation where there is one */
    size_t rows;                   /* 0: nothing to do */
    const void *in;                /* [rows][dim] */
    void *packed;                  /* [rows][aura_row_bytes(dim, bits)] */
    void *scales;                  /* [rows] */
    aura_dtype in_dtype, scale_dtype;
    size_t in_stride;     /* elements from row to row; 0: dim */
    size_t packed_stride; /* bytes from row to row; 0: aura_row_bytes(dim, bits) */
    aura_scale_rule rule;
    uint32_t search; /* 1: try nine fits per vector and take the one with the best cosine; 0: the plain fit */
    float tiny;      /* 0: a vector with |y| < 2^-50 gets scale 0. Above 0, up to 1: a vector with |y| <= tiny gets the
                        codes of 0 and its own scale, as the public encoders do (AURA 1e-8, TQ 1e-10) */
} aura_encode_args;

#define AURA_ENCODE_ARGS_INIT                                                                                          \
    {sizeof(aura_encode_args), NULL, NULL, 0, 0, NULL, NULL, NULL, AURA_F32, AURA_F32, 0, 0, AURA_SCALE_MATCHED, 0, 0}

/* Encodes rows: rotate, fit, quantise, pack. The bytes are the same on every instruction set. Buffers must not overlap.
 * Fails, with nothing written: AURA_BAD_VALUE (a NaN, an Inf, a coordinate beyond 2^40 after balance, or a scale that
 * scale_dtype cannot hold: the message names the row; a matrix or codebook that cannot be one), AURA_BAD_ARGUMENT,
 * AURA_UNSUPPORTED (a width without a kernel: 1 or 7 bits; no Hadamard matrix of that dim; a dtype nobody knows),
 * AURA_TOO_LARGE, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_encode(const aura_ctx *ctx, const aura_encode_args *args);

typedef struct aura_decode_args {
    size_t size;
    const aura_codebook *codebook;
    const aura_rotation *rotation; /* the one used to encode, with reciprocal balance; NULL: leave the rows rotated */
    uint32_t dim;
    size_t rows;
    const void *packed;
    const void *scales;
    void *out; /* [rows][dim] */
    aura_dtype scale_dtype, out_dtype;
    size_t packed_stride; /* bytes; 0: aura_row_bytes(dim, bits) */
    size_t out_stride;    /* elements; 0: dim */
} aura_decode_args;

#define AURA_DECODE_ARGS_INIT                                                                                          \
    {sizeof(aura_decode_args), NULL, NULL, 0, 0, NULL, NULL, NULL, AURA_F32, AURA_F32, 0, 0}

/* Decodes rows: unpack, look up, scale, and undo the rotation where one is given. An index beyond the codebook's
 * levels (only a corrupt row has one) reads as the highest level.
 * Fails as aura_encode() does, but not because of values in the rows: it does not check them. */
AURA_API aura_status aura_decode(const aura_ctx *ctx, const aura_decode_args *args);

/* ---- the kernels of the public families, over row-major arrays ---------------------------------------------------
 *
 * doc/families.md maps each kernel of AURA and mlx-native to the function here, and says what differs and why.
 *
 * Heads: q_heads and kv_heads count those of all batches together, [batch][head] flattened. Query head h reads KV head
 * h / (q_heads / kv_heads), and q_heads must be a multiple of kv_heads. Offsets are 64-bit. Nothing past the live tokens
 * is read. All sums are in f32 or better; outputs are rounded once. Buffers must not overlap.
 *
 * Every function fails, with nothing written, with AURA_BAD_ARGUMENT (also: zero heads, heads that do not divide, a stride
 * below the live length), AURA_UNSUPPORTED (a width, dim or dtype without a kernel) or AURA_TOO_LARGE. A function that attends
 * also fails, with everything written, with AURA_NOT_FINITE: a row is NaN where its sums are NaN or infinite or do not fit the
 * output's type, and all others are good. In partials, l or S is NaN or infinite then.
 */

/* One side of a compressed cache as the AURA kernels store it: x = norm * codebook[index]. */
typedef struct aura_packed {
    uint32_t bits;                        /* 2, 3, 4, 5, 6 or 8 */
    const void *codes;                    /* [kv_heads][stride][aura_row_bytes(dim, bits)] */
    const void *norms;                    /* [kv_heads][stride] */
    const void *codebook;                 /* [2^bits] */
    aura_dtype norm_dtype, codebook_dtype;
    size_t stride;                        /* rows from one KV head to the next; 0: tokens */
    size_t packed_stride;                 /* bytes from row to row; 0: aura_row_bytes(dim, bits) */
} aura_packed;

#define AURA_PACKED_INIT {0, NULL, NULL, NULL, AURA_F32, AURA_F32, 0, 0}

/* Decodes: out[h][t] = norm * codebook[code], t < tokens, in rotated space. */
typedef struct aura_dequant_args {
    size_t size;
    aura_packed rows;
    uint32_t dim, kv_heads;
    size_t tokens;
    void *out; /* [kv_heads][out_stride][dim] */
    aura_dtype out_dtype;
    size_t out_stride; /* rows from one head to the next; 0: tokens */
} aura_dequant_args;
#define AURA_DEQUANT_ARGS_INIT {sizeof(aura_dequant_args), AURA_PACKED_INIT, 0, 0, 0, NULL, AURA_F32, 0}

/* Decodes rows. Fails as every function here does. */
AURA_API aura_status aura_dequant(const aura_ctx *ctx, const aura_dequant_args *args);

/* scores[h][t] = q[h] . key t. The caller has rotated q like the keys and multiplied it by the softmax scale. */
typedef struct aura_score_args {
    size_t size;
    aura_packed keys;
    uint32_t dim, q_heads, kv_heads;
    size_t tokens;
    const void *q; /* [q_heads][dim] */
    void *scores;  /* [q_heads][score_stride] */
    aura_dtype q_dtype, score_dtype;
    size_t score_stride; /* 0: tokens */
} aura_score_args;
#define AURA_SCORE_ARGS_INIT {sizeof(aura_score_args), AURA_PACKED_INIT, 0, 0, 0, 0, NULL, NULL, AURA_F32, AURA_F32, 0}

/* Computes scores. Fails as every function here does. Scores that are not finite are not a failure. */
AURA_API aura_status aura_score(const aura_ctx *ctx, const aura_score_args *args);

/* out[h] = sum over t of weights[h][t] * value t, in rotated space. Only weights >= sparse_threshold count; others, and NaN,
 * are skipped. Nothing is renormalised. */
typedef struct aura_value_args {
    size_t size;
    aura_packed values;
    uint32_t dim; /* 1 to AURA_MAX_DIM */
    uint32_t q_heads, kv_heads;
    size_t tokens;
    const void *weights; /* [q_heads][weight_stride] */
    void *out;           /* [q_heads][dim] */
    aura_dtype weight_dtype, out_dtype;
    size_t weight_stride; /* 0: tokens */
    float sparse_threshold;
} aura_value_args;
#define AURA_VALUE_ARGS_INIT \
    {sizeof(aura_value_args), AURA_PACKED_INIT, 0, 0, 0, 0, NULL, NULL, AURA_F32, AURA_F32, 0, 0}

/* Sums values. Fails as every function here that attends. */
AURA_API aura_status aura_value(const aura_ctx *ctx, const aura_value_args *args);

/* Partial results of blocks of tokens: o is the sum before it is normalised, m the largest score, l the sum of
 * exp(score - m). An empty block is (0, -inf, 0). Store them in f32: rounding m to bf16 alone costs percents of accuracy. */
typedef struct aura_flash_p1_args {
    size_t size;
    aura_packed keys, values;
    uint32_t dim, q_heads, kv_heads;
    size_t tokens;
    const void *q;      /* [q_heads][dim], rotated and scaled */
    aura_dtype q_dtype, partial_dtype;
    void *o, *m, *l;    /* [q_heads][num_blocks][v_dim], [q_heads][num_blocks], the same */
    size_t num_blocks, block_size; /* together they must cover the visible tokens */
    uint32_t causal;     /* 1: tokens after q_position are not seen */
    uint64_t q_position;
    uint32_t v_dim;      /* of values and of o; 0: dim */
} aura_flash_p1_args;
#define AURA_FLASH_P1_ARGS_INIT                                                                                        \
    {sizeof(aura_flash_p1_args), AURA_PACKED_INIT, AURA_PACKED_INIT, 0, 0, 0, 0, NULL, AURA_F32, AURA_F32, NULL, NULL, \
     NULL, 0, 0, 0, 0, 0}

/* Computes partial results. Fails as every function here that attends. */
AURA_API aura_status aura_flash_p1(const aura_ctx *ctx, const aura_flash_p1_args *args);

/* Merges the partial results of aura_flash_p1(). Without blocks, or with empty ones only, the output is 0. */
typedef struct aura_flash_pass2_args {
    size_t size;
    uint32_t dim, q_heads;
    size_t num_blocks;
    const void *o, *m, *l;
    void *out; /* [q_heads][dim] */
    aura_dtype partial_dtype, out_dtype;
    const aura_rotation *undo; /* not NULL: its inverse takes the output out of rotated space, as aura_undo() */
    const void *sinks;         /* [sink_heads] logits that join the denominator, or NULL; head h takes h % sink_heads */
    aura_dtype sink_dtype;
    uint32_t sink_heads; /* 0: q_heads */
    float *lse;          /* [q_heads] natural log-sum-exp with the sink, -inf for an empty row; or NULL */
} aura_flash_pass2_args;
#define AURA_FLASH_PASS2_ARGS_INIT \
    {sizeof(aura_flash_pass2_args), 0, 0, 0, NULL, NULL, NULL, NULL, AURA_F32, AURA_F32, NULL, NULL, AURA_F32, 0, NULL}

/* Writes out and lse. Fails as every function here that attends and, with undo, as aura_undo(). */
AURA_API aura_status aura_flash_pass2(const aura_ctx *ctx, const aura_flash_pass2_args *args);

/* Attention in a single pass, with learned sinks and a sliding window. */
typedef struct aura_flash_sdpa_args {
    size_t size;
    aura_packed keys, values;
    uint32_t dim, q_heads, kv_heads;
    size_t tokens;
    const void *q; /* [q_heads][dim], rotated and scaled */
    void *out;     /* [q_heads][v_dim] */
    aura_dtype q_dtype, out_dtype;
    const void *sinks; /* as in aura_flash_pass2_args */
    aura_dtype sink_dtype;
    uint32_t sink_heads;
    uint64_t window;           /* only the last `window` tokens are seen; 0: all */
    const aura_rotation *undo; /* as in aura_flash_pass2_args */
    float *lse;                /* as in aura_flash_pass2_args */
    uint32_t v_dim;            /* of values and of out; 0: dim */
} aura_flash_sdpa_args;
#define AURA_FLASH_SDPA_ARGS_INIT                                                                                      \
    {sizeof(aura_flash_sdpa_args), AURA_PACKED_INIT, AURA_PACKED_INIT, 0, 0, 0, 0, NULL, NULL, AURA_F32, AURA_F32,     \
     NULL, AURA_F32, 0, 0, NULL, NULL, 0}

/* Writes out and lse. Fails as every function here that attends and, with undo, as aura_undo(). */
AURA_API aura_status aura_flash_sdpa(const aura_ctx *ctx, const aura_flash_sdpa_args *args);

/* One side of a cache as mlx-native stores it: plain numbers, 4-bit TQ nibbles, or TQ-HB, one byte for each code. */
typedef struct aura_vec_side {
    uint32_t bits;      /* 0: plain numbers of `dtype`; 4: TQ; 5, 6, 8: TQ-HB. Codes need a side of dim 256 or 512 */
    aura_dtype dtype;
    const void *rows;   /* [kv_heads][capacity][dim], as numbers, nibbles or bytes */
    const float *norms; /* codes: [kv_heads][capacity], at dim 512 [kv_heads][capacity][2] */
} aura_vec_side;

/* flash_attn_vec and its TQ and TQ-HB variants; K and V may be of different kinds. One query token. */
typedef struct aura_flash_attn_vec_args {
    size_t size;
    aura_vec_side k, v;
    uint32_t dim;       /* a multiple of 16, up to AURA_MAX_DIM; 256 or 512 with codes */
    uint32_t q_heads, kv_heads;
    uint64_t tokens, capacity; /* live tokens, of none the output is 0; rows per KV head */
    const float *q;     /* [q_heads][dim]; rotated when the keys are */
    float *out;         /* [q_heads][v_dim]; may be NULL when temp is given */
    float *temp;        /* not NULL: takes partial results for aura_flash_attn_vec_reduce() instead of out,
                           q_heads * nwg * (v_dim + 2) floats; with nwg 1 finished rows, q_heads * v_dim */
    uint32_t nwg;       /* 1 to 32 workgroups, with temp */
    uint32_t mask_type; /* 0 and 1: every live token; 2: the last `window` of them, where window > 0 */
    uint64_t window, keep_first; /* with mask_type 2 the oldest `keep_first` tokens are seen too */
    uint64_t ring_start; /* slot of the oldest token, below capacity or 0: order in time is ring_start, ring_start + 1 ... */
    float scale, softcap;    /* logits are softcap * tanh(scale * dot / softcap); softcap 0: scale * dot. scale 0:
                                1 / sqrt(dim) */
    float scale_factor_d512; /* as given to aura_tq_encode; below 1e-6: 1 */
    uint32_t q_as_f16;       /* 1: round the query to f16 first, as the public kernels do */
    const float *sinks;      /* [q_heads] logits that join the denominator, or NULL. With temp: give them to the reduce */
    float *lse;              /* [q_heads] natural log-sum-exp with the sink, or NULL. With temp: from the reduce */
    uint32_t v_dim;          /* of values and of out, as dim; 0: dim */
    const aura_rotation *undo; /* as in aura_flash_pass2_args, of finished rows: with temp and nwg above 1 it is for the reduce */
} aura_flash_attn_vec_args;
#define AURA_VEC_SIDE_INIT {0, AURA_F32, NULL, NULL}
#define AURA_FLASH_ATTN_VEC_ARGS_INIT                                                                                  \
    {sizeof(aura_flash_attn_vec_args), AURA_VEC_SIDE_INIT, AURA_VEC_SIDE_INIT, 0, 0, 0, 0, 0, NULL, NULL, NULL, 0, 0,  \
     0, 0, 0, 0, 0, 0, 0, NULL, NULL, 0, NULL}

/* Writes out and lse, or temp. Fails as every function here that attends and, with undo, as aura_undo(); AURA_BAD_ARGUMENT also
 * for sinks or lse with temp, and for undo with temp and nwg above 1. */
AURA_API aura_status aura_flash_attn_vec(const aura_ctx *ctx, const aura_flash_attn_vec_args *args);

/* Merges the partial results in `temp`. With nwg 1, temp holds finished rows: it is too late for sinks and lse then. */
typedef struct aura_flash_attn_vec_reduce_args {
    size_t size;
    uint32_t dim, rows, nwg; /* as for aura_flash_attn_vec; dim = its v_dim, rows = its q_heads */
    const float *temp;
    float *out; /* [rows][dim] */
    const aura_rotation *undo; /* as in aura_flash_pass2_args */
    const float *sinks; /* [rows], as in aura_flash_attn_vec_args */
    float *lse;         /* [rows], likewise */
} aura_flash_attn_vec_reduce_args;
#define AURA_FLASH_ATTN_VEC_REDUCE_ARGS_INIT \
    {sizeof(aura_flash_attn_vec_reduce_args), 0, 0, 0, NULL, NULL, NULL, NULL, NULL}

/* Writes out and lse. Fails as every function here that attends and, with undo, as aura_undo(); AURA_BAD_ARGUMENT also for
 * sinks or lse with nwg 1. */
AURA_API aura_status aura_flash_attn_vec_reduce(const aura_ctx *ctx, const aura_flash_attn_vec_reduce_args *args);

/* The fixed signs of TQ, for aura_rotation: dim 256 or 512; NULL for others. The array is static. aura_rotate() with them is
 * fwht_sign_premult, aura_undo() is fwht_sign_undo, aura_rotate() without signs is the plain normalised fwht. Never fails. */
AURA_API const uint8_t *aura_tq_signs(uint32_t dim);

/* Rotates, quantises and stores tokens into a TQ (4-bit) or TQ-HB cache. Token i goes to slot write_pos + i, modulo
 * capacity when sliding. */
typedef struct aura_tq_encode_args {
    size_t size;
    uint32_t dim;  /* 256, one norm a token: its length; or 512, two: the RMS of each half */
    uint32_t bits; /* 4; 5, 6, 8 */
    uint32_t kv_heads;
    uint64_t tokens, capacity, write_pos; /* tokens <= capacity; write_pos + tokens <= capacity unless sliding */
    uint32_t sliding;
    const void *in; /* [tokens][kv_heads][dim], not rotated */
    aura_dtype in_dtype;
    void *packed;   /* [kv_heads][capacity][dim / 2, or dim] bytes */
    float *norms;   /* [kv_heads][capacity], at dim 512 [kv_heads][capacity][2] */
    float scale_factor_d512; /* below 1e-6: 1 */
} aura_tq_encode_args;
#define AURA_TQ_ENCODE_ARGS_INIT {sizeof(aura_tq_encode_args), 0, 0, 0, 0, 0, 0, 0, NULL, AURA_F32, NULL, NULL, 0}

/* Encodes tokens. The codes are the same bytes on every instruction set.
 * Fails as every function here does, and with AURA_BAD_VALUE (NaN, Inf or a coordinate beyond 2^40; the message names it). */
AURA_API aura_status aura_tq_encode(const aura_ctx *ctx, const aura_tq_encode_args *args);

/* One slot as numbers, in rotated space. */
typedef struct aura_tq_dequant_args {
    size_t size;
    uint32_t dim, bits, kv_heads;
    uint64_t capacity, slot;
    const void *packed;
    const float *norms;
    float *out; /* [kv_heads][dim] */
    float scale_factor_d512;
} aura_tq_dequant_args;
#define AURA_TQ_DEQUANT_ARGS_INIT {sizeof(aura_tq_dequant_args), 0, 0, 0, 0, 0, NULL, NULL, NULL, 0}

/* Decodes one slot. Fails as every function here does. */
AURA_API aura_status aura_tq_dequant(const aura_ctx *ctx, const aura_tq_dequant_args *args);

/* Copies tokens into a plain cache, converting the element type. */
typedef struct aura_kv_copy_args {
    size_t size;
    uint32_t heads, dim;
    uint64_t tokens, capacity, write_pos; /* tokens <= capacity; write_pos + tokens <= capacity unless sliding */
    uint32_t sliding;     /* 1: slot (write_pos + i) % capacity */
    uint32_t token_major; /* 0: cache [heads][capacity][dim]; 1: cache [capacity][heads][dim] */
    const void *in;       /* [tokens][heads][dim] */
    void *cache;
    aura_dtype in_dtype, cache_dtype;
} aura_kv_copy_args;
#define AURA_KV_COPY_ARGS_INIT {sizeof(aura_kv_copy_args), 0, 0, 0, 0, 0, 0, 0, NULL, NULL, AURA_F32, AURA_F32}

/* Copies tokens. Fails as every function here does. */
AURA_API aura_status aura_kv_copy(const aura_ctx *ctx, const aura_kv_copy_args *args);

/* ---- rows in and out of a cache ------------------------------------------------------------------------------------
 *
 * Rows of the two families become tokens of a sequence, and tokens become such rows. Both ways the numbers are decoded and
 * encoded again, with the error that encoding has: a row that goes in and comes out is not the same row. Each call allocates
 * the tokens as f32 while it runs. On failure no token was appended and no row written.
 *
 * Threads: importing changes the sequence, exporting reads it, as aura.h says.
 */

/* Appends rows of the AURA kernels, [kv_heads][stride] of k_dim and v_dim numbers, to a sequence. The rotations are those
 * that the rows are in, with reciprocal balance as for aura_decode(); NULL: none. */
typedef struct aura_import_rows_args {
    size_t size;
    aura_seq seq;
    uint32_t tokens;
    aura_packed k, v;
    const aura_rotation *k_rotation, *v_rotation;
} aura_import_rows_args;
#define AURA_IMPORT_ROWS_ARGS_INIT {sizeof(aura_import_rows_args), 0, 0, AURA_PACKED_INIT, AURA_PACKED_INIT, NULL, NULL}

/* Appends the rows. Fails as aura_dequant(), aura_undo() and aura_append() do, and with AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_import_rows(aura_cache *cache, const aura_import_rows_args *args);

/* Where rows go, and how they are encoded: see aura_encode_args. */
typedef struct aura_packed_out {
    const aura_codebook *codebook;
    const aura_rotation *rotation; /* NULL: none */
    aura_scale_rule rule;
    uint32_t search;
    float tiny;
    void *codes;           /* [kv_heads][stride][aura_row_bytes(dim, bits)]; NULL: this side is not wanted */
    void *norms;           /* [kv_heads][stride] */
    aura_dtype norm_dtype;
    size_t stride;         /* rows from one KV head to the next; 0: tokens */
} aura_packed_out;
#define AURA_PACKED_OUT_INIT {NULL, NULL, AURA_SCALE_MATCHED, 0, 0, NULL, NULL, AURA_F32, 0}

/* Tokens [first, first + tokens) of a sequence as such rows. */
typedef struct aura_export_rows_args {
    size_t size;
    aura_seq seq;
    uint64_t first;
    uint32_t tokens;
    aura_packed_out k, v;
} aura_export_rows_args;
#define AURA_EXPORT_ROWS_ARGS_INIT {sizeof(aura_export_rows_args), 0, 0, 0, AURA_PACKED_OUT_INIT, AURA_PACKED_OUT_INIT}

/* Writes the rows. Fails as aura_cache_decode() and aura_encode() do, and with AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_export_rows(const aura_cache *cache, const aura_export_rows_args *args);

/* Appends a cache of mlx-native to a sequence. Token i is in slot (ring_start + i) % capacity. A side of codes needs a cache
 * of dim 256 or 512. Plain numbers are not rotated. */
typedef struct aura_import_tq_args {
    size_t size;
    aura_seq seq;
    uint32_t tokens;               /* at most capacity */
    aura_vec_side k, v;
    uint64_t capacity, ring_start; /* ring_start below capacity */
    float scale_factor_d512;       /* as given to aura_tq_encode */
} aura_import_tq_args;
#define AURA_IMPORT_TQ_ARGS_INIT {sizeof(aura_import_tq_args), 0, 0, AURA_VEC_SIDE_INIT, AURA_VEC_SIDE_INIT, 0, 0, 0}

/* Appends the tokens. Fails as aura_tq_dequant() and aura_append() do, and with AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_import_tq(aura_cache *cache, const aura_import_tq_args *args);

/* Where such rows go: see aura_vec_side. */
typedef struct aura_vec_out {
    uint32_t bits;
    aura_dtype dtype;
    void *rows;   /* NULL: this side is not wanted */
    float *norms; /* codes only */
} aura_vec_out;
#define AURA_VEC_OUT_INIT {0, AURA_F32, NULL, NULL}

/* Tokens [first, first + tokens) into slots write_pos, write_pos + 1 ..., as aura_tq_encode() and aura_kv_copy() put them. */
typedef struct aura_export_tq_args {
    size_t size;
    aura_seq seq;
    uint64_t first;
    uint32_t tokens;
    aura_vec_out k, v;
    uint64_t capacity, write_pos;
    uint32_t sliding;
    float scale_factor_d512;
} aura_export_tq_args;
#define AURA_EXPORT_TQ_ARGS_INIT {sizeof(aura_export_tq_args), 0, 0, 0, AURA_VEC_OUT_INIT, AURA_VEC_OUT_INIT, 0, 0, 0, 0}

/* Writes the rows. Fails as aura_cache_decode(), aura_tq_encode() and aura_kv_copy() do, and with AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_export_tq(const aura_cache *cache, const aura_export_tq_args *args);

#ifdef __cplusplus
}
#endif
#endif
