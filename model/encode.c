/* Text into tokens. The names of special tokens cut a text into pieces. BPE cuts a piece into words; for SentencePiece a piece is
 * one word. In a word neighbours merge, the best pair first, until no pair can merge. */
#include <stdlib.h>
#include <string.h>

#include "tokenizer_parts.h"

/* ---- merging ------------------------------------------------------------------------------------------------------- */

#define NO_SYMBOL UINT32_MAX

struct symbol {
    uint32_t start, size; /* of its text in the word; size 0: merged into the one before it */
    uint32_t before, after;
    uint32_t token;
};

/* The symbol `left` and the one after it may merge. The entry is out of date when the two together are not `size` bytes long. */
struct candidate {
    uint32_t order; /* the lowest first, of equal ones the leftmost */
    uint32_t left, size, token;
};

struct work {
    const struct tokenizer *t;
    int failed;
    uint32_t *token; /* what comes out */
    size_t tokens, token_room;
    const char *word;
    struct symbol *symbol;
    struct candidate *heap; /* two for each symbol: there are never more, as a merge takes one away and brings two */
    size_t symbol_room, heap_room, candidates;
    char *text; /* of SentencePiece, with its spaces; a word of BPE, as the vocabulary writes it */
    size_t text_room;
};

/* Grows memory to `wanted` things. Without memory it returns the old one and sets w->failed. */
static void *grow(struct work *w, void *memory, size_t *room, size_t wanted, size_t each)
{
    if (wanted <= *room)
        return memory;
    wanted = wanted < 2 * *room ? 2 * *room : wanted + 64;
    void *grown = realloc(memory, wanted * each);
    w->failed |= !grown;
    *room = grown ? wanted : *room;
    return grown ? grown : memory;
}

static void put(struct work *w, uint32_t token)
{
    w->token = grow(w, w->token, &w->token_room, w->tokens + 1, sizeof *w->token);
    if (token != NO_TOKEN && !w->failed)
        w->token[w->tokens++] = token;
}

static int before(struct candidate a, struct candidate b)
{
    return a.order < b.order || (a.order == b.order && a.left < b.left);
}

static void heap_push(struct work *w, struct candidate c)
{
    size_t i = w->candidates++;
    for (; i && before(c, w->heap[(i - 1) / 2]); i = (i - 1) / 2)
        w->heap[i] = w->heap[(i - 1) / 2];
    w->heap[i] = c;
}

static struct candidate heap_pop(struct work *w)
{
    struct candidate top = w->heap[0], last = w->heap[--w->candidates];
    size_t i = 0, child;
    while ((child = 2 * i + 1) < w->candidates) {
        child += child + 1 < w->candidates && before(w->heap[child + 1], w->heap[child]);
        if (!before(w->heap[child], last))
            break;
        w->heap[i] = w->heap[child];
        i = child;
    }
    w->heap[i] = last;
    return top;
}

/* Turns a score into a number that is lower for a higher score. */
static uint32_t order_of_score(float score)
{
    uint32_t bits;
    score += 0.f; /* -0 is 0 */
    memcpy(&bits, &score, 4);
    return bits >> 31 ? bits : 0x7fffffff - bits;
}

/* Words are made of tokens that stand for text. Others come from their names alone, where the caller lets these count: neither a
 * merge nor a word that is a name leads to a control token. */
static uint32_t text_token(const struct tokenizer *t, uint32_t token)
{
    return token != NO_TOKEN && t->vocab.type[token] == TOKEN_NORMAL && !t->ends[token] ? token : NO_TOKEN;
}

/* The token of a byte that no token of several spells. */
static uint32_t byte_token(const struct tokenizer *t, uint8_t byte)
{
    uint32_t token = t->vocab.byte_token[byte];
    if (t->vocab.byte_level)
        return text_token(t, token);
    return token != NO_TOKEN && t->vocab.type[token] == TOKEN_BYTE && !t->ends[token] ? token : NO_TOKEN;
}

