/* Float modes that a caller may run in, and how to enter them. */
#ifndef AURA_TEST_MODES_H
#define AURA_TEST_MODES_H

#if defined(__x86_64__)
#include <xmmintrin.h>
enum { N_MODES = 3 };
static const unsigned modes[N_MODES] = {0x9fc0, 0x1f80 | 0x6000, 0x1f80 | 0x2000}; /* flush to zero; toward 0; down */
static unsigned long mode_get(void) { return _mm_getcsr() & 0xffc0; }
static void mode_set(unsigned long mode) { _mm_setcsr((unsigned)mode); }
#elif defined(__aarch64__)
enum { N_MODES = 3 };
static const unsigned modes[N_MODES] = {1u << 24, 3u << 22, 2u << 22};
static unsigned long mode_get(void)
{
    unsigned long mode;
    __asm__ volatile("mrs %0, fpcr" : "=r"(mode));
    return mode;
}
static void mode_set(unsigned long mode) { __asm__ volatile("msr fpcr, %0" : : "r"(mode)); }
#endif

#endif
