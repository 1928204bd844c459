/* Tokenizers: the words of each rule, merges and scores on small vocabularies, special tokens, wrong files; and, if the file of
 * SmolLM2 is there, the tokens that llama.cpp makes of a page of awkward text. */
#define _DEFAULT_SOURCE
#include "../../model/tokenizer.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../tool/parts/inputs.h"
#include "../../model/pretoken.h"
#include "../../model/vocab.h"
#include "../file/file_tools.h"
#include "gguf_tools.h"
#include "../test.h"

/* ---- words --------------------------------------------------------------------------------------------------------- */

/* The words of a text with | between them. */
static const char *words(enum pretoken_rule rule, const char *text, size_t size)
{
    static char out[1024];
    size_t used = 0;
    for (size_t at = 0, n; at < size; at += n) {
        n = pretoken_next(rule, text + at, size - at);
        used += (size_t)snprintf(out + used, sizeof out - used, "%s%.*s", at ? "|" : "", (int)n, text + at);
    }
    return out;
}

static void words_of_each_rule(void)
{
    static const struct {
        enum pretoken_rule rule;
        const char *text, *words;
    } cases[] = {
        {PRETOKEN_GPT2, "Hello world, it's 2024!", "Hello| world|,| it|'s| 2024|!"},
        {PRETOKEN_SMOLLM, "Hello world, it's 2024!", "Hello| world|,| it|'s| |2|0|2|4|!"},
        {PRETOKEN_LLAMA3, "Hello world, it's 2024!", "Hello| world|,| it|'s| |202|4|!"},
        {PRETOKEN_QWEN2, "Hello world, it's 2024!", "Hello| world|,| it|'s| |2|0|2|4|!"},
        {PRETOKEN_GPT2, "I'LL we'll 're''m", "I|'|LL| we|'ll| '|re|''|m"},
        {PRETOKEN_LLAMA3, "I'LL we'Ll 'RE''m", "I|'LL| we|'Ll| '|RE|''|m"},
        {PRETOKEN_GPT2, "IT'STUFF don'TS", "IT|'|STUFF| don|'|TS"},
        {PRETOKEN_LLAMA3, "IT'STUFF don'TS", "IT|'S|TUFF| don|'T|S"},
        {PRETOKEN_GPT2, "a  b   ", "a| | b|   "},
        {PRETOKEN_LLAMA3, "a  b   ", "a| | b|   "},
        {PRETOKEN_SMOLLM, "a  1  ", "a|  |1|  "},
        {PRETOKEN_GPT2, "a  1", "a| | 1"},
        {PRETOKEN_LLAMA3, "a  1", "a| | |1"},
        {PRETOKEN_GPT2, "a \n\n  b", "a| \n\n | b"},
        {PRETOKEN_LLAMA3, "a \n\n  b", "a| \n\n| | b"},
        {PRETOKEN_LLAMA3, "end.\r\n\r\nnext", "end|.\r\n\r\n|next"},
        {PRETOKEN_LLAMA3, "\n\tx", "\n|\tx"},
        {PRETOKEN_LLAMA3, "(foo) .bar", "(foo|)| .|bar"},
        {PRETOKEN_GPT2, "(foo) .bar", "(|foo|)| .|bar"},
        {PRETOKEN_GPT2, "x\xc2\xa0y \xe3\x80\x80z", "x|\xc2\xa0|y| |\xe3\x80\x80|z"},
        {PRETOKEN_LLAMA3, "x\xc2\xa0y", "x|\xc2\xa0y"},
        {PRETOKEN_GPT2, "e\xcc\x81t", "e|\xcc\x81|t"}, /* a mark is no letter */
        {PRETOKEN_GPT2, "\xe4\xbd\xa0\xe5\xa5\xbd 12\xc2\xbd\xd9\xa3", "\xe4\xbd\xa0\xe5\xa5\xbd| 12\xc2\xbd\xd9\xa3"},
        {PRETOKEN_GPT2, "\xff\xfe x\xc3", "\xff\xfe| x|\xc3"},
        {PRETOKEN_QWEN2, "'", "'"},
        {PRETOKEN_GPT2, "''", "''"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *got = words(cases[i].rule, cases[i].text, strlen(cases[i].text));
        EXPECT(!strcmp(got, cases[i].words), "rule %d: %s, not %s", cases[i].rule, got, cases[i].words);
    }
}

static void characters(void)
{
    static const struct {
        const char *text;
        uint32_t character;
        size_t bytes;
    } cases[] = {{"a", 'a', 1},
                 {"\xc3\xa9", 0xe9, 2},
                 {"\xe2\x82\xac", 0x20ac, 3},
                 {"\xf4\x8f\xbf\xbf", 0x10ffff, 4},
                 {"\x80", 0xfffd, 1},
                 {"\xc3", 0xfffd, 1},
                 {"\xc3(", 0xfffd, 1},
                 {"\xc1\x81", 0xfffd, 1},         /* too long for 'A' */
                 {"\xe0\x80\x80", 0xfffd, 1},     /* too long */
                 {"\xed\xa0\x80", 0xfffd, 1},     /* half a surrogate pair */
                 {"\xf4\x90\x80\x80", 0xfffd, 1}, /* behind the last */
                 {"\xf0\x9f\x98", 0xfffd, 1}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        uint32_t c = 0;
        size_t n = utf8_read(cases[i].text, strlen(cases[i].text), &c);
        EXPECT(c == cases[i].character && n == cases[i].bytes, "case %zu: U+%04X in %zu bytes", i, c, n);
    }
    static const struct {
        uint32_t first, last;
        enum unicode_class class;
    } ranges[] = {{0, 8, UNICODE_OTHER},           {9, 13, UNICODE_SPACE},          {0x1c, 0x1f, UNICODE_OTHER},
                  {' ', ' ', UNICODE_SPACE},       {'0', '9', UNICODE_NUMBER},      {'a', 'z', UNICODE_LETTER},
                  {0x85, 0x85, UNICODE_SPACE},     {0xa0, 0xa0, UNICODE_SPACE},     {0xbc, 0xbe, UNICODE_NUMBER},
                  {0x300, 0x36f, UNICODE_OTHER},   {0x2000, 0x200a, UNICODE_SPACE}, {0x200b, 0x200d, UNICODE_OTHER},
                  {0x2160, 0x2182, UNICODE_NUMBER}, {0x4e00, 0x9fff, UNICODE_LETTER}, {0x1f600, 0x1f64f, UNICODE_OTHER},
                  {0x31350, 0x323af, UNICODE_LETTER}, {0x323b0, 0xe00ff, UNICODE_OTHER}, {0x10ffff, 0x10ffff, UNICODE_OTHER}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++)
        for (uint32_t c = ranges[i].first; c <= ranges[i].last; c++)
            EXPECT(unicode_class(c) == ranges[i].class, "U+%04X is of class %d", c, unicode_class(c));
}

/* ---- vocabularies -------------------------------------------------------------------------------------------------- */

enum { MOST_TOKENS = 400 };

struct made {
    struct gguf_part bytes;
    struct gguf *file;
    struct tokenizer *tokenizer;
    char error[GGUF_ERROR_BYTES];
};

static struct made open_made(struct gguf_writer *w)
{
    struct made m = {gguf_finish(w), NULL, NULL, ""};
    if (!gguf_read(m.bytes.data, m.bytes.size, &m.file, m.error))
        tokenizer_create(m.file, &m.tokenizer, m.error);
    return m;
}

static void close_made(struct made *m)
{
    tokenizer_destroy(m->tokenizer);
    gguf_close(m->file);
    free(m->bytes.data);
}

/* Tokens 0 to 255 are the bytes. Then follow the tokens of `more`, with the given types; types NULL: all normal. */
static void put_bytes_and(struct gguf_writer *w, const char *pre, const char *const *more, const int32_t *types, size_t n)
{
    static char byte[256][3];
    const char *texts[MOST_TOKENS];
    int32_t type[MOST_TOKENS];
    for (int i = 0; i < 256; i++) {
        byte[i][vocab_write_byte((uint8_t)i, byte[i])] = 0;
        texts[i] = byte[i], type[i] = TOKEN_NORMAL;
    }
    for (size_t i = 0; i < n; i++)
        texts[256 + i] = more[i], type[256 + i] = types ? types[i] : TOKEN_NORMAL;
    gguf_put_string(w, "tokenizer.ggml.model", "gpt2");
    gguf_put_string(w, "tokenizer.ggml.pre", pre);
    gguf_put_strings(w, "tokenizer.ggml.tokens", texts, 256 + n);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", type, 256 + n);
}

/* Expects that a text becomes these n tokens. */
static void expect_tokens(const struct made *m, const char *text, int special, int add_begin, size_t n, ...)
{
    uint32_t *got = NULL;
    va_list wanted;
    if (!m->tokenizer) {
        EXPECT(0, "no tokenizer: %s", m->error);
        return;
    }
    size_t count = tokenizer_encode(m->tokenizer, text, strlen(text), special, add_begin, &got);
    int good = got && count == n;
    va_start(wanted, n);
    for (size_t i = 0; i < n; i++) {
        unsigned token = va_arg(wanted, unsigned);
        good = good && got[i] == token;
    }
    va_end(wanted);
    EXPECT(good, "\"%s\" is", text);
    for (size_t i = 0; !good && i < count; i++)
        printf("    token %u\n", got[i]);
    free(got);
}

static void expect_round_trip(const struct tokenizer *t, const char *text, size_t size)
{
    uint32_t *tokens = NULL;
    size_t n = tokenizer_encode(t, text, size, 0, 0, &tokens), at = 0;
    int good = tokens != NULL;
    for (size_t i = 0; i < n && good; i++) {
        struct gguf_text bytes = tokenizer_bytes(t, tokens[i]);
        good = bytes.size && bytes.size <= size - at && !memcmp(bytes.data, text + at, bytes.size);
        at += bytes.size;
    }
    EXPECT(good && at == size, "%zu bytes come back as others, from byte %zu on", size, at);
    free(tokens);
}

static const char *const some_tokens[] = {"he", "ll", "hell", "ello", "\xc4\xa0w", "lo", "hello", "\xc4\xa0wo"};
static const char *const some_merges[] = {"h e", "l l", "he ll", "\xc4\xa0 w", "l o", "hell o", "\xc4\xa0w o", "e ll", "no such",
                                          "l l"}; /* the first of the two "l l" counts */
enum { MERGES = sizeof some_merges / sizeof *some_merges };

static void merges_in_their_order(void)
{
    struct gguf_writer w = {0};
    put_bytes_and(&w, "gpt-2", some_tokens, NULL, 8);
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, MERGES);
    struct made m = open_made(&w);
    expect_tokens(&m, "hello", 0, 0, 1, 262u);            /* he, ll, hell, hello */
    expect_tokens(&m, "helo", 0, 0, 2, 256u, 261u);       /* he, lo */
    expect_tokens(&m, "lll", 0, 0, 2, 257u, (unsigned)'l'); /* the leftmost of equals */
    expect_tokens(&m, "llo", 0, 0, 2, 257u, (unsigned)'o');
    expect_tokens(&m, "hello wo", 0, 0, 2, 262u, 263u);
    expect_tokens(&m, "ello", 0, 0, 3, (unsigned)'e', 257u, (unsigned)'o'); /* "ello" is a token, but no merge gives it */
    expect_tokens(&m, "", 0, 1, 0);
    if (m.tokenizer) {
        EXPECT(tokenizer_size(m.tokenizer) == 264, "%u tokens", tokenizer_size(m.tokenizer));
        struct gguf_text word = tokenizer_bytes(m.tokenizer, 263);
        EXPECT(word.size == 3 && !memcmp(word.data, " wo", 3), "%.*s", (int)word.size, word.data);
        EXPECT(tokenizer_bytes(m.tokenizer, 264).size == 0 && !tokenizer_ends(m.tokenizer, 264), "a token that is not there");
    }
    close_made(&m);

    put_bytes_and(&w, "llama-bpe", some_tokens, NULL, 8); /* this rule takes a word that is a token as that token */
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, MERGES);
    gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 7);
    m = open_made(&w);
    expect_tokens(&m, "ello", 0, 0, 1, 259u);
    expect_tokens(&m, "elloo", 0, 1, 5, 7u, (unsigned)'e', 257u, (unsigned)'o', (unsigned)'o');
    close_made(&m);
}

