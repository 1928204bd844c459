/* aura in files: profiles of models and the calibration that fills them, and snapshots of caches, sequences and models.
 *
 * doc/snapshot.md draws the files. Errors, structs, owners and floats are those of aura.h.
 *
 * Saving   replaces a file in one step: whoever reads it, also after a crash, finds the old one or the new one. A link stays
 *          a link and the file that it leads to is replaced; what is neither a file nor a link is refused. A file that is there
 *          keeps its permissions, and one that is write-protected is refused.
 * Loading  checks every byte. Nobody may write to the file meanwhile; to rename another file over it is allowed.
 *
 * Every save fails with
 *     AURA_IO              a path that nobody can write, a full disk, ...: the old file is as it was. Where only the directory
 *                          could not be synced, the new file is in place, and the message says so
 *     AURA_OUT_OF_MEMORY
 *     AURA_BAD_ARGUMENT    also: no such sequence or head
 * Every load fails, with nothing made or changed, with
 *     AURA_BAD_FILE        a bit or byte that is not as it was saved; a file of another kind
 *     AURA_UNSUPPORTED     a file of a newer version, or one made with other codebooks or signs
 *     AURA_IO
 *     AURA_OUT_OF_MEMORY
 *     AURA_BAD_ARGUMENT    also: no such sequence or head in the file
 */
#ifndef AURA_FILE_H
#define AURA_FILE_H

#include "aura.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- calibration -------------------------------------------------------------------------------------------------
 *
 * What the queries of a model look at decides how its keys are balanced. Give the keys of a text in token order from
 * position 0, and the queries of any positions; then take the factors.
 *
 * Threads: one at a time for each calibration.
 */
typedef struct aura_calibration aura_calibration;

typedef struct aura_calibration_config {
    size_t size;
    uint32_t q_heads, kv_heads, k_dim;
    uint32_t v_dim; /* 0: k_dim */
} aura_calibration_config;
#define AURA_CALIBRATION_CONFIG_INIT {sizeof(aura_calibration_config), 0, 0, 0, 0}

/* Makes a calibration that has seen nothing. The caller owns *calibration.
 * Fails: AURA_BAD_ARGUMENT (heads), AURA_UNSUPPORTED (k_dim, v_dim), AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_calibration_create(const aura_ctx *ctx, const aura_calibration_config *config,
                                             aura_calibration **calibration);

/* Frees a calibration; NULL is allowed. Never fails. */
AURA_API void aura_calibration_destroy(aura_calibration *calibration);

/* Counts the next keys of the text, [tokens][kv_heads][k_dim].
 * Fails, with nothing counted: AURA_BAD_VALUE (NaN, Inf), AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_calibration_keys(aura_calibration *calibration, uint32_t tokens, const aura_input *k);

/* Counts queries, [tokens][q_heads][k_dim]. Fails as aura_calibration_keys() does. */
AURA_API aura_status aura_calibration_queries(aura_calibration *calibration, uint32_t tokens, const aura_input *q);

/* Counts the next values of the text, [tokens][kv_heads][v_dim]. Only aura_calibration_v_balance() needs them. Fails as
 * aura_calibration_keys() does. */
AURA_API aura_status aura_calibration_values(aura_calibration *calibration, uint32_t tokens, const aura_input *v);

/* Ends a text: the next keys and values are those of position 0 again. Fails: AURA_BAD_ARGUMENT (NULL). */
AURA_API aura_status aura_calibration_next_text(aura_calibration *calibration);

/* Writes balance[kv_heads][k_dim] = (E[q^2] / E[(k - reference)^2])^(1/4) per channel, with geometric mean 1, within 1/8
 * to 8. Fails: AURA_BAD_ARGUMENT (also: no queries yet, or no text that had 32 keys). */
AURA_API aura_status aura_calibration_balance(const aura_calibration *calibration, float *balance);

