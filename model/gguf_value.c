/* Values of a GGUF file as numbers and texts. */
#include "gguf.h"

#include <string.h>

size_t gguf_kind_bytes(enum gguf_kind kind)
{
    static const uint8_t bytes[] = {[GGUF_U8] = 1, [GGUF_I8] = 1, [GGUF_U16] = 2, [GGUF_I16] = 2, [GGUF_U32] = 4, [GGUF_I32] = 4,
                                    [GGUF_F32] = 4, [GGUF_BOOL] = 1, [GGUF_U64] = 8, [GGUF_I64] = 8, [GGUF_F64] = 8};
    return (size_t)kind < sizeof bytes ? bytes[kind] : 0;
}

/* An integer of the file, its sign extended; 0 for strings and arrays. */
static int64_t integer_at(enum gguf_kind kind, const void *data, uint64_t i)
{
    uint64_t bits = 0;
    size_t bytes = gguf_kind_bytes(kind);
    memcpy(&bits, (const uint8_t *)data + i * bytes, bytes);
    switch (kind) {
    case GGUF_I8: return (int8_t)bits;
    case GGUF_I16: return (int16_t)bits;
    case GGUF_I32: return (int32_t)bits;
    default: return (int64_t)bits;
    }
}

static double number_at(enum gguf_kind kind, const void *data, uint64_t i)
{
    float f;
    double d;
    switch (kind) {
    case GGUF_F32: return memcpy(&f, (const uint8_t *)data + i * sizeof f, sizeof f), f;
    case GGUF_F64: return memcpy(&d, (const uint8_t *)data + i * sizeof d, sizeof d), d;
    case GGUF_U64: return (double)(uint64_t)integer_at(kind, data, i);
    default: return (double)integer_at(kind, data, i);
    }
}

int gguf_uint(const struct gguf *file, const char *key, uint64_t *value)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (!v)
        return 0;
    if (v->kind == GGUF_F32 || v->kind == GGUF_F64 || v->kind == GGUF_BOOL || v->kind == GGUF_STRING || v->kind == GGUF_ARRAY)
        return -1;
    int64_t number = integer_at(v->kind, v->data, 0);
    if (number < 0 && v->kind != GGUF_U64)
        return -1;
    *value = (uint64_t)number;
    return 1;
}

int gguf_float(const struct gguf *file, const char *key, double *value)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (v && v->kind != GGUF_F32 && v->kind != GGUF_F64)
        return -1;
    if (v)
        *value = number_at(v->kind, v->data, 0);
    return v != NULL;
}

int gguf_bool(const struct gguf *file, const char *key, int *value)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (v && v->kind != GGUF_BOOL)
        return -1;
    if (v)
        *value = integer_at(v->kind, v->data, 0) != 0;
    return v != NULL;
}

int gguf_string(const struct gguf *file, const char *key, struct gguf_text *value)
{
    const struct gguf_value *v = gguf_find(file, key);
    if (v && v->kind != GGUF_STRING)
        return -1;
    if (v)
        *value = *(const struct gguf_text *)v->data;
    return v != NULL;
}

struct gguf_text gguf_array_text(const struct gguf_value *array, uint64_t i)
{
    return array->of == GGUF_STRING && i < array->count ? ((const struct gguf_text *)array->data)[i] : (struct gguf_text){"", 0};
}

double gguf_array_number(const struct gguf_value *array, uint64_t i)
{
    return array->of != GGUF_STRING && i < array->count ? number_at(array->of, array->data, i) : 0;
}