/* Random bytes, long words of random bytes, and words of all lengths. */
static void every_byte_comes_back(void)
{
    uint64_t state = 5;
    char text[600];
    for (int rule = 0; rule < 4; rule++) {
        static const char *const pre[] = {"gpt-2", "smollm", "llama-bpe", "qwen2"};
        struct gguf_writer w = {0};
        put_bytes_and(&w, pre[rule], some_tokens, NULL, 8);
        gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, MERGES);
        gguf_put_bool(&w, "tokenizer.ggml.add_bos_token", 0);
        struct made m = open_made(&w);
        EXPECT(m.tokenizer != NULL, "%s", m.error);
        for (int round = 0; round < 300 && m.tokenizer; round++) {
            size_t n = (size_t)pick(&state, 600);
            for (size_t i = 0; i < n; i++)
                text[i] = round % 3 ? (char)random_bits(&state) : "hello wor'sl\n1"[pick(&state, 14)];
            expect_round_trip(m.tokenizer, text, n);
        }
        close_made(&m);
    }
}

/* ---- SentencePiece ------------------------------------------------------------------------------------------------- */

#define SPACE "\xe2\x96\x81"

static const char *const pieces[] = {"<unk>", "<s>", "</s>", "<0x0A>", "<0xC3>", "<0xA9>", SPACE, "a", "b", "c",
                                     SPACE "a", "ab", "bc", SPACE "ab", "abc", SPACE SPACE, "<tool>"};