/* What a cache with feedback takes: k_metric[kv_heads][k_dim * (k_dim + 1) / 2] = E[q q'], and the balances that go with metrics,
 * E[(k - reference)^2]^(-3/8) E[q^2]^(1/8) and E[v^2]^(-3/8) (diagonal of v_metric)^(1/8), else like the balance above.
 * Fail: AURA_BAD_ARGUMENT (also: nothing counted yet that they need), AURA_BAD_VALUE (the diagonal of v_metric). */
AURA_API aura_status aura_calibration_metric(const aura_calibration *calibration, float *k_metric);
AURA_API aura_status aura_calibration_k_balance(const aura_calibration *calibration, float *balance);
AURA_API aura_status aura_calibration_v_balance(const aura_calibration *calibration, const float *v_metric, float *balance);

/* ---- profiles ----------------------------------------------------------------------------------------------------
 *
 * What calibration found out about a model: balance, metrics and formats of its layers, in one file. aura.h declares aura_profile.
 *
 * Threads: calls that only read a profile (get, save) may run at once, or one call that changes it.
 */

/* Makes an empty profile of a model with that many layers, 1 to 65536. The caller owns *profile.
 * Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_profile_create(aura_ctx *ctx, uint32_t layers, aura_profile **profile);

/* Frees a profile; NULL is allowed. Never fails. */
AURA_API void aura_profile_destroy(aura_profile *profile);

/* Copies balance[kv_heads][k_dim], as aura_config takes it, into a layer, which has nothing else then; NULL: nothing at all.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT (no such layer, no heads), AURA_UNSUPPORTED (k_dim), AURA_BAD_VALUE (a factor
 * that is not within 1/8 to 8), AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_profile_set(aura_profile *profile, uint32_t layer, uint32_t kv_heads, uint32_t k_dim,
                                      const float *balance);

typedef struct aura_profile_layer {
    size_t size;
    uint32_t layers;      /* of the profile */
    uint32_t kv_heads, k_dim;
    const float *balance; /* [kv_heads][k_dim], the profile's until it is set or destroyed; NULL: this layer has none */
    uint32_t v_dim;       /* the rest as in aura_config */
    const float *v_balance, *k_metric, *v_metric;
    aura_format format;   /* what the layer is best held in; zero: the profile does not say */
} aura_profile_layer;
#define AURA_PROFILE_LAYER_INIT {sizeof(aura_profile_layer), 0, 0, 0, NULL, 0, NULL, NULL, NULL, {(aura_kind)0, (aura_kind)0}}

/* Copies all that *with has into a layer, which has nothing else then; `layers` is not read.
 * Fails, with nothing changed: as aura_profile_set(), AURA_UNSUPPORTED also for a format with one side only or of no cache,
 * AURA_BAD_VALUE for a metric that is none. */
AURA_API aura_status aura_profile_put(aura_profile *profile, uint32_t layer, const aura_profile_layer *with);

/* Fills the caller's *info. Fails: AURA_BAD_ARGUMENT (no such layer). */
AURA_API aura_status aura_profile_get(const aura_profile *profile, uint32_t layer, aura_profile_layer *info);

/* Saves a profile. Fails as every save does. */
AURA_API aura_status aura_profile_save(const aura_profile *profile, const char *path);

/* Makes the profile that was saved. The caller owns *profile. Fails as every load does. */
AURA_API aura_status aura_profile_load(aura_ctx *ctx, const char *path, aura_profile **profile);

/* ---- snapshots ---------------------------------------------------------------------------------------------------
 *
 * A cache, or some of its sequences, in a file, with all that is needed to go on as if nothing had happened. After loading,
 * appends and attention give the same bits as they would have given in the cache that was saved, on any machine that the
 * library runs on. A page that sequences share is saved once and shared again. Reservations are not saved.
 *
 * Snapshots are canonical. Their bytes depend on the tokens, on which sequences share pages and on the order of the sequences, and
 * on nothing else: not on ids, on what was there before, or on where it is in memory. Saved, loaded and saved again is the same
 * bytes. Sequences are numbered 1, 2, 3 ... in a snapshot, in the order of `seqs` of the options, or of aura_cache_list() where
 * all are saved. (In a file made before version 0.5 a sequence's number is the id that it had.)
 *
 * A file may hold some of the KV heads, and a caller may load some of those in a file. A machine that has heads 2 and 3 of 8
 * loads these into a cache of its own with 2 KV heads and a quarter of the query heads.
 *
 * Threads: saving reads the sequences that it saves (those of the call, or all). Loading a sequence is like creating one.
 */

