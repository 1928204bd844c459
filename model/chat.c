/* Conversations as text. The templates of one family differ in their spaces, in whether they trim turns, and in the system's turn
 * that they add to a conversation without one. The code reads these three out of the template. */
#include "chat.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct prompt {
    const struct gguf *file;
    struct gguf_text template;
    char *text;
    size_t size, room;
    struct chat_range content; /* of the turn that was written last */
    int failed;
};

/* ---- pieces of text ------------------------------------------------------------------------------------------------ */

static const char *find(struct gguf_text text, const char *what)
{
    size_t n = strlen(what);
    for (size_t at = 0; n <= text.size && at <= text.size - n; at++)
        if (!memcmp(text.data + at, what, n))
            return text.data + at;
    return NULL;
}

static int has(const struct prompt *p, const char *what)
{
    return find(p->template, what) != NULL;
}

static void put_bytes(struct prompt *p, const char *bytes, size_t size)
{
    if (p->failed)
        return;
    if (size >= p->room - p->size) {
        char *grown = realloc(p->text, 2 * (p->size + size) + 256);
        if (!grown) {
            p->failed = 1;
            return;
        }
        p->text = grown, p->room = 2 * (p->size + size) + 256;
    }
    if (size)
        memcpy(p->text + p->size, bytes, size);
    p->size += size;
    p->text[p->size] = 0;
}

static void put(struct prompt *p, const char *text)
{
    put_bytes(p, text, strlen(text));
}

static int is_space(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

static void put_content(struct prompt *p, const char *content, int trimmed)
{
    size_t n = strlen(content);
    for (; trimmed && n && is_space(*content); n--)
        content++;
    while (trimmed && n && is_space(content[n - 1]))
        n--;
    p->content = (struct chat_range){p->size, p->size + n};
    put_bytes(p, content, n);
}

/* The key's value is the number of a token: returns the name of that token, or `otherwise` where the file lacks the key. */
static void put_token(struct prompt *p, const char *key, const char *otherwise)
{
    const struct gguf_value *tokens = gguf_find(p->file, "tokenizer.ggml.tokens");
    uint64_t token;
    struct gguf_text name = {"", 0};
    if (tokens && gguf_uint(p->file, key, &token) == 1)
        name = gguf_array_text(tokens, token);
    if (name.size)
        put_bytes(p, name.data, name.size);
    else
        put(p, otherwise);
}

static void put_end_of_text(struct prompt *p)
{
    put_token(p, "tokenizer.ggml.eos_token_id", "</s>");
}

static int is(const struct chat_turn *turn, const char *role)
{
    return !strcmp(turn->role, role);
}

/* ---- families ------------------------------------------------------------------------------------------------------ */

/* A template of ChatML may hold a system's turn as a literal, for conversations without one. The literal writes a newline as such
 * or as \n. A quote or a brace before its end means that it is no literal; so only what follows the last of these is searched. */
static struct gguf_text system_literal(struct gguf_text template)
{
    static const char begin[] = "<|im_start|>system", end[] = "<|im_end|>";
    struct gguf_text none = {"", 0}, rest = template;
    for (const char *stop; (stop = find(rest, end)) != NULL;) {
        const char *clean = stop, *at;
        while (clean > rest.data && clean[-1] != '\'' && clean[-1] != '"' && clean[-1] != '{')
            clean--;
        while ((at = find((struct gguf_text){clean, (size_t)(stop - clean)}, begin)) != NULL) {
            clean = at + strlen(begin);
            const size_t left = (size_t)(stop - clean);
            const size_t newline = left > 1 && clean[0] == '\\' && clean[1] == 'n' ? 2 : left > 0 && clean[0] == '\n';
            if (newline && left > newline)
                return (struct gguf_text){clean + newline, left - newline};
        }
        rest = (struct gguf_text){stop + strlen(end), (size_t)(template.data + template.size - stop) - strlen(end)};
    }
    return none;
}

static void chatml(struct prompt *p, const struct chat_turn *turns, size_t n)
{
    struct gguf_text literal = system_literal(p->template);
    if (literal.size && (n == 0 || !is(&turns[0], "system"))) {
        put(p, "<|im_start|>system\n");
        put_bytes(p, literal.data, literal.size);
        put(p, "<|im_end|>\n");
    }
    for (size_t i = 0; i < n; i++) {
        put(p, "<|im_start|>"), put(p, turns[i].role), put(p, "\n");
        put_content(p, turns[i].content, 0), put(p, "<|im_end|>\n");
    }
    put(p, "<|im_start|>assistant\n");
}

static void llama3(struct prompt *p, const struct chat_turn *turns, size_t n)
{
    int trimmed = has(p, "| trim") || has(p, "|trim");
    for (size_t i = 0; i < n; i++) {
        put(p, "<|start_header_id|>"), put(p, turns[i].role), put(p, "<|end_header_id|>\n\n");
        put_content(p, turns[i].content, trimmed), put(p, "<|eot_id|>");
    }
    put(p, "<|start_header_id|>assistant<|end_header_id|>\n\n");
}

/* Llama 2 and Mistral: the system's turn is part of the first user's. */
static void inst(struct prompt *p, const struct chat_turn *turns, size_t n)
{
    int trimmed = has(p, "strip()") || has(p, "| trim") || has(p, "|trim"), marked = has(p, "<<SYS>>");
    int space_before_answer = has(p, "' ' + message") || has(p, "\" \" + message") || has(p, "' ' + content") ||
                              has(p, "' '  + content");
    int begin_each = has(p, "bos_token + '[INST]") || has(p, "bos_token + \"[INST]");
    const char *open = has(p, "[INST] ") ? "[INST] " : "[INST]", *close = has(p, " [/INST]") ? " [/INST]" : "[/INST]";
    const struct chat_turn *system = n && is(&turns[0], "system") ? &turns[0] : NULL;
    for (size_t i = system ? 1 : 0, users = 0; i < n; i++) {
        if (!is(&turns[i], "user")) {
            put(p, space_before_answer ? " " : ""), put_content(p, turns[i].content, trimmed);
            put(p, has(p, "+ ' ' + eos_token") ? " " : ""), put_end_of_text(p);
            continue;
        }
        if (begin_each && users)
            put_token(p, "tokenizer.ggml.bos_token_id", "<s>");
        put(p, open);
        if (system && users == 0) {
            put(p, marked ? "<<SYS>>\n" : ""), put_content(p, system->content, trimmed);
            put(p, marked ? "\n<</SYS>>\n\n" : "\n\n");
        }
        put_content(p, turns[i].content, trimmed), put(p, close);
        users++;
    }
}

static void zephyr(struct prompt *p, const struct chat_turn *turns, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        put(p, "<|"), put(p, turns[i].role), put(p, "|>\n");
        put_content(p, turns[i].content, 0), put_end_of_text(p), put(p, "\n");
    }
    put(p, "<|assistant|>\n");
}

