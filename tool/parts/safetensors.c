/* A reader and a writer of safetensors files. The JSON of a header is read by a recursive descent that knows the one shape
 * a header has; anything else in it is skipped, or refused with the place where it stopped. */
#define _POSIX_C_SOURCE 200809L
#include "safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../src/base/printable.h"
#include "../../src/base/regular.h"
#include "replacement.h"

enum { MAX_DEPTH = 32 }; /* of skipped values: metadata has two levels, and recursion must not use up the stack */

/* ---- JSON ---------------------------------------------------------------------------------------------------------- */

struct reader {
    const uint8_t *start, *at, *end;
    struct safetensors *s;
    int failed;
};

/* The first failure is the one that is reported. Returns 0, which all readers below return for "no". */
__attribute__((format(printf, 2, 3))) static int fail(struct reader *r, const char *format, ...)
{
    va_list arguments;
    int n;
    if (r->failed)
        return 0;
    r->failed = 1;
    n = snprintf(r->s->error, sizeof r->s->error, "header byte %zu: ", (size_t)(r->at - r->start));
    va_start(arguments, format);
    vsnprintf(r->s->error + n, sizeof r->s->error - (size_t)n, format, arguments);
    va_end(arguments);
    aura_make_printable(r->s->error);
    return 0;
}

/* The next byte that is no space; 0 at the end, which no JSON contains. */
static int peek(struct reader *r)
{
    while (r->at < r->end && (*r->at == ' ' || *r->at == '\t' || *r->at == '\n' || *r->at == '\r'))
        r->at++;
    return r->at < r->end ? *r->at : 0;
}

static int take(struct reader *r, int c)
{
    if (peek(r) != c)
        return 0;
    r->at++;
    return 1;
}

static int expect(struct reader *r, int c)
{
    return take(r, c) || fail(r, "expected '%c'", c);
}

/* The value of four hexadecimal digits, or -1. */
static long hex4(struct reader *r)
{
    long value = 0;
    for (int i = 0; i < 4; i++, r->at++) {
        int c = r->at < r->end ? *r->at : 0;
        static const char digits[] = "0123456789abcdefABCDEF";
        const char *found = c ? strchr(digits, c) : NULL;
        if (!found)
            return fail(r, "\\u without four hexadecimal digits"), -1;
        value = value * 16 + (found - digits < 16 ? found - digits : found - digits - 6);
    }
    return value;
}

/* The character that an escape stands for; the reader is behind the backslash. -1 on failure. */
static long escape(struct reader *r)
{
    static const char names[] = "\"\\/bfnrt", values[] = "\"\\/\b\f\n\r\t";
    int c = r->at < r->end ? *r->at++ : 0;
    const char *found = c ? strchr(names, c) : NULL;
    long high, low;
    if (found)
        return values[found - names];
    if (c != 'u')
        return fail(r, "an escape that JSON does not have"), -1;
    if ((high = hex4(r)) < 0)
        return -1;
    if (high == 0)
        return fail(r, "a zero inside a string"), -1;
    if (high < 0xd800 || high > 0xdfff)
        return high;
    if (high > 0xdbff || r->end - r->at < 2 || r->at[0] != '\\' || r->at[1] != 'u')
        return fail(r, "half a surrogate pair"), -1;
    r->at += 2;
    if ((low = hex4(r)) < 0)
        return -1;
    if (low < 0xdc00 || low > 0xdfff)
        return fail(r, "half a surrogate pair"), -1;
    return 0x10000 + (high - 0xd800) * 0x400 + (low - 0xdc00);
}

static size_t put_utf8(char *out, long c)
{
    int more = c < 0x80 ? 0 : c < 0x800 ? 1 : c < 0x10000 ? 2 : 3;
    static const unsigned char lead[] = {0, 0xc0, 0xe0, 0xf0};
    out[0] = (char)(lead[more] | c >> 6 * more);
    for (int i = 1; i <= more; i++)
        out[i] = (char)(0x80 | (c >> 6 * (more - i) & 0x3f));
    return 1 + (size_t)more;
}

