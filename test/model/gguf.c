/* GGUF files: what the reader returns, and that it refuses every file that is cut off or contradicts itself. */
#define _DEFAULT_SOURCE
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../model/gguf.h"
#include "gguf_tools.h"
#include "../test.h"

static char error[GGUF_ERROR_BYTES];

/* Reads from memory of exactly the file's size, so that sanitizers notice a read behind its end. NULL: refused. */
static struct gguf *read_bytes(const void *data, size_t size, void **copy)
{
    struct gguf *file = NULL;
    *copy = malloc(size ? size : 1);
    memcpy(*copy, data, size);
    return gguf_read(*copy, size, &file, error) ? NULL : file;
}

static void refused(const struct gguf_part *part, const char *why)
{
    void *copy;
    struct gguf *file = read_bytes(part->data, part->size, &copy);
    EXPECT(!file && strstr(error, why), "expected \"%s\", got \"%s\"", why, file ? "a file" : error);
    gguf_close(file);
    free(copy);
}

static const char *const words[] = {"one", "", "three"};
static const uint8_t zeros[32];

/* Something of every kind. */
static void fill(struct gguf_writer *w)
{
    static const int32_t numbers[] = {-1, 2, 3};
    static const float reals[] = {0.5f, -2};
    static const float row[64] = {1, 2, 3};
    static const uint8_t blocks[2 * 20] = {7};
    uint64_t big = UINT64_MAX, shape[2] = {16, 4}, quantised[1] = {64};
    int64_t negative = -5;
    double real = 0.25;
    uint16_t half = 65535;
    int8_t byte = -3;
    gguf_put_u32(w, "u32", 4000000000u);
    gguf_put_key(w, "u64", GGUF_U64), gguf_part_add(&w->keys, &big, 8);
    gguf_put_key(w, "i64", GGUF_I64), gguf_part_add(&w->keys, &negative, 8);
    gguf_put_key(w, "u16", GGUF_U16), gguf_part_add(&w->keys, &half, 2);
    gguf_put_key(w, "i8", GGUF_I8), gguf_part_add(&w->keys, &byte, 1);
    gguf_put_key(w, "f64", GGUF_F64), gguf_part_add(&w->keys, &real, 8);
    gguf_put_f32(w, "f32", 1.5f);
    gguf_put_bool(w, "bool", 1);
    gguf_put_string(w, "text", "a text");
    gguf_put_strings(w, "words", words, 3);
    gguf_put_i32s(w, "numbers", numbers, 3);
    gguf_put_f32s(w, "reals", reals, 2);
    gguf_put_strings(w, "nothing", words, 0);
    gguf_put_tensor(w, "matrix", GGUF_TYPE_F32, 2, shape, row, sizeof row);
    gguf_put_tensor(w, "blocks", GGUF_TYPE_Q4_1, 1, quantised, blocks, sizeof blocks);
}

static struct gguf_part whole_file(void)
{
    struct gguf_writer w = {0};
    fill(&w);
    return gguf_finish(&w);
}

