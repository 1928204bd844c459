/* A conversation at a terminal: what is typed is a message, or a command that begins with a slash. */
#define _POSIX_C_SOURCE 200809L
#include "run.h"

#include <ctype.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include "../../include/aura_file.h"
#include "../parts/line_editor.h"
#include "../parts/terminal.h"

struct talk {
    struct run *r;
    struct line_editor *editor;
    char *system; /* of /system; NULL: that of the command line */
    int over;
};

/* ---- what it says of itself ------------------------------------------------------------------------------------------------- */

__attribute__((format(printf, 1, 2))) static void say_dim(const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    printf("%s", colour(stdout, DIM));
    vprintf(format, arguments);
    printf("%s\n", colour(stdout, PLAIN));
    va_end(arguments);
}

/* What a cache of these tokens takes in a format. 0: nobody can say. */
static size_t planned_bytes(const struct run *r, aura_format format, size_t tokens)
{
    const struct llm_shape *s = llm_shape(r->llm);
    aura_config config = AURA_CONFIG_INIT, *configs = malloc(s->layers * sizeof *configs);
    aura_plan_job job = AURA_PLAN_JOB_INIT;
    aura_plan_info plan = AURA_PLAN_INFO_INIT;
    aura_ctx *ctx = NULL;
    config.format = format;
    config.q_heads = s->q_heads, config.kv_heads = s->kv_heads, config.k_dim = s->head_dim;
    for (uint32_t i = 0; configs && i < s->layers; i++)
        configs[i] = config;
    job.configs = configs, job.layers = s->layers, job.seqs = 1, job.tokens = tokens;
    const int good = configs && !aura_ctx_create(NULL, &ctx) && !aura_plan(ctx, &job, &plan);
    aura_ctx_destroy(ctx);
    free(configs);
    return good ? plan.bytes : 0;
}

static size_t f16_bytes(const struct run *r, size_t tokens)
{
    return planned_bytes(r, (aura_format){AURA_KIND_F16, AURA_KIND_F16}, tokens);
}

/* Below some hundred tokens f16 is smaller: the newest tokens are in f16 anyway, and what the cache learns takes room. Says in
 * text[64] from which number of tokens on it is not; nothing where that is reached. */
static const char *smaller_from(const struct run *r, size_t bytes, size_t tokens, char text[64])
{
    enum { PAGE_TOKENS = 256, MOST_PAGES = 16 };
    const size_t now = planned_bytes(r, r->a->cache, tokens);
    *text = 0;
    if (bytes < f16_bytes(r, tokens) || !now)
        return text;
    for (size_t n = PAGE_TOKENS; n <= MOST_PAGES * PAGE_TOKENS && !*text; n += PAGE_TOKENS)
        if (n > tokens && bytes - now + planned_bytes(r, r->a->cache, n) < f16_bytes(r, n))
            snprintf(text, 64, "; smaller than that from %zu tokens on", n);
    return text;
}

/* The line after an answer. */
static void say_rates(const struct run *r)
{
    char name[16];
    const size_t tokens = llm_state_tokens(r->state), bytes = llm_state_bytes(r->state);
    char from[64];
    printf("\n");
    say_dim("%.1f tokens/s, %zu token%s of context, cache %s %.2f MB (f16: %.2f MB%s)%s", run_said_rate(r), tokens,
            run_plural(tokens), run_cache_name(r, name), (double)bytes / 1e6, (double)f16_bytes(r, tokens) / 1e6,
            smaller_from(r, bytes, tokens, from),
            !strcmp(r->ended, "interrupt") ? ", interrupted" : !strcmp(r->ended, "length") ? ", -n is reached" : "");
    if (!strcmp(r->ended, "context"))
        printf("The context of %zu tokens is full: /clear begins anew, --ctx N makes it larger.\n", llm_state_capacity(r->state));
}

/* ---- commands --------------------------------------------------------------------------------------------------------------- */

static void help(struct talk *t, char *argument);

static void forget(struct run *r)
{
    if (llm_state_truncate(r->state, 0, r->error))
        failed(r->self, "%s", r->error);
    r->words.count = 0;
}

static void clear(struct talk *t, char *argument)
{
    (void)argument;
    forget(t->r);
    say_dim("The conversation begins anew.");
}

static void set_system(struct talk *t, char *argument)
{
    struct run *r = t->r;
    char *text = *argument ? strdup(argument) : NULL;
    if (!*argument)
        return say_dim(r->a->system && *r->a->system ? "The system says: %s" : "The system says nothing.", r->a->system);
    if (!r->a->chat)
        return say_dim("This model has no template of conversations, and so no place for the system.");
    if (!text)
        return (void)failed(r->self, "no memory");
    free(t->system);
    t->system = text, r->a->system = text;
    const int begun = r->words.count > 0;
    forget(r);
    say_dim("The system says that before the first message%s.", begun ? ": the conversation begins anew" : "");
}

