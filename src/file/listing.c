/* What a file holds, without loading it. A listing is a small file of its own: the table, and the sections that say something. */
#include "../base/exact.h"
#include "snapshot.h"

#include <string.h>

struct aura_listing {
    struct aura_reader small; /* over the copies: their offsets are in its table */
    struct aura_file_header header;
    uint8_t *damaged;         /* [sections] */
    size_t bytes;             /* of this struct and all that follows it */
};

/* Pages and rows stay where they are. */
static int is_listed(uint32_t type)
{
    return type != AURA_SECTION_TABLE && type != AURA_SECTION_PAGES && type != AURA_SECTION_ROWS;
}

static size_t listing_bytes(const struct aura_reader *r)
{
    size_t bytes = sizeof(struct aura_listing) + r->sections * (sizeof *r->table + 1) + AURA_FILE_ALIGN;
    for (uint32_t i = 0; i < r->sections; i++)
        bytes += is_listed(r->table[i].type) ? (size_t)aura_file_padded(r->table[i].bytes) : 0;
    return bytes;
}

/* Copies the table and what is listed of a file that was opened. */
static aura_status copy_sections(struct aura_call call, const struct aura_reader *r, aura_listing **listing)
{
    const size_t bytes = listing_bytes(r), table_bytes = r->sections * sizeof *r->table;
    void *memory;
    aura_status status = aura_take_memory(call, bytes, &memory);
    if (status)
        return status;
    struct aura_listing *l = memset(memory, 0, bytes);
    struct aura_file_section *table = (struct aura_file_section *)(void *)(l + 1);
    l->bytes = bytes;
    l->small = *r;
    l->small.path = "a listing";
    l->small.source = NULL;
    memcpy(&l->header, r->data, sizeof l->header);
    memcpy(table, r->table, table_bytes);
    l->small.table = table;
    l->damaged = (uint8_t *)table + table_bytes;
    l->small.data = memory;
    uint64_t at = aura_file_padded((uint64_t)(l->damaged + r->sections - (uint8_t *)memory));
    for (uint32_t i = 0; i < r->sections; i++) {
        l->damaged[i] = !aura_reader_is_whole(r, i);
        if (!is_listed(table[i].type))
            continue;
        memcpy((uint8_t *)memory + at, r->data + table[i].offset, (size_t)table[i].bytes);
        table[i].offset = at;
        at += aura_file_padded(table[i].bytes);
    }
    *listing = l;
    return AURA_OK;
}

static aura_status make(const char *name, aura_ctx *ctx, struct aura_file_input from, aura_listing **listing)
{
    struct aura_call call = {ctx, name};
    struct aura_reader r;
    if (!ctx || !listing)
        return aura_fail(ctx, AURA_BAD_ARGUMENT, "%s: %s is NULL", name, ctx ? "listing" : "ctx");
    aura_status status = aura_reader_open(&r, call, &from, 0);
    if (status)
        return status;
    status = copy_sections(call, &r, listing);
    aura_reader_close(&r);
    return status;
}

aura_status aura_list_file(aura_ctx *ctx, const char *path, aura_listing **listing)
{
    return make("aura_list_file", ctx, aura_from_path(path), listing);
}

aura_status aura_list_source(aura_ctx *ctx, aura_source *source, aura_listing **listing)
{
    return make("aura_list_source", ctx, aura_from_source(source), listing);
}

void aura_listing_destroy(aura_listing *listing)
{
    if (listing)
        aura_give_memory(listing->small.call.ctx, listing, listing->bytes);
}

/* ---- reading it ---------------------------------------------------------------------------------------------------- */

/* The bytes of a section that is there and whole, or NULL. */
static const void *find(const aura_listing *l, uint32_t layer, uint32_t type, uint64_t *bytes)
{
    const void *data = aura_reader_find(&l->small, layer, type, bytes);
    data = data && !l->damaged[aura_reader_at(&l->small, layer, type)] ? data : NULL;
    *bytes = data ? *bytes : 0;
    return data;
}

static aura_status check(struct aura_call call, const aura_listing *l, const void *info, size_t size, uint32_t layer)
{
    if (!l)
        return aura_fail(NULL, AURA_BAD_ARGUMENT, "%s: listing is NULL", call.name);
    aura_status status = aura_check_call(call, info, size);
    if (!status && layer >= l->small.content.layers)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: layer %u of %u", call.name, layer, l->small.content.layers);
    return status;
}

static struct aura_call call_of(const aura_listing *l, const char *name)
{
    return (struct aura_call){l ? l->small.call.ctx : NULL, name};
}

static const struct aura_file_config *config_of(const aura_listing *l, uint32_t layer)
{
    uint64_t bytes;
    const struct aura_file_config *f = find(l, layer, AURA_SECTION_CONFIG, &bytes);
    return f && bytes == sizeof *f ? f : NULL;
}

