/* A conversation in files. FILE is a snapshot of the cache (doc/snapshot.md). FILE.tokens has the tokens whose keys and values
 * are in it, because the cache does not know them, and then the tokens that the model has said and not yet read. doc/model.md
 * draws it. */
#ifndef AURA_CONVERSATION_H
#define AURA_CONVERSATION_H

#include "llm.h"

struct conversation {
    uint32_t *tokens; /* [count]; the first llm_state_tokens() of them are in the cache */
    size_t count, room;
};

/* 0 when good; -1: no memory. */
int conversation_add(struct conversation *c, const uint32_t *tokens, size_t count);
void conversation_free(struct conversation *c);

/* `model` is gguf_fingerprint() of the file: tokens of one model mean nothing to another. 0 when good; otherwise 1, with a text.
 * FILE.tokens is written after the snapshot and names it, so that loading refuses two files that do not belong together. */
int conversation_save(const struct conversation *c, const struct llm_state *state, uint64_t model, const char *path,
                      char error[LLM_ERROR_BYTES]);

/* Fills a conversation that is all zeros, and a state whose cache has the format of the saved one. */
int conversation_load(struct conversation *c, struct llm_state *state, uint64_t model, const char *path,
                      char error[LLM_ERROR_BYTES]);

#endif