static void values(void)
{
    struct gguf_part part = whole_file();
    void *copy;
    struct gguf *f = read_bytes(part.data, part.size, &copy);
    uint64_t n = 0;
    double x = 0;
    int flag = 0;
    struct gguf_text text = {"", 0};
    EXPECT(f, "%s", error);
    if (f) {
        EXPECT(gguf_uint(f, "u32", &n) == 1 && n == 4000000000u, "u32: %llu", (unsigned long long)n);
        EXPECT(gguf_uint(f, "u64", &n) == 1 && n == UINT64_MAX, "u64: %llu", (unsigned long long)n);
        EXPECT(gguf_uint(f, "u16", &n) == 1 && n == 65535, "u16: %llu", (unsigned long long)n);
        EXPECT(gguf_uint(f, "i64", &n) == -1 && gguf_uint(f, "i8", &n) == -1, "negative numbers are taken");
        EXPECT(gguf_uint(f, "f32", &n) == -1 && gguf_uint(f, "bool", &n) == -1 && gguf_uint(f, "text", &n) == -1 &&
               gguf_uint(f, "numbers", &n) == -1, "no integers");
        EXPECT(gguf_uint(f, "no", &n) == 0 && gguf_float(f, "no", &x) == 0 && gguf_bool(f, "no", &flag) == 0 &&
               gguf_string(f, "no", &text) == 0, "keys that are not there");
        EXPECT(gguf_float(f, "f32", &x) == 1 && x == 1.5, "f32: %g", x);
        EXPECT(gguf_float(f, "f64", &x) == 1 && x == 0.25 && gguf_float(f, "u32", &x) == -1, "f64: %g", x);
        EXPECT(gguf_bool(f, "bool", &flag) == 1 && flag == 1 && gguf_bool(f, "u32", &flag) == -1, "bool: %d", flag);
        EXPECT(gguf_string(f, "text", &text) == 1 && gguf_text_is(text, "a text") && !gguf_text_is(text, "a tex"),
               "text: %.*s", (int)text.size, text.data);
        EXPECT(gguf_string(f, "words", &text) == -1, "an array as a text");
        const struct gguf_value *array = gguf_find(f, "words");
        EXPECT(array && array->kind == GGUF_ARRAY && array->of == GGUF_STRING && array->count == 3, "words");
        EXPECT(array && gguf_text_is(gguf_array_text(array, 2), "three") && gguf_array_text(array, 1).size == 0 &&
               gguf_array_text(array, 3).size == 0 &&
               gguf_array_number(array, 0) == 0, "words");
        array = gguf_find(f, "numbers");
        EXPECT(array && gguf_array_number(array, 0) == -1 && gguf_array_number(array, 2) == 3 && gguf_array_number(array, 3) == 0 &&
               gguf_array_text(array, 0).size == 0, "numbers");
        array = gguf_find(f, "reals");
        EXPECT(array && gguf_array_number(array, 1) == -2, "reals");
        EXPECT(gguf_values(f) == 13 && gguf_text_is(gguf_value_at(f, 12)->key, "nothing") &&
               gguf_value_at(f, 12)->count == 0 && !gguf_value_at(f, 13), "%u keys",
               (unsigned)gguf_values(f));
    }
    gguf_close(f);
    free(copy);
    free(part.data);
}

static void tensors(void)
{
    struct gguf_part part = whole_file();
    void *copy;
    struct gguf *f = read_bytes(part.data, part.size, &copy);
    EXPECT(f, "%s", error);
    if (f) {
        const struct gguf_tensor *t = gguf_tensor(f, "matrix"), *b = gguf_tensor(f, "blocks");
        EXPECT(t && t->type == GGUF_TYPE_F32 && t->dims == 2 && t->size[0] == 16 && t->size[1] == 4 && t->size[2] == 1 &&
               t->size[3] == 1 && t->bytes == 256, "matrix");
        EXPECT(t && ((const float *)t->data)[2] == 3, "its data");
        EXPECT(b && b->type == GGUF_TYPE_Q4_1 && b->bytes == 40 && *(const uint8_t *)b->data == 7, "blocks");
        EXPECT(!gguf_tensor(f, "no") && gguf_tensors(f) == 2 && gguf_tensor_at(f, 1) == b && !gguf_tensor_at(f, 2),
               "%u tensors", (unsigned)gguf_tensors(f));
    }
    gguf_close(f);
    free(copy);
    free(part.data);
}

/* The reader refuses a file that ends anywhere before the end of its last tensor, and reads nothing behind the file's end. */
static void cut_off(void)
{
    struct gguf_part part = whole_file();
    size_t end = part.size - 24; /* the last tensor ends before the padding */
    for (size_t size = 0; size < end; size++) {
        void *copy;
        struct gguf *f = read_bytes(part.data, size, &copy);
        EXPECT(!f && *error, "%zu of %zu bytes were taken for a file", size, part.size);
        gguf_close(f);
        free(copy);
    }
    free(part.data);
}

/* Every byte is changed to several others: the reader refuses the file, or reads nothing outside it. */
static void any_byte(void)
{
    static const uint8_t changes[] = {0x01, 0x80, 0xff};
    struct gguf_part part = whole_file();
    for (size_t i = 0; i < part.size; i++)
        for (size_t k = 0; k < sizeof changes; k++) {
            void *copy;
            part.data[i] ^= changes[k];
            struct gguf *f = read_bytes(part.data, part.size, &copy);
            for (uint64_t t = 0; f && t < gguf_tensors(f); t++) {
                const struct gguf_tensor *tensor = gguf_tensor_at(f, t);
                const uint8_t *data = tensor->data, *from = copy;
                EXPECT(!data || (data >= from && data + tensor->bytes <= from + part.size),
                       "byte %zu: a tensor that is not in the file", i);
            }
            for (uint64_t v = 0; f && v < gguf_values(f); v++)
                for (uint64_t j = 0; j < gguf_value_at(f, v)->count; j++)
                    gguf_array_number(gguf_value_at(f, v), j), gguf_array_text(gguf_value_at(f, v), j);
            gguf_close(f);
            free(copy);
            part.data[i] ^= changes[k];
        }
    free(part.data);
}

