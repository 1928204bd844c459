/* The definition of the stages of a tile: the integers that every backend agrees on, and the floats around them. Plain loops over
 * codes, any kind of side, any dim. */
#include "base/exact.h"
#include "ref.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "trellis.h"

/* The indices of row_encode, a byte each; or a path through a trellis, ref_trellis.c. */
void aura_encode_ref(uint8_t *code, float *scale, const float *y, const struct aura_codec_plan *plan, size_t n)
{
    if (plan->trellis) {
        aura_ref_encode_trellis(code, scale, y, plan, n);
        return;
    }
    for (size_t row = 0; row < n; row++) {
        uint8_t packed[AURA_MAX_DIM];
        aura_row_encode_ref(packed, scale + row, y + row * plan->dim, plan, 1);
        for (uint32_t d = 0; d < plan->dim; d++)
            code[row * plan->dim + d] = (uint8_t)aura_ref_unpack(packed, plan->bits, d);
    }
}

void aura_pack_ref(uint32_t *words, const uint8_t *index, const struct aura_side *side)
{
    const int keys = side->lanes == AURA_TILE;
    for (uint32_t lane = 0; lane < side->lanes; lane++)
        for (uint32_t run = 0; run < side->runs; run++) {
            uint8_t code[AURA_RUN] = {0};
            uint32_t quad[8], word[8];
            for (uint32_t i = 0; i < AURA_RUN; i++) {
                const uint32_t token = keys ? lane : i, d = keys ? run * AURA_RUN + i : lane;
                if (d < side->dim)
                    code[aura_place(side, i)] = aura_code_of_index(index[(size_t)token * side->dim + d], side->kind);
            }
            memcpy(quad, code, sizeof quad);
            aura_pack_run(word, quad, side->kind);
            for (uint32_t w = 0; w < aura_bits_of(side->kind); w++)
                words[aura_word_at(side, run, w) + lane] = word[w];
        }
}

void aura_unpack_ref(float *x, const struct aura_tile *tile, uint32_t from, uint32_t to, const float *r)
{
    const struct aura_side *side = tile->side;
    const int keys = side->lanes == AURA_TILE;
    for (uint32_t t = from; t < to; t++)
        for (uint32_t d = 0; d < side->dim; d++) {
            const float level = (float)(keys ? aura_ref_level(tile, d, t) : aura_ref_level(tile, t, d));
            const float number = (side->step * level) * aura_f32_from_f16(tile->scale[t]);
            x[(size_t)(t - from) * side->dim + d] = r ? number + r[d] : number;
        }
}

void aura_widen_ref(float *x, const void *from, aura_dtype dtype, size_t n)
{
    aura_load_row(x, from, dtype, 0, n);
}

void aura_narrow_ref(void *to, const float *x, aura_dtype dtype, size_t n)
{
    aura_store_row(to, dtype, 0, x, n);
}

/* The largest coordinate becomes Q, chosen so that the sum over a vector of 7-bit levels cannot leave 32 bits. The upper
 * byte is rounded, so that hi alone is the best one-byte query. A query with no coordinate above 2^-100 has step 0 and
 * all bytes 0: its scores are 0, and no quotient here overflows. */
void aura_query_ref(struct aura_query *query, const float *y, uint32_t dim, size_t n)
{
    int32_t limit = INT32_MAX / (127 * (int32_t)dim);
    float top = (float)(limit < 32512 ? limit : 32512);
    for (size_t row = 0; row < n; row++, y += dim, query++) {
        float largest = 0;
        for (uint32_t d = 0; d < dim; d++)
            largest = fabsf(y[d]) > largest ? fabsf(y[d]) : largest;
        int tiny = largest < 0x1p-100f;
        float factor = tiny ? 0 : top / largest;
        memset(query, 0, sizeof *query);
        query->step = tiny ? 0 : largest / top;
        for (uint32_t d = 0; d < dim; d++) {
            int32_t q15 = (int32_t)lrintf(y[d] * factor), hi = (q15 + 128) >> 8;
            query->plane[0][d] = (int8_t)hi;
            query->plane[1][d] = (int8_t)(q15 - 256 * hi);
            query->sum[0] += hi;
            query->sum[1] += q15;
        }
    }
}

static int32_t query_integer(const struct aura_query *q, uint32_t d, uint32_t planes)
{
    return planes == 1 ? q->plane[0][d] : 256 * q->plane[0][d] + q->plane[1][d];
}

void aura_reference_ref(int32_t *product, const struct aura_query *query, const int8_t *code, uint32_t dim,
                        size_t n_query)
{
    for (size_t g = 0; g < n_query; g++) {
        product[g] = 0;
        for (uint32_t d = 0; d < dim; d++)
            product[g] += query_integer(&query[g], d, 2) * code[d];
    }
}

/* Code i along the packed axis, in the given lane. */
uint8_t aura_ref_code(const struct aura_tile *tile, uint32_t i, uint32_t lane)
{
    const struct aura_side *s = tile->side;
    const uint32_t place = aura_place(s, i % AURA_RUN);
    uint32_t word[8] = {0};
    for (uint32_t w = 0; w < aura_bits_of(s->kind); w++)
        word[w] = tile->words[aura_word_at(s, i / AURA_RUN, w) + lane];
    return (uint8_t)(aura_unpack_quad(word, (int)(place / 4), s->kind) >> 8 * (place % 4));
}

