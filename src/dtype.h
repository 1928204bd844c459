/* f16 and bf16 to f32 and back, in integer arithmetic: exact widening, narrowing to nearest even. */
#ifndef AURA_DTYPE_H
#define AURA_DTYPE_H

#include <stdint.h>
#include <string.h>

#include "../include/aura.h"

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

static inline float aura_f32_from_f16(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000) << 16, exponent = (h >> 10) & 31, mantissa = h & 0x3ff;
    if (exponent == 31)
        return aura_f32_from_bits(sign | 0x7f800000 | mantissa << 13);
    if (exponent == 0) { /* zero or subnormal: mantissa * 2^-24, exact in f32 */
        float x = (float)mantissa * 0x1p-24f;
        return sign ? -x : x;
    }
    return aura_f32_from_bits(sign | (exponent + 112) << 23 | mantissa << 13);
}

static inline uint16_t aura_f16_from_f32(float x)
{
    uint32_t bits = aura_f32_bits(x), magnitude = bits & 0x7fffffff;
    uint16_t sign = (uint16_t)(bits >> 16 & 0x8000);
    if (magnitude > 0x7f800000)
        return sign | 0x7e00; /* NaN */
    if (magnitude >= 0x477ff000)
        return sign | 0x7c00; /* 65520 and above round to infinity */
    if (magnitude < 0x38800000) { /* below 2^-14: adding 0.5 leaves the 24th binary place as the last, rounded right */
        uint32_t rounded = aura_f32_bits(aura_f32_from_bits(magnitude) + 0.5f);
        return sign | (uint16_t)(rounded - 0x3f000000);
    }
    return sign | (uint16_t)((magnitude + 0xfff + (magnitude >> 13 & 1) - 0x38000000) >> 13);
}

static inline float aura_f32_from_bf16(uint16_t h)
{
    return aura_f32_from_bits((uint32_t)h << 16);
}

static inline uint16_t aura_bf16_from_f32(float x)
{
    uint32_t bits = aura_f32_bits(x);
    if ((bits & 0x7fffffff) > 0x7f800000)
        return (uint16_t)(bits >> 16 | 0x40); /* NaN stays NaN */
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
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

/* n elements from element `first` on. */
static inline void aura_load_row(float *x, const void *array, aura_dtype dtype, size_t first, size_t n)
{
    for (size_t i = 0; i < n; i++)
        x[i] = aura_load(array, dtype, first + i);
}

static inline void aura_store_row(void *array, aura_dtype dtype, size_t first, const float *x, size_t n)
{
    for (size_t i = 0; i < n; i++)
        aura_store(array, dtype, first + i, x[i]);
}

#endif