static void put64(struct gguf_part *part, size_t at, uint64_t value)
{
    memcpy(part->data + at, &value, sizeof value);
}

static void headers(void)
{
    struct gguf_part part = whole_file();
    refused(&(struct gguf_part){part.data, 10, 10}, "10 bytes are too few");
    part.data[0] = 'X';
    refused(&part, "begins with bytes 58 47 55 46");
    part.data[0] = 'G', part.data[4] = 1;
    refused(&part, "GGUF version 1; versions 2 and 3");
    part.data[4] = 0, part.data[7] = 3;
    refused(&part, "big-endian");
    part.data[4] = 3, part.data[7] = 0;
    put64(&part, 8, UINT64_MAX);
    refused(&part, "18446744073709551615 tensors");
    put64(&part, 8, 2);
    put64(&part, 16, (uint64_t)1 << 60);
    refused(&part, "1152921504606846976 keys");
    put64(&part, 16, 13);
    put64(&part, 24, UINT64_MAX - 3);
    refused(&part, "a key of 18446744073709551612 bytes");
    free(part.data);
}

/* A file with one key or tensor that is impossible. */
static void contents(void)
{
    static const struct {
        const char *why;
        uint32_t kind, of;
        uint64_t count;
    } arrays[] = {{"an array of arrays", GGUF_ARRAY, GGUF_ARRAY, 1}, {"unknown kind 77", 77, 0, 0},
                  {"array of unknown kind 99", GGUF_ARRAY, 99, 1},
                  {"elements of an array, more than fit", GGUF_ARRAY, GGUF_U64, (uint64_t)1 << 61},
                  {"elements of an array, more than fit", GGUF_ARRAY, GGUF_STRING, (uint64_t)1 << 60}};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) {
        struct gguf_writer w = {0};
        gguf_put_key(&w, "key", arrays[i].kind);
        gguf_part_add(&w.keys, &arrays[i].of, 4);
        gguf_part_add(&w.keys, &arrays[i].count, 8);
        gguf_part_add(&w.keys, "12345678", 8);
        struct gguf_part part = gguf_finish(&w);
        refused(&part, arrays[i].why);
        free(part.data);
    }
    static const struct {
        const char *why;
        uint32_t type, dims;
        uint64_t size[4];
    } shapes[] = {{"cut off", GGUF_TYPE_F32, 1, {9, 0, 0, 0}}, {"a size of 0", GGUF_TYPE_F32, 2, {8, 0, 0, 0}},
                  {"whole blocks of Q8_0", GGUF_TYPE_Q8_0, 1, {33, 0, 0, 0}},
                  {"whole blocks of Q6_K", GGUF_TYPE_Q6_K, 2, {32, 8, 0, 0}},
                  {"which cannot be", GGUF_TYPE_F32, 2, {(uint64_t)1 << 32, (uint64_t)1 << 32, 0, 0}},
                  {"cut off", GGUF_TYPE_F32, 3, {(uint64_t)1 << 20, (uint64_t)1 << 20, (uint64_t)1 << 19, 0}}};
    for (size_t i = 0; i < sizeof shapes / sizeof shapes[0]; i++) {
        struct gguf_writer w = {0};
        gguf_put_tensor(&w, "t", shapes[i].type, shapes[i].dims, shapes[i].size, zeros, sizeof zeros);
        struct gguf_part part = gguf_finish(&w);
        refused(&part, shapes[i].why);
        free(part.data);
    }
}