static const int32_t piece_types[] = {2, 3, 3, 6, 6, 6, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 4};
static const float piece_scores[] = {0, 0, 0, 0, 0, 0, -9, -9, -9, -9, -3, 0.5, 2, -4, -5, -6, 0};
enum { PIECES = sizeof pieces / sizeof *pieces };

static void put_pieces(struct gguf_writer *w)
{
    gguf_put_string(w, "tokenizer.ggml.model", "llama");
    gguf_put_strings(w, "tokenizer.ggml.tokens", pieces, PIECES);
    gguf_put_i32s(w, "tokenizer.ggml.token_type", piece_types, PIECES);
    gguf_put_f32s(w, "tokenizer.ggml.scores", piece_scores, PIECES);
}

static void scores_in_their_order(void)
{
    struct gguf_writer w = {0};
    put_pieces(&w);
    struct made m = open_made(&w);
    expect_tokens(&m, "abc", 0, 1, 3, 1u, 10u, 12u);        /* bc before ab; then the space and a */
    expect_tokens(&m, "ab", 0, 0, 1, 13u);
    expect_tokens(&m, "ab  a", 0, 0, 3, 13u, 6u, 10u);
    expect_tokens(&m, "", 0, 1, 1, 1u);
    expect_tokens(&m, "\n\xc3\xa9z", 0, 0, 5, 6u, 3u, 4u, 5u, 0u); /* bytes, and one that has no token */
    expect_tokens(&m, "<s>a</s>ab", 1, 0, 4, 1u, 10u, 2u, 13u);    /* a space after each special token */
    expect_tokens(&m, "a<tool>a", 0, 0, 3, 10u, 16u, 10u);         /* a user token is found without special = 1 */
    expect_tokens(&m, "b<s>", 0, 0, 5, 6u, 8u, 0u, 0u, 0u);        /* a control token is not found without special = 1 */
    if (m.tokenizer) {
        struct gguf_text word = tokenizer_bytes(m.tokenizer, 13), byte = tokenizer_bytes(m.tokenizer, 4);
        EXPECT(word.size == 3 && !memcmp(word.data, " ab", 3), "%.*s", (int)word.size, word.data);
        EXPECT(byte.size == 1 && byte.data[0] == (char)0xc3, "%zu bytes", byte.size);
        EXPECT(tokenizer_bytes(m.tokenizer, 0).size == 0 && tokenizer_bytes(m.tokenizer, 1).size == 0, "bytes of control tokens");
        EXPECT(tokenizer_bytes(m.tokenizer, 16).size == 6, "no bytes of a token with a name");
        EXPECT(tokenizer_ends(m.tokenizer, 2) && !tokenizer_ends(m.tokenizer, 1), "ends");
    }
    close_made(&m);

    put_pieces(&w);
    gguf_put_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    gguf_put_bool(&w, "tokenizer.ggml.add_bos_token", 0);
    gguf_put_bool(&w, "tokenizer.ggml.add_eos_token", 1);
    m = open_made(&w);
    expect_tokens(&m, "ab", 0, 1, 2, 11u, 2u);
    close_made(&m);
}

