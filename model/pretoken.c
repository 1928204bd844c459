/* Text into words. The patterns are written out by hand; all that they look at is the class of the characters ahead. */
#include "pretoken.h"

/* The end of the text belongs to no class. */
enum { NOTHING = UNICODE_SPACE + 1 };

size_t utf8_read(const char *text, size_t size, uint32_t *character)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    const uint8_t *p = (const uint8_t *)text;
    size_t n = p[0] < 0x80 ? 1 : p[0] < 0xc2 ? 0 : p[0] < 0xe0 ? 2 : p[0] < 0xf0 ? 3 : p[0] < 0xf5 ? 4 : 0;
    uint32_t c = n > 1 ? p[0] & 0x7fu >> n : p[0];
    for (size_t i = 1; i < n; i++) {
        if (i == size || (p[i] & 0xc0) != 0x80) {
            n = 0;
            break;
        }
        c = c << 6 | (p[i] & 0x3f);
    }
    if (n == 0 || c < least[n] || c > 0x10ffff || (c >= 0xd800 && c < 0xe000)) {
        *character = 0xfffd;
        return 1;
    }
    *character = c;
    return n;
}

enum unicode_class unicode_class(uint32_t character)
{
    size_t low = 0, high = unicode_range_count;
    while (high - low > 1) {
        size_t middle = (low + high) / 2;
        if (unicode_ranges[middle] >> 2 <= character)
            low = middle;
        else
            high = middle;
    }
    return (enum unicode_class)(unicode_ranges[low] & 3);
}

/* Where the word ends so far, and the character after it. */
struct reader {
    const char *text;
    size_t size, at;
    int lone_numbers; /* the text ends for a pattern where a number begins */
    uint32_t c;
    size_t bytes; /* of it; 0 at the end */
    int class;
};

static void look(struct reader *r)
{
    if (r->at == r->size) {
        r->c = 0, r->bytes = 0, r->class = NOTHING;
        return;
    }
    r->bytes = utf8_read(r->text + r->at, r->size - r->at, &r->c);
    r->class = (int)unicode_class(r->c);
    if (r->lone_numbers && r->class == UNICODE_NUMBER)
        r->bytes = 0, r->class = NOTHING;
}

static void step(struct reader *r)
{
    r->at += r->bytes;
    look(r);
}

static void skip_class(struct reader *r, int class, size_t most)
{
    for (; r->class == class && most; most--)
        step(r);
}

/* 's 't 'm 'd 're 've 'll: its length, or 0. These are ASCII, so that comparing bytes is enough. */
static size_t contraction(const char *text, size_t size, int any_case)
{
    char fold = any_case ? 0x20 : 0;
    if (size < 2 || text[0] != '\'')
        return 0;
    char a = text[1] >= 'A' && text[1] <= 'Z' ? (char)(text[1] | fold) : text[1];
    if (a == 's' || a == 't' || a == 'm' || a == 'd')
        return 2;
    if (size < 3)
        return 0;
    char b = text[2] >= 'A' && text[2] <= 'Z' ? (char)(text[2] | fold) : text[2];
    return (a == 'r' && b == 'e') || (a == 'v' && b == 'e') || (a == 'l' && b == 'l') ? 3 : 0;
}

/* \s+(?!\S)|\s+: a run of spaces without its last one, which belongs to the word after it. Before the end of the text, and where
 * the run is one space, all of it. */
static size_t spaces(struct reader *r)
{
    size_t last = 0;
    while (r->class == UNICODE_SPACE) {
        last = r->at;
        step(r);
    }
    return r->class == NOTHING || last == 0 ? r->at : last;
}

static size_t next_gpt2(struct reader *r)
{
    size_t n = contraction(r->text, r->size, 0);
    if (n)
        return n;
    struct reader ahead = *r;
    if (r->c == ' ')
        step(&ahead);
    if (ahead.class == UNICODE_SPACE || ahead.class == NOTHING)
        return spaces(r);
    skip_class(&ahead, ahead.class, SIZE_MAX);
    return ahead.at;
}

static void skip_newlines(struct reader *r)
{
    while (r->bytes && (r->c == '\r' || r->c == '\n'))
        step(r);
}

/* \s*[\r\n]+: up to and with the last end of a line in a run of spaces; 0 if the run has none. */
static size_t lines(struct reader r)
{
    size_t end = 0;
    while (r.class == UNICODE_SPACE) {
        int newline = r.c == '\r' || r.c == '\n';
        step(&r);
        end = newline ? r.at : end;
    }
    return end;
}

static size_t next_llama3(struct reader *r, size_t most_digits)
{
    size_t n = contraction(r->text, r->size, 1);
    if (n)
        return n;
    if (r->class == UNICODE_NUMBER) {
        skip_class(r, UNICODE_NUMBER, most_digits);
        return r->at;
    }
    struct reader ahead = *r;
    step(&ahead);
    if (r->class == UNICODE_LETTER || (ahead.class == UNICODE_LETTER && r->c != '\r' && r->c != '\n')) {
        skip_class(&ahead, UNICODE_LETTER, SIZE_MAX);
        return ahead.at;
    }
    if (r->class == UNICODE_OTHER || (r->c == ' ' && ahead.class == UNICODE_OTHER)) {
        skip_class(&ahead, UNICODE_OTHER, SIZE_MAX);
        skip_newlines(&ahead);
        return ahead.at;
    }
    n = lines(*r);
    return n ? n : spaces(r);
}

size_t pretoken_next(enum pretoken_rule rule, const char *text, size_t size)
{
    struct reader r = {text, size, 0, 0, 0, 0, NOTHING};
    look(&r);
    if (rule == PRETOKEN_LLAMA3 || rule == PRETOKEN_QWEN2)
        return next_llama3(&r, rule == PRETOKEN_LLAMA3 ? 3 : 1);
    if (rule == PRETOKEN_SMOLLM && r.class == UNICODE_NUMBER)
        return r.bytes;
    r.lone_numbers = rule == PRETOKEN_SMOLLM;
    return next_gpt2(&r);
}
