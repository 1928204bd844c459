/* aura run: a model reads a prompt and continues it. A cache of the library holds its keys and values. */
#define _POSIX_C_SOURCE 200809L
#include <errno.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../include/aura_file.h"
#include "../model/chat.h"
#include "../model/conversation.h"
#include "../model/sample.h"
#include "../model/stream.h"
#include "../model/tokenizer.h"
#include "parts/terminal.h"
#include "tool.h"

enum { PROMPT_PART = 512, INTERRUPTED = 130 }; /* tokens of a prompt at a time; the exit code after Ctrl-C */

struct arguments {
    const char *model, *prompt, *tokens, *profile, *isa, *save, *load;
    aura_format cache;
    uint32_t n, ctx, top_k, seed, threads;
    double temp, top_p;
    int chat, json;
};

static const struct option options[] = {
    TEXT(prompt, "-p, --prompt", "TEXT", "what the model reads first"),
    FLAG(chat, "--chat", "as a message, in the words of the file's template"),
    NUMBER(n, "-n, --tokens", 0, 1 << 30, "N", "at most so many new tokens (128)"),
    FORMAT(cache, "--cache", "k4v4 and so on, f16, or max, safe, quality, balanced, small"),
    PATH(profile, "--profile", "FILE", "balance of the keys, from aura calibrate"),
    NUMBER(ctx, "--ctx", 1, 1 << 30, "N", "room for tokens (what the model was made for)"),
    REAL(temp, "--temp", 0, 100, "T", "0: always the most likely token (0)"),
    NUMBER(top_k, "--top-k", 0, 1 << 30, "K", "of the K most likely; 0: of all (40)"),
    REAL(top_p, "--top-p", 0, 1, "P", "of those that make up the share P (0.95)"),
    NUMBER(seed, "--seed", 0, UINT32_MAX, "N", "other choices (1)"),
    RESULT(save, "--save", "FILE", "keep the conversation"),
    RESULT(load, "--load", "FILE", "go on with one that was kept"), /* --save may replace it */
    TEXT(tokens, "--ids", "LIST", "numbers of tokens, 504,3575,282, instead of a prompt"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    ISA(isa, "as if the machine had no better than NAME"),
    FLAG(json, "--json", "as JSON, at the end"),
    LAST_OPTION};

/* What a run is made of. close_run() frees all of it, also after a failure half-way. */
struct run {
    const struct command *self;
    const struct arguments *a;
    struct gguf *file;
    struct tokenizer *tokenizer;
    struct llm *llm;
    struct llm_state *state;
    struct sampler *sampler;
    struct conversation words;  /* all tokens, also those of a loaded conversation */
    struct stream out;          /* what the model says */
    float *logits;
    size_t first, prompt, said; /* tokens of the loaded conversation, of the prompt, and of the answer */
    const char *ended;          /* why it stopped: "end", "length", "context" or "interrupt" */
    double prompt_seconds, said_seconds;
    char error[LLM_ERROR_BYTES];
};

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

/* The first Ctrl-C ends the run after the current token, a second one ends it at once. */
static void watch_interrupts(void)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = (int)SA_RESETHAND;
    sigaction(SIGINT, &action, NULL);
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what it needs ---------------------------------------------------------------------------------------------------- */

static int load_profile(struct run *r, aura_ctx **ctx, aura_profile **profile)
{
    if (!r->a->profile)
        return 0;
    if (aura_ctx_create(NULL, ctx) || aura_profile_load(*ctx, r->a->profile, profile))
        return failed(r->self, "%s: %s", r->a->profile, aura_last_error());
    return 0;
}

static int make_state(struct run *r, uint32_t isa_mask)
{
    aura_ctx *ctx = NULL;
    aura_profile *profile = NULL;
    struct llm_options options = {.threads = r->a->threads, .format = r->a->cache, .tokens = r->a->ctx, .isa_mask = isa_mask};
    int status = load_profile(r, &ctx, &profile);
    options.profile = profile;
    if (!status && llm_state_create(r->llm, &options, &r->state, r->error))
        status = failed(r->self, "%s: %s", r->a->model, r->error);
    aura_profile_destroy(profile);
    aura_ctx_destroy(ctx);
    return status;
}

static struct conversation_model name_of(const struct gguf *file)
{
    return (struct conversation_model){gguf_fingerprint(file), gguf_weights_fingerprint(file)};
}

static int open_run(struct run *r, uint32_t isa_mask)
{
    const struct arguments *a = r->a;
    const struct sample_options sampling = {(float)a->temp, a->top_k, (float)a->top_p, a->seed};
    if (gguf_open(a->model, &r->file, r->error) || tokenizer_create(r->file, &r->tokenizer, r->error) ||
        llm_open(r->file, a->threads, &r->llm, r->error))
        return failed(r->self, "%s: %s", a->model, r->error);
    if (tokenizer_size(r->tokenizer) > llm_shape(r->llm)->vocab)
        return failed(r->self, "%s: %u tokens have names, and %u have weights", a->model, tokenizer_size(r->tokenizer),
                      llm_shape(r->llm)->vocab);
    if (make_state(r, isa_mask))
        return 1;
    r->logits = malloc(llm_shape(r->llm)->vocab * sizeof *r->logits);
    r->sampler = sampler_create(&sampling, llm_shape(r->llm)->vocab);
    if (!r->logits || !r->sampler)
        return failed(r->self, "no memory");
    if (a->load && conversation_load(&r->words, r->state, name_of(r->file), a->load, r->error))
        return failed(r->self, "--load %s", r->error);
    r->first = r->words.count;
    r->out.to = a->json ? NULL : stdout;
    return 0;
}

static void close_run(struct run *r)
{
    stream_free(&r->out);
    conversation_free(&r->words);
    free(r->logits);
    sampler_destroy(r->sampler);
    llm_state_destroy(r->state);
    llm_close(r->llm);
    tokenizer_destroy(r->tokenizer);
    gguf_close(r->file);
}

/* ---- the prompt --------------------------------------------------------------------------------------------------------- */

/* --ids: numbers between commas or blanks. */
static int add_ids(struct run *r, const char *list)
{
    while (*list) {
        char *end;
        errno = 0;
        unsigned long long id = strtoull(list, &end, 10);
        uint32_t token = (uint32_t)id;
        if (end == list || *list == '-' || errno || id >= llm_shape(r->llm)->vocab || (*end && *end != ',' && *end != ' '))
            return usage_error(r->self, "--ids %s: must be numbers below %u with commas between them", list,
                               llm_shape(r->llm)->vocab);
        if (conversation_add(&r->words, &token, 1))
            return failed(r->self, "no memory");
        list = *end ? end + 1 : end;
    }
    return 0;
}

/* A message as the template writes it. In a conversation that goes on, only the new text is wanted: the template writes a made-up
 * conversation with this message as the third, and the text of the first two is cut off. */
static int chat_text(struct run *r, char **text, struct chat_range *said)
{
    struct chat_turn turns[] = {{"user", "?"}, {"assistant", "!"}, {"user", r->a->prompt}};
    char *before = NULL, *all = NULL;
    if (!r->first)
        return chat_prompt(r->file, &turns[2], 1, text, said, r->error);
    int bad = chat_prompt(r->file, turns, 1, &before, NULL, r->error) || chat_prompt(r->file, turns, 3, &all, said, r->error);
    if (!bad && strncmp(all, before, strlen(before))) {
        snprintf(r->error, sizeof r->error, "the file's chat template cannot go on with a conversation");
        bad = 1;
    }
    const char *rest = bad ? NULL : strchr(all + strlen(before), '!');
    *text = rest ? strdup(rest + 1) : NULL;
    if (!bad && !*text)
        snprintf(r->error, sizeof r->error, rest ? "no memory" : "the file's chat template leaves out what is said");
    if (rest)
        said->from -= (size_t)(rest + 1 - all), said->to -= (size_t)(rest + 1 - all);
    free(before);
    free(all);
    return bad || !*text;
}

/* said: what somebody says in a text that the template wrote. NULL: all of it. */
static int add_text(struct run *r, const char *text, const struct chat_range *said)
{
    uint32_t *tokens = NULL;
    const size_t size = strlen(text);
    size_t count = said ? tokenizer_encode_around(r->tokenizer, text, size, said->from, said->to, !r->first, &tokens)
                        : tokenizer_encode(r->tokenizer, text, size, 0, !r->first, &tokens);
    int bad = !tokens || (count && conversation_add(&r->words, tokens, count));
    free(tokens);
    return bad ? failed(r->self, "no memory") : 0;
}

static int add_prompt(struct run *r)
{
    char *text = NULL;
    struct chat_range said = {0, 0};
    int status = 0;
    if (r->a->tokens)
        status = add_ids(r, r->a->tokens);
    else if (r->a->chat && chat_text(r, &text, &said))
        status = failed(r->self, "--chat: %s", r->error);
    else if (r->a->prompt)
        status = add_text(r, text ? text : r->a->prompt, text ? &said : NULL);
    free(text);
    if (status)
        return status;
    size_t unread = r->words.count - llm_state_tokens(r->state);
    if (!unread && !r->words.count)
        return usage_error(r->self, "the prompt has no tokens; what is the model to go on from?");
    /* If nothing is unread, the model reads the last token again, for its logits. */
    if (!unread && llm_state_truncate(r->state, r->words.count - 1, r->error))
        return failed(r->self, "%s", r->error);
    r->prompt = r->words.count - r->first;
    if (r->words.count > llm_state_capacity(r->state))
        return failed(r->self, "the prompt makes %zu tokens, and there is room for %zu; --ctx makes more", r->words.count,
                      llm_state_capacity(r->state));
    return 0;
}

/* ---- reading and saying --------------------------------------------------------------------------------------------------- */

/* Reads all tokens that the cache does not have yet. Between two parts it looks for Ctrl-C. */
static int read_on(struct run *r)
{
    size_t at;
    while ((at = llm_state_tokens(r->state)) < r->words.count && !interrupted) {
        size_t left = r->words.count - at, n = left < PROMPT_PART ? left : PROMPT_PART;
        if (llm_forward(r->state, r->words.tokens + at, n, n == left, r->logits, r->error))
            return failed(r->self, "%s", r->error);
    }
    return 0;
}

/* Says one more token, or sets `ended`. */
static int say(struct run *r)
{
    uint32_t token;
    struct gguf_text bytes;
    if (interrupted || r->said == r->a->n)
        return r->ended = interrupted ? "interrupt" : "length", 0;
    token = sampler_next(r->sampler, r->logits);
    if (tokenizer_ends(r->tokenizer, token))
        return r->ended = "end", 0;
    bytes = tokenizer_bytes(r->tokenizer, token);
    if (conversation_add(&r->words, &token, 1) || stream_add(&r->out, bytes.data, bytes.size))
        return failed(r->self, "no memory");
    r->said++;
    if (r->said < r->a->n && r->words.count > llm_state_capacity(r->state))
        return r->ended = "context", 0;
    return r->said < r->a->n ? read_on(r) : 0;
}

static int speak(struct run *r)
{
    double start = now();
    if (read_on(r))
        return 1;
    r->prompt_seconds = now() - start;
    start = now();
    while (!r->ended)
        if (say(r))
            return 1;
    r->said_seconds = now() - start;
    stream_end(&r->out);
    return 0;
}

/* ---- what is left to say ----------------------------------------------------------------------------------------------------- */

/* Tokens in a second. The first token of an answer comes with the prompt, so n tokens took n - 1 steps. */
static double rate(size_t tokens, double seconds)
{
    return tokens && seconds > 0 ? (double)tokens / seconds : 0;
}

static void print_ids(const char *name, const uint32_t *tokens, size_t count)
{
    printf("\"%s\": [", name);
    for (size_t i = 0; i < count; i++)
        printf("%s%u", i ? ", " : "", tokens[i]);
    printf("], ");
}

static void print_json(const struct run *r, const char *format)
{
    printf("{\"model\": ");
    print_json_string(r->a->model);
    printf(", \"cache\": \"%s\", ", format);
    print_ids("prompt", r->words.tokens + r->first, r->prompt);
    print_ids("tokens", r->words.tokens + r->first + r->prompt, r->said);
    printf("\"text\": ");
    stream_print_json(&r->out);
    printf(", \"ended\": \"%s\", \"loaded_tokens\": %zu, \"prompt_tokens\": %zu, \"prompt_per_second\": %.2f, \"new_tokens\": %zu, "
           "\"new_per_second\": %.2f, \"cache_tokens\": %zu, \"cache_bytes\": %zu, \"bits_per_value\": %.3f}\n", r->ended, r->first,
           r->prompt, rate(r->prompt, r->prompt_seconds), r->said, rate(r->said ? r->said - 1 : 0, r->said_seconds),
           llm_state_tokens(r->state), llm_state_bytes(r->state), llm_state_bits(r->state));
}

static void print_summary(const struct run *r, const char *format)
{
    const char *dim = colour(stderr, DIM), *plain = colour(stderr, PLAIN);
    printf("\n");
    fflush(stdout);
    fprintf(stderr, "%sprompt: %zu tokens, %.1f tokens/s; new: %zu tokens, %.1f tokens/s; cache %s: %zu tokens, %.1f MB, "
            "%.2f bits per value%s\n", dim, r->prompt, rate(r->prompt, r->prompt_seconds), r->said,
            rate(r->said ? r->said - 1 : 0, r->said_seconds), format, llm_state_tokens(r->state),
            (double)llm_state_bytes(r->state) / 1e6, llm_state_bits(r->state), plain);
}

static int finish(struct run *r)
{
    char format[16] = "";
    aura_format_name(r->a->cache, format);
    if (r->a->json)
        print_json(r, format);
    else
        print_summary(r, format);
    if (!strcmp(r->ended, "context"))
        fprintf(stderr, "aura run: the context of %zu tokens is full; --ctx makes it larger\n", llm_state_capacity(r->state));
    if (interrupted)
        fprintf(stderr, "aura run: interrupted after %zu new tokens\n", r->said);
    if (r->a->save && conversation_save(&r->words, r->state, name_of(r->file), r->a->save, r->error))
        return failed(r->self, "--save %s", r->error);
    return interrupted ? INTERRUPTED : 0;
}

static int run_run(const struct command *self, int argc, char **argv)
{
    struct arguments a = {.n = 128, .top_k = 40, .top_p = 0.95, .seed = 1, .cache = {AURA_KIND_B4, AURA_KIND_B4}};
    struct run r = {.self = self, .a = &a};
    uint32_t isa_mask = 0;
    a.threads = online_cpus();
    if (parse_options(self, argc, argv, &a, &a.model) || parse_isa(self, a.isa, &isa_mask))
        return 2;
    if (!a.model)
        return usage_error(self, "needs a model, a GGUF file; `make model` brings models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (!a.prompt && !a.tokens && !a.load)
        return usage_error(self, "needs a prompt: -p TEXT");
    if (a.tokens && (a.prompt || a.chat))
        return usage_error(self, "--ids is instead of a prompt, not beside one");
    if (a.chat && !a.prompt)
        return usage_error(self, "--chat needs a message: -p TEXT");
    watch_interrupts();
    int status = open_run(&r, isa_mask);
    if (!status)
        status = add_prompt(&r);
    if (!status)
        status = speak(&r);
    if (!status)
        status = finish(&r);
    close_run(&r);
    return status;
}

const struct command command_run = {
    "run", "let a model talk through a cache", "MODEL -p TEXT [OPTIONS]",
    "Reads a prompt with a GGUF model (llama, qwen2, qwen3) and goes on with it.\n"
    "Ctrl-C ends after the current token, with the summary and exit code 130.\n",
    "MODEL", NULL, options, "aura run models/SmolLM2-135M-Instruct.Q4_1.gguf --chat -p 'Who are you?'\n", run_run};