/* Where a snapshot goes: with `write` piece by piece, from the first byte to the last; without, to data[bytes]. */
typedef struct aura_sink {
    size_t size;
    int (*write)(void *user, const void *data, size_t bytes); /* returns 0 when it has taken them all; anything else ends the
                                                                 call with AURA_IO */
    void *user;
    void *data;   /* write NULL: aura_..._size() bytes, any alignment */
    size_t bytes; /* that there are */
    size_t used;  /* the call sets it: how many were written */
} aura_sink;
#define AURA_SINK_INIT {sizeof(aura_sink), NULL, NULL, NULL, 0, 0}

/* Where a snapshot comes from: with `read` piece by piece; without, from data[bytes]. No byte after its end is read. */
typedef struct aura_source {
    size_t size;
    ptrdiff_t (*read)(void *user, void *data, size_t bytes); /* returns how many it has put there, 1 to bytes; 0: there are no
                                                                more; less: it failed, which ends the call with AURA_IO */
    void *user;
    const void *data; /* read NULL. Memory aligned to 8 is not copied; nobody may write to it during the call */
    size_t bytes;     /* that there are, with whatever follows the snapshot; with read, 0: unknown */
    size_t used;      /* the call sets it: how many were read */
} aura_source;
#define AURA_SOURCE_INIT {sizeof(aura_source), NULL, NULL, NULL, 0, 0}

typedef struct aura_snapshot_options {
    size_t size;
    const aura_seq *seqs; /* [n_seqs] the sequences to save, by their ids in the cache; or to load, by their numbers in the
                             snapshot. NULL: all */
    size_t n_seqs;
    uint32_t first_head, heads; /* KV heads [first_head, first_head + heads); heads 0: from first_head on */
    size_t budget_bytes;  /* of the cache or model that a load makes; 0: no limit */
    const void *note;     /* [note_bytes] bytes of the caller's that a save puts into the file, up to 2^30;
                             aura_snapshot_note() gives them back. A load does not look at them */
    size_t note_bytes;
} aura_snapshot_options;
#define AURA_SNAPSHOT_OPTIONS_INIT {sizeof(aura_snapshot_options), NULL, 0, 0, 0, 0, NULL, 0}

/* Copies the note of a snapshot, of a cache, a sequence or a model, to note[*bytes]; *bytes becomes its length, 0 where the
 * file has none. With *bytes 0 only the length is asked for, and note may be NULL. Fails as every load does, and with
 * AURA_BAD_ARGUMENT where the note is longer than *bytes. Threads: any. */
AURA_API aura_status aura_snapshot_note(aura_ctx *ctx, const char *path, void *note, size_t *bytes);

/* Says how many bytes a snapshot of these has; _write gives a sink exactly as many. It copies and encodes nothing. Fails: as every
 * save does, but not with AURA_IO. */
AURA_API aura_status aura_cache_size(const aura_cache *cache, const aura_snapshot_options *options, size_t *bytes);
AURA_API aura_status aura_seq_size(const aura_cache *cache, aura_seq seq, const aura_snapshot_options *options, size_t *bytes);
AURA_API aura_status aura_model_size(const aura_model_cache *model, const aura_snapshot_options *options, size_t *bytes);
AURA_API aura_status aura_model_seq_size(const aura_model_cache *model, aura_seq seq, const aura_snapshot_options *options,
                                         size_t *bytes);

/* These do what the _save functions below do, to a sink: the same bytes as in a file. Fail as every save does; AURA_IO where the
 * sink's function failed, AURA_BAD_ARGUMENT, with nothing written, also where its memory is too small. */
