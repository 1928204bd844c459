/* A model, its state and its words: prompts become tokens, tokens are read, and more are said. */
#define _POSIX_C_SOURCE 200809L
#include "run.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../parts/own_profile.h"
#include "../parts/terminal.h"

static volatile sig_atomic_t interrupted;

static void on_interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

void run_watch_interrupts(int once)
{
    struct sigaction action;
    memset(&action, 0, sizeof action);
    action.sa_handler = on_interrupt;
    action.sa_flags = SA_RESTART | (once ? (int)SA_RESETHAND : 0); /* what is being written is not cut off */
    sigaction(SIGINT, &action, NULL);
}

int run_interrupted(void)
{
    return interrupted;
}

void run_forget_interrupt(void)
{
    interrupted = 0;
}

static double now(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* ---- what it needs ---------------------------------------------------------------------------------------------------- */

static int load_profile(struct run *r, aura_format format, struct profile_file *profile)
{
    const struct text_model model = {.file = r->file, .tokenizer = r->tokenizer, .llm = r->llm};
    if (r->a->profile && !strcmp(r->a->profile, "auto")) {
        if (own_profile_make(profile, &model, r->a->threads, 1, r->error))
            return failed(r->self, "--profile auto: %s", r->error);
    } else if (profile_file_open(profile, r->a->profile))
        return failed(r->self, "%s: %s", r->a->profile, aura_last_error());
    if (!format.k && !profile_has_formats(profile->profile))
        return failed(r->self, "--cache profile needs --profile and formats in it: `aura calibrate --bits N` finds them");
    return 0;
}

int run_make_state(struct run *r, aura_format format, struct llm_state **state)
{
    struct profile_file profile;
    struct llm_options options = {.threads = r->a->threads, .format = format, .tokens = r->a->ctx, .isa_mask = r->isa_mask,
                                  .exact_prompts = 1};
    int status = load_profile(r, format, &profile);
    options.flags = r->a->no_learn ? 0 : AURA_LEARN;
    options.profile = profile.profile;
    if (!status && llm_state_create(r->llm, &options, state, r->error))
        status = failed(r->self, "%s: %s", r->a->model, r->error);
    profile_file_close(&profile);
    return status;
}

const char *run_cache_name(const struct run *r, char name[16])
{
    return r->a->cache.k ? aura_format_name(r->a->cache, name) ? "?" : name : "profile";
}

struct conversation_model run_model(const struct run *r)
{
    return (struct conversation_model){gguf_fingerprint(r->file), gguf_weights_fingerprint(r->file)};
}

static int open_model(struct run *r)
{
    const struct arguments *a = r->a;
    if (gguf_open(a->model, &r->file, r->error) || tokenizer_create(r->file, &r->tokenizer, r->error) ||
        (a->exact ? llm_open_exact : llm_open)(r->file, a->threads, &r->llm, r->error))
        return failed(r->self, "%s: %s", a->model, r->error);
    if (tokenizer_size(r->tokenizer) > llm_shape(r->llm)->vocab)
        return failed(r->self, "%s: %u tokens have names, and %u have weights", a->model, tokenizer_size(r->tokenizer),
                      llm_shape(r->llm)->vocab);
    return run_make_state(r, a->cache, &r->state);
}

int run_open(struct run *r)
{
    const struct arguments *a = r->a;
    const struct sample_options sampling = {(float)a->temp, a->top_k, (float)a->top_p, a->seed};
    const int on_terminal = isatty(2);
    if (on_terminal)
        print_progress("loading the model ...");
    int status = open_model(r);
    if (on_terminal && !status) /* a message has ended the line */
        print_progress(NULL);
    if (status)
        return status;
    r->logits = malloc(llm_shape(r->llm)->vocab * sizeof *r->logits);
    r->sampler = sampler_create(&sampling, llm_shape(r->llm)->vocab);
    if (!r->logits || !r->sampler)
        return failed(r->self, "no memory");
    if (a->load && conversation_load(&r->words, r->state, run_model(r), a->load, r->error))
        return failed(r->self, "--load %s", r->error);
    r->out.stops = a->stop.list, r->out.n_stops = a->stop.count;
    return 0;
}

void run_close(struct run *r)
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

/* The first message of a conversation, after what the system says. */
static int first_text(struct run *r, const char *prompt, char **text, struct chat_range *said)
{
    struct chat_turn turns[] = {{"system", r->a->system}, {"user", prompt}};
    const int has_system = r->a->system && *r->a->system;
    return chat_prompt(r->file, turns + !has_system, 1 + (size_t)has_system, text, said, r->error);
}

/* A message as the template writes it. In a conversation that goes on, only the new text is wanted: the template writes a made-up
 * conversation with this message as the third, and the text of the first two is cut off. */
static int chat_text(struct run *r, const char *prompt, char **text, struct chat_range *said)
{
    struct chat_turn turns[] = {{"user", "?"}, {"assistant", "!"}, {"user", prompt}};
    char *before = NULL, *all = NULL;
    if (!r->first)
        return first_text(r, prompt, text, said);
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

int run_add_prompt(struct run *r, const char *prompt)
{
    char *text = NULL;
    struct chat_range said = {0, 0};
    int status = 0;
    r->first = r->words.count;
    if (!prompt && r->a->tokens)
        status = add_ids(r, r->a->tokens);
    else if (prompt && r->a->chat && chat_text(r, prompt, &text, &said))
        status = failed(r->self, "--chat: %s", r->error);
    else if (prompt)
        status = add_text(r, text ? text : prompt, text ? &said : NULL);
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

/* Between two parts it looks for Ctrl-C. */
int run_read_on(struct run *r)
{
    size_t at;
    while ((at = llm_state_tokens(r->state)) < r->words.count && !interrupted) {
        size_t left = r->words.count - at, n = left < LLM_PART ? left : LLM_PART;
        if (r->shows_reading && (n < left || at % LLM_PART == 0)) {
            char text[80];
            snprintf(text, sizeof text, "reading: %zu of %zu tokens", at, r->words.count);
            print_progress(text);
        }
        if (llm_forward(r->state, r->words.tokens + at, n, n == left, r->logits, r->error))
            return failed(r->self, "%s", r->error);
    }
    return 0;
}

/* Says one more token, or sets `ended`. */
static int say(struct run *r)
{
    enum { RECENT = 64 }; /* tokens that --repeat-penalty makes less likely */
    uint32_t token;
    struct gguf_text bytes;
    const size_t recent = r->words.count < RECENT ? r->words.count : RECENT;
    if (interrupted || r->said == r->a->n)
        return r->ended = interrupted ? "interrupt" : "length", 0;
    sampler_penalise(r->logits, r->words.tokens + r->words.count - recent, recent, (float)r->a->repeat_penalty);
    token = sampler_next(r->sampler, r->logits);
    if (tokenizer_ends(r->tokenizer, token))
        return r->ended = "end", 0;
    bytes = tokenizer_bytes(r->tokenizer, token);
    if (conversation_add(&r->words, &token, 1) || stream_add(&r->out, bytes.data, bytes.size))
        return failed(r->self, "no memory");
    r->said++;
    if (r->out.stopped)
        return r->ended = "stop", 0;
    if (r->said < r->a->n && r->words.count > llm_state_capacity(r->state))
        return r->ended = "context", 0;
    return r->said < r->a->n ? run_read_on(r) : 0;
}

int run_speak(struct run *r)
{
    double start = now();
    r->said = 0, r->ended = NULL;
    stream_clear(&r->out);
    r->shows_reading = isatty(2) && r->words.count - llm_state_tokens(r->state) > LLM_PART;
    const int bad = run_read_on(r);
    if (r->shows_reading)
        print_progress(NULL);
    r->shows_reading = 0;
    if (bad)
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

static double rate(size_t tokens, double seconds)
{
    return tokens && seconds > 0 ? (double)tokens / seconds : 0;
}

double run_prompt_rate(const struct run *r)
{
    return rate(r->prompt, r->prompt_seconds);
}

double run_said_rate(const struct run *r)
{
    return rate(r->said ? r->said - 1 : 0, r->said_seconds);
}

const char *run_plural(size_t n)
{
    return n == 1 ? "" : "s";
}