/* Bytes of the UTF-8 sequence at p; 0 when it is none: cut off, overlong, a surrogate, beyond U+10FFFF. */
static size_t utf8_length(const uint8_t *p, const uint8_t *end)
{
    static const uint32_t least[] = {0, 0x80, 0x800, 0x10000};
    size_t more = *p < 0x80 ? 0 : *p >= 0xc0 && *p < 0xe0 ? 1 : *p >= 0xe0 && *p < 0xf0 ? 2 : *p >= 0xf0 && *p < 0xf8 ? 3 : 4;
    if (more == 4 || (size_t)(end - p) <= more)
        return 0;
    uint32_t c = more ? *p & 0x3fu >> more : *p;
    for (size_t i = 1; i <= more; i++) {
        if ((p[i] & 0xc0) != 0x80)
            return 0;
        c = c << 6 | (p[i] & 0x3f);
    }
    return c < least[more] || c > 0x10ffff || (c >= 0xd800 && c <= 0xdfff) ? 0 : 1 + more;
}

/* A string into memory of its own, to be freed by the caller; NULL on failure. */
static char *string(struct reader *r)
{
    size_t used = 0, length;
    if (!expect(r, '"'))
        return NULL;
    const uint8_t *quote = r->at;
    while (quote < r->end && *quote != '"')
        quote += *quote == '\\' && r->end - quote > 1 ? 2 : 1;
    if (quote == r->end)
        return fail(r, "a string without end"), NULL;
    char *text = malloc((size_t)(quote - r->at) + 1); /* an escape is longer than what it stands for */
    if (!text)
        return fail(r, "out of memory"), NULL;
    while (r->at < quote) {
        if (*r->at == '\\') {
            r->at++;
            long c = escape(r);
            if (c < 0)
                return free(text), NULL;
            used += put_utf8(text + used, c);
            continue;
        }
        if (*r->at < 0x20 || !(length = utf8_length(r->at, quote)))
            return fail(r, "a string that is not UTF-8 text"), free(text), NULL;
        memcpy(text + used, r->at, length);
        used += length, r->at += length;
    }
    r->at++;
    text[used] = 0;
    return text;
}

static int skip_string(struct reader *r)
{
    char *text = string(r);
    free(text);
    return text != NULL;
}

/* A whole number; JSON's fractions and exponents have no meaning in a size. */
static int size(struct reader *r, size_t *value)
{
    int c = peek(r), digits = 0;
    *value = 0;
    for (; c >= '0' && c <= '9'; digits++) {
        if (*value > (SIZE_MAX - (size_t)(c - '0')) / 10)
            return fail(r, "a number that does not fit");
        *value = *value * 10 + (size_t)(c - '0');
        c = ++r->at < r->end ? *r->at : 0;
    }
    return digits > 0 || fail(r, "expected a whole number");
}

/* Any value, without looking at it. */
static int skip_value(struct reader *r, int depth)
{
    int c = peek(r);
    if (depth == MAX_DEPTH)
        return fail(r, "nested too deep");
    if (c == '"')
        return skip_string(r);
    if (c == '{' || c == '[') {
        int close = c == '{' ? '}' : ']';
        r->at++;
        if (take(r, close))
            return 1;
        do {
            if (c == '{' && (!skip_string(r) || !expect(r, ':')))
                return 0;
            if (!skip_value(r, depth + 1))
                return 0;
        } while (take(r, ','));
        return expect(r, close);
    }
    const uint8_t *start = r->at; /* a number, true, false or null */
    while (r->at < r->end && *r->at && strchr("+-.0123456789Eaeflnrstu", *r->at))
        r->at++;
    return r->at > start || fail(r, "expected a value");
}

/* ---- the header ---------------------------------------------------------------------------------------------------- */

size_t tensor_dtype_bytes(const char *dtype)
{
    return !strcmp(dtype, "F32") ? 4 : !strcmp(dtype, "F16") || !strcmp(dtype, "BF16") ? 2 : 0;
}

static int read_shape(struct reader *r, struct tensor *t)
{
    t->rank = 0;
    if (!expect(r, '['))
        return 0;
    if (take(r, ']'))
        return 1;
    do {
        if (t->rank == TENSOR_MAX_RANK)
            return fail(r, "more than %d dimensions", TENSOR_MAX_RANK);
        if (!size(r, &t->shape[t->rank++]))
            return 0;
    } while (take(r, ','));
    return expect(r, ']');
}