/* ---- special tokens and rules of the file -------------------------------------------------------------------------- */

static void special_tokens(void)
{
    static const char *const names[] = {"<|im_start|>", "<|im_end|>", "<|im", "<tool>", "<|end|>", "stop", "eom"};
    static const int32_t types[] = {3, 3, 3, 4, 1, 1, 1};
    struct gguf_writer w = {0};
    put_bytes_and(&w, "gpt-2", names, types, 7);
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, 1);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 257);
    gguf_put_u32(&w, "tokenizer.ggml.eot_token_id", 261);
    struct made m = open_made(&w);
    expect_tokens(&m, "a<|im_end|>b", 1, 1, 3, (unsigned)'a', 257u, (unsigned)'b');
    expect_tokens(&m, "<|im_start|><|im|>", 1, 0, 4, 256u, 258u, (unsigned)'|', (unsigned)'>'); /* the longest name that fits */
    expect_tokens(&m, "<|im", 0, 0, 4, (unsigned)'<', (unsigned)'|', (unsigned)'i', (unsigned)'m');
    expect_tokens(&m, "x<tool>", 0, 0, 2, (unsigned)'x', 259u);
    expect_tokens(&m, "<|end|>", 1, 0, 1, 260u); /* a token that ends a turn is special, whatever its type */
    if (m.tokenizer) { /* what somebody says may hold names; only those of the template are tokens */
        static const char text[] = "<|im_start|>x<|im_end|><|im_end|>";
        static const uint32_t wanted[] = {256, 'x', '<', '|', 'i', 'm', '_', 'e', 'n', 'd', '|', '>', 257};
        uint32_t *got = NULL;
        size_t n = tokenizer_encode_around(m.tokenizer, text, strlen(text), 12, 23, 0, &got);
        EXPECT(n == 13 && !memcmp(got, wanted, sizeof wanted), "%zu tokens, the third is %u", n, n > 2 ? got[2] : 0);
        free(got);
    }
    if (m.tokenizer) {
        static const uint8_t ends[] = {0, 1, 0, 0, 1, 1, 0};
        for (uint32_t i = 0; i < 7; i++)
            EXPECT(tokenizer_ends(m.tokenizer, 256 + i) == ends[i], "%s ends: %d", names[i], tokenizer_ends(m.tokenizer, 256 + i));
        EXPECT(tokenizer_bytes(m.tokenizer, 257).size == 0 && tokenizer_bytes(m.tokenizer, 261).size == 0, "bytes of an end");
    }
    close_made(&m);

    put_bytes_and(&w, "qwen2", names, types, 7);
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, 1);
    gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 256);
    gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 257);
    gguf_put_bool(&w, "tokenizer.ggml.add_bos_token", 1);
    gguf_put_bool(&w, "tokenizer.ggml.add_eos_token", 1);
    m = open_made(&w);
    expect_tokens(&m, "a", 0, 1, 3, 256u, (unsigned)'a', 257u);
    expect_tokens(&m, "a", 0, 0, 1, (unsigned)'a');
    close_made(&m);
}

