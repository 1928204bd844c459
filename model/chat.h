/* Turns of a conversation as the text that the model was trained on. A GGUF file has a template for that, a program in Jinja.
 * This code runs no program: it recognises five families by strings in their templates: ChatML (SmolLM2, Qwen), Llama 3, Llama 2,
 * Mistral, Zephyr (TinyLlama). It leaves out what templates say of tools, and the date with which Llama 3.1 and later begin. */
#ifndef AURA_CHAT_H
#define AURA_CHAT_H

#include "gguf.h"

struct chat_turn {
    const char *role; /* "system", only as the first; "user"; "assistant" */
    const char *content;
};

/* Bytes [from, to) of a text. */
struct chat_range {
    size_t from, to;
};

enum { CHAT_NO_MEMORY = 2 };

/* Writes the turns, and the beginning of the assistant's next one. The caller frees *text, and makes tokens of it with
 * tokenizer_encode_around() and add_begin = 1: the text lacks the token that begins every text. *last, unless it is NULL, becomes
 * what the last turn says. Somebody else may have written that: the name of a control token in it is text.
 * 0 when good; otherwise 1, or CHAT_NO_MEMORY, with a text: the file has no template, or one of an unknown family. */
int chat_prompt(const struct gguf *file, const struct chat_turn *turns, size_t n, char **text, struct chat_range *last,
                char error[GGUF_ERROR_BYTES]);

#endif