/* The object of one tensor. offset receives data_offsets. */
static int read_fields(struct reader *r, struct tensor *t, size_t offset[2])
{
    enum { DTYPE = 1, SHAPE = 2, OFFSETS = 4 };
    int seen = 0, bit;
    if (!expect(r, '{'))
        return 0;
    do {
        char *key = string(r), *text = NULL;
        int good = 1;
        if (!key)
            return 0;
        bit = !strcmp(key, "dtype") ? DTYPE : !strcmp(key, "shape") ? SHAPE : !strcmp(key, "data_offsets") ? OFFSETS : 0;
        free(key);
        if (!expect(r, ':'))
            return 0;
        if (bit & seen)
            return fail(r, "a field given twice");
        seen |= bit;
        if (bit == DTYPE)
            good = (text = string(r)) && snprintf(t->dtype, sizeof t->dtype, "%s", text) >= 0;
        else if (bit == SHAPE)
            good = read_shape(r, t);
        else if (bit == OFFSETS)
            good = expect(r, '[') && size(r, &offset[0]) && expect(r, ',') && size(r, &offset[1]) && expect(r, ']');
        else
            good = skip_value(r, 1);
        free(text);
        if (!good)
            return 0;
    } while (take(r, ','));
    if (!expect(r, '}'))
        return 0;
    return seen == (DTYPE | SHAPE | OFFSETS) || fail(r, "a tensor needs dtype, shape and data_offsets");
}

/* Whether shape, dtype and offsets fit together and lie inside the data. */
static int check_tensor(struct reader *r, struct tensor *t, const size_t offset[2], size_t data_bytes)
{
    size_t width = tensor_dtype_bytes(t->dtype), limit = SIZE_MAX / (width ? width : 1);
    int empty = 0;
    t->elements = 1;
    for (size_t i = 0; i < t->rank; i++)
        empty |= t->shape[i] == 0;
    for (size_t i = 0; i < t->rank && !empty; i++) {
        if (t->elements > limit / t->shape[i])
            return fail(r, "%.80s: the product of its shape does not fit", t->name);
        t->elements *= t->shape[i];
    }
    t->elements = empty ? 0 : t->elements;
    if (offset[0] > offset[1] || offset[1] > data_bytes)
        return fail(r, "%.80s: data_offsets [%zu, %zu] in %zu bytes of data", t->name, offset[0], offset[1], data_bytes);
    t->bytes = offset[1] - offset[0];
    t->data = r->end + offset[0];
    if (width && t->bytes != t->elements * width)
        return fail(r, "%.80s: %zu elements of %s in %zu bytes", t->name, t->elements, t->dtype, t->bytes);
    return 1;
}

/* Reads the object behind a name: a tensor, or metadata, which is ignored. Takes over the name. */
static int read_entry(struct reader *r, char *name, size_t *capacity, size_t data_bytes)
{
    struct safetensors *s = r->s;
    struct tensor *grown;
    size_t offset[2] = {0, 0};
    if (!strcmp(name, "__metadata__"))
        return free(name), skip_value(r, 0);
    if (s->count == *capacity) {
        *capacity = 2 * *capacity + 16;
        if (!(grown = realloc(s->tensors, *capacity * sizeof *grown)))
            return free(name), fail(r, "out of memory");
        s->tensors = grown;
    }
    struct tensor *t = &s->tensors[s->count++];
    memset(t, 0, sizeof *t);
    t->name = name;
    return read_fields(r, t, offset) && check_tensor(r, t, offset, data_bytes);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct tensor *)a)->name, ((const struct tensor *)b)->name);
}

static int read_header(struct reader *r, size_t data_bytes)
{
    size_t capacity = 0;
    if (!expect(r, '{'))
        return 0;
    if (!take(r, '}')) {
        do {
            char *name = string(r);
            if (!name)
                return 0;
            if (!expect(r, ':'))
                return free(name), 0;
            if (!read_entry(r, name, &capacity, data_bytes))
                return 0;
        } while (take(r, ','));
        if (!expect(r, '}'))
            return 0;
    }
    if (peek(r) || r->at < r->end)
        return fail(r, "something after the header's object");
    if (r->s->count > 1)
        qsort(r->s->tensors, r->s->count, sizeof *r->s->tensors, by_name);
    for (size_t i = 1; i < r->s->count; i++)
        if (!strcmp(r->s->tensors[i].name, r->s->tensors[i - 1].name))
            return fail(r, "two tensors called %.80s", r->s->tensors[i].name);
    return 1;
}

