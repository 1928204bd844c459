/* The file of profiles and snapshots: a header, a table of sections, the sections. doc/snapshot.md draws the bytes. Checksums
 * cover every byte of a file and its length: a reader notices every flipped bit and every missing or added byte.
 *
 * The writer writes to a sink, or a file beside the one it replaces, and renames it when it is complete and on disk. The reader
 * maps a file; of a source it takes what the header announces, and never more memory than twice what has come. */
#ifndef AURA_CONTAINER_H
#define AURA_CONTAINER_H

#include "../../include/aura_file.h"
#include "../base/arguments.h"
#include "../base/numbers.h"

enum { AURA_FILE_MAJOR = 1, AURA_FILE_MINOR = 0, AURA_FILE_ALIGN = 64 };

/* Not text: a transfer in text mode damages it. */
#define AURA_FILE_MAGIC {0x89, 'A', 'U', 'R', 'A', '\r', '\n', 0x1a}
#define AURA_FILE_BYTE_ORDER 0x01020304u

/* What a file is. */
enum { AURA_FILE_PROFILE = 1, AURA_FILE_SNAPSHOT = 2, AURA_FILE_SHARD = 3, AURA_FILE_MANIFEST = 4 };

/* Whether a section is left out of a header. */
#define AURA_SECTION_IS_LARGE(type) ((type) == AURA_SECTION_PAGES || (type) == AURA_SECTION_ROWS)

