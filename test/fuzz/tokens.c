/* Vocabularies, texts and chat templates, made of the bytes of the input. The tokens of a text must spell it; a control token comes
 * out of a text only where the caller lets its name count, never out of what somebody else wrote; and it does not take long. */
#define _GNU_SOURCE /* memmem */
#include "fuzz.h"

#include <time.h>

#include "../../model/chat.h"
#include "../../model/stream.h"
#include "../../model/tokenizer.h"
#include "../../model/vocab.h"
#include "../model/gguf_tools.h"

enum { MOST_TOKENS = 300, LONGEST_NAME = 15, LONGEST_TEXT = 400, REPEATS = 64 };

struct name {
    char text[LONGEST_NAME + 1];
    size_t size;
    int32_t type;
    float score;
};

/* The vocabulary as it was written. */
static struct {
    int byte_level, space_first, add_bos, add_eos;
    uint32_t n, bos, eos, unknown;
    struct name name[MOST_TOKENS];
} v;

static uint32_t choose(struct source *s, uint32_t n)
{
    return take_u8(s) % n;
}

static void put_text(struct gguf_writer *w, const char *key, const char *text, size_t size)
{
    gguf_put_key(w, key, GGUF_STRING);
    gguf_part_text(&w->keys, text, size);
}

/* ---- a file ---------------------------------------------------------------------------------------------------------------- */

static void add_name(const char *text, size_t size, int32_t type, float score)
{
    struct name *name = &v.name[v.n++];
    memcpy(name->text, text, size);
    name->size = size, name->type = type, name->score = score;
}

/* A token for each byte but some. */
static void add_bytes(uint32_t but)
{
    char text[8];
    for (uint32_t byte = 0; byte < 256; byte++) {
        size_t n = v.byte_level ? vocab_write_byte((uint8_t)byte, text) : (size_t)snprintf(text, sizeof text, "<0x%02X>", byte);
        if (!but || byte % 16 != but)
            add_name(text, n, v.byte_level ? TOKEN_NORMAL : TOKEN_BYTE, 0);
    }
}

/* Texts out of few letters, so that tokens are parts of each other, or any bytes. */
static void add_names(struct source *s)
{
    static const char *const some[] = {"<|im_end|>", "</s>", "<|endoftext|>", "\xe2\x96\x81", "<0x41>", "\xc4\xa0", "<unk>", "<s>"};
    static const char letters[] = "ab<|> e'\n";
    for (uint32_t n = choose(s, 40); n; n--) {
        char text[LONGEST_NAME + 1];
        uint32_t how = take_u8(s), size = how % (LONGEST_NAME + 1);
        for (uint32_t i = 0; i < size; i++)
            text[i] = how & 16 ? (char)take_u8(s) : letters[choose(s, sizeof letters - 1)];
        if (how >= 224) {
            const char *known = some[how % 8];
            size = (uint32_t)strlen(known);
            memcpy(text, known, size);
        }
        uint32_t type = choose(s, 12);
        add_name(text, size, type > TOKEN_BYTE ? TOKEN_NORMAL : (int32_t)type, (float)(int8_t)take_u8(s));
    }
}

/* Each token of several characters is what its parts merge into, wherever it is cut. */
static void write_merges(struct source *s, struct gguf_writer *w)
{
    uint64_t count = 0;
    for (uint32_t i = 0; i < v.n; i++)
        count += v.name[i].size > 2;
    gguf_put_array(w, "tokenizer.ggml.merges", GGUF_STRING, count);
    for (uint32_t i = 0; i < v.n; i++) {
        const struct name *name = &v.name[i];
        if (name->size <= 2)
            continue;
        char text[LONGEST_NAME + 2];
        size_t cut = 1 + choose(s, (uint32_t)name->size - 1);
        memcpy(text, name->text, cut), text[cut] = ' ';
        memcpy(text + cut + 1, name->text + cut, name->size - cut);
        gguf_part_text(&w->keys, text, name->size + 1);
    }
}

static uint32_t some_id(struct source *s, struct gguf_writer *w, const char *key, uint32_t otherwise)
{
    uint32_t how = take_u8(s), id = v.n ? (how & 1 ? v.n - 1 - how / 2 % v.n : how / 2 % v.n) : 0;
    if (how >= 192)
        return otherwise;
    gguf_put_u32(w, key, id);
    return id;
}