int safetensors_parse(struct safetensors *s, const uint8_t *bytes, size_t n)
{
    uint64_t length = 0;
    memset(s, 0, sizeof *s);
    for (int i = 0; i < 8 && n >= 8; i++)
        length |= (uint64_t)bytes[i] << 8 * i;
    if (n < 8 || length > n - 8) {
        snprintf(s->error, sizeof s->error, "not a safetensors file: %zu bytes with a header of %" PRIu64, n, length);
        return -1;
    }
    struct reader r = {bytes + 8, bytes + 8, bytes + 8 + length, s, 0};
    return read_header(&r, n - 8 - (size_t)length) ? 0 : -1;
}

/* ---- files --------------------------------------------------------------------------------------------------------- */

int safetensors_read(struct safetensors *s, const char *path)
{
    FILE *file = aura_open_regular(path);
    struct stat about;
    uint8_t *bytes = NULL;
    const char *problem = NULL;
    size_t n = 0;
    memset(s, 0, sizeof *s);
    if (!file)
        problem = errno == EINVAL ? "not a file" : strerror(errno);
    else if (fstat(fileno(file), &about))
        problem = strerror(errno);
    else if ((uint64_t)about.st_size > SIZE_MAX - 1 || !(bytes = malloc((size_t)about.st_size + 1)))
        problem = "too large for memory";
    else if ((n = fread(bytes, 1, (size_t)about.st_size, file)) != (size_t)about.st_size)
        problem = "cannot be read to its end";
    if (file)
        fclose(file);
    if (problem) {
        free(bytes);
        snprintf(s->error, sizeof s->error, "%s", problem);
        return -1;
    }
    int status = safetensors_parse(s, bytes, n);
    s->file = bytes;
    return status;
}

void safetensors_free(struct safetensors *s)
{
    for (size_t i = 0; i < s->count; i++)
        free(s->tensors[i].name);
    free(s->tensors);
    free(s->file);
    memset(s, 0, sizeof *s);
}

const struct tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct tensor wanted = {.name = (char *)(uintptr_t)name};
    return s->count ? bsearch(&wanted, s->tensors, s->count, sizeof wanted, by_name) : NULL;
}

static void write_name(FILE *file, const char *name)
{
    fputc('"', file);
    for (; *name; name++)
        if ((unsigned char)*name < 0x20)
            fprintf(file, "\\u%04x", *name);
        else
            fprintf(file, *name == '"' || *name == '\\' ? "\\%c" : "%c", *name);
    fputc('"', file);
}

/* Writes the JSON object, then spaces so that the data is aligned. Returns the length of both. */
static uint64_t write_header(FILE *file, const struct tensor_out *tensors, size_t count)
{
    size_t offset = 0, bytes;
    fputc('{', file);
    for (size_t i = 0; i < count; i++, offset += bytes) {
        bytes = sizeof(float);
        fputs(i ? "," : "", file);
        write_name(file, tensors[i].name);
        fputs(":{\"dtype\":\"F32\",\"shape\":[", file);
        for (size_t k = 0; k < tensors[i].rank; k++) {
            fprintf(file, "%s%zu", k ? "," : "", tensors[i].shape[k]);
            bytes *= tensors[i].shape[k];
        }
        fprintf(file, "],\"data_offsets\":[%zu,%zu]}", offset, offset + bytes);
    }
    fputc('}', file);
    while (!ferror(file) && ftell(file) % 64)
        fputc(' ', file);
    return (uint64_t)ftell(file) - 8;
}

int safetensors_write(const char *path, const struct tensor_out *tensors, size_t count)
{
    struct replacement whole;
    uint8_t length[8] = {0};
    if (replacement_begin(&whole, path))
        return -1;
    FILE *file = whole.to;
    fwrite(length, 1, sizeof length, file);
    uint64_t bytes = write_header(file, tensors, count);
    for (size_t i = 0; i < count; i++) {
        size_t elements = 1;
        for (size_t k = 0; k < tensors[i].rank; k++)
            elements *= tensors[i].shape[k];
        if (elements)
            fwrite(tensors[i].data, sizeof(float), elements, file);
    }
    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)(bytes >> 8 * i);
    int failed = fseek(file, 0, SEEK_SET) || fwrite(length, 1, sizeof length, file) != sizeof length || ferror(file);
    return replacement_end(&whole, failed);
}
