/* Half precision of the emulated device, by the library's own conversions. */
#ifndef AURA_EMULATE_CUDA_FP16_H
#define AURA_EMULATE_CUDA_FP16_H

#include "cuda_runtime.h"

#define restrict __restrict
extern "C" {
#include "../../../src/base/dtype.h"
}
#undef restrict

struct __half { uint16_t bits; };
struct alignas(4) __half2 { __half x, y; };
static inline float __half2float(__half h) { return aura_f32_from_f16(h.bits); }
static inline __half __float2half_rn(float x) { return {aura_f16_from_f32(x)}; }
static inline __half __float2half(float x) { return __float2half_rn(x); }
static inline __half __ushort_as_half(unsigned short bits) { return {bits}; }
static inline unsigned short __half_as_ushort(__half h) { return h.bits; }
static inline __half2 __floats2half2_rn(float x, float y) { return {__float2half_rn(x), __float2half_rn(y)}; }
static inline float __low2float(__half2 h) { return __half2float(h.x); }
static inline float __high2float(__half2 h) { return __half2float(h.y); }
static inline __half2 __hsub2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__low2float(a) - __low2float(b), __high2float(a) - __high2float(b));
}
static inline __half2 __hmul2(__half2 a, __half2 b)
{
    return __floats2half2_rn(__low2float(a) * __low2float(b), __high2float(a) * __high2float(b));
}
static inline __half2 __hfma2(__half2 a, __half2 b, __half2 c)
{
    return __floats2half2_rn(fmaf(__low2float(a), __low2float(b), __low2float(c)),
                             fmaf(__high2float(a), __high2float(b), __high2float(c)));
}

#endif