/* The state of a trellis: bit 0 of the codes of the three channels that follow, and 0 beyond the last. */
static uint32_t state_at(const struct aura_tile *tile, uint32_t i, uint32_t lane)
{
    const struct aura_side *s = tile->side;
    const int keys = s->lanes == AURA_TILE;
    const uint32_t end = keys ? s->runs * AURA_RUN : s->dim, at = keys ? i : lane;
    uint32_t state = 0;
    for (uint32_t k = 1; k <= 3 && at + k < end; k++)
        state |= (aura_ref_code(tile, keys ? i + k : i, keys ? lane : lane + k) & 1u) << (k - 1);
    return state;
}

int32_t aura_ref_level(const struct aura_tile *tile, uint32_t i, uint32_t lane)
{
    if (aura_is_trellis(tile->side->kind))
        return tile->side->level[aura_trellis_index(aura_ref_code(tile, i, lane), state_at(tile, i, lane))];
    return aura_level_of_code(tile->side, aura_ref_code(tile, i, lane));
}

void aura_score_ref(float *logit, const struct aura_query *query, const struct aura_tile *keys, const float *factor,
                         const float *bias, size_t n_query, size_t n_tiles)
{
    for (size_t i = 0; i < n_tiles; i++, keys++, logit += n_query * AURA_TILE, bias += n_query)
        for (size_t g = 0; g < n_query; g++)
            for (uint32_t t = 0; t < AURA_TILE; t++) {
                int32_t sum = 0;
                for (uint32_t d = 0; d < keys->side->dim; d++)
                    sum += query_integer(&query[g], d, keys->planes) * aura_ref_level(keys, d, t);
                logit[g * AURA_TILE + t] = (float)sum * (aura_f32_from_f16(keys->scale[t]) * factor[g]) + bias[g];
            }
}

/* Sums in double, rounded at the end. The integers are those of the f32 products. */
static void weights(struct aura_weight *weight, const float *p, const struct aura_scales *scales, uint32_t planes)
{
    float product[AURA_TILE], top = 0, most = planes == 1 ? 255 : 65280;
    for (uint32_t t = 0; t < AURA_TILE; t++) {
        product[t] = p[t] * aura_f32_from_f16(scales->v[t]);
        top = product[t] > top ? product[t] : top;
    }
    int none = !(top >= 0x1p-100f);
    weight->factor = none ? 0 : top * (1 / most) * scales->step;
    for (uint32_t t = 0; t < AURA_TILE; t++) {
        uint32_t w = none ? 0 : (uint32_t)lrintf(product[t] * (most / top));
        weight->plane[0][t] = (uint8_t)(planes == 1 ? w : w >> 8);
        weight->plane[1][t] = (uint8_t)(planes == 1 ? 0 : w);
    }
}

void aura_softmax_ref(struct aura_weight *weight, float *p, struct aura_softmax_row *row,
                          const struct aura_scales *scales, uint32_t planes, size_t n_query, size_t n_tiles)
{
    for (size_t g = 0; g < n_query; g++, row++) {
        float m = row->max;
        for (size_t i = 0; i < n_tiles * AURA_TILE; i++) {
            float x = p[(i / AURA_TILE * n_query + g) * AURA_TILE + i % AURA_TILE];
            m = x > m ? x : m;
        }
        float keep = m == -INFINITY ? 1 : (float)exp2((double)row->max - m);
        double sum = 0;
        for (size_t i = 0; i < n_tiles; i++) {
            float *x = p + (i * n_query + g) * AURA_TILE;
            for (uint32_t t = 0; t < AURA_TILE; t++) {
                double one = x[t] == -INFINITY ? 0 : exp2((double)x[t] - m);
                sum += one;
                x[t] = (float)one;
            }
            weight[i * n_query + g].keep = i ? 1 : keep;
            weights(&weight[i * n_query + g], x, &scales[i], planes);
        }
        for (uint32_t i = 0; i < AURA_LANES; i++)
            row->sum[i] *= keep;
        row->sum[0] += (float)sum;
        row->max = m;
    }
}

void aura_value_ref(float *acc, size_t stride, const struct aura_weight *weight, const struct aura_tile *values,
                         size_t n_query, size_t n_tiles)
{
    for (size_t g = 0; g < n_query; g++)
        for (uint32_t d = 0; d < values->side->dim; d++) {
            float o = acc[g * stride + d] * weight[g].keep;
            for (size_t i = 0; i < n_tiles; i++) {
                const struct aura_weight *one = &weight[i * n_query + g];
                int32_t sum = 0;
                for (uint32_t t = 0; t < AURA_TILE; t++) {
                    int32_t w = one->plane[0][t];
                    if (values->planes == 2)
                        w = 256 * w + one->plane[1][t];
                    sum += w * aura_ref_level(&values[i], t, d);
                }
                o = fmaf((float)sum, one->factor, o);
            }
            acc[g * stride + d] = o;
        }
}
