/* Products of matrices with the vectors of tokens, on all threads of a context.
 *
 * Before a product, vectors are rounded to bytes, in blocks of 32 with one scale. A kernel unpacks the codes of the weights to
 * bytes in registers; its sums within a part are exact integers. The vectors of 8 tokens are stored together, a batch, so that a
 * kernel unpacks weights once for all of them. Weights that are floats are multiplied with the vectors as they are. */
#ifndef AURA_MATMUL_H
#define AURA_MATMUL_H

#include "weights.h"

enum { ACT_TOKENS = 8, ACT_COLS = 32 };

/* 32 numbers of a token: scale * q[i]. */
struct act_block {
    int8_t q[ACT_COLS];
    float scale;
    float offset;    /* scale * sum: what a min of the weights is multiplied with */
    int32_t sum;     /* of all q */
    int16_t half[2]; /* sums of the first and of the last 16 of q */
};

struct matmul_kernels; /* for an instruction set */

/* The best kernels that these instruction sets allow (aura_ctx_isas()). Static. */
const struct matmul_kernels *matmul_kernels(uint32_t isas);

/* The vectors of tokens, as products take them: in blocks for quantised matrices, plain for matrices of floats. wants_block and
 * wants_plain say which of the two forms acts_set() makes. */
struct acts {
    size_t cols, blocks, tokens, batches;
    struct act_block *block; /* [batches][blocks][ACT_TOKENS]; the last batch is filled up with zeros */
    float *plain;            /* [batches][blocks * ACT_COLS][ACT_TOKENS], likewise */
    size_t room;             /* allocated, in batches * blocks */
    int wants_plain, wants_block;
};

/* Makes room for `tokens` vectors of `cols` numbers, and forgets the old ones. 0 when good; -1: no memory. */
int acts_resize(struct acts *acts, size_t cols, size_t tokens);
void acts_destroy(struct acts *acts);

/* Sets token t to x[cols]. Several threads may set different tokens at once. */
void acts_set(struct acts *acts, const struct matmul_kernels *kernels, size_t t, const float *x);

/* out[t][row] = (weights x_t)[row], + bias[row] if there is a bias, + the old out[t][row] if `add` is 1. */
struct product {
    const struct matrix *weights;
    float *out;
    size_t stride;     /* floats from token to token of out */
    const float *bias; /* NULL: none */
    int add;
};

/* Several products of the same vectors, all at once. */
void matmul_run(const aura_ctx *ctx, const struct matmul_kernels *kernels, const struct acts *acts, const struct product *products,
                size_t n);

/* out[t][row] = silu(gate x_t)[row] * (up x_t)[row]: the first half of a feed-forward block. */
void matmul_gated(const aura_ctx *ctx, const struct matmul_kernels *kernels, const struct acts *acts, const struct matrix *gate,
                  const struct matrix *up, float *out, size_t stride);

/* ---- what an instruction set brings: matmul.tmpl.h, stamped by matmul_ISA.c ----------------------------------------------- */

/* out[t][r] = row r of the panel times token t, for the `tokens` tokens (1 to ACT_TOKENS) of a batch: struct act_block
 * [blocks of 32][ACT_TOKENS] or float [columns][ACT_TOKENS]. `blocks` is how many the panel has. out has room for ACT_TOKENS. */
typedef void matmul_panel_fn(float *out, const uint8_t *panel, const void *batch, size_t blocks, size_t tokens);

typedef void matmul_round_fn(struct act_block *out, const float *x); /* 32 numbers */
typedef void matmul_gate_fn(float *gate, const float *up, size_t n); /* gate = silu(gate) * up; n is a multiple of 16 */

#define DECLARE_TYPE(type, isa, ...) matmul_panel_fn matmul_##type##_##isa;
#define DECLARE(isa, flag)                                               \
    WEIGHT_TYPES(DECLARE_TYPE, isa) WEIGHT_FLOATS(DECLARE_TYPE, isa)     \
    matmul_round_fn matmul_round_##isa;                                  \
    matmul_gate_fn matmul_gate_##isa;
MATMUL_ISAS(DECLARE)
#undef DECLARE
#undef DECLARE_TYPE

struct matmul_kernels {
    const char *isa;
    uint32_t isa_flag; /* AURA_ISA_... */
#define FIELD(type, ...) matmul_panel_fn *type;
    WEIGHT_TYPES(FIELD, any) WEIGHT_FLOATS(FIELD, any)
#undef FIELD
    matmul_round_fn *round;
    matmul_gate_fn *gate;
};

/* One entry for each row of MATMUL_ISAS, worst first. The functions of another architecture are NULL. */
extern const struct matmul_kernels matmul_list[];
extern const size_t matmul_count;

#endif
