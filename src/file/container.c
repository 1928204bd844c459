/* Maps a file or reads a source, and checks every byte. */
#define _POSIX_C_SOURCE 200809L /* O_CLOEXEC */
#include "../base/exact.h"
#include "container.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "crc32c.h"

static const uint8_t file_magic[8] = AURA_FILE_MAGIC;

aura_status aura_reader_bad(const struct aura_reader *r, const char *what)
{
    return aura_fail(r->call.ctx, AURA_BAD_FILE, "%s: a damaged file, %s: %s", r->call.name, what, r->path);
}

/* ---- where the bytes come from ------------------------------------------------------------------------------------- */

static aura_status map(struct aura_reader *r)
{
    struct stat about;
    int file = open(r->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK); /* do not wait for the writer of a pipe */
    if (file < 0)
        return aura_fail_io(r->call, "open", r->path, errno);
    aura_status status = AURA_OK;
    if (fstat(file, &about))
        status = aura_fail_io(r->call, "look at", r->path, errno);
    else if (!S_ISREG(about.st_mode))
        status = aura_fail(r->call.ctx, AURA_IO, "%s: not a file: %s", r->call.name, r->path);
    else if (about.st_size < (off_t)sizeof(struct aura_file_header) || (uint64_t)about.st_size > SIZE_MAX / 2)
        status = aura_reader_bad(r, "not even its header is there");
    if (!status) {
        void *data = mmap(NULL, (size_t)about.st_size, PROT_READ, MAP_PRIVATE, file, 0);
        if (data == MAP_FAILED) {
            status = aura_fail_io(r->call, "map", r->path, errno);
        } else {
            r->data = data;
            r->mapped = (size_t)about.st_size;
        }
    }
    close(file);
    return status;
}

aura_status aura_check_file_input(struct aura_call call, const struct aura_file_input *from)
{
    if (from->way == AURA_FROM_PATH)
        return aura_check_path(call, from->path);
    if (from->way == AURA_FROM_HEADER)
        return from->header ? AURA_OK : aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: header is NULL", call.name);
    aura_status status = aura_check_call(call, from->source, sizeof *from->source);
    if (!status && !from->source->read && !from->source->data)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the source has neither a function nor memory", call.name);
    return status;
}

/* The next bytes of the source, as many as there are at once. */
static ptrdiff_t read_some(aura_source *source, void *to, size_t bytes)
{
    if (source->read)
        return source->read(source->user, to, bytes);
    const size_t left = source->bytes - source->used, n = left < bytes ? left : bytes;
    memcpy(to, (const uint8_t *)source->data + source->used, n);
    return (ptrdiff_t)n;
}

/* Place for more of a file of r->bytes bytes. A source that has said how much there is gets it at once. Of another, nobody knows
 * whether it has what the header announces: its place doubles when it is full. */
static aura_status make_room(struct aura_reader *r)
{
    enum { FIRST_ROOM = 1 << 16 };
    void *memory;
    size_t room = r->room < FIRST_ROOM ? FIRST_ROOM : 2 * r->room;
    room = r->source->bytes || room > r->bytes ? r->bytes : room;
    aura_status status = aura_take_memory(r->call, room, &memory);
    if (status)
        return status;
    if (r->have)
        memcpy(memory, r->copy, r->have);
    aura_give_memory(r->call.ctx, r->copy, r->room);
    r->data = r->copy = memory;
    r->room = room;
    return AURA_OK;
}

/* The first `end` bytes of the file are there from now on. */
static aura_status fetch(struct aura_reader *r, size_t end)
{
    aura_source *source = r->source;
    aura_status status = AURA_OK;
    if (r->data && !r->copy)
        return AURA_OK;
    while (r->have < end) {
        if (r->have == r->room && (status = make_room(r)))
            return status;
        const size_t wanted = (r->room < end ? r->room : end) - r->have;
        const ptrdiff_t n = read_some(source, r->copy + r->have, wanted);
        if (n < 0 || (size_t)n > wanted)
            return aura_fail(r->call.ctx, AURA_IO, "%s: the source failed after %zu bytes", r->call.name, r->have);
        if (n == 0)
            return aura_reader_bad(r, r->bytes == sizeof(struct aura_file_header) ? "not even its header is there"
                                                                                  : "its end is missing");
        r->have += (size_t)n;
        source->used += (size_t)n;
    }
    return AURA_OK;
}

/* Memory that is aligned is read where it is. */
static aura_status begin_source(struct aura_reader *r)
{
    aura_source *source = r->source;
    source->used = 0;
    r->bytes = sizeof(struct aura_file_header);
    if ((source->bytes || !source->read) && source->bytes < r->bytes)
        return aura_reader_bad(r, "not even its header is there");
    if (!source->read && (uintptr_t)source->data % 8 == 0)
        r->data = source->data;
    return fetch(r, r->bytes);
}

/* ---- what they must be -------------------------------------------------------------------------------------------- */

static const struct aura_file_header *header_of(const struct aura_reader *r)
{
    return (const struct aura_file_header *)(const void *)r->data;
}

