/* Exact logits in a file. */
#define _GNU_SOURCE
#include "base_logits.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../include/aura.h"
#include "../../src/file/crc32c.h"

struct base {
    int file;
    int temporary;    /* the file holds one chunk: the next one overwrites it */
    char name[128];   /* for messages */
    struct base_key key;
    uint32_t chunks;  /* complete ones */
    uint32_t rows;    /* of the incomplete chunk */
    uint32_t crc;     /* of these rows */
};

_Static_assert(sizeof(struct base_key) == 64, "it is written as it is, so nothing may be between its fields");
enum { HEADER_BYTES = sizeof(struct base_key) + sizeof(uint32_t) };

static size_t row_bytes(const struct base *b)
{
    return (size_t)b->key.vocab * sizeof(float);
}

static uint64_t chunk_bytes(const struct base *b)
{
    return (uint64_t)b->key.rows * row_bytes(b) + sizeof(uint32_t);
}

static uint64_t place(const struct base *b, uint32_t chunk, uint32_t row)
{
    return HEADER_BYTES + (b->temporary ? 0 : chunk) * chunk_bytes(b) + (uint64_t)row * row_bytes(b);
}

/* 0 when all bytes were read. A file that ends too early is EIO. */
static int read_at(int file, void *data, size_t bytes, uint64_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t got = pread(file, (char *)data + done, bytes - done, (off_t)(at + done));
        if (got <= 0) {
            if (got < 0 && errno == EINTR)
                continue;
            return errno = got ? errno : EIO, 1;
        }
        done += (size_t)got;
    }
    return 0;
}

static int write_at(int file, const void *data, size_t bytes, uint64_t at)
{
    for (size_t done = 0; done < bytes;) {
        ssize_t put = pwrite(file, (const char *)data + done, bytes - done, (off_t)(at + done));
        if (put < 0 && errno != EINTR)
            return 1;
        done += put > 0 ? (size_t)put : 0;
    }
    return 0;
}

static int failed(const struct base *b, const char *what, char *error)
{
    snprintf(error, BASE_ERROR_BYTES, "%s: %s: %s", b->name, what, strerror(errno));
    return 1;
}

/* NULL when the file belongs to this model, text and setting; otherwise what it belongs to instead. */
static const char *difference(const struct base_key *has, const struct base_key *wants)
{
    if (has->model_bytes != wants->model_bytes || has->model_crc != wants->model_crc || has->vocab != wants->vocab)
        return "another model";
    if (has->tokens != wants->tokens || has->tokens_crc != wants->tokens_crc)
        return "another text";
    if (has->ctx != wants->ctx || has->rows != wants->rows)
        return "chunks of another length";
    if (has->rounded != wants->rounded)
        return "other products: --rounded was given for one of the two";
    if (memcmp(has->version, wants->version, sizeof has->version))
        return "another version of aura, whose sums may be rounded differently";
    if (has->isas != wants->isas)
        return "other instruction sets, whose sums are rounded differently";
    return NULL;
}

static int read_header(struct base *b, uint64_t bytes, char *error)
{
    struct base_key key;
    uint32_t crc;
    if (bytes < HEADER_BYTES || read_at(b->file, &key, sizeof key, 0) || read_at(b->file, &crc, sizeof crc, sizeof key) ||
        memcmp(key.magic, BASE_MAGIC, sizeof key.magic) || crc != aura_crc32c(0, &key, sizeof key, aura_cpu_isas())) {
        snprintf(error, BASE_ERROR_BYTES, "%s: is no file of base logits, or its header is damaged", b->name);
        return 1;
    }
    const char *other = difference(&key, &b->key);
    if (other) {
        snprintf(error, BASE_ERROR_BYTES, "%s: holds the logits of %s; give --base a file of its own for each", b->name, other);
        return 1;
    }
    b->chunks = (uint32_t)((bytes - HEADER_BYTES) / chunk_bytes(b));
    return 0;
}

