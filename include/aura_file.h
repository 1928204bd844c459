/* aura in files: profiles of models, and snapshots of caches, sequences and models.
 *
 * Errors, structs, threads and floats are those of aura.h.
 */
#ifndef AURA_FILE_H
#define AURA_FILE_H

#include "aura.h"

#ifdef __cplusplus
extern "C" {
#endif

/* ---- profiles ----------------------------------------------------------------------------------------------------
 *
 * What calibration found out about a model: the balance vectors of its layers, in one file. doc/snapshot.md draws the
 * file. Saving replaces a file in one step: whoever reads it, also after a crash, finds the old one or the new one. Loading
 * checks every byte; the file must not be written to meanwhile (renaming another over it is well).
 */

/* An empty profile of a model with that many layers, 1 to 65536. *profile is the caller's, to be given to
 * aura_profile_destroy() before its ctx goes. Threads: calls that only read (get, save) may run at once.
 * Fails: AURA_BAD_ARGUMENT, AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_profile_create(aura_ctx *ctx, uint32_t layers, aura_profile **profile);
AURA_API void aura_profile_destroy(aura_profile *profile); /* NULL is allowed */

/* balance[kv_heads][k_dim] of a layer, as aura_config takes it; copied. NULL: none, whatever was there is forgotten.
 * Fails, with nothing changed: AURA_BAD_ARGUMENT, AURA_UNSUPPORTED (k_dim), AURA_BAD_VALUE (not within 1/8 to 8),
 * AURA_OUT_OF_MEMORY. */
AURA_API aura_status aura_profile_set(aura_profile *profile, uint32_t layer, uint32_t kv_heads, uint32_t k_dim,
                                      const float *balance);

typedef struct aura_profile_layer {
    size_t size;
    uint32_t layers;      /* of the profile */
    uint32_t kv_heads, k_dim;
    const float *balance; /* [kv_heads][k_dim], the profile's until it is set or destroyed; NULL: this layer has none */
} aura_profile_layer;
#define AURA_PROFILE_LAYER_INIT {sizeof(aura_profile_layer), 0, 0, 0, NULL}
/* Fails: AURA_BAD_ARGUMENT (NULLs, no such layer). */
AURA_API aura_status aura_profile_get(const aura_profile *profile, uint32_t layer, aura_profile_layer *info);

/* Fails: AURA_IO (a path nobody can write, a full disk, ...), the file of that name being then what it was before (or, where
 * only the directory could not be synced, the new one, which the message says); AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_profile_save(const aura_profile *profile, const char *path);
/* Fails: AURA_BAD_FILE (any bit or byte is not as it was saved; not a profile), AURA_UNSUPPORTED (of a newer version),
 * AURA_IO, AURA_OUT_OF_MEMORY, AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_profile_load(aura_ctx *ctx, const char *path, aura_profile **profile);

/* ---- snapshots ---------------------------------------------------------------------------------------------------
 *
 * A cache, or some of its sequences, in a file: everything that is needed to go on as if nothing had happened. After
 * loading, appends and attention give the same bits as they would have in the cache that was saved, on any machine of the
 * library's. Pages that sequences share are saved once and shared again; reservations are not saved. doc/snapshot.md draws
 * the file; files are replaced and checked as those of profiles are.
 *
 * A file may be of some KV heads only, and of a file some may be loaded: a machine that has heads 2 and 3 of 8 loads those
 * into a cache of its own with 2 KV heads, and a quarter of the query heads.
 *
 * Threads: saving reads the sequences that it saves (those of the call, or all). Loading a sequence is like creating one.
 */
typedef struct aura_snapshot_options {
    size_t size;
    const aura_seq *seqs; /* [n_seqs] those to be saved, by their ids in the cache; or loaded, by their ids in the file, which
                             are those they had when they were saved. NULL: all */
    size_t n_seqs;
    uint32_t first_head, heads; /* KV heads [first_head, first_head + heads); heads 0: from first_head on */
    size_t budget_bytes;  /* of a cache or model that is loaded; 0: no limit */
} aura_snapshot_options;
#define AURA_SNAPSHOT_OPTIONS_INIT {sizeof(aura_snapshot_options), NULL, 0, 0, 0, 0}

/* Saves a cache; options NULL: all of it. Fails like aura_profile_save(), with AURA_BAD_ARGUMENT also where there is no such
 * sequence or head. */
AURA_API aura_status aura_cache_save(const aura_cache *cache, const char *path, const aura_snapshot_options *options);

/* Makes the cache that was saved, with a budget of its own; its sequences have the ids that they had. *cache is the
 * caller's, as after aura_cache_create().
 * Fails like aura_profile_load(), and with AURA_OUT_OF_PAGES, AURA_UNSUPPORTED (made with other codebooks or signs),
 * AURA_BAD_ARGUMENT (no such sequence or head in the file). */
AURA_API aura_status aura_cache_load(aura_ctx *ctx, const char *path, const aura_snapshot_options *options, aura_cache **cache);

/* One sequence: saving it is aura_cache_save() of it alone. */
AURA_API aura_status aura_seq_save(const aura_cache *cache, aura_seq seq, const char *path, const aura_snapshot_options *options);

/* Loads a sequence into a cache of the same configuration (all of it but the budget; balance and number of heads as chosen
 * included) under a new id. The file may be one of a whole cache; seqs then names the one.
 * Fails like aura_cache_load(), with the cache unchanged; AURA_BAD_ARGUMENT where the configurations differ: the message says
 * in what. */
AURA_API aura_status aura_seq_load(aura_cache *cache, const char *path, const aura_snapshot_options *options, aura_seq *seq);

/* Snapshots of all layers in one file: as aura_cache_save(), aura_cache_load(), aura_seq_save() and aura_seq_load(). Heads
 * are chosen in every layer alike. */
AURA_API aura_status aura_model_save(const aura_model_cache *model, const char *path, const aura_snapshot_options *options);
AURA_API aura_status aura_model_load(aura_ctx *ctx, const char *path, const aura_snapshot_options *options,
                                     aura_model_cache **model);
AURA_API aura_status aura_model_seq_save(const aura_model_cache *model, aura_seq seq, const char *path,
                                         const aura_snapshot_options *options);
AURA_API aura_status aura_model_seq_load(aura_model_cache *model, const char *path, const aura_snapshot_options *options,
                                         aura_seq *seq);

#ifdef __cplusplus
}
#endif
#endif