static void names_and_places(void)
{
    static const float row[8] = {0};
    uint64_t size[1] = {8};
    for (int which = 0; which < 4; which++) {
        static const char *const why[] = {"key a is there twice", "tensor t is there twice",
                                          "general.alignment must be a power of two", "is no multiple of 64"};
        struct gguf_writer w = {0};
        if (which == 0)
            gguf_put_u32(&w, "a", 1), gguf_put_u32(&w, "a", 2);
        if (which >= 2)
            gguf_put_u32(&w, "general.alignment", which == 2 ? 48 : 64);
        gguf_put_tensor(&w, "t", GGUF_TYPE_F32, 1, size, row, sizeof row);
        gguf_put_tensor(&w, which == 1 ? "t" : "u", GGUF_TYPE_F32, 1, size, row, sizeof row);
        struct gguf_part part = gguf_finish(&w);
        refused(&part, why[which]);
        free(part.data);
    }
}

/* Two tensors on the same bytes: the second is put where the first is, by its offset, the last number of the header. */
static void overlaps(void)
{
    static const float row[8] = {0};
    uint64_t size[1] = {8}, first = 0;
    struct gguf_writer w = {0};
    gguf_put_tensor(&w, "t", GGUF_TYPE_F32, 1, size, row, sizeof row);
    gguf_put_tensor(&w, "u\033]0;", GGUF_TYPE_F32, 1, size, row, sizeof row);
    struct gguf_part part = gguf_finish(&w);
    const size_t header = part.size - 2 * sizeof row;
    for (size_t at = 0; at + sizeof first <= header; at++) {
        uint64_t offset;
        memcpy(&offset, part.data + at, sizeof offset);
        if (offset == sizeof row && at > header - 64)
            memcpy(part.data + at, &first, sizeof first);
    }
    refused(&part, "tensors t and u?]0; overlap");
    free(part.data);
}

/* A tensor of an unknown type is no reason to refuse the file: the caller may want only the tokenizer. */
static void unknown_type(void)
{
    struct gguf_writer w = {0};
    uint64_t size[1] = {256};
    gguf_put_tensor(&w, "t", 23, 1, size, zeros, 8);
    struct gguf_part part = gguf_finish(&w);
    void *copy;
    struct gguf *f = read_bytes(part.data, part.size, &copy);
    EXPECT(f && gguf_tensor(f, "t") && !gguf_tensor(f, "t")->data && gguf_tensor(f, "t")->bytes == 0, "%s", error);
    gguf_close(f);
    free(copy);
    free(part.data);
}

static void fingerprints(void)
{
    struct gguf_part part = whole_file();
    void *copy, *other_copy;
    struct gguf *f = read_bytes(part.data, part.size, &copy);
    part.data[32] ^= 1; /* in the name of the first key */
    struct gguf *other = read_bytes(part.data, part.size, &other_copy);
    EXPECT(f && other && gguf_fingerprint(f) != gguf_fingerprint(other), "two files are taken for one");
    EXPECT(f && other && gguf_weights_fingerprint(f) == gguf_weights_fingerprint(other), "the same weights are taken for others");
    gguf_close(other), free(other_copy);
    part.data[32] ^= 1, part.data[part.size - 256 - 64] ^= 1; /* in the data */
    other = read_bytes(part.data, part.size, &other_copy);
    EXPECT(f && other && gguf_fingerprint(f) == gguf_fingerprint(other), "the header is the same");
    EXPECT(f && other && gguf_weights_fingerprint(f) != gguf_weights_fingerprint(other), "other weights are not noticed");
    gguf_close(f);
    gguf_close(other);
    free(copy), free(other_copy), free(part.data);
}

static void paths(void)
{
    struct gguf *file = NULL;
    EXPECT(gguf_open("/no/such/file", &file, error) && strstr(error, "No such file"), "%s", error);
    EXPECT(gguf_open("/", &file, error) && strstr(error, "not a regular file"), "%s", error);
    EXPECT(gguf_open("/dev/null", &file, error) && *error, "%s", error);
    char pipe[64];
    snprintf(pipe, sizeof pipe, "/tmp/aura-test-pipe-%d", (int)getpid());
    EXPECT(!mkfifo(pipe, 0600), "no pipe");
    EXPECT(gguf_open(pipe, &file, error) && strstr(error, "not a regular file"), "a pipe: %s", error);
    unlink(pipe);
    EXPECT(gguf_open("README.md", &file, error) && strstr(error, "not a GGUF file"), "%s", error);
}

int main(void)
{
    RUN(values);
    RUN(tensors);
    RUN(cut_off);
    RUN(any_byte);
    RUN(headers);
    RUN(contents);
    RUN(names_and_places);
    RUN(overlaps);
    RUN(unknown_type);
    RUN(fingerprints);
    RUN(paths);
    return test_result();
}