/* Vocabularies whose merges spell control tokens, or the name of a byte: in a text they are letters. */
static void merges_to_control_tokens(void)
{
    static const char *const names[] = {"go", "gone", "ne", "stop"}, *const merges[] = {"g o", "n e", "go ne"};
    static const int32_t types[] = {1, 3, 1, 1};
    static const char *const sentence[] = {"<unk>", "<",    "0",  "x",      "4", "1",  ">",  "<0",
                                           "x4",    "<0x4", "1>", "<0x41>", "s", "<s", "<s>"};
    static const int32_t sentence_types[] = {2, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 6, 1, 1, 3};
    static const float scores[15];
    struct gguf_writer w = {0};
    for (int rule = 0; rule < 2; rule++) {
        put_bytes_and(&w, rule ? "llama-bpe" : "gpt-2", names, types, 4);
        gguf_put_strings(&w, "tokenizer.ggml.merges", merges, 3);
        gguf_put_u32(&w, "tokenizer.ggml.eos_token_id", 259);
        gguf_put_bool(&w, "tokenizer.ggml.add_bos_token", 0);
        struct made m = open_made(&w);
        expect_tokens(&m, "gone", 0, 0, 2, 256u, 258u);
        expect_tokens(&m, "gone", 1, 0, 1, 257u);
        expect_tokens(&m, "stop", 0, 0, 4, (unsigned)'s', (unsigned)'t', (unsigned)'o', (unsigned)'p'); /* a word, for llama-bpe */
        close_made(&m);
    }
    gguf_put_string(&w, "tokenizer.ggml.model", "llama");
    gguf_put_strings(&w, "tokenizer.ggml.tokens", sentence, 15);
    gguf_put_i32s(&w, "tokenizer.ggml.token_type", sentence_types, 15);
    gguf_put_f32s(&w, "tokenizer.ggml.scores", scores, 15);
    gguf_put_bool(&w, "tokenizer.ggml.add_space_prefix", 0);
    struct made m = open_made(&w);
    expect_tokens(&m, "<s>", 0, 0, 2, 13u, 6u);
    expect_tokens(&m, "<s>", 1, 0, 1, 14u);
    expect_tokens(&m, "<0x41>", 0, 0, 2, 9u, 10u);
    expect_tokens(&m, "A", 0, 0, 1, 11u);
    close_made(&m);
}

