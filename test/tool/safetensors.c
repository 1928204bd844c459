/* The reader and writer of safetensors files: good files are read, bad files are refused, nothing crashes. Every file is read
 * from an allocation of exactly its size, so that the address sanitizer notices a read behind its end. */
#define _POSIX_C_SOURCE 200809L
#include "../../tool/parts/safetensors.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../test.h"

/* A file with this header and `data_bytes` bytes of data, in memory of its own. */
static uint8_t *make_file(const char *header, size_t data_bytes, size_t *bytes)
{
    size_t length = strlen(header);
    uint8_t *file = malloc(*bytes = 8 + length + data_bytes);
    for (int i = 0; i < 8; i++)
        file[i] = (uint8_t)((uint64_t)length >> 8 * i);
    memcpy(file + 8, header, length);
    for (size_t i = 0; i < data_bytes; i++)
        file[8 + length + i] = (uint8_t)i;
    return file;
}

static volatile unsigned touched;

/* Reads every byte that a good result promises. */
static void touch(const struct safetensors *s)
{
    for (size_t i = 0; i < s->count; i++) {
        touched += (unsigned)strlen(s->tensors[i].name) + (unsigned)strlen(s->tensors[i].dtype);
        for (size_t k = 0; k < s->tensors[i].bytes; k++)
            touched += s->tensors[i].data[k];
    }
}

/* Reads a header with 24 bytes of data; if it is refused, the message must contain `why`. */
static int reads(const char *header, const char *why)
{
    struct safetensors s;
    size_t bytes;
    uint8_t *file = make_file(header, 24, &bytes);
    int good = !safetensors_parse(&s, file, bytes);
    touch(&s);
    EXPECT(good || strstr(s.error, why), "%s: %s", header, s.error);
    EXPECT(good == !s.error[0], "%s: good %d, but: %s", header, good, s.error);
    safetensors_free(&s);
    free(file);
    return good;
}

#define GOOD(header) EXPECT(reads(header, ""), "%s", header)
#define BAD(header, why) EXPECT(!reads(header, why), "%s", header)
#define A(fields) "{\"a\":{" fields "}}"
#define F16 "\"dtype\":\"F16\","
#define REST ",\"shape\":[3,4],\"data_offsets\":[0,24]"

static void good_headers(void)
{
    GOOD("{}");
    GOOD(" \t\r\n{ } \n ");
    GOOD("{\"__metadata__\":{\"k\":\"v\",\"n\":{\"x\":[1,-2.5e3,true,false,null,[],{}]}}}");
    GOOD(A(F16 "\"shape\":[3,4],\"data_offsets\":[0,24]"));
    GOOD("{ \"a\" : { \"data_offsets\" : [ 0 , 24 ] , \"shape\" : [ 6 ] , \"dtype\" : \"F32\", \"more\": [1] } }");
    GOOD(A(F16 "\"shape\":[],\"data_offsets\":[22,24]"));      /* no dimension: one element */
    GOOD(A(F16 "\"shape\":[5,0,7],\"data_offsets\":[24,24]")); /* no element */
    GOOD(A(F16 "\"shape\":[0,18446744073709551615,18446744073709551615],\"data_offsets\":[0,0]"));
    GOOD(A(F16 "\"shape\":[1,1,1,1,1,1,1,12],\"data_offsets\":[0,24]"));
    GOOD(A("\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[0,24]"));
    GOOD(A("\"dtype\":\"a type with a very long name\",\"shape\":[3],\"data_offsets\":[0,24]"));
    GOOD("{\"\\u00e9\\ud83d\\ude00\\n\":{" F16 "\"shape\":[1],\"data_offsets\":[0,2]},"
         "\"b\":{" F16 "\"shape\":[1],\"data_offsets\":[0,2]}}"); /* overlapping is allowed */
}

static void bad_json(void)
{
    static const char *const texts[] = {
        "", " ", "[]", "{", "}", "{\"a\"", "{\"a\":", "{\"a\":}", "{\"a\":{}", "{,}", "{\"a\":1}", "{\"a\":{}}", "nonsense",
        "{\"__metadata__\":}", "{\"__metadata__\":{\"k\"}}", "{\"__metadata__\":[1,]}", "{\"__metadata__\":{}", "{} x",
        A(F16 "\"shape\":[3,4],\"data_offsets\":[0,24]") "{}",
        A(F16 "\"shape\":[3 4],\"data_offsets\":[0,24]"), A(F16 "\"shape\":[3,4,],\"data_offsets\":[0,24]"),
        A(F16 "\"shape\":[3,4],\"data_offsets\":[0,24],"), A(F16 "\"shape\":12,\"data_offsets\":[0,24]"),
        A(F16 "\"shape\":[3,4],\"data_offsets\":[0,24,24]"), A(F16 "\"shape\":[3,4],\"data_offsets\":[0]"),
        A(F16 "\"shape\":[\"3\",4],\"data_offsets\":[0,24]"), A("\"dtype\":16" REST)};
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        BAD(texts[i], "header byte");
}

