/* aura tokens: prints the tokens of a text, as a model gets them. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../model/tokenizer.h"
#include "tool.h"

struct arguments {
    const char *prompt, *text;
    int special, no_begin, json, csv;
};

static const struct option options[] = {
    TEXT(prompt, "-p, --prompt", "TEXT", "the text"),
    PATH(text, "--text", "FILE", "the text, of a file; - is the standard input"),
    FLAG(special, "--special", "names of control tokens in the text are those tokens"),
    FLAG(no_begin, "--no-begin", "without the tokens that go before and after a text"),
    FLAG(json, "--json", "as JSON"),
    FLAG(csv, "--csv", "as CSV"),
    LAST_OPTION};

static char *read_text(const struct arguments *c, size_t *size)
{
    if (c->prompt) {
        *size = strlen(c->prompt);
        char *copy = malloc(*size + 1);
        return copy ? strcpy(copy, c->prompt) : NULL;
    }
    return read_file(c->text, size);
}

/* Prints bytes that are not printable ASCII as \x and two digits: a token may be part of a character. */
static void print_bytes(struct gguf_text bytes, int csv)
{
    for (size_t i = 0; i < bytes.size; i++) {
        unsigned char c = (unsigned char)bytes.data[i];
        printf(c == '"' && csv ? "\"\"" : c == '"' || c == '\\' ? "\\%c" : c >= 0x20 && c < 0x7f ? "%c" : "\\x%02x", c);
    }
}

static void print_tokens(const struct tokenizer *t, const uint32_t *tokens, size_t n, int json)
{
    if (json)
        printf("{\"count\": %zu, \"tokens\": [", n);
    for (size_t i = 0; i < n; i++) {
        printf(json ? "%s%u" : "%s%u \"", json && i ? ", " : "", tokens[i]);
        if (!json) {
            print_bytes(tokenizer_bytes(t, tokens[i]), 0);
            printf("\"%s\n", tokenizer_ends(t, tokens[i]) ? " ends" : "");
        }
    }
    if (json)
        printf("]}\n");
}

static void print_csv(const struct tokenizer *t, const uint32_t *tokens, size_t n)
{
    printf("token,text,ends\n");
    for (size_t i = 0; i < n; i++) {
        printf("%u,\"", tokens[i]);
        print_bytes(tokenizer_bytes(t, tokens[i]), 1);
        printf("\",%s\n", tokenizer_ends(t, tokens[i]) ? "true" : "false");
    }
}

static int run_tokens(const struct command *self, int argc, char **argv)
{
    struct arguments c = {0};
    const char *model = NULL;
    struct gguf *file = NULL;
    struct tokenizer *tokenizer = NULL;
    char error[GGUF_ERROR_BYTES], *text = NULL;
    uint32_t *tokens = NULL;
    size_t size = 0, n = 0;
    int status = parse_options(self, argc, argv, &c, &model);
    if (status)
        return status;
    if (!model || !c.prompt == !c.text)
        return usage_error(self, "needs a model, GGUF, and a text: -p TEXT or --text FILE");
    if (gguf_open(model, &file, error) || tokenizer_create(file, &tokenizer, error))
        status = failed(self, "%s: %s", model, error);
    else if (!(text = read_text(&c, &size)))
        status = failed(self, "%s: %s", c.text ? c.text : "the text", strerror(errno));
    else if (n = tokenizer_encode(tokenizer, text, size, c.special, !c.no_begin, &tokens), !tokens)
        status = failed(self, "no memory for the tokens of %zu bytes", size);
    else if (c.csv && !c.json)
        print_csv(tokenizer, tokens, n);
    else
        print_tokens(tokenizer, tokens, n, c.json);
    free(tokens), free(text);
    tokenizer_destroy(tokenizer);
    gguf_close(file);
    return status;
}

const struct command command_tokens = {
    "tokens", "print the tokens that a model has for a text", "MODEL -p TEXT | --text FILE [OPTIONS]",
    "A line for each token of the text: its number, its bytes, and whether it ends a\n"
    "text or a turn. Control tokens have no bytes.\n",
    "MODEL", NULL, options, "aura tokens model.gguf -p 'Hello, world'\n", run_tokens};
