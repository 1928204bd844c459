/* The checksum of stored files: CRC32C (Castagnoli; polynomial 0x1edc6f41, reflected), as iSCSI, ext4 and Btrfs use it. */
#ifndef AURA_CRC32C_H
#define AURA_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Continues a checksum: crc is that of the bytes before these, 0 where there are none. `isas` says which instruction sets it
 * may use, as ctx->isas does; the result is the same with any. */
uint32_t aura_crc32c(uint32_t crc, const void *data, size_t bytes, uint32_t isas);

#endif
