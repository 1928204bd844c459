/* aura inspect: what a profile, a snapshot or a conversation holds, without loading it. */
#define _POSIX_C_SOURCE 200809L
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../include/aura_file.h"
#include "parts/plot.h"
#include "parts/terminal.h"
#include "parts/utf8.h"
#include "tool.h"

struct arguments {
    int json, csv, all;
};

static const struct option options[] = {FLAG(all, "--all", "every layer and every sequence, not only those that differ"),
                                        FLAG(json, "--json", "as JSON, all of it"),
                                        FLAG(csv, "--csv", "as CSV: a row for each layer and sequence"), LAST_OPTION};

struct file {
    const char *path;
    const aura_listing *listing;
    aura_listing_info info;
};

static const char *kind_of(aura_held held)
{
    return held == AURA_HELD_PROFILE ? "profile" : held == AURA_HELD_CACHE ? "snapshot of a cache" : "snapshot of a model";
}

static aura_listing_layer layer_of(const struct file *f, uint32_t i)
{
    aura_listing_layer layer = AURA_LISTING_LAYER_INIT;
    aura_listing_get_layer(f->listing, i, &layer); /* there is one of that number */
    return layer;
}

static aura_listing_seq seq_of(const struct file *f, uint32_t layer, uint64_t i)
{
    aura_listing_seq seq = AURA_LISTING_SEQ_INIT;
    aura_listing_get_seq(f->listing, layer, i, &seq);
    return seq;
}

static const char *format_of(const aura_config *config, char name[16])
{
    return aura_format_name(config->format, name) ? "?" : name;
}

/* Whether the note is text that a terminal can show. */
static int is_text(const char *note, size_t bytes)
{
    for (size_t i = 0; i < bytes;) {
        const unsigned char c = (unsigned char)note[i];
        const size_t n = c < 0x80 ? (c >= 32 && c != 127) || c == '\n' || c == '\t' : utf8_character(note + i);
        if (!n)
            return 0;
        i += n;
    }
    return bytes > 0;
}

/* ---- for people ---------------------------------------------------------------------------------------------------------- */

static void print_layer(const struct file *f, const aura_listing_layer *l)
{
    const aura_config *c = &l->config;
    char name[16];
    if (l->damaged)
        printf(" damaged (sections %#x)", l->damaged);
    if (f->info.held == AURA_HELD_PROFILE)
        printf(c->balance ? " a balance of %u KV heads, D %u%s%s" : " no balance%.0u%.0u%s%s", c->kv_heads, c->k_dim,
               c->format.k ? ", best as " : "", c->format.k ? format_of(c, name) : "");
    else if (c->kv_heads)
        printf(" %s, %u KV heads, D %u%s%s, %" PRIu64 " page%s, %" PRIu64 " bytes", format_of(c, name), c->kv_heads, c->k_dim,
               c->window ? ", a window" : "", c->balance ? ", balanced" : "", l->pages, l->pages == 1 ? "" : "s", l->bytes);
    printf("\n");
}

/* Whether a layer says the same as the one before it. */
static int is_same(const aura_listing_layer *a, const aura_listing_layer *b)
{
    return a->damaged == b->damaged && a->config.format.k == b->config.format.k && a->config.format.v == b->config.format.v &&
           a->config.kv_heads == b->config.kv_heads && a->config.k_dim == b->config.k_dim && a->config.window == b->config.window &&
           !a->config.balance == !b->config.balance && a->pages == b->pages;
}

static void print_layers(const struct file *f, int all)
{
    for (uint32_t i = 0, end; i < f->info.layers; i = end) {
        const aura_listing_layer first = layer_of(f, i);
        for (end = i + 1; end < f->info.layers && !all; end++) {
            const aura_listing_layer next = layer_of(f, end);
            if (!is_same(&first, &next))
                break;
        }
        printf(end > i + 1 ? "layers %u to %u:" : "layer %u:", i, end - 1);
        print_layer(f, &first);
    }
}

static void print_seqs(const struct file *f, int all)
{
    enum { SHOWN = 16 };
    if (f->info.held == AURA_HELD_PROFILE)
        return;
    printf("%" PRIu64 " sequence%s\n", f->info.seqs, f->info.seqs == 1 ? "" : "s");
    for (uint64_t i = 0; i < layer_of(f, 0).seqs && (all || i < SHOWN); i++) {
        const aura_listing_seq s = seq_of(f, 0, i);
        printf("  %" PRIu32 ": %" PRIu64 " token%s, %" PRIu64 " of them as codes, %" PRIu64 " page%s%s\n", s.number, s.tokens,
               s.tokens == 1 ? "" : "s", s.closed, s.pages, s.pages == 1 ? "" : "s", s.first ? ", the first are gone" : "");
    }
    if (!all && layer_of(f, 0).seqs > SHOWN)
        printf("  ... --all shows the others\n");
}

