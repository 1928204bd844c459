/* A reader of GGUF files. A cursor goes once over the header and checks everything; later calls return only what it has checked. */
#define _POSIX_C_SOURCE 200809L
#include "gguf.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../src/base/printable.h"
#include "hash.h"

struct names {        /* a hash table with open addressing; an entry is the index of a name + 1, or 0 where it is empty */
    uint32_t *slot;
    size_t mask;
};

struct gguf {
    const uint8_t *data;
    size_t size, header_size;
    void *mapped; /* NULL: the bytes are the caller's */
    struct gguf_value *values;
    uint64_t n_values;
    struct gguf_tensor *tensors;
    uint64_t n_tensors;
    struct names value_names, tensor_names;
};

/* ---- a cursor over the header ---------------------------------------------------------------------------------------- */

struct cursor {
    struct gguf *file;
    size_t at;
    char *error;
    int failed;
};

/* The first failure is the one that is reported. Returns 0, which all below return for "no". */
__attribute__((format(printf, 2, 3))) static int fail(struct cursor *c, const char *format, ...)
{
    va_list arguments;
    if (c->failed)
        return 0;
    c->failed = 1;
    va_start(arguments, format);
    vsnprintf(c->error, GGUF_ERROR_BYTES, format, arguments);
    va_end(arguments);
    aura_make_printable(c->error);
    return 0;
}

static size_t left(const struct cursor *c)
{
    return c->file->size - c->at;
}

static int take(struct cursor *c, void *to, size_t size, const char *what)
{
    if (left(c) < size)
        return fail(c, "the file ends at byte %zu, inside %s", c->file->size, what);
    memcpy(to, c->file->data + c->at, size);
    c->at += size;
    return 1;
}

static int take_text(struct cursor *c, struct gguf_text *text, const char *what)
{
    uint64_t size = 0;
    if (!take(c, &size, sizeof size, what))
        return 0;
    if (size > left(c))
        return fail(c, "byte %zu: %s of %" PRIu64 " bytes, and %zu are left of the file", c->at, what, size, left(c));
    text->data = (const char *)c->file->data + c->at, text->size = (size_t)size;
    c->at += (size_t)size;
    return 1;
}

/* Reads a count of things that take at least `least` bytes each. */
static int take_count(struct cursor *c, uint64_t *count, size_t least, const char *what)
{
    if (!take(c, count, sizeof *count, what))
        return 0;
    return *count <= left(c) / least ||
           fail(c, "byte %zu: %" PRIu64 " %s, more than fit in the %zu bytes that are left of the file", c->at, *count,
                what, left(c));
}

/* ---- names ----------------------------------------------------------------------------------------------------------- */

static uint64_t hash_bytes(uint64_t hash, const void *data, size_t size)
{
    const uint8_t *bytes = data;
    for (size_t i = 0; i < size; i++)
        hash = (hash ^ bytes[i]) * 0x100000001b3u;
    return hash;
}

static int same_text(struct gguf_text a, struct gguf_text b)
{
    return a.size == b.size && (a.size == 0 || !memcmp(a.data, b.data, a.size));
}

/* A table for `count` names, at most half full. */
static int names_create(struct cursor *c, struct names *names, uint64_t count)
{
    size_t size = 4;
    while (size / 2 < count)
        size *= 2;
    names->slot = calloc(size, sizeof *names->slot);
    names->mask = size - 1;
    return names->slot != NULL || fail(c, "no memory for %" PRIu64 " names", count);
}

static struct gguf_text value_name(const struct gguf *file, size_t i)
{
    return file->values[i].key;
}

static struct gguf_text tensor_name(const struct gguf *file, size_t i)
{
    return file->tensors[i].name;
}

typedef struct gguf_text name_of(const struct gguf *file, size_t i);

/* The slot of a name, or the empty one where it would go. */
static uint32_t *name_slot(const struct gguf *file, const struct names *names, name_of *name, struct gguf_text text)
{
    size_t i = (size_t)hash_text(text.data, text.size) & names->mask;
    while (names->slot[i] && !same_text(name(file, names->slot[i] - 1), text))
        i = (i + 1) & names->mask;
    return &names->slot[i];
}

static int printed(struct gguf_text text)
{
    return text.size < 80 ? (int)text.size : 80;
}

static int names_add(struct cursor *c, struct names *names, name_of *name, size_t i, const char *what)
{
    struct gguf_text text = name(c->file, i);
    uint32_t *slot = name_slot(c->file, names, name, text);
    if (*slot)
        return fail(c, "%s %.*s is there twice", what, printed(text), text.data);
    *slot = (uint32_t)i + 1;
    return 1;
}

/* ---- keys and values ------------------------------------------------------------------------------------------------- */