AURA_API aura_status aura_cache_write(const aura_cache *cache, aura_sink *sink, const aura_snapshot_options *options);
AURA_API aura_status aura_seq_write(const aura_cache *cache, aura_seq seq, aura_sink *sink, const aura_snapshot_options *options);
AURA_API aura_status aura_model_write(const aura_model_cache *model, aura_sink *sink, const aura_snapshot_options *options);
AURA_API aura_status aura_model_seq_write(const aura_model_cache *model, aura_seq seq, aura_sink *sink,
                                          const aura_snapshot_options *options);

/* These do what the _load functions below do, from a source. Every byte of the snapshot is read and checked before anything is
 * made, and memory is taken for no more than twice what has been read, or for what the source said it has. Fail as every load
 * does; AURA_IO where the source's function failed, AURA_BAD_FILE where it ended too early. */
AURA_API aura_status aura_cache_read(aura_ctx *ctx, aura_source *source, const aura_snapshot_options *options, aura_cache **cache);
AURA_API aura_status aura_seq_read(aura_cache *cache, aura_source *source, const aura_snapshot_options *options, aura_seq *seq);
AURA_API aura_status aura_model_read(aura_ctx *ctx, aura_source *source, const aura_snapshot_options *options,
                                     aura_model_cache **model);
AURA_API aura_status aura_model_seq_read(aura_model_cache *model, aura_source *source, const aura_snapshot_options *options,
                                         aura_seq *seq);

/* Saves a cache; options NULL: all of it. Fails as every save does. */
AURA_API aura_status aura_cache_save(const aura_cache *cache, const char *path, const aura_snapshot_options *options);

/* Makes the cache that was saved, with the budget of the options. The ids of its sequences are their numbers in the
 * snapshot. The caller owns *cache. Fails as every load does, and with AURA_OUT_OF_PAGES. */
AURA_API aura_status aura_cache_load(aura_ctx *ctx, const char *path, const aura_snapshot_options *options, aura_cache **cache);

/* Saves one sequence, as aura_cache_save() does with that one in seqs. Fails as every save does; AURA_BAD_ARGUMENT also where
 * the options have seqs. */
AURA_API aura_status aura_seq_save(const aura_cache *cache, aura_seq seq, const char *path, const aura_snapshot_options *options);

/* Loads a sequence into a cache, under a new id. The file may hold a whole cache; seqs then names the one sequence. The
 * configurations of the file and the cache must be equal, except for the budget; balance and number of heads are those of the
 * heads that the options choose.
 * Fails as every load does, and with AURA_OUT_OF_PAGES; AURA_BAD_ARGUMENT also where the configurations differ: the message
 * says in what. */
AURA_API aura_status aura_seq_load(aura_cache *cache, const char *path, const aura_snapshot_options *options, aura_seq *seq);

/* These four do the same for all layers of a model in one file. The options choose the same heads in every layer.
 * Fail as the four above do, loading with no layer changed; AURA_BAD_ARGUMENT also where the numbers of layers differ. */
AURA_API aura_status aura_model_save(const aura_model_cache *model, const char *path, const aura_snapshot_options *options);
AURA_API aura_status aura_model_load(aura_ctx *ctx, const char *path, const aura_snapshot_options *options,
                                     aura_model_cache **model);
AURA_API aura_status aura_model_seq_save(const aura_model_cache *model, aura_seq seq, const char *path,
                                         const aura_snapshot_options *options);
AURA_API aura_status aura_model_seq_load(aura_model_cache *model, const char *path, const aura_snapshot_options *options,
                                         aura_seq *seq);

/* ---- sequences that travel -----------------------------------------------------------------------------------------
 *
 * A sequence as pieces of memory, for RDMA or any other transport: prefill here, decode there. What travels is the snapshot of the
 * sequence, byte for byte, cut in two: a header, some hundred bytes and 16 for each page, and the pages and rows.
 *
 *     here     aura_seq_extents()                       the header, and where the pieces are: pages are not copied
 *     there    aura_seq_expect() with the same header   as many pieces of the same lengths: pages of the cache, to be written to
 *              ... every piece is moved ...
 *              aura_seq_adopt()                         checks all bytes; the sequence is there
 *
 * Threads: making extents reads the sequence, which must not change until they are destroyed. Expecting and adopting are like
 * creating a sequence. One call at a time for each aura_extents.
 */
