/* Argument checks: public functions find here what a caller can get wrong, before they write anything. Each check returns
 * AURA_OK or fails with a message that names the call and the argument. */
#ifndef AURA_ARGUMENTS_H
#define AURA_ARGUMENTS_H

#include "../../include/aura_rows.h"
#include "context.h"

/* The public function that runs: its name begins every message, and its context logs them. */
struct aura_call {
    const aura_ctx *ctx;
    const char *name;
};

enum { AURA_MOST_LAYERS = 1 << 16 }; /* of a model */

/* Memory that no cache counts, aligned to 64. Fails: AURA_OUT_OF_MEMORY, and *memory is then NULL. */
aura_status aura_take_memory(struct aura_call call, size_t bytes, void **memory);
void aura_give_memory(const aura_ctx *ctx, void *memory, size_t bytes); /* NULL is allowed */

/* Memory that the caller owns: `rows` rows of `width` elements. */
struct aura_extent {
    const char *what;
    const void *data;
    size_t element;             /* bytes */
    size_t width, stride, rows; /* elements of a row; from row to row; how many */
};

aura_status aura_check_call(struct aura_call call, const void *args, size_t known_size);
aura_status aura_check_dtype(struct aura_call call, const char *what, aura_dtype dtype);
aura_status aura_check_dim(struct aura_call call, uint32_t dim);
aura_status aura_check_rows(struct aura_call call, const struct aura_extent *extent);
aura_status aura_check_apart(struct aura_call call, const struct aura_extent *a, const struct aura_extent *b);
aura_status aura_check_rotation(struct aura_call call, const aura_rotation *rotation, uint32_t dim);
aura_status aura_check_rotation_shape(struct aura_call call, const aura_rotation *rotation, uint32_t dim); /* not its numbers */
aura_status aura_check_codebook(struct aura_call call, const aura_codebook *book);

/* That no two vectors overlap, so that they can be written to; their extent was checked. */
aura_status aura_check_view_apart(struct aura_call call, const char *what, const aura_input *v, size_t tokens,
                                  uint32_t heads, uint32_t dim);

/* Heads above 0, and the same number of query heads for every KV head. */
aura_status aura_check_heads(struct aura_call call, uint32_t q_heads, uint32_t kv_heads);

/* Dims and kinds that a cache can have: dims up to the largest of variants.h, and its kinds. */
aura_status aura_check_cache_dim(struct aura_call call, const char *what, uint32_t dim);
aura_status aura_check_cache_dims(struct aura_call call, uint32_t k_dim, uint32_t v_dim);
aura_status aura_check_format(struct aura_call call, aura_format format);

/* Factors on keys, [kv_heads][k_dim]: each within 1/8 to 8. */
aura_status aura_check_balance(struct aura_call call, const float *balance, uint32_t kv_heads, uint32_t k_dim);

/* A view that can be read from: not NULL, of a known type, aligned to its elements. */
aura_status aura_check_view(struct aura_call call, const char *what, const aura_input *view);

/* A view that passed aura_check_view(), of [tokens][heads][dim]: every offset in it can be computed. */
aura_status aura_check_view_extent(struct aura_call call, const char *what, const aura_input *view, size_t tokens,
                                   uint32_t heads, uint32_t dim);

/* |stride| without the overflow of -PTRDIFF_MIN. */
static inline size_t aura_magnitude(ptrdiff_t stride)
{
    return stride < 0 ? (size_t)0 - (size_t)stride : (size_t)stride;
}

/* A product of sizes. Where it does not fit: SIZE_MAX, which aura_check_rows() refuses. */
static inline size_t aura_times(size_t a, size_t b)
{
    return b && a > SIZE_MAX / b ? SIZE_MAX : a * b;
}

#endif
