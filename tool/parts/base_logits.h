/* The exact logits of a text, chunk by chunk, in a file. Other caches are compared with them. A file holds the chunks from the
 * first on and only grows: after an interruption the next run continues behind the last complete chunk.
 *
 *     struct base_key, u32 crc      the header
 *     f32 [rows][vocab], u32 crc    a chunk, again and again
 *
 * Logits are stored as f32, so nothing is lost: a position has 4 * vocab bytes. Checksums are CRC32C; numbers are little-endian. */
#ifndef AURA_BASE_LOGITS_H
#define AURA_BASE_LOGITS_H

#include <stddef.h>
#include <stdint.h>

enum { BASE_ERROR_BYTES = 256 };

/* What the logits belong to. A file with another key is refused. */
struct base_key {
    char magic[8];
    uint64_t model_bytes, tokens; /* of the model's file; of the whole text */
    uint32_t model_crc, tokens_crc;
    uint32_t vocab, ctx, rows;    /* rows: positions of a chunk that are compared */
    uint32_t isas;                /* the instruction sets that computed them: another order of sums gives other logits */
    uint32_t rounded;             /* 1: products rounded their vectors to bytes */
    char version[12];             /* of aura: another version may sum in another order */
};
#define BASE_MAGIC "AURABAS1"

struct base;

/* Opens a file, or makes it where there is none. path NULL: a temporary file, which holds the last chunk only. One program at a
 * time may have it open. 0 when good; otherwise 1, with a text: the file is in use, is no file of logits, or belongs to another
 * model, text or setting. */
int base_open(const char *path, const struct base_key *key, struct base **base, char error[BASE_ERROR_BYTES]);
void base_close(struct base *base); /* NULL is allowed */

/* How many complete chunks the file has. */
uint32_t base_chunks(const struct base *base);

/* Appends rows to the chunk behind the complete ones, any number up to its last row, which completes it. 0 when good; otherwise 1,
 * with a text. */
int base_add(struct base *base, const float *logits, uint32_t rows, char error[BASE_ERROR_BYTES]);

/* 0 when the checksum of a chunk is right; otherwise 1, with a text. */
int base_check(struct base *base, uint32_t chunk, char error[BASE_ERROR_BYTES]);

/* Reads a row of a chunk. 0 when good; otherwise 1, with a text. */
int base_read(struct base *base, uint32_t chunk, uint32_t row, float *logits, char error[BASE_ERROR_BYTES]);

#endif
