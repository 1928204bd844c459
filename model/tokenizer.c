/* A tokenizer out of a GGUF file. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tokenizer_parts.h"

struct gguf_text tokenizer_bytes(const struct tokenizer *t, uint32_t token)
{
    const struct vocab *v = &t->vocab;
    if (token >= v->size || t->ends[token])
        return (struct gguf_text){"", 0};
    return (struct gguf_text){v->bytes + v->begin[token], v->begin[token + 1] - v->begin[token]};
}

int tokenizer_ends(const struct tokenizer *t, uint32_t token)
{
    return token < t->vocab.size && t->ends[token];
}

uint32_t tokenizer_size(const struct tokenizer *t)
{
    return t->vocab.size;
}

/* ---- the file ------------------------------------------------------------------------------------------------------ */

/* The beginning of a name from a file, safe to print in a message. */
static const char *shown(struct gguf_text text, char out[41])
{
    size_t n = text.size < 40 ? text.size : 40;
    for (size_t i = 0; i < n; i++)
        out[i] = text.data[i] > 0x20 && text.data[i] < 0x7f ? text.data[i] : '?';
    out[n] = 0;
    return out;
}

/* Names of pre-tokenizers. A file without one is from the time when GPT-2's was the only one. */
static int read_rule(struct tokenizer *t, const struct gguf *file, char error[GGUF_ERROR_BYTES])
{
    static const struct {
        const char *name;
        enum pretoken_rule rule;
    } rules[] = {{"smollm", PRETOKEN_SMOLLM},     {"gpt-2", PRETOKEN_GPT2},    {"gpt2", PRETOKEN_GPT2},
                 {"default", PRETOKEN_GPT2},      {"llama-bpe", PRETOKEN_LLAMA3}, {"llama-v3", PRETOKEN_LLAMA3},
                 {"llama3", PRETOKEN_LLAMA3},     {"qwen2", PRETOKEN_QWEN2},   {"deepseek-r1-qwen", PRETOKEN_QWEN2}};
    struct gguf_text name = {"default", 7};
    char text[41];
    if (gguf_string(file, "tokenizer.ggml.pre", &name) < 0)
        return snprintf(error, GGUF_ERROR_BYTES, "tokenizer.ggml.pre must be a string"), 1;
    for (size_t i = 0; i < sizeof rules / sizeof *rules; i++)
        if (gguf_text_is(name, rules[i].name)) {
            t->rule = rules[i].rule;
            return 0;
        }
    snprintf(error, GGUF_ERROR_BYTES, "pre-tokenizer %s is not supported; smollm, gpt-2, llama-bpe and qwen2 are",
             shown(name, text));
    return 1;
}

/* Reads a token's number from its key; leaves *token as it is where the file lacks the key. */
static int read_id(const struct tokenizer *t, const struct gguf *file, const char *key, uint32_t *token,
                   char error[GGUF_ERROR_BYTES])
{
    uint64_t value;
    int found = gguf_uint(file, key, &value);
    if (found < 0 || (found && value >= t->vocab.size))
        return snprintf(error, GGUF_ERROR_BYTES, "%s must be the number of one of %u tokens", key, t->vocab.size), 1;
    if (found)
        *token = (uint32_t)value;
    return 0;
}

/* Where the file does not say, these are SentencePiece's numbers: unknown 0, before a text 1, after it 2. */
static int read_ids(struct tokenizer *t, const struct gguf *file, char error[GGUF_ERROR_BYTES])
{
    int sentence = !t->vocab.byte_level && t->vocab.size > 2;
    t->unknown = sentence ? 0 : NO_TOKEN, t->bos = sentence ? 1 : NO_TOKEN, t->eos = sentence ? 2 : NO_TOKEN;
    t->add_bos = !t->vocab.byte_level || t->rule == PRETOKEN_LLAMA3;
    t->space_first = !t->vocab.byte_level;
    t->whole_words = t->vocab.byte_level && t->rule == PRETOKEN_LLAMA3;
    if (read_id(t, file, "tokenizer.ggml.bos_token_id", &t->bos, error) ||
        read_id(t, file, "tokenizer.ggml.eos_token_id", &t->eos, error) ||
        (sentence && read_id(t, file, "tokenizer.ggml.unknown_token_id", &t->unknown, error)))
        return 1;
    if (gguf_bool(file, "tokenizer.ggml.add_bos_token", &t->add_bos) < 0 ||
        gguf_bool(file, "tokenizer.ggml.add_eos_token", &t->add_eos) < 0 ||
        gguf_bool(file, "tokenizer.ggml.add_space_prefix", &t->space_first) < 0)
        return snprintf(error, GGUF_ERROR_BYTES,
                        "tokenizer.ggml.add_bos_token, add_eos_token and add_space_prefix must be truth values"), 1;
    if ((t->add_bos && t->bos == NO_TOKEN) || (t->add_eos && t->eos == NO_TOKEN))
        return snprintf(error, GGUF_ERROR_BYTES, "the file says that a text gets a token before or after it, but not which"), 1;
    return 0;
}

