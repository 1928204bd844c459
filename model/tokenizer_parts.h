/* What a tokenizer is made of: for tokenizer.c, which reads it out of a file, and encode.c, which uses it. */
#ifndef AURA_TOKENIZER_PARTS_H
#define AURA_TOKENIZER_PARTS_H

#include "pretoken.h"
#include "tokenizer.h"
#include "vocab.h"

/* A token that is found in a text by its name. */
struct special {
    struct gguf_text name;
    uint32_t token;
    int control; /* its name counts only where the caller says special = 1 */
};

struct tokenizer {
    struct vocab vocab;
    enum pretoken_rule rule;
    int whole_words;            /* a word that is a token is that token, whatever merges would give */
    int space_first;            /* SentencePiece: a space goes before a text, and before what follows a special token */
    int add_bos, add_eos;
    uint32_t bos, eos, unknown; /* or NO_TOKEN */
    uint8_t *ends;              /* [vocab.size] */
    struct special *special;    /* the longest name first */
    size_t specials;
    uint8_t begins[256];        /* 1: the name of a special token begins with that byte */
};

#endif
