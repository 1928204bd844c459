/* Text into the tokens of a model and back, as its GGUF file says: byte-level BPE ("gpt2") with the pre-tokenizers smollm, gpt-2,
 * llama-bpe and qwen2, and SentencePiece ("llama"). For UTF-8 the tokens are those of llama.cpp. Other bytes this tokenizer keeps,
 * while llama.cpp makes U+FFFD of them.
 *
 * Threads: a tokenizer never changes, any number may use it. */
#ifndef AURA_TOKENIZER_H
#define AURA_TOKENIZER_H

#include "gguf.h"

struct tokenizer;

/* The file must stay open as long as the tokenizer. 0 when good; otherwise 1, with a text: a model or pre-tokenizer that is not
 * supported, arrays that do not fit together, no memory. */
int tokenizer_create(const struct gguf *file, struct tokenizer **tokenizer, char error[GGUF_ERROR_BYTES]);
void tokenizer_destroy(struct tokenizer *tokenizer); /* NULL is allowed */

uint32_t tokenizer_size(const struct tokenizer *tokenizer);

/* The tokens of a text. Returns how many; the caller frees *tokens. Without memory it returns 0, and *tokens is NULL.
 * special: the name of a control token in the text becomes that token. add_begin: the tokens that the file wants before and after
 * a text are added. A byte without a token in the vocabulary is left out by BPE (SmolLM2 lacks six control characters and fifteen
 * bytes that UTF-8 hardly or never has), and becomes the unknown token of SentencePiece. */
size_t tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, int special, int add_begin,
                        uint32_t **tokens);

/* The same with special, except for bytes [from, to): the name of a control token there is text. */
size_t tokenizer_encode_around(const struct tokenizer *tokenizer, const char *text, size_t size, size_t from, size_t to,
                               int add_begin, uint32_t **tokens);

/* The bytes of a token, valid as long as the tokenizer; none for control tokens and for numbers that are no token. A character
 * may begin in one token and end in another. */
struct gguf_text tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token);

/* Whether a token ends a text or a turn. */
int tokenizer_ends(const struct tokenizer *tokenizer, uint32_t token);

#endif