/* A vocabulary without some bytes: BPE leaves them out. */
static void bytes_without_a_token(void)
{
    static const char *const few[] = {"a", "b", "ab"};
    static const char *const merges[] = {"a b"};
    struct gguf_writer w = {0};
    gguf_put_string(&w, "tokenizer.ggml.model", "gpt2");
    gguf_put_strings(&w, "tokenizer.ggml.tokens", few, 3);
    gguf_put_strings(&w, "tokenizer.ggml.merges", merges, 1);
    struct made m = open_made(&w);
    expect_tokens(&m, "abc ba", 0, 0, 3, 2u, 1u, 0u);
    close_made(&m);
}

/* ---- files that are wrong ------------------------------------------------------------------------------------------ */

static void expect_refused(struct gguf_writer *w, const char *why)
{
    struct made m = open_made(w);
    EXPECT(!m.tokenizer, "made a tokenizer where it should say: %s", why);
    EXPECT(strstr(m.error, why), "says: %s; not: %s", m.error, why);
    close_made(&m);
}

static void wrong_files(void)
{
    struct gguf_writer w = {0};
    expect_refused(&w, "no tokenizer");
    gguf_put_string(&w, "tokenizer.ggml.model", "bert\x1b");
    expect_refused(&w, "tokenizer bert? is not supported; gpt2 and llama are");
    gguf_put_string(&w, "tokenizer.ggml.model", "gpt2");
    expect_refused(&w, "tokenizer.ggml.tokens must be");
    put_bytes_and(&w, "gpt-2", NULL, NULL, 0);
    expect_refused(&w, "tokenizer.ggml.merges must be");
    put_bytes_and(&w, "tekken", NULL, NULL, 0);
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, 1);
    expect_refused(&w, "pre-tokenizer tekken is not supported; smollm, gpt-2, llama-bpe and qwen2 are");
    static const char *const bad_merges[] = {"h e", "hell"};
    put_bytes_and(&w, "gpt-2", NULL, NULL, 0);
    gguf_put_strings(&w, "tokenizer.ggml.merges", bad_merges, 2);
    expect_refused(&w, "number 1 is not two tokens");
    put_bytes_and(&w, "gpt-2", NULL, NULL, 0);
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, 1);
    gguf_put_u32(&w, "tokenizer.ggml.bos_token_id", 256);
    expect_refused(&w, "bos_token_id must be the number of one of 256 tokens");
    put_bytes_and(&w, "llama-bpe", NULL, NULL, 0);
    gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, 1);
    expect_refused(&w, "but not which");
    gguf_put_string(&w, "tokenizer.ggml.model", "llama");
    gguf_put_strings(&w, "tokenizer.ggml.tokens", pieces, PIECES);
    expect_refused(&w, "scores is missing");
    gguf_put_string(&w, "tokenizer.ggml.model", "llama");
    gguf_put_strings(&w, "tokenizer.ggml.tokens", pieces, PIECES);
    gguf_put_f32s(&w, "tokenizer.ggml.scores", piece_scores, PIECES - 1);
    expect_refused(&w, "scores must be an array with a number for each of 17 tokens");
}

