/* The file of profiles and snapshots: a header, a table of sections, the sections. doc/snapshot.md draws the bytes. Checksums
 * cover every byte of a file and its length: a reader notices every flipped bit and every missing or added byte.
 *
 * The writer writes a file beside the one it replaces, and renames it when it is complete and on disk. The reader maps it. */
#ifndef AURA_CONTAINER_H
#define AURA_CONTAINER_H

#include "../base/arguments.h"

enum { AURA_FILE_MAJOR = 1, AURA_FILE_MINOR = 0, AURA_FILE_ALIGN = 64 };

/* What a file is. */
enum { AURA_FILE_PROFILE = 1, AURA_FILE_SNAPSHOT = 2 };

/* What a section is. A file has them in the order of their layers, and of these numbers within a layer. */
enum {
    AURA_SECTION_FILE = 1, /* of layer 0 */
    AURA_SECTION_CONFIG = 2,
    AURA_SECTION_BALANCE = 3,
    AURA_SECTION_SEQS = 4,
    AURA_SECTION_TABLE = 5,
    AURA_SECTION_PAGES = 6,
    AURA_SECTION_ROWS = 7,
    AURA_SECTION_NOTE = 64 /* optional, of the last layer: bytes of the caller's */
};

/* Flags of a section. */
enum { AURA_SECTION_OPTIONAL = 1 }; /* a reader that does not know it may leave it out */

struct aura_file_header {
    uint8_t magic[8];
    uint32_t byte_order; /* 0x01020304 */
    uint16_t major, minor;
    uint32_t kind, sections;
    uint64_t bytes;      /* of the file */
    uint32_t crc;        /* of the header, with 0 in this place, and of the table up to the first section */
    uint8_t zero[28];
};
_Static_assert(sizeof(struct aura_file_header) == 64, "drawn in doc/snapshot.md");

struct aura_file_section {
    uint32_t layer, type, flags;
    uint32_t crc;           /* of its bytes and of the padding after them */
    uint64_t offset, bytes; /* offset: where the one before ends, padded */
};
_Static_assert(sizeof(struct aura_file_section) == 32, "drawn in doc/snapshot.md");

/* The content of AURA_SECTION_FILE. */
struct aura_file_content {
    uint32_t layers;
    uint32_t model; /* 1: a model's cache, 0: one cache, or a profile */
};
_Static_assert(sizeof(struct aura_file_content) == 8, "drawn in doc/snapshot.md");

/* What stands before the factors of AURA_SECTION_BALANCE, f32 [kv_heads][k_dim]. */
struct aura_file_balance {
    uint32_t kv_heads, k_dim;
    uint8_t zero[56];
};
_Static_assert(sizeof(struct aura_file_balance) == 64, "drawn in doc/snapshot.md");

/* ---- writing ---- */

/* The first failure stays in `status` until aura_writer_commit() returns it. Calls after it do nothing. */
struct aura_writer {
    struct aura_call call;
    const char *path;
    char *temporary;     /* the name of the file until it is complete */
    char *target;        /* the file that is replaced: the path, or where it leads as a link */
    size_t name_bytes;
    int file;
    aura_status status;
    struct aura_file_header *header;
    struct aura_file_section *table; /* [header->sections] */
    uint32_t written;    /* sections, the one being written included */
    uint64_t offset;     /* of the next byte */
    uint8_t *buffer;
    size_t fill, summed; /* bytes in the buffer; of these, already in the checksum of their section */
};

/* Begins a file with `sections` sections. Fails: AURA_BAD_ARGUMENT (path), AURA_OUT_OF_MEMORY, AURA_IO; there is nothing to
 * commit then. */
aura_status aura_writer_open(struct aura_writer *w, struct aura_call call, const char *path, uint32_t kind, uint32_t sections);
void aura_writer_section(struct aura_writer *w, uint32_t layer, uint32_t type);
void aura_writer_put(struct aura_writer *w, const void *data, size_t bytes);
/* Writes the whole section of a layer's factors. */
void aura_writer_balance(struct aura_writer *w, uint32_t layer, uint32_t kv_heads, uint32_t k_dim, const float *balance);
/* Puts the file in its place, or removes what there is of it and returns the first failure. */
aura_status aura_writer_commit(struct aura_writer *w);

/* ---- reading ---- */

struct aura_reader {
    struct aura_call call;
    const char *path;
    const uint8_t *data;
    size_t bytes;
    const struct aura_file_section *table;
    uint32_t sections;
    struct aura_file_content content;
};

/* Maps a file, checks all of its bytes, and that it has an AURA_SECTION_FILE. Fails, with nothing to close:
 * AURA_BAD_ARGUMENT, AURA_IO, AURA_BAD_FILE, AURA_UNSUPPORTED (a version or a section that is not known). */
aura_status aura_reader_open(struct aura_reader *r, struct aura_call call, const char *path, uint32_t kind);
void aura_reader_close(struct aura_reader *r);

/* The content of a section, aligned to 64, and its length in *bytes. NULL: the file has no such section. */
const void *aura_reader_find(const struct aura_reader *r, uint32_t layer, uint32_t type, uint64_t *bytes);

/* The factors of a layer; *balance is NULL where the file has none. Their number is checked, their values are not.
 * Fails: AURA_BAD_FILE. */
aura_status aura_reader_balance(const struct aura_reader *r, uint32_t layer, uint32_t *kv_heads, uint32_t *k_dim,
                                const float **balance);

/* Returns AURA_BAD_FILE; the message says what is wrong with the file. */
aura_status aura_reader_bad(const struct aura_reader *r, const char *what);

#endif
