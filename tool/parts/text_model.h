/* A model and a text as its tokens: what `aura eval` and `aura calibrate` begin with. */
#ifndef AURA_TEXT_MODEL_H
#define AURA_TEXT_MODEL_H

#include "../../model/llm.h"
#include "../../model/tokenizer.h"

struct text_model {
    struct gguf *file;
    struct tokenizer *tokenizer;
    struct llm *llm;
    uint32_t *tokens; /* [count] */
    size_t count;
    int64_t begin;    /* the token that the model wants a text to begin with; -1: none */
};

/* text NULL: none. rounded: 1 for llm_open(), 0 for llm_open_exact(). 0 when good; otherwise 1, with a text. In both cases the
 * caller calls text_model_close(). */
int text_model_open(struct text_model *m, const char *model, const char *text, uint32_t threads, int rounded,
                    char error[LLM_ERROR_BYTES]);
/* Reads another text into a model that is open. 0 when good; otherwise 1, with a text. */
int text_model_read(struct text_model *m, const char *text, char error[LLM_ERROR_BYTES]);
void text_model_close(struct text_model *m);

/* Size and CRC32C of a whole file: they tell models apart. 0 when good; otherwise 1, with a text. */
int file_identity(const char *path, uint64_t *bytes, uint32_t *crc, char error[LLM_ERROR_BYTES]);

#endif
