/* A group of query heads that attend to one KV head: the data flow of every attention function over rows. */
#ifndef AURA_GROUP_H
#define AURA_GROUP_H

#include "../base/not_finite.h"

enum {
    AURA_GROUP = 8,  /* query heads that share one pass over the rows; larger groups take several */
    AURA_BLOCK = 64  /* tokens between two updates of the running maximum: 4 KiB of scores and weights */
};

/* The keys or the values of one KV head. */
struct aura_source {
    uint32_t kind, dim;     /* bits, or AURA_ROW_F32 ...; of values the dim may be any */
    const uint8_t *rows;    /* token 0 */
    size_t row_stride;      /* bytes */
    const void *norms;      /* [token][parts], or NULL: all 1 */
    aura_dtype norm_dtype;
    uint32_t parts;         /* 1, or 2: each half of a row has its own norm */
    float norm_factor;      /* every norm is multiplied with it */
    float centroid[256];    /* of every code; a shorter table repeats */
};

/* The kind of a row of plain numbers. */
static inline uint32_t aura_row_kind(aura_dtype dtype)
{
    return dtype == AURA_F32 ? AURA_ROW_F32 : dtype == AURA_F16 ? AURA_ROW_F16 : AURA_ROW_BF16;
}

/* About 70 KiB: one lives on the stack of each call. */
struct aura_group {
    const struct aura_kernels *kernels;
    size_t heads, q_stride, stride; /* floats from head to head in q, in acc */
    uint32_t k_dim, dim;            /* of queries; of the output */
    float scale, softcap;   /* logit = scale * dot, then softcap * tanh(logit / softcap) unless softcap is 0 */
    float max[AURA_GROUP], sum[AURA_GROUP];
    float weight[AURA_GROUP * AURA_BLOCK], product[AURA_GROUP * AURA_BLOCK], norm[AURA_BLOCK];
    float q[AURA_GROUP * AURA_MAX_DIM], acc[AURA_GROUP * AURA_MAX_DIM];
};

void aura_group_init(struct aura_group *group, const aura_ctx *ctx, uint32_t k_dim, uint32_t v_dim, size_t heads);

/* Query heads of one KV head, AURA_GROUP at a time: which heads make group i, and how many groups there are. */
struct aura_heads {
    size_t first, heads, kv;
};
static inline size_t aura_head_groups(size_t q_heads, size_t kv_heads)
{
    return kv_heads * ((q_heads / kv_heads + AURA_GROUP - 1) / AURA_GROUP);
}
static inline struct aura_heads aura_heads_of(size_t q_heads, size_t kv_heads, size_t i)
{
    size_t ratio = q_heads / kv_heads, of_kv = (ratio + AURA_GROUP - 1) / AURA_GROUP, done = i % of_kv * AURA_GROUP;
    struct aura_heads h = {i / of_kv * ratio + done, ratio - done < AURA_GROUP ? ratio - done : AURA_GROUP, i / of_kv};
    return h;
}

/* Runs the items of a row function: on the context's threads, where there are enough multiplications to make it worth it. */
void aura_run_rows(const aura_ctx *ctx, double multiplications, size_t items, void (*item)(void *work, size_t i), void *work);

/* Forgets all tokens; the queries stay. */
void aura_group_clear(struct aura_group *group);

/* Row `row` of q becomes the query of head h. */
void aura_group_query(struct aura_group *group, size_t h, const void *q, aura_dtype dtype, size_t row);

/* Adds tokens [first, end). */
void aura_group_attend(struct aura_group *group, const struct aura_source *keys, const struct aura_source *values,
                       uint64_t first, uint64_t end);

/* Two of the three steps of aura_group_attend(), for n <= AURA_BLOCK tokens from t on. Score writes logits to group->weight
 * [heads][AURA_BLOCK]; value adds the values, by the weights there, to group->acc. */
void aura_group_score(struct aura_group *group, const struct aura_source *keys, uint64_t t, size_t n);
void aura_group_value(struct aura_group *group, const struct aura_source *values, uint64_t t, size_t n);

/* Adds a learned sink to head h. */
void aura_group_sink(struct aura_group *group, size_t h, float sink);

/* out[dim] = the normalised row of head h, 0 where it has seen no token; *lse, where not NULL, its log-sum-exp.
 * Returns 1 when the row is not finite; it is NaN then. */
int aura_group_finish(float *out, float *lse, const struct aura_group *group, size_t h);

#endif