static const struct aura_file_seq *seqs_of(const aura_listing *l, uint32_t layer, uint64_t *n)
{
    const struct aura_file_seq *seqs = find(l, layer, AURA_SECTION_SEQS, n);
    *n = seqs ? *n / sizeof *seqs : 0;
    return seqs;
}

aura_status aura_listing_get_info(const aura_listing *l, aura_listing_info *info)
{
    aura_status status = check(call_of(l, "aura_listing_get_info"), l, info, sizeof *info, 0);
    aura_listing_info about = AURA_LISTING_INFO_INIT;
    uint64_t bytes;
    if (status)
        return status;
    about.held = l->header.kind == AURA_FILE_PROFILE ? AURA_HELD_PROFILE
                 : l->small.content.model            ? AURA_HELD_MODEL
                                                     : AURA_HELD_CACHE;
    about.major = l->header.major;
    about.minor = l->header.minor;
    about.checksum = l->header.crc;
    about.layers = l->small.content.layers;
    about.bytes = l->header.bytes;
    about.sections = l->small.sections;
    for (uint32_t i = 0; i < l->small.sections; i++)
        about.damaged += l->damaged[i];
    seqs_of(l, 0, &about.seqs);
    about.note = find(l, about.layers - 1, AURA_SECTION_NOTE, &bytes);
    about.note_bytes = about.note ? (size_t)bytes : 0;
    *info = about;
    return AURA_OK;
}

/* What the table says of a layer. */
static void count_sections(const aura_listing *l, uint32_t layer, aura_listing_layer *about)
{
    for (uint32_t i = aura_reader_at(&l->small, layer, 0); i < l->small.sections && l->small.table[i].layer == layer; i++) {
        const struct aura_file_section *s = &l->small.table[i];
        about->bytes += aura_file_padded(s->bytes);
        about->damaged |= (uint32_t)l->damaged[i] << (s->type < 31 ? s->type : 31);
    }
}

/* Balance or metric i of a layer that has it, whole. A caller goes by the configuration, so it must be as large as that says. */
static void list_numbers(const aura_listing *l, uint32_t layer, const struct aura_file_config *f, int i, aura_config *config)
{
    const float *numbers;
    uint32_t heads, dim;
    uint64_t bytes;
    const int values = aura_numbers_of_values(i);
    if (!find(l, layer, aura_section_of_numbers(i), &bytes) || aura_reader_numbers(&l->small, layer, i, &heads, &dim, &numbers))
        return;
    uint32_t *const config_dim = values ? &config->v_dim : &config->k_dim;
    if (f ? heads != f->kv_heads || dim != (values ? f->v_dim : f->k_dim)
          : (config->kv_heads && heads != config->kv_heads) || (*config_dim && dim != *config_dim))
        return;
    config->kv_heads = heads;
    *config_dim = dim;
    *aura_numbers_at(config, i) = numbers;
}

aura_status aura_listing_get_layer(const aura_listing *l, uint32_t layer, aura_listing_layer *info)
{
    struct aura_call call = call_of(l, "aura_listing_get_layer");
    aura_status status = check(call, l, info, sizeof *info, layer);
    static const aura_listing_layer empty = AURA_LISTING_LAYER_INIT;
    if (status)
        return status;
    aura_listing_layer about = empty;
    const struct aura_file_config *f = config_of(l, layer);
    count_sections(l, layer, &about);
    seqs_of(l, layer, &about.seqs);
    if (f) {
        aura_config_of_file(&about.config, f);
        about.pages = f->pages;
    }
    for (int i = 0; i < AURA_NUMBERS; i++)
        list_numbers(l, layer, f, i, &about.config);
    uint64_t bytes;
    if (find(l, layer, AURA_SECTION_FORMAT, &bytes)) /* of a profile; one that is none is listed as none */
        aura_reader_format(&l->small, layer, &about.config.format);
    *info = about;
    return AURA_OK;
}

aura_status aura_listing_get_seq(const aura_listing *l, uint32_t layer, uint64_t i, aura_listing_seq *info)
{
    struct aura_call call = call_of(l, "aura_listing_get_seq");
    aura_listing_seq about = AURA_LISTING_SEQ_INIT;
    uint64_t n;
    aura_status status = check(call, l, info, sizeof *info, layer);
    if (status)
        return status;
    const struct aura_file_config *f = config_of(l, layer);
    const struct aura_file_seq *s = seqs_of(l, layer, &n);
    if (i >= n)
        return aura_fail(call.ctx, AURA_BAD_ARGUMENT, "%s: sequence %llu of %llu", call.name, (unsigned long long)i,
                         (unsigned long long)n);
    const uint64_t kept = f && f->window ? aura_pages_of(f->keep_first) : 0;
    about.number = s[i].id;
    about.tokens = s[i].tokens;
    about.closed = s[i].closed;
    about.first = s[i].first > kept ? s[i].first * AURA_PAGE : 0;
    about.pages = s[i].entries;
    *info = about;
    return AURA_OK;
}