typedef void family(struct prompt *p, const struct chat_turn *turns, size_t n);

/* The family of a template; NULL: this code knows none. */
static family *family_of(const struct prompt *p)
{
    if (has(p, "<|im_start|>") && has(p, "<|im_end|>") && !has(p, "<|im_sep|>"))
        return chatml;
    if (has(p, "<|start_header_id|>") && has(p, "<|end_header_id|>") && has(p, "<|eot_id|>"))
        return llama3;
    if (has(p, "[INST]") && has(p, "[/INST]") && !has(p, "[SYSTEM_PROMPT]"))
        return inst;
    if (has(p, "<|user|>") && has(p, "<|assistant|>") && has(p, "eos_token") && !has(p, "<|end|>"))
        return zephyr;
    return NULL;
}

int chat_prompt(const struct gguf *file, const struct chat_turn *turns, size_t n, char **text, struct chat_range *last,
                char error[GGUF_ERROR_BYTES])
{
    struct prompt p = {.file = file};
    *text = NULL;
    if (gguf_string(file, "tokenizer.chat_template", &p.template) != 1)
        return snprintf(error, GGUF_ERROR_BYTES, "the file has no chat template; leave out --chat for a plain prompt"), 1;
    family *render = family_of(&p);
    if (!render)
        return snprintf(error, GGUF_ERROR_BYTES,
                        "the file's chat template is none that is known here (ChatML, Llama 3, Llama 2, Mistral, Zephyr); "
                        "leave out --chat for a plain prompt"), 1;
    render(&p, turns, n);
    put(&p, "");
    if (p.failed) {
        free(p.text);
        return snprintf(error, GGUF_ERROR_BYTES, "no memory for the prompt"), CHAT_NO_MEMORY;
    }
    if (strlen(p.text) != p.size) { /* of the template, or of the name of a token: a message is a string */
        free(p.text);
        return snprintf(error, GGUF_ERROR_BYTES, "the file's chat template writes a zero byte"), 1;
    }
    if (last)
        *last = p.content;
    *text = p.text;
    return 0;
}