/* ---- speed --------------------------------------------------------------------------------------------------------- */

/* A megabyte, as one word and as many: code whose time grows with the square of the length would take hours. */
static void a_megabyte(void)
{
    size_t size = 1 << 20;
    char *text = malloc(size);
    if (getenv("AURA_QUICK")) {
        test_skip = "a sanitizer or an emulator is running";
        free(text);
        return;
    }
    for (int sentence = 0; sentence < 2; sentence++)
        for (int spaced = 0; spaced < 2; spaced++) {
            struct gguf_writer w = {0};
            if (sentence) {
                put_pieces(&w);
            } else {
                put_bytes_and(&w, "gpt-2", some_tokens, NULL, 8);
                gguf_put_strings(&w, "tokenizer.ggml.merges", some_merges, MERGES);
            }
            struct made m = open_made(&w);
            uint32_t *tokens = NULL;
            for (size_t i = 0; i < size; i++)
                text[i] = sentence ? "abcabbcbabc "[i % (spaced ? 12 : 11)] : "hellolohello "[i % (spaced ? 13 : 12)];
            clock_t begin = clock(); /* time of the processor: other programs do not count */
            if (m.tokenizer)
                tokenizer_encode(m.tokenizer, text, size, 1, 1, &tokens);
            double seconds = (double)(clock() - begin) / CLOCKS_PER_SEC;
            EXPECT(tokens && seconds < 2, "%.1f seconds, sentence %d, spaced %d", seconds, sentence, spaced);
            free(tokens);
            close_made(&m);
        }
    free(text);
}

/* ---- SmolLM2 ------------------------------------------------------------------------------------------------------- */

/* The numbers of the line after the one that begins with `name`. */
static size_t golden_tokens(const struct bytes file, const char *name, uint32_t *tokens, size_t most)
{
    char *at = strstr((char *)file.data, name), *end = NULL;
    size_t n = 0;
    if (!at || !(at = strchr(at + 1, '\n')))
        return 0;
    for (at++; n < most && *at && *at != '\n'; at = end, n++) {
        tokens[n] = (uint32_t)strtoul(at, &end, 10);
        if (end == at)
            break;
    }
    return n;
}

static void awkward_text(void)
{
    enum { MOST = 4096 };
    static uint32_t wanted[MOST];
    struct made m = {{NULL, 0, 0}, NULL, NULL, ""};
    if (gguf_open(golden_path("../../models/SmolLM2-135M-Instruct.Q4_1.gguf"), &m.file, m.error)) {
        test_skip = "no models/SmolLM2-135M-Instruct.Q4_1.gguf; `make model` fetches it";
        return;
    }
    EXPECT(!tokenizer_create(m.file, &m.tokenizer, m.error), "%s", m.error);
    struct bytes text = read_file(golden_path("awkward.txt")), golden = read_file(golden_path("smollm2-tokens.txt"));
    golden.data[golden.size] = 0;
    for (int special = 0; special < 2 && m.tokenizer; special++) {
        uint32_t *got = NULL;
        size_t n = golden_tokens(golden, special ? "\nspecial" : "\nplain", wanted, MOST);
        size_t count = tokenizer_encode(m.tokenizer, (char *)text.data, text.size, special, 1, &got), i = 0;
        while (i < n && i < count && got[i] == wanted[i])
            i++;
        EXPECT(n > 1000 && count == n && i == n, "special %d: %zu tokens, not %zu, and other ones from %zu on", special,
               count, n, i);
        free(got);
    }
    if (m.tokenizer) {
        expect_round_trip(m.tokenizer, (char *)text.data, text.size);
        expect_round_trip(m.tokenizer, "a\x80\xe9 \xf0\x9f\x98 b\xed\xa0\x80", 13); /* no UTF-8 */
    }
    free(text.data), free(golden.data);
    close_made(&m);
}

int main(void)
{
    RUN(words_of_each_rule);
    RUN(characters);
    RUN(merges_in_their_order);
    RUN(every_byte_comes_back);
    RUN(scores_in_their_order);
    RUN(special_tokens);
    RUN(merges_to_control_tokens);
    RUN(bytes_without_a_token);
    RUN(wrong_files);
    RUN(a_megabyte);
    RUN(awkward_text);
    return test_result();
}