static void bad_fields(void)
{
    BAD(A(F16 "\"shape\":[3,4]"), "needs dtype, shape and data_offsets");
    BAD(A("\"shape\":[3,4],\"data_offsets\":[0,24]"), "needs dtype");
    BAD(A(F16 "\"data_offsets\":[0,24]"), "needs dtype");
    BAD(A(F16 F16 "\"shape\":[3,4],\"data_offsets\":[0,24]"), "twice");
    BAD(A(F16 "\"shape\":[3,4],\"data_offsets\":[0,22]"), "12 elements of F16 in 22 bytes");
    BAD(A(F16 "\"shape\":[3,4],\"data_offsets\":[2,26]"), "[2, 26] in 24 bytes");
    BAD(A(F16 "\"shape\":[],\"data_offsets\":[24,22]"), "[24, 22]");
    BAD(A("\"dtype\":\"I64\",\"shape\":[3],\"data_offsets\":[1,25]"), "[1, 25]");
    BAD(A(F16 "\"shape\":[1,1,1,1,1,1,1,1,12],\"data_offsets\":[0,24]"), "more than 8 dimensions");
    BAD("{\"a\":{" F16 "\"shape\":[1],\"data_offsets\":[0,2]},\"\\u0061\":{" F16 "\"shape\":[1],\"data_offsets\":[0,2]}}",
        "two tensors called a");
}

