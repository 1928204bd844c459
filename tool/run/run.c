/* aura run: a model reads a prompt and continues it, or talks with somebody at a terminal. A cache of the library holds its keys
 * and values. */
#define _POSIX_C_SOURCE 200809L
#include "run.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../parts/terminal.h"

enum { INTERRUPTED = 130 }; /* the exit code after Ctrl-C */

static const struct option options[] = {
    TEXT(prompt, "-p, --prompt", "TEXT", "what the model reads first; - or a pipe: standard input"),
    FLAG(chat, "--chat", "as a message, in the words of the file's template"),
    TEXT(system, "--system", "TEXT", "what the system says before the first message"),
    NUMBER(n, "-n, --tokens", 0, UNLIMITED, "N", "at most so many new tokens (128)"),
    FORMAT_OR_PROFILE(cache, "--cache", "k4v4 (the default), f16 ..., small ..., or profile"),
    PATH(profile, "--profile", "FILE", "from aura calibrate; auto: made once, and kept"),
    FLAG(no_learn, "--no-learn", "learn nothing from queries about encoding keys"),
    FLAG(exact, "--exact", "weights as f32: products round no vector to bytes; slow"),
    NUMBER(ctx, "--ctx", 1, 1 << 30, "N", "room for tokens (what the model was made for)"),
    REAL_OR(temp, "--temp", "--temperature", 0, 100, "T", "0: always the most likely token (0)"),
    NUMBER(top_k, "--top-k", 0, 1 << 30, "K", "of the K most likely; 0: of all (40)"),
    REAL(top_p, "--top-p", 0, 1, "P", "of those that make up the share P (0.95)"),
    REAL(repeat_penalty, "--repeat-penalty", 0.1, 10, "X", "the last 64 tokens less likely (1: none)"),
    TEXTS(stop, "--stop", "TEXT", "ends the answer before this text; up to 8 times"),
    NUMBER(seed, "--seed", 0, UINT32_MAX, "N", "other choices (1)"),
    RESULT(save, "--save", "FILE", "keep the conversation"),
    RESULT(load, "--load", "FILE", "go on with one that was kept"), /* --save may replace it */
    TEXT(tokens, "--ids", "LIST", "numbers of tokens, 504,3575,282, instead of a prompt"),
    NUMBER(threads, "--threads", 1, 1024, "N", "(all processors)"),
    ISA(isa, "as if the machine had no better than NAME"),
    FLAG(json, "--json", "as JSON, at the end"),
    LAST_OPTION};

/* ---- what is left to say ----------------------------------------------------------------------------------------------------- */

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
           r->prompt, run_prompt_rate(r), r->said, run_said_rate(r), llm_state_tokens(r->state), llm_state_bytes(r->state),
           llm_state_bits(r->state));
}

/* Whether the file says how its model is talked to. */
static int has_template(const struct run *r)
{
    char error[LLM_ERROR_BYTES], *text = NULL;
    const struct chat_turn turn = {"user", "?"};
    const int good = !chat_prompt(r->file, &turn, 1, &text, NULL, error);
    free(text);
    return good;
}

static void print_summary(const struct run *r, const char *format)
{
    const char *dim = colour(stderr, DIM), *plain = colour(stderr, PLAIN);
    const size_t tokens = llm_state_tokens(r->state);
    printf("\n");
    fflush(stdout);
    fprintf(stderr, "%sprompt: %zu token%s, %.1f tokens/s; new: %zu token%s, %.1f tokens/s; cache %s: %zu token%s, %.1f MB, "
            "%.2f bits per value%s\n", dim, r->prompt, run_plural(r->prompt), run_prompt_rate(r), r->said, run_plural(r->said),
            run_said_rate(r), format, tokens, run_plural(tokens), (double)llm_state_bytes(r->state) / 1e6,
            llm_state_bits(r->state), plain);
    if (isatty(2) && r->a->prompt && !r->a->chat && !r->a->load && has_template(r))
        fprintf(stderr, "%sThe model went on with the text; --chat asks it as a message.%s\n", dim, plain);
}

