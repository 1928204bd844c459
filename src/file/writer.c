/* Sections, one after the other, into a file, into memory, or to a function of the caller's. */
#include "../base/exact.h"
#include "container.h"

#include <string.h>

#include "crc32c.h"

enum { BUFFER_BYTES = 1 << 18 };

/* Hands over what comes at this offset of the file. */
static void emit(struct aura_writer *w, const void *data, size_t bytes, uint64_t offset)
{
    aura_sink *sink = w->sink;
    if (w->status || w->sums || !bytes)
        return;
    if (!sink) {
        w->status = aura_replace_write(w->file, data, bytes, offset);
    } else if (!sink->write) {
        memcpy((uint8_t *)sink->data + offset, data, bytes);
    } else if (sink->write(sink->user, data, bytes)) {
        w->status = aura_fail(w->call.ctx, AURA_IO, "%s: the sink failed after %zu bytes of %llu", w->call.name, sink->used,
                              (unsigned long long)w->header->bytes);
    }
    if (sink && !w->status)
        sink->used += bytes;
}

/* Adds what is in the buffer to the checksum of its section. */
static void sum_up(struct aura_writer *w)
{
    if (w->written && !w->sealed) {
        struct aura_file_section *s = &w->table[w->written - 1];
        s->crc = aura_crc32c(s->crc, w->buffer + w->summed, w->fill - w->summed, w->call.ctx->isas);
    }
    w->summed = w->fill;
}

static void flush(struct aura_writer *w)
{
    sum_up(w);
    emit(w, w->buffer, w->fill, w->offset - w->fill);
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
    s->bytes = w->sealed ? s->bytes : w->offset - s->offset;
    if (w->elsewhere) {
        w->offset = s->offset + aura_file_padded(s->bytes);
        w->elsewhere = 0;
        return;
    }
    aura_writer_put(w, zeros, (size_t)(aura_file_padded(s->bytes) - s->bytes));
    sum_up(w);
}

void aura_writer_section(struct aura_writer *w, uint32_t layer, uint32_t type, uint32_t flags)
{
    end_section(w);
    struct aura_file_section *s = &w->table[w->written++];
    s->layer = layer;
    s->type = type;
    s->flags = flags;
    s->offset = w->offset;
}

void aura_writer_elsewhere(struct aura_writer *w, uint64_t bytes, uint32_t crc)
{
    flush(w);
    w->table[w->written - 1].crc = crc;
    w->offset += bytes;
    w->elsewhere = 1;
}

void aura_writer_numbers(struct aura_writer *w, uint32_t layer, int i, uint32_t kv_heads, uint32_t dim, const float *numbers)
{
    struct aura_file_numbers head = {kv_heads, dim, {0}};
    aura_writer_section(w, layer, aura_section_of_numbers(i), 0);
    aura_writer_put(w, &head, sizeof head);
    aura_writer_put(w, numbers, kv_heads * aura_numbers_width(i, dim) * sizeof *numbers);
}

uint64_t aura_numbers_section_bytes(int i, uint32_t kv_heads, uint32_t dim)
{
    return aura_file_padded(sizeof(struct aura_file_numbers) + (uint64_t)kv_heads * aura_numbers_width(i, dim) * sizeof(float));
}

/* All sections, from where the first of them begins. */
static void write_sections(struct aura_writer *w, const struct aura_file_plan *plan)
{
    w->written = 0;
    w->offset = aura_file_front(plan->sections);
    plan->write(w, plan->what);
    end_section(w);
    flush(w);
}

static void write_all(struct aura_writer *w, const struct aura_file_plan *plan)
{
    struct aura_file_header *h = w->header;
    const size_t front = (size_t)aura_file_front(plan->sections);
    w->sums = w->sink && w->sink->write;
    write_sections(w, plan);
    h->crc = aura_crc32c(0, h, front, w->call.ctx->isas);
    w->sealed = 1;
    const int again = w->sums;
    w->sums = 0;
    emit(w, h, front, 0);
    if (again)
        write_sections(w, plan);
}

aura_status aura_check_file_output(struct aura_call call, const struct aura_file_output *to)
{
    if (to->way == AURA_TO_PATH)
        return aura_check_path(call, to->path);
    if (to->way == AURA_TO_NOBODY)
        return to->bytes ? AURA_OK : aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: bytes is NULL", call.name);
    aura_status status = aura_check_call(call, to->sink, sizeof *to->sink);
    if (!status && !to->sink->write && !to->sink->data)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the sink has neither a function nor memory", call.name);
    return status;
}

/* Nothing is written to memory where not all fits. */
static aura_status begin_sink(struct aura_call call, aura_sink *sink, uint64_t bytes)
{
    if (!sink->write && sink->bytes < bytes)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: the sink has %zu bytes; %llu are needed", call.name, sink->bytes,
                         (unsigned long long)bytes);
    sink->used = 0;
    return AURA_OK;
}

aura_status aura_write_file(struct aura_call call, const struct aura_file_output *to, const struct aura_file_plan *plan)
{
    const struct aura_file_header begin = {AURA_FILE_MAGIC, AURA_FILE_BYTE_ORDER, AURA_FILE_MAJOR, AURA_FILE_MINOR, plan->kind,
                                           plan->sections, plan->bytes, 0, {0}};
    const size_t front = (size_t)aura_file_front(plan->sections);
    struct aura_writer w;
    void *memory = NULL;
    if (to->way == AURA_TO_NOBODY) {
        *to->bytes = (size_t)plan->bytes;
        return AURA_OK;
    }
    aura_status status = to->way == AURA_TO_SINK ? begin_sink(call, to->sink, plan->bytes) : AURA_OK;
    if (status || (status = aura_take_memory(call, BUFFER_BYTES + front, &memory)))
        return status;
    memset(&w, 0, sizeof w);
    w.call = call;
    w.sink = to->sink;
    w.buffer = memory;
    w.header = memset(w.buffer + BUFFER_BYTES, 0, front);
    w.table = (struct aura_file_section *)(void *)(w.header + 1);
    *w.header = begin;
    if (w.sink || !(status = aura_replace_begin(call, to->path, &w.file))) {
        write_all(&w, plan);
        status = w.sink ? w.status : aura_replace_end(w.file, w.status);
    }
    aura_give_memory(call.ctx, memory, BUFFER_BYTES + front);
    return status;
}
