/* A codec of somebody else's: a command that reads keys and values from a file and writes them, as they come out of its cache, to
 * another. doc/codec.md says how. */
#ifndef AURA_CODEC_H
#define AURA_CODEC_H

#include <stdint.h>

enum { CODEC_ERROR_BYTES = 256 };

/* Replaces k [tokens][heads][k_dim] and v [tokens][heads][v_dim] of a layer by what the command makes of them. *bits becomes what
 * it says a value takes; NAN: it does not say. 0 when good; otherwise 1, with a text: it cannot be started, it failed, it wrote
 * something else than tensors of these shapes, or numbers that are not finite. */
int codec_run(const char *command, uint32_t layer, uint32_t tokens, uint32_t heads, uint32_t k_dim, uint32_t v_dim, float *k,
              float *v, double *bits, char error[CODEC_ERROR_BYTES]);

/* A name for tables: the last word of the command without its folder and ending. */
void codec_name(const char *command, char name[16]);

#endif
