/* CRC32C: the CPU's own instruction where there is one, tables otherwise. */
#include "../base/exact.h"
#include "crc32c.h"

#include <string.h>

#include "../../include/aura.h"

/* entry[0][i] is the checksum that byte i leaves, entry[k][i] the same with k zero bytes after it: eight bytes take eight
 * independent look-ups. Every call makes the tables again, because callers give many bytes at once. */
struct tables {
    uint32_t entry[8][256];
};

static void make_tables(struct tables *t)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t crc = i;
        for (int bit = 0; bit < 8; bit++)
            crc = crc >> 1 ^ (crc & 1 ? 0x82f63b78u : 0);
        t->entry[0][i] = crc;
    }
    for (int k = 1; k < 8; k++)
        for (uint32_t i = 0; i < 256; i++)
            t->entry[k][i] = t->entry[k - 1][i] >> 8 ^ t->entry[0][t->entry[k - 1][i] & 255];
}

static uint32_t by_tables(uint32_t crc, const uint8_t *at, size_t bytes)
{
    struct tables t;
    make_tables(&t);
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        word ^= crc;
        crc = 0;
        for (int k = 0; k < 8; k++)
            crc ^= t.entry[7 - k][word >> 8 * k & 255];
    }
    for (; bytes; at++, bytes--)
        crc = crc >> 8 ^ t.entry[0][(crc ^ *at) & 255];
    return crc;
}

/* The instruction comes with sets that a context knows: SSE4.2 with AVX2, the CRC extension, mandatory since ARMv8.1, with
 * the dot products of ARMv8.2. */
#if defined(__x86_64__)
#include <nmmintrin.h>
enum { WITH_INSTRUCTION = AURA_ISA_AVX2 };
AURA_TARGET("sse4.2")
AURA_INLINE uint32_t crc_of_eight(uint32_t crc, uint64_t word)
{
    return (uint32_t)_mm_crc32_u64(crc, word);
}
AURA_INLINE uint32_t crc_of_one(uint32_t crc, uint8_t byte)
{
    return _mm_crc32_u8(crc, byte);
}
#elif defined(__aarch64__)
enum { WITH_INSTRUCTION = AURA_ISA_DOTPROD };
AURA_TARGET_ARM("arch=armv8-a+crc", "crc")
AURA_INLINE uint32_t crc_of_eight(uint32_t crc, uint64_t word) /* clang before 16 has no intrinsic for it here */
{
    __asm__("crc32cx %w0, %w0, %1" : "+r"(crc) : "r"(word));
    return crc;
}
AURA_INLINE uint32_t crc_of_one(uint32_t crc, uint8_t byte)
{
    __asm__("crc32cb %w0, %w0, %w1" : "+r"(crc) : "r"(byte));
    return crc;
}
#endif

#if defined(__x86_64__) || defined(__aarch64__)
static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t bytes)
{
    for (; bytes >= 8; at += 8, bytes -= 8) {
        uint64_t word;
        memcpy(&word, at, sizeof word);
        crc = crc_of_eight(crc, word);
    }
    for (; bytes; at++, bytes--)
        crc = crc_of_one(crc, *at);
    return crc;
}
AURA_TARGET_END
#else
enum { WITH_INSTRUCTION = 0 };
static uint32_t by_instruction(uint32_t crc, const uint8_t *at, size_t bytes)
{
    return by_tables(crc, at, bytes);
}
#endif

uint32_t aura_crc32c(uint32_t crc, const void *data, size_t bytes, uint32_t isas)
{
    return ~(isas & WITH_INSTRUCTION ? by_instruction(~crc, data, bytes) : by_tables(~crc, data, bytes));
}