/* BPE lists the pairs that merge. In SentencePiece two symbols merge if their text is a token; its score gives the order. */
static void consider(struct work *w, uint32_t left)
{
    if (left == NO_SYMBOL || w->symbol[left].after == NO_SYMBOL)
        return;
    const struct vocab *v = &w->t->vocab;
    const struct symbol *a = &w->symbol[left], *b = &w->symbol[a->after];
    struct candidate c = {0, left, a->size + b->size, NO_TOKEN};
    if (v->byte_level) {
        const struct vocab_merge *merge = vocab_merge(v, a->token, b->token);
        if (!merge || text_token(w->t, merge->token) == NO_TOKEN)
            return;
        c.order = merge->rank, c.token = merge->token;
    } else {
        c.token = text_token(w->t, vocab_find(v, w->word + a->start, c.size));
        if (c.token == NO_TOKEN)
            return;
        c.order = order_of_score(v->score[c.token]);
    }
    heap_push(w, c);
}

static void merge_all(struct work *w, uint32_t symbols)
{
    w->candidates = 0;
    for (uint32_t i = 0; i + 1 < symbols; i++)
        consider(w, i);
    while (w->candidates) {
        struct candidate c = heap_pop(w);
        struct symbol *a = &w->symbol[c.left];
        if (!a->size || a->after == NO_SYMBOL || a->size + w->symbol[a->after].size != c.size)
            continue;
        struct symbol *b = &w->symbol[a->after];
        a->size = c.size, a->token = c.token, a->after = b->after;
        b->size = 0;
        if (a->after != NO_SYMBOL)
            w->symbol[a->after].before = c.left;
        consider(w, a->before);
        consider(w, c.left);
    }
}

/* A symbol that is no token becomes the tokens of its bytes. */
static void put_symbol(struct work *w, const struct symbol *s)
{
    const struct tokenizer *t = w->t;
    if (s->token != NO_TOKEN) {
        put(w, s->token);
        return;
    }
    for (uint32_t i = 0; i < s->size; i++) {
        uint32_t token = byte_token(t, (uint8_t)w->word[s->start + i]);
        put(w, token == NO_TOKEN ? t->unknown : token);
    }
}

/* A symbol is a byte for BPE, and a character for SentencePiece. */
static void put_word(struct work *w, const char *word, size_t size)
{
    const struct vocab *v = &w->t->vocab;
    size_t n;
    uint32_t symbols = 0, c;
    w->symbol = grow(w, w->symbol, &w->symbol_room, size, sizeof *w->symbol);
    w->heap = grow(w, w->heap, &w->heap_room, 2 * size, sizeof *w->heap);
    if (w->failed)
        return;
    w->word = word;
    for (size_t at = 0; at < size; at += n, symbols++) {
        n = v->byte_level ? 1 : utf8_read(word + at, size - at, &c);
        uint32_t token = v->byte_level ? byte_token(w->t, (uint8_t)word[at]) : text_token(w->t, vocab_find(v, word + at, n));
        w->symbol[symbols] = (struct symbol){(uint32_t)at, (uint32_t)n, symbols - 1, symbols + 1, token};
    }
    w->symbol[symbols - 1].after = NO_SYMBOL; /* before of the first is NO_SYMBOL too: 0 - 1 */
    merge_all(w, symbols);
    for (uint32_t i = 0; i != NO_SYMBOL; i = w->symbol[i].after)
        put_symbol(w, &w->symbol[i]);
}

/* ---- pieces of a text ---------------------------------------------------------------------------------------------- */

/* The token that is the whole word, or NO_TOKEN. */
static uint32_t whole_word(struct work *w, const char *word, size_t size)
{
    size_t used = 0;
    if (!w->t->whole_words || size > w->t->vocab.longest)
        return NO_TOKEN;
    w->text = grow(w, w->text, &w->text_room, 2 * size + 2, 1);
    if (w->failed)
        return NO_TOKEN;
    for (size_t i = 0; i < size; i++)
        used += vocab_write_byte((uint8_t)word[i], w->text + used);
    return text_token(w->t, vocab_find(&w->t->vocab, w->text, used));
}

