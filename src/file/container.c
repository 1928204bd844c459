/* Writes a file beside the old one and renames it; maps a file to read it, and checks every byte. */
#define _POSIX_C_SOURCE 200809L /* fsync, strerror_r, O_CLOEXEC */
#include "../base/exact.h"
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc32c.h"

/* Not text: a transfer in text mode damages it. */
static const uint8_t file_magic[8] = {0x89, 'A', 'U', 'R', 'A', '\r', '\n', 0x1a};

enum { BYTE_ORDER_MARK = 0x01020304, BUFFER_BYTES = 1 << 18, MOST_TEMPORARIES = 1000, MOST_LINKS = 40, TARGET_BYTES = 4096 };

static uint64_t padded(uint64_t bytes)
{
    return (bytes + AURA_FILE_ALIGN - 1) / AURA_FILE_ALIGN * AURA_FILE_ALIGN;
}

/* The first section begins here. */
static uint64_t table_end(uint32_t sections)
{
    return padded(sizeof(struct aura_file_header) + (uint64_t)sections * sizeof(struct aura_file_section));
}

static aura_status fail_io(struct aura_call call, const char *what, const char *path, int error)
{
    char text[80];
    if (strerror_r(error, text, sizeof text))
        snprintf(text, sizeof text, "error %d", error);
    return aura_fail(call.ctx, AURA_IO, "%s: cannot %s: %s: %s", call.name, what, text, path);
}

static aura_status check_path(struct aura_call call, const char *path)
{
    if (!path || !*path)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: path is %s", call.name, path ? "empty" : "NULL");
    return AURA_OK;
}

/* ---- writing ------------------------------------------------------------------------------------------------------ */

/* One step along a link: target becomes the path in the link, relative to the link's folder. Returns 0, or an errno. */
static int follow_link(char target[TARGET_BYTES])
{
    char link[TARGET_BYTES];
    ssize_t n = readlink(target, link, sizeof link);
    char *slash = strrchr(target, '/');
    size_t folder = n > 0 && link[0] != '/' && slash ? (size_t)(slash - target) + 1 : 0;
    if (n <= 0)
        return n ? errno : ENOENT;
    if (folder + (size_t)n >= TARGET_BYTES)
        return ENAMETOOLONG;
    memcpy(target + folder, link, (size_t)n);
    target[folder + (size_t)n] = 0;
    return 0;
}

/* The file that a path leads to. A link stays a link, and its target is replaced, also one that is not there yet. A device, a
 * pipe or a directory is refused: a rename would put a file in its place. */
static aura_status find_target(struct aura_call call, const char *path, char target[TARGET_BYTES])
{
    struct stat about;
    if (strlen(path) >= TARGET_BYTES)
        return fail_io(call, "write", path, ENAMETOOLONG);
    strcpy(target, path);
    for (int links = 0; !lstat(target, &about); links++) {
        if (S_ISREG(about.st_mode))
            return AURA_OK;
        if (!S_ISLNK(about.st_mode))
            return aura_fail(call.ctx, AURA_IO, "%s: only a file can be replaced: %s", call.name, path);
        const int error = links == MOST_LINKS ? ELOOP : follow_link(target);
        if (error)
            return fail_io(call, "follow the link", path, error);
    }
    return AURA_OK; /* there is no file yet, or opening it will report what is wrong */
}

