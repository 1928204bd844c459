/* Hash tables over what a file says. Whoever makes a file could choose names that all fall on one place, and make a reader search
 * for minutes; so every process mixes a number of its own into its hashes. */
#ifndef AURA_MODEL_HASH_H
#define AURA_MODEL_HASH_H

#include <stddef.h>
#include <stdint.h>

uint64_t hash_number(uint64_t x);
uint64_t hash_text(const char *text, size_t size);

#endif