static int write_header(struct base *b, char *error)
{
    uint32_t crc = aura_crc32c(0, &b->key, sizeof b->key, aura_cpu_isas());
    uint8_t header[HEADER_BYTES];
    memcpy(header, &b->key, sizeof b->key);
    memcpy(header + sizeof b->key, &crc, sizeof crc);
    if (!write_at(b->file, header, sizeof header, 0)) /* in one call: whoever is killed leaves all of it, or an empty file */
        return 0;
    const int reason = errno;
    const int emptied = !ftruncate(b->file, 0); /* half a header would be refused by the next run */
    errno = reason;
    return failed(b, emptied ? "cannot be written" : "cannot be written, and should be removed", error);
}

static int open_file(struct base *b, const char *path, char *error)
{
    struct stat info;
    if (b->temporary) {
        FILE *file = tmpfile();
        b->file = file ? dup(fileno(file)) : -1;
        if (file)
            fclose(file);
    } else {
        b->file = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    }
    if (b->file < 0)
        return failed(b, "cannot be opened", error);
    if (flock(b->file, LOCK_EX | LOCK_NB)) {
        snprintf(error, BASE_ERROR_BYTES, "%s: is in use by another run", b->name);
        return 1;
    }
    if (fstat(b->file, &info))
        return failed(b, "cannot be read", error);
    return info.st_size ? read_header(b, (uint64_t)info.st_size, error) : write_header(b, error);
}

int base_open(const char *path, const struct base_key *key, struct base **base, char error[BASE_ERROR_BYTES])
{
    struct base *b = calloc(1, sizeof *b);
    if (!b) {
        snprintf(error, BASE_ERROR_BYTES, "out of memory");
        return 1;
    }
    b->key = *key, b->file = -1, b->temporary = !path;
    memcpy(b->key.magic, BASE_MAGIC, sizeof b->key.magic);
    snprintf(b->name, sizeof b->name, "%s", path ? path : "temporary file");
    if (open_file(b, path, error)) {
        base_close(b);
        return 1;
    }
    *base = b;
    return 0;
}

void base_close(struct base *b)
{
    if (b && b->file >= 0)
        close(b->file);
    free(b);
}

uint32_t base_chunks(const struct base *b)
{
    return b->chunks;
}

int base_add(struct base *b, const float *logits, uint32_t rows, char error[BASE_ERROR_BYTES])
{
    if (rows > b->key.rows - b->rows)
        rows = b->key.rows - b->rows;
    size_t bytes = rows * row_bytes(b);
    if (write_at(b->file, logits, bytes, place(b, b->chunks, b->rows)))
        return failed(b, "cannot be written", error);
    b->crc = aura_crc32c(b->rows ? b->crc : 0, logits, bytes, aura_cpu_isas());
    b->rows += rows;
    if (b->rows < b->key.rows)
        return 0;
    if (write_at(b->file, &b->crc, sizeof b->crc, place(b, b->chunks, b->rows)))
        return failed(b, "cannot be written", error);
    b->rows = 0, b->chunks++;
    return 0;
}

int base_read(struct base *b, uint32_t chunk, uint32_t row, float *logits, char error[BASE_ERROR_BYTES])
{
    return read_at(b->file, logits, row_bytes(b), place(b, chunk, row)) ? failed(b, "cannot be read", error) : 0;
}

int base_check(struct base *b, uint32_t chunk, char error[BASE_ERROR_BYTES])
{
    float *row = malloc(row_bytes(b));
    uint32_t crc = 0, stored = 0;
    int bad = row ? 0 : 1;
    if (bad)
        snprintf(error, BASE_ERROR_BYTES, "out of memory");
    for (uint32_t i = 0; i < b->key.rows && !bad; i++) {
        bad = base_read(b, chunk, i, row, error);
        crc = bad ? 0 : aura_crc32c(crc, row, row_bytes(b), aura_cpu_isas());
    }
    free(row);
    if (!bad && read_at(b->file, &stored, sizeof stored, place(b, chunk, b->key.rows)))
        return failed(b, "cannot be read", error);
    if (!bad && crc != stored) {
        snprintf(error, BASE_ERROR_BYTES, "%s: chunk %u is damaged; remove the file and run again", b->name, chunk + 1);
        return 1;
    }
    return bad;
}
