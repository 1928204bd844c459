/* A conversation in a file: a snapshot of the cache (doc/snapshot.md) whose note has the tokens, because the cache does not know
 * them: first those whose keys and values are in it, then those that the model has said and not yet read. doc/model.md draws it.
 * Before, the tokens were in a second file, FILE.tokens; such pairs are still read. */
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

/* Tokens of one model mean nothing to another. */
struct conversation_model {
    uint64_t header, weights; /* gguf_fingerprint(), gguf_weights_fingerprint() */
};

/* 0 when good; otherwise 1, with a text. The file is replaced in one step: afterwards it is the old one or the new one. */
int conversation_save(const struct conversation *c, const struct llm_state *state, struct conversation_model model,
                      const char *path, char error[LLM_ERROR_BYTES]);

/* Fills a conversation that is all zeros, and a state whose cache has the format of the saved one. */
int conversation_load(struct conversation *c, struct llm_state *state, struct conversation_model model, const char *path,
                      char error[LLM_ERROR_BYTES]);

#endif
