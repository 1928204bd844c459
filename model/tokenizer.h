/* Text into the tokens of a model and back, as its GGUF file says: byte-level BPE ("gpt2") with the pre-tokenizers smollm, gpt-2,
 * llama-bpe and qwen2, and SentencePiece ("llama"). The tokens are those of llama.cpp, for UTF-8; of other bytes llama.cpp makes
 * U+FFFD, and this keeps them.
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

/* The tokens of a text; *tokens is to be freed by the caller. special: where the text has the name of a control token, it is that
 * token. add_begin: the file's rule on which tokens stand before and after a text is followed. Returns how many; *tokens is NULL,
 * and none are returned, when there is no memory. A byte that the vocabulary has no token for is left out
 * by BPE (SmolLM2 lacks six control characters and fifteen bytes that UTF-8 hardly or never has), and is the unknown token of
 * SentencePiece. */
size_t tokenizer_encode(const struct tokenizer *tokenizer, const char *text, size_t size, int special, int add_begin,
                        uint32_t **tokens);

/* The bytes of a token, as long as the tokenizer lives; none for control tokens and what is not in the vocabulary. A character may
 * begin in one token and end in another. */
struct gguf_text tokenizer_bytes(const struct tokenizer *tokenizer, uint32_t token);

/* Whether a token ends a text or a turn. */
int tokenizer_ends(const struct tokenizer *tokenizer, uint32_t token);

#endif
