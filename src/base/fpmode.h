/* The float environment of a public call. A caller may run with flush-to-zero, another rounding mode or unmasked
 * exceptions (audio and game engines do); stored bytes must not depend on that. */
#ifndef AURA_FPMODE_H
#define AURA_FPMODE_H

#include <stdint.h>

#if defined(__x86_64__)
#include <xmmintrin.h>
static inline uint64_t aura_fpmode_enter(void)
{
    uint64_t old = _mm_getcsr();
    _mm_setcsr(0x1f80); /* round to nearest, denormals kept, all exceptions masked */
    return old;
}
static inline void aura_fpmode_leave(uint64_t old)
{
    _mm_setcsr((unsigned)old);
}
#elif defined(__aarch64__)
static inline uint64_t aura_fpmode_enter(void)
{
    uint64_t old;
    __asm__ volatile("mrs %0, fpcr" : "=r"(old));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return old;
}
static inline void aura_fpmode_leave(uint64_t old)
{
    __asm__ volatile("msr fpcr, %0" : : "r"(old));
}
#else
#include <fenv.h>
static inline uint64_t aura_fpmode_enter(void)
{
    uint64_t old = (uint64_t)fegetround();
    fesetround(FE_TONEAREST);
    return old;
}
static inline void aura_fpmode_leave(uint64_t old)
{
    fesetround((int)old);
}
#endif

#endif