typedef struct aura_extents aura_extents;

typedef enum aura_piece_kind {
    AURA_PIECE_PAGE = 1, /* 256 tokens of the KV heads that travel, of one layer */
    AURA_PIECE_ROWS = 2  /* the pinned and open tokens of a layer, in f16 */
} aura_piece_kind;

/* Where some of the bytes are, or are to be. */
typedef struct aura_piece {
    void *data; /* of a sequence that leaves: nobody may write there */
    size_t bytes;
    aura_piece_kind what;
    uint32_t layer;
} aura_piece;

typedef struct aura_extents_info {
    size_t size;
    const void *header;
    size_t header_bytes;
    const aura_piece *pieces; /* [n]: piece i of one side is for piece i of the other. Header and pieces are the extents' until
                                 they are destroyed, the pieces of one that is expected until it is adopted */
    size_t n;
    uint64_t bytes;           /* of all pieces */
    size_t copied;            /* pieces that are no memory of the cache: rows, and pages that hold other bytes than a snapshot
                                 would: the first where tokens are pinned, the last two, all where AURA_NO_REFERENCE is set */
} aura_extents_info;
#define AURA_EXTENTS_INFO_INIT {sizeof(aura_extents_info), NULL, 0, NULL, 0, 0, 0}

/* Makes the extents of a sequence of a cache, or of all layers of a model; of the options, heads and note count. The caller owns
 * *extents. Fail: AURA_BAD_ARGUMENT (no such sequence or head), AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_extents(const aura_cache *cache, aura_seq seq, const aura_snapshot_options *options,
                                      aura_extents **extents);
AURA_API aura_status aura_model_seq_extents(const aura_model_cache *model, aura_seq seq, const aura_snapshot_options *options,
                                            aura_extents **extents);

/* Fills the caller's *info. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_extents_get_info(const aura_extents *extents, aura_extents_info *info);

/* Takes pages for the sequence of a header out of the budget. The cache or model must be like the one that it left, as for
 * aura_seq_load(). Nobody finds the sequence before it is adopted. The caller owns *extents, and destroys them before the cache.
 * A header of n bytes asks for n / 16 pages at most: a cache that takes headers from strangers should have a budget.
 * Fail, with nothing changed: AURA_BAD_FILE (a header that is damaged or makes no sense), AURA_BAD_ARGUMENT (other
 * configurations: the message says in what), AURA_UNSUPPORTED, AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_seq_expect(aura_cache *cache, const void *header, size_t bytes, aura_extents **extents);
AURA_API aura_status aura_model_seq_expect(aura_model_cache *model, const void *header, size_t bytes, aura_extents **extents);

/* Checks what was written to the pieces, and makes the sequence, under a new id. The pages are its pages from then on. Destroy the
 * extents afterwards, also where it fails: the pages went back to the cache then.
 * Fails, with no sequence made: AURA_BAD_FILE (bytes that are not those that left), AURA_OUT_OF_PAGES, AURA_OUT_OF_MEMORY,
 * AURA_TOO_LARGE, AURA_BAD_ARGUMENT (extents of one that leaves; a second time). */
AURA_API aura_status aura_seq_adopt(aura_extents *extents, aura_seq *seq);

/* Frees extents; those of a sequence that was not adopted give its pages back. NULL is allowed. Never fails. */
AURA_API void aura_extents_destroy(aura_extents *extents);

/* ---- pages for tiers -----------------------------------------------------------------------------------------------
 *
 * For stores that keep a cache in host memory or on disk, page by page: numbers [2][layers][tokens][kv_heads * dim], keys first,
 * become pages of one size and numbers again, without a cache. A page holds 256 tokens of all layers, [layers][kv_heads], as
 * doc/format.md draws it: byte for byte the page of a cache with AURA_NO_PINNED all of whose tokens are encoded. In the last one,
 * columns without a token are 0.
 *
 * Threads: any number may use a codec at once.
 */