static void write_ids(struct source *s, struct gguf_writer *w)
{
    int sentence = !v.byte_level && v.n > 2;
    v.bos = some_id(s, w, "tokenizer.ggml.bos_token_id", sentence ? 1 : NO_TOKEN);
    v.eos = some_id(s, w, "tokenizer.ggml.eos_token_id", sentence ? 2 : NO_TOKEN);
    v.unknown = some_id(s, w, "tokenizer.ggml.unknown_token_id", 0);
    v.unknown = sentence ? v.unknown : NO_TOKEN;
    if (sentence)
        v.name[v.unknown].type = TOKEN_UNKNOWN; /* one that also spells something could not be told from it */
    uint32_t how = take_u8(s);
    v.add_bos = how & 1, v.add_eos = how >> 1 & 1, v.space_first = !v.byte_level && how & 4;
    gguf_put_bool(w, "tokenizer.ggml.add_bos_token", v.add_bos);
    gguf_put_bool(w, "tokenizer.ggml.add_eos_token", v.add_eos);
    gguf_put_bool(w, "tokenizer.ggml.add_space_prefix", v.space_first);
}

/* Parts of the templates that chat.c knows, in any order. */
static void write_template(struct source *s, struct gguf_writer *w)
{
    static const char *const parts[] = {"<|im_start|>", "<|im_end|>", "<|im_start|>system\\n", "<|im_start|>system\n", "'", "{",
                                        "\"", "<|im_sep|>", "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "| trim",
                                        "|trim", "[INST]", "[/INST]", "[INST] ", " [/INST]", "strip()", "<<SYS>>", "' ' + message",
                                        "bos_token + '[INST]", "+ ' ' + eos_token", "[SYSTEM_PROMPT]", "<|user|>", "<|assistant|>",
                                        "eos_token", "<|end|>", "You are", "\\n"};
    enum { PARTS = sizeof parts / sizeof *parts };
    char text[1024];
    size_t size = 0;
    for (uint32_t n = choose(s, 32); n; n--) {
        uint8_t byte = take_u8(s);
        const char *part = byte < 8 * PARTS ? parts[byte % PARTS] : (const char[]){(char)byte, 0};
        memcpy(text + size, part, strlen(part));
        size += strlen(part);
    }
    put_text(w, "tokenizer.chat_template", text, size);
}

static struct gguf *some_file(struct source *s, struct gguf_part *bytes)
{
    static const char *const rules[] = {"smollm", "gpt-2", "llama-bpe", "qwen2"};
    struct gguf_writer w = {{0}, {0}, {0}, 0, 0};
    struct gguf *file = NULL;
    char error[GGUF_ERROR_BYTES];
    uint32_t how = take_u8(s);
    memset(&v, 0, sizeof v);
    v.byte_level = how & 1;
    gguf_put_string(&w, "tokenizer.ggml.model", v.byte_level ? "gpt2" : "llama");
    gguf_put_string(&w, "tokenizer.ggml.pre", rules[how / 2 % 4]);
    if (how & 8)
        add_names(s), add_bytes(how / 16);
    else
        add_bytes(how / 16), add_names(s);
    write_ids(s, &w);
    gguf_put_array(&w, "tokenizer.ggml.tokens", GGUF_STRING, v.n);
    for (uint32_t i = 0; i < v.n; i++)
        gguf_part_text(&w.keys, v.name[i].text, v.name[i].size);
    gguf_put_array(&w, "tokenizer.ggml.token_type", GGUF_I32, v.n);
    for (uint32_t i = 0; i < v.n; i++)
        gguf_part_add(&w.keys, &v.name[i].type, 4);
    gguf_put_array(&w, "tokenizer.ggml.scores", GGUF_F32, v.n);
    for (uint32_t i = 0; i < v.n; i++)
        gguf_part_add(&w.keys, &v.name[i].score, 4);
    if (v.byte_level)
        write_merges(s, &w);
    write_template(s, &w);
    *bytes = gguf_finish(&w);
    MUST(!gguf_read(bytes->data, bytes->size, &file, error));
    return file;
}

/* A text without zeros: bytes of the input, and names of tokens. */
static size_t some_text(struct source *s, char text[LONGEST_TEXT + LONGEST_NAME + 1])
{
    size_t size = 0;
    for (uint32_t n = choose(s, 64); n && size < LONGEST_TEXT; n--) {
        uint8_t byte = take_u8(s);
        if (byte < 128) {
            text[size++] = (char)(byte ? byte : 'a');
            continue;
        }
        const struct name *name = &v.name[byte & 1 ? v.n - 1 - byte / 2 % v.n : byte / 2 % v.n];
        for (size_t i = 0; i < name->size; i++)
            text[size++] = name->text[i] ? name->text[i] : ' ';
    }
    text[size] = 0;
    return size;
}

/* ---- do the tokens spell the text? ----------------------------------------------------------------------------------------- */

