/* Files of models in the GGUF format, versions 2 and 3, little-endian: keys with values, then names and shapes of tensors, then
 * their data. A file is input from strangers: the reader compares every length in it with what is left of the file, in arithmetic
 * that cannot overflow, before it reads or allocates anything. Every pointer that it returns is valid until the file is closed.
 *
 * Threads: an open file never changes, any number may read it. */
#ifndef AURA_GGUF_H
#define AURA_GGUF_H

#include <stddef.h>
#include <stdint.h>

#include "matmul_variants.h"

enum { GGUF_ERROR_BYTES = 256, GGUF_MAX_DIMS = 4 };

struct gguf;

/* Opens a file and maps it read-only; nobody may shorten the file while it is open. 0 when good; otherwise 1, with a text. */
int gguf_open(const char *path, struct gguf **file, char error[GGUF_ERROR_BYTES]);

/* The same over bytes in memory. The caller owns them and keeps them until gguf_close(). */
int gguf_read(const void *data, size_t size, struct gguf **file, char error[GGUF_ERROR_BYTES]);

void gguf_close(struct gguf *file); /* NULL is allowed */

/* A number that tells files apart: a hash of the file's size and of all bytes before the tensors' data. */
uint64_t gguf_fingerprint(const struct gguf *file);

/* The same of its weights: some bytes of every tensor, so that it takes no time with a large file. */
uint64_t gguf_weights_fingerprint(const struct gguf *file);

/* ---- keys and values ----------------------------------------------------------------------------------------------- */

enum gguf_kind { /* numbers as in the file */
    GGUF_U8 = 0,
    GGUF_I8 = 1,
    GGUF_U16 = 2,
    GGUF_I16 = 3,
    GGUF_U32 = 4,
    GGUF_I32 = 5,
    GGUF_F32 = 6,
    GGUF_BOOL = 7,
    GGUF_STRING = 8,
    GGUF_ARRAY = 9,
    GGUF_U64 = 10,
    GGUF_I64 = 11,
    GGUF_F64 = 12
};

struct gguf_text {
    const char *data; /* not terminated; may hold zeros */
    size_t size;
};

struct gguf_value {
    struct gguf_text key;
    enum gguf_kind kind;
    enum gguf_kind of; /* of an array: the kind of its elements, never GGUF_ARRAY */
    uint64_t count;    /* of an array: elements; otherwise 1 */
    const void *data;  /* numbers as in the file, not aligned; struct gguf_text [count] where they are strings */
};

/* Bytes of a number or truth value; 0 for strings and arrays. */
size_t gguf_kind_bytes(enum gguf_kind kind);

uint64_t gguf_values(const struct gguf *file); /* how many there are */
const struct gguf_value *gguf_value_at(const struct gguf *file, uint64_t i);

/* NULL: not there. */
const struct gguf_value *gguf_find(const struct gguf *file, const char *key);

/* 1: found; 0: no such key; -1: its value is of another kind. gguf_uint takes every kind of integer that is not negative,
 * gguf_float both kinds of float. */
int gguf_uint(const struct gguf *file, const char *key, uint64_t *value);
int gguf_float(const struct gguf *file, const char *key, double *value);
int gguf_bool(const struct gguf *file, const char *key, int *value);
int gguf_string(const struct gguf *file, const char *key, struct gguf_text *value);

/* Element i of an array of strings; {"", 0} where i is behind the last, or the elements are no strings. */
struct gguf_text gguf_array_text(const struct gguf_value *array, uint64_t i);

/* Element i of an array of numbers or truth values; 0 where i is behind the last. Integers beyond 2^53 are rounded. */
double gguf_array_number(const struct gguf_value *array, uint64_t i);

int gguf_text_is(struct gguf_text text, const char *string);

/* ---- tensors ------------------------------------------------------------------------------------------------------- */

enum gguf_type { /* the types that can be read here, with their numbers in a file. weights.h says what they mean */
#define TYPE(name, isa, number, ...) GGUF_TYPE_##name = number,
    WEIGHT_TYPES(TYPE, any) WEIGHT_FLOATS(TYPE, any)
#undef TYPE
};

/* A row is made of blocks: each is `block` numbers in `bytes` bytes. */
struct gguf_type_info {
    uint32_t type;
    const char *name;
    uint32_t block, bytes;
};

/* NULL for a type that cannot be read here. */
const struct gguf_type_info *gguf_type_info(uint32_t type);

struct gguf_tensor {
    struct gguf_text name;
    uint32_t type;
    uint32_t dims;                   /* 0 to 4 */
    uint64_t size[GGUF_MAX_DIMS];    /* size[0] is the length of a row; 1 from `dims` on */
    const void *data;                /* aligned as the file says, usually to 32; NULL for a type that cannot be read here */
    size_t bytes;                    /* of data */
};

uint64_t gguf_tensors(const struct gguf *file); /* how many there are */
const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint64_t i);

/* NULL: not there. */
const struct gguf_tensor *gguf_tensor(const struct gguf *file, const char *name);

#endif