typedef struct aura_page_codec aura_page_codec;

/* Makes a codec for `layers` layers of one configuration, of which format, heads, dim, flags, seed and balance count; k_dim and
 * v_dim are equal, and there is no window, slots, budget, metric or v_balance. AURA_NO_SEARCH makes encoding 2.4 times as
 * fast, and at 8 bits the error is the same. The caller owns *codec.
 * Fails: as aura_cache_create(); AURA_BAD_ARGUMENT also for another configuration than that, and for no or too many layers. */
AURA_API aura_status aura_page_codec_create(aura_ctx *ctx, const aura_config *config, uint32_t layers, aura_page_codec **codec);

/* Frees a codec; NULL is allowed. Never fails. */
AURA_API void aura_page_codec_destroy(aura_page_codec *codec);

/* Bytes of the pages of so many tokens: ceil(tokens / 256) times those of one. 0 for NULL. Never fails. */
AURA_API size_t aura_page_codec_bytes(const aura_page_codec *codec, uint32_t tokens);

/* Encodes numbers into pages[bytes], aligned to 4. Works with the threads of the context.
 * Fails, with nothing written: AURA_BAD_VALUE (NaN, Inf, or a vector longer than 60 000 after balance), AURA_BAD_ARGUMENT (also:
 * bytes that are not aura_page_codec_bytes(), arrays that overlap), AURA_UNSUPPORTED (dtype), AURA_TOO_LARGE. */
AURA_API aura_status aura_pages_encode(const aura_page_codec *codec, const void *numbers, aura_dtype dtype, uint32_t tokens,
                                       void *pages, size_t bytes);

/* Decodes pages to numbers, as aura_cache_decode() would. There are no checksums in pages: a store has its own.
 * Fails, with nothing written: AURA_BAD_FILE (a number that nobody can have stored), and as aura_pages_encode(). */
AURA_API aura_status aura_pages_decode(const aura_page_codec *codec, const void *pages, size_t bytes, uint32_t tokens,
                                       void *numbers, aura_dtype dtype);

/* ---- what is in a file ---------------------------------------------------------------------------------------------
 *
 * A listing says what a profile or a snapshot holds, without loading it: it is what the file says, and a load checks that it makes
 * sense. Where the checksum of a section is wrong, the rest is listed. Threads: any number may read a listing at once.
 */
typedef struct aura_listing aura_listing;

/* Reads a file or a source and makes a listing, which the caller owns. It keeps nothing of the file or source.
 * Fail as every load does; AURA_BAD_FILE where the header, the table of sections or the first section is damaged or the end is
 * missing. */
AURA_API aura_status aura_list_file(aura_ctx *ctx, const char *path, aura_listing **listing);
AURA_API aura_status aura_list_source(aura_ctx *ctx, aura_source *source, aura_listing **listing);

/* Frees a listing; NULL is allowed. Never fails. */
AURA_API void aura_listing_destroy(aura_listing *listing);

typedef enum aura_held {
    AURA_HELD_PROFILE = 1,
    AURA_HELD_CACHE = 2, /* sequences of one cache, or one sequence alone */
    AURA_HELD_MODEL = 3  /* the same of all layers of a model */
} aura_held;

typedef struct aura_listing_info {
    size_t size;
    aura_held held;
    uint32_t major, minor;      /* version of the format */
    uint32_t checksum;          /* of the header and the table, which has those of all sections: equal where the bytes are */
    uint32_t layers;
    uint64_t seqs;              /* that each layer has */
    uint64_t bytes;             /* of the file; of a source: where it ends there */
    uint32_t sections, damaged; /* how many there are; of these, with another checksum than they should have */
    const void *note;           /* [note_bytes] the caller's bytes, the listing's until it is destroyed. NULL: none, or damaged */
    size_t note_bytes;
} aura_listing_info;
#define AURA_LISTING_INFO_INIT {sizeof(aura_listing_info), (aura_held)0, 0, 0, 0, 0, 0, 0, 0, 0, NULL, 0}

