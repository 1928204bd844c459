/* Turns of a conversation as the text that a model was taught them in. A GGUF file has a template for that, a program in Jinja;
 * this runs no program, but knows those that matter by what stands in them: ChatML (SmolLM2, Qwen), Llama 3, Llama 2, Mistral,
 * Zephyr (TinyLlama). Left out is what they say of tools, and the dates that those of Llama 3.1 and later begin with. */
#ifndef AURA_CHAT_H
#define AURA_CHAT_H

#include "gguf.h"

struct chat_turn {
    const char *role; /* "system", only as the first; "user"; "assistant" */
    const char *content;
};

/* The turns, and the beginning of the assistant's next one. *text is to be freed by the caller, and made into tokens with
 * special = 1 and add_begin = 1: it is without the token that begins every text. Names of control tokens in a turn are those tokens.
 * 0 when good; otherwise 1, with a text: no template in the file, or none that is known here; no memory. */
int chat_prompt(const struct gguf *file, const struct chat_turn *turns, size_t n, char **text, char error[GGUF_ERROR_BYTES]);

#endif