/* The checks that a reader of any version can make on a file of any version. */
static aura_status check_version(const struct aura_reader *r)
{
    const struct aura_file_header *h = header_of(r);
    if (memcmp(h->magic, file_magic, sizeof file_magic))
        return aura_fail(r->call.ctx, AURA_BAD_FILE, "%s: not a file of aura's: %s", r->call.name, r->path);
    if (h->byte_order != AURA_FILE_BYTE_ORDER)
        return aura_fail(r->call.ctx, AURA_UNSUPPORTED, "%s: a file of a machine with another byte order: %s", r->call.name,
                         r->path);
    if (h->major != AURA_FILE_MAJOR)
        return aura_fail(r->call.ctx, AURA_UNSUPPORTED, "%s: version %u.%u of the file format; this library reads %d.x: %s",
                         r->call.name, h->major, h->minor, AURA_FILE_MAJOR, r->path);
    return AURA_OK;
}

/* The length that the header announces. A file has exactly that; a source may have more, which is somebody else's. */
static aura_status check_length(struct aura_reader *r)
{
    const struct aura_file_header *h = header_of(r);
    const uint64_t there = r->mapped ? r->mapped : r->source->bytes ? r->source->bytes : SIZE_MAX / 2;
    if (h->bytes > there || h->bytes > SIZE_MAX / 2)
        return aura_reader_bad(r, "its end is missing");
    if (r->mapped && h->bytes < there)
        return aura_reader_bad(r, "it is longer than it was");
    if (aura_file_front(h->sections) > h->bytes) /* sections has 32 bits: no overflow */
        return aura_reader_bad(r, "its table does not fit");
    r->bytes = (size_t)h->bytes;
    return fetch(r, (size_t)aura_file_front(h->sections));
}

/* Sections stand one after the other, without gaps, to the end of the file; so no sum below can overflow. */
static aura_status check_table(const struct aura_reader *r)
{
    uint64_t at = aura_file_front(r->sections);
    for (uint32_t i = 0; i < r->sections; i++) {
        const struct aura_file_section *s = &r->table[i], *before = i ? s - 1 : NULL;
        if (s->offset != at || s->bytes > r->bytes - at || aura_file_padded(s->bytes) > r->bytes - at)
            return aura_reader_bad(r, "a section is not where it should be");
        if (before && (s->layer < before->layer || (s->layer == before->layer && s->type <= before->type)))
            return aura_reader_bad(r, "its sections are out of order");
        at += aura_file_padded(s->bytes);
        if ((s->type < AURA_SECTION_FILE || s->type > AURA_SECTION_LAST) && !(s->flags & AURA_SECTION_OPTIONAL))
            return aura_fail(r->call.ctx, AURA_UNSUPPORTED, "%s: a section of type %u, which this library does not know: %s",
                             r->call.name, s->type, r->path);
    }
    return at == r->bytes ? AURA_OK : aura_reader_bad(r, "it is longer than its sections");
}

/* The header and the table, and what they say. */
static aura_status check_front(struct aura_reader *r, uint32_t kind)
{
    static const char *const kinds[] = {"a profile", "a snapshot", "a shard", "a manifest of shards"};
    const struct aura_file_header *h = header_of(r);
    struct aura_file_header zero = *h;
    zero.crc = 0;
    uint32_t crc = aura_crc32c(0, &zero, sizeof zero, r->call.ctx->isas);
    crc = aura_crc32c(crc, h + 1, (size_t)aura_file_front(h->sections) - sizeof *h, r->call.ctx->isas);
    if (crc != h->crc)
        return aura_reader_bad(r, "the checksum of its header is wrong");
    if (kind && h->kind != kind)
        return aura_fail(r->call.ctx, AURA_BAD_FILE, "%s: not %s: %s", r->call.name, kinds[kind - 1], r->path);
    if (!kind && h->kind != AURA_FILE_PROFILE && h->kind != AURA_FILE_SNAPSHOT)
        return aura_reader_bad(r, "it is neither a profile nor a snapshot");
    r->sections = h->sections;
    r->table = (const struct aura_file_section *)(const void *)(h + 1);
    return check_table(r);
}

int aura_reader_is_whole(const struct aura_reader *r, uint32_t section)
{
    const struct aura_file_section *s = &r->table[section];
    return aura_crc32c(0, r->data + s->offset, (size_t)aura_file_padded(s->bytes), r->call.ctx->isas) == s->crc;
}