/* Sizes whose product or sum overflows to a small number. */
static void numbers_that_overflow(void)
{
    BAD(A(F16 "\"shape\":[18446744073709551616],\"data_offsets\":[0,0]"), "does not fit");
    BAD(A(F16 "\"shape\":[99999999999999999999999],\"data_offsets\":[0,0]"), "does not fit");
    BAD(A(F16 "\"shape\":[9223372036854775808],\"data_offsets\":[0,0]"), "product of its shape");
    BAD(A(F16 "\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), "product of its shape");
    BAD(A("\"dtype\":\"I64\",\"shape\":[4294967296,4294967296],\"data_offsets\":[0,0]"), "product of its shape");
    BAD(A(F16 "\"shape\":[3,4],\"data_offsets\":[18446744073709551615,23]"), "[18446744073709551615, 23]");
    BAD(A(F16 "\"shape\":[3,4],\"data_offsets\":[0,18446744073709551615]"), "[0, 18446744073709551615]");
    BAD(A(F16 "\"shape\":[-3],\"data_offsets\":[0,24]"), "whole number");
    BAD(A(F16 "\"shape\":[12.0],\"data_offsets\":[0,24]"), "expected");
    BAD(A(F16 "\"shape\":[12e0],\"data_offsets\":[0,24]"), "expected");
}

static void bad_strings(void)
{
    static const char *const names[] = {
        "\\x", "\\", "\\u12", "\\u12g4", "\\u0000", "\\ud800", "\\ud800x", "\\ud800\\n", "\\ud800\\u0041", "\\udc00",
        "\\ud800\\ud800",
        "\x01", "\n", "\x80", "\xc3", "\xc3(", "\xc0\x80", "\xe0\x80\x80", "\xed\xa0\x80", "\xf0\x80\x80\x80", "\xf4\x90\x80\x80",
        "\xf8\x88\x80\x80\x80", "\xff", "\xe2\x82", "\xf0\x9f\x98"};
    char header[128];
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        snprintf(header, sizeof header, "{\"%s\":{" F16 "\"shape\":[1],\"data_offsets\":[0,2]}}", names[i]);
        BAD(header, "header byte");
        snprintf(header, sizeof header, "{\"__metadata__\":{\"%s\":\"\"}}", names[i]);
        BAD(header, "header byte");
    }
    BAD("{\"a", "without end");
    BAD("{\"a\\", "without end");
    BAD("{\"a\\\"", "without end");
}

static void nesting(void)
{
    enum { DEEP = 200000 };
    static char header[2 * DEEP + 64];
    for (int depth = 8; depth <= DEEP; depth *= 5) {
        char *at = header + sprintf(header, "{\"__metadata__\":");
        memset(at, '[', (size_t)depth), at += depth;
        if (depth > 32) {
            *at = 0;
            BAD(header, "nested too deep");
            continue;
        }
        memset(at, ']', (size_t)depth), at += depth;
        strcpy(at, "}");
        GOOD(header);
    }
}

/* A small file with every feature. */
static const char small_header[] =
    "{\"__metadata__\":{\"text\":\"\\u00e9 \xc3\xa9\",\"list\":[1,{\"x\":null}]},"
    "\"k\":{\"dtype\":\"F16\",\"shape\":[3,2],\"data_offsets\":[0,12]},"
    "\"q\\n\":{\"dtype\":\"F32\",\"shape\":[2],\"data_offsets\":[12,20]},"
    "\"z\":{\"dtype\":\"BF16\",\"shape\":[],\"data_offsets\":[20,22]}} ";

/* Cut anywhere: the header's length no longer fits the file, or a tensor no longer fits the data. */
static void truncated_anywhere(void)
{
    size_t bytes;
    uint8_t *file = make_file(small_header, 22, &bytes);
    for (size_t n = 0; n < bytes; n++) {
        struct safetensors s;
        uint8_t *copy = malloc(n ? n : 1);
        memcpy(copy, file, n);
        EXPECT(safetensors_parse(&s, copy, n) && s.error[0], "%zu of %zu bytes were read as a file", n, bytes);
        safetensors_free(&s);
        free(copy);
    }
    free(file);
}

/* The same for the header alone, with a length that fits: the JSON itself ends early. */
static void header_cut_anywhere(void)
{
    char header[sizeof small_header];
    for (size_t n = 0; n < strlen(small_header) - 1; n++) {
        memcpy(header, small_header, n);
        header[n] = 0;
        BAD(header, "header byte");
    }
}

/* Any byte replaced by any other: the file is read or refused, nothing crashes, and tensors lie inside the file. */
static void every_byte_corrupted(void)
{
    size_t bytes, header = 8 + strlen(small_header), refused = 0, tried = 0;
    uint8_t *file = make_file(small_header, 22, &bytes);
    for (size_t i = 0; i < header; i++)
        for (int x = 1; x < 256; x++) {
            struct safetensors s;
            file[i] ^= (uint8_t)x;
            int status = safetensors_parse(&s, file, bytes);
            for (size_t k = 0; !status && k < s.count; k++)
                EXPECT(s.tensors[k].data >= file && s.tensors[k].data + s.tensors[k].bytes <= file + bytes,
                       "byte %zu ^ %d: outside the file", i, x);
            if (!status)
                touch(&s);
            EXPECT(!status == !s.error[0], "byte %zu ^ %d: status %d, '%s'", i, x, status, s.error);
            refused += status != 0, tried++;
            safetensors_free(&s);
            file[i] ^= (uint8_t)x;
        }
    EXPECT(refused > tried / 2, "only %zu of %zu corruptions were noticed", refused, tried);
    free(file);
}

static void round_trip(void)
{
    static const float a[6] = {1, -2, 0.5f, 3e38f, -0.f, 1e-45f}, b[1] = {7};
    const struct tensor_out out[] = {{"layer.1.o", 3, {1, 2, 3}, a}, {"b \"\\\n\xc3\xa9", 0, {0}, b}, {"none", 2, {0, 4}, NULL}};
    char path[] = "/tmp/aura-safetensors-XXXXXX";
    struct safetensors s;
    int file = mkstemp(path);
    EXPECT(file >= 0, "no temporary file");
    close(file);
    EXPECT(!safetensors_write(path, out, 3), "not written");
    EXPECT(!safetensors_read(&s, path), "%s", s.error);
    EXPECT(s.count == 3, "%zu tensors", s.count);
    for (int i = 0; i < 3; i++) {
        const struct tensor *t = safetensors_find(&s, out[i].name);
        EXPECT(t != NULL, "%s is missing", out[i].name);
        if (!t)
            continue;
        EXPECT(!strcmp(t->dtype, "F32") && t->rank == out[i].rank, "%s: %s, rank %zu", t->name, t->dtype, t->rank);
        EXPECT(!memcmp(t->shape, out[i].shape, t->rank * sizeof *t->shape), "%s: shape", t->name);
        EXPECT(t->bytes == 4 * t->elements && (!t->bytes || !memcmp(t->data, out[i].data, t->bytes)), "%s: data", t->name);
    }
    EXPECT(!safetensors_find(&s, "layer.1") && !safetensors_find(&s, ""), "found what is not there");
    safetensors_free(&s);
    remove(path);
}

static void files_that_are_none(void)
{
    struct safetensors s;
    const struct tensor_out none = {"a", 0, {0}, NULL};
    EXPECT(safetensors_read(&s, "test/no-such-file") && strstr(s.error, "No such file"), "%s", s.error);
    safetensors_free(&s);
    EXPECT(safetensors_read(&s, "test") && strstr(s.error, "not a file"), "%s", s.error);
    safetensors_free(&s);
    EXPECT(safetensors_read(&s, "README.md") && strstr(s.error, "not a safetensors file"), "%s", s.error);
    safetensors_free(&s);
    EXPECT(safetensors_write("test/no-such-folder/file", &none, 1), "written to nowhere");
}

int main(void)
{
    RUN(good_headers);
    RUN(bad_json);
    RUN(bad_fields);
    RUN(numbers_that_overflow);
    RUN(bad_strings);
    RUN(nesting);
    RUN(truncated_anywhere);
    RUN(header_cut_anywhere);
    RUN(every_byte_corrupted);
    RUN(round_trip);
    RUN(files_that_are_none);
    return test_result();
}