static int take_strings(struct cursor *c, struct gguf_value *value)
{
    struct gguf_text *texts = calloc(value->count ? (size_t)value->count : 1, sizeof *texts);
    value->data = texts;
    if (!texts)
        return fail(c, "no memory for %" PRIu64 " strings", value->count);
    for (uint64_t i = 0; i < value->count; i++)
        if (!take_text(c, &texts[i], "a string"))
            return 0;
    return 1;
}

static int take_array_head(struct cursor *c, struct gguf_value *value)
{
    uint32_t of = 0;
    if (!take(c, &of, sizeof of, "the kind of an array's elements"))
        return 0;
    value->of = (enum gguf_kind)of;
    if (value->of == GGUF_ARRAY)
        return fail(c, "key %.*s: an array of arrays, which is not supported", printed(value->key), value->key.data);
    if (value->of != GGUF_STRING && !gguf_kind_bytes(value->of))
        return fail(c, "key %.*s: an array of unknown kind %" PRIu32, printed(value->key), value->key.data, of);
    return take_count(c, &value->count, value->of == GGUF_STRING ? 8 : gguf_kind_bytes(value->of), "elements of an array");
}

static int take_value(struct cursor *c, struct gguf_value *value)
{
    uint32_t kind = 0;
    if (!take_text(c, &value->key, "a key") || !take(c, &kind, sizeof kind, "the kind of a value"))
        return 0;
    value->kind = value->of = (enum gguf_kind)kind, value->count = 1;
    if (kind == GGUF_ARRAY && !take_array_head(c, value))
        return 0;
    if (value->of == GGUF_STRING)
        return take_strings(c, value);
    size_t bytes = gguf_kind_bytes(value->of);
    if (!bytes)
        return fail(c, "key %.*s: a value of unknown kind %" PRIu32, printed(value->key), value->key.data, kind);
    if (left(c) / bytes < value->count)
        return fail(c, "the file ends inside the value of key %.*s", printed(value->key), value->key.data);
    value->data = c->file->data + c->at;
    c->at += bytes * (size_t)value->count;
    return 1;
}

static int take_values(struct cursor *c, uint64_t count)
{
    struct gguf *file = c->file;
    file->values = calloc(count ? (size_t)count : 1, sizeof *file->values);
    if (!file->values)
        return fail(c, "no memory for %" PRIu64 " keys", count);
    if (!names_create(c, &file->value_names, count))
        return 0;
    for (uint64_t i = 0; i < count; i++) {
        file->n_values = i + 1; /* so that what a half-read value has allocated is freed */
        if (!take_value(c, &file->values[i]) || !names_add(c, &file->value_names, value_name, (size_t)i, "key"))
            return 0;
    }
    return 1;
}

/* ---- tensors --------------------------------------------------------------------------------------------------------- */

static const struct gguf_type_info types[] = {
#define FLOATS(name, isa, number, bytes) {GGUF_TYPE_##name, #name, 1, bytes},
#define BLOCKS(name, isa, number, bytes, bits, part, parts, ...) {GGUF_TYPE_##name, #name, (part) * (parts), bytes},
    WEIGHT_FLOATS(FLOATS, any) WEIGHT_TYPES(BLOCKS, any)
#undef FLOATS
#undef BLOCKS
};

const struct gguf_type_info *gguf_type_info(uint32_t type)
{
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (types[i].type == type)
            return &types[i];
    return NULL;
}

/* The tensor's bytes from its type and shape; 0 on failure: a tensor without numbers is one. */
static int tensor_bytes(struct cursor *c, struct gguf_tensor *tensor)
{
    const struct gguf_type_info *type = gguf_type_info(tensor->type);
    uint64_t numbers = 1;
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++) {
        if (tensor->size[d] == 0 || numbers > UINT64_MAX / 8 / tensor->size[d])
            return fail(c, "tensor %.*s: a size of %" PRIu64 ", which cannot be", printed(tensor->name), tensor->name.data,
                        tensor->size[d]);
        numbers *= tensor->size[d];
    }
    if (!type)
        return 1;
    if (tensor->size[0] % type->block)
        return fail(c, "tensor %.*s: rows of %" PRIu64 " numbers are not whole blocks of %s, %" PRIu32 " each",
                    printed(tensor->name),
                    tensor->name.data, tensor->size[0], type->name, type->block);
    if (numbers / type->block > SIZE_MAX / type->bytes)
        return fail(c, "tensor %.*s does not fit in memory", printed(tensor->name), tensor->name.data);
    tensor->bytes = (size_t)(numbers / type->block) * type->bytes;
    return 1;
}

