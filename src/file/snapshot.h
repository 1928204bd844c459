/* Snapshots: what is in the sections of a file, and what saving and loading share. doc/snapshot.md draws the bytes.
 *
 *     snapshot_save.c   cache -> file      canonical.c   a page without what means nothing
 *     snapshot_load.c   file -> cache */
#ifndef AURA_SNAPSHOT_H
#define AURA_SNAPSHOT_H

#include "../cache/cache.h"
#include "container.h"

/* AURA_SECTION_CONFIG: everything that the bytes of the other sections depend on. */
struct aura_file_config {
    uint32_t k_kind, v_kind, k_dim, v_dim;
    uint32_t q_heads, kv_heads;     /* that are in the file */
    uint32_t first_head, all_heads; /* 0, and kv_heads; of files made before 0.5: where the heads stood, and of how many */
    uint32_t flags, rollback;
    uint64_t seed;
    uint64_t window;
    uint32_t max_queries, keep_first;
    uint64_t slots;
    uint32_t pinned;                /* tokens at the beginning of a sequence that are f16 rows */
    uint32_t generation;            /* 0; of files made before 0.5: of the last id that was given */
    uint32_t tile_tokens, page_tokens;
    uint32_t k_codebook, v_codebook, reference_codebook; /* ids; 0: a plain side, no reference */
    uint32_t k_codebook_crc, v_codebook_crc, reference_codebook_crc; /* CRC32C of the levels, then of the thresholds; or 0 */
    uint32_t k_signs_crc, v_signs_crc;                   /* CRC32C of the sign bits; or 0 */
    uint64_t head_bytes;            /* of the part of a page that belongs to one KV head */
    uint64_t seqs, entries, pages;
    uint32_t rank, ranks;           /* of a shard: whose pages are in it, of how many; 0 in a snapshot */
    uint8_t zero[32];
};
_Static_assert(sizeof(struct aura_file_config) == 192, "drawn in doc/snapshot.md");

/* AURA_SECTION_SEQS: one for each sequence. */
struct aura_file_seq {
    uint64_t tokens, closed;
    uint64_t first;   /* with a window: the first page that is there, after the kept ones; 0 without; in a shard: the shift */
    uint64_t entries; /* in the table, where they follow those of the sequence before */
    uint32_t id, rows; /* id: 1, 2, 3 ...; before 0.5 any. rows: of f16, of each KV head */
    uint8_t zero[24];
};
_Static_assert(sizeof(struct aura_file_seq) == 64, "drawn in doc/snapshot.md");

/* AURA_SECTION_TABLE: one for each page of each sequence. */
struct aura_file_entry {
    uint64_t page;    /* in AURA_SECTION_PAGES */
    uint8_t written[8]; /* of slots: 1 for each tile that was written to; of sequences: 0 */
};
_Static_assert(sizeof(struct aura_file_entry) == 16, "drawn in doc/snapshot.md");

/* ---- canonical.c ---- */

/* The columns of a page that hold tokens: [coded, coded_end) of packed sides, [0, plain_end) of plain ones. */
struct aura_page_span {
    uint32_t coded, coded_end, plain_end;
    int reference; /* 1: the page has one */
};

/* A page of a file, and what is in it. Sequences that share it have one entry of the table each. */
struct aura_saved_page {
    uint8_t *page;
    struct aura_page_span span;
};

/* Copies the part of a page that belongs to one KV head, with zeros in place of what is not in the span. */
void aura_canonical_head(uint8_t *to, const uint8_t *head, const struct aura_layout *layout, const struct aura_page_span *span);

/* Whether that copy would have the same bytes, as far as can be told without looking at most of them: 0 means maybe. */
int aura_is_canonical_head(const uint8_t *head, const struct aura_layout *layout, const struct aura_page_span *span);

/* Whether every number of such a part can have been stored: no NaN, no Inf, no code without a level. */
int aura_is_sound_head(const uint8_t *head, const struct aura_layout *layout);
int aura_is_sound_f16(const uint8_t *rows, size_t n);

/* ---- what a file says of a cache ---- */

/* Fills *f with all that does not depend on sequences, with the checksums of the cache's tables and signs. */
void aura_describe_config(struct aura_file_config *f, const aura_cache *cache, uint32_t heads);

/* How many f16 rows each KV head of a sequence has: first those of pinned tokens, then those of open ones. */
static inline uint32_t aura_rows_of(const aura_cache *cache, uint64_t tokens, uint64_t closed)
{
    uint64_t coded = closed > cache->pinned ? closed : cache->pinned;
    uint64_t pinned = tokens < cache->pinned ? tokens : cache->pinned;
    if (!aura_is_packed(cache->layout.k.kind) && !aura_is_packed(cache->layout.v.kind))
        return 0;
    return (uint32_t)(pinned + (tokens > coded ? tokens - coded : 0));
}