static void print_note(const struct file *f, int all)
{
    enum { SHOWN = 400 };
    const char *note = f->info.note;
    const size_t bytes = f->info.note_bytes;
    if (!note) {
        printf("no note of the caller's\n");
        return;
    }
    printf("%zu byte%s of the caller's%s\n", bytes, bytes == 1 ? "" : "s", is_text(note, bytes) ? ", text:" : ", no text");
    if (is_text(note, bytes))
        printf("%.*s%s\n", (int)(all || bytes < SHOWN ? bytes : SHOWN), note, all || bytes < SHOWN ? "" : " ...");
}

static void print_file(const struct file *f, int all)
{
    char size[48];
    plot_number(size, (double)f->info.bytes, "B");
    printf("%s: a %s, version %u.%u, %s, checksum %08x\n", f->path, kind_of(f->info.held), f->info.major, f->info.minor, size,
           f->info.checksum);
    printf("%u section%s, %s%u damaged%s\n", f->info.sections, f->info.sections == 1 ? "" : "s",
           f->info.damaged ? colour(stdout, RED) : "", f->info.damaged, f->info.damaged ? colour(stdout, PLAIN) : "");
    print_layers(f, all);
    print_seqs(f, all);
    if (f->info.held != AURA_HELD_PROFILE)
        print_note(f, all);
}

/* ---- for programs --------------------------------------------------------------------------------------------------------- */

static const char *held_name(aura_held held)
{
    return held == AURA_HELD_PROFILE ? "profile" : held == AURA_HELD_CACHE ? "cache" : "model";
}

static void json_layer(const struct file *f, uint32_t i)
{
    const aura_listing_layer l = layer_of(f, i);
    const aura_config *c = &l.config;
    char name[16];
    printf("%s\n  {\"layer\": %u, \"format\": ", i ? "," : "", i);
    if (c->format.k)
        printf("\"%s\"", format_of(c, name));
    else
        printf("null");
    printf(", \"kv_heads\": %u, \"q_heads\": %u, \"k_dim\": %u, \"v_dim\": %u, \"window\": %" PRIu64 ", \"balance\": %s, "
           "\"pages\": %" PRIu64 ", \"bytes\": %" PRIu64 ", \"damaged\": %u, \"seqs\": [", c->kv_heads, c->q_heads,
           c->k_dim, c->v_dim, c->window, c->balance ? "true" : "false", l.pages, l.bytes, l.damaged);
    for (uint64_t k = 0; k < l.seqs && f->info.held != AURA_HELD_PROFILE; k++) {
        const aura_listing_seq s = seq_of(f, i, k);
        printf("%s{\"number\": %" PRIu32 ", \"tokens\": %" PRIu64 ", \"closed\": %" PRIu64 ", \"first\": %" PRIu64
               ", \"pages\": %" PRIu64 "}", k ? ", " : "", s.number, s.tokens, s.closed, s.first, s.pages);
    }
    printf("]}");
}

/* The note as a string where it is text. */
static int json_note(const struct file *f)
{
    const size_t bytes = f->info.note_bytes;
    if (!f->info.note || !is_text(f->info.note, bytes))
        return printf("null"), 0;
    char *text = malloc(bytes + 1);
    if (!text)
        return -1;
    memcpy(text, f->info.note, bytes);
    text[bytes] = 0;
    print_json_string(text);
    free(text);
    return 0;
}

static int json_file(const struct command *self, const struct file *f)
{
    printf("{\"file\": ");
    print_json_string(f->path);
    printf(", \"held\": \"%s\", \"version\": \"%u.%u\", \"checksum\": \"%08x\", \"bytes\": %" PRIu64 ", "
           "\"sections\": %u, \"damaged\": %u, \"seqs\": %" PRIu64 ", \"note_bytes\": %zu, \"note\": ",
           held_name(f->info.held), f->info.major,
           f->info.minor, f->info.checksum, f->info.bytes, f->info.sections, f->info.damaged, f->info.seqs, f->info.note_bytes);
    if (json_note(f))
        return failed(self, "no memory");
    printf(", \"layers\": [");
    for (uint32_t i = 0; i < f->info.layers; i++)
        json_layer(f, i);
    printf("\n]}\n");
    return 0;
}

