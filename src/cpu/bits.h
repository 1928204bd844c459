/* Eight codes of one byte each to and from a packed stream, inside one 64-bit word: pairs are pushed together, then
 * pairs of pairs, then the halves. BMI2's pext and pdep do it in one instruction, which
 * avx512.h uses; on older CPUs they are microcoded, and ARM has no such thing. */
#ifndef AURA_CPU_BITS_H
#define AURA_CPU_BITS_H

#include <stdint.h>
#include <string.h>

/* `bits` bytes, 8 codes, and not one more: two loads that overlap. A memcpy of 5 or 6 bytes goes through memory in gcc 12,
 * and the load after it waits for both stores. */
static inline uint64_t bits_load8(const uint8_t *p, const int bits)
{
    uint32_t lo = 0, hi = 0;
    const int size = bits < 4 ? 2 : 4;
    memcpy(&lo, p, (size_t)size);
    memcpy(&hi, p + bits - size, (size_t)size);
    return lo | (uint64_t)hi << 8 * (bits - size);
}

static inline uint64_t bits_pack8(uint64_t bytes, const int bits)
{
    uint64_t x = bytes;
    x = (x & 0x00ff00ff00ff00ff) | (x & 0xff00ff00ff00ff00) >> (8 - bits);
    x = (x & 0x0000ffff0000ffff) | (x & 0xffff0000ffff0000) >> (16 - 2 * bits);
    x = (x & 0x00000000ffffffff) | (x & 0xffffffff00000000) >> (32 - 4 * bits);
    return x;
}

static inline uint64_t bits_unpack8(uint64_t packed, const int bits)
{
    const uint64_t half = ((uint64_t)1 << 4 * bits) - 1, pair = (((uint64_t)1 << 2 * bits) - 1) * 0x0000000100000001;
    const uint64_t one = (((uint64_t)1 << bits) - 1) * 0x0001000100010001;
    uint64_t x = packed;
    x = (x & half) | (x >> 4 * bits & half) << 32;
    x = (x & pair) | (x >> 2 * bits & pair) << 16;
    x = (x & one) | (x >> bits & one) << 8;
    return x;
}

#endif
