/* What caches of others return, to compare with. Of llama.cpp: f16, and its block formats with its rotation. By the definitions of
 * their papers: KIVI with 2 bits, and TurboQuant without its residual, that is a rotation and Lloyd-Max levels. Only the error of
 * stored values is here, not what their attention adds (llama.cpp's: queries rounded to 8 bits, sums in f16). */
#ifndef AURA_PEER_QUANT_H
#define AURA_PEER_QUANT_H

#include <stddef.h>
#include <stdint.h>

enum { PEER_BLOCK = 32 }; /* numbers that share a scale; a head dim must be a multiple of it */

struct peer {
    const char *name; /* as llama.cpp's --cache-type-k has it, or a paper's with its bits */
    double bits;      /* per value, without what a vector has besides */
    double row_bits;  /* per vector: its norm */
    void (*block)(const float x[PEER_BLOCK], float out[PEER_BLOCK]); /* store and load; out may be x. NULL: levels */
    int rotated;      /* whether llama.cpp rotates what it stores in this type */
    int by_channel;   /* blocks of keys are a channel of 32 tokens, not 32 channels of a token */
    uint32_t levels;  /* bits of the Lloyd-Max levels of a vector's numbers */
    const char *family;
};

extern const struct peer peers[]; /* the last one has no name */

/* Per value of heads of this dim, all included. */
double peer_bits(const struct peer *peer, uint32_t dim);

/* NULL: there is no such type. */
const struct peer *peer_find(const char *name);

enum peer_side { PEER_KEYS, PEER_VALUES };

/* How many numbers of a head llama.cpp rotates together. 0: it does not rotate heads of this dim. */
uint32_t peer_rotation(uint32_t dim, enum peer_side side);

/* Replaces keys or values, x[tokens][heads][dim], by what the cache would return. dim is a multiple of PEER_BLOCK. Blocks by
 * channel begin at token 0, and the last one may have fewer tokens. */
void peer_store(const struct peer *peer, enum peer_side side, uint32_t heads, uint32_t dim, size_t tokens, float *x);

#endif