/* A layer, and one of its sequences where it has any. */
struct row {
    uint32_t number;
    aura_listing_layer layer;
    const aura_listing_seq *seq;
};

static void row_fields(struct table *t, const void *row)
{
    const struct row *r = row;
    const aura_config *c = &r->layer.config;
    const aura_listing_seq none = AURA_LISTING_SEQ_INIT, *s = r->seq ? r->seq : &none;
    char name[16];
    table_number(t, "layer", "%u", r->number);
    table_text(t, "format", c->format.k ? format_of(c, name) : NULL);
    table_number(t, "kv_heads", "%u", c->kv_heads), table_number(t, "q_heads", "%u", c->q_heads);
    table_number(t, "k_dim", "%u", c->k_dim), table_number(t, "v_dim", "%u", c->v_dim);
    table_number(t, "window", "%" PRIu64, c->window);
    table_number(t, "balance", "%s", c->balance ? "true" : "false");
    table_number(t, "layer_pages", "%" PRIu64, r->layer.pages), table_number(t, "layer_bytes", "%" PRIu64, r->layer.bytes);
    table_number(t, "damaged", "%u", r->layer.damaged);
    table_number(t, "seq", "%.0f", r->seq ? (double)s->number : (double)NAN);
    table_number(t, "tokens", "%" PRIu64, s->tokens), table_number(t, "closed", "%" PRIu64, s->closed);
    table_number(t, "first", "%" PRIu64, s->first), table_number(t, "pages", "%" PRIu64, s->pages);
}

static void origin(struct table *t, const void *file)
{
    const struct file *f = file;
    char checksum[16], version[32];
    snprintf(checksum, sizeof checksum, "%08x", f->info.checksum);
    snprintf(version, sizeof version, "%u.%u", f->info.major, f->info.minor);
    table_text(t, "file", f->path);
    table_text(t, "held", held_name(f->info.held));
    table_text(t, "version", version);
    table_text(t, "checksum", checksum);
}

static void csv_file(const struct file *f)
{
    struct table table;
    table_begin(&table, 1, "layers", origin, f);
    for (uint32_t i = 0; i < f->info.layers; i++) {
        struct row row = {i, layer_of(f, i), NULL};
        const uint64_t seqs = f->info.held == AURA_HELD_PROFILE ? 0 : row.layer.seqs;
        for (uint64_t k = 0; k < (seqs ? seqs : 1); k++) {
            const aura_listing_seq seq = seqs ? seq_of(f, i, k) : (aura_listing_seq)AURA_LISTING_SEQ_INIT;
            row.seq = seqs ? &seq : NULL;
            table_row(&table, row_fields, &row);
        }
    }
    table_end(&table, NULL, NULL);
}

static int run_inspect(const struct command *self, int argc, char **argv)
{
    struct arguments a = {0};
    struct file f = {NULL, NULL, AURA_LISTING_INFO_INIT};
    aura_ctx *ctx = NULL;
    aura_listing *listing = NULL;
    int status = parse_options(self, argc, argv, &a, &f.path);
    if (status)
        return status;
    if (!f.path)
        return usage_error(self, "needs a file: a profile of aura calibrate, a snapshot, or a conversation of aura run --save");
    if (aura_ctx_create(NULL, &ctx) || aura_list_file(ctx, f.path, &listing) || aura_listing_get_info(listing, &f.info)) {
        status = failed(self, "%s: %s", f.path, aura_last_error());
    } else {
        f.listing = listing;
        if (a.json)
            status = json_file(self, &f);
        else if (a.csv)
            csv_file(&f);
        else
            print_file(&f, a.all);
        if (!status && f.info.damaged)
            status = failed(self, "%s: %u of %u sections are damaged: it cannot be loaded", f.path, f.info.damaged,
                            f.info.sections);
    }
    aura_listing_destroy(listing);
    aura_ctx_destroy(ctx);
    return status;
}

const struct command command_inspect = {
    "inspect", "what is in a profile, a snapshot or a conversation", "FILE [OPTIONS]",
    "Says what a file holds, without loading it: formats, sequences, tokens, the\n"
    "caller's bytes, and whether the checksums of all sections are right.\n",
    "FILE", NULL, options, "aura inspect talk\n", run_inspect};