/* All sections, or only the one that says what is in the file. */
static aura_status check_sums(const struct aura_reader *r, int all)
{
    for (uint32_t i = 0; i < r->sections; i++)
        if ((all || r->table[i].type == AURA_SECTION_FILE) && !aura_reader_is_whole(r, i))
            return aura_reader_bad(r, "the checksum of a section is wrong");
    return AURA_OK;
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

static aura_status check_all(struct aura_reader *r, uint32_t kind)
{
    aura_status status = check_version(r);
    if (status || (status = check_length(r)) || (status = check_front(r, kind)) || (status = fetch(r, r->bytes)))
        return status;
    r->table = (const struct aura_file_section *)(const void *)(header_of(r) + 1); /* the copy may have moved */
    if (r->source)
        r->source->used = r->bytes;
    status = check_sums(r, kind != 0);
    return status ? status : check_content(r);
}

/* Sections move to where they are in a header; those that are left out keep their length. */
static aura_status place_sections(struct aura_reader *r, size_t bytes)
{
    struct aura_file_section *table = (struct aura_file_section *)(void *)(r->copy + sizeof(struct aura_file_header));
    uint64_t at = aura_file_front(r->sections);
    for (uint32_t i = 0; i < r->sections; i++) {
        if (AURA_SECTION_IS_LARGE(table[i].type)) {
            table[i].offset = 0;
            continue;
        }
        if (aura_file_padded(table[i].bytes) > bytes - at)
            return aura_reader_bad(r, "its end is missing");
        table[i].offset = at;
        at += aura_file_padded(table[i].bytes);
    }
    if (at != bytes)
        return aura_reader_bad(r, "it is longer than its sections");
    for (uint32_t i = 0; i < r->sections; i++)
        if (!AURA_SECTION_IS_LARGE(table[i].type) && !aura_reader_is_whole(r, i))
            return aura_reader_bad(r, "the checksum of a section is wrong");
    return check_content(r);
}

/* The copy is checked and kept, not what somebody may be writing to. */
static aura_status open_header(struct aura_reader *r, const struct aura_file_input *from, uint32_t kind)
{
    void *memory = NULL;
    if (from->header_bytes < sizeof(struct aura_file_header))
        return aura_reader_bad(r, "not even its header is there");
    aura_status status = aura_take_memory(r->call, from->header_bytes, &memory);
    if (status)
        return status;
    r->data = r->copy = memcpy(memory, from->header, from->header_bytes);
    r->room = from->header_bytes;
    if ((status = check_version(r)))
        return status;
    const struct aura_file_header *h = header_of(r);
    if (h->bytes > SIZE_MAX / 2 || aura_file_front(h->sections) > h->bytes || aura_file_front(h->sections) > r->room)
        return aura_reader_bad(r, "its table does not fit");
    r->bytes = (size_t)h->bytes;
    if ((status = check_front(r, kind)))
        return status;
    return place_sections(r, r->room);
}

aura_status aura_reader_open(struct aura_reader *r, struct aura_call call, const struct aura_file_input *from, uint32_t kind)
{
    aura_status status = aura_check_file_input(call, from);
    if (status)
        return status;
    memset(r, 0, sizeof *r);
    r->call = call;
    r->path = from->source ? "in a source" : from->header ? "in a header" : from->path;
    r->source = from->source;
    if (from->way == AURA_FROM_HEADER) {
        status = open_header(r, from, kind);
    } else {
        status = from->source ? begin_source(r) : map(r);
        if (!status)
            status = check_all(r, kind);
    }
    if (status)
        aura_reader_close(r);
    return status;
}

void aura_reader_close(struct aura_reader *r)
{
    if (r->mapped)
        munmap((void *)r->data, r->mapped);
    aura_give_memory(r->call.ctx, r->copy, r->room);
}

uint32_t aura_reader_at(const struct aura_reader *r, uint32_t layer, uint32_t type)
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
    return low;
}

const void *aura_reader_find(const struct aura_reader *r, uint32_t layer, uint32_t type, uint64_t *bytes)
{
    const uint32_t at = aura_reader_at(r, layer, type);
    if (at == r->sections || r->table[at].layer != layer || r->table[at].type != type)
        return NULL;
    *bytes = r->table[at].bytes;
    return r->data + r->table[at].offset;
}

aura_status aura_reader_numbers(const struct aura_reader *r, uint32_t layer, int i, uint32_t *kv_heads, uint32_t *dim,
                                const float **numbers)
{
    uint64_t bytes;
    const struct aura_file_numbers *n = aura_reader_find(r, layer, aura_section_of_numbers(i), &bytes);
    *kv_heads = *dim = 0;
    *numbers = NULL;
    if (!n)
        return AURA_OK;
    if (bytes < sizeof *n || n->dim > AURA_MAX_DIM ||
        bytes - sizeof *n != (uint64_t)n->kv_heads * aura_numbers_width(i, n->dim) * sizeof(float))
        return aura_reader_bad(r, "a balance or a metric is not as long as it says");
    *kv_heads = n->kv_heads;
    *dim = n->dim;
    *numbers = (const float *)(const void *)(n + 1);
    return AURA_OK;
}

aura_status aura_reader_format(const struct aura_reader *r, uint32_t layer, aura_format *format)
{
    uint64_t bytes;
    const struct aura_file_format *f = aura_reader_find(r, layer, AURA_SECTION_FORMAT, &bytes);
    *format = (aura_format){(aura_kind)0, (aura_kind)0};
    if (!f)
        return AURA_OK;
    if (bytes != sizeof *f || !f->k || !f->v)
        return aura_reader_bad(r, "the format of a layer is none");
    *format = (aura_format){(aura_kind)f->k, (aura_kind)f->v};
    return AURA_OK;
}
