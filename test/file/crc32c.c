/* The checksum of stored files, by tables and by the CPU's instruction. */
#include "../../src/file/crc32c.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura.h"
#include "../test.h"

/* From the catalogue of CRC algorithms (the check value), and RFC 3720, B.4. */
static void published_values(void)
{
    uint8_t zeros[32] = {0}, ones[32], up[32], down[32];
    uint32_t isas[2] = {AURA_ISA_REF, aura_cpu_isas()};
    for (int i = 0; i < 32; i++)
        ones[i] = 0xff, up[i] = (uint8_t)i, down[i] = (uint8_t)(31 - i);
    for (int i = 0; i < 2; i++) {
        EXPECT(aura_crc32c(0, "123456789", 9, isas[i]) == 0xe3069283u, "isas %u", isas[i]);
        EXPECT(aura_crc32c(0, zeros, 32, isas[i]) == 0x8a9136aau, "isas %u", isas[i]);
        EXPECT(aura_crc32c(0, ones, 32, isas[i]) == 0x62a8ab43u, "isas %u", isas[i]);
        EXPECT(aura_crc32c(0, up, 32, isas[i]) == 0x46dd794eu, "isas %u", isas[i]);
        EXPECT(aura_crc32c(0, down, 32, isas[i]) == 0x113fdb5cu, "isas %u", isas[i]);
        EXPECT(aura_crc32c(7, zeros, 0, isas[i]) == 7, "no bytes change nothing");
    }
}

/* One bit at a time: the definition. */
static uint32_t slow(uint32_t crc, const uint8_t *data, size_t bytes)
{
    crc = ~crc;
    for (size_t i = 0; i < 8 * bytes; i++) {
        uint32_t bit = (crc ^ (uint32_t)(data[i / 8] >> i % 8)) & 1;
        crc = crc >> 1 ^ (bit ? 0x82f63b78u : 0);
    }
    return ~crc;
}

/* Every length and alignment, in one piece and in two. */
static void equal_on_all_paths(void)
{
    enum { MOST = 200 };
    uint8_t *data = malloc(MOST + 8);
    for (int i = 0; i < MOST + 8; i++)
        data[i] = (uint8_t)(i * 151 + i * i * 7 + 3);
    for (size_t start = 0; start < 8; start++)
        for (size_t n = 0; n < MOST; n += 1 + n / 40) {
            uint32_t want = slow(5, data + start, n), half = slow(5, data + start, n / 3);
            for (int i = 0; i < 2; i++) {
                uint32_t isas = i ? aura_cpu_isas() : AURA_ISA_REF;
                EXPECT(aura_crc32c(5, data + start, n, isas) == want, "%zu bytes at %zu, isas %u", n, start, isas);
                EXPECT(aura_crc32c(half, data + start + n / 3, n - n / 3, isas) == want, "%zu bytes in two, isas %u", n, isas);
            }
        }
    free(data);
}

int main(void)
{
    RUN(published_values);
    RUN(equal_on_all_paths);
    return test_result();
}
