/* Conversations in files. The note of the snapshot is text:
 *     aura conversation 2
 *     model 8d307920a69d08ff
 *     weights 21f6d0c3a1b2c3d4
 *     tokens 3
 *     504 3575 282
 * Version 1 has the same lines in FILE.tokens, but for the third, which names the snapshot beside it:
 *     snapshot 8941555241...         the first 64 bytes of FILE, whose checksum covers those of all its sections */
#define _POSIX_C_SOURCE 200809L
#include "conversation.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../src/base/regular.h"

enum { HEADER = 64, MOST_TOKENS = 1 << 28 };

__attribute__((format(printf, 2, 3))) static int fail(char *error, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(error, LLM_ERROR_BYTES, format, arguments);
    va_end(arguments);
    return 1;
}

int conversation_add(struct conversation *c, const uint32_t *tokens, size_t count)
{
    if (count > c->room - c->count) {
        size_t room = 2 * (c->count + count);
        uint32_t *grown = realloc(c->tokens, room * sizeof *grown);
        if (!grown)
            return -1;
        c->tokens = grown, c->room = room;
    }
    if (count)
        memcpy(c->tokens + c->count, tokens, count * sizeof *tokens);
    c->count += count;
    return 0;
}

void conversation_free(struct conversation *c)
{
    free(c->tokens);
    memset(c, 0, sizeof *c);
}

/* The header of a snapshot in hexadecimal digits. */
static int snapshot_name(const char *path, char name[2 * HEADER + 1], char *error)
{
    uint8_t bytes[HEADER];
    FILE *file = aura_open_regular(path);
    size_t got = file ? fread(bytes, 1, HEADER, file) : 0;
    if (file)
        fclose(file);
    if (got != HEADER)
        return fail(error, "%.150s: %s", path, file ? "too short for a snapshot" : strerror(errno));
    for (int i = 0; i < HEADER; i++)
        snprintf(name + 2 * i, 3, "%02x", bytes[i]);
    return 0;
}

static char *tokens_path(const char *path, char *error)
{
    char *name = malloc(strlen(path) + sizeof ".tokens");
    if (!name)
        fail(error, "no memory");
    else
        sprintf(name, "%s.tokens", path);
    return name;
}

/* A list of version 1 is out of date beside a new snapshot. Any other file of its name is somebody else's. */
static void remove_list(const char *name)
{
    static const char begin[] = "aura conversation 1";
    char text[sizeof begin] = "";
    FILE *file = aura_open_regular(name);
    const int is_list = file && fgets(text, sizeof text, file) && !strcmp(text, begin);
    if (file)
        fclose(file);
    if (is_list)
        remove(name);
}

int conversation_save(const struct conversation *c, const struct llm_state *state, struct conversation_model model,
                      const char *path, char error[LLM_ERROR_BYTES])
{
    const size_t room = 128 + 11 * c->count;
    char *note = malloc(room), *name = tokens_path(path, error);
    if (!note || !name)
        return free(note), free(name), fail(error, "no memory for %zu tokens", c->count);
    size_t at = (size_t)snprintf(note, room, "aura conversation 2\nmodel %016" PRIx64 "\nweights %016" PRIx64 "\ntokens %zu\n",
                                 model.header, model.weights, c->count);
    for (size_t i = 0; i < c->count; i++)
        at += (size_t)snprintf(note + at, room - at, "%" PRIu32 "%c", c->tokens[i], i + 1 == c->count || i % 20 == 19 ? '\n' : ' ');
    int failed = llm_state_save(state, path, note, at, error);
    if (!failed)
        remove_list(name);
    free(note), free(name);
    return failed;
}

