/* The exact logits of a text, chunk by chunk, in a file: what other caches are compared with. A file holds chunks from the first
 * on. It only grows, so that one whose making was interrupted is continued where the last whole chunk ends.
 *
 *     struct base_key, u32 crc      the header
 *     f32 [rows][vocab], u32 crc    a chunk, as often as it was computed
 *
 * Logits are kept as they are, so nothing is lost: 4 vocab bytes a position. CRC32C; numbers as the machine has them. */
#ifndef AURA_BASE_LOGITS_H
#define AURA_BASE_LOGITS_H

#include <stddef.h>
#include <stdint.h>

enum { BASE_ERROR_BYTES = 256 };

/* What the logits are of. Files of any other are refused. */
struct base_key {
    char magic[8];
    uint64_t model_bytes, tokens; /* of the model's file; of the whole text */
    uint32_t model_crc, tokens_crc;
    uint32_t vocab, ctx, rows;    /* rows: positions of a chunk that are compared */
    uint32_t isas;                /* that computed them: sums in another order are other logits */
    uint32_t rounded;             /* 1: with products on bytes */
    char version[12];             /* of aura: its sums may be in another order too */
};
#define BASE_MAGIC "AURABAS1"

struct base;

/* Opens a file, or makes it where there is none. path NULL: a temporary one, which holds the last chunk only. Only one program
 * at a time may have it open. 0 when good; otherwise 1, with a text: not such a file, of another model, text or setting, in use. */
int base_open(const char *path, const struct base_key *key, struct base **base, char error[BASE_ERROR_BYTES]);
void base_close(struct base *base); /* NULL is allowed */

/* Whole chunks that it has. */
uint32_t base_chunks(const struct base *base);

/* The next rows of the chunk after these, any number that belongs to it; with the last of them it is whole. 0 when good;
 * otherwise 1, with a text. */
int base_add(struct base *base, const float *logits, uint32_t rows, char error[BASE_ERROR_BYTES]);

/* 0 when all bytes of a chunk are as they were written; otherwise 1, with a text. */
int base_check(struct base *base, uint32_t chunk, char error[BASE_ERROR_BYTES]);

/* A row of a chunk. 0 when good; otherwise 1, with a text. */
int base_read(struct base *base, uint32_t chunk, uint32_t row, float *logits, char error[BASE_ERROR_BYTES]);

#endif