/* Another cache, which reads all that was said. */
static void set_cache(struct talk *t, char *argument)
{
    struct run *r = t->r;
    struct llm_state *before = r->state, *state = NULL;
    aura_format format;
    char name[16];
    if (!*argument)
        return say_dim("The cache is %s; /cache k3v3 makes it another.", run_cache_name(r, name));
    if (!strcmp(argument, "profile"))
        memset(&format, 0, sizeof format);
    else if (parse_format(r->self, "/cache", argument, &format))
        return;
    if (run_make_state(r, format, &state))
        return;
    r->state = state;
    r->shows_reading = r->words.count > LLM_PART;
    const int bad = run_read_on(r);
    end_progress();
    r->shows_reading = 0;
    if (bad || run_interrupted()) {
        r->state = before;
        llm_state_destroy(state);
        return say_dim("The cache stays %s.", run_cache_name(r, name));
    }
    llm_state_destroy(before);
    r->a->cache = format;
    const size_t tokens = llm_state_tokens(state);
    say_dim("The cache is %s now, %zu token%s, %.2f MB.", run_cache_name(r, name), tokens, run_plural(tokens),
            (double)llm_state_bytes(state) / 1e6);
}

static void save(struct talk *t, char *argument)
{
    struct run *r = t->r;
    if (!*argument)
        return say_dim("/save needs the name of a file.");
    if (!r->words.count)
        return say_dim("Nothing has been said yet.");
    if (conversation_save(&r->words, r->state, run_model(r), argument, r->error))
        return (void)failed(r->self, "/save %s", r->error);
    say_dim("Saved; `aura run MODEL --load %s` or /load %s goes on with it.", argument, argument);
}

/* The format of the caches in a file; what is wrong with it, loading will say. */
static aura_format saved_format(const char *path, aura_format otherwise)
{
    aura_ctx *ctx = NULL;
    aura_listing *listing = NULL;
    aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
    aura_format format = otherwise;
    if (!aura_ctx_create(NULL, &ctx) && !aura_list_file(ctx, path, &listing) && !aura_listing_get_layer(listing, 0, &layer) &&
        layer.config.format.k)
        format = layer.config.format;
    aura_listing_destroy(listing);
    aura_ctx_destroy(ctx);
    return format;
}

static void load(struct talk *t, char *argument)
{
    struct run *r = t->r;
    struct conversation words = {0};
    struct llm_state *state = NULL;
    char name[16];
    if (!*argument)
        return say_dim("/load needs the name of a file.");
    const aura_format format = saved_format(argument, r->a->cache);
    if (run_make_state(r, format, &state))
        return;
    if (conversation_load(&words, state, run_model(r), argument, r->error)) {
        failed(r->self, "/load %s", r->error);
        conversation_free(&words);
        return llm_state_destroy(state);
    }
    llm_state_destroy(r->state), conversation_free(&r->words);
    r->state = state, r->words = words, r->a->cache = format;
    say_dim("Loaded: %zu token%s, cache %s.", words.count, run_plural(words.count), run_cache_name(r, name));
}

static void stats(struct talk *t, char *argument)
{
    const struct run *r = t->r;
    const struct llm_shape *s = llm_shape(r->llm);
    const size_t tokens = llm_state_tokens(r->state), room = llm_state_capacity(r->state);
    const aura_model_cache_info info = llm_state_info(r->state);
    char name[16];
    (void)argument;
    printf("model    %s: %s, %u layers, %u query heads, %u KV heads, D %u\n", r->a->model, s->arch, s->layers, s->q_heads,
           s->kv_heads, s->head_dim);
    printf("cache    %s, %.2f bits per value, %.2f MB; in f16 it would be %.2f MB\n", run_cache_name(r, name),
           llm_state_bits(r->state), (double)llm_state_bytes(r->state) / 1e6, (double)f16_bytes(r, tokens) / 1e6);
    printf("context  %zu token%s of %zu\n", tokens, run_plural(tokens), room);
    printf("work     %llu tiles encoded, %.2f s in attention and what it appends\n", (unsigned long long)info.tiles_closed,
           info.append_s + info.attend_s + info.step_s);
    if (r->ended)
        printf("last     prompt: %zu token%s, %.1f tokens/s; answer: %zu token%s, %.1f tokens/s\n", r->prompt,
               run_plural(r->prompt), run_prompt_rate(r), r->said, run_plural(r->said), run_said_rate(r));
}

static void bye(struct talk *t, char *argument)
{
    (void)argument;
    t->over = 1;
}

static const struct talk_command {
    const char *name, *argument, *help;
    void (*run)(struct talk *t, char *argument);
} talk_commands[] = {{"/help", "", "these commands", help},
                     {"/cache", "FORMAT", "another format of the cache, k3v3 or f16; the conversation goes on", set_cache},
                     {"/save", "FILE", "keep the conversation", save},
                     {"/load", "FILE", "go on with one that was kept", load},
                     {"/clear", "", "begin anew", clear},
                     {"/system", "TEXT", "what the system says before the first message; begins anew", set_system},
                     {"/stats", "", "the model, the cache, how fast", stats},
                     {"/bye", "", "end; so does Ctrl-D", bye}};