/* Where a control token may stand for its name: nowhere, or all over but in [from, to). */
struct allowed {
    int control;
    size_t from, to;
};

static int is_text(const struct tokenizer *t, uint32_t token)
{
    return v.name[token].type == TOKEN_NORMAL && !tokenizer_ends(t, token);
}

/* The first token of that text: the others of it are never found. */
static uint32_t find(const char *text, size_t size)
{
    for (uint32_t i = 0; i < v.n; i++)
        if (v.name[i].size == size && !memcmp(v.name[i].text, text, size))
            return i;
    return NO_TOKEN;
}

static int has_token(const struct tokenizer *t, uint8_t byte)
{
    char text[8];
    size_t n = v.byte_level ? vocab_write_byte(byte, text) : (size_t)snprintf(text, sizeof text, "<0x%02X>", byte);
    uint32_t token = find(text, n);
    return token != NO_TOKEN && (v.byte_level ? is_text(t, token) : v.name[token].type == TOKEN_BYTE && !tokenizer_ends(t, token));
}

/* A text as the vocabulary writes it, byte by byte. */
struct speller {
    const struct tokenizer *t;
    const char *text;
    size_t size, at;
    size_t within;  /* of the character that stands for text[at] */
    int fresh;      /* a space goes first */
};

static size_t written(const struct speller *p, char out[3])
{
    if (v.byte_level)
        return vocab_write_byte((uint8_t)p->text[p->at], out);
    if (p->fresh || p->text[p->at] == ' ')
        return memcpy(out, "\xe2\x96\x81", 3), 3;
    return out[0] = p->text[p->at], 1;
}

/* Byte-level BPE leaves out bytes without a token. */
static void skip_lacking(struct speller *p)
{
    while (v.byte_level && p->within == 0 && p->at < p->size && !has_token(p->t, (uint8_t)p->text[p->at]))
        p->at++;
}

/* Goes on behind what the bytes spell; returns how many of them that were, 0: none. */
static size_t spell(struct speller *p, const char *bytes, size_t size)
{
    char out[3];
    for (size_t n; p->at < p->size; p->at++) {
        n = written(p, out);
        if (v.byte_level ? size >= n && !memcmp(bytes, out, n) : *bytes == out[p->within]) {
            p->within = v.byte_level ? 0 : (p->within + 1) % n;
            p->at += !p->within && !p->fresh;
            p->fresh &= p->within != 0;
            return v.byte_level ? n : 1;
        }
        if (!v.byte_level || has_token(p->t, (uint8_t)p->text[p->at]))
            return 0;
    }
    return 0;
}

static int spells(struct speller *p, const char *bytes, size_t size)
{
    for (size_t n; size; bytes += n, size -= n)
        if (!(n = spell(p, bytes, size)))
            return 0;
    return 1;
}

/* The unknown token stands for a byte without a token. */
static int lacks(struct speller *p)
{
    char out[3];
    if (v.byte_level || p->at >= p->size)
        return 0;
    written(p, out);
    return !has_token(p->t, (uint8_t)out[p->within]) && spell(p, out + p->within, 1);
}

static void report(const struct speller *p, uint32_t token)
{
    printf("  token %u \"%.*s\" of type %d%s, at %zu of \"%.*s\"\n", token, (int)v.name[token].size, v.name[token].text,
           (int)v.name[token].type, tokenizer_ends(p->t, token) ? ", an end," : "", p->at, (int)p->size, p->text);
}

/* Goes on behind the name of a special token. Bytes before it may have no token, and so may the first of its own. */
static int takes_name(struct speller *p, uint32_t token, struct allowed allowed)
{
    const struct name *name = &v.name[token];
    size_t at = p->at;
    skip_lacking(p);
    for (; p->within == 0 && name->size && at <= p->at && p->size - at >= name->size; at++) {
        int user = name->type == TOKEN_USER && !tokenizer_ends(p->t, token);
        int control = allowed.control && (at >= allowed.to || at + name->size <= allowed.from);
        if ((user || control) && !memcmp(p->text + at, name->text, name->size)) {
            p->at = at + name->size;
            p->fresh = v.space_first;
            return 1;
        }
    }
    return 0;
}

static void expect_token(struct speller *p, uint32_t token, struct allowed allowed)
{
    const struct name *name = &v.name[token];
    int byte = -1;
    if (is_text(p->t, token)) {
        if (!spells(p, name->text, name->size)) {
            report(p, token);
            MUST(!"a token that the text does not have");
        }
        return;
    }
    if (!v.byte_level && name->type == TOKEN_BYTE && !tokenizer_ends(p->t, token) && name->size == 6 &&
        sscanf(name->text, "<0x%2x>", (unsigned *)&byte) == 1 && byte >= 0) {
        if (!spells(p, &(char){(char)byte}, 1)) {
            report(p, token);
            MUST(!"a byte that the text does not have");
        }
        return;
    }
    if (takes_name(p, token, allowed))
        return;
    if (token != v.unknown || !lacks(p)) {
        report(p, token);
        MUST(!"a control token out of somebody's text, or one that spells nothing");
    }
}