/* Reads the tokens of a note. */
static int read_note(struct conversation *c, struct conversation_model model, const char *note, const char *path, char *error)
{
    struct conversation_model maker = {0, 0};
    unsigned version = 0;
    size_t count = 0;
    int at = 0;
    if (sscanf(note, "aura conversation %9u", &version) != 1)
        return fail(error, "%.150s: its note is not of a conversation", path);
    if (version != 2)
        return fail(error, "%.150s is of version %u; versions 1 and 2 are supported", path, version);
    if (sscanf(note, "aura conversation 2 model %16" SCNx64 " weights %16" SCNx64 " tokens %9zu%n", &maker.header, &maker.weights,
               &count, &at) != 3 || count > MOST_TOKENS)
        return fail(error, "%.150s: the note of its conversation is damaged", path);
    if (maker.header != model.header || maker.weights != model.weights)
        return fail(error, "%.150s is a conversation with another model%s", path,
                    maker.header == model.header ? ": one of the same shape with other weights" : "");
    const char *next = note + at;
    for (size_t i = 0; i < count; i++) {
        char *end;
        unsigned long token = strtoul(next, &end, 10);
        if (end == next || token > UINT32_MAX)
            return fail(error, "%.150s ends after %zu of %zu tokens", path, i, count);
        next = end;
        if (conversation_add(c, &(uint32_t){(uint32_t)token}, 1))
            return fail(error, "no memory for %zu tokens", count);
    }
    return 0;
}

/* Reads the lines before the tokens, and how many tokens follow. */
static int read_head(FILE *file, uint64_t model, const char *snapshot, const char *path, size_t *count, char *error)
{
    char of[2 * HEADER + 1] = "";
    uint64_t maker = 0;
    unsigned version = 0;
    if (fscanf(file, "aura conversation %9u model %16" SCNx64 " snapshot %128[0-9a-f] tokens %9zu", &version, &maker, of,
               count) != 4)
        return fail(error, "%.150s is not a list of a conversation's tokens, or is damaged", path);
    if (version != 1)
        return fail(error, "%.150s is of version %u; version 1 is supported", path, version);
    if (maker != model)
        return fail(error, "%.150s is a conversation with another model", path);
    if (strcmp(of, snapshot))
        return fail(error, "%.150s belongs to another snapshot than the one beside it", path);
    return *count > MOST_TOKENS ? fail(error, "%.150s: %zu tokens are too many", path, *count) : 0;
}

static int read_tokens(struct conversation *c, uint64_t model, const char *snapshot, const char *path, char *error)
{
    FILE *file = aura_open_regular(path);
    size_t count = 0;
    if (!file)
        return fail(error, "%.150s: %s", path, strerror(errno));
    int failed = read_head(file, model, snapshot, path, &count, error);
    for (size_t i = 0; i < count && !failed; i++) {
        uint32_t token;
        if (fscanf(file, "%10" SCNu32, &token) != 1)
            failed = fail(error, "%.150s ends after %zu of %zu tokens", path, i, count);
        else if (conversation_add(c, &token, 1))
            failed = fail(error, "no memory for %zu tokens", count);
    }
    fclose(file);
    return failed;
}

/* The tokens of a pair of files. */
static int read_pair(struct conversation *c, uint64_t model, const char *path, char *error)
{
    char snapshot[2 * HEADER + 1], *name = tokens_path(path, error);
    int failed = !name || snapshot_name(path, snapshot, error) || read_tokens(c, model, snapshot, name, error);
    free(name);
    return failed;
}

int conversation_load(struct conversation *c, struct llm_state *state, struct conversation_model model, const char *path,
                      char error[LLM_ERROR_BYTES])
{
    char *note = NULL, why[LLM_ERROR_BYTES];
    int failed = llm_state_note(state, path, &note, why) ? fail(error, "%.60s: %s", path, why)
                 : note                                  ? read_note(c, model, note, path, error)
                                                         : read_pair(c, model.header, path, error);
    if (!failed && llm_state_load(state, path, why))
        failed = fail(error, "%.60s: %s", path, why);
    if (!failed && llm_state_tokens(state) > c->count) {
        failed = fail(error, "%.150s has %zu tokens, and its snapshot %zu", path, c->count, llm_state_tokens(state));
        llm_state_truncate(state, 0, why);
    }
    free(note);
    return failed;
}