/* What a section is. A file has them in the order of their layers, and of these numbers within a layer. */
enum {
    AURA_SECTION_FILE = 1, /* of layer 0 */
    AURA_SECTION_CONFIG = 2,
    AURA_SECTION_BALANCE = 3,
    AURA_SECTION_SEQS = 4,
    AURA_SECTION_TABLE = 5,
    AURA_SECTION_PAGES = 6,
    AURA_SECTION_ROWS = 7,
    AURA_SECTION_V_BALANCE = 8,
    AURA_SECTION_K_METRIC = 9,
    AURA_SECTION_V_METRIC = 10,
    AURA_SECTION_LEARNT = 11,
    AURA_SECTION_LAST = 11, /* that a reader must know */
    AURA_SECTION_FORMAT = 12, /* optional, of profiles */
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

/* What stands before the numbers of a balance, f32 [kv_heads][dim], or of a metric, f32 [kv_heads][dim * (dim + 1) / 2]. */
struct aura_file_numbers {
    uint32_t kv_heads, dim;
    uint8_t zero[56];
};
_Static_assert(sizeof(struct aura_file_numbers) == 64, "drawn in doc/snapshot.md");

/* What stands before f64 [kv_heads][dim * (dim + 1) / 2] of AURA_SECTION_LEARNT. */
struct aura_file_learnt {
    uint32_t kv_heads, dim;
    uint64_t positions;
    uint8_t zero[48];
};
_Static_assert(sizeof(struct aura_file_learnt) == 64, "drawn in doc/snapshot.md");

/* The content of AURA_SECTION_FORMAT. */
struct aura_file_format {
    uint32_t k, v;
};
_Static_assert(sizeof(struct aura_file_format) == 8, "drawn in doc/snapshot.md");

/* The section of numbers i, AURA_K_BALANCE to AURA_V_METRIC. */
static inline uint32_t aura_section_of_numbers(int i)
{
    return i == AURA_K_BALANCE ? AURA_SECTION_BALANCE : AURA_SECTION_V_BALANCE + (uint32_t)(i - AURA_V_BALANCE);
}

/* Bytes up to the next multiple of AURA_FILE_ALIGN. */
static inline uint64_t aura_file_padded(uint64_t bytes)
{
    return (bytes + AURA_FILE_ALIGN - 1) / AURA_FILE_ALIGN * AURA_FILE_ALIGN;
}

/* The first section begins here. */
static inline uint64_t aura_file_front(uint32_t sections)
{
    return aura_file_padded(sizeof(struct aura_file_header) + (uint64_t)sections * sizeof(struct aura_file_section));
}

/* ---- writing: writer.c ---- */

/* Where a file goes: a path, or a sink; or nowhere, because the caller only asks for its length. */
struct aura_file_output {
    enum { AURA_TO_PATH, AURA_TO_SINK, AURA_TO_NOBODY } way;
    const char *path;
    aura_sink *sink;
    size_t *bytes;
};

/* Where it comes from. A header is a file without its pages and rows, which are somewhere else. */
struct aura_file_input {
    enum { AURA_FROM_PATH, AURA_FROM_SOURCE, AURA_FROM_HEADER } way;
    const char *path;
    aura_source *source;
    const void *header;
    size_t header_bytes;
};

struct aura_replacement;

/* The first failure stays in `status`. Calls after it do nothing. */
struct aura_writer {
    struct aura_call call;
    struct aura_replacement *file;
    aura_sink *sink;     /* NULL: a file */
    aura_status status;
    int sums, sealed;    /* sums: nothing is written yet; sealed: the table is complete */
    int elsewhere;       /* the bytes of this section are not written here */
    struct aura_file_header *header;
    struct aura_file_section *table; /* [header->sections] */
    uint32_t written;    /* sections, the one being written included */
    uint64_t offset;     /* of the next byte */
    uint8_t *buffer;
    size_t fill, summed; /* bytes in the buffer; of these, already in the checksum of their section */
};

static inline struct aura_file_output aura_to_path(const char *path)
{
    return (struct aura_file_output){AURA_TO_PATH, path, NULL, NULL};
}

static inline struct aura_file_output aura_to_sink(aura_sink *sink)
{
    return (struct aura_file_output){AURA_TO_SINK, NULL, sink, NULL};
}

static inline struct aura_file_output aura_to_nobody(size_t *bytes)
{
    return (struct aura_file_output){AURA_TO_NOBODY, NULL, NULL, bytes};
}

static inline struct aura_file_input aura_from_path(const char *path)
{
    return (struct aura_file_input){AURA_FROM_PATH, path, NULL, NULL, 0};
}

static inline struct aura_file_input aura_from_source(aura_source *source)
{
    return (struct aura_file_input){AURA_FROM_SOURCE, NULL, source, NULL, 0};
}

static inline struct aura_file_input aura_from_header(const void *header, size_t bytes)
{
    return (struct aura_file_input){AURA_FROM_HEADER, NULL, NULL, header, bytes};
}

/* What a file is to be: `write` puts its sections one after the other, the same ones whenever it is called. */
struct aura_file_plan {
    uint32_t kind, sections;
    uint64_t bytes; /* of the file */
    void (*write)(struct aura_writer *w, const void *what);
    const void *what;
};

/* That a call was given what it needs of these. */
aura_status aura_check_file_output(struct aura_call call, const struct aura_file_output *to);
aura_status aura_check_file_input(struct aura_call call, const struct aura_file_input *from);

/* Writes a file. Fails as every save does; `to` was checked. A sink that is a function gets the table before the sections, so
 * their checksums are found first. Files and memory get the table last. */
aura_status aura_write_file(struct aura_call call, const struct aura_file_output *to, const struct aura_file_plan *plan);
void aura_writer_section(struct aura_writer *w, uint32_t layer, uint32_t type, uint32_t flags);
void aura_writer_put(struct aura_writer *w, const void *data, size_t bytes);
/* All of the section that was begun is somewhere else: so many bytes, whose checksum, with the padding's, is known. */
void aura_writer_elsewhere(struct aura_writer *w, uint64_t bytes, uint32_t crc);
/* Writes the whole section of numbers i of a layer; and its bytes, with the padding. */
void aura_writer_numbers(struct aura_writer *w, uint32_t layer, int i, uint32_t kv_heads, uint32_t dim, const float *numbers);
uint64_t aura_numbers_section_bytes(int i, uint32_t kv_heads, uint32_t dim);

/* ---- replacing a file: replace.c ---- */

/* Creates a file beside the one that it is to replace. Fails: AURA_BAD_ARGUMENT (path), AURA_OUT_OF_MEMORY, AURA_IO. */
aura_status aura_replace_begin(struct aura_call call, const char *path, struct aura_replacement **file);
aura_status aura_replace_write(struct aura_replacement *file, const void *data, size_t bytes, uint64_t offset);
/* Puts the file in its place or, where `status` is a failure, removes what there is of it. Returns the first failure. */
aura_status aura_replace_end(struct aura_replacement *file, aura_status status);

/* Fails with AURA_IO and the text of an errno; with AURA_BAD_ARGUMENT where a path is NULL or empty. */
aura_status aura_fail_io(struct aura_call call, const char *what, const char *path, int error);
aura_status aura_check_path(struct aura_call call, const char *path);

/* ---- reading ---- */

struct aura_reader {
    struct aura_call call;
    const char *path;    /* for messages: of a source, what it is */
    const uint8_t *data;
    size_t bytes;        /* of the file */
    size_t mapped;       /* bytes of a mapping; 0: data is no mapping */
    aura_source *source; /* NULL: a file */
    uint8_t *copy;       /* what was read of the source; NULL: data is the caller's memory */
    size_t have, room;   /* bytes in the copy, and how many it has place for */
    const struct aura_file_section *table;
    uint32_t sections;
    struct aura_file_content content;
};

/* Maps a file, reads a source or copies a header, checks all of its bytes, and that it has an AURA_SECTION_FILE. Of a header nobody
 * may look at pages and rows, of which there are only lengths and checksums. The source must live until the
 * reader is closed. kind 0: any, and checksums of sections are left to aura_reader_is_whole(). Fails, with nothing to close:
 * AURA_BAD_ARGUMENT, AURA_IO, AURA_BAD_FILE, AURA_OUT_OF_MEMORY, AURA_UNSUPPORTED (a version or a section that is not known). */
aura_status aura_reader_open(struct aura_reader *r, struct aura_call call, const struct aura_file_input *from, uint32_t kind);
void aura_reader_close(struct aura_reader *r);
/* Whether the bytes of a section are those that were written. */
int aura_reader_is_whole(const struct aura_reader *r, uint32_t section);

/* The first section that is not before this one in the order of sections; their number where there is none. */
uint32_t aura_reader_at(const struct aura_reader *r, uint32_t layer, uint32_t type);
/* The content of a section, aligned to 8, and its length in *bytes. NULL: the file has no such section. */
const void *aura_reader_find(const struct aura_reader *r, uint32_t layer, uint32_t type, uint64_t *bytes);

/* Numbers i of a layer; *numbers is NULL where the file has none. How many there are is checked, their values are not.
 * Fails: AURA_BAD_FILE. */
aura_status aura_reader_numbers(const struct aura_reader *r, uint32_t layer, int i, uint32_t *kv_heads, uint32_t *dim,
                                const float **numbers);

/* The format of a layer of a profile, zero where the file has none. Whether there is such a cache is not checked.
 * Fails: AURA_BAD_FILE. */
aura_status aura_reader_format(const struct aura_reader *r, uint32_t layer, aura_format *format);

/* Returns AURA_BAD_FILE; the message says what is wrong with the file. */
aura_status aura_reader_bad(const struct aura_reader *r, const char *what);

#endif
