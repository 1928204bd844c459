/* A writer of GGUF files in memory, for tests: keys and tensors in any order, then gguf_finish(). */
#ifndef AURA_TEST_GGUF_TOOLS_H
#define AURA_TEST_GGUF_TOOLS_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../model/gguf.h"

enum { GGUF_WRITER_ALIGNMENT = 32 };

struct gguf_part {
    uint8_t *data;
    size_t size, room;
};

struct gguf_writer { /* begins as zeros */
    struct gguf_part keys, tensors, data;
    uint64_t n_keys, n_tensors;
};

static inline void gguf_part_add(struct gguf_part *part, const void *data, size_t size)
{
    if (part->size + size >= part->room) {
        part->room = 2 * (part->size + size) + 64;
        part->data = realloc(part->data, part->room);
    }
    if (size)
        memcpy(part->data + part->size, data, size);
    part->size += size;
}

static inline void gguf_part_text(struct gguf_part *part, const char *text, uint64_t size)
{
    gguf_part_add(part, &size, 8);
    gguf_part_add(part, text, (size_t)size);
}

static inline void gguf_put_key(struct gguf_writer *w, const char *key, uint32_t kind)
{
    gguf_part_text(&w->keys, key, strlen(key));
    gguf_part_add(&w->keys, &kind, 4);
    w->n_keys++;
}

static inline void gguf_put_u32(struct gguf_writer *w, const char *key, uint32_t value)
{
    gguf_put_key(w, key, GGUF_U32);
    gguf_part_add(&w->keys, &value, 4);
}

static inline void gguf_put_f32(struct gguf_writer *w, const char *key, float value)
{
    gguf_put_key(w, key, GGUF_F32);
    gguf_part_add(&w->keys, &value, 4);
}

static inline void gguf_put_bool(struct gguf_writer *w, const char *key, int value)
{
    uint8_t byte = value != 0;
    gguf_put_key(w, key, GGUF_BOOL);
    gguf_part_add(&w->keys, &byte, 1);
}

static inline void gguf_put_string(struct gguf_writer *w, const char *key, const char *value)
{
    gguf_put_key(w, key, GGUF_STRING);
    gguf_part_text(&w->keys, value, strlen(value));
}

static inline void gguf_put_array(struct gguf_writer *w, const char *key, uint32_t of, uint64_t count)
{
    gguf_put_key(w, key, GGUF_ARRAY);
    gguf_part_add(&w->keys, &of, 4);
    gguf_part_add(&w->keys, &count, 8);
}

static inline void gguf_put_strings(struct gguf_writer *w, const char *key, const char *const *values, uint64_t count)
{
    gguf_put_array(w, key, GGUF_STRING, count);
    for (uint64_t i = 0; i < count; i++)
        gguf_part_text(&w->keys, values[i], strlen(values[i]));
}

static inline void gguf_put_i32s(struct gguf_writer *w, const char *key, const int32_t *values, uint64_t count)
{
    gguf_put_array(w, key, GGUF_I32, count);
    gguf_part_add(&w->keys, values, (size_t)count * 4);
}

static inline void gguf_put_f32s(struct gguf_writer *w, const char *key, const float *values, uint64_t count)
{
    gguf_put_array(w, key, GGUF_F32, count);
    gguf_part_add(&w->keys, values, (size_t)count * 4);
}

/* size[0] is the length of a row; `bytes` of data, in the blocks of the type. */
static inline void gguf_put_tensor(struct gguf_writer *w, const char *name, uint32_t type, uint32_t dims, const uint64_t *size,
                                   const void *data, size_t bytes)
{
    static const uint8_t zeros[GGUF_WRITER_ALIGNMENT];
    uint64_t offset = w->data.size;
    gguf_part_text(&w->tensors, name, strlen(name));
    gguf_part_add(&w->tensors, &dims, 4);
    gguf_part_add(&w->tensors, size, 8 * dims);
    gguf_part_add(&w->tensors, &type, 4);
    gguf_part_add(&w->tensors, &offset, 8);
    w->n_tensors++;
    gguf_part_add(&w->data, data, bytes);
    gguf_part_add(&w->data, zeros, -w->data.size % GGUF_WRITER_ALIGNMENT);
}

/* The file, in memory of exactly its size, which the caller frees. The writer is empty again. */
static inline struct gguf_part gguf_finish(struct gguf_writer *w)
{
    static const uint8_t zeros[GGUF_WRITER_ALIGNMENT];
    struct gguf_part file = {NULL, 0, 0};
    uint32_t version = 3;
    gguf_part_add(&file, "GGUF", 4);
    gguf_part_add(&file, &version, 4);
    gguf_part_add(&file, &w->n_tensors, 8);
    gguf_part_add(&file, &w->n_keys, 8);
    gguf_part_add(&file, w->keys.data, w->keys.size);
    gguf_part_add(&file, w->tensors.data, w->tensors.size);
    if (w->n_tensors)
        gguf_part_add(&file, zeros, -file.size % GGUF_WRITER_ALIGNMENT);
    gguf_part_add(&file, w->data.data, w->data.size);
    free(w->keys.data), free(w->tensors.data), free(w->data.data);
    memset(w, 0, sizeof *w);
    file.data = realloc(file.data, file.size), file.room = file.size;
    return file;
}

#endif