/* The token of row i. */
static inline uint64_t aura_token_of_row(const aura_cache *cache, uint64_t tokens, uint64_t closed, uint32_t i)
{
    uint64_t coded = closed > cache->pinned ? closed : cache->pinned;
    uint64_t pinned = tokens < cache->pinned ? tokens : cache->pinned;
    return i < pinned ? i : coded + (i - pinned);
}

/* Bytes of one token's f16 rows in one KV head: its key and its value. */
static inline size_t aura_row_pair_bytes(const aura_cache *cache)
{
    const struct aura_layout *l = &cache->layout;
    return 2 * ((aura_is_packed(l->k.kind) ? (size_t)l->k.dim : 0) + (aura_is_packed(l->v.kind) ? (size_t)l->v.dim : 0));
}

/* KV heads [first, first + heads) of `all`; heads 0: those from `first` on. Fails: AURA_BAD_ARGUMENT. */
aura_status aura_check_head_range(struct aura_call call, uint32_t first, uint32_t *heads, uint32_t all);

/* ---- layers, for caches and for models ---- */

/* One layer of a file to be written. */
struct aura_saved {
    const aura_cache *cache;
    uint32_t first_head, heads;
    size_t seqs, entries, pages;
    size_t most_seqs;
    struct aura_sequence **seq;    /* [most_seqs + 1], of which seqs are used */
    struct aura_file_entry *table; /* [entries] */
    struct aura_saved_page *page;  /* [entries], of which pages are used */
    uint8_t *head;                 /* a scratch copy of one KV head */
    uint64_t positions;            /* what the cache had learnt when it was asked: from so many positions, */
    double *learnt;                /* [all KV heads][...]; NULL: it does not learn */
    void *memory;
    size_t memory_bytes;
};

/* Collects what is to be saved. Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY. */
aura_status aura_saved_init(struct aura_saved *s, struct aura_call call, const aura_cache *cache,
                            const aura_snapshot_options *options);
void aura_saved_free(struct aura_saved *s);
/* Gives the f16 rows of its sequences, one after the other, as they are in a file; and how many bytes they are. */
typedef void aura_put_fn(void *to, const void *data, size_t bytes);
void aura_saved_rows(const struct aura_saved *s, aura_put_fn *put, void *to);
size_t aura_saved_rows_bytes(const struct aura_saved *s);
/* Writes a snapshot of n layers. Fails as aura_cache_save() does. */
aura_status aura_write_snapshot(struct aura_call call, const struct aura_file_output *to, const struct aura_saved *layers,
                                uint32_t n, uint32_t model, const aura_snapshot_options *options);
/* Checksums of the two sections of a layer that are large, with the zeros after each. */
struct aura_large_sums {
    uint32_t pages, rows;
};
/* Writes the same without these sections, of which sums[n] are known. The sink is a function. */
aura_status aura_write_header(struct aura_call call, aura_sink *sink, const struct aura_saved *layers, uint32_t n, uint32_t model,
                              const aura_snapshot_options *options, const struct aura_large_sums *sums);
/* Bytes of the sections of a layer with so many sequences, entries of the table, pages and f16 rows of each KV head. */
uint64_t aura_layer_sections_bytes(const aura_cache *cache, uint32_t heads, uint64_t seqs, uint64_t entries, uint64_t pages,
                                   uint64_t rows);
/* Bytes of a snapshot of n layers that have so many bytes, and so many balances and metrics. */
uint64_t aura_snapshot_bytes(uint64_t layer_bytes, uint32_t layers, uint32_t numbers, const aura_snapshot_options *options);

/* How many of balance, metrics and what was learnt a layer has. */
uint32_t aura_count_numbers(const aura_config *config);

/* One layer of a file to be read. */
struct aura_loaded {
    const struct aura_reader *reader;
    uint32_t layer, first_head, heads;
    const struct aura_file_config *config;
    const float *numbers[AURA_NUMBERS]; /* of the chosen heads, or NULL */
    const double *learnt;               /* of the chosen heads, or NULL */
    uint64_t positions;
    const struct aura_file_seq *seq;    /* [config->seqs] */
    const struct aura_file_entry *table; /* [config->entries] */
    const uint8_t *pages, *rows;
};

/* The configuration that a file speaks of, as it stands there, without balance and metrics. */
void aura_config_of_file(aura_config *config, const struct aura_file_config *f);
/* Finds the sections of a layer, and the configuration of a cache for the KV heads that the options choose. Checks sizes
 * only. Fails: AURA_BAD_FILE, AURA_BAD_ARGUMENT (heads). */
aura_status aura_loaded_init(struct aura_loaded *l, const struct aura_reader *r, uint32_t layer,
                             const aura_snapshot_options *options, aura_config *config);