static void put_words(struct work *w, const char *text, size_t size)
{
    for (size_t at = 0, n; at < size && !w->failed; at += n) {
        n = pretoken_next(w->t->rule, text + at, size - at);
        uint32_t token = whole_word(w, text + at, n);
        if (token != NO_TOKEN)
            put(w, token);
        else
            put_word(w, text + at, n);
    }
}

static void put_sentence(struct work *w, const char *text, size_t size, int space_first)
{
    static const char space[] = "\xe2\x96\x81";
    size_t used = 0;
    w->text = grow(w, w->text, &w->text_room, 3 * size + 3, 1);
    if (w->failed)
        return;
    for (size_t i = 0; i < size + (size_t)space_first; i++) {
        char c = space_first ? i ? text[i - 1] : ' ' : text[i];
        if (c == ' ')
            memcpy(w->text + used, space, 3);
        else
            w->text[used] = c;
        used += c == ' ' ? 3 : 1;
    }
    put_word(w, w->text, used);
}

/* A piece of a text, between two special tokens or an end of the text. */
static void put_text(struct work *w, const char *text, size_t size)
{
    if (w->t->vocab.byte_level)
        put_words(w, text, size);
    else
        put_sentence(w, text, size, w->t->space_first);
}

/* The special token whose name is at the beginning of a text, or NO_TOKEN. */
static uint32_t special_at(const struct tokenizer *t, const char *text, size_t size, int control, size_t *bytes)
{
    if (!t->begins[(uint8_t)text[0]])
        return NO_TOKEN;
    for (size_t i = 0; i < t->specials; i++) {
        const struct special *s = &t->special[i];
        if (s->name.size <= size && (control || !s->control) && !memcmp(s->name.data, text, s->name.size)) {
            *bytes = s->name.size;
            return s->token;
        }
    }
    return NO_TOKEN;
}

/* Where a name of a control token is that token: nowhere, or all over but in [from, to). */
struct control {
    int special;
    size_t from, to;
};

static uint32_t special_token(const struct tokenizer *t, const char *text, size_t size, size_t at, struct control control,
                              size_t *bytes)
{
    uint32_t token = special_at(t, text + at, size - at, control.special, bytes);
    if (token != NO_TOKEN && at < control.to && at + *bytes > control.from)
        token = special_at(t, text + at, size - at, 0, bytes);
    return token;
}

static void put_all(struct work *w, const char *text, size_t size, struct control control)
{
    size_t done = 0, bytes;
    for (size_t at = 0; at < size && !w->failed;) {
        uint32_t token = special_token(w->t, text, size, at, control, &bytes);
        if (token == NO_TOKEN) {
            at++;
            continue;
        }
        if (at > done)
            put_text(w, text + done, at - done);
        put(w, token);
        at += bytes;
        done = at;
    }
    if (size > done && !w->failed)
        put_text(w, text + done, size - done);
}

static size_t encode(const struct tokenizer *t, const char *text, size_t size, struct control control, int add_begin,
                     uint32_t **tokens)
{
    struct work w = {.t = t};
    *tokens = NULL;
    if (size >= UINT32_MAX / 4)
        return 0; /* places in a text are 32 bits */
    w.token = grow(&w, NULL, &w.token_room, 1, sizeof *w.token);
    if (add_begin && t->add_bos)
        put(&w, t->bos);
    put_all(&w, text, size, control);
    if (add_begin && t->add_eos)
        put(&w, t->eos);
    free(w.symbol), free(w.heap), free(w.text);
    if (w.failed) {
        free(w.token);
        return 0;
    }
    *tokens = w.token;
    return w.tokens;
}

size_t tokenizer_encode(const struct tokenizer *t, const char *text, size_t size, int special, int add_begin, uint32_t **tokens)
{
    return encode(t, text, size, (struct control){special, 0, 0}, add_begin, tokens);
}

size_t tokenizer_encode_around(const struct tokenizer *t, const char *text, size_t size, size_t from, size_t to, int add_begin,
                               uint32_t **tokens)
{
    return encode(t, text, size, (struct control){1, from, to}, add_begin, tokens);
}