/* Fills the caller's *info. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_listing_get_info(const aura_listing *listing, aura_listing_info *info);

typedef struct aura_listing_layer {
    size_t size;
    aura_config config;  /* of a cache that aura_seq_load() could load into; of a profile only kv_heads, dims, format, balances and
                            metrics. balance is the listing's. Where the section that has it is damaged or missing, all is 0 */
    uint64_t seqs, pages; /* pages: different ones */
    uint64_t bytes;      /* of the layer's sections */
    uint32_t damaged;    /* bit t: the section of type t (doc/snapshot.md) is; bit 31: one of another type */
} aura_listing_layer;
#define AURA_LISTING_LAYER_INIT {sizeof(aura_listing_layer), AURA_CONFIG_INIT, 0, 0, 0, 0}

/* Fills the caller's *info. Fails: AURA_BAD_ARGUMENT (no such layer). */
AURA_API aura_status aura_listing_get_layer(const aura_listing *listing, uint32_t layer, aura_listing_layer *info);

typedef struct aura_listing_seq {
    size_t size;
    aura_seq number;  /* what `seqs` of the options of a load calls it */
    uint64_t tokens, closed, first; /* as in aura_seq_info */
    uint64_t pages;   /* that it has, shared ones included */
} aura_listing_seq;
#define AURA_LISTING_SEQ_INIT {sizeof(aura_listing_seq), 0, 0, 0, 0, 0}

/* Fills the caller's *info with sequence i of a layer, from 0. Fails: AURA_BAD_ARGUMENT (no such layer or sequence). */
AURA_API aura_status aura_listing_get_seq(const aura_listing *listing, uint32_t layer, uint64_t i, aura_listing_seq *info);

/* ---- how much it will be ------------------------------------------------------------------------------------------- */

/* A cache, or a model's, that holds `seqs` sequences of `tokens` tokens each, none of which shares a page. */
typedef struct aura_plan_job {
    size_t size;
    const aura_config *configs; /* [layers]. A budget there counts for nothing */
    uint32_t layers;            /* of a model; 0: configs[0] is that of one cache */
    size_t seqs;                /* with slots: 0 */
    uint64_t tokens;            /* with slots: 0 */
    uint32_t queries;           /* of an attend job for each sequence, all in one call; 0: no call */
} aura_plan_job;
#define AURA_PLAN_JOB_INIT {sizeof(aura_plan_job), NULL, 0, 0, 0, 0}

typedef struct aura_plan_info {
    size_t size;
    size_t bytes;           /* what aura_cache_bytes(), or `bytes` of aura_model_cache_info, will say: the sum of the next six. With
                               a window: where each sequence was reserved its tokens first, otherwise the most */
    size_t page_bytes;      /* of the pages that sequences have */
    size_t idle_bytes;      /* of pages that were allocated with them */
    size_t tail_bytes;      /* pinned and open tokens of sequences, in f16 */
    size_t seq_bytes;       /* sequences besides: what they know of themselves, lists of pages, ids */
    size_t overhead_bytes;  /* of pages besides */
    size_t fixed_bytes;     /* of caches without a sequence */
    size_t pages;           /* that sequences have */
    size_t workspace_bytes; /* of the attend call: as much as any layer needs */
    size_t snapshot_bytes;  /* of a file of all of it, without a note */
} aura_plan_info;
#define AURA_PLAN_INFO_INIT {sizeof(aura_plan_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info, without making a cache.
 * Fails: as aura_cache_create() does for a configuration that is none; AURA_TOO_LARGE where it fits in no memory;
 * AURA_BAD_ARGUMENT also for more than max_queries queries, for queries where q_heads is 0, for sequences with slots, and for
 * slots in a model. */
AURA_API aura_status aura_plan(aura_ctx *ctx, const aura_plan_job *job, aura_plan_info *info);

#ifdef __cplusplus
}
#endif
#endif