/* Reads what the header says of a tensor; until the data is placed, `data` holds its offset. */
static int take_tensor(struct cursor *c, struct gguf_tensor *tensor, uint64_t *offset)
{
    if (!take_text(c, &tensor->name, "a tensor's name") || !take(c, &tensor->dims, sizeof tensor->dims, "a tensor's dimensions"))
        return 0;
    if (tensor->dims > GGUF_MAX_DIMS)
        return fail(c, "tensor %.*s has %" PRIu32 " dimensions; at most 4 are allowed", printed(tensor->name), tensor->name.data,
                    tensor->dims);
    for (uint32_t d = 0; d < GGUF_MAX_DIMS; d++)
        tensor->size[d] = 1;
    return take(c, tensor->size, tensor->dims * sizeof tensor->size[0], "a tensor's shape") &&
           take(c, &tensor->type, sizeof tensor->type, "a tensor's type") &&
           take(c, offset, sizeof *offset, "a tensor's offset") && tensor_bytes(c, tensor);
}

static int take_tensors(struct cursor *c, uint64_t count, uint64_t **offsets)
{
    struct gguf *file = c->file;
    size_t n = count ? (size_t)count : 1;
    file->tensors = calloc(n, sizeof *file->tensors);
    *offsets = calloc(n, sizeof **offsets);
    if (!file->tensors || !*offsets)
        return fail(c, "no memory for %" PRIu64 " tensors", count);
    if (!names_create(c, &file->tensor_names, count))
        return 0;
    file->n_tensors = count;
    for (uint64_t i = 0; i < count; i++)
        if (!take_tensor(c, &file->tensors[i], &(*offsets)[i]) ||
            !names_add(c, &file->tensor_names, tensor_name, (size_t)i, "tensor"))
            return 0;
    return 1;
}

static int by_place(const void *a, const void *b)
{
    const struct gguf_tensor *const *x = a, *const *y = b;
    const uint8_t *p = (*x)->data, *q = (*y)->data;
    return p < q ? -1 : p > q;
}

/* That no two tensors share bytes: a small file could otherwise say that it has any number of large ones. */
static int check_apart(struct cursor *c)
{
    struct gguf *file = c->file;
    const struct gguf_tensor **sorted = calloc((size_t)file->n_tensors + 1, sizeof *sorted);
    size_t n = 0;
    if (!sorted)
        return fail(c, "no memory for %" PRIu64 " tensors", file->n_tensors);
    for (uint64_t i = 0; i < file->n_tensors; i++)
        if (file->tensors[i].data)
            sorted[n++] = &file->tensors[i];
    qsort(sorted, n, sizeof *sorted, by_place);
    for (size_t i = 1; i < n && !c->failed; i++)
        if ((const uint8_t *)sorted[i - 1]->data + sorted[i - 1]->bytes > (const uint8_t *)sorted[i]->data)
            fail(c, "tensors %.*s and %.*s overlap", printed(sorted[i - 1]->name), sorted[i - 1]->name.data,
                 printed(sorted[i]->name), sorted[i]->name.data);
    free(sorted);
    return !c->failed;
}

/* The data begins at the next multiple of the alignment, and offsets count from there. */
static int place_tensors(struct cursor *c, const uint64_t *offsets)
{
    struct gguf *file = c->file;
    uint64_t alignment = 32;
    if (gguf_uint(file, "general.alignment", &alignment) < 0 || alignment == 0 || alignment & (alignment - 1) ||
        alignment > 1 << 20)
        return fail(c, "general.alignment must be a power of two, up to %d", 1 << 20);
    size_t pad = (size_t)(-(uint64_t)c->at & (alignment - 1)), start = c->at + pad;
    file->header_size = c->at;
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        struct gguf_tensor *t = &file->tensors[i];
        if (offsets[i] % alignment)
            return fail(c, "tensor %.*s: its offset %" PRIu64 " is no multiple of %" PRIu64, printed(t->name), t->name.data,
                        offsets[i],
                        alignment);
        if (!t->bytes)
            continue; /* this code cannot read its type */
        if (pad > left(c) || offsets[i] > file->size - start || t->bytes > file->size - start - offsets[i])
            return fail(c, "tensor %.*s: %zu bytes at %" PRIu64 " of the data are not all in the file; it may be cut off",
                        printed(t->name), t->name.data, t->bytes, offsets[i]);
        t->data = file->data + start + offsets[i];
    }
    return check_apart(c);
}

/* ---- the file -------------------------------------------------------------------------------------------------------- */

static int take_header(struct cursor *c, uint64_t *n_tensors, uint64_t *n_values)
{
    uint8_t magic[4] = {0};
    uint32_t version = 0;
    if (left(c) < 24)
        return fail(c, "not a GGUF file: %zu bytes are too few", c->file->size);
    take(c, magic, sizeof magic, "the header");
    if (memcmp(magic, "GGUF", 4))
        return fail(c, "not a GGUF file: it begins with bytes %02x %02x %02x %02x, not with GGUF", magic[0], magic[1],
                    magic[2], magic[3]);
    take(c, &version, sizeof version, "the header");
    if (version != 2 && version != 3)
        return fail(c, version & 0xffff ? "GGUF version %" PRIu32 "; versions 2 and 3 are supported"
                                        : "GGUF in big-endian order (version %08" PRIx32 "); only little-endian is supported",
                    version);
    return take_count(c, n_tensors, 24, "tensors") && take_count(c, n_values, 13, "keys") &&
           ((*n_tensors < UINT32_MAX && *n_values < UINT32_MAX) || fail(c, "more than 2^32 names"));
}