static void expect_spelling(const struct tokenizer *t, const char *text, size_t size, const uint32_t *tokens, size_t n,
                            struct allowed allowed, int around)
{
    struct speller p = {t, text, size, 0, 0, v.space_first};
    struct stream shown = {0};
    size_t total = 0;
    for (size_t i = 0; i < n; i++) {
        MUST(tokens[i] < v.n);
        struct gguf_text bytes = tokenizer_bytes(t, tokens[i]);
        total += bytes.size;
        MUST(!stream_add(&shown, bytes.data, bytes.size) && shown.size == total && shown.shown <= total);
        if (around && v.add_bos && i == 0)
            MUST(tokens[i] == v.bos);
        else if (around && v.add_eos && i == n - 1)
            MUST(tokens[i] == v.eos);
        else
            expect_token(&p, tokens[i], allowed);
    }
    skip_lacking(&p);
    MUST(p.at == p.size && p.within == 0);
    stream_free(&shown);
}

static void encode(const struct tokenizer *t, const char *text, size_t size, struct allowed allowed, int around)
{
    uint32_t *tokens = NULL;
    size_t n = allowed.to ? tokenizer_encode_around(t, text, size, allowed.from, allowed.to, around, &tokens)
                          : tokenizer_encode(t, text, size, allowed.control, around, &tokens);
    MUST(tokens);
    expect_spelling(t, text, size, tokens, n, allowed, around);
    free(tokens);
}

/* A text that is long has as many tokens, and takes as long, as its length says. */
static void encode_long(const struct tokenizer *t, const char *text, size_t size)
{
    char *all = malloc(REPEATS * size + 1);
    uint32_t *tokens = NULL;
    for (size_t i = 0; i < REPEATS; i++)
        memcpy(all + i * size, text, size);
    clock_t begin = clock();
    size_t n = tokenizer_encode(t, all, REPEATS * size, 1, 0, &tokens);
    MUST((double)(clock() - begin) / CLOCKS_PER_SEC < 2);
    MUST(tokens && n <= 3 * (REPEATS * size + REPEATS));
    free(tokens), free(all);
}

/* ---- what is done with a file ----------------------------------------------------------------------------------------------- */

static void use_template(const struct gguf *file, const struct tokenizer *t, const char *text)
{
    struct chat_turn turns[] = {{"system", text}, {"user", "b <s> c"}, {"assistant", " d"}, {"user", text}};
    char error[GGUF_ERROR_BYTES] = "", *prompt = NULL;
    struct chat_range said = {0, 0};
    for (size_t first = 0; first < 4; first++) {
        if (chat_prompt(file, turns + first, 4 - first, &prompt, &said, error)) {
            MUST(!prompt && error[0]);
            continue;
        }
        size_t size = strlen(prompt), length = said.to - said.from;
        MUST(said.from <= said.to && said.to <= size && length <= strlen(text));
        MUST(!length || memmem(text, strlen(text), prompt + said.from, length));
        if (t && said.to)
            encode(t, prompt, size, (struct allowed){1, said.from, said.to}, (int)(first & 1));
        free(prompt);
    }
}

static void use_file(struct source *s, const struct gguf *file)
{
    char text[LONGEST_TEXT + LONGEST_NAME + 1], error[GGUF_ERROR_BYTES] = "";
    struct tokenizer *t = NULL;
    MUST(!tokenizer_create(file, &t, error) == !!t && (t || error[0]));
    size_t size = some_text(s, text), from = choose(s, (uint32_t)size % 256 + 1);
    size_t to = from + choose(s, (uint32_t)(size - from) % 256 + 1);
    if (t) {
        MUST(tokenizer_size(t) == v.n);
        for (int how = 0; how < 4; how++)
            encode(t, text, size, (struct allowed){how & 1, 0, 0}, how >> 1);
        if (to)
            encode(t, text, size, (struct allowed){1, from, to}, 0);
        if (choose(s, 16) == 15)
            encode_long(t, text, size);
    }
    use_template(file, t, text);
    tokenizer_destroy(t);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct source s = {data, size};
    struct gguf_part bytes;
    struct gguf *file = some_file(&s, &bytes);
    use_file(&s, file);
    gguf_close(file);
    free(bytes.data);
    return 0;
}
