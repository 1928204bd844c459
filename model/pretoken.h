/* Text into words: a byte-level BPE merges only within a word. */
#ifndef AURA_PRETOKEN_H
#define AURA_PRETOKEN_H

#include <stddef.h>
#include <stdint.h>

#include "unicode.h"

/* The rules. Each is the pattern of a word; the first alternative that matches counts:
 *
 *   GPT2    's|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+
 *   SMOLLM  every \p{N} is a word of its own; the text between them is cut as by GPT2
 *   LLAMA3  (?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+
 *   QWEN2   the same, with \p{N} in the place of \p{N}{1,3} */
enum pretoken_rule { PRETOKEN_GPT2, PRETOKEN_SMOLLM, PRETOKEN_LLAMA3, PRETOKEN_QWEN2 };

/* Bytes of the first word of a text that is not empty; at least 1. A byte that is not part of UTF-8 counts as a symbol. */
size_t pretoken_next(enum pretoken_rule rule, const char *text, size_t size);

/* The first character of a text that is not empty, and how many bytes it has. Bytes that are not UTF-8 are one character each,
 * U+FFFD. */
size_t utf8_read(const char *text, size_t size, uint32_t *character);

enum unicode_class unicode_class(uint32_t character);

#endif
