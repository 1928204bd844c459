/* What the KV cache of llama.cpp returns, to compare with: f16, and its block formats with its rotation. Only the error of stored
 * values is here, not what its attention adds (queries rounded to 8 bits, sums in f16). */
#ifndef AURA_PEER_QUANT_H
#define AURA_PEER_QUANT_H

#include <stddef.h>
#include <stdint.h>

enum { PEER_BLOCK = 32 }; /* numbers that share a scale; a head dim must be a multiple of it */

struct peer {
    const char *name; /* as llama.cpp's --cache-type-k has it */
    double bits;      /* per value, scales included */
    void (*block)(const float x[PEER_BLOCK], float out[PEER_BLOCK]); /* store and load; out may be x */
    int rotated;      /* whether llama.cpp rotates what it stores in this type */
};

extern const struct peer peers[]; /* the last one has no name */

/* NULL: there is no such type. */
const struct peer *peer_find(const char *name);

enum peer_side { PEER_KEYS, PEER_VALUES };

/* How many numbers of a head llama.cpp rotates together. 0: it does not rotate heads of this dim. */
uint32_t peer_rotation(uint32_t dim, enum peer_side side);

/* Replaces rows of keys or values, x[rows][dim], by what the cache would return. dim is a multiple of PEER_BLOCK. */
void peer_store(const struct peer *peer, enum peer_side side, uint32_t dim, size_t rows, float *x);

#endif