static void help(struct talk *t, char *argument)
{
    (void)argument;
    for (size_t i = 0; i < sizeof talk_commands / sizeof *talk_commands; i++)
        printf("%-8s %-7s %s\n", talk_commands[i].name, talk_commands[i].argument, talk_commands[i].help);
    printf("Ctrl-C stops an answer. %sA message of several lines %sstands between two \"\"\".\n",
           line_editor_edits(t->editor) ? "Arrows bring back what was typed. " : "",
           line_editor_edits(t->editor) ? "is pasted, or " : "");
}

static void command(struct talk *t, char *line)
{
    char *argument = line + strcspn(line, " \t");
    while (isspace((unsigned char)*argument))
        *argument++ = 0;
    for (size_t n = strlen(argument); n && isspace((unsigned char)argument[n - 1]); n--)
        argument[n - 1] = 0;
    for (size_t i = 0; i < sizeof talk_commands / sizeof *talk_commands; i++)
        if (!strcmp(talk_commands[i].name, line))
            return talk_commands[i].run(t, argument);
    say_dim("There is no command %s; /help shows them.", line);
}

/* ---- messages --------------------------------------------------------------------------------------------------------------- */

/* The model answers. Where nothing of an answer came, the message is taken back. */
static void answer(struct talk *t, const char *message)
{
    struct run *r = t->r;
    const size_t before = r->words.count, read = llm_state_tokens(r->state);
    int bad = run_add_prompt(r, message) || run_speak(r);
    if (!bad && (r->said || !strcmp(r->ended, "end")))
        return say_rates(r);
    if (!bad && run_interrupted())
        say_dim("\nInterrupted before the first word; the message is taken back.");
    else if (!bad)
        say_dim("\nNo word came.");
    r->words.count = before;
    if (llm_state_tokens(r->state) > read && llm_state_truncate(r->state, read, r->error))
        failed(r->self, "%s", r->error);
}

/* Reads on after a """ until the next one; *line grows. */
static enum line_end read_block(struct talk *t, char **line)
{
    char *end, *more = NULL, *joined;
    memmove(*line, *line + 3, strlen(*line + 3) + 1);
    while (!(end = strstr(*line, "\"\"\""))) {
        const enum line_end got = line_editor_read(t->editor, &more);
        if (got != LINE_GOOD)
            return got;
        const size_t size = strlen(*line);
        joined = realloc(*line, size + strlen(more) + 2);
        if (!joined)
            return free(more), LINE_NO_MEMORY;
        *line = joined;
        snprintf(joined + size, strlen(more) + 2, "\n%s", more);
        free(more);
    }
    *end = 0;
    return LINE_GOOD;
}

static enum line_end read_message(struct talk *t, char **line)
{
    enum line_end got = line_editor_read(t->editor, line);
    return got == LINE_GOOD && !strncmp(*line, "\"\"\"", 3) ? read_block(t, line) : got;
}

static int take_turns(struct talk *t)
{
    while (!t->over) {
        char *line = NULL;
        run_forget_interrupt();
        const enum line_end got = read_message(t, &line);
        if (got == LINE_NO_MEMORY)
            return free(line), failed(t->r->self, "no memory");
        if (got == LINE_OVER)
            t->over = 1;
        if (got == LINE_OVER)
            printf("\n");
        else if (got == LINE_INTERRUPTED)
            printf("\n"), say_dim("Ctrl-D or /bye ends the conversation.");
        run_forget_interrupt();
        const size_t blank = got == LINE_GOOD ? strspn(line, " \t\n") : 0;
        if (got == LINE_GOOD && line[blank] == '/')
            command(t, line + blank);
        else if (got == LINE_GOOD && line[blank])
            answer(t, line);
        fflush(stdout);
        free(line);
    }
    return 0;
}

static void greet(struct talk *t)
{
    const struct run *r = t->r;
    const char *slash = strrchr(r->a->model, '/');
    char name[16];
    say_dim("%s, cache %s, room for %zu tokens; /help shows the commands", slash ? slash + 1 : r->a->model, run_cache_name(r, name),
            llm_state_capacity(r->state));
    if (!r->a->chat)
        say_dim("The file has no template of conversations that is known here: the model goes on with what you type.");
    if (r->words.count)
        say_dim("%s: %zu token%s have been said.", r->a->load, r->words.count, run_plural(r->words.count));
}

int run_chat(struct run *r)
{
    struct talk t = {.r = r};
    char *text = NULL;
    int status = 0;
    if (r->a->load)
        r->a->cache = saved_format(r->a->load, r->a->cache);
    status = run_open(r);
    if (status)
        return status;
    struct chat_turn turn = {"user", "?"};
    r->a->chat = !chat_prompt(r->file, &turn, 1, &text, NULL, r->error);
    free(text);
    r->out.to = stdout;
    if (r->a->system && !r->a->chat)
        return failed(r->self, "--system: %s", r->error);
    t.editor = line_editor_open("> ");
    if (!t.editor)
        return failed(r->self, "no memory");
    greet(&t);
    status = take_turns(&t);
    line_editor_close(t.editor);
    free(t.system);
    if (!status && r->a->save && r->words.count && conversation_save(&r->words, r->state, run_model(r), r->a->save, r->error))
        status = failed(r->self, "--save %s", r->error);
    return status;
}
