/* f16 and bf16 to f32 and back, in integer arithmetic: exact widening, narrowing to nearest even. */
#ifndef AURA_DTYPE_H
#define AURA_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "../../include/aura.h"

static inline float aura_f32_from_bits(uint32_t bits)
{
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static inline uint32_t aura_f32_bits(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* x where the condition holds, else 0, without a branch. The conversions use it, because gcc vectorises the loops over rows
 * only when there is no branch in them, nor ?: around float arithmetic. They need the float mode that every public call
 * enters: rounding to nearest, denormals kept. */
static inline uint32_t aura_if(int condition, uint32_t x)
{
    return -(uint32_t)condition & x;
}

static inline float aura_f32_from_f16(uint16_t h)
{
    int32_t magnitude = h & 0x7fff;
    uint32_t sign = (uint32_t)(h & 0x8000) << 16;
    /* The exponent counts from 127 instead of 15. Zero and subnormals get an exponent like all others, and then the
     * leading 1 that it brought is subtracted, which is exact. */
    uint32_t bits = ((uint32_t)magnitude << 13) + 0x38000000 + aura_if(magnitude < 0x0400, 0x00800000);
    float leading = aura_f32_from_bits(aura_if(magnitude < 0x0400, 0x38800000));
    bits = aura_f32_bits(aura_f32_from_bits(bits) - leading);
    return aura_f32_from_bits(sign | bits | aura_if(magnitude > 0x7bff, 0x7f800000)); /* Inf and NaN */
}

static inline uint16_t aura_f16_from_f32(float x)
{
    uint32_t bits = aura_f32_bits(x), sign = bits >> 16 & 0x8000;
    int32_t size = (int32_t)(bits & 0x7fffffff), clamped = size < 0x47800000 ? size : 0x47800000; /* 65536 */
    uint32_t nan = aura_if(size > 0x7f800000, 0x0200), c = (uint32_t)clamped;
    uint32_t normal = (c + (0xfff - 0x38000000u) + (c >> 13 & 1)) >> 13; /* 65520 and above: infinity */
    /* below 2^-14: adding 0.5 leaves the 24th binary place as the last, rounded right */
    uint32_t tiny = aura_f32_bits(aura_f32_from_bits(c) + 0.5f) - 0x3f000000;
    return (uint16_t)(sign | nan | aura_if(clamped < 0x38800000, tiny) | aura_if(clamped >= 0x38800000, normal));
}

static inline float aura_f32_from_bf16(uint16_t h)
{
    return aura_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t aura_bf16_from_f32(float x)
{
    uint32_t bits = aura_f32_bits(x);
    int nan = (int32_t)(bits & 0x7fffffff) > 0x7f800000; /* stays one, whatever its lower half was */
    return (uint16_t)((bits + aura_if(!nan, 0x7fff + (bits >> 16 & 1))) >> 16 | aura_if(nan, 0x40));
}

/* Element i of an array of the given type. */
static inline float aura_load(const void *array, aura_dtype dtype, size_t i)
{
    if (dtype == AURA_F16)
        return aura_f32_from_f16(((const uint16_t *)array)[i]);
    if (dtype == AURA_BF16)
        return aura_f32_from_bf16(((const uint16_t *)array)[i]);
    return ((const float *)array)[i];
}

static inline void aura_store(void *array, aura_dtype dtype, size_t i, float x)
{
    if (dtype == AURA_F16)
        ((uint16_t *)array)[i] = aura_f16_from_f32(x);
    else if (dtype == AURA_BF16)
        ((uint16_t *)array)[i] = aura_bf16_from_f32(x);
    else
        ((float *)array)[i] = x;
}

/* n elements from element `first` on; x must not overlap the array. The type is asked for once, not per element. */
static inline void aura_load_row(float *restrict x, const void *restrict array, aura_dtype dtype, size_t first, size_t n)
{
    if (dtype == AURA_F16)
        for (size_t i = 0; i < n; i++)
            x[i] = aura_f32_from_f16(((const uint16_t *)array)[first + i]);
    else if (dtype == AURA_BF16)
        for (size_t i = 0; i < n; i++)
            x[i] = aura_f32_from_bf16(((const uint16_t *)array)[first + i]);
    else
        for (size_t i = 0; i < n; i++)
            x[i] = ((const float *)array)[first + i];
}

static inline void aura_store_row(void *restrict array, aura_dtype dtype, size_t first, const float *restrict x, size_t n)
{
    if (dtype == AURA_F16)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)array)[first + i] = aura_f16_from_f32(x[i]);
    else if (dtype == AURA_BF16)
        for (size_t i = 0; i < n; i++)
            ((uint16_t *)array)[first + i] = aura_bf16_from_f32(x[i]);
    else
        for (size_t i = 0; i < n; i++)
            ((float *)array)[first + i] = x[i];
}

#endif