static int read_all(struct cursor *c)
{
    uint64_t n_tensors = 0, n_values = 0, *offsets = NULL;
    int good = take_header(c, &n_tensors, &n_values) && take_values(c, n_values) && take_tensors(c, n_tensors, &offsets) &&
               place_tensors(c, offsets);
    free(offsets);
    return good;
}

int gguf_read(const void *data, size_t size, struct gguf **file, char error[GGUF_ERROR_BYTES])
{
    struct gguf *made = calloc(1, sizeof *made);
    struct cursor c = {made, 0, error, 0};
    if (!made)
        return fail(&c, "no memory"), 1;
    made->data = data, made->size = size;
    if (!read_all(&c))
        return gguf_close(made), 1;
    *file = made;
    return 0;
}

int gguf_open(const char *path, struct gguf **file, char error[GGUF_ERROR_BYTES])
{
    struct stat status;
    int handle = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), failed; /* a pipe without a writer must not hold us up */
    if (handle < 0 || fstat(handle, &status) || !S_ISREG(status.st_mode)) {
        snprintf(error, GGUF_ERROR_BYTES, "%s", handle >= 0 ? "not a regular file" : strerror(errno));
        return handle >= 0 ? close(handle), 1 : 1;
    }
    size_t size = (size_t)status.st_size;
    void *mapped = size ? mmap(NULL, size, PROT_READ, MAP_PRIVATE, handle, 0) : NULL;
    failed = mapped == MAP_FAILED ? errno : 0;
    close(handle);
    if (failed)
        return snprintf(error, GGUF_ERROR_BYTES, "cannot be mapped: %s", strerror(failed)), 1;
    if (gguf_read(mapped, size, file, error))
        return size ? munmap(mapped, size), 1 : 1;
    (*file)->mapped = mapped;
    return 0;
}

void gguf_close(struct gguf *file)
{
    if (!file)
        return;
    for (uint64_t i = 0; i < file->n_values; i++)
        if (file->values[i].of == GGUF_STRING)
            free((void *)file->values[i].data);
    if (file->mapped)
        munmap(file->mapped, file->size);
    free(file->values);
    free(file->tensors);
    free(file->value_names.slot);
    free(file->tensor_names.slot);
    free(file);
}

uint64_t gguf_fingerprint(const struct gguf *file)
{
    uint64_t size = file->size;
    return hash_bytes(hash_bytes(0xcbf29ce484222325u, file->data, file->header_size), &size, sizeof size);
}

uint64_t gguf_weights_fingerprint(const struct gguf *file)
{
    enum { PLACES = 16, BYTES = 64 };
    uint64_t hash = 0xcbf29ce484222325u;
    for (uint64_t i = 0; i < file->n_tensors; i++) {
        const struct gguf_tensor *t = &file->tensors[i];
        for (size_t place = 0; t->data && place < PLACES; place++) {
            const size_t at = t->bytes / PLACES * place, left = t->bytes - at;
            hash = hash_bytes(hash, (const uint8_t *)t->data + at, left < BYTES ? left : BYTES);
        }
    }
    return hash;
}

/* ---- what was asked for ------------------------------------------------------------------------------------------------ */

static struct gguf_text as_text(const char *string)
{
    return (struct gguf_text){string, strlen(string)};
}

int gguf_text_is(struct gguf_text text, const char *string)
{
    return same_text(text, as_text(string));
}

uint64_t gguf_values(const struct gguf *file)
{
    return file->n_values;
}

const struct gguf_value *gguf_value_at(const struct gguf *file, uint64_t i)
{
    return i < file->n_values ? &file->values[i] : NULL;
}

const struct gguf_value *gguf_find(const struct gguf *file, const char *key)
{
    uint32_t slot = *name_slot(file, &file->value_names, value_name, as_text(key));
    return slot ? &file->values[slot - 1] : NULL;
}

uint64_t gguf_tensors(const struct gguf *file)
{
    return file->n_tensors;
}

const struct gguf_tensor *gguf_tensor_at(const struct gguf *file, uint64_t i)
{
    return i < file->n_tensors ? &file->tensors[i] : NULL;
}

const struct gguf_tensor *gguf_tensor(const struct gguf *file, const char *name)
{
    uint32_t slot = *name_slot(file, &file->tensor_names, tensor_name, as_text(name));
    return slot ? &file->tensors[slot - 1] : NULL;
}