static int finish(struct run *r)
{
    char name[16];
    const char *format = run_cache_name(r, name);
    if (r->a->json)
        print_json(r, format);
    else
        print_summary(r, format);
    if (!strcmp(r->ended, "context"))
        fprintf(stderr, "aura run: the context of %zu tokens is full; --ctx makes it larger\n", llm_state_capacity(r->state));
    if (run_interrupted())
        fprintf(stderr, "aura run: interrupted after %zu new token%s\n", r->said, run_plural(r->said));
    if (r->a->save && conversation_save(&r->words, r->state, run_model(r), r->a->save, r->error))
        return failed(r->self, "--save %s", r->error);
    return run_interrupted() ? INTERRUPTED : 0;
}

/* ---- the command ------------------------------------------------------------------------------------------------------------- */

static int talk_once(struct run *r)
{
    int status = run_open(r);
    r->out.to = r->a->json ? NULL : stdout;
    if (!status)
        status = run_add_prompt(r, r->a->prompt);
    if (!status)
        status = run_speak(r);
    return status ? status : finish(r);
}

/* Standard input as the prompt, which the caller frees, without the line end at its end. */
static int read_prompt(const struct command *self, char **prompt)
{
    size_t size = 0;
    errno = 0;
    *prompt = read_file("-", &size);
    if (!*prompt)
        return failed(self, "standard input: cannot be read: %s", strerror(errno ? errno : ENOMEM));
    if (strlen(*prompt) != size)
        return failed(self, "standard input: has a zero byte, which no text has");
    if (size && (*prompt)[size - 1] == '\n')
        (*prompt)[size - 1] = 0;
    return 0;
}

static int check_arguments(const struct command *self, const struct arguments *a)
{
    if (!a->model)
        return usage_error(self, "needs a model, a GGUF file; `make model` brings models/SmolLM2-135M-Instruct.Q4_1.gguf");
    if (a->tokens && (a->prompt || a->chat || a->system))
        return usage_error(self, "--ids is instead of a prompt, not beside one");
    if (a->system && a->load)
        return usage_error(self, "--system stands before the first message, and the conversation of --load has begun");
    return 0;
}

static int run_run(const struct command *self, int argc, char **argv)
{
    struct arguments a = {.n = UINT32_MAX, .top_k = 40, .top_p = 0.95, .seed = 1, .temp = -1, .repeat_penalty = 1,
                          .cache = {AURA_KIND_B4, AURA_KIND_B4}};
    struct run r = {.self = self, .a = &a};
    char *input = NULL;
    a.threads = online_cpus();
    if (parse_options(self, argc, argv, &a, &a.model) || parse_isa(self, a.isa, &r.isa_mask) || check_arguments(self, &a))
        return 2;
    const int talks = !a.prompt && !a.tokens && !a.json && isatty(0) && isatty(1), nothing = !a.prompt && !a.tokens && !a.load;
    int status = 0;
    if (!talks && (nothing || (a.prompt && !strcmp(a.prompt, "-")))) {
        status = nothing && isatty(0) ? usage_error(self, "needs a prompt: -p TEXT") : read_prompt(self, &input);
        a.prompt = input;
    }
    if (!status && !talks && nothing && !*a.prompt)
        status = usage_error(self, "needs a prompt: -p TEXT, or a text on standard input; on a terminal it talks with you");
    if (!status && a.chat && !a.prompt && !talks)
        status = usage_error(self, "--chat needs a message: -p TEXT");
    a.chat |= a.system != NULL;
    a.n = a.n != UINT32_MAX ? a.n : talks ? UNLIMITED : 128;
    a.temp = a.temp >= 0 ? a.temp : talks ? 0.7 : 0;
    if (!status) {
        run_watch_interrupts(!talks);
        status = talks ? run_chat(&r) : talk_once(&r);
        run_close(&r);
    }
    free(input);
    return status;
}

const struct command command_run = {
    "run", "let a model talk through a cache", "MODEL [OPTIONS]\nMODEL -p TEXT [OPTIONS]",
    "Talks with you, or reads a prompt and goes on with it: a GGUF model of llama,\n"
    "qwen2 or qwen3. Ctrl-C ends an answer after the current token; with a prompt\n"
    "also the program, with its summary and exit code 130. In a conversation /help\n"
    "shows more, an answer may be of any length, and --temp is 0.7.\n",
    "MODEL", NULL, options, "aura run models/SmolLM2-135M-Instruct.Q4_1.gguf\n", run_run};
