/* The built-in codebooks. codebook.c is made by tool/make_codebook.c; its first line is the command. */
#ifndef AURA_CODEBOOK_H
#define AURA_CODEBOOK_H

#include "../include/aura_rows.h"

extern const aura_codebook aura_codebook_list[];
extern const size_t aura_codebook_count;

#endif
