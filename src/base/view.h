/* A tensor that the caller owns, [token][head][dim] with strides or a list of rows, read and written a vector at a time. */
#ifndef AURA_VIEW_H
#define AURA_VIEW_H

#include "dtype.h"

/* Elements from token to token and from head to head; may be negative. */
struct aura_strides {
    ptrdiff_t token, head;
};

/* Strides with their defaults: from head to head dim, from token to token all heads. So a head stride alone describes padded
 * vectors; a head-major tensor needs both strides. */
static inline struct aura_strides aura_view_strides(const aura_input *v, uint32_t heads, uint32_t dim)
{
    struct aura_strides s = {v->token_stride, v->head_stride ? v->head_stride : (ptrdiff_t)dim};
    if (!s.token)
        s.token = (s.head < 0 ? -s.head : s.head) * (ptrdiff_t)heads;
    return s;
}

/* Where an output is, for checks and strides. */
static inline aura_input aura_place_of(const aura_view *v)
{
    aura_input in = {v->data, v->dtype, v->token_stride, v->head_stride, v->rows};
    return in;
}

/* From data to the first element of a vector, in bytes. */
static inline ptrdiff_t aura_view_at(aura_dtype dtype, const uint32_t *rows, struct aura_strides s, size_t token, uint32_t head)
{
    ptrdiff_t element = dtype == AURA_F32 ? 4 : 2, row = rows ? (ptrdiff_t)rows[token] : (ptrdiff_t)token;
    return (row * s.token + (ptrdiff_t)head * s.head) * element;
}

/* Where a vector begins that the caller gave. */
static inline const void *aura_view_place(const aura_input *v, struct aura_strides s, size_t token, uint32_t head)
{
    return (const char *)v->data + aura_view_at(v->dtype, v->rows, s, token, head);
}

static inline void aura_view_load(float *x, const aura_input *v, struct aura_strides s, size_t token, uint32_t head,
                                  uint32_t dim)
{
    aura_load_row(x, (const char *)v->data + aura_view_at(v->dtype, v->rows, s, token, head), v->dtype, 0, dim);
}

static inline void aura_view_store(const aura_view *v, struct aura_strides s, size_t token, uint32_t head, const float *x,
                                   uint32_t dim)
{
    aura_store_row((char *)v->data + aura_view_at(v->dtype, v->rows, s, token, head), v->dtype, 0, x, dim);
}

#endif
