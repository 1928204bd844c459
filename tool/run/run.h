/* aura run: what a prompt from the command line and a conversation at a terminal share. */
#ifndef AURA_RUN_H
#define AURA_RUN_H

#include "../../model/chat.h"
#include "../../model/conversation.h"
#include "../../model/sample.h"
#include "../../model/stream.h"
#include "../../model/tokenizer.h"
#include "../tool.h"

enum { UNLIMITED = 1 << 30 }; /* more new tokens than there is room for */

struct arguments {
    const char *model, *prompt, *system, *tokens, *profile, *isa, *save, *load;
    struct option_texts stop;
    aura_format cache;
    uint32_t n, ctx, top_k, seed, threads;
    double temp, top_p, repeat_penalty;
    int chat, no_learn, exact, json;
};

/* What a run is made of. run_close() frees all of it, also after a failure half-way. */
struct run {
    const struct command *self;
    struct arguments *a;
    uint32_t isa_mask;
    struct gguf *file;
    struct tokenizer *tokenizer;
    struct llm *llm;
    struct llm_state *state;
    struct sampler *sampler;
    struct conversation words;  /* all tokens, also those of a loaded conversation */
    struct stream out;          /* what the model says */
    float *logits;
    size_t first, prompt, said; /* tokens before the prompt, of the prompt, and of the answer */
    const char *ended;          /* why it stopped: "end", "stop", "length", "context" or "interrupt" */
    double prompt_seconds, said_seconds;
    int shows_reading;          /* 1: a long prompt shows how far it is read */
    char error[LLM_ERROR_BYTES];
};

/* Ctrl-C. While a model reads or speaks it ends that after the current token; `once`: a second one ends the program. */
void run_watch_interrupts(int once);
int run_interrupted(void);
void run_forget_interrupt(void);

/* Each returns 0 when good; otherwise the exit code, with a message. */
int run_open(struct run *r);
void run_close(struct run *r);
int run_add_prompt(struct run *r, const char *prompt); /* tokens of a prompt; NULL: those of --ids, or none */
int run_read_on(struct run *r);                        /* all tokens that the cache does not have yet */
int run_speak(struct run *r);                          /* reads on, and says what comes until something ends it */
/* Makes an empty state whose cache has this format; the caller owns it. */
int run_make_state(struct run *r, aura_format format, struct llm_state **state);
/* What the user calls the cache: a format, or "profile". */
const char *run_cache_name(const struct run *r, char name[16]);
struct conversation_model run_model(const struct run *r);

/* Tokens in a second. The first token of an answer comes with the prompt, so n tokens took n - 1 steps. */
double run_prompt_rate(const struct run *r);
double run_said_rate(const struct run *r);

const char *run_plural(size_t n); /* "" for 1, otherwise "s" */

/* A conversation at a terminal. Returns the exit code. */
int run_chat(struct run *r);

#endif
