/* A tensor that the caller owns, [token][head][dim] with strides, read and written a vector at a time. */
#ifndef AURA_VIEW_H
#define AURA_VIEW_H

#include "dtype.h"

/* Elements from token to token and from head to head; may be negative. */
struct aura_strides {
    ptrdiff_t token, head;
};

/* Strides with their defaults: from head to head dim, from token to token all heads. So a head stride alone describes padded
 * vectors; a head-major tensor needs both strides. */
static inline struct aura_strides aura_view_strides(const aura_view *v, uint32_t heads, uint32_t dim)
{
    struct aura_strides s = {v->token_stride, v->head_stride ? v->head_stride : (ptrdiff_t)dim};
    if (!s.token)
        s.token = (s.head < 0 ? -s.head : s.head) * (ptrdiff_t)heads;
    return s;
}

/* The first element of a vector. */
static inline void *aura_view_row(const aura_view *v, struct aura_strides s, size_t token, uint32_t head)
{
    ptrdiff_t element = v->dtype == AURA_F32 ? 4 : 2;
    return (char *)v->data + ((ptrdiff_t)token * s.token + (ptrdiff_t)head * s.head) * element;
}

static inline void aura_view_load(float *x, const aura_view *v, struct aura_strides s, size_t token, uint32_t head,
                                  uint32_t dim)
{
    aura_load_row(x, aura_view_row(v, s, token, head), v->dtype, 0, dim);
}

static inline void aura_view_store(const aura_view *v, struct aura_strides s, size_t token, uint32_t head, const float *x,
                                   uint32_t dim)
{
    aura_store_row(aura_view_row(v, s, token, head), v->dtype, 0, x, dim);
}

#endif