/* Creates a file beside the one to be replaced. It skips names that killed writers have left behind. */
static aura_status open_temporary(struct aura_writer *w)
{
    for (int i = 0; i < MOST_TEMPORARIES; i++) {
        snprintf(w->temporary, w->name_bytes, "%s.tmp-%ld-%d", w->target, (long)getpid(), i);
        w->file = open(w->temporary, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (w->file >= 0)
            return AURA_OK;
        if (errno != EEXIST)
            break;
    }
    return fail_io(w->call, "create", w->temporary, errno);
}

static size_t writer_bytes(const struct aura_writer *w, uint32_t sections)
{
    return BUFFER_BYTES + (size_t)table_end(sections) + 2 * w->name_bytes;
}

static void writer_free(struct aura_writer *w)
{
    aura_give_memory(w->call.ctx, w->buffer, writer_bytes(w, w->header->sections));
}

aura_status aura_writer_open(struct aura_writer *w, struct aura_call call, const char *path, uint32_t kind, uint32_t sections)
{
    aura_status status = check_path(call, path);
    char target[TARGET_BYTES];
    void *memory;
    if (status || (status = find_target(call, path, target)))
        return status;
    memset(w, 0, sizeof *w);
    w->call = call;
    w->path = path;
    w->name_bytes = strlen(target) + 48;
    size_t bytes = writer_bytes(w, sections);
    if ((status = aura_take_memory(call, bytes, &memory)))
        return status;
    memset(memory, 0, bytes);
    w->buffer = memory;
    w->header = (struct aura_file_header *)(void *)(w->buffer + BUFFER_BYTES);
    w->table = (struct aura_file_section *)(void *)(w->header + 1);
    w->temporary = (char *)w->header + table_end(sections);
    w->target = strcpy(w->temporary + w->name_bytes, target);
    memcpy(w->header->magic, file_magic, sizeof file_magic);
    w->header->byte_order = BYTE_ORDER_MARK;
    w->header->major = AURA_FILE_MAJOR;
    w->header->minor = AURA_FILE_MINOR;
    w->header->kind = kind;
    w->header->sections = sections;
    if ((status = open_temporary(w))) {
        writer_free(w);
        return status;
    }
    aura_writer_put(w, w->header, (size_t)table_end(sections)); /* reserves the place: commit writes them last */
    w->summed = w->fill;
    return AURA_OK;
}

static void write_at(struct aura_writer *w, const void *data, size_t bytes, uint64_t offset)
{
    while (bytes && !w->status) {
        ssize_t n = pwrite(w->file, data, bytes, (off_t)offset);
        if (n < 0 && errno != EINTR)
            w->status = fail_io(w->call, "write", w->temporary, errno);
        if (n > 0) {
            data = (const uint8_t *)data + n;
            bytes -= (size_t)n;
            offset += (uint64_t)n;
        }
    }
}

/* Adds what is in the buffer to the checksum of its section. */
static void sum_up(struct aura_writer *w)
{
    if (w->written) {
        struct aura_file_section *s = &w->table[w->written - 1];
        s->crc = aura_crc32c(s->crc, w->buffer + w->summed, w->fill - w->summed, w->call.ctx->isas);
    }
    w->summed = w->fill;
}

static void flush(struct aura_writer *w)
{
    sum_up(w);
    write_at(w, w->buffer, w->fill, w->offset - w->fill);
    w->fill = w->summed = 0;
}

void aura_writer_put(struct aura_writer *w, const void *data, size_t bytes)
{
    while (bytes && !w->status) {
        size_t n = bytes < BUFFER_BYTES - w->fill ? bytes : BUFFER_BYTES - w->fill;
        memcpy(w->buffer + w->fill, data, n);
        data = (const uint8_t *)data + n;
        bytes -= n;
        w->fill += n;
        w->offset += n;
        if (w->fill == BUFFER_BYTES)
            flush(w);
    }
}

/* Ends the section being written, if there is one. */
static void end_section(struct aura_writer *w)
{
    static const uint8_t zeros[AURA_FILE_ALIGN];
    if (!w->written)
        return;
    struct aura_file_section *s = &w->table[w->written - 1];
    s->bytes = w->offset - s->offset;
    aura_writer_put(w, zeros, (size_t)(padded(s->bytes) - s->bytes));
    sum_up(w);
}

void aura_writer_section(struct aura_writer *w, uint32_t layer, uint32_t type)
{
    end_section(w);
    struct aura_file_section *s = &w->table[w->written++];
    s->layer = layer;
    s->type = type;
    s->offset = w->offset;
}

void aura_writer_balance(struct aura_writer *w, uint32_t layer, uint32_t kv_heads, uint32_t k_dim, const float *balance)
{
    struct aura_file_balance head = {kv_heads, k_dim, {0}};
    aura_writer_section(w, layer, AURA_SECTION_BALANCE);
    aura_writer_put(w, &head, sizeof head);
    aura_writer_put(w, balance, (size_t)kv_heads * k_dim * sizeof *balance);
}

/* A rename is on disk when its directory is. EINVAL: the file system cannot sync a directory. */
static void sync_directory(struct aura_writer *w)
{
    char *slash = strrchr(w->temporary, '/');
    if (slash)
        slash[slash == w->temporary] = 0;
    int directory = open(slash ? w->temporary : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (directory < 0 || (fsync(directory) && errno != EINVAL))
        w->status = fail_io(w->call, "sync the directory of", w->path, errno);
    if (directory >= 0)
        close(directory);
}

aura_status aura_writer_commit(struct aura_writer *w)
{
    struct aura_file_header *h = w->header;
    size_t front = (size_t)table_end(h->sections);
    end_section(w);
    flush(w);
    h->bytes = w->offset;
    h->crc = aura_crc32c(0, h, front, w->call.ctx->isas);
    write_at(w, h, front, 0);
    if (!w->status && fsync(w->file))
        w->status = fail_io(w->call, "write", w->temporary, errno);
    if (close(w->file) && !w->status)
        w->status = fail_io(w->call, "write", w->temporary, errno);
    if (!w->status && rename(w->temporary, w->target))
        w->status = fail_io(w->call, "replace", w->path, errno);
    if (w->status)
        unlink(w->temporary);
    else
        sync_directory(w);
    writer_free(w);
    return w->status;
}

/* ---- reading ------------------------------------------------------------------------------------------------------ */

aura_status aura_reader_bad(const struct aura_reader *r, const char *what)
{
    return aura_fail(r->call.ctx, AURA_BAD_FILE, "%s: a damaged file, %s: %s", r->call.name, what, r->path);
}

static aura_status map(struct aura_reader *r)
{
    struct stat about;
    int file = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for the writer of a pipe */
    if (file < 0)
        return fail_io(r->call, "open", r->path, errno);
    aura_status status = AURA_OK;
    if (fstat(file, &about))
        status = fail_io(r->call, "look at", r->path, errno);
    else if (!S_ISREG(about.st_mode))
        status = aura_fail(r->call.ctx, AURA_IO, "%s: not a file: %s", r->call.name, r->path);
    else if (about.st_size < (off_t)sizeof(struct aura_file_header) || (uint64_t)about.st_size > SIZE_MAX / 2)
        status = aura_reader_bad(r, "not even its header is there");
    if (!status) {
        r->bytes = (size_t)about.st_size;
        void *data = mmap(NULL, r->bytes, PROT_READ, MAP_PRIVATE, file, 0);
        if (data == MAP_FAILED)
            status = fail_io(r->call, "map", r->path, errno);
        else
            r->data = data;
    }
    close(file);
    return status;
}

/* The checks that a reader of any version can make on a file of any version. */
static aura_status check_version(const struct aura_reader *r, const struct aura_file_header *h, uint32_t kind)
{
    static const char *const kinds[] = {"a profile", "a snapshot"};
    if (memcmp(h->magic, file_magic, sizeof file_magic))
        return aura_fail(r->call.ctx, AURA_BAD_FILE, "%s: not a file of aura's: %s", r->call.name, r->path);
    if (h->byte_order != BYTE_ORDER_MARK)
        return aura_fail(r->call.ctx, AURA_UNSUPPORTED, "%s: a file of a machine with another byte order: %s", r->call.name,
                         r->path);
    if (h->major != AURA_FILE_MAJOR)
        return aura_fail(r->call.ctx, AURA_UNSUPPORTED, "%s: version %u.%u of the file format; this library reads %d.x: %s",
                         r->call.name, h->major, h->minor, AURA_FILE_MAJOR, r->path);
    if (h->bytes != r->bytes)
        return aura_reader_bad(r, h->bytes > r->bytes ? "its end is missing" : "it is longer than it was");
    if (table_end(h->sections) > r->bytes) /* sections has 32 bits: no overflow */
        return aura_reader_bad(r, "its table does not fit");
    struct aura_file_header zero = *h;
    zero.crc = 0;
    uint32_t crc = aura_crc32c(0, &zero, sizeof zero, r->call.ctx->isas);
    crc = aura_crc32c(crc, h + 1, (size_t)table_end(h->sections) - sizeof *h, r->call.ctx->isas);
    if (crc != h->crc)
        return aura_reader_bad(r, "the checksum of its header is wrong");
    if (h->kind != kind)
        return aura_fail(r->call.ctx, AURA_BAD_FILE, "%s: not %s: %s", r->call.name, kinds[kind - 1], r->path);
    return AURA_OK;
}

/* Sections stand one after the other, without gaps, to the end of the file; so no sum below can overflow. */
static aura_status check_sections(const struct aura_reader *r)
{
    uint64_t at = table_end(r->sections);
    for (uint32_t i = 0; i < r->sections; i++) {
        const struct aura_file_section *s = &r->table[i], *before = i ? s - 1 : NULL;
        if (s->offset != at || s->bytes > r->bytes - at || padded(s->bytes) > r->bytes - at)
            return aura_reader_bad(r, "a section is not where it should be");
        if (before && (s->layer < before->layer || (s->layer == before->layer && s->type <= before->type)))
            return aura_reader_bad(r, "its sections are out of order");
        at += padded(s->bytes);
        if (aura_crc32c(0, r->data + s->offset, (size_t)padded(s->bytes), r->call.ctx->isas) != s->crc)
            return aura_reader_bad(r, "the checksum of a section is wrong");
        if ((s->type < AURA_SECTION_FILE || s->type > AURA_SECTION_ROWS) && !(s->flags & AURA_SECTION_OPTIONAL))
            return aura_fail(r->call.ctx, AURA_UNSUPPORTED, "%s: a section of type %u, which this library does not know: %s",
                             r->call.name, s->type, r->path);
    }
    return at == r->bytes ? AURA_OK : aura_reader_bad(r, "it is longer than its sections");
}

static aura_status check_content(struct aura_reader *r)
{
    uint64_t bytes;
    const void *content = aura_reader_find(r, 0, AURA_SECTION_FILE, &bytes);
    if (!content || bytes != sizeof r->content)
        return aura_reader_bad(r, "it does not say what is in it");
    memcpy(&r->content, content, sizeof r->content);
    if (r->content.layers == 0 || r->content.model > 1)
        return aura_reader_bad(r, "it has no layers");
    for (uint32_t i = 0; i < r->sections; i++)
        if (r->table[i].layer >= r->content.layers && !(r->table[i].flags & AURA_SECTION_OPTIONAL))
            return aura_reader_bad(r, "a section is of a layer that it does not have");
    return AURA_OK;
}

aura_status aura_reader_open(struct aura_reader *r, struct aura_call call, const char *path, uint32_t kind)
{
    aura_status status = check_path(call, path);
    if (status)
        return status;
    memset(r, 0, sizeof *r);
    r->call = call;
    r->path = path;
    if ((status = map(r)))
        return status;
    const struct aura_file_header *h = (const struct aura_file_header *)(const void *)r->data;
    r->table = (const struct aura_file_section *)(const void *)(h + 1);
    if (!(status = check_version(r, h, kind))) {
        r->sections = h->sections;
        status = check_sections(r);
    }
    if (!status)
        status = check_content(r);
    if (status)
        aura_reader_close(r);
    return status;
}

void aura_reader_close(struct aura_reader *r)
{
    munmap((void *)r->data, r->bytes);
}

const void *aura_reader_find(const struct aura_reader *r, uint32_t layer, uint32_t type, uint64_t *bytes)
{
    uint32_t low = 0, high = r->sections;
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        const struct aura_file_section *s = &r->table[middle];
        if (s->layer < layer || (s->layer == layer && s->type < type))
            low = middle + 1;
        else
            high = middle;
    }
    if (low == r->sections || r->table[low].layer != layer || r->table[low].type != type)
        return NULL;
    *bytes = r->table[low].bytes;
    return r->data + r->table[low].offset;
}

aura_status aura_reader_balance(const struct aura_reader *r, uint32_t layer, uint32_t *kv_heads, uint32_t *k_dim,
                                const float **balance)
{
    uint64_t bytes;
    const struct aura_file_balance *b = aura_reader_find(r, layer, AURA_SECTION_BALANCE, &bytes);
    *kv_heads = *k_dim = 0;
    *balance = NULL;
    if (!b)
        return AURA_OK;
    if (bytes < sizeof *b || b->k_dim > AURA_MAX_DIM || bytes - sizeof *b != (uint64_t)b->kv_heads * b->k_dim * sizeof(float))
        return aura_reader_bad(r, "a balance is not as long as it says");
    *kv_heads = b->kv_heads;
    *k_dim = b->k_dim;
    *balance = (const float *)(const void *)(b + 1);
    return AURA_OK;
}
