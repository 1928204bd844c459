/* aura over many processes: one context shared by the ranks of an MPI communicator, each of which holds some of its pages.
 *
 * Page p of a sequence, 256 tokens, is on rank (p + shift) mod N, where the shift counts the sequences. Every rank is given all new
 * keys and values and stores its own; every rank is given all queries, attends to its pages, and sends each row of the result to
 * the rank that merges it, in the order of the ranks. So the same N gives the same bits. Bytes and messages of a call do not depend
 * on the length of the context; doc/scale.md has the numbers.
 *
 * Heads can be divided too, as engines with tensor parallelism do: with `head_groups` T, rank r has the KV heads of group r mod T
 * and shares its pages with the N / T ranks of that group. It is given keys, values and queries of these heads only, and gets their
 * rows.
 *
 * Every function with a cache is collective, unless it says otherwise: all ranks call it, in the same order, with the same
 * sequences and sizes. A failure on one rank is one on all, with the same status, and changes nothing anywhere; the message says
 * which rank failed. Ranks that call different things are told so with AURA_BAD_ARGUMENT. A failure of MPI itself ends the job, and
 * so does a rank for which the others have waited longer than `timeout_s`: nobody goes on with a part of the result.
 *
 * Threads: one at a time for each cache; MPI must be initialised for that. Errors, structs, owners and floats are those of aura.h.
 * The library is libaura_mpi; it needs libaura, and MPI 3.
 */
#ifndef AURA_MPI_H
#define AURA_MPI_H

#include <mpi.h>

#include "aura.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct aura_mpi_cache aura_mpi_cache;

typedef struct aura_mpi_options {
    size_t size;
    uint32_t head_groups; /* groups that the KV heads are divided into; it divides them and the number of ranks. 0: 1 */
    double timeout_s;     /* how long a call waits for the other ranks before it ends the job; 0: 600; less: for ever */
    size_t budget_bytes;  /* of a cache that is loaded, on each rank; 0: no limit */
} aura_mpi_options;
#define AURA_MPI_OPTIONS_INIT {sizeof(aura_mpi_options), 0, 0, 0}

/* Makes a cache without sequences. config: of the whole, with all heads; its budget is that of each rank. options NULL: all
 * defaults. The communicator is duplicated: the caller's stays free for other things. The caller owns *cache.
 * Fails: as aura_cache_create(); AURA_BAD_ARGUMENT also for heads or ranks that the groups do not divide; AURA_UNSUPPORTED for a
 * cache with a window, which holds so few tokens that every rank can have them all (a window of aura_attend_options works), for
 * slots, for metrics, v_balance and AURA_LEARN. */
AURA_API aura_status aura_mpi_cache_create(aura_ctx *ctx, MPI_Comm comm, const aura_config *config, const aura_mpi_options *options,
                                           aura_mpi_cache **cache);

/* Frees the cache of this rank; NULL is allowed. All ranks call it. Never fails. */
AURA_API void aura_mpi_cache_destroy(aura_mpi_cache *cache);

typedef struct aura_mpi_cache_info {
    size_t size;
    uint32_t rank, ranks;             /* of those that share pages */
    uint32_t group, groups;           /* of heads */
    uint32_t first_head, kv_heads;    /* of this rank */
    size_t bytes, pages, free_pages;  /* of this rank, as in aura_cache_info */
    size_t seqs;
    uint64_t sent_bytes, messages;    /* that this rank has given to MPI for others since the cache was made */
    double local_s, waited_s;         /* seconds of the last attend call: its own tokens; communication and merging */
} aura_mpi_cache_info;
#define AURA_MPI_CACHE_INFO_INIT {sizeof(aura_mpi_cache_info), 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0}

/* Fills the caller's *info. Not collective. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_mpi_cache_get_info(const aura_mpi_cache *cache, aura_mpi_cache_info *info);

/* These do what aura_seq_create(), aura_seq_fork(), aura_seq_release(), aura_truncate(), aura_seq_reserve() and aura_append() do,
 * on all ranks or on none. Ids are the same on all ranks. Fail as those do. */
AURA_API aura_status aura_mpi_seq_create(aura_mpi_cache *cache, aura_seq *seq);
AURA_API aura_status aura_mpi_seq_fork(aura_mpi_cache *cache, aura_seq from, uint64_t tokens, aura_seq *seq);
AURA_API aura_status aura_mpi_seq_release(aura_mpi_cache *cache, aura_seq seq);
AURA_API aura_status aura_mpi_truncate(aura_mpi_cache *cache, aura_seq seq, uint64_t tokens);
AURA_API aura_status aura_mpi_seq_reserve(aura_mpi_cache *cache, aura_seq seq, uint64_t tokens);
AURA_API aura_status aura_mpi_append(aura_mpi_cache *cache, const aura_append_job *jobs, size_t n_jobs);

/* Fills the caller's *info: tokens and closed are those of the whole sequence, pages those of this rank. Not collective.
 * Fails: AURA_BAD_ARGUMENT (no such sequence). */
AURA_API aura_status aura_mpi_seq_get_info(const aura_mpi_cache *cache, aura_seq seq, aura_seq_info *info);

/* Computes the attention of every query head to the whole context, as aura_attend() does. Rows are [query][head] of the first job,
 * then of the next. everywhere 1: every rank gets all rows; 0: each gets those that aura_mpi_rows() names, and leaves the others
 * alone. Sinks count once. A workspace is not used.
 * Fails as aura_attend() does, AURA_NOT_FINITE too on all ranks. */
AURA_API aura_status aura_mpi_attend(aura_mpi_cache *cache, const aura_attend_job *jobs, size_t n_jobs,
                                     const aura_attend_options *options, uint32_t everywhere);

/* The rows [*first, *first + *n) of `rows` that this rank gets without `everywhere`. Not collective. Fails: AURA_BAD_ARGUMENT. */
AURA_API aura_status aura_mpi_rows(const aura_mpi_cache *cache, size_t rows, size_t *first, size_t *n);

/* Gives every rank tokens [first, first + tokens), of the heads of its group, as aura_cache_decode() does. k and v are contiguous
 * f32, [tokens][kv_heads][dim]; NULL: not wanted. Fails as aura_cache_decode() does. */
AURA_API aura_status aura_mpi_decode(aura_mpi_cache *cache, aura_seq seq, uint64_t first, uint32_t tokens, float *k, float *v);

/* Saves the cache: every rank writes a shard PATH.ID-N, and then rank 0 replaces the manifest at PATH, which names them. Whoever is
 * interrupted leaves the old manifest and its shards, or the new ones, and perhaps files that no manifest names. The old shards are
 * removed at the end. All ranks see the same directory. Fails as every save of aura_file.h does. */
AURA_API aura_status aura_mpi_cache_save(aura_mpi_cache *cache, const char *path);

/* Makes the cache that was saved, on any number of ranks and head groups. Pages move to the ranks that have them now, as they are:
 * nothing is encoded again. Sequences are numbered 1, 2, 3 ... in the order of their ids. The caller owns *cache. Fails as every
 * load of aura_file.h does, with AURA_OUT_OF_PAGES, and as aura_mpi_cache_create() does. */
AURA_API aura_status aura_mpi_cache_load(aura_ctx *ctx, MPI_Comm comm, const char *path, const aura_mpi_options *options,
                                         aura_mpi_cache **cache);

#ifdef __cplusplus
}
#endif
#endif