/* Checks that the layer is of a cache with the same configuration, balance, metrics, tables and signs. */
aura_status aura_loaded_fits(const struct aura_loaded *l, const aura_cache *cache);
/* Checks that everything in a layer that fits the cache makes sense there; the lists alone: all but what is in pages and rows. */
aura_status aura_loaded_check_lists(const struct aura_loaded *l, const aura_cache *cache);
aura_status aura_loaded_check(struct aura_loaded *l, const aura_cache *cache);

/* Where a sequence is in a file: itself, the first of its entries, its rows. */
struct aura_file_place {
    const struct aura_file_seq *seq;
    const struct aura_file_entry *entry;
    const uint8_t *rows;
};

/* Finds the sequences ids[n] of a checked layer; ids NULL: its first n. Fails: AURA_BAD_ARGUMENT (no such sequence). */
aura_status aura_loaded_find(const struct aura_loaded *l, const aura_cache *cache, const aura_seq *ids, size_t n,
                             struct aura_file_place *place);
/* The chosen heads of a page of the file, laid out as in a page of the cache. */
const uint8_t *aura_loaded_page(const struct aura_loaded *l, const aura_cache *cache, uint64_t page);
/* Copies the f16 rows of these heads to k and v, laid out as in a sequence of the cache; NULL: a plain side. */
void aura_loaded_rows(const struct aura_loaded *l, const aura_cache *cache, const struct aura_file_place *place, uint16_t *k,
                      uint16_t *v);

/* Sequences of a file on their way into a cache: they have their pages there, but nobody finds them yet. */
struct aura_arrival {
    const struct aura_loaded *l;
    aura_cache *cache;
    size_t n;
    struct aura_file_place *from; /* [n] */
    struct aura_sequence **to;    /* [n], NULL: not made yet, or the cache's already */
    uint8_t **page;               /* [pages of the file] where each is in the cache; NULL: in none of these sequences */
    void *memory;
    size_t memory_bytes;
};

/* Makes the sequences ids[n] of a checked layer, or all where ids is NULL, without their bytes: all or none. Fails with nothing to
 * free. */
aura_status aura_arrival_make(struct aura_arrival *a, const struct aura_loaded *l, aura_cache *cache, const aura_seq *ids,
                              size_t n);
/* Copies their f16 rows from where `from` says. */
void aura_arrival_rows(const struct aura_arrival *a);
/* From now on ids lead to them, as aura_loaded_seqs() has it: to all or to none. */
aura_status aura_arrival_publish(struct aura_arrival *a, aura_seq *as);
void aura_arrival_free(struct aura_arrival *a); /* with all sequences that were not published */

/* Makes the sequences ids[n] of a checked layer in the cache, or all where ids is NULL: all or none. Sequence i gets the id
 * as[i]; 0 there asks for a new id, which is written there. as NULL: the ids are those of the file. */
aura_status aura_loaded_seqs(const struct aura_loaded *l, aura_cache *cache, const aura_seq *ids, size_t n, aura_seq *as);
/* Gives a cache that learns, and has learnt nothing yet, what the file has. */
void aura_loaded_learnt(const struct aura_loaded *l, aura_cache *cache);
/* Fills a new cache of slots. */
void aura_loaded_slots(const struct aura_loaded *l, aura_cache *cache);

/* Puts the sequence of a call into its options, which must have none. Fails: AURA_BAD_ARGUMENT. */
aura_status aura_choose_seq(struct aura_call call, const aura_seq *seq, aura_snapshot_options *options);

/* Checks *options; NULL becomes the defaults. */
aura_status aura_check_snapshot_options(struct aura_call call, const aura_snapshot_options **options);

/* ---- whole files ---- */

struct aura_snapshot {
    struct aura_reader reader;
    uint32_t layers;
    struct aura_loaded *layer; /* [layers] */
    aura_config *config;       /* [layers] of caches for the chosen heads */
};

/* Opens a file of one cache or of a model and finds its layers. Fails as every load does, with nothing to close. */
aura_status aura_snapshot_open(struct aura_snapshot *s, struct aura_call call, const struct aura_file_input *from, uint32_t model,
                               const aura_snapshot_options *options);
void aura_snapshot_close(struct aura_snapshot *s);
/* The status of a failure that the file caused. In a call, the same failure would be the caller's. */
static inline aura_status aura_blame_file(aura_status status)
{
    return status == AURA_BAD_ARGUMENT || status == AURA_BAD_VALUE || status == AURA_TOO_LARGE ? AURA_BAD_FILE : status;
}
/* The one sequence of the file that the options choose. Fails: AURA_BAD_ARGUMENT. */
aura_status aura_pick_seq(const struct aura_loaded *l, const aura_snapshot_options *options, aura_seq *id);
/* aura_loaded_fits() and aura_loaded_check(): after these, nothing of the layer is unchecked. */
aura_status aura_loaded_verify(struct aura_loaded *l, const aura_cache *cache);

#endif
