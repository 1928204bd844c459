/* Files of named tensors in the safetensors format: 8 bytes of little-endian header length, a JSON object
 *     {"name": {"dtype": "F16", "shape": [2, 3], "data_offsets": [0, 12]}, ..., "__metadata__": {...}}
 * and the data; offsets count from its beginning. A file is input from strangers: the reader checks every length in it. */
#ifndef AURA_SAFETENSORS_H
#define AURA_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

enum { TENSOR_MAX_RANK = 8 };

struct tensor {
    char *name; /* UTF-8 */
    char dtype[16]; /* as in the file; for "F16", "BF16" and "F32" the reader compares size and shape */
    size_t rank, shape[TENSOR_MAX_RANK];
    size_t elements; /* product of the shape */
    const uint8_t *data; /* not aligned to anything */
    size_t bytes;
};

struct safetensors {
    struct tensor *tensors; /* [count], sorted by name */
    size_t count;
    uint8_t *file;    /* what safetensors_read() has read; data points into it */
    char error[256]; /* what was wrong, after a failure */
};

/* Reads a file; 0 when good. In both cases the caller calls safetensors_free(). */
int safetensors_read(struct safetensors *s, const char *path);

/* The same for bytes in memory, which must live as long as s. */
int safetensors_parse(struct safetensors *s, const uint8_t *bytes, size_t n);

void safetensors_free(struct safetensors *s);

/* NULL when there is none of that name. */
const struct tensor *safetensors_find(const struct safetensors *s, const char *name);

/* Bytes of an element of that dtype: 2, 2 and 4 for F16, BF16 and F32, 0 for others. */
size_t tensor_dtype_bytes(const char *dtype);

struct tensor_out {
    const char *name; /* UTF-8 */
    size_t rank, shape[TENSOR_MAX_RANK];
    const float *data;
};

/* Writes f32 tensors; 0 when good, otherwise errno has the reason. */
int safetensors_write(const char *path, const struct tensor_out *tensors, size_t count);

#endif