/* Tokens that end a text or a turn: the file names some, and this list of names has the others. */
static int read_ends(struct tokenizer *t, const struct gguf *file, char error[GGUF_ERROR_BYTES])
{
    static const char *const names[] = {"<|endoftext|>", "<|end_of_text|>", "<|im_end|>", "<|eot_id|>",    "<|eom_id|>",
                                        "<|end|>",       "</s>",            "<EOT>",      "<end_of_turn>", "<eos>"};
    uint32_t token = NO_TOKEN, turn = NO_TOKEN, message = NO_TOKEN;
    if (read_id(t, file, "tokenizer.ggml.eot_token_id", &turn, error) ||
        read_id(t, file, "tokenizer.ggml.eom_token_id", &message, error))
        return 1;
    if (!(t->ends = calloc(t->vocab.size, 1)))
        return snprintf(error, GGUF_ERROR_BYTES, "no memory for the vocabulary"), 1;
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if ((token = vocab_find(&t->vocab, names[i], strlen(names[i]))) != NO_TOKEN)
            t->ends[token] = 1;
    uint32_t said[] = {t->eos, turn, message};
    for (size_t i = 0; i < 3; i++)
        if (said[i] != NO_TOKEN)
            t->ends[said[i]] = 1;
    return 0;
}

static int longer(const void *a, const void *b)
{
    const struct special *x = a, *y = b;
    return x->name.size != y->name.size ? (x->name.size < y->name.size ? 1 : -1) : x->token < y->token ? -1 : 1;
}

static int is_special(const struct tokenizer *t, uint32_t token)
{
    enum token_type type = t->vocab.type[token];
    return (t->ends[token] || type == TOKEN_CONTROL || type == TOKEN_USER || type == TOKEN_UNKNOWN) &&
           gguf_array_text(t->vocab.texts, token).size > 0;
}

static int list_specials(struct tokenizer *t, char error[GGUF_ERROR_BYTES])
{
    size_t n = 0;
    for (uint32_t i = 0; i < t->vocab.size; i++)
        n += (size_t)is_special(t, i);
    if (!(t->special = malloc((n + 1) * sizeof *t->special)))
        return snprintf(error, GGUF_ERROR_BYTES, "no memory for the vocabulary"), 1;
    for (uint32_t i = 0; i < t->vocab.size; i++)
        if (is_special(t, i)) {
            struct gguf_text name = gguf_array_text(t->vocab.texts, i);
            t->special[t->specials++] = (struct special){name, i, t->ends[i] || t->vocab.type[i] != TOKEN_USER};
            t->begins[(uint8_t)name.data[0]] = 1;
        }
    qsort(t->special, n, sizeof *t->special, longer);
    return 0;
}

int tokenizer_create(const struct gguf *file, struct tokenizer **tokenizer, char error[GGUF_ERROR_BYTES])
{
    struct gguf_text model;
    char text[41];
    *tokenizer = NULL;
    if (gguf_string(file, "tokenizer.ggml.model", &model) != 1)
        return snprintf(error, GGUF_ERROR_BYTES, "the file has no tokenizer: tokenizer.ggml.model is missing"), 1;
    int byte_level = gguf_text_is(model, "gpt2");
    if (!byte_level && !gguf_text_is(model, "llama"))
        return snprintf(error, GGUF_ERROR_BYTES, "tokenizer %s is not supported; gpt2 and llama are", shown(model, text)), 1;
    struct tokenizer *t = calloc(1, sizeof *t);
    if (!t)
        return snprintf(error, GGUF_ERROR_BYTES, "no memory for the vocabulary"), 1;
    if (vocab_read(&t->vocab, file, byte_level, error) || (byte_level && read_rule(t, file, error)) || read_ids(t, file, error) ||
        read_ends(t, file, error) || list_specials(t, error)) {
        tokenizer_destroy(t);
        return 1;
    }
    *tokenizer = t;
    return 0;
}

void tokenizer_destroy(struct tokenizer *t)
{
    if (!t)
        return;
    vocab_free(&t->vocab);
    free(t->ends), free(t->special);
    free(t);
}
