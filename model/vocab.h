/* A vocabulary: the tokens of a GGUF file, found by their text, by the two that merge into them, and by the byte they stand for. */
#ifndef AURA_VOCAB_H
#define AURA_VOCAB_H

#include "gguf.h"

#define NO_TOKEN UINT32_MAX

enum token_type { /* numbers as in the file */
    TOKEN_UNDEFINED = 0,
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4, /* stands for its name, wherever that is in a text */
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

struct vocab_merge {
    uint32_t left, right, token; /* left is NO_TOKEN in an empty entry */
    uint32_t rank;
};

struct vocab {
    int byte_level;                  /* texts are bytes written as characters; otherwise spaces are written as U+2581 */
    uint32_t size;
    const struct gguf_value *texts;  /* of the file */
    uint8_t *type;                   /* [size]: enum token_type */
    float *score;                    /* [size]; NULL where the file has none */
    char *bytes;                     /* what tokens stand for: token i from begin[i] to begin[i + 1] */
    size_t *begin;
    size_t longest;                  /* text */
    uint32_t byte_token[256];        /* or NO_TOKEN */
    uint32_t *slot;                  /* texts: a hash table of tokens */
    struct vocab_merge *merge;       /* pairs: a hash table */
    uint64_t slot_mask, merge_mask;
};

/* 0 when good; otherwise 1, with a text. In both cases the caller calls vocab_free(). */
int vocab_read(struct vocab *vocab, const struct gguf *file, int byte_level, char error[GGUF_ERROR_BYTES]);
void vocab_free(struct vocab *vocab);

/* The token with that text, written as in the file; or NO_TOKEN. */
uint32_t vocab_find(const struct vocab *vocab, const char *text, size_t size);

/* What two tokens merge into; NULL: they do not. */
const struct vocab_merge *vocab_merge(const struct vocab *vocab, uint32_t left, uint32_t right);

/* The character that stands for a byte in a byte-level text: 1 or 2 bytes. */
size_t vocab_write_byte(uint8_t byte, char out[2]);

#endif
